// SPDX-License-Identifier: MIT OR Apache-2.0
//! The arguments of `forebay map`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::{Json, MediaArgs};
use crate::units;

#[derive(Debug, Subcommand)]
pub enum Map {
    /// Make a map: a share of the pool for files that programs map
    #[command(after_help = after!(
        "forebay create /dev/pmem0 --maps 8G && forebay map add /dev/pmem0 db --size 8G",
    ))]
    Add(MapAdd),
    /// List maps, and the files of which they have pages since a crash
    #[command(after_help = after!("forebay map list /dev/pmem0 --json"))]
    List(MapPool),
    /// Show how full maps are
    #[command(after_help = after!("forebay map status /dev/pmem0"))]
    Status(MapPool),
    /// Write to their files what a crash left, before they are mapped again
    ///
    /// A file that is gone, another, shorter, changed by others, or damaged in the pool is
    /// named, and its pages stay; all others reach their files.  It can be cut off at any
    /// time, and run again.
    ///
    /// Exit code 0: nothing is left; 11: pages of some files stay.
    #[command(after_help = after!(
        "forebay map recover /dev/pmem0 --dry-run",
        "forebay map recover /dev/pmem0",
        "forebay map recover /dev/pmem0 /srv/db/data.mdb --accept    though others changed it",
    ))]
    Recover(MapRecover),
    /// Copy what the pool has of a file to another directory; nothing is changed
    ///
    /// For each file a new one with the pages, each where it is in the file, and a list of
    /// which these are.
    #[command(after_help = after!(
        "forebay map salvage /dev/pmem0 /srv/db/data.mdb --to /var/tmp/saved",
        "forebay map salvage /dev/pmem0 '#3' --to /var/tmp/saved    of a damaged record",
    ))]
    Salvage(MapSalvage),
    /// Give up what the pool has of a file, which stays as it is
    #[command(after_help = after!("forebay map drop /dev/pmem0 /srv/db/data.mdb --discard"))]
    Drop(MapDrop),
    /// Keep files of a pool that is served in its memory, for programs that share them
    ///
    /// The server brings the range in and does not give it back until --off, or until it ends:
    /// programs by map-run --shared find it there.  Of all frames half can be locked, by this and by
    /// mlock together.
    #[command(after_help = after!(
        "forebay map pin /dev/pmem0 /srv/db/data.mdb",
        "forebay map pin /dev/pmem0 /srv/db/data.mdb --from 0 --to 64M",
        "forebay map pin /dev/pmem0 /srv/db/data.mdb --off",
    ))]
    Pin(MapPin),
    /// Remove a map; refused while it has pages that files lack
    #[command(after_help = after!("forebay map remove /dev/pmem0 db"))]
    Remove(MapRemove),
}

#[derive(Args, Debug)]
pub struct MapAdd {
    /// The pool, made with --maps; it must not be served
    pub pool: PathBuf,
    /// Name of the new map, which no volume and no log has
    pub name: String,
    /// Its share, a multiple of 2M; default: all of the room, for the first one
    #[arg(long, value_name = "SIZE", value_parser = units::parse_size)]
    pub size: Option<u64>,
    #[command(flatten)]
    pub media: MediaArgs,
    #[command(flatten)]
    pub json: Json,
}

#[derive(Args, Debug)]
pub struct MapPool {
    /// The pool; served or not
    pub pool: PathBuf,
    #[command(flatten)]
    pub json: Json,
}

#[derive(Args, Debug)]
pub struct MapRecover {
    /// The pool; served or not
    pub pool: PathBuf,
    /// These files alone, as `forebay map list` names them; default: all
    pub files: Vec<PathBuf>,
    /// Only report: nothing is changed
    #[arg(long)]
    pub dry_run: bool,
    /// Write the pages though others have changed the file, or its mark is gone or of another
    /// host
    #[arg(long)]
    pub accept: bool,
    #[command(flatten)]
    pub media: MediaArgs,
    #[command(flatten)]
    pub json: Json,
}

#[derive(Args, Debug)]
pub struct MapSalvage {
    /// The pool; served or not
    pub pool: PathBuf,
    /// The files, as `forebay map list` names them; default: all
    pub files: Vec<PathBuf>,
    /// Destination directory; it is made if it does not exist
    #[arg(long, value_name = "DIR")]
    pub to: PathBuf,
    #[command(flatten)]
    pub json: Json,
}

#[derive(Args, Debug)]
pub struct MapDrop {
    /// The pool; served or not
    pub pool: PathBuf,
    /// The files, as `forebay map list` names them
    #[arg(required = true)]
    pub files: Vec<PathBuf>,
    /// Confirms that synced data which is not in the files is lost
    #[arg(long, required = true)]
    pub discard: bool,
    #[command(flatten)]
    pub media: MediaArgs,
    #[command(flatten)]
    pub json: Json,
}

#[derive(Args, Debug)]
pub struct MapPin {
    /// The pool, which is served
    pub pool: PathBuf,
    /// The files
    #[arg(required = true)]
    pub files: Vec<PathBuf>,
    /// The map; default: the only one of the pool
    #[arg(long, value_name = "NAME")]
    pub map: Option<String>,
    /// The first byte; segments of 2M are kept
    #[arg(long, value_name = "SIZE", value_parser = units::parse_size, default_value = "0")]
    pub from: u64,
    /// Up to this byte; default: the end of the file
    #[arg(long, value_name = "SIZE", value_parser = units::parse_size)]
    pub to: Option<u64>,
    /// Keep them no more
    #[arg(long, conflicts_with_all = ["from", "to"])]
    pub off: bool,
    #[command(flatten)]
    pub json: Json,
}

#[derive(Args, Debug)]
pub struct MapRemove {
    /// The pool; it must not be served
    pub pool: PathBuf,
    /// The map
    pub name: String,
    /// Remove it even if it has pages that files lack; they are lost
    #[arg(long)]
    pub discard: bool,
    #[command(flatten)]
    pub media: MediaArgs,
    #[command(flatten)]
    pub json: Json,
}
