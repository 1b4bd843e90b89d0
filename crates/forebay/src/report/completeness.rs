// SPDX-License-Identifier: MIT OR Apache-2.0
//! Is the origin of a volume, alone, all of it, and does a log hold nothing any more?
//! The one place that says so, by what host/drained.c decides: the text, the JSON and the exit code of whatever ends a
//! use of a volume, or empties a pool, come from here, and nothing else may print that an
//! origin is complete.

use std::borrow::Cow;
use std::fmt;

use forebay_engine::complete::{judge, Completeness as Judged};
use forebay_engine::sys;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::errno::LARGER_FILES;
use crate::planted::{planted, Planted};

use super::log::LogInfo;
use super::status::{CheckReport, DrainProgress, VolumeInfo};

/// The exit code if the pool's disk has failed, and the origins have all that was acknowledged.
pub const RESCUED: u8 = 20;

/// Lost blocks that are listed by number; all are counted.
pub(crate) const LOST_LISTED: usize = 16384;

/// One of them for each volume; the first that holds, from the top.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Both copies of the volume's record are damaged: nothing is known.
    RecordDamaged,
    /// The origin is not what it was when it was attached.
    OriginChanged,
    /// Entries are lost, and nobody accepted that yet.
    LostEntries,
    /// The newest data of some blocks is lost; all else is on the origin or in
    /// the pool.
    LostBlocks,
    /// Not attached, and the pool holds what its origin lacks.
    NotAttached,
    /// The origin does not take what the pool holds.
    OriginFails,
    /// The pool holds what the origin lacks.
    Cached,
    /// Not attached, and its origin bears a mark: some pool may hold what it lacks.
    OriginMarked,
    /// Some was lost, and given up by an explicit order; all else is there.
    LossAccepted,
    /// The origin has all that was written before it was drained, and lacks what was written
    /// since.
    WrittenSince,
    /// The pool's disk has failed.  The origin alone has all that was acknowledged; the pool keeps it
    /// too, and nothing new becomes durable.
    Rescued,
    Complete,
    /// Not judged.
    #[default]
    Unknown,
}

impl Verdict {
    pub const ALL: [Verdict; 13] = [
        Verdict::RecordDamaged,
        Verdict::OriginChanged,
        Verdict::LostEntries,
        Verdict::LostBlocks,
        Verdict::NotAttached,
        Verdict::OriginFails,
        Verdict::Cached,
        Verdict::OriginMarked,
        Verdict::LossAccepted,
        Verdict::WrittenSince,
        Verdict::Rescued,
        Verdict::Complete,
        Verdict::Unknown,
    ];

    /// As the engine's other hosts, the kernel module among them, decide it.
    fn of(c: &sys::fby_complete) -> Verdict {
        match judge(c) {
            Judged::RecordDamaged => Verdict::RecordDamaged,
            Judged::OriginChanged => Verdict::OriginChanged,
            Judged::LostEntries => Verdict::LostEntries,
            Judged::LostBlocks => Verdict::LostBlocks,
            Judged::NotAttached => Verdict::NotAttached,
            Judged::OriginFails => Verdict::OriginFails,
            Judged::Cached => Verdict::Cached,
            Judged::Whole => Verdict::Complete,
            Judged::Unknown => Verdict::Unknown,
        }
    }

    /// Exit code of a command that should make the origin complete.
    pub fn exit_code(self) -> u8 {
        match self {
            Verdict::Complete | Verdict::LossAccepted | Verdict::WrittenSince => 0,
            Verdict::RecordDamaged => 5,
            Verdict::OriginChanged => 6,
            Verdict::OriginFails => 7,
            Verdict::Rescued => RESCUED,
            Verdict::LostEntries | Verdict::LostBlocks => 11,
            Verdict::NotAttached | Verdict::Cached | Verdict::OriginMarked | Verdict::Unknown => 14,
        }
    }

