// SPDX-License-Identifier: MIT OR Apache-2.0
//! The engine as the library uses it: [`forebay_engine`] on the library's media, and
//! what its numbers are called here.

use std::path::Path;
use std::sync::Arc;

use forebay_engine::{sys, OpenError};

use crate::error::{open_error, unknown_error, Error, Result};
use crate::media::{CreateOptions, Media};
use crate::report::{SuperblockDump, Uuid};

pub(crate) use forebay_engine::{Attach, Code, Io, Memory, Result as EngineResult, Step, Wait};

/// An open pool.
pub(crate) type Engine = forebay_engine::Engine<Arc<forebay_engine::Media>>;

/// Opens the pool on the media and recovers it on that many threads.
pub(crate) fn open(
    media: &Media,
    o: &sys::fby_options,
    threads: usize,
) -> Result<(Arc<Engine>, sys::fby_recovery_report)> {
    let path = &media.info().path;
    let opened = Engine::open_threaded(media.mapped().clone(), o, threads);
    opened.map(|(engine, report)| (Arc::new(engine), report)).map_err(|e| match e {
        OpenError::Engine(e) => open_error(path, e),
        OpenError::Unknown { code, at, kind } => unknown_error(path, code, at, kind),
        OpenError::Memory { bytes, source } => Error::Io {
            path: path.clone(),
            doing: "allocating memory for its index",
            source,
            way_out: format!("it needs {bytes} bytes: free memory, or use a smaller pool"),
        },
    })
}

/// Why a volume of the pool at the path was not attached.
pub(crate) fn attach_error(path: &Path, e: OpenError, named: impl FnOnce(Code) -> Error) -> Error {
    match e {
        OpenError::Engine(e) | OpenError::Unknown { code: e, .. } => named(e),
        OpenError::Memory { source, .. } => {
            Error::system(path, "allocating memory for destage", source)
        }
    }
}

/// The result of a probe of media.
#[derive(Clone, Debug)]
pub(crate) struct Probe {
    pub state: ProbeState,
    /// Why it cannot be opened.
    pub error: Option<Code>,
    pub primary_valid: bool,
    pub copy_valid: bool,
    pub superblock: Option<SuperblockDump>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProbeState {
    Blank,
    Pool,
    Damaged,
}

pub(crate) fn probe(media: &Media) -> Probe {
    probe_of(media.mapped())
}

pub(crate) fn probe_of<M: forebay_engine::Medium>(media: &M) -> Probe {
    let out = forebay_engine::probe(media);
    let state = match out.state {
        sys::FBY_PROBE_BLANK => ProbeState::Blank,
        sys::FBY_PROBE_POOL => ProbeState::Pool,
        _ => ProbeState::Damaged,
    };
    Probe {
        state,
        error: (out.error != 0).then_some(Code(-out.error)),
        primary_valid: out.primary_valid,
        copy_valid: out.copy_valid,
        superblock: (state == ProbeState::Pool)
            .then(|| superblock_dump(&out.sb, out.primary_valid, out.copy_valid)),
    }
}

fn superblock_dump(
    sb: &sys::fby_superblock,
    primary_valid: bool,
    copy_valid: bool,
) -> SuperblockDump {
    SuperblockDump {
        version: sb.version,
        clean: sb.flags & sys::FBY_SB_CLEAN != 0,
        flags: sb.flags,
        features_compat: sb.features_compat,
        features_ro: sb.features_ro,
        features_incompat: sb.features_incompat,
        uuid: Uuid(sb.uuid),
        generation: sb.generation,
        media_size_bytes: sb.media_size,
        data_offset_bytes: sb.data_offset,
        chunk_size_bytes: sb.chunk_size,
        chunks: sb.nchunks,
        max_volumes: sb.nvolumes,
        static_bytes: sb.static_bytes,
        map_bytes: sb.map_bytes,
        clean_entries: sb.clean_entries,
        clean_digest: sb.clean_digest,
        clean_seq: sb.clean_seq,
        primary_valid,
        copy_valid,
    }
}

/// The smallest media that takes a pool of this chunk size: the superblocks
/// and the volume table fit below the first chunk boundary.
pub(crate) fn least_media_bytes(chunk_size_bytes: u32) -> u64 {
    const LEAST_CHUNKS: u64 = 4;
    u64::from(chunk_size_bytes) * (1 + LEAST_CHUNKS)
}

/// The first page of a chunk that has data.  `unit`: that of a pool that is written in groups,
/// else 0.
pub(crate) fn first_data_page(chunk_size_bytes: u32, unit: u32) -> u32 {
    let first = sys::fby_first_page(chunk_size_bytes / sys::FBY_PAGE);
    match unit / sys::FBY_PAGE {
        0 => first,
        // Two blocks lie before the headers, which end with a block.
        unit => (2 * unit + first).next_multiple_of(unit),
    }
}

pub(crate) fn format(media: &Media, uuid: Uuid, o: &CreateOptions) -> Result<()> {
    let chunk_size_bytes = o.chunk_size_bytes;
    let f = sys::fby_format {
        uuid: uuid.0,
        chunk_size: chunk_size_bytes,
        nvolumes: o.max_volumes,
        static_bytes: o.static_bytes,
        map_bytes: o.map_bytes,
        unit: 0,
        salt: crate::random::salt()?,
    };
    forebay_engine::format(media.mapped(), &f).map_err(|e| match e.0 {
        sys::FBY_E_MEDIA_SMALL => Error::TooSmall {
            path: media.info().path.clone(),
            bytes: media.info().size_bytes,
            chunk_size_bytes,
            least_bytes: least_media_bytes(chunk_size_bytes) + o.static_bytes + o.map_bytes,
        },
        sys::FBY_E_GEOMETRY => Error::usage(
            format!(
                "{}: {} bytes in chunks of {chunk_size_bytes} bytes are not possible",
                media.info().path.display(),
                media.info().size_bytes
            ),
            "use another chunk size",
        ),
        _ => Error::Internal {
            what: media.info().path.display().to_string(),
            code: e.0,
            message: e.message(),
        },
    })
}
