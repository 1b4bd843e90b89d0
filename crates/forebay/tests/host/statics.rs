// SPDX-License-Identifier: MIT OR Apache-2.0
//! Static volumes: their cost, their refusals and reports, and that damage is reported and
//! never hidden by older data.  Other tests run on them, too: model, kill, modes, bypass.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::*;
use forebay::*;

const SHARE: u64 = 64 << 10;
/// Slots of such a share: block b has slot b % SLOTS.
const SLOTS: u64 = 7;
const BLOCKS: u64 = 21;

fn origin() -> MemOrigin {
    MemOrigin::new(BLOCKS as usize * 4096).unwrap()
}

fn refusal(pool: &Pool, name: &str, share_bytes: u64, flush_every: Option<Duration>) -> String {
    let static_share = Some(StaticShare { share_bytes, flush_every });
    let error = pool.volume_add_static(name, &origin(), 0, static_share).unwrap_err();
    assert!([2, 8].contains(&error.exit_code()), "{error}");
    error.to_string()
}

#[test]
fn shares_that_cannot_be_are_refused_with_the_way_out() {
    let dir = Dir::new("shares");
    let pool = open(&dir.pool(8));
    let text = refusal(&pool, "v", SHARE, None);
    assert!(text.contains("has no room for static volumes") && text.contains("--static"), "{text}");
    pool.close().unwrap();
    std::fs::remove_file(dir.path("pool")).unwrap();
    let pool = open(&dir.static_pool(4 * SHARE));
    for (bytes, every, why) in [
        (0, None, "use a multiple of 64"),
        (SHARE + 4096, None, "use a multiple of 64"),
        (5 * SHARE, None, "larger than all room"),
        (SHARE, Some(Duration::ZERO), "use 1us to"),
        (SHARE, Some(Duration::from_secs(3601)), "use 1us to"),
    ] {
        let text = refusal(&pool, "v", bytes, every);
        assert!(text.contains("volume v: ") && text.contains(why), "{text}");
    }
    let share = |share_bytes| Some(StaticShare { share_bytes, flush_every: None });
    for name in ["a", "b", "c"] {
        pool.volume_add_static(name, &origin(), 0, share(SHARE)).unwrap();
    }
    pool.volume_remove("b", false).unwrap();
    // Two units are left, and not in one piece.
    let text = refusal(&pool, "v", 2 * SHARE, None);
    assert!(
        text.contains("in one piece") && text.contains("a 64") && text.contains("c 64"),
        "{text}"
    );
    pool.volume_add_static("d", &origin(), 0, share(SHARE)).unwrap();
    pool.volume_add_static("e", &origin(), 0, share(SHARE)).unwrap();
    assert!(refusal(&pool, "v", SHARE, None).contains("remove a static volume"));
    let status = pool.status();
    assert_eq!((status.static_bytes, status.static_given_bytes), (4 * SHARE, 4 * SHARE));
    for (bytes, why) in [(SHARE + 512, "use a multiple of 64"), (1 << 40, "leave less for them")] {
        let made = CreateOptions { static_bytes: bytes, ..small(8) };
        let error = create(&dir.path("other"), &made).unwrap_err();
        assert!(error.exit_code() == 2 && error.to_string().contains(why), "{error}");
    }
}

#[test]
fn what_it_holds_is_told() {
    let dir = Dir::new("told");
    let pool = Pool::open(&dir.static_pool(SHARE), &unthrottled()).unwrap();
    let origin = origin();
    let volume = attach(&pool, "v", &origin);
    volume.write_at(&[1; 4 * 4096], 0).unwrap();
    volume.write_at(&[2; 512], 7 * 4096).unwrap();
    let info = volume.info().unwrap();
    assert_eq!((info.pages, info.static_slots, info.uncounted), (5, SLOTS as u32, false));
    assert_eq!((info.writes, info.written_bytes), (5, 4 * 4096 + 512));
    let slot = pool.slot_of_block("v", 7).unwrap().unwrap();
    assert_eq!((slot.slot, slot.ways[0].live, slot.ways[1].live), (0, true, true));
    assert!(slot.to_string().contains("data ok"), "{slot}");
    assert!(pool.slot_of_block("v", BLOCKS).is_err());
    let status = pool.status();
    assert_eq!((status.static_cached_bytes, status.cached_bytes), (5 * 4096, 0));
    assert_eq!((status.counters.writes, status.volumes[0].verdict), (5, Verdict::Cached));
    volume.detach().unwrap();
    // As it was detached; and nobody says that the origin is complete.
    assert_eq!(pool.volume_info("v").unwrap().pages, 5);
    assert_eq!(pool.completeness("v").unwrap().verdict, Verdict::NotAttached);
    assert!(pool.volume_remove("v", false).is_err());
    let volume = reattach(&pool, "v", &origin);
    assert_eq!((volume.info().unwrap().pages, read(&volume, 0, 4096)), (5, vec![1; 4096]));
    drain(&volume);
    assert_eq!((volume.info().unwrap().pages, origin.content()[7 * 4096]), (0, 2));
    volume.detach().unwrap();
    assert_eq!(pool.completeness("v").unwrap().verdict, Verdict::Complete);
    pool.volume_remove("v", false).unwrap();
    assert!(pool.volumes().is_empty());
}

