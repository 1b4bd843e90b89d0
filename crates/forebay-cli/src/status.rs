// SPDX-License-Identifier: MIT OR Apache-2.0
//! `forebay status`: asks the process that has the pool open, else looks for
//! itself, read-only.

use std::path::Path;
use std::time::{Duration, Instant};

use forebay::{
    printable, MediumStatus, Pool, PoolStatus, Verdict, VolumeInfo, WriteDurable, ERAS_WARN_PERCENT,
};
use forebay_map_server::orders::MapStatus;
use forebay_map_server::{MapService, KIND};
use forebay_server::{control::Client, runtime_dir, ServerStatus, Service, ServiceStatus};

use serde::Deserialize;

use crate::create::media_text;
use crate::interrupt::Interrupt;
use crate::{args, log, open, out, units, volume};

pub fn run(a: &args::Status) -> anyhow::Result<u8> {
    let Some(period) = a.watch else {
        print(a, &of_pool(&a.pool)?, None)?;
        return Ok(0);
    };
    let interrupt = Interrupt::watch()?;
    let mut before: Option<(Instant, ServerStatus)> = None;
    while !interrupt.came() && !out::is_unread() {
        let now = Instant::now();
        let status = of_pool(&a.pool)?;
        let rates = before
            .as_ref()
            .filter(|(_, old)| old.pool.pid == status.pool.pid)
            .map(|(at, old)| Rates::between(&old.pool, &status.pool, now - *at));
        print(a, &status, rates.as_ref())?;
        before = Some((now, status));
        sleep_until(now + period, &interrupt);
    }
    Ok(0)
}

/// Returns early when an interrupt came.
pub fn sleep_until(end: Instant, interrupt: &Interrupt) {
    while !interrupt.came() {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        std::thread::sleep(left.min(Duration::from_millis(50)));
    }
}

/// Returns the server's answer, or the result of a read-only look.  A process that has the pool but
/// does not answer may be starting or stopping.
pub fn of_pool(path: &Path) -> anyhow::Result<ServerStatus> {
    of_pool_by(path, &|| Client::for_pool(&runtime_dir(), path))
}

/// Like `of_pool`, with a time limit for each answer of a server.
pub fn of_pool_within(path: &Path, patience: Duration) -> anyhow::Result<ServerStatus> {
    of_pool_by(path, &|| Client::for_pool_within(&runtime_dir(), path, patience))
}

/// Asks the server.  `None`: nobody serves the pool.
pub fn asked(path: &Path, patience: Duration) -> forebay_server::Result<Option<ServerStatus>> {
    let client = Client::for_pool_within(&runtime_dir(), path, patience)?;
    client.map(|mut c| c.status()).transpose()
}

type Ask<'a> = dyn Fn() -> forebay_server::Result<Option<Client>> + 'a;

fn of_pool_by(path: &Path, ask: &Ask<'_>) -> anyhow::Result<ServerStatus> {
    const PATIENCE: Duration = Duration::from_secs(2);
    let start = Instant::now();
    loop {
        match ask().and_then(|client| client.map(|mut c| c.status()).transpose()) {
            Ok(Some(status)) => return Ok(status),
            Ok(None) => tell_of_lost(path),
            // The server has just ended.
            Err(e) if e.exit_code() == 13 => {}
            // A copy can be examined while the pool is served.
            Err(e @ forebay_server::Error::OtherPool { .. }) => {
                out::warn(format_args!("forebay: note: {e}"))
            }
            Err(e) => return Err(e.into()),
        }
        match open::to_show(path) {
            Ok(pool) => {
                let mut status = ServerStatus::from(pool.status());
                status.services.extend(maps(&pool));
                pool.close()?;
                return Ok(status);
            }
            Err(forebay::Error::Busy { .. }) if start.elapsed() < PATIENCE => {
                std::thread::sleep(Duration::from_millis(100));
            }
            Err(e) => return Err(e.into()),
        }
    }
}

/// Another pool than what is at the path now may be served there still.
fn tell_of_lost(path: &Path) {
    const PATIENCE: Duration = Duration::from_secs(2);
    if let Some((mut client, trouble)) = Client::of_lost(&runtime_dir(), path, PATIENCE) {
        let pid = client.status().map(|served| served.pool.pid).unwrap_or_default();
        out::warn(format_args!(
            "forebay: note: process {pid} serves another pool that had this path: {trouble}"
        ));
    }
}

