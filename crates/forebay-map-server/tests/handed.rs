// SPDX-License-Identifier: MIT OR Apache-2.0
//! Goal: who opens the file of a killed process waits until the server has written it back, and
//! no descriptor that a process hands over harms the server or another file.  Method: a process
//! has a lease of its file, as map-run has, stores to all pages, syncs them, and is killed.  Its
//! file is read at once, in some rounds next to a stopped server.  In another test the server waits
//! between two steps.  These tests find each planted bug.

mod bed;

use std::io::{IoSlice, Write};
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bed::{can, say, serve, server, wait, Place, Process, ROLE, SEGMENTS};
use forebay::{Pool, PoolOptions};
use forebay_map::backing::{identity_at, RegularFile};
use forebay_map::store::FileRecord;
use forebay_map::wire::{self, Answer, Request};
use forebay_map::{Error, Options, Session, Wanted, SEGMENT};
use forebay_map_server::MapService;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{Mode, OFlags};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

const TEST: &str = "who_opens_the_file_of_a_killed_process_waits";
const BYTES: usize = SEGMENTS as usize * SEGMENT;

/// Takes a lease with the open file description of a descriptor, which the process has then.
const LEASE: &str = "import fcntl; fcntl.fcntl(0, 1024, fcntl.F_WRLCK)";

/// The process that maps a file.  `child`: another process has its descriptor and lives on.
fn map(place: &Path, number: u8, child: bool) {
    let options = Options { by_hand: true, ..Options::default() };
    let session = Session::open(&Wanted::of(&place.join("pool")), options).expect("served");
    let mapped = session.map(&place.join("file0"), 0).expect("a file");
    let file = || mapped.file().expect("a file").try_clone_to_owned().expect("a duplicate");
    let python = |what: &str| {
        let mut python = Command::new("python3");
        python.args(["-c", what]).stdin(Stdio::from(file())).stdout(Stdio::null());
        python.spawn().expect("python3")
    };
    // The server closes what it had of the round before in a thread of its own.
    let begun = Instant::now();
    while !python(LEASE).wait().expect("its end").success() {
        assert!(begun.elapsed() < Duration::from_secs(10), "no lease");
    }
    assert!(mapped.outlast().expect("an answer"), "the server does not keep it");
    if child {
        say(&format!("child {}", python("import time; time.sleep(60)").id()));
    }
    for segment in 0..SEGMENTS {
        mapped.store(segment * SEGMENT as u64, &vec![number; SEGMENT]);
    }
    mapped.sync(0, u64::MAX).expect("synced");
    say("acknowledged");
    std::thread::sleep(Duration::from_secs(600));
}

/// One round.  `stops`: the server is stopped before the kill, and goes on after the open.
/// `moved`: the file has another name by then.
fn round(
    place: &Place,
    server: &Process,
    number: u8,
    stops: bool,
    child: bool,
    moved: bool,
) -> Result<(), String> {
    let role = format!("map {number} {}", u8::from(child));
    let mut process = Process::start(place, TEST, &role, "");
    wait("it to sync", || process.has_said("acknowledged") || !process.lives())?;
    assert!(process.lives(), "it has ended");
    if stops {
        server.signal("-STOP");
    }
    let path = if moved { place.0.join("moved") } else { place.file(0) };
    if moved {
        std::fs::rename(place.file(0), &path).expect("another name");
    }
    process.kill_it();
    let (tell, told) = channel();
    let now = path.clone();
    let reader = std::thread::spawn(move || {
        let _ = tell.send(std::fs::read(now).expect("the file"));
    });
    if stops {
        let early = told.recv_timeout(Duration::from_millis(200)).is_ok();
        server.signal("-CONT");
        if early {
            return Err(format!("round {number}: the reader does not wait"));
        }
    }
    // The kernel ends a lease that is not released after 45 s.
    let read = told.recv_timeout(Duration::from_secs(20));
    let said = process.said.lock().expect("not poisoned").clone();
    for child in said.iter().filter_map(|line| line.strip_prefix("child ")) {
        let lives = Command::new("kill").args(["-KILL", child]).status().expect("kill").success();
        assert!(lives, "the child has ended");
    }
    let read = read.map_err(|_| format!("round {number}: the reader waits for too long"))?;
    reader.join().expect("it has read");
    match read.iter().filter(|&&byte| byte != number).count() {
        0 if read.len() == BYTES => {}
        lacks => return Err(format!("round {number}: the reader lacks {lacks} bytes")),
    }
    if moved {
        std::fs::rename(path, place.file(0)).expect("its name");
    }
    wait("the record to end", || bed::is_marked(place, 0) == Some(false))
}

