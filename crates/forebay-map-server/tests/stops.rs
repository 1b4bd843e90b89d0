// SPDX-License-Identifier: MIT OR Apache-2.0
//! Goal: a server that ends names each process that has files mapped, and each file of a dead one
//! that it has not written back.  None is in neither list.  Method: two processes share a file and
//! sync.  Another kills itself as soon as it hears that the server ends.

mod bed;

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use bed::{can, say, server_with, wait, Place, Process, ROLE};
use forebay::{Pool, PoolOptions};
use forebay_map::{Options, Session, Wanted};
use forebay_map_server::MapService;
use forebay_server::{Service, Stop};
use rustix::process::{getpid, kill_process, Signal};

const TEST: &str = "the_end_of_a_server_names_each_process";

fn serve(place: &Path) {
    use std::os::unix::fs::DirBuilderExt;
    let pool = Pool::open(&place.join("pool"), &PoolOptions::default()).expect("the pool");
    let run = place.join("run");
    std::fs::DirBuilder::new().mode(0o700).create(&run).expect("a directory");
    let started = MapService::start(&pool, &run, false, &mut |_| {}).expect("maps");
    let (service, _) = started.expect("a map");
    say("ready");
    while !place.join("stop").exists() {
        std::thread::sleep(Duration::from_millis(1));
    }
    service.stop(&Stop { grace: Duration::ZERO, must: true, keep: false }).expect("stopped");
    say("stopped");
    std::thread::sleep(Duration::from_secs(600));
}

/// `dies`: it maps a file for itself, and ends when the server does not answer any more.
fn map(place: &Path, dies: bool) {
    let options = Options { by_hand: true, ..Options::default() };
    let session = Session::open(&Wanted::of(&place.join("pool")), options).expect("served");
    let mapped = match dies {
        true => session.map(&place.join("file1"), 0),
        false => session.map_shared(&place.join("file0"), 0),
    };
    let mapped = mapped.expect("a file");
    mapped.store(0, &[1]);
    mapped.sync(0, 1).expect("synced");
    say("synced");
    while !dies || mapped.outlast().is_ok() {
        std::thread::sleep(Duration::from_millis(1));
    }
    kill_process(getpid(), Signal::KILL).expect("it dies");
}

fn is_one_of_them() -> bool {
    let (Ok(role), Some(place)) = (std::env::var(ROLE), std::env::var_os("FOREBAY_MAP_PLACE"))
    else {
        return false;
    };
    match &*role {
        "serve" => serve(Path::new(&place)),
        role => map(Path::new(&place), role == "dies"),
    }
    true
}

#[test]
fn the_end_of_a_server_names_each_process() {
    if is_one_of_them() || !can() {
        return;
    }
    let place = Place::new();
    let errors = place.0.join("errors");
    let to_errors = Stdio::from(std::fs::File::create(&errors).expect("a file"));
    let server = server_with(&place, TEST, "", to_errors).expect("a server");
    let shares = [0, 1].map(|_| Process::start(&place, TEST, "shares", ""));
    let dies = Process::start(&place, TEST, "dies", "");
    for process in shares.iter().chain([&dies]) {
        wait("a sync", || process.has_said("synced")).expect("synced");
    }
    std::fs::write(place.0.join("stop"), []).expect("an order");
    wait("the stop", || server.has_said("stopped")).expect("stopped");
    let said = std::fs::read_to_string(errors).expect("what it says");
    let named = said.lines().find(|line| line.contains("have files mapped")).unwrap_or_default();
    let is_named = |process: &Process| {
        let pid = process.child.id().to_string();
        named.split(|c: char| !c.is_ascii_digit()).any(|number| number == pid)
    };
    assert!(shares.iter().all(is_named), "{said}");
    let lost = said.contains("file1: 1 pages stay in the pool");
    assert!(lost != is_named(&dies), "it is in one list: {said}");
}
