// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files that several processes map at a time.
//!
//! The pool's server has such a file open (its *home*, [`Homes`]): its frames, its size, its
//! mark, what is written back.  The processes are its *guests*: each has the frames mapped that
//! it has touched, loads and stores there, and syncs what it has stored by itself, in the
//! memory that all of them have.  `docs/design/map-served.md` has the protocol.
//!
//! | who | asks | waits for locks of |
//! |---|---|---|
//! | guest | its server ([`Request`](crate::wire::Request)), with a segment's lock held only for `Fill` | - |
//! | server | its guests ([`Order`]), with a segment's lock of the home held | guests' segments, but not of who asks for a frame |
//!
//! So no circle can close: what a guest asks with a lock held is answered without waiting for
//! such a lock (`Wait`: again, after it was let go of), and who carries an order out asks the
//! server for nothing: what he may need to know comes with it ([`Grant`]).

mod board;
mod guest;
mod guests;
mod homes;
mod host;
mod visits;

use std::fmt::Debug;

use serde::{Deserialize, Serialize};

use crate::wire::Place;

pub(crate) use guest::{Guest, Lent};
pub(crate) use guests::Guests;
pub use homes::{GivenUp, Homes};
pub(crate) use host::Host;
pub(crate) use visits::{Server, Visits};

/// What a guest may count on when it makes pages of a segment durable: the file is marked, has
/// its size, and blocks for so many bytes of the segment, all durable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Grant {
    pub segment: u64,
    pub frame: u32,
    pub bytes: u32,
    /// Truncations before: after another one it says nothing, as what was cut off has no blocks.
    pub cuts: u64,
    /// Where it is now.  None: that is known otherwise.
    pub place: Option<Place>,
}

/// What a guest is to do, of a visit by its number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Order {
    /// What it has stored to these pages is durable when it answers.
    Sync {
        visit: u32,
        first: u64,
        end: u64,
        grants: Vec<Grant>,
    },
    /// It has nothing mapped of a segment any more, and nothing stores there.  What it has
    /// stored is durable, if it comes with a grant; else it is forgotten.
    GiveUp {
        visit: u32,
        segment: u64,
        grant: Option<Grant>,
    },
    /// No call of it is under way, and none begins before `Go`.  `InUse`: some are, and no more
    /// begin.  They may wait for frames that it has to give up by other orders.
    Stop {
        visit: u32,
    },
    Go {
        visit: u32,
    },
}

/// What it has done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Reply {
    Done,
    /// Nothing: it needs it now.
    InUse,
    /// It lacks a grant: again.
    Again,
    /// Nothing yet: a call of it is under way that waits for an answer of the server's.
    Asks,
    /// Not the answer: it works on the order.
    Working,
    Failed(String),
}

/// What came of an order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heard {
    Said(Reply),
    /// It carries out another one.
    Busy,
    /// It is dead: nobody stores there by it any more.
    Dead,
    /// It may live, and does not answer.
    Silent(String),
}

/// A process that has files of a home.
pub trait Peer: Send + Sync + Debug {
    fn pid(&self) -> u32;
    /// `waits`: while it carries out another order.
    fn ask(&self, order: &Order, waits: bool) -> Heard;
}
