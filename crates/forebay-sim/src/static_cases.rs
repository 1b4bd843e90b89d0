// SPDX-License-Identifier: MIT OR Apache-2.0
//! Cases of static volumes that no crash makes: lines that are wiped, a page that is bad
//! only for a time, how fast eras go by and what comes when they are used up, and volumes of
//! both kinds that are always busy.

use std::collections::BTreeSet;

use forebay_engine::sys;

use crate::engine::{identity, small_attach, volume_spec, Decision, Engine, Io};
use crate::media::{Flavour, Media};
use crate::script::data;

const CHUNKS: u64 = 16;
const SHARES: usize = ((CHUNKS + 1) << 16) as usize;
const LINES: usize = SHARES + 4096;
const UUID: [u8; 16] = [5; 16];
const HEAD: usize = 256;

/// The last volume of a pool is static, with a slot for each of its blocks.
struct Run {
    engine: Engine,
    index: u16,
    slots: u64,
    now_ns: u64,
}

impl Run {
    fn new(share: u64, others: u16) -> Self {
        let media = Media::new(SHARES + share as usize, Flavour::NonTemporal);
        let mut engine = Engine::new(media);
        engine.format_with_room(UUID, 1 << 16, 4, share).unwrap();
        engine.open_all(&options()).unwrap();
        for index in 0..=others {
            let spec = volume_spec(&format!("v{index}"), u64::from(index) + 1, 8 * 64, 512);
            let mut spec = sys::fby_volume_spec { static_bytes: 0, ..spec };
            if index == others {
                spec.static_bytes = share;
                spec.origin_sectors = share / 8192 * 8; // nearly
            }
            engine.volume_add(&spec).unwrap();
        }
        let slots = u64::from(engine.volume_info(others).unwrap().slots);
        let run = Self { engine, index: others, slots, now_ns: 1_000_000_000 };
        (0..=others).for_each(|index| run.attach(index).unwrap());
        run
    }

    fn attach(&self, index: u16) -> Result<(), forebay_engine::Code> {
        let sectors = self.engine.volume_info(index).unwrap().spec.origin_sectors;
        self.engine
            .volume_attach(index, &small_attach(sectors, &identity(u64::from(index) + 1), 64))
    }

    fn write(&mut self, index: u16, block: u64, id: u64) -> Result<Decision, forebay_engine::Code> {
        let bytes = data(1, block * 8..block * 8 + 8, id);
        self.engine.write(index, block * 8, &bytes, &mut 0, &mut 0)
    }

    fn put(&mut self, block: u64, id: u64) {
        assert_eq!(self.write(self.index, block, id), Ok(Decision::Done));
    }

    fn step(&mut self, by_ns: u64) -> Option<Io> {
        self.now_ns += by_ns;
        let io = self.engine.destage_step(self.now_ns).unwrap().io?;
        self.engine.destage_complete(io.id, 0);
        Some(io)
    }

    /// Until it is clean; whether the block went to the origin.
    fn drain(&mut self, block: u64) -> Result<bool, String> {
        self.engine.volume_drain(self.index, true).unwrap();
        let mut went = false;
        for _ in 0..2000 {
            let io = self.step(100_000);
            went |= io.is_some_and(|io| {
                io.volume == self.index
                    && io.op == sys::FBY_IO_WRITE
                    && (io.sector..io.sector + io.nsectors).contains(&(block * 8))
            });
            if self.engine.volume_clean(self.index) {
                return Ok(went);
            }
        }
        Err("a drain does not end".into())
    }

