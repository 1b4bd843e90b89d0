// SPDX-License-Identifier: MIT OR Apache-2.0
//! Goal: an origin that lacks acknowledged writes says so without its pool, whoever asks.  Only the
//! pool that holds the writes may have the origin, and every refusal names a way out that works.
//!
//! Method: the table of docs/manual/origins.md, row by row, with the command.  An origin bears its
//! mark itself, or its mark is a file.  Then what else may become of marks: servers that are
//! killed, exports, loop devices, hostile bytes, no room for one.

mod common;

use std::fs;
use std::os::unix::fs::{symlink, PermissionsExt};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use common::nbd::Served;
use common::{Bench, Output};
use forebay::{AttachOptions, Pool, PoolOptions};
use forebay_test::Loop;

/// An origin that may lack block 0, which its pool holds.
struct Case {
    b: Bench,
    place: &'static str,
}

/// An origin that is a file with attributes, and one without, if the system has such places.
fn cases() -> Vec<Case> {
    let attribute = Bench::on_disk();
    attribute.make_volume();
    vec![Case { b: attribute, place: "origin" }]
}

impl Case {
    fn status(&self, code: i32) -> serde_json::Value {
        let out = self.b.run(&["origin", "status", self.place, "--json"]);
        assert_eq!(out.code, Some(code), "{out:?}");
        let told: serde_json::Value = serde_json::from_str(&out.stdout).unwrap();
        assert_eq!(told["complete"], code == 0, "{told}");
        told
    }

    fn dirty(&self, n: u8) {
        self.b.write_to_volume(0, &[n; 4096]);
        self.status(14);
    }

    fn refused(&self, code: i32, words: &[&str], says: &[&str]) -> Output {
        let before = fs::read(self.b.path(self.place)).unwrap();
        let out = self.b.run(words);
        assert_eq!(out.code, Some(code), "{words:?}: {out:?}");
        for text in says {
            assert!(out.stderr.contains(text), "{words:?}: no \"{text}\": {}", out.stderr);
        }
        assert!(fs::read(self.b.path(self.place)).unwrap() == before, "{words:?}: it was written");
        out
    }

    fn drained(&self, words: &[&str], n: u8) {
        self.b.run_ok(words);
        assert_eq!(fs::read(self.b.path(self.place)).unwrap()[..4096], [n; 4096]);
        self.status(0);
    }
}

#[test]
fn a_clean_origin_is_complete_and_a_dirty_one_says_what_may_be_missing() {
    for case in cases() {
        case.status(0);
        case.dirty(1);
        let told = case.status(14);
        let (mark, pool) = (&told["mark"], fs::canonicalize(case.b.path("pool")).unwrap());
        let info = case.b.run_ok(&["status", "pool", "--json"]).stdout;
        let info: serde_json::Value = serde_json::from_str(&info).unwrap();
        assert_eq!(mark["volume"], "v");
        assert_eq!(fs::canonicalize(mark["at"].as_str().unwrap()).unwrap(), pool);
        assert_eq!(mark["at_most_bytes"], 1 << 20);
        assert!(info.to_string().contains(mark["pool"].as_str().unwrap()), "{info} {mark}");
        let text = case.b.run(&["origin", "status", case.place]).stdout;
        for words in ["may lack writes since 20", "at most 1 MiB", "forebay drain", "accept-loss"] {
            assert!(text.contains(words), "{words}: {text}");
        }
        case.drained(&["drain", "pool"], 1);
    }
}

#[test]
fn the_cache_is_lost() {
    for case in cases() {
        case.dirty(1);
        fs::rename(case.b.path("pool"), case.b.path("gone")).unwrap();
        case.b.run_ok(&["create", "pool", "--size", "16M"]);
        let says = ["may lack writes", "volume v of pool", "accept-loss"];
        case.refused(6, &["volume", "add", "pool", "v", "origin"], &says);
        case.b.run_ok(&["origin", "accept-loss", case.place]);
        case.status(0);
        case.b.run_ok(&["volume", "add", "pool", "v", "origin"]);
        case.dirty(2);
        case.drained(&["drain", "pool"], 2);
        // The pool returns with the data that was given up.
        fs::rename(case.b.path("gone"), case.b.path("pool")).unwrap();
        case.refused(6, &["drain", "pool"], &["whose mark is gone", "--accept-mark", "--discard"]);
        case.b.run_ok(&["volume", "remove", "pool", "v", "--discard"]);
        case.status(0);
    }
}

