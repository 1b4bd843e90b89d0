// SPDX-License-Identifier: MIT OR Apache-2.0
//! Media written in Rust: a trait implements the port's media operations.  So the simulator
//! decides which data is durable, and which is unreadable.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use forebay_sys as sys;

use crate::groups::{Durable, Persisted};
use crate::media::{private, Medium};

/// The operations of a kind of media; `core/medium/port.h` has the contract of each.  Only the
/// engine's calls use them, in their thread.
pub trait Store {
    /// Bytes; never changes.
    fn size(&self) -> u64;
    fn write(&self, at: u64, src: &[u8]);
    /// Makes durable what the caller's thread stored before, all in this range.
    fn fence(&self, at: u64, bytes: usize);
    /// Hands exactly these bytes to `take`.  False, without a call: they cannot be
    /// read.
    fn read(&self, at: u64, bytes: usize, take: impl FnOnce(&[u8])) -> bool;
}

/// The block device below a store whose bytes are an image of it; `core/medium/device.h` has the
/// contract.
pub trait BlockStore: Store {
    /// Writes whole blocks of the image to the device; without `more` all that these calls wrote
    /// is durable when it returns Done.
    fn persist(&self, at: u64, bytes: usize, more: bool) -> Persisted;
}

/// A store as media for the engine.
pub struct Soft<S: Store> {
    raw: Box<UnsafeCell<sys::fby_media>>,
    /// The media points to it.
    device: Option<Box<UnsafeCell<sys::fby_device>>>,
    /// From a box; the operations find it at `fby_media::host`.
    store: NonNull<S>,
}

// SAFETY: the store is owned, and shared references to it are all there are.
unsafe impl<S: Store + Send> Send for Soft<S> {}
// SAFETY: as above; the struct in the cell is not written once it is made.
unsafe impl<S: Store + Sync> Sync for Soft<S> {}

impl<S: Store> std::fmt::Debug for Soft<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Soft").field("size", &self.size()).finish_non_exhaustive()
    }
}

impl<S: Store> Soft<S> {
    const OPS: &'static sys::fby_media_ops = &sys::fby_media_ops {
        write: write::<S>,
        write_crc: write_crc::<S>,
        fence: fence::<S>,
        read_crc: read_crc::<S>,
    };

    pub fn new(store: S) -> Soft<S> {
        let (size, store) = (store.size(), Box::into_raw(Box::new(store)));
        // No memory for the engine to look at.
        let base = std::ptr::null_mut();
        let raw = sys::fby_media {
            base,
            size,
            ops: Self::OPS,
            host: store.cast(),
            device: std::ptr::null_mut(),
        };
        let store = NonNull::new(store).expect("a box is somewhere");
        Soft { raw: Box::new(UnsafeCell::new(raw)), device: None, store }
    }

    /// The image of a device, for one pool, from its opening on.
    pub fn grouped(store: S, unit: u32, durable: Durable) -> Soft<S>
    where
        S: BlockStore,
    {
        let mut soft = Soft::new(store);
        let persist = persist::<S>;
        let device =
            sys::fby_device { unit, durable: durable.number(), persist, lost: 0, failed: 0 };
        let device = soft.device.insert(Box::new(UnsafeCell::new(device)));
        soft.raw.get_mut().device = device.get();
        soft
    }
}

impl<S: Store> Deref for Soft<S> {
    type Target = S;

    fn deref(&self) -> &S {
        // SAFETY: from a box, freed in drop only; nobody has it exclusively.
        unsafe { self.store.as_ref() }
    }
}

impl<S: Store> Drop for Soft<S> {
    fn drop(&mut self) {
        // SAFETY: from Box::into_raw, and freed once.
        drop(unsafe { Box::from_raw(self.store.as_ptr()) });
    }
}

impl<S: Store> Medium for Soft<S> {}
impl<S: Store> private::Raw for Soft<S> {
    fn raw(&self) -> *mut sys::fby_media {
        self.raw.get()
    }

    fn writable(&self) -> bool {
        true
    }
}

/// # Safety
/// `m` is the media of a living [`Soft`] of this type.
unsafe fn store<'a, S: Store>(m: *mut sys::fby_media) -> &'a S {
    // SAFETY: the caller vouches for m.
    unsafe { &*(*m).host.cast::<S>() }
}

unsafe extern "C" fn write<S: Store>(
    m: *mut sys::fby_media,
    at: u64,
    src: *const c_void,
    n: usize,
) {
    // SAFETY: called by the engine with its media and n readable bytes at src.
    let (store, src) = unsafe { (store::<S>(m), std::slice::from_raw_parts(src.cast(), n)) };
    store.write(at, src);
}

unsafe extern "C" fn write_crc<S: Store>(
    m: *mut sys::fby_media,
    at: u64,
    src: *const c_void,
    n: usize,
    crc: u32,
) -> u32 {
    // SAFETY: called by the engine with its media and n readable bytes at src.
    let (store, src) = unsafe { (store::<S>(m), std::slice::from_raw_parts(src.cast(), n)) };
    store.write(at, src);
    sys::crc32c(crc, src)
}

unsafe extern "C" fn fence<S: Store>(m: *mut sys::fby_media, at: u64, n: usize) {
    // SAFETY: called by the engine with its media.
    unsafe { store::<S>(m) }.fence(at, n);
}

unsafe extern "C" fn read_crc<S: Store>(
    m: *mut sys::fby_media,
    dst: *mut c_void,
    at: u64,
    n: usize,
    crc: *mut u32,
) -> c_int {
    // SAFETY: called by the engine with its media.
    let store = unsafe { store::<S>(m) };
    let read = store.read(at, n, |src| {
        assert_eq!(src.len(), n);
        // SAFETY: dst, if any, has room for n bytes, which are not the store's, and
        // crc is the engine's.
        unsafe {
            if !dst.is_null() {
                std::ptr::copy_nonoverlapping(src.as_ptr(), dst.cast::<u8>(), n);
            }
            *crc = sys::crc32c(*crc, src);
        }
    });
    c_int::from(!read)
}

unsafe extern "C" fn persist<S: BlockStore>(
    m: *mut sys::fby_media,
    at: u64,
    n: u64,
    more: bool,
) -> c_int {
    // SAFETY: called by the engine with its media.
    let store = unsafe { store::<S>(m) };
    let end = store.persist(at, n as usize, more);
    if end == Persisted::FlushFailed {
        // SAFETY: grouped() has set the device, which lives as long as the media.  Engine and
        // host access the counter as an atomic.
        let lost = unsafe { AtomicU32::from_ptr(&raw mut (*(*m).device).lost) };
        lost.fetch_add(1, Ordering::AcqRel);
    }
    c_int::from(end != Persisted::Done)
}
