// SPDX-License-Identifier: MIT OR Apache-2.0
//! Opening a pool: its memory, and recovery on as many threads as one likes.

use std::fmt;
use std::io;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::Builder;

use forebay_sys as sys;

use crate::code::{done, Code, Result};
use crate::engine::Engine;
use crate::media::{probe, Medium};
use crate::memory::Memory;

/// Why a pool was not opened, or a volume not attached.
#[derive(Debug)]
pub enum OpenError {
    /// So many bytes are not to be had.
    Memory {
        bytes: u64,
        source: io::Error,
    },
    Engine(Code),
    /// The chunk, or the record of the volume table, is of a kind that this version does
    /// not know: `FBY_E_CHUNK_KIND` or `FBY_E_OWNER_KIND`.
    Unknown {
        code: Code,
        at: u32,
        kind: u32,
    },
}

impl From<Code> for OpenError {
    fn from(e: Code) -> OpenError {
        OpenError::Engine(e)
    }
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::Memory { bytes, source } => write!(f, "{bytes} bytes of memory: {source}"),
            OpenError::Engine(e) => e.fmt(f),
            OpenError::Unknown { code, at, kind } => write!(f, "{code} (number {at}, kind {kind})"),
        }
    }
}

impl std::error::Error for OpenError {}

/// Chunks that are scanned at a time.
const RANGE: u32 = 64;

impl<M: Medium> Engine<M> {
    /// Opens the pool on the media and recovers it.
    pub fn open(
        media: M,
        options: &sys::fby_options,
    ) -> std::result::Result<(Engine<M>, sys::fby_recovery_report), OpenError> {
        let (engine, chunks) = Engine::begin(media, options)?;
        // SAFETY: the only call, of all chunks once.
        unsafe { engine.scan(0, chunks) }?;
        engine.finish()
    }

    /// Superblock and volume table; recovery is to follow.
    fn begin(
        media: M,
        options: &sys::fby_options,
    ) -> std::result::Result<(Engine<M>, u32), OpenError> {
        assert!(options.read_only || media.writable());
        let probe = probe(&media);
        if probe.error != 0 {
            return Err(Code(-probe.error).into());
        }
        // SAFETY: the superblock is a valid one, and only read.
        let bytes = unsafe { sys::fby_pool_bytes(&probe.sb, options.nslots) };
        let memory = allocate(bytes, true)?;
        let mut pool = ptr::null_mut();
        // SAFETY: the memory is zeroed, aligned and as large as asked for.  Memory
        // and media move into the Engine below, so they outlive the pool; neither's
        // address changes.
        done(unsafe {
            let mem = memory.as_ptr().cast();
            sys::fby_pool_open(&mut pool, mem, bytes, media.raw(), options)
        })?;
        Ok((Engine::of(pool, memory, media), probe.sb.nchunks))
    }

    /// # Safety
    /// The chunks are scanned once, and recovery is not over.
    unsafe fn scan(&self, first: u32, n: u32) -> Result<()> {
        // SAFETY: the pool is open; the caller vouches for the chunks.
        done(unsafe { sys::fby_recover_chunks(self.pool, first, n) })
    }

    fn finish(self) -> std::result::Result<(Engine<M>, sys::fby_recovery_report), OpenError> {
        let mut report = sys::fby_recovery_report::default();
        // SAFETY: every chunk was scanned once, and the scanning threads ended.
        match done(unsafe { sys::fby_recover_finish(self.pool, &mut report) }) {
            Ok(()) => {
                drop(self.change());
                Ok((self, report))
            }
            Err(code) if code.is(sys::FBY_E_CHUNK_KIND) || code.is(sys::FBY_E_OWNER_KIND) => {
                let (at, kind) = (report.unknown_at, report.unknown_kind);
                Err(OpenError::Unknown { code, at, kind })
            }
            Err(code) => Err(code.into()),
        }
    }
}

impl<M: Medium + Sync> Engine<M> {
    /// Opens a pool on that many threads, or as many as can be started.  They take ranges from a
    /// shared counter, so that one with few entries does not wait for one with many.
    pub fn open_threaded(
        media: M,
        options: &sys::fby_options,
        threads: usize,
    ) -> std::result::Result<(Engine<M>, sys::fby_recovery_report), OpenError> {
        let (engine, chunks) = Engine::begin(media, options)?;
        let next = AtomicU32::new(0);
        let scan = || -> Result<()> {
            loop {
                let first = next.fetch_add(RANGE, Ordering::Relaxed);
                if first >= chunks {
                    return Ok(());
                }
                let n = RANGE.min(chunks - first);
                // SAFETY: ranges are handed out once each, and are disjoint.
                unsafe { engine.scan(first, n) }?;
            }
        };
        let threads = threads.clamp(1, chunks.div_ceil(RANGE).max(1) as usize);
        std::thread::scope(|s| {
            let started = (1..threads).map(|_| Builder::new().spawn_scoped(s, scan));
            let others: Vec<_> = started.map_while(io::Result::ok).collect();
            let own = scan();
            let joined = others.into_iter().map(|t| t.join().expect("the scan does not panic"));
            joined.fold(own, Result::and)
        })?;
        engine.finish()
    }
}

/// Memory for the engine; `large`: on huge pages, unless it is little.
pub(crate) fn allocate(bytes: u64, large: bool) -> std::result::Result<Memory, OpenError> {
    const LARGE: usize = 1 << 20;
    let memory =
        usize::try_from(bytes).map_err(|_| io::ErrorKind::OutOfMemory.into()).and_then(|len| {
            match large && len >= LARGE {
                true => Memory::anonymous(len, true),
                false => Memory::zeroed(len),
            }
        });
    memory.map_err(|source| OpenError::Memory { bytes, source })
}
