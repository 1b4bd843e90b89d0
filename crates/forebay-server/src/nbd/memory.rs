// SPDX-License-Identifier: MIT OR Apache-2.0
//! The memory of large requests, bounded for all connections together, for each volume and for
//! each connection.
//!
//! A header of 28 bytes can ask for a buffer of 32 MiB, so without a bound the clients decide
//! how much memory the server takes. A request of more than [`SMALL_BYTES`] holds its bytes
//! here while it is received, carried out and answered; one that finds no room waits its
//! turn.
//!
//! 1. Requests of a volume whose origin hangs hold their bytes for as long as it hangs. So a
//!    volume has a bound of its own, and [`Bounds::export_least`] of what it holds is granted
//!    whatever the other volumes hold.
//! 2. A request that waits for the bound of its volume or connection is passed by those of others.
//! 3. A client that holds some and neither sends its data nor takes its answers at
//!    [`SLOWEST_BYTES`] a second, while others wait for what it holds, is cut off.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A thread of a connection has so much without asking.
pub(crate) const SMALL_BYTES: usize = 64 << 10;
/// Least that is held: a thread keeps it from one request to the next.
pub(crate) const UNIT_BYTES: usize = 1 << 20;
/// How long a client is watched by those who wait for its memory.
const WATCH: Duration = Duration::from_secs(5);
/// What it has to send or take meanwhile, in a second.
const SLOWEST_BYTES: u64 = 1 << 20;
/// How often a waiter looks for such clients.
const LOOK: Duration = Duration::from_millis(200);

/// How much is held at once, at most.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// By all; more only by what [`export_least`](Self::export_least) grants.
    pub all: usize,
    /// By the requests of one volume.
    pub export: usize,
    /// A volume has so much in any case.
    pub export_least: usize,
    /// By the requests of one connection, and so by one request.
    pub client: usize,
}

/// Who asks, and for which volume.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    number: u64,
    export: usize,
    /// Bytes that it has sent and taken.
    moved: Arc<AtomicU64>,
}

impl Client {
    /// `export`: a number of the volume's own.
    pub fn new(number: u64, export: usize) -> Client {
        Client { number, export, moved: Arc::default() }
    }

    pub fn moved(&self, bytes: usize) {
        self.moved.fetch_add(bytes as u64, Relaxed);
    }
}

#[derive(Debug)]
struct Holder {
    client: Client,
    bytes: usize,
    /// It waits for its client.
    waits: bool,
}

#[derive(Debug)]
struct Waiter {
    id: u64,
    client: Client,
    bytes: usize,
}

/// A client that others wait for.
#[derive(Debug)]
struct Watched {
    since: Instant,
    moved: u64,
    /// It was cut off, and its threads are about to see that.
    cut: bool,
}

#[derive(Debug, Default)]
struct State {
    used: usize,
    /// By volume, and by connection.
    of_export: HashMap<usize, usize>,
    of_client: HashMap<u64, usize>,
    holders: HashMap<u64, Holder>,
    /// The first one is served first, as far as its bounds allow.
    waiting: VecDeque<Waiter>,
    watched: HashMap<u64, Watched>,
    next: u64,
}

/// What a request waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lacks {
    Nothing,
    /// Its own connection's.
    OfClient,
    OfExport,
    OfAll,
}

fn held_by<K: std::hash::Hash + Eq>(of: &HashMap<K, usize>, key: &K) -> usize {
    of.get(key).copied().unwrap_or(0)
}

fn give_back<K: std::hash::Hash + Eq>(of: &mut HashMap<K, usize>, key: K, bytes: usize) {
    if let Some(held) = of.get_mut(&key) {
        *held -= bytes;
        if *held == 0 {
            of.remove(&key);
        }
    }
}

impl State {
    fn lacks(&self, bounds: &Bounds, client: &Client, bytes: usize) -> Lacks {
        let of_export = held_by(&self.of_export, &client.export) + bytes;
        match () {
            () if held_by(&self.of_client, &client.number) + bytes > bounds.client => {
                Lacks::OfClient
            }
            () if of_export > bounds.export => Lacks::OfExport,
            () if self.used + bytes > bounds.all && of_export > bounds.export_least => Lacks::OfAll,
            () => Lacks::Nothing,
        }
    }

    /// Those who wait and may go on hold what they asked for. One that has to wait is passed by
    /// none that waits for the same.
    fn admit(&mut self, bounds: &Bounds) -> bool {
        let (mut clients, mut exports, mut all) = (HashSet::new(), HashSet::new(), false);
        let mut admitted = false;
        for waiter in std::mem::take(&mut self.waiting) {
            let Waiter { id, client, bytes } = waiter;
            let mut lacks = self.lacks(bounds, &client, bytes);
            if clients.contains(&client.number) {
                lacks = Lacks::OfClient;
            } else if exports.contains(&client.export) {
                lacks = Lacks::OfExport;
            } else if lacks == Lacks::Nothing
                && all
                && held_by(&self.of_export, &client.export) + bytes > bounds.export_least
            {
                lacks = Lacks::OfAll;
            }
            match lacks {
                Lacks::Nothing => {
                    self.take(id, client, bytes);
                    admitted = true;
                    continue;
                }
                Lacks::OfClient => drop(clients.insert(client.number)),
                Lacks::OfExport => drop(exports.insert(client.export)),
                Lacks::OfAll => {
                    all = true;
                    exports.insert(client.export);
                }
            }
            self.waiting.push_back(Waiter { id, client, bytes });
        }
        admitted
    }

