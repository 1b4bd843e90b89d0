// SPDX-License-Identifier: MIT OR Apache-2.0
//! Goal: several processes map files onto a pool that another process serves.  Each has the
//! same guarantees as with a pool of its own, and a hostile process harms no other.  Method:
//! random histories of calls on two files over two connections, compared with a model, while a
//! third connection sends arbitrary bytes.  Events that must coincide have tests of their own.

use std::fs::File;
use std::io::{Read, Write};
use std::ops::ControlFlow;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay::{CreateOptions, Pool, PoolOptions};
use forebay_map::store::{FileRecord, Stamp, Store, Synced};
use forebay_map::wire::{self, Answer, Request};
use forebay_map::{Cache, Error, Features, MapFile, Options, PageSet, ServedStore, PAGE, SEGMENT};
use forebay_map_server::{MapService, Order};
use forebay_server::{Service, Stop};

const SEGMENTS: usize = 4;

struct Bed {
    dir: PathBuf,
    pool: Option<Pool>,
    service: Arc<MapService>,
}

impl Bed {
    /// A map with five frames.
    fn new() -> Bed {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("forebay-map-clients-{}-{number}", std::process::id());
        let dir = Path::new("/dev/shm").join(name);
        std::fs::DirBuilder::new().mode(0o700).create(&dir).expect("a directory in /dev/shm");
        let o = CreateOptions {
            size_bytes: Some(24 << 20),
            map_bytes: 12 << 20,
            ..CreateOptions::default()
        };
        forebay::create(&dir.join("pool"), &o).expect("a pool");
        let pool = Pool::open(&dir.join("pool"), &PoolOptions::default()).expect("the pool");
        pool.map_add("db", 12 << 20).expect("a map");
        let started = MapService::start(&pool, &dir, false, &mut |_| {}).expect("maps");
        let service = started.expect("a map").0;
        Bed { dir, pool: Some(pool), service }
    }

    fn pool(&self) -> &Pool {
        self.pool.as_ref().expect("until it ends")
    }

    fn connect(&self) -> UnixStream {
        UnixStream::connect(wire::socket_path(&self.dir, self.pool().uuid())).expect("served")
    }

    fn store(&self) -> Arc<ServedStore> {
        let media = self.pool().media().id.clone();
        Arc::new(ServedStore::over(self.connect(), Some("db"), Some(&media)).expect("served"))
    }

    fn cache(&self, by_hand: bool) -> Cache {
        let interval = Duration::from_millis(50);
        let options = Options { by_hand, quiet: 1, interval, ..Options::default() };
        Cache::new(self.store(), options).expect("a cache")
    }

    fn file(&self, name: &str, bytes: u64) -> PathBuf {
        let path = self.dir.join(name);
        File::create(&path).and_then(|file| file.set_len(bytes)).expect("a file");
        path
    }

    /// Whether no process has anything left in the pool.
    fn is_empty(&self) -> bool {
        let status = self.service.status();
        let maps = &status.details["maps"][0];
        maps["frames_used"] == 0 && maps["files"] == 0 && status.trouble.is_empty()
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        let stop = Stop { grace: Duration::ZERO, must: true, keep: false };
        let stopped = self.service.stop(&stop);
        let closed = self.pool.take().map(Pool::close);
        let _ = std::fs::remove_dir_all(&self.dir);
        if !std::thread::panicking() {
            stopped.expect("stopped");
            closed.expect("there").expect("nobody has it any more");
        }
    }
}

fn can() -> bool {
    let path = Path::new("/dev/shm").join(format!("forebay-map-probes-{}", std::process::id()));
    let mut o = std::fs::OpenOptions::new();
    let file = o.read(true).write(true).create(true).truncate(false).open(&path).expect("a file");
    file.set_len(SEGMENT as u64).expect("its size");
    let _ = std::fs::remove_file(path);
    let features = Features::detect(std::os::fd::AsFd::as_fd(&file), 0);
    if !features.watch {
        forebay_test::skipped!("it needs userfaultfd and PAGEMAP_SCAN: {:?}", features.missing);
    }
    features.watch
}

