/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * group_race.h - comes before all else that is compiled: at a few loads of the engine's the test may
 * do what another thread could do at that moment.
 */
#ifndef GROUP_RACE_H
#define GROUP_RACE_H

#define _GNU_SOURCE /* for port/posix.c, which comes later */
#include "medium/port.h"

void group_loaded(const char *what);

/* Constant: is this one of the loads? */
#define GROUP_RACED(p) \
	(__builtin_strcmp(p, "&fby_stream_device(p)->lost") == 0 || __builtin_strcmp(p, "&l->gate") == 0 || \
	 __builtin_strcmp(p, "&fby_stream_slot(p, owner)->volume[owner].open") == 0 || \
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
