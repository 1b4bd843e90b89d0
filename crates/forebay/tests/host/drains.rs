// SPDX-License-Identifier: MIT OR Apache-2.0
//! Drains of one volume beside each other, and beside its writers: each ends.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::*;
use forebay::*;

/// A drain that takes longer is taken for one that never ends.
const FOR_EVER: Duration = Duration::from_secs(60);

fn drain_in_time(volume: &Volume) -> Result<DrainProgress> {
    let started = Instant::now();
    volume.drain(&mut |_| match started.elapsed() > FOR_EVER {
        true => ControlFlow::Break(()),
        false => ControlFlow::Continue(()),
    })
}

/// The origin fails, so both wait; one is interrupted, and the origin repaired.
#[test]
fn one_that_is_given_up_leaves_the_others_going() {
    let dir = Dir::new("given-up");
    let pool = open(&dir.pool(24));
    let memory = MemOrigin::new(1 << 20).unwrap();
    let (origin, faults) = FaultyOrigin::new(Box::new(memory.clone()));
    pool.volume_add_origin("v", &memory, 0).unwrap();
    let volume = pool.attach_origin("v", Box::new(origin), &AttachOptions::default()).unwrap();
    faults.break_writes();
    volume.write_at(&[7; 4096], 0).unwrap();
    std::thread::scope(|scope| {
        let patient = scope.spawn(|| drain_in_time(&volume));
        while !volume.info().unwrap().draining {
            std::thread::yield_now();
        }
        let given_up = volume.drain(&mut |p| match p.origin_error.is_some() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        });
        assert!(matches!(given_up, Err(Error::Interrupted { .. })), "{given_up:?}");
        assert!(volume.info().unwrap().draining);
        faults.repair();
        patient.join().unwrap().unwrap();
    });
    assert_eq!(memory.content()[..4096], [7; 4096]);
    assert!(!volume.info().unwrap().draining);
}

#[test]
fn several_end_beside_a_writer() {
    let dir = Dir::new("several");
    let pool = open(&dir.pool(512));
    let volume = attach(&pool, "v", &MemOrigin::new(1 << 20).unwrap());
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for block in (0..256u64).cycle() {
                volume.write_at(&[block as u8; 4096], block * 4096).unwrap();
                if done.load(Ordering::Relaxed) {
                    return;
                }
            }
        });
        // Round by round, or the next drain would end what waits for ever.
        let round = || {
            let drains = [0; 4].map(|_| scope.spawn(|| drain_in_time(&volume).is_ok()));
            drains.map(|d| d.join().unwrap())
        };
        let ended = (0..20).flat_map(|_| round()).filter(|ended| *ended).count();
        done.store(true, Ordering::Relaxed);
        assert_eq!(ended, 80);
    });
}

/// What went past the cache is flushed at the end of a drain, and by then the volume is
/// gone: nobody says that its origin is complete.
#[test]
fn a_volume_that_is_detached_meanwhile_is_not_called_complete() {
    let dir = Dir::new("detached-meanwhile");
    let pool = open(&dir.pool(24));
    let memory = MemOrigin::new(1 << 20).unwrap();
    let (origin, faults) = FaultyOrigin::new(Box::new(memory.clone()));
    pool.volume_add_origin("v", &memory, 0).unwrap();
    let past = AttachOptions { bypass_limit_bytes: 64 << 10, ..Default::default() };
    let mut volume = Some(pool.attach_origin("v", Box::new(origin), &past).unwrap());
    volume.as_ref().unwrap().write_at(&[7; 256 << 10], 0).unwrap();
    assert_eq!(volume.as_ref().unwrap().info().unwrap().bypasses, 1);
    let drained = pool.drain(None, &mut |_, p| {
        assert_eq!(p.pages_left, 0);
        volume = None;
        ControlFlow::Continue(())
    });
    assert_eq!(faults.calls(FaultOp::Flush), 0);
    assert!(matches!(drained, Err(Error::Stopped { .. })), "{drained:?}");
}
