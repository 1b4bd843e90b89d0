// SPDX-License-Identifier: MIT OR Apache-2.0
//! Goal: no child that another thread forks meanwhile has a descriptor of a pool, whatever looks at the
//! pool or opens it.
//!
//! Method: a keeper gives each lasting descriptor a high number.  A thread makes a call again and
//! again, while this one holds forks back, as fork(3) does, and looks for descriptors of the pool with
//! a low number.

#[path = "host/common.rs"]
#[allow(dead_code)]
mod common;

use std::fs::File;
use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use common::*;
use forebay::*;
use forebay_engine::{forks, lasting};
use rustix::process::{PidfdFlags, PidfdGetfdFlags};

/// Lasting descriptors have no lower number.
const LEAST: RawFd = 500;
const NONE: [RawFd; 0] = [];

fn keep(fd: OwnedFd) -> OwnedFd {
    rustix::io::fcntl_dupfd_cloexec(&fd, LEAST).unwrap()
}

fn duplicate(fd: RawFd) -> io::Result<OwnedFd> {
    let me = rustix::process::pidfd_open(rustix::process::getpid(), PidfdFlags::empty())?;
    let new = rustix::process::pidfd_getfd(me, fd, PidfdGetfdFlags::empty())?;
    Ok(keep(new))
}

fn close(fd: OwnedFd) {
    drop(fd);
}

fn check(_: RawFd) -> io::Result<()> {
    Ok(())
}

/// Descriptors of the file that a child forked now would have.
fn inherited(file: &Path) -> Vec<RawFd> {
    let _hold = forks::hold();
    let all = std::fs::read_dir("/proc/self/fd").unwrap();
    let numbers = all.map(|entry| entry.unwrap().file_name().to_str().unwrap().parse().unwrap());
    let leads_there =
        |fd: &RawFd| std::fs::read_link(format!("/proc/self/fd/{fd}")).is_ok_and(|to| to == file);
    numbers.filter(|fd| *fd < LEAST).filter(leads_there).collect()
}

/// Looks while the call is made again and again; returns what was found first.
fn found_during(file: &Path, call: &(dyn Fn() + Sync)) -> Vec<RawFd> {
    const CALLS: u32 = 20;
    const LOOKS: u32 = 400;
    // A thread that is not scheduled holds the other one up.
    const ENOUGH: Duration = Duration::from_millis(500);
    let (stop, calls) = (AtomicBool::new(false), AtomicU32::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                call();
                calls.fetch_add(1, Ordering::Relaxed);
            }
        });
        let mut found = Vec::new();
        let mut looks = 0;
        let (begun, of_calls) = (Instant::now(), || calls.load(Ordering::Relaxed));
        while found.is_empty() && (of_calls() < CALLS || looks < LOOKS && begun.elapsed() < ENOUGH)
        {
            found = inherited(file);
            looks += 1;
            // The call goes on from where it waited for this thread, each time for another while.
            let start = Instant::now();
            while start.elapsed() < Duration::from_micros(u64::from(looks % 64)) {
                std::thread::yield_now();
            }
        }
        stop.store(true, Ordering::Relaxed);
        found
    })
}

fn pool(directory: &Dir, medium: MediumChoice) -> Option<PathBuf> {
    let path = std::fs::canonicalize(directory.path("")).unwrap().join("pool");
    match create(&path, &CreateOptions { medium, ..small(4) }) {
        Err(e @ Error::Unsupported { .. }) => {
            forebay_test::skipped!("no place for a pool that is written in groups: {e}");
            None
        }
        made => made.map(|_| path).map(Some).unwrap(),
    }
}

#[test]
fn a_child_has_no_descriptor_of_a_pool() {
    assert!(lasting::keep_by(lasting::Keeper { keep, duplicate, close, check }));
    let (memory, disk) = (Dir::new("lasting"), Dir::on_disk("lasting-groups"));
    let mapped = pool(&memory, MediumChoice::Memory).unwrap();
    // Such a descriptor is found.
    let plain = || drop(File::open(&mapped).unwrap());
    assert!(!found_during(&mapped, &plain).is_empty());
    let closed = || drop(lasting::open(|| File::open(&mapped)).unwrap());
    assert_eq!(found_during(&mapped, &closed), NONE);

    for path in [Some(mapped.clone()), pool(&disk, MediumChoice::Ssd)].into_iter().flatten() {
        let read_only = PoolOptions { read_only: true, ..Default::default() };
        let unknown = MediaOptions { kernel: Some("none".into()), ..Default::default() };
        let refused = PoolOptions { media: unknown, ..Default::default() };
        let table: [(&str, &(dyn Fn() + Sync)); 6] = [
            ("Pool::open, refused", &|| drop(Pool::open(&path, &refused).unwrap_err())),
            ("Pool::open", &|| {
                Pool::open(&path, &PoolOptions::default()).unwrap().close().unwrap()
            }),
            ("read-only", &|| Pool::open(&path, &read_only).unwrap().close().unwrap()),
            ("inspect", &|| drop(inspect(&path).unwrap())),
            ("MediumFacts::of", &|| drop(MediumFacts::of(&path).unwrap())),
            ("create, refused", &|| drop(create(&path, &small(4)).unwrap_err())),
        ];
        for (name, call) in table {
            assert_eq!(found_during(&path, call), NONE, "{name}, {}", path.display());
        }
    }
}
