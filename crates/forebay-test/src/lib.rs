// SPDX-License-Identifier: MIT OR Apache-2.0
//! A test that cannot run on this machine counts as passed for cargo, which knows no third
//! outcome. [`skipped!`] makes it known all the same: it prints the test's name and what is
//! missing, and adds both to the file that `FOREBAY_SKIPS` names. `scripts/check` names and
//! counts those of a run in its summary; `scripts/skips` refuses a test that returns early
//! without it.
//!
//! [`memory`] is where tests make their pools, and [`Loop`] a loop device.
#![forbid(unsafe_code)]
#![deny(clippy::print_stdout)]

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

mod loops;

pub use loops::Loop;

/// The file to which skipped tests are added, one a line.
pub const FILE: &str = "FOREBAY_SKIPS";

/// Tells that the test of this thread, or a part of it, is skipped, and why: what is missing,
/// as a format string and its arguments. The caller returns from the test.
#[macro_export]
macro_rules! skipped {
    ($($why:tt)*) => {
        $crate::record(env!("CARGO_PKG_NAME"), &format!($($why)*))
    };
}

/// The implementation of [`skipped!`], for the crate of this name.
pub fn record(crate_name: &str, why: &str) {
    // The threads of tests bear the tests' names.
    let thread = std::thread::current();
    let line = format!("{crate_name}: {}: {why}", thread.name().unwrap_or("a thread of a test"));
    eprintln!("SKIPPED: {line}");
    if let Some(file) = std::env::var_os(FILE) {
        add(Path::new(&file), &line).unwrap_or_else(|e| panic!("{FILE}={}: {e}", file.display()));
    }
}

/// One write, so that lines of several processes do not mix.
fn add(file: &Path, line: &str) -> std::io::Result<()> {
    let line = line.replace('\n', " ");
    let mut file = File::options().append(true).create(true).open(file)?;
    file.write_all(format!("{line}\n").as_bytes())
}

/// The most that the tests of one binary need in [`memory`] at a time.
const ROOM: u64 = 512 << 20;

/// The directory where tests make pools and origins: `/dev/shm` where it has room for them, so
/// that they are fast, and else the one for temporary files. A container has 64 MiB of
/// `/dev/shm` unless it was asked for more.
pub fn memory() -> PathBuf {
    let shm = Path::new("/dev/shm");
    match rustix::fs::statvfs(shm) {
        Ok(fs) if has_room(fs.f_bavail.saturating_mul(fs.f_frsize)) => shm.into(),
        _ => std::env::temp_dir(),
    }
}

/// Runs a test of this program in a process of its own, with a umask by which others may read
/// nothing, and with this variable, by which the test knows that it is there.
///
/// # Panics
/// The test does not exist, or fails.
pub fn run_with_umask_0077(test: &str, variable: &str, value: &Path) {
    let program = std::env::current_exe().expect("the program of this test");
    let ran = std::process::Command::new("sh")
        .args(["-c", "umask 0077 && exec \"$0\" --exact \"$1\""])
        .arg(program)
        .arg(test)
        .env(variable, value)
        .output()
        .expect("a shell");
    let said = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success() && said.contains("test result: ok. 1 passed"), "{test}: {said}");
}

fn has_room(free_bytes: u64) -> bool {
    free_bytes >= ROOM
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_a_line_of_the_file() {
        let file = std::env::temp_dir().join(format!("forebay-test-{}", std::process::id()));
        add(&file, "one: of\ntwo lines").unwrap();
        add(&file, "another").unwrap();
        let told = std::fs::read_to_string(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        assert_eq!(told, "one: of two lines\nanother\n");
    }

    #[test]
    fn the_memory_of_a_container_is_too_small() {
        assert!(!has_room(64 << 20));
        assert!(has_room(1 << 30));
        assert!(memory().is_dir());
    }
}