    /// Something of the pool itself is damaged or lost, wherever the rest of it is.
    pub fn is_damage(self) -> bool {
        matches!(self, Verdict::RecordDamaged | Verdict::LostEntries | Verdict::LostBlocks)
    }
}

impl CheckReport {
    /// Exit code of a search for damage: data that only the pool has is no damage.
    pub fn exit_code(&self) -> u8 {
        let found = self.volumes.iter().map(|c| c.verdict).filter(|v| v.is_damage());
        // Damage that belongs to no known volume.
        let unnamed = (!self.damaged.is_empty()).then_some(Verdict::LostBlocks);
        let broken = self.invariant.is_some().then_some(Verdict::RecordDamaged);
        let log = self.logs.iter().any(|log| !log.is_ok()).then_some(Verdict::LostBlocks);
        let map = self.maps.iter().any(|map| !map.is_ok()).then_some(Verdict::LostBlocks);
        let all = found.chain(unnamed).chain(broken).chain(log).chain(map);
        let codes = all.map(Verdict::exit_code);
        // A pool that cannot be trusted, before one that has lost something.
        codes.min().unwrap_or(0)
    }
}

/// The state of a volume's origin.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Completeness {
    pub volume: String,
    /// The origin alone is all of the volume, whatever a pool holds.
    pub complete: bool,
    pub verdict: Verdict,
    /// Pages of 4 KiB that the pool holds and the origin lacks.
    pub pages_left: u64,
    /// Pages of 4 KiB that were written after a drain had begun, which is not about them, and
    /// that the pool holds.
    #[serde(default)]
    pub pages_since: u64,
    /// Blocks whose newest data is lost.
    pub lost_blocks: u64,
    /// Their numbers, in units of 4 KiB; the first 16384.
    pub lost: Vec<u64>,
    /// Entries that recovery found lost and nobody accepted yet.
    pub lost_entries: u64,
    /// Number of these whose block is unknown.
    pub lost_entries_unnamed: u64,
    /// The fault of the origin, or why it could not be attached.
    pub origin: Option<String>,
    /// How to deal with an origin that fails.
    #[serde(default)]
    pub origin_way_out: Option<String>,
    /// Nobody can look at the origin, and `origin` says why.
    #[serde(default)]
    pub origin_unseen: bool,
    /// An attach was requested, and failed.
    #[serde(default)]
    pub attach_failed: bool,
    /// A static volume.
    #[serde(default)]
    pub is_static: bool,
    /// The pool's disk has failed: what the origin lacks is in memory.
    #[serde(default)]
    pub pool_failed: bool,
    /// ... or its file is lost.
    #[serde(default)]
    pub pool_lost: bool,
    /// Its server ends, and has done what it could.
    #[serde(default)]
    pub given_up: bool,
}

impl Completeness {
    /// `pages_left`: of those that the question concerns; a drain that ended leaves none,
    /// whatever was written since.  `changed`: how the origin differs from the one that was
    /// attached.
    pub fn judge(
        v: &VolumeInfo,
        pages_left: u64,
        lost: Vec<u64>,
        changed: Option<String>,
    ) -> Completeness {
        let pages_left = if v.rescued { 0 } else { pages_left };
        let verdict = Verdict::of(&sys::fby_complete {
            damaged: v.damaged,
            origin_changed: changed.is_some(),
            attached: v.attached,
            failing: v.last_error.is_some(),
            counted: !v.uncounted,
            lost_entries: v.holes.max(v.holes_unknown),
            lost_blocks: v.lost_blocks,
            pages_left,
        });
        let verdict = match verdict {
            Verdict::Complete if v.rescued => Verdict::Rescued,
            verdict => verdict,
        };
        let marked = pages_left == 0 && !v.attached && v.origin_mark.is_some();
        let unseen = v.origin_unseen.is_some() && !planted(Planted::UnseenIsComplete);
        let verdict = match verdict {
            Verdict::Complete | Verdict::Unknown if marked => Verdict::OriginMarked,
            Verdict::Complete if unseen => Verdict::Unknown,
            verdict => verdict,
        };
        Completeness {
            volume: v.label(),
            complete: [Verdict::Complete, Verdict::Rescued].contains(&verdict),
            is_static: v.static_bytes > 0,
            verdict,
            pages_left,
            pages_since: 0,
            lost_blocks: v.lost_blocks,
            lost,
            lost_entries: v.holes,
            lost_entries_unnamed: v.holes_unknown,
            origin: match verdict {
                Verdict::OriginMarked => v.origin_mark.clone(),
                Verdict::Unknown if unseen => v.origin_unseen.clone(),
                _ => changed.or_else(|| v.last_error.clone().filter(|_| v.attached)),
            },
            origin_way_out: v.last_error.is_some().then(|| origin_way_out(v.last_errno).into()),
            origin_unseen: verdict == Verdict::Unknown && unseen,
            attach_failed: false,
            pool_failed: v.pool_failed,
            pool_lost: v.pool_lost,
            given_up: false,
        }
    }

