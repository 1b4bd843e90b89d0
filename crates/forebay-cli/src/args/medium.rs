// SPDX-License-Identifier: MIT OR Apache-2.0
//! The arguments of `forebay media-info` and `forebay media-test`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use forebay::{PullModes, Uuid};

use super::Json;
use crate::units;

#[derive(Args, Debug)]
#[command(after_help = after!(
    "forebay media-info /var/lib/pool          a file there, or a file to be made",
    "forebay media-info /srv                   the cost of an fsync in that directory",
    "forebay media-info /dev/nvme0n1p4         the properties that the disk reports",
    "forebay media-info /dev/nvme0n1p4 --write   and its speed; only if it is empty",
    "forebay media-info /srv --json | jq .refusals",
))]
pub struct MediaInfo {
    /// A block device, a file, a file to be made, or a directory
    pub path: PathBuf,
    /// Measure a block device by writing to a part of it, and zero that part again; refused if the
    /// device holds any data
    #[arg(long)]
    pub write: bool,
    /// Write nothing, not even to an unnamed temporary file in the directory
    #[arg(long, conflicts_with = "write")]
    pub no_measure: bool,
    /// Longest time for the measurement, such as 500ms, 10s or 5m
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = units::parse_time)]
    pub time: Duration,
    #[command(flatten)]
    pub json: Json,
}

#[derive(Args, Debug)]
#[command(after_help = after!(
    "forebay media-test --receive                              on another machine, first",
    "forebay media-test /dev/sdb --server 10.0.0.7:7420        then pull the plug of the disk",
    "forebay media-test /dev/sdb --server 10.0.0.7:7420 --verify   when the disk is back",
    "forebay media-test /dev/sdb --verify --journal UUID.run   with the receiver's file",
    "forebay media-test /dev/sdb --server 10.0.0.7:7420 --overwrite   destroys the disk's data",
))]
pub struct MediaTest {
    /// The disk, partition or file to test; all of it may be overwritten
    #[arg(required_unless_present = "receive")]
    pub device: Option<PathBuf>,
    /// Address of the receiver (--receive), on a machine whose power stays on
    #[arg(long, value_name = "HOST:PORT", required_unless_present_any = ["receive", "journal"])]
    pub server: Option<String>,
    /// Write nothing, and compare the disk with the acknowledged writes
    #[arg(long)]
    pub verify: bool,
    /// Read the receiver's file of the run, instead of asking the receiver
    #[arg(long, value_name = "FILE", requires = "verify", conflicts_with = "server")]
    pub journal: Option<PathBuf>,
    /// The run to compare with; default: the one in the disk's first block
    #[arg(long, value_name = "UUID", requires = "verify", conflicts_with = "journal")]
    pub run: Option<Uuid>,
    /// How writes become durable: fua, flush, or both, which alternates them
    #[arg(long, value_name = "MODE", default_value_t, conflicts_with = "verify")]
    pub mode: PullModes,
    /// Use this much of the disk, from its start; default: 1G, or all of a smaller disk
    #[arg(long, value_name = "SIZE", value_parser = units::parse_size, conflicts_with = "verify")]
    pub size: Option<u64>,
    /// Stop after this time if nobody has pulled the plug
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = units::parse_time)]
    pub time: Duration,
    /// Overwrite the disk even if it holds data; the data is destroyed
    #[arg(long, conflicts_with = "verify")]
    pub overwrite: bool,
    /// Run the receiver, at this address; default: 0.0.0.0:7420
    #[arg(
        long,
        value_name = "ADDRESS:PORT",
        num_args = 0..=1,
        default_missing_value = "0.0.0.0:7420",
        conflicts_with_all = ["device", "server", "verify", "size", "overwrite"],
    )]
    pub receive: Option<String>,
    /// Directory in which the receiver keeps a file for each run
    #[arg(long, value_name = "DIR", default_value = "forebay-media-test")]
    pub directory: PathBuf,
    #[command(flatten)]
    pub json: Json,
}

#[derive(Args, Debug)]
pub struct BenchSsd {
    /// Directory for both pools, on the disk to measure; default: $TMPDIR, or /tmp
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Size of each pool
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = units::parse_size)]
    pub pool_size: u64,
    /// Size of an entry
    #[arg(long, value_name = "SIZE", default_value = "4096", value_parser = units::parse_size)]
    pub bytes: u64,
    /// Numbers of threads, measured one after the other
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1,4,16", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub threads: Vec<u32>,
    /// Rounds for each number of threads
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: u32,
    /// Length of a turn; in each round the pool and the mapped file have one turn
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = units::parse_time)]
    pub turn: Duration,
    #[command(flatten)]
    pub json: Json,
}
