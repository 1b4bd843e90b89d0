// SPDX-License-Identifier: MIT OR Apache-2.0
//! Origins that fail: nothing acknowledged is lost, others go on.

use std::io;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

use crate::common::*;
use crate::passing::origin_passes_on;
use forebay::*;

struct Faulty {
    memory: MemOrigin,
    faults: Faults,
    volume: Volume,
}

fn attach_faulty(pool: &Pool, name: &str, bytes: usize) -> Faulty {
    let memory = MemOrigin::new(bytes).unwrap();
    let (origin, faults) = FaultyOrigin::new(Box::new(memory.clone()));
    pool.volume_add_origin(name, &memory, 0).unwrap();
    let volume = pool.attach_origin(name, Box::new(origin), &AttachOptions::default()).unwrap();
    Faulty { memory, faults, volume }
}

/// One origin is broken; the other's volume is written several times its
/// size, past the pool's, and drains.
#[test]
fn a_broken_origin_holds_up_no_other_volume() {
    let dir = Dir::new("broken");
    let path = dir.pool(24);
    let pool = open(&path);
    let bad = attach_faulty(&pool, "bad", 1 << 20);
    let good = attach_faulty(&pool, "good", 1 << 20);
    bad.faults.break_writes();
    for b in 0..40u64 {
        bad.volume.write_at(&[b as u8 + 1; 4096], b * 4096).unwrap();
    }
    let stuck = bad.volume.drain(&mut |p| match p.origin_error.is_some() {
        true => ControlFlow::Break(()),
        false => ControlFlow::Continue(()),
    });
    assert!(matches!(stuck, Err(Error::Interrupted { .. })), "{stuck:?}");
    for round in 1..4u8 {
        for b in 0..256u64 {
            good.volume.write_at(&[round; 4096], b * 4096).unwrap();
        }
    }
    drain(&good.volume);
    assert!(good.memory.content().iter().all(|b| *b == 3));
    let info = bad.volume.info().unwrap();
    assert!(info.origin_errors > 0 && info.pages == 40, "{info:?}");
    assert!(bad.memory.content().iter().all(|b| *b == 0));

    // All of it is still there after a crash or a close, and drains when the
    // origin works again.
    bad.volume.detach().unwrap();
    good.volume.detach().unwrap();
    assert_sound(&pool);
    pool.close().unwrap();
    let pool = open(&path);
    let volume = reattach(&pool, "bad", &bad.memory);
    for b in 0..40u64 {
        assert_eq!(read(&volume, b * 4096, 4096), [b as u8 + 1; 4096]);
    }
    drain(&volume);
    assert_eq!(bad.memory.content()[39 * 4096..40 * 4096], [40; 4096]);
}

/// The n-th write or flush fails, for n = 1, 2, ... until none is hit: the
/// drain retries, and the origin has it all.
#[test]
fn each_write_and_flush_may_fail_once() {
    let dir = Dir::new("nth");
    let pool = open(&dir.pool(24));
    let f = attach_faulty(&pool, "v", 128 * 4096);
    let mut counts = [0u8; 128];
    let mut rng = Rng::new(5);
    for op in [FaultOp::Write, FaultOp::Flush] {
        for n in 1.. {
            for _ in 0..20 {
                let b = rng.below(128);
                counts[b as usize] = counts[b as usize].wrapping_add(1).max(1);
                f.volume.write_at(&[counts[b as usize]; 4096], b * 4096).unwrap();
            }
            let before = f.faults.failed(op);
            f.faults.fail(op, n, 1);
            drain(&f.volume);
            f.faults.repair();
            for (b, page) in f.memory.content().chunks(4096).enumerate() {
                assert!(page.iter().all(|x| *x == counts[b]), "block {b}, {op:?} {n}");
            }
            if f.faults.failed(op) == before {
                assert!(n > 1, "no {op:?} was ever failed");
                break;
            }
            // The retry comes after a pause; keep the test short.
            if n == 6 {
                break;
            }
        }
    }
}

