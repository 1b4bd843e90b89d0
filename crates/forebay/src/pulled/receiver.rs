// SPDX-License-Identifier: MIT OR Apache-2.0
//! The receiver: keeps the number of the last step of each run, in a file of its directory.
//!
//! Whoever reaches it can send anything.  Each connection has a thread, which holds some hundred
//! bytes; there are so many connections, and so many runs in the directory, at most.  A run's
//! file is named by its UUID, and is never replaced.  A connection has one run, whose steps come
//! one after the other, or is ended.

use std::fs::File;
use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use serde::Serialize;

use super::journal::{read_slot, Journal, RunEnd, ALIVE, SLOT_BYTES};
use super::run::Run;
use super::wire::{answer, receive, Hello, Status, HELLO_BYTES};
use crate::error::{Error, Result};
use crate::report::Uuid;

/// Bounds of what strangers can make a receiver do.
#[derive(Clone, Copy, Debug)]
pub struct ReceiverLimits {
    pub connections: usize,
    /// Files in the directory.
    pub runs: usize,
    /// Until a connection has said what it wants.
    pub hello: Duration,
    /// Between two messages: the machine without power sends nothing any more.
    pub idle: Duration,
}

impl Default for ReceiverLimits {
    fn default() -> Self {
        ReceiverLimits {
            connections: 16,
            runs: 1000,
            hello: Duration::from_secs(10),
            idle: Duration::from_secs(120),
        }
    }
}

/// An event at a receiver.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum ReceiveEvent {
    Began { peer: SocketAddr, run: Run },
    Ended { peer: SocketAddr, run: Uuid, steps: u64, why: String },
    Asked { peer: SocketAddr, run: Uuid, known: bool },
    Refused { peer: SocketAddr, why: String },
}

/// A receiver that listens.
#[derive(Debug)]
pub struct Receiver {
    listener: TcpListener,
    directory: PathBuf,
    open: OwnedFd,
    limits: ReceiverLimits,
}

/// A machine that lost power does not answer again within this time.
const RESTART_LEAST: Duration = Duration::from_secs(3);

type Told<'a> = &'a (dyn Fn(ReceiveEvent) + Sync);

