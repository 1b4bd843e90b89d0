// SPDX-License-Identifier: MIT OR Apache-2.0
//! Bounded workloads, run by the live part, with what is allowed after each of their steps.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use forebay::{Ticket, Uuid};
use rustix::io::Errno;

use super::super::planted::{plant, planted_now, Bug};
use super::gate::Who;
use super::log_of;
use super::oracle::{Bytes, Truth};
use super::sim::{Event, Op, SimTree, State, ROOT_INO};
use crate::live::{Inode, Journal, JournalError, Live, LiveOptions};
use crate::mark::{self, Mark};
use crate::record::{header, Allocate, Entry, Kind, Record, Records, SetAttr};
use crate::tree::{New, RenameHow, Tree};

type Path = &'static str;

/// A limit of [`LiveOptions`] that two writes exceed.
const SYNC_LIMIT: usize = 1000;

#[derive(Clone, Copy, Debug)]
pub enum Act {
    Create(Path),
    Mkdir(Path),
    Symlink(Path),
    Link(Path, Path),
    Unlink(Path),
    Rmdir(Path),
    Rename(Path, Path),
    Exchange(Path, Path),
    Truncate(Path, usize),
    Allocate(Path, Allocate, usize, usize),
    Write(Path, usize, usize),
    Chmod(Path, u32),
    Xattr(Path),
    Fsync(Path),
    Sync,
    /// The first is held before the change of the tree with this number, while the second runs.
    Beside(&'static Act, &'static Act, usize),
}

/// Each operation, followed by each kind of sync.  The live part does the same for
/// fdatasync as for fsync, and for what mmap wrote as for a write.
pub fn acts() -> Vec<Vec<Act>> {
    use Act::*;
    let operations = [
        (Create("bar"), "bar"),
        (Create("A/foo"), "A/foo"),
        (Create("full"), "foo"),
        (Create("long"), "foo"),
        (Mkdir("C"), "C"),
        (Mkdir("A/D"), "A/D"),
        (Symlink("B/s"), "B"),
        (Link("foo", "bar"), "foo"),
        (Link("foo", "A/foo"), "A/foo"),
        (Link("foo", "many"), "foo"),
        (Unlink("foo"), "foo"),
        (Unlink("A/bar"), "A"),
        (Rmdir("B"), "A"),
        (Rmdir("A"), "A"),
        (Rename("foo", "bar"), "bar"),
        (Rename("foo", "A/bar"), "A/bar"),
        (Rename("A/bar", "foo"), "foo"),
        (Rename("A/bar", "B/foo"), "B/foo"),
        (Rename("bar", "foo"), "foo"),
        (Rename("A", "C"), "C"),
        (Rename("A", "B"), "B"),
        (Rename("B", "A/D"), "A/D"),
        (Rename("foo", "A/long"), "foo"),
        (Rename("A", "long"), "A"),
        (Exchange("foo", "A/bar"), "foo"),
        (Exchange("A", "B"), "A"),
        (Truncate("foo", 0), "foo"),
        (Truncate("foo", 700), "foo"),
        (Truncate("A/bar", 3000), "A/bar"),
        (Allocate("foo", crate::record::Allocate::Extend, 0, 4096), "foo"),
        (Allocate("foo", crate::record::Allocate::Punch, 300, 700), "foo"),
        (Allocate("foo", crate::record::Allocate::ZeroKeepSize, 300, 700), "foo"),
        (Write("foo", 0, 600), "foo"),
        (Write("foo", 0, 1200), "foo"),
        (Write("foo", 1300, 900), "foo"),
        (Write("A/bar", 200, 1500), "A/bar"),
        (Write("bar", 0, 800), "bar"),
        (Write("A/foo", 0, 800), "A/foo"),
        (Chmod("foo", 0o600), "foo"),
        (Chmod("A", 0o700), "A"),
        (Xattr("A/bar"), "A/bar"),
    ];
    let mut all = Vec::new();
    for (operation, synced) in operations {
        all.push(vec![operation]);
        all.push(vec![operation, Fsync(synced)]);
        all.push(vec![operation, Sync]);
    }
    all
}

/// When an entry becomes durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durable {
    /// At once, as in a pool in memory.
    AtOnce,
    /// When somebody waits for it: the disk of the log has nothing before.
    AtWait,
    /// At any time, at the latest when somebody waits for it; and changes of names and attributes
    /// do not wait.
    BeforeWait,
}

