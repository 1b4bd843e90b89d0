// SPDX-License-Identifier: MIT OR Apache-2.0
//! A pool with one volume, as thin over the engine as can be.

use std::ptr::{self, NonNull};
use std::sync::Mutex;
use std::time::Instant;

use forebay_sys::{
    c_text, error_message, fby_attach, fby_destage_complete, fby_destage_step, fby_format,
    fby_media, fby_options, fby_pool, fby_pool_bytes, fby_pool_info, fby_pool_open, fby_probe,
    fby_read_block, fby_recover_chunks, fby_recover_finish, fby_recovery_report, fby_superblock,
    fby_volume_add, fby_volume_attach, fby_volume_bytes, fby_volume_find, fby_volume_spec,
    fby_write, posix_media_ops, FBY_AGAIN, FBY_DONE, FBY_ORIGIN, FBY_PAGE_SECTORS, FBY_PERSIST_NT,
    FBY_WAIT_BLOCK, FBY_WAIT_SLOT,
};

use crate::memory::Memory;
use crate::BenchError;

/// Destage buffers of the bench's volume; a host may choose others.
const BUFFERS: u32 = 8;
const BUFFER_BYTES: u32 = 128 << 10;
const ROUND_PAGES: u32 = 4096;

/// A pool on the first `bytes` of `media`, open, with volume 0 attached.
pub(crate) struct Pool {
    pool: NonNull<fby_pool>,
    volume: u16,
    dram_bytes: u64,
    destaging: Mutex<()>,
    // What the pool points into; dropped after it is used no more.
    _engine: Memory,
    _volume: Memory,
    _media: Box<fby_media>,
}

// SAFETY: the engine's write, read and info calls may run in any number of
// threads; destage() takes a lock, recovery and attach are over.
unsafe impl Sync for Pool {}
// SAFETY: nothing is bound to a thread.
unsafe impl Send for Pool {}

fn check(what: &'static str, rc: i32) -> Result<i32, BenchError> {
    if rc < 0 {
        return Err(BenchError::Engine { what, reason: error_message(rc) });
    }
    Ok(rc)
}

fn media_on(memory: &Memory, bytes: u64) -> Result<Box<fby_media>, BenchError> {
    let ops = posix_media_ops(FBY_PERSIST_NT, None).ok_or_else(|| {
        BenchError::Options("this CPU has no way to write past its caches".to_owned())
    })?;
    assert!(bytes <= memory.len() as u64);
    Ok(Box::new(fby_media { base: memory.at(0), size: bytes, ops, host: ptr::null_mut() }))
}

/// How a pool came to be usable.
pub(crate) struct Opened {
    pub pool: Pool,
    pub report: Box<fby_recovery_report>,
}

impl Pool {
    /// Formats, opens and adds a volume of `blocks` blocks.
    pub fn create(
        memory: &Memory,
        bytes: u64,
        slots: u32,
        blocks: u64,
    ) -> Result<Self, BenchError> {
        let mut media = media_on(memory, bytes)?;
        let format = fby_format { uuid: *b"forebay-bench 01", ..Default::default() };
        // SAFETY: the media is mapped and nobody else's.
        check("format the pool", unsafe { fby_format(&raw mut *media, &format) })?;
        Self::open_with(media, slots, 1, Some(blocks)).map(|opened| opened.pool)
    }

    /// Opens what a killed process left, with `threads` threads scanning.
    pub fn open(
        memory: &Memory,
        bytes: u64,
        slots: u32,
        threads: u32,
    ) -> Result<Opened, BenchError> {
        Self::open_with(media_on(memory, bytes)?, slots, threads, None)
    }

    fn open_with(
        mut media: Box<fby_media>,
        slots: u32,
        threads: u32,
        add: Option<u64>,
    ) -> Result<Opened, BenchError> {
        let sb = superblock(&mut media)?;
        // SAFETY: a valid superblock.
        let engine = Memory::anonymous(unsafe { fby_pool_bytes(&*sb, slots) })?;
        let options = fby_options { nslots: slots, ..Default::default() };
        let mut pool = ptr::null_mut();
        // SAFETY: memory and media outlive the pool: Pool owns them.
        check("open the pool", unsafe {
            let bytes = engine.len() as u64;
            fby_pool_open(&mut pool, engine.at(0).cast(), bytes, &raw mut *media, &options)
        })?;
        let pool = NonNull::new(pool).expect("open succeeded");
        let report = recover(pool, sb.nchunks, threads)?;
        let (volume, memory) = attach(pool, add)?;
        let dram_bytes = (engine.len() + memory.len()) as u64;
        let pool = Self {
            pool,
            volume,
            dram_bytes,
            destaging: Mutex::new(()),
            _engine: engine,
            _volume: memory,
            _media: media,
        };
        Ok(Opened { pool, report })
    }

    /// Writes one block, if it can be written at once.
    #[inline]
    pub fn write_once(&self, block: u64, data: &[u8; 4096]) -> bool {
        self.try_write(block, data) == FBY_DONE
    }

    /// Writes one block.  `false`: the pool is full.
    pub fn write(&self, block: u64, data: &[u8; 4096]) -> Result<bool, BenchError> {
        loop {
            match self.try_write(block, data) {
                FBY_DONE => return Ok(true),
                FBY_WAIT_BLOCK | FBY_WAIT_SLOT => std::hint::spin_loop(),
                rc => return check("write a block", rc).map(|_| false),
            }
        }
    }

