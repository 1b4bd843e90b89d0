// SPDX-License-Identifier: MIT OR Apache-2.0
//! Events that rarely coincide by chance: a process dies, joins or is asked at a given moment.

use super::*;

/// The reply of a process to an order.
struct Asked(Box<dyn Fn(&Order) -> Heard + Send + Sync>);

impl std::fmt::Debug for Asked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Asked")
    }
}

impl Peer for Asked {
    fn pid(&self) -> u32 {
        0
    }

    fn ask(&self, order: &Order, _: bool) -> Heard {
        (self.0)(order)
    }
}

impl World {
    /// Adds a guest that only replies to orders.  Returns its number and that of its file.
    fn guest(&self, answers: impl Fn(&Order) -> Heard + Send + Sync + 'static) -> (u64, u32) {
        let who = self.next.fetch_add(1, Ordering::SeqCst);
        self.homes.hears(who, Arc::new(Asked(Box::new(answers))));
        let joined = self.homes.join_backing(who, 0, self.machine.file(0), SEGMENTS * ONE);
        match joined.expect("joined").0 {
            Answer::Joined { home, .. } => (who, home),
            other => panic!("{other:?}"),
        }
    }

    fn says(&self, who: u64, request: Request) -> Answer {
        let answered = self.homes.answer(who, &request).expect("of a file that is shared");
        answered.map_or_else(Answer::from, |(answer, _)| answer)
    }
}

fn done() -> Heard {
    Heard::Said(Reply::Done)
}

/// The content of the file at a place after each of several cuts.
fn after_cuts(machine: &Arc<Machine>, at: usize, len: usize) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    for seed in 0..20 {
        let after = machine.cut(|| ()).machine(&mut Random(seed), false, &[]);
        let home = recover(&*after, open(&after)).expect("recovered");
        assert!(home.refused.is_empty(), "{home:?}");
        found.push(after.content(0)[at..at + len].to_vec());
    }
    found
}

/// The last store of a dead guest may equal the file's content while the pool has another
/// durable version.
#[test]
fn a_value_that_a_dead_guest_restored_is_durable_after_a_sync() {
    let _alone = alone();
    let Some(features) = has("a_value_that_a_dead_guest_restored_is_durable_after_a_sync") else {
        return;
    };
    let machine = Machine::new(3, &[ONE, 0], []);
    let world = World::new(&machine, &features);
    let (a, b) = (world.process(), world.process());
    let [first, second] = [&a, &b].map(|p| p.map(0, ONE).expect("open"));
    first.store(0, &bytes(1, 7));
    first.sync(0, CELL).expect("a sync");
    first.store(0, &[0; CELL as usize]);
    world.kill(&a, vec![first]).expect("killed");
    second.sync(0, u64::MAX).expect("a sync");
    for found in after_cuts(&machine, 0, CELL as usize) {
        assert!(found.iter().all(|&b| b == 0), "what was there before has come back");
    }
}

/// An eviction finds the death of one guest while a sync asks another guest.
#[test]
fn a_sync_covers_a_dead_guests_stores_whoever_notices_the_death() {
    let _alone = alone();
    let Some(features) = has("a_sync_covers_a_dead_guests_stores_whoever_notices_the_death") else {
        return;
    };
    let machine = Machine::new(3, &[ONE, 0], []);
    let world = Arc::new(World::new(&machine, &features));
    let too = Arc::downgrade(&world);
    let (who, home) = world.guest(move |order| match order {
        Order::Sync { .. } => {
            let world = too.upgrade().expect("a world");
            world.says(1, Request::GiveBack { home: 1, segment: 0 });
            done()
        }
        Order::GiveUp { .. } => Heard::Said(Reply::InUse),
        _ => done(),
    });
    assert_eq!((who, home), (1, 1));
    let (a, b) = (world.process(), world.process());
    let [first, second] = [&a, &b].map(|p| p.map(0, ONE).expect("open"));
    first.store(0, &bytes(1, 7));
    world.says(who, Request::Fill { home, segment: 0 });
    a.messages.dead.store(true, Ordering::SeqCst);
    second.sync(0, u64::MAX).expect("a sync");
    for found in after_cuts(&machine, 0, CELL as usize) {
        assert_eq!(found, bytes(1, 7), "it was acknowledged");
    }
}

