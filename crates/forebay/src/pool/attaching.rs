// SPDX-License-Identifier: MIT OR Apache-2.0
//! Volumes that are about to be attached: reserved, while their origins are asked and nothing is
//! locked.

use std::sync::Weak;

use forebay_engine::sys;

use super::Pool;
use crate::engine::Code;
use crate::error::{Error, Result};
use crate::opened::{OpenPool, Volumes};
use crate::report::VolumeInfo;
use crate::shared_pool::SharedPool;

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

/// Why nobody else may have a volume now, with the way out; None: he may.
pub(super) fn taken(core: &SharedPool, volumes: &Volumes<'_>, info: &VolumeInfo) -> Option<Error> {
    let used = volumes.get(&info.index).is_some_and(|volume| volume.strong_count() > 0);
    let busy = |cause: &str, way_out: &str| Error::Volume {
        name: info.name.clone(),
        cause: cause.into(),
        way_out: way_out.into(),
        code: sys::FBY_E_VOLUME_BUSY,
    };
    match (info.attached, volumes.contains_key(&info.index)) {
        // Its last handle is gone.
        (true, _) if !used => Some(busy(
            "it is being detached, and requests to its origin have not ended",
            "wait until they have; if the origin hangs, bring it back, or end the process",
        )),
        (true, _) => Some(core.named_error(&info.name, Code(sys::FBY_E_VOLUME_BUSY))),
        (false, true) if used => Some(core.named_error(&info.name, Code(sys::FBY_E_VOLUME_BUSY))),
        (false, true) => Some(busy(
            "it is being attached, and its origin has not answered",
            "try again when the origin has; if it hangs, bring it back, or end the process",
        )),
        (false, false) => None,
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
        if let Some(e) = taken(core, &volumes, &info) {
            return Err(e);
        }
        volumes.insert(index, Weak::new());
        Ok((info, Attaching { pool: &self.0, index }))
    }
}
