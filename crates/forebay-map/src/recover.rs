// SPDX-License-Identifier: MIT OR Apache-2.0
//! Recovery: lists what a crash left in a pool and writes it to the files before any of them is
//! mapped again.  Data that cannot be written to its file can be copied elsewhere or discarded
//! by order of the user.
//!
//! A recovery can be interrupted at any point and run again.  Data that cannot be written stays
//! in the pool and is reported by name, with the reason: the file is gone, replaced or shorter;
//! the media does not return a page; metadata is damaged.  One such file does not hold up the
//! others.

use std::path::{Path, PathBuf};

use forebay::FoundMark;

use crate::backing::Backing;
use crate::error::{cannot_mark, lacks_rights, lacks_space, Error, Result};
use crate::marking::{Marking, Of};
use crate::pages::{PageSet, PAGE, SEGMENT};
use crate::planted::{self, Planted};
use crate::store::{not_foreign, FileRecord, Stamp, Store, Synced};

pub use renamed::open_of;
pub use salvage::{salvage, Salvaged};

mod renamed;
mod salvage;
#[cfg(test)]
mod tests;

/// The data that the pool has of one file.
#[derive(Clone, Debug, Default)]
pub struct Left {
    /// The number of its record.  None: frames whose file is unknown.
    pub id: Option<u32>,
    /// The content of the record, if it can be read.
    pub record: Option<FileRecord>,
    /// Each frame with the segment that it holds.
    pub frames: Vec<(u32, u64)>,
    /// Pages that the file lacks.
    pub dirty: usize,
    /// Pages that the file may lack.
    pub unknown: usize,
}

impl Left {
    /// The path that the file had.
    pub fn path(&self) -> Option<&Path> {
        self.record.as_ref().map(|r| Path::new(&r.path))
    }

    /// The name by which a user refers to it: the path; `#3` for record 3 if that is damaged;
    /// `frame#7` for a frame of which nothing is known.
    pub fn name(&self) -> String {
        match (&self.record, self.id, self.frames.first()) {
            (Some(record), ..) => record.path.clone(),
            (None, Some(id), _) => format!("#{id}"),
            (None, None, Some((frame, _))) => format!("frame#{frame}"),
            (None, None, None) => "nothing".into(),
        }
    }

    /// Whether a name refers to it.  The record's number always does, since two files may have
    /// had the same path.
    pub fn is_named(&self, name: &Path) -> bool {
        let number = self.id.map(|id| format!("#{id}"));
        name.as_os_str() == self.name().as_str()
            || number.is_some_and(|number| name.as_os_str() == number.as_str())
    }
}

/// All data in the pool, file by file, in the order of record numbers.
pub fn left(store: &dyn Store) -> Result<Vec<Left>> {
    let mut frames = store.frames()?;
    let mut all = Vec::new();
    for (id, record) in store.files()? {
        // A frame that refers to an earlier use of a sound record does not belong to it.
        let own: Vec<bool> = frames
            .iter()
            .map(|f| f.file == Some(id) || (record.damaged && f.of == Some(id)))
            .collect();
        let record = (!record.damaged).then_some(record);
        let mut of = Left { id: Some(id), record, ..Left::default() };
        for (f, _) in frames.iter().zip(&own).filter(|(_, own)| **own) {
            of.add(store, f.frame, f.segment)?;
        }
        frames = frames.into_iter().zip(own).filter(|(_, own)| !own).map(|(f, _)| f).collect();
        all.push(of);
    }
    for f in frames {
        let mut of = Left::default();
        of.add(store, f.frame, f.segment)?;
        all.push(of);
    }
    Ok(all)
}

impl Left {
    fn add(&mut self, store: &dyn Store, frame: u32, segment: u64) -> Result<()> {
        let (dirty, unknown) = store.left_dirty(frame)?;
        self.frames.push((frame, segment));
        self.dirty += dirty.len();
        self.unknown += unknown.len();
        Ok(())
    }
}

