// SPDX-License-Identifier: MIT OR Apache-2.0
//! Signal handlers and thread cancellation do not interrupt the library.
//!
//! A handler may call functions that the library replaces, leave by siglongjmp, or end the
//! program.  So none may run while the thread holds a lock or memory of the library.  The
//! kernel calls a function of ours instead of each handler.  If the library is busy in the
//! thread ([`hold`]), that function records the signal, blocks all others, and returns.
//! Afterwards the thread sends itself SIGSYS, whose handler (`trap.rs`) calls the program's handler
//! for the recorded signal and has the mask restored.  The signal itself is not sent again: it would
//! come after others that were sent later, or be lost (RLIMIT_SIGPENDING).
//!
//! Several may be recorded.  The kernel begins the handlers of all signals that are pending, one on
//! top of the other, before the first of them runs.  And a signal that interrupts another handler, as
//! the C library's for setuid, is blocked until that handler returns, and no longer.
//!
//! Signals of faults arrive as usual.  The library does not know a handler that a program sets
//! by a system call of its own.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{compiler_fence, AtomicBool, AtomicPtr, Ordering};
use std::sync::OnceLock;

use libc::{sigaction as Action, siginfo_t, sigset_t, ucontext_t};

use crate::jumps;
use crate::left;
use crate::planted::{self, Planted};
use crate::real::{self, raw};
use crate::recorded::Kept;

const SIGNALS: usize = 65;
const FAULTS: [c_int; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];

/// The program's action for a signal.  It is never freed, because a handler may be using it.
struct Known {
    action: Action,
    next: *const Known,
}

/// The current action of each signal, and all earlier ones.
static NOW: [AtomicPtr<Known>; SIGNALS] = [const { AtomicPtr::new(std::ptr::null_mut()) }; SIGNALS];
static ALL: [AtomicPtr<Known>; SIGNALS] = [const { AtomicPtr::new(std::ptr::null_mut()) }; SIGNALS];

/// A running handler, as an address in the frame of the function that called it.
#[derive(Clone, Copy)]
struct Began {
    at: usize,
    /// Its alternate stack; twice the same address: the thread's own stack.
    stack: (usize, usize),
}

/// The handlers of a thread that have interrupted each other, the outermost first.
struct Running {
    all: [Cell<Began>; NESTED],
    /// Their number.  Those beyond the table are only counted.
    depth: Cell<usize>,
}
const NESTED: usize = 16;

impl Running {
    fn last(&self) -> Option<Began> {
        let last = self.depth.get().min(NESTED).checked_sub(1)?;
        Some(self.all[last].get())
    }

    fn begin(&self, began: Began) {
        let depth = self.depth.get();
        let set = || {
            if let Some(one) = self.all.get(depth) {
                one.set(began);
            }
        };
        set();
        compiler_fence(Ordering::SeqCst);
        self.depth.set(depth + 1);
        compiler_fence(Ordering::SeqCst);
        // A handler that ran between the two may have used the entry.
        set();
    }

    /// Removes all handlers without this address below them on the stack: a jump has left them.
    fn keep_above(&self, address: usize) {
        while self.last().is_some_and(|last| !last.is_above(address)) {
            self.depth.set(self.depth.get() - 1);
        }
    }
}

impl Began {
    /// Whether an address is in the stack below it, where its own calls are.
    fn is_above(&self, address: usize) -> bool {
        // The greatest depth of a handler's own calls.
        const DEEP: usize = 8 << 20;
        let (from, to) = self.stack;
        match from == to {
            true => address <= self.at && self.at - address < DEEP,
            false => (from..to).contains(&address) && address <= self.at,
        }
    }
}

thread_local! {
    static BUSY: Cell<u32> = const { Cell::new(0) };
    static CANCEL: Cell<c_int> = const { Cell::new(0) };
    static KEPT: Kept = const { Kept::new() };
    static RUNNING: Running = const {
        Running {
            all: [const { Cell::new(Began { at: 0, stack: (0, 0) }) }; NESTED],
            depth: Cell::new(0),
        }
    };
}

extern "C-unwind" {
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
    fn pthread_testcancel();
}

/// Ends a thread that is to be cancelled.  The caller must have nothing to drop.
pub fn cancellation_point() {
    if BUSY.try_with(Cell::get).unwrap_or(1) == 0 {
        // SAFETY: it may unwind, and the functions that the program calls allow that.
        unsafe { pthread_testcancel() };
    }
}

