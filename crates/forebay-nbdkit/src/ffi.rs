// SPDX-License-Identifier: MIT OR Apache-2.0
//! nbdkit's callbacks: the only unsafe code of the plugin.
//!
//! Each callback turns C's arguments into Rust's, calls its namesake in the
//! crate's root, and turns the result back.  A panic becomes an error there:
//! it must not unwind into C.

use std::ffi::{c_char, c_int, c_void, CStr, CString};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::ptr::{null, null_mut};

use crate::abi::{self, Plugin};
use crate::{Failure, Handle};

extern "C" {
    fn nbdkit_error(format: *const c_char, ...);
    fn nbdkit_set_error(errno: c_int);
    fn nbdkit_export_name() -> *const c_char;
    fn nbdkit_strdup_intern(s: *const c_char) -> *const c_char;
    fn nbdkit_add_export(
        exports: *mut c_void,
        name: *const c_char,
        description: *const c_char,
    ) -> c_int;
}

/// Shows one line to whoever runs nbdkit.
pub fn report(message: &str) {
    let text = c_string(message);
    // SAFETY: both are NUL-terminated, and the format consumes exactly one string.
    unsafe { nbdkit_error(c"%s".as_ptr(), text.as_ptr()) }
}

fn c_string(text: &str) -> CString {
    CString::new(text.replace('\0', " ")).expect("NUL was replaced")
}

/// Runs a callback; None: it failed, which is reported and left for nbdkit to
/// send to the client.
fn guarded<T>(callback: impl FnOnce() -> Result<T, Failure>) -> Option<T> {
    let failure = match catch_unwind(AssertUnwindSafe(callback)) {
        Ok(Ok(value)) => return Some(value),
        Ok(Err(failure)) => failure,
        Err(_) => Failure::internal("a panic in the plugin; please report it"),
    };
    if let Some(message) = &failure.message {
        report(message);
    }
    // SAFETY: stores a number in nbdkit's thread-local variable.
    unsafe { nbdkit_set_error(failure.errno) }
    None
}

fn status(result: Option<()>) -> c_int {
    match result {
        Some(()) => 0,
        None => -1,
    }
}

/// The handle that `open` returned.
///
/// # Safety
/// `handle` comes from `open` and has not been passed to `close`; nbdkit calls
/// `close` last.
unsafe fn handle_ref<'a>(handle: *mut c_void) -> &'a Handle {
    // SAFETY: the caller's promise; handles are only shared, never changed.
    unsafe { &*handle.cast::<Handle>() }
}

extern "C" fn config(key: *const c_char, value: *const c_char) -> c_int {
    status(guarded(|| {
        // SAFETY: nbdkit passes two NUL-terminated strings that live through the call.
        let (key, value) = unsafe { (CStr::from_ptr(key), CStr::from_ptr(value)) };
        crate::config(&key.to_string_lossy(), value.to_bytes())
    }))
}

extern "C" fn config_complete() -> c_int {
    status(guarded(crate::config_complete))
}

extern "C" fn after_fork() -> c_int {
    status(guarded(crate::after_fork))
}

extern "C" fn cleanup() {
    guarded(crate::cleanup);
}

extern "C" fn open(readonly: c_int) -> *mut c_void {
    // SAFETY: valid in `open`; NUL-terminated and alive as long as the connection.
    let name = unsafe { nbdkit_export_name() };
    if name.is_null() {
        return null_mut();
    }
    // SAFETY: not null, see above.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
    match guarded(|| crate::open(&name, readonly != 0)) {
        Some(handle) => Box::into_raw(Box::new(handle)).cast(),
        None => null_mut(),
    }
}

extern "C" fn close(handle: *mut c_void) {
    // SAFETY: from `open`, and this is the last callback with it.
    drop(unsafe { Box::from_raw(handle.cast::<Handle>()) });
}

extern "C" fn get_size(handle: *mut c_void) -> i64 {
    // SAFETY: nbdkit passes what `open` returned.
    let handle = unsafe { handle_ref(handle) };
    guarded(|| crate::get_size(handle)).unwrap_or(-1)
}

extern "C" fn can_write(handle: *mut c_void) -> c_int {
    // SAFETY: nbdkit passes what `open` returned.
    let handle = unsafe { handle_ref(handle) };
    crate::can_write(handle).into()
}

extern "C" fn yes(_handle: *mut c_void) -> c_int {
    1
}

extern "C" fn no(_handle: *mut c_void) -> c_int {
    0
}

extern "C" fn can_fua(_handle: *mut c_void) -> c_int {
    abi::FUA_NATIVE
}

extern "C" fn thread_model() -> c_int {
    abi::THREAD_MODEL_PARALLEL
}

extern "C" fn pread(
    handle: *mut c_void,
    buffer: *mut c_void,
    count: u32,
    offset: u64,
    _flags: u32,
) -> c_int {
    // SAFETY: nbdkit passes what `open` returned, and a buffer of count bytes that
    // is this request's alone (nbdkit zeroes or reuses it: it is initialised).
    let (handle, buffer) = unsafe {
        (handle_ref(handle), std::slice::from_raw_parts_mut(buffer.cast::<u8>(), count as usize))
    };
    status(guarded(|| crate::pread(handle, buffer, offset)))
}

