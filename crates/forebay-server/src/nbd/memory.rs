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
//!    [`SLOWEST_BYTES`] a second, while other clients wait for that, is cut off. No client is cut
//!    off unless a waiter of another client gets its turn by that. A request of a client that is
//!    cut off waits no longer.
//! 4. Between two requests a thread holds nothing. The memory itself is kept for the same
//!    connection's next request, as a spare buffer, until anybody asks for room.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A thread of a connection has so much without asking.
pub(crate) const SMALL_BYTES: usize = 64 << 10;
/// Least that is held.
const UNIT_BYTES: usize = 1 << 20;
/// The memory of a request is kept for the next one up to this size.
const KEPT_BYTES: usize = UNIT_BYTES + SMALL_BYTES;
/// Bytes that a client has to send or take in a second, while others wait for its memory.
const SLOWEST_BYTES: u64 = 1 << 20;
/// How often one of the waiters looks for such clients.
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
    /// How long a client is watched by those who wait for its memory.
    pub watch: Duration,
}

impl Bounds {
    /// The bounds for a process in which all connections may hold this many bytes together.
    pub fn within(self, all: usize) -> Bounds {
        let (export, client) = (self.export.min(all / 4 * 3), self.client.min(all / 2));
        Bounds { all, export, client, ..self }
    }
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

/// Bytes held: by all, by volume, and by connection.
#[derive(Clone, Debug, Default)]
struct Account {
    used: usize,
    of_export: HashMap<usize, usize>,
    of_client: HashMap<u64, usize>,
}

#[derive(Debug, Default)]
struct State {
    account: Account,
    holders: HashMap<u64, Holder>,
    /// The first one is served first, as far as its bounds allow.
    waiting: VecDeque<Waiter>,
    watched: HashMap<u64, Watched>,
    /// When a waiter last looked for clients that are too slow.
    looked: Option<Instant>,
    next: u64,
    /// Buffers of connections that hold nothing with them, and their bytes together.
    spares: HashMap<u64, Vec<Vec<u8>>>,
    spare: usize,
}

/// The reason for a request's wait.
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

impl Account {
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

    fn take(&mut self, client: &Client, bytes: usize) {
        self.used += bytes;
        *self.of_export.entry(client.export).or_default() += bytes;
        *self.of_client.entry(client.number).or_default() += bytes;
    }

    fn release(&mut self, client: &Client, bytes: usize) {
        self.used -= bytes;
        give_back(&mut self.of_export, client.export, bytes);
        give_back(&mut self.of_client, client.number, bytes);
    }

    /// Says what each waiter lacks. One that lacks nothing has what it asked for then.
    /// One that has to wait is passed by none that waits for the same.
    fn turns<'w>(
        &mut self,
        bounds: &Bounds,
        waiting: impl Iterator<Item = &'w Waiter>,
    ) -> Vec<Lacks> {
        let (mut clients, mut exports, mut all) = (HashSet::new(), HashSet::new(), false);
        let turn = |Waiter { client, bytes, .. }: &Waiter| {
            let mut lacks = self.lacks(bounds, client, *bytes);
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
                Lacks::Nothing => self.take(client, *bytes),
                Lacks::OfClient => drop(clients.insert(client.number)),
                Lacks::OfExport => drop(exports.insert(client.export)),
                Lacks::OfAll => {
                    all = true;
                    exports.insert(client.export);
                }
            }
            lacks
        };
        waiting.map(turn).collect()
    }
}

impl State {
    /// Those who wait and may go on hold what they asked for.
    fn admit(&mut self, bounds: &Bounds) -> bool {
        let lacks = self.account.turns(bounds, self.waiting.iter());
        let mut admitted = false;
        for (waiter, lacks) in std::mem::take(&mut self.waiting).into_iter().zip(lacks) {
            if lacks == Lacks::Nothing {
                let Waiter { id, client, bytes } = waiter;
                self.holders.insert(id, Holder { client, bytes, waits: false });
                admitted = true;
            } else {
                self.waiting.push_back(waiter);
            }
        }
        admitted
    }

    fn release(&mut self, id: u64) {
        let Some(Holder { client, bytes, .. }) = self.holders.remove(&id) else { return };
        self.account.release(&client, bytes);
        if !self.account.of_client.contains_key(&client.number) {
            self.watched.remove(&client.number);
        }
    }

