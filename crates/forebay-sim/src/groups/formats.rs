// SPDX-License-Identifier: MIT OR Apache-2.0
//! A cut inside a format, on an empty device and over older pools.  What the cut leaves is the new
//! pool, complete and empty; or the older one, whose losses are reported; or no pool, and then a
//! format makes one.

use std::collections::HashSet;
use std::hash::BuildHasherDefault;

use forebay_engine::groups::Durable;
use forebay_engine::sys;
use serde::Serialize;

use super::explore::settle;
use super::run::UNIT;
use super::scenes::BIG;
use super::ssd::{Engine, Ssd};
use crate::bed::Same;
use crate::device::{Disk, Images};
use crate::engine::Decision;
use crate::hooks;
use crate::logs::script::{body, guid, id_of, name};

const BLOCKS: usize = 160;
const CHUNK: u32 = 64 << 10;
const OPTIONS: fn() -> sys::fby_options = || sys::fby_options { nslots: 2, ..Default::default() };

#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Formats {
    pub cuts: u64,
    pub images: u64,
    /// Distinct ones that opened as the older pool, as the new one, and not at all.
    pub older: u64,
    pub newer: u64,
    pub none: u64,
}

fn format(ssd: &Ssd, uuid: u8, chunk_size: u32) -> Result<(), String> {
    let format = sys::fby_format {
        uuid: [uuid; 16],
        chunk_size,
        nvolumes: 2,
        unit: UNIT as u32,
        ..Default::default()
    };
    forebay_engine::format(&ssd.media(), &format).map_err(|e| format!("format: {e}"))
}

/// Begins a log and appends entries, each durable before the next.
fn use_log(ssd: &Ssd, engine: &Engine, sizes: &[u32]) -> Result<(), String> {
    let log = engine.log_add(&name(0), 0).map_err(|e| format!("add: {e}"))?;
    engine.log_create(log, &guid(0, 1), 0, &mut 0).map_err(|e| format!("create: {e}"))?;
    for (i, bytes) in sizes.iter().enumerate() {
        match engine.log_append(log, 1, true, &[&body(i as u64 + 1, *bytes)], &mut 0) {
            Ok((Decision::Done, _)) => settle(ssd, engine)?,
            other => return Err(format!("append: {other:?}")),
        }
    }
    Ok(())
}

/// The entries that a replay hands out, and whether it reports a loss; an error: there is no log.
fn replay(engine: &Engine, missing: bool) -> Result<(Vec<u64>, bool), String> {
    let log = engine.log_find(&name(0)).map_err(|e| format!("find: {e}"))?;
    let info = engine.log_info(log).map_err(|e| format!("info: {e}"))?;
    let mut header = info.header;
    let claimed = engine.log_claim(log, 0, &mut header);
    let (mut nodes, claim) = claimed.map_err(|e| format!("claim: {e}"))?;
    let mut told = missing || info.missing > 0 || info.incomplete;
    told |= claim.end != sys::FBY_LOG_COMPLETE;
    let (mut ids, mut room) = (Vec::new(), Vec::new());
    let replayed = engine.log_replay(log, &mut nodes, &mut |node, _| {
        match engine.log_read(log, node, &mut room) {
            Ok(found) => ids.push(id_of(found).unwrap_or(u64::MAX)),
            Err(_) => return sys::FBY_LOG_DAMAGED,
        }
        sys::FBY_LOG_REPLAYED
    });
    let result = replayed.map_err(|e| format!("replay: {e}"))?;
    told |= result.end != sys::FBY_LOG_COMPLETE || result.damaged > 0;
    Ok((ids, told))
}

fn open(ssd: &Ssd) -> Result<(Engine, sys::fby_recovery_report), String> {
    Engine::open(ssd.media(), &OPTIONS()).map_err(|e| format!("open: {e}"))
}

fn check(engine: &Engine) -> Result<(), String> {
    match engine.check(true) {
        Ok(None) => Ok(()),
        other => Err(format!("check: {other:?}")),
    }
}

