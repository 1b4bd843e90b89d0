// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * background.c - the work of fby_destage_step for the pool: the tick (seals, counts, rates),
 * freeing of empty chunks, relocation, and a turn for each volume that may have something to
 * destage.
 */
#include "drain/drain.h"
#include "space/slot.h"

#define TICK_NS 100000000ull
#define SWEEP_NS 10000000ull /* between two rounds of the hand while no chunk is free */

/* Seals the entries that existed at the previous tick, so that later damage to them is not
 * mistaken for a torn tail.  Nobody appends to the chunk meanwhile, so its age can be read, too. */
static void tick(struct fby_drain *p, u32 *wake)
{
	for (u32 i = 0; i < p->space->opt.nslots; i++) {
		struct fby_slot *s = &p->space->slot[i];

		if (!fby_slot_try(s))
			continue;
		for (u32 v = 0; v < p->space->store.sb.nvolumes; v++) {
			fby_slot_seal(p->space, s, (u16)v, true);
			fby_slot_age(p->space, s, (u16)v, wake);
		}
		fby_slot_give(p->space, s, wake);
	}
	for (u32 v = 0; v < p->space->store.sb.nvolumes; v++)
		if (fby_load(&p->space->owner[v].nchunks) || fby_load(&p->space->owner[v].counted))
			fby_owner_count(p->space, (u16)v);
	fby_share_update(p->space);
	for (u32 v = 0; v < p->space->store.sb.nvolumes; v++)
		if (p->space->owner[v].attached)
			fby_pace_tick(p, (u16)v);
}

/* Frees chunks whose pages were all overwritten, while writers wait for space.  True: the hand
 * has not come round. */
static bool sweep_step(struct fby_drain *p, u64 *next_ns, u32 *wake)
{
	u32 n = fby_sweep_most(p->space);

	if (p->sweep_left == 0 && fby_starved(p->space)) {
		if (p->space->now_ns - p->sweep_ns >= SWEEP_NS) {
			p->sweep_ns = p->space->now_ns;
			p->sweep_left = p->space->store.sb.nchunks;
		}
		*next_ns = p->sweep_ns + SWEEP_NS;
		return p->sweep_left > 0;
	}
	if (n > p->sweep_left)
		n = p->sweep_left;
	if (n)
		fby_chunk_sweep(p->space, n, wake);
	p->sweep_left -= n;
	return p->sweep_left > 0;
}

/*
 * Destage looks at all volumes at each tick, when too much of the pool has become live, and when
 * it is time to retry an origin.  Otherwise it looks only at volumes with an event: a completion,
 * a chunk opened or wanted, a drain.  So the cost of a request does not grow with the number of
 * volumes.
 */
static void look_at_all(struct fby_drain *p)
{
	for (u32 v = 0; v < p->space->store.sb.nvolumes; v++)
		if (p->space->owner[v].attached)
			fby_destage_look(p->space, (u16)v);
}

static void housekeeping(struct fby_drain *p, u32 *wake)
{
	bool pressure = p->space->pressure, all = false;

	if (p->space->now_ns - p->tick_ns >= TICK_NS) {
		p->tick_ns = p->space->now_ns;
		tick(p, wake);
		all = true;
	}
	fby_pressure_update(p->space);
	if (p->space->now_ns >= p->retry_ns) {
		p->retry_ns = FBY_NO_SEQ;
		all = true;
	}
	if (all || p->space->pressure != pressure)
		look_at_all(p);
}

static u16 lowest(u64 volumes)
{
	u32 low = (u32)volumes;

	return (u16)(low ? __builtin_ctz(low) : 32 + __builtin_ctz((u32)(volumes >> 32)));
}

/* One step of each volume that is ready, beginning after the last one that had a turn. */
static int volumes_step(struct fby_drain *p, struct fby_io *io, u32 *wake)
{
	u64 left = fby_load(&p->space->ready);
	int decision = FBY_DONE;

	while (left) {
		u64 later = left >> p->next_volume << p->next_volume;
		u16 volume = lowest(later ? later : left);
		int r;

		left &= ~(1ull << volume);
		p->next_volume = (volume + 1u) % FBY_VOLUMES_MAX;
		/* Cleared before the check: whatever arrives later is for the next step. */
		fby_fetch_and(&p->space->ready, ~(1ull << volume));
		if (!p->space->owner[volume].attached)
			continue;
		r = fby_destage_volume(p, volume, io, wake);
		if (r != FBY_DONE)
			fby_destage_look(p->space, volume);
		if (r == FBY_ORIGIN) {
			fby_destage_issue(p, volume, io);
			return FBY_ORIGIN;
		}
		if (r == FBY_AGAIN)
			decision = FBY_AGAIN;
	}
	return decision;
}

int fby_drain_step(struct fby_drain *p, u64 now_ns, struct fby_io *io, u64 *next_ns, u32 *wake)
{
	bool again;
	int decision;

	*next_ns = FBY_NO_SEQ;
	if (p->space->opt.read_only || !p->space->usable)
		return FBY_DONE;
	fby_store(&p->space->now_ns, now_ns);
	fby_store(&p->space->stepped_opens, fby_load(&p->space->chunks_opened));
	if (fby_load(&p->space->wake_owed))
		*wake |= fby_fetch_and(&p->space->wake_owed, 0u);
	housekeeping(p, wake);
	again = sweep_step(p, next_ns, wake) || fby_relocate_step(p, wake);
	decision = volumes_step(p, io, wake);
	if (p->retry_ns < *next_ns)
		*next_ns = p->retry_ns;
	if (p->tick_ns + TICK_NS < *next_ns)
		*next_ns = p->tick_ns + TICK_NS;
	return decision == FBY_DONE && again ? FBY_AGAIN : decision;
}
