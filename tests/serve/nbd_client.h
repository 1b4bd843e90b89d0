// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * nbd_client.h - an NBD client: the fixed newstyle handshake, with structured replies or without,
 * and one request after the other, in sectors.  A request that is not answered within LIMIT_S ends
 * the program, because everything must end.
 */
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#define SECTOR 512u
#define LIMIT_S 60

enum { NBD_READ, NBD_WRITE, NBD_DISC, NBD_FLUSH, NBD_TRIM, NBD_WRITE_ZEROES = 6 };
#define NBD_FUA 1u
#define NBD_NO_HOLE 2u
#define NBD_FAST_ZERO 16u
#define NO_ANSWER (-1) /* the server is gone */

static const char *socket_path, *export_name;

static void die(const char *what)
{
	fprintf(stderr, "%s: %s: %s\n", program_invocation_short_name, what, strerror(errno));
	exit(1);
}

static bool all(ssize_t (*call)(int, void *, size_t), int fd, void *p, size_t n)
{
	for (size_t at = 0; at < n;) {
		ssize_t got = call(fd, (char *)p + at, n - at);

		if (got < 0 && errno == EAGAIN) {
			fprintf(stderr, "%s: a request has no answer after %d s\n", program_invocation_short_name, LIMIT_S);
			exit(3);
		}
		if (got <= 0)
			return false;
		at += (size_t)got;
	}
	return true;
}

static ssize_t send_some(int fd, void *p, size_t n)
{
	return send(fd, p, n, MSG_NOSIGNAL);
}

static bool put(int fd, const void *p, size_t n)
{
	return all(send_some, fd, (void *)p, n);
}

static bool get(int fd, void *p, size_t n)
{
	return all(read, fd, p, n);
}

/* Sends an option of the handshake with LENGTH bytes of data. */
static bool put_option(int fd, uint32_t number, const void *data, uint32_t length)
{
	struct __attribute__((packed)) {
		uint64_t magic;
		uint32_t option, length;
	} option = { htobe64(0x49484156454f5054ull), htobe32(number), htobe32(length) };

	return put(fd, &option, sizeof(option)) && put(fd, data, length);
}

static int connect_export(bool structured)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	struct timeval limit = { .tv_sec = LIMIT_S };
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	uint32_t flags = htobe32(3);
	uint8_t greeting[18], agreed[20], info[10];

	strncpy(address.sun_path, socket_path, sizeof(address.sun_path) - 1);
	if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof(address)) ||
	    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)))
		die(socket_path);
	if (!get(fd, greeting, sizeof(greeting)) || !put(fd, &flags, 4))
		die("the handshake");
	if (structured && (!put_option(fd, 8, NULL, 0) || !get(fd, agreed, sizeof(agreed)) || agreed[15] != 1))
		die("structured replies");
	if (!put_option(fd, 1, export_name, (uint32_t)strlen(export_name)) || !get(fd, info, sizeof(info)))
		die("the handshake");
	return fd;
}

/* Sends a request and its data. */
static bool put_request(int fd, unsigned int type, unsigned int flags, uint64_t sector, uint32_t n, const void *data)
{
	struct __attribute__((packed)) {
		uint32_t magic;
		uint16_t flags, type;
		uint64_t handle, offset;
		uint32_t length;
	} out = { htobe32(0x25609513), htobe16((uint16_t)flags), htobe16((uint16_t)type), type,
		  htobe64(sector * SECTOR), htobe32(n * SECTOR) };

	return put(fd, &out, sizeof(out)) && (type != NBD_WRITE || put(fd, data, n * SECTOR));
}

/* Gets the next reply.  Returns 0, the server's error, or NO_ANSWER.  For a read DATA has room for
 * n sectors.  With structured replies the server answers a read by one chunk. */
static int get_reply(int fd, uint32_t n, void *data)
{
	struct __attribute__((packed)) {
		uint32_t magic, error;
		uint64_t handle;
	} in;
	uint8_t rest[12]; /* of the chunk's head, and the offset of its data */

	if (!get(fd, &in, sizeof(in)))
		return NO_ANSWER;
	if (in.magic == htobe32(0x67446698)) {
		if (in.error == 0 && n && !get(fd, data, n * SECTOR))
			return NO_ANSWER;
		return (int)be32toh(in.error);
	}
	if (in.magic != htobe32(0x668e33ef) || !n) {
		fprintf(stderr, "%s: what comes is no reply\n", program_invocation_short_name);
		exit(1);
	}
	/* A chunk has data of a read, or an error with an empty text. */
	if ((be32toh(in.error) & 0xffff) != 1)
		return get(fd, rest, 10) ? (int)be32toh(*(uint32_t *)(void *)(rest + 4)) : NO_ANSWER;
	return get(fd, rest, 12) && get(fd, data, n * SECTOR) ? 0 : NO_ANSWER;
}

/* Returns 0, the server's error, or NO_ANSWER. */
static int request(int fd, unsigned int type, unsigned int flags, uint64_t sector, uint32_t n, void *data)
{
	if (!put_request(fd, type, flags, sector, n, data) || type == NBD_DISC)
		return NO_ANSWER;
	return get_reply(fd, type == NBD_READ ? n : 0, data);
}
