// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * volume_explore.c - goal: no acknowledged write to a volume in a pool on a block device is ever
 * lost, and no read shows a version that a cut takes back.
 *
 * Method: a volume lives through random writes, zeroes, discards, reads, rounds of destage and
 * errors of both devices, by seed.  In every other life there are two volumes and a log
 * (group_log.c), so that the device has groups of all three on their way.  The power may be cut
 * after each request that is sent or ends, on either side, and in each persist.  All states of the
 * pending blocks are enumerated if they are few, and sampled if they are many.  Each state is
 * opened, recovered, checked and read: a sector shows its last version that was acknowledged or
 * read, or a newer one.  Some states are then destaged, and the origin is compared.
 */
#include "group_test.h"
#include "medium/planted.h"
#include "volume_model.h"

#define IN_FLIGHT 8u
#define STEPS 500u

/* One geometry has one volume, and one has two volumes and a log. */
static const struct geometry small[] = { { 4096, 65536, 8, 0, 1 }, { 4096, 131072, 6, 0, 2 } };
static const struct geometry shared[] = { { 4096, 65536, 14, 3000, 2 }, { 4096, 131072, 10, 9000, 4 } };

static struct world live, after;
static struct fby_pool *pool;
static void *pool_memory, *after_memory;
static u64 pool_bytes, after_bytes, now;
static u64 states, cuts, damages, shared_states;
static u32 nvolumes;
static u64 total_groups, total_pages, total_again, total_failed, total_rounds, total_moved, total_writes, total_waits,
	total_meanwhile;
static u32 depth;

/* --- cuts ------------------------------------------------------------------------------------ */

static void recovery_cut(struct world *w);

static void try_state(void)
{
	static struct origin origin[2];
	struct fby_recovery_report report;
	struct fby_pool *p;

	states++;
	shared_states += nlogs > 0;
	world_load(&after);
	for (u32 i = 0; i < nvolumes; i++)
		origin_cut(&origin[i], &vms[i].origin);
	after.persists = depth == 0 && chance(8) == 0 ? recovery_cut : NULL;
	p = open_pool(&after, &after_memory, &after_bytes, &report);
	after.persists = NULL;
	verify(p, &report);
	verify_volumes(p, &report, origin, nvolumes, chance(4) == 0);
}

/* Cuts the power once more, in recovery. */
static void recovery_cut(struct world *w)
{
	world_cut_again(w, &after_memory, &depth, try_state);
}

static void cut_state(const u8 *which)
{
	world_cut(&after, &live, which);
	try_state();
}

/* Tries all states of up to two pending blocks.  With more, it tries none durable, all, each
 * alone, each missing, and some at random. */
static void cut(void)
{
	u8 which[PENDING];
	u32 n = live.npending, most = n <= 2 ? 1u << (2 * n) : 2 * n + 6;

	if (geometry->rare > 1 && chance(geometry->rare))
		return;
	cuts++;
	for (u32 k = 0; k < most; k++) {
		for (u32 i = 0; i < n; i++) {
			if (n <= 2)
				which[i] = k >> (2 * i) & 3;
			else
				which[i] = k < n ? i == k : k < 2 * n ? i != k - n : k == 2 * n ? 0 : k == 2 * n + 1 ? 1 : (u8)chance(4);
		}
		cut_state(which);
	}
}

static void live_persists(struct world *w)
{
	(void)w;
	cut();
}

/* --- a life ------------------------------------------------------------------------------------ */

static struct {
	struct fby_medium_io io;
	u32 number;
} flight[IN_FLIGHT];
static struct {
	struct fby_io io;
	u32 number;
} destage[IN_FLIGHT];
static u32 nflight, ndestage, numbers, errors, origin_errors;
static bool draining[2];

