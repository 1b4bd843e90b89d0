// SPDX-License-Identifier: MIT OR Apache-2.0
//! The addresses at which files are mapped, and a filter of the kernel (seccomp).  The filter is
//! for system calls that a program makes there by an instruction of its own, past the C library.
//! The kernel does not make such a call, and reports it to the library as a signal (`trap.rs`).
//!
//! ```text
//!   0x1100_0000_0000            one window of 1 TiB: this process's          0x2900_0000_0000
//!   |  window 0  |  window 1  |  .. 8 GiB free, then reservations ..  |  ..  |  window 23  |
//! ```
//!
//! A filter cannot be removed, and children inherit it, even across exec.  A program there has
//! other memory, and the library may be absent or lie elsewhere.  So a filter looks for the
//! addresses of one window only.  The kernel places nothing in a window by itself.  Windows lie
//! below the place where its search from the bottom begins (a third of the address space), and far
//! above a program that is not relocated.  A process takes the first window for which there is no
//! filter.
//!
//! The filter lets the library's own calls through: it knows the address of their instruction.

use std::ffi::{c_int, c_void};
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::OnceLock;

use libc::sock_filter;

use crate::planted::{self, Planted};
use crate::real::raw;

const FIRST: usize = 0x1100 << 32;
const BYTES: usize = 1 << 40;
const WINDOWS: usize = 24;
/// The filter adds only the upper halves of an address and a length.  So its sum may be too small
/// by this much.
const FREE: usize = 8 << 30;

/// The start of this process's window; 0: it has none yet.
static WINDOW: AtomicUsize = AtomicUsize::new(0);

type Install = fn(Range<usize>) -> io::Result<()>;
/// Installs the handler of what the filter reports (`trap.rs`), given the library's instructions.
static HANDLER: OnceLock<Install> = OnceLock::new();

/// At the start.
pub fn handled_by(install: Install) {
    let _ = HANDLER.set(install);
}

/// Whether a range is in the window, or reaches into it.
pub fn is_within(from: usize, len: usize) -> bool {
    let start = WINDOW.load(Ordering::Relaxed);
    // Some upper bits of a pointer may be a tag, which the kernel ignores.
    let from = from & ((1 << 48) - 1);
    start != 0 && from < start + BYTES && from.saturating_add(len.max(1)) > start
}

/// The range of the library's instructions.
pub fn text() -> Option<Range<usize>> {
    unsafe extern "C" fn look(
        info: *mut libc::dl_phdr_info,
        _: usize,
        found: *mut c_void,
    ) -> c_int {
        let me = text as fn() -> Option<Range<usize>> as usize;
        // SAFETY: dl_iterate_phdr's data is valid during the call, and `found` is ours.
        unsafe {
            let headers = std::slice::from_raw_parts((*info).dlpi_phdr, (*info).dlpi_phnum.into());
            for header in headers {
                let start = (*info).dlpi_addr as usize + header.p_vaddr as usize;
                let range = start..start + header.p_memsz as usize;
                let runs = header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_X != 0;
                if runs && range.contains(&me) {
                    *found.cast::<Option<Range<usize>>>() = Some(range);
                    return 1;
                }
            }
        }
        0
    }
    let mut found: Option<Range<usize>> = None;
    // SAFETY: as said there.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut found).cast()) };
    found
}

/// Called before the first file is mapped.  All files mapped from now on lie in the window, and the
/// filter sees calls there that bypass the library.
pub fn take() -> Result<(), String> {
    if WINDOW.load(Ordering::Relaxed) != 0 {
        return Ok(());
    }
    let text = text().ok_or("its own instructions are not found")?;
    let install = HANDLER.get().ok_or("it has no handler of SIGSYS")?;
    install(text.clone()).map_err(|e| format!("a handler of SIGSYS: {e}"))?;
    let free = |start: &usize| {
        // An msync of length 0 does nothing.  If a filter is installed, its handler answers.
        // SAFETY: the call does nothing.
        unsafe { raw(libc::SYS_msync, [*start, 0, 0, 0, 0, 0]) == 0 }
    };
    let mut all = (0..WINDOWS).map(|i| FIRST + i * BYTES);
    let start = all.find(free).ok_or_else(|| {
        format!("{WINDOWS} programs that run each other have had such files: no addresses are left")
    })?;
    if !planted::is(Planted::NoFilter) {
        filter(start, &text).map_err(|e| {
            format!(
                "the kernel takes no filter of system calls, without which some are not seen: {e}"
            )
        })?;
    }
    WINDOW.store(start, Ordering::Relaxed);
    forebay_map::reserve_within(start + FREE..start + BYTES);
    Ok(())
}

