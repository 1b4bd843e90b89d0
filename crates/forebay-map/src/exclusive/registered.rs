// SPDX-License-Identifier: MIT OR Apache-2.0
//! The registration of a file with the pool at its open.

use std::sync::Arc;

use forebay::FoundMark;

use crate::backing::Backing;
use crate::common::Shared;
use crate::content::Content;
use crate::error::{not_text, Error, Result};
use crate::pages::SEGMENT;
use crate::store::{FileRecord, Stamp};

/// The number of segments for a number of bytes.
fn segments_of(bytes: u64) -> Option<usize> {
    usize::try_from(bytes.div_ceil(SEGMENT as u64)).ok().filter(|&n| n > 0)
}

/// The text of a mark, if there is one.
fn said_of(found: &FoundMark) -> Option<String> {
    match found {
        FoundMark::Nothing => None,
        FoundMark::Marked(mark) => Some(mark.to_string()),
        FoundMark::Damaged(why) => {
            Some(format!("it may lack writes: its mark cannot be read ({why})"))
        }
    }
}

/// Registers a file with the pool, if the file is available.
pub(crate) fn content_of(
    shared: &Arc<Shared>,
    backing: Box<dyn Backing>,
    room: u64,
    fits: impl FnOnce(usize) -> std::result::Result<(), String>,
) -> Result<Arc<Content>> {
    let path = backing.path().to_owned();
    let size = backing.size().map_err(Error::system(&path, "stat"))?;
    let Some(segments) = segments_of(size.max(room)) else {
        return Err(Error::Refused { path, why: "it is empty, and has no room to grow".into() });
    };
    let Some(known_by) = path.to_str() else {
        return Err(Error::Refused { path, why: not_text() });
    };
    // A crash must not undo the state of the file at the open while the pool keeps newer pages,
    // so sync it first.
    backing.sync_all().map_err(Error::system(&path, "sync"))?;
    let changed = backing.changed().map_err(Error::system(&path, "stat"))?;
    let record = FileRecord {
        size,
        identity: backing.identity().to_owned(),
        path: known_by.to_owned(),
        stamp: Stamp::Settled(changed),
        ..FileRecord::default()
    };
    if let Some((_, known)) =
        shared.store.files()?.into_iter().find(|(_, f)| f.identity == record.identity)
    {
        let why = format!("the pool has pages of it since a crash, as {}", known.path);
        return Err(Error::Refused { path, why });
    }
    if shared.store.is_brought_home(&record.identity)? {
        return Err(Error::Locked { path, by: None });
    }
    // The mark may also be one of this pool, if the pool has nothing of the file or cannot read
    // what it has.
    if let Some(said) = said_of(&backing.marked().map_err(Error::system(&path, "its mark"))?) {
        let shown = path.display();
        let why = format!(
            "{said}; write it back with that pool: forebay map recover; if that is gone: \
             forebay origin accept-loss {shown}"
        );
        return Err(Error::Refused { path, why });
    }
    fits(segments).map_err(|why| Error::Refused { path, why })?;
    let id = shared.store.add_file(&record)?;
    let content = Content::new(shared, backing, id, size, segments);
    content.marking.opened(changed);
    Ok(Arc::new(content))
}
