// SPDX-License-Identifier: MIT OR Apache-2.0
//! Goal: a volume whose last page of 4 KiB is not whole is as any other, up to its last sector and
//! not beyond.
//!
//! Method: file origins of sizes around a page, for both kinds of volume and each mode; random
//! requests over NBD about the last pages, against a model; then a close or none, a drain, and the
//! origin against the model.

use std::ops::ControlFlow;

use common::*;
use forebay::*;
use forebay_server::nbd::Export;
use wire::*;

#[path = "../../forebay/tests/host/common.rs"]
#[allow(dead_code)]
mod common;
#[allow(dead_code)]
mod wire;

const SECTOR: usize = 512;
const WRITE: u16 = 1;
const FLUSH: u16 = 3;
const TRIM: u16 = 4;
const WRITE_ZEROES: u16 = 6;
const BLOCK_STATUS: u16 = 7;
const FUA: u16 = 1;
const NO_HOLE: u16 = 2;
const ZERO: u32 = 2;

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(12_345);
        (self.0 >> 33) as usize % n
    }

    fn bytes(&mut self, n: usize) -> Vec<u8> {
        (0..n).map(|_| self.below(256) as u8).collect()
    }
}

struct Asker<'e>(&'e [Export]);

impl Asker<'_> {
    /// Asks by a new connection.  Returns the error and the payload of a chunk.
    fn ask(&self, flags: u16, command: u16, at: usize, len: usize, data: &[u8]) -> (u32, Vec<u8>) {
        let context = [text(b"v"), 1u32.to_be_bytes().to_vec(), text(b"base:allocation")].concat();
        let go = option(7, &[text(b"v"), vec![0, 0]].concat());
        let asked = [request(flags, command, 1, at as u64, len as u32), data.to_vec()].concat();
        let said = say(self.0, FLAGS, &[option(8, b""), option(10, &context), go, asked]);
        let mut rest = &said[..];
        while rest[..8] == 0x0003_e889_0455_65a9u64.to_be_bytes() {
            rest = &rest[20 + word(rest, 16) as usize..];
        }
        match word(rest, 0) {
            0x6744_6698 => (word(rest, 4), Vec::new()),
            _ if rest[6] & 0x80 != 0 => (word(rest, 20), Vec::new()),
            _ => (0, rest[20..].to_vec()),
        }
    }

    fn read(&self, at: usize, len: usize) -> Vec<u8> {
        let (error, payload) = self.ask(0, 0, at, len, &[]);
        assert_eq!(error, 0, "a read of {len} at {at}");
        payload[8..].to_vec()
    }
}

/// Requests about the last 20 sectors, each against the model.
fn some_requests(asker: &Asker<'_>, model: &mut [u8], random: &mut Random, what: &str) {
    let sectors = model.len() / SECTOR;
    for step in 0..60 {
        let first = sectors - 1 - random.below(sectors.min(20));
        let n = match random.below(2) {
            0 => sectors - first,
            _ => 1 + random.below((sectors - first).min(16)),
        };
        let (at, len) = (first * SECTOR, n * SECTOR);
        let fua = if random.below(2) == 0 { FUA } else { 0 };
        let what = format!("{what}, step {step}, {n} sectors from {first} of {sectors}");
        match random.below(6) {
            0 | 1 => {
                let data = random.bytes(len);
                assert_eq!(asker.ask(fua, WRITE, at, len, &data).0, 0, "{what}: write");
                model[at..at + len].copy_from_slice(&data);
            }
            2 => {
                let flags = fua | if random.below(2) == 0 { NO_HOLE } else { 0 };
                assert_eq!(asker.ask(flags, WRITE_ZEROES, at, len, &[]).0, 0, "{what}: zero");
                model[at..at + len].fill(0);
            }
            3 => {
                assert_eq!(asker.ask(fua, TRIM, at, len, &[]).0, 0, "{what}: trim");
                // Both the earlier content and zeroes are right.
                let found = asker.read(0, model.len());
                for (i, (is, was)) in found.chunks(SECTOR).zip(model.chunks(SECTOR)).enumerate() {
                    let trimmed = (first..first + n).contains(&i) && is == [0; SECTOR];
                    assert!(is == was || trimmed, "{what}: sector {i} after a trim");
                }
                model.copy_from_slice(&found);
            }
            4 => assert!(asker.read(at, len) == model[at..at + len], "{what}: read"),
            _ => {
                assert_eq!(asker.ask(0, FLUSH, 0, 0, &[]).0, 0, "{what}: flush");
                let (error, payload) = asker.ask(0, BLOCK_STATUS, at, len, &[]);
                assert_eq!(error, 0, "{what}: status");
                let mut told = 0;
                for extent in payload[4..].chunks(8) {
                    let (n, state) = (word(extent, 0) as usize, word(extent, 4));
                    let zero = model[at + told..][..n].iter().all(|byte| *byte == 0);
                    assert!(state & ZERO == 0 || zero, "{what}: data is told as zeroes");
                    told += n;
                }
                assert!((1..=len).contains(&told), "{what}: {told} of {len} are told");
            }
        }
    }
}

