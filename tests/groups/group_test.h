/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * group_test.h - the tests of the program besides lives.
 */
#ifndef GROUP_TEST_H
#define GROUP_TEST_H

#include "group_model.h"

extern u64 this_seed;

void group_refusals(void); /* group_refusals.c */
void group_scenes(void); /* group_scenes.c */
void volume_scenes(void); /* volume_scenes.c */
void volume_lives(u64 first, u64 seeds); /* volume_explore.c */
void volume_told(void);
void volume_failed(u64 first, u64 lives); /* volume_failed.c */
void volume_failed_told(void);

#endif
