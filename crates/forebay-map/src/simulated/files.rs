// SPDX-License-Identifier: MIT OR Apache-2.0
//! The files of the simulated machine.

use std::io;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use forebay::{FoundMark, MapClaim};

use super::{Disk, Machine, Random};
use crate::backing::{Backing, Time};
use crate::locked::lock;
use crate::pages::PAGE;
use crate::planted::{self, Planted};

pub(super) const PATHS: [&str; 2] = ["/simulated/a", "/simulated/b"];

#[derive(Debug)]
pub(super) struct Disked(pub Arc<Machine>, pub usize);

impl Disked {
    fn disk(&self) -> MutexGuard<'_, Disk> {
        lock(&self.0.disks[self.1])
    }

    fn check_rights(&self) -> io::Result<()> {
        match self.0.no_rights.load(Ordering::SeqCst) {
            true => Err(io::Error::from_raw_os_error(libc::EACCES)),
            false => Ok(()),
        }
    }
}

impl Backing for Disked {
    fn path(&self) -> &Path {
        Path::new(PATHS[self.1])
    }

    fn identity(&self) -> &[u8] {
        PATHS[self.1].as_bytes()
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.disk().now.len() as u64)
    }

    fn read_at(&self, at: u64, to: &mut [u8]) -> io::Result<usize> {
        self.0.fails_io()?;
        let disk = self.disk();
        let from = disk.now.get(at as usize..).unwrap_or(&[]);
        let n = from.len().min(to.len());
        to[..n].copy_from_slice(&from[..n]);
        Ok(n)
    }

    fn write_at(&self, at: u64, from: &[u8]) -> io::Result<()> {
        if from.is_empty() {
            return Ok(());
        }
        while self.0.slow_write.load(Ordering::SeqCst) == at / PAGE as u64 {
            self.0.stalled.store(true, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(1));
        }
        let mut fault = self.0.fault();
        let bad = lock(&self.0.faults).page;
        if (at / PAGE as u64..(at + from.len() as u64).div_ceil(PAGE as u64)).contains(&bad) {
            return Err(io::Error::other("fails as ordered"));
        }
        // A write covers whole sectors.
        let part = |r: &mut Random| r.below(from.len() as u64) as usize & !511;
        let part = fault.as_mut().map_or(from.len(), part);
        let from = &from[..part];
        let _world = self.0.world();
        self.0.call();
        let mut disk = self.disk();
        let blocks = at / PAGE as u64..(at + from.len() as u64).div_ceil(PAGE as u64);
        if disk.full && blocks.clone().any(|b| !disk.has_blocks.contains(&b)) {
            return Err(io::Error::from(io::ErrorKind::StorageFull));
        }
        disk.has_blocks.extend(blocks.clone());
        disk.unsynced.extend(blocks);
        let end = at as usize + from.len();
        if disk.now.len() < end {
            disk.now.resize(end, 0);
        }
        disk.now[at as usize..end].copy_from_slice(from);
        disk.change();
        match fault {
            Some(_) => Err(io::Error::other("fails as ordered")),
            None => Ok(()),
        }
    }

    fn sync(&self) -> io::Result<()> {
        while self.0.stall.load(Ordering::SeqCst) {
            self.0.stalled.store(true, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(1));
        }
        let ordered = std::mem::take(&mut lock(&self.0.faults).sync);
        let fault = self.0.fault().or(ordered.then_some(Random(1)));
        let _world = self.0.world();
        self.0.call();
        let mut disk = self.disk();
        if let Some(mut random) = fault {
            let size = disk.durable.len();
            disk.make_durable(|_| random.below(2) == 0);
            if disk.now.len() > size {
                disk.durable.truncate(size);
            }
            return Err(io::Error::other("fails as ordered"));
        }
        disk.syncs += 1;
        disk.make_durable(|_| true);
        disk.durable_blocks = disk.has_blocks.clone();
        Ok(())
    }

    fn sync_all(&self) -> io::Result<()> {
        self.sync()?;
        let mut disk = self.disk();
        disk.durable_changed = disk.changed;
        disk.durable_mark = disk.mark.clone();
        Ok(())
    }

    fn changed(&self) -> io::Result<Time> {
        let mut disk = self.disk();
        disk.asked += 1;
        Ok(disk.changed)
    }

    fn check_ours(&self) -> io::Result<()> {
        match self.0.revoked.load(Ordering::SeqCst) {
            true => Err(io::Error::other("the lease is revoked, as ordered")),
            false => Ok(()),
        }
    }

    fn is_waited_for(&self) -> bool {
        self.0.waits.load(Ordering::SeqCst)
    }

    fn marked(&self) -> io::Result<FoundMark> {
        let mark = self.disk().mark.clone();
        Ok(mark.map_or(FoundMark::Nothing, |mark| FoundMark::Marked(Box::new(mark))))
    }

    fn mark_directory(&self) -> Option<&Path> {
        None
    }

    fn set_mark(&self, by: &MapClaim) -> io::Result<()> {
        self.0.call();
        self.check_rights()?;
        if self.0.no_marks.load(Ordering::SeqCst) {
            return Err(io::Error::from(io::ErrorKind::StorageFull));
        }
        let mut disk = self.disk();
        disk.mark = Some(by.mark("the one file"));
        disk.marks += 1;
        Ok(())
    }

    fn take_mark(&self) -> io::Result<()> {
        self.0.call();
        self.check_rights()?;
        self.disk().mark = None;
        Ok(())
    }

    fn sync_mark(&self) -> io::Result<()> {
        if self.0.marks_elsewhere.load(Ordering::SeqCst) {
            let mut disk = self.disk();
            disk.durable_mark = disk.mark.clone();
            return Ok(());
        }
        let fails = lock(&self.0.faults).mark_sync.take();
        if fails.is_some() {
            self.0.fail_sync();
        }
        let synced = self.sync_all().map_err(|e| fails.map_or(e, io::Error::from_raw_os_error));
        match planted::is(Planted::MarkSyncJudged) {
            true => synced,
            false => synced.map_err(forebay::of_mark_sync),
        }
    }

    fn set_size(&self, size: u64) -> io::Result<()> {
        self.0.resize_slowly();
        self.0.fails_io()?;
        if std::mem::take(&mut lock(&self.0.faults).resize) {
            return Err(io::Error::other("fails as ordered"));
        }
        let _world = self.0.world();
        self.0.call();
        let mut disk = self.disk();
        let old = disk.now.len() as u64;
        disk.now.resize(size as usize, 0);
        // The rest of a page that is cut is zero, and so is everything after it.
        disk.unsynced.extend(old.min(size) / PAGE as u64..size.div_ceil(PAGE as u64));
        // Growing the file keeps the blocks that it has after its end.
        if size <= old {
            disk.has_blocks.retain(|&b| b < size.div_ceil(PAGE as u64));
        }
        disk.change();
        Ok(())
    }

    fn allocate(&self, at: u64, len: u64) -> io::Result<()> {
        self.0.fails_io()?;
        let _world = self.0.world();
        self.0.call();
        let mut disk = self.disk();
        let blocks = at / PAGE as u64..(at + len).div_ceil(PAGE as u64);
        if disk.full && blocks.clone().any(|b| !disk.has_blocks.contains(&b)) {
            return Err(io::Error::from(io::ErrorKind::StorageFull));
        }
        disk.has_blocks.extend(blocks);
        disk.change();
        Ok(())
    }

    fn has_hole(&self, at: u64, len: u64) -> io::Result<bool> {
        let disk = self.disk();
        Ok((at / PAGE as u64..(at + len).div_ceil(PAGE as u64))
            .any(|b| !disk.has_blocks.contains(&b)))
    }
}
