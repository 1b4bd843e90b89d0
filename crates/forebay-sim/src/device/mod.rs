// SPDX-License-Identifier: MIT OR Apache-2.0
//! A simulated block device: an SSD with a volatile cache, at the grain of its blocks.
//!
//! ```text
//!  send --> in flight --end--> ended --flush that was sent later, or FUA--> durable
//!  cut:  each block that a write has touched which is not durable is old, or any version
//!        written since, or mixed of them by sectors, or unreadable
//! ```
//!
//! * Commands end in any order, as late as the driver likes.
//! * A flush that succeeds makes durable what had ended when the flush was *sent*.
//! * Of a block written twice a cut leaves any of the versions; once a version is durable, none
//!   before it.
//! * A write that failed, and one whose flush dropped the cache, is [`forsaken`](State): no later
//!   flush makes it durable, and a cut still leaves any of it.
//!
//! The driver decides each fate: of a write when it is sent ([`Path`]), of a command when it
//! ends ([`End`]), of reads beforehand.  [`Cut`] enumerates what a power cut leaves;
//! [`Choices`] enumerates or draws what the driver decides.

mod choices;
mod cut;
mod disk;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod wal;

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

pub use choices::Choices;
pub use cut::{Cut, Image, Images};
pub use disk::{Block, Disk, SECTOR};

/// The destination of a write's blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Path {
    #[default]
    Straight,
    /// Nowhere, although the write succeeds.
    Lost,
    /// To other blocks, from this one on, although the write succeeds.
    Misdirected(usize),
}

/// How a command ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Done,
    /// A flush, or a write with FUA, succeeds and makes nothing durable.
    Lie,
    /// A write fails.
    WriteFailed(Landed),
    /// A flush fails, and all that had ended is still in the cache.
    FlushFailed,
    /// A flush fails, and the cache is gone, with what was written and is not reported yet.  `shown`: reads still show what was in it, as Linux
    /// does for a file.
    CacheDropped {
        shown: bool,
    },
}

/// The blocks of a failed write that may be on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Landed {
    Nothing,
    /// Its first blocks, so many, are visible; any of it may be there after a cut.
    First(usize),
    All,
    /// Nothing is visible, but the drive still has it: it may land at any later moment, even over
    /// a newer write, until the next cut.
    Later,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Sent,
    Ended,
    /// No flush makes it durable any more.
    Forsaken,
}

#[derive(Clone, Debug)]
struct Write {
    /// The place that the driver asked for.
    first: usize,
    /// The blocks that it goes to, with what goes there.
    blocks: Vec<(usize, Rc<Block>)>,
    len: usize,
    fua: bool,
    state: State,
    /// The cache was dropped while it was in flight: its end proves nothing.
    dropped: bool,
    /// The device has said that it is durable, and it is not.
    claimed: bool,
}

/// A content that a block may have instead of the durable one.
#[derive(Clone, Debug)]
struct Version {
    write: u32,
    content: Rc<Block>,
    /// It may still land over a newer one.
    later: bool,
}

/// A command in flight, for the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Write,
    Fua,
    Flush,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub writes: u64,
    pub fua: u64,
    pub flushes: u64,
    pub bytes: u64,
}

pub struct Device {
    /// The content that is durable for certain.
    durable: Disk,
    /// The content that reads show.
    visible: Disk,
    /// The content that reads showed before, for stale reads.
    before: BTreeMap<usize, Rc<Block>>,
    /// Oldest first.
    versions: BTreeMap<usize, Vec<Version>>,
    /// All writes that are not durable.
    writes: BTreeMap<u32, Write>,
    /// Flushes in flight, with the writes that each covers.
    flushes: BTreeMap<u32, Vec<u32>>,
    next: u32,
    bad_reads: BTreeMap<usize, bool>,
    stale_reads: BTreeSet<usize>,
    gone: bool,
    counts: Counts,
    /// The cuts since they were last asked for, one after each event.
    events: Option<Vec<Cut>>,
    misuse: Option<String>,
}

impl Device {
    /// With this content, all of it durable.
    pub fn new(disk: Disk) -> Self {
        Self {
            visible: disk.clone(),
            durable: disk,
            before: BTreeMap::new(),
            versions: BTreeMap::new(),
            writes: BTreeMap::new(),
            flushes: BTreeMap::new(),
            next: 0,
            bad_reads: BTreeMap::new(),
            stale_reads: BTreeSet::new(),
            gone: false,
            counts: Counts::default(),
            events: None,
            misuse: None,
        }
    }

    pub fn unit(&self) -> usize {
        self.durable.unit()
    }

    /// Bytes.
    pub fn size(&self) -> usize {
        self.durable.bytes()
    }

    pub fn visible(&self) -> &Disk {
        &self.visible
    }

    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Keeps a [`Cut`] after each event from now on.
    pub fn record(&mut self) {
        self.events = Some(Vec::new());
    }

