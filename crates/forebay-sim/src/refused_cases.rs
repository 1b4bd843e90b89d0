// SPDX-License-Identifier: MIT OR Apache-2.0
//! Origins that refuse some requests and take the others ([`crate::keeping`] has the pool and
//! its load): refused pages stay in the pool, and do not delay the rest.  Each case reports how
//! often its subject occurred.

use std::collections::BTreeSet;

use forebay_engine::sys;

use crate::hooks;
use crate::keeping::{Run, BLOCKS, SECTORS};
use crate::kept_cases::{crash, hold, judge, Case};
use crate::origin::Loss;

const SECOND_NS: u64 = 1_000_000_000;
/// Steps within a second of an origin that is retried again and again.
const STEPS: u64 = 2_000_000;
/// Consecutive blocks: more than a round lists.
const BAD_RUN: u64 = 400;

fn no_loss() -> BTreeSet<u64> {
    BTreeSet::new()
}

/// Runs for so long without writers.
fn rest(run: &mut Run, ns: u64) -> Result<(), String> {
    let end_ns = run.now_ns + ns;
    for _ in 0..STEPS {
        if run.now_ns >= end_ns {
            return Ok(());
        }
        if !run.step() {
            run.now_ns += 5_000_000;
        }
    }
    Err("destage has no rest".into())
}

fn drain(run: &mut Run, on: bool) -> Result<u64, String> {
    run.engine.volume_drain(0, on).map_err(|e| e.to_string())
}

/// The bad sectors are mended: a drain ends, and the origin alone has all.
fn mend(run: &mut Run) -> Result<(), String> {
    run.bad.clear();
    run.fails = 0;
    drain(run, true)?;
    for _ in 0..4_000 {
        rest(run, SECOND_NS / 50)?;
        if run.engine.volume_clean(0) && !run.committing() {
            break;
        }
    }
    if !run.engine.volume_clean(0) || run.volume().last_error != 0 {
        let v = run.volume();
        return Err(format!("mended: {} pages are left, error {}", v.pages, v.last_error));
    }
    drain(run, false)?;
    run.origin.power_cut(Loss::All, &mut run.rng);
    for block in 0..SECTORS / 8 {
        let newest = run.newest.get(&block).copied().unwrap_or(1);
        if (0..8).any(|k| run.origin.read(block * 8 + k) != newest) {
            return Err(format!("drained, and the origin lacks block {block}"));
        }
    }
    judge(run, &no_loss()).map(|_| ())
}

/// Those of these blocks that the origin lacks when all unflushed data is lost.
fn lacks(run: &Run, blocks: impl Iterator<Item = u64>) -> BTreeSet<u64> {
    let whole = |b: u64| (0..8).all(|k| Some(&run.origin.durable(b * 8 + k)) == run.newest.get(&b));
    blocks.filter(|b| !whole(*b)).collect()
}

/// Runs of blocks and single ones with a bad sector in some: the others are home after a
/// second or two; those are tried more and more seldom, and not copied meanwhile.
pub fn bad_sectors() -> Result<u64, String> {
    let mut run = Run::with_slots(0, 1);
    let blocks: Vec<u64> = (8..208).chain((300..700).step_by(4)).collect();
    for &block in &blocks {
        run.write(block)?;
    }
    let bad: BTreeSet<u64> = [8, 9, 77, 150, 207, 300, 696].into();
    run.bad = bad.iter().map(|b| b * 8 + 3).collect();
    let seq = drain(&mut run, true)?;
    rest(&mut run, 2 * SECOND_NS)?;
    let left = lacks(&run, blocks.iter().copied());
    if left != bad {
        return Err(format!("{left:?} are not home, and {bad:?} are bad"));
    }
    let v = run.volume();
    if v.pages != bad.len() as u64 || v.home + 1 >= seq || v.last_error == 0 {
        return Err(format!("{} pages are left, home {}, {}", v.pages, v.home, v.last_error));
    }
    let (copies, tries) = (v.pages_relocated, run.refused.len());
    if copies > 7 * 64 + 100 {
        return Err(format!("{copies} copies for {} pages", bad.len()));
    }
    rest(&mut run, 120 * SECOND_NS)?;
    // The pause is 30 s at most, and was two at least.
    let more = (run.refused.len() - tries) / bad.len();
    if !(2..=12).contains(&more) || run.volume().pages_relocated != copies {
        let copies = run.volume().pages_relocated - copies;
        return Err(format!("{more} tries of each in two minutes, and {copies} copies"));
    }
    crash(&mut run);
    judge(&mut run, &no_loss())?;
    mend(&mut run)?;
    Ok(run.refused.len() as u64)
}

