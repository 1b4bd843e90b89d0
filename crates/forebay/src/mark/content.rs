// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a mark says, as bytes: one line with a checksum, one of JSON.
//!
//! ```text
//! forebay-mark 2 8d4aa7c0
//! {"pool":"...","volume":"data","volume_uuid":"...","generation":7,"least":2,...}
//! ```
//!
//! Version 1 has no `volume_uuid`, and is written where that is not known yet.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::bug;
#[cfg(test)]
use super::planted::{planted, Bug};
use crate::printable::printable;
use crate::status::Uuid;

/// No mark is longer.
pub(crate) const MOST_BYTES: usize = 2048;
const VERSIONS: [&str; 2] = ["forebay-mark 1 ", "forebay-mark 2 "];
const TEXT_MOST: usize = 255;

/// What an origin bears while a pool may hold what it lacks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mark {
    pub pool: Uuid,
    pub volume: String,
    /// Of its record: one that is added later by this name has another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_uuid: Option<Uuid>,
    /// Of the pool's superblock, when it was set.
    pub generation: u64,
    /// The volume's record has at least this number of marks in the pool that set it.
    pub least: u32,
    /// When the first write came that the origin may lack, in seconds since 1970.
    pub since: u64,
    /// So much may be missing: no more than the pool holds, or the volume.
    pub at_most_bytes: u64,
    /// What the host is known by (`host.rs`).
    pub host: String,
    /// Where the pool was.
    pub at: String,
    /// What the origin is known by.
    pub origin: String,
    /// It is a file, and `volume` a map that has pages of it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub map: bool,
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "it may lack writes since {}, at most {} bytes, that {} {} of pool {} holds (generation {}, then at {}, host {})",
            utc(self.since),
            self.at_most_bytes,
            if self.map { "map" } else { "volume" },
            printable(&self.volume),
            self.pool,
            self.generation,
            printable(&self.at),
            printable(&self.host),
        )
    }
}

impl Mark {
    /// By which command, with the pool that set it, the origin gets what it lacks; the pool is
    /// to follow.
    pub fn way_home(&self) -> &'static str {
        match self.map {
            true => "forebay map recover",
            false => "forebay drain",
        }
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let json = serde_json::to_string(self).expect("a mark is JSON");
        let crc = forebay_engine::sys::crc32c(0, json.as_bytes());
        let version = VERSIONS[usize::from(self.volume_uuid.is_some())];
        format!("{version}{crc:08x}\n{json}\n").into_bytes()
    }

    /// Or what is wrong with it.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Mark, String> {
        if bytes.len() > MOST_BYTES {
            return Err("it is too long".into());
        }
        let text = std::str::from_utf8(bytes).map_err(|_| "it is no text")?;
        let (head, json) = text.split_once('\n').ok_or("it has no first line")?;
        let json = json.strip_suffix('\n').ok_or("it is cut off")?;
        let of = |version: &'static str| head.strip_prefix(version).map(|crc| (version, crc));
        let (version, crc) = match VERSIONS.into_iter().find_map(of) {
            Some(found) => found,
            None if head.starts_with("forebay-mark ") => {
                return Err("it is of another version of Forebay".into())
            }
            None => return Err("it does not begin as one".into()),
        };
        let right = forebay_engine::sys::crc32c(0, json.as_bytes());
        if crc != format!("{right:08x}") && !bug!(ChecksumIgnored) {
            return Err("its checksum is wrong".into());
        }
        let mark: Mark =
            serde_json::from_str(json).map_err(|e| printable(&e.to_string()).into_owned())?;
        if version != VERSIONS[usize::from(mark.volume_uuid.is_some())] {
            return Err("its volume_uuid is not as its version has it".into());
        }
        mark.is_sound().map_or(Ok(mark), |field| Err(format!("its {field} cannot be right")))
    }

    /// A field that no host of ours writes so.
    fn is_sound(&self) -> Option<&'static str> {
        let text =
            |t: &str| !t.is_empty() && t.len() <= TEXT_MOST && !t.chars().any(char::is_control);
        let fields = [
            ("volume", text(&self.volume)),
            ("least", self.least & 1 == 0),
            ("since", self.since < 1 << 38),
            ("at_most_bytes", self.at_most_bytes > 0 && self.at_most_bytes < 1 << 62),
            ("host", text(&self.host)),
            ("at", text(&self.at)),
            ("origin", text(&self.origin)),
        ];
        fields.into_iter().find(|(_, sound)| !sound).map(|(field, _)| field)
    }
}

/// As much of a text as a mark takes.
pub(crate) fn short(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        if out.len() + c.len_utf8() > TEXT_MOST {
            break;
        }
        out.push(if c.is_control() { '?' } else { c });
    }
    match out.is_empty() {
        true => "?".into(),
        false => out,
    }
}

pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

/// 2026-11-23T04:05:06Z.
pub(crate) fn utc(seconds: u64) -> String {
    let (days, time) = ((seconds / 86400) as i64, seconds % 86400);
    // Days since 0000-03-01, so that a leap day is the last of its year.
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let of_era = days.rem_euclid(146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let (month, year) = match month {
        0..=9 => (month + 3, year + era * 400),
        _ => (month - 9, year + era * 400 + 1),
    };
    let (hour, minute, second) = (time / 3600, time / 60 % 60, time % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}
