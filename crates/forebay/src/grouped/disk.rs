// SPDX-License-Identifier: MIT OR Apache-2.0
//! The device with its lock: requests and persist as the engine demands them.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use forebay_engine::groups::{Durable, Persisted, Request};
use forebay_engine::{sys, Below, Image};

use super::device::Device;
use super::watch::{Asked, Watch};
use crate::engine::Engine;
use crate::errno::errno_or_io;
use crate::error::Error;

/// How a write becomes durable on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Chosen {
    pub by: Durable,
    pub because: &'static str,
}

impl From<Durable> for Chosen {
    fn from(by: Durable) -> Chosen {
        Chosen { by, because: ASKED }
    }
}

/// Nobody looked at the device for it.
pub(super) const ASKED: &str = "it was asked for";

/// A device that a pool lies on.
pub struct Disk {
    path: PathBuf,
    device: Arc<dyn Device>,
    durable: Durable,
    because: &'static str,
    /// Held around persist, and around each flush with the engine's report of it
    /// (`core/medium/device.h`).
    flushes: Mutex<Flushes>,
    watch: Watch,
    persisted: Mutex<Persists>,
    /// Its file was removed or cut short: it takes nothing more.
    lost: AtomicBool,
}

#[derive(Default)]
struct Flushes {
    /// Calls of persist with `more` have written what no flush has covered.
    open: bool,
    /// A flush failed while that was so: nobody knows any more what they wrote.
    doubtful: bool,
}

/// How long the last calls of persist took that made something durable.
#[derive(Default)]
struct Persists {
    took: [Duration; 9],
    n: usize,
}

impl Persists {
    fn add(&mut self, took: Duration) {
        self.took[self.n % self.took.len()] = took;
        self.n += 1;
    }

    fn least(&self) -> Option<Duration> {
        self.took[..self.n.min(self.took.len())].iter().min().copied()
    }
}

impl fmt::Debug for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let durable = self.durable;
        f.debug_struct("Disk").field("path", &self.path).field("durable", &durable).finish()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

impl Disk {
    pub fn new(path: &Path, device: Arc<dyn Device>, durable: Durable) -> Disk {
        Disk::chosen(path, device, durable.into())
    }

    pub(super) fn chosen(path: &Path, device: Arc<dyn Device>, durable: Chosen) -> Disk {
        Disk {
            path: path.into(),
            device,
            durable: durable.by,
            because: durable.because,
            flushes: Mutex::default(),
            watch: Watch::default(),
            persisted: Mutex::default(),
            lost: AtomicBool::new(false),
        }
    }

    /// Each later write and flush fails, so that the pool fails.
    pub(crate) fn lose(&self) {
        self.lost.store(true, Ordering::Release);
    }

