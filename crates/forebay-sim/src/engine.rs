// SPDX-License-Identifier: MIT OR Apache-2.0
//! The engine as the simulator drives it: the calls of `core/api/forebay.h`, one to
//! one, made safe by owning the media and all memory that the engine is given.
//! After a crash the pool is abandoned, as a dead process would leave it.

use std::ffi::{c_char, CString};
use std::fmt;

use forebay_sys as sys;

use crate::media::{Media, Region};

/// A negative return value of the engine.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Error(pub i32);

impl Error {
    pub fn is(self, code: i32) -> bool {
        self.0 == -code
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", sys::error_name(self.0))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", sys::error_name(self.0), sys::error_message(self.0))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    Done,
    WaitBlock,
    WaitSlot,
    WaitSpace,
    Origin,
    Again,
    Cached,
    WaitFlush,
}

pub type Result<T> = std::result::Result<T, Error>;

fn decide(value: i32) -> Result<Decision> {
    match value {
        sys::FBY_DONE => Ok(Decision::Done),
        sys::FBY_WAIT_BLOCK => Ok(Decision::WaitBlock),
        sys::FBY_WAIT_SLOT => Ok(Decision::WaitSlot),
        sys::FBY_WAIT_SPACE => Ok(Decision::WaitSpace),
        sys::FBY_ORIGIN => Ok(Decision::Origin),
        sys::FBY_AGAIN => Ok(Decision::Again),
        sys::FBY_CACHED => Ok(Decision::Cached),
        sys::FBY_WAIT_FLUSH => Ok(Decision::WaitFlush),
        error => Err(Error(error)),
    }
}

fn done(value: i32) -> Result<()> {
    match value {
        0 => Ok(()),
        error => Err(Error(error)),
    }
}

/// A write between begin and publish.
pub struct Write {
    raw: Box<sys::fby_write>,
    opening: u64,
}

impl Write {
    pub fn nsectors(&self) -> u32 {
        self.raw.nsectors
    }

    pub fn wake(&self) -> u32 {
        self.raw.wake
    }
}

/// A write, discard or zeroing past the cache, between begin and end.
#[derive(Debug)]
pub struct Bypass {
    raw: sys::fby_bypass,
    opening: u64,
}

impl Bypass {
    pub fn nsectors(&self) -> u32 {
        self.raw.nsectors
    }
}

/// A flush that somebody waits for; new, it is for all that was written.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ticket {
    raw: sys::fby_flush,
}

impl Ticket {
    /// A host's own, beside those of its clients.
    pub fn aside() -> Self {
        Self { raw: sys::fby_flush { aside: true, ..Default::default() } }
    }

    /// Of one of several, who was told so much before.
    pub fn client(told: u32) -> Self {
        Self { raw: sys::fby_flush { client: true, told, ..Default::default() } }
    }

    pub fn told(&self) -> u32 {
        self.raw.told
    }
}

/// A request for an origin, its data copied.
#[derive(Clone, Debug)]
pub struct Io {
    pub id: u32,
    pub volume: u16,
    pub op: u8,
    pub sector: u64,
    pub nsectors: u64,
    pub data: Vec<u8>,
}

#[derive(Debug)]
pub struct Step {
    pub decision: Decision,
    pub io: Option<Io>,
    pub next_ns: u64,
    pub wake: u32,
}

#[derive(Clone, Copy, Debug)]
pub struct BlockRead {
    pub result: Result<Decision>,
    pub origin: u8,
    pub lost: u8,
}

#[derive(Debug)]
pub struct RangeResult {
    pub result: Result<Decision>,
    /// What the origin is to do.
    pub past: Option<Bypass>,
    pub wake: u32,
}

#[derive(Clone, Debug)]
pub struct Attach<'a> {
    pub origin_sectors: u64,
    pub identity: &'a str,
    pub holes: u32,
    pub round_pages: u32,
    pub nbuffers: u32,
    pub buffer_bytes: u32,
}

impl<'a> Attach<'a> {
    /// With little memory: two buffers of two blocks each.
    pub fn small(origin_sectors: u64, identity: &'a str, round_pages: u32) -> Self {
        let holes = sys::FBY_HOLES_FAIL;
        Self { origin_sectors, identity, holes, round_pages, nbuffers: 2, buffer_bytes: 8192 }
    }
}

/// The media, and the pool that is open on it if one is.
pub struct Engine {
    pub media: Media,
    memory: Region,
    pool: *mut sys::fby_pool,
    attached: Vec<Region>,
    opening: u64,
}

