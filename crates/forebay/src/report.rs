// SPDX-License-Identifier: MIT OR Apache-2.0
//! The reports of a pool, its volumes, logs and maps: values, as JSON and as text.  They know of
//! nothing that is open, and of no error of the library.

mod completeness;
mod dump;
mod file;
mod held;
mod log;
mod map;
mod media;
mod mode;
mod options;
pub(crate) mod path;
mod status;
mod uuid;
mod words;

pub(crate) use completeness::{blocks_text, origin_way_out, LOST_LISTED, LOST_STUCK_WAY_OUT};
pub use completeness::{kept_where, Completeness, Drained, LogLeft, Verdict, RESCUED};
pub use dump::{
    BlockHistory, ChunkDump, ChunkState, EntryDump, EntryKind, SlotDump, SuperblockDump, WayDump,
};
pub use file::{FileFate, FileTrouble};
pub(crate) use held::Chunks;
pub use held::{HeldByDetached, Holder};
pub use log::{
    EntryName, LogCheck, LogEntryDump, LogHome, LogInfo, LogState, ReplayEnd, ReplayReport, Witness,
};
pub use map::{MapCheck, MapInfo};
pub(crate) use media::human_bytes;
pub use media::{MediaInfo, MediaKind, MediumChoice, Persist};
pub(crate) use mode::DurableBecause;
pub use mode::{Mode, WhenFull, WriteDurable};
pub use options::{OptionsInfo, Verify};
pub use path::{
    data_in_report, file_in_report, in_request as path_in_request,
    in_request_if_any as path_in_request_if_any, in_request_list as paths_in_request,
    list_in_report, path_bytes, path_of_bytes,
};
pub use status::{
    CheckReport, Counters, DestageState, DrainProgress, MediumStatus, OriginInfo, OriginUse,
    PoolStatus, RecoveryReport, ReportBlock, VolumeInfo, ERAS_WARN_PERCENT,
};
pub use uuid::Uuid;
pub(crate) use words::words;
pub use words::ParseError;