impl Durable {
    pub const ALL: [Durable; 3] = [Durable::AtOnce, Durable::AtWait, Durable::BeforeWait];
}

#[derive(Clone, Debug)]
struct SimJournal {
    tree: SimTree,
    bug: Option<Bug>,
    renaming: Arc<AtomicBool>,
    durable: Durable,
    late: Arc<Mutex<Late>>,
}

/// Entries that are not durable.
#[derive(Debug, Default)]
struct Late {
    appended: u64,
    settled: u64,
    entries: VecDeque<(u64, Event)>,
}

impl SimJournal {
    /// Whether a planted bug of the live part drops the record.
    fn loses(&self, record: &Record<'_>) -> bool {
        match self.bug {
            Some(Bug::SyncedWithoutEntry) => matches!(record, Record::Synced { .. }),
            Some(Bug::RenameOverWithoutData) => {
                self.renaming.load(Ordering::Relaxed) && matches!(record, Record::Data { .. })
            }
            _ => false,
        }
    }

    fn entry(&self, body: Vec<u8>) -> Vec<u8> {
        if self.bug.is_none() {
            return body;
        }
        let (entry, mut left) = (Entry::parse(&body).unwrap(), Records::default());
        entry.records().map(Result::unwrap).filter(|r| !self.loses(r)).for_each(|r| left.push(&r));
        [&header(entry.number, entry.time_ns, left.count())[..], left.bytes()].concat()
    }
}

impl Journal for SimJournal {
    fn append(&self, txg: u64, pieces: &[&[u8]]) -> Result<Ticket, JournalError> {
        let entry = Event::Append(txg, self.entry(pieces.concat()));
        if self.durable == Durable::AtOnce {
            self.tree.event(entry);
            return Ok(Ticket::default());
        }
        let mut late = self.late.lock().unwrap();
        late.appended += 1;
        let number = late.appended;
        match entry {
            Event::Append(txg, body) if self.durable == Durable::BeforeWait => {
                self.tree.event(Event::Submit(txg, body));
            }
            entry => late.entries.push_back((number, entry)),
        }
        Ok(Ticket(number))
    }
    fn wait(&self, ticket: Ticket) -> Result<(), JournalError> {
        let mut late = self.late.lock().unwrap();
        while late.entries.front().is_some_and(|(number, _)| *number <= ticket.0) {
            self.tree.event(late.entries.pop_front().unwrap().1);
        }
        if self.durable == Durable::BeforeWait && late.settled < ticket.0 {
            late.settled = ticket.0;
            self.tree.event(Event::Settled(ticket.0));
        }
        Ok(())
    }
    fn is_settled(&self, ticket: Ticket) -> bool {
        let late = self.late.lock().unwrap();
        match self.durable {
            Durable::BeforeWait => ticket.0 <= late.settled,
            _ => late.entries.front().is_none_or(|(number, _)| *number > ticket.0),
        }
    }
    fn sync(&self, txg: u64) -> Result<(), JournalError> {
        self.tree.event(Event::LogSync(txg));
        Ok(())
    }
    fn entry_max(&self) -> usize {
        65536
    }
}

#[derive(Debug)]
struct Step {
    start: usize,
    end: usize,
    /// The truths while the step runs, in addition to the one before.
    during: Vec<Truth>,
    after: Truth,
    /// Something is durable when it has ended: what may be then, in addition to the truth after it.
    promised: Option<Vec<Truth>>,
}

/// A workload that was run.
#[derive(Debug)]
pub struct Ran {
    pub base: State,
    /// From the mark to its end.
    pub trace: Vec<Event>,
    /// The part of the trace that the workload caused.
    pub worked: Range<usize>,
    /// The tree at the end of the workload.
    pub last: State,
    first: Truth,
    steps: Vec<Step>,
}

impl Ran {
    /// The log after a crash right after the workload.
    pub fn log(&self) -> Vec<Vec<u8>> {
        log_of(&self.trace[..self.worked.end])
    }

    /// The truths that may hold after a crash after so many events.
    pub fn truths(&self, at: usize) -> Vec<&Truth> {
        let mut truths = vec![&self.first];
        for step in &self.steps {
            if at < step.end {
                // Nothing of it has happened yet, or all may have.
                truths.extend(step.during.iter().filter(|_| at > step.start));
                return truths;
            }
            match &step.promised {
                Some(promised) => {
                    truths.clear();
                    truths.extend(promised);
                }
                None => truths.extend(&step.during),
            }
            truths.push(&step.after);
        }
        truths
    }
}

