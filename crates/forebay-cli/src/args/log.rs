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
    /// Make a log, in no state: its consumer begins to log
    #[command(after_help = after!(
        "forebay log create /dev/pmem0 intent",
        "forebay log create /dev/pmem0 intent --home consumer   who stores its header himself",
    ))]
    Create(LogCreate),
    /// Show all about a log
    #[command(after_help = after!("forebay log show /dev/pmem0 intent --json"))]
    Show(LogName),
    /// List the entries of a log that are still there, in order
    #[command(after_help = after!("forebay log dump /dev/pmem0 intent --data"))]
    Dump(LogDump),
    /// Tell what a replay would come to; to replay is its consumer's
    #[command(after_help = after!(
        "forebay log replay --dry-run /dev/pmem0 intent    0: all is there; 11: entries are lost",
    ))]
    Replay(LogReplay),
    /// Remove a log; refused while it holds entries
    #[command(after_help = after!(
        "forebay log destroy /dev/pmem0 intent",
        "forebay log destroy /dev/pmem0 intent --discard   its consumer loses what it was promised",
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
    /// Name of the new log, which no volume has
    pub name: String,
    /// Who keeps its header: embedded (the pool) or consumer
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
    /// Verify the data's checksums
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
    /// Only report: nothing is changed
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
    /// Remove it even if it holds entries; they are lost
    #[arg(long)]
    pub discard: bool,
    #[command(flatten)]
    pub media: MediaArgs,
    #[command(flatten)]
    pub json: Json,
}