/// The scope and mode of a recovery.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options<'a> {
    /// Only reports what it would do.
    pub dry_run: bool,
    /// Writes to the file even if others have changed it or it does not bear the mark.
    pub accept: bool,
    /// The names ([`Left::is_named`]) of the files to recover.  Empty: all files.
    pub only: &'a [PathBuf],
}

/// A file whose pages stay in the pool.
#[derive(Clone, Debug)]
pub struct Refused {
    pub name: PathBuf,
    pub id: Option<u32>,
    /// The reason.
    pub why: String,
    /// Pages that stay in the pool, which the file lacks or may lack.
    pub pages: usize,
}

/// The result of a recovery.
#[derive(Debug, Default)]
pub struct Report {
    /// Files that now have all synced data.
    pub files: usize,
    /// Pages that were written to files.
    pub pages: usize,
    /// Files whose pages stay in the pool.
    pub refused: Vec<Refused>,
    /// Frames that stay because their file is unknown.
    pub strays: usize,
}

/// The progress of a recovery of one file, in pages.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    pub name: &'a str,
    pub done: usize,
    pub of: usize,
}

/// Writes everything to the files.  `open` opens a file by its path and locks it.
pub fn recover(
    store: &dyn Store,
    open: impl Fn(&Path) -> Result<Box<dyn Backing>>,
) -> Result<Report> {
    recover_some(store, &open, &Options::default(), &mut |_| {})
}

/// Recovers some files, or only reports what a recovery would do.
pub fn recover_some(
    store: &dyn Store,
    open: &dyn Fn(&Path) -> Result<Box<dyn Backing>>,
    options: &Options<'_>,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<Report> {
    let wanted = |l: &Left| options.only.is_empty() || options.only.iter().any(|n| l.is_named(n));
    let all: Vec<Left> = left(store)?.into_iter().filter(wanted).collect();
    let mut report = Report::default();
    let of = all.iter().map(|l| l.dirty).sum();
    let mut before = 0;
    for l in &all {
        let name = l.name();
        let mut tell = |done| progress(Progress { name: &name, done: before + done, of });
        tell(0);
        match (Recovery { store, left: l, options, marking: Marking::default() })
            .run(open, &mut tell)
        {
            Ok(pages) => {
                report.files += 1;
                report.pages += pages;
            }
            Err(Stays { done, why }) => {
                report.pages += done;
                if l.id.is_none() {
                    report.strays += 1;
                }
                let pages = l.dirty - done + l.unknown;
                report.refused.push(Refused { name: name.clone().into(), id: l.id, why, pages });
            }
        }
        before += l.dirty;
    }
    Ok(report)
}

/// A frame with pages that a dead process had stored and not synced.
struct Stored {
    frame: u32,
    /// The range of the file that the frame holds.
    at: u64,
    inside: usize,
    pages: PageSet,
}

