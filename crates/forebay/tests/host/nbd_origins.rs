// SPDX-License-Identifier: MIT OR Apache-2.0
//! Exports of NBD servers as origins: nbdkit's and QEMU's, which are killed, stand still,
//! shrink and fail.

use std::io::{Read, Write};
use std::ops::ControlFlow;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{kill_process, Pid, Signal};

use crate::common::*;
use forebay::*;

const MIB: u64 = 1 << 20;
/// Far longer than anything here takes, so that a test that fails ends.
const LIMIT: Duration = Duration::from_secs(60);
const SOON: Away = Away { when: WhenAway::Error, limit: Duration::from_millis(400) };
const LATE: Away = Away { when: WhenAway::Error, limit: LIMIT };
const NEVER: Away = Away { when: WhenAway::Wait, limit: LIMIT };

/// The directory of marks: not one of the system's.
fn state() -> Option<PathBuf> {
    Some(std::env::temp_dir().join(format!("fby-nbd-state-{}", std::process::id())))
}

/// A server and its socket; killed when it goes.
struct Server {
    child: Child,
    socket: PathBuf,
}

impl Server {
    fn start(dir: &Dir, program: &str, arguments: &[&str]) -> Server {
        let (socket, up) = (dir.path("socket"), dir.path("pid"));
        let _ = std::fs::remove_file(&socket);
        let _ = std::fs::remove_file(&up);
        let mut command = Command::new(program);
        match program {
            "nbdkit" => command.args(["-f", "--exit-with-parent", "-U"]).arg(&socket).arg("-P"),
            _ => command.arg("-t").arg("-k").arg(&socket).arg("--pid-file"),
        };
        command.arg(&up);
        let child = command.args(arguments).stdout(Stdio::null()).spawn();
        let child = child.unwrap_or_else(|e| panic!("{program}, see scripts/need: {e}"));
        // It listens then; the socket is there before it does.
        until(program, || up.exists());
        Server { child, socket }
    }

    /// Serves a file that has only flushed data if the server is killed.
    fn volatile(dir: &Dir, file: &Path) -> Server {
        Server::start(dir, "nbdkit", &["--filter=cache", "file", file.to_str().unwrap()])
    }

    /// Serves a file.
    fn of_file(dir: &Dir, file: &Path) -> Server {
        Server::start(dir, "nbdkit", &["file", file.to_str().unwrap()])
    }

    fn uri(&self) -> String {
        format!("nbd+unix:///?socket={}", self.socket.display())
    }

