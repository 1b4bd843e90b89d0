// SPDX-License-Identifier: MIT OR Apache-2.0
//! An origin with a volatile cache that tells once what it lost: who is told, and
//! that nothing which was acknowledged as durable is lost or held up.

use std::io;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::{Arc, Barrier, Mutex};
use std::time::{Duration, Instant};

use crate::common::*;
use crate::disk::Disk;
use forebay::*;

const EIO: i32 = 5;
/// Long enough for what must end.
const LIMIT: Duration = Duration::from_secs(100);

/// Writes of 64 KiB and more go past the cache.
fn attach_disk(pool: &Pool, disk: &Disk) -> Volume {
    pool.volume_add_origin("v", disk, 0).unwrap();
    let options = AttachOptions { bypass_limit_bytes: 64 << 10, ..Default::default() };
    pool.attach_origin("v", Box::new(disk.clone()), &options).unwrap()
}

fn fails() -> io::Error {
    io::Error::from_raw_os_error(EIO)
}

/// Drains within the limit.
fn drain_soon(volume: &Volume) {
    let start = Instant::now();
    volume
        .drain(&mut |_| match start.elapsed() < LIMIT {
            true => ControlFlow::Continue(()),
            false => ControlFlow::Break(()),
        })
        .expect("the drain ends");
}

/// The flush of destage loses what went past the cache, and its error is the only
/// one.  A client that flushes after that is told, however soon it comes.
#[test]
fn a_failed_flush_of_destages_is_told_at_once() {
    let mut told = 0;
    for _ in 0..50 {
        let dir = Dir::new("at-once");
        let eager = PoolOptions {
            high_watermark_percent: 2,
            low_watermark_percent: 1,
            ..Default::default()
        };
        let pool = Pool::open(&dir.pool(40), &eager).unwrap();
        let disk = Disk::new();
        let volume = attach_disk(&pool, &disk);
        volume.flush().unwrap();
        volume.write_at(&[1; 64 << 10], 1 << 20).unwrap();
        let (failed, seen): (Sender<()>, Receiver<()>) = channel();
        let (first, lost) = (AtomicBool::new(true), disk.clone());
        disk.hook(move |op, _| {
            if op != "flush" || !first.swap(false, Ordering::SeqCst) {
                return Ok(());
            }
            lost.lose();
            let _ = failed.send(());
            Err(fails())
        });
        for block in 0..64 {
            volume.write_at(&[2; 4096], block * 4096).unwrap();
        }
        seen.recv_timeout(LIMIT).expect("destage flushes");
        told += u32::from(volume.flush().is_err());
        volume.flush().expect("it is told once");
        disk.assert_unmet();
        drain_soon(&volume);
        assert!(disk.state().durable[..64 * 4096].iter().all(|b| *b == 2));
    }
    assert_eq!(told, 50, "times of 50 that the client was told");
}

/// Two connections, of which one is told first, and a third that comes later.
#[test]
fn a_failure_is_told_once_to_each_connection() {
    let dir = Dir::new("each");
    let pool = Pool::open(&dir.pool(40), &unthrottled()).unwrap();
    let disk = Disk::new();
    let volume = attach_disk(&pool, &disk);
    volume.flush().unwrap();
    let (first, second) = (volume.flusher(), volume.flusher());
    volume.write_at(&[1; 64 << 10], 1 << 20).unwrap();
    let (once, lost) = (AtomicBool::new(true), disk.clone());
    disk.hook(move |op, _| {
        if op != "flush" || !once.swap(false, Ordering::SeqCst) {
            return Ok(());
        }
        lost.lose();
        Err(fails())
    });
    let told = |flusher: &Flusher<'_>| flusher.flush().is_err();
    assert_eq!([told(&first), told(&first)], [true, false]);
    assert_eq!([told(&second), told(&second)], [true, false], "the second is told as well");
    assert!(!told(&volume.flusher()), "who came later is told what was told before");
}

