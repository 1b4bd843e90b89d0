// SPDX-License-Identifier: MIT OR Apache-2.0
//! Goal: no command, no figure and no end of a server says that a file is complete while its pages
//! are only in the pool.  Method: a table of commands and moments.  A process maps a file of a
//! served pool and lives, was killed, was killed before its server ended, or was killed and its file
//! written back.  This test holds up the write-back: it has a duplicate of the process's descriptor
//! of the file, and with it the file's locks.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use forebay_map::{Options, Session, Wanted, PAGE};
use rustix::process::{pidfd_getfd, pidfd_open, Pid, PidfdFlags, PidfdGetfdFlags};

mod common;
use common::maps::{make_map, SIZE};
use common::nbd::Served;
use common::{Bench, Output};

const ROLE: &str = "FOREBAY_TEST_MAPS";

/// The moments at which a command runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moment {
    Lives,
    Killed,
    /// The server ended while it wrote the file back.
    Stopped,
    WrittenBack,
}

const MOMENTS: [Moment; 4] = [Moment::Lives, Moment::Killed, Moment::Stopped, Moment::WrittenBack];

/// How a command ends.
#[derive(Clone, Copy, Debug)]
enum Ends {
    /// At once, with this code, and these words.
    With(i32, &'static str),
    /// Once the file has everything, with 0.
    After,
}

use Ends::{After, With};

const HELD: &str = "the server writes it back";
const FILE: &str = "{file}";
/// Not a command: the end of the server by SIGTERM.
const END: &str = "{end}";

/// Each command, and how it ends at each moment.  A file of figures counts as printed, without
/// labels.
const TABLE: &[(&[&str], [Ends; 4])] = &[
    (
        &["map", "list", "pool"],
        [
            With(0, "mapped by process"),
            With(0, "has ended"),
            With(0, "to be recovered"),
            With(0, "nothing to recover"),
        ],
    ),
    (
        &["map", "status", "pool"],
        [With(0, "4 KiB"), With(0, "has ended"), With(0, "4 KiB"), With(0, " 0 B")],
    ),
    (
        &["map", "recover", "pool"],
        [With(14, "has it mapped"), After, With(11, "1 pages stay"), With(0, "")],
    ),
    (
        &["map", "recover", "pool", "--json"],
        [
            With(14, "\"complete\": false"),
            After,
            With(11, "\"complete\": false"),
            With(0, "\"complete\": true"),
        ],
    ),
    (
        &["map", "recover", "pool", FILE],
        [With(14, "has it mapped"), After, With(11, "1 pages stay"), With(3, "has nothing of it")],
    ),
    (
        &["map", "recover", "pool", "--dry-run"],
        [With(14, "has it mapped"), With(14, HELD), With(11, "1 pages stay"), With(0, "")],
    ),
    (
        &["map", "recover", "pool", "--dry-run", "--json"],
        [
            With(14, "\"complete\": false"),
            With(14, "\"complete\": false"),
            With(11, "\"complete\": false"),
            With(0, "\"complete\": true"),
        ],
    ),
    (
        &["map", "drop", "pool", FILE, "--discard"],
        [With(4, ""), With(4, ""), With(4, ""), With(3, "has nothing of it")],
    ),
    (&["map", "remove", "pool", "db"], [With(4, ""), With(4, ""), With(12, ""), With(4, "")]),
    (&["drain", "pool"], [With(14, "has it mapped"), After, With(14, "NOT drained"), With(0, "")]),
    (
        &["drain", "pool", "--json"],
        [
            With(14, "has it mapped"),
            After,
            With(14, "\"complete\": false"),
            With(0, "\"complete\": true"),
        ],
    ),
    (
        &["origin", "status", FILE],
        [With(14, "may lack"), With(14, "may lack"), With(14, "may lack"), With(0, "")],
    ),
    (
        &["status", "pool"],
        [
            With(0, "1 pages dirty"),
            With(0, "1 pages dirty"),
            With(0, "1 pages dirty"),
            With(0, "0 pages dirty"),
        ],
    ),
    (
        &["check", "pool"],
        [With(4, "in use"), With(4, "in use"), With(0, "1 pages that files lack"), With(4, "")],
    ),
    (
        &["check", "pool", "--json"],
        [With(4, "in use"), With(4, "in use"), With(0, "\"dirty_pages\": 1"), With(4, "")],
    ),
    (
        &["exporter", "pool", "--textfile", "figures"],
        [
            With(0, "forebay_map_dirty_bytes 4096"),
            With(0, "forebay_map_dirty_bytes 4096"),
            With(0, "forebay_map_dirty_bytes 4096"),
            With(0, "forebay_map_dirty_bytes 0"),
        ],
    ),
    (
        &["log", "replay", "--dry-run", "pool", "l"],
        [With(4, "in use"), With(4, "in use"), With(0, "log l: "), With(4, "")],
    ),
    (
        &["replay", "pool", ".", "--log", "l"],
        [With(4, "in use"), With(4, "in use"), With(0, "log l: it holds nothing"), With(4, "")],
    ),
    (
        &[END],
        [
            With(0, "have files mapped"),
            With(0, "1 pages stay in the pool"),
            With(0, "1 pages stay in the pool"),
            With(0, ""),
        ],
    ),
];

/// Words that no command says while the file lacks a page.
const CLAIMS: &[&str] = &[
    "the tree has everything",
    "1 files have everything",
    "nothing to recover",
    "\"complete\": true",
    "dirty_bytes 0",
];

/// The process that maps the file: it stores a page, syncs it, and writes nothing back.
fn maps(place: &Path) {
    let options = Options { by_hand: true, ..Options::default() };
    let session = Session::open(&Wanted::of(&place.join("pool")), options).expect("served");
    let mapped = session.map(&place.join("data"), 0).expect("a file");
    mapped.write(PAGE as u64, &[7; PAGE]).expect("written");
    mapped.sync(0, u64::MAX).expect("synced");
    println!("synced");
    std::thread::sleep(Duration::from_secs(600));
}

fn process(bench: &Bench) -> Child {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["no_command_says_more_than_is_so", "--exact", "--nocapture"]);
    command.env(ROLE, bench.directory()).env("FOREBAY_RUNTIME_DIR", bench.path("run"));
    let mut child = command.stdout(Stdio::piped()).spawn().expect("a process");
    let out = child.stdout.take().expect("its output");
    let said = BufReader::new(out).lines().map_while(Result::ok).any(|l| l.ends_with("synced"));
    assert!(said, "the process has mapped nothing");
    child
}

