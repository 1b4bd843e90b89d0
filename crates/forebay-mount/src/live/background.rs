// SPDX-License-Identifier: MIT OR Apache-2.0
//! Syncs groups in the tree, records their number there, and then syncs them in the log.

use std::sync::atomic::Ordering;

use rustix::io::Errno;

use super::failing::{ends_mount, Step};
use super::groups::Closed;
use super::waits::Wait;
use super::{Appended, Held, Inode, Journal, Live, What};
use crate::record::{Record, Records};
use crate::replay::planted::{planted, Bug};
use crate::tree::{Result, Tree};

impl<T: Tree, J: Journal> Live<T, J> {
    /// Syncs groups in the tree and then in the log, until [`Live::end`] or a failure.
    /// Runs on a thread of its own.
    pub fn background(&self) {
        let _told = Told(self);
        while let Some(closed) = self.groups.next(self.options.interval) {
            if self.sync_group(closed).is_err() {
                return;
            }
        }
    }

    /// Does one step of [`Live::background`] on this thread.
    #[cfg(test)]
    pub fn sync_here(&self) -> Result<()> {
        match self.groups.unsynced().groups {
            0 => Ok(()),
            _ => self
                .groups
                .next(std::time::Duration::ZERO)
                .map_or(Ok(()), |closed| self.sync_group(closed)),
        }
    }