    /// Spare buffers give way to what is held. The caller frees them without the lock.
    fn make_room(&mut self, bounds: &Bounds) -> Vec<Vec<u8>> {
        let mut freed = Vec::new();
        while self.spare > 0 && self.account.used + self.spare > bounds.all {
            let Some(&client) = self.spares.keys().next() else { break };
            freed.extend(self.take_spare(client));
        }
        freed
    }

    fn take_spare(&mut self, client: u64) -> Option<Vec<u8>> {
        let of_client = self.spares.get_mut(&client)?;
        let buffer = of_client.pop();
        if of_client.is_empty() {
            self.spares.remove(&client);
        }
        self.spare -= buffer.as_ref().map_or(0, Vec::capacity);
        buffer
    }

    /// The buffer is kept, or comes back to be freed.
    fn keep_spare(&mut self, bounds: &Bounds, client: u64, buffer: Vec<u8>) -> Option<Vec<u8>> {
        let bytes = buffer.capacity();
        if bytes > KEPT_BYTES
            || self.spare + bytes > bounds.all / 2
            || self.account.used + self.spare + bytes > bounds.all
        {
            return Some(buffer);
        }
        if bytes > 0 {
            self.spares.entry(client).or_default().push(buffer);
            self.spare += bytes;
        }
        None
    }

    /// Clients that a thread of ours waits for, while another client lacks what they hold or
    /// waits behind one that does.
    fn waited_for(&self, bounds: &Bounds) -> HashMap<u64, Client> {
        let (mut of_exports, mut of_all) = (HashMap::new(), HashSet::new());
        let lacks = self.account.clone().turns(bounds, self.waiting.iter());
        for (Waiter { client, .. }, lacks) in self.waiting.iter().zip(lacks) {
            match lacks {
                Lacks::OfAll => drop(of_all.insert(client.number)),
                Lacks::OfExport => {
                    let of_export: &mut HashSet<u64> = of_exports.entry(client.export).or_default();
                    of_export.insert(client.number);
                }
                Lacks::OfClient | Lacks::Nothing => {}
            }
        }
        let holds_it = |h: &&Holder| {
            let another = |waiters: &HashSet<u64>| waiters.iter().any(|n| *n != h.client.number);
            h.waits && (another(&of_all) || of_exports.get(&h.client.export).is_some_and(another))
        };
        let clients = self.holders.values().filter(holds_it);
        clients.map(|h| (h.client.number, h.client.clone())).collect()
    }

    /// The account as it would be if these clients were gone. Requests that are being carried out end
    /// no sooner by that.
    fn without(&self, clients: &HashSet<u64>) -> Account {
        let mut account = self.account.clone();
        for h in self.holders.values().filter(|h| h.waits && clients.contains(&h.client.number)) {
            account.release(&h.client, h.bytes);
        }
        account
    }

    /// Whether another client that waits gets a turn when these clients are gone.
    fn lets_in(&self, bounds: &Bounds, clients: &HashSet<u64>) -> bool {
        let others = self.waiting.iter().filter(|w| !clients.contains(&w.client.number));
        self.without(clients).turns(bounds, others).contains(&Lacks::Nothing)
    }

    /// False: there are none among these clients that let another one in when they are gone.
    fn may_let_in(&self, bounds: &Bounds, clients: &HashSet<u64>) -> bool {
        let account = self.without(clients);
        let fits = |w: &Waiter| account.lacks(bounds, &w.client, w.bytes) == Lacks::Nothing;
        self.lets_in(bounds, clients)
            || self.waiting.iter().any(|w| clients.contains(&w.client.number) && fits(w))
    }

