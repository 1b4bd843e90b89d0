// SPDX-License-Identifier: MIT OR Apache-2.0
//! Goal: an operation gets the room of removed files, and costs others little.  Method: a tree that
//! has no room, or gets it at a chosen moment.

use super::*;
use crate::replay::planted::{plant, Bug};
use crate::waiters::{MOST_EVER, MOST_OF_A_USER};

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
    let remove = || {
        bed.create("big").unwrap();
        bed.live.unlink(bed.live.root(), b"big", false).unwrap();
        assert!(bed.live.groups.sync_now());
    };
    // The number of tries until there is room, or until the operation gives up.
    let tries = |comes: &dyn Fn(u32) -> bool| {
        let made = AtomicU32::new(0);
        let got = bed.live.with_room(|| {
            let now = made.fetch_add(1, Ordering::Relaxed) + 1;
            comes(now).then_some(()).ok_or(Errno::NOSPC)
        });
        (got.is_ok(), made.into_inner())
    };
    remove();
    assert_eq!(tries(&|now| now == 3), (true, 3), "it comes in time");
    remove();
    let (got, made) = tries(&|_| false);
    assert!(!got && made > 2, "it never comes: {made}");
    remove();
    std::thread::sleep(Duration::from_millis(1100));
    assert_eq!(tries(&|_| false), (false, 1), "the sync was long ago");
    bed.live.end();
    background.join().unwrap();
}

/// Others may sync all the time, and each sync may free something.
#[test]
fn syncs_of_others_do_not_prolong_the_wait_for_room() {
    const SYNCS: Duration = Duration::from_secs(20);
    let bed = Bed::calm("prolonged");
    let background = bed.background();
    let (begun, ended) = (Instant::now(), AtomicBool::new(false));
    let took = std::thread::scope(|s| {
        s.spawn(|| {
            for n in 0.. {
                if ended.load(Ordering::Relaxed) || begun.elapsed() > SYNCS {
                    return;
                }
                let name = format!("of another {n}");
                bed.create(&name).unwrap();
                bed.live.unlink(bed.live.root(), name.as_bytes(), false).unwrap();
                assert!(bed.live.groups.sync_now());
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let refused = bed.live.with_room(|| Err::<(), _>(Errno::NOSPC));
        ended.store(true, Ordering::Relaxed);
        assert_eq!(refused, Err(Errno::NOSPC));
        begun.elapsed()
    });
    assert!(took < SYNCS, "{took:?}");
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
    // Another operation makes room in an hour.
    *bed.live.room_made.lock().unwrap() = Some(begun + Duration::from_secs(3600));
    let refused = bed.live.with_room(|| Err::<(), _>(Errno::NOSPC));
    assert_eq!(refused, Err(Errno::NOSPC));
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
}

/// Those that wait for room keep helpers, which all users share.  So beyond a number nobody of one
/// user waits, and another user's still do.
#[test]
fn only_some_wait_for_room_at_once() {
    let bed = Bed::calm("room-for-many");
    let background = bed.background();
    bed.create("gone").unwrap();
    bed.live.unlink(bed.live.root(), b"gone", false).unwrap();
    let tries = std::cell::Cell::new(0);
    let refused = || {
        tries.set(tries.get() + 1);
        Err::<(), _>(Errno::NOSPC)
    };
    let user = |uid| Acting::new(Caller { uid, gid: uid, pid: 0 });
    let many: Vec<_> =
        std::iter::from_fn(|| bed.live.waiting.begin(4242)).take(MOST_OF_A_USER).collect();
    let acting = user(4242);
    assert_eq!(bed.live.with_room(refused), Err(Errno::NOSPC));
    assert_eq!(tries.take(), 1, "it waited");
    drop(acting);
    let acting = user(4343);
    assert_eq!(bed.live.with_room(refused), Err(Errno::NOSPC));
    assert!(tries.take() > 1, "one user's refuse another's");
    drop((acting, many));
    bed.create("gone, too").unwrap();
    bed.live.unlink(bed.live.root(), b"gone, too", false).unwrap();
    let _acting = user(4242);
    assert_eq!(bed.live.with_room(refused), Err(Errno::NOSPC));
    assert!(tries.get() > 1, "the room of the removed file was not waited for");
    bed.live.end();
    background.join().unwrap();
}

/// How often a change without room is tried while as many as may ever wait for leases do, and how
/// often after that.
fn tries_next_to_leases(bug: Option<Bug>) -> (u32, u32) {
    plant(bug);
    let bed = Bed::calm("room-and-leases");
    plant(None);
    let background = bed.background();
    bed.create("gone").unwrap();
    bed.live.unlink(bed.live.root(), b"gone", false).unwrap();
    let of_leases = bed.live.tree.waiters();
    let all: Vec<_> =
        (50_000..).map_while(|uid| of_leases.begin(uid)).take(MOST_EVER + 1).collect();
    assert_eq!(all.len(), MOST_EVER);
    let tries = std::cell::Cell::new(0);
    let refused = || {
        tries.set(tries.get() + 1);
        Err::<(), _>(Errno::NOSPC)
    };
    let acting = Acting::new(Caller { uid: 4242, gid: 4242, pid: 0 });
    assert_eq!(bed.live.with_room(refused), Err(Errno::NOSPC));
    let meanwhile = tries.take();
    drop(all);
    assert_eq!(bed.live.with_room(refused), Err(Errno::NOSPC));
    drop(acting);
    bed.live.end();
    background.join().unwrap();
    (meanwhile, tries.take())
}

/// Those that wait for leases and those that wait for room share the helpers for changes, and so
/// they have one count.
#[test]
fn leases_and_room_are_waited_for_by_so_many_together() {
    let (meanwhile, after) = tries_next_to_leases(None);
    assert_eq!(meanwhile, 1, "it waited");
    assert!(after > 1, "it did not wait");
    let (meanwhile, _) = tries_next_to_leases(Some(Bug::WaitersApart));
    assert!(meanwhile > 1, "not found: two counts");
}
