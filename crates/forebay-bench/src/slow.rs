// SPDX-License-Identifier: MIT OR Apache-2.0
//! Media slowed to a bandwidth, as persistent memory has one that a few cores
//! exhaust: stores go to a shared bucket of tokens, and the fence waits until the
//! thread's own are due.  It waits on the CPU, as a processor does whose store
//! buffers do not empty: to the scheduler a stalled thread is a busy one.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use forebay::Media;
use forebay_sys::{fby_media, fby_media_ops};

thread_local! {
    /// When the media has taken what this thread stored, by its bucket's clock.
    static DUE_NS: Cell<u64> = const { Cell::new(0) };
}

/// What the slowed operations find at `fby_media::host`.
#[derive(Debug)]
pub(crate) struct Bucket {
    real: fby_media_ops,
    start: Instant,
    /// 0: as fast as it can.
    bytes_per_s: AtomicU64,
    /// When the media has taken all that was stored.
    free_at_ns: AtomicU64,
}

impl Bucket {
    /// Puts it before the media's operations.  The media must not be in use
    /// yet, and the bucket has to outlive it.
    pub fn install(media: &Media) -> Box<Bucket> {
        let raw = media.as_raw();
        // SAFETY: the pointer is good while the media lives, and no pool is open
        // on it, so nobody reads what is written here; ops is never null.
        unsafe {
            let bucket = Box::new(Bucket {
                real: *(*raw).ops,
                start: Instant::now(),
                bytes_per_s: AtomicU64::new(0),
                free_at_ns: AtomicU64::new(0),
            });
            (*raw).host = std::ptr::from_ref(&*bucket).cast_mut().cast();
            (*raw).ops = &SLOW;
            bucket
        }
    }

    pub fn limit(&self, bytes_per_s: u64) {
        self.bytes_per_s.store(bytes_per_s, Ordering::Relaxed);
    }

    fn now_ns(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    fn take(&self, bytes: usize) {
        let rate = self.bytes_per_s.load(Ordering::Relaxed);
        if rate == 0 {
            return;
        }
        let cost = (bytes as u128 * 1_000_000_000 / u128::from(rate)) as u64;
        let now = self.now_ns();
        let after = |free: u64| free.max(now) + cost;
        let before = self
            .free_at_ns
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |free| Some(after(free)));
        let due = before.map_or(now, after);
        DUE_NS.with(|d| d.set(due));
    }

    fn settle(&self) {
        let due = DUE_NS.with(|d| d.replace(0));
        while due > self.now_ns() {
            std::hint::spin_loop();
        }
    }
}

/// # Safety
/// `m` is media that a [`Bucket`] was installed on.
unsafe fn bucket<'a>(m: *mut fby_media) -> &'a Bucket {
    // SAFETY: install() put it there, and it outlives the media.
    unsafe { &*(*m).host.cast::<Bucket>() }
}

unsafe extern "C" fn write(m: *mut fby_media, at: u64, src: *const c_void, n: usize) {
    // SAFETY: the caller's promises are passed on.
    unsafe {
        let b = bucket(m);
        (b.real.write)(m, at, src, n);
        b.take(n);
    }
}

unsafe extern "C" fn write_crc(
    m: *mut fby_media,
    at: u64,
    src: *const c_void,
    n: usize,
    crc: u32,
) -> u32 {
    // SAFETY: the caller's promises are passed on.
    unsafe {
        let b = bucket(m);
        let crc = (b.real.write_crc)(m, at, src, n, crc);
        b.take(n);
        crc
    }
}

unsafe extern "C" fn fence(m: *mut fby_media, at: u64, n: usize) {
    // SAFETY: the caller's promises are passed on.
    unsafe {
        let b = bucket(m);
        (b.real.fence)(m, at, n);
        b.settle();
    }
}

unsafe extern "C" fn read_crc(
    m: *mut fby_media,
    dst: *mut c_void,
    at: u64,
    n: usize,
    crc: *mut u32,
) -> c_int {
    // SAFETY: the caller's promises are passed on.
    unsafe { (bucket(m).real.read_crc)(m, dst, at, n, crc) }
}

static SLOW: fby_media_ops = fby_media_ops { write, write_crc, fence, read_crc };

#[cfg(test)]
mod tests {
    use super::*;

    /// No matter how fast the machine is, it is not faster than the limit.
    #[test]
    fn a_bucket_gives_no_more_than_its_rate() {
        let media = Media::anonymous(1 << 20, &Default::default()).unwrap();
        let bucket = Bucket::install(&media);
        let raw = media.as_raw();
        let store = || {
            let data = [7u8; 4096];
            // SAFETY: the first page of media that nobody else has.
            unsafe {
                ((*(*raw).ops).write)(raw, 0, data.as_ptr().cast(), 4096);
                ((*(*raw).ops).fence)(raw, 0, 4096);
            }
        };
        store(); // without a limit
        bucket.limit(4096 * 1000);
        let start = Instant::now();
        for _ in 0..20 {
            store();
        }
        assert!(start.elapsed().as_millis() >= 19);
        // SAFETY: as above.
        assert_eq!(unsafe { *(*raw).base }, 7);
    }
}
