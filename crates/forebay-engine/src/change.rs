// SPDX-License-Identifier: MIT OR Apache-2.0
//! Calls that change what is shown of a pool, and publish it at their end.

use std::ops::{Deref, DerefMut};
use std::sync::MutexGuard;

use forebay_sys as sys;

use crate::code::{done, Result};
use crate::engine::{Admin, Engine};
use crate::media::Medium;
use crate::shown::{Kind, Table};

/// The lock for calls that exclude each other, held by one that changes what is shown.  Its end
/// publishes that.
#[derive(Debug)]
pub(crate) struct Change<'e, M: Medium> {
    engine: &'e Engine<M>,
    admin: MutexGuard<'e, Admin>,
}

impl<M: Medium> Deref for Change<'_, M> {
    type Target = Admin;

    fn deref(&self) -> &Admin {
        &self.admin
    }
}

impl<M: Medium> DerefMut for Change<'_, M> {
    fn deref_mut(&mut self) -> &mut Admin {
        &mut self.admin
    }
}

impl<M: Medium> Drop for Change<'_, M> {
    fn drop(&mut self) {
        self.engine.shown.set(self.engine.table(&self.admin));
    }
}

impl<M: Medium> Engine<M> {
    pub(crate) fn change(&self) -> Change<'_, M> {
        Change { engine: self, admin: self.admin() }
    }

    /// Reads the engine's memory alone.
    fn table(&self, admin: &Admin) -> Table {
        let mut table = Table {
            destage_bytes: admin.values().map(|m| m.len() as u64).sum(),
            ..Table::default()
        };
        // SAFETY: the pool is open; admin keeps setters away; the options are ours.
        unsafe { sys::fby_pool_options(self.pool, &mut table.options) };
        for index in 0..self.info().sb.nvolumes as u16 {
            let mut named = |kind, name: &[u8]| {
                let name = sys::text(name).into_owned();
                table.names.entry((kind, name)).or_insert(index);
            };
            if let Some(info) = self.volume_info(index).ok().filter(|info| info.used) {
                named(Kind::Volume, &info.spec.name);
            } else if let Ok(info) = self.log_info(index) {
                named(Kind::Log, &info.name);
            } else if let Ok(info) = self.map_info_of(admin, index) {
                named(Kind::Map, &info.spec.name);
                table.maps.push(info);
            }
        }
        table
    }

    /// The caller has the lock.
    pub(crate) fn map_info_of(&self, _: &Admin, map: u16) -> Result<sys::fby_map_info> {
        let mut info = sys::fby_map_info::default();
        // SAFETY: the pool is open; info is ours; admin keeps calls of maps apart.
        done(unsafe { sys::fby_map_info(self.pool, map, &mut info) })?;
        Ok(info)
    }
}
