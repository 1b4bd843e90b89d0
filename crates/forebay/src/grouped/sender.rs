// SPDX-License-Identifier: MIT OR Apache-2.0
//! The threads that wait for their entries send them.
//!
//! A log has one leader at most: the thread whose append finds none.  It asks the engine what is
//! to be sent, sends it, and tells all whose entries are durable by that.  When its own entry is
//! durable it gives up the lead, and calls the thread that has waited longest.  The lead is free
//! until that one is there, so a thread that appends meanwhile takes it.
//!
//! Invariants whenever the lock is free:
//!
//!  1. A log that somebody waits for has a leader, or the first of those that wait was called.
//!  2. Nobody waits whose ticket is not pending, but for those whose request has just ended: the
//!     thread that has sent it looks at all of them after the engine has been told.
//!  3. A leader sleeps only while a request is in flight of another thread, which counts its end.
//!
//! A leader that sends something other than its log's group gives up the lead, so that the group
//! does not wait for it.
//!
//! A record for which nobody has a ticket is sent by the call that left it (`push`).  That call
//! does not become the sender of those who append: after a few requests it leaves the rest to them,
//! and the last of them sends what is left then.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::Thread;
use std::time::{Duration, Instant};

use forebay_engine::groups::{Request, TicketState};
use forebay_engine::{sys, Decision};

use super::disk::Disk;
use super::hold::{Hold, Times};
use crate::engine::{Code, Engine, EngineResult, Wait};
use crate::error::{Error, Result};

/// Sleeps have a limit, so that a wake-up that is lost costs time only.
const LIMIT: Duration = Duration::from_secs(5);
/// The thread that sends for others looks again after so long.
const PATIENCE: Duration = Duration::from_millis(100);
/// The system may add as much to a sleep.
const SLACK: Duration = Duration::from_micros(80);
/// Turns of about 0.3 us each.
const SPINS: u32 = 16;
const YIELDS: u32 = 64;
const NAP: Duration = Duration::from_micros(50);
/// Requests of one push while others send.
const PUSHES: u32 = 4;
/// Requests of one push at most.
const PUSHES_MOST: u32 = 64;

/// Sends what a grouped pool has to write.
#[derive(Debug)]
pub struct Sender {
    engine: Arc<Engine>,
    disk: Arc<Disk>,
    /// Requests that have ended, counted after the engine was told; changed under the lock.
    ends: AtomicU64,
    /// Leaders, and appends without room, sleep here until one more has.
    ended: Condvar,
    /// A push has ended before everything was sent.
    left: AtomicBool,
    /// Leaders that hold a group; changed under the lock.
    holding: AtomicU32,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// By number.
    logs: Vec<Queue>,
    times: Times,
    /// Threads at the condvar.
    sleepers: u32,
    counts: SenderCounts,
}

/// Counts of its work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SenderCounts {
    /// Requests.
    pub writes: u64,
    pub flushes: u64,
    /// Groups that have waited for entries that were expected.
    pub held: u64,
    /// Sleeps that a wake-up should have ended, and the limit did.
    pub lost: u64,
}

/// A log.
#[derive(Debug, Default)]
struct Queue {
    leader: Option<Leader>,
    /// By ticket.
    waiting: VecDeque<Waiter>,
    /// The hold of the next group.
    hold: Option<Hold>,
    /// The leader sleeps until those are there that the hold expects.
    holds: bool,
}

#[derive(Debug)]
struct Leader {
    ticket: u64,
    /// It was seen that its entry is durable.
    over: bool,
}

#[derive(Debug)]
struct Waiter {
    ticket: u64,
    seat: Arc<Seat>,
}

const ASLEEP: u32 = 0;
/// It is to take the lead, if nobody has it.
const CALLED: u32 = 1;
/// Its ticket is not pending any more, and it is not in the queue.
const OVER: u32 = 2;

/// The place in which a thread sleeps.
#[derive(Debug)]
struct Seat {
    /// Changed under the lock.
    state: AtomicU32,
    thread: Thread,
}

/// Threads to be woken, without the lock.
#[derive(Default)]
#[must_use]
struct Woken(Vec<Arc<Seat>>);

impl Woken {
    fn wake(self) {
        self.0.iter().for_each(|seat| seat.thread.unpark());
    }
}

