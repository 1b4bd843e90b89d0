/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
int stub_cond_resched(void);
#define cond_resched() stub_cond_resched()
