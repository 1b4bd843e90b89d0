// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * fake_rbd.c - the functions of librados and librbd that Forebay uses, without a cluster: for
 * tests.
 *
 * The cluster is the directory in which its configuration file lies; an image is the file
 * POOL/IMAGE below it.  What is to happen to it is said by files beside it, which are looked
 * for at each step, so that a test in another process can say it too:
 *
 *	IMAGE.meta_KEY		metadata
 *	IMAGE.lock		who has the exclusive lock has this file locked
 *	IMAGE.stolen		another client has taken the lock: changes are refused
 *	IMAGE.not_owner		of the lock it is said that another has it, once
 *	IMAGE.away		nothing is answered as long as it is there
 *	IMAGE.fail_OP		the operation fails with the error whose number is in it, once
 *	IMAGE.refuse		librbd does not take what comes next, once
 *	IMAGE.calls		a line for each operation that was done, in their order
 *
 * Of what is in flight the newest is done first, but for a flush, which ends after all that
 * came before it: RBD promises no order of others.  Unless rbd_cache is "false", writes stay
 * in memory until a flush.  What is written is taken from the caller's memory when it is
 * done, and not before.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

struct cluster {
	char dir[PATH_MAX];
	bool cached;
};

struct ioctx {
	struct cluster *cluster;
	char dir[PATH_MAX];
};

enum op { READ, WRITE, FLUSH, DISCARD, ZERO };
static const char *const names[] = { "read", "write", "flush", "discard", "zero" };

struct completion {
	struct completion *next;
	void (*ended)(struct completion *, void *);
	void *argument;
	enum op op;
	uint64_t offset;
	size_t len;
	char *data; /* the caller's; ours for a write that is kept in memory */
	ssize_t result;
};

struct image {
	char path[PATH_MAX];
	int fd, lock;
	bool read_only, cached, end;
	uint64_t size; /* when the watch was told last */
	void (*changed)(void *);
	void *changed_argument;
	pthread_t worker;
	pthread_mutex_t mutex;
	pthread_cond_t cond;
	struct completion *newest; /* in flight */
	struct completion *kept; /* written, in memory alone */
};

static int completions; /* that were made, and not released */

int fake_rbd_completions(void)
{
	return __atomic_load_n(&completions, __ATOMIC_SEQ_CST);
}

/* --- what is said by files -------------------------------------------------------------- */

static void beside(const struct image *i, const char *what, char path[PATH_MAX])
{
	if (snprintf(path, PATH_MAX, "%s.%s", i->path, what) >= PATH_MAX)
		abort();
}

static bool is_there(const struct image *i, const char *what)
{
	char path[PATH_MAX];

	beside(i, what, path);
	return access(path, F_OK) == 0;
}

/* Reads and removes the file; returns its number, 0: there is none. */
static int once(const struct image *i, const char *what)
{
	char path[PATH_MAX];
	int n = 0;
	FILE *f;

	beside(i, what, path);
	f = fopen(path, "re");
	if (!f)
		return 0;
	if (fscanf(f, "%d", &n) != 1)
		n = EIO;
	fclose(f);
	unlink(path);
	return n;
}

static void note(const struct image *i, const char *text, ...)
{
	char path[PATH_MAX];
	va_list list;
	FILE *f;

	beside(i, "calls", path);
	f = fopen(path, "ae");
	if (!f)
		return;
	va_start(list, text);
	vfprintf(f, text, list);
	va_end(list);
	fclose(f);
}

static void wait_while_away(const struct image *i)
{
	while (is_there(i, "away"))
		usleep(1000);
}

/* --- librados --------------------------------------------------------------------------- */

int rados_create(struct cluster **out, const char *id)
{
	(void)id;
	*out = calloc(1, sizeof(**out));
	(*out)->cached = true;
	return 0;
}

int rados_conf_read_file(struct cluster *c, const char *path)
{
	char *slash;

	if (!path || access(path, R_OK) != 0)
		return -ENOENT;
	snprintf(c->dir, sizeof(c->dir), "%s", path);
	slash = strrchr(c->dir, '/');
	if (!slash)
		return -ENOENT;
	*slash = 0;
	return 0;
}