    /// Runs destage for so long; requests for a bad block are refused.  Returns how many were.
    fn destage(&mut self, ns: u64, bad: &[u64], home: &mut BTreeSet<u64>) -> Result<u32, String> {
        let (end_ns, mut refused) = (self.now_ns + ns, 0);
        for _ in 0..2_000_000 {
            if self.now_ns >= end_ns {
                return Ok(refused);
            }
            self.now_ns += 10_000;
            let step = self.engine.destage_step(self.now_ns).map_err(|e| e.to_string())?;
            let Some(io) = step.io else {
                if step.decision == Decision::Done {
                    self.now_ns += 2_000_000;
                }
                continue;
            };
            let blocks = io.sector / 8..(io.sector + io.nsectors).div_ceil(8);
            let fails = bad.iter().any(|b| blocks.contains(b));
            refused += u32::from(fails);
            if !fails && io.op == sys::FBY_IO_WRITE {
                home.extend(blocks);
            }
            self.engine.destage_complete(io.id, if fails { 5 } else { 0 });
        }
        Err("destage has no rest".into())
    }

    fn is_lost(&mut self, block: u64) -> bool {
        let read = self.engine.read_block(self.index, block, 0, &mut [0; 4096]);
        read.result.is_err_and(|e| e.is(sys::FBY_E_LOST))
    }

    fn has(&mut self, block: u64, id: u64) -> bool {
        let mut buf = [0; 4096];
        let read = self.engine.read_block(self.index, block, 0, &mut buf);
        read.result == Ok(Decision::Done) && buf[..] == data(1, block * 8..block * 8 + 8, id)
    }

    fn era(&self, block: u64) -> u64 {
        let slot = self.engine.static_slot_info(self.index, block, false).unwrap();
        slot.way.iter().map(|w| w.era).max().unwrap_or(0)
    }

    /// In both pages of its slot.
    fn flip(&self, block: u64) {
        let lines = (self.slots * 64 + HEAD as u64).div_ceil(4096) * 4096;
        for way in 0..2 {
            let at = LINES as u64 + lines + (block * 2 + way) * 4096;
            self.engine.media.flip((at + 100) * 8);
        }
    }
}

fn options() -> sys::fby_options {
    sys::fby_options { nslots: 1, statics: true, ..Default::default() }
}

/// All blocks were written; then each line is filled with a byte, or with anything.  None of
/// the blocks may answer from the origin.
pub fn wiped() -> Result<(), String> {
    let mut run = Run::new(32 << 20, 0);
    (0..run.slots).for_each(|block| run.put(block, 1));
    let mut rng = crate::rng::Rng::new(7);
    for fill in 0..24u64 {
        for slot in 0..run.slots {
            let words: [u64; 8] = match fill {
                0..=11 => {
                    [[0, 0xff, 0x10, 0x20, 0x30, 0x40, 0x50, 0x64, 0x70, 0x80, 0x94, 0xa0]
                        [fill as usize]
                        * 0x0101_0101_0101_0101; 8]
                }
                _ => std::array::from_fn(|_| rng.next_u64()),
            };
            let line = LINES as u64 / 64 + slot;
            run.engine.media.state_mut().visible.set_line(line as u32, &words);
        }
        let shown = (0..run.slots).filter(|&block| !run.is_lost(block)).count();
        if shown > 0 {
            return Err(format!("fill {fill}: {shown} blocks answer from the origin"));
        }
    }
    Ok(())
}

/// A page that destage found bad reads well later: a drain that follows a list of what is
/// lost has it, and none says before that all is well.
pub fn bad_for_a_time() -> Result<(), String> {
    let mut run = Run::new(1 << 20, 0);
    run.put(0, 1);
    run.put(9, 1);
    run.flip(9);
    run.drain(9)?;
    if !run.is_lost(9) {
        return Err("a bad page is delivered".into());
    }
    run.flip(9);
    for _ in 0..2 {
        let (lost, passed_over) = run.engine.lost_and_passed_over(run.index, 64);
        if !lost.is_empty() || passed_over != 1 {
            return Err(format!("{lost:?} lost, {passed_over} passed over"));
        }
        if run.engine.volume_info(run.index).unwrap().lost_blocks == 0 {
            return Err("nothing is lost, and the origin lacks a page".into());
        }
    }
    if !run.drain(9)? {
        return Err("a page that reads well again was not written".into());
    }
    match run.engine.lost_and_passed_over(run.index, 64) {
        (lost, 0) if lost.is_empty() => Ok(()),
        other => Err(format!("after the drain: {other:?}")),
    }
}

