// SPDX-License-Identifier: MIT OR Apache-2.0
//! An open pool as all who work on it share it.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, RwLock};
use std::time::{Duration, Instant};

use forebay_engine::sys;

use crate::attached::Attached;
use crate::bypass::VolumeChange;
use crate::draining::Drains;
use crate::engine::{Code, Engine, Io, Wait};
use crate::errno::errno_or_io;
use crate::error::{log_error, open_error, volume_error, Error, Result};
use crate::grouped::{Disk, Late, Sender};
use crate::kick::Kick;
use crate::mark::OpenMedia;
use crate::media::{Look, Media, Written};
use crate::printable::printable;
use crate::report::{FileFate, FileTrouble, RecoveryReport, Uuid, VolumeInfo};
use crate::wait::{Flushes, Space};

/// The state of an open pool that handles and threads share: its engine, the attached volumes,
/// whom to wake.  It does not keep the pool open; [`crate::Pool`] does.
#[derive(Debug)]
pub(crate) struct SharedPool {
    pub media: Media,
    pub engine: Arc<Engine>,
    /// A pool that is written in groups has one.
    pub sender: Option<Sender>,
    /// ... and of one that has volumes attached, what nobody waits for.
    pub late: Late,
    pub drains: Drains,
    pub space: Space,
    pub flushes: Flushes,
    pub kick: Kick,
    /// By index.  An entry is there from before the engine attaches the volume
    /// until after it detached it.
    pub attached: RwLock<HashMap<u16, Arc<Attached>>>,
    /// Destage requests in flight.
    pub in_flight: AtomicU32,
    pub stop: AtomicBool,
    start: Instant,
    /// Whether destage writes go through io_uring, or why not; once the thread
    /// was started.
    pub ring: OnceLock<std::result::Result<(), String>>,
    /// Why destage does not work at all: an internal error.
    pub failure: OnceLock<String>,
    pub read_only: bool,
    written: Written,
    pub recovery: RecoveryReport,
    pub looked: Looked,
    /// The options that were set for all volumes since the pool was opened.
    pub for_all: Mutex<VolumeChange>,
    /// The directory of marks of the volume that was attached last, if it was given.
    pub marks_in: Mutex<Option<PathBuf>>,
    /// What the last look found to have happened to the pool's file.
    pub file_trouble: Mutex<Option<FileTrouble>>,
    /// The pool's file is lost: nothing more is acknowledged.
    lost: OnceLock<FileTrouble>,
    /// The loss of what it held to another content, perhaps after it was cut short.
    foreign: OnceLock<FileTrouble>,
}

/// Reads in the engine's counters that only looked for cached data.
#[derive(Debug, Default)]
pub(crate) struct Looked {
    pub reads: AtomicU64,
    pub hit_sectors: AtomicU64,
    pub miss_sectors: AtomicU64,
}

impl SharedPool {
    /// Recovered on so many threads, since that moment.
    pub(crate) fn new(
        (media, disk): (Media, Option<Arc<Disk>>),
        engine: Arc<Engine>,
        read_only: bool,
        report: sys::fby_recovery_report,
        threads: usize,
        started: Instant,
    ) -> Result<SharedPool> {
        let kick =
            Kick::new().map_err(|e| Error::system(&media.info().path, "making an eventfd", e))?;
        let sb = engine.info().sb;
        let mut core = SharedPool {
            written: Written { uuid: Uuid(sb.uuid), generation: sb.generation },
            media,
            sender: disk.map(|disk| Sender::new(engine.clone(), disk)),
            late: Late::default(),
            engine,
            drains: Drains::default(),
            space: Space::default(),
            flushes: Flushes::default(),
            kick,
            attached: RwLock::default(),
            in_flight: AtomicU32::new(0),
            stop: AtomicBool::new(false),
            start: Instant::now(),
            ring: OnceLock::new(),
            failure: OnceLock::new(),
            read_only,
            recovery: RecoveryReport::default(),
            looked: Looked::default(),
            for_all: Mutex::default(),
            marks_in: Mutex::default(),
            file_trouble: Mutex::default(),
            lost: OnceLock::new(),
            foreign: OnceLock::new(),
        };
        let named = |blocks: &[sys::fby_report_block], n: u32| {
            blocks.iter().take(n as usize).map(|b| core.report_block(b)).collect()
        };
        core.recovery = RecoveryReport {
            clean: report.clean,
            chunks: report.chunks,
            entries: report.entries,
            blocks: report.blocks,
            dropped: report.dropped,
            damaged: report.damaged,
            holes: report.holes,
            lines_repaired: report.lines_repaired,
            chunk_headers_lost: report.chunk_headers_lost,
            groups_lost: report.groups_lost,
            groups_named: named(&report.groups_named, report.ngroups_named),
            dropped_named: named(&report.dropped_named, report.ndropped_named),
            holes_named: named(&report.holes_named, report.nholes_named),
            seconds: started.elapsed().as_secs_f64(),
            threads,
        };
        Ok(core)
    }

