// SPDX-License-Identifier: MIT OR Apache-2.0
//! `forebay map add|list|recover|salvage|drop|remove`.

use std::path::{Path, PathBuf};

use anyhow::Context;
use forebay::{MapInfo, Pool};
use forebay_map::backing::{Backing, RegularFile};
use forebay_map::recover::{discard, left, recover_some, salvage, Left, Options};
use forebay_map::{PoolStore, PAGE};
use forebay_server::Work;
use serde_json::json;

use crate::args::{self, map as a};
use crate::mount::Bar;
use crate::out::Table;
use crate::{open, out, removal, units};

pub fn run(a: &args::Map) -> anyhow::Result<u8> {
    match a {
        args::Map::Add(a) => add(a),
        args::Map::List(a) => list(a),
        args::Map::Recover(a) => recover(a),
        args::Map::Salvage(a) => salvage_to(a),
        args::Map::Drop(a) => drop_files(a),
        args::Map::Remove(a) => remove(a),
    }
}

fn open_file(path: &Path) -> forebay_map::Result<Box<dyn Backing>> {
    Ok(Box::new(RegularFile::open(path)?))
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

/// What is done with each map of a pool that can be read, one by one; then the pool is closed.
fn each_map<T>(
    pool: Pool,
    mut f: impl FnMut(&MapInfo, Option<&PoolStore>) -> anyhow::Result<T>,
) -> anyhow::Result<Vec<T>> {
    let done = pool.maps().into_iter().map(|info| match info.damaged {
        true => f(&info, None),
        false => {
            let store = PoolStore::of(pool.map(&info.name)?)
                .with_context(|| format!("map {}", info.name))?;
            f(&info, Some(&store))
        }
    });
    let done: anyhow::Result<Vec<T>> = done.collect();
    pool.close()?;
    done
}

/// What a map has of files that any of the names means; all of them are to be found.
struct Wanted<'a> {
    names: &'a [PathBuf],
    found: Vec<bool>,
}

