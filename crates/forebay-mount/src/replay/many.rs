// SPDX-License-Identifier: MIT OR Apache-2.0
//! Goal: a report of many lines takes few syncs, and an interrupted report promises only names
//! that the next replay uses.  Method: a simulated tree in which each file is in dispute.

use super::model::log_of;
use super::model::sim::{Event, SimTree, State};
use super::model::workloads::{live_on, Beside};
use super::{replay, ReplayOptions};

const FILES: usize = 300;

fn bed() -> (Beside, Vec<Vec<u8>>) {
    let bed = live_on(State::empty());
    (0..FILES).for_each(|i| bed.write(&format!("f{i}"), 7));
    let log = log_of(&bed.tree.trace());
    (bed, log)
}

fn syncs(tree: &SimTree) -> usize {
    let is_sync = |e: &&Event| matches!(e, Event::SyncAll | Event::SyncFile(_));
    tree.trace().iter().filter(is_sync).count()
}

#[test]
fn many_lines_take_few_syncs() {
    const MOST: usize = 20;
    let (bed, log) = bed();
    let first = bed.ino("f0");
    let last = bed.ino(&format!("f{}", FILES - 1));
    let now = || SimTree::new(bed.tree.now());
    let changed = now().changed_at(5_000_000_000);
    let report = replay(&changed, &log, &ReplayOptions::default(), &mut |_, _| {}).unwrap();
    assert_eq!((report.changed.len(), report.found.len()), (FILES, FILES));
    assert!(syncs(&changed) < MOST, "{} of files that were changed", syncs(&changed));
    let busy = now().all_busy(first..last + 1);
    let report = replay(&busy, &log, &ReplayOptions::default(), &mut |_, _| {}).unwrap();
    assert_eq!((report.disputes.len(), report.found.len()), (FILES, FILES));
    assert!(syncs(&busy) < MOST, "{} of files that their owner runs", syncs(&busy));
}