    /// Wakes whom the mask of an engine call names.
    pub(crate) fn wake(&self, mask: u32) {
        if mask & sys::FBY_WAKE_SPACE != 0 {
            self.space.wake();
        }
        if mask & sys::FBY_WAKE_FLUSH != 0 {
            self.flushes.wake();
        }
        if mask & sys::FBY_WAKE_DESTAGE != 0 {
            self.kick.kick();
        }
    }

    pub(crate) fn attached(&self, index: u16) -> Option<Arc<Attached>> {
        self.attached.read().unwrap_or_else(|e| e.into_inner()).get(&index).cloned()
    }

    /// Time for the engine: never 0.
    pub(crate) fn now_ns(&self) -> u64 {
        1_000_000_000 + u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX / 2)
    }

    pub(crate) fn uptime(&self) -> Duration {
        self.start.elapsed()
    }

    /// Whether destage writes go through io_uring, or why not; `None` before
    /// the thread was started.
    pub(crate) fn ring_state(&self) -> Option<&std::result::Result<(), String>> {
        self.ring.get()
    }

    /// Why destage does not work at all, if so.
    pub(crate) fn failure(&self) -> Option<String> {
        self.failure.get().cloned()
    }

    /// A request ended: the engine is told, and the thread.
    pub(crate) fn complete(&self, attached: &Attached, io: Io, result: io::Result<()>) {
        let errno = result.as_ref().err().map_or(0, errno_or_io);
        if let Err(e) = result {
            attached.note_error(&io, &e);
        }
        self.engine.destage_complete(io, errno);
        self.in_flight.fetch_sub(1, Ordering::AcqRel);
    }

    pub(crate) fn path(&self) -> &Path {
        &self.media.info().path
    }

    /// For marks of origins.
    pub(crate) fn open_media(&self) -> OpenMedia<'_> {
        OpenMedia { engine: &self.engine, path: self.path(), read_only: self.read_only }
    }

    pub(crate) fn uuid(&self) -> Uuid {
        Uuid(self.engine.info().sb.uuid)
    }

    pub(crate) fn check_writable(&self) -> Result<()> {
        match self.read_only {
            true => Err(Error::ReadOnly { what: format!("pool {}", self.path().display()) }),
            false => Ok(()),
        }
    }

    pub(crate) fn find(&self, name: &str) -> Result<u16> {
        let named = self.engine.volume_find(name).ok();
        // One that has lost its record has no name.
        let same = |v: &&VolumeInfo| !name.is_empty() && v.name == name;
        let shown = || self.volumes().iter().find(same).map(|v| v.index);
        let found = named.or_else(shown).or_else(|| self.numbered(name));
        found.ok_or_else(|| match self.log_named(name) {
            Some(_) => Error::Volume {
                name: name.into(),
                cause: "is a log, not a volume".into(),
                way_out: "see `forebay log`".into(),
                code: sys::FBY_E_NO_VOLUME,
            },
            None => Error::NoVolume {
                pool: self.path().to_path_buf(),
                name: name.into(),
                known: self.volumes().iter().map(VolumeInfo::label).collect(),
            },
        })
    }

    /// One that has lost its name with its record is addressed as #N.
    fn numbered(&self, name: &str) -> Option<u16> {
        let index = name.strip_prefix('#')?.parse().ok()?;
        let v = self.volume_info(index).ok()?;
        v.is_used().then_some(index)
    }

    pub(crate) fn volume_name(&self, index: u16) -> Option<String> {
        let info = self.engine.volume_info(index).ok()?;
        info.used.then(|| printable(&sys::text(&info.spec.name)).into_owned())
    }

    // --- errors ----------------------------------------------------------

    pub(crate) fn system(&self, doing: &'static str, e: std::io::Error) -> Error {
        Error::system(self.path(), doing, e)
    }

    /// An error of the engine that is not about one volume.
    pub(crate) fn pool_error(&self, e: Code) -> Error {
        if let Some(failed) = self.failed(e) {
            return failed;
        }
        match e.0 {
            sys::FBY_E_BUSY => {
                Error::PoolInUse { pool: self.path().to_path_buf(), volumes: Vec::new() }
            }
            _ => open_error(self.path(), e),
        }
    }

    /// The error of a pool whose disk has failed, if that is why.
    pub(crate) fn failed(&self, e: Code) -> Option<Error> {
        let sender = self.sender.as_ref()?;
        let failed = || self.lost_error().unwrap_or_else(|| sender.failed());
        e.is(sys::FBY_E_MEDIUM).then(failed)
    }

    /// The error of its disk, if that has failed.
    pub(crate) fn disk_failed(&self) -> Option<Error> {
        let sender = self.sender.as_ref().filter(|_| self.has_failed())?;
        Some(self.lost_error().unwrap_or_else(|| sender.failed()))
    }

    /// Its disk has failed: nothing more becomes durable.
    pub(crate) fn has_failed(&self) -> bool {
        self.sender.is_some() && self.engine.medium_info().failed
    }

    /// Looks at what has happened to the pool's file.  After a loss nothing more is acknowledged,
    /// also when the file has its size again: what it holds there is gone.  A loss is believed when
    /// a second look finds it, too: one wrong answer of a file system of the network ends no server.
    /// A file that was cut short may get another content later.
    pub(crate) fn look_at_file(&self, look: Look) -> Option<FileTrouble> {
        const AGAIN: Duration = Duration::from_millis(100);
        let twice = || {
            let mut found = self.media.file_trouble(look, self.written)?;
            if found.what.is_loss() {
                std::thread::sleep(AGAIN);
                found = self.media.file_trouble(look, self.written)?;
            }
            self.name_salvage(&mut found);
            Some(found)
        };
        let found = match self.lost().cloned() {
            Some(lost) if lost.what == FileFate::CutShort => {
                twice().filter(|found| found.what.is_foreign()).or(Some(lost))
            }
            Some(lost) => Some(lost),
            None => twice(),
        };
        if let Some(loss) = found.as_ref().filter(|found| found.what.is_loss()) {
            let _ = self.lost.set(loss.clone());
            if loss.what.is_foreign() {
                let _ = self.foreign.set(loss.clone());
            }
            if let Some(sender) = &self.sender {
                sender.disk().lose();
            }
        }
        let mut last = self.file_trouble.lock().unwrap_or_else(|e| e.into_inner());
        last.clone_from(&found);
        found
    }

    /// Nothing is written back to mapped files from memory that has another content.  It may have
    /// that in other places than theirs.
    fn name_salvage(&self, found: &mut FileTrouble) {
        if found.what.is_foreign() && self.sender.is_none() && !self.engine.maps().is_empty() {
            found.way_out.push_str(&format!(
                "; what mapped files lack may be whole: copy it while the server runs (forebay map \
                 salvage {} --to DIR), and compare it with a backup",
                found.path.display()
            ));
        }
    }

    /// Its memory is the file, and that has another content.
    pub(crate) fn is_foreign(&self) -> bool {
        self.sender.is_none() && self.foreign.get().is_some()
    }

    /// ... an older state of the pool, whose checksums are valid: what is read may be old.
    pub(crate) fn is_set_back(&self) -> bool {
        self.is_foreign() && self.foreign.get().is_some_and(|it| it.what == FileFate::SetBack)
    }

    /// The loss of the pool's file, as the last look has found it.
    pub(crate) fn lost(&self) -> Option<&FileTrouble> {
        self.foreign.get().or(self.lost.get())
    }

    #[inline(always)]
    pub(crate) fn is_lost(&self) -> bool {
        self.lost.get().is_some()
    }

    /// Refuses what such a pool would have to keep.
    #[inline]
    pub(crate) fn check_there(&self) -> Result<()> {
        self.lost_error().map_or(Ok(()), Err)
    }

    #[inline]
    pub(crate) fn lost_error(&self) -> Option<Error> {
        self.lost().map(|lost| self.error_of(lost))
    }

    #[cold]
    fn error_of(&self, lost: &FileTrouble) -> Error {
        Error::PoolLost {
            pool: self.path().into(),
            cause: lost.cause.clone(),
            way_out: lost.way_out.clone(),
        }
    }

    /// An error of the engine that is about a log.
    pub(crate) fn log_error(&self, name: &str, e: Code) -> Error {
        self.failed(e).unwrap_or_else(|| log_error(name, e))
    }

    /// See [`crate::Pool::durable_write`].
    pub(crate) fn durable_write(&self) -> Option<Duration> {
        self.sender.as_ref().and_then(|sender| sender.disk().durable_write())
    }

    /// The pool's disk has failed, and the origin of the volume has all that was acknowledged.
    pub(crate) fn rescued(&self, index: u16) -> bool {
        self.sender.is_some() && self.engine.rescued(index)
    }

    /// Refuses what a pool that is written in groups does not hold.
    pub(crate) fn check_holds(&self, what: &str) -> Result<()> {
        match self.sender {
            None => Ok(()),
            Some(_) => Err(Error::not_in_groups(self.path(), what)),
        }
    }

    /// Refuses static volumes in such a pool, and all volumes if its blocks are larger than a page.
    pub(crate) fn check_holds_volumes(&self, static_share: bool) -> Result<()> {
        if static_share {
            return self.check_holds("static volumes");
        }
        if self.sender.is_none() || self.holds_volumes() {
            return Ok(());
        }
        let unit = self.engine.medium_info().unit;
        Err(Error::Unsupported {
            path: self.path().into(),
            cause: format!("the pool is written in groups, in blocks of {unit} bytes: volumes need blocks of 4096"),
            way_out: "make a pool on a disk whose physical block has 4096 bytes or less".into(),
        })
    }

    /// A pool that is written in groups, and may have volumes.
    pub(crate) fn holds_volumes(&self) -> bool {
        self.sender.is_some() && self.engine.medium_info().unit == sys::FBY_PAGE
    }

    /// For a call of the engine that waits, on a pool that is written in groups: sends what it waits
    /// for, or what frees space.  `seen`: [`Sender::ends`] before the call.
    #[cold]
    pub(crate) fn help(&self, sender: &Sender, wait: Wait, seen: u64) {
        let mut wake = 0;
        match wait {
            Wait::Ticket => sender.help(seen, &mut wake),
            Wait::Space => sender.push(|wake| self.wake(wake)),
            Wait::Slot | Wait::Block | Wait::Flush => {}
        }
        self.wake(wake);
    }

    /// A request waits for space: chunks may be free when what there is has been sent.
    pub(crate) fn help_space(&self, seen: u64) {
        if let Some(sender) = self.sender.as_ref().filter(|_| !self.late.wants_now()) {
            self.help(sender, Wait::Space, seen);
        }
    }

    /// Sends what a pool that is written in groups has to write, after a call that may have
    /// left something to nobody.
    pub(crate) fn push(&self) {
        if self.late.wants_now() {
            return;
        }
        if let Some(sender) = &self.sender {
            sender.push(|wake| self.wake(wake));
        }
    }

    pub(crate) fn volume_error(&self, index: u16, e: Code) -> Error {
        let name = self.volume_name(index).unwrap_or_else(|| format!("#{index}"));
        self.named_error(&name, e)
    }

    pub(crate) fn named_error(&self, name: &str, e: Code) -> Error {
        self.failed(e).unwrap_or_else(|| volume_error(name, e))
    }
}
