// SPDX-License-Identifier: MIT OR Apache-2.0
//! Goal: when the disk of a pool has failed, a server that ends gives each origin what memory has for
//! it, and says by its exit code and by name what it could not give.  Method: a disk in memory that
//! fails from one moment on, origins that fail, hang, are slow or gone, and a service of our own.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::*;
use forebay::grouped::{Device, Durable, GroupedMedium, Image};
use forebay::*;
use forebay_server::{Patience, Result, Server, Service, ServiceStatus, Stop};

#[path = "../../forebay/tests/host/common.rs"]
#[allow(dead_code)]
mod common;

const BLOCK: usize = 4096;
const UNIT: u32 = 4096;

#[derive(Debug)]
struct Ssd {
    bytes: Mutex<Vec<u8>>,
    dead: AtomicBool,
}

impl Ssd {
    fn alive(&self) -> std::io::Result<()> {
        match self.dead.load(SeqCst) {
            true => Err(std::io::Error::from_raw_os_error(5)),
            false => Ok(()),
        }
    }
}

impl Device for Ssd {
    fn size_bytes(&self) -> u64 {
        self.bytes.lock().unwrap().len() as u64
    }

    fn read(&self, to: &mut [u8], at: u64) -> std::io::Result<()> {
        to.copy_from_slice(&self.bytes.lock().unwrap()[at as usize..][..to.len()]);
        Ok(())
    }

    fn write(&self, image: &Image, at: u64, bytes: usize, _fua: bool) -> std::io::Result<()> {
        self.alive()?;
        let mut data = vec![0; bytes];
        image.copy_out(at, &mut data);
        self.bytes.lock().unwrap()[at as usize..][..bytes].copy_from_slice(&data);
        Ok(())
    }

    fn flush(&self) -> std::io::Result<()> {
        self.alive()
    }
}

struct Bed {
    ssd: Arc<Ssd>,
    dir: Dir,
    server: Server,
}

/// Nothing goes to an origin that no drain asks for.
fn pool_on(ssd: &Arc<Ssd>, new: bool) -> Pool {
    let medium = GroupedMedium::on(Path::new("(ssd)"), ssd.clone(), UNIT, Durable::Fua).unwrap();
    if new {
        medium.format(Uuid([7; 16]), 256 << 10, 8).unwrap();
    }
    let options = PoolOptions { io_uring: false, ..Default::default() };
    Pool::open_on(medium, &options).unwrap()
}

impl Bed {
    fn new(name: &str, errors: Duration, silence: Duration) -> Bed {
        let ssd = Ssd { bytes: Mutex::new(vec![0; 16 << 20]), dead: AtomicBool::new(false) };
        let (ssd, dir) = (Arc::new(ssd), Dir::new(name));
        let server = Server::new(pool_on(&ssd, true), &dir.path("run"), Vec::new());
        server.set_patience(Patience { errors, silence });
        Bed { ssd, dir, server }
    }

    /// A volume in front of an origin in memory, with its faults.
    fn volume(&self, name: &str) -> (Volume, MemOrigin, Faults) {
        let origin = MemOrigin::new(16 << 20).unwrap();
        let pool = self.server.pool();
        pool.volume_add_origin(name, &origin, 0).unwrap();
        let (faulty, faults) = FaultyOrigin::new(Box::new(origin.clone()));
        let volume = pool.attach_origin(name, Box::new(faulty), &always()).unwrap();
        (volume, origin, faults)
    }

    /// The disk fails, and the pool notices.
    fn fail(&self) {
        self.ssd.dead.store(true, SeqCst);
        let unused = MemOrigin::new(1 << 20).unwrap();
        let e = self.server.pool().volume_add_origin("unused", &unused, 0).unwrap_err();
        assert_eq!(e.exit_code(), 7, "{e}");
        assert!(self.server.pool().failed().is_some());
    }
}

fn always() -> AttachOptions {
    AttachOptions { durable: WriteDurable::Always, ..Default::default() }
}

/// Far from each other, so that each is a request of its own.
fn places(n: usize) -> impl Iterator<Item = usize> {
    (0..n).map(|i| i * 64 * BLOCK)
}

fn fill(volume: &Volume, n: usize) {
    for at in places(n) {
        volume.write_at_durably(&[9; BLOCK], at as u64).unwrap();
    }
}

fn has_all(content: &[u8], n: usize) -> bool {
    places(n).all(|at| content[at..at + BLOCK] == [9; BLOCK])
}

/// It does not wait for an origin that hangs: the test ends before.
fn forget(volumes: Vec<Volume>) {
    volumes.into_iter().for_each(std::mem::forget);
}

const SHORT: Duration = Duration::from_millis(400);
const LONG: Duration = Duration::from_secs(60);

