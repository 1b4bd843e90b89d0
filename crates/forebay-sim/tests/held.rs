// SPDX-License-Identifier: MIT OR Apache-2.0
//! Pages that stay in the pool although others need the room: lost blocks (`src/held.rs`), and
//! the chunks of a detached volume, until it is attached and drained, or removed
//! (docs/manual/isolation.md).

use forebay_sim::beyond::lost_before_torn;
use forebay_sim::engine::{Decision, Wait};
use forebay_sim::held::{carried_are_not_torn, packing_comes_to_rest, Run};

/// Pages of data in a chunk.
const ROOM: u64 = 15;

#[test]
fn packing_lost_blocks_comes_to_rest() {
    packing_comes_to_rest().unwrap();
}

#[test]
fn what_is_lost_stays_lost_when_it_is_carried() {
    carried_are_not_torn().unwrap();
}

#[test]
fn what_is_written_over_a_loss_stays() {
    lost_before_torn().unwrap();
}

/// The first volume fills most of the pool, half of what it wrote is overwritten, and it is
/// detached; the second takes what is free.
fn beside_a_detached_one() -> (Run, u64) {
    let mut run = Run::new(16);
    run.attach(0, 64);
    let blocks = 5 * ROOM;
    for block in 0..blocks {
        run.write(0, block);
    }
    for block in (0..blocks).step_by(2) {
        run.write(0, block);
    }
    run.engine.volume_detach(0).unwrap();
    let held = u64::from(run.engine.volume_info(0).unwrap().chunks);
    run.attach(1, 64);
    // Its origin takes nothing, so that it keeps what it gets.
    let got = (0..).take_while(|&block| run.try_write(1, block)).count() as u64;
    (run, held * ROOM + got)
}

#[test]
fn a_detached_volume_keeps_its_chunks_and_says_so() {
    let (mut run, filled) = beside_a_detached_one();
    let info = run.engine.volume_info(0).unwrap();
    assert!(!info.attached);
    assert_eq!((info.pages, info.chunks), (75, 8), "chunks with dead pages stay whole");
    // Two chunks are the reserve.
    assert_eq!(filled, 14 * ROOM, "all the rest is for who is attached");
    for _ in 0..500 {
        run.now_ns += 20_000_000;
        run.engine.destage_step(run.now_ns).unwrap();
    }
    assert_eq!(run.engine.volume_info(0).unwrap().chunks, 8, "nor are they taken later");
    assert!(!run.try_write(1, 63), "so the other waits");
}

#[test]
fn attached_and_drained_it_gives_them_back() {
    let (mut run, _) = beside_a_detached_one();
    run.attach(0, 64);
    run.engine.volume_drain(0, true).unwrap();
    for _ in 0..500 {
        run.now_ns += 20_000_000;
        let step = run.engine.destage_step(run.now_ns).unwrap();
        if let Some(io) = step.io.filter(|io| io.volume == 0) {
            run.engine.destage_complete(io.id, 0);
        }
    }
    assert_eq!(run.engine.volume_info(0).unwrap().chunks, 0);
    run.write(1, 63);
}

/// A pool of few chunks keeps none for relocation: the last one, which is the reserve, is a
/// volume's first while no volume that is attached has any.
#[test]
fn the_last_chunk_serves_who_has_none() {
    let mut run = Run::new(6);
    run.attach(0, 64);
    let held = (0..).take_while(|&block| run.try_write(0, block)).count() as u64;
    assert_eq!(held, 5 * ROOM, "the reserve is left");
    run.engine.volume_detach(0).unwrap();
    run.attach(1, 64);
    // Its origin takes what it gets: four times as much as a chunk holds.
    let (mut block, mut steps) = (0, 0);
    while block < 4 * ROOM {
        match run.try_write(1, block) {
            true => block += 1,
            false => run.destage(1),
        }
        steps += 1;
        assert!(steps < 2000, "block {block} of the volume that is attached waits for ever");
    }
    run.engine.check(true).unwrap();
    // The first one's pages go to its origin as soon as it is there.
    run.attach(0, 64);
    run.engine.volume_drain(0, true).unwrap();
    run.engine.volume_drain(1, true).unwrap();
    run.destage(500);
    let left = [0, 1].map(|index| run.engine.volume_info(index).unwrap().pages);
    assert_eq!(left, [0, 0]);
    // And is the reserve again for who has chunks.
    let got = (0..).take_while(|&block| run.try_write(0, block)).count() as u64;
    assert_eq!(got, 5 * ROOM);
}

