// SPDX-License-Identifier: MIT OR Apache-2.0
//! Unblocks the signals of faults in all threads when the program ends.
//!
//! A thread that touches a closed file gets SIGSEGV or SIGBUS and waits in our handler
//! (`ending.rs`).  If the thread has blocked the signal, the kernel ends the process in the
//! middle of the other closes.  So both signals are unblocked before the first close, by a
//! handler that runs in each such thread.  It handles the signal by which the C library cancels
//! threads, which the library's functions do not block.

use std::ffi::{c_int, c_void};
use std::time::Duration;

use libc::{siginfo_t, ucontext_t};

use crate::real::{process, raw, thread};
use crate::signals;

pub const FAULTS: u64 = 1 << (libc::SIGBUS - 1) | 1 << (libc::SIGSEGV - 1);
/// How many milliseconds to wait for threads that have not run yet.
const PATIENCE: usize = 100;

/// The action has a function that returns from the handler.
const SA_RESTORER: c_int = if cfg!(target_arch = "x86_64") { 0x0400_0000 } else { 0 };

/// The kernel's struct: the C library's sigaction refuses this signal.
#[repr(C)]
struct KernelAction {
    handler: usize,
    flags: usize,
    #[cfg(target_arch = "x86_64")]
    restorer: usize,
    mask: u64,
}

#[cfg(target_arch = "x86_64")]
std::arch::global_asm!(
    ".pushsection .text",
    ".hidden forebay_map_run_restore",
    ".globl forebay_map_run_restore",
    "forebay_map_run_restore:",
    "mov eax, 15",
    "syscall",
    ".popsection",
);

#[cfg(target_arch = "x86_64")]
extern "C" {
    /// Returns from a handler (rt_sigreturn).
    fn forebay_map_run_restore();
}

extern "C" fn unblocks(_: c_int, _: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes it to a handler of this kind, and its signal set has 64 bits.
    unsafe {
        let mask = (&raw mut (*context.cast::<ucontext_t>()).uc_sigmask).cast::<u64>();
        mask.write(mask.read() & !FAULTS);
    }
    signals::unblock_kept(FAULTS);
}

fn handle(signal: usize) -> bool {
    type Handler = extern "C" fn(c_int, *mut siginfo_t, *mut c_void);
    let handler = unblocks as Handler as usize;
    let action = KernelAction {
        handler,
        flags: (libc::SA_SIGINFO | libc::SA_RESTART | libc::SA_ONSTACK | SA_RESTORER) as usize,
        #[cfg(target_arch = "x86_64")]
        restorer: forebay_map_run_restore as unsafe extern "C" fn() as usize,
        mask: !FAULTS,
    };
    // SAFETY: the action is valid for the call, and its handler changes only the thread's mask.
    unsafe { raw(libc::SYS_rt_sigaction, [signal, (&raw const action).addr(), 0, 8, 0, 0]) == 0 }
}

