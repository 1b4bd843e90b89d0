// SPDX-License-Identifier: MIT OR Apache-2.0
//! Origins: the block devices that volumes cache.
//!
//! [`FileOrigin`] is a file or a block device, [`NbdOrigin`] an export of an NBD
//! server, [`RbdOrigin`] an image of a Ceph cluster.  An embedder may bring its own by implementing [`Origin`]; [`MemOrigin`]
//! and [`FaultyOrigin`] are for tests.

mod asked;
mod claim;
mod faulty;
mod file;
mod holes;
mod identity;
mod mem;
mod nbd;
mod open;
mod rbd;
mod sent;
mod whole;

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use crate::error::Result;
use crate::mark::{MarkedBy, MarkedOn};
use crate::report::OriginInfo;

pub(crate) use asked::{Look, Sought};
pub(crate) use claim::{direct_if_possible, lock, open_claimed};
pub use faulty::{FaultOp, Faults, FaultyOrigin};
pub use file::FileOrigin;
pub(crate) use identity::{is_own as is_own_id, of_file as identity_of_file};
pub use mem::MemOrigin;
pub use nbd::NbdOrigin;
pub use open::open;
pub(crate) use open::{place_of, Place};
pub use rbd::RbdOrigin;
pub(crate) use whole::{read_full, written};

/// A part of an origin, or of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Bytes.
    pub len: u64,
    /// It has no blocks.
    pub hole: bool,
    /// It reads as zeroes.
    pub zero: bool,
}

impl Extent {
    pub fn data(len: u64) -> Extent {
        Extent { len, hole: false, zero: false }
    }

    /// A hole of a file: it reads as zeroes.
    pub fn hole(len: u64) -> Extent {
        Extent { len, hole: true, zero: true }
    }
}

/// The block device that a volume caches.  All calls may come from any number of threads at
/// once; offsets and lengths are bytes, multiples of the volume's block size, and within the
/// size.  A call that panics counts as failed.
///
/// The cache relies on this: when [`flush`](Origin::flush) returns without an error, all writes
/// that completed before it began survive a power cut.  If some do not, at least the next flush
/// reports it, and no other request does: an error of `write_at` concerns only that write.
/// Only one flush is called at a time.
pub trait Origin: Send + Sync + fmt::Debug {
    /// Fixed while the origin is in use.
    fn size_bytes(&self) -> u64;

    /// The smallest unit it is read and written in: 512 or 4096.
    fn logical_block(&self) -> u32;

    /// `id|path`: an id that stays the same as long as the data is the same
    /// origin's, and a path (may be empty) where it can be found again.  The
    /// volume records it, at most 127 bytes; the id has no `|`, and begins as none of Forebay's
    /// own does (`file:`, `serial:`, ...), unless one of them is what it stands for.
    fn identity(&self) -> String;

    /// Another present origin that has the same id, and how both are known, so that the id tells
    /// nothing ("/dev/sdc is serial:7 as well"); [`identity`](Self::identity) has a name then.
    fn twin(&self) -> Option<String> {
        None
    }

    /// How the origin differs from its state at the open ("has 4096 bytes now, of 8192"); asked
    /// before it is called complete.
    fn changed(&self) -> Option<String> {
        None
    }

    /// It has lost its end, with whatever was written there; `None`: it does not tell now.
    fn is_shorter(&self) -> Option<bool> {
        Some(false)
    }

    /// Whatever is written to it ends with this process, so that its [`flush`](Self::flush) fails
    /// and a drain does not wait for it.
    fn is_gone(&self) -> bool {
        false
    }

    /// It cannot be asked for anything now; for how long, and why.
    fn away(&self) -> Option<String> {
        None
    }

    /// The part of the origin that bears the mark while a pool may hold data that it lacks.
    /// `None`: it is never marked, and the caller that provides such an origin has to know
    /// which pool belongs to it.
    fn marked_by(&self) -> Option<MarkedBy<'_>> {
        None
    }

    /// A keeper of its own, instead of what [`marked_by`](Self::marked_by) tells.
    #[cfg(test)]
    fn keep(&self) -> Option<Box<dyn crate::mark::Keep>> {
        None
    }

    /// For status and messages.
    fn info(&self) -> OriginInfo;

    /// Fills the buffer.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()>;

    /// Writes all of the data; durable after the next flush.
    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()>;

    fn flush(&self) -> io::Result<()>;

    /// A hint that the range is not needed; its content afterwards is up to the origin.  An
    /// origin that cannot discard does nothing.
    fn discard(&self, offset: u64, len: u64) -> io::Result<()>;

    /// The range reads as zeroes afterwards; durable after the next flush.  It may have no
    /// blocks then, so that a later write of it may find no space.
    fn write_zeroes(&self, offset: u64, len: u64) -> io::Result<()>;

    /// Like `write_zeroes`, but the range keeps or gets its blocks, as far as the origin can do
    /// that.
    fn allocate_zeroes(&self, offset: u64, len: u64) -> io::Result<()> {
        self.write_zeroes(offset, len)
    }

    /// Lists data and holes of the range, from its start to its end; unknown parts count as
    /// data.
    fn extents(&self, offset: u64, len: u64) -> Vec<Extent> {
        let _ = offset;
        vec![Extent::data(len)]
    }

    /// Zeroing is faster than writing.
    fn write_zeroes_is_fast(&self) -> bool {
        false
    }

    /// The volume is being detached by force: requests that wait for an origin that is away
    /// fail, and so do later ones.
    fn give_up(&self) {}

    /// A descriptor that io_uring may write the range to instead of
    /// [`write_at`](Origin::write_at), from memory aligned to 4 KiB.  `None`:
    /// destage calls `write_at` on a thread.
    fn uring_fd(&self, offset: u64, len: u64) -> Option<BorrowedFd<'_>> {
        let _ = (offset, len);
        None
    }
}

