// SPDX-License-Identifier: MIT OR Apache-2.0
//! A small write-ahead log that uses a device rightly, or with one mistake: what the device's
//! own tests look for.
//!
//! ```text
//! group   a block or more: a line with magic, number, records, CRC of the records; the records,
//!         a line each; zeroes to the end of the block
//! ```
//! A group is one write, and one write is in flight at a time.  A group counts once a flush that
//! was sent after its end has succeeded, or at its end where it is written with FUA.  A group
//! whose write or flush failed is written again elsewhere.  Recovery looks for groups at each
//! line, and takes those with numbers from 1 on without a gap.

use std::collections::{BTreeMap, BTreeSet};

use forebay_engine::sys;

use super::Disk;
use crate::rng::mix;

pub const LINE: usize = 64;
const MAGIC: u64 = 0x4c41_5757;
/// Lines of a record.
pub const RECORD: usize = 5;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake {
    None,
    /// A group counts as durable when it is sent.
    AcknowledgedWhenSent,
    /// A group counts as durable when its write ends, without a flush.
    NoFlush,
    /// A group that is to be written with FUA is written without.
    FuaAsWrite,
    /// A flush counts for writes that had not ended when it was sent.
    FlushCoversSent,
    /// After a flush that failed the next one stands for both.
    FlushErrorForgotten,
    /// A write in flight when a flush fails is durable by the next one.
    SentTrusted,
    /// A group begins in the block in which the one before ends.
    BlockShared,
    /// A group whose write failed counts as written.
    WriteErrorIgnored,
    /// A record is added to a group that is being written.
    ChangedInFlight,
    /// Recovery takes a group without comparing its CRC.
    TornTaken,
    /// Recovery stops at the first line that is no group.
    GapEndsWalk,
    /// Two writes are in flight, and each is acknowledged as it ends.
    TwoInFlight,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Io {
    Write { at: usize, len: usize, fua: bool },
    Flush,
}

#[derive(Clone, Debug)]
struct Group {
    number: u64,
    at: usize,
    len: usize,
    records: Vec<u64>,
}

pub struct Wal {
    mistake: Mistake,
    fua: bool,
    unit: usize,
    pub image: Vec<u8>,
    head: usize,
    appended: u64,
    waiting: Vec<u64>,
    number: u64,
    /// To be written again.
    again: Vec<Group>,
    sent: BTreeMap<u32, Group>,
    /// Those of them that were in flight when a flush failed.
    doubted: BTreeSet<u32>,
    /// Ended, without a flush since.
    ended: Vec<Group>,
    flush: Option<(u32, Vec<Group>)>,
    /// Numbers of groups that are durable.
    durable: Vec<u64>,
    records_of: BTreeMap<u64, u64>,
    last: Option<Group>,
}

/// The line of a record; each word depends on all of what it is.
fn record_line(id: u64, line: usize) -> [u8; LINE] {
    let mut out = [0; LINE];
    for (i, word) in out.chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&mix(id << 16 ^ (line * 8 + i) as u64).to_le_bytes());
    }
    out[..8].copy_from_slice(&id.to_le_bytes());
    out
}

fn word(bytes: &[u8], n: usize) -> u64 {
    u64::from_le_bytes(bytes[8 * n..][..8].try_into().expect("8 bytes"))
}

impl Wal {
    pub fn new(unit: usize, bytes: usize, fua: bool, mistake: Mistake) -> Self {
        Self {
            mistake,
            fua,
            unit,
            image: vec![0; bytes],
            head: 0,
            appended: 0,
            waiting: Vec::new(),
            number: 0,
            again: Vec::new(),
            sent: BTreeMap::new(),
            doubted: BTreeSet::new(),
            ended: Vec::new(),
            flush: None,
            durable: Vec::new(),
            records_of: BTreeMap::new(),
            last: None,
        }
    }

    pub fn append(&mut self) {
        self.appended += 1;
        if self.mistake == Mistake::ChangedInFlight {
            if let Some(group) = self.sent.values_mut().next() {
                group.records.push(self.appended);
                let group = group.clone();
                self.store(&group);
                self.records_of.insert(group.number, group.records.len() as u64);
                return;
            }
        }
        self.waiting.push(self.appended);
    }

    /// Records that are acknowledged: the first so many.
    pub fn acknowledged(&self) -> u64 {
        let in_order = (1..).take_while(|n| self.durable.contains(n));
        let numbers: Vec<u64> = match self.mistake {
            Mistake::TwoInFlight => self.durable.clone(),
            _ => in_order.collect(),
        };
        // Whoever waits for a group is told of all before it.
        let newest = numbers.into_iter().max().unwrap_or(0);
        self.records_of.range(..=newest).map(|(_, n)| n).sum()
    }

    pub fn appended(&self) -> u64 {
        self.appended
    }

    pub fn idle(&self) -> bool {
        self.waiting.is_empty() && self.again.is_empty() && self.ended.is_empty()
    }

    fn lines(records: usize) -> usize {
        LINE * (1 + RECORD * records)
    }

