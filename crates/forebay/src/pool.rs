// SPDX-License-Identifier: MIT OR Apache-2.0
//! Open pools: volumes added, removed, attached and detached; options, checks,
//! and a look inside.

mod attaching;
mod known;
mod log_look;
mod logs;
mod look;
mod maps;
mod report;
mod rescue;
mod static_share;

pub use known::{origin_known_by_name, refuse_pool_as_origin};
pub use maps::PoolMap;
pub use rescue::RescueProgress;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use forebay_engine::policy::{self, is_name};
use forebay_engine::{sys, Decision};
use serde::{Deserialize, Serialize};

use crate::attach::{AttachOptions, Away};
use crate::bypass::VolumeChange;
use crate::defaults;
use crate::directories::check_directories;
use crate::engine::{self, Code, Engine, Probe, ProbeState};
use crate::error::{open_error, Error, Result, NOT_THERE};
use crate::grouped::{GroupedMedium, Sender};
use crate::mark::{Completed, Judged, OriginMarks};
use crate::media::{detect_id, Look, Media, MediaOptions};
use crate::on_disk::{self, Found};
use crate::opened::OpenPool;
use crate::origin::{self, join_identity, place_of, split_identity, Origin, Place};
use crate::pages::Pages;
use crate::report::{
    blocks_text, Completeness, DrainProgress, FileTrouble, MediaInfo, OptionsInfo, PoolStatus,
    RecoveryReport, Uuid, Verify, VolumeInfo,
};
use crate::shared_pool::SharedPool;
use crate::volume::{self, Volume};
use attaching::Attaching;

/// How to open a pool.  Fill in what matters and take the rest from
/// `..Default::default()`.
#[derive(Clone, Debug)]
pub struct PoolOptions {
    /// Nothing is written to the media or to an origin.
    pub read_only: bool,
    pub media: MediaOptions,
    /// Commit slots, the most concurrent writers to the media: 1 to [`defaults::SLOTS_MAX`]; 0:
    /// chosen by media, CPUs and size.
    pub slots: u32,
    /// Checksum the data of new writes.  Off: two fences a write, and damage
    /// is not noticed.
    pub checksums: bool,
    pub verify: Verify,
    /// Destage starts when so much of the pool is in use; 0:
    /// [`defaults::HIGH_WATERMARK_PERCENT`].
    pub high_watermark_percent: u32,
    /// ... and stops there; 0: [`defaults::WATERMARK_GAP_PERCENT`] less than high.
    pub low_watermark_percent: u32,
    /// Destage what is older.
    pub max_age: Option<Duration>,
    /// Destage a volume that was not written for so long.
    pub idle: Option<Duration>,
    /// Write origins through io_uring where it can be had; otherwise by
    /// threads.
    pub io_uring: bool,
    /// Threads that recovery runs on; 0: one for each CPU, at least 2.
    pub recovery_threads: usize,
}

impl Default for PoolOptions {
    fn default() -> Self {
        PoolOptions {
            read_only: false,
            media: MediaOptions::default(),
            slots: 0,
            checksums: true,
            verify: Verify::default(),
            high_watermark_percent: 0,
            low_watermark_percent: 0,
            max_age: None,
            idle: None,
            io_uring: true,
            recovery_threads: 0,
        }
    }
}

/// Changes to an open pool; `None` keeps an option.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OptionsChange {
    pub checksums: Option<bool>,
    pub verify: Option<Verify>,
    pub high_watermark_percent: Option<u32>,
    pub low_watermark_percent: Option<u32>,
    /// 0: no limit.
    pub max_age_seconds: Option<f64>,
    /// 0: never.
    pub idle_seconds: Option<f64>,
}

/// A volume to add.
#[derive(Clone, Debug, Default)]
pub struct NewVolume {
    /// Characters A-Z a-z 0-9 . _ -, at most 63; not `.` or `..`, and not `-` first.
    pub name: String,
    /// File or block device, by its path or as `file:///path`; recorded with its id.
    pub origin: PathBuf,
    /// Logical block: 512 or 4096, no smaller than the origin's; 0: the
    /// origin's.
    pub block_size: u32,
    /// As [`AttachOptions::origin_by_name`].
    pub origin_by_name: bool,
    /// Take an origin that holds a Forebay pool, as the disk of a guest that has one there does.
    pub accept_pool: bool,
    /// The share, if it is a static volume.
    pub static_share: Option<StaticShare>,
}

