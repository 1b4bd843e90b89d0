// SPDX-License-Identifier: MIT OR Apache-2.0
//! Derives the images that a cut may leave from the lines that are pending at it.
//!
//! Each line that recovery reads word by word (superblocks, records, header lines) is a unit,
//! with each combination of its words.  The data of a page is one unit: recovery only computes
//! its checksum, so whole, absent, and a few torn states stand for all; any other state's
//! checksum differs, too.
//!
//! The images are the product of the units' options: all of them if they are at most `bound`.
//! Otherwise `bound` images are each unit's options with all the others landed and with none,
//! all or nothing by line, and random ones.  If the bound is less than the former, half of the
//! images are some of them, and half are random.

use std::collections::BTreeMap;

use crate::media::{Flavour, LineStore, Region, LINE_WORDS};
use crate::rng::{mix, Rng};
use crate::script::Geometry;

pub type Words = [u64; LINE_WORDS];

/// Lines that differ from a region: an image without a copy of it.
pub type Overlay = BTreeMap<u32, Words>;

/// An image: lines over a region, the later ones over the earlier ones.
#[derive(Clone, Debug)]
pub struct Image {
    pub lines: Vec<(u32, Words)>,
    /// Hash of the whole image.
    pub hash: u64,
}

pub fn hash_line(line: u32, words: &Words) -> u64 {
    words.iter().fold(mix(u64::from(line) ^ 0x11e5), |h, w| mix(h ^ w))
}

pub fn hash_region(r: &Region) -> u64 {
    (0..(r.len() / 64) as u32).fold(0, |h, line| h ^ hash_line(line, &r.line(line)))
}

/// The hash of the region with the overlay over it.
pub fn hash_overlay(base: &Region, base_hash: u64, overlay: &Overlay) -> u64 {
    overlay.iter().fold(base_hash, |h, (&line, words)| {
        h ^ hash_line(line, &base.line(line)) ^ hash_line(line, words)
    })
}

/// One independent choice: ways for some lines to have landed; the first is
/// that none did, the second that all did.
struct Unit {
    options: Vec<Landed>,
}

/// Lines that changed, and by how much the hash does.
struct Landed {
    lines: Vec<(u32, Words)>,
    delta: u64,
}

impl Landed {
    fn new(lines: impl IntoIterator<Item = (u32, Words, Words)>) -> Self {
        let mut landed = Self { lines: Vec::new(), delta: 0 };
        for (line, old, new) in lines.into_iter().filter(|(_, old, new)| old != new) {
            landed.delta ^= hash_line(line, &old) ^ hash_line(line, &new);
            landed.lines.push((line, new));
        }
        landed
    }
}

/// The areas of the media that hold data and no structures.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    pub data_offset: u64,
    pub chunk_size: u64,
    /// Pages of data in each chunk.
    pub first_page: u64,
    /// The end of the chunks, and the areas of pages after them.
    pub chunks_end: u64,
    pub share_pages: [(u64, u64); 2],
}

impl Layout {
    pub fn of(g: &Geometry) -> Self {
        Self {
            data_offset: g.data_offset(),
            chunk_size: u64::from(g.chunk_size()),
            first_page: u64::from(g.first_page()),
            chunks_end: g.chunks_end(),
            share_pages: g.share_pages(),
        }
    }

    /// The page that the line is data of.
    fn data_page(&self, line: u32) -> Option<u32> {
        let at = u64::from(line) * 64;
        if at >= self.chunks_end {
            let page = self.share_pages.iter().any(|&(from, to)| (from..to).contains(&at));
            return page.then_some((at / 4096) as u32);
        }
        let in_chunk = at.checked_sub(self.data_offset)? % self.chunk_size;
        (in_chunk >= self.first_page * 4096).then_some((at / 4096) as u32)
    }
}