/// After a kill it is not known what it holds, until it was counted.
#[test]
fn what_was_not_closed_is_not_complete() {
    let dir = Dir::new("uncounted");
    let (path, copy) = (dir.static_pool(SHARE), dir.path("copy"));
    let pool = open(&path);
    let origin = origin();
    let volume = attach(&pool, "v", &origin);
    volume.write_at(&[1; 4096], 0).unwrap();
    std::fs::copy(&path, &copy).unwrap();
    volume.detach().unwrap();
    pool.close().unwrap();
    let pool = open(&copy);
    let info = pool.volume_info("v").unwrap();
    assert!(info.uncounted && info.to_string().contains("perhaps more"), "{info}");
    let judged = pool.completeness("v").unwrap();
    assert!(judged.verdict == Verdict::Unknown && judged.exit_code() != 0, "{judged}");
    assert!(pool.volume_remove("v", false).is_err(), "it holds something");
    assert_sound(&pool);
    let volume = reattach(&pool, "v", &origin);
    let start = Instant::now();
    while volume.info().unwrap().uncounted {
        assert!(start.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(volume.info().unwrap().pages, 1);
    drain(&volume);
    assert_eq!(origin.content()[0], 1);
}

/// Writes that meet in a slot wait for destage, which begins by itself.
#[test]
fn conflicts_are_resolved_and_counted() {
    let dir = Dir::new("conflicts");
    let pool = Pool::open(&dir.static_pool(SHARE), &unthrottled()).unwrap();
    let origin = origin();
    let volume = attach(&pool, "v", &origin);
    for n in 1..=20u8 {
        for block in [0, SLOTS, 2 * SLOTS] {
            volume.write_at(&[n; 4096], block * 4096).unwrap();
        }
    }
    let info = volume.info().unwrap();
    assert!(info.conflicts > 0 && info.pages <= 2, "{info:?}");
    drain(&volume);
    for block in [0, SLOTS, 2 * SLOTS] {
        assert_eq!(origin.content()[block as usize * 4096..][..4096], [20; 4096]);
    }
    volume.detach().unwrap();
    assert_sound(&pool);
}

#[test]
fn a_period_of_its_own() {
    let dir = Dir::new("period");
    let pool = Pool::open(&dir.static_pool(SHARE), &unthrottled()).unwrap();
    let origin = origin();
    let every = Some(Duration::from_millis(10));
    let static_share = Some(StaticShare { share_bytes: SHARE, flush_every: every });
    let added = pool.volume_add_static("v", &origin, 0, static_share).unwrap();
    assert_eq!(added.flush_every_seconds, Some(0.01));
    let volume = reattach(&pool, "v", &origin);
    volume.write_at(&[3; 4096], 0).unwrap();
    let start = Instant::now();
    while origin.content()[0] != 3 {
        assert!(start.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(1));
    }
    volume.detach().unwrap();
    assert_eq!(pool.volume_info("v").unwrap().flush_every_seconds, Some(0.01));
}

/// A drain ends although others write meanwhile, and has everything written before it.
#[test]
fn a_drain_beside_a_writer_ends() {
    let dir = Dir::new("drained");
    let pool = Pool::open(&dir.static_pool(8 * SHARE), &unthrottled()).unwrap();
    let origin = origin();
    let volume = attach(&pool, "v", &origin);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stops = Stops(&stop);
        scope.spawn(|| {
            for n in 0u64.. {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                volume.write_at(&[n as u8; 4096], (4 + n % 8) * 4096).unwrap();
            }
        });
        for n in 1..=20u8 {
            volume.write_at(&[n; 4096], 0).unwrap();
            drain(&volume);
            assert_eq!(origin.content()[0], n);
        }
    });
}

