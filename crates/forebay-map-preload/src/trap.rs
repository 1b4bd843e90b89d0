// SPDX-License-Identifier: MIT OR Apache-2.0
//! Handles system calls that the program makes by an instruction of its own at addresses of a
//! mapped file (`window.rs`).  The kernel has not made such a call, and reports it by SIGSYS. The
//! library does what its function for the call does, or refuses the call.
//!
//! The signal arrives at the instruction, so the thread is in a state in which it could have called
//! that function.  If nothing handles the signal, the program ends: nothing was acknowledged.

use std::ffi::{c_int, c_long, c_void};
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use libc::{sigaction as Action, siginfo_t, ucontext_t};

use crate::planted::{self, Planted};
use crate::real::{self, fail, raw, told};
use crate::say::{once, About};
use crate::{
    aio, attributes, calls, direct, guarded, limit, memory, opening, ready, remote, rings, signals,
    sockets, state, staying, transfer, users, window,
};

/// 0: the handler is not there, `CATCHES`: it is.
static INSTALLED: AtomicU32 = AtomicU32::new(0);
const BEGUN: u32 = 1;
const CATCHES: u32 = 2;
/// The range of the library's instructions.
static FROM: AtomicUsize = AtomicUsize::new(0);
static TO: AtomicUsize = AtomicUsize::new(0);
/// The program's own action for SIGSYS.  It is never freed, because a handler may be using it.
static PROGRAMS: AtomicPtr<Action> = AtomicPtr::new(std::ptr::null_mut());

/// The offset of the call's number in the siginfo_t of SIGSYS.
const CALL_AT: usize = 24;
const BY_FILTER: c_int = 1;

pub fn install(text: Range<usize>) -> io::Result<()> {
    FROM.store(text.start, Ordering::SeqCst);
    TO.store(text.end, Ordering::SeqCst);
    catch();
    let begun = Instant::now();
    // Another thread may be about to have it there.
    while !catches() && begun.elapsed() < Duration::from_secs(1) {
        std::thread::sleep(Duration::from_millis(1));
    }
    match catches() {
        true => Ok(()),
        false => Err(io::Error::other("no handler of SIGSYS")),
    }
}

/// Whether the library handles SIGSYS.
pub fn catches() -> bool {
    INSTALLED.load(Ordering::SeqCst) == CATCHES
}

/// Has the library handle SIGSYS from now on.
pub fn catch() {
    if !real::may_map() {
        return;
    }
    let begins = INSTALLED.compare_exchange(0, BEGUN, Ordering::SeqCst, Ordering::SeqCst);
    if begins.is_err() {
        return;
    }
    match put() {
        None => INSTALLED.store(0, Ordering::SeqCst),
        Some(before) => {
            let before = Box::into_raw(Box::new(before));
            let none = std::ptr::null_mut();
            // A later one may have been set meanwhile.
            let _ = PROGRAMS.compare_exchange(none, before, Ordering::SeqCst, Ordering::SeqCst);
            INSTALLED.store(CATCHES, Ordering::SeqCst);
            signals::are_carried();
        }
    }
}

fn handler() -> usize {
    trapped as extern "C-unwind" fn(c_int, *mut siginfo_t, *mut c_void) as usize
}

/// Puts the library's handler in place, and returns the action before.
fn put() -> Option<Action> {
    // SAFETY: all zeroes is a value of both, and they are there for the call.
    unsafe {
        let mut before: Action = std::mem::zeroed();
        let mut now: Action = std::mem::zeroed();
        now.sa_sigaction = handler();
        // The handler works as long as a call of the library, and signals may interrupt it like
        // such a call.
        now.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER | libc::SA_RESTART;
        let done = real::sigaction(libc::SIGSYS, &raw const now, &raw mut before);
        (done == 0).then_some(before)
    }
}

