// SPDX-License-Identifier: MIT OR Apache-2.0
//! The order of a log's entries (`core/log/log_order.c`) against a model that knows
//! what was appended: random logs, entries hidden, damaged and found again,
//! replay stopped and resumed anywhere.

use std::collections::BTreeSet;

use forebay_engine::log_order::{append, claim, replay, sync, Node, Position};
use forebay_engine::sys;

use crate::rng::Rng;

/// Generation and id: the name of an entry.
pub type Name = (u64, u64);

pub fn name(node: &Node) -> Name {
    (node.gen, node.id)
}

/// A log as its writer knows it.
#[derive(Debug, Clone, Default)]
pub struct Written {
    pub at: Position,
    pub nodes: Vec<Node>,
}

/// The model's expectation of a replay.
#[derive(Debug, Default, PartialEq)]
pub struct Expected {
    pub replayed: Vec<Name>,
    pub complete: bool,
}

/// The model of one log across claim, losses and replays.
pub struct Model<'a> {
    written: &'a [Node],
    synced: u64,
    /// The entries of the last generation that the claim saw.
    last_seen: BTreeSet<Name>,
    seal_gen: u64,
    replayed: BTreeSet<Name>,
}

impl<'a> Model<'a> {
    /// Written, and what of it the claim sees.
    pub fn new(written: &'a [Node], synced: u64, seen: &[Node]) -> Self {
        let live = |node: &&Node| node.txg > synced;
        let gen = seen.iter().filter(live).map(|node| node.gen).max().unwrap_or(0);
        let last_seen = seen.iter().filter(live).filter(|n| n.gen == gen).map(name).collect();
        Model { written, synced, last_seen, seal_gen: gen + 1, replayed: BTreeSet::new() }
    }

    /// Was all that an entry of this generation depends on replayed?
    fn satisfied(&self, gen: u64) -> bool {
        self.written
            .iter()
            .filter(|node| node.gen < gen && node.txg > self.synced)
            .all(|node| self.replayed.contains(&name(node)))
    }

    /// The seal counts by txg, so it cannot tell which of the last generation's
    /// entries are there, only how many.
    fn seal_holds(&self) -> bool {
        let last = self.seal_gen - 1;
        let txgs = |names: &mut dyn Iterator<Item = &Node>| {
            let mut txgs: Vec<u64> = names.map(|node| node.txg).collect();
            txgs.sort_unstable();
            txgs
        };
        let of_last = |node: &&Node| node.gen == last && node.txg > self.synced;
        let seen = txgs(
            &mut self.written.iter().filter(of_last).filter(|n| self.last_seen.contains(&name(n))),
        );
        let now = txgs(
            &mut self.written.iter().filter(of_last).filter(|n| self.replayed.contains(&name(n))),
        );
        self.satisfied(last) && seen == now
    }

    /// One replay of what is present; `stop` is asked before each entry, with the number of
    /// those before it.
    pub fn replay(
        &mut self,
        present: &[Node],
        damaged: &BTreeSet<Name>,
        stop: impl Fn(usize, Name) -> bool,
    ) -> Expected {
        let last = self.replayed.last().copied().unwrap_or((0, 0));
        let mut names: Vec<&Node> =
            present.iter().filter(|node| node.txg > self.synced && name(node) > last).collect();
        names.sort_by_key(|node| name(node));
        let (mut expected, mut passed) = (Expected::default(), last.0 >= self.seal_gen);
        for (calls, node) in names.into_iter().enumerate() {
            if !passed && node.gen >= self.seal_gen && !self.seal_holds() {
                return expected;
            }
            if !self.satisfied(node.gen) {
                return expected;
            }
            if stop(calls, name(node)) {
                return expected;
            }
            if damaged.contains(&name(node)) {
                continue;
            }
            passed |= node.gen >= self.seal_gen;
            self.replayed.insert(name(node));
            expected.replayed.push(name(node));
        }
        expected.complete = passed || self.seal_holds();
        expected
    }
}