#[test]
fn an_older_copy_of_the_pool() {
    for case in cases() {
        fs::copy(case.b.path("pool"), case.b.path("clean")).unwrap();
        case.dirty(1);
        fs::copy(case.b.path("pool"), case.b.path("older")).unwrap();
        case.dirty(2);
        fs::copy(case.b.path("pool"), case.b.path("newest")).unwrap();
        for copy in ["clean", "older"] {
            fs::copy(case.b.path(copy), case.b.path("pool")).unwrap();
            let says = ["older copy of the one that marked the origin", "accept-loss"];
            case.refused(6, &["drain", "pool"], &says);
            // The copy is refused however often it was opened since.
            for name in ["a", "b", "c"] {
                case.b.write(name, &[0; 4096]);
                case.b.run_ok(&["volume", "add", "pool", name, name]);
            }
            case.refused(6, &["drain", "pool", "v"], &says);
            case.status(14);
        }
        fs::copy(case.b.path("newest"), case.b.path("pool")).unwrap();
        case.drained(&["drain", "pool"], 2);
        // The content of this copy was drained long ago.
        fs::copy(case.b.path("older"), case.b.path("pool")).unwrap();
        case.refused(6, &["drain", "pool"], &["whose mark is gone"]);
        // A copy that holds nothing loses nothing.
        fs::copy(case.b.path("clean"), case.b.path("pool")).unwrap();
        case.drained(&["drain", "pool"], 2);
    }
}

#[test]
fn another_host() {
    for case in cases() {
        case.dirty(1);
        edit_mark(&case, |mark| mark["host"] = "0123456789abcdef0123456789abcdef".into());
        case.status(14);
        let says = ["host 0123456789abcdef0123456789abcdef", "--accept-mark"];
        case.refused(6, &["drain", "pool"], &says);
        case.drained(&["drain", "pool", "--accept-mark"], 1);
    }
}

#[test]
fn a_pool_that_an_origin_waits_for_is_not_formatted() {
    for case in cases() {
        case.dirty(1);
        let before = fs::read(case.b.path("pool")).unwrap();
        let says = ["waits for it", "forebay drain", "accept-loss"];
        case.refused(14, &["create", "pool", "--force"], &says);
        assert!(fs::read(case.b.path("pool")).unwrap() == before);
        case.drained(&["drain", "pool"], 1);
        case.b.run_ok(&["create", "pool", "--force"]);
    }
}

#[test]
fn an_origin_that_moved_keeps_its_mark_and_a_copy_says_what_it_is_a_copy_of() {
    for case in cases() {
        case.dirty(1);
        fs::rename(case.b.path("origin"), case.b.path("moved")).unwrap();
        let out = case.b.run(&["origin", "status", "moved"]);
        assert_eq!(out.code, Some(14), "{out:?}");
        case.b.run_ok(&["drain", "pool", "--origin", "v=moved"]);
        assert_eq!(case.b.run(&["origin", "status", "moved"]).code, Some(0));
        assert_eq!(fs::read(case.b.path("moved")).unwrap()[..4096], [1; 4096]);
    }
}

#[test]
fn the_mark_is_lost_or_damaged() {
    for case in cases() {
        case.dirty(1);
        set_mark(&case, b"forebay-mark 1 00000000\n{}\n");
        let told = case.status(5);
        assert_eq!(told["state"], "mark-damaged");
        let says = ["cannot be read (its checksum is wrong)", "--accept-mark", "accept-loss"];
        case.refused(6, &["drain", "pool"], &says);
        remove_mark(&case);
        case.refused(6, &["drain", "pool"], &["whose mark is gone", "--accept-mark"]);
        case.drained(&["drain", "pool", "--accept-mark"], 1);
        // The origin has damaged remains of another pool's mark.
        set_mark(&case, &[0xff; 1500]);
        case.status(5);
        case.refused(6, &["drain", "pool"], &["cannot be read"]);
        let out = case.b.run_ok(&["origin", "accept-loss", case.place, "--json"]);
        assert!(out.stdout.contains("\"given_up\": true"), "{out:?}");
        case.status(0);
    }
}