/// The part of the pool that a static volume has for itself: see `docs/design/static.md`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StaticShare {
    /// Its share of the pool's room for static volumes
    /// ([`CreateOptions::static_bytes`](crate::CreateOptions::static_bytes)), a multiple of
    /// [`defaults::STATIC_UNIT_BYTES`].
    pub share_bytes: u64,
    /// So often all that is cached goes to the origin, up to
    /// [`defaults::FLUSH_EVERY_MOST`]; `None`: as [`PoolOptions::max_age`] says.
    pub flush_every: Option<Duration>,
}

/// An open pool.  Volumes keep it open: it is closed, and marked clean, when
/// the last handle is dropped, or by [`Pool::close`], which tells errors.
#[derive(Debug)]
pub struct Pool(Arc<OpenPool>);

impl Pool {
    /// Opens and locks the media, and recovers what it holds.  The pool is
    /// usable at once, however much is cached.
    pub fn open(path: &Path, o: &PoolOptions) -> Result<Pool> {
        let started = Instant::now();
        let media = MediaOptions { read_only: o.read_only || o.media.read_only, ..o.media.clone() };
        match on_disk::look(path) {
            Found::Mapped => Pool::open_since(started, Media::open(path, &media)?, None, o),
            Found::Grouped(_) => {
                let (media, disk) = on_disk::open(path, &media)?;
                Pool::open_since(started, media, Some(disk), o)
            }
            Found::Disk { found, probe } => Err(on_disk::not_a_pool(path, found, &probe)),
        }
    }

    /// As above, on media that is already open.
    pub fn open_media(media: Media, o: &PoolOptions) -> Result<Pool> {
        Pool::open_since(Instant::now(), media, None, o)
    }

    /// Opens the pool on a disk that the caller has opened, and claimed.
    pub fn open_on(disk: GroupedMedium, o: &PoolOptions) -> Result<Pool> {
        let media = on_disk::media_of(disk.disk().path(), &disk, o.read_only);
        Pool::open_since(Instant::now(), media, Some(disk), o)
    }

    /// `disk`: what the media is the image of.
    fn open_since(
        started: Instant,
        media: Media,
        disk: Option<GroupedMedium>,
        o: &PoolOptions,
    ) -> Result<Pool> {
        check_directories()?;
        let path = media.info().path.clone();
        let probe = engine::probe(&media);
        check_probe(&path, &media, &probe)?;
        let read_only = o.read_only || media.read_only();
        let chunks = probe.superblock.as_ref().map_or(0, |sb| sb.chunks);
        let options = sys::fby_options {
            nslots: if o.slots == 0 { media.best_slots(chunks) } else { o.slots },
            read_only,
            no_checksums: !o.checksums,
            statics: true,
            maps: true,
            verify: raw_verify(o.verify),
            high_watermark: o.high_watermark_percent,
            low_watermark: o.low_watermark_percent,
            max_age_ns: o.max_age.map_or(0, raw_duration),
            idle_ns: o.idle.map_or(0, raw_duration),
        };
        check_options(&options)?;
        let threads = match o.recovery_threads {
            0 => std::thread::available_parallelism().map_or(2, |n| n.get().max(2)),
            n => n,
        };
        let (engine, report) = match &disk {
            Some(disk) => disk.open_pool(&options, threads)?,
            None => engine::open(&media, &options, threads)?,
        };
        let disk = disk.map(|disk| disk.disk().clone());
        let core =
            Arc::new(SharedPool::new((media, disk), engine, read_only, report, threads, started)?);
        Ok(Pool(Arc::new(OpenPool::new(core, o.io_uring))))
    }

    pub fn path(&self) -> &Path {
        &self.media().path
    }

    /// A pool that is written in groups has one.
    #[cfg(test)]
    pub(crate) fn sender(&self) -> Option<&crate::grouped::Sender> {
        self.0.core().sender.as_ref()
    }

    /// The state that the handles share.
    #[cfg(test)]
    pub(crate) fn opened(&self) -> &Arc<OpenPool> {
        &self.0
    }

    pub fn uuid(&self) -> Uuid {
        self.0.core().uuid()
    }

    pub fn media(&self) -> &MediaInfo {
        self.0.core().media.info()
    }