int rados_conf_parse_env(struct cluster *c, const char *variable)
{
	(void)c, (void)variable;
	return 0;
}

int rados_conf_set(struct cluster *c, const char *key, const char *value)
{
	if (strcmp(key, "rbd_cache") == 0)
		c->cached = strcmp(value, "false") != 0;
	return 0;
}

int rados_connect(struct cluster *c)
{
	(void)c;
	return 0;
}

int rados_cluster_fsid(struct cluster *c, char *to, size_t len)
{
	(void)c;
	return snprintf(to, len, "fake-cluster");
}

void rados_shutdown(struct cluster *c)
{
	free(c);
}

int rados_ioctx_create(struct cluster *c, const char *pool, struct ioctx **out)
{
	struct ioctx *io = calloc(1, sizeof(*io));

	io->cluster = c;
	if (snprintf(io->dir, sizeof(io->dir), "%s/%s", c->dir, pool) >= PATH_MAX || access(io->dir, F_OK) != 0) {
		free(io);
		return -ENOENT;
	}
	*out = io;
	return 0;
}

void rados_ioctx_set_namespace(struct ioctx *io, const char *name)
{
	(void)io, (void)name;
}

int64_t rados_ioctx_get_id(struct ioctx *io)
{
	(void)io;
	return 1;
}

void rados_ioctx_destroy(struct ioctx *io)
{
	free(io);
}

/* --- what is in flight -------------------------------------------------------------------- */

static ssize_t change(struct image *i, struct completion *c)
{
	if (i->read_only)
		return -EROFS;
	if (is_there(i, "stolen"))
		return -ESHUTDOWN;
	if (c->offset + c->len > i->size)
		return -EINVAL;
	note(i, "%s %llu %zu\n", names[c->op], (unsigned long long)c->offset, c->len);
	if (c->op == WRITE) {
		if (i->cached) {
			struct completion *kept = malloc(sizeof(*kept));

			*kept = *c;
			kept->data = malloc(c->len);
			memcpy(kept->data, c->data, c->len);
			kept->next = i->kept;
			i->kept = kept;
			return 0;
		}
		return pwrite(i->fd, c->data, c->len, (off_t)c->offset) == (ssize_t)c->len ? 0 : -EIO;
	}
	for (size_t done = 0; done < c->len;) {
		static const char zeroes[65536];
		size_t n = c->len - done < sizeof(zeroes) ? c->len - done : sizeof(zeroes);

		if (pwrite(i->fd, zeroes, n, (off_t)(c->offset + done)) != (ssize_t)n)
			return -EIO;
		done += n;
	}
	return 0;
}

static void write_kept(struct image *i)
{
	struct completion *kept, *oldest = NULL;

	while ((kept = i->kept)) {
		i->kept = kept->next;
		kept->next = oldest;
		oldest = kept;
	}
	while ((kept = oldest)) {
		oldest = kept->next;
		if (pwrite(i->fd, kept->data, kept->len, (off_t)kept->offset) < 0)
			abort();
		free(kept->data);
		free(kept);
	}
}

static ssize_t run(struct image *i, struct completion *c)
{
	char fail[16];
	int error;

	snprintf(fail, sizeof(fail), "fail_%s", names[c->op]);
	error = once(i, fail);
	if (error)
		return -error;
	if (c->op == READ) {
		/* Short where the image has shrunk. */
		return pread(i->fd, c->data, c->len, (off_t)c->offset);
	}
	if (c->op != FLUSH)
		return change(i, c);
	if (is_there(i, "stolen"))
		return -ESHUTDOWN;
	write_kept(i);
	note(i, "flush\n");
	return 0;
}

/* The mutex is held. */
static struct completion *take(struct image *i)
{
	struct completion **at = &i->newest, *c;

	while (*at && (*at)->op == FLUSH && (*at)->next)
		at = &(*at)->next;
	c = *at;
	if (c)
		*at = c->next;
	return c;
}

