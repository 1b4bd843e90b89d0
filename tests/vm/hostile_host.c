// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * hostile_host.c - devices by the control device or by dmsetup, the kernel's
 * log, guards, a watchdog.  See hostile_host.h.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "hostile_host.h"

#define REFUSALS_MAX 32u

struct host host;
const char *const volume_name[2] = { "a", "b" };

static const u64 window_at[2] = { GUARD, 2ull * GUARD + WINDOW };
static const u64 guard_at[3] = { 0, GUARD + WINDOW, 2ull * (GUARD + WINDOW) };

static u64 current_seed;
static const char *current_text = "";
static volatile u64 deadline_ms;
static int control = -1, disk = -1, kmsg = -1;
static u8 *guard, *seen; /* the expected content of all guards; room to read one */
static char dm_options[2][512];

/* --- ends ------------------------------------------------------------------------------ */

void die(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	printf("FAIL: hostile: ");
	vprintf(format, args);
	printf("\n");
	exit(2);
}

void finding(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	printf("FAIL: hostile: seed %llu: ", (unsigned long long)current_seed);
	vprintf(format, args);
	printf("\nhostile: that pool: %s\n", current_text);
	exit(1);
}

u64 host_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (u64)t.tv_sec * 1000 + (u64)t.tv_nsec / 1000000;
}

/* A task that hangs cannot end itself, so this thread does. */
static void *watchdog(void *unused)
{
	(void)unused;
	for (;;) {
		usleep(200000);
		if (!deadline_ms || host_ms() < deadline_ms)
			continue;
		printf("FAIL: hostile: seed %llu: hangs\nhostile: that pool: %s\n", (unsigned long long)current_seed,
		       current_text);
		if (system("echo w >/proc/sysrq-trigger; dmesg | tail -n 80"))
			printf("no sysrq\n");
		fflush(stdout);
		_exit(1);
	}
}

void host_begin(u64 seed, const char *text, u32 seconds)
{
	current_seed = seed;
	current_text = text;
	deadline_ms = host_ms() + 1000ull * seconds;
}

void host_run(const char *format, ...)
{
	char command[1024];
	va_list args;

	va_start(args, format);
	vsnprintf(command, sizeof(command), format, args);
	if (system(command))
		die("%s", command);
}

/* --- the kernel's log -------------------------------------------------------------------- */

static bool complaint(const char *line)
{
	static const char *const words[] = {
		"BUG:", "WARNING:", "KASAN", "KCSAN", "UBSAN", "Oops", "general protection", "assertion failed",
		"blocked for more than", "possible circular locking", "possible recursive locking", "inconsistent lock state",
		"suspicious RCU", "sleeping function called", "soft lockup", "rcu_preempt detected", "refcount_t:",
		"beyond end of device", "list_add corruption", "list_del corruption", "possible irq lock inversion",
	};

	for (u32 i = 0; i < COUNT(words); i++)
		if (strstr(line, words[i]))
			return true;
	return false;
}

void host_log_check(const char *text)
{
	char line[2048];
	u32 shown = 0;
	ssize_t n;

	for (;;) {
		n = read(kmsg, line, sizeof(line) - 1);
		if (n < 0 && errno == EPIPE)
			continue;
		if (n <= 0)
			break;
		line[n] = 0;
		if (!shown && !complaint(line))
			continue;
		if (shown++ < 80)
			printf("kernel: %s", strchr(line, ';') ? strchr(line, ';') + 1 : line);
	}
	if (shown) {
		current_text = text;
		finding("the kernel complained");
	}
}

/* --- guards -------------------------------------------------------------------------------- */

void host_guards_check(void)
{
	for (u32 g = 0; g < COUNT(guard_at); g++) {
		if (pread(disk, seen, GUARD, (off_t)guard_at[g]) != GUARD)
			die("reading the guards: %s", strerror(errno));
		if (memcmp(guard, seen, GUARD))
			for (u32 i = 0; i < GUARD; i++)
				if (guard[i] != seen[i])
					finding("the origin was written at byte %llu, outside the volumes",
						(unsigned long long)(guard_at[g] + i));
	}
}

