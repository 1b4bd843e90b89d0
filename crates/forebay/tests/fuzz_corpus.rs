// SPDX-License-Identifier: MIT OR Apache-2.0
//! Goal: a fault that a fuzzer found once stays found, on every machine and without libFuzzer.
//! Method: the fuzz targets of `fuzz/rust` over their corpus, and over mutations of it by a
//! fixed seed.  `make fuzz` runs libFuzzer on the same code.

#[path = "../../../fuzz/rust/src/config.rs"]
mod config;
#[path = "../../../fuzz/rust/src/image.rs"]
mod image;
#[path = "../../../fuzz/rust/src/sparse.rs"]
mod sparse;
#[path = "../../forebay-cli/src/units.rs"]
mod units;

use std::fs;
use std::path::{Path, PathBuf};

use forebay::*;
use image::{Plant, Scratch};

/// `FUZZ_MUTATIONS` tries more.
fn mutations() -> u32 {
    std::env::var("FUZZ_MUTATIONS").ok().and_then(|n| n.parse().ok()).unwrap_or(200)
}

fn rust_fuzz() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/rust")
}

fn corpus(target: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let dir = rust_fuzz().join("corpus").join(target);
    let mut all: Vec<_> =
        fs::read_dir(&dir).unwrap().map(|e| e.unwrap().path()).filter(|p| p.is_file()).collect();
    all.sort();
    assert!(all.len() >= 8, "{}: where is the corpus?", dir.display());
    all.into_iter().map(|p| (p.clone(), fs::read(p).unwrap())).collect()
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n.max(1) as u64) as usize
    }
}

/// Bytes changed, cut off, doubled, or taken from another input.
fn mutate(random: &mut Random, inputs: &[(PathBuf, Vec<u8>)]) -> Vec<u8> {
    let mut data = inputs[random.below(inputs.len())].1.clone();
    for _ in 0..1 + random.below(4) {
        let at = random.below(data.len());
        match random.below(5) {
            0 => data.truncate(2.max(at)),
            1 => {
                let tail = data[at..].to_vec();
                data.extend(tail);
            }
            2 => {
                let other = &inputs[random.below(inputs.len())].1;
                data.extend(&other[random.below(other.len())..]);
            }
            _ if !data.is_empty() => data[at] = random.below(256) as u8,
            _ => {}
        }
    }
    data.truncate(2000);
    data
}

/// Panics of the target, with the input that brought them.
fn try_one(target: &str, name: &str, data: &[u8], run: &dyn Fn(&[u8])) {
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(data)));
    if caught.is_err() {
        let path = std::env::temp_dir().join(format!("finding-{target}"));
        fs::write(&path, data).unwrap();
        panic!("{target}: {name}; the input is in {}", path.display());
    }
}

fn regression(target: &str, run: &dyn Fn(&[u8])) {
    let inputs = corpus(target);
    for (path, data) in &inputs {
        try_one(target, &path.display().to_string(), data, run);
    }
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for n in 0..mutations() {
        let data = mutate(&mut random, &inputs);
        try_one(target, &format!("mutation {n}"), &data, run);
    }
}

#[test]
fn images() {
    regression("image", &|data| image::run(data, Plant::Nothing));
}

#[test]
fn configurations() {
    regression("config", &config::run);
}

// --- the checks themselves are seen to fail ----------------------------------

/// Base image 0 (killed) without a patch, its volumes used.
const WHOLE: [u8; 2] = [4, 8];

#[test]
fn the_base_images_are_pools_with_data() {
    for mode in [4, 5] {
        image::run(&[mode, 8], Plant::Nothing);
        let scratch = Scratch::new();
        let name = ["killed.img", "closed.img"][mode as usize - 4];
        fs::copy(rust_fuzz().join("base").join(name), &scratch.0).unwrap();
        let pool = Pool::open(&scratch.0, &PoolOptions::default()).unwrap();
        assert_eq!(pool.recovery().clean, mode == 5);
        let names: Vec<_> = pool.volumes().into_iter().map(|v| (v.name, v.pages > 0)).collect();
        assert_eq!(names, [("first".into(), true), ("second".into(), true)]);
    }
}

#[test]
#[should_panic(expected = "the origin has other data")]
fn an_origin_that_forgets_is_noticed() {
    image::run(&WHOLE, Plant::OriginForgets);
}

#[test]
#[should_panic(expected = "does not open again")]
fn a_pool_that_is_gone_is_noticed() {
    image::run(&WHOLE, Plant::WipedBeforeReopen);
}

#[test]
fn requests_out_of_range_are_noticed() {
    for (offset, len) in [(4096, 512), (3584, 1024), (0, 0), (100, 512), (u64::MAX - 511, 512)] {
        let origin = sparse::SparseOrigin::new(4096, 512, "id".into());
        origin.discard(offset, len).unwrap();
        assert!(origin.complaint().is_some(), "{len} bytes at {offset}");
    }
    let origin = sparse::SparseOrigin::new(4096, 512, "id".into());
    origin.write_at(&[1; 512], 3584).unwrap();
    assert_eq!(origin.complaint(), None);
}

// --- the base images -----------------------------------------------------------

/// Whole and partial pages, replaced ones, batches, a discard, a zeroing.
fn fill(first: &Volume, second: &Volume) {
    first.write_at(&[1; 20 << 10], 0).unwrap();
    second.write_at(&[2; 1024], 1536).unwrap();
    first.write_at(&[3; 4096], 4096).unwrap();
    first.write_at(&[4; 1536], 8704).unwrap();
    first.discard(12 << 10, 4096).unwrap();
    second.write_zeroes(8 << 10, 8 << 10).unwrap();
    second.write_at(&[5; 8 << 10], 248 << 10).unwrap();
}

/// Writes `fuzz/rust/base` anew, after a change of the format:
/// `cargo test -p forebay --test fuzz_corpus -- --ignored make_base_images`
#[test]
#[ignore = "writes files of the repository"]
fn make_base_images() {
    let scratch = Scratch::new();
    let o = CreateOptions {
        size_bytes: Some((image::CHUNK * (image::CHUNKS + 1)) as u64),
        chunk_size_bytes: image::CHUNK as u32,
        max_volumes: image::VOLUMES as u32,
        ..Default::default()
    };
    create(&scratch.0, &o).unwrap();
    let o = PoolOptions { slots: 1, high_watermark_percent: 100, ..Default::default() };
    let pool = Pool::open(&scratch.0, &o).unwrap();
    let volumes: Vec<_> = ["first", "second"]
        .into_iter()
        .map(|name| {
            let origin = sparse::SparseOrigin::new(256 << 10, 512, format!("id:{name}|/{name}"));
            pool.volume_add_origin(name, &origin, 512).unwrap();
            pool.attach_origin(name, Box::new(origin), &AttachOptions::default()).unwrap()
        })
        .collect();
    fill(&volumes[0], &volumes[1]);
    volumes[0].drain(&mut |_| std::ops::ControlFlow::Continue(())).unwrap();
    fill(&volumes[0], &volumes[1]);
    fs::copy(&scratch.0, rust_fuzz().join("base/killed.img")).unwrap();
    for volume in volumes {
        volume.detach().unwrap();
    }
    pool.close().unwrap();
    fs::copy(&scratch.0, rust_fuzz().join("base/closed.img")).unwrap();
}
