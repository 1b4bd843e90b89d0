/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
#include <linux/types.h>

void stub_preempt_disable(void);
void stub_preempt_enable(void);
#define preempt_disable() stub_preempt_disable()
#define preempt_enable() stub_preempt_enable()
