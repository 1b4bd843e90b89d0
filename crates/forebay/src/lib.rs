// SPDX-License-Identifier: MIT OR Apache-2.0
//! Forebay puts a small persistent memory in front of a large block device, so
//! that a synchronous write is durable in about a microsecond.
//!
//! A **pool** is a formatted piece of persistent memory (or a file that stands
//! in for it); it holds **volumes**, each of which caches one **origin**, a
//! block device or file that stays as it is.
//!
//! ```
//! use forebay::{create, AttachOptions, CreateOptions, MemOrigin, Pool, PoolOptions};
//! use std::ops::ControlFlow;
//!
//! # fn main() -> forebay::Result<()> {
//! let path = std::env::temp_dir().join(format!("doc-{}.pool", std::process::id()));
//! let size = CreateOptions {
//!     size_bytes: Some(8 << 20),
//!     chunk_size_bytes: 256 << 10,
//!     ..Default::default()
//! };
//! create(&path, &size)?;
//! let pool = Pool::open(&path, &PoolOptions::default())?;
//! let origin = MemOrigin::new(16 << 20)?;
//! pool.volume_add_origin("v", &origin, 512)?;
//! let volume = pool.attach_origin("v", Box::new(origin.clone()), &AttachOptions::default())?;
//!
//! volume.write_at(&[7; 4096], 8192)?; // durable when it returns
//! let mut back = [0; 4096];
//! volume.read_at(&mut back, 8192)?;
//! assert_eq!(back, [7; 4096]);
//!
//! volume.drain(&mut |_| ControlFlow::Continue(()))?; // now the origin has it
//! assert_eq!(origin.content()[8192..8192 + 4096], back);
//! volume.detach()?;
//! pool.close()?;
//! # std::fs::remove_file(&path).unwrap();
//! # Ok(())
//! # }
//! ```
//!
//! # Units
//! Offsets and lengths are bytes; requests are multiples of the volume's
//! logical block, 512 or 4096 bytes.  Cached pages have 4 KiB.  Names end in
//! their unit where it is not bytes.
//!
//! # Threads
//! [`Volume`] is a handle to clone and use from any number of threads; writers
//! share no lock but that of the block they write.  A call blocks only while
//! another writes the same block, while all commit slots are busy, while the
//! cache is full, or while the origin is read.  Each pool has one destage
//! thread, started with its first attached volume, and one or a few for each
//! attached origin.  A front end that must not block has a [`Request`] for each
//! thing asked of it, any number on one thread.  There is no global state: a process can have any number
//! of pools open.  What serves one to other processes is a crate of its own,
//! forebay-server.
//!
//! # Errors
//! Every fallible call returns [`Error`], whose text names the thing, the cause
//! and the way out.  [`Error::errno`] is what a block layer would answer, and
//! [`Error::exit_code`] what a command would exit with.
//!
//! # What is promised
//! A write that returned `Ok` survives a crash of the process at any
//! instruction; it survives a power cut if [`MediaInfo::durable`] is true.  A
//! block whose cached copy is damaged answers [`Error::Lost`], never older
//! data.  With the cache drained the origin alone is complete.
#![deny(unsafe_code)]

mod attach;
mod attached;
mod bounded;
mod bypass;
mod create;
pub mod defaults;
mod destage;
pub mod diagnostics;
mod directories;
mod draining;
mod drains;
mod engine;
mod errno;
mod error;
pub mod grouped;
mod ioctl;
mod kick;
mod latency;
mod limit;
mod log;
mod mark;
mod media;
mod medium;
mod memory;
mod on_disk;
mod opened;
mod origin;
mod overwrite;
mod pages;
mod planted;
mod pool;
mod printable;
mod process;
pub mod procfs;
mod pulled;
mod random;
mod report;
mod request;
mod ring;
mod runtime;
mod shared_pool;
mod small_file;
mod transfer;
mod volume;
mod wait;

