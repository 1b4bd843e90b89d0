// SPDX-License-Identifier: MIT OR Apache-2.0
//! The explorer's workloads: small ones for one subject each, and random ones.

use crate::rng::Rng;
use crate::script::{Geometry, Op, Script};

const TINY: Geometry =
    Geometry { chunk_pages: 16, nchunks: 4, nvolumes: 2, nslots: 1, shares: [0; 2] };
/// Sectors that fill a chunk: one write, of 15 pages.
const FULL: u64 = 15 * 8;
const ALL: Op = Op::Write(0, 0, FULL as u32);

/// The workloads that are explored exhaustively, each about one thing.
pub fn small() -> Vec<Script> {
    use Op::*;
    let two = Geometry { nslots: 2, nchunks: 5, ..TINY };
    let s = |name: &str, geometry, volumes: &[u64], ops: &[Op]| Script {
        name: name.into(),
        geometry,
        volumes: volumes.to_vec(),
        block_size: 512,
        ops: ops.to_vec(),
        from: 0,
    };
    let late = |from, script: Script| Script { from, ..script };
    vec![
        s("first write", TINY, &[64], &[Write(0, 0, 8)]),
        s("overwrite", TINY, &[64], &[Write(0, 8, 8), Write(0, 8, 8), Write(0, 8, 8)]),
        s("sectors", TINY, &[64], &[Write(0, 8, 1), Write(0, 10, 2), Write(0, 9, 1)]),
        s("batch", TINY, &[64], &[Write(0, 4, 20), Write(0, 0, 32)]),
        late(
            1,
            s(
                "fill a chunk and go on",
                TINY,
                &[FULL],
                &[Write(0, 0, FULL as u32 - 8), Write(0, 0, 8), Write(0, 8, 8), Write(0, 16, 8)],
            ),
        ),
        s(
            "discard and zero",
            TINY,
            &[64],
            &[Write(0, 0, 16), Discard(0, 0, 8), Zero(0, 8, 8), Write(0, 3, 2), Discard(0, 32, 8)],
        ),
        s("drain", TINY, &[64], &[Write(0, 0, 16), Write(0, 4, 1), Drain(0), Write(0, 4, 2)]),
        late(
            3,
            s(
                "drain, then the chunk again",
                TINY,
                &[FULL],
                &[ALL, Drain(0), ALL, Drain(0), ALL, Write(0, 3, 1)],
            ),
        ),
        late(
            3,
            s(
                "a chunk superseded as a whole",
                TINY,
                &[FULL],
                &[ALL, ALL, ALL, ALL, Write(0, 0, 8)],
            ),
        ),
        late(
            18,
            s(
                "a chunk of single writes, again with one",
                TINY,
                &[FULL],
                // A chunk full of writes of a block each, superseded and not destaged;
                // then the pool, and that chunk again in one batch.
                &[(0..15).map(|b| Write(0, 8 * b, 8)).collect(), vec![ALL; 4]].concat(),
            ),
        ),
        s(
            "past the cache",
            TINY,
            &[64],
            &[
                Past(0, 0, 16),
                Flush(0),
                Past(0, 4, 8),
                Write(0, 6, 4),
                // Two blocks are cached now, so those go through the cache.
                Past(0, 0, 24),
                Flush(0),
                Write(0, 0, 1),
            ],
        ),
        late(
            3,
            s(
                "past the cache, over what was let go",
                TINY,
                &[FULL],
                &[
                    // Each block has entries in three chunks when it is released.
                    ALL,
                    ALL,
                    ALL,
                    Discard(0, 8, 8),
                    Drain(0),
                    Past(0, 0, FULL as u32),
                    Write(0, 20, 8),
                    Kill,
                    Past(0, 40, 16),
                    Drain(0),
                    Flush(0),
                    Past(0, 16, 16),
                ],
            ),
        ),
        s(
            "past the cache beside a drain",
            TINY,
            &[64],
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
        s(
            "two writers",
            two,
            &[64],
            &[
                Begin(1, 0, 0, 8),
                Begin(2, 0, 8, 8),
                Copy(2),
                Copy(1),
                Commit(2),
                Publish(2),
                Begin(2, 0, 16, 3),
                Copy(2),
                Commit(1),
                Publish(1),
                Commit(2),
                Publish(2),
            ],
        ),
        s(
            "two writers, one block in turns",
            two,
            &[64],
            &[
                Begin(1, 0, 8, 8),
                Copy(1),
                Commit(1),
                Publish(1),
                Begin(2, 0, 8, 8),
                Copy(2),
                Commit(2),
                Publish(2),
                Begin(1, 0, 8, 8),
                Copy(1),
                Commit(1),
                Publish(1),
            ],
        ),
        s(
            "a drain beside a write in flight",
            two,
            &[64],
            &[
                Begin(1, 0, 0, 8),
                Copy(1),
                Commit(1),
                Publish(1),
                Begin(1, 0, 0, 8),
                Copy(1),
                Begin(2, 0, 8, 8),
                Copy(2),
                Commit(2),
                Publish(2),
                Destage(0, 40),
                Commit(1),
                Publish(1),
            ],
        ),
        late(
            9,
            s(
                "a neighbour written along, then replaced in its place",
                TINY,
                &[2 * FULL],
                &[
                    // A round for block 0 and 14 far from it, collected but not begun.
                    Write(0, 0, 8),
                    Write(0, 128, FULL as u32 - 8),
                    Destage(0, 1),
                    // Neighbours of block 0, in a chunk of their own: written along.
                    Write(0, 8, FULL as u32),
                    Hold(0),
                    // Replaced until they are in the same places of the same chunk.
                    Write(0, 8, FULL as u32),
                    Write(0, 8, FULL as u32),
                    Write(0, 8, FULL as u32),
                    Unhold,
                    Drain(0),
                ],
            ),
        ),
        late(
            // All but the last writes of the setting up.
            42,
            s(
                "a round keeps isolated blocks",
                Geometry { nchunks: 8, ..TINY },
                &[800],
                &[
                    vec![High(35)],
                    (0..40).map(|n| Write(0, 8 + 16 * n, 8)).collect(),
                    // A run, of which a part is newer than the first round's cut.
                    vec![Write(0, 24, 64), Round(16), Write(0, 8, 8), Round(60), Past(0, 24, 40)],
                    vec![Write(0, 408, 24), Kill, Round(40), Past(0, 0, 16), Write(0, 700, 8)],
                ]
                .concat(),
            ),
        ),
        s(
            "an origin refuses a block",
            TINY,
            &[160],
            &[
                Write(0, 0, 8),
                Write(0, 16, 40),
                Refuse(0, 20, 1),
                Destage(0, 60),
                // That block again, and another.
                Write(0, 18, 4),
                Write(0, 96, 8),
                Tick,
                Destage(0, 60),
                Kill,
                Write(0, 0, 4),
                Destage(0, 60),
                Refuse(0, 0, 0),
                Tick,
                Tick,
                Drain(0),
                Write(0, 16, 8),
            ],
        ),
        s(
            "clean close",
            TINY,
            &[64],
            &[Write(0, 0, 8), Close, Write(0, 8, 8), Write(0, 0, 1), Close, Write(0, 0, 8)],
        ),
        s("killed", TINY, &[64], &[Write(0, 0, 8), Kill, Write(0, 0, 8), Kill, Write(0, 8, 8)]),
        s(
            "housekeeping",
            TINY,
            &[64],
            &[Write(0, 0, 8), Tick, Write(0, 8, 8), Tick, Write(0, 0, 4)],
        ),
        s(
            "a volume comes and goes",
            TINY,
            &[64, 32],
            &[Write(0, 0, 8), Add(1), Write(1, 0, 8), Remove(1), Add(1), Write(1, 8, 8)],
        ),
        s(
            "two volumes",
            Geometry { nchunks: 6, ..TINY },
            &[32, 32],
            &[
                Write(0, 0, 8),
                Write(1, 0, 8),
                Drain(0),
                Write(0, 0, 3),
                Reattach(1),
                Write(1, 8, 8),
            ],
        ),
        s(
            "no checksums",
            TINY,
            &[64],
            &[Checksums(false), Write(0, 0, 8), Write(0, 0, 3), Checksums(true), Write(0, 8, 16)],
        ),
        s(
            "checksums switched in a write",
            TINY,
            &[64],
            &[
                Checksums(false),
                Begin(0, 0, 0, 8),
                Copy(0),
                Checksums(true),
                Commit(0),
                Publish(0),
                Begin(0, 0, 8, 8),
                Copy(0),
                Checksums(false),
                Commit(0),
                Publish(0),
            ],
        ),
    ]
}

/// A longer workload made from a seed, with more of everything.
pub fn random(seed: u64, length: u32) -> Script {
    let mut rng = Rng::new(seed);
    let geometry = Geometry {
        chunk_pages: 16,
        nchunks: rng.range(4, 7) as u32,
        nvolumes: 2,
        nslots: rng.range(1, 2) as u32,
        shares: [0; 2],
    };
    let volumes = vec![8 * rng.range(2, 20), 8 * rng.range(1, 11)];
    let block_size = if rng.one_in(3) { 4096 } else { 512 };
    let unit = u64::from(block_size / 512);
    let mut ops = Vec::new();
    // Half of the time the second volume comes later.
    if rng.one_in(2) {
        ops.extend([Op::Write(0, 0, 8), Op::Add(1)]);
    }
    for _ in 0..length {
        let vol = rng.index(2);
        let size = volumes[vol] / unit;
        let at = rng.below(size);
        let longest = if rng.one_in(4) { 80 } else { 14 };
        let n = rng.range(1, (size - at).min(longest));
        let (at, n) = (at * unit, n * unit);
        // Every other one goes past the cache too.
        ops.push(match rng.below(if seed.is_multiple_of(2) { 31 } else { 25 }) {
            0..=12 => Op::Write(vol, at, n as u32),
            13 | 14 => Op::Discard(vol, at, n),
            15 | 16 => Op::Zero(vol, at, n),
            17 => Op::Drain(vol),
            18 => Op::Destage(vol, rng.range(1, 6) as u32),
            19 => Op::Close,
            20 => Op::Kill,
            21 => Op::Tick,
            22 => Op::Reattach(vol),
            23 => Op::Round(rng.range(1, 30) as u32),
            25..=28 => Op::Past(vol, at, n as u32),
            29 | 30 => Op::Flush(vol),
            _ => Op::Checksums(rng.one_in(2)),
        });
    }
    Script { name: format!("seed {seed}"), geometry, volumes, block_size, ops, from: 0 }
}
