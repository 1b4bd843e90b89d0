// SPDX-License-Identifier: MIT OR Apache-2.0
//! URIs of exports: `nbd://[USER[:PASSWORD]@]HOST[:PORT]/EXPORT`,
//! `nbd+unix:///EXPORT?socket=PATH`.
//!
//! An export has no id but its URI, and a URI can be written in many ways.  What an origin is
//! known by is made of one of them, so that a mark is found, and a second user of the export
//! refused, whichever was written.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// The port of NBD.
const PORT: u16 = 10809;
/// Links that are followed to a socket.
const LINKS_MOST: u32 = 40;

/// A parsed URI.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Uri {
    Tcp { user: String, host: String, port: u16, export: Vec<u8> },
    Unix { export: Vec<u8>, socket: PathBuf },
}

impl Uri {
    /// Or what is wrong with it.
    pub fn parse(uri: &str) -> Result<Uri, &'static str> {
        if !uri.bytes().all(|b| b.is_ascii_graphic()) {
            return Err("a URI has printable ASCII alone, and %XX for what is none");
        }
        let (scheme, rest) = uri.split_once("://").ok_or("it has no ://")?;
        let rest = rest.split('#').next().unwrap_or(rest);
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, export) = rest.split_once('/').unwrap_or((rest, ""));
        let export = unescaped(export.as_bytes()).ok_or(ESCAPE)?;
        match scheme.eq_ignore_ascii_case("nbd") {
            true => tcp(authority, export),
            false if !authority.is_empty() || !rest.starts_with('/') => Err(NO_SOCKET),
            false => Ok(Uri::Unix { export, socket: socket_of(query)? }),
        }
    }

    /// A name that is the same for all spellings of the URI, without a password.
    pub fn name(&self) -> String {
        match self {
            Uri::Tcp { user, host, port, export } => {
                let user = if user.is_empty() { String::new() } else { format!("{user}@") };
                let port = if *port == PORT { String::new() } else { format!(":{port}") };
                format!("nbd://{user}{host}{port}/{}", escaped(export))
            }
            Uri::Unix { export, socket } => {
                let socket = real(socket, LINKS_MOST);
                let socket = escaped(socket.as_os_str().as_bytes());
                format!("nbd+unix:///{}?socket={socket}", escaped(export))
            }
        }
    }

    /// The host to look up, if it is a name.
    pub fn host(&self) -> Option<&str> {
        match self {
            Uri::Tcp { host, .. } => Some(host.trim_start_matches('[').trim_end_matches(']')),
            Uri::Unix { .. } => None,
        }
    }
}

const NO_SOCKET: &str = "names no socket, by ?socket=/PATH";
const ESCAPE: &str = "% is followed by two hexadecimal digits, not 00";

fn tcp(authority: &str, export: Vec<u8>) -> Result<Uri, &'static str> {
    let (user, place) = authority.rsplit_once('@').unwrap_or(("", authority));
    let user = user.split(':').next().unwrap_or(user).into();
    // An address of IPv6 has colons, and brackets for that.
    let end = match place.starts_with('[') {
        true => place.find(']').ok_or("has a [ and no ]")? + 1,
        false => place.find(':').unwrap_or(place.len()),
    };
    let (host, port) = place.split_at(end);
    let port = match port.strip_prefix(':') {
        None if port.is_empty() => PORT,
        Some("") => PORT,
        Some(digits) if digits.bytes().all(|b| b.is_ascii_digit()) => {
            digits.parse().ok().filter(|&port| port > 0).ok_or(NO_PORT)?
        }
        _ => return Err(NO_PORT),
    };
    match host.is_empty() || host == "[]" {
        true => Err("names no host"),
        false => Ok(Uri::Tcp { user, host: host.to_ascii_lowercase(), port, export }),
    }
}

const NO_PORT: &str = "a port is a number from 1 to 65535";

