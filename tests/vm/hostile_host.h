/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * hostile_host.h - devices, the kernel's log, guards.  See hostile.h.
 *
 *	disk	| guard | window a | guard | window b | guard |
 */
#ifndef HOSTILE_HOST_H
#define HOSTILE_HOST_H

#include "hostile.h"

#define WINDOW (1u << 20)
#define GUARD (128u << 10)

struct host {
	const char *media, *disk, *forebay; /* media: that of the pool in work */
};
extern struct host host;
extern const char *const volume_name[2];

/* Ends the process: a test that does not work, and a finding. */
_Noreturn __attribute__((format(printf, 1, 2))) void die(const char *format, ...);
_Noreturn __attribute__((format(printf, 1, 2))) void finding(const char *format, ...);

void host_init(void);
__attribute__((format(printf, 1, 2))) void host_run(const char *format, ...);
u64 host_ms(void);
/* Findings after this call belong to this pool, which must be done within so long. */
void host_begin(u64 seed, const char *text, u32 seconds);
void host_guards_check(void);
void host_log_check(const char *text);
void host_memory_mark(void);
int64_t host_memory_grown(void); /* KiB */
void host_count_refusal(const char *answer);
void host_print_refusals(void);

struct device {
	char name[32];
	char path[64];
	char answer[4096];
	int fd; /* the device's descriptor; 0: not open */
	u64 bytes;
	u32 block;
	bool mapper;
};

/* False: refused; answer has the reason. */
bool device_attach(struct device *d, u32 volume, bool mapper, const char *options);
bool device_open(struct device *d);
bool device_command(struct device *d, const char *command);
u64 device_counter(struct device *d, const char *name);
bool device_detach(struct device *d);

#endif
