// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * map_media.c - persistent memory with caches in front of it, at a granularity of 8 bytes.
 */
#include "map_test.h"

static struct medium *of_media(struct fby_media *m)
{
	return (struct medium *)((char *)m - offsetof(struct medium, media));
}

static struct pending *pending_of(struct medium *m, u32 line)
{
	struct pending *p;

	if (m->at[line])
		return &m->pending[m->at[line] - 1];
	if (m->npending == m->room) {
		m->room = m->room ? 2 * m->room : 64;
		m->pending = realloc(m->pending, m->room * sizeof(*m->pending));
		memset(m->pending + m->npending, 0, (m->room - m->npending) * sizeof(*m->pending));
	}
	p = &m->pending[m->npending++];
	m->at[line] = m->npending;
	p->line = line;
	p->n = 0;
	return p;
}

static void touch(struct medium *m, u32 line)
{
	if (m->is_touched[line])
		return;
	m->is_touched[line] = 1;
	m->touched[m->ntouched++] = line;
}

/* Records a change of the line, if there is one. */
static struct version *settle_line(struct medium *m, u32 line)
{
	u8 *seen = m->media.base + (u64)line * FBY_LINE, *latest = m->latest + (u64)line * FBY_LINE;
	struct pending *p;
	struct version *v;

	if (memcmp(seen, latest, FBY_LINE) == 0)
		return m->at[line] ? &m->pending[m->at[line] - 1].version[m->pending[m->at[line] - 1].n - 1] : NULL;
	memcpy(latest, seen, FBY_LINE);
	touch(m, line);
	p = pending_of(m, line);
	if (p->n == p->room) {
		p->room = p->room ? 2 * p->room : 4;
		p->version = realloc(p->version, p->room * sizeof(*p->version));
	}
	v = &p->version[p->n++];
	memcpy(v->words, seen, FBY_LINE);
	v->flushed = 0;
	return v;
}

void medium_settle(struct medium *m, u64 at, u64 n)
{
	for (u64 line = at / FBY_LINE; line <= (at + n - 1) / FBY_LINE; line++)
		settle_line(m, (u32)line);
}

static void flush_range(struct medium *m, u64 at, u64 n)
{
	for (u64 line = at / FBY_LINE; line <= (at + n - 1) / FBY_LINE; line++) {
		struct version *v = settle_line(m, (u32)line);

		if (v)
			v->flushed |= 1u << m->actor;
	}
}

static void fence(struct medium *m)
{
	for (u32 i = 0; i < m->npending;) {
		struct pending *p = &m->pending[i], last;
		u32 n = p->n;

		while (n > 0 && !(p->version[n - 1].flushed >> m->actor & 1))
			n--;
		if (n > 0)
			memcpy(m->durable + (u64)p->line * FBY_LINE, p->version[n - 1].words, FBY_LINE);
		memmove(p->version, p->version + n, (p->n - n) * sizeof(*p->version));
		p->n -= n;
		if (p->n) {
			i++;
			continue;
		}
		m->at[p->line] = 0;
		last = m->pending[--m->npending];
		if (i != m->npending) {
			m->pending[m->npending] = *p; /* its room */
			*p = last;
			m->at[p->line] = i + 1;
		}
	}
}

void medium_power_off(struct medium *m)
{
	for (u32 i = 0; i < m->npending; i++)
		m->at[m->pending[i].line] = 0;
	m->npending = 0;
}

void medium_set_line(struct medium *m, u32 line, const u64 words[LINE_WORDS])
{
	memcpy(m->media.base + (u64)line * FBY_LINE, words, FBY_LINE);
	memcpy(m->latest + (u64)line * FBY_LINE, words, FBY_LINE);
	memcpy(m->durable + (u64)line * FBY_LINE, words, FBY_LINE);
	touch(m, line);
}

/* --- what the engine calls ---------------------------------------------------------------- */

static void event(struct medium *m)
{
	m->events++;
	if (m->event)
		m->event(m);
}

static void media_write(struct fby_media *media, u64 at, const void *src, size_t n)
{
	struct medium *m = of_media(media);

	event(m);
	memcpy(media->base + at, src, n);
	flush_range(m, at, n);
}

static u32 media_write_crc(struct fby_media *media, u64 at, const void *src, size_t n, u32 crc)
{
	media_write(media, at, src, n);
	return fby_crc32c(crc, src, n);
}

static void media_fence_all(struct fby_media *media, u64 at, size_t n)
{
	struct medium *m = of_media(media);

	(void)at, (void)n;
	event(m);
	fence(m);
}

static int media_read_sum(struct fby_media *media, void *dst, u64 at, size_t n, u32 *crc)
{
	*crc = fby_crc32c(*crc, media->base + at, n);
	if (dst)
		memcpy(dst, media->base + at, n);
	return 0;
}

static const struct fby_media_ops medium_ops = { media_write, media_write_crc, media_fence_all, media_read_sum };

static void port_flush(void *host, const void *p, size_t n)
{
	struct medium *m = host;

	event(m);
	flush_range(m, (u64)((const u8 *)p - m->media.base), n);
}

static void port_fence(void *host)
{
	event(host);
	fence(host);
}

const struct fby_frame_port medium_port = { port_flush, port_fence };

void medium_make(struct medium *m, u64 bytes)
{
	memset(m, 0, sizeof(*m));
	m->media.size = bytes;
	m->media.ops = &medium_ops;
	m->media.base = aligned_alloc(2u << 20, bytes);
	m->durable = calloc(1, bytes);
	m->latest = calloc(1, bytes);
	memset(m->media.base, 0, bytes);
	m->at = calloc(bytes / FBY_LINE, sizeof(*m->at));
	m->touched = calloc(bytes / FBY_LINE, sizeof(*m->touched));
	m->is_touched = calloc(bytes / FBY_LINE, 1);
}
