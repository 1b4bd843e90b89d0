// SPDX-License-Identifier: MIT OR Apache-2.0
//! `forebay map add|list|status|recover|salvage|drop|remove`: by the server of the pool, if
//! it has one.

use std::ops::ControlFlow;
use std::path::Path;

use forebay::{Pool, PoolOptions};
use forebay_map::PAGE;
use forebay_map_server::orders::{MapFiles, MapStatus, OfFile, Recovered, Saved};
use forebay_map_server::{Maps, Order, KIND};
use forebay_server::{control::Client, runtime_dir, ServerStatus};
use serde::de::DeserializeOwned;

use crate::args::{self, map as a};
use crate::mount::Bar;
use crate::out::Table;
use crate::{open, out, removal, units};

pub fn run(a: &args::Map) -> anyhow::Result<u8> {
    match a {
        args::Map::Add(a) => add(a),
        args::Map::List(a) => list(a),
        args::Map::Status(a) => status(a),
        args::Map::Recover(a) => recover(a),
        args::Map::Salvage(a) => salvage_to(a),
        args::Map::Drop(a) => drop_files(a),
        args::Map::Remove(a) => remove(a),
    }
}

fn add(a: &a::MapAdd) -> anyhow::Result<u8> {
    let pool = open::pool(&a.pool, &a.media.read_write())?;
    let made = match a.size {
        Some(size) => pool.map_add(&a.name, size),
        None => pool.map_add(&a.name, pool.status().map_bytes),
    };
    // Closed in order either way, so that the pool is clean afterwards.
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

/// The answer to an order, by the process that serves the pool, else by this one.
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
            // Closed in order either way, so that the pool is clean afterwards.
            pool.close()?;
            answer.map_err(anyhow::Error::from)
        }
    };
    bar.end();
    Ok(serde_json::from_value(answer?)?)
}

/// A server has no maps where the pool has none; else it was not to have them, or could not.
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
    if told(a, &maps)? {
        return Ok(0);
    }
    let mut table = Table::new(&["map", "size", "frames", "files", "dirty", "<state"]);
    for MapFiles { map, files } in &maps {
        let dirty: usize = files.iter().map(|f| f.dirty_pages).sum();
        table.row(vec![
            map.name.clone(),
            units::bytes(map.share_bytes),
            map.frames.to_string(),
            files.len().to_string(),
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
                    Some(_) if f.mapped_by.is_some() => {
                        format!("mapped by process {}", f.mapped_by.unwrap_or_default())
                    }
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

/// As JSON, or that there are none; false: there is a table to show.
fn told<T: serde::Serialize>(a: &a::MapPool, maps: &[T]) -> anyhow::Result<bool> {
    if a.json.json {
        out::json(&maps)?;
    } else if maps.is_empty() {
        let pool = out::quoted(&a.pool);
        out::line(format_args!("no maps; make one: forebay map add {pool} NAME"))?;
    }
    Ok(a.json.json || maps.is_empty())
}

fn status(a: &a::MapPool) -> anyhow::Result<u8> {
    let maps: Vec<MapStatus> = answer(&a.pool, &reading(), &Order::Status)?;
    if told(a, &maps)? {
        return Ok(0);
    }
    let mut table = Table::new(&["map", "frames", "used", "dirty", "unknown", "files", "<state"]);
    for m in &maps {
        table.row(vec![
            m.map.clone(),
            m.frames.to_string(),
            m.frames_used.to_string(),
            units::bytes((m.dirty_pages * PAGE) as u64),
            m.unknown_pages.to_string(),
            m.files.to_string(),
            if m.damaged { "DAMAGED".into() } else { String::new() },
        ]);
    }
    out::line(table)?;
    Ok(0)
}

fn recover(a: &a::MapRecover) -> anyhow::Result<u8> {
    let options = PoolOptions { read_only: a.dry_run, ..a.media.read_write() };
    let order = Order::Recover { files: a.files.clone(), dry_run: a.dry_run, accept: a.accept };
    let done: Recovered = answer(&a.pool, &options, &order)?;
    for m in done.maps.iter().filter(|m| m.damaged) {
        out::warn(format_args!("forebay: map {} is damaged: see forebay check", m.map));
    }
    if a.json.json {
        out::json(&done)?;
    } else {
        for m in done.maps.iter().filter(|m| !m.damaged) {
            let verb = if a.dry_run { "would bring" } else { "brought" };
            out::line(format_args!(
                "map {}: {verb} {} home; {} files have everything",
                m.map,
                units::bytes((m.pages * PAGE) as u64),
                m.files
            ))?;
            for s in &m.stays {
                out::line(format_args!("{}: {} pages stay: {}", s.file, s.pages, s.why))?;
            }
        }
    }
    if !done.complete {
        let pool = out::quoted(&a.pool);
        out::warn(format_args!(
            "forebay: pages of some files stay in the pool: put the files back and try again; or \
             copy the pages elsewhere (forebay map salvage {pool} --to DIR), and give them up \
             (forebay map drop {pool} FILE --discard)"
        ));
    }
    Ok(if done.complete { 0 } else { 11 })
}

fn salvage_to(a: &a::MapSalvage) -> anyhow::Result<u8> {
    // Whoever has the pool need not be in the same directory, and need not be asked.
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
            s.data.display()
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

fn remove(a: &a::MapRemove) -> anyhow::Result<u8> {
    let pool = open::pool(&a.pool, &a.media.read_write())?;
    removal::run(pool, "map", Pool::map_remove, &a.name, a.discard, &a.json)
}
