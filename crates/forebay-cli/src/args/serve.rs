// SPDX-License-Identifier: MIT OR Apache-2.0
//! The arguments of what serves a pool, and of what changes that.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use forebay::{
    defaults, AttachOptions, Away, Holes, Mode, OptionsChange, PoolOptions, Verify, VolumeChange,
    WhenAway, WhenFull, WriteDurable,
};

use super::origin::State;
use super::{Json, MediaArgs};
use crate::units;

/// Options that only writes and destage use.  A read-only pool has neither.
const WRITERS: [&str; 11] = [
    "mode",
    "cleaner",
    "write_through",
    "bypass_limit",
    "when_full",
    "slots",
    "checksums",
    "high_watermark",
    "low_watermark",
    "max_age",
    "idle",
];

/// A volume that cannot be attached is left out, and named; the others are served.  The server
/// first writes pages that a crash left in maps to their files, and names those that stay.
///
/// It sends a service manager READY=1 and STOPPING=1 (sd_notify); the unit
/// forebay-serve@.service is made for it (systemctl start forebay-serve@dev-pmem0).  SIGINT or
/// SIGTERM ends it in order, and a second one at once (exit code 19); SIGHUP does not, and there is
/// nothing to reload.
#[derive(Args, Clone, Debug)]
#[command(mut_arg("when_full", |a| a.default_value(WhenFull::default().to_string())))]
#[command(mut_arg("mode", |a| a.default_value(Mode::default().to_string())))]
#[command(mut_arg("bypass_limit", |a| a.default_value("0")))]
#[command(mut_arg("durable", |a| a.default_value(WriteDurable::default().to_string())))]
#[command(after_help = after!(
    "forebay serve /dev/pmem0",
    "forebay serve /dev/shm/pool --socket /run/user/1000/fb/nbd.sock",
    "forebay serve /dev/pmem0 --origin data=/dev/sdc      the disk has moved",
    "forebay serve /dev/pmem0 --cleaner                   until nothing is cached",
    "forebay serve /dev/pmem0 --mount /srv/data           a tree next to the volumes",
    "forebay serve /dev/pmem0 --json > ready &           URIs, processes, as JSON",
))]
pub struct Serve {
    /// The pool
    pub pool: PathBuf,
    /// Unix socket; its directory must be its owner's alone (mode 0700).  Default: one of
    /// the pool's UUID, in $FOREBAY_RUNTIME_DIR, or /run/forebay for root
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Request threads of each connection
    #[arg(long, value_name = "N", default_value = "16", value_parser = clap::value_parser!(u32).range(1..=256))]
    pub threads: u32,
    #[command(flatten)]
    pub attach: Attach,
    #[command(flatten)]
    pub past: Past,
    /// Empty the pool: --mode cleaner
    #[arg(long, conflicts_with_all = ["mode", "write_through"], help_heading = "Past the cache")]
    pub cleaner: bool,
    /// Keep nothing but on the origins: --mode write-through
    #[arg(long, conflicts_with = "mode", help_heading = "Past the cache")]
    pub write_through: bool,
    /// Open the pool read-only and serve it so
    #[arg(long, conflicts_with_all = WRITERS)]
    pub read_only: bool,
    /// A tree to mount, over itself or elsewhere, as forebay mount does; the log of a
    /// second one is mount-2, and so on
    #[arg(long, value_name = "TREE[=MOUNTPOINT]", help_heading = "Mounts")]
    pub mount: Vec<String>,
    #[command(flatten)]
    pub tuning: Tuning,
    #[command(flatten)]
    pub media: MediaArgs,
    /// Print the readiness message as one line of JSON
    #[command(flatten)]
    pub json: Json,
    /// Make an empty file at PATH when connections are accepted
    #[arg(long, value_name = "PATH")]
    pub ready_file: Option<PathBuf>,
}

/// How volumes are attached to their origins.
#[derive(Args, Clone, Debug)]
pub struct Attach {
    /// The present place of a volume's origin, if it moved: a path or a URI
    #[arg(long, value_name = "NAME=PATH", value_parser = units::parse_name_path)]
    pub origin: Vec<(String, PathBuf)>,
    /// Attach though an origin is not the recorded one, or has grown; onto
    /// other data, what is cached would destroy that
    #[arg(long)]
    pub accept_changed_origin: bool,
    /// Take an origin that the system knows by its name alone, and record that
    /// the name is enough
    #[arg(long)]
    pub origin_by_name: bool,
    /// Attach though the mark of an origin is missing, cannot be read, or was set on
    /// another host; if another pool has had the origin since, what is cached would
    /// destroy what that wrote
    #[arg(long)]
    pub accept_mark: bool,
    #[command(flatten)]
    pub state: State,
    /// How to treat entries that recovery found lost: fail, the volume is not attached;
    /// isolate, blocks that can be named answer with an I/O error; accept, blocks that cannot
    /// be named may show older data
    #[arg(long, value_name = "POLICY", default_value_t)]
    pub holes: Holes,
    /// How requests behave while an origin on the network is away: error, they fail after
    /// --away-limit; wait, they wait as long as it takes
    #[arg(long, value_name = "POLICY", default_value_t)]
    pub when_away: WhenAway,
    /// Time after which they fail
    #[arg(long, value_name = "TIME", value_parser = units::parse_time, default_value = "30s")]
    pub away_limit: Duration,
}