/// While this lives, no handler runs in the thread, and the thread is not cancelled.
#[derive(Debug)]
pub struct Busy(std::marker::PhantomData<*const ()>);

pub fn hold() -> Busy {
    let _ = BUSY.try_with(|busy| {
        let depth = busy.get();
        // First: a handler that runs beside the rest would find no cancellation, or end the thread.
        busy.set(depth + 1);
        compiler_fence(Ordering::SeqCst);
        if depth == 0 {
            let mut old = 0;
            // SAFETY: the address for the old state is valid.
            unsafe { pthread_setcancelstate(1, &raw mut old) };
            let _ = CANCEL.try_with(|cancel| cancel.set(old));
        }
    });
    compiler_fence(Ordering::SeqCst);
    Busy(std::marker::PhantomData)
}

impl Drop for Busy {
    fn drop(&mut self) {
        compiler_fence(Ordering::SeqCst);
        let _ = BUSY.try_with(|busy| {
            if busy.get() > 1 {
                busy.set(busy.get() - 1);
                return;
            }
            let old = CANCEL.try_with(Cell::get).unwrap_or(0);
            // SAFETY: it restores the earlier state.
            unsafe { pthread_setcancelstate(old, std::ptr::null_mut()) };
            // A signal that comes from here on waits for those that were recorded.
            if has_kept() {
                block_others();
            }
            busy.set(0);
            compiler_fence(Ordering::SeqCst);
            if has_kept() {
                handle_kept();
            }
        });
    }
}

/// Releases what a guard held that was forgotten.
pub fn let_go() {
    drop(Busy(std::marker::PhantomData));
}

/// Runs a call that may wait long for another process, while signals arrive as usual.  A
/// handler that jumps away leaves the caller's state as it is.
pub fn let_through<R>(f: impl FnOnce() -> R) -> R {
    let depth = BUSY.try_with(Cell::get).unwrap_or(0);
    if depth > 0 {
        let _ = BUSY.try_with(|busy| busy.set(1));
        let_go();
    }
    let result = f();
    if depth > 0 {
        std::mem::forget(hold());
        let _ = BUSY.try_with(|busy| busy.set(depth));
    }
    result
}

/// Called in a handler: removes these signals from the mask that the thread gets when its work in
/// the library is over.
pub fn unblock_kept(signals: u64) {
    let _ = KEPT.try_with(|kept| kept.mask.set(kept.mask.get() & !signals));
}

fn has_kept() -> bool {
    KEPT.try_with(Kept::has_any).unwrap_or(false)
}

/// The signals that a thread blocks while it works in the library, or has recorded one: all but those
/// of faults and those of the C library, which waits for their handlers with its locks held.
pub const BLOCKED: u64 = {
    let mut all = !(LIBRARYS | NOT_BLOCKED);
    let mut at = 0;
    while at < FAULTS.len() {
        all &= !(1 << (FAULTS[at] - 1));
        at += 1;
    }
    all
};
/// Nobody can block these.
const NOT_BLOCKED: u64 = 1 << (libc::SIGKILL - 1) | 1 << (libc::SIGSTOP - 1);

/// Changes the mask of this thread.  Returns the earlier one.
fn change_mask(how: c_int, mask: u64) -> u64 {
    let mut before = 0u64;
    let a = [how as usize, (&raw const mask).addr(), (&raw mut before).addr(), 8, 0, 0];
    // SAFETY: both sets are there for the call.
    unsafe { raw(libc::SYS_rt_sigprocmask, a) };
    before
}

/// Sets the mask of this thread.  Returns the earlier one.
pub fn set_mask(mask: u64) -> u64 {
    change_mask(libc::SIG_SETMASK, mask)
}

/// Adds to the mask of this thread.
pub fn block(mask: u64) {
    change_mask(libc::SIG_BLOCK, mask);
}

/// Runs `f` with the program's signals blocked.
pub fn blocked<R>(f: impl FnOnce() -> R) -> R {
    let before = set_mask(BLOCKED);
    let result = f();
    set_mask(before);
    result
}

/// Blocks all other signals until the recorded ones are handled.  They are not blocked yet if those
/// have interrupted another handler.
#[cold]
fn block_others() {
    let before = set_mask(BLOCKED);
    if before != BLOCKED {
        let _ = KEPT.try_with(|kept| kept.mask.set(before & !LIBRARYS));
    }
}