static void look_at_size(struct image *i)
{
	struct stat st;

	if (fstat(i->fd, &st) != 0 || (uint64_t)st.st_size == i->size)
		return;
	i->size = (uint64_t)st.st_size;
	if (i->changed)
		i->changed(i->changed_argument);
}

static void *work(void *of)
{
	struct image *i = of;

	pthread_mutex_lock(&i->mutex);
	for (;;) {
		struct completion *c;
		struct timespec soon;

		look_at_size(i);
		c = is_there(i, "away") ? NULL : take(i);
		if (c) {
			pthread_mutex_unlock(&i->mutex);
			c->result = run(i, c);
			c->ended(c, c->argument);
			pthread_mutex_lock(&i->mutex);
			continue;
		}
		if (i->end && !i->newest)
			break;
		clock_gettime(CLOCK_REALTIME, &soon);
		soon.tv_nsec += 1000000;
		soon.tv_sec += soon.tv_nsec / 1000000000;
		soon.tv_nsec %= 1000000000;
		pthread_cond_timedwait(&i->cond, &i->mutex, &soon);
	}
	pthread_mutex_unlock(&i->mutex);
	return NULL;
}

/* --- images --------------------------------------------------------------------------------- */

static int open_image(struct ioctx *io, const char *name, struct image **out, bool read_only)
{
	struct image *i = calloc(1, sizeof(*i));
	struct stat st;

	i->read_only = read_only;
	i->cached = io->cluster->cached;
	i->lock = -1;
	if (snprintf(i->path, sizeof(i->path), "%s/%s", io->dir, name) >= PATH_MAX)
		abort();
	i->fd = open(i->path, O_CLOEXEC | (read_only ? O_RDONLY : O_RDWR));
	if (i->fd < 0 || fstat(i->fd, &st) != 0) {
		free(i);
		return -ENOENT;
	}
	i->size = (uint64_t)st.st_size;
	pthread_mutex_init(&i->mutex, NULL);
	pthread_cond_init(&i->cond, NULL);
	if (pthread_create(&i->worker, NULL, work, i) != 0)
		abort();
	*out = i;
	return 0;
}

int rbd_open(struct ioctx *io, const char *name, struct image **out, const char *snapshot)
{
	(void)snapshot;
	return open_image(io, name, out, false);
}

int rbd_open_read_only(struct ioctx *io, const char *name, struct image **out, const char *snapshot)
{
	(void)snapshot;
	return open_image(io, name, out, true);
}

int rbd_close(struct image *i)
{
	pthread_mutex_lock(&i->mutex);
	i->end = true;
	pthread_cond_signal(&i->cond);
	pthread_mutex_unlock(&i->mutex);
	pthread_join(i->worker, NULL);
	write_kept(i);
	if (i->lock >= 0)
		close(i->lock);
	close(i->fd);
	free(i);
	return 0;
}

int rbd_get_id(struct image *i, char *to, size_t len)
{
	return snprintf(to, len, "%s", strrchr(i->path, '/') + 1);
}

int rbd_get_size(struct image *i, uint64_t *size)
{
	struct stat st;

	wait_while_away(i);
	if (fstat(i->fd, &st) != 0)
		return -errno;
	*size = (uint64_t)st.st_size;
	return 0;
}

