// SPDX-License-Identifier: MIT OR Apache-2.0
//! `forebay map add|list|status|recover|salvage|drop|pin|remove`: by the server of the pool, if
//! it has one.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use forebay::{printable, Pool, PoolOptions};
use forebay_map::PAGE;
use forebay_map_server::orders::{
    Kept, MapFiles, MapStatus, OfFile, Recovered, RecoveredMap, Saved,
};
use forebay_map_server::{Maps, Order, KIND};
use forebay_server::{control::Client, runtime_dir, ServerStatus};
use serde::de::DeserializeOwned;
use serde::Serialize;

use crate::args::{self, map as a};
use crate::mount::Bar;
use crate::out::Table;
use crate::{map_wait, open, out, removal, units};

pub fn run(a: &args::Map) -> anyhow::Result<u8> {
    match a {
        args::Map::Add(a) => add(a),
        args::Map::List(a) => list(a),
        args::Map::Status(a) => status(a),
        args::Map::Recover(a) => recover(a),
        args::Map::Salvage(a) => salvage_to(a),
        args::Map::Drop(a) => drop_files(a),
        args::Map::Pin(a) => pin(a),
        args::Map::Remove(a) => remove(a),
    }
}

fn add(a: &a::MapAdd) -> anyhow::Result<u8> {
    open::must_hold(&a.pool, "maps")?;
    let pool = open::pool(&a.pool, &a.media.read_write())?;
    let room = pool.status().map_bytes;
    if room == 0 {
        pool.close()?;
        let path = out::quoted(&a.pool);
        let what = format!("pool {path}: it was made without room for maps");
        let way_out = "a pool gets it when it is made: forebay create --maps SIZE".into();
        return Err(forebay::Error::Usage { what, way_out }.into());
    }
    let made = pool.map_add(&a.name, a.size.unwrap_or(room));
    // The pool is closed in order either way, so that it is clean afterwards.
    pool.close()?;
    let made = made?;
    match a.json.json {
        true => out::json(&made)?,
        false => out::line(format_args!(
            "map {}: {} frames of {}, up to {} files at a time",
            made.name,
            made.frames,
            units::bytes(made.frame_bytes.into()),
            made.files_most
        ))?,
    }
    Ok(0)
}

/// Gets the answer to an order from the process that serves the pool, or from this one.
fn answer<T: DeserializeOwned>(
    path: &Path,
    options: &PoolOptions,
    order: &Order,
) -> anyhow::Result<T> {
    let mut bar = Bar::default();
    let answer = match Client::for_pool(&runtime_dir(), path)? {
        Some(mut client) => {
            let status = client.status()?;
            if !status.services.iter().any(|s| s.kind == KIND) {
                return not_served(path, &status, order);
            }
            let answer = client.call(KIND, serde_json::to_value(order)?, &mut |work| {
                bar.show(work);
                ControlFlow::Continue(())
            });
            answer.map_err(anyhow::Error::from)
        }
        None => {
            let pool = open::pool(path, options)?;
            let answer = Maps::attach(&pool)
                .and_then(|maps| maps.carry_out(order, &mut |work| bar.show(work)));
            // The pool is closed in order either way, so that it is clean afterwards.
            pool.close()?;
            answer.map_err(anyhow::Error::from)
        }
    };
    bar.end();
    Ok(serde_json::from_value(answer?)?)
}

/// Refuses an order if the pool has maps that its server does not serve.  Otherwise answers for a
/// pool without maps.
fn not_served<T: DeserializeOwned>(
    path: &Path,
    status: &ServerStatus,
    order: &Order,
) -> anyhow::Result<T> {
    if !status.pool.maps.is_empty() {
        let (pool, pid) = (path.display(), status.pool.pid);
        let what = format!("pool {pool}: process {pid} has it, and does not serve its maps");
        let way_out = "see what it said when it began; or end it, and use forebay serve";
        return Err(forebay_server::Error::service(4, what, way_out).into());
    }
    Ok(serde_json::from_value(Maps::none(path).carry_out(order, &mut |_| {})?)?)
}

fn reading() -> PoolOptions {
    PoolOptions { read_only: true, ..Default::default() }
}

