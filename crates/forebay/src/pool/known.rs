// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is known of an origin before a volume is in front of it: disks of which the system does not
//! know enough to tell one from another, and pools that an origin holds.

use std::cell::OnceCell;
use std::io;
use std::path::Path;

use crate::attach::Away;
use crate::error::{Error, Result};
use crate::media::superblocks;
use crate::origin::{self, split_identity, Origin};

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

/// Refuses an origin, for a new volume, that holds a pool.
pub fn refuse_pool_as_origin(place: &Path) -> Result<()> {
    refuse_pool(place, origin::open(place, true, Away::default())?.as_ref())
}

/// A pool in an origin is overwritten by what is written to the volume, while another server may
/// have it open.  A volume in which somebody makes a pool later is one of a guest's, so only the
/// choice of an origin is asked about, and no attach of what is recorded.
pub(super) fn refuse_pool(place: &Path, origin: &dyn Origin) -> Result<()> {
    match holds_pool(origin.size_bytes(), |to, at| origin.read_at(to, at)) {
        Ok(false) => Ok(()),
        Ok(true) => Err(Error::HoldsData {
            path: place.into(),
            found: "a Forebay pool, which a volume in front of it would write over".into(),
            way_out: "Name the disk or file that the volume is to cache. If the pool is content of this disk, as a guest's is: forebay volume add --accept-pool".into(),
        }),
        Err(e) => Err(Error::Unreachable {
            path: place.into(),
            cause: format!("whether it holds a pool cannot be read: {e}"),
            way_out: "see that its server answers, and try again".into(),
        }),
    }
}

/// A place that cannot be read holds no superblock.  But an origin that does not answer in its time
/// is not asked for the next place: it would take as long again.
fn holds_pool(size: u64, read: impl Fn(&mut [u8], u64) -> io::Result<()>) -> io::Result<bool> {
    const BLOCK: usize = 4096;
    let silent = OnceCell::new();
    let first = |at: u64, to: &mut [u8]| {
        let mut block = [0; BLOCK];
        if silent.get().is_some() {
            return false;
        }
        let read = read(&mut block, at);
        to.copy_from_slice(&block[..to.len()]);
        let there = read.is_ok();
        if let Some(e) = read.err().filter(|e| e.kind() == io::ErrorKind::TimedOut) {
            let _ = silent.set(e);
        }
        there
    };
    let found = superblocks(size, BLOCK as u64, first).next().is_some();
    silent.into_inner().map_or(Ok(found), Err)
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::cell::Cell;

    use forebay_engine::sys;

    #[test]
    fn an_origin_that_does_not_answer_is_asked_once() {
        const SIZE: u64 = 64 << 20;
        let asked = Cell::new(0);
        let with = |answer: &dyn Fn(u64, &mut [u8]) -> io::Result<()>| {
            asked.set(0);
            let held = holds_pool(SIZE, |to, at| {
                asked.set(asked.get() + 1);
                answer(at, to)
            });
            (held.map_err(|e| e.kind()), asked.get())
        };
        let silent = |_: u64, _: &mut [u8]| Err(io::ErrorKind::TimedOut.into());
        assert_eq!(with(&silent), (Err(io::ErrorKind::TimedOut), 1));
        // Each place may be bad but the first one, which is read last.
        let (held, places) = with(&|at, to| match at {
            0 => {
                to[..8].copy_from_slice(&sys::FBY_MAGIC.to_le_bytes());
                Ok(())
            }
            _ => Err(io::Error::from_raw_os_error(5)),
        });
        assert!(held == Ok(true) && places > 2, "{held:?}, {places}");
        assert_eq!(with(&|_, _| Err(io::Error::from_raw_os_error(5))), (Ok(false), places));
        assert_eq!(with(&|_, _| Ok(())), (Ok(false), places));
    }
}
