// SPDX-License-Identifier: MIT OR Apache-2.0
//! A pool that is full of the chunks of a volume which is not attached.  Writers of the volumes
//! that are attached have to go on.
//!
//! Method: the first volume fills the pool, and only others are attached after that: once when the
//! power has failed in the middle of relocation.  A writer that gets no room sleeps until a call
//! reports that there is some: no timer wakes it, as hosts do, so a wake-up that is missing shows.

use forebay_engine::sys;
use forebay_sim::engine::{identity, small_attach, volume_spec, Decision, Engine, Wait};
use forebay_sim::media::{Flavour, Media};
use forebay_sim::rng::Rng;
use forebay_sim::script::data;

const SECTORS: u64 = 8192;
const ROOM: u64 = 15;
const STEP_NS: u64 = 5_000_000;

#[derive(Clone, Copy, Debug)]
struct Shape {
    chunks: u64,
    slots: u32,
    volumes: u16,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Runs,
    /// It has announced that it waits, and tries once more.
    Announced,
    Sleeps,
}

struct Writer {
    volume: u16,
    state: State,
    left: u64,
}

struct World {
    engine: Engine,
    shape: Shape,
    now_ns: u64,
    rng: Rng,
    /// The bits that calls have reported since writers were last woken.
    wake: u32,
}

impl World {
    fn new(shape: Shape, seed: u64) -> Self {
        let media = Media::new(((shape.chunks + 1) << 16) as usize, Flavour::NonTemporal);
        let (now_ns, rng) = (1_000_000_000, Rng::new(seed));
        let mut world = Self { engine: Engine::new(media), shape, now_ns, rng, wake: 0 };
        world.engine.format([3; 16], 1 << 16, shape.volumes.into()).unwrap();
        world.open();
        for volume in 0..shape.volumes {
            let spec = volume_spec(&format!("v{volume}"), volume.into(), SECTORS, 512);
            world.engine.volume_add(&spec).unwrap();
        }
        world
    }

    fn open(&mut self) {
        let options = sys::fby_options { nslots: self.shape.slots, ..Default::default() };
        self.engine.open_all(&options).unwrap();
    }

    fn attach(&mut self, volume: u16) {
        let identity = identity(volume.into());
        self.engine.volume_attach(volume, &small_attach(SECTORS, &identity, 64)).unwrap();
    }

    fn free(&self) -> u64 {
        let state = |c| self.engine.chunk_info(c).unwrap().state;
        (0..self.shape.chunks as u32).filter(|&c| state(c) == 0).count() as u64
    }

    fn write(&mut self, volume: u16, block: u64) -> bool {
        let bytes = data(volume.into(), block * 8..block * 8 + 8, self.rng.next_u64() >> 40);
        match self.engine.write(volume, block * 8, &bytes, &mut 0, &mut self.wake) {
            Ok(Decision::Done) => true,
            Ok(Decision::Wait(Wait::Space)) => false,
            other => panic!("{:?}: block {block} of volume {volume}: {other:?}", self.shape),
        }
    }

    /// A step of destage; every request ends with `errno`.
    fn destage(&mut self, errno: i32) {
        self.now_ns += STEP_NS;
        let step = self.engine.destage_step(self.now_ns).unwrap();
        self.wake |= step.wake;
        if let Some(io) = step.io {
            self.engine.destage_complete(io.id, errno);
        }
    }

    /// The first volume's pages fill the pool, and the power fails while relocation moves pages to
    /// the chunk that it took of the reserve.  False: that did not come.
    fn cut_in_relocation(&mut self) -> bool {
        self.attach(0);
        let hot = self.shape.chunks * ROOM / 2;
        for _ in 0..self.shape.chunks * ROOM * 20 {
            let block = self.rng.below(hot);
            if self.write(0, block) || self.free() > 2 {
                continue;
            }
            let moved = self.engine.volume_info(0).unwrap().pages_relocated;
            // The first fence is of the chunk's opening.
            self.engine.media.arm(3 + self.rng.below(4) as u32);
            self.destage(5);
            let moves = self.engine.volume_info(0).unwrap().pages_relocated > moved;
            if !moves || !self.engine.media.captured() {
                self.engine.media.disarm();
                continue;
            }
            self.engine.abandon();
            self.engine.media.power_cut(&mut self.rng);
            self.open();
            self.wake = 0;
            if self.free() == 1 {
                return true;
            }
            self.attach(0);
        }
        false
    }

    /// Flips a bit in the data of that page of each of the volume's chunks.
    fn damage(&mut self, volume: u16, page: u32) {
        for chunk in 0..self.shape.chunks {
            let entry = self.engine.entry_info(chunk as u32, page, true).unwrap();
            if entry.linked && entry.line.volume == volume {
                self.engine.media.flip((((chunk + 1) << 16) + u64::from(page) * 4096) * 8);
            }
        }
    }