/// A volume that was removed and added again counts its marks from the start.
#[test]
fn a_copy_from_before_the_volume_was_removed_and_added() {
    for case in cases() {
        for n in 1..4 {
            case.dirty(n);
        }
        fs::copy(case.b.path("pool"), case.b.path("older")).unwrap();
        case.drained(&["drain", "pool"], 3);
        case.b.run_ok(&["volume", "remove", "pool", "v"]);
        case.b.run_ok(&["volume", "add", "pool", "v", "origin"]);
        case.dirty(7);
        fs::rename(case.b.path("pool"), case.b.path("newer")).unwrap();
        fs::rename(case.b.path("older"), case.b.path("pool")).unwrap();
        let says = ["another volume that has, or had, this name", "accept-loss"];
        case.refused(6, &["drain", "pool"], &says);
        case.refused(6, &["drain", "pool", "--accept-mark"], &says);
        // The pool's data is given up, and the origin lacks what it lacked before.
        case.b.run_ok(&["volume", "remove", "pool", "v", "--discard"]);
        case.status(14);
        fs::rename(case.b.path("newer"), case.b.path("pool")).unwrap();
        case.drained(&["drain", "pool"], 7);
    }
}

/// A copy that holds nothing says nothing of what came later.
#[test]
fn a_volume_that_is_removed_from_an_older_copy_leaves_the_mark() {
    for case in cases() {
        fs::copy(case.b.path("pool"), case.b.path("copy")).unwrap();
        case.dirty(1);
        case.b.run_ok(&["volume", "remove", "copy", "v"]);
        case.status(14);
        case.drained(&["drain", "pool"], 1);
        // A copy of the same state is refused as well, while the pool is attached.
        case.dirty(2);
        case.drained(&["drain", "pool"], 2);
        let pool = Pool::open(&case.b.path("pool"), &PoolOptions::default()).unwrap();
        let volume = pool.attach("v", &AttachOptions::default()).unwrap();
        volume.write_at(&[3; 4096], 0).unwrap();
        let mark = get_mark(&case);
        volume.drain(&mut |_| std::ops::ControlFlow::Continue(())).unwrap();
        left_over(&case, &mark);
        fs::copy(case.b.path("pool"), case.b.path("copy")).unwrap();
        case.b.run_ok(&["volume", "remove", "copy", "v"]);
        case.status(14);
        volume.detach().unwrap();
        pool.close().unwrap();
        // The pool itself may remove the mark.
        case.b.run_ok(&["volume", "remove", "pool", "v"]);
        case.status(0);
    }
}

/// A mark of a version that did not name the volume's life is judged by its number, as it was.
#[test]
fn a_mark_of_version_1_goes_with_its_pool() {
    for case in cases() {
        fs::copy(case.b.path("pool"), case.b.path("clean")).unwrap();
        case.dirty(1);
        for field in ["exact", "volume_uuid"] {
            edit_mark(&case, |mark| drop(mark.as_object_mut().unwrap().remove(field)));
        }
        assert!(get_mark(&case).starts_with(b"forebay-mark 1 "));
        case.status(14);
        fs::copy(case.b.path("pool"), case.b.path("newest")).unwrap();
        fs::copy(case.b.path("clean"), case.b.path("pool")).unwrap();
        case.refused(6, &["drain", "pool"], &["older copy of the one that marked the origin"]);
        fs::copy(case.b.path("newest"), case.b.path("pool")).unwrap();
        case.drained(&["drain", "pool"], 1);
    }
}

// --- the attribute, from outside ---------------------------------------------------

fn get_mark(case: &Case) -> Vec<u8> {
    let file = fs::File::open(case.b.path(case.place)).unwrap();
    let mut bytes = vec![0; 4096];
    let n = rustix::fs::fgetxattr(&file, "user.forebay", &mut bytes[..]).unwrap();
    bytes[..n].to_vec()
}

