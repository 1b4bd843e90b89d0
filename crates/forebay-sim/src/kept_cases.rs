// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rounds of destage that keep pages ([`crate::keeping`]), and what comes in their way: the
//! pool is full when a copy is to be made, a writer has the slot that is to be sealed, a page
//! that is to be copied is damaged, a drain.  Each case tells how often that has happened.

use std::collections::BTreeSet;

use forebay_engine::{sys, Write};

use crate::hooks;
use crate::keeping::{Run, BLOCKS, CHUNKS, NUMBER};
use crate::origin::Loss;
use crate::reading::{read_volume, LOST};
use crate::script::data;

const PAGE: u64 = 4096;
const LINES: u32 = 64; // of a page

/// Acknowledged data is there, or lost where that is allowed; nothing older shows.  Returns how
/// many blocks are lost.
pub(crate) fn judge(run: &mut Run, may_be_lost: &BTreeSet<u64>) -> Result<u64, String> {
    let ids = read_volume(&mut run.engine, 0, &run.origin)?;
    let mut lost = 0;
    for (block, sectors) in (0..).zip(ids.chunks(8)) {
        let newest = run.newest.get(&block).copied().unwrap_or(1);
        if sectors.contains(&LOST) && may_be_lost.contains(&block) {
            lost += 1;
        } else if sectors.iter().any(|id| *id != newest) {
            return Err(format!("block {block} is {sectors:?} and not {newest}"));
        }
    }
    run.engine.check(true)?;
    Ok(lost)
}

/// The process ends, the origin loses what was not flushed, and the pool is opened again.
pub(crate) fn crash(run: &mut Run) {
    run.engine.abandon();
    run.origin.power_cut(Loss::All, &mut run.rng);
    run.open(0);
}

/// The load goes on until a round's requests are on their way.
fn until_writing(run: &mut Run) -> Result<(), String> {
    for state in [sys::FBY_DESTAGE_FLUSHING, sys::FBY_DESTAGE_WRITING] {
        for n in 0.. {
            run.load()?;
            if run.volume().destage == state {
                break;
            }
            if n > 50_000 {
                return Err("no round".into());
            }
        }
    }
    Ok(())
}

/// Writers who are not throttled, and fill each chunk as it becomes free, while a round makes
/// its copies: it ends without them, and all goes on.  How many have.
pub fn no_room() -> Result<u64, String> {
    let mut run = Run::with_slots(0, 1);
    let mut without = 0;
    run.overload()?;
    for n in 0..24 {
        until_writing(&mut run)?;
        let (rounds, mut steps) = (run.volume().rounds, 0);
        loop {
            for _ in 0..2 * CHUNKS * 15 {
                let block = run.some_block();
                if !run.try_write(block)? {
                    break;
                }
            }
            let committing = run.committing();
            run.step();
            let ended = !run.committing() && committing;
            if ended && run.volume().rounds == rounds {
                without += 1;
            }
            steps += 1;
            if ended || run.volume().rounds > rounds || steps > 5_000 {
                break;
            }
        }
        if n % 8 == 7 {
            crash(&mut run);
        }
        judge(&mut run, &BTreeSet::new())?;
        run.overload()?;
    }
    Ok(without)
}

/// A writer between the steps of destage: holds the slot that is this CPU's.
struct Writer {
    write: Write,
    block: u64,
    id: u64,
}

fn begin(run: &mut Run, cpu: u32, block: u64) -> Option<Writer> {
    let mut write = Write::default();
    hooks::set_cpu(cpu);
    let begun = run.engine.write_begin(&mut write, 0, block * 8, 8);
    hooks::set_cpu(0);
    begun.ok().filter(|d| *d == crate::engine::Decision::Done)?;
    run.next_id += 1;
    Some(Writer { write, block, id: run.next_id - 1 })
}

fn end(run: &mut Run, mut w: Writer) {
    let bytes = data(NUMBER, w.block * 8..w.block * 8 + 8, w.id);
    run.engine.write_copy(&mut w.write, &bytes, 0);
    run.engine.write_commit(&mut w.write);
    run.engine.write_publish(&mut w.write);
    run.newest.insert(w.block, w.id);
}

/// A round has made copies and comes to a block that a writer has, so that it has not sealed
/// them; then another one takes the slot.  Until he has ended the watermark stays.  How often.
pub fn slot_busy() -> Result<u64, String> {
    let mut run = Run::with_slots(0, 2);
    let mut waited = 0;
    run.overload()?;
    for n in 0..40 {
        until_writing(&mut run)?;
        let cached: Vec<u64> = run.newest.keys().copied().collect();
        let block = cached[run.rng.index(cached.len())];
        let Some(first) = begin(&mut run, 1, block) else { continue };
        let (mut second, watermark) = (None, run.volume().watermark);
        for _ in 0..5_000 {
            let copied = run.volume().pages_relocated;
            run.step();
            if run.volume().watermark != watermark {
                break;
            }
            if run.volume().pages_relocated > copied {
                // A block that nobody writes else.
                second = begin(&mut run, 0, BLOCKS + 1);
                break;
            }
        }
        end(&mut run, first);
        let Some(second) = second else { continue };
        let rounds = run.volume().rounds;
        for _ in 0..300 {
            run.step();
        }
        let waits = run.committing() && run.volume().watermark == watermark;
        waited += u64::from(waits);
        if n % 4 == 3 {
            // The one in flight was not acknowledged.
            crash(&mut run);
        } else {
            end(&mut run, second);
            for _ in 0..2_000 {
                run.step();
            }
            if waits && run.volume().rounds == rounds {
                return Err("the slot is free, and the round does not end".into());
            }
        }
        judge(&mut run, &BTreeSet::new())?;
        run.overload()?;
    }
    Ok(waited)
}