struct Numbers(u64);

impl Numbers {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695);
        (self.0 >> 33) % n
    }
}

/// A mapped file with its expected content.
struct Modelled {
    path: PathBuf,
    cache: Cache,
    file: Option<MapFile>,
    model: Vec<u8>,
    segments: usize,
}

impl Modelled {
    fn new(bed: &Bed, name: &str, segments: usize) -> Modelled {
        let bytes = (segments - 1) * SEGMENT + 5000;
        let path = bed.file(name, bytes as u64);
        Modelled { path, cache: bed.cache(true), file: None, model: vec![0; bytes], segments }
    }

    fn open(&mut self) -> &MapFile {
        let room = (self.segments * SEGMENT) as u64;
        let begun = Instant::now();
        let open = || loop {
            match self.cache.open(&self.path, room) {
                // A child that another test has just forked holds the lock until it executes
                // its program.
                Err(Error::Locked { .. }) if begun.elapsed() < Duration::from_secs(2) => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                file => return file.expect("it is opened"),
            }
        };
        self.file.get_or_insert_with(open)
    }

    fn step(&mut self, numbers: &mut Numbers) {
        let room = self.segments * SEGMENT;
        let file = self.open().clone();
        let segment = numbers.below(self.segments as u64) as usize * SEGMENT;
        let at = segment + numbers.below(40) as usize * 777;
        let len = 1 + numbers.below(9000) as usize;
        let value = numbers.below(256) as u8;
        let end = (at + len).min(self.model.len());
        match numbers.below(100) {
            0..=29 if at < end => {
                file.store(at as u64, &vec![value; end - at]);
                self.model[at..end].fill(value);
            }
            30..=44 => {
                let len = len.min(room - at);
                file.write(at as u64, &vec![value; len]).expect("it is written");
                if self.model.len() < at + len {
                    self.model.resize(at + len, 0);
                }
                self.model[at..at + len].fill(value);
            }
            45..=64 if at < end => {
                let mut read = vec![0; end - at];
                let n = file.read(at as u64, &mut read).expect("it is read");
                assert!(n == end - at && read == self.model[at..end], "at {at}, {len} bytes");
            }
            65..=82 => file.sync(at as u64, len as u64).expect("it is synced"),
            83..=84 => file.sync(0, u64::MAX).expect("it is synced"),
            85..=88 => {
                let size = at + 1;
                file.set_size(size as u64).expect("it has that size");
                self.model.resize(size, 0);
            }
            89 if self.segments == SEGMENTS => {
                let _ = file.lock(segment as u64, 1);
                file.unlock(segment as u64, 1);
            }
            90 if self.segments == SEGMENTS => {
                drop(file);
                self.close();
            }
            _ => drop(self.cache.round().expect("a round")),
        }
    }

    fn close(&mut self) {
        if let Some(file) = self.file.take() {
            file.close().expect("it is closed");
            assert!(std::fs::read(&self.path).expect("the file") == self.model);
        }
    }
}

fn number_of(variable: &str, short: u64) -> u64 {
    std::env::var(variable).ok().and_then(|n| n.parse().ok()).unwrap_or(short)
}

#[test]
fn two_processes_have_the_guarantees_of_one() {
    if !can() {
        return;
    }
    let bed = Bed::new();
    std::thread::scope(|scope| {
        for n in 0..2 {
            let mut one = Modelled::new(&bed, &format!("file{n}"), SEGMENTS);
            scope.spawn(move || {
                let mut numbers = Numbers(n + number_of("MAP_SEED", 1));
                for _ in 0..number_of("MAP_STEPS", 1500) {
                    one.step(&mut numbers);
                }
                one.close();
            });
        }
    });
    assert!(bed.is_empty(), "{:?}", bed.service.status());
}

