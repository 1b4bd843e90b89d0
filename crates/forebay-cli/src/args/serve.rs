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

/// If a volume cannot be attached, the server names it and serves the others.  Pages that a crash
/// left in maps are first written to their files; the server names the files whose pages stay.
///
/// SIGINT or SIGTERM ends the server in order; a second one ends it at once, with exit code 19.
/// SIGHUP has no effect.  The server reports READY=1 and STOPPING=1 to a service manager
/// (sd_notify); the unit forebay-serve@.service uses that.
#[derive(Args, Clone, Debug)]
#[command(mut_arg("when_full", |a| a.default_value(WhenFull::default().to_string())))]
#[command(mut_arg("mode", |a| a.default_value(Mode::default().to_string())))]
#[command(mut_arg("bypass_limit", |a| a.default_value("0")))]
#[command(mut_arg("durable", |a| a.default_value(WriteDurable::default().to_string())))]
#[command(after_help = after!(
    "forebay serve /dev/pmem0",
    "forebay serve /dev/shm/pool --socket /run/user/1000/fb/nbd.sock",
    "forebay serve /dev/pmem0 --origin data=/dev/sdc      the disk has a new name",
    "forebay serve /dev/pmem0 --cleaner                   empties the pool while it serves",
    "forebay serve /dev/pmem0 --mount /srv/data           mounts a tree, too",
    "forebay serve /dev/pmem0 --json > ready &            prints the URIs as JSON",
    "systemctl start forebay-serve@dev-pmem0              the same as a service",
))]
pub struct Serve {
    /// The pool
    pub pool: PathBuf,
    /// Unix socket for NBD; its directory must have mode 0700.  Default: a socket named for the
    /// pool's UUID, in $FOREBAY_RUNTIME_DIR, or in /run/forebay for root
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Number of request threads for each connection, 1 to 256
    #[arg(long, value_name = "N", default_value = "16", value_parser = clap::value_parser!(u32).range(1..=256))]
    pub threads: u32,
    #[command(flatten)]
    pub attach: Attach,
    #[command(flatten)]
    pub past: Past,
    /// Empty the pool while it serves; the same as --mode cleaner
    #[arg(long, conflicts_with_all = ["mode", "write_through"], help_heading = "Past the cache")]
    pub cleaner: bool,
    /// Acknowledge a write when its origin has it; the same as --mode write-through
    #[arg(long, conflicts_with = "mode", help_heading = "Past the cache")]
    pub write_through: bool,
    /// Open the pool read-only, and serve its volumes read-only
    #[arg(long, conflicts_with_all = WRITERS)]
    pub read_only: bool,
    /// A tree to mount, over itself or at MOUNTPOINT, as forebay mount does.  The first tree uses
    /// the log mount, the second mount-2, and so on
    #[arg(long, value_name = "TREE[=MOUNTPOINT]", help_heading = "Mounts")]
    pub mount: Vec<String>,
    #[command(flatten)]
    pub tuning: Tuning,
    #[command(flatten)]
    pub media: MediaArgs,
    /// Print the readiness message as one line of JSON
    #[command(flatten)]
    pub json: Json,
    /// Make an empty file at PATH when the server accepts connections
    #[arg(long, value_name = "PATH")]
    pub ready_file: Option<PathBuf>,
}

/// How volumes are attached to their origins.
#[derive(Args, Clone, Debug)]
pub struct Attach {
    /// Present place of the origin of volume NAME, if it has moved: a path or a URI
    #[arg(long, value_name = "NAME=PATH", value_parser = units::parse_name_path)]
    pub origin: Vec<(String, PathBuf)>,
    /// Attach even if an origin is not the recorded one, or has grown.  Cached data overwrites what
    /// this origin holds
    #[arg(long)]
    pub accept_changed_origin: bool,
    /// Accept an origin that the system knows only by its name, and record that the name is enough
    #[arg(long)]
    pub origin_by_name: bool,
    /// Attach even if the mark of an origin is missing, is unreadable, or was set on another host.
    /// If another pool has used the origin since, cached data overwrites what that pool wrote
    #[arg(long)]
    pub accept_mark: bool,
    #[command(flatten)]
    pub state: State,
    /// What to do if recovery finds entries lost:
    ///   - fail: do not attach the volume
    ///   - isolate: lost blocks return an I/O error; do not attach if some are unknown
    ///   - accept: as isolate, but unknown lost blocks may show older data
    #[arg(verbatim_doc_comment)]
    #[arg(long, value_name = "POLICY", default_value_t)]
    pub holes: Holes,
    /// What requests do while an origin on the network is unreachable:
    ///   - error: they fail after --away-limit
    ///   - wait: they wait until it is reachable
    #[arg(verbatim_doc_comment)]
    #[arg(long, value_name = "POLICY", default_value_t)]
    pub when_away: WhenAway,
    /// With --when-away error: how long a request waits for an unreachable origin before it fails
    #[arg(long, value_name = "TIME", value_parser = units::parse_time, default_value = "30s")]
    pub away_limit: Duration,
}

