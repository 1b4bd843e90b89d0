// SPDX-License-Identifier: MIT OR Apache-2.0
//! The states of a device after a power cut: all if they are few, else chosen by shape
//! (of each write none, all, each block missing, each alone, each prefix) and at random.

use std::collections::HashSet;
use std::rc::Rc;

use super::disk::{Block, Disk};
use crate::rng::Rng;

/// A block that is not durable as it is seen.
#[derive(Clone, Debug)]
pub(super) struct Open {
    pub block: usize,
    /// Oldest first, each with the number of its write among those that are not durable.
    pub versions: Vec<(usize, Rc<Block>)>,
    /// The newest version that the device has said to be durable, and is not.
    pub claimed: Option<usize>,
}

/// A device at one moment.
#[derive(Clone, Debug)]
pub struct Cut {
    durable: Disk,
    open: Vec<Open>,
}

/// How many images of one cut.
#[derive(Clone, Copy, Debug)]
pub struct Images {
    /// All of them, as long as there are no more than so many.
    pub complete: u64,
    /// Else the shapes, and so many at random.
    pub random: u32,
}

/// The state after the cut.
#[derive(Clone, Debug)]
pub struct Image {
    pub disk: Disk,
    /// Something is gone that the device had said to be durable.
    pub lied: bool,
}

/// The version of a block after a cut: version 0 is the durable one.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Pick {
    Version(u16),
    /// By sectors.
    Mixed(Vec<u16>),
    Unreadable,
}

/// How finely blocks are mixed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Grain {
    /// Each way to mix two versions.
    Every,
    /// The beginning of one, the end of another.
    Halves,
    Whole,
}

impl Open {
    fn content<'a>(&'a self, durable: &'a Disk, version: u16) -> Option<&'a Rc<Block>> {
        match version {
            0 => durable.block(self.block),
            n => self.versions.get(usize::from(n) - 1).map(|(_, content)| content),
        }
    }

    /// The sectors in which two versions differ.
    fn differing(&self, durable: &Disk, a: u16, b: u16) -> Vec<usize> {
        match (self.content(durable, a), self.content(durable, b)) {
            (Some(a), Some(b)) => {
                (0..a.sectors()).filter(|&n| a.sector(n) != b.sector(n)).collect()
            }
            _ => Vec::new(),
        }
    }

    fn mixed(&self, durable: &Disk, a: u16, b: u16, of_b: impl Fn(usize) -> bool) -> Pick {
        let mut sectors = vec![a; durable.unit() / super::SECTOR];
        for (n, sector) in self.differing(durable, a, b).into_iter().enumerate() {
            if of_b(n) {
                sectors[sector] = b;
            }
        }
        Pick::Mixed(sectors)
    }

    fn picks(&self, durable: &Disk, grain: Grain) -> Vec<Pick> {
        let n = self.versions.len() as u16;
        let mut picks: Vec<Pick> = (0..=n).map(Pick::Version).collect();
        picks.push(Pick::Unreadable);
        if grain == Grain::Whole {
            return picks;
        }
        for (a, b) in (0..=n).flat_map(|b| (0..b).map(move |a| (a, b))) {
            let differ = self.differing(durable, a, b).len();
            if grain == Grain::Every {
                let masks = 1..(1usize << differ).saturating_sub(1);
                picks.extend(masks.map(|mask| self.mixed(durable, a, b, |n| mask >> n & 1 == 1)));
            } else {
                for p in 1..differ {
                    picks.push(self.mixed(durable, a, b, |n| n < p));
                    picks.push(self.mixed(durable, a, b, |n| n >= p));
                }
            }
        }
        picks
    }

    /// Without making them.
    fn count(&self, durable: &Disk, grain: Grain) -> u64 {
        let n = self.versions.len() as u16;
        let pairs = (0..=n).flat_map(|b| (0..b).map(move |a| (a, b)));
        let mixes = pairs.map(|(a, b)| {
            let differ = self.differing(durable, a, b).len() as u32;
            match grain {
                Grain::Whole => 0,
                Grain::Every => (1u64 << differ.min(40)).saturating_sub(2),
                Grain::Halves => 2 * u64::from(differ.saturating_sub(1)),
            }
        });
        u64::from(n) + 2 + mixes.sum::<u64>()
    }

    fn random_mix(&self, durable: &Disk, rng: &mut Rng) -> Pick {
        let n = self.versions.len() as u64 + 1;
        Pick::Mixed((0..durable.unit() / super::SECTOR).map(|_| rng.below(n) as u16).collect())
    }

    /// The content, and the oldest version in it.
    fn leave(&self, durable: &Disk, pick: &Pick) -> (Option<Rc<Block>>, Option<u16>) {
        match pick {
            Pick::Version(n) => (self.content(durable, *n).cloned(), Some(*n)),
            Pick::Unreadable => (None, None),
            Pick::Mixed(sectors) => {
                let mut bytes = Vec::with_capacity(durable.unit());
                for (at, version) in sectors.iter().enumerate() {
                    // A sector of a block that could not be read spoils the block.
                    let Some(from) = self.content(durable, *version) else { return (None, None) };
                    bytes.extend_from_slice(from.sector(at));
                }
                (Some(Block::new(&bytes)), sectors.iter().min().copied())
            }
        }
    }
}

impl Cut {
    pub(super) fn new(durable: Disk, open: Vec<Open>) -> Self {
        Self { durable, open }
    }

    /// Nothing is open: the cut leaves one image.
    pub fn is_settled(&self) -> bool {
        self.open.is_empty()
    }

    /// The content where nothing lands that was not durable.
    pub fn durable(&self) -> &Disk {
        &self.durable
    }

