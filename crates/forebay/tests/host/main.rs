// SPDX-License-Identifier: MIT OR Apache-2.0
//! The library from outside, on pools of a few hundred KiB in /dev/shm: what
//! it promises about data, and what it says when something is wrong.  One
//! program, so that it links once.

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
