// SPDX-License-Identifier: MIT OR Apache-2.0
//! Damage of the media: exactly the blocks hit answer EIO, until they are
//! overwritten, and never show older data.

use std::os::unix::fs::FileExt;

use crate::common::*;
use forebay::*;

/// The place of an entry: its page in the chunk, and the offsets in the file of its line and
/// data.
struct Place {
    page: u32,
    line_at: u64,
    data_at: u64,
}

/// The linked entry of a block of a closed pool.
fn place(path: &std::path::Path, block: u64) -> Place {
    let options = PoolOptions { read_only: true, ..Default::default() };
    let pool = Pool::open(path, &options).unwrap();
    let history = pool.block_history("v", block).unwrap();
    let entry = history.entries.iter().find(|e| e.linked).expect("it is not cached");
    let sb = pool.superblock().unwrap();
    let (chunk, page) = (entry.chunk, entry.page);
    Place { page, line_at: sb.line_at(chunk, page), data_at: sb.page_at(chunk, page) }
}

fn flip(path: &std::path::Path, at: u64, mask: u8) {
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut b = [0];
    file.read_exact_at(&mut b, at).unwrap();
    file.write_all_at(&[b[0] ^ mask], at).unwrap();
}

/// Flips a bit in the cached data of a block.
pub fn damage(path: &std::path::Path, block: u64, byte: u64) {
    flip(path, place(path, block).data_at + byte, 0x10);
}

/// Destroys the entry's line, not just a bit of it.
fn destroy(path: &std::path::Path, line_at: u64) {
    (8..16).for_each(|byte| flip(path, line_at + byte, 0x5a));
}

#[test]
fn damaged_blocks_answer_eio_until_overwritten() {
    let dir = Dir::new("damage");
    let path = dir.pool(16);
    let pool = open(&path);
    let origin = MemOrigin::new(64 * 4096).unwrap();
    let volume = attach(&pool, "v", &origin);
    // An older version on the origin, which must not be shown.
    volume.write_at(&[1; 16 * 4096], 0).unwrap();
    drain(&volume);
    for b in 0..16u64 {
        volume.write_at(&[2; 4096], b * 4096).unwrap();
    }
    volume.detach().unwrap();
    pool.close().unwrap();
    damage(&path, 5, 700);
    damage(&path, 9, 0);

    let pool = open(&path);
    let report = pool.check(true).unwrap();
    let named: Vec<_> = report.damaged.iter().filter_map(|d| d.block).collect();
    assert!(!report.ok && named.len() == 2 && named.contains(&5) && named.contains(&9), "{report}");
    let volume = reattach(&pool, "v", &origin);
    let mut buf = vec![0; 16 * 4096];
    let e = volume.read_at(&mut buf, 0).unwrap_err();
    assert!(matches!(&e, Error::Lost { blocks, .. } if blocks == &[5, 9]), "{e}");
    assert_eq!((e.exit_code(), e.errno()), (11, 5));
    for b in (0..16u64).filter(|b| ![5, 9].contains(b)) {
        assert_eq!(buf[b as usize * 4096..][..4096], [2; 4096], "read beside the damage");
    }
    assert_eq!(volume.info().unwrap().lost_blocks, 2);
    assert_eq!(pool.status().damaged_blocks.len(), 2);

    // A part of one is overwritten, the other stays: the rest of both is lost
    // through a drain and an opening.
    volume.write_at(&[3; 512], 5 * 4096 + 1024).unwrap();
    let judged = drain_but_lost(&volume);
    assert_eq!((judged.verdict, judged.lost), (Verdict::LostBlocks, vec![5, 9]));
    volume.detach().unwrap();
    pool.close().unwrap();
    let pool = open(&path);
    let volume = reattach(&pool, "v", &origin);
    assert_eq!(read(&volume, 5 * 4096 + 1024, 512), [3; 512]);
    let mut one = [0; 512];
    for at in [5 * 4096, 5 * 4096 + 1536, 9 * 4096] {
        let e = volume.read_at(&mut one, at).unwrap_err();
        assert!(matches!(e, Error::Lost { .. }), "{e}");
    }
    // Overwritten wholly, they are as good as new.
    volume.write_at(&[4; 4096], 5 * 4096).unwrap();
    volume.write_zeroes(9 * 4096, 4096).unwrap();
    assert_eq!(volume.info().unwrap().lost_blocks, 0);
    drain(&volume);
    assert_eq!(origin.content()[5 * 4096..6 * 4096], [4; 4096]);
    assert_eq!(origin.content()[9 * 4096..10 * 4096], [0; 4096]);
    assert_eq!(origin.content()[6 * 4096..7 * 4096], [2; 4096]);
    volume.detach().unwrap();
    assert_sound(&pool);
}

