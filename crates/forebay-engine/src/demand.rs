// SPDX-License-Identifier: MIT OR Apache-2.0
//! The content of an image that is only looked at: blocks are read when somebody asks for them.

use std::collections::HashSet;
use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard};

use crate::memory::Memory;
use crate::shared::SharedBytes;

/// The most bytes that are read at a time.
const MOST: usize = 256 << 10;

/// The device that an image is read from.
pub trait Source: Send + Sync {
    /// Fills the buffer, which is aligned as a page, with whole blocks.
    fn read(&self, to: &mut [u8], at: u64) -> io::Result<()>;
}

pub(crate) struct Demand {
    source: Box<dyn Source>,
    /// Bytes of a block.
    unit: usize,
    state: Mutex<State>,
}

struct State {
    /// A bit for each block: it was read, or cannot be.
    asked: Vec<u64>,
    unreadable: HashSet<usize>,
    buffer: Memory,
}

impl fmt::Debug for Demand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Demand").field("unit", &self.unit).finish_non_exhaustive()
    }
}

impl State {
    fn was_asked(&self, block: usize) -> bool {
        self.asked[block / 64] & 1 << (block % 64) != 0
    }

    fn note(&mut self, blocks: Range<usize>) {
        blocks.for_each(|block| self.asked[block / 64] |= 1 << (block % 64));
    }
}

impl Demand {
    pub fn new(source: Box<dyn Source>, unit: usize, bytes: usize) -> io::Result<Demand> {
        let unit = unit.clamp(4096, MOST);
        let state = State {
            asked: vec![0; bytes.div_ceil(unit).div_ceil(64)],
            unreadable: HashSet::new(),
            buffer: Memory::zeroed(MOST)?,
        };
        Ok(Demand { source, unit, state: Mutex::new(state) })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Has the range in the image.  False: a part of it cannot be read.
    pub fn fetch(&self, image: SharedBytes, range: Range<usize>) -> bool {
        let mut state = self.lock();
        let (first, end) = (range.start / self.unit, range.end.div_ceil(self.unit));
        let (all, most) = (image.len().div_ceil(self.unit), MOST / self.unit);
        for block in first..end {
            if state.was_asked(block) {
                continue;
            }
            // Whoever goes on behind what was read reads on: twice as much each time.
            let before = (1..=block.min(most)).take_while(|n| state.was_asked(block - n)).count();
            let wanted = before.max(end - block).clamp(1, most).min(all - block);
            let n = (block..block + wanted).take_while(|b| !state.was_asked(*b)).count();
            self.read(&mut state, image, block..block + n);
        }
        state.unreadable.is_empty() || (first..end).all(|b| !state.unreadable.contains(&b))
    }

    fn read(&self, state: &mut State, image: SharedBytes, blocks: Range<usize>) {
        let at = blocks.start * self.unit;
        let bytes = (blocks.len() * self.unit).min(image.len() - at);
        let to = &mut state.buffer.bytes_mut()[..bytes];
        match self.source.read(to, at as u64) {
            Ok(()) => image.copy_in(at, to),
            Err(_) if blocks.len() > 1 => {
                for block in blocks {
                    self.read(state, image, block..block + 1);
                }
                return;
            }
            Err(_) => {
                state.unreadable.insert(blocks.start);
            }
        }
        state.note(blocks);
    }
}
