// SPDX-License-Identifier: MIT OR Apache-2.0
//! The mark on a tree while a log may hold data that the tree lacks.
//!
//! ```text
//! .forebay-mount -> {"pool":..,"log":..,"period":..,..}   the log of this period may hold
//!                                                         what the tree lacks
//! .forebay-done -> the same                               the tree has everything, and the
//!                                                         log may still be there
//! .forebay-group   PERIOD NUMBER                          the last group that is synced in
//!                                                         the tree
//! ```
//!
//! The first two are symlinks in the tree's root: a symlink is made whole or not at all, every file
//! system that a mount needs has them, and `ls -l` shows what they say.  The order, which
//! [`begin`] and [`end`] keep:
//!
//! | step | a crash after it |
//! |---|---|
//! | the log's period begins | a period without entries, and no mark: nothing to replay |
//! | the number of the last synced group is durable | the same |
//! | the mark is durable | a mark and a period without entries: nothing to replay |
//! | entries are appended, and synced in the tree | the period is replayed; nothing else may have the tree |
//! | the tree is synced, then `.forebay-group` says "done", durably | the period is replayed again |
//! | the mark is renamed, which is made durable | the tree has everything: the period is destroyed |
//! | the period is destroyed | the tree has everything |
//! | the renamed mark and the number are removed | - |
//!
//! A user who may write to the root can rename the mark too.  So a renamed one counts only if
//! the file `.forebay-group`, which nobody else may write to, says that the period is done;
//! otherwise the period is replayed.  An inode with one of the names that Forebay did not make
//! is not lost: it goes to the directory of found files.
//!
//! While groups are synced the tree has the number of the last one ([`GroupMark`]).  It shows
//! whether the tree is older than the state that the log belongs to ([`objections`]):
//!
//! | step | a crash after it: the tree's number, the log's |
//! |---|---|
//! | group g is synced in the tree | g - 1, g - 1 |
//! | the number g is durable in the tree | g, g - 1 |
//! | the log forgets group g | g, g |

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use forebay::Uuid;

use crate::record::{Kind, SetAttr, Time};
use crate::replay::planted::{planted, Bug};
use crate::replay::{put_aside, ReplayError};
use crate::tree::{self, Attr, New, RenameHow, Tree};

const MARK: &[u8] = NAME.as_bytes();
/// The name of the mark in a mounted directory.
pub const NAME: &str = ".forebay-mount";
const DONE: &[u8] = b".forebay-done";
const GROUP: &[u8] = b".forebay-group";

/// Whether a name is hidden in a mount and not available to programs.
pub fn is_own(name: &[u8]) -> bool {
    name == MARK || is_over(name)
}

/// The content of a mark: the log and its period.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    pub pool: Uuid,
    pub log: String,
    /// The GUID of the log's period, which no other period has.
    pub period: Uuid,
    /// The time when it was set, in seconds since 1970.
    pub since: u64,
    /// The path of the pool at that time.
    pub at: String,
    /// Whether the tree has the number of the last group that is synced in it.
    #[serde(default)]
    pub groups: bool,
    /// Whether the mark's time is the number of [`reached`].  Otherwise it is a date.
    #[serde(default)]
    pub ahead: bool,
}

impl std::fmt::Display for Mark {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "log {} of pool {} (then at {})", self.log, self.pool, self.at)
    }
}

impl Mark {
    /// `ahead`: names may precede their entries in this period.
    pub fn new(pool: &forebay::Pool, log: &str, period: Uuid, ahead: bool) -> Mark {
        // The shortest limit for symlinks among file systems is about 1000 bytes.
        let at = pool.path().display().to_string().chars().take(200).collect();
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let since = now.map_or(0, |d| d.as_secs());
        Mark { pool: pool.uuid(), log: log.into(), period, since, at, groups: true, ahead }
    }
}

/// The state of a tree's root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    Nothing,
    /// A log may hold data that the tree lacks.
    Marked(Mark),
    /// The tree has all data of the period.
    Done(Mark),
    /// As `Done`, but only the name says so: anyone may have renamed a mark.
    Unproved(Mark),
    /// An inode with the mark's name that is no mark.
    Unknown,
}

