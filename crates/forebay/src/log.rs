// SPDX-License-Identifier: MIT OR Apache-2.0
//! Named logs.  A log holds what its consumer has promised but not yet stored in its final
//! place.

mod claimed;
mod header;
mod info;

use std::sync::Arc;
use std::time::Duration;

use forebay_engine::groups::TicketState;
use forebay_engine::logs::{Header, LogInfo as RawInfo, Name};
use forebay_engine::{sys, Decision};

pub use claimed::{Claimed, Effect, LogEntry};
pub use header::{LogHeader, LOG_HEADER_BYTES};
pub(crate) use info::log_info;

use crate::engine::{Code, Wait};
use crate::error::{Error, Result};
use crate::grouped::Sender;
use crate::opened::OpenPool;
use crate::report::{EntryName, LogInfo, Uuid};
use crate::shared_pool::SharedPool;
use crate::wait::Waiter;

/// The entries that an entry depends on: all of earlier generations, none of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Generation {
    /// The entry depends on all that were appended before.
    New,
    /// It depends on what the last one depends on, and not on that one.
    Same,
}

/// An entry that has its place in the log: see [`Log::try_submit`].  Of two tickets of a log the
/// one of the later entry is waited for, and the other one is durable, too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ticket(pub u64);

impl Ticket {
    /// The entry was durable when it was appended, as in a pool in memory.
    pub fn is_durable(self) -> bool {
        self.0 == 0
    }
}

/// The result of a submit: see [`Log::submit_now`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Submitted {
    /// The entry has its place.
    Done(EntryName, Ticket),
    /// It has not.  The caller drops what others may need, calls [`Log::wait_for_writes`], and
    /// tries again.
    Busy(Writes),
}

/// The writes of a pool's disk that had ended before a submit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Writes(u64);

/// An append without space tries again as often as this, if meanwhile something was sent that
/// may have freed a chunk.
const FREED_TRIES: u32 = 8;

/// How to use a log.
#[derive(Clone, Debug, Default)]
pub struct LogOptions {
    /// How long an append may wait for space in a full pool; `None`: as long as it takes.
    /// Space comes when this log is synced, another one, or a volume destaged.
    pub full_timeout: Option<Duration>,
}

/// A log of an open pool, which it keeps open: clone it, and use it from any number of
/// threads.
///
/// A new log is in no state ([`LogState::None`]).  [`Log::create`] begins a logging
/// period; an [`append`](Log::append) is durable when it returns, and its entry becomes
/// obsolete when its transaction group (txg) is [synced](Log::sync).  After a crash or a
/// close the log is [claimed](Log::claim), what is left of it replayed, and the next
/// period begun:
///
/// ```
/// use forebay::{create, CreateOptions, Effect, Generation, LogHome, LogOptions, LogState};
/// use forebay::{Pool, PoolOptions};
///
/// # fn main() -> forebay::Result<()> {
/// # let path = std::env::temp_dir().join(format!("doc-log-{}.pool", std::process::id()));
/// # let size = CreateOptions {
/// #     size_bytes: Some(8 << 20),
/// #     chunk_size_bytes: 256 << 10,
/// #     ..Default::default()
/// # };
/// create(&path, &size)?;
/// let pool = Pool::open(&path, &PoolOptions::default())?;
/// pool.log_add("intent", LogHome::Embedded)?;
/// let log = pool.log("intent", &LogOptions::default())?;
/// log.create(0)?;
/// log.append(1, Generation::New, &[b"a=1"])?; // durable when it returns
/// log.append(2, Generation::New, &[b"b=", b"2"])?;
/// log.sync(1)?; // what txg 1 says is durable elsewhere
/// # drop(log);
/// # pool.close()?;
///
/// // After a crash:
/// let pool = Pool::open(&path, &PoolOptions::default())?;
/// let log = pool.log("intent", &LogOptions::default())?;
/// assert_eq!(log.info()?.state, LogState::Logging);
/// let mut claimed = log.claim()?;
/// let mut left = Vec::new();
/// claimed.replay(|entry, _checkpoint| {
///     left.push(entry.data.to_vec()); // and make durable what it says
///     Effect::Durable
/// })?;
/// assert_eq!(left, [b"b=2"]);
/// claimed.destroy()?;
/// log.create(2)?; // and so on
/// # drop(log);
/// # pool.close()?;
/// # std::fs::remove_file(&path).unwrap();
/// # Ok(())
/// # }
/// ```
///
/// # Replay in a volume of the same pool
/// While entries are replayed nothing of the pool is held: their effects may be writes to
/// its volumes, which may wait for space.
#[derive(Clone, Debug)]
pub struct Log(Arc<Inner>);

