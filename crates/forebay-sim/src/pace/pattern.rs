// SPDX-License-Identifier: MIT OR Apache-2.0
//! The choice of blocks to write: uniformly random ones, some more often than others, and some
//! in sequence.

use serde::Serialize;

use crate::rng::Rng;

#[derive(Clone, Copy, Debug, Default, Serialize, clap::Args)]
pub struct Pattern {
    /// Exponent of a zipf distribution of the blocks, which lie scattered; 0: uniform
    #[arg(long, default_value_t = 0.0)]
    pub zipf: f64,
    /// Writes in a hundred that belong to a stream which runs through the data again and again
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u64).range(..=100))]
    pub sequential: u64,
}

pub struct Blocks {
    pattern: Pattern,
    blocks: u64,
    /// From rank to rank, in blocks: coprime to their number, near its golden section.
    stride: u64,
    next: u64,
    pub rng: Rng,
}

fn coprime(n: u64) -> u64 {
    let gcd = |mut a: u64, mut b: u64| {
        while b != 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    ((n as f64 * 0.618_033_988_75) as u64..).find(|&x| gcd(x, n) == 1).expect("a prime at last")
}

impl Blocks {
    pub fn new(pattern: Pattern, blocks: u64, seed: u64) -> Self {
        Self { pattern, blocks, stride: coprime(blocks), next: 0, rng: Rng::new(seed) }
    }

    /// 1 is the most likely. By the integral of `x^-s`, which is the distribution's own
    /// but for the first few.
    fn rank(&mut self) -> u64 {
        let (s, n) = (self.pattern.zipf, (self.blocks + 1) as f64);
        let u = self.rng.next_u64() as f64 / 2f64.powi(64);
        let x = if s == 1.0 {
            n.powf(u)
        } else {
            (u * (n.powf(1.0 - s) - 1.0) + 1.0).powf(1.0 / (1.0 - s))
        };
        (x as u64).clamp(1, self.blocks)
    }

    pub fn any(&mut self) -> u64 {
        if self.pattern.zipf == 0.0 {
            return self.rng.below(self.blocks);
        }
        (u128::from(self.rank()) * u128::from(self.stride) % u128::from(self.blocks)) as u64
    }

    pub fn written(&mut self) -> u64 {
        if self.pattern.sequential > 0 && self.rng.percent(self.pattern.sequential) {
            self.next = (self.next + 1) % self.blocks;
            return self.next;
        }
        self.any()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share_of_top(zipf: f64) -> f64 {
        let mut b = Blocks::new(Pattern { zipf, sequential: 0 }, 10_000, 1);
        let top: std::collections::HashSet<u64> =
            (1..=100).map(|r| r * b.stride % 10_000).collect();
        (0..10_000).filter(|_| top.contains(&b.any())).count() as f64 / 10_000.0
    }

    #[test]
    fn the_larger_the_exponent_the_more_for_the_first() {
        // The part below 101 of the integral of x^-s from 1 to 10,001.
        assert!((share_of_top(0.9) - 0.387).abs() < 0.02, "{}", share_of_top(0.9));
        assert!((share_of_top(1.2) - 0.716).abs() < 0.02, "{}", share_of_top(1.2));
        assert!(share_of_top(0.0) < 0.02);
    }

    #[test]
    fn a_stream_goes_on_where_it_was() {
        let mut b = Blocks::new(Pattern { zipf: 0.0, sequential: 100 }, 3, 1);
        assert_eq!((0..4).map(|_| b.written()).collect::<Vec<_>>(), [1, 2, 0, 1]);
    }
}
