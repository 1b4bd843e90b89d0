// SPDX-License-Identifier: MIT OR Apache-2.0
//! Goal: an origin that lacks acknowledged data is marked, whenever the machine dies.  The pool
//! that holds the data may always attach the origin, and no other pool may.
//!
//! Method: an origin and a store of marks with volatile caches.  At each step of setting or
//! removing a mark and of destage, and after each acknowledged write, the test saves the
//! durable state and the pool.  Each of these states is judged without the pool, attached again
//! and drained.  Then older pools, empty ones and other hosts try to attach the origin.
//! Further tests run writers against drains.  One of these tests has to find each mistake of
//! planted.rs.

use std::collections::HashMap;
use std::fmt;
use std::fs;
use std::io;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use super::owed::{judge_failures, judge_perhaps};
use super::planted::{plant, ALL};
use super::*;
use crate::media::CreateOptions;
use crate::origin::check_range;
use crate::overwrite::create;
use crate::pool::{Pool, PoolOptions, StaticShare};
use crate::report::OriginInfo;
use crate::volume::Volume;
use crate::{AttachOptions, DrainProgress};

pub(super) const BLOCKS: usize = 12;
pub(super) const BLOCK: usize = 4096;

/// The tests plant mistakes: one at a time.
static TURN: Mutex<()> = Mutex::new(());

pub(super) fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(|e| e.into_inner())
}

pub(super) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

/// The durable state at a moment.
#[derive(Clone)]
struct Moment {
    what: &'static str,
    pool: Vec<u8>,
    origin: Vec<u8>,
    mark: Option<Vec<u8>>,
    /// By block, the number of the last write that was acknowledged.
    acked: HashMap<usize, u8>,
    /// Marks begun, and the one that is durable.
    period: u32,
    mark_period: u32,
}

impl Moment {
    fn lacks(&self) -> bool {
        self.acked.iter().any(|(&block, &n)| self.origin[block * BLOCK] != n)
    }

    fn found(&self) -> Found {
        self.mark.as_ref().map_or(Found::Nothing, |bytes| Found::of(bytes))
    }
}

#[derive(Default)]
pub(super) struct State {
    pool: PathBuf,
    /// Volatile and durable.
    pub(super) origin: [Vec<u8>; 2],
    pub(super) mark: [Option<Vec<u8>>; 2],
    acked: HashMap<usize, u8>,
    period: u32,
    mark_period: [u32; 2],
    pub(super) record: bool,
    moments: Vec<Moment>,
    /// Putting fails after so long, and was tried so often.
    pub(super) put_fails: Option<Duration>,
    /// Such a mark is there all the same.
    pub(super) put_stays: bool,
    puts: u32,
    /// Taking away fails so often.
    pub(super) takes_fail: u32,
    /// It is another, of the same data.
    moved: bool,
}

/// Everything outside of the pool; clones share it.
#[derive(Clone, Default)]
pub(super) struct World(pub(super) Arc<Mutex<State>>);

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("World")
    }
}

impl State {
    fn moment(&mut self, what: &'static str) {
        if self.record {
            self.moments.push(Moment {
                what,
                pool: fs::read(&self.pool).unwrap(),
                origin: self.origin[1].clone(),
                mark: self.mark[1].clone(),
                acked: self.acked.clone(),
                period: self.period,
                mark_period: self.mark_period[1],
            });
        }
    }
}

impl Keep for World {
    fn name(&self) -> String {
        "test:1".into()
    }

    fn is_borne(&self) -> bool {
        true
    }

    fn find(&self) -> io::Result<Found> {
        Ok(locked(&self.0).mark[0].as_ref().map_or(Found::Nothing, |bytes| Found::of(bytes)))
    }

