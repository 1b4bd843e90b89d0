// SPDX-License-Identifier: MIT OR Apache-2.0
//! The name of a pool, a volume, a log's period: 16 bytes, as text with dashes.

use std::fmt;
use std::str::FromStr;

use serde::{de, Deserialize, Deserializer, Serialize, Serializer};

use super::ParseError;

/// A UUID; as text in the usual form.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Uuid(pub [u8; 16]);

impl Uuid {
    /// The first eight hexadecimal digits.
    pub(crate) fn short(&self) -> String {
        self.0[..4].iter().map(|b| format!("{b:02x}")).collect()
    }
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, b) in self.0.iter().enumerate() {
            if [4, 6, 8, 10].contains(&i) {
                f.write_str("-")?;
            }
            write!(f, "{b:02x}")?;
        }
        Ok(())
    }
}

impl FromStr for Uuid {
    type Err = ParseError;

    fn from_str(s: &str) -> Result<Uuid, ParseError> {
        let bad = || ParseError {
            what: format!("\"{s}\" is not a UUID"),
            way_out: "write 32 hex digits",
        };
        let digits: Vec<char> = s.chars().filter(|c| *c != '-').collect();
        if digits.len() != 32 {
            return Err(bad());
        }
        let mut bytes = [0u8; 16];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks(2)) {
            let high = pair[0].to_digit(16).ok_or_else(bad)?;
            let low = pair[1].to_digit(16).ok_or_else(bad)?;
            *byte = (high << 4 | low) as u8;
        }
        Ok(Uuid(bytes))
    }
}

impl Serialize for Uuid {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Uuid {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Uuid, D::Error> {
        String::deserialize(d)?.parse().map_err(|e: ParseError| de::Error::custom(e.to_string()))
    }
}