    /// Clients that have moved too little since they are watched, no more of them than it
    /// takes to let a waiter in.
    fn too_slow(&mut self, bounds: &Bounds) -> Vec<u64> {
        let now = Instant::now();
        let waited_for = self.waited_for(bounds);
        self.watched.retain(|number, w| w.cut || waited_for.contains_key(number));
        let mut late = Vec::new();
        for (number, client) in waited_for {
            let moved = client.moved.load(Relaxed);
            let new = Watched { since: now, moved, cut: false };
            let watched = self.watched.entry(number).or_insert(new);
            if watched.cut || now.duration_since(watched.since) < bounds.watch {
                continue;
            }
            if moved - watched.moved < SLOWEST_BYTES * bounds.watch.as_millis() as u64 / 1000 {
                late.push(number);
            } else {
                (watched.since, watched.moved) = (now, moved);
            }
        }
        let cut = self.watched.iter().filter(|(_, w)| w.cut).map(|(number, _)| *number);
        let mut gone: HashSet<u64> = cut.collect();
        // Most often there are none, or all of them together do not hold enough.
        let all = gone.iter().chain(&late).copied().collect();
        if late.is_empty() || self.lets_in(bounds, &gone) || !self.may_let_in(bounds, &all) {
            return Vec::new();
        }
        late.sort_by_key(|number| {
            (std::cmp::Reverse(held_by(&self.account.of_client, number)), *number)
        });
        let enough = late.iter().position(|number| {
            gone.insert(*number);
            self.lets_in(bounds, &gone)
        });
        let Some(last) = enough else { return Vec::new() };
        late.truncate(last + 1);
        // The last one let somebody in; not all of those before it had to go for that.
        late.retain(|number| {
            gone.remove(number);
            let needed = !self.lets_in(bounds, &gone);
            if needed {
                gone.insert(*number);
            }
            needed
        });
        for number in &late {
            if let Some(watched) = self.watched.get_mut(number) {
                watched.cut = true;
            }
        }
        self.waiting.retain(|w| !late.contains(&w.client.number));
        late
    }

    fn is_cut(&self, client: u64) -> bool {
        self.watched.get(&client).is_some_and(|watched| watched.cut)
    }

    fn is_over(&self, id: u64) -> bool {
        self.holders.contains_key(&id) || !self.waiting.iter().any(|w| w.id == id)
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
    /// this holds none, so that nobody waits for a waiter. None: the client itself is cut off.
    pub fn hold(&self, client: &Client, bytes: usize, cut: &dyn Fn(u64)) -> Option<Held<'_>> {
        let bytes = bytes.max(UNIT_BYTES).min(self.bounds.client);
        let mut state = self.state();
        if state.is_cut(client.number) {
            return None;
        }
        let id = state.next;
        state.next += 1;
        state.waiting.push_back(Waiter { id, client: client.clone(), bytes });
        self.admit(&mut state);
        while !state.is_over(id) {
            let waited = self.changed.wait_timeout(state, LOOK);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            // One looks for all.
            if state.looked.is_some_and(|at| at.elapsed() < LOOK) || state.is_over(id) {
                continue;
            }
            state.looked = Some(Instant::now());
            let late = state.too_slow(&self.bounds);
            if !late.is_empty() {
                // Their requests wait no longer.
                self.changed.notify_all();
                self.admit(&mut state);
                drop(state);
                late.into_iter().for_each(cut);
                state = self.state();
            }
        }
        if !state.holders.contains_key(&id) {
            return None;
        }
        let spare = state.take_spare(client.number).unwrap_or_default();
        let freed = state.make_room(&self.bounds);
        drop(state);
        drop(freed);
        Some(Held { memory: self, id, bytes, spare, client: client.clone() })
    }

    fn admit(&self, state: &mut State) {
        if !state.waiting.is_empty() && state.admit(&self.bounds) {
            self.changed.notify_all();
        }
    }

    /// The connection has ended.
    pub fn forget(&self, client: &Client) {
        let mut state = self.state();
        let spares = state.spares.remove(&client.number).unwrap_or_default();
        state.spare -= spares.iter().map(Vec::capacity).sum::<usize>();
        drop(state);
    }
}

/// Bytes of a request, until it is dropped.
#[derive(Debug)]
pub(crate) struct Held<'m> {
    memory: &'m Memory,
    id: u64,
    bytes: usize,
    spare: Vec<u8>,
    client: Client,
}

