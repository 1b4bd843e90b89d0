// SPDX-License-Identifier: MIT OR Apache-2.0
//! Goal: only the process that serves a pool answers for it; whatever clients send, or do not
//! send, delays nobody.  Method: clients in this process, some of them rude.

use std::io::{BufRead, BufReader, Read, Write};
use std::ops::ControlFlow;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::*;
use forebay::*;
use forebay_server::control::Client;
use forebay_server::Server;

#[path = "../../forebay/tests/host/common.rs"]
#[allow(dead_code)]
mod common;

fn serve(dir: &Dir) -> Server {
    Server::new(open(&dir.path("pool")), &dir.path("run"), Vec::new())
}

#[test]
fn status_set_and_drain_from_outside() {
    let dir = Dir::new("control");
    let (path, run) = (dir.pool(16), dir.path("run"));
    assert!(Client::for_pool(&run, &path).unwrap().is_none(), "nobody is there yet");
    let server = serve(&dir);
    let pool = server.pool();
    let origin = MemOrigin::new(1 << 20).unwrap();
    let volume = attach(pool, "v", &origin);
    volume.write_at(&[1; 8 * 4096], 0).unwrap();

    let mut client = Client::for_pool(&run, &path).unwrap().unwrap();
    let status = client.status().unwrap();
    assert_eq!(status.pool.pid, std::process::id());
    assert_eq!(status.pool.volumes[0].pages, 8);
    assert_eq!(status.pool.uuid, pool.uuid());
    let socket = std::fs::metadata(status.control_socket.unwrap()).unwrap();
    assert_eq!(socket.permissions().mode() & 0o777, 0o600);
    assert_eq!(std::fs::metadata(&run).unwrap().permissions().mode() & 0o777, 0o700);

    let change = OptionsChange { verify: Some(Verify::First), ..Default::default() };
    assert_eq!(client.set(&change).unwrap().verify, Verify::First);
    assert_eq!(pool.options().verify, Verify::First);
    let bad = OptionsChange { high_watermark_percent: Some(101), ..Default::default() };
    let e = client.set(&bad).unwrap_err();
    assert_eq!(e.exit_code(), 2, "{e}");

    let again = || Client::connect(&run, pool.uuid()).unwrap().unwrap();
    let e = again().drain(Some("nope"), &mut |_, _| ControlFlow::Continue(())).unwrap_err();
    assert_eq!(e.exit_code(), 3, "{e}");
    let mut left = Vec::new();
    again()
        .drain(None, &mut |name, p| {
            assert_eq!(name, "v");
            left.push(p.pages_left);
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(left.last(), Some(&0));
    assert_eq!(origin.content()[..8 * 4096], [1; 8 * 4096]);

    // A client that stays connected does not keep the pool open.
    drop(volume);
    let uuid = pool.uuid();
    server.close().unwrap();
    assert!(client.status().is_err());
    assert!(Client::connect(&run, uuid).unwrap().is_none());
    open(&path);
}

#[test]
fn garbage_is_answered_and_a_stale_socket_replaced() {
    let dir = Dir::new("garbage");
    dir.pool(8);
    let uuid = {
        let server = serve(&dir);
        let socket = server.status().control_socket.unwrap();
        let mut stream = UnixStream::connect(socket).unwrap();
        stream.write_all(b"{\"op\":\"format\"}\nnonsense\n").unwrap();
        let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
        for _ in 0..2 {
            let line = lines.next().unwrap().unwrap();
            assert!(line.contains("\"exit_code\":2"), "{line}");
        }
        server.pool().uuid()
    };
    let stale = dir.path("run").join(format!("{uuid}.sock"));
    drop(std::os::unix::net::UnixListener::bind(&stale).unwrap());
    let server = serve(&dir);
    let mut client = Client::connect(&dir.path("run"), uuid).unwrap().unwrap();
    assert_eq!(client.status().unwrap().pool.uuid, server.pool().uuid());
}

/// A disk that hangs is not to be read by who asks about it: here it holds no pool any more.
#[test]
fn a_server_is_found_without_a_read_of_its_pool() {
    const MAGIC: [u8; 8] = 0x3159_4142_4552_4f46u64.to_le_bytes();
    let dir = Dir::new("unread");
    let (path, run) = (dir.pool(8), dir.path("run"));
    let server = serve(&dir);
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    let content = std::fs::read(&path).unwrap();
    let places: Vec<_> =
        (0..content.len()).step_by(64).filter(|at| content[*at..].starts_with(&MAGIC)).collect();
    assert!(places.len() >= 2, "a superblock and its copy: {places:?}");
    let write = |bytes: &[u8; 8]| {
        places.iter().for_each(|at| file.write_all_at(bytes, *at as u64).unwrap())
    };
    write(&[0; 8]);
    assert!(inspect(&path).unwrap().superblock.is_none());
    let status = Client::for_pool(&run, &path).unwrap().expect("it is served").status().unwrap();
    assert_eq!(status.pool.uuid, server.pool().uuid());
    write(&MAGIC);
    let link = control_link(&run, &media_id(&path).unwrap());
    assert!(link.is_symlink());
    server.close().unwrap();
    assert!(!link.is_symlink(), "it stays");

    // One that a killed server left leads nowhere, or to another pool's server.
    std::os::unix::fs::symlink("nowhere.sock", &link).unwrap();
    assert!(Client::for_pool(&run, &path).unwrap().is_none());
    let other = Dir::new("unread-other");
    other.pool(8);
    let others = Server::new(open(&other.path("pool")), &run, Vec::new());
    let socket = std::path::PathBuf::from(others.status().control_socket.unwrap());
    std::fs::remove_file(&link).unwrap();
    std::os::unix::fs::symlink(socket.file_name().unwrap(), &link).unwrap();
    assert!(Client::for_pool(&run, &path).unwrap().is_none());
    let server = serve(&dir);
    let status = Client::for_pool(&run, &path).unwrap().unwrap().status().unwrap();
    assert_eq!(status.pool.uuid, server.pool().uuid());
}

/// A pool whose socket cannot be made works, and says why.
#[test]
fn no_socket_is_a_note() {
    let dir = Dir::new("nosocket");
    dir.pool(8);
    std::fs::write(dir.path("run"), "a file").unwrap();
    let status = serve(&dir).status();
    assert_eq!(status.control_socket, None);
    assert!(status.control_note.unwrap().contains("run"));
}

/// Connections that ask nothing are dropped after a while, and nobody's request is.
#[test]
fn idle_connections_keep_nobody_out() {
    let dir = Dir::new("idle");
    dir.pool(16);
    let server = serve(&dir);
    let socket = server.status().control_socket.unwrap();
    // More than are served at once, less than may wait.
    let mut idle: Vec<_> = (0..100).map(|_| UnixStream::connect(&socket).unwrap()).collect();
    // One that never ends its line is idle too.
    idle[0].write_all(b"{\"op\":").unwrap();
    let mut client = Client::connect(&dir.path("run"), server.pool().uuid()).unwrap().unwrap();
    assert_eq!(client.status().unwrap().pool.uuid, server.pool().uuid());
}

/// A line without end is not stored.
#[test]
fn a_line_without_an_end_is_refused() {
    let dir = Dir::new("endless");
    dir.pool(8);
    let server = serve(&dir);
    let mut stream = UnixStream::connect(server.status().control_socket.unwrap()).unwrap();
    let taken = (0..64).position(|_| stream.write_all(&[b'x'; 1 << 20]).is_err());
    assert!(taken.is_some(), "64 MiB were taken");
}

/// A client that never stops sending does not keep the pool open.
#[test]
fn closing_waits_for_no_line() {
    let dir = Dir::new("trickle");
    dir.pool(8);
    let server = serve(&dir);
    let mut stream = UnixStream::connect(server.status().control_socket.unwrap()).unwrap();
    let closed = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let trickle = scope.spawn(|| {
            // Longer than any closing takes, and more often than the server looks.
            let started = Instant::now();
            while !closed.load(Ordering::Acquire) {
                if started.elapsed() > Duration::from_secs(30) {
                    return false;
                }
                let _ = stream.write_all(b"x");
                std::thread::sleep(Duration::from_millis(5));
            }
            true
        });
        std::thread::sleep(Duration::from_millis(50));
        server.close().unwrap();
        closed.store(true, Ordering::Release);
        assert!(trickle.join().unwrap(), "it was not closed before the client ended");
    });
}

