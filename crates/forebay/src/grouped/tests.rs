// SPDX-License-Identifier: MIT OR Apache-2.0
//! Threads that append to logs on a device that loses what was not flushed, fails, or is slow;
//! and on a file.

mod bed;
mod cuts;
mod faults;
mod files;
mod looks;
mod model;
mod pools;
mod rescue;
mod stalls;
mod volumes;
