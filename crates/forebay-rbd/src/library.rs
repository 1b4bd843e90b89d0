// SPDX-License-Identifier: MIT OR Apache-2.0
//! The functions of librados and librbd that are used, found when the first origin wants
//! them, so that who has no origin on Ceph needs neither.  Their ABIs have only grown since
//! Ceph 15 (2020), the oldest that has all of them.

#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_void};
use std::sync::OnceLock;

use libloading::Library;

use crate::Failure;

/// A `rados_t`.
pub(crate) enum Cluster {}
/// A `rados_ioctx_t`.
pub(crate) enum IoCtx {}
/// A `rbd_image_t`.
pub(crate) enum Handle {}
/// A `rbd_completion_t`.
pub(crate) enum Completion {}

pub(crate) type Ended = unsafe extern "C" fn(*mut Completion, *mut c_void);
pub(crate) type Changed = unsafe extern "C" fn(*mut c_void);

macro_rules! functions {
    ($($file:literal: { $($name:ident: $type:ty,)* })*) => {
        pub(crate) struct Functions {
            $($(pub $name: $type,)*)*
            /// Their library, never unloaded.
            _libraries: Vec<Library>,
        }

        impl Functions {
            fn load() -> Result<Functions, String> {
                let mut libraries = Vec::new();
                // SAFETY: neither has initialisers that could do harm, and these are the
                // functions of their headers, librados.h and librbd.h, with their types.
                unsafe {
                    $(
                        let library = Library::new($file).map_err(|e| e.to_string())?;
                        $(let $name = *library
                            .get::<$type>(stringify!($name))
                            .map_err(|e| e.to_string())?;)*
                        libraries.push(library);
                    )*
                    Ok(Functions { $($($name,)*)* _libraries: libraries })
                }
            }
        }
    };
}

functions! {
    "librados.so.2": {
        rados_create: unsafe extern "C" fn(*mut *mut Cluster, *const c_char) -> c_int,
        rados_conf_read_file: unsafe extern "C" fn(*mut Cluster, *const c_char) -> c_int,
        rados_conf_parse_env: unsafe extern "C" fn(*mut Cluster, *const c_char) -> c_int,
        rados_conf_set: unsafe extern "C" fn(*mut Cluster, *const c_char, *const c_char) -> c_int,
        rados_connect: unsafe extern "C" fn(*mut Cluster) -> c_int,
        rados_cluster_fsid: unsafe extern "C" fn(*mut Cluster, *mut c_char, usize) -> c_int,
        rados_shutdown: unsafe extern "C" fn(*mut Cluster),
        rados_ioctx_create: unsafe extern "C" fn(*mut Cluster, *const c_char, *mut *mut IoCtx) -> c_int,
        rados_ioctx_set_namespace: unsafe extern "C" fn(*mut IoCtx, *const c_char),
        rados_ioctx_get_id: unsafe extern "C" fn(*mut IoCtx) -> i64,
        rados_ioctx_destroy: unsafe extern "C" fn(*mut IoCtx),
    }
    "librbd.so.1": {
        rbd_open: unsafe extern "C" fn(*mut IoCtx, *const c_char, *mut *mut Handle, *const c_char) -> c_int,
        rbd_open_read_only: unsafe extern "C" fn(*mut IoCtx, *const c_char, *mut *mut Handle, *const c_char) -> c_int,
        rbd_close: unsafe extern "C" fn(*mut Handle) -> c_int,
        rbd_get_id: unsafe extern "C" fn(*mut Handle, *mut c_char, usize) -> c_int,
        rbd_get_size: unsafe extern "C" fn(*mut Handle, *mut u64) -> c_int,
        rbd_lock_acquire: unsafe extern "C" fn(*mut Handle, c_int) -> c_int,
        rbd_lock_release: unsafe extern "C" fn(*mut Handle) -> c_int,
        rbd_is_exclusive_lock_owner: unsafe extern "C" fn(*mut Handle, *mut c_int) -> c_int,
        rbd_metadata_get: unsafe extern "C" fn(*mut Handle, *const c_char, *mut c_char, *mut usize) -> c_int,
        rbd_metadata_set: unsafe extern "C" fn(*mut Handle, *const c_char, *const c_char) -> c_int,
        rbd_metadata_remove: unsafe extern "C" fn(*mut Handle, *const c_char) -> c_int,
        rbd_update_watch: unsafe extern "C" fn(*mut Handle, *mut u64, Changed, *mut c_void) -> c_int,
        rbd_update_unwatch: unsafe extern "C" fn(*mut Handle, u64) -> c_int,
        rbd_aio_create_completion: unsafe extern "C" fn(*mut c_void, Ended, *mut *mut Completion) -> c_int,
        rbd_aio_get_return_value: unsafe extern "C" fn(*mut Completion) -> isize,
        rbd_aio_release: unsafe extern "C" fn(*mut Completion),
        rbd_aio_read: unsafe extern "C" fn(*mut Handle, u64, usize, *mut c_char, *mut Completion) -> c_int,
        rbd_aio_write: unsafe extern "C" fn(*mut Handle, u64, usize, *const c_char, *mut Completion) -> c_int,
        rbd_aio_flush: unsafe extern "C" fn(*mut Handle, *mut Completion) -> c_int,
        rbd_aio_discard: unsafe extern "C" fn(*mut Handle, u64, u64, *mut Completion) -> c_int,
        rbd_aio_write_zeroes: unsafe extern "C" fn(*mut Handle, u64, usize, *mut Completion, c_int, c_int) -> c_int,
    }
}

/// Loaded once; a failure too, since what is installed meanwhile is found by the next process.
pub(crate) fn functions() -> Result<&'static Functions, Failure> {
    static LOADED: OnceLock<Result<Functions, String>> = OnceLock::new();
    match LOADED.get_or_init(Functions::load) {
        Ok(functions) => Ok(functions),
        Err(e) => Err(Failure::NoLibrary(e.clone())),
    }
}
