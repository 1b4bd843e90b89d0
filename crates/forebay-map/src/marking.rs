// SPDX-License-Identifier: MIT OR Apache-2.0
//! The mark tells others that a file lacks pages.  The stamp shows us that others have changed
//! the file.
//!
//! The file bears the mark from before its first dirty page until its last dirty page is in the
//! file.  Who makes a page dirty holds `on` for reading meanwhile.  Who removes the mark holds
//! `on` for writing, and so either sees that page, or the page waits until the file is marked
//! again.
//!
//! The stamp is in the file's record.  It says that we change the file, before we do so.  Later
//! it holds the time of the last change, once that change is durable in the file system.
//!
//! A stamp that says that we change the file explains every change until a moment that it
//! names.  That moment must come before others can change the file.  While a lease keeps others
//! out, the kernel delays their opens for a time (fs.lease-break-time) and then revokes the
//! lease.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use forebay::FoundMark;

use crate::backing::{Backing, Time};
use crate::error::{cannot_mark, lacks_rights, Error, Result};
use crate::locked::lock;
use crate::patience::Patience;
use crate::planted::{self, Planted};
use crate::store::{Stamp, Store, CHANGES_FOR};

#[cfg(test)]
mod tests;

/// How long giving up a file waits for a change that is under way.
const ENDS: Duration = Duration::from_secs(2);
/// The greatest age after which a change renews the stamp; much less than `CHANGES_FOR`.
const STAMP_LASTS: Duration = Duration::from_secs(1);
const MOST: Duration = Duration::from_secs(CHANGES_FOR as u64);
/// How long after the begin of a step its change can be: the lock of the file, and two ticks of
/// the kernel's clock.
const STEP_CHANGES: Duration = Duration::from_millis(25);

/// The mark and the stamp of one file.
#[derive(Debug, Default)]
pub(crate) struct Marking {
    on: RwLock<bool>,
    /// Whether the file may bear the mark.  The lock is held while the mark is set or removed.
    borne: Mutex<bool>,
    changes: Mutex<Changes>,
    /// Others have changed the file, so this process changes it no more.
    given_up: AtomicBool,
}

#[derive(Debug, Default)]
struct Changes {
    under_way: usize,
    /// The number of changes so far.
    count: u64,
    /// The time until which changes need no new stamp, if the last stamp says that we change
    /// the file.
    stamped: Option<Instant>,
    /// The last stamp that says so.
    stamp: Option<Stamp>,
    /// The time when the lease was last seen with no one waiting for it.  None: no lease keeps
    /// others out.
    leased: Option<Instant>,
    /// How long the kernel delays others while there is a lease.
    patience: Option<Arc<Patience>>,
    /// The file's change time after this process's last change, read while no one else could
    /// change the file.
    last: Option<Time>,
    /// The last step of a change that began while no one else could change the file.
    step: Option<Step>,
}

/// A step of a change, whose end may have been seen too late: the process was stopped meanwhile,
/// and the kernel has revoked the lease.
#[derive(Clone, Copy, Debug)]
struct Step {
    /// The time of the system's clock when it began.
    begun: SystemTime,
    /// The stamp that it began under.
    stamp: Stamp,
}

impl Step {
    /// Whether a change of the file at this time was made by this step or by one before it.
    /// Others can change the file only after the stamp has ended.  If the kernel's patience was
    /// made shorter since the stamp, the time of the step still tells the two apart.
    fn explains(&self, changed: Time) -> bool {
        let latest = (self.begun + STEP_CHANGES).duration_since(UNIX_EPOCH).unwrap_or_default();
        let latest = (latest.as_secs() as i64, latest.subsec_nanos());
        changed <= latest && self.stamp.explains(changed)
    }
}

/// A change that is under way, in one step or several.  It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Change<'a> {
    marking: &'a Marking,
    of: Of<'a>,
}

impl Change<'_> {
    /// Prepares another step: meanwhile the file may have been given up, or the stamp may be
    /// old.
    pub fn next(&self) -> Result<()> {
        self.marking.begin_step(&mut lock(&self.marking.changes), self.of)
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        let mut changes = lock(&self.marking.changes);
        changes.under_way -= 1;
        let backing = self.of.backing;
        // The time is read before the check that our locks kept others out until now.
        if let (Ok(time), Ok(())) = (backing.changed(), backing.check_ours()) {
            changes.last = Some(time);
            // With no change under way, no end of a step was seen too late.
            if changes.under_way == 0 {
                changes.step = None;
            }
        }
    }
}

/// A file and its record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Of<'a> {
    pub store: &'a dyn Store,
    pub id: u32,
    pub backing: &'a dyn Backing,
}

