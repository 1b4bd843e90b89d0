// SPDX-License-Identifier: MIT OR Apache-2.0
//! The engine's C interface made safe: the only module that calls it.
//!
//! What makes it so: the pool's memory, the media and the volumes' destage
//! memory are owned here for as long as the engine may touch them; recovery is
//! over before an [`Engine`] exists; and the calls that the contract wants from
//! one thread at a time take a lock here (`admin`).  The contract is
//! core/api/forebay.h.

mod drain;
mod errors;
mod past;

pub(crate) use drain::Draining;
pub(crate) use errors::{exit_code, open_error, volume_error};
pub(crate) use past::{Bypass, Gate, Ticket};

use std::collections::HashMap;
use std::ffi::CString;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use forebay_sys as sys;

use crate::dump::SuperblockDump;
use crate::error::{Error, Result};
use crate::latency::{Phase, Phases};
use crate::mapping::Mapping;
use crate::media::{Media, Persist};
use crate::status::Uuid;

/// An error of the engine: the positive number of an FBY_E_x.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Code(pub i32);

impl Code {
    pub(crate) fn message(self) -> &'static str {
        message(self.0)
    }
}

pub(crate) type EngineResult<T> = std::result::Result<T, Code>;

/// What the engine decided; see `enum fby_decision`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    Done,
    Wait(Wait),
    Origin,
    Again,
    /// Through the cache, not past it.
    Cached,
}

/// What a request waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    Block,
    Slot,
    Space,
}

fn decision(r: i32) -> EngineResult<Decision> {
    Ok(match r {
        sys::FBY_DONE => Decision::Done,
        sys::FBY_WAIT_BLOCK => Decision::Wait(Wait::Block),
        sys::FBY_WAIT_SLOT => Decision::Wait(Wait::Slot),
        sys::FBY_WAIT_SPACE => Decision::Wait(Wait::Space),
        sys::FBY_ORIGIN => Decision::Origin,
        sys::FBY_AGAIN => Decision::Again,
        sys::FBY_CACHED => Decision::Cached,
        e if e < 0 => return Err(Code(-e)),
        _ => return Err(Code(sys::FBY_E_INVARIANT)),
    })
}

fn done(r: i32) -> EngineResult<()> {
    match r {
        r if r < 0 => Err(Code(-r)),
        _ => Ok(()),
    }
}

/// The message of a positive error number.
pub(crate) fn message(code: i32) -> &'static str {
    sys::error_message(-code)
}

/// The errno number of a positive error number.
pub(crate) fn errno(code: i32) -> i32 {
    sys::error_errno(-code)
}

pub(crate) fn kernels() -> Vec<&'static str> {
    sys::posix_kernels()
}

pub(crate) fn checksum_kernel() -> &'static str {
    sys::posix_crc_kernel()
}

/// Media operations; `None` if this CPU cannot.
pub(crate) fn media_ops(
    persist: Persist,
    kernel: Option<&str>,
) -> Option<&'static sys::fby_media_ops> {
    let persist = match persist {
        Persist::Auto => return None,
        Persist::Nt => sys::FBY_PERSIST_NT,
        Persist::Clwb => sys::FBY_PERSIST_CLWB,
        Persist::Eadr => sys::FBY_PERSIST_EADR,
        Persist::Msync => sys::FBY_PERSIST_MSYNC,
    };
    sys::posix_media_ops(persist, kernel)
}

/// Copies from media; a multiple of 64 bytes from one.  False: it cannot be read.
pub(crate) fn media_read(media: &Media, at: usize, to: &mut [u8]) -> bool {
    let m = media.as_raw();
    // SAFETY: m is valid as long as media.
    let (size, ops) = unsafe { ((*m).size as usize, &*(*m).ops) };
    assert!((at | to.len()).is_multiple_of(64) && at + to.len() <= size);
    // SAFETY: within the mapping and within the slice, aligned as it asks for.
    unsafe { (ops.read_crc)(m, to.as_mut_ptr().cast(), at as u64, to.len(), &mut 0) == 0 }
}

