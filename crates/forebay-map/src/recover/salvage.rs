// SPDX-License-Identifier: MIT OR Apache-2.0
//! Copies the data that the pool has of a file to another directory: for files that are gone,
//! and for inspection before a discard.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::{read_run, Left};
use crate::error::{Error, Result};
use crate::pages::{PageSet, PAGE, SEGMENT};
use crate::planted::{self, Planted};
use crate::store::Store;

/// A file whose data was copied.
#[derive(Clone, Debug)]
pub struct Salvaged {
    /// The name, as in [`Left::name`].
    pub name: String,
    /// The copy: each page is at its offset in the file, with holes between pages.
    pub data: PathBuf,
    /// The list of the pages.  Each line has a word, an offset and a length in bytes.
    pub list: PathBuf,
    /// Pages that the file lacks.
    pub pages: usize,
    /// Pages that the file may lack, as they are in the pool.
    pub unknown: usize,
    /// Pages that the media does not give back.
    pub lost: usize,
}

/// Copies what the pool has of a file to new files.  Changes nothing else.
pub fn salvage(store: &dyn Store, left: &Left, dir: &Path) -> Result<Salvaged> {
    let safe = |c: char| if c.is_alphanumeric() || "._-".contains(c) { c } else { '_' };
    let last = left.path().and_then(|p| p.file_name()).map(|n| n.to_string_lossy().into_owned());
    let last = short(last.unwrap_or_else(|| "pages".into()).chars().map(safe));
    let number = match (left.id, left.frames.first()) {
        (Some(id), _) => id.to_string(),
        (None, Some((frame, _))) => format!("frame{frame}"),
        (None, None) => "none".into(),
    };
    let data = dir.join(format!("{number}-{last}"));
    let list = dir.join(format!("{number}-{last}.list"));
    std::fs::create_dir_all(dir).map_err(Error::system(dir, "make the directory"))?;
    let out = File::create_new(&data).map_err(Error::system(&data, "create"))?;
    let mut lines = Vec::new();
    let mut done = Salvaged { name: left.name(), data, list, pages: 0, unknown: 0, lost: 0 };
    let mut end = 0;
    for (frame, segment, begin) in places(&out, &left.frames) {
        if segment.checked_mul(SEGMENT as u64) != Some(begin) {
            lines.push(format!("moved {begin} {SEGMENT} from segment {segment}"));
        }
        let mut within = PageSet::ALL;
        if let Some(record) = left.record.as_ref().filter(|r| r.cut) {
            // The rest is already cut off.
            let inside = record.size.saturating_sub(begin).min(SEGMENT as u64) as usize;
            within = PageSet::of(0..inside.div_ceil(PAGE));
        }
        let (dirty, unknown) = store.left_dirty(frame)?;
        let (dirty, unknown) = (dirty.within(&within), unknown.within(&within));
        for (word, pages) in [("dirty", dirty), ("unknown", unknown)] {
            for run in pages.runs() {
                let at = |page: usize| begin + (page * PAGE) as u64;
                let mut copied = 0;
                let lost = read_run(store, frame, &run, &mut |first, bytes| {
                    if !bytes.is_empty() {
                        out.write_all_at(bytes, at(first))
                            .map_err(Error::system(&done.data, "write"))?;
                        lines.push(format!("{word} {} {}", at(first), bytes.len()));
                        copied += bytes.len() / PAGE;
                        end = end.max(at(first) + bytes.len() as u64);
                    }
                    Ok(())
                })?;
                lines.extend(lost.iter().map(|&page| format!("lost {} {PAGE}", at(page))));
                done.lost += lost.len();
                match word {
                    "dirty" => done.pages += copied,
                    _ => done.unknown += copied,
                }
            }
        }
    }
    // The last page may extend past the end of the file and is cut there.  If any other page
    // does, nothing is cut.
    let size = match left.record.as_ref() {
        Some(record) if planted::is(Planted::SalvageCutOff) => record.size,
        Some(record) if end < record.size.saturating_add(PAGE as u64) => record.size,
        _ => end,
    };
    // The file system of the copies may not support files of that size.
    let sized = out.set_len(size).or_else(|_| out.set_len(end));
    sized.map_err(Error::system(&done.data, "set its size"))?;
    out.sync_all().map_err(Error::system(&done.data, "sync"))?;
    let listed = File::create_new(&done.list).and_then(|mut list| {
        lines.iter().try_for_each(|line| writeln!(list, "{line}"))?;
        list.sync_all()?;
        File::open(dir)?.sync_all()
    });
    listed.map_err(Error::system(&done.list, "write"))?;
    Ok(done)
}

/// Shortens a name so that a number before it and `.list` after it still fit.
fn short(chars: impl Iterator<Item = char>) -> String {
    let mut name = String::new();
    for c in chars {
        if name.len() + c.len_utf8() > 200 {
            break;
        }
        name.push(c);
    }
    name
}

/// The offset of each frame in the copy: the offset of its segment in the file.  A segment
/// number that no file can have, or that another frame has too, is forged or damaged.  Such a
/// frame gets an unused place.
fn places(out: &File, frames: &[(u32, u64)]) -> Vec<(u32, u64, u64)> {
    let begin = |segment: u64| {
        let begin = segment.checked_mul(SEGMENT as u64)?;
        let end = begin.checked_add(SEGMENT as u64).filter(|&end| i64::try_from(end).is_ok())?;
        // Tests whether the file system supports this size.
        out.set_len(end).is_ok().then_some(begin)
    };
    let mut own: Vec<Option<u64>> = Vec::new();
    for &(_, segment) in frames {
        let place = begin(segment).filter(|at| !own.contains(&Some(*at)));
        own.push(place);
    }
    let mut free = (0..).map(|n| n * SEGMENT as u64).filter(|at| !own.contains(&Some(*at)));
    let place = |(&(frame, segment), own): (&(u32, u64), &Option<u64>)| {
        (frame, segment, own.unwrap_or_else(|| free.next().expect("there is no end")))
    };
    frames.iter().zip(&own).map(place).collect()
}
