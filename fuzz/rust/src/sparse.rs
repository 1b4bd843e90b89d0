// SPDX-License-Identifier: MIT OR Apache-2.0
//! An origin of any size that a hostile record may claim: it keeps the sectors
//! that were written, and notes each request that it should never have got.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use forebay::{Origin, OriginInfo};

const SECTOR: u64 = 512;

/// Clones are the same origin.
#[derive(Clone, Debug)]
pub struct SparseOrigin {
    size: u64,
    block: u32,
    identity: String,
    /// Planted mistake: says that it wrote, and did not.
    forgets: bool,
    kept: Arc<Mutex<Kept>>,
}

#[derive(Debug, Default)]
struct Kept {
    sectors: BTreeMap<u64, [u8; SECTOR as usize]>,
    complaint: Option<String>,
}

impl SparseOrigin {
    pub fn new(size: u64, block: u32, identity: String) -> SparseOrigin {
        SparseOrigin { size, block, identity, forgets: false, kept: Arc::default() }
    }

    pub fn forgetting(mut self) -> SparseOrigin {
        self.forgets = true;
        self
    }

    /// The first request that was out of range or off its block.
    pub fn complaint(&self) -> Option<String> {
        self.kept().complaint.clone()
    }

    pub fn read(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        self.copy_out(&mut out, offset);
        out
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn copy_out(&self, out: &mut [u8], offset: u64) {
        let kept = self.kept();
        for (i, part) in out.chunks_mut(SECTOR as usize).enumerate() {
            match kept.sectors.get(&(offset / SECTOR + i as u64)) {
                Some(sector) => part.copy_from_slice(&sector[..part.len()]),
                None => part.fill(0),
            }
        }
    }

    fn check(&self, what: &str, offset: u64, len: u64) {
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.size);
        let block = u64::from(self.block);
        if !inside || len == 0 || !offset.is_multiple_of(block) || !len.is_multiple_of(block) {
            let text = format!(
                "{what} of {len} bytes at {offset}: the origin has {} in blocks of {block}",
                self.size
            );
            self.kept().complaint.get_or_insert(text);
        }
    }

    fn forget(&self, offset: u64, len: u64) {
        let (first, end) = (offset / SECTOR, offset.saturating_add(len).div_ceil(SECTOR));
        let mut kept = self.kept();
        let gone: Vec<u64> = kept.sectors.range(first..end).map(|(n, _)| *n).collect();
        for sector in gone {
            kept.sectors.remove(&sector);
        }
    }
}

impl Origin for SparseOrigin {
    fn size_bytes(&self) -> u64 {
        self.size
    }

    fn logical_block(&self) -> u32 {
        self.block
    }

    fn identity(&self) -> String {
        self.identity.clone()
    }

    fn info(&self) -> OriginInfo {
        OriginInfo { name: "sparse memory".into(), method: "memory".into(), note: String::new() }
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.check("read", offset, buf.len() as u64);
        self.copy_out(buf, offset);
        Ok(())
    }

    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.check("write", offset, data.len() as u64);
        if self.forgets {
            return Ok(());
        }
        let mut kept = self.kept();
        for (i, part) in data.chunks_exact(SECTOR as usize).enumerate() {
            if let Ok(sector) = part.try_into() {
                kept.sectors.insert(offset / SECTOR + i as u64, sector);
            }
        }
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.check("discard", offset, len);
        self.forget(offset, len);
        Ok(())
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> io::Result<()> {
        self.check("zeroing", offset, len);
        self.forget(offset, len);
        Ok(())
    }
}
