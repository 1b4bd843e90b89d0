// SPDX-License-Identifier: MIT OR Apache-2.0
//! Volumes in a pool on a device that forgets what was not flushed, and fails: threads that write,
//! with destage.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{mpsc, Arc};
use std::time::{Duration, Instant};

use super::super::{Durable, GroupedMedium};
use super::bed::{room, watch_the_machine};
use super::model::{Landed, Model, CHUNK, UNIT};
use super::pools::KINDS;
use crate::attach::AttachOptions;
use crate::bypass::VolumeChange;
use crate::error::Result;
use crate::mark::{OriginMarks, OriginState};
use crate::medium::mixed;
use crate::origin::MemOrigin;
use crate::pool::{NewVolume, Pool, PoolOptions};
use crate::report::{Mode, Uuid, WriteDurable};
use crate::volume::Volume;

pub(super) const BLOCK: usize = 4096;
const THREADS: u64 = 6;
/// The blocks of each thread.
const BLOCKS: u64 = 40;

fn options() -> PoolOptions {
    let max_age = Some(Duration::from_millis(30));
    PoolOptions { max_age, io_uring: false, ..Default::default() }
}

fn opened(model: &Arc<Model>, kind: Durable, new: bool) -> Pool {
    watch_the_machine();
    let path = Path::new("(model)");
    let medium = GroupedMedium::on(path, model.clone(), UNIT as u32, kind).unwrap();
    if new {
        medium.format(Uuid([7; 16]), CHUNK as u32, 8).unwrap();
    }
    Pool::open_on(medium, &options()).unwrap()
}

fn attached(pool: &Pool, origin: &MemOrigin, durable: WriteDurable) -> Volume {
    let options = AttachOptions { durable, ..Default::default() };
    pool.attach_origin("v", Box::new(origin.clone()), &options).unwrap()
}

fn made(
    kind: Durable,
    chunks: usize,
    durable: WriteDurable,
    us: u64,
) -> (Arc<Model>, Pool, MemOrigin, Volume) {
    let model = Arc::new(Model::new(room(chunks), kind, us, 2 * us));
    let pool = opened(&model, kind, true);
    let origin = MemOrigin::new((THREADS * BLOCKS) as usize * BLOCK).unwrap();
    pool.volume_add_origin("v", &origin, 0).unwrap();
    let volume = attached(&pool, &origin, durable);
    (model, pool, origin, volume)
}

/// A block of this version.
pub(super) fn block(at: u64, version: u64) -> Vec<u8> {
    let mut data = vec![(at ^ version) as u8; BLOCK];
    data[..8].copy_from_slice(&at.to_le_bytes());
    data[8..16].copy_from_slice(&version.to_le_bytes());
    data
}

fn version(at: u64, data: &[u8]) -> u64 {
    let number = |i: usize| u64::from_le_bytes(data[i..i + 8].try_into().unwrap());
    let version = number(8);
    if version != 0 {
        assert!(data == block(at, version), "block {at} is mixed up");
    }
    version
}

pub(super) fn drained(volume: &Volume) {
    volume.drain(&mut |_| ControlFlow::Continue(())).unwrap();
}