/// The values a line may have: any mix of words for non-temporal stores, a
/// prefix of the stores for cached ones.
fn line_options(line: u32, old: &Words, stores: &[Words], flavour: Flavour) -> Unit {
    let newest = stores[stores.len() - 1];
    let mut values = vec![*old, newest];
    match flavour {
        Flavour::NonTemporal => {
            let mut all = vec![*old];
            for (at, &was) in old.iter().enumerate() {
                let mut words: Vec<u64> = stores.iter().map(|s| s[at]).collect();
                words.sort_unstable();
                words.dedup();
                let n = all.len();
                for word in words.into_iter().filter(|&w| w != was) {
                    for i in 0..n {
                        let mut v = all[i];
                        v[at] = word;
                        all.push(v);
                    }
                }
            }
            values.extend(all.into_iter().filter(|v| v != old && *v != newest));
        }
        Flavour::Cached => {
            let mut v = *old;
            for store in stores {
                for (at, &word) in store.iter().enumerate() {
                    v[at] = word;
                    if v != *old && v != newest && !values.contains(&v) {
                        values.push(v);
                    }
                }
            }
        }
    }
    if newest == *old {
        values.remove(1);
    }
    Unit { options: values.into_iter().map(|v| Landed::new([(line, *old, v)])).collect() }
}

/// None, all, and ways to be torn: a word, a line, a sector missing, only one
/// there, a random half.
fn data_options(lines: &[(u32, Words, Words)], rng: &mut Rng) -> Unit {
    type Lines = Vec<(u32, Words, Words)>;
    let pick = |keep: &dyn Fn(usize) -> bool| -> Lines {
        let kept = lines.iter().enumerate().filter(|(i, _)| keep(*i));
        kept.map(|(_, line)| *line).collect()
    };
    let n = lines.len();
    let one = rng.index(n);
    let half = rng.next_u64();
    let mut options = vec![
        Vec::new(),
        pick(&|_| true),
        pick(&|i| i != one),
        pick(&|i| i == one),
        pick(&|i| i < n / 2),
        pick(&|i| half >> (i % 64) & 1 == 1),
    ];
    let mut word = pick(&|_| true);
    let at = rng.index(LINE_WORDS);
    word[one].2[at] = lines[one].1[at];
    options.push(word);
    let mut seen: Vec<Lines> = Vec::new();
    for o in options {
        if !seen.contains(&o) {
            seen.push(o);
        }
    }
    Unit { options: seen.into_iter().map(Landed::new).collect() }
}

fn units(
    value: &dyn Fn(u32) -> Words,
    pending: &[LineStore],
    flavour: Flavour,
    layout: Layout,
    rng: &mut Rng,
) -> Vec<Unit> {
    let mut by_line: BTreeMap<u32, Vec<Words>> = BTreeMap::new();
    for s in pending {
        by_line.entry(s.line).or_default().push(s.words);
    }
    let mut pages: BTreeMap<u32, Vec<(u32, Words, Words)>> = BTreeMap::new();
    let mut units = Vec::new();
    for (line, stores) in by_line {
        let old = value(line);
        if let Some(page) = layout.data_page(line) {
            let new = stores[stores.len() - 1];
            if new != old {
                pages.entry(page).or_default().push((line, old, new));
            }
        } else {
            units.push(line_options(line, &old, &stores, flavour));
        }
    }
    units.extend(pages.values().map(|lines| data_options(lines, rng)));
    units.retain(|u| u.options.len() > 1);
    units
}

/// The images, each once.
pub struct Images {
    units: Vec<Unit>,
    start: Image,
    total: u128,
    bound: u64,
    at: u64,
    rng: Rng,
}

impl Images {
    /// `base` with `start` over it is what is durable at the cut.
    pub fn new(
        (base, base_hash): (&Region, u64),
        start: &Overlay,
        pending: &[LineStore],
        flavour: Flavour,
        layout: Layout,
        bound: u64,
        seed: u64,
    ) -> Self {
        let mut rng = Rng::new(seed);
        let value = |line| start.get(&line).copied().unwrap_or_else(|| base.line(line));
        let units = units(&value, pending, flavour, layout, &mut rng);
        let total = units.iter().fold(1u128, |n, u| n.saturating_mul(u.options.len() as u128));
        let hash = hash_overlay(base, base_hash, start);
        let start = Image { lines: start.iter().map(|(&l, &w)| (l, w)).collect(), hash };
        Self { units, start, total, bound, at: 0, rng }
    }

    pub fn exhaustive(&self) -> bool {
        self.total <= u128::from(self.bound)
    }

    fn choose(&self, pick: impl Fn(usize, usize) -> usize) -> Image {
        let mut image = self.start.clone();
        for (i, u) in self.units.iter().enumerate() {
            let landed = &u.options[pick(i, u.options.len())];
            image.lines.extend_from_slice(&landed.lines);
            image.hash ^= landed.delta;
        }
        image
    }

