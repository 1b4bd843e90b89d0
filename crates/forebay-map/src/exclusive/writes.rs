// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writes to an exclusive file, and the bytes and the size of a file that grows by them.

use std::sync::atomic::Ordering;
use std::sync::RwLockWriteGuard;

use super::{parts, Inner};
use crate::error::Result;
use crate::pages::{PAGE, SEGMENT};
use crate::planted::{self, Planted};

impl Inner {
    /// Writes within the size.  The caller ensures that the size does not change.
    pub(super) fn write_within(&self, at: u64, from: &[u8]) -> Result<()> {
        let content = &self.content;
        for (segment, first, range) in parts(at, from.len()) {
            // Copied for the same reason as in `read`.
            let bytes = &from[range.clone()].to_vec()[..];
            // An absent segment that is overwritten whole need not be brought in.
            let past = bytes.len() == SEGMENT && {
                self.tracker.with_present(segment, |there| match there {
                    Some(_) => Ok(false),
                    None => content.write_past(at + range.start as u64, bytes).map(|()| true),
                })
            }
            .map_err(self.system("write"))?;
            if !past {
                let pages = match planted::is(Planted::WriteNotTold) {
                    true => 0..0,
                    false => first / PAGE..(first + bytes.len()).div_ceil(PAGE),
                };
                let written = self.tracker.with_stored(segment, pages, |_| {
                    let frame = content.frame(segment).expect("it was brought in");
                    content.store.fill(frame, first, bytes)
                });
                written.map_err(self.system("bring in"))??;
            }
        }
        Ok(())
    }

    /// Writes where the file may end, and extends it.  The caller has the file exclusively.
    fn write_growing(&self, at: u64, from: &[u8]) -> Result<()> {
        let content = &self.content;
        for (segment, first, range) in parts(at, from.len()) {
            let (start, end) = (at + range.start as u64, at + range.end as u64);
            if end <= content.size() {
                self.write_within(start, &from[range])?;
                continue;
            }
            // Copied for the same reason as in `read`.
            let bytes = &from[range.clone()].to_vec()[..];
            let past = bytes.len() == SEGMENT && {
                let _size = self.size_alone();
                self.tracker.with_present(segment, |there| match there {
                    Some(_) => Ok(false),
                    None => content.append_past(start, bytes).map(|()| true),
                })
            }?;
            let mut done = past;
            while !done {
                // Others may release it again before its file has the bytes.
                self.tracker.with(segment, |_| ()).map_err(self.system("bring in"))?;
                let _size = self.size_alone();
                let Some(frame) = content.frame(segment) else { continue };
                self.extend(end, || {
                    let pages = first / PAGE..(first + bytes.len()).div_ceil(PAGE);
                    let fill = |_| content.store.fill(frame, first, bytes);
                    let stored = self.tracker.with_stored(segment, pages, fill);
                    stored.map_err(self.system("bring in"))?
                })?;
                done = true;
            }
        }
        Ok(())
    }

    /// Writes the parts one after another, and extends the file.  Returns the number of
    /// bytes written.  The caller has the file exclusively until the bytes are there, so that
    /// no other call sees zeroes in their place.  Frames of the file can be released meanwhile,
    /// since the write may need them.
    pub(super) fn write_longer(
        &self,
        io: RwLockWriteGuard<'_, ()>,
        at: u64,
        parts: &[&[u8]],
    ) -> Result<u64> {
        let len: usize = parts.iter().map(|p| p.len()).sum();
        let (old, end) = (self.content.size(), at.saturating_add(len as u64));
        let mut alone = Some(Alone { _shows: Shows(self), _io: io });
        let early = planted::is(Planted::WrittenBehind) || planted::is(Planted::SizeBeforeBytes);
        if end > old {
            let _size = self.size_alone();
            self.end_cut()?;
            self.check_room(end)?;
            // The bytes come before the size: the kernel shows the size to others at once.
            self.resize(if early { end } else { at.max(old) })?;
        }
        let mut _among = None;
        if early {
            alone = None;
            planted::wait();
            _among = Some(self.shared_io());
        }
        // Each extension costs several calls.
        let all = (parts.len() > 1 && end - at <= SEGMENT as u64).then(|| parts.concat());
        let one = all.as_deref().map(|all| [all]);
        let mut whole = 0;
        for part in one.as_ref().map_or(parts, |one| &one[..]) {
            let Err(e) = self.write_growing(at + whole, part) else {
                whole += part.len() as u64;
                continue;
            };
            if end > old && alone.is_some() {
                let _size = self.size_alone();
                // Bytes that are not reported as written must not stay in the file.
                let _ = self.resize(old.max(at + whole));
            }
            return if whole > 0 { Ok(whole) } else { Err(e) };
        }
        Ok(whole)
    }
}

/// Exclusive access to the file.  Its drop publishes the size before other calls can begin.
struct Alone<'a> {
    _shows: Shows<'a>,
    _io: RwLockWriteGuard<'a, ()>,
}

/// On drop, publishes the size to the program before other calls can change it.
pub(super) struct Shows<'a>(pub &'a Inner);

impl Drop for Shows<'_> {
    fn drop(&mut self) {
        self.0.shown.store(self.0.content.size(), Ordering::SeqCst);
    }
}
