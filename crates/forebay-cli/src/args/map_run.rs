// SPDX-License-Identifier: MIT OR Apache-2.0
//! The arguments of `forebay map-run`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

use super::MediaArgs;
use crate::units;

#[derive(Args, Debug)]
pub struct MapRun {
    /// The pool, made by forebay create --maps.  If it is not served, no other process can use it
    /// while the program has such a file open
    #[arg(long, value_name = "POOL")]
    pub pool: PathBuf,
    /// The map; default: the only one of the pool
    #[arg(long, value_name = "NAME")]
    pub map: Option<String>,
    /// Which files to map: patterns of names, such as data.mdb or '*.log', or of paths, such as
    /// '/srv/db/*.log'.  Calls on all other files are unchanged
    #[arg(long, value_name = "GLOB", required = true, num_args = 1..)]
    pub files: Vec<String>,
    /// Share the files with other processes that run under map-run --shared: each sees what the
    /// others store and write.  The pool must be served
    #[arg(long)]
    pub shared: bool,
    /// Address space into which a mapped file can grow, such as 64M; a file gets at least twice its
    /// size
    #[arg(long, value_name = "SIZE", value_parser = units::parse_size, default_value = "1G")]
    pub room: u64,
    #[command(flatten)]
    pub media: MediaArgs,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    pub program: Vec<OsString>,
}
