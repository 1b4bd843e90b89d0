// SPDX-License-Identifier: MIT OR Apache-2.0
//! The mark on an origin while a pool may hold data that the origin lacks.  Without the pool,
//! the mark shows that writes may be missing, which pool holds them, since when, and how much
//! at most.
//!
//! The order, which [`Marker`] keeps; `marks` is the number in the volume's record
//! ([`sys::FBY_MARK_BEGIN`] and so on):
//!
//! | step | a crash after it leaves |
//! |---|---|
//! | a write is in the pool | an entry that nobody was told of; no mark; `marks` even, so the pool may have the origin |
//! | `marks` counted, even | the same; copies of the pool from before are older now |
//! | the mark is durable | origin marked, and this pool may have it |
//! | `marks` odd | the same; should the mark go without this pool, it notices |
//! | the write is acknowledged | the same |
//! | all is on the origin, flushed, and the watermark durable | the same: a mark that says too much |
//! | `marks` even | the same |
//! | the mark is taken away, durably | a complete origin |
//! | `marks` counted, even | the same; a state of the origin that bears a mark is an older one now |
//!
//! An origin that bears its mark itself ([`Keep::is_borne`]) may be rolled back together with
//! the mark.  Such a mark states exactly the last number that was set, and `marks` tells which
//! that is ([`sys::FBY_MARK_AGAIN`]).  Destage sets another number before the pool releases
//! written pages ([`Marker::advance`]), so that an earlier state of the origin has a lower one.
//!
//! So a write only loads a flag.  The thread that removes the mark clears that flag first.
//! After a barrier on all CPUs it checks whether anything is in the pool: either it sees the
//! write, or the writer sees the cleared flag.

mod content;
mod file;
mod host;
mod keep;
#[cfg(test)]
mod owed;
mod place;
#[cfg(test)]
mod planted;
#[cfg(test)]
mod sizeless;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod upgraded;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{compiler_fence, AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use forebay_engine::policy::{holds, judge_mark, mark_number, MarkSays, MarkVerdict};
use forebay_engine::sys;
use rustix::io::Errno;
use rustix::thread::{membarrier, MembarrierCommand};

use crate::engine::Engine;
use crate::errno::again;
use crate::error::{volume_error, Error, Result};
use crate::origin::Origin;
use crate::report::{Uuid, VolumeInfo};

pub use content::Mark;
pub(crate) use content::{now, MOST_BYTES as MARK_MOST};
pub use file::{file_identity, FileMark, MapClaim, MarkRefusal};
pub use host::accept_host;
pub(crate) use host::host;
pub(crate) use keep::Keep;
pub use keep::{of_mark_sync, state_dir, Found, ATTRIBUTE as MARK_ATTRIBUTE};
pub(crate) use place::{mark_at, mark_of, mark_on, marks_on_host};
pub use place::{Attaching, Completed, OriginMarks, OriginState, OriginStatus};

#[cfg(test)]
use planted::{planted, Bug};

/// Without tests no mistake is planted.
#[cfg(not(test))]
macro_rules! bug {
    ($name:ident) => {
        false
    };
}
#[cfg(test)]
macro_rules! bug {
    ($name:ident) => {
        planted(Bug::$name)
    };
}
pub(crate) use bug;

/// The part of an origin that bears a mark.
#[derive(Debug)]
pub struct MarkedBy<'a> {
    /// The origin's id, which survives a restart.  It names the file with the mark if the
    /// origin cannot bear the mark itself.
    pub name: String,
    pub on: MarkedOn<'a>,
}

