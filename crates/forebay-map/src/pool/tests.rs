// SPDX-License-Identifier: MIT OR Apache-2.0
//! Goal: any bytes in a share's file records are handled safely.  The engine takes a record's
//! identity as it is, and its checksum protects from damage but not from malice.  Also, the
//! known facts about a frame agree with the pool.  Method: a pool with the real engine whose
//! records have random and mutated bytes; threads.

use std::fs::OpenOptions;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use forebay_engine::{format, Media, Memory, Persist};

use super::*;
use crate::backing::{Backing, RegularFile, Time};
use crate::planted::{plant, Planted};
use crate::recover::{discard, left, recover, salvage};
use crate::simulated::Random;
use crate::tests::alone;

const POOL: u64 = 24 << 20;

struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Place {
        let dir = Path::new("/dev/shm").join(format!("fby-pool-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).expect("a directory in /dev/shm");
        Place(dir)
    }

    fn store(&self) -> PoolStore {
        let mut o = OpenOptions::new();
        let o = o.read(true).write(true).create(true).truncate(false);
        let file = o.open(self.0.join("pool")).expect("the pool's file");
        file.set_len(POOL).expect("its size");
        let memory = Memory::of_file(file.as_fd(), POOL as usize, true, false);
        let media = Media::new(Arc::new(memory.expect("mmap")), POOL, Persist::Clwb, None);
        let media = Arc::new(media.expect("clwb").watched(c"the pool".into()));
        let f = sys::fby_format {
            uuid: [3; 16],
            chunk_size: 64 << 10,
            map_bytes: 12 << 20,
            ..Default::default()
        };
        format(&*media, &f).expect("a pool");
        let options = sys::fby_options { nslots: 1, maps: true, ..Default::default() };
        let engine = Arc::new(Engine::open(media, &options).expect("the pool").0);
        engine.map_add("m", [4; 16], 12 << 20).expect("a map");
        PoolStore::attach(&engine, "m", file).expect("the map")
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn random_bytes(random: &mut Random, n: usize) -> Vec<u8> {
    (0..n).map(|_| random.below(256) as u8).collect()
}

fn random_time(random: &mut Random) -> Time {
    match random.below(4) {
        0 => (i64::MAX, u32::MAX),
        1 => (i64::MIN, 0),
        _ => (random.below(u64::MAX) as i64, random.below(1 << 32) as u32),
    }
}

#[test]
fn an_identity_with_any_bytes_is_decoded_safely() {
    let mut random = Random(5);
    for _ in 0..20_000 {
        let time = random_time(&mut random);
        let stamp = match random.below(2) {
            0 => Stamp::Settled(time),
            _ => Stamp::Changing(time),
        };
        let n = random.below(241) as usize;
        let identity = random_bytes(&mut random, n);
        let bytes = known_by(&identity, stamp);
        let mut record = MapFile { identity_bytes: bytes.len() as u16, ..MapFile::default() };
        record.identity[..bytes.len()].copy_from_slice(&bytes);
        assert_eq!(known_by_of(&record), (identity, stamp));
        let _ = stamp.explains(random_time(&mut random));
        // Changed, cut short, or longer than allowed.
        match random.below(3) {
            0 => record.identity_bytes = random.below(1 << 16) as u16,
            _ => {
                let at = random.below(256) as usize;
                record.identity[at] = random.below(256) as u8;
            }
        }
        let (identity, stamp) = known_by_of(&record);
        assert!(identity.len() <= 240);
        let _ = stamp.explains(random_time(&mut random));
        // Encoding the record again gives the same bytes.
        let again = known_by(&identity, stamp);
        let whole = usize::from(record.identity_bytes) <= 256 && record.identity_bytes >= 16;
        assert!(!whole || again[4..] == record.identity[4..again.len()]);
    }
}

#[test]
fn a_record_with_any_bytes_is_refused_by_name_and_discarded() {
    let _alone = alone();
    let place = Place::new("hostile");
    let store = place.store();
    let file = place.0.join("victim");
    std::fs::write(&file, vec![1; 3 * PAGE]).expect("a file");
    let real = RegularFile::open(&file).expect("the file");
    let sound = known_by(real.identity(), Stamp::Settled(real.changed().expect("its time")));
    drop(real);
    let open = |path: &Path| -> Result<Box<dyn Backing>> {
        assert!(path.starts_with(&place.0), "{path:?}");
        Ok(Box::new(RegularFile::open(path)?))
    };
    let mut random = Random(6);
    let mut refused = 0;
    for round in 0..400 {
        let mut identity = sound.clone();
        match random.below(4) {
            0 => {
                let n = random.below(257) as usize;
                identity = random_bytes(&mut random, n);
            }
            1 => identity.truncate(random.below(sound.len() as u64) as usize),
            2 => {
                let at = random.below(sound.len() as u64) as usize;
                identity[at] ^= 1 << random.below(8);
            }
            _ => {}
        }
        let tail = ["victim", "", "..", "pool", "victim/x", "a\u{1}\u{202e}\n", "\u{6f22}"];
        let mut name = place.0.join(tail[random.below(7) as usize]).display().to_string();
        if random.below(8) == 0 {
            name.extend(std::iter::repeat_n('n', random.below(3000) as usize));
        }
        let size = [0, 1, PAGE as u64 * 3, SEGMENT as u64, 1 << 61][random.below(5) as usize];
        let id = store.map.file_add(size, &identity, &name).expect("the engine takes it");
        let mut pages = PageSet::EMPTY;
        pages.insert(1..2);
        let synced = match store.take(id, random.below(3)).expect("a share") {
            Some(frame) => {
                store.fill(frame, 0, &vec![9; SEGMENT]).expect("filled");
                store.show(frame).expect("shown");
                store.sync(frame, &pages).expect("a sync") == Synced::Durable
            }
            None => panic!("frames are lost"),
        };
        let report = recover(&store, open).expect("a recovery");
        assert_eq!(report.pages, 0, "nothing of it is for a file without the mark");
        let all = left(&store).expect("a list");
        for l in &all {
            assert!(l.is_named(Path::new(&l.name())));
            if !synced {
                continue;
            }
            refused += 1;
            assert!(report.refused.iter().any(|r| r.name == Path::new(&l.name())));
            let saved = salvage(&store, l, &place.0.join(format!("saved{round}")));
            match saved {
                Ok(saved) => assert_eq!((saved.pages, saved.lost), (1, 0), "{identity:?} {name}"),
                // The size in the record is larger than a file can be.
                Err(e) => assert!(size == 1 << 61, "{e}"),
            }
        }
        for l in all {
            discard(&store, &open, &l).expect("given up");
        }
        for frame in store.frames().expect("a list") {
            store.release(frame.frame, true).expect("free");
        }
    }
    assert!(refused > 100, "{refused}");
    assert_eq!(std::fs::read(&file).expect("the file"), vec![1; 3 * PAGE], "it was written to");
}

/// A file grows while another thread asks for facts about its frame.
fn known_frames_are_as_the_pool_says() -> std::result::Result<(), String> {
    let place = Place::new("known");
    let store = place.store();
    let mut pages = PageSet::EMPTY;
    pages.insert(5..6);
    for round in 0..60 {
        let record = FileRecord { size: PAGE as u64, path: "/a".into(), ..FileRecord::default() };
        let id = store.add_file(&record).expect("a record");
        let frame = store.take(id, 0).expect("a share").expect("one is free");
        store.show(frame).expect("shown");
        std::thread::scope(|s| {
            s.spawn(|| store.dirty(frame).expect("known"));
            std::thread::sleep(std::time::Duration::from_micros(10 * (round % 20)));
            store.set_size(id, SEGMENT as u64).expect("larger");
        });
        // Syncs as another process does.
        let done = store.map.frame(frame).expect("it is there").sync(&pages.bits());
        assert!(done.expect("a sync"), "within the file");
        let begun = store.write_begin(frame, &pages).expect("known");
        store.release(frame, true).expect("free");
        store.remove_file(id).expect("free");
        if begun != pages {
            return Err(format!("round {round}: a dirty page is never written"));
        }
    }
    Ok(())
}

#[test]
fn known_frames_agree_with_the_pool() {
    let _alone = alone();
    known_frames_are_as_the_pool_says().expect("all is written");
    plant(Some(Planted::KnownTooLong));
    let found = known_frames_are_as_the_pool_says();
    plant(None);
    println!("{}", found.expect_err("KnownTooLong was not found"));
}
