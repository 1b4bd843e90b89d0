// SPDX-License-Identifier: MIT OR Apache-2.0
//! Goal: nothing that was told to be durable is only in a page cache, nobody waits for
//! what does not come, and one operation that fails takes no other with it.  On a
//! directory of this machine, with a log in memory.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::mpsc;
use std::thread;

mod beside;
mod clock;
mod later;
mod ordered;
mod paths;
mod room;
mod silent;
mod waiting;

use super::*;
use crate::mark;
use crate::record::{Allocate, Entry};
use crate::replay;
use crate::rights::{Acting, Caller};
use crate::tree::{New, RenameHow, ACCESS_ACL};
use crate::unix::UnixTree;

#[derive(Debug)]
struct MemoryLog {
    entries: Mutex<Vec<(u64, Vec<u8>)>>,
    full: AtomicBool,
    /// This many more entries find space.
    room: AtomicU64,
    asked: AtomicU64,
    panics: AtomicBool,
    fails: AtomicBool,
    /// Tickets that are waited for never become durable.
    loses: AtomicBool,
    /// The next append finds the disk busy until the gate is open.
    busy: AtomicBool,
    entry_max: usize,
    /// Entries are durable when they were waited for, and waits end when the gate is open.
    late: AtomicBool,
    durable: Mutex<u64>,
    gate: (Mutex<bool>, std::sync::Condvar),
    waiting: AtomicU64,
}

impl MemoryLog {
    fn set_gate(&self, open: bool) {
        *self.gate.0.lock().unwrap() = open;
        self.gate.1.notify_all();
    }

    fn wait_for_gate(&self) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let shut = self.gate.1.wait_while(self.gate.0.lock().unwrap(), |open| !*open);
        drop(shut.unwrap());
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Default for MemoryLog {
    fn default() -> Self {
        MemoryLog {
            entries: Mutex::default(),
            full: AtomicBool::new(false),
            room: AtomicU64::new(u64::MAX),
            asked: AtomicU64::new(0),
            panics: AtomicBool::new(false),
            fails: AtomicBool::new(false),
            loses: AtomicBool::new(false),
            busy: AtomicBool::new(false),
            entry_max: 64 << 10,
            late: AtomicBool::new(false),
            durable: Mutex::new(0),
            gate: Default::default(),
            waiting: AtomicU64::new(0),
        }
    }
}

impl Journal for MemoryLog {
    fn append(&self, txg: u64, pieces: &[&[u8]]) -> std::result::Result<Ticket, JournalError> {
        let number = self.asked.fetch_add(1, Ordering::Relaxed) + 1;
        if self.fails.load(Ordering::Relaxed) {
            return Err(JournalError::Failed("the log's disk".into()));
        }
        if self.busy.swap(false, Ordering::Relaxed) {
            return Err(JournalError::Busy(Default::default()));
        }
        let body = pieces.concat();
        if body.len() > self.entry_max {
            return Err(JournalError::Failed("an entry that is too large".into()));
        }
        if self.full.load(Ordering::Relaxed) {
            match self.room.load(Ordering::Relaxed) {
                0 => return Err(JournalError::Full),
                n => self.room.store(n - 1, Ordering::Relaxed),
            }
        }
        self.entries.lock().unwrap().push((txg, body));
        Ok(Ticket(if self.late.load(Ordering::Relaxed) { number } else { 0 }))
    }

    fn wait_for_writes(&self, _: forebay::Writes) {
        self.wait_for_gate();
    }

    fn wait(&self, ticket: Ticket) -> std::result::Result<(), JournalError> {
        self.wait_for_gate();
        if self.loses.load(Ordering::Relaxed) {
            return Err(JournalError::Failed("the log's disk".into()));
        }
        let mut durable = self.durable.lock().unwrap();
        *durable = durable.max(ticket.0);
        Ok(())
    }

