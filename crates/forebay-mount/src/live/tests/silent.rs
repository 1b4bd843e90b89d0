// SPDX-License-Identifier: MIT OR Apache-2.0
//! Goal: the tree gets no content that is not logged long after the log's last durable entry.  A
//! replay would take it for a change after the crash, and would not restore what was acknowledged.

use super::*;
use crate::replay::planted::{plant, Bug};

const LONG_NS: u64 = 10_000_000_000;

impl Bed {
    /// All entries are as old as if so many nanoseconds had passed since.
    pub(super) fn passes(&self, ns: u64) {
        for (_, body) in self.live.journal().entries.lock().unwrap().iter_mut() {
            let at = record::HEADER - 8..record::HEADER;
            let time = u64::from_le_bytes(body[at.clone()].try_into().unwrap()) - ns;
            body[at].copy_from_slice(&time.to_le_bytes());
        }
        self.live.alive_ns.fetch_sub(ns, Ordering::Relaxed);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    /// The pool has no space, so that no entry says that the mount is alive.
    Full,
    /// The disk of the log does not answer.
    Hangs,
    /// Or the machine was suspended: the next entry would come within a second.
    ClockMovedOn,
    ClockSetBack,
}

#[derive(Clone, Copy, Debug)]
enum Change {
    Write,
    Copy,
}

fn changes(live: &TestLive, file: &Arc<Inode<crate::unix::Node>>, how: Change) -> Result<()> {
    match how {
        Change::Write => live.write(file, 0, b"later").map(drop),
        Change::Copy => live
            .copy(file, 0, 5, || live.tree().write(&file.node, 0, b"later").map(|()| 5))
            .map(drop),
    }
}

#[test]
fn content_follows_an_entry_that_is_not_old() {
    use Cause::*;
    for cause in [Full, Hangs, ClockMovedOn, ClockSetBack] {
        for how in [Change::Write, Change::Copy] {
            for bug in [None, Some(Bug::SilentWrites)] {
                one(cause, how, bug);
            }
        }
    }
}

fn one(cause: Cause, how: Change, bug: Option<Bug>) {
    let case = format!("{cause:?}, {how:?}, {bug:?}");
    let bed = Bed::calm("silent");
    let journal = bed.live.journal();
    let synced = bed.create("synced").unwrap();
    bed.live.sync_here().unwrap();
    let file = bed.create("f").unwrap();
    bed.live.write(&file, 0, b"first").unwrap();
    bed.live.fsync(&file).unwrap();
    let logged = bed.logged();
    let now = bed.live.clock.now_ns();
    let heard = if cause == Cause::ClockSetBack { now + LONG_NS } else { now - LONG_NS };
    bed.live.alive_ns.store(heard, Ordering::Relaxed);
    match cause {
        Cause::Full => {
            journal.room.store(0, Ordering::Relaxed);
            journal.full.store(true, Ordering::Relaxed);
        }
        Cause::Hangs => journal.late.store(true, Ordering::Relaxed),
        Cause::ClockMovedOn | Cause::ClockSetBack => {}
    }
    // No entry that a replay would use names this file.
    changes(&bed.live, &synced, how).unwrap();
    let (live, of) = (bed.live.clone(), file.clone());
    let (done, told) = mpsc::channel();
    let writer = thread::spawn(move || {
        plant(bug);
        let _ = done.send(changes(&live, &of, how));
    });
    let content = || std::fs::read(bed.dir.join("f")).unwrap();
    let waits = matches!(cause, Cause::Full | Cause::Hangs) && bug.is_none();
    if waits {
        let is_waiting = || match cause {
            Cause::Full => bed.live.waits_for_space() > Duration::ZERO,
            _ => journal.waiting.load(Ordering::Relaxed) > 0,
        };
        while !is_waiting() {
            assert!(told.try_recv().is_err(), "{case}: it does not wait");
            thread::yield_now();
        }
        assert_eq!(content(), b"first", "{case}");
        journal.full.store(false, Ordering::Relaxed);
        journal.set_gate(true);
    }
    let done = told.recv_timeout(Duration::from_secs(20));
    assert_eq!(done, Ok(Ok(())), "{case}: it hangs, or fails");
    writer.join().unwrap();
    assert_eq!(content(), b"later", "{case}");
    let more = bed.logged()[logged.len()..].to_owned();
    assert_eq!(more.contains("Alive"), bug.is_none(), "{case}: {more}");
    if bug.is_none() {
        let before = bed.logged();
        changes(&bed.live, &file, how).unwrap();
        assert_eq!(bed.logged(), before, "{case}: one entry is enough");
    }
}

/// Its group was synced while it waited, or the mount has failed: then no entry is needed.
#[test]
fn a_write_that_waits_for_an_entry_ends() {
    for fails in [false, true] {
        let bed = Bed::calm("silent-end");
        let journal = bed.live.journal();
        let file = bed.create("f").unwrap();
        bed.live.write(&file, 0, b"first").unwrap();
        bed.live.fsync(&file).unwrap();
        bed.live.alive_ns.store(0, Ordering::Relaxed);
        journal.room.store(0, Ordering::Relaxed);
        journal.full.store(true, Ordering::Relaxed);
        let live = bed.live.clone();
        let (done, told) = mpsc::channel();
        let writer = thread::spawn(move || done.send(live.write(&file, 0, b"later")).unwrap());
        while bed.live.waits_for_space() == Duration::ZERO {
            assert!(told.try_recv().is_err(), "it does not wait");
            thread::yield_now();
        }
        match fails {
            true => drop(bed.live.fail("planted", Errno::IO)),
            false => bed.live.sync_here().unwrap(),
        }
        let wanted = if fails { Err(Errno::IO) } else { Ok(5) };
        assert_eq!(told.recv_timeout(Duration::from_secs(20)), Ok(wanted));
        writer.join().unwrap();
    }
}

/// The tree holds a change up, as one that is frozen, while no entry comes, as into a full log: the
/// change has a late time.  A replay takes it for one of the mount.
#[test]
fn content_that_the_tree_held_up_is_no_change_after_the_crash() {
    for (bug, disputes) in [(None, 0), (Some(Bug::LateWrites), 1)] {
        let bed = Bed::calm("late");
        let file = bed.create("f").unwrap();
        bed.live.write(&file, 0, b"first").unwrap();
        bed.live.fsync(&file).unwrap();
        let held_up = || {
            bed.passes(LONG_NS);
            bed.live.tree().write(&file.node, 0, b"later").map(|()| 5)
        };
        plant(bug);
        let done = bed.live.copy(&file, 0, 5, held_up);
        plant(None);
        assert_eq!(done, Ok(5));
        let report = bed.replayed();
        assert_eq!(report.changed.len(), disputes, "{bug:?}: {report:?}");
    }
}
