// SPDX-License-Identifier: MIT OR Apache-2.0
//! libforebay-map: the calls of `include/forebay_map.h`, which documents each.
//!
//! A handle is a number that is never used again, so a closed handle is recognized.  A panic in
//! a function here ends the program and never unwinds through C.

mod error;
mod handles;

use std::ffi::{c_char, c_int, c_void, CStr, CString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, Once};
use std::time::Duration;

use forebay::PoolOptions;
use forebay_map::{Options, Session, Unreadable, Wanted};

use error::{argument, tell, Failure};
use handles::{File, POOLS};

/// `struct forebay_map_options`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CallerOptions {
    struct_bytes: usize,
    interval_ms: u32,
    most_dirty_pages: u32,
    most_locked_segments: u32,
    flags: u32,
    persist: *const c_char,
    unreadable: Option<extern "C" fn(*const c_char, u64, *const c_char)>,
}

const RECOVER: u32 = 1;
const ALLOW_WEAKER: u32 = 2;
const REST: u64 = u64::MAX;

/// A string of the caller.
///
/// # Safety
/// `p` is null, or a string that ends with a zero byte and does not change during the call.
unsafe fn text<'a>(what: &str, p: *const c_char) -> Result<Option<&'a str>, Failure> {
    if p.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller guarantees it.
    let text = unsafe { CStr::from_ptr(p) };
    match text.to_str() {
        Ok(text) => Ok(Some(text)),
        Err(_) => Err(argument(format!("{what} is not UTF-8"))),
    }
}

/// Stores a result at the caller's address.
///
/// # Safety
/// `to` is null, or a `T` can be written there.
unsafe fn give<T>(what: &str, to: *mut T, value: T) -> Result<(), Failure> {
    if to.is_null() {
        return Err(argument(format!("{what} is null")));
    }
    // SAFETY: the caller guarantees it, and `to` is not null.
    unsafe { to.write(value) };
    Ok(())
}

fn not_null<T>(what: &str, p: *const T) -> Result<(), Failure> {
    match p.is_null() {
        true => Err(argument(format!("{what} is null"))),
        false => Ok(()),
    }
}

/// Reads the options of the caller, as far as its version of the header has them.
///
/// # Safety
/// `from` is null, or a `struct forebay_map_options` with as many bytes as it states.
unsafe fn options(from: *const CallerOptions) -> Result<(PoolOptions, Options, bool), Failure> {
    let (mut pool, mut map) = (PoolOptions::default(), Options::default());
    if from.is_null() {
        return Ok((pool, map, false));
    }
    let mut given = CallerOptions {
        struct_bytes: 0,
        interval_ms: 0,
        most_dirty_pages: 0,
        most_locked_segments: 0,
        flags: 0,
        persist: std::ptr::null(),
        unreadable: None,
    };
    // SAFETY: every version of the struct has the first member.
    let bytes = unsafe { from.cast::<usize>().read_unaligned() };
    if bytes < size_of::<usize>() || bytes > 4096 {
        return Err(argument(format!("struct_bytes is {bytes}: set it to sizeof(options)")));
    }
    // No version ends within a pointer.
    let known = bytes.min(size_of::<CallerOptions>()) / align_of::<CallerOptions>()
        * align_of::<CallerOptions>();
    // SAFETY: the struct has that many bytes, and the caller has set each member to a valid
    // value.
    unsafe {
        std::ptr::copy_nonoverlapping(from.cast::<u8>(), (&raw mut given).cast::<u8>(), known);
    }
    if given.flags & !(RECOVER | ALLOW_WEAKER) != 0 {
        return Err(argument(format!("flags {:#x}: some are not known", given.flags)));
    }
    if given.interval_ms != 0 {
        map.interval = Duration::from_millis(given.interval_ms.into());
    }
    if given.most_dirty_pages != 0 {
        map.most_dirty = given.most_dirty_pages as usize;
    }
    if given.most_locked_segments != 0 {
        map.most_locked = given.most_locked_segments as usize;
    }
    map.unreadable = given.unreadable.map(|tell| {
        Unreadable(Arc::new(move |path, offset, why| {
            let path = CString::new(path.as_os_str().as_bytes()).unwrap_or_default();
            let why = CString::new(why.to_string()).unwrap_or_default();
            tell(path.as_ptr(), offset, why.as_ptr());
        }))
    });
    pool.media.allow_weaker = given.flags & ALLOW_WEAKER != 0;
    // SAFETY: the caller guarantees it.
    if let Some(persist) = unsafe { text("persist", given.persist) }? {
        pool.media.persist =
            persist.parse().map_err(|e: forebay::ParseError| argument(e.to_string()))?;
    }
    Ok((pool, map, given.flags & RECOVER != 0))
}

/// Checks that a range of the caller is within the room of a file.
fn range(file: &File, offset: u64, length: u64) -> Result<(u64, u64), Failure> {
    let room = file.map.room();
    let end = match length {
        REST => room.max(offset),
        _ => offset.saturating_add(length),
    };
    if offset > room || end > room {
        let path = file.path.display();
        let why = format!("{path}: {length} bytes at {offset}: it was opened with room for {room}");
        return Err(argument(why));
    }
    Ok((offset, end - offset))
}

