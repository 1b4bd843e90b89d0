// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the entries of a log say, taken together: which inode each fid is, which names it
//! is to have, and what its content and its attributes are to be.
//!
//! The entries may be anybody's: what contradicts itself is refused.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::planted::{planted, Bug};
use super::{bad, parse, printable, ReplayError, Result, STAGING};
use crate::mark;
use crate::record::{Allocate, Entry, Fid, Kind, Record, SetAttr, Time, NONE, ROOT};
use crate::tree::{TreeIdentity, ACCESS_ACL};

/// Where a name is: a directory, and the name in it.
pub type Place<'a> = (Fid, &'a [u8]);

/// A file's content is changed so.
#[derive(Clone, Copy, Debug)]
pub enum Change<'a> {
    Write { offset: u64, bytes: &'a [u8], size: u64 },
    Truncate { size: u64 },
    Allocate { mode: Allocate, offset: u64, length: u64 },
}

/// How an inode was made.
#[derive(Clone, Copy, Debug)]
pub struct Made<'a> {
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub device: u64,
    pub target: &'a [u8],
}

/// An inode that the log names.
#[derive(Clone, Debug)]
pub struct File<'a> {
    pub kind: Kind,
    pub handle: Option<&'a [u8]>,
    /// Where it was seen.
    pub hint: &'a [u8],
    /// It was made since the tree's last sync.
    pub made: Option<Made<'a>>,
    /// The tree's own sync made it durable: it cannot be made anew from the log.
    pub synced: bool,
    /// The entry that last took a name from it.
    pub lost_name_by: Option<u64>,
    /// Names that it is to have; others may be that the log does not speak of.
    pub names: Vec<Place<'a>>,
    pub content: Vec<Change<'a>>,
    pub attr: SetAttr,
    /// The time of modification is that of the content, and nobody's wish.
    pub mtime_of_content: bool,
    pub xattrs: BTreeMap<&'a [u8], Option<&'a [u8]>>,
    /// The access ACL was set after the mode, which it changes; otherwise the mode came
    /// last, which changes the ACL.
    pub acl_last: bool,
}

impl File<'_> {
    fn modified(&mut self, at: Time) {
        self.attr.mtime = Some(at);
        self.mtime_of_content = true;
    }

    /// The log speaks of more than that it is there, and of names in it.
    pub fn is_changed(&self) -> bool {
        let mut attr = self.attr;
        if self.has_times_of_names() {
            attr.mtime = None;
        }
        !self.content.is_empty() || attr != SetAttr::default() || !self.xattrs.is_empty()
    }

    /// It was truncated to this size since the tree's last sync.
    pub fn was_cut_to(&self, size: u64) -> bool {
        self.content.iter().any(|c| matches!(c, Change::Truncate { size: to } if *to == size))
    }

    /// A directory whose time of modification is that of a name in it.
    pub fn has_times_of_names(&self) -> bool {
        self.kind == Kind::Directory && self.mtime_of_content
    }
}

/// A name that the log speaks of.
#[derive(Clone, Debug, Default)]
pub struct Name {
    /// Who had it at any time since the tree's last sync.
    pub ever: Vec<Fid>,
    /// Who is to have it.
    pub now: Option<Fid>,
}

/// The last state that the log describes.
#[derive(Debug, Default)]
pub struct History<'a> {
    pub trees: Vec<TreeIdentity>,
    pub files: BTreeMap<Fid, File<'a>>,
    pub names: BTreeMap<Place<'a>, Name>,
    pub operations: u64,
    /// Nanoseconds since 1970.
    pub last_time_ns: u64,
}

