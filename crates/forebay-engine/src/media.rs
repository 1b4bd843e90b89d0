// SPDX-License-Identifier: MIT OR Apache-2.0
//! Media in mapped memory, by the operations of the engine's own port.
//!
//! Nothing makes a reference to its bytes: all goes by offset through the port,
//! which copies, so that threads (and other processes) may store to it meanwhile.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void, CString};
use std::sync::Arc;

use forebay_sys as sys;

use crate::code::{done, Result};
use crate::durable::Durable;
use crate::image::{Below, Grouped, Image};
use crate::memory::Memory;

/// Media that the engine can be opened on: [`Media`], [`crate::Soft`], and shared ones.
pub trait Medium: private::Raw {}

pub(crate) mod private {
    /// Implemented here only: who has the pointer has the media.
    pub trait Raw {
        /// Good for as long as self.
        fn raw(&self) -> *mut forebay_sys::fby_media;
        fn writable(&self) -> bool;
    }
}

impl<T: Medium> Medium for Arc<T> {}
impl<T: Medium> private::Raw for Arc<T> {
    fn raw(&self) -> *mut sys::fby_media {
        T::raw(self)
    }

    fn writable(&self) -> bool {
        T::writable(self)
    }
}

impl<T: Medium> Medium for std::rc::Rc<T> {}
impl<T: Medium> private::Raw for std::rc::Rc<T> {
    fn raw(&self) -> *mut sys::fby_media {
        T::raw(self)
    }

    fn writable(&self) -> bool {
        T::writable(self)
    }
}

/// Formats it: whatever was on it is gone.
pub fn format<M: Medium>(media: &M, f: &sys::fby_format) -> Result<()> {
    assert!(media.writable());
    // SAFETY: the media is writable and outlives the call.
    done(unsafe { sys::fby_format(media.raw(), f) })
}

/// Examines the media's content.
pub fn probe<M: Medium>(media: &M) -> sys::fby_probe {
    let mut out = sys::fby_probe::default();
    // SAFETY: the media outlives the call; out is ours.
    unsafe { sys::fby_probe(media.raw(), &mut out) };
    out
}

/// How stores are made durable: `enum fby_persist`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Persist {
    Nt,
    Clwb,
    Eadr,
    Msync,
}

impl Persist {
    pub(crate) fn number(self) -> u32 {
        match self {
            Persist::Nt => sys::FBY_PERSIST_NT,
            Persist::Clwb => sys::FBY_PERSIST_CLWB,
            Persist::Eadr => sys::FBY_PERSIST_EADR,
            Persist::Msync => sys::FBY_PERSIST_MSYNC,
        }
    }
}

/// Slows media down: called by the thread that stores, after it has.
pub trait Pace: Send + Sync {
    fn stored(&self, bytes: usize);
    fn fenced(&self);
}

/// The state for the slowed operations, at `fby_media::host`.
struct Paced {
    real: &'static sys::fby_media_ops,
    pace: Arc<dyn Pace>,
}

/// Media in memory.
pub struct Media {
    /// Before the memory, so that it ends first.
    _watch: Option<Watch>,
    memory: Arc<Memory>,
    /// In a cell because the engine takes it as mutable; boxed because it keeps its
    /// address.
    raw: Box<UnsafeCell<sys::fby_media>>,
    persist: Persist,
    paced: Option<Box<Paced>>,
    /// The memory is the image of a device.
    grouped: Option<Box<Grouped>>,
}

// SAFETY: the struct in the cell is written before the media is shared and only read
// afterwards; the engine synchronises access to the memory.
unsafe impl Send for Media {}
// SAFETY: as above.
unsafe impl Sync for Media {}

impl std::fmt::Debug for Media {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Media").field("memory", &self.memory).finish_non_exhaustive()
    }
}

impl Medium for Media {}
impl private::Raw for Media {
    fn raw(&self) -> *mut sys::fby_media {
        self.raw.get()
    }

    fn writable(&self) -> bool {
        self.memory.writable()
    }
}

impl Media {
    /// The first `size` bytes of the memory, with a copy kernel by name, or the best;
    /// `None`: this CPU has not got the kernel or the method.
    pub fn new(
        memory: Arc<Memory>,
        size: u64,
        persist: Persist,
        kernel: Option<&str>,
    ) -> Option<Media> {
        assert!(size <= memory.len() as u64);
        let ops = sys::posix_media_ops(persist.number(), kernel)?;
        let raw = sys::fby_media {
            base: memory.as_ptr(),
            size,
            ops,
            host: std::ptr::null_mut(),
            device: std::ptr::null_mut(),
        };
        let raw = Box::new(UnsafeCell::new(raw));
        Some(Media { _watch: None, memory, raw, persist, paced: None, grouped: None })
    }