/// Threads write blocks of their own, flush, and read, until the power fails.  What was
/// acknowledged and is to be durable is there, and nothing that was never written.
fn cut_under_load(seed: u64, durable: WriteDurable) -> Result<()> {
    let (mut seed, kind) = (seed, KINDS[seed as usize % 3]);
    let chunks = [10, 24][seed as usize / 3 % 2];
    let (model, pool, origin, volume) = made(kind, chunks, durable, 15);
    let cells = || (0..THREADS * BLOCKS).map(|_| AtomicU64::new(0)).collect::<Vec<_>>();
    let (begun, told) = (cells(), cells());
    let (stop, steps) = (AtomicBool::new(false), AtomicU64::new(0));
    let least = 50 + mixed(&mut seed) % 1500;
    let left = std::thread::scope(|s| {
        for thread in 0..THREADS {
            let (volume, begun, told, stop, steps) = (&volume, &begun, &told, &stop, &steps);
            s.spawn(move || {
                let mut seed = thread + 1;
                let mut unflushed: Vec<(u64, u64)> = Vec::new();
                for n in 1.. {
                    let at = thread * BLOCKS + mixed(&mut seed) % BLOCKS;
                    let i = at as usize;
                    let offset = at * BLOCK as u64;
                    begun[i].store(n, Ordering::SeqCst);
                    let fua = mixed(&mut seed).is_multiple_of(4);
                    let data = block(at, n);
                    let wrote = match fua {
                        true => volume.write_at_durably(&data, offset),
                        false => volume.write_at(&data, offset),
                    };
                    if wrote.is_err() {
                        return;
                    }
                    unflushed.push((at, n));
                    let all = durable == WriteDurable::Always;
                    let flushed = !all && mixed(&mut seed).is_multiple_of(8);
                    if flushed && volume.flush().is_err() {
                        return;
                    }
                    // Told after the acknowledgement, and not of what came after the cut.
                    if stop.load(Ordering::SeqCst) {
                        return;
                    }
                    if all || flushed {
                        unflushed
                            .drain(..)
                            .for_each(|(at, n)| told[at as usize].store(n, Ordering::SeqCst));
                    } else if fua {
                        told[i].store(n, Ordering::SeqCst);
                    }
                    steps.fetch_add(1, Ordering::SeqCst);
                    if mixed(&mut seed).is_multiple_of(4) {
                        let mut there = vec![0; BLOCK];
                        match volume.read_at(&mut there, offset) {
                            Ok(()) => assert_eq!(version(at, &there), n),
                            Err(_) => return,
                        }
                    }
                }
            });
        }
        let start = Instant::now();
        while steps.load(Ordering::SeqCst) < least {
            assert!(
                start.elapsed() < Duration::from_secs(60),
                "{}: it hangs",
                pool.status().medium.map_or(0, |m| m.groups)
            );
            std::thread::sleep(Duration::from_micros(200));
        }
        // Acknowledgements from here on may be lost.
        let kept: Vec<u64> = told.iter().map(|t| t.load(Ordering::SeqCst)).collect();
        stop.store(true, Ordering::SeqCst);
        (model.cut(&mut seed), kept)
    });
    let (left, kept) = left;
    let _ = volume.detach();
    assert!(pool.close().is_err(), "the device is gone");
    let model = Arc::new(Model::new(left, kind, 0, 0));
    let pool = opened(&model, kind, false);
    let report = pool.recovery();
    assert!(report.holes == 0 && report.damaged == 0, "{report:?}");
    let checked = pool.check(true).unwrap();
    assert!(checked.invariant.is_none() && checked.damaged.is_empty(), "{checked:?}");
    let volume = attached(&pool, &origin, durable);
    let verify = |read: &dyn Fn(u64, &mut [u8])| {
        for at in 0..THREADS * BLOCKS {
            let mut there = vec![0; BLOCK];
            read(at, &mut there);
            let (found, i) = (version(at, &there), at as usize);
            let most = begun[i].load(Ordering::SeqCst);
            assert!(
                kept[i] <= found && found <= most,
                "{kind:?} {durable:?}: block {at} is {found}, told {}, begun {most}",
                kept[i]
            );
        }
    };
    verify(&|at, to| volume.read_at(to, at * BLOCK as u64).unwrap());
    drained(&volume);
    volume.detach()?;
    let content = origin.content();
    verify(&|at, to| to.copy_from_slice(&content[at as usize * BLOCK..][..BLOCK]));
    pool.volume_remove("v", false)?;
    pool.close()
}

#[test]
fn a_write_that_was_acknowledged_survives_a_cut() {
    (0..24).for_each(|seed| cut_under_load(seed, WriteDurable::Always).unwrap());
}