/// The way out where the number may be forged.
const DOUBTFUL: &str =
    ". Others may have written that number (.forebay-group in the tree): if this \
    is the newest copy of the pool, remove that file and accept that (--accept=no-group)";

#[derive(Debug, thiserror::Error)]
pub enum MarkError {
    #[error(transparent)]
    Pool(#[from] forebay::Error),
    #[error("cannot {what} the mark of the mount (.forebay-mount): {cause}")]
    Tree { what: &'static str, cause: Errno },
    #[error(
        "{mark} may hold acknowledged changes that the tree lacks: mount or replay it with \
         that pool and log. If they are gone: forebay unmark TREE --accept-loss gives that up"
    )]
    Foreign { mark: Box<Mark> },
    #[error(
        "{mark} held acknowledged changes that the tree may lack, and does not hold them now: \
         this is an older copy of the pool, or the log was destroyed. Use the newest copy of the \
         pool; forebay unmark TREE --accept-loss gives up these changes"
    )]
    Gone { mark: Box<Mark> },
    #[error(
        "the log holds entries, and the tree does not have their mark. It is an older copy of \
         the tree, or its mark was removed, or another log mounted it since. A replay may undo \
         later changes. Replay onto the right tree, or accept that (--accept=unmarked); \
         forebay log destroy --discard gives up the entries"
    )]
    Unmarked,
    #[error(
        ".forebay-mount in it is not a mark of this version of Forebay: use the version that \
         made it, or look at it with ls -l; forebay unmark TREE --accept-loss removes it"
    )]
    Unknown,
    #[error(
        "this is an older copy of the tree: it has all changes up to group {tree}, and the log \
         has dropped those up to group {log}. Replay onto the newest copy of the tree, or accept \
         that the changes in between are lost (--accept=older-tree); forebay log destroy --discard \
         and forebay unmark TREE --accept-loss give up the log's changes"
    )]
    OlderTree { tree: u64, log: u64 },
    #[error(
        "this is an older copy of the pool: the tree has all changes up to group {tree}, and \
         the log only up to group {log}. Use the newest copy of the pool; forebay unmark TREE \
         --accept-loss gives up what it held{}",
        if *.doubtful { DOUBTFUL } else { "" }
    )]
    OlderPool { tree: u64, log: u64, doubtful: bool },
    #[error(
        ".forebay-group in it is missing, or is not of the mark's period: this may be an older \
         copy of the tree. Replay onto the newest copy, or accept that (--accept=no-group)"
    )]
    NoGroup,
    #[error(
        "others may write to .forebay-group in it, so the file does not prove which tree this \
         is; its mark was renamed to .forebay-done. Take that right from them (chmod 644), or \
         accept that (--accept=no-group)"
    )]
    GroupMode,
    #[error(
        "names that differ in case are one in it: Forebay cannot keep a log of such a \
         directory. Use a tree without (chattr -F, mkfs without casefold), or a volume"
    )]
    FoldsCase,
    #[error(
        "{directory} is marked, and this tree is a part of it: a log may hold changes that \
         are missing here; mount or replay that one first"
    )]
    Above { directory: String },
}

impl MarkError {
    /// The kind by which an operator may accept it: see [`crate::replay::Accept`].
    pub fn kind(&self) -> Option<&'static str> {
        match self {
            MarkError::OlderTree { .. } => Some("older-tree"),
            MarkError::NoGroup | MarkError::GroupMode => Some("no-group"),
            MarkError::Unmarked => Some("unmarked"),
            _ => None,
        }
    }
}

type Result<T> = std::result::Result<T, MarkError>;

fn failed<T>(done: tree::Result<T>, what: &'static str) -> Result<T> {
    done.map_err(|cause| MarkError::Tree { what, cause })
}

/// The kind of inode that Forebay makes with the name.
fn kind_of(name: &[u8]) -> Kind {
    match name == GROUP {
        true => Kind::File,
        false => Kind::Symlink,
    }
}

/// Root, this user and the owner of the directory may do anything there.
fn is_trusted<T: Tree>(tree: &T, dir: &T::Node, attr: &Attr) -> tree::Result<bool> {
    let us = New::plain(attr.kind, 0).uid;
    Ok(attr.uid == 0 || attr.uid == us || attr.uid == tree.attr(dir)?.uid)
}