/// The place of a mark.
#[derive(Clone, Debug)]
pub enum MarkedOn<'a> {
    /// In a file of this host: the origin cannot bear a mark.
    Host,
    /// On a regular file, as an attribute, if its file system has those.
    File(std::os::fd::BorrowedFd<'a>),
    /// On the file itself, through the caller's open file description: for a user who counts
    /// each failed sync, and may have a lease of the file, which the kernel gives only to the
    /// sole opener.
    Shared(std::os::fd::BorrowedFd<'a>),
    /// On a regular file as `File`, by a descriptor that only names it (O_PATH): an open would
    /// break another process's lease of the file.
    Unopened(std::os::fd::BorrowedFd<'a>),
    /// On the origin, by its own means.
    Origin(Arc<dyn Bears>),
}

/// An origin that bears a mark itself.
pub trait Bears: Send + Sync + fmt::Debug {
    /// The place, for messages.
    fn place(&self) -> String;
    /// None: the origin has no mark.
    fn read(&self) -> io::Result<Option<Vec<u8>>>;
    /// In place of one that is there, whole or not at all; durable when it returns.
    fn write(&self, mark: &[u8]) -> io::Result<()>;
    /// Durable when it returns.
    fn remove(&self) -> io::Result<()>;
}

/// An origin as whoever attaches it knows it.
#[derive(Clone, Debug)]
pub(crate) struct Claim {
    pub pool: Uuid,
    pub volume: String,
    /// The volume as its record is; none: somebody else judges by it.
    pub record: Option<sys::fby_volume_info>,
    pub host: String,
    /// Though the mark is missing, unreadable or another host's.
    pub accept: bool,
    /// [`Keep::is_borne`].
    pub borne: bool,
}

/// Why a pool may not have an origin, and the way out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub cause: String,
    pub way_out: String,
}

/// A volume or a map, to which a mark may belong.
pub(crate) struct Owner<'a> {
    pub pool: Uuid,
    pub name: &'a str,
    pub map: bool,
    pub host: &'a str,
    pub accept: bool,
}

/// The words for a mark in messages.
struct Words {
    what: &'static str,
    /// The option that accepts a loss.
    accept: &'static str,
    /// The advice for another host.
    there: &'static str,
}

impl Owner<'_> {
    fn words(&self) -> Words {
        match self.map {
            false => Words { what: "volume", accept: "--accept-mark", there: "detach it" },
            true => Words { what: "map", accept: "--accept", there: "recover it" },
        }
    }

    /// The mark bears its name.
    pub fn is_named(&self, mark: &Mark) -> bool {
        mark.pool == self.pool && mark.volume == self.name && mark.map == self.map
    }

    /// As far as that can be told without a record: None: there is none, or none that can be
    /// read, and that is accepted.
    pub fn judge<'a>(&self, found: &'a Found, place: &str) -> Result<Option<&'a Mark>, Refusal> {
        let refuse = |cause: String, way_out: String| Err(Refusal { cause, way_out });
        let Words { what, accept, there } = self.words();
        let give_up = give_up(place);
        match found {
            Found::Nothing => Ok(None),
            Found::Damaged(_) if self.accept || bug!(DamagedIsNothing) => Ok(None),
            Found::Damaged(why) => refuse(
                format!(
                "its mark cannot be read ({why}), so it may lack data that some pool holds"
            ),
                format!("if this pool holds it, say so ({accept}); {give_up}"),
            ),
            Found::Marked(mark) if !self.is_named(mark) && !bug!(OtherPoolTaken) => refuse(
                format!("{mark}, and this is {what} {} of pool {}", self.name, self.pool),
                format!(
                    "write back what that pool holds ({} {}); if the pool is gone: {give_up}",
                    mark.way_home(),
                    mark.at
                ),
            ),
            Found::Marked(mark)
                if !host::is_this_host(&mark.host, self.host)
                    && !self.accept
                    && !bug!(OtherHostTaken) =>
            {
                refuse(
                    format!("{mark}, and this is host {}", self.host),
                    format!("{there} there; if that host does not use it any more, and this is the pool as it was there, say so ({accept}){}", host::accept_once(&mark.host)),
                )
            }
            Found::Marked(mark) => Ok(Some(mark)),
        }
    }
}

fn give_up(place: &str) -> String {
    format!("forebay origin accept-loss {place} gives up what that pool holds")
}

