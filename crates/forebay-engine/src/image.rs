// SPDX-License-Identifier: MIT OR Apache-2.0
//! The image of a block device in memory, on which the engine works: `core/medium/device.h`.
//!
//! It is filled before anybody shares it.  After that the engine alone changes it, through the
//! port, and hosts copy ranges of it to the device: those that the engine says do not change
//! meanwhile.  Nothing makes a reference to its bytes then: the kernel reads them by address.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::Arc;

use forebay_sys as sys;

use crate::demand::{Demand, Source};
use crate::durable::{Durable, Persisted};
use crate::memory::Memory;
use crate::shared::SharedBytes;

const LINE: usize = 64;
/// Lines whose state one word of the map has: a page's.
const PAGE_LINES: usize = 64;
const PAGE: usize = LINE * PAGE_LINES;

/// Memory of the size of a device, and which of its lines could not be read from there.
#[derive(Debug)]
pub struct Image {
    memory: Arc<Memory>,
    /// By page; a bit for each line that is unreadable.  Fixed once the image is shared, but for
    /// bits that are cleared.
    unread: BTreeMap<usize, AtomicU64>,
    /// Reads blocks that are not there yet, if the image is only looked at.
    demand: Option<Demand>,
}

impl Image {
    /// Zeroed; children of the process do not have it.
    pub fn new(bytes: usize) -> io::Result<Image> {
        assert!(bytes.is_multiple_of(PAGE));
        let memory = Arc::new(Memory::unforked(bytes)?);
        Ok(Image { memory, unread: BTreeMap::new(), demand: None })
    }

    /// An image of a device that is only looked at.  Its blocks are read when the engine asks for
    /// them.
    pub fn on_demand(bytes: usize, unit: usize, source: Box<dyn Source>) -> io::Result<Image> {
        let demand = Some(Demand::new(source, unit, bytes)?);
        Ok(Image { demand, ..Image::new(bytes)? })
    }

    /// Keeps it from being paged out, as far as the system allows.
    pub fn lock(&self) -> io::Result<()> {
        self.memory.lock()
    }

    pub fn size(&self) -> usize {
        self.memory.len()
    }

    /// The bytes of a range, to be filled before the image is shared.
    pub fn bytes_mut(&mut self, range: Range<usize>) -> &mut [u8] {
        let memory = Arc::get_mut(&mut self.memory).expect("nobody else has it yet");
        &mut memory.bytes_mut()[range]
    }

    /// Whole pages that could not be read: zeroes, and unreadable until they are stored.
    pub fn mark_unread(&mut self, range: Range<usize>) {
        assert!((range.start | range.end).is_multiple_of(PAGE));
        self.bytes_mut(range.clone()).fill(0);
        for page in range.start / PAGE..range.end / PAGE {
            self.unread.insert(page, AtomicU64::new(u64::MAX));
        }
    }

    /// Ranges that were marked, of at least one line that is still unreadable.
    pub fn unread(&self) -> Vec<Range<usize>> {
        let mut ranges: Vec<Range<usize>> = Vec::new();
        for (page, lines) in &self.unread {
            if lines.load(Ordering::Relaxed) == 0 {
                continue;
            }
            let at = page * PAGE;
            match ranges.last_mut() {
                Some(last) if last.end == at => last.end += PAGE,
                _ => ranges.push(at..at + PAGE),
            }
        }
        ranges
    }

    fn shared(&self) -> SharedBytes {
        let start = NonNull::new(self.memory.as_ptr()).expect("memory is somewhere");
        // SAFETY: the memory lives as long as self, and nothing makes a reference to it but
        // bytes_mut(), which has self alone.
        unsafe { SharedBytes::new(start, self.memory.len()) }
    }

    /// Copies a range that does not change meanwhile: for devices that are simulated.
    pub fn copy_out(&self, at: u64, to: &mut [u8]) {
        self.shared().copy_out(at as usize, to);
    }

    /// Writes a range to the same place of a file, by one system call: pwritev2(2).  Returns how
    /// many bytes were written.
    pub fn write_to(
        &self,
        file: BorrowedFd<'_>,
        at: u64,
        bytes: usize,
        flags: c_int,
    ) -> io::Result<usize> {
        let base = self.shared().at(at as usize, bytes).cast::<c_void>();
        let vec = libc::iovec { iov_base: base, iov_len: bytes };
        let at = libc::off_t::try_from(at).map_err(|_| io::ErrorKind::InvalidInput)?;
        // SAFETY: at() has checked the range, which lives as long as self; the call only reads it.
        let n = unsafe { libc::pwritev2(file.as_raw_fd(), &vec, 1, at, flags) };
        usize::try_from(n).map_err(|_| io::Error::last_os_error())
    }

    /// The words of the map for a range of lines: each with the bits of these lines.
    fn words(&self, at: u64, bytes: usize) -> impl Iterator<Item = (&AtomicU64, u64)> {
        let (first, end) = (at as usize / LINE, (at as usize + bytes).div_ceil(LINE));
        let pages = first / PAGE_LINES..end.div_ceil(PAGE_LINES);
        self.unread.range(pages).map(move |(page, word)| {
            let start = first.max(page * PAGE_LINES) - page * PAGE_LINES;
            let n = (end - page * PAGE_LINES).min(PAGE_LINES) - start;
            (word, (u64::MAX >> (PAGE_LINES - n)) << start)
        })
    }