    pub fn read_only(&self) -> bool {
        self.0.core().read_only
    }

    /// How long a durable write to its disk takes at best, by the last ones: [`Disk::durable_write`].  `None`
    /// for a pool in memory.
    ///
    /// [`Disk::durable_write`]: crate::grouped::Disk::durable_write
    pub fn durable_write(&self) -> Option<Duration> {
        self.0.core().durable_write()
    }

    /// The error of its disk, if that has failed: nothing more becomes durable.  What attached
    /// volumes hold goes to their origins from memory.
    pub fn failed(&self) -> Option<Error> {
        self.0.core().disk_failed()
    }

    /// Its pages, for a thread that maps them, of no lower priority than those that write:
    /// they may have to wait for it.
    pub fn pages(&self) -> Pages {
        Pages::of(self.0.core())
    }

    /// Looks at what has happened to its file, which may take as long as the file systems on its
    /// path do.  From the look on that finds the file removed or cut short, nothing more is
    /// acknowledged.
    pub fn look_at_file(&self) -> Option<FileTrouble> {
        self.0.core().look_at_file(Look::WithPath)
    }

    /// ... without a question to its path: it finds no move, and waits for the file's system alone.
    pub fn look_for_loss(&self) -> Option<FileTrouble> {
        self.0.core().look_at_file(Look::File)
    }

    /// The loss of its file, as the last look has found it.
    pub fn lost(&self) -> Option<FileTrouble> {
        self.0.core().lost().cloned()
    }

    /// An older state of the pool lies in its memory: nothing tells whether what is read there is
    /// the newest.
    pub fn is_set_back(&self) -> bool {
        self.0.core().is_set_back()
    }

    /// ... as the error of what it would have to keep.
    pub fn lost_error(&self) -> Option<Error> {
        self.0.core().lost_error()
    }

    /// Attached volumes whose origins are not what they were at the attach, and how they differ.
    /// It may wait for an origin's file system.
    pub fn origins_changed(&self) -> Vec<(String, String)> {
        self.0.core().origins_changed()
    }

    /// The result of recovery when the pool was opened.
    pub fn recovery(&self) -> &RecoveryReport {
        &self.0.core().recovery
    }

    /// All about it.
    pub fn status(&self) -> PoolStatus {
        self.0.core().status()
    }

    /// Volumes in the order of the table, attached or not.
    pub fn volumes(&self) -> Vec<VolumeInfo> {
        self.0.core().volumes()
    }

    pub fn volume_info(&self, name: &str) -> Result<VolumeInfo> {
        self.0.core().volume_info(self.0.core().find(name)?)
    }

    /// The options in effect.
    pub fn options(&self) -> OptionsInfo {
        self.0.core().options()
    }

    /// Changes what can change while it is open.
    pub fn set_options(&self, change: &OptionsChange) -> Result<OptionsInfo> {
        self.0.core().set_options(change)
    }

    /// Changes a volume that is attached, or all that are.
    pub fn set_volume(&self, name: Option<&str>, change: &VolumeChange) -> Result<()> {
        self.0.core().set_volume(name, change)
    }

    /// Has a volume that was attached later follow what was set for all.
    pub fn set_as_all(&self, name: &str) -> Result<()> {
        let all = self.0.core().for_all.lock().unwrap_or_else(|e| e.into_inner());
        self.set_volume(Some(name), &all)
    }

    fn engine(&self) -> &Engine {
        &self.0.core().engine
    }

    /// Adds a volume in front of a file or block device, which is claimed for
    /// as long as this takes.
    pub fn volume_add(&self, new: &NewVolume) -> Result<VolumeInfo> {
        self.0.core().check_holds_volumes(new.static_share.is_some())?;
        self.0.core().check_writable()?;
        self.check_not_the_pool(&new.origin)?;
        let origin = origin::open(&new.origin, false, Away::default())?;
        let identity = origin.identity();
        let (id, path) = split_identity(&identity);
        if path.is_none() {
            return Err(Error::Usage {
                what: format!("{}: this place cannot be recorded: it is not UTF-8, or longer than the {} bytes left next to the origin's id", origin.info().name, sys::FBY_IDENTITY_MAX - id.len() - 1),
                way_out: "name the origin by a shorter path, for example a link to it, or a shorter URI".into(),
            });
        }
        if is_name(id) && !new.origin_by_name {
            return Err(origin_known_by_name(&new.name, origin.as_ref()));
        }
        if !new.accept_pool {
            known::refuse_pool(&new.origin, origin.as_ref())?;
        }
        OriginMarks::at(&new.origin, None)?.refuse_marked(self.0.core().uuid(), &new.name)?;
        self.volume_add_static(&new.name, origin.as_ref(), new.block_size, new.static_share)
    }

