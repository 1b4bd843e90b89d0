// SPDX-License-Identifier: MIT OR Apache-2.0
//! What stays in the pool although others want the room.
//!
//! Blocks that are lost stay until they are overwritten.  Where the pool is short of space
//! they are packed into fewer chunks, by carrying them forward once more; that has to end,
//! although a round takes fewer than there are.
//!
//! A volume that is not attached keeps its chunks, until it is attached and drained, or
//! removed (docs/isolation.md).

use forebay_engine::sys;
use forebay_sim::engine::{identity, small_attach, volume_spec, Decision, Engine, Wait};
use forebay_sim::media::{Flavour, Media};
use forebay_sim::script::data;

/// Pages of data in a chunk.
const ROOM: u64 = 15;
/// Of the lossy pool.
const CHUNKS: u64 = 6;
const LOST: u64 = 45;
const SECTORS: u64 = 2048;

struct Run {
    engine: Engine,
    now_ns: u64,
}

impl Run {
    fn new(chunks: u64) -> Self {
        let media = Media::new(((chunks + 1) << 16) as usize, Flavour::NonTemporal);
        let mut run = Self { engine: Engine::new(media), now_ns: 1_000_000_000 };
        let options = sys::fby_options { nslots: 1, ..Default::default() };
        run.engine.format([3; 16], 1 << 16, 2).unwrap();
        run.engine.open_all(&options).unwrap();
        for number in [1, 2] {
            let spec = volume_spec(&format!("v{number}"), number, SECTORS, 512);
            run.engine.volume_add(&spec).unwrap();
        }
        run
    }

    /// The first volume is number 1.
    fn attach(&mut self, index: u16, round_pages: u32) {
        let identity = identity(u64::from(index) + 1);
        let attach = small_attach(SECTORS, &identity, round_pages);
        self.engine.volume_attach(index, &attach).unwrap();
    }

    fn try_write(&mut self, index: u16, block: u64) -> bool {
        let bytes = data(u64::from(index) + 1, block * 8..block * 8 + 8, 7);
        match self.engine.write(index, block * 8, &bytes, &mut 0, &mut 0) {
            Ok(Decision::Done) => true,
            Ok(Decision::Wait(Wait::Space)) => false,
            other => panic!("block {block}: {other:?}"),
        }
    }

    fn write(&mut self, index: u16, block: u64) {
        assert!(self.try_write(index, block), "no room for block {block}");
    }

    /// Flips a bit in the data of each page of the first volume.
    fn damage(&mut self) {
        for chunk in 0..CHUNKS {
            for page in 1..16 {
                let entry = self.engine.entry_info(chunk as u32, page, true).unwrap();
                if entry.linked && entry.line.volume == 0 {
                    let at = ((chunk + 1) << 16) + u64::from(page) * 4096;
                    self.engine.media.flip(at * 8);
                }
            }
        }
    }

    /// So many steps of destage, in which an origin takes everything.
    fn destage(&mut self, steps: u32) {
        for _ in 0..steps {
            self.now_ns += 20_000_000;
            let step = self.engine.destage_step(self.now_ns).unwrap();
            if let Some(io) = step.io {
                self.engine.destage_complete(io.id, 0);
            }
        }
    }

    fn rounds(&mut self) -> u64 {
        self.engine.volume_info(0).unwrap().rounds
    }
}

/// A pool that is short of space, with lost blocks of one volume in more chunks than they
/// need, and a page of another that is not attached.
fn lossy(round_pages: u32) -> Run {
    let mut run = Run::new(CHUNKS);
    run.attach(1, 16);
    run.write(1, 0);
    run.engine.volume_detach(1).unwrap();
    run.attach(0, round_pages);
    // A small round takes 24 of them: 15 and 9, in two chunks.
    for block in 0..LOST {
        run.write(0, block);
    }
    run.damage();
    run.engine.volume_drain(0, true).unwrap();
    run.destage(400);
    run
}

#[test]
fn packing_comes_to_rest() {
    for round_pages in [32, 128] {
        let mut run = lossy(round_pages);
        let info = run.engine.volume_info(0).unwrap();
        assert_eq!((info.pages, info.lost_blocks), (LOST, LOST), "all of it is lost");
        let before = run.rounds();
        run.destage(2000);
        let n = run.rounds() - before;
        let chunks = run.engine.volume_info(0).unwrap().chunks;
        assert!(n <= CHUNKS, "rounds of {round_pages}: {n} rounds, {chunks} chunks");
        run.engine.check(true).unwrap();
    }
}

/// The first volume fills most of the pool, half of what it wrote is overwritten, and it is
/// detached; the second takes what is free.
fn beside_a_detached_one() -> (Run, u64) {
    let mut run = Run::new(16);
    run.attach(0, 64);
    let blocks = 5 * ROOM;
    for block in 0..blocks {
        run.write(0, block);
    }
    for block in (0..blocks).step_by(2) {
        run.write(0, block);
    }
    run.engine.volume_detach(0).unwrap();
    let held = u64::from(run.engine.volume_info(0).unwrap().chunks);
    run.attach(1, 64);
    // Its origin takes nothing, so that it keeps what it gets.
    let got = (0..).take_while(|&block| run.try_write(1, block)).count() as u64;
    (run, held * ROOM + got)
}

#[test]
fn a_detached_volume_keeps_its_chunks_and_says_so() {
    let (mut run, filled) = beside_a_detached_one();
    let info = run.engine.volume_info(0).unwrap();
    assert!(!info.attached);
    assert_eq!((info.pages, info.chunks), (75, 8), "chunks with dead pages stay whole");
    // Two chunks are the reserve.
    assert_eq!(filled, 14 * ROOM, "all the rest is for who is attached");
    for _ in 0..500 {
        run.now_ns += 20_000_000;
        run.engine.destage_step(run.now_ns).unwrap();
    }
    assert_eq!(run.engine.volume_info(0).unwrap().chunks, 8, "nor are they taken later");
    assert!(!run.try_write(1, 63), "so the other waits");
}

#[test]
fn attached_and_drained_it_gives_them_back() {
    let (mut run, _) = beside_a_detached_one();
    run.attach(0, 64);
    run.engine.volume_drain(0, true).unwrap();
    for _ in 0..500 {
        run.now_ns += 20_000_000;
        let step = run.engine.destage_step(run.now_ns).unwrap();
        if let Some(io) = step.io.filter(|io| io.volume == 0) {
            run.engine.destage_complete(io.id, 0);
        }
    }
    assert_eq!(run.engine.volume_info(0).unwrap().chunks, 0);
    run.write(1, 63);
}

#[test]
fn removed_it_gives_them_back() {
    let (mut run, _) = beside_a_detached_one();
    assert!(run.engine.volume_remove(0, false).is_err(), "it holds data");
    run.engine.volume_remove(0, true).unwrap();
    run.write(1, 63);
}
