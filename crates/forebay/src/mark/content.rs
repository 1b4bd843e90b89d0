// SPDX-License-Identifier: MIT OR Apache-2.0
//! The content of a mark, as bytes: one line with a checksum, one of JSON.
//!
//! ```text
//! forebay-mark 3 8d4aa7c0
//! {"pool":"...","volume":"data","volume_uuid":"...","generation":7,"least":2,...}
//! ```
//!
//! Version 1 has no `volume_uuid`, and is written while that is unknown.  Version 3 is `exact`;
//! version 2 has the UUID and is not.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::bug;
#[cfg(test)]
use super::planted::{planted, Bug};
use crate::printable::printable;
use crate::report::Uuid;

/// No mark is longer.
pub(crate) const MOST_BYTES: usize = 2048;
const VERSIONS: [&str; 3] = ["forebay-mark 1 ", "forebay-mark 2 ", "forebay-mark 3 "];
const TEXT_MOST: usize = 255;

/// The mark that an origin bears while a pool may hold data that it lacks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mark {
    pub pool: Uuid,
    pub volume: String,
    /// UUID of its record: a volume added later by this name has another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_uuid: Option<Uuid>,
    /// Generation of the pool's superblock when the mark was set.
    pub generation: u64,
    /// The volume's record has at least this number of marks in the pool that set it.
    pub least: u32,
    /// When the first write came that the origin may lack, in seconds since 1970.
    pub since: u64,
    /// So much may be missing: no more than the pool holds, or the volume.
    pub at_most_bytes: u64,
    /// The id of the host (`host.rs`).
    pub host: String,
    /// Path of the pool.
    pub at: String,
    /// The id of the origin.
    pub origin: String,
    /// The origin itself bears the mark, and `least` is the last number that was set: an origin
    /// with a lower one is an older state of itself.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub exact: bool,
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
    /// The command by which the origin gets what it lacks from the pool that set the mark.  The
    /// pool's path is to follow.
    pub fn way_home(&self) -> &'static str {
        match self.map {
            true => "forebay map recover",
            false => "forebay drain",
        }
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let json = serde_json::to_string(self).expect("a mark is JSON");
        let crc = forebay_engine::sys::crc32c(0, json.as_bytes());
        let version = self.version();
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
        if version != mark.version() {
            return Err("its volume_uuid or exact is not as its version has it".into());
        }
        mark.is_sound().map_or(Ok(mark), |field| Err(format!("its {field} cannot be right")))
    }

    fn version(&self) -> &'static str {
        match (self.exact, &self.volume_uuid) {
            (true, _) => VERSIONS[2],
            (false, Some(_)) => VERSIONS[1],
            (false, None) => VERSIONS[0],
        }
    }

    /// A field that no host of ours writes so.
    fn is_sound(&self) -> Option<&'static str> {
        let text =
            |t: &str| !t.is_empty() && t.len() <= TEXT_MOST && !t.chars().any(char::is_control);
        let fields = [
            ("volume", text(&self.volume)),
            ("volume_uuid", self.volume_uuid.is_some() || !self.exact),
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

#[cfg(test)]
mod tests {
    use super::super::tests::turn;
    use super::*;

    #[test]
    fn hostile_marks_are_no_marks() {
        let _turn = turn();
        let mark = Mark {
            pool: Uuid([7; 16]),
            volume: "v".into(),
            volume_uuid: Some(Uuid([8; 16])),
            generation: 3,
            least: 2,
            since: 1_795_405_200,
            at_most_bytes: 4096,
            host: "h".into(),
            at: "/dev/pmem0".into(),
            origin: "wwid:1".into(),
            exact: false,
            map: false,
        };
        let bytes = mark.to_bytes();
        assert_eq!(Mark::from_bytes(&bytes), Ok(mark.clone()));
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(Mark::from_bytes(&flipped).is_err(), "bit {bit}");
        }
        for len in 0..bytes.len() {
            assert!(Mark::from_bytes(&bytes[..len]).is_err(), "{len} bytes");
        }
        let long = "x".repeat(300);
        for wrong in [
            Mark { volume: "v\u{7f}".into(), ..mark.clone() },
            Mark { volume: String::new(), ..mark.clone() },
            Mark { least: 3, ..mark.clone() },
            Mark { since: u64::MAX, ..mark.clone() },
            Mark { at_most_bytes: 0, ..mark.clone() },
            Mark { at_most_bytes: u64::MAX, ..mark.clone() },
            Mark { host: "a\nb".into(), ..mark.clone() },
            Mark { at: "\u{1b}[2J".into(), ..mark.clone() },
            Mark { origin: long.clone(), ..mark.clone() },
        ] {
            let why = Mark::from_bytes(&wrong.to_bytes()).unwrap_err();
            assert!(why.contains("cannot be right"), "{why}");
        }
        // With the right checksum, and more or less in it.
        let json = |json: &str| {
            let crc = forebay_engine::sys::crc32c(0, json.as_bytes());
            format!("forebay-mark 2 {crc:08x}\n{json}\n").into_bytes()
        };
        let whole = serde_json::to_string(&mark).unwrap();
        assert!(Mark::from_bytes(&json(&whole)).is_ok());
        for other in
            ["{}", "[]", "null", "", &whole.replace("\"v\"", "7"), &whole.replace('}', ",\"x\":1}")]
        {
            assert!(Mark::from_bytes(&json(other)).is_err(), "{other}");
        }
        // One that does not name the volume's life is of the version before.
        let older = Mark { volume_uuid: None, ..mark.clone() };
        assert!(older.to_bytes().starts_with(b"forebay-mark 1 "));
        assert_eq!(Mark::from_bytes(&older.to_bytes()), Ok(older));
        let swapped = String::from_utf8(bytes.clone()).unwrap().replace("-mark 2 ", "-mark 1 ");
        assert!(Mark::from_bytes(swapped.as_bytes()).unwrap_err().contains("volume_uuid"));
        // One that says the last number is of the version after.
        let exact = Mark { exact: true, ..mark.clone() };
        assert!(exact.to_bytes().starts_with(b"forebay-mark 3 "));
        assert_eq!(Mark::from_bytes(&exact.to_bytes()), Ok(exact.clone()));
        let nameless = Mark { volume_uuid: None, ..exact };
        assert!(Mark::from_bytes(&nameless.to_bytes()).unwrap_err().contains("cannot be right"));
        let swapped = String::from_utf8(bytes.clone()).unwrap().replace("-mark 2 ", "-mark 3 ");
        assert!(Mark::from_bytes(swapped.as_bytes()).unwrap_err().contains("exact"));
        let newer = Mark::from_bytes(b"forebay-mark 4 00000000\n{}\n").unwrap_err();
        assert!(newer.contains("another version"), "{newer}");
        assert!(Mark::from_bytes(&vec![b'x'; 1 << 20]).is_err());
    }

    #[test]
    fn times_are_those_of_the_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_795_405_200, "2026-11-23T03:40:00Z"),
            (4_107_542_399, "2100-02-28T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(utc(seconds), text);
        }
    }
}
