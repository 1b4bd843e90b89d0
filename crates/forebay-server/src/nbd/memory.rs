// SPDX-License-Identifier: MIT OR Apache-2.0
//! The memory of large requests, bounded for all connections together.
//!
//! A header of 28 bytes can ask for a buffer of 32 MiB, so without a bound the clients decide
//! how much memory the server takes. A request of more than [`SMALL_BYTES`] holds its bytes
//! here while it is received, carried out and answered; one that finds no room waits its
//! turn. A client that holds some, and neither sends its data nor takes its answer while
//! others wait, is cut off, so that it stops nobody else.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A thread of a connection has so much without asking.
pub(crate) const SMALL_BYTES: usize = 64 << 10;
/// Least that is held: a thread keeps it from one request to the next.
pub(crate) const UNIT_BYTES: usize = 1 << 20;
/// How long a client may be waited for by those who wait for its memory.
const STALL: Duration = Duration::from_secs(5);
/// How often a waiter looks for such clients.
const LOOK: Duration = Duration::from_millis(200);

/// When a client last sent or took a part of a large request.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    number: u64,
    progress_ms: Arc<AtomicU64>,
    start: Instant,
}

impl Client {
    pub fn new(number: u64) -> Client {
        Client { number, progress_ms: Arc::default(), start: Instant::now() }
    }

    pub fn made_progress(&self) {
        self.progress_ms.store(self.start.elapsed().as_millis() as u64, Relaxed);
    }

    fn stalls(&self) -> bool {
        let progress = Duration::from_millis(self.progress_ms.load(Relaxed));
        self.start.elapsed().saturating_sub(progress) >= STALL
    }
}

#[derive(Debug)]
struct Holder {
    client: Client,
    /// It waits for its client.
    waits: bool,
    /// Its client was cut off, and its thread is about to see that.
    cut: bool,
}

#[derive(Debug, Default)]
struct State {
    used_bytes: usize,
    holders: HashMap<u64, Holder>,
    /// The first one is served first.
    waiting: VecDeque<u64>,
    next: u64,
}

#[derive(Debug)]
pub(crate) struct Memory {
    most_bytes: usize,
    state: Mutex<State>,
    changed: Condvar,
}

impl Memory {
    pub fn new(most_bytes: usize) -> Memory {
        Memory { most_bytes, state: Mutex::default(), changed: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for its turn and for room; `cut` ends the connection of a number. Whoever calls
    /// this holds none, so that nobody waits for a waiter.
    pub fn hold(&self, client: &Client, bytes: usize, cut: &dyn Fn(u64)) -> Held<'_> {
        let bytes = bytes.max(UNIT_BYTES).min(self.most_bytes);
        let mut state = self.state();
        let id = state.next;
        state.next += 1;
        state.waiting.push_back(id);
        while state.waiting.front() != Some(&id) || state.used_bytes + bytes > self.most_bytes {
            let waited = self.changed.wait_timeout(state, LOOK);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            let mut late = Vec::new();
            for h in state.holders.values_mut() {
                if h.waits && !h.cut && h.client.stalls() {
                    h.cut = true;
                    late.push(h.client.number);
                }
            }
            if !late.is_empty() {
                drop(state);
                late.into_iter().for_each(cut);
                state = self.state();
            }
        }
        state.waiting.pop_front();
        state.used_bytes += bytes;
        state.holders.insert(id, Holder { client: client.clone(), waits: false, cut: false });
        self.changed.notify_all();
        Held { memory: self, id, bytes }
    }

    /// So little is used that what is kept for later requests keeps nobody waiting.
    pub fn is_roomy(&self) -> bool {
        self.state().used_bytes <= self.most_bytes / 2
    }
}

/// Bytes of a request, until it is dropped.
#[derive(Debug)]
pub(crate) struct Held<'m> {
    memory: &'m Memory,
    id: u64,
    bytes: usize,
}

impl Held<'_> {
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether the next step is the client's.
    pub fn waits_for_client(&self, waits: bool) {
        if let Some(holder) = self.memory.state().holders.get_mut(&self.id) {
            holder.client.made_progress();
            holder.waits = waits;
        }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let mut state = self.memory.state();
        state.holders.remove(&self.id);
        state.used_bytes -= self.bytes;
        drop(state);
        self.memory.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_is_served_in_turn_and_nobody_has_more_than_there_is() {
        let memory = Memory::new(8 << 20);
        let most = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for n in 0..8 {
                let (memory, most) = (&memory, &most);
                scope.spawn(move || {
                    let client = Client::new(n);
                    for turn in 0..200 {
                        let bytes = ((n as usize + turn) % 8 + 1) << 20;
                        let held = memory.hold(&client, bytes, &|n| panic!("{n} was cut"));
                        most.fetch_max(memory.state().used_bytes as u64, Relaxed);
                        assert!(held.bytes() == bytes);
                    }
                });
            }
        });
        assert!(most.load(Relaxed) <= 8 << 20);
        assert_eq!(memory.state().used_bytes, 0);
    }

    /// The one that the client keeps waiting is cut off, and no other one.
    #[test]
    fn a_client_that_keeps_others_waiting_is_cut_off() {
        let memory = Memory::new(4 << 20);
        let [stalled, busy, third] = [1, 2, 3].map(Client::new);
        let mut of_stalled = Some(memory.hold(&stalled, 2 << 20, &|_| {}));
        let of_busy = memory.hold(&busy, 2 << 20, &|_| {});
        of_stalled.as_ref().unwrap().waits_for_client(true);
        of_busy.waits_for_client(false);
        let slot = Mutex::new(of_stalled.take());
        let start = Instant::now();
        let cut = |number| {
            assert_eq!(number, 1);
            drop(slot.lock().unwrap().take()); // its thread ends
        };
        let held = memory.hold(&third, 1 << 20, &cut);
        assert!(start.elapsed() >= STALL && slot.lock().unwrap().is_none());
        drop((held, of_busy));
        assert_eq!(memory.state().used_bytes, 0);
    }
}