/// Stores zeroes to a range of the media and makes them durable.
pub(crate) fn media_zero(media: &Media, start: usize, len: usize) {
    const ZERO: [u8; 4096] = [0; 4096];
    let m = media.as_raw();
    // SAFETY: the caller (Media::wipe) checked that the range is page-aligned
    // and lies within the writable mapping, on which no engine is open.
    unsafe {
        let ops = &*(*m).ops;
        for at in (start..start + len).step_by(ZERO.len()) {
            (ops.write)(m, at as u64, ZERO.as_ptr().cast(), ZERO.len());
        }
        (ops.fence)(m, start as u64, len);
    }
}

/// What a look at media shows.
#[derive(Clone, Debug)]
pub(crate) struct Probe {
    pub state: ProbeState,
    /// Why it cannot be opened: a positive error number, or 0.
    pub error: i32,
    pub primary_valid: bool,
    pub copy_valid: bool,
    pub superblock: Option<SuperblockDump>,
    raw: sys::fby_superblock,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProbeState {
    Blank,
    Pool,
    Damaged,
}

pub(crate) fn probe(media: &Media) -> Probe {
    let mut out = sys::fby_probe::default();
    // SAFETY: the media is mapped and outlives the call; out is ours.
    unsafe { sys::fby_probe(media.as_raw(), &mut out) };
    let state = match out.state {
        sys::FBY_PROBE_BLANK => ProbeState::Blank,
        sys::FBY_PROBE_POOL => ProbeState::Pool,
        _ => ProbeState::Damaged,
    };
    Probe {
        state,
        error: -out.error,
        primary_valid: out.primary_valid,
        copy_valid: out.copy_valid,
        superblock: (state == ProbeState::Pool)
            .then(|| superblock_dump(&out.sb, out.primary_valid, out.copy_valid)),
        raw: out.sb,
    }
}

pub(crate) fn superblock_dump(
    sb: &sys::fby_superblock,
    primary_valid: bool,
    copy_valid: bool,
) -> SuperblockDump {
    SuperblockDump {
        version: sb.version,
        clean: sb.flags & sys::FBY_SB_CLEAN != 0,
        flags: sb.flags,
        features_compat: sb.features_compat,
        features_ro: sb.features_ro,
        features_incompat: sb.features_incompat,
        uuid: Uuid(sb.uuid),
        generation: sb.generation,
        media_size_bytes: sb.media_size,
        data_offset_bytes: sb.data_offset,
        chunk_size_bytes: sb.chunk_size,
        chunks: sb.nchunks,
        max_volumes: sb.nvolumes,
        clean_entries: sb.clean_entries,
        clean_digest: sb.clean_digest,
        clean_seq: sb.clean_seq,
        primary_valid,
        copy_valid,
    }
}

/// The smallest media that takes a pool of this chunk size: the superblocks
/// and the volume table fit below the first chunk boundary.
pub(crate) fn least_media_bytes(chunk_size_bytes: u32) -> u64 {
    const LEAST_CHUNKS: u64 = 4;
    u64::from(chunk_size_bytes) * (1 + LEAST_CHUNKS)
}

pub(crate) fn format(
    media: &Media,
    uuid: Uuid,
    chunk_size_bytes: u32,
    max_volumes: u32,
) -> Result<()> {
    let f = sys::fby_format { uuid: uuid.0, chunk_size: chunk_size_bytes, nvolumes: max_volumes };
    assert!(!media.read_only());
    // SAFETY: the media is mapped writable and outlives the call.
    let r = unsafe { sys::fby_format(media.as_raw(), &f) };
    done(r).map_err(|e| match e.0 {
        sys::FBY_E_MEDIA_SMALL => Error::TooSmall {
            path: media.info().path.clone(),
            bytes: media.info().size_bytes,
            chunk_size_bytes,
            least_bytes: least_media_bytes(chunk_size_bytes),
        },
        sys::FBY_E_GEOMETRY => Error::usage(
            format!(
                "{}: {} bytes in chunks of {chunk_size_bytes} bytes are not possible",
                media.info().path.display(),
                media.info().size_bytes
            ),
            "use another chunk size",
        ),
        _ => Error::Internal {
            what: media.info().path.display().to_string(),
            code: e.0,
            message: e.message(),
        },
    })
}

/// A request of destage for the origin of a volume.
#[derive(Debug)]
pub(crate) struct Io {
    pub id: u32,
    pub volume: u16,
    /// `FBY_IO_x`
    pub op: u8,
    /// Bytes.
    pub offset: u64,
    pub len: u64,
    /// Data of a write; null otherwise.
    buf: *const u8,
    /// What buf lies in.
    _memory: Arc<Mapping>,
}

// SAFETY: the request is the only one to use its buffer until it is completed,
// and keeps the memory that it lies in.
unsafe impl Send for Io {}

impl Io {
    /// The data of a write.
    pub(crate) fn data(&self) -> &[u8] {
        if self.op != sys::FBY_IO_WRITE {
            return &[];
        }
        // SAFETY: the engine hands out len bytes of the memory kept here and
        // leaves them alone until the request is completed, which consumes it.
        unsafe { std::slice::from_raw_parts(self.buf, self.len as usize) }
    }
}

/// Result of a destage step.
pub(crate) enum Step {
    Submit(Io),
    Again,
    /// Nothing to do until a completion, a kick, or this time.
    Sleep {
        next_ns: u64,
    },
}

/// Arguments of an attach.
pub(crate) struct Attach<'a> {
    pub origin_sectors: u64,
    pub identity: &'a str,
    pub holes: u32,
    pub round_pages: u32,
    pub buffers: u32,
    pub buffer_bytes: u32,
}