    /// Nothing is told of whoever has it open: we have.
    fn check_not_the_pool(&self, origin: &Path) -> Result<()> {
        let Place::Path(origin) = place_of(origin)? else { return Ok(()) };
        match detect_id(&origin).is_some_and(|id| id == self.media().id) {
            false => Ok(()),
            true => Err(Error::usage(
                format!("{}: is the pool itself, and cannot be an origin of it", origin.display()),
                "name the disk or file that the pool is in front of",
            )),
        }
    }

    /// Adds a volume in front of any origin.
    pub fn volume_add_origin(
        &self,
        name: &str,
        origin: &dyn Origin,
        block_size: u32,
    ) -> Result<VolumeInfo> {
        self.volume_add_static(name, origin, block_size, None)
    }

    /// Adds a static volume.
    pub fn volume_add_static(
        &self,
        name: &str,
        origin: &dyn Origin,
        block_size: u32,
        static_share: Option<StaticShare>,
    ) -> Result<VolumeInfo> {
        let core = self.0.core();
        core.check_holds_volumes(static_share.is_some())?;
        core.check_writable()?;
        let block_size = choose_block_size(name, origin, block_size)?;
        let flush_us = static_share.map_or(Ok(0), |p| self.check_static(name, &p))?;
        let identity = origin.identity();
        let spec = sys::fby_volume_spec {
            name: sys::c_text(name).ok_or_else(|| core.named_error(name, Code(sys::FBY_E_NAME)))?,
            identity: sys::c_text(&identity).ok_or_else(|| {
                Error::usage(
                    format!("the origin's identity \"{identity}\" cannot be recorded"),
                    "use at most 127 bytes without a zero",
                )
            })?,
            uuid: Uuid::random()?.0,
            origin_sectors: origin.size_bytes() / 512,
            block_size,
            flush_us,
            static_bytes: static_share.map_or(0, |p| p.share_bytes),
        };
        let _volumes = self.0.volumes();
        let id = split_identity(&identity).0;
        if let Some(other) = core.volumes().into_iter().find(|v| v.identity == id) {
            return Err(Error::Volume {
                name: name.into(),
                cause: format!("its origin is already that of volume {}", other.label()),
                way_out: "use another origin, or remove that volume first".into(),
                code: sys::FBY_E_VOLUME_EXISTS,
            });
        }
        let index = core.engine.volume_add(&spec).map_err(|e| match e.0 {
            sys::FBY_E_VOLUME_TABLE_FULL => {
                let (cause, way_out) = table_full(core.engine.info().sb.nvolumes);
                Error::Volume { name: name.into(), cause, way_out, code: e.0 }
            }
            sys::FBY_E_STATIC_FULL => self.no_room(name, static_share.map_or(0, |p| p.share_bytes)),
            _ => core.named_error(name, e),
        })?;
        core.volume_info(index)
    }

    /// Removes a volume that is not attached.  One that holds data that is
    /// not on its origin is removed with `discard` only: that data is lost.
    pub fn volume_remove(&self, name: &str, discard: bool) -> Result<()> {
        let core = self.0.core();
        core.check_writable()?;
        let volumes = self.0.volumes();
        let index = core.find(name)?;
        let info = core.volume_info(index)?;
        if let Some(e) = attaching::taken(core, &volumes, &info) {
            return Err(e);
        }
        let raw = core.engine.volume_info(index).map_err(|e| core.named_error(name, e))?;
        let place = info.origin_path.map(PathBuf::from);
        let removed = loop {
            let seen = core.sender.as_ref().map_or(0, Sender::ends);
            match (core.engine.volume_remove(index, discard), &core.sender) {
                (Ok(Decision::Wait(wait)), Some(sender)) => core.help(sender, wait, seen),
                (removed, _) => break removed.map(drop),
            }
        };
        core.push();
        // The origin may hang.
        drop(volumes);
        core.space.wake();
        if let (Ok(()), false, Some(place)) = (&removed, discard, &place) {
            // It was clean, and a crash may have left the mark.  One that stays says so.
            let name = &info.name;
            let volume = Completed { pool: core.uuid(), name, uuid: info.uuid, marks: raw.marks };
            let _ = OriginMarks::at(place, None).and_then(|marks| marks.complete(&volume));
        }
        removed.map_err(|e| match core.judge(index, false) {
            // A drain would not help: lost blocks stay.
            Ok(judged) if e.0 == sys::FBY_E_VOLUME_DIRTY && judged.lost_blocks > 0 => {
                lost_blocks_stay(name, &judged)
            }
            _ => core.named_error(name, e),
        })
    }

