// SPDX-License-Identifier: MIT OR Apache-2.0
//! Origins by where they are: a path, or a URI.

use std::borrow::Cow;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use super::FileOrigin;
use crate::error::{Error, Result};

/// Opens the file or block device at a path, or at `file:///path`.  A path that looks
/// like a URI is written with `./` before it.
pub fn open(place: &Path, read_only: bool) -> Result<FileOrigin> {
    FileOrigin::open(&path_of(place)?, read_only)
}

/// The path of a place.
pub(crate) fn path_of(place: &Path) -> Result<Cow<'_, Path>> {
    let Some((scheme, rest)) = split(place.as_os_str().as_bytes()) else {
        return Ok(place.into());
    };
    let refuse = |what: &str| {
        Err(Error::usage(
            format!("{}: {what}", place.display()),
            "name a file or block device by its path, or by file:///path; ./ before a path that looks like a URI",
        ))
    };
    match (scheme.to_ascii_lowercase().as_slice(), rest) {
        (b"file", [b'/', ..]) => match unescaped(rest) {
            Some(path) => Ok(PathBuf::from(OsString::from_vec(path)).into()),
            None => refuse("% is followed by two hexadecimal digits, not 00"),
        },
        (b"file", _) => refuse("files of other machines cannot be origins"),
        (scheme, _) => {
            let scheme = String::from_utf8_lossy(scheme);
            refuse(&format!("there is no kind of origin \"{scheme}\""))
        }
    }
}

/// Scheme and what follows `://`.
fn split(place: &[u8]) -> Option<(&[u8], &[u8])> {
    let colon = place.iter().position(|&b| b == b':')?;
    let (scheme, rest) = (&place[..colon], place[colon..].strip_prefix(b"://")?);
    let (first, others) = scheme.split_first()?;
    let sound = |b: &u8| b.is_ascii_alphanumeric() || b"+-.".contains(b);
    (first.is_ascii_alphabetic() && others.iter().all(sound)).then_some((scheme, rest))
}

fn unescaped(text: &[u8]) -> Option<Vec<u8>> {
    let (mut out, mut rest) = (Vec::new(), text);
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let (digits, after) = rest.split_at_checked(2)?;
        let digit = |b: u8| char::from(b).to_digit(16);
        let value = digit(digits[0])? * 16 + digit(digits[1])?;
        if value == 0 {
            return None;
        }
        out.push(value as u8);
        rest = after;
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_files_by_uri_are_places() {
        let places: [(&str, &[u8]); 8] = [
            ("/dev/sdb", b"/dev/sdb"),
            ("disk", b"disk"),
            ("a:b", b"a:b"),
            (":///x", b":///x"),
            ("3d://x", b"3d://x"),
            ("./nbd://x", b"./nbd://x"),
            ("file:///dev/sdb", b"/dev/sdb"),
            ("FILE:///a%20b%2f%C3", b"/a b/\xc3"),
        ];
        for (place, path) in places {
            let found = path_of(Path::new(place)).unwrap();
            assert_eq!(found.as_os_str().as_bytes(), path, "{place}");
        }
    }

    #[test]
    fn other_places_are_refused_by_name() {
        for (place, why) in [
            ("nbd://host/disk", "no kind of origin \"nbd\""),
            ("S3://bucket", "no kind of origin \"s3\""),
            ("file://host/disk", "other machines"),
            ("file://", "other machines"),
            ("file:///a%", "hexadecimal"),
            ("file:///a%0g", "hexadecimal"),
            ("file:///a%00", "not 00"),
        ] {
            let e = open(Path::new(place), true).unwrap_err();
            let text = e.to_string();
            assert!(text.starts_with(place) && text.contains(why), "{text}");
            assert_eq!(e.exit_code(), 2, "{text}");
        }
    }
}
