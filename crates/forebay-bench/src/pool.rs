// SPDX-License-Identifier: MIT OR Apache-2.0
//! A pool with one volume, as thin over the engine as can be.

use std::sync::Arc;
use std::time::Instant;

use forebay_engine::{sys, Attach, Code, Decision, Engine, Media, OpenError, Past, Step, Wait};
use sys::FBY_PAGE_SECTORS;

use crate::memory::Memory;
use crate::BenchError;

/// Destage buffers of the bench's volume; a host may choose others.
const BUFFERS: u32 = 8;
const BUFFER_BYTES: u32 = 128 << 10;
const ROUND_PAGES: u32 = 4096;

/// A pool on the first `bytes` of `media`, open, with volume 0 attached.
pub(crate) struct Pool {
    engine: Engine,
    volume: u16,
}

pub(crate) fn failed(what: &'static str) -> impl FnOnce(Code) -> BenchError {
    move |e| BenchError::Engine { what, reason: e.message() }
}

pub(crate) fn failed_open(what: &'static str) -> impl FnOnce(OpenError) -> BenchError {
    move |e| match e {
        OpenError::Engine(e) | OpenError::Unknown { code: e, .. } => failed(what)(e),
        OpenError::Memory { bytes, source } => BenchError::System {
            what: format!("mapping {bytes} bytes (choose a smaller pool)"),
            source,
        },
    }
}

/// How a pool came to be usable.
pub(crate) struct Opened {
    pub pool: Pool,
    pub report: Box<sys::fby_recovery_report>,
}

impl Pool {
    /// Formats, opens and adds a volume of `blocks` blocks: a static one that has so much of
    /// the pool, unless that is 0.
    pub fn create(
        memory: &Memory,
        bytes: u64,
        slots: u32,
        blocks: u64,
        static_bytes: u64,
    ) -> Result<Self, BenchError> {
        let media = memory.media(bytes)?;
        let uuid = *b"forebay-bench 01";
        let format = sys::fby_format { uuid, static_bytes, ..Default::default() };
        forebay_engine::format(&media, &format).map_err(failed("format the pool"))?;
        let added = Some((blocks, static_bytes));
        Self::open_with(media, slots, 1, added).map(|opened| opened.pool)
    }

    /// Opens what a killed process left, with `threads` threads scanning.
    pub fn open(
        memory: &Memory,
        bytes: u64,
        slots: u32,
        threads: u32,
    ) -> Result<Opened, BenchError> {
        Self::open_with(memory.media(bytes)?, slots, threads, None)
    }

    fn open_with(
        media: Media,
        slots: u32,
        threads: u32,
        add: Option<(u64, u64)>,
    ) -> Result<Opened, BenchError> {
        let options = sys::fby_options { nslots: slots, statics: true, ..Default::default() };
        let (engine, report) = Engine::open_threaded(Arc::new(media), &options, threads as usize)
            .map_err(failed_open("open the pool"))?;
        let volume = attach(&engine, add)?;
        Ok(Opened { pool: Self { engine, volume }, report: Box::new(report) })
    }

    /// Writes one block, if it can be written at once.
    #[inline]
    pub fn write_once(&self, block: u64, data: &[u8; 4096]) -> bool {
        self.try_write(block, data) == Ok(Decision::Done)
    }

    /// Writes one block.  `false`: the pool is full.
    pub fn write(&self, block: u64, data: &[u8; 4096]) -> Result<bool, BenchError> {
        loop {
            match self.try_write(block, data).map_err(failed("write a block"))? {
                Decision::Done => return Ok(true),
                Decision::Wait(Wait::Block | Wait::Slot) => std::hint::spin_loop(),
                _ => return Ok(false),
            }
        }
    }

    #[inline]
    fn try_write(&self, block: u64, data: &[u8; 4096]) -> Result<Decision, Code> {
        let sector = block * u64::from(FBY_PAGE_SECTORS);
        self.engine.write(self.volume, sector, data, &mut 0, &mut 0)
    }

    /// Reads one block, which must be cached whole.
    #[inline]
    pub fn read(&self, block: u64, data: &mut [u8; 4096]) -> Result<bool, BenchError> {
        let read = self.engine.read_block(self.volume, block, 0, data);
        Ok(read.result.map_err(failed("read a block"))? == Decision::Done)
    }

    /// Zeroes one block by an entry of the pool, so that it is cached without data.
    pub fn zero(&self, block: u64) -> Result<bool, BenchError> {
        let sector = block * u64::from(FBY_PAGE_SECTORS);
        let n = u64::from(FBY_PAGE_SECTORS);
        let done = self.engine.range(self.volume, sys::FBY_KIND_ZERO, sector, n, &mut 0, &mut 0);
        Ok(matches!(done.map_err(failed("zero a block"))?, Past::Done))
    }

    /// Finds a block that was zeroed: the lookup, and next to nothing else.
    #[inline]
    pub fn look(&self, block: u64) -> Result<bool, BenchError> {
        let read = self.engine.read_block(self.volume, block, 0, &mut [0; 512]);
        Ok(read.result.map_err(failed("look for a block"))? == Decision::Done)
    }

    pub fn memory_bytes(&self) -> u64 {
        self.engine.memory_bytes()
    }

    /// Steps destage until it has nothing to do; the origin takes all at once.
    pub fn destage(&self, since: Instant) -> Result<(), BenchError> {
        loop {
            let now = since.elapsed().as_nanos() as u64;
            match self.engine.destage_step(now, &mut 0).map_err(failed("destage"))? {
                Step::Submit(io) => self.engine.destage_complete(io, 0),
                Step::Again => {}
                Step::Sleep { .. } => return Ok(()),
            }
        }
    }

    pub fn info(&self) -> Box<sys::fby_pool_info> {
        Box::new(self.engine.info())
    }

    /// DRAM of engine and volume for each page that the pool can hold.
    pub fn dram_bytes_per_page(&self) -> f64 {
        let bytes = self.engine.memory_bytes() + self.engine.destage_memory_bytes();
        bytes as f64 / self.info().pages as f64
    }
}

/// Attaches the volume, after adding it if its blocks, and its share, are given.
fn attach(engine: &Engine, add: Option<(u64, u64)>) -> Result<u16, BenchError> {
    const NAME: &str = "bench";
    if let Some((blocks, static_bytes)) = add {
        let spec = sys::fby_volume_spec {
            name: sys::c_text(NAME).expect("fits"),
            block_size: 512,
            origin_sectors: blocks * u64::from(FBY_PAGE_SECTORS),
            static_bytes,
            ..Default::default()
        };
        engine.volume_add(&spec).map_err(failed("add a volume"))?;
    }
    let index = engine.volume_find(NAME).map_err(failed("find the volume"))?;
    let info = engine.volume_info(index).map_err(failed("look at the volume"))?;
    let attach = Attach {
        origin_sectors: info.spec.origin_sectors,
        identity: &sys::text(&info.spec.identity),
        holes: sys::FBY_HOLES_FAIL,
        round_pages: ROUND_PAGES,
        nrequests: BUFFERS,
        buffer_bytes: BUFFER_BYTES,
    };
    engine.volume_attach(index, &attach).map_err(failed_open("attach the volume"))?;
    Ok(index)
}