/// In a sticky directory anyone can make a mark, and no one can remove another's.
fn is_anybodys<T: Tree>(tree: &T, dir: &T::Node, node: &T::Node) -> tree::Result<bool> {
    const STICKY: u32 = 0o1000;
    let sticky = tree.attr(dir)?.mode & STICKY != 0;
    Ok(sticky && !is_trusted(tree, dir, &tree.attr(node)?)? && !planted(Bug::MarkOfAnybody))
}

fn read<T: Tree>(tree: &T, dir: &T::Node, name: &[u8]) -> Result<Option<Option<Mark>>> {
    let Some(node) = failed(tree.lookup(dir, name), "look for")? else { return Ok(None) };
    if failed(is_anybodys(tree, dir, &node), "look at")? {
        return Ok(None);
    }
    let target = match tree.read_link(&node) {
        Err(Errno::INVAL) => return Ok(Some(None)),
        target => failed(target, "read")?,
    };
    Ok(Some(serde_json::from_slice(&target).ok()))
}

/// Whether a name is hidden in a mount, so that it does not count in a directory that must be
/// empty.
pub fn is_over(name: &[u8]) -> bool {
    name == DONE || name == GROUP
}

/// Runs an operation that needs this directory to be empty.  Repeats it after removing what an
/// interrupted end of a mount of it has left there.
pub fn emptied<T: Tree>(
    tree: &T,
    dir: &T::Node,
    operation: impl Fn() -> tree::Result<()>,
) -> tree::Result<()> {
    match operation() {
        // File systems differ in which of the two they give; the caller gets the tree's.
        Err(answer @ (Errno::NOTEMPTY | Errno::EXIST)) => {
            let names = tree.names(dir)?;
            // A crash may have left the number alone: before the mark was made, or when it was
            // removed.
            let alone = !names.iter().any(|name| name == DONE);
            let ours = |name: &Vec<u8>| match tree.attr_of(dir, name)? {
                Some(attr) if is_over(name) && attr.kind == kind_of(name) => {
                    Ok(!alone || is_trusted(tree, dir, &attr)?)
                }
                _ => Ok(false),
            };
            let all = names.iter().map(ours).collect::<tree::Result<Vec<bool>>>()?;
            if names.is_empty() || all.contains(&false) {
                return Err(answer);
            }
            names.iter().try_for_each(|name| tree.unlink(dir, name, false))?;
            operation()
        }
        done => done,
    }
}

/// Whether a directory has a mark, of any content.
pub fn is_marked<T: Tree>(tree: &T, dir: &T::Node) -> tree::Result<bool> {
    match tree.lookup(dir, MARK)? {
        Some(node) => Ok(!is_anybodys(tree, dir, &node)?),
        None => Ok(false),
    }
}

pub fn find<T: Tree>(tree: &T) -> Result<Found> {
    let root = tree.root();
    match read(tree, &root, MARK)? {
        Some(Some(mark)) => return Ok(Found::Marked(mark)),
        Some(None) => return Ok(Found::Unknown),
        None => {}
    }
    let Some(node) = failed(tree.lookup(&root, DONE), "look for")? else {
        return Ok(Found::Nothing);
    };
    let attr = failed(tree.attr(&node), "look at")?;
    if attr.kind != Kind::Symlink || !failed(is_trusted(tree, &root, &attr), "look at")? {
        return Ok(Found::Nothing);
    }
    Ok(match read(tree, &root, DONE)? {
        Some(Some(mark)) => match is_proved(tree, &mark)? {
            true => Found::Done(mark),
            false => Found::Unproved(mark),
        },
        Some(None) => Found::Unknown,
        None => Found::Nothing,
    })
}

/// Whether the group's file says that the period is done.  A mark without groups has no such
/// proof.
fn is_proved<T: Tree>(tree: &T, mark: &Mark) -> Result<bool> {
    if !mark.groups || planted(Bug::DoneUnproved) {
        return Ok(true);
    }
    Ok(numbered(tree)?.is_some_and(|n| n.period == mark.period && n.done && !n.open))
}

/// The relation of a log and a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The log's entries belong to this tree.
    Replay,
    /// The tree has all of them.
    Complete,
    /// The log's entries, if any, do not belong to this tree; nothing else is known.
    Unmarked,
}

