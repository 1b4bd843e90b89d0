// SPDX-License-Identifier: MIT OR Apache-2.0
//! The n-th request to the origin fails, for n = 1, 2, 3, ... until none is hit,
//! whether it is a write, a zeroing, a discard or a flush.  A write that fails
//! has written some of it; a flush that fails has lost what it should have made
//! durable.  Either power is cut right then, or destage goes on by itself and
//! drains all of it.

use forebay_engine::sys;
use forebay_sim::drains::{another_origin, told_once, Run, SECTORS};
use forebay_sim::engine::Decision;
use forebay_sim::origin::Loss;
use forebay_sim::rng::Rng;

#[test]
fn whichever_request_fails_destage_tries_again_until_all_is_there() {
    for n in 1.. {
        let mut run = Run::new();
        let hit = run.drain(n, false, &mut Rng::new(u64::from(n)));
        run.origin.power_cut(Loss::All, &mut Rng::new(1));
        let alone: Vec<u64> = (0..SECTORS).map(|s| run.origin.read(s)).collect();
        assert_eq!(alone, run.truth, "request {n} failed");
        run.engine.check(true).unwrap();
        if !hit {
            assert!(n > 8, "only {n} requests");
            return;
        }
        assert_eq!(run.engine.volume_info(0).unwrap().origin_errors, 1);
    }
}

#[test]
fn whichever_request_fails_a_power_cut_then_loses_nothing() {
    for n in 1.. {
        for seed in 0..20 {
            let mut rng = Rng::new(u64::from(n) << 8 | seed);
            let mut run = Run::new();
            if !run.drain(n, true, &mut rng) {
                assert!(n > 8, "only {n} requests");
                return;
            }
            run.engine.abandon();
            run.engine.media.power_cut(&mut rng);
            run.origin.power_cut(Loss::Some, &mut rng);
            run.engine.open_all(&sys::fby_options::default()).unwrap();
            run.attach();
            let truth = run.truth.clone();
            assert_eq!(run.read_all(), truth, "request {n} failed, seed {seed}");
            assert!(!run.drain(u32::MAX, false, &mut rng));
            let alone: Vec<u64> = (0..SECTORS).map(|s| run.origin.read(s)).collect();
            assert_eq!(alone, truth, "request {n} failed, seed {seed}, drained");
        }
    }
}

/// An origin tells once that it lost something.  If a caller's flush is told,
/// destage writes its own again.
#[test]
fn what_another_flush_was_told_is_an_error_for_destage() {
    told_once().unwrap();
}

/// If destage is told, the next flush of a caller fails, once, if a write that
/// went past the cache may have been lost; and else it does not.
#[test]
fn what_destage_was_told_is_an_error_for_the_next_flush() {
    let flush = |run: &mut Run| run.flush(0).map(|d| d == Decision::Origin);
    let flushes = {
        let mut run = Run::new();
        run.drain(u32::MAX, false, &mut Rng::new(1));
        run.engine.volume_info(0).unwrap().origin_flushes
    };
    for bypassed in [false, true] {
        let (mut failed, mut rng) = (0, Rng::new(1));
        for n in 1..100 {
            let mut run = Run::new();
            assert_eq!(flush(&mut run), Ok(true), "the first after an attach");
            if bypassed {
                run.past(9, 48, 8);
            }
            run.drain(n, false, &mut rng);
            failed += u64::from(flush(&mut run).is_err());
            assert_eq!(flush(&mut run), Ok(false), "told once, and nothing is owed");
        }
        assert_eq!(failed, if bypassed { flushes } else { 0 });
    }
}

/// Pages that were written along are clean only for the origin that was attached then.
#[test]
fn another_origin_gets_all_that_is_cached() {
    another_origin().unwrap();
}