/// Durable writes and zeroings past the cache overlap, and now and then a flush
/// fails, and all that was not flushed is gone.  What was acknowledged is there.
#[test]
fn durable_past_the_cache_is_durable_beside_failing_flushes() {
    const AREA: u64 = 128 << 10;
    let dir = Dir::new("overlap");
    let pool = Pool::open(&dir.pool(40), &unthrottled()).unwrap();
    let disk = Disk::new();
    let volume = attach_disk(&pool, &disk);
    let (flushes, lost) = (AtomicU64::new(1), disk.clone());
    disk.hook(move |op, _| {
        if op != "flush" {
            return Ok(());
        }
        std::thread::sleep(Duration::from_micros(300));
        if flushes.fetch_add(1, Ordering::SeqCst).is_multiple_of(5) {
            lost.lose();
            return Err(fails());
        }
        Ok(())
    });
    let (well, ill) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|s| {
        for t in 0..4u64 {
            let (volume, disk, well, ill) = (&volume, &disk, &well, &ill);
            s.spawn(move || {
                let place = (8 + t) * AREA;
                for count in 1..=100u8 {
                    let (value, done) = match count % 4 {
                        0 => (0, volume.write_zeroes(place, AREA)),
                        _ => {
                            let data = vec![count; AREA as usize];
                            (count, volume.write_at_durably(&data, place))
                        }
                    };
                    if done.is_err() {
                        ill.fetch_add(1, Ordering::Relaxed);
                        continue;
                    }
                    well.fetch_add(1, Ordering::Relaxed);
                    let at = place as usize;
                    let durable = disk.state().durable[at..at + AREA as usize].to_vec();
                    assert!(durable.iter().all(|b| *b == value), "write {count} of {t} is lost");
                }
            });
        }
    });
    let (well, ill) = (well.into_inner(), ill.into_inner());
    assert!(well > 50 && ill > 10, "{well} durable, {ill} failed");
    disk.assert_unmet();
}

/// Flushes that overlap: if anything is lost that a round of them covers, one at
/// least of that round is told.
#[test]
fn no_loss_is_untold_where_flushes_overlap() {
    let dir = Dir::new("untold");
    let pool = Pool::open(&dir.pool(40), &unthrottled()).unwrap();
    let disk = Disk::new();
    let volume = attach_disk(&pool, &disk);
    volume.flush().unwrap();
    let (flushes, lost) = (AtomicU64::new(1), disk.clone());
    disk.hook(move |op, _| {
        if op == "flush" && flushes.fetch_add(1, Ordering::SeqCst).is_multiple_of(3) {
            lost.lose();
            return Err(fails());
        }
        Ok(())
    });
    let barrier = Barrier::new(3);
    let told = AtomicBool::new(false);
    std::thread::scope(|s| {
        for t in 0..3u64 {
            let (volume, disk, barrier, told) = (&volume, &disk, &barrier, &told);
            s.spawn(move || {
                for round in 1..=100u8 {
                    volume.write_at(&[round; 64 << 10], (16 + t) << 16).unwrap();
                    barrier.wait();
                    if volume.flush().is_err() {
                        told.store(true, Ordering::SeqCst);
                    }
                    barrier.wait();
                    let there = disk.state().durable[(16 + t as usize) << 16] == round;
                    assert!(there || told.load(Ordering::SeqCst), "round {round} of {t}");
                    barrier.wait();
                    told.store(false, Ordering::SeqCst);
                    barrier.wait();
                }
            });
        }
    });
    disk.assert_unmet();
}

/// A flush is in flight, a write past the cache is acknowledged, the flush fails and
/// takes the write along.  Whoever flushes after the write is told.
#[test]
fn a_failing_flush_does_not_hide_what_was_acknowledged_beside_it() {
    let dir = Dir::new("beside");
    let pool = Pool::open(&dir.pool(40), &unthrottled()).unwrap();
    let disk = Disk::new();
    let volume = attach_disk(&pool, &disk);
    volume.flush().unwrap();
    volume.write_at(&[1; 64 << 10], 1 << 20).unwrap();
    let ((entered, flushing), (go, wait)) = (channel::<()>(), channel::<()>());
    let (wait, first, lost) = (Mutex::new(wait), AtomicBool::new(true), disk.clone());
    disk.hook(move |op, _| {
        if op != "flush" || !first.swap(false, Ordering::SeqCst) {
            return Ok(());
        }
        let _ = entered.send(());
        let _ = wait.lock().unwrap().recv_timeout(LIMIT);
        lost.lose();
        Err(fails())
    });
    std::thread::scope(|s| {
        let flusher = s.spawn(|| volume.flush());
        flushing.recv_timeout(LIMIT).expect("it comes to the origin");
        volume.write_at(&[2; 64 << 10], 2 << 20).unwrap();
        go.send(()).unwrap();
        assert!(flusher.join().unwrap().is_err());
    });
    volume.flush().expect_err("the write is lost");
    assert!(disk.state().durable[2 << 20..][..64 << 10].iter().all(|b| *b == 0));
    volume.flush().expect("it is told once");
}