fn rounds(rounds: u8, planted: &str, child: bool) -> Result<(), String> {
    let place = Place::new();
    let server = server(&place, TEST, planted)?;
    (1..=rounds).try_for_each(|n| round(&place, &server, n, n % 2 == 0, child, false))
}

/// A process that has stored to a file and not synced.  `outlasts`: the server has its descriptor.
fn store(place: &Path, outlasts: bool) {
    let options = Options { by_hand: true, ..Options::default() };
    let session = Session::open(&Wanted::of(&place.join("pool")), options).expect("served");
    let mapped = session.map(&place.join("file0"), 0).expect("a file");
    assert!(!outlasts || mapped.outlast().expect("an answer"), "the server does not keep it");
    mapped.store(0, &[1]);
    say("stored");
    std::thread::sleep(Duration::from_secs(600));
}

fn is_one_of_them() -> bool {
    let (Ok(role), Some(place)) = (std::env::var(ROLE), std::env::var_os("FOREBAY_MAP_PLACE"))
    else {
        return false;
    };
    match role.split(' ').collect::<Vec<_>>()[..] {
        ["serve"] => serve(Path::new(&place)),
        ["map", number, child] => {
            map(Path::new(&place), number.parse().expect("a number"), child == "1");
        }
        ["store", outlasts] => store(Path::new(&place), outlasts == "1"),
        _ => unreachable!("{role}"),
    }
    true
}

#[test]
fn who_opens_the_file_of_a_killed_process_waits() {
    if is_one_of_them() || !can() {
        return;
    }
    rounds(20, "", false).expect("it waits, and sees all");
}

#[test]
fn who_opens_a_renamed_file_of_a_killed_process_waits() {
    if can() {
        let place = Place::new();
        let server = server(&place, TEST, "").expect("a server");
        (1..=5).for_each(|n| round(&place, &server, n, false, false, true).expect("it sees all"));
    }
}

/// The server has kept the stores of a dead process, and does not yet recover its file.
fn locked(planted: &str, outlasts: bool) -> Result<(), String> {
    let place = Place::new();
    let server = server(&place, TEST, planted)?;
    let mut process = Process::start(&place, TEST, &format!("store {}", u8::from(outlasts)), "");
    wait("it to store", || process.has_said("stored") || !process.lives())?;
    process.kill_it();
    let paused = place.0.join("pool.paused");
    wait("the pause", || paused.exists())?;
    let is_locked = match RegularFile::open(&place.file(0)) {
        Err(Error::Locked { .. }) => Ok(()),
        other => Err(format!("outlasts: {outlasts}: {other:?}")),
    };
    wait("the record to end", || {
        let _ = std::fs::remove_file(&paused);
        bed::is_marked(&place, 0) == Some(false)
    })?;
    drop(server);
    is_locked?;
    assert_eq!(std::fs::read(place.file(0)).expect("the file")[0], 1, "its store is lost");
    Ok(())
}

