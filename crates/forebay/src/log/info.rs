// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a log reports, ready for JSON.

use std::fmt;

use forebay_engine::logs::LogInfo as RawInfo;
use forebay_engine::sys;
use serde::{Deserialize, Serialize};

use crate::media::human_bytes;
use crate::printable::printable;
use crate::status::Uuid;
use crate::words::words;

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

/// What state a log is in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LogState {
    /// No entries, and none can be appended.
    #[default]
    None,
    /// Entries are appended; or were, before the pool was opened.
    Logging,
    /// Claimed: what is left is held for replay.
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

pub(super) fn state_of(raw: u32) -> LogState {
    match raw {
        sys::FBY_LOG_LOGGING => LogState::Logging,
        sys::FBY_LOG_REPLAYING => LogState::Replaying,
        _ => LogState::None,
    }
}

/// A log of a pool.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LogInfo {
    pub name: String,
    /// Its number in the table that it shares with the volumes.
    pub index: u16,
    pub home: LogHome,
    /// As the pool knows it: of a header with the consumer, since it was claimed.
    pub state: LogState,
    /// Since the pool was opened; or created since.
    pub claimed: bool,
    /// Of its logging period.
    pub guid: Option<Uuid>,
    /// Entries of this txg and older are obsolete.
    pub synced_txg: u64,
    /// Txgs that have entries and are not synced; 0 where it is not known yet, before a claim.
    pub unsynced_txgs: u64,
    /// Of these txgs; before a claim, all that recovery has found.
    pub entries: u64,
    /// Entries that recovery has not found, and that there were; at least so many.
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

/// Of what is to be replayed something may be lost that no entry tells of.
pub(super) fn incomplete(raw: &RawInfo) -> bool {
    let ended = raw.header.state == sys::FBY_LOG_NONE && (raw.claimed || !raw.consumer);
    raw.incomplete && !ended
}

pub(crate) fn log_info(index: u16, raw: &RawInfo) -> LogInfo {
    let (h, at) = (&raw.header, &raw.header.at);
    let state = state_of(h.state);
    let open = state == LogState::Logging && raw.claimed;
    let (entries, unsynced_txgs) = match open {
        true => (raw.unsynced, raw.unsynced_txgs.into()),
        false => (raw.found, 0),
    };
    LogInfo {
        name: printable(&sys::text(&raw.name)).into_owned(),
        index,
        home: if raw.consumer { LogHome::Consumer } else { LogHome::Embedded },
        state,
        claimed: raw.claimed,
        // Before the claim of a consumer's log that of its newest period, ended or not.
        guid: (state != LogState::None || (raw.consumer && !raw.claimed && h.guid != [0; 16]))
            .then_some(Uuid(h.guid)),
        synced_txg: at.synced,
        unsynced_txgs,
        entries,
        missing: raw.missing,
        incomplete: incomplete(raw),
        chunks: raw.chunks,
        held_chunks: if open { 0 } else { raw.chunks },
        largest_entry_bytes: raw.most,
        appends: raw.appends,
        appended_bytes: raw.bytes,
    }
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
