// SPDX-License-Identifier: MIT OR Apache-2.0
//! Damage to a log's chunks: each bit of each header of an entry flipped, headers and
//! bodies zeroed, before the claim and between claim and replay.  Nothing is forged, no
//! neighbour is hidden, nothing that is lost goes unsaid, but for one case: the last
//! entry of a chunk that no seal covers, which cannot be told from a torn one.

use std::collections::BTreeSet;

use forebay_engine::logs::{Node, Outcome};
use forebay_engine::sys;

use super::script::{body, guid, id_of};
use crate::engine::{Code, Decision, Engine};
use crate::media::{Media, Region};
use crate::script::Geometry;

const GEOMETRY: Geometry =
    Geometry { chunk_pages: 16, nchunks: 6, nvolumes: 2, nslots: 1, shares: [0; 2] };
const LOG: &str = "log";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Killed at once: nothing is sealed.
    Open,
    /// The entries were sealed while the chunk stayed open; then one more was appended.
    Sealed,
    /// The pool was closed.
    Closed,
}

pub const STATES: [State; 3] = [State::Open, State::Sealed, State::Closed];

/// Txg, whether it begins a generation, bytes.
const ENTRIES: [(u64, bool, u32); 8] = [
    (1, true, 100),
    (2, false, 8),
    (2, true, 64),
    (3, true, 200),
    (1, false, 70),
    (3, true, 9),
    (3, false, 150),
    (2, false, 40),
];

struct Bed {
    engine: Engine,
    image: Region,
    options: sys::fby_options,
    /// As the engine named them: generation and id, in the order of appending.
    names: Vec<(u64, u64)>,
    /// Offset of each entry, in lines from its chunk's start.
    at: Vec<u64>,
    synced: u64,
}

/// The damage to the image.
#[derive(Clone, Copy, Debug)]
pub enum Damage {
    /// Bit of the header of an entry.
    Flip(usize, u32),
    /// Lines of the entry, from its first on.
    Zero(usize, u32),
    /// A bit of the first line of the body.
    Body(usize, u32),
}

impl Damage {
    fn entry(self) -> usize {
        match self {
            Self::Flip(entry, _) | Self::Zero(entry, _) | Self::Body(entry, _) => entry,
        }
    }
}

fn options() -> sys::fby_options {
    sys::fby_options { nslots: GEOMETRY.nslots, ..Default::default() }
}

impl Bed {
    fn new(state: State, synced: u64) -> Result<Self, String> {
        let mut engine = Engine::new(Media::bare(GEOMETRY.media_bytes()));
        let e = |e: Code| format!("{e}");
        engine.format([7; 16], GEOMETRY.chunk_size(), GEOMETRY.nvolumes).map_err(e)?;
        engine.open_all(&options()).map_err(e)?;
        let log = engine.log_add(LOG, 0).map_err(e)?;
        engine.log_create(log, &guid(0, 1), 0, &mut 0).map_err(e)?;
        let mut names = Vec::new();
        for (id, (txg, next, bytes)) in ENTRIES.iter().enumerate() {
            if state == State::Sealed && id + 1 == ENTRIES.len() {
                for tick in 1..3 {
                    engine.destage_step(tick * 200_000_000).map_err(e)?;
                }
            }
            let body = body(id as u64, *bytes);
            let (r, name) = engine.log_append(log, *txg, *next, &[&body], &mut 0).map_err(e)?;
            if r != Decision::Done {
                return Err(format!("append: {r:?}"));
            }
            names.push((name.gen, name.id));
        }
        if synced > 0 {
            engine.log_sync(log, synced, &mut 0).map_err(e)?;
        }
        match state {
            State::Closed => engine.close().map_err(e)?,
            _ => engine.abandon(),
        }
        let image = engine.media.state().visible.clone();
        let mut bed = Self { engine, image, options: options(), names, at: Vec::new(), synced };
        let nodes = bed.claim()?.0;
        bed.at = (0..ENTRIES.len())
            .map(|i| nodes.iter().find(|n| (n.gen, n.id) == bed.names[i]).map_or(0, |n| n.place))
            .collect();
        Ok(bed)
    }

    fn apply(&mut self, damage: Damage) {
        let line = (GEOMETRY.data_offset() / 64 + self.at[damage.entry()]) * 64;
        let mut state = self.engine.media.state_mut();
        let bytes = state.visible.bytes_mut();
        match damage {
            Damage::Flip(_, bit) => bytes[line as usize + bit as usize / 8] ^= 1 << (bit % 8),
            Damage::Body(_, bit) => bytes[line as usize + 128 + bit as usize / 8] ^= 1 << (bit % 8),
            Damage::Zero(_, n) => bytes[line as usize..][..n as usize * 64].fill(0),
        }
    }

    fn load(&mut self) {
        if self.engine.is_open() {
            self.engine.abandon();
        }
        let image = self.image.bytes().to_vec();
        self.engine.media.load(&image);
    }