#[derive(Debug)]
pub(crate) struct Inner {
    pool: Arc<OpenPool>,
    index: u16,
    name: String,
    full_timeout: Option<Duration>,
}

impl Log {
    pub(crate) fn open(pool: &Arc<OpenPool>, index: u16, name: &str, o: &LogOptions) -> Log {
        Log(Arc::new(Inner {
            pool: pool.clone(),
            index,
            name: name.into(),
            full_timeout: o.full_timeout,
        }))
    }

    pub(crate) fn handle(&self) -> &Arc<Inner> {
        &self.0
    }

    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The pool is written in groups to a disk, so that an entry has a ticket.
    pub fn is_on_disk(&self) -> bool {
        self.core().sender.is_some()
    }

    pub fn info(&self) -> Result<LogInfo> {
        Ok(log_info(self.0.index, &self.raw_info()?))
    }

    /// Begins a logging period, from no state.  `synced` is the consumer's last synced
    /// txg: the first entries are of the three after it.  Returns the header, which a
    /// consumer that keeps it stores before the first append.
    pub fn create(&self, synced: u64) -> Result<LogHeader> {
        self.create_as(Uuid::random()?, synced)
    }

    /// Does the same with a GUID of the caller's, which no other log may have.  Each period
    /// needs a new one.
    pub fn create_as(&self, guid: Uuid, synced: u64) -> Result<LogHeader> {
        let engine = &self.core().engine;
        self.settled("create", |wake| engine.log_create(self.0.index, &guid.0, synced, wake))
            .map(LogHeader)
    }

    /// Appends an entry of the txg, durable when the call returns.  The pieces, one after the
    /// other, are its body.  Waits for concurrent calls, and for space as long as
    /// [`LogOptions::full_timeout`] allows.
    pub fn append(&self, txg: u64, generation: Generation, pieces: &[&[u8]]) -> Result<EntryName> {
        self.append_within(self.0.full_timeout, txg, generation, pieces)
    }

    /// Like `append`, but a full pool is [`Error::LogFull`] at once.
    pub fn try_append(
        &self,
        txg: u64,
        generation: Generation,
        pieces: &[&[u8]],
    ) -> Result<EntryName> {
        self.append_within(Some(Duration::ZERO), txg, generation, pieces)
    }

    /// Like `try_append`, but returns as soon as the entry has its place in the log.  It is
    /// durable when [`Log::wait`] of the ticket has returned.  Entries become durable in their
    /// order, and those that are waited for together share a write of the disk.  In a pool in
    /// memory the entry is durable at once.
    pub fn try_submit(
        &self,
        txg: u64,
        generation: Generation,
        pieces: &[&[u8]],
    ) -> Result<(EntryName, Ticket)> {
        self.submit_within(Some(Duration::ZERO), txg, generation, pieces)
    }

    /// Like `try_submit`, but never waits for the disk: where the entry has to wait until what was
    /// appended before is written, that is told.
    pub fn submit_now(
        &self,
        txg: u64,
        generation: Generation,
        pieces: &[&[u8]],
    ) -> Result<Submitted> {
        self.submit_or_busy(Some(Duration::ZERO), txg, generation, pieces, true)
    }