fn a_record(numbers: &mut Numbers) -> FileRecord {
    let paths = ["", "relative", "/dev/shm/none", "/dev/null", "/"];
    FileRecord {
        size: numbers.below(u64::MAX >> 1),
        grows: None,
        identity: vec![numbers.below(256) as u8; numbers.below(400) as usize],
        path: paths[numbers.below(5) as usize].repeat(1 + numbers.below(3) as usize * 700),
        cut: numbers.below(9) == 0,
        damaged: numbers.below(9) == 0,
        stamp: Stamp::Changing((
            numbers.below(9) as i64 - 4,
            numbers.below(u32::MAX.into()) as u32,
        )),
    }
}

/// Any request, with numbers that often belong to a process.
fn a_request(numbers: &mut Numbers) -> Request {
    let small = |numbers: &mut Numbers| match numbers.below(8) {
        0 => u32::MAX,
        1 => numbers.below(1 << 32) as u32,
        _ => numbers.below(7) as u32,
    };
    let (file, frame) = (small(numbers), small(numbers));
    let size = match numbers.below(3) {
        0 => u64::MAX - numbers.below(3),
        _ => numbers.below(20 << 20),
    };
    let segment = [0, 1, 2, u64::MAX, 1 << 50][numbers.below(5) as usize];
    match numbers.below(19) {
        0 => Request::Hello { version: numbers.below(3) as u32, map: Some("db".into()) },
        1 | 2 => Request::AddFile { file: a_record(numbers) },
        3 => Request::SetSize { file, size },
        4 => Request::Cut { file, size },
        5 => Request::CutEnd { file },
        6 => Request::SetStamp { file, stamp: Stamp::Settled((i64::MIN, u32::MAX)) },
        7 => Request::RemoveFile { file },
        8 | 9 => Request::Take { file, segment },
        10 => Request::Show { frame },
        11 | 12 => Request::Release { frame, discard: numbers.below(2) == 0 },
        13 => Request::Place { frame },
        14 => Request::FileFrom { file },
        15 => Request::FramesFrom { frame },
        16 => Request::SetAhead { file, ahead: size },
        17 => Request::Promise { file, size },
        _ if numbers.below(20) == 0 => Request::Bye,
        _ => Request::IsBroughtHome { identity: vec![0; numbers.below(2000) as usize] },
    }
}

/// The connection of a hostile process.
fn harass(mut stream: UnixStream, numbers: &mut Numbers) {
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
    stream.set_write_timeout(Some(Duration::from_secs(20))).expect("a timeout");
    if numbers.below(5) > 0 {
        let hello = Request::Hello { version: wire::VERSION, map: Some("db".into()) };
        wire::send(&mut stream, &hello).expect("it listens");
        let _ = wire::receive::<Answer>(&mut stream).expect("it answers");
    }
    for _ in 0..numbers.below(60) {
        let mut bytes = wire::bytes_of(&a_request(numbers)).unwrap_or_default();
        let damaged = numbers.below(30);
        match damaged {
            // A wrong length, wrong bytes, or a part of a request.
            0 => {
                bytes = [&(numbers.below(1 << 32) as u32).to_le_bytes()[..], &[b'['; 999]].concat()
            }
            1 if bytes.len() > 4 => {
                let at = 4 + numbers.below(bytes.len() as u64 - 4) as usize;
                bytes[at] = numbers.below(256) as u8;
            }
            2 => bytes.truncate(numbers.below(40) as usize),
            _ => {}
        }
        if stream.write_all(&bytes).is_err() {
            return;
        }
        // An incomplete request gets no answer.  Many requests do not read theirs.
        let answered = match damaged {
            0..=2 => stream.shutdown(std::net::Shutdown::Write).is_err(),
            3..=5 => true,
            _ => wire::receive::<Answer>(&mut stream).is_ok(),
        };
        if !answered {
            let _ = stream.read(&mut [0; 4096]);
            return;
        }
    }
}