/// Under a load that fills rounds without a pause eras end about a thousand times a second,
/// and each pass of a drain has what was there when it began.
pub fn eras_in_time() -> Result<(), String> {
    let mut run = Run::new(1 << 20, 0);
    let (mut passes, mut n) = (0, 0);
    run.put(0, 1);
    let (first, begun_ns) = (run.era(0), run.now_ns);
    while run.now_ns < begun_ns + 100_000_000 {
        run.engine.volume_drain(run.index, true).unwrap();
        n += 1;
        let block = n % run.slots;
        let _ = run.write(run.index, block, n);
        run.step(5_000);
        passes = run.engine.volume_info(run.index).unwrap().watermark;
    }
    run.drain(0)?;
    run.put(0, 2);
    let eras = run.era(0) - first;
    if !(20..130).contains(&eras) || passes < 20 {
        return Err(format!("{eras} eras and {passes} passes in 100 ms"));
    }
    Ok(())
}

/// Writes the head of the detached volume's share with this number of eras.
fn eras_of(run: &Run, limit: u64) {
    let uuid = run.engine.volume_info(run.index).unwrap().spec.uuid;
    let seed = sys::crc32c(sys::crc32c(0, &UUID), &uuid);
    let lines = (run.slots as usize * 64 + HEAD).div_ceil(4096) * 4096;
    for at in [SHARES, LINES + lines - HEAD] {
        let mut head = run.engine.media.image()[at..at + HEAD].to_vec();
        for field in [32, 40] {
            head[field..field + 8].copy_from_slice(&limit.to_le_bytes());
        }
        let crc = sys::crc32c(seed, &head[..HEAD - 4]);
        head[HEAD - 4..].copy_from_slice(&crc.to_le_bytes());
        for (n, line) in head.chunks_exact(64).enumerate() {
            let words = std::array::from_fn(|w| {
                u64::from_le_bytes(line[w * 8..w * 8 + 8].try_into().expect("8 bytes"))
            });
            run.engine.media.state_mut().visible.set_line((at / 64 + n) as u32, &words);
        }
    }
}

/// Near the end of the eras a volume takes no write, but is read and drained; empty it begins
/// anew, and from half on whenever it is attached so.
pub fn used_up() -> Result<(), String> {
    const MAX: u64 = (1 << 40) - 1;
    for (limit, at_end) in [(MAX / 2 + 1, false), (MAX - (1 << 20), true), (MAX - 5, true)] {
        let mut run = Run::new(1 << 20, 0);
        run.put(3, 1);
        run.engine.volume_detach(run.index).unwrap();
        eras_of(&run, limit);
        run.attach(run.index).map_err(|e| format!("era {limit:#x}: {e}"))?;
        let percent = run.engine.volume_info(run.index).unwrap().eras_percent;
        if !run.has(3, 1) || percent < 50 || (percent >= 100) != at_end {
            return Err(format!("era {limit:#x}: {percent} %, or what was there is gone"));
        }
        match run.write(run.index, 4, 1) {
            Ok(Decision::Done) if !at_end => (),
            Err(e) if at_end && e.is(sys::FBY_E_ERAS) => (),
            other => return Err(format!("era {limit:#x}: a write: {other:?}")),
        }
        if !run.drain(3)? {
            return Err(format!("era {limit:#x}: a drain leaves what was there"));
        }
        run.engine.check(true)?;
        run.engine.volume_detach(run.index).unwrap();
        run.attach(run.index).map_err(|e| format!("era {limit:#x}, empty: {e}"))?;
        run.put(3, 2);
        if run.era(3) > 4 || run.engine.volume_info(run.index).unwrap().eras_percent != 0 {
            return Err(format!("era {limit:#x}: it does not begin anew, but with {}", run.era(3)));
        }
        run.engine.check(true)?;
        run.engine.abandon();
        run.engine.open_all(&options()).unwrap();
        run.attach(run.index).map_err(|e| e.to_string())?;
        if !run.has(3, 2) || !run.drain(3)? {
            return Err(format!("era {limit:#x}: what was written anew is gone"));
        }
    }
    Ok(())
}

