// SPDX-License-Identifier: MIT OR Apache-2.0
//! The pool's logs: `core/api/log.h`, which has the contract of each call.

use forebay_sys as sys;
pub use forebay_sys::{
    fby_log_cursor as Cursor, fby_log_entry as RawEntry, fby_log_entry_info as EntryInfo,
    fby_log_header as Header, fby_log_info as LogInfo, fby_log_name as Name, fby_log_node as Node,
    fby_log_position as Position, fby_log_result as Outcome,
};

use crate::code::{decision, done, Code, Decision, Result};
use crate::engine::Engine;
use crate::log_order::{guarded, Verdict};
use crate::media::Medium;
use crate::shown::Kind;
use crate::volumes::c_string;

/// An append in two steps: begun, it is to be committed, without a wait for another.
/// New, or committed, it can begin.
#[derive(Debug, Default)]
pub struct Append {
    raw: Box<sys::fby_append>,
    /// The opening that it began on; 0: it has not begun.
    began: u64,
}

fn vec_of(pieces: &[&[u8]]) -> Result<Vec<sys::fby_vec>> {
    let one = |p: &&[u8]| match u32::try_from(p.len()) {
        Ok(len) => Ok(sys::fby_vec { base: p.as_ptr().cast(), len }),
        Err(_) => Err(Code(sys::FBY_E_LOG_TOO_LARGE)),
    };
    pieces.iter().map(one).collect()
}

impl<M: Medium> Engine<M> {
    /// `flags`: `FBY_LOG_CONSUMER`, or 0 for an embedded header.
    pub fn log_add(&self, name: &str, flags: u32) -> Result<u16> {
        let (name, mut log) = (c_string(name)?, 0);
        let _change = self.change();
        // SAFETY: the pool is open; name is zero-terminated.
        done(unsafe { sys::fby_log_add(self.pool, name.as_ptr(), flags, &mut log) })?;
        Ok(log)
    }

    pub fn log_remove(&self, log: u16, discard: bool) -> Result<Decision> {
        let _change = self.change();
        // SAFETY: the pool is open; the lock keeps such calls apart.
        decision(unsafe { sys::fby_log_remove(self.pool, log, discard) })
    }

    pub fn log_find(&self, name: &str) -> Result<u16> {
        self.shown.find(Kind::Log, name)
    }

    pub fn log_info(&self, log: u16) -> Result<LogInfo> {
        let mut info = LogInfo::default();
        // SAFETY: the pool is open; info is ours.
        done(unsafe { sys::fby_log_info(self.pool, log, &mut info) })?;
        Ok(info)
    }

    /// The next entry of a chunk of a log, for tools; `None`: there are no more.
    pub fn log_entry_info(
        &self,
        chunk: u32,
        at: &mut Cursor,
        check_data: bool,
    ) -> Result<Option<EntryInfo>> {
        let mut info = EntryInfo::default();
        // SAFETY: the pool is open; cursor and info are ours.
        done(unsafe { sys::fby_log_entry_info(self.pool, chunk, at, check_data, &mut info) })?;
        Ok(info.found.then_some(info))
    }

    /// DONE with the header; or a wait for slots.
    pub fn log_create(
        &self,
        log: u16,
        guid: &[u8; 16],
        synced: u64,
        wake: &mut u32,
    ) -> Result<(Decision, Header)> {
        let mut header = Header::default();
        let _admin = self.admin();
        // SAFETY: the pool is open; admin keeps such calls apart; header is ours.
        let d = decision(unsafe {
            sys::fby_log_create(self.pool, log, guid.as_ptr(), synced, &mut header, wake)
        })?;
        Ok((d, header))
    }

    /// As [`Engine::log_append_as`], with the name in the result.
    pub fn log_append(
        &self,
        log: u16,
        txg: u64,
        new_generation: bool,
        pieces: &[&[u8]],
        wake: &mut u32,
    ) -> Result<(Decision, Name)> {
        let mut name = Name::default();
        let d = self.log_append_as(log, txg, new_generation, pieces, &mut name, wake)?;
        Ok((d, name))
    }

    /// DONE: it is durable or has a ticket, and this is its name.  The pieces are one body.
    ///
    /// The name is not copied here.  A copy that loads it with other widths than those of its
    /// stores would wait until the fence of the append has drained: 10 to 30 ns.
    #[inline]
    pub fn log_append_as(
        &self,
        log: u16,
        txg: u64,
        new_generation: bool,
        pieces: &[&[u8]],
        name: &mut Name,
        wake: &mut u32,
    ) -> Result<Decision> {
        let append = |vec: &[sys::fby_vec], name: &mut Name, wake: &mut u32| {
            let (base, n) = (vec.as_ptr(), vec.len() as u32);
            // SAFETY: the pool is open; the vector is that of the pieces, which
            // outlive the call.
            decision(unsafe {
                sys::fby_log_append(self.pool, log, txg, new_generation, base, n, name, wake)
            })
        };
        match pieces {
            [one] if one.len() <= u32::MAX as usize => {
                let one = sys::fby_vec { base: one.as_ptr().cast(), len: one.len() as u32 };
                append(&[one], name, wake)
            }
            _ => append(&vec_of(pieces)?, name, wake),
        }
    }