/// A process has stored to a file and is dead.  The file has this other name then, another file has
/// its name, and somebody has it locked for a moment.  Returns what the server says.
fn moved(to: &str, outlasts: bool) -> (u8, String) {
    let place = Place::new();
    let errors = place.0.join("errors");
    let to_errors = Stdio::from(std::fs::File::create(&errors).expect("a file"));
    let server = bed::server_with(&place, TEST, "", to_errors).expect("a server");
    let mut process = Process::start(&place, TEST, &format!("store {}", u8::from(outlasts)), "");
    wait("it to store", || process.has_said("stored") || !process.lives()).expect("stored");
    server.signal("-STOP");
    let path = place.0.join(to);
    std::fs::create_dir_all(path.parent().expect("one")).expect("a directory");
    std::fs::rename(place.file(0), &path).expect("another name");
    std::fs::write(place.file(0), [0; 4096]).expect("another file");
    process.kill_it();
    // The server has the lock where it has the descriptor.
    let locked = (!outlasts).then(|| RegularFile::open(&path).expect("nobody has it"));
    server.signal("-CONT");
    // Some attempts of the server: one without the lock would be no test of it.
    std::thread::sleep(Duration::from_secs(1));
    drop(locked);
    let said = || std::fs::read_to_string(&errors).expect("what it says");
    let first = || std::fs::read(&path).expect("the file")[0];
    wait("the store, or a word", || first() == 1 || said().contains("lost")).expect("either");
    let said = said();
    (first(), said)
}

#[test]
fn the_stores_of_a_dead_process_find_its_file_or_the_loss_is_reported() {
    if !can() {
        return;
    }
    assert_eq!(moved("moved", false), (1, String::new()), "next to its old name, locked");
    assert_eq!(moved("other/moved", true), (1, String::new()), "by its descriptor");
    let (first, said) = moved("other/moved", false);
    assert_eq!(first, 0, "nobody knows where it is");
    let is_told = said.contains("/file0: what its process stored and did not sync is lost");
    assert!(is_told, "{said}");
}

#[test]
fn a_file_is_locked_from_the_first_step_of_its_recovery_to_the_last() {
    if !can() {
        return;
    }
    for outlasts in [false, true] {
        locked("Paused", outlasts).expect("it is locked");
        let found = locked("Paused OpenedTwice", outlasts);
        println!("{}", found.expect_err("OpenedTwice is not found"));
    }
}

/// A file that cannot be written back keeps nobody waiting.
#[test]
fn who_opens_a_file_that_takes_no_mark_does_not_wait() {
    if !can() {
        return;
    }
    let place = Place::new();
    let server = server(&place, TEST, "").expect("a server");
    let path = place.file(0);
    let chattr = |flag| {
        let mut chattr = Command::new("chattr");
        chattr.arg(flag).arg(&path).stderr(Stdio::null());
        chattr.status().is_ok_and(|status| status.success())
    };
    let mut process = Process::start(&place, TEST, "map 1 0", "");
    wait("it to sync", || process.has_said("acknowledged") || !process.lives()).expect("synced");
    if !chattr("+i") {
        forebay_test::skipped!("a file that takes no mark is not tried: chattr +i fails there");
        return;
    }
    process.kill_it();
    let (tell, told) = channel();
    let now = path.clone();
    std::thread::spawn(move || tell.send(std::fs::read(now).is_ok()));
    let read = told.recv_timeout(Duration::from_secs(20));
    assert!(chattr("-i"));
    assert_eq!(read, Ok(true), "the reader waits for a write-back that fails");
    drop(server);
}

#[test]
fn a_child_that_has_the_descriptor_keeps_nobody_waiting() {
    if can() {
        (0..2).for_each(|_| rounds(1, "", true).expect("it waits for the server only"));
    }
}

#[test]
fn planted_bugs_are_found() {
    if !can() {
        return;
    }
    for (planted, number, child) in [("ReleasedEarly", 6, false), ("LeaseKept", 1, true)] {
        let found = (0..5).find_map(|_| rounds(number, planted, child).err());
        println!("{planted}: {}", found.unwrap_or_else(|| panic!("{planted} is not found")));
    }
}

/// Sends bytes, and a descriptor that comes with them.
fn send(stream: &UnixStream, bytes: &[u8], with: Option<BorrowedFd<'_>>) {
    let files: Vec<_> = with.into_iter().collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut with = SendAncillaryBuffer::new(&mut space);
    assert!(files.is_empty() || with.push(SendAncillaryMessage::ScmRights(&files)));
    let sent = rustix::net::sendmsg(stream, &[IoSlice::new(bytes)], &mut with, SendFlags::empty());
    assert_eq!(sent, Ok(bytes.len()));
}