static void look_at_tickets(void)
{
	for (struct volume_model *v = vms; v < vms + nvolumes; v++)
		for (u32 i = 0; i < VSECTORS; i++) {
			struct sector *s = &v->sector[i];

			while (s->floor + 1 < s->n && fby_ticket_state(pool, s->ticket[s->floor + 1]) == FBY_TICKET_DURABLE)
				s->floor++;
		}
	log_look(pool);
}

static struct volume_model *volume_of(const struct fby_io *io)
{
	struct volume_model *v = vms;

	while (v->index != io->volume)
		v++;
	return v;
}

static int send_one(void)
{
	u32 wake = 0;
	int rc;

	if (nflight == IN_FLIGHT || live.npending > PENDING - 80)
		return FBY_WAIT_TICKET;
	rc = fby_medium_next(pool, &flight[nflight].io, &wake);
	if (rc != FBY_DONE)
		return rc;
	flight[nflight].number = ++numbers;
	world_send(&live, &flight[nflight].io, numbers);
	nflight++;
	look_at_tickets();
	if (chance(2))
		cut();
	return rc;
}

static void end_one(void)
{
	u32 i = chance(nflight ? nflight : 1), wake = 0, number;
	struct fby_medium_io io;
	int error = 0;

	if (nflight == 0)
		return;
	io = flight[i].io;
	number = flight[i].number;
	flight[i] = flight[--nflight];
	if (errors && chance(6) == 0) {
		errors--;
		error = 5;
	}
	world_end(&live, &io, number, error);
	if (chance(2))
		cut();
	fby_medium_end(pool, &io, error, &wake);
	must(wake & FBY_WAKE_TICKET, "nobody is woken");
	look_at_tickets();
	if (chance(3) == 0)
		cut();
}

static void add_version(u32 sector, u32 version, u64 ticket)
{
	struct sector *s = &vm->sector[sector];

	if (s->n == VERSIONS)
		lost("too many versions of a sector");
	s->version[s->n] = version;
	s->ticket[s->n++] = ticket;
}

/* Returns the last ticket of all writes. */
static u64 last_ticket(const struct volume_model *v)
{
	u64 last = 0;

	for (u32 i = 0; i < VSECTORS; i++)
		if (v->sector[i].ticket[v->sector[i].n - 1] > last)
			last = v->sector[i].ticket[v->sector[i].n - 1];
	return last;
}

/* Groups are appended again, page by page, and another thread flushes at each page. */
static void flush_meanwhile(const char *what)
{
	if (strcmp(what, "&p->entry[from].state") != 0)
		return;
	total_meanwhile++;
	for (struct volume_model *v = vms; v < vms + nvolumes; v++)
		must(fby_volume_ticket(pool, v->index) >= last_ticket(v), "a flush waits for less than what was written");
}

static bool full(void)
{
	for (u32 i = 0; i < VSECTORS; i++)
		if (vm->sector[i].n > VERSIONS - 8)
			return true;
	return false;
}

static bool waited(int rc)
{
	total_waits += rc == FBY_WAIT_TICKET;
	return rc == FBY_WAIT_BLOCK || rc == FBY_WAIT_SLOT || rc == FBY_WAIT_SPACE || rc == FBY_WAIT_TICKET || rc == -FBY_E_MEDIUM;
}

/* Returns the ticket of a write.  The writer is answered when the ticket is durable. */
static u64 ticket_of_write(void)
{
	u64 ticket = fby_volume_ticket(pool, vm->index);

	must(ticket != 0, "a write on a device is durable at once");
	return ticket;
}