/// An open pool, recovered and usable.
pub(crate) struct Engine {
    pool: *mut sys::fby_pool,
    memory: Mapping,
    media: Media,
    /// Keeps volume add, remove, attach, detach, rebind and destage steps
    /// apart.
    admin: Mutex<Admin>,
}

/// Of volumes, by their index.
#[derive(Default)]
struct Admin {
    /// Destage memory of those that are attached.
    memory: HashMap<u16, Arc<Mapping>>,
    /// How many drain it.
    drains: HashMap<u16, u32>,
}

// SAFETY: the engine may be called from any thread; where it wants one at a
// time, the methods here take a lock.
unsafe impl Send for Engine {}
// SAFETY: as above.
unsafe impl Sync for Engine {}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("media", &self.media).finish_non_exhaustive()
    }
}

impl Engine {
    /// Opens the pool on the media and recovers it on that many threads.
    pub(crate) fn open(
        media: Media,
        probe: &Probe,
        o: &sys::fby_options,
        threads: usize,
    ) -> Result<(Engine, sys::fby_recovery_report)> {
        let path = media.info().path.clone();
        // SAFETY: a plain computation over the superblock, which was probed valid.
        let bytes = unsafe { sys::fby_pool_bytes(&probe.raw, o.nslots) };
        let memory = usize::try_from(bytes)
            .map_err(|_| std::io::Error::from(std::io::ErrorKind::OutOfMemory))
            .and_then(|len| Mapping::anonymous(len, true, false))
            .map_err(|source| Error::Io {
                path: path.clone(),
                doing: "allocating memory for its index",
                source,
                way_out: format!("it needs {bytes} bytes: free memory, or use a smaller pool"),
            })?;
        let mut pool = ptr::null_mut();
        // SAFETY: memory and media move into the Engine below, so they outlive
        // the pool; the media's address is that of a box and does not change.
        let r = unsafe {
            let mem = memory.as_ptr().cast();
            sys::fby_pool_open(&mut pool, mem, bytes, media.as_raw(), o)
        };
        done(r).map_err(|e| open_error(&path, e))?;
        let engine = Engine { pool, memory, media, admin: Mutex::default() };
        engine.recover_chunks(probe.raw.nchunks, threads).map_err(|e| open_error(&path, e))?;
        let mut report = sys::fby_recovery_report::default();
        // SAFETY: every chunk was scanned once, and the scanning threads ended.
        let r = unsafe { sys::fby_recover_finish(engine.pool, &mut report) };
        done(r).map_err(|e| open_error(&path, e))?;
        Ok((engine, report))
    }

