// SPDX-License-Identifier: MIT OR Apache-2.0
//! Goal: a store that completed before a sync began is durable when the sync has ended,
//! whatever other threads do.  Method: threads store rising numbers to pages of their own;
//! other threads sync, tick and evict.  A shadow copy stands for the durable content, and only
//! `take` copies a page there.  Each sync first notes what the others have stored and compares
//! afterwards.
//!
//! These tests find each planted bug (`planted_bugs_are_found`).

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::*;
use crate::planted::{plant, Planted};
use crate::system::Window;
use crate::tests::alone;

/// Frames in a memfd, some more than are mapped, and the file as vectors.
#[derive(Clone, Debug)]
struct Memory(Arc<Frames>);

#[derive(Debug)]
struct Frames {
    fd: File,
    window: Window,
    /// The frame of each segment, while it has one.
    frame: Mutex<Vec<Option<usize>>>,
    free: Mutex<Vec<usize>>,
    /// The durable content of each segment.
    durable: Window,
    brought_in: AtomicUsize,
    fail: AtomicBool,
}

impl Memory {
    fn new(segments: usize) -> Memory {
        let file = |n: usize| crate::tests::frames_file((n * SEGMENT) as u64);
        let (fd, durable) = (file(segments + 1), file(segments));
        let window = |fd: &File, n: usize| Window::new(fd.as_fd(), 0, n * SEGMENT).expect("mmap");
        Memory(Arc::new(Frames {
            window: window(&fd, segments + 1),
            durable: window(&durable, segments),
            fd,
            frame: Mutex::new(vec![None; segments]),
            free: Mutex::new((0..=segments).collect()),
            brought_in: AtomicUsize::new(0),
            fail: AtomicBool::new(false),
        }))
    }

    fn make_durable(&self, segment: usize, offset: u64, pages: &PageSet) {
        let mut page = vec![0; PAGE];
        for p in pages.iter() {
            self.0.window.copy_out(offset as usize + p * PAGE, &mut page);
            self.0.durable.copy_in(segment * SEGMENT + p * PAGE, &page);
        }
    }

    fn durable(&self, page: usize) -> u64 {
        let mut bytes = [0; 8];
        self.0.durable.copy_out(page * PAGE, &mut bytes);
        u64::from_ne_bytes(bytes)
    }

    fn give_back_with(&self, segment: usize, offset: u64, late: &PageSet) {
        self.make_durable(segment, offset, late);
        self.give_back(segment, offset);
    }

    fn give_back(&self, segment: usize, offset: u64) {
        // The next owner of a frame must not see its old content.
        self.0.window.copy_in(offset as usize, &vec![0xee; SEGMENT]);
        let frame = self.0.frame.lock().unwrap()[segment].take().expect("has one");
        assert_eq!((frame * SEGMENT) as u64, offset);
        self.0.free.lock().unwrap().insert(0, frame);
    }
}

impl Source for Memory {
    fn memory(&self) -> BorrowedFd<'_> {
        self.0.fd.as_fd()
    }

    fn bring_in(&self, segment: usize) -> io::Result<u64> {
        if self.0.fail.load(Ordering::SeqCst) {
            return Err(io::Error::other("as ordered"));
        }
        if let Some(frame) = self.0.frame.lock().unwrap()[segment] {
            return Ok((frame * SEGMENT) as u64);
        }
        let frame = self.0.free.lock().unwrap().pop().expect("one more than segments");
        let mut bytes = vec![0; SEGMENT];
        self.0.durable.copy_out(segment * SEGMENT, &mut bytes);
        self.0.window.copy_in(frame * SEGMENT, &bytes);
        assert!(self.0.frame.lock().unwrap()[segment].replace(frame).is_none());
        self.0.brought_in.fetch_add(1, Ordering::SeqCst);
        Ok((frame * SEGMENT) as u64)
    }

    fn copy(&self, _: usize, offset: u64, to: &mut [u8]) {
        self.0.window.copy_out(offset as usize, to);
    }

    fn write_back(&self, _: usize, _: u64) -> io::Result<()> {
        Ok(())
    }
}

/// All features.  If this machine lacks one, prints the name of the test that is skipped.
fn everything(name: &str) -> Option<Features> {
    let probe = Memory::new(1);
    let features = Features::detect(probe.memory(), 0);
    if features.watch {
        return Some(features);
    }
    forebay_test::skipped!("{name} needs userfaultfd and PAGEMAP_SCAN: {:?}", features.missing);
    None
}