static void write_steps(u32 sector, u32 n, const u8 *bytes)
{
	const struct fby_vec vec[2] = { { bytes, 512 }, { bytes + 512, (n - 1) * 512 } };
	struct fby_write w;
	int rc = fby_write_begin(pool, &w, vm->index, sector, n);
	u32 version;

	if (rc != FBY_DONE) {
		must(waited(rc), "write");
		return;
	}
	fby_write_copy(pool, &w, vec, n > 1 ? 2 : 1, 0);
	if (chance(3) == 0)
		(void)send_one();
	fby_write_commit(pool, &w);
	if (chance(3) == 0)
		(void)send_one();
	fby_write_publish(pool, &w);
	must(w.ticket == ticket_of_write(), "a write has another ticket than a flush after it");
	for (u32 i = 0; i < w.nsectors; i++) {
		memcpy(&version, bytes + i * 512, 4);
		add_version(sector + i, version_of_bytes(bytes + i * 512), w.ticket);
	}
	total_writes++;
}

static void write_some(void)
{
	static u8 bytes[VSECTORS * 512];
	u32 n = chance(3) == 0 ? 8 : chance(3) == 0 ? 1 + chance(40) : 1 + chance(8), sector = chance(VSECTORS), done = 0, wake = 0;
	int rc;

	if (full())
		return;
	if (chance(2))
		sector &= ~7u;
	if (sector + n > VSECTORS)
		n = VSECTORS - sector;
	for (u32 i = 0; i < n; i++)
		bytes_of_version(++vm->versions, bytes + i * 512);
	if (chance(3) == 0) {
		write_steps(sector, n, bytes);
		return;
	}
	rc = fby_write(pool, vm->index, sector, n, bytes, &done, &wake);
	must(rc == FBY_DONE || waited(rc), "write");
	for (u32 i = 0; i < done; i++)
		add_version(sector + i, vm->versions - n + 1 + i, ticket_of_write());
	total_writes += done > 0;
}

static void zero_some(void)
{
	u32 kind = chance(2) ? FBY_KIND_ZERO : FBY_KIND_DISCARD, sector = chance(VBLOCKS) * 8, n = 8 * (1 + chance(3)), wake = 0;
	struct fby_bypass past;
	u64 done = 0;
	int rc;

	if (full())
		return;
	if (sector + n > VSECTORS)
		n = VSECTORS - sector;
	rc = fby_range(pool, vm->index, (enum fby_kind)kind, sector, n, &done, &past, &wake);
	for (u32 i = 0; i < done; i++)
		add_version(sector + i, 0, ticket_of_write());
	if (rc == FBY_ORIGIN) /* not cached: the origin refuses it */
		fby_bypass_end(pool, &past, 5, &wake);
	else
		must(rc == FBY_DONE || waited(rc), "range");
}

/* A version that a read shows is not taken back. */
static void read_some(void)
{
	u32 block = chance(VBLOCKS), version[8];
	int rc = read_block(pool, &vm->origin, block, version);

	if (rc != FBY_DONE) {
		must(waited(rc), "read");
		return;
	}
	for (u32 i = 0; i < 8; i++) {
		struct sector *s = &vm->sector[block * 8 + i];
		u32 k = s->n;

		while (k > 0 && s->version[k - 1] != version[i])
			k--;
		must(k == s->n, "a read does not show the last write");
		s->floor = s->n - 1;
	}
	if (chance(4) == 0)
		cut();
}

static void destage_one(void)
{
	u32 wake = 0;
	u64 next;

	if (ndestage == IN_FLIGHT)
		return;
	now += chance(3) ? 1000000 : 120000000;
	if (fby_destage_step(pool, now, &destage[ndestage].io, &next, &wake) != FBY_ORIGIN)
		return;
	destage[ndestage].number = ++numbers;
	origin_io(&volume_of(&destage[ndestage].io)->origin, &destage[ndestage].io, numbers);
	ndestage++;
	if (chance(4) == 0)
		cut();
}

static void complete_one(void)
{
	u32 i = chance(ndestage ? ndestage : 1), number;
	struct origin *origin;
	struct fby_io io;
	int error = 0;

	if (ndestage == 0)
		return;
	io = destage[i].io;
	number = destage[i].number;
	destage[i] = destage[--ndestage];
	if (origin_errors && chance(10) == 0) {
		origin_errors--;
		error = 5;
	}
	origin = &volume_of(&io)->origin;
	if (io.op != FBY_IO_FLUSH)
		origin_ended(origin, number, !error);
	else if (!error)
		origin_flushed(origin);
	fby_destage_complete(pool, io.id, error);
	if (chance(4) == 0)
		cut();
}

