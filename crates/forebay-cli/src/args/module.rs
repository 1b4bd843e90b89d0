// SPDX-License-Identifier: MIT OR Apache-2.0
//! The arguments of what talks to the kernel module: attach, detach, list.

use std::path::PathBuf;

use clap::Args;
use forebay::{defaults, Holes};

use super::origin::State;
use super::{Json, Tuning};

/// Makes a volume of a pool a block device of its own, without NBD; needs the
/// module forebay, and persistent memory for the pool.
#[derive(Args, Debug)]
#[command(after_help = after!(
    "forebay attach /dev/pmem0 data /dev/sdb             /dev/forebay0 appears",
    "forebay attach /dev/pmem0 data /dev/sdb --max-age 5s --jobs 32",
    "forebay attach --all                                what /etc/forebay.d says",
    "forebay attach --config ./fast.toml --dry-run       is the file right?",
))]
pub struct AttachDevice {
    /// The pool: a persistent-memory device in fsdax mode
    #[arg(required_unless_present_any = ["all", "config"], requires_all = ["volume", "origin"])]
    pub pool: Option<PathBuf>,
    /// The volume
    pub volume: Option<String>,
    /// Block device that the volume caches
    pub origin: Option<PathBuf>,
    /// Every volume that /etc/forebay.d/*.toml names, see forebay.d(5)
    #[arg(long, conflicts_with_all = ["config", "pool", "DeviceOptions", "Tuning"], help_heading = "Configuration")]
    pub all: bool,
    /// Every volume of this file, or of the *.toml of this directory
    #[arg(long, value_name = "PATH", conflicts_with_all = ["pool", "DeviceOptions", "Tuning"], help_heading = "Configuration")]
    pub config: Option<PathBuf>,
    /// Only the volume NAME of these; may be given again
    #[arg(long, value_name = "NAME", conflicts_with = "pool", help_heading = "Configuration")]
    pub only: Vec<String>,
    /// Print what would be asked of the module, and do nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Attach though the mark of the origin is missing, cannot be read, or was set on
    /// another host
    #[arg(long)]
    pub accept_mark: bool,
    #[command(flatten)]
    pub state: State,
    #[command(flatten)]
    pub device: DeviceOptions,
    /// Options of the pool: those of the first attach count
    #[command(flatten)]
    pub tuning: Tuning,
    #[command(flatten)]
    pub json: Json,
}

/// Options of one device, as the module names them.
#[derive(Args, Clone, Debug, Default)]
pub struct DeviceOptions {
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(defaults::QUEUE_DEPTH_MAX)), help_heading = "Device")]
    #[arg(help = format!("Requests of destage to the origin at once [default: {}]", defaults::QUEUE_DEPTH))]
    pub jobs: Option<u32>,
    #[arg(long, value_name = "POLICY", help_heading = "Device")]
    #[arg(help = format!("What to do about entries that recovery found lost: fail, isolate or accept, as for forebay serve [default: {}]", Holes::default()))]
    pub holes: Option<Holes>,
    /// Write to the origin all the time, so that little is ever cached
    #[arg(long, help_heading = "Device")]
    pub cleaner: bool,
    /// Make the pool if the device is blank, and the volume if it is not there
    #[arg(long, help_heading = "Device")]
    pub create: bool,
    /// Attach though the origin is not the recorded one, or has grown; onto
    /// other data, what is cached would destroy that
    #[arg(long, help_heading = "Device")]
    pub accept_changed_origin: bool,
    /// Take an origin that the system knows by its name alone: with --create or
    /// --accept-changed-origin, which record it
    #[arg(long, help_heading = "Device")]
    pub origin_by_name: bool,
    /// The origin's id, instead of what the system says of the device
    #[arg(long, value_name = "ID", help_heading = "Device")]
    pub origin_id: Option<String>,
    /// The pool begins at this sector of 512 bytes, a multiple of 8
    #[arg(long, value_name = "SECTOR", help_heading = "Device")]
    pub start_sector: Option<u64>,
}

/// Cached data stays in the pool, unless --flush is given.
#[derive(Args, Debug)]
#[command(after_help = after!(
    "forebay detach data                       by the volume's name",
    "forebay detach /dev/forebay0 --flush      the origin alone is then complete",
    "forebay detach --all",
))]
pub struct DetachDevice {
    /// Devices: the volume's name, forebayN, or a path
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    pub devices: Vec<String>,
    /// All attached devices
    #[arg(long)]
    pub all: bool,
    /// First write everything cached to the origin
    #[arg(long)]
    pub flush: bool,
    #[command(flatten)]
    pub state: State,
    #[command(flatten)]
    pub json: Json,
}

/// The devices that the kernel module has made; those of the device mapper are
/// listed by `dmsetup status --target forebay`.
#[derive(Args, Debug)]
#[command(after_help = after!(
    "forebay list",
    "forebay list --json | jq -r '.[].device'",
))]
pub struct ListDevices {
    #[command(flatten)]
    pub json: Json,
}

/// The generator that systemd runs at boot as forebay-generator; systemd.generator(7).
#[derive(Args, Debug)]
pub struct SystemdGenerator {
    /// Directory for the units
    pub normal: PathBuf,
    /// Unused
    pub early: Option<PathBuf>,
    /// Unused
    pub late: Option<PathBuf>,
    #[arg(long, default_value = crate::config::DIRECTORY)]
    pub config: PathBuf,
    /// The installed template
    #[arg(long, default_value = "/usr/lib/systemd/system/forebay@.service")]
    pub template: PathBuf,
    /// The installed command, for what replaces lines of the template
    #[arg(long, default_value = "/usr/bin/forebay")]
    pub command: PathBuf,
}