/// Sets an action of the program for SIGSYS.  Another thread may put the library's handler in place
/// meanwhile: then that comes back, and calls the program's.
///
/// # Safety
/// The contract of sigaction(2) applies.
unsafe fn set_before(new: *const Action, old: *mut Action) -> c_int {
    // SAFETY: the caller guarantees it; all zeroes is a value of it.  An action that was kept is
    // never freed.
    unsafe {
        let mut was: Action = std::mem::zeroed();
        let done = signals::set(libc::SIGSYS, new, &raw mut was);
        if done != 0 {
            return done;
        }
        if was.sa_sigaction == handler() {
            was = PROGRAMS.load(Ordering::SeqCst).as_ref().copied().unwrap_or(std::mem::zeroed());
        }
        if !new.is_null() && INSTALLED.load(Ordering::SeqCst) != 0 {
            let theirs = put().filter(|before| before.sa_sigaction != handler());
            if let Some(theirs) = theirs {
                PROGRAMS.store(Box::into_raw(Box::new(theirs)), Ordering::SeqCst);
            }
        }
        if let Some(old) = old.as_mut() {
            *old = was;
        }
    }
    0
}

extern "C-unwind" fn trapped(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    let errno = real::errno();
    // SAFETY: the kernel gives both to a handler of this kind, and the program's registers are
    // as they were at the instruction.
    let seen = unsafe {
        let number: c_int = *info.byte_add(CALL_AT).cast();
        let by_filter = (*info).si_code == BY_FILTER;
        if !by_filter && signals::carries(context) {
            *libc::__errno_location() = errno;
            return;
        }
        let context = &mut *context.cast::<ucontext_t>();
        let (at, a) = registers(context);
        let from = FROM.load(Ordering::Relaxed);
        let mine = at > from && at <= TO.load(Ordering::Relaxed);
        // Before the library has a filter, what traps is by one of the program's own.
        let result = match by_filter && from != 0 && window::is_ruled(number.into()) {
            false => None,
            true if c_long::from(number) == libc::SYS_futex && !mine => match futex(a) {
                // The thread makes the call again, and can wait and be cancelled in it as usual.
                Some((changed, true)) => {
                    again(context, changed);
                    None
                }
                Some((a, false)) => Some(raw(libc::SYS_futex, a)),
                None => Some(-libc::EFAULT as isize),
            },
            // A program that executed this one has installed a filter for this window.
            true if mine || guarded::is_inside() => Some(-libc::EPERM as isize),
            true => Some(at_window(number.into(), a)),
        };
        if let Some(result) = result {
            give(context, result);
        }
        result.is_some() || by_filter && c_long::from(number) == libc::SYS_futex
    };
    if !seen {
        pass_on(signal, info, context);
    }
    // SAFETY: errno belongs to this thread.
    unsafe { *libc::__errno_location() = errno };
}

#[cfg(target_arch = "x86_64")]
fn registers(context: &ucontext_t) -> (usize, [usize; 6]) {
    use libc::{REG_R10, REG_R8, REG_R9, REG_RDI, REG_RDX, REG_RIP, REG_RSI};
    let r = |n: c_int| context.uc_mcontext.gregs[n as usize] as usize;
    let a = [r(REG_RDI), r(REG_RSI), r(REG_RDX), r(REG_R10), r(REG_R8), r(REG_R9)];
    (r(REG_RIP), a)
}

#[cfg(target_arch = "x86_64")]
fn give(context: &mut ucontext_t, result: isize) {
    context.uc_mcontext.gregs[libc::REG_RAX as usize] = result as i64;
}

/// Restarts the same instruction with other arguments.
#[cfg(target_arch = "x86_64")]
fn again(context: &mut ucontext_t, a: [usize; 6]) {
    let r = &mut context.uc_mcontext.gregs;
    r[libc::REG_RSI as usize] = a[1] as i64;
    r[libc::REG_RAX as usize] = libc::SYS_futex;
    r[libc::REG_RIP as usize] -= 2;
}

#[cfg(target_arch = "aarch64")]
fn again(context: &mut ucontext_t, a: [usize; 6]) {
    context.uc_mcontext.regs[0] = a[0] as u64;
    context.uc_mcontext.regs[1] = a[1] as u64;
    context.uc_mcontext.pc -= 4;
}

#[cfg(target_arch = "aarch64")]
fn registers(context: &ucontext_t) -> (usize, [usize; 6]) {
    let r = |n: usize| context.uc_mcontext.regs[n] as usize;
    (context.uc_mcontext.pc as usize, [r(0), r(1), r(2), r(3), r(4), r(5)])
}

