// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files that several processes map at the same time.
//!
//! The pool's server has such a file open (the *home*, [`Homes`]).  It owns the file's frames,
//! size and mark, and it writes back.  The processes are *guests*.  Each guest maps the frames
//! that it has touched, loads and stores there, and syncs its own stores in the memory that all
//! guests share.  `docs/design/map-served.md` has the protocol.
//!
//! | who | asks | waits for locks of |
//! |---|---|---|
//! | guest | its server ([`Request`](crate::wire::Request)), with a segment's lock held only for `Fill` | - |
//! | server | its guests ([`Order`]), with a segment's lock of the home held | guests' segments, but not those of a guest that asks for a frame |
//!
//! So no cycle of waits can form.  A guest may make a request with a lock held.  The server answers
//! it without waiting for such a lock: it answers `Wait`, and the guest releases the lock and tries
//! again.  A guest that carries out an order asks the server nothing, because the order carries
//! what the guest needs ([`Grant`]).

mod board;
mod guest;
mod guests;
mod homes;
mod host;
mod visits;

use std::fmt::Debug;

use serde::{Deserialize, Serialize};

use crate::wire::Grant;

pub(crate) use guest::{Guest, Lent};
pub(crate) use guests::Guests;
pub use homes::{GivenUp, Homes};
pub(crate) use host::Host;
pub(crate) use visits::{Server, Visits};

/// An order to a guest.  `visit` is the guest's number for the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Order {
    /// Make durable what the guest has stored to these pages, then answer.
    Sync {
        visit: u32,
        first: u64,
        end: u64,
        grants: Vec<Grant>,
    },
    /// Unmap a segment, so that nothing stores there any more.  With a grant, make the guest's
    /// stores durable; without one, drop them.
    GiveUp {
        visit: u32,
        segment: u64,
        grant: Option<Grant>,
    },
    /// Let no call begin before `Go`, and answer `Done` once no call is under way.  The answer
    /// `InUse` means that some calls still run.  They may wait for frames that the guest gives
    /// up by other orders.
    Stop {
        visit: u32,
    },
    Go {
        visit: u32,
    },
}

/// A guest's reply to an order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Reply {
    Done,
    /// Nothing was done: the guest needs the segment now.
    InUse,
    /// The guest lacks a grant: send the order again with one.
    Again,
    /// Not yet: a call of the guest waits for an answer of the server.
    Asks,
    /// Not the answer yet: the guest is working on the order.
    Working,
    Failed(String),
}

/// The outcome of an order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heard {
    Said(Reply),
    /// The guest is carrying out another order.
    Busy,
    /// The guest is dead and stores no more.
    Dead,
    /// The guest may be alive but does not answer.
    Silent(String),
}

/// A process that maps files of a home.
pub trait Peer: Send + Sync + Debug {
    fn pid(&self) -> u32;
    /// Sends an order.  `waits`: wait while the guest carries out another order.
    fn ask(&self, order: &Order, waits: bool) -> Heard;
}