static void pump(void)
{
	for (u32 i = 0; i < 400; i++) {
		int rc = send_one();

		destage_one();
		complete_one();
		if (rc != FBY_DONE && nflight == 0) {
			must(rc == FBY_WAIT_TICKET || rc == -FBY_E_MEDIUM, "nothing is in flight, and nothing goes on");
			return;
		}
		if (rc != FBY_DONE || chance(2))
			end_one();
	}
}

static void between(void)
{
	(void)(chance(2) ? send_one() : (end_one(), 0));
}

static struct log_host log_host = { .w = &live, .errors = &errors, .between = between, .pump = pump };

/* Checks the present volume next to one block that cannot be read. */
static void damage_of_volume(struct fby_pool *p, u32 last)
{
	static void *memory[2];
	u32 older = 0, version[8];
	struct origin origin;
	int rc = attach_volume(p, vm->index, FBY_HOLES_ISOLATE, &memory[vm - vms]);

	must(rc == FBY_DONE || rc == -FBY_E_HOLES, "attach of a damaged volume");
	if (rc != FBY_DONE)
		return; /* it says that something is lost */
	origin_cut(&origin, &vm->origin);
	for (u32 block = 0; block < VBLOCKS; block++) {
		rc = read_block(p, &origin, block, version);
		must(rc == FBY_DONE || rc == -FBY_E_LOST, "a block of a damaged pool");
		older += rc == FBY_DONE && !block_is_new(block, version);
	}
	must(older <= last, "damage shows older data without a word");
}

static u32 last_group(u64 ticket)
{
	struct fby_medium_load load = { 0 };

	if (ticket)
		fby_medium_load(pool, ticket, &load);
	return load.last;
}

/* Makes one block after the other unreadable, while nothing is pending.  A loss is reported, or it
 * was in the last group. */
static void damage(void)
{
	struct fby_recovery_report report;
	struct volume_model *was = vm;
	u32 of_volume[2] = { 0 }, of_log = nlogs && it->appended ? last_group(it->entry[it->appended].ticket) : 0;

	for (u32 i = 0; i < nvolumes; i++)
		of_volume[i] = last_group(fby_volume_ticket(pool, vms[i].index));
	for (u32 b = 0; b < BLOCKS; b++) {
		struct fby_pool *p;

		memcpy(after.durable, live.durable, MEDIA);
		memcpy(after.unreadable, live.unreadable, BLOCKS);
		after.unreadable[b] = 1;
		world_load(&after);
		damages++;
		p = open_pool(&after, &after_memory, &after_bytes, &report);
		verify_damage(p, &report, of_log, false);
		for (vm = vms; vm < vms + nvolumes; vm++)
			damage_of_volume(p, of_volume[vm - vms]);
	}
	vm = was;
}

static void start(enum fby_durable durable)
{
	const struct fby_format f = { .uuid = { 3, 1 }, .chunk_size = CHUNK, .nvolumes = nvolumes + (nlogs ? nlogs : 1), .unit = UNIT };
	static void *attached[2];
	struct fby_recovery_report report;

	world_make(&live, durable);
	world_make(&after, durable);
	must(fby_format(&live.media, &f) == FBY_DONE, "format");
	world_load(&live);
	nflight = ndestage = numbers = 0;
	memset(draining, 0, sizeof(draining));
	now = 1;
	log_host.pool = pool = open_pool(&live, &pool_memory, &pool_bytes, &report);
	add_volumes(pool, nvolumes, attached);
	it = logs;
	memset(it, 0, sizeof(*it));
	must(nlogs == 0 || fby_log_add(pool, "log", 0, &it->index) == FBY_DONE, "add");
	live.persists = live_persists;
	if (nlogs)
		log_next_period(&log_host);
}