#[cfg(target_arch = "aarch64")]
fn give(context: &mut ucontext_t, result: isize) {
    context.uc_mcontext.regs[0] = result as u64;
}

/// Changes the arguments of futex(2) for a lock between processes in a file's memory.  The kernel
/// finds such a lock by the memory, and a segment may get other memory while a thread waits.  For
/// an exclusive file the lock becomes one between threads, which the kernel finds by the address.
/// For a shared file the segment is pinned.  Returns the arguments, and whether they have changed.
fn futex(a: [usize; 6]) -> Option<([usize; 6], bool)> {
    let (file, at) = state::at(a[0])?;
    if file.locks.are_shared() {
        file.pin(at);
        return Some((a, false));
    }
    let mut changed = a;
    changed[1] |= libc::FUTEX_PRIVATE_FLAG as usize;
    Some((changed, true))
}

const FUTEX_WAITV: c_long = 449;
const FUTEX_WAKE: c_long = 454;
const FUTEX_WAIT: c_long = 455;
const FUTEX_REQUEUE: c_long = 456;
/// The kernel takes at least one waiter and at most this many.
const FUTEX_WAITV_MOST: usize = 128;
const FUTEX2_PRIVATE: u32 = 128;

/// The kernel's struct futex_waitv.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Waiter {
    value: u64,
    address: u64,
    flags: u32,
    reserved: u32,
}

/// Changes the flags of a lock in the later futex calls, as [`futex`] changes its arguments.
fn futex2(address: usize, flags: u32) -> u32 {
    if flags & FUTEX2_PRIVATE != 0 {
        return flags;
    }
    match state::at(address) {
        Some((file, at)) if file.locks.are_shared() => {
            file.pin(at);
            flags
        }
        Some(_) => flags | FUTEX2_PRIVATE,
        None => flags,
    }
}

fn at_window(number: c_long, a: [usize; 6]) -> isize {
    once(
        About::Instruction,
        format_args!(
            "the program makes system call {number} of a mapped file's memory by an instruction \
             of its own: it is done as by the C library's function, or refused"
        ),
    );
    // The table of files has no pointers with a tag.
    if a[0] >> 48 != 0 {
        return -libc::EINVAL as isize;
    }
    let done = by_number(number, a).unwrap_or_else(|| fail(libc::EPERM));
    match done {
        -1 => -real::errno() as isize,
        done => done,
    }
}

