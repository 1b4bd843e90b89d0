// SPDX-License-Identifier: MIT OR Apache-2.0
//! Goal: a pool and an origin that an earlier version of Forebay has left go on, in whatever
//! state they were, and what was refused then is refused now.
//!
//! Method: earlier versions counted marks by two, so a record may have any number.  For each
//! number modulo 8, each kind of volume and each version of the mark, a pool is brought to each
//! state that such a version could leave; the number is written into its record, and the pool is
//! attached.  What was accepted is drained, marked anew, and met by its older copy.

use std::fs;

use super::tests::*;
use super::*;

/// The state that the previous version has left.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Left {
    /// Drained, and closed in order.
    Drained,
    /// Drained, and killed: the content of a static volume is unknown until it was examined.
    DrainedAndKilled,
    /// Killed when a write was in the pool, and neither marked nor acknowledged.
    CommitBeforeMark,
    /// Killed when a write was in the pool and marked, and not acknowledged.
    CommitAndMark,
    /// Acknowledged, and marked.
    Marked,
    /// The mark was given up, or the origin is from before it.
    MarkLost,
    /// All is on the origin, which was killed before the mark was to go; and the mark was lost.
    CleanMarkLost,
    /// The pool is a copy from before the mark.
    OlderPool,
}

use Left::*;

/// Then, whether the record's number is odd, and how far below it the mark's number is.
const TABLE: [(Left, bool, Option<i32>, bool); 8] = [
    (Drained, false, None, true),
    (DrainedAndKilled, false, None, true),
    (CommitBeforeMark, false, None, true),
    (CommitAndMark, false, Some(0), true),
    (Marked, true, Some(1), true),
    (MarkLost, true, None, false),
    // The data on the origin disappeared together with the mark, unless it was given up.
    (CleanMarkLost, true, None, false),
    (OlderPool, true, Some(-1), false),
];

/// From docs/design/format.md.
const RECORDS: usize = 8192;
const RECORD: usize = 256;
const NAME: usize = 48;
const MARKS: usize = 248;
const SALT: usize = 140;

/// In both copies of the record of the pool's only volume.
fn write_number(pool: &mut [u8], uuid: Uuid, marks: u32) {
    let seed = forebay_engine::sys::crc32c(0, &uuid.0);
    let seed = forebay_engine::sys::crc32c(seed, &pool[SALT..SALT + 4]);
    let mut written = 0;
    for record in pool[RECORDS..RECORDS + 2 * RECORD].chunks_exact_mut(RECORD) {
        assert_eq!(&record[NAME..NAME + 2], b"v\0");
        record[MARKS..MARKS + 4].copy_from_slice(&marks.to_le_bytes());
        let crc = forebay_engine::sys::crc32c(seed, &record[..RECORD - 4]);
        record[RECORD - 4..].copy_from_slice(&crc.to_le_bytes());
        written += 1;
    }
    assert_eq!(written, 2);
}

/// The pool, its mark if there is one, and what the origin has, as the version before left them.
fn left(dir: &Dir, of_static: bool, left: Left, marks: u32) -> (Vec<u8>, World, Uuid) {
    let world = new_world(dir);
    let path = dir.0.join("pool");
    let _ = fs::remove_file(&path);
    let pool = if of_static { made_static(&path, &world) } else { made(&path, &world) };
    let uuid = pool.uuid();
    let volume = attach(&pool, &world).unwrap();
    volume.write_at(&[1; BLOCK], 0).unwrap();
    match left {
        Drained | DrainedAndKilled | CleanMarkLost => drop(volume.drain(&mut go_on).unwrap()),
        CommitBeforeMark | CommitAndMark => {
            volume.drain(&mut go_on).unwrap();
            locked(&world.0).put_fails = Some(Duration::ZERO);
            volume.write_at(&[2; BLOCK], 0).unwrap_err();
            locked(&world.0).put_fails = None;
        }
        Marked | MarkLost | OlderPool => {}
    }
    let killed = fs::read(&path).unwrap();
    locked(&world.0).record = false;
    let id = pool.volume_info("v").unwrap().uuid;
    volume.detach().unwrap();
    pool.close().unwrap();
    let mut bytes = match left {
        Drained | CleanMarkLost => fs::read(&path).unwrap(),
        _ => killed,
    };
    write_number(&mut bytes, uuid, marks);
    fs::write(&path, &bytes).unwrap();
    (bytes, world, id)
}

fn meets(dir: &Dir, of_static: bool, row: (Left, bool, Option<i32>, bool), even: u32, names: bool) {
    let (how, odd, behind, accepted) = row;
    let marks = even + u32::from(odd);
    let what = format!("{how:?}, number {marks}, static {of_static}, with a UUID {names}");
    let (bytes, world, id) = left(dir, of_static, how, marks);
    let path = dir.0.join("pool");
    let mark = behind.map(|behind| Mark {
        pool: open(&path).unwrap().uuid(),
        volume: "v".into(),
        volume_uuid: names.then_some(id),
        generation: 1,
        least: marks.wrapping_add_signed(-behind),
        since: 1,
        at_most_bytes: 4096,
        host: host(),
        at: "pool".into(),
        origin: world.name(),
        ..Mark::default()
    });
    fs::write(&path, &bytes).unwrap();
    // Data that the pool holds and the origin lacks is only in the pool.
    let mut s = locked(&world.0);
    s.mark = [mark.as_ref().map(Mark::to_bytes), mark.as_ref().map(Mark::to_bytes)];
    if matches!(how, Marked | MarkLost | OlderPool) {
        s.origin = [vec![0; BLOCKS * BLOCK], vec![0; BLOCKS * BLOCK]];
    }
    drop(s);
    let pool = open(&path).unwrap();
    let volume = match attach(&pool, &world) {
        Ok(volume) => volume,
        Err(e) => return assert!(!accepted && e.exit_code() == 6, "{what}: {e}"),
    };
    assert!(accepted, "{what}: accepted");
    // The next period, as of any pool.
    volume.drain(&mut go_on).unwrap();
    assert_eq!(world.find().unwrap(), Found::Nothing, "{what}");
    assert!(matches!(locked(&world.0).origin[1][0], 1 | 2), "{what}");
    volume.write_at(&[9; BLOCK], BLOCK as u64).unwrap();
    let Found::Marked(new) = world.find().unwrap() else { panic!("{what}: not marked") };
    assert!(new.exact && new.volume_uuid == Some(id), "{what}: {new}");
    volume.detach().unwrap();
    pool.close().unwrap();
    let newest = fs::read(&path).unwrap();
    fs::write(&path, &bytes).unwrap();
    let older = open(&path).unwrap();
    let told = attach(&older, &world).unwrap_err();
    assert!(told.exit_code() == 6 && told.to_string().contains("older copy"), "{what}: {told}");
    older.close().unwrap();
    fs::write(&path, &newest).unwrap();
    let pool = open(&path).unwrap();
    attach(&pool, &world).unwrap().detach().unwrap();
    pool.close().unwrap();
}

#[test]
fn what_an_earlier_version_has_left_goes_on() {
    let _turn = turn();
    let dir = Dir::new();
    for of_static in [false, true] {
        for row in TABLE {
            // 0 is the number of a volume that was never marked.
            for even in [2, 4, 6, 8] {
                for names in [false, true] {
                    if names || row.2.is_some() {
                        meets(&dir, of_static, row, even, names);
                    }
                }
            }
        }
    }
}