/* --- memory ----------------------------------------------------------------------------------- */

static int64_t memory_at_mark = -1;

static int64_t memory_available(void)
{
	long long kib = -1;
	char line[200];
	FILE *f;

	if (system("echo 3 >/proc/sys/vm/drop_caches"))
		die("drop_caches");
	f = fopen("/proc/meminfo", "r");
	while (f && fgets(line, sizeof(line), f))
		if (sscanf(line, "MemAvailable: %lld kB", &kib) == 1)
			break;
	if (f)
		fclose(f);
	return kib;
}

void host_memory_mark(void)
{
	memory_at_mark = memory_available();
}

int64_t host_memory_grown(void)
{
	return memory_at_mark < 0 ? 0 : memory_at_mark - memory_available();
}

/* --- refusals ------------------------------------------------------------------------------------ */

static struct {
	char text[160];
	u32 n;
} refusal[REFUSALS_MAX];

void host_count_refusal(const char *answer)
{
	for (u32 i = 0; i < REFUSALS_MAX; i++) {
		if (refusal[i].n && strncmp(refusal[i].text, answer, sizeof(refusal[i].text) - 1))
			continue;
		snprintf(refusal[i].text, sizeof(refusal[i].text), "%s", answer);
		refusal[i].n++;
		return;
	}
}

void host_print_refusals(void)
{
	for (u32 i = 0; i < REFUSALS_MAX && refusal[i].n; i++)
		printf("hostile: refused %u times: %s\n", refusal[i].n, refusal[i].text);
}

/* --- devices ----------------------------------------------------------------------------------- */

/* Sends one command to the control device. */
static bool tell(struct device *d, const char *format, ...)
{
	char command[1024];
	va_list args;
	ssize_t n;

	va_start(args, format);
	n = vsnprintf(command, sizeof(command), format, args);
	va_end(args);
	if (write(control, command, (size_t)n) != n)
		die("the control device does not take commands: %s", strerror(errno));
	n = read(control, d->answer, sizeof(d->answer) - 1);
	d->answer[n > 0 ? n : 0] = 0;
	d->answer[strcspn(d->answer, "\n")] = 0;
	return !strncmp(d->answer, "ok", 2);
}

/* Runs one command line; the answer is its first line. */
static bool shell(struct device *d, const char *format, ...)
{
	char command[1024];
	va_list args;
	FILE *f;

	va_start(args, format);
	vsnprintf(command, sizeof(command), format, args);
	va_end(args);
	f = popen(command, "r");
	if (!f || !fgets(d->answer, sizeof(d->answer), f))
		d->answer[0] = 0;
	d->answer[strcspn(d->answer, "\n")] = 0;
	return f && pclose(f) == 0;
}

static u32 words_in(const char *text)
{
	u32 n = 0;

	for (; *text; text++)
		n += *text != ' ' && (text[1] == ' ' || !text[1]);
	return n;
}

/* The target's origin extends after the volume: only the module keeps requests off that part. */
static bool mapper_attach(struct device *d, u32 volume, const char *options)
{
	bool ok;

	snprintf(d->name, sizeof(d->name), "hostile-%s", volume_name[volume]);
	snprintf(d->path, sizeof(d->path), "/dev/mapper/%s", d->name);
	snprintf(dm_options[volume], sizeof(dm_options[volume]), "%s origin_id h%s", options, volume_name[volume]);
	ok = shell(d, "dmsetup create --noudevsync --noudevrules %s --table '0 %u forebay /dev/mapper/long-%s %s %s %u %s' 2>&1",
		   d->name, WINDOW / 512, volume_name[volume], host.media, volume_name[volume],
		   words_in(dm_options[volume]), dm_options[volume]);
	if (ok)
		host_run("dmsetup mknodes %s", d->name);
	return ok;
}

