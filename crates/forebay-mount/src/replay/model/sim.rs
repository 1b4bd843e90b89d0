// SPDX-License-Identifier: MIT OR Apache-2.0
//! A tree in memory that remembers everything since its last sync, and from that makes
//! what a file system may have kept at a crash.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use rustix::io::Errno;

use super::gate::{Gate, Who};
use super::limits::{fits, refused};
use super::write_back::WriteBack;
use crate::record::{Allocate, Kind, SetAttr, Time};
use crate::tree::{Attr, Handle, New, RenameHow, Result, Seals, Tree, TreeIdentity, Unordered};

pub const ROOT_INO: u64 = 1;
/// A directory of the same file system that is not in the tree.
pub const OUTSIDE_INO: u64 = 0;
const SECTOR: usize = 512;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Inode {
    pub kind: Kind,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub mtime: i64,
    pub data: Vec<u8>,
    pub target: Vec<u8>,
    pub names: BTreeMap<Vec<u8>, u64>,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    pub nlink: u32,
    /// By the clock of the state.
    born: i64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub inodes: BTreeMap<u64, Inode>,
    /// Goes on with each inode that is made, and at a crash.
    clock: i64,
    /// The next identity; after a crash those that are lost are given out again.
    next: u64,
}

#[derive(Clone, Debug)]
pub enum Op {
    Create {
        dir: u64,
        name: Vec<u8>,
        ino: u64,
        kind: Kind,
        mode: u32,
        uid: u32,
        gid: u32,
        target: Vec<u8>,
    },
    Link {
        ino: u64,
        dir: u64,
        name: Vec<u8>,
    },
    Unlink {
        dir: u64,
        name: Vec<u8>,
    },
    Rename {
        from: (u64, Vec<u8>),
        to: (u64, Vec<u8>),
        exchange: bool,
    },
    Truncate {
        ino: u64,
        size: usize,
    },
    Zero {
        ino: u64,
        offset: usize,
        end: usize,
        grow: bool,
    },
    SetAttr {
        ino: u64,
        set: SetAttr,
    },
    Xattr {
        ino: u64,
        name: Vec<u8>,
        value: Option<Vec<u8>>,
    },
    Write {
        ino: u64,
        offset: usize,
        bytes: Vec<u8>,
    },
}

impl Op {
    /// Takes from a write whose data is lost the part that a later operation replaced.
    fn is_before(&mut self, later: &Op) {
        let Op::Write { ino: of, offset: start, bytes } = self else { return };
        match later {
            Op::Truncate { ino, size } if ino == of => bytes.truncate(size.saturating_sub(*start)),
            Op::Zero { ino, offset, end, .. } if ino == of => {
                let last = end.saturating_sub(*start).min(bytes.len());
                let first = offset.saturating_sub(*start).min(last);
                bytes[first..last].fill(0);
            }
            _ => {}
        }
    }
}

/// The events of the tree and of the log, in order.
#[derive(Clone, Debug)]
pub enum Event {
    Op(Op),
    SyncAll,
    SyncFile(u64),
    Append(u64, Vec<u8>),
    /// An entry that is not durable, until it is settled.
    Submit(u64, Vec<u8>),
    /// So many of those that were submitted are durable.
    Settled(u64),
    LogSync(u64),
    /// A logging period begins, or it ends and what it held is gone.
    Period(bool),
}

impl Inode {
    fn new(kind: Kind) -> Inode {
        Inode {
            kind,
            mode: 0o755,
            uid: 0,
            gid: 0,
            mtime: 0,
            data: Vec::new(),
            target: Vec::new(),
            names: BTreeMap::new(),
            xattrs: BTreeMap::new(),
            nlink: 1,
            born: 0,
        }
    }
}

impl State {
    pub fn empty() -> State {
        let root = (ROOT_INO, Inode::new(Kind::Directory));
        State { inodes: BTreeMap::from([root]), clock: 0, next: ROOT_INO + 1 }
    }

