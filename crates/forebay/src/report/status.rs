// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reports of a pool and its volumes, ready for JSON.  Counters count since open or attach
//! unless they say otherwise; sectors are 512 bytes; an unknown block is `None`.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::completeness::{Completeness, Verdict};
use super::file::FileTrouble;
use super::held::HeldByDetached;
use super::log::{LogCheck, LogInfo};
use super::map::{MapCheck, MapInfo};
use super::media::{human_bytes, MediaInfo};
use super::mode::{Mode, WhenFull, WriteDurable};
use super::options::OptionsInfo;
use super::Uuid;
use crate::latency::PhaseLatency;

/// A block that a report names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportBlock {
    /// Name of the volume, where it is known.
    pub volume: Option<String>,
    /// 4 KiB units, where it is known.
    pub block: Option<u64>,
    pub chunk: u32,
    pub page: u16,
}

impl fmt::Display for ReportBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.block {
            Some(b) => write!(f, "block {b}")?,
            None => f.write_str("unknown block")?,
        }
        match &self.volume {
            Some(v) => write!(f, " of volume {v}")?,
            None => f.write_str(" of an unknown volume")?,
        }
        write!(f, " (chunk {} page {})", self.chunk, self.page)
    }
}

/// The result of recovery when the pool was opened.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RecoveryReport {
    /// The pool had been closed cleanly.
    pub clean: bool,
    pub chunks: u64,
    /// Valid entries above their volume's watermark.
    pub entries: u64,
    /// Blocks cached: the newest entry of each.
    pub blocks: u64,
    /// Torn tail pages of writes that were never acknowledged.
    pub dropped: u64,
    /// Entries whose data failed its checksum where it cannot be torn.
    pub damaged: u64,
    /// Entries lost.
    pub holes: u64,
    /// Single-bit errors in headers, put right.
    pub lines_repaired: u64,
    pub chunk_headers_lost: u64,
    /// Groups of entries that the pool's device had said to be durable, and lost.
    #[serde(default)]
    pub groups_lost: u64,
    /// The logs of the first few of these.
    #[serde(default)]
    pub groups_named: Vec<ReportBlock>,
    /// The first few of `dropped`.
    pub dropped_named: Vec<ReportBlock>,
    /// The first few of `holes`.
    pub holes_named: Vec<ReportBlock>,
    /// From the start of the opening until the pool was usable.
    pub seconds: f64,
    pub threads: usize,
}

impl fmt::Display for RecoveryReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: {} chunks, {} entries, {} blocks cached, in {:.3} s",
            if self.clean { "closed cleanly before" } else { "recovered" },
            self.chunks,
            self.entries,
            self.blocks,
            self.seconds
        )?;
        for (n, what) in [
            (self.dropped, "torn pages of unacknowledged writes dropped"),
            (self.damaged, "damaged entries isolated"),
            (self.holes, "entries LOST"),
            (self.lines_repaired, "headers repaired"),
            (self.chunk_headers_lost, "chunk headers damaged"),
            (self.groups_lost, "groups of entries LOST that the device had said to be durable"),
        ] {
            if n > 0 {
                write!(f, "; {n} {what}")?;
            }
        }
        Ok(())
    }
}

/// The state of a volume's destage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DestageState {
    #[default]
    Idle,
    Writing,
    Flushing,
    Committing,
    /// The origin failed; it is tried again later.
    Backoff,
}

impl fmt::Display for DestageState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DestageState::Idle => "idle",
            DestageState::Writing => "writing",
            DestageState::Flushing => "flushing",
            DestageState::Committing => "committing",
            DestageState::Backoff => "waiting to retry after an origin error",
        })
    }
}

/// An attached origin.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OriginInfo {
    /// Path or other name.
    pub name: String,
    /// How it is written, by name: "io_uring, O_DIRECT".
    pub method: String,
    /// A note if it is not as good as it could be, with the reason; otherwise empty.
    pub note: String,
}

