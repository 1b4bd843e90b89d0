// SPDX-License-Identifier: MIT OR Apache-2.0
//! What stays in the pool although others want the room: a pool for such cases, and the
//! first of them.
//!
//! Blocks that are lost stay until they are overwritten.  Where the pool is short of space
//! they are packed into fewer chunks, by carrying them forward once more; that has to end,
//! although a round takes fewer than there are.

use forebay_engine::sys;

use crate::engine::{identity, small_attach, volume_spec, Decision, Engine, Wait};
use crate::media::{Flavour, Media};
use crate::script::data;

const LOST: u64 = 45;
const SECTORS: u64 = 2048;

/// A pool of two volumes.
pub struct Run {
    pub engine: Engine,
    pub now_ns: u64,
}

impl Run {
    pub fn new(chunks: u64) -> Self {
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
    pub fn attach(&mut self, index: u16, round_pages: u32) {
        let identity = identity(u64::from(index) + 1);
        let attach = small_attach(SECTORS, &identity, round_pages);
        self.engine.volume_attach(index, &attach).unwrap();
    }

    pub fn try_write(&mut self, index: u16, block: u64) -> bool {
        let bytes = data(u64::from(index) + 1, block * 8..block * 8 + 8, 7);
        match self.engine.write(index, block * 8, &bytes, &mut 0, &mut 0) {
            Ok(Decision::Done) => true,
            Ok(Decision::Wait(Wait::Space)) => false,
            other => panic!("block {block}: {other:?}"),
        }
    }

    pub fn write(&mut self, index: u16, block: u64) {
        assert!(self.try_write(index, block), "no room for block {block}");
    }

    /// Flips a bit in the data of each page of the first volume.
    fn damage(&mut self, chunks: u64) {
        for chunk in 0..chunks {
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
fn lossy(chunks: u64, round_pages: u32) -> Run {
    let mut run = Run::new(chunks);
    run.attach(1, 16);
    run.write(1, 0);
    run.engine.volume_detach(1).unwrap();
    run.attach(0, round_pages);
    // A small round takes 24 of them: 15 and 9, in two chunks.
    for block in 0..LOST {
        run.write(0, block);
    }
    run.damage(chunks);
    run.engine.volume_drain(0, true).unwrap();
    run.destage(400);
    run
}

pub fn packing_comes_to_rest() -> Result<(), String> {
    for (chunks, round_pages) in [(6, 32), (6, 128), (7, 32)] {
        let mut run = lossy(chunks, round_pages);
        let info = run.engine.volume_info(0).unwrap();
        if (info.pages, info.lost_blocks) != (LOST, LOST) {
            return Err(format!("{} pages and {} lost blocks", info.pages, info.lost_blocks));
        }
        let before = run.rounds();
        run.destage(2000);
        let n = run.rounds() - before;
        if n > chunks {
            return Err(format!(
                "{chunks} chunks, rounds of {round_pages}: {n} rounds to pack lost blocks"
            ));
        }
        let error = run.engine.volume_info(0).unwrap().last_error;
        if error != 0 {
            return Err(format!("{chunks} chunks, rounds of {round_pages}: error {error}"));
        }
        run.engine.check(true)?;
    }
    Ok(())
}