/// `period` is the log's present period, if there is one.
pub fn judge(found: &Found, pool: Uuid, log: &str, period: Option<Uuid>) -> Result<Verdict> {
    match found {
        Found::Marked(mark) if Some(mark.period) == period || planted(Bug::MarkOfAnyPeriod) => {
            Ok(Verdict::Replay)
        }
        Found::Marked(mark) if mark.pool == pool && mark.log == log => {
            Err(MarkError::Gone { mark: Box::new(mark.clone()) })
        }
        Found::Marked(mark) => Err(MarkError::Foreign { mark: Box::new(mark.clone()) }),
        Found::Unknown => Err(MarkError::Unknown),
        Found::Done(mark) if Some(mark.period) == period => Ok(Verdict::Complete),
        Found::Unproved(mark) if Some(mark.period) == period => Ok(Verdict::Replay),
        Found::Done(_) | Found::Unproved(_) | Found::Nothing => Ok(Verdict::Unmarked),
    }
}

/// The number of the last group that is synced in the tree, in a file of its root.
#[derive(Debug)]
pub struct GroupMark<N> {
    node: N,
    period: Uuid,
    /// The mark itself, whose time says how far the tree is.
    mark: Option<N>,
}

/// Later times of a mark are dates, and no numbers of entries.
const MOST_REACHED: u64 = 1_000_000_000;

/// The size of the file.  Btrfs keeps shorter files within its metadata, which it never changes
/// in place.
const GROUP_BYTES: usize = 4096;

/// Follows the number when the tree has all of the period.
const ALL: &[u8] = b"done\n";

impl<N> GroupMark<N> {
    /// Makes the file with its first number.  All later numbers are written in place, so that a
    /// tree without space can still record them.
    fn create<T: Tree<Node = N>>(tree: &T, period: Uuid, group: u64) -> tree::Result<GroupMark<N>> {
        let node = tree.create(&tree.root(), GROUP, &New::plain(Kind::File, 0o644))?;
        // It stays open for writing.  Otherwise a user who holds all descriptors of this process, or
        // removes the name, could keep later numbers from it.
        if !planted(Bug::GroupNotHeld) {
            tree.pin(&node, true)?;
        }
        tree.write_in_place(&node);
        let mark = GroupMark { node, period, mark: None };
        let mut block = mark.text(group).into_bytes();
        block.resize(GROUP_BYTES, 0);
        tree.write(&mark.node, 0, &block)?;
        tree.sync(&mark.node)?;
        Ok(mark)
    }

    /// The text lies within one sector: a crash leaves the old number or the new one.
    fn text(&self, group: u64) -> String {
        format!("{} {group:020}\n", self.period)
    }

    /// Whether the mark can say how far the tree is: the tree keeps order and exact times, and a
    /// replay by anybody believes the mark's owner.
    pub fn can_reach<T: Tree<Node = N>>(
        &self,
        tree: &T,
    ) -> std::result::Result<(), tree::Unordered> {
        tree.keeps_order()?;
        let keeps = |number| {
            self.reach(tree, number)?;
            let attr = tree.attr(self.mark.as_ref().ok_or(Errno::NOENT)?)?;
            let owned = attr.uid == 0 || attr.uid == tree.attr(&tree.root())?.uid;
            let exact = Time { seconds: number as i64, nanoseconds: 0 };
            Ok::<_, Errno>((owned, attr.mtime == exact))
        };
        // Some file systems know only even seconds.  A log that has an entry has its number, too.
        [1, 0].into_iter().try_for_each(|number| match keeps(number) {
            Ok((true, true)) => Ok(()),
            Ok((false, _)) => Err(tree::Unordered::Owner),
            _ => Err(tree::Unordered::Time),
        })
    }

    /// Tells that the tree has the change of each entry before this one, and may have that of
    /// this one, before its entry is durable.  A file system that keeps the change keeps this.
    pub fn reach<T: Tree<Node = N>>(&self, tree: &T, number: u64) -> tree::Result<()> {
        let mark = self.mark.as_ref().filter(|_| number < MOST_REACHED).ok_or(Errno::OVERFLOW)?;
        let mtime = Some(Time { seconds: number as i64, nanoseconds: 0 });
        tree.set_attr(mark, &SetAttr { mtime, ..SetAttr::default() })
    }