/// Makes durable what a dead process had stored to a file and not synced.  The memory has
/// outlived the process, as a page cache would, and the machine has not stopped since.  The
/// caller has the file locked, and no process stores to its frames.  Does nothing if the file
/// does not match its record, was given up, or bears a mark that this map has not set.  Returns
/// the number of pages that are not kept because the disk has no room.
pub fn keep_stores(store: &dyn Store, id: u32, file: &dyn Backing) -> Result<usize> {
    let system = |doing| Error::system(file.path(), doing);
    not_foreign(store)?;
    let record = store.files()?.into_iter().find(|(of, _)| *of == id);
    let Some((_, record)) = record else { return Ok(0) };
    let changed = file.changed().map_err(system("stat"))?;
    let is_it = !record.cut && !record.damaged && file.identity() == record.identity;
    if !is_it || !record.stamp.explains(changed) {
        return Ok(0);
    }
    let now = file.size().map_err(system("stat"))?;
    let size = record.grows.map_or(record.size, |g| now.min(g.ahead).max(record.size));
    let (mut stored, is_dirty) = stored(store, id, file, size)?;
    // The file was marked before its first dirty page and before it grew.
    let holds = is_dirty || record.grows.is_some();
    // It has another size, so it could not be marked.
    let resized = !holds && now != record.size;
    if stored.is_empty() && size == record.size && !resized {
        return Ok(0);
    }
    let found = found_mark(file, holds)?;
    let is_ours = matches!(&found, FoundMark::Marked(mark) if store.claim().has_set(mark));
    let may_mark = found == FoundMark::Nothing && !holds;
    if !is_ours && !may_mark && !planted::is(Planted::MarkedOver) {
        return Ok(0);
    }
    let of = Of { store, id, backing: file };
    let without_mark = resized && may_mark;
    if without_mark {
        stored = self::stored(store, id, file, now)?.0;
    }
    let all = pages_in(&stored);
    stored = with_blocks(of, stored)?;
    let not_kept = all - pages_in(&stored);
    if !stored.is_empty() {
        if without_mark {
            return Ok(not_kept + pages_in(&written(of, stored)?));
        }
        match if is_ours { Ok(()) } else { file.mark(store.claim()) } {
            Ok(()) => {}
            // A mark needs room and rights.  The file lacks nothing that was synced, so that it can
            // do without.
            Err(e) if cannot_mark(&e) && may_mark && !planted::is(Planted::MarkNeeded) => {
                return Ok(not_kept + pages_in(&written(of, stored)?));
            }
            Err(e) => return Err(system("mark it")(e)),
        }
        // The blocks, of the dead process too, may not be durable: a mark may be in another file.
        if !planted::is(Planted::BlocksNotSynced) {
            file.sync().map_err(system("sync"))?;
        }
    }
    if size > record.size && !planted::is(Planted::GrowthForgotten) {
        store.promise(id, size)?;
    }
    for Stored { frame, pages, .. } in stored {
        if store.sync(frame, &pages)? == Synced::BehindEnd {
            return Err(Error::Pool("a page that a process had stored is after the end".into()));
        }
    }
    Ok(not_kept)
}

fn pages_in(stored: &[Stored]) -> usize {
    stored.iter().map(|s| s.pages.len()).sum()
}

/// The mark of a file.  `holds`: the pool has pages that the file may lack.  Who may not read the
/// mark could not have set it, so that a file which lacks nothing counts as one without.
fn found_mark(file: &dyn Backing, holds: bool) -> Result<FoundMark> {
    match file.marked() {
        Err(e) if lacks_rights(&e) && !holds => Ok(FoundMark::Nothing),
        found => found.map_err(Error::system(file.path(), "its mark")),
    }
}

/// Writes stores that nobody has synced to a file that lacks nothing else, as a page cache does.
/// Returns those for which the disk has no room.
fn written(of: Of<'_>, mut stored: Vec<Stored>) -> Result<Vec<Stored>> {
    let (file, marking) = (of.backing, Marking::default());
    for Stored { frame, at, inside, pages } in &mut stored {
        let mut bytes = vec![0; *inside];
        of.store.copy(*frame, 0, &mut bytes)?;
        for run in pages.runs() {
            let (from, end) = (run.start * PAGE, (run.end * PAGE).min(*inside));
            let _change = marking.change(of)?;
            match file.write_at(*at + from as u64, &bytes[from..end]) {
                Err(e) if lacks_space(&e) => {}
                done => {
                    done.map_err(Error::system(file.path(), "write"))?;
                    *pages = pages.without(&PageSet::of(run));
                }
            }
        }
    }
    file.sync().map_err(Error::system(file.path(), "sync"))?;
    stored.retain(|s| !s.pages.is_empty());
    Ok(stored)
}

