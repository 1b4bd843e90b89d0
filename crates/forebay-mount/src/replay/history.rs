// SPDX-License-Identifier: MIT OR Apache-2.0
//! The sum of a log's entries: the inode of each fid, the names that it should have, and its
//! content and attributes.
//!
//! # Contradictions
//! The entries record what the mount saw.  A program that changes the tree outside the mount
//! (through a directory that was open before, or through another mount of the file system)
//! makes later entries contradict earlier ones; and the entries may be forged.  A contradiction
//! is reported ([`History::disputes`]) and affects only what it touches:
//!
//! - For a name the last observation of the mount holds.  A file that had it by an earlier
//!   entry has lost it in an unknown way: it is *displaced* until the mount sees it at a name
//!   that no entry gave it.  It may still have an unknown name, whatever names entries take
//!   from it.
//! - An inode that was made since the tree's last sync has no names but those that the log
//!   gave it.  If the mount sees it at another one, it was linked or moved there, and its
//!   other names are *doubtful*: the tree's state there stays, with or without the name.
//! - A directory has one name, the last.  One that would lie within itself loses the oldest
//!   name of the cycle.
//! - A record about an inode that no entry has introduced, or about the content of an inode
//!   that is no file, is ignored.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::planted::{planted, Bug};
use super::{bad, is_staging, parse, printable, Result};
use crate::acl;
use crate::mark;
use crate::record::{Allocate, Entry, Fid, Kind, Record, SetAttr, Time, NONE, ROOT};
use crate::tree::{is_acl, New, TreeIdentity, ACCESS_ACL};

/// The place of a name: a directory, and the name in it.
pub type Place<'a> = (Fid, &'a [u8]);

/// A change of a file's content.
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

/// The rights of users who are not the owner.
pub const OTHERS: u32 = 0o077;

/// An inode that the log names.
#[derive(Clone, Debug)]
pub struct File<'a> {
    pub kind: Kind,
    pub handle: Option<&'a [u8]>,
    /// The time when the file system made it.
    pub born: Option<Time>,
    /// The path at which the file was seen.
    pub hint: &'a [u8],
    /// Set if the file was made since the tree's last sync.
    pub made: Option<Made<'a>>,
    /// The tree's own sync made it durable, so the log alone cannot restore it.
    pub synced: bool,
    /// The entry that last removed a name from it.
    pub lost_name_by: Option<u64>,
    /// It lost a name to a contradiction and was not seen elsewhere since.
    pub displaced: bool,
    /// The names that it should have.  It may have others that the log does not know.
    pub names: Vec<Place<'a>>,
    pub content: Vec<Change<'a>>,
    pub attr: SetAttr,
    /// The modification time is that of the content, and was not set explicitly.
    pub mtime_of_content: bool,
    /// The latest time that the clock had told the mount when it got that time: what is later in the
    /// tree came after, also if the clock was set back.
    pub timed: Time,
    pub xattrs: BTreeMap<&'a [u8], Option<&'a [u8]>>,
    /// The access ACL was set after the mode and changed it; otherwise the mode came last and
    /// changed the ACL.
    pub acl_last: bool,
    /// The bits that the mode has by an access ACL that was set after it; they stay when that is
    /// removed.
    pub acl_mode: Option<u32>,
}

impl<'a> File<'a> {
    fn modified(&mut self, at: Time, timed: Time) {
        self.attr.mtime = Some(at);
        self.timed = timed;
        self.mtime_of_content = true;
    }

    /// Whether entries removed each of its names, so that it has none that the log does not
    /// know.
    pub fn is_removed(&self) -> bool {
        let displaced = self.displaced && !planted(Bug::DisplacedForgotten);
        self.lost_name_by.is_some() && !displaced
    }

    /// A mode, as the last access ACL has left it.
    pub fn with_acl(&self, mode: u32) -> u32 {
        mode & !0o777 | self.acl_mode.unwrap_or(mode & 0o777)
    }

    /// Whether the log sets or removes an ACL of it.
    pub fn has_acl(&self) -> bool {
        self.xattrs.keys().any(|name| is_acl(name))
    }

