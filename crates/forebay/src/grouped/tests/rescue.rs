// SPDX-License-Identifier: MIT OR Apache-2.0
//! Goal: the rescue of a volume that has lost the newest version of a block names the block, or says
//! that any block may be older.  It writes no older version that it knows, and never takes the mark.
//! Method: blocks are written twice, and the lines of some newer versions are destroyed.  Then the
//! disk fails, or the file is removed.

use std::fs;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::Arc;

use super::super::Durable;
use super::files::{on_a_disk, open, Temporary};
use super::model::{Model, CHUNK};
use super::volumes::{block, drained, OnDisk, BLOCK};
use crate::attach::AttachOptions;
use crate::mark::{OriginMarks, OriginState};
use crate::pool::Pool;
use crate::report::{Completeness, Verdict};

const OLDER: u64 = 5;
const NEWER: u64 = 9;
/// Blocks that have an older version.
const BLOCKS: std::ops::Range<u64> = 0..12;
/// ... and a newer one, written in this order.
const NEWER_OF: std::ops::Range<u64> = 2..10;

/// What a closed pool holds.
fn closed(bed: &OnDisk, pool: Pool) -> Vec<u8> {
    pool.close().unwrap();
    bed.model.cut(&mut 1)
}

/// Both versions are written, and the older ones drained perhaps.  Returns the pool before the newer
/// ones, and after.
fn written(bed: &mut OnDisk, drains: bool) -> (Vec<u8>, Vec<u8>) {
    let write = |bed: &OnDisk, pool: &Pool, blocks: std::ops::Range<u64>, version| {
        let volume = bed.attach(pool).unwrap();
        for at in blocks {
            volume.write_at_durably(&block(at, version), at * BLOCK as u64).unwrap();
        }
        if drains && version == OLDER {
            drained(&volume);
        }
        volume.detach().unwrap();
    };
    let pool = bed.pool(true);
    write(bed, &pool, BLOCKS, OLDER);
    let before = closed(bed, pool);
    bed.model = Arc::new(Model::new(before.clone(), Durable::Fua, 0, 0));
    let pool = bed.pool(false);
    write(bed, &pool, NEWER_OF, NEWER);
    (before, closed(bed, pool))
}

/// Destroys the lines of a block that were written since: in its group, and in the chunk's array.
fn destroy_newer(before: &[u8], pool: &mut [u8], lost: u64) {
    let mut lines = 0;
    for at in (CHUNK..pool.len()).step_by(64) {
        let line = &mut pool[at..at + 64];
        let chunk = u32::from_le_bytes(line[48..52].try_into().unwrap());
        let is_of_block = line[8..16] == lost.to_le_bytes() && at / CHUNK == chunk as usize + 1;
        if is_of_block && *line != before[at..at + 64] {
            line.fill(0x5a);
            lines += 1;
        }
    }
    assert!(lines >= 2, "block {lost} has {lines} newer lines");
}

/// Attaches the volume, and drains it, as a server does at its end.
fn rescued(pool: Pool) -> Completeness {
    let volume = pool.attach_for_rescue("v", &AtomicBool::new(false)).unwrap();
    let judged = pool.drain(Some("v"), &mut |_, _| ControlFlow::Continue(())).unwrap();
    let _ = volume.detach();
    let _ = pool.close();
    judged.into_iter().next().unwrap()
}

/// The verdict and the origin, after the newer versions of `lost` were destroyed.
fn check(what: &str, bed: &OnDisk, drains: bool, lost: &[u64], named: &[u64], c: &Completeness) {
    let text = c.to_string();
    let what = format!("{what}: {text}");
    let unnamed = lost.iter().filter(|at| !named.contains(at)).count() as u64;
    for at in BLOCKS {
        let (is, older) = (bed.version(at), if drains { OLDER } else { 0 });
        if named.contains(&at) {
            assert_eq!(is, older, "{what}: block {at}, which is known to be lost, was written");
        } else if lost.contains(&at) {
            assert!(is <= OLDER, "{what}: block {at} is {is}");
        } else {
            let newest = if NEWER_OF.contains(&at) { NEWER } else { OLDER };
            assert_eq!(is, newest, "{what}: block {at}");
        }
    }
    let marks = OriginMarks::at(&bed.disk(), Some(&bed.state())).unwrap();
    let complete = marks.status().unwrap().state == OriginState::Complete;
    if lost.is_empty() {
        assert_eq!((c.verdict, c.complete, complete), (Verdict::Rescued, true, true), "{what}");
        return;
    }
    assert_eq!((c.exit_code(), c.complete, complete), (11, false, false), "{what}");
    assert!(
        text.starts_with("NOT complete") && text.contains("all else is on the origin"),
        "{what}"
    );
    assert_eq!(c.lost, named, "{what}");
    for at in named {
        assert!(text.contains(&at.to_string()), "{what}: block {at} is not named");
    }
    assert_eq!(c.lost_entries_unnamed, unnamed, "{what}");
    let older = text.contains("where the unknown blocks may have older data than before");
    assert_eq!(older, unnamed > 0, "{what}");
}

