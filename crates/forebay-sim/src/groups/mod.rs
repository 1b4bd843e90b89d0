// SPDX-License-Identifier: MIT OR Apache-2.0
//! Logs of a grouped pool on the simulated [`device`](crate::device): every order of its requests
//! and of their ends, cut at each.

mod damage;
mod explore;
mod run;
mod scenes;
mod ssd;

pub use damage::damaged;
pub use explore::{explore, Bounds, Explored};
pub use run::{Op, Scene};
pub use scenes::{random, small};

/// A short search for the planted bugs of groups: damage, and each small scene.
#[cfg(feature = "planted-bugs")]
pub(crate) fn search(runs: u64, limit: Option<std::time::Duration>) -> Result<(), String> {
    damaged().map_err(|e| format!("damaged: {e}"))?;
    let bounds = Bounds::new(64, runs);
    let seeds = (0..4).map(|n| random(4 * runs + n));
    small()
        .iter()
        .chain(&seeds.collect::<Vec<_>>())
        .try_for_each(|scene| explore(scene, bounds, limit).map(|_| ()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damage_is_told_and_forges_nothing() {
        let (images, told) = damaged().unwrap_or_else(|e| panic!("{e}"));
        assert!(images > 400 && told > 20, "{images} images, {told} losses told");
    }

    #[test]
    fn no_cut_of_the_small_scenes_loses_repeats_or_invents() {
        let bounds = Bounds::new(32, 6);
        let mut all = Explored::default();
        for scene in small() {
            let seen = explore(&scene, bounds, None).unwrap_or_else(|e| panic!("{e}"));
            assert!(seen.replayed > 0, "{}: {seen:?}", scene.name);
            all.add(&seen);
        }
        assert!(all.unacknowledged > 0 && all.again > 0 && all.nested_cuts > 0, "{all:?}");
    }

    #[test]
    fn nor_of_random_ones() {
        for seed in 0..6 {
            let seen = explore(&random(seed), Bounds::new(16, 4), None);
            seen.unwrap_or_else(|e| panic!("{e}"));
        }
    }
}
