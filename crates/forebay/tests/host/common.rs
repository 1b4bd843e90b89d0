// SPDX-License-Identifier: MIT OR Apache-2.0
//! Helpers of the tests: directories, small pools, patterns.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use forebay::*;

pub const CHUNK: u32 = 64 << 10;

/// A directory, in memory or on a disk, removed at the end.
pub struct Dir(PathBuf);

impl Dir {
    pub fn new(name: &str) -> Dir {
        Dir::below(&forebay_test::memory(), name)
    }

    /// A directory among temporary files, which are usually on a disk.
    pub fn on_disk(name: &str) -> Dir {
        Dir::below(&std::env::temp_dir(), name)
    }

    fn below(parent: &Path, name: &str) -> Dir {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!("fby-test-{}-{name}-{n}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Dir(path)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// A pool with so many small chunks, 8 data pages each.
    pub fn pool(&self, chunks: u64) -> PathBuf {
        self.made(&small(chunks))
    }

    /// The least pool there is, with room for static volumes: [`add`] then adds one, which has
    /// all of that.
    pub fn static_pool(&self, static_bytes: u64) -> PathBuf {
        self.made(&with_room(static_bytes))
    }

    pub fn made(&self, options: &CreateOptions) -> PathBuf {
        let path = self.path("pool");
        create(&path, options).unwrap();
        path
    }

    pub fn file(&self, name: &str, bytes: u64) -> PathBuf {
        let path = self.path(name);
        std::fs::File::create(&path).unwrap().set_len(bytes).unwrap();
        path
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub fn small(chunks: u64) -> CreateOptions {
    CreateOptions {
        size_bytes: Some((chunks + 1) * u64::from(CHUNK)),
        chunk_size_bytes: CHUNK,
        ..Default::default()
    }
}

pub fn with_room(static_bytes: u64) -> CreateOptions {
    let small = small(4);
    CreateOptions { size_bytes: small.size_bytes.map(|n| n + static_bytes), static_bytes, ..small }
}

/// Writers are not held back before the pool is full.
pub fn unthrottled() -> PoolOptions {
    PoolOptions { high_watermark_percent: 100, ..Default::default() }
}

pub fn open(path: &Path) -> Pool {
    Pool::open(path, &PoolOptions::default()).unwrap()
}

/// Adds a volume of the kind that the pool was made for.
pub fn add(pool: &Pool, name: &str, origin: &dyn Origin) -> VolumeInfo {
    let share_bytes = pool.status().static_bytes;
    let static_share = (share_bytes > 0).then_some(StaticShare { share_bytes, flush_every: None });
    let added = pool.volume_add_static(name, origin, 0, static_share).unwrap();
    assert_eq!((added.static_bytes, added.static_slots > 0), (share_bytes, share_bytes > 0));
    added
}

/// In front of a file; block_size 0: the file's own.
pub fn add_file(pool: &Pool, name: &str, origin: &Path, block_size: u32) {
    let (name, origin) = (name.into(), origin.into());
    pool.volume_add(&NewVolume { name, origin, block_size, ..Default::default() }).unwrap();
}

/// Adds the volume and attaches it.
pub fn attach(pool: &Pool, name: &str, origin: &MemOrigin) -> Volume {
    add(pool, name, origin);
    reattach(pool, name, origin)
}

pub fn reattach(pool: &Pool, name: &str, origin: &MemOrigin) -> Volume {
    pool.attach_origin(name, Box::new(origin.clone()), &AttachOptions::default()).unwrap()
}

pub fn drain(volume: &Volume) -> DrainProgress {
    volume.drain(&mut |_| ControlFlow::Continue(())).unwrap()
}

/// A drain that says what is lost: all else was written.
pub fn drain_but_lost(volume: &Volume) -> Completeness {
    match volume.drain(&mut |_| ControlFlow::Continue(())) {
        Err(Error::Incomplete(judged)) => *judged,
        other => panic!("{other:?}"),
    }
}

/// Changes a byte without the engine.
pub fn spoil(path: &Path, at: u64) {
    use std::os::unix::fs::FileExt;
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 0x10], at).unwrap();
}

/// Every invariant, and every checksum.
pub fn assert_sound(pool: &Pool) {
    let report = pool.check(true).unwrap();
    assert!(report.ok, "{report}");
}

pub fn read(volume: &Volume, offset: u64, len: usize) -> Vec<u8> {
    let mut buf = vec![0xee; len];
    volume.read_at(&mut buf, offset).unwrap();
    buf
}

/// 512 bytes that tell from which write they are, and whether they are whole.
pub fn sector(writer: u64, place: u64, count: u64) -> [u8; 512] {
    let mut out = [0; 512];
    for (i, word) in out.chunks_exact_mut(32).enumerate() {
        word[..8].copy_from_slice(&writer.to_le_bytes());
        word[8..16].copy_from_slice(&place.to_le_bytes());
        word[16..24].copy_from_slice(&count.to_le_bytes());
        word[24..].copy_from_slice(&(i as u64).to_le_bytes());
    }
    out
}

/// The count of a sector written by `sector`; 0 if it never was.
pub fn sector_count(bytes: &[u8], writer: u64, place: u64) -> u64 {
    let count = u64::from_le_bytes(bytes[16..24].try_into().unwrap());
    match count {
        0 => assert!(bytes.iter().all(|b| *b == 0), "torn: {bytes:?}"),
        n => assert!(bytes == sector(writer, place, n), "torn or misplaced: {bytes:?}"),
    }
    count
}

/// Small, fast, seeded.
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Rng {
        Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % n
    }
}

/// However its scope is left, the threads that look at the flag end.
pub struct Stops<'a>(pub &'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Waits until `is`, far longer than a loaded machine takes.
pub fn until(what: &str, mut is: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is() {
        assert!(began.elapsed() < Duration::from_secs(100), "not in time: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