/// Blocks that are given up are rewritten in the volume's own block size, small or large.
#[test]
fn lost_blocks_of_both_sizes_are_given_up() {
    for block_size in [512, 4096u32] {
        let dir = Dir::new("given-up");
        let path = dir.pool(16);
        let pool = open(&path);
        add_file(&pool, "v", &dir.file("disk", 16 * 4096), block_size);
        let volume = pool.attach("v", &AttachOptions::default()).unwrap();
        volume.write_at(&[1; 8 * 4096], 0).unwrap();
        drain(&volume);
        for b in 0..8u64 {
            volume.write_at(&[2; 4096], b * 4096).unwrap();
        }
        volume.write_at(&vec![3; block_size as usize], 9 * 4096).unwrap();
        volume.detach().unwrap();
        pool.close().unwrap();
        for b in [5, 9] {
            flip(&path, place(&path, b).data_at, 1);
        }
        let pool = open(&path);
        let volume = pool.attach("v", &AttachOptions::default()).unwrap();
        assert_eq!(drain_but_lost(&volume).verdict, Verdict::LostBlocks);
        let mut given_up = volume.accept_lost().unwrap();
        given_up.sort_unstable();
        assert_eq!(given_up, [5, 9], "blocks of {block_size}");
        drain(&volume);
        for (b, byte) in [(4, 2), (5, 1), (6, 2), (9, 0)] {
            assert_eq!(read(&volume, b * 4096, 4096), [byte; 4096], "{block_size}: block {b}");
        }
    }
}

/// Lost entries are never passed over in silence: the attach is refused until
/// the caller says what is to become of them.
#[test]
fn lost_entries_need_an_order() {
    let dir = Dir::new("holes");
    let path = dir.pool(16);
    let pool = open(&path);
    let origin = MemOrigin::new(64 * 4096).unwrap();
    let volume = attach(&pool, "v", &origin);
    volume.write_at(&[1; 24 * 4096], 0).unwrap();
    drain(&volume);
    for b in 0..24u64 {
        volume.write_at(&[2; 4096], b * 4096).unwrap();
    }
    volume.detach().unwrap();
    pool.close().unwrap();
    let good = std::fs::read(&path).unwrap();
    let attach = |pool: &Pool, holes| {
        let options = AttachOptions { holes, ..Default::default() };
        pool.attach_origin("v", Box::new(origin.clone()), &options)
    };

    // One line lost: the entry after it tells which block it was.
    destroy(&path, place(&path, 5).line_at);
    let pool = open(&path);
    assert_eq!(pool.recovery().holes, 1, "{}", pool.recovery());
    assert_eq!(pool.recovery().holes_named[0].block, Some(5));
    assert!(!pool.check(false).unwrap().ok);
    let e = attach(&pool, Holes::Fail).unwrap_err();
    assert!(matches!(e, Error::Holes { .. }) && e.exit_code() == 11, "{e}");
    let volume = attach(&pool, Holes::Isolate).unwrap();
    for b in 0..24u64 {
        let mut page = [0; 4096];
        let got = volume.read_at(&mut page, b * 4096);
        match b {
            5 => assert!(matches!(got, Err(Error::Lost { .. })), "older data was shown"),
            _ => assert!(got.is_ok() && page == [2; 4096], "block {b}"),
        }
    }
    volume.write_at(&[3; 4096], 5 * 4096).unwrap();
    drain(&volume);
    assert_eq!(origin.content()[5 * 4096..6 * 4096], [3; 4096]);
    assert_eq!(origin.content()[6 * 4096..7 * 4096], [2; 4096]);
    drop((volume, pool));

    // Two lines in a row: the first has no name any more.
    std::fs::write(&path, &good).unwrap();
    origin.write_at(&[1; 24 * 4096], 0).unwrap();
    let first = (0..24).map(|b| place(&path, b)).find(|p| p.page == 2).unwrap();
    destroy(&path, first.line_at);
    destroy(&path, first.line_at + 64);
    let pool = open(&path);
    assert!(pool.recovery().holes >= 2, "{}", pool.recovery());
    for holes in [Holes::Fail, Holes::Isolate] {
        assert_eq!(attach(&pool, holes).unwrap_err().exit_code(), 11);
    }
    let volume = attach(&pool, Holes::Accept).unwrap();
    let mut older = 0;
    for b in 0..24u64 {
        let mut page = [0; 4096];
        match volume.read_at(&mut page, b * 4096) {
            Ok(()) if page == [1; 4096] => older += 1,
            got => assert!(got.is_err() || page == [2; 4096], "block {b}"),
        }
    }
    assert!(older <= 2, "{older} blocks show older data");
    assert_eq!(drain_but_lost(&volume).verdict, Verdict::LostBlocks);

    // The way out: the origin's data becomes the newest, and the report names the blocks.
    let given_up = volume.accept_lost().unwrap();
    assert!(!given_up.is_empty());
    drain(&volume);
    for block in given_up {
        assert_eq!(read(&volume, block * 4096, 4096), [1; 4096], "block {block}");
    }
    volume.detach().unwrap();
    assert!(pool.completeness("v").unwrap().complete);
    pool.volume_remove("v", false).unwrap();
}