/// The state of the maps of a pool that nobody serves, as their server would report it.
fn maps(pool: &Pool) -> Option<ServiceStatus> {
    let service = match MapService::start(pool, &runtime_dir(), true, &mut |_| {}) {
        Ok(started) => started?.0,
        Err(e) => {
            return Some(ServiceStatus {
                kind: KIND.into(),
                name: pool.path().display().to_string(),
                summary: "cannot be read".into(),
                trouble: vec![format!("maps: {e}; see forebay check")],
                ..Default::default()
            })
        }
    };
    let mut status = service.status();
    let of = |maps: &serde_json::Value| Vec::<MapStatus>::deserialize(maps);
    for m in of(&status.details["maps"]).into_iter().flatten().filter(|m| m.frames_used > 0) {
        let (map, files, at) = (m.map, m.files, out::quoted(pool.path()));
        status.trouble.push(format!(
            "map {map}: {files} files lack pages that a crash left in it: forebay map list {at} \
             names them, forebay map recover {at} writes the pages back"
        ));
    }
    Some(status)
}

/// Rates per second between two looks.
struct Rates {
    writes: f64,
    written: u64,
    read: u64,
    origin_writes: f64,
    origin_written: u64,
}

impl Rates {
    fn between(old: &PoolStatus, new: &PoolStatus, time: Duration) -> Rates {
        let rate = |f: &dyn Fn(&PoolStatus) -> u64| {
            f(new).saturating_sub(f(old)) as f64 / time.as_secs_f64()
        };
        let origin = |f: fn(&forebay::VolumeInfo) -> u64| {
            move |s: &PoolStatus| s.volumes.iter().map(f).sum::<u64>()
        };
        Rates {
            writes: rate(&|s| s.counters.writes),
            written: rate(&|s| s.counters.written_bytes) as u64,
            read: rate(&|s| s.counters.read_hit_bytes + s.counters.read_miss_bytes) as u64,
            origin_writes: rate(&origin(|v| v.origin_writes)),
            origin_written: rate(&origin(|v| v.origin_written_bytes)) as u64,
        }
    }
}

fn print(a: &args::Status, s: &ServerStatus, rates: Option<&Rates>) -> anyhow::Result<()> {
    match (a.json.json, a.watch) {
        (true, None) => return out::json(s),
        (true, Some(_)) => return out::json_line(s),
        (false, None) => {}
        (false, Some(_)) if is_terminal() => out::clear()?,
        (false, Some(_)) => out::line("")?,
    }
    out::line(text(s, rates))
}

/// Advises to let the eras of a static volume begin anew, once many are used.
pub fn eras_text(percent: u32) -> Option<String> {
    (percent >= ERAS_WARN_PERCENT).then(|| {
        format!("{percent} % of its eras are used; at 100 % it takes no write. Drain it, detach it and attach it: an empty volume starts over")
    })
}

fn is_terminal() -> bool {
    std::io::IsTerminal::is_terminal(&std::io::stdout())
}

/// The disk of a pool that is written in groups.
fn medium_lines(m: &MediumStatus) -> Vec<String> {
    let errors = match m.write_errors + m.flush_errors {
        0 => String::new(),
        _ => format!(
            ", ERRORS: {} writes, {} flushes, {} groups written again",
            m.write_errors, m.flush_errors, m.again
        ),
    };
    let takes = match m.durable_write_seconds {
        Some(seconds) => format!(" in {:.0} us at best", seconds * 1e6),
        None => String::new(),
    };
    let because = match m.durable_by_because.as_str() {
        "" => String::new(),
        because => format!(" ({})", printable(because)),
    };
    let mut lines = vec![format!(
        "disk      durable by {}{takes}{because}, blocks of {}; {} entries in {} groups; {} writes ({}), {} flushes{errors}",
        m.durable_by,
        units::bytes(m.unit_bytes.into()),
        units::count(m.records),
        units::count(m.groups),
        units::count(m.writes),
        units::bytes(m.written_bytes),
        units::count(m.flushes),
    )];
    lines.extend(m.hangs.iter().map(|hangs| format!("HANGS     {}", printable(hangs))));
    if let Some(trouble) = &m.trouble {
        let state = if m.failed { "FAILED, nothing more becomes durable: " } else { "" };
        lines.push(format!("trouble   {state}{}", printable(trouble)));
    }
    lines.extend(m.mended.iter().map(|mended| format!("mended    {}", printable(mended))));
    lines
}