/// How destage uses a volume's origin, and what that costs within the pool, since the pool was
/// opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OriginUse {
    /// Pages written by clients, 4 KiB each however large their requests were, for each request
    /// that was sent to the origin.
    pub written_pages_per_request: f64,
    /// Pages in each of these.
    pub pages_per_request: f64,
    /// Pages copied within the pool for each that was written.
    pub copies_per_written_page: f64,
}

impl OriginUse {
    /// `None` before the first request.
    pub fn of(v: &VolumeInfo) -> Option<OriginUse> {
        let per = |n: f64, of: u64| n / of.max(1) as f64;
        let pages = |bytes: u64| bytes as f64 / 4096.0;
        (v.origin_writes > 0).then(|| OriginUse {
            written_pages_per_request: per(pages(v.written_bytes), v.origin_writes),
            pages_per_request: per(pages(v.origin_written_bytes), v.origin_writes),
            copies_per_written_page: v.pages_relocated as f64 / pages(v.written_bytes).max(1.0),
        })
    }
}

impl fmt::Display for OriginUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:.2} pages written for each request to the origin, {:.2} in each, {:.2} copied for each written",
            self.written_pages_per_request, self.pages_per_request, self.copies_per_written_page
        )
    }
}

/// A volume of a pool.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct VolumeInfo {
    pub name: String,
    /// Its number in the volume table.
    pub index: u16,
    pub uuid: Uuid,
    pub size_bytes: u64,
    pub block_size: u32,
    /// Recorded id of the origin.
    pub identity: String,
    /// Recorded path of the origin, if it was short enough.
    pub origin_path: Option<String>,
    /// The origin in use, while attached.
    pub origin: Option<OriginInfo>,
    pub attached: bool,
    /// Both copies of the volume's record are damaged.
    pub damaged: bool,
    /// All entries up to this number are on the flushed origin.
    pub watermark: u64,
    /// Cached pages of 4 KiB.
    pub pages: u64,
    pub cached_bytes: u64,
    pub chunks: u32,
    /// A static volume's share of the pool; 0: the volume is not static.
    #[serde(default)]
    pub static_bytes: u64,
    /// Its slots, of two pages each; blocks of which there is a multiple of as many between
    /// them have the same.
    #[serde(default)]
    pub static_slots: u32,
    /// So often all goes to its origin; `None`: as the pool's maximum age says.
    #[serde(default)]
    pub flush_every_seconds: Option<f64>,
    /// A static volume may hold more than `pages`: it was not closed, and what it holds is
    /// counted in the background once it is attached.
    #[serde(default)]
    pub uncounted: bool,
    /// Writes that waited until another block of their slot was on the origin, since it was
    /// attached.
    #[serde(default)]
    pub conflicts: u64,
    /// The part of a static volume's eras that is used, in per cent; at 100 it takes no
    /// writes.  From 50 on, the eras begin anew when the volume is attached empty.
    #[serde(default)]
    pub eras_percent: u32,
    /// Blocks that answer EIO until they are overwritten; of a static volume those found since
    /// it was attached.
    pub lost_blocks: u64,
    /// Entries that recovery found lost and nobody accepted yet.
    pub holes: u64,
    /// Number of these whose block is unknown.
    pub holes_unknown: u64,
    /// Whether the origin alone is all of it; judged by [`crate::Pool::status`] only.
    #[serde(default)]
    pub verdict: Verdict,
    /// How its origin differs from the one that was attached or recorded; determined by
    /// [`crate::Pool::status`] only.
    #[serde(default)]
    pub origin_changed: Option<String>,
    /// The content of the mark on the origin of a volume that is not attached; determined as
    /// above.
    #[serde(default)]
    pub origin_mark: Option<String>,
    /// Why the origin of a volume that is not attached cannot be looked at: it may have changed, or
    /// bear a mark.  Determined as above.
    #[serde(default)]
    pub origin_unseen: Option<String>,
    /// Since when its origin, on the network, cannot be asked for anything, and why.
    #[serde(default)]
    pub origin_away: Option<String>,
    pub destage: DestageState,
    pub draining: bool,
    /// Nothing more goes to its origin: the lost blocks come first, and the pool has no free chunk
    /// for their marks.
    #[serde(default)]
    pub lost_stuck: bool,
    /// The last error of the origin; `None` when well.
    pub last_error: Option<String>,
    /// Its number, as the system has it.
    #[serde(default)]
    pub last_errno: Option<i32>,
    pub origin_errors: u64,
    /// Pages that the origin has refused: they stay in the pool, and are tried again.
    #[serde(default)]
    pub pages_refused: u64,
    /// Offset in the volume of the first of them.
    #[serde(default)]
    pub refused_offset: Option<u64>,
    pub origin_writes: u64,
    pub origin_written_bytes: u64,
    pub origin_flushes: u64,
    /// Pages whose data went to the origin.
    pub pages_destaged: u64,
    /// Pages copied within the pool: those that destage keeps, and those of mostly dead chunks.
    pub pages_relocated: u64,
    /// As ratios; `None` before the first request to the origin.
    #[serde(default)]
    pub origin_use: Option<OriginUse>,
    pub writes: u64,
    pub written_bytes: u64,
    pub rounds: u64,
    /// Writers were held back so long in all, to meet the drain rate.
    pub throttled_seconds: f64,
    /// Allowed rate of writes now; `None`: no limit.
    pub intake_limit_bytes_per_s: Option<u64>,
    /// Rate of pages that the origin takes or that are overwritten, averaged over about a
    /// second.
    pub drain_bytes_per_s: u64,
    /// Origin writes in flight that destage aims at.
    pub origin_depth: u32,
    /// Writes that went past the cache, since it was attached.
    #[serde(default)]
    pub bypasses: u64,
    #[serde(default)]
    pub bypassed_bytes: u64,
    /// The next flush goes to the origin: not all that went past is durable.
    #[serde(default)]
    pub flush_owed: bool,
    /// Writes of so many bytes and more go past the cache; `None`: none.
    #[serde(default)]
    pub bypass_limit_bytes: Option<u64>,
    #[serde(default)]
    pub when_full: WhenFull,
    #[serde(default)]
    pub mode: Mode,
    /// How long the phases of its requests took, since it was attached.
    pub latency: Vec<PhaseLatency>,
    /// When a write is durable that its client does not ask to be: never `auto`; `None`: the pool is
    /// in memory, where each is when it is acknowledged, or the volume is not attached.
    #[serde(default)]
    pub durable: Option<WriteDurable>,
    /// Why: it was asked for, or how long a durable write took the disk when `auto` decided.
    #[serde(default)]
    pub durable_because: Option<String>,
    /// The pool's disk has failed, and the origin has all that was acknowledged.
    #[serde(default)]
    pub rescued: bool,
    /// The pool's disk has failed: what is cached is in the memory of this process.
    #[serde(default)]
    pub pool_failed: bool,
    /// ... or its file is lost.
    #[serde(default)]
    pub pool_lost: bool,
}