fn list(a: &a::MapPool) -> anyhow::Result<u8> {
    let maps: Vec<MapFiles> = answer(&a.pool, &reading(), &Order::List)?;
    if told(&a.json, &a.pool, &maps)? {
        return Ok(0);
    }
    let mut table = Table::new(&["map", "size", "frames", "files", "dirty", "<state"]);
    for MapFiles { map, files } in &maps {
        let dirty: usize = files.iter().map(|f| f.dirty_pages).sum();
        table.row(vec![
            map.name.clone(),
            units::bytes(map.share_bytes),
            map.frames.to_string(),
            format!(
                "{} of {}",
                files.iter().filter(|f| f.number.is_some()).count(),
                map.files_most
            ),
            units::bytes((dirty * PAGE) as u64),
            match (map.damaged, files.iter().any(|f| f.mapped_by.is_none()), files.is_empty()) {
                (true, ..) => "DAMAGED".into(),
                (false, true, _) => "to be recovered".into(),
                (false, false, true) => "nothing to recover".into(),
                (false, false, false) => "in use".into(),
            },
        ]);
    }
    out::line(table)?;
    let mut table = Table::new(&["file", "number", "dirty", "unknown", "<map", "<state"]);
    let mut any = false;
    for MapFiles { map, files } in &maps {
        for f in files {
            any = true;
            table.row(vec![
                f.file.clone(),
                f.number.map_or("-".into(), |id| id.to_string()),
                f.dirty_pages.to_string(),
                f.unknown_pages.to_string(),
                map.name.clone(),
                match f.size_bytes {
                    Some(_) if f.mapped_by.is_some() => mapped_by(f).unwrap_or_default(),
                    None => "its record is DAMAGED".into(),
                    Some(size) if f.truncation_under_way => {
                        format!("to be truncated to {}", units::bytes(size))
                    }
                    Some(_) => String::new(),
                },
            ]);
        }
    }
    if any {
        out::line(format_args!("\n{table}"))?;
    }
    Ok(0)
}

/// Describes the process that has the file.  After its end it counts as having the file until the
/// pages are written back.
fn mapped_by(f: &OfFile) -> Option<String> {
    let pid = f.mapped_by?;
    let kept = match f.pinned {
        0 => String::new(),
        n => format!("{} kept", units::bytes((n * forebay_map::SEGMENT) as u64)),
    };
    match (&f.shared_by[..], f.pinned) {
        ([], 0) => {}
        ([], _) => return Some(kept),
        (all, n) => {
            let all: Vec<String> = all.iter().map(u32::to_string).collect();
            let kept = if n > 0 { format!("; {kept}") } else { kept };
            return Some(format!("shared by processes {}{kept}", all.join(", ")));
        }
    }
    Some(match f.ending {
        false => format!("mapped by process {pid}"),
        true => "being written back: its process has ended".into(),
    })
}

/// Prints the maps as JSON, or says that there are none.  False: the caller has to print a table.
fn told<T: Serialize>(json: &args::Json, pool: &Path, maps: &[T]) -> anyhow::Result<bool> {
    if json.json {
        out::json(&maps)?;
    } else if maps.is_empty() {
        let pool = out::quoted(pool);
        out::line(format_args!("no maps; make one: forebay map add {pool} NAME"))?;
    }
    Ok(json.json || maps.is_empty())
}

/// A map, and the processes that use it.
#[derive(Serialize)]
struct MapUse {
    #[serde(flatten)]
    status: MapStatus,
    held_by: Vec<Holder>,
}

/// A process that has files mapped onto a map.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
struct Holder {
    process: u32,
    /// None: the process has ended, and its files are being written back.
    user: Option<u32>,
    command: Option<String>,
    files: usize,
    frames: usize,
    dirty_pages: usize,
}

impl Holder {
    /// Reads the facts about a process from /proc.
    fn of_process(process: u32) -> Holder {
        let read = |name| forebay::procfs::text(format!("/proc/{process}/{name}")).ok();
        let uid = |status: String| {
            let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
            line.split_whitespace().next()?.parse().ok()
        };
        let command = read("comm").map(|name| name.trim_end().to_owned());
        Holder { process, user: read("status").and_then(uid), command, ..Holder::default() }
    }
}

