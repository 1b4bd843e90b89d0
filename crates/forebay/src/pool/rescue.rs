// SPDX-License-Identifier: MIT OR Apache-2.0
//! The rescue of volumes whose pool's disk has failed: memory has what they hold, and it is gone
//! with the process.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use forebay_engine::sys;

use super::Pool;
use crate::attach::AttachOptions;
use crate::error::{Error, Result};
use crate::report::VolumeInfo;
use crate::shared_pool::SharedPool;
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

/// A hole may hold what the origin lacks, with a name or without.
fn is_at_stake(v: &VolumeInfo) -> bool {
    v.attached || v.pages > 0 || v.damaged || v.holes > 0 || v.holes_unknown > 0
}

impl Pool {
    /// Volumes that have something in this process if the disk has failed: those that are attached,
    /// and those that hold what their origins lack, perhaps.
    pub fn at_stake(&self) -> Vec<VolumeInfo> {
        self.volumes().into_iter().filter(is_at_stake).collect()
    }

    /// Writes a record as it is, of a volume that is not attached and holds something: a disk that
    /// died while nothing was written is noticed so.
    pub fn touch_disk(&self) {
        let core = self.0.core();
        if !core.takes_records() {
            return;
        }
        let _volumes = self.0.volumes();
        let idle = |v: &VolumeInfo| !v.attached && !v.damaged && v.pages > 0;
        if let Some(v) = core.volumes().into_iter().find(idle) {
            core.touch(v.index);
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
    /// of the volumes are that were attached before.  Another thread may be attaching it: that is
    /// waited for, until it is given up.  Lost entries that nobody accepted refuse nothing, and count
    /// in the verdict: the origin gets what there is.
    pub fn attach_for_rescue(&self, name: &str, given_up: &AtomicBool) -> Result<Volume> {
        const PAUSE: Duration = Duration::from_millis(50);
        let state = self.0.core().marks_in.lock().unwrap_or_else(|e| e.into_inner()).clone();
        let options = AttachOptions { state, rescue: true, ..Default::default() };
        loop {
            let busy = match self.attach(name, &options) {
                Err(e @ Error::Volume { code: sys::FBY_E_VOLUME_BUSY, .. }) => e,
                done => return done,
            };
            if let Some(volume) = self.volume(name) {
                return Ok(volume);
            }
            if given_up.load(Ordering::Acquire) {
                return Err(busy);
            }
            std::thread::sleep(PAUSE);
        }
    }
}

impl SharedPool {
    /// Whether a record that is written says something of a disk.
    fn takes_records(&self) -> bool {
        self.sender.is_some() && !self.read_only
    }

    /// Writes the record of a volume as it is.  The pool remembers an error.
    fn touch(&self, index: u16) {
        if let Ok(raw) = self.engine.volume_info(index) {
            let (identity, sectors) = (sys::text(&raw.spec.identity), raw.spec.origin_sectors);
            let _ = self.engine.volume_rebind(index, &identity, sectors);
        }
    }

    /// Lets the engine know of the loss of the pool's file, which takes no record: otherwise the
    /// origin's mark would be numbered there, and the attach refused.  The volume is reserved for
    /// that attach, and so no other one makes it busy.
    pub(super) fn learn_of_loss(&self, index: u16) {
        if self.takes_records() && self.is_lost() && !self.has_failed() {
            self.touch(index);
        }
    }

    /// A healthy pool has time to ask what is to become of lost entries.
    pub(super) fn check_rescue(&self, rescue: bool) -> Result<()> {
        match rescue && !self.has_failed() && !self.is_lost() {
            false => Ok(()),
            true => Err(Error::usage(
                "a rescue is for a pool whose disk has failed, or whose file is lost",
                "attach the volume without it",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cause_alone_puts_a_volume_at_stake() {
        let empty = VolumeInfo::default();
        assert!(!is_at_stake(&empty));
        for at_stake in [
            VolumeInfo { attached: true, ..empty.clone() },
            VolumeInfo { pages: 1, ..empty.clone() },
            VolumeInfo { damaged: true, ..empty.clone() },
            VolumeInfo { holes: 1, ..empty.clone() },
            VolumeInfo { holes_unknown: 1, ..empty.clone() },
        ] {
            assert!(is_at_stake(&at_stake), "{at_stake:?}");
        }
    }
}
