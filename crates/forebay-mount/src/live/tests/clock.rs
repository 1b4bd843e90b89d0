// SPDX-License-Identifier: MIT OR Apache-2.0
//! Goal: only times of one clock are compared.  Whatever this machine's clock says, a replay takes no
//! change of the mount for one after the crash, and each later change by another for one.
//! Method: this machine's clock is set, and the tree's, which is that of the directory, is not: so the
//! tree has another clock, as on NFS.  The change that comes after the crash is a write which the log
//! is made too old for.

use forebay::Uuid;

use super::*;
use crate::mark::Mark;
use crate::record::Time;
use crate::replay::planted::{plant, Bug};

const HOUR_NS: i64 = 3_600_000_000_000;
const LONG_NS: u64 = 10_000_000_000;

/// The event that makes the mount look at the tree's clock after this machine's was set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Looks {
    /// A group is synced.
    Group,
    /// A file that is synced has a later time.
    File,
    /// Nothing does.
    Never,
}

/// Whether the write is in dispute.  `after`: it came after the crash.
fn is_in_dispute(first: i64, second: i64, looks: Looks, after: bool, bug: Option<Bug>) -> bool {
    let bed = Bed::calm("clock");
    let set = |ns| bed.live.clock.set_ns.store(ns, Ordering::Relaxed);
    set(first);
    plant(bug);
    let (pool, period) = (Uuid([1; 16]), Uuid([2; 16]));
    let (log, at, since) = ("mount".into(), "pool".into(), 0);
    let mark = Mark { pool, log, period, since, at, groups: true, ahead: false };
    bed.live.bear(mark::begin(bed.live.tree(), 0, || Ok(mark)).unwrap());
    let other = bed.create("other").unwrap();
    bed.live.write(&other, 0, b"other").unwrap();
    set(second);
    match looks {
        Looks::Group => bed.live.sync_here().unwrap(),
        Looks::File => bed.live.fsync(&other).unwrap(),
        Looks::Never => {}
    }
    let file = bed.create("f").unwrap();
    bed.live.write(&file, 0, b"content").unwrap();
    plant(None);
    if after {
        bed.passes(LONG_NS);
    }
    let report = bed.replayed();
    report.changed.iter().any(|path| path == "f")
}

#[test]
fn the_clock_of_the_tree_decides() {
    use Looks::*;
    let rows = [
        (0, 0, Never),
        (-HOUR_NS, -HOUR_NS, Never),
        (HOUR_NS, HOUR_NS, Never),
        // It is set while mounted.
        (-HOUR_NS, 0, Never),
        (-HOUR_NS, HOUR_NS, Never),
        (HOUR_NS, -HOUR_NS, Never),
        (HOUR_NS, 0, Never),
        (0, -HOUR_NS, Group),
        (0, -HOUR_NS, File),
    ];
    let (mut wrong, mut found) = (Vec::new(), 0);
    for (first, second, looks) in rows {
        for after in [false, true] {
            let is = |bug| is_in_dispute(first, second, looks, after, bug) != after;
            if is(None) {
                wrong.push((first / HOUR_NS, second / HOUR_NS, looks, after));
            }
            // The latest time by this machine's clock is too early, or too late.
            let latest = first.max(second);
            if if after { latest > 0 } else { latest < 0 } {
                assert!(is(Some(Bug::ClockOfOurs)), "{first} {second} {after}: not found");
                found += 1;
            }
        }
    }
    assert_eq!(wrong, [], "hours ahead at the mount, then; look; after the crash");
    assert!(found >= 5, "{found}");
}

/// The tree's clock, too, is the one that is set.
#[test]
fn a_clock_that_is_set_is_followed() {
    let clock = clock::Clock::default();
    let real = || clock::Clock::default().now_ns() as i64;
    // How far the tree's clock is ahead, and this machine's.
    for (tree, ours) in [
        (0, 0),
        (HOUR_NS, HOUR_NS),
        (-HOUR_NS, -HOUR_NS),
        (HOUR_NS, 0),
        (HOUR_NS, -HOUR_NS),
        (-HOUR_NS, 0),
        (0, 0),
        (0, HOUR_NS),
    ] {
        clock.set_ns.store(ours, Ordering::Relaxed);
        let shown = real() + tree;
        let time = Time { seconds: shown / 1_000_000_000, nanoseconds: 0 };
        clock.look(|| Some(time));
        clock.look(|| None);
        let off = clock.now_ns() as i64 - (real() + tree);
        assert!(off.abs() < 2_500_000_000, "{tree} {ours}: {off}");
        // A tree's clock that is this machine's is set with it, and another one is not.
        clock.set_ns.store(ours + HOUR_NS, Ordering::Relaxed);
        let off = clock.now_ns() as i64 - (real() + tree);
        let follows = if tree == ours { HOUR_NS } else { 0 };
        assert!((off - follows).abs() < 2_500_000_000, "{tree} {ours}: {off}");
    }
}
