// SPDX-License-Identifier: MIT OR Apache-2.0
//! Goal: an operation gets the room of removed files, and costs others little.  Method: a tree that
//! has no room, or gets it at a chosen moment.

use super::*;

/// An operation without room tries again and again: others wait only for regular syncs.
#[test]
fn a_lack_of_room_costs_at_most_one_sync_a_second() {
    let bed = Bed::calm("room");
    let background = bed.background();
    let groups = || bed.live.groups.syncs();
    let tries_of = |error| {
        let tries = AtomicU64::new(0);
        let refused = bed.live.with_room(|| {
            tries.fetch_add(1, Ordering::Relaxed);
            Err::<(), _>(error)
        });
        assert_eq!(refused, Err(error));
        tries.into_inner()
    };
    let remove = |name: &str| {
        bed.create(name).unwrap();
        bed.live.unlink(bed.live.root(), name.as_bytes(), false).unwrap();
    };
    bed.create("there").unwrap();
    assert_eq!((tries_of(Errno::DQUOT), tries_of(Errno::NOSPC), groups()), (1, 1, 0));
    remove("another's");
    let acting = Acting::new(Caller { uid: 4242, gid: 4242, pid: 0 });
    assert_eq!((tries_of(Errno::DQUOT), groups()), (2, 1), "his group of files, perhaps");
    assert_eq!((tries_of(Errno::DQUOT), groups()), (1, 1), "nothing is gone any more");
    drop(acting);
    let begun = Instant::now();
    for i in 0..5 {
        remove(&i.to_string());
        match i % 2 {
            0 => assert!(tries_of(Errno::NOSPC) > 2, "the room may come late"),
            _ => assert_eq!(tries_of(Errno::DQUOT), 2),
        }
    }
    // One a second for room, and one that comes by itself.
    let most = 2 * (2 + begun.elapsed().as_secs());
    assert!(groups() <= most, "{} syncs in {:?}", groups() - 1, begun.elapsed());
    bed.live.end();
    background.join().unwrap();
}

/// Some file systems free the room of a removed file a moment after the sync, whoever asked for it.
#[test]
fn room_that_comes_late_is_waited_for_a_second_at_most() {
    let bed = Bed::calm("late");
    let background = bed.background();
    let after = |wait: Duration, late: Duration| {
        bed.create("big").unwrap();
        bed.live.unlink(bed.live.root(), b"big", false).unwrap();
        assert!(bed.live.groups.sync_now());
        let begun = Instant::now();
        std::thread::sleep(wait);
        let comes = || begun.elapsed() >= wait + late;
        let got = bed.live.with_room(|| comes().then_some(()).ok_or(Errno::NOSPC));
        (got.is_ok(), begun.elapsed() < wait + late.min(Duration::from_secs(3)))
    };
    let ms = Duration::from_millis;
    assert!(after(ms(0), ms(300)).0, "it comes in time");
    assert_eq!(after(ms(0), ms(60_000)), (false, true), "it never comes");
    assert_eq!(after(ms(1100), ms(60_000)), (false, true), "the sync was long ago");
    bed.live.end();
    background.join().unwrap();
}

/// After a failure nothing is synced any more, so no operation waits for room.
#[test]
fn a_lack_of_room_is_refused_at_once_after_a_failure() {
    let bed = Bed::calm("no-room");
    bed.create("gone").unwrap();
    bed.live.unlink(bed.live.root(), b"gone", false).unwrap();
    bed.live.groups.fail();
    let begun = Instant::now();
    *bed.live.room_made.lock().unwrap() = Some(begun);
    let refused = bed.live.with_room(|| Err::<(), _>(Errno::NOSPC));
    assert_eq!(refused, Err(Errno::NOSPC));
    assert!(begun.elapsed() < Duration::from_millis(900), "{:?}", begun.elapsed());
}