/// Handles the recorded signals.  All others are blocked until then.
#[cold]
fn handle_kept() {
    let errno = real::errno();
    block_others();
    let is_handled = KEPT.try_with(|kept| {
        if !CARRIES.load(Ordering::SeqCst) {
            return false;
        }
        kept.carried.set(true);
        // SAFETY: the signal has our handler, and is not blocked.
        unsafe {
            let (process, thread) = (real::process() as usize, real::thread() as usize);
            raw(libc::SYS_tgkill, [process, thread, libc::SIGSYS as usize, 0, 0, 0]);
        }
        // The handler has run by now.
        !kept.carried.replace(false)
    });
    if !is_handled.unwrap_or(false) {
        send_again();
    }
    // SAFETY: errno belongs to this thread.
    unsafe { *libc::__errno_location() = errno };
}

/// Sends the recorded signals again, where nothing handles them at once.
fn send_again() {
    let _ = KEPT.try_with(|kept| {
        while let Some((signal, info)) = kept.take() {
            send(signal, &raw const info);
        }
        set_mask(kept.mask.get());
    });
}

/// Sends a signal to this thread.
fn send(signal: c_int, info: *const siginfo_t) {
    let (process, thread) = (real::process() as usize, real::thread() as usize);
    let a = [process, thread, signal as usize, info.addr(), 0, 0];
    // SAFETY: the record is there for the call.
    unsafe { raw(libc::SYS_rt_tgsigqueueinfo, a) };
}

/// Has SIGSYS carry recorded signals: the library handles it from the first handler of the program on.
static CATCH: OnceLock<fn()> = OnceLock::new();
static CARRIES: AtomicBool = AtomicBool::new(false);

/// Sets what has the library handle SIGSYS.
pub fn catch_by(catch: fn()) {
    let _ = CATCH.set(catch);
}

/// From now on the handler of SIGSYS calls [`carries`].
pub fn are_carried() {
    CARRIES.store(true, Ordering::SeqCst);
}

/// Called by the handler of SIGSYS: handles the recorded signals, if the thread has sent itself this
/// one for that.  The interrupted code goes on with the mask that it had.
///
/// # Safety
/// It is the context that the kernel has given to the handler.
pub unsafe fn carries(context: *mut c_void) -> bool {
    let found = KEPT.try_with(|kept| kept.carried.replace(false).then(|| kept.mask.get()));
    let Some(mask) = found.ok().flatten() else { return false };
    // SAFETY: the caller guarantees it, and the kernel's signal set has 64 bits.  The stored actions
    // are never freed.
    unsafe {
        let after = (&raw mut (*context.cast::<ucontext_t>()).uc_sigmask).cast::<u64>();
        after.write(mask);
        // A handler that jumps away leaves the rest to the end of the thread's next call.
        while let Some((signal, mut info)) = KEPT.try_with(Kept::take).ok().flatten() {
            let Some(known) = NOW[signal as usize].load(Ordering::SeqCst).as_ref() else {
                continue;
            };
            let own = match known.action.sa_flags & libc::SA_NODEFER {
                0 => 1 << (signal - 1),
                _ => 0,
            };
            // Another one of a kind comes after the one that was recorded.
            let rest = KEPT.try_with(Kept::signals).unwrap_or(0);
            set_mask((after.read() | words(&known.action)[2] | own | rest) & !NEVER);
            let on_its_stack = known.action.sa_flags & libc::SA_ONSTACK != 0;
            run(known, signal, &raw mut info, context, on_its_stack);
        }
    }
    true
}

/// Whether the thread runs a signal handler that it has not left by a jump.  A jump that
/// [`jumps_to`] has not seen is a compiler's own, or goes to another context.  After such a jump,
/// deep calls may be taken for a handler's.
pub fn in_handler() -> bool {
    let last = RUNNING.try_with(Running::last).ok().flatten();
    let here = (&raw const last).addr();
    last.is_some_and(|last| last.is_above(here))
}

/// Notes a jump to where setjmp(3) filled `set`: the handlers that the thread leaves by it run
/// no more.  If `set` cannot be read, its own address stands for the target.  A handler that
/// jumps within itself is then recognized if it has `set` on its own stack.
unsafe fn jumps_to(set: *mut c_void) {
    // SAFETY: the caller guarantees it.
    let to = unsafe { jumps::stack_of(set) }.unwrap_or(set.addr());
    let _ = RUNNING.try_with(|running| running.keep_above(to));
    if left::any() {
        let _busy = hold();
        left::leave(to, handlers(), are_apart);
    }
}