/// May this pool have the origin, at this place?
pub(crate) fn judge(found: &Found, claim: &Claim, place: &str) -> Result<(), Refusal> {
    let refuse = |cause: String, way_out: String| Err(Refusal { cause, way_out });
    let owner = Owner {
        pool: claim.pool,
        name: &claim.volume,
        map: false,
        host: &claim.host,
        accept: claim.accept,
    };
    let mark = owner.judge(found, place)?;
    if matches!(found, Found::Damaged(_)) {
        return Ok(());
    }
    let says = mark.map(|mark| MarkSays {
        least: mark.least,
        uuid: mark.volume_uuid.map(|uuid| uuid.0),
        exact: mark.exact,
    });
    let give_up = give_up(place);
    let Some(record) = &claim.record else { return Ok(()) };
    let not_as_it_was = |verdict: MarkVerdict, was: &str| {
        let mark = match found {
            Found::Marked(mark) => mark.to_string(),
            _ => String::new(),
        };
        refuse(
            format!("{mark}, and {}", verdict.cause()),
            format!("attach it with the pool as it was {was}; if that is gone: {give_up}"),
        )
    };
    match judge_mark(record, says, claim.borne) {
        v @ MarkVerdict::Older if !bug!(OlderOriginTaken) => {
            let mark = mark.map(Mark::to_string).unwrap_or_default();
            refuse(
                format!("{mark}, and {}", v.cause()),
                format!("bring back the newest state of the origin; if that is gone, {give_up} and lets this volume have the older state with --accept-mark, without what was written in between"),
            )
        }
        v @ MarkVerdict::Newer if !bug!(OlderCopyTaken) => not_as_it_was(v, "last"),
        v @ MarkVerdict::Other if !bug!(OtherLifeTaken) => {
            not_as_it_was(v, "when that volume was in it")
        }
        MarkVerdict::Missing if !claim.accept && !bug!(MissingTaken) => refuse(
            MarkVerdict::Missing.cause().into(),
            "it was given up, or is another host's, and the origin may have been written since: if not, say so (--accept-mark); else give up what the pool holds (forebay volume remove --discard)".into(),
        ),
        _ => Ok(()),
    }
}

/// Between two numbers that destage sets there is this many times the time that one takes.
const ADVANCE_SHARE: u32 = if cfg!(test) { 0 } else { 16 };

/// The mark of an attached volume's origin.
#[derive(Debug)]
pub(crate) struct Marker {
    /// It is marked, or need not be: a write has nothing to do for it.
    on: AtomicBool,
    /// None: it is never marked.
    keep: Option<Box<dyn Keep>>,
    mark: Mark,
    index: u16,
    /// One thread at a time sets or removes the mark.
    turn: Mutex<Turn>,
}

/// State that a thread which had the turn leaves for those that waited for it.
#[derive(Debug, Default)]
struct Turn {
    /// The origin may bear a mark that nothing requires: removing or setting it failed.
    owed: bool,
    /// The start time in the mark.
    since: u64,
    /// When the last number was set, and how long that took.
    set: Option<(Instant, Duration)>,
    /// When marking last failed, and how: on an origin that is away, the attempt took the full
    /// time limit.
    failed: Option<(Instant, io::Error)>,
}

/// The open pool that asks for a mark.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenMedia<'a> {
    pub engine: &'a Engine,
    pub path: &'a Path,
    pub read_only: bool,
}

/// The mark of an origin that is about to be attached, and may be.
#[derive(Debug)]
pub(crate) struct Judged {
    /// None: it is never marked.
    keep: Option<Box<dyn Keep>>,
    found: Found,
    claim: Claim,
    place: String,
}

