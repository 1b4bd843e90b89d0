// SPDX-License-Identifier: MIT OR Apache-2.0
//! A cluster that is a directory (`fake_rbd.c` says how it is led), and deliberate mistakes of
//! RBD origins, one at a time, that their tests have to find.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::OnceLock;

use libloading::Library;

const SOURCE: &str = include_str!("fake_rbd.c");

/// From now on this process has the fake for librados and librbd; before an image is opened.
/// The loader takes a library that is there by its name for the one that is installed.
pub fn load() {
    static LOADED: OnceLock<[Library; 2]> = OnceLock::new();
    LOADED.get_or_init(|| {
        let dir = std::env::temp_dir().join(format!("fby-fake-rbd-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a directory");
        compile(SOURCE, &dir, "librbd.so.1", &[]);
        // All is in the other, where the loader looks too.
        compile("", &dir, "librados.so.2", &["-Wl,--no-as-needed", "librbd.so.1"]);
        // SAFETY: they are ours, and have no initialisers.
        let open = |name| unsafe { Library::new(dir.join(name)) }.expect("what was compiled");
        let both = [open("librbd.so.1"), open("librados.so.2")];
        let _ = std::fs::remove_dir_all(&dir);
        both
    });
}

fn compile(source: &str, dir: &Path, name: &str, more: &[&str]) {
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let mut compiling = Command::new(&compiler)
        .current_dir(dir)
        .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-g", "-O1", "-pthread"])
        .args([
            "-shared",
            "-fPIC",
            &format!("-Wl,-soname,{name}"),
            "-o",
            name,
            "-xc",
            "-",
            "-xnone",
        ])
        .args(more)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap_or_else(|e| panic!("{compiler}: {e}"));
    compiling.stdin.take().expect("a pipe").write_all(source.as_bytes()).expect("it reads");
    assert!(compiling.wait().expect("it ends").success(), "{compiler} refuses {name}");
}

/// That were made, and not released.
pub fn completions() -> i32 {
    load();
    // SAFETY: the fake's, which is loaded, with its type.
    unsafe {
        let library = Library::new("librbd.so.1").expect("it is loaded");
        let ask = library.get::<unsafe extern "C" fn() -> c_int>("fake_rbd_completions");
        ask.expect("the fake is what is loaded")()
    }
}

macro_rules! bugs {
    ($($name:ident: $what:literal,)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Bug { $($name),* }
        /// And what is wrong.
        pub const BUGS: &[(Bug, &str)] = &[$((Bug::$name, $what)),*];
    };
}

bugs! {
    ErrorDropped: "a command that failed has ended well",
    BufferReused: "what is written is somebody else's before librbd has ended it",
    ShortReadTaken: "what lies behind the end of an image that has shrunk is read as zeroes",
    RefusalDropped: "nobody is told of a command that librbd did not take",
    CompletionLeft: "a completion is never released",
    CacheLeftOn: "librbd's own cache is on, so that a write that has ended is in memory alone",
    LockNotTaken: "an image is opened without its lock",
    FlushNotAsked: "a flush ends without the cluster's answer",
    LockLossIgnored: "it is written on to an image whose lock another client has",
    LockNotAskedFor: "the lock of an image that nobody writes to is not asked for",
    LockLostByOneAnswer: "the lock counts as lost by one answer, which librbd gives while it takes it anew",
    ResizeIgnored: "an image that has another size is complete",
    ChangeForgotten: "where the cluster does not tell the new size, nobody asks for it again",
    Overtaken: "what comes later for a place does not wait for what was given up on",
    FlushFailureForgotten: "a flush that failed after it was given up on is told to nobody",
    MarkSetLater: "a mark that was given up on before it was its turn is set later",
    MarkLeftAtTheEnd: "the mark of an image that is complete stays when that is let go of",
    MarkOvertaken: "a mark that was given up on is set after it was taken away",
}

/// 0: none.
static PLANTED: AtomicU32 = AtomicU32::new(0);

/// Until it is dropped.
#[derive(Debug)]
pub struct Planted;

pub fn plant(bug: Bug) -> Planted {
    PLANTED.store(bug as u32 + 1, Ordering::SeqCst);
    Planted
}

impl Drop for Planted {
    fn drop(&mut self) {
        PLANTED.store(0, Ordering::SeqCst);
    }
}

pub fn planted(bug: Bug) -> bool {
    PLANTED.load(Ordering::SeqCst) == bug as u32 + 1
}