    fn open(&self, away: Away) -> Result<Box<dyn Origin>> {
        open_origin(self.uri().as_ref(), false, away)
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// All of its threads.
    fn stop(&self) {
        self.signal(Signal::STOP);
        let tasks = format!("/proc/{}/task", self.child.id());
        let stopped = |task: std::io::Result<std::fs::DirEntry>| {
            let stat = std::fs::read_to_string(task.unwrap().path().join("stat"));
            stat.is_ok_and(|s| s.rsplit_once(") ").is_some_and(|(_, s)| s.starts_with('T')))
        };
        let began = Instant::now();
        while !std::fs::read_dir(&tasks).unwrap().all(stopped) {
            assert!(began.elapsed() < LIMIT, "it goes on");
        }
    }

    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A pool with volume `v` on the server's export.
fn pool_before(server: &Server, dir: &Dir, chunks: u64) -> Pool {
    let pool = open(&dir.pool(chunks));
    let new = NewVolume { name: "v".into(), origin: server.uri().into(), ..Default::default() };
    pool.volume_add(&new).unwrap();
    pool
}

fn page(fill: u8) -> Vec<u8> {
    vec![fill; 4096]
}

fn read_page(origin: &dyn Origin, offset: u64) -> Vec<u8> {
    let mut got = vec![0xee; 4096];
    origin.read_at(&mut got, offset).unwrap();
    got
}

#[test]
fn what_is_written_is_on_the_export() {
    let dir = Dir::new("nbd");
    let file = dir.file("disk", 8 * MIB + 100);
    let raw = ["-f", "raw", "-e", "8", file.to_str().unwrap()];
    for server in ["nbdkit", "qemu-nbd"] {
        let server = match server {
            "nbdkit" => Server::of_file(&dir, &file),
            _ => Server::start(&dir, "qemu-nbd", &raw),
        };
        let origin = server.open(LATE).unwrap();
        assert_eq!((origin.size_bytes() / 4096, origin.logical_block()), (2048, 512));
        assert_eq!(origin.changed(), None);
        // Longer than a request may be.
        let data: Vec<u8> = (0..5 * MIB).map(|i| (i / 512 % 251) as u8).collect();
        origin.write_at(&data, MIB + 512).unwrap();
        origin.write_zeroes(2 * MIB, MIB).unwrap();
        origin.discard(7 * MIB, 4096).unwrap();
        origin.flush().unwrap();
        let mut want = vec![0; 8 * MIB as usize];
        want[MIB as usize + 512..][..data.len()].copy_from_slice(&data);
        want[2 * MIB as usize..3 * MIB as usize].fill(0);
        let mut got = vec![0xee; want.len() - MIB as usize];
        origin.read_at(&mut got, 0).unwrap();
        assert!(got == want[..got.len()], "{}", server.uri());
        assert!(std::fs::read(&file).unwrap()[..got.len()] == got, "{}", server.uri());
        assert!(origin.read_at(&mut got, 2 * MIB).is_err(), "beyond the end");
        let (id, place) =
            origin.identity().split_once('|').map(|(i, p)| (i.len(), p.to_owned())).unwrap();
        assert_eq!((id, place), (20, server.uri()));
    }
}

/// A volume's server is killed and restarted while the volume is drained, and loses unflushed
/// data: all acknowledged data reaches the export.
#[test]
fn a_server_that_dies_loses_nothing() {
    let dir = Dir::new("nbd-dies");
    let file = dir.file("disk", 16 * MIB);
    let mut server = Server::volatile(&dir, &file);
    let pool = pool_before(&server, &dir, 200);
    let options = AttachOptions {
        away: NEVER,
        state: state(),
        round_pages: defaults::ROUND_PAGES_MIN,
        ..Default::default()
    };
    let volume = pool.attach("v", &options).unwrap();
    let mut rng = Rng::new(1);
    let mut want = vec![0u8; 16 * MIB as usize];
    for round in 0..6 {
        for n in 0..300u64 {
            let at = rng.below(4096) as usize * 4096;
            want[at..at + 4096].fill((round * 40 + n % 40) as u8 + 1);
            volume.write_at(&want[at..at + 4096], at as u64).unwrap();
        }
        std::thread::scope(|s| {
            // It may be told of the flush that failed.
            s.spawn(|| volume.drain(&mut |_| ControlFlow::Continue(())).is_ok());
            std::thread::sleep(Duration::from_millis(rng.below(30)));
            server.kill();
            // Not at once: requests are to wait for it.
            std::thread::sleep(Duration::from_millis(60));
            server = Server::volatile(&dir, &file);
        });
    }
    let began = Instant::now();
    // A client is told first of what may be lost since before it was attached.
    let settled = || volume.flush().and_then(|()| volume.drain(&mut |_| ControlFlow::Continue(())));
    while let Err(e) = settled() {
        assert!(began.elapsed() < LIMIT, "{e}");
    }
    assert_sound(&pool);
    assert!(std::fs::read(&file).unwrap() == want);
    volume.detach().unwrap();
    pool.close().unwrap();
}

/// Writes that a server took and that no flush covers may be gone with it.
#[test]
fn the_flush_after_a_server_died_fails_once() {
    let dir = Dir::new("nbd-flush");
    let file = dir.file("disk", MIB);
    let mut server = Server::of_file(&dir, &file);
    let origin = server.open(LATE).unwrap();
    let flush = |what: &str| match origin.flush() {
        Ok(()) => true,
        Err(e) => {
            assert!(e.to_string().contains("connection ended before"), "{what}: {e}");
            false
        }
    };
    origin.write_at(&page(1), 0).unwrap();
    assert!(flush("with nothing wrong"));
    server.kill();
    server = Server::of_file(&dir, &file);
    assert_eq!(read_page(origin.as_ref(), 0), page(1));
    assert!(flush("all was flushed before it died"));
    for n in 0..8 {
        origin.write_at(&page(2 + n), u64::from(n) * 4096).unwrap();
    }
    server.kill();
    server = Server::of_file(&dir, &file);
    assert_eq!(read_page(origin.as_ref(), 0), page(2));
    assert!(!flush("and now not"));
    assert!(flush("told once"));
    drop(server);
}

/// It stands still: requests fail after a while, and when it goes on, what was given up
/// does not come after what was written since.
#[test]
fn a_server_that_stands_still_holds_nobody_for_ever() {
    let dir = Dir::new("nbd-stopped");
    let file = dir.file("disk", MIB);
    let server = Server::of_file(&dir, &file);
    let origin = server.open(SOON).unwrap();
    origin.write_at(&page(1), 0).unwrap();
    server.stop();
    for what in ["a write", "a write of the same place", "a read", "a flush"] {
        let began = Instant::now();
        let result = match what {
            "a read" => origin.read_at(&mut page(0), 8192),
            "a flush" => origin.flush(),
            _ => origin.write_at(&page(2), 0),
        };
        let e = result.unwrap_err().to_string();
        assert!(e.contains("away for") && e.contains("does not answer"), "{what}: {e}");
        assert!(began.elapsed() < LIMIT / 2, "{what}");
    }
    std::thread::scope(|s| {
        let waits = s.spawn(|| loop {
            if origin.write_at(&page(3), 0).is_ok() {
                return;
            }
        });
        std::thread::sleep(Duration::from_millis(50));
        server.signal(Signal::CONT);
        waits.join().unwrap();
    });
    assert_eq!(read_page(origin.as_ref(), 0), page(3));
    origin.flush().unwrap();
    assert_eq!(origin.away(), None);
    drop(origin);
    assert_eq!(std::fs::read(&file).unwrap()[..4096], page(3));
}

/// It has its connections, so only what waits tells of it.
#[test]
fn a_server_that_stands_still_is_told_of_by_status() {
    let dir = Dir::new("nbd-still");
    let file = dir.file("disk", MIB);
    let server = Server::of_file(&dir, &file);
    let origin = server.open(LATE).unwrap();
    server.stop();
    std::thread::scope(|s| {
        let waits = s.spawn(|| origin.write_at(&page(3), 0));
        until("it is told", || origin.away().is_some());
        let told = origin.away().unwrap();
        assert!(told.contains(" s, it does not answer; 1 requests fail after 60 s"), "{told}");
        server.signal(Signal::CONT);
        waits.join().unwrap().unwrap();
    });
    assert_eq!(origin.away(), None);
}

/// A sent request has ten seconds to end, and not another ten from the detach on.
#[test]
fn a_drain_says_what_it_waits_for_and_the_detach_behind_it_waits_no_longer() {
    let dir = Dir::new("nbd-drain");
    let file = dir.file("disk", MIB);
    let server = Server::of_file(&dir, &file);
    let pool = pool_before(&server, &dir, 30);
    let options = AttachOptions { away: LATE, state: state(), ..Default::default() };
    let volume = pool.attach("v", &options).unwrap();
    volume.write_at(&page(7), 4096).unwrap();
    server.stop();
    let (deadline, mut told) = (Instant::now() + Duration::from_secs(11), None);
    let drained = volume.drain(&mut |p| {
        told = p.origin_away.clone().or(told.take());
        match Instant::now() < deadline {
            true => ControlFlow::Continue(()),
            false => ControlFlow::Break(()),
        }
    });
    assert!(matches!(drained, Err(Error::Interrupted { .. })), "{drained:?}");
    let told = told.expect("the drain does not say what it waits for");
    assert!(told.contains("it does not answer; 1 requests fail after 60 s"), "{told}");
    let began = Instant::now();
    volume.detach().unwrap();
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    pool.close().unwrap();
}

/// A volume whose server is away can be detached, and keeps its data.
#[test]
fn giving_up_ends_what_waits() {
    let dir = Dir::new("nbd-gone");
    let file = dir.file("disk", MIB);
    let mut server = Server::of_file(&dir, &file);
    let pool = pool_before(&server, &dir, 30);
    let attach = || {
        pool.attach("v", &AttachOptions { away: NEVER, state: state(), ..Default::default() })
            .unwrap()
    };
    let volume = attach();
    volume.write_at(&page(7), 4096).unwrap();
    server.kill();
    let deadline = Instant::now() + Duration::from_millis(500);
    let drained = volume.drain(&mut |_| match Instant::now() < deadline {
        true => ControlFlow::Continue(()),
        false => ControlFlow::Break(()),
    });
    assert!(drained.is_err() || pool.volume_info("v").unwrap().cached_bytes > 0);
    let v = pool.volume_info("v").unwrap();
    let (away, origin) = (v.origin_away.unwrap(), v.origin.unwrap());
    assert!(away.contains("requests wait for it") && origin.method.contains("0 of"), "{away}");
    volume.detach().unwrap();
    server = Server::of_file(&dir, &file);
    let volume = attach();
    drain(&volume);
    volume.detach().unwrap();
    pool.close().unwrap();
    assert_eq!(std::fs::read(&file).unwrap()[4096..8192], page(7));
    drop(server);
}

#[test]
fn an_export_that_shrank_is_not_written_to() {
    let dir = Dir::new("nbd-shrank");
    let (file, small) = (dir.file("disk", MIB), dir.file("small", MIB / 2));
    let mut server = Server::of_file(&dir, &file);
    let origin = server.open(SOON).unwrap();
    origin.write_at(&page(1), 0).unwrap();
    server.kill();
    server = Server::of_file(&dir, &small);
    let e = origin.write_at(&page(2), 0).unwrap_err().to_string();
    assert!(e.contains("it has 524288 bytes now, of 1048576"), "{e}");
    let changed = origin.changed().unwrap();
    assert!(changed.contains("has 524288 bytes, and had 1048576"), "{changed}");
    assert!(std::fs::read(&small).unwrap().iter().all(|b| *b == 0));
    server.kill();
    server = Server::of_file(&dir, &file);
    let began = Instant::now();
    while origin.write_at(&page(2), 0).is_err() {
        assert!(began.elapsed() < LIMIT);
    }
    assert_eq!(origin.changed(), None);
    drop(server);
}

/// A server of shell commands whose answers are files of the directory.
fn scripted(dir: &Dir, more: &[&str]) -> Server {
    let file = dir.path("disk").display().to_string();
    let ask = |what: &str| {
        let no = dir.path(what).display().to_string();
        format!("if [ -e {no} ]; then echo EIO {what} fails >&2; exit 1; fi")
    };
    let pread = format!(
        "pread={}; dd if={file} iflag=skip_bytes,count_bytes skip=$4 count=$3 status=none",
        ask("reads")
    );
    let pwrite = format!(
        "pwrite={}; dd of={file} oflag=seek_bytes conv=notrunc seek=$4 status=none",
        ask("writes")
    );
    let flush = format!("flush={}; exit 0", ask("flushes"));
    let mut arguments = vec!["eval", "get_size=echo 1048576", "can_write=exit 0", &pread, &pwrite];
    if !more.contains(&"can_flush=exit 3") {
        arguments.extend(["can_flush=exit 0", &flush]);
    }
    arguments.extend(more);
    Server::start(dir, "nbdkit", &arguments)
}

#[test]
fn errors_of_the_server_are_passed_on() {
    let dir = Dir::new("nbd-errors");
    dir.file("disk", MIB);
    let server = scripted(&dir, &[]);
    let origin = server.open(LATE).unwrap();
    origin.write_at(&page(1), 0).unwrap();
    // It can neither zero nor trim: the one is done by writing, the other not at all.
    origin.write_zeroes(0, 512).unwrap();
    origin.discard(0, 4096).unwrap();
    assert_eq!(read_page(origin.as_ref(), 0)[510..514], [0, 0, 1, 1]);
    for what in ["reads", "writes", "flushes"] {
        let no = dir.file(what, 0);
        let result = match what {
            "reads" => origin.read_at(&mut page(0), 0),
            "writes" => origin.write_at(&page(2), 0),
            _ => origin.flush(),
        };
        assert_eq!(result.unwrap_err().raw_os_error(), Some(5), "{what}");
        std::fs::remove_file(no).unwrap();
        assert_eq!(read_page(origin.as_ref(), 0)[510..514], [0, 0, 1, 1], "{what}");
        origin.flush().unwrap();
    }
}

#[test]
fn what_cannot_be_an_origin_is_refused_by_name() {
    let dir = Dir::new("nbd-refused");
    let refused = |result: Result<Box<dyn Origin>>, why: &[&str]| {
        let e = result.map(|_| ()).unwrap_err().to_string();
        assert!(e.starts_with("nbd") && why.iter().all(|w| e.contains(w)), "{why:?}: {e}");
    };
    let socket = dir.path("nobody").display().to_string();
    let uri = format!("nbd+unix:///?socket={socket}");
    refused(open_origin(uri.as_ref(), false, LATE), &["not to be reached", "No such file"]);
    // As an origin that fails, not as a wrong option.
    assert_eq!(open_origin(uri.as_ref(), false, LATE).unwrap_err().exit_code(), 7);
    // It listens and never answers.
    let _listener = UnixListener::bind(&socket).unwrap();
    let began = Instant::now();
    refused(open_origin(uri.as_ref(), false, SOON), &["no answer in 400ms"]);
    assert!(began.elapsed() < LIMIT / 2);
    refused(
        open_origin("nbd://localhost:1/x".as_ref(), false, LATE),
        &["not to be reached", "refused"],
    );

    dir.file("disk", MIB);
    for (more, why) in [
        (&["can_flush=exit 3"][..], "without flushes"),
        (
            &["--filter=blocksize-policy", "blocksize-minimum=8192", "blocksize-preferred=8192"],
            "blocks of 8192",
        ),
        (&["-r"], "read-only"),
    ] {
        let server = scripted(&dir, more);
        refused(server.open(LATE), &[why]);
        if why == "read-only" {
            let origin = open_origin(server.uri().as_ref(), true, LATE).unwrap();
            assert_eq!(read_page(origin.as_ref(), 0), page(0));
        }
    }
    let server = scripted(&dir, &["--filter=blocksize-policy", "blocksize-minimum=4096"]);
    assert_eq!(server.open(LATE).unwrap().logical_block(), 4096);
    let file = dir.file("disk", MIB);
    let server = Server::of_file(&dir, &file);
    let wrong = server.uri().replace("///", "///other%20name");
    let origin = open_origin(wrong.as_ref(), false, LATE).unwrap();
    assert!(origin.identity().ends_with(&wrong), "nbdkit serves one export by any name");
}

/// As [`scripted`], with requests at the same time; `slow` before a write or flush takes
/// as long as the file of that name is there.
fn slow_server(dir: &Dir, more: &[&str]) -> Server {
    let path = |name: &str| dir.path(name).display().to_string();
    let file = path("disk");
    let pwrite = format!(
        "pwrite=if [ -e {once} ] && rm {once} 2>/dev/null; then cat >{kept}; touch {came}; while [ -e {slow} ]; do sleep 0.02; done; dd if={kept} of={file} oflag=seek_bytes conv=notrunc seek=$4 status=none; touch {ended}; else dd of={file} oflag=seek_bytes conv=notrunc seek=$4 status=none; fi",
        once = path("once-write"), kept = path("kept"), came = path("came"), slow = path("slow"), ended = path("ended")
    );
    let flush = format!(
        "flush=if [ -e {once} ] && rm {once} 2>/dev/null; then touch {came}; while [ -e {slow} ]; do sleep 0.02; done; touch {ended}; echo EIO lost >&2; exit 1; fi; exit 0",
        once = path("once-flush"), came = path("came"), slow = path("slow"), ended = path("ended")
    );
    let pread =
        format!("pread=dd if={file} iflag=skip_bytes,count_bytes skip=$4 count=$3 status=none");
    let mut arguments = vec![
        "eval",
        "thread_model=echo parallel",
        "get_size=echo 1048576",
        "can_write=exit 0",
        "can_flush=exit 0",
        &pwrite,
        &flush,
        &pread,
    ];
    arguments.extend(more);
    Server::start(dir, "nbdkit", &arguments)
}

/// A server of shell scripts takes a while by itself.
const SHELL: Away = Away { when: WhenAway::Error, limit: Duration::from_secs(3) };

/// An abandoned flush fails later: data written meanwhile may be lost, and a flush reports it.
#[test]
fn a_flush_that_fails_after_it_was_given_up_is_told() {
    let dir = Dir::new("nbd-late-flush");
    dir.file("disk", MIB);
    let server = slow_server(&dir, &[]);
    let origin = server.open(SHELL).unwrap();
    origin.write_at(&page(1), 0).unwrap();
    let slow = dir.file("slow", 0);
    dir.file("once-flush", 0);
    assert!(origin.flush().unwrap_err().to_string().contains("away for"));
    // Taken by the server before that flush has ended.
    origin.write_at(&page(2), 4096).unwrap();
    assert!(origin.flush().is_err(), "one that began before may yet tell of a loss");
    std::fs::remove_file(slow).unwrap();
    until("it ends", || dir.path("ended").exists());
    std::thread::sleep(Duration::from_millis(100));
    assert!(origin.flush().is_err(), "the failure is told");
    origin.flush().unwrap();
}

/// A request in flight when the origin was released does not overwrite the data of its next
/// user, which waits for it no longer than it takes.
#[test]
fn what_is_let_go_of_does_not_come_later() {
    let dir = Dir::new("nbd-late-write");
    let file = dir.file("disk", MIB);
    let server = slow_server(&dir, &[]);
    let slow = dir.file("slow", 0);
    dir.file("once-write", 0);
    let origin = server.open(SHELL).unwrap();
    assert!(origin.write_at(&page(1), 0).unwrap_err().to_string().contains("away for"));
    assert!(dir.path("came").exists());
    std::thread::scope(|s| {
        s.spawn(|| {
            std::thread::sleep(Duration::from_millis(100));
            std::fs::remove_file(&slow).unwrap();
        });
        let began = Instant::now();
        drop(origin);
        assert!(
            began.elapsed() < Duration::from_secs(6),
            "{:?}, and it has ended",
            began.elapsed()
        );
        let origin = server.open(SHELL).unwrap();
        origin.write_at(&page(2), 0).unwrap();
        origin.flush().unwrap();
    });
    until("it ends", || dir.path("ended").exists());
    assert!(std::fs::read(&file).unwrap()[..4096] == page(2), "the older write came later");
}

/// That of a server of 1 MiB which can do what the flags say, before all clients spoke.
fn old_handshake(flags: u32) -> Vec<u8> {
    handshake_of(MIB, flags)
}

fn handshake_of(size: u64, flags: u32) -> Vec<u8> {
    let mut hello = b"NBDMAGIC\x00\x00\x42\x02\x81\x86\x12\x53".to_vec();
    hello.extend(size.to_be_bytes());
    hello.extend(flags.to_be_bytes());
    hello.extend([0; 124]);
    hello
}

/// A server that ends may still do what it has taken: that is waited for.
#[test]
fn what_a_server_that_ends_has_taken_is_waited_for() {
    let dir = Dir::new("nbd-ends");
    let socket = dir.path("socket");
    let listener = UnixListener::bind(&socket).unwrap();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(&old_handshake(1 | 4)).unwrap();
        let taken = |stream: &mut UnixStream| {
            let mut write = vec![0; 28 + 4096];
            stream.read_exact(&mut write).unwrap();
            write[8..16].to_vec()
        };
        let answer = |error: u32, cookie: &[u8]| {
            [&0x6744_6698u32.to_be_bytes(), &error.to_be_bytes(), cookie].concat()
        };
        let (first, second) = (taken(&mut stream), taken(&mut stream));
        stream.write_all(&answer(108, &second)).unwrap();
        stream.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        let waits = stream.read(&mut [0; 28]).is_err();
        let _ = stream.write_all(&answer(0, &first));
        waits
    });
    let uri = format!("nbd+unix:///?socket={}", socket.display());
    let origin = open_origin(uri.as_ref(), false, SOON).unwrap();
    let ok = std::thread::scope(|s| {
        let writes = [0, 8192].map(|at| {
            let origin = &origin;
            s.spawn(move || origin.write_at(&page(1), at).is_ok())
        });
        writes.map(|w| w.join().unwrap())
    });
    assert!(server.join().unwrap(), "the connection was closed");
    assert!(ok[0] != ok[1], "one was done, and one has nobody who does it");
}

