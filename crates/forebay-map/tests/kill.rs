// SPDX-License-Identifier: MIT OR Apache-2.0
//! Goal: after a process was killed and the pool recovered, the process's synced data is in its
//! file, with the real engine, real files and real kills.  Method: a child process stores rising
//! numbers to pages of a file with more segments than the pool has frames.  It truncates and
//! extends the file's end, and reports what it has synced.  It is killed at a random time.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use forebay::FoundMark;
use forebay_engine::{format, sys, Engine, Media, Memory, Persist};
use forebay_map::backing::{Backing, RegularFile};
use forebay_map::recover::{left, recover, Report};
use forebay_map::store::Store;
use forebay_map::{Cache, Features, MapFile, Options, PoolStore, PAGE, SEGMENT};

const POOL: u64 = 24 << 20;
const SHARE: u64 = 12 << 20;
const SEGMENTS: u64 = 8;
const PAGES: u64 = SEGMENTS * (SEGMENT / PAGE) as u64;

struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Place {
        let at = std::env::var("MAP_MEMORY").unwrap_or("/dev/shm".into());
        let dir = Path::new(&at).join(format!("forebay-map-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a directory");
        Place(dir)
    }

    fn pool(&self) -> PathBuf {
        self.0.join("pool")
    }

    fn file(&self) -> PathBuf {
        self.0.join("file")
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn media(pool: &File) -> Arc<Media> {
    let memory = Memory::of_file(pool.as_fd(), POOL as usize, true, false).expect("mmap");
    Arc::new(Media::new(Arc::new(memory), POOL, Persist::Clwb, None).expect("clwb"))
}

fn pool_file(place: &Path) -> File {
    let mut o = OpenOptions::new();
    o.read(true).write(true).create(true).truncate(false);
    o.open(place).expect("the pool's file")
}

fn create(place: &Place) {
    let pool = pool_file(&place.pool());
    pool.set_len(POOL).expect("its size");
    let f = sys::fby_format {
        uuid: [3; 16],
        chunk_size: 64 << 10,
        map_bytes: SHARE,
        ..Default::default()
    };
    let media = media(&pool);
    format(&*media, &f).expect("a pool");
    engine(&pool).map_add("m", [4; 16], SHARE).expect("a map");
    let file = File::create(place.file()).expect("a file");
    file.set_len(SEGMENTS * SEGMENT as u64).expect("its size");
}

fn engine(pool: &File) -> Arc<Engine> {
    let options = sys::fby_options { nslots: 1, maps: true, ..Default::default() };
    Arc::new(Engine::open(media(pool), &options).expect("the pool").0)
}

fn attach(place: &Place) -> Arc<PoolStore> {
    let pool = pool_file(&place.pool());
    let engine = engine(&pool);
    Arc::new(PoolStore::attach(&engine, "m", pool).expect("the map"))
}

fn bring_home(store: &PoolStore) -> Report {
    let open = |path: &Path| -> forebay_map::Result<Box<dyn Backing>> {
        Ok(Box::new(RegularFile::open(path)?))
    };
    recover(store, open).expect("a recovery")
}

fn can(name: &str) -> bool {
    let place = Place::new("probe");
    let file = pool_file(&place.pool());
    file.set_len(SEGMENT as u64).expect("its size");
    let features = Features::detect(file.as_fd(), 0);
    if !features.faults {
        forebay_test::skipped!("{name} needs userfaultfd: {:?}", features.missing);
    }
    features.faults
}

fn open(store: &Arc<PoolStore>, place: &Place, interval: Duration) -> (Cache, MapFile) {
    let options = Options { interval, quiet: 1, ..Options::default() };
    let store: Arc<dyn Store> = Arc::<PoolStore>::clone(store);
    let cache = Cache::new(store, options).expect("a cache");
    let file = cache.open(&place.file(), SEGMENTS * SEGMENT as u64).expect("the file");
    (cache, file)
}

/// The process that is killed.  It has two threads, each with pages of its own, and a page is
/// full of one number.  It reports `page number` after a sync, and `cut size` before the file
/// gets shorter.
fn child(place: &Place) {
    let store = attach(place);
    let (_cache, file) = open(&store, place, Duration::from_millis(70));
    let say = |line: String| {
        let mut out = std::io::stdout().lock();
        // One write, so that each report is whole.
        out.write_all(line.as_bytes()).and_then(|()| out.flush()).expect("somebody listens");
    };
    let turns = std::sync::atomic::AtomicU64::new(1);
    std::thread::scope(|s| {
        for thread in 0..2u64 {
            let (file, say, turns) = (&file, &say, &turns);
            s.spawn(move || {
                let mut random = u64::from(std::process::id()) * 2 + thread;
                let mut below = move |n: u64| {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    (random >> 33) % n
                };
                loop {
                    let value = turns.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    // One thread alone truncates and extends the last segment.
                    let segments = SEGMENTS - 1;
                    let pages: Vec<u64> = (0..1 + below(6))
                        .map(|_| (below(segments) * 512 + below(40) * 11) / 2 * 2 + thread)
                        .collect();
                    let full = value.to_ne_bytes().repeat(PAGE / 8);
                    for page in &pages {
                        match below(4) {
                            0 => file.write(page * PAGE as u64, &full).expect("write"),
                            _ => file.store(page * PAGE as u64, &full),
                        }
                    }
                    let whole = below(8) == 0;
                    if whole {
                        file.sync(0, u64::MAX).expect("sync");
                    }
                    let mut said = String::new();
                    for page in pages {
                        if !whole {
                            file.sync(page * PAGE as u64, PAGE as u64).expect("sync");
                        }
                        said += &format!("{page} {value}\n");
                    }
                    say(said);
                    if thread == 0 && below(20) == 0 {
                        let end = segments * SEGMENT as u64 + below(512) * PAGE as u64;
                        say(format!("cut {end}\n"));
                        file.set_size(end).expect("shorter");
                        file.set_size(SEGMENTS * SEGMENT as u64).expect("larger");
                        let last = PAGES - 1 - below(9);
                        file.store(last * PAGE as u64, &full);
                        file.sync(last * PAGE as u64, PAGE as u64).expect("sync");
                        say(format!("{last} {value}\n"));
                    }
                }
            });
        }
    });
}

fn killed(place: &Place, after: Duration, synced: &mut BTreeMap<u64, u64>) -> usize {
    let mut child = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "synced_data_is_in_the_file_after_a_kill", "--nocapture"])
        .env("FOREBAY_MAP_CHILD", &place.0)
        .stdout(Stdio::piped())
        .spawn()
        .expect("it runs");
    let out = BufReader::new(child.stdout.take().expect("piped"));
    let said = Arc::new(Mutex::new(Vec::new()));
    let reader = std::thread::spawn({
        let said = Arc::clone(&said);
        move || {
            for line in out.lines().map_while(Result::ok) {
                said.lock().expect("not poisoned").push(line);
            }
        }
    });
    let waits = std::time::Instant::now();
    while said.lock().expect("not poisoned").len() < 10 {
        assert!(child.try_wait().expect("wait").is_none(), "it ended by itself");
        assert!(waits.elapsed() < Duration::from_secs(60), "it does nothing");
        std::thread::sleep(Duration::from_millis(2));
    }
    std::thread::sleep(after);
    assert!(child.try_wait().expect("wait").is_none(), "it ended by itself");
    child.kill().expect("SIGKILL");
    child.wait().expect("it is dead");
    reader.join().expect("all was read");
    let said = said.lock().expect("not poisoned");
    for line in said.iter() {
        let mut words = line.split(' ');
        let (Some(first), Some(second)) = (words.next(), words.next()) else { continue };
        let Ok(second) = second.parse::<u64>() else { continue };
        if first == "cut" {
            synced.retain(|&page, _| page < second / PAGE as u64);
        } else if let Ok(page) = first.parse() {
            synced.insert(page, second);
        }
    }
    said.len()
}