/// Three sectors of an origin take no write: all else goes home, also after a crash, and a drain
/// says what does not, until they are mended or written elsewhere.
#[test]
fn a_bad_sector_holds_back_its_own_block() {
    let dir = Dir::new("sectors");
    let path = dir.pool(24);
    let pool = open(&path);
    let f = attach_faulty(&pool, "v", 4 << 20);
    let bad = [0u64, 301, 700];
    for b in bad {
        f.faults.break_writes_of(b * 4096 + 512..b * 4096 + 1024);
    }
    let mut content = vec![0; 4 << 20];
    for b in (0..1024u64).filter(|b| b % 3 != 2) {
        content[b as usize * 4096..][..4096].fill(b as u8 | 1);
        f.volume.write_at(&[b as u8 | 1; 4096], b * 4096).unwrap();
    }
    let home = |content: &[u8]| -> Vec<u64> {
        let has = f.memory.content();
        (0..1024)
            .filter(|b| has[*b * 4096..][..4096] != content[*b * 4096..][..4096])
            .map(|b| b as u64)
            .collect()
    };
    let until_bad_is_left = |volume: &Volume| {
        let mut last = DrainProgress::default();
        let end = std::time::Instant::now() + Duration::from_secs(60);
        let stuck = volume.drain(&mut |p| {
            last = p.clone();
            let done =
                p.pages_left == 3 && p.origin_error.as_ref().is_some_and(|e| e.contains("3 pages"));
            match done || std::time::Instant::now() > end {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        });
        assert!(matches!(stuck, Err(Error::Interrupted { .. })), "{stuck:?}");
        last
    };
    let last = until_bad_is_left(&f.volume);
    assert_eq!(home(&content), bad, "{last:?}");
    let error = last.origin_error.unwrap();
    assert!(
        error.contains("3 pages that it refused are not written back, the first at offset 0"),
        "{error}"
    );
    let info = f.volume.info().unwrap();
    assert_eq!((info.pages, info.pages_refused, info.refused_offset), (3, 3, Some(0)), "{info:?}");

    // Others are taken in and go home meanwhile; those that are written anew are tried again.
    for b in [1u64, 301, 1023] {
        content[b as usize * 4096..][..4096].fill(0xee);
        f.volume.write_at(&[0xee; 4096], b * 4096).unwrap();
    }
    until_bad_is_left(&f.volume);
    assert_eq!(home(&content), bad);
    f.volume.detach().unwrap();
    assert_sound(&pool);
    pool.close().unwrap();
    let pool = open(&path);
    let volume = reattach(&pool, "v", &f.memory);
    for b in bad {
        assert_eq!(read(&volume, b * 4096, 4096), &content[b as usize * 4096..][..4096]);
    }
    drain(&volume);
    assert!(f.memory.content() == content);
    assert_eq!(volume.info().unwrap().pages_refused, 0);
}

#[test]
fn a_failed_read_is_an_error_with_its_place_and_the_next_one_works() {
    let dir = Dir::new("read");
    let pool = open(&dir.pool(6));
    let f = attach_faulty(&pool, "v", 1 << 20);
    f.volume.write_at(&[9; 4096], 0).unwrap();
    f.faults.fail(FaultOp::Read, 1, 1);
    assert_eq!(read(&f.volume, 0, 4096), [9; 4096], "a hit needs no origin");
    let mut buf = [0; 8192];
    let e = f.volume.read_at(&mut buf, 0).unwrap_err();
    assert!(matches!(e, Error::OriginIo { offset: 4096, len: 4096, .. }), "{e}");
    assert_eq!((e.exit_code(), e.errno()), (7, 5));
    assert_eq!(read(&f.volume, 0, 8192)[..4096], [9; 4096]);
}

/// Parts that are not cached are asked for in few requests.
#[test]
fn reads_are_coalesced_and_merged_by_sector() {
    let dir = Dir::new("coalesce");
    let pool = open(&dir.pool(24));
    let f = attach_faulty(&pool, "v", 1 << 20);
    let mut expect: Vec<u8> = (0..1u32 << 20).map(|i| (i / 512) as u8 | 1).collect();
    f.memory.write_at(&expect, 0).unwrap();
    // Holes of all shapes in blocks 0 to 31.
    for place in (0..256u64).filter(|p| p % 3 == 0 || p / 8 % 4 == 1) {
        f.volume.write_at(&[0xaa; 512], place * 512).unwrap();
        expect[place as usize * 512..][..512].fill(0xaa);
    }
    let calls = f.faults.calls(FaultOp::Read);
    assert!(read(&f.volume, 512, (1 << 20) - 512) == expect[512..]);
    assert_eq!(f.faults.calls(FaultOp::Read) - calls, 1);
    // Nothing cached at all: into the caller's buffer at once.
    let calls = f.faults.calls(FaultOp::Read);
    assert!(read(&f.volume, 512 << 10, 256 << 10) == expect[512 << 10..768 << 10]);
    assert_eq!(f.faults.calls(FaultOp::Read) - calls, 1);
}

/// Detaching does not wait for a drain, nor for the round that is under way.
#[test]
fn detach_in_the_middle_of_a_slow_destage() {
    let dir = Dir::new("slow");
    let pool = Pool::open(&dir.pool(40), &unthrottled()).unwrap();
    let memory = MemOrigin::new(1 << 20).unwrap();
    let (origin, faults) = FaultyOrigin::new(Box::new(memory.clone()));
    faults.delay(FaultOp::Write, Duration::from_millis(30));
    pool.volume_add_origin("v", &memory, 0).unwrap();
    let options = AttachOptions { buffer_bytes: 4096, ..Default::default() };
    let volume = pool.attach_origin("v", Box::new(origin), &options).unwrap();
    for b in 0..256u64 {
        volume.write_at(&[b as u8; 4096], b * 4096).unwrap();
    }
    let stopped = volume.drain(&mut |_| match faults.calls(FaultOp::Write) {
        0 => ControlFlow::Continue(()),
        _ => ControlFlow::Break(()),
    });
    assert!(matches!(stopped, Err(Error::Interrupted { .. })), "{stopped:?}");
    volume.detach().unwrap();
    let calls = faults.calls(FaultOp::Write);
    assert!(calls < 256, "it waited for all {calls} writes");
    assert_sound(&pool);
    let volume = reattach(&pool, "v", &memory);
    for b in 0..256u64 {
        assert_eq!(read(&volume, b * 4096, 4096), [b as u8; 4096]);
    }
}

/// A file whose writes through io_uring fail while it is broken: they go to a
/// descriptor that is open for reading only.
#[derive(Debug)]
struct Rung {
    file: FileOrigin,
    read_only: std::fs::File,
    broken: Arc<AtomicBool>,
}

impl Origin for Rung {
    origin_passes_on!(file: size_bytes, logical_block, identity, info, read_at, write_at, flush, discard, write_zeroes);

    fn uring_fd(&self, offset: u64, len: u64) -> Option<BorrowedFd<'_>> {
        match self.broken.load(Ordering::Relaxed) {
            true => Some(self.read_only.as_fd()),
            false => self.file.uring_fd(offset, len),
        }
    }
}

