// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a crash has left in a pool, to the files: before any of them is mapped again.
//!
//! It can be cut at any point and run again.  What cannot be brought home stays, and is
//! told by name.

use std::path::{Path, PathBuf};

use crate::backing::Backing;
use crate::error::{Error, Result};
use crate::pages::{PageSet, PAGE, SEGMENT};
use crate::planted::{self, Planted};
use crate::store::{FileRecord, Store};

/// What was done, and what was not.
#[derive(Debug, Default)]
pub struct Report {
    /// Files that have all that was synced.
    pub files: usize,
    /// Pages that were written to them.
    pub pages: usize,
    /// Files whose pages stay in the pool, and why.
    pub refused: Vec<(PathBuf, String)>,
    /// Frames that stay, since it is not known whose they are.
    pub strays: usize,
}

/// Brings all home.  `open` opens a file by its path.
pub fn recover(
    store: &dyn Store,
    open: impl Fn(&Path) -> Result<Box<dyn Backing>>,
) -> Result<Report> {
    let mut report = Report::default();
    let frames = store.frames()?;
    report.strays = frames.iter().filter(|f| f.file.is_none()).count();
    for (id, record) in store.files()? {
        let own: Vec<(u32, u64)> =
            frames.iter().filter(|f| f.file == Some(id)).map(|f| (f.frame, f.segment)).collect();
        match recover_file(store, id, &record, &own, &open) {
            Ok(pages) => {
                report.files += 1;
                report.pages += pages;
            }
            Err(e) => report.refused.push((PathBuf::from(&record.path), e.to_string())),
        }
    }
    Ok(report)
}

fn recover_file(
    store: &dyn Store,
    id: u32,
    record: &FileRecord,
    frames: &[(u32, u64)],
    open: &impl Fn(&Path) -> Result<Box<dyn Backing>>,
) -> Result<usize> {
    let path = PathBuf::from(&record.path);
    if record.damaged {
        let why = "its record in the pool is damaged".into();
        return Err(Error::Refused { path, why });
    }
    if frames.is_empty() && !record.cut {
        store.remove_file(id)?;
        return Ok(0);
    }
    let file = open(&path)?;
    if file.identity() != record.identity {
        return Err(Error::Another { path, why: "it is another file".into() });
    }
    let system = |doing| Error::system(&path, doing);
    let now = file.size().map_err(system("stat"))?;
    if now < record.size {
        let why = format!("it has {now} bytes, and had {} when it was mapped", record.size);
        return Err(Error::Another { path, why });
    }
    if record.cut {
        file.set_size(record.size).map_err(system("truncate"))?;
        file.sync().map_err(system("sync"))?;
        store.cut_end(id)?;
    }
    // Behind it nothing was synced, though the last page may have more.
    let size = record.size;
    let (mut begun, mut unknown, mut count) = (Vec::new(), 0, 0);
    let mut bytes = Vec::new();
    for &(frame, segment) in frames {
        unknown += store.dirty(frame)?.1.len();
        let pages = store.write_begin(frame, &PageSet::ALL)?;
        for run in pages.runs() {
            let at = run.start * PAGE;
            let to = segment * SEGMENT as u64 + at as u64;
            bytes.resize(size.saturating_sub(to).min((run.len() * PAGE) as u64) as usize, 0);
            store.copy(frame, at, &mut bytes)?;
            file.write_at(to, &bytes).map_err(system("write"))?;
        }
        count += pages.len();
        begun.push((frame, pages));
    }
    if !planted::is(Planted::ClearedBeforeSync) {
        file.sync().map_err(system("sync"))?;
    }
    for (frame, pages) in begun {
        store.write_end(frame, &pages)?;
        if store.dirty(frame)?.1.is_empty() {
            store.release(frame, false)?;
        }
    }
    if unknown > 0 {
        let why = format!("of {unknown} pages it is not known whether the file lacks them");
        return Err(Error::Refused { path, why });
    }
    store.remove_file(id)?;
    Ok(count)
}