/// Lets the kernel make and use no io_uring from now on (EPERM), in this process and in its children.
/// A kernel answers so where an administrator has turned it off (kernel.io_uring_disabled).  A ring that
/// another process passes uses the memory of who enters it.
pub fn refuse_rings() -> io::Result<()> {
    let refuse = step(RETURN, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32);
    let mut code = vec![step(LOAD, ARCHITECTURE), skip_if(EQUAL, ARCH, 1), ALLOW];
    code.extend(NUMBER_OF_64);
    let calls = [libc::SYS_io_uring_setup, libc::SYS_io_uring_enter, libc::SYS_io_uring_register];
    code.extend(calls.into_iter().flat_map(|n| [unless(EQUAL, n as u32, 1), refuse]));
    code.push(ALLOW);
    install(&code)
}

/// Installs the filter for all threads of this process, for later threads, and for children.
fn filter(start: usize, text: &Range<usize>) -> io::Result<()> {
    install(&program(start, text))
}

fn install(code: &[sock_filter]) -> io::Result<()> {
    let program = libc::sock_fprog { len: code.len() as u16, filter: code.as_ptr().cast_mut() };
    let install = || {
        let flags = libc::SECCOMP_FILTER_FLAG_TSYNC | libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW;
        let how = libc::SECCOMP_SET_MODE_FILTER as usize;
        let a = [how, flags as usize, (&raw const program).addr(), 0, 0, 0];
        // SAFETY: the program is there for the call.
        match unsafe { raw(libc::SYS_seccomp, a) } {
            0 => Ok(()),
            thread @ 1.. => {
                Err(io::Error::other(format!("thread {thread} has another filter already")))
            }
            e => Err(io::Error::from_raw_os_error(-e as c_int)),
        }
    };
    match install() {
        // Only the administrator may install a filter without giving up set-user-ID programs.
        Err(e) if e.raw_os_error() == Some(libc::EACCES) => {
            let a = [libc::PR_SET_NO_NEW_PRIVS as usize, 1, 0, 0, 0, 0];
            // SAFETY: it takes numbers.
            match unsafe { raw(libc::SYS_prctl, a) } {
                0 => install(),
                e => Err(io::Error::from_raw_os_error(-e as c_int)),
            }
        }
        done => done,
    }
}

/// A call that changes memory or makes it durable, and the position of its addresses.
struct Rule {
    number: i64,
    from: u8,
    len: Option<u8>,
    /// The rule holds only if this argument has these bits.
    only: Option<(u8, u32)>,
    /// The rule does not hold if this argument has these bits.
    but: Option<(u8, u32)>,
}

const fn rule(number: i64, from: u8, len: u8) -> Rule {
    Rule { number, from, len: Some(len), only: None, but: None }
}

const SHM_REMAP: u32 = 0o40000;
const MSEAL: i64 = 462;

/// `trap::by_number` handles each of these calls.
const RULES: &[Rule] = &[
    rule(libc::SYS_msync, 0, 1),
    rule(libc::SYS_munmap, 0, 1),
    rule(libc::SYS_mremap, 0, 1),
    Rule {
        number: libc::SYS_mremap,
        from: 4,
        len: Some(2),
        only: Some((3, libc::MREMAP_FIXED as u32)),
        but: None,
    },
    Rule {
        number: libc::SYS_mmap,
        from: 0,
        len: Some(1),
        only: Some((3, libc::MAP_FIXED as u32)),
        but: None,
    },
    // The kernel finds the waiting threads of all processes by the memory that a segment has
    // now.
    Rule {
        number: libc::SYS_futex,
        from: 0,
        len: None,
        only: None,
        but: Some((1, libc::FUTEX_PRIVATE_FLAG as u32)),
    },
    rule(libc::SYS_mprotect, 0, 1),
    rule(libc::SYS_pkey_mprotect, 0, 1),
    rule(libc::SYS_madvise, 0, 1),
    rule(libc::SYS_remap_file_pages, 0, 1),
    Rule { number: libc::SYS_shmat, from: 1, len: None, only: Some((2, SHM_REMAP)), but: None },
    rule(MSEAL, 0, 1),
];

pub fn is_ruled(number: i64) -> bool {
    RULES.iter().any(|rule| rule.number == number) || number == PROCESS_MADVISE
}

/// The addresses of this call are in memory.  So the filter refuses these two kinds of advice for
/// any address.  A kernel before 6.13 knows neither.
pub const PROCESS_MADVISE: i64 = 440;
const REFUSED_ADVICE: [c_int; 2] = [libc::MADV_REMOVE, libc::MADV_DOFORK];

#[cfg(target_arch = "x86_64")]
const ARCH: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCH: u32 = 0xc000_00b7;

const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
const EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const GREATER: u16 = (libc::BPF_JMP | libc::BPF_JGT | libc::BPF_K) as u16;
const AT_LEAST: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
const HAS_BITS: u16 = (libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K) as u16;
const ADD: u16 = (libc::BPF_ALU | libc::BPF_ADD | libc::BPF_X) as u16;
const AND: u16 = (libc::BPF_ALU | libc::BPF_AND | libc::BPF_K) as u16;
const TO_X: u16 = (libc::BPF_MISC | libc::BPF_TAX) as u16;