/// Errors that io_uring tells keep the data like any other.
#[test]
fn writes_that_io_uring_fails_are_tried_again() {
    let dir = Dir::new("rung");
    let pool = open(&dir.pool(24));
    let disk = dir.file("disk", 64 * 4096);
    let broken = Arc::new(AtomicBool::new(true));
    let origin = Rung {
        file: FileOrigin::open(&disk, false).unwrap(),
        read_only: std::fs::File::open(&disk).unwrap(),
        broken: broken.clone(),
    };
    pool.volume_add_origin("v", &origin, 0).unwrap();
    let volume = pool.attach_origin("v", Box::new(origin), &AttachOptions::default()).unwrap();
    let rung = volume.info().unwrap().origin.unwrap().method.contains("io_uring");
    for b in 0..64u64 {
        volume.write_at(&[b as u8 + 1; 4096], b * 4096).unwrap();
    }
    let mut seen = None;
    volume
        .drain(&mut |p| {
            if let Some(e) = &p.origin_error {
                seen = Some(e.clone());
                assert_eq!(p.pages_left, 64, "nothing is let go");
                broken.store(false, Ordering::Relaxed);
            }
            ControlFlow::Continue(())
        })
        .unwrap();
    match rung {
        true => assert!(seen.unwrap().contains("Bad file descriptor")),
        false => println!("no io_uring here: only the plain way was tested"),
    }
    let content = std::fs::read(&disk).unwrap();
    assert!(content.chunks(4096).enumerate().all(|(b, page)| page == [b as u8 + 1; 4096]));
}

/// Reads are joined over what is cached between them: a sector that is bad on the
/// origin and cached here fails nothing, and one that is bad and not cached fails
/// the requests that want it.
#[test]
fn a_bad_sector_fails_only_who_wants_it() {
    let dir = Dir::new("bad-sector");
    let pool = open(&dir.pool(24));
    let v = attach_faulty(&pool, "v", 1 << 20);
    let pages = |first: u64, n: usize| {
        let mut bytes = vec![0; n * 4096];
        v.volume.read_at(&mut bytes, first * 4096).map(|()| bytes)
    };
    v.volume.write_at(&[5; 4096], 5 * 4096).unwrap();
    v.volume.write_at(&[8; 512], 8 * 4096 + 1024).unwrap();
    v.faults.break_reads_of(5 * 4096 + 512..6 * 4096 - 512);
    let joined = pages(4, 3).expect("what is bad is cached");
    assert_eq!((joined[0], joined[4096], joined[2 * 4096]), (0, 5, 0));
    v.faults.break_reads_of(8 * 4096 + 1024..8 * 4096 + 1536);
    assert_eq!(pages(8, 1).expect("one sector is cached, and that is bad")[1024], 8);
    v.faults.break_reads_of(6 * 4096..6 * 4096 + 512);
    let e = pages(4, 3).unwrap_err();
    assert!(e.to_string().contains("4096 bytes at offset 24576"), "{e}");
    assert_eq!(pages(4, 2).expect("neither is bad")[4096], 5);
}

