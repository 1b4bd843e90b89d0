// SPDX-License-Identifier: MIT OR Apache-2.0
//! The arguments of what talks to the kernel module: attach, detach, list.

use std::path::PathBuf;

use clap::Args;
use forebay::{defaults, Holes, WriteDurable};

use super::origin::State;
use super::{Json, Tuning};

/// The block device needs no server and no NBD.  It needs the kernel module forebay, and a pool on
/// persistent memory or on a disk (forebay create --medium ssd).
#[derive(Args, Debug)]
#[command(after_help = after!(
    "forebay attach /dev/pmem0 data /dev/sdb             /dev/forebay0 appears",
    "forebay attach /dev/pmem0 data /dev/sdb --max-age 5s --jobs 32",
    "forebay attach --all                                every volume of /etc/forebay.d",
    "forebay attach --config ./fast.toml --dry-run       checks the file",
))]
pub struct AttachDevice {
    /// The pool: a persistent-memory device in fsdax mode, or a disk
    #[arg(required_unless_present_any = ["all", "config"], requires_all = ["volume", "origin"])]
    pub pool: Option<PathBuf>,
    /// The volume
    pub volume: Option<String>,
    /// The origin: the block device that the volume caches
    pub origin: Option<PathBuf>,
    /// Attach every volume that /etc/forebay.d/*.toml names, see forebay.d(5)
    #[arg(long, conflicts_with_all = ["config", "pool", "DeviceOptions", "Tuning"], help_heading = "Configuration")]
    pub all: bool,
    /// Attach every volume of this file, or of the *.toml files in this directory
    #[arg(long, value_name = "PATH", conflicts_with_all = ["pool", "DeviceOptions", "Tuning"], help_heading = "Configuration")]
    pub config: Option<PathBuf>,
    /// Attach only the volume NAME of these; the option can be repeated
    #[arg(long, value_name = "NAME", conflicts_with = "pool", help_heading = "Configuration")]
    pub only: Vec<String>,
    /// Print the request to the module, and do nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Attach even if the mark of the origin is missing, is unreadable, or was set on another host.
    /// If another pool has used the origin since, cached data overwrites what that pool wrote
    #[arg(long)]
    pub accept_mark: bool,
    #[command(flatten)]
    pub state: State,
    #[command(flatten)]
    pub device: DeviceOptions,
    /// Options of the pool; those of the first attach apply
    #[command(flatten)]
    pub tuning: Tuning,
    #[command(flatten)]
    pub json: Json,
}

/// Options of one device, as the module names them.
#[derive(Args, Clone, Debug, Default)]
pub struct DeviceOptions {
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(defaults::QUEUE_DEPTH_MAX)), help_heading = "Device")]
    #[arg(help = format!("Largest number of concurrent write-back requests to the origin [default: {}]", defaults::QUEUE_DEPTH))]
    pub jobs: Option<u32>,
    #[arg(long, value_name = "POLICY", help_heading = "Device")]
    #[arg(help = format!("What to do if recovery finds entries lost: fail, isolate or accept, as for forebay serve [default: {}]", Holes::default()))]
    pub holes: Option<Holes>,
    /// Write all cached data to the origin.  New writes bypass the cache, and are durable after a
    /// flush
    #[arg(long, help_heading = "Device")]
    pub cleaner: bool,
    /// Make the pool if the device is blank, and the volume if the pool lacks it
    #[arg(long, help_heading = "Device")]
    pub create: bool,
    /// Attach even if the origin is not the recorded one, or has grown.  Cached data overwrites
    /// what this origin holds
    #[arg(long, help_heading = "Device")]
    pub accept_changed_origin: bool,
    /// Accept an origin that the system knows only by its name; use it with --create or
    /// --accept-changed-origin, which record the name
    #[arg(long, help_heading = "Device")]
    pub origin_by_name: bool,
    /// Identity of the origin; default: the one that the system reports for the device
    #[arg(long, value_name = "ID", help_heading = "Device")]
    pub origin_id: Option<String>,
    /// First sector of the pool on its device, in units of 512 bytes, a multiple of 8; default: 0
    #[arg(long, value_name = "SECTOR", help_heading = "Device")]
    pub start_sector: Option<u64>,
    #[arg(long, value_name = "WHEN", help_heading = "Pool on a disk")]
    #[arg(help = format!("When a write without FUA is durable: always, flush or auto, as for forebay serve [default: {}]", WriteDurable::default()))]
    pub durable: Option<WriteDurable>,
    /// Make writes durable by a flush, also where the disk has FUA
    #[arg(long, help_heading = "Pool on a disk")]
    pub no_fua: bool,
}

/// Without --flush, cached data stays in the pool, and the origin may lack it.  If the pool's disk has
/// failed, memory alone has it: then a device is detached with --flush, --rescue or --give-up only.
/// The last device of such a pool stays while memory alone has something of other volumes: attach
/// and detach these first.
#[derive(Args, Debug)]
#[command(after_help = after!(
    "forebay detach data                       by the volume's name",
    "forebay detach /dev/forebay0 --flush      the origin alone is then complete",
    "forebay detach --all",
))]
pub struct DetachDevice {
    /// The devices, each by its volume's name, as forebayN, or by its path
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    pub devices: Vec<String>,
    /// Detach all devices
    #[arg(long)]
    pub all: bool,
    /// First write all cached data to the origin
    #[arg(long)]
    pub flush: bool,
    /// Do so only if the pool's disk has failed
    #[arg(long, conflicts_with = "flush")]
    pub rescue: bool,
    /// Lose what the origin lacks if the pool's disk has failed, and, with the pool's last device,
    /// what those of all other volumes lack
    #[arg(long, conflicts_with_all = ["flush", "rescue"])]
    pub give_up: bool,
    #[command(flatten)]
    pub state: State,
    #[command(flatten)]
    pub json: Json,
}

/// `dmsetup status --target forebay` lists the devices of the device mapper.
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
