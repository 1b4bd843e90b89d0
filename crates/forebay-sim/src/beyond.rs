// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lines that a cut leaves past the end of a chunk: torn lines of a batch that never was, some
//! of which can be repaired.  Recovery bounds the number of a lost line by later lines.  A
//! bound from past the end would be above all that is written next, and the loss would override
//! it after the next start.

use std::mem::offset_of;
use std::ops::Range;

use forebay_engine::sys;

use crate::engine::{identity, small_attach, volume_spec, Attach, Decision, Engine};
use crate::media::Media;
use crate::script::data;

const CHUNK: usize = 1 << 16;
const CHUNKS: usize = 4;
const SECTORS: u64 = 8 * 32;
const UUID: [u8; 16] = [5; 16];
/// The last page that is sealed, and its block.
const LOST_PAGE: usize = 2;
const BLOCK: u64 = 1;

fn opened(image: &[u8]) -> Engine {
    let mut e = Engine::new(Media::bare(image.len()));
    e.media.state_mut().visible.bytes_mut().copy_from_slice(image);
    e.open_all(&sys::fby_options { nslots: 1, ..Default::default() }).unwrap();
    e
}

fn write(e: &mut Engine, block: u64, blocks: u64, id: u64) {
    let bytes = data(1, block * 8..(block + blocks) * 8, id);
    assert_eq!(e.write(0, block * 8, &bytes, &mut 0, &mut 0), Ok(Decision::Done));
}

/// One batch of two pages, sealed.
fn sealed() -> Vec<u8> {
    let mut e = Engine::new(Media::bare((CHUNKS + 1) * CHUNK));
    e.format(UUID, CHUNK as u32, 1).unwrap();
    e.open_all(&sys::fby_options { nslots: 1, ..Default::default() }).unwrap();
    e.volume_add(&volume_spec("v", 1, SECTORS, 512)).unwrap();
    e.volume_attach(0, &small_attach(SECTORS, &identity(1), 16)).unwrap();
    write(&mut e, 0, 2, 2);
    for tick in 1..=3 {
        e.destage_step(tick * 200_000_000).unwrap();
    }
    assert_eq!(e.chunk_info(0).unwrap().fill, 3, "the case's own picture of the chunk");
    e.media.image()
}

fn line(page: usize) -> Range<usize> {
    let at = sys::fby_line_of_page((CHUNK / 4096) as u32, page as u32) as usize * 64;
    CHUNK + at..CHUNK + at + 64
}

/// The batch was interrupted: the second of its two pages has its line, except for one bit.
fn torn_beyond(image: &mut [u8]) {
    let (page, seq) = (LOST_PAGE + 2, 100u64);
    let mut l: [u8; 64] = image[line(LOST_PAGE)].try_into().unwrap();
    let mut put =
        |at: usize, v: u64, n: usize| l[at..at + n].copy_from_slice(&v.to_le_bytes()[..n]);
    put(offset_of!(sys::fby_page_line, seq), seq, 8);
    put(offset_of!(sys::fby_page_line, prev_seq), seq - 1, 8);
    put(offset_of!(sys::fby_page_line, page), page as u64, 2);
    put(offset_of!(sys::fby_page_line, batch_first), page as u64 - 1, 2);
    let crc = sys::crc32c(sys::crc32c(0, &UUID), &l[..60]);
    l[60..].copy_from_slice(&crc.to_le_bytes());
    l[9] ^= 4;
    image[line(page)].copy_from_slice(&l);
}

/// A lost line before the end, a torn one past it: data written next stays.
pub fn lost_before_torn() -> Result<(), String> {
    let mut image = sealed();
    torn_beyond(&mut image);
    image[line(LOST_PAGE)][8..40].fill(0xff);
    let mut e = opened(&image);
    e.check(true)?;
    let identity = identity(1);
    let isolate = Attach { holes: sys::FBY_HOLES_ISOLATE, ..small_attach(SECTORS, &identity, 16) };
    e.volume_attach(0, &isolate).unwrap();
    let mut buf = [0; 4096];
    if e.read_block(0, BLOCK, 0, &mut buf).lost != 0xff {
        return Err("a line that is lost is not told".into());
    }
    write(&mut e, BLOCK, 1, 9);
    let e = opened(&e.media.image());
    e.check(true)?;
    e.volume_attach(0, &isolate).unwrap();
    let r = e.read_block(0, BLOCK, 0, &mut buf);
    if (r.origin, r.lost) != (0, 0) || buf[..] != data(1, BLOCK * 8..BLOCK * 8 + 8, 9)[..] {
        return Err(format!("what was written over a loss is lost with it: {r:?}"));
    }
    Ok(())
}
