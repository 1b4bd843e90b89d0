// SPDX-License-Identifier: MIT OR Apache-2.0
//! The mark of a file is an attribute, and for the program no file has it.  A program that copies,
//! replaces or removes all attributes of a file would otherwise take the mark along, or take it
//! away.  Writes that nothing knows of would be acknowledged then.

use std::ffi::{c_int, c_long, CStr};

use forebay::MARK_ATTRIBUTE as MARK;

use crate::guarded;
use crate::real::raw;
use crate::say::{once, About};

/// An attribute that nobody has: of its removal the kernel says what it would say of a mark that
/// is not there.
const NOBODYS: &CStr = c"user.forebay.is-not-there";

pub const SETXATTRAT: c_long = 463;
pub const GETXATTRAT: c_long = 464;
pub const LISTXATTRAT: c_long = 465;
pub const REMOVEXATTRAT: c_long = 466;

/// The longest list that the kernel gives.
const LIST_MOST: usize = 1 << 16;

/// A call about attributes.
#[derive(Clone, Copy)]
enum What {
    Get,
    /// The call by which the kernel removes an attribute, with the same arguments; and the error.
    Change(c_long, c_int),
    List,
}

/// The argument that is a name, or the first of a list.
fn of(number: c_long) -> Option<(What, usize)> {
    use What::{Change, Get, List};
    Some(match number {
        libc::SYS_getxattr | libc::SYS_lgetxattr | libc::SYS_fgetxattr => (Get, 1),
        libc::SYS_setxattr => (Change(libc::SYS_removexattr, libc::EPERM), 1),
        libc::SYS_lsetxattr => (Change(libc::SYS_lremovexattr, libc::EPERM), 1),
        libc::SYS_fsetxattr => (Change(libc::SYS_fremovexattr, libc::EPERM), 1),
        libc::SYS_removexattr | libc::SYS_lremovexattr | libc::SYS_fremovexattr => {
            (Change(number, libc::ENODATA), 1)
        }
        libc::SYS_listxattr | libc::SYS_llistxattr | libc::SYS_flistxattr => (List, 1),
        SETXATTRAT => (Change(REMOVEXATTRAT, libc::EPERM), 3),
        GETXATTRAT => (Get, 3),
        LISTXATTRAT => (List, 3),
        REMOVEXATTRAT => (Change(number, libc::ENODATA), 3),
        _ => return None,
    })
}

pub fn is_about_attributes(number: c_long) -> bool {
    of(number).is_some()
}

/// Makes a call about attributes as if no file had a mark.  Returns a negative errno if it fails.
///
/// # Safety
/// The contract of the system call applies.
pub unsafe fn call(number: c_long, a: [usize; 6]) -> isize {
    let of = of(number).filter(|_| !guarded::is_inside());
    // SAFETY: the caller guarantees it.
    unsafe {
        match of {
            Some((What::List, at)) => list(number, a, at),
            // The name is a string if the kernel has found the attribute.
            Some((What::Get, at)) => match raw(number, a) {
                there if there >= 0 || there == -libc::ERANGE as isize => match is_mark(a[at]) {
                    true => -libc::ENODATA as isize,
                    false => there,
                },
                error => error,
            },
            Some((What::Change(removes, error), at)) if is_mark(a[at]) => {
                unchanged(removes, error, a, at)
            }
            _ => raw(number, a),
        }
    }
}

/// # Safety
/// It is null, or the address of a string.
unsafe fn is_mark(name: usize) -> bool {
    let name = std::ptr::with_exposed_provenance::<u8>(name);
    let mut all = MARK.to_bytes_with_nul().iter().enumerate();
    // SAFETY: the caller guarantees it, and nothing is read after its end.
    !name.is_null() && all.all(|(at, byte)| unsafe { name.add(at).read() } == *byte)
}

/// # Safety
/// The contract of the system call applies.
unsafe fn unchanged(removes: c_long, error: c_int, mut a: [usize; 6], at: usize) -> isize {
    a[at] = NOBODYS.as_ptr().addr();
    // SAFETY: the caller guarantees it; the name ends with a zero byte.
    let done = unsafe { raw(removes, a) };
    if done != -libc::ENODATA as isize {
        return done;
    }
    if error == libc::EPERM {
        once(
            About::Mark,
            format_args!(
                "the attribute {} is the mark by which forebay knows files that lack writes: the \
                 program may not set it; leave it out of what is restored or copied",
                MARK.to_string_lossy()
            ),
        );
    }
    -error as isize
}

/// Lists without the mark.  `at`: the argument that is the memory, before that which is its size.
///
/// # Safety
/// The contract of the system call applies.
unsafe fn list(number: c_long, mut a: [usize; 6], at: usize) -> isize {
    let (to, most) = (a[at], a[at + 1]);
    // SAFETY: the caller guarantees it.
    let done = unsafe { raw(number, a) };
    let is_told = match most {
        0 => done <= 0,
        _ => done != -libc::ERANGE as isize,
    };
    if is_told {
        // SAFETY: the kernel has written so many bytes there.
        return if done > 0 { unsafe { without_mark(to, done as usize) as isize } } else { done };
    }
    // Whether the mark is among what the length counts, only the whole list tells.
    let (prot, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    let new = [0, LIST_MOST, prot as usize, flags as usize, usize::MAX, 0];
    // SAFETY: a new mapping, which is removed below.  The program has `most` bytes.
    unsafe {
        let room = raw(libc::SYS_mmap, new);
        if (-4095..0).contains(&room) {
            return -libc::ENOMEM as isize;
        }
        (a[at], a[at + 1]) = (room as usize, LIST_MOST);
        let mut done = raw(number, a);
        if done > 0 {
            let len = without_mark(a[at], done as usize);
            done = len as isize;
            if most > 0 && len > most {
                done = -libc::ERANGE as isize;
            } else if most > 0 {
                let from = std::ptr::with_exposed_provenance::<u8>(a[at]);
                from.copy_to(std::ptr::with_exposed_provenance_mut(to), len);
            }
        }
        raw(libc::SYS_munmap, [room as usize, LIST_MOST, 0, 0, 0, 0]);
        done
    }
}

/// Takes the mark out of a list of names, and returns the list's length.
///
/// # Safety
/// There are so many bytes at that address.
unsafe fn without_mark(at: usize, len: usize) -> usize {
    // SAFETY: the caller guarantees it.
    let all = unsafe {
        std::slice::from_raw_parts_mut(std::ptr::with_exposed_provenance_mut::<u8>(at), len)
    };
    let mark = MARK.to_bytes_with_nul();
    let mut from = 0;
    while from < all.len() {
        let rest = &all[from..];
        let one = rest.iter().position(|&byte| byte == 0).map_or(rest.len(), |end| end + 1);
        if rest[..one] == *mark {
            all.copy_within(from + one.., from);
            return len - one;
        }
        from += one;
    }
    len
}
