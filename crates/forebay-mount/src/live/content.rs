// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writes to files, and their syncs.

use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::Arc;

use forebay::Ticket;

use super::failing::Step;
use super::groups::Hold;
use super::replay_hazard::ReplayHazard;
use super::room::Room;
use super::write_buffer::Writes;
use super::{ns_of, Content, Inode, Journal, Live, Logged, Pending, What, When};
use crate::record::{self, Allocate, Record, Records, DATA_OVERHEAD};
use crate::replay::planted::{planted, Bug};
use crate::tree::{Attr, Result, Tree};

/// A sync of a file whose entries are in the log, and may not be durable yet.
#[must_use = "it is durable only after a wait"]
pub struct Fsync<T: Tree, J: Journal> {
    live: Arc<Live<T, J>>,
    ticket: Ticket,
    /// It is not synced before this is dropped.
    group: Option<u64>,
}

impl<T: Tree, J: Journal> fmt::Debug for Fsync<T, J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fsync").field("ticket", &self.ticket).field("group", &self.group).finish()
    }
}

impl<T: Tree, J: Journal> Fsync<T, J> {
    /// A sync with a lower number is durable no later.
    pub fn number(&self) -> u64 {
        self.ticket.0
    }

    /// Whether [`Fsync::wait`] would return at once.
    pub fn is_settled(&self) -> bool {
        self.live.is_settled(self.ticket)
    }

    /// Waits until everything is durable that the sync stands for.
    pub fn wait(self) -> Result<()> {
        self.live.wait(self.ticket)
    }
}

impl<T: Tree, J: Journal> Drop for Fsync<T, J> {
    fn drop(&mut self) {
        if let Some(group) = self.group {
            self.live.groups.leave(group);
        }
    }
}

impl<T: Tree, J: Journal> Live<T, J> {
    /// Copies within the tree; `tree` returns how many bytes it wrote.
    pub fn copy(
        &self,
        to: &Arc<Inode<T::Node>>,
        offset: u64,
        length: u64,
        tree: impl Fn() -> Result<u64>,
    ) -> Result<u64> {
        self.alive()?;
        let mut content = to.content();
        content.buffered = None;
        let copied = self.unlogged(to, || self.with_room(tree));
        // An error may come after a part was written.
        let written = *copied.as_ref().unwrap_or(&length);
        content.dirty.add(offset, offset.saturating_add(written));
        copied?;
        let kept = self.keep_from_replay(to, &mut content, offset, written)?;
        drop(content);
        self.settle(kept)?;
        Ok(written)
    }

    /// Writes to a file.  Returns the number of bytes written, which is less than all if there
    /// is no room for more.
    pub fn write(&self, inode: &Arc<Inode<T::Node>>, offset: u64, bytes: &[u8]) -> Result<usize> {
        self.alive()?;
        // The lock is taken before the write to the tree, so that buffered writes are in the order
        // of the writes.
        let mut content = inode.content();
        let buffered = content.buffered.take();
        let written = self.unlogged(inode, || self.write_tree(inode, offset, bytes))?;
        let bytes = &bytes[..written];
        content.buffered = match (content.dirty.is_empty(), buffered) {
            (true, _) => self.write_buffer.first(offset, bytes),
            (false, Some(buffered)) => self.write_buffer.next(buffered, offset, bytes),
            (false, None) => None,
        };
        content.dirty.add(offset, offset.saturating_add(written as u64));
        let kept = self.keep_from_replay(inode, &mut content, offset, written as u64)?;
        drop(content);
        self.settle(kept)?;
        Ok(written)
    }

    fn write_tree(&self, inode: &Inode<T::Node>, offset: u64, bytes: &[u8]) -> Result<usize> {
        let mut done = 0;
        let mut room = Room::default();
        loop {
            let rest = &bytes[done..];
            match self.tree.write_some(&inode.node, offset.saturating_add(done as u64), rest) {
                Ok(n) if n == rest.len() => return Ok(done + n),
                Ok(n) => done += n,
                Err(e) if self.makes_room(&mut room, e) => {}
                Err(e) if done == 0 => return Err(e),
                Err(_) => return Ok(done),
            }
        }
    }

