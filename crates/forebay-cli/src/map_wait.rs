// SPDX-License-Identifier: MIT OR Apache-2.0
//! A recovery that waits until the server has written back what dead processes left, so that
//! its end says what is so.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use forebay_map_server::orders::{MapFiles, OfFile, Recovered, RecoveredMap};

/// A living process writes back what it has synced within half a second, unless it syncs all the
/// time.
const WRITES_BACK: Duration = Duration::from_secs(2);
/// How long a write-back may make no progress, as where another program has the file locked.
const PATIENCE: Duration = Duration::from_secs(120);
/// The time between two rounds.
const ROUND: Duration = Duration::from_millis(100);

/// Whether a user's names include the file.
pub fn is_named(f: &OfFile, names: &[PathBuf]) -> bool {
    let number = f.number.map(|id| format!("#{id}"));
    names.iter().any(|n| *n == Path::new(&f.file) || n.to_str() == number.as_deref())
}

/// Recovers in rounds until nothing is under way.  `recover` is one round, of these files; none:
/// of all.  `list` lists what the pool has.
pub fn recovered<E>(
    files: &[PathBuf],
    recover: &mut dyn FnMut(&[PathBuf]) -> Result<Recovered, E>,
    list: &mut dyn FnMut() -> Result<Vec<MapFiles>, E>,
) -> Result<Recovered, E> {
    let begun = Instant::now();
    let mut done = recover(files)?;
    let (mut left, mut since) = (under_way(&done), begun);
    while left != (0, 0, 0) {
        let waits = match left {
            (0, ..) => begun.elapsed() < WRITES_BACK,
            _ => since.elapsed() < PATIENCE,
        };
        if !waits {
            break;
        }
        std::thread::sleep(ROUND);
        // The pool has nothing more of files that were written back, and refuses their names.
        let names = known(files, &list()?);
        let next = match (files.is_empty(), names.is_empty()) {
            (false, true) => nothing(&done),
            _ => match recover(&names) {
                Ok(next) => next,
                Err(_) if names.len() > known(files, &list()?).len() => continue,
                Err(e) => return Err(e),
            },
        };
        let now = under_way(&next);
        if now != left {
            (left, since) = (now, Instant::now());
        }
        done = both(done, next);
    }
    Ok(done)
}

/// The files that the server writes back, those that processes have, and their pages.
fn under_way(done: &Recovered) -> (usize, usize, usize) {
    let mapped = done.maps.iter().flat_map(|m| &m.stays).filter(|s| s.mapped_by.is_some());
    mapped.fold((0, 0, 0), |(ending, living, pages), s| match s.ending {
        true => (ending + 1, living, pages + s.pages),
        false => (ending, living + 1, pages + s.pages),
    })
}

fn known(files: &[PathBuf], listed: &[MapFiles]) -> Vec<PathBuf> {
    let all = || listed.iter().flat_map(|m| &m.files);
    let is_there = |name: &&PathBuf| all().any(|f| is_named(f, std::slice::from_ref(*name)));
    files.iter().filter(is_there).cloned().collect()
}

/// The result of a round that had nothing to do.
fn nothing(done: &Recovered) -> Recovered {
    let of = |m: &RecoveredMap| RecoveredMap { files: 0, pages: 0, stays: Vec::new(), ..m.clone() };
    let maps: Vec<_> = done.maps.iter().map(of).collect();
    Recovered { complete: maps.iter().all(|m| !m.damaged), maps, ..*done }
}

/// Joins the results of two rounds: the pages that both wrote back, and what stays after the
/// second.
fn both(first: Recovered, second: Recovered) -> Recovered {
    let add = |mut m: RecoveredMap| {
        if let Some(before) = first.maps.iter().find(|of| of.map == m.map) {
            (m.files, m.pages) = (m.files + before.files, m.pages + before.pages);
        }
        m
    };
    let maps = second.maps.into_iter().map(add).collect();
    Recovered { maps, ..second }
}

#[cfg(test)]
mod tests {
    use super::*;

    use forebay_map_server::orders::Stays;

    fn round(pages: usize, stays: Vec<Stays>) -> Recovered {
        let complete = stays.is_empty();
        let map = RecoveredMap { map: "db".into(), damaged: false, files: 0, pages, stays };
        Recovered { dry_run: false, complete, maps: vec![map] }
    }

    fn stays(ending: bool, mapped_by: Option<u32>) -> Stays {
        let (file, why) = ("/f".to_owned(), String::new());
        Stays { file, number: Some(1), why, pages: 1, mapped_by, ending }
    }

    /// Pages that a write-back could not write stay, and are named after it.
    #[test]
    fn what_a_write_back_leaves_is_reported_after_it() {
        let mut rounds = vec![
            round(0, vec![stays(false, None)]),
            round(3, vec![stays(true, Some(1))]),
            round(2, vec![stays(true, Some(1))]),
        ];
        let mut recover = |_: &[PathBuf]| rounds.pop().ok_or("one round too many");
        let done = recovered(&[], &mut recover, &mut || Ok(Vec::new())).expect("rounds");
        let map = &done.maps[0];
        assert!(!done.complete && map.pages == 5, "{done:?}");
        assert!(map.stays.len() == 1 && map.stays[0].mapped_by.is_none(), "{done:?}");
        assert!(rounds.is_empty());
    }

    /// The pool refuses a name of which it has nothing.
    #[test]
    fn a_file_that_was_written_back_is_not_asked_for_again() {
        let mut rounds = vec![round(0, vec![stays(true, Some(1))])];
        let mut recover = |_: &[PathBuf]| rounds.pop().ok_or("not found");
        let named = ["/f".into()];
        let done = recovered(&named, &mut recover, &mut || Ok(Vec::new())).expect("one round");
        assert!(done.complete, "{done:?}");
    }
}