/// How an origin that nobody has open, and that was at this place, differs now; one on the network
/// is asked by a [`Look`].
pub(crate) fn changed(place: &Path, id: &str, size_bytes: u64) -> Result<Option<String>> {
    match place_of(place)? {
        Place::Path(path) => file::changed(&path, id, size_bytes),
        Place::Nbd(..) | Place::Rbd(_) => Ok(None),
    }
}

/// How the size of an origin differs from its volume's.
fn size_changed(size: u64, of_volume: u64) -> Option<String> {
    let has = format!("has {size} bytes, the volume {of_volume}: it");
    match size.cmp(&of_volume) {
        std::cmp::Ordering::Less => Some(format!("{has} was truncated")),
        std::cmp::Ordering::Greater => Some(format!("{has} has grown")),
        std::cmp::Ordering::Equal => None,
    }
}

/// An origin as who asks for its mark sees it: a look that claims nothing.
#[derive(Debug)]
pub(crate) enum Known {
    /// By its id: a device, an export.
    Named(String),
    /// A file, with its id, by O_PATH.
    File(String, OwnedFd),
    /// An origin that had to be opened for that, read-only.
    Opened(Box<RbdOrigin>),
}

impl Known {
    /// The size of a file or image.
    pub fn size_bytes(&self) -> Option<u64> {
        match self {
            Known::Named(_) => None,
            Known::File(_, fd) => Some(rustix::fs::fstat(fd).ok()?.st_size as u64),
            Known::Opened(origin) => Some(origin.size_bytes()),
        }
    }

    pub fn marked_by(&self) -> MarkedBy<'_> {
        match self {
            Known::Named(name) => MarkedBy { name: name.clone(), on: MarkedOn::Host },
            Known::File(name, fd) => {
                MarkedBy { name: name.clone(), on: MarkedOn::Unopened(fd.as_fd()) }
            }
            Known::Opened(origin) => origin.mark(),
        }
    }
}

/// Looks at what is at a place.
pub(crate) fn known_by(place: &Path) -> Result<Known> {
    Ok(match place_of(place)? {
        Place::Path(path) => file::known_by(&path)?,
        Place::Nbd(_, uri) => Known::Named(nbd::known_by(&uri)),
        Place::Rbd(uri) => Known::Opened(Box::new(RbdOrigin::open(uri, true, Default::default())?)),
    })
}

/// A file or device is at the place; else it is asked over the network.
pub(crate) fn is_on_network(place: &Path) -> bool {
    matches!(place_of(place), Ok(Place::Nbd(..) | Place::Rbd(_)))
}

/// The size that the server of an NBD export says; `None`: it is another kind of origin.
pub(crate) fn size_of_export(place: &Path) -> Result<Option<u64>> {
    match place_of(place)? {
        Place::Nbd(uri, _) => nbd::size_of(uri).map(Some),
        Place::Path(_) | Place::Rbd(_) => Ok(None),
    }
}

/// Its id and its mark are asked for over the network.
pub(crate) fn is_known_by_network(place: &Path) -> bool {
    matches!(place_of(place), Ok(Place::Rbd(_)))
}

/// Nothing but the place of its mark keeps two users of it apart.
pub(crate) fn is_kept_apart_by_marks(place: &Path) -> bool {
    matches!(place_of(place), Ok(Place::Nbd(..)))
}

/// The id and the path of a recorded identity.
pub(crate) fn split_identity(identity: &str) -> (&str, Option<&str>) {
    match identity.split_once('|') {
        Some((id, path)) => (id, (!path.is_empty()).then_some(path)),
        None => (identity, None),
    }
}

/// Puts an identity together; a path that does not fit is left out.
pub(crate) fn join_identity(id: &str, path: &str) -> String {
    const MAX: usize = forebay_engine::sys::FBY_IDENTITY_MAX;
    match id.len() + 1 + path.len() <= MAX {
        true => format!("{id}|{path}"),
        false => format!("{id}|"),
    }
}

pub(crate) fn check_range(size: u64, offset: u64, len: u64) -> io::Result<()> {
    match offset.checked_add(len) {
        Some(end) if end <= size => Ok(()),
        _ => Err(io::Error::from(io::ErrorKind::InvalidInput)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_split_and_join() {
        assert_eq!(split_identity("file:1|/a|b"), ("file:1", Some("/a|b")));
        assert_eq!(split_identity("file:1|"), ("file:1", None));
        assert_eq!(split_identity("file:1"), ("file:1", None));
        assert_eq!(join_identity("i", "/p"), "i|/p");
        let long = "/".repeat(200);
        assert_eq!(join_identity("i", &long), "i|");
        assert_eq!(join_identity("i", &long[..125]).len(), 127);
    }
}