/// Otherwise the new guest's calls would not be among those that are waited for.
#[test]
fn a_guest_that_joins_during_a_stop_waits_too() {
    let _alone = alone();
    let Some(features) = has("a_guest_that_joins_during_a_stop_waits_too") else { return };
    let machine = Machine::new(3, &[ONE, 0], []);
    let world = World::new(&machine, &features);
    let (asked, goes_on) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (who, home) = {
        let (asked, goes_on) = (Arc::clone(&asked), Arc::clone(&goes_on));
        world.guest(move |order| {
            while matches!(order, Order::Stop { .. }) && !goes_on.load(Ordering::SeqCst) {
                asked.store(true, Ordering::SeqCst);
                std::thread::sleep(Duration::from_millis(1));
            }
            done()
        })
    };
    machine.slow_resize.store(true, Ordering::SeqCst);
    let comes = world.process();
    std::thread::scope(|s| {
        let size = PAGE as u64;
        let resize = Request::Resize { home, size };
        let resized = s.spawn(|| world.says(who, resize));
        while !asked.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let came = s.spawn(|| comes.map(0, ONE).expect("open"));
        std::thread::sleep(Duration::from_millis(200));
        goes_on.store(true, Ordering::SeqCst);
        let file = came.join().expect("no panic");
        while !machine.resizes.load(Ordering::SeqCst) && !resized.is_finished() {
            std::thread::sleep(Duration::from_millis(1));
        }
        file.read(0, &mut [0; 8]).expect("a read");
        assert!(!machine.resizes.load(Ordering::SeqCst), "a call beside another size");
        assert_eq!(resized.join().expect("no panic"), Answer::Done);
        assert_eq!(file.size(), size);
    });
}

/// Bytes that were cut off have no blocks when the file grows again.
#[test]
fn blocks_that_were_cut_off_are_allocated_again() {
    let _alone = alone();
    let Some(features) = has("blocks_that_were_cut_off_are_allocated_again") else { return };
    let machine = Machine::new(3, &[ONE, 0], []);
    let world = World::new(&machine, &features);
    let (a, b) = (world.process(), world.process());
    let [first, second] = [&a, &b].map(|p| p.map(0, ONE).expect("open"));
    let at = 300 * PAGE as u64;
    first.store(at, &bytes(1, 7));
    first.sync(at, CELL).expect("a sync");
    second.set_size(100 * PAGE as u64).expect("shorter");
    second.set_size(ONE).expect("as long as before");
    first.store(at, &bytes(1, 8));
    first.sync(at, CELL).expect("a sync");
    for found in after_cuts(&machine, at as usize, CELL as usize) {
        assert_eq!(found, bytes(1, 8), "it was acknowledged");
    }
}

/// A call that waits for a frame must end before the size can change.  The process of that call may
/// itself have to release a frame.
#[test]
fn frames_are_released_while_a_resize_waits() {
    let _alone = alone();
    let Some(features) = has("frames_are_released_while_a_resize_waits") else {
        return;
    };
    let machine = Machine::new(3, &[6 * ONE, 0], []);
    let world = World::new(&machine, &features);
    let process = world.process();
    let file = process.map(0, 8 * ONE).expect("open");
    let over = AtomicBool::new(false);
    std::thread::scope(|s| {
        let (file, over) = (&file, &over);
        let reads = s.spawn(move || {
            for n in 0..300u64 {
                let read = file.read(n % 6 * ONE, &mut [0; 8]);
                if read.is_err() {
                    over.store(true, Ordering::SeqCst);
                }
                read.expect("a read");
            }
            over.store(true, Ordering::SeqCst);
        });
        while !over.load(Ordering::SeqCst) {
            file.set_size(6 * ONE + 10).expect("longer");
            file.set_size(6 * ONE).expect("shorter");
        }
        reads.join().expect("no panic");
    });
    file.close().expect("closed");
}

/// The last two guests of a file die, one of them while it asks for a sync.
#[test]
fn a_file_is_closed_whoever_notices_the_death_of_its_last_guest() {
    let _alone = alone();
    let Some(features) = has("a_file_is_closed_whoever_notices_the_death_of_its_last_guest") else {
        return;
    };
    let machine = Machine::new(3, &[ONE, 0], []);
    let world = Arc::new(World::new(&machine, &features));
    let too = Arc::downgrade(&world);
    let (first, home) = world.guest(move |order| {
        if matches!(order, Order::Sync { .. }) {
            let world = too.upgrade().expect("a world");
            world.homes.gone(2, true).expect("gone");
            world.homes.gone(1, true).expect("gone");
        }
        done()
    });
    let (second, _) = world.guest(|_| done());
    let (third, _) = world.guest(|_| Heard::Dead);
    assert_eq!((first, second, third), (1, 2, 3));
    for who in [first, third] {
        world.says(who, Request::Fill { home, segment: 0 });
    }
    world.says(second, Request::SyncOthers { home, at: 0, len: ONE });
    world.homes.gone(third, false).expect("gone");
    assert!(machine.is_empty(), "nobody has it open");
}