enum Turn {
    Over,
    Lead,
    Sleep(Arc<Seat>),
}

impl Queue {
    fn insert(&mut self, ticket: u64) -> Arc<Seat> {
        let state = AtomicU32::new(ASLEEP);
        let seat = Arc::new(Seat { state, thread: std::thread::current() });
        let later = self.waiting.iter().rev().take_while(|w| w.ticket > ticket).count();
        let at = self.waiting.len() - later;
        self.waiting.insert(at, Waiter { ticket, seat: seat.clone() });
        seat
    }

    fn call_first(&mut self, woken: &mut Woken) {
        let first = self.waiting.front().filter(|_| self.leader.is_none());
        if let Some(Waiter { seat, .. }) = first {
            if seat.state.load(Ordering::Relaxed) == ASLEEP {
                seat.state.store(CALLED, Ordering::Relaxed);
                woken.0.push(seat.clone());
            }
        }
    }
}

impl Sender {
    pub fn new(engine: Arc<Engine>, disk: Arc<Disk>) -> Sender {
        let mut state = State::default();
        state.logs.resize_with(engine.info().sb.nvolumes as usize, Queue::default);
        Sender {
            engine,
            disk,
            ends: AtomicU64::new(0),
            ended: Condvar::new(),
            left: AtomicBool::new(false),
            holding: AtomicU32::new(0),
            state: Mutex::new(state),
        }
    }

    pub fn disk(&self) -> &Arc<Disk> {
        &self.disk
    }

    pub fn counts(&self) -> SenderCounts {
        self.lock().counts
    }

    /// As if a write had taken so long.
    #[cfg(test)]
    pub fn took(&self, time: Duration) {
        self.lock().times.writes.add(time);
    }

    /// Returns when the entry of the log is durable.  `wake`: whom the host is to wake.
    pub fn wait(&self, log: u16, ticket: u64, wake: &mut u32) -> Result<()> {
        if ticket == 0 {
            return Ok(());
        }
        loop {
            let turn = match self.sit(log, ticket) {
                Turn::Sleep(seat) => self.sleep(log, ticket, &seat),
                turn => turn,
            };
            match turn {
                Turn::Lead => self.lead(log, ticket, wake),
                _ => break,
            }
        }
        if self.left.load(Ordering::Relaxed) && !self.is_led() {
            self.push(|more| *wake |= more);
        }
        match self.engine.ticket(ticket) {
            TicketState::Durable => Ok(()),
            _ => Err(self.failed()),
        }
    }

    /// An entry was appended, and perhaps nobody waits for it.  A group that was held for it is
    /// held no longer.
    pub fn submitted(&self, log: u16, ticket: u64) {
        if ticket == 0 || self.holding.load(Ordering::Acquire) == 0 {
            return;
        }
        let state = self.lock();
        let queue = &state.logs[usize::from(log)];
        let came = queue.holds && self.rest(queue, ticket).is_none();
        drop(state);
        if came {
            self.ended.notify_all();
        }
    }

    /// The pool has failed.
    pub fn failed(&self) -> Error {
        let volumes = 0..self.engine.info().sb.nvolumes as u16;
        let used = |index| self.engine.volume_info(index).is_ok_and(|v| v.used || v.damaged);
        self.disk.failed(volumes.into_iter().any(used))
    }

    /// Requests that have ended: to be read before the call that [`Sender::help`] is for.
    pub fn ends(&self) -> u64 {
        self.ends.load(Ordering::Acquire)
    }

    /// For a call that waits for requests: sends one, or sleeps until another has ended than
    /// `seen`.  The call is to be made again.
    pub fn help(&self, seen: u64, wake: &mut u32) {
        match self.engine.medium_next(wake) {
            Ok((Decision::Done, io)) => drop(self.send(None, &io, wake)),
            Ok((Decision::Wait(Wait::Slot), _)) => std::thread::yield_now(),
            Ok(_) => {
                self.sleep_until_end(seen);
            }
            Err(_) => {}
        }
    }

