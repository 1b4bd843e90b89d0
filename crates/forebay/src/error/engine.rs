// SPDX-License-Identifier: MIT OR Apache-2.0
//! User-facing messages for the engine's errors, and the exit codes of those of a volume.

use forebay_engine::{sys, Code};

use super::Error;

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
        sys::FBY_E_VERSION | sys::FBY_E_FEATURE | sys::FBY_E_GROUP | sys::FBY_E_GROUPED => Error::Unsupported {
            path,
            cause,
            way_out: "nothing was written; open it with the version of Forebay that made it".into(),
        },
        sys::FBY_E_UNIT => Error::Unsupported {
            path,
            cause,
            way_out: "nothing was written; copy the pool to a device of smaller blocks, or make a new one here".into(),
        },
        sys::FBY_E_LOGS_ONLY => Error::Unsupported {
            path,
            cause: "the pool is written in groups, and it has something that such a pool does not hold".into(),
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

/// The pool has a chunk, or a record of its volume table, of a kind that is not known here.
pub(crate) fn unknown_error(path: &std::path::Path, e: Code, at: u32, kind: u32) -> Error {
    let what = if e.is(sys::FBY_E_CHUNK_KIND) { "chunk" } else { "record" };
    Error::Unsupported {
        path: path.to_path_buf(),
        cause: format!("{} ({what} {at}, kind {kind})", e.message()),
        way_out: "nothing was written; open it with the version of Forebay that wrote it. Read-only, as `forebay dump` and `forebay check` do, the rest can be looked at".into(),
    }
}

/// Why something about a volume was refused, with the way out.
pub(crate) fn volume_error(name: &str, e: Code) -> Error {
    let name = name.to_string();
    let way_out = match e.0 {
        sys::FBY_E_READ_ONLY => return Error::ReadOnly { what: format!("volume {name}") },
        sys::FBY_E_HOLES => {
            let cause = e.message().to_string();
            let way_out = "restore from a backup, or attach with holes accepted (--holes accept): blocks that are not named may then show older data".into();
            return Error::Holes { name, cause, way_out };
        }
        sys::FBY_E_HOLES_KNOWN => {
            let cause = e.message().to_string();
            let way_out = "attach with holes isolated (--holes isolate): the blocks lost answer EIO until they are overwritten".into();
            return Error::Holes { name, cause, way_out };
        }
        sys::FBY_E_VOLUME_DAMAGED => {
            let way_out = format!("the data of the volume is not touched; restore the volume table from a copy, or remove the volume and what it holds: forebay volume remove POOL '{name}' --discard");
            return Error::Volume { name, cause: e.message().into(), way_out, code: e.0 };
        }
        sys::FBY_E_NO_VOLUME => "see the list of volumes",
        sys::FBY_E_VOLUME_EXISTS => {
            let cause = "a volume or log of this name exists".into();
            return Error::Volume { name, cause, way_out: "use another name".into(), code: e.0 };
        }
        sys::FBY_E_VOLUME_TABLE_FULL => "remove a volume, or use another pool",
        sys::FBY_E_VOLUME_BUSY => "detach it first",
        sys::FBY_E_VOLUME_DETACHED => "attach it first",
        sys::FBY_E_VOLUME_DIRTY => "drain it first (forebay drain), or discard what it holds (--discard)",
        sys::FBY_E_ORIGIN_SIZE | sys::FBY_E_ORIGIN_IDENTITY => "attach the right origin",
        sys::FBY_E_NAME => "use another, of 1 to 63 characters",
        sys::FBY_E_STATIC_FULL => "use a smaller share, or remove a static volume that is not needed",
        sys::FBY_E_ERAS => "drain it, detach it and attach it: an empty volume starts over. If the attach was refused, remove it with its data, and add it again",
        sys::FBY_E_GEOMETRY => "use an origin of at least one block and at most 2^60 bytes",
        sys::FBY_E_BUSY => "try again when they are done",
        sys::FBY_E_ORIGIN_IO => "writes that bypassed the cache since the last flush may be lost: write them again; cached data is safe",
        _ => {
            let what = format!("volume {name}");
            return Error::Internal { what, code: e.0, message: e.message() };
        }
    };
    Error::Volume { name, cause: e.message().into(), way_out: way_out.into(), code: e.0 }
}

/// Why something about a log was refused, with the way out.
pub(crate) fn log_error(name: &str, e: Code) -> Error {
    let mut cause = e.message().to_string();
    let way_out = match e.0 {
        sys::FBY_E_READ_ONLY => return Error::ReadOnly { what: format!("log {name}") },
        sys::FBY_E_VOLUME_DAMAGED => {
            cause = "both copies of its record are damaged".into();
            "its entries are not touched; restore the table from a copy"
        }
        sys::FBY_E_VOLUME_EXISTS => {
            cause = "a volume or log of this name exists".into();
            "use another name"
        }
        sys::FBY_E_VOLUME_TABLE_FULL => "remove a volume or log, or use another pool",
        sys::FBY_E_NAME => "use another, of 1 to 63 characters",
        sys::FBY_E_NO_LOG => "see the list of logs",
        sys::FBY_E_LOG_STATE => "see `forebay log show`",
        sys::FBY_E_LOG_UNCLAIMED => "claim it, replay it and create it again",
        sys::FBY_E_LOG_OBSOLETE | sys::FBY_E_LOG_SKIPS => {
            "append to one of the three after the synced one"
        }
        sys::FBY_E_LOG_BACKWARDS => "sync a later one",
        sys::FBY_E_LOG_TOO_LARGE => "split it, or use a pool of larger chunks",
        sys::FBY_E_LOG_GUID => "use a random one",
        sys::FBY_E_LOG_HEADER | sys::FBY_E_LOG_PERIOD => {
            "bring what was stored by the last call that returned a header"
        }
        sys::FBY_E_LOG_ENTRY => "see `forebay log dump`",
        sys::FBY_E_NUMBERS => "use smaller numbers",
        sys::FBY_E_BUSY => "try again when they are done",
        _ => {
            let what = format!("log {name}");
            return Error::Internal { what, code: e.0, message: e.message() };
        }
    };
    Error::Log { name: name.into(), cause, way_out: way_out.into(), code: e.0 }
}

/// The exit code of an error of the engine about a volume or log.
pub(super) fn exit_code(code: i32) -> u8 {
    forebay_engine::policy::error_exit(Code(code))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// Each code with the exit code and a word of the way out; 0: an internal error.
    #[test]
    fn a_volumes_errors_name_the_way_out() {
        let told = [
            (sys::FBY_E_READ_ONLY, 9, "open it for writing"),
            (sys::FBY_E_HOLES, 11, "restore from a backup"),
            (sys::FBY_E_HOLES_KNOWN, 11, "holes isolated"),
            (sys::FBY_E_NO_VOLUME, 3, "the list of volumes"),
            (sys::FBY_E_VOLUME_EXISTS, 2, "another name"),
            (sys::FBY_E_VOLUME_TABLE_FULL, 8, "remove a volume"),
            (sys::FBY_E_VOLUME_DAMAGED, 5, "restore the volume table"),
            (sys::FBY_E_VOLUME_BUSY, 4, "detach it first"),
            (sys::FBY_E_VOLUME_DETACHED, 2, "attach it first"),
            (sys::FBY_E_VOLUME_DIRTY, 12, "drain it first"),
            (sys::FBY_E_ORIGIN_SIZE, 6, "the right origin"),
            (sys::FBY_E_ORIGIN_IDENTITY, 6, "the right origin"),
            (sys::FBY_E_NAME, 2, "of 1 to 63"),
            (sys::FBY_E_GEOMETRY, 2, "at least one block"),
            (sys::FBY_E_STATIC_FULL, 8, "a smaller share"),
            (sys::FBY_E_ERAS, 8, "starts over"),
            (sys::FBY_E_BUSY, 4, "when they are done"),
            (sys::FBY_E_ORIGIN_IO, 7, "write them again"),
            (sys::FBY_E_INVARIANT, 5, "internal error"),
            (sys::FBY_E_LOST, 11, "internal error"),
        ];
        for (code, exit, way_out) in told {
            let text = volume_error("data", Code(code)).to_string();
            assert!(text.contains("data") && text.contains(way_out), "{code}: {text}");
            assert_eq!(exit_code(code), exit, "{text}");
        }
    }

    #[test]
    fn what_is_of_an_unknown_kind_is_named() {
        for (code, what) in [
            (sys::FBY_E_CHUNK_KIND, "(chunk 7, kind 9)"),
            (sys::FBY_E_OWNER_KIND, "(record 7, kind 9)"),
        ] {
            let text = unknown_error(Path::new("/pool"), Code(code), 7, 9).to_string();
            assert!(text.starts_with("/pool: ") && text.contains(what), "{text}");
            assert!(text.contains("the version of Forebay that wrote it"), "{text}");
        }
    }

    #[test]
    fn why_a_pool_does_not_open() {
        let told = [
            (sys::FBY_E_NO_SUPERBLOCK, "no superblock was found"),
            (sys::FBY_E_BAD_SUPERBLOCK, "the first 8 KiB"),
            (sys::FBY_E_VERSION, "the version of Forebay that made it"),
            (sys::FBY_E_FEATURE, "the version of Forebay that made it"),
            (sys::FBY_E_GROUP, "the version of Forebay that made it"),
            (sys::FBY_E_GROUPED, "the version of Forebay that made it"),
            (sys::FBY_E_FEATURE_RO, "open it read-only"),
            (sys::FBY_E_MEDIA_SIZE, "Restore its size"),
            (sys::FBY_E_READ_ONLY, "opened read-only"),
            (sys::FBY_E_GEOMETRY, "`forebay dump`"),
            (sys::FBY_E_VOLUME_DAMAGED, "`forebay dump`"),
            (sys::FBY_E_NUMBERS, "`forebay dump`"),
            (sys::FBY_E_BUSY, "internal error"),
        ];
        for (code, why) in told {
            let text = open_error(Path::new("/pool"), Code(code)).to_string();
            assert!(text.starts_with("/pool: ") && text.contains(why), "{code}: {text}");
        }
    }
}
