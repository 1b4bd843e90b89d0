// SPDX-License-Identifier: MIT OR Apache-2.0
//! Goal: entries that are anybody's bytes are an error or a plan, and what is planned is
//! done or fails; nothing panics or runs forever.  Method: arbitrary bytes, and the logs
//! of workloads with bytes, fields, records and entries changed, for trees that are as the
//! workload left them, as it found them, and empty.

use super::model::sim::{SimTree, State};
use super::model::workloads::{acts, run, Act};
use super::model::Rng;
use super::{plan, replay, Accept, ReplayOptions};
use crate::record::{Entry, HEADER};

/// Bytes that are parsed are so once more when they are written again, but for what is
/// ignored.
fn parse(body: &[u8]) {
    let Ok(entry) = Entry::parse(body) else { return };
    let most = body.len() / 8 + 2;
    assert!(entry.records().take(most + 1).count() <= most, "more records than bytes for them");
}

fn attempt(state: &State, log: &[Vec<u8>]) -> (bool, bool) {
    log.iter().for_each(|body| parse(body));
    let tree = SimTree::new(state.clone());
    let planned = plan(&tree, log);
    assert!(tree.trace().is_empty(), "a plan changes the tree");
    let options = ReplayOptions { accept: Accept::all(), ..ReplayOptions::default() };
    let done = replay(&tree, log, &options, &mut |_, _| {});
    assert!(planned.is_ok() || done.is_err());
    (planned.is_ok(), done.is_ok())
}

/// Values that are of some other field, or at the edge of one.
const ODD: [u64; 12] = [
    0,
    1,
    2,
    3,
    7,
    255,
    256,
    4096,
    u32::MAX as u64,
    i64::MAX as u64,
    i64::MAX as u64 + 1,
    u64::MAX,
];

fn mutate(log: &mut Vec<Vec<u8>>, rng: &mut Rng) {
    let n = log.len();
    if n == 0 {
        return log.push((0..rng.index(200)).map(|_| rng.next() as u8).collect());
    }
    let (one, other) = (rng.index(n), rng.index(n));
    match rng.index(10) {
        0 => drop(log.remove(one)),
        1 => log.insert(other, log[one].clone()),
        2 => log.swap(one, other),
        3 => {
            // The records of both in one.
            let records = log[other].get(HEADER..).unwrap_or_default().to_vec();
            let count = |b: &[u8]| b.get(6..8).map_or(0, |c| u16::from_le_bytes([c[0], c[1]]));
            let sum = count(&log[one]).wrapping_add(count(&log[other]));
            log[one].extend(records);
            if let Some(count) = log[one].get_mut(6..8) {
                count.copy_from_slice(&sum.to_le_bytes());
            }
        }
        4 => {
            let length = rng.index(log[one].len() + 1);
            log[one].truncate(length);
        }
        5 if !log[one].is_empty() => {
            let at = rng.index(log[one].len());
            log[one][at] ^= 1 << rng.index(8);
        }
        6 if !log[one].is_empty() => {
            let at = rng.index(log[one].len());
            log[one][at] = rng.index(16) as u8;
        }
        7 => {
            // A kind of record, where the first of an entry has it.
            if let Some(kind) = log[one].get_mut(HEADER) {
                *kind = rng.index(16) as u8;
            }
        }
        _ => {
            // Changes a field: most begin at a multiple of four after the header.
            let fields = log[one].len().saturating_sub(8) / 4;
            if fields > 0 {
                let at = rng.index(fields) * 4;
                let value = match rng.index(2) {
                    0 => rng.index(12) as u64,
                    _ => ODD[rng.index(ODD.len())],
                };
                log[one][at..at + 8].copy_from_slice(&value.to_le_bytes());
            }
        }
    }
}

#[test]
fn arbitrary_bytes_are_refused() {
    let (mut rng, empty) = (Rng(7), State::empty());
    for _ in 0..20_000 {
        let mut body: Vec<u8> = (0..rng.index(120)).map(|_| rng.next() as u8).collect();
        if rng.index(2) == 0 {
            // The beginning of the body is valid.
            let right = crate::record::header(1, 1, rng.index(4) as u16);
            let n = right.len().min(body.len());
            body[..n].copy_from_slice(&right[..n]);
        }
        let (planned, _) = attempt(&empty, &[body.clone()]);
        assert!(!planned || body.len() >= HEADER);
    }
}

/// `MOUNT_MODEL=whole`: ten times as many.
#[test]
fn mutated_logs_are_an_error_or_a_plan() {
    let (acts, mut rng) = (acts(), Rng(11));
    let (mut planned, mut done, mut refused) = (0u64, 0u64, 0u64);
    for _ in 0..if super::model::whole() { 4_000 } else { 400 } {
        let workload: Vec<Act> = (0..3).flat_map(|_| acts[rng.index(acts.len())].clone()).collect();
        let ran = run(&workload, None);
        let log = ran.log();
        for _ in 0..20 {
            let mut changed = log.clone();
            for _ in 0..1 + rng.index(4) {
                mutate(&mut changed, &mut rng);
            }
            let state = match rng.index(3) {
                0 => State::empty(),
                1 => ran.base.clone(),
                _ => ran.last.clone(),
            };
            let (could, did) = attempt(&state, &changed);
            planned += u64::from(could);
            done += u64::from(did);
            refused += u64::from(!could);
        }
    }
    println!("{planned} planned, {done} of them done, {refused} refused");
    assert!(planned > 100 && done > 100 && refused > 100, "they say nothing");
}
