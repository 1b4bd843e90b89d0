// SPDX-License-Identifier: MIT OR Apache-2.0
//! Keeps the memory and the descriptors of a pool from children of this process (fork).  A
//! child may drop its rights, and the pool holds the data of all its users.
//!
//! - A mapping of a pool is not inherited (MADV_DONTFORK).
//! - A descriptor in the [registry](enter) becomes a deaf one in the child: an epoll with nothing
//!   in it, which no read, write, mmap or ioctl reaches anything by.  The number stays taken, so
//!   what the child does with it by mistake reaches no other file.
//! - Both have a moment at which they exist and are not protected yet.  A fork waits for that
//!   moment to end ([`hold`]).
//!
//! The handlers run for fork(3) and its callers.  A child that the program makes with clone(2)
//! runs no handler: it gets copies of the descriptors, and no memory.

use std::cell::Cell;
use std::ffi::c_int;
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::Once;

use rustix::event::epoll;
use rustix::thread::futex;

/// Linux gives no higher number by default (fs.nr_open).
const MOST: usize = 1 << 20;

/// One bit for each descriptor that children must not have.
static REGISTRY: [AtomicU64; MOST / 64] = [const { AtomicU64::new(0) }; MOST / 64];
/// All of them are below it.
static BELOW: AtomicUsize = AtomicUsize::new(0);
/// Forks between the first process and this one.
static FORKS: AtomicU64 = AtomicU64::new(0);
/// The thread that holds forks back, by an address of its own; 0: none does.
static HOLDER: AtomicUsize = AtomicUsize::new(0);
/// The number of times that it was given back, for those that wait.
static GIVEN_BACK: AtomicU32 = AtomicU32::new(0);
/// The number of threads that wait.
static WAITING: AtomicU32 = AtomicU32::new(0);
/// The process that the holder is a thread of.
static PROCESS: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// How often this thread holds forks back.
    static HELD: Cell<u32> = const { Cell::new(0) };
}

/// How often the process was forked from others that have used this crate: memory of another
/// number is not there any more.
pub fn generation() -> u64 {
    FORKS.load(Ordering::Relaxed)
}

/// For as long as it lives no fork of another thread begins.
#[derive(Debug)]
pub struct Hold(std::marker::PhantomData<*const ()>);

/// Holds forks back.  To be held for some system calls that do not wait.  A thread may hold them
/// back several times; a signal handler that forks while its thread does so is not waited for.
pub fn hold() -> Hold {
    static HANDLED: Once = Once::new();
    HANDLED.call_once(|| {
        // SAFETY: the handlers use atomics, memory of the thread and system calls.
        let failed = unsafe { libc::pthread_atfork(Some(prepare), Some(resume), Some(in_child)) };
        assert_eq!(failed, 0, "no memory for what is to be done at a fork");
    });
    take();
    Hold(std::marker::PhantomData)
}

impl Drop for Hold {
    fn drop(&mut self) {
        give_back();
    }
}

fn myself() -> usize {
    HELD.with(|held| std::ptr::from_ref(held).addr())
}

fn take() {
    let me = myself();
    while HOLDER.load(Ordering::Acquire) != me {
        let before = GIVEN_BACK.load(Ordering::SeqCst);
        match HOLDER.compare_exchange_weak(0, me, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => {
                PROCESS.store(std::process::id(), Ordering::Relaxed);
                break;
            }
            // A child that no handler was run for may have a holder that it has no thread of.
            Err(other) if other != 0 && PROCESS.load(Ordering::Relaxed) != std::process::id() => {
                let _ = HOLDER.compare_exchange(other, 0, Ordering::AcqRel, Ordering::Relaxed);
            }
            Err(_) => wait(before),
        }
    }
    HELD.with(|held| held.set(held.get() + 1));
}

/// Waits until it was given back since then, or for a moment.  A thread that spun would keep the CPU
/// from a holder of a lower priority.
fn wait(before: u32) {
    // A child that no handler was run for has nobody that would wake it.
    let moment = futex::Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
    WAITING.fetch_add(1, Ordering::SeqCst);
    if HOLDER.load(Ordering::SeqCst) != 0 {
        let _ = futex::wait(&GIVEN_BACK, futex::Flags::PRIVATE, before, Some(&moment));
    }
    WAITING.fetch_sub(1, Ordering::SeqCst);
}

fn give_back() {
    let left = HELD.with(|held| {
        held.set(held.get() - 1);
        held.get()
    });
    if left == 0 {
        let _ = HOLDER.compare_exchange(myself(), 0, Ordering::SeqCst, Ordering::Relaxed);
        GIVEN_BACK.fetch_add(1, Ordering::SeqCst);
        if WAITING.load(Ordering::SeqCst) > 0 {
            let _ = futex::wake(&GIVEN_BACK, futex::Flags::PRIVATE, u32::MAX >> 1);
        }
    }
}

extern "C" fn prepare() {
    take();
}

extern "C" fn resume() {
    give_back();
}

extern "C" fn in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    make_deaf();
    PROCESS.store(std::process::id(), Ordering::Relaxed);
    give_back();
}

/// In the child, before anything else runs there: system calls alone.
fn make_deaf() {
    let deaf = epoll::create(epoll::CreateFlags::CLOEXEC).ok();
    let used = BELOW.load(Ordering::Relaxed).div_ceil(64);
    for (word, all) in REGISTRY.iter().enumerate().take(used) {
        let mut bits = all.swap(0, Ordering::Relaxed);
        while bits != 0 {
            let number = (word * 64) as RawFd + bits.trailing_zeros() as RawFd;
            bits &= bits - 1;
            // SAFETY: the number is registered, so it is a copy of the parent's descriptor, and
            // whoever owns it in this child finds a descriptor there until he closes it.
            unsafe {
                let mut copy = OwnedFd::from_raw_fd(number);
                let done = deaf
                    .as_ref()
                    .map(|deaf| rustix::io::dup3(deaf, &mut copy, rustix::io::DupFlags::CLOEXEC));
                let number = copy.into_raw_fd();
                if !matches!(done, Some(Ok(()))) {
                    rustix::io::close(number);
                }
            }
        }
    }
    // Not by the C library, whose `close` may be somebody else's here.
    if let Some(deaf) = deaf {
        // SAFETY: it was made above, and nobody else has it.
        unsafe { rustix::io::close(deaf.into_raw_fd()) };
    }
}

fn bit_of(fd: RawFd) -> Option<(&'static AtomicU64, u64)> {
    let fd = usize::try_from(fd).ok()?;
    Some((REGISTRY.get(fd / 64)?, 1 << (fd % 64)))
}

/// Children are not to have it from now on.  Forks are held back since before it was made.
pub(crate) fn enter(fd: c_int) {
    let Some((word, bit)) = bit_of(fd) else { return };
    word.fetch_or(bit, Ordering::Relaxed);
    BELOW.fetch_max(fd as usize + 1, Ordering::Relaxed);
}

/// It is closed; forks are held back until it is.
pub(crate) fn leave(fd: c_int) {
    if let Some((word, bit)) = bit_of(fd) {
        word.fetch_and(!bit, Ordering::Relaxed);
    }
}