    /// The image of a block device, for one pool, from its opening on; `None`: this CPU has not
    /// got the copy kernel.
    pub fn grouped(
        image: Image,
        unit: u32,
        durable: Durable,
        kernel: Option<&str>,
        below: Box<dyn Below>,
    ) -> Option<Media> {
        // Cached stores: the kernel reads the bytes next, to send them.
        let real = sys::posix_media_ops(Persist::Eadr.number(), kernel)?;
        let size = image.size() as u64;
        let grouped = Grouped::new(image, unit, durable, below, real);
        let mut media = Media::new(grouped.memory().clone(), size, Persist::Eadr, kernel)?;
        let raw = media.raw.get_mut();
        raw.host = std::ptr::from_ref(&*grouped).cast_mut().cast();
        raw.ops = grouped.ops();
        raw.device = grouped.device();
        media.grouped = Some(grouped);
        Some(media)
    }

    /// The image, if it is one.
    pub fn image(&self) -> Option<&Image> {
        Some(&self.grouped.as_ref()?.image)
    }

    /// The device below the image has failed: nothing more becomes durable.
    pub fn device_failed(&self) -> bool {
        self.grouped.as_ref().is_some_and(|g| g.failed())
    }

    /// Faults in the memory are told as what they are, under this name.
    pub fn watched(mut self, name: CString) -> Media {
        self._watch = Some(Watch::new(&self.memory, name));
        self
    }

    /// From now on slowed.
    pub fn paced(mut self, pace: Arc<dyn Pace>) -> Media {
        assert!(self.grouped.is_none(), "a device has a pace of its own");
        let raw = self.raw.get_mut();
        // SAFETY: a table of the port's, for ever there, or that of the pace before.
        let real = self.paced.take().map_or_else(|| unsafe { &*raw.ops }, |p| p.real);
        let paced = Box::new(Paced { real, pace });
        raw.host = std::ptr::from_ref(&*paced).cast_mut().cast();
        raw.ops = &PACED;
        self.paced = Some(paced);
        self
    }

    /// The method that makes stores durable.
    pub fn persist(&self) -> Persist {
        self.persist
    }

    pub fn size(&self) -> u64 {
        // SAFETY: written in new() only.
        unsafe { (*self.raw.get()).size }
    }

    /// Faults whole pages in if the system does it by itself; `false`: it does not.
    pub fn populate(&self, at: u64, bytes: u64) -> bool {
        assert!(at.saturating_add(bytes) <= self.size());
        self.memory.try_populate(at as usize..(at + bytes) as usize)
    }

    pub(crate) fn base(&self) -> *mut u8 {
        self.memory.as_ptr()
    }

    pub(crate) fn is_writable(&self) -> bool {
        self.memory.writable()
    }

    fn ops(&self) -> &sys::fby_media_ops {
        // SAFETY: both are written before the media is shared, and live as long.
        unsafe { &*(*self.raw.get()).ops }
    }

    /// Is it in the media, and of whole lines?
    fn check(&self, at: u64, len: usize) {
        let end = at.checked_add(len as u64);
        assert!((at | len as u64).is_multiple_of(64) && end.is_some_and(|end| end <= self.size()));
    }

    /// Stores whole lines.
    #[inline]
    pub fn write(&self, at: u64, src: &[u8]) {
        self.check(at, src.len());
        assert!(self.memory.writable());
        // SAFETY: within the memory, which is writable and of which nobody has a
        // reference; src has the bytes.
        unsafe { (self.ops().write)(self.raw.get(), at, src.as_ptr().cast(), src.len()) }
    }

    /// Writes as `write` does, and returns the checksum continued from `crc`.
    #[inline]
    pub fn write_crc(&self, at: u64, src: &[u8], crc: u32) -> u32 {
        self.check(at, src.len());
        assert!(self.memory.writable());
        // SAFETY: as in write().
        unsafe { (self.ops().write_crc)(self.raw.get(), at, src.as_ptr().cast(), src.len(), crc) }
    }

    /// Makes durable what this thread stored in this range.
    #[inline]
    pub fn fence(&self, at: u64, len: usize) {
        self.check(at, len);
        // SAFETY: within the memory.
        unsafe { (self.ops().fence)(self.raw.get(), at, len) }
    }

    /// Copies whole lines.  False: they cannot be read.
    pub fn read(&self, at: u64, to: &mut [u8]) -> bool {
        self.check(at, to.len());
        // SAFETY: within the memory and within the slice.
        unsafe {
            (self.ops().read_crc)(self.raw.get(), to.as_mut_ptr().cast(), at, to.len(), &mut 0) == 0
        }
    }

    /// Stores zeroes to whole pages and makes them durable.
    pub fn zero(&self, at: u64, len: usize) {
        const ZERO: [u8; 4096] = [0; 4096];
        assert!((at | len as u64).is_multiple_of(4096));
        for page in (at..at + len as u64).step_by(ZERO.len()) {
            self.write(page, &ZERO);
        }
        self.fence(at, len);
    }
}

