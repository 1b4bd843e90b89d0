// SPDX-License-Identifier: MIT OR Apache-2.0
//! Hanging origins: their effect on the other volumes of their pool.

use std::fs::File;
use std::io::{self, Write};
use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};

use crate::common::*;
use crate::passing::origin_passes_on;
use forebay::*;

/// Far longer than anything here takes, so that a test that fails ends.
const LIMIT: Duration = Duration::from_secs(60);
/// More requests in flight than a fixed number for all volumes would allow.
const HUNG: usize = 40;

/// While it is shut, requests to its origins do not end.
#[derive(Clone, Debug, Default)]
struct Gate(Arc<(Mutex<bool>, Condvar)>);

impl Gate {
    fn pass(&self) {
        let open = self.0 .0.lock().unwrap();
        drop(self.0 .1.wait_while(open, |open| !*open).unwrap());
    }
}

/// When it goes, also in a panic, all ends.
struct Opener(Gate);

impl Drop for Opener {
    fn drop(&mut self) {
        *self.0 .0 .0.lock().unwrap() = true;
        self.0 .0 .1.notify_all();
    }
}

/// Hangs in every request but reads; by io_uring too, if it has a pipe that is full.
#[derive(Debug)]
struct Hung {
    memory: MemOrigin,
    gate: Gate,
    pipe: Option<Arc<OwnedFd>>,
}

impl Origin for Hung {
    origin_passes_on!(memory: size_bytes, identity, info, read_at);

    fn logical_block(&self) -> u32 {
        512
    }

    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.gate.pass();
        self.memory.write_at(data, offset)
    }

    fn flush(&self) -> io::Result<()> {
        self.gate.pass();
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.gate.pass();
        self.memory.discard(offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> io::Result<()> {
        self.gate.pass();
        self.memory.write_zeroes(offset, len)
    }

    fn uring_fd(&self, _offset: u64, _len: u64) -> Option<BorrowedFd<'_>> {
        self.pipe.as_ref().map(|pipe| pipe.as_fd())
    }
}

/// Does not say what it is.
#[derive(Debug)]
struct Silent {
    memory: MemOrigin,
    gate: Gate,
}

impl Origin for Silent {
    origin_passes_on!(memory: size_bytes, info, read_at, write_at, flush, discard, write_zeroes);

    fn logical_block(&self) -> u32 {
        512
    }

    fn identity(&self) -> String {
        self.gate.pass();
        self.memory.identity()
    }
}

/// Runs the work on a thread: returns its answer, or fails if there is none in time.
fn answers<T: Send + 'static>(what: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || tell.send(work()));
    let told = told.recv_timeout(Duration::from_secs(20));
    told.unwrap_or_else(|_| panic!("{what} waits for an origin of another volume"))
}

