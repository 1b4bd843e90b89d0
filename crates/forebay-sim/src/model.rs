// SPDX-License-Identifier: MIT OR Apache-2.0
//! The model: the values that each sector of a volume may read as.
//!
//! Values are unique, so the test for a linearizable register of Gibbons and
//! Korach is exact: the operations on one value span a zone, from the earliest
//! end to the latest start among them (forward) or the other way round
//! (backward); a history is linearizable when no two forward zones overlap and
//! no backward zone lies within a forward one.  Time is a tick that grows with
//! each event.
//!
//! A write in flight at a crash may have happened before the crash or never:
//! it is a ghost until it is seen, and ends at the crash.
//!
//! A write or zeroing that bypassed the cache depends on the disk until a flush: when the disk
//! loses its power, it may be gone, even if it was acknowledged and seen.
//!
//! Zeroes are not unique, and a discard may be ignored, which shows the discarded data and
//! nothing older: both are judged by whether some write explains the read.

use crate::pattern::ZERO;

pub const NEVER: u64 = u64::MAX;

/// Ticks, generously.
const SLOWEST_READ: u64 = 3000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Data,
    /// Reads as zeroes.
    Zero,
    /// Zeroes, or what was there before: a discard that the origin may ignore.
    Discard,
}

#[derive(Clone, Debug)]
struct Value {
    id: u64,
    kind: Kind,
    start: u64,
    first_end: u64,
    last_start: u64,
    ghost: bool,
    /// Its client was told that it is done.
    acknowledged: bool,
    /// It went past the cache and was not flushed since: when it was
    /// acknowledged, or NEVER.
    volatile: Option<u64>,
}

impl Value {
    fn new(id: u64, kind: Kind, start: u64, first_end: u64) -> Self {
        let (last_start, acknowledged) = (start, first_end != NEVER);
        Self { id, kind, start, first_end, last_start, ghost: false, acknowledged, volatile: None }
    }

    /// Nobody waits for it any more.
    fn fade(&mut self, now: u64) {
        self.ghost |= self.first_end == NEVER;
        self.first_end = self.first_end.min(now);
        self.volatile = self.volatile.map(|at| at.min(now));
    }

    fn zone(&self, read: Option<(u64, u64)>) -> (u64, u64) {
        let (start, end) = read.unwrap_or((0, NEVER));
        (self.first_end.min(end), self.last_start.max(start))
    }
}

fn clash(a: (u64, u64), b: (u64, u64)) -> bool {
    let within = |inner: (u64, u64), outer: (u64, u64)| outer.0 < inner.1 && inner.0 < outer.1;
    match (a.0 < a.1, b.0 < b.1) {
        (true, true) => a.0.max(b.0) < a.1.min(b.1),
        (true, false) => within(b, a),
        (false, true) => within(a, b),
        (false, false) => false,
    }
}

/// The history of one sector.
#[derive(Clone, Debug, Default)]
pub struct Sector {
    values: Vec<Value>,
    /// The sector's damage is known: it may answer EIO until overwritten.
    tainted: Option<u64>,
    /// Older data may show to reads that begin by then: entries were lost and
    /// accepted as lost.
    anything_until: Option<u64>,
}

impl Sector {
    pub fn new(id: u64) -> Self {
        let kind = if id == ZERO { Kind::Zero } else { Kind::Data };
        Self { values: vec![Value::new(id, kind, 0, 0)], ..Self::default() }
    }

    pub fn write_begin(&mut self, id: u64, kind: Kind, now: u64) {
        if self.values.len() > 48 {
            self.prune();
        }
        self.values.push(Value::new(id, kind, now, NEVER));
    }

    pub fn write_end(&mut self, id: u64, now: u64) {
        let Some(v) = self.values.iter_mut().find(|v| v.id == id) else { return };
        v.first_end = v.first_end.min(now);
        v.acknowledged = true;
        v.volatile = v.volatile.map(|at| at.min(now));
        if v.kind != Kind::Discard {
            // If a power cut undoes it, the older value shows again.
            if self.anything_until == Some(NEVER) && v.volatile.is_none() {
                self.anything_until = Some(now);
            }
            if self.tainted.is_some_and(|at| at < v.start) {
                self.tainted = None;
            }
        }
    }

    /// The write never happened: the engine refused it before it had effects.
    pub fn write_cancel(&mut self, id: u64) {
        self.values.retain(|v| v.id != id);
    }

    /// The write came to the origin, past the cache.
    pub fn write_bypassed(&mut self, id: u64) {
        if let Some(v) = self.values.iter_mut().find(|v| v.id == id) {
            v.volatile = Some(NEVER);
        }
    }

    /// The write was made durable before its acknowledgement.
    pub fn write_flushed(&mut self, id: u64) {
        self.values.iter_mut().filter(|v| v.id == id).for_each(|v| v.volatile = None);
    }

    /// The write failed: it has happened by now, or never will.
    pub fn write_fail(&mut self, id: u64, now: u64) {
        self.values.iter_mut().filter(|v| v.id == id).for_each(|v| v.fade(now));
    }