/// Connections that were made in so long, to a server that ends each at its first request,
/// and says by the number of the connection how large it is.
fn connections_in(dir: &Dir, time: Duration, size: fn(u32) -> u64) -> u32 {
    let socket = dir.path("socket");
    let listener = UnixListener::bind(&socket).unwrap();
    let taken = Arc::new(AtomicU32::new(0));
    let count = taken.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let number = count.fetch_add(1, Ordering::Relaxed);
            std::thread::spawn(move || {
                let mut stream = stream.unwrap();
                let _ = stream.write_all(&handshake_of(size(number), 1 | 4 | 256));
                let _ = stream.read(&mut [0; 28]);
            });
        }
    });
    let uri = format!("nbd+unix:///?socket={}", socket.display());
    let origin = open_origin(uri.as_ref(), false, Away { limit: time, ..SOON }).unwrap();
    assert!(origin.write_at(&page(1), 0).is_err());
    taken.load(Ordering::Relaxed)
}

/// A server that takes connections and ends each at its first request is not tried
/// again without a pause.
#[test]
fn a_server_that_hangs_up_is_not_asked_without_a_pause() {
    // Four links, with at least 50 ms between attempts, in 400 ms.
    let taken = connections_in(&Dir::new("nbd-hangs-up"), SOON.limit, |_| MIB);
    assert!(taken < 50, "{taken} connections");
}