/// A log of up to `most` entries, with txgs opened and synced on the way.
pub fn random_log(rng: &mut Rng, most: u64) -> Written {
    let mut log = Written {
        at: Position { synced: rng.below(6), ..Position::default() },
        ..Written::default()
    };
    let (first, bold) = (log.at.synced + 1, rng.percent(50));
    let mut open = first;
    for _ in 0..rng.below(most + 1) {
        match rng.below(10) {
            0 if open < log.at.synced + sys::FBY_LOG_TXGS as u64 => open += 1,
            1 if open > log.at.synced + 1 || bold => {
                let to = rng.range(log.at.synced, open);
                sync(&mut log.at, to).expect("forwards");
                open = open.max(to + 1);
            }
            _ => {
                let txg = rng.range(log.at.synced + 1, open.max(log.at.synced + 1));
                let node = append(&mut log.at, txg, rng.percent(40)).expect("in the window");
                log.nodes.push(Node { place: log.nodes.len() as u64, ..node });
            }
        }
    }
    log
}

fn shuffle(rng: &mut Rng, nodes: &mut [Node]) {
    for i in (1..nodes.len()).rev() {
        nodes.swap(i, rng.index(i + 1));
    }
}

/// The written nodes that a scan shows: some of the obsolete ones, and most of the others.
fn scan(rng: &mut Rng, written: &[Node], synced: u64, hide: u64) -> Vec<Node> {
    let mut seen: Vec<Node> = written
        .iter()
        .filter(|node| if node.txg <= synced { rng.one_in(2) } else { !rng.percent(hide) })
        .copied()
        .collect();
    if rng.one_in(2) {
        shuffle(rng, &mut seen);
    }
    seen
}

/// Runs one random log through claim and replays; returns the difference from the model.
pub fn run(seed: u64) -> Result<(), String> {
    let mut rng = Rng::new(seed);
    let most = if rng.one_in(8) { 60 } else { 12 };
    let log = random_log(&mut rng, most);
    // The pool's record may be older than the writer's last sync, never newer.
    let synced = log.at.synced;
    let hide = if rng.one_in(3) { 0 } else { 15 };
    let seen = scan(&mut rng, &log.nodes, synced, hide);
    let mut at = claim(synced, &seen);
    let mut model = Model::new(&log.nodes, synced, &seen);
    for stage in 0..rng.range(1, 4) {
        let hide_now = if rng.one_in(2) { 0 } else { hide };
        let present = scan(&mut rng, &log.nodes, synced, hide_now);
        let damaged: BTreeSet<Name> =
            log.nodes.iter().filter(|_| rng.percent(hide / 2)).map(name).collect();
        let stop = if rng.one_in(2) { rng.index(log.nodes.len() + 1) } else { usize::MAX };
        let expected = model.replay(&present, &damaged, |calls, _| calls == stop);
        let (mut calls, mut stored, mut got) = (0, at, Vec::new());
        let outcome = replay(&mut at, &present, &mut |node, next| {
            if calls == stop {
                return sys::FBY_LOG_STOP;
            }
            calls += 1;
            if damaged.contains(&name(node)) {
                return sys::FBY_LOG_DAMAGED;
            }
            stored = *next;
            got.push(name(node));
            sys::FBY_LOG_REPLAYED
        });
        let fail = |what: &str| {
            Err(format!(
                "seed {seed}, replay {stage}: {what}\nexpected {expected:?}\ngot {got:?}\n{outcome:?}\nwritten {:#?}",
                log.nodes
            ))
        };
        if got != expected.replayed {
            return fail("other entries are replayed than can be");
        }
        if (outcome.end == sys::FBY_LOG_COMPLETE) != expected.complete {
            return fail("completeness differs");
        }
        if outcome.replayed != got.len() as u64 || stored != at {
            return fail("the position is not the checkpoint of the last entry");
        }
        let skipped = outcome.obsolete + outcome.earlier + outcome.twins;
        if skipped + outcome.replayed + outcome.damaged + outcome.left != present.len() as u64 {
            return fail("the counts do not add up");
        }
        if outcome.end == sys::FBY_LOG_MISSING && outcome.witness.gen == 0 {
            return fail("no witness");
        }
        at = stored; // as after a crash
    }
    Ok(())
}