/// While one that hangs is attached, nothing else of the pool waits for it.
#[test]
fn an_attach_that_hangs_holds_up_no_other_volume() {
    let dir = Dir::new("attach-hangs");
    let pool = Arc::new(Pool::open(&dir.pool(64), &unthrottled()).unwrap());
    let (silent, gate) = (MemOrigin::new(1 << 20).unwrap(), Gate::default());
    let opener = Opener(gate.clone());
    pool.volume_add_origin("silent", &silent, 0).unwrap();
    let origin = Silent { memory: silent.clone(), gate };
    let (attaching, begun) = (pool.clone(), Arc::new(AtomicBool::new(false)));
    let begins = begun.clone();
    let attached = std::thread::spawn(move || {
        begins.store(true, Ordering::SeqCst);
        attaching.attach_origin("silent", Box::new(origin), &AttachOptions::default())
    });
    while !begun.load(Ordering::SeqCst) {
        std::thread::yield_now();
    }
    std::thread::sleep(Duration::from_millis(100));
    let (one, two, three) = (pool.clone(), pool.clone(), pool.clone());
    answers("another volume", move || {
        let memory = MemOrigin::new(1 << 20).unwrap();
        one.volume_add_origin("other", &memory, 0).unwrap();
        let options = AttachOptions::default();
        let other = one.attach_origin("other", Box::new(memory), &options).unwrap();
        other.write_at(&[1; 4096], 0).unwrap();
        assert!(one.volume("other").is_some() && one.volume("silent").is_none());
        other.detach().unwrap();
        one.volume_remove("other", true).unwrap();
    });
    answers("a check", move || assert!(two.check(false).unwrap().ok));
    // And nobody else has it meanwhile.
    answers("a second attach", move || {
        let o = AttachOptions::default();
        let attached = three.attach_origin("silent", Box::new(silent.clone()), &o);
        let by_path =
            three.attach("silent", &AttachOptions { origin: Some("/nowhere".into()), ..o });
        let removed = three.volume_remove("silent", true);
        for e in [attached.unwrap_err(), by_path.unwrap_err(), removed.unwrap_err()] {
            let text = e.to_string();
            assert_eq!(e.exit_code(), 4, "{text}");
            assert!(text.contains("is being attached") && text.contains("try again"), "{text}");
            assert!(!text.contains("detach it"), "{text}");
        }
    });
    drop(opener);
    let volume = attached.join().unwrap().unwrap();
    volume.write_at(&[2; 4096], 0).unwrap();
    volume.detach().unwrap();
    pool.volume_remove("silent", true).unwrap();
}

/// Likewise for one whose origin is still being opened.
#[test]
fn an_open_that_hangs_keeps_its_volume() {
    let dir = Dir::new("open-hangs");
    let pool = Arc::new(Pool::open(&dir.pool(64), &unthrottled()).unwrap());
    let memory = MemOrigin::new(1 << 20).unwrap();
    pool.volume_add_origin("v", &memory, 0).unwrap();
    let socket = dir.path("socket");
    // It takes a connection, and says nothing.
    let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let options = AttachOptions {
        origin: Some(format!("nbd+unix:///?socket={}", socket.display()).into()),
        ..AttachOptions::default()
    };
    let opening = pool.clone();
    let opened = std::thread::spawn(move || opening.attach("v", &options).map(drop));
    let (taken, _) = listener.accept().unwrap();
    let (one, origin) = (pool.clone(), Box::new(memory.clone()));
    answers("a second attach", move || {
        let attached = one.attach_origin("v", origin, &AttachOptions::default()).map(drop);
        for done in [attached, one.volume_remove("v", true)] {
            let e = done.expect_err("its first attach has not ended");
            let text = e.to_string();
            assert_eq!(e.exit_code(), 4, "{text}");
            assert!(text.contains("is being attached") && text.contains("try again"), "{text}");
        }
    });
    drop((taken, listener));
    opened.join().unwrap().expect_err("nobody serves its origin");
    pool.attach_origin("v", Box::new(memory), &AttachOptions::default()).unwrap().detach().unwrap();
}

/// Its answer waits, or says that it is gone.
#[derive(Debug)]
struct Changed {
    memory: MemOrigin,
    gate: Option<(Gate, Arc<AtomicBool>)>,
}

impl Origin for Changed {
    origin_passes_on!(memory: size_bytes, identity, info, read_at, write_at, flush, discard, write_zeroes);

    fn logical_block(&self) -> u32 {
        512
    }

    fn changed(&self) -> Option<String> {
        let Some((gate, asked)) = &self.gate else { return Some("is gone".into()) };
        asked.store(true, Ordering::SeqCst);
        gate.pass();
        None
    }
}