/// The hostile process is a process of its own, so that it loses everything when it ends.
const HOSTILE: &str = "FOREBAY_MAP_HOSTILE";

fn hostile(socket: &Path, seed: u64) {
    let mut numbers = Numbers(seed);
    for _ in 0..50 {
        let Ok(stream) = UnixStream::connect(socket) else { return };
        harass(stream, &mut numbers);
    }
}

#[test]
fn a_hostile_process_harms_no_other() {
    if let (Some(socket), seed) = (std::env::var_os(HOSTILE), number_of("MAP_SEED", 1)) {
        return hostile(Path::new(&socket), seed);
    }
    if !can() {
        return;
    }
    let bed = Bed::new();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // This process gets the frames that it needs and keeps them.
        let mut good = Modelled::new(&bed, "good", 2);
        good.open().lock(0, u64::MAX).expect("two of five");
        let over = &over;
        let good = scope.spawn(move || {
            let mut numbers = Numbers(9);
            while !over.load(Ordering::Relaxed) {
                good.step(&mut numbers);
            }
            good.close();
        });
        for seed in 0..number_of("MAP_HOSTILE", 5) {
            let child = std::process::Command::new(std::env::current_exe().expect("this program"))
                .args(["--exact", "a_hostile_process_harms_no_other"])
                .env(HOSTILE, wire::socket_path(&bed.dir, bed.pool().uuid()))
                .env("MAP_SEED", (number_of("MAP_SEED", 1) * 1000 + seed).to_string())
                .output();
            let child = child.expect("it runs");
            if good.is_finished() {
                break;
            }
            assert!(child.status.success(), "{child:?}");
            // The hostile process's frames must be free again.
            let begun = Instant::now();
            let processes = || bed.service.status().details["maps"][0]["processes"].clone();
            while processes().as_array().is_some_and(|pids| pids.len() > 1) {
                assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", bed.service.status());
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        over.store(true, Ordering::Relaxed);
    });
    let status = bed.service.status();
    assert_eq!(status.details["maps"][0]["frames_used"], 0, "{status:?}");
}

/// A client whose requests the test writes itself.
struct ByHand(UnixStream);

impl ByHand {
    fn new(bed: &Bed) -> ByHand {
        let mut by_hand = ByHand(bed.connect());
        let hello = Request::Hello { version: wire::VERSION, map: Some("db".into()) };
        assert!(matches!(by_hand.ask(&hello), Answer::Hello(_)));
        by_hand
    }

    fn ask(&mut self, request: &Request) -> Answer {
        wire::send(&mut self.0, request).expect("it listens");
        wire::receive(&mut self.0).expect("it answers")
    }

    /// None: no record is free for another file now.
    fn add(&mut self, identity: &str) -> Option<u32> {
        let file = FileRecord {
            identity: identity.into(),
            path: "/dev/shm/none".into(),
            ..FileRecord::default()
        };
        match self.ask(&Request::AddFile { file }) {
            Answer::Number(number) => Some(number),
            Answer::Failed { why, .. } if why.contains("MAP_FULL") => None,
            other => panic!("{other:?}"),
        }
    }
}

/// Ends the other threads, also after a panic.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A number is free as soon as its file has been recovered, and its new owner must keep it.
#[test]
fn a_reused_number_belongs_to_its_new_owner() {
    let bed = Bed::new();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut n = 0;
            while !over.load(Ordering::Relaxed) {
                let mut ends = ByHand::new(&bed);
                if ends.add(&format!("ends {n}")).is_none() {
                    std::thread::sleep(Duration::from_millis(10));
                }
                assert_eq!(ends.ask(&Request::Bye), Answer::Done);
                n += 1;
            }
        });
        let _over = Over(&over);
        let mut stays = ByHand::new(&bed);
        let end = Instant::now() + Duration::from_secs(2);
        let mut kept = Ok(());
        while Instant::now() < end && kept.is_ok() {
            let Some(file) = stays.add("stays") else { continue };
            for _ in 0..20 {
                match stays.ask(&Request::SetSize { file, size: 5 }) {
                    Answer::Done => {}
                    other => kept = Err(other),
                }
            }
            stays.ask(&Request::RemoveFile { file });
        }
        kept.expect("it is this one's");
    });
}

