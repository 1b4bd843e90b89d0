// SPDX-License-Identifier: MIT OR Apache-2.0
//! Goal: whatever lies on the media, the library answers with an error or with a
//! sound pool.  Method: an image from the fuzzer, written to a file; then
//! inspect, open, recover, check, dump, attach, read, write, drain, detach and
//! open again.
//!
//! The first byte chooses: 0 to 2, the rest is the image as it is; 3, the same
//! with every checksum put right, else the fuzzer would not get past them; above,
//! patches of nine bytes on one of the base images.  The second byte chooses the
//! options.

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use forebay::{inspect, AttachOptions, Error, Holes, Pool, PoolOptions, Verify, Volume};
use forebay_engine::sys::crc32c;

use crate::sparse::SparseOrigin;

pub const CHUNK: usize = 64 << 10;
pub const CHUNKS: usize = 5;
pub const VOLUMES: usize = 4;
const LINE: usize = 64;
const PAGE: usize = 4096;
/// Superblock, its copy, and the volume table.
const SUPERBLOCKS: [usize; 2] = [0, 4096];
const SUPERBLOCK: usize = 512;
const RECORDS: usize = 8192;
const RECORD: usize = 256;
/// A raw image is no larger.
const LARGEST: usize = 1 << 20;

/// A pool that was killed with data of two volumes in it, and the same closed:
/// made by `make_base_images` of fuzz_corpus.rs, and kept so that a finding is the
/// same tomorrow.
const BASES: [&[u8]; 2] =
    [include_bytes!("../base/killed.img"), include_bytes!("../base/closed.img")];

/// Mistakes for the tests of this target: each must be noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plant {
    Nothing,
    /// The origin loses what destage writes.
    OriginForgets,
    /// The pool is gone when it is opened again.
    WipedBeforeReopen,
}

/// A file that goes with it.
pub struct Scratch(pub PathBuf);

