// SPDX-License-Identifier: MIT OR Apache-2.0
//! `forebay volume add|list|remove`.

use forebay::{Mode, NewVolume, Pool, StaticShare, VolumeInfo};

use crate::out::Table;
use crate::{args, open, out, removal, status, units};

pub fn run(a: &args::Volume) -> anyhow::Result<u8> {
    match a {
        args::Volume::Add(a) => add(a),
        args::Volume::List(a) => list(a),
        args::Volume::Remove(a) => remove(a),
    }
}

fn add(a: &args::VolumeAdd) -> anyhow::Result<u8> {
    let pool = open::pool(&a.pool, &a.media.read_write())?;
    let added = pool.volume_add(&NewVolume {
        name: a.name.clone(),
        origin: a.origin.clone(),
        block_size: a.block_size.unwrap_or(0),
        origin_by_name: a.origin_by_name,
        accept_pool: a.accept_pool,
        static_share: a
            .static_bytes
            .map(|share_bytes| StaticShare { share_bytes, flush_every: a.flush_every }),
    });
    // The pool is closed in order either way, so that it is clean afterwards.
    pool.close()?;
    let added = added?;
    if a.json.json {
        out::json(&added)?;
        return Ok(0);
    }
    out::line(format_args!(
        "volume {}: {} on {}, logical block {}",
        added.name,
        units::bytes(added.size_bytes),
        out::quoted(&a.origin),
        added.block_size,
    ))?;
    if added.static_bytes > 0 {
        out::line(format_args!("static: {}", static_text(&added)))?;
    }
    out::line(format_args!("next: forebay serve {}", out::quoted(&a.pool)))?;
    Ok(0)
}

fn list(a: &args::VolumeList) -> anyhow::Result<u8> {
    let volumes = status::of_pool(&a.pool)?.pool.volumes;
    if a.json.json {
        out::json(&volumes)?;
    } else if volumes.is_empty() {
        let pool = out::quoted(&a.pool);
        out::line(format_args!("no volumes; add one: forebay volume add {pool} NAME ORIGIN"))?;
    } else {
        out::line(table(&volumes))?;
    }
    Ok(0)
}

/// The part of the pool that a static volume has.
pub fn static_text(v: &VolumeInfo) -> String {
    let blocks = v.size_bytes.div_ceil(4096);
    let slots = u64::from(v.static_slots).max(1);
    let conflicts = match blocks.div_ceil(slots) {
        0 | 1 => "each block has one of its own".into(),
        n => format!("up to {n} blocks share one"),
    };
    let every = match v.flush_every_seconds {
        Some(s) => format!(", all to the origin every {:?}", std::time::Duration::from_secs_f64(s)),
        None => String::new(),
    };
    format!("{} of the pool in {slots} slots, {conflicts}{every}", units::bytes(v.static_bytes))
}

pub fn table(volumes: &[VolumeInfo]) -> Table {
    let mut t = Table::new(&["name", "size", "block", "cached", "lost", "<state", "<origin"]);
    for v in volumes {
        let origin = v.origin.as_ref().map(|o| o.name.clone());
        t.row(vec![
            v.label(),
            units::bytes(v.size_bytes),
            v.block_size.to_string(),
            // The content of a static volume that was not closed is unknown yet.
            match v.uncounted && !v.damaged {
                true => format!(">= {}", units::bytes(v.cached_bytes)),
                false => units::bytes(v.cached_bytes),
            },
            (v.lost_blocks + v.holes).to_string(),
            state(v),
            origin.or_else(|| v.origin_path.clone()).unwrap_or_else(|| v.identity.clone()),
        ]);
    }
    t
}

/// The state in a word or two; faults come first.
pub fn state(v: &VolumeInfo) -> String {
    if let (false, Some(why)) = (v.damaged, &v.origin_changed) {
        return format!("origin CHANGED: {why}");
    }
    if let Some(away) = &v.origin_away {
        return format!("origin AWAY: {away}");
    }
    match (v.damaged, v.attached, &v.last_error) {
        (true, ..) => "record DAMAGED".into(),
        (_, false, _) => "detached".into(),
        (_, true, Some(error)) => format!("origin FAILS: {error}"),
        (_, true, None) if v.mode != Mode::WriteBack => format!("{}, {}", v.mode, v.destage),
        (_, true, None) if v.draining => "draining".into(),
        (_, true, None) => v.destage.to_string(),
    }
}

fn remove(a: &args::VolumeRemove) -> anyhow::Result<u8> {
    let pool = open::pool(&a.pool, &a.media.read_write())?;
    removal::run(pool, "volume", Pool::volume_remove, &a.name, a.discard, &a.json)
}