    fn is_settled(&self, ticket: Ticket) -> bool {
        ticket.0 <= *self.durable.lock().unwrap()
    }

    fn sync(&self, txg: u64) -> std::result::Result<(), JournalError> {
        assert!(!self.panics.load(Ordering::Relaxed), "planted");
        self.entries.lock().unwrap().retain(|(t, _)| *t > txg);
        self.full.store(false, Ordering::Relaxed);
        Ok(())
    }

    fn entry_max(&self) -> usize {
        self.entry_max
    }
}

type TestLive = Live<UnixTree, MemoryLog>;

struct Bed {
    dir: PathBuf,
    live: Arc<TestLive>,
}

const NEVER: Duration = Duration::from_secs(3600);

impl Bed {
    fn new(name: &str, options: LiveOptions) -> Bed {
        rustix::process::umask(rustix::fs::Mode::empty());
        // Two tests may use one name at the same time.
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let dir = format!("forebay-live-{name}-{}-{number}", std::process::id());
        let dir = std::env::temp_dir().join(dir);
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir(&dir).unwrap();
        let tree = UnixTree::open(&dir).unwrap();
        let live = Arc::new(Live::new(tree, MemoryLog::default(), 0, options).unwrap());
        Bed { dir, live }
    }

    /// Groups are synced when they are asked to be.
    fn calm(name: &str) -> Bed {
        Bed::new(name, LiveOptions { interval: NEVER, ..LiveOptions::default() })
    }

    fn background(&self) -> thread::JoinHandle<()> {
        let live = self.live.clone();
        thread::spawn(move || live.background())
    }

    fn create(&self, name: &str) -> Result<Arc<Inode<crate::unix::Node>>> {
        let new = New::plain(Kind::File, 0o644);
        self.live.create(self.live.root(), name.as_bytes(), &new).map(|(inode, _)| inode)
    }

    /// The content of the log, in words.
    fn logged(&self) -> String {
        let entries = self.live.journal().entries.lock().unwrap();
        let words = entries.iter().map(|(_, body)| {
            let records = Entry::parse(body).unwrap().records();
            format!("{:?}", records.map(|r| r.unwrap()).collect::<Vec<_>>())
        });
        words.collect::<Vec<_>>().join("\n")
    }

