// SPDX-License-Identifier: MIT OR Apache-2.0
//! Goal: two operations at once leave what one of their orders leaves, or one of them alone, and what
//! was promised is there.  Method: one operation is held before each of its changes of the tree,
//! while another one runs that has nothing to do with it; the crashes and replays are those of the
//! other workloads.

use super::workloads::{run_with, Act, Durable};
use super::{explore, told, whole, Counts, Rng, Who};

/// They need nothing of each other, and succeed.
fn pairs() -> Vec<(&'static Act, &'static Act)> {
    use Act::*;
    const OF_ROOT: [Act; 7] = [
        Rename("foo", "A/bar"),
        Create("bar"),
        Mkdir("C"),
        Link("foo", "bar"),
        Unlink("foo"),
        Chmod("foo", 0o600),
        Truncate("foo", 700),
    ];
    const OF_B: [Act; 5] =
        [Create("B/x"), Mkdir("B/D"), Symlink("B/s"), Chmod("B", 0o700), Xattr("B")];
    const SYNCS: [Act; 2] = [Fsync("B"), Fsync("A/bar")];
    let both = |(a, b)| [(a, b), (b, a)];
    let pairs = OF_ROOT.iter().flat_map(|a| OF_B.iter().map(move |b| (a, b)));
    let all = pairs.flat_map(both);
    let synced = OF_ROOT.iter().chain(&OF_B).flat_map(|a| SYNCS.iter().map(move |b| (a, b)));
    all.chain(synced).collect()
}

#[test]
fn two_operations_at_once() {
    use Act::*;
    let (mut counts, mut rng, mut n) = (Counts::default(), Rng(1), 0);
    let every = if whole() { 1 } else { 5 };
    for (first, second) in pairs() {
        for changes in 0..4 {
            for after in [&[][..], &[Fsync("B")], &[Create("B/y"), Mkdir("A/E")]] {
                n += 1;
                if n % every != 0 {
                    continue;
                }
                let durable = match n % 4 {
                    0 => Durable::AtOnce,
                    1 => Durable::AtWait,
                    _ => Durable::BeforeWait,
                };
                let mut workload = vec![Write("foo", 0, 600), Beside(first, second, changes)];
                workload.extend(after);
                let ran = run_with(durable, &workload, None);
                let found = explore(&ran, Who::Root, 4, 4, &mut rng, &mut counts);
                assert_eq!(found, Ok(()), "{workload:?}, {durable:?}, number {n}");
            }
        }
    }
    told(&counts, "two at once");
}
