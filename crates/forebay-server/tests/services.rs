// SPDX-License-Identifier: MIT OR Apache-2.0
//! Goal: a server has services of several kinds, which clients start and stop, and each
//! has one life: started once, stopped once, whatever ends it.  Method: a kind of our own
//! that counts what is done with it.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::*;
use forebay::*;
use forebay_server::control::Client;
use forebay_server::{
    metrics, Error, Exports, Figure, Progress, Result, Server, Service, ServiceStatus, Starter,
    Stop, Work,
};
use serde_json::{json, Value};

#[path = "../../forebay/tests/host/common.rs"]
#[allow(dead_code)]
mod common;

/// The events of all toys.
#[derive(Debug, Default)]
struct Seen {
    started: AtomicUsize,
    drained: AtomicUsize,
    stopped: AtomicUsize,
    /// No drain succeeds, now or ever.
    undrained: AtomicBool,
    failed: AtomicBool,
    /// Clients hold something of it.
    busy: AtomicBool,
    /// It came to its end by itself.
    ended: AtomicBool,
    /// How often the client has to be told that it stops, before it has.
    patient: AtomicUsize,
    told: AtomicUsize,
    /// It lacks something, and asks for it for so many seconds.
    asks_secs: AtomicUsize,
    asking: AtomicBool,
}

#[derive(Debug)]
struct Toy {
    name: String,
    seen: Arc<Seen>,
}

#[derive(Debug)]
struct Toys(Arc<Seen>);

impl Service for Toy {
    fn kind(&self) -> &'static str {
        "toy"
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn status(&self) -> ServiceStatus {
        let figure = Figure { name: "turns_total".into(), help: "Turns.".into(), value: 3.0 };
        ServiceStatus {
            kind: "toy".into(),
            name: self.name.clone(),
            summary: "wound up".into(),
            figures: vec![figure],
            ..Default::default()
        }
    }

    fn drain(&self, progress: &mut Progress<'_>) -> Result<()> {
        let work = Work { what: "unwinding".into(), total_bytes: 7, ..Default::default() };
        match progress(&work) {
            ControlFlow::Continue(()) => self.seen.drained.fetch_add(1, SeqCst),
            ControlFlow::Break(()) => return Err(Error::service(13, "interrupted", "try again")),
        };
        match self.seen.undrained.load(SeqCst) {
            true => Err(Error::service(7, "its box is broken", "mend it")),
            false => Ok(()),
        }
    }

    fn has_failed(&self) -> bool {
        self.seen.failed.load(SeqCst)
    }

    fn stop(&self, how: &Stop) -> Result<()> {
        if self.seen.busy.load(SeqCst) && !how.must {
            return Err(Error::service(4, "a child plays with it", "wait"));
        }
        let start = Instant::now();
        while self.seen.told.load(SeqCst) < self.seen.patient.load(SeqCst) {
            if start.elapsed() > Duration::from_secs(30) {
                return Err(Error::service(14, "nobody is told", "wait"));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        self.seen.stopped.fetch_add(1, SeqCst);
        Ok(())
    }

    fn lacks_something(&self) -> bool {
        self.seen.asks_secs.load(SeqCst) > 0
    }

    fn retry(&self, _: &Pool) {
        self.seen.asking.store(true, SeqCst);
        let start = Instant::now();
        while start.elapsed().as_secs() < self.seen.asks_secs.load(SeqCst) as u64 {
            std::thread::sleep(Duration::from_millis(5));
        }
        self.seen.asking.store(false, SeqCst);
    }

    fn ended(&self) -> bool {
        self.seen.ended.load(SeqCst)
    }
}

impl Starter for Toys {
    fn kind(&self) -> &'static str {
        "toy"
    }

    fn start(
        &self,
        _: &Pool,
        options: Value,
        progress: &mut Progress<'_>,
    ) -> Result<Arc<dyn Service>> {
        let name = options["name"].as_str();
        let name = name.ok_or_else(|| Error::service(2, "a toy without a name", "name it"))?;
        let _ = progress(&Work { what: "winding".into(), ..Default::default() });
        self.0.started.fetch_add(1, SeqCst);
        Ok(Arc::new(Toy { name: name.into(), seen: self.0.clone() }))
    }
}

fn serve(dir: &Dir) -> (Server, Arc<Seen>) {
    let seen = Arc::new(Seen::default());
    let server =
        Server::new(open(&dir.pool(16)), &dir.path("run"), vec![Box::new(Toys(seen.clone()))]);
    (server, seen)
}

fn ask(dir: &Dir, server: &Server) -> Client {
    Client::connect(&dir.path("run"), server.pool().uuid()).unwrap().unwrap()
}

fn counts(seen: &Seen) -> (usize, usize, usize) {
    (seen.started.load(SeqCst), seen.drained.load(SeqCst), seen.stopped.load(SeqCst))
}

#[test]
fn clients_start_see_and_stop_them() {
    let dir = Dir::new("services");
    let (server, seen) = serve(&dir);
    let mut told = Vec::new();
    let mut listen = |work: &Work| {
        told.push(work.what.clone());
        ControlFlow::Continue(())
    };
    let start = |name, listen: &mut Progress<'_>| {
        ask(&dir, &server).start("toy", json!({ "name": name }), listen)
    };
    assert_eq!(start("bear", &mut listen).unwrap().summary, "wound up");
    start("car", &mut listen).unwrap();

