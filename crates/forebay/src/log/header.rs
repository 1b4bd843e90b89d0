// SPDX-License-Identifier: MIT OR Apache-2.0
//! A log's header as the bytes that a consumer stores.

use forebay_engine::logs::{Header, Position};
use forebay_engine::sys::{self, fby_log_counters as Counters};

use super::info::state_of;
use crate::error::{Error, Result};
use crate::report::{EntryName, LogState, Uuid};

/// Bytes of a stored header.
pub const LOG_HEADER_BYTES: usize = 152;

/// A log's header: its state, its period's GUID, and the position of its replay.  For a log
/// whose header is with the consumer, each call that changes the header returns the new one.
/// The consumer stores it in one step with the effect of the call.  The default is the header
/// of a log that was never created.
///
/// ```
/// use forebay::{LogHeader, LogState};
///
/// let stored = LogHeader::default().to_bytes();
/// let header = LogHeader::from_bytes(&stored)?;
/// assert_eq!(header.state(), LogState::None);
/// assert!(LogHeader::from_bytes(&stored[1..]).is_err());
/// # Ok::<(), forebay::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogHeader(pub(crate) Header);

impl LogHeader {
    pub fn state(&self) -> LogState {
        state_of(self.0.state)
    }

    /// GUID of the logging period.
    pub fn guid(&self) -> Uuid {
        Uuid(self.0.guid)
    }

    pub fn synced(&self) -> u64 {
        self.0.at.synced
    }

    /// The last entry replayed; `None`: none yet.
    pub fn replayed(&self) -> Option<EntryName> {
        let at = &self.0.at;
        let replaying = self.0.state == sys::FBY_LOG_REPLAYING && at.gen > 0;
        replaying.then_some(EntryName { generation: at.gen, id: at.id })
    }

    /// To store: fields in the order of the format, little-endian.
    pub fn to_bytes(&self) -> [u8; LOG_HEADER_BYTES] {
        let (h, at) = (&self.0, &self.0.at);
        let mut w = Writer { bytes: [0; LOG_HEADER_BYTES], at: 0 };
        w.put(&h.guid);
        w.put(&h.state.to_le_bytes());
        w.put(&h.reserved.to_le_bytes());
        for n in [at.synced, at.gen, at.id] {
            w.put(&n.to_le_bytes());
        }
        w.counters(&at.live);
        w.counters(&at.last);
        w.put(&at.seal_gen.to_le_bytes());
        w.counters(&at.seal);
        assert_eq!(w.at, LOG_HEADER_BYTES);
        w.bytes
    }

    /// Parses a stored header.  Refused if it cannot be one; the claim checks its numbers.
    pub fn from_bytes(bytes: &[u8]) -> Result<LogHeader> {
        let bad = |what: String| {
            let way_out = "restore what was stored by the last call that returned a header";
            Error::usage(format!("a log's header {what}"), way_out)
        };
        if bytes.len() != LOG_HEADER_BYTES {
            return Err(bad(format!("of {} bytes, not {LOG_HEADER_BYTES}", bytes.len())));
        }
        let mut r = Reader(bytes);
        let header = Header {
            guid: r.take(),
            state: u32::from_le_bytes(r.take()),
            reserved: u32::from_le_bytes(r.take()),
            at: Position {
                synced: r.number(),
                gen: r.number(),
                id: r.number(),
                live: r.counters(),
                last: r.counters(),
                seal_gen: r.number(),
                seal: r.counters(),
            },
        };
        if header.state > sys::FBY_LOG_REPLAYING || header.reserved != 0 {
            return Err(bad(format!(
                "with the state {} is damaged, or of a newer version",
                header.state
            )));
        }
        Ok(LogHeader(header))
    }
}

struct Writer {
    bytes: [u8; LOG_HEADER_BYTES],
    at: usize,
}

impl Writer {
    fn put(&mut self, bytes: &[u8]) {
        self.bytes[self.at..][..bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
    }

    fn counters(&mut self, c: &Counters) {
        self.put(&c.txg.to_le_bytes());
        for n in c.n {
            self.put(&n.to_le_bytes());
        }
    }
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (taken, rest) = self.0.split_first_chunk().expect("the length was checked");
        self.0 = rest;
        *taken
    }

    fn number(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }

    fn counters(&mut self) -> Counters {
        Counters { txg: self.number(), n: std::array::from_fn(|_| self.number()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_its_bytes() {
        let count = |n: u64| Counters { txg: n, n: [n + 1, n + 2, n + 3] };
        let mut header = LogHeader::default();
        header.0.guid = std::array::from_fn(|i| i as u8 + 1);
        header.0.state = sys::FBY_LOG_REPLAYING;
        header.0.at = Position {
            synced: 1 << 40,
            gen: 2,
            id: 3,
            live: count(10),
            last: count(20),
            seal_gen: 4,
            seal: count(30),
        };
        let bytes = header.to_bytes();
        assert_eq!(LogHeader::from_bytes(&bytes).unwrap(), header);
        // As it lies in memory of this machine, which is what the engine keeps.
        assert_eq!(bytes[..16], header.0.guid);
        assert_eq!(bytes[24..32], (1u64 << 40).to_le_bytes());
        assert_eq!(bytes[48..56], 10u64.to_le_bytes());
        assert_eq!(bytes[144..], 33u64.to_le_bytes());
        assert_eq!(header.replayed(), Some(EntryName { generation: 2, id: 3 }));
        assert_eq!((header.synced(), header.state()), (1 << 40, LogState::Replaying));
    }

    #[test]
    fn what_is_no_header_is_refused() {
        let refused = |bytes: &[u8]| LogHeader::from_bytes(bytes).unwrap_err().to_string();
        assert!(refused(&[0; 151]).contains("of 151 bytes, not 152"));
        let mut bytes = LogHeader::default().to_bytes();
        bytes[16] = 3;
        assert!(refused(&bytes).contains("newer version"));
        bytes[16] = 0;
        bytes[20] = 1;
        assert!(refused(&bytes).contains("newer version"));
    }
}
