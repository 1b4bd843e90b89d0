/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * group_race.h - included before everything else that is compiled.  At a few loads of the engine,
 * the test may act as another thread could at that moment.
 */
#ifndef GROUP_RACE_H
#define GROUP_RACE_H

#define _GNU_SOURCE /* for port/posix.c, which comes later */
#include "medium/port.h"

void group_loaded(const char *what);

/* Whether this is one of the loads; a constant. */
#define GROUP_RACED(p) \
	(__builtin_strcmp(p, "&fby_stream_device(p)->lost") == 0 || __builtin_strcmp(p, "&l->gate") == 0 || \
	 __builtin_strcmp(p, "&fby_stream_slot(p, owner)->volume[owner].open") == 0 || \
	 __builtin_strcmp(p, "&p->space->chunk[c].seq_min") == 0 || /* a round lists its pages */ \
	 __builtin_strcmp(p, "&p->entry[from].state") == 0) /* pages are being appended again */

#undef fby_load
#define fby_load(p) \
	({ \
		__typeof__(*(p)) fby_loaded_ = __atomic_load_n((p), __ATOMIC_RELAXED); \
		if (GROUP_RACED(#p)) \
			group_loaded(#p); \
		fby_loaded_; \
	})

#endif