/// Sums up the files of each process.
fn holders(files: &[OfFile]) -> Vec<Holder> {
    let mut all: Vec<Holder> = Vec::new();
    for f in files {
        let Some(by) = f.mapped_by else { continue };
        // Shared frames count for each process that shares them.
        let sharing = f.shared_by.iter().copied().chain(f.shared_by.is_empty().then_some(by));
        for pid in sharing {
            let at = all.iter().position(|h| h.process == pid).unwrap_or_else(|| {
                all.push(Holder::of_process(pid));
                all.len() - 1
            });
            let h = &mut all[at];
            h.files += 1;
            h.frames += f.frames;
            h.dirty_pages += f.dirty_pages;
        }
    }
    all.sort_by_key(|h| h.process);
    all
}

fn status(a: &a::MapPool) -> anyhow::Result<u8> {
    let maps: Vec<MapStatus> = answer(&a.pool, &reading(), &Order::Status)?;
    let files: Vec<MapFiles> = match maps.iter().any(|m| !m.processes.is_empty()) {
        true => answer(&a.pool, &reading(), &Order::List)?,
        false => Vec::new(),
    };
    let of = |m: &MapStatus| files.iter().find(|f| f.map.name == m.map);
    let held = |m: &MapStatus| of(m).map(|f| holders(&f.files)).unwrap_or_default();
    let maps = maps.into_iter().map(|m| MapUse { held_by: held(&m), status: m });
    let maps: Vec<MapUse> = maps.collect();
    if told(&a.json, &a.pool, &maps)? {
        return Ok(0);
    }
    let mut table =
        Table::new(&["map", "frames", "used", "locked", "dirty", "unknown", "files", "<state"]);
    for MapUse { status: m, .. } in &maps {
        table.row(vec![
            m.map.clone(),
            m.frames.to_string(),
            m.frames_used.to_string(),
            m.frames_locked.to_string(),
            units::bytes((m.dirty_pages * PAGE) as u64),
            m.unknown_pages.to_string(),
            m.files.to_string(),
            if m.damaged { "DAMAGED".into() } else { String::new() },
        ]);
    }
    out::line(table)?;
    let mut table =
        Table::new(&["process", "user", "files", "frames", "dirty", "<map", "<command"]);
    for (m, h) in maps.iter().flat_map(|m| m.held_by.iter().map(|h| (m.status.map.clone(), h))) {
        table.row(vec![
            h.process.to_string(),
            h.user.map_or("-".into(), |user| user.to_string()),
            h.files.to_string(),
            h.frames.to_string(),
            units::bytes((h.dirty_pages * PAGE) as u64),
            m,
            h.command.as_deref().map_or("has ended".into(), |c| printable(c).into_owned()),
        ]);
    }
    if maps.iter().any(|m| !m.held_by.is_empty()) {
        out::line(format_args!("\n{table}"))?;
    }
    Ok(0)
}

/// The named files that processes have open.
fn not_touched(a: &a::MapRecover) -> anyhow::Result<Vec<OfFile>> {
    if a.files.is_empty() {
        return Ok(Vec::new());
    }
    let maps: Vec<MapFiles> = answer(&a.pool, &reading(), &Order::List)?;
    let named = |f: &OfFile| map_wait::is_named(f, &a.files);
    let files = maps.into_iter().flat_map(|m| m.files);
    Ok(files.filter(|f| f.mapped_by.is_some() && named(f)).collect())
}