impl Judged {
    /// May this pool have the origin?  Nothing is changed by that.
    pub(crate) fn of(
        at: &OpenMedia<'_>,
        info: &VolumeInfo,
        origin: &dyn Origin,
        state: Option<&Path>,
        accept: bool,
    ) -> Result<Judged> {
        let place = origin.info().name;
        let keep = keep_of(origin, state, at.read_only);
        let keep = keep.map_err(|e| match e.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::BUSY) => Error::Busy {
                path: place.clone().into(),
                holder: None,
                way_out: format!("volume {}: another process of this host has this origin, or is about to attach it: stop that first", info.name),
            },
            _ => cannot(info, &place, "looked for", e),
        })?;
        let found = keep.as_ref().map_or(Ok(Found::Nothing), |keep| keep.find());
        let found = found.map_err(|e| cannot(info, &place, "looked for", e))?;
        let raw = at.engine.volume_info(info.index);
        let raw = raw.map_err(|e| volume_error(&info.name, e))?;
        let claim = Claim {
            pool: Uuid(at.engine.info().sb.uuid),
            volume: info.name.clone(),
            record: Some(raw),
            host: host(),
            accept,
            borne: keep.as_ref().is_some_and(|keep| keep.is_borne()),
        };
        if keep.is_some() {
            judge(&found, &claim, &place).map_err(|Refusal { cause, way_out }| {
                let (name, origin) = (info.name.clone(), place.clone());
                Error::WrongOrigin { name, origin, cause, way_out }
            })?;
        }
        Ok(Judged { keep, found, claim, place })
    }

    /// Sets the mark if the origin is marked already or the pool holds data that it lacks.
    /// `info`: that of the volume being attached.
    pub(crate) fn marker(self, at: &OpenMedia<'_>, info: &VolumeInfo) -> Result<Marker> {
        let Judged { keep, found, claim, place } = self;
        let Some(keep) = keep.filter(|_| !at.read_only) else { return Ok(Marker::none()) };
        let holds_some = claim.record.as_ref().is_some_and(holds);
        let sb = at.engine.info().sb;
        let volume_uuid = (!bug!(LifeNotNamed)).then_some(info.uuid);
        let marker = Marker {
            on: AtomicBool::new(false),
            mark: Mark {
                pool: claim.pool,
                volume: claim.volume,
                volume_uuid,
                generation: sb.generation,
                least: 0,
                since: 0,
                at_most_bytes: info.size_bytes.min(match info.static_bytes {
                    0 => u64::from(sb.nchunks) * u64::from(sb.chunk_size),
                    share => share,
                }),
                host: claim.host,
                at: content::short(&at.path.display().to_string()),
                origin: keep.name(),
                exact: claim.borne && volume_uuid.is_some() && !bug!(NotExact),
                map: false,
            },
            keep: Some(keep),
            index: info.index,
            turn: Mutex::default(),
        };
        if at.engine.medium_info().failed {
            // Its disk takes no number, and nothing more is acknowledged: the mark stays as it is.
            let is_marked = matches!(found, Found::Marked(_));
            marker.on.store(is_marked, Ordering::Release);
            marker.turn().owed = !is_marked && found != Found::Nothing;
            return Ok(marker);
        }
        if holds_some || found != Found::Nothing {
            // Its start time also covers data that was not drained then.
            let since = match &found {
                Found::Marked(mark) => mark.since,
                _ => now(),
            };
            // A mark of an earlier version, or of another place, is judged by the least number.
            let there = match &found {
                Found::Marked(mark) => mark.exact,
                found => *found != Found::Nothing,
            };
            let set = marker.set(at.engine, &mut marker.turn(), since, there);
            set.map_err(|e| cannot(info, &place, "set", e))?;
        }
        Ok(marker)
    }
}

/// None: it is never marked.
fn keep_of(
    origin: &dyn Origin,
    state: Option<&Path>,
    read_only: bool,
) -> io::Result<Option<Box<dyn Keep>>> {
    #[cfg(test)]
    if let Some(keep) = origin.keep() {
        return Ok(Some(keep));
    }
    let Some(by) = origin.marked_by() else { return Ok(None) };
    let state = state.map_or_else(state_dir, PathBuf::from);
    Ok(Some(Box::new(keep::Kept::open(&by, &state, read_only)?)))
}