// Offsets in struct seccomp_data.  Both machines store the lower half of a number first.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const INSTRUCTION: u32 = 8;
const fn lower(argument: u8) -> u32 {
    16 + 8 * argument as u32
}
const fn upper(argument: u8) -> u32 {
    lower(argument) + 4
}

/// A bit says that pointers are of 32 bits, which changes nothing of these calls.
const NUMBER_OF_64: [sock_filter; 2] = [step(LOAD, NUMBER), step(AND, !0x4000_0000)];
const ALLOW: sock_filter = step(RETURN, libc::SECCOMP_RET_ALLOW);
const TRAP: sock_filter = step(RETURN, libc::SECCOMP_RET_TRAP);

const fn step(code: u16, k: u32) -> sock_filter {
    sock_filter { code, jt: 0, jf: 0, k }
}

/// Continues with the next step if the condition holds, and otherwise skips that many steps.
const fn unless(code: u16, k: u32, leave_out: u8) -> sock_filter {
    sock_filter { code, jt: 0, jf: leave_out, k }
}

/// Skips that many steps if the condition holds.
const fn skip_if(code: u16, k: u32, leave_out: u8) -> sock_filter {
    sock_filter { code, jt: leave_out, jf: 0, k }
}

fn program(window: usize, text: &Range<usize>) -> Vec<sock_filter> {
    let half = |n: usize| (n >> 32) as u32;
    let by_library = by_library(text);
    let mut all = vec![
        step(LOAD, ARCHITECTURE),
        // Programs of 32 bits cannot reach an address there.
        skip_if(EQUAL, ARCH, 1),
        ALLOW,
    ];
    let advice = [
        step(LOAD, lower(3)),
        skip_if(EQUAL, REFUSED_ADVICE[0] as u32, 2),
        skip_if(EQUAL, REFUSED_ADVICE[1] as u32, 1),
        ALLOW,
        step(RETURN, libc::SECCOMP_RET_ERRNO | libc::EINVAL as u32),
    ];
    all.extend(NUMBER_OF_64);
    all.push(unless(EQUAL, PROCESS_MADVISE as u32, advice.len() as u8));
    all.extend(advice);
    for rule in RULES {
        let mut one = Vec::new();
        if let Some((argument, bits)) = rule.only {
            one.push(step(LOAD, lower(argument)));
            one.push(unless(HAS_BITS, bits, REST));
        }
        if let Some((argument, bits)) = rule.but {
            one.push(step(LOAD, lower(argument)));
            one.push(skip_if(HAS_BITS, bits, REST));
        }
        one.extend([
            step(LOAD, upper(rule.from)),
            step(AND, 0xffff),
            skip_if(AT_LEAST, half(window + BYTES), REST),
        ]);
        match rule.len {
            Some(len) => one.extend([
                step(TO_X, 0),
                step(LOAD, upper(len)),
                step(ADD, 0),
                unless(AT_LEAST, half(window) - 1, REST),
            ]),
            None => one.push(unless(AT_LEAST, half(window), REST)),
        }
        one.extend(by_library.iter().copied());
        // Marked steps leave out the rest of this rule.
        let end = one.len();
        for (at, step) in one.iter_mut().enumerate() {
            let rest = (end - at - 1) as u8;
            for jump in [&mut step.jt, &mut step.jf] {
                if *jump == REST {
                    *jump = rest;
                }
            }
        }
        all.extend(NUMBER_OF_64);
        all.push(unless(EQUAL, rule.number as u32, end as u8));
        all.append(&mut one);
    }
    all.push(ALLOW);
    all
}

/// Jumps over the rest of a rule, whose length is not known yet.
const REST: u8 = u8::MAX;

/// Allows the calls of the library's instructions and refuses all others.  The kernel reports
/// the address after the instruction.
fn by_library(text: &Range<usize>) -> Vec<sock_filter> {
    let halves = |n: usize| ((n >> 32) as u32, n as u32);
    let ((first, from), (last, to)) = (halves(text.start), halves(text.end));
    let mut all = vec![step(LOAD, INSTRUCTION + 4)];
    if first == last {
        all.extend([
            unless(EQUAL, first, 4),
            step(LOAD, INSTRUCTION),
            unless(AT_LEAST, from, 2),
            skip_if(GREATER, to, 1),
            ALLOW,
            TRAP,
        ]);
    } else {
        all.extend([
            unless(EQUAL, first, 3),
            step(LOAD, INSTRUCTION),
            unless(AT_LEAST, from, 5),
            ALLOW,
            unless(EQUAL, last, 3),
            step(LOAD, INSTRUCTION),
            skip_if(GREATER, to, 1),
            ALLOW,
            TRAP,
        ]);
    }
    all
}