/// The flush of a drain fails.  It is told, and so is the next flush of a client.
#[test]
fn a_failing_drain_hides_nothing_from_clients() {
    let dir = Dir::new("aside");
    let pool = Pool::open(&dir.pool(40), &unthrottled()).unwrap();
    let disk = Disk::new();
    let volume = attach_disk(&pool, &disk);
    volume.flush().unwrap();
    volume.write_at(&[1; 64 << 10], 1 << 20).unwrap();
    let (first, lost) = (AtomicBool::new(true), disk.clone());
    disk.hook(move |op, _| {
        if op != "flush" || !first.swap(false, Ordering::SeqCst) {
            return Ok(());
        }
        lost.lose();
        Err(fails())
    });
    let drained = volume.drain(&mut |_| ControlFlow::Continue(()));
    drained.expect_err("what went past the cache is lost");
    volume.flush().expect_err("it is lost");
    volume.flush().expect("it is told once");
    drain_soon(&volume);
}

/// A drain goes on to tell of itself while the origin takes its time for the last flush,
/// or whoever asked for it would take the server for dead.
#[test]
fn a_drain_is_heard_of_while_it_flushes() {
    let dir = Dir::new("heard-of");
    let pool = Pool::open(&dir.pool(40), &unthrottled()).unwrap();
    let disk = Disk::new();
    let volume = attach_disk(&pool, &disk);
    volume.write_at(&[1; 64 << 10], 1 << 20).unwrap();
    let flushing = Arc::new(AtomicBool::new(false));
    let (heard, (tell, told)) = (Arc::new(AtomicU64::new(0)), channel::<()>());
    let (entered, told) = (flushing.clone(), Mutex::new(told));
    disk.hook(move |op, _| {
        if op == "flush" {
            entered.store(true, Ordering::SeqCst);
            let _ = told.lock().unwrap().recv_timeout(LIMIT / 10);
        }
        Ok(())
    });
    let count = heard.clone();
    let drained = volume.drain(&mut |p| {
        let during = flushing.load(Ordering::SeqCst) && p.state == DestageState::Flushing;
        if during && count.fetch_add(1, Ordering::SeqCst) == 2 {
            let _ = tell.send(());
        }
        ControlFlow::Continue(())
    });
    drained.unwrap();
    assert!(heard.load(Ordering::SeqCst) > 2, "nothing was heard of it");
}

/// A client whose writes past the cache fail again and again says nothing of what
/// destage has written.
#[test]
fn failing_writes_past_the_cache_do_not_hold_up_destage() {
    let dir = Dir::new("starve");
    let pool = Pool::open(&dir.pool(80), &unthrottled()).unwrap();
    let disk = Disk::new();
    let volume = attach_disk(&pool, &disk);
    disk.hook(|_, offset| match offset >= 2 << 20 {
        true => Err(fails()),
        false => {
            std::thread::sleep(Duration::from_millis(5));
            Ok(())
        }
    });
    for block in 0..400u64 {
        volume.write_at(&[7; 4096], block * 4096).unwrap();
    }
    let (end, failed) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|s| {
        s.spawn(|| {
            while !end.load(Ordering::SeqCst) {
                assert!(volume.write_at(&[9; 64 << 10], 2 << 20).is_err());
                failed.fetch_add(1, Ordering::SeqCst);
            }
        });
        while failed.load(Ordering::SeqCst) < 10 {
            std::thread::yield_now();
        }
        let start = Instant::now();
        let drained = volume.drain(&mut |_| match start.elapsed() < LIMIT / 5 {
            true => ControlFlow::Continue(()),
            false => ControlFlow::Break(()),
        });
        end.store(true, Ordering::SeqCst);
        drained.expect("the drain ends beside them");
    });
    assert!(disk.state().durable[..400 * 4096].iter().all(|b| *b == 7));
}

/// While a zeroing is on its way past the cache, nothing else writes its blocks.
#[test]
fn a_zeroing_past_the_cache_keeps_its_blocks() {
    let dir = Dir::new("claimed");
    let pool = Pool::open(&dir.pool(40), &unthrottled()).unwrap();
    let disk = Disk::new();
    let volume = attach_disk(&pool, &disk);
    let ((entered, zeroing), (go, wait)) = (channel::<()>(), channel::<()>());
    let wait = Mutex::new(wait);
    disk.hook(move |op, _| {
        if op == "zero" {
            let _ = entered.send(());
            let _ = wait.lock().unwrap().recv_timeout(LIMIT);
        }
        Ok(())
    });
    std::thread::scope(|s| {
        let zeroer = s.spawn(|| volume.write_zeroes(0, 1 << 20));
        zeroing.recv_timeout(LIMIT).expect("it comes to the origin");
        let written = Arc::new(AtomicBool::new(false));
        let (v, w) = (volume.clone(), written.clone());
        let writer = s.spawn(move || {
            let done = v.write_at(&[1; 4096], 8192);
            w.store(true, Ordering::SeqCst);
            done
        });
        // Time for one that does not wait to be acknowledged, and written on.
        std::thread::sleep(Duration::from_millis(100));
        if written.load(Ordering::SeqCst) {
            let start = Instant::now();
            let _ = volume.drain(&mut |_| match start.elapsed() < Duration::from_secs(1) {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            });
        }
        go.send(()).unwrap();
        zeroer.join().unwrap().unwrap();
        writer.join().unwrap().unwrap();
    });
    disk.assert_unmet();
    assert_eq!(read(&volume, 8192, 4096), [1; 4096]);
    drain_soon(&volume);
    assert_eq!(read(&volume, 8192, 4096), [1; 4096]);
}

