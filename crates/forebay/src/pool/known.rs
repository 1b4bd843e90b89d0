// SPDX-License-Identifier: MIT OR Apache-2.0
//! Disks of which the system does not know enough to tell one from another.

use crate::error::Error;
use crate::origin::{split_identity, Origin};

/// Disks that change places change names: one that is known by nothing else is
/// taken by an explicit order only, and refused with this.
pub fn origin_known_by_name(volume: &str, origin: &dyn Origin) -> Error {
    if let Some(twin) = origin.twin() {
        return twins(volume, origin, &twin);
    }
    let identity = origin.identity();
    Error::WrongOrigin {
        name: volume.into(),
        origin: origin.info().name,
        cause: format!(
            "the system knows it by its name alone ({}), which another disk may have after a restart, and what is cached would then destroy that one",
            split_identity(&identity).0
        ),
        way_out: "give it an id (a virtual disk: a serial number; or a logical volume on it), or say that this machine's disks never change places (--origin-by-name)".into(),
    }
}

/// Either may be the volume's, and cached data would destroy the other.
pub(super) fn twins(volume: &str, origin: &dyn Origin, twin: &str) -> Error {
    Error::WrongOrigin {
        name: volume.into(),
        origin: origin.info().name,
        cause: format!("{twin}, so that the number does not say which of the two is the volume's"),
        way_out: "take the other disk away, or give one of them another serial number; two paths to one disk are used through the multipath device. To go by the name from now on: --accept-changed-origin --origin-by-name".into(),
    }
}
