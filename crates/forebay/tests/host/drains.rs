// SPDX-License-Identifier: MIT OR Apache-2.0
//! Concurrent drains of one volume, with writers: each drain ends.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::*;
use crate::passing::origin_passes_on;
use forebay::*;

/// A drain that takes longer is taken for one that never ends.
const FOR_EVER: Duration = Duration::from_secs(60);

fn drain_in_time(volume: &Volume) -> Result<DrainProgress> {
    let started = Instant::now();
    volume.drain(&mut |_| match started.elapsed() > FOR_EVER {
        true => ControlFlow::Break(()),
        false => ControlFlow::Continue(()),
    })
}

/// The origin fails, so both wait; one is interrupted, and the origin repaired.
#[test]
fn one_that_is_given_up_leaves_the_others_going() {
    let dir = Dir::new("given-up");
    let pool = open(&dir.pool(24));
    let memory = MemOrigin::new(1 << 20).unwrap();
    let (origin, faults) = FaultyOrigin::new(Box::new(memory.clone()));
    pool.volume_add_origin("v", &memory, 0).unwrap();
    let volume = pool.attach_origin("v", Box::new(origin), &AttachOptions::default()).unwrap();
    faults.break_writes();
    volume.write_at(&[7; 4096], 0).unwrap();
    std::thread::scope(|scope| {
        let patient = scope.spawn(|| drain_in_time(&volume));
        while !volume.info().unwrap().draining {
            std::thread::yield_now();
        }
        let given_up = volume.drain(&mut |p| match p.origin_error.is_some() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        });
        assert!(matches!(given_up, Err(Error::Interrupted { .. })), "{given_up:?}");
        assert!(volume.info().unwrap().draining);
        faults.repair();
        patient.join().unwrap().unwrap();
    });
    assert_eq!(memory.content()[..4096], [7; 4096]);
    assert!(!volume.info().unwrap().draining);
}

/// Data written after a drain has begun may stay in the pool; then the drain does not report it
/// as complete.
#[test]
fn what_is_written_since_is_told() {
    let dir = Dir::new("since");
    let pool = open(&dir.pool(64));
    let volume = attach(&pool, "v", &MemOrigin::new(1 << 20).unwrap());
    let drain = |writes: bool| {
        volume.write_at(&[1; 4096], 0).unwrap();
        let judged = pool.drain(None, &mut |_, p| {
            if writes && p.pages_left == 0 {
                volume.write_at(&[2; 3 * 4096], 8192).unwrap();
            }
            ControlFlow::Continue(())
        });
        judged.unwrap().remove(0)
    };
    let alone = drain(false);
    assert!(alone.complete && alone.pages_since == 0, "{alone:?}");
    assert_eq!(alone.to_string(), "the origin alone is complete");
    // On a busy machine the drain may take what was written since, too.
    let beside = (0..20).map(|_| drain(true)).find(|judged| !judged.complete);
    let beside = beside.expect("a drain that ends before what was written since is drained");
    // The origin alone is not all of it, though the drain did what it was asked for.
    assert_eq!((beside.complete, beside.pages_since), (false, 3), "{beside:?}");
    assert_eq!((beside.verdict, beside.exit_code()), (Verdict::WrittenSince, 0), "{beside:?}");
    assert!(beside.to_string().contains("3 pages of 4 KiB that were written since"), "{beside}");
}

/// It takes no write until the test releases it.
#[derive(Debug)]
struct StoppedOrigin(MemOrigin, std::sync::Arc<Hanging>);

impl Origin for StoppedOrigin {
    origin_passes_on!(0: size_bytes, logical_block, identity, info, read_at, flush, discard, write_zeroes);

    fn write_at(&self, data: &[u8], offset: u64) -> std::io::Result<()> {
        let goes_on = self.1 .0.lock().unwrap();
        drop(self.1 .1.wait_while(goes_on, |goes_on| !*goes_on).unwrap());
        self.0.write_at(data, offset)
    }

    fn give_up(&self) {
        *self.1 .0.lock().unwrap() = true;
        self.1 .1.notify_all();
    }
}

