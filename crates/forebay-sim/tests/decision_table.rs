// SPDX-License-Identifier: MIT OR Apache-2.0
//! Each row of recovery's decision table (`decision` in core/recover/scan.c): a line
//! of each class at each place of a chunk, made by hand on an image that the
//! engine left, and what the next start makes of it.  Every row is recovered
//! twice, the second time from what the first left, and must come out the same.

use forebay_engine::sys;
use forebay_sim::engine::{identity, volume_spec, Attach, Decision, Engine};
use forebay_sim::media::Media;
use forebay_sim::script::data;

const CHUNK: usize = 1 << 16;
const CHUNKS: usize = 5;
const OFFSET: usize = CHUNK; // of chunk 0
const SECTORS: u64 = 8 * 64;
const NUMBER: u64 = 1;
const UUID: [u8; 16] = [9; 16];

/// How the writer left the chunk: batches of pages 1 and 2 (blocks 0 and 1) and
/// of pages 3 and 4 (blocks 32 and 33), the second also overwriting nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Left {
    /// Killed right after the second batch.
    Open,
    /// Killed when the idle tick had sealed it.
    Sealed,
    /// The volume was detached, which closes the chunk; then killed.
    Closed,
}

/// The change to the line, or to its data.
#[derive(Clone, Copy, Debug)]
enum Class {
    Current,
    CurrentDataTorn,
    Old,
    Bad,
    BadByOneBit,
    /// A valid line of the epoch, where none was written.
    Made,
}

#[derive(Debug, PartialEq)]
enum Outcome {
    /// The block reads as written.
    Entry,
    /// Recovery takes the line, and reports that it repaired it.
    Repaired,
    /// The block is not cached: the origin's version counts.  The field is the number of
    /// entries reported as dropped.
    Nothing { dropped: u64 },
    /// Attaching is refused; when told to isolate, the block answers EIO.
    Hole,
    /// The block answers EIO; attaching is not refused.
    Damaged,
}

use Class::*;
use Left::*;

const TABLE: &[(Left, usize, Class, Outcome)] = &[
    // Settled: before the last batch, or below a seal.
    (Open, 2, Current, Outcome::Entry),
    (Open, 2, CurrentDataTorn, Outcome::Damaged),
    (Open, 2, Old, Outcome::Hole),
    (Open, 2, Bad, Outcome::Hole),
    (Open, 2, BadByOneBit, Outcome::Repaired),
    (Sealed, 3, Current, Outcome::Entry),
    (Sealed, 3, CurrentDataTorn, Outcome::Damaged),
    (Sealed, 3, Old, Outcome::Hole),
    (Sealed, 3, Bad, Outcome::Hole),
    (Sealed, 3, BadByOneBit, Outcome::Repaired),
    (Sealed, 4, Bad, Outcome::Hole),
    (Sealed, 4, Old, Outcome::Hole),
    (Closed, 4, Bad, Outcome::Hole),
    (Closed, 4, BadByOneBit, Outcome::Repaired),
    // Tail: the last batch, not sealed.
    (Open, 3, Current, Outcome::Entry),
    (Open, 3, CurrentDataTorn, Outcome::Nothing { dropped: 1 }),
    (Open, 4, CurrentDataTorn, Outcome::Nothing { dropped: 1 }),
    (Open, 3, Old, Outcome::Nothing { dropped: 0 }),
    (Open, 3, Bad, Outcome::Nothing { dropped: 0 }),
    (Open, 3, BadByOneBit, Outcome::Nothing { dropped: 0 }),
    // Beyond: not written in this epoch.
    (Closed, 6, Made, Outcome::Nothing { dropped: 0 }),
    (Closed, 6, Old, Outcome::Nothing { dropped: 0 }),
    (Closed, 6, Bad, Outcome::Nothing { dropped: 0 }),
    (Open, 6, Old, Outcome::Nothing { dropped: 0 }),
    (Open, 6, Bad, Outcome::Nothing { dropped: 0 }),
];

fn block_of(page: usize) -> u64 {
    match page {
        1 | 2 => page as u64 - 1,
        3 | 4 => page as u64 + 29,
        _ => 50,
    }
}

fn engine() -> Engine {
    Engine::new(Media::bare(OFFSET + CHUNKS * CHUNK))
}

fn attach(e: &mut Engine, holes: u32) -> Result<(), forebay_sim::engine::Code> {
    let a = Attach {
        origin_sectors: SECTORS,
        identity: &identity(NUMBER),
        holes,
        round_pages: 16,
        nrequests: 1,
        buffer_bytes: 4096,
    };
    e.volume_attach(0, &a)
}

/// The media as the writer left it.
fn image(left: Left) -> Vec<u8> {
    let mut e = engine();
    e.format(UUID, CHUNK as u32, 1).unwrap();
    e.open_all(&sys::fby_options { nslots: 1, ..Default::default() }).unwrap();
    e.volume_add(&volume_spec("v", NUMBER, SECTORS, 512)).unwrap();
    attach(&mut e, sys::FBY_HOLES_FAIL).unwrap();
    for (block, id) in [(0, 2), (32, 3)] {
        let bytes = data(NUMBER, block * 8..block * 8 + 16, id);
        assert_eq!(e.write(0, block * 8, &bytes, &mut 0, &mut 0), Ok(Decision::Done));
    }
    match left {
        Open => {}
        Sealed => {
            for tick in 1..=3 {
                e.destage_step(tick * 200_000_000).unwrap();
            }
        }
        Closed => e.volume_detach(0).unwrap(),
    }
    let info = e.chunk_info(0).unwrap();
    assert_eq!((info.fill, info.live), (5, 4), "the test's own picture of the chunk");
    e.media.image()
}

