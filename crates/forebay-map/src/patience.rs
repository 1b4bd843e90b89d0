// SPDX-License-Identifier: MIT OR Apache-2.0
//! How long the kernel delays an open of a file of which another process has a lease.
//!
//! The kernel's setting is read again and again, by a thread of the library.  An open by that
//! thread would take the lowest free descriptor number, which the program may expect for its own
//! next open.  So one descriptor stays open, at a number that the program does not expect.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use forebay_engine::lasting::{self, Lasting};

/// The kernel's setting, in seconds; zero: it waits without end.
const SETTING: &str = "/proc/sys/fs/lease-break-time";
/// The shortest time that the kernel can be set to.  It is the safe one if the setting cannot be
/// read: no change by others is taken for one of ours.
const SHORTEST: Duration = Duration::from_secs(1);

/// The open setting.
#[derive(Debug)]
pub(crate) struct Patience(Option<Lasting<File>>);

impl Patience {
    pub fn open() -> Patience {
        Patience::of(Path::new(SETTING))
    }

    fn of(path: &Path) -> Patience {
        Patience(lasting::open(|| File::open(path)).ok())
    }

    /// The time that is set now.  None: without end.
    pub fn now(&self) -> Option<Duration> {
        let mut told = [0; 32];
        let read = self.0.as_ref().and_then(|file| {
            lasting::check(file.as_fd()).ok()?;
            file.read_at(&mut told, 0).ok()
        });
        let told = read.and_then(|n| std::str::from_utf8(&told[..n]).ok()?.trim().parse().ok());
        match told {
            Some(0) => None,
            Some(seconds) => Some(Duration::from_secs(seconds)),
            None => Some(SHORTEST),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_that_cannot_be_read_is_the_shortest_time() {
        let dir = std::env::temp_dir().join(format!("forebay-patience-{}", std::process::id()));
        let seconds = |n| Some(Duration::from_secs(n));
        assert_eq!(Patience::of(&dir).now(), seconds(1), "it does not exist");
        std::fs::write(&dir, "45\n").expect("a file");
        let open = Patience::of(&dir);
        assert_eq!(open.now(), seconds(45));
        // The setting is read at each query.
        for (text, expected) in
            [("0\n", None), ("7\n", seconds(7)), ("no", seconds(1)), ("", seconds(1))]
        {
            std::fs::write(&dir, text).expect("a file");
            assert_eq!(open.now(), expected, "{text:?}");
        }
        let _ = std::fs::remove_file(dir);
    }
}