    /// Drained, and other requests went on: `pages` came since, or some did of which nothing is
    /// left in the pool but the mark.
    pub fn written_since(&mut self, pages: u64) {
        self.pages_since = pages;
        if self.verdict == Verdict::Complete {
            self.verdict = Verdict::WrittenSince;
            self.complete = false;
        }
    }

    /// Gives the lost blocks and entries up, by the operator's order.
    pub fn accept_loss(&mut self, mut blocks: Vec<u64>, entries: u64, unnamed: u64) {
        let clean = self.verdict.exit_code() == 0;
        if clean && !(blocks.is_empty() && entries + unnamed == 0) {
            self.verdict = Verdict::LossAccepted;
            self.complete = false;
            self.lost_blocks += blocks.len() as u64;
            self.lost.append(&mut blocks);
            self.lost_entries += entries;
            self.lost_entries_unnamed += unnamed;
        }
    }

    /// It could not be attached, so that nothing is known of its origin.
    pub fn not_attached(&mut self, why: &impl fmt::Display) {
        self.complete = false;
        self.attach_failed = true;
        let (why, name) = (why.to_string(), format!("volume {}: ", self.volume));
        self.origin = Some(why.strip_prefix(&name).unwrap_or(&why).into());
        if self.verdict == Verdict::Complete {
            self.verdict = Verdict::NotAttached;
        }
    }

    /// A drain that was given up.
    pub fn unfinished(volume: &str, last: &DrainProgress) -> Completeness {
        let away = last.origin_away.as_ref().map(|away| format!("it is away {away}"));
        let away_way_out = || "see its server and the way to it".to_string();
        let origin = last.origin_error.clone().or(away);
        let origin_way_out = last.origin_way_out.clone();
        Completeness {
            volume: volume.into(),
            verdict: match origin {
                Some(_) => Verdict::OriginFails,
                None => Verdict::Cached,
            },
            pages_left: last.pages_left,
            pool_failed: last.pool_failed,
            origin_way_out: origin_way_out.or(origin.as_ref().map(|_| away_way_out())),
            origin: origin.or(Some(format!("the drain was ended while it was {}", last.state))),
            ..Default::default()
        }
    }

    pub fn exit_code(&self) -> u8 {
        self.verdict.exit_code()
    }