/// A drain counts what its origin has taken, and not what it was sent.
#[test]
fn what_was_sent_only_is_not_done() {
    let dir = Dir::new("sent");
    let pool = open(&dir.pool(64));
    let memory = MemOrigin::new(1 << 20).unwrap();
    let stopped = std::sync::Arc::new(Hanging::default());
    let origin = StoppedOrigin(memory.clone(), stopped.clone());
    pool.volume_add_origin("v", &memory, 0).unwrap();
    let volume = pool.attach_origin("v", Box::new(origin), &AttachOptions::default()).unwrap();
    for block in 0..8 {
        volume.write_at(&[7; 4096], block * 8192).unwrap();
    }
    let (started, mut counted) = (Instant::now(), Vec::new());
    let last = volume.drain(&mut |p| {
        if !*stopped.0.lock().unwrap() {
            counted.push((p.origin_written_bytes, p.pages_left));
            if started.elapsed() > Duration::from_millis(400) {
                *stopped.0.lock().unwrap() = true;
                stopped.1.notify_all();
            }
        }
        ControlFlow::Continue(())
    });
    assert!(counted.len() > 1 && counted.iter().all(|c| *c == (0, 8)), "{counted:?}");
    let last = last.unwrap();
    assert_eq!((last.origin_written_bytes, last.pages_left), (8 * 4096, 0), "{last:?}");
}

#[test]
fn several_end_beside_a_writer() {
    let dir = Dir::new("several");
    let pool = open(&dir.pool(512));
    let volume = attach(&pool, "v", &MemOrigin::new(1 << 20).unwrap());
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for block in (0..256u64).cycle() {
                volume.write_at(&[block as u8; 4096], block * 4096).unwrap();
                if done.load(Ordering::Relaxed) {
                    return;
                }
            }
        });
        // Round by round, or the next drain would end what waits for ever.
        let round = || {
            let drains = [0; 4].map(|_| scope.spawn(|| drain_in_time(&volume).is_ok()));
            drains.map(|d| d.join().unwrap())
        };
        let ended = (0..20).flat_map(|_| round()).filter(|ended| *ended).count();
        done.store(true, Ordering::Relaxed);
        assert_eq!(ended, 80);
    });
}

/// Its flush ends when it is given up, and not before.
#[derive(Debug, Default)]
struct Hanging(std::sync::Mutex<bool>, std::sync::Condvar);

#[derive(Debug)]
struct HangingOrigin(MemOrigin, std::sync::Arc<Hanging>);

impl Origin for HangingOrigin {
    origin_passes_on!(0: size_bytes, logical_block, identity, info, read_at, write_at, discard, write_zeroes);

    fn flush(&self) -> std::io::Result<()> {
        let given_up = self.1 .0.lock().unwrap();
        drop(self.1 .1.wait_while(given_up, |given_up| !*given_up).unwrap());
        Err(std::io::Error::other("given up"))
    }

    fn give_up(&self) {
        *self.1 .0.lock().unwrap() = true;
        self.1 .1.notify_all();
    }
}