/// Makes a call by its number, if the library has to make it, and returns as its function does.
/// None: the kernel may make the call as it is.
pub fn by_number(number: c_long, a: [usize; 6]) -> Option<isize> {
    let p = std::ptr::with_exposed_provenance_mut::<c_void>(a[0]);
    let (fd, n) = (a[0] as c_int, a[1] as c_int);
    let ours = || state::is_ours(fd) && !guarded::is_inside();
    users::alone(number, [a[0], a[1], a[2]]);
    // SAFETY: the caller guarantees that these are the arguments of the call.
    let result = unsafe {
        match number {
            libc::SYS_msync => memory::msync(p, a[1], a[2] as c_int) as isize,
            libc::SYS_munmap => memory::munmap(p, a[1]) as isize,
            libc::SYS_mprotect => memory::mprotect(p, a[1], a[2] as c_int) as isize,
            libc::SYS_madvise => memory::madvise(p, a[1], a[2] as c_int) as isize,
            libc::SYS_mremap => {
                let to = std::ptr::with_exposed_provenance_mut(a[4]);
                memory::mremap(p, a[1], a[2], a[3] as c_int, to).addr() as isize
            }
            libc::SYS_mmap => {
                let (prot, flags, fd) = (a[2] as c_int, a[3] as c_int, a[4] as c_int);
                memory::mmap(p, a[1], prot, flags, fd, a[5] as i64).addr() as isize
            }
            libc::SYS_shmat => {
                let at = std::ptr::with_exposed_provenance(a[1]);
                memory::shmat(fd, at, a[2] as c_int).addr() as isize
            }
            libc::SYS_futex if a[1] & libc::FUTEX_PRIVATE_FLAG as usize != 0 => return None,
            libc::SYS_futex => match futex(a) {
                Some((a, _)) => real::told(raw(libc::SYS_futex, a)),
                None => return None,
            },
            FUTEX_WAITV | FUTEX_REQUEUE => {
                // The kernel uses the lower half of the register, and refuses a wrong count before
                // it reads.
                let count = if number == FUTEX_REQUEUE { 2 } else { a[1] as u32 as usize };
                let first = std::ptr::with_exposed_provenance::<Waiter>(a[0]);
                if first.is_null() || !(1..=FUTEX_WAITV_MOST).contains(&count) {
                    return Some(real::told(raw(number, a)));
                }
                let mut all = [Waiter::default(); FUTEX_WAITV_MOST];
                for (at, waiter) in all.iter_mut().enumerate().take(count) {
                    *waiter = first.add(at).read_unaligned();
                    waiter.flags = futex2(waiter.address as usize, waiter.flags);
                }
                real::told(raw(number, [all.as_ptr().addr(), a[1], a[2], a[3], a[4], a[5]]))
            }
            FUTEX_WAKE | FUTEX_WAIT => {
                let flags = futex2(a[0], a[3] as u32) as usize;
                real::told(raw(number, [a[0], a[1], a[2], flags, a[4], a[5]]))
            }
            // The filter refuses what may not be, and the others name memory by a list.
            window::PROCESS_MADVISE => return None,
            n if window::is_ruled(n) => match window::is_within(a[0], a[1]) {
                true => refuse(),
                false => return None,
            },
            libc::SYS_openat if !guarded::is_inside() => {
                let name = std::ptr::with_exposed_provenance(a[1]);
                opening::open_at(fd, name, a[2] as c_int, a[3] as u32) as isize
            }
            #[cfg(target_arch = "x86_64")]
            libc::SYS_open if !guarded::is_inside() => {
                let name = std::ptr::with_exposed_provenance(a[0]);
                opening::open_at(libc::AT_FDCWD, name, n, a[2] as u32) as isize
            }
            libc::SYS_openat2 if !guarded::is_inside() => {
                let name = std::ptr::with_exposed_provenance(a[1]);
                opening::open_how(fd, name, std::ptr::with_exposed_provenance(a[2]), a[3]) as isize
            }
            libc::SYS_open_by_handle_at if !guarded::is_inside() => {
                let handle = std::ptr::with_exposed_provenance_mut(a[1]);
                opening::open_by_handle_at(fd, handle, a[2] as c_int) as isize
            }
            #[cfg(target_arch = "x86_64")]
            libc::SYS_creat if !guarded::is_inside() => {
                opening::creat(std::ptr::with_exposed_provenance(a[0]), a[1] as u32) as isize
            }
            libc::SYS_truncate if !guarded::is_inside() => {
                calls::truncate(std::ptr::with_exposed_provenance(a[0]), a[1] as i64) as isize
            }
            #[cfg(target_arch = "x86_64")]
            libc::SYS_chmod if !guarded::is_inside() => {
                calls::modes::chmod(std::ptr::with_exposed_provenance(a[0]), a[1] as u32) as isize
            }
            libc::SYS_fchmodat if !guarded::is_inside() => {
                let name = std::ptr::with_exposed_provenance(a[1]);
                calls::modes::fchmodat(fd, name, a[2] as u32, 0) as isize
            }
            libc::SYS_fchmod if ours() => calls::modes::fchmod(fd, a[1] as u32) as isize,
            calls::modes::FCHMODAT2 if !guarded::is_inside() => calls::modes::fchmodat2(a) as isize,
            libc::SYS_fchown if ours() => calls::fchown(fd, a[1] as u32, a[2] as u32) as isize,
            #[cfg(target_arch = "x86_64")]
            libc::SYS_rename if !guarded::is_inside() => {
                let to = std::ptr::with_exposed_provenance(a[1]);
                calls::rename(std::ptr::with_exposed_provenance(a[0]), to) as isize
            }
            libc::SYS_renameat | libc::SYS_renameat2 if !guarded::is_inside() => {
                let flags = if number == libc::SYS_renameat { 0 } else { a[4] as u32 };
                let from = std::ptr::with_exposed_provenance(a[1]);
                let to = std::ptr::with_exposed_provenance(a[3]);
                calls::renameat2(fd, from, a[2] as c_int, to, flags) as isize
            }
            #[cfg(target_arch = "x86_64")]
            libc::SYS_unlink if !guarded::is_inside() => {
                calls::unlink(std::ptr::with_exposed_provenance(a[0])) as isize
            }
            libc::SYS_unlinkat if !guarded::is_inside() => {
                let name = std::ptr::with_exposed_provenance(a[1]);
                calls::unlinkat(fd, name, a[2] as c_int) as isize
            }
            libc::SYS_prlimit64 | libc::SYS_setrlimit
                if !guarded::is_inside() && !planted::is(Planted::LimitByNumber) =>
            {
                let (pid, what, at) = match number {
                    libc::SYS_setrlimit => (0, a[0] as u32, [a[1], 0]),
                    _ => (fd, a[1] as u32, [a[2], a[3]]),
                };
                let new = std::ptr::with_exposed_provenance(at[0]);
                let old = std::ptr::with_exposed_provenance_mut(at[1]);
                limit::prlimit(pid, what, new, old) as isize
            }
            libc::SYS_execve if !guarded::is_inside() => {
                let [path, argv, env] =
                    [a[0], a[1], a[2]].map(std::ptr::with_exposed_provenance::<u8>);
                staying::execve(path.cast(), argv.cast(), env.cast()) as isize
            }
            libc::SYS_execveat if !guarded::is_inside() => {
                let [path, argv, env] =
                    [a[1], a[2], a[3]].map(std::ptr::with_exposed_provenance::<u8>);
                staying::execveat(fd, path.cast(), argv.cast(), env.cast(), a[4] as c_int) as isize
            }
            libc::SYS_exit_group if !guarded::is_inside() => calls::_exit(fd),
            libc::SYS_vmsplice
                if !guarded::is_inside() && !planted::is(Planted::VmspliceByNumber) =>
            {
                let v = std::ptr::with_exposed_provenance(a[1]);
                ready::vmsplice(fd, v, a[2], a[3] as u32)
            }
            libc::SYS_setsockopt => {
                let value = std::ptr::with_exposed_provenance(a[3]);
                sockets::setsockopt(fd, n, a[2] as c_int, value, a[4] as u32) as isize
            }
            libc::SYS_sendto => {
                let (from, to) = (std::ptr::with_exposed_provenance(a[1]), a[4]);
                let to = std::ptr::with_exposed_provenance(to);
                sockets::sendto(fd, from, a[2], a[3] as c_int, to, a[5] as u32)
            }
            libc::SYS_sendmsg => {
                sockets::sendmsg(fd, std::ptr::with_exposed_provenance(a[1]), a[2] as c_int)
            }
            libc::SYS_sendmmsg => {
                let all = std::ptr::with_exposed_provenance_mut(a[1]);
                sockets::sendmmsg(fd, all, a[2] as u32, a[3] as c_int) as isize
            }
            libc::SYS_io_submit => {
                let all = std::ptr::with_exposed_provenance(a[2]);
                real::told(aio::submit(a[0], a[1] as c_long, all))
            }
            libc::SYS_io_uring_setup => rings::setup(a),
            libc::SYS_process_vm_writev | libc::SYS_process_vm_readv => {
                remote::by_number(number, a)
            }
            libc::SYS_read
            | libc::SYS_write
            | libc::SYS_pread64
            | libc::SYS_pwrite64
            | libc::SYS_readv
            | libc::SYS_writev
            | libc::SYS_preadv
            | libc::SYS_pwritev
            | libc::SYS_preadv2
            | libc::SYS_pwritev2 => return direct::by_number(number, a),
            libc::SYS_unshare => staying::unshare(fd) as isize,
            libc::SYS_utimensat if !guarded::is_inside() => {
                let path = std::ptr::with_exposed_provenance(a[1]);
                let to = std::ptr::with_exposed_provenance(a[2]);
                attributes::utimensat(fd, path, to, a[3] as c_int) as isize
            }
            #[cfg(target_arch = "x86_64")]
            libc::SYS_utime | libc::SYS_utimes | libc::SYS_futimesat if !guarded::is_inside() => {
                let [path, to, third] =
                    [a[0], a[1], a[2]].map(std::ptr::with_exposed_provenance::<u8>);
                match number {
                    libc::SYS_utime => attributes::utime(path.cast(), to.cast()) as isize,
                    libc::SYS_utimes => attributes::utimes(path.cast(), to.cast()) as isize,
                    _ => attributes::futimesat(fd, to.cast(), third.cast()) as isize,
                }
            }
            libc::SYS_sync => {
                transfer::sync();
                0
            }
            libc::SYS_syncfs => transfer::syncfs(fd) as isize,
            // The library's table must follow these calls, and some name a descriptor of the
            // library.
            libc::SYS_close => calls::close(fd) as isize,
            libc::SYS_close_range => {
                calls::close_range(a[0] as u32, a[1] as u32, a[2] as c_int) as isize
            }
            #[cfg(target_arch = "x86_64")]
            libc::SYS_dup2 => calls::dup2(fd, n) as isize,
            libc::SYS_dup3 => calls::dup3(fd, n, a[2] as c_int) as isize,
            libc::SYS_dup if ours() => calls::dup(fd) as isize,
            libc::SYS_fcntl if ours() => calls::fcntl(fd, n, a[2]) as isize,
            libc::SYS_ioctl if ours() => {
                calls::controls::ioctl(fd, a[1] as std::ffi::c_ulong, a[2]) as isize
            }
            libc::SYS_readahead if ours() => calls::controls::readahead(fd, a[1] as i64, a[2]),
            _ => return attributes::by_number(number, a),
        }
    };
    Some(result)
}