/// A server has asked for the volume, and so the pool knows where its marks are.
fn asked_for(bed: &OnDisk, pool: &Pool) {
    match bed.attach(pool) {
        Ok(volume) => volume.detach().unwrap(),
        Err(e) => assert!(e.exit_code() == 11 && pool.recovery().holes > 0, "{e}"),
    }
}

/// A pool that was opened with these bytes, and has failed since.  `None`: the test is skipped.
fn with_failed_disk(bed: &mut OnDisk, pool: Vec<u8>) -> Option<Pool> {
    bed.model = Arc::new(Model::new(pool, Durable::Fua, 0, 0));
    let pool = bed.pool(false);
    asked_for(bed, &pool);
    bed.dies_after(0);
    pool.touch_disk();
    assert!(pool.failed().is_some() && pool.lost().is_none(), "nobody has noticed");
    Some(pool)
}

/// ... and whose file was removed since.
fn with_lost_file(bed: &mut OnDisk, pool: Vec<u8>) -> Option<Pool> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let name = format!("rescue-{}", NUMBER.fetch_add(1, Ordering::Relaxed));
    let file = Temporary::of(&name, pool);
    let pool = OnDisk::pool_on(on_a_disk(open(&file.0, None))?);
    asked_for(bed, &pool);
    fs::remove_file(&file.0).unwrap();
    assert!(pool.look_at_file().is_some() && pool.lost().is_some(), "nobody has noticed");
    Some(pool)
}

fn each_loss(cause: &str, failed: impl Fn(&mut OnDisk, Vec<u8>) -> Option<Pool>) {
    // Of two neighbours the line behind the second names that alone.
    let table: [(&[u64], &[u64]); 5] =
        [(&[], &[]), (&[5], &[5]), (&[4, 7], &[4, 7]), (&[5, 6], &[6]), (&[9], &[9])];
    for drains in [false, true] {
        for (lost, named) in table {
            let mut bed = OnDisk::new(cause);
            let (before, mut pool) = written(&mut bed, drains);
            lost.iter().for_each(|&at| destroy_newer(&before, &mut pool, at));
            let Some(pool) = failed(&mut bed, pool) else { return };
            assert_eq!(pool.recovery().holes > 0, !lost.is_empty());
            let what = format!("{cause}, drained {drains}, lost {lost:?}");
            check(&what, &bed, drains, lost, named, &rescued(pool));
        }
    }
}

#[test]
fn a_rescue_from_a_failed_disk_writes_no_older_version_without_a_word() {
    each_loss("disk-failed", with_failed_disk);
}

#[test]
fn a_rescue_from_a_lost_file_writes_no_older_version_without_a_word() {
    each_loss("file-lost", with_lost_file);
}

/// No look at the volume before the attach tells the engine of the loss: another thread may have the
/// volume at that moment, and be rid of it at the attach.
#[test]
fn the_attach_for_a_rescue_tells_the_engine_of_the_loss() {
    let mut bed = OnDisk::new("told");
    let (_, pool) = written(&mut bed, false);
    let Some(pool) = with_lost_file(&mut bed, pool) else { return };
    assert!(pool.failed().is_none(), "the engine knows before");
    let options = AttachOptions { state: Some(bed.state()), rescue: true, ..Default::default() };
    let volume = pool.attach("v", &options).unwrap();
    let judged = pool.drain(Some("v"), &mut |_, _| ControlFlow::Continue(())).unwrap();
    assert_eq!(judged[0].verdict, Verdict::Rescued);
    let _ = volume.detach();
    let _ = pool.close();
    NEWER_OF.for_each(|at| assert_eq!(bed.version(at), NEWER));
}
