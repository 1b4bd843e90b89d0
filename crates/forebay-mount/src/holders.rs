// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds the processes that hold a lock (flock) on a file or directory, from /proc/locks.

use std::fs;

/// The holders for an inode number, in words, as far as this process may inspect others.
pub fn of_lock(ino: u64) -> Vec<String> {
    let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
    let holders = locks.lines().filter_map(|line| holder(line, ino));
    holders.map(forebay::process_in_words).collect()
}

/// Parses a line such as `1: FLOCK ADVISORY WRITE 4711 fd:01:131073 0 EOF`; a waiter has an
/// arrow before FLOCK.
fn holder(line: &str, ino: u64) -> Option<u32> {
    let mut words = line.split_whitespace();
    let (_, "FLOCK", _, _) = (words.next()?, words.next()?, words.next()?, words.next()?) else {
        return None;
    };
    let (pid, inode) = (words.next()?, words.next()?);
    let found = inode.rsplit(':').next()?.parse() == Ok(ino);
    pid.parse().ok().filter(|_| found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_holder_of_a_lock_is_named() {
        assert_eq!(holder("1: FLOCK  ADVISORY  WRITE 4711 fd:01:131073 0 EOF", 131073), Some(4711));
        assert_eq!(holder("1: FLOCK  ADVISORY  WRITE 4711 fd:01:131073 0 EOF", 131074), None);
        assert_eq!(holder("1: -> FLOCK  ADVISORY  WRITE 4711 fd:01:131073 0 EOF", 131073), None);
        assert_eq!(holder("2: POSIX  ADVISORY  WRITE 12 00:1b:77 0 EOF", 77), None);
        assert_eq!(holder("3: FLOCK", 77), None);

        let path = std::env::temp_dir().join(format!("forebay-holders-{}", std::process::id()));
        let file = fs::File::create(&path).expect("a file");
        let ino = std::os::unix::fs::MetadataExt::ino(&file.metadata().expect("of a file"));
        let me = forebay::process_in_words(std::process::id());
        assert!(!of_lock(ino).contains(&me));
        rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).expect("a lock");
        assert!(of_lock(ino).contains(&me), "{:?}", of_lock(ino));
        fs::remove_file(&path).expect("it was made");
    }
}
