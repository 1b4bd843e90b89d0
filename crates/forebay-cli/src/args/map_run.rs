// SPDX-License-Identifier: MIT OR Apache-2.0
//! The arguments of `forebay map-run`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

use super::MediaArgs;
use crate::units;

#[derive(Args, Debug)]
pub struct MapRun {
    /// The pool, made with --maps.  One that is not served is the program's from its first such
    /// file to its last
    #[arg(long, value_name = "POOL")]
    pub pool: PathBuf,
    /// The map; default: the only one of the pool
    #[arg(long, value_name = "NAME")]
    pub map: Option<String>,
    /// Files to map: patterns of names, as data.mdb or '*.log', or of paths, as
    /// '/srv/db/*.log'; all other files are untouched
    #[arg(long, value_name = "GLOB", required = true, num_args = 1..)]
    pub files: Vec<String>,
    /// Other processes have the same files open, each by map-run --shared: all of them see what
    /// one stores and writes.  The pool has to be served
    #[arg(long)]
    pub shared: bool,
    /// Address space for a file to grow in while it is mapped, at least twice its size
    #[arg(long, value_name = "SIZE", value_parser = units::parse_size, default_value = "1G")]
    pub room: u64,
    #[command(flatten)]
    pub media: MediaArgs,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    pub program: Vec<OsString>,
}
