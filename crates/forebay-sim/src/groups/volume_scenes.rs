// SPDX-License-Identifier: MIT OR Apache-2.0
//! Scenes with volumes: for one subject each, and mixed ones.

use forebay_engine::groups::Durable;

use super::scenes::POOL;
use super::volumes::{Op, VolumeScene, SECTORS};
use crate::rng::{mix, Rng};
use crate::script::Geometry;

const EIGHT: Geometry = Geometry { nchunks: 8, ..POOL };

/// Each on each kind of device.
pub fn small_volumes() -> Vec<VolumeScene> {
    use Op::*;
    let s = |name: &str, volumes, from, faults, refusals, ops: &[Op]| {
        [Durable::Flush, Durable::Fua, Durable::Through].map(|durable| VolumeScene {
            name: format!("{name}, {durable:?}").to_lowercase(),
            geometry: EIGHT,
            durable,
            volumes,
            ops: ops.to_vec(),
            from,
            faults,
            refusals,
        })
    };
    // Whole blocks that are overwritten until each chunk has been used.
    let mut rounds = Vec::new();
    for n in 0..30 {
        rounds.extend([Write(0, n % 5 * 8, 8), Flush(0)]);
    }
    let used = rounds.len();
    rounds.extend([Write(0, 0, 8), Write(1, 0, 24), Write(0, 8, 8), Flush(0), Write(0, 16, 8)]);
    [
        s("a write and a flush", 1, 0, 0, 0, &[Write(0, 0, 8), Flush(0), Read(0, 0)]),
        s("a block twice", 1, 0, 0, 0, &[Write(0, 0, 8), Write(0, 0, 8), Flush(0)]),
        s(
            "parts of blocks",
            1,
            1,
            0,
            0,
            &[Write(0, 0, 8), Write(0, 3, 2), Write(0, 5, 9), Read(0, 0), Flush(0)],
        ),
        s(
            "zeroes and discards",
            1,
            2,
            0,
            0,
            &[Write(0, 0, 24), Flush(0), Zero(0, 0, 1), Discard(0, 1, 1), Read(0, 0), Flush(0)],
        ),
        s(
            "destage of what is written",
            1,
            3,
            0,
            1,
            &[Write(0, 0, 16), Write(0, 8, 8), Flush(0), Drain(0, true), Write(0, 0, 8), Tick],
        ),
        s(
            "detach after writes",
            1,
            1,
            0,
            0,
            &[Write(0, 0, 16), Write(0, 0, 8), Reattach(0), Read(0, 0), Write(0, 8, 8)],
        ),
        s("two volumes", 2, 0, 0, 0, &[Write(0, 0, 8), Write(1, 0, 8), Flush(0), Write(0, 8, 8)]),
        s("chunks that were used before", 2, used, 0, 0, &rounds),
        s(
            "a request fails",
            1,
            1,
            1,
            0,
            &[Write(0, 0, 8), Write(0, 0, 8), Write(0, 8, 8), Flush(0)],
        ),
        s(
            "the device fails",
            1,
            3,
            0,
            1,
            &[
                Write(0, 0, 16),
                Flush(0),
                Write(0, 16, 8),
                Write(0, 0, 8),
                Flush(0),
                Fail,
                Read(0, 0),
            ],
        ),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// A mix of all operations.
pub fn random_volumes(seed: u64) -> VolumeScene {
    let mut rng = Rng::new(mix(seed ^ 0x7061));
    let volumes = rng.range(1, 2) as usize;
    let geometry = Geometry { nchunks: rng.range(8, 12) as u32, ..POOL };
    let durable = rng.pick(&[Durable::Flush, Durable::Flush, Durable::Fua, Durable::Through]);
    let (mut ops, mut draining) = (Vec::new(), [false; 2]);
    for _ in 0..rng.range(8, 48) {
        let volume = rng.index(volumes);
        let block = rng.below(SECTORS / 8);
        ops.push(match rng.below(100) {
            0..40 => Op::Write(volume, block * 8, 8),
            40..56 => {
                let sector = rng.below(SECTORS);
                Op::Write(volume, sector, rng.range(1, 20).min(SECTORS - sector))
            }
            56..61 => Op::Zero(volume, block, rng.range(1, 3).min(SECTORS / 8 - block)),
            61..66 => Op::Discard(volume, block, rng.range(1, 3).min(SECTORS / 8 - block)),
            66..76 => Op::Read(volume, block),
            76..86 => Op::Flush(volume),
            86..91 => Op::Tick,
            91..96 => {
                draining[volume] = !draining[volume];
                Op::Drain(volume, draining[volume])
            }
            _ => Op::Reattach(volume),
        });
    }
    let from = rng.index(ops.len());
    if rng.one_in(4) {
        ops.push(Op::Fail);
    }
    let (faults, refusals) = (rng.below(3) as u32, rng.below(3) as u32);
    let name = format!("volumes {seed}");
    VolumeScene { name, geometry, durable, volumes, ops, from, faults, refusals }
}