/// Requests that bypass the cache.
#[derive(Args, Clone, Debug)]
pub struct Past {
    /// Send writes of at least this size straight to the origin, except for blocks that are cached;
    /// 0: cache all writes.  A write to the origin is durable after a flush
    #[arg(long, value_name = "SIZE", value_parser = units::parse_size, help_heading = "Past the cache")]
    pub bypass_limit: Option<u64>,
    /// What a write does when the pool is full:
    ///   - wait: it waits for space
    ///   - bypass: it goes to the origin, and is durable after a flush
    #[arg(verbatim_doc_comment)]
    #[arg(long, value_name = "POLICY", help_heading = "Past the cache")]
    pub when_full: Option<WhenFull>,
    /// How a volume uses the pool:
    ///   - write-back: a write is acknowledged when the pool has it
    ///   - write-through: a write is acknowledged when its flushed origin has it
    ///   - cleaner: cached data goes to the origin; so do new writes, durable after a flush
    #[arg(verbatim_doc_comment)]
    #[arg(long, value_name = "MODE", help_heading = "Past the cache")]
    pub mode: Option<Mode>,
    /// When a write without FUA is durable, if the pool is on a disk (in memory it always is):
    ///   - always: when it is acknowledged
    ///   - flush: after the client's next flush, as on a disk with a volatile cache
    ///   - auto: flush if a durable write takes the disk 200 us or more, otherwise always
    #[arg(verbatim_doc_comment)]
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

/// Without options, the command shows the options in effect, for the pool and for each volume.
///
/// A change applies until the server ends: a pool stores no options, and the next server uses
/// those of its command line.  If nobody serves the pool, there are no options to change.  For the
/// devices of the kernel module, see docs/manual/kernel.md.
#[derive(Args, Debug)]
#[command(after_help = after!(
    "forebay set /dev/pmem0                               shows the options",
    "forebay set /dev/pmem0 --high-watermark 80 --low-watermark 40 --max-age 30s",
    "forebay set /dev/pmem0 --max-age none --verify first",
    "forebay set /dev/pmem0 --bypass-limit 1M             large writes of all volumes go to the origin",
    "forebay set /dev/pmem0 --volume db --mode write-through",
    "forebay set /dev/pmem0 --json | jq .options",
))]
pub struct Set {
    /// The pool; to change an option, it must be served
    pub pool: PathBuf,
    /// Change or show only this volume
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
    /// Store a checksum with new data
    #[arg(long, value_name = "BOOL", help_heading = "Pool")]
    pub checksums: Option<bool>,
    /// When a read of cached data verifies its checksum: always, first (only the first read) or
    /// never
    #[arg(long, value_name = "WHEN", help_heading = "Pool")]
    pub verify: Option<Verify>,
    /// Start to write back when this much of the pool is in use, 1 to 100
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(1..=100), help_heading = "Pool")]
    pub high_watermark: Option<u32>,
    /// Stop writing back when only this much is in use, 1 to 99
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(1..=99), help_heading = "Pool")]
    pub low_watermark: Option<u32>,
    /// Write back data that is older than this, such as 500ms, 30s or 5m; none: no limit
    #[arg(long, value_name = "TIME|none", value_parser = time_or_none, help_heading = "Pool")]
    pub max_age: Option<Duration>,
    /// Write back a volume when it has had no write for this long, such as 30s; none: never
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
    #[arg(help = format!("Number of commit slots, which limits the concurrent writers, 1 to {}, or auto: chosen by media, CPUs and pool size [default: auto]", defaults::SLOTS_MAX))]
    pub slots: Option<u32>,
    /// Store a checksum with new data
    #[arg(long, value_name = "BOOL", default_value_t = PoolOptions::default().checksums, action = clap::ArgAction::Set, help_heading = "Tuning")]
    pub checksums: bool,
    #[arg(long, value_name = "WHEN", help_heading = "Tuning")]
    #[arg(help = format!("When a read of cached data verifies its checksum: always, first (only the first read) or never [default: {}]", Verify::default()))]
    pub verify: Option<Verify>,
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(1..=100), help_heading = "Tuning")]
    #[arg(help = format!("Start to write back when this much of the pool is in use [default: {}]", defaults::HIGH_WATERMARK_PERCENT))]
    pub high_watermark: Option<u32>,
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(1..=99), help_heading = "Tuning")]
    #[arg(help = format!("Stop writing back when only this much is in use [default: {} less]", defaults::WATERMARK_GAP_PERCENT))]
    pub low_watermark: Option<u32>,
    /// Write back data that is older than this, such as 500ms, 30s or 5m; none: no limit
    /// [default: none]
    #[arg(long, value_name = "TIME|none", value_parser = time_or_none, help_heading = "Tuning")]
    pub max_age: Option<Duration>,
    /// Write back a volume when it has had no write for this long, such as 30s; none: never
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