/// Each set of features that a machine may have, and finally the set of this one.
fn each_feature_set() -> Vec<Features> {
    let has = Features::detect(Memory::new(1).memory(), 0);
    let set = |faults, watch, scan, moves| {
        let missing = Vec::new();
        Features { faults, watch, scan, moves, missing }
    };
    let sets = [
        set(false, false, false, false),
        set(false, false, true, false),
        set(true, false, false, false),
        set(true, false, true, false),
        set(true, true, true, false),
        set(true, true, true, true),
    ];
    let possible = |s: &Features| {
        let has_all = (has.faults || !s.faults) && (has.watch || !s.watch);
        has_all && (has.scan || !s.scan) && (has.moves || !s.moves)
    };
    let sets: Vec<_> = sets.into_iter().filter(possible).collect();
    assert!(!sets.is_empty());
    if sets.len() < 6 {
        forebay_test::skipped!("ways of the tracker that need {:?}", has.missing);
    }
    sets
}

struct Told(Vec<usize>);

fn take(t: &Tracker<Memory>, pages: Range<usize>) -> Told {
    let mut told = Vec::new();
    t.take(pages, |segment, offset, set| {
        t.source().make_durable(segment, offset, set);
        told.extend(set.iter().map(|p| segment * SEGMENT_PAGES + p));
        Ok::<_, ()>(())
    })
    .expect("never fails");
    Told(told)
}

fn store(t: &Tracker<Memory>, page: usize, value: u64) {
    t.store(page * PAGE, &value.to_ne_bytes());
}

fn load(t: &Tracker<Memory>, page: usize) -> u64 {
    let mut bytes = [0; 8];
    t.load(page * PAGE, &mut bytes);
    u64::from_ne_bytes(bytes)
}

fn tracker(segments: usize, features: &Features) -> Tracker<Memory> {
    Tracker::new(Memory::new(segments), segments, features.clone()).expect("a tracker")
}

#[test]
fn every_store_is_reported_once_with_each_feature_set() {
    let _alone = alone();
    for features in each_feature_set() {
        let t = tracker(3, &features);
        take(&t, 0..usize::MAX);
        for (page, value) in [(0, 1), (1, 2), (511, 3), (512, 4), (1200, 5)] {
            store(&t, page, value);
        }
        let Told(told) = take(&t, 0..513);
        for page in [0, 1, 511, 512] {
            assert!(told.contains(&page), "{features:?}: {page}");
        }
        assert!(!told.contains(&1200));
        assert_eq!((t.source().durable(1), t.source().durable(1200)), (2, 0));
        assert!(take(&t, 0..usize::MAX).0.contains(&1200));
        assert_eq!(t.source().durable(1200), 5);
        let Told(none) = take(&t, 0..usize::MAX);
        assert_eq!(none.is_empty(), features.scan, "{features:?}: {}", none.len());
    }
}

#[test]
fn pages_not_made_durable_are_reported_again() {
    let _alone = alone();
    for features in each_feature_set() {
        let t = tracker(2, &features);
        take(&t, 0..usize::MAX);
        store(&t, 7, 1);
        assert_eq!(t.take(0..usize::MAX, |_, _, _| Err("no")), Err("no"));
        assert!(take(&t, 0..usize::MAX).0.contains(&7), "{features:?}");
        assert_eq!(t.source().durable(7), 1);

        store(&t, 8, 2);
        let panics = || t.take(0..usize::MAX, |_, _, _| -> Result<(), ()> { panic!("as ordered") });
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(panics)).expect_err("it panics");
        assert!(take(&t, 0..usize::MAX).0.contains(&8), "{features:?}");
        assert_eq!(t.source().durable(8), 2);
    }
}