    /// The advice to the user; empty if there is nothing to do.
    pub fn way_out(&self) -> Cow<'static, str> {
        Cow::Borrowed(match self.verdict {
            // The server's last message has it.
            _ if self.given_up => "",
            Verdict::Complete | Verdict::LossAccepted | Verdict::WrittenSince => "",
            Verdict::OriginMarked => "drain it with the pool that marked it; if that pool is gone, forebay origin accept-loss gives up its data",
            Verdict::RecordDamaged => return Cow::Owned(format!(
                "restore the pool from a copy, or remove the volume and what it holds: forebay volume remove POOL '{}' --discard",
                self.volume
            )),
            Verdict::OriginChanged => "compare the origin with a backup before it is used",
            // The reason ends with it.
            Verdict::NotAttached if self.attach_failed => "",
            Verdict::LostEntries | Verdict::LostBlocks if self.pool_lost && self.pages_left == 0 => "restore them from a backup; forebay origin accept-loss gives them up",
            Verdict::LostEntries | Verdict::LostBlocks if self.pool_failed && self.pages_left == 0 => "restore them from a backup, or attach what can be copied of the pool with --holes; forebay origin accept-loss gives them up",
            Verdict::LostEntries | Verdict::LostBlocks if self.pool_failed => "stop the server, which writes to the origin what there is, and names the rest",
            Verdict::LostEntries => "--holes isolate takes those that have a name, --holes accept all; forebay check names them",
            Verdict::LostBlocks if self.is_static => "overwrite them through the volume and drain again, or restore them from a backup; what is lost of a static volume is given up with all of it: drain it, then forebay volume remove --discard, and add it again",
            Verdict::LostBlocks => "overwrite them through the volume and drain again, or restore them from a backup; forebay drain --accept-lost, with no server running, gives them up",
            Verdict::Rescued if self.pool_lost => "make a new pool",
            Verdict::Rescued => "replace the disk and make a new pool there; if the disk comes back, the pool on it is not to have this origin again (forebay volume remove --discard)",
            Verdict::NotAttached if self.pool_failed => "stop the server, which attaches it then, and writes to its origin what it holds",
            Verdict::NotAttached => "stop the server, and drain the volume without it (--origin NAME=PATH where its origin is now)",
            Verdict::OriginFails => return Cow::Owned(format!(
                "{}; {}",
                self.origin_way_out.as_deref().unwrap_or(origin_way_out(None)),
                kept_where(self.pool_failed)
            )),
            Verdict::Cached | Verdict::Unknown if self.pool_failed => kept_where(true),
            // What keeps it from being seen has a way out of its own.
            Verdict::Unknown if self.origin_unseen => "",
            Verdict::Cached | Verdict::Unknown => "drain it again",
        })
    }
}

/// Says where the data is that an origin lacks, as a part of a sentence.
pub fn kept_where(pool_failed: bool) -> &'static str {
    match pool_failed {
        false => "what is cached stays safe in the pool",
        true => "the pool has failed, and only its server has the cached data: keep the server running until the origin has it",
    }
}

pub(crate) fn blocks_text(blocks: &[u64]) -> String {
    const NAMED: usize = 8;
    let list: Vec<String> = blocks.iter().take(NAMED).map(u64::to_string).collect();
    let more = match blocks.len().saturating_sub(NAMED) {
        0 => String::new(),
        n => format!(" and {n} more"),
    };
    match blocks.len() {
        1 => format!("4 KiB block {} is", list[0]),
        _ => format!("4 KiB blocks {}{more} are", list.join(", ")),
    }
}

/// The way out for a volume whose lost blocks find no room.
pub(crate) const LOST_STUCK_WAY_OUT: &str = "make room in the pool: attach and drain other volumes, or give up what one holds (forebay volume remove --discard)";

/// The way out if an origin fails with this error.
pub(crate) fn origin_way_out(errno: Option<i32>) -> &'static str {
    match errno.map(Errno::from_raw_os_error) {
        Some(Errno::NOSPC | Errno::DQUOT) => {
            "free space on the file system of the origin, or raise its quota"
        }
        Some(Errno::FBIG) => LARGER_FILES,
        Some(Errno::ROFS | Errno::ACCESS | Errno::PERM) => {
            "see why the origin takes no writes any more (mount, blockdev --getro, the system log)"
        }
        Some(Errno::NODEV | Errno::NXIO | Errno::NOENT | Errno::STALE) => {
            "the device or its server is gone: connect it, and attach the volume again"
        }
        _ => "see the log of its device or server",
    }
}

