// SPDX-License-Identifier: MIT OR Apache-2.0
//! Goal: an entry that is not durable yet keeps nobody but those who need it, and nobody who needs
//! it is told too early.

use super::*;
use crate::record::{SetAttr, Time};
use crate::replay::model::sim::{SimTree, State};
use crate::replay::planted::{plant, Bug};

/// Two programs sync one file.  The second finds nothing left to log: it waits for the entry of
/// the first.
#[test]
fn a_sync_without_content_waits_for_the_entry_of_another() {
    for bug in [None, Some(Bug::CleanIsDurable)] {
        let bed = Bed::calm("another");
        let journal = bed.live.journal();
        let file = bed.create("f").unwrap();
        journal.late.store(true, Ordering::Relaxed);
        bed.live.write(&file, 0, b"precious").unwrap();
        let sync = |bug| {
            let (live, file, (done, told)) = (bed.live.clone(), file.clone(), mpsc::channel());
            thread::spawn(move || {
                plant(bug);
                let _ = done.send(live.fsync(&file));
            });
            told
        };
        let first = sync(None);
        while journal.waiting.load(Ordering::Relaxed) < 1 {
            thread::yield_now();
        }
        let second = sync(bug);
        if bug.is_some() {
            assert_eq!(second.recv_timeout(Duration::from_secs(20)), Ok(Ok(())), "the mistake");
            assert_eq!(*journal.durable.lock().unwrap(), 0);
        } else {
            while journal.waiting.load(Ordering::Relaxed) < 2 {
                assert!(second.try_recv().is_err(), "nothing is durable");
                thread::yield_now();
            }
        }
        journal.set_gate(true);
        assert_eq!(first.recv_timeout(Duration::from_secs(20)), Ok(Ok(())));
        if bug.is_none() {
            assert_eq!(second.recv_timeout(Duration::from_secs(20)), Ok(Ok(())));
        }
    }
}

/// While one operation waits for its entry, others append theirs: they share a write.
#[test]
fn who_waits_for_an_entry_keeps_nobody_from_appending() {
    let bed = Bed::calm("shared");
    let files: Vec<_> = (0..4).map(|i| bed.create(&i.to_string()).unwrap()).collect();
    let journal = bed.live.journal();
    journal.late.store(true, Ordering::Relaxed);
    let told: Vec<_> = (0..5)
        .map(|i| {
            let (live, file) = (bed.live.clone(), files.get(i).cloned());
            let (done, told) = mpsc::channel();
            thread::spawn(move || {
                let _ = done.send(match file {
                    Some(file) => {
                        live.write(&file, 0, b"data").unwrap();
                        live.fsync(&file)
                    }
                    None => {
                        let new = New::plain(Kind::File, 0o644);
                        live.create(live.root(), b"new", &new).map(drop)
                    }
                });
            });
            told
        })
        .collect();
    let begun = Instant::now();
    while journal.waiting.load(Ordering::Relaxed) < 5 {
        assert!(begun.elapsed() < Duration::from_secs(20), "appends wait for each other");
        thread::yield_now();
    }
    assert!(!bed.dir.join("new").exists(), "the tree comes after the log");
    journal.set_gate(true);
    for told in told {
        assert_eq!(told.recv_timeout(Duration::from_secs(20)), Ok(Ok(())));
    }
    assert!(bed.dir.join("new").exists());
}