/// From here on status says that a static volume is to be drained and attached anew.
pub const ERAS_WARN_PERCENT: u32 = 75;

impl VolumeInfo {
    /// Whether there is a volume at its index: one that was removed has no name, as has one that
    /// lost its record.
    pub(crate) fn is_used(&self) -> bool {
        !self.name.is_empty() || self.damaged
    }

    /// Its name, or the number by which one without a name is addressed.
    pub fn label(&self) -> String {
        match self.name.as_str() {
            "" => format!("#{}", self.index),
            name => name.into(),
        }
    }

    /// Whether the pool may hold data of it.  What a static volume holds is not counted after a
    /// kill until it is attached, and a damaged record counts nothing.
    pub fn may_hold_data(&self) -> bool {
        self.cached_bytes > 0 || self.uncounted || self.damaged
    }

    /// Its completeness for status; without the numbers of lost blocks.
    pub fn completeness(&self) -> Completeness {
        let pages_left = self.pages.saturating_sub(self.lost_blocks);
        Completeness::judge(self, pages_left, Vec::new(), self.origin_changed.clone())
    }
}

impl fmt::Display for VolumeInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: {}, logical block {}, {} cached",
            self.label(),
            human_bytes(self.size_bytes),
            self.block_size,
            human_bytes(self.cached_bytes)
        )?;
        if self.static_bytes > 0 {
            write!(f, ", static: {} of the pool", human_bytes(self.static_bytes))?;
        }
        if self.uncounted && !self.damaged {
            f.write_str(" and perhaps more, since it was not closed")?;
        }
        if self.damaged {
            f.write_str(", record DAMAGED")?;
        }
        if self.lost_blocks > 0 {
            write!(f, ", {} blocks lost", self.lost_blocks)?;
        }
        if self.lost_stuck {
            f.write_str(", which hold back the rest as the pool has no free chunk")?;
        }
        if self.eras_percent >= ERAS_WARN_PERCENT {
            write!(f, ", {} % of its eras used", self.eras_percent)?;
        }
        if self.holes > 0 {
            write!(f, ", {} entries lost", self.holes)?;
        }
        if let Some(e) = &self.last_error {
            write!(f, ", origin: {e}")?;
        }
        Ok(())
    }
}