/// A file cut short under the mapping is memory that cannot be read, as poison is:
/// an error of the blocks that lay there, and the others are read.
#[test]
fn memory_that_cannot_be_read_fails_its_blocks() {
    let dir = Dir::new("cut-short");
    let path = dir.pool(24);
    let pool = open(&path);
    let v = attach_faulty(&pool, "v", 1 << 20);
    v.faults.break_writes();
    const BLOCKS: u64 = 128;
    for b in 0..BLOCKS {
        v.volume.write_at(&[b as u8 + 1; 4096], b * 4096).unwrap();
    }
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    let whole = file.metadata().unwrap().len();
    file.set_len(whole / 4).unwrap();
    let mut read = [0, 0];
    for b in 0..BLOCKS {
        let mut page = [0; 4096];
        match v.volume.read_at(&mut page, b * 4096) {
            Ok(()) => assert_eq!(page, [b as u8 + 1; 4096], "block {b}"),
            Err(e) => assert!(matches!(e, Error::Lost { .. }), "block {b}: {e}"),
        }
        read[usize::from(page[0] == b as u8 + 1)] += 1;
    }
    assert!(read[0] > 0 && read[1] > 0, "{read:?}: the test tested less than it says");
    // Allows the pool to be closed.
    file.set_len(whole).unwrap();
}

/// Likewise for code that examines media without a pool.
#[test]
fn memory_that_cannot_be_read_is_not_blank() {
    let dir = Dir::new("cut-blank");
    let path = dir.file("blank", 1 << 20);
    let media = Media::open(&path, &MediaOptions::default()).unwrap();
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(4096).unwrap();
    let e = Pool::open_media(media, &PoolOptions::default()).unwrap_err();
    assert!(e.to_string().contains("cannot be read (at byte 4096)"), "{e}");
}

/// Code of the program's own that panics.
#[derive(Debug)]
struct Panicking(MemOrigin, Arc<AtomicBool>);

impl Panicking {
    fn look(&self) {
        assert!(!self.1.load(Ordering::Relaxed), "an origin that panics");
    }
}

impl Origin for Panicking {
    origin_passes_on!(0: size_bytes, logical_block, identity, info, read_at, discard);

    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.look();
        self.0.write_at(data, offset)
    }

    fn flush(&self) -> io::Result<()> {
        self.look();
        self.0.flush()
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> io::Result<()> {
        self.look();
        self.0.write_zeroes(offset, len)
    }
}

/// A panic of an origin is an error of it, again and again: nothing waits for the thread
/// that it was on, and what comes after the mend is written.
#[test]
fn a_panic_of_an_origin_is_an_error_of_it() {
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let dir = Dir::new("panics");
        let pool = open(&dir.pool(24));
        let (memory, broken) = (MemOrigin::new(1 << 20).unwrap(), Arc::new(AtomicBool::new(true)));
        let origin = Panicking(memory.clone(), broken.clone());
        pool.volume_add_origin("v", &memory, 0).unwrap();
        let past = AttachOptions { bypass_limit_bytes: 64 << 10, ..Default::default() };
        let volume = pool.attach_origin("v", Box::new(origin), &past).unwrap();
        // Each thread of the volume has its turn.
        for block in 0..16 {
            volume.write_at(&[7; 4096], block * 8192).unwrap();
        }
        while volume.info().unwrap().origin_errors < 8 {
            let _ = volume.drain(&mut |p| match p.origin_error.is_some() {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            });
        }
        broken.store(false, Ordering::Relaxed);
        drain(&volume);
        assert_eq!(memory.content()[..4096], [7; 4096]);

        // The drain's own flush, which then holds up none of ours.
        volume.write_at(&[8; 256 << 10], 0).unwrap();
        broken.store(true, Ordering::Relaxed);
        let drained = volume.drain(&mut |_| ControlFlow::Continue(()));
        assert!(matches!(drained, Err(Error::OriginIo { .. })), "{drained:?}");
        broken.store(false, Ordering::Relaxed);
        volume.flush().unwrap_err();
        volume.flush().unwrap();
        volume.detach().unwrap();
        pool.close().unwrap();
        tell.send(()).unwrap();
    });
    told.recv_timeout(Duration::from_secs(60)).expect("it ends");
}