/// The handlers that run in the thread.
fn handlers() -> usize {
    RUNNING.try_with(|running| running.depth.get()).unwrap_or(0)
}

/// Whether one of two addresses is in the thread's alternate stack, and the other is not.
fn are_apart(a: usize, b: usize) -> bool {
    // SAFETY: all zeroes is a value of it, and it is there for the call.
    let stack = unsafe {
        let mut stack: libc::stack_t = std::mem::zeroed();
        raw(libc::SYS_sigaltstack, [0, (&raw mut stack).addr(), 0, 0, 0, 0]);
        stack
    };
    let from = stack.ss_sp.addr();
    let has = |at: usize| (from..from + stack.ss_size).contains(&at);
    has(a) != has(b)
}

/// Runs `f` while signals arrive as usual.  A handler that jumps away has `what` dropped.  Returns
/// none of it if it was dropped all the same.
pub fn let_through_with<T: 'static, R>(
    what: Box<T>,
    f: impl FnOnce(&T) -> R,
) -> (Option<Box<T>>, R) {
    let _busy = hold();
    left::with(what, handlers(), |what| let_through(|| f(what)))
}

macro_rules! jumps {
    ($($name:ident)+) => {$(
        /// # Safety
        /// The contract of longjmp(3) applies.
        #[no_mangle]
        pub unsafe extern "C-unwind" fn $name(set: *mut c_void, value: c_int) -> ! {
            // SAFETY: the caller guarantees it.  Nothing here has to be dropped.
            unsafe {
                jumps_to(set);
                real::$name(set, value)
            }
        }
    )+};
}
jumps!(longjmp _longjmp siglongjmp __longjmp_chk);

extern "C-unwind" fn arrived(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    if BUSY.try_with(Cell::get).unwrap_or(0) > 0 {
        // SAFETY: the kernel passes both to a handler of this kind, and its signal set has 64
        // bits.
        unsafe {
            // Those that interrupt this function are recorded before, and this one's mask last.
            set_mask(BLOCKED);
            let mask = (&raw mut (*context.cast::<ucontext_t>()).uc_sigmask).cast::<u64>();
            let is_kept = KEPT.try_with(|kept| {
                // It may have interrupted the C library's own handler (setuid), which blocks its signal.
                kept.mask.set(mask.read() & !LIBRARYS);
                kept.add(signal, info)
            });
            mask.write(BLOCKED);
            if !is_kept.unwrap_or(false) {
                // It comes when all are unblocked again.
                send(signal, info);
            }
        }
        return;
    }
    // SAFETY: the stored actions are never freed; the kernel passes the rest to such a handler.
    unsafe {
        let Some(known) = NOW[signal as usize].load(Ordering::SeqCst).as_ref() else { return };
        run(known, signal, info, context, false);
    }
}

type Handler = extern "C-unwind" fn(c_int, *mut siginfo_t, *mut c_void);

// Calls a handler on another stack.  The unwinder finds the way back.
#[cfg(target_arch = "x86_64")]
std::arch::global_asm!(
    ".pushsection .text",
    ".hidden forebay_map_run_on_stack",
    ".globl forebay_map_run_on_stack",
    "forebay_map_run_on_stack:",
    ".cfi_startproc",
    "push rbp",
    ".cfi_def_cfa_offset 16",
    ".cfi_offset rbp, -16",
    "mov rbp, rsp",
    ".cfi_def_cfa_register rbp",
    "mov rsp, r8",
    "call rcx",
    "mov rsp, rbp",
    "pop rbp",
    ".cfi_def_cfa rsp, 8",
    "ret",
    ".cfi_endproc",
    ".popsection",
);

#[cfg(target_arch = "aarch64")]
std::arch::global_asm!(
    ".pushsection .text",
    ".hidden forebay_map_run_on_stack",
    ".globl forebay_map_run_on_stack",
    "forebay_map_run_on_stack:",
    ".cfi_startproc",
    "stp x29, x30, [sp, -16]!",
    ".cfi_def_cfa_offset 16",
    ".cfi_offset x29, -16",
    ".cfi_offset x30, -8",
    "mov x29, sp",
    ".cfi_def_cfa_register x29",
    "mov sp, x4",
    "blr x3",
    "mov sp, x29",
    "ldp x29, x30, [sp], 16",
    ".cfi_def_cfa sp, 0",
    "ret",
    ".cfi_endproc",
    ".popsection",
);