impl<'a> History<'a> {
    /// `refused` are entries whose operations are known to have failed, besides those that
    /// the log itself takes back.  What they would have taken a name from has it, wherever
    /// an earlier replay moved it.
    pub fn of(entries: &'a [Vec<u8>], refused: &HashSet<u64>) -> Result<History<'a>> {
        let mut void = HashSet::new();
        for body in entries {
            let entry = parse(body)?;
            for record in entry.records() {
                if let Record::Void { number } = bad(entry.number, record)? {
                    if !planted(Bug::VoidIgnored) {
                        void.insert(number);
                    }
                }
            }
        }
        let mut history = History::default();
        let root = file(Kind::Directory);
        history.files.insert(ROOT, root);
        for body in entries {
            let entry = parse(body)?;
            history.last_time_ns = history.last_time_ns.max(entry.time_ns);
            for record in entry.records() {
                let record = bad(entry.number, record)?;
                if record.is_operation() && void.contains(&entry.number) {
                    // Later records may name what it would have made only by a Bind.
                    continue;
                }
                match refused.contains(&entry.number) && record.is_operation() {
                    true => history.stays(entry.number, &record)?,
                    false => history.take(&entry, &record)?,
                }
            }
        }
        history.settle()?;
        Ok(history)
    }

    fn take(&mut self, entry: &Entry<'a>, record: &Record<'a>) -> Result<()> {
        let (number, at) = (entry.number, time(entry.time_ns));
        match *record {
            Record::Tree { file_system, root, path } => {
                let root = crate::tree::Handle(root.to_vec());
                let tree = TreeIdentity { file_system, root, path: path.to_vec() };
                if !self.trees.contains(&tree) {
                    self.trees.push(tree);
                }
                return Ok(());
            }
            Record::Bind { fid, kind, handle, path } => {
                return self.bind(number, fid, kind, handle, path)
            }
            Record::Void { .. } | Record::Alive => return Ok(()),
            Record::Create { dir, name, fid, kind, mode, uid, gid, device, target } => {
                if self.files.contains_key(&fid) {
                    return says(number, format!("file {fid} is made a second time"));
                }
                let made = Made { mode, uid, gid, device, target };
                let attr = SetAttr {
                    mode: (kind != Kind::Symlink).then_some(mode),
                    uid: Some(uid),
                    gid: Some(gid),
                    ..SetAttr::default()
                };
                self.files.insert(fid, File { made: Some(made), attr, ..file(kind) });
                self.name(number, (dir, name), NONE, Some(fid))?;
                self.file(number, fid)?.modified(at);
                self.file(number, dir)?.modified(at);
            }
            Record::Link { fid, dir, name } => {
                if self.file(number, fid)?.kind == Kind::Directory {
                    return says(number, format!("directory {fid} gets a second name"));
                }
                self.name(number, (dir, name), NONE, Some(fid))?;
                self.file(number, dir)?.modified(at);
            }
            Record::Unlink { dir, name, fid } => {
                if planted(Bug::UnlinkForgotten) {
                    return Ok(());
                }
                self.name(number, (dir, name), fid, None)?;
                self.file(number, fid)?.lost_name_by = Some(number);
                self.file(number, dir)?.modified(at);
            }
            Record::Rename { from_dir, from, to_dir, to, fid, replaced, exchange } => {
                let back = (exchange && !planted(Bug::ExchangeHalf)).then_some(replaced);
                self.name(number, (from_dir, from), fid, back)?;
                self.name(number, (to_dir, to), replaced, Some(fid))?;
                self.file(number, from_dir)?.modified(at);
                self.file(number, to_dir)?.modified(at);
                if replaced != NONE && !exchange {
                    self.file(number, replaced)?.lost_name_by = Some(number);
                    // Files change places before one loses its name.
                    let way = self.names.entry((from_dir, from)).or_default();
                    if !planted(Bug::ReplacedOnItsWay) {
                        way.ever.push(replaced);
                    }
                }
            }
            Record::Data { fid, offset, size, mtime, bytes } => {
                let file = self.content(number, fid)?;
                file.content.push(Change::Write { offset, bytes, size });
                file.modified(mtime);
            }
            Record::Truncate { fid, size } => {
                let file = self.content(number, fid)?;
                if size == 0 {
                    file.content.clear();
                }
                if !planted(Bug::SizeNotRestored) {
                    file.content.push(Change::Truncate { size });
                }
                file.modified(at);
            }
            Record::Allocate { fid, mode, offset, length } => {
                let file = self.content(number, fid)?;
                file.content.push(Change::Allocate { mode, offset, length });
                if mode != Allocate::KeepSize {
                    file.modified(at);
                }
            }
            Record::Attr { fid, set } => {
                let file = self.file(number, fid)?;
                let a = &mut file.attr;
                file.acl_last &= set.mode.is_none();
                file.mtime_of_content &= set.mtime.is_none();
                *a = SetAttr {
                    mode: set.mode.or(a.mode),
                    uid: set.uid.or(a.uid),
                    gid: set.gid.or(a.gid),
                    atime: set.atime.or(a.atime),
                    mtime: set.mtime.or(a.mtime),
                };
            }
            Record::Xattr { fid, name, value } => {
                let file = self.file(number, fid)?;
                file.acl_last |= name == ACCESS_ACL;
                file.xattrs.insert(name, value);
            }
            Record::Synced { fid } => {
                let file = self.content(number, fid)?;
                if !planted(Bug::SyncedIgnored) {
                    file.content.clear();
                    if std::mem::take(&mut file.mtime_of_content) {
                        file.attr.mtime = None;
                    }
                }
                file.synced = true;
            }
        }
        self.operations += 1;
        Ok(())
    }

    /// The operation was not done: names are as they were.
    fn stays(&mut self, number: u64, record: &Record<'a>) -> Result<()> {
        match *record {
            _ if planted(Bug::LeftOutLosesName) => Ok(()),
            Record::Unlink { dir, name, fid } => self.name(number, (dir, name), fid, Some(fid)),
            Record::Rename { from_dir, from, to_dir, to, fid, replaced, .. } => {
                self.name(number, (from_dir, from), fid, Some(fid))?;
                let there = (replaced != NONE).then_some(replaced);
                self.name(number, (to_dir, to), replaced, there)
            }
            _ => Ok(()),
        }
    }

    fn bind(
        &mut self,
        number: u64,
        fid: Fid,
        kind: Kind,
        handle: &'a [u8],
        path: &'a [u8],
    ) -> Result<()> {
        let file = self.files.entry(fid).or_insert_with(|| file(kind));
        if file.kind != kind || file.handle.is_some_and(|known| known != handle) {
            return says(number, format!("file {fid} is another one than before"));
        }
        file.handle = Some(handle);
        file.hint = path;
        Ok(())
    }

    fn file(&mut self, number: u64, fid: Fid) -> Result<&mut File<'a>> {
        let unknown = || inconsistent(number, format!("file {fid} is not said to be any"));
        self.files.get_mut(&fid).ok_or_else(unknown)
    }

