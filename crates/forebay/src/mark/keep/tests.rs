// SPDX-License-Identifier: MIT OR Apache-2.0

use std::cell::{Cell, RefCell};
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::AtomicU32;
use std::sync::{Mutex, MutexGuard};

use super::*;

thread_local! {
    static SYNCED: RefCell<Vec<&'static str>> = const { RefCell::new(Vec::new()) };
    static FAILS: Cell<bool> = const { Cell::new(false) };
}

pub(super) fn note(what: &'static str) -> io::Result<()> {
    SYNCED.with_borrow_mut(|synced| synced.push(what));
    match FAILS.take() {
        true => Err(Errno::ACCESS.into()),
        false => Ok(()),
    }
}

fn synced_now() -> Vec<&'static str> {
    SYNCED.take()
}

fn mark_of(origin: &str) -> Mark {
    Mark {
        volume: "v".into(),
        least: 2,
        at_most_bytes: 1,
        host: "h".into(),
        at: "p".into(),
        origin: origin.into(),
        ..Mark::default()
    }
}

/// A unit's umask is 0077, say, and other users look at an origin's mark.
#[test]
fn all_may_read_a_mark_whatever_the_umask() {
    const DIR: &str = "FOREBAY_TEST_KEEP_DIR";
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    if let Some(above) = std::env::var_os(DIR).map(PathBuf::from) {
        let (state, name) = (above.join("state"), "wwid:1");
        let by = MarkedBy { name: name.into(), on: MarkedOn::Host };
        let kept = Kept::open(&by, &state, false).unwrap();
        let file = state.join(MARKS).join(file_name(name));
        // The room for a first mark, what a removed one leaves, and a mark without room.
        for round in 0..3 {
            if round == 2 {
                std::fs::remove_file(state.join(MARKS).join(kept.new_name())).unwrap();
            }
            kept.put(&mark_of(name)).unwrap();
            assert_eq!(mode(&file), 0o644, "{round}");
            kept.take_away().unwrap();
        }
        assert_eq!([mode(&state), mode(&state.join(MARKS))], [0o755; 2]);
        assert_eq!(mode(&above), 0o700, "it is not Forebay's");
        return;
    }
    let dir = std::env::temp_dir().join(format!("fby-keep-umask-{}", std::process::id()));
    let test = "mark::keep::tests::all_may_read_a_mark_whatever_the_umask";
    forebay_test::run_with_umask_0077(test, DIR, &dir.join("above"));
    std::fs::remove_dir_all(&dir).unwrap();
}

/// A mark that was set or removed stays so after a cut: its file and directory are synced
/// in this order, once, and again if that failed.
#[test]
fn marks_are_durable_when_they_are_synced() {
    let dir = std::env::temp_dir().join(format!("fby-keep-synced-{}", std::process::id()));
    let by = MarkedBy { name: "wwid:1".into(), on: MarkedOn::Host };
    let kept = Kept::open(&by, &dir, false).unwrap();
    synced_now();
    for _ in 0..2 {
        kept.put(&mark_of("wwid:1")).unwrap();
        assert_eq!(synced_now(), ["file"]);
        FAILS.set(true);
        kept.sync().unwrap_err();
        kept.sync().unwrap();
        assert_eq!(synced_now(), ["directory", "directory"]);
        kept.sync().unwrap();
        assert_eq!(synced_now(), [""; 0]);
    }
    kept.take_away().unwrap();
    assert_eq!(synced_now(), ["directory"]);
    // A mark of another origin under this one's name, and one of a part of it.
    kept.put(&mark_of("wwid:2")).unwrap();
    assert!(matches!(kept.find().unwrap(), Found::Damaged(_)));
    kept.take_away().unwrap();
    let part = MarkedBy { name: "wwid:1-part2".into(), on: MarkedOn::Host };
    Kept::open(&part, &dir, false).unwrap().put(&mark_of("wwid:1-part2")).unwrap();
    assert_eq!(kept.find().unwrap(), Found::Marked(Box::new(mark_of("wwid:1-part2"))));
    // Others could have put it there.
    let marks = dir.join(MARKS);
    std::fs::set_permissions(&marks, std::fs::Permissions::from_mode(0o777)).unwrap();
    assert_eq!(kept.find().unwrap_err().kind(), io::ErrorKind::PermissionDenied);
    std::fs::remove_dir_all(&dir).unwrap();
    // A file's attribute, where there are any.
    let path = std::env::temp_dir().join(format!("fby-keep-file-{}", std::process::id()));
    let file = OwnedFd::from(std::fs::File::create(&path).unwrap());
    let by = MarkedBy { name: "file:1".into(), on: MarkedOn::File(file.as_fd()) };
    let kept = Kept::look(&by, &dir).unwrap();
    if kept.on.attribute().is_ok() {
        synced_now();
        kept.put(&mark_of("file:1")).unwrap();
        FAILS.set(true);
        let refused = kept.sync().unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::Other, "who may set a mark would try again");
        kept.sync().unwrap();
        assert_eq!(synced_now(), ["origin", "origin"]);
        kept.take_away().and_then(|()| kept.sync()).unwrap();
        assert_eq!(synced_now(), ["origin"]);
    }
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn a_lock_leaves_no_file_and_no_two_have_it() {
    let dir = std::env::temp_dir().join(format!("fby-keep-lock-{}", std::process::id()));
    let by = MarkedBy { name: "nbd:1".into(), on: MarkedOn::Host };
    let open = || Kept::open(&by, &dir, false);
    let files = || std::fs::read_dir(dir.join(MARKS)).unwrap().count();
    let busy = |e: io::Error| assert_eq!(e.kind(), io::ErrorKind::ResourceBusy, "{e}");
    let kept = open().unwrap();
    busy(open().unwrap_err());
    drop(kept);
    assert_eq!(files(), 0);
    let (holders, times) = (AtomicU32::new(0), AtomicU32::new(0));
    std::thread::scope(|s| {
        for _ in 0..4 {
            s.spawn(|| {
                while times.load(Ordering::Relaxed) < 300 {
                    match open() {
                        Ok(_kept) => {
                            assert_eq!(holders.fetch_add(1, Ordering::SeqCst), 0);
                            times.fetch_add(1, Ordering::Relaxed);
                            std::thread::yield_now();
                            holders.fetch_sub(1, Ordering::SeqCst);
                        }
                        Err(e) => busy(e),
                    }
                }
            });
        }
    });
    assert_eq!(files(), 0);
    std::fs::remove_dir_all(&dir).unwrap();
}