/// The pool is new: complete, empty, and holds what is appended.
fn new_pool(ssd: &Ssd) -> Result<(), String> {
    let (engine, report) = open(ssd)?;
    // One superblock may be missing, which counts as a header.
    let lost = report.holes + report.damaged + report.chunk_headers_lost.saturating_sub(1);
    if lost != 0 || !report.clean || engine.log_find(&name(0)).is_ok() {
        return Err(format!("the new pool is not clean and empty: {lost} lost"));
    }
    check(&engine)?;
    use_log(ssd, &engine, &[100, 5000])?;
    drop(engine);
    let disk = ssd.state().device.cut().durable().clone();
    ssd.start(&disk);
    let (engine, _) = open(ssd)?;
    match replay(&engine, false)? {
        (ids, false) if ids == [1, 2] => Ok(()),
        other => Err(format!("the new pool's entries: {other:?}")),
    }
}

/// The older pool's entries: what is not there is reported.
fn older_pool(engine: &Engine, report: &sys::fby_recovery_report, n: u64) -> Result<(), String> {
    check(engine)?;
    let Ok((ids, told)) = replay(engine, report.holes > 0 || report.damaged > 0) else {
        return Ok(()); // its record is gone, which is an error by name
    };
    if !ids.is_sorted_by(|a, b| a < b) || ids.iter().any(|id| !(1..=n).contains(id)) {
        return Err(format!("the older pool's entries are {ids:?}"));
    }
    match ids.len() as u64 == n || told {
        true => Ok(()),
        false => Err(format!("the older pool has lost entries, and nothing was said: {ids:?}")),
    }
}

fn judge(ssd: &Ssd, disk: &Disk, n: u64, seen: &mut Formats) -> Result<(), String> {
    ssd.start(disk);
    let probe = forebay_engine::probe(&ssd.media());
    if probe.error == 0 && probe.sb.uuid == [9; 16] {
        seen.newer += 1;
        return new_pool(ssd);
    }
    match Engine::open(ssd.media(), &OPTIONS()) {
        Ok((engine, report)) => {
            seen.older += 1;
            older_pool(&engine, &report, n)?;
        }
        Err(_) => seen.none += 1,
    }
    format(ssd, 9, CHUNK).map_err(|e| format!("once more: {e}"))?;
    let disk = ssd.state().device.cut().durable().clone();
    ssd.start(&disk);
    new_pool(ssd).map_err(|e| format!("formatted once more: {e}"))
}

/// The content of the device before the format: nothing, or a pool of this chunk size.
fn before(durable: Durable, chunk: Option<u32>, sizes: &[u32]) -> Result<Disk, String> {
    let ssd = Ssd::new(Disk::new(UNIT, BLOCKS), durable);
    if let Some(chunk) = chunk {
        format(&ssd, 3, chunk)?;
        let (engine, _) = open(&ssd)?;
        use_log(&ssd, &engine, sizes)?;
    }
    let state = ssd.state();
    Ok(state.device.cut().durable().clone())
}

pub fn formats(bounds: Images) -> Result<Formats, String> {
    let (mut seen, sizes) = (Formats::default(), [100, BIG, 5000, BIG, 60]);
    for durable in [Durable::Flush, Durable::Fua, Durable::Through] {
        for chunk in [None, Some(CHUNK), Some(2 * CHUNK)] {
            let start = before(durable, chunk, &sizes)?;
            let (ssd, bed) = (Ssd::new(start.clone(), durable), Ssd::new(start, durable));
            ssd.state_mut().device.record();
            format(&ssd, 9, CHUNK)?;
            let mut cuts = ssd.events();
            cuts.push(ssd.state().device.cut());
            let mut tried: HashSet<u64, BuildHasherDefault<Same>> = HashSet::default();
            for (at, cut) in cuts.iter().enumerate() {
                seen.cuts += 1;
                let context = format!("{durable:?} over {chunk:?}, event {at} of {}", cuts.len());
                hooks::set_context(|| format!("format, {context}"));
                let over = at + 1 == cuts.len();
                cut.images(bounds, at as u64, |image| {
                    seen.images += 1;
                    if !tried.insert(image.disk.hash()) {
                        return Ok(());
                    }
                    let newer = seen.newer;
                    judge(&bed, &image.disk, sizes.len() as u64, &mut seen)?;
                    match over && seen.newer == newer {
                        true => Err("a format that has ended is not durable".into()),
                        false => Ok(()),
                    }
                })
                .map_err(|e: String| format!("{context}: {e}"))?;
            }
        }
    }
    Ok(seen)
}