/// Runs a call for a file that returns no value.
fn with(file: usize, call: impl FnOnce(&File) -> Result<(), Failure>) -> c_int {
    tell(|| call(&*handles::file(file)?))
}

/// Runs a call for a range of a file.
fn within(
    file: usize,
    offset: u64,
    length: u64,
    call: impl FnOnce(&File, u64, u64) -> forebay_map::Result<()>,
) -> c_int {
    with(file, |file| {
        let (offset, length) = range(file, offset, length)?;
        match length {
            0 => Ok(()),
            _ => Ok(call(file, offset, length)?),
        }
    })
}

/// Returns the library's version.
#[no_mangle]
pub extern "C" fn forebay_map_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// Returns the message of this thread's last failed call.
#[no_mangle]
pub extern "C" fn forebay_map_error() -> *const c_char {
    error::last_text()
}

/// Returns the errno of that call.
#[no_mangle]
pub extern "C" fn forebay_map_errno() -> c_int {
    error::last_errno()
}

/// Returns the name of a code.
#[no_mangle]
pub extern "C" fn forebay_map_error_name(code: c_int) -> *const c_char {
    error::name(code).as_ptr()
}

/// Opens a map.
///
/// # Safety
/// Strings are null or end with a zero byte.  `o` is null or has as many bytes as it states.
/// `out` is null or a pointer can be written there.
#[no_mangle]
pub unsafe extern "C" fn forebay_map_pool_open(
    path: *const c_char,
    map: *const c_char,
    o: *const CallerOptions,
    out: *mut usize,
) -> c_int {
    static FIRST: Once = Once::new();
    FIRST.call_once(forebay_map::stderr::tell_panics);
    tell(|| {
        not_null("where the pool is to be given", out)?;
        // SAFETY: the caller guarantees it.
        let (path, map) = unsafe { (text("the pool's path", path)?, text("the map's name", map)?) };
        let path = Path::new(path.ok_or_else(|| argument("the pool's path is null".into()))?);
        // SAFETY: the caller guarantees it.
        let (pool, options, bring_home) = unsafe { options(o) }?;
        handles::know_children()?;
        let map = map.map(str::to_owned);
        let session =
            Session::open(&Wanted { map, pool, bring_home, ..Wanted::of(path) }, options)?;
        // SAFETY: the caller guarantees it.
        unsafe { give("where the pool is to be given", out, POOLS.put(session)) }
    })
}

/// Closes a map.
#[no_mangle]
pub extern "C" fn forebay_map_pool_close(pool: usize) -> c_int {
    tell(|| handles::close_pool(pool))
}

/// # Safety
/// The contract of [`forebay_map_file_open`] applies.
unsafe fn open_file(
    pool: usize,
    path: *const c_char,
    room: u64,
    shared: bool,
    out: *mut usize,
) -> c_int {
    tell(|| {
        not_null("where the file is to be given", out)?;
        let session = POOLS.get(pool, "pool")?;
        // SAFETY: the caller guarantees it.
        let path = unsafe { text("the file's path", path) }?;
        let path = path.ok_or_else(|| argument("the file's path is null".into()))?;
        let file = handles::open_file(pool, session, Path::new(path), room, shared)?;
        // SAFETY: the caller guarantees it.
        unsafe { give("where the file is to be given", out, file) }
    })
}

/// Opens a file.
///
/// # Safety
/// `path` is null or ends with a zero byte.  `out` is null or a pointer can be written there.
#[no_mangle]
pub unsafe extern "C" fn forebay_map_file_open(
    pool: usize,
    path: *const c_char,
    room: u64,
    out: *mut usize,
) -> c_int {
    // SAFETY: the caller guarantees it.
    unsafe { open_file(pool, path, room, false, out) }
}

/// Opens a file that other processes open with this call too.
///
/// # Safety
/// The contract of [`forebay_map_file_open`] applies.
#[no_mangle]
pub unsafe extern "C" fn forebay_map_file_open_shared(
    pool: usize,
    path: *const c_char,
    room: u64,
    out: *mut usize,
) -> c_int {
    // SAFETY: the caller guarantees it.
    unsafe { open_file(pool, path, room, true, out) }
}

/// Closes a file.
#[no_mangle]
pub extern "C" fn forebay_map_file_close(file: usize) -> c_int {
    tell(|| handles::close_file(file))
}

/// Returns the address of the mapping.
#[no_mangle]
pub extern "C" fn forebay_map_address(file: usize) -> *mut c_void {
    let mut address = std::ptr::null_mut();
    with(file, |file| {
        address = file.map.address().cast();
        Ok(())
    });
    address
}

/// Returns the size of the file.
///
/// # Safety
/// `size` is null, or a `u64` can be written there.
#[no_mangle]
pub unsafe extern "C" fn forebay_map_size(file: usize, size: *mut u64) -> c_int {
    // SAFETY: the caller guarantees it.
    with(file, |file| unsafe { give("size", size, file.map.size()) })
}