    /// The inode as a replay makes it.  A directory gets its attributes last of all, and what lies in it
    /// gets its name before: if anybody loses a right meanwhile, it is nobody's but the replay's.
    pub fn made_first(&self) -> Option<Made<'a>> {
        let made = self.made?;
        let (mode, uid, gid) = (self.attr.mode, self.attr.uid, self.attr.gid);
        let last = self.with_acl(mode.unwrap_or(made.mode));
        let same = uid.is_none_or(|uid| uid == made.uid) && gid.is_none_or(|gid| gid == made.gid);
        let loses = made.mode & OTHERS & !last != 0 || !same;
        Some(match self.kind == Kind::Directory && loses {
            true => Made { mode: made.mode & !OTHERS, uid: New::plain(self.kind, 0).uid, ..made },
            false => made,
        })
    }

    /// Whether the log has more of it than its existence and the names in it.
    pub fn is_changed(&self) -> bool {
        let mut attr = self.attr;
        if self.has_times_of_names() {
            attr.mtime = None;
        }
        !self.content.is_empty() || attr != SetAttr::default() || !self.xattrs.is_empty()
    }

    /// Whether it was truncated to this size since the tree's last sync.
    pub fn was_cut_to(&self, size: u64) -> bool {
        self.content.iter().any(|c| matches!(c, Change::Truncate { size: to } if *to == size))
    }

    /// Whether it is a directory whose modification time is that of a name in it.
    pub fn has_times_of_names(&self) -> bool {
        self.kind == Kind::Directory && self.mtime_of_content
    }
}

/// A name that the log mentions.
#[derive(Clone, Debug, Default)]
pub struct Name {
    /// The entry that last mentioned it.
    since: u64,
    /// The file that should have the name may or may not have it: the tree's entry stays.
    pub doubtful: bool,
    /// All files that had the name since the tree's last sync.
    pub ever: Vec<Fid>,
    /// The file that should have the name.
    pub now: Option<Fid>,
}

/// The last state that the log describes.
#[derive(Debug, Default)]
pub struct History<'a> {
    pub trees: Vec<TreeIdentity>,
    pub files: BTreeMap<Fid, File<'a>>,
    pub names: BTreeMap<Place<'a>, Name>,
    pub operations: u64,
    /// The number of the last entry.
    pub last_number: u64,
    /// Nanoseconds since 1970.
    pub last_time_ns: u64,
    /// The entries that contradict earlier ones, in words.
    pub disputes: Vec<String>,
    /// The names of inodes, as [`Name::now`] has them.
    places: HashMap<Fid, BTreeSet<Place<'a>>>,
    /// The names that inodes got since they were last seen elsewhere: no other one is certain.
    certain: HashMap<Fid, Vec<Place<'a>>>,
    /// Names that were looked at because their inode was seen elsewhere, for the test of how this
    /// grows.
    #[cfg_attr(not(test), allow(dead_code))]
    pub steps: u64,
}

/// The reason why a record makes no sense.
type Sense<T> = std::result::Result<T, String>;