#[test]
fn a_quiet_segment_is_not_looked_at_until_it_is_stored_to() {
    let _alone = alone();
    let Some(features) = everything("a_quiet_segment_is_not_looked_at_until_it_is_stored_to")
    else {
        return;
    };
    let t = tracker(4, &features);
    for page in 0..4 * SEGMENT_PAGES {
        store(&t, page, 9);
    }
    take(&t, 0..usize::MAX);
    for _ in 0..3 {
        t.tick(2, 0, usize::MAX).expect("a tick");
    }
    assert_eq!(t.counts(), Counts { absent: 0, scanned: 0, watched: 4 });
    assert_eq!((0..2048).map(|p| load(&t, p)).sum::<u64>(), 9 * 2048);
    assert_eq!(t.counts().watched, 4, "a load is no store");
    store(&t, 515, 10);
    assert_eq!(t.counts(), Counts { absent: 0, scanned: 1, watched: 3 });
    assert_eq!(take(&t, 0..usize::MAX).0, [515]);
    assert_eq!(t.source().durable(515), 10);

    // A segment that is stored to but not synced does not become watched: its pages are still
    // to be reported.
    store(&t, 516, 11);
    for _ in 0..5 {
        t.tick(1, 0, usize::MAX).expect("a tick");
    }
    assert_eq!(t.counts().scanned, 1);
    assert_eq!(take(&t, 0..usize::MAX).0, [516]);

    // The kernel stores too.
    for _ in 0..3 {
        t.tick(1, 0, usize::MAX).expect("a tick");
    }
    assert_eq!(t.counts().watched, 4);
    let zero = File::open("/dev/zero").expect("/dev/zero");
    assert_eq!(t.space().store_by_kernel(600 * PAGE, &zero, 16).expect("read(2)"), 16);
    assert_eq!(take(&t, 0..usize::MAX).0, [600]);
}

#[test]
fn an_evicted_segment_returns_unchanged() {
    let _alone = alone();
    let Some(features) = everything("an_evicted_segment_returns_unchanged") else { return };
    let t = tracker(2, &features);
    store(&t, 3, 7);
    assert!(
        matches!(t.evict(0, || true, |_, _| Ok::<_, ()>(())), Err(NotEvicted::InUse)),
        "stored to"
    );
    take(&t, 0..usize::MAX);
    let memory = t.source().clone();
    let give_back = |offset, late: &PageSet| {
        memory.give_back_with(0, offset, late);
        Ok::<_, ()>(())
    };
    t.evict(0, || true, give_back).expect("clean");
    assert!(
        matches!(t.evict(1, || true, |_, _| Ok::<_, ()>(())), Err(NotEvicted::InUse)),
        "never there"
    );
    assert_eq!((load(&t, 3), load(&t, 4)), (7, 0));
    assert_eq!(memory.0.brought_in.load(Ordering::SeqCst), 2);
}

#[test]
fn memory_that_cannot_be_released_is_kept_and_reported() {
    let _alone = alone();
    let Some(features) = everything("memory_that_cannot_be_released_is_kept_and_reported") else {
        return;
    };
    let memory = |t: &Tracker<Memory>| t.source().clone();
    for discarded in [false, true] {
        for touched in [false, true] {
            let t = tracker(1, &features);
            store(&t, 3, 7);
            take(&t, 0..usize::MAX);
            if discarded {
                store(&t, 4, 8);
                assert!(matches!(
                    t.discard(0, || true, |_| Err::<(), _>("no")),
                    Err(NotEvicted::Kept("no"))
                ));
            } else {
                let late = |offset, late: &PageSet| {
                    assert!(late.is_empty());
                    // This store acts as one that came late and is known.
                    memory(&t).0.window.copy_in(offset as usize + 4 * PAGE, &[8]);
                    Err::<(), _>("no")
                };
                assert!(matches!(t.evict(0, || true, late), Err(NotEvicted::Kept("no"))));
            }
            assert_eq!(t.counts().absent, 1);
            t.with_present(0, |there| assert!(there.is_some()));
            if touched {
                assert_eq!(load(&t, 3), 7);
                assert_eq!(load(&t, 4), 8, "it is the same memory");
            }
            if discarded {
                take(&t, 0..usize::MAX);
                assert_eq!(t.source().durable(4), 8, "nothing is forgotten");
            }
            let go = |offset, late: &PageSet| {
                memory(&t).give_back_with(0, offset, late);
                Ok::<_, ()>(())
            };
            t.evict(0, || true, go).expect("now it can be");
            assert_eq!(load(&t, 3), 7);
        }
    }
}

#[test]
fn a_mapping_that_fails_halfway_loses_no_store() {
    let _alone = alone();
    let name = "a_mapping_that_fails_halfway_loses_no_store";
    let Some(features) = everything(name) else { return };
    // One half of the segment may be protected: a store to the other half is no event, and later
    // ones are not either.
    let orders = [[3, 500, 3], [3, 3, 500], [500, 500, 3]];
    let faults = [Planted::AdviceFails, Planted::ProtectFails];
    for (fault, order) in faults.iter().flat_map(|f| orders.map(|order| (*f, order))) {
        let t = tracker(1, &features);
        (0..SEGMENT_PAGES).for_each(|page| store(&t, page, 3));
        take(&t, 0..usize::MAX);
        plant(Some(fault));
        t.tick(0, 0, 9).and_then(|_| t.tick(0, 0, 9)).expect("ticks");
        for (page, value) in order.into_iter().zip(4..) {
            store(&t, page, value);
            let Told(told) = take(&t, 0..usize::MAX);
            assert!(told.contains(&page), "{fault:?} {order:?}: {value}");
            assert_eq!(t.source().durable(page), value);
        }
        plant(None);
    }
}