    /// DONE: it has begun.
    pub fn log_append_begin(
        &self,
        a: &mut Append,
        log: u16,
        txg: u64,
        new_generation: bool,
        pieces: &[&[u8]],
        wake: &mut u32,
    ) -> Result<Decision> {
        assert_eq!(a.began, 0, "an append that has begun");
        let vec = vec_of(pieces)?;
        let (base, n) = (vec.as_ptr(), vec.len() as u32);
        // SAFETY: the pool is open; the pieces outlive the call; the request is ours.
        let d = decision(unsafe {
            let raw = &mut *a.raw;
            sys::fby_log_append_begin(self.pool, raw, log, txg, new_generation, base, n, wake)
        })?;
        if d == Decision::Done {
            a.began = self.opening;
        }
        Ok(d)
    }

    /// Durable when it returns.
    pub fn log_append_commit(&self, a: &mut Append, wake: &mut u32) -> Name {
        assert_eq!(a.began, self.opening, "an append that has not begun here");
        let mut name = Name::default();
        a.began = 0;
        // SAFETY: the append has begun on this pool, once.
        unsafe { sys::fby_log_append_commit(self.pool, &mut *a.raw, &mut name, wake) };
        name
    }

    pub fn log_sync(&self, log: u16, txg: u64, wake: &mut u32) -> Result<Header> {
        let mut header = Header::default();
        let _admin = self.admin();
        // SAFETY: the pool is open; admin keeps such calls apart; header is ours.
        done(unsafe { sys::fby_log_sync(self.pool, log, txg, &mut header, wake) })?;
        Ok(header)
    }

    /// The entries, and what a replay would come to.  `header`: in and out of a
    /// consumer's log; out of an embedded one.
    pub fn log_claim(
        &self,
        log: u16,
        synced: u64,
        header: &mut Header,
    ) -> Result<(Vec<Node>, Outcome)> {
        let mut n = self.log_info(log)?.found;
        let (mut nodes, mut outcome) = (vec![Node::default(); n as usize], Outcome::default());
        let _admin = self.admin();
        // SAFETY: the pool is open; admin keeps such calls apart; there is room for n.
        done(unsafe {
            let node = nodes.as_mut_ptr();
            sys::fby_log_claim(self.pool, log, synced, header, node, &mut n, &mut outcome)
        })?;
        nodes.truncate(n as usize);
        Ok((nodes, outcome))
    }

    /// Hands each entry to the callback, which calls nothing of this engine but
    /// [`Engine::log_read`].
    pub fn log_replay(
        &self,
        log: u16,
        nodes: &mut [Node],
        verdict: Verdict<'_>,
    ) -> Result<Outcome> {
        let mut outcome = Outcome::default();
        let (node, n) = (nodes.as_mut_ptr(), nodes.len() as u64);
        let _admin = self.admin();
        // SAFETY: the pool is open; admin keeps such calls apart; as many nodes as
        // said, and the callback's argument outlives the call.
        done(guarded(verdict, |callback, arg| unsafe {
            sys::fby_log_replay(self.pool, log, node, n, callback, arg, &mut outcome)
        }))?;
        Ok(outcome)
    }

    /// The body of an entry, verified; `room` is grown to what it takes.
    pub fn log_read<'a>(&self, log: u16, node: &Node, room: &'a mut Vec<u8>) -> Result<&'a [u8]> {
        let mut length = 0;
        loop {
            // SAFETY: the pool is open; there is the room named.
            let r = done(unsafe {
                let (dst, n) = (room.as_mut_ptr().cast(), room.len() as u32);
                sys::fby_log_read(self.pool, log, node, dst, n, &mut length)
            });
            match r {
                Err(Code(sys::FBY_E_NO_MEMORY)) if room.len() < 2 << 20 => {
                    room.resize((room.len() * 4).max(16 << 10), 0);
                }
                r => break r?,
            }
        }
        Ok(&room[..length as usize])
    }

    /// DONE: none of its entries counts any more; or a wait for slots: call again.
    pub fn log_destroy(&self, log: u16, wake: &mut u32) -> Result<(Decision, Header)> {
        let mut header = Header::default();
        let _admin = self.admin();
        // SAFETY: the pool is open; admin keeps such calls apart; header is ours.
        let d = decision(unsafe { sys::fby_log_destroy(self.pool, log, &mut header, wake) })?;
        Ok((d, header))
    }

    pub fn log_release(&self, log: u16, wake: &mut u32) -> Result<Decision> {
        let _admin = self.admin();
        // SAFETY: the pool is open; admin keeps such calls apart.
        decision(unsafe { sys::fby_log_release(self.pool, log, wake) })
    }
}