// SAFETY: the engine keeps no thread-local state; all it points to is owned here.
unsafe impl Send for Engine {}

impl Engine {
    pub fn new(media: Media) -> Self {
        Self {
            media,
            memory: Region::new(0),
            pool: std::ptr::null_mut(),
            attached: Vec::new(),
            opening: 0,
        }
    }

    pub fn format(&mut self, uuid: [u8; 16], chunk_size: u32, nvolumes: u32) -> Result<()> {
        assert!(!self.is_open());
        let f = sys::fby_format { uuid, chunk_size, nvolumes };
        // SAFETY: the media lives as long as self; f is only read.
        done(unsafe { sys::fby_format(self.media.raw(), &f) })
    }

    pub fn probe(&mut self) -> sys::fby_probe {
        let mut out = sys::fby_probe::default();
        // SAFETY: the media lives as long as self; out is the result.
        unsafe { sys::fby_probe(self.media.raw(), &mut out) };
        out
    }

    pub fn is_open(&self) -> bool {
        !self.pool.is_null()
    }

    fn pool(&self) -> *mut sys::fby_pool {
        assert!(self.is_open(), "no pool is open");
        self.pool
    }

    /// Superblock and volume table; recovery is to follow.
    pub fn open(&mut self, options: &sys::fby_options) -> Result<()> {
        assert!(!self.is_open());
        let probe = self.probe();
        if probe.error != 0 {
            return Err(Error(probe.error));
        }
        // SAFETY: the superblock is only read.
        let bytes = unsafe { sys::fby_pool_bytes(&probe.sb, options.nslots) } as usize;
        if self.memory.len() == bytes {
            self.memory.zero();
        } else {
            self.memory = Region::new(bytes);
        }
        let mut pool = std::ptr::null_mut();
        // SAFETY: the memory is zeroed, aligned, as large as asked for, and lives
        // as long as the pool, as does the media.
        done(unsafe {
            sys::fby_pool_open(
                &mut pool,
                self.memory.base().cast(),
                bytes as u64,
                self.media.raw(),
                options,
            )
        })?;
        self.pool = pool;
        self.opening += 1;
        Ok(())
    }

    pub fn recover_chunks(&mut self, first: u32, n: u32) -> Result<()> {
        // SAFETY: the pool is open and the call has it to itself.
        done(unsafe { sys::fby_recover_chunks(self.pool(), first, n) })
    }

    pub fn recover_finish(&mut self) -> Result<sys::fby_recovery_report> {
        let mut report = sys::fby_recovery_report::default();
        // SAFETY: as above; report is the result.
        done(unsafe { sys::fby_recover_finish(self.pool(), &mut report) })?;
        Ok(report)
    }

    /// Open and recover; abandoned again if that fails.
    pub fn open_all(&mut self, options: &sys::fby_options) -> Result<sys::fby_recovery_report> {
        self.open(options)?;
        let chunks = self.info().sb.nchunks;
        let result = self.recover_chunks(0, chunks).and_then(|()| self.recover_finish());
        if result.is_err() {
            self.abandon();
        }
        result
    }

    /// The process is gone.
    pub fn abandon(&mut self) {
        self.pool = std::ptr::null_mut();
    }

    pub fn close(&mut self) -> Result<()> {
        // SAFETY: the pool is open; it is not used after this.
        done(unsafe { sys::fby_pool_close(self.pool()) })?;
        self.abandon();
        Ok(())
    }

    pub fn options(&mut self) -> sys::fby_options {
        let mut o = sys::fby_options::default();
        // SAFETY: the pool is open; o is the result.
        unsafe { sys::fby_pool_options(self.pool(), &mut o) };
        o
    }

    pub fn set_options(&mut self, o: &sys::fby_options) -> Result<()> {
        // SAFETY: the pool is open; o is only read.
        done(unsafe { sys::fby_pool_set_options(self.pool(), o) })
    }

    pub fn info(&mut self) -> sys::fby_pool_info {
        let mut info = sys::fby_pool_info::default();
        // SAFETY: the pool is open; info is the result.
        unsafe { sys::fby_pool_info(self.pool(), &mut info) };
        info
    }

    pub fn check(&mut self, quiet: bool) -> std::result::Result<(), String> {
        let mut text = [0u8; 256];
        // SAFETY: the pool is open; text has room for the bytes named.
        let r = unsafe {
            sys::fby_check(
                self.pool(),
                quiet,
                text.as_mut_ptr().cast::<c_char>(),
                text.len() as u32,
            )
        };
        match r {
            0 => Ok(()),
            e => Err(format!("check: {:?}: {}", Error(e), sys::text(&text))),
        }
    }