    /// Writes what such a submit has to wait for, or waits until another thread has written
    /// some of it.
    pub fn wait_for_writes(&self, before: Writes) {
        let core = self.core();
        if let Some(sender) = &core.sender {
            core.help(sender, Wait::Ticket, before.0);
        }
    }

    /// Waits until the entry of the ticket is durable, with all of this log before it.  Fails if
    /// the pool has failed first: then the entry may be there after a restart, or not.
    pub fn wait(&self, ticket: Ticket) -> Result<()> {
        match ticket.is_durable() {
            true => Ok(()),
            false => self.wait_durable(ticket),
        }
    }

    /// Whether a wait for the ticket would return at once.
    pub fn is_settled(&self, ticket: Ticket) -> bool {
        ticket.is_durable() || self.core().engine.ticket(ticket.0) != TicketState::Pending
    }

    fn append_within(
        &self,
        limit: Option<Duration>,
        txg: u64,
        generation: Generation,
        pieces: &[&[u8]],
    ) -> Result<EntryName> {
        let (name, ticket) = self.submit_within(limit, txg, generation, pieces)?;
        self.wait(ticket)?;
        Ok(name)
    }

    #[inline]
    fn submit_within(
        &self,
        limit: Option<Duration>,
        txg: u64,
        generation: Generation,
        pieces: &[&[u8]],
    ) -> Result<(EntryName, Ticket)> {
        match self.submit_or_busy(limit, txg, generation, pieces, false)? {
            Submitted::Done(name, ticket) => Ok((name, ticket)),
            Submitted::Busy(_) => unreachable!("this submit waits"),
        }
    }

    #[inline]
    fn submit_or_busy(
        &self,
        limit: Option<Duration>,
        txg: u64,
        generation: Generation,
        pieces: &[&[u8]],
        tells_busy: bool,
    ) -> Result<Submitted> {
        let (core, mut waiter) = (self.core(), Waiter::default());
        let (mut new, mut tries) = (generation == Generation::New, 0);
        core.check_there()?;
        loop {
            let (mut wake, mut name) = (0, Name::default());
            let seen = core.sender.as_ref().map_or(0, Sender::ends);
            let (engine, index) = (&core.engine, self.0.index);
            let appended = engine.log_append_as(index, txg, new, pieces, &mut name, &mut wake);
            if wake != 0 {
                core.wake(wake);
            }
            let wait = match appended.map_err(|e| self.append_error(e, txg, pieces))? {
                Decision::Wait(wait) => wait,
                _ => {
                    if let Some(sender) = &core.sender {
                        sender.submitted(self.0.index, name.ticket);
                    }
                    let appended = EntryName { generation: name.gen, id: name.id };
                    return Ok(Submitted::Done(appended, Ticket(name.ticket)));
                }
            };
            if tells_busy && wait == Wait::Ticket {
                return Ok(Submitted::Busy(Writes(seen)));
            }
            // The next entry begins the generation, this one or another's: to begin one more
            // would let those who append all the time overtake it again and again.
            new = false;
            if let Some(sender) = &core.sender {
                core.help(sender, wait, seen);
                let may_be_freed = wait == Wait::Space && sender.ends() != seen;
                tries += u32::from(may_be_freed);
                if wait == Wait::Ticket || (may_be_freed && tries <= FREED_TRIES) {
                    continue;
                }
            }
            let waited = waiter.wait(core, wait, limit);
            waited.map_err(|gave_up| Error::LogFull {
                name: self.0.name.clone(),
                waited_ms: gave_up.waited.as_millis() as u64,
                held: core.held_by_detached(&core.volumes()).map(Box::new),
            })?;
        }
    }