fn refuse() -> isize {
    fail(libc::EPERM)
}

/// Blocks what a handler has blocked while it runs, but for SIGSYS.  The kernel gives the mask of before
/// back at the end of this signal.
fn block(action: &Action) {
    let mask = (&raw const action.sa_mask).cast::<u64>();
    // SAFETY: the kernel's signal set has 64 bits.
    let mask = unsafe { mask.read() } & !(1 << (libc::SIGSYS - 1));
    signals::block(mask);
}

/// Passes a signal from any other address to the program's handler.
fn pass_on(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    let kept = PROGRAMS.load(Ordering::SeqCst);
    // SAFETY: it was made by us and is never freed.
    let theirs = unsafe { kept.as_ref() };
    // SAFETY: the kernel gives it to a handler.
    let is_sent = unsafe { (*info).si_code } <= 0;
    match theirs.map_or(libc::SIG_DFL, |action| action.sa_sigaction) {
        // The kernel gives a signal of its own also to a program that ignores it.
        libc::SIG_IGN if is_sent => {}
        libc::SIG_DFL | libc::SIG_IGN => {
            // SAFETY: all zeroes says that; the signal that comes next ends the program.
            unsafe {
                let default: Action = std::mem::zeroed();
                real::sigaction(signal, &raw const default, std::ptr::null_mut());
                libc::raise(signal);
            }
        }
        handler => {
            // SAFETY: all zeroes is the default; the program has given the handler for this.
            unsafe {
                if let Some(action) = theirs {
                    if action.sa_flags & libc::SA_RESETHAND != 0 {
                        let default = Box::into_raw(Box::new(std::mem::zeroed()));
                        // The program may have set another one meanwhile.
                        let (set, is) = (Ordering::SeqCst, Ordering::SeqCst);
                        let _ = PROGRAMS.compare_exchange(kept, default, set, is);
                    }
                    block(action);
                }
                let f: extern "C" fn(c_int, *mut siginfo_t, *mut c_void) =
                    std::mem::transmute(handler);
                f(signal, info, context);
            }
        }
    }
}