/// Directories A and B, files foo and A/bar.
fn base() -> State {
    let mut state = State::empty();
    // Its owner serves it.
    state.apply(&Op::SetAttr {
        ino: ROOT_INO,
        set: SetAttr { uid: Some(New::plain(Kind::File, 0).uid), ..SetAttr::default() },
    });
    let data = |n: u8| (0..1300).map(|i| n + (i / 512) as u8).collect();
    let mut create = |dir, name: &str, ino, kind| {
        let (mode, target) = (0o755, Vec::new());
        state.apply(&Op::Create {
            dir,
            name: name.into(),
            ino,
            kind,
            mode,
            uid: 0,
            gid: 0,
            target,
        });
    };
    create(ROOT_INO, "A", 2, Kind::Directory);
    create(ROOT_INO, "B", 3, Kind::Directory);
    create(ROOT_INO, "foo", 4, Kind::File);
    create(2, "bar", 5, Kind::File);
    state.apply(&Op::Write { ino: 4, offset: 0, bytes: data(10) });
    state.apply(&Op::Write { ino: 5, offset: 0, bytes: data(20) });
    state
}

pub const POOL: Uuid = Uuid([1; 16]);
pub const PERIOD: Uuid = Uuid([2; 16]);

fn mark_of(period: Uuid) -> Mark {
    let (log, at) = ("mount".into(), String::new());
    Mark { pool: POOL, log, period, since: 0, at, groups: true, ahead: true }
}

type SimLive = Live<SimTree, SimJournal>;
type Node = Arc<Inode<u64>>;

fn find(live: &SimLive, path: &str) -> Result<Node, Errno> {
    let mut at = live.root().clone();
    for name in path.split('/').filter(|n| !n.is_empty()) {
        at = live.lookup(&at, name.as_bytes())?.0;
    }
    Ok(at)
}

fn parent<'p>(live: &SimLive, path: &'p str) -> Result<(Node, &'p [u8]), Errno> {
    let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
    Ok((find(live, dir)?, name.as_bytes()))
}

pub fn new(kind: Kind, target: &'static [u8]) -> New<'static> {
    New {
        kind,
        mode: 0o644,
        uid: 1,
        gid: 2,
        device: 0,
        target,
        inherit_acl: false,
        no_acl_above: false,
    }
}

/// Who writes here says what: each write has its own bytes.
fn bytes(step: usize, length: usize) -> Vec<u8> {
    (0..length).map(|i| 100 + 10 * step as u8 + (i / 512) as u8).collect()
}

fn act(live: &Arc<SimLive>, act: Act, step: usize) -> Result<(), Errno> {
    let make = |path, new: New<'_>| {
        let (dir, name) = parent(live, path)?;
        live.create(&dir, name, &new).map(drop)
    };
    let rename = |from, to, how| {
        let ((from_dir, from), (to_dir, to)) = (parent(live, from)?, parent(live, to)?);
        // The kernel refuses it before the mount sees it.
        let (moved, tree) = (live.tree().lookup(&from_dir.node, from)?, live.tree());
        if moved.is_some_and(|m| tree.is_within(to_dir.node, m)) {
            return Err(Errno::INVAL);
        }
        live.rename((&from_dir, from), (&to_dir, to), how)
    };
    match act {
        Act::Create(path) => make(path, new(Kind::File, b"")),
        Act::Mkdir(path) => make(path, new(Kind::Directory, b"")),
        Act::Symlink(path) => make(path, New { mode: 0o777, ..new(Kind::Symlink, b"foo") }),
        Act::Link(old, path) => {
            let (inode, (dir, name)) = (find(live, old)?, parent(live, path)?);
            live.link(&inode, &dir, name).map(drop)
        }
        Act::Unlink(path) | Act::Rmdir(path) => {
            let (dir, name) = parent(live, path)?;
            live.unlink(&dir, name, matches!(act, Act::Rmdir(_)))
        }
        Act::Rename(from, to) => rename(from, to, RenameHow::Replace),
        Act::Exchange(from, to) => rename(from, to, RenameHow::Exchange),
        Act::Truncate(path, size) => live.truncate(&find(live, path)?, size as u64),
        Act::Allocate(path, mode, offset, length) => {
            live.allocate(&find(live, path)?, mode, offset as u64, length as u64)
        }
        Act::Write(path, offset, length) => {
            live.write(&find(live, path)?, offset as u64, &bytes(step, length)).map(drop)
        }
        Act::Chmod(path, mode) => {
            let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
            live.set_attr(&find(live, path)?, &set)
        }
        Act::Xattr(path) => live.set_xattr(&find(live, path)?, b"user.x", Some(b"value")),
        Act::Fsync(path) => live.fsync(&find(live, path)?),
        Act::Sync => live.sync(),
        Act::Beside(first, second, changes) => {
            let bug = planted_now();
            let run = |a: Act| {
                plant(bug);
                self::act(live, a, step)
            };
            let done = live.tree().gate.run(changes, || run(*first), || run(*second));
            done.0.and(done.1)
        }
    }
}