    let status = ask(&dir, &server).status().unwrap();
    let names: Vec<_> = status.services.iter().map(|s| s.name.as_str()).collect();
    assert_eq!(names, ["bear", "car"]);
    let text = metrics::metrics(&status);
    let lines: Vec<_> = text.lines().filter(|l| l.contains("toy")).collect();
    let pool = format!("pool=\"{}\"", server.pool().uuid());
    assert_eq!(
        lines[..2],
        ["# HELP forebay_toy_turns_total Turns.", "# TYPE forebay_toy_turns_total counter"]
    );
    for (line, name) in lines[2..].iter().zip(["bear", "car"]) {
        assert_eq!(*line, format!("forebay_toy_turns_total{{{pool},name=\"{name}\"}} 3"));
    }
    assert_eq!(lines.len(), 4, "{text}");

    let stop =
        |name, keep, listen: &mut Progress<'_>| ask(&dir, &server).stop("toy", name, keep, listen);
    stop("bear", false, &mut listen).unwrap();
    assert_eq!(counts(&seen), (2, 1, 1));
    stop("car", true, &mut listen).unwrap();
    assert_eq!(counts(&seen), (2, 1, 2), "what is kept is not drained");
    assert_eq!(stop("car", true, &mut listen).unwrap_err().exit_code(), 3);
    assert_eq!(told, ["winding", "winding", "unwinding"]);
    assert!(ask(&dir, &server).status().unwrap().services.is_empty());
    server.close().unwrap();
    assert_eq!(counts(&seen), (2, 1, 2));
}

/// A client takes one who says nothing for dead: what says nothing of its way while it
/// takes its time is told of all the same.
#[test]
fn a_client_hears_of_what_takes_long() {
    let dir = Dir::new("long");
    let (server, seen) = serve(&dir);
    let mut listen = |_: &Work| ControlFlow::Continue(());
    ask(&dir, &server).start("toy", json!({ "name": "bear" }), &mut listen).unwrap();
    seen.patient.store(3, SeqCst);
    let mut words = Vec::new();
    let stopped = ask(&dir, &server).stop("toy", "bear", true, &mut |work| {
        words.push(work.what.clone());
        seen.told.fetch_add(1, SeqCst);
        ControlFlow::Continue(())
    });
    stopped.unwrap();
    assert!(words.len() >= 3 && words.iter().all(|w| w == "stopping toy bear"), "{words:?}");
    server.close().unwrap();
}