    /// The clock of the tree's file system, as a change of the file shows it.
    pub fn clock<T: Tree<Node = N>>(&self, tree: &T) -> Option<Time> {
        tree.clock(&self.node).ok().flatten()
    }

    /// Sets the number, durably.  The group's changes in the tree are durable before.
    pub fn set<T: Tree<Node = N>>(&self, tree: &T, group: u64) -> tree::Result<()> {
        let write = || tree.write(&self.node, 0, self.text(group).as_bytes());
        match write() {
            // Space of removed files is free after a sync (a snapshot shares the file's block).
            Err(Errno::NOSPC | Errno::DQUOT) => tree.sync_all().and_then(|()| write())?,
            written => written?,
        }
        match planted(Bug::GroupNotSynced) {
            true => Ok(()),
            false => tree.sync(&self.node),
        }
    }
}

/// How far a tree is, as its mark says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reached {
    /// The tree has no change before its entry, or there is no mark.
    Nothing,
    /// The number of [`GroupMark::reach`].
    Entry(u64),
    /// It is not believed, for this reason.  The tree counts as one without changes before their
    /// entries.
    Doubtful(&'static str),
}

pub fn reached<T: Tree>(tree: &T) -> tree::Result<Reached> {
    let root = tree.root();
    for name in [MARK, DONE] {
        let Some(attr) = tree.attr_of(&root, name)? else { continue };
        // A machine without a clock gives dates that could be numbers.
        let says = attr.kind == Kind::Symlink && {
            let target = tree.read_link(&tree.lookup(&root, name)?.ok_or(Errno::NOENT)?)?;
            serde_json::from_slice(&target).is_ok_and(|mark: Mark| mark.ahead)
        };
        let number = u64::try_from(attr.mtime.seconds).unwrap_or(MOST_REACHED);
        let exact = attr.mtime.nanoseconds == 0 && number < MOST_REACHED;
        return Ok(match () {
            () if !says || (exact && number == 0) => Reached::Nothing,
            // Whoever may write to the root can make a mark of the same content.
            () if !is_trusted(tree, &root, &attr)? => Reached::Doubtful("another user made it"),
            () if exact => Reached::Entry(number),
            () => Reached::Doubtful("its time is not one that a mount gives it"),
        });
    }
    Ok(Reached::Nothing)
}

/// The content of the file.
struct Numbered<N> {
    node: N,
    period: Uuid,
    group: u64,
    /// The offset at which the file says that the period is done, and whether it does.
    end: u64,
    done: bool,
    /// Whether others may write to the file.
    open: bool,
    /// It belongs neither to root nor to this user.
    foreign: bool,
}

/// Whether the file was made by a trusted user.  Its mode may have been changed since then.
fn is_group<T: Tree>(tree: &T, attr: &Attr) -> Result<bool> {
    let root = tree.root();
    if attr.kind != Kind::File {
        return Ok(false);
    }
    // The maker of the mark may be none of the trusted users, and then has made this file too.
    let mark = failed(tree.attr_of(&root, MARK), "look for")?;
    let by_mark = mark.is_some_and(|mark| mark.uid == attr.uid);
    Ok(by_mark || failed(is_trusted(tree, &root, attr), "look at")?)
}

/// `None`: there is no such file, or another user made it.
fn numbered<T: Tree>(tree: &T) -> Result<Option<Numbered<T::Node>>> {
    let root = tree.root();
    let Some(node) = failed(tree.lookup(&root, GROUP), "look for")? else { return Ok(None) };
    let attr = failed(tree.attr(&node), "read")?;
    if !is_group(tree, &attr)? && !planted(Bug::GroupOfAnybody) {
        return Ok(None);
    }
    let mut text = [0; 64];
    let read = match attr.kind {
        Kind::File => failed(tree.read(&node, 0, &mut text), "read")?,
        _ => 0,
    };
    let line = text[..read].split_inclusive(|b| *b == b'\n').next().unwrap_or_default();
    let words = std::str::from_utf8(line).ok().and_then(|line| line.strip_suffix('\n'));
    let words = words.and_then(|line| line.split_once(' '));
    let Some((period, group)) = words else { return Ok(None) };
    let (Ok(period), Ok(group)) = (period.parse(), group.parse()) else { return Ok(None) };
    let (end, done) = (line.len() as u64, text[line.len()..read].starts_with(ALL));
    let (open, us) = (attr.mode & 0o022 != 0, New::plain(Kind::File, 0).uid);
    let foreign = attr.uid != 0 && attr.uid != us;
    Ok(Some(Numbered { node, period, group, end, done, open, foreign }))
}