/// The background's sync of a file was told that a write-back failed, and has not said so.  A
/// sync that reads the file back must not log what it finds, which may be old.
#[test]
fn an_error_that_another_sync_was_told_is_waited_for() {
    for bug in [None, Some(Bug::ErrorOfAnother), Some(Bug::OneEndsTooEarly)] {
        let tree = SimTree::new(State::empty());
        let options = LiveOptions { interval: NEVER, ..LiveOptions::default() };
        let live = Arc::new(Live::new(tree.clone(), MemoryLog::default(), 0, options).unwrap());
        let new = New::plain(Kind::File, 0o644);
        let (file, _) = live.create(live.root(), b"f", &new).unwrap();
        live.sync_here().unwrap();
        let copied = |offset| {
            let write = || tree.write(&file.node, offset, b"new").map(|()| 3);
            live.copy(&file, offset, 3, write).unwrap();
        };
        copied(0);
        live.fsync(&file).unwrap();
        // This is not logged yet when the page is dropped.
        copied(3);
        tree.write_back.fail();
        let background = live.clone();
        let syncing = thread::spawn(move || {
            plant(bug);
            background.sync_here()
        });
        tree.write_back.was_told();
        let (of, inode, (done, told)) = (live.clone(), file.clone(), mpsc::channel());
        thread::spawn(move || {
            plant(bug);
            let _ = done.send(of.fsync(&inode));
        });
        if bug == Some(Bug::ErrorOfAnother) {
            assert_eq!(told.recv_timeout(Duration::from_secs(20)), Ok(Ok(())), "the mistake");
        } else {
            assert!(told.recv_timeout(Duration::from_millis(100)).is_err(), "it is not known yet");
        }
        tree.write_back.let_return();
        if bug == Some(Bug::OneEndsTooEarly) {
            assert_eq!(told.recv_timeout(Duration::from_secs(20)), Ok(Ok(())), "the mistake");
        }
        assert_eq!(syncing.join().unwrap(), Err(Errno::IO));
        if bug.is_none() {
            assert_eq!(told.recv_timeout(Duration::from_secs(20)), Ok(Err(Errno::IO)));
        }
    }
}

/// A sync begins while the number of a group is synced, and gets the error that is the number's.
/// The log keeps the group: a tree that has an older number than its log counts as an older copy.
#[test]
fn a_number_is_trusted_once_earlier_syncs_have_ended() {
    for bug in [None, Some(Bug::NumberBelieved)] {
        let tree = SimTree::new(State::empty());
        let options = LiveOptions { interval: NEVER, ..LiveOptions::default() };
        let live = Arc::new(Live::new(tree.clone(), MemoryLog::default(), 0, options).unwrap());
        let (pool, period) = (forebay::Uuid([1; 16]), forebay::Uuid([2; 16]));
        let (log, at, since) = ("mount".into(), "pool".into(), 0);
        let mark = mark::Mark { pool, log, period, since, at, groups: true, ahead: false };
        live.bear(mark::begin(&tree, 0, || Ok(mark)).unwrap());
        // A group with names is synced with all, and its number alone.
        live.create(live.root(), b"f", &New::plain(Kind::File, 0o644)).unwrap();
        tree.write_back.hold();
        let (background, (done, told)) = (live.clone(), mpsc::channel());
        thread::spawn(move || {
            plant(bug);
            done.send(background.sync_here())
        });
        tree.write_back.was_told();
        let beside = live.syncs.begin();
        tree.write_back.let_return();
        if bug.is_some() {
            assert_eq!(told.recv_timeout(Duration::from_secs(20)), Ok(Ok(())), "the mistake");
            continue;
        }
        assert!(told.recv_timeout(Duration::from_millis(100)).is_err(), "another is on its way");
        live.fail("planted", Errno::IO);
        drop(beside);
        assert_eq!(told.recv_timeout(Duration::from_secs(20)), Ok(Err(Errno::IO)));
        assert!(!live.journal().entries.lock().unwrap().is_empty(), "the log has lost the group");
    }
}

/// The log fails.  Everything that programs were told is in the tree, and is synced there; if the
/// tree fails, too, nobody says so.
#[test]
fn a_tree_comes_home_without_its_log() {
    use crate::replay::model::sim::Event;
    for tree_fails in [false, true] {
        let tree = SimTree::new(State::empty());
        let options = LiveOptions { interval: NEVER, ..LiveOptions::default() };
        let live = Arc::new(Live::new(tree.clone(), MemoryLog::default(), 0, options).unwrap());
        let new = New::plain(Kind::File, 0o644);
        let (file, _) = live.create(live.root(), b"f", &new).unwrap();
        live.write(&file, 0, b"precious").unwrap();
        live.fsync(&file).unwrap();
        // An operation is under way: it may change the tree yet.
        let under_way = live.groups.enter().unwrap();
        live.journal().fails.store(true, Ordering::Relaxed);
        assert_eq!(live.create(live.root(), b"g", &new).map(drop), Err(Errno::IO));
        assert_eq!(tree.lookup(&live.root().node, b"g"), Ok(None), "nobody was told of it");
        assert!(live.failure().unwrap().of_log && !live.has_tree_failed());
        assert_eq!(live.write(&file, 0, b"late"), Err(Errno::IO));
        if tree_fails {
            live.fail("the tree", Errno::IO);
        }
        let (of, (done, told)) = (live.clone(), mpsc::channel());
        thread::spawn(move || done.send(of.bring_home()));
        assert!(told.recv_timeout(Duration::from_millis(50)).is_err(), "one is under way");
        drop(under_way);
        let home = told.recv_timeout(Duration::from_secs(20)).unwrap();
        assert_eq!(home, if tree_fails { Err(Errno::IO) } else { Ok(()) });
        let synced = matches!(tree.trace().last(), Some(Event::SyncAll));
        assert_eq!(synced, !tree_fails);
        assert!(live.failure().unwrap().of_log, "the first failure is told");
    }
}