    pub fn volume_add(&mut self, spec: &sys::fby_volume_spec) -> Result<u16> {
        let mut index = 0;
        // SAFETY: the pool is open; spec is only read, index is the result.
        done(unsafe { sys::fby_volume_add(self.pool(), spec, &mut index) })?;
        Ok(index)
    }

    pub fn volume_remove(&mut self, index: u16, discard: bool) -> Result<()> {
        // SAFETY: the pool is open.
        done(unsafe { sys::fby_volume_remove(self.pool(), index, discard) })
    }

    pub fn volume_find(&mut self, name: &str) -> Result<u16> {
        let name = CString::new(name).expect("a name without zeroes");
        let mut index = 0;
        // SAFETY: the pool is open; the name ends with a zero.
        done(unsafe { sys::fby_volume_find(self.pool(), name.as_ptr(), &mut index) })?;
        Ok(index)
    }

    pub fn volume_info(&mut self, index: u16) -> Result<sys::fby_volume_info> {
        let mut info = sys::fby_volume_info::default();
        // SAFETY: the pool is open; info is the result.
        done(unsafe { sys::fby_volume_info(self.pool(), index, &mut info) })?;
        Ok(info)
    }

    pub fn volume_attach(&mut self, index: u16, a: &Attach) -> Result<()> {
        let identity = CString::new(a.identity).expect("an identity without zeroes");
        // SAFETY: the pool is open.
        let bytes = unsafe {
            sys::fby_volume_bytes(self.pool(), a.round_pages, a.nbuffers, a.buffer_bytes)
        } as usize;
        let at = usize::from(index);
        while self.attached.len() <= at {
            self.attached.push(Region::new(0));
        }
        if self.attached[at].len() == bytes {
            self.attached[at].zero();
        } else {
            self.attached[at] = Region::new(bytes);
        }
        let raw = sys::fby_attach {
            origin_sectors: a.origin_sectors,
            identity: identity.as_ptr(),
            holes: a.holes,
            mem: self.attached[at].base().cast(),
            mem_bytes: bytes as u64,
            round_pages: a.round_pages,
            nbuffers: a.nbuffers,
            buffer_bytes: a.buffer_bytes,
        };
        // SAFETY: the pool is open; the memory stays until the volume is attached
        // again or the engine is dropped.
        done(unsafe { sys::fby_volume_attach(self.pool(), index, &raw) })
    }

    pub fn volume_detach(&mut self, index: u16) -> Result<()> {
        // SAFETY: the pool is open.
        done(unsafe { sys::fby_volume_detach(self.pool(), index) })
    }

    pub fn volume_drain(&mut self, index: u16, on: bool) -> Result<()> {
        // SAFETY: the pool is open.
        done(unsafe { sys::fby_volume_drain(self.pool(), index, on) })
    }

    pub fn volume_clean(&mut self, index: u16) -> bool {
        // SAFETY: the pool is open.
        unsafe { sys::fby_volume_clean(self.pool(), index) }
    }

    pub fn write_begin(
        &mut self,
        volume: u16,
        sector: u64,
        nsectors: u32,
    ) -> (Result<Decision>, Option<Write>) {
        let mut raw = Box::<sys::fby_write>::default();
        // SAFETY: the pool is open; raw is the request, which begin fills.
        let r = decide(unsafe {
            sys::fby_write_begin(self.pool(), &mut *raw, volume, sector, nsectors)
        });
        let write = (r == Ok(Decision::Done)).then_some(Write { raw, opening: self.opening });
        (r, write)
    }

    /// `data`: the sectors from the request's first on, in pieces of any length.
    pub fn write_copy(&mut self, w: &mut Write, pieces: &[&[u8]], skip: u64) {
        assert_eq!(w.opening, self.opening);
        let vec: Vec<sys::fby_vec> = pieces
            .iter()
            .map(|p| sys::fby_vec { base: p.as_ptr().cast(), len: p.len() as u32 })
            .collect();
        let have: u64 = pieces.iter().map(|p| p.len() as u64).sum();
        assert!(have >= skip + u64::from(w.nsectors()) * 512);
        // SAFETY: w was begun on this pool; the pieces hold all its sectors.
        unsafe {
            sys::fby_write_copy(self.pool(), &mut *w.raw, vec.as_ptr(), vec.len() as u32, skip);
        }
    }

