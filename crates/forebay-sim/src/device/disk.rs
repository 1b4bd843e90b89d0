// SPDX-License-Identifier: MIT OR Apache-2.0
//! The content of a device, block by block.  Blocks are shared, so that a copy of a device with
//! a few other blocks costs pointers.

use std::rc::Rc;

use crate::rng::mix;

/// Bytes that a drive writes wholly or not at all, even if power is cut.
pub const SECTOR: usize = 512;

/// The bytes of one block, with their hash.
#[derive(Debug, PartialEq, Eq)]
pub struct Block {
    bytes: Box<[u8]>,
    hash: u64,
}

impl Block {
    pub fn new(bytes: &[u8]) -> Rc<Self> {
        let hash = bytes.chunks(8).fold(bytes.len() as u64, |hash, word| {
            let mut eight = [0; 8];
            eight[..word.len()].copy_from_slice(word);
            mix(hash ^ u64::from_le_bytes(eight))
        });
        Rc::new(Self { bytes: bytes.into(), hash })
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub fn sectors(&self) -> usize {
        self.bytes.len() / SECTOR
    }

    pub fn sector(&self, n: usize) -> &[u8] {
        &self.bytes[n * SECTOR..][..SECTOR]
    }
}

/// All blocks of a device; a block that is None cannot be read.
#[derive(Clone, Debug)]
pub struct Disk {
    unit: usize,
    blocks: Vec<Option<Rc<Block>>>,
    /// Hash of all blocks and their places.
    hash: u64,
}

fn placed(block: usize, content: Option<&Rc<Block>>) -> u64 {
    mix(mix(block as u64) ^ content.map_or(0, |c| c.hash))
}

impl Disk {
    /// Zeroed, of blocks of `unit` bytes.
    pub fn new(unit: usize, blocks: usize) -> Self {
        assert!(unit > 0 && unit.is_multiple_of(SECTOR), "a block is whole sectors");
        let zero = Block::new(&vec![0; unit]);
        let blocks = vec![Some(zero); blocks];
        let hash = blocks.iter().enumerate().fold(0, |h, (b, c)| h ^ placed(b, c.as_ref()));
        Self { unit, blocks, hash }
    }

    pub fn unit(&self) -> usize {
        self.unit
    }

    /// Blocks.
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    pub fn bytes(&self) -> usize {
        self.unit * self.blocks.len()
    }

    pub fn hash(&self) -> u64 {
        self.hash
    }

    pub fn block(&self, block: usize) -> Option<&Rc<Block>> {
        self.blocks[block].as_ref()
    }

    /// None: the block cannot be read from now on.
    pub fn set(&mut self, block: usize, content: Option<Rc<Block>>) {
        self.hash ^= placed(block, self.blocks[block].as_ref()) ^ placed(block, content.as_ref());
        self.blocks[block] = content;
    }

    /// Is the block the same one in both, by place in memory?  False says nothing.
    pub fn shares(&self, other: &Self, block: usize) -> bool {
        match (&self.blocks[block], &other.blocks[block]) {
            (Some(a), Some(b)) => Rc::ptr_eq(a, b),
            (None, None) => true,
            _ => false,
        }
    }
}
