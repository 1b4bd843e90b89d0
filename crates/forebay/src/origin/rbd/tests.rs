// SPDX-License-Identifier: MIT OR Apache-2.0
//! Goal: an RBD origin does what its table says, whatever the cluster does.  Method: the real
//! code by the real loader before a librbd that is a directory (crates/forebay-rbd,
//! `fake_rbd.c`), led by files; each scenario says what was wrong, so that it can be seen to
//! find the deliberate mistakes.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use forebay_rbd::fake::{self, Bug};
use rustix::fs::{mknodat, FileType, Mode, CWD};

use super::*;
use crate::attach::WhenAway;

const PAGE: usize = 4096;
const SIZE: u64 = 8 << 20;
/// Far longer than anything here takes.
const LIMIT: Duration = Duration::from_secs(60);
const LATE: Away = Away { when: WhenAway::Error, limit: LIMIT };
const SOON: Away = Away { when: WhenAway::Error, limit: Duration::from_millis(150) };

type Judged = std::result::Result<(), String>;

/// A cluster with one image.
struct Cluster(PathBuf);

impl Cluster {
    fn new() -> Cluster {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        fake::load();
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("fby-cluster-{}-{n}", std::process::id()));
        std::fs::create_dir_all(dir.join("pool")).unwrap();
        std::fs::write(dir.join("conf"), "").unwrap();
        let cluster = Cluster(dir);
        std::fs::File::create(cluster.image()).unwrap().set_len(SIZE).unwrap();
        cluster
    }

    fn image(&self) -> PathBuf {
        self.0.join("pool/image")
    }

    fn beside(&self, what: &str) -> PathBuf {
        self.0.join(format!("pool/image.{what}"))
    }

    fn say(&self, what: &str, text: &str) {
        // Whole, or not there.
        let new = self.0.join("new");
        std::fs::write(&new, text).unwrap();
        std::fs::rename(new, self.beside(what)).unwrap();
    }

    fn unsay(&self, what: &str) {
        std::fs::remove_file(self.beside(what)).unwrap();
    }

    fn calls(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.beside("calls")).unwrap_or_default();
        text.lines().filter(|call| *call != "owner").map(str::to_string).collect()
    }

    fn open(&self, away: Away) -> Result<RbdOrigin> {
        let uri = format!("rbd:pool/image@{}", self.0.join("conf").display());
        RbdOrigin::open(&uri, false, away)
    }

    /// The byte that the page is full of.
    fn holds(&self, at: usize) -> Option<u8> {
        let page = &std::fs::read(self.image()).unwrap()[at..at + PAGE];
        page.iter().all(|byte| byte == &page[0]).then_some(page[0])
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn page(fill: u8) -> Vec<u8> {
    vec![fill; PAGE]
}

fn want<T: PartialEq + std::fmt::Debug>(what: &str, got: T, wanted: T) -> Judged {
    match got == wanted {
        true => Ok(()),
        false => Err(format!("{what}: {got:?} instead of {wanted:?}")),
    }
}

fn errno<T>(done: io::Result<T>) -> Option<i32> {
    done.err().map(|e| e.raw_os_error().unwrap_or(0))
}

fn within(limit: Duration, what: &str, mut is: impl FnMut() -> bool) -> Judged {
    let began = Instant::now();
    while !is() {
        if began.elapsed() > limit {
            return Err(format!("{what}: not within {limit:?}"));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

/// librados would wait for who writes to a FIFO.
#[test]
fn a_configuration_that_is_no_file_is_refused_at_once() {
    let cluster = Cluster::new();
    let conf = cluster.0.join("conf");
    for kind in [FileType::Fifo, FileType::Directory] {
        let _ = std::fs::remove_file(&conf);
        match kind {
            FileType::Fifo => mknodat(CWD, &conf, kind, Mode::RWXU, 0).unwrap(),
            _ => std::fs::create_dir(&conf).unwrap(),
        }
        let began = Instant::now();
        let refused = cluster.open(LATE).unwrap_err().to_string();
        assert!(refused.contains("is no regular file"), "{refused}");
        assert!(refused.contains("rbd:POOL/IMAGE@/etc/ceph/ceph.conf"), "{refused}");
        assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    }
}

/// Releasing the origin waits until the image is closed, so the origin must be its last holder.
#[test]
fn who_was_told_of_the_mark_has_the_image_alone() {
    let cluster = Cluster::new();
    let uri = format!("rbd:pool/image@{}", cluster.0.join("conf").display());
    // Read-only: no other thread asks for the lock.
    let origin = RbdOrigin::open(&uri, true, LATE).unwrap();
    let MarkedOn::Origin(mark) = origin.mark().on else { panic!("it bears no mark") };
    for time in 0..2000 {
        mark.read().unwrap();
        let holders = Arc::strong_count(origin.image.as_ref().unwrap());
        assert_eq!(holders, 1, "after {time} times");
    }
}

fn what_is_written_is_on_the_image() -> Judged {
    let cluster = Cluster::new();
    let before = fake::completions();
    let origin = cluster.open(LATE).unwrap();
    // Longer than a request may be.
    let data: Vec<u8> = (0..5usize << 20).map(|i| (i / 512 % 251) as u8).collect();
    origin.write_at(&data, (1 << 20) + 512).unwrap();
    let mut wanted = vec![0; SIZE as usize];
    wanted[(1 << 20) + 512..][..data.len()].copy_from_slice(&data);
    if std::fs::read(cluster.image()).unwrap() != wanted {
        return Err("a write that has ended is not on the image".into());
    }
    origin.write_zeroes(2 << 20, 1 << 20).unwrap();
    origin.discard(3 << 20, 4096).unwrap();
    wanted[2 << 20..(3 << 20) + 4096].fill(0);
    let mut got = vec![0xee; wanted.len()];
    origin.read_at(&mut got, 0).unwrap();
    if got != wanted {
        return Err("other data is read".into());
    }
    want("a read beyond the end", origin.read_at(&mut got, 1).is_err(), true)?;
    origin.flush().unwrap();
    want("the last call", cluster.calls().last().map(String::as_str), Some("flush"))?;
    drop(origin);
    want("completions that were not released", fake::completions() - before, 0)
}

fn errors_are_passed_on() -> Judged {
    let cluster = Cluster::new();
    let origin = cluster.open(SOON).unwrap();
    let mut buf = page(0);
    for (what, number) in [("write", 28), ("flush", 5), ("read", 6), ("discard", 7), ("zero", 95)] {
        cluster.say(&format!("fail_{what}"), &number.to_string());
        let mut go = || match what {
            "write" => origin.write_at(&page(1), 0),
            "flush" => origin.flush(),
            "read" => origin.read_at(&mut buf, 0),
            "discard" => origin.discard(0, 4096),
            _ => origin.write_zeroes(0, 4096),
        };
        want(what, errno(go()), Some(number))?;
        want(what, errno(go()), None)?;
        cluster.say("refuse", &number.to_string());
        want(&format!("{what}, refused"), errno(go()), Some(number))?;
        want(what, errno(go()), None)?;
    }
    Ok(())
}

fn another_size_is_told() -> Judged {
    let cluster = Cluster::new();
    let origin = cluster.open(LATE).unwrap();
    want("changed", (origin.changed(), origin.is_shorter()), (None, Some(false)))?;
    std::fs::OpenOptions::new().write(true).open(cluster.image()).unwrap().set_len(4096).unwrap();
    within(Duration::from_secs(5), "the new size is told", || {
        origin.changed().is_some_and(|text| text.contains("has 4096 bytes, and had 8388608"))
    })?;
    want("it is shorter", origin.is_shorter(), Some(true))?;
    want("a read behind the end", errno(origin.read_at(&mut page(0), 4096)), Some(5))?;
    want("a write behind the end", errno(origin.write_at(&page(1), 8192)), Some(22))?;
    want("a read before it", errno(origin.read_at(&mut page(0), 0)), None)
}

fn of_two_only_one_has_it() -> Judged {
    let cluster = Cluster::new();
    let origin = cluster.open(LATE).unwrap();
    match cluster.open(LATE) {
        Ok(_) => return Err("two have it".into()),
        Err(e) => want("why not", e.to_string().contains("in use by another client"), true)?,
    }
    // A look needs no lock.
    let uri = format!("rbd:pool/image@{}", cluster.0.join("conf").display());
    RbdOrigin::open(&uri, true, LATE).map_err(|e| e.to_string())?;
    drop(origin);
    cluster.open(LATE).map(|_| ()).map_err(|e| e.to_string())
}

fn told_of_the_lock(origin: &RbdOrigin) -> bool {
    origin.away().is_some_and(|text| text.contains("another client has taken its lock"))
}

fn who_lost_the_lock_writes_no_more() -> Judged {
    let cluster = Cluster::new();
    let origin = cluster.open(LATE).unwrap();
    origin.write_at(&page(1), 0).unwrap();
    // The refusal of a write is all that tells of it: the origin asks for the owner as well, and
    // gets the answer that it is the owner.
    cluster.say("fail_write", &Errno::SHUTDOWN.raw_os_error().to_string());
    let refused = |done: io::Result<()>| match done {
        Err(e) if e.to_string().contains("another client has taken its lock") => Ok(()),
        other => Err(format!("{other:?} without the lock")),
    };
    refused(origin.write_at(&page(2), 0))?;
    want("told", told_of_the_lock(&origin), true)?;
    // Another holder may have written; an attach checks.
    refused(origin.write_at(&page(3), 0))?;
    refused(origin.flush())?;
    refused(origin.write_zeroes(0, 4096))?;
    want("a read", errno(origin.read_at(&mut page(0), 0)), None)?;
    want("the image", cluster.holds(0), Some(1))?;
    drop(origin);
    let origin = cluster.open(LATE).unwrap();
    want("attached again", errno(origin.write_at(&page(4), 0)), None)
}

fn a_lost_lock_is_noticed_without_a_write() -> Judged {
    let cluster = Cluster::new();
    let origin = cluster.open(LATE).unwrap();
    std::thread::sleep(LOCK_ASK * 4);
    want("told", told_of_the_lock(&origin), false)?;
    // One answer may be of a moment in which librbd takes it anew.
    cluster.say("not_owner", "1");
    within(Duration::from_secs(5), "it is asked", || !cluster.beside("not_owner").exists())?;
    std::thread::sleep(LOCK_ASK * 4);
    want("told", told_of_the_lock(&origin), false)?;
    cluster.say("stolen", "");
    within(Duration::from_secs(5), "it is noticed", || told_of_the_lock(&origin))?;
    want("the image was written to", cluster.calls().len(), 0)?;
    // While the cluster is away nothing is known.
    let other = Cluster::new();
    let origin = other.open(SOON).unwrap();
    other.say("away", "");
    std::thread::sleep(LOCK_ASK * 4);
    want("told", told_of_the_lock(&origin), false)?;
    other.unsay("away");
    drop(origin);
    other.open(LATE).map(|_| ()).map_err(|e| e.to_string())
}

/// An abandoned request may still be executed.
fn what_is_given_up_on_is_not_overtaken() -> Judged {
    let cluster = Cluster::new();
    let origin = cluster.open(SOON).unwrap();
    cluster.say("away", "");
    let first = origin.write_at(&page(1), 0);
    want("the first", first.map_err(|e| e.kind()), Err(io::ErrorKind::TimedOut))?;
    std::thread::scope(|scope| {
        let second = scope.spawn(|| origin.write_at(&page(2), 0));
        let aside = scope.spawn(|| origin.write_at(&page(3), 4096));
        std::thread::sleep(Duration::from_millis(20));
        cluster.unsay("away");
        let both = (second.join().unwrap(), aside.join().unwrap());
        match both {
            (Ok(()), Ok(())) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })?;
    origin.flush().unwrap();
    want("the image", (cluster.holds(0), cluster.holds(PAGE)), (Some(2), Some(3)))
}

fn a_flush_that_fails_later_is_told() -> Judged {
    let cluster = Cluster::new();
    let origin = cluster.open(SOON).unwrap();
    origin.write_at(&page(1), 0).unwrap();
    cluster.say("away", "");
    let first = origin.flush();
    want("the first", first.map_err(|e| e.kind()), Err(io::ErrorKind::TimedOut))?;
    cluster.say("fail_flush", "5");
    cluster.unsay("away");
    within(LIMIT, "it ends", || origin.shared.state().sent.is_empty())?;
    want("the next", origin.flush().is_err(), true)?;
    want("the one after", errno(origin.flush()), None)
}

fn a_mark_comes_and_goes_in_turn() -> Judged {
    let cluster = Cluster::new();
    let origin = cluster.open(SOON).unwrap();
    let MarkedOn::Origin(mark) = origin.mark().on else { panic!("its metadata") };
    want("none", mark.read().unwrap(), None)?;
    mark.write(b"mark").unwrap();
    want("set", mark.read().unwrap(), Some(b"mark".to_vec()))?;
    mark.remove().unwrap();
    mark.remove().unwrap();
    // It was given up on while the cluster was asked: it lands before what comes later.
    for _ in 0..8 {
        cluster.say("away", "");
        let set = mark.write(b"late");
        want("given up", set.map_err(|e| e.kind()), Err(io::ErrorKind::TimedOut))?;
        std::thread::scope(|scope| {
            let gone = scope.spawn(|| mark.remove());
            std::thread::sleep(Duration::from_millis(20));
            cluster.unsay("away");
            gone.join().unwrap().map_err(|e| e.to_string())
        })?;
        let done = || cluster.calls().last().is_some_and(|call| call == "remove");
        within(LIMIT, "both are done", || {
            cluster.calls().iter().filter(|call| *call == "set").count() > 1
        })?;
        want("taken away last", done(), true)?;
        want("none", mark.read().unwrap(), None)?;
        std::fs::write(cluster.beside("calls"), "set\n").unwrap();
    }
    Ok(())
}

/// The request waits for its turn after another that the cluster does not answer.
fn a_mark_that_is_given_up_on_is_not_set() -> Judged {
    let cluster = Cluster::new();
    let origin = cluster.open(SOON).unwrap();
    let MarkedOn::Origin(mark) = origin.mark().on else { panic!("its metadata") };
    cluster.say("away", "");
    for text in [b"first", b"other"] {
        let set = mark.write(text);
        want("given up", set.map_err(|e| e.kind()), Err(io::ErrorKind::TimedOut))?;
    }
    cluster.unsay("away");
    within(LIMIT, "the first ends", || cluster.beside("meta_forebay_mark").exists())?;
    std::thread::sleep(Duration::from_millis(50));
    want("the mark", mark.read().unwrap(), Some(b"first".to_vec()))
}

/// The case of a detached volume: an origin that has everything says so.
fn a_mark_goes_when_the_image_is_let_go_of() -> Judged {
    let cluster = Cluster::new();
    let origin = cluster.open(Away { when: WhenAway::Wait, limit: LIMIT }).unwrap();
    let MarkedOn::Origin(mark) = origin.mark().on else { panic!("its metadata") };
    mark.write(b"mark").unwrap();
    origin.give_up();
    cluster.say("away", "");
    let gone = std::thread::spawn(move || mark.remove());
    std::thread::sleep(Duration::from_millis(20));
    cluster.unsay("away");
    want("it goes", errno(gone.join().unwrap()), None)?;
    want("the mark", cluster.beside("meta_forebay_mark").exists(), false)?;
    // Not for ever.
    let other = Cluster::new();
    let origin = other.open(Away { when: WhenAway::Wait, limit: LIMIT }).unwrap();
    let MarkedOn::Origin(mark) = origin.mark().on else { panic!("its metadata") };
    mark.write(b"mark").unwrap();
    other.say("away", "");
    let (began, gone) = (Instant::now(), std::thread::spawn(move || mark.remove()));
    std::thread::sleep(Duration::from_millis(20));
    want("it is waited for", gone.is_finished(), false)?;
    origin.give_up();
    let gone = gone.join().unwrap();
    want("without an answer", gone.map_err(|e| e.kind()), Err(io::ErrorKind::TimedOut))?;
    want("for a while", (MARK_GOES..LIMIT / 4).contains(&began.elapsed()), true)?;
    other.unsay("away");
    Ok(())
}

/// It is asked for until it is told.
fn a_size_that_is_not_told_is_asked_for_again() -> Judged {
    let cluster = Cluster::new();
    let origin = cluster.open(LATE).unwrap();
    let image = std::fs::OpenOptions::new().write(true).open(cluster.image()).unwrap();
    cluster.say("away", "");
    image.set_len(4096).unwrap();
    let untold = |text: Option<String>| text.is_some_and(|text| text.contains("does not tell"));
    within(Duration::from_secs(5), "a change is told", || untold(origin.changed()))?;
    want("nothing is known", origin.is_shorter(), None)?;
    want("again", untold(origin.changed()), true)?;
    cluster.unsay("away");
    within(Duration::from_secs(5), "the new size is told", || {
        origin.changed().is_some_and(|text| text.contains("has 4096 bytes, and had 8388608"))
    })?;
    want("and stays so", origin.changed().is_some_and(|text| text.contains("has 4096")), true)
}

type Scenario = fn() -> Judged;

const SCENARIOS: &[Scenario] = &[
    what_is_written_is_on_the_image,
    errors_are_passed_on,
    another_size_is_told,
    of_two_only_one_has_it,
    who_lost_the_lock_writes_no_more,
    a_lost_lock_is_noticed_without_a_write,
    what_is_given_up_on_is_not_overtaken,
    a_flush_that_fails_later_is_told,
    a_mark_comes_and_goes_in_turn,
    a_mark_that_is_given_up_on_is_not_set,
    a_mark_goes_when_the_image_is_let_go_of,
    a_size_that_is_not_told_is_asked_for_again,
];

/// The scenario that has to find the mistake.
fn finder(bug: Bug) -> Scenario {
    match bug {
        Bug::CompletionLeft | Bug::CacheLeftOn | Bug::FlushNotAsked => {
            what_is_written_is_on_the_image
        }
        Bug::ErrorDropped | Bug::RefusalDropped => errors_are_passed_on,
        Bug::ShortReadTaken | Bug::ResizeIgnored => another_size_is_told,
        Bug::LockNotTaken => of_two_only_one_has_it,
        Bug::LockLossIgnored => who_lost_the_lock_writes_no_more,
        Bug::LockNotAskedFor | Bug::LockLostByOneAnswer => a_lost_lock_is_noticed_without_a_write,
        Bug::BufferReused | Bug::Overtaken => what_is_given_up_on_is_not_overtaken,
        Bug::FlushFailureForgotten => a_flush_that_fails_later_is_told,
        Bug::ChangeForgotten => a_size_that_is_not_told_is_asked_for_again,
        Bug::MarkLeftAtTheEnd => a_mark_goes_when_the_image_is_let_go_of,
        Bug::MarkSetLater => a_mark_that_is_given_up_on_is_not_set,
        Bug::MarkOvertaken => a_mark_comes_and_goes_in_turn,
    }
}

/// One test: planted mistakes apply to the whole process.
#[test]
fn rbd_origins_do_what_they_say_and_each_mistake_is_found() {
    for scenario in SCENARIOS {
        scenario().unwrap();
    }
    for &(bug, what) in fake::BUGS {
        let planted = fake::plant(bug);
        let found = finder(bug)();
        drop(planted);
        match found {
            Err(how) => println!("{bug:?}, {what}: {how}"),
            Ok(()) => panic!("{bug:?} was not found: {what}"),
        }
    }
}

/// Each client left over has threads and memory for as long as the process lives.
#[test]
fn an_image_that_hangs_is_opened_by_one_client_at_a_time() {
    let cluster = Cluster::new();
    let soon = Away { when: WhenAway::Error, limit: Duration::from_secs(1) };
    let threads = || {
        let names = std::fs::read_dir("/proc/self/task")
            .unwrap()
            .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
        names.filter(|name| name.trim() == "fby-rbd").count()
    };
    cluster.say("away", "");
    let refused = cluster.open(soon).unwrap_err();
    assert_eq!(refused.exit_code(), 7, "{refused}");
    assert!(refused.to_string().contains("not opened within"), "{refused}");
    let (began, before) = (Instant::now(), threads());
    for _ in 0..10 {
        let refused = cluster.open(soon).unwrap_err();
        assert_eq!(refused.exit_code(), 7, "{refused}");
        assert!(refused.to_string().contains("has not ended yet"), "{refused}");
    }
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    assert!(threads() <= before, "{} clients, and {before} before", threads());
    // The cluster answers again: the client left over ends, and the next attempt may begin.
    cluster.unsay("away");
    within(LIMIT, "it is opened", || cluster.open(soon).is_ok()).unwrap();
}

#[test]
fn an_image_that_is_not_there_is_refused_by_name() {
    let cluster = Cluster::new();
    let conf = cluster.0.join("conf");
    for (uri, why) in [
        (format!("rbd:pool/other@{}", conf.display()), "no such image"),
        (format!("rbd:other/image@{}", conf.display()), "no such pool"),
        ("rbd:pool/image@/nowhere/conf".to_string(), "without a configuration"),
    ] {
        let e = crate::origin::open(Path::new(&uri), false, LATE).unwrap_err().to_string();
        assert!(e.contains(why), "{e}");
    }
}