    pub fn with_outside(mut self) -> State {
        self.inodes.insert(OUTSIDE_INO, Inode::new(Kind::Directory));
        self
    }

    fn get(&mut self, ino: u64) -> &mut Inode {
        self.inodes.get_mut(&ino).expect("an inode of this state")
    }

    fn drop_name(&mut self, ino: u64) {
        self.get(ino).nlink -= 1;
    }

    pub fn apply(&mut self, op: &Op) {
        match op {
            Op::Create { dir, name, ino, kind, mode, uid, gid, target } => {
                self.clock += 1;
                let new = Inode {
                    born: self.clock,
                    mode: *mode,
                    uid: *uid,
                    gid: *gid,
                    target: target.clone(),
                    ..Inode::new(*kind)
                };
                self.inodes.insert(*ino, new);
                self.next = self.next.max(ino + 1);
                self.get(*dir).names.insert(name.clone(), *ino);
            }
            Op::Link { ino, dir, name } => {
                self.get(*dir).names.insert(name.clone(), *ino);
                self.get(*ino).nlink += 1;
            }
            Op::Unlink { dir, name } => {
                if let Some(ino) = self.get(*dir).names.remove(name) {
                    self.drop_name(ino);
                }
            }
            Op::Rename { from, to, exchange } => {
                let moved = self.get(from.0).names.remove(&from.1).expect("it is there");
                let old = self.get(to.0).names.insert(to.1.clone(), moved);
                match old {
                    Some(old) if *exchange => {
                        self.get(from.0).names.insert(from.1.clone(), old);
                    }
                    Some(old) => self.drop_name(old),
                    None => {}
                }
            }
            Op::Truncate { ino, size } => self.get(*ino).data.resize(*size, 0),
            Op::Zero { ino, offset, end, grow } => {
                let data = &mut self.get(*ino).data;
                if *grow && data.len() < *end {
                    data.resize(*end, 0);
                }
                let end = (*end).min(data.len());
                if *offset < end {
                    data[*offset..end].fill(0);
                }
            }
            Op::SetAttr { ino, set } => {
                let i = self.get(*ino);
                i.mode = set.mode.unwrap_or(i.mode);
                i.uid = set.uid.unwrap_or(i.uid);
                i.gid = set.gid.unwrap_or(i.gid);
                i.mtime = set.mtime.map_or(i.mtime, |t| t.seconds);
            }
            Op::Xattr { ino, name, value } => {
                let xattrs = &mut self.get(*ino).xattrs;
                match value {
                    Some(value) => drop(xattrs.insert(name.clone(), value.clone())),
                    None => drop(xattrs.remove(name)),
                }
            }
            Op::Write { bytes, .. } if bytes.is_empty() => {}
            Op::Write { ino, offset, bytes } => {
                let data = &mut self.get(*ino).data;
                if data.len() < offset + bytes.len() {
                    data.resize(offset + bytes.len(), 0);
                }
                data[*offset..offset + bytes.len()].copy_from_slice(bytes);
            }
        }
    }

    /// Without what has no name: nobody holds it any more.
    fn crashed(mut self) -> State {
        self.inodes.retain(|_, i| i.nlink > 0);
        self.next = self.inodes.keys().last().map_or(2, |k| k + 1);
        self.clock += 1000;
        self
    }
}

/// The durable state, and the operations since.
#[derive(Clone, Debug)]
pub struct Disk {
    base: State,
    pending: Vec<Op>,
}

impl Disk {
    pub fn new(base: State) -> Disk {
        Disk { base, pending: Vec::new() }
    }

    pub fn feed(&mut self, event: &Event) {
        match event {
            Event::Op(op) => self.pending.push(op.clone()),
            Event::SyncAll => {
                let pending = std::mem::take(&mut self.pending);
                pending.iter().for_each(|op| self.base.apply(op));
            }
            // The journal's commit: all names and attributes, and this file's data.
            Event::SyncFile(synced) => {
                for op in std::mem::take(&mut self.pending) {
                    if matches!(&op, Op::Write { ino, .. } if ino != synced) {
                        self.pending.push(op);
                        continue;
                    }
                    self.pending.iter_mut().for_each(|write| write.is_before(&op));
                    self.base.apply(&op);
                }
            }
            Event::Append(..) | Event::Submit(..) | Event::Settled(_) => {}
            Event::LogSync(..) | Event::Period(..) => {}
        }
    }