/// # Safety
/// The contract of sigaction(2) applies.
#[no_mangle]
pub unsafe extern "C-unwind" fn sigaction(
    signal: c_int,
    new: *const Action,
    old: *mut Action,
) -> c_int {
    // What a child of vfork sets is its own, and `PROGRAMS` is its parent's.
    if signal != libc::SIGSYS || real::is_vforked() {
        // SAFETY: the caller guarantees it.
        return unsafe { signals::set(signal, new, old) };
    }
    if !catches() {
        // SAFETY: the caller guarantees it.
        return unsafe { set_before(new, old) };
    }
    // SAFETY: the caller guarantees it; an action that was kept is never freed.
    unsafe {
        let before = PROGRAMS.load(Ordering::SeqCst);
        if let Some(new) = new.as_ref() {
            PROGRAMS.store(Box::into_raw(Box::new(*new)), Ordering::SeqCst);
        }
        if let (Some(old), Some(before)) = (old.as_mut(), before.as_ref()) {
            *old = *before;
        }
    }
    0
}

macro_rules! signal_functions {
    ($($name:ident: $flags:expr, $masks:expr;)+) => {$(
        /// # Safety
        /// The contract of signal(2) applies.
        #[no_mangle]
        pub unsafe extern "C-unwind" fn $name(
            signal: c_int,
            handler: libc::sighandler_t,
        ) -> libc::sighandler_t {
            // SAFETY: all zeroes is a value of both.
            unsafe {
                let (mut new, mut old): (Action, Action) = (std::mem::zeroed(), std::mem::zeroed());
                new.sa_sigaction = handler;
                new.sa_flags = $flags;
                if $masks {
                    libc::sigaddset(&raw mut new.sa_mask, signal);
                }
                match sigaction(signal, &raw const new, &raw mut old) {
                    0 => old.sa_sigaction,
                    _ => libc::SIG_ERR,
                }
            }
        }
    )+};
}
/// The disposition by which sigset(3) blocks a signal.
const SIG_HOLD: libc::sighandler_t = 2;