#[test]
fn what_cannot_be_is_refused_and_leaves_nothing() {
    let dir = Dir::new("refused");
    let (server, seen) = serve(&dir);
    let mut listen = |_: &Work| ControlFlow::Continue(());
    let mut start = |kind, options| ask(&dir, &server).start(kind, options, &mut listen);
    let e = start("ship", json!({})).unwrap_err();
    assert!(e.exit_code() == 2 && e.to_string().contains("it knows toy"), "{e}");
    assert_eq!(start("toy", json!({})).unwrap_err().exit_code(), 2);
    start("toy", json!({ "name": "bear" })).unwrap();
    assert_eq!(start("toy", json!({ "name": "bear" })).unwrap_err().exit_code(), 4);
    assert_eq!(counts(&seen), (2, 0, 1), "the second one was stopped");

    // One that clients hold on to stays, unless the server ends.
    seen.busy.store(true, SeqCst);
    let e = ask(&dir, &server).stop("toy", "bear", true, &mut listen).unwrap_err();
    assert!(e.exit_code() == 4 && e.to_string().contains("plays"), "{e}");
    assert_eq!(server.status().services.len(), 1);

    // A client that gives up while it is drained leaves it as it is.
    let e = ask(&dir, &server).stop("toy", "bear", false, &mut |_| ControlFlow::Break(()));
    assert_eq!(e.unwrap_err().exit_code(), 13);
    server.close().unwrap();
    assert_eq!(seen.stopped.load(SeqCst), 2);
    open(&dir.path("pool"));
}

/// One that may still be drained stays until it is; one that never can be is stopped all the same.
#[test]
fn one_that_has_failed_can_be_stopped() {
    let dir = Dir::new("failed");
    let (server, seen) = serve(&dir);
    let mut listen = |_: &Work| ControlFlow::Continue(());
    server.add(Arc::new(Toy { name: "bear".into(), seen: seen.clone() })).unwrap();
    seen.undrained.store(true, SeqCst);
    let e = ask(&dir, &server).stop("toy", "bear", false, &mut listen).unwrap_err();
    assert!(e.exit_code() == 7 && e.to_string().contains("broken"), "{e}");
    assert_eq!(counts(&seen), (0, 1, 0), "it runs on");
    seen.failed.store(true, SeqCst);
    ask(&dir, &server).stop("toy", "bear", false, &mut listen).unwrap();
    assert_eq!(counts(&seen), (0, 2, 1));
    assert!(server.status().services.is_empty());
    server.close().unwrap();
}

/// A server without a service has no more to do.
#[test]
fn the_server_ends_with_the_last_of_them() {
    let dir = Dir::new("last");
    let (server, seen) = serve(&dir);
    let toy = |name: &str| Arc::new(Toy { name: name.into(), seen: seen.clone() });
    server.add(toy("bear")).unwrap();
    server.add(toy("car")).unwrap();
    assert_eq!(server.add(toy("car")).unwrap_err().exit_code(), 4);
    let ready = server.ready(None).unwrap();
    std::thread::scope(|scope| {
        let running = scope.spawn(|| ready.run(&|| false));
        std::thread::sleep(Duration::from_millis(60));
        assert!(!running.is_finished(), "it ended with services");
        seen.ended.store(true, SeqCst);
        running.join().unwrap().unwrap();
    });
    assert_eq!(seen.stopped.load(SeqCst), 3);
    // It has stopped, and takes no more.
    seen.ended.store(false, SeqCst);
    assert_eq!(server.add(toy("late")).unwrap_err().exit_code(), 13);
    server.close().unwrap();
    assert_eq!(seen.stopped.load(SeqCst), 4);
}

/// A service that came to its end by itself may take long to stop.
#[test]
fn the_file_is_looked_at_while_an_ended_service_is_stopped() {
    let dir = Dir::new("ended");
    let (server, seen) = serve(&dir);
    seen.patient.store(1, SeqCst);
    seen.ended.store(true, SeqCst);
    server.add(Arc::new(Toy { name: "bear".into(), seen: seen.clone() })).unwrap();
    let ready = server.ready(None).unwrap();
    let found = std::thread::scope(|scope| {
        let running = scope.spawn(|| ready.run(&|| false));
        std::thread::sleep(Duration::from_millis(60));
        std::fs::remove_file(dir.path("pool")).unwrap();
        let start = Instant::now();
        let is_lost = || server.pool().lost().is_some();
        while !is_lost() && start.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(Duration::from_millis(20));
        }
        let found = is_lost() && !running.is_finished();
        seen.told.fetch_add(1, SeqCst);
        running.join().unwrap().unwrap();
        found
    });
    assert!(found, "nobody looked");
    server.close().unwrap();
}