    /// How many points there are at which names and attributes may have stopped.
    pub fn points(&self) -> usize {
        self.pending.len() + 1
    }

    /// Names and attributes up to `point`; of data before and after it, by the sector,
    /// what `keep` says.
    pub fn crash(&self, point: usize, keep: &mut dyn FnMut() -> bool) -> State {
        let mut state = self.base.clone();
        for (i, op) in self.pending.iter().enumerate() {
            let Op::Write { ino, offset, bytes } = op else {
                if i < point {
                    state.apply(op);
                }
                continue;
            };
            if i >= point && self.pending[point..i].iter().any(|o| !matches!(o, Op::Write { .. })) {
                continue;
            }
            let Some(inode) = state.inodes.get_mut(ino) else { continue };
            let mut at = *offset;
            while at < offset + bytes.len() {
                let end = ((at / SECTOR + 1) * SECTOR).min(offset + bytes.len());
                if keep() {
                    if inode.data.len() < end {
                        inode.data.resize(end, 0);
                    }
                    inode.data[at..end].copy_from_slice(&bytes[at - offset..end - offset]);
                }
                at = end;
            }
        }
        state.crashed()
    }
}

#[derive(Debug)]
struct Inner {
    now: State,
    trace: Vec<Event>,
    /// The one whose operation made each event.
    by: Vec<Who>,
}

impl Inner {
    fn apply(&mut self, op: Op) {
        self.now.apply(&op);
        self.add(Event::Op(op));
    }

    fn add(&mut self, event: Event) {
        self.trace.push(event);
        self.by.push(Who::now());
    }
}

/// The tree as a running system sees it, and what happened to it.
#[derive(Clone, Debug)]
pub struct SimTree {
    inner: Arc<Mutex<Inner>>,
    /// Who uses it goes by the modes: all is his, and he is not root.
    as_owner: bool,
    /// Names that differ in case are one.
    folds: bool,
    /// When everything was changed.
    changed: Time,
    /// Not its content.
    inode_alone: bool,
    /// And nothing else was.
    changed_alone: Option<u64>,
    /// Their owner runs them.
    busy: Range<u64>,
    /// Somebody holds a lease of it, for so many tries.
    lease: Arc<Mutex<(u64, u32)>>,
    read_only: bool,
    /// Nobody may change them, or we may not.
    refused: Option<(Range<u64>, bool)>,
    /// A project: nothing is moved or linked into it that does not belong to it.
    project: Option<u64>,
    of_project: Arc<Mutex<Vec<u64>>>,
    /// Directories, each time that one was listed.
    listed: Arc<Mutex<Vec<u64>>>,
    pub write_back: Arc<WriteBack>,
    pub gate: Arc<Gate>,
    /// Its file system was mounted otherwise.
    pub unordered: Arc<AtomicBool>,
    /// An inode whose attributes find no room.
    pub full: Arc<AtomicU64>,
}

impl SimTree {
    pub fn new(now: State) -> SimTree {
        let inner = Arc::new(Mutex::new(Inner { now, trace: Vec::new(), by: Vec::new() }));
        SimTree {
            inner,
            as_owner: false,
            folds: false,
            changed: Time::default(),
            inode_alone: false,
            changed_alone: None,
            busy: 0..0,
            lease: Arc::default(),
            read_only: false,
            refused: None,
            project: None,
            of_project: Arc::default(),
            listed: Arc::default(),
            write_back: Arc::default(),
            gate: Arc::default(),
            unordered: Arc::default(),
            full: Arc::default(),
        }
    }