/// The other guests rely on the board.
#[test]
fn a_guest_cannot_write_to_the_board() {
    let _alone = alone();
    let Some(features) = has("a_guest_cannot_write_to_the_board") else { return };
    let machine = Machine::new(3, &[ONE, 0], []);
    let world = World::new(&machine, &features);
    let (who, _) = world.guest(|_| done());
    world.homes.gone(who, true).expect("gone");
    world.homes.hears(who, Arc::new(Asked(Box::new(|_| done()))));
    let joined = world.homes.join_backing(who, 0, machine.file(0), ONE).expect("joined");
    let board = joined.1.expect("its board");
    let refused = crate::system::Window::new(std::os::fd::AsFd::as_fd(&board), 0, PAGE);
    assert!(refused.is_err(), "it is not to be written to");
    assert!(rustix::io::pwrite(&board, &[1; 8], 0).is_err(), "it is not to be written to");
    world.homes.gone(who, true).expect("gone");
}

/// Reading a file with holes must not fill them.
#[test]
fn a_segment_that_was_only_read_is_released_without_blocks() {
    let _alone = alone();
    let Some(features) = has("a_segment_that_was_only_read_is_released_without_blocks") else {
        return;
    };
    let machine = Machine::new(3, &[ONE, 0], []);
    let world = World::new(&machine, &features);
    let process = world.process();
    let file = process.map(0, 4 * ONE).expect("open");
    file.set_size(3 * ONE).expect("longer");
    for segment in 0..3 {
        file.read(segment * ONE, &mut [0; 8]).expect("a read");
    }
    let blocks = machine.syncs_and_blocks(0).1;
    file.drop_cache(0, 3 * ONE).expect("given back");
    assert!((0..3).all(|segment| !file.is_here(segment)), "it was given back");
    assert_eq!(machine.syncs_and_blocks(0).1, blocks);
    file.store(2 * ONE, &bytes(1, 7));
    file.drop_cache(2 * ONE, ONE).expect("given back");
    assert!(!file.is_here(2) && machine.syncs_and_blocks(0).1 > blocks);
    file.close().expect("closed");
    assert_eq!(machine.content(0)[2 * ONE as usize..][..CELL as usize], bytes(1, 7));
}

/// If it joined, its file would stay open for nobody.
#[test]
fn a_process_that_ends_while_its_file_is_opened_does_not_join() {
    let _alone = alone();
    let name = "a_process_that_ends_while_its_file_is_opened_does_not_join";
    let Some(features) = has(name) else { return };
    let machine = Machine::new(3, &[ONE, 0], []);
    let world = World::new(&machine, &features);
    let who = world.next.fetch_add(1, Ordering::SeqCst);
    world.homes.hears(who, Arc::new(Asked(Box::new(|_| done()))));
    machine.stall.store(true, Ordering::SeqCst);
    let joined = std::thread::scope(|s| {
        let joins = s.spawn(|| world.homes.join_backing(who, 0, machine.file(0), ONE).map(drop));
        while !machine.stalled.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let ends = s.spawn(|| world.homes.gone(who, false));
        let begun = Instant::now();
        while !ends.is_finished() && begun.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let waits = !ends.is_finished();
        machine.stall.store(false, Ordering::SeqCst);
        ends.join().expect("no panic").expect("gone");
        assert!(!waits, "the end of a process waits for a slow disk");
        joins.join().expect("no panic")
    });
    let said = joined.expect_err("it has ended").to_string();
    assert!(said.contains("has ended"), "{said}");
    assert!(world.homes.guests().is_empty());
    // The file can be opened again.
    world.process().map(0, ONE).expect("it is closed");
}

