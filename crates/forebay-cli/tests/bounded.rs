// SPDX-License-Identifier: MIT OR Apache-2.0
//! Goal: nothing that a client does makes the server take memory or time without a bound, nor does
//! a reader of the log that stopped.  Method: clients that announce much and send nothing, that ask
//! for much and take nothing, and that cause a line of the log each.  In another case the standard
//! error is full from the start.

mod common;

use std::fs;
use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::nbd::{Client, Served, READ, WRITE};
use common::Bench;

const MOST: u32 = 32 << 20;
const CLIENTS: usize = 24;

/// Makes a pool with a volume v of 64 MiB.
fn large() -> Bench {
    let b = Bench::new();
    b.make_pool();
    let origin = fs::File::create(b.path("origin")).unwrap();
    origin.set_len(64 << 20).unwrap();
    b.run_ok(&["volume", "add", "pool", "v", "origin"]);
    b
}

/// The anonymous memory of the process in MiB.
fn resident(served: &Served) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", served.process.id())).unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
}

/// The most anonymous memory within some time.
fn most_resident(served: &Served, time: Duration) -> u64 {
    let start = Instant::now();
    let mut most = 0;
    while start.elapsed() < time {
        most = most.max(resident(served));
        std::thread::sleep(Duration::from_millis(20));
    }
    most
}

/// Data that was only announced takes no memory.
#[test]
fn a_header_alone_takes_no_memory() {
    let b = large();
    let served = Served::start(&b, &[]);
    let before = resident(&served);
    let mut clients: Vec<Client> = (0..CLIENTS).map(|_| served.connect("v")).collect();
    for client in &mut clients {
        client.send_raw(0, WRITE, 1, 0, MOST, &[]).unwrap();
    }
    let most = most_resident(&served, Duration::from_secs(1));
    assert!(most < before + 32, "{before} MiB, and then {most} MiB");
    // Clients that hold the room without using it give way to one that uses it.
    let mut other = served.connect("v");
    assert_eq!(other.write(0, &[7; MOST as usize]), 0);
    assert_eq!(other.read(0, MOST as usize).unwrap(), [7; MOST as usize]);
}

/// Unread answers are bounded by the memory of all clients as well.  Small requests of others
/// continue meanwhile, and large ones after the first clients were disconnected.
#[test]
fn answers_that_nobody_takes_are_bounded() {
    let b = large();
    let served = Served::start(&b, &[]);
    let before = resident(&served);
    let mut clients: Vec<Client> = (0..CLIENTS).map(|_| served.connect("v")).collect();
    for client in &mut clients {
        client.send_raw(0, READ, 1, 0, MOST, &[]).unwrap();
    }
    let mut other = served.connect("v");
    let start = Instant::now();
    assert_eq!(other.write(4096, &[3; 4096]), 0);
    assert_eq!(other.read(4096, 4096).unwrap(), [3; 4096]);
    assert!(start.elapsed() < Duration::from_secs(4), "it waited for others");
    let most = most_resident(&served, Duration::from_secs(2));
    assert!(most < before + 300, "{before} MiB, and then {most} MiB");
    assert_eq!(other.read(4096, 4096).unwrap(), [3; 4096]);
    assert_eq!(other.read(0, MOST as usize).unwrap()[4096..8192], [3; 4096]);
}

/// Large reads of a volume whose origin does not answer hold their memory, and leave enough for
/// those of another volume.
#[test]
fn a_volume_whose_origin_hangs_leaves_memory_for_others() {
    let b = large();
    let (far, up) = (b.path("far"), b.path("far.pid"));
    let server = Command::new("nbdkit")
        .args(["-f", "-U"])
        .arg(&far)
        .arg("-P")
        .arg(&up)
        .args(["null", "size=64M"])
        .stderr(Stdio::null())
        .spawn();
    let Ok(server) = server else { return forebay_test::skipped!("nbdkit is not installed") };
    let server = Killed(server);
    let start = Instant::now();
    while !up.exists() && start.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(10)); // it does not listen yet
    }
    b.run_ok(&["volume", "add", "pool", "far", &format!("nbd+unix:///?socket={}", far.display())]);
    let served = Served::start(&b, &[]);
    let mut clients: Vec<Client> = (0..8).map(|_| served.connect("far")).collect();
    let far = rustix::process::Pid::from_child(&server.0);
    rustix::process::kill_process(far, rustix::process::Signal::STOP).unwrap();
    for client in &mut clients {
        client.send_raw(0, READ, 1, 0, MOST, &[]).unwrap();
    }
    std::thread::sleep(Duration::from_millis(500));
    let (mut other, start) = (served.connect("v"), Instant::now());
    assert_eq!(other.write(0, &[5; 1 << 20]), 0);
    assert!(other.read(0, MOST as usize).unwrap()[..1 << 20] == [5; 1 << 20]);
    assert!(start.elapsed() < Duration::from_secs(15), "it waited {:?}", start.elapsed());
}

/// A process that is killed at the end of the test.
struct Killed(std::process::Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Neither requests nor the end of the server wait for a reader of its standard error, and
/// clients cannot fill a log.
#[test]
fn a_log_that_nobody_reads_stops_nothing_and_is_bounded() {
    let b = large();
    let (mut log, mut full) = std::io::pipe().unwrap();
    full.write_all(&vec![b'\n'; 64 << 10]).unwrap();
    let mut command = Served::command(&b, "pool");
    command.stderr(Stdio::from(full));
    let mut served = Served::ready(&b, command).unwrap();
    // The log ends because the command has no other copy of the pipe's end.
    for n in 0..400 {
        let mut client = Client::greeted(&served.socket).unwrap();
        // With the old option a client asks for an unknown name, which only the log reports.
        client.option(1, format!("none-{n}-{}", "x".repeat(90)).as_bytes()).unwrap();
        let _ = client.0.read(&mut [0]);
    }
    assert_eq!(served.connect("v").write(0, &[1; 4096]), 0);
    let start = Instant::now();
    assert_eq!(served.stop(), Some(0));
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    let mut told = Vec::new();
    log.read_to_end(&mut told).unwrap();
    assert!(told[64 << 10..].len() < 4096, "what found no room was lost, or waited for");
}

/// With a reader, the log has the first lines and the number of the others.
#[test]
fn a_flood_of_lines_is_cut_and_counted() {
    let b = large();
    let mut command = Served::command(&b, "pool");
    command.stderr(fs::File::create(b.path("log")).unwrap());
    let mut served = Served::ready(&b, command).unwrap();
    let ask = |name: &str| {
        let mut client = Client::greeted(&served.socket).unwrap();
        client.option(1, name.as_bytes()).unwrap();
        let _ = client.0.read(&mut [0]);
    };
    (0..400).for_each(|_| ask("none"));
    std::thread::sleep(Duration::from_millis(1500));
    ask("last");
    assert_eq!(served.stop(), Some(0));
    let log = fs::read_to_string(b.path("log")).unwrap();
    let lines = log.lines().filter(|line| line.contains("no such volume")).count();
    assert!((100..250).contains(&lines), "{lines}");
    assert!(log.contains("messages like the next one were left out"), "{log}");
    assert!(log.lines().any(|line| line.contains("\"last\"")), "{log}");
}