/// A duplicate of the process's descriptor of the file, with which this test has its locks.
fn held(child: &Child, file: &Path) -> OwnedFd {
    let pid = Pid::from_child(child);
    let process = pidfd_open(pid, PidfdFlags::empty()).expect("the process");
    let all = std::fs::read_dir(format!("/proc/{}/fd", child.id())).expect("its descriptors");
    let of = |fd: &std::fs::DirEntry| std::fs::read_link(fd.path()).is_ok_and(|to| to == file);
    let fd = all.map_while(Result::ok).find(of).expect("its descriptor of the file");
    let number = fd.file_name().to_str().and_then(|n| n.parse().ok()).expect("a number");
    pidfd_getfd(process, number, PidfdGetfdFlags::empty()).expect("a duplicate")
}

fn has_all(file: &Path) -> bool {
    std::fs::read(file).expect("the file")[PAGE..2 * PAGE] == [7; PAGE]
}

#[test]
fn no_command_says_more_than_is_so() {
    if let Some(place) = std::env::var_os(ROLE) {
        return maps(Path::new(&place));
    }
    std::thread::scope(|s| {
        for (n, moment) in MOMENTS.into_iter().enumerate() {
            s.spawn(move || {
                TABLE.iter().for_each(|(words, ends)| judge(moment, words, ends[n]));
            });
        }
    });
}