    fn put(&self, mark: &Mark) -> io::Result<()> {
        let fails = locked(&self.0).put_fails;
        if let Some(after) = fails {
            std::thread::sleep(after);
        }
        let mut s = locked(&self.0);
        s.puts += 1;
        if fails.is_some() {
            if s.put_stays {
                s.mark = [Some(mark.to_bytes()), Some(mark.to_bytes())];
            }
            return Err(io::ErrorKind::TimedOut.into());
        }
        s.period += 1;
        s.moment("the mark is to be put");
        s.mark[0] = Some(mark.to_bytes());
        s.mark_period[0] = s.period;
        s.moment("the mark is put");
        Ok(())
    }

    fn take_away(&self) -> io::Result<()> {
        let mut s = locked(&self.0);
        if s.takes_fail > 0 {
            s.takes_fail -= 1;
            return Err(io::ErrorKind::TimedOut.into());
        }
        s.moment("the mark is to go");
        s.mark[0] = None;
        // A mark that is removed may be gone at once.
        s.mark[1] = None;
        s.moment("the mark went");
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let mut s = locked(&self.0);
        s.mark[1] = s.mark[0].clone();
        s.mark_period[1] = s.mark_period[0];
        s.moment("the mark is synced");
        Ok(())
    }
}

impl Origin for World {
    fn size_bytes(&self) -> u64 {
        (BLOCKS * BLOCK) as u64
    }

    fn logical_block(&self) -> u32 {
        512
    }

    fn identity(&self) -> String {
        if locked(&self.0).moved { "test:2|" } else { "test:1|" }.into()
    }

    fn info(&self) -> OriginInfo {
        OriginInfo { name: "the origin".into(), ..Default::default() }
    }

    fn keep(&self) -> Option<Box<dyn Keep>> {
        Some(Box::new(self.clone()))
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        check_range(self.size_bytes(), offset, buf.len() as u64)?;
        let at = offset as usize;
        buf.copy_from_slice(&locked(&self.0).origin[0][at..at + buf.len()]);
        Ok(())
    }

    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        check_range(self.size_bytes(), offset, data.len() as u64)?;
        let (mut s, at) = (locked(&self.0), offset as usize);
        s.origin[0][at..at + data.len()].copy_from_slice(data);
        s.moment("the origin is written");
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        let mut s = locked(&self.0);
        s.origin[1] = s.origin[0].clone();
        s.moment("the origin is flushed");
        Ok(())
    }

    fn discard(&self, _: u64, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> io::Result<()> {
        self.write_at(&vec![0; len as usize], offset)
    }
}

pub(super) struct Dir(pub(super) PathBuf);