    fn store(&mut self, group: &Group) {
        let mut body = Vec::new();
        for id in &group.records {
            (0..RECORD).for_each(|line| body.extend(record_line(*id, line)));
        }
        let head = [MAGIC, group.number, group.records.len() as u64, sys::crc32c(0, &body).into()];
        let head: Vec<u8> = head.iter().flat_map(|w| w.to_le_bytes()).collect();
        self.image[group.at..][..head.len()].copy_from_slice(&head);
        self.image[group.at + LINE..][..body.len()].copy_from_slice(&body);
    }

    /// Takes room for a group of so many bytes.
    fn room(&mut self, bytes: usize) -> usize {
        let at = match (&self.last, self.mistake) {
            (Some(last), Mistake::BlockShared) => last.at + Self::lines(last.records.len()),
            _ => self.head,
        };
        self.head = (at + bytes).next_multiple_of(self.unit);
        assert!(self.head <= self.image.len(), "the device is large enough for the test");
        at
    }

    fn group(&mut self) -> Option<Group> {
        if let Some(mut group) = (!self.again.is_empty()).then(|| self.again.remove(0)) {
            group.at = self.room(group.len);
            self.store(&group);
            return Some(group);
        }
        if self.waiting.is_empty() {
            return None;
        }
        self.number += 1;
        let records = std::mem::take(&mut self.waiting);
        self.records_of.insert(self.number, records.len() as u64);
        let bytes = Self::lines(records.len());
        let at = self.room(bytes);
        let group = Group { number: self.number, at, len: bytes, records };
        self.store(&group);
        self.last = Some(group.clone());
        Some(group)
    }

    /// The request to be sent now, which gets the name `id`.
    pub fn next(&mut self, id: u32) -> Option<Io> {
        let most = if self.mistake == Mistake::TwoInFlight { 2 } else { 1 };
        if self.sent.len() < most {
            if let Some(group) = self.group() {
                let first = group.at / self.unit * self.unit;
                let end = (group.at + group.len).next_multiple_of(self.unit);
                if self.mistake == Mistake::AcknowledgedWhenSent {
                    self.durable.push(group.number);
                }
                self.sent.insert(id, group);
                let fua = self.fua && self.mistake != Mistake::FuaAsWrite;
                return Some(Io::Write { at: first, len: end - first, fua });
            }
        }
        if self.flush.is_none() && !self.ended.is_empty() {
            let mut covers = std::mem::take(&mut self.ended);
            if self.mistake == Mistake::FlushCoversSent {
                covers.extend(self.sent.values().cloned());
            }
            self.flush = Some((id, covers));
            return Some(Io::Flush);
        }
        None
    }

    pub fn end(&mut self, id: u32, ok: bool) {
        if let Some((_, covers)) = self.flush.take_if(|(flush, _)| *flush == id) {
            if ok {
                self.durable.extend(covers.iter().map(|g| g.number));
            } else if self.mistake == Mistake::FlushErrorForgotten {
                self.ended.extend(covers);
            } else {
                // All that was written since the last flush that succeeded.
                self.again.extend(covers);
                self.again.append(&mut self.ended);
                if self.mistake != Mistake::SentTrusted {
                    self.doubted.extend(self.sent.keys());
                }
            }
            return;
        }
        let Some(group) = self.sent.remove(&id) else { return };
        let doubted = self.doubted.remove(&id) && !self.fua;
        if (!ok || doubted) && self.mistake != Mistake::WriteErrorIgnored {
            self.again.push(group);
        } else if self.fua || matches!(self.mistake, Mistake::NoFlush | Mistake::TwoInFlight) {
            self.durable.push(group.number);
        } else {
            self.ended.push(group);
        }
    }
}

/// The records that recovery finds, in order.
pub fn recover(disk: &Disk, mistake: Mistake) -> Vec<u64> {
    let mut groups = BTreeMap::new();
    // A block that cannot be read reads as zeroes here, which are no group.
    let unit = disk.unit();
    let mut bytes = vec![0; disk.bytes()];
    for (block, to) in bytes.chunks_mut(unit).enumerate() {
        disk.block(block).into_iter().for_each(|b| to.copy_from_slice(b.bytes()));
    }
    let mut at = 0;
    while at < bytes.len() {
        let group = group_at(&bytes, at, mistake);
        match group {
            Some((number, records)) => {
                let lines = Wal::lines(records.len());
                groups.entry(number).or_insert(records);
                at += lines.next_multiple_of(if mistake == Mistake::BlockShared {
                    LINE
                } else {
                    unit
                });
            }
            None if mistake == Mistake::GapEndsWalk => break,
            None => at += LINE,
        }
    }
    (1..).map_while(|n| groups.remove(&n)).flatten().collect()
}

fn group_at(bytes: &[u8], at: usize, mistake: Mistake) -> Option<(u64, Vec<u64>)> {
    let head = &bytes[at..][..LINE];
    let n = word(head, 2) as usize;
    if word(head, 0) != MAGIC || n > 64 {
        return None;
    }
    let body = bytes.get(at + LINE..at + Wal::lines(n))?;
    if mistake != Mistake::TornTaken && u64::from(sys::crc32c(0, body)) != word(head, 3) {
        return None;
    }
    let record = |r: &[u8]| {
        let id = word(r, 0);
        let right = r.chunks(LINE).enumerate().all(|(line, b)| b == record_line(id, line));
        if right {
            id
        } else {
            0
        }
    };
    Some((word(head, 1), body.chunks(LINE * RECORD).map(record).collect()))
}