bool device_attach(struct device *d, u32 volume, bool mapper, const char *options)
{
	memset(d, 0, sizeof(*d));
	d->mapper = mapper;
	if (mapper)
		return mapper_attach(d, volume, options);
	if (!tell(d, "attach %s /dev/mapper/window-%s %s origin_id h%s %s", host.media, volume_name[volume],
		  volume_name[volume], volume_name[volume], options))
		return false;
	snprintf(d->name, sizeof(d->name), "%.20s", d->answer + 3);
	snprintf(d->path, sizeof(d->path), "/dev/%s", d->name);
	return true;
}

bool device_open(struct device *d)
{
	int block = 0;

	d->fd = open(d->path, O_RDWR | O_DIRECT);
	if (d->fd < 0) {
		d->fd = 0;
		return false;
	}
	if (ioctl(d->fd, BLKGETSIZE64, &d->bytes) || ioctl(d->fd, BLKSSZGET, &block))
		die("%s: %s", d->path, strerror(errno));
	d->block = (u32)block;
	return true;
}

bool device_command(struct device *d, const char *command)
{
	if (d->mapper)
		return shell(d, "dmsetup message %s 0 %s 2>&1", d->name, command);
	return tell(d, "command %s %s", d->name, command);
}

u64 device_counter(struct device *d, const char *name)
{
	char want[64];
	const char *at;

	if (!(d->mapper ? shell(d, "dmsetup status %s", d->name) : tell(d, "status %s", d->name)))
		die("no status of %s: %s", d->name, d->answer);
	snprintf(want, sizeof(want), " %s=", name);
	at = strstr(d->answer, want);
	if (!at)
		die("no %s in the status: %s", name, d->answer);
	return strtoull(at + strlen(want), NULL, 10);
}

bool device_detach(struct device *d)
{
	if (d->fd)
		close(d->fd);
	d->fd = 0;
	if (d->mapper)
		return shell(d, "dmsetup remove --noudevsync --retry %s 2>&1", d->name);
	return tell(d, "detach %s", d->name);
}

static void make_windows(void)
{
	for (u32 v = 0; v < 2; v++) {
		host_run("dmsetup create --noudevsync --noudevrules window-%s --table '0 %u linear %s %llu'",
			 volume_name[v], WINDOW / 512, host.disk, (unsigned long long)window_at[v] / 512);
		host_run("dmsetup create --noudevsync --noudevrules long-%s --table '0 %u linear %s %llu'",
			 volume_name[v], (WINDOW + GUARD) / 512, host.disk, (unsigned long long)window_at[v] / 512);
	}
	host_run("dmsetup mknodes");
}

void host_init(void)
{
	pthread_t thread;

	guard = aligned_alloc(FBY_PAGE, GUARD);
	seen = aligned_alloc(FBY_PAGE, GUARD);
	for (u32 i = 0; i < GUARD / 8; i++)
		((u64 *)guard)[i] = i * 0x9e3779b97f4a7c15ull + 1;
	make_windows();
	disk = open(host.disk, O_RDWR | O_DIRECT);
	if (disk < 0)
		die("%s: %s", host.disk, strerror(errno));
	for (u32 g = 0; g < COUNT(guard_at); g++) {
		if (pwrite(disk, guard, GUARD, (off_t)guard_at[g]) != GUARD)
			die("%s: %s", host.disk, strerror(errno));
	}
	control = open("/dev/forebay-control", O_RDWR);
	kmsg = open("/dev/kmsg", O_RDONLY | O_NONBLOCK);
	if (control < 0 || kmsg < 0)
		die("/dev/forebay-control or /dev/kmsg: %s", strerror(errno));
	lseek(kmsg, 0, SEEK_END);
	if (pthread_create(&thread, NULL, watchdog, NULL))
		die("no thread");
}