/* Does a step of the log.  True: that was the whole step. */
static bool step_of_log(void)
{
	if (nlogs == 0 || chance(5))
		return false;
	if (chance(4))
		log_append(&log_host);
	else if (chance(10))
		log_sync(&log_host);
	else
		log_next_period(&log_host);
	return true;
}

static void step(void)
{
	if (step_of_log())
		return;
	vm = &vms[chance(nvolumes)];
	switch (chance(16)) {
	case 0: case 1: case 2: case 3:
		write_some();
		break;
	case 4:
		zero_some();
		break;
	case 5:
		read_some();
		break;
	case 6: case 7: case 8:
		(void)send_one();
		break;
	case 9: case 10: case 11:
		end_one();
		break;
	case 12: case 13:
		destage_one();
		break;
	case 14:
		complete_one();
		break;
	default:
		if (chance(6) == 0) {
			draining[vm - vms] = !draining[vm - vms];
			must(fby_volume_drain(pool, vm->index, draining[vm - vms]) == FBY_DONE, "drain");
		} else if (chance(3) == 0) {
			pump();
		}
	}
}

static void checked(void)
{
	char text[200];

	if (!live.below.failed && fby_check(pool, true, text, sizeof(text)) != FBY_DONE)
		lost(text);
}

static void one_life(u64 number)
{
	struct fby_medium_info info;
	struct fby_volume_info vi;
	u32 steps = STEPS / geometry->rare;

	start((enum fby_durable)(number % 3));
	race = flush_meanwhile;
	errors = number % 4 == 0 ? 3 : number % 4 == 1 ? 8 : 0;
	origin_errors = number % 5 == 0 ? 4 : 0;
	for (u32 i = 0; i < steps && !live.below.failed; i++) {
		step();
		if (chance(10) == 0)
			checked();
	}
	pump();
	race = NULL;
	fby_medium_info(pool, &info);
	total_groups += info.groups;
	total_pages += info.records;
	total_again += info.again;
	total_failed += info.failed;
	for (u32 i = 0; i < nvolumes; i++) {
		must(fby_volume_info(pool, vms[i].index, &vi) == FBY_DONE, "info");
		total_rounds += vi.rounds;
		total_moved += vi.pages_relocated;
	}
	checked();
	cut();
	if (!live.below.failed && live.npending == 0)
		damage();
	volume_hostile(&live, 60);
}

void volume_lives(u64 first, u64 seeds)
{
	const struct geometry *was = geometry;

	for (u64 i = first; i < first + seeds; i++) {
		this_seed = i;
		seed = i * 0x9e3779b97f4a7c15ull | 1;
		for (u32 k = 0; k < 4; k++)
			(void)chance(2);
		nvolumes = 1 + i % 2;
		nlogs = i % 2;
		geometry = nlogs ? &shared[i % 6 == 5] : &small[i % 6 == 2];
		one_life(i);
	}
	nlogs = 0;
	geometry = was;
}

void volume_told(void)
{
	volume_hostile_told();
	printf("volumes: %llu cuts, %llu states, %llu of two volumes and a log, %llu damages: nothing acknowledged was lost\n",
	       (unsigned long long)cuts, (unsigned long long)states, (unsigned long long)shared_states,
	       (unsigned long long)damages);
	printf("volumes: %llu writes, %llu groups of %llu records, %llu waits for tickets, %llu rounds, %llu copies, %llu groups "
	       "again with %llu flushes, %llu pools failed\n", (unsigned long long)total_writes, (unsigned long long)total_groups,
	       (unsigned long long)total_pages, (unsigned long long)total_waits, (unsigned long long)total_rounds,
	       (unsigned long long)total_moved, (unsigned long long)total_again, (unsigned long long)total_meanwhile,
	       (unsigned long long)total_failed);
}