/// Begins with what holds, so that it can follow a volume's name and a colon.
impl fmt::Display for Completeness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let origin = self.origin.as_deref().unwrap_or("it failed");
        match self.verdict {
            Verdict::WrittenSince => {
                f.write_str("the origin has all that was written before; ")?;
                match self.pages_since {
                    0 => f.write_str("more was written since")?,
                    n => write!(f, "the pool holds {n} pages of 4 KiB that were written since")?,
                }
            }
            Verdict::OriginMarked => write!(f, "NOT complete: its origin has a mark: {origin}")?,
            Verdict::Complete => f.write_str("the origin alone is complete")?,
            Verdict::Rescued => {
                let what = if self.pool_lost { "file is lost" } else { "disk has failed" };
                write!(f, "the pool's {what}, and the origin alone is complete: all that was acknowledged as durable was written there from memory")?
            }
            Verdict::LossAccepted => {
                f.write_str("all that is left is on the origin;")?;
                if !self.lost.is_empty() {
                    write!(
                        f,
                        " {} lost and given up by order: the origin has older data there",
                        blocks_text(&self.lost)
                    )?;
                }
                if self.lost_entries + self.lost_entries_unnamed > 0 {
                    let n = self.lost_entries.max(self.lost_entries_unnamed);
                    write!(f, " {n} lost entries were accepted: their blocks may have older data")?;
                }
            }
            Verdict::RecordDamaged => {
                f.write_str("NOT complete: both copies of the volume's record are damaged")?
            }
            Verdict::OriginChanged => write!(f, "NOT complete: its origin {origin}")?,
            Verdict::LostEntries => {
                write!(
                    f,
                    "NOT complete: at least {} entries are LOST, {} of them of unknown blocks",
                    self.lost_entries.max(self.lost_entries_unnamed),
                    self.lost_entries_unnamed
                )?;
                if !self.lost.is_empty() {
                    write!(f, "; {} LOST", blocks_text(&self.lost))?;
                }
            }
            Verdict::LostBlocks if self.lost.is_empty() => {
                write!(f, "NOT complete: the newest data of {} blocks is LOST", self.lost_blocks)?
            }
            Verdict::LostBlocks => {
                write!(
                    f,
                    "NOT complete: {} LOST: the origin has older data there, or none",
                    blocks_text(&self.lost)
                )?;
                let more = self.lost_blocks.saturating_sub(self.lost.len() as u64);
                if more > 0 {
                    write!(f, " (and {more} more)")?;
                }
            }
            Verdict::NotAttached if self.attach_failed => f.write_str("NOT complete")?,
            Verdict::NotAttached => f.write_str("NOT complete: it is not attached")?,
            Verdict::OriginFails => write!(f, "NOT complete: its origin fails ({origin})")?,
            Verdict::Cached => {
                f.write_str("NOT complete")?;
                self.origin.iter().try_for_each(|why| write!(f, ": {why}"))?;
            }
            Verdict::Unknown => {
                f.write_str("it is not known whether the origin is complete")?;
                if self.origin_unseen {
                    write!(f, ": it cannot be looked at: {origin}")?;
                }
            }
        }
        let lost = matches!(self.verdict, Verdict::LostEntries | Verdict::LostBlocks);
        if lost && self.pool_failed && self.pages_left == 0 {
            f.write_str("; all else is on the origin")?;
            if self.lost_entries_unnamed > 0 {
                f.write_str(", where the unknown blocks may have older data than before")?;
            }
        }
        if self.pages_left > 0 && self.verdict != Verdict::LossAccepted {
            write!(f, "; the pool holds {} pages of 4 KiB that the origin lacks", self.pages_left)?;
        }
        if self.attach_failed {
            write!(f, "; it could not be attached: {origin}")?;
        }
        match &*self.way_out() {
            "" => Ok(()),
            way_out => write!(f, "; {way_out}"),
        }
    }
}

