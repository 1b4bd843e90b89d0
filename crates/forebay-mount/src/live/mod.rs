// SPDX-License-Identifier: MIT OR Apache-2.0
//! Operations on a tree: what is logged and when, and when the tree is synced.
//!
//! - A change of names, attributes, sizes or allocation is **written ahead**: its entry is
//!   durable before the tree sees the change.  So the log knows each such change since the
//!   tree's last sync, and the tree is never ahead of the log.  If the tree then refuses the
//!   change, a [`Record::Void`] revokes the entry.  Appends come one after another, and the
//!   wait until an entry is durable does not: entries of several operations share a write of the
//!   log's disk.
//! - **Data** goes to the tree at once and to the log when it is synced: [`Live::begin_fsync`]
//!   reads what was written since, and appends it.  Above a limit the data takes the tree's
//!   own path: a real fsync, and a [`Record::Synced`] that makes earlier entries void and is
//!   durable before the caller gets its answer.
//! - In the **background** the transaction groups are closed by time and size, synced in
//!   the tree, and then in the log ([`Live::background`]).
//!
//! If the tree cannot be synced, nothing is dropped: the log keeps its entries, every later
//! change and sync is refused with EIO, and the next mount replays.  A file system that failed
//! to write back a page may call the page clean afterwards, so a later fsync that succeeds
//! proves nothing.
//!
//! # Who may call what
//! Several threads may call any operation.  Operations that change the same directory come one
//! after another, as the kernel calls a FUSE server.

mod attributes;
mod background;
mod clock;
mod content;
mod failing;
mod groups;
mod inodes;
mod names;
mod order;
mod ranges;
mod replay_hazard;
mod room;
mod syncs;
mod waits;
mod whiteout;
mod write_buffer;

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use forebay::{Ticket, Writes};
use rustix::io::Errno;

use crate::mark::GroupMark;
use crate::record::{self, Fid, Kind, Record, Records, Time, ROOT};
use crate::replay::planted::{planted, Bug};
use crate::tree::{Result, Tree, TreeIdentity, Unordered, DEFAULT_ACL};
use crate::waiters::Waiters;
use clock::Clock;
pub use content::Fsync;
pub use groups::Unsynced;
use groups::{Groups, Hold};
use inodes::Inodes;
use order::Order;
use ranges::Ranges;
use replay_hazard::ReplayHazard;
use room::Room;
use syncs::Syncs;
use waits::Wait;
use write_buffer::{Buffered, WriteBuffer};