/// A bit flips, or the media cannot read a page, after a round was planned: a page that it
/// would have kept is lost, and reported.  Nothing older shows, and a write heals it.  Returns
/// how many blocks were lost while copies were made.
pub fn damage() -> Result<u64, String> {
    let mut run = Run::with_slots(0, 1);
    let (mut damaged, mut lost_in_copies) = (BTreeSet::new(), 0);
    run.overload()?;
    for n in 0..12 {
        until_writing(&mut run)?;
        for chunk in 0..CHUNKS as u32 {
            for page in 1..16 {
                let entry = run.engine.entry_info(chunk, page, false).unwrap();
                if !entry.linked || !run.rng.one_in(25) {
                    continue;
                }
                let at = ((u64::from(chunk) + 1) << 16) + u64::from(page) * PAGE;
                match n % 2 {
                    0 => run.engine.media.flip((at + run.rng.below(PAGE)) * 8),
                    _ => run.engine.media.poison((at / 64) as u32, LINES),
                }
                damaged.insert(entry.line.block);
            }
        }
        let rounds = run.volume().rounds;
        for _ in 0..20_000 {
            let before = run.volume();
            run.step();
            let now = run.volume();
            let copying =
                [sys::FBY_DESTAGE_COMMITTING, sys::FBY_DESTAGE_FLUSHING].contains(&before.destage);
            if copying {
                lost_in_copies += now.lost_blocks.saturating_sub(before.lost_blocks);
            }
            if now.rounds > rounds {
                break;
            }
        }
        if n % 4 == 3 {
            crash(&mut run);
        }
        if judge(&mut run, &damaged)? == 0 {
            return Err("nothing is lost".into());
        }
        for &block in &damaged {
            run.write(block)?;
        }
        damaged.clear();
        if judge(&mut run, &damaged)? != 0 {
            return Err("a write has not healed a block".into());
        }
        run.overload()?;
    }
    Ok(lost_in_copies)
}

/// A drain writes back what it lists, an eighth of the pool in a round, each page once; a drain
/// that keeps pages would come to them again.  Returns how many pages were drained.
pub fn drains_keep_nothing() -> Result<u64, String> {
    let mut run = Run::with_slots(0, 1);
    let mut drained = 0;
    for _ in 0..6 {
        run.overload()?;
        // The one that is under way has its plan.
        let rounds = run.volume().rounds;
        while run.volume().rounds == rounds {
            run.load()?;
        }
        let before = run.volume();
        run.engine.volume_drain(0, true).map_err(|e| e.to_string())?;
        for n in 0.. {
            run.step();
            if run.engine.volume_clean(0) {
                break;
            }
            if n > 20_000 {
                return Err("a drain does not end".into());
            }
        }
        let now = run.volume();
        let rounds = now.origin_flushes - before.origin_flushes;
        let requests = now.origin_writes - before.origin_writes;
        if rounds > before.pages.div_ceil(CHUNKS * 15 / 8) {
            return Err(format!("a drain of {} pages took {rounds} rounds", before.pages));
        }
        if requests > before.pages {
            return Err(format!("a drain of {} pages took {requests} requests", before.pages));
        }
        drained += before.pages;
        run.engine.volume_drain(0, false).map_err(|e| e.to_string())?;
        judge(&mut run, &BTreeSet::new())?;
    }
    Ok(drained)
}

/// A case, and how often at least its situation comes about.
pub(crate) type Case = (&'static str, fn() -> Result<u64, String>, u64);

pub const CASES: [Case; 4] = [
    ("no room for what is kept", no_room, 5),
    ("the slot of a copy is busy", slot_busy, 2),
    ("damage in what is kept", damage, 10),
    ("nothing is kept in a drain", drains_keep_nothing, 1000),
];

pub(crate) fn hold(cases: &[Case]) -> Result<(), String> {
    for (name, run, least) in cases {
        match run().map_err(|e| format!("{name}: {e}"))? {
            times if times < *least => return Err(format!("{name}: has come about {times} times")),
            _ => {}
        }
    }
    Ok(())
}

pub fn drain() -> Result<(), String> {
    hold(&CASES[3..])
}

pub fn in_the_way() -> Result<(), String> {
    hold(&CASES[..3])
}

/// Prints the cases with the result of each.
#[cfg(test)]
pub(crate) fn tell(cases: &[Case]) {
    for (name, run, least) in cases {
        let began = std::time::Instant::now();
        let times = run().unwrap_or_else(|e| panic!("{name}: {e}"));
        println!("{name}: {times}, {:?}", began.elapsed());
        assert!(times >= *least, "{name}: {times} times");
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn each_comes_about_and_nothing_is_lost() {
        super::tell(&super::CASES);
    }
}
