// SPDX-License-Identifier: MIT OR Apache-2.0
//! The functions of libnbd that are used, found when the first origin wants them, so
//! that who has no origin behind NBD needs no libnbd.  Its ABI has only grown since
//! version 1.0 (2019); of what came later nothing is used but the sizes of blocks and options (1.4).

#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use libloading::Library;

use crate::Failure;

const FILE: &str = "libnbd.so.0";

/// Called when a command has ended: does nothing here, the link asks.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Callback {
    callback: Option<unsafe extern "C" fn(*mut c_void, *mut c_int) -> c_int>,
    user_data: *mut c_void,
    free: Option<unsafe extern "C" fn(*mut c_void)>,
}

impl Callback {
    pub(crate) const NONE: Callback =
        Callback { callback: None, user_data: std::ptr::null_mut(), free: None };
}

/// A `struct nbd_handle`.
pub(crate) enum Handle {}

type Ask = unsafe extern "C" fn(*mut Handle) -> c_int;
type Range = unsafe extern "C" fn(*mut Handle, u64, u64, Callback, u32) -> i64;

macro_rules! functions {
    ($($name:ident: $type:ty,)*) => {
        pub(crate) struct Functions {
            $(pub $name: $type,)*
            /// Their library, never unloaded.
            _library: Library,
        }

        impl Functions {
            fn load() -> Result<Functions, String> {
                // SAFETY: libnbd has no initialisers that could do harm, and these are
                // the functions of its header, libnbd.h, with their types.
                unsafe {
                    let library = Library::new(FILE).map_err(|e| e.to_string())?;
                    $(let $name = *library
                        .get::<$type>(concat!("nbd_", stringify!($name)))
                        .map_err(|e| e.to_string())?;)*
                    Ok(Functions { $($name,)* _library: library })
                }
            }
        }
    };
}

functions! {
    create: unsafe extern "C" fn() -> *mut Handle,
    close: unsafe extern "C" fn(*mut Handle),
    get_error: unsafe extern "C" fn() -> *const c_char,
    get_errno: unsafe extern "C" fn() -> c_int,
    set_uri_allow_transports: unsafe extern "C" fn(*mut Handle, u32) -> c_int,
    set_uri_allow_tls: unsafe extern "C" fn(*mut Handle, c_int) -> c_int,
    aio_connect_uri: unsafe extern "C" fn(*mut Handle, *const c_char) -> c_int,
    set_opt_mode: unsafe extern "C" fn(*mut Handle, bool) -> c_int,
    aio_is_negotiating: Ask,
    aio_opt_info: unsafe extern "C" fn(*mut Handle, Callback) -> c_int,
    aio_opt_abort: Ask,
    aio_is_ready: Ask,
    aio_is_processing: Ask,
    aio_is_dead: Ask,
    aio_is_closed: Ask,
    aio_get_fd: Ask,
    aio_get_direction: unsafe extern "C" fn(*mut Handle) -> c_uint,
    aio_notify_read: Ask,
    aio_notify_write: Ask,
    aio_command_completed: unsafe extern "C" fn(*mut Handle, u64) -> c_int,
    aio_pread: unsafe extern "C" fn(*mut Handle, *mut c_void, usize, u64, Callback, u32) -> i64,
    aio_pwrite: unsafe extern "C" fn(*mut Handle, *const c_void, usize, u64, Callback, u32) -> i64,
    aio_flush: unsafe extern "C" fn(*mut Handle, Callback, u32) -> i64,
    aio_trim: Range,
    aio_zero: Range,
    get_size: unsafe extern "C" fn(*mut Handle) -> i64,
    get_block_size: unsafe extern "C" fn(*mut Handle, c_int) -> i64,
    is_read_only: Ask,
    can_flush: Ask,
    can_trim: Ask,
    can_zero: Ask,
    can_multi_conn: Ask,
}

/// Loaded once; a failure too, since what is installed meanwhile is found by the next process.
pub(crate) fn functions() -> Result<&'static Functions, Failure> {
    static LOADED: OnceLock<Result<Functions, String>> = OnceLock::new();
    match LOADED.get_or_init(Functions::load) {
        Ok(functions) => Ok(functions),
        Err(e) => Err(Failure::NoLibrary(e.clone())),
    }
}