/// The destination of entries: a log of a pool.
pub trait Journal: Send + Sync {
    /// Appends an entry after all earlier ones.  It is durable when [`Journal::wait`] of the
    /// ticket has returned.
    fn append(&self, txg: u64, pieces: &[&[u8]]) -> std::result::Result<Ticket, JournalError>;
    /// After [`JournalError::Busy`]: returns when an append may find a place.
    fn wait_for_writes(&self, _before: Writes) {}
    /// Waits until the entry and all before it are durable.
    fn wait(&self, ticket: Ticket) -> std::result::Result<(), JournalError>;
    /// Whether that wait would return at once.
    fn is_settled(&self, ticket: Ticket) -> bool;
    /// Drops the entries of the group and of earlier groups.
    fn sync(&self, txg: u64) -> std::result::Result<(), JournalError>;
    /// The longest body of an entry.
    fn entry_max(&self) -> usize;
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JournalError {
    /// There is no space now.  Nothing was appended.
    #[error("the pool has no space for the log")]
    Full,
    /// The entry has no place before others are written.  Nothing was appended.
    #[error("the log's disk is busy")]
    Busy(Writes),
    #[error("{0}")]
    Failed(String),
}

/// How long a change of names may not be durable in the log's disk before later ones wait.
const NOT_DURABLE: Duration = Duration::from_secs(1);

/// The options for serving a tree.
#[derive(Clone, Copy, Debug)]
pub struct LiveOptions {
    /// The age of the oldest entry at which its group is synced.
    pub interval: Duration,
    /// The bytes of entries at which a group is synced.
    pub bytes: u64,
    /// The bytes of one sync above which it takes the tree's own path.
    pub sync_limit: u64,
    /// How long an operation that waits for space sleeps before it looks again.
    pub space_wait: Duration,
    /// Changes of names and attributes do not wait for their entries: see [`order`].  They are
    /// durable with the next sync of anything, or with [`Live::beat`].
    pub names_at_sync: bool,
}

impl Default for LiveOptions {
    fn default() -> Self {
        LiveOptions {
            interval: Duration::from_secs(1),
            bytes: 64 << 20,
            sync_limit: 1 << 20,
            space_wait: Duration::from_millis(100),
            names_at_sync: false,
        }
    }
}

/// A known inode of the tree.
#[derive(Debug)]
pub struct Inode<N> {
    pub ino: u64,
    pub kind: Kind,
    pub node: N,
    fid: Fid,
    /// Set when the inode has no name and will get none; its user and group.
    gone: OnceLock<(u32, u32)>,
    /// The group that has its Create; 0: none has.
    made: AtomicU64,
    /// The group in which it has a Bind.  Changed only with the appender locked.
    bound: AtomicU64,
    content: Mutex<Content>,
    /// How often the tree refused pages that the kernel wrote back.
    refused_write_backs: AtomicU64,
}

#[derive(Debug, Default)]
struct Content {
    /// Written bytes that no entry has.
    dirty: Ranges,
    /// The dirty ranges are exactly the buffered writes.
    buffered: Option<Buffered>,
    /// The ranges that the replay of an unsynced group would undo.
    hazard: Option<ReplayHazard>,
    /// Which of [`ASKED_OFTEN`] the inode is known to lack.
    lacks: [bool; ASKED_OFTEN.len()],
    /// The last entry with content of this file.  Who finds nothing left to log waits for it.
    logged: Ticket,
}

/// The kernel asks for this attribute before a write, and again after it has asked for
/// attributes.
pub use crate::tree::CAPABILITY;
/// Extended attributes that are asked for often and that few inodes have: the second one at
/// each create in a directory.
const ASKED_OFTEN: [&[u8]; 2] = [CAPABILITY, DEFAULT_ACL];

fn asked_often(name: &[u8]) -> Option<usize> {
    ASKED_OFTEN.iter().position(|often| *often == name)
}

impl<N> Inode<N> {
    fn is_gone(&self) -> bool {
        self.gone.get().is_some()
    }

    fn gone_owner(&self) -> Option<(u32, u32)> {
        self.gone.get().copied()
    }

    pub fn refused_write_backs(&self) -> u64 {
        self.refused_write_backs.load(Ordering::Acquire)
    }

    fn content(&self) -> MutexGuard<'_, Content> {
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An entry in the journal.
#[derive(Clone, Copy, Debug)]
struct Appended {
    number: u64,
    ticket: Ticket,
}

/// The kinds of entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    /// A change that the tree gets after it was appended.
    Change,
    /// Content, or a word about the content or about other entries.
    Word,
    /// It leaves nothing to be synced.
    Sign,
}

/// When the tree gets a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    /// When its entry is durable.
    Durable,
    /// Before that, where [`LiveOptions::names_at_sync`] allows it.
    Appended,
}

/// Content of a file that was logged, and is durable after [`Live::settle`].  Its group is not
/// synced before that.
#[derive(Debug)]
#[must_use = "it is durable only after a wait"]
struct Pending<'a, N> {
    ticket: Ticket,
    hold: Option<Hold<'a, N>>,
}

impl<N> Pending<'_, N> {
    /// It was logged by another call.
    fn by_another(ticket: Ticket) -> Self {
        Pending { ticket, hold: None }
    }
}

/// The state of appends, which come one after another.
#[derive(Debug, Default)]
struct Appender {
    number: u64,
    /// The group that has a Tree record.
    named: u64,
    /// The [`Live::latest_ns`] that this group has recorded.
    told: (u64, u64),
    binds: Records,
}

/// The reason why the mount refuses changes.  Nothing that it holds is lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub what: String,
    pub errno: i32,
    /// The log failed, and not the tree.
    pub of_log: bool,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (errno {})", self.what, self.errno)
    }
}

/// Counters since the mount began.
#[derive(Debug, Default)]
pub struct Counters {
    pub syncs: AtomicU64,
    /// The number of these syncs that took the tree's own path.
    pub real_syncs: AtomicU64,
    pub entries: AtomicU64,
    pub bytes: AtomicU64,
    pub groups: AtomicU64,
    /// Write-back requests of the kernel that the tree refused.
    pub refused_write_backs: AtomicU64,
    /// Those that arrived, and those that were answered.
    pub write_backs: AtomicU64,
    pub ended_write_backs: AtomicU64,
}

