// SPDX-License-Identifier: MIT OR Apache-2.0
//! The arguments of `forebay map`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::{Json, MediaArgs};
use crate::units;

#[derive(Debug, Subcommand)]
pub enum Map {
    /// Make a map: a part of the pool for the files that programs map
    #[command(after_help = after!(
        "forebay create /dev/pmem0 --maps 8G && forebay map add /dev/pmem0 db --size 8G",
    ))]
    Add(MapAdd),
    /// List maps, and the files whose pages a crash left in them
    #[command(after_help = after!("forebay map list /dev/pmem0 --json"))]
    List(MapPool),
    /// Show how full maps are
    #[command(after_help = after!("forebay map status /dev/pmem0"))]
    Status(MapPool),
    /// Write the pages that a crash left to their files, before programs map these again
    ///
    /// Pages stay in the pool if their file is missing, replaced, shorter or changed by others, or
    /// if they are damaged.  The command names each such file, and writes all other pages.  It can
    /// be interrupted at any time, and run again.
    ///
    /// If the pool is served, the server writes back the pages of a killed process.  The command
    /// waits for that.
    ///
    /// Exit codes: 0, no pages are left; 11, pages of some files stay; 14, pages stay only of files
    /// that processes have mapped, or that the server is still writing back.
    #[command(after_help = after!(
        "forebay map recover /dev/pmem0 --dry-run",
        "forebay map recover /dev/pmem0",
        "forebay map recover /dev/pmem0 /srv/db/data.mdb --accept    even if others changed it",
    ))]
    Recover(MapRecover),
    /// Copy the pages that the pool has of a file to another directory, and change nothing
    ///
    /// For each file the command makes a new file with these pages at their offsets, and a list of
    /// the pages.
    #[command(after_help = after!(
        "forebay map salvage /dev/pmem0 /srv/db/data.mdb --to /var/tmp/saved",
        "forebay map salvage /dev/pmem0 '#3' --to /var/tmp/saved    by number, if its record is damaged",
    ))]
    Salvage(MapSalvage),
    /// Give up the pages that the pool has of a file; the file stays as it is
    #[command(after_help = after!("forebay map drop /dev/pmem0 /srv/db/data.mdb --discard"))]
    Drop(MapDrop),
    /// Keep files in the memory of a served pool, for programs that share them
    ///
    /// The server reads the range into the pool and keeps it there until --off, or until the server
    /// ends.  Programs that run under map-run --shared then need not wait for the disk.  This and
    /// mlock together can keep at most half of the map's memory.
    #[command(after_help = after!(
        "forebay map pin /dev/pmem0 /srv/db/data.mdb",
        "forebay map pin /dev/pmem0 /srv/db/data.mdb --from 0 --to 64M",
        "forebay map pin /dev/pmem0 /srv/db/data.mdb --off",
    ))]
    Pin(MapPin),
    /// Remove a map; refused while it has pages that their files lack
    #[command(after_help = after!("forebay map remove /dev/pmem0 db"))]
    Remove(MapRemove),
}

#[derive(Args, Debug)]
pub struct MapAdd {
    /// The pool, made with --maps; it must not be served
    pub pool: PathBuf,
    /// Name of the new map; no volume, log or map of the pool may have it
    pub name: String,
    /// Size of the map, a multiple of 2M; default for the first map: all that create --maps
    /// reserved
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
    /// The files, as `forebay map list` names them; default: all
    pub files: Vec<PathBuf>,
    /// Only report, and change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Write the pages even if others have changed the file, or if its mark is missing or names
    /// another host
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
    /// Confirm that synced data which the files lack is lost
    #[arg(long, required = true)]
    pub discard: bool,
    #[command(flatten)]
    pub media: MediaArgs,
    #[command(flatten)]
    pub json: Json,
}

#[derive(Args, Debug)]
pub struct MapPin {
    /// The pool; it must be served
    pub pool: PathBuf,
    /// The files
    #[arg(required = true)]
    pub files: Vec<PathBuf>,
    /// The map; default: the only one of the pool
    #[arg(long, value_name = "NAME")]
    pub map: Option<String>,
    /// First byte of the range; the server keeps whole segments of 2M
    #[arg(long, value_name = "SIZE", value_parser = units::parse_size, default_value = "0")]
    pub from: u64,
    /// End of the range; default: the end of the file
    #[arg(long, value_name = "SIZE", value_parser = units::parse_size)]
    pub to: Option<u64>,
    /// Stop keeping the files
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
    /// Remove the map even if it has pages that their files lack; these pages are lost
    #[arg(long)]
    pub discard: bool,
    #[command(flatten)]
    pub media: MediaArgs,
    #[command(flatten)]
    pub json: Json,
}
