// SPDX-License-Identifier: MIT OR Apache-2.0
//! Goal: no number on the media, however high, makes the engine lose a write that
//! comes after it.  Method: each number of each structure gets extreme values with
//! the right checksum, in all of its copies; then the pool is opened, written,
//! killed or closed, and opened again, some times over.  Either the first opening is
//! refused, or everything that was acknowledged is there each time.

use std::mem::offset_of;

use forebay_engine::sys;
use forebay_sim::engine::{identity, volume_spec, Attach, Decision, Engine};
use forebay_sim::media::Media;
use forebay_sim::script::data;

const CHUNK: usize = 1 << 16;
const CHUNKS: usize = 12;
const OFFSET: usize = CHUNK;
const SECTORS: u64 = 8 * 32;
const UUID: [u8; 16] = [7; 16];

/// A field: its name, where the structures that hold it begin, their size, its
/// offset, and whether the checksum starts from the UUID's.
struct Field {
    name: &'static str,
    at: Vec<usize>,
    size: usize,
    offset: usize,
    seeded: bool,
}

fn fields() -> Vec<Field> {
    use sys::{fby_open_line as open, fby_page_line as page, fby_seal_line as seal};
    use sys::{fby_superblock as sb, fby_volume_record as record};
    let chunks = |lines: &[usize]| {
        let chunk = |c: usize| lines.iter().map(move |l| OFFSET + c * CHUNK + l * 64);
        (0..CHUNKS).flat_map(chunk).collect::<Vec<_>>()
    };
    let field = |name, at, size, offset, seeded| Field { name, at, size, offset, seeded };
    let mut all = Vec::new();
    for (name, offset) in
        [("generation", offset_of!(sb, generation)), ("clean_seq", offset_of!(sb, clean_seq))]
    {
        all.push(field(name, vec![0, 4096], 512, offset, false));
    }
    for (name, offset) in
        [("counter", offset_of!(record, counter)), ("watermark", offset_of!(record, watermark))]
    {
        all.push(field(name, vec![8192, 8192 + 256], 256, offset, true));
    }
    for (name, offset) in
        [("open epoch", offset_of!(open, epoch)), ("seq_min", offset_of!(open, seq_min))]
    {
        all.push(field(name, chunks(&[0, 1]), 64, offset, true));
    }
    for (name, offset) in [
        ("seal counter", offset_of!(seal, counter)),
        ("seal epoch", offset_of!(seal, epoch)),
        ("seq_max", offset_of!(seal, seq_max)),
    ] {
        all.push(field(name, chunks(&[2, 3, 6, 7]), 64, offset, true));
    }
    for (name, offset) in [
        ("seq", offset_of!(page, seq)),
        ("page epoch", offset_of!(page, epoch)),
        ("prev_seq", offset_of!(page, prev_seq)),
    ] {
        all.push(field(name, chunks(&[8]), 64, offset, true));
        all.push(field(name, chunks(&[10]), 64, offset, true));
    }
    all
}

fn extremes() -> Vec<u64> {
    let near = |n: u64| (0..2).flat_map(move |d| [n.wrapping_sub(d), n.wrapping_add(d)]);
    let powers = [0u64, 1 << 32, 1 << 62, 1 << 63];
    let mut all: Vec<u64> = powers.into_iter().flat_map(near).collect();
    all.extend([62, 63].map(|b| (1 << b) - 70)); // a block of sequence numbers before
    all.sort_unstable();
    all.dedup();
    all
}

fn engine() -> Engine {
    Engine::new(Media::bare(OFFSET + CHUNKS * CHUNK))
}

fn attach(e: &mut Engine) -> bool {
    let a = Attach {
        origin_sectors: SECTORS,
        identity: &identity(1),
        holes: sys::FBY_HOLES_ACCEPT,
        round_pages: 16,
        nrequests: 1,
        buffer_bytes: 4096,
    };
    e.volume_attach(0, &a).is_ok()
}

fn options() -> sys::fby_options {
    sys::fby_options { nslots: 1, ..Default::default() }
}

fn write(e: &mut Engine, block: u64, id: u64) {
    let bytes = data(1, block * 8..block * 8 + 8, id);
    let r = e.write(0, block * 8, &bytes, &mut 0, &mut 0);
    assert_eq!(r, Ok(Decision::Done));
}

/// A pool with entries, closed or killed.
fn image(closed: bool) -> Vec<u8> {
    let mut e = engine();
    e.format(UUID, CHUNK as u32, 1).unwrap();
    e.open_all(&options()).unwrap();
    e.volume_add(&volume_spec("v", 1, SECTORS, 512)).unwrap();
    assert!(attach(&mut e));
    (0..20).for_each(|block| write(&mut e, block, 2));
    if closed {
        e.close().unwrap();
    }
    e.media.image()
}

/// Opened, written and read again; Ok(false): refused by name, before anything was
/// written or when the numbers came near their end, and then it is all there to read.
fn live_on(image: &[u8], kill_first: bool) -> Result<bool, String> {
    let mut e = engine();
    e.media.load(image);
    let mut written = 0;
    for life in 0..6 {
        let refused = match e.open_all(&options()) {
            Err(e) if life > 0 && !e.is(sys::FBY_E_NUMBERS) => return Err(format!("{life}: {e}")),
            result => result.is_err(),
        };
        if refused && life > 0 {
            e.open_all(&sys::fby_options { read_only: true, ..options() })
                .map_err(|e| e.to_string())?;
        }
        if (refused && life == 0) || !attach(&mut e) {
            return if life == 0 { Ok(false) } else { Err(format!("life {life}: refused")) };
        }
        e.check(true)?;
        for block in 0..written {
            let mut buf = [0; 4096];
            let r = e.read_block(0, block, 0, &mut buf);
            let id = 100 + block;
            if r.result != Ok(Decision::Done) || buf[..] != data(1, block * 8..block * 8 + 8, id) {
                return Err(format!("life {life}: block {block} is not what was written"));
            }
        }
        if refused {
            return Ok(false);
        }
        for block in written..written + 3 {
            write(&mut e, block, 100 + block);
        }
        written += 3;
        e.check(true)?;
        if (life % 2 == 0) != kill_first {
            e.close().map_err(|e| e.to_string())?;
        } else {
            e.abandon();
        }
    }
    Ok(true)
}

#[test]
fn a_high_number_is_refused_or_harmless() {
    let mut wrong = Vec::new();
    let (mut refused, mut harmless) = (0, 0);
    for closed in [true, false] {
        let whole = image(closed);
        for f in fields() {
            for value in extremes() {
                let mut bytes = whole.clone();
                for &at in &f.at {
                    let s = &mut bytes[at..at + f.size];
                    s[f.offset..f.offset + 8].copy_from_slice(&value.to_le_bytes());
                    let seed = if f.seeded { sys::crc32c(0, &UUID) } else { 0 };
                    let crc = sys::crc32c(seed, &s[..f.size - 4]);
                    s[f.size - 4..].copy_from_slice(&crc.to_le_bytes());
                }
                for kill_first in [true, false] {
                    match live_on(&bytes, kill_first) {
                        Ok(true) => harmless += 1,
                        Ok(false) => refused += 1,
                        Err(e) => wrong.push(format!(
                            "{} {value:#x}, closed {closed}, killed first {kill_first}: {e}",
                            f.name
                        )),
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} wrong: {}", wrong.len(), wrong.join("\n"));
    assert!(refused > 100 && harmless > 100, "{refused} refused, {harmless} harmless");
}