    /// Sends what there is, for nobody in particular: parts of chunks that were left.  `tell`:
    /// whom the host is to wake, after each request.
    pub fn push(&self, mut tell: impl FnMut(u32)) {
        let (mut turns, mut sent) = (0, 0);
        self.left.store(false, Ordering::Relaxed);
        while turns < YIELDS {
            if sent >= PUSHES_MOST || (sent >= PUSHES && self.is_led()) {
                self.left.store(true, Ordering::Relaxed);
                return;
            }
            let mut wake = 0;
            let next = self.engine.medium_next(&mut wake);
            if let Ok((Decision::Done, io)) = &next {
                let _ = self.send(None, io, &mut wake);
                sent += 1;
            }
            if wake != 0 {
                tell(wake);
            }
            match next {
                Ok((Decision::Done, _)) => {}
                Ok((Decision::Wait(Wait::Slot), _)) => pause(&mut turns),
                _ => return,
            }
        }
    }

    /// Sends what there is, and what is appended meanwhile, until nothing is pending: for the
    /// thread that does so for all who do not wait.
    pub(crate) fn send_all(&self, mut tell: impl FnMut(u32), stop: impl Fn() -> bool) {
        let mut turns = 0;
        while !stop() {
            let (seen, mut wake) = (self.ends(), 0);
            let next = self.engine.medium_next(&mut wake);
            if let Ok((Decision::Done, io)) = &next {
                let _ = self.send(None, io, &mut wake);
                turns = 0;
            }
            if wake != 0 {
                tell(wake);
            }
            match next {
                Ok((Decision::Done, _)) => {}
                Ok((Decision::Wait(Wait::Slot), _)) => pause(&mut turns),
                // A request in flight of another thread has to end first.
                Ok(_) if self.unsent() => {
                    self.sleep_until_end_for(seen, PATIENCE);
                }
                _ => return,
            }
        }
    }

    /// Is anything pending that was appended to a volume?
    fn unsent(&self) -> bool {
        let n = self.lock().logs.len() as u16;
        (0..n).any(|volume| self.pending(self.engine.volume_ticket(volume)))
    }

    /// Makes a call of the engine again and again while it has to wait for requests, or for a
    /// slot.
    pub fn settled<T>(
        &self,
        wake: &mut u32,
        mut call: impl FnMut(&mut u32) -> EngineResult<(Decision, T)>,
    ) -> EngineResult<(Decision, T)> {
        let mut turns = 0;
        loop {
            let seen = self.ends();
            match call(wake)? {
                (Decision::Wait(Wait::Ticket), _) => self.help(seen, wake),
                (Decision::Wait(Wait::Slot | Wait::Block), _) => pause(&mut turns),
                done => return Ok(done),
            }
        }
    }

    /// Closes the pool: everything is durable, and it is marked clean.
    pub fn close(&self) -> Result<()> {
        let mut turns = 0;
        loop {
            self.push(drop);
            match self.engine.close() {
                Ok(()) => return Ok(()),
                Err(Code(sys::FBY_E_BUSY)) => pause(&mut turns),
                Err(Code(sys::FBY_E_MEDIUM)) => return Err(self.failed()),
                Err(e) => return Err(crate::error::open_error(self.disk.path(), e)),
            }
        }
    }

    // --- who leads, and who sleeps -------------------------------------------

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Does a thread send, or has it been called to?
    fn is_led(&self) -> bool {
        let led = |queue: &Queue| queue.leader.is_some() || !queue.waiting.is_empty();
        self.lock().logs.iter().any(led)
    }

    fn pending(&self, ticket: u64) -> bool {
        self.engine.ticket(ticket) == TicketState::Pending
    }

    fn sit(&self, log: u16, ticket: u64) -> Turn {
        let mut state = self.lock();
        if !self.pending(ticket) {
            return Turn::Over;
        }
        let queue = &mut state.logs[usize::from(log)];
        if queue.leader.is_none() {
            queue.leader = Some(Leader { ticket, over: false });
            return Turn::Lead;
        }
        let seat = queue.insert(ticket);
        let came = queue.holds && self.rest(queue, ticket).is_none();
        drop(state);
        if came {
            self.ended.notify_all();
        }
        Turn::Sleep(seat)
    }