/// One origin takes nothing; another had an error long ago, and is slower than anybody's patience.
#[test]
fn an_origin_that_takes_nothing_is_given_up_alone() {
    let bed = Bed::new("stuck", SHORT, LONG);
    let (a, origin, slow) = bed.volume("a");
    let (b, _, broken) = bed.volume("b");
    slow.fail(FaultOp::Write, 1, 1);
    fill(&a, 1);
    drain(&a);
    fill(&a, 40);
    fill(&b, 3);
    slow.delay(FaultOp::Write, Duration::from_millis(100));
    broken.break_writes();
    bed.fail();
    let start = Instant::now();
    let e = bed.server.close().unwrap_err();
    assert!(start.elapsed() >= 2 * SHORT, "it tested less than it says: {:?}", start.elapsed());
    assert!(has_all(&origin.content(), 40), "{e}");
    let text = e.to_string();
    assert_eq!(e.exit_code(), 7, "{e}");
    assert!(text.contains("volume b: NOT complete") && !text.contains("volume a"), "{e}");
    forget(vec![a, b]);
}

/// An origin refuses one block for ever, and takes the others again and again.
#[test]
fn what_is_written_again_and_again_is_no_progress() {
    let bed = Bed::new("refuses", SHORT, LONG);
    let (a, origin, faults) = bed.volume("a");
    fill(&a, 40);
    faults.break_writes_of(0..BLOCK as u64);
    faults.delay(FaultOp::Write, Duration::from_millis(20));
    bed.fail();
    let start = Instant::now();
    let e = bed.server.close().unwrap_err();
    assert!(start.elapsed() < Duration::from_secs(40), "{:?}", start.elapsed());
    assert!(e.exit_code() == 7 && e.to_string().contains("volume a: NOT complete"), "{e}");
    assert!(places(40).skip(1).all(|at| origin.content()[at] == 9), "{e}");
    forget(vec![a]);
}

/// Messages to the service manager that it is to wait.
static EXTENDED: AtomicU64 = AtomicU64::new(0);

