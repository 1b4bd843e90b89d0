// SPDX-License-Identifier: MIT OR Apache-2.0
//! The count of an origin's marks, in the volume's record.  A pool that was cut off has the
//! count that a call has returned, and no mark had such a number before.  So an older copy of
//! the pool is distinguished from it.

use std::collections::HashSet;

use forebay_engine::sys;

use crate::engine::{volume_spec, Engine};
use crate::media::{Flavour, Media};
use crate::rng::Rng;

/// Returns what is wrong.
pub fn counted() -> Result<(), String> {
    for seed in 0..16 {
        for of_static in [false, true] {
            let what = if of_static { "a static volume" } else { "a volume" };
            made(seed, of_static).map_err(|e| format!("marks of the origin of {what}: {e}"))?;
        }
    }
    Ok(())
}

fn made(seed: u64, of_static: bool) -> Result<(), String> {
    let wrong = |e: crate::engine::Code| e.to_string();
    let static_bytes = if of_static { 1 << 16 } else { 0 };
    let options = sys::fby_options { statics: true, ..Default::default() };
    let mut rng = Rng::new(seed);
    let mut engine = Engine::new(Media::new(9 << 16, Flavour::NonTemporal));
    engine.format_with_room([6; 16], 1 << 16, 2, static_bytes).map_err(wrong)?;
    engine.open_all(&options).map_err(wrong)?;
    let spec = sys::fby_volume_spec { static_bytes, ..volume_spec("v", 1, 240, 512) };
    engine.volume_add(&spec).map_err(wrong)?;
    let (mut marks, mut seen) = (0, HashSet::from([0]));
    // Periods from beginning to end, marked once and again, and steps that are repeated.
    use sys::{FBY_MARK_AGAIN, FBY_MARK_BEGIN, FBY_MARK_CLEARED, FBY_MARK_GONE, FBY_MARK_SET};
    const STEPS: [u32; 18] = [
        FBY_MARK_BEGIN,
        FBY_MARK_SET,
        FBY_MARK_AGAIN,
        FBY_MARK_SET,
        FBY_MARK_CLEARED,
        FBY_MARK_BEGIN,
        FBY_MARK_BEGIN,
        FBY_MARK_SET,
        FBY_MARK_CLEARED,
        FBY_MARK_AGAIN,
        FBY_MARK_AGAIN,
        FBY_MARK_SET,
        FBY_MARK_SET,
        FBY_MARK_AGAIN,
        FBY_MARK_CLEARED,
        FBY_MARK_GONE,
        FBY_MARK_GONE,
        FBY_MARK_AGAIN,
    ];
    for step in STEPS.into_iter().cycle().take(2 * STEPS.len()) {
        let before = marks;
        let number = engine.volume_mark(0, step).map_err(wrong)?;
        marks = engine.volume_info(0).map_err(wrong)?.marks;
        // The next of its kind: see fby_mark_step.
        let (rest, past) = (before % 8, before - before % 8);
        let right = match (step, rest) {
            (FBY_MARK_SET, 3 | 4) => past + 9,
            (FBY_MARK_SET, _) => before | 1,
            (FBY_MARK_AGAIN, 1 | 2) => before + 2,
            (FBY_MARK_AGAIN, 3 | 4) => before + 8,
            (FBY_MARK_AGAIN | FBY_MARK_BEGIN, 0..=2) => past + 8,
            (FBY_MARK_AGAIN | FBY_MARK_BEGIN, _) => past + 16,
            (FBY_MARK_GONE, 0..=2) => past + 6,
            (FBY_MARK_GONE, _) => past + 14,
            (_, _) => before + before % 2,
        };
        if marks != right {
            return Err(format!("step {step} counts from {before} to {marks}"));
        }
        let is_new = [FBY_MARK_BEGIN, FBY_MARK_AGAIN].contains(&step);
        if is_new && !seen.insert(number) {
            return Err(format!("{number} was the number of a mark before"));
        }
        engine.media.power_cut(&mut rng);
        engine.abandon();
        engine.open_all(&options).map_err(wrong)?;
        let now = engine.volume_info(0).map_err(wrong)?.marks;
        if now != marks {
            return Err(format!("{marks} was counted, and after a cut it is {now}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn are_counted_before_anything_else_happens() {
        super::counted().unwrap();
    }
}