    fn take(&mut self, id: u64, client: Client, bytes: usize) {
        self.used += bytes;
        *self.of_export.entry(client.export).or_default() += bytes;
        *self.of_client.entry(client.number).or_default() += bytes;
        self.holders.insert(id, Holder { client, bytes, waits: false });
    }

    fn release(&mut self, id: u64) {
        let Some(Holder { client, bytes, .. }) = self.holders.remove(&id) else { return };
        self.used -= bytes;
        give_back(&mut self.of_export, client.export, bytes);
        give_back(&mut self.of_client, client.number, bytes);
        if !self.of_client.contains_key(&client.number) {
            self.watched.remove(&client.number);
        }
    }

    /// Clients that hold what a waiter of this volume lacks, and have moved too little since
    /// they are watched.
    fn too_slow(&mut self, lacks: Lacks, export: usize) -> Vec<u64> {
        let (mut late, now) = (Vec::new(), Instant::now());
        let mut waited_for = HashSet::new();
        for h in self.holders.values().filter(|h| h.waits) {
            let holds_it = match lacks {
                Lacks::OfAll => true,
                Lacks::OfExport => h.client.export == export,
                Lacks::OfClient | Lacks::Nothing => false,
            };
            if !holds_it || !waited_for.insert(h.client.number) {
                continue;
            }
            let moved = h.client.moved.load(Relaxed);
            let new = Watched { since: now, moved, cut: false };
            let watched = self.watched.entry(h.client.number).or_insert(new);
            if watched.cut || now.duration_since(watched.since) < WATCH {
                continue;
            }
            if moved - watched.moved < SLOWEST_BYTES * WATCH.as_secs() {
                watched.cut = true;
                late.push(h.client.number);
            } else {
                (watched.since, watched.moved) = (now, moved);
            }
        }
        late
    }

    /// A client that no thread of ours waits for has done its part.
    fn unwatch(&mut self, client: u64) {
        if !self.holders.values().any(|h| h.waits && h.client.number == client) {
            self.watched.remove(&client);
        }
    }
}

#[derive(Debug)]
pub(crate) struct Memory {
    bounds: Bounds,
    state: Mutex<State>,
    changed: Condvar,
}

impl Memory {
    pub fn new(bounds: Bounds) -> Memory {
        Memory { bounds, state: Mutex::default(), changed: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for its turn and for room; `cut` ends the connection of a number. Whoever calls
    /// this holds none, so that nobody waits for a waiter.
    pub fn hold(&self, client: &Client, bytes: usize, cut: &dyn Fn(u64)) -> Held<'_> {
        let bytes = bytes.max(UNIT_BYTES).min(self.bounds.client);
        let mut state = self.state();
        let id = state.next;
        state.next += 1;
        state.waiting.push_back(Waiter { id, client: client.clone(), bytes });
        self.admit(&mut state);
        let mut looked = Instant::now();
        while !state.holders.contains_key(&id) {
            let waited = self.changed.wait_timeout(state, LOOK);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            if looked.elapsed() < LOOK || state.holders.contains_key(&id) {
                continue;
            }
            looked = Instant::now();
            // One that lacks nothing waits for one before it, which looks by itself.
            let lacks = state.lacks(&self.bounds, client, bytes);
            let late = state.too_slow(lacks, client.export);
            if !late.is_empty() {
                drop(state);
                late.into_iter().for_each(cut);
                state = self.state();
            }
        }
        Held { memory: self, id, bytes, client: client.clone() }
    }

    fn admit(&self, state: &mut State) {
        if state.admit(&self.bounds) {
            self.changed.notify_all();
        }
    }

    /// So little is used that what this client keeps for later requests keeps nobody waiting.
    pub fn is_roomy(&self, client: &Client) -> bool {
        let (state, bounds) = (self.state(), &self.bounds);
        state.used <= bounds.all / 2
            && held_by(&state.of_export, &client.export) <= bounds.export / 2
            && held_by(&state.of_client, &client.number) <= bounds.client / 2
    }
}

/// Bytes of a request, until it is dropped.
#[derive(Debug)]
pub(crate) struct Held<'m> {
    memory: &'m Memory,
    id: u64,
    bytes: usize,
    client: Client,
}