    #[inline]
    fn try_write(&self, block: u64, data: &[u8; 4096]) -> i32 {
        let (mut done, mut wake) = (0, 0);
        // SAFETY: data holds the block's 8 sectors.
        unsafe {
            let sector = block * u64::from(FBY_PAGE_SECTORS);
            let data = data.as_ptr().cast();
            let (pool, volume) = (self.pool.as_ptr(), self.volume);
            fby_write(pool, volume, sector, FBY_PAGE_SECTORS, data, &mut done, &mut wake)
        }
    }

    /// Reads one block, which must be cached whole.
    #[inline]
    pub fn read(&self, block: u64, data: &mut [u8; 4096]) -> Result<bool, BenchError> {
        let (mut origin, mut lost) = (0, 0);
        // SAFETY: data has room for the block's 8 sectors.
        let rc = unsafe {
            let data = data.as_mut_ptr().cast();
            let (pool, volume) = (self.pool.as_ptr(), self.volume);
            fby_read_block(pool, volume, block, 0, FBY_PAGE_SECTORS, data, &mut origin, &mut lost)
        };
        Ok(check("read a block", rc)? == FBY_DONE)
    }

    /// Steps destage until it has nothing to do; the origin takes all at once.
    pub fn destage(&self, since: Instant) -> Result<(), BenchError> {
        let _stepping = self.destaging.lock().expect("steps do not panic");
        loop {
            let now = since.elapsed().as_nanos() as u64;
            let (mut io, mut next, mut wake) = (Default::default(), 0, 0);
            let pool = self.pool.as_ptr();
            // SAFETY: the lock excludes other steps; the io is complete at once.
            unsafe {
                match fby_destage_step(pool, now, &mut io, &mut next, &mut wake) {
                    FBY_ORIGIN => fby_destage_complete(pool, io.id, 0),
                    FBY_AGAIN => (),
                    rc => return check("destage", rc).map(|_| ()),
                }
            }
        }
    }

    pub fn info(&self) -> Box<fby_pool_info> {
        let mut info = Box::<fby_pool_info>::default();
        // SAFETY: any thread may ask.
        unsafe { fby_pool_info(self.pool.as_ptr(), &raw mut *info) };
        info
    }

    /// DRAM of engine and volume for each page that the pool can hold.
    pub fn dram_bytes_per_page(&self) -> f64 {
        self.dram_bytes as f64 / self.info().pages as f64
    }
}

fn superblock(media: &mut fby_media) -> Result<Box<fby_superblock>, BenchError> {
    let mut probe = Box::<fby_probe>::default();
    // SAFETY: the media is mapped.
    unsafe { forebay_sys::fby_probe(media, &raw mut *probe) };
    check("find the pool", probe.error)?;
    Ok(Box::new(probe.sb))
}

fn recover(
    pool: NonNull<fby_pool>,
    chunks: u32,
    threads: u32,
) -> Result<Box<fby_recovery_report>, BenchError> {
    struct Shared(NonNull<fby_pool>);
    // SAFETY: chunks may be scanned in parallel.
    unsafe impl Sync for Shared {}
    let shared = &Shared(pool);
    let scan = |thread: u32| {
        let first = (u64::from(chunks) * u64::from(thread) / u64::from(threads)) as u32;
        let end = (u64::from(chunks) * u64::from(thread + 1) / u64::from(threads)) as u32;
        // SAFETY: each chunk is in the range of one thread.
        let rc = unsafe { fby_recover_chunks(shared.0.as_ptr(), first, end - first) };
        check("scan the pool", rc).map(|_| ())
    };
    std::thread::scope(|scope| {
        let scans: Vec<_> = (1..threads).map(|i| scope.spawn(move || scan(i))).collect();
        let own = scan(0);
        scans
            .into_iter()
            .fold(own, |result, thread| result.and(thread.join().expect("scanning does not panic")))
    })?;
    let mut report = Box::<fby_recovery_report>::default();
    // SAFETY: all chunks are scanned.
    check("finish recovery", unsafe { fby_recover_finish(pool.as_ptr(), &raw mut *report) })?;
    Ok(report)
}

/// Attaches the volume, after adding it if its size is given.
fn attach(pool: NonNull<fby_pool>, add: Option<u64>) -> Result<(u16, Memory), BenchError> {
    let mut index = 0;
    let mut spec = fby_volume_spec {
        name: c_text("bench").expect("fits"),
        block_size: 512,
        ..Default::default()
    };
    // SAFETY: one thread, nothing else runs on the pool.
    unsafe {
        if let Some(blocks) = add {
            spec.origin_sectors = blocks * u64::from(FBY_PAGE_SECTORS);
            check("add a volume", fby_volume_add(pool.as_ptr(), &spec, &mut index))?;
        }
        let name = spec.name.as_ptr().cast();
        check("find the volume", fby_volume_find(pool.as_ptr(), name, &mut index))?;
        let mut info = Default::default();
        check("look at the volume", forebay_sys::fby_volume_info(pool.as_ptr(), index, &mut info))?;
        let bytes = fby_volume_bytes(pool.as_ptr(), ROUND_PAGES, BUFFERS, BUFFER_BYTES);
        let memory = Memory::anonymous(bytes)?;
        let attach = fby_attach {
            origin_sectors: info.spec.origin_sectors,
            identity: info.spec.identity.as_ptr().cast(),
            mem: memory.at(0).cast(),
            mem_bytes: bytes,
            round_pages: ROUND_PAGES,
            nbuffers: BUFFERS,
            buffer_bytes: BUFFER_BYTES,
            ..Default::default()
        };
        check("attach the volume", fby_volume_attach(pool.as_ptr(), index, &attach))?;
        Ok((index, memory))
    }
}