    fn check_there(&self) -> io::Result<()> {
        match self.lost.load(Ordering::Acquire) {
            false => Ok(()),
            true => Err(rustix::io::Errno::IO.into()),
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn durable(&self) -> Durable {
        self.durable
    }

    /// Why it is that.
    pub fn durable_by_because(&self) -> &'static str {
        self.because
    }

    /// How long one durable write takes at best, by those that the pool itself made last: an open
    /// and each change of a record makes some.  So a fast disk that is busy, as at a boot, is still
    /// told from a slow one.  `None`: none was made yet.
    pub fn durable_write(&self) -> Option<Duration> {
        lock(&self.persisted).least()
    }

    /// Sends a request of the engine, waits for its end, and reports that.  Returns how long it
    /// took.
    pub(crate) fn carry_out(&self, engine: &Engine, io: &Request, wake: &mut u32) -> Duration {
        let began = Instant::now();
        if io.kind == sys::FBY_MEDIUM_FLUSH {
            let mut flushes = lock(&self.flushes);
            let done = self.flush(&mut flushes);
            let took = began.elapsed();
            engine.medium_end(io, errno(&done), wake);
            return took;
        }
        let fua = io.flags & sys::FBY_MEDIUM_FUA != 0;
        let done = match engine.media().image() {
            Some(image) => self.write(image, io.at, io.n as usize, fua),
            None => Err(io::ErrorKind::Unsupported.into()),
        };
        let took = began.elapsed();
        engine.medium_end(io, errno(&done), wake);
        took
    }

    /// Writes a range of the image, which is durable when it returns, before a pool is there.
    pub(super) fn store(&self, image: &Image, at: u64, bytes: usize) -> io::Result<()> {
        self.write_plainly(image, at, bytes)?;
        self.settle()
    }

    /// Writes a range of the image, before a pool is there.
    pub(super) fn write_plainly(&self, image: &Image, at: u64, bytes: usize) -> io::Result<()> {
        self.write(image, at, bytes, false)
    }

    /// All that was read of it is durable, before a pool is there.
    pub(super) fn settle(&self) -> io::Result<()> {
        self.watch.request(Asked::Flush, || self.check_there().and_then(|()| self.device.flush()))
    }

    pub(super) fn read(&self, to: &mut [u8], at: u64) -> io::Result<()> {
        self.watch.request(Asked::Read, || self.device.read(to, at))
    }

    fn write(&self, image: &Image, at: u64, bytes: usize, fua: bool) -> io::Result<()> {
        self.watch.request(Asked::Write, || {
            self.check_there()?;
            self.device.write(image, at, bytes, fua)
        })
    }

    fn flush(&self, flushes: &mut Flushes) -> io::Result<()> {
        let done = self.settle();
        flushes.doubtful |= done.is_err() && flushes.open;
        done
    }

    /// The device's last error, while no later request of the kind has succeeded.
    pub fn trouble(&self) -> Option<String> {
        self.watch.trouble()
    }

    /// The device's last error, when later requests have succeeded.
    pub fn mended(&self) -> Option<String> {
        self.watch.mended()
    }

    /// How long the oldest request has had no answer; zero: none is under way.
    pub fn unanswered(&self) -> Duration {
        self.watch.unanswered()
    }

    /// The device hangs: which, since when, what waits for it, and the way out.
    pub fn hangs(&self) -> Option<String> {
        let hangs = self.watch.hangs()?;
        Some(format!("the disk {} {hangs}", self.path.display()))
    }

    /// The error of a pool that has failed.  `volumes`: it has some, which memory has too.
    pub fn failed(&self, volumes: bool) -> Error {
        const LOGS: &str = "everything that was acknowledged as durable is on the disk; what was being written may be there or not. See the system log (dmesg) for the cause, repair or replace the disk (a copy of what can be read, made with ddrescue, is a pool too), and open the pool again";
        const VOLUMES: &str = "everything that was acknowledged as durable is in memory, and goes from there to the origins while this process runs; what was being written may be there or not. See the system log (dmesg) for the cause, and forebay status for what an origin lacks. What no origin has got when the process ends is on the disk alone: repair it, or copy what can be read (ddrescue), before its pool is given up";
        let way_out = if volumes { VOLUMES } else { LOGS };
        let (doing, source) = match self.watch.error() {
            Some((Asked::Flush, source)) => (
                "the pool has failed and takes nothing more, since flushing its disk failed again and again",
                source,
            ),
            Some((_, source)) => (
                "the pool has failed and takes nothing more, since writing to its disk failed again and again, at several places",
                source,
            ),
            None => ("the pool has failed and takes nothing more", io::ErrorKind::Other.into()),
        };
        Error::Io { path: self.path.clone(), doing, source, way_out: way_out.into() }
    }
}

/// 0 is no error.
fn errno(done: &io::Result<()>) -> i32 {
    done.as_ref().err().map_or(0, errno_or_io)
}

/// The engine's view of it.
pub(super) struct Beneath(pub(super) Arc<Disk>);

impl Below for Beneath {
    fn persist(
        &self,
        image: &Image,
        at: u64,
        bytes: usize,
        more: bool,
        lost: &AtomicU32,
    ) -> Persisted {
        let disk = &*self.0;
        let mut flushes = lock(&disk.flushes);
        let began = Instant::now();
        if flushes.doubtful {
            return Persisted::WriteFailed;
        }
        // Each write by itself, where it costs no flush.
        let fua = disk.durable == Durable::Fua;
        if disk.write(image, at, bytes, fua).is_err() {
            return Persisted::WriteFailed;
        }
        if disk.durable != Durable::Flush {
            lock(&disk.persisted).add(began.elapsed());
            return Persisted::Done;
        }
        if more {
            flushes.open = true;
            return Persisted::Done;
        }
        if disk.flush(&mut flushes).is_err() {
            // The lock is still held.
            lost.fetch_add(1, Ordering::AcqRel);
            return Persisted::FlushFailed;
        }
        flushes.open = false;
        lock(&disk.persisted).add(began.elapsed());
        Persisted::Done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Its flushes fail.
    #[derive(Debug, Default)]
    struct Failing;

    impl Device for Failing {
        fn size_bytes(&self) -> u64 {
            1 << 16
        }
        fn read(&self, _: &mut [u8], _: u64) -> io::Result<()> {
            Ok(())
        }
        fn write(&self, _: &Image, _: u64, _: usize, _: bool) -> io::Result<()> {
            Ok(())
        }
        fn flush(&self) -> io::Result<()> {
            Err(rustix::io::Errno::IO.into())
        }
    }

    #[test]
    fn the_time_of_a_durable_write_is_the_least_of_the_last() {
        let mut persists = Persists::default();
        assert_eq!(persists.least(), None);
        for (added, least) in [(9000, 9000), (80, 80), (9000, 80), (90, 80), (70, 70)] {
            persists.add(Duration::from_micros(added));
            assert_eq!(persists.least(), Some(Duration::from_micros(least)), "after {added}");
        }
        (0..8).for_each(|_| persists.add(Duration::from_micros(3000)));
        assert_eq!(persists.least(), Some(Duration::from_micros(70)));
        persists.add(Duration::from_micros(3000));
        assert_eq!(persists.least(), Some(Duration::from_micros(3000)));
    }

    /// By the device's lock holder: nobody who gets the lock later misses it.
    #[test]
    fn a_flush_that_fails_in_persist_is_counted_before_the_next_one() {
        let disk = Arc::new(Disk::new(Path::new("(it)"), Arc::new(Failing), Durable::Flush));
        let (below, image) = (Beneath(disk.clone()), Image::new(1 << 16).unwrap());
        let lost = AtomicU32::new(0);
        for n in 1..=3 {
            let end = below.persist(&image, 0, 4096, false, &lost);
            assert_eq!((end, lost.load(Ordering::Acquire)), (Persisted::FlushFailed, n));
        }
    }
}