impl Held<'_> {
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether the next step is the client's.
    pub fn waits_for_client(&self, waits: bool) {
        let mut state = self.memory.state();
        if let Some(holder) = state.holders.get_mut(&self.id) {
            holder.waits = waits;
        }
        if !waits && !state.watched.is_empty() {
            state.unwatch(self.client.number);
        }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let mut state = self.memory.state();
        state.release(self.id);
        self.memory.admit(&mut state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;
    const BOUNDS: Bounds =
        Bounds { all: 8 * MIB, export: 4 * MIB, export_least: MIB, client: 2 * MIB };

    /// Nobody is to be cut off.
    fn none(number: u64) {
        panic!("{number} was cut off")
    }

    /// Runs what may wait for ever, and says whether it ended.
    fn ends(limit: Duration, work: impl FnOnce() + Send + 'static) -> bool {
        let thread = std::thread::spawn(work);
        let start = Instant::now();
        while !thread.is_finished() && start.elapsed() < limit {
            std::thread::sleep(Duration::from_millis(5));
        }
        thread.is_finished() && thread.join().is_ok()
    }

    #[test]
    fn who_waits_is_served_and_nobody_has_more_than_a_bound() {
        let memory = Memory::new(BOUNDS);
        let most = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for n in 0..12 {
                let (memory, most) = (&memory, &most);
                // Two threads of each connection, two connections of each volume.
                let client = Client::new(n / 2, n as usize / 4);
                scope.spawn(move || {
                    for turn in 0..200 {
                        let bytes = ((n as usize + turn) % 2 + 1) * MIB;
                        let held = memory.hold(&client, bytes, &none);
                        assert!(held.bytes() == bytes);
                        let state = memory.state();
                        most.fetch_max(state.used as u64, Relaxed);
                        assert!(held_by(&state.of_client, &client.number) <= BOUNDS.client);
                        assert!(held_by(&state.of_export, &client.export) <= BOUNDS.export);
                    }
                });
            }
        });
        // Two volumes may have theirs beside a third that has its least.
        assert!(most.load(Relaxed) <= (BOUNDS.all + BOUNDS.export_least) as u64);
        let state = memory.state();
        assert!(state.used == 0 && state.of_client.is_empty() && state.of_export.is_empty());
    }

    /// As many volumes as there are whose origins hang, each with all that it can have.
    #[test]
    fn volumes_that_hang_stop_no_other_one() {
        let memory: &'static Memory = Box::leak(Box::new(Memory::new(BOUNDS)));
        let mut held = Vec::new();
        for export in 0..8 {
            for number in 0..2 {
                let client = Client::new((export * 2 + number) as u64, export);
                let bytes = if export < 2 { 2 * MIB } else { MIB };
                if export < 2 || number == 0 {
                    held.push(memory.hold(&client, bytes, &none));
                }
            }
            // And more of it that wait.
            let client = Client::new(100 + export as u64, export);
            std::thread::spawn(move || memory.hold(&client, 2 * MIB, &none));
        }
        let limit = Duration::from_secs(10);
        while memory.state().waiting.len() < 8 {
            std::thread::yield_now();
        }
        assert!(memory.state().used >= BOUNDS.all);
        assert!(
            ends(limit, move || drop(memory.hold(&Client::new(50, 50), MIB, &none))),
            "a volume that is well waits for those that hang"
        );
        drop(held);
    }

    #[test]
    fn one_client_leaves_room_for_others_of_its_volume() {
        let memory: &'static Memory = Box::leak(Box::new(Memory::new(BOUNDS)));
        let greedy = Client::new(1, 1);
        let held = [(); 2].map(|()| memory.hold(&greedy, MIB, &none));
        std::thread::spawn(move || memory.hold(&greedy, MIB, &none));
        while memory.state().waiting.is_empty() {
            std::thread::yield_now();
        }
        let other = move || drop(memory.hold(&Client::new(2, 1), 2 * MIB, &none));
        assert!(ends(Duration::from_secs(10), other), "it waits for another client's request");
        drop(held);
    }

    /// By its rate: one that sends a piece now and then is cut off, one that is busy is not.
    #[test]
    fn a_client_that_is_too_slow_for_those_who_wait_is_cut_off() {
        let memory = Memory::new(BOUNDS);
        let [slow, busy, working, third] = [1, 2, 3, 4].map(|n| Client::new(n, 1));
        let of_slow = memory.hold(&slow, 2 * MIB, &none);
        let of_busy = memory.hold(&busy, MIB, &none);
        let of_working = memory.hold(&working, MIB, &none);
        of_slow.waits_for_client(true);
        of_busy.waits_for_client(true);
        of_working.waits_for_client(false);
        let slot = Mutex::new(Some(of_slow));
        let (start, stop) = (Instant::now(), AtomicU64::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while stop.load(Relaxed) == 0 {
                    std::thread::sleep(Duration::from_millis(100));
                    slow.moved(64 << 10);
                    busy.moved(256 << 10);
                }
            });
            let cut = |number| {
                assert_eq!(number, 1);
                drop(slot.lock().unwrap().take()); // its thread ends
            };
            let held = memory.hold(&third, MIB, &cut);
            stop.store(1, Relaxed);
            assert!(start.elapsed() >= WATCH && slot.lock().unwrap().is_none());
            drop(held);
        });
        drop((of_busy, of_working));
        let state = memory.state();
        assert!(state.used == 0 && state.watched.is_empty());
    }
}
