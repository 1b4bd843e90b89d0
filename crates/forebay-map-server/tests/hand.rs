// SPDX-License-Identifier: MIT OR Apache-2.0
//! Goal: a server does with a process that sends what it should not, or does not answer, what is
//! right for the others.
//! Method: connections whose requests the test writes itself, to a server in this process.

mod bed;

use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bed::{can, wait, Here};
use forebay_map::backing::{Backing, RegularFile};
use forebay_map::sharing::{Order, Reply};
use forebay_map::store::FileRecord;
use forebay_map::wire::{self, Answer, Ordered, Request};
use forebay_map::{MapFile, SEGMENT};
use forebay_server::Service;

fn byte(file: &MapFile, at: u64) -> u8 {
    let mut to = [0];
    file.load(at, &mut to);
    to[0]
}

/// A connection whose requests the test writes itself.
struct ByHand(UnixStream);

impl ByHand {
    fn new(here: &Here, first: &Request) -> (ByHand, Answer) {
        let uuid = here.pool.as_ref().expect("open").uuid();
        let stream = UnixStream::connect(wire::socket_path(&here.place.run(), uuid));
        let mut it = ByHand(stream.expect("served"));
        let answer = it.ask(first).expect("an answer");
        (it, answer)
    }

    fn ask(&mut self, request: &Request) -> std::io::Result<Answer> {
        wire::send(&mut self.0, request)?;
        wire::receive(&mut self.0)
    }

    /// The first connection, and the number by which others belong to the same process.
    fn hello(here: &Here) -> (ByHand, u64) {
        let hello = Request::Hello { version: wire::VERSION, map: None };
        match ByHand::new(here, &hello) {
            (it, Answer::Hello(share)) => (it, share.number),
            (_, other) => panic!("{other:?}"),
        }
    }
}

#[test]
fn impossible_room_is_refused() {
    if !can() {
        return;
    }
    let here = Here::new();
    let (mut first, of) = ByHand::hello(&here);
    let (_orders, answer) = ByHand::new(&here, &Request::Orders { of });
    assert_eq!(answer, Answer::Done);
    let file = here.place.file(0);
    let identity = RegularFile::open(&file).expect("a file").identity().to_vec();
    for room in [1 << 50, u64::MAX] {
        let path = file.display().to_string();
        let join = Request::Join { visit: 0, path, identity: identity.clone(), room };
        match first.ask(&join).expect("an answer") {
            Answer::Failed { refused: true, why } => assert!(why.contains("segments"), "{why}"),
            other => panic!("{other:?}"),
        }
    }
    // A large file gets less room than it could have, and can still be shared.
    let sparse = std::fs::File::create(here.place.file(1)).expect("a file");
    sparse.set_len(70 << 30).expect("a size");
    let session = here.session();
    let file = session.map_shared(&here.place.file(1), 0).expect("shared");
    assert_eq!(byte(&file, 5), 0);
    file.close().expect("closed");
}

/// The place after the bytes that it stores is not known before it has stored them.
#[test]
fn an_append_next_to_a_process_that_is_stopped_in_one_fails_and_names_it() {
    if !can() {
        return;
    }
    let here = Here::new();
    let (path, size) = (here.place.file(0), SEGMENT as u64);
    std::fs::File::create(&path).and_then(|f| f.set_len(size)).expect("a file");
    let identity = RegularFile::open(&path).expect("a file").identity().to_vec();
    let (mut first, of) = ByHand::hello(&here);
    let (orders, answer) = ByHand::new(&here, &Request::Orders { of });
    assert_eq!(answer, Answer::Done);
    let is_stopped = AtomicBool::new(false);
    std::thread::scope(|s| {
        let stream = orders.0.try_clone().expect("a descriptor");
        let is_stopped = &is_stopped;
        s.spawn(move || {
            while let Ok(order) = wire::receive::<Ordered<Order>>(&mut &stream) {
                while is_stopped.load(Ordering::SeqCst) {
                    std::thread::sleep(Duration::from_millis(1));
                }
                let done = Ordered { number: order.number, what: Reply::Done };
                let _ = wire::send(&mut &stream, &done);
            }
        });
        let (visit, room) = (0, 2 * size);
        let join = Request::Join { visit, path: path.display().to_string(), identity, room };
        let joined = first.ask(&join).expect("an answer");
        let Answer::Joined { home, .. } = joined else { panic!("{joined:?}") };
        let session = here.session();
        let file = session.map_shared(&path, room).expect("shared");
        let grow = Request::Grow { home, at: None, len: 100 };
        assert_eq!(first.ask(&grow).expect("an answer"), Answer::At(size));
        is_stopped.store(true, Ordering::SeqCst);
        let begun = Instant::now();
        let appended = s.spawn(move || (file.append(&[&[7; 5]]), begun.elapsed(), file));
        while !appended.is_finished() && begun.elapsed() < Duration::from_secs(40) {
            std::thread::sleep(Duration::from_millis(10));
        }
        is_stopped.store(false, Ordering::SeqCst);
        let grown = Request::Grown { home, end: 0, more: false };
        assert_eq!(first.ask(&grown).expect("an answer"), Answer::Done);
        let (appended, took, file) = appended.join().expect("no panic");
        let after = file.append(&[&[7; 5]]);
        file.close().expect("closed");
        let left = Request::Leave { home, unsynced: false };
        assert_eq!(first.ask(&left).expect("an answer"), Answer::Done);
        let _ = orders.0.shutdown(std::net::Shutdown::Both);
        let said = appended.map_err(|e| e.to_string()).expect_err("it is stopped");
        let pid = std::process::id().to_string();
        assert!(said.contains(&pid) && said.contains("does not answer"), "{said}");
        assert!(took < Duration::from_secs(40), "{took:?}");
        assert_eq!(after.expect("it goes on"), (size, 5));
    });
}

/// No one would take back what the process gets after that.
#[test]
fn a_process_that_has_ended_its_service_gets_nothing_more() {
    if !can() {
        return;
    }
    let here = Here::new();
    let (mut first, of) = ByHand::hello(&here);
    let (mut other, answer) = ByHand::new(&here, &Request::Also { of });
    assert_eq!(answer, Answer::Done);
    assert_eq!(first.ask(&Request::Bye).expect("an answer"), Answer::Done);
    std::thread::sleep(Duration::from_millis(300));
    let file = FileRecord {
        path: here.place.file(0).display().to_string(),
        identity: vec![1, 2, 3],
        ..FileRecord::default()
    };
    let _ = other.ask(&Request::AddFile { file });
    let has_files = || here.service.status().details["maps"][0]["files"] != 0;
    wait("its file to be nobody's", || !has_files()).expect("it has ended");
}
