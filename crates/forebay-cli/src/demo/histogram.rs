// SPDX-License-Identifier: MIT OR Apache-2.0
//! Latencies in buckets of about 3 % width: all of a run, in 15 KiB.

/// Buckets to each power of two.
const SUB_BITS: u32 = 5;
const BUCKETS: usize = (64 - SUB_BITS as usize + 1) << SUB_BITS;

#[derive(Clone)]
pub struct Histogram {
    counts: Vec<u64>,
    total: u64,
    max: u64,
}

impl Histogram {
    pub fn new() -> Self {
        Histogram { counts: vec![0; BUCKETS], total: 0, max: 0 }
    }

    pub fn record(&mut self, ns: u64) {
        self.counts[bucket(ns)] += 1;
        self.total += 1;
        self.max = self.max.max(ns);
    }

    pub fn merge(&mut self, other: &Histogram) {
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine += theirs;
        }
        self.total += other.total;
        self.max = self.max.max(other.max);
    }

    pub fn count(&self) -> u64 {
        self.total
    }

    pub fn max(&self) -> u64 {
        self.max
    }

    /// The value that this share of all does not exceed; 0.99 for p99.
    pub fn quantile(&self, share: f64) -> u64 {
        let wanted = (share * self.total as f64).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (i, &n) in self.counts.iter().enumerate() {
            seen += n;
            if n > 0 && seen >= wanted {
                return upper(i).min(self.max);
            }
        }
        self.max
    }
}

fn bucket(ns: u64) -> usize {
    let top = 63 - (ns | 1).leading_zeros();
    if top < SUB_BITS {
        return ns as usize;
    }
    let shift = top - SUB_BITS;
    (((shift + 1) as usize) << SUB_BITS) + (ns >> shift) as usize - (1 << SUB_BITS)
}

/// The largest value of a bucket.
fn upper(bucket: usize) -> u64 {
    if bucket < 2 << SUB_BITS {
        return bucket as u64;
    }
    let shift = (bucket >> SUB_BITS) as u32 - 1;
    let mantissa = ((bucket & ((1 << SUB_BITS) - 1)) + (1 << SUB_BITS)) as u128;
    (((mantissa + 1) << shift) - 1).min(u128::from(u64::MAX)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_holds_its_values_and_no_others() {
        let mut values: Vec<u64> = (0..4096).collect();
        for bit in 12..64 {
            values.extend([(1 << bit) - 1, 1 << bit, (1 << bit) + 1, 3 << (bit - 1)]);
        }
        values.push(u64::MAX);
        for &v in &values {
            let b = bucket(v);
            assert!(b < BUCKETS, "{v}");
            assert!(v <= upper(b), "{v} in bucket {b} up to {}", upper(b));
            assert!(b == 0 || v > upper(b - 1), "{v} in bucket {b}");
            assert!(upper(b) as f64 <= v as f64 * 1.04 + 1.0, "{v}");
        }
    }

    #[test]
    fn quantiles() {
        let mut h = Histogram::new();
        for i in 1..=1000 {
            h.record(i * 1000);
        }
        for (share, exact) in [(0.5, 500_000), (0.99, 990_000), (0.999, 999_000)] {
            let found = h.quantile(share) as f64;
            assert!((found / exact as f64 - 1.0).abs() < 0.04, "{share}: {found}");
        }
        assert_eq!(h.quantile(1.0), 1_000_000);
        assert_eq!(h.count(), 1000);
    }
}