impl Scratch {
    pub fn new() -> Scratch {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("forebay-fuzz-{}-{n}", std::process::id());
        let shm = Path::new("/dev/shm");
        match shm.is_dir() {
            true => Scratch(shm.join(name)),
            false => Scratch(std::env::temp_dir().join(name)),
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

// --- the image -------------------------------------------------------------

fn seed(image: &[u8]) -> u32 {
    image.get(48..64).map_or(0, |uuid| crc32c(0, uuid)) // the superblock's uuid
}

/// The last four bytes of the structure become the checksum of those before.
fn fix(image: &mut [u8], at: usize, len: usize, seed: u32) {
    if let Some(part) = image.get_mut(at..at.saturating_add(len)) {
        let crc = crc32c(seed, &part[..len - 4]);
        part[len - 4..].copy_from_slice(&crc.to_le_bytes());
    }
}

fn fix_all(image: &mut [u8]) {
    let seed = seed(image);
    for at in SUPERBLOCKS {
        fix(image, at, SUPERBLOCK, 0);
    }
    for i in 0..2 * VOLUMES {
        fix(image, RECORDS + i * RECORD, RECORD, seed);
    }
    for chunk in (CHUNK..image.len()).step_by(CHUNK) {
        for line in 0..CHUNK / PAGE {
            fix(image, chunk + line * LINE, LINE, seed);
        }
    }
}

/// What (low 3 bits: superblock, record, open line, seal line, page line, data;
/// high bit: leave the checksum), two numbers that choose which, the place in it,
/// how many bytes, and four bytes for them.
fn patch(image: &mut [u8], p: &[u8; 9]) {
    let seed = seed(image);
    let (which, other, place) = (usize::from(p[1]), usize::from(p[2]), usize::from(p[3]));
    let value = u32::from_le_bytes([p[5], p[6], p[7], p[8]]);
    let mut n = 1 + usize::from(p[4]) % 8;
    // A wide field: small numbers, or the largest.
    let wide = match (n, value & 1) {
        (8, 1) => !0 - u64::from(value >> 1),
        (8, _) => u64::from(value) << (value >> 26),
        _ => u64::from(value),
    };
    let chunk = CHUNK * (1 + which % CHUNKS);
    let pages = CHUNK / PAGE - 8;
    let (at, len, seed) = match p[0] & 7 {
        0 => (SUPERBLOCKS[which % 2], SUPERBLOCK, 0),
        1 => (RECORDS + which % (2 * VOLUMES) * RECORD, RECORD, seed),
        2 => (chunk + other % 2 * LINE, LINE, seed),
        3 => (chunk + (2 + other % 2 + other / 2 % 2 * 4) * LINE, LINE, seed),
        5 => (chunk + (8 + other % pages) * PAGE, PAGE, seed),
        _ => (chunk + (8 + other % pages) * LINE, LINE, seed),
    };
    // In a superblock only the fields in use, and a few bytes after.
    let place = if len == SUPERBLOCK { place % 136 } else { place % len };
    n = n.min(len - place);
    image[at + place..at + place + n].copy_from_slice(&wide.to_le_bytes()[..n]);
    if p[0] & 0x80 == 0 && len != PAGE {
        fix(image, at, len, seed);
    }
}

fn build(mode: u8, rest: &[u8]) -> Vec<u8> {
    if mode < 4 {
        let mut image = rest[..rest.len().min(LARGEST)].to_vec();
        if mode == 3 {
            fix_all(&mut image);
        }
        return image;
    }
    let mut image = BASES[usize::from(mode) % BASES.len()].to_vec();
    for p in rest.chunks_exact(9).take(64) {
        patch(&mut image, p.try_into().expect("nine bytes"));
    }
    image
}

// --- the walk --------------------------------------------------------------

/// An error has something to say, for people and for programs.
pub fn good_error(e: &Error) {
    assert!(e.to_string().len() > 8, "an error without a message: {e:?}");
    assert!(e.exit_code() != 0 && e.errno() > 0, "an error without a code: {e}");
    // An internal error of the engine: no image may cause it.
    assert!(!matches!(e, Error::Internal { .. }), "the engine is at a loss: {e}");
}

fn options(bits: u8) -> PoolOptions {
    PoolOptions {
        read_only: bits & 0x1c == 0x1c,
        slots: 1 + u32::from(bits & 3),
        verify: if bits & 0x20 == 0 { Verify::Always } else { Verify::First },
        checksums: bits & 0x40 == 0,
        high_watermark_percent: if bits & 0x80 == 0 { 100 } else { 1 },
        low_watermark_percent: if bits & 0x80 == 0 { 90 } else { 0 },
        io_uring: false,
        recovery_threads: 2,
        ..Default::default()
    }
}

/// Examines everything, with its text.
fn look(pool: &Pool) {
    assert!(pool.status().media.size_bytes > 0);
    let mut names = Vec::new();
    for v in pool.volumes() {
        assert!(!v.to_string().is_empty());
        names.push(v.name);
    }
    match pool.superblock() {
        Ok(sb) => assert!(!sb.to_string().is_empty()),
        Err(e) => good_error(&e),
    }
    let chunks = pool.chunks().expect("chunks of an open pool");
    for c in &chunks {
        let entries = pool.entries(c.number, true).expect("entries of an open pool");
        assert!(c.live as usize <= entries.len(), "more live than there are: {c}");
        // Read-only, recovery keeps what it would write over a lost line to itself.
        for e in entries.iter().filter(|e| e.linked && !pool.read_only()) {
            assert!(e.valid, "linked, and not valid: {e}");
        }
    }
    for name in names.iter().filter(|n| !n.is_empty()) {
        for block in [0, 1, 62, u64::MAX] {
            match pool.block_history(name, block) {
                Ok(h) => assert!(h.entries.is_sorted_by_key(|e| e.seq)),
                Err(e) => good_error(&e),
            }
        }
    }
    let report = pool.check(true).expect("the check of an open pool");
    assert!(report.invariant.is_none(), "{report}");
}

fn attach(pool: &Pool, name: &str, origin: &SparseOrigin) -> Option<Volume> {
    for holes in [Holes::Fail, Holes::Isolate, Holes::Accept] {
        let o = AttachOptions {
            holes,
            queue_depth: 2,
            buffer_bytes: 16 << 10,
            round_pages: 16,
            full_timeout: Some(Duration::from_secs(20)),
            ..Default::default()
        };
        match pool.attach_origin(name, Box::new(origin.clone()), &o) {
            Ok(volume) => return Some(volume),
            Err(e) => good_error(&e),
        }
    }
    None
}

/// Written data is read back, and after the drain the origin has it.
fn use_volume(volume: &Volume, origin: &SparseOrigin, fill: u8) {
    let size = volume.size_bytes();
    let mut buf = vec![0; 64 << 10];
    for offset in [0, size.saturating_sub(64 << 10) / 4096 * 4096] {
        let len = buf.len().min((size - offset) as usize);
        if let Err(e) = volume.read_at(&mut buf[..len], offset) {
            good_error(&e);
        }
    }
    let data = vec![fill; 12 << 10];
    let at = (u64::from(fill) * 4096) % (256 << 10);
    let mut kept = false;
    if !volume.read_only() && at + (32 << 10) <= size {
        match volume.write_at(&data, at) {
            Ok(()) => kept = true,
            Err(e) => good_error(&e),
        }
        for done in [
            volume.discard(at + (16 << 10), 8 << 10),
            volume.write_zeroes(at + (24 << 10), 4 << 10),
            volume.flush(),
        ] {
            if let Err(e) = done {
                good_error(&e);
            }
        }
    }
    let read_back = |when: &str| {
        let mut back = vec![!fill; data.len()];
        volume.read_at(&mut back, at).expect("what was just written is readable");
        assert!(back == data, "{when}: not what was written at {at}");
    };
    if kept {
        read_back("cached");
    }
    if !volume.read_only() {
        let mut calls = 0;
        match volume.drain(&mut |_| {
            calls += 1; // ten a second
            if calls > 300 {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        }) {
            Ok(_) if kept => {
                assert!(origin.read(at, data.len()) == data, "drained: the origin has other data");
                read_back("drained");
            }
            Ok(_) => {}
            Err(e) => {
                assert!(calls <= 300, "a drain does not end");
                good_error(&e);
            }
        }
    }
}

fn use_pool(pool: &Pool, fill: u8, plant: Plant) {
    for v in pool.volumes() {
        let identity = match &v.origin_path {
            Some(path) => format!("{}|{path}", v.identity),
            None => v.identity.clone(),
        };
        let mut origin = SparseOrigin::new(v.size_bytes, v.block_size, identity);
        if plant == Plant::OriginForgets {
            origin = origin.forgetting();
        }
        let Some(volume) = attach(pool, &v.name, &origin) else { continue };
        use_volume(&volume, &origin, fill);
        if let Err(e) = volume.detach() {
            good_error(&e);
        }
        assert_eq!(origin.complaint(), None);
    }
}

/// One input.  Panics are findings.
pub fn run(data: &[u8], plant: Plant) {
    let [mode, bits, rest @ ..] = data else { return };
    let scratch = Scratch::new();
    let path = &scratch.0;
    fs::write(path, build(*mode, rest)).expect("room in shared memory");
    match inspect(path) {
        Ok(i) => assert!(!i.text.is_empty()),
        Err(e) => good_error(&e),
    }
    let o = options(*bits);
    let pool = match Pool::open(path, &o) {
        Ok(pool) => pool,
        Err(e) => return good_error(&e),
    };
    assert!(!pool.recovery().to_string().is_empty());
    look(&pool);
    if bits & 8 != 0 {
        use_pool(&pool, bits | 1, plant);
        look(&pool);
    }
    // Killed here, or closed: either must open again, and be sound.
    let killed = (bits & 4 == 0).then(|| fs::read(path).expect("the media can be read"));
    pool.close().expect("no volume is attached");
    if let Some(image) = killed {
        fs::write(path, image).expect("room in shared memory");
    }
    if plant == Plant::WipedBeforeReopen {
        fs::write(path, vec![0; CHUNK * (CHUNKS + 1)]).expect("room in shared memory");
    }
    match Pool::open(path, &o) {
        Ok(pool) => look(&pool),
        Err(e) => panic!("a pool that was open does not open again: {e}"),
    }
}