/// Counters of the engine since the pool was opened.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Counters {
    pub writes: u64,
    pub written_bytes: u64,
    /// Partial writes that took over sectors of a cached page.
    pub merges: u64,
    pub commits: u64,
    /// Bytes stored to the media.
    pub media_bytes: u64,
    pub reads: u64,
    pub read_hit_bytes: u64,
    pub read_miss_bytes: u64,
    pub discards: u64,
    pub zeroes: u64,
    pub flushes: u64,
    pub chunks_opened: u64,
    pub waits_block: u64,
    pub waits_slot: u64,
    pub waits_space: u64,
    pub damaged_pages: u64,
}

/// The disk of a pool that is written in groups: counts since it was opened.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MediumStatus {
    /// No block of so many bytes is shared by two writes.
    pub unit_bytes: u32,
    /// When a write is durable: `write-through`, `fua` or `flush`.
    pub durable_by: String,
    /// What the system said of the disk that made it so.
    #[serde(default)]
    pub durable_by_because: String,
    /// How long one takes at best, by the last ones.
    #[serde(default)]
    pub durable_write_seconds: Option<f64>,
    /// Groups that became durable, and the entries in them.
    pub groups: u64,
    pub records: u64,
    pub writes: u64,
    pub written_bytes: u64,
    pub flushes: u64,
    pub write_errors: u64,
    pub flush_errors: u64,
    /// Groups that were written again elsewhere, after an error.
    pub again: u64,
    /// Groups that waited for entries that were expected.
    pub held: u64,
    /// Nothing more becomes durable.
    pub failed: bool,
    /// The last error of the disk, while no later request of the kind has succeeded.
    pub trouble: Option<String>,
    /// The last error of the disk, when later requests have succeeded.
    #[serde(default)]
    pub mended: Option<String>,
    /// How long the oldest request to the disk has had no answer; 0: none is under way.
    #[serde(default)]
    pub unanswered_seconds: f64,
    /// The disk hangs: which, since when, and the way out.
    #[serde(default)]
    pub hangs: Option<String>,
}