/// A page, or a line: every report says that it is lost.  The next drain takes pages that an
/// earlier drain found damaged and that are readable again.
#[test]
fn what_was_bad_for_a_time_comes_home() {
    let dir = Dir::new("for-a-time");
    let path = dir.static_pool(SHARE);
    let origin = origin();
    let pool = open(&path);
    let volume = attach(&pool, "v", &origin);
    volume.write_at(&[2; 4096], 4096).unwrap();
    let newest = pool.slot_of_block("v", 1).unwrap().unwrap();
    let way = newest.ways.iter().position(|w| w.live).unwrap() as u64;
    let sb = pool.superblock().unwrap();
    let share = sb.data_offset_bytes + u64::from(sb.chunks) * u64::from(sb.chunk_size_bytes);
    let at = share + 4096 + 4096 + (2 + way) * 4096 + 100;
    spoil(&path, at);
    assert_eq!(drain_but_lost(&volume).lost, [1]);
    spoil(&path, at);
    drain(&volume);
    let mut has = [0; 4096];
    origin.read_at(&mut has, 4096).unwrap();
    assert_eq!(has, [2; 4096]);
    assert_sound(&pool);
}

#[test]
fn damage_is_told_and_never_older_data() {
    let dir = Dir::new("damaged");
    let path = dir.static_pool(SHARE);
    let origin = origin();
    let pool = open(&path);
    let volume = attach(&pool, "v", &origin);
    volume.write_at(&[1; BLOCKS as usize * 4096], 0).unwrap();
    drain(&volume);
    for block in [0, 1, 2, 9] {
        volume.write_at(&[2; 4096], block * 4096).unwrap();
    }
    let newest = pool.slot_of_block("v", 1).unwrap().unwrap();
    let way = newest.ways.iter().position(|w| w.live).unwrap() as u64;
    volume.detach().unwrap();
    let sb = pool.superblock().unwrap();
    pool.close().unwrap();
    let share = sb.data_offset_bytes + u64::from(sb.chunks) * u64::from(sb.chunk_size_bytes);
    spoil(&path, share + 4096 + 4096 + (2 + way) * 4096 + 100); // block 1
    for byte in 0..64 {
        spoil(&path, share + 4096 + 2 * 64 + byte); // slot 2: blocks 2, 9 and 16
    }
    let options = PoolOptions { read_only: true, ..Default::default() };
    let pool = Pool::open(&path, &options).unwrap();
    let report = pool.check(true).unwrap();
    assert!(!report.ok && report.exit_code() == 11, "{report}");
    assert_eq!(report.volumes[0].lost, [1, 2, 9, 16]);
    pool.close().unwrap();
    let pool = open(&path);
    let volume = reattach(&pool, "v", &origin);
    let mut data = [0; 4096];
    for block in [1, 2, 9, 16] {
        let error = volume.read_at(&mut data, block * 4096).unwrap_err();
        assert!(matches!(error, Error::Lost { .. }), "{block}: {error}");
    }
    let report = pool.check(true).unwrap();
    assert_eq!((report.volumes[0].lost_blocks, report.volumes[0].lost.len()), (4, 4));
    assert_eq!(read(&volume, 0, 4096), [2; 4096]);
    assert_eq!(read(&volume, 3 * 4096, 4096), [1; 4096]);
    let judged = drain_but_lost(&volume);
    assert_eq!((judged.verdict, &judged.lost[..]), (Verdict::LostBlocks, &[1, 2, 9, 16][..]));
    assert!(judged.to_string().contains("volume remove --discard"), "{judged}");
    let refused = volume.accept_lost().unwrap_err().to_string();
    assert!(refused.contains("add it again"), "{refused}");
    // A block with a known number is healed by writing it; a lost line by removing the volume.
    volume.write_at(&[3; 4096], 4096).unwrap();
    let judged = drain_but_lost(&volume);
    assert_eq!((judged.lost_blocks, &judged.lost[..]), (3, &[2, 9, 16][..]));
    assert_eq!((origin.content()[0], origin.content()[4096]), (2, 3));
    volume.detach().unwrap();
    pool.volume_remove("v", true).unwrap();
    let volume = attach(&pool, "v", &origin);
    assert_eq!(read(&volume, 2 * 4096, 4096), [1; 4096]);
    drain(&volume);
}