    fn open(&mut self) -> Result<u16, String> {
        self.engine.open_all(&self.options).map_err(|e| format!("open: {e}"))?;
        self.engine.check(true)?;
        self.engine.log_find(LOG).map_err(|e| format!("find: {e}"))
    }

    fn claim(&mut self) -> Result<(Vec<Node>, Outcome), String> {
        let log = self.open()?;
        let mut header = Default::default();
        self.engine.log_claim(log, 0, &mut header).map_err(|e| format!("claim: {e}"))
    }

    /// The entries replayed, whether anything was said of a loss.
    fn replay(&mut self, nodes: &mut [Node], late: bool) -> Result<(BTreeSet<u64>, bool), String> {
        let log = self.engine.log_find(LOG).map_err(|e| format!("find: {e}"))?;
        let info = self.engine.log_info(log).map_err(|e| e.to_string())?;
        let (mut ids, mut wrong) = (BTreeSet::new(), None);
        let (engine, mut room) = (&self.engine, Vec::new());
        let result = engine.log_replay(log, nodes, &mut |node, _| {
            let Ok(read) = engine.log_read(log, node, &mut room) else {
                return sys::FBY_LOG_DAMAGED;
            };
            match id_of(read) {
                Some(id) if ids.insert(id) => sys::FBY_LOG_REPLAYED,
                _ => {
                    wrong = Some((node.gen, node.id));
                    sys::FBY_LOG_REPLAYED
                }
            }
        });
        let result = result.map_err(|e| format!("replay: {e}"))?;
        if let Some(name) = wrong {
            return Err(format!("entry {name:?} is none that was appended"));
        }
        // Entries that a claim has seen are counted by the claim's seal.
        let said = (info.missing > 0 && !late)
            || result.end != sys::FBY_LOG_COMPLETE
            || result.damaged > 0;
        Ok((ids, said))
    }

    fn judge(
        &self,
        state: State,
        damage: Damage,
        late: bool,
        got: &BTreeSet<u64>,
        said: bool,
    ) -> Result<(), String> {
        let hit = damage.entry();
        let obsolete = |i: usize| ENTRIES[i].0 <= self.synced;
        for i in 0..ENTRIES.len() {
            if got.contains(&(i as u64)) {
                if obsolete(i) {
                    return Err(format!("entry {i} is obsolete"));
                }
                continue;
            }
            // Entries that depend on the damaged one must not be replayed without it.
            let depends = self.names[i].0 > self.names[hit].0 && !obsolete(hit);
            if !obsolete(i) && i != hit && !depends {
                return Err(format!("entry {i} is hidden by the damage to {hit}"));
            }
        }
        for i in (0..ENTRIES.len()).filter(|&i| got.contains(&(i as u64))) {
            let lost = !obsolete(hit) && !got.contains(&(hit as u64));
            if lost && self.names[i].0 > self.names[hit].0 {
                return Err(format!("entry {i} was replayed without {hit}, on which it depends"));
            }
        }
        let lost = !obsolete(hit) && !got.contains(&(hit as u64));
        let torn = hit + 1 == ENTRIES.len() && state != State::Closed && !late;
        if lost && !said && !torn {
            return Err(format!("entry {hit} is lost, and nothing says so"));
        }
        Ok(())
    }

    fn run(&mut self, state: State, damage: Damage, late: bool) -> Result<(), String> {
        self.load();
        if !late {
            self.apply(damage);
        }
        let (mut nodes, _) = self.claim()?;
        if late {
            self.apply(damage);
            // Offline as well: a new claim finds what is there.
            if matches!(damage, Damage::Zero(..)) {
                self.engine.abandon();
                nodes = self.claim()?.0;
            }
        }
        let (got, said) = self.replay(&mut nodes, late)?;
        self.judge(state, damage, late, &got, said)
    }
}

/// Every bit of every header, and what else there is; how many images that were.
pub fn all(every: u32) -> Result<u64, String> {
    let mut images = 0;
    for state in STATES {
        for synced in [0, 1, 2] {
            let mut bed = Bed::new(state, synced)?;
            for entry in (0..ENTRIES.len()).filter(|&i| ENTRIES[i].0 > synced) {
                let flips =
                    (0..128 * 8).step_by(every as usize).map(|bit| Damage::Flip(entry, bit));
                let bodies = (0..64).map(|bit| Damage::Body(entry, bit));
                let zeroes = (1..4).map(|n| Damage::Zero(entry, n));
                for damage in flips.chain(bodies).chain(zeroes) {
                    for late in [false, true] {
                        images += 1;
                        bed.run(state, damage, late).map_err(|e| {
                            format!("{state:?}, synced {synced}, {damage:?}, late {late}: {e}")
                        })?;
                    }
                }
            }
        }
    }
    Ok(images)
}

#[cfg(test)]
mod tests {
    #[test]
    fn damage_forges_nothing_hides_nothing_and_is_said() {
        let images = super::all(7).unwrap_or_else(|e| panic!("{e}"));
        assert!(images > 5000, "{images}");
    }
}