fn be_the_manager() {
    let name = format!("fby-test-notify-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(&name).unwrap();
    let socket = UnixDatagram::bind_addr(&address).unwrap();
    std::env::set_var("NOTIFY_SOCKET", format!("@{name}"));
    std::thread::spawn(move || loop {
        let mut message = [0; 200];
        let n = socket.recv(&mut message).unwrap();
        let text = String::from_utf8_lossy(&message[..n]).into_owned();
        if let Some(time) = text.strip_prefix("EXTEND_TIMEOUT_USEC=") {
            assert!(time.parse::<u64>().unwrap() >= 60_000_000, "{text}");
            EXTENDED.fetch_add(1, SeqCst);
        }
    });
}

/// One origin hangs.  The service manager is told that the end takes longer.
#[test]
fn an_origin_that_hangs_is_given_up_alone() {
    be_the_manager();
    let bed = Bed::new("hangs", LONG, Duration::from_secs(3));
    let (a, origin, _) = bed.volume("a");
    let (b, _, hangs) = bed.volume("b");
    fill(&a, 10);
    fill(&b, 3);
    hangs.delay(FaultOp::Write, Duration::from_secs(3600));
    bed.fail();
    let e = bed.server.close().unwrap_err();
    assert!(has_all(&origin.content(), 10), "{e}");
    assert_eq!(e.exit_code(), 14, "{e}");
    let text = e.to_string();
    assert!(text.contains("volume b: NOT complete") && text.contains("did not answer"), "{e}");
    assert!(!text.contains("volume a"), "{e}");
    let start = Instant::now();
    while EXTENDED.load(SeqCst) == 0 {
        assert!(start.elapsed() < LONG, "the service manager was not told");
        std::thread::sleep(Duration::from_millis(10));
    }
    forget(vec![a, b]);
}

/// A volume that was detached before the disk failed: its origin gets what it holds, if it is there.
#[test]
fn a_volume_that_is_not_attached_is_not_forgotten() {
    for there in [true, false] {
        let bed = Bed::new("detached", SHORT, LONG);
        let (disk, state) = (bed.dir.file("disk", 16 << 20), Some(bed.dir.path("marks")));
        let pool = bed.server.pool();
        add_file(pool, "v", &disk, 0);
        let v = pool.attach("v", &AttachOptions { state: state.clone(), ..always() }).unwrap();
        fill(&v, 10);
        v.detach().unwrap();
        bed.fail();
        if !there {
            std::fs::remove_file(&disk).unwrap();
        }
        let Bed { ssd, dir, server } = bed;
        let e = server.close().unwrap_err();
        let text = e.to_string();
        if there {
            assert_eq!(e.exit_code(), 20, "{e}");
            assert!(has_all(&std::fs::read(&disk).unwrap(), 10));
            let marks = OriginMarks::at(&disk, state.as_deref()).unwrap();
            assert!(marks.status().unwrap().complete);
            drop(marks);
            // The disk that comes back is not to have this origin again.
            ssd.dead.store(false, SeqCst);
            let pool = pool_on(&ssd, false);
            let again = pool.attach("v", &AttachOptions { state, ..always() }).unwrap_err();
            assert_eq!(again.exit_code(), 6, "{again}");
        } else {
            assert_eq!(e.exit_code(), 14, "{e}");
            assert!(text.contains("volume v: NOT complete; the pool holds 10 pages"), "{e}");
            assert!(text.contains("could not be attached"), "{e}");
        }
        drop(dir);
    }
}

/// Destroys the lines of a block, in its group and in the array of the chunk.
fn destroy_lines(ssd: &Ssd, block: u64) {
    let mut bytes = ssd.bytes.lock().unwrap();
    let mut lines = 0;
    for at in ((256 << 10)..bytes.len()).step_by(64) {
        let line = &mut bytes[at..at + 64];
        let chunk = u32::from_le_bytes(line[48..52].try_into().unwrap());
        if line[8..16] == block.to_le_bytes() && at / (256 << 10) == chunk as usize + 1 {
            line.fill(0x5a);
            lines += 1;
        }
    }
    assert!(
        lines >= 2,
        "block {block} has {lines} lines, and not one in its group and one in an array"
    );
}

/// Entries are lost, and nobody has accepted that when the disk fails.  The origin gets all the rest,
/// and the loss is named: as far as blocks are known, by their numbers.
#[test]
fn a_volume_with_holes_is_rescued_but_for_them() {
    let numbers: Vec<u64> = places(10).map(|at| (at / BLOCK) as u64).collect();
    for (lost, named) in [(&numbers[5..6], true), (&numbers[5..7], false)] {
        let bed = Bed::new("holes", LONG, LONG);
        let (disk, state) = (bed.dir.file("disk", 16 << 20), Some(bed.dir.path("marks")));
        let options = AttachOptions { state: state.clone(), ..always() };
        let pool = bed.server.pool();
        add_file(pool, "v", &disk, 0);
        let v = pool.attach("v", &options).unwrap();
        fill(&v, 10);
        v.detach().unwrap();
        let Bed { ssd, dir, server } = bed;
        server.close().unwrap();
        lost.iter().for_each(|&block| destroy_lines(&ssd, block));
        let server = Server::new(pool_on(&ssd, false), &dir.path("run"), Vec::new());
        let bed = Bed { ssd, dir, server };
        assert_eq!(bed.server.pool().attach("v", &options).unwrap_err().exit_code(), 11);
        bed.fail();
        let e = bed.server.close().unwrap_err();
        let text = e.to_string();
        assert_eq!(e.exit_code(), 11, "{e}");
        assert!(text.contains("volume v: NOT complete") && text.contains("LOST"), "{e}");
        assert!(text.contains("block 320 is LOST") == named, "{e}");
        assert!(text.contains("all else is on the origin"), "{e}");
        let content = std::fs::read(&disk).unwrap();
        for (at, number) in places(10).zip(&numbers) {
            let be = if lost.contains(number) { 0 } else { 9 };
            assert_eq!(content[at..at + BLOCK], [be; BLOCK], "block {number}: {e}");
        }
        let marks = OriginMarks::at(&disk, state.as_deref()).unwrap();
        assert!(!marks.status().unwrap().complete, "the origin lacks something");
        drop(marks);
        // The disk comes back: nothing was accepted, and the pool may have the origin.
        bed.ssd.dead.store(false, SeqCst);
        let pool = pool_on(&bed.ssd, false);
        assert_eq!(pool.attach("v", &options).unwrap_err().exit_code(), 11);
        let v = pool.attach("v", &AttachOptions { holes: Holes::Accept, ..options }).unwrap();
        v.detach().unwrap();
    }
}

/// Keeps a volume until it is stopped.
#[derive(Debug, Default)]
struct Keeper {
    volume: Mutex<Option<Volume>>,
    ended: AtomicBool,
    is_other: bool,
    /// It asks for something on a thread of the server, which hangs.
    asks: AtomicBool,
    asking: AtomicBool,
    /// Its origin had everything when it was stopped.
    rescued: AtomicBool,
    stopped: AtomicBool,
    /// The disk fails while it stops, and this says whether a write notices it.
    kills: Option<(Arc<Ssd>, bool)>,
}

impl Service for Keeper {
    fn kind(&self) -> &'static str {
        "keeper"
    }

    fn name(&self) -> &str {
        if self.is_other {
            "other"
        } else {
            "k"
        }
    }

    fn status(&self) -> ServiceStatus {
        ServiceStatus::default()
    }

    fn stop(&self, _: &Stop) -> Result<()> {
        if let Some(volume) = self.volume.lock().unwrap().take() {
            if let Some((ssd, writes)) = &self.kills {
                ssd.dead.store(true, SeqCst);
                if *writes {
                    volume.write_at_durably(&[1; BLOCK], 12 << 20).unwrap_err();
                }
            }
            self.rescued.store(volume.info().unwrap().rescued, SeqCst);
        }
        self.stopped.store(true, SeqCst);
        Ok(())
    }

    fn lacks_something(&self) -> bool {
        self.asks.load(SeqCst)
    }

    fn retry(&self, _: &Pool) {
        self.asking.store(true, SeqCst);
        while self.asks.load(SeqCst) {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn has_volumes(&self) -> bool {
        self.volume.lock().unwrap().is_some()
    }

    fn ended(&self) -> bool {
        self.ended.load(SeqCst)
    }
}

/// A tree of it would be locked until the end of the server.
#[test]
fn a_service_without_volumes_that_has_ended_is_stopped_while_others_run() {
    let bed = Bed::new("over", LONG, LONG);
    let ended = Arc::new(Keeper { ended: AtomicBool::new(true), ..Default::default() });
    bed.server.add(Arc::new(Keeper { is_other: true, ..Default::default() })).unwrap();
    bed.fail();
    bed.server.add(ended.clone()).unwrap();
    let ready = bed.server.ready(None).unwrap();
    let (start, seen) = (Instant::now(), AtomicBool::new(false));
    let stops = || {
        seen.fetch_or(ended.stopped.load(SeqCst), SeqCst);
        seen.load(SeqCst) || start.elapsed() > LONG / 3
    };
    ready.run(&stops).unwrap();
    assert!(seen.load(SeqCst), "it was stopped with the server");
    assert_eq!(bed.server.close().unwrap_err().exit_code(), 7);
}

#[test]
fn a_service_that_ends_by_itself_keeps_its_volume_until_the_rescue() {
    let bed = Bed::new("ends", LONG, LONG);
    let (a, origin, _) = bed.volume("a");
    fill(&a, 10);
    let keeper = Arc::new(Keeper { volume: Mutex::new(Some(a)), ..Default::default() });
    bed.server.add(keeper.clone()).unwrap();
    bed.fail();
    let ready = bed.server.ready(None).unwrap();
    std::thread::scope(|scope| {
        let running = scope.spawn(|| ready.run(&|| false));
        std::thread::sleep(Duration::from_millis(60));
        keeper.ended.store(true, SeqCst);
        running.join().unwrap().unwrap();
    });
    assert!(keeper.stopped.load(SeqCst) && keeper.rescued.load(SeqCst), "{keeper:?}");
    assert!(has_all(&origin.content(), 10));
    assert_eq!(bed.server.close().unwrap_err().exit_code(), 20);
}

/// A thread hangs that has the pool, and nothing is at stake: it is no end in order all the same.
#[test]
fn no_end_on_a_failed_disk_is_a_success() {
    for hangs in [false, true] {
        let bed = Bed::new("nothing", LONG, LONG);
        let keeper = Arc::new(Keeper { asks: AtomicBool::new(hangs), ..Default::default() });
        bed.server.add(keeper.clone()).unwrap();
        let ready = bed.server.ready(None).unwrap();
        let start = Instant::now();
        let ends = || keeper.asking.load(SeqCst) || (!hangs && start.elapsed() > SHORT);
        ready.run(&|| ends() || start.elapsed() > LONG).unwrap();
        assert_eq!(keeper.asking.load(SeqCst), hangs);
        bed.fail();
        let e = bed.server.close().unwrap_err();
        assert!(e.exit_code() == 7 && e.to_string().contains("(ssd)"), "{e}");
        keeper.asks.store(false, SeqCst);
    }
}

/// The disk fails when the server stops, and the volumes are detached by then.
#[test]
fn a_disk_that_fails_while_the_server_stops_is_seen() {
    for writes in [true, false] {
        let bed = Bed::new("late", LONG, LONG);
        let disk = bed.dir.file("disk", 16 << 20);
        let pool = bed.server.pool();
        add_file(pool, "v", &disk, 0);
        let state = Some(bed.dir.path("marks"));
        let v = pool.attach("v", &AttachOptions { state, ..always() }).unwrap();
        fill(&v, 10);
        let (volume, kills) = (Mutex::new(Some(v)), Some((bed.ssd.clone(), writes)));
        bed.server.add(Arc::new(Keeper { volume, kills, ..Default::default() })).unwrap();
        let e = bed.server.close().unwrap_err();
        assert_eq!(e.exit_code(), 20, "{e}");
        assert!(has_all(&std::fs::read(&disk).unwrap(), 10));
    }
}