extern "C" fn pwrite(
    handle: *mut c_void,
    buffer: *const c_void,
    count: u32,
    offset: u64,
    flags: u32,
) -> c_int {
    // SAFETY: nbdkit passes what `open` returned, and a buffer of count bytes that
    // nobody writes to during the call.
    let (handle, buffer) = unsafe {
        (handle_ref(handle), std::slice::from_raw_parts(buffer.cast::<u8>(), count as usize))
    };
    let fua = flags & abi::FLAG_FUA != 0;
    status(guarded(|| crate::pwrite(handle, buffer, offset, fua)))
}

extern "C" fn flush(handle: *mut c_void, _flags: u32) -> c_int {
    // SAFETY: nbdkit passes what `open` returned.
    let handle = unsafe { handle_ref(handle) };
    status(guarded(|| crate::flush(handle)))
}

extern "C" fn trim(handle: *mut c_void, count: u32, offset: u64, flags: u32) -> c_int {
    // SAFETY: nbdkit passes what `open` returned.
    let handle = unsafe { handle_ref(handle) };
    let fua = flags & abi::FLAG_FUA != 0;
    status(guarded(|| crate::trim(handle, count, offset, fua)))
}

extern "C" fn zero(handle: *mut c_void, count: u32, offset: u64, flags: u32) -> c_int {
    // SAFETY: nbdkit passes what `open` returned.
    let handle = unsafe { handle_ref(handle) };
    let fast_only = flags & abi::FLAG_FAST_ZERO != 0;
    status(guarded(|| crate::zero(handle, count, offset, fast_only)))
}

extern "C" fn list_exports(_readonly: c_int, _is_tls: c_int, exports: *mut c_void) -> c_int {
    status(guarded(|| {
        for (name, description) in crate::list_exports()? {
            let (name, description) = (c_string(&name), c_string(&description));
            // SAFETY: nbdkit copies both strings; exports is what it passed.
            let failed = unsafe { nbdkit_add_export(exports, name.as_ptr(), description.as_ptr()) };
            if failed != 0 {
                return Err(Failure::internal("nbdkit refused an export's name"));
            }
        }
        Ok(())
    }))
}

extern "C" fn default_export(_readonly: c_int, _is_tls: c_int) -> *const c_char {
    match guarded(crate::default_export) {
        Some(name) => {
            let name = c_string(&name);
            // SAFETY: copies the string; the copy lives as long as the connection.
            unsafe { nbdkit_strdup_intern(name.as_ptr()) }
        }
        None => null(),
    }
}

extern "C" fn block_size(
    handle: *mut c_void,
    minimum: *mut u32,
    preferred: *mut u32,
    maximum: *mut u32,
) -> c_int {
    status(guarded(|| {
        // SAFETY: nbdkit passes what `open` returned and three variables of its own.
        unsafe {
            let sizes = crate::block_size(handle_ref(handle))?;
            *minimum = sizes.minimum;
            *preferred = sizes.preferred;
            *maximum = sizes.maximum;
        }
        Ok(())
    }))
}

/// What nbdkit looks up in the library and calls first, once.
#[no_mangle]
pub extern "C" fn plugin_init() -> *const Plugin {
    // nbdkit keeps the pointer as long as it runs, and calls this once.
    Box::leak(Box::new(Plugin {
        struct_size: size_of::<Plugin>() as u64,
        api_version: abi::API_VERSION,
        thread_model_max: abi::THREAD_MODEL_PARALLEL,
        name: c"forebay".as_ptr(),
        longname: c"Forebay write cache".as_ptr(),
        version: const { version().as_ptr() },
        description: c"serves the volumes of a Forebay pool, each under its name".as_ptr(),
        load: None,
        unload: None,
        config: Some(config),
        config_complete: Some(config_complete),
        config_help: crate::CONFIG_HELP.as_ptr(),
        open: Some(open),
        close: Some(close),
        get_size: Some(get_size),
        can_write: Some(can_write),
        can_flush: Some(yes),
        is_rotational: Some(no),
        can_trim: Some(yes),
        v1: [None; 5],
        errno_is_preserved: 0,
        dump_plugin: None,
        can_zero: Some(yes),
        can_fua: Some(can_fua),
        pread: Some(pread),
        pwrite: Some(pwrite),
        flush: Some(flush),
        trim: Some(trim),
        zero: Some(zero),
        magic_config_key: c"pool".as_ptr(),
        can_multi_conn: Some(yes),
        can_extents: Some(no),
        extents: None,
        can_cache: Some(no),
        cache: None,
        thread_model: Some(thread_model),
        can_fast_zero: Some(yes),
        preconnect: None,
        get_ready: None,
        after_fork: Some(after_fork),
        list_exports: Some(list_exports),
        default_export: Some(default_export),
        export_description: None,
        cleanup: Some(cleanup),
        block_size: Some(block_size),
    }))
}

const fn version() -> &'static CStr {
    match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
        Ok(version) => version,
        Err(_) => panic!("the version holds a NUL"),
    }
}