#[test]
fn synced_data_is_in_the_file_after_a_kill() {
    if let Some(dir) = std::env::var_os("FOREBAY_MAP_CHILD") {
        let place = Place(dir.into());
        child(&place);
        unreachable!("it is killed");
    }
    if !can("synced_data_is_in_the_file_after_a_kill") {
        return;
    }
    let kills = std::env::var("MAP_KILLS").ok().and_then(|k| k.parse().ok()).unwrap_or(8u64);
    let (mut said, mut written) = (0, 0);
    for kill in 0..kills {
        let place = Place::new("kill");
        create(&place);
        let mut synced = BTreeMap::new();
        said += killed(&place, Duration::from_millis(20 + kill * 37 % 300), &mut synced);
        let store = attach(&place);
        let lacks = left(&*store).expect("a list").iter().any(|l| l.dirty > 0);
        let marked = || {
            let file = RegularFile::open(&place.file()).expect("the file");
            file.marked().expect("a look") != FoundMark::Nothing
        };
        assert!(marked() || !lacks, "it lacks pages, and does not say so");
        let home = bring_home(&store);
        assert!(!marked(), "it has everything");
        assert!(home.refused.is_empty() && home.strays == 0, "{home:?}");
        written += home.pages;
        assert!(store.frames().expect("frames").is_empty());
        assert!(store.files().expect("files").is_empty());
        let content = std::fs::read(place.file()).expect("the file");
        for (page, value) in &synced {
            let at = *page as usize * PAGE;
            let found: Vec<u64> = content[at..at + PAGE]
                .chunks(8)
                .map(|w| u64::from_ne_bytes(w.try_into().expect("eight")))
                .collect();
            // A page may have a later store.  The rest of a page that is being stored is older.
            assert!(
                found.iter().all(|f| f >= value),
                "kill {kill}: page {page}: {value} was synced, {:?} is there",
                found.iter().min()
            );
        }
        assert!(synced.len() > 5, "too little to judge: {}", synced.len());
    }
    println!("{kills} kills, {said} lines of what was synced, {written} pages recovered");
}

