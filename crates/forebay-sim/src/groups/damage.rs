// SPDX-License-Identifier: MIT OR Apache-2.0
//! Damage to blocks that were durable: unreadable, lost writes, writes that went to another place,
//! flipped bits.  What is lost is reported, and nothing is forged, but for one case: the last
//! group of a chunk whose array was not written cannot be told from a torn one.

use std::collections::BTreeSet;

use forebay_engine::groups::Durable;
use forebay_engine::sys;

use super::run::{Op, Run, Scene};
use super::scenes::{BIG, POOL};
use super::ssd::{Engine, Ssd};
use crate::device::{Block, Disk};
use crate::logs::script::{id_of, name};
use crate::rng::Rng;

/// The damage of a block.
#[derive(Clone, Copy, Debug)]
enum Damage {
    Unreadable,
    /// As if it had never been written.
    Zeroed,
    /// The content of another block.
    Other(usize),
    /// A bit of its first line, or of any.
    Flipped(u32),
}

#[derive(Debug, Default)]
struct After {
    ids: Vec<u64>,
    /// Something was said of a loss.
    told: bool,
}

fn recover(ssd: &Ssd, scene: &Scene) -> Result<After, String> {
    let opened = Engine::open(ssd.media(), &scene.options());
    let (engine, report) = opened.map_err(|e| format!("open: {e}"))?;
    match engine.check(true) {
        Ok(None) => {}
        other => return Err(format!("check: {other:?}")),
    }
    let index = engine.log_find(&name(0)).map_err(|e| format!("find: {e}"))?;
    let info = engine.log_info(index).map_err(|e| format!("info: {e}"))?;
    let mut after = After { told: info.missing > 0 || info.incomplete, ..After::default() };
    after.told |= report.holes > 0 || report.damaged > 0;
    let mut header = info.header;
    let claimed = engine.log_claim(index, 0, &mut header);
    let (mut nodes, claim) = claimed.map_err(|e| format!("claim: {e}"))?;
    after.told |= claim.end != sys::FBY_LOG_COMPLETE;
    let (mut forged, mut room) = (false, Vec::new());
    let replayed = engine.log_replay(index, &mut nodes, &mut |node, _| {
        match engine.log_read(index, node, &mut room).map(id_of) {
            Ok(Some(id)) => after.ids.push(id),
            Ok(None) => forged = true,
            Err(_) => return sys::FBY_LOG_DAMAGED,
        }
        sys::FBY_LOG_REPLAYED
    });
    let result = replayed.map_err(|e| format!("replay: {e}"))?;
    after.told |= result.end != sys::FBY_LOG_COMPLETE || result.damaged > 0;
    match forged {
        true => Err("an entry was forged".into()),
        false => Ok(after),
    }
}

fn scene() -> Scene {
    use Op::*;
    let mut ops = Vec::new();
    for bytes in [100, 5000, BIG, 3000, 60, BIG, 100, 9000, 40, 5000] {
        ops.push(Append(0, 1, true, bytes));
    }
    let from = ops.len();
    let (durable, name) = (Durable::Flush, "damaged".into());
    Scene { name, geometry: POOL, durable, logs: 1, ops, from, faults: 0 }
}

fn damage(disk: &mut Disk, block: usize, damage: Damage) {
    let content = match damage {
        Damage::Unreadable => None,
        Damage::Zeroed => Some(Block::new(&vec![0; disk.unit()])),
        Damage::Other(other) => disk.block(other).cloned(),
        Damage::Flipped(bit) => disk.block(block).map(|old| {
            let mut bytes = old.bytes().to_vec();
            bytes[bit as usize / 8] ^= 1 << (bit % 8);
            Block::new(&bytes)
        }),
    };
    disk.set(block, content);
}

/// One block after the other; images tried, and losses that were told.
pub fn damaged() -> Result<(u64, u64), String> {
    let scene = scene();
    let start = scene.start()?;
    let ssd = Ssd::new(start.clone(), scene.durable);
    drop(Run::new(&scene, &ssd, &start)?);
    let whole = ssd.state().device.cut().durable().clone();
    let all: Vec<u64> = (1..=scene.ops.len() as u64).collect();
    let last = BTreeSet::from([scene.ops.len() as u64]);
    let first = scene.geometry.chunk_size() as usize / whole.unit();
    let (mut rng, mut images, mut told) = (Rng::new(7), 0, 0);
    for block in first..whole.len() {
        let mut kinds = vec![Damage::Unreadable, Damage::Zeroed];
        kinds.push(Damage::Other(first + rng.index(whole.len() - first)));
        kinds.extend([512, 32768].map(|bits| Damage::Flipped(rng.below(bits) as u32)));
        for kind in kinds {
            let mut disk = whole.clone();
            damage(&mut disk, block, kind);
            ssd.start(&disk);
            let at = |e: String| format!("block {block} {kind:?}: {e}");
            let after = recover(&ssd, &scene).map_err(at)?;
            images += 1;
            if !after.ids.is_sorted_by(|a, b| a < b) || after.ids.iter().any(|id| !all.contains(id))
            {
                return Err(at(format!("{:?} are no entries in order", after.ids)));
            }
            let lost: BTreeSet<u64> =
                all.iter().filter(|id| !after.ids.contains(id)).copied().collect();
            told += u64::from(after.told && !lost.is_empty());
            if !lost.is_empty() && !after.told && lost != last {
                return Err(at(format!("{lost:?} are lost, and nothing was said")));
            }
        }
    }
    Ok((images, told))
}