    fn sync_group(&self, closed: Closed<T::Node>) -> Result<()> {
        {
            let _syncing = self.syncs.begin();
            if planted(Bug::GroupBeforeTree) {
                self.bear_group(closed.txg)?;
            }
            self.sync_tree(&closed)?;
        }
        self.believe()?;
        // The tree may be one group ahead of the log, and never one group older than it.
        if !planted(Bug::GroupAfterLog) && !planted(Bug::GroupBeforeTree) {
            {
                let _syncing = self.syncs.begin();
                self.look_at_clock();
                self.bear_group(closed.txg)?;
            }
            // A sync that began meanwhile may have the error that is the number's.
            if !planted(Bug::NumberBelieved) {
                self.believe()?;
            }
        }
        if let Err(e) = self.journal.sync(closed.txg) {
            return Err(self.fail_log(&e));
        }
        if planted(Bug::GroupAfterLog) {
            self.bear_group(closed.txg)?;
        }
        let Closed { txg, touched, .. } = closed;
        for inode in touched {
            self.done_with(inode);
        }
        self.groups.synced(txg);
        self.counters.groups.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn bear_group(&self, txg: u64) -> Result<()> {
        let Some(group) = self.bears.get() else { return Ok(()) };
        let what = "the number of the group that was synced cannot be made durable in the tree";
        match group.set(&self.tree, txg) {
            // It may cost an operator's consent after a crash.
            Err(e) if !ends_mount(Step::Number, e) => {
                forebay::diagnostics::warn(format_args!(
                    "forebay: {what}: {e}. Make room: until then a replay after a crash takes the \
                     tree for an older copy of itself, and wants --accept=older-tree"
                ));
                Ok(())
            }
            set => set.map_err(|e| self.judge(Step::Number, what, e)),
        }
    }

    /// Fails if another sync of the tree that was under way has failed, so that this one's
    /// success may be false.
    pub(super) fn believe(&self) -> Result<()> {
        self.syncs.wait_for_earlier();
        match self.failure.get() {
            None => Ok(()),
            Some(_) => Err(Errno::IO),
        }
    }

    fn sync_tree(&self, closed: &Closed<T::Node>) -> Result<()> {
        // File systems differ in what the sync of one file or directory covers of names that
        // moved between others.  The sync of the whole file system leaves no doubt.
        const SINGLY: usize = 32;
        let failed = |e| self.judge(Step::Sync, "the tree's file system failed to sync", e);
        if closed.names || closed.touched.len() > SINGLY {
            self.inodes().sync_begins();
            self.tree.sync_all().map_err(failed)?;
            self.inodes().sync_ended();
            return Ok(());
        }
        let _single = self.before_single_sync()?;
        closed.touched.iter().try_for_each(|inode| {
            let mut one = Some(self.syncs.begin_one(inode.ino));
            let synced = self.tree.sync(&inode.node);
            if planted(Bug::OneEndsTooEarly) {
                drop(one.take());
                std::thread::sleep(std::time::Duration::from_secs(3));
            }
            // Its failure is known before its end.
            synced.map_err(failed)
        })
    }

    /// Records in the log each second that the mount is alive, while anything is not synced.
    /// So a replay can tell what was changed after its death.  `false`: the mount has ended.
    pub fn beat(&self) -> bool {
        if self.groups.is_over() {
            return false;
        }
        self.latest_ns.fetch_max(self.clock.now_ns(), Ordering::Relaxed);
        if let Some(hold) = self.groups.enter_if_pending() {
            self.look_at_order();
            // A full log may still hold entries that nobody waits for.
            let last = match self.append_alive(&hold) {
                Ok(entry) => entry.map_or_else(|| self.last_ticket(), |entry| entry.ticket),
                Err(_) => return true,
            };
            let _ = self.wait(last);
        }
        true
    }

    /// Appends an entry that says that the mount is alive.  `None`: there is no space.
    fn append_alive(&self, hold: &Held<'_, T>) -> Result<Option<Appended>> {
        self.append(What::Sign, hold, &[], false, &Records::of(&Record::Alive))
    }

    /// Runs a change of content that is not logged, or whose entry may be old by the time that the
    /// tree makes it.  The tree may show its time after a crash.  If the log had no durable entry
    /// since long before, as when it is full, the replay would take the change for one of after the
    /// crash and keep the log's content from the file.  So an entry comes first, and waits for space
    /// as a sync does.
    ///
    /// The tree may hold the change up (a file system that is frozen, a slow disk), and then no
    /// lock could keep the entry young: the change has the time of its end.  So an entry comes after
    /// it, too, before anybody is told.  A crash between both leaves the file in dispute, with the
    /// log's content in the directory of found files.
    pub(super) fn unlogged<R>(
        &self,
        inode: &Inode<T::Node>,
        change: impl FnOnce() -> Result<R>,
    ) -> Result<R> {
        self.until_entry_is_young(inode)?;
        let done = change();
        if !planted(Bug::LateWrites) {
            self.until_entry_is_young(inode)?;
        }
        done
    }

    /// Returns when the last durable entry is not old, if the log has one of the inode.
    fn until_entry_is_young(&self, inode: &Inode<T::Node>) -> Result<()> {
        // Less than the replay's slack.
        const SILENCE_NS: u64 = 2_000_000_000;
        let is_silent =
            || self.clock.now_ns().abs_diff(self.alive_ns.load(Ordering::Relaxed)) > SILENCE_NS;
        let bound = inode.bound.load(Ordering::Relaxed);
        if bound == 0 || !is_silent() || planted(Bug::SilentWrites) {
            return Ok(());
        }
        let mut waits = None;
        // Another thread may append meanwhile.
        while is_silent() && bound > self.groups.numbers().1 {
            self.alive()?;
            let seen = self.groups.syncs();
            let Some(hold) = self.groups.enter_if_pending() else { break };
            let entry = self.append_alive(&hold)?;
            drop(hold);
            match entry {
                Some(entry) => return self.wait(entry.ticket),
                None => {
                    waits.get_or_insert_with(|| Wait::begin(&self.waits));
                    self.groups.wait_for_space(seen, self.options.space_wait);
                }
            }
        }
        self.alive()
    }

    /// Syncs everything in the tree and empties the log.
    pub fn sync(&self) -> Result<()> {
        match self.groups.sync_now() && self.failure.get().is_none() {
            true => Ok(()),
            false => Err(Errno::IO),
        }
    }

    /// After a failure of the log alone: makes everything durable in the tree that programs were
    /// told.  Each change that an entry announced is in the tree, or nobody was told of it; the
    /// content that syncs have logged was in the tree before.  `Err`: the tree has failed, too.
    pub fn bring_home(&self) -> Result<()> {
        self.groups.wait_until_left();
        if !self.has_tree_failed() {
            let _syncing = self.syncs.begin();
            if let Err(e) = self.tree.sync_all() {
                self.judge(Step::Sync, "the tree's file system failed to sync", e);
            }
        }
        self.syncs.wait_for_earlier();
        match self.has_tree_failed() {
            false => Ok(()),
            true => Err(Errno::IO),
        }
    }

    pub fn has_tree_failed(&self) -> bool {
        self.tree_failed.load(Ordering::SeqCst)
    }

    /// Makes [`Live::background`] return as soon as it can; the log keeps what it has.
    pub fn leave(&self) {
        self.groups.fail();
    }

    /// [`Live::background`] syncs what there is and returns.  Later changes are refused.
    pub fn end(&self) {
        self.groups.end();
    }
}

/// Reports a failure if the background thread is lost.
struct Told<'a, T: Tree, J: Journal>(&'a Live<T, J>);

impl<T: Tree, J: Journal> Drop for Told<'_, T, J> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.fail("the thread that syncs the tree is lost", Errno::IO);
        }
    }
}