/// Nobody opens a pool again whose file was removed: no next server writes anything back.
#[test]
fn the_end_of_a_server_whose_pool_is_lost_promises_nothing() {
    for kills in [true, false] {
        let bench = Bench::new();
        make_map(&bench);
        let file = bench.path("data");
        std::fs::write(&file, vec![0; SIZE]).unwrap();
        let mut served = server(&bench);
        let mut child = process(&bench);
        let lock = held(&child, &file);
        if kills {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        std::fs::remove_file(bench.path("pool")).unwrap();
        served.stop();
        let said = std::fs::read_to_string(bench.path("said")).unwrap();
        let says = if kills { "1 pages are LOST" } else { "nobody can open it again" };
        assert!(said.contains(says), "{kills}: {said}");
        for promise in ["next server", "stay in the pool", "kept in the pool"] {
            assert!(!said.contains(promise), "{kills}: {said}");
        }
        drop(lock);
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// A server whose messages go to the file `said`.
fn server(bench: &Bench) -> Served {
    let mut command = Served::command(bench, "pool");
    command.stderr(File::create(bench.path("said")).unwrap());
    Served::ready(bench, command).expect("the server ended before it was ready")
}

/// Runs a command; the result has the figures that it wrote to a file.
fn run(bench: &Bench, words: &[&str], served: &mut Option<Served>) -> Output {
    if words == [END] {
        let mut served = served.take().unwrap_or_else(|| server(bench));
        let code = served.stop();
        let stderr = std::fs::read_to_string(bench.path("said")).unwrap();
        return Output { code, stdout: String::new(), stderr };
    }
    let mut out = bench.run(words);
    let figures = std::fs::read_to_string(bench.path("figures")).unwrap_or_default();
    for line in figures.lines().filter(|line| !line.starts_with('#')) {
        let (name, rest) = line.split_once('{').unwrap_or((line, ""));
        let value = rest.rsplit_once('}').map_or("", |(_, value)| value);
        out.stdout += &format!("{name}{value}\n");
    }
    out
}

fn judge(moment: Moment, words: &[&str], ends: Ends) {
    let bench = Bench::new();
    make_map(&bench);
    bench.run_ok(&["log", "create", "pool", "l"]);
    let file = bench.path("data");
    std::fs::write(&file, vec![0; SIZE]).unwrap();
    let shown = file.display().to_string();
    let words: Vec<&str> = words.iter().map(|&w| if w == FILE { &shown } else { w }).collect();
    let mut served = Some(server(&bench));
    let mut child = process(&bench);
    let mut lock = Some(held(&child, &file));
    if moment != Moment::Lives {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    if moment == Moment::Stopped {
        assert_eq!(served.take().and_then(|mut served| served.stop()), Some(0));
    }
    if moment == Moment::WrittenBack {
        lock = None;
        let begun = Instant::now();
        while !bench.run_ok(&["map", "list", "pool"]).stdout.contains("nothing to recover") {
            assert!(begun.elapsed() < Duration::from_secs(60), "it is not written back");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    let case = format!("{moment:?}: {words:?}");
    match ends {
        With(code, what) => {
            let out = run(&bench, &words, &mut served);
            assert_eq!(out.code, Some(code), "{case}: {out:?}");
            let said = format!("{}{}", out.stdout, out.stderr);
            assert!(said.contains(what), "{case}: {what}: {out:?}");
            let complete = moment == Moment::WrittenBack;
            assert_eq!(has_all(&file), complete, "{case}");
            let claims = CLAIMS.iter().find(|claim| said.contains(**claim));
            assert!(complete || claims.is_none(), "{case}: {claims:?}: {out:?}");
            assert!(!complete || !said.contains(" stay in the pool"), "{case}: {out:?}");
        }
        After => {
            let mut command = bench.command(&words);
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
            let mut under_way = command.spawn().unwrap();
            let begun = Instant::now();
            while lock.is_some() {
                let ended = under_way.try_wait().unwrap();
                assert_eq!(ended, None, "{case}: it ends while the file lacks a page");
                // Longer than a drain waits for a living process.
                if begun.elapsed() > Duration::from_millis(2500) {
                    lock = None;
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            let out = under_way.wait_with_output().unwrap();
            assert_eq!(out.status.code(), Some(0), "{case}: {out:?}");
            assert!(has_all(&file), "{case}: {out:?}");
        }
    }
    drop(lock);
    let _ = child.kill();
    let _ = child.wait();
    if let Some(mut served) = served {
        assert_eq!(served.stop(), Some(0), "{case}");
    }
    // Whatever was said, the page reaches the file.  A child that another thread has just forked
    // has a copy of the descriptor, with its locks, until it executes its program.
    let begun = Instant::now();
    let left = loop {
        let left = bench.run(&["map", "recover", "pool"]);
        if left.code == Some(0) || begun.elapsed() > Duration::from_secs(20) {
            break left;
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    assert!(left.code == Some(0) && has_all(&file), "{case}: {left:?}");
}