fn socket_of(query: &str) -> Result<PathBuf, &'static str> {
    let mut sockets = query.split(['&', ';']).filter_map(|p| p.strip_prefix("socket="));
    let (Some(socket), more) = (sockets.next(), sockets.next()) else { return Err(NO_SOCKET) };
    if more.is_some() {
        return Err("names two sockets");
    }
    let socket = unescaped(socket.as_bytes()).ok_or(ESCAPE)?;
    match socket.first() {
        Some(b'/') => Ok(OsString::from_vec(socket).into()),
        _ => Err(NO_SOCKET),
    }
}

/// Resolves a path, whether something exists there or not.
fn real(path: &Path, links: u32) -> PathBuf {
    if let Ok(real) = std::fs::canonicalize(path) {
        return real;
    }
    let parent = match path.parent() {
        Some(parent) if links > 0 => real(parent, links),
        _ => return path.into(),
    };
    match std::fs::read_link(path) {
        Ok(target) => real(&parent.join(target), links - 1),
        Err(_) => parent.join(path.file_name().unwrap_or_default()),
    }
}

pub(in crate::origin) fn unescaped(text: &[u8]) -> Option<Vec<u8>> {
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

fn escaped(bytes: &[u8]) -> String {
    let mut out = String::new();
    for &b in bytes {
        match b.is_ascii_graphic() && !b"%?#&;".contains(&b) {
            true => out.push(b.into()),
            false => out += &format!("%{b:02X}"),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(uri: &str) -> String {
        Uri::parse(uri).unwrap().name()
    }

    #[test]
    fn however_it_is_written_it_has_one_name() {
        for (name_of, others) in [
            (
                "nbd://far/disk",
                &[
                    "NBD://FAR/disk",
                    "nbd://far:10809/disk",
                    "nbd://far:/d%69sk?x=y",
                    "nbd://far/disk#x",
                ][..],
            ),
            ("nbd://far/", &["nbd://far", "nbd://far?a"]),
            ("nbd://u@far:1/", &["nbd://u:secret@Far:1", "nbd://u:other@far:01/"]),
            ("nbd://[fe80::a]/x", &["nbd://[FE80::A]:10809/x"]),
            (
                "nbd+unix:///?socket=/a%20b/s",
                &["nbd+unix:///?socket=/%61%20b//s", "nbd+unix:///?a=b&socket=/a%20b/s;c"],
            ),
        ] {
            assert_eq!(name(name_of), name_of);
            for other in others {
                assert_eq!(name(other), name_of, "{other}");
            }
        }
        for (a, b) in [
            ("nbd://far/disk", "nbd://far/Disk"),
            ("nbd://far/disk", "nbd://far:1/disk"),
            ("nbd+unix:///?socket=/s", "nbd+unix:////?socket=/s"),
            ("nbd+unix:///?socket=/s", "nbd+unix:///?socket=/s%26"),
        ] {
            assert_ne!(name(a), name(b));
        }
    }

    /// While the server runs and while it does not.
    #[test]
    fn a_socket_is_known_by_where_its_path_leads() {
        let dir = std::env::temp_dir().join(format!("fby-uri-{}", std::process::id()));
        std::fs::create_dir_all(dir.join("run")).unwrap();
        let dir = dir.canonicalize().unwrap();
        std::os::unix::fs::symlink("run", dir.join("link")).unwrap();
        std::os::unix::fs::symlink("run/s", dir.join("to")).unwrap();
        std::os::unix::fs::symlink("round", dir.join("round")).unwrap();
        let at = |path: &str| name(&format!("nbd+unix:///x?socket={}/{path}", dir.display()));
        for _ in 0..2 {
            for path in ["link/s", "to", "run/../link//s", "./run/./s"] {
                assert_eq!(at(path), at("run/s"), "{path}");
            }
            assert_ne!(at("run/t"), at("run/s"));
            at("round");
            std::fs::write(dir.join("run/s"), "").unwrap();
        }
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn hosts_of_uris() {
        for (uri, host) in [
            ("nbd://far/disk", Some("far")),
            ("NBD://far:10810/disk?a=b", Some("far")),
            ("nbd://user:word@far:1", Some("far")),
            ("nbd://[fe80::1]:10809/", Some("fe80::1")),
            ("nbd+unix:///disk?socket=/run/x", None),
        ] {
            assert_eq!(Uri::parse(uri).unwrap().host(), host, "{uri}");
        }
    }
}