    pub fn changed_at(self, seconds: i64) -> SimTree {
        SimTree { changed: Time { seconds, nanoseconds: 0 }, ..self }
    }

    /// The inodes, and no content.
    pub fn touched_at(self, seconds: i64) -> SimTree {
        SimTree { inode_alone: true, ..self.changed_at(seconds) }
    }

    pub fn folding(self) -> SimTree {
        SimTree { folds: true, ..self }
    }

    pub fn owned(self) -> SimTree {
        SimTree { as_owner: true, ..self }
    }

    pub fn changed_alone(self, ino: u64) -> SimTree {
        SimTree { changed_alone: Some(ino), ..self }
    }

    pub fn listed(&self, dir: u64) -> usize {
        self.listed.lock().unwrap().iter().filter(|listed| **listed == dir).count()
    }

    pub fn busy(self, ino: u64) -> SimTree {
        self.all_busy(ino..ino + 1)
    }

    pub fn all_busy(self, busy: Range<u64>) -> SimTree {
        SimTree { busy, ..self }
    }

    pub fn read_only(self) -> SimTree {
        SimTree { read_only: true, ..self }
    }

    /// Changes of these fail with EPERM: they are immutable, or a right is lacking.
    pub fn refusing(self, inodes: Range<u64>, immutable: bool) -> SimTree {
        SimTree { refused: Some((inodes, immutable)), ..self }
    }

    /// A directory with a project, and so with a quota, of its own, and all that is made in it.
    pub fn of_another_project(self, dir: u64) -> SimTree {
        let of_project = self.with(dir, |i| i.names.values().copied().collect());
        SimTree {
            project: Some(dir),
            of_project: Arc::new(Mutex::new(of_project.unwrap_or_default())),
            ..self
        }
    }

    /// As ext4 and xfs have it for `chattr +P`.
    fn enters(&self, node: u64, dir: u64) -> Result<()> {
        let is_of_it = || self.of_project.lock().unwrap().contains(&node);
        match self.project == Some(dir) && !is_of_it() {
            true => Err(Errno::XDEV),
            false => Ok(()),
        }
    }

    fn is_changed(&self, ino: u64) -> bool {
        self.changed_alone.is_none_or(|alone| alone == ino)
    }

    pub fn leased(self, ino: u64, tries: u32) -> SimTree {
        SimTree { lease: Arc::new(Mutex::new((ino, tries))), ..self }
    }

