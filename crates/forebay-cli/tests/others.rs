// SPDX-License-Identifier: MIT OR Apache-2.0
//! Goal: other users and processes cannot change what the command does.  They are a server that is
//! not the pool's, links in a directory of theirs, and processes that read the pool again and
//! again.  Method: the test makes each of them.

mod common;

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::{chown, symlink, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::nbd::Served;
use common::Bench;

/// A process that is killed at the end of the test.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

const SOCKET: &str = "FOREBAY_TEST_FALSE_SERVER";
const OTHER_USER: u32 = 61_859;

/// Accepts a connection and notes it.
#[test]
#[ignore = "a helper of the next test, as another user"]
fn false_server() {
    let Some(path) = std::env::var_os(SOCKET) else { return };
    let listener = UnixListener::bind(&path).unwrap();
    for stream in listener.incoming() {
        let mut line = String::new();
        let _ = BufReader::new(stream.unwrap()).read_line(&mut line);
        if !line.is_empty() {
            fs::write(Path::new(&path).with_file_name("asked"), line).unwrap();
        }
    }
}

/// The directory of sockets may be one that another user made before.
#[test]
fn a_server_of_another_user_is_not_believed() {
    let b = Bench::new();
    b.make_volume();
    let run = b.path("run");
    fs::create_dir(&run).unwrap();
    if chown(&run, Some(OTHER_USER), Some(OTHER_USER)).is_err() {
        forebay_test::skipped!("a server of another user needs root");
        return;
    }
    fs::set_permissions(b.directory(), fs::Permissions::from_mode(0o711)).unwrap();
    let told: serde_json::Value =
        serde_json::from_str(&b.run_ok(&["dump", "superblock", "pool", "--json"]).stdout).unwrap();
    let socket = run.join(format!("{}.sock", told["uuid"].as_str().unwrap()));
    // The program runs from an open descriptor, because the other user may not reach its path.
    let mut command = Command::new("bash");
    command.args(["-c", "exec /proc/self/fd/0 \"$@\"", "bash", "--exact", "false_server"]);
    command.arg("--ignored").env(SOCKET, &socket).uid(OTHER_USER).gid(OTHER_USER);
    command.stdin(File::open(std::env::current_exe().unwrap()).unwrap());
    command.current_dir("/").stdout(Stdio::null()).stderr(Stdio::null());
    let _server = Killed(command.spawn().unwrap());
    let start = Instant::now();
    while !socket.exists() {
        assert!(start.elapsed() < Duration::from_secs(20), "no socket");
        std::thread::sleep(Duration::from_millis(10));
    }
    for words in [&["drain", "pool"][..], &["status", "pool"], &["set", "pool"], &["list", "pool"]]
    {
        let out = b.run(words);
        assert!(!run.join("asked").exists(), "{words:?}: it was asked: {out:?}");
        if words[0] != "list" {
            assert_eq!(out.code, Some(9), "{words:?}: {out:?}");
            assert!(out.stderr.contains(&format!("user {OTHER_USER} answers")), "{out:?}");
        }
    }
    // The pool is not served there either, since its clients could meet another server.
    refuses_to_serve(&b);
}

fn refuses_to_serve(b: &Bench) {
    let mut command = b.command(&["serve", "pool"]);
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    let mut server = Killed(command.spawn().unwrap());
    let start = Instant::now();
    let code = loop {
        assert!(start.elapsed() < Duration::from_secs(30), "it serves");
        match server.0.try_wait().unwrap() {
            Some(status) => break status.code(),
            None => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    let mut told = String::new();
    server.0.stderr.take().unwrap().read_to_string(&mut told).unwrap();
    assert!(code == Some(9) && told.contains("chmod 700"), "{code:?} {told}");
}

/// Another user can change a link, even one to a directory of one's own.
#[test]
fn sockets_are_not_made_through_a_link_of_another_user() {
    let b = Bench::new();
    b.make_volume();
    fs::create_dir(b.path("private")).unwrap();
    fs::set_permissions(b.path("private"), fs::Permissions::from_mode(0o700)).unwrap();
    symlink(b.path("private"), b.path("run")).unwrap();
    if std::os::unix::fs::lchown(b.path("run"), Some(OTHER_USER), None).is_err() {
        forebay_test::skipped!("a link of another user needs root");
        return;
    }
    refuses_to_serve(&b);
    assert_eq!(fs::read_dir(b.path("private")).unwrap().count(), 0);
}

/// Each name that the command would make in the directory is a link to a valuable file.
#[test]
fn files_are_written_through_no_link() {
    let b = Bench::new();
    b.make_volume();
    b.write("precious", b"precious");
    fs::create_dir(b.path("metrics")).unwrap();
    for name in ["m.prom", "m.prom.new", "m.new", ".m.prom.new"] {
        symlink(b.path("precious"), b.path("metrics").join(name)).unwrap();
    }
    fs::create_dir(b.path("man")).unwrap();
    symlink(b.path("precious"), b.path("man/forebay.1")).unwrap();
    b.run_ok(&["exporter", "pool", "--textfile", "metrics/m.prom"]);
    b.run_ok(&["man", "man"]);
    assert_eq!(fs::read(b.path("precious")).unwrap(), b"precious");
    let found = b.path("metrics/m.prom");
    assert!(fs::symlink_metadata(&found).unwrap().is_file());
    assert_eq!(fs::metadata(&found).unwrap().permissions().mode() & 0o777, 0o644);
    assert!(fs::read_to_string(&found).unwrap().contains("forebay_up"));
    assert!(fs::symlink_metadata(b.path("man/forebay.1")).unwrap().is_file());
    let left = fs::read_dir(b.path("metrics")).unwrap().count();
    assert_eq!(left, 4, "nothing stays beside it");
}

/// A file system that is full for a moment leaves no old figures, and the exporter goes on.
#[test]
fn figures_that_cannot_be_written_are_none_until_they_can_be() {
    let b = Bench::new();
    b.make_volume();
    let mut command = b.command(&["exporter", "pool", "--textfile", "m.prom", "--every", "1s"]);
    let mut exporter = Killed(command.stderr(Stdio::piped()).spawn().unwrap());
    let figures = b.path("m.prom");
    let limit = |bytes: &str| {
        let pid = exporter.0.id().to_string();
        let limit = format!("--fsize={bytes}:unlimited");
        let set = Command::new("prlimit").args([&limit, "--pid", &pid]).status().unwrap();
        assert!(set.success());
    };
    let begun = Instant::now();
    let wait = |there: bool| {
        while figures.exists() != there {
            assert!(begun.elapsed() < Duration::from_secs(60), "{there}");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    wait(true);
    limit("1");
    wait(false);
    limit("unlimited");
    wait(true);
    assert!(exporter.0.try_wait().unwrap().is_none(), "the exporter has ended");
    kill(&exporter.0);
    let mut said = String::new();
    exporter.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(said.matches("it is tried again").count(), 1, "{said}");
    assert_eq!(exporter.0.wait().unwrap().code(), Some(0));
}

fn kill(process: &Child) {
    let pid = process.id().to_string();
    assert!(Command::new("kill").arg(pid).status().unwrap().success());
}

/// Others use a device such as /dev/null, and a FIFO or a socket has a reader.
#[test]
fn what_is_no_file_is_not_replaced() {
    let b = Bench::new();
    b.make_volume();
    let fifo = b.path("m.prom");
    let made = std::process::Command::new("mkfifo").arg(&fifo).status().unwrap();
    assert!(made.success());
    let _listener = std::os::unix::net::UnixListener::bind(b.path("s.prom")).unwrap();
    for name in ["m.prom", "s.prom"] {
        let kind = fs::symlink_metadata(b.path(name)).unwrap().file_type();
        let out = b.run(&["exporter", "pool", "--textfile", name]);
        assert_eq!(out.code, Some(1), "{}{}", out.stdout, out.stderr);
        assert!(out.stderr.contains(name) && out.stderr.contains("no file"), "{}", out.stderr);
        assert_eq!(fs::symlink_metadata(b.path(name)).unwrap().file_type(), kind);
    }
    let left = fs::read_dir(b.directory()).unwrap().map(|e| e.unwrap().file_name());
    let left: Vec<_> = left.filter(|n| n.to_string_lossy().starts_with('.')).collect();
    assert!(left.is_empty(), "{left:?}");
}

/// Processes that read the pool again and again give way to the one that serves it.
#[test]
fn those_who_look_do_not_keep_a_server_from_starting() {
    let b = Bench::new();
    b.run_ok(&["create", "pool", "--size", "32M"]);
    b.write("origin", &[0; 1 << 20]);
    b.run_ok(&["volume", "add", "pool", "v", "origin"]);
    let looks: Vec<_> = (0..12)
        .map(|_| {
            let look = b.command(&["status", "pool"]);
            let mut command = Command::new("bash");
            command.args(["-c", "while :; do \"$0\" status pool; done"]).arg(look.get_program());
            command.current_dir(b.directory()).env("FOREBAY_RUNTIME_DIR", b.path("run"));
            command.stdout(Stdio::null()).stderr(Stdio::null());
            Killed(command.spawn().unwrap())
        })
        .collect();
    std::thread::sleep(Duration::from_millis(500));
    for _ in 0..3 {
        let mut served = Served::try_start(&b, &[]).expect("it waits for those who look");
        assert_eq!(served.stop(), Some(0));
    }
    drop(looks);
}

/// The mount may be of a server that cannot be asked at the moment, as one that is stopped.
#[test]
fn an_unmount_that_cannot_ask_a_server_does_not_say_that_there_is_none() {
    let b = Bench::new();
    for directory in ["run", "tree"] {
        fs::create_dir(b.path(directory)).unwrap();
    }
    let none = b.run(&["umount", "tree"]);
    assert_eq!(none.code, Some(3), "{none:?}");
    // To connect there is an error, as it is without a free descriptor.
    let socket = b.path("run/6ba7b810-9dad-11d1-80b4-00c04fd430c8.sock");
    symlink(&socket, &socket).unwrap();
    let unknown = b.run(&["umount", "tree"]);
    assert!(unknown.code != Some(0) && unknown.code != Some(3), "{unknown:?}");
    assert!(unknown.stderr.contains(".sock: its symbolic links lead in a circle"), "{unknown:?}");
}

/// The kernel gives no number of a process that another PID namespace has, as a container does.
#[test]
fn a_server_outside_of_the_pid_namespace_is_asked() {
    let b = Bench::new();
    b.make_volume();
    let mut served = Served::start(&b, &[]);
    let status = b.command(&["status", "pool", "--json"]);
    let mut apart = Command::new("env");
    apart.args(["unshare", "--pid", "--fork"]).arg(status.get_program()).args(status.get_args());
    apart.current_dir(b.directory()).env("FOREBAY_RUNTIME_DIR", b.path("run"));
    let out = apart.output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr);
    if said.starts_with("unshare:") {
        forebay_test::skipped!("a PID namespace needs root: {said}");
    } else {
        let status: serde_json::Value = serde_json::from_slice(&out.stdout).expect("a status");
        assert_eq!(out.status.code(), Some(0), "{said}");
        assert!(status["control_socket"].is_string(), "it is not the server's: {status}");
    }
    assert_eq!(served.stop(), Some(0));
}