/// Returns the number of mapped bytes.
///
/// # Safety
/// `room` is null, or a `u64` can be written there.
#[no_mangle]
pub unsafe extern "C" fn forebay_map_room(file: usize, room: *mut u64) -> c_int {
    // SAFETY: the caller guarantees it.
    with(file, |file| unsafe { give("room", room, file.map.room()) })
}

/// Makes stores to a range durable.
#[no_mangle]
pub extern "C" fn forebay_map_sync(file: usize, offset: u64, length: u64) -> c_int {
    within(file, offset, length, |file, at, len| file.map.sync(at, len))
}

/// Brings a range in and keeps it.
#[no_mangle]
pub extern "C" fn forebay_map_lock(file: usize, offset: u64, length: u64) -> c_int {
    within(file, offset, length, |file, at, len| file.map.lock(at, len))
}

/// Undoes a `forebay_map_lock`.
#[no_mangle]
pub extern "C" fn forebay_map_unlock(file: usize, offset: u64, length: u64) -> c_int {
    within(file, offset, length, |file, at, len| {
        file.map.unlock(at, len);
        Ok(())
    })
}

/// Frees segments.
#[no_mangle]
pub extern "C" fn forebay_map_drop(file: usize, offset: u64, length: u64) -> c_int {
    within(file, offset, length, |file, at, len| file.map.drop_cache(at, len))
}

/// Reads from the file.
///
/// # Safety
/// `buffer` is null, or `length` bytes can be written there.  `done` is null, or a `usize` can
/// be written there.
#[no_mangle]
pub unsafe extern "C" fn forebay_map_read(
    file: usize,
    offset: u64,
    buffer: *mut c_void,
    length: usize,
    done: *mut usize,
) -> c_int {
    with(file, |file| {
        not_null("done", done)?;
        let mut n = 0;
        if length > 0 {
            not_null("buffer", buffer)?;
            fits(length)?;
            // SAFETY: the caller guarantees it.
            let to = unsafe { std::slice::from_raw_parts_mut(buffer.cast::<u8>(), length) };
            n = file.map.read(offset, to)?;
        }
        // SAFETY: the caller guarantees it.
        unsafe { give("done", done, n) }
    })
}

/// Writes to the file.
///
/// # Safety
/// `buffer` is null or has `length` bytes.
#[no_mangle]
pub unsafe extern "C" fn forebay_map_write(
    file: usize,
    offset: u64,
    buffer: *const c_void,
    length: usize,
) -> c_int {
    with(file, |file| {
        let (offset, length) = range(file, offset, length as u64)?;
        if length == 0 {
            return Ok(());
        }
        not_null("buffer", buffer)?;
        fits(length as usize)?;
        // SAFETY: the caller guarantees it.
        let from = unsafe { std::slice::from_raw_parts(buffer.cast::<u8>(), length as usize) };
        Ok(file.map.write(offset, from)?)
    })
}

/// Checks a length.  No object in memory is larger than `isize::MAX`.
fn fits(length: usize) -> Result<(), Failure> {
    match isize::try_from(length) {
        Ok(_) => Ok(()),
        Err(_) => Err(argument(format!("{length} bytes are more than any buffer has"))),
    }
}

/// Truncates or extends.
#[no_mangle]
pub extern "C" fn forebay_map_truncate(file: usize, size: u64) -> c_int {
    with(file, |file| {
        range(file, size, 0)?;
        Ok(file.map.set_size(size)?)
    })
}

/// Allocates blocks for a range.
#[no_mangle]
pub extern "C" fn forebay_map_allocate(file: usize, offset: u64, length: u64) -> c_int {
    within(file, offset, length, |file, at, len| file.map.allocate(at, len))
}

/// Writes synced data to the file.
#[no_mangle]
pub extern "C" fn forebay_map_write_back(file: usize) -> c_int {
    with(file, |file| Ok(file.map.write_back().map(drop)?))
}

/// Reports whether the file lacks synced data.
///
/// # Safety
/// `dirty` is null, or an `int` can be written there.
#[no_mangle]
pub unsafe extern "C" fn forebay_map_is_dirty(file: usize, dirty: *mut c_int) -> c_int {
    with(file, |file| {
        let is = c_int::from(file.map.is_dirty()?);
        // SAFETY: the caller guarantees it.
        unsafe { give("dirty", dirty, is) }
    })
}

/// Reports the kernel features in use.
///
/// # Safety
/// `features` is null, or a `u32` can be written there.
#[no_mangle]
pub unsafe extern "C" fn forebay_map_features(file: usize, features: *mut u32) -> c_int {
    with(file, |file| {
        let f = file.map.features();
        let bits = u32::from(f.faults) | u32::from(f.watch) << 1 | u32::from(f.scan) << 2;
        // SAFETY: the caller guarantees it.
        unsafe { give("features", features, bits) }
    })
}