fn recover(a: &a::MapRecover) -> anyhow::Result<u8> {
    let options = PoolOptions { read_only: a.dry_run, ..a.media.read_write() };
    let recover = |files: &[PathBuf]| -> anyhow::Result<Recovered> {
        let (files, dry_run, accept) = (files.to_vec(), a.dry_run, a.accept);
        answer(&a.pool, &options, &Order::Recover { files, dry_run, accept })
    };
    let done = match a.dry_run {
        true => recover(&a.files)?,
        false => map_wait::recovered(&a.files, &mut |files| recover(files), &mut || {
            answer(&a.pool, &reading(), &Order::List)
        })?,
    };
    for m in done.maps.iter().filter(|m| m.damaged) {
        out::warn(format_args!("forebay: map {} is damaged: see forebay check", m.map));
    }
    if done.maps.is_empty() && !a.json.json {
        return told(&a.json, &a.pool, &done.maps).map(|_| 0);
    }
    // The completed work is reported whether these can be listed or not.
    for f in not_touched(a).unwrap_or_default() {
        let by = mapped_by(&f).unwrap_or_default();
        out::warn(format_args!("forebay: {}: is not touched: {by}", f.file));
    }
    if a.json.json {
        out::json(&done)?;
    } else {
        for m in done.maps.iter().filter(|m| !m.damaged) {
            let verb = if a.dry_run { "would write back" } else { "wrote back" };
            out::line(format_args!(
                "map {}: {verb} {}; {} files have everything",
                m.map,
                units::bytes((m.pages * PAGE) as u64),
                m.files
            ))?;
            for s in &m.stays {
                out::line(format_args!("{}: {} pages stay: {}", s.file, s.pages, s.why))?;
            }
        }
    }
    let is_refused = |m: &RecoveredMap| m.damaged || m.stays.iter().any(|s| s.mapped_by.is_none());
    let code = match (done.complete, done.maps.iter().any(is_refused)) {
        (true, _) => 0,
        (false, true) => 11,
        // Nothing is wrong with these files: their processes or the server write them back.
        (false, false) => 14,
    };
    if code == 11 {
        let pool = out::quoted(&a.pool);
        out::warn(format_args!(
            "forebay: pages of some files stay in the pool: put the files back and try again; or \
             copy the pages elsewhere (forebay map salvage {pool} --to DIR), and give them up \
             (forebay map drop {pool} FILE --discard)"
        ));
    }
    Ok(code)
}

fn salvage_to(a: &a::MapSalvage) -> anyhow::Result<u8> {
    // The process that has the pool may have another current directory.
    let whole = std::path::absolute(&a.to)?;
    let order = Order::Salvage { files: a.files.clone(), to: whole.clone() };
    let mut saved: Vec<Saved> = answer(&a.pool, &reading(), &order)?;
    for path in saved.iter_mut().flat_map(|s| [&mut s.data, &mut s.list]) {
        if let Ok(within) = path.strip_prefix(&whole) {
            *path = a.to.join(within);
        }
    }
    if a.json.json {
        out::json(&saved)?;
    } else if saved.is_empty() {
        out::line("the pool has nothing of any file")?;
    }
    for s in saved.iter().filter(|_| !a.json.json) {
        out::line(format_args!(
            "{}: {} pages, {} of which it is not known whether the file lacks them, {} lost: {}",
            s.file,
            s.pages,
            s.unknown_pages,
            s.lost_pages,
            out::quoted(&s.data)
        ))?;
    }
    Ok(if saved.iter().any(|s| s.lost_pages > 0) { 11 } else { 0 })
}

fn drop_files(a: &a::MapDrop) -> anyhow::Result<u8> {
    let order = Order::Drop { files: a.files.clone() };
    let dropped: Vec<OfFile> = answer(&a.pool, &a.media.read_write(), &order)?;
    if a.json.json {
        out::json(&dropped)?;
        return Ok(0);
    }
    for f in &dropped {
        let pages = f.dirty_pages + f.unknown_pages;
        out::line(format_args!("{}: {pages} pages given up", f.file))?;
    }
    Ok(0)
}

fn pin(a: &a::MapPin) -> anyhow::Result<u8> {
    // The process that has the pool may have another current directory.
    let whole = |file: &PathBuf| std::path::absolute(file);
    let files = a.files.iter().map(whole).collect::<std::io::Result<Vec<PathBuf>>>()?;
    let range = (!a.off).then(|| (a.from, a.to.unwrap_or(u64::MAX)));
    if range.is_some_and(|(from, to)| from >= to) {
        let what =
            format!("--from {} --to {}: nothing is between", a.from, range.map_or(0, |r| r.1));
        let way_out = "name a range that begins before it ends".into();
        return Err(forebay::Error::Usage { what, way_out }.into());
    }
    let order = Order::Pin { files, map: a.map.clone(), range };
    let kept: Vec<Kept> = answer(&a.pool, &reading(), &order)?;
    if a.json.json {
        out::json(&kept)?;
        return Ok(0);
    }
    for k in &kept {
        let bytes = units::bytes((k.segments * forebay_map::SEGMENT) as u64);
        out::line(format_args!("{}: {bytes} of memory are kept for it", out::quoted(&k.file)))?;
    }
    Ok(0)
}

fn remove(a: &a::MapRemove) -> anyhow::Result<u8> {
    let pool = open::pool(&a.pool, &a.media.read_write())?;
    removal::run(pool, "map", Pool::map_remove, &a.name, a.discard, &a.json)
}
