// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sizes, times and names: from the command line, and for people to read.

use std::path::PathBuf;
use std::time::Duration;

use forebay::defaults;

/// Bytes from "4096", "64K", "512M", "1.5G", "2TiB".
pub fn parse_size(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is not a size; write bytes, or a number with K, M, G or T");
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = unit.trim().to_ascii_uppercase();
    let shift = match unit.strip_suffix("IB").or(unit.strip_suffix('B')).unwrap_or(&unit) {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return Err(wrong()),
    };
    let bytes = match number.parse::<u64>() {
        Ok(n) => n.checked_mul(1 << shift),
        Err(_) => {
            let n: f64 = number.parse().map_err(|_| wrong())?;
            let bytes = n * (1u64 << shift) as f64;
            (bytes.fract() == 0.0 && bytes < u64::MAX as f64).then_some(bytes as u64)
        }
    };
    bytes.ok_or_else(wrong)
}

pub fn parse_chunk_size(text: &str) -> Result<u32, String> {
    let bytes = parse_size(text)?;
    let possible = defaults::CHUNK_SIZE_BYTES_MIN..=defaults::CHUNK_SIZE_BYTES;
    match u32::try_from(bytes) {
        Ok(n) if n.is_power_of_two() && possible.contains(&n) => Ok(n),
        _ => Err(format!("a chunk is {}", chunk_sizes())),
    }
}

/// The possible sizes of a chunk, for help and messages.
pub fn chunk_sizes() -> String {
    let [least, most] = [defaults::CHUNK_SIZE_BYTES_MIN, defaults::CHUNK_SIZE_BYTES].map(size);
    format!("a power of two from {least} to {most}")
}

/// Writes a size as [`parse_size`] takes it: a whole number of the largest unit.
pub fn size(bytes: impl Into<u64>) -> String {
    let bytes = bytes.into();
    match bytes.trailing_zeros() {
        20..=29 => format!("{}M", bytes >> 20),
        10..=19 => format!("{}K", bytes >> 10),
        _ => bytes.to_string(),
    }
}

pub fn parse_block_size(text: &str) -> Result<u32, String> {
    match parse_size(text)? {
        512 => Ok(512),
        4096 => Ok(4096),
        _ => Err("a logical block is 512 or 4096 bytes".into()),
    }
}

/// Commit slots: 1 to the most, or 0 for "auto".
pub fn parse_slots(text: &str) -> Result<u32, String> {
    match (text, text.parse()) {
        ("auto", _) => Ok(0),
        (_, Ok(n)) if (1..=defaults::SLOTS_MAX).contains(&n) => Ok(n),
        _ => Err(format!(
            "{text:?} is not a number of slots; write 1 to {}, or auto",
            defaults::SLOTS_MAX
        )),
    }
}

/// The longest time.  It can be added to a clock, and nobody waits longer.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// A time from "2", "100us", "500ms", "1.5s", "5m", "1h"; a bare number is seconds.
pub fn parse_time(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is not a time; write 500ms, 30s, 5m or 1h");
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: f64 = number.parse().map_err(|_| wrong())?;
    let seconds = match unit {
        "us" => number / 1e6,
        "ms" => number / 1000.0,
        "" | "s" => number,
        "m" => number * 60.0,
        "h" => number * 3600.0,
        _ => return Err(wrong()),
    };
    match Duration::try_from_secs_f64(seconds) {
        Ok(time) if time > LONGEST => Err(format!("{text:?} is more than 100 years")),
        Ok(time) if !time.is_zero() => Ok(time),
        _ => Err(wrong()),
    }
}

/// A volume's name and a path from "NAME=PATH".
pub fn parse_name_path(text: &str) -> Result<(String, PathBuf), String> {
    match text.split_once('=') {
        Some((name, path)) if !name.is_empty() && !path.is_empty() => {
            Ok((name.into(), path.into()))
        }
        _ => Err(format!("{text:?} is not NAME=PATH")),
    }
}

/// Bytes with a unit.
pub fn bytes(n: u64) -> String {
    let mut unit = 0;
    let mut value = n as f64;
    while value >= 1024.0 && unit < 5 {
        value /= 1024.0;
        unit += 1;
    }
    let name = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"][unit];
    if value.fract() < 0.05 || value >= 100.0 {
        format!("{value:.0} {name}")
    } else {
        format!("{value:.1} {name}")
    }
}

/// Writes a count with groups of three digits.
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

/// Nanoseconds in the unit that a person would use.
pub fn nanoseconds(ns: u64) -> String {
    match ns {
        0..=999 => format!("{ns} ns"),
        1_000..=9_999 => format!("{:.2} us", ns as f64 / 1e3),
        10_000..=999_999 => format!("{:.0} us", ns as f64 / 1e3),
        1_000_000..=99_999_999 => format!("{:.1} ms", ns as f64 / 1e6),
        100_000_000..=999_999_999 => format!("{:.0} ms", ns as f64 / 1e6),
        _ => format!("{:.1} s", ns as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("64K", 64 << 10),
            ("64KiB", 64 << 10),
            ("512m", 512 << 20),
            ("1.5G", 3 << 29),
            ("2TB", 2 << 40),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for text in ["", "G", "1X", "-1", "1.0001", "99999999999999T", "0x10", "1 G G"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn times() {
        assert_eq!(parse_time("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_time("1us"), Ok(Duration::from_micros(1)));
        assert_eq!(parse_time("2"), Ok(Duration::from_secs(2)));
        assert_eq!(parse_time("1.5m"), Ok(Duration::from_secs(90)));
        assert_eq!(parse_time("876000h"), Ok(LONGEST));
        for text in ["", "s", "0", "-1s", "1d", "1e400", "inf", "900000h", "5000000000000000h"] {
            assert!(parse_time(text).is_err(), "{text}");
        }
    }

    #[test]
    fn chunk_and_block_sizes() {
        assert_eq!(parse_chunk_size("64K"), Ok(64 << 10));
        assert!(parse_chunk_size("96K").is_err());
        assert!(parse_chunk_size("4M").is_err());
        assert_eq!(parse_block_size("512"), Ok(512));
        assert!(parse_block_size("1024").is_err());
    }

    #[test]
    fn for_people() {
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(3 << 29), "1.5 GiB");
        assert_eq!(count(1234567), "1 234 567");
        assert_eq!(count(999), "999");
        assert_eq!(nanoseconds(570), "570 ns");
        assert_eq!(nanoseconds(1570), "1.57 us");
        assert_eq!(nanoseconds(24_181_000), "24.2 ms");
    }

    #[test]
    fn slots() {
        assert_eq!(
            (parse_slots("auto"), parse_slots("1"), parse_slots("64")),
            (Ok(0), Ok(1), Ok(64))
        );
        for wrong in ["0", "65", "-1", "", "Auto", "many"] {
            assert!(parse_slots(wrong).unwrap_err().contains("1 to 64, or auto"), "{wrong}");
        }
    }

    #[test]
    fn names_with_paths() {
        assert_eq!(parse_name_path("a=b=c"), Ok(("a".into(), "b=c".into())));
        assert!(parse_name_path("a").is_err());
        assert!(parse_name_path("=b").is_err());
    }
}