#[test]
fn what_was_flushed_survives_a_cut() {
    (0..24).for_each(|seed| cut_under_load(seed, WriteDurable::Flush).unwrap());
}

/// Parts of blocks, zeroes, discards, reads and rewrites, in a pool that is smaller than what is
/// written, in front of an origin that has all of it after a drain.
#[test]
fn each_operation_ends_in_the_origin() {
    for (round, kind) in KINDS.into_iter().enumerate() {
        for durable in [WriteDurable::Always, WriteDurable::Flush] {
            let (_model, pool, origin, volume) = made(kind, 10, durable, 0);
            let mut expected = vec![0u8; (THREADS * BLOCKS) as usize * BLOCK];
            let mut seed = round as u64 + 1;
            for n in 0..1500u64 {
                let sectors = expected.len() as u64 / 512;
                let at = mixed(&mut seed) % sectors;
                let len = (1 + mixed(&mut seed) % 40).min(sectors - at);
                let bytes = at as usize * 512..(at + len) as usize * 512;
                let (offset, size) = (at * 512, len * 512);
                match mixed(&mut seed) % 8 {
                    0 => {
                        volume.write_zeroes(offset, size).unwrap();
                        expected[bytes].fill(0);
                    }
                    1 => {
                        // Whole blocks, or what a discard leaves is not known.
                        let (start, end) =
                            (bytes.start.next_multiple_of(BLOCK), bytes.end / BLOCK * BLOCK);
                        if start < end {
                            volume.discard(start as u64, (end - start) as u64).unwrap();
                            expected[start..end].fill(0);
                        }
                    }
                    2 => {
                        let mut there = vec![1; bytes.len()];
                        volume.read_at(&mut there, offset).unwrap();
                        assert!(
                            there == expected[bytes],
                            "{kind:?} {durable:?}: {n}: {len} sectors at {at}"
                        );
                    }
                    3 => volume.flush().unwrap(),
                    _ => {
                        let data: Vec<u8> =
                            (0..bytes.len()).map(|i| (i as u64 ^ n) as u8).collect();
                        volume.write_at(&data, offset).unwrap();
                        expected[bytes].copy_from_slice(&data);
                    }
                }
            }
            drained(&volume);
            assert!(origin.content() == expected, "{kind:?} {durable:?}");
            volume.detach().unwrap();
            pool.volume_remove("v", false).unwrap();
            pool.close().unwrap();
        }
    }
}

/// A write that nobody flushes is sent all the same.
#[test]
fn a_write_that_nobody_waits_for_is_sent() {
    let (model, pool, _origin, volume) = made(Durable::Flush, 24, WriteDurable::Flush, 0);
    volume.write_at(&block(3, 9), 3 * BLOCK as u64).unwrap();
    let start = Instant::now();
    while pool.status().medium.unwrap().records == 0 {
        assert!(start.elapsed() < Duration::from_secs(20), "{:?}", model.counts());
        std::thread::sleep(Duration::from_millis(1));
    }
    volume.detach().unwrap();
    pool.close().unwrap();
}

/// A slow device and a fast one: status says what holds for the volume, and why.
#[test]
fn status_says_why_a_write_is_durable_when_it_is() {
    let (_model, pool, _origin, volume) = made(Durable::Flush, 10, WriteDurable::Auto, 300);
    let told = || {
        let v = pool.volumes().remove(0);
        (v.durable, v.durable_because.unwrap_or_default())
    };
    let (durable, because) = told();
    assert_eq!(durable, Some(WriteDurable::Flush));
    assert!(because.starts_with("auto: ") && because.ends_with(", 200 us or more"), "{because}");
    for asked in [WriteDurable::Always, WriteDurable::Flush] {
        volume.set(&VolumeChange { durable: Some(asked), ..Default::default() });
        assert_eq!(told(), (Some(asked), "it was asked for".into()));
    }
    volume.set(&VolumeChange { durable: Some(WriteDurable::Auto), ..Default::default() });
    assert_eq!(told(), (durable, because));
    volume.detach().unwrap();
    assert_eq!(told(), (None, String::new()));
    assert_eq!(pool.status().medium.unwrap().durable_by_because, "it was asked for");
    pool.close().unwrap();
}