fn is_refused_beyond(asker: &Asker<'_>, size: usize) {
    for (at, n) in [(size, 1), (size - SECTOR, 2), (size.next_multiple_of(4096), 1)] {
        let (len, data) = (n * SECTOR, vec![9; n * SECTOR]);
        let errors = [0, WRITE, TRIM, WRITE_ZEROES, BLOCK_STATUS]
            .map(|c| asker.ask(0, c, at, len, if c == WRITE { &data } else { &[] }).0);
        assert_eq!(errors, [22, 28, 22, 28, 22], "{n} sectors at {at} of {size}");
    }
}

#[test]
fn the_last_sector_of_a_page_that_is_not_whole() {
    let mut random = Random(7);
    let mut tried = 0;
    for sectors in [1, 2, 7, 8, 9, 15, 25, 129, 2047] {
        for share in [0, 1 << 20] {
            for mode in [Mode::WriteBack, Mode::WriteThrough, Mode::Cleaner] {
                for closed in [true, false] {
                    let what = format!("{mode:?}, share {share}, closed {closed}");
                    let dir = Dir::new("nbd-tail");
                    let path = if share > 0 { dir.made(&with_room(share)) } else { dir.pool(24) };
                    let mut model = random.bytes(sectors * SECTOR);
                    let origin = dir.path("origin");
                    std::fs::write(&origin, &model).unwrap();
                    let pool = Pool::open(&path, &PoolOptions::default()).unwrap();
                    let static_share = StaticShare { share_bytes: share, ..Default::default() };
                    let new = NewVolume {
                        name: "v".into(),
                        origin: origin.clone(),
                        block_size: 512,
                        static_share: (share > 0).then_some(static_share),
                        ..Default::default()
                    };
                    pool.volume_add(&new).unwrap();
                    let options = AttachOptions { mode, ..Default::default() };
                    let volume = pool.attach("v", &options).unwrap();
                    let one = [Export { volume, read_only: false }];
                    let asker = Asker(&one);
                    some_requests(&asker, &mut model, &mut random, &what);
                    is_refused_beyond(&asker, model.len());
                    let [Export { volume, .. }] = one;
                    let pool = match closed {
                        true => {
                            volume.detach().unwrap();
                            pool.close().unwrap();
                            Pool::open(&path, &PoolOptions::default()).unwrap()
                        }
                        false => {
                            volume.detach().unwrap();
                            pool
                        }
                    };
                    let volume = pool.attach("v", &AttachOptions::default()).unwrap();
                    volume.drain(&mut |_| ControlFlow::Continue(())).unwrap();
                    volume.detach().unwrap();
                    pool.close().unwrap();
                    let found = std::fs::read(&origin).unwrap();
                    assert_eq!(found.len(), model.len(), "{what}: {sectors} sectors");
                    assert!(found == model, "{what}: {sectors} sectors: another origin");
                    tried += 1;
                }
            }
        }
    }
    assert_eq!(tried, 108);
}
