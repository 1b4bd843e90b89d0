// SPDX-License-Identifier: MIT OR Apache-2.0
//! Entries of logs as values for tools.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{EntryName, ReplayEnd, ReplayReport};
use crate::status::Uuid;

/// An entry of a log, as its header describes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogEntryDump {
    pub log: Option<String>,
    #[serde(flatten)]
    pub name: EntryName,
    pub txg: u64,
    /// Of its body.
    pub bytes: u32,
    pub chunk: u32,
    /// Of its chunk, in units of 64 bytes.
    pub line: u32,
    pub epoch: u64,
    /// Of the logging period.
    pub guid: Uuid,
    /// Before it at least one entry of the chunk cannot be read.
    pub after_gap: bool,
    /// Of a txg that is synced.
    pub obsolete: bool,
    /// The body's checksum, if it was verified.
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

/// What a check found of a log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogCheck {
    pub log: String,
    /// What a replay would come to; `None` of a log in use, and of one whose header is
    /// with its consumer.
    pub replay: Option<ReplayReport>,
    /// Entries that there were, and recovery has not found; at least so many.
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
