// SPDX-License-Identifier: MIT OR Apache-2.0
//! The bytes written last, so that a sync need not read them back.
//!
//! A few files are written and synced again and again.  Their writes since the last sync are
//! buffered, as they came, for as many files as there are slots.  A file holds a [`Buffered`] while
//! that covers all of its writes.  Another file that needs the slot takes it, and then the
//! bytes of the first are read back.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// The number of files.
const SLOTS: usize = 32;
/// The limits for one file.
const MOST_BYTES: usize = 64 << 10;
const MOST_WRITES: usize = 64;

/// A reference to the buffered writes of a file, valid while no other file has taken its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Buffered {
    slot: usize,
    number: u64,
}

/// Writes in their order: offsets and lengths, and the bytes one after another.
#[derive(Debug, Default)]
pub(super) struct Writes {
    pub places: Vec<(u64, usize)>,
    pub bytes: Vec<u8>,
}

#[derive(Debug, Default)]
struct Slot {
    /// The number of the slot's owner; 0: none.
    number: u64,
    used: u64,
    writes: Writes,
}

#[derive(Debug, Default)]
struct Slots {
    slots: Vec<Slot>,
    /// Counts uses.
    clock: u64,
}

#[derive(Debug, Default)]
pub(super) struct WriteBuffer(Mutex<Slots>);

impl WriteBuffer {
    fn lock(&self) -> MutexGuard<'_, Slots> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Buffers the first write since a file's sync.
    pub fn first(&self, offset: u64, bytes: &[u8]) -> Option<Buffered> {
        if bytes.len() > MOST_BYTES {
            return None;
        }
        let mut all = self.lock();
        let all = &mut *all;
        all.clock += 1;
        if all.slots.len() < SLOTS && all.slots.iter().all(|s| s.number != 0) {
            all.slots.push(Slot::default());
        }
        let oldest = all.slots.iter_mut().enumerate().min_by_key(|(_, s)| (s.number != 0, s.used));
        let (slot, free) = oldest?;
        free.writes.places.clear();
        free.writes.bytes.clear();
        (free.number, free.used) = (all.clock, all.clock);
        free.writes.places.push((offset, bytes.len()));
        free.writes.bytes.extend_from_slice(bytes);
        Some(Buffered { slot, number: all.clock })
    }

    /// Buffers another write after the earlier ones.
    pub fn next(&self, buffered: Buffered, offset: u64, bytes: &[u8]) -> Option<Buffered> {
        let mut all = self.lock();
        all.clock += 1;
        let clock = all.clock;
        let slot = all.slots.get_mut(buffered.slot).filter(|s| s.number == buffered.number)?;
        let writes = &mut slot.writes;
        if writes.bytes.len() + bytes.len() > MOST_BYTES || writes.places.len() == MOST_WRITES {
            slot.number = 0;
            return None;
        }
        slot.used = clock;
        writes.places.push((offset, bytes.len()));
        writes.bytes.extend_from_slice(bytes);
        Some(buffered)
    }

    /// Takes the buffered writes; `None`: another file has the slot.
    pub fn take(&self, buffered: Buffered) -> Option<Writes> {
        let mut all = self.lock();
        let slot = all.slots.get_mut(buffered.slot).filter(|s| s.number == buffered.number)?;
        slot.number = 0;
        Some(std::mem::take(&mut slot.writes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_are_kept_in_their_order() {
        let buffer = WriteBuffer::default();
        let buffered = buffer.first(100, b"abc").unwrap();
        let other = buffer.first(0, b"other").unwrap();
        assert_eq!(buffer.next(buffered, 101, b"X"), Some(buffered));
        let writes = buffer.take(buffered).unwrap();
        assert_eq!((writes.places, writes.bytes), (vec![(100, 3), (101, 1)], b"abcX".to_vec()));
        assert!(buffer.take(buffered).is_none() && buffer.next(buffered, 0, b"").is_none());
        assert_eq!(buffer.take(other).unwrap().bytes, b"other");
    }

    #[test]
    fn the_least_recently_used_file_gives_way() {
        let buffer = WriteBuffer::default();
        let all: Vec<Buffered> =
            (0..SLOTS as u64).map(|i| buffer.first(i, b"x").unwrap()).collect();
        assert_eq!(buffer.next(all[0], 7, b"y"), Some(all[0]));
        let more = buffer.first(0, b"z").unwrap();
        assert!(buffer.take(all[1]).is_none(), "the oldest");
        assert!(buffer.next(all[1], 0, b"w").is_none());
        assert_eq!(buffer.take(more).unwrap().bytes, b"z");
        assert_eq!(buffer.take(all[0]).unwrap().bytes, b"xy");
        assert_eq!(buffer.take(all[2]).unwrap().bytes, b"x");
    }

    #[test]
    fn too_much_of_one_file_is_not_kept() {
        let buffer = WriteBuffer::default();
        assert!(buffer.first(0, &vec![0; MOST_BYTES + 1]).is_none());
        let buffered = buffer.first(0, &vec![0; MOST_BYTES]).unwrap();
        assert!(buffer.next(buffered, 0, b"x").is_none());
        assert!(buffer.take(buffered).is_none());
        let buffered = buffer.first(0, b"").unwrap();
        assert!((1..MOST_WRITES).all(|_| buffer.next(buffered, 0, b"").is_some()));
        assert!(buffer.next(buffered, 0, b"").is_none());
    }
}
