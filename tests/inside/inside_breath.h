/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* inside_breath.h - before all else: the breaths that the engine takes in its long loops are counted. */
#ifndef INSIDE_BREATH_H
#define INSIDE_BREATH_H

extern unsigned int breaths;
static inline void take_breath(void)
{
	breaths++;
}
#define fby_breathe() take_breath()

#endif