/// A log that is not empty: only its consumer knows where its entries are to go.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LogLeft {
    pub log: String,
    /// [`Verdict::LostEntries`] or [`Verdict::Cached`].
    pub verdict: Verdict,
    pub entries: u64,
    /// At least so many were there, and are not found.
    pub missing: u64,
}

impl LogLeft {
    /// `None`: it holds nothing.
    pub fn judge(log: &LogInfo) -> Option<LogLeft> {
        let (name, entries, missing) = (log.name.clone(), log.entries, log.missing);
        let verdict = match (missing > 0 || log.incomplete, entries) {
            (true, _) => Verdict::LostEntries,
            (false, 1..) => Verdict::Cached,
            (false, 0) => return None,
        };
        Some(LogLeft { log: name, verdict, entries, missing })
    }
}

/// Begins with what holds, as that of a volume does.
impl fmt::Display for LogLeft {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NOT drained: it holds {} entries", self.entries)?;
        if self.verdict == Verdict::LostEntries {
            write!(f, ", and at least {} are LOST", self.missing.max(1))?;
        }
        f.write_str(
            "; only its consumer writes them back: that of a mount is forebay mount or forebay \
             replay",
        )
    }
}

/// The result of a drain: is everything that was asked for done?
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Drained {
    pub volumes: Vec<Completeness>,
    /// If the whole pool was drained: those of its logs that hold entries.
    pub logs: Vec<LogLeft>,
}

impl Drained {
    pub fn is_complete(&self) -> bool {
        self.volumes.iter().all(|c| c.complete) && self.logs.is_empty()
    }