/// A request, and a descriptor that comes with it.
fn ask(stream: &UnixStream, request: &Request, with: Option<BorrowedFd<'_>>) -> Answer {
    send(stream, &wire::bytes_of(request).expect("a message"), with);
    wire::receive(&mut &*stream).expect("an answer")
}

/// The same.  The server has the only descriptor before it has the whole request.
fn ask_and_close(stream: &UnixStream, request: &Request, with: OwnedFd) -> Answer {
    let bytes = wire::bytes_of(request).expect("a message");
    send(stream, &bytes[..1], Some(with.as_fd()));
    drop(with);
    send(stream, &bytes[1..], None);
    wire::receive(&mut &*stream).expect("an answer")
}

/// A connection that has named its map.
fn client(socket: &Path) -> UnixStream {
    let stream = UnixStream::connect(socket).expect("served");
    let hello = Request::Hello { version: wire::VERSION, map: Some("db".into()) };
    wire::send(&mut &stream, &hello).expect("sent");
    let mut first = [0; 1];
    // The descriptor of the pool comes with the first byte, and is dropped.
    assert_eq!(std::io::Read::read(&mut &stream, &mut first).expect("its answer"), 1);
    let mut answer = std::io::Read::chain(&first[..], &stream);
    assert!(matches!(wire::receive(&mut answer), Ok(Answer::Hello(_))));
    stream
}

/// The number of a file that the client has from now on.
fn added(stream: &UnixStream, path: &Path) -> u32 {
    let identity = identity_at(path).expect("its identity");
    let shown = path.display().to_string();
    let record = FileRecord { identity, path: shown, ..FileRecord::default() };
    match ask(stream, &Request::AddFile { file: record }, None) {
        Answer::Number(file) => file,
        other => panic!("no file: {other:?}"),
    }
}

/// A descriptor whose close takes a minute, or until the other end is closed: a connection with
/// bytes that the other end does not read.
fn that_hangs() -> (OwnedFd, TcpStream) {
    const FULL: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let stream = TcpStream::connect(listener.local_addr().expect("it")).expect("a connection");
    let (other, _) = listener.accept().expect("its other end");
    rustix::net::sockopt::set_socket_send_buffer_size(&stream, 4096).expect("its size");
    rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::from_secs(60))).expect("it");
    stream.set_nonblocking(true).expect("it fails when it is full");
    let (full, time) = (PollFd::new(&stream, PollFlags::OUT), Some(&FULL));
    while (&stream).write(&[0; 4096]).is_ok()
        || rustix::event::poll(&mut [full.clone()], time) != Ok(0)
    {}
    (stream.into(), other)
}

/// The threads of this process with a name.
fn threads(name: &str) -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").expect("threads").map_while(Result::ok);
    let named = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    named.filter(|named| named.trim_end() == name).count()
}

/// A server in this process, which counts its closes: one test has one at a time.
struct Here {
    _service: Arc<MapService>,
    _pool: Pool,
    socket: PathBuf,
    _one: MutexGuard<'static, ()>,
}

fn served_here(place: &Place) -> Here {
    static ONE: Mutex<()> = Mutex::new(());
    let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let pool = Pool::open(&place.pool(), &PoolOptions::default()).expect("the pool");
    std::fs::DirBuilder::new().mode(0o700).create(place.run()).expect("a directory");
    let started = MapService::start(&pool, &place.run(), false, &mut |_| {}).expect("maps");
    let socket = wire::socket_path(&place.run(), pool.uuid());
    Here { _service: started.expect("a map").0, _pool: pool, socket, _one: one }
}