    /// Each writer writes so many blocks.  The error says who does not come to an end.
    fn write_all(&mut self, writers: &mut [Writer]) -> Result<(), String> {
        let mut idle = 0;
        while idle < 3000 {
            idle += 1;
            if writers.iter().all(|w| w.left == 0) {
                return Ok(());
            }
            if self.wake & 1 << sys::FBY_WAIT_SPACE != 0 {
                writers.iter_mut().for_each(|w| w.state = State::Runs);
            }
            self.wake = 0;
            let n = self.rng.index(writers.len() + 1);
            let Some(writer) = writers.get_mut(n) else {
                self.destage(0);
                continue;
            };
            if writer.left == 0 || writer.state == State::Sleeps {
                self.destage(0);
                continue;
            }
            let block = self.rng.below(SECTORS / 8);
            if self.write(writer.volume, block) {
                writer.left -= 1;
                idle = 0;
                writer.state = State::Runs;
            } else if writer.state == State::Runs {
                self.engine.wait_prepare(Wait::Space);
                writer.state = State::Announced;
            } else {
                writer.state = State::Sleeps;
            }
        }
        let waits = |w: &&Writer| w.left > 0;
        let left: Vec<_> =
            writers.iter().filter(waits).map(|w| (w.volume, w.state, w.left)).collect();
        Err(format!("{:?}, {} free: (volume, state, left) {left:?}", self.shape, self.free()))
    }
}

fn writers(volumes: std::ops::Range<u16>, each: usize, left: u64) -> Vec<Writer> {
    let of = |volume| (0..each).map(move |_| Writer { volume, state: State::Runs, left });
    volumes.flat_map(of).collect()
}

fn shapes() -> impl Iterator<Item = Shape> {
    [16, 20, 31].into_iter().flat_map(|chunks| {
        [1, 2, 4].into_iter().flat_map(move |slots| {
            [2, 3, 5].into_iter().map(move |volumes| Shape { chunks, slots, volumes })
        })
    })
}

/// Relocation has taken its chunk of the reserve when the process is killed, and it does not go on
/// with a volume that is not attached.
#[test]
fn a_cut_in_relocation_leaves_room_for_other_volumes() {
    let mut failed = Vec::new();
    for (shape, seed) in shapes().zip(0..) {
        let mut world = World::new(shape, seed);
        assert!(world.cut_in_relocation(), "{shape:?}: relocation does not take its chunk");
        world.damage(0, 1 + seed as u32 % 15);
        (1..shape.volumes).for_each(|volume| world.attach(volume));
        failed.extend(world.write_all(&mut writers(1..shape.volumes, 2, 100)).err());
        world.engine.check(true).unwrap();
    }
    assert!(failed.is_empty(), "{failed:#?}");
}

/// The only chunk that the attached volume got is full, and a block in it is lost.  The round opens
/// the last chunk for the mark of that block and releases the other one, so as few are free as
/// before.  A writer that waits may use the room after the mark, and hears of it.
#[test]
fn the_chunk_of_a_lost_block_wakes_who_waits() {
    for (chunks, slots) in [(6, 1), (6, 2), (16, 1), (16, 4), (31, 4)] {
        let shape = Shape { chunks, slots, volumes: 2 };
        let mut world = World::new(shape, chunks);
        world.attach(0);
        for block in 0.. {
            if world.free() == 2 && block % ROOM == 0 {
                break;
            }
            assert!(world.write(0, block), "{shape:?}");
        }
        world.engine.volume_detach(0).unwrap();
        world.attach(1);
        let got = (0..).take_while(|&block| world.write(1, block)).count() as u64;
        assert_eq!((got, world.free()), (ROOM, 1), "{shape:?}");
        world.engine.wait_prepare(Wait::Space);
        assert!(!world.write(1, ROOM), "{shape:?}");
        world.damage(1, 8);
        world.wake = 0;
        world.engine.volume_drain(1, true).unwrap();
        for _ in 0..2000 {
            world.destage(0);
        }
        let info = world.engine.volume_info(1).unwrap();
        assert_eq!((info.pages, info.lost_blocks, world.free()), (1, 1, 1), "{shape:?}");
        assert!(world.wake & 1 << sys::FBY_WAIT_SPACE != 0, "{shape:?}: nobody is woken");
        // And goes on, a chunk less that block for each round.
        for block in ROOM..10 * ROOM {
            let written = (0..1000).any(|_| {
                world.destage(0);
                world.write(1, block)
            });
            assert!(written, "{shape:?}: block {block} waits for ever");
        }
        world.engine.check(true).unwrap();
    }
}
