// SPDX-License-Identifier: MIT OR Apache-2.0
//! `forebay serve`: opens a pool, attaches its volumes, and serves them over NBD on
//! a Unix socket until SIGINT or SIGTERM.  What is cached then stays in the pool,
//! which is marked clean.
//!
//! The socket is made after the pool was locked and removed before it is let go, so
//! of two servers of one pool only one ever has it.

use std::borrow::Cow;
use std::fs::DirBuilder;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{anyhow, Context};
use forebay::{control, AttachOptions, Error, Pool, PoolOptions, PrivateSocket, VolumeInfo};
use forebay_nbd::{Export, Stop};
use serde::Serialize;

use crate::create::media_text;
use crate::interrupt::{raise_open_files, Hangup, Interrupt};
use crate::{args, notify, open, out, units};

/// sockaddr_un takes no longer ones.
const SOCKET_PATH_MAX: usize = 107;
/// How long requests may go on after a signal to stop, and wait for space in a full
/// cache: without an end they would wait as long as their origin fails.
const STOP_GRACE: Duration = Duration::from_secs(5);

pub fn run(a: &args::Serve) -> anyhow::Result<u8> {
    let interrupt = Interrupt::watch()?;
    raise_open_files();
    let path = socket_path(a)?;
    let ready = a.ready_file.as_deref().map(ReadyFile::new).transpose()?;
    let pool = open::pool(&a.pool, &pool_options(a))?;
    if let Err(error) = a.attach.check(&pool) {
        pool.close()?;
        return Err(error.into());
    }
    let (exports, unserved) = attach_all(a, &pool);
    let served = match exports.is_empty() {
        true => Err(nothing_to_serve(a, &pool, unserved)),
        false => serve(a, &pool, &path, &exports, &unserved, ready, &interrupt),
    };
    // Served or not, what is cached is safe and the pool closed in order.
    for export in exports {
        export.volume.detach()?;
    }
    pool.close()?;
    served.map(|()| 0)
}

fn serve(
    a: &args::Serve,
    pool: &Pool,
    path: &Path,
    exports: &[Export],
    unserved: &[Unserved],
    ready: Option<ReadyFile>,
    interrupt: &Interrupt,
) -> anyhow::Result<()> {
    let hangup = Hangup::watch()?;
    let socket = PrivateSocket::bind(path)?;
    // Removed again when it is dropped, before the socket.
    let _ready = ready.map(ReadyFile::make).transpose()?;
    notify::send(&format!(
        "READY=1\nSTATUS=Serving {} of {} volumes",
        exports.len(),
        exports.len() + unserved.len()
    ))?;
    announce(a, pool, &socket, exports, unserved)?;
    let stop = Stop { grace: STOP_GRACE, abort: &|| pool.abort_waits() };
    let stopping = || {
        hangup.tell();
        interrupt.came()
    };
    let served = forebay_nbd::serve(socket.listener(), exports, a.threads, &stopping, stop);
    // Nobody may be there to be told any more.
    let _ = notify::send("STOPPING=1");
    served.with_context(|| format!("{}: cannot serve there", path.display()))
}

fn pool_options(a: &args::Serve) -> PoolOptions {
    let t = &a.tuning;
    PoolOptions {
        read_only: a.read_only,
        slots: t.slots.unwrap_or(0),
        checksums: t.checksums,
        verify: t.verify.unwrap_or_default(),
        high_watermark_percent: t.high_watermark.unwrap_or(0),
        low_watermark_percent: t.low_watermark.unwrap_or(0),
        max_age: t.max_age,
        idle: t.idle,
        control: Some(control::runtime_dir()),
        ..a.media.read_write()
    }
}