#[test]
fn removed_it_gives_them_back() {
    let (mut run, _) = beside_a_detached_one();
    assert!(run.engine.volume_remove(0, false).is_err(), "it holds data");
    run.engine.volume_remove(0, true).unwrap();
    run.write(1, 63);
}

/// A pool that a volume filled before it was detached, and how many chunks it holds.
fn filled_by_a_detached_one(chunks: u64) -> (Run, u32) {
    let mut run = Run::new(chunks);
    run.attach(0, 64);
    let blocks = 256;
    // Every block once, so that all pages are live; then none is left to be overwritten.
    assert!((0..blocks).any(|block| !run.try_write(0, block)), "the pool is not full");
    run.engine.volume_detach(0).unwrap();
    let held = run.engine.volume_info(0).unwrap().chunks;
    (run, held)
}

/// In any pool a log gets one chunk, whatever detached volumes hold: it goes on for as long as its
/// owner syncs, and waits when that chunk is full.  A second one would be the last for lost blocks.
#[test]
fn a_log_has_a_chunk_beside_detached_volumes() {
    for (chunks, held) in [(4, 3), (6, 5), (15, 14), (16, 14)] {
        let (run, holds) = filled_by_a_detached_one(chunks);
        assert_eq!(holds, held, "{chunks} chunks");
        let engine = &run.engine;
        engine.volume_remove(1, false).unwrap();
        let log = engine.log_add("log", 0).unwrap();
        engine.log_create(log, &[9; 16], 0, &mut 0).unwrap();
        let body = [7; 4000];
        let append = |txg| engine.log_append(log, txg, false, &[&body], &mut 0).unwrap().0;
        for txg in 1..20 {
            let appended = (0..100).take_while(|_| append(txg) == Decision::Done).count();
            assert_eq!(appended, 15, "{chunks} chunks, txg {txg}");
            assert_eq!(engine.log_info(log).unwrap().chunks, 1, "{chunks} chunks");
            assert_eq!(append(txg), Decision::Wait(Wait::Space));
            engine.log_sync(log, txg, &mut 0).unwrap();
        }
        engine.check(true).unwrap();
    }
}

/// The one chunk that the attached volume got is full, and a block in it is lost.  Its mark needs
/// a page in another chunk before the watermark can pass it: the volume says that, and not that
/// its origin fails, until a chunk is free.
#[test]
fn a_block_lost_in_the_only_chunk_is_told_and_waits_for_room() {
    for damaged in [1, 8, 15] {
        let (mut run, _) = filled_by_a_detached_one(6);
        run.attach(1, 64);
        let got = (0..).take_while(|&block| run.try_write(1, block)).count() as u64;
        assert_eq!(got, ROOM);
        run.damage_page(1, damaged);
        run.engine.volume_drain(1, true).unwrap();
        run.destage(1000);
        let info = run.engine.volume_info(1).unwrap();
        assert_eq!((info.lost_blocks, info.origin_errors), (1, 0), "page {damaged}");
        assert_eq!(info.pages, ROOM + 1 - u64::from(damaged), "what is older is on the origin");
        assert!(info.lost_stuck, "page {damaged}: nothing says what it waits for");
        assert_eq!(info.last_error, 0, "page {damaged}: the origin took all that it was sent");
        // The first one's chunks become free, and the round ends.
        run.attach(0, 64);
        run.engine.volume_drain(0, true).unwrap();
        run.destage(4000);
        let info = run.engine.volume_info(1).unwrap();
        assert_eq!(
            (info.pages, info.lost_blocks, info.lost_stuck),
            (1, 1, false),
            "page {damaged}"
        );
        run.engine.check(true).unwrap();
    }
}

/// While an attached volume has chunks, the last one stays for its lost blocks: a second volume
/// waits, and gets it when the first has none left.
#[test]
fn the_last_chunk_is_kept_while_another_volume_has_chunks() {
    let mut run = Run::new(6);
    run.attach(0, 64);
    assert!((0..256).any(|block| !run.try_write(0, block)), "the pool is not full");
    run.attach(1, 64);
    assert!(!run.try_write(1, 0), "it took the reserve");
    run.engine.volume_detach(0).unwrap();
    assert!(run.try_write(1, 0), "nobody else needs it");
    run.engine.check(true).unwrap();
}
