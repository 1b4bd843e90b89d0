// SPDX-License-Identifier: MIT OR Apache-2.0
//! An origin that behaves like a disk of a given speed, whatever the machine
//! does: requests are served in order at a steady rate, each with a latency
//! on top, so many of them overlap.  Content is kept in memory.

use std::io;
use std::sync::atomic::{AtomicU64, AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use forebay::{MemOrigin, Origin, OriginInfo};

/// How fast.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub struct Speed {
    /// Requests a second, at most.
    pub requests_per_s: u32,
    /// Bytes a second, at most.
    pub bytes_per_s: u64,
    /// Time of one request alone, microseconds.
    pub latency_us: u32,
    /// Time of a flush, microseconds.
    pub flush_us: u32,
}

/// The fault of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub enum Ill {
    Well,
    /// Every request but reads fails.
    Errors,
    /// No request ends.
    Hangs,
    /// A hundred times slower.
    Slow,
    /// Writes of PAST_BYTES fail, which are hardly destage's.
    PastFails,
    DiscardsFail,
}

impl Ill {
    pub fn words(self) -> &'static str {
        match self {
            Ill::Well => "in health",
            Ill::Errors => "fails",
            Ill::Hangs => "hangs",
            Ill::Slow => "100 times slower",
            Ill::PastFails => "fails past the cache",
            Ill::DiscardsFail => "fails discards",
        }
    }
}

/// Size of a write that should bypass the cache.
pub const PAST_BYTES: usize = 96 << 10;

/// A disk of a given speed.  Clones are the same disk.
#[derive(Clone, Debug)]
pub struct RateOrigin {
    content: MemOrigin,
    speed: Speed,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// When what was accepted so far is served.
    free_at: Mutex<Instant>,
    ill: AtomicU8,
    written: AtomicU64,
    writes: AtomicU64,
}

impl RateOrigin {
    /// A disk of so many bytes, all zero.
    pub fn new(bytes: usize, speed: Speed) -> forebay::Result<RateOrigin> {
        Ok(RateOrigin {
            content: MemOrigin::new(bytes)?,
            speed,
            shared: Arc::new(Shared {
                free_at: Mutex::new(Instant::now()),
                ill: AtomicU8::new(Ill::Well as u8),
                written: AtomicU64::new(0),
                writes: AtomicU64::new(0),
            }),
        })
    }

    /// While stalled, requests wait.
    pub fn stall(&self, on: bool) {
        self.fall_ill(if on { Ill::Hangs } else { Ill::Well });
    }

    pub fn fall_ill(&self, ill: Ill) {
        self.shared.ill.store(ill as u8, Ordering::SeqCst);
    }

    pub fn illness(&self) -> Ill {
        const ALL: [Ill; 6] =
            [Ill::Well, Ill::Errors, Ill::Hangs, Ill::Slow, Ill::PastFails, Ill::DiscardsFail];
        ALL[usize::from(self.shared.ill.load(Ordering::SeqCst))]
    }

    fn wait_while_hung(&self) {
        while self.illness() == Ill::Hangs {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn fails(&self, ill: Ill) -> io::Result<()> {
        match self.illness() {
            now if now == Ill::Errors || now == ill => Err(io::Error::other("it is ill")),
            _ => Ok(()),
        }
    }

    /// Write requests so far, and their bytes.
    pub fn written(&self) -> (u64, u64) {
        let s = &self.shared;
        (s.writes.load(Ordering::Relaxed), s.written.load(Ordering::Relaxed))
    }

    fn serve(&self, bytes: usize) {
        self.wait_while_hung();
        let s = &self.speed;
        let each = 1e9 / f64::from(s.requests_per_s);
        let times = if self.illness() == Ill::Slow { 100.0 } else { 1.0 };
        let cost = times * each.max(bytes as f64 * 1e9 / s.bytes_per_s as f64);
        let end = {
            let mut free_at = self.shared.free_at.lock().unwrap_or_else(|e| e.into_inner());
            *free_at = (*free_at).max(Instant::now()) + Duration::from_nanos(cost as u64);
            *free_at + Duration::from_micros(u64::from(s.latency_us))
        };
        sleep_until(end);
    }
}

fn sleep_until(end: Instant) {
    let left = end.saturating_duration_since(Instant::now());
    if !left.is_zero() {
        std::thread::sleep(left);
    }
}

impl Origin for RateOrigin {
    fn size_bytes(&self) -> u64 {
        self.content.size_bytes()
    }

    fn logical_block(&self) -> u32 {
        512
    }

    fn identity(&self) -> String {
        self.content.identity()
    }

    fn info(&self) -> OriginInfo {
        OriginInfo { name: "rate-limited memory".into(), ..self.content.info() }
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.serve(buf.len());
        self.content.read_at(buf, offset)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.serve(data.len());
        let past = if data.len() == PAST_BYTES { Ill::PastFails } else { Ill::Errors };
        self.fails(past)?;
        self.shared.writes.fetch_add(1, Ordering::Relaxed);
        self.shared.written.fetch_add(data.len() as u64, Ordering::Relaxed);
        self.content.write_at(data, offset)
    }

    fn flush(&self) -> io::Result<()> {
        self.wait_while_hung();
        std::thread::sleep(Duration::from_micros(u64::from(self.speed.flush_us)));
        self.fails(Ill::Errors)?;
        self.content.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.serve(0);
        self.fails(Ill::DiscardsFail)?;
        self.content.discard(offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> io::Result<()> {
        self.serve(0);
        self.fails(Ill::Errors)?;
        self.content.write_zeroes(offset, len)
    }
}