/// Volumes with chunks that are as busy leave static ones their turn.
pub fn in_turn() -> Result<(), String> {
    let mut run = Run::new(1 << 20, 3);
    let (mut of_it, mut all) = (0, 0);
    for n in 0..4000u64 {
        for index in 0..=3 {
            let _ = run.write(index, n * 7 % 64, n);
            run.engine.volume_drain(index, true).unwrap();
        }
        if let Some(io) = run.step(20_000) {
            all += 1;
            of_it += u32::from(io.volume == run.index);
        }
    }
    // There are three of the others, whose blocks go to the origin in longer runs.
    match of_it * 4 > all {
        true => Ok(()),
        false => Err(format!("{of_it} of {all} requests are of the static volume")),
    }
}

/// Two sectors are bad: the other blocks go home, those stay, are tried more and more seldom,
/// and go when they are mended.
pub fn bad_sectors() -> Result<(), String> {
    let mut run = Run::new(1 << 20, 0);
    let blocks = run.slots.min(90);
    (0..blocks).for_each(|block| run.put(block, 2));
    let (bad, mut home) = ([0, 40], BTreeSet::new());
    run.engine.volume_drain(run.index, true).map_err(|e| e.to_string())?;
    run.destage(2_000_000_000, &bad, &mut home)?;
    let left: Vec<u64> = (0..blocks).filter(|b| !home.contains(b)).collect();
    let v = run.engine.volume_info(run.index).map_err(|e| e.to_string())?;
    if left != bad || v.pages != 2 || v.last_error != 5 || run.engine.volume_clean(run.index) {
        return Err(format!("{left:?} are left, {} pages, error {}", v.pages, v.last_error));
    }
    let tried = run.destage(60_000_000_000, &bad, &mut home)?;
    if !(2..=40).contains(&tried) {
        return Err(format!("two bad blocks are tried {tried} times in a minute"));
    }
    run.engine.abandon();
    run.engine.open_all(&options()).map_err(|e| e.to_string())?;
    run.attach(run.index).map_err(|e| e.to_string())?;
    if bad.iter().any(|&block| !run.has(block, 2)) {
        return Err("what the origin refused is not in the pool".into());
    }
    run.engine.volume_drain(run.index, true).map_err(|e| e.to_string())?;
    run.destage(40_000_000_000, &[], &mut home)?;
    match run.engine.volume_clean(run.index) && bad.iter().all(|b| home.contains(b)) {
        true => Ok(()),
        false => Err("bad sectors are mended, and a drain does not end".into()),
    }
}

/// A page that was refused once, and was taken later, is written with its neighbours from then
/// on.
pub fn mended() -> Result<(), String> {
    let mut run = Run::new(1 << 20, 0);
    let blocks = run.slots.min(90);
    let bad: Vec<u64> = (0..blocks).step_by(6).collect();
    let mut requests = Vec::new();
    for refused in [&bad[..0], &bad, &bad[..0]] {
        let before = run.engine.volume_info(run.index).unwrap().origin_writes;
        (0..blocks).for_each(|block| run.put(block, 2));
        run.engine.volume_drain(run.index, true).map_err(|e| e.to_string())?;
        run.destage(1_000_000_000, refused, &mut BTreeSet::new())?;
        run.destage(40_000_000_000, &[], &mut BTreeSet::new())?;
        if !run.engine.volume_clean(run.index) {
            return Err("bad sectors are mended, and a drain does not end".into());
        }
        requests.push(run.engine.volume_info(run.index).unwrap().origin_writes - before);
    }
    match requests[2] {
        n if n <= requests[0] => Ok(()),
        n => Err(format!("{n} requests, {} before some were refused", requests[0])),
    }
}

pub fn all() -> Result<(), String> {
    wiped()?;
    bad_for_a_time()?;
    eras_in_time()?;
    used_up()?;
    in_turn()?;
    bad_sectors()?;
    mended()
}
