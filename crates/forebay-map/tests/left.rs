// SPDX-License-Identifier: MIT OR Apache-2.0
//! Goal: with the real engine, a damaged record or unreadable memory holds up no other page and
//! keeps no file from being opened.  Method: the state after a crash is made by hand.  Then
//! bytes of the pool are changed, or its file is truncated, so that a load there faults as from
//! poisoned memory.

use std::fs::{File, OpenOptions};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_engine::{format, sys, Engine, Media, Memory, Persist};
use forebay_map::backing::{Backing, RegularFile};
use forebay_map::recover::{discard, left, recover, salvage};
use forebay_map::store::{FileRecord, Stamp, Store};
use forebay_map::{Cache, Options, PageSet, PoolStore, PAGE, SEGMENT};

const POOL: u64 = 24 << 20;
const SHARE: u64 = 12 << 20;

struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Place {
        let at = std::env::var("MAP_MEMORY").unwrap_or("/dev/shm".into());
        let dir = Path::new(&at).join(format!("forebay-left-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).expect("a directory");
        let place = Place(dir);
        place.pool().set_len(POOL).expect("its size");
        let f = sys::fby_format {
            uuid: [3; 16],
            chunk_size: 64 << 10,
            map_bytes: SHARE,
            ..Default::default()
        };
        format(&*place.media(), &f).expect("a pool");
        place.engine().map_add("m", [4; 16], SHARE).expect("a map");
        place
    }

    fn pool(&self) -> File {
        let mut o = OpenOptions::new();
        let o = o.read(true).write(true).create(true).truncate(false);
        o.open(self.0.join("pool")).expect("the pool's file")
    }

    fn media(&self) -> Arc<Media> {
        let memory = Memory::of_file(self.pool().as_fd(), POOL as usize, true, false);
        let media = Media::new(Arc::new(memory.expect("mmap")), POOL, Persist::Clwb, None);
        Arc::new(media.expect("clwb").watched(c"the pool".into()))
    }

    fn engine(&self) -> Arc<Engine> {
        let options = sys::fby_options { nslots: 1, maps: true, ..Default::default() };
        Arc::new(Engine::open(self.media(), &options).expect("the pool").0)
    }

    fn store(&self) -> PoolStore {
        PoolStore::attach(&self.engine(), "m", self.pool()).expect("the map")
    }

    /// Files with all pages of the first segment dirty, as a crash leaves them.
    fn crashed(&self, names: &[&str]) -> Vec<(PathBuf, u64)> {
        let store = self.store();
        let mut files = Vec::new();
        for (i, name) in names.iter().enumerate() {
            let path = self.0.join(name);
            std::fs::write(&path, vec![0; SEGMENT]).expect("a file");
            let file = RegularFile::open(&path).expect("it is there");
            let record = FileRecord {
                size: SEGMENT as u64,
                identity: file.identity().to_owned(),
                path: path.display().to_string(),
                stamp: Stamp::Settled(file.changed().expect("its time")),
                ..FileRecord::default()
            };
            file.mark(store.claim()).expect("marked");
            let id = store.add_file(&record).expect("a record");
            let frame = store.take(id, 0).expect("a frame").expect("one is free");
            store.fill(frame, 0, &vec![i as u8 + 1; SEGMENT]).expect("filled");
            store.show(frame).expect("shown");
            store.sync(frame, &PageSet::ALL).expect("synced");
            files.push((path, store.offset(frame).expect("its place")));
        }
        files
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn open(path: &Path) -> forebay_map::Result<Box<dyn Backing>> {
    Ok(Box::new(RegularFile::open(path)?))
}

fn pages_with(path: &Path, byte: u8) -> usize {
    let content = std::fs::read(path).expect("the file");
    content.chunks(PAGE).filter(|p| p.iter().all(|&b| b == byte)).count()
}

#[test]
fn a_damaged_record_holds_up_no_other_file() {
    let place = Place::new("record");
    let files = place.crashed(&["a", "b"]);
    // Damages both copies of the first record.
    let share = files[0].1 / (2 << 20) * (2 << 20) - (2 << 20);
    let pool = place.pool();
    let mut found = 0;
    for at in (share..share + (2 << 20)).step_by(PAGE) {
        let mut head = [0; 8];
        pool.read_exact_at(&mut head, at).expect("within");
        if &head[..4] == b"FOMF" && head[4..] == [0; 4] {
            pool.write_all_at(b"what", at + 100).expect("changed");
            found += 1;
        }
    }
    assert_eq!(found, 2, "copies of the record");
    let store = Arc::new(place.store());
    let report = recover(&*store, open).expect("a recovery");
    assert_eq!((report.files, report.pages, report.refused.len()), (1, 512, 1), "{report:?}");
    assert_eq!((pages_with(&files[1].0, 2), pages_with(&files[0].0, 0)), (512, 512));
    let said = &report.refused[0];
    assert!(said.name == Path::new("#0") && said.pages == 512, "{said:?}");

    // Other files can be mapped meanwhile.
    let other = place.0.join("other");
    std::fs::write(&other, b"something").expect("a file");
    let beside: Arc<dyn Store> = Arc::<PoolStore>::clone(&store);
    let cache = Cache::new(beside, Options::default()).expect("a cache");
    cache.open(&other, 0).expect("it is not kept").close().expect("closed");
    drop(cache);

    let all = left(&*store).expect("a list");
    let saved = salvage(&*store, &all[0], &place.0.join("saved")).expect("salvaged");
    assert_eq!((saved.pages, pages_with(&saved.data, 1)), (512, 512));
    discard(&*store, &open, &all[0]).expect("given up");
    assert!(left(&*store).expect("a list").is_empty());
}

#[test]
fn unreadable_memory_holds_up_no_other_page() {
    let place = Place::new("page");
    let files = place.crashed(&["a", "b"]);
    let store = place.store();
    // The higher of the two frames: a load after the end of the pool's file is a fault.
    let (last, other) = match files[0].1 > files[1].1 {
        true => (0, 1),
        false => (1, 0),
    };
    let end = files[last].1 + SEGMENT as u64 - 3 * PAGE as u64;
    place.pool().set_len(end).expect("shorter");
    let report = recover(&store, open).expect("a recovery");
    assert_eq!((report.files, report.pages, report.refused.len()), (1, 1021, 1), "{report:?}");
    assert_eq!(pages_with(&files[other].0, other as u8 + 1), 512);
    assert_eq!(pages_with(&files[last].0, last as u8 + 1), 509);
    let said = &report.refused[0].why;
    assert!(said.contains("3 pages, the first at byte 2084864"), "{said}");
    let all = left(&store).expect("a list");
    assert_eq!((all.len(), all[0].dirty), (1, 3));
    let saved = salvage(&store, &all[0], &place.0.join("saved")).expect("salvaged");
    assert_eq!((saved.pages, saved.lost), (0, 3));
    discard(&store, &open, &all[0]).expect("given up");
    assert!(left(&store).expect("a list").is_empty());
}

#[test]
fn a_truncation_into_unreadable_memory_is_reported() {
    let place = Place::new("cut");
    let files = place.crashed(&["a", "b"]);
    let store = place.store();
    let last = usize::from(files[1].1 > files[0].1);
    let (path, at) = &files[last];
    let records = store.files().expect("a list");
    let record = records.iter().find(|(_, f)| Path::new(&f.path) == path);
    let id = record.expect("its record").0;
    let size = SEGMENT as u64 - 2 * PAGE as u64 + 100;
    store.cut(id, size).expect("it counts from then on");
    // The page in which the file ends, and the pages before and after it.
    place.pool().set_len(at + SEGMENT as u64 - 3 * PAGE as u64).expect("shorter");
    for again in [false, true] {
        let report = recover(&store, open).expect("a recovery");
        assert_eq!(report.refused.len(), 1, "{report:?}");
        assert_eq!(report.pages, if again { 0 } else { 512 + 509 });
        let said = &report.refused[0].why;
        assert!(
            said.contains("the page in which the file ends") && said.contains("2 pages"),
            "{said}"
        );
        assert_eq!(
            (pages_with(path, last as u8 + 1), std::fs::metadata(path).expect("it").len()),
            (509, size)
        );
    }
    let all = left(&store).expect("a list");
    assert!(all.len() == 1 && all[0].record.as_ref().is_some_and(|r| r.cut), "{all:?}");
    let saved = salvage(&store, &all[0], &place.0.join("saved")).expect("salvaged");
    assert_eq!((saved.pages, saved.lost), (0, 2));
    discard(&store, &open, &all[0]).expect("given up");
    assert!(left(&store).expect("a list").is_empty());
    let file = RegularFile::open(path).expect("the file");
    assert_eq!(file.marked().expect("a look"), forebay::FoundMark::Nothing);
}
