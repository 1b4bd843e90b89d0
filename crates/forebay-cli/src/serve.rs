// SPDX-License-Identifier: MIT OR Apache-2.0
//! `forebay serve`: a pool served by [`forebay_server`] until SIGINT or SIGTERM, and
//! what is printed of it.

use std::borrow::Cow;
use std::ops::ControlFlow;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use forebay::{AttachOptions, Error, FileOrigin, VolumeInfo};
use forebay_map_server::service::{told, MapService};
use forebay_mount::service::{MountRequest, Mounts};
use forebay_server::{default_socket, runtime_dir, uri, usable_socket, Exports, ReadyFile, Server};
use serde::Serialize;

use crate::create::media_text;
use crate::interrupt::{Hangup, Interrupt};
use crate::mount::Bar;
use crate::{args, open, out, units};

pub fn run(a: &args::Serve) -> anyhow::Result<u8> {
    out::as_a_service();
    // The ready file of a dead server is removed first: even if this start is refused later, nobody
    // takes that server for ready.
    let ready = a.ready_file.as_deref().map(ReadyFile::new).transpose()?;
    let interrupt = Interrupt::watch()?;
    // A connection takes two descriptors.
    forebay::raise_open_files();
    let path = match &a.socket {
        Some(path) => usable_socket(path),
        None => usable_socket(&default_socket(open::superblock(&a.pool)?.uuid)),
    };
    let path = path?;
    let mounts = mounts(a)?;
    if mounts.is_empty() {
        refuse_origins_in_use(a)?;
    }
    let pool = open::pool(&a.pool, &a.tuning.options(&a.media, a.read_only))?;
    if let Err(error) = a.attach.check(&pool) {
        pool.close()?;
        return Err(error.into());
    }
    let server = Server::new(pool, &runtime_dir(), vec![Box::new(Mounts::default())]);
    let served = serve(a, &server, &path, &mounts, ready, &interrupt);
    // Whatever the result, cached data is safe, and the pool is closed in order.
    out::served(served, server.close())
}

/// Writes nothing to the pool if other processes have all origins.  Such a
/// process may have the pool, too, by a name of the device that nobody knows of.
fn refuse_origins_in_use(a: &args::Serve) -> anyhow::Result<()> {
    let is_device = || std::fs::metadata(&a.pool).is_ok_and(|st| st.file_type().is_block_device());
    if !is_device() {
        return Ok(());
    }
    // Whatever keeps it from being read is told by the open.
    let Ok(pool) = open::to_show(&a.pool) else { return Ok(()) };
    let (volumes, has_maps) = (pool.volumes(), !pool.maps().is_empty());
    pool.close()?;
    let mut in_use = None;
    for v in volumes {
        let moved = a.attach.options(&v.name).origin;
        let Some(place) = moved.or(v.origin_path.map(PathBuf::from)) else { return Ok(()) };
        match FileOrigin::open(&place, a.read_only) {
            Err(error @ Error::Busy { .. }) => in_use = in_use.or(Some(error)),
            _ => return Ok(()),
        }
    }
    match in_use {
        Some(error) if !has_maps => Err(error.into()),
        _ => Ok(()),
    }
}

fn serve(
    a: &args::Serve,
    server: &Server,
    path: &Path,
    mounts: &[MountRequest],
    ready: Option<ReadyFile>,
    interrupt: &Interrupt,
) -> anyhow::Result<()> {
    let hangup = Hangup::watch()?;
    let maps = serve_maps(a, server)?;
    for mount in mounts {
        let going_on = || match interrupt.came() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        };
        let mounted = Mounts::default().mount(server.pool(), mount, &mut |_| going_on())?;
        server.add(mounted)?;
    }
    let exports = Exports::attach(server.pool(), a.read_only, |name| attach_options(a, name));
    for u in exports.unserved() {
        out::warn(format_args!("forebay: volume {} is not served: {}", u.name, u.cause));
    }
    if exports.exports().is_empty() && mounts.is_empty() && !maps {
        let known = server.pool().volumes().iter().map(VolumeInfo::label).collect();
        let none = || Error::NoVolume { pool: a.pool.clone(), name: "to serve".into(), known };
        // The first reason, or that there is no volume.
        let first = exports.detach()?.into_iter().next();
        return Err(first.map_or_else(none, |u| u.cause).into());
    }
    let offer = Offer::new(&exports, mounts, path);
    // A pool without volumes is served for its mounts and maps alone.
    match exports.exports().is_empty() && exports.unserved().is_empty() {
        true => drop(exports.detach()?),
        false => {
            let later = args::Serve { attach: a.attach.later(), ..a.clone() };
            let exports = exports.retrying(move |name| attach_options(&later, name));
            server.add(exports.listen(path, a.threads)?)?;
        }
    }
    let ready = server.ready(ready)?;
    announce(a, server, &offer)?;
    ready.run(&|| {
        hangup.tell();
        interrupt.came()
    })?;
    Ok(())
}