    /// The cuts recorded since the last call.
    pub fn events(&mut self) -> Vec<Cut> {
        self.events.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// How many there are to be asked for.
    pub fn recorded(&self) -> usize {
        self.events.as_ref().map_or(0, Vec::len)
    }

    /// The user broke the device's contract.
    pub fn misuse(&mut self) -> Option<String> {
        self.misuse.take()
    }

    fn event(&mut self) {
        if self.events.is_some() {
            let cut = self.cut();
            self.events.iter_mut().for_each(|e| e.push(cut.clone()));
        }
    }

    fn broken(&mut self, what: String) {
        self.misuse.get_or_insert(what);
    }

    fn number(&mut self) -> u32 {
        self.next += 1;
        self.next
    }

    // --- commands ----------------------------------------------------------------------

    /// Sends a write of whole blocks at byte `at`.
    pub fn send_write(&mut self, at: u64, data: &[u8], fua: bool, path: Path) -> u32 {
        let (unit, id) = (self.unit(), self.number());
        let (at, len) = (at as usize, data.len());
        let fits = at.checked_add(len).is_some_and(|end| end <= self.size());
        if len == 0 || !at.is_multiple_of(unit) || !len.is_multiple_of(unit) || !fits {
            self.broken(format!("a write of {len} bytes at {at}, blocks are of {unit}"));
            return id;
        }
        let (first, n) = (at / unit, len / unit);
        let overlaps = |w: &&Write| {
            let theirs = w.first..w.first + w.len;
            w.state == State::Sent && theirs.start < first + n && first < theirs.end
        };
        if let Some(other) = self.writes.values().find(overlaps) {
            let theirs = other.first..other.first + other.len;
            self.broken(format!("blocks {:?} are written while {theirs:?} are", first..first + n));
        }
        self.counts.writes += 1;
        self.counts.fua += u64::from(fua);
        self.counts.bytes += len as u64;
        let to = match path {
            _ if self.gone => None,
            Path::Straight => Some(first),
            Path::Lost => None,
            Path::Misdirected(to) => Some(to.min(self.durable.len() - n)),
        };
        let blocks: Vec<_> = data.chunks(unit).map(Block::new).collect();
        let blocks: Vec<_> = to.into_iter().flat_map(|to| (to..).zip(blocks.clone())).collect();
        for (block, content) in &blocks {
            let version = Version { write: id, content: content.clone(), later: false };
            self.versions.entry(*block).or_default().push(version);
        }
        let write = Write {
            first,
            blocks,
            len: n,
            fua,
            state: State::Sent,
            dropped: false,
            claimed: false,
        };
        self.writes.insert(id, write);
        self.event();
        id
    }

    pub fn send_flush(&mut self) -> u32 {
        let id = self.number();
        let ended = self.writes.iter().filter(|(_, w)| w.state == State::Ended);
        let covers = ended.map(|(id, _)| *id).collect();
        self.flushes.insert(id, covers);
        self.counts.flushes += 1;
        self.event();
        id
    }

    /// Commands that have not ended, oldest first.
    pub fn in_flight(&self) -> Vec<(u32, Kind)> {
        let writes = self.writes.iter().filter(|(_, w)| w.state == State::Sent);
        let writes = writes.map(|(id, w)| (*id, if w.fua { Kind::Fua } else { Kind::Write }));
        let mut all: Vec<_> =
            writes.chain(self.flushes.keys().map(|id| (*id, Kind::Flush))).collect();
        all.sort_unstable_by_key(|(id, _)| *id);
        all
    }

    /// Ends a command; true: the driver is to report success.  `now`: the bytes of a write as
    /// its user has them now: they may not have changed.
    pub fn end(&mut self, id: u32, end: End, now: Option<&[u8]>) -> bool {
        let end = match (end, self.flushes.contains_key(&id)) {
            (End::Done | End::Lie, false) if self.gone => End::WriteFailed(Landed::First(0)),
            (End::Done | End::Lie, true) if self.gone => End::CacheDropped { shown: false },
            (end, _) => end,
        };
        let ok = match self.flushes.remove(&id) {
            Some(covers) => self.end_flush(&covers, end),
            None => self.end_write(id, end, now),
        };
        self.event();
        ok
    }

    fn end_flush(&mut self, covers: &[u32], end: End) -> bool {
        match end {
            End::Done => covers.iter().for_each(|id| self.settle(*id)),
            End::Lie => covers.iter().for_each(|id| self.claim(*id)),
            End::CacheDropped { shown } => self.drop_cache(shown),
            End::FlushFailed => {}
            End::WriteFailed(_) => panic!("a flush ends as a write"),
        }
        matches!(end, End::Done | End::Lie)
    }

    fn end_write(&mut self, id: u32, end: End, now: Option<&[u8]>) -> bool {
        let Some(write) = self.writes.get_mut(&id).filter(|w| w.state == State::Sent) else {
            self.broken(format!("command {id} ends, which is not in flight"));
            return false;
        };
        let unit = self.durable.unit();
        let changed = now.is_some_and(|now| {
            let mut blocks = write.blocks.iter().zip(now.chunks(unit));
            blocks.any(|((_, sent), now)| sent.bytes() != now)
        });
        let (first, n, fua) = (write.first, write.len, write.fua);
        write.state = if write.dropped { State::Forsaken } else { State::Ended };
        let shown = match end {
            End::Done | End::Lie | End::WriteFailed(Landed::All) => n,
            End::WriteFailed(Landed::First(n)) => n,
            End::WriteFailed(Landed::Nothing | Landed::Later) => 0,
            End::FlushFailed | End::CacheDropped { .. } => panic!("a write ends as a flush"),
        };
        for (block, content) in write.blocks.iter().take(shown) {
            if let Some(old) = self.visible.block(*block) {
                self.before.insert(*block, old.clone());
            }
            self.visible.set(*block, Some(content.clone()));
            self.bad_reads.remove(block);
        }
        if changed {
            self.broken(format!("blocks {:?} changed while they were written", first..first + n));
        }
        match end {
            End::Done if fua => self.settle(id),
            End::Lie if fua => self.claim(id),
            End::WriteFailed(Landed::Nothing) => self.forget(id),
            End::WriteFailed(landed) => self.forsake(id, landed == Landed::Later),
            _ => {}
        }
        matches!(end, End::Done | End::Lie)
    }

    /// The write is durable.
    fn settle(&mut self, id: u32) {
        // A flush before this one may have covered it.
        let Some(write) = self.writes.remove(&id) else { return };
        for (block, content) in write.blocks {
            let Some(versions) = self.versions.get_mut(&block) else { continue };
            let Some(at) = versions.iter().position(|v| v.write == id) else { continue };
            let mut n = 0;
            versions.retain(|v| {
                n += 1;
                n > at + 1 || (v.later && v.write != id)
            });
            if versions.is_empty() {
                self.versions.remove(&block);
            }
            self.durable.set(block, Some(content));
        }
    }

    fn claim(&mut self, id: u32) {
        self.writes.get_mut(&id).into_iter().for_each(|w| w.claimed = true);
    }

    /// Nothing of the write is anywhere.
    fn forget(&mut self, id: u32) {
        self.writes.remove(&id);
        self.versions.retain(|_, versions| {
            versions.retain(|v| v.write != id);
            !versions.is_empty()
        });
    }

    fn forsake(&mut self, id: u32, later: bool) {
        self.writes.get_mut(&id).into_iter().for_each(|w| w.state = State::Forsaken);
        let versions = self.versions.values_mut().flatten().filter(|v| v.write == id);
        versions.for_each(|v| v.later = later);
    }

    fn drop_cache(&mut self, shown: bool) {
        let sent = self.writes.values_mut().filter(|w| w.state == State::Sent && !w.fua);
        sent.for_each(|write| write.dropped = true);
        let ended = self.writes.iter().filter(|(_, w)| w.state == State::Ended);
        let ended: Vec<u32> = ended.map(|(id, _)| *id).collect();
        for id in ended {
            self.forsake(id, false);
            let blocks = self.writes[&id].blocks.iter().map(|(block, _)| *block);
            for block in blocks.filter(|_| !shown) {
                self.visible.set(block, self.durable.block(block).cloned());
            }
        }
    }

    /// The device is gone: all that is in flight fails as it ends, and so do reads.
    pub fn go(&mut self) {
        self.gone = true;
        self.event();
    }

    pub fn is_gone(&self) -> bool {
        self.gone
    }

    /// A write and a flush that nobody else runs beside, as a driver does in its calls that may
    /// wait.
    pub fn persist(&mut self, at: u64, data: &[u8]) -> bool {
        let write = self.send_write(at, data, false, Path::Straight);
        let written = self.end(write, End::Done, None);
        let flush = self.send_flush();
        self.end(flush, End::Done, None) && written
    }

    // --- reads -------------------------------------------------------------------------

    /// Reads of this block fail: the next one, or all until it is written.
    pub fn fail_read(&mut self, block: usize, for_good: bool) {
        self.bad_reads.insert(block, for_good);
    }

    /// The next read of this block shows what was there before the last write.
    pub fn stale_read(&mut self, block: usize) {
        self.stale_reads.insert(block);
    }

    /// Reads one block; None: an error.
    pub fn read(&mut self, block: usize) -> Option<Rc<Block>> {
        if self.gone {
            return None;
        }
        if let Some(for_good) = self.bad_reads.get(&block) {
            if !for_good {
                self.bad_reads.remove(&block);
            }
            return None;
        }
        if self.stale_reads.remove(&block) {
            if let Some(before) = self.before.get(&block) {
                return Some(before.clone());
            }
        }
        self.visible.block(block).cloned()
    }

    /// The states that a power cut at this moment may leave.
    pub fn cut(&self) -> Cut {
        let writes: Vec<u32> = self.writes.keys().copied().collect();
        let group = |id: u32| writes.binary_search(&id).unwrap_or(0);
        let open = self.versions.iter().map(|(block, versions)| {
            let claimed = |v: &Version| self.writes.get(&v.write).is_some_and(|w| w.claimed);
            cut::Open {
                block: *block,
                versions: versions.iter().map(|v| (group(v.write), v.content.clone())).collect(),
                claimed: versions.iter().rposition(claimed),
            }
        });
        Cut::new(self.durable.clone(), open.collect())
    }
}