/// More closes hang than threads wait for.
#[test]
fn a_close_that_hangs_holds_up_no_client() {
    const ANSWERS: Duration = Duration::from_secs(10);
    let place = Place::new();
    let here = served_here(&place);
    let (first, second) = (client(&here.socket), client(&here.socket));
    for stream in [&first, &second] {
        stream.set_read_timeout(Some(ANSWERS)).expect("its patience");
    }
    let file = added(&first, &place.file(0));
    let mut others = Vec::new();
    for n in 0..24 {
        let (fd, other) = that_hangs();
        others.push(other);
        let request = match n % 3 {
            0 => Request::Keep { file },
            1 => Request::Keep { file: file + 1 },
            _ => Request::Wanted,
        };
        let other = second.try_clone().expect("a duplicate");
        std::thread::scope(|s| {
            let beside = s.spawn(move || ask(&other, &Request::Wanted, None));
            ask_and_close(&first, &request, fd);
            assert!(matches!(beside.join(), Ok(Answer::Number(_))), "{n}: {request:?}");
        });
    }
    // One thread has all beyond sixteen.  They end with their other ends.
    assert_eq!((threads("fby-map-close"), threads("fby-map-closes")), (16, 1));
    drop(others);
    let begun = Instant::now();
    while threads("fby-map-close") > 0 {
        assert!(begun.elapsed() < ANSWERS, "a close does not end");
        std::thread::sleep(Duration::from_millis(10));
    }
    drop((first, second, here));
}

/// Each descriptor is closed, and one that cannot be written by is not kept.
#[test]
fn a_descriptor_of_anything_is_refused_or_not_used() {
    let place = Place::new();
    let here = served_here(&place);
    let stream = client(&here.socket);
    let path = place.file(0);
    let file = added(&stream, &path);
    let open = |path: &Path, flags| -> OwnedFd {
        rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty()).expect("a descriptor")
    };
    let fifo = place.0.join("fifo");
    let made = Command::new("mkfifo").arg(&fifo).status().expect("mkfifo");
    assert!(made.success(), "no FIFO");
    let cases = [
        ("reads", open(&path, OFlags::RDONLY), false),
        ("writes only", open(&path, OFlags::WRONLY), false),
        ("appends", open(&path, OFlags::RDWR | OFlags::APPEND), false),
        ("O_PATH", open(&path, OFlags::PATH), false),
        ("a directory", open(&place.run(), OFlags::RDONLY), false),
        ("a device", open(Path::new("/dev/null"), OFlags::RDWR), false),
        ("a FIFO", open(&fifo, OFlags::RDWR), false),
        ("a socket", OwnedFd::from(UnixStream::connect(&here.socket).expect("served")), false),
        ("the file", open(&path, OFlags::RDWR), true),
        // It is compared with the file when it is to be used.
        ("another file", open(&place.file(1), OFlags::RDWR), true),
    ];
    // Only these files count, because other tests of this process have descriptors, too.
    let links: Vec<_> = cases.iter().map(|(_, fd, _)| fd.as_raw_fd().to_string()).collect();
    let link = |fd: &Path| std::fs::read_link(Path::new("/proc/self/fd").join(fd)).ok();
    let links: Vec<_> = links.iter().map(|fd| link(Path::new(fd)).expect("a link")).collect();
    let count = || {
        let all = std::fs::read_dir("/proc/self/fd").expect("descriptors");
        let of = |fd: PathBuf| link(&fd).is_some_and(|to| links.contains(&to));
        all.map_while(Result::ok).filter(|fd| of(fd.path())).count()
    };
    let falls_to = |most: usize| {
        let begun = Instant::now();
        while count() > most {
            assert!(begun.elapsed() < Duration::from_secs(10), "{} are open, of {most}", count());
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    let keep = Request::Keep { file };
    assert_eq!(ask(&stream, &keep, None), Answer::Yes(false), "none");
    let before = count();
    for (what, fd, kept) in &cases {
        for _ in 0..20 {
            assert_eq!(ask(&stream, &keep, Some(fd.as_fd())), Answer::Yes(*kept), "{what}");
            ask(&stream, &Request::Wanted, Some(fd.as_fd()));
            ask(&stream, &Request::Keep { file: file + 1 }, Some(fd.as_fd()));
        }
    }
    falls_to(before + 1);
    assert_eq!(ask(&stream, &Request::RemoveFile { file }, None), Answer::Done);
    // The server keeps no descriptor of a closed file.
    falls_to(before);
    drop((cases, stream));
}
