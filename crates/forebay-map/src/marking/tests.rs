// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests three things: how long a stamp explains changes, the record of a file that was left to
//! others, and the cost of a write-back.

use std::sync::Arc;

use super::*;
use crate::recover::{recover, recover_some, Options as Recovery};
use crate::simulated::{open, Machine, Random};
use crate::tests::{alone, options};
use crate::{Cache, Features, MapFile, PAGE, SEGMENT};

fn begin() -> (Arc<Machine>, Cache, MapFile) {
    let machine = Machine::new(3, &[SEGMENT as u64], []);
    let store: Arc<dyn Store> = Arc::<Machine>::clone(&machine);
    let features = Features::detect(store.memory(), 0);
    let cache = Cache::new(store, options(&features)).expect("a cache");
    let file = cache.open_backing(machine.file(0), SEGMENT as u64).expect("open");
    (machine, cache, file)
}

/// Others can change a file once the kernel has waited for this time after the first of them.
#[test]
fn a_stamp_ends_before_others_can_change_the_file() {
    let machine = Machine::new(1, &[0], []);
    let backing = machine.file(0);
    // In seconds: the time since the lease was seen whole (None: there is no lease), whether
    // another process waits by now, and how long the kernel waits.  In tenths of a second: how
    // long a stamp is valid from now on.
    let table = [
        (None, false, Some(45), 100),
        (None, true, Some(1), 100),
        (Some(0), false, Some(45), 100),
        (Some(100), false, Some(45), 100),
        (Some(100), false, Some(2), 15),
        (Some(0), false, Some(1), 7),
        (Some(0), true, Some(45), 100),
        (Some(30), true, Some(45), 37),
        (Some(60), true, Some(45), -263),
        (Some(1), true, Some(2), 5),
        (Some(100), true, None, 100),
    ];
    for row in table {
        let (leased, waits, patience, tenths) = row;
        machine.waits.store(waits, Ordering::SeqCst);
        let now = Instant::now();
        let leased = leased.map(|ago| now - Duration::from_secs(ago));
        let mut changes = Changes { leased, ..Changes::default() };
        let until = changes.alone_until(&*backing, patience.map(Duration::from_secs));
        let signed = |from: Instant, to: Instant| match to.checked_duration_since(from) {
            Some(ahead) => ahead.as_secs_f64(),
            None => -(from - to).as_secs_f64(),
        };
        let found = signed(now, until);
        assert!((found - f64::from(tenths) / 10.0).abs() < 0.1, "{row:?}: {found}");
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
        let at = |seconds: f64| {
            let at = wall.as_secs_f64() + found + seconds;
            (at.floor() as i64, (at.fract() * 1e9) as u32)
        };
        let stamp = Stamp::Changing(explains_until(until));
        assert!(stamp.explains(at(-0.1)) && !stamp.explains(at(0.1)), "{row:?}: {stamp:?}");
    }
}

/// A file that was left has not changed: its pages are written to it only by order.  If it
/// turns out that no one has it, no order is needed.
#[test]
fn pages_of_a_file_left_to_others_are_written_by_order() {
    let _alone = alone();
    for goes_on in [false, true] {
        let (machine, _cache, file) = begin();
        file.store(0, &[7; PAGE]);
        file.sync(0, u64::MAX).expect("synced");
        file.write_back().expect("written");
        file.store(PAGE as u64, &[8; PAGE]);
        file.sync(0, u64::MAX).expect("synced");
        file.leave();
        file.write_back().expect_err("it was left");
        if goes_on {
            file.go_on();
        }
        let after = machine.cut(|| ()).machine(&mut Random(1), true, &[]);
        let report = recover(&*after, open(&after)).expect("recovered");
        assert_eq!(report.refused.is_empty(), goes_on, "{report:?}");
        let page = |of: &[u8]| of[PAGE..2 * PAGE].to_vec();
        let expected = if goes_on { 8 } else { 0 };
        assert!(page(&after.content(0)) == [expected; PAGE], "go on: {goes_on}");
        if goes_on {
            continue;
        }
        assert!(report.refused[0].why.contains("left it to others"), "{report:?}");
        let accept = Recovery { accept: true, ..Recovery::default() };
        let report = recover_some(&*after, &open(&after), &accept, &mut |_| {}).expect("recovered");
        assert!(report.refused.is_empty() && after.is_empty(), "{report:?}");
        assert!(page(&after.content(0)) == [8; PAGE]);
    }
}