    pub fn write_commit(&mut self, w: &mut Write) {
        assert_eq!(w.opening, self.opening);
        // SAFETY: w was begun on this pool.
        unsafe { sys::fby_write_commit(self.pool(), &mut *w.raw) };
    }

    /// Returns the wake mask.
    pub fn write_publish(&mut self, mut w: Write) -> u32 {
        assert_eq!(w.opening, self.opening);
        // SAFETY: w was begun on this pool, and is not used after this.
        unsafe { sys::fby_write_publish(self.pool(), &mut *w.raw) };
        w.wake()
    }

    /// A whole write by the engine's own loop: sectors done, wake mask.
    pub fn write(
        &mut self,
        volume: u16,
        sector: u64,
        data: &[u8],
        done: &mut u32,
    ) -> (Result<Decision>, u32) {
        let mut wake = 0;
        // SAFETY: the pool is open; data holds all sectors.
        let r = unsafe {
            sys::fby_write(
                self.pool(),
                volume,
                sector,
                (data.len() / 512) as u32,
                data.as_ptr().cast(),
                done,
                &mut wake,
            )
        };
        (decide(r), wake)
    }

    /// Nanoseconds after which a write that is done may end.
    pub fn write_delay(&mut self, volume: u16, nsectors: u32, now_ns: u64) -> u64 {
        // SAFETY: the pool is open.
        unsafe { sys::fby_write_delay(self.pool(), volume, nsectors, now_ns) }
    }

    /// Somebody waits for the origin, or no longer does.
    pub fn origin_foreground(&mut self, volume: u16, begin: bool) {
        // SAFETY: the pool is open.
        unsafe { sys::fby_origin_foreground(self.pool(), volume, begin) };
    }

    pub fn read_block(&mut self, volume: u16, block: u64, first: u32, dst: &mut [u8]) -> BlockRead {
        let (mut origin, mut lost) = (0, 0);
        let n = (dst.len() / 512) as u32;
        // SAFETY: the pool is open; dst has room for n sectors.
        let r = unsafe {
            sys::fby_read_block(
                self.pool(),
                volume,
                block,
                first,
                n,
                dst.as_mut_ptr().cast(),
                &mut origin,
                &mut lost,
            )
        };
        BlockRead { result: decide(r), origin, lost }
    }

    pub fn range(
        &mut self,
        volume: u16,
        kind: u32,
        sector: u64,
        nsectors: u64,
        done: &mut u64,
    ) -> RangeResult {
        let (mut raw, mut wake) = (sys::fby_bypass::default(), 0);
        // SAFETY: the pool is open; the rest are results.
        let r = unsafe {
            sys::fby_range(self.pool(), volume, kind, sector, nsectors, done, &mut raw, &mut wake)
        };
        let result = decide(r);
        let past =
            (result == Ok(Decision::Origin)).then_some(Bypass { raw, opening: self.opening });
        RangeResult { result, past, wake }
    }

    /// DONE: the write past the cache.  CACHED: sectors to be written through it.
    pub fn bypass_begin(
        &mut self,
        volume: u16,
        sector: u64,
        nsectors: u32,
        least: u32,
    ) -> (Result<Decision>, Option<Bypass>, u32) {
        let mut raw = sys::fby_bypass::default();
        // SAFETY: the pool is open; raw is the request, which begin fills.
        let r = decide(unsafe {
            sys::fby_bypass_begin(self.pool(), &mut raw, volume, sector, nsectors, least)
        });
        let n = raw.nsectors;
        let begun = (r == Ok(Decision::Done)).then_some(Bypass { raw, opening: self.opening });
        (r, begun, n)
    }

    /// Returns the wake mask.
    pub fn bypass_end(&mut self, b: Bypass, error: i32) -> u32 {
        self.bypass_end_covered(b, error, None)
    }

    /// The same, and the ticket is to cover it.
    pub fn bypass_end_covered(
        &mut self,
        mut b: Bypass,
        error: i32,
        ticket: Option<&mut Ticket>,
    ) -> u32 {
        assert_eq!(b.opening, self.opening);
        let mut wake = 0;
        // SAFETY: b was begun on this pool, and is not begun any more after this.
        unsafe { sys::fby_bypass_end(self.pool(), &mut b.raw, error, &mut wake) };
        if let Some(t) = ticket {
            // SAFETY: b has ended; the ticket is not in flight.
            unsafe { sys::fby_flush_cover(self.pool(), &mut t.raw, &b.raw) };
        }
        wake
    }

