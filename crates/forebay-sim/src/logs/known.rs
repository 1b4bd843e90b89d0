// SPDX-License-Identifier: MIT OR Apache-2.0
//! The known state of a log at one place of a run: the entries that a replay after a cut there must
//! hand out, and those that it must not.

use std::collections::BTreeSet;

use forebay_engine::logs::Header;
use forebay_engine::sys;
use serde::Serialize;

use super::script::Mark;

#[derive(Clone, Debug, Default, Serialize)]
pub struct Explored {
    pub scripts: u64,
    pub cuts: u64,
    pub nested_cuts: u64,
    pub images: u64,
    pub distinct: u64,
    pub replayed: u64,
    /// Entries never acknowledged that were there all the same.
    pub unacknowledged: u64,
    /// Entries that came again since their header is embedded.
    pub again: u64,
    /// Claims that were refused, with a header of before the period.
    pub stale: u64,
}

impl Explored {
    pub fn add(&mut self, o: &Self) {
        self.scripts += o.scripts;
        self.cuts += o.cuts;
        self.nested_cuts += o.nested_cuts;
        self.images += o.images;
        self.distinct += o.distinct;
        self.replayed += o.replayed;
        self.unacknowledged += o.unacknowledged;
        self.again += o.again;
        self.stale += o.stale;
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub id: u64,
    pub txg: u64,
    pub acknowledged: bool,
}

/// The state of a log at a place in the trace.
#[derive(Clone, Debug, Default)]
pub(crate) struct Known {
    pub consumer: bool,
    pub entries: Vec<Entry>,
    /// The highest txg of a sync that has ended, and of one that has begun.
    pub synced: u64,
    pub syncing: u64,
    pub ending: bool,
    pub effects: BTreeSet<u64>,
    pub last_effect: Option<u64>,
    pub header: Header,
    /// Ends of earlier periods, as its consumer had stored them.
    pub ends: Vec<Header>,
    /// Headers that it had stored before a period was released.
    pub stale: Vec<Header>,
    /// It has made a call that shows that it has stored a header of this period.
    pub stored: bool,
}

impl Known {
    pub(crate) fn apply(&mut self, mark: &Mark) {
        match mark {
            Mark::Begin { id, txg, .. } => {
                self.entries.push(Entry { id: *id, txg: *txg, acknowledged: false });
            }
            Mark::End { id, .. } => {
                self.entries.iter_mut().filter(|e| e.id == *id).for_each(|e| e.acknowledged = true);
            }
            Mark::Syncing { txg, .. } => self.syncing = *txg,
            Mark::Synced { txg, .. } => {
                self.stored |= *txg > self.header.at.synced;
                self.synced = *txg;
            }
            Mark::Ending { .. } => self.ending = true,
            Mark::Released { header, .. } => self.stale.push(*header),
            Mark::Ended { .. } => {
                self.ending = false;
                self.entries.clear();
                self.effects.clear();
                self.last_effect = None;
            }
            Mark::Effect { id, .. } => self.effect(*id),
            Mark::Stored { header, effect, .. } => {
                if self.header.guid != header.guid {
                    self.ends = vec![
                        Header::default(),
                        Header { at: <_>::default(), state: sys::FBY_LOG_NONE, ..self.header },
                    ];
                    self.stored = false;
                }
                self.stored |= header.state == sys::FBY_LOG_REPLAYING;
                self.header = *header;
                effect.iter().for_each(|id| self.effect(*id));
            }
        }
    }

    fn effect(&mut self, id: u64) {
        self.effects.insert(id);
        self.last_effect = Some(id);
    }

    /// Is there an entry that a replay has to hand out?
    pub(crate) fn owed(&self) -> impl Iterator<Item = u64> + '_ {
        self.entries
            .iter()
            .filter(|e| e.acknowledged && e.txg > self.syncing && !self.effects.contains(&e.id))
            .map(|e| e.id)
    }

    pub(crate) fn judge(
        &self,
        replayed: &[u64],
        none: bool,
        out: &mut Explored,
    ) -> Result<(), String> {
        if none {
            let owed = self.owed().next().filter(|_| !self.ending && !self.consumer);
            return owed
                .map_or(Ok(()), |id| Err(format!("the log is gone, and with it entry {id}")));
        }
        let mut seen = BTreeSet::new();
        for (i, id) in replayed.iter().enumerate() {
            let Some(entry) = self.entries.iter().find(|e| e.id == *id) else {
                return Err(format!("entry {id} was replayed, which is none of this period"));
            };
            if !seen.insert(id) {
                return Err(format!("entry {id} was replayed twice"));
            }
            if entry.txg <= self.synced {
                return Err(format!("entry {id} of txg {} is obsolete", entry.txg));
            }
            if self.effects.contains(id) {
                if self.consumer || i > 0 || self.last_effect != Some(*id) {
                    return Err(format!("entry {id} was replayed again"));
                }
                out.again += 1;
            }
            out.unacknowledged += u64::from(!entry.acknowledged);
        }
        out.replayed += replayed.len() as u64;
        match self.owed().find(|id| !seen.contains(id)) {
            Some(id) => Err(format!("entry {id} was acknowledged and not replayed")),
            None => Ok(()),
        }
    }
}

pub(crate) fn log_of(mark: &Mark) -> usize {
    match mark {
        Mark::Begin { log, .. }
        | Mark::End { log, .. }
        | Mark::Syncing { log, .. }
        | Mark::Synced { log, .. }
        | Mark::Ending { log }
        | Mark::Ended { log }
        | Mark::Released { log, .. }
        | Mark::Effect { log, .. }
        | Mark::Stored { log, .. } => *log,
    }
}