/// The tree's number for the period of its mark; `None`: the mark is of a version of Forebay
/// without group numbers.
pub fn group_of<T: Tree>(tree: &T, mark: &Mark) -> Result<Option<u64>> {
    if !mark.groups {
        return Ok(None);
    }
    match numbered(tree)? {
        Some(numbered) if numbered.period == mark.period => Ok(Some(numbered.group)),
        _ => Err(MarkError::NoGroup),
    }
}

/// The objections to a replay, the gravest first.  Each of them must be accepted by its kind:
/// one does not hide another.  `synced` is the last group that the log of the mark's period has
/// dropped.
pub fn objections<T: Tree>(tree: &T, found: &Found, synced: u64) -> Result<Vec<MarkError>> {
    let (Found::Marked(mark) | Found::Unproved(mark)) = found else { return Ok(Vec::new()) };
    let mut all = Vec::new();
    match group_of(tree, mark) {
        _ if planted(Bug::GroupIgnored) => {}
        Ok(Some(tree)) if tree < synced => all.push(MarkError::OlderTree { tree, log: synced }),
        Ok(Some(group)) if group > synced + 1 => {
            let doubtful = numbered(tree)?.is_some_and(|n| n.open || n.foreign);
            all.push(MarkError::OlderPool { tree: group, log: synced, doubtful });
        }
        Ok(_) => {}
        Err(no_group @ MarkError::NoGroup) => all.push(no_group),
        Err(e) => return Err(e),
    }
    let open = |n: Numbered<_>| n.open && n.period == mark.period;
    if matches!(found, Found::Unproved(_)) && numbered(tree)?.is_some_and(open) {
        all.push(MarkError::GroupMode);
    }
    Ok(all)
}

/// Begins a period of the log whose last synced group is `synced`.  `create` makes it and
/// returns the content of the mark.  The period and everything in the tree are durable when it
/// returns; from then on entries may be appended.
pub fn begin<T: Tree>(
    tree: &T,
    synced: u64,
    create: impl FnOnce() -> forebay::Result<Mark>,
) -> Result<GroupMark<T::Node>> {
    let mark = create()?;
    clear(tree)?;
    with_times_kept(tree, || set(tree, synced, &mark))
}

fn set<T: Tree>(tree: &T, synced: u64, mark: &Mark) -> Result<GroupMark<T::Node>> {
    let root = tree.root();
    let target = serde_json::to_vec(mark).expect("a mark is JSON");
    let new = New { target: &target, ..New::plain(Kind::Symlink, 0o777) };
    // A tree with a mark always has a number.
    let mut group = failed(GroupMark::create(tree, mark.period, synced), "set")?;
    // Only an inode that is no mark is removed here: a real mark refuses the mount.
    remove_name(tree, MARK)?;
    let made = failed(tree.create(&root, MARK, &new), "set")?;
    // Detects the mark itself under a name that differs in case.
    if let Some(other) = failed(tree.lookup(&root, &MARK.to_ascii_uppercase()), "look for")? {
        let number = |node| failed(tree.attr(node), "look for").map(|attr| attr.ino);
        if number(&other)? == number(&made)? {
            failed(tree.unlink(&root, MARK, false), "remove")?;
            return Err(MarkError::FoldsCase);
        }
    }
    group.mark = Some(made);
    if mark.ahead {
        // A date would be no number.  Not every file system takes it: then no number is used.
        let _ = group.reach(tree, 0);
    }
    match planted(Bug::MarkNotSynced) {
        true => Ok(()),
        false => failed(tree.sync_all(), "sync"),
    }
    .map(|()| group)
}