extern "C-unwind" {
    fn forebay_map_run_on_stack(
        signal: c_int,
        info: *mut siginfo_t,
        context: *mut c_void,
        handler: Handler,
        top: usize,
    );
}

/// Calls the program's handler.  `on_its_stack`: on the alternate stack, if the thread has one.
///
/// # Safety
/// The context is one that the kernel has given to a handler, and the record one of this signal.
unsafe fn run(
    known: &Known,
    signal: c_int,
    info: *mut siginfo_t,
    context: *mut c_void,
    on_its_stack: bool,
) {
    if known.action.sa_flags & libc::SA_RESETHAND != 0 {
        // SAFETY: all zeroes is the default.
        unsafe {
            let default: Action = std::mem::zeroed();
            real::sigaction(signal, &raw const default, std::ptr::null_mut());
        }
    }
    let here = (&raw const known).addr();
    // SAFETY: the caller guarantees it.
    let stack = unsafe { (*context.cast::<ucontext_t>()).uc_stack };
    let (from, to) = (stack.ss_sp.addr(), stack.ss_sp.addr() + stack.ss_size);
    let is_there = (from..to).contains(&here);
    let goes_there = on_its_stack && from < to && !is_there;
    let began = match (is_there, goes_there) {
        (false, false) => Began { at: here, stack: (0, 0) },
        (_, true) => Began { at: to, stack: (from, to) },
        (true, _) => Began { at: here, stack: (from, to) },
    };
    let depth = RUNNING.try_with(|running| {
        let depth = running.depth.get();
        running.begin(began);
        depth
    });
    // SAFETY: the program has set it as its handler; without SA_SIGINFO it reads only the first
    // argument.  The program has given the stack to its handlers.
    unsafe {
        let handler: Handler = std::mem::transmute(known.action.sa_sigaction);
        match goes_there {
            true => forebay_map_run_on_stack(signal, info, context, handler, to & !15),
            false => handler(signal, info, context),
        }
    }
    if let Ok(depth) = depth {
        let _ = RUNNING.try_with(|running| running.depth.set(depth));
    }
}

fn words(action: &Action) -> [u64; 3] {
    // SAFETY: the kernel's signal set has 64 bits.
    let mask = unsafe { (&raw const action.sa_mask).cast::<u64>().read() };
    [action.sa_sigaction as u64, action.sa_flags as u64, mask]
}

/// Returns a record of an action that is kept forever: programs set few different actions, but
/// perhaps often.
fn known(signal: usize, action: &Action) -> *mut Known {
    let all = &ALL[signal];
    let mut head = all.load(Ordering::SeqCst);
    // SAFETY: records in the list are never freed.
    unsafe {
        let mut at: *const Known = head;
        while let Some(one) = at.as_ref() {
            if words(&one.action) == words(action) {
                return at.cast_mut();
            }
            at = one.next;
        }
        let new = Box::into_raw(Box::new(Known { action: *action, next: head }));
        loop {
            match all.compare_exchange(head, new, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return new,
                Err(now) => {
                    (*new).next = now;
                    head = now;
                }
            }
        }
    }
}

/// # Safety
/// It is an action of a program.
unsafe fn with_allowed_mask(action: &Action) -> Action {
    // SAFETY: the caller guarantees it.
    let mask = unsafe { allowed(&raw const action.sa_mask) };
    Action { sa_mask: mask.unwrap_or(action.sa_mask), ..*action }
}

fn is_ours(action: &Action) -> bool {
    action.sa_sigaction == arrived as Handler as usize
}

/// The signals that no thread of the program blocks: if the filter of system calls reports a call
/// to a thread that blocks SIGSYS, the kernel ends the program.
const NEVER: u64 = 1 << (libc::SIGSYS - 1);
/// The signals that the C library keeps for itself, and never blocks for a program.
const LIBRARYS: u64 = 1 << 31 | 1 << 32;

/// A program's mask without the signals that it may not block.
///
/// # Safety
/// It is null, or a set of signals.
unsafe fn allowed(mask: *const sigset_t) -> Option<sigset_t> {
    // SAFETY: the caller guarantees it; the kernel's set has 64 bits.
    unsafe {
        let mut all = mask.as_ref().copied()?;
        if real::may_map() && !planted::is(Planted::SigsysBlocked) {
            let first = (&raw mut all).cast::<u64>();
            first.write(first.read() & !NEVER);
        }
        Some(all)
    }
}