impl Marker {
    /// For an origin that is not marked, or not by this process.
    pub(crate) fn none() -> Marker {
        Marker {
            on: AtomicBool::new(true),
            keep: None,
            mark: Mark::default(),
            index: 0,
            turn: Mutex::default(),
        }
    }

    fn turn(&self) -> MutexGuard<'_, Turn> {
        self.turn.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Whether a write may be acknowledged after its commit; if not, [`mark`](Self::mark) comes first.
    #[inline(always)]
    pub(crate) fn is_on(&self) -> bool {
        compiler_fence(Ordering::SeqCst);
        self.on.load(Ordering::Acquire)
    }

    /// Durable when it returns, unless the origin has everything by now.
    #[cold]
    pub(crate) fn mark(&self, engine: &Engine) -> io::Result<()> {
        let began = Instant::now();
        let mut turn = self.turn();
        if self.on.load(Ordering::Acquire) {
            return Ok(());
        }
        match &turn.failed {
            Some((at, e)) if *at >= began => return Err(again(e)),
            _ => {}
        }
        // Written through the cache and past it, as write-through does.
        let info = engine.volume_info(self.index).map_err(|e| io::Error::other(e.message()))?;
        let set = match self.lacks(engine, &info) {
            true => self.try_to_set(engine, &mut turn),
            false => Ok(()),
        };
        turn.failed = set.as_ref().err().map(|e| (Instant::now(), again(e)));
        set
    }

    /// The origin has lost data that it had: it is marked, whatever the pool holds.
    pub(crate) fn mark_loss(&self, engine: &Engine) -> io::Result<()> {
        let mut turn = self.turn();
        if self.on.load(Ordering::Acquire) {
            return Ok(());
        }
        self.try_to_set(engine, &mut turn)
    }

    /// Sets it anew.  A failed attempt may have set it all the same: it is to be removed then.
    fn try_to_set(&self, engine: &Engine, turn: &mut Turn) -> io::Result<()> {
        let there = turn.owed;
        let set = self.set(engine, turn, now(), there);
        turn.owed = set.is_err() && !bug!(PerhapsForgotten);
        set
    }

    /// `there`: the origin bears a mark that says the last number, perhaps.
    fn set(&self, engine: &Engine, turn: &mut Turn, since: u64, there: bool) -> io::Result<()> {
        let Some(keep) = &self.keep else { return Ok(()) };
        turn.since = since;
        let fail = |e: crate::engine::Code| io::Error::other(e.message());
        let count = |step| engine.volume_mark(self.index, step).map_err(fail);
        let began = Instant::now();
        let replaces = self.mark.exact && there;
        // A number that was counted and perhaps not set is set first: the mark is at most one
        // number late.
        if replaces && !bug!(UnsetNumberSkipped) {
            let marks = engine.volume_info(self.index).map_err(fail)?.marks;
            if is_to_be_set(marks) {
                self.put(keep.as_ref(), mark_number(marks), since)?;
                count(sys::FBY_MARK_SET)?;
            }
        }
        let least = match (bug!(NotCounted), replaces) {
            (true, _) => 0,
            (false, true) => count(sys::FBY_MARK_AGAIN)?,
            (false, false) => count(sys::FBY_MARK_BEGIN)?,
        };
        self.put(keep.as_ref(), least, since)?;
        if !bug!(SetNotCounted) {
            count(sys::FBY_MARK_SET)?;
        }
        turn.set = Some((Instant::now(), began.elapsed()));
        self.on.store(true, Ordering::Release);
        Ok(())
    }

    /// Durable when it returns.
    fn put(&self, keep: &dyn Keep, least: u32, since: u64) -> io::Result<()> {
        if !bug!(NeverSet) {
            keep.put(&Mark { least, since, ..self.mark.clone() })?;
        }
        match bug!(NotSynced) {
            true => Ok(()),
            false => keep.sync(),
        }
    }

