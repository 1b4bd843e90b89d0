// SPDX-License-Identifier: MIT OR Apache-2.0
//! A server's thread runs where its client runs.
//!
//! A client that syncs waits for the server, and the server for the client: one of the
//! two runs at a time.  On one CPU a request costs two context switches; on two it costs
//! waking an idle CPU twice, which in a virtual machine takes longer than a disk's sync.
//! The kernel wakes a sleeper where it ran last, so a thread that moves itself to its
//! client's CPU is woken there by the next request.

use std::cell::Cell;

use rustix::thread::{sched_setaffinity, CpuSet};

/// Each so many syncs of a thread it looks where its client is.
const LOOK_EVERY: u32 = 16;

thread_local! {
    static AT: Cell<(u32, Option<usize>)> = const { Cell::new((0, None)) };
}

/// Moves the calling thread to the CPU of this client's thread, now and then.
pub fn follow(pid: u32) {
    let (count, cpu) = AT.get();
    AT.set((count.wrapping_add(1), cpu));
    if !count.is_multiple_of(LOOK_EVERY) {
        return;
    }
    let Some(now) = cpu_of(pid).filter(|now| *now < CpuSet::MAX_CPU) else { return };
    if cpu != Some(now) {
        let mut set = CpuSet::new();
        set.set(now);
        // Where that is not allowed the kernel places the thread as it likes.
        let moved = sched_setaffinity(None, &set).is_ok();
        AT.set((count.wrapping_add(1), moved.then_some(now)));
    }
}

/// The CPU that a thread ran on last: field 39 of its stat.
fn cpu_of(pid: u32) -> Option<usize> {
    if pid == 0 {
        return None;
    }
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may have anything in it.
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(36)?.parse().ok()
}

#[cfg(test)]
mod tests {
    #[test]
    fn own_cpu_is_found() {
        let cpu = super::cpu_of(std::process::id()).expect("field 39");
        assert!(cpu < rustix::thread::CpuSet::MAX_CPU);
        assert_eq!(super::cpu_of(0), None);
    }
}