#[test]
fn advice_to_the_kernel_loses_no_store() {
    let _alone = alone();
    let Some(features) = everything("advice_to_the_kernel_loses_no_store") else { return };
    assert_eq!(told_after_advice(&features), SEGMENT_PAGES);
    plant(Some(Planted::EventNotAwaited));
    // Each attempt finds the bug with a probability of one or two per cent.
    let found = (0..3000).any(|_| told_after_advice(&features) != SEGMENT_PAGES);
    plant(None);
    assert!(found, "a mistake was not found");
}

/// The number of pages that are reported after the advice.  The whole segment counts, since the
/// kernel may have lost its record of stores.
fn told_after_advice(features: &Features) -> usize {
    let mut told = SEGMENT_PAGES;
    for watched in [false, true] {
        let t = tracker(1, features);
        (0..SEGMENT_PAGES).for_each(|page| store(&t, page, 3));
        take(&t, 0..usize::MAX);
        if watched {
            t.tick(0, 0, 9).and_then(|_| t.tick(0, 0, 9)).expect("ticks");
        } else {
            (0..SEGMENT_PAGES).for_each(|page| store(&t, page, 4));
        }
        assert_eq!(t.counts().watched, usize::from(watched));
        t.space().advise_unneeded(0).expect("madvise");
        store(&t, 5, 5);
        take(&t, 0..usize::MAX);
        assert_eq!(t.source().durable(5), 5);
        assert_eq!(t.source().durable(6), if watched { 3 } else { 4 });
        told = told.min(take(&t, 0..usize::MAX).0.len());
    }
    told
}

/// Runs threads that store, sync, tick and evict until the time is over, or until a page was
/// stored before a sync began and was not durable when the sync had ended.
fn race(features: &Features, time: Duration) -> Result<[usize; 3], String> {
    const SEGMENTS: usize = 6;
    const WRITERS: usize = 2;
    const PAGES: usize = 24;
    const PATIENCE: Duration = Duration::from_secs(60);
    let t = tracker(SEGMENTS, features);
    // Some pages of each segment, each with one writer.
    let page_of = |i: usize| (i * 7919) % SEGMENT_PAGES + (i % SEGMENTS) * SEGMENT_PAGES;
    let stored: Vec<AtomicU64> = (0..PAGES).map(|_| AtomicU64::new(0)).collect();
    let found: Mutex<Option<String>> = Mutex::new(None);
    let [syncs, watched, evicted] = [const { AtomicUsize::new(0) }; 3];
    let end = Instant::now() + time;
    // On a busy machine little has happened by then.
    let enough = || {
        let [syncs, watched, evicted] =
            [&syncs, &watched, &evicted].map(|n| n.load(Ordering::SeqCst));
        syncs > 10 && (!features.watch || (watched > 5 && evicted > 5))
    };
    let over = || {
        let now = Instant::now();
        (now > end && enough()) || now > end + PATIENCE || found.lock().unwrap().is_some()
    };
    let check = |own: &mut u64| {
        let before: Vec<u64> = stored.iter().map(|s| s.load(Ordering::SeqCst)).collect();
        take(&t, 0..usize::MAX);
        syncs.fetch_add(1, Ordering::SeqCst);
        *own += 1;
        for (i, &value) in before.iter().enumerate() {
            let durable = t.source().durable(page_of(i));
            if durable < value {
                let what = format!("page {}: {value} was stored, {durable} is durable", page_of(i));
                found.lock().unwrap().get_or_insert(what);
            }
        }
    };
    std::thread::scope(|s| {
        for writer in 0..WRITERS {
            let (stored, over, check, t) = (&stored, &over, &check, &t);
            s.spawn(move || {
                let mut random = writer as u64 + 1;
                let mut own = 0;
                while !over() {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    // Most stores are within one segment, so that the others become quiet.
                    let near = (random >> 40) as usize % 8;
                    let i = match near {
                        0 => (random >> 33) as usize % PAGES,
                        _ => {
                            (own as usize / 16 % SEGMENTS)
                                + SEGMENTS * ((random >> 33) as usize % 4)
                        }
                    };
                    let i = i % PAGES;
                    if i % WRITERS == writer {
                        let value = stored[i].load(Ordering::SeqCst) + 1;
                        store(t, page_of(i), value);
                        assert_eq!(load(t, page_of(i)), value);
                        stored[i].store(value, Ordering::SeqCst);
                    }
                    if (random >> 50).is_multiple_of(4) {
                        check(&mut own);
                    }
                }
            });
        }
        s.spawn(|| {
            while !over() {
                check(&mut 0);
            }
        });
        s.spawn(|| {
            let mut next = 0;
            while !over() {
                watched.fetch_add(t.tick(1, 1, 2).expect("a tick"), Ordering::SeqCst);
                let memory = t.source().clone();
                next = (next + 1) % SEGMENTS;
                let give_back = |offset, late: &PageSet| {
                    memory.give_back_with(next, offset, late);
                    Ok::<_, ()>(())
                };
                match t.evict(next, || true, give_back) {
                    Ok(()) => drop(evicted.fetch_add(1, Ordering::SeqCst)),
                    Err(NotEvicted::InUse) => {}
                    Err(e) => panic!("{e:?}"),
                }
                std::thread::sleep(Duration::from_micros(300));
            }
        });
    });
    let blind = (0..SEGMENTS).any(|s| t.inner.blind(s));
    assert!(!blind || !features.scan, "every page of a segment counts");
    match found.into_inner().unwrap() {
        Some(found) => Err(found),
        None => Ok([syncs, watched, evicted].map(AtomicUsize::into_inner)),
    }
}

