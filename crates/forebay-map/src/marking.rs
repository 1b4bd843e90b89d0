// SPDX-License-Identifier: MIT OR Apache-2.0
//! What tells others that a file lacks pages, and tells us that others have changed it.
//!
//! The mark: the file bears it from before the first page is dirty until after the last one is
//! in it.  Who makes a page dirty holds `on` for reading meanwhile, so whoever takes the mark
//! away and holds it for writing sees either the page, or that the next one waits for the mark.
//!
//! The stamp, in the file's record: that we change the file from now on, before we do; and when
//! the file was changed last, once that is durable in its file system.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::backing::Backing;
use crate::content::lock;
use crate::error::{Error, Result};
use crate::planted::{self, Planted};
use crate::store::{Stamp, Store, Time};

/// A stamp that explains no change.
const NEVER: Stamp = Stamp::Settled((i64::MIN, 0));
/// For so long a change is waited for that is under way when the file is given up.
const ENDS: Duration = Duration::from_secs(2);
/// After so long a change has another stamp; much less than `CHANGES_FOR`.
const STAMP_LASTS: Duration = Duration::from_secs(1);

/// Of one file.
#[derive(Debug, Default)]
pub(crate) struct Marking {
    on: RwLock<bool>,
    /// The file may bear the mark.  Held while it is set or taken away.
    borne: Mutex<bool>,
    changes: Mutex<Changes>,
    /// Others have changed it: this process changes it no more.
    given_up: AtomicBool,
}

#[derive(Debug, Default)]
struct Changes {
    under_way: usize,
    /// How many there were.
    count: u64,
    /// Of the last stamp, if it says that we change the file.
    stamped: Option<Instant>,
    /// When this process has changed the file last: nobody else could change it by then.
    last: Option<Time>,
}

/// A change that is under way.
#[derive(Debug)]
pub(crate) struct Change<'a>(&'a Mutex<Changes>, &'a dyn Backing);

impl Drop for Change<'_> {
    fn drop(&mut self) {
        let mut changes = lock(self.0);
        changes.under_way -= 1;
        // Asked before it is looked whether others were kept out until then.
        if let (Ok(time), Ok(())) = (self.1.changed(), self.1.check_ours()) {
            changes.last = Some(time);
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

impl Marking {
    /// Makes pages dirty: the file is marked before.
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
        *borne = true;
        of.backing.mark(of.store.claim()).map_err(of.system("mark it as incomplete"))?;
        *self.on.write().unwrap_or_else(PoisonError::into_inner) = true;
        Ok(())
    }

    pub fn is_borne(&self) -> bool {
        *lock(&self.borne)
    }

    /// Takes the mark away, unless the file lacks something.
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
        of.backing.unmark().map_err(of.system("take its mark away"))?;
        *borne = false;
        Ok(())
    }

    /// Before we change the file, until it is dropped.
    pub fn change<'a>(&'a self, of: Of<'a>) -> Result<Change<'a>> {
        let mut changes = lock(&self.changes);
        // The stamp would explain what others have written since they could.
        if let Err(e) = of.backing.check_ours() {
            self.refuse(&mut changes, of);
            return Err(of.system("change")(e));
        }
        if self.is_given_up() {
            let path = of.backing.path().to_owned();
            let why = "others have changed it, so nothing is written to it any more".into();
            return Err(Error::Refused { path, why });
        }
        let lasts = changes.stamped.is_some_and(|at| at.elapsed() < STAMP_LASTS);
        if !lasts && !planted::is(Planted::NotStamped) {
            of.store.set_stamp(of.id, Stamp::Changing(now()))?;
            changes.stamped = Some(Instant::now());
        }
        changes.under_way += 1;
        changes.count += 1;
        Ok(Change(&self.changes, of.backing))
    }

    /// Records when the file was changed last, if nobody changes it now.
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

    /// The file was changed then when it was opened.
    pub fn opened(&self, changed: Time) {
        lock(&self.changes).last = Some(changed);
    }

    /// Whether only this process has changed the file, as far as that is known.
    pub fn is_own(&self, backing: &dyn Backing) -> bool {
        let last = lock(&self.changes).last;
        last.is_some() && backing.changed().ok() == last
    }

    pub fn is_given_up(&self) -> bool {
        self.given_up.load(Ordering::SeqCst)
    }

    /// From now on each change is refused.  The record says when this process has changed the file
    /// last, so that a recovery notices what others have changed.
    pub fn give_up(&self, of: Of<'_>) {
        // None begins.
        self.given_up.store(true, Ordering::SeqCst);
        let begun = Instant::now();
        loop {
            let mut changes = lock(&self.changes);
            if changes.under_way == 0 || begun.elapsed() > ENDS {
                self.refuse(&mut changes, of);
                return;
            }
            drop(changes);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn refuse(&self, changes: &mut Changes, of: Of<'_>) {
        self.given_up.store(true, Ordering::SeqCst);
        if changes.stamped.is_some() {
            // If that fails nothing can be told to a recovery.
            let stamp = changes.last.map_or(NEVER, Stamp::Settled);
            if of.store.set_stamp(of.id, stamp).is_ok() {
                changes.stamped = None;
            }
        }
    }

    /// It turns out that nobody else has changed it.
    pub fn go_on(&self) {
        let _changes = lock(&self.changes);
        self.given_up.store(false, Ordering::SeqCst);
    }
}

fn now() -> (i64, u32) {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (since.as_secs() as i64, since.subsec_nanos())
}