    fn image(&self, picks: &[Pick]) -> Image {
        let (mut disk, mut lied) = (self.durable.clone(), false);
        for (open, pick) in self.open.iter().zip(picks) {
            let (content, oldest) = open.leave(&self.durable, pick);
            let owed = open.claimed.map_or(0, |c| c + 1);
            lied |= owed > 0 && oldest.is_none_or(|v| usize::from(v) < owed);
            disk.set(open.block, content);
        }
        Image { disk, lied }
    }

    /// Hands out each image once, until one is refused.
    pub fn images<E>(
        &self,
        bounds: Images,
        seed: u64,
        mut look: impl FnMut(&Image) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut seen = HashSet::new();
        let mut give = |picks: &[Pick]| {
            let image = self.image(picks);
            if seen.insert(image.disk.hash()) {
                look(&image)?;
            }
            Ok(())
        };
        match self.grain(bounds.complete) {
            Some(grain) => self.all(grain, &mut give)?,
            None => {
                self.shapes(&mut Rng::new(seed ^ 0x5a9e), &mut give)?;
                let mut rng = Rng::new(seed);
                (0..bounds.random).try_for_each(|_| give(&self.random(&mut rng)))?;
            }
        }
        // With all versions whole, a finer grain at random.
        if self.grain(bounds.complete).is_some_and(|grain| grain != Grain::Every) {
            let mut rng = Rng::new(seed);
            (0..bounds.random).try_for_each(|_| give(&self.random(&mut rng)))?;
        }
        Ok(())
    }

    /// The finest of which there are no more than so many images.
    fn grain(&self, most: u64) -> Option<Grain> {
        [Grain::Every, Grain::Halves, Grain::Whole].into_iter().find(|grain| {
            let counts = self.open.iter().map(|open| open.count(&self.durable, *grain));
            counts.fold(1u64, u64::saturating_mul) <= most
        })
    }

    fn all<E>(
        &self,
        grain: Grain,
        give: &mut impl FnMut(&[Pick]) -> Result<(), E>,
    ) -> Result<(), E> {
        let of: Vec<_> = self.open.iter().map(|open| open.picks(&self.durable, grain)).collect();
        let mut at = vec![0; of.len()];
        loop {
            let picks: Vec<Pick> = of.iter().zip(&at).map(|(of, at)| of[*at].clone()).collect();
            give(&picks)?;
            let mut place = 0;
            loop {
                if place == at.len() {
                    return Ok(());
                }
                at[place] += 1;
                if at[place] < of[place].len() {
                    break;
                }
                at[place] = 0;
                place += 1;
            }
        }
    }

    /// The blocks of each write that is open: places in `open`, and the version there.
    fn writes(&self) -> Vec<Vec<(usize, u16)>> {
        let mut writes = std::collections::BTreeMap::<usize, Vec<(usize, u16)>>::new();
        for (at, open) in self.open.iter().enumerate() {
            for (version, (write, _)) in (1u16..).zip(&open.versions) {
                writes.entry(*write).or_default().push((at, version));
            }
        }
        writes.into_values().collect()
    }

    fn shapes<E>(
        &self,
        rng: &mut Rng,
        give: &mut impl FnMut(&[Pick]) -> Result<(), E>,
    ) -> Result<(), E> {
        let writes = self.writes();
        // Chooses which blocks of each write land.  The newest version of a block that lands counts.
        let picks = |lands: &dyn Fn(usize, usize) -> bool| {
            let mut newest = vec![0; self.open.len()];
            for (w, blocks) in writes.iter().enumerate() {
                for (b, (at, version)) in blocks.iter().enumerate() {
                    if lands(w, b) {
                        newest[*at] = *version;
                    }
                }
            }
            newest.into_iter().map(Pick::Version).collect::<Vec<_>>()
        };
        let n = writes.len();
        if n <= 6 {
            (0..1u32 << n).try_for_each(|mask| give(&picks(&|w, _| mask >> w & 1 == 1)))?;
        } else {
            give(&picks(&|_, _| false))?;
            give(&picks(&|_, _| true))?;
            for one in 0..n {
                give(&picks(&|w, _| w == one))?;
                give(&picks(&|w, _| w != one))?;
                give(&picks(&|w, _| w < one))?;
            }
        }
        for (one, blocks) in writes.iter().enumerate() {
            for others in [false, true].into_iter().take(n.min(2)) {
                for (block, (at, _)) in blocks.iter().enumerate() {
                    give(&picks(&|w, b| if w == one { b == block } else { others }))?;
                    give(&picks(&|w, b| if w == one { b <= block } else { others }))?;
                    let mut missing = picks(&|w, b| if w == one { b != block } else { others });
                    give(&missing)?;
                    missing[*at] = self.open[*at].random_mix(&self.durable, rng);
                    give(&missing)?;
                    missing[*at] = Pick::Unreadable;
                    give(&missing)?;
                }
            }
        }
        Ok(())
    }

    fn random(&self, rng: &mut Rng) -> Vec<Pick> {
        let lands = rng.pick(&[3, 50, 97]);
        let (torn, lost) = rng.pick(&[(0, 0), (4, 0), (30, 3), (0, 10)]);
        self.open
            .iter()
            .map(|open| match rng.below(100) {
                p if p < lost => Pick::Unreadable,
                p if p < lost + torn => open.random_mix(&self.durable, rng),
                _ if rng.percent(lands) => {
                    Pick::Version(rng.range(1, open.versions.len() as u64) as u16)
                }
                _ => Pick::Version(0),
            })
            .collect()
    }

    /// One image at random.
    pub fn draw(&self, rng: &mut Rng) -> Image {
        let picks = self.random(rng);
        self.image(&picks)
    }
}