/// Requests that bypass the cache.
#[derive(Args, Clone, Debug)]
pub struct Past {
    /// Writes of so many bytes and more go straight to the origin, as far as
    /// their blocks are not cached; 0: none.  They are durable after a flush
    #[arg(long, value_name = "SIZE", value_parser = units::parse_size, help_heading = "Past the cache")]
    pub bypass_limit: Option<u64>,
    /// How a write behaves when the pool is full: wait, or bypass
    #[arg(long, value_name = "POLICY", help_heading = "Past the cache")]
    pub when_full: Option<WhenFull>,
    /// How a volume uses the pool: write-back, a write is acknowledged when the pool has it;
    /// write-through, when its flushed origin has it; cleaner, all cached data goes to the
    /// origin, and new writes bypass the cache and are durable after a flush
    #[arg(long, value_name = "MODE", help_heading = "Past the cache")]
    pub mode: Option<Mode>,
    /// When a write is durable that its client does not ask to be (FUA), if the pool is on a disk:
    /// always, when it is acknowledged; flush, after the client's next flush, as on a disk with a
    /// volatile cache; auto, flush where a durable write takes the disk 200 us or more.  In a pool in
    /// memory it is when it is acknowledged
    #[arg(long, value_name = "WHEN", help_heading = "Pool on a disk")]
    pub durable: Option<WriteDurable>,
}

impl Past {
    pub fn change(&self) -> VolumeChange {
        VolumeChange {
            bypass_limit_bytes: self.bypass_limit,
            when_full: self.when_full,
            mode: self.mode,
            durable: self.durable,
        }
    }
}

impl Serve {
    pub fn mode(&self) -> Mode {
        match (self.cleaner, self.write_through) {
            (true, _) => Mode::Cleaner,
            (_, true) => Mode::WriteThrough,
            _ => self.past.mode.unwrap_or_default(),
        }
    }
}

/// Without options: shows those in effect, of the pool and of each volume.
///
/// Settings apply until the pool is served again: a pool stores no options, and those of
/// forebay serve count.  A pool that nobody serves has no options to change; for the devices of
/// the kernel module see docs/manual/kernel.md.
#[derive(Args, Debug)]
#[command(after_help = after!(
    "forebay set /dev/pmem0                                shows them",
    "forebay set /dev/pmem0 --high-watermark 80 --low-watermark 40 --max-age 30s",
    "forebay set /dev/pmem0 --max-age none --verify first",
    "forebay set /dev/pmem0 --bypass-limit 1M             writes of 1 MiB and more, of all volumes",
    "forebay set /dev/pmem0 --volume db --mode write-through",
    "forebay set /dev/pmem0 --json | jq .options",
))]
pub struct Set {
    /// The pool
    pub pool: PathBuf,
    /// Only this volume
    #[arg(long, value_name = "NAME")]
    pub volume: Option<String>,
    #[command(flatten)]
    pub past: Past,
    #[command(flatten)]
    pub options: SetOptions,
    #[command(flatten)]
    pub json: Json,
}

/// The options of [`Tuning`] that can change while the pool is open.
#[derive(Args, Clone, Debug)]
pub struct SetOptions {
    /// Checksum new data
    #[arg(long, value_name = "BOOL", help_heading = "Pool")]
    pub checksums: Option<bool>,
    /// Verify checksums of reads: always, first or never
    #[arg(long, value_name = "WHEN", help_heading = "Pool")]
    pub verify: Option<Verify>,
    /// Start writing to the origin when so much of the pool is in use
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(1..=100), help_heading = "Pool")]
    pub high_watermark: Option<u32>,
    /// Stop there
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(1..=99), help_heading = "Pool")]
    pub low_watermark: Option<u32>,
    /// Write to the origin what is older: 500ms, 30s, 5m, or none
    #[arg(long, value_name = "TIME|none", value_parser = time_or_none, help_heading = "Pool")]
    pub max_age: Option<Duration>,
    /// Write a volume to its origin when nothing wrote to it for so long, or none
    #[arg(long, value_name = "TIME|none", value_parser = time_or_none, help_heading = "Pool")]
    pub idle: Option<Duration>,
}