    fn sleep(&self, log: u16, ticket: u64, seat: &Arc<Seat>) -> Turn {
        let mut since = Instant::now();
        loop {
            let state = seat.state.load(Ordering::Acquire);
            let late = since.elapsed() >= LIMIT;
            if state == OVER {
                if late {
                    self.lock().counts.lost += 1;
                }
                return Turn::Over;
            }
            if state == ASLEEP && !late {
                std::thread::park_timeout(LIMIT);
                continue;
            }
            let mut all = self.lock();
            let State { logs, counts, .. } = &mut *all;
            let queue = &mut logs[usize::from(log)];
            if seat.state.load(Ordering::Relaxed) == OVER {
                return Turn::Over;
            }
            if queue.leader.is_none() {
                let called = |w: &Waiter| w.seat.state.load(Ordering::Relaxed) == CALLED;
                counts.lost += u64::from(!queue.waiting.front().is_some_and(called));
                queue.waiting.retain(|w| !Arc::ptr_eq(&w.seat, seat));
                queue.leader = Some(Leader { ticket, over: false });
                return Turn::Lead;
            }
            seat.state.store(ASLEEP, Ordering::Relaxed);
            since = Instant::now();
        }
    }

    /// Tells those whose entries are not pending any more, and calls leaders.
    fn settle(&self, state: &mut State) -> Woken {
        let (now, longest) = (Instant::now(), state.times.longest(self.disk.durable()));
        let mut woken = Woken::default();
        for queue in &mut state.logs {
            let mut ended = None;
            while let Some(first) = queue.waiting.front() {
                if self.pending(first.ticket) {
                    break;
                }
                ended = Some(first.ticket);
                let seat = queue.waiting.pop_front().expect("there is a first").seat;
                seat.state.store(OVER, Ordering::Release);
                woken.0.push(seat);
            }
            if let Some(leader) = &mut queue.leader {
                if !leader.over && !self.pending(leader.ticket) {
                    leader.over = true;
                    ended = Some(leader.ticket);
                }
            }
            if let Some(ticket) = ended {
                queue.hold = Hold::after(&self.engine.medium_load(ticket), now, longest);
            }
            queue.call_first(&mut woken);
        }
        woken
    }

    fn resign(&self, log: u16) {
        let mut state = self.lock();
        let mut woken = self.settle(&mut state);
        let queue = &mut state.logs[usize::from(log)];
        queue.leader = None;
        queue.call_first(&mut woken);
        drop(state);
        woken.wake();
    }

    /// Until its entry is durable, or it has given up the lead.
    fn lead(&self, log: u16, ticket: u64, wake: &mut u32) {
        let mut turns = 0;
        loop {
            self.hold(log, ticket);
            // In this order: an end that is not in `seen` may have made the entry durable, and no
            // other one may come.
            let seen = self.ends();
            if !self.pending(ticket) {
                break;
            }
            let before = self.engine.medium_load(ticket).in_flight;
            match self.engine.medium_next(wake) {
                Ok((Decision::Done, io)) => {
                    // Its group is now on its way, by this thread.
                    let in_flight = self.engine.medium_load(ticket).in_flight;
                    if !in_flight || (before && io.kind == sys::FBY_MEDIUM_WRITE) {
                        self.resign(log);
                        self.send(None, &io, wake);
                        return;
                    }
                    if self.send(Some((log, ticket)), &io, wake) {
                        return;
                    }
                }
                Ok((Decision::Wait(Wait::Slot), _)) => pause(&mut turns),
                Ok(_) => {
                    // It slept for nothing.
                    if !self.sleep_until_end(seen) && !self.pending(ticket) {
                        self.lock().counts.lost += 1;
                    }
                }
                // The pool has failed, and no ticket is pending.
                Err(_) => break,
            }
        }
        self.resign(log);
    }

    /// Sends it, and tells whoever waits for that.  True: the leader has given up the lead, since
    /// its entry is durable now.
    fn send(&self, leader: Option<(u16, u64)>, io: &Request, wake: &mut u32) -> bool {
        let took = self.disk.carry_out(&self.engine, io, wake);
        let mut state = self.lock();
        match io.kind {
            sys::FBY_MEDIUM_FLUSH => {
                state.times.flushes.add(took);
                state.counts.flushes += 1;
            }
            _ => {
                state.times.writes.add(took);
                state.counts.writes += 1;
            }
        }
        let mut woken = self.settle(&mut state);
        let done = leader.filter(|(_, ticket)| !self.pending(*ticket));
        if let Some((log, _)) = done {
            let queue = &mut state.logs[usize::from(log)];
            queue.leader = None;
            queue.call_first(&mut woken);
        }
        self.ends.fetch_add(1, Ordering::Release);
        let sleepers = state.sleepers > 0;
        drop(state);
        woken.wake();
        if sleepers {
            self.ended.notify_all();
        }
        done.is_some()
    }