/// Origins are asked while nothing is locked. Meanwhile a volume goes and another gets its
/// index: what is said of the first one is not of the other.
#[test]
fn a_check_is_of_the_volumes_that_there_were() {
    let dir = Dir::new("check-other");
    let pool = Arc::new(Pool::open(&dir.pool(64), &unthrottled()).unwrap());
    let (gate, asked) = (Gate::default(), Arc::new(AtomicBool::new(false)));
    let opener = Opener(gate.clone());
    let attach = |name: &str, gate| {
        let memory = MemOrigin::new(1 << 20).unwrap();
        pool.volume_add_origin(name, &memory, 0).unwrap();
        let origin = Box::new(Changed { memory, gate });
        pool.attach_origin(name, origin, &AttachOptions::default()).unwrap()
    };
    let first = attach("first", Some((gate, asked.clone())));
    let second = pool.volume_add_origin("second", &MemOrigin::new(1 << 20).unwrap(), 0).unwrap();
    let checking = pool.clone();
    let checked = std::thread::spawn(move || checking.check(false).unwrap());
    while !asked.load(Ordering::SeqCst) {
        std::thread::yield_now();
    }
    pool.volume_remove("second", false).unwrap();
    let third = attach("third", None);
    assert_eq!(third.info().unwrap().index, second.index, "the test needs the same index");
    drop(opener);
    let report = checked.join().unwrap();
    let names: Vec<_> = report.volumes.iter().map(|v| (&v.volume[..], v.complete)).collect();
    assert_eq!(names, [("first", true), ("second", true)], "{:?}", report.volumes);
    assert!(!pool.completeness("third").unwrap().complete);
    drop((first, third));
}

/// A pipe that takes no byte more: its ends to read from and to write to.
fn full_pipe(dir: &Dir) -> (File, OwnedFd) {
    let path = dir.path("pipe");
    rustix::fs::mkfifoat(rustix::fs::CWD, &path, Mode::RUSR | Mode::WUSR).unwrap();
    let open = |flags| rustix::fs::open(&path, flags, Mode::empty()).unwrap();
    let reader = open(OFlags::RDONLY | OFlags::NONBLOCK);
    let mut filler: File = open(OFlags::WRONLY | OFlags::NONBLOCK).into();
    while filler.write(&[0; 4096]).is_ok() {}
    (reader.into(), open(OFlags::WRONLY))
}

fn hung(pool: &Pool, name: &str, gate: &Gate, pipe: Option<Arc<OwnedFd>>) -> Volume {
    let memory = MemOrigin::new(1 << 20).unwrap();
    pool.volume_add_origin(name, &memory, 0).unwrap();
    let origin = Hung { memory, gate: gate.clone(), pipe };
    let options = AttachOptions { queue_depth: 4, buffer_bytes: 4096, ..Default::default() };
    let volume = pool.attach_origin(name, Box::new(origin), &options).unwrap();
    for n in 0..8 {
        volume.write_at(&[1; 4096], n * 8192).unwrap();
    }
    volume
}

/// Many origins hang with requests in flight; another volume drains.
fn beside_hung_origins(pipe: Option<Arc<OwnedFd>>, release: impl FnOnce()) {
    let dir = Dir::new("hung");
    let pool = Pool::open(&dir.pool(512), &unthrottled()).unwrap();
    let gate = Gate::default();
    let all: Vec<_> =
        (0..HUNG).map(|n| hung(&pool, &format!("hung{n}"), &gate, pipe.clone())).collect();
    let well = FileOrigin::open(&dir.file("well", 1 << 20), false).unwrap();
    pool.volume_add_origin("well", &well, 0).unwrap();
    let well = pool.attach_origin("well", Box::new(well), &AttachOptions::default()).unwrap();
    let opener = Opener(gate);
    let over = AtomicBool::new(false);
    let drained = std::thread::scope(|s| {
        s.spawn(|| {
            let _ = pool.drain(None, &mut |_, _| match over.load(Ordering::Relaxed) {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            });
        });
        let start = Instant::now();
        let requests = |v: &Volume| v.info().unwrap().origin_writes;
        while all.iter().any(|v| requests(v) < 4) && start.elapsed() < LIMIT {
            std::thread::sleep(Duration::from_millis(5));
        }
        for n in 0..8 {
            well.write_at(&[2; 4096], n * 8192).unwrap();
        }
        let start = Instant::now();
        let drained = well.drain(&mut |_| match start.elapsed() < LIMIT {
            true => ControlFlow::Continue(()),
            false => ControlFlow::Break(()),
        });
        over.store(true, Ordering::Relaxed);
        drained
    });
    drop(opener);
    release();
    drained.unwrap();
    assert_eq!(well.info().unwrap().pages, 0);
}