impl SetOptions {
    pub fn change(&self) -> OptionsChange {
        OptionsChange {
            checksums: self.checksums,
            verify: self.verify,
            high_watermark_percent: self.high_watermark,
            low_watermark_percent: self.low_watermark,
            max_age_seconds: self.max_age.map(|t| t.as_secs_f64()),
            idle_seconds: self.idle.map(|t| t.as_secs_f64()),
        }
    }
}

impl Attach {
    /// An option for a missing volume was meant for another.
    pub fn check(&self, pool: &forebay::Pool) -> forebay::Result<()> {
        self.origin.iter().try_for_each(|(name, _)| pool.volume_info(name).map(drop))
    }

    /// For attaches while the server runs: what was accepted is there when it starts.  An origin
    /// that comes at another time may be another, which cached data would destroy.
    pub fn later(&self) -> Attach {
        Attach {
            accept_changed_origin: false,
            origin_by_name: false,
            accept_mark: false,
            ..self.clone()
        }
    }

    /// The options of one volume.
    pub fn options(&self, volume: &str) -> AttachOptions {
        let mut moved = self.origin.iter().rev();
        AttachOptions {
            origin: (moved.find(|(name, _)| name == volume)).map(|(_, path)| path.clone()),
            accept_changed_origin: self.accept_changed_origin,
            origin_by_name: self.origin_by_name,
            accept_mark: self.accept_mark,
            state: self.state.state.clone(),
            holes: self.holes,
            away: Away { when: self.when_away, limit: self.away_limit },
            ..Default::default()
        }
    }
}

/// Options of an open pool, passed on where they are given.
#[derive(Args, Clone, Debug)]
pub struct Tuning {
    #[arg(long, value_name = "N|auto", value_parser = units::parse_slots, help_heading = "Tuning")]
    #[arg(help = format!("Commit slots: how many writers the media serves at once, 1 to {}, or auto: what suits media, CPUs and the pool's size [default: auto]", defaults::SLOTS_MAX))]
    pub slots: Option<u32>,
    /// Checksum new data
    #[arg(long, value_name = "BOOL", default_value_t = PoolOptions::default().checksums, action = clap::ArgAction::Set, help_heading = "Tuning")]
    pub checksums: bool,
    #[arg(long, value_name = "WHEN", help_heading = "Tuning")]
    #[arg(help = format!("Verify checksums of reads: always, first or never [default: {}]", Verify::default()))]
    pub verify: Option<Verify>,
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(1..=100), help_heading = "Tuning")]
    #[arg(help = format!("Start writing to the origin when so much of the pool is in use [default: {}]", defaults::HIGH_WATERMARK_PERCENT))]
    pub high_watermark: Option<u32>,
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(1..=99), help_heading = "Tuning")]
    #[arg(help = format!("Stop there [default: {} less]", defaults::WATERMARK_GAP_PERCENT))]
    pub low_watermark: Option<u32>,
    /// Write to the origin what is older: 500ms, 30s, 5m, or none [default: none]
    #[arg(long, value_name = "TIME|none", value_parser = time_or_none, help_heading = "Tuning")]
    pub max_age: Option<Duration>,
    /// Write a volume to its origin when nothing wrote to it for so long, or none
    /// [default: none]
    #[arg(long, value_name = "TIME|none", value_parser = time_or_none, help_heading = "Tuning")]
    pub idle: Option<Duration>,
}

impl Tuning {
    /// The options of a pool that is opened with these; the media determines the others.
    pub fn options(&self, media: &MediaArgs, read_only: bool) -> PoolOptions {
        PoolOptions {
            read_only,
            slots: self.slots.unwrap_or(0),
            checksums: self.checksums,
            verify: self.verify.unwrap_or_default(),
            high_watermark_percent: self.high_watermark.unwrap_or(0),
            low_watermark_percent: self.low_watermark.unwrap_or(0),
            max_age: self.max_age.filter(|time| !time.is_zero()),
            idle: self.idle.filter(|time| !time.is_zero()),
            ..media.read_write()
        }
    }
}

/// Zero from "none".
fn time_or_none(text: &str) -> Result<Duration, String> {
    match text {
        "none" => Ok(Duration::ZERO),
        _ => units::parse_time(text).map_err(|wrong| format!("{wrong}, or none")),
    }
}
