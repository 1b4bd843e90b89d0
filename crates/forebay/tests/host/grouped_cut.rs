// SPDX-License-Identifier: MIT OR Apache-2.0
//! Goal: a pool that is written in groups loses nothing that it has acknowledged when its disk
//! loses power, and with it what was not flushed, and the process is killed.
//!
//! Method: tests/serve/volatile_disk.c, a file that forgets what no fsync has covered. A child
//! appends to a log in it by eight threads, and says what was acknowledged; its disk is cut in the
//! middle, and it is killed. What the disk still holds is opened, and every entry that the child
//! named must be there. A disk whose flush does nothing must be found.
//! `FOREBAY_GROUPED_CUTS=n` for more rounds.

use std::collections::BTreeSet;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::*;
use forebay::grouped::{Device, Durable, GroupedMedium};
use forebay::*;
use forebay_engine::Image;

const DISK: &str = "FOREBAY_TEST_GROUPED_DISK";
const ROUNDS: u64 = 30;
const BYTES: u64 = 2 << 20;
const THREADS: u64 = 8;
const O_DIRECT: i32 = 0o40000;

/// The disk's file, which no command would take: a program decides what its fsync does.
#[derive(Debug)]
struct Disk(std::fs::File);

impl Device for Disk {
    fn size_bytes(&self) -> u64 {
        BYTES
    }

    fn read(&self, to: &mut [u8], at: u64) -> io::Result<()> {
        self.0.read_exact_at(to, at)
    }

    fn write(&self, image: &Image, at: u64, bytes: usize, fua: bool) -> io::Result<()> {
        let mut done = 0;
        while done < bytes {
            done += image.write_to(self.0.as_fd(), at + done as u64, bytes - done, 0)?;
        }
        if fua {
            self.flush()?;
        }
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        self.0.sync_data()
    }
}

/// With a pool on it, which is made if there is none.
fn pool_on(path: &Path, direct: bool) -> Result<Pool> {
    let mut options = std::fs::File::options();
    options.read(true).write(true).custom_flags(if direct { O_DIRECT } else { 0 });
    let disk = Disk(options.open(path).unwrap());
    let first = {
        let mut word = [0; 8];
        std::fs::File::open(path).unwrap().read_exact_at(&mut word, 0).unwrap();
        word == [0; 8]
    };
    let medium = GroupedMedium::on(path, Arc::new(disk), 4096, Durable::Flush)?;
    if first {
        medium.format("6ba7b810-9dad-11d1-80b4-00c04fd430c8".parse().unwrap(), CHUNK, 0)?;
    }
    Pool::open_on(medium, &PoolOptions::default())
}

/// The child: says "append THREAD N" when that is durable, and ends with its disk.
#[test]
#[ignore = "a child of the test"]
fn appender() {
    let Some(path) = std::env::var_os(DISK) else { return };
    let pool = pool_on(Path::new(&path), true).unwrap();
    pool.log_add("l", LogHome::Embedded).unwrap();
    let log = pool.log("l", &LogOptions::default()).unwrap();
    log.create(0).unwrap();
    println!("\nready");
    std::thread::scope(|s| {
        for thread in 0..THREADS {
            let log = &log;
            s.spawn(move || {
                for n in 0..u64::MAX {
                    let mut body = format!("{thread} {n} ").into_bytes();
                    body.resize(24 + (n * 131 % 700) as usize, b'.');
                    match log.append(1, Generation::Same, &[&body]) {
                        Ok(_) => writeln!(io::stdout(), "append {thread} {n}").unwrap(),
                        Err(_) => return,
                    }
                }
            });
        }
    });
    // As a process whose machine has lost its power.
    std::process::exit(0);
}

struct Volatile {
    disk: Child,
    directory: PathBuf,
}

impl Volatile {
    fn start(program: &Path, dir: &Dir, options: &[&str]) -> Option<Volatile> {
        let (directory, platter) = (dir.path("disk"), dir.path("platter"));
        let _ = std::fs::create_dir(&directory);
        let mut disk = Command::new(program)
            .args([&directory, &platter])
            .arg(BYTES.to_string())
            .args(options)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let deadline = Instant::now() + Duration::from_secs(10);
        while !directory.join("disk").exists() {
            if disk.try_wait().unwrap().is_some() {
                return None;
            }
            assert!(Instant::now() < deadline, "the disk does not come up");
            std::thread::sleep(Duration::from_millis(5));
        }
        Some(Volatile { disk, directory })
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.disk);
        rustix::process::kill_process(pid, signal).unwrap();
    }
}