/// The frames of a file of this size that differ from it, and whether a frame has a page that the
/// file lacks or may lack.
fn stored(
    store: &dyn Store,
    id: u32,
    file: &dyn Backing,
    size: u64,
) -> Result<(Vec<Stored>, bool)> {
    let (mut all, mut is_dirty) = (Vec::new(), false);
    for of in store.frames()?.into_iter().filter(|f| f.file == Some(id)) {
        let (dirty, unknown) = store.left_dirty(of.frame)?;
        is_dirty |= !dirty.is_empty() || !unknown.is_empty();
        let at = of.segment * SEGMENT as u64;
        let inside = size.saturating_sub(at).min(SEGMENT as u64) as usize;
        let pages = differing(store, of.frame, file, at, inside);
        if !pages.is_empty() {
            all.push(Stored { frame: of.frame, at, inside, pages });
        }
    }
    Ok((all, is_dirty))
}

/// The frames whose ranges have blocks, after an attempt to allocate missing ones.
fn with_blocks(of: Of<'_>, mut stored: Vec<Stored>) -> Result<Vec<Stored>> {
    let (file, marking) = (of.backing, Marking::default());
    let mut refused = Ok(());
    stored.retain(|&Stored { at, inside, .. }| {
        if matches!(file.has_hole(at, inside as u64), Ok(false)) {
            return true;
        }
        // Allocating blocks counts as a change of ours.
        match marking.change(of) {
            Ok(_change) => file.allocate(at, inside as u64).is_ok(),
            Err(e) => {
                refused = Err(e);
                false
            }
        }
    });
    refused.map(|()| stored)
}

/// The pages of a frame whose memory differs from the file; all pages if one of the two cannot
/// be read.
pub(crate) fn differing(
    store: &dyn Store,
    frame: u32,
    file: &dyn Backing,
    at: u64,
    inside: usize,
) -> PageSet {
    let (mut here, mut there) = (vec![0; inside], vec![0; inside]);
    let copied = store.copy(frame, 0, &mut here);
    let read = file.read_at(at, &mut there);
    if copied.is_err() || read.is_err() {
        return PageSet::of(0..inside.div_ceil(PAGE));
    }
    let mut pages = PageSet::EMPTY;
    for (i, (here, there)) in here.chunks(PAGE).zip(there.chunks(PAGE)).enumerate() {
        if here != there {
            pages.insert(i..i + 1);
        }
    }
    pages
}

/// Discards what the pool has of a file, by order of the user.  The file does not change.
pub fn discard(
    store: &dyn Store,
    open: &dyn Fn(&Path) -> Result<Box<dyn Backing>>,
    left: &Left,
) -> Result<()> {
    // A process that has the file mapped holds its lock, and must not lose its pages.
    let file = match left.record.as_ref().map(|record| open_of(open, record)) {
        Some(Err(e @ Error::Locked { .. })) => return Err(e),
        file => file.and_then(Result::ok),
    };
    for &(frame, _) in &left.frames {
        store.release(frame, true)?;
    }
    let identity = left.record.as_ref().map(|r| &r.identity[..]);
    if let Some(file) = file.filter(|file| Some(file.identity()) == identity) {
        unmark(store, &*file)?;
    }
    left.id.map_or(Ok(()), |id| store.remove_file(id))
}

/// The reason why data stays, and the number of pages that were written nevertheless.
struct Stays {
    done: usize,
    why: String,
}

impl From<Error> for Stays {
    fn from(e: Error) -> Stays {
        let why = match e {
            Error::Another { why, .. } | Error::Refused { why, .. } => why,
            Error::System { doing, error, .. } => format!("{doing}: {error}"),
            e => e.to_string(),
        };
        Stays { done: 0, why }
    }
}

struct Recovery<'a> {
    store: &'a dyn Store,
    left: &'a Left,
    options: &'a Options<'a>,
    marking: Marking,
}

