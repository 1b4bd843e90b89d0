// SPDX-License-Identifier: MIT OR Apache-2.0
//! A device in memory with a volatile cache: it knows what is durable, loses the rest at a cut,
//! and fails where a test wants it.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::thread::ThreadId;
use std::time::Duration;

use forebay_engine::Image;
use rustix::io::Errno;

use super::super::device::Device;
use super::super::Durable;
use crate::medium::mixed;

pub const UNIT: usize = 4096;
pub const CHUNK: usize = 256 << 10;
/// Each body begins with it, and then with the entry's number.
pub const TAG: &[u8; 8] = b"a tag: \0";

/// How much of a write that fails is there.
#[derive(Clone, Copy, Debug)]
pub enum Landed {
    Nothing,
    First,
    All,
}

/// Which requests fail, by their numbers from 0.
#[derive(Debug, Default)]
pub struct Plan {
    pub writes: HashMap<u64, Landed>,
    /// True: the cache is dropped.
    pub flushes: HashMap<u64, bool>,
    /// From this write on all fail.
    pub dead_from: Option<u64>,
    pub unreadable: Vec<usize>,
}

#[derive(Debug, Default)]
struct State {
    durable: Vec<u8>,
    /// Written and not flushed, in order: block and content.
    cache: Vec<(usize, Vec<u8>)>,
    flying: BTreeMap<u64, (usize, Vec<u8>)>,
    writes: u64,
    groups: u64,
    flushes: u64,
    bytes: u64,
    read: u64,
    cut: bool,
    plan: Plan,
    /// The number of the group by which an entry became durable.
    tags: HashMap<u64, u64>,
    /// Requests by who has sent them.
    sent: HashMap<ThreadId, u64>,
}

#[derive(Debug)]
pub struct Model {
    through: bool,
    write_takes: Duration,
    flush_takes: Duration,
    state: Mutex<State>,
    stall: Mutex<Stall>,
    stall_ends: Condvar,
}

/// While it hangs, requests neither end nor fail.
#[derive(Debug, Default)]
struct Stall {
    /// After so many requests that still end.
    after: Option<u32>,
    requests: u32,
}

fn error() -> io::Error {
    Errno::IO.into()
}

impl State {
    fn settle(&mut self, block: usize, content: &[u8], group: u64) {
        self.durable[block * UNIT..][..UNIT].copy_from_slice(content);
        for line in content.chunks_exact(64) {
            if let Some(rest) = line.strip_prefix(TAG) {
                let id = u64::from_le_bytes(rest[..8].try_into().unwrap());
                self.tags.entry(id).or_insert(group);
            }
        }
    }
}

/// Is it a place where groups are, and no line of a chunk or record of the pool?
fn is_group(at: usize) -> bool {
    at >= CHUNK && at % CHUNK >= 3 * UNIT
}

impl Model {
    pub fn new(content: Vec<u8>, durable: Durable, write_us: u64, flush_us: u64) -> Model {
        Model {
            through: durable == Durable::Through,
            write_takes: Duration::from_micros(write_us),
            flush_takes: Duration::from_micros(flush_us),
            state: Mutex::new(State { durable: content, ..Default::default() }),
            stall: Mutex::default(),
            stall_ends: Condvar::new(),
        }
    }

    /// Requests hang that arrive after so many others.  `None`: all go on.
    pub fn stall(&self, after: Option<u32>) {
        self.stall.lock().unwrap().after = after;
        self.stall_ends.notify_all();
    }

    /// How many hang.
    pub fn hanging(&self) -> u32 {
        self.stall.lock().unwrap().requests
    }