/// The device fails: writes and flushes are refused by its name, and what was durable is read on.
#[test]
fn a_failed_device_is_named_and_reads_go_on() {
    for durable in [WriteDurable::Always, WriteDurable::Flush] {
        let (model, pool, origin, volume) = made(Durable::Fua, 24, durable, 0);
        volume.write_at_durably(&block(1, 5), BLOCK as u64).unwrap();
        let (writes, ..) = model.counts();
        model.plan(|plan| plan.dead_from = Some(writes));
        let told = |what: &str, done: Result<()>| {
            let e = done.expect_err(what);
            assert!(e.exit_code() == 7 && e.to_string().contains("(model)"), "{what}: {e}");
        };
        told("a durable write", volume.write_at_durably(&block(2, 5), 2 * BLOCK as u64));
        told("a write", volume.write_at(&block(2, 6), 2 * BLOCK as u64));
        told("a flush", volume.flush());
        let mut there = vec![0; BLOCK];
        volume.read_at(&mut there, BLOCK as u64).unwrap();
        assert_eq!(version(1, &there), 5);
        // The image has what was acknowledged, and the origin gets it.
        let begun = std::time::Instant::now();
        let in_time = |_: &_| match begun.elapsed() < std::time::Duration::from_secs(60) {
            true => ControlFlow::Continue(()),
            false => ControlFlow::Break(()),
        };
        volume.drain(&mut { in_time }).unwrap();
        assert_eq!(version(1, &origin.content()[BLOCK..2 * BLOCK]), 5);
        let _ = volume.detach();
        assert_eq!(pool.close().unwrap_err().exit_code(), 7);
    }
}

/// Written through, past a block that is cached: its page is released no more, and nobody waits for it.
#[test]
fn a_write_through_to_a_cached_block_ends_when_the_device_has_failed() {
    for mode in [Mode::WriteThrough, Mode::Cleaner] {
        let (model, pool, _origin, volume) = made(Durable::Fua, 24, WriteDurable::Always, 0);
        volume.write_at_durably(&block(1, 5), BLOCK as u64).unwrap();
        let (writes, ..) = model.counts();
        model.plan(|plan| plan.dead_from = Some(writes));
        volume.write_at_durably(&block(2, 5), 2 * BLOCK as u64).unwrap_err();
        volume.set(&VolumeChange { mode: Some(mode), ..Default::default() });
        let (sent, ended) = mpsc::channel();
        let (written, stopper) = (volume.clone(), volume.inner().core().clone());
        let writer = std::thread::spawn(move || {
            let _ = sent.send(written.write_at(&block(1, 6), BLOCK as u64));
        });
        let done = ended.recv_timeout(Duration::from_secs(20));
        stopper.space.abort();
        writer.join().unwrap();
        let e = done.unwrap_or_else(|_| panic!("{mode:?}: it does not end")).unwrap_err();
        assert!(e.exit_code() == 7 && e.to_string().contains("(model)"), "{mode:?}: {e}");
        let _ = volume.detach();
        let _ = pool.close();
    }
}

/// A volume in front of a file whose mark is in a directory of the test.
pub(super) struct OnDisk {
    pub dir: PathBuf,
    pub model: Arc<Model>,
}