/// A server whose export has changed is not asked at an undiminished rate either.
#[test]
fn a_server_that_has_shrunk_is_asked_less_and_less_often() {
    let size = |number| if number == 0 { MIB } else { MIB / 2 };
    let taken = connections_in(&Dir::new("nbd-shrunk-pause"), Duration::from_secs(2), size);
    // Four links, with pauses of 50, 100, 200, 400, 800 ms.
    assert!(taken < 40, "{taken} connections");
}

/// One connection of four takes requests and answers none: it gets as many as one may have
/// in flight, and the others do the rest.
#[test]
fn a_connection_that_stands_still_does_not_hold_the_others_up() {
    let dir = Dir::new("nbd-one-still");
    let socket = dir.path("socket");
    let listener = UnixListener::bind(&socket).unwrap();
    let still = Arc::new(AtomicU32::new(u32::MAX));
    let server = std::thread::spawn(move || {
        for number in 0..4 {
            let (mut stream, still) = (listener.accept().unwrap().0, still.clone());
            stream.write_all(&old_handshake(1 | 4 | 256)).unwrap();
            std::thread::spawn(move || {
                let mut read = [0; 28];
                while stream.read_exact(&mut read).is_ok() {
                    let first = still.compare_exchange(
                        u32::MAX,
                        number,
                        Ordering::Relaxed,
                        Ordering::Relaxed,
                    );
                    if first.is_ok() || first == Err(number) {
                        continue;
                    }
                    let answer = [&[0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0], &read[8..16]].concat();
                    let _ = stream.write_all(&answer);
                    let _ = stream.write_all(&page(7));
                }
            });
        }
    });
    let uri = format!("nbd+unix:///?socket={}", socket.display());
    let origin = open_origin(uri.as_ref(), false, LATE).unwrap();
    server.join().unwrap();
    until("all are up", || origin.info().method.contains("4 of 4"));
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::scope(|s| {
        let read = |number: u64| {
            let (tell, origin) = (tell.clone(), &origin);
            s.spawn(move || tell.send(origin.read_at(&mut page(0), number * 4096)));
        };
        let mut answered = 0;
        // Each is answered or waits before the next is sent, so that none is sent along.
        for number in 0..65 {
            read(number);
            answered += told.recv_timeout(Duration::from_millis(20)).iter().count();
        }
        while answered < 65 - 16 && told.recv_timeout(LIMIT / 4).is_ok() {
            answered += 1;
        }
        origin.give_up();
        assert_eq!(answered, 65 - 16);
    });
}

/// A server that has to stop is not held by requests that wait for an origin.
#[test]
fn aborting_ends_what_waits_for_an_origin() {
    let dir = Dir::new("nbd-abort");
    let file = dir.file("disk", MIB);
    let mut server = Server::of_file(&dir, &file);
    let pool = pool_before(&server, &dir, 30);
    let volume = pool
        .attach("v", &AttachOptions { away: NEVER, state: state(), ..Default::default() })
        .unwrap();
    server.kill();
    let (tell, told) = std::sync::mpsc::channel();
    let reader = volume.clone();
    std::thread::spawn(move || tell.send(reader.read_at(&mut page(0), 0).is_err()));
    std::thread::sleep(Duration::from_millis(200));
    pool.abort_waits();
    assert_eq!(told.recv_timeout(Duration::from_secs(5)), Ok(true));
}
