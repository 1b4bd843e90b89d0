// SPDX-License-Identifier: MIT OR Apache-2.0
//! A test bed: a pool with a map, its server, and processes of the same program that map files.
//! Tests kill them.

#![allow(dead_code)] // no test uses all of it

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use forebay::{CreateOptions, Error, FoundMark, Pool, PoolOptions};
use forebay_map::backing::{Backing, RegularFile};
use forebay_map::{Features, Options, Session, Wanted, SEGMENT};
use forebay_map_server::MapService;
use forebay_server::{Service, Stop};

/// Segments of each file.
pub const SEGMENTS: u64 = 6;
pub const ROLE: &str = "FOREBAY_MAP_ROLE";

pub struct Place(pub PathBuf);

impl Place {
    pub fn new() -> Place {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("forebay-map-served-{}-{number}", std::process::id());
        let place = Place(Path::new("/dev/shm").join(name));
        std::fs::create_dir_all(&place.0).expect("a directory in /dev/shm");
        // The map has nine frames.
        let o = CreateOptions {
            size_bytes: Some(36 << 20),
            map_bytes: 20 << 20,
            ..CreateOptions::default()
        };
        forebay::create(&place.pool(), &o).expect("a pool");
        let pool = Pool::open(&place.pool(), &PoolOptions::default()).expect("the pool");
        pool.map_add("db", 20 << 20).expect("a map");
        pool.close().expect("closed");
        for file in 0..2 {
            let made = File::create(place.file(file)).expect("a file");
            made.set_len(SEGMENTS * SEGMENT as u64).expect("its size");
        }
        place
    }

    pub fn pool(&self) -> PathBuf {
        self.0.join("pool")
    }

    pub fn file(&self, n: u64) -> PathBuf {
        self.0.join(format!("file{n}"))
    }

    pub fn run(&self) -> PathBuf {
        self.0.join("run")
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    // One write, so that each report is whole.
    let said = out.write_all(format!("{line}\n").as_bytes()).and_then(|()| out.flush());
    said.expect("somebody listens");
}

/// The process that serves the pool.
pub fn serve(place: &Path) {
    let pool = match Pool::open(&place.join("pool"), &PoolOptions::default()) {
        Ok(pool) => pool,
        Err(e @ Error::Busy { .. }) => return say(&format!("busy: {e}")),
        Err(e) => return say(&format!("{e}")),
    };
    let run = place.join("run");
    let _ = std::fs::DirBuilder::new().mode(0o700).create(&run);
    let started = MapService::start(&pool, &run, false, &mut |_| {}).expect("maps");
    let (_service, recovered) = started.expect("a map");
    match recovered.expect("writable").complete {
        true => say("ready"),
        false => say("some pages stay"),
    }
    std::thread::sleep(Duration::from_secs(3600));
}

pub struct Numbers(pub u64);

impl Numbers {
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) % n
    }
}

pub struct Process {
    pub child: Child,
    pub said: Arc<Mutex<Vec<String>>>,
    reader: Option<std::thread::JoinHandle<()>>,
}

impl Process {
    /// Starts a process that runs this test of the program in the given role.
    pub fn start(place: &Place, test: &str, role: &str, planted: &str) -> Process {
        Process::start_with(place, test, role, planted, Stdio::inherit())
    }