impl Held<'_> {
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// A buffer of an earlier request of this connection, or an empty one.
    pub fn buffer(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.spare)
    }

    /// The request has ended; the buffer may serve the connection's next one.
    pub fn end(mut self, buffer: Vec<u8>) {
        self.spare = buffer;
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
        let buffer = std::mem::take(&mut self.spare);
        let freed = state.keep_spare(&self.memory.bounds, self.client.number, buffer);
        drop(state);
        drop(freed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;
    const BOUNDS: Bounds = Bounds {
        all: 8 * MIB,
        export: 4 * MIB,
        export_least: MIB,
        client: 2 * MIB,
        watch: Duration::from_secs(1),
    };

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
                        let held = memory.hold(&client, bytes, &none).unwrap();
                        assert!(held.bytes() == bytes);
                        let state = memory.state();
                        most.fetch_max(state.account.used as u64, Relaxed);
                        assert!(held_by(&state.account.of_client, &client.number) <= BOUNDS.client);
                        assert!(held_by(&state.account.of_export, &client.export) <= BOUNDS.export);
                    }
                });
            }
        });
        // Two volumes may have theirs beside a third that has its least.
        assert!(most.load(Relaxed) <= (BOUNDS.all + BOUNDS.export_least) as u64);
        let state = memory.state();
        let Account { used, of_export, of_client } = &state.account;
        assert!(*used == 0 && of_client.is_empty() && of_export.is_empty());
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
                    held.push(memory.hold(&client, bytes, &none).unwrap());
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
        assert!(memory.state().account.used >= BOUNDS.all);
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
        let held = [(); 2].map(|()| memory.hold(&greedy, MIB, &none).unwrap());
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
        let of_slow = memory.hold(&slow, 2 * MIB, &none).unwrap();
        let of_busy = memory.hold(&busy, MIB, &none).unwrap();
        let of_working = memory.hold(&working, MIB, &none).unwrap();
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
            let held = memory.hold(&third, MIB, &cut).unwrap();
            stop.store(1, Relaxed);
            assert!(start.elapsed() >= BOUNDS.watch && slot.lock().unwrap().is_none());
            drop(held);
        });
        drop((of_busy, of_working));
        let state = memory.state();
        assert!(state.account.used == 0 && state.watched.is_empty());
    }

    /// Who holds what while its client is slow, who holds what for an origin that hangs, who
    /// waits, and who is cut off: each that holds or waits as (client, volume, MiB).
    #[test]
    fn nobody_is_cut_off_where_that_lets_nobody_in() {
        type Part<'a> = &'a [(u64, usize, usize)];
        let mib = |all| Bounds { all: all * MIB, watch: Duration::from_millis(400), ..BOUNDS };
        let large = |all| Bounds { client: 4 * MIB, ..mib(all) };
        type Row =
            (&'static str, Bounds, Part<'static>, Part<'static>, Part<'static>, &'static [u64]);
        #[rustfmt::skip]
        let table: [Row; 13] = [
            ("nobody lacks anything", mib(8), &[(1, 1, 1)], &[], &[(9, 2, 2)], &[]),
            ("it holds what the waiter lacks", mib(4), &[(1, 1, 2)], &[(2, 2, 2)], &[(9, 3, 2)], &[1]),
            ("it holds too little", mib(4), &[(1, 1, 1)], &[(2, 2, 2), (3, 2, 1)], &[(9, 3, 2)], &[]),
            ("both together hold enough", mib(4), &[(1, 1, 1), (2, 1, 1)], &[(3, 2, 2)], &[(9, 3, 2)], &[1, 2]),
            ("one of two is enough", mib(4), &[(1, 1, 1), (2, 1, 2)], &[(3, 2, 1)], &[(9, 3, 2)], &[2]),
            ("the waiter's volume is full, it is of another", mib(16),
                &[(1, 1, 2)], &[(2, 2, 2), (3, 2, 2)], &[(9, 2, 2)], &[]),
            ("it holds of the waiter's volume", mib(16), &[(1, 2, 2)], &[(3, 2, 2)], &[(9, 2, 2)], &[1]),
            ("the waiter has enough itself", mib(16), &[(1, 1, 1)], &[(9, 2, 2)], &[(9, 2, 2)], &[]),
            ("its own next request alone waits", mib(4),
                &[(1, 1, 1)], &[(2, 2, 2), (3, 2, 1)], &[(1, 1, 1)], &[]),
            ("its own next request alone gets in", mib(4),
                &[(1, 1, 1)], &[(2, 2, 2), (3, 4, 1)], &[(1, 1, 1), (9, 2, 2)], &[]),
            ("another waits behind its next request", mib(4),
                &[(1, 1, 1)], &[(2, 2, 2), (3, 2, 1)], &[(1, 1, 1), (9, 2, 1)], &[1]),
            ("another has room, behind its next request", large(5),
                &[(1, 1, 1)], &[(2, 2, 2), (3, 4, 1)], &[(1, 1, 2), (9, 2, 1)], &[1]),
            ("the same, and its next request gets in nowhere", large(5),
                &[(1, 1, 1)], &[(2, 2, 2), (3, 4, 1)], &[(1, 1, 3), (9, 2, 1)], &[1]),
        ];
        let one = |(what, bounds, slow, hang, waits, wanted): Row| {
            let memory = Memory::new(bounds);
            let hold = |&(number, export, mib)| {
                (number, memory.hold(&Client::new(number, export), mib * MIB, &none).unwrap())
            };
            let held = Mutex::new(slow.iter().map(hold).collect::<Vec<_>>());
            held.lock().unwrap().iter().for_each(|(_, h)| h.waits_for_client(true));
            let hang: Vec<_> = hang.iter().map(hold).collect();
            let [cut, done, refused] = [(); 3].map(|()| Mutex::new(Vec::new()));
            std::thread::scope(|scope| {
                for &(number, export, mib) in waits {
                    let before = memory.state().next;
                    let (memory, held, cut, done, refused) =
                        (&memory, &held, &cut, &done, &refused);
                    scope.spawn(move || {
                        let client = Client::new(number, export);
                        let end = |number| {
                            cut.lock().unwrap().push(number);
                            held.lock().unwrap().retain(|(n, _)| *n != number);
                        };
                        let it = memory.hold(&client, mib * MIB, &end);
                        if it.is_some() { done } else { refused }.lock().unwrap().push(number);
                    });
                    while memory.state().next == before {
                        std::thread::yield_now();
                    }
                }
                let ended = || done.lock().unwrap().len() + refused.lock().unwrap().len();
                let start = Instant::now();
                while ended() < waits.len() && start.elapsed() < 4 * bounds.watch {
                    std::thread::sleep(Duration::from_millis(5));
                }
                let [mut cut, done, refused] =
                    [&cut, &done, &refused].map(|l| l.lock().unwrap().clone());
                cut.sort_unstable();
                drop(hang);
                held.lock().unwrap().clear();
                assert_eq!(cut, wanted, "{what}");
                // The waiters of clients that are cut off wait no longer.
                let theirs = |of: bool| {
                    let numbers = waits.iter().map(|(number, ..)| *number);
                    numbers.filter(|n| wanted.contains(n) == of).collect::<Vec<_>>()
                };
                assert_eq!(refused, theirs(true), "{what}");
                assert!(wanted.is_empty() || done == theirs(false), "{what}: {done:?}");
            });
        };
        std::thread::scope(|scope| {
            let rows = table.map(|row| scope.spawn(move || one(row)));
            rows.into_iter().for_each(|row| row.join().unwrap());
        });
    }

    /// A spare buffer gives way to held memory, and is gone with its connection.
    #[test]
    fn a_spare_buffer_keeps_nobody_waiting() {
        let memory = Memory::new(BOUNDS);
        let clients: Vec<_> = (1..=4).map(|n| Client::new(n, 1)).collect();
        let held: Vec<_> = clients.iter().map(|c| memory.hold(c, MIB, &none).unwrap()).collect();
        held.into_iter().for_each(|h| h.end(Vec::with_capacity(MIB)));
        assert_eq!(memory.state().spare, 4 * MIB);
        // One connection uses its memory again.
        let mut again = memory.hold(&clients[0], MIB, &none).unwrap();
        assert_eq!(again.buffer().capacity(), MIB);
        drop(again);
        let others: Vec<_> = (0..4).map(|n| Client::new(10 + n, 2 + n as usize)).collect();
        let held: Vec<_> = others.iter().map(|c| memory.hold(c, 2 * MIB, &none).unwrap()).collect();
        assert_eq!(memory.state().spare, 0, "all is held, and more is kept");
        drop(held);
        memory.hold(&clients[1], MIB, &none).unwrap().end(Vec::with_capacity(MIB));
        memory.hold(&clients[1], MIB, &none).unwrap().end(Vec::with_capacity(2 * MIB));
        clients.iter().for_each(|c| memory.forget(c));
        let state = memory.state();
        assert!(state.spare == 0 && state.spares.is_empty());
    }
}
