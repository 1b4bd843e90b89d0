// SPDX-License-Identifier: MIT OR Apache-2.0
//! A log's report, its entries and a replay as values for tools.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::media::human_bytes;
use super::words::words;
use super::Uuid;

/// Who keeps a log's header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LogHome {
    /// The pool.  An entry that was replayed just before a crash comes again.
    #[default]
    Embedded,
    /// The consumer, who stores it together with the effects of the entries.
    Consumer,
}

words! {
    LogHome { "embedded" => Embedded, "consumer" => Consumer }
    unknown: "home \"{}\" of a log's header is not known", way_out: "use embedded or consumer"
}

/// The state of a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LogState {
    /// No entries, and none can be appended.
    #[default]
    None,
    /// Entries are appended; or were, before the pool was opened.
    Logging,
    /// Claimed: the remaining entries are held for replay.
    Replaying,
}

impl fmt::Display for LogState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            LogState::None => "none",
            LogState::Logging => "logging",
            LogState::Replaying => "replaying",
        })
    }
}

/// A log of a pool.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LogInfo {
    pub name: String,
    /// Its number in the table that it shares with the volumes.
    pub index: u16,
    pub home: LogHome,
    /// As the pool knows it; for a header with the consumer, as of the claim.
    pub state: LogState,
    /// Since the pool was opened; or created since.
    pub claimed: bool,
    /// GUID of its logging period.
    pub guid: Option<Uuid>,
    /// Entries of this txg and older are obsolete.
    pub synced_txg: u64,
    /// Txgs that have entries and are not synced; 0 where it is not known yet, before a claim.
    pub unsynced_txgs: u64,
    /// Entries of these txgs; before a claim, all that recovery has found.
    pub entries: u64,
    /// Lower bound of the entries that existed and that recovery did not find.
    pub missing: u64,
    /// Chunks were lost that held entries of the log, or may have.
    pub incomplete: bool,
    pub chunks: u32,
    /// Chunks that wait for a claim, or for the end of a replay.
    pub held_chunks: u32,
    pub largest_entry_bytes: u32,
    /// Since the pool was opened.
    pub appends: u64,
    pub appended_bytes: u64,
}

impl fmt::Display for LogInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name, self.state)?;
        if self.state == LogState::Logging && !self.claimed {
            f.write_str(", to be claimed")?;
        }
        write!(f, ", {} entries in {} chunks", self.entries, self.chunks)?;
        write!(f, ", synced txg {}", self.synced_txg)?;
        if self.appends > 0 {
            write!(f, ", {} appends of {}", self.appends, human_bytes(self.appended_bytes))?;
        }
        if self.missing > 0 {
            write!(f, ", {} entries MISSING", self.missing)?;
        }
        if self.incomplete {
            f.write_str(", chunks of it may be LOST")?;
        }
        Ok(())
    }
}

/// The position of an entry in its log: its generation, and its number there, from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct EntryName {
    pub generation: u64,
    pub id: u64,
}

impl std::fmt::Display for EntryName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.generation, self.id)
    }
}

/// How a replay ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReplayEnd {
    /// All entries are replayed.
    #[default]
    Complete,
    /// An entry is missing or damaged: those that depend on it are not replayed.  Or all
    /// readable entries were replayed, and the pool knows of one that is missing, or of two
    /// with one name.
    Missing,
    /// The consumer stopped it.
    Stopped,
}

/// The entry by which it shows that one before it is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Witness {
    pub generation: u64,
    /// 0: no entry, but what was noted of the last generation when the log was claimed.
    pub id: u64,
    pub txg: u64,
}

impl fmt::Display for Witness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.id {
            0 => write!(f, "the count of generation {}", self.generation.saturating_sub(1)),
            _ => write!(f, "entry {}.{} (txg {})", self.generation, self.id, self.txg),
        }
    }
}

