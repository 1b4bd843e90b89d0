// SPDX-License-Identifier: MIT OR Apache-2.0
//! Goal: the file of `serve --ready-file` is there only while its server can be reached, or was
//! killed.  The next start removes what a killed server left, and nothing that is not its own.
//! Method: what may lie at the path, a start that is refused or not, and what lies there then.

mod common;

use std::fs;
use std::os::unix::fs::{chown, symlink, MetadataExt, PermissionsExt};
use std::process::Command;

use common::nbd::Served;
use common::Bench;

const READY: [&str; 2] = ["--ready-file", "ready"];

/// A process that waits for the file must not take a dead server for a ready one, whatever the
/// reason for the refusal is.
#[test]
fn what_a_killed_server_left_is_gone_before_a_start_is_refused() {
    let b = Bench::new();
    b.make_volume();
    let mut killed = Served::start(&b, &READY);
    let mode = fs::metadata(b.path("ready")).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o600, "who may open it may lock it");
    killed.process.kill().unwrap();
    killed.process.wait().unwrap();
    assert!(b.path("ready").exists());
    fs::rename(b.path("pool"), b.path("gone")).unwrap();
    assert_eq!(Served::try_start(&b, &READY).err(), Some(3));
    assert!(!b.path("ready").exists(), "the pool is gone, and the file says that it is served");
}

#[test]
fn what_is_not_its_own_is_left() {
    let b = Bench::new();
    b.make_volume();
    let kind = |b: &Bench| fs::symlink_metadata(b.path("ready")).unwrap();
    type Make = fn(&Bench);
    let makes: [(&str, Make); 6] = [
        ("a file", |b| b.write("ready", b"precious")),
        ("a directory", |b| fs::create_dir(b.path("ready")).unwrap()),
        ("a link to an empty file", |b| {
            b.write("empty", b"");
            symlink(b.path("empty"), b.path("ready")).unwrap();
        }),
        ("a link to nothing", |b| symlink("nowhere", b.path("ready")).unwrap()),
        ("a FIFO", |b| {
            let made = Command::new("mkfifo").arg(b.path("ready")).status();
            assert!(made.unwrap().success());
        }),
        ("an empty file of another user", |b| {
            b.write("ready", b"");
            if chown(b.path("ready"), Some(61_857), None).is_err() {
                b.write("ready", b"cannot be given away");
            }
        }),
    ];
    for (what, make) in makes {
        make(&b);
        let before = kind(&b);
        let code = Served::try_start(&b, &READY).err();
        assert!(code.is_some_and(|code| code != 0), "{what}: {code:?}");
        let after = kind(&b);
        assert_eq!((before.ino(), before.mode()), (after.ino(), after.mode()), "{what}");
        match after.is_dir() {
            true => fs::remove_dir(b.path("ready")).unwrap(),
            false => fs::remove_file(b.path("ready")).unwrap(),
        }
    }
    assert!(b.path("empty").exists() && !b.path("nowhere").exists());
}

/// Another server's operator took the first server for dead and replaced its file.
#[test]
fn a_file_that_took_its_place_is_left_at_the_end() {
    let b = Bench::new();
    b.make_volume();
    let mut served = Served::start(&b, &READY);
    b.write("other", b"");
    fs::rename(b.path("other"), b.path("ready")).unwrap();
    assert_eq!(served.stop(), Some(0));
    assert!(b.path("ready").exists(), "another file was removed");
}
