// SPDX-License-Identifier: MIT OR Apache-2.0
//! Pages that stay in the pool although others need the room: lost blocks (`src/held.rs`), and
//! the chunks of a detached volume, until it is attached and drained, or removed
//! (docs/manual/isolation.md).

use forebay_sim::beyond::lost_before_torn;
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
