// SPDX-License-Identifier: MIT OR Apache-2.0
//! Goal: a mark that may be there and that nothing requires is removed when the origin has everything.
//! Method: an origin on which setting or removing a mark fails for a while.

use super::tests::*;
use super::*;

/// Who is told that the mark stays may try again.
pub(super) fn judge_failures() -> Verdict {
    let (_dir, world, pool, volume) = marked();
    locked(&world.0).takes_fail = 2;
    for _ in 0..2 {
        if volume.drain(&mut go_on).is_ok() {
            return wrong("complete, and the mark stays");
        }
    }
    volume.drain(&mut go_on).unwrap();
    if world.find().unwrap() != Found::Nothing {
        return wrong("drained, it is still marked");
    }
    // A write after a failure is marked again, and then nothing is owed.
    volume.write_at(&[2; BLOCK], 0).unwrap();
    locked(&world.0).takes_fail = 1;
    volume.drain(&mut go_on).unwrap_err();
    volume.write_at(&[3; BLOCK], 0).unwrap();
    let Found::Marked(_) = world.find().unwrap() else { return wrong("a write is not marked") };
    volume.detach().unwrap();
    let Found::Marked(_) = world.find().unwrap() else { return wrong("a detach took it away") };
    let volume = attach(&pool, &world).unwrap();
    locked(&world.0).takes_fail = 1;
    volume.drain(&mut go_on).unwrap_err();
    volume.detach().unwrap();
    match world.find().unwrap() {
        Found::Nothing => Ok(()),
        _ => wrong("detached, it is still marked"),
    }
}

/// A marking that failed has set the mark all the same.
pub(super) fn judge_perhaps() -> Verdict {
    let dir = Dir::new();
    let world = new_world(&dir);
    let pool = made(&dir.0.join("pool"), &world);
    let volume = attach(&pool, &world).unwrap();
    let fails = |after, stays| {
        let mut s = locked(&world.0);
        (s.put_fails, s.put_stays) = (after, stays);
    };
    fails(Some(Duration::ZERO), true);
    if volume.write_at(&[1; BLOCK], 0).is_ok() {
        return wrong("acknowledged, and the mark could not be set");
    }
    let Found::Marked(_) = world.find().unwrap() else { return wrong("it has set no mark") };
    fails(None, false);
    volume.drain(&mut go_on).unwrap();
    match world.find().unwrap() {
        Found::Nothing => Ok(()),
        _ => wrong("drained, it has the mark of an attempt that failed"),
    }
}

#[test]
fn a_mark_that_stays_is_tried_again() {
    let _turn = turn();
    judge_failures().unwrap();
    judge_perhaps().unwrap();
}