pub use attach::{AttachOptions, Away, Holes, WhenAway};
pub use bypass::VolumeChange;
pub use create::inspect;
pub use directories::check_directories;
pub use errno::{limit_way_out, no_thread};
pub use error::{io_exit_code, Error, Result, EXIT_CODES};
pub use ioctl::join_project;
pub use latency::PhaseLatency;
pub use limit::{raise_file_size, raise_open_files};
pub use log::{
    Claimed, Effect, Generation, Log, LogEntry, LogHeader, LogOptions, Submitted, Ticket, Writes,
    LOG_HEADER_BYTES,
};
pub use mark::{
    accept_host, file_identity, of_mark_sync, state_dir, Attaching, Bears, Completed, FileMark,
    Found as FoundMark, MapClaim, Mark, MarkRefusal, MarkedBy, MarkedOn, OriginMarks, OriginState,
    OriginStatus, MARK_ATTRIBUTE,
};
pub use media::{
    check_other_names, file_holder, kernels, lease_holder, lock_alone, lock_holders, CreateOptions,
    Inspection, InspectionState, Media, MediaOptions, PoolSummary, SharedFile,
};
pub use medium::{
    judge as judge_medium, measure as measure_medium, DeviceFacts, FileFacts, FileSystemFacts,
    FsClass, FuaWay, Judgement, MeasureLimits, Measured, MediumClass, MediumFacts,
    Place as MediumPlace, Refusal as MediumRefusal, Timing, Way, SLOW_NS,
};
pub use memory::memory_share;
pub use origin::{
    open as open_origin, Extent, FaultOp, Faults, FaultyOrigin, FileOrigin, MemOrigin, NbdOrigin,
    Origin,
};
pub use overwrite::{create, refuse_awaited_by, unseen_waiting, Overwrite};
pub use pages::Pages;
pub use pool::{
    origin_known_by_name, refuse_pool_as_origin, NewVolume, OptionsChange, Pool, PoolMap,
    PoolOptions, RescueProgress, StaticShare,
};
pub use printable::{path_in_text, printable, quoted};
pub use process::{is_dying, process_in_words};
pub use pulled::{
    ask as ask_receiver, run_on as pulled_run_on, verify as verify_pulled, write_until_cut,
    DiskIs as PullDiskIs, Example as PullExample, InFlight, Journal as PullJournal, ModeReport,
    Modes as PullModes, PullEnd, PullMode, PullOptions, PullProgress, PullReport, PullVerdict,
    ReceiveEvent, Receiver, ReceiverLimits, Run as PullRun, RunEnd as PullRunEnd,
};
pub use report::{
    data_in_report, file_in_report, kept_where, list_in_report, path_bytes, path_in_request,
    path_in_request_if_any, path_of_bytes, paths_in_request, BlockHistory, CheckReport, ChunkDump,
    ChunkState, Completeness, Counters, DestageState, DrainProgress, Drained, EntryDump, EntryKind,
    EntryName, FileFate, FileTrouble, HeldByDetached, Holder, LogCheck, LogEntryDump, LogHome,
    LogInfo, LogLeft, LogState, MapCheck, MapInfo, MediaInfo, MediaKind, MediumChoice,
    MediumStatus, Mode, OptionsInfo, OriginInfo, OriginUse, ParseError, Persist, PoolStatus,
    RecoveryReport, ReplayEnd, ReplayReport, ReportBlock, SlotDump, SuperblockDump, Uuid, Verdict,
    Verify, VolumeInfo, WayDump, WhenFull, Witness, WriteDurable, ERAS_WARN_PERCENT, RESCUED,
};
pub use request::{OriginIo, OriginOp, Request, Step, Why};
pub use runtime::{check_peer, control_link, control_socket, media_id, runtime_dir, Peer};
pub use small_file::small_file;
pub use transfer::Flusher;
pub use volume::Volume;