#[derive(Debug)]
pub struct Live<T: Tree, J: Journal> {
    tree: T,
    journal: J,
    options: LiveOptions,
    identity: TreeIdentity,
    root: Arc<Inode<T::Node>>,
    inodes: Mutex<Inodes<T::Node>>,
    next_fid: AtomicU64,
    clock: Clock,
    /// The latest time (ns since 1970) that the clock has shown, here or in a file.
    latest_ns: AtomicU64,
    appender: Mutex<Appender>,
    /// The ticket of the last entry.
    last: AtomicU64,
    /// When the last entry was appended, and the last one that is known to be durable (ns since
    /// 1970).
    appended_ns: AtomicU64,
    alive_ns: AtomicU64,
    order: Order,
    /// The tree can say how far it is.
    may_precede: AtomicBool,
    /// It does not keep changes in their order any more.
    unordered: AtomicBool,
    groups: Groups<T::Node>,
    failure: OnceLock<Failure>,
    /// The tree may lack what programs were told, or a thread of the mount is lost.  The failure
    /// may be an earlier one.
    tree_failed: AtomicBool,
    syncs: Syncs,
    /// The place where the tree records which group was synced last.
    bears: OnceLock<GroupMark<T::Node>>,
    /// When each operation that waits for space in the log began to wait.
    waits: Mutex<Vec<Instant>>,
    write_buffer: WriteBuffer,
    /// The time of the last sync for room: see [`room`].
    room_made: Mutex<Option<Instant>>,
    /// For room, and for the leases of the tree.
    waiting: Arc<Waiters>,
    pub counters: Counters,
}

type Held<'a, T> = Hold<'a, <T as Tree>::Node>;
type Logged<'a, T> = Pending<'a, <T as Tree>::Node>;

impl<T: Tree, J: Journal> Live<T, J> {
    /// Serves a synced tree with an empty log whose last synced group is `synced`.
    pub fn new(tree: T, journal: J, synced: u64, options: LiveOptions) -> Result<Self> {
        let identity = tree.identity()?;
        let node = tree.root();
        let attr = tree.attr(&node)?;
        let clock = Clock::default();
        let root = Arc::new(Inode {
            ino: attr.ino,
            kind: attr.kind,
            node,
            fid: ROOT,
            gone: OnceLock::new(),
            made: AtomicU64::new(0),
            bound: AtomicU64::new(0),
            content: Mutex::default(),
            refused_write_backs: AtomicU64::new(0),
        });
        Ok(Live {
            identity,
            inodes: Mutex::new(Inodes::of(&root)),
            root,
            next_fid: AtomicU64::new(ROOT + 1),
            alive_ns: AtomicU64::new(clock.now_ns()),
            clock,
            latest_ns: AtomicU64::new(0),
            appender: Mutex::default(),
            last: AtomicU64::new(0),
            appended_ns: AtomicU64::new(0),
            order: Order::default(),
            may_precede: AtomicBool::new(false),
            unordered: AtomicBool::new(false),
            groups: Groups::new(synced, options.bytes),
            failure: OnceLock::new(),
            tree_failed: AtomicBool::new(false),
            syncs: Syncs::default(),
            bears: OnceLock::new(),
            waits: Mutex::default(),
            write_buffer: WriteBuffer::default(),
            room_made: Mutex::default(),
            waiting: match planted(Bug::WaitersApart) {
                true => Arc::default(),
                false => tree.waiters(),
            },
            counters: Counters::default(),
            tree,
            journal,
            options,
        })
    }

    /// Whether the mark's time will be the number of [`mark::reached`](crate::mark::reached).
    pub fn asks_names_at_sync(&self) -> bool {
        self.options.names_at_sync && self.tree.keeps_order().is_ok()
    }

    /// Makes the tree record which group was synced last.
    pub fn bear(&self, group: GroupMark<T::Node>) {
        if self.options.names_at_sync {
            match group.can_reach(&self.tree) {
                Ok(()) => self.may_precede.store(true, Ordering::Relaxed),
                Err(why) => self.tell_order("has no effect", &why),
            }
        }
        let _ = self.bears.set(group);
        self.look_at_clock();
    }

    /// A crash may take the change that this makes in the tree.
    fn look_at_clock(&self) {
        let Some(group) = self.bears.get() else { return };
        self.clock.look(|| group.clock(&self.tree));
    }

    fn tell_order(&self, what: &str, why: &Unordered) {
        forebay::diagnostics::warn(format_args!(
            "forebay: {}: --names-at-sync {what}: {why}",
            String::from_utf8_lossy(&self.identity.path)
        ));
    }