/// An append that waits for the disk to write others gives the appends to another thread.
#[test]
fn an_append_that_finds_the_disk_busy_keeps_no_other() {
    for bug in [None, Some(Bug::BusyKeepsAll)] {
        let bed = Bed::calm("busy");
        let journal = bed.live.journal();
        journal.busy.store(true, Ordering::Relaxed);
        let create = |name: &'static [u8], bug| {
            let (live, (done, told)) = (bed.live.clone(), mpsc::channel());
            thread::spawn(move || {
                plant(bug);
                let new = New::plain(Kind::File, 0o644);
                let _ = done.send(live.create(live.root(), name, &new).map(drop));
            });
            told
        };
        let first = create(b"first", bug);
        until_waiting(journal, 1);
        let second = create(b"second", None);
        match bug {
            None => assert_eq!(second.recv_timeout(Duration::from_secs(20)), Ok(Ok(()))),
            Some(_) => assert!(second.recv_timeout(Duration::from_millis(300)).is_err()),
        }
        assert!(first.try_recv().is_err());
        journal.set_gate(true);
        assert_eq!(first.recv_timeout(Duration::from_secs(20)), Ok(Ok(())));
        assert!(bed.dir.join("first").exists());
    }
}

/// An entry was appended, and never became durable: the mount fails as after an append that failed.
#[test]
fn an_entry_that_is_lost_fails_the_mount() {
    for syncs in [false, true] {
        let bed = Bed::calm("lost");
        let file = bed.create("f").unwrap();
        bed.live.write(&file, 0, b"precious").unwrap();
        let journal = bed.live.journal();
        journal.set_gate(true);
        journal.late.store(true, Ordering::Relaxed);
        journal.loses.store(true, Ordering::Relaxed);
        let done = match syncs {
            true => bed.live.fsync(&file),
            false => bed.create("g").map(drop),
        };
        assert_eq!(done, Err(Errno::IO), "syncs: {syncs}");
        assert!(!bed.dir.join("g").exists(), "the tree comes after the log");
        assert!(bed.live.failure().unwrap().of_log && !bed.live.has_tree_failed());
        // The disk is there again, and nobody believes it.
        journal.loses.store(false, Ordering::Relaxed);
        assert_eq!(bed.live.fsync(&file), Err(Errno::IO));
        assert_eq!(bed.live.write(&file, 0, b"late"), Err(Errno::IO));
        assert_eq!(bed.create("h").map(drop), Err(Errno::IO));
    }
}

/// All entries of a sync share a write.
#[test]
fn a_sync_of_several_entries_waits_once() {
    let bed = Bed::calm("several");
    let file = bed.create("f").unwrap();
    bed.live.sync_here().unwrap();
    let journal = bed.live.journal();
    bed.live.write(&file, 0, &vec![7; 200 << 10]).unwrap();
    journal.late.store(true, Ordering::Relaxed);
    let (live, (done, told)) = (bed.live.clone(), mpsc::channel());
    thread::spawn(move || done.send(live.begin_fsync(&file).map(|fsync| fsync.wait())));
    until_waiting(journal, 1);
    let logged = journal.entries.lock().unwrap().len();
    assert!(logged > 3, "{logged} entries before a wait");
    assert!(told.try_recv().is_err());
    journal.set_gate(true);
    assert_eq!(told.recv_timeout(Duration::from_secs(20)), Ok(Ok(Ok(()))));
    assert_eq!(*journal.durable.lock().unwrap(), journal.asked.load(Ordering::Relaxed));
}