/// As an origin that hangs makes it wait: the end does not wait as long, and the pool is whole.
#[test]
fn the_end_does_not_wait_for_what_is_tried_again() {
    let dir = Dir::new("asks");
    let (server, seen) = serve(&dir);
    seen.asks_secs.store(70, SeqCst);
    server.add(Arc::new(Toy { name: "bear".into(), seen: seen.clone() })).unwrap();
    let ready = server.ready(None).unwrap();
    let start = Instant::now();
    ready.run(&|| seen.asking.load(SeqCst) || start.elapsed() > Duration::from_secs(60)).unwrap();
    assert!(seen.asking.load(SeqCst), "nothing was tried again");
    assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
    assert_eq!(seen.stopped.load(SeqCst), 1);
    server.close().unwrap();
    // The process ends now, or the origin answers.
    seen.asks_secs.store(0, SeqCst);
    let e = loop {
        match Pool::open(&dir.path("pool"), &PoolOptions::default()) {
            Err(e) if start.elapsed() < Duration::from_secs(60) => drop(e),
            opened => break opened.err(),
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    assert!(e.is_none(), "{e:?}");
}

/// A thread of a service that has stopped waits for a disk, and has the pool: the end is in order, and
/// the pool is recovered when it is opened next.  A volume that is attached is another matter.
#[test]
fn the_end_does_not_fail_because_of_a_thread_that_waits() {
    let dir = Dir::new("waits");
    let (server, _) = serve(&dir);
    server.pool().log_add("log", LogHome::Embedded).unwrap();
    let waits = server.pool().log("log", &LogOptions::default()).unwrap();
    server.close().unwrap();
    drop(waits);
    let pool = open(&dir.path("pool"));
    let volume = attach(&pool, "v", &MemOrigin::new(1 << 20).unwrap());
    let server = Server::new(pool, &dir.path("run"), Vec::new());
    let e = server.close().unwrap_err();
    assert!(e.exit_code() == 4 && e.to_string().contains("volume v is in use"), "{e}");
    drop(volume);
}

/// Exports and others side by side; a client may not stop what only the server started.
#[test]
fn exports_are_one_kind_of_several() {
    let dir = Dir::new("exports");
    let (server, seen) = serve(&dir);
    let origin = dir.file("origin", 1 << 20);
    let new = NewVolume { name: "v".into(), origin, ..Default::default() };
    server.pool().volume_add(&new).unwrap();
    let exports = Exports::attach(server.pool(), false, |_| AttachOptions::default());
    let socket = dir.path("nbd");
    server.add(exports.listen(&socket, 2).unwrap()).unwrap();
    server.add(Arc::new(Toy { name: "bear".into(), seen: seen.clone() })).unwrap();

    let client = std::os::unix::net::UnixStream::connect(&socket).unwrap();
    let start = Instant::now();
    let connections = || {
        let text = metrics::metrics(&server.status());
        let at = |name| text.lines().find(|l: &&str| l.starts_with(name)).unwrap().to_string();
        let last = |line: String| line.rsplit(' ').next().unwrap().to_string();
        [last(at("forebay_exports_connections{")), last(at("forebay_exports_connections_total{"))]
    };
    while connections() != ["1", "1"] {
        assert!(start.elapsed() < Duration::from_secs(60), "{:?}", connections());
        std::thread::sleep(Duration::from_millis(5));
    }
    drop(client);
    while connections() != ["0", "1"] {
        assert!(start.elapsed() < Duration::from_secs(60), "{:?}", connections());
        std::thread::sleep(Duration::from_millis(5));
    }
    let status = server.status();
    assert_eq!(status.services[0].summary, "1 of 1 volumes");
    assert_eq!(status.services[0].details, json!({ "volumes": ["v"] }));
    let name = socket.to_str().unwrap();
    let e = ask(&dir, &server).stop("exports", name, true, &mut |_| ControlFlow::Continue(()));
    assert_eq!(e.unwrap_err().exit_code(), 2);
    server.close().unwrap();
    assert!(!socket.exists());
    assert_eq!(seen.stopped.load(SeqCst), 1);
    assert!(!open(&dir.path("pool")).volumes()[0].attached);
}
