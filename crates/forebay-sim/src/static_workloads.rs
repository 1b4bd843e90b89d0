// SPDX-License-Identifier: MIT OR Apache-2.0
//! The explorer's workloads of static volumes.  A share of 64 KiB has 7 slots, so blocks 0, 7
//! and 14 collide in slot 0.

use crate::rng::Rng;
use crate::script::{Geometry, Op, Script};

const SHARE: u32 = 65536;
const ONE: Geometry =
    Geometry { chunk_pages: 16, nchunks: 4, nvolumes: 2, nslots: 1, shares: [SHARE, 0] };
/// Sectors of 15 blocks.
const SIZE: u64 = 120;
/// Blocks that share one slot.
const MEET: [u64; 3] = [0, 56, 112];

/// The three cases of a write, each of their crash points, and the other operations.
pub fn small() -> Vec<Script> {
    use Op::*;
    let [a, b, c] = MEET;
    let s = |name: &str, geometry, volumes: &[u64], ops: &[Op]| Script {
        name: format!("static: {name}"),
        geometry,
        volumes: volumes.to_vec(),
        block_size: 512,
        ops: ops.to_vec(),
        from: 0,
    };
    let one = |name: &str, ops: &[Op]| s(name, ONE, &[SIZE], ops);
    vec![
        one("case 1, an empty slot", &[Write(0, a, 8), Write(0, 8, 8)]),
        one(
            "case 2, the same block",
            &[Write(0, a, 8), Write(0, a, 8), Write(0, a, 8), Write(0, a, 8)],
        ),
        one("case 2, another block", &[Write(0, a, 8), Write(0, b, 8), Tick]),
        one(
            "case 3, the same block",
            &[Write(0, a, 8), Write(0, b, 8), Write(0, a, 8), Write(0, b, 8)],
        ),
        one(
            "case 3, a third block",
            &[Write(0, a, 8), Write(0, b, 8), Write(0, c, 8), Write(0, a, 3)],
        ),
        one(
            "case 2 after case 2",
            &[Write(0, a, 8), Write(0, a, 8), Write(0, b, 8), Drain(0), Write(0, b, 8)],
        ),
        one("sectors", &[Write(0, a, 1), Write(0, 2, 2), Write(0, 1, 1), Write(0, 5, 12)]),
        one("blocks", &[Write(0, 4, 20), Write(0, 0, 32)]),
        one(
            "discard and zero",
            &[
                Write(0, 0, 16),
                Discard(0, 0, 8),
                Zero(0, 8, 8),
                Write(0, 3, 2),
                Discard(0, 32, 8),
                Zero(0, b, 8),
                Drain(0),
            ],
        ),
        one(
            "drained, then the slot again",
            &[Write(0, a, 8), Drain(0), Write(0, a, 8), Drain(0), Write(0, b, 8), Write(0, b, 8)],
        ),
        one(
            "a page and its older one, drained, then the slot again",
            &[Write(0, a, 8), Write(0, a, 8), Drain(0), Write(0, b, 8), Kill, Write(0, c, 8)],
        ),
        one(
            "written again beside a round",
            &[
                Write(0, a, 8),
                Hold(0),
                Write(0, a, 8),
                Write(0, a, 8),
                Unhold,
                Destage(0, 2),
                Kill,
                Drain(0),
            ],
        ),
        one(
            "met beside a round",
            &[Write(0, a, 8), Write(0, b, 8), Hold(0), Write(0, 8, 8), Unhold, Write(0, c, 8)],
        ),
        one(
            "past it",
            &[
                Past(0, 0, 16),
                Flush(0),
                Write(0, 6, 4),
                Past(0, 0, 24),
                Flush(0),
                Drain(0),
                Past(0, 0, 8),
                Write(0, 0, 1),
            ],
        ),
        one(
            "past it beside a drain",
            &[
                Write(0, 0, 16),
                Hold(0),
                Past(0, 8, 16),
                Write(0, 0, 8),
                Unhold,
                Drain(0),
                Past(0, 0, 8),
                Close,
                Past(0, 0, 4),
                Flush(0),
                Write(0, 2, 8),
            ],
        ),
        one(
            "killed",
            &[Write(0, a, 8), Kill, Write(0, a, 8), Kill, Write(0, b, 8), Tick, Write(0, a, 8)],
        ),
        one("killed so often that attach looks at all", &[[Write(0, a, 8), Kill]; 12].concat()),
        one(
            "clean close",
            &[Write(0, a, 8), Close, Write(0, 8, 8), Write(0, a, 1), Close, Write(0, b, 8)],
        ),
        one("eras", &[Write(0, a, 8), Tick, Write(0, a, 8), Tick, Write(0, a, 4), Write(0, b, 8)]),
        s(
            "step by step",
            Geometry { nslots: 2, ..ONE },
            &[SIZE],
            &[
                Begin(1, 0, a, 8),
                Begin(2, 0, 8, 3),
                Copy(2),
                Copy(1),
                Commit(1),
                Publish(1),
                Destage(0, 10),
                Commit(2),
                Publish(2),
            ],
        ),
        s(
            "beside a volume with chunks",
            ONE,
            &[SIZE, 32],
            &[
                Write(0, a, 8),
                Write(1, 0, 8),
                Drain(0),
                Write(0, a, 3),
                Reattach(0),
                Write(1, 8, 8),
                Drain(1),
                Write(0, b, 8),
            ],
        ),
        s(
            "comes and goes",
            Geometry { shares: [0, SHARE], ..ONE },
            &[64, SIZE],
            &[Write(0, 0, 8), Add(1), Write(1, a, 8), Remove(1), Add(1), Write(1, b, 8)],
        ),
    ]
}

/// A longer one made from a seed: one volume of two is static, or both are.
pub fn random(seed: u64, length: u32) -> Script {
    let mut rng = Rng::new(seed ^ 0x57a7_1c00);
    let shares = rng.pick(&[[SHARE, 0], [SHARE, SHARE], [2 * SHARE, SHARE]]);
    let geometry = Geometry { nslots: rng.range(1, 2) as u32, shares, ..ONE };
    let volumes = vec![8 * rng.range(6, 22), 8 * rng.range(4, 16)];
    let block_size = if rng.one_in(3) { 4096 } else { 512 };
    let unit = u64::from(block_size / 512);
    let mut ops = Vec::new();
    for _ in 0..length {
        let vol = rng.index(2);
        let size = volumes[vol] / unit;
        // Half of all in one slot.
        let at = if rng.one_in(2) { rng.pick(&MEET) / unit % size } else { rng.below(size) };
        let longest = if rng.one_in(6) { 40 } else { 10 };
        let n = rng.range(1, (size - at).min(longest));
        let (at, n) = (at * unit, n * unit);
        ops.push(match rng.below(30) {
            0..=15 => Op::Write(vol, at, n as u32),
            16 => Op::Discard(vol, at, n),
            17 | 18 => Op::Zero(vol, at, n),
            19 => Op::Drain(vol),
            20 | 21 => Op::Destage(vol, rng.range(1, 8) as u32),
            22 => Op::Close,
            23 | 24 => Op::Kill,
            25 => Op::Tick,
            26 => Op::Reattach(vol),
            27 | 28 => Op::Past(vol, at, n as u32),
            _ => Op::Flush(vol),
        });
    }
    Script { name: format!("static {seed}"), geometry, volumes, block_size, ops, from: 0 }
}