    fn hang(&self) {
        let mut stall = self.stall.lock().unwrap();
        if let Some(rest @ 1..) = &mut stall.after {
            *rest -= 1;
            return;
        }
        stall.requests += 1;
        stall = self.stall_ends.wait_while(stall, |stall| stall.after == Some(0)).unwrap();
        stall.requests -= 1;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub fn plan(&self, change: impl FnOnce(&mut Plan)) {
        change(&mut self.state().plan);
    }

    /// Writes, groups among them, flushes, and bytes, since it was made.
    pub fn counts(&self) -> (u64, u64, u64, u64) {
        let s = self.state();
        (s.writes, s.groups, s.flushes, s.bytes)
    }

    /// Bytes that were read.
    pub fn bytes_read(&self) -> u64 {
        self.state().read
    }

    /// Writes and flushes that this thread has sent.
    pub fn sent_here(&self) -> u64 {
        self.state().sent.get(&std::thread::current().id()).copied().unwrap_or(0)
    }

    /// The number of the group by which the entry became durable.
    pub fn durable_by(&self, id: u64) -> Option<u64> {
        self.state().tags.get(&id).copied()
    }

    /// The power fails: what is left.  Of what is not durable each sector may be there or not.
    pub fn cut(&self, seed: &mut u64) -> Vec<u8> {
        let mut s = self.state();
        s.cut = true;
        let mut left = s.durable.clone();
        let flying = s.flying.values().flat_map(|(at, data)| {
            data.chunks_exact(UNIT).enumerate().map(move |(i, b)| (at / UNIT + i, b))
        });
        let cached = s.cache.iter().map(|(block, content)| (*block, &content[..]));
        for (block, content) in cached.chain(flying) {
            let to = &mut left[block * UNIT..][..UNIT];
            match mixed(seed) % 4 {
                0 => {}
                1 => {
                    for (i, sector) in content.chunks_exact(512).enumerate() {
                        if mixed(seed) & 1 == 0 {
                            to[i * 512..][..512].copy_from_slice(sector);
                        }
                    }
                }
                _ => to.copy_from_slice(content),
            }
        }
        left
    }
}

fn wait(time: Duration) {
    if !time.is_zero() {
        std::thread::sleep(time);
    }
}

impl Device for Model {
    fn size_bytes(&self) -> u64 {
        self.state().durable.len() as u64
    }

    fn read(&self, to: &mut [u8], at: u64) -> io::Result<()> {
        let mut s = self.state();
        s.read += to.len() as u64;
        let range = at as usize..at as usize + to.len();
        let blocks = range.start / UNIT..range.end / UNIT;
        if s.plan.unreadable.iter().any(|block| blocks.contains(block)) {
            return Err(error());
        }
        to.copy_from_slice(&s.durable[range]);
        Ok(())
    }

    fn write(&self, image: &Image, at: u64, bytes: usize, fua: bool) -> io::Result<()> {
        let (place, mut data) = (at as usize, vec![0; bytes]);
        assert!((place | bytes).is_multiple_of(UNIT), "{bytes} bytes at {at}");
        image.copy_out(at, &mut data);
        let mut s = self.state();
        if s.cut {
            return Err(error());
        }
        *s.sent.entry(std::thread::current().id()).or_default() += 1;
        let number = s.writes;
        s.writes += 1;
        s.bytes += bytes as u64;
        s.groups += u64::from(is_group(place));
        let group = s.groups;
        let dead = s.plan.dead_from.is_some_and(|from| number >= from).then_some(Landed::Nothing);
        let fails = s.plan.writes.remove(&number).or(dead);
        s.flying.insert(number, (place, data.clone()));
        drop(s);
        self.hang();
        wait(self.write_takes);
        let mut s = self.state();
        if s.cut {
            return Err(error());
        }
        s.flying.remove(&number);
        let mut now = vec![0; bytes];
        image.copy_out(at, &mut now);
        assert!(now == data, "the image changed under a write of {bytes} bytes at {at}");
        let blocks = data.chunks_exact(UNIT).enumerate().map(|(i, b)| (place / UNIT + i, b));
        for (i, (block, content)) in blocks.enumerate() {
            match fails {
                Some(Landed::Nothing) => {}
                Some(Landed::First) if i > 0 => {}
                None if fua || self.through => {
                    s.cache.retain(|(cached, _)| *cached != block);
                    s.settle(block, content, group);
                }
                _ => s.cache.push((block, content.to_vec())),
            }
        }
        match fails {
            Some(_) => Err(error()),
            None => Ok(()),
        }
    }

    fn flush(&self) -> io::Result<()> {
        let mut s = self.state();
        if s.cut {
            return Err(error());
        }
        *s.sent.entry(std::thread::current().id()).or_default() += 1;
        let number = s.flushes;
        s.flushes += 1;
        let (covered, group) = (s.cache.clone(), s.groups);
        drop(s);
        self.hang();
        wait(self.flush_takes);
        let mut s = self.state();
        if s.cut {
            return Err(error());
        }
        let fails = s.plan.flushes.remove(&number);
        if fails != Some(false) {
            s.cache.drain(..covered.len());
        }
        if fails.is_some() {
            return Err(error());
        }
        for (block, content) in &covered {
            s.settle(*block, content, group);
        }
        Ok(())
    }
}
