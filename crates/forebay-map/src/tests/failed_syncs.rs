// SPDX-License-Identifier: MIT OR Apache-2.0
//! Goal: a failed sync of a file counts for all that was written before it, whoever saw it fail.
//! Method: a sync of the simulated machine's file fails at a chosen moment, next to writes that go
//! past the pool.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::several::{cache, in_time};
use super::{alone, has};
use crate::planted::{plant, Planted};
use crate::simulated::Machine;
use crate::store::Store;
use crate::{PAGE, SEGMENT};

const ONE: u64 = SEGMENT as u64;

/// The kernel reports a failed fsync to one caller.  That may be a write-back, a call that
/// reads the change time, or one that marks the file.  Another write to the file itself hides it
/// no more.
#[test]
fn a_sync_that_failed_for_another_call_counts_for_all() {
    let _alone = alone();
    let Some(features) = has("a_sync_that_failed_for_another_call_counts_for_all") else { return };
    let mistake = |who| if who == 3 { Planted::FirstCountLost } else { Planted::FailureForgotten };
    for (who, planted) in (0..4).flat_map(|who| [(who, false), (who, true)]) {
        let machine = Machine::new(2, &[2 * ONE], []);
        let cache = cache(&machine, &features);
        let file = cache.open_backing(machine.file(0), 2 * ONE).expect("open");
        let stays = who == 0 || who == 3;
        if stays {
            file.store(0, &[1]);
            file.sync(0, 1).expect("a sync");
        }
        file.write(ONE, &vec![2; SEGMENT]).expect("past the pool");
        machine.fail_sync();
        let failed = match who {
            1 => cache.round().map(drop),
            2 => file.set_size(2 * ONE - 1),
            _ => file.write_back().map(drop),
        };
        failed.expect_err("it is told");
        plant(planted.then_some(mistake(who)));
        if who == 3 {
            file.write(ONE, &vec![3; SEGMENT]).expect("past the pool");
        }
        let synced = file.sync(0, u64::MAX);
        plant(None);
        assert_eq!(synced.is_ok(), planted, "{who}: {synced:?}");
        assert!(planted || file.sync(0, u64::MAX).is_err(), "nobody knows what is there");
        assert_eq!(file.write_back().expect("again"), usize::from(stays), "the page stayed dirty");
    }
}

/// A server on the network may refuse what a file system writes back to it.  The sync of the mark
/// tells that as a lack of rights, or of space: the mark is there, and the file may lack data.
#[test]
fn a_sync_of_the_mark_that_failed_counts_for_what_was_written_before() {
    let _alone = alone();
    let name = "a_sync_of_the_mark_that_failed_counts_for_what_was_written_before";
    let Some(features) = has(name) else { return };
    for errno in [libc::EACCES, libc::EPERM, libc::ENOSPC, libc::EDQUOT, libc::EIO] {
        for planted in [false, true] {
            let machine = Machine::new(2, &[2 * ONE], []);
            let cache = cache(&machine, &features);
            let file = cache.open_backing(machine.file(0), 3 * ONE).expect("open");
            file.write(ONE, &vec![2; SEGMENT]).expect("past the pool");
            machine.fail_mark_sync(errno);
            plant(planted.then_some(Planted::MarkSyncJudged));
            // The file is marked before it grows.
            let first = file.write(2 * ONE, &[1]);
            let synced = file.sync(0, u64::MAX);
            plant(None);
            let lies = planted && errno != libc::EIO;
            assert_eq!(
                (first.is_ok(), synced.is_ok()),
                (lies, lies),
                "{errno}: {first:?} {synced:?}"
            );
        }
    }
}

/// Of two writes to the file itself at once, the one that began first may end last.  A sync that
/// failed between their beginnings counts.
#[test]
fn a_sync_that_failed_counts_for_the_write_that_began_before_it() {
    let _alone = alone();
    let name = "a_sync_that_failed_counts_for_the_write_that_began_before_it";
    let Some(features) = has(name) else { return };
    for (planted, failed) in [(false, true), (true, true), (false, false)] {
        let machine = Machine::new(2, &[3 * ONE], []);
        let cache = cache(&machine, &features);
        let file = cache.open_backing(machine.file(0), 3 * ONE).expect("open");
        file.store(0, &[1]);
        file.sync(0, 1).expect("a sync");
        machine.slow_write.store(ONE / PAGE as u64, Ordering::SeqCst);
        plant(planted.then_some(Planted::LastCountLost));
        in_time("two writers", || {
            std::thread::scope(|s| {
                let first = s.spawn(|| file.write(ONE, &vec![2; SEGMENT]));
                while !machine.stalled.load(Ordering::SeqCst) {
                    std::thread::sleep(Duration::from_millis(1));
                }
                if failed {
                    machine.fail_sync();
                }
                assert_eq!(file.write_back().is_err(), failed, "it is told");
                file.write(2 * ONE, &vec![3; SEGMENT]).expect("past the pool");
                machine.slow_write.store(u64::MAX, Ordering::SeqCst);
                first.join().expect("it ends").expect("past the pool");
            });
        });
        let synced = file.sync(0, u64::MAX);
        plant(None);
        assert_eq!(synced.is_ok(), planted || !failed, "{planted} {failed}: {synced:?}");
    }
}

/// A file that cannot be marked is shorter before the store learns of that.  It learns of it also
/// where the first try to make the file shorter has failed.
#[test]
fn a_truncation_that_ends_later_is_told_to_the_store() {
    let _alone = alone();
    let Some(features) = has("a_truncation_that_ends_later_is_told_to_the_store") else { return };
    let machine = Machine::new(2, &[2 * ONE], []);
    let cache = cache(&machine, &features);
    let file = cache.open_backing(machine.file(0), 2 * ONE).expect("open");
    let record = || machine.files().expect("files")[0].1.clone();
    machine.no_marks.store(true, Ordering::SeqCst);
    machine.fail_resize();
    file.set_size(ONE).expect_err("the file is as long as before");
    assert_eq!(record().size, 2 * ONE);
    file.sync(0, u64::MAX).expect("it ends");
    assert_eq!((record().size, record().cut), (ONE, false));
    assert_eq!(machine.durable(0).len(), SEGMENT);
}

/// What was refused before anything was written leaves nothing after the end, so that no later call
/// truncates the file.
#[test]
fn a_refused_write_after_the_end_leaves_no_truncation() {
    let _alone = alone();
    let Some(features) = has("a_refused_write_after_the_end_leaves_no_truncation") else { return };
    let machine = Machine::new(2, &[ONE], []);
    machine.promises.store(false, Ordering::SeqCst);
    let cache = cache(&machine, &features);
    let file = cache.open_backing(machine.file(0), 3 * ONE).expect("open");
    file.write(ONE, &vec![1; SEGMENT]).expect("past the pool");
    file.sync(0, u64::MAX).expect("a sync");
    machine.revoked.store(true, Ordering::SeqCst);
    file.write(2 * ONE, &vec![2; SEGMENT]).expect_err("it is another's");
    machine.revoked.store(false, Ordering::SeqCst);
    file.sync(0, u64::MAX).expect("there is nothing to end");
}
