// SPDX-License-Identifier: MIT OR Apache-2.0
//! What becomes of volumes when the disk of their pool has failed: memory has what they hold, and it
//! is gone with the process.

use forebay_engine::sys;

use super::Pool;
use crate::attach::AttachOptions;
use crate::error::Result;
use crate::report::VolumeInfo;
use crate::volume::Volume;

/// How far destage has come with an origin since the pool's disk failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RescueProgress {
    /// All entries up to this number are on the origin, and flushed there.
    pub home: u64,
    /// Bytes written to the origin since the volume was added.
    pub written_bytes: u64,
    /// Rounds that ended with a flush of the origin.
    pub rounds: u64,
    /// Requests that the origin has refused.
    pub errors: u64,
}

impl Pool {
    /// Volumes that have something in this process if the disk has failed: those that are attached,
    /// and those that hold what their origins lack, perhaps.
    pub fn at_stake(&self) -> Vec<VolumeInfo> {
        let lost = |v: &VolumeInfo| v.damaged || v.holes + v.holes_unknown > 0;
        let all = self.volumes().into_iter();
        all.filter(|v| v.attached || v.pages > 0 || lost(v)).collect()
    }

    /// Writes a record as it is, of a volume that is not attached and holds something: a disk that
    /// died while nothing was written is noticed so.
    pub fn touch_disk(&self) {
        let core = self.0.core();
        if core.sender.is_none() || core.read_only {
            return;
        }
        let _volumes = self.0.volumes();
        let idle = |v: &VolumeInfo| !v.attached && !v.damaged && v.pages > 0;
        let Some(v) = core.volumes().into_iter().find(idle) else { return };
        if let Ok(raw) = core.engine.volume_info(v.index) {
            let (identity, sectors) = (sys::text(&raw.spec.identity), raw.spec.origin_sectors);
            // The pool remembers the error.
            let _ = core.engine.volume_rebind(v.index, &identity, sectors);
        }
    }

    pub fn rescue_progress(&self, volume: &VolumeInfo) -> Result<RescueProgress> {
        let core = self.0.core();
        let info = core.engine.volume_info(volume.index);
        let info = info.map_err(|e| core.named_error(&volume.label(), e))?;
        Ok(RescueProgress {
            home: info.home,
            written_bytes: info.origin_sectors_written * 512,
            rounds: info.rounds,
            errors: info.origin_errors,
        })
    }

    /// Attaches a volume to its recorded origin, for what it holds.  Marks are looked for where those
    /// of the volumes are that were attached before.
    pub fn attach_for_rescue(&self, name: &str) -> Result<Volume> {
        let state = self.0.core().marks_in.lock().unwrap_or_else(|e| e.into_inner()).clone();
        self.attach(name, &AttachOptions { state, ..Default::default() })
    }
}
