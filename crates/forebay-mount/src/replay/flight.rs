// SPDX-License-Identifier: MIT OR Apache-2.0
//! Operations that may have been under way at the crash: they are logged, the tree refused
//! them, and the log does not know.  No program was told that they are done, so an operation
//! that the replay cannot do either may be left out.
//!
//! The kernel locks the directories and inodes that an operation changes until it has the
//! answer.  So an operation has ended if a later entry changes any of them.  What remains is
//! the last operation on each, and at most as many as there were threads.

use std::collections::{BTreeMap, HashMap};

use rustix::io::Errno;

use super::history::Place;
use super::plan::Step;
use super::{bad, parse, Result};
use crate::record::{Fid, Record, NONE};

#[derive(Debug, Default)]
struct Operation<'a> {
    locked: Vec<Fid>,
    made: Option<Fid>,
    places: Vec<Place<'a>>,
    content: Option<Fid>,
    attributes: Option<Fid>,
}

impl<'a> Operation<'a> {
    fn of(record: &Record<'a>) -> Option<Operation<'a>> {
        let none = Operation::default();
        Some(match *record {
            Record::Create { dir, name, fid, .. } => {
                Operation { locked: vec![dir], made: Some(fid), places: vec![(dir, name)], ..none }
            }
            Record::Link { fid, dir, name } | Record::Unlink { dir, name, fid } => {
                Operation { locked: vec![dir, fid], places: vec![(dir, name)], ..none }
            }
            Record::Rename { from_dir, from, to_dir, to, fid, replaced, .. } => {
                let mut locked = vec![from_dir, to_dir, fid, replaced];
                locked.retain(|f| *f != NONE);
                Operation { locked, places: vec![(from_dir, from), (to_dir, to)], ..none }
            }
            Record::Truncate { fid, .. } | Record::Allocate { fid, .. } => {
                Operation { locked: vec![fid], content: Some(fid), ..none }
            }
            Record::Attr { fid, .. } | Record::Xattr { fid, .. } => {
                Operation { locked: vec![fid], attributes: Some(fid), ..none }
            }
            _ => return None,
        })
    }

    /// Joins the records of one operation: the tree does all of them or none.
    fn and(mut self, other: Operation<'a>) -> Operation<'a> {
        // No one else has the inode that the operation makes.
        let made = self.made.or(other.made);
        self.locked.extend(other.locked);
        self.locked.retain(|fid| Some(*fid) != made);
        self.locked.sort_unstable();
        self.locked.dedup();
        self.places.extend(other.places);
        Operation {
            made,
            content: self.content.or(other.content),
            attributes: self.attributes.or(other.attributes),
            ..self
        }
    }

    /// Whether the step would carry out this operation.
    fn is_of(&self, step: &Step<'_>) -> bool {
        match *step {
            Step::Make(fid) => self.made == Some(fid),
            Step::Content(fid) => self.content == Some(fid),
            Step::Attributes(fid) => self.attributes == Some(fid),
            Step::Stage(_, place)
            | Step::Unlink(place)
            | Step::RemoveDirectory(place)
            | Step::Put(_, place)
            | Step::Link(_, place) => self.places.contains(&place),
            Step::Aside(_) | Step::Find(_) | Step::Salvage(_) | Step::Discard(..) => false,
        }
    }
}

/// The operations by the numbers of their entries.
///
/// An operation ends every earlier one that has an inode in common with it.  So at most one
/// operation locks each inode, and an index by inode finds it.  The time is linear in the
/// records of the log.
#[derive(Debug, Default)]
pub struct InFlight<'a> {
    left: BTreeMap<u64, Operation<'a>>,
    /// The operation that has locked an inode.
    locked_by: HashMap<Fid, u64>,
    /// The operation that makes an inode.
    made_by: HashMap<Fid, u64>,
    /// Operations and locks that were added or removed, for the test of how this grows.
    #[cfg_attr(not(test), allow(dead_code))]
    steps: u64,
}

impl<'a> InFlight<'a> {
    pub fn of(entries: &'a [Vec<u8>]) -> Result<InFlight<'a>> {
        let mut flight = InFlight::default();
        for body in entries {
            let entry = parse(body)?;
            let mut whole: Option<Operation<'a>> = None;
            for record in entry.records() {
                let record = bad(entry.number, record)?;
                match record {
                    Record::Void { number } => flight.end(number),
                    // The inode has a handle, so it was made.
                    Record::Bind { fid, .. } => {
                        if let Some(number) = flight.made_by.get(&fid).copied() {
                            flight.end(number);
                        }
                    }
                    // A sync of a file waits for changes of its size or its blocks.
                    Record::Data { fid, .. } | Record::Synced { fid } => {
                        let number = flight.locked_by.get(&fid).copied();
                        let content = |n: &u64| flight.left[n].content == Some(fid);
                        if let Some(number) = number.filter(content) {
                            flight.end(number);
                        }
                    }
                    _ => {}
                }
                if let Some(operation) = Operation::of(&record) {
                    whole = Some(whole.unwrap_or_default().and(operation));
                }
            }
            if let Some(operation) = whole {
                flight.begin(entry.number, operation);
            }
        }
        Ok(flight)
    }

    fn begin(&mut self, number: u64, operation: Operation<'a>) {
        self.end(number);
        for fid in &operation.locked {
            if let Some(earlier) = self.locked_by.get(fid).copied() {
                self.end(earlier);
            }
        }
        self.steps += 1 + operation.locked.len() as u64;
        self.locked_by.extend(operation.locked.iter().map(|fid| (*fid, number)));
        self.made_by.extend(operation.made.map(|fid| (fid, number)));
        self.left.insert(number, operation);
    }

    /// Removes an operation that has ended or never happened.
    fn end(&mut self, number: u64) {
        let Some(operation) = self.left.remove(&number) else { return };
        self.steps += 1 + operation.locked.len() as u64;
        for fid in operation.locked {
            if self.locked_by.get(&fid) == Some(&number) {
                self.locked_by.remove(&fid);
            }
        }
        if let Some(fid) = operation.made.filter(|fid| self.made_by.get(fid) == Some(&number)) {
            self.made_by.remove(&fid);
        }
    }

    #[cfg(test)]
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// The entry whose operation this step would carry out.
    pub fn of_step(&self, step: &Step<'_>) -> Option<u64> {
        self.left.iter().rev().find(|(_, o)| o.is_of(step)).map(|(number, _)| *number)
    }
}

/// Why a tree may refuse an operation that it refused before the crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The refusal depends neither on space nor on how the tree is mounted, so it was the same
    /// before the crash, and no program was told that the operation is done.
    ForGood,
    /// Unknown: there may be less space or fewer rights now.
    Perhaps,
}

pub fn refusal(step: &Step<'_>, cause: Errno) -> Option<Refusal> {
    let of_inode = matches!(step, Step::Content(_) | Step::Attributes(_));
    match cause {
        Errno::MLINK | Errno::NAMETOOLONG | Errno::FBIG => Some(Refusal::ForGood),
        Errno::OPNOTSUPP if matches!(step, Step::Content(_)) => Some(Refusal::ForGood),
        Errno::NOSPC | Errno::DQUOT | Errno::PERM | Errno::ACCESS | Errno::OPNOTSUPP => {
            Some(Refusal::Perhaps)
        }
        Errno::INVAL | Errno::RANGE | Errno::TOOBIG | Errno::TXTBSY if of_inode => {
            Some(Refusal::Perhaps)
        }
        _ => None,
    }
}
