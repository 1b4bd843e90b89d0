/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * rings.h - asynchronous requests without a library: one request, or a chain of
 * linked ones, is submitted and its completion waited for.  All functions return
 * what the request returned, or a negative errno.
 */
#ifndef FOREBAY_TESTS_MOUNT_RINGS_H
#define FOREBAY_TESTS_MOUNT_RINGS_H

#include <errno.h>
#include <linux/aio_abi.h>
#include <linux/io_uring.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static struct {
	int fd;
	unsigned int *tail, *mask, *array, *cq_head, *cq_tail, *cq_mask;
	struct io_uring_sqe *sqes;
	struct io_uring_cqe *cqes;
} ring = { .fd = -1 };

static aio_context_t aio;

static bool ring_open(void)
{
	struct io_uring_params p = { 0 };
	uint8_t *sq, *cq;

	ring.fd = (int)syscall(SYS_io_uring_setup, 8, &p);
	if (ring.fd < 0)
		return false;
	sq = mmap(NULL, p.sq_off.array + p.sq_entries * 4, PROT_READ | PROT_WRITE, MAP_SHARED, ring.fd,
		  IORING_OFF_SQ_RING);
	cq = mmap(NULL, p.cq_off.cqes + p.cq_entries * sizeof(struct io_uring_cqe), PROT_READ | PROT_WRITE,
		  MAP_SHARED, ring.fd, IORING_OFF_CQ_RING);
	ring.sqes = mmap(NULL, p.sq_entries * sizeof(struct io_uring_sqe), PROT_READ | PROT_WRITE, MAP_SHARED,
			 ring.fd, IORING_OFF_SQES);
	if (sq == MAP_FAILED || cq == MAP_FAILED || ring.sqes == MAP_FAILED)
		return false;
	ring.tail = (unsigned int *)(sq + p.sq_off.tail);
	ring.mask = (unsigned int *)(sq + p.sq_off.ring_mask);
	ring.array = (unsigned int *)(sq + p.sq_off.array);
	ring.cq_head = (unsigned int *)(cq + p.cq_off.head);
	ring.cq_tail = (unsigned int *)(cq + p.cq_off.tail);
	ring.cq_mask = (unsigned int *)(cq + p.cq_off.ring_mask);
	ring.cqes = (struct io_uring_cqe *)(cq + p.cq_off.cqes);
	return true;
}

/* Submits n requests and waits for all.  Returns the result of the first that failed, or of the
 * first one. */
static int ring_run(const struct io_uring_sqe *requests, unsigned int n)
{
	unsigned int tail, head;
	int result[8] = { 0 }, first;

	if (ring.fd < 0 && !ring_open())
		return -errno;
	tail = *ring.tail;
	head = *ring.cq_head;
	for (unsigned int i = 0; i < n; i++) {
		unsigned int slot = (tail + i) & *ring.mask;

		ring.sqes[slot] = requests[i];
		ring.sqes[slot].user_data = i;
		ring.array[slot] = slot;
	}
	__atomic_store_n(ring.tail, tail + n, __ATOMIC_RELEASE);
	if (syscall(SYS_io_uring_enter, ring.fd, n, n, IORING_ENTER_GETEVENTS, NULL, 0) < 0)
		return -errno;
	for (unsigned int i = 0; i < n; i++, head++) {
		const struct io_uring_cqe *c;

		while (__atomic_load_n(ring.cq_tail, __ATOMIC_ACQUIRE) == head)
			syscall(SYS_io_uring_enter, ring.fd, 0, 1, IORING_ENTER_GETEVENTS, NULL, 0);
		c = &ring.cqes[head & *ring.cq_mask];
		result[c->user_data & 7] = c->res;
	}
	__atomic_store_n(ring.cq_head, head, __ATOMIC_RELEASE);
	first = result[0];
	for (unsigned int i = 0; i < n; i++)
		if (result[i] < 0)
			return result[i];
	return first;
}

static bool aio_open(void)
{
	return syscall(SYS_io_setup, 8, &aio) == 0;
}

static int aio_run(struct iocb *request)
{
	struct io_event event;

	if (syscall(SYS_io_submit, aio, 1, &request) != 1)
		return -errno;
	while (syscall(SYS_io_getevents, aio, 1, 1, &event, NULL) != 1)
		if (errno != EINTR)
			return -errno;
	return (int)event.res;
}

#endif