/// The contents that are allowed after an act that was done.
#[derive(Clone, Default)]
struct Contents {
    bytes: BTreeMap<u64, Bytes>,
    /// Files that were cut to nothing: how many bytes of what is written are logged at once.
    replacing: BTreeMap<u64, usize>,
}

impl Contents {
    /// While it goes on, and after.
    fn note(
        &mut self,
        act: Act,
        ino: Option<u64>,
        step: usize,
        now: &State,
    ) -> BTreeMap<u64, Bytes> {
        let exact = |ino: u64| Bytes::exact(&now.inodes[&ino].data);
        for (ino, inode) in &now.inodes {
            if inode.kind == Kind::File && !self.bytes.contains_key(ino) {
                self.bytes.insert(*ino, Bytes::default());
            }
        }
        let Some(ino) = ino.filter(|i| now.inodes[i].kind == Kind::File) else {
            return self.bytes.clone();
        };
        let entry = self.bytes.get_mut(&ino).unwrap();
        match act {
            Act::Write(_, offset, length) => {
                entry.write(offset, &bytes(step, length));
                let during = self.bytes.clone();
                if let Some(left) = self.replacing.remove(&ino) {
                    if let Some(left) = left.checked_sub(length) {
                        self.replacing.insert(ino, left);
                        self.bytes.insert(ino, exact(ino));
                    }
                }
                return during;
            }
            Act::Truncate(_, size) => {
                entry.allowed.resize(size, vec![0]);
                entry.min = size;
                if size == 0 {
                    self.replacing.insert(ino, SYNC_LIMIT);
                }
            }
            Act::Allocate(_, mode, offset, length) => {
                let end = offset + length;
                if mode == Allocate::Extend {
                    let size = entry.allowed.len().max(end);
                    entry.allowed.resize(size, vec![0]);
                    entry.min = entry.min.max(end);
                } else {
                    let end = end.min(entry.allowed.len());
                    entry.allowed[offset.min(end)..end].fill(vec![0]);
                }
            }
            // A rename is one of what replaces another file.
            Act::Fsync(_) | Act::Rename(..) => {
                self.replacing.remove(&ino);
                self.bytes.insert(ino, exact(ino));
            }
            _ => {}
        }
        self.bytes.clone()
    }
}

fn ino_of(state: &State, path: &str) -> Option<u64> {
    path.split('/')
        .try_fold(ROOT_INO, |at, name| state.inodes[&at].names.get(name.as_bytes()).copied())
}

/// The inode whose content it changes or logs.
fn written(before: &State, a: Act) -> Option<u64> {
    match a {
        Act::Rename(from, to) => {
            // Over another file, that is.
            let over = ino_of(before, to);
            ino_of(before, from).filter(|i| over.is_some_and(|o| o != *i))
        }
        Act::Write(p, ..) | Act::Truncate(p, _) | Act::Allocate(p, ..) | Act::Fsync(p) => {
            ino_of(before, p)
        }
        _ => None,
    }
}

/// Whether it is durable when it returns, with names at sync, too.
fn is_asked(before: &State, a: Act) -> bool {
    match a {
        Act::Fsync(_) | Act::Sync | Act::Truncate(..) | Act::Allocate(..) => true,
        // A file is renamed over another one.
        Act::Rename(..) => written(before, a).is_some_and(|i| before.inodes[&i].kind == Kind::File),
        _ => false,
    }
}

