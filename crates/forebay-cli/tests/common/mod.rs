// SPDX-License-Identifier: MIT OR Apache-2.0
//! A directory to try the command in, gone when dropped.
#![allow(dead_code)] // each test file uses its part

pub mod maps;
pub mod nbd;

use std::fs;
use std::os::unix::fs::{chown, MetadataExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use forebay::{AttachOptions, Pool, PoolOptions};

pub struct Bench(PathBuf);

#[derive(Debug)]
pub struct Output {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

/// Runs a command in a mount namespace of its own.
pub const APART: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/apart");

impl Bench {
    /// Uses a file system in memory if there is one, which makes the tests fast.
    pub fn new() -> Bench {
        Bench::in_directory(&forebay_test::memory())
    }

    /// Uses a file system that is not in memory, as far as that can be seen.
    pub fn on_disk() -> Bench {
        Bench::in_directory(Path::new(env!("CARGO_TARGET_TMPDIR")))
    }

    fn in_directory(parent: &Path) -> Bench {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        loop {
            let number = NUMBER.fetch_add(1, Ordering::Relaxed);
            let directory = parent.join(format!("forebay-cli-{}-{number}", std::process::id()));
            match fs::create_dir(&directory) {
                Ok(()) => return Bench(directory),
                // A process of that number was killed, and has left it.
                Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(e) => panic!("{}: {e}", directory.display()),
            }
        }
    }

    pub fn directory(&self) -> &Path {
        &self.0
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub fn write(&self, name: &str, bytes: &[u8]) {
        fs::write(self.path(name), bytes).unwrap();
    }

    /// Edits a file in place, because the identity of an origin may be its inode.
    pub fn edit(&self, name: &str, edit: impl FnOnce(&mut [u8])) {
        let mut bytes = fs::read(self.path(name)).unwrap();
        edit(&mut bytes);
        fs::write(self.path(name), bytes).unwrap();
    }

    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
        command
            .args(words)
            .current_dir(&self.0)
            .env("FOREBAY_RUNTIME_DIR", self.path("run"))
            .env("FOREBAY_STATE_DIR", self.path("state"))
            .env_remove("XDG_RUNTIME_DIR")
            .stdin(Stdio::null());
        command
    }

    pub fn run(&self, words: &[&str]) -> Output {
        let out = self.command(words).output().unwrap();
        Output {
            code: out.status.code(),
            stdout: String::from_utf8_lossy(&out.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&out.stderr).into_owned(),
        }
    }

    pub fn run_ok(&self, words: &[&str]) -> Output {
        let out = self.run(words);
        assert_eq!(out.code, Some(0), "{words:?}: {}{}", out.stdout, out.stderr);
        out
    }

    /// Makes a pool of seven chunks.
    pub fn make_pool(&self) {
        self.run_ok(&["create", "pool", "--size", "16M"]);
    }

    /// Makes a pool, and a volume v of 1 MiB on the file origin.
    pub fn make_volume(&self) {
        self.make_pool();
        self.write("origin", &[0; 1 << 20]);
        self.run_ok(&["volume", "add", "pool", "v", "origin"]);
    }

    pub fn write_to_volume(&self, offset: u64, data: &[u8]) {
        self.write_all_to_volume(&[(offset, data)]);
    }

    pub fn write_all_to_volume(&self, writes: &[(u64, &[u8])]) {
        let pool = Pool::open(&self.path("pool"), &PoolOptions::default()).unwrap();
        let volume = pool.attach("v", &AttachOptions::default()).unwrap();
        for (offset, data) in writes {
            volume.write_at(data, *offset).unwrap();
        }
        volume.detach().unwrap();
        pool.close().unwrap();
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}

/// Runs a command, after other shell commands, as a user to whom a limit on threads applies.  No
/// such limit applies to root, so root becomes an unused user.  The program runs from an open
/// descriptor, because that user may not reach its path.
pub fn as_a_user(b: &Bench, before: &str, words: &[&str]) -> Command {
    let command = b.command(words);
    let mut limited = Command::new("bash");
    limited.args(["-c", &format!("{before} exec /proc/self/fd/0 \"$@\""), "bash"]);
    limited.args(command.get_args()).current_dir(b.directory());
    limited.env("FOREBAY_STATE_DIR", b.path("state"));
    limited.env("FOREBAY_RUNTIME_DIR", b.path("run")).env_remove("XDG_RUNTIME_DIR");
    limited.stdin(fs::File::open(command.get_program()).unwrap());
    of_a_user(b, &mut limited);
    limited
}

/// Whether a limit on threads applies to the user of [`as_a_user`].  No limit applies to root, and
/// in a container root may be unable to become another user.
pub fn limits_hold(b: &Bench) -> bool {
    let owner = fs::metadata(b.directory()).unwrap().uid();
    owner != 0 || chown(b.directory(), Some(NOBODY), Some(NOBODY)).is_ok()
}

const NOBODY: u32 = 61_857;

/// Makes that user run the command and own the directory.
pub fn of_a_user<'c>(b: &Bench, command: &'c mut Command) -> &'c mut Command {
    if chown(b.directory(), Some(NOBODY), Some(NOBODY)).is_err() {
        return command;
    }
    for entry in fs::read_dir(b.directory()).unwrap() {
        chown(entry.unwrap().path(), Some(NOBODY), Some(NOBODY)).unwrap();
    }
    command.uid(NOBODY).gid(NOBODY)
}

/// The format's checksum, bit by bit.
pub fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            (crc >> 1) ^ (0x82f6_3b78 & (crc & 1).wrapping_neg())
        })
    })
}
