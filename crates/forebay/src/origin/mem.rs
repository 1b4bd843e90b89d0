// SPDX-License-Identifier: MIT OR Apache-2.0
//! An origin in memory, for tests and examples.

use std::io;
use std::sync::{Arc, RwLock};

use super::{check_range, join_identity, Origin};
use crate::error::Result;
use crate::report::{OriginInfo, Uuid};

/// An origin in memory.  Clones are the same origin, so that a test can look
/// at it, and attach it again.
#[derive(Clone)]
pub struct MemOrigin {
    id: Uuid,
    logical_block: u32,
    bytes: Arc<RwLock<Vec<u8>>>,
}

impl std::fmt::Debug for MemOrigin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemOrigin").field("id", &self.id).finish_non_exhaustive()
    }
}

impl MemOrigin {
    /// Zeroed, with logical blocks of 512 bytes.
    pub fn new(bytes: usize) -> Result<MemOrigin> {
        Ok(MemOrigin {
            id: Uuid::random()?,
            logical_block: 512,
            bytes: Arc::new(RwLock::new(vec![0; bytes])),
        })
    }

    /// Likewise, with the given content and logical block (512 or 4096).
    pub fn with_content(content: Vec<u8>, logical_block: u32) -> Result<MemOrigin> {
        Ok(MemOrigin { id: Uuid::random()?, logical_block, bytes: Arc::new(RwLock::new(content)) })
    }

    /// A copy of all of it.
    pub fn content(&self) -> Vec<u8> {
        self.bytes.read().unwrap_or_else(|e| e.into_inner()).clone()
    }

    fn change(&self, offset: u64, len: u64, f: impl FnOnce(&mut [u8])) -> io::Result<()> {
        let mut bytes = self.bytes.write().unwrap_or_else(|e| e.into_inner());
        check_range(bytes.len() as u64, offset, len)?;
        f(&mut bytes[offset as usize..(offset + len) as usize]);
        Ok(())
    }
}

impl Origin for MemOrigin {
    fn size_bytes(&self) -> u64 {
        self.bytes.read().unwrap_or_else(|e| e.into_inner()).len() as u64
    }

    fn logical_block(&self) -> u32 {
        self.logical_block
    }

    fn identity(&self) -> String {
        join_identity(&format!("mem:{}", self.id), "")
    }

    fn info(&self) -> OriginInfo {
        OriginInfo {
            name: "(memory)".into(),
            method: "memory copy".into(),
            note: "gone with the process".into(),
        }
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let bytes = self.bytes.read().unwrap_or_else(|e| e.into_inner());
        check_range(bytes.len() as u64, offset, buf.len() as u64)?;
        buf.copy_from_slice(&bytes[offset as usize..offset as usize + buf.len()]);
        Ok(())
    }

    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.change(offset, data.len() as u64, |b| b.copy_from_slice(data))
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.write_zeroes(offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> io::Result<()> {
        self.change(offset, len, |b| b.fill(0))
    }
}
