// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the library's public interface, on pools of a few hundred KiB in /dev/shm: its
//! promises about data, and its errors.  One program, so that it links once.

mod bypass;
mod churn;
mod common;
mod contention;
mod damage;
mod disk;
mod drains;
mod faults;
mod figures;
mod flushes;
mod full;
mod grouped;
mod grouped_cut;
mod isolation;
mod kill;
mod kv;
mod log_ended;
mod log_kill;
mod log_losses;
mod log_refusals;
mod log_threads;
mod logs;
mod media;
mod misuse;
mod model;
mod modes;
mod nbd_origins;
mod origins;
mod passing;
mod requests;
mod statics;
mod tellers;
mod volumes;