    /// A flush that began at `start` was acknowledged.
    pub fn flushed(&mut self, start: u64) {
        for v in self.values.iter_mut().filter(|v| v.volatile.is_some_and(|at| at <= start)) {
            v.volatile = None;
            if self.anything_until == Some(NEVER) && v.kind != Kind::Discard && !v.ghost {
                self.anything_until = Some(start);
            }
        }
    }

    /// The disk lost its power, and with it any of what was not flushed.
    pub fn lose_volatile(&mut self) {
        for v in self.values.iter_mut().filter(|v| v.volatile.is_some()) {
            v.ghost = true;
        }
    }

    /// When that was acknowledged which was not flushed, and may be gone.
    pub fn lost(&self) -> impl Iterator<Item = u64> + '_ {
        let gone = |v: &&Value| v.kind != Kind::Discard && v.ghost && v.acknowledged;
        self.values.iter().filter(gone).filter_map(|v| v.volatile).filter(|at| *at != NEVER)
    }

    pub fn taint(&mut self, now: u64) {
        self.tainted = Some(now);
    }

    pub fn may_be_lost(&self) -> bool {
        self.tainted.is_some()
    }

    /// For a read that began at `start`.
    pub fn accepts_anything(&self, start: u64) -> bool {
        self.anything_until.is_some_and(|end| start <= end)
    }

    pub fn accept_anything(&mut self) {
        self.anything_until = Some(NEVER);
    }

    /// Power is gone: requests in flight may have happened, but not later on.
    pub fn crash(&mut self, now: u64) {
        self.values.iter_mut().filter(|v| v.first_end == NEVER).for_each(|v| v.fade(now));
        for v in &mut self.values {
            v.volatile = v.volatile.map(|at| at.min(now));
        }
    }

    fn fits(&self, at: usize, start: u64, end: u64) -> bool {
        let v = &self.values[at];
        if v.start > end {
            return false;
        }
        let zone = v.zone(Some((start, end)));
        self.values.iter().enumerate().all(|(i, u)| {
            i == at || u.ghost || u.kind == Kind::Discard || !clash(zone, u.zone(None))
        })
    }

    /// A read that began at `start` and ended at `end` returned `id`.
    pub fn read(&mut self, id: u64, start: u64, end: u64) -> Result<(), String> {
        if self.accepts_anything(start) {
            return Ok(());
        }
        let candidates: Vec<usize> = (0..self.values.len())
            .filter(|&i| match self.values[i].kind {
                Kind::Data => self.values[i].id == id,
                Kind::Zero | Kind::Discard => id == ZERO,
            })
            .filter(|&i| self.fits(i, start, end))
            .collect();
        match candidates[..] {
            [] => Err(self.explain(id)),
            [one] if self.values[one].kind != Kind::Discard => {
                let v = &mut self.values[one];
                (v.first_end, v.last_start) = v.zone(Some((start, end)));
                v.ghost = false;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn explain(&self, id: u64) -> String {
        let list = |v: &Value| {
            let end = if v.first_end == NEVER { "..".into() } else { v.first_end.to_string() };
            let ghost = if v.ghost { " in flight at a crash" } else { "" };
            format!("{} {:?} [{}, {end}] seen {}{ghost}", v.id, v.kind, v.start, v.last_start)
        };
        let tail: Vec<String> = self.values.iter().rev().take(8).map(list).collect();
        format!("read {id}; newest writes: {}", tail.join("; "))
    }

    /// Drops values that no read could return any more without an error: they
    /// then are unknown, which is an error as well.  No read takes longer than
    /// SLOWEST_READ.
    fn prune(&mut self) {
        let horizon = self
            .values
            .iter()
            .filter(|v| !v.ghost && v.kind != Kind::Discard && v.first_end != NEVER)
            .map(|v| v.first_end.min(v.last_start))
            .max()
            .unwrap_or(0)
            .saturating_sub(SLOWEST_READ);
        self.values.retain(|v| v.first_end.max(v.last_start) >= horizon);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two_writes() -> Sector {
        let mut s = Sector::new(1);
        s.write_begin(2, Kind::Data, 10);
        s.write_end(2, 20);
        s
    }

    #[test]
    fn an_acknowledged_write_is_never_undone() {
        let mut s = two_writes();
        assert!(s.clone().read(1, 30, 31).is_err());
        assert!(s.clone().read(1, 15, 31).is_ok());
        assert!(s.read(2, 30, 31).is_ok());
        assert!(s.read(3, 32, 33).is_err());
    }

    #[test]
    fn what_a_power_cut_undoes_shows_what_is_under_it() {
        let mut s = two_writes();
        s.accept_anything();
        s.write_begin(3, Kind::Data, 30);
        s.write_bypassed(3);
        s.write_end(3, 40);
        s.lose_volatile();
        s.flushed(45);
        assert!(s.read(1, 50, 51).is_ok());
        s.write_begin(4, Kind::Data, 60);
        s.write_bypassed(4);
        s.write_end(4, 70);
        s.flushed(75);
        s.lose_volatile();
        assert!(s.clone().read(1, 80, 81).is_err());
        assert!(s.read(4, 80, 81).is_ok());
    }

    #[test]
    fn what_was_seen_stays() {
        let mut s = Sector::new(1);
        s.write_begin(2, Kind::Data, 10);
        assert!(s.read(2, 11, 12).is_ok());
        assert!(s.clone().read(1, 13, 14).is_err(), "back in time");
        s.crash(15);
        assert!(s.clone().read(2, 20, 21).is_ok());
        assert!(s.read(1, 20, 21).is_err());
    }

    #[test]
    fn in_flight_at_a_crash_is_all_or_nothing_for_good() {
        let mut s = Sector::new(1);
        s.write_begin(2, Kind::Data, 10);
        s.crash(15);
        let mut old = s.clone();
        assert!(old.read(1, 20, 21).is_ok());
        assert!(old.read(2, 22, 23).is_err(), "came back after it was gone");
        assert!(s.read(2, 20, 21).is_ok());
        assert!(s.read(1, 22, 23).is_err());
    }

    #[test]
    fn a_bypassed_write_is_the_disks_until_a_flush() {
        let mut s = two_writes();
        s.write_begin(3, Kind::Data, 30);
        s.write_bypassed(3);
        s.write_end(3, 35);
        assert!(s.clone().read(2, 36, 37).is_err(), "acknowledged, and no power cut");
        assert!(s.read(3, 36, 37).is_ok());
        let mut early = s.clone();
        early.flushed(34);
        early.lose_volatile();
        assert!(early.clone().read(3, 40, 41).is_ok());
        assert!(early.clone().read(1, 40, 41).is_err(), "older than what was durable");
        assert!(early.read(2, 40, 41).is_ok());
        assert!(early.read(3, 42, 43).is_err(), "came back after it was gone");
        s.flushed(36);
        s.lose_volatile();
        assert!(s.clone().read(2, 40, 41).is_err(), "flushed");
        assert!(s.read(3, 40, 41).is_ok());
    }

    #[test]
    fn only_what_was_acknowledged_is_a_loss_to_tell() {
        let mut s = two_writes();
        s.write_begin(3, Kind::Data, 30);
        s.write_bypassed(3);
        let mut failed = s.clone();
        failed.write_fail(3, 35);
        failed.lose_volatile();
        assert_eq!(failed.lost().count(), 0, "its client was told");
        s.write_end(3, 35);
        s.lose_volatile();
        assert_eq!(s.lost().collect::<Vec<_>>(), [35]);
    }

    #[test]
    fn a_failed_write_has_happened_or_never_will() {
        let mut s = two_writes();
        s.write_begin(3, Kind::Data, 30);
        s.write_fail(3, 35);
        let mut old = s.clone();
        assert!(old.read(2, 40, 41).is_ok());
        assert!(old.read(3, 42, 43).is_err());
        assert!(s.read(3, 40, 41).is_ok());
        assert!(s.read(2, 42, 43).is_err());
    }

    #[test]
    fn zeroes_and_discards() {
        let mut s = two_writes();
        s.write_begin(3, Kind::Zero, 30);
        assert!(s.read(2, 31, 32).is_ok());
        s.write_end(3, 33);
        assert!(s.clone().read(2, 40, 41).is_err());
        assert!(s.read(ZERO, 40, 41).is_ok());
        s.write_begin(4, Kind::Discard, 50);
        s.write_end(4, 51);
        assert!(s.read(ZERO, 60, 61).is_ok());
        assert!(s.read(1, 62, 63).is_err(), "older than what it discarded");
        s.write_begin(5, Kind::Data, 70);
        s.write_end(5, 71);
        s.write_begin(6, Kind::Discard, 80);
        s.write_end(6, 81);
        assert!(s.read(5, 90, 91).is_ok(), "the origin may ignore a discard");
        assert!(s.read(9, 92, 93).is_err());
    }

    #[test]
    fn pruning_keeps_the_answers() {
        let mut s = Sector::new(1);
        for i in 0..200 {
            s.write_begin(i + 2, Kind::Data, i * 1000 + 10);
            s.write_end(i + 2, i * 1000 + 15);
        }
        assert!(s.values.len() < 60);
        assert!(s.clone().read(200, 300_000, 300_001).is_err());
        assert!(s.clone().read(200, 198_100, 300_001).is_ok(), "a slow read");
        assert!(s.read(201, 300_000, 300_001).is_ok());
    }

    #[test]
    fn given_up_losses_may_show_until_a_write_ends() {
        let mut s = two_writes();
        s.accept_anything();
        assert!(s.read(1, 30, 31).is_ok());
        s.write_begin(3, Kind::Data, 40);
        s.write_end(3, 50);
        assert!(s.read(1, 45, 60).is_ok(), "it began before");
        assert!(s.read(1, 51, 60).is_err());
    }

    #[test]
    fn taint_lasts_until_a_later_write() {
        let mut s = two_writes();
        s.taint(30);
        assert!(s.may_be_lost());
        s.write_begin(3, Kind::Data, 31);
        s.write_end(3, 32);
        assert!(!s.may_be_lost());
    }
}