/// Ends the period by `destroy`.  Everything that the log holds is in the tree and synced
/// there.
pub fn end<T: Tree>(tree: &T, destroy: impl FnOnce() -> forebay::Result<()>) -> Result<()> {
    if planted(Bug::PeriodEndsFirst) {
        destroy()?;
        done(tree)?;
    } else {
        done(tree)?;
        destroy()?;
    }
    clear(tree)
}

/// Records, durably, that the tree has everything, when the log is lost.  The proof of it stays,
/// since the log may come back with what it had: then it is dropped, and not replayed.
pub fn complete<T: Tree>(tree: &T) -> Result<()> {
    done(tree)?;
    match find(tree)? {
        Found::Done(_) | Found::Nothing => Ok(()),
        // There was no room for the proof: the log would be replayed over what comes after.
        _ => Err(MarkError::Tree { what: "prove complete", cause: Errno::NOSPC }),
    }
}

/// Records, durably, that the tree has everything.
fn done<T: Tree>(tree: &T) -> Result<()> {
    let root = tree.root();
    if failed(tree.lookup(&root, MARK), "look for")?.is_none() {
        return Ok(());
    }
    say_done(tree)?;
    with_times_kept(tree, || remove_name(tree, DONE))?;
    let renamed = || match planted(Bug::MarkRemovedAtOnce) {
        true => tree.unlink(&root, MARK, false),
        false => tree.rename((&root, MARK), (&root, DONE), RenameHow::Replace),
    };
    with_times_kept(tree, || failed(renamed(), "rename"))?;
    match planted(Bug::CheckpointTooEarly) {
        true => Ok(()),
        false => failed(tree.sync_all(), "sync"),
    }
}

/// Records that all of the tree is synced.  Without it the period would only be replayed once
/// more.
fn say_done<T: Tree>(tree: &T) -> Result<()> {
    let Some(of) = numbered(tree)?.filter(|of| !of.done && !of.open) else { return Ok(()) };
    match tree.write(&of.node, of.end, ALL) {
        Ok(()) => failed(tree.sync(&of.node), "sync"),
        Err(_) => Ok(()),
    }
}

/// Removes what an interrupted [`end`] leaves.
pub fn clear<T: Tree>(tree: &T) -> Result<()> {
    // The number proves the other file, so it is removed last.
    let remove = || remove_name(tree, DONE).and_then(|()| remove_name(tree, GROUP));
    match with_times_kept(tree, remove) {
        // What is left is true.  The next mount that can write removes it.
        Err(MarkError::Tree { cause: Errno::ROFS, .. }) => Ok(()),
        cleared => cleared,
    }
}

/// Gives up the data in the log, by order of the user, durably.
pub fn give_up<T: Tree>(tree: &T) -> Result<()> {
    let names = [MARK, DONE, GROUP];
    with_times_kept(tree, || names.iter().try_for_each(|name| remove_name(tree, name)))?;
    failed(tree.sync_all(), "sync")
}

fn remove_name<T: Tree>(tree: &T, name: &[u8]) -> Result<()> {
    // The lookup comes first: a read-only file system refuses to remove even a missing name.
    let Some(attr) = failed(tree.attr_of(&tree.root(), name), "look for")? else { return Ok(()) };
    if attr.kind != kind_of(name) || (name == GROUP && !is_group(tree, &attr)?) {
        return put_aside(tree, name).map_err(|e| MarkError::Tree {
            what: "put aside what has the name of",
            cause: match e {
                ReplayError::Tree { cause, .. } => cause,
                _ => Errno::IO,
            },
        });
    }
    match tree.unlink(&tree.root(), name, false) {
        Err(Errno::NOENT) => Ok(()),
        removed => failed(removed, "remove"),
    }
}

/// Programs must not see a change of the root.
pub(crate) fn with_times_kept<T: Tree, R>(tree: &T, change: impl FnOnce() -> R) -> R {
    let root = tree.root();
    let before = tree.attr(&root);
    let changed = change();
    if let (Ok(before), Ok(now)) = (before, tree.attr(&root)) {
        let (atime, mtime) = (Some(before.atime), Some(before.mtime));
        if now.mtime != before.mtime {
            // Only its owner can; to others it shows that there was a mount.
            let _ = tree.set_attr(&root, &SetAttr { atime, mtime, ..SetAttr::default() });
        }
    }
    changed
}

#[cfg(test)]
mod tests;