/// Unblocks the signals of faults in every other thread of the process that has blocked them,
/// except one of the library's own.  Each gets `signal` for that, which no one else handles any
/// more.  Does nothing if threads cannot be listed (no /proc).  It allocates nothing and takes
/// no lock, so it may run in a handler.
pub fn unblock_in_others(signal: usize, but_for: usize) {
    if !blocks(but_for, |_| ()) || !handle(signal) {
        return;
    }
    let process = process() as usize;
    for _ in 0..PATIENCE {
        // SAFETY: the signal has the handler above.
        let send = |thread| unsafe {
            raw(libc::SYS_tgkill, [process, thread, signal, 0, 0, 0]);
        };
        if !blocks(but_for, send) {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Calls `f` for each other thread that blocks one of these signals.  Returns whether there is
/// one.
fn blocks(but_for: usize, f: impl Fn(usize)) -> bool {
    let own = thread() as usize;
    let mut found = false;
    for_each_thread(|thread| {
        let others = thread != own && thread != but_for;
        if others && mask_of(thread).is_some_and(|mask| mask & FAULTS != 0) {
            found = true;
            f(thread);
        }
    });
    found
}

/// An open file or directory of /proc.
pub struct Opened(usize);

impl Opened {
    /// Opens a path that ends with a zero byte.
    pub fn of(path: &[u8]) -> Option<Opened> {
        assert_eq!(path.last(), Some(&0));
        let flags = (libc::O_RDONLY | libc::O_CLOEXEC) as usize;
        let a = [libc::AT_FDCWD as usize, path.as_ptr().addr(), flags, 0, 0, 0];
        // SAFETY: the path is valid for the call.
        usize::try_from(unsafe { raw(libc::SYS_openat, a) }).ok().map(Opened)
    }

    /// Calls `f` for each number that is a name in the directory.
    pub fn for_each_number(&self, f: impl FnMut(usize)) {
        for_each_number(self.0, f);
    }
}

fn fill(fd: usize, by: libc::c_long, to: &mut [u8]) -> usize {
    // SAFETY: the buffer is valid for the call (read, getdents64).
    let n = unsafe { raw(by, [fd, to.as_mut_ptr().addr(), to.len(), 0, 0, 0]) };
    usize::try_from(n).unwrap_or(0)
}

impl Drop for Opened {
    fn drop(&mut self) {
        // SAFETY: it was opened above, and no one else knows its number.
        unsafe { raw(libc::SYS_close, [self.0, 0, 0, 0, 0, 0]) };
    }
}

fn for_each_thread(f: impl FnMut(usize)) {
    if let Some(all) = Opened::of(b"/proc/self/task\0") {
        all.for_each_number(f);
    }
}

/// Calls `f` for each number that is a name in an open directory, from where that is.
fn for_each_number(dir: usize, mut f: impl FnMut(usize)) {
    let mut bytes = [0; 4096];
    loop {
        let n = entries(dir, &mut bytes);
        if each_number(&bytes[..n], &mut f).is_none() {
            return;
        }
    }
}

/// Reads the next entries of a directory.  Returns the number of bytes.
pub fn entries(dir: usize, to: &mut [u8]) -> usize {
    fill(dir, libc::SYS_getdents64, to)
}

/// Calls `f` for each number that is a name among these entries of a directory.  Returns the place
/// in the directory of what follows.  None: there are no entries.
pub fn each_number(entries: &[u8], mut f: impl FnMut(usize)) -> Option<u64> {
    /// The offsets of the next entry's place, the length and the name in a directory entry
    /// (getdents64).
    const NEXT: usize = 8;
    const LENGTH: usize = 16;
    const NAME: usize = 19;
    let mut next = None;
    let mut rest = entries;
    while rest.len() > NAME {
        let length = usize::from(u16::from_ne_bytes([rest[LENGTH], rest[LENGTH + 1]]));
        let (entry, after) = rest.split_at(length.clamp(NAME, rest.len()));
        let name = entry[NAME..].split(|&c| c == 0).next().unwrap_or_default();
        if let Some(number) = std::str::from_utf8(name).ok().and_then(|n| n.parse().ok()) {
            f(number);
        }
        next = entry[NEXT..LENGTH].try_into().ok().map(u64::from_ne_bytes);
        rest = after;
    }
    next
}

/// The signals that a thread blocks.
fn mask_of(thread: usize) -> Option<u64> {
    use std::io::Write;
    let mut path = [0; 64];
    write!(&mut path[..63], "/proc/self/task/{thread}/status").ok()?;
    let status = Opened::of(&path)?;
    let mut bytes = [0; 4096];
    let n = fill(status.0, libc::SYS_read, &mut bytes);
    let mut lines = bytes[..n].split(|&c| c == b'\n');
    let mask = lines.find_map(|line| line.strip_prefix(b"SigBlk:\t"))?;
    u64::from_str_radix(std::str::from_utf8(mask).ok()?, 16).ok()
}