impl<'a> History<'a> {
    /// `refused` are entries whose operations are known to have failed, in addition to those
    /// that the log itself revokes.  A name that such an operation would have removed stays
    /// with its file, wherever an earlier replay moved it.
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
            history.last_number = history.last_number.max(entry.number);
            for record in entry.records() {
                let record = bad(entry.number, record)?;
                if record.is_operation() && void.contains(&entry.number) {
                    // Later records refer to an inode that it would have made only by a Bind.
                    continue;
                }
                let makes_sense = match refused.contains(&entry.number) && record.is_operation() {
                    true => history.stays(entry.number, &record),
                    false => history.take(&entry, &record),
                };
                if let Err(what) = makes_sense {
                    history.dispute(entry.number, &what);
                }
            }
        }
        history.settle();
        Ok(history)
    }

    /// The tree has all names and attributes that the log knows, and later ones.  What is left is
    /// the content of the files that are there.
    pub fn content_alone(&mut self, is_there: impl Fn(Fid) -> bool) {
        self.names.clear();
        self.places.clear();
        for (fid, old) in &mut self.files {
            let File { kind, handle, born, hint, synced, .. } = *old;
            let mut content = std::mem::take(&mut old.content);
            if !is_there(*fid) || planted(Bug::ContentForgotten) {
                content.clear();
            }
            *old = File { handle, born, hint, synced, content, ..file(kind) };
        }
    }

    fn dispute(&mut self, number: u64, what: &str) {
        self.disputes.push(format!("entry {number}: {what}"));
    }

    fn take(&mut self, entry: &Entry<'a>, record: &Record<'a>) -> Sense<()> {
        let (number, at) = (entry.number, time(entry.time_ns));
        let set_back = self.last_time_ns > entry.time_ns && !planted(Bug::ClockGoesOn);
        let told = if set_back { time(self.last_time_ns) } else { at };
        match *record {
            Record::Tree { file_system, root, path } => {
                let root = crate::tree::Handle(root.to_vec());
                let tree = TreeIdentity { file_system, root, path: path.to_vec() };
                if !self.trees.contains(&tree) {
                    self.trees.push(tree);
                }
                return Ok(());
            }
            Record::Bind { fid, kind, handle, path } => return self.bind(fid, kind, handle, path),
            Record::Born { fid, time } => {
                let born = &mut self.file(fid)?.born;
                return match *born.get_or_insert(time) == time {
                    true => Ok(()),
                    false => Err(format!("file {fid} was made at another time than before")),
                };
            }
            Record::Latest { time_ns } => {
                self.last_time_ns = self.last_time_ns.max(time_ns);
                return Ok(());
            }
            Record::Void { .. } | Record::Alive => return Ok(()),
            Record::Create { dir, name, fid, kind, mode, uid, gid, device, target } => {
                if self.files.contains_key(&fid) {
                    return Err(format!("file {fid} is made a second time"));
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
                self.file(fid)?.modified(at, told);
                self.file(dir)?.modified(at, told);
            }
            Record::Link { fid, dir, name } => {
                if self.file(fid)?.kind == Kind::Directory {
                    return Err(format!("directory {fid} gets a second name"));
                }
                self.name(number, (dir, name), NONE, Some(fid))?;
                self.file(dir)?.modified(at, told);
            }
            Record::Unlink { dir, name, fid } => {
                if planted(Bug::UnlinkForgotten) {
                    return Ok(());
                }
                self.name(number, (dir, name), fid, None)?;
                self.file(fid)?.lost_name_by = Some(number);
                self.file(dir)?.modified(at, told);
            }
            Record::Rename { from_dir, from, to_dir, to, fid, replaced, exchange } => {
                let back = (exchange && !planted(Bug::ExchangeHalf)).then_some(replaced);
                self.had(number, (from_dir, from), fid)?;
                self.had(number, (to_dir, to), replaced)?;
                self.has(number, (from_dir, from), back)?;
                self.has(number, (to_dir, to), Some(fid))?;
                self.file(from_dir)?.modified(at, told);
                self.file(to_dir)?.modified(at, told);
                if replaced != NONE && !exchange {
                    self.file(replaced)?.lost_name_by = Some(number);
                    // Files trade places before one of them loses its name.
                    let way = self.names.entry((from_dir, from)).or_default();
                    if !planted(Bug::ReplacedOnItsWay) {
                        way.ever.push(replaced);
                    }
                }
            }
            Record::Data { fid, offset, size, mtime, bytes } => {
                let file = self.content(fid)?;
                file.content.push(Change::Write { offset, bytes, size });
                // Another write may have come before the entry.
                file.modified(mtime, if set_back { told.max(mtime) } else { mtime });
            }
            Record::Truncate { fid, size } => {
                let file = self.content(fid)?;
                if size == 0 {
                    file.content.clear();
                }
                if !planted(Bug::SizeNotRestored) {
                    file.content.push(Change::Truncate { size });
                }
                file.modified(at, told);
            }
            Record::Allocate { fid, mode, offset, length } => {
                let file = self.content(fid)?;
                file.content.push(Change::Allocate { mode, offset, length });
                file.modified(at, told);
            }
            Record::Attr { fid, set } => {
                let file = self.file(fid)?;
                let a = &mut file.attr;
                if set.mode.is_some() {
                    (file.acl_last, file.acl_mode) = (false, None);
                }
                if set.mtime.is_some() {
                    (file.timed, file.mtime_of_content) = (told, false);
                }
                *a = SetAttr {
                    mode: set.mode.or(a.mode),
                    uid: set.uid.or(a.uid),
                    gid: set.gid.or(a.gid),
                    atime: set.atime.or(a.atime),
                    mtime: set.mtime.or(a.mtime),
                };
            }
            Record::Xattr { fid, name, value } => {
                let file = self.file(fid)?;
                file.acl_last |= is_acl(name);
                if name == ACCESS_ACL {
                    file.acl_mode = value.and_then(acl::mode_of).or(file.acl_mode);
                }
                file.xattrs.insert(name, value);
            }
            Record::Synced { fid } => {
                let file = self.content(fid)?;
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

    /// The operation was not carried out: the names are unchanged.
    fn stays(&mut self, number: u64, record: &Record<'a>) -> Sense<()> {
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

    fn bind(&mut self, fid: Fid, kind: Kind, handle: &'a [u8], path: &'a [u8]) -> Sense<()> {
        let file = self.files.entry(fid).or_insert_with(|| file(kind));
        if file.kind != kind || file.handle.is_some_and(|known| known != handle) {
            return Err(format!("file {fid} is another one than before"));
        }
        file.handle = Some(handle);
        file.hint = path;
        Ok(())
    }

    fn file(&mut self, fid: Fid) -> Sense<&mut File<'a>> {
        self.files.get_mut(&fid).ok_or_else(|| format!("file {fid} is not said to be any"))
    }

    fn content(&mut self, fid: Fid) -> Sense<&mut File<'a>> {
        let file = self.file(fid)?;
        match file.kind {
            Kind::File => Ok(file),
            _ => Err(format!("{fid} is no file, and has content")),
        }
    }

    /// A name that `was` had ([`NONE`]: no inode) belongs to `now` from here on.
    fn name(&mut self, number: u64, place: Place<'a>, was: Fid, now: Option<Fid>) -> Sense<()> {
        self.had(number, place, was)?;
        self.has(number, place, now)
    }

    fn may_name(&mut self, place: Place<'a>, fid: Option<Fid>) -> Sense<()> {
        let shown = printable(place.1);
        if self.file(place.0)?.kind != Kind::Directory {
            return Err(format!("'{shown}' is in {}, which is no directory", place.0));
        }
        if (place.0 == ROOT && is_staging(place.1)) || mark::is_own(place.1) {
            return Err(format!("'{shown}' is the replay's own"));
        }
        match fid {
            Some(ROOT) => Err(format!("'{shown}' is the root")),
            Some(fid) => self.file(fid).map(drop),
            None => Ok(()),
        }
    }

    /// Before the operation the mount saw `was` there ([`NONE`]: no inode).
    fn had(&mut self, number: u64, place: Place<'a>, was: Fid) -> Sense<()> {
        let was = (was != NONE).then_some(was);
        self.may_name(place, was)?;
        let known = self.names.get(&place).map(|name| name.now);
        if known == Some(was) {
            return Ok(());
        }
        if let Some(known) = known.filter(|_| !planted(Bug::ContradictionIgnored)) {
            let shown = |f: Option<Fid>| f.map_or("nobody".into(), |f| format!("file {f}"));
            let (name, before, told) = (printable(place.1), shown(known), shown(was));
            self.dispute(number, &format!("'{name}' was of {told}, and before of {before}"));
            if let Some(displaced) = known.and_then(|fid| self.files.get_mut(&fid)) {
                displaced.displaced = true;
            }
        }
        if let Some(fid) = was {
            // So the file went there.
            self.files.entry(fid).and_modify(|file| file.displaced = false);
            self.seen_elsewhere(number, fid, place);
            self.names.entry(place).or_default().ever.push(fid);
        }
        self.set(number, place, was);
        Ok(())
    }

    /// After the operation `now` is there.
    fn has(&mut self, number: u64, place: Place<'a>, now: Option<Fid>) -> Sense<()> {
        self.may_name(place, now)?;
        self.set(number, place, now);
        let ever = &mut self.names.entry(place).or_default().ever;
        if let Some(fid) = now.filter(|fid| ever.last() != Some(fid)) {
            ever.push(fid);
        }
        Ok(())
    }

    fn set(&mut self, number: u64, place: Place<'a>, now: Option<Fid>) {
        let name = self.names.entry(place).or_default();
        let was_doubtful = std::mem::replace(&mut name.doubtful, false);
        name.since = number;
        let before = std::mem::replace(&mut name.now, now);
        if let Some(places) = before.and_then(|fid| self.places.get_mut(&fid)) {
            places.remove(&place);
        }
        if let Some(fid) = now {
            if self.places.entry(fid).or_default().insert(place) || was_doubtful {
                self.certain.entry(fid).or_default().push(place);
            }
        }
    }

    /// The mount saw the inode at a name that no entry gave it.
    fn seen_elsewhere(&mut self, number: u64, fid: Fid, place: Place<'a>) {
        let (kind, made) = match self.files.get(&fid) {
            Some(file) => (file.kind, file.made.is_some()),
            None => return,
        };
        let others = self.places.get(&fid).is_some_and(|p| p.iter().any(|other| *other != place));
        // An inode that was there before the log may have had other names before.
        if !others || !(made || kind == Kind::Directory) || planted(Bug::NeverDoubtful) {
            return;
        }
        let shown = printable(place.1);
        self.dispute(number, &format!("file {fid} is at '{shown}', which no entry gave it"));
        // Each of them is looked at once, however often the inode is seen elsewhere.
        let certain = self.certain.remove(&fid).unwrap_or_default();
        self.steps += certain.len() as u64;
        for other in certain.into_iter().filter(|other| *other != place) {
            let Some(name) = self.names.get_mut(&other).filter(|name| name.now == Some(fid)) else {
                continue;
            };
            match kind {
                Kind::Directory => self.set(number, other, None),
                _ => name.doubtful = true,
            }
        }
    }

    /// Settles the names of each file.  A directory gets one name, and no directory is in a
    /// cycle.
    fn settle(&mut self) {
        let many = |(fid, places): (&Fid, &BTreeSet<Place<'a>>)| {
            let directory = self.files.get(fid).is_some_and(|f| f.kind == Kind::Directory);
            (directory && places.len() > 1).then(|| (*fid, places.iter().copied().collect()))
        };
        let many: Vec<(Fid, Vec<_>)> = self.places.iter().filter_map(many).collect();
        for (fid, places) in many {
            let last = places.iter().max_by_key(|place| self.names[place].since).copied();
            self.dispute(0, &format!("directory {fid} has more than one name"));
            for other in places.into_iter().filter(|place| Some(*place) != last) {
                self.set(0, other, None);
            }
        }
        self.break_circles();
        for (place, name) in self.names.iter().filter(|(_, name)| !name.doubtful) {
            if let Some(file) = name.now.and_then(|fid| self.files.get_mut(&fid)) {
                file.names.push(*place);
            }
        }
    }

    /// The path where the inode was seen or, if no entry says so, where the log has it, relative
    /// to the root; empty: nobody knows.
    pub fn hint(&self, fid: Fid) -> Vec<u8> {
        let (mut at, mut parts, mut length) = (fid, Vec::new(), 0);
        while at != ROOT {
            let file = self.files.get(&at).filter(|_| length <= 4096);
            let Some(file) = file else { return Vec::new() };
            if !file.hint.is_empty() {
                parts.push(file.hint);
                break;
            }
            let place = file.names.first().copied().or_else(|| self.place_of(at));
            let Some((dir, name)) = place else { return Vec::new() };
            length += name.len() + 1;
            parts.push(name);
            at = dir;
        }
        parts.reverse();
        parts.join(&b'/')
    }

    /// Whether it has a name, even a doubtful one.
    pub fn has_place(&self, fid: Fid) -> bool {
        self.place_of(fid).is_some()
    }

    fn place_of(&self, fid: Fid) -> Option<Place<'a>> {
        self.places.get(&fid).and_then(|places| places.first()).copied()
    }

    fn break_circles(&mut self) {
        let mut safe = HashSet::from([ROOT]);
        let directories = self.files.iter().filter(|(_, file)| file.kind == Kind::Directory);
        let directories: Vec<Fid> = directories.map(|(fid, _)| *fid).collect();
        for start in directories {
            let (mut at, mut way) = (start, Vec::new());
            let mut on_the_way = HashSet::new();
            while !safe.contains(&at) {
                if !on_the_way.insert(at) {
                    let circle = way.iter().skip_while(|fid| **fid != at);
                    let oldest = circle.copied().min_by_key(|fid| {
                        self.place_of(*fid).map_or(0, |place| self.names[&place].since)
                    });
                    if let Some((fid, place)) = oldest.and_then(|f| Some((f, self.place_of(f)?))) {
                        self.dispute(0, &format!("directory {fid} is within itself"));
                        self.set(0, place, None);
                        self.files.entry(fid).and_modify(|file| file.displaced = true);
                    }
                    break;
                }
                way.push(at);
                match self.place_of(at) {
                    Some((dir, _)) => at = dir,
                    None => break,
                }
            }
            safe.extend(way);
        }
    }

    /// The path that a file should have, in words.
    pub fn path(&self, fid: Fid) -> String {
        let (mut at, mut parts, mut length) = (fid, Vec::new(), 0);
        while let Some(file) = self.files.get(&at) {
            if at == ROOT || length > 4096 {
                break;
            }
            match file.names.first().copied().or_else(|| self.place_of(at)) {
                Some((dir, name)) => {
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

    /// The names that should exist, by directory.
    pub fn by_directory(&self) -> HashMap<Fid, Vec<(&'a [u8], Fid)>> {
        let mut by: HashMap<Fid, Vec<_>> = HashMap::new();
        for (&(dir, name), state) in &self.names {
            if let Some(fid) = state.now.filter(|_| !state.doubtful) {
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
        born: None,
        displaced: false,
        hint: b"",
        made: None,
        synced: false,
        lost_name_by: None,
        names: Vec::new(),
        content: Vec::new(),
        attr: SetAttr::default(),
        mtime_of_content: false,
        timed: Time::default(),
        xattrs: BTreeMap::new(),
        acl_last: false,
        acl_mode: None,
    }
}

fn time(ns: u64) -> Time {
    Time { seconds: (ns / 1_000_000_000) as i64, nanoseconds: (ns % 1_000_000_000) as u32 }
}