/// A server that counts as dead may continue later and then carries out earlier requests.
#[test]
fn late_work_of_a_slow_server_harms_no_process() {
    if !can() {
        return;
    }
    if std::env::var_os("FOREBAY_MAP_PLANTED").is_none() {
        let slow = std::process::Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "late_work_of_a_slow_server_harms_no_process"])
            .env("FOREBAY_MAP_PLANTED", "DoneLate")
            .output();
        let slow = slow.expect("it runs");
        assert!(slow.status.success(), "{slow:?}");
        return;
    }
    let bed = Bed::new();
    let bytes = (5 * SEGMENT) as u64;
    // A client that waits only for a short time.
    let hasty = |name: &str| {
        let stream = bed.connect();
        let twin = stream.try_clone().expect("a descriptor");
        let store = ServedStore::over(stream, Some("db"), None).expect("served");
        let options = Options { by_hand: true, ..Options::default() };
        let cache = Cache::new(Arc::new(store), options).expect("a cache");
        let file = cache.open(&bed.file(name, bytes), 0).expect("it is opened");
        file.write(0, b"first").expect("written");
        file.write(3 * PAGE as u64, b"last").expect("written");
        file.sync(0, u64::MAX).and_then(|()| file.write_back()).expect("synced");
        twin.set_read_timeout(Some(Duration::from_millis(100))).expect("a timeout");
        (cache, file)
    };
    let (_one, first) = hasty("first");
    let _ = first.drop_cache(0, u64::MAX);
    let (_two, second) = hasty("second");
    second.set_size(PAGE as u64).expect_err("no answer");
    second.store(3 * PAGE as u64, b"more");
    second.sync(0, u64::MAX).expect_err("it may be behind the end");
    std::thread::sleep(Duration::from_millis(2500));
    // The frame belongs to another file by now.
    let cache = bed.cache(true);
    let other = cache.open(&bed.file("other", bytes), 0).expect("it is opened");
    for segment in 0..4 {
        other.store(segment * SEGMENT as u64, b"other");
    }
    first.write(0, b"stale").expect_err("it has no frame");
    for segment in 0..4 {
        let mut found = [0; 5];
        other.load(segment * SEGMENT as u64, &mut found);
        assert_eq!(&found, b"other");
    }
    other.close().expect("closed");
    let _ = (first.close(), second.close());
}

/// A bug is planted for a whole process, so each run has a process of its own.
#[test]
fn planted_bugs_are_found() {
    if !can() {
        return;
    }
    for (mistake, test) in [
        ("AnyonesFrames", "a_hostile_process_harms_no_other"),
        ("AnotherForgotten", "a_reused_number_belongs_to_its_new_owner"),
    ] {
        let run = || {
            // The bug may show as a hang.
            std::process::Command::new("timeout")
                .args(["-s", "KILL", "60"])
                .arg(std::env::current_exe().expect("this program"))
                .args(["--exact", test])
                .env("FOREBAY_MAP_PLANTED", mistake)
                .env("MAP_HOSTILE", "20")
                .output()
                .expect("it runs")
        };
        // The right moment may not come on a busy machine.
        let found = (0..5).any(|_| !run().status.success());
        assert!(found, "{mistake} was not found");
    }
}