/// The states that two concurrent operations leave after this event.
fn at_once(
    (tree, start): (&SimTree, usize),
    before: &State,
    both: [Act; 2],
    step: usize,
    durable: Durable,
    contents: &mut Contents,
) -> Step {
    let (end, state) = (tree.events(), tree.now());
    let alone = |contents: &mut Contents, a, who| {
        let mut state = before.clone();
        tree.ops_of(who, start).iter().for_each(|op| state.apply(op));
        contents.note(a, written(before, a), step, &state);
        Truth { state, bytes: contents.bytes.clone() }
    };
    let none = Truth { state: before.clone(), bytes: contents.bytes.clone() };
    let second = alone(&mut contents.clone(), both[1], Who::Second);
    let first = alone(contents, both[0], Who::First);
    contents.note(both[1], written(before, both[1]), step, &state);
    let after = Truth { state, bytes: contents.bytes.clone() };
    let promised = match both.map(|a| durable != Durable::BeforeWait || is_asked(before, a)) {
        [true, true] => Some(Vec::new()),
        [true, false] => Some(vec![first.clone()]),
        [false, true] => Some(vec![second.clone()]),
        [false, false] => None,
    };
    Step { start, end, during: vec![none, first, second, after.clone()], after, promised }
}

pub fn run(workload: &[Act], bug: Option<Bug>) -> Ran {
    run_with(Durable::AtOnce, workload, bug)
}

pub fn run_with(durable: Durable, workload: &[Act], bug: Option<Bug>) -> Ran {
    let base = base();
    let tree = SimTree::new(base.clone());
    let renaming = Arc::new(AtomicBool::new(false));
    let journal = SimJournal {
        tree: tree.clone(),
        bug,
        renaming: renaming.clone(),
        durable,
        late: Arc::default(),
    };
    let options = LiveOptions {
        interval: Duration::from_secs(3600),
        sync_limit: SYNC_LIMIT as u64,
        names_at_sync: durable == Durable::BeforeWait,
        ..LiveOptions::default()
    };
    let live = Arc::new(Live::new(tree.clone(), journal, 0, options).unwrap());
    let mut contents = Contents::default();
    for ino in [4, 5] {
        contents.bytes.insert(ino, Bytes::exact(&base.inodes[&ino].data));
    }
    let first = Truth { state: base.clone(), bytes: contents.bytes.clone() };
    let mut steps = Vec::new();
    plant(bug);
    let begun = mark::begin(&tree, 0, || {
        tree.event(Event::Period(true));
        Ok(mark_of(PERIOD))
    });
    live.bear(begun.unwrap());
    let begun = tree.events();
    let (worked, last) = std::thread::scope(|scope| {
        scope.spawn(|| {
            plant(bug);
            live.background();
        });
        for (i, &a) in workload.iter().enumerate() {
            let (start, before) = (tree.events(), tree.now());
            renaming.store(matches!(a, Act::Rename(..)), Ordering::Relaxed);
            let ino = written(&before, a);
            let done = act(&live, a, i);
            if let Act::Beside(first, second, _) = a {
                done.unwrap();
                let both = [*first, *second];
                steps.push(at_once((&tree, start), &before, both, i, durable, &mut contents));
                continue;
            }
            // A failure has taken its entry back.
            let is_asked = is_asked(&before, a) && done.is_ok();
            let promised = (durable != Durable::BeforeWait || is_asked).then(Vec::new);
            let (end, state) = (tree.events(), tree.now());
            let mut during = Vec::new();
            let mut going_on = contents.bytes.clone();
            if done.is_ok() {
                going_on = contents.note(a, ino, i, &state);
            } else if let Act::Create("full") = a {
                // It failed, and the log was not told yet.
                let (mut made, ino) = (before.clone(), 1000);
                let (dir, name, target) = (ROOT_INO, b"full".to_vec(), Vec::new());
                let kind = Kind::File;
                made.apply(&Op::Create {
                    dir,
                    name,
                    ino,
                    kind,
                    mode: 0o644,
                    uid: 1,
                    gid: 2,
                    target,
                });
                let mut bytes = contents.bytes.clone();
                bytes.insert(ino, Bytes::default());
                during.push(Truth { state: made, bytes });
            }
            during.push(Truth { state: state.clone(), bytes: going_on });
            steps.push(Step {
                start,
                end,
                during,
                after: Truth { state, bytes: contents.bytes.clone() },
                promised,
            });
        }
        let at_end = (begun..tree.events(), tree.now());
        live.end();
        at_end
    });
    mark::end(&tree, || {
        tree.event(Event::Period(false));
        Ok(())
    })
    .unwrap();
    plant(None);
    Ran { base, trace: tree.trace(), worked, last, first, steps }
}