fn text(served: &ServerStatus, rates: Option<&Rates>) -> String {
    let s = &served.pool;
    let mut lines = vec![
        format!("pool      {} ({})", out::quoted(&s.media.path), s.uuid),
        format!("media     {}", media_text(&s.media)),
        format!("opened    {}", s.recovery),
        format!(
            "space     {} of {} cached, {} of {} chunks used ({:.0} %), destage from {} % down to {} %",
            units::bytes(s.cached_bytes),
            units::bytes(s.capacity_bytes),
            s.chunks_used,
            s.chunks,
            s.used_percent,
            s.options.high_watermark_percent,
            s.options.low_watermark_percent,
        ),
        match s.static_bytes {
            0 => String::new(),
            n => format!(
                "static    {} cached of {} given to static volumes, of {}",
                units::bytes(s.static_cached_bytes),
                units::bytes(s.static_given_bytes),
                units::bytes(n),
            ),
        },
        match s.map_bytes {
            0 => String::new(),
            n => format!("maps      {} of {}", s.maps.len(), units::bytes(n)),
        },
        format!(
            "memory    {} ({:.1} bytes a page) + {} for destage",
            units::bytes(s.memory_bytes),
            s.memory_bytes as f64 / (s.pages + s.static_bytes / 4096).max(1) as f64,
            units::bytes(s.destage_memory_bytes),
        ),
        format!(
            "requests  {} writes ({}), {} reads ({} from the pool), waits: block {} slot {} space {}",
            units::count(s.counters.writes),
            units::bytes(s.counters.written_bytes),
            units::count(s.counters.reads),
            units::bytes(s.counters.read_hit_bytes),
            s.counters.waits_block,
            s.counters.waits_slot,
            s.counters.waits_space,
        ),
    ];
    lines.extend(s.file_trouble.iter().map(|found| {
        let state = if found.what.is_loss() { "LOST" } else { "MOVED" };
        format!("{state:9} {}", printable(&found.to_string()))
    }));
    lines.extend(s.medium.iter().flat_map(medium_lines));
    lines.retain(|line| !line.is_empty());
    lines.extend(s.held_by_detached.as_ref().map(|held| format!("full      {held}")));
    if let Some(r) = rates {
        lines.push(format!(
            "now       {} writes/s ({}/s), reads {}/s, origins {} writes/s ({}/s)",
            units::count(r.writes as u64),
            units::bytes(r.written),
            units::bytes(r.read),
            units::count(r.origin_writes as u64),
            units::bytes(r.origin_written),
        ));
    }
    match (&served.control_socket, &served.control_note) {
        (Some(_), _) => lines.push(format!("served    by process {}", s.pid)),
        (None, Some(note)) => lines.push(format!("served    without a control socket: {note}")),
        (None, None) => lines.push("served    no".into()),
    }
    for service in &served.services {
        let name = printable(&service.name);
        let summary = printable(&service.summary);
        lines.push(format!("{:9} {summary} at {name}", service.kind));
    }
    lines.push(String::new());
    lines.push(match s.volumes.is_empty() {
        true => "no volumes".into(),
        false => volume::table(&s.volumes).to_string(),
    });
    for v in &s.volumes {
        let when = match v.durable {
            Some(WriteDurable::Always) => "when it is acknowledged",
            Some(_) => "after the client's next flush, or with FUA",
            None => continue,
        };
        let because = v.durable_because.iter().map(|because| format!(" ({})", printable(because)));
        lines.push(format!(
            "volume {}: a write is durable {when}{}",
            printable(&v.label()),
            because.collect::<String>()
        ));
    }
    for (v, origin_use) in s.volumes.iter().filter_map(|v| Some((v, v.origin_use?))) {
        lines.push(format!("volume {}: {origin_use}", printable(&v.label())));
    }
    if !s.logs.is_empty() {
        lines.push(String::new());
        lines.push(log::table(&s.logs).to_string());
    }
    for v in s.volumes.iter().filter(|v| v.static_bytes > 0) {
        let (label, of) = (v.label(), volume::static_text(v));
        let label = printable(&label);
        lines.push(format!("volume {label}: static, {of}; {} conflicts", v.conflicts));
        lines.extend(eras_text(v.eras_percent).map(|text| format!("volume {label}: {text}")));
        if v.uncounted && !v.damaged {
            lines.push(format!(
                "volume {label}: it was not closed, and may hold more than is counted by now"
            ));
        }
    }
    let wrong = |v: &&VolumeInfo| {
        const TOLD: [Verdict; 3] = [Verdict::OriginChanged, Verdict::OriginFails, Verdict::Rescued];
        v.verdict.is_damage() || TOLD.contains(&v.verdict)
    };
    for c in s.volumes.iter().filter(wrong).map(VolumeInfo::completeness) {
        lines.push(format!("volume {}: {c}", c.volume));
    }
    for service in &served.services {
        lines.extend(service.trouble.iter().map(|text| printable(text).into_owned()));
    }
    for b in &s.damaged_blocks {
        lines.push(format!("damaged: {b}"));
    }
    lines.join("\n")
}