    fn writable(&self, ino: u64) -> Result<()> {
        if self.read_only {
            return Err(Errno::ROFS);
        }
        let mut lease = self.lease.lock().unwrap();
        if lease.0 == ino && lease.1 > 0 {
            lease.1 -= 1;
            return Err(Errno::AGAIN);
        }
        if self.refused.as_ref().is_some_and(|(inodes, _)| inodes.contains(&ino)) {
            return Err(Errno::PERM);
        }
        if self.busy.contains(&ino) {
            return Err(Errno::TXTBSY);
        }
        let needed = |i: &Inode| if i.kind == Kind::Directory { 0o300 } else { 0o200 };
        match !self.as_owner || self.with(ino, |i| i.mode & needed(i) == needed(i))? {
            true => Ok(()),
            false => Err(Errno::ACCESS),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap()
    }

    pub fn now(&self) -> State {
        self.lock().now.clone()
    }

    pub fn event(&self, event: Event) {
        self.lock().add(event);
    }

    pub fn events(&self) -> usize {
        self.lock().trace.len()
    }

    /// The changes of one operation of two, from this event on.
    pub fn ops_of(&self, who: Who, start: usize) -> Vec<Op> {
        let inner = self.lock();
        let events = inner.trace.iter().zip(&inner.by).skip(start);
        let of = events.filter_map(|(event, by)| match event {
            Event::Op(op) if *by == who => Some(op.clone()),
            _ => None,
        });
        of.collect()
    }

    pub fn trace(&self) -> Vec<Event> {
        self.lock().trace.clone()
    }

    fn op(&self, op: Op) -> Result<()> {
        self.gate.pass();
        self.lock().apply(op);
        Ok(())
    }

    fn with<R>(&self, ino: u64, f: impl FnOnce(&Inode) -> R) -> Result<R> {
        self.lock().now.inodes.get(&ino).map(f).ok_or(Errno::STALE)
    }

    fn find(&self, dir: u64, name: &[u8]) -> Result<Option<u64>> {
        let same = |other: &[u8]| match self.folds {
            true => other.eq_ignore_ascii_case(name),
            false => other == name,
        };
        self.with(dir, |i| i.names.iter().find(|(other, _)| same(other)).map(|(_, ino)| *ino))
    }

    fn within(&self, dir: u64, ino: u64) -> bool {
        let state = &self.lock().now;
        let (mut at, mut steps) = (vec![ino], 0);
        while let Some(i) = at.pop() {
            steps += 1;
            if i == dir || steps > 1000 {
                return true;
            }
            let inode = &state.inodes[&i];
            at.extend(inode.names.values().filter(|c| state.inodes[c].kind == Kind::Directory));
        }
        false
    }

    pub fn is_within(&self, dir: u64, ino: u64) -> bool {
        self.within(dir, ino)
    }

    fn may_replace(&self, moved: Kind, old: u64) -> Result<()> {
        let (kind, empty) = self.with(old, |i| (i.kind, i.names.is_empty()))?;
        match (moved == Kind::Directory, kind == Kind::Directory) {
            (true, false) => Err(Errno::NOTDIR),
            (false, true) => Err(Errno::ISDIR),
            (true, true) if !empty => Err(Errno::NOTEMPTY),
            _ => Ok(()),
        }
    }
}

impl Tree for SimTree {
    type Node = u64;

