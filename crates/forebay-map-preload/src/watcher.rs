// SPDX-License-Identifier: MIT OR Apache-2.0
//! The thread that the kernel tells of opens of leased files: its start, its end, and how it is told.

use std::ffi::c_int;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::planted::{self, Planted};
use crate::real::{process, raw, thread};
use crate::signals;

/// Its number.
static WATCHER: AtomicI32 = AtomicI32::new(0);
/// Held while it is told something, and while it ends.
static WAKES: Mutex<()> = Mutex::new(());
/// It has to end.
static ENDS: AtomicBool = AtomicBool::new(false);
/// For its end.
static HANDLE: AtomicPtr<JoinHandle<()>> = AtomicPtr::new(std::ptr::null_mut());

/// Nobody tells it anything while this is held, also for a fork.
pub fn unchanged() -> MutexGuard<'static, ()> {
    WAKES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A child has no such thread.
pub fn in_child() {
    WATCHER.store(0, Ordering::SeqCst);
    HANDLE.store(std::ptr::null_mut(), Ordering::SeqCst);
}

/// Its number; zero: there is none.
pub fn number() -> c_int {
    WATCHER.load(Ordering::SeqCst)
}

/// Starts it before the first lease.  The caller has blocked signals, so the new thread inherits that.
pub fn start(watch: fn()) -> io::Result<()> {
    if number() != 0 {
        return Ok(());
    }
    let (tell, begun) = std::sync::mpsc::sync_channel(1);
    let watch = move || {
        block_all_but(IDENTITY);
        WATCHER.store(thread(), Ordering::SeqCst);
        let _ = tell.send(());
        watch();
        // Nobody sends a signal to this thread any more.
        drop(unchanged());
    };
    ENDS.store(false, Ordering::SeqCst);
    let handle = std::thread::Builder::new().name("map-lease".into()).spawn(watch)?;
    HANDLE.store(Box::into_raw(Box::new(handle)), Ordering::SeqCst);
    begun.recv().map_err(io::Error::other)
}

/// Ends it after the last close: a program without files may change the rights of its threads as it
/// likes.  The caller holds `OPEN`.
pub fn end() {
    if planted::is(Planted::WatcherStays) {
        return;
    }
    let handle = HANDLE.swap(std::ptr::null_mut(), Ordering::SeqCst);
    if handle.is_null() {
        return;
    }
    {
        let _wakes = unchanged();
        ENDS.store(true, Ordering::SeqCst);
        tell();
        WATCHER.store(0, Ordering::SeqCst);
    }
    // SAFETY: it was stored by the start, and taken out here.
    let _ = unsafe { Box::from_raw(handle) }.join();
}

/// Whether it has to end.
pub fn ends() -> bool {
    ENDS.load(Ordering::SeqCst)
}

/// Makes it look at all files.  Notifications before this had no effect.
pub fn wake() {
    let _wakes = unchanged();
    tell();
}

/// The caller holds `WAKES`.
fn tell() {
    let to = [process() as usize, number() as usize, SIGN, 0, 0, 0];
    // SAFETY: the signal is for our thread, which waits for it.
    unsafe { raw(libc::SYS_tgkill, to) };
}

/// Waits for the kernel's signal.  If the kernel cannot queue it, it sends SIGIO instead.  That
/// is not waited for, because it would take the program's own SIGIO; the timeout covers this
/// case.
pub fn wait(most: Duration) {
    let sign = 1u64 << (SIGN - 1);
    let most =
        libc::timespec { tv_sec: most.as_secs() as i64, tv_nsec: most.subsec_nanos().into() };
    let a = [(&raw const sign).addr(), 0, (&raw const most).addr(), 8, 0, 0];
    // SAFETY: the set and the time are valid for the call.
    unsafe { raw(libc::SYS_rt_sigtimedwait, a) };
}

/// The signal that marks our descriptors (F_SETSIG).  The kernel sends it only for a file with
/// a lease (`lease.rs`), to a thread of ours.  The number stays with the open file, and no
/// other open file has it, so it identifies ours.  Reading it takes half as long as fstat.
///
/// It is the signal by which the C library cancels a thread, which it sends to single threads
/// only.  A program can neither send it to the process nor wait for it, so our thread takes no
/// signal of the program's.
pub const SIGN: usize = 32;
/// A signal that the C library keeps for itself.
const SETXID: usize = 33;

/// Blocks all signals in this thread except these.
pub fn block_all_but(signals: u64) {
    signals::set_mask(!signals);
}

/// The signal by which the C library sets the identity of all threads (setuid): it waits for each
/// of them.
pub const IDENTITY: u64 = 1 << (SETXID - 1);
