// SPDX-License-Identifier: MIT OR Apache-2.0
//! Goal: a volume that is not attached and holds nothing is called complete only if its origin was
//! seen.
//!
//! Method: a table of origins that a volume was made for, of what happens to each, and of the
//! verdict.  Every command that tells completeness is asked, with a server and without.

mod common;

use std::fs;
use std::io;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::nbd::Served;
use common::Bench;
use forebay::{MemOrigin, Pool, PoolOptions};
use serde_json::Value;

/// An NBD server; killed when dropped.
struct Far(Child);

impl Drop for Far {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Far {
    /// Starts a server with a socket at `far`.  None: the program is missing, which is reported.
    fn begin(b: &Bench, program: &str, with: impl FnOnce(&mut Command)) -> Option<Far> {
        let _ = fs::remove_file(b.path("far"));
        let mut command = Command::new(program);
        with(&mut command);
        let Ok(child) = command.stderr(Stdio::null()).spawn() else {
            forebay_test::skipped!("{program} is not installed");
            return None;
        };
        let far = Far(child);
        for _ in 0..200 {
            if b.path("far").exists() {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Some(far)
    }

    fn start(b: &Bench, image: &str) -> Option<Far> {
        Far::begin(b, "nbdkit", |command| {
            command.args(["-f", "-U"]).arg(b.path("far")).arg("file").arg(b.path(image));
        })
    }

    /// A server that ends after its last client.
    fn of_qemu(b: &Bench) -> Option<Far> {
        Far::begin(b, "qemu-nbd", |command| {
            command.args(["-f", "raw", "-k"]).arg(b.path("far")).arg(b.path("disk"));
        })
    }
}

fn uri(b: &Bench) -> String {
    format!("nbd+unix:///?socket={}", b.path("far").display())
}

fn json(b: &Bench, words: &[&str]) -> Value {
    let out = b.run(words);
    serde_json::from_str(&out.stdout).unwrap_or_else(|e| panic!("{words:?}: {e}: {out:?}"))
}

/// The verdicts of the only volume, as two commands without a server tell them.
fn verdicts(b: &Bench) -> [String; 2] {
    let text = |v: &Value| v["verdict"].as_str().unwrap_or_default().to_string();
    let check = json(b, &["check", "pool", "--json"]);
    let status = json(b, &["status", "pool", "--json"]);
    [text(&status["volumes"][0]), text(&check["volumes"][0])]
}

/// All of them tell this, and none takes long.
fn all_tell(b: &Bench, verdict: &str) {
    let began = Instant::now();
    assert_eq!(verdicts(b), [verdict, verdict]);
    assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
}

/// So does a server that could not attach it, and no drain says that it is complete.  The server has
/// another volume.
fn none_says_complete(b: &Bench, verdict: &str, says: &str) {
    all_tell(b, verdict);
    if !b.path("another").exists() {
        b.write("another", &[0; 1 << 20]);
        b.run_ok(&["volume", "add", "pool", "w", "another"]);
    }
    let drained = b.run(&["drain", "pool", "--timeout", "5s"]);
    assert_ne!(drained.code, Some(0), "{drained:?}");
    assert_eq!(json(b, &["drain", "pool", "--timeout", "5s", "--json"])["complete"], false);
    let mut served = Served::start(b, &[]);
    let drained = b.run(&["drain", "pool"]);
    assert!(drained.code != Some(0) && drained.stderr.contains(says), "{drained:?}");
    assert_eq!(json(b, &["drain", "pool", "--json"])["complete"], false);
    let status = json(b, &["status", "pool", "--json"]);
    assert_eq!(status["volumes"][0]["verdict"], verdict);
    served.stop();
}

#[test]
fn an_export_that_does_not_answer_is_not_called_complete() {
    let b = Bench::on_disk();
    b.write("disk", &[0; 1 << 20]);
    let Some(far) = Far::start(&b, "disk") else { return };
    b.make_pool();
    b.run_ok(&["volume", "add", "pool", "v", &uri(&b)]);
    all_tell(&b, "complete");
    assert_eq!(b.run(&["origin", "status", &uri(&b)]).code, Some(0));
    drop(far);
    fs::remove_file(b.path("disk")).unwrap();
    none_says_complete(&b, "unknown", "cannot be looked at");
    let status = b.run(&["origin", "status", &uri(&b)]);
    assert!(status.code == Some(7) && !status.stdout.contains("complete"), "{status:?}");
    // One that is shorter, and one that is there and says nothing.
    b.write("disk", &[0; 512 << 10]);
    let far = Far::start(&b, "disk");
    none_says_complete(&b, "origin-changed", "has 524288 bytes");
    drop(far);
    fs::remove_file(b.path("far")).unwrap();
    let silent = UnixListener::bind(b.path("far")).unwrap();
    all_tell(&b, "unknown");
    drop(silent);
    // The mistake shows without all that.
    let words = ["status", "pool", "--json"];
    let out = b.command(&words).env("FOREBAY_PLANTED", "UnseenIsComplete").output().unwrap();
    let status: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(status["volumes"][0]["verdict"], "complete");
}

/// Its id is no place: nobody finds it.
#[test]
fn an_origin_whose_path_is_not_recorded_is_not_called_complete() {
    let b = Bench::on_disk();
    b.make_pool();
    b.write("origin", &[0; 1 << 20]);
    b.run_ok(&["volume", "add", "pool", "v", "origin"]);
    all_tell(&b, "complete");
    let long = "d".repeat(100);
    let at = b.path(&long);
    fs::create_dir(&at).unwrap();
    let origin = format!("{long}/origin");
    fs::rename(b.path("origin"), b.path(&origin)).unwrap();
    let drained = b.run(&["drain", "pool", "--origin", &format!("v={origin}")]);
    assert!(drained.code == Some(0) && drained.stdout.contains("complete"), "{drained:?}");
    let volume = &json(&b, &["volume", "list", "pool", "--json"]);
    assert!(volume.to_string().contains("\"origin_path\":null"), "{volume}");
    all_tell(&b, "unknown");
    fs::remove_dir_all(at).unwrap();
    none_says_complete(&b, "unknown", "has no path of it");
}

/// Only the program that gave it knows where it is: nothing is asked of it.
#[test]
fn an_origin_that_the_library_was_given_needs_no_path() {
    let b = Bench::on_disk();
    b.make_pool();
    let pool = Pool::open(&b.path("pool"), &PoolOptions::default()).unwrap();
    pool.volume_add_origin("v", &MemOrigin::new(1 << 20).unwrap(), 512).unwrap();
    pool.close().unwrap();
    all_tell(&b, "complete");
}

/// The directory that a server was given for its marks has those of other pools, too.
#[test]
fn a_mark_is_seen_where_the_server_has_them() -> io::Result<()> {
    let b = Bench::on_disk();
    b.write("disk", &[0; 1 << 20]);
    b.write("second", &[0; 1 << 20]);
    let Some(_far) = Far::start(&b, "disk") else { return Ok(()) };
    b.make_pool();
    b.run_ok(&["create", "other", "--size", "16M"]);
    b.run_ok(&["volume", "add", "other", "v", &uri(&b)]);
    marked(&b, &b.path("elsewhere"));
    b.run_ok(&["volume", "add", "pool", "first", "second"]);
    b.run_ok(&["volume", "add", "pool", "v", &uri(&b)]);
    let mut served = Served::start(&b, &["--state", "elsewhere"]);
    let status = json(&b, &["status", "pool", "--json"]);
    assert_eq!(status["volumes"][1]["verdict"], "origin-marked", "{status}");
    assert_eq!(b.run(&["drain", "pool"]).code, Some(14));
    served.stop();
    Ok(())
}

/// Pool other has what the export lacks, and the mark is in this directory.
fn marked(b: &Bench, state: &Path) {
    let options = forebay::AttachOptions { state: Some(state.into()), ..Default::default() };
    let pool = Pool::open(&b.path("other"), &PoolOptions::default()).unwrap();
    let volume = pool.attach("v", &options).unwrap();
    volume.write_at(&[1; 4096], 0).unwrap();
    volume.detach().unwrap();
    pool.close().unwrap();
}

/// A server that ends after its last client (qemu-nbd without -t) is asked, and goes on.
#[test]
fn an_export_that_is_looked_at_has_had_no_client() {
    let b = Bench::on_disk();
    b.write("disk", &[0; 1 << 20]);
    b.make_pool();
    let Some(mut far) = Far::of_qemu(&b) else { return };
    b.run_ok(&["volume", "add", "pool", "v", &uri(&b)]);
    // That was a client.
    far.0.wait().unwrap();
    let Some(mut far) = Far::of_qemu(&b) else { return };
    for command in ["status pool --json", "check pool --json", "status pool --json"] {
        let told = json(&b, &command.split(' ').collect::<Vec<_>>());
        assert_eq!(told["volumes"][0]["verdict"], "complete", "{command}: {told}");
        std::thread::sleep(Duration::from_millis(300));
        assert!(far.0.try_wait().unwrap().is_none(), "the server has ended after {command}");
    }
    drop(far);
    // It looks at the size, as before.
    fs::File::options().write(true).open(b.path("disk")).unwrap().set_len(1 << 19).unwrap();
    let Some(_far) = Far::of_qemu(&b) else { return };
    let told = json(&b, &["status", "pool", "--json"]);
    assert_ne!(told["volumes"][0]["verdict"], "complete", "{told}");
}
