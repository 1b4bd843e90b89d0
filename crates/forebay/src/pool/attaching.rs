// SPDX-License-Identifier: MIT OR Apache-2.0
//! Volumes that are about to be attached: reserved, while their origins are asked and nothing is
//! locked.

use std::sync::Weak;

use forebay_engine::sys;

use super::Pool;
use crate::engine::Code;
use crate::error::Result;
use crate::opened::OpenPool;
use crate::report::VolumeInfo;

/// A volume that is about to be attached.
pub(super) struct Attaching<'p> {
    pool: &'p OpenPool,
    index: u16,
}

impl Drop for Attaching<'_> {
    fn drop(&mut self) {
        let mut volumes = self.pool.volumes();
        // One that is attached has a handle.
        if volumes.get(&self.index).is_some_and(|volume| volume.strong_count() == 0) {
            volumes.remove(&self.index);
        }
    }
}

impl Pool {
    /// Nobody else attaches or removes it until the result is dropped.
    pub(super) fn begin_attach(&self, name: &str) -> Result<(VolumeInfo, Attaching<'_>)> {
        let mut volumes = self.0.volumes();
        let core = self.0.core();
        let index = core.find(name)?;
        let info = core.volume_info(index)?;
        if info.damaged {
            return Err(core.named_error(name, Code(sys::FBY_E_VOLUME_DAMAGED)));
        }
        if info.attached || volumes.contains_key(&index) {
            return Err(core.named_error(name, Code(sys::FBY_E_VOLUME_BUSY)));
        }
        volumes.insert(index, Weak::new());
        Ok((info, Attaching { pool: &self.0, index }))
    }
}