    /// Volumes count before logs.
    pub fn exit_code(&self) -> u8 {
        let verdicts = self.volumes.iter().map(|c| c.verdict);
        let codes = verdicts.chain(self.logs.iter().map(|l| l.verdict)).map(Verdict::exit_code);
        // Incomplete volumes come before complete ones.
        let worst =
            |all: u8, code: u8| if all == 0 || (all == RESCUED && code != 0) { code } else { all };
        codes.fold(0, worst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A log's content is not drained, whatever the volumes are.
    #[test]
    fn a_log_that_holds_something_is_not_drained() {
        let complete = || Completeness {
            complete: true,
            verdict: Verdict::Complete,
            ..Completeness::default()
        };
        for (entries, missing, code) in [(0, 0, 0), (3, 0, 14), (0, 1, 11), (3, 1, 11)] {
            let log = LogInfo { entries, missing, ..LogInfo::default() };
            let logs: Vec<_> = LogLeft::judge(&log).into_iter().collect();
            assert_eq!(logs.is_empty(), code == 0);
            for left in &logs {
                assert!(left.to_string().starts_with("NOT drained"), "{left}");
                assert_eq!(left.to_string().contains("LOST"), missing > 0, "{left}");
            }
            let drained = Drained { volumes: vec![complete()], logs };
            assert_eq!((drained.exit_code(), drained.is_complete()), (code, code == 0));
        }
        let incomplete = LogInfo { incomplete: true, ..LogInfo::default() };
        assert_eq!(LogLeft::judge(&incomplete).unwrap().verdict, Verdict::LostEntries);
        let of_volume = Completeness { verdict: Verdict::OriginFails, ..complete() };
        let logs = vec![LogLeft::judge(&LogInfo { entries: 1, ..LogInfo::default() }).unwrap()];
        assert_eq!(Drained { volumes: vec![of_volume], logs }.exit_code(), 7);
    }

    /// An error of its disk that was noted earlier is no reason why nobody sees the origin.
    #[test]
    fn only_an_origin_that_nobody_sees_cannot_be_looked_at() {
        let (last_error, unseen) = (Some("Input/output error".into()), Some("a cause".into()));
        let uncounted = VolumeInfo { attached: true, uncounted: true, ..Default::default() };
        let text = |v: &VolumeInfo| Completeness::judge(v, 0, Vec::new(), None).to_string();
        let fails = VolumeInfo { last_error, ..uncounted };
        let says = "it is not known whether the origin is complete";
        assert_eq!(text(&fails), format!("{says}; drain it again"));
        let hidden = VolumeInfo { origin_unseen: unseen, ..Default::default() };
        assert_eq!(text(&hidden), format!("{says}: it cannot be looked at: a cause"));
    }

    /// An origin with accepted losses, by block or without one, is not complete.
    #[test]
    fn a_loss_that_was_accepted_is_one() {
        for (blocks, entries, unnamed) in
            [(vec![7], 0, 0), (vec![], 1, 0), (vec![], 0, 1), (vec![], 1, 1)]
        {
            let v = VolumeInfo { attached: true, ..Default::default() };
            let mut c = Completeness::judge(&v, 0, vec![], None);
            assert!(c.complete);
            c.accept_loss(blocks.clone(), entries, unnamed);
            assert_eq!((c.verdict, c.complete), (Verdict::LossAccepted, false), "{c:?}");
            assert_eq!(
                (&c.lost, c.lost_entries, c.lost_entries_unnamed),
                (&blocks, entries, unnamed)
            );
            c.accept_loss(blocks.clone(), entries, unnamed);
            assert_eq!((c.lost_entries, c.lost_entries_unnamed), (2 * entries, 2 * unnamed));
            assert_eq!(c.lost_blocks, 2 * blocks.len() as u64);
        }
    }

    /// Every combination of what can be wrong: complete is said of none of them,
    /// neither by the verdict nor in words.
    #[test]
    fn nothing_but_complete_says_so() {
        for bits in 0..1u32 << 7 {
            let on = |bit: u32| bits >> bit & 1 == 1;
            let pages_left = u64::from(on(0));
            let v = VolumeInfo {
                attached: on(1),
                damaged: on(2),
                holes: u64::from(on(3)),
                holes_unknown: u64::from(on(4)),
                lost_blocks: u64::from(on(5)),
                last_error: on(6).then(|| "write: EIO".into()),
                ..Default::default()
            };
            for changed in [None, Some("has 1 bytes".to_string())] {
                let lost = vec![7; v.lost_blocks as usize];
                let c = Completeness::judge(&v, pages_left, lost, changed.clone());
                let wrong = on(0) || on(2) || on(3) || on(4) || on(5) || changed.is_some();
                assert_eq!(c.complete, !wrong, "{c:?}");
                assert_eq!(c.exit_code() == 0, !wrong, "{c:?}");
                assert_eq!(c.to_string().contains("alone is complete"), !wrong, "{c}");
                assert_eq!(c.to_string().contains("NOT complete"), wrong, "{c}");
                assert_eq!(c.way_out().is_empty(), !wrong, "{c}");
                for pages in [0, 3] {
                    let mut c = c.clone();
                    c.written_since(pages);
                    assert!(!c.complete && !c.to_string().contains("alone is complete"), "{c}");
                    assert_eq!(c.exit_code() == 0, !wrong, "{c:?}");
                    let said = c.to_string().contains("3 pages of 4 KiB that were");
                    assert_eq!(said, !wrong && pages > 0, "{c}");
                }
                let marked = Some("it may lack writes".to_string());
                let marked = VolumeInfo { origin_mark: marked, ..v.clone() };
                let lost = vec![7; v.lost_blocks as usize];
                let c = Completeness::judge(&marked, pages_left, lost, changed);
                let may_be = on(1) && !wrong;
                assert_eq!((c.complete, c.exit_code() == 0), (may_be, may_be), "{c:?}");
                assert_eq!(c.to_string().contains("NOT complete"), !may_be, "{c}");
            }
        }
    }

    /// Nothing is safe in a pool whose disk has failed, and no drain of the pool without its server
    /// finds it.
    #[test]
    fn what_a_failed_pool_keeps_is_with_its_server() {
        for (attached, last_error) in
            [(true, Some("write: EIO".to_string())), (true, None), (false, None)]
        {
            let v = VolumeInfo { attached, last_error, pool_failed: true, ..Default::default() };
            let judged = Completeness::judge(&v, 3, vec![], None);
            let unfinished = DrainProgress {
                pages_left: 3,
                origin_error: v.last_error.clone(),
                pool_failed: true,
                ..Default::default()
            };
            for c in [judged, Completeness::unfinished("v", &unfinished)] {
                let way_out = c.way_out();
                assert!(way_out.contains("server") && !way_out.contains("safe"), "{c}");
                assert!(!way_out.contains("without it") && c.exit_code() != 0, "{c}");
            }
        }
    }

    /// It names no disk that nothing is wrong with.
    #[test]
    fn the_rescue_from_a_lost_file_is_told_as_one() {
        for (pool_lost, says, not) in
            [(true, "file is lost", "disk"), (false, "disk has failed", "file")]
        {
            let v = VolumeInfo { attached: true, rescued: true, pool_lost, ..Default::default() };
            let c = Completeness::judge(&v, 3, vec![], None);
            assert_eq!(c.verdict, Verdict::Rescued);
            let told = format!("{c}; {}", c.way_out());
            assert!(told.contains(says) && !told.contains(not), "{told}");
        }
    }

    /// Nothing cached, and nothing known of the origin: not complete.
    #[test]
    fn what_cannot_be_attached_is_not_complete() {
        let why = crate::Error::usage("the origin is gone", "bring it back");
        let judged = |lost_blocks| {
            let v = VolumeInfo { lost_blocks, ..Default::default() };
            let mut c = Completeness::judge(&v, 0, vec![7; lost_blocks as usize], None);
            c.not_attached(&why);
            assert!(!c.complete && c.exit_code() != 0, "{c:?}");
            assert!(c.to_string().starts_with("NOT complete"), "{c}");
            assert!(c.origin.is_some_and(|o| o.contains("the origin is gone")));
            c.verdict
        };
        assert_eq!(judged(0), Verdict::NotAttached);
        assert_eq!(judged(1), Verdict::LostBlocks);
    }

    #[test]
    fn a_check_ends_with_the_worst_that_it_found() {
        let of = |verdicts: &[Verdict]| CheckReport {
            volumes: (verdicts.iter())
                .map(|v| Completeness { verdict: *v, ..Default::default() })
                .collect(),
            ..Default::default()
        };
        for verdict in Verdict::ALL {
            let code = if verdict.is_damage() { verdict.exit_code() } else { 0 };
            assert_eq!(of(&[verdict]).exit_code(), code, "{verdict:?}");
            assert_eq!(of(&[Verdict::Complete, verdict]).exit_code(), code, "{verdict:?}");
        }
        let both = of(&[Verdict::LostBlocks, Verdict::RecordDamaged]);
        assert_eq!(both.exit_code(), 5);
        let broken = CheckReport { invariant: Some("x".into()), ..of(&[Verdict::LostBlocks]) };
        assert_eq!(broken.exit_code(), 5);
        let block = crate::ReportBlock { volume: None, block: None, chunk: 0, page: 1 };
        let unnamed = CheckReport { damaged: vec![block], ..of(&[Verdict::Cached]) };
        assert_eq!(unnamed.exit_code(), 11);
    }

    #[test]
    fn a_loss_that_was_accepted_is_still_told() {
        let mut c = Completeness {
            volume: "v".into(),
            complete: true,
            verdict: Verdict::Complete,
            ..Default::default()
        };
        c.accept_loss(Vec::new(), 0, 0);
        assert!(c.complete);
        c.accept_loss(vec![3, 9], 0, 0);
        assert!(!c.complete && c.exit_code() == 0);
        assert!(c.to_string().contains("4 KiB blocks 3, 9 are lost and given up"), "{c}");
        assert!(!c.to_string().contains("alone is complete"), "{c}");
    }
}