impl<'a> Wanted<'a> {
    fn new(names: &'a [PathBuf]) -> Wanted<'a> {
        Wanted { names, found: vec![false; names.len()] }
    }

    fn of(&mut self, store: &PoolStore) -> forebay_map::Result<Vec<Left>> {
        let mut all = left(store)?;
        all.retain(|l| {
            let mut wanted = self.names.is_empty();
            for (name, found) in self.names.iter().zip(&mut self.found) {
                if l.is_named(name) {
                    (wanted, *found) = (true, true);
                }
            }
            wanted
        });
        Ok(all)
    }

    fn check(&self, pool: &Path) -> anyhow::Result<()> {
        let missing = self.names.iter().zip(&self.found).find(|(_, found)| !**found);
        match missing {
            None => Ok(()),
            Some((name, _)) => Err(forebay::Error::NotFound {
                path: name.clone(),
                way_out: format!(
                    "pool {} has nothing of it; `forebay map list` names what it has",
                    pool.display()
                ),
            }
            .into()),
        }
    }
}

fn of_left(l: &Left) -> serde_json::Value {
    json!({
        "file": l.name(),
        "number": l.id,
        "size_bytes": l.record.as_ref().map(|r| r.size),
        "record_damaged": l.record.is_none(),
        "truncation_under_way": l.record.as_ref().is_some_and(|r| r.cut),
        "frames": l.frames.len(),
        "dirty_pages": l.dirty,
        "unknown_pages": l.unknown,
    })
}

fn list(a: &a::MapPool) -> anyhow::Result<u8> {
    let pool = open::read_only(&a.pool)?;
    let maps = each_map(pool, |info, store| {
        let files = store.map(|store| left(store)).transpose()?.unwrap_or_default();
        Ok((info.clone(), files))
    })?;
    if a.json.json {
        let map = |(info, files): &(MapInfo, Vec<Left>)| json!({ "map": info, "files": files.iter().map(of_left).collect::<Vec<_>>() });
        out::json(&maps.iter().map(map).collect::<Vec<_>>())?;
        return Ok(0);
    }
    if maps.is_empty() {
        let pool = out::quoted(&a.pool);
        out::line(format_args!("no maps; make one: forebay map add {pool} NAME"))?;
        return Ok(0);
    }
    let mut table = Table::new(&["map", "size", "frames", "files", "dirty", "<state"]);
    for (info, files) in &maps {
        let dirty: usize = files.iter().map(|l| l.dirty).sum();
        table.row(vec![
            info.name.clone(),
            units::bytes(info.share_bytes),
            info.frames.to_string(),
            files.len().to_string(),
            units::bytes((dirty * PAGE) as u64),
            match (info.damaged, files.is_empty()) {
                (true, _) => "DAMAGED".into(),
                (false, true) => "nothing to recover".into(),
                (false, false) => "to be recovered".into(),
            },
        ]);
    }
    out::line(table)?;
    let mut table = Table::new(&["file", "number", "dirty", "unknown", "<map", "<state"]);
    let mut any = false;
    for (info, files) in &maps {
        for l in files {
            any = true;
            table.row(vec![
                l.name(),
                l.id.map_or("-".into(), |id| id.to_string()),
                l.dirty.to_string(),
                l.unknown.to_string(),
                info.name.clone(),
                match &l.record {
                    None => "its record is DAMAGED".into(),
                    Some(r) if r.cut => format!("to be truncated to {}", units::bytes(r.size)),
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

fn recover(a: &a::MapRecover) -> anyhow::Result<u8> {
    let options = forebay::PoolOptions { read_only: a.dry_run, ..a.media.read_write() };
    let pool = open::pool(&a.pool, &options)?;
    let mut wanted = Wanted::new(&a.files);
    let mut bar = Bar::default();
    let how = Options { dry_run: a.dry_run, accept: a.accept, only: &a.files };
    let reports = each_map(pool, |info, store| {
        let Some(store) = store else {
            out::warn(format_args!("forebay: map {} is damaged: see forebay check", info.name));
            return Ok((info.name.clone(), None));
        };
        wanted.of(store)?;
        let report = recover_some(store, &open_file, &how, &mut |p| {
            bar.show(&Work {
                what: p.name.to_owned(),
                done_bytes: (p.done * PAGE) as u64,
                total_bytes: (p.of * PAGE) as u64,
                trouble: None,
            });
        })?;
        Ok((info.name.clone(), Some(report)))
    });
    bar.end();
    let reports = reports?;
    wanted.check(&a.pool)?;
    let whole = reports.iter().all(|(_, r)| r.as_ref().is_some_and(|r| r.refused.is_empty()));
    if a.json.json {
        let each = reports.iter().map(|(name, report)| {
            let refused = report.iter().flat_map(|r| &r.refused).map(|r| {
                json!({
                    "file": r.name.display().to_string(),
                    "number": r.id,
                    "why": r.why,
                    "pages": r.pages,
                })
            });
            json!({
                "map": name,
                "damaged": report.is_none(),
                "files": report.as_ref().map_or(0, |r| r.files),
                "pages": report.as_ref().map_or(0, |r| r.pages),
                "stays": refused.collect::<Vec<_>>(),
            })
        });
        let each: Vec<_> = each.collect();
        out::json(&json!({ "dry_run": a.dry_run, "complete": whole, "maps": each }))?;
    } else {
        for (name, report) in reports.iter().filter_map(|(n, r)| Some((n, r.as_ref()?))) {
            let verb = if a.dry_run { "would bring" } else { "brought" };
            out::line(format_args!(
                "map {name}: {verb} {} home; {} files have everything",
                units::bytes((report.pages * PAGE) as u64),
                report.files
            ))?;
            for r in &report.refused {
                out::line(format_args!("{}: {} pages stay: {}", r.name.display(), r.pages, r.why))?;
            }
        }
    }
    if !whole {
        let pool = out::quoted(&a.pool);
        out::warn(format_args!(
            "forebay: pages of some files stay in the pool: put the files back and try again; or \
             copy the pages elsewhere (forebay map salvage {pool} --to DIR), and give them up \
             (forebay map drop {pool} FILE --discard)"
        ));
    }
    Ok(if whole { 0 } else { 11 })
}

fn salvage_to(a: &a::MapSalvage) -> anyhow::Result<u8> {
    let pool = open::read_only(&a.pool)?;
    let mut wanted = Wanted::new(&a.files);
    let saved = each_map(pool, |info, store| {
        let Some(store) = store else { return Ok(Vec::new()) };
        // Maps number their files each for itself.
        let dir = a.to.join(&info.name);
        let all = wanted.of(store)?;
        Ok(all.iter().map(|l| salvage(store, l, &dir)).collect::<forebay_map::Result<Vec<_>>>()?)
    })?;
    wanted.check(&a.pool)?;
    let saved: Vec<_> = saved.into_iter().flatten().collect();
    if a.json.json {
        let each = saved.iter().map(|s| {
            json!({
                "file": s.name,
                "data": s.data.display().to_string(),
                "list": s.list.display().to_string(),
                "pages": s.pages,
                "unknown_pages": s.unknown,
                "lost_pages": s.lost,
            })
        });
        out::json(&each.collect::<Vec<_>>())?;
    } else if saved.is_empty() {
        out::line("the pool has nothing of any file")?;
    }
    for s in saved.iter().filter(|_| !a.json.json) {
        out::line(format_args!(
            "{}: {} pages, {} of which it is not known whether the file lacks them, {} lost: {}",
            s.name,
            s.pages,
            s.unknown,
            s.lost,
            s.data.display()
        ))?;
    }
    Ok(if saved.iter().any(|s| s.lost > 0) { 11 } else { 0 })
}

fn drop_files(a: &a::MapDrop) -> anyhow::Result<u8> {
    let pool = open::pool(&a.pool, &a.media.read_write())?;
    let mut wanted = Wanted::new(&a.files);
    let dropped = each_map(pool, |_, store| {
        let Some(store) = store else { return Ok(Vec::new()) };
        let all = wanted.of(store)?;
        all.iter().try_for_each(|l| discard(store, &open_file, l))?;
        Ok(all)
    })?;
    wanted.check(&a.pool)?;
    let dropped: Vec<_> = dropped.into_iter().flatten().collect();
    if a.json.json {
        out::json(&dropped.iter().map(of_left).collect::<Vec<_>>())?;
        return Ok(0);
    }
    for l in &dropped {
        out::line(format_args!("{}: {} pages given up", l.name(), l.dirty + l.unknown))?;
    }
    Ok(0)
}

fn remove(a: &a::MapRemove) -> anyhow::Result<u8> {
    let pool = open::pool(&a.pool, &a.media.read_write())?;
    removal::run(pool, "map", Pool::map_remove, &a.name, a.discard, &a.json)
}