    /// Sleeps until another request has ended than `seen`.  False: none has, to the limit.
    fn sleep_until_end(&self, seen: u64) -> bool {
        self.sleep_until_end_for(seen, LIMIT)
    }

    fn sleep_until_end_for(&self, seen: u64, limit: Duration) -> bool {
        let mut state = self.lock();
        state.sleepers += 1;
        while self.ends() == seen {
            let (woken, slept) =
                self.ended.wait_timeout(state, limit).unwrap_or_else(|e| e.into_inner());
            state = woken;
            if slept.timed_out() {
                state.counts.lost += u64::from(self.ends() != seen);
                break;
            }
        }
        state.sleepers -= 1;
        self.ends() != seen
    }

    // --- what a group waits for ----------------------------------------------

    /// How long the next group of the log is to wait for entries that are expected.
    fn rest(&self, queue: &Queue, ticket: u64) -> Option<Duration> {
        queue.hold?.rest(&self.engine.medium_load(ticket), Instant::now())
    }

    /// The leader waits for those that are expected.
    fn hold(&self, log: u16, ticket: u64) {
        let log = usize::from(log);
        let mut state = self.lock();
        // Another thread may send the group meanwhile, and end.
        while let Some(rest) = self.rest(&state.logs[log], ticket).filter(|_| self.pending(ticket))
        {
            if !state.logs[log].holds {
                state.logs[log].holds = true;
                state.counts.held += 1;
                self.holding.fetch_add(1, Ordering::AcqRel);
                // Who has appended before that has not told of it.
                continue;
            }
            // A short sleep would be too long.
            if rest > 2 * SLACK {
                state.sleepers += 1;
                let woken = self.ended.wait_timeout(state, rest - SLACK);
                state = woken.unwrap_or_else(|e| e.into_inner()).0;
                state.sleepers -= 1;
            } else {
                drop(state);
                std::thread::yield_now();
                state = self.lock();
            }
        }
        let queue = &mut state.logs[log];
        if std::mem::take(&mut queue.holds) {
            self.holding.fetch_sub(1, Ordering::AcqRel);
        }
        // That of an entry which is durable is over: this is the next group's.
        if self.pending(ticket) {
            queue.hold = None;
        }
    }
}

/// Something is held for about a microsecond, or its holder has lost the CPU.
fn pause(turns: &mut u32) {
    *turns += 1;
    match *turns {
        t if t <= SPINS => (0..16).for_each(|_| std::hint::spin_loop()),
        t if t <= YIELDS => std::thread::yield_now(),
        _ => std::thread::sleep(NAP),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Threads come to the queue in another order than that of their entries.
    #[test]
    fn those_that_wait_do_so_by_ticket() {
        let mut queue = Queue::default();
        for ticket in [5, 7, 6, 6, 3, 9, 4] {
            queue.insert(ticket);
        }
        let order: Vec<_> = queue.waiting.iter().map(|w| w.ticket).collect();
        assert_eq!(order, [3, 4, 5, 6, 6, 7, 9]);
    }

    #[test]
    fn the_first_is_called_once_and_only_where_nobody_leads() {
        let mut queue =
            Queue { leader: Some(Leader { ticket: 1, over: true }), ..Default::default() };
        let seats = [queue.insert(2), queue.insert(3)];
        let calls = |queue: &mut Queue| {
            let mut woken = Woken::default();
            queue.call_first(&mut woken);
            woken.0.len()
        };
        assert_eq!(calls(&mut queue), 0);
        queue.leader = None;
        assert_eq!([calls(&mut queue), calls(&mut queue)], [1, 0]);
        let states = seats.each_ref().map(|seat| seat.state.load(Ordering::Relaxed));
        assert_eq!(states, [CALLED, ASLEEP]);
    }
}