#[test]
fn a_store_before_a_sync_is_durable_after_it() {
    let _alone = alone();
    for features in each_feature_set() {
        let [syncs, watched, evicted] =
            race(&features, Duration::from_secs(2)).expect("no store is lost");
        println!("{features:?}: {syncs} syncs, {watched} times watched, {evicted} evicted");
        assert!(syncs > 10);
        assert!(!features.watch || (watched > 5 && evicted > 5));
    }
}

#[test]
fn planted_bugs_are_found() {
    let _alone = alone();
    let Some(features) = everything("planted_bugs_are_found") else { return };
    let mistakes = [
        Planted::ProtectWithoutLook,
        Planted::NotCompared,
        Planted::LookAfterStore,
        Planted::UnlockedWhileDurable,
        Planted::ProtectedAfterDurable,
        Planted::LookedTooEarly,
    ];
    for mistake in mistakes {
        plant(Some(mistake));
        // The race ends as soon as the bug is found; on a busy machine that may take long.
        let found = race(&features, Duration::from_secs(300));
        plant(None);
        let found = found.expect_err(&format!("{mistake:?} was not found"));
        println!("{mistake:?}: {found}");
    }
}

/// The test runs in a process of its own, which the SIGBUS ends.
#[test]
fn a_segment_that_cannot_be_brought_in_gives_sigbus_and_may_be_tried_again() {
    use std::os::unix::process::ExitStatusExt;
    let _alone = alone();
    let name = "a_segment_that_cannot_be_brought_in_gives_sigbus_and_may_be_tried_again";
    let Some(features) = everything(name) else { return };
    let t = tracker(2, &features);
    t.source().0.fail.store(true, Ordering::SeqCst);
    if std::env::var_os("FOREBAY_MAP_DIES").is_some() {
        load(&t, 600);
        unreachable!("nothing is there");
    }
    let child = std::process::Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", &format!("tracker::tests::{name}")])
        .env("FOREBAY_MAP_DIES", "1")
        .output()
        .expect("it runs");
    const SIGBUS: i32 = 7;
    assert_eq!(child.status.signal(), Some(SIGBUS), "{child:?}");

    assert_eq!(t.with(1, |_| ()).expect_err("as ordered").to_string(), "as ordered");
    t.source().0.fail.store(false, Ordering::SeqCst);
    t.with(1, |_| ()).expect("now it can be");
    assert_eq!(load(&t, 600), 0);
}

#[test]
fn a_mapping_that_is_too_large_is_refused_by_name() {
    let _alone = alone();
    let refused = Tracker::new(Memory::new(1), 1 << 30, Features::none());
    let said = refused.expect_err("2 PiB").to_string();
    assert!(said.contains("vm.max_map_count"), "{said}");
}