impl Receiver {
    /// Listens, and makes the directory if there is none.
    pub fn listen(address: &str, directory: &Path, limits: ReceiverLimits) -> Result<Receiver> {
        match std::fs::DirBuilder::new().mode(0o700).create(directory) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
                return Err(Error::system(directory, "making the directory", e))
            }
            _ => {}
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let open = rustix::fs::open(directory, flags, Mode::empty())
            .map_err(|e| Error::system(directory, "opening it", e.into()))?;
        let st = rustix::fs::fstat(&open)
            .map_err(|e| Error::system(directory, "looking at it", e.into()))?;
        let unsuitable = |what: String| Error::Unsuitable {
            path: directory.into(),
            what,
            way_out: "name a directory of your own (--directory), which only you can write".into(),
        };
        // Whoever made it first could replace what is kept in it.
        if st.st_uid != rustix::process::geteuid().as_raw() {
            return Err(unsuitable(format!("a directory of user {}", st.st_uid)));
        }
        if st.st_mode & 0o022 != 0 {
            return Err(unsuitable("a directory that others can write".into()));
        }
        let listen = || {
            let listener = TcpListener::bind(address)?;
            listener.set_nonblocking(true)?;
            Ok(listener)
        };
        let listener = listen().map_err(|e: io::Error| {
            Error::usage(
                format!("{address}: nothing can listen there: {e}"),
                "use an address of this machine and a free port, such as 0.0.0.0:7420",
            )
        })?;
        Ok(Receiver { listener, directory: directory.into(), open, limits })
    }

    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Until `stop`.
    pub fn run(&self, stop: &(dyn Fn() -> bool + Sync), told: Told<'_>) -> Result<()> {
        let here = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            while !stop() {
                let (stream, peer) = match self.accept() {
                    Ok(Some(accepted)) => accepted,
                    Ok(None) => continue,
                    Err(e) => return Err(Error::system(&self.directory, "listening", e)),
                };
                if here.fetch_add(1, Ordering::Relaxed) >= self.limits.connections {
                    here.fetch_sub(1, Ordering::Relaxed);
                    told(ReceiveEvent::Refused {
                        peer,
                        why: "there are too many connections".into(),
                    });
                    continue;
                }
                let here = &here;
                let serve = move || {
                    self.serve(stream, peer, stop, told);
                    here.fetch_sub(1, Ordering::Relaxed);
                };
                if let Err(e) = std::thread::Builder::new().spawn_scoped(scope, serve) {
                    here.fetch_sub(1, Ordering::Relaxed);
                    told(ReceiveEvent::Refused { peer, why: format!("no thread: {e}") });
                }
            }
            Ok(())
        })
    }

    fn accept(&self) -> io::Result<Option<(TcpStream, SocketAddr)>> {
        let wait = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };
        match poll(&mut [PollFd::new(&self.listener, PollFlags::IN)], Some(&wait)) {
            Ok(0) | Err(Errno::INTR) => return Ok(None),
            Ok(_) => {}
            Err(e) => return Err(e.into()),
        }
        match self.listener.accept() {
            Ok(accepted) => Ok(Some(accepted)),
            // The client has gone by now, or there are no descriptors for a moment.
            Err(_) => {
                std::thread::sleep(Duration::from_millis(10));
                Ok(None)
            }
        }
    }

    fn serve(
        &self,
        mut stream: TcpStream,
        peer: SocketAddr,
        stop: &(dyn Fn() -> bool + Sync),
        told: Told<'_>,
    ) {
        let refuse = |why: String| told(ReceiveEvent::Refused { peer, why });
        let set = stream
            .set_nonblocking(false)
            .and_then(|()| stream.set_nodelay(true))
            .and_then(|()| stream.set_write_timeout(Some(self.limits.hello)));
        if let Err(e) = set {
            return refuse(e.to_string());
        }
        let mut hello = [0; HELLO_BYTES];
        let deadline = Instant::now() + self.limits.hello;
        if let Err(e) = receive(&mut stream, &mut hello, deadline, stop) {
            return refuse(format!("no greeting came: {e}"));
        }
        match Hello::decode(&hello) {
            None => refuse("what it says is no greeting of forebay media-test".into()),
            Some(Hello::Ask(run)) => {
                let known = self.known(run);
                let status = if known.is_some() { Status::Ok } else { Status::Unknown };
                told(ReceiveEvent::Asked { peer, run, known: known.is_some() });
                let _ = stream.write_all(&answer(status, known.as_ref()));
            }
            Some(Hello::New(run)) => match self.keep(&run) {
                Err(why) => {
                    refuse(why);
                    let _ = stream.write_all(&answer(Status::Refused, None));
                }
                Ok(file) => {
                    told(ReceiveEvent::Began { peer, run: run.clone() });
                    let (steps, why) = self.follow(&mut stream, &run, &file, stop);
                    let _ = file.sync_all();
                    told(ReceiveEvent::Ended { peer, run: run.uuid, steps, why });
                }
            },
        }
    }

    /// Notes each step, and sends it back when it is noted.
    fn follow(
        &self,
        stream: &mut TcpStream,
        run: &Run,
        file: &File,
        stop: &(dyn Fn() -> bool + Sync),
    ) -> (u64, String) {
        let mut steps = 0;
        if let Err(e) = stream.write_all(&answer(Status::Ok, None)) {
            return (steps, e.to_string());
        }
        let mut heard = Instant::now();
        loop {
            let mut slot = [0; SLOT_BYTES];
            let deadline = Instant::now() + self.limits.idle;
            if let Err(e) = receive(stream, &mut slot, deadline, stop) {
                return (steps, self.silent(run, file, &e, heard));
            }
            heard = Instant::now();
            let number = match read_slot(run, slot) {
                Some((ALIVE, _)) => continue,
                Some((number, _)) => number,
                None => return (steps, "what came is not the next step".into()),
            };
            let end = RunEnd::of_number(number);
            let noted = match end {
                Some(end) => Journal::note_end(file, run, end),
                None if number == steps + 1 => Journal::note(file, slot, number),
                None => return (steps, "what came is not the next step".into()),
            };
            if let Err(e) = noted {
                return (steps, format!("the step cannot be noted: {e}"));
            }
            if end.is_none() {
                steps = number;
            }
            if let Err(e) = stream.write_all(&slot) {
                return (steps, self.silent(run, file, &e, heard));
            }
            if let Some(end) = end {
                let why = match end {
                    RunEnd::Uncut => "the writer ends, and nobody has cut the power".into(),
                    RunEnd::DiskFailed => format!("the disk failed in step {}", steps + 1),
                    RunEnd::Stalled => format!("the report of step {} took too long", steps + 1),
                };
                return (steps, why);
            }
        }
    }

    /// Why a connection gives nothing more.  One that is ended by its other side was ended by a
    /// system that has power: a machine without power cannot do that.  One that starts again
    /// resets the connection, but not at once.
    fn silent(&self, run: &Run, file: &File, e: &io::Error, heard: Instant) -> String {
        let ended = match e.kind() {
            io::ErrorKind::UnexpectedEof => true,
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
                heard.elapsed() < RESTART_LEAST
            }
            _ => false,
        };
        let why = match e.kind() {
            _ if ended => "its system ended the connection, so that has power".into(),
            io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => {
                "nothing comes any more".to_string()
            }
            io::ErrorKind::Interrupted => "the receiver ends".into(),
            _ => e.to_string(),
        };
        match ended.then(|| Journal::note_end(file, run, RunEnd::Uncut)) {
            Some(Err(e)) => format!("{why}; that cannot be noted: {e}"),
            _ => why,
        }
    }

    /// A new file for a run.
    fn keep(&self, run: &Run) -> Result<File, String> {
        let all = std::fs::read_dir(&self.directory).map_err(|e| e.to_string())?;
        if all.take(self.limits.runs).count() >= self.limits.runs {
            return Err(format!(
                "{} has {} files: remove old ones",
                self.directory.display(),
                self.limits.runs
            ));
        }
        let flags =
            OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.open, name(run.uuid), flags, Mode::RUSR | Mode::WUSR);
        let file = File::from(file.map_err(|e| match e {
            Errno::EXIST => "it has that run already".to_string(),
            e => e.to_string(),
        })?);
        Journal::begin(&file, run).map_err(|e| e.to_string())?;
        Ok(file)
    }

    fn known(&self, run: Uuid) -> Option<Journal> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.open, name(run), flags, Mode::empty()).ok()?;
        Journal::of(File::from(file)).ok()?.filter(|journal| journal.run.uuid == run)
    }
}