impl OnDisk {
    pub fn new(name: &str) -> OnDisk {
        let base = forebay_test::memory();
        let dir = base.join(format!("fby-ssd-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("disk"), vec![0; 64 * BLOCK]).unwrap();
        OnDisk { dir, model: Arc::new(Model::new(room(24), Durable::Fua, 0, 0)) }
    }

    pub fn disk(&self) -> PathBuf {
        self.dir.join("disk")
    }

    pub fn state(&self) -> PathBuf {
        self.dir.join("marks")
    }

    /// Nothing is destaged that no drain asks for.
    pub fn pool(&self, new: bool) -> Pool {
        let path = Path::new("(model)");
        let medium =
            GroupedMedium::on(path, self.model.clone(), UNIT as u32, Durable::Fua).unwrap();
        if new {
            medium.format(Uuid([7; 16]), CHUNK as u32, 8).unwrap();
        }
        let pool = OnDisk::pool_on(medium);
        if new {
            let new = NewVolume { name: "v".into(), origin: self.disk(), ..Default::default() };
            pool.volume_add(&new).unwrap();
        }
        pool
    }

    pub fn pool_on(medium: GroupedMedium) -> Pool {
        watch_the_machine();
        Pool::open_on(medium, &PoolOptions { max_age: None, ..options() }).unwrap()
    }

    pub fn attach(&self, pool: &Pool) -> Result<Volume> {
        let (durable, state) = (WriteDurable::Always, Some(self.state()));
        pool.attach("v", &AttachOptions { durable, state, ..Default::default() })
    }

    /// Its next `n` writes are good.
    pub fn dies_after(&self, n: u64) {
        let (writes, ..) = self.model.counts();
        self.model.plan(|plan| plan.dead_from = Some(writes + n));
    }

    fn comes_back(&self) {
        self.model.plan(|plan| plan.dead_from = None);
    }

    pub fn version(&self, at: u64) -> u64 {
        let content = std::fs::read(self.disk()).unwrap();
        version(at, &content[at as usize * BLOCK..][..BLOCK])
    }
}

impl Drop for OnDisk {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// The device fails, and the origin gets everything from the image.  The origin bears no mark then,
/// and somebody writes to it.  When the device is back, its pool must not write older pages over that.
#[test]
fn pages_of_a_pool_that_failed_never_replace_what_was_written_since() {
    let bed = OnDisk::new("rescued");
    let pool = bed.pool(true);
    let volume = bed.attach(&pool).unwrap();
    volume.write_at_durably(&block(1, 5), BLOCK as u64).unwrap();
    bed.dies_after(0);
    volume.write_at_durably(&block(2, 5), 2 * BLOCK as u64).unwrap_err();
    let begun = Instant::now();
    let in_time = |_: &_| match begun.elapsed() < Duration::from_secs(60) {
        true => ControlFlow::Continue(()),
        false => ControlFlow::Break(()),
    };
    volume.drain(&mut { in_time }).unwrap();
    assert_eq!(bed.version(1), 5);
    let marks = OriginMarks::at(&bed.disk(), Some(&bed.state())).unwrap();
    assert_eq!(marks.status().unwrap().state, OriginState::Complete);
    drop(marks);
    let _ = volume.detach();
    pool.close().unwrap_err();
    let mut newer = std::fs::read(bed.disk()).unwrap();
    newer[BLOCK..2 * BLOCK].copy_from_slice(&block(1, 9));
    std::fs::write(bed.disk(), &newer).unwrap();
    bed.comes_back();
    let pool = bed.pool(false);
    let e = bed.attach(&pool).expect_err("an origin that may be newer than the pool is attached");
    assert!(e.exit_code() == 6 && e.to_string().contains("mark"), "{e}");
    pool.close().unwrap();
    assert_eq!(bed.version(1), 9);
}

/// A healthy pool has time to ask what is to become of lost entries.
#[test]
fn a_rescue_is_for_a_pool_that_has_failed() {
    let bed = OnDisk::new("healthy");
    let pool = bed.pool(true);
    bed.attach(&pool).unwrap().detach().unwrap();
    let given_up = AtomicBool::new(false);
    let e = pool.attach_for_rescue("v", &given_up).expect_err("it is attached for a rescue");
    assert!(e.exit_code() == 2 && e.to_string().contains("has failed"), "{e}");
    bed.attach(&pool).unwrap().detach().unwrap();
    pool.close().unwrap();
}

/// The device fails at each of the writes that a drain needs.  The drain ends when the origin has
/// everything, and says so.
#[test]
fn a_drain_says_what_is_there_when_the_device_fails_meanwhile() {
    let mut failed = 0;
    for after in (0..10).chain([12, 15, 20, 30, 50]) {
        let bed = OnDisk::new("drained");
        let pool = bed.pool(true);
        let volume = bed.attach(&pool).unwrap();
        for at in 0..20 {
            volume.write_at_durably(&block(at, 5), at * BLOCK as u64).unwrap();
        }
        bed.dies_after(after);
        let judged = pool.drain(None, &mut |_, _| ControlFlow::Continue(())).unwrap();
        failed += u32::from(pool.failed().is_some());
        assert!(judged[0].complete, "after {after} writes: {}", judged[0]);
        (0..20).for_each(|at| assert_eq!(bed.version(at), 5, "after {after} writes"));
        let _ = volume.detach();
        let _ = pool.close();
    }
    assert!((5..15).contains(&failed), "{failed}");
}

/// A rescued origin has everything, and what is written past the cache then is there too: no mark is
/// needed, and none could be counted.
#[test]
fn a_write_past_the_cache_of_a_pool_that_failed_needs_no_mark() {
    let bed = OnDisk::new("past");
    let pool = bed.pool(true);
    let volume = bed.attach(&pool).unwrap();
    volume.write_at_durably(&block(1, 5), BLOCK as u64).unwrap();
    bed.dies_after(0);
    volume.write_at_durably(&block(2, 5), 2 * BLOCK as u64).unwrap_err();
    volume.drain(&mut |_| ControlFlow::Continue(())).unwrap();
    let bypass_limit_bytes = Some(BLOCK as u64);
    volume.set(&VolumeChange { bypass_limit_bytes, ..Default::default() });
    volume.write_at_durably(&block(9, 5), 9 * BLOCK as u64).unwrap();
    assert_eq!(bed.version(9), 5);
    let marks = OriginMarks::at(&bed.disk(), Some(&bed.state())).unwrap();
    assert_eq!(marks.status().unwrap().state, OriginState::Complete);
    let _ = volume.detach();
    pool.close().unwrap_err();
}

/// A write is refused, because the device fails, and its bytes may be on the device all the same.  They
/// may be on the origin later, in place of what was there before.  Nobody reads them meanwhile, and
/// they replace nothing that was acknowledged after: a write past the cache is refused there.
#[test]
fn what_was_refused_replaces_nothing_that_was_acknowledged() {
    let limit = VolumeChange { bypass_limit_bytes: Some(BLOCK as u64), ..Default::default() };
    let mode = |mode| VolumeChange { mode: Some(mode), ..Default::default() };
    let ways = [limit, mode(Mode::WriteThrough), mode(Mode::Cleaner)];
    let mut there = 0;
    for landed in [Landed::Nothing, Landed::First, Landed::All] {
        for way in &ways {
            let what = format!("{landed:?} {way:?}");
            let bed = OnDisk::new("refused");
            let pool = bed.pool(true);
            let volume = bed.attach(&pool).unwrap();
            for at in [1, 2] {
                volume.write_at_durably(&block(at, 5), at * BLOCK as u64).unwrap();
            }
            let (writes, ..) = bed.model.counts();
            bed.model
                .plan(|plan| plan.writes = (writes..writes + 100).map(|n| (n, landed)).collect());
            let refused = [(1, 6), (3, 6)];
            for (at, new) in refused {
                let e = volume.write_at_durably(&block(at, new), at * BLOCK as u64).unwrap_err();
                assert_eq!(e.exit_code(), 7, "{what}: {e}");
            }
            let read = |at: u64| {
                let mut there = vec![0; BLOCK];
                volume.read_at(&mut there, at * BLOCK as u64).map(|()| version(at, &there))
            };
            assert_eq!(read(2).unwrap(), 5, "{what}");
            for (at, before) in [(1, 5), (3, 0)] {
                let read = read(at);
                assert!(read.as_ref().map_or(true, |is| *is == before), "{what}: {at}: {read:?}");
            }
            volume.set(way);
            let mut least = [0, 5, 5, 0, 0];
            for at in [1, 2, 3, 4] {
                if volume.write_at_durably(&block(at, 7), at * BLOCK as u64).is_ok() {
                    least[at as usize] = 7;
                }
            }
            volume.drain(&mut |_| ControlFlow::Continue(())).unwrap();
            for at in [1, 2, 3, 4] {
                let is = bed.version(at);
                there += u64::from(is == 6);
                assert!(is >= least[at as usize], "{what}: block {at} is {is}, not {least:?}");
            }
            let _ = volume.detach();
            pool.close().unwrap_err();
            bed.model.plan(|plan| plan.writes.clear());
            let pool = bed.pool(false);
            assert_eq!(bed.attach(&pool).expect_err("an older copy").exit_code(), 6, "{what}");
            pool.close().unwrap();
        }
    }
    assert!(there > 0, "no byte of a refused write was written to the origin");
}

/// The device fails at each of the writes that a first write needs, those of the volume's record among
/// them.  When it comes back, its pool has what was acknowledged, and may have the origin that lacks it.
#[test]
fn a_device_that_fails_while_the_origin_is_marked_may_come_back() {
    let mut acknowledged = 0;
    for after in 0..12 {
        let bed = OnDisk::new("marked");
        let pool = bed.pool(true);
        let volume = bed.attach(&pool).unwrap();
        bed.dies_after(after);
        let wrote = volume.write_at_durably(&block(1, 5), BLOCK as u64);
        if let Err(e) = &wrote {
            assert_eq!(e.exit_code(), 7, "{e}");
        }
        let _ = volume.detach();
        let _ = pool.close();
        bed.comes_back();
        let pool = bed.pool(false);
        let volume = bed.attach(&pool);
        let volume = volume.unwrap_or_else(|e| panic!("after {after} writes, {wrote:?}: {e}"));
        let mut there = vec![0; BLOCK];
        volume.read_at(&mut there, BLOCK as u64).unwrap();
        if wrote.is_ok() {
            acknowledged += 1;
            assert_eq!(version(1, &there), 5, "after {after} writes");
        }
        volume.detach().unwrap();
        pool.close().unwrap();
    }
    assert!((1..12).contains(&acknowledged), "{acknowledged}");
}

/// No volume that is written in place.
#[test]
fn what_such_a_pool_does_not_hold_is_refused() {
    let (_model, pool, origin, volume) = made(Durable::Fua, 10, WriteDurable::Auto, 0);
    volume.detach().unwrap();
    let static_share = crate::pool::StaticShare { share_bytes: 1 << 20, flush_every: None };
    let refused = pool.volume_add_static("s", &origin, 0, Some(static_share)).unwrap_err();
    assert!(
        refused.exit_code() == 10 && refused.to_string().contains("static volumes"),
        "{refused}"
    );
    pool.close().unwrap();
}

/// A program that asks for nothing has volumes, as the command has.
#[test]
fn the_options_by_default_open_a_pool_with_volumes() {
    let (model, pool, _origin, volume) = made(Durable::Fua, 10, WriteDurable::Auto, 0);
    volume.detach().unwrap();
    pool.close().unwrap();
    let path = Path::new("(model)");
    let medium = GroupedMedium::on(path, model, UNIT as u32, Durable::Fua).unwrap();
    let pool = Pool::open_on(medium, &PoolOptions::default()).unwrap();
    assert_eq!(pool.volumes()[0].name, "v");
    pool.close().unwrap();
}
