/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * inside_log.h - a log in the place of the pool's volume 2, or of 1 as well.
 */
#ifndef INSIDE_LOG_H
#define INSIDE_LOG_H

#include "inside.h"
#include "format/log_entry.h"
#include "log/log_order.h"

#define LOG 2u /* its place in the table */
#define SECOND_LOG 1u

extern const u8 log_guid[16], next_guid[16]; /* of its first period, and of another */

void log_add(u16 volume, u32 flags); /* in state none; named after its place */
void log_make(u32 flags); /* LOG, logging from txg 0 on */
struct fby_log_header log_header(u32 state); /* as a consumer has stored it; of log_guid */
int log_append(u64 txg); /* an entry of 8 bytes, with a generation of its own */
struct fby_log_info log_info(void);

/* Results of the last claim, by log_claim or otherwise. */
extern struct fby_log_node log_node[4];
extern u64 log_found;
extern struct fby_log_result log_result;
int log_claim(u16 log, u64 synced, u32 state); /* with log_header(state) */

#endif
