// SPDX-License-Identifier: MIT OR Apache-2.0
//! Loop devices for tests.  A machine may have only a few, and tests run at the same time: so a
//! test waits for one, as `tests/loops.sh` does for scripts.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// How often a device is asked for, and how often where others do not have them all: another
/// process may take the device that was found.
const TRIES: u32 = 600;
const RACES: u32 = 20;
const BETWEEN: Duration = Duration::from_millis(100);

/// A loop device, detached when it is dropped.
#[derive(Debug)]
pub struct Loop(PathBuf);

impl Loop {
    /// Attaches a device to the file, with these options of losetup.  The error says why there
    /// is none, and who has them.
    pub fn attach(file: &Path, options: &[&str]) -> Result<Loop, String> {
        let mut tries = 1;
        loop {
            let words = options.iter().map(OsStr::new).chain(["--find", "--show"].map(OsStr::new));
            let error = match losetup(words.chain([file.as_os_str()])) {
                Ok(device) => return Ok(Loop(device.into())),
                Err(error) => error,
            };
            let all = losetup(["--list", "--noheadings", "--output", "NAME,BACK-FILE"]);
            let attached = all.unwrap_or_default();
            let free = losetup(["--find"]).is_ok_and(|device| Path::new(&device).exists());
            let others_have_all = !free && !attached.is_empty();
            if tries >= TRIES || tries >= RACES && !others_have_all {
                return Err(format!("no loop device ({error}); attached: {attached}"));
            }
            tries += 1;
            std::thread::sleep(BETWEEN);
        }
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let detached = losetup([OsStr::new("--detach"), self.0.as_os_str()]);
        if let (Err(error), false) = (detached, std::thread::panicking()) {
            panic!("{}: {error}", self.0.display());
        }
    }
}

/// Runs losetup: returns its output, or why it failed.
fn losetup<W: AsRef<OsStr>>(words: impl IntoIterator<Item = W>) -> Result<String, String> {
    let out = Command::new("losetup").args(words).output().map_err(|e| format!("losetup: {e}"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_string();
    if out.status.success() {
        Ok(text(&out.stdout))
    } else {
        Err(text(&out.stderr))
    }
}
