// SPDX-License-Identifier: MIT OR Apache-2.0
//! The single operations that are compared: `raw`, `floor`, and the engine's
//! write and read.

use forebay_engine::sys::{crc32c, fby_page_line};
use forebay_engine::{line_bytes, Media};

use crate::memory::Memory;
use crate::pool::Pool;
use crate::rounds::Stroke;
use crate::BenchError;

const PAGE: usize = 4096;
const LINE: usize = 64;
/// As in a pool: 512 pages, of which the first are header lines.
const CHUNK: usize = 2 << 20;
const CHUNK_PAGES: usize = CHUNK / PAGE;
const FIRST_PAGE: usize = forebay_engine::sys::fby_first_page(CHUNK_PAGES as u32) as usize;

/// The data of writes: some pages of noise, few enough to stay in the cache, like the data of a
/// write that just happened.
pub(crate) struct Source {
    pages: Box<[[u8; PAGE]; SOURCE_PAGES]>,
    at: usize,
}

const SOURCE_PAGES: usize = 8;

impl Source {
    pub fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let mut page = || {
            let mut bytes = [0; PAGE];
            for word in bytes.chunks_exact_mut(8) {
                word.copy_from_slice(&random.next().to_le_bytes());
            }
            bytes
        };
        Self { pages: Box::new(std::array::from_fn(|_| page())), at: 0 }
    }

    #[inline]
    pub fn next(&mut self) -> &[u8; PAGE] {
        self.at = (self.at + 1) % SOURCE_PAGES;
        &self.pages[self.at]
    }
}

/// Xorshift: good enough to spread blocks, and cheap.
pub(crate) struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    #[inline]
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    #[inline]
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(n)) >> 64) as u64
    }
}

/// A share of the media, written chunk after chunk, page after page, by one
/// thread, in a circle.
pub(crate) struct Strip {
    media: Media,
    first: usize,
    chunks: usize,
    chunk: usize,
    page: usize,
    seq: u64,
}

impl Strip {
    /// `bytes` of `memory` from `first` on, which nobody else writes.
    pub fn new(memory: &Memory, first: usize, bytes: usize) -> Result<Self, BenchError> {
        assert!(first.is_multiple_of(CHUNK) && first + bytes <= memory.len());
        let chunks = bytes / CHUNK;
        if chunks == 0 {
            return Err(BenchError::Options("the media is too small for its threads".to_owned()));
        }
        let media = memory.media(memory.len() as u64)?;
        Ok(Self { media, first, chunks, chunk: 0, page: FIRST_PAGE, seq: 0 })
    }

    /// The next page, and its line in the chunk's header array.
    #[inline]
    fn next(&mut self) -> (u64, u64, u64) {
        let base = self.first + self.chunk * CHUNK;
        let place = (base + self.page * PAGE, base + self.page * LINE);
        self.page += 1;
        if self.page == CHUNK_PAGES {
            self.page = FIRST_PAGE;
            self.chunk = (self.chunk + 1) % self.chunks;
        }
        self.seq += 1;
        (place.0 as u64, place.1 as u64, self.seq)
    }
}

/// Non-temporal copy and fence.
pub(crate) struct Raw(pub Strip, pub Source);

impl Stroke for Raw {
    #[inline]
    fn stroke(&mut self) -> Result<(), BenchError> {
        let (data, ..) = self.0.next();
        self.0.media.write(data, self.1.next());
        self.0.media.fence(data, PAGE);
        Ok(())
    }
}

/// A copy with CRC32C of the data in the same pass and a header line that has its own CRC32C,
/// before the one fence; and nothing else.
pub(crate) struct Floor(pub Strip, pub Source);

impl Stroke for Floor {
    #[inline]
    fn stroke(&mut self) -> Result<(), BenchError> {
        let (data, line, seq) = self.0.next();
        let media = &self.0.media;
        let data_crc = media.write_crc(data, self.1.next(), 0);
        let mut header = fby_page_line { seq, data_crc, ..Default::default() };
        header.crc = crc32c(0, &line_bytes(&header)[..LINE - 4]);
        media.write(line, line_bytes(&header));
        media.fence(data, PAGE);
        Ok(())
    }
}

/// A whole write of a random block.
pub(crate) struct Write<'a> {
    pub pool: &'a Pool,
    pub source: Source,
    pub random: Random,
    pub blocks: u64,
}

impl Stroke for Write<'_> {
    #[inline]
    fn stroke(&mut self) -> Result<(), BenchError> {
        let block = self.random.below(self.blocks);
        if self.pool.write_once(block, self.source.next()) {
            return Ok(());
        }
        self.again(block)
    }
}

impl Write<'_> {
    #[cold]
    fn again(&mut self, block: u64) -> Result<(), BenchError> {
        while !self.pool.write(block, self.source.next())? {
            std::hint::spin_loop(); // full, until the next step of destage
        }
        Ok(())
    }
}

/// A verified read of a random cached block.
pub(crate) struct Read<'a> {
    pub pool: &'a Pool,
    pub random: Random,
    pub blocks: u64,
    pub data: Box<[u8; PAGE]>,
}

impl Stroke for Read<'_> {
    #[inline]
    fn stroke(&mut self) -> Result<(), BenchError> {
        let block = self.random.below(self.blocks);
        if !self.pool.read(block, &mut self.data)? {
            return Err(BenchError::Options(format!("block {block} is not cached")));
        }
        Ok(())
    }
}

/// A random block that is cached without data is looked for.
pub(crate) struct Look<'a> {
    pub pool: &'a Pool,
    pub random: Random,
    pub blocks: u64,
}

impl Stroke for Look<'_> {
    #[inline]
    fn stroke(&mut self) -> Result<(), BenchError> {
        let block = self.random.below(self.blocks);
        match self.pool.look(block)? {
            true => Ok(()),
            false => Err(BenchError::Options(format!("block {block} is not cached"))),
        }
    }
}

/// A thread's part of the memory after the pool, which has the first half.
pub(crate) struct Part<'a> {
    memory: &'a Memory,
    first: usize,
    bytes: usize,
    seed: u64,
}

impl<'a> Part<'a> {
    pub fn of_each(memory: &'a Memory, n: u32) -> impl Iterator<Item = Part<'a>> {
        let bytes = memory.len() / 2 / n as usize / (2 << 20) * (2 << 20);
        (0..n).map(move |thread| {
            let first = memory.len() / 2 + thread as usize * bytes;
            Part { memory, first, bytes, seed: u64::from(n) << 8 | u64::from(thread) }
        })
    }

    pub fn raw(&self) -> Result<Raw, BenchError> {
        Ok(Raw(self.strip()?, Source::new(self.seed)))
    }

    pub fn floor(&self) -> Result<Floor, BenchError> {
        Ok(Floor(self.strip()?, Source::new(self.seed)))
    }

    fn strip(&self) -> Result<Strip, BenchError> {
        Strip::new(self.memory, self.first, self.bytes)
    }

    pub fn write(&self, pool: &'a Pool, blocks: u64) -> Write<'a> {
        let (source, random) = (Source::new(self.seed), Random::new(self.seed + 99));
        Write { pool, source, random, blocks }
    }
}