/// A process with more than its share must release some frames.
#[test]
fn a_process_in_need_gets_frames_of_one_with_many() {
    if !can() {
        return;
    }
    let bed = Bed::new();
    let bytes = (8 * SEGMENT) as u64;
    let (one, two) = (bed.cache(false), bed.cache(false));
    let first = one.open(&bed.file("first", bytes), 0).expect("it is opened");
    for segment in 0..8 {
        first.store(segment * SEGMENT as u64, b"first");
    }
    let begun = Instant::now();
    let second = two.open(&bed.file("second", bytes), 0).expect("it is opened");
    for segment in 0..2 {
        second.store(segment * SEGMENT as u64, b"second");
    }
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    let status = bed.service.status();
    assert_eq!(status.details["maps"][0]["processes"][0], std::process::id());
    second.close().expect("closed");
    first.close().expect("closed");
    assert!(bed.is_empty(), "{:?}", bed.service.status());
}

/// A process keeps its mapping, whatever happens to the socket, and its later syncs are kept.
#[test]
fn the_end_of_a_server_is_reported_by_name() {
    if !can() {
        return;
    }
    let bed = Bed::new();
    let cache = bed.cache(true);
    let path = bed.file("file", SEGMENT as u64);
    let file = cache.open(&path, (2 * SEGMENT) as u64).expect("it is opened");
    file.store(0, b"before");
    file.sync(0, 1).expect("synced");
    let stop = Stop { grace: Duration::ZERO, must: true, keep: false };
    bed.service.stop(&stop).expect("stopped");
    file.store(PAGE as u64, b"after");
    file.sync(PAGE as u64, 1).expect("it needs no server");
    let said = file.set_size(2 * SEGMENT as u64 - 5).and_then(|()| file.sync(0, u64::MAX));
    let said = said.expect_err("that needs the server").to_string();
    assert!(said.contains("has ended") && said.contains("forebay serve"), "{said}");
    let said = cache.round().expect_err("so does that").to_string();
    assert!(said.contains("has ended"), "{said}");
    assert!(file.close().is_err());
    drop(cache);
    // The next server of the pool recovers what the process has synced.
    let again = MapService::start(bed.pool(), &bed.dir, false, &mut |_| {}).expect("maps");
    let (again, recovered) = again.expect("a map");
    assert!(recovered.expect("writable").complete);
    let content = std::fs::read(&path).expect("the file");
    assert!(content.starts_with(b"before") && content[PAGE..].starts_with(b"after"));
    again.stop(&stop).expect("stopped");
}

/// The server looks for a loss of the pool's file while it lives, and its processes after that: what
/// they sync would be acknowledged, and nobody could ever recover it.
#[test]
fn a_loss_after_the_end_of_the_server_fails_the_next_sync() {
    if !can() {
        return;
    }
    let overwrite = |path: &Path, at: u64, bytes: &[u8]| {
        let file = File::options().write(true).open(path).expect("the pool");
        std::os::unix::fs::FileExt::write_all_at(&file, bytes, at).expect("written");
    };
    type Lose<'a> = &'a dyn Fn(&Path);
    let deleted: Lose = &|path| std::fs::remove_file(path).expect("it was there");
    let wiped: Lose = &|path| overwrite(path, 0, &[0; 2 * PAGE]);
    let short: Lose = &|path| {
        let file = File::options().write(true).open(path).expect("the pool");
        file.set_len((24 << 20) - PAGE as u64).expect("shorter");
    };
    let losses = [("deleted", deleted), ("overwritten", wiped), ("was cut short", short)];
    for (what, lose) in losses {
        let bed = Bed::new();
        let cache = bed.cache(true);
        let path = bed.file("file", SEGMENT as u64);
        let file = cache.open(&path, 0).expect("it is opened");
        file.store(0, b"before");
        file.sync(0, 1).expect("synced");
        let stop = Stop { grace: Duration::ZERO, must: true, keep: false };
        bed.service.stop(&stop).expect("stopped");
        // The process asks the server twice a second.
        assert!(cache.round().is_err());
        file.store(PAGE as u64, b"after");
        file.sync(PAGE as u64, 1).expect("nothing is lost");
        lose(&bed.dir.join("pool"));
        // A stamp that the server has recorded lasts for a second: until then the sync can write to
        // the file.
        let begun = Instant::now();
        let said = loop {
            let value = begun.elapsed().as_nanos().to_ne_bytes();
            file.store(2 * PAGE as u64, &value);
            match file.sync(0, u64::MAX) {
                Err(e) => break e.to_string(),
                Ok(()) => {
                    let content = std::fs::read(&path).expect("the file");
                    assert!(content[2 * PAGE..].starts_with(&value), "{what}: acknowledged");
                }
            }
            assert!(begun.elapsed() < Duration::from_secs(20), "{what}: no sync fails");
        };
        assert!(said.contains(what) && !said.contains("next forebay serve"), "{what}: {said}");
        assert!(file.sync(0, u64::MAX).is_err(), "{what}: the next one");
        drop((file, cache));
    }
}