    /// Attaches a volume to its file or block device: the one recorded, or
    /// where [`AttachOptions::origin`] says it is now.
    pub fn attach(&self, name: &str, o: &AttachOptions) -> Result<Volume> {
        // Reserved before its origin is opened, which may take long: nobody else attaches it, or
        // removes it and gives its name to another volume.
        let reserved = self.begin_attach(name)?;
        let path = match (&o.origin, &reserved.0.origin_path) {
            (Some(path), _) => path.clone(),
            (None, Some(path)) => PathBuf::from(path),
            (None, None) => {
                return Err(Error::Usage {
                    what: format!("volume {name}: the path of its origin is not recorded"),
                    way_out: "say where the origin is (--origin NAME=PATH)".into(),
                })
            }
        };
        self.check_not_the_pool(&path)?;
        let origin = origin::open(&path, self.read_only(), o.away).map_err(|e| match e {
            Error::NotFound { path, .. } => Error::WrongOrigin {
                name: name.into(),
                origin: path.display().to_string(),
                cause: NOT_THERE.into(),
                way_out: "connect it, or say where it is now (--origin NAME=PATH)".into(),
            },
            e => e,
        })?;
        self.attach_reserved(reserved, origin, o)
    }

    /// Attaches a volume to its origin, given by the caller.
    pub fn attach_origin(
        &self,
        name: &str,
        origin: Box<dyn Origin>,
        o: &AttachOptions,
    ) -> Result<Volume> {
        self.attach_reserved(self.begin_attach(name)?, origin, o)
    }

