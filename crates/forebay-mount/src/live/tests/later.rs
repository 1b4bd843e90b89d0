// SPDX-License-Identifier: MIT OR Apache-2.0
//! A later group, or a later entry, says something of itself alone.

use super::*;

/// Content that was logged in the open group is the replay's after the group of the cut is synced:
/// so what comes later is logged, too.
#[test]
fn writes_after_a_cut_are_logged_until_the_group_that_has_them_is_synced() {
    let bed = Bed::calm("cut-later");
    let file = bed.create("file").unwrap();
    bed.live.write(&file, 0, &[1; 10_000]).unwrap();
    bed.live.fsync(&file).unwrap();
    bed.live.truncate(&file, 100).unwrap();
    let closed = bed.live.groups.next(Duration::ZERO).unwrap();
    bed.live.write(&file, 100, &[2; 500]).unwrap();
    bed.live.journal().sync(closed.txg).unwrap();
    bed.live.groups.synced(closed.txg);
    bed.live.write(&file, 100, &[3; 500]).unwrap();
    bed.replayed();
    let is = std::fs::read(bed.dir.join("file")).unwrap();
    assert_eq!((is.len(), is[100], is[599]), (600, 3, 3), "the later write is there");
}

/// That an entry is durable says nothing of the time of a later one, which may not be.
#[test]
fn the_last_durable_entry_is_not_younger_than_it_is() {
    let bed = Bed::calm("durable-later");
    bed.live.journal().late.store(true, Ordering::Relaxed);
    bed.live.journal().set_gate(true);
    let append = || {
        let body = Records::of(&Record::Alive);
        let (_hold, entry) = bed.live.submit(What::Word, &[], false, &body).unwrap();
        entry.ticket
    };
    bed.live.alive_ns.store(0, Ordering::Relaxed);
    let (first, second) = (append(), append());
    let alive = || bed.live.alive_ns.load(Ordering::Relaxed);
    bed.live.wait(first).unwrap();
    assert_eq!(alive(), 0, "the later entry is not durable");
    bed.live.wait(second).unwrap();
    assert_ne!(alive(), 0);
}
