// SPDX-License-Identifier: MIT OR Apache-2.0
//! Asking the process that has the pool open.

use std::io::{BufRead, BufReader, Write};
use std::ops::ControlFlow;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::*;
use forebay::control::Client;
use forebay::*;

fn serve(dir: &Dir) -> Pool {
    let options = PoolOptions { control: Some(dir.path("run")), ..Default::default() };
    Pool::open(&dir.path("pool"), &options).unwrap()
}

#[test]
fn status_set_and_drain_from_outside() {
    let dir = Dir::new("control");
    let (path, run) = (dir.pool(16), dir.path("run"));
    assert!(Client::for_pool(&run, &path).unwrap().is_none(), "nobody is there yet");
    let pool = serve(&dir);
    let origin = MemOrigin::new(1 << 20).unwrap();
    let volume = attach(&pool, "v", &origin);
    volume.write_at(&[1; 8 * 4096], 0).unwrap();

    let mut client = Client::for_pool(&run, &path).unwrap().unwrap();
    let status = client.status().unwrap();
    assert_eq!(status.pid, std::process::id());
    assert_eq!(status.volumes[0].pages, 8);
    assert_eq!(status.uuid, pool.uuid());
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
    pool.close().unwrap();
    assert!(client.status().is_err());
    assert!(Client::connect(&run, uuid).unwrap().is_none());
    open(&path);
}

#[test]
fn garbage_is_answered_and_a_stale_socket_replaced() {
    let dir = Dir::new("garbage");
    dir.pool(8);
    let uuid = {
        let pool = serve(&dir);
        let socket = pool.status().control_socket.unwrap();
        let mut stream = UnixStream::connect(socket).unwrap();
        stream.write_all(b"{\"op\":\"format\"}\nnonsense\n").unwrap();
        let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
        for _ in 0..2 {
            let line = lines.next().unwrap().unwrap();
            assert!(line.contains("\"exit_code\":2"), "{line}");
        }
        pool.uuid()
    };
    let stale = dir.path("run").join(format!("{uuid}.sock"));
    drop(std::os::unix::net::UnixListener::bind(&stale).unwrap());
    let pool = serve(&dir);
    let mut client = Client::connect(&dir.path("run"), uuid).unwrap().unwrap();
    assert_eq!(client.status().unwrap().uuid, pool.uuid());
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
    let pool = serve(&dir);
    let socket = pool.status().control_socket.unwrap();
    // More than are served at once, less than may wait.
    let mut idle: Vec<_> = (0..100).map(|_| UnixStream::connect(&socket).unwrap()).collect();
    // One that never ends its line is idle too.
    idle[0].write_all(b"{\"op\":").unwrap();
    let mut client = Client::connect(&dir.path("run"), pool.uuid()).unwrap().unwrap();
    assert_eq!(client.status().unwrap().uuid, pool.uuid());
}

/// What a client sends without ever ending its line is not kept.
#[test]
fn a_line_without_an_end_is_refused() {
    let dir = Dir::new("endless");
    dir.pool(8);
    let pool = serve(&dir);
    let mut stream = UnixStream::connect(pool.status().control_socket.unwrap()).unwrap();
    let taken = (0..64).position(|_| stream.write_all(&[b'x'; 1 << 20]).is_err());
    assert!(taken.is_some(), "64 MiB were taken");
}

/// Nor does a client that never stops sending keep the pool open.
#[test]
fn closing_waits_for_no_line() {
    let dir = Dir::new("trickle");
    dir.pool(8);
    let pool = serve(&dir);
    let mut stream = UnixStream::connect(pool.status().control_socket.unwrap()).unwrap();
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
        pool.close().unwrap();
        closed.store(true, Ordering::Release);
        assert!(trickle.join().unwrap(), "it was not closed before the client ended");
    });
}
