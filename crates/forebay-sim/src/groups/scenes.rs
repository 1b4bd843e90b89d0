// SPDX-License-Identifier: MIT OR Apache-2.0
//! Scenes for one subject each, and mixed ones.

use forebay_engine::groups::Durable;

use super::run::{Op, Scene};
use crate::rng::{mix, Rng};
use crate::script::Geometry;

pub(super) const POOL: Geometry =
    Geometry { chunk_pages: 16, nchunks: 6, nvolumes: 2, nslots: 2, shares: [0; 2] };
/// Two of them fill a chunk.
pub(super) const BIG: u32 = 24_000;

/// Each on each kind of device.
pub fn small() -> Vec<Scene> {
    use Op::*;
    let s = |name: &str, logs, from, faults, ops: &[Op]| {
        [Durable::Flush, Durable::Fua, Durable::Through].map(|durable| Scene {
            name: format!("{name}, {durable:?}").to_lowercase(),
            geometry: POOL,
            durable,
            logs,
            ops: ops.to_vec(),
            from,
            faults,
        })
    };
    // Each chunk of the pool is used before one comes again.
    let mut rounds = Vec::new();
    for txg in 1..=7 {
        rounds.extend([Append(0, txg, true, BIG), Append(0, txg, true, BIG), Sync(0, txg - 1)]);
    }
    let from = rounds.len() - 3;
    [
        s("one entry", 1, 0, 0, &[Append(0, 1, true, 100)]),
        s("two entries", 1, 0, 0, &[Append(0, 1, true, 100), Append(0, 1, true, 5000)]),
        s(
            "three entries, two groups",
            1,
            0,
            0,
            &[Append(0, 1, true, 100), Append(0, 1, false, 100), Append(0, 1, true, 100)],
        ),
        s(
            "the next chunk",
            1,
            1,
            0,
            &[
                Append(0, 1, true, BIG),
                Append(0, 1, true, BIG),
                Append(0, 1, true, 100),
                Append(0, 1, true, 100),
            ],
        ),
        s(
            "a chunk is given back",
            1,
            4,
            0,
            &[
                Append(0, 1, true, BIG),
                Append(0, 1, true, BIG),
                Append(0, 2, true, BIG),
                Append(0, 2, true, BIG),
                Append(0, 3, true, BIG),
                Sync(0, 1),
                Append(0, 3, true, 90),
            ],
        ),
        s("a chunk with groups of before", 1, from, 0, &rounds),
        s(
            "two logs",
            2,
            0,
            0,
            &[Append(0, 1, true, 100), Append(1, 1, true, 100), Append(0, 1, true, 60)],
        ),
        s(
            "an append under way",
            1,
            0,
            0,
            &[
                Append(0, 1, true, 100),
                Begin(0, 0, 1, true, 5000),
                Commit(0),
                Append(0, 1, false, 100),
            ],
        ),
        s(
            "a log ends, another period begins",
            1,
            2,
            0,
            &[
                Append(0, 1, true, BIG),
                Append(0, 1, true, BIG),
                Append(0, 2, true, 100),
                Destroy(0),
                Create(0, 1),
                Append(0, 2, true, 100),
            ],
        ),
        s(
            "a sync fails while entries are under way",
            1,
            1,
            1,
            &[Append(0, 1, true, 100), Append(0, 2, true, 100), Sync(0, 1), Append(0, 3, true, 90)],
        ),
        s("a request fails", 1, 0, 1, &[Append(0, 1, true, 100), Append(0, 1, true, 100)]),
        s(
            "a request fails behind others",
            1,
            2,
            1,
            &[
                Append(0, 1, true, 100),
                Append(0, 2, false, 5000),
                Append(0, 1, true, 100),
                Append(0, 1, true, 100),
            ],
        ),
        s(
            "a request fails at the end of a chunk",
            1,
            1,
            1,
            &[Append(0, 1, true, BIG), Append(0, 1, true, BIG), Append(0, 1, true, 9000)],
        ),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// A mix of all operations.
pub fn random(seed: u64) -> Scene {
    let mut rng = Rng::new(mix(seed ^ 0x6709));
    let logs = rng.range(1, 2) as usize;
    let geometry = Geometry { nchunks: rng.range(8, 12) as u32, ..POOL };
    let durable = rng.pick(&[Durable::Flush, Durable::Flush, Durable::Fua, Durable::Through]);
    let (mut synced, mut ops, mut busy) = (vec![0u64; logs], Vec::new(), false);
    for _ in 0..rng.range(4, 16) {
        let log = rng.index(logs);
        let bytes = if rng.one_in(5) { rng.range(8, 24_000) } else { rng.range(8, 6000) } as u32;
        let (txg, next) = (synced[log] + rng.range(1, 3), rng.percent(50));
        match rng.below(100) {
            _ if busy => {
                ops.push(Op::Commit(0));
                busy = false;
            }
            0..60 => ops.push(Op::Append(log, txg, next, bytes)),
            60..72 => {
                ops.push(Op::Begin(0, log, txg, next, bytes));
                busy = true;
            }
            72..90 => {
                synced[log] += rng.range(1, 2);
                ops.push(Op::Sync(log, synced[log]));
            }
            90..96 => ops.push(Op::Tick),
            _ => {
                synced[log] = rng.below(synced[log] + 1);
                ops.extend([Op::Destroy(log), Op::Create(log, synced[log])]);
            }
        }
    }
    ops.push(Op::Commit(0));
    // Not between the steps of an append.
    let mut from = rng.index(ops.len());
    while from > 0 && matches!(ops[from], Op::Commit(_)) {
        from -= 1;
    }
    let faults = rng.below(3) as u32;
    Scene { name: format!("seed {seed}"), geometry, durable, logs, ops, from, faults }
}
