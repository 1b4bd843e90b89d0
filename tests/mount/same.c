// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * same.c - are two directories the same to programs?  Random operations on both, by
 * several processes, and every result, errno, byte and attribute compared.
 *
 *	same DIRECTORY DIRECTORY [KEY=NUMBER]...
 *
 * Each process has a part of each directory that only it changes, so that the result of an
 * operation is known.  In another part all make names and write their ranges of one file.  Each
 * `every` operations the whole of a process's part is compared: names, attributes, which names are
 * one inode, bytes, extended attributes, ACLs.
 *
 * Keys: ops (of each process), processes, seed, every; user (1: some operations are an
 * ordinary user's; root only); tmpfile (1: O_TMPFILE too); old (1: times before 1970 too);
 * wrong (1 to 6: the second directory is made wrong in one way, which must be found);
 * compare (1: no operations, only what an earlier run with as many processes has left).
 *
 * Times: one that was set has to be the same; one that an operation left has to be now on
 * both.  Not compared, and why: the number of the root's inode and sizes of directories,
 * which are the file system's own; blocks, which depend on when data is written back;
 * times of access, which a cached read does not change; data and holes of directories,
 * whose ends ext4 has at 2^63 - 1 and FUSE at their size.
 *
 * Not tried, since no FUSE file system has them: FALLOC_FL_COLLAPSE_RANGE and
 * INSERT_RANGE, leases, RENAME_WHITEOUT.  O_DIRECT is used as it must be, aligned.
 */
#include "same_tree.h"

/* ---- names ------------------------------------------------------------ */

static char path[SIDES][4200], other[SIDES][4200];

/* Picks a name in the process's part, some levels deep; the same on both sides. */
static void pick(char (*into)[4200])
{
	char relative[600] = "";
	unsigned levels = 1 + below(3);

	for (unsigned i = 0; i < levels; i++) {
		char name[300];

		if (one_in(400)) {
			memset(name, 'x', 299);
			name[below(2) ? 255 : 256] = 0;
		} else {
			snprintf(name, sizeof(name), "%c%s", (char)('a' + below(6)), one_in(10) ? "-longer name" : "");
		}
		strcat(relative, "/");
		strcat(relative, name);
		if (strlen(relative) > 280)
			break;
	}
	if (one_in(100))
		strcat(relative, one_in(2) ? "/" : "/.");
	for (int side = 0; side < SIDES; side++)
		snprintf(into[side], 4200, "%s/p%u%s", want.directory[side], process, relative);
}

static const char *shown(int side)
{
	return path[side] + strlen(want.directory[side]) + 1;
}

static const char *shown_other(int side)
{
	return other[side] + strlen(want.directory[side]) + 1;
}

/* ---- operations on names ---------------------------------------------- */

/* Whether the second directory is to be wrong in this way; it is so now and then. */
static bool wrong(uint64_t way, int side)
{
	return want.wrong == way && side == 1 && op_number % 4 == 0;
}

static unsigned random_mode(void)
{
	static const unsigned modes[] = { 0644, 0600, 0755, 0777, 0, 04755, 02755, 06711, 01777, 0444, 0666 };

	return modes[below(sizeof(modes) / sizeof(modes[0]))];
}

static struct timespec random_time(void)
{
	if (one_in(4))
		return (struct timespec){ .tv_nsec = UTIME_OMIT };
	if (one_in(6))
		return (struct timespec){ .tv_nsec = UTIME_NOW };
	/* File systems take the nearest time that they can keep. */
	if (want.old && one_in(20))
		return (struct timespec){ .tv_sec = one_in(2) ? INT64_MIN : INT64_MAX, .tv_nsec = below(1000000000) };
	/* The times begin in 1930 with `old`; ext4 supports 1901 to 2446. */
	return (struct timespec){ .tv_sec = (int64_t)below(2600000000u) - (want.old ? 1200000000 : 0), .tv_nsec = below(1000000000) };
}

static const char *xattr_name(void)
{
	static const char *const names[] = { "user.a", "user.b", "user.long", "trusted.t", "security.s", "odd.o", "user." };

	return names[below(sizeof(names) / sizeof(names[0]))];
}

/* Makes an ACL as the kernel takes it; some are not valid. */
static size_t random_acl(uint8_t *into)
{
	uint16_t tags[] = { 1, 2, 4, 0x10, 0x20 };
	size_t n = 4;

	memcpy(into, &(uint32_t){ one_in(20) ? 7 : 2 }, 4);
	for (size_t i = 0; i < 5; i++) {
		uint16_t allowed = below(8);
		uint32_t id = tags[i] == 2 ? (uint32_t)(1001 + below(3)) : ~0u;

		if (one_in(30))
			continue;
		memcpy(into + n, &tags[i], 2);
		memcpy(into + n + 2, &allowed, 2);
		memcpy(into + n + 4, &id, 4);
		n += 8;
	}
	return n;
}

static void set_xattr(void)
{
	bool acl = one_in(4), is_default = one_in(2);
	const char *name = acl ? (is_default ? "system.posix_acl_default" : "system.posix_acl_access") : xattr_name();
	size_t n = acl ? random_acl(data) : below(one_in(10) ? 3000 : 60);
	int flags = one_in(3) ? XATTR_CREATE : one_in(3) ? XATTR_REPLACE : 0;

	note("lsetxattr %s %s %zu bytes, flags %d", shown(0), name, n, flags);
	BOTH(wrong(4, side) ? 0 : lsetxattr(path[side], name, data, n, flags));
}

static void get_xattr(void)
{
	const char *name = one_in(4) ? "system.posix_acl_access" : xattr_name();
	size_t most = one_in(4) ? below(20) : one_in(4) ? 0 : BYTES_MAX;

	note("lgetxattr %s %s into %zu bytes", shown(0), name, most);
	if (most == 0)
		BOTH(lgetxattr(path[side], name, NULL, 0));
	else
		BOTH_GOT(lgetxattr(path[side], name, got[side], most));
}

static void change_attributes(void)
{
	unsigned mode = random_mode(), user = one_in(3) ? -1u : 1000 + below(3), group = one_in(3) ? -1u : 1000 + below(3);
	struct timespec times[2] = { random_time(), random_time() };
	off_t size = below(one_in(20) ? 1ull << 40 : BYTES_MAX);

	switch (below(4)) {
	case 0:
		note("chmod %s %o", shown(0), mode);
		BOTH(chmod(path[side], wrong(2, side) ? mode & 01777 : mode));
		break;
	case 1:
		/* FUSE servers cannot tell a chown of nothing by a user from a write. */
		if (user == -1u && group == -1u && setfsuid(-1) != 0)
			group = 1002;
		note("lchown %s %u %u", shown(0), user, group);
		BOTH(lchown(path[side], user, group));
		break;
	case 2:
		note("utimensat %s %lld.%09ld %lld.%09ld", shown(0), (long long)times[0].tv_sec, times[0].tv_nsec,
		     (long long)times[1].tv_sec, times[1].tv_nsec);
		BOTH(utimensat(AT_FDCWD, path[side], times, AT_SYMLINK_NOFOLLOW));
		break;
	default:
		note("truncate %s %lld", shown(0), (long long)size);
		BOTH(truncate(path[side], size));
	}
}

static int64_t stat_side(int side, void *arg)
{
	return lstat(path[side], (struct stat *)arg + side);
}

static void look(void)
{
	struct stat st[SIDES];
	struct statfs fs[SIDES];
	unsigned how = below(8);

	memset(st, 0, sizeof(st));
	switch (below(4)) {
	case 0:
		note("readlink %s", shown(0));
		BOTH_GOT(readlink(path[side], (char *)got[side], 1 + how * 100));
		return;
	case 1:
		note("access %s %u", shown(0), how);
		BOTH(faccessat(AT_FDCWD, path[side], how, AT_EACCESS));
		return;
	case 2:
		note("statfs %s", shown(0));
		BOTH(statfs(path[side], &fs[side]));
		return;
	default:
		note("lstat %s", shown(0));
		both(stat_side, st);
		same_stat(&st[0], &st[1], history[op_number % 16]);
	}
}

static void make_node(void)
{
	static const mode_t types[] = { S_IFREG, S_IFIFO, S_IFSOCK, S_IFCHR, S_IFBLK };
	mode_t type = types[below(5)], mode = random_mode();
	dev_t device = type == S_IFCHR || type == S_IFBLK ? makedev(1, 3) : 0;

	note("mknod %s %o", shown(0), type | mode);
	BOTH(mknod(path[side], type | mode, device));
}

static void names(void)
{
	unsigned mode = random_mode();
	unsigned flags = one_in(3) ? (one_in(2) ? RENAME_NOREPLACE : RENAME_EXCHANGE) : 0;

	switch (below(10)) {
	case 0:
	case 1:
		note("mkdir %s %o", shown(0), mode);
		BOTH(mkdir(path[side], mode));
		break;
	case 2:
		note("rmdir %s", shown(0));
		BOTH(rmdir(path[side]));
		break;
	case 3:
		note("unlink %s", shown(0));
		BOTH(unlink(path[side]));
		break;
	case 4:
		note("link %s %s", shown(0), shown_other(0));
		BOTH(link(path[side], other[side]));
		break;
	case 5:
		/* The target is relative, so that it leads to the same on both sides; some lead
		 * nowhere. */
		note("symlink %c %s", "abcdef"[mode % 6], shown(0));
		BOTH(symlink((char[2]){ "abcdef"[mode % 6], 0 }, path[side]));
		break;
	case 6:
		make_node();
		break;
	default:
		note("renameat2 %s %s flags %u", shown(0), shown_other(0), flags);
		if (want.wrong == 3 && op_number % 4 == 0 && flags == 0 && !renameat2(AT_FDCWD, path[0], AT_FDCWD, other[0], flags))
			link(path[1], other[1]);
		else
			BOTH(renameat2(AT_FDCWD, path[side], AT_FDCWD, other[side], flags));
	}
}

/* ---- operations on open files ----------------------------------------- */

static void open_file(unsigned slot)
{
	static const int more[] = { O_APPEND, O_TRUNC, O_CREAT, O_CREAT | O_EXCL, O_SYNC, O_DSYNC,
				    O_DIRECT, O_NOFOLLOW, O_DIRECTORY, O_TMPFILE, O_PATH, O_CREAT | O_TRUNC };
	int flags = (int[]){ O_RDWR, O_RDWR, O_RDONLY, O_WRONLY }[below(4)] | O_NONBLOCK | O_CREAT * (int)below(2);
	unsigned mode = random_mode();
	struct result r[SIDES] = { 0 };

	for (unsigned i = below(3); i > 0; i--)
		flags |= more[below(sizeof(more) / sizeof(more[0]))];
	if (!want.tmpfile && (flags & O_TMPFILE) == O_TMPFILE)
		flags &= ~O_TMPFILE | O_DIRECTORY;
	if (flags & O_PATH || (flags & O_TMPFILE) == O_TMPFILE)
		flags &= ~(O_CREAT | O_EXCL | O_TRUNC | O_DIRECT | O_NONBLOCK);
	/* File systems without O_DIRECT refuse these two in their own ways. */
	if (flags & O_DIRECT && flags & O_APPEND)
		flags &= ~O_APPEND;
	for (int side = 0; side < SIDES; side++) {
		if (files[slot][side] >= 0)
			close(files[slot][side]);
	}
	note("open %s flags %o mode %o as %u", shown(0), flags, mode, slot);
	for (int side = 0; side < SIDES; side++) {
		errno = 0;
		files[slot][side] = open(path[side], flags | O_CLOEXEC, mode);
		r[side].value = files[slot][side] < 0 ? -1 : 0;
		r[side].error = files[slot][side] < 0 ? errno : 0;
	}
	file_direct[slot] = flags & O_DIRECT;
	compare(r);
}

static void lock_file(const int *fd)
{
	struct flock lock = { .l_type = (short[]){ F_RDLCK, F_WRLCK, F_UNLCK }[below(3)], .l_start = below(100), .l_len = below(50) };
	int how = (int[]){ LOCK_SH, LOCK_EX, LOCK_UN }[below(3)] | LOCK_NB;

	switch (below(3)) {
	case 0:
		note("flock %d", how);
		BOTH(flock(fd[side], how));
		break;
	case 1:
		note("OFD lock %d of %lld bytes at %lld", lock.l_type, (long long)lock.l_len, (long long)lock.l_start);
		BOTH(fcntl(fd[side], F_OFD_SETLK, &lock));
		break;
	default:
		note("lock %d of %lld bytes at %lld", lock.l_type, (long long)lock.l_len, (long long)lock.l_start);
		BOTH(fcntl(fd[side], F_SETLK, &lock));
	}
}

static int64_t map_and_store(int side, void *arg)
{
	const uint64_t *at = arg;
	size_t n = at[1] + 1;
	struct stat st;
	uint8_t *p;

	if (fstat(files[at[2]][side], &st) || st.st_size < (off_t)(at[0] + n))
		return 0; /* a store there would be a SIGBUS */
	p = mmap(NULL, at[0] + n, PROT_READ | PROT_WRITE, at[3] ? MAP_SHARED : MAP_PRIVATE, files[at[2]][side], 0);
	if (p == MAP_FAILED)
		return -1;
	memcpy(p + at[0], data, n);
	if (at[3] && at[3] == 1)
		msync(p, at[0] + n, MS_SYNC);
	munmap(p, at[0] + n);
	return n;
}

static int64_t link_open(int side, void *arg)
{
	char name[32];

	snprintf(name, sizeof(name), "/proc/self/fd/%d", ((int *)arg)[side]);
	return linkat(AT_FDCWD, name, AT_FDCWD, path[side], AT_SYMLINK_FOLLOW);
}

/* Whether [at, end), or its first part, is all zeroes. */
static bool all_zero(int fd, off_t at, off_t end)
{
	char name[32];
	ssize_t n;
	int reader;

	snprintf(name, sizeof(name), "/proc/self/fd/%d", fd);
	reader = open(name, O_RDONLY);
	if (reader < 0)
		return true; /* a user may not read all that he may write */
	n = pread(reader, got[0], end - at < (off_t)BYTES_MAX ? (size_t)(end - at) : BYTES_MAX, at);
	close(reader);
	for (ssize_t i = 0; i < n; i++) {
		if (got[0][i])
			return false;
	}
	return true;
}

/* The place of holes depends on cached data.  A hole has only zeroes. */
static int64_t seek_side(int side, void *arg)
{
	const off_t *at = arg;
	int fd = files[at[2]][side];
	off_t found = lseek(fd, at[0], at[1]), end = found;
	struct stat st;

	if (fstat(fd, &st) || at[0] >= st.st_size || (found < 0 && errno != ENXIO))
		return found;
	if (at[1] == SEEK_DATA && found < 0)
		end = st.st_size;
	if (end < at[0] || end > st.st_size)
		differ("%s: %lld on side %d", history[op_number % 16], (long long)found, side);
	if (at[1] == SEEK_DATA && !all_zero(fd, at[0], end))
		differ("%s: data before %lld on side %d", history[op_number % 16], (long long)end, side);
	if (at[1] == SEEK_HOLE && end < st.st_size && !all_zero(fd, end, end + 1))
		differ("%s: no hole at %lld on side %d", history[op_number % 16], (long long)end, side);
	return 0;
}

static void seek_file(unsigned slot, off_t at)
{
	off_t where[] = { at, one_in(2) ? SEEK_DATA : SEEK_HOLE, slot };
	struct stat st;

	if (!fstat(files[slot][0], &st) && S_ISDIR(st.st_mode))
		return;
	note("lseek %u: %lld %s", slot, (long long)at, where[1] == SEEK_DATA ? "SEEK_DATA" : "SEEK_HOLE");
	both(seek_side, where);
	BOTH(lseek(files[slot][side], at, SEEK_SET));
}

static bool is_fifo(unsigned slot)
{
	struct stat st;

	return !fstat(files[slot][0], &st) && S_ISFIFO(st.st_mode);
}

static void use_file(unsigned slot)
{
	static const int modes[] = { 0, FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, FALLOC_FL_ZERO_RANGE,
				     FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE };
	const int *fd = files[slot];
	unsigned another = below(FILES);
	size_t n = 1 + below(one_in(8) ? 65536 : 5000);
	off_t at = below(one_in(8) ? BYTES_MAX : 20000), from = below(20000), at2 = from;
	int mode = modes[below(6)];
	uint64_t map[4] = { at, n - 1, slot, below(3) };
	struct stat st[SIDES];

	if (file_direct[slot]) {
		at &= ~4095ull;
		n = (n + 4095) & ~4095ull;
	}
	switch (below(17)) {
	case 0:
	case 1:
	case 2:
		note("pwrite %u: %zu bytes at %lld", slot, n, (long long)at);
		BOTH(wrong(1, side) ? pwrite(fd[side], data, n - 1, at) + 1 :
				      pwrite(fd[side], data, n, at));
		break;
	case 3:
		/* A write to a FIFO changes no time here, since no FUSE server learns of it. */
		if (file_direct[slot] || is_fifo(slot))
			break;
		note("write %u: %zu bytes", slot, n);
		BOTH(write(fd[side], data, n));
		break;
	case 4:
	case 5:
		note("pread %u: %zu bytes at %lld", slot, n, (long long)at);
		BOTH_GOT(pread(fd[side], got[side], n, at));
		break;
	case 6:
		note("ftruncate %u: %lld", slot, (long long)at);
		BOTH(ftruncate(fd[side], at));
		break;
	case 7:
		/* In a hole btrfs punches nothing, and leaves set-ID bits. */
		if (mode & FALLOC_FL_PUNCH_HOLE && setfsuid(-1) != 0)
			mode = 0;
		note("fallocate %u: mode %d, %zu bytes at %lld", slot, mode, n, (long long)at);
		BOTH(fallocate(fd[side], mode, at, n));
		break;
	case 8:
		note("map %u: %zu bytes at %lld, %s", slot, n, (long long)at, map[3] ? "shared" : "private");
		both(map_and_store, map);
		break;
	case 9:
		note("fsync %u", slot);
		BOTH(wrong(5, side) ? -1 : map[3] ? fsync(fd[side]) : fdatasync(fd[side]));
		break;
	case 10:
		lock_file(fd);
		break;
	case 11:
		seek_file(slot, at);
		break;
	case 12:
		if (file_direct[slot] || file_direct[another] || files[another][0] < 0)
			break;
		note("copy_file_range %u at %lld to %u at %lld: %zu bytes", another, (long long)from, slot, (long long)at, n);
		BOTH((from = at2, copy_file_range(files[another][side], &from, fd[side], &(off_t){ at }, n, 0)));
		break;
	case 13:
		memset(st, 0, sizeof(st));
		note("fstat %u", slot);
		BOTH(fstat(fd[side], &st[side]));
		same_stat(&st[0], &st[1], history[op_number % 16]);
		break;
	case 14:
		note("fchmod %u %o", slot, mode = random_mode());
		BOTH(fchmod(fd[side], mode));
		break;
	case 15:
		note("link of the open %u to %s", slot, shown(0));
		both(link_open, &files[slot]);
		break;
	default:
		note("close %u", slot);
		BOTH(close(fd[side]));
		files[slot][0] = files[slot][1] = -1;
	}
}

/* ---- what all processes use ------------------------------------------- */

static int shared[SIDES];

static void use_shared(void)
{
	off_t at = (off_t)process * SHARED_RANGE + below(SHARED_RANGE / 2);
	size_t n = 1 + below(SHARED_RANGE / 2);
	char name[SIDES][4200];
	unsigned which = below(10);

	for (int side = 0; side < SIDES; side++)
		snprintf(name[side], sizeof(name[0]), "%s/all/%u-%u", want.directory[side], process, which);
	switch (below(4)) {
	case 0:
		note("pwrite to the shared file: %zu bytes at %lld", n, (long long)at);
		BOTH(pwrite(shared[side], data, n, at));
		break;
	case 1:
		note("pread from the shared file: %zu bytes at %lld", n, (long long)at);
		BOTH_GOT(pread(shared[side], got[side], n, at));
		break;
	case 2:
		note("mknod in the shared directory: %u", which);
		BOTH(mknod(name[side], S_IFREG | 0644, 0));
		break;
	default:
		note("unlink in the shared directory: %u", which);
		BOTH(unlink(name[side]));
	}
}

/* ---- running ---------------------------------------------------------- */

static void step(void)
{
	unsigned slot = below(FILES);
	bool as_user = want.user && one_in(5);

	if (one_in(50)) {
		umask((mode_t[]){ 0, 022, 077, 027 }[below(4)]);
		for (size_t i = 0; i < 256; i++)
			data[below(BYTES_MAX)] = random_number();
	}
	pick(path);
	pick(other);
	if (as_user) {
		setfsgid(1002);
		setfsuid(1001);
	}
	switch (below(20)) {
	case 0 ... 4:
		names();
		break;
	case 5 ... 6:
		change_attributes();
		break;
	case 7:
		set_xattr();
		break;
	case 8:
		if (one_in(3)) {
			const char *name = xattr_name();

			note("lremovexattr %s %s", shown(0), name);
			BOTH(lremovexattr(path[side], name));
		} else {
			get_xattr();
		}
		break;
	case 9:
		look();
		break;
	case 10 ... 11:
		open_file(slot);
		break;
	case 12:
		if (want.wrong == 6 && op_number % 4 == 0)
			unlink(path[1]);
		else
			use_shared();
		break;
	default:
		if (files[slot][0] >= 0)
			use_file(slot);
		else
			open_file(slot);
	}
	if (as_user) {
		setfsuid(0);
		setfsgid(0);
	}
}

static int work(void)
{
	need((data = aligned_alloc(4096, BYTES_MAX)) != NULL, "memory");
	if (want.compare) {
		same_part();
		return 0;
	}
	for (int side = 0; side < SIDES; side++) {
		snprintf(path[side], sizeof(path[0]), "%s/p%u", want.directory[side], process);
		need(!mkdir(path[side], 0777), path[side]);
		need(!chmod(path[side], 0777), path[side]);
		snprintf(path[side], sizeof(path[0]), "%s/all/file", want.directory[side]);
		need((shared[side] = open(path[side], O_RDWR)) >= 0, path[side]);
	}
	memset(files, -1, sizeof(files));
	state = (want.seed * 1000003 + process + 1) * 0x9e3779b97f4a7c15ull;
	for (size_t i = 0; i < BYTES_MAX; i++)
		data[i] = random_number();
	umask(022);
	for (op_number = 1; op_number <= want.ops; op_number++) {
		note("nothing");
		step();
		if (op_number % want.every == 0)
			same_part();
	}
	op_number--;
	same_part();
	printf("same: process %u: %llu operations, %llu results of success and %llu of failure\n", process,
	       (unsigned long long)op_number, (unsigned long long)succeeded, (unsigned long long)failed);
	return succeeded > 0 && failed > 0 ? 0 : 2;
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		uint64_t *value;
	} keys[] = { { "ops", &want.ops },     { "processes", &want.processes }, { "seed", &want.seed },
		     { "every", &want.every }, { "user", &want.user },           { "wrong", &want.wrong },
		     { "tmpfile", &want.tmpfile },   { "old", &want.old },         { "compare", &want.compare } };
	char all[SIDES][4100];
	int worst = 0;

	need(argc >= 3, "usage: same DIRECTORY DIRECTORY [KEY=NUMBER]...");
	for (int i = 3; i < argc; i++) {
		char *value = strchr(argv[i], '=');
		bool known = false;

		for (size_t k = 0; value && k < sizeof(keys) / sizeof(keys[0]); k++) {
			if (strlen(keys[k].name) == (size_t)(value - argv[i]) && !strncmp(argv[i], keys[k].name, value - argv[i])) {
				*keys[k].value = strtoull(value + 1, NULL, 10);
				known = true;
			}
		}
		need(known, argv[i]);
	}
	for (int side = 0; side < SIDES; side++) {
		char name[4300];
		int fd;

		need((got[side] = aligned_alloc(4096, BYTES_MAX)) != NULL, "memory");
		memset(got[side], 0, BYTES_MAX);
		want.directory[side] = argv[1 + side];
		snprintf(all[side], sizeof(all[0]), "%s/all", argv[1 + side]);
		if (want.compare)
			continue;
		need(!mkdir(all[side], 0755), all[side]);
		snprintf(name, sizeof(name), "%.4100s/file", all[side]);
		need((fd = open(name, O_RDWR | O_CREAT, 0644)) >= 0, name);
		need(!ftruncate(fd, want.processes * SHARED_RANGE), name);
		close(fd);
	}
	for (process = 0; process < want.processes; process++) {
		fflush(stdout);
		if (fork() == 0) {
			int code = work();

			fflush(stdout);
			_exit(code);
		}
	}
	for (uint64_t i = 0; i < want.processes; i++) {
		int status;

		need(wait(&status) > 0, "wait");
		worst = worst > WEXITSTATUS(status) ? worst : WEXITSTATUS(status);
		if (WIFSIGNALED(status))
			worst = 2;
	}
	if (worst == 0)
		same_tree(all[0], all[1]);
	return worst;
}
