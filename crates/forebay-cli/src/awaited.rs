// SPDX-License-Identifier: MIT OR Apache-2.0
//! Before a pool is overwritten by order: does anything that can be seen wait for what it holds?

use std::path::Path;

use forebay::{Error, Overwrite, Pool};
use forebay_map_server::orders::MapFiles;
use forebay_map_server::{Maps, Order};
use forebay_mount::waiting::{waiting, Waiting, WaitsBy};
use forebay_mount::MountOptions;

use crate::{out, units};

/// Refuses if an origin, a mapped file or a tree is marked and waits for the pool.  What the pool
/// holds for others is named, and is given up.  What cannot be opened as a pool passes.
pub fn look(path: &Path) -> forebay::Result<Overwrite> {
    let mut all = Vec::new();
    let overwrite = Overwrite::look(path, &mut |pool| given_up(path, pool).map(|of| all = of))?;
    for given_up in all {
        out::warn(format_args!("forebay: pool {}: this gives up {given_up}", path.display()));
    }
    Ok(overwrite)
}

/// Lists, in words, the data that is given up.
fn given_up(path: &Path, pool: &Pool) -> forebay::Result<Vec<String>> {
    let mut given_up = Vec::new();
    for log in waiting(pool) {
        given_up.push(of_log(path, log)?);
    }
    let maps = mapped(pool).map_err(|e| {
        let map = "any file that is mapped onto it";
        forebay::unseen_waiting(path, map, &e.to_string(), OF_MAP)
    })?;
    if let Some(map) = maps.iter().find(|map| map.map.damaged) {
        let (what, cause) = (format!("any file of map {}", map.map.name), "the map is damaged");
        return Err(forebay::unseen_waiting(path, &what, cause, OF_MAP));
    }
    for file in maps.into_iter().flat_map(|map| map.files) {
        let pages = file.dirty_pages + file.unknown_pages;
        if file.record_damaged && pages > 0 {
            let what = format!("the file of {pages} pages of map entry {}", file.file);
            let cause = "its record is damaged";
            return Err(forebay::unseen_waiting(path, &what, cause, OF_MAP));
        }
        // A marked file that has all pages waits for the pool too, like a volume's origin.
        forebay::refuse_awaited_by(path, pool.uuid(), &file.file, pages > 0)?;
        if pages > 0 {
            given_up.push(format!("{pages} pages of {}, which is not marked", file.file));
        }
    }
    for v in pool.volumes().into_iter().filter(|v| v.may_hold_data()) {
        let bytes = match v.uncounted {
            true => "an unknown number of bytes".into(),
            false => units::bytes(v.cached_bytes),
        };
        let origin = v.origin_path.unwrap_or(v.identity);
        given_up.push(format!("{bytes} of volume {}, whose origin {origin} is not marked", v.name));
    }
    Ok(given_up)
}

const OF_MAP: &str =
    "or forebay map recover; what can be read: forebay map salvage; to give up the \
                      map alone: forebay map remove --discard";

fn mapped(pool: &Pool) -> anyhow::Result<Vec<MapFiles>> {
    if pool.maps().is_empty() {
        return Ok(Vec::new());
    }
    let maps = Maps::attach(pool)?;
    Ok(serde_json::from_value(maps.carry_out(&Order::List, &mut |_| {})?)?)
}

fn of_log(path: &Path, found: Waiting) -> forebay::Result<String> {
    let Waiting { log, entries, tree, by } = found;
    let Some(tree) = tree else { return Ok(format!("{entries} entries of log {log}")) };
    let (pool, shown) = (out::quoted(path), out::quoted(&tree));
    let mark = match by {
        WaitsBy::Nothing => {
            return Ok(format!(
                "{entries} entries of log {log} for the tree {shown}, which is not there or not \
                 marked"
            ))
        }
        WaitsBy::Mark(mark) => format!("{mark} holds {entries} entries that it may lack"),
        WaitsBy::DeadMount => {
            format!("its server has died, and log {log} holds {entries} entries that it may lack")
        }
        WaitsBy::Unseen(e) => format!(
            "whether it is marked cannot be seen ({e}), and log {log} holds {entries} entries \
             that it may lack"
        ),
    };
    let place = format!("tree {shown}");
    let log = match log == MountOptions::default().log {
        true => String::new(),
        false => format!(" --log {}", out::quoted(log.as_ref())),
    };
    Err(Error::Awaited {
        pool: path.into(),
        place,
        why: format!(
            "{mark}; write that back first (forebay replay {pool} {shown}{log}); to give it up: forebay \
             unmark {shown} --accept-loss"
        ),
    })
}