fn until_waiting(journal: &MemoryLog, many: u64) {
    let begun = Instant::now();
    while journal.waiting.load(Ordering::Relaxed) < many {
        assert!(begun.elapsed() < Duration::from_secs(20), "{many} do not wait");
        thread::yield_now();
    }
}

/// A change of a file's time waits for its entry, and a sync comes meanwhile: the replay keeps the
/// time that was set.
#[test]
fn a_time_that_was_set_is_not_undone_by_content_that_is_logged_behind_it() {
    let bed = Bed::calm("time");
    let file = bed.create("f").unwrap();
    bed.live.sync_here().unwrap();
    let journal = bed.live.journal();
    bed.live.write(&file, 0, b"precious").unwrap();
    journal.late.store(true, Ordering::Relaxed);
    let mtime = Some(Time { seconds: 1_234_567, nanoseconds: 0 });
    let set = SetAttr { mtime, ..SetAttr::default() };
    let (live, of) = (bed.live.clone(), file.clone());
    let sets = thread::spawn(move || live.set_attr(&of, &set));
    until_waiting(journal, 1);
    let (live, of) = (bed.live.clone(), file.clone());
    let syncs = thread::spawn(move || live.fsync(&of));
    thread::sleep(Duration::from_millis(100));
    journal.set_gate(true);
    sets.join().unwrap().unwrap();
    syncs.join().unwrap().unwrap();
    assert_eq!(Some(bed.live.attr(&file).unwrap().mtime), mtime);
    bed.replayed();
    assert_eq!(Some(bed.live.attr(&file).unwrap().mtime), mtime, "after a replay");
}

/// A write that a replay would undo is durable when it returns, and waits with no lock of the file.
#[test]
fn a_write_that_a_replay_would_undo_waits_for_its_entry() {
    let bed = Bed::calm("undone");
    let file = bed.create("f").unwrap();
    bed.live.write(&file, 0, b"old").unwrap();
    bed.live.truncate(&file, 0).unwrap();
    let journal = bed.live.journal();
    journal.late.store(true, Ordering::Relaxed);
    for copies in [false, true] {
        journal.set_gate(false);
        let (live, of, (done, told)) = (bed.live.clone(), file.clone(), mpsc::channel());
        thread::spawn(move || {
            done.send(match copies {
                true => {
                    let write = || live.tree().write(&of.node, 0, b"new").map(|()| 3);
                    live.copy(&of, 0, 3, write).map(drop)
                }
                false => live.write(&of, 0, b"new").map(drop),
            })
        });
        until_waiting(journal, 1);
        assert!(told.try_recv().is_err(), "copies: {copies}");
        assert!(file.content.try_lock().is_ok(), "the file is locked, copies: {copies}");
        journal.set_gate(true);
        assert_eq!(told.recv_timeout(Duration::from_secs(20)), Ok(Ok(())));
    }
}

/// A sync that has begun holds its group until it has ended, and stands for all that it logged, also
/// where it took the tree's own path.
#[test]
fn a_sync_that_has_begun_holds_its_group() {
    for bytes in [3, 2 << 20] {
        let bed = Bed::calm("begun");
        let file = bed.create("f").unwrap();
        bed.live.sync_here().unwrap();
        let journal = bed.live.journal();
        journal.late.store(true, Ordering::Relaxed);
        bed.live.write(&file, 0, &vec![7; bytes]).unwrap();
        let fsync = bed.live.begin_fsync(&file).unwrap();
        assert!(!fsync.is_settled(), "{bytes} bytes");
        let (live, (done, told)) = (bed.live.clone(), mpsc::channel());
        thread::spawn(move || done.send(live.sync_here()));
        assert!(told.recv_timeout(Duration::from_millis(200)).is_err(), "it is held");
        let appended = journal.asked.load(Ordering::Relaxed);
        journal.set_gate(true);
        fsync.wait().unwrap();
        assert_eq!(*journal.durable.lock().unwrap(), appended, "{bytes} bytes");
        assert_eq!(told.recv_timeout(Duration::from_secs(20)), Ok(Ok(())));
    }
}
