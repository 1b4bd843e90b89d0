// SPDX-License-Identifier: MIT OR Apache-2.0
//! Decisions of a driver: all sequences of them, one run after the other, or drawn from a seed.
//! The engine cannot be copied, so each run begins anew and repeats the decisions of the one
//! before up to the last that has another answer.

use crate::rng::Rng;

#[derive(Clone, Debug)]
pub enum Choices {
    /// The choice taken at each decision of this run, and the number of choices there.
    All {
        path: Vec<(u32, u32)>,
        at: usize,
        fresh: usize,
    },
    Drawn(Rng),
}

impl Choices {
    pub fn all() -> Self {
        Self::All { path: Vec::new(), at: 0, fresh: 0 }
    }

    pub fn drawn(seed: u64) -> Self {
        Self::Drawn(Rng::new(seed))
    }

    /// One of `0..n`.
    pub fn choose(&mut self, n: usize) -> usize {
        assert!(n > 0, "a decision without an answer");
        match self {
            Self::Drawn(rng) => rng.index(n),
            Self::All { path, at, .. } => {
                if *at == path.len() {
                    path.push((0, n as u32));
                }
                let (taken, of) = path[*at];
                assert_eq!(of as usize, n, "the run does not repeat itself");
                *at += 1;
                taken as usize
            }
        }
    }

    /// Has this run decided anything that no run before it had?  What it passed until then has
    /// been looked at.
    pub fn fresh(&self) -> bool {
        match self {
            Self::Drawn(_) => true,
            Self::All { at, fresh, .. } => at >= fresh,
        }
    }

    /// The next sequence; false: there is none.
    pub fn advance(&mut self) -> bool {
        let Self::All { path, at, fresh } = self else { return true };
        path.truncate(*at);
        while let Some((taken, of)) = path.pop() {
            if taken + 1 < of {
                path.push((taken + 1, of));
                *fresh = path.len();
                *at = 0;
                return true;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_sequences_come_once_and_are_fresh_once() {
        let (mut choices, mut seen, mut fresh) = (Choices::all(), Vec::new(), 0);
        loop {
            let mut run = Vec::new();
            for n in [2, 3] {
                run.push(choices.choose(n));
                fresh += u32::from(choices.fresh());
            }
            if run[0] == 1 {
                run.push(choices.choose(2));
                fresh += u32::from(choices.fresh());
            }
            seen.push(run);
            if !choices.advance() {
                break;
            }
        }
        let expected = [
            vec![0, 0],
            vec![0, 1],
            vec![0, 2],
            vec![1, 0, 0],
            vec![1, 0, 1],
            vec![1, 1, 0],
            vec![1, 1, 1],
            vec![1, 2, 0],
            vec![1, 2, 1],
        ];
        assert_eq!(seen, expected);
        // The nodes of that tree: 2, then 3 of each, then 2 of three.
        assert_eq!(fresh, 2 + 6 + 6);
    }
}