fn line_at(page: usize) -> std::ops::Range<usize> {
    let line = sys::fby_line_of_page((CHUNK / 4096) as u32, page as u32) as usize;
    OFFSET + line * 64..OFFSET + line * 64 + 64
}

/// Changes the line through f, and makes its checksum right again.
fn edit(image: &mut [u8], page: usize, f: impl FnOnce(&mut [u8])) {
    let line = &mut image[line_at(page)];
    f(line);
    let crc = sys::crc32c(sys::crc32c(0, &UUID), &line[..60]);
    line[60..].copy_from_slice(&crc.to_le_bytes());
}

fn put(image: &mut [u8], page: usize, class: Class) {
    let epoch = std::mem::offset_of!(sys::fby_page_line, epoch);
    let older = |line: &mut [u8]| line[epoch] -= 1;
    let like_4 = |image: &mut [u8]| {
        let line = image[line_at(4)].to_vec();
        image[line_at(6)].copy_from_slice(&line);
        let data = image[OFFSET + 4 * 4096..OFFSET + 5 * 4096].to_vec();
        image[OFFSET + 6 * 4096..OFFSET + 7 * 4096].copy_from_slice(&data);
        edit(image, 6, |line| {
            let at = |o: usize, v: u64, n: usize, line: &mut [u8]| {
                line[o..o + n].copy_from_slice(&v.to_le_bytes()[..n]);
            };
            at(std::mem::offset_of!(sys::fby_page_line, block), 50, 8, line);
            at(std::mem::offset_of!(sys::fby_page_line, page), 6, 2, line);
            at(std::mem::offset_of!(sys::fby_page_line, batch_first), 6, 2, line);
            at(std::mem::offset_of!(sys::fby_page_line, batch_count), 1, 1, line);
            let seq = std::mem::offset_of!(sys::fby_page_line, seq);
            line[seq] += 5;
        });
    };
    match class {
        Current => {}
        CurrentDataTorn => image[OFFSET + page * 4096..][64..192].fill(0xa5),
        Old => {
            if page == 6 {
                like_4(image);
            }
            edit(image, page, older);
        }
        Bad => image[line_at(page)][8..40].fill(0xff),
        BadByOneBit => image[line_at(page)][9] ^= 4,
        Made => like_4(image),
    }
}

fn outcome(image: &[u8], page: usize) -> (Outcome, Vec<u8>) {
    let mut e = engine();
    e.media.state_mut().visible.bytes_mut().copy_from_slice(image);
    let report = e.open_all(&sys::fby_options { nslots: 1, ..Default::default() }).unwrap();
    e.check(true).unwrap();
    let after = e.media.image();
    let refused = attach(&mut e, sys::FBY_HOLES_FAIL).is_err();
    if refused {
        attach(&mut e, sys::FBY_HOLES_ISOLATE).unwrap();
    }
    let block = block_of(page);
    let mut buf = [0; 4096];
    let r = e.read_block(0, block, 0, &mut buf);
    let id = if block < 32 { 2 } else { 3 };
    let outcome = if r.lost != 0 {
        assert_eq!(r.lost, 0xff);
        if refused {
            Outcome::Hole
        } else {
            Outcome::Damaged
        }
    } else if r.origin != 0 {
        assert_eq!((r.origin, refused), (0xff, false));
        Outcome::Nothing { dropped: report.dropped }
    } else {
        assert!(!refused);
        assert_eq!(buf[..], data(NUMBER, block * 8..block * 8 + 8, id)[..]);
        if report.lines_repaired == 1 {
            Outcome::Repaired
        } else {
            Outcome::Entry
        }
    };
    // The neighbours are there, whatever happened to it.
    for other in [0, 1, 32, 33].into_iter().filter(|b| *b != block) {
        let r = e.read_block(0, other, 0, &mut buf);
        assert_eq!((r.origin, r.lost), (0, 0), "block {other} beside page {page}");
        let id = if other < 32 { 2 } else { 3 };
        assert_eq!(buf[..], data(NUMBER, other * 8..other * 8 + 8, id)[..]);
    }
    (outcome, after)
}

#[test]
fn every_row_decides_as_the_table_says() {
    for (left, page, class, expected) in TABLE {
        let mut media = image(*left);
        put(&mut media, *page, *class);
        let (first, after) = outcome(&media, *page);
        assert_eq!(&first, expected, "{left:?}, page {page}, {class:?}");
        let (second, _) = outcome(&after, *page);
        let settled = match first {
            Outcome::Repaired => Outcome::Entry,
            Outcome::Nothing { .. } => Outcome::Nothing { dropped: 0 },
            other => other,
        };
        assert_eq!(second, settled, "{left:?}, page {page}, {class:?}, again");
    }
}