    fn attach_reserved(
        &self,
        (info, attaching): (VolumeInfo, Attaching<'_>),
        origin: Box<dyn Origin>,
        o: &AttachOptions,
    ) -> Result<Volume> {
        let core = self.0.core();
        let index = info.index;
        // From here on the origin is asked, which may hang.
        let (state, accept) = (o.state.as_deref(), o.accept_mark);
        if let Some(state) = state {
            *core.marks_in.lock().unwrap_or_else(|e| e.into_inner()) = Some(state.into());
        }
        core.check_rescue(o.rescue)?;
        if o.rescue {
            let _volumes = self.0.volumes();
            core.learn_of_loss(index);
        }
        let recorded = self.check_origin(&info, origin.as_ref(), o)?;
        let named = |e| core.named_error(&info.name, e);
        core.engine.volume_ready(index, volume::raw_holes(o)).map_err(named)?;
        let judged = Judged::of(&core.open_media(), &info, origin.as_ref(), state, accept)?;
        let size = recorded.changed.map_or(info.size_bytes, |sectors| sectors * 512);
        let marker =
            judged.marker(&core.open_media(), &VolumeInfo { size_bytes: size, ..info.clone() })?;
        let mut volumes = self.0.volumes();
        // Last, so that the record is another only if the origin may be had, and is marked.
        if let Recorded { identity, changed: Some(sectors) } = &recorded {
            core.engine.volume_rebind(index, identity, *sectors).map_err(named)?;
        }
        self.0.start_destage()?;
        let volume = Volume::attach(&self.0, index, &info, &recorded.identity, origin, marker, o)?;
        volumes.insert(index, volume.downgrade());
        drop(volumes);
        drop(attaching);
        Ok(volume)
    }

    /// Is it the volume's origin?
    fn check_origin(
        &self,
        info: &VolumeInfo,
        origin: &dyn Origin,
        o: &AttachOptions,
    ) -> Result<Recorded> {
        let core = self.0.core();
        let recorded = join_identity(&info.identity, info.origin_path.as_deref().unwrap_or(""));
        let now = origin.identity();
        let unchanged = |identity| Recorded { identity, changed: None };
        let wrong = |cause: String, way_out: &str| Error::WrongOrigin {
            name: info.name.clone(),
            origin: origin.info().name,
            cause,
            way_out: way_out.into(),
        };
        let (size, was) = (origin.size_bytes(), info.size_bytes);
        let id = split_identity(&now).0;
        let raw = core.engine.volume_info(info.index);
        let raw = raw.map_err(|e| core.named_error(&info.name, e))?;
        let found = policy::Found {
            id,
            sectors: size / 512,
            logical_block: origin.logical_block(),
            accept_changed: o.accept_changed_origin,
            by_name: o.origin_by_name,
        };
        let (verdict, sectors) = policy::judge_origin(&raw.spec, &found);
        if let (policy::Verdict::Other | policy::Verdict::Name, Some(twin)) =
            (verdict, origin.twin())
        {
            return Err(known::twins(&info.name, origin, &twin));
        }
        match verdict {
            policy::Verdict::Same if now == recorded => return Ok(unchanged(recorded)),
            policy::Verdict::Same | policy::Verdict::Renewed => {}
            policy::Verdict::Block => return Err(wrong(
                format!(
                    "its logical block has {} bytes, the volume's {}",
                    origin.logical_block(),
                    info.block_size
                ),
                "attach an origin with a logical block no larger than the volume's",
            )),
            policy::Verdict::Other => return Err(wrong(
                format!("it is {id}, the volume was made for {recorded}"),
                "attach the right one. If this holds the same data (a restored or moved copy), say so (--accept-changed-origin); onto any other, cached data would destroy it",
            )),
            policy::Verdict::Name => return Err(origin_known_by_name(&info.name, origin)),
            policy::Verdict::Smaller => return Err(wrong(
                format!("it has {size} bytes, the volume {was}: it was truncated, or is another"),
                "restore its size",
            )),
            policy::Verdict::Larger => return Err(wrong(
                format!("it has {size} bytes, the volume {was}: it has grown"),
                "accept the new size (--accept-changed-origin), and the volume grows",
            )),
        }
        // Nothing can be recorded on a failed disk, and what the volume holds is to be had all the same.
        match core.read_only || core.has_failed() {
            true => Ok(unchanged(recorded)),
            false => Ok(Recorded { identity: now, changed: Some(sectors) }),
        }
    }

    /// Another handle of a volume that is attached.
    pub fn volume(&self, name: &str) -> Option<Volume> {
        let index = self.0.core().find(name).ok()?;
        // Upgraded under the lock, dropped outside it: it may be the last.
        let volume = self.0.volumes().get(&index).and_then(Weak::upgrade);
        volume.map(Volume::from_inner)
    }

    /// Writes all that a volume holds to its origin, or all that attached volumes hold,
    /// at once.  The progress function is called about ten times a second for each; when
    /// it breaks, the drain ends with [`Error::Interrupted`].  Returns for each volume
    /// asked for, attached or not, whether its origin is complete now.
    pub fn drain(
        &self,
        volume: Option<&str>,
        progress: &mut dyn FnMut(&str, &DrainProgress) -> ControlFlow<()>,
    ) -> Result<Vec<Completeness>> {
        let core = self.0.core();
        core.drain(&core.asked(volume)?, progress).map(|(judged, _)| judged)
    }

    /// Is its origin, alone, all of the volume?
    pub fn completeness(&self, name: &str) -> Result<Completeness> {
        self.0.core().judge(self.0.core().find(name)?, false)
    }

    /// Ends all waits for space in the cache with [`Error::Full`], from now on, and those
    /// for an origin that is away: for a server that has to stop meanwhile.
    pub fn abort_waits(&self) {
        let core = self.0.core();
        core.space.abort();
        let attached = core.attached.read().unwrap_or_else(|e| e.into_inner());
        attached.values().for_each(|a| a.origin.give_up());
    }

    /// Closes the pool and marks it clean; cached data stays cached.  Refused with
    /// [`Error::PoolInUse`] while volumes are attached; the pool is then closed when the last
    /// of them is detached.
    pub fn close(self) -> Result<()> {
        match Arc::try_unwrap(self.0) {
            Ok(inner) => inner.shut_down(),
            Err(inner) => {
                let used = inner.core().volumes().into_iter().filter(|v| v.attached);
                Err(Error::PoolInUse {
                    pool: inner.core().path().to_path_buf(),
                    volumes: used.map(|v| v.name).collect(),
                })
            }
        }
    }
}

/// A volume's record of its origin, present or future.
struct Recorded {
    identity: String,
    /// The record must be renewed, with so many sectors.
    changed: Option<u64>,
}

/// Cause and way out.
fn table_full(volumes: u32) -> (String, String) {
    match volumes {
        sys::FBY_VOLUMES_MAX => (
            format!("the pool has {volumes} volumes and logs, and none can have more"),
            "remove one that is not needed, or put it into another pool".into(),
        ),
        _ => (
            format!("the pool was made for {volumes} volumes and logs, and has them"),
            format!("remove one that is not needed, or put it into another pool, made for more (forebay create --volumes, up to {})", sys::FBY_VOLUMES_MAX),
        ),
    }
}

fn lost_blocks_stay(name: &str, judged: &Completeness) -> Error {
    Error::Holes {
        name: name.into(),
        cause: format!("it holds data that no drain can write: {} lost", blocks_text(&judged.lost)),
        way_out: "overwrite these blocks and drain it, give them up (forebay drain --accept-lost), or discard all that it holds (--discard)".into(),
    }
}

fn raw_verify(v: Verify) -> u32 {
    match v {
        Verify::Always => sys::FBY_VERIFY_ALWAYS,
        Verify::First => sys::FBY_VERIFY_FIRST,
        Verify::Never => sys::FBY_VERIFY_NEVER,
    }
}

/// 0 means "no limit" to the engine, so that no limit becomes one.
fn raw_duration(d: Duration) -> u64 {
    u64::try_from(d.as_nanos()).unwrap_or(u64::MAX / 2).clamp(1, u64::MAX / 2)
}

/// Checks options that the engine would refuse without naming them.
fn check_options(o: &sys::fby_options) -> Result<()> {
    if o.nslots > defaults::SLOTS_MAX {
        return Err(Error::usage(
            format!("{} commit slots are too many", o.nslots),
            format!("use 1 to {}, or 0 for what suits the media", defaults::SLOTS_MAX),
        ));
    }
    let high = match o.high_watermark {
        0 => defaults::HIGH_WATERMARK_PERCENT,
        high => high,
    };
    if high > 100 || o.low_watermark > high {
        return Err(Error::usage(
            format!("watermarks of {high} % and {} % are not possible", o.low_watermark),
            "use 1 to 100 for the high one, and no more than that for the low one",
        ));
    }
    Ok(())
}

fn check_probe(path: &Path, media: &Media, probe: &Probe) -> Result<()> {
    match (probe.state, probe.error) {
        (ProbeState::Pool, None) => Ok(()),
        (ProbeState::Blank, _) => Err(Error::NotAPool {
            path: path.into(),
            found: media.found().unwrap_or_else(|| "it is blank".into()),
        }),
        (_, e) => Err(open_error(path, e.unwrap_or(Code(sys::FBY_E_INVARIANT)))),
    }
}

fn choose_block_size(name: &str, origin: &dyn Origin, asked: u32) -> Result<u32> {
    let least = origin.logical_block();
    let block_size = if asked == 0 { least } else { asked };
    if ![512, 4096].contains(&block_size) {
        return Err(Error::usage(
            format!("volume {name}: a logical block of {block_size} bytes is not possible"),
            "use 512 or 4096",
        ));
    }
    let refuse = |cause: String, way_out: &str| {
        Err(Error::WrongOrigin {
            name: name.into(),
            origin: origin.info().name,
            cause,
            way_out: way_out.into(),
        })
    };
    if block_size < least {
        return refuse(
            format!("its logical block has {least} bytes, more than {block_size}"),
            "use a block size of 4096",
        );
    }
    match origin.size_bytes() {
        0 => refuse("it is empty".into(), "give the file its size first (truncate -s)"),
        size if size % u64::from(block_size) != 0 => refuse(
            format!("its {size} bytes are not a multiple of the block of {block_size}"),
            match block_size {
                512 => "cut or extend it",
                _ => "use a block size of 512, or cut or extend it",
            },
        ),
        _ => Ok(block_size),
    }
}