/// A tree that the live part and another program change.
pub struct Beside {
    pub base: State,
    pub tree: SimTree,
    live: Arc<SimLive>,
}

/// With a mount begun.
pub fn live_on(base: State) -> Beside {
    live_on_tree(SimTree::new(base))
}

pub fn live_on_tree(tree: SimTree) -> Beside {
    let base = tree.now();
    let journal = SimJournal {
        tree: tree.clone(),
        bug: None,
        renaming: Arc::default(),
        durable: Durable::AtOnce,
        late: Arc::default(),
    };
    let options = LiveOptions { interval: Duration::from_secs(3600), ..LiveOptions::default() };
    let live = Arc::new(Live::new(tree.clone(), journal, 0, options).unwrap());
    tree.event(Event::Period(true));
    Beside { base, tree, live }
}

impl Beside {
    fn create_at(&self, path: &str) -> Option<Node> {
        if let Ok(there) = find(&self.live, path) {
            return (there.kind == Kind::File).then_some(there);
        }
        let (dir, name) = parent(&self.live, path).ok()?;
        Some(self.live.create(&dir, name, &new(Kind::File, b"")).ok()?.0)
    }

    /// Another mount, of the same tree as one that folds case.
    pub fn folding(&self) -> Beside {
        live_on_tree(SimTree::new(self.tree.now()).folding())
    }

    pub fn looks_up(&self, path: &str) -> Result<(), Errno> {
        find(&self.live, path).map(drop)
    }

    pub fn create(&self, path: &str) {
        self.create_at(path).unwrap();
    }

    /// Tries an operation that the tree may refuse.
    pub fn tries(&self, path: &str) {
        let (dir, name) = parent(&self.live, path).unwrap();
        let _ = self.live.create(&dir, name, &new(Kind::File, b""));
    }

    pub fn make(&self, path: &str, new: &New<'_>) {
        let (dir, name) = parent(&self.live, path).unwrap();
        self.live.create(&dir, name, new).unwrap();
    }

    /// 600 bytes, synced.
    pub fn write(&self, path: &str, byte: u8) {
        let Some(inode) = self.create_at(path) else { return };
        self.live.truncate(&inode, 0).unwrap();
        self.live.write(&inode, 0, &[byte; 600]).unwrap();
        self.live.fsync(&inode).unwrap();
    }

    pub fn unlink(&self, path: &str) {
        let (dir, name) = parent(&self.live, path).unwrap();
        let _ = self.live.unlink(&dir, name, false);
    }

    pub fn rename(&self, from: &str, to: &str) {
        let ends = (parent(&self.live, from).unwrap(), parent(&self.live, to).unwrap());
        let ((from_dir, from), (to_dir, to)) = ends;
        let _ = self.live.rename((&from_dir, from), (&to_dir, to), RenameHow::Replace);
    }

    pub fn link(&self, path: &str, name: &str) {
        let inode = find(&self.live, path).unwrap();
        let (dir, name) = parent(&self.live, name).unwrap();
        self.live.link(&inode, &dir, name).unwrap();
    }

    /// A group is synced, and the log has forgotten it.
    pub fn sync(&self) {
        self.live.sync_here().unwrap();
    }

    pub fn ino(&self, path: &str) -> u64 {
        ino_of(&self.tree.now(), path).unwrap()
    }

    fn place<'p>(&self, path: &'p str) -> (u64, &'p [u8]) {
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
        let dir = if dir.is_empty() { ROOT_INO } else { self.ino(dir) };
        (dir, name.as_bytes())
    }

    pub fn tree_rename(&self, from: &str, to: &str) {
        let ((from_dir, from), (to_dir, to)) = (self.place(from), self.place(to));
        if (from_dir, from) != (to_dir, to) {
            let _ = self.tree.rename((&from_dir, from), (&to_dir, to), RenameHow::Replace);
        }
    }

    pub fn tree_unlink(&self, path: &str) {
        let (dir, name) = self.place(path);
        let _ = self.tree.unlink(&dir, name, false);
    }

    pub fn tree_create(&self, path: &str) {
        let (dir, name) = self.place(path);
        let _ = self.tree.create(&dir, name, &new(Kind::File, b""));
    }
}