    fn image(&self, mut n: u64) -> Image {
        let mut digits = Vec::with_capacity(self.units.len());
        for u in &self.units {
            digits.push((n % u.options.len() as u64) as usize);
            n /= u.options.len() as u64;
        }
        self.choose(|i, _| digits[i])
    }

    /// One unit's option with all others landed or with none.
    fn single(&self, mut n: u64) -> Option<Image> {
        let others = (n % 2) as usize;
        n /= 2;
        for (which, u) in self.units.iter().enumerate() {
            if n < u.options.len() as u64 {
                let option = n as usize;
                return Some(self.choose(|i, _| if i == which { option } else { others }));
            }
            n -= u.options.len() as u64;
        }
        None
    }

    fn random(&mut self) -> Image {
        let style = self.rng.below(3);
        let picks: Vec<usize> = self
            .units
            .iter()
            .map(|u| match style {
                0 => self.rng.index(2),
                1 if self.rng.percent(80) => self.rng.index(2),
                _ => self.rng.index(u.options.len()),
            })
            .collect();
        self.choose(|i, _| picks[i])
    }
}

impl Iterator for Images {
    type Item = Image;

    fn next(&mut self) -> Option<Image> {
        let n = self.at;
        self.at += 1;
        if self.exhaustive() {
            return (u128::from(n) < self.total).then(|| self.image(n));
        }
        if n >= self.bound {
            return None;
        }
        let singles = 2 * self.units.iter().map(|u| u.options.len() as u64).sum::<u64>();
        let single = match self.bound {
            bound if bound >= singles => Some(n),
            bound if n.is_multiple_of(2) => Some(n * singles / bound),
            _ => None,
        };
        Some(single.and_then(|n| self.single(n)).unwrap_or_else(|| self.random()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    const LAYOUT: Layout = Layout {
        data_offset: 1 << 16,
        chunk_size: 1 << 16,
        first_page: 1,
        chunks_end: 1 << 17,
        share_pages: [(0, 0); 2],
    };

    fn hashes(pending: &[LineStore], flavour: Flavour, bound: u64) -> BTreeSet<u64> {
        let base = Region::new(1 << 17);
        let zero = hash_region(&base);
        Images::new((&base, zero), &Overlay::new(), pending, flavour, LAYOUT, bound, 1)
            .map(|image| {
                let over: Overlay = image.lines.iter().copied().collect();
                assert_eq!(image.hash, hash_overlay(&base, zero, &over));
                image.hash
            })
            .collect()
    }

    fn store(line: u32, words: Words) -> LineStore {
        LineStore { line, actor: 0, words }
    }

    #[test]
    fn every_mix_of_the_words_that_differ() {
        let one = [store(1024, [1, 2, 0, 3, 0, 0, 0, 0])];
        assert_eq!(hashes(&one, Flavour::NonTemporal, 1000).len(), 8);
        assert_eq!(hashes(&one, Flavour::Cached, 1000).len(), 4);
        let two = [one[0], store(1024, [1, 5, 0, 3, 0, 0, 0, 0]), store(1025, [1; 8])];
        assert_eq!(hashes(&two, Flavour::NonTemporal, 100_000).len(), 2 * 3 * 2 * 256);
    }

    #[test]
    fn a_bound_still_has_each_line_alone_and_all_but_one() {
        let lines: Vec<LineStore> = (1024..1034).map(|l| store(l, [7; 8])).collect();
        let seen = hashes(&lines, Flavour::NonTemporal, 6000);
        assert!(seen.len() > 5000, "{}", seen.len());
        for keep in 0..10u32 {
            let alone: Overlay = [(1024 + keep, [7; 8])].into();
            let base = Region::new(1 << 17);
            assert!(seen.contains(&hash_overlay(&base, hash_region(&base), &alone)));
        }
    }

    #[test]
    fn the_hash_of_an_overlay_is_that_of_the_image() {
        let base = Region::new(1 << 17);
        let overlay: Overlay = [(7, [1, 2, 3, 4, 5, 6, 7, 8]), (2000, [9; 8])].into();
        let mut image = base.clone();
        overlay.iter().for_each(|(&line, words)| image.set_line(line, words));
        assert_eq!(hash_overlay(&base, hash_region(&base), &overlay), hash_region(&image));
    }
}