/// The origin takes no request in its first part.  The blocks after it are reached, though they
/// are asked for later, and the origin is not asked for each block.
pub fn bad_area() -> Result<u64, String> {
    let mut run = Run::with_slots(0, 1);
    let blocks: Vec<u64> = (0..BLOCKS).step_by(8).take(400).collect();
    for &block in &blocks {
        run.write(block)?;
    }
    run.bad = (0..blocks[300] * 8).collect();
    drain(&mut run, true)?;
    rest(&mut run, SECOND_NS / 10)?;
    let asked = run.refused.len();
    if asked > 40 {
        return Err(format!("{asked} requests in a tenth of a second, and none was taken"));
    }
    // Some lie after bad ones, and are left out by chance.
    rest(&mut run, 600 * SECOND_NS)?;
    let left = lacks(&run, blocks.iter().copied()).len() as u64;
    if left != 300 {
        return Err(format!("{left} blocks are not home, and 300 are bad"));
    }
    crash(&mut run);
    judge(&mut run, &no_loss())?;
    mend(&mut run)?;
    Ok(left)
}

/// Nothing is taken: the round is given up, nothing is copied, and the pauses grow.
pub fn dead() -> Result<u64, String> {
    let mut run = Run::with_slots(0, 1);
    for block in (0..BLOCKS).step_by(4).take(500) {
        run.write(block)?;
    }
    run.bad = (0..SECTORS).collect();
    drain(&mut run, true)?;
    rest(&mut run, 60 * SECOND_NS)?;
    let v = run.volume();
    if v.pages_relocated > 0 || v.destage != sys::FBY_DESTAGE_BACKOFF || v.origin_flushes > 0 {
        return Err(format!("{} copies, {} flushes", v.pages_relocated, v.origin_flushes));
    }
    let asked = run.refused.len() as u64;
    if asked > 200 {
        return Err(format!("{asked} requests in a minute"));
    }
    mend(&mut run)?;
    Ok(asked)
}

/// A full cache before an origin of which a few sectors are bad, and which fails three
/// requests of a hundred: writers go on, nothing is lost whenever all is cut.
pub fn under_load() -> Result<u64, String> {
    let mut run = Run::with_slots(0, 1);
    run.overload()?;
    let bad: Vec<u64> = (0..12).map(|_| run.some_block()).collect();
    run.bad = bad.iter().map(|b| b * 8 + 5).collect();
    for n in 0..4 {
        run.fails = if n % 2 == 0 { 3 } else { 0 };
        let (rounds, writes, tries) = (run.volume().rounds, run.next_id, run.refused.len());
        for _ in 0..6_000 {
            run.load()?;
        }
        let (rounds, writes) = (run.volume().rounds - rounds, run.next_id - writes);
        if rounds < 2 || writes < 200 {
            return Err(format!("{rounds} rounds and {writes} writes before bad sectors"));
        }
        if n % 2 == 1 {
            // Four seconds, hundreds of rounds, and pauses from a tenth of a second on.
            let tries = run.refused.len() - tries;
            if tries > 10 * bad.len() {
                return Err(format!("{tries} tries of {} bad sectors, without a pause", bad.len()));
            }
            crash(&mut run);
        }
        judge(&mut run, &no_loss())?;
    }
    mend(&mut run)?;
    Ok(run.refused.len() as u64)
}

/// The block's page is damaged, and two of its sectors are written anew: returns these.
fn lose_most(run: &mut Run, block: u64) -> Result<Vec<u8>, String> {
    let at = (1..16)
        .flat_map(|page| (0..8).map(move |chunk| (chunk, page)))
        .find(|&(chunk, page)| {
            let entry = run.engine.entry_info(chunk, page, false).unwrap();
            entry.linked && entry.line.block == block
        })
        .ok_or(format!("block {block} is not in the pool"))?;
    let byte = ((u64::from(at.0) + 1) << 16) + u64::from(at.1) * 4096 + 3000;
    run.engine.media.flip(byte * 8);
    let id = run.next_id;
    run.next_id += 1;
    let bytes = crate::script::data(1, block * 8..block * 8 + 2, id);
    run.engine.write(0, block * 8, &bytes, &mut 0, &mut 0).map_err(|e| e.to_string())?;
    Ok(bytes)
}