    fn identity(&self) -> Result<TreeIdentity> {
        Ok(TreeIdentity {
            file_system: [7; 16],
            root: self.handle(&ROOT_INO)?,
            path: b"/tree".to_vec(),
        })
    }
    fn root(&self) -> u64 {
        ROOT_INO
    }
    fn keeps_order(&self) -> std::result::Result<(), Unordered> {
        match self.unordered.load(Ordering::Relaxed) {
            true => Err(Unordered::Unknown),
            false => Ok(()),
        }
    }
    fn open(&self, handle: &Handle, _: &[u8]) -> Result<Option<u64>> {
        let ino = u64::from_le_bytes(handle.0[..].try_into().map_err(|_| Errno::INVAL)?);
        Ok(self.lock().now.inodes.contains_key(&ino).then_some(ino))
    }
    fn handle(&self, node: &u64) -> Result<Handle> {
        Ok(Handle(node.to_le_bytes().to_vec()))
    }
    fn path_hint(&self, node: &u64) -> Vec<u8> {
        let state = &self.lock().now;
        let mut left = vec![(Vec::new(), ROOT_INO)];
        while let Some((path, ino)) = left.pop() {
            if ino == *node {
                return path;
            }
            for (name, child) in &state.inodes[&ino].names {
                left.push(([&path[..], b"/", name].concat(), *child));
            }
        }
        Vec::new()
    }
    fn born(&self, node: &u64) -> Result<Option<Time>> {
        self.with(*node, |i| Some(Time { seconds: i.born, nanoseconds: 0 }))
    }
    fn above(&self, dir: &u64) -> Result<Option<u64>> {
        let state = &self.lock().now;
        let has = |i: &Inode| i.names.values().any(|child| child == dir);
        Ok(state.inodes.iter().find(|(_, i)| has(i)).map(|(ino, _)| *ino))
    }
    fn folds_case(&self, dir: &u64) -> Result<bool> {
        Ok(self.folds && *dir != ROOT_INO)
    }
    fn lookup(&self, dir: &u64, name: &[u8]) -> Result<Option<u64>> {
        self.find(*dir, name)
    }
    fn names(&self, dir: &u64) -> Result<Vec<Vec<u8>>> {
        self.listed.lock().unwrap().push(*dir);
        self.with(*dir, |i| i.names.keys().cloned().collect())
    }
    fn attr(&self, node: &u64) -> Result<Attr> {
        let ino = *node;
        self.with(ino, |i| Attr {
            kind: i.kind,
            ino,
            mode: i.mode,
            nlink: i.nlink,
            uid: i.uid,
            gid: i.gid,
            device: 0,
            size: i.data.len() as u64,
            blocks: 0,
            block_size: 4096,
            atime: Time::default(),
            mtime: match self.is_changed(ino) && !self.inode_alone {
                true => self.changed.max(Time { seconds: i.mtime, nanoseconds: 0 }),
                false => Time { seconds: i.mtime, nanoseconds: 0 },
            },
            ctime: if self.is_changed(ino) { self.changed } else { Time::default() },
        })
    }
    fn join_project(&self, node: &u64, dir: &u64) -> Result<()> {
        assert_eq!(self.project, Some(*dir));
        self.of_project.lock().unwrap().push(*node);
        Ok(())
    }
    fn seals(&self, node: &u64) -> Result<Seals> {
        let refused = self.refused.as_ref().filter(|(inodes, _)| inodes.contains(node));
        let immutable = refused.is_some_and(|(_, immutable)| *immutable);
        Ok(Seals { immutable, ..Seals::default() })
    }
    fn create(&self, dir: &u64, name: &[u8], new: &New<'_>) -> Result<u64> {
        if self.find(*dir, name)?.is_some() {
            return Err(Errno::EXIST);
        }
        self.writable(*dir)?;
        // A file system that is full, for this name, and is not when it is made by another.
        if name == b"full" {
            return Err(Errno::NOSPC);
        }
        refused(name)?;
        let (dir, name, target) = (*dir, name.to_vec(), new.target.to_vec());
        let &New { kind, mode, uid, gid, .. } = new;
        self.gate.pass();
        let mut inner = self.lock();
        let ino = inner.now.next;
        inner.apply(Op::Create { dir, name, ino, kind, mode, uid, gid, target });
        Ok(ino)
    }
    fn link(&self, node: &u64, dir: &u64, name: &[u8]) -> Result<()> {
        if self.find(*dir, name)?.is_some() {
            return Err(Errno::EXIST);
        }
        match self.with(*node, |i| (i.kind, i.nlink))? {
            (Kind::Directory, _) => return Err(Errno::PERM),
            (_, 0) => return Err(Errno::NOENT),
            _ => refused(name)?,
        }
        self.writable(*dir)?;
        self.enters(*node, *dir)?;
        self.op(Op::Link { ino: *node, dir: *dir, name: name.to_vec() })
    }
    fn unlink(&self, dir: &u64, name: &[u8], directory: bool) -> Result<()> {
        let ino = self.find(*dir, name)?.ok_or(Errno::NOENT)?;
        let (kind, empty) = self.with(ino, |i| (i.kind, i.names.is_empty()))?;
        match (directory, kind == Kind::Directory) {
            (true, false) => return Err(Errno::NOTDIR),
            (false, true) => return Err(Errno::ISDIR),
            (true, true) if !empty => return Err(Errno::NOTEMPTY),
            _ => {}
        }
        self.writable(*dir)?;
        self.op(Op::Unlink { dir: *dir, name: name.to_vec() })
    }
    fn rename(&self, from: (&u64, &[u8]), to: (&u64, &[u8]), how: RenameHow) -> Result<()> {
        let moved = self.find(*from.0, from.1)?.ok_or(Errno::NOENT)?;
        let old = self.find(*to.0, to.1)?;
        let kind = self.with(moved, |i| i.kind)?;
        if kind == Kind::Directory && self.within(*to.0, moved) {
            return Err(Errno::INVAL);
        }
        match (how, old) {
            // Some file systems have none, and this is one.
            (RenameHow::Whiteout, _) => return Err(Errno::INVAL),
            (RenameHow::NoReplace, Some(_)) => return Err(Errno::EXIST),
            (RenameHow::Exchange, None) => return Err(Errno::NOENT),
            (RenameHow::Exchange, Some(old)) if self.within(*from.0, old) => {
                return Err(Errno::INVAL)
            }
            (RenameHow::Replace, Some(old)) => self.may_replace(kind, old)?,
            _ => {}
        }
        refused(to.1)?;
        self.writable(*from.0)?;
        self.writable(*to.0)?;
        if kind == Kind::Directory && from.0 != to.0 {
            self.writable(moved)?;
        }
        self.enters(moved, *to.0)?;
        let exchange = how == RenameHow::Exchange;
        let (from, to) = ((*from.0, from.1.to_vec()), (*to.0, to.1.to_vec()));
        self.op(Op::Rename { from, to, exchange })
    }
    fn read_link(&self, node: &u64) -> Result<Vec<u8>> {
        self.with(*node, |i| i.target.clone())
    }
    fn read(&self, node: &u64, offset: u64, bytes: &mut [u8]) -> Result<usize> {
        self.with(*node, |i| {
            let from = (offset as usize).min(i.data.len());
            let n = bytes.len().min(i.data.len() - from);
            bytes[..n].copy_from_slice(&i.data[from..from + n]);
            n
        })
    }
    fn write(&self, node: &u64, offset: u64, bytes: &[u8]) -> Result<()> {
        fits(offset.saturating_add(bytes.len() as u64))?;
        self.writable(*node)?;
        self.op(Op::Write { ino: *node, offset: offset as usize, bytes: bytes.to_vec() })
    }
    fn truncate(&self, node: &u64, size: u64) -> Result<()> {
        fits(size)?;
        self.writable(*node)?;
        self.op(Op::Truncate { ino: *node, size: size as usize })
    }
    fn allocate(&self, node: &u64, mode: Allocate, offset: u64, length: u64) -> Result<()> {
        fits(offset.saturating_add(length))?;
        self.writable(*node)?;
        let (ino, offset, end) = (*node, offset as usize, (offset + length) as usize);
        let size = self.with(ino, |i| i.data.len())?;
        match mode {
            Allocate::KeepSize => Ok(()),
            Allocate::Extend => {
                self.op(Op::Zero { ino, offset: end.min(size).max(size), end, grow: true })
            }
            Allocate::Zero => self.op(Op::Zero { ino, offset, end, grow: true }),
            Allocate::Punch => self.op(Op::Zero { ino, offset, end, grow: false }),
            Allocate::ZeroKeepSize => Err(Errno::OPNOTSUPP),
        }
    }
    fn set_attr(&self, node: &u64, set: &SetAttr) -> Result<()> {
        if self.full.load(Ordering::Relaxed) == *node {
            return Err(Errno::NOSPC);
        }
        self.op(Op::SetAttr { ino: *node, set: *set })
    }
    fn xattr(&self, node: &u64, name: &[u8]) -> Result<Option<Vec<u8>>> {
        self.with(*node, |i| i.xattrs.get(name).cloned())
    }
    fn set_xattr(&self, node: &u64, name: &[u8], value: Option<&[u8]>) -> Result<()> {
        self.writable(*node)?;
        let (name, value) = (name.to_vec(), value.map(<[u8]>::to_vec));
        self.op(Op::Xattr { ino: *node, name, value })
    }
    fn is_intact(&self, _node: &u64) -> Result<bool> {
        match self.write_back.take() {
            true => Err(Errno::IO),
            false => Ok(true),
        }
    }
    fn sync(&self, node: &u64) -> Result<()> {
        let failed = self.write_back.take();
        if failed || self.write_back.take_hold() {
            self.write_back.linger();
        }
        if failed {
            return Err(Errno::IO);
        }
        self.event(Event::SyncFile(*node));
        Ok(())
    }
    fn sync_all(&self) -> Result<()> {
        self.event(Event::SyncAll);
        Ok(())
    }
}
