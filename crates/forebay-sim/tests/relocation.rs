// SPDX-License-Identifier: MIT OR Apache-2.0
//! A set of blocks that fits in the pool is overwritten at random, many times
//! what the pool holds.  The origin is not needed for that: live pages are moved
//! out of mostly dead chunks.  What grows old goes to the origin nevertheless.

use std::collections::BTreeSet;

use forebay_engine::sys;
use forebay_sim::engine::{identity, small_attach, volume_spec, Decision, Engine, Wait};
use forebay_sim::hooks;
use forebay_sim::media::{Flavour, Media};
use forebay_sim::rng::Rng;
use forebay_sim::script::data;

const NUMBER: u64 = 1;
/// 24 chunks of 15 pages of data.
const CHUNKS: u64 = 24;
const PAGES: u64 = CHUNKS * 15;
const SECTORS: u64 = PAGES * 8;

struct Run {
    engine: Engine,
    now_ns: u64,
    /// Blocks with a sector that was sent to the origin.
    destaged: BTreeSet<u64>,
    requests: u64,
}

impl Run {
    fn new(max_age_ns: u64) -> Self {
        let media = Media::new(((CHUNKS + 1) << 16) as usize, Flavour::NonTemporal);
        let mut run = Self {
            engine: Engine::new(media),
            now_ns: 1_000_000_000,
            destaged: BTreeSet::new(),
            requests: 0,
        };
        let options = sys::fby_options { nslots: 2, max_age_ns, ..Default::default() };
        run.engine.format([3; 16], 1 << 16, 2).unwrap();
        run.engine.open_all(&options).unwrap();
        run.engine.volume_add(&volume_spec("v", NUMBER, SECTORS, 512)).unwrap();
        run.attach();
        run
    }

    fn attach(&mut self) {
        let identity = identity(NUMBER);
        self.engine.volume_attach(0, &small_attach(SECTORS, &identity, 64)).unwrap();
        self.destage(); // it tells the engine the time
    }

    fn write(&mut self, id: u64, block: u64) {
        let bytes = data(NUMBER, block * 8..block * 8 + 8, id);
        for _ in 0..50 {
            let decision = self.engine.write(0, block * 8, &bytes, &mut 0, &mut 0).unwrap();
            if decision == Decision::Done {
                return;
            }
            assert_eq!(decision, Decision::Wait(Wait::Space));
            self.destage();
        }
        panic!("no space for write {id}");
    }

    fn destage(&mut self) {
        for _ in 0..200 {
            self.now_ns += 1_000_000;
            let step = self.engine.destage_step(self.now_ns).unwrap();
            if let Some(io) = step.io {
                self.requests += 1;
                self.destaged.extend((io.sector..io.sector + io.nsectors).map(|s| s / 8));
                self.engine.destage_complete(io.id, 0);
            } else if step.decision == Decision::Done {
                return;
            }
        }
        panic!("destage does not come to an end");
    }

    /// Chunk, page and block of what was written last to each open chunk.
    fn tails(&mut self) -> Vec<(u64, u64, u64)> {
        let mut tails = Vec::new();
        for chunk in 0..CHUNKS as u32 {
            let info = self.engine.chunk_info(chunk).unwrap();
            if info.state == 1 && info.fill > 1 {
                let entry = self.engine.entry_info(chunk, info.fill - 1, true).unwrap();
                assert!(entry.data_ok || !entry.linked);
                if entry.linked {
                    tails.push((chunk.into(), (info.fill - 1).into(), entry.line.block));
                }
            }
        }
        tails
    }

    fn relocated(&mut self) -> u64 {
        self.engine.volume_info(0).unwrap().pages_relocated
    }
}

#[test]
fn what_fits_in_the_pool_is_overwritten_without_the_origin() {
    let (mut run, mut rng) = (Run::new(0), Rng::new(7));
    let hot = PAGES * 2 / 5;
    let mut newest = vec![0; hot as usize];
    for id in 1..PAGES * 40 {
        let block = if id <= hot { id - 1 } else { rng.below(hot) };
        run.write(id, block);
        newest[block as usize] = id;
        run.destage();
        if id % 100 == 0 {
            run.engine.check(true).unwrap();
        }
    }
    assert_eq!(run.requests, 0, "the origin was needed");
    assert!(run.relocated() > 0, "nothing was moved");
    for (block, &id) in (0..).zip(&newest) {
        let mut buf = [0; 4096];
        assert_eq!(run.engine.read_block(0, block, 0, &mut buf).result, Ok(Decision::Done));
        assert_eq!(buf[..], data(NUMBER, block * 8..block * 8 + 8, id)[..], "block {block}");
    }
}

#[test]
fn what_was_moved_keeps_its_age() {
    let max_age_ns = 20_000_000_000;
    let (mut run, mut rng) = (Run::new(max_age_ns), Rng::new(8));
    let cold = 1; // among the hot blocks, and never written again
    let (began, hot) = (run.now_ns, PAGES / 3);
    let mut id = 0;
    while !run.destaged.contains(&cold) {
        let block = if id < hot { id } else { 2 + rng.below(hot - 2) };
        id += 1;
        run.write(id, block);
        run.destage();
        assert!(run.now_ns < began + 3 * max_age_ns, "it never went to the origin");
    }
    assert!(run.now_ns >= began + max_age_ns, "it went there before its time");
    assert!(run.relocated() > hot, "it was not moved in between");
}

/// Not moved, but as easily forgotten: the chunk that comes first is open in a slot that nobody
/// uses, and the origin has all of it.
#[test]
fn a_chunk_behind_that_of_an_idle_slot_grows_old() {
    for max_age_ns in [1_000_000, 2_000_000_000] {
        let mut run = Run::new(max_age_ns);
        for id in 0..8 {
            hooks::set_cpu(id as u32 % 2);
            run.write(id, id);
            hooks::set_cpu(0);
            let began = run.now_ns;
            while !run.destaged.contains(&id) {
                run.destage();
                let age_ns = run.now_ns - began;
                assert!(age_ns < max_age_ns + 500_000_000, "block {id} never went to the origin");
            }
            assert!(run.now_ns >= began + max_age_ns / 2, "block {id} went there before its time");
            for _ in 0..300 {
                run.destage();
            }
        }
    }
}

#[test]
fn a_copy_that_was_moved_does_not_pass_for_a_torn_write() {
    let (mut run, mut rng) = (Run::new(0), Rng::new(9));
    let (hot, mut damaged, mut id) = (PAGES * 2 / 5, 0, 0);
    while damaged < 20 {
        let block = if id < hot { id } else { rng.below(hot) };
        id += 1;
        assert!(id < 20_000, "too seldom is a copy the last page of its chunk");
        let before = run.relocated();
        run.write(id, block);
        run.destage();
        let Some((chunk, page, copied)) = run.tails().into_iter().find(|t| t.2 != block) else {
            continue;
        };
        if run.relocated() == before {
            continue;
        }
        let at = ((chunk + 1) << 16) + page * 4096;
        run.engine.media.flip((at + rng.below(4096)) * 8);
        run.engine.abandon();
        run.engine.open_all(&sys::fby_options { nslots: 2, ..Default::default() }).unwrap();
        run.attach();
        let mut buf = [0; 4096];
        let read = run.engine.read_block(0, copied, 0, &mut buf);
        assert!(read.lost != 0, "block {copied}, of long ago, shows as something older");
        run.write(id, copied); // that heals it
        damaged += 1;
    }
}