/// Recovers what a crash has left in the maps, and serves them.  Pages that stay are reported, and
/// do not keep anything from being served.  False: no maps are served.
fn serve_maps(a: &args::Serve, server: &Server) -> anyhow::Result<bool> {
    let pool = out::quoted(&a.pool);
    let mut bar = Bar::default();
    let started =
        MapService::start(server.pool(), &runtime_dir(), a.read_only, &mut |work| bar.show(work));
    bar.end();
    let (service, recovered) = match started {
        Ok(Some(started)) => started,
        Ok(None) => return Ok(false),
        Err(e) => {
            out::warn(format_args!(
                "forebay: the maps of pool {pool} are not served: {e}; see forebay check"
            ));
            return Ok(false);
        }
    };
    for m in recovered.iter().flat_map(|r| &r.maps) {
        if m.damaged {
            out::warn(format_args!("forebay: map {} is damaged: see forebay check", m.map));
        }
        for stays in &m.stays {
            out::warn(format_args!("forebay: {}", told(&pool.to_string(), &m.map, stays)));
        }
    }
    server.add(service)?;
    Ok(true)
}

fn attach_options(a: &args::Serve, name: &str) -> AttachOptions {
    AttachOptions {
        bypass_limit_bytes: a.past.bypass_limit.unwrap_or(0),
        when_full: a.past.when_full.unwrap_or_default(),
        mode: a.mode(),
        durable: a.past.durable.unwrap_or_default(),
        ..a.attach.options(name)
    }
}

/// The mounts of the command line; each has its own log.
fn mounts(a: &args::Serve) -> anyhow::Result<Vec<MountRequest>> {
    let each = a.mount.iter().enumerate().map(|(i, mount)| {
        let (tree, mountpoint) = match mount.split_once('=') {
            Some((tree, mountpoint)) => (tree, Some(Path::new(mountpoint))),
            None => (mount.as_str(), None),
        };
        let log = match i {
            0 => "mount".into(),
            i => format!("mount-{}", i + 1),
        };
        let how = args::MountHow { log, read_only: a.read_only, ..Default::default() };
        crate::mount::request(Path::new(tree), mountpoint, &how)
    });
    each.collect()
}

/// The output about exports and mounts.
struct Offer {
    mounts: Vec<PathBuf>,
    socket: PathBuf,
    volumes: Vec<ReadyVolume>,
    unserved: Vec<NotServed>,
}

#[derive(Serialize)]
struct ReadyVolume {
    name: String,
    uri: String,
    size_bytes: u64,
    block_size: u32,
}

#[derive(Serialize)]
struct NotServed {
    name: String,
    error: String,
}

impl Offer {
    fn new(exports: &Exports, mounts: &[MountRequest], socket: &Path) -> Offer {
        let volumes = exports.exports().iter().map(|e| &e.volume);
        let volumes = volumes.map(|v| ReadyVolume {
            name: v.name().into(),
            uri: uri(socket, v.name()),
            size_bytes: v.size_bytes(),
            block_size: v.block_size(),
        });
        let unserved = exports.unserved().iter();
        let unserved =
            unserved.map(|u| NotServed { name: u.name.clone(), error: u.cause.to_string() });
        Offer {
            mounts: mounts.iter().map(|m| m.mountpoint.clone()).collect(),
            socket: socket.into(),
            volumes: volumes.collect(),
            unserved: unserved.collect(),
        }
    }
}

#[derive(Serialize)]
struct ReadyMessage<'a> {
    ready: bool,
    pid: u32,
    socket: Cow<'a, str>,
    volumes: &'a [ReadyVolume],
    unserved: &'a [NotServed],
    mounts: &'a [PathBuf],
    /// The reason why status, drain and set cannot ask this server.
    control_note: Option<&'a str>,
}

fn announce(a: &args::Serve, server: &Server, offer: &Offer) -> anyhow::Result<()> {
    let control_note = server.status().control_note;
    if let Some(why) = &control_note {
        out::warn(format_args!(
            "forebay: status, drain, set and top cannot reach this server: {why}"
        ));
    }
    if a.json.json {
        return out::json_line(&ReadyMessage {
            ready: true,
            pid: std::process::id(),
            socket: offer.socket.to_string_lossy(),
            volumes: &offer.volumes,
            unserved: &offer.unserved,
            mounts: &offer.mounts,
            control_note: control_note.as_deref(),
        });
    }
    let (path, pool) = (out::quoted(&offer.socket), server.pool());
    out::line(format_args!("pool {}: {}", out::quoted(&a.pool), pool.recovery()))?;
    out::line(format_args!("media: {}", media_text(pool.media())))?;
    for v in &offer.volumes {
        let size = units::bytes(v.size_bytes);
        out::line(format_args!("ready: {} ({size})  '{}'", v.name, v.uri))?;
    }
    for mountpoint in &offer.mounts {
        out::line(format_args!("mounted: {}", out::quoted(mountpoint)))?;
    }
    for v in &offer.unserved {
        out::line(format_args!("NOT served: {}: {}", v.name, v.error))?;
    }
    let Some(ReadyVolume { name, uri, .. }) = offer.volumes.first() else {
        return Ok(());
    };
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
