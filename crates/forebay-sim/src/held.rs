// SPDX-License-Identifier: MIT OR Apache-2.0
//! Pages that stay in the pool although others need the room: a pool for such cases, and two of
//! them.
//!
//! Lost blocks stay until they are overwritten.  If the pool is short of space, destage packs
//! them into fewer chunks, by carrying them forward once more.  That has to end, although a
//! round takes fewer than there are.

use std::ops::Range;

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
        for page in 1..16 {
            self.damage_pages(0, page, chunks);
        }
    }

    /// Flips a bit in the data of that page of each of the volume's chunks.
    pub fn damage_page(&mut self, volume: u16, page: u32) {
        let chunks = self.engine.info().sb.nchunks;
        self.damage_pages(volume, page, chunks.into());
    }

    fn damage_pages(&mut self, volume: u16, page: u32, chunks: u64) {
        for chunk in 0..chunks {
            let entry = self.engine.entry_info(chunk as u32, page, true).unwrap();
            if entry.linked && entry.line.volume == volume {
                let at = ((chunk + 1) << 16) + u64::from(page) * 4096;
                self.engine.media.flip(at * 8);
            }
        }
    }

    /// So many steps of destage, in which an origin takes everything.
    pub fn destage(&mut self, steps: u32) {
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
    for (chunks, round_pages) in [(5, 32), (5, 128), (6, 32), (6, 128), (7, 32)] {
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

/// In a chunk of 16 pages.
fn line_at(chunk: u64, page: u32) -> Range<u64> {
    let at = ((chunk + 1) << 16) + u64::from(sys::fby_line_of_page(16, page)) * 64;
    at..at + 64
}

/// That a block is lost is known for as long as it is: its new entry is the last page of an
/// open chunk, and its line is destroyed when the watermark has passed the one before.
pub fn carried_are_not_torn() -> Result<(), String> {
    let mut run = Run::new(16);
    run.attach(0, 64);
    run.write(0, 5);
    run.damage(16);
    run.engine.volume_drain(0, true).unwrap();
    for _ in 0..100 {
        // No time passes, so nothing is sealed but by this.
        let step = run.engine.destage_step(run.now_ns).unwrap();
        if let Some(io) = step.io {
            run.engine.destage_complete(io.id, 0);
        }
    }
    if (run.rounds(), run.engine.volume_info(0).unwrap().lost_blocks) != (1, 1) {
        return Err("a damaged block is not carried".into());
    }
    for chunk in 0..16 {
        for page in 1..16 {
            if run.engine.entry_info(chunk, page, true).unwrap().linked {
                for byte in line_at(chunk.into(), page) {
                    run.engine.media.flip(byte * 8 + 1);
                    run.engine.media.flip(byte * 8 + 3);
                }
            }
        }
    }
    run.engine.abandon();
    let options = sys::fby_options { nslots: 1, ..Default::default() };
    let report = run.engine.open_all(&options).map_err(|e| e.to_string())?;
    match report.holes {
        0 => Err("a block that was lost shows what the origin has".into()),
        _ => Ok(()),
    }
}

pub fn all() -> Result<(), String> {
    packing_comes_to_rest()?;
    carried_are_not_torn()
}
