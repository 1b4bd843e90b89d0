// SPDX-License-Identifier: MIT OR Apache-2.0
//! Logs and volumes of a grouped pool on the simulated [`device`](crate::device): every order of its
//! requests and of their ends, cut at each.

mod bytes;
mod damage;
mod explore;
mod formats;
mod hostile;
mod lies;
mod pinned;
mod run;
mod scenes;
mod ssd;
mod volume_bytes;
mod volume_cuts;
mod volume_flips;
mod volume_requests;
mod volume_scenes;
mod volumes;

use serde::Serialize;

use crate::device::Images;

pub use bytes::bytes;
pub use damage::damaged;
pub use explore::{explore, Bounds, Explored};
pub use formats::{formats, Formats};
pub use hostile::{hostile, Hostile};
pub use lies::lies;
pub use pinned::pinned;
pub use run::{Op, Scene};
pub use scenes::{random, small};
pub use volume_cuts::explore_volumes;
pub use volume_flips::{flips, Flips};
pub use volume_requests::requests_wait;
pub use volume_scenes::{random_volumes, small_volumes};
pub use volumes::VolumeScene;

/// A scene of logs, or of volumes.
#[derive(Clone, Debug)]
pub enum Any {
    Logs(Scene),
    Volumes(VolumeScene),
}

impl Any {
    pub fn name(&self) -> &str {
        match self {
            Self::Logs(scene) => &scene.name,
            Self::Volumes(scene) => &scene.name,
        }
    }

    /// All that are for one subject.
    pub fn small() -> Vec<Self> {
        let logs = small().into_iter().map(Self::Logs);
        logs.chain(small_volumes().into_iter().map(Self::Volumes)).collect()
    }

    /// Every other one has volumes.
    pub fn random(seed: u64) -> Self {
        match seed.is_multiple_of(2) {
            true => Self::Volumes(random_volumes(seed / 2)),
            false => Self::Logs(random(seed / 2)),
        }
    }

    /// By what [`Any::name`] says.
    pub fn named(name: &str) -> Option<Self> {
        let seed = |prefix| name.strip_prefix(prefix)?.parse().ok();
        let random = seed("seed ").map(|n| Self::Logs(random(n)));
        let random = random.or_else(|| Some(Self::Volumes(random_volumes(seed("volumes ")?))));
        random.or_else(|| Self::small().into_iter().find(|scene| scene.name() == name))
    }

    pub fn explore(
        &self,
        bounds: Bounds,
        limit: Option<std::time::Duration>,
    ) -> Result<Explored, String> {
        match self {
            Self::Logs(scene) => explore(scene, bounds, limit),
            Self::Volumes(scene) => explore_volumes(scene, bounds, limit),
        }
    }
}

/// Counts of the other checks of grouped pools.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Others {
    /// Images with a damaged block, and those whose losses were reported.
    pub damaged: u64,
    pub told: u64,
    pub hostile: Hostile,
    pub formats: Formats,
    /// Cases of a device that has lost what it said to be durable.
    pub lies: u64,
    pub flips: Flips,
}

/// `every`: of so many bits one is flipped.
pub fn others(mutations: u64, every: usize) -> Result<Others, String> {
    let (damaged, told) = damaged().map_err(|e| format!("damaged: {e}"))?;
    let formats = formats(Images { complete: 8, random: 4 }).map_err(|e| format!("format: {e}"))?;
    pinned().map_err(|e| format!("pinned: {e}"))?;
    let lies = lies().map_err(|e| format!("lies: {e}"))?;
    let flips = flips(every).map_err(|e| format!("flips: {e}"))?;
    Ok(Others { damaged, told, hostile: hostile(0..mutations)?, formats, lies, flips })
}

/// A short search for the planted bugs of groups: damage, and each small scene.
#[cfg(feature = "planted-bugs")]
pub(crate) fn search(runs: u64, limit: Option<std::time::Duration>) -> Result<(), String> {
    others(100, 997)?;
    let bounds = Bounds::new(64, runs);
    let seeds = (0..4).map(|n| random(4 * runs + n));
    small()
        .iter()
        .chain(&seeds.collect::<Vec<_>>())
        .try_for_each(|scene| explore(scene, bounds, limit).map(|_| ()))
}

/// As `search`, with volumes.
#[cfg(feature = "planted-bugs")]
pub(crate) fn search_volumes(runs: u64, limit: Option<std::time::Duration>) -> Result<(), String> {
    let bounds = Bounds::new(32, runs);
    let seeds = (0..16).map(|n| random_volumes(16 * runs + n));
    small_volumes()
        .iter()
        .chain(&seeds.collect::<Vec<_>>())
        .try_for_each(|scene| explore_volumes(scene, bounds, limit).map(|_| ()))
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
    fn whatever_happens_to_the_blocks_the_pool_goes_on_or_says_why_not() {
        let seen = hostile(0..600).unwrap_or_else(|e| panic!("{e}"));
        assert!(seen.opened > 400 && seen.told > 60 && seen.whole > 200, "{seen:?}");
    }

    #[test]
    fn a_device_that_loses_what_it_said_is_durable_is_reported_once_by_the_log() {
        assert_eq!(lies(), Ok(36));
    }

    /// `FOREBAY_BLESS=1` writes the file: a difference is a change of the format.
    #[test]
    fn the_bytes_of_a_pool_and_what_its_damaged_forms_are_stay_what_they_were() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/grouped.txt");
        let now = bytes().unwrap_or_else(|e| panic!("{e}"));
        if std::env::var_os("FOREBAY_BLESS").is_some() {
            std::fs::write(file, &now).unwrap();
        }
        let kept = std::fs::read_to_string(file).unwrap();
        for (kept, now) in kept.lines().zip(now.lines()) {
            assert_eq!(kept, now);
        }
        assert_eq!(kept.lines().count(), now.lines().count());
    }

    #[test]
    fn a_chunk_is_opened_again_when_its_array_is_durable() {
        assert_eq!(pinned(), Ok(()));
    }

    #[test]
    fn a_cut_inside_a_format_leaves_the_new_pool_or_the_older_or_none() {
        let bounds = Images { complete: 8, random: 4 };
        let seen = formats(bounds).unwrap_or_else(|e| panic!("{e}"));
        assert!(seen.older > 50 && seen.newer > 10 && seen.none > 100, "{seen:?}");
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

    #[test]
    fn a_flipped_bit_of_a_pool_with_a_volume_is_harmless_or_reported() {
        let seen = flips(97).unwrap_or_else(|e| panic!("{e}"));
        assert!(seen.harmless > 100 && seen.isolated > 100, "{seen:?}");
        assert!(seen.torn > 0 && seen.refused > 0, "{seen:?}");
    }

    #[test]
    fn a_request_of_a_volume_is_answered_when_its_ticket_is_durable() {
        assert_eq!(requests_wait(), Ok(()));
    }

    #[test]
    fn no_cut_of_the_small_scenes_of_volumes_shows_older_data() {
        let mut all = Explored::default();
        for scene in small_volumes() {
            let seen = explore_volumes(&scene, Bounds::new(16, 3), None);
            all.add(&seen.unwrap_or_else(|e| panic!("{e}")));
        }
        assert!(
            all.rounds > 0 && all.drained > 0 && all.nested_cuts > 0 && all.rescued > 0,
            "{all:?}"
        );
    }

    #[test]
    fn nor_of_random_ones_of_volumes() {
        for seed in 0..6 {
            let seen = explore_volumes(&random_volumes(seed), Bounds::new(8, 3), None);
            seen.unwrap_or_else(|e| panic!("{e}"));
        }
    }
}
