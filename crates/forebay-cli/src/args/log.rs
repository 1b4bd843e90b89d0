// SPDX-License-Identifier: MIT OR Apache-2.0
//! The arguments of `forebay log`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use forebay::LogHome;

use super::{Json, MediaArgs};

#[derive(Debug, Subcommand)]
pub enum Log {
    /// List the logs of a pool
    #[command(after_help = after!("forebay log list /dev/pmem0 --json"))]
    List(LogPool),
    /// Make an empty log, which its consumer then claims
    #[command(after_help = after!(
        "forebay log create /dev/pmem0 intent",
        "forebay log create /dev/pmem0 intent --home consumer   the consumer stores the header",
    ))]
    Create(LogCreate),
    /// Show the details of a log
    #[command(after_help = after!("forebay log show /dev/pmem0 intent --json"))]
    Show(LogName),
    /// List the entries that a log still holds, in order
    #[command(after_help = after!("forebay log dump /dev/pmem0 intent --data"))]
    Dump(LogDump),
    /// Show what a replay would find; only the log's consumer can replay it
    #[command(after_help = after!(
        "forebay log replay --dry-run /dev/pmem0 intent    0: complete; 11: entries are lost",
    ))]
    Replay(LogReplay),
    /// Remove a log; refused while it holds entries
    #[command(after_help = after!(
        "forebay log destroy /dev/pmem0 intent",
        "forebay log destroy /dev/pmem0 intent --discard   acknowledged entries are lost",
    ))]
    Destroy(LogDestroy),
}

#[derive(Args, Debug)]
pub struct LogPool {
    /// The pool; while it is served, the server answers
    pub pool: PathBuf,
    #[command(flatten)]
    pub json: Json,
}

#[derive(Args, Debug)]
pub struct LogCreate {
    /// The pool; it must not be served
    pub pool: PathBuf,
    /// Name of the new log; no volume, log or map of the pool may have it
    pub name: String,
    /// Keeper of the log's header: embedded, the pool; consumer, the program that appends
    #[arg(long, value_name = "HOME", default_value = "embedded")]
    pub home: LogHome,
    #[command(flatten)]
    pub media: MediaArgs,
    #[command(flatten)]
    pub json: Json,
}

#[derive(Args, Debug)]
pub struct LogName {
    /// The pool; while it is served, the server answers
    pub pool: PathBuf,
    /// The log
    pub name: String,
    #[command(flatten)]
    pub json: Json,
}

#[derive(Args, Debug)]
pub struct LogDump {
    /// The pool; it must not be served
    pub pool: PathBuf,
    /// The log
    pub name: String,
    /// Verify the checksums of the data, too
    #[arg(long)]
    pub data: bool,
    #[command(flatten)]
    pub json: Json,
}

#[derive(Args, Debug)]
pub struct LogReplay {
    /// The pool; it must not be served
    pub pool: PathBuf,
    /// The log
    pub name: String,
    /// Only report, and change nothing; this is required
    #[arg(long, required = true)]
    pub dry_run: bool,
    #[command(flatten)]
    pub json: Json,
}

#[derive(Args, Debug)]
pub struct LogDestroy {
    /// The pool; it must not be served
    pub pool: PathBuf,
    /// The log
    pub name: String,
    /// Remove the log even if it holds entries; they are lost
    #[arg(long)]
    pub discard: bool,
    #[command(flatten)]
    pub media: MediaArgs,
    #[command(flatten)]
    pub json: Json,
}