    /// The server dies now, and its log is replayed onto the tree.
    fn replayed(&self) -> replay::Report {
        let entries = self.live.journal().entries.lock().unwrap();
        let entries: Vec<_> = entries.iter().map(|(_, body)| body.clone()).collect();
        replay::replay(self.live.tree(), &entries, &Default::default(), &mut |_, _| {}).unwrap()
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// Returns the result of `run`, or fails the test if it hangs.  The time allows for a busy
/// machine.
fn bounded<R: Send + 'static>(what: &str, run: impl FnOnce() -> R + Send + 'static) -> R {
    let (done, result) = mpsc::channel();
    thread::spawn(move || done.send(run()));
    result.recv_timeout(Duration::from_secs(20)).unwrap_or_else(|_| panic!("{what}: it hangs"))
}

#[test]
fn a_success_is_trusted_once_earlier_syncs_have_ended() {
    let syncs = Arc::new(Syncs::default());
    let (first, second) = (syncs.begin(), syncs.begin());
    let (done, told) = mpsc::channel();
    let waiting = syncs.clone();
    thread::spawn(move || {
        waiting.wait_for_earlier();
        done.send(())
    });
    assert!(told.recv_timeout(Duration::from_millis(50)).is_err(), "two are on their way");
    drop(first);
    assert!(told.recv_timeout(Duration::from_millis(50)).is_err(), "one still is");
    drop(second);
    told.recv_timeout(Duration::from_secs(20)).unwrap();
}

#[test]
fn a_mount_that_ends_takes_no_new_change() {
    let bed = Bed::calm("ending");
    let file = bed.create("f").unwrap();
    bed.live.end();
    bed.live.write(&file, 0, b"x").and_then(|_| bed.live.fsync(&file)).unwrap_err();
    let background = bed.background();
    bounded("the end", move || background.join().unwrap());
    assert_eq!(bed.logged(), "");
}

#[test]
fn writes_before_the_kernel_forgot_the_file_are_synced() {
    let bed = Bed::calm("forgotten");
    let background = bed.background();
    let file = bed.create("f").unwrap();
    let ino = file.ino;
    drop(file);
    bed.live.sync().unwrap();
    assert_eq!(bed.logged(), "");
    bed.live.write(&bed.live.inode(ino).unwrap(), 0, b"precious").unwrap();
    bed.live.forget(ino, 1);
    assert!(bed.live.inode(ino).is_err(), "it is not known any more");
    let (file, _) = bed.live.lookup(bed.live.root(), b"f").unwrap();
    bed.live.fsync(&file).unwrap();
    let logged = bed.logged();
    assert!(logged.contains("Synced") || logged.contains("Data"), "nothing is: {logged}");
    bed.live.sync().unwrap();
    bed.live.fsync(&file).unwrap();
    assert_eq!(bed.logged(), "", "it is synced");
    bed.live.end();
    background.join().unwrap();
}

/// A file that is made anew may have the number of one that was forgotten.
#[test]
fn a_new_file_has_nothing_to_sync_of_an_old_one() {
    let bed = Bed::calm("number");
    let background = bed.background();
    for i in 0..20 {
        let ino = {
            let file = bed.create("f").unwrap();
            bed.live.fsync(&file).unwrap();
            bed.live.write(&file, 0, &[i; 10]).unwrap();
            file.ino
        };
        bed.live.unlink(bed.live.root(), b"f", false).unwrap();
        bed.live.forget(ino, 1);
        bed.live.sync().unwrap();
    }
    assert_eq!(bed.live.counters.real_syncs.load(Ordering::Relaxed), 0);
    bed.live.end();
    background.join().unwrap();
}

#[test]
fn only_a_change_too_large_for_an_entry_is_refused() {
    let bed = Bed::calm("large");
    let file = bed.create("f").unwrap();
    let value = vec![1; 64 << 10];
    let refused = bed.live.set_xattr(&file, b"user.large", Some(&value));
    assert_eq!(refused.unwrap_err(), Errno::NOSPC);
    assert_eq!(bed.live.failure(), None);
    bed.live.write(&file, 0, b"data").unwrap();
    bed.live.fsync(&file).unwrap();
    assert!(bed.logged().contains("Data"));
}

#[test]
fn a_group_that_is_large_is_synced_before_its_time() {
    let options = LiveOptions { interval: NEVER, bytes: 1000, ..LiveOptions::default() };
    let bed = Bed::new("size", options);
    let background = bed.background();
    let file = bed.create("f").unwrap();
    let live = bed.live.clone();
    bounded("a sync beside a large group", move || {
        for i in 0..20 {
            live.write(&file, 0, &[i; 1000]).unwrap();
            live.fsync(&file).unwrap();
        }
    });
    bed.live.end();
    background.join().unwrap();
}

/// The log has space for what is to be done, and none for saying that it failed.
#[test]
fn a_failed_operation_is_revoked_when_there_is_space() {
    let bed = Bed::calm("void");
    let background = bed.background();
    let journal = bed.live.journal();
    journal.room.store(1, Ordering::Relaxed);
    journal.full.store(true, Ordering::Relaxed);
    std::fs::create_dir(bed.dir.join("d")).unwrap();
    std::fs::write(bed.dir.join("d/in"), "").unwrap();
    let live = bed.live.clone();
    let refused = bounded("a failed operation with a full log", move || {
        live.unlink(&live.root().clone(), b"d", true)
    });
    assert_eq!(refused.unwrap_err(), Errno::NOTEMPTY);
    assert_eq!(bed.live.failure(), None);
    bed.live.end();
    background.join().unwrap();
}

#[test]
fn operations_after_the_end_are_refused() {
    let bed = Bed::calm("end");
    let background = bed.background();
    let file = bed.create("f").unwrap();
    bed.live.end();
    background.join().unwrap();
    assert_eq!(bed.logged(), "");
    // The log may be destroyed from now on.
    assert_eq!(bed.create("g").unwrap_err(), Errno::IO);
    let written = bed.live.write(&file, 0, b"data");
    assert!(written.is_err() || bed.live.fsync(&file).is_err());
    assert_eq!(bed.logged(), "");
}

#[test]
fn data_left_in_the_log_is_not_reported_synced() {
    let bed = Bed::calm("left");
    let background = bed.background();
    let file = bed.create("f").unwrap();
    bed.live.leave();
    background.join().unwrap();
    assert!(bed.logged().contains("Create"));
    assert!(bed.live.sync().is_err(), "it is in the log alone");
    // A change after the last entry would look as if another had made it.
    assert!(bed.live.write(&file, 0, b"late").is_err());
}

#[test]
fn a_lost_background_thread_is_reported() {
    let bed = Bed::calm("lost");
    let background = bed.background();
    bed.create("f").unwrap();
    bed.live.journal().panics.store(true, Ordering::Relaxed);
    let live = bed.live.clone();
    let synced = bounded("a sync without a background", move || live.sync());
    assert!(synced.is_err());
    assert!(background.join().is_err());
    assert!(bed.live.failure().is_some());
    assert_eq!(bed.create("g").unwrap_err(), Errno::IO);
}

/// Others have the pool's space, and nothing of this log is to be synced.
#[test]
fn an_operation_that_waits_for_space_sleeps() {
    let bed = Bed::calm("sleep");
    let background = bed.background();
    let journal = bed.live.journal();
    journal.room.store(0, Ordering::Relaxed);
    journal.full.store(true, Ordering::Relaxed);
    thread::scope(|scope| {
        let waits = scope.spawn(|| bed.create("f").map(|_| ()));
        while journal.asked.load(Ordering::Relaxed) < 3 {
            thread::sleep(Duration::from_millis(1));
        }
        thread::sleep(Duration::from_millis(300));
        let asked = journal.asked.load(Ordering::Relaxed);
        journal.full.store(false, Ordering::Relaxed);
        waits.join().unwrap().unwrap();
        assert!(asked < 100, "it asked {asked} times");
    });
    bed.live.end();
    background.join().unwrap();
}

/// A revision 2 of `struct vfs_cap_data` that permits nothing, and an ACL that says what the
/// mode says.
#[test]
fn what_is_set_is_told_to_who_was_told_of_none() {
    let bed = Bed::calm("asked-often");
    let file = bed.create("f").unwrap();
    let entry = |tag: u16, rights: u16| [tag.to_le_bytes(), rights.to_le_bytes()].concat();
    let entries = [(1, 7), (4, 5), (32, 5)]
        .map(|(tag, rights)| [entry(tag, rights), u32::MAX.to_le_bytes().to_vec()].concat());
    let acl = [&2u32.to_le_bytes()[..], &entries.concat()].concat();
    let capability = [&[0, 0, 0, 2][..], &[0; 16]].concat();
    for (inode, name, value) in
        [(&file, CAPABILITY, &capability), (bed.live.root(), DEFAULT_ACL, &acl)]
    {
        assert_eq!(bed.live.xattr(inode, name).unwrap(), None);
        if let Err(e) = bed.live.set_xattr(inode, name, Some(value)) {
            forebay_test::skipped!("{} cannot be set here: {e}", name.escape_ascii());
            continue;
        }
        assert_eq!(bed.live.xattr(inode, name).unwrap().as_ref(), Some(value));
        bed.live.set_xattr(inode, name, None).unwrap();
        for _ in 0..2 {
            assert_eq!(bed.live.xattr(inode, name).unwrap(), None);
        }
    }
}

/// So no cut leaves a directory without the ACLs that its callers rely on.
#[test]
fn a_creation_and_the_acls_that_it_inherits_are_one_entry() {
    let bed = Bed::calm("inherits");
    let new = New {
        kind: Kind::Directory,
        mode: 0o750,
        uid: 0,
        gid: 0,
        device: 0,
        target: b"",
        inherit_acl: true,
        no_acl_above: false,
    };
    let acls: [(&[u8], &[u8]); 2] = [(ACCESS_ACL, b"access"), (DEFAULT_ACL, b"default")];
    bed.live.create_with(bed.live.root(), b"d", &new, &acls).unwrap();
    let entries = bed.live.journal().entries.lock().unwrap();
    let parsed = entries.iter().map(|(_, body)| Entry::parse(body).unwrap());
    let with_it: Vec<_> = parsed
        .filter(|entry| entry.records().any(|r| matches!(r, Ok(Record::Create { name: b"d", .. }))))
        .collect();
    assert_eq!(with_it.len(), 1);
    let set: Vec<_> = with_it[0]
        .records()
        .filter_map(|record| match record.unwrap() {
            Record::Xattr { name, value, .. } => Some((name.to_vec(), value.unwrap().to_vec())),
            _ => None,
        })
        .collect();
    assert_eq!(set, acls.map(|(name, value)| (name.to_vec(), value.to_vec())));
}

#[test]
fn a_file_that_takes_anothers_name_leaves_its_own() {
    let bed = Bed::calm("replace");
    let (new, old) = (bed.create("new").unwrap(), bed.create("old").unwrap());
    bed.live.write(&new, 0, b"new").unwrap();
    let root = bed.live.root();
    bed.live.rename((root, b"new"), (root, b"old"), RenameHow::Replace).unwrap();
    assert_eq!(std::fs::read(bed.dir.join("old")).unwrap(), b"new");
    assert!(!bed.dir.join("new").exists());
    assert_eq!(bed.live.attr(&old).unwrap().nlink, 0);
    assert!(bed.logged().contains("Rename"), "{}", bed.logged());
    // To the kernel it is one operation, and refused as one.
    assert!(bed.live.rename((root, b"old"), (root, &[b'x'; 256]), RenameHow::Replace).is_err());
    assert_eq!(std::fs::read(bed.dir.join("old")).unwrap(), b"new");
}

/// Bytes that the log was given in the end, as (offset, bytes).
fn data(bed: &Bed) -> Vec<(u64, Vec<u8>)> {
    let entries = bed.live.journal().entries.lock().unwrap();
    let mut all = Vec::new();
    for (_, body) in entries.iter() {
        for record in Entry::parse(body).unwrap().records() {
            if let Record::Data { offset, bytes, .. } = record.unwrap() {
                all.push((offset, bytes.to_vec()));
            }
        }
    }
    all
}

#[test]
fn the_last_writes_are_logged_as_they_came() {
    let bed = Bed::calm("kept");
    let file = bed.create("f").unwrap();
    bed.live.write(&file, 0, b"aaaa").unwrap();
    bed.live.write(&file, 2, b"bb").unwrap();
    // It is not read back.
    std::fs::write(bed.dir.join("f"), b"others").unwrap();
    bed.live.fsync(&file).unwrap();
    assert_eq!(data(&bed), [(0, b"aaaa".to_vec()), (2, b"bb".to_vec())]);
    bed.live.fsync(&file).unwrap();
    assert_eq!(data(&bed).len(), 2, "there is nothing new");
}

/// After a change that is in the log by itself, and where more was written than is kept.
#[test]
fn writes_that_are_not_kept_are_read_back() {
    let bed = Bed::calm("read-back");
    let file = bed.create("f").unwrap();
    bed.live.write(&file, 0, b"aaaabbbb").unwrap();
    bed.live.allocate(&file, Allocate::Punch, 2, 2).unwrap();
    bed.live.fsync(&file).unwrap();
    assert_eq!(data(&bed), [(0, b"aa\0\0bbbb".to_vec())]);
    bed.live.write(&file, 4, b"cccc").unwrap();
    bed.live.truncate(&file, 6).unwrap();
    bed.live.fsync(&file).unwrap();
    assert_eq!(data(&bed)[1..], [(4, b"cc".to_vec())]);
    let large = vec![7; 100 << 10];
    bed.live.write(&file, 0, &large).unwrap();
    bed.live.fsync(&file).unwrap();
    let logged: Vec<u8> = data(&bed)[2..].iter().flat_map(|(_, bytes)| bytes.clone()).collect();
    assert_eq!(logged, large);
}

/// Perhaps only one of two concurrent syncs learns that both have failed.
#[test]
fn a_sync_waits_for_the_outcome_of_a_concurrent_one() {
    let bed = Bed::calm("beside");
    let file = bed.create("f").unwrap();
    let more_than_is_logged = vec![7; LiveOptions::default().sync_limit as usize + 1];
    bed.live.write(&file, 0, &more_than_is_logged).unwrap();
    let (beside, live) = (bed.live.syncs.begin(), bed.live.clone());
    let (done, told) = mpsc::channel();
    thread::spawn(move || done.send(live.fsync(&file)));
    assert!(told.recv_timeout(Duration::from_millis(50)).is_err(), "the other is on its way");
    bed.live.fail("planted", Errno::IO);
    drop(beside);
    assert_eq!(told.recv_timeout(Duration::from_secs(20)).unwrap(), Err(Errno::IO));
}

/// Replay goes by it to tell what something else changed after the crash.
#[test]
fn an_entry_says_when_it_was_made() {
    let bed = Bed::calm("time");
    let now = || super::Clock::default().now_ns();
    let before = now();
    let file = bed.create("f").unwrap();
    bed.live.write(&file, 0, b"bytes").unwrap();
    bed.live.fsync(&file).unwrap();
    let entries = bed.live.journal().entries.lock().unwrap();
    assert!(!entries.is_empty());
    for (_, body) in entries.iter() {
        let made = Entry::parse(body).unwrap().time_ns;
        assert!((before..=now()).contains(&made), "{made}");
    }
}

/// A mark that the interrupted end of a mount left in a directory is invisible, so it does not
/// keep the directory from being empty.
#[test]
fn a_directory_with_a_mark_that_is_over_is_empty() {
    let bed = Bed::calm("over");
    let plant = |name: &str| {
        std::fs::create_dir(bed.dir.join(name)).unwrap();
        std::os::unix::fs::symlink("{}", bed.dir.join(name).join(".forebay-done")).unwrap();
    };
    for name in ["gone", "replaced", "full"] {
        plant(name);
    }
    std::fs::create_dir(bed.dir.join("new")).unwrap();
    std::fs::write(bed.dir.join("full/x"), b"x").unwrap();
    let (live, root) = (&bed.live, bed.live.root());
    live.unlink(root, b"gone", true).unwrap();
    live.rename((root, b"new"), (root, b"replaced"), RenameHow::Replace).unwrap();
    assert_eq!(live.unlink(root, b"full", true), Err(Errno::NOTEMPTY));
    // XFS has another answer for a rename, and a program gets that of the tree.
    let full = live.existing(root, b"full").unwrap().unwrap();
    for answer in [Errno::EXIST, Errno::NOTEMPTY] {
        assert_eq!(mark::emptied(&live.tree, &full.node, || Err(answer)), Err(answer));
    }
    live.done_with(full);
    assert!(!bed.dir.join("gone").exists() && !bed.dir.join("new").exists());
    assert!(!bed.dir.join("replaced/.forebay-done").is_symlink());
    assert!(bed.dir.join("full/.forebay-done").is_symlink());
}

/// A closed group is synced as soon as no operation holds it, and not before.
#[test]
fn a_closed_group_waits_for_its_holders() {
    let groups = Arc::new(Groups::<()>::new(0, 1));
    let hold = groups.enter().unwrap();
    hold.appended(1, false, &mut Vec::new());
    let (closing, (done, told)) = (groups.clone(), mpsc::channel());
    thread::spawn(move || done.send(closing.next(NEVER).map(|closed| closed.txg)));
    assert!(told.recv_timeout(Duration::from_millis(50)).is_err(), "it is held");
    drop(hold);
    assert_eq!(told.recv_timeout(Duration::from_secs(20)), Ok(Some(1)));
}

/// The server alone dies, and the tree has all: the replay takes nothing of it away.
#[test]
fn written_data_is_there_after_a_replay() {
    let bed = Bed::calm("taken");
    let limit = LiveOptions::default().sync_limit as usize;
    let path = |name: &str| bed.dir.join(name);
    let old = |name: &str| {
        let file = bed.create(name).unwrap();
        bed.live.write(&file, 0, &[1; 10_000]).unwrap();
        bed.live.fsync(&file).unwrap();
        file
    };
    let (large, cut, punched, copied) = (old("large"), old("cut"), old("punched"), old("copied"));
    bed.live.truncate(&large, 0).unwrap();
    for i in 0..40 {
        bed.live.write(&large, i * 100_000, &[2; 100_000]).unwrap();
    }
    assert!(bed.live.counters.bytes.load(Ordering::Relaxed) < 2 * limit as u64, "all is logged");
    bed.live.truncate(&cut, 100).unwrap();
    bed.live.write(&cut, 0, &[3; 50]).unwrap();
    bed.live.write(&cut, 100, &[3; 500]).unwrap();
    bed.live.fsync(&cut).unwrap();
    bed.live.write(&cut, 600, &[4; 500]).unwrap();
    bed.live.write(&cut, 600, &[5; 500]).unwrap();
    bed.live.allocate(&punched, Allocate::Punch, 4096, 4096).unwrap();
    bed.live.write(&punched, 5000, &[6; 10]).unwrap();
    bed.live.truncate(&copied, 0).unwrap();
    let copy = || {
        std::fs::write(path("copied"), [7; 3000]).unwrap();
        Ok(3000)
    };
    bed.live.copy(&copied, 0, 1 << 30, copy).unwrap();
    let names = ["large", "cut", "punched", "copied"];
    let read = || names.map(|name| std::fs::read(path(name)).unwrap());
    let before = read();
    bed.replayed();
    for ((name, was), is) in names.iter().zip(before).zip(read()) {
        let same = was.iter().zip(&is).take_while(|(a, b)| a == b).count();
        assert!(was == is, "{name}: {} of {} bytes, the same up to {same}", is.len(), was.len());
    }
}

/// The sync of one directory is not trusted to cover names.
#[test]
fn names_are_synced_with_the_whole_file_system() {
    use crate::replay::model::sim::{Event, SimTree, State, ROOT_INO};
    let tree = SimTree::new(State::empty());
    let options = LiveOptions { interval: NEVER, ..LiveOptions::default() };
    let live = Arc::new(Live::new(tree.clone(), MemoryLog::default(), 0, options).unwrap());
    let new = New::plain(Kind::File, 0o644);
    let synced = || {
        live.sync().unwrap();
        let last = tree
            .trace()
            .into_iter()
            .rev()
            .find(|e| matches!(e, Event::Op(_) | Event::SyncAll | Event::SyncFile(_)));
        format!("{last:?}")
    };
    let all = thread::scope(|scope| {
        scope.spawn(|| live.background());
        let (file, _) = live.create(&live.root().clone(), b"f", &new).unwrap();
        let made = synced();
        live.write(&file, 0, b"x").and_then(|_| live.fsync(&file)).unwrap();
        let written = synced();
        live.unlink(&live.root().clone(), b"f", false).unwrap();
        let all = [made, written, synced()];
        live.end();
        all
    });
    assert!(all[1].starts_with("Some(SyncFile("), "{all:?}");
    assert_eq!([&all[0][..], &all[2]], ["Some(SyncAll)"; 2]);
    assert!(tree.now().inodes[&ROOT_INO].names.is_empty());
}

/// Its write-back may have failed where nobody saw it.
#[test]
fn data_read_back_is_not_logged_if_an_error_may_be_hidden() {
    let bed = Bed::calm("unseen");
    let file = bed.create("f").unwrap();
    bed.live.write(&file, 0, &[7; 100 << 10]).unwrap();
    bed.live.tree().was_dropped(&file.node);
    bed.live.fsync(&file).unwrap();
    assert_eq!(data(&bed), []);
    assert!(bed.logged().contains("Synced"), "{}", bed.logged());
}

/// The sync of all may have passed the file before it was written.
#[test]
fn files_forgotten_during_a_sync_of_all_are_synced_again() {
    let bed = Bed::calm("during");
    let file = bed.create("f").unwrap();
    let ino = file.ino;
    drop(file);
    let background = bed.background();
    bed.live.sync().unwrap();
    bed.live.inodes().sync_begins();
    bed.live.write(&bed.live.inode(ino).unwrap(), 0, b"precious").unwrap();
    bed.live.forget(ino, 1);
    bed.live.inodes().sync_ended();
    let (file, _) = bed.live.lookup(bed.live.root(), b"f").unwrap();
    bed.live.fsync(&file).unwrap();
    assert_ne!(bed.logged(), "");
    bed.live.end();
    background.join().unwrap();
}

#[test]
fn content_of_a_file_that_takes_anothers_name_is_logged() {
    let bed = Bed::calm("read-back-first");
    let (new, _old) = (bed.create("new").unwrap(), bed.create("old").unwrap());
    let bytes = vec![7; 100 << 10];
    bed.live.write(&new, 0, &bytes).unwrap();
    let root = bed.live.root();
    bed.live.rename((root, b"new"), (root, b"old"), RenameHow::Replace).unwrap();
    let logged: Vec<u8> = data(&bed).into_iter().flat_map(|(_, bytes)| bytes).collect();
    assert_eq!(logged, bytes);
    let logged = bed.logged();
    assert!(logged.find("Data") < logged.find("Rename"), "before the name");
}

/// No group is synced before there is space.
#[test]
fn a_void_is_logged_late_rather_than_never() {
    let bed = Bed::calm("late");
    let journal = bed.live.journal();
    journal.room.store(1, Ordering::Relaxed);
    journal.full.store(true, Ordering::Relaxed);
    std::fs::create_dir(bed.dir.join("d")).unwrap();
    std::fs::write(bed.dir.join("d/in"), "").unwrap();
    thread::scope(|scope| {
        let refused = scope.spawn(|| bed.live.unlink(bed.live.root(), b"d", true));
        let begun = Instant::now();
        while journal.asked.load(Ordering::Relaxed) < 3 && begun.elapsed().as_secs() < 20 {
            thread::sleep(Duration::from_millis(1));
        }
        journal.full.store(false, Ordering::Relaxed);
        assert_eq!(refused.join().unwrap().unwrap_err(), Errno::NOTEMPTY);
    });
    assert!(bed.logged().contains("Void"), "{}", bed.logged());
}

/// Earlier groups are forgotten, and what they said of it.
#[test]
fn each_group_names_its_tree() {
    let bed = Bed::calm("which");
    let background = bed.background();
    for name in ["a", "b", "c"] {
        bed.create(name).unwrap();
        assert!(bed.logged().contains("Tree {"), "{name}: {}", bed.logged());
        bed.live.sync().unwrap();
    }
    bed.live.end();
    background.join().unwrap();
}