/// Appends by one process, and looks of another one at the last bytes up to the size.  Returns the
/// number of zeroes that were seen.
fn zeroes_seen(features: &Features, by_end: bool) -> u64 {
    const LEN: u64 = 1000;
    const APPENDS: u64 = 100;
    let machine = Machine::new(3, &[0, 0], []);
    let world = World::new(&machine, features);
    let (a, b) = (world.process(), world.process());
    let [appends, looks] = [&a, &b].map(|p| p.map(0, ONE).expect("open"));
    let looked = AtomicU64::new(0);
    std::thread::scope(|s| {
        let looker = s.spawn(|| {
            let (mut zeroes, mut seen) = (0, 0);
            while seen < APPENDS * LEN {
                let size = looks.size();
                let mut bytes = vec![7; LEN as usize];
                let n = looks.read(seen, &mut bytes).expect("read");
                zeroes += bytes[..n].iter().filter(|&&b| b == 0).count() as u64;
                if size > seen {
                    looks.load(seen, &mut bytes[..(size - seen).min(LEN) as usize]);
                    zeroes += bytes.iter().filter(|&&b| b == 0).count() as u64;
                }
                seen = size;
                looked.store(seen, Ordering::SeqCst);
            }
            zeroes
        });
        let bytes = [7; LEN as usize];
        for i in 0..APPENDS {
            while looked.load(Ordering::SeqCst) < i * LEN {
                std::thread::yield_now();
            }
            match by_end {
                true => assert_eq!(
                    appends.append(&[&bytes[..9], &bytes[9..]]).expect("end"),
                    (i * LEN, LEN)
                ),
                false => appends.write(i * LEN, &bytes).expect("written"),
            }
            assert_eq!(appends.size(), (i + 1) * LEN);
            if i % 16 == 0 {
                appends.sync(0, u64::MAX).expect("synced");
            }
        }
        looker.join().expect("it looked")
    })
}

/// The bytes of an append come before its size.
#[test]
fn a_process_next_to_an_append_sees_no_zeroes() {
    let _alone = alone();
    let Some(features) = has("a_process_next_to_an_append_sees_no_zeroes") else { return };
    for by_end in [false, true] {
        assert_eq!(zeroes_seen(&features, by_end), 0, "by_end: {by_end}");
    }
    plant(Some(Planted::SizeBeforeBytes));
    let found = (0..20).any(|_| zeroes_seen(&features, true) > 0);
    plant(None);
    assert!(found, "the mistake is not found");
}

/// Appends, while another process acts between the bytes and the size.  Returns the bytes that the
/// file has in the end, or none if a call of that process failed.
fn kept_of_an_append(features: &Features, released: bool) -> Vec<u8> {
    const OLD: u64 = 100;
    let machine = Machine::new(3, &[OLD, 0], []);
    let world = World::new(&machine, features);
    let (a, b) = (world.process(), world.process());
    let appends = a.map(0, ONE).expect("open");
    let other = Arc::new(b.map(0, ONE).expect("open"));
    appends.store(0, &[5; OLD as usize]);
    let (its, failed) = (Arc::clone(&other), Arc::new(AtomicBool::new(false)));
    let fails = Arc::clone(&failed);
    *lock(&a.messages.before_grown) = Some(Event(Box::new(move || {
        its.sync(0, u64::MAX).expect("synced");
        match released {
            // A frame whose page at the end is dirty is not released without an error.
            true => fails.store(its.drop_cache(0, ONE).is_err(), Ordering::SeqCst),
            false => drop(its.write_back().expect("written")),
        }
    })));
    assert_eq!(appends.append(&[&[7; 10]]).expect("appended"), (OLD, 10));
    assert!(lock(&a.messages.before_grown).is_none(), "the other process did nothing");
    appends.sync(0, u64::MAX).expect("synced");
    appends.close().expect("closed");
    Arc::into_inner(other).expect("nobody else has it").close().expect("closed");
    match failed.load(Ordering::SeqCst) {
        true => Vec::new(),
        false => machine.content(0)[OLD as usize..].to_vec(),
    }
}

/// A process syncs, writes back or releases the page at the end while another one's bytes are
/// there, and the file has not grown yet.
#[test]
fn an_append_keeps_what_others_make_of_its_page() {
    let _alone = alone();
    let Some(features) = has("an_append_keeps_what_others_make_of_its_page") else { return };
    for (released, bug) in [(false, Planted::EndWritten), (true, Planted::EndReleased)] {
        assert_eq!(kept_of_an_append(&features, released), [7; 10], "released: {released}");
        plant(Some(bug));
        let kept = kept_of_an_append(&features, released);
        plant(None);
        assert_ne!(kept, [7; 10], "{bug:?} is not found");
    }
}