impl Drop for Volatile {
    fn drop(&mut self) {
        self.signal(rustix::process::Signal::TERM);
        let _ = self.disk.wait();
        let _ =
            Command::new("umount").arg("-l").arg(&self.directory).stderr(Stdio::null()).status();
    }
}

/// The child's output, and the disk's content after a cut.
fn cut(
    volatile: Volatile,
    dir: &Dir,
    least: usize,
) -> (BTreeSet<String>, Result<BTreeSet<String>>) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["grouped_cut::appender", "--exact", "--ignored", "--nocapture"])
        .env(DISK, volatile.directory.join("disk"))
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let (mut told, mut is_cut) = (BTreeSet::new(), false);
    // Its output after the cut counts as well: it may name only durable entries.
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        let line = line.unwrap();
        let Some(entry) = line.strip_prefix("append ") else { continue };
        told.insert(entry.to_owned());
        if told.len() >= least && !is_cut {
            volatile.signal(rustix::process::Signal::USR1);
            is_cut = true;
        }
    }
    let _ = child.kill();
    child.wait().unwrap();
    assert!(is_cut, "{} entries, and no cut", told.len());
    drop(volatile);
    (told, left(&dir.path("platter")))
}

fn left(platter: &Path) -> Result<BTreeSet<String>> {
    let pool = pool_on(platter, false)?;
    assert_eq!(pool.check(true)?.exit_code(), 0);
    let log = pool.log("l", &LogOptions::default())?;
    let mut found = BTreeSet::new();
    log.claim()?.replay(|e, _| {
        let text = String::from_utf8(e.data.to_vec()).unwrap();
        let words: Vec<_> = text.split(' ').take(2).collect();
        assert!(found.insert(words.join(" ")), "twice: {text}");
        Effect::Durable
    })?;
    Ok(found)
}

#[test]
fn a_power_cut_takes_nothing_that_was_acknowledged() {
    let dir = Dir::on_disk("grouped-cut");
    let program = dir.path("volatile_disk");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/serve/volatile_disk.c");
    let built = Command::new("cc")
        .args(["-std=gnu11", "-O2", "-pthread", "-o"])
        .args([&program, &source])
        .stderr(Stdio::null())
        .status();
    if !built.is_ok_and(|status| status.success()) {
        return forebay_test::skipped!("no C compiler: the disk that forgets is not built");
    }
    let platter = dir.path("platter");
    let fresh = || std::fs::write(&platter, vec![0; BYTES as usize]).unwrap();
    let rounds = std::env::var("FOREBAY_GROUPED_CUTS").map_or(ROUNDS, |n| n.parse().unwrap());
    let mut more = 0;
    for round in 0..rounds {
        fresh();
        let (seed, keep) = (format!("seed={round}"), format!("keep={}", round % 2));
        let options = [&*seed, &keep, "write_us=100", "flush_us=500", "wait_ms=50"];
        let Some(volatile) = Volatile::start(&program, &dir, &options) else {
            return forebay_test::skipped!("no /dev/fuse, or not root: no disk that forgets");
        };
        let (told, found) = cut(volatile, &dir, 10 + (round as usize * 37) % 300);
        let found = found.unwrap();
        let lost: Vec<_> = told.difference(&found).collect();
        assert!(lost.is_empty(), "round {round}: acknowledged and lost: {lost:?}");
        more += found.len() - told.len();
    }
    // A disk that lies is found: the test can fail.
    let mut seen = false;
    for round in 0..5 {
        fresh();
        let seed = format!("seed={round}");
        let options = [&*seed, "keep=0", "lie=1", "lie_after=25", "write_us=100"];
        let volatile = Volatile::start(&program, &dir, &options).expect("as before");
        // More groups than flushes that do something, even if all threads share each.
        let (told, found) = cut(volatile, &dir, 300);
        seen |= found.map_or(true, |found| !told.is_subset(&found));
    }
    assert!(seen, "a flush that does nothing was not noticed");
    println!("{rounds} cuts; {more} entries were there that nobody had been told of");
}