/// A round has but a block that is refused and what is left of one that is lost in parts: that
/// goes home.
pub fn beside_lost() -> Result<u64, String> {
    let mut run = Run::with_slots(0, 1);
    for block in 0..60 {
        run.write(block)?;
    }
    run.bad = [40 * 8].into();
    drain(&mut run, true)?;
    rest(&mut run, SECOND_NS)?;
    run.write(59)?;
    let id = run.next_id;
    lose_most(&mut run, 59)?;
    rest(&mut run, 2 * SECOND_NS)?;
    match (0..2).all(|k| run.origin.durable(59 * 8 + k) == id) {
        true => Ok(run.volume().pages),
        false => Err("a block that is refused holds another one back".into()),
    }
}

/// Some sectors of a block are lost, and the origin refuses its others: these stay.
pub fn partly_lost() -> Result<u64, String> {
    let mut run = Run::with_slots(0, 1);
    for block in 0..60 {
        run.write(block)?;
    }
    let bytes = lose_most(&mut run, 59)?;
    run.bad = [59 * 8 + 1].into();
    drain(&mut run, true)?;
    rest(&mut run, 3 * SECOND_NS)?;
    let mut buf = [0; 4096];
    for _ in 0..2 {
        let read = run.engine.read_block(0, 59, 0, &mut buf);
        if read.lost != 0xfc || buf[..1024] != bytes[..] {
            return Err(format!("of sectors that were not lost {:#x} are", read.lost));
        }
        crash(&mut run);
    }
    match run.volume().pages {
        1 => Ok(1),
        pages => Err(format!("{pages} pages are left")),
    }
}

/// A part of the origin takes nothing, and a burst written there fills whole lists of rounds.
/// The later pages are written whenever these have come round.  Returns how many rounds.
pub fn bad_lists() -> Result<u64, String> {
    let mut run = Run::with_slots(0, 1);
    run.overload()?;
    run.bad = (BLOCKS / 2 * 8..(BLOCKS / 2 + BAD_RUN) * 8).collect();
    for block in BLOCKS / 2..BLOCKS / 2 + BAD_RUN {
        run.write(block)?;
    }
    let (mut rounds, mut ended_ns, mut longest_ns, began_ns) = (0, run.now_ns, 0, run.now_ns);
    let mut seen = run.volume().rounds;
    while run.now_ns < began_ns + 60 * SECOND_NS {
        if !run.step() {
            run.now_ns += SECOND_NS / 1000;
        }
        let block = run.some_block();
        if !run.bad.contains(&(block * 8)) {
            run.due(block)?;
        }
        if run.volume().rounds > seen {
            hooks::progress();
            rounds += 1;
            seen = run.volume().rounds;
            longest_ns = longest_ns.max(run.now_ns - ended_ns);
            ended_ns = run.now_ns;
        }
    }
    longest_ns = longest_ns.max(run.now_ns - ended_ns);
    if longest_ns > 4 * SECOND_NS {
        return Err(format!("no round has ended for {} ms", longest_ns / 1_000_000));
    }
    judge(&mut run, &no_loss())?;
    mend(&mut run)?;
    Ok(rounds)
}

/// The oldest pages of a full pool are of a bad area, and exceed a list.  The later pages reach
/// the origin, though the round that reaches them is cut short, since a request of it is taken
/// (as by an origin that has recovered).  Returns how many requests were refused.
pub fn bad_list_first() -> Result<u64, String> {
    let mut run = Run::with_slots(0, 1);
    run.bad = (0..BAD_RUN * 8).collect();
    let mut blocks = 0;
    while run.try_write(blocks)? {
        blocks += 1;
    }
    rest(&mut run, 20 * SECOND_NS)?;
    let left = lacks(&run, BAD_RUN..blocks).len() as u64;
    if left > (blocks - BAD_RUN) / 2 {
        return Err(format!("{left} blocks behind a bad area are not home, of {blocks}"));
    }
    judge(&mut run, &no_loss())?;
    mend(&mut run)?;
    Ok(run.refused.len() as u64)
}

pub const CASES: [Case; 8] = [
    ("refused what is oldest", bad_list_first, 20),
    ("a whole list is refused", bad_lists, 500),
    ("refused, beside what is partly lost", beside_lost, 2),
    ("bad sectors", bad_sectors, 20),
    ("a bad area", bad_area, 300),
    ("a dead origin", dead, 10),
    ("bad sectors under load", under_load, 50),
    ("partly lost, and refused", partly_lost, 1),
];

pub fn all() -> Result<(), String> {
    hold(&CASES)
}

#[cfg(test)]
mod tests {
    #[test]
    fn each_comes_about_and_nothing_is_lost() {
        crate::kept_cases::tell(&super::CASES);
    }
}