/// A discard that the origin refuses or ignores fails no round, and what it was to
/// discard shows as zeroes, not as it was before the write that it discarded.
#[test]
fn a_discard_that_the_origin_does_not_take_is_zeroes() {
    for refuses in [true, false] {
        let dir = Dir::new("advice");
        let pool = Pool::open(&dir.pool(40), &unthrottled()).unwrap();
        let disk = Disk::new();
        disk.state().now.fill(1);
        let volume = attach_disk(&pool, &disk);
        disk.hook(move |op, _| match op == "discard" && refuses {
            true => Err(fails()),
            false => Ok(()),
        });
        volume.write_at(&[2; 8192], 0).unwrap();
        volume.write_at(&[3; 4096], 16384).unwrap();
        volume.discard(0, 8192).unwrap();
        assert_eq!(read(&volume, 0, 8192), [0; 8192]);
        drain_soon(&volume);
        assert_eq!(read(&volume, 0, 8192), [0; 8192], "refuses: {refuses}");
        assert_eq!(read(&volume, 16384, 4096), [3; 4096]);
        assert_eq!(volume.info().unwrap().origin_errors, 0);
        // The block is not cached, so the discard goes to the origin.
        assert_eq!(volume.discard(1 << 20, 8192).is_err(), refuses);
        assert_eq!(read(&volume, 1 << 20, 8192), [1; 8192]);
    }
}

/// Flushes, durable writes, zeroings and cached writes, all at once over a slow
/// disk, with nothing else in flight that could wake anybody: all of them end.
#[test]
fn everything_ends_over_a_slow_disk() {
    let dir = Dir::new("ends");
    let pool = Pool::open(&dir.pool(12), &PoolOptions::default()).unwrap();
    let disk = Disk::new();
    let volume = attach_disk(&pool, &disk);
    disk.hook(|op, _| {
        std::thread::sleep(Duration::from_millis(if op == "flush" { 3 } else { 1 }));
        Ok(())
    });
    let data = vec![5; 128 << 10];
    std::thread::scope(|s| {
        for t in 0..6u64 {
            let (volume, data) = (&volume, &data);
            s.spawn(move || {
                for n in 0..60u64 {
                    let large = (t % 3) << 18;
                    match t {
                        0 => volume.write_at(data, large).and_then(|()| volume.flush()),
                        1 => volume.write_at_durably(data, large),
                        2 => volume.write_zeroes(large, 128 << 10),
                        3 => volume.flush(),
                        _ => volume.write_at(&data[..4096], (n * 7 + t) % 200 * 4096),
                    }
                    .unwrap();
                }
            });
        }
    });
    disk.assert_unmet();
    drain_soon(&volume);
    assert_sound(&pool);
}

/// An origin of the embedder's own that panics in the middle of a flush or of a write
/// past the cache: it counts as failed, and holds up nobody after it.
#[test]
fn an_origin_that_panics_holds_up_nobody() {
    let dir = Dir::new("panics");
    let pool = open(&dir.pool(40));
    let disk = Disk::new();
    let volume = attach_disk(&pool, &disk);
    let (gone, done) = channel();
    for panics_at in ["flush", "write"] {
        disk.hook(move |op, _| if op == panics_at { panic!("of the test") } else { Ok(()) });
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            volume.write_at(&[1; 64 << 10], 0)?;
            volume.flush()
        }));
        assert!(ended.is_err(), "{panics_at}");
        disk.hook(|_, _| Ok(()));
        disk.forget_calls();
        let (volume, gone) = (volume.clone(), gone.clone());
        std::thread::spawn(move || {
            let _ = volume.flush(); // it may be told of the one that failed
            volume.write_at(&[2; 64 << 10], 0).unwrap();
            volume.flush().unwrap();
            let _ = gone.send(());
        });
        done.recv_timeout(LIMIT).expect(panics_at);
    }
    disk.assert_unmet();
    assert!(disk.state().durable[..64 << 10].iter().all(|b| *b == 2));
}
