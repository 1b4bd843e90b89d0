// SPDX-License-Identifier: MIT OR Apache-2.0
//! The single operations that are compared: `raw`, `floor`, and the engine's
//! write and read.

use std::ffi::c_void;
use std::marker::PhantomData;
use std::ptr;

use forebay_sys::{
    crc32c, fby_media, fby_media_ops, fby_page_line, posix_media_ops, FBY_PERSIST_NT,
};

use crate::memory::Memory;
use crate::pool::Pool;
use crate::rounds::Stroke;
use crate::BenchError;

const PAGE: usize = 4096;
const LINE: usize = 64;
/// As in a pool: 512 pages, of which the first are header lines.
const CHUNK: usize = 2 << 20;
const CHUNK_PAGES: usize = CHUNK / PAGE;
const FIRST_PAGE: usize = forebay_sys::fby_first_page(CHUNK_PAGES as u32) as usize;

/// What is written: some pages of noise, small enough to stay in the cache as
/// the data of a write that just happened does.
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
pub(crate) struct Strip<'a> {
    memory: PhantomData<&'a Memory>,
    ops: fby_media_ops,
    media: fby_media,
    first: usize,
    chunks: usize,
    chunk: usize,
    page: usize,
    seq: u64,
}

// SAFETY: media is private to the strip and its operations do not care which
// thread calls them.
unsafe impl Send for Strip<'_> {}

impl<'a> Strip<'a> {
    /// `bytes` of `memory` from `first` on, which nobody else writes.
    pub fn new(memory: &'a Memory, first: usize, bytes: usize) -> Result<Self, BenchError> {
        let ops = posix_media_ops(FBY_PERSIST_NT, None).ok_or_else(|| {
            BenchError::Options("this CPU has no way to write past its caches".to_owned())
        })?;
        assert!(first.is_multiple_of(CHUNK) && first + bytes <= memory.len());
        let chunks = bytes / CHUNK;
        if chunks == 0 {
            return Err(BenchError::Options("the media is too small for its threads".to_owned()));
        }
        let size = memory.len() as u64;
        let media = fby_media { base: memory.at(0), size, ops, host: ptr::null_mut() };
        let at = (0, FIRST_PAGE);
        let memory = PhantomData;
        Ok(Self { memory, ops: *ops, media, first, chunks, chunk: at.0, page: at.1, seq: 0 })
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
pub(crate) struct Raw<'a>(pub Strip<'a>, pub Source);

impl Stroke for Raw<'_> {
    #[inline]
    fn stroke(&mut self) -> Result<(), BenchError> {
        let (data, ..) = self.0.next();
        let (ops, media) = (self.0.ops, &raw mut self.0.media);
        // SAFETY: a page of the strip, which is ours; the source has a page.
        unsafe {
            (ops.write)(media, data, self.1.next().as_ptr().cast(), PAGE);
            (ops.fence)(media, data, PAGE);
        }
        Ok(())
    }
}

/// The same with CRC32C of the data in the same pass and a header line that has
/// a CRC32C of its own, before the one fence; and nothing else.
pub(crate) struct Floor<'a>(pub Strip<'a>, pub Source);

impl Stroke for Floor<'_> {
    #[inline]
    fn stroke(&mut self) -> Result<(), BenchError> {
        let (data, line, seq) = self.0.next();
        let (ops, media) = (self.0.ops, &raw mut self.0.media);
        let mut header = fby_page_line { seq, ..Default::default() };
        // SAFETY: a page and its line of the strip, which is ours; the source
        // has a page, and a header is 64 bytes without padding.
        unsafe {
            header.data_crc = (ops.write_crc)(media, data, self.1.next().as_ptr().cast(), PAGE, 0);
            let bytes = ptr::from_ref(&header).cast::<[u8; LINE - 4]>();
            header.crc = crc32c(0, &*bytes);
            (ops.write)(media, line, ptr::from_ref(&header).cast::<c_void>(), LINE);
            (ops.fence)(media, data, PAGE);
        }
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