    /// Protects bytes that were written and that a replay would undo: logs them at once, up to
    /// the limit of a sync, and then syncs the file.
    fn keep_from_replay(
        &self,
        inode: &Arc<Inode<T::Node>>,
        content: &mut Content,
        offset: u64,
        length: u64,
    ) -> Result<Logged<'_, T>> {
        let nothing = Pending::by_another(Ticket::default());
        let Some(hazard) = &mut content.hazard else { return Ok(nothing) };
        let synced = hazard.txg <= self.groups.numbers().1;
        if synced && !hazard.replaces {
            content.hazard = None;
            return Ok(nothing);
        }
        if !hazard.ranges.overlap(offset, offset.saturating_add(length)) {
            return Ok(nothing);
        }
        let logs = hazard.spend(length);
        if synced && !logs {
            content.hazard = None;
            return Ok(nothing);
        }
        let logged = self.log_locked(inode, content, logs)?;
        if let Some(hazard) = &mut content.hazard {
            hazard.txg = self.groups.numbers().0;
        }
        Ok(logged)
    }

    /// Whether an entry of the open group, or of the one before, would undo writes to the
    /// range.
    fn takes_away(&self, content: &mut Content, range: (u64, u64)) {
        let (open, synced) = self.groups.numbers();
        let before = content.hazard.take().filter(|hazard| hazard.txg > synced || hazard.replaces);
        content.hazard = Some(ReplayHazard::add(before, range, open, self.options.sync_limit));
    }

    pub fn truncate(&self, inode: &Arc<Inode<T::Node>>, size: u64) -> Result<()> {
        let mut content = inode.content();
        self.tree.ready_to_write(&inode.node)?;
        let record = Record::Truncate { fid: inode.fid, size };
        content.buffered = None;
        let cut = || self.tree.truncate(&inode.node, size);
        self.unlogged(inode, || self.change(When::Durable, inode, &record, cut))?;
        content.dirty.cut(size);
        self.takes_away(&mut content, (size, u64::MAX));
        Ok(())
    }

    pub fn allocate(
        &self,
        inode: &Arc<Inode<T::Node>>,
        mode: Allocate,
        offset: u64,
        length: u64,
    ) -> Result<()> {
        let mut content = inode.content();
        self.tree.ready_to_write(&inode.node)?;
        if !planted(Bug::KeptTooLong) {
            content.buffered = None;
        }
        let record = Record::Allocate { fid: inode.fid, mode, offset, length };
        let allocate = || self.tree.allocate(&inode.node, mode, offset, length);
        self.unlogged(inode, || self.change(When::Durable, inode, &record, allocate))?;
        if matches!(mode, Allocate::Punch | Allocate::Zero | Allocate::ZeroKeepSize) {
            self.takes_away(&mut content, (offset, offset.saturating_add(length)));
        }
        Ok(())
    }

    #[cfg(test)]
    pub fn fsync(self: &Arc<Self>, inode: &Arc<Inode<T::Node>>) -> Result<()> {
        self.begin_fsync(inode)?.wait()
    }

    /// Logs what was written to a file before the call.  That, and every change of names and
    /// attributes, is durable when [`Fsync::wait`] has returned.
    pub fn begin_fsync(self: &Arc<Self>, inode: &Arc<Inode<T::Node>>) -> Result<Fsync<T, J>> {
        self.counters.syncs.fetch_add(1, Ordering::Relaxed);
        self.alive()?;
        let logged = self.log_content(inode)?;
        // Names and attributes are durable with it.
        let names = self.names_wait_for_syncs() && !planted(Bug::SyncOfContentAlone);
        let ticket = if names { self.last_ticket() } else { logged.ticket };
        Ok(Fsync { group: logged.hold.map(Hold::into_group), ticket, live: self.clone() })
    }

    /// Logs the content that no entry has.  What it returns stands for that of other calls, too,
    /// which may not be durable yet.
    pub(super) fn log_content(&self, inode: &Arc<Inode<T::Node>>) -> Result<Logged<'_, T>> {
        let mut content = inode.content();
        if let Some(hazard) = &mut content.hazard {
            hazard.replaces = false;
        }
        self.log_locked(inode, &mut content, true)
    }

    /// Logs the content of a locked file.  `logs`: only as much as suits the log.
    fn log_locked(
        &self,
        inode: &Arc<Inode<T::Node>>,
        content: &mut Content,
        logs: bool,
    ) -> Result<Logged<'_, T>> {
        if content.dirty.is_empty() {
            return Ok(Pending::by_another(match planted(Bug::CleanIsDurable) {
                true => Ticket::default(),
                false => content.logged,
            }));
        }
        let attr = self.tree.attr(&inode.node)?;
        let changed = ns_of(attr.ctime);
        // The file may have been written before the clock was set back.
        let latest = self.latest_ns.fetch_max(changed, Ordering::Relaxed);
        if changed > latest && self.clock.is_ahead(changed) {
            self.look_at_clock();
        }
        let buffered =
            content.buffered.take().and_then(|buffered| self.write_buffer.take(buffered));
        let small = logs && content.dirty.bytes() <= self.options.sync_limit;
        let parts = content.dirty.parts().filter(|_| small);
        let logged = match (parts, buffered) {
            _ if attr.nlink == 0 => Some(Pending::by_another(Ticket::default())),
            (Some(parts), Some(buffered)) if parts.last().is_some_and(|p| p.1 <= attr.size) => {
                self.log_buffered(inode, &attr, &buffered)?
            }
            (Some(parts), _) => self.log_as_read(inode, &attr, parts)?,
            _ => None,
        };
        let mut logged = match logged {
            Some(logged) => logged,
            None => {
                let synced = self.sync_file(inode)?;
                content.hazard = None;
                synced
            }
        };
        content.dirty.clear();
        // Nothing was to be logged: then what was logged before counts.
        if logged.ticket.is_durable() {
            logged.ticket = content.logged;
        }
        content.logged = logged.ticket;
        Ok(logged)
    }

    /// Logs the writes as they came; the tree has all of them.
    fn log_buffered(
        &self,
        inode: &Arc<Inode<T::Node>>,
        attr: &Attr,
        buffered: &Writes,
    ) -> Result<Option<Logged<'_, T>>> {
        let parts = buffered.places.iter().map(|&(at, length)| (at, at + length as u64));
        let mut rest = &buffered.bytes[..];
        let next = |_, b: &mut [u8]| {
            let (bytes, behind) = rest.split_at(b.len().min(rest.len()));
            rest = behind;
            b[..bytes.len()].copy_from_slice(bytes);
            Ok(bytes.len())
        };
        self.log_parts((inode, attr), parts, next, || self.alive().map(|()| true))
    }

    /// Logs bytes that are read back.  `None`: it is unknown whether they are the ones that
    /// were written.
    fn log_as_read(
        &self,
        inode: &Arc<Inode<T::Node>>,
        attr: &Attr,
        parts: &[(u64, u64)],
    ) -> Result<Option<Logged<'_, T>>> {
        let parts = parts.iter().map(|&(start, end)| (start, end.min(attr.size)));
        let read = |at, b: &mut [u8]| self.tree.read(&inode.node, at, b);
        self.log_parts((inode, attr), parts, read, || self.is_as_written(inode))
    }

    /// Logs bytes of a file in as few entries as possible.  `None`: they may not be logged, as
    /// `may_log` says after they were read.
    fn log_parts(
        &self,
        (inode, attr): (&Arc<Inode<T::Node>>, &Attr),
        parts: impl Iterator<Item = (u64, u64)>,
        mut bytes: impl FnMut(u64, &mut [u8]) -> Result<usize>,
        may_log: impl Fn() -> Result<bool>,
    ) -> Result<Option<Logged<'_, T>>> {
        let most = self.most_records();
        let mut body = Records::default();
        let mut logged = Pending::by_another(Ticket::default());
        let log = |logged: Logged<'_, T>, body: &Records| {
            if !may_log()? {
                return Ok(None);
            }
            // Whoever waits for space holds no group.  The last entry's ticket is that of all.
            drop(logged);
            let (hold, entry) = self.submit(What::Word, &[inode], false, body)?;
            Ok(Some(Pending { ticket: entry.ticket, hold: Some(hold) }))
        };
        for (mut at, end) in parts {
            while at < end {
                if body.bytes().len() + DATA_OVERHEAD + 1 > most || body.count() == u16::MAX / 2 {
                    match log(logged, &body)? {
                        Some(more) => logged = more,
                        None => return Ok(None),
                    }
                    body.clear();
                }
                let room = most - body.bytes().len() - DATA_OVERHEAD;
                let length = (end - at).min(room as u64) as usize;
                let what = (inode.fid, at, attr.size, attr.mtime);
                let n = body.push_data(what, length, |b| bytes(at, b))?;
                // The file was truncated outside the mount: it has no more.
                if n == 0 {
                    break;
                }
                at += n as u64;
            }
        }
        match body.is_empty() {
            true => Ok(Some(logged)),
            false => log(logged, &body),
        }
    }

    /// Whether bytes that were just read are those that were written, and not older ones of the
    /// disk: a page whose write-back failed may have been dropped.  `false`: that is unknown.
    fn is_as_written(&self, inode: &Arc<Inode<T::Node>>) -> Result<bool> {
        let intact = {
            let _syncing = self.syncs.begin();
            self.tree.is_intact(&inode.node).map_err(|e| {
                self.judge(Step::Sync, "the tree's file system failed to write back a file", e)
            })?
        };
        if !planted(Bug::ErrorOfAnother) {
            self.syncs.wait_for_one(inode.ino);
        }
        self.alive()?;
        Ok(intact)
    }

    /// The bytes that records may take in an entry, apart from its header and its bindings.
    fn most_records(&self) -> usize {
        let beside = record::HEADER + 2 * (record::HANDLE_MAX + 64) + 2 * 4096;
        self.journal.entry_max().saturating_sub(beside).max(DATA_OVERHEAD + 512)
    }

    /// Syncs a file through the tree.  The content stays locked: none of it may be logged
    /// between the sync and the entry that makes earlier ones void.
    fn sync_file(&self, inode: &Arc<Inode<T::Node>>) -> Result<Logged<'_, T>> {
        self.counters.real_syncs.fetch_add(1, Ordering::Relaxed);
        {
            let _single = self.before_single_sync()?;
            let _syncing = self.syncs.begin();
            self.tree.sync(&inode.node).inspect_err(|e| {
                self.judge(Step::Sync, "the tree's file system failed to sync a file", *e);
            })?;
        }
        self.believe()?;
        let synced = Records::of(&Record::Synced { fid: inode.fid });
        let (hold, entry) = self.submit(What::Word, &[inode], false, &synced)?;
        Ok(Pending { ticket: entry.ticket, hold: Some(hold) })
    }
}