    /// `errors`: where its warnings go.
    pub fn start_with(
        place: &Place,
        test: &str,
        role: &str,
        planted: &str,
        errors: Stdio,
    ) -> Process {
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", test, "--nocapture"])
            .env(ROLE, role)
            .env("FOREBAY_MAP_PLACE", &place.0)
            .env("FOREBAY_MAP_PLANTED", planted)
            .env("FOREBAY_RUNTIME_DIR", place.run())
            .stdout(Stdio::piped())
            .stderr(errors)
            .spawn()
            .expect("it runs");
        let out = BufReader::new(child.stdout.take().expect("piped"));
        let said = Arc::new(Mutex::new(Vec::new()));
        let too = said.clone();
        let reader = std::thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                too.lock().expect("not poisoned").push(line);
            }
        });
        Process { child, said, reader: Some(reader) }
    }

    pub fn lines(&self) -> usize {
        self.said.lock().expect("not poisoned").len()
    }

    pub fn has_said(&self, what: &str) -> bool {
        self.said.lock().expect("not poisoned").iter().any(|line| line.contains(what))
    }

    pub fn lives(&mut self) -> bool {
        self.child.try_wait().expect("wait").is_none()
    }

    /// Sends a signal.  For a stop it waits until every thread has stopped: a thread that still
    /// runs could answer.
    pub fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().expect("kill").success());
        if signal == "-STOP" {
            let tasks = format!("/proc/{pid}/task");
            let states = |states: &[char]| {
                let all = std::fs::read_dir(&tasks);
                all.is_ok_and(|mut all| all.all(|task| state_is(task, states)))
            };
            // A system call that touched a page without a frame cannot be stopped.  It sleeps until
            // somebody fills the page, and nobody does here.
            const SLEEPS: Duration = Duration::from_secs(1);
            let mut since = Instant::now();
            wait("the threads", || {
                if !states(&['T', 'Z', 'D']) {
                    since = Instant::now();
                }
                states(&['T', 'Z']) || since.elapsed() > SLEEPS
            })
            .expect("stopped");
        }
    }

    /// Kills it, though another process may still have its output.
    pub fn kill_it(&mut self) {
        let _ = self.child.kill();
        self.child.wait().expect("it is dead");
        self.reader = None;
    }

    pub fn kill(&mut self) -> Vec<String> {
        let _ = self.child.kill();
        self.child.wait().expect("it is dead");
        if let Some(reader) = self.reader.take() {
            reader.join().expect("all was read");
        }
        std::mem::take(&mut *self.said.lock().expect("not poisoned"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Whether a thread is in one of these states, by their letters in /proc.  A thread that has ended
/// counts too.
fn state_is(task: std::io::Result<std::fs::DirEntry>, states: &[char]) -> bool {
    let stat = task.and_then(|t| std::fs::read_to_string(t.path().join("stat")));
    stat.map_or(true, |s| s.rsplit_once(") ").is_some_and(|(_, s)| s.starts_with(states)))
}

pub fn wait(what: &str, mut until: impl FnMut() -> bool) -> Result<(), String> {
    let begun = Instant::now();
    while !until() {
        if begun.elapsed() > Duration::from_secs(40) {
            return Err(format!("waited in vain: {what}"));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

pub fn server(place: &Place, test: &str, planted: &str) -> Result<Process, String> {
    server_with(place, test, planted, Stdio::inherit())
}

pub fn server_with(
    place: &Place,
    test: &str,
    planted: &str,
    errors: Stdio,
) -> Result<Process, String> {
    let server = Process::start_with(place, test, "serve", planted, errors);
    wait("a server", || {
        server.has_said("ready") || server.has_said("busy") || server.has_said("stay")
    })?;
    match server.has_said("ready") {
        true => Ok(server),
        false => Err(format!("{:?}", server.said.lock().expect("not poisoned"))),
    }
}

pub fn is_marked(place: &Place, file: u64) -> Option<bool> {
    let file = RegularFile::open(&place.file(file)).ok()?;
    Some(file.marked().expect("a look") != FoundMark::Nothing)
}

pub fn can() -> bool {
    let file = tempfile();
    let features = Features::detect(std::os::fd::AsFd::as_fd(&file), 0);
    if !features.watch {
        forebay_test::skipped!("it needs userfaultfd and PAGEMAP_SCAN: {:?}", features.missing);
    }
    features.watch
}

pub fn tempfile() -> File {
    let path = Path::new("/dev/shm").join(format!("forebay-map-probe-{}", std::process::id()));
    let mut o = std::fs::OpenOptions::new();
    let file = o.read(true).write(true).create(true).truncate(false).open(&path).expect("a file");
    file.set_len(SEGMENT as u64).expect("its size");
    let _ = std::fs::remove_file(path);
    file
}

/// A server in this process.
pub struct Here {
    pub place: Place,
    pub pool: Option<Pool>,
    pub service: Arc<MapService>,
}

impl Here {
    pub fn new() -> Here {
        let place = Place::new();
        let pool = Pool::open(&place.pool(), &PoolOptions::default()).expect("the pool");
        std::fs::DirBuilder::new().mode(0o700).create(place.run()).expect("a directory");
        let started = MapService::start(&pool, &place.run(), false, &mut |_| {}).expect("maps");
        Here { place, pool: Some(pool), service: started.expect("a map").0 }
    }

    pub fn session(&self) -> Session {
        let wanted = Wanted { sockets: self.place.run(), ..Wanted::of(&self.place.pool()) };
        Session::open(&wanted, Options::default()).expect("served")
    }

    pub fn frames_used(&self) -> u64 {
        let status = self.service.status();
        status.details["maps"][0]["frames_used"].as_u64().expect("a number")
    }
}

impl Drop for Here {
    fn drop(&mut self) {
        self.service
            .stop(&Stop { grace: Duration::ZERO, must: true, keep: false })
            .expect("stopped");
        let _ = self.pool.take().map(Pool::close);
    }
}