/// An answer may have a mebibyte; a longer one is an answer that is too long, and no
/// end of the connection.
#[test]
fn an_answer_that_is_too_long_is_told() {
    let dir = Dir::new("answer");
    let run = dir.path("run");
    std::fs::create_dir(&run).unwrap();
    let uuid = Uuid::random().unwrap();
    let listener = UnixListener::bind(run.join(format!("{uuid}.sock"))).unwrap();
    for (length, told) in [(1 << 10, "closed"), ((64 << 20) - 1, "closed"), (64 << 20, "too long")]
    {
        let e = std::thread::scope(|scope| {
            scope.spawn(|| {
                let (mut stream, _) = listener.accept().unwrap();
                let mut byte = [0];
                while byte != *b"\n" {
                    stream.read_exact(&mut byte).unwrap();
                }
                // A client that has read enough may hang up.
                let _ = stream.write_all(&vec![b' '; length]);
            });
            let mut client = Client::connect(&run, uuid).unwrap().unwrap();
            client.status().unwrap_err().to_string()
        });
        assert!(e.contains(told), "{length}: {e}");
    }
}

/// A client that hangs up has closed the connection, and a silent one does not answer.
#[test]
fn a_connection_that_ends_is_no_silence() {
    let dir = Dir::new("silence");
    let (path, run) = (dir.pool(8), dir.path("run"));
    let uuid = inspect(&path).unwrap().superblock.unwrap().uuid;
    std::fs::create_dir(&run).unwrap();
    let listener = UnixListener::bind(run.join(format!("{uuid}.sock"))).unwrap();
    for (hangs_up, told) in [(true, "closed"), (false, "no answer")] {
        let e = std::thread::scope(|scope| {
            let server = scope.spawn(|| {
                let (mut stream, _) = listener.accept().unwrap();
                if hangs_up {
                    // Only one byte of the answer is read: the rest resets the connection.
                    stream.read_exact(&mut [0]).unwrap();
                    return None;
                }
                Some(stream)
            });
            let patience = std::time::Duration::from_millis(if hangs_up { 60_000 } else { 50 });
            let got = Client::for_pool_within(&run, &path, patience);
            let _kept = server.join().unwrap();
            got.map(drop).unwrap_err().to_string()
        });
        assert!(e.contains(told), "{e}");
    }
}