/// The result of a replay, or its forecast.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplayReport {
    pub end: ReplayEnd,
    pub replayed: u64,
    /// Entries of synced txgs.
    pub obsolete: u64,
    /// Entries that were replayed before.
    pub earlier: u64,
    /// Entries that have the name of another: neither is taken.
    pub twins: u64,
    /// Entries that cannot be read.
    pub damaged: u64,
    pub first_damaged: Option<Witness>,
    /// Entries not replayed: from the witness or the stop on.
    pub left: u64,
    /// The entry that shows the loss, if `end` is [`ReplayEnd::Missing`]; `None`: no entry
    /// shows it.
    pub witness: Option<Witness>,
    /// Lower bound of the entries that existed and that recovery did not find.  Some may have
    /// been obsolete.
    pub missing: u64,
    /// Chunks were lost that held entries of the log, or may have.
    pub incomplete: bool,
}

impl fmt::Display for ReplayReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.end {
            ReplayEnd::Complete => write!(f, "complete: {} entries", self.replayed)?,
            ReplayEnd::Stopped => write!(f, "stopped after {} entries", self.replayed)?,
            ReplayEnd::Missing => {
                write!(f, "INCOMPLETE after {} entries", self.replayed)?;
                if let Some(w) = &self.witness {
                    write!(f, ": one before {w} is missing or damaged")?;
                }
            }
        }
        if self.missing > 0 {
            write!(f, "; {} entries MISSING", self.missing)?;
        }
        if self.incomplete {
            f.write_str("; chunks of it may be LOST")?;
        }
        if let Some(d) = &self.first_damaged {
            write!(f, "; {} damaged, first {d}", self.damaged)?;
        }
        for (n, what) in [
            (self.left, "left"),
            (self.obsolete, "obsolete"),
            (self.earlier, "replayed before"),
            (self.twins, "of a name that another has"),
        ] {
            if n > 0 {
                write!(f, "; {n} {what}")?;
            }
        }
        Ok(())
    }
}

/// An entry of a log, as its header describes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogEntryDump {
    pub log: Option<String>,
    #[serde(flatten)]
    pub name: EntryName,
    pub txg: u64,
    /// Length of its body.
    pub bytes: u32,
    pub chunk: u32,
    /// Place in its chunk, in units of 64 bytes.
    pub line: u32,
    pub epoch: u64,
    /// GUID of the logging period.
    pub guid: Uuid,
    /// At least one entry before it in the chunk is unreadable.
    pub after_gap: bool,
    /// Its txg is synced.
    pub obsolete: bool,
    /// Whether the body matched its checksum, if it was verified.
    pub data_ok: Option<bool>,
    pub data_crc: u32,
}

impl fmt::Display for LogEntryDump {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.after_gap {
            writeln!(f, "chunk {}: entries before line {} cannot be read", self.chunk, self.line)?;
        }
        write!(
            f,
            "entry {:>9}  txg {:6}  {:7} bytes  chunk {} line {:5}  epoch {}",
            self.name.to_string(),
            self.txg,
            self.bytes,
            self.chunk,
            self.line,
            self.epoch
        )?;
        if self.obsolete {
            f.write_str("  obsolete")?;
        }
        f.write_str(match self.data_ok {
            Some(true) => "  data ok",
            Some(false) => "  data BAD",
            None => "",
        })?;
        write!(f, "  {}", self.log.as_deref().unwrap_or("-"))
    }
}

/// The result of a check of a log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogCheck {
    pub log: String,
    /// Forecast of a replay; `None` for a log in use, and for one whose header is with its
    /// consumer.
    pub replay: Option<ReplayReport>,
    /// Lower bound of the entries that existed and that recovery did not find.
    pub missing: u64,
    /// Chunks were lost that held entries of the log, or may have.
    pub incomplete: bool,
    /// Entries whose data fails its checksum.
    pub damaged: u64,
}

impl LogCheck {
    /// Nothing is lost.
    pub fn is_ok(&self) -> bool {
        let complete = |r: &ReplayReport| r.end == ReplayEnd::Complete && r.twins == 0;
        let found = self.missing == 0 && !self.incomplete;
        found && self.damaged == 0 && self.replay.as_ref().is_none_or(complete)
    }
}

impl fmt::Display for LogCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "log {}: ", self.log)?;
        if self.is_ok() {
            return f.write_str("nothing missing");
        }
        write!(f, "{} entries missing, {} damaged", self.missing, self.damaged)?;
        if self.incomplete {
            f.write_str(", chunks of it may be LOST")?;
        }
        if let Some(replay) = &self.replay {
            write!(f, "; a replay would be {replay}")?;
        }
        Ok(())
    }
}