impl Of<'_> {
    fn system(&self, doing: &'static str) -> impl FnOnce(std::io::Error) -> Error {
        Error::system(self.backing.path(), doing)
    }
}

/// Whether a file may bear the mark although it could not be set.  Who may not set it cannot remove
/// it either, so a close would fail.
fn may_bear(of: Of<'_>, e: &io::Error) -> bool {
    if !cannot_mark(e) {
        return true;
    }
    match of.backing.marked() {
        Ok(found) => !matches!(found, FoundMark::Nothing),
        // Nor may this process read it.
        Err(_) => !lacks_rights(e),
    }
}

impl Marking {
    /// Marks the file if necessary, then makes pages dirty.
    pub fn with_mark<R>(&self, of: Of<'_>, mut sync: impl FnMut() -> Result<R>) -> Result<R> {
        if planted::is(Planted::MarkedAfter) {
            let synced = sync()?;
            self.mark(of)?;
            return Ok(synced);
        }
        loop {
            let on = self.on.read().unwrap_or_else(PoisonError::into_inner);
            if *on {
                return sync();
            }
            drop(on);
            self.mark(of)?;
        }
    }

    fn mark(&self, of: Of<'_>) -> Result<()> {
        let mut borne = lock(&self.borne);
        if *self.on.read().unwrap_or_else(PoisonError::into_inner) {
            return Ok(());
        }
        let before = std::mem::replace(&mut *borne, true);
        if let Err(e) = of.backing.mark(of.store.claim()) {
            *borne = before || may_bear(of, &e);
            return Err(of.system("mark it as incomplete")(e));
        }
        *self.on.write().unwrap_or_else(PoisonError::into_inner) = true;
        Ok(())
    }

