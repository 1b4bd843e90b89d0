// SPDX-License-Identifier: MIT OR Apache-2.0
//! Goal: forebay-serve@.service is one that systemd takes, and the server tells it when it is
//! ready.  Method: a socket in systemd's place, and `systemd-analyze verify`, which has to find a
//! mistake too.  The server also runs under the unit's own limits, as far as setpriv and prlimit
//! can set them.

mod common;

use std::fs;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::nbd::Client;
use common::Bench;
use rustix::process::{kill_process, Pid, Signal};

const UNIT: &str = include_str!("../../../packaging/systemd/forebay-serve@.service.in");
const OF_MOUNT: &str = include_str!("../../../packaging/systemd/forebay-mount@.service.in");

/// A message that systemd would get.
fn told(socket: &UnixDatagram) -> String {
    let mut bytes = [0; 256];
    let n = socket.recv(&mut bytes).expect("nothing was told");
    String::from_utf8_lossy(&bytes[..n]).into_owned()
}

fn is_ready_then_stops(b: &Bench, name: &str, socket: &UnixDatagram, behind: &[String]) {
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let nbd = b.path("run/nbd");
    let serve = b.command(&["serve", "pool", "--socket", nbd.to_str().unwrap()]);
    let words = std::iter::once(serve.get_program()).chain(serve.get_args());
    let words: Vec<_> = behind.iter().map(AsRef::as_ref).chain(words).collect();
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).current_dir(b.directory()).stdout(Stdio::null());
    for (key, value) in serve.get_envs() {
        match value {
            Some(value) => command.env(key, value),
            None => command.env_remove(key),
        };
    }
    let mut process = command.env("NOTIFY_SOCKET", name).spawn().unwrap();
    assert_eq!(told(socket), "READY=1\nSTATUS=Serving 1 of 1 volumes");
    let mut client = Client::connect(&nbd, "v").expect("it said that it is ready");
    assert_eq!(client.write(0, &[1; 4096]), 0);
    let pid = rustix::process::Pid::from_child(&process);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert_eq!(told(socket), "STOPPING=1");
    assert_eq!(process.wait().unwrap().code(), Some(0));
}

#[test]
fn the_manager_is_told_when_it_is_ready() {
    let b = Bench::new();
    b.make_volume();
    let path = b.path("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    is_ready_then_stops(&b, path.to_str().unwrap(), &socket, &[]);
    let name = format!("forebay-test-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(&name).unwrap();
    let socket = UnixDatagram::bind_addr(&address).unwrap();
    is_ready_then_stops(&b, &format!("@{name}"), &socket, &[]);
}

/// The part that can be tested without systemd: the capabilities, and no new privileges.
#[test]
fn it_works_with_the_capabilities_of_its_unit() {
    let key = "CapabilityBoundingSet=";
    let set = UNIT.lines().find_map(|line| line.strip_prefix(key)).unwrap();
    let set: Vec<_> = set
        .split(' ')
        .map(|cap| format!("+{}", cap.trim_start_matches("CAP_").to_lowercase()))
        .collect();
    let set = format!("-all,{}", set.join(","));
    let words = ["setpriv", "--no-new-privs", "--inh-caps", "-all", "--bounding-set", &set];
    let behind = words.map(String::from);
    let tried = Command::new(&behind[0]).args(&behind[1..]).arg("true").status();
    if !tried.is_ok_and(|status| status.success()) {
        forebay_test::skipped!("setpriv cannot limit capabilities here");
        return;
    }
    let b = Bench::new();
    b.make_volume();
    let path = b.path("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    is_ready_then_stops(&b, path.to_str().unwrap(), &socket, &behind);
}

fn verify(b: &Bench, unit: &str) -> Option<String> {
    let path = b.path("forebay-serve@dev-pmem0.service");
    let bin = b.path("bin");
    fs::create_dir_all(&bin).unwrap();
    fs::copy(env!("CARGO_BIN_EXE_forebay"), bin.join("forebay")).unwrap();
    fs::write(&path, unit.replace("@bindir@", bin.to_str().unwrap())).unwrap();
    let out = Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&path).output();
    let out = out.ok()?;
    Some(String::from_utf8_lossy(&out.stderr).into_owned())
}

#[test]
fn systemd_takes_the_unit() {
    // On a disk: files in /dev/shm may not be executable everywhere.
    let b = Bench::on_disk();
    let Some(said) = verify(&b, UNIT) else {
        forebay_test::skipped!("there is no systemd-analyze");
        return;
    };
    assert!(!said.contains("forebay-serve@"), "{said}");
    let said = verify(&b, &UNIT.replace("Restart=on-failure", "Restart=on-mistake")).unwrap();
    assert!(said.contains("on-mistake"), "a mistake was not found: {said}");
    for line in [
        "Type=notify",
        "Restart=on-failure",
        "ExecStart=@bindir@/forebay serve $SERVE_OPTIONS -- %f",
    ] {
        assert!(UNIT.lines().any(|found| found == line), "{line}");
    }
}

/// A standard output that nobody reads and that is full from the start.
fn unread() -> (UnixStream, UnixStream) {
    let (mut ours, reader) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    while ours.write(&[b'x'; 4096]).is_ok() {}
    ours.set_nonblocking(false).unwrap();
    (ours, reader)
}

/// Whether the process handles SIGTERM itself.
fn handles_signals(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
    u64::from_str_radix(caught.trim(), 16).unwrap() & 1 << (Signal::TERM.as_raw() - 1) != 0
}

/// The second signal interrupted the server's work.  A unit must not treat that as a success,
/// unlike an end in order.
#[test]
fn a_second_signal_has_an_exit_code_of_its_own() {
    const CUT_OFF: i32 = 19;
    let b = Bench::new();
    b.make_volume();
    for words in [&["serve", "pool", "--json"][..], &["status", "pool", "--watch"]] {
        let (full, _reader) = unread();
        let mut command = b.command(words);
        command.stdout(OwnedFd::from(full)).stderr(Stdio::piped());
        let mut process = command.spawn().unwrap();
        drop(command);
        let pid = Pid::from_child(&process);
        let start = Instant::now();
        while !handles_signals(process.id()) {
            assert!(start.elapsed() < Duration::from_secs(60), "{words:?}: no handler");
            std::thread::sleep(Duration::from_millis(10));
        }
        // By then the server prints, and does not look for signals meanwhile.
        std::thread::sleep(Duration::from_secs(1));
        for _ in 0..2 {
            kill_process(pid, Signal::TERM).unwrap();
            std::thread::sleep(Duration::from_millis(100));
        }
        assert_eq!(process.try_wait().unwrap(), None, "{words:?}: two at once are one");
        std::thread::sleep(Duration::from_millis(600));
        kill_process(pid, Signal::TERM).unwrap();
        let out = process.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(CUT_OFF), "{words:?}: {said}");
        assert!(said.contains("cut off by a second signal"), "{words:?}: {said}");
    }
    for unit in [UNIT, OF_MOUNT] {
        let listed = |option: &str, code: &str| {
            let line = unit.lines().find_map(|line| line.strip_prefix(option));
            line.is_some_and(|codes| codes.split(' ').any(|listed| listed == code))
        };
        let [success, no_restart] = ["SuccessExitStatus=", "RestartPreventExitStatus="];
        assert!(listed(success, "13") && !listed(success, "19"), "{unit}");
        assert!(listed(no_restart, "2") && !listed(no_restart, "19"), "{unit}");
    }
}
