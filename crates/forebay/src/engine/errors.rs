// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the engine's errors mean to a person, and the exit codes of those of a volume.

use forebay_sys as sys;

use super::Code;
use crate::error::Error;

/// Why a pool could not be opened, with the way out.
pub(crate) fn open_error(path: &std::path::Path, e: Code) -> Error {
    let path = path.to_path_buf();
    let cause = e.message().to_string();
    match e.0 {
        sys::FBY_E_NO_SUPERBLOCK => {
            Error::NotAPool { path, found: "no superblock was found".into() }
        }
        sys::FBY_E_BAD_SUPERBLOCK => Error::Damaged {
            path,
            cause,
            way_out: "nothing was written; keep the media as it is and restore the first 8 KiB from a copy if there is one".into(),
        },
        sys::FBY_E_VERSION | sys::FBY_E_FEATURE => Error::Unsupported {
            path,
            cause,
            way_out: "nothing was written; open it with the version of Forebay that made it".into(),
        },
        sys::FBY_E_FEATURE_RO => Error::Unsupported {
            path,
            cause,
            way_out: "open it read-only, or with a newer version".into(),
        },
        sys::FBY_E_MEDIA_SIZE => Error::Damaged {
            path,
            cause,
            way_out: "it was truncated, or this is not the whole of it; nothing was written. Restore its size, and the data with it".into(),
        },
        sys::FBY_E_READ_ONLY => Error::ReadOnly { what: path.display().to_string() },
        sys::FBY_E_GEOMETRY | sys::FBY_E_VOLUME_DAMAGED | sys::FBY_E_NUMBERS => Error::Damaged {
            path,
            cause,
            way_out: "nothing was written; see `forebay dump` and `forebay check`".into(),
        },
        _ => Error::Internal { what: path.display().to_string(), code: e.0, message: e.message() },
    }
}

/// Why something about a volume was refused, with the way out.
pub(crate) fn volume_error(name: &str, e: Code) -> Error {
    let name = name.to_string();
    let way_out = match e.0 {
        sys::FBY_E_READ_ONLY => return Error::ReadOnly { what: format!("volume {name}") },
        sys::FBY_E_HOLES => {
            let cause = e.message().to_string();
            let way_out = "restore from a backup, or attach with holes accepted: blocks that are not named may then show older data".into();
            return Error::Holes { name, cause, way_out };
        }
        sys::FBY_E_HOLES_KNOWN => {
            let cause = e.message().to_string();
            let way_out = "attach with holes isolated: the blocks lost answer EIO until they are overwritten".into();
            return Error::Holes { name, cause, way_out };
        }
        sys::FBY_E_NO_VOLUME => "see the list of volumes",
        sys::FBY_E_VOLUME_EXISTS => "use another name",
        sys::FBY_E_VOLUME_TABLE_FULL => "remove a volume, or use another pool",
        sys::FBY_E_VOLUME_DAMAGED => "the data of the volume is not touched; restore the volume table from a copy, or remove the volume and discard what it holds",
        sys::FBY_E_VOLUME_BUSY => "detach it first",
        sys::FBY_E_VOLUME_DETACHED => "attach it first",
        sys::FBY_E_VOLUME_DIRTY => "attach and drain it first, or discard what it holds",
        sys::FBY_E_ORIGIN_SIZE | sys::FBY_E_ORIGIN_IDENTITY => "attach the right origin",
        sys::FBY_E_NAME => "use 1 to 63 of these characters",
        sys::FBY_E_GEOMETRY => "use an origin of at least one block and at most 2^60 bytes",
        sys::FBY_E_BUSY => "try again when they are done",
        sys::FBY_E_ORIGIN_IO => "what went past the cache since the flush before may be lost: write it again; what is cached is safe",
        _ => {
            let what = format!("volume {name}");
            return Error::Internal { what, code: e.0, message: e.message() };
        }
    };
    Error::Volume { name, cause: e.message().into(), way_out: way_out.into(), code: e.0 }
}

/// The exit code of an error of the engine about a volume.
pub(crate) fn exit_code(code: i32) -> u8 {
    match code {
        sys::FBY_E_NO_VOLUME => 3,
        sys::FBY_E_VOLUME_BUSY | sys::FBY_E_BUSY | sys::FBY_E_VOLUME_DIRTY => 4,
        sys::FBY_E_VOLUME_DAMAGED | sys::FBY_E_INVARIANT => 5,
        sys::FBY_E_ORIGIN_SIZE | sys::FBY_E_ORIGIN_IDENTITY => 6,
        sys::FBY_E_ORIGIN_IO => 7,
        sys::FBY_E_VOLUME_TABLE_FULL => 8,
        sys::FBY_E_READ_ONLY => 9,
        sys::FBY_E_HOLES | sys::FBY_E_HOLES_KNOWN | sys::FBY_E_LOST => 11,
        _ => 2,
    }
}