/// # Safety
/// The contract of sigset(3) applies.
#[no_mangle]
pub unsafe extern "C-unwind" fn sigset(
    signal: c_int,
    handler: libc::sighandler_t,
) -> libc::sighandler_t {
    // SAFETY: the caller guarantees it; all zeroes is a value of each.
    unsafe {
        let (mut new, mut old): (Action, Action) = (std::mem::zeroed(), std::mem::zeroed());
        let (mut one, mut before): (libc::sigset_t, libc::sigset_t) =
            (std::mem::zeroed(), std::mem::zeroed());
        if libc::sigaddset(&raw mut one, signal) != 0 {
            return libc::SIG_ERR;
        }
        new.sa_sigaction = handler;
        let (new, how) = match handler {
            SIG_HOLD => (std::ptr::null(), libc::SIG_BLOCK),
            _ => (&raw const new, libc::SIG_UNBLOCK),
        };
        if sigaction(signal, new, &raw mut old) != 0
            || signals::sigprocmask(how, &raw const one, &raw mut before) != 0
        {
            return libc::SIG_ERR;
        }
        match libc::sigismember(&raw const before, signal) {
            1 => SIG_HOLD,
            _ => old.sa_sigaction,
        }
    }
}

/// # Safety
/// The contract of sigaction(2) applies.
#[no_mangle]
pub unsafe extern "C-unwind" fn __sigaction(
    signal: c_int,
    new: *const Action,
    old: *mut Action,
) -> c_int {
    // SAFETY: the caller guarantees it.
    unsafe { sigaction(signal, new, old) }
}

signal_functions! {
    signal: libc::SA_RESTART, true;
    bsd_signal: libc::SA_RESTART, true;
    ssignal: libc::SA_RESTART, true;
    sysv_signal: libc::SA_RESETHAND | libc::SA_NODEFER, false;
    __sysv_signal: libc::SA_RESETHAND | libc::SA_NODEFER, false;
}

/// # Safety
/// The contract of the C library's function applies, with valid arguments of the system call.
#[no_mangle]
pub unsafe extern "C-unwind" fn syscall(
    n: std::ffi::c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> std::ffi::c_long {
    if let Some(result) = by_number(n, [a, b, c, d, e, f]) {
        return result as std::ffi::c_long;
    }
    // SAFETY: the caller guarantees it.  The kernel refuses descriptors of ours.
    let result = unsafe { raw(n, [a, b, c, d, e, f]) };
    if result == -libc::EBADF as isize && state::is_ours(a as c_int) && !guarded::is_inside() {
        once(
            About::Call,
            format_args!(
            "syscall({n}) of a file that is mapped onto the pool is refused: it would go past its \
             memory; use the C library's functions, or leave it out of --files"
        ),
        );
    }
    told(result) as std::ffi::c_long
}