/// A volume that cannot be attached is left out; the others are served.
fn attach_all(a: &args::Serve, pool: &Pool) -> (Vec<Export>, Vec<Unserved>) {
    let mut exports = Vec::new();
    let mut unserved = Vec::new();
    for name in pool.volumes().iter().map(VolumeInfo::label) {
        let options = AttachOptions {
            bypass_limit_bytes: a.past.bypass_limit.unwrap_or(0),
            when_full: a.past.when_full.unwrap_or_default(),
            mode: a.mode(),
            ..a.attach.options(&name)
        };
        match pool.attach(&name, &options) {
            Ok(volume) => exports.push(Export { volume, read_only: a.read_only }),
            Err(cause) => {
                out::warn(format_args!("forebay: volume {name} is not served: {cause}"));
                unserved.push(Unserved { name, error: cause.to_string(), cause });
            }
        }
    }
    (exports, unserved)
}

/// The first reason, or that there is no volume.
fn nothing_to_serve(a: &args::Serve, pool: &Pool, unserved: Vec<Unserved>) -> anyhow::Error {
    let first = unserved.into_iter().next();
    anyhow!(first.map_or_else(
        || Error::NoVolume {
            pool: a.pool.clone(),
            name: "to serve".into(),
            known: pool.volumes().iter().map(VolumeInfo::label).collect(),
        },
        |u| u.cause,
    ))
}

// --- socket ----------------------------------------------------------------

fn socket_path(a: &args::Serve) -> anyhow::Result<PathBuf> {
    let path = match &a.socket {
        Some(path) => std::path::absolute(path)?,
        None => default_socket(&a.pool)?,
    };
    if path.as_os_str().len() > SOCKET_PATH_MAX {
        return Err(anyhow!(Error::Usage {
            what: format!(
                "{}: longer than the {SOCKET_PATH_MAX} bytes that a Unix socket's path can have",
                path.display()
            ),
            way_out: "give a shorter one with --socket".into(),
        }));
    }
    private_directory(path.parent().unwrap_or(Path::new("/")))?;
    Ok(path)
}

fn default_socket(pool: &Path) -> anyhow::Result<PathBuf> {
    let uuid = open::superblock(pool)?.uuid;
    Ok(control::runtime_dir().join(format!("{uuid}.nbd")))
}

/// Makes the directory, or finds it to be its owner's alone.
fn private_directory(path: &Path) -> anyhow::Result<()> {
    let name = path.display();
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(|source| Error::Io {
        path: path.into(),
        doing: "making the directory for the socket",
        source,
        way_out:
            "choose another with --socket, and for the control socket with FOREBAY_RUNTIME_DIR"
                .into(),
    })?;
    let found = std::fs::metadata(path).with_context(|| format!("{name}: cannot look at it"))?;
    let me = rustix::process::geteuid().as_raw();
    if found.uid() != me || found.mode() & 0o077 != 0 {
        return Err(anyhow!(Error::Permission {
            path: path.into(),
            doing: "making a socket in it",
            way_out: format!(
                "whoever enters it could write to the volumes: chmod 700 it, as user {me}, or choose another with --socket"
            ),
        }));
    }
    Ok(())
}

/// As in NBD's specification of URIs.
fn uri(socket: &Path, volume: &str) -> String {
    let path = socket.as_os_str().as_bytes();
    format!("nbd+unix:///{}?socket={}", escape(volume.as_bytes()), escape(path))
}

fn escape(bytes: &[u8]) -> String {
    let mut escaped = String::new();
    for &byte in bytes {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
                escaped.push(byte.into());
            }
            _ => escaped += &format!("%{byte:02X}"),
        }
    }
    escaped
}

// --- readiness ---------------------------------------------------------------

/// An empty file that is there while connections are accepted.
struct ReadyFile(PathBuf);

impl ReadyFile {
    /// An empty file is taken for one that a killed server left.  Anything else is
    /// somebody's.
    fn new(path: &Path) -> anyhow::Result<ReadyFile> {
        match std::fs::symlink_metadata(path) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(ReadyFile(path.into())),
            Ok(found) if found.is_file() && found.len() == 0 => {
                let cannot = || format!("{}: cannot remove the old ready file", path.display());
                std::fs::remove_file(path).with_context(cannot)?;
                Ok(ReadyFile(path.into()))
            }
            Ok(_) => Err(anyhow!(Error::Unsuitable {
                path: path.into(),
                what: "something other than an empty file".into(),
                way_out: "it was left as it is; choose another path for the ready file".into(),
            })),
            Err(e) => Err(anyhow!(e).context(format!("{}: cannot look at it", path.display()))),
        }
    }

    /// What appeared there meanwhile is left alone too.
    fn make(self) -> anyhow::Result<ReadyFile> {
        let made = std::fs::File::create_new(&self.0);
        made.with_context(|| format!("{}: cannot make the ready file", self.0.display()))?;
        Ok(self)
    }
}

