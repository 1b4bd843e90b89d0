/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * group_test.h - what the program runs besides lives.
 */
#ifndef GROUP_TEST_H
#define GROUP_TEST_H

void group_refusals(void); /* group_refusals.c */
void group_scenes(void); /* group_scenes.c */

#endif
