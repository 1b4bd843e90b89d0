// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the pool has of a file, copied to another directory: for files that are gone, and for
//! a look before anything is given up.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::{read_run, Left};
use crate::error::{Error, Result};
use crate::pages::{PAGE, SEGMENT};
use crate::store::Store;

/// A file of which something was copied.
#[derive(Clone, Debug)]
pub struct Salvaged {
    /// As [`Left::name`].
    pub name: String,
    /// The pages, each where it is in the file; holes between them.
    pub data: PathBuf,
    /// Which they are: a line each of a word, an offset and a length in bytes.
    pub list: PathBuf,
    /// Pages that the file lacks.
    pub pages: usize,
    /// Pages of which it is not known whether the file lacks them: as they are in the pool.
    pub unknown: usize,
    /// Pages that the media does not give back.
    pub lost: usize,
}

/// Copies what the pool has of a file, and changes nothing.  The files are new ones.
pub fn salvage(store: &dyn Store, left: &Left, dir: &Path) -> Result<Salvaged> {
    let safe = |c: char| if c.is_alphanumeric() || "._-".contains(c) { c } else { '_' };
    let last = left.path().and_then(|p| p.file_name()).map(|n| n.to_string_lossy().into_owned());
    let last: String = last.unwrap_or_else(|| "pages".into()).chars().map(safe).take(100).collect();
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
    for &(frame, segment) in &left.frames {
        let (dirty, unknown) = store.left_dirty(frame)?;
        for (word, pages) in [("dirty", dirty), ("unknown", unknown)] {
            for run in pages.runs() {
                let at = |page: usize| segment * SEGMENT as u64 + (page * PAGE) as u64;
                let mut copied = 0;
                let lost = read_run(store, frame, &run, &mut |first, bytes| {
                    if !bytes.is_empty() {
                        out.write_all_at(bytes, at(first))
                            .map_err(Error::system(&done.data, "write"))?;
                        lines.push(format!("{word} {} {}", at(first), bytes.len()));
                        copied += bytes.len() / PAGE;
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
    // A page may go beyond the end of the file.
    if let Some(record) = left.record.as_ref() {
        out.set_len(record.size).map_err(Error::system(&done.data, "set its size"))?;
    }
    out.sync_all().map_err(Error::system(&done.data, "sync"))?;
    let listed = File::create_new(&done.list).and_then(|mut list| {
        lines.iter().try_for_each(|line| writeln!(list, "{line}"))?;
        list.sync_all()?;
        File::open(dir)?.sync_all()
    });
    listed.map_err(Error::system(&done.list, "write"))?;
    Ok(done)
}