/// An origin that answers all but flushes: who gives the drain up does not wait for it.
#[test]
fn one_that_is_given_up_does_not_wait_for_the_flush() {
    let dir = Dir::new("given-up-flush");
    let pool = open(&dir.pool(24));
    let memory = MemOrigin::new(1 << 20).unwrap();
    pool.volume_add_origin("v", &memory, 0).unwrap();
    let origin = HangingOrigin(memory, Default::default());
    let hanging = origin.1.clone();
    let past = AttachOptions { bypass_limit_bytes: 64 << 10, ..Default::default() };
    let volume = pool.attach_origin("v", Box::new(origin), &past).unwrap();
    volume.write_at(&[7; 256 << 10], 0).unwrap();
    // The test ends, whatever is wrong.
    let watch = std::thread::spawn({
        let hanging = hanging.clone();
        move || {
            let given_up = hanging.0.lock().unwrap();
            let waited = hanging.1.wait_timeout_while(given_up, FOR_EVER, |given_up| !*given_up);
            *waited.unwrap().0 = true;
            hanging.1.notify_all();
        }
    });
    let started = Instant::now();
    for _ in 0..2 {
        let mut flushing = false;
        let drained = volume.drain(&mut |p| {
            flushing |= p.state == DestageState::Flushing;
            match flushing {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        });
        assert!(matches!(drained, Err(Error::Interrupted { .. })), "{drained:?}");
    }
    assert!(!*hanging.0.lock().unwrap() && started.elapsed() < FOR_EVER / 2);
    assert!(!volume.info().unwrap().draining);
    volume.detach().unwrap();
    pool.close().unwrap();
    watch.join().unwrap();
}

/// A drain flushes bypassed writes at its end.  If the volume is gone by then, nobody reports
/// its origin as complete.
#[test]
fn a_volume_that_is_detached_meanwhile_is_not_called_complete() {
    let dir = Dir::new("detached-meanwhile");
    let pool = open(&dir.pool(24));
    let memory = MemOrigin::new(1 << 20).unwrap();
    let (origin, faults) = FaultyOrigin::new(Box::new(memory.clone()));
    pool.volume_add_origin("v", &memory, 0).unwrap();
    let past = AttachOptions { bypass_limit_bytes: 64 << 10, ..Default::default() };
    let mut volume = Some(pool.attach_origin("v", Box::new(origin), &past).unwrap());
    volume.as_ref().unwrap().write_at(&[7; 256 << 10], 0).unwrap();
    assert_eq!(volume.as_ref().unwrap().info().unwrap().bypasses, 1);
    let drained = pool.drain(None, &mut |_, p| {
        assert_eq!(p.pages_left, 0);
        volume = None;
        ControlFlow::Continue(())
    });
    assert_eq!(faults.calls(FaultOp::Flush), 0);
    assert!(matches!(drained, Err(Error::Stopped { .. })), "{drained:?}");
}

/// While a drain runs, a volume is removed and another one gets its index.  The drain reports the
/// volumes that it was asked for, and calls no other one complete.
#[test]
fn a_drain_is_of_the_volumes_that_there_were() {
    let dir = Dir::new("drain-other");
    let pool = open(&dir.pool(64));
    let first = attach(&pool, "first", &MemOrigin::new(1 << 20).unwrap());
    first.write_at(&[1; 4096], 0).unwrap();
    let gone = pool.volume_add_origin("gone", &MemOrigin::new(1 << 20).unwrap(), 0).unwrap();
    let mut other = None;
    let judged = pool.drain(None, &mut |_, _| {
        if other.is_none() {
            pool.volume_remove("gone", false).unwrap();
            let volume = attach(&pool, "other", &MemOrigin::new(1 << 20).unwrap());
            assert_eq!(volume.info().unwrap().index, gone.index, "the test needs the same index");
            volume.write_at(&[2; 4096], 0).unwrap();
            other = Some(volume);
        }
        ControlFlow::Continue(())
    });
    let judged = judged.unwrap();
    let names: Vec<_> = judged.iter().map(|c| (&c.volume[..], c.complete)).collect();
    assert_eq!(names, [("first", true)], "{judged:?}");
}

/// A volume or log that may get the index of a volume that was removed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Now {
    Nothing,
    Volume,
    Log,
    Map,
}

impl Now {
    const ALL: [Now; 4] = [Now::Nothing, Now::Volume, Now::Log, Now::Map];

    fn add(self, pool: &Pool) {
        match self {
            Now::Nothing => {}
            Now::Volume => {
                pool.volume_add_origin("other", &MemOrigin::new(1 << 20).unwrap(), 0).unwrap();
            }
            Now::Log => {
                pool.log_add("other", LogHome::Embedded).unwrap();
            }
            Now::Map => drop(pool.map_add("other", 4 << 20).unwrap()),
        }
    }
}

fn with_maps() -> CreateOptions {
    let small = small(64);
    let map_bytes = 8 << 20;
    CreateOptions { size_bytes: small.size_bytes.map(|n| n + map_bytes), map_bytes, ..small }
}