fn set_mark(case: &Case, bytes: &[u8]) {
    let file = fs::File::open(case.b.path(case.place)).unwrap();
    rustix::fs::fsetxattr(&file, "user.forebay", bytes, rustix::fs::XattrFlags::empty()).unwrap();
}

/// Makes the state after a crash before the removal of a mark, by a version whose marks did not
/// state the last number.
fn left_over(case: &Case, mark: &[u8]) {
    set_mark(case, mark);
    edit_mark(case, |mark| drop(mark.as_object_mut().unwrap().remove("exact")));
}

fn remove_mark(case: &Case) {
    let file = fs::File::open(case.b.path(case.place)).unwrap();
    rustix::fs::fremovexattr(&file, "user.forebay").unwrap();
}

fn with_checksum(json: &str) -> Vec<u8> {
    let mut crc = !0u32;
    for byte in json.bytes() {
        crc ^= u32::from(byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 };
        }
    }
    let version = match (json.contains("\"exact\""), json.contains("\"volume_uuid\"")) {
        (true, _) => 3,
        (false, true) => 2,
        (false, false) => 1,
    };
    format!("forebay-mark {version} {:08x}\n{json}\n", !crc).into_bytes()
}

fn edit_mark(case: &Case, edit: impl FnOnce(&mut serde_json::Value)) {
    let mark = String::from_utf8(get_mark(case)).unwrap();
    let json = mark.lines().nth(1).unwrap();
    assert_eq!(with_checksum(json), mark.as_bytes(), "as docs/design/origins.md has it");
    let mut value = serde_json::from_str(json).unwrap();
    edit(&mut value);
    set_mark(case, &with_checksum(&value.to_string()));
}

// --- servers ---------------------------------------------------------------------------

/// A server of the pool, and the client's side of its volume v; killed when it is dropped.
struct Marked(Served);

impl Marked {
    fn start(b: &Bench, options: &[&str]) -> Marked {
        Marked(Served::start(b, options))
    }

    fn write(&self, n: u8) {
        assert_eq!(self.0.connect("v").write(0, &[n; 4096]), 0);
    }

    fn end(mut self, signal: &str) {
        self.0.signal(signal);
        self.0.wait().expect("the server ends");
    }
}

/// The server marks once in each period in which the origin lacks data.
#[test]
fn a_server_marks_before_it_answers_and_a_drain_beside_it_takes_it_away() {
    for case in cases() {
        let served = Marked::start(&case.b, &[]);
        case.status(0);
        served.write(1);
        let first = get_mark(&case);
        served.write(2);
        assert_eq!(get_mark(&case), first, "one marking");
        case.refused(4, &["origin", "accept-loss", case.place], &["in use"]);
        case.drained(&["drain", "pool"], 2);
        served.write(3);
        case.status(14);
        assert_ne!(get_mark(&case), first, "of another period");
        served.end("-KILL");
        case.status(14);
        let served = Marked::start(&case.b, &[]);
        case.status(14);
        served.end("-TERM");
        case.status(14);
        case.drained(&["drain", "pool"], 3);
    }
}

#[test]
fn modes_that_keep_nothing_in_the_pool_mark_nothing() {
    for mode in ["--write-through", "--cleaner"] {
        for case in cases() {
            let served = Marked::start(&case.b, &[mode]);
            served.write(1);
            case.status(0);
            served.end("-KILL");
            case.status(0);
        }
        for case in cases() {
            // The mark stays until cached data is drained.
            case.dirty(1);
            let served = Marked::start(&case.b, &[mode]);
            served.write(2);
            case.drained(&["drain", "pool"], 2);
            served.write(3);
            case.status(0);
            served.end("-KILL");
            case.status(0);
        }
    }
}