    pub fn flush_begin(&mut self, volume: u16, t: &mut Ticket) -> Result<Decision> {
        // SAFETY: the pool is open; the ticket is ours.
        decide(unsafe { sys::fby_flush_begin(self.pool(), volume, &mut t.raw) })
    }

    /// What the caller of the flush gets, and the wake mask.
    pub fn flush_end(&mut self, t: &mut Ticket, error: i32) -> (Result<()>, u32) {
        let mut wake = 0;
        // SAFETY: the pool is open; the ticket was told to flush the origin.
        let r = unsafe { sys::fby_flush_end(self.pool(), &mut t.raw, error, &mut wake) };
        (done(r), wake)
    }

    pub fn flush_told(&mut self, volume: u16) -> u32 {
        // SAFETY: the pool is open.
        unsafe { sys::fby_flush_told(self.pool(), volume) }
    }

    pub fn flush_later(&mut self, t: &mut Ticket) -> Result<()> {
        // SAFETY: the pool is open; the ticket covers something.
        done(unsafe { sys::fby_flush_later(self.pool(), &mut t.raw) })
    }

    pub fn wait_prepare(&mut self, d: Decision) {
        let d = match d {
            Decision::WaitBlock => sys::FBY_WAIT_BLOCK,
            Decision::WaitSlot => sys::FBY_WAIT_SLOT,
            Decision::WaitSpace => sys::FBY_WAIT_SPACE,
            other => unreachable!("{other:?} is nothing to wait for"),
        };
        // SAFETY: the pool is open.
        unsafe { sys::fby_wait_prepare(self.pool(), d as u32) };
    }

    pub fn destage_step(&mut self, now_ns: u64) -> Result<Step> {
        let mut io = sys::fby_io::default();
        let (mut next_ns, mut wake) = (u64::MAX, 0);
        // SAFETY: the pool is open; the rest are results.
        let r =
            unsafe { sys::fby_destage_step(self.pool(), now_ns, &mut io, &mut next_ns, &mut wake) };
        let decision = decide(r)?;
        let io = (decision == Decision::Origin).then(|| {
            let data = if io.op == sys::FBY_IO_WRITE && !io.buf.is_null() {
                // SAFETY: the engine's buffer holds the request's sectors until
                // the request is completed.
                unsafe {
                    std::slice::from_raw_parts(io.buf.cast::<u8>(), io.nsectors as usize * 512)
                }
                .to_vec()
            } else {
                Vec::new()
            };
            Io {
                id: io.id,
                volume: io.volume,
                op: io.op,
                sector: io.sector,
                nsectors: io.nsectors,
                data,
            }
        });
        Ok(Step { decision, io, next_ns, wake })
    }

    pub fn destage_complete(&mut self, id: u32, error: i32) {
        // SAFETY: the pool is open.
        unsafe { sys::fby_destage_complete(self.pool(), id, error) };
    }

    pub fn chunk_info(&mut self, chunk: u32) -> Result<sys::fby_chunk_info> {
        let mut out = sys::fby_chunk_info::default();
        // SAFETY: the pool is open; out is the result.
        done(unsafe { sys::fby_chunk_info(self.pool(), chunk, &mut out) })?;
        Ok(out)
    }

    pub fn entry_info(&mut self, chunk: u32, page: u32, data: bool) -> Result<sys::fby_entry_info> {
        let mut out = sys::fby_entry_info::default();
        // SAFETY: the pool is open; out is the result.
        done(unsafe { sys::fby_entry_info(self.pool(), chunk, page, data, &mut out) })?;
        Ok(out)
    }
}

/// The spec of a volume, its uuid made from its number.
pub fn volume_spec(name: &str, number: u64, sectors: u64, block_size: u32) -> sys::fby_volume_spec {
    let mut uuid = [0; 16];
    uuid[..8].copy_from_slice(&crate::rng::mix(number).to_le_bytes());
    uuid[8..].copy_from_slice(&crate::rng::mix(!number).to_le_bytes());
    sys::fby_volume_spec {
        name: sys::c_text(name).expect("a short name"),
        identity: sys::c_text(&identity(number)).expect("a short identity"),
        uuid,
        origin_sectors: sectors,
        block_size,
    }
}

pub fn identity(number: u64) -> String {
    format!("sim-{number}")
}

/// Activates one of the engine's deliberate mistakes for the whole process.
#[cfg(feature = "planted-bugs")]
pub fn plant(id: u32) {
    // SAFETY: called before any pool is open and before any thread is started.
    unsafe { sys::fby_planted = id };
}