    /// Returns when the entry is on the disk of a pool that is written in groups.
    #[cold]
    fn wait_durable(&self, ticket: Ticket) -> Result<()> {
        let (core, mut wake) = (self.core(), 0);
        let sender = core.sender.as_ref().expect("a pool that gives tickets is written in groups");
        let done = sender.wait(self.0.index, ticket.0, &mut wake);
        core.wake(wake);
        done
    }

    /// Makes entries up to this txg obsolete: their content is durable elsewhere.  Returns the
    /// new header, for a consumer that keeps it; chunks are free before that header is stored.
    /// So such a consumer has stored the txg before this call, and passes it when it claims the
    /// log after a crash ([`Log::claim_with`]): a claim that knows only an older txg misses the
    /// freed entries.
    pub fn sync(&self, txg: u64) -> Result<LogHeader> {
        let mut wake = 0;
        self.core().check_there()?;
        let synced = self.core().engine.log_sync(self.0.index, txg, &mut wake);
        self.core().wake(wake);
        self.core().push();
        synced.map(LogHeader).map_err(|e| self.error("sync", e))
    }

    /// Claims a log whose header is in the pool, once after each open of the pool; the
    /// remaining entries can then be replayed.  In a pool opened read-only nothing is stored,
    /// so claim and replay only read.
    pub fn claim(&self) -> Result<Claimed> {
        let mut header = Header::default();
        if self.raw_info()?.consumer {
            return Err(self.refused(
                "its header is with the consumer, and the claim was without it",
                "claim it with the header stored (Log::claim_with)",
                sys::FBY_E_LOG_HEADER,
            ));
        }
        self.claim_as(0, &mut header)
    }

    /// Claims a log whose header is with the consumer.  `stored`: the header as it was stored;
    /// `synced`: the txg that the consumer knows to be synced.  [`Claimed::header`] must be
    /// stored before any other call.  A log that was never created has the header
    /// `LogHeader::default()`.
    pub fn claim_with(&self, stored: &LogHeader, synced: u64) -> Result<Claimed> {
        if !self.raw_info()?.consumer {
            return Err(self.refused(
                "its header is in the pool, and the claim brought another",
                "claim it without one (Log::claim)",
                sys::FBY_E_LOG_HEADER,
            ));
        }
        self.claim_as(synced, &mut stored.0.clone())
    }

    fn claim_as(&self, synced: u64, header: &mut Header) -> Result<Claimed> {
        let given = Uuid(header.guid);
        let claimed = self.core().engine.log_claim(self.0.index, synced, header);
        let (nodes, outcome) = claimed.map_err(|e| match e.0 {
            sys::FBY_E_LOG_PERIOD => self.stale(e, given),
            _ => self.error("claim", e),
        })?;
        Claimed::new(self.clone(), nodes, &outcome)
    }

    /// To no state, whatever it holds: its entries are obsolete, or given up.  Of a log
    /// whose header is with the consumer the space is free when the header returned is
    /// stored and [`Log::release`] called.
    pub fn destroy(&self) -> Result<LogHeader> {
        let engine = &self.core().engine;
        self.settled("destroy", |wake| engine.log_destroy(self.0.index, wake)).map(LogHeader)
    }

    /// After [`Log::destroy`], when the consumer has stored its header.
    pub fn release(&self) -> Result<()> {
        let engine = &self.core().engine;
        self.settled("release", |wake| Ok((engine.log_release(self.0.index, wake)?, ())))
    }

    fn core(&self) -> &Arc<SharedPool> {
        self.0.pool.core()
    }

    fn raw_info(&self) -> Result<RawInfo> {
        self.core().engine.log_info(self.0.index).map_err(|e| self.error("look", e))
    }