#[test]
fn hung_origins_do_not_stop_the_destage_of_another() {
    beside_hung_origins(None, || ());
}

/// Likewise with writes through io_uring.
#[test]
fn hung_descriptors_do_not_stop_the_destage_of_another() {
    let dir = Dir::new("pipe");
    let (reader, writer) = full_pipe(&dir);
    beside_hung_origins(Some(Arc::new(writer)), || drop(reader));
}

/// A volume is being detached, which waits for its hung origin; others come and go.
#[test]
fn a_hung_origin_being_detached_does_not_keep_others_from_it() {
    let dir = Dir::new("detaching");
    let pool = Pool::open(&dir.pool(32), &unthrottled()).unwrap();
    let gate = Gate::default();
    let ill = hung(&pool, "ill", &gate, None);
    let opener = Opener(gate);
    let drained = ill.drain(&mut |_| match ill.info().unwrap().origin_writes {
        0 => ControlFlow::Continue(()),
        _ => ControlFlow::Break(()),
    });
    assert!(matches!(drained, Err(Error::Interrupted { .. })), "{drained:?}");
    let (done, ended) = std::sync::mpsc::channel();
    std::thread::scope(|s| {
        s.spawn(move || ill.detach().unwrap());
        // Until it has begun: from then on there is no such handle.
        while pool.volume("ill").is_some() {
            std::thread::yield_now();
        }
        let pool = &pool;
        s.spawn(move || {
            let origin = MemOrigin::new(1 << 20).unwrap();
            let other = attach(pool, "other", &origin);
            other.write_at(&[3; 4096], 0).unwrap();
            drain(&other);
            other.detach().unwrap();
            done.send(()).unwrap();
        });
        let ended = ended.recv_timeout(LIMIT);
        drop(opener);
        ended.expect("another volume could not be attached and detached");
    });
}

/// Chunks are opened one at a time, so that destage looks after each; nobody is woken,
/// and still the throttle holds writers back as soon as the engine says so.
#[test]
fn the_throttle_is_the_engines() {
    const CHUNK_DATA: usize = 248 * 4096;
    let dir = Dir::new("throttle");
    let path = dir.path("pool");
    let size = CreateOptions {
        size_bytes: Some(129 << 20),
        chunk_size_bytes: 1 << 20,
        ..Default::default()
    };
    create(&path, &size).unwrap();
    let pool = Pool::open(&path, &PoolOptions { slots: 1, ..Default::default() }).unwrap();
    assert_eq!(pool.status().chunks, 128);
    let memory = MemOrigin::new(128 << 20).unwrap();
    pool.volume_add_origin("v", &memory, 0).unwrap();
    let gate = Gate::default();
    let origin = Hung { memory, gate: gate.clone(), pipe: None };
    let volume = pool.attach_origin("v", Box::new(origin), &AttachOptions::default()).unwrap();
    let opener = Opener(gate);
    let data = vec![5; CHUNK_DATA];
    for chunk in 0..106 {
        volume.write_at(&data, chunk * CHUNK_DATA as u64).unwrap();
        if chunk > 72 {
            // The next tick of destage.
            std::thread::sleep(Duration::from_millis(120));
        }
    }
    let info = volume.info().unwrap();
    drop(opener);
    assert!(info.intake_limit_bytes_per_s.is_some(), "it is not full enough");
    assert!(info.throttled_seconds > 0.0, "a limit is set, and nobody asks for it");
}