/// A guest that dies while it stores bytes after the end holds up nobody, and leaves no zeroes.
#[test]
fn a_growth_ends_with_its_guest() {
    let _alone = alone();
    let Some(features) = has("a_growth_ends_with_its_guest") else { return };
    let machine = Machine::new(3, &[ONE, 0], []);
    let world = World::new(&machine, &features);
    let process = world.process();
    let file = process.map(0, 4 * ONE).expect("open");
    for ends in 0..3 {
        let size = file.size();
        let dead = Arc::new(AtomicBool::new(false));
        let (who, home) = {
            let dead = Arc::clone(&dead);
            world.guest(move |_| if dead.load(Ordering::SeqCst) { Heard::Dead } else { done() })
        };
        assert_eq!(world.says(who, Request::Grow { home, at: None, len: 10 }), Answer::At(size));
        assert_eq!(file.size(), size, "its bytes are not there");
        let place = std::thread::scope(|s| {
            let other = s.spawn(|| file.append(&[&[7; 5]]).expect("appended"));
            std::thread::sleep(Duration::from_millis(100));
            assert!(!other.is_finished(), "the place of another one is not known yet");
            let (mut grown, mut end) = (0, size);
            match ends {
                0 => (grown, end) = (10, size + 10),
                1 => world.homes.gone(who, false).expect("gone"),
                _ => dead.store(true, Ordering::SeqCst),
            }
            if ends == 0 {
                let more = Request::Grown { home, end: size + 4, more: true };
                assert_eq!(world.says(who, more), Answer::Done);
                assert_eq!(file.size(), size + 4);
                assert!(!other.is_finished(), "more comes");
                let last = Request::Grown { home, end, more: false };
                assert_eq!(world.says(who, last), Answer::Done);
            }
            assert_eq!(other.join().expect("no panic"), (size + grown, 5));
            end
        });
        assert_eq!(file.size(), place + 5);
        let late = Request::Grown { home, end: 3 * ONE, more: false };
        assert!(matches!(world.says(who, late), Answer::Failed { .. }), "it has no place");
        world.homes.gone(who, false).expect("gone");
    }
    file.close().expect("closed");
}

/// A growth that the file refuses, and one whose bytes have no frame, leave the size and hold up
/// nobody.
#[test]
fn a_growth_that_fails_leaves_the_size_and_holds_up_nobody() {
    let _alone = alone();
    let Some(features) = has("a_growth_that_fails_leaves_the_size_and_holds_up_nobody") else {
        return;
    };
    let machine = Machine::new(3, &[100, 0], []);
    let world = World::new(&machine, &features);
    let (a, b) = (world.process(), world.process());
    let [first, second] = [&a, &b].map(|p| p.map(0, 4 * ONE).expect("open"));
    machine.fail_resize();
    first.append(&[&[1; 50]]).expect_err("it cannot be extended");
    assert_eq!((first.size(), second.size()), (100, 100));
    let other = second.clone();
    let appends = std::thread::spawn(move || other.append(&[&[2; 10]]).expect("appended"));
    for _ in 0..500 {
        std::thread::sleep(Duration::from_millis(10));
        if appends.is_finished() {
            break;
        }
    }
    assert!(appends.is_finished(), "a growth that has failed holds up others");
    assert_eq!(appends.join().expect("no panic"), (100, 10));
    machine.no_frames.store(true, Ordering::SeqCst);
    first.write(2 * ONE + 300, &[3; 10]).expect_err("no frame for its bytes");
    machine.no_frames.store(false, Ordering::SeqCst);
    assert_eq!((first.size(), second.size()), (110, 110));
    first.close().and(second.close()).expect("closed");
    assert_eq!(machine.content(0).len(), 110);
}

/// An append that is larger than all frames: what the file has already is released.
#[test]
fn an_append_is_larger_than_the_map() {
    let _alone = alone();
    let Some(features) = has("an_append_is_larger_than_the_map") else { return };
    let machine = Machine::new(3, &[100, 0], []);
    let world = World::new(&machine, &features);
    let (a, b) = (world.process(), world.process());
    let [first, second] = [&a, &b].map(|p| p.map(0, 8 * ONE).expect("open"));
    let bytes: Vec<u8> = (0..6 * SEGMENT).map(|i| 1 + (i % 251) as u8).collect();
    assert_eq!(first.append(&[&bytes[..7], &bytes[7..]]).expect("appended"), (100, 6 * ONE));
    assert_eq!(second.size(), 100 + 6 * ONE);
    let mut found = vec![0; bytes.len()];
    assert_eq!(second.read(100, &mut found).expect("a read"), bytes.len());
    assert!(found == bytes, "other bytes");
    first.close().expect("closed");
    second.close().expect("closed");
    assert!(machine.content(0)[100..] == bytes[..], "other bytes in the file");
}