/// A server that ends in order writes the superblock.
#[test]
fn a_pool_that_was_closed_in_order_is_not_lost() {
    if !can() {
        return;
    }
    let mut bed = Bed::new();
    let cache = bed.cache(true);
    let file = cache.open(&bed.file("file", SEGMENT as u64), 0).expect("it is opened");
    file.store(0, b"before");
    file.sync(0, 1).expect("synced");
    let stop = Stop { grace: Duration::ZERO, must: true, keep: false };
    bed.service.stop(&stop).expect("stopped");
    bed.pool.take().expect("until now").close().expect("closed");
    assert!(cache.round().is_err());
    file.store(PAGE as u64, b"after");
    file.sync(PAGE as u64, 1).expect("nothing is lost");
    drop((file, cache));
    bed.pool = Some(Pool::open(&bed.dir.join("pool"), &PoolOptions::default()).expect("the pool"));
}

/// A process hears of the end of the server also while an order of a user takes long.
#[test]
fn an_order_that_takes_long_delays_no_word_to_the_clients() {
    let bed = Bed::new();
    // A file that is gone, and of which the pool has a page.
    {
        let store = bed.store();
        let file = FileRecord {
            identity: b"gone".to_vec(),
            path: "/dev/shm/gone".into(),
            size: SEGMENT as u64,
            ..FileRecord::default()
        };
        let file = store.add_file(&file).expect("a record");
        let frame = store.take(file, 0).expect("a frame").expect("one is free");
        store.show(frame).expect("shown");
        assert_eq!(store.sync(frame, &PageSet::of(0..1)).expect("synced"), Synced::Durable);
    }
    let begun = Instant::now();
    while bed.service.status().trouble.is_empty() {
        assert!(begun.elapsed() < Duration::from_secs(20), "nothing stays");
        std::thread::sleep(Duration::from_millis(5));
    }
    let mut stream = bed.connect();
    wire::send(&mut stream, &Request::Hello { version: wire::VERSION, map: Some("db".into()) })
        .expect("it listens");
    let _: Answer = wire::receive(&mut stream).expect("it answers");
    let (begin, begins) = std::sync::mpsc::channel();
    let (end, ends) = std::sync::mpsc::channel::<()>();
    let service = &bed.service;
    std::thread::scope(|s| {
        s.spawn(move || {
            let order = Order::Recover { files: Vec::new(), dry_run: true, accept: false };
            let order = serde_json::to_value(order).expect("JSON");
            let mut waits = Some(ends);
            let answer = service.call(order, &mut |_| {
                if let Some(ends) = waits.take() {
                    begin.send(()).expect("heard");
                    let _ = ends.recv();
                }
                ControlFlow::Continue(())
            });
            answer.expect("an answer");
        });
        begins.recv().expect("the order");
        let stops = s.spawn(move || {
            let stop = Stop { grace: Duration::ZERO, must: true, keep: false };
            service.stop(&stop).expect("stopped");
        });
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a limit");
        let heard = stream.read(&mut [0]);
        assert!(!stops.is_finished(), "the order has ended");
        drop(end);
        assert_eq!(heard.expect("no word"), 0);
    });
}