/// The name of a run's file: digits and a suffix, whatever the UUID.
fn name(run: Uuid) -> String {
    format!("{run}.run")
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::sync::atomic::AtomicBool;
    use std::sync::Mutex;

    use serde_json::json;

    use super::super::journal::slot_of;
    use super::super::run::tests::run;
    use super::super::run::Modes;
    use super::super::wire::{ask, Link};
    use super::*;

    /// Scripts read these keys.
    #[test]
    fn events_have_their_keys_in_json() {
        let peer: SocketAddr = "[::1]:7420".parse().unwrap();
        let run = run(64, Modes::Both);
        let (uuid, why) = (run.uuid, String::from("so"));
        let told = run.clone();
        let table = [
            (
                ReceiveEvent::Began { peer, run: told },
                json!({ "event": "began", "peer": "[::1]:7420", "run": run }),
            ),
            (
                ReceiveEvent::Ended { peer, run: uuid, steps: 7, why: why.clone() },
                json!({ "event": "ended", "peer": "[::1]:7420", "run": uuid, "steps": 7, "why": "so" }),
            ),
            (
                ReceiveEvent::Asked { peer, run: uuid, known: true },
                json!({ "event": "asked", "peer": "[::1]:7420", "run": uuid, "known": true }),
            ),
            (
                ReceiveEvent::Refused { peer, why },
                json!({ "event": "refused", "peer": "[::1]:7420", "why": "so" }),
            ),
        ];
        for (event, json) in table {
            assert_eq!(serde_json::to_value(event).unwrap(), json);
        }
    }

    struct Bed {
        parent: PathBuf,
        receiver: Receiver,
        stop: AtomicBool,
        events: Mutex<Vec<String>>,
    }

    impl Bed {
        fn new(name: &str, limits: ReceiverLimits) -> Bed {
            let parent =
                forebay_test::memory().join(format!("fby-pulled-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&parent).unwrap();
            let receiver = Receiver::listen("127.0.0.1:0", &parent.join("runs"), limits).unwrap();
            Bed { parent, receiver, stop: AtomicBool::new(false), events: Mutex::new(Vec::new()) }
        }

        fn address(&self) -> String {
            self.receiver.address().unwrap().to_string()
        }

        fn run(&self, test: impl FnOnce(&Bed)) {
            std::thread::scope(|s| {
                let stop = || self.stop.load(Ordering::Relaxed);
                s.spawn(move || {
                    let told = |e: ReceiveEvent| self.events.lock().unwrap().push(format!("{e:?}"));
                    self.receiver.run(&stop, &told).unwrap();
                });
                let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| test(self)));
                self.stop.store(true, Ordering::Relaxed);
                if let Err(panic) = done {
                    std::panic::resume_unwind(panic);
                }
            });
        }

        fn files(&self) -> Vec<String> {
            let all = std::fs::read_dir(self.parent.join("runs")).unwrap().flatten();
            all.map(|e| e.file_name().to_string_lossy().into_owned()).collect()
        }

        /// Sends bytes; whether the receiver has ended the connection without an answer.
        fn is_dropped(&self, bytes: &[u8]) -> bool {
            let mut stream = TcpStream::connect(self.address()).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            let _ = stream.write_all(bytes);
            let _ = stream.shutdown(std::net::Shutdown::Write);
            let mut answer = Vec::new();
            let ended = stream.read_to_end(&mut answer);
            answer.is_empty()
                && ended.map_or_else(|e| e.kind() == io::ErrorKind::ConnectionReset, |_| true)
        }
    }

    impl Drop for Bed {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.parent);
        }
    }

    fn own(n: u8) -> Run {
        Run { uuid: Uuid([n; 16]), ..run(64, Modes::Both) }
    }

    #[test]
    fn the_last_step_of_a_run_is_known_after_it() {
        Bed::new("known", ReceiverLimits::default()).run(|bed| {
            let (first, second, third) = (own(1), own(2), own(4));
            let mut link = Link::open(&bed.address()).unwrap();
            link.begin(&third).unwrap();
            link.tell(&third, 1).unwrap();
            link.tell_end(&third, RunEnd::DiskFailed).unwrap();
            link.tell(&third, 2).unwrap_err();
            let known = ask(&bed.address(), third.uuid).unwrap();
            assert_eq!((known.steps, known.end), (1, Some(RunEnd::DiskFailed)));
            let mut links =
                [Link::open(&bed.address()).unwrap(), Link::open(&bed.address()).unwrap()];
            links[0].begin(&first).unwrap();
            links[1].begin(&second).unwrap();
            for step in 1..=50 {
                links[0].tell(&first, step).unwrap();
                if step <= 7 {
                    links[1].tell(&second, step).unwrap();
                }
                assert_eq!(ask(&bed.address(), first.uuid).unwrap().steps, step);
            }
            let known = ask(&bed.address(), first.uuid).unwrap();
            assert_eq!((&known.run, known.steps, known.end), (&first, 50, None));
            assert!(known.round_trip_us > 0);
            assert_eq!(ask(&bed.address(), second.uuid).unwrap().steps, 7);
            let file = bed.parent.join("runs").join(name(second.uuid));
            assert_eq!(Journal::read(&file).unwrap().steps, 7);
            assert_eq!(ask(&bed.address(), Uuid([3; 16])).unwrap_err().exit_code(), 3);
        });
    }

    /// A machine without power does not end a connection: whoever does has not lost it.
    #[test]
    fn a_connection_that_is_ended_says_that_nobody_cut_the_power() {
        Bed::new("ended", ReceiverLimits::default()).run(|bed| {
            let run = own(1);
            let mut link = Link::open(&bed.address()).unwrap();
            link.begin(&run).unwrap();
            link.tell(&run, 1).unwrap();
            assert_eq!(ask(&bed.address(), run.uuid).unwrap().end, None);
            drop(link); // as the system does for a process that is killed
            let deadline = Instant::now() + Duration::from_secs(10);
            while ask(&bed.address(), run.uuid).unwrap().end != Some(RunEnd::Uncut) {
                assert!(Instant::now() < deadline, "it is noted");
            }
        });
    }

    /// The fill of a large disk, and a step that the kernel tries again and again.
    #[test]
    fn a_writer_that_lives_may_be_silent_for_long() {
        let limits = ReceiverLimits { idle: Duration::from_millis(500), ..Default::default() };
        Bed::new("alive", limits).run(|bed| {
            let (live, dead) = (own(1), own(2));
            let mut links = [(&live, 50), (&dead, 60_000)].map(|(run, each)| {
                let mut link = Link::open(&bed.address()).unwrap();
                link.begin_with(run, Duration::from_millis(each)).unwrap();
                link
            });
            std::thread::sleep(Duration::from_millis(1500));
            links[0].tell(&live, 1).unwrap();
            links[1].tell(&dead, 1).unwrap_err();
            assert_eq!(ask(&bed.address(), dead.uuid).unwrap().end, None);
        });
    }

    #[test]
    fn a_directory_of_another_user_is_not_used() {
        let parent = forebay_test::memory().join(format!("fby-pulled-own-{}", std::process::id()));
        std::fs::create_dir(&parent).unwrap();
        let listen = || Receiver::listen("127.0.0.1:0", &parent, ReceiverLimits::default());
        let mode = |mode| {
            use std::os::unix::fs::PermissionsExt;
            std::fs::set_permissions(&parent, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        mode(0o755);
        listen().unwrap();
        for open in [0o777, 0o1777, 0o775] {
            mode(open);
            let e = listen().unwrap_err();
            assert!(e.to_string().contains("others can write"), "{e}");
        }
        mode(0o755);
        let owned = std::os::unix::fs::chown(&parent, Some(65534), None);
        if owned.is_ok() {
            let e = listen().unwrap_err();
            assert!(e.to_string().contains("of user 65534"), "{e}");
        }
        std::fs::remove_dir(&parent).unwrap();
    }

    /// Anything that is no greeting ends the connection and leaves no file.
    #[test]
    fn garbage_leaves_nothing() {
        let limits = ReceiverLimits { hello: Duration::from_millis(300), ..Default::default() };
        Bed::new("garbage", limits).run(|bed| {
            let good = Hello::New(own(1)).encode();
            let mut seed = 1;
            let mut messages = vec![
                vec![],
                vec![0; 1 << 20],
                vec![0xff; HELLO_BYTES],
                b"GET / HTTP/1.0\r\n\r\n".to_vec(),
                good[..HELLO_BYTES - 1].to_vec(),
            ];
            for n in [1, 16, HELLO_BYTES, 70_000] {
                let mut bytes = vec![0; n];
                crate::medium::fill_random(&mut bytes, &mut seed);
                messages.push(bytes);
            }
            for at in (0..HELLO_BYTES).step_by(13) {
                let mut bad = good.to_vec();
                bad[at] ^= 0x55;
                messages.push(bad);
            }
            for (i, message) in messages.iter().enumerate() {
                assert!(bed.is_dropped(message), "message {i}");
            }
            // A connection that says nothing is ended as well.
            let mut silent = TcpStream::connect(bed.address()).unwrap();
            silent.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            assert!(matches!(silent.read(&mut [0; 8]), Ok(0)));
            assert_eq!(bed.files(), Vec::<String>::new());
            assert_eq!(std::fs::read_dir(&bed.parent).unwrap().count(), 1, "nothing outside");
            assert_eq!(bed.events.lock().unwrap().len(), messages.len() + 1);
        });
    }

    /// A step that is not the next one, of another run, or damaged ends the run where it was.
    #[test]
    fn steps_out_of_order_are_not_noted() {
        Bed::new("order", ReceiverLimits::default()).run(|bed| {
            let strange = |run: &Run| {
                let mut damaged = slot_of(run, 3, 0);
                damaged[15] = 1;
                [
                    slot_of(run, 2, 0),
                    slot_of(run, 4, 0),
                    slot_of(run, ALIVE - 1, 0),
                    slot_of(&own(99), 3, 0),
                    [0; SLOT_BYTES],
                    damaged,
                ]
            };
            for i in 0..6 {
                let run = own(10 + i as u8);
                let strange = strange(&run)[i];
                let mut stream = TcpStream::connect(bed.address()).unwrap();
                let mut all = Hello::New(run.clone()).encode().to_vec();
                let step = |n| slot_of(&run, n, 0);
                for slot in [step(1), step(2), strange, step(3)] {
                    all.extend(slot);
                }
                stream.write_all(&all).unwrap();
                let _ = stream.read_to_end(&mut Vec::new());
                assert_eq!(ask(&bed.address(), run.uuid).unwrap().steps, 2, "{i}");
            }
        });
    }

    #[test]
    fn a_run_is_never_replaced_and_their_number_is_bounded() {
        let limits = ReceiverLimits { runs: 3, ..Default::default() };
        Bed::new("bounded", limits).run(|bed| {
            let begin = |run: &Run| Link::open(&bed.address()).unwrap().begin(run);
            begin(&own(1)).unwrap();
            let e = begin(&own(1)).unwrap_err();
            assert!(e.to_string().contains("refuses the run"), "{e}");
            // Not even a link that lies there is followed.
            let target = bed.parent.join("target");
            std::os::unix::fs::symlink(&target, bed.parent.join("runs").join(name(own(2).uuid)))
                .unwrap();
            begin(&own(2)).unwrap_err();
            assert!(!target.exists());
            begin(&own(3)).unwrap();
            begin(&own(4)).unwrap_err();
            assert_eq!(bed.files().len(), 3);
        });
    }

    #[test]
    fn more_connections_than_are_allowed_are_ended_at_once() {
        let limits = ReceiverLimits { connections: 2, ..Default::default() };
        Bed::new("many", limits).run(|bed| {
            let mut held = [own(1), own(2)].map(|run| {
                let mut link = Link::open(&bed.address()).unwrap();
                link.begin(&run).unwrap();
                (link, run)
            });
            assert!(bed.is_dropped(&[]));
            for (link, run) in &mut held {
                link.tell(run, 1).unwrap();
            }
            drop(held);
            let deadline = Instant::now() + Duration::from_secs(10);
            while Link::open(&bed.address()).unwrap().begin(&own(3)).is_err() {
                assert!(Instant::now() < deadline, "there is room again");
            }
        });
    }
}
