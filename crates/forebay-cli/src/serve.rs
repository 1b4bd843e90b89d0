// SPDX-License-Identifier: MIT OR Apache-2.0
//! `forebay serve`: a pool served by [`forebay_server`] until SIGINT or SIGTERM, and
//! what is printed of it.

use std::borrow::Cow;
use std::path::Path;

use forebay::{control, AttachOptions, Error, PoolOptions, VolumeInfo};
use forebay_server::{default_socket, uri, usable_socket, ReadyFile, Server};
use serde::Serialize;

use crate::create::media_text;
use crate::interrupt::{raise_open_files, Hangup, Interrupt};
use crate::{args, open, out, units};

pub fn run(a: &args::Serve) -> anyhow::Result<u8> {
    let interrupt = Interrupt::watch()?;
    raise_open_files();
    let path = match &a.socket {
        Some(path) => usable_socket(path),
        None => usable_socket(&default_socket(open::superblock(&a.pool)?.uuid)),
    };
    let path = path.map_err(told)?;
    let ready = a.ready_file.as_deref().map(ReadyFile::new).transpose().map_err(told)?;
    let pool = open::pool(&a.pool, &pool_options(a))?;
    if let Err(error) = a.attach.check(&pool) {
        pool.close()?;
        return Err(error.into());
    }
    let server = Server::attach(pool, a.read_only, |name| attach_options(a, name));
    for u in server.unserved() {
        out::warn(format_args!("forebay: volume {} is not served: {}", u.name, u.cause));
    }
    if server.exports().is_empty() {
        let known = server.pool().volumes().iter().map(VolumeInfo::label).collect();
        let none = || Error::NoVolume { pool: a.pool.clone(), name: "to serve".into(), known };
        // The first reason, or that there is no volume.
        let first = server.close()?.into_iter().next();
        return Err(first.map_or_else(none, |u| u.cause).into());
    }
    let served = serve(a, &server, &path, ready, &interrupt);
    // Whatever came of it, what is cached is safe and the pool closed in order.
    server.close()?;
    served.map(|()| 0)
}

fn serve(
    a: &args::Serve,
    server: &Server,
    path: &Path,
    ready: Option<ReadyFile>,
    interrupt: &Interrupt,
) -> anyhow::Result<()> {
    let hangup = Hangup::watch()?;
    let listening = server.listen(path, ready).map_err(told)?;
    announce(a, server, listening.socket())?;
    let stopping = || {
        hangup.tell();
        interrupt.came()
    };
    listening.run(a.threads, &stopping).map_err(told)
}

/// With the library's own error in it, which has the exit code.
fn told(e: forebay_server::Error) -> anyhow::Error {
    match e {
        forebay_server::Error::Pool(e) => e.into(),
        forebay_server::Error::System { what, source } => anyhow::Error::from(source).context(what),
    }
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

fn attach_options(a: &args::Serve, name: &str) -> AttachOptions {
    AttachOptions {
        bypass_limit_bytes: a.past.bypass_limit.unwrap_or(0),
        when_full: a.past.when_full.unwrap_or_default(),
        mode: a.mode(),
        ..a.attach.options(name)
    }
}

#[derive(Serialize)]
struct NotServed<'a> {
    name: &'a str,
    error: String,
}

#[derive(Serialize)]
struct ReadyMessage<'a> {
    ready: bool,
    pid: u32,
    socket: Cow<'a, str>,
    volumes: Vec<ReadyVolume<'a>>,
    unserved: Vec<NotServed<'a>>,
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

fn announce(a: &args::Serve, server: &Server, socket: &Path) -> anyhow::Result<()> {
    let (pool, exports) = (server.pool(), server.exports());
    let unserved: Vec<_> = server
        .unserved()
        .iter()
        .map(|u| NotServed { name: &u.name, error: u.cause.to_string() })
        .collect();
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
            uri: uri(socket, v.name()),
            size_bytes: v.size_bytes(),
            block_size: v.block_size(),
        });
        return out::json_line(&ReadyMessage {
            ready: true,
            pid: std::process::id(),
            socket: socket.to_string_lossy(),
            volumes: volumes.collect(),
            unserved,
            control_note: control_note.as_deref(),
        });
    }
    let path = socket.display();
    out::line(format_args!("pool {}: {}", a.pool.display(), pool.recovery()))?;
    out::line(format_args!("media: {}", media_text(pool.media())))?;
    for v in volumes {
        let size = units::bytes(v.size_bytes());
        let uri = uri(socket, v.name());
        out::line(format_args!("ready: {} ({size})  '{uri}'", v.name()))?;
    }
    for v in unserved {
        out::line(format_args!("NOT served: {}: {}", v.name, v.error))?;
    }
    let Some(first) = exports.first() else {
        return Ok(());
    };
    let name = first.volume.name();
    let uri = uri(socket, name);
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
