// SPDX-License-Identifier: MIT OR Apache-2.0
//! A device that has lost what it said to be durable.  A group that another one names as durable
//! is reported as lost: once, with the name of its log, which is incomplete from then on.  Nothing
//! is said of the other log.  The last group of all has no witness, and passes for a torn one.

use forebay_engine::groups::Durable;
use forebay_engine::sys;

use super::explore::settle;
use super::run::{Scene, UNIT};
use super::scenes::{BIG, POOL};
use super::ssd::{Engine, Ssd};
use crate::device::{Block, Disk};
use crate::engine::Decision;
use crate::logs::script::{body, guid, id_of, name};

/// The blocks that an append has written, except the open line of its chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lost {
    /// Its blocks are what they were before.
    Group,
    /// The first sectors of each are there.
    Torn,
    Unreadable,
    /// The open line of the chunk, too.
    Opening,
}

/// Appends by log; the one that is lost; and whether it is to be reported.
#[derive(Clone, Copy, Debug)]
struct Case {
    appends: &'static [(usize, u32)],
    lost: usize,
    how: Lost,
    told: bool,
}

const fn case(appends: &'static [(usize, u32)], lost: usize, how: Lost, told: bool) -> Case {
    Case { appends, lost, how, told }
}

const OTHER: &[(usize, u32)] = &[(0, 900), (1, 5000)];
const SECOND: &[(usize, u32)] = &[(0, 100), (0, 3000), (1, 100)];
/// The second one fills its chunk, whose array is lost with it.
const OWN: &[(usize, u32)] = &[(0, BIG), (0, BIG), (0, 5000)];

const CASES: [Case; 12] = [
    case(OTHER, 0, Lost::Group, true),
    case(OTHER, 0, Lost::Torn, true),
    case(OTHER, 0, Lost::Unreadable, true),
    case(OTHER, 0, Lost::Opening, true),
    case(SECOND, 1, Lost::Group, true),
    case(SECOND, 1, Lost::Torn, true),
    case(SECOND, 1, Lost::Unreadable, true),
    case(OWN, 1, Lost::Group, true),
    case(OWN, 1, Lost::Unreadable, true),
    case(OTHER, 1, Lost::Group, false),
    case(OTHER, 1, Lost::Unreadable, false),
    case(OWN, 2, Lost::Torn, false),
];

fn scene(durable: Durable) -> Scene {
    let (name, ops) = ("lies".into(), Vec::new());
    Scene { name, geometry: POOL, durable, logs: 2, ops, from: 0, faults: 0 }
}

fn lose(disk: &mut Disk, before: &Disk, after: &Disk, how: Lost) {
    let blocks = POOL.chunk_size() as usize / UNIT;
    for block in 0..disk.len() {
        if before.block(block) == after.block(block) {
            continue;
        }
        let opening = block % blocks < 2;
        let (old, new) = (before.block(block).cloned(), after.block(block).cloned());
        match how {
            _ if opening && how != Lost::Opening => {}
            Lost::Group | Lost::Opening => disk.set(block, old),
            Lost::Unreadable => disk.set(block, None),
            Lost::Torn => {
                let [mut bytes, new] =
                    [old, new].map(|b| b.map_or(vec![0; UNIT], |b| b.bytes().to_vec()));
                bytes[..512].copy_from_slice(&new[..512]);
                disk.set(block, Some(Block::new(&bytes)));
            }
        }
    }
}

/// The entries of a log, and whether they are complete.
fn replay(engine: &Engine, log: usize) -> Result<(Vec<u64>, bool), String> {
    let index = engine.log_find(&name(log)).map_err(|e| format!("find: {e}"))?;
    let info = engine.log_info(index).map_err(|e| format!("info: {e}"))?;
    let mut header = info.header;
    let claimed = engine.log_claim(index, 0, &mut header);
    let (mut nodes, claim) = claimed.map_err(|e| format!("claim: {e}"))?;
    let (mut ids, mut room) = (Vec::new(), Vec::new());
    let replayed = engine.log_replay(index, &mut nodes, &mut |node, _| {
        ids.extend(engine.log_read(index, node, &mut room).ok().and_then(id_of));
        sys::FBY_LOG_STOP
    });
    replayed.map_err(|e| format!("replay: {e}"))?;
    let whole = claim.end == sys::FBY_LOG_COMPLETE && !info.incomplete && info.missing == 0;
    Ok((ids, whole))
}

fn named(report: &sys::fby_recovery_report) -> Vec<u16> {
    report.groups_named[..report.ngroups_named as usize].iter().map(|b| b.volume).collect()
}

fn run(case: &Case, durable: Durable) -> Result<(), String> {
    let scene = scene(durable);
    let ssd = Ssd::new(scene.start()?, durable);
    let opened = Engine::open(ssd.media(), &scene.options());
    let (engine, _) = opened.map_err(|e| format!("open: {e}"))?;
    for log in 0..2 {
        let created = engine.log_create(log as u16, &guid(log, 1), 0, &mut 0);
        created.map_err(|e| format!("create: {e}"))?;
    }
    let now = |ssd: &Ssd| ssd.state().device.cut().durable().clone();
    let mut disks = vec![now(&ssd)];
    for (i, &(log, bytes)) in case.appends.iter().enumerate() {
        match engine.log_append(log as u16, 1, true, &[&body(i as u64 + 1, bytes)], &mut 0) {
            Ok((Decision::Done, _)) => settle(&ssd, &engine)?,
            other => return Err(format!("append: {other:?}")),
        }
        disks.push(now(&ssd));
    }
    drop(engine);
    let mut disk = now(&ssd);
    // The array of a chunk that was left is written after its last group.
    let whole = disk.clone();
    lose(&mut disk, &disks[case.lost], &disks[case.lost + 1], case.how);
    if std::ptr::eq(case.appends, OWN) && case.lost == 1 {
        lose_array(&mut disk, &disks[case.lost], &whole);
    }
    let loser = case.appends[case.lost].0;
    for recovery in 0..2 {
        ssd.start(&disk);
        let opened = Engine::open(ssd.media(), &scene.options());
        let (engine, report) = opened.map_err(|e| format!("open: {e}"))?;
        let expected = if case.told && recovery == 0 { vec![loser as u16] } else { Vec::new() };
        if named(&report) != expected || report.groups_lost != expected.len() as u64 {
            return Err(format!("recovery {recovery}: lost groups of {:?}", named(&report)));
        }
        match engine.check(true) {
            Ok(None) => {}
            other => return Err(format!("check: {other:?}")),
        }
        for log in 0..2 {
            let (ids, whole) = replay(&engine, log)?;
            if whole == (case.told && log == loser) {
                return Err(format!(
                    "recovery {recovery}: log {log} is complete: {whole}, {ids:?}"
                ));
            }
        }
        disk = now(&ssd);
    }
    Ok(())
}

/// The arrays that were written since are lost.
fn lose_array(disk: &mut Disk, before: &Disk, whole: &Disk) {
    let blocks = POOL.chunk_size() as usize / UNIT;
    for block in (0..disk.len()).filter(|block| block % blocks == 2 && *block > blocks) {
        if before.block(block) != whole.block(block) {
            disk.set(block, before.block(block).cloned());
        }
    }
}

/// Cases that were tried.
pub fn lies() -> Result<u64, String> {
    let mut tried = 0;
    for durable in [Durable::Flush, Durable::Fua, Durable::Through] {
        for case in &CASES {
            run(case, durable).map_err(|e| format!("{durable:?}, {case:?}: {e}"))?;
            tried += 1;
        }
    }
    Ok(tried)
}