/// A volume is removed while a drain runs, and its index is used by an owner of each kind, or by
/// none.  A drain of all volumes leaves it out if it was not attached.  One that writes it stops.
#[test]
fn a_volume_that_is_removed_is_left_out_whatever_has_its_index() {
    for (at, now) in Now::ALL.into_iter().enumerate() {
        for dirty in [false, true] {
            let dir = Dir::new(&format!("drain-removed-{at}-{dirty}"));
            let pool = open(&dir.made(&with_maps()));
            let first = attach(&pool, "first", &MemOrigin::new(1 << 20).unwrap());
            first.write_at(&[1; 4096], 0).unwrap();
            let memory = MemOrigin::new(1 << 20).unwrap();
            let gone = attach(&pool, "gone", &memory);
            if dirty {
                gone.write_at(&[2; 4096], 0).unwrap();
            }
            gone.detach().unwrap();
            let mut removed = false;
            let judged = pool.drain(None, &mut |_, _| {
                if !std::mem::replace(&mut removed, true) {
                    pool.volume_remove("gone", dirty).unwrap();
                    now.add(&pool);
                }
                ControlFlow::Continue(())
            });
            let judged = judged.unwrap_or_else(|e| panic!("{now:?}, dirty: {dirty}: {e}"));
            let names: Vec<_> = judged.iter().map(|c| (&c.volume[..], c.complete)).collect();
            assert_eq!(names, [("first", true)], "{now:?}, dirty: {dirty}: {judged:?}");
        }
    }
    // The one that is drained.
    for (at, now) in Now::ALL.into_iter().enumerate() {
        for name in [None, Some("first")] {
            let dir = Dir::new(&format!("drain-removed-own-{at}-{}", name.is_some()));
            let pool = open(&dir.made(&with_maps()));
            let memory = MemOrigin::new(1 << 20).unwrap();
            let (origin, faults) = FaultyOrigin::new(Box::new(memory.clone()));
            pool.volume_add_origin("first", &memory, 0).unwrap();
            let options = AttachOptions::default();
            let mut first = Some(pool.attach_origin("first", Box::new(origin), &options).unwrap());
            faults.break_writes();
            first.as_ref().unwrap().write_at(&[1; 4096], 0).unwrap();
            let drained = pool.drain(name, &mut |_, p| {
                if p.origin_error.is_some() && first.take().is_some() {
                    pool.volume_remove("first", true).unwrap();
                    now.add(&pool);
                }
                ControlFlow::Continue(())
            });
            assert!(first.is_none());
            match drained {
                Err(e @ Error::Stopped { .. }) => {
                    assert!(e.to_string().contains("volume first"), "{now:?}: {e}")
                }
                drained => panic!("{now:?}, {name:?}: {drained:?}"),
            }
        }
    }
}

/// Likewise for a volume that is being drained.
#[test]
fn another_volume_at_the_same_index_ends_no_drain() {
    let dir = Dir::new("drain-replaced");
    let pool = open(&dir.pool(64));
    let memory = MemOrigin::new(1 << 20).unwrap();
    let (origin, faults) = FaultyOrigin::new(Box::new(memory.clone()));
    let info = pool.volume_add_origin("first", &memory, 0).unwrap();
    let volume = pool.attach_origin("first", Box::new(origin), &AttachOptions::default()).unwrap();
    faults.break_writes();
    volume.write_at(&[1; 4096], 0).unwrap();
    let (mut first, mut other) = (Some(volume), None);
    let drained = pool.drain(None, &mut |_, p| {
        if p.origin_error.is_some() && other.is_none() {
            first = None;
            pool.volume_remove("first", true).unwrap();
            let volume = attach(&pool, "other", &MemOrigin::new(1 << 20).unwrap());
            assert_eq!(volume.info().unwrap().index, info.index, "the test needs the same index");
            other = Some(volume);
        }
        ControlFlow::Continue(())
    });
    assert!(first.is_none() && other.is_some());
    match drained {
        Err(e @ Error::Stopped { .. }) => assert!(e.to_string().contains("volume first"), "{e}"),
        drained => panic!("{drained:?}"),
    }
}