/// The result of a pass over the frames.
#[derive(Default)]
struct Pass {
    begun: Vec<(u32, PageSet)>,
    pages: usize,
    /// Offsets in the file of pages that the media does not return.
    lost: Vec<u64>,
    /// Pages after the end of the file.
    behind: usize,
    /// The reason why a truncation could not be ended.
    not_ended: Option<String>,
}

impl Recovery<'_> {
    /// Returns the number of pages written to the file.
    fn run(
        &self,
        open: &dyn Fn(&Path) -> Result<Box<dyn Backing>>,
        tell: &mut dyn FnMut(usize),
    ) -> std::result::Result<usize, Stays> {
        let (Some(record), Some(id)) = (&self.left.record, self.left.id) else {
            return Err(self.not_known());
        };
        not_foreign(self.store)?;
        let lacks = !self.left.frames.is_empty() || record.cut || record.made() < record.size;
        let nothing = !lacks && record.grows.is_none();
        if nothing && planted::is(Planted::RecordFreedEarly) {
            return Ok(self.store.remove_file(id).map(|()| 0)?);
        }
        // The file is locked from here on, so no process maps it.  If a process has it mapped,
        // the open fails and the record stays.
        let file = match open_of(open, record) {
            Ok(file) => file,
            Err(e) if e.is_not_found() => {
                let empty = !lacks || planted::is(Planted::GoneDropped);
                return self.gone(id, "it does not exist any more", empty);
            }
            Err(e) => return Err(e.into()),
        };
        if file.identity() != record.identity && !planted::is(Planted::AnotherTaken) {
            return self.gone(id, "another file is there now", !lacks);
        }
        let of = Of { store: self.store, id, backing: &*file };
        if nothing {
            return self.end_with(of);
        }
        match self.check(&*file, record) {
            // The file already had everything, so changes by others lose nothing.
            Err(_) if !lacks => return self.end_with(of),
            checked => checked?,
        }
        if planted::is(Planted::UnmarkedEarly) {
            unmark(self.store, &*file)?;
        }
        let not_ended = match record.cut {
            true => self.end_truncation(of, record)?,
            false => self.keep_promise(of, record).map(|()| None)?,
        };
        let pass = Pass { not_ended, ..self.write(of, record, tell)? };
        let done = self.settle(of, &pass)?;
        match self.what_stays(&pass) {
            Some(why) => Err(Stays { done, why }),
            None => match self.end_with(of) {
                Ok(_) => Ok(done),
                // The pages are in the file, whatever becomes of mark and record.
                Err(Stays { why, .. }) => Err(Stays { done, why }),
            },
        }
    }

    fn not_known(&self) -> Stays {
        let why = match self.left.id {
            Some(_) => "its record in the pool is damaged: it is not known which file this is",
            None => "its descriptor in the pool is damaged: it is not known whose it is",
        };
        Stays { done: 0, why: why.into() }
    }

    /// The file of the record no longer exists.
    fn gone(&self, id: u32, why: &str, nothing: bool) -> std::result::Result<usize, Stays> {
        match nothing {
            // This frees frames only in a test with a planted bug; otherwise there are none.
            true => {
                for &(frame, _) in &self.left.frames {
                    self.store.release(frame, true)?;
                }
                self.end(id)
            }
            false => Err(Stays { done: 0, why: why.into() }),
        }
    }

    /// Removes the mark and the record of a file that has everything.
    fn end_with(&self, of: Of<'_>) -> std::result::Result<usize, Stays> {
        if !self.options.dry_run {
            unmark(self.store, of.backing)?;
        }
        self.end(of.id)
    }

    /// Removes the record.
    fn end(&self, id: u32) -> std::result::Result<usize, Stays> {
        if !self.options.dry_run {
            self.store.remove_file(id)?;
        }
        Ok(0)
    }

    fn check(&self, file: &dyn Backing, record: &FileRecord) -> Result<()> {
        let now = file.size().map_err(Error::system(file.path(), "stat"))?;
        let another = |why| Error::Another { path: file.path().to_owned(), why };
        if now < record.made() && !planted::is(Planted::ShorterTaken) {
            let was = record.made();
            return Err(another(format!("it has {now} bytes, and had {was} when it was synced")));
        }
        let claim = self.store.claim();
        let accept = self.options.accept;
        let found = file.marked().map_err(Error::system(file.path(), "its mark"))?;
        let place = file.path().display().to_string();
        let judged = claim.judge(&found, &place, true, accept);
        if let (Err(refusal), false) = (judged, planted::is(Planted::UnmarkedTaken)) {
            return Err(another(refusal.to_string()));
        }
        let changed = file.changed().map_err(Error::system(file.path(), "stat"))?;
        let ours = record.stamp.explains(changed) || planted::is(Planted::ChangedTaken);
        if record.stamp == Stamp::LEFT && !accept {
            return Err(another(
                "its program left it to others, who had opened it and may use it still; to write \
                 the pages to it, say so (--accept)"
                    .into(),
            ));
        }
        if !ours && !accept {
            return Err(another(
                "it was changed by others since it was synced; to write the pages over that, \
                 say so (--accept)"
                    .into(),
            ));
        }
        if record.cut && self.left.unknown > 0 {
            let n = self.left.unknown;
            return Err(another(format!(
                "a truncation to {} bytes has not ended, and it is not known whether {n} pages \
                 are after the new end",
                record.size
            )));
        }
        Ok(())
    }

    /// Ends a truncation of the file.  Returns the reason if the pool could not record its end;
    /// the pages within the new size are written to the file nevertheless.
    fn end_truncation(&self, of: Of<'_>, record: &FileRecord) -> Result<Option<String>> {
        if self.options.dry_run {
            return Ok(None);
        }
        let file = of.backing;
        let _change = self.marking.change(of)?;
        file.set_size(record.size).map_err(Error::system(file.path(), "truncate"))?;
        file.sync().map_err(Error::system(file.path(), "sync"))?;
        Ok(self.store.cut_end(of.id).err().map(|e| e.to_string()))
    }

    /// Gives the file its promised size.  Bytes after that size are cut off only if they are
    /// ours: all zero, and not past the size that was announced before.
    fn keep_promise(&self, of: Of<'_>, record: &FileRecord) -> Result<()> {
        let (Some(grows), false) = (record.grows, self.options.dry_run) else { return Ok(()) };
        let file = of.backing;
        let system = |doing| Error::system(file.path(), doing);
        let now = file.size().map_err(system("stat"))?;
        let changed = file.changed().map_err(system("stat"))?;
        let ours = now <= grows.ahead && record.stamp.explains(changed);
        let cut = planted::is(Planted::AppendedCut)
            || (ours && is_zero(file, record.size, now).map_err(system("read"))?);
        let resized = match now <= record.size {
            true => !planted::is(Planted::PromiseIgnored),
            false => cut && !planted::is(Planted::AheadLeft),
        };
        if resized {
            let _change = self.marking.change(of)?;
            file.set_size(record.size).map_err(system("truncate"))?;
        }
        file.sync().map_err(system("sync"))?;
        self.store.set_size(of.id, record.size)
    }

    fn write(&self, of: Of<'_>, record: &FileRecord, tell: &mut dyn FnMut(usize)) -> Result<Pass> {
        let mut pass = Pass::default();
        for &(frame, segment) in &self.left.frames {
            let at = segment * SEGMENT as u64;
            let inside = record.size.saturating_sub(at).min(SEGMENT as u64) as usize;
            let dirty = self.store.left_dirty(frame)?.0;
            let pages = dirty.within(&PageSet::of(0..inside.div_ceil(PAGE)));
            pass.behind += match record.cut {
                true => 0,
                false => dirty.without(&pages).len(),
            };
            if !self.options.dry_run {
                self.store.write_begin(frame, &pages)?;
            }
            let mut written = PageSet::EMPTY;
            for run in pages.runs() {
                let lost = read_run(self.store, frame, &run, &mut |first, bytes| {
                    let from = first * PAGE;
                    let bytes = &bytes[..bytes.len().min(inside.saturating_sub(from))];
                    written.insert(first..(from + bytes.len()).div_ceil(PAGE));
                    if self.options.dry_run || bytes.is_empty() {
                        return Ok(());
                    }
                    let _change = self.marking.change(of)?;
                    let written = of.backing.write_at(at + from as u64, bytes);
                    written.map_err(Error::system(of.backing.path(), "write"))
                })?;
                pass.lost.extend(lost.into_iter().map(|page| at + (page * PAGE) as u64));
            }
            pass.pages += written.len();
            tell(pass.pages);
            pass.begun.push((frame, written));
        }
        Ok(pass)
    }

    /// Makes the written pages durable and clears their dirty bits.
    fn settle(&self, of: Of<'_>, pass: &Pass) -> Result<usize> {
        if self.options.dry_run {
            return Ok(pass.pages);
        }
        if !planted::is(Planted::ClearedBeforeSync) {
            of.backing.sync().map_err(Error::system(of.backing.path(), "sync"))?;
        }
        self.marking.settle(of)?;
        for (frame, pages) in &pass.begun {
            self.store.write_end(*frame, pages)?;
            let (dirty, unknown) = self.store.left_dirty(*frame)?;
            if dirty.is_empty() && unknown.is_empty() {
                self.store.release(*frame, false)?;
            }
        }
        Ok(pass.pages)
    }

    fn what_stays(&self, pass: &Pass) -> Option<String> {
        let ended = |why| format!("its truncation cannot be ended: {why}");
        let mut why: Vec<_> = pass.not_ended.iter().map(ended).collect();
        if let Some(first) = pass.lost.first() {
            let n = pass.lost.len();
            why.push(format!("the media does not return {n} pages, the first at byte {first}"));
        }
        if self.left.unknown > 0 {
            let n = self.left.unknown;
            why.push(format!("it is not known whether the file lacks {n} pages"));
        }
        if pass.behind > 0 {
            why.push(format!("{} pages are after its end", pass.behind));
        }
        (!why.is_empty()).then(|| why.join("; "))
    }
}

