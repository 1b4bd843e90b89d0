/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
#include <linux/types.h>