/// Calls `f` with such a mask.
///
/// # Safety
/// It is null, or a set of signals.
pub unsafe fn with_mask<R>(mask: *const sigset_t, f: impl FnOnce(*const sigset_t) -> R) -> R {
    // SAFETY: the caller guarantees it.
    let all = unsafe { allowed(mask) };
    f(all.as_ref().map_or(std::ptr::null(), std::ptr::from_ref))
}

/// # Safety
/// The contract of pthread_sigmask(3) applies.
#[no_mangle]
pub unsafe extern "C-unwind" fn pthread_sigmask(
    how: c_int,
    new: *const sigset_t,
    old: *mut sigset_t,
) -> c_int {
    // SAFETY: the caller guarantees it; the kernel's set has 64 bits.
    let done = unsafe {
        with_mask(new, |new| {
            let new = new.as_ref().map(|new| std::ptr::from_ref(new).cast::<u64>().read());
            let new = match how {
                libc::SIG_UNBLOCK => new,
                _ => new.map(|new| new & !LIBRARYS),
            };
            let new = new.as_ref().map_or(0, |new| std::ptr::from_ref(new).addr());
            raw(libc::SYS_rt_sigprocmask, [how as usize, new, old.addr(), 8, 0, 0])
        })
    };
    -done as c_int
}

/// # Safety
/// The contract of sigprocmask(2) applies.
#[no_mangle]
pub unsafe extern "C-unwind" fn sigprocmask(
    how: c_int,
    new: *const sigset_t,
    old: *mut sigset_t,
) -> c_int {
    // SAFETY: the caller guarantees it.
    match unsafe { pthread_sigmask(how, new, old) } {
        0 => 0,
        errno => real::fail(errno),
    }
}

/// # Safety
/// The contract of sigsuspend(2) applies.
#[no_mangle]
pub unsafe extern "C-unwind" fn sigsuspend(mask: *const sigset_t) -> c_int {
    // SAFETY: the caller guarantees it.
    unsafe { with_mask(mask, |mask| real::sigsuspend(mask)) }.unwrap_or(-1)
}

/// At the start: the caller of the program may have blocked them.
pub fn unblock_never() {
    let never = NEVER;
    let a = [libc::SIG_UNBLOCK as usize, (&raw const never).addr(), 0, 8, 0, 0];
    // SAFETY: the set is there for the call.
    unsafe { raw(libc::SYS_rt_sigprocmask, a) };
}

/// Implements sigaction(2) for signals that are not faults.
///
/// # Safety
/// The contract of sigaction(2) applies.
pub unsafe fn set(signal: c_int, new: *const Action, old: *mut Action) -> c_int {
    let index = usize::try_from(signal).unwrap_or(0);
    if !(1..SIGNALS).contains(&index) || FAULTS.contains(&signal) {
        // SAFETY: the caller guarantees it.
        return unsafe {
            let given = new.as_ref().map(|new| with_allowed_mask(new));
            let given = given.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
            real::sigaction(signal, given, old)
        };
    }
    let _busy = hold();
    let before = NOW[index].load(Ordering::SeqCst);
    // SAFETY: the caller guarantees it; all zeroes is a valid action.
    unsafe {
        let mut given: Option<Action> = new.as_ref().copied();
        if let Some(given) = &mut given {
            // The handlers of a child of vfork are its own, and `NOW` is its parent's.
            let is_handler = ![libc::SIG_DFL, libc::SIG_IGN].contains(&given.sa_sigaction);
            if is_handler && !real::is_vforked() {
                CATCH.get().into_iter().for_each(|catch| catch());
                NOW[index].store(known(index, given), Ordering::SeqCst);
                given.sa_sigaction = arrived as Handler as usize;
                given.sa_flags = given.sa_flags & !libc::SA_RESETHAND | libc::SA_SIGINFO;
            }
        }
        let mut was: Action = std::mem::zeroed();
        let given = given.as_ref().map(|given| with_allowed_mask(given));
        let given = given.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        let done = real::sigaction(signal, given, &raw mut was);
        if done != 0 {
            NOW[index].store(before, Ordering::SeqCst);
            return done;
        }
        if let Some(old) = old.as_mut() {
            *old = match before.as_ref() {
                Some(before) if is_ours(&was) => before.action,
                _ => was,
            };
        }
    }
    0
}