/// Faults in the memory are told as what they are.
struct Watch(c_int);

impl Watch {
    fn new(memory: &Memory, name: CString) -> Watch {
        // A handler may be at it at any time: never freed.
        let name = name.into_raw();
        // SAFETY: the range is mapped until the watch ends, the name for ever.
        Watch(unsafe { sys::fby_posix_watch(memory.as_ptr().cast(), memory.len() as u64, name) })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // SAFETY: the value that watch returned, used once.
        unsafe { sys::fby_posix_unwatch(self.0) };
    }
}

static PACED: sys::fby_media_ops = sys::fby_media_ops {
    write: paced_write,
    write_crc: paced_write_crc,
    fence: paced_fence,
    read_crc: paced_read_crc,
};

/// # Safety
/// `m` is media that has a pace.
unsafe fn paced<'a>(m: *mut sys::fby_media) -> &'a Paced {
    // SAFETY: paced() put it there, and it lives as long as the media.
    unsafe { &*(*m).host.cast::<Paced>() }
}

unsafe extern "C" fn paced_write(m: *mut sys::fby_media, at: u64, src: *const c_void, n: usize) {
    // SAFETY: the caller's promises are passed on.
    unsafe {
        let p = paced(m);
        (p.real.write)(m, at, src, n);
        p.pace.stored(n);
    }
}

unsafe extern "C" fn paced_write_crc(
    m: *mut sys::fby_media,
    at: u64,
    src: *const c_void,
    n: usize,
    crc: u32,
) -> u32 {
    // SAFETY: the caller's promises are passed on.
    unsafe {
        let p = paced(m);
        let crc = (p.real.write_crc)(m, at, src, n, crc);
        p.pace.stored(n);
        crc
    }
}

unsafe extern "C" fn paced_fence(m: *mut sys::fby_media, at: u64, n: usize) {
    // SAFETY: the caller's promises are passed on.
    unsafe {
        let p = paced(m);
        (p.real.fence)(m, at, n);
        p.pace.fenced();
    }
}

unsafe extern "C" fn paced_read_crc(
    m: *mut sys::fby_media,
    dst: *mut c_void,
    at: u64,
    n: usize,
    crc: *mut u32,
) -> c_int {
    // SAFETY: the caller's promises are passed on.
    unsafe { (paced(m).real.read_crc)(m, dst, at, n, crc) }
}

#[cfg(test)]
mod tests {
    use std::panic::AssertUnwindSafe;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn media() -> Media {
        let memory = Arc::new(Memory::zeroed(1 << 16).unwrap());
        Media::new(memory, 1 << 16, Persist::Nt, None).unwrap()
    }

    #[test]
    fn what_is_stored_is_read() {
        let media = media();
        let crc = media.write_crc(4096, &[7; 128], 0);
        assert_eq!(crc, sys::crc32c(0, &[7; 128]));
        media.fence(4096, 128);
        let mut back = [0; 192];
        assert!(media.read(4096, &mut back));
        assert!(back[..128].iter().all(|b| *b == 7) && back[128..].iter().all(|b| *b == 0));
        media.zero(4096, 4096);
        assert!(media.read(4096, &mut back) && back == [0; 192]);
    }

    #[test]
    fn beyond_the_end_and_parts_of_lines_are_refused() {
        let media = media();
        for (at, len) in [(1 << 16, 64), (0, (1 << 16) + 64), (u64::MAX - 63, 64), (32, 64), (0, 8)]
        {
            let data = vec![0; len];
            let refused = std::panic::catch_unwind(AssertUnwindSafe(|| media.write(at, &data)));
            assert!(refused.is_err(), "{len} bytes at {at}");
        }
    }

    /// Counts what it is told.
    #[derive(Default)]
    struct Count(AtomicUsize, AtomicUsize);

    impl Pace for Count {
        fn stored(&self, bytes: usize) {
            self.0.fetch_add(bytes, Ordering::Relaxed);
        }

        fn fenced(&self) {
            self.1.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_pace_is_told_of_stores_and_fences() {
        let (first, second) = (Arc::new(Count::default()), Arc::new(Count::default()));
        let media = media().paced(first.clone()).paced(second.clone());
        media.write(0, &[1; 64]);
        media.write_crc(64, &[2; 128], 0);
        media.fence(0, 192);
        let told = |c: &Count| (c.0.load(Ordering::Relaxed), c.1.load(Ordering::Relaxed));
        assert_eq!((told(&first), told(&second)), ((0, 0), (192, 1)), "the later one alone");
        let mut back = [0; 64];
        assert!(media.read(64, &mut back) && back == [2; 64]);
    }
}