fn is_zero(file: &dyn Backing, from: u64, end: u64) -> std::io::Result<bool> {
    let mut bytes = vec![0; 64 << 10];
    let mut at = from;
    while at < end {
        let n = file.read_at(at, &mut bytes)?;
        if n == 0 || bytes[..n].iter().any(|&b| b != 0) {
            return Ok(n == 0);
        }
        at += n as u64;
    }
    Ok(true)
}

/// Removes the mark if this map set it.
fn unmark(store: &dyn Store, file: &dyn Backing) -> Result<()> {
    let found = file.marked().map_err(Error::system(file.path(), "its mark"))?;
    let claim = store.claim();
    match found {
        FoundMark::Marked(mark) if claim.has_set(&mark) => {
            file.unmark().map_err(Error::system(file.path(), "remove its mark"))
        }
        _ => Ok(()),
    }
}

/// Reads a run of pages of a frame.  Calls `put` with the first page and as many pages as can
/// be read.  Returns the pages that the media does not return.
fn read_run(
    store: &dyn Store,
    frame: u32,
    run: &std::ops::Range<usize>,
    put: &mut dyn FnMut(usize, &[u8]) -> Result<()>,
) -> Result<Vec<usize>> {
    let (mut lost, mut bytes, mut first) = (Vec::new(), Vec::new(), run.start);
    let mut page_of = [0; PAGE];
    for page in run.clone() {
        if store.read_page(frame, page, &mut page_of)? {
            bytes.extend_from_slice(&page_of);
            continue;
        }
        put(first, &bytes)?;
        bytes.clear();
        first = page + 1;
        lost.push(page);
    }
    put(first, &bytes)?;
    Ok(lost)
}