/// The begin and the end of a change cost as much as the write of a page.
#[test]
fn a_write_back_of_many_pages_is_one_change() {
    let _alone = alone();
    let (machine, _cache, file) = begin();
    for page in (0..400).step_by(2) {
        file.store(page * PAGE as u64, &[1; PAGE]);
    }
    file.sync(0, u64::MAX).expect("synced");
    let before = machine.times_asked(0);
    assert_eq!(file.write_back().expect("written"), 200);
    let asked = machine.times_asked(0) - before;
    assert!(asked <= 2, "the time of the last change was asked for {asked} times");
}

/// The file is given up in the middle of a write-back: no page is written after that.
#[test]
fn a_change_of_several_steps_ends_when_the_file_is_given_up() {
    let machine = Machine::new(1, &[0], []);
    let (backing, marking) = (machine.file(0), Marking::default());
    let of = Of { store: &*machine, id: record_of(&machine), backing: &*backing };
    let change = marking.change(of).expect("it may");
    change.next().expect("it may go on");
    std::thread::scope(|s| {
        s.spawn(|| marking.leave(of));
        while !marking.is_given_up() {
            std::thread::yield_now();
        }
        change.next().expect_err("it was left");
        drop(change);
    });
    let stamp = machine.files().expect("files")[0].1.stamp;
    assert!(stamp == Stamp::LEFT && marking.change(of).is_err(), "{stamp:?}");
}

/// A record of the only file of a machine.
fn record_of(machine: &Arc<Machine>) -> u32 {
    let identity = machine.file(0).identity().to_owned();
    let record = crate::store::FileRecord { identity, path: "/a".into(), ..Default::default() };
    machine.add_file(&record).expect("a record")
}

/// The process is stopped in the middle of a change, and the kernel revokes its lease meanwhile.
/// The change that it has made by then is its own, and the file is not given up for it.
#[test]
fn a_change_that_a_stop_interrupts_is_the_process_own() {
    // Whether a process has waited for the file for long already, and whether it changes the file
    // once it has it.
    for (waits, changes) in [(false, false), (false, true), (true, false)] {
        let machine = Machine::new(1, &[0], []);
        let (backing, marking) = (machine.file(0), Marking::default());
        let of = Of { store: &*machine, id: record_of(&machine), backing: &*backing };
        marking.opened(backing.changed().expect("a time"));
        let ago = Duration::from_secs(if waits { 1000 } else { 0 });
        let seen = Instant::now().checked_sub(ago).expect("the machine is older");
        marking.leased(Some((seen, Arc::new(Patience::open()))));
        machine.waits.store(waits, Ordering::SeqCst);
        let change = marking.change(of).expect("it may");
        backing.write_at(0, &[1; 512]).expect("written");
        assert!(marking.is_own(&*backing), "a change that is under way");
        change.next().expect("it may go on");
        backing.write_at(512, &[2; 512]).expect("written");
        machine.revoked.store(true, Ordering::SeqCst);
        if changes {
            std::thread::sleep(2 * STEP_CHANGES);
            backing.write_at(0, &[3; 512]).expect("written");
        }
        // This is no step: nothing keeps others out.
        change.next().expect_err("the lease is revoked");
        drop(change);
        marking.leave(of);
        assert_eq!(marking.is_own(&*backing), !waits && !changes, "{waits} {changes}");
        machine.revoked.store(false, Ordering::SeqCst);
        if !waits && !changes {
            marking.go_on(of);
            let stamp = machine.files().expect("files")[0].1.stamp;
            assert_eq!(stamp, Stamp::Settled(backing.changed().expect("a time")));
            drop(marking.change(of).expect("it goes on"));
            assert!(marking.is_own(&*backing));
        }
    }
}

/// A file that is opened again by its open file description has the lease since before that, and
/// another process may wait for it.
#[test]
fn the_patience_of_a_break_goes_on_in_a_file_that_is_opened_again() {
    let _alone = alone();
    let (machine, cache, file) = begin();
    let hour = Duration::from_secs(3600);
    file.leased(Some(Instant::now().checked_sub(hour).expect("the machine is older")));
    machine.waits.store(true, Ordering::SeqCst);
    let seen = file.lease_seen();
    file.close().expect("closed");
    let file = cache.open_backing(machine.file(0), SEGMENT as u64).expect("open");
    file.leased(seen);
    file.store(0, &[7; PAGE]);
    file.sync(0, u64::MAX).expect("synced");
    file.change(|| ()).expect("it may");
    let stamp = machine.files().expect("files")[0].1.stamp;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    let now = (now.as_secs() as i64, now.subsec_nanos());
    assert!(!stamp.explains(now), "others have the file by now: {stamp:?}");
}
