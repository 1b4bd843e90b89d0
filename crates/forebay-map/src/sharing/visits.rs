// SPDX-License-Identifier: MIT OR Apache-2.0
//! A process's record of the homes that it visits, for the orders of their server.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use forebay_engine::lasting::Lasting;

use super::guest::Rooms;
use super::{Order, Reply};
use crate::error::{Error, Result};
use crate::locked::lock;
use crate::wire::{Answer, Request};

/// How long an order to stop waits for calls that are under way before it is answered.
const STOPS: Duration = Duration::from_millis(1);

/// The requests of a guest to its server.
pub(crate) trait Server: Send + Sync + Debug {
    /// `slow`: the request may wait for other guests and must not delay other requests.
    fn ask(&self, request: &Request, slow: bool) -> Result<Answer>;
    /// Sends a request.  Returns the descriptor that comes with the answer too.
    fn ask_for(&self, request: &Request) -> Result<(Answer, Option<Lasting<OwnedFd>>)>;
    fn visits(&self) -> &Arc<Visits>;
}

/// Admits calls of a guest, except while the server has the file exclusively.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct GateState {
    inside: usize,
    stopped: bool,
    /// The server is gone: a change of the file's size may be incomplete.
    broken: bool,
}

/// A call that is under way.
#[derive(Debug)]
pub(crate) struct Entered<'a>(&'a Gate);

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        lock(&self.0.state).inside -= 1;
        self.0.changed.notify_all();
    }
}

impl Gate {
    pub fn enter(&self) -> Result<Entered<'_>> {
        let mut state = lock(&self.state);
        while state.stopped && !state.broken {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.broken {
            let why = "its server has ended while the file's size was changed; what was synced is \
                       kept in the pool";
            return Err(Error::Pool(why.into()));
        }
        state.inside += 1;
        Ok(Entered(self))
    }

    /// Admits no more calls.  False: some calls are still under way.
    fn stop(&self) -> bool {
        let mut state = lock(&self.state);
        state.stopped = true;
        let begun = Instant::now();
        while state.inside > 0 {
            let left = STOPS.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return false;
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    fn go(&self) {
        lock(&self.state).stopped = false;
        self.changed.notify_all();
    }

    fn is_abandoned(&self) {
        let mut state = lock(&self.state);
        state.broken = state.stopped;
        self.changed.notify_all();
    }
}

/// One file of a home.  It exists before the server is asked for the file, since orders may
/// arrive before the answer.
#[derive(Debug, Default)]
pub(crate) struct Visit {
    pub gate: Gate,
    pub rooms: OnceLock<Weak<Rooms>>,
}

/// All visits of a process, by the numbers that the process has given them.
#[derive(Debug, Default)]
pub(crate) struct Visits {
    all: Mutex<BTreeMap<u32, Arc<Visit>>>,
    next: AtomicU32,
    /// Requests to the server that are under way.
    asks: AtomicU32,
}

/// A request that is under way.
#[derive(Debug)]
pub(crate) struct Asks<'a>(&'a AtomicU32);

impl Drop for Asks<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Visits {
    pub fn begin(&self) -> (u32, Arc<Visit>) {
        let (number, visit) = (self.next.fetch_add(1, Ordering::Relaxed), Arc::default());
        lock(&self.all).insert(number, Arc::clone(&visit));
        (number, visit)
    }

    pub fn asks(&self) -> Asks<'_> {
        self.asks.fetch_add(1, Ordering::SeqCst);
        Asks(&self.asks)
    }

    pub fn end(&self, number: u32) {
        lock(&self.all).remove(&number);
    }

    fn visit(&self, number: u32) -> Option<Arc<Visit>> {
        lock(&self.all).get(&number).cloned()
    }

    /// The server is gone.
    pub fn are_abandoned(&self) {
        lock(&self.all).values().for_each(|visit| visit.gate.is_abandoned());
    }

    /// Carries out an order.  It sends no request to the server.
    pub fn obey(&self, order: &Order) -> Reply {
        let (Order::Sync { visit, .. }
        | Order::GiveUp { visit, .. }
        | Order::Stop { visit }
        | Order::Go { visit }) = order;
        // A visit that has ended maps nothing any more.
        let Some(visit) = self.visit(*visit) else { return Reply::Done };
        match order {
            Order::Stop { .. } => match visit.gate.stop() {
                true => return Reply::Done,
                false if self.asks.load(Ordering::SeqCst) > 0 => return Reply::Asks,
                false => return Reply::InUse,
            },
            Order::Go { .. } => {
                visit.gate.go();
                return Reply::Done;
            }
            Order::Sync { .. } | Order::GiveUp { .. } => {}
        }
        let Some(rooms) = visit.rooms.get().and_then(Weak::upgrade) else { return Reply::Done };
        match order {
            Order::Sync { first, end, grants, .. } => rooms.sync_for_others(*first, *end, grants),
            Order::GiveUp { segment, grant, .. } => rooms.give_up(*segment, grant.as_ref()),
            Order::Stop { .. } | Order::Go { .. } => Reply::Done,
        }
    }
}