    fn content(&mut self, number: u64, fid: Fid) -> Result<&mut File<'a>> {
        let file = self.file(number, fid)?;
        match file.kind {
            Kind::File => Ok(file),
            _ => says(number, format!("{fid} is no file, and has content")),
        }
    }

    /// A name that `was` had ([`NONE`]: nobody) is from now on that of `now`.
    fn name(&mut self, number: u64, place: Place<'a>, was: Fid, now: Option<Fid>) -> Result<()> {
        let shown = printable(place.1);
        if self.file(number, place.0)?.kind != Kind::Directory {
            return says(number, format!("'{shown}' is in {}, which is no directory", place.0));
        }
        if place == (ROOT, STAGING) || mark::is_own(place.1) {
            return says(number, format!("'{shown}' is the replay's own"));
        }
        for fid in now.into_iter().chain((was != NONE).then_some(was)) {
            if self.file(number, fid)?.kind == Kind::Directory && fid == ROOT {
                return says(number, format!("'{shown}' is the root"));
            }
        }
        let was = (was != NONE).then_some(was);
        let first = !self.names.contains_key(&place);
        let name = self.names.entry(place).or_default();
        if !first && name.now != was {
            let had = |f: Option<Fid>| f.map_or("nobody".into(), |f| format!("file {f}"));
            let (known, told) = (had(name.now), had(was));
            return says(number, format!("'{shown}' was of {told}, and before of {known}"));
        }
        for fid in was.into_iter().chain(now) {
            if name.ever.last() != Some(&fid) {
                name.ever.push(fid);
            }
        }
        name.now = now;
        Ok(())
    }

    /// The names of each file; directories have one each, and lie in no circle.
    fn settle(&mut self) -> Result<()> {
        for (place, name) in &self.names {
            let Some(file) = name.now.and_then(|fid| self.files.get_mut(&fid)) else { continue };
            file.names.push(*place);
            if file.kind == Kind::Directory && file.names.len() > 1 {
                let name = printable(place.1);
                return says(0, format!("directory '{name}' has two names"));
            }
        }
        let mut safe = HashSet::new();
        for &start in self.files.keys() {
            let (mut at, mut way) = (start, HashSet::new());
            while !safe.contains(&at) {
                if !way.insert(at) {
                    return says(0, format!("directory {at} is within itself"));
                }
                match self.files[&at].names.first() {
                    Some(&(dir, _)) => at = dir,
                    None => break,
                }
            }
            safe.extend(way);
        }
        Ok(())
    }

    /// Where a file is to be, in words.
    pub fn path(&self, fid: Fid) -> String {
        let (mut at, mut parts, mut length) = (fid, Vec::new(), 0);
        while let Some(file) = self.files.get(&at) {
            if at == ROOT || length > 4096 {
                break;
            }
            match file.names.first() {
                Some(&(dir, name)) => {
                    length += name.len();
                    parts.push(printable(name));
                    at = dir;
                }
                None => {
                    let hint = printable(file.hint);
                    parts.push(if hint.is_empty() { format!("(file {at})") } else { hint });
                    break;
                }
            }
        }
        parts.reverse();
        if parts.is_empty() {
            return ".".into();
        }
        parts.join("/")
    }

    /// A place, in words.
    pub fn place(&self, (dir, name): Place<'_>) -> String {
        match dir {
            ROOT => printable(name),
            _ => format!("{}/{}", self.path(dir), printable(name)),
        }
    }

    /// Names to be, by directory.
    pub fn by_directory(&self) -> HashMap<Fid, Vec<(&'a [u8], Fid)>> {
        let mut by: HashMap<Fid, Vec<_>> = HashMap::new();
        for (&(dir, name), state) in &self.names {
            if let Some(fid) = state.now {
                by.entry(dir).or_default().push((name, fid));
            }
        }
        by
    }
}

fn file<'a>(kind: Kind) -> File<'a> {
    File {
        kind,
        handle: None,
        hint: b"",
        made: None,
        synced: false,
        lost_name_by: None,
        names: Vec::new(),
        content: Vec::new(),
        attr: SetAttr::default(),
        mtime_of_content: false,
        xattrs: BTreeMap::new(),
        acl_last: false,
    }
}

fn time(ns: u64) -> Time {
    Time { seconds: (ns / 1_000_000_000) as i64, nanoseconds: (ns % 1_000_000_000) as u32 }
}

fn inconsistent(number: u64, what: String) -> ReplayError {
    ReplayError::Inconsistent { number, what }
}

fn says<T>(number: u64, what: String) -> Result<T> {
    Err(inconsistent(number, what))
}