    /// Destage has written a round to the origin and flushed the origin, and is about to
    /// release what it wrote: a state of the origin from before that has a lower number from
    /// now on.  Where no number can be set, the last one stays, and the round is not held up.
    pub(crate) fn advance(&self, engine: &Engine) {
        if !self.mark.exact || bug!(NeverAdvanced) {
            return;
        }
        // Waits for a thread that is setting the mark now: its state of the origin may be from
        // before the round.
        let mut turn = self.turn();
        let due = turn.set.is_none_or(|(at, took)| at.elapsed() >= took * ADVANCE_SHARE);
        if due && self.on.load(Ordering::Acquire) {
            let since = turn.since;
            if self.set(engine, &mut turn, since, true).is_err() {
                turn.set = Some((Instant::now(), Duration::from_millis(10)));
            }
        }
    }

    /// Does the pool hold what the origin lacks?  Of a pool whose disk has failed the origin may have
    /// all, and the pool keeps it.  If that disk comes back, its pool finds the mark gone.
    fn lacks(&self, engine: &Engine, info: &sys::fby_volume_info) -> bool {
        holds(info) && !engine.rescued(self.index)
    }

    /// Takes the mark away if the origin has everything.  `live`: others may write.  False: it
    /// has not, and stays marked.
    pub(crate) fn clear(&self, engine: &Engine, live: bool) -> io::Result<bool> {
        let Some(keep) = &self.keep else { return Ok(true) };
        let fail = |e: crate::engine::Code| io::Error::other(e.message());
        let mut turn = self.turn();
        if !self.on.load(Ordering::Acquire) {
            // Writes that arrived meanwhile wait for this thread, to be marked again.
            let empty = !self.lacks(engine, &engine.volume_info(self.index).map_err(fail)?);
            if turn.owed && empty {
                self.take_away(engine, keep.as_ref(), &mut turn)?;
            }
            return Ok(empty);
        }
        // The slow check comes first: the cleared flag costs writers time.
        if self.lacks(engine, &engine.volume_info(self.index).map_err(fail)?)
            && !bug!(ClearedTooEarly)
        {
            return Ok(false);
        }
        if !bug!(FlagStays) {
            self.on.store(false, Ordering::SeqCst);
        }
        let seen = !live || barrier();
        let info = engine.volume_info(self.index);
        let empty =
            info.as_ref().is_ok_and(|info| !self.lacks(engine, info)) || bug!(ClearedTooEarly);
        if !seen || !empty {
            self.on.store(true, Ordering::Release);
            return info.map(|_| false).map_err(fail);
        }
        turn.owed = !bug!(FailureForgotten);
        self.take_away(engine, keep.as_ref(), &mut turn).map(|()| true)
    }

    fn take_away(&self, engine: &Engine, keep: &dyn Keep, turn: &mut Turn) -> io::Result<()> {
        // A failed disk takes no number.  Its pool says that the mark is there: if the disk comes
        // back, it finds none.
        let count = |step| match engine.volume_mark(self.index, step) {
            Err(e) if e.is(sys::FBY_E_MEDIUM) => Ok(()),
            counted => counted.map(drop).map_err(|e| io::Error::other(e.message())),
        };
        count(sys::FBY_MARK_CLEARED)?;
        keep.take_away()?;
        keep.sync()?;
        turn.owed = false;
        if self.mark.exact && !bug!(GoneNotCounted) {
            // No mark that was there is the last one any more.
            count(sys::FBY_MARK_GONE)?;
        }
        Ok(())
    }
}

/// Is the number in a record that of a mark about to be set, which perhaps was set?
fn is_to_be_set(marks: u32) -> bool {
    matches!(marks % 8, 0 | 3 | 4)
}

/// All CPUs that run us have done what was before, and have seen it.
fn barrier() -> bool {
    membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok()
        && membarrier(MembarrierCommand::PrivateExpedited).is_ok()
}

fn cannot(info: &VolumeInfo, place: &str, what: &'static str, source: io::Error) -> Error {
    Error::Marking { name: info.name.clone(), origin: place.into(), what, source }
}