impl Dir {
    pub(super) fn new() -> Dir {
        static NUMBER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let parent = Path::new("/dev/shm");
        let parent = if parent.is_dir() { parent.into() } else { std::env::temp_dir() };
        let dir = parent.join(format!("fby-mark-{}-{number}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        Dir(dir)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

pub(super) fn open(path: &Path) -> Result<Pool> {
    let options = PoolOptions {
        high_watermark_percent: 100,
        low_watermark_percent: 100,
        io_uring: false,
        recovery_threads: 1,
        ..Default::default()
    };
    Pool::open(path, &options)
}

pub(super) fn made(path: &Path, world: &World) -> Pool {
    made_with(path, world, None)
}

/// As above, with a static volume.
pub(super) fn made_static(path: &Path, world: &World) -> Pool {
    made_with(path, world, Some(StaticShare { share_bytes: 1 << 16, flush_every: None }))
}

fn made_with(path: &Path, world: &World, static_share: Option<StaticShare>) -> Pool {
    let options = CreateOptions {
        size_bytes: Some(24 << 16),
        chunk_size_bytes: 1 << 16,
        max_volumes: 1,
        static_bytes: static_share.map_or(0, |p| p.share_bytes),
        ..Default::default()
    };
    create(path, &options).unwrap();
    let pool = open(path).unwrap();
    pool.volume_add_static("v", world, 512, static_share).unwrap();
    pool
}

pub(super) fn attach(pool: &Pool, world: &World) -> Result<Volume> {
    pool.attach_origin("v", Box::new(world.clone()), &AttachOptions::default())
}

pub(super) fn go_on(_: &DrainProgress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

pub(super) fn new_world(dir: &Dir) -> World {
    let world = World::default();
    let mut s = locked(&world.0);
    s.pool = dir.0.join("pool");
    s.origin = [vec![0; BLOCKS * BLOCK], vec![0; BLOCKS * BLOCK]];
    drop(s);
    world
}

/// The durable state at a moment, as a separate world.
fn world_of(m: &Moment) -> World {
    let world = World::default();
    let mut s = locked(&world.0);
    s.origin = [m.origin.clone(), m.origin.clone()];
    s.mark = [m.mark.clone(), m.mark.clone()];
    s.acked = m.acked.clone();
    drop(s);
    world
}

/// Writes, drains, detaches and attaches again; all moments of it.
fn moments(dir: &Dir, seed: u64) -> Result<Vec<Moment>> {
    let world = new_world(dir);
    let mut pool = made(&dir.0.join("pool"), &world);
    locked(&world.0).record = true;
    let mut volume = attach(&pool, &world)?;
    let (mut random, mut number) = (seed, 0u8);
    for _ in 0..14 {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        match random >> 61 {
            0..=3 => {
                number += 1;
                let block = (random >> 40) as usize % BLOCKS;
                volume.write_at(&[number; BLOCK], (block * BLOCK) as u64)?;
                let mut s = locked(&world.0);
                s.acked.insert(block, number);
                s.moment("a write is acknowledged");
            }
            4 | 5 => drop(volume.drain(&mut go_on)?),
            6 => {
                volume.detach()?;
                volume = attach(&pool, &world)?;
            }
            _ => {
                volume.detach()?;
                pool.close()?;
                locked(&world.0).moment("closed");
                pool = open(&dir.0.join("pool"))?;
                volume = attach(&pool, &world)?;
            }
        }
    }
    locked(&world.0).record = false;
    volume.detach()?;
    pool.close()?;
    let mut s = locked(&world.0);
    Ok(std::mem::take(&mut s.moments))
}

pub(super) type Verdict = std::result::Result<(), String>;

pub(super) fn wrong<T>(what: impl fmt::Display) -> std::result::Result<T, String> {
    Err(what.to_string())
}

/// May this pool have that origin?
fn tries(dir: &Dir, pool: &[u8], m: &Moment) -> Result<(Pool, Volume, World)> {
    let path = dir.0.join("again");
    fs::write(&path, pool).unwrap();
    let world = world_of(m);
    let pool = open(&path)?;
    let volume = attach(&pool, &world)?;
    Ok((pool, volume, world))
}

/// The machine died at this moment.
fn judge_moment(dir: &Dir, m: &Moment) -> Verdict {
    if m.lacks() && !matches!(m.found(), Found::Marked(_)) {
        return wrong("the origin lacks writes, and bears no mark");
    }
    let (pool, volume, world) = match tries(dir, &m.pool, m) {
        Ok(attached) => attached,
        Err(e) => return wrong(format!("its own pool is refused: {e}")),
    };
    for (&block, &number) in &m.acked {
        let mut got = vec![0; BLOCK];
        volume.read_at(&mut got, (block * BLOCK) as u64).unwrap();
        // One that was not acknowledged yet may be there.
        if got[0] < number {
            return wrong(format!("block {block} has {} and not {number}", got[0]));
        }
    }
    volume.drain(&mut go_on).unwrap();
    if locked(&world.0).mark[1].is_some() {
        return wrong("drained, it is still marked");
    }
    volume.detach().unwrap();
    pool.close().unwrap();
    Ok(())
}

/// Others may not have what is marked.
fn judge_others(dir: &Dir, before: &[Moment], m: &Moment) -> Verdict {
    if let Found::Marked(_) = m.found() {
        for old in before.iter().filter(|old| old.period < m.mark_period).rev().step_by(7).take(3) {
            if tries(dir, &old.pool, m).is_ok() {
                return wrong(format!("an older pool ({}) may have it", old.what));
            }
        }
    }
    // It held what came later to the origin by another copy, or was given up.
    let held = |old: &&Moment| old.lacks() && old.what == "a write is acknowledged";
    if m.found() == Found::Nothing {
        if let Some(old) = before.iter().rfind(held) {
            if tries(dir, &old.pool, m).is_ok() {
                return wrong("a pool whose mark is gone may have it");
            }
        }
    }
    Ok(())
}

/// A state of the origin from before, with its mark: it is refused, or lacks nothing.
fn judge_older_origins(dir: &Dir, before: &[Moment], m: &Moment) -> Verdict {
    let differs = |old: &&Moment| old.origin != m.origin || old.mark != m.mark;
    let near = before.iter().rev().filter(differs).take(2);
    let far = before.iter().filter(differs).rev().skip(2).step_by(9).take(3);
    for old in near.chain(far) {
        // Both are complete, and the pool knows it: a disk without Forebay tells no more.  The
        // pool knows of a first mark when that is synced.
        let first = m.what == "the mark is synced"
            && before.last().is_some_and(|last| last.found() == Found::Nothing);
        let complete = m.found() == Found::Nothing || m.what == "the mark is to go" || first;
        if old.found() == Found::Nothing && complete {
            continue;
        }
        let back = Moment { origin: old.origin.clone(), mark: old.mark.clone(), ..m.clone() };
        let (pool, volume, _) = match tries(dir, &m.pool, &back) {
            Ok(attached) => attached,
            Err(e) if e.exit_code() == 6 => continue,
            Err(e) => return wrong(e),
        };
        for (&block, &number) in &m.acked {
            let mut got = vec![0; BLOCK];
            volume.read_at(&mut got, (block * BLOCK) as u64).unwrap();
            if got[0] < number {
                return wrong(format!(
                    "the origin of before ({}) is taken: block {block} has {} and not {number}",
                    old.what, got[0]
                ));
            }
        }
        volume.detach().unwrap();
        pool.close().unwrap();
    }
    Ok(())
}

fn judge_strangers(dir: &Dir, m: &Moment) -> Verdict {
    let world = world_of(m);
    let path = dir.0.join("other");
    let _ = fs::remove_file(&path);
    // It has marked an origin of its own more often than this one was.
    let own = new_world(dir);
    let other = made(&path, &own);
    let volume = attach(&other, &own).unwrap();
    for number in 1..20 {
        volume.write_at(&[number; BLOCK], 0).unwrap();
        volume.drain(&mut go_on).unwrap();
    }
    volume.detach().unwrap();
    if attach(&other, &world).is_ok() {
        return wrong("another pool may have it");
    }
    let Found::Marked(mark) = m.found() else { return wrong("it is not marked") };
    // The attach is refused as well if only the pool names the mark.
    let unnamed = Mark { volume_uuid: None, exact: false, ..(*mark).clone() };
    let unnamed = Moment { mark: Some(unnamed.to_bytes()), ..m.clone() };
    if attach(&other, &world_of(&unnamed)).is_ok() {
        return wrong("another pool may have it, by a mark of the version before");
    }
    other.close().unwrap();
    let elsewhere = Mark { host: "another".into(), ..*mark };
    let there = Moment { mark: Some(elsewhere.to_bytes()), ..m.clone() };
    match tries(dir, &m.pool, &there) {
        Ok(_) => return wrong("another host may have it"),
        Err(e) if e.exit_code() != 6 => return wrong(e),
        Err(_) => {}
    }
    // Any byte of it, damaged.
    let bytes = m.mark.clone().unwrap();
    for at in (0..bytes.len()).step_by(11) {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1;
        let damaged = Moment { mark: Some(damaged), ..m.clone() };
        if tries(dir, &m.pool, &damaged).is_ok() {
            return wrong(format!("a damaged mark lets it have it, byte {at}"));
        }
    }
    Ok(())
}

fn judge_run(seed: u64) -> std::result::Result<usize, String> {
    let dir = Dir::new();
    let all = moments(&dir, seed).map_err(|e| format!("seed {seed}: {e}"))?;
    for (n, m) in all.iter().enumerate() {
        let named = |e| format!("seed {seed}, moment {n} of {}, {}: {e}", all.len(), m.what);
        judge_moment(&dir, m).map_err(named)?;
        judge_others(&dir, &all[..n], m).map_err(named)?;
        judge_older_origins(&dir, &all[..n], m).map_err(named)?;
    }
    let lacking = all.iter().rev().find(|m| m.lacks() && matches!(m.found(), Found::Marked(_)));
    lacking.map_or(Ok(()), |m| judge_strangers(&dir, m))?;
    Ok(all.len())
}

/// After each write the origin is marked, or has the write.
fn judge_race(rounds: u32) -> Verdict {
    let dir = Dir::new();
    let world = new_world(&dir);
    let pool = made(&dir.0.join("pool"), &world);
    let volume = attach(&pool, &world).unwrap();
    let (stop, bad) = (AtomicBool::new(false), Mutex::new(None));
    std::thread::scope(|scope| {
        for writer in 0..2 {
            let (volume, world, stop, bad) = (&volume, &world, &stop, &bad);
            scope.spawn(move || {
                let mut number = 0u8;
                while !stop.load(Ordering::Relaxed) && locked(bad).is_none() {
                    number = number % 250 + 1;
                    volume.write_at(&[number; BLOCK], (writer * BLOCK) as u64).unwrap();
                    let s = locked(&world.0);
                    if s.mark[1].is_none() && s.origin[1][writer * BLOCK] != number {
                        *locked(bad) = Some("acknowledged, and neither marked nor there");
                    }
                    drop(s);
                    if number.is_multiple_of(8) {
                        // Gives a drain time to find the pool empty.
                        std::thread::sleep(std::time::Duration::from_millis(1));
                    }
                }
            });
        }
        for _ in 0..rounds {
            volume.drain(&mut go_on).unwrap();
            if locked(&bad).is_some() {
                break;
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    volume.detach().unwrap();
    pool.close().unwrap();
    let bad = *locked(&bad);
    bad.map_or(Ok(()), wrong)
}

/// A volume was removed, and one added by its name: each counts its marks for itself.
fn judge_lives() -> Verdict {
    let dir = Dir::new();
    let world = new_world(&dir);
    let path = dir.0.join("pool");
    let mut pool = made(&path, &world);
    let mut older = Vec::new();
    for life in 0..2u8 {
        let volume = attach(&pool, &world).unwrap();
        for number in 1..=3 - life {
            volume.drain(&mut go_on).unwrap();
            volume.write_at(&[number + 10 * life; BLOCK], 0).unwrap();
        }
        if life == 1 {
            let Found::Marked(mark) = world.find().unwrap() else { return wrong("not marked") };
            let m = Moment {
                what: "the second life",
                pool: Vec::new(),
                origin: locked(&world.0).origin[1].clone(),
                mark: Some(mark.to_bytes()),
                acked: HashMap::new(),
                period: 0,
                mark_period: 0,
            };
            match tries(&dir, &older, &m) {
                Ok(_) => return wrong("a copy from an earlier life may have it"),
                Err(e) if e.exit_code() != 6 => return wrong(e),
                Err(_) => return Ok(()),
            }
        }
        volume.detach().unwrap();
        pool.close().unwrap();
        older = fs::read(&path).unwrap();
        pool = open(&path).unwrap();
        let volume = attach(&pool, &world).unwrap();
        volume.drain(&mut go_on).unwrap();
        volume.detach().unwrap();
        pool.volume_remove("v", false).unwrap();
        pool.volume_add_origin("v", &world, 512).unwrap();
    }
    Ok(())
}

/// A pool that holds one block, and the origin that it has marked.
pub(super) fn marked() -> (Dir, World, Pool, Volume) {
    let dir = Dir::new();
    let world = new_world(&dir);
    let pool = made(&dir.0.join("pool"), &world);
    let volume = attach(&pool, &world).unwrap();
    volume.write_at(&[1; BLOCK], 0).unwrap();
    (dir, world, pool, volume)
}

/// A pool that could not set a number, however often, remains the same pool.
fn judge_unset_numbers() -> Verdict {
    let (_dir, world, pool, volume) = marked();
    volume.detach().unwrap();
    locked(&world.0).put_fails = Some(Duration::ZERO);
    for _ in 0..3 {
        if attach(&pool, &world).is_ok() {
            return wrong("attached, and not marked");
        }
    }
    locked(&world.0).put_fails = None;
    let volume = match attach(&pool, &world) {
        Ok(volume) => volume,
        Err(e) => return wrong(format!("it is refused after markings that failed: {e}")),
    };
    // Likewise while it is attached: destage continues, and the next attach succeeds.
    volume.write_at(&[2; BLOCK], BLOCK as u64).unwrap();
    locked(&world.0).put_fails = Some(Duration::ZERO);
    locked(&world.0).takes_fail = u32::MAX;
    for n in 3..6 {
        // Nothing is acknowledged once the mark was to go, and could not be set anew.
        let _ = volume.write_at(&[n; BLOCK], 0);
        volume.drain(&mut go_on).unwrap_err();
    }
    let _ = volume.detach();
    (locked(&world.0).put_fails, locked(&world.0).takes_fail) = (None, 0);
    match attach(&pool, &world) {
        Ok(volume) => drop(volume.detach()),
        Err(e) => return wrong(format!("it is refused after rounds without a number: {e}")),
    }
    Ok(())
}

/// Drained while no number could be set: the mark that is gone is an older one all the same.
fn judge_gone() -> Verdict {
    let (_dir, world, pool, volume) = marked();
    let s = locked(&world.0);
    let (origin, mark) = (s.origin[1].clone(), s.mark[1].clone());
    drop(s);
    locked(&world.0).put_fails = Some(Duration::ZERO);
    volume.drain(&mut go_on).unwrap();
    volume.detach().unwrap();
    let mut s = locked(&world.0);
    s.put_fails = None;
    (s.origin, s.mark) = ([origin.clone(), origin], [mark.clone(), mark]);
    drop(s);
    match attach(&pool, &world) {
        Ok(_) => wrong("a state of the origin that was drained since is taken"),
        Err(e) if e.exit_code() == 6 => Ok(()),
        Err(e) => wrong(e),
    }
}

#[test]
fn numbers_that_could_not_be_set_refuse_nobody_and_hide_nothing() {
    let _turn = turn();
    judge_unset_numbers().unwrap();
    judge_gone().unwrap();
}

/// Then what is cached goes to no other origin than before.
#[test]
fn an_origin_that_cannot_be_marked_is_not_recorded() {
    let _turn = turn();
    let (_dir, world, pool, volume) = marked();
    volume.detach().unwrap();
    let o = AttachOptions { accept_changed_origin: true, ..Default::default() };
    let attach_by_order = || pool.attach_origin("v", Box::new(world.clone()), &o);
    let mut s = locked(&world.0);
    (s.moved, s.put_fails) = (true, Some(Duration::ZERO));
    drop(s);
    attach_by_order().unwrap_err();
    assert_eq!(pool.volume_info("v").unwrap().identity, "test:1");
    locked(&world.0).put_fails = None;
    attach_by_order().unwrap().detach().unwrap();
    assert_eq!(pool.volume_info("v").unwrap().identity, "test:2");
    pool.close().unwrap();
}

#[test]
fn each_life_of_a_name_has_marks_of_its_own() {
    let _turn = turn();
    judge_lives().unwrap();
}

#[test]
fn at_every_moment_the_origin_tells_what_it_lacks() {
    let _turn = turn();
    let moments: usize = (1..=8).map(|seed| judge_run(seed).unwrap()).sum();
    assert!(moments > 150, "{moments} moments");
}

#[test]
fn writers_beside_drains_are_marked() {
    let _turn = turn();
    judge_race(150).unwrap();
}

/// With an origin that is away, a waiting thread does not wait for each earlier one in turn.
#[test]
fn one_failed_marking_is_told_to_all_who_waited_for_it() {
    let _turn = turn();
    let dir = Dir::new();
    let world = new_world(&dir);
    let path = locked(&world.0).pool.clone();
    let pool = made(&path, &world);
    let volume = attach(&pool, &world).unwrap();
    locked(&world.0).put_fails = Some(Duration::from_millis(300));
    let write = |block: usize| volume.write_at(&[7; BLOCK], (block * BLOCK) as u64);
    let told: Vec<_> = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..8).map(|block| scope.spawn(move || write(block))).collect();
        writers.into_iter().map(|w| w.join().unwrap()).collect()
    });
    assert!(told.iter().all(|t| t.is_err()), "{told:?}");
    // A second one may have come when the first had ended.
    let puts = std::mem::take(&mut locked(&world.0).puts);
    assert!((1..8).contains(&puts), "{puts}");
    // Later ones try again.
    write(0).unwrap_err();
    assert_eq!(locked(&world.0).puts, 1);
    locked(&world.0).put_fails = None;
    write(1).unwrap();
    assert!(locked(&world.0).mark[1].is_some());
}

/// A write that could not be marked was not acknowledged.  A flush that succeeds would declare
/// readable data durable, and known to the origin.
#[test]
fn a_flush_does_not_pass_over_what_is_not_marked() {
    let _turn = turn();
    let dir = Dir::new();
    let world = new_world(&dir);
    let pool = made(&dir.0.join("pool"), &world);
    let volume = attach(&pool, &world).unwrap();
    volume.flush().unwrap();
    locked(&world.0).put_fails = Some(Duration::ZERO);
    volume.write_at(&[7; BLOCK], 0).unwrap_err();
    let mut got = [0; BLOCK];
    volume.read_at(&mut got, 0).unwrap();
    for _ in 0..2 {
        let told = volume.flush().map_err(|e| e.to_string());
        assert!(got == [0; BLOCK] || told.is_err(), "it can be read, and is not marked");
    }
    locked(&world.0).put_fails = None;
    volume.flush().unwrap();
    assert!(got == [0; BLOCK] || locked(&world.0).mark[1].is_some());
    volume.drain(&mut go_on).unwrap();
    volume.flush().unwrap();
    assert_eq!(world.find().unwrap(), Found::Nothing);
}

#[test]
fn each_mistake_is_found() {
    let _turn = turn();
    for &bug in ALL {
        let planted = plant(bug);
        let found = judge_run(1).err();
        let found = found.or_else(|| judge_lives().err());
        let found = found.or_else(|| judge_failures().err());
        let found = found.or_else(|| judge_perhaps().err());
        let found = found.or_else(|| judge_unset_numbers().err());
        let found = found.or_else(|| judge_gone().err());
        let found = found.or_else(|| (2..=8).find_map(|seed| judge_run(seed).err()));
        let found = found.or_else(|| judge_race(150).err());
        drop(planted);
        match found {
            Some(how) => println!("{bug:?}: {how}"),
            None => panic!("{bug:?} was not found"),
        }
    }
}