#[test]
fn a_file_is_mapped_written_back_and_closed() {
    if !can("a_file_is_mapped_written_back_and_closed") {
        return;
    }
    let place = Place::new("plain");
    create(&place);
    let store = attach(&place);
    let (cache, file) = open(&store, &place, Duration::from_millis(10));
    for segment in 0..SEGMENTS {
        file.store(segment * SEGMENT as u64 + 5, b"five");
    }
    file.sync(0, u64::MAX).expect("sync");
    let said = cache.open(&place.file(), 0).expect_err("it is mapped").to_string();
    assert!(said.contains("this process (") && said.contains("mapped or locked"), "{said}");
    let begun = std::time::Instant::now();
    while file.is_dirty().expect("it tells") {
        assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", cache.failure());
        std::thread::sleep(Duration::from_millis(5));
    }
    let content = std::fs::read(place.file()).expect("the file");
    assert!((0..SEGMENTS as usize).all(|s| &content[s * SEGMENT + 5..][..4] == b"five"));

    file.lock(0, 1).expect("one segment");
    let said = file.lock(0, u64::MAX).expect_err("more than there is").to_string();
    assert!(said.contains("segments to be locked; 2 may be"), "{said}");
    for segment in 1..SEGMENTS {
        file.store(segment * SEGMENT as u64, b"others");
    }
    assert!(store.frames().expect("frames").iter().any(|f| f.segment == 0), "it is locked");
    file.unlock(0, 1);
    file.store(7, b"last");
    let clone = file.clone();
    let said = file.close().expect_err("a clone").to_string();
    assert!(said.contains("in use"), "{said}");
    clone.close().expect("closed");
    assert_eq!(&std::fs::read(place.file()).expect("the file")[7..11], b"last");
    assert!(store.files().expect("files").is_empty());
}