/// Reads set no mark, and are refused by one.
#[test]
fn a_pool_that_is_only_read_marks_nothing() {
    for case in cases() {
        let options = PoolOptions { read_only: true, ..Default::default() };
        let look = || {
            let pool = Pool::open(&case.b.path("pool"), &options).unwrap();
            pool.attach("v", &AttachOptions::default()).map(|v| v.detach().unwrap())
        };
        look().unwrap();
        case.status(0);
        fs::copy(case.b.path("pool"), case.b.path("older")).unwrap();
        case.dirty(1);
        let mark = get_mark(&case);
        look().unwrap();
        assert_eq!(get_mark(&case), mark);
        fs::copy(case.b.path("older"), case.b.path("pool")).unwrap();
        assert_eq!(look().unwrap_err().exit_code(), 6);
    }
}

// --- marks that are files ----------------------------------------------------------------

/// A file system whose files have no attributes, if this system has one at hand.
fn without_attributes() -> Option<PathBuf> {
    let dir = PathBuf::from("/proc/self/attr");
    dir.is_dir().then_some(dir)
}

struct Far {
    b: Bench,
    child: Child,
    uri: String,
}

impl Far {
    /// None: nbdkit is missing, which is reported.
    fn start() -> Option<Far> {
        let b = Bench::on_disk();
        b.write("disk", &[0; 1 << 20]);
        let (socket, up) = (b.path("far"), b.path("far.pid"));
        let child = Command::new("nbdkit")
            .args(["-f", "-U"])
            .arg(&socket)
            .arg("-P")
            .arg(&up)
            .arg("file")
            .arg(b.path("disk"))
            .stderr(Stdio::null())
            .spawn();
        let Ok(child) = child else {
            forebay_test::skipped!("nbdkit is not installed");
            return None;
        };
        for _ in 0..200 {
            if up.exists() {
                break; // it listens
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        let uri = format!("nbd+unix:///?socket={}", socket.display());
        b.make_pool();
        b.run_ok(&["volume", "add", "pool", "v", &uri]);
        Some(Far { b, child, uri })
    }

    fn status(&self) -> i32 {
        self.b.run(&["origin", "status", &self.uri]).code.unwrap()
    }
}

impl Drop for Far {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn an_export_is_marked_by_a_file_under_a_running_server() {
    let Some(far) = Far::start() else { return };
    let b = &far.b;
    b.run_ok(&["create", "second", "--size", "16M"]);
    b.run_ok(&["volume", "add", "second", "w", &far.uri]);
    let second = || {
        let status = b.run_ok(&["status", "second", "--json"]).stdout;
        let status: serde_json::Value = serde_json::from_str(&status).unwrap();
        status["volumes"][0]["verdict"].as_str().unwrap_or_default().to_string()
    };
    let served = Marked::start(b, &[]);
    assert_eq!(far.status(), 0);
    assert_eq!(second(), "complete");
    let text = b.run_ok(&["origin", "status", &far.uri]).stdout;
    assert!(text.contains("as far as this host knows"), "{text}");
    served.write(1);
    assert_eq!(far.status(), 14);
    // The mark names only the URI, without the password that it may contain.
    let marks = fs::read_dir(b.path("state/marks")).unwrap();
    let marks: Vec<_> =
        marks.map(|e| e.unwrap()).filter(|e| e.file_type().unwrap().is_file()).collect();
    let mark = marks.iter().find(|e| !e.file_name().to_string_lossy().starts_with('.')).unwrap();
    assert_eq!(mark.metadata().unwrap().permissions().mode() & 0o777, 0o644);
    let out = b.run(&["origin", "accept-loss", &far.uri]);
    assert!(out.code == Some(4) && out.stderr.contains("attached on this host"), "{out:?}");
    b.run_ok(&["drain", "pool"]);
    assert_eq!(far.status(), 0);
    served.write(2);
    served.end("-KILL");
    assert_eq!(far.status(), 14);
    assert_eq!(second(), "origin-marked", "a volume that is not attached, of another pool");

    // It is refused for another pool and without a pool.
    b.run_ok(&["create", "other", "--size", "16M"]);
    let out = b.run(&["volume", "add", "other", "v", &far.uri]);
    assert!(out.code == Some(6) && out.stderr.contains("may lack writes"), "{out:?}");
    let out = b.run(&["create", "pool", "--force"]);
    assert_eq!(out.code, Some(14), "{out:?}");

    // A link or file in place of the mark is neither followed nor believed.
    let path = mark.path();
    let kept = fs::read(&path).unwrap();
    fs::remove_file(&path).unwrap();
    symlink(b.path("disk"), &path).unwrap();
    let out = b.run(&["origin", "status", &far.uri]);
    assert!(out.code == Some(5) && out.stdout.contains("symbolic link"), "{out:?}");
    assert_eq!(b.run(&["drain", "pool"]).code, Some(6));
    fs::remove_file(&path).unwrap();
    fs::write(&path, &kept).unwrap();
    let others = fs::Permissions::from_mode(0o777);
    fs::set_permissions(b.path("state/marks"), others).unwrap();
    let out = b.run(&["drain", "pool"]);
    assert!(out.code == Some(9) && out.stderr.contains("others can write to it"), "{out:?}");
    fs::set_permissions(b.path("state/marks"), fs::Permissions::from_mode(0o755)).unwrap();
    b.run_ok(&["drain", "pool"]);
    assert_eq!(far.status(), 0);
    assert_eq!(fs::read(b.path("disk")).unwrap()[..4096], [2; 4096]);
}

/// Nothing is acknowledged that could not be marked.
#[test]
fn without_room_for_a_mark_it_is_not_attached() {
    let Some(far) = Far::start() else { return };
    let b = &far.b;
    b.write("state-file", b"x");
    let out = b.run(&["drain", "pool", "--state", "state-file"]);
    assert!(out.code != Some(0) && out.stderr.contains("cannot be looked for"), "{out:?}");
    let out = b.run(&["drain", "pool", "--state", "/proc/forebay"]);
    assert!(out.code != Some(0) && out.stderr.contains("--state"), "{out:?}");
    let _ = without_attributes();
}

/// A mark on a loop device is one on its file, and the reverse.
#[test]
fn a_loop_device_and_its_file_are_one_origin() {
    let b = Bench::on_disk();
    b.make_pool();
    b.write("disk", &[0; 1 << 20]);
    let device = match Loop::attach(&b.path("disk"), &[]) {
        Ok(device) => device,
        Err(why) => return forebay_test::skipped!("{why}"),
    };
    let places = [device.path().to_str().unwrap(), "disk"];
    b.run_ok(&["volume", "add", "pool", "v", places[0]]);
    let state = AttachOptions { state: Some(b.path("state")), ..Default::default() };
    let pool = Pool::open(&b.path("pool"), &PoolOptions::default()).unwrap();
    let volume = pool.attach("v", &state).unwrap();
    volume.write_at(&[5; 4096], 0).unwrap();
    volume.detach().unwrap();
    pool.close().unwrap();
    for place in places {
        let out = b.run(&["origin", "status", place]);
        assert_eq!(out.code, Some(14), "{place}: {out:?}");
    }
    b.run_ok(&["create", "other", "--size", "16M"]);
    b.run_ok(&["drain", "pool"]);
    for place in places {
        assert_eq!(b.run(&["origin", "status", place]).code, Some(0), "{place}");
    }
}

// --- what a hostile user found ---------------------------------------------------------

/// Writes through the library, with the directory of marks in the bench.  The origin stays marked.
fn written(b: &Bench, pool: &str, n: u8) {
    let state = AttachOptions { state: Some(b.path("state")), ..Default::default() };
    let pool = Pool::open(&b.path(pool), &PoolOptions::default()).unwrap();
    let volume = pool.attach("v", &state).unwrap();
    volume.write_at(&[n; 4096], 0).unwrap();
    volume.detach().unwrap();
    pool.close().unwrap();
}

/// Two volumes of a pool, two pools, and another spelling of the URI are all refused.
#[test]
fn an_export_is_one_origin_however_its_uri_is_written() {
    let Some(far) = Far::start() else { return };
    let b = &far.b;
    let directory = fs::canonicalize(b.directory()).unwrap();
    symlink(b.path("far"), b.path("link")).unwrap();
    let at = |socket: &str| format!("nbd+unix:///?socket={}/{socket}", directory.display());
    let others = [
        at("/far"),
        at("f%61r"),
        at("far&a=b"),
        at("far#x"),
        at("link"),
        at("./../").to_string() + directory.file_name().unwrap().to_str().unwrap() + "/far",
        at("far").replace("?", "?a=b&"),
        at("far").replace("nbd+unix", "NBD+Unix"),
    ];
    b.run_ok(&["create", "other", "--size", "16M"]);
    for uri in &others {
        let out = b.run(&["volume", "add", "pool", "w", uri]);
        assert!(out.stderr.contains("already that of volume v"), "{uri}: {out:?}");
    }
    written(b, "pool", 1);
    for uri in &others {
        assert_eq!(b.run(&["origin", "status", uri]).code, Some(14), "{uri}");
        let out = b.run(&["volume", "add", "other", "v", uri]);
        assert!(out.code == Some(6) && out.stderr.contains("may lack writes"), "{uri}: {out:?}");
    }
    // Each spelling of the URI leads to the origin of the volume.
    b.run_ok(&["drain", "pool", "--origin", &format!("v={}", others[7])]);
    for uri in &others {
        assert_eq!(b.run(&["origin", "status", uri]).code, Some(0), "{uri}");
    }
    assert_eq!(fs::read(b.path("disk")).unwrap()[..4096], [1; 4096]);
}

/// The way out in the refusal works: it names the URI of the export, and not its internal identity.
#[test]
fn a_pool_that_an_export_waits_for_is_not_formatted() {
    let Some(far) = Far::start() else { return };
    let b = &far.b;
    written(b, "pool", 1);
    let out = b.run(&["create", "pool", "--force"]);
    let way_out = format!("forebay origin accept-loss {}", far.uri);
    assert!(out.code == Some(14) && out.stderr.contains(&way_out), "{out:?}");
    b.run_ok(&["origin", "accept-loss", &far.uri]);
    b.run_ok(&["create", "pool", "--force"]);
}

/// After any refused attach the next attach finds the volume's origin.
#[test]
fn a_refused_attach_leaves_the_record_as_it_was() {
    let b = Bench::on_disk();
    b.make_volume();
    b.write_to_volume(0, &[1; 4096]);
    b.write("another", &[0; 1 << 20]);
    b.run_ok(&["create", "other", "--size", "16M"]);
    b.run_ok(&["volume", "add", "other", "v", "another"]);
    written(&b, "other", 2);
    let before = b.run_ok(&["volume", "list", "pool", "--json"]).stdout;
    let words = ["drain", "pool", "--origin", "v=another", "--accept-changed-origin"];
    let out = b.run(&words);
    assert!(out.code == Some(6) && out.stderr.contains("of pool"), "{out:?}");
    assert_eq!(b.run_ok(&["volume", "list", "pool", "--json"]).stdout, before);

    // The recorded size is unchanged too.
    let case = Case { b, place: "origin" };
    let (b, mark) = (&case.b, get_mark(&case));
    remove_mark(&case);
    fs::File::options().write(true).open(b.path("origin")).unwrap().set_len(2 << 20).unwrap();
    let out = b.run(&["drain", "pool", "--accept-changed-origin"]);
    assert!(out.code == Some(6) && out.stderr.contains("whose mark is gone"), "{out:?}");
    let now = b.run_ok(&["volume", "list", "pool", "--json"]).stdout;
    assert!(now.contains("\"size_bytes\": 1048576"), "{now}");
    set_mark(&case, &mark);
    case.drained(&["drain", "pool", "--accept-changed-origin"], 1);
}

/// The volume no longer exists, so the way out is not a drain.
#[test]
fn a_volume_that_was_discarded_is_told_as_that() {
    let case = Case { b: Bench::on_disk(), place: "origin" };
    case.b.make_volume();
    case.dirty(1);
    case.b.run_ok(&["volume", "remove", "pool", "v", "--discard"]);
    let words = ["volume", "add", "pool", "v", "origin"];
    let out = case.refused(6, &words, &["removed from this pool", "origin accept-loss"]);
    assert!(!out.stderr.contains("drain it"), "{out:?}");
}

/// The kernel keeps such a device while it is used, and a deleted file while the device exists.
/// Both disappear with the server.
#[test]
fn a_loop_device_whose_file_is_deleted_is_not_complete() {
    let b = Bench::on_disk();
    b.make_pool();
    b.write("disk", &[0; 1 << 20]);
    let device = match Loop::attach(&b.path("disk"), &[]) {
        Ok(device) => device,
        Err(why) => return forebay_test::skipped!("{why}"),
    };
    b.run_ok(&["volume", "add", "pool", "v", device.path().to_str().unwrap()]);
    let state = AttachOptions { state: Some(b.path("state")), ..Default::default() };
    let pool = Pool::open(&b.path("pool"), &PoolOptions::default()).unwrap();
    let volume = pool.attach("v", &state).unwrap();
    volume.write_at(&[5; 4096], 0).unwrap();
    let go_on = &mut |_: &_| std::ops::ControlFlow::Continue(());
    fs::rename(b.path("disk"), b.path("moved")).unwrap();
    volume.drain(go_on).unwrap();
    drop(device);
    fs::remove_file(b.path("moved")).unwrap();
    volume.write_at(&[6; 4096], 0).unwrap();
    let told = volume.drain(go_on).unwrap_err().to_string();
    assert!(told.contains("NOT complete") && told.contains("another origin"), "{told}");
    volume.detach().unwrap();
    pool.close().unwrap();
}

/// The mark states how much of the present origin may be missing.
#[test]
fn an_origin_that_has_grown_may_lack_more() {
    let case = Case { b: Bench::on_disk(), place: "origin" };
    let b = &case.b;
    b.make_volume();
    fs::File::options().write(true).open(b.path("origin")).unwrap().set_len(2 << 20).unwrap();
    let options = AttachOptions { accept_changed_origin: true, ..Default::default() };
    let pool = Pool::open(&b.path("pool"), &PoolOptions::default()).unwrap();
    let volume = pool.attach("v", &options).unwrap();
    volume.write_at(&[1; 4096], (2 << 20) - 4096).unwrap();
    volume.detach().unwrap();
    pool.close().unwrap();
    assert_eq!(case.status(14)["mark"]["at_most_bytes"], 2 << 20);
    b.run_ok(&["drain", "pool"]);
    case.status(0);
}

/// The drain reports that the origin is not complete, and so does the origin's status without the
/// pool.
#[test]
fn an_origin_that_has_lost_its_end_stays_marked() {
    let case = Case { b: Bench::on_disk(), place: "origin" };
    let b = &case.b;
    b.make_volume();
    let pool = Pool::open(&b.path("pool"), &PoolOptions::default()).unwrap();
    let volume = pool.attach("v", &AttachOptions::default()).unwrap();
    volume.write_at(&[1; 4096], 0).unwrap();
    let origin = fs::File::options().write(true).open(b.path("origin")).unwrap();
    origin.set_len(512 << 10).unwrap();
    let told = volume.drain(&mut |_| std::ops::ControlFlow::Continue(())).unwrap_err();
    assert!(told.to_string().contains("NOT complete"), "{told}");
    volume.detach().unwrap();
    pool.close().unwrap();
    case.status(14);
    case.refused(6, &["drain", "pool"], &["has 524288 bytes"]);
    case.status(14);
    // A backup of the lost end restores the origin.
    origin.set_len(1 << 20).unwrap();
    b.run_ok(&["drain", "pool"]);
    case.status(0);
}

/// A crash leaves a mark on a complete origin, and there is no volume left that could remove it.
#[test]
fn a_volume_that_is_removed_by_its_number_takes_its_mark_along() {
    let case = Case { b: Bench::on_disk(), place: "origin" };
    case.b.make_volume();
    for name in ["#0", "v"] {
        case.dirty(1);
        let mark = get_mark(&case);
        case.drained(&["drain", "pool"], 1);
        left_over(&case, &mark);
        case.status(14);
        case.b.run_ok(&["volume", "remove", "pool", name]);
        case.status(0);
        case.b.run_ok(&["volume", "add", "pool", "v", "origin"]);
    }
}
