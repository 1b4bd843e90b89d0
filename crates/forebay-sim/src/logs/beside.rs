// SPDX-License-Identifier: MIT OR Apache-2.0
//! Workloads of logs and volumes in one small pool: chunks move from one kind to the other.

use super::script::{Op, Script};
use crate::rng::{mix, Rng};
use crate::script::{Geometry, Op as Blocks};

const POOL: Geometry =
    Geometry { chunk_pages: 16, nchunks: 8, nvolumes: 3, nslots: 2, shares: [0; 2] };
/// Nearly fills a chunk.
const BIG: u32 = 40_000;

/// Workloads for one subject each, with headers of both homes.
pub fn small() -> Vec<Script> {
    use Op::*;
    let s = |name: &str, volumes: &[u64], from, ops: &[Op]| {
        [false, true].map(|consumer| Script {
            name: format!("{name}{}", if consumer { ", consumer's header" } else { "" }),
            geometry: POOL,
            consumer: vec![consumer],
            volumes: volumes.to_vec(),
            ops: ops.to_vec(),
            from,
        })
    };
    let write = |vol, block: u64, blocks: u32| Block(Blocks::Write(vol, 8 * block, 8 * blocks));
    let drain = Block(Blocks::Drain(0));
    [
        s(
            "an entry, a write, and both again",
            &[64],
            0,
            &[Append(0, 1, true, 100), write(0, 0, 1), Append(0, 2, true, 100), write(0, 0, 1)],
        ),
        s(
            "chunks of a log go to a volume",
            &[400],
            6,
            &[
                Append(0, 1, true, BIG),
                Append(0, 1, true, BIG),
                Append(0, 1, true, BIG),
                Append(0, 2, true, BIG),
                write(0, 0, 15),
                Sync(0, 1),
                write(0, 15, 15),
                write(0, 30, 14),
                Append(0, 2, true, 30),
                write(0, 44, 3),
                Block(Blocks::Discard(0, 0, 80)),
            ],
        ),
        s(
            "chunks of a volume go to a log",
            &[400],
            6,
            &[
                Append(0, 1, true, 100),
                write(0, 0, 15),
                write(0, 15, 15),
                write(0, 30, 15),
                Append(0, 1, true, BIG),
                drain,
                Append(0, 2, true, BIG),
                Append(0, 2, true, BIG),
                Append(0, 3, true, BIG),
                write(0, 0, 2),
                Append(0, 3, true, 50),
            ],
        ),
        s(
            "a log ends, its chunks go to a volume, a log begins",
            &[400],
            3,
            &[
                Append(0, 1, true, BIG),
                Append(0, 3, true, BIG),
                write(0, 0, 15),
                Destroy(0),
                write(0, 15, 20),
                Create(0, 0),
                Append(0, 1, true, BIG),
                write(0, 35, 3),
                Append(0, 2, false, 60),
            ],
        ),
        s(
            "an append under way while a volume is destaged",
            &[240],
            0,
            &[
                write(0, 0, 2),
                Begin(1, 0, 1, true, 90),
                Block(Blocks::Destage(0, 2)),
                write(0, 1, 1),
                Commit(1),
                drain,
                Append(0, 1, false, 40),
            ],
        ),
        s(
            "replayed in parts while a volume is written",
            &[240],
            2,
            &[
                Append(0, 1, true, 20),
                Append(0, 2, true, 20),
                write(0, 0, 2),
                Reopen(1),
                write(0, 1, 2),
                Block(Blocks::Discard(0, 0, 8)),
                Reopen(1),
                drain,
                Reopen(9),
            ],
        ),
        s(
            "a log fallen silent while a volume fills the pool",
            &[800],
            7,
            &[
                Begin(0, 0, 1, true, 30),
                Begin(1, 0, 2, false, 30),
                Commit(1),
                Commit(0),
                Sync(0, 1),
                write(0, 0, 30),
                write(0, 30, 30),
                Tick,
                Tick,
                write(0, 60, 20),
                Append(0, 2, true, 30),
            ],
        ),
        s(
            "a log fallen silent with something unsynced",
            &[800],
            8,
            &[
                Append(0, 1, true, BIG),
                Append(0, 2, true, BIG),
                Append(0, 2, true, BIG),
                Sync(0, 1),
                write(0, 0, 30),
                write(0, 30, 20),
                Tick,
                Tick,
                write(0, 30, 20),
                write(0, 30, 20),
                write(0, 30, 20),
            ],
        ),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn block(rng: &mut Rng, volumes: &[u64]) -> Blocks {
    let vol = rng.index(volumes.len());
    let at = rng.below(volumes[vol] / 8);
    let most = if rng.one_in(3) { 16 } else { 2 };
    let n = rng.range(1, (volumes[vol] / 8 - at).min(most));
    match rng.below(10) {
        0..6 => Blocks::Write(vol, 8 * at, 8 * n as u32),
        6 => Blocks::Discard(vol, 8 * at, 8 * n),
        7 => Blocks::Zero(vol, 8 * at, 8 * n),
        8 => Blocks::Destage(vol, rng.range(1, 6) as u32),
        _ => Blocks::Drain(vol),
    }
}

/// A mix of all operations, in a pool that is soon full.
pub fn random(seed: u64) -> Script {
    let mut rng = Rng::new(mix(seed ^ 0xbe51de));
    let nslots = rng.range(1, 3) as usize;
    let logs = rng.range(1, 2) as usize;
    let volumes: Vec<u64> = (0..rng.range(1, 2)).map(|_| 8 * rng.range(4, 40)).collect();
    let geometry = Geometry {
        chunk_pages: 16,
        nchunks: rng.range(8, 12) as u32,
        nvolumes: 4,
        nslots: nslots as u32,
        shares: [0; 2],
    };
    let consumer: Vec<bool> = (0..logs).map(|_| rng.percent(50)).collect();
    let (mut synced, mut ops, mut busy) = (vec![0u64; logs], Vec::new(), vec![false; nslots]);
    let all_commit = |ops: &mut Vec<Op>, busy: &mut Vec<bool>| {
        ops.extend((0..nslots as u16).map(Op::Commit));
        busy.fill(false);
    };
    for _ in 0..rng.range(6, 26) {
        let log = rng.index(logs);
        let txg = synced[log] + rng.range(1, 3);
        let bytes = if rng.one_in(3) { rng.range(8, 50_000) } else { rng.range(8, 300) } as u32;
        let actor = rng.index(nslots);
        let idle = busy.iter().all(|b| !b);
        match rng.below(100) {
            0..25 if idle => ops.push(Op::Append(log, txg, rng.percent(50), bytes)),
            0..35 if !busy[actor] => {
                busy[actor] = true;
                ops.push(Op::Begin(actor as u16, log, txg, rng.percent(40), bytes));
            }
            0..45 => {
                busy[actor] = false;
                ops.push(Op::Commit(actor as u16));
            }
            45..55 => {
                synced[log] += rng.range(1, 2);
                ops.push(Op::Sync(log, synced[log]));
            }
            55..88 if busy.iter().any(|b| !b) => {
                let block = block(&mut rng, &volumes);
                if matches!(block, Blocks::Drain(_)) {
                    // It waits for an append that has begun, and for chunks that a slot has
                    // open.
                    all_commit(&mut ops, &mut busy);
                }
                ops.push(Op::Block(block));
            }
            88..93 => ops.push(Op::Tick),
            _ => {
                all_commit(&mut ops, &mut busy);
                if rng.one_in(3) {
                    ops.push(Op::Renew(log));
                    synced.iter_mut().enumerate().filter(|(o, _)| *o != log).for_each(|(o, s)| {
                        *s = rng.below(*s + 1);
                        ops.extend([Op::Destroy(o), Op::Create(o, *s)]);
                    });
                } else {
                    synced[log] = rng.below(synced[log] + 1);
                    ops.extend([Op::Destroy(log), Op::Create(log, synced[log])]);
                }
            }
        }
    }
    all_commit(&mut ops, &mut busy);
    if rng.one_in(3) {
        ops.push(Op::Reopen(rng.range(0, 3)));
    }
    let name = format!("mixed {seed}");
    Script { name, geometry, consumer, volumes, ops, from: 0 }
}