    /// Somebody may have mounted the tree's file system otherwise.  Then each later change waits
    /// for its entry, until the end of the mount.
    fn look_at_order(&self) {
        let precede = self.names_wait_for_syncs() && !self.unordered.load(Ordering::Relaxed);
        if let (true, Err(why)) = (precede, self.tree.keeps_order()) {
            self.unordered.store(true, Ordering::Relaxed);
            self.tell_order("has no effect any more, until the next mount", &why);
        }
    }

    pub fn tree(&self) -> &T {
        &self.tree
    }

    pub fn journal(&self) -> &J {
        &self.journal
    }

    pub fn root(&self) -> &Arc<Inode<T::Node>> {
        &self.root
    }

    pub fn failure(&self) -> Option<&Failure> {
        self.failure.get()
    }

    /// Changes that are not synced in the tree yet.
    pub fn pending(&self) -> Unsynced {
        self.groups.unsynced()
    }

    /// How long an operation has waited for space in the log; zero: none waits.
    pub fn waits_for_space(&self) -> Duration {
        let waits = self.waits.lock().unwrap_or_else(PoisonError::into_inner);
        waits.iter().map(Instant::elapsed).max().unwrap_or_default()
    }

    // --- entries -------------------------------------------------------------

    /// The tree has failed, or what it has is not known.
    fn fail(&self, what: impl Into<String>, errno: Errno) -> Errno {
        self.tree_failed.store(true, Ordering::SeqCst);
        self.end_by(Failure { what: what.into(), errno: errno.raw_os_error(), of_log: false })
    }

    /// The log takes nothing more.  The tree has what programs were told.
    fn fail_log(&self, error: &JournalError) -> Errno {
        let errno = Errno::IO.raw_os_error();
        self.end_by(Failure { what: error.to_string(), errno, of_log: true })
    }

    /// Nobody will find the log again: nothing more is acknowledged.
    pub fn lose_log(&self, cause: &str) {
        self.fail_log(&JournalError::Failed(cause.into()));
    }

    fn end_by(&self, failure: Failure) -> Errno {
        let _ = self.failure.set(failure);
        self.groups.fail();
        Errno::IO
    }

    fn alive(&self) -> Result<()> {
        match self.groups.is_over() {
            false => Ok(()),
            true => Err(Errno::IO),
        }
    }

    /// Returns when the tree may have the change.
    fn until_tree_may(&self, entry: Appended, when: When) -> Result<()> {
        let precedes = when == When::Appended || planted(Bug::SizesTooEarly);
        match precedes && self.precedes(entry) {
            true => Ok(()),
            false => self.wait(entry.ticket),
        }
    }

    /// Whether the tree gets a change before its entry is durable.
    fn precedes(&self, entry: Appended) -> bool {
        let Appended { number, ticket } = entry;
        let unordered = self.unordered.load(Ordering::Relaxed);
        if !self.names_wait_for_syncs() || unordered || self.is_settled(ticket) {
            return false;
        }
        let Some(tree) = self.bears.get() else { return false };
        let longest = self.options.interval.min(NOT_DURABLE);
        self.order.precedes((number, ticket), longest, |ticket| self.is_settled(ticket))
            && (planted(Bug::ReachedTooLate) || tree.reach(&self.tree, number).is_ok())
    }

    /// Changes of names and attributes may not be durable before a sync.
    pub fn names_wait_for_syncs(&self) -> bool {
        self.may_precede.load(Ordering::Relaxed)
    }

    /// The ticket of all entries so far.
    fn last_ticket(&self) -> Ticket {
        Ticket(self.last.load(Ordering::Acquire))
    }

