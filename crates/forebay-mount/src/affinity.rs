// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs a server's thread on the CPU of its client.
//!
//! A client waits for the server's answer, and the server for the next request, so one of the
//! two runs at a time.  On one CPU a request costs two context switches.  On two CPUs it wakes
//! an idle CPU twice, which in a virtual machine takes longer than a disk's sync.  The kernel
//! wakes a sleeper where it ran last, so a thread that moves itself to its client's CPU is
//! woken there by the next request.
//!
//! A client that reads much does not wait: the kernel requests the next bytes while the client
//! reads the present ones.  Then the server should run elsewhere ([`leave`]).

use std::cell::Cell;
use std::sync::OnceLock;

use rustix::thread::{sched_getaffinity, sched_setaffinity, CpuSet};

/// After how many requests a thread looks for its client's CPU.  The number grows while the
/// client stays on the same CPU: a look takes half as long as a sync.  Reads do not count.
const LOOK_AFTER: u32 = 16;
const LOOK_AFTER_MOST: u32 = 128;

#[derive(Clone, Copy)]
struct Place {
    cpu: Option<usize>,
    /// Requests until the next look, and between the last two.
    left: u32,
    between: u32,
}

thread_local! {
    static PLACE: Cell<Place> =
        const { Cell::new(Place { cpu: None, left: 0, between: LOOK_AFTER }) };
}

/// The CPUs on which a server's threads may run.
static ALL: OnceLock<Option<CpuSet>> = OnceLock::new();

/// Moves the calling thread to the CPU of this client's thread, now and then.
pub fn follow(pid: u32) {
    let place = PLACE.get();
    if place.left > 0 {
        PLACE.set(Place { left: place.left - 1, ..place });
        return;
    }
    let now = cpu_of(pid).filter(|now| *now < CpuSet::MAX_CPU);
    let between = match now == place.cpu {
        true => (2 * place.between).min(LOOK_AFTER_MOST),
        false => LOOK_AFTER,
    };
    let mut cpu = place.cpu;
    if let Some(now) = now.filter(|now| cpu != Some(*now)) {
        // No thread has moved before the first one comes here.
        ALL.get_or_init(|| sched_getaffinity(None).ok());
        let mut set = CpuSet::new();
        set.set(now);
        // If that is not allowed, the kernel places the thread.
        cpu = sched_setaffinity(None, &set).is_ok().then_some(now);
    }
    PLACE.set(Place { cpu, left: between, between });
}

/// Lets the kernel place the calling thread again, if it has followed a client.
pub fn leave() {
    let place = PLACE.get();
    if let (Some(_), Some(Some(all))) = (place.cpu, ALL.get()) {
        let _ = sched_setaffinity(None, all);
        PLACE.set(Place { cpu: None, left: LOOK_AFTER, between: LOOK_AFTER });
    }
}

/// The CPU on which a thread ran last: field 39 of its stat.
fn cpu_of(pid: u32) -> Option<usize> {
    if pid == 0 {
        return None;
    }
    let stat = forebay::procfs::text(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may contain any bytes.
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(36)?.parse().ok()
}

#[cfg(test)]
mod tests {
    #[test]
    fn who_has_followed_leaves() {
        let all = rustix::thread::sched_getaffinity(None).expect("a mask");
        super::follow(std::process::id());
        let followed = rustix::thread::sched_getaffinity(None).expect("a mask");
        assert_eq!(followed.count(), 1);
        super::leave();
        assert_eq!(rustix::thread::sched_getaffinity(None).expect("a mask"), all);
    }

    #[test]
    fn own_cpu_is_found() {
        let cpu = super::cpu_of(std::process::id()).expect("field 39");
        assert!(cpu < rustix::thread::CpuSet::MAX_CPU);
        assert_eq!(super::cpu_of(0), None);
    }
}