    /// Scans all chunks: threads take ranges from a shared counter, so that
    /// one with few entries does not wait for one with many.
    fn recover_chunks(&self, nchunks: u32, threads: usize) -> EngineResult<()> {
        const RANGE: u32 = 64;
        let next = AtomicU32::new(0);
        let scan = || -> EngineResult<()> {
            loop {
                let first = next.fetch_add(RANGE, Ordering::Relaxed);
                if first >= nchunks {
                    return Ok(());
                }
                let n = RANGE.min(nchunks - first);
                // SAFETY: ranges are handed out once each, and are disjoint.
                done(unsafe { sys::fby_recover_chunks(self.pool, first, n) })?;
            }
        };
        let threads = threads.clamp(1, nchunks.div_ceil(RANGE).max(1) as usize);
        std::thread::scope(|s| {
            let others: Vec<_> = (1..threads).map(|_| s.spawn(scan)).collect();
            let own = scan();
            let joined = others.into_iter().map(|t| t.join().expect("the scan does not panic"));
            joined.fold(own, EngineResult::and)
        })
    }

    /// Seals everything and marks the pool clean.  Refused while a volume is
    /// attached: without one there is no request, and destage does nothing.
    pub(crate) fn close(&self) -> EngineResult<()> {
        let admin = self.admin();
        if !admin.memory.is_empty() {
            return Err(Code(sys::FBY_E_BUSY));
        }
        // SAFETY: no request is in flight, since no volume is attached, and
        // admin keeps one from being attached meanwhile.
        done(unsafe { sys::fby_pool_close(self.pool) })
    }

    pub(crate) fn media(&self) -> &Media {
        &self.media
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        self.memory.len() as u64
    }

    pub(crate) fn destage_memory_bytes(&self) -> u64 {
        self.admin().memory.values().map(|m| m.len() as u64).sum()
    }