/// All about an open pool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PoolStatus {
    /// Process that has it open.
    pub pid: u32,
    pub uuid: Uuid,
    pub read_only: bool,
    pub media: MediaInfo,
    pub recovery: RecoveryReport,
    pub options: OptionsInfo,
    pub chunk_size_bytes: u32,
    pub chunks: u32,
    pub chunks_free: u32,
    pub chunks_open: u32,
    /// Open ones included.
    pub chunks_used: u32,
    /// Data pages the pool can hold, and holds.
    pub pages: u64,
    pub pages_cached: u64,
    pub capacity_bytes: u64,
    pub cached_bytes: u64,
    /// Additional room for static volumes; the part given to volumes; the bytes cached there.
    #[serde(default)]
    pub static_bytes: u64,
    #[serde(default)]
    pub static_given_bytes: u64,
    #[serde(default)]
    pub static_cached_bytes: u64,
    pub used_percent: f64,
    /// Memory of the engine; the volumes' destage needs more.
    pub memory_bytes: u64,
    pub destage_memory_bytes: u64,
    pub slots: u32,
    pub next_seq: u64,
    pub uptime_seconds: f64,
    pub counters: Counters,
    pub volumes: Vec<VolumeInfo>,
    /// Volumes that are not attached, where they leave writers no chunk.
    #[serde(default)]
    pub held_by_detached: Option<HeldByDetached>,
    #[serde(default)]
    pub logs: Vec<LogInfo>,
    /// Room for maps, and those that have a share of it.
    #[serde(default)]
    pub map_bytes: u64,
    #[serde(default)]
    pub maps: Vec<MapInfo>,
    /// The disk, if the pool is written in groups.
    #[serde(default)]
    pub medium: Option<MediumStatus>,
    /// A loss or a move of the pool's file while it is open.
    #[serde(default)]
    pub file_trouble: Option<FileTrouble>,
    /// The last damaged blocks found.
    pub damaged_blocks: Vec<ReportBlock>,
    /// Why destage does not work at all: an internal error.
    pub destage_failure: Option<String>,
    /// Checksum kernel in use.
    pub checksum_kernel: String,
}

/// How far a drain is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DrainProgress {
    /// Pages still to write when the drain began.
    pub pages_start: u64,
    pub pages_left: u64,
    /// Since the drain began.
    pub pages_destaged: u64,
    pub origin_written_bytes: u64,
    pub seconds: f64,
    /// The origin's last error, while it fails; the drain goes on trying.
    pub origin_error: Option<String>,
    /// The way out.
    #[serde(default)]
    pub origin_way_out: Option<String>,
    /// Why the rest waits although the origin works, with the way out.
    #[serde(default)]
    pub stuck: Option<String>,
    /// The reason for the drain's wait: for how long the origin is away, and why.
    #[serde(default)]
    pub origin_away: Option<String>,
    /// The pool's disk has failed: what is left is in memory.
    #[serde(default)]
    pub pool_failed: bool,
    pub state: DestageState,
}

/// The result of `check`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CheckReport {
    /// Nothing is wrong.
    pub ok: bool,
    /// The first invariant that does not hold, if any.
    pub invariant: Option<String>,
    /// Verified with no request in flight; otherwise only what holds at any
    /// moment was.
    pub quiet: bool,
    /// Data checksums verified.
    pub data: bool,
    pub pages_checked: u64,
    /// Linked pages whose data fails its checksum, or has lost sectors.
    pub damaged: Vec<ReportBlock>,
    /// Volumes whose record is damaged.
    pub damaged_volumes: Vec<u16>,
    /// Entries that recovery found lost.
    pub holes: u64,
    /// The state of each volume, including the check's findings.
    pub volumes: Vec<Completeness>,
    /// The state of each log.
    #[serde(default)]
    pub logs: Vec<LogCheck>,
    /// The state of each map.
    #[serde(default)]
    pub maps: Vec<MapCheck>,
    pub recovery: RecoveryReport,
    pub seconds: f64,
}

impl fmt::Display for CheckReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.ok {
            f.write_str("no errors")?;
        } else {
            f.write_str("ERRORS")?;
        }
        if self.data {
            write!(f, "; {} pages of data verified", self.pages_checked)?;
        }
        if let Some(text) = &self.invariant {
            write!(f, "\ninvariant does not hold: {text}")?;
        }
        for c in self.volumes.iter().filter(|c| c.verdict.is_damage()) {
            write!(f, "\nvolume {}: {c}", c.volume)?;
        }
        for log in self.logs.iter().filter(|log| !log.is_ok()) {
            write!(f, "\n{log}")?;
        }
        for map in self.maps.iter().filter(|map| !map.is_ok() || map.dirty_pages > 0) {
            write!(f, "\n{map}")?;
        }
        for b in &self.damaged {
            write!(f, "\ndamaged: {b}")?;
        }
        Ok(())
    }
}
