// SPDX-License-Identifier: MIT OR Apache-2.0
//! Origins by where they are: a path, or a URI.

use std::borrow::Cow;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use super::nbd::{unescaped, Uri};
use super::{FileOrigin, NbdOrigin, Origin, RbdOrigin};
use forebay_rbd::Name;

use crate::attach::Away;
use crate::error::{Error, Result};

/// The place of an origin.
pub(crate) enum Place<'a> {
    /// A file or block device.
    Path(Cow<'a, Path>),
    /// An export of an NBD server, by its URI, and what that says.
    Nbd(&'a str, Uri),
    /// An image of a Ceph cluster, by its URI.
    Rbd(&'a str),
}

/// Opens what is at a path or a URI: `file:///PATH`, `nbd+unix:///EXPORT?socket=PATH`,
/// `nbd://HOST[:PORT]/EXPORT`, `rbd:POOL/IMAGE[@CONF]`.  A path that looks like a URI is written with `./` before it.
/// `away` is for those on the network.
pub fn open(place: &Path, read_only: bool, away: Away) -> Result<Box<dyn Origin>> {
    Ok(match place_of(place)? {
        Place::Path(path) => Box::new(FileOrigin::open(&path, read_only)?),
        Place::Nbd(uri, _) => Box::new(NbdOrigin::open(uri, read_only, away)?),
        Place::Rbd(uri) => Box::new(RbdOrigin::open(uri, read_only, away)?),
    })
}

pub(crate) fn place_of(place: &Path) -> Result<Place<'_>> {
    let refuse = |what: &str| {
        Err(Error::usage(
            format!("{}: {what}", place.display()),
            "name a file or block device by its path or file:///PATH; an NBD export by nbd+unix:///EXPORT?socket=PATH or nbd://HOST/EXPORT; a Ceph image by rbd:POOL/IMAGE[@CONF]. Begin a path that looks like a URI with ./",
        ))
    };
    if let Some(rest) = place.as_os_str().as_bytes().strip_prefix(b"rbd:") {
        let Some(uri) = place.to_str().filter(|uri| uri.bytes().all(|b| b.is_ascii_graphic()))
        else {
            return refuse("a URI has printable ASCII alone");
        };
        return match Name::parse(&String::from_utf8_lossy(rest)) {
            Ok(_) => Ok(Place::Rbd(uri)),
            Err(why) => refuse(why),
        };
    }
    let Some((scheme, rest)) = split(place.as_os_str().as_bytes()) else {
        return Ok(Place::Path(place.into()));
    };
    match (scheme.to_ascii_lowercase().as_slice(), rest) {
        (b"file", [b'/', ..]) => match unescaped(rest) {
            Some(path) => Ok(Place::Path(PathBuf::from(OsString::from_vec(path)).into())),
            None => refuse("% is followed by two hexadecimal digits, not 00"),
        },
        (b"file", _) => refuse("files of other machines cannot be origins"),
        (b"nbd" | b"nbd+unix", _) => match place.to_str() {
            Some(uri) => match Uri::parse(uri) {
                Ok(said) => Ok(Place::Nbd(uri, said)),
                Err(why) => refuse(why),
            },
            None => refuse("a URI has printable ASCII alone, and %XX for what is none"),
        },
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
            let Place::Path(found) = place_of(Path::new(place)).unwrap() else {
                panic!("{place} is no path");
            };
            assert_eq!(found.as_os_str().as_bytes(), path, "{place}");
        }
    }

    #[test]
    fn other_places_are_refused_by_name() {
        for (place, why) in [
            ("nbds://host/disk", "no kind of origin \"nbds\""),
            ("nbd://", "no host"),
            ("nbd:///disk", "no host"),
            ("nbd://:10809/disk", "no host"),
            ("nbd+unix:///disk", "no socket"),
            ("nbd+unix://host/disk?socket=/s", "no socket"),
            ("nbd+unix:///disk?socket=s", "no socket"),
            ("nbd+unix:///disk?socket=/s&socket=/t", "two sockets"),
            ("nbd+unix:///disk%zz?socket=/s", "hexadecimal"),
            ("nbd+unix:///disk?socket=/s%0", "hexadecimal"),
            ("nbd://host:99999/disk", "1 to 65535"),
            ("nbd://host:nbd/disk", "1 to 65535"),
            ("nbd://[::1/disk", "no ]"),
            ("nbd://host/a disk", "printable ASCII"),
            ("S3://bucket", "no kind of origin \"s3\""),
            ("rbd:", "POOL/IMAGE"),
            ("rbd:image", "POOL/IMAGE"),
            ("rbd:/image", "no pool"),
            ("rbd:a//b", "POOL/NAMESPACE/IMAGE"),
            ("rbd:pool/image@", "behind the @"),
            ("rbd:pool/an image", "printable ASCII"),
            ("file://host/disk", "other machines"),
            ("file://", "other machines"),
            ("file:///a%", "hexadecimal"),
            ("file:///a%0g", "hexadecimal"),
            ("file:///a%00", "not 00"),
        ] {
            let e = open(Path::new(place), true, Away::default()).unwrap_err();
            let text = e.to_string();
            assert!(text.starts_with(place) && text.contains(why), "{text}");
            assert_eq!(e.exit_code(), 2, "{text}");
        }
    }
}