    fn admin(&self) -> MutexGuard<'_, Admin> {
        self.admin.lock().unwrap_or_else(|e| e.into_inner())
    }

    pub(crate) fn options(&self) -> sys::fby_options {
        let mut o = sys::fby_options::default();
        // SAFETY: the pool is open; o is ours.
        unsafe { sys::fby_pool_options(self.pool, &mut o) };
        o
    }

    pub(crate) fn set_options(&self, o: &sys::fby_options) -> EngineResult<()> {
        let _admin = self.admin();
        // SAFETY: the pool is open; admin keeps setters apart.
        done(unsafe { sys::fby_pool_set_options(self.pool, o) })
    }

    pub(crate) fn info(&self) -> sys::fby_pool_info {
        let mut info = sys::fby_pool_info::default();
        // SAFETY: the pool is open; info is ours.
        unsafe { sys::fby_pool_info(self.pool, &mut info) };
        info
    }

    pub(crate) fn damaged(&self, max: u32) -> Vec<sys::fby_report_block> {
        let mut out = vec![sys::fby_report_block::default(); max as usize];
        // SAFETY: the pool is open; out has room for max.
        let n = unsafe { sys::fby_damaged_list(self.pool, out.as_mut_ptr(), max) };
        out.truncate(n as usize);
        out
    }

    /// Numbers of a volume's lost blocks, ascending; at most `max`.
    pub(crate) fn lost_blocks(&self, volume: u16, max: usize) -> Vec<u64> {
        let (mut lost, mut page) = (Vec::new(), 0);
        let mut some = [sys::fby_report_block::default(); 64];
        while lost.len() < max {
            let out = some.as_mut_ptr();
            // SAFETY: the pool is open; out has room for 64.
            let n = unsafe { sys::fby_lost_list(self.pool, volume, &mut page, out, 64) };
            lost.extend(some[..n as usize].iter().map(|b| b.block));
            if n < 64 {
                break;
            }
        }
        lost.truncate(max);
        lost.sort_unstable();
        lost
    }

    /// Verifies the invariants; the text of the first that does not hold.
    pub(crate) fn check(&self, quiet: bool) -> EngineResult<Option<String>> {
        // All is quiet only while destage is, which seals chunks by itself.
        let _admin = quiet.then(|| self.admin());
        let mut text = [0u8; 1024];
        // SAFETY: the pool is open; text has the length given.
        let r = unsafe {
            sys::fby_check(self.pool, quiet, text.as_mut_ptr().cast(), text.len() as u32)
        };
        match done(r) {
            Ok(()) => Ok(None),
            Err(Code(sys::FBY_E_INVARIANT)) => Ok(Some(sys::text(&text).into_owned())),
            Err(e) => Err(e),
        }
    }

    pub(crate) fn volume_add(&self, spec: &sys::fby_volume_spec) -> EngineResult<u16> {
        let _admin = self.admin();
        let mut index = 0;
        // SAFETY: the pool is open; admin keeps volume calls apart.
        done(unsafe { sys::fby_volume_add(self.pool, spec, &mut index) })?;
        Ok(index)
    }

    pub(crate) fn volume_remove(&self, index: u16, discard: bool) -> EngineResult<()> {
        let _admin = self.admin();
        // SAFETY: the pool is open; admin keeps volume calls apart.
        done(unsafe { sys::fby_volume_remove(self.pool, index, discard) })
    }

    pub(crate) fn volume_find(&self, name: &str) -> EngineResult<u16> {
        let name = CString::new(name).map_err(|_| Code(sys::FBY_E_NAME))?;
        let mut index = 0;
        let _admin = self.admin();
        // SAFETY: the pool is open; name is zero-terminated.
        done(unsafe { sys::fby_volume_find(self.pool, name.as_ptr(), &mut index) })?;
        Ok(index)
    }

    pub(crate) fn volume_info(&self, index: u16) -> EngineResult<sys::fby_volume_info> {
        let mut info = sys::fby_volume_info::default();
        // SAFETY: the pool is open; info is ours.
        done(unsafe { sys::fby_volume_info(self.pool, index, &mut info) })?;
        Ok(info)
    }

    pub(crate) fn volume_rebind(
        &self,
        index: u16,
        identity: &str,
        sectors: u64,
    ) -> EngineResult<()> {
        let identity = CString::new(identity).map_err(|_| Code(sys::FBY_E_NAME))?;
        let _admin = self.admin();
        // SAFETY: the pool is open; identity is zero-terminated.
        done(unsafe { sys::fby_volume_rebind(self.pool, index, identity.as_ptr(), sectors) })
    }

    /// Attaches with memory of its own, which is kept until the detach.
    pub(crate) fn volume_attach(&self, index: u16, a: &Attach<'_>) -> Result<EngineResult<()>> {
        let mut admin = self.admin();
        // SAFETY: the pool is open; a plain computation.
        let bytes =
            unsafe { sys::fby_volume_bytes(self.pool, a.round_pages, a.buffers, a.buffer_bytes) };
        let len = usize::try_from(bytes).unwrap_or(usize::MAX);
        let memory = Mapping::anonymous(len, false, false).map_err(|e| {
            Error::system(&self.media.info().path, "allocating memory for destage", e)
        })?;
        let Ok(identity) = CString::new(a.identity) else {
            return Ok(Err(Code(sys::FBY_E_NAME)));
        };
        let raw = sys::fby_attach {
            origin_sectors: a.origin_sectors,
            identity: identity.as_ptr(),
            holes: a.holes,
            mem: memory.as_ptr().cast(),
            mem_bytes: bytes,
            round_pages: a.round_pages,
            nbuffers: a.buffers,
            buffer_bytes: a.buffer_bytes,
        };
        // SAFETY: the pool is open, admin keeps volume calls apart, and the
        // memory stays in the map until the detach (or until self is dropped,
        // after which no call is made).
        let r = done(unsafe { sys::fby_volume_attach(self.pool, index, &raw) });
        if r.is_ok() {
            admin.memory.insert(index, Arc::new(memory));
        }
        Ok(r)
    }

    pub(crate) fn volume_detach(&self, index: u16) -> EngineResult<()> {
        let mut admin = self.admin();
        // SAFETY: the pool is open; admin keeps volume calls apart.
        done(unsafe { sys::fby_volume_detach(self.pool, index) })?;
        admin.memory.remove(&index);
        Ok(())
    }

    /// Writes; `done` counts sectors, `wake` collects whom to wake.
    pub(crate) fn write(
        &self,
        volume: u16,
        sector: u64,
        data: &[u8],
        done: &mut u32,
        wake: &mut u32,
    ) -> EngineResult<Decision> {
        let nsectors = (data.len() / 512) as u32;
        // SAFETY: the pool is open; data has nsectors * 512 bytes.
        decision(unsafe {
            let buf = data.as_ptr().cast();
            sys::fby_write(self.pool, volume, sector, nsectors, buf, done, wake)
        })
    }

    /// The same, step by step, and how long each takes.
    pub(crate) fn write_timed(
        &self,
        volume: u16,
        sector: u64,
        data: &[u8],
        done: &mut u32,
        wake: &mut u32,
        phases: &Phases,
    ) -> EngineResult<Decision> {
        let nsectors = (data.len() / 512) as u32;
        let vec = sys::fby_vec { base: data.as_ptr().cast(), len: data.len() as u32 };
        let mut w = sys::fby_write::default();
        while *done < nsectors {
            let (at, left, skip) =
                (sector + u64::from(*done), nsectors - *done, u64::from(*done) * 512);
            // SAFETY: the pool is open; vec holds nsectors * 512 bytes, of which
            // skip are done; w is used in the order the engine asks for, and
            // nothing between begin and publish waits.
            let began = phases.time(Phase::Begin, || unsafe {
                sys::fby_write_begin(self.pool, &mut w, volume, at, left)
            });
            match decision(began)? {
                Decision::Done => {}
                wait => return Ok(wait),
            }
            // SAFETY: as above.
            phases.time(Phase::Copy, || unsafe {
                sys::fby_write_copy(self.pool, &mut w, &vec, 1, skip)
            });
            // SAFETY: as above.
            phases.time(Phase::Commit, || unsafe { sys::fby_write_commit(self.pool, &mut w) });
            // SAFETY: as above.
            phases.time(Phase::Publish, || unsafe { sys::fby_write_publish(self.pool, &mut w) });
            *done += w.nsectors;
            *wake |= w.wake;
        }
        Ok(Decision::Done)
    }

    /// Reads what is cached of [first, first + dst sectors) of a block.
    /// Returns the masks of sectors to read from the origin, and of lost ones.
    pub(crate) fn read_block(
        &self,
        volume: u16,
        block: u64,
        first: u32,
        dst: &mut [u8],
    ) -> EngineResult<(u8, u8)> {
        let n = (dst.len() / 512) as u32;
        assert!(n >= 1 && first + n <= 8);
        let (mut origin, mut lost) = (0, 0);
        // SAFETY: the pool is open; dst has n sectors.
        let r = unsafe {
            let dst = dst.as_mut_ptr().cast();
            sys::fby_read_block(self.pool, volume, block, first, n, dst, &mut origin, &mut lost)
        };
        match r {
            sys::FBY_DONE => Ok((0, 0)),
            sys::FBY_ORIGIN => Ok((origin, lost)),
            e if e == -sys::FBY_E_LOST => Ok((origin, lost)),
            e => done(e).map(|()| (origin, lost)),
        }
    }

    /// Might a write have to wait before it is acknowledged?
    pub(crate) fn write_throttled(&self, volume: u16) -> bool {
        // SAFETY: the pool is open.
        unsafe { sys::fby_write_throttled(self.pool, volume) }
    }

    /// Nanoseconds that a write should wait before it is acknowledged.
    pub(crate) fn write_delay(&self, volume: u16, nsectors: u32, now_ns: u64) -> u64 {
        // SAFETY: the pool is open.
        unsafe { sys::fby_write_delay(self.pool, volume, nsectors, now_ns) }
    }

    /// Brackets a read of the origin that somebody waits for.
    pub(crate) fn origin_foreground(&self, volume: u16, begin: bool) {
        // SAFETY: the pool is open.
        unsafe { sys::fby_origin_foreground(self.pool, volume, begin) }
    }

    /// Announces that a writer is about to sleep for space.
    pub(crate) fn wait_prepare_space(&self) {
        // SAFETY: the pool is open.
        unsafe { sys::fby_wait_prepare(self.pool, sys::FBY_WAIT_SPACE as u32) }
    }

    /// One step of destage, at a time of the caller's clock.
    pub(crate) fn destage_step(&self, now_ns: u64, wake: &mut u32) -> EngineResult<Step> {
        let admin = self.admin();
        let mut io = sys::fby_io::default();
        let mut next_ns = u64::MAX;
        // SAFETY: the pool is open; admin keeps steps and volume calls apart.
        let r = unsafe { sys::fby_destage_step(self.pool, now_ns, &mut io, &mut next_ns, wake) };
        match decision(r)? {
            Decision::Origin => Ok(Step::Submit(Io {
                id: io.id,
                volume: io.volume,
                op: io.op,
                offset: io.sector * 512,
                len: io.nsectors * 512,
                buf: io.buf.cast(),
                _memory: admin.memory.get(&io.volume).cloned().ok_or(Code(sys::FBY_E_INVARIANT))?,
            })),
            Decision::Again => Ok(Step::Again),
            Decision::Done => Ok(Step::Sleep { next_ns }),
            Decision::Wait(_) | Decision::Cached => Err(Code(sys::FBY_E_INVARIANT)),
        }
    }

    pub(crate) fn destage_complete(&self, io: Io, errno: i32) {
        // SAFETY: the pool is open; the request is one that a step handed out
        // and is consumed, so it is completed once.
        unsafe { sys::fby_destage_complete(self.pool, io.id, errno) }
    }

    pub(crate) fn clean(&self, index: u16) -> bool {
        // SAFETY: the pool is open.
        unsafe { sys::fby_volume_clean(self.pool, index) }
    }

    pub(crate) fn chunk_info(&self, chunk: u32) -> EngineResult<sys::fby_chunk_info> {
        let mut info = sys::fby_chunk_info::default();
        // SAFETY: the pool is open; info is ours.
        done(unsafe { sys::fby_chunk_info(self.pool, chunk, &mut info) })?;
        Ok(info)
    }

    pub(crate) fn entry_info(
        &self,
        chunk: u32,
        page: u32,
        check_data: bool,
    ) -> EngineResult<sys::fby_entry_info> {
        let mut info = sys::fby_entry_info::default();
        // SAFETY: the pool is open; info is ours.
        done(unsafe { sys::fby_entry_info(self.pool, chunk, page, check_data, &mut info) })?;
        Ok(info)
    }
}