#[derive(Debug, Default)]
struct Image(Mutex<Option<Vec<u8>>>);

impl Image {
    fn value(&self) -> MutexGuard<'_, Option<Vec<u8>>> {
        self.0.lock().unwrap()
    }
}

impl Bears for Image {
    fn place(&self) -> String {
        "its metadata".into()
    }

    fn read(&self) -> io::Result<Option<Vec<u8>>> {
        let value = self.value().clone();
        match value.as_ref().is_some_and(|v| v.len() > MOST_BYTES) {
            true => Err(Errno::RANGE.into()),
            false => Ok(value),
        }
    }

    fn write(&self, mark: &[u8]) -> io::Result<()> {
        *self.value() = Some(mark.into());
        Ok(())
    }

    fn remove(&self) -> io::Result<()> {
        *self.value() = None;
        Ok(())
    }
}

/// Another host sees what the origin bears, and this one's directory stays as it was.
#[test]
fn what_an_origin_bears_itself_is_nowhere_else() {
    let dir = std::env::temp_dir().join(format!("fby-keep-{}", std::process::id()));
    let image = Arc::new(Image::default());
    let by = MarkedBy { name: "rbd:a:1:b".into(), on: MarkedOn::Origin(image.clone()) };
    let kept = Kept::open(&by, &dir, false).unwrap();
    assert!(kept.is_on_the_origin() && kept.place() == "its metadata");
    assert_eq!(kept.find().unwrap(), Found::Nothing);
    let mark = mark_of(&kept.name());
    kept.put(&mark).and_then(|()| kept.sync()).unwrap();
    assert_eq!(*image.value(), Some(mark.to_bytes()));
    let there = Kept::look(&by, Path::new("/nowhere")).unwrap();
    assert_eq!(there.find().unwrap(), Found::Marked(Box::new(mark)));
    there.take_away().and_then(|()| there.sync()).unwrap();
    assert_eq!(kept.find().unwrap(), Found::Nothing);
    for wrong in [vec![b'x'; MOST_BYTES], vec![b'x'; MOST_BYTES + 1], vec![]] {
        *image.value() = Some(wrong);
        assert!(matches!(kept.find().unwrap(), Found::Damaged(_)));
    }
    assert!(!dir.exists());
}

#[test]
fn names_of_files_are_safe_and_differ() {
    for (id, name) in [
        ("wwid:naa.5000", "wwid:naa.5000"),
        ("../etc/passwd", "%2E./etc/passwd".replace('/', "%2F").as_str()),
        ("dm:LVM-a b", "dm:LVM-a%20b"),
        (".x", "%2Ex"),
    ] {
        assert_eq!(file_name(id), name);
    }
    let long = |c: &str| file_name(&format!("{}{c}", "x".repeat(400)));
    assert!(long("a") != long("b") && long("a").len() < 255);
}

#[test]
fn parts_of_one_disk_overlap_and_others_do_not() {
    for (a, b, same) in [
        ("wwid:1", "wwid:1-part2", true),
        ("wwid:1-part1", "wwid:1-part2", false),
        ("wwid:1", "wwid:1", false),
        ("wwid:1", "wwid:12", false),
        ("file:7-a.b", "loop:file:7-a.b", true),
        ("file:7-a.b", "loop:file:7-a.b+512", true),
        ("loop:file:7-a.b+512", "loop:file:7-a.b+1024", false),
        ("file:7-a.b", "loop:file:8-a.b", false),
        ("file:7-a.b", "loop:file:7-a.b-part1", true),
    ] {
        assert_eq!(overlap(a, b), same, "{a} {b}");
        assert_eq!(overlap(b, a), same, "{b} {a}");
    }
}
