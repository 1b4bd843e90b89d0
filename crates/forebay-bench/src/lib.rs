// SPDX-License-Identifier: MIT OR Apache-2.0
//! Measures the engine against what the memory itself can do.
//!
//! * [`engine()`] writes 4 KiB blocks in three ways on the same media, in short
//!   alternating rounds: `raw` (non-temporal copy and fence), `floor` (the same
//!   with CRC32C and one header line before the fence, and nothing else) and
//!   `engine` (a whole write).  What slows the machine down for a while slows all
//!   three, so their ratios hold where their figures do not.
//! * [`logs()`] appends to logs, against the floor below that, and replays one.
//! * [`maps()`] syncs files mapped onto a pool, in turns with the kernel's mappings.
//! * [`mounts()`] does what waits for fsync on a directory and on a mount, in turns.
//! * [`reads()`] reads cached blocks with verification.
//! * [`recovery()`] opens a large pool full of dirty pages.
//! * [`ssd()`] appends to a log on a disk, in groups and by msync, in turns.
//! * [`slots()`] writes through the library with more and fewer commit slots, on
//!   media of a limited bandwidth.
//!
//! The first three talk to the engine directly; origins take what destage gives
//! them and store nothing.  The media is DRAM standing in for persistent memory, and
//! reports say which kind.
#![forbid(unsafe_code)]

#[cfg(not(target_pointer_width = "64"))]
compile_error!("pools are mapped whole: 64-bit machines only");

mod engine;
mod logs;
mod maps;
mod memory;
mod mounts;
mod peer;
mod pool;
mod reads;
mod recovery;
mod rounds;
mod slots;
mod slow;
mod ssd;
mod statics;
mod strokes;

use serde::Serialize;

pub use engine::{engine, EngineOptions, EngineReport, EngineThreads};
pub use logs::{logs, LogAppends, LogOptions, LogReport};
pub use maps::{maps, MapBenchOptions, MapReport, MapSync, MapWrites};
pub use memory::MediaChoice;
pub use mounts::{mounts, MountBenchOptions, MountCase, MountReport, MountRow};
pub use reads::{reads, ReadReport, ReadThreads};
pub use recovery::{recovery, RecoveryOptions, RecoveryReport};
pub use rounds::ThreadsOptions;
pub use slots::{slots, SlotsCell, SlotsOptions, SlotsReport, SlotsTarget};
pub use ssd::{ssd, SsdOptions, SsdReport, SsdRow};
pub use statics::{statics, StaticLookup, StaticReport, StaticThreads};

/// Why a benchmark could not run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// The operating system refused something; `what` says what and how to go on.
    #[error("{what}: {source}")]
    System {
        /// The action that failed, and the way out.
        what: String,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The engine refused something.
    #[error("the engine could not {what}: {reason}")]
    Engine {
        /// The action that failed.
        what: &'static str,
        /// The engine's message.
        reason: &'static str,
    },
    /// The library refused something.
    #[error(transparent)]
    Library(#[from] forebay::Error),
    /// Options that make no sense together.
    #[error("{0}")]
    Options(String),
}

/// One way of doing something, measured: throughput from rounds without a clock
/// in them, latencies from rounds with one reading of the clock per operation
/// (about 20 ns, included).
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Figures {
    /// Operations per second of all threads together: the median of the rounds.
    pub ops_per_s: f64,
    /// ... and what a tenth of the rounds stayed below, or above.
    pub ops_per_s_p10: f64,
    pub ops_per_s_p90: f64,
    /// Median latency, nanoseconds.
    pub p50_ns: u64,
    /// 99th percentile, nanoseconds.
    pub p99_ns: u64,
    /// 99.9th percentile, nanoseconds.
    pub p999_ns: u64,
}