    /// Whether pages may be dirty.
    pub fn is_on(&self) -> bool {
        *self.on.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn is_borne(&self) -> bool {
        *lock(&self.borne)
    }

    /// Removes the mark, unless the file lacks something.
    pub fn unmark(&self, of: Of<'_>, is_dirty: impl FnOnce() -> Result<bool>) -> Result<()> {
        let mut borne = lock(&self.borne);
        if !*borne {
            return Ok(());
        }
        let mut on = self.on.write().unwrap_or_else(PoisonError::into_inner);
        if !planted::is(Planted::UnmarkedEarly) && is_dirty()? {
            return Ok(());
        }
        *on = false;
        drop(on);
        of.backing.unmark().map_err(of.system("remove its mark"))?;
        *borne = false;
        Ok(())
    }

    /// Begins a change of the file by this process; dropping the result ends it.
    pub fn change<'a>(&'a self, of: Of<'a>) -> Result<Change<'a>> {
        let mut changes = lock(&self.changes);
        self.begin_step(&mut changes, of)?;
        changes.under_way += 1;
        changes.count += 1;
        Ok(Change { marking: self, of })
    }

    fn begin_step(&self, changes: &mut Changes, of: Of<'_>) -> Result<()> {
        // The time is read before the check that our locks keep others out.
        let begun = SystemTime::now();
        // Without this check the stamp would also explain writes by others who have got the
        // file.
        if let Err(e) = of.backing.check_ours() {
            self.refuse(changes, of);
            return Err(of.system("change")(e));
        }
        self.may_change(changes, of)?;
        changes.step = changes.stamp.map(|stamp| Step { begun, stamp });
        Ok(())
    }

    fn may_change(&self, changes: &mut Changes, of: Of<'_>) -> Result<()> {
        if self.is_given_up() {
            let path = of.backing.path().to_owned();
            let why = "others have changed it, so nothing is written to it any more".into();
            return Err(Error::Refused { path, why });
        }
        let lasts = changes.stamped.is_some_and(|until| Instant::now() < until);
        if lasts || planted::is(Planted::NotStamped) {
            return Ok(());
        }
        // Without a lease nobody is delayed, and nothing is read.
        let patience = match (changes.leased, &changes.patience) {
            (Some(_), Some(patience)) => patience.now(),
            _ => None,
        };
        let until = changes.alone_until(of.backing, patience);
        let stamp = Stamp::Changing(explains_until(until));
        of.store.set_stamp(of.id, stamp)?;
        changes.stamp = Some(stamp);
        let left = until.saturating_duration_since(Instant::now());
        changes.stamped = Some(Instant::now() + STAMP_LASTS.min(left / 4));
        Ok(())
    }

    /// Sets since when a lease has been seen with no one waiting for it.  Also sets how long the
    /// kernel then delays opens of the file, until we have answered.  None: no lease keeps others
    /// out.
    pub fn leased(&self, lease: Option<(Instant, Arc<Patience>)>) {
        let mut changes = lock(&self.changes);
        (changes.leased, changes.patience) = lease.unzip();
    }

    /// When the lease was last seen with no one waiting for it.
    pub fn lease_seen(&self) -> Option<Instant> {
        lock(&self.changes).leased
    }

    /// Records the time of the last change, if no change is under way.
    pub fn settle(&self, of: Of<'_>) -> Result<()> {
        let count = {
            let changes = lock(&self.changes);
            if changes.stamped.is_none() || changes.under_way > 0 {
                return Ok(());
            }
            changes.count
        };
        let time = of.backing.changed().map_err(of.system("stat"))?;
        of.backing.sync_all().map_err(of.system("sync"))?;
        let mut changes = lock(&self.changes);
        if changes.count == count && !self.is_given_up() {
            of.store.set_stamp(of.id, Stamp::Settled(time))?;
            changes.stamped = None;
            changes.last = Some(time);
        }
        Ok(())
    }

    /// Records the change time that the file had at the open.
    pub fn opened(&self, changed: Time) {
        lock(&self.changes).last = Some(changed);
    }

    /// Whether only this process has changed the file, as far as is known.  While a change by it is
    /// under way, that is not known, and counts as so.
    pub fn is_own(&self, backing: &dyn Backing) -> bool {
        let mut changes = lock(&self.changes);
        let (Some(last), Ok(now)) = (changes.last, backing.changed()) else { return false };
        let by_step = || changes.step.is_some_and(|step| last <= now && step.explains(now));
        let changes_now = changes.under_way > 0;
        if changes_now && !self.is_given_up() {
            return true;
        }
        let is = last == now || !changes_now && by_step();
        if is {
            changes.last = Some(now);
        }
        is
    }

    pub fn is_given_up(&self) -> bool {
        self.given_up.load(Ordering::SeqCst)
    }

    /// Refuses every change from now on.  The record then holds the time of this process's last
    /// change, so that a recovery notices changes by others.
    pub fn give_up(&self, of: Of<'_>) {
        self.refuse(&mut self.at_rest(), of);
    }

    /// Like `give_up`, for a file that others have opened and use from now on.  A recovery then
    /// writes to the file only if it is told to, although the others may not have changed it
    /// yet.
    pub fn leave(&self, of: Of<'_>) {
        self.at_rest().ends_with(of, Stamp::LEFT);
    }

    /// Lets no new change begin.  Waits for one that is under way, unless it takes long.
    fn at_rest(&self) -> MutexGuard<'_, Changes> {
        self.given_up.store(true, Ordering::SeqCst);
        let begun = Instant::now();
        loop {
            let changes = lock(&self.changes);
            if changes.under_way == 0 || begun.elapsed() > ENDS {
                return changes;
            }
            drop(changes);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn refuse(&self, changes: &mut Changes, of: Of<'_>) {
        self.given_up.store(true, Ordering::SeqCst);
        if changes.stamped.is_some() {
            let stamp = changes.last.map_or(Stamp::LEFT, Stamp::Settled);
            changes.ends_with(of, stamp);
        }
    }

    /// Undoes `give_up` and `leave`, because no one else has the file or has changed it.
    pub fn go_on(&self, of: Of<'_>) {
        let changes = lock(&self.changes);
        // If this fails, a recovery asks without need.
        if let (None, Some(last)) = (changes.stamped, changes.last) {
            let _ = of.store.set_stamp(of.id, Stamp::Settled(last));
        }
        self.given_up.store(false, Ordering::SeqCst);
    }
}

impl Changes {
    /// Records the stamp of a file that this process changes no more.
    fn ends_with(&mut self, of: Of<'_>, stamp: Stamp) {
        // If this fails, a recovery cannot be told.
        if of.store.set_stamp(of.id, stamp).is_ok() {
            self.stamped = None;
        }
    }

    /// The time until which no one else can change the file, for use in a stamp.  The kernel
    /// delays others for `patience`, or without end.
    fn alone_until(&mut self, backing: &dyn Backing, patience: Option<Duration>) -> Instant {
        let now = Instant::now();
        let (Some(seen), Some(patience)) = (self.leased, patience) else {
            return now + MOST;
        };
        let seen = if backing.is_waited_for() { seen } else { now };
        self.leased = Some(seen);
        // The clock of the file system is coarser than this one.
        (seen + patience / 4 * 3).min(now + MOST)
    }
}

/// The content of a stamp that explains changes until then.
fn explains_until(until: Instant) -> Time {
    // `until` is never later than that.
    let age = (Instant::now() + MOST).saturating_duration_since(until);
    let since = (SystemTime::now() - age).duration_since(UNIX_EPOCH).unwrap_or_default();
    (since.as_secs() as i64, since.subsec_nanos())
}