    /// Before the tree syncs a single file: it must not keep a later change of names without an
    /// earlier one, if it lacks the entry of that.
    fn before_single_sync(&self) -> Result<Option<order::Single<'_>>> {
        if !self.names_wait_for_syncs() {
            return Ok(None);
        }
        let single = self.order.single();
        self.wait(self.last_ticket())?;
        Ok(Some(single))
    }

    /// An entry is durable, or never will be.
    fn is_settled(&self, ticket: Ticket) -> bool {
        ticket.is_durable() || self.journal.is_settled(ticket)
    }

    /// Waits until an entry and all before it are durable.
    fn wait(&self, ticket: Ticket) -> Result<()> {
        if ticket.is_durable() {
            return Ok(());
        }
        // In this order: the entry of this time has no later ticket than the last one.
        let appended = self.appended_ns.load(Ordering::Acquire);
        let last = self.last_ticket();
        self.journal.wait(ticket).map_err(|e| self.fail_log(&e))?;
        if ticket.0 >= last.0 {
            self.alive_ns.store(appended, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Waits until the logged content is durable, and lets go of its group.
    fn settle(&self, logged: Logged<'_, T>) -> Result<()> {
        self.wait(logged.ticket)
    }

    /// Appends an entry, which is not durable yet.  Nothing that the caller holds may be what a
    /// sync of a group waits for.
    /// `involved` are the inodes that its records name, except for a new one.
    fn submit(
        &self,
        what: What,
        involved: &[&Arc<Inode<T::Node>>],
        names: bool,
        body: &Records,
    ) -> Result<(Held<'_, T>, Appended)> {
        let mut waits = None;
        loop {
            let syncs = self.groups.syncs();
            let hold = self.groups.enter().ok_or(Errno::IO)?;
            match self.append(what, &hold, involved, names, body)? {
                Some(entry) => return Ok((hold, entry)),
                // An operation that waits for a sync must hold no group.
                None => drop(hold),
            }
            waits.get_or_insert_with(|| Wait::begin(&self.waits));
            self.groups.wait_for_space(syncs, self.options.space_wait);
        }
    }

    /// Appends an entry.  `None`: there is no space.
    fn append(
        &self,
        what: What,
        hold: &Held<'_, T>,
        involved: &[&Arc<Inode<T::Node>>],
        names: bool,
        body: &Records,
    ) -> Result<Option<Appended>> {
        loop {
            match self.try_append(what, hold, involved, names, body)? {
                Ok(appended) => return Ok(appended),
                // Who waits for the log's disk keeps nobody from the appends.
                Err(before) => self.journal.wait_for_writes(before),
            }
        }
    }

    fn try_append(
        &self,
        what: What,
        hold: &Held<'_, T>,
        involved: &[&Arc<Inode<T::Node>>],
        names: bool,
        body: &Records,
    ) -> Result<std::result::Result<Option<Appended>, Writes>> {
        // Appends come one after another: an inode is bound before an entry names it, and
        // entries are in the order of the operations.  They become durable in this order.
        let mut appender = self.appender.lock().unwrap_or_else(PoisonError::into_inner);
        let appender = &mut *appender;
        let number = appender.number + 1;
        appender.binds.clear();
        let mut touched = Vec::new();
        if appender.named != hold.txg {
            appender.binds.push(&Record::Tree {
                file_system: self.identity.file_system,
                root: &self.identity.root.0,
                path: &self.identity.path,
            });
        }
        // If the clock was set back, earlier changes have later times than the entries.
        let now = self.clock.now_ns();
        let latest = self.latest_ns.fetch_max(now, Ordering::Relaxed).max(now);
        let told = (hold.txg, latest);
        if now < latest && appender.told != told {
            appender.binds.push(&Record::Latest { time_ns: latest });
        }
        for (i, inode) in involved.iter().enumerate() {
            let again = involved[..i].iter().any(|other| Arc::ptr_eq(other, inode));
            if inode.bound.load(Ordering::Relaxed) == hold.txg || again {
                continue;
            }
            let handle = self.tree.handle(&inode.node)?;
            // A replay looks at the name of its Create anyway.  The kernel takes 15 us to tell
            // the path of a new descriptor.
            let named = inode.made.load(Ordering::Relaxed) == hold.txg;
            let path = match named && self.tree.opens_by_handle() {
                true => Vec::new(),
                false => self.tree.path_hint(&inode.node),
            };
            let (fid, kind) = (inode.fid, inode.kind);
            appender.binds.push(&Record::Bind { fid, kind, handle: &handle.0, path: &path });
            if let Some(time) = self.tree.born(&inode.node)? {
                appender.binds.push(&Record::Born { fid: inode.fid, time });
            }
            touched.push((*inode).clone());
        }
        let records = appender.binds.count() + body.count();
        let header = record::header(number, now, records);
        let pieces = [&header[..], appender.binds.bytes(), body.bytes()];
        let bytes: u64 = pieces.iter().map(|p| p.len() as u64).sum();
        if bytes > self.journal.entry_max() as u64 {
            return Err(Errno::NOSPC);
        }
        let ticket = match self.journal.append(hold.txg, &pieces) {
            Ok(ticket) => ticket,
            Err(JournalError::Full) => return Ok(Ok(None)),
            Err(JournalError::Busy(before)) => {
                if planted(Bug::BusyKeepsAll) {
                    self.journal.wait_for_writes(before);
                }
                return Ok(Err(before));
            }
            Err(failed @ JournalError::Failed(_)) => return Err(self.fail_log(&failed)),
        };
        self.last.store(ticket.0, Ordering::Release);
        self.appended_ns.store(now, Ordering::Release);
        if ticket.is_durable() {
            self.alive_ns.store(now, Ordering::Relaxed);
        }
        if what == What::Change && self.names_wait_for_syncs() {
            self.order.begin(number);
        }
        appender.number = number;
        appender.named = hold.txg;
        if now < latest {
            appender.told = told;
        }
        for inode in &touched {
            inode.bound.store(hold.txg, Ordering::Relaxed);
        }
        if what != What::Sign {
            hold.appended(bytes, names, &mut touched);
        }
        self.counters.entries.fetch_add(1, Ordering::Relaxed);
        self.counters.bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(Ok(Some(Appended { number, ticket })))
    }

    /// Returns the tree's answer to the change that the entry of this number announced.
    fn outcome<R>(&self, hold: Held<'_, T>, number: u64, done: Result<R>) -> Result<R> {
        if done.is_err() {
            // The entry must not be replayed.
            let void = Records::of(&Record::Void { number });
            match self.append(What::Word, &hold, &[], false, &void)? {
                Some(entry) => self.wait(entry.ticket)?,
                None => {
                    // If the group is synced before there is space, this revokes nothing.
                    drop(hold);
                    let (_hold, entry) = self.submit(What::Word, &[], false, &void)?;
                    self.wait(entry.ticket)?;
                }
            }
        }
        done
    }

    /// Runs an operation: first its entry, then the change of the tree.
    fn operation<R>(
        &self,
        involved: &[&Arc<Inode<T::Node>>],
        names: bool,
        record: &Record<'_>,
        tree: impl Fn(&Held<'_, T>) -> Result<R>,
    ) -> Result<R> {
        self.operation_of(When::Appended, involved, names, &Records::of(record), tree)
    }

    /// Runs an operation that several records describe.
    fn operation_of<R>(
        &self,
        when: When,
        involved: &[&Arc<Inode<T::Node>>],
        names: bool,
        body: &Records,
        tree: impl Fn(&Held<'_, T>) -> Result<R>,
    ) -> Result<R> {
        let mut room = Room::default();
        loop {
            self.alive()?;
            let (hold, entry) = self.submit(What::Change, involved, names, body)?;
            let waits = self.names_wait_for_syncs();
            let under_way = waits.then(|| self.order.under_way(entry.number));
            if !planted(Bug::TreeBeforeWait) && !planted(Bug::NamesNotWaited) {
                self.until_tree_may(entry, when)?;
            }
            let done = tree(&hold);
            if planted(Bug::TreeBeforeWait) {
                self.wait(entry.ticket)?;
            }
            if let (true, Some(tree)) = (planted(Bug::ReachedTooLate), self.bears.get()) {
                tree.reach(&self.tree, entry.number)?;
            }
            // A change that waits for space in the tree holds up no other one.
            drop(under_way);
            // The group is no longer held by then.
            match self.outcome(hold, entry.number, done) {
                Err(e) if self.makes_room(&mut room, e) => {}
                done => return done,
            }
        }
    }

    /// Runs a change of an inode's attributes or content.  An inode without a name is gone
    /// after a crash, so nothing of it is logged.
    fn change<R>(
        &self,
        when: When,
        inode: &Arc<Inode<T::Node>>,
        record: &Record<'_>,
        tree: impl Fn() -> Result<R>,
    ) -> Result<R> {
        self.change_of(when, inode, &Records::of(record), tree)
    }

    fn change_of<R>(
        &self,
        when: When,
        inode: &Arc<Inode<T::Node>>,
        body: &Records,
        tree: impl Fn() -> Result<R>,
    ) -> Result<R> {
        self.alive()?;
        match self.tree.attr(&inode.node)?.nlink {
            0 => self.with_room(tree),
            _ => self.operation_of(when, &[inode], false, body, |_| tree()),
        }
    }
}

/// Nanoseconds since 1970.
fn ns_of(time: Time) -> u64 {
    let seconds = u64::try_from(time.seconds).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(time.nanoseconds.into())
}

#[cfg(test)]
mod tests;