int rbd_lock_acquire(struct image *i, int mode)
{
	char path[PATH_MAX];

	(void)mode;
	beside(i, "lock", path);
	i->lock = open(path, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
	if (i->lock < 0 || flock(i->lock, LOCK_EX | LOCK_NB) != 0)
		return -EROFS;
	return 0;
}

int rbd_lock_release(struct image *i)
{
	close(i->lock);
	i->lock = -1;
	return 0;
}

/* Asks the cluster, as librbd does. */
int rbd_is_exclusive_lock_owner(struct image *i, int *is)
{
	wait_while_away(i);
	note(i, "owner\n");
	*is = i->lock >= 0 && !is_there(i, "stolen") && !once(i, "not_owner");
	return 0;
}

int rbd_metadata_get(struct image *i, const char *key, char *to, size_t *len)
{
	char what[256], path[PATH_MAX];
	struct stat st;
	int fd;
	ssize_t n;

	wait_while_away(i);
	snprintf(what, sizeof(what), "meta_%s", key);
	beside(i, what, path);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -ENOENT;
	if (fstat(fd, &st) != 0 || (size_t)st.st_size + 1 > *len) {
		close(fd);
		return -ERANGE;
	}
	n = read(fd, to, (size_t)st.st_size);
	close(fd);
	to[n < 0 ? 0 : n] = 0;
	*len = (size_t)n + 1;
	return n < 0 ? -EIO : 0;
}

int rbd_metadata_set(struct image *i, const char *key, const char *value)
{
	char what[256], path[PATH_MAX];
	FILE *f;

	wait_while_away(i);
	if (is_there(i, "stolen"))
		return -EROFS;
	snprintf(what, sizeof(what), "meta_%s", key);
	beside(i, what, path);
	f = fopen(path, "we");
	if (!f || fputs(value, f) < 0 || fclose(f) != 0)
		return -EIO;
	note(i, "set\n");
	return 0;
}

int rbd_metadata_remove(struct image *i, const char *key)
{
	char what[256], path[PATH_MAX];

	wait_while_away(i);
	if (is_there(i, "stolen"))
		return -EROFS;
	snprintf(what, sizeof(what), "meta_%s", key);
	beside(i, what, path);
	note(i, "remove\n");
	return unlink(path) == 0 ? 0 : -errno;
}

int rbd_update_watch(struct image *i, uint64_t *handle, void (*changed)(void *), void *argument)
{
	pthread_mutex_lock(&i->mutex);
	i->changed = changed;
	i->changed_argument = argument;
	pthread_mutex_unlock(&i->mutex);
	*handle = 1;
	return 0;
}

int rbd_update_unwatch(struct image *i, uint64_t handle)
{
	(void)handle;
	pthread_mutex_lock(&i->mutex);
	i->changed = NULL;
	pthread_mutex_unlock(&i->mutex);
	return 0;
}

/* --- requests ----------------------------------------------------------------------------------- */

int rbd_aio_create_completion(void *argument, void (*ended)(struct completion *, void *), struct completion **out)
{
	struct completion *c = calloc(1, sizeof(*c));

	c->argument = argument;
	c->ended = ended;
	__atomic_add_fetch(&completions, 1, __ATOMIC_SEQ_CST);
	*out = c;
	return 0;
}

ssize_t rbd_aio_get_return_value(struct completion *c)
{
	return c->result;
}

void rbd_aio_release(struct completion *c)
{
	__atomic_sub_fetch(&completions, 1, __ATOMIC_SEQ_CST);
	free(c);
}

static int submit(struct image *i, struct completion *c, enum op op, uint64_t offset, size_t len, char *data)
{
	int refused = once(i, "refuse");

	if (refused)
		return -refused;
	c->op = op;
	c->offset = offset;
	c->len = len;
	c->data = data;
	pthread_mutex_lock(&i->mutex);
	c->next = i->newest;
	i->newest = c;
	pthread_cond_signal(&i->cond);
	pthread_mutex_unlock(&i->mutex);
	return 0;
}

int rbd_aio_read(struct image *i, uint64_t offset, size_t len, char *to, struct completion *c)
{
	return submit(i, c, READ, offset, len, to);
}

int rbd_aio_write(struct image *i, uint64_t offset, size_t len, const char *from, struct completion *c)
{
	return submit(i, c, WRITE, offset, len, (char *)(uintptr_t)from);
}

int rbd_aio_flush(struct image *i, struct completion *c)
{
	return submit(i, c, FLUSH, 0, 0, NULL);
}

int rbd_aio_discard(struct image *i, uint64_t offset, uint64_t len, struct completion *c)
{
	return submit(i, c, DISCARD, offset, len, NULL);
}

int rbd_aio_write_zeroes(struct image *i, uint64_t offset, size_t len, struct completion *c, int zero_flags,
			 int op_flags)
{
	(void)zero_flags, (void)op_flags;
	return submit(i, c, ZERO, offset, len, NULL);
}