    /// Calls again while a slot is busy, which it is for a moment.
    fn settled<T>(
        &self,
        doing: &'static str,
        mut f: impl FnMut(&mut u32) -> Result<(Decision, T), Code>,
    ) -> Result<T> {
        let (core, mut waiter) = (self.core(), Waiter::default());
        loop {
            let mut wake = 0;
            let seen = core.sender.as_ref().map_or(0, Sender::ends);
            let called = f(&mut wake);
            core.wake(wake);
            match (called.map_err(|e| self.error(doing, e))?, &core.sender) {
                ((Decision::Wait(wait @ Wait::Ticket), _), Some(sender)) => {
                    core.help(sender, wait, seen);
                }
                ((Decision::Wait(_), _), _) => {
                    // A slot is waited for as long as it takes.
                    let _ = waiter.wait(core, Wait::Slot, None);
                }
                ((_, done), _) => {
                    core.push();
                    return Ok(done);
                }
            }
        }
    }

    // --- errors ------------------------------------------------------------

    fn refused(&self, cause: impl Into<String>, way_out: impl Into<String>, code: i32) -> Error {
        Error::Log { name: self.0.name.clone(), cause: cause.into(), way_out: way_out.into(), code }
    }

    fn error(&self, doing: &'static str, e: Code) -> Error {
        match (e.0, self.core().engine.log_info(self.0.index)) {
            (sys::FBY_E_LOG_STATE, Ok(info)) => self.state_error(doing, &info),
            _ => self.core().log_error(&self.0.name, e),
        }
    }

    /// Names the expected header and the given one.
    fn stale(&self, e: Code, given: Uuid) -> Error {
        let newest = match self.raw_info() {
            Ok(info) => Uuid(info.header.guid),
            Err(e) => return e,
        };
        let cause = match given {
            given if given == newest => format!("{}: {given} has ended since then", e.message()),
            given if given == Uuid::default() => {
                format!("{}: {newest}, and none was brought", e.message())
            }
            given => format!("{}: {newest}, and that of {given} was brought", e.message()),
        };
        let way_out = "bring what was stored by the last call that returned a header; whoever has \
                       lost that gives up what the log holds: destroy it, release it, create it";
        self.refused(cause, way_out, e.0)
    }

    /// Not in the state for what was asked: which it is in, and what would be right.
    fn state_error(&self, doing: &'static str, info: &RawInfo) -> Error {
        let (cause, way_out) = match (doing, info.header.state, info.claimed) {
            ("claim", _, true) => (
                "it is claimed already",
                "use the claim that was made; each open of the pool has one",
            ),
            (_, sys::FBY_LOG_REPLAYING, _) => (
                "what is left of it is being replayed",
                "replay it to the end, or give it up, and create it anew",
            ),
            (_, sys::FBY_LOG_LOGGING, _) => {
                ("it is in use, with entries that count", "destroy it first")
            }
            _ => ("it is in no state: not created, or destroyed", "create it first"),
        };
        self.refused(format!("{doing} refused: {cause}"), way_out, sys::FBY_E_LOG_STATE)
    }

    fn append_error(&self, e: Code, txg: u64, pieces: &[&[u8]]) -> Error {
        let Ok(info) = self.core().engine.log_info(self.0.index) else {
            return self.error("append", e);
        };
        let synced = info.header.at.synced;
        match e.0 {
            sys::FBY_E_LOG_OBSOLETE => self.refused(
                format!("append of txg {txg} refused: txg {synced} is synced already"),
                format!("append to txg {} to {}", synced + 1, synced + sys::FBY_LOG_TXGS as u64),
                e.0,
            ),
            sys::FBY_E_LOG_SKIPS => self.refused(
                format!("append of txg {txg} refused: it is more than three above {synced}, the last one synced"),
                format!("sync, or append to txg {} to {}", synced + 1, synced + sys::FBY_LOG_TXGS as u64),
                e.0,
            ),
            sys::FBY_E_LOG_TOO_LARGE => self.refused(
                format!(
                    "append of {} bytes refused: the largest entry has {}",
                    pieces.iter().map(|p| p.len()).sum::<usize>(),
                    info.most
                ),
                "split it, or use a pool of larger chunks",
                e.0,
            ),
            _ => self.error("append", e),
        }
    }
}
