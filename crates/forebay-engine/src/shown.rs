// SPDX-License-Identifier: MIT OR Apache-2.0
//! A view of an open pool, for calls that must not wait for its disk.
//!
//! Whoever holds the engine's lock for calls that exclude each other may be at the disk, and a disk
//! may hang.  So what status, the lists and the exporter read is here, as of the end of the last
//! call that changed it.  No lock leaves this module: nobody can hold one while he waits.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use forebay_sys as sys;

use crate::code::{Code, Result};

/// The kind of owner that a record of the table belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    Volume,
    Log,
    Map,
}

impl Kind {
    fn none(self) -> Code {
        Code(match self {
            Kind::Volume => sys::FBY_E_NO_VOLUME,
            Kind::Log => sys::FBY_E_NO_LOG,
            Kind::Map => sys::FBY_E_NO_MAP,
        })
    }
}

#[derive(Debug, Default)]
pub(crate) struct Table {
    pub options: sys::fby_options,
    pub destage_bytes: u64,
    /// As the table has them, with what changes by add, remove, attach and detach.
    pub maps: Vec<sys::fby_map_info>,
    pub names: HashMap<(Kind, String), u16>,
}

#[derive(Debug, Default)]
pub(crate) struct Shown(Mutex<Arc<Table>>);

impl Shown {
    pub fn get(&self) -> Arc<Table> {
        Arc::clone(&self.0.lock().unwrap_or_else(|e| e.into_inner()))
    }

    pub fn set(&self, table: Table) {
        let table = Arc::new(table);
        // The old one is dropped without the lock.
        let _old = std::mem::replace(&mut *self.0.lock().unwrap_or_else(|e| e.into_inner()), table);
    }

    pub fn find(&self, kind: Kind, name: &str) -> Result<u16> {
        if name.contains('\0') {
            return Err(Code(sys::FBY_E_NAME));
        }
        let found = self.get().names.get(&(kind, name.to_owned())).copied();
        found.ok_or(kind.none())
    }
}
