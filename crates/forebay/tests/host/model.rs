// SPDX-License-Identifier: MIT OR Apache-2.0
//! Random requests against a plain array, with drains, detaches and openings
//! in between; at the end the origin alone has to equal it.

use proptest::prelude::*;

use crate::common::*;
use forebay::*;

/// More than the pool holds, with a last block that is not whole.
const SECTORS: u64 = 40 * 8 + 3;

#[derive(Clone, Debug)]
enum Op {
    Write(u64, u64),
    Read(u64, u64),
    Discard(u64, u64),
    Zero(u64, u64),
    Flush,
    Drain,
    Detach,
    Reopen { clean: bool },
}

fn range() -> impl Strategy<Value = (u64, u64)> {
    // Short ones mostly, some that span batches and chunks.
    (0..SECTORS, prop_oneof![4 => 1..12u64, 1 => 1..200u64])
        .prop_map(|(at, n)| (at, n.min(SECTORS - at)))
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => range().prop_map(|(at, n)| Op::Write(at, n)),
        6 => range().prop_map(|(at, n)| Op::Read(at, n)),
        2 => range().prop_map(|(at, n)| Op::Discard(at, n)),
        2 => range().prop_map(|(at, n)| Op::Zero(at, n)),
        1 => Just(Op::Flush),
        1 => Just(Op::Drain),
        1 => Just(Op::Detach),
        1 => any::<bool>().prop_map(|clean| Op::Reopen { clean }),
    ]
}

struct World {
    dir: Dir,
    pool: Option<Pool>,
    volume: Option<Volume>,
    origin: MemOrigin,
    model: Vec<u8>,
    writes: u64,
    options: PoolOptions,
}

impl World {
    fn new(made: &CreateOptions, options: PoolOptions) -> World {
        let dir = Dir::new("model");
        let path = dir.made(made);
        let pool = Pool::open(&path, &options).unwrap();
        let origin = MemOrigin::new(SECTORS as usize * 512).unwrap();
        let volume = attach(&pool, "v", &origin);
        let model = vec![0; SECTORS as usize * 512];
        let (pool, volume) = (Some(pool), Some(volume));
        World { dir, pool, volume, origin, model, writes: 0, options }
    }

    fn volume(&self) -> &Volume {
        self.volume.as_ref().unwrap()
    }

    fn pool(&self) -> &Pool {
        self.pool.as_ref().unwrap()
    }

    fn bytes(&mut self, at: u64, n: u64) -> &mut [u8] {
        &mut self.model[at as usize * 512..(at + n) as usize * 512]
    }

    fn run(&mut self, op: &Op) {
        match *op {
            Op::Write(at, n) => {
                self.writes += 1;
                let count = self.writes;
                for i in 0..n {
                    self.bytes(at + i, 1).copy_from_slice(&sector(1, at + i, count));
                }
                let data = self.bytes(at, n).to_vec();
                self.volume().write_at(&data, at * 512).unwrap();
            }
            Op::Read(at, n) => {
                let got = read(self.volume(), at * 512, n as usize * 512);
                assert!(got == self.bytes(at, n), "read of {n} sectors at {at}");
            }
            // An origin in memory zeroes what it discards, and whole blocks
            // only are discarded.
            Op::Discard(at, n) => {
                self.volume().discard(at * 512, n * 512).unwrap();
                let (first, end) = (at.next_multiple_of(8), (at + n) / 8 * 8);
                if first < end {
                    self.bytes(first, end - first).fill(0);
                }
            }
            Op::Zero(at, n) => {
                self.volume().write_zeroes(at * 512, n * 512).unwrap();
                self.bytes(at, n).fill(0);
            }
            Op::Flush => self.volume().flush().unwrap(),
            Op::Drain => {
                drain(self.volume());
                assert!(self.origin.content() == self.model, "origin after a drain");
            }
            Op::Detach => {
                self.volume.take().unwrap().detach().unwrap();
                assert_sound(self.pool());
                self.volume = Some(reattach(self.pool(), "v", &self.origin));
            }
            Op::Reopen { clean } => self.reopen(clean),
        }
    }

    /// Not clean: with the media as it is in the middle, as a crash of the
    /// process would leave it.  Destage may go on while it is copied, but
    /// without a writer nothing that it frees is used again.
    fn reopen(&mut self, clean: bool) {
        let (path, copy) = (self.dir.path("pool"), self.dir.path("copy"));
        if !clean {
            std::fs::copy(&path, &copy).unwrap();
        }
        self.volume.take().unwrap().detach().unwrap();
        self.pool.take().unwrap().close().unwrap();
        if !clean {
            std::fs::rename(&copy, &path).unwrap();
        }
        let pool = Pool::open(&path, &self.options).unwrap();
        assert_eq!(pool.recovery().clean, clean);
        assert_eq!((pool.recovery().holes, pool.recovery().damaged), (0, 0));
        assert_sound(&pool);
        self.volume = Some(reattach(&pool, "v", &self.origin));
        self.pool = Some(pool);
    }
}

fn run(made: &CreateOptions, options: PoolOptions, ops: &[Op]) {
    let mut world = World::new(made, options);
    for op in ops {
        world.run(op);
    }
    let all = read(world.volume(), 0, world.model.len());
    assert!(all == world.model, "all of it at the end");
    drain(world.volume());
    assert!(world.origin.content() == world.model, "the origin alone at the end");
    world.volume.take().unwrap().detach().unwrap();
    assert_sound(world.pool());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..Default::default() })]

    /// The least pool there is.
    #[test]
    fn tiny_pool(ops in prop::collection::vec(op(), 1..60)) {
        run(&small(4), unthrottled(), &ops);
    }

    /// Without checksums, one slot, destage of everything at once.
    #[test]
    fn other_options(ops in prop::collection::vec(op(), 1..60)) {
        let options = PoolOptions {
            checksums: false,
            slots: 1,
            verify: Verify::First,
            idle: Some(std::time::Duration::from_millis(1)),
            ..Default::default()
        };
        run(&small(20), options, &ops);
    }

    /// Six blocks for each slot.
    #[test]
    fn static_volume_with_conflicts(ops in prop::collection::vec(op(), 1..60)) {
        run(&with_room(64 << 10), unthrottled(), &ops);
    }

    #[test]
    fn static_volume_with_a_slot_for_each_block(ops in prop::collection::vec(op(), 1..60)) {
        let idle = Some(std::time::Duration::from_millis(1));
        run(&with_room(384 << 10), PoolOptions { idle, ..Default::default() }, &ops);
    }
}
