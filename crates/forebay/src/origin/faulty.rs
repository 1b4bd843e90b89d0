// SPDX-License-Identifier: MIT OR Apache-2.0
//! An origin that fails and delays as told, for tests.

use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use rustix::io::Errno;

use super::{Extent, Origin};
use crate::mark::MarkedBy;
use crate::report::OriginInfo;

/// The operation that fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultOp {
    Read,
    /// Writes, zeroes and discards.
    Write,
    Flush,
}

#[derive(Debug, Default)]
struct Plan {
    /// Calls so far.
    calls: u64,
    /// Calls of these numbers fail, from 1: [first, end).
    fail: Option<(u64, u64)>,
    failed: u64,
    delay: Duration,
}

/// The switches of a [`FaultyOrigin`]; clones are the same switches.
#[derive(Clone, Debug, Default)]
pub struct Faults(
    Arc<Mutex<[Plan; 3]>>,
    Arc<Mutex<Option<Range<u64>>>>,
    Arc<Mutex<Vec<Range<u64>>>>,
);

impl Faults {
    /// Reads of any of these bytes fail, until [`repair`](Faults::repair).
    pub fn break_reads_of(&self, bytes: Range<u64>) {
        *self.1.lock().unwrap_or_else(|e| e.into_inner()) = Some(bytes);
    }

    fn read(&self, offset: u64, len: u64) -> io::Result<()> {
        self.call(FaultOp::Read)?;
        let bad = self.1.lock().unwrap_or_else(|e| e.into_inner());
        match &*bad {
            Some(bad) if offset < bad.end && bad.start < offset + len => Err(Errno::IO.into()),
            _ => Ok(()),
        }
    }

    /// Writes, zeroes and discards of any of these bytes fail, too, until
    /// [`repair`](Faults::repair).
    pub fn break_writes_of(&self, bytes: Range<u64>) {
        self.2.lock().unwrap_or_else(|e| e.into_inner()).push(bytes);
    }

    fn write(&self, offset: u64, len: u64) -> io::Result<()> {
        self.call(FaultOp::Write)?;
        let bad = self.2.lock().unwrap_or_else(|e| e.into_inner());
        match bad.iter().any(|bad| offset < bad.end && bad.start < offset + len) {
            true => {
                self.plans()[FaultOp::Write as usize].failed += 1;
                Err(Errno::IO.into())
            }
            false => Ok(()),
        }
    }

    fn plans(&self) -> MutexGuard<'_, [Plan; 3]> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Fails the n-th call from now (1: the next), and so many in all.
    pub fn fail(&self, op: FaultOp, nth: u64, times: u64) {
        let plan = &mut self.plans()[op as usize];
        let first = plan.calls + nth.max(1);
        plan.fail = Some((first, first.saturating_add(times)));
    }

    /// Fails everything but reads, until [`repair`](Faults::repair).
    pub fn break_writes(&self) {
        self.fail(FaultOp::Write, 1, u64::MAX);
        self.fail(FaultOp::Flush, 1, u64::MAX);
    }

    /// No more failures.
    pub fn repair(&self) {
        for plan in self.plans().iter_mut() {
            plan.fail = None;
        }
        *self.1.lock().unwrap_or_else(|e| e.into_inner()) = None;
        self.2.lock().unwrap_or_else(|e| e.into_inner()).clear();
    }

    /// Each call takes so much longer.
    pub fn delay(&self, op: FaultOp, delay: Duration) {
        self.plans()[op as usize].delay = delay;
    }

    /// Calls so far.
    pub fn calls(&self, op: FaultOp) -> u64 {
        self.plans()[op as usize].calls
    }

    /// Calls that were failed so far.
    pub fn failed(&self, op: FaultOp) -> u64 {
        self.plans()[op as usize].failed
    }

    fn call(&self, op: FaultOp) -> io::Result<()> {
        let mut plans = self.plans();
        let plan = &mut plans[op as usize];
        plan.calls += 1;
        let fails = plan.fail.is_some_and(|(first, end)| (first..end).contains(&plan.calls));
        plan.failed += u64::from(fails);
        let delay = plan.delay;
        drop(plans);
        if !delay.is_zero() {
            std::thread::sleep(delay);
        }
        match fails {
            true => Err(Errno::IO.into()),
            false => Ok(()),
        }
    }
}

/// An origin that fails with EIO, and delays, as its [`Faults`] say.  A write
/// that fails has changed nothing.
#[derive(Debug)]
pub struct FaultyOrigin {
    inner: Box<dyn Origin>,
    faults: Faults,
}

impl FaultyOrigin {
    pub fn new(inner: Box<dyn Origin>) -> (FaultyOrigin, Faults) {
        let faults = Faults::default();
        (FaultyOrigin { inner, faults: faults.clone() }, faults)
    }
}

impl Origin for FaultyOrigin {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }

    fn logical_block(&self) -> u32 {
        self.inner.logical_block()
    }

    fn identity(&self) -> String {
        self.inner.identity()
    }

    fn away(&self) -> Option<String> {
        self.inner.away()
    }

    fn give_up(&self) {
        self.inner.give_up();
    }

    fn twin(&self) -> Option<String> {
        self.inner.twin()
    }

    fn changed(&self) -> Option<String> {
        self.inner.changed()
    }

    fn is_gone(&self) -> bool {
        self.inner.is_gone()
    }

    fn is_shorter(&self) -> Option<bool> {
        self.inner.is_shorter()
    }

    fn marked_by(&self) -> Option<MarkedBy<'_>> {
        self.inner.marked_by()
    }

    fn info(&self) -> OriginInfo {
        OriginInfo { note: "faults are injected".into(), ..self.inner.info() }
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.faults.read(offset, buf.len() as u64)?;
        self.inner.read_at(buf, offset)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.faults.write(offset, data.len() as u64)?;
        self.inner.write_at(data, offset)
    }

    fn flush(&self) -> io::Result<()> {
        self.faults.call(FaultOp::Flush)?;
        self.inner.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.faults.write(offset, len)?;
        self.inner.discard(offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> io::Result<()> {
        self.faults.write(offset, len)?;
        self.inner.write_zeroes(offset, len)
    }

    fn allocate_zeroes(&self, offset: u64, len: u64) -> io::Result<()> {
        self.faults.write(offset, len)?;
        self.inner.allocate_zeroes(offset, len)
    }

    fn extents(&self, offset: u64, len: u64) -> Vec<Extent> {
        self.inner.extents(offset, len)
    }

    /// None, so that every write passes here.
    fn uring_fd(&self, _offset: u64, _len: u64) -> Option<BorrowedFd<'_>> {
        None
    }
}