impl Drop for ReadyFile {
    fn drop(&mut self) {
        let ours = std::fs::symlink_metadata(&self.0).is_ok_and(|m| m.is_file() && m.len() == 0);
        if ours {
            let _ = std::fs::remove_file(&self.0);
        }
    }
}

#[derive(Serialize)]
struct Unserved {
    name: String,
    error: String,
    #[serde(skip)]
    cause: Error,
}

#[derive(Serialize)]
struct ReadyMessage<'a> {
    ready: bool,
    pid: u32,
    socket: Cow<'a, str>,
    volumes: Vec<ReadyVolume<'a>>,
    unserved: &'a [Unserved],
    /// Why status, drain and set cannot ask this server.
    control_note: Option<&'a str>,
}

#[derive(Serialize)]
struct ReadyVolume<'a> {
    name: &'a str,
    uri: String,
    size_bytes: u64,
    block_size: u32,
}

fn announce(
    a: &args::Serve,
    pool: &Pool,
    socket: &PrivateSocket,
    exports: &[Export],
    unserved: &[Unserved],
) -> anyhow::Result<()> {
    let control_note = pool.status().control_note;
    if let Some(why) = &control_note {
        out::warn(format_args!(
            "forebay: status, drain, set and top cannot reach this server: {why}"
        ));
    }
    let volumes = exports.iter().map(|e| &e.volume);
    if a.json.json {
        let volumes = volumes.map(|v| ReadyVolume {
            name: v.name(),
            uri: uri(socket.path(), v.name()),
            size_bytes: v.size_bytes(),
            block_size: v.block_size(),
        });
        return out::json_line(&ReadyMessage {
            ready: true,
            pid: std::process::id(),
            socket: socket.path().to_string_lossy(),
            volumes: volumes.collect(),
            unserved,
            control_note: control_note.as_deref(),
        });
    }
    let path = socket.path().display();
    out::line(format_args!("pool {}: {}", a.pool.display(), pool.recovery()))?;
    out::line(format_args!("media: {}", media_text(pool.media())))?;
    for v in volumes {
        let size = units::bytes(v.size_bytes());
        let uri = uri(socket.path(), v.name());
        out::line(format_args!("ready: {} ({size})  '{uri}'", v.name()))?;
    }
    for v in unserved {
        out::line(format_args!("NOT served: {}: {}", v.name, v.error))?;
    }
    let Some(first) = exports.first() else {
        return Ok(());
    };
    let name = first.volume.name();
    let uri = uri(socket.path(), name);
    out::line(format_args!(
        "connect, for example:\n  \
         nbdinfo '{uri}'\n  \
         fio --name=try --ioengine=nbd --uri='{uri}' --rw=randwrite --bs=4k --iodepth=16 --size=64m\n  \
         qemu-system-x86_64 ... -drive 'file={uri},format=raw,if=virtio'\n  \
         nbd-client -unix {path} -name {name} /dev/nbd0 -C 4        (root; then /dev/nbd0 is the disk)\n\
         stop: Ctrl-C or kill {}; what is cached stays in the pool",
        std::process::id(),
    ))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;

    #[test]
    fn uris_escape_what_a_uri_cannot_hold() {
        assert_eq!(
            uri(Path::new("/no such dir/a&b"), "my disk?"),
            "nbd+unix:///my%20disk%3F?socket=/no%20such%20dir/a%26b"
        );
        assert_eq!(uri(OsStr::from_bytes(b"/a\xff").as_ref(), "v"), "nbd+unix:///v?socket=/a%FF");
    }
}