    fn stored(&self, at: u64, bytes: usize) {
        for (word, bits) in self.words(at, bytes) {
            word.fetch_and(!bits, Ordering::Release);
        }
    }

    /// False: a part of it cannot be read.
    fn fetch(&self, at: u64, bytes: usize) -> bool {
        let range = at as usize..at as usize + bytes;
        self.demand.as_ref().is_none_or(|demand| demand.fetch(self.shared(), range))
    }

    fn readable(&self, at: u64, bytes: usize) -> bool {
        self.fetch(at, bytes)
            && self.words(at, bytes).all(|(word, bits)| word.load(Ordering::Acquire) & bits == 0)
    }
}

/// The block device below an image; `core/medium/device.h` has the contract.
pub trait Below: Send + Sync {
    /// Writes whole blocks of the image to the device; without `more` all that these calls wrote
    /// is durable when it returns Done.  It and each flush, together with its `medium_end`, are
    /// under one lock.  A flush of it that fails adds one to `lost` under that lock: another
    /// flush may succeed as soon as the lock is free, and the engine has to see that it proves
    /// nothing.
    fn persist(
        &self,
        image: &Image,
        at: u64,
        bytes: usize,
        more: bool,
        lost: &AtomicU32,
    ) -> Persisted;
}

/// The host's part of media with an image, at `fby_media::host`.
pub(crate) struct Grouped {
    pub(crate) image: Image,
    below: Box<dyn Below>,
    /// The engine's fields are accessed as atomics.
    device: std::cell::UnsafeCell<sys::fby_device>,
    real: &'static sys::fby_media_ops,
}

impl Grouped {
    pub(crate) fn new(
        image: Image,
        unit: u32,
        durable: Durable,
        below: Box<dyn Below>,
        real: &'static sys::fby_media_ops,
    ) -> Box<Grouped> {
        let device =
            sys::fby_device { unit, durable: durable.number(), persist, lost: 0, failed: 0 };
        Box::new(Grouped { image, below, device: device.into(), real })
    }

    pub(crate) fn memory(&self) -> &Arc<Memory> {
        &self.image.memory
    }

    pub(crate) fn device(&self) -> *mut sys::fby_device {
        self.device.get()
    }

    /// Operations that know which lines are unreadable, if any are, or not there yet.
    pub(crate) fn ops(&self) -> &'static sys::fby_media_ops {
        match self.image.unread.is_empty() && self.image.demand.is_none() {
            true => self.real,
            false => &DAMAGED,
        }
    }

    pub(crate) fn failed(&self) -> bool {
        // SAFETY: the cell lives as long as self; engine and host access the flag as an atomic.
        let failed = unsafe { AtomicU32::from_ptr(&raw mut (*self.device.get()).failed) };
        failed.load(Ordering::Acquire) != 0
    }
}

static DAMAGED: sys::fby_media_ops =
    sys::fby_media_ops { write, write_crc, fence: no_fence, read_crc };

/// # Safety
/// `m` is media that has an image.
unsafe fn grouped<'a>(m: *mut sys::fby_media) -> &'a Grouped {
    // SAFETY: Media::grouped() put it there, and it lives as long as the media.
    unsafe { &*(*m).host.cast::<Grouped>() }
}

unsafe extern "C" fn write(m: *mut sys::fby_media, at: u64, src: *const c_void, n: usize) {
    // SAFETY: the caller's promises are passed on.
    unsafe {
        let g = grouped(m);
        g.image.fetch(at, n);
        (g.real.write)(m, at, src, n);
        g.image.stored(at, n);
    }
}

unsafe extern "C" fn write_crc(
    m: *mut sys::fby_media,
    at: u64,
    src: *const c_void,
    n: usize,
    crc: u32,
) -> u32 {
    // SAFETY: the caller's promises are passed on.
    unsafe {
        let g = grouped(m);
        g.image.fetch(at, n);
        let crc = (g.real.write_crc)(m, at, src, n, crc);
        g.image.stored(at, n);
        crc
    }
}

/// A fence does nothing here: requests and persist make data durable.
unsafe extern "C" fn no_fence(_: *mut sys::fby_media, _: u64, _: usize) {}

unsafe extern "C" fn read_crc(
    m: *mut sys::fby_media,
    dst: *mut c_void,
    at: u64,
    n: usize,
    crc: *mut u32,
) -> c_int {
    // SAFETY: the caller's promises are passed on.
    unsafe {
        let g = grouped(m);
        match g.image.readable(at, n) {
            true => (g.real.read_crc)(m, dst, at, n, crc),
            false => 1,
        }
    }
}

unsafe extern "C" fn persist(m: *mut sys::fby_media, at: u64, n: u64, more: bool) -> c_int {
    // SAFETY: the engine calls it with its media, which has an image.
    let g = unsafe { grouped(m) };
    // SAFETY: the cell lives as long as the media; engine and host access the counter as an
    // atomic.
    let lost = unsafe { AtomicU32::from_ptr(&raw mut (*g.device.get()).lost) };
    let end = g.below.persist(&g.image, at, n as usize, more, lost);
    c_int::from(end != Persisted::Done)
}
