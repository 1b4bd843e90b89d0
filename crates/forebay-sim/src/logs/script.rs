// SPDX-License-Identifier: MIT OR Apache-2.0
//! Workloads of logs for the explorer, run once on media that record.

use std::collections::BTreeMap;

use forebay_engine::logs::{Append, Header};
use forebay_engine::{sys, Wait};

use crate::engine::{Decision, Engine};
use crate::hooks;
use crate::media::{MediaEvent, Region};
use crate::rng::{mix, Rng};
use crate::script::{self as blocks, Geometry};

#[derive(Clone, Copy, Debug)]
pub enum Op {
    /// Log, txg, whether it begins a generation, bytes.
    Append(usize, u64, bool, u32),
    /// The steps of an append by one of several writers.
    Begin(u16, usize, u64, bool, u32),
    Commit(u16),
    Sync(usize, u64),
    /// Housekeeping: the second tick seals the entries.
    Tick,
    /// The pool is closed and opened again; logs are claimed, and so many entries of each are
    /// replayed; the rest is left for the next time.
    Reopen(u64),
    /// Claimed and replayed to the end, then a new period begins.
    Renew(usize),
    Destroy(usize),
    /// With what the consumer says that it has synced: less than before, perhaps.
    Create(usize, u64),
    /// An operation on the volumes in the same pool.
    Block(blocks::Op),
}

#[derive(Clone, Debug)]
pub struct Script {
    pub name: String,
    pub geometry: Geometry,
    /// Whether each log's header is with its consumer.
    pub consumer: Vec<bool>,
    /// Sizes of the volumes in the same pool, in sectors.
    pub volumes: Vec<u64>,
    pub ops: Vec<Op>,
    /// Cuts begin before this operation.
    pub from: usize,
}

impl Script {
    /// The volumes' part of the script.
    pub fn blocks(&self) -> blocks::Script {
        blocks::Script {
            name: self.name.clone(),
            geometry: self.geometry,
            volumes: self.volumes.clone(),
            block_size: 512,
            ops: Vec::new(),
            from: 0,
        }
    }
}

pub fn name(log: usize) -> String {
    format!("log-{log}")
}

pub fn guid(log: usize, period: u64) -> [u8; 16] {
    let mut guid = [0; 16];
    guid[..8].copy_from_slice(&mix(log as u64 + 1).to_le_bytes());
    guid[8..].copy_from_slice(&mix(period + 77).to_le_bytes());
    guid
}

/// The body of entry `id`: its number, then what follows from it.
pub fn body(id: u64, bytes: u32) -> Vec<u8> {
    let mut out = id.to_le_bytes().to_vec();
    out.extend((8..u64::from(bytes.max(8))).map(|at| mix(id << 20 ^ at) as u8));
    out
}

/// The entry that this is the body of, if it is one.
pub fn id_of(found: &[u8]) -> Option<u64> {
    let id = u64::from_le_bytes(found.get(..8)?.try_into().ok()?);
    (found == body(id, found.len() as u32)).then_some(id)
}

#[derive(Clone, Debug)]
pub enum Mark {
    Begin {
        log: usize,
        id: u64,
        txg: u64,
    },
    End {
        log: usize,
        id: u64,
    },
    Syncing {
        log: usize,
        txg: u64,
    },
    Synced {
        log: usize,
        txg: u64,
    },
    /// A period ends, or begins, and of the one that ends nothing counts any more.
    Ending {
        log: usize,
    },
    Ended {
        log: usize,
    },
    /// After which this one, of before the period's end, is stale.
    Released {
        log: usize,
        header: Header,
    },
    /// The entry's effect is there, of an embedded log's.
    Effect {
        log: usize,
        id: u64,
    },
    /// The consumer has stored the header, and with it perhaps an effect.
    Stored {
        log: usize,
        header: Header,
        effect: Option<u64>,
    },
}

pub struct Recording {
    pub start: Region,
    pub trace: Vec<MediaEvent>,
    pub marks: Vec<(usize, Mark)>,
    pub block_marks: Vec<(usize, blocks::Mark)>,
    /// Place in the trace from which cuts begin.
    pub from: usize,
}

struct Recorder<'a> {
    script: &'a Script,
    blocks: blocks::Recorder<'a>,
    index: Vec<u16>,
    period: Vec<u64>,
    synced: Vec<u64>,
    header: Vec<Header>,
    marks: Vec<(usize, Mark)>,
    writers: BTreeMap<u16, (Append, usize, u64)>,
    next_id: u64,
}

impl Recorder<'_> {
    fn mark(&mut self, mark: Mark) {
        self.marks.push((self.blocks.at(), mark));
    }

    fn actor(&mut self, actor: u16) {
        self.blocks.actor(actor);
    }

    /// Who has begun an entry and does nothing else: its stores are its own until it commits.
    fn writer(&mut self, writer: u16) {
        hooks::set_cpu(u32::from(writer));
        self.blocks.engine.media.set_actor(WRITERS + writer);
    }

    fn store(&mut self, log: usize, header: Header, effect: Option<u64>) {
        self.header[log] = header;
        if self.script.consumer[log] {
            self.mark(Mark::Stored { log, header, effect });
        }
    }

    fn create(&mut self, log: usize) -> Result<(), String> {
        self.period[log] += 1;
        let guid = guid(log, self.period[log]);
        let created =
            self.blocks.engine.log_create(self.index[log], &guid, self.synced[log], &mut 0);
        let (Decision::Done, header) = created.map_err(|e| format!("create: {e}"))? else {
            return Err("create: a slot is busy".into());
        };
        self.store(log, header, None);
        Ok(())
    }

    fn append(&mut self, log: usize, txg: u64, next: bool, bytes: u32) -> Result<(), String> {
        self.next_id += 1;
        let id = self.next_id;
        self.actor(0);
        self.mark(Mark::Begin { log, id, txg });
        let body = body(id, bytes);
        let (first, rest) = body.split_at(body.len() / 3);
        match self.blocks.engine.log_append(self.index[log], txg, next, &[first, rest], &mut 0) {
            Ok((Decision::Done, _)) => self.mark(Mark::End { log, id }),
            Ok((Decision::Wait(Wait::Space), _)) => {}
            other => return Err(format!("append of txg {txg}: {other:?}")),
        }
        Ok(())
    }

    fn begin(
        &mut self,
        actor: u16,
        log: usize,
        txg: u64,
        next: bool,
        n: u32,
    ) -> Result<(), String> {
        self.next_id += 1;
        let id = self.next_id;
        self.writer(actor);
        self.mark(Mark::Begin { log, id, txg });
        let body = body(id, n);
        let (mut append, index) = (Append::default(), self.index[log]);
        match self.blocks.engine.log_append_begin(&mut append, index, txg, next, &[&body], &mut 0) {
            Ok(Decision::Done) => drop(self.writers.insert(actor, (append, log, id))),
            // An earlier generation is in flight, or the writers' slots are.
            Ok(Decision::Wait(Wait::Slot | Wait::Space)) => {}
            other => return Err(format!("begin by {actor}: {other:?}")),
        }
        Ok(())
    }

    fn commit(&mut self, actor: u16) {
        self.writer(actor);
        if let Some((mut append, log, id)) = self.writers.remove(&actor) {
            self.blocks.engine.log_append_commit(&mut append, &mut 0);
            self.mark(Mark::End { log, id });
        }
    }

    fn sync(&mut self, log: usize, txg: u64) -> Result<(), String> {
        self.actor(101);
        self.mark(Mark::Syncing { log, txg });
        let header = self
            .blocks
            .engine
            .log_sync(self.index[log], txg, &mut 0)
            .map_err(|e| format!("sync: {e}"))?;
        self.synced[log] = txg;
        self.mark(Mark::Synced { log, txg });
        self.store(log, header, None);
        Ok(())
    }

    fn destroy(&mut self, log: usize) -> Result<(), String> {
        self.actor(0);
        let before = self.header[log];
        self.mark(Mark::Ending { log });
        let (_, header) = self
            .blocks
            .engine
            .log_destroy(self.index[log], &mut 0)
            .map_err(|e| format!("destroy: {e}"))?;
        self.store(log, header, None);
        self.mark(Mark::Ended { log });
        if self.script.consumer[log] {
            let released = self.blocks.engine.log_release(self.index[log], &mut 0);
            released.map_err(|e| format!("release: {e}"))?;
            if before.state != sys::FBY_LOG_NONE {
                self.mark(Mark::Released { log, header: before });
            }
        }
        Ok(())
    }

    /// Claims, and replays `most` entries.
    fn replay(&mut self, log: usize, most: u64) -> Result<(), String> {
        let consumer = self.script.consumer[log];
        let mut header = self.header[log];
        let (mut nodes, claim) = self
            .blocks
            .engine
            .log_claim(self.index[log], self.synced[log], &mut header)
            .map_err(|e| format!("claim: {e}"))?;
        if claim.end != sys::FBY_LOG_COMPLETE {
            return Err(format!("a claim without a crash: {claim:?}"));
        }
        self.store(log, header, None);
        let (mut n, mut marks, index) = (0, Vec::new(), self.index[log]);
        let (engine, mut room) = (&self.blocks.engine, Vec::new());
        let replayed = engine.log_replay(index, &mut nodes, &mut |node, next| {
            if n == most {
                return sys::FBY_LOG_STOP;
            }
            n += 1;
            let Some(id) = engine.log_read(index, node, &mut room).ok().and_then(id_of) else {
                return sys::FBY_LOG_DAMAGED;
            };
            let at = engine.media.state().trace.as_ref().map_or(0, Vec::len);
            header.at = *next;
            marks.push(if consumer {
                (at, Mark::Stored { log, header, effect: Some(id) })
            } else {
                (at, Mark::Effect { log, id })
            });
            sys::FBY_LOG_REPLAYED
        });
        let result = replayed.map_err(|e| format!("replay: {e}"))?;
        self.header[log] = header;
        self.marks.extend(marks);
        match result.end {
            sys::FBY_LOG_COMPLETE | sys::FBY_LOG_STOPPED => Ok(()),
            _ => Err(format!("a replay without a crash: {result:?}")),
        }
    }

    fn reopen(&mut self, most: u64) -> Result<(), String> {
        self.actor(0);
        self.blocks.when_idle(Engine::close).map_err(|e| format!("close: {e}"))?;
        self.blocks.reopen()?;
        for log in 0..self.index.len() {
            let state = self.blocks.engine.log_info(self.index[log]).map_err(|e| e.to_string())?;
            let state =
                if self.script.consumer[log] { self.header[log].state } else { state.header.state };
            if state != sys::FBY_LOG_NONE {
                self.replay(log, most)?;
            } else {
                let mut header = self.header[log];
                let _ = self.blocks.engine.log_claim(self.index[log], 0, &mut header);
            }
        }
        Ok(())
    }

    fn step(&mut self, op: Op) -> Result<(), String> {
        match op {
            Op::Append(log, txg, next, bytes) => self.append(log, txg, next, bytes)?,
            Op::Begin(actor, log, txg, next, bytes) => self.begin(actor, log, txg, next, bytes)?,
            Op::Commit(actor) => self.commit(actor),
            Op::Sync(log, txg) => self.sync(log, txg)?,
            Op::Tick => {
                self.blocks.tick().map_err(|e| format!("tick: {e}"))?;
            }
            Op::Reopen(most) => self.reopen(most)?,
            Op::Renew(log) => {
                self.reopen(u64::MAX)?;
                self.destroy(log)?;
                self.create(log)?;
            }
            Op::Destroy(log) => self.destroy(log)?,
            Op::Block(op) => self.blocks.act(op)?,
            Op::Create(log, synced) => {
                self.mark(Mark::Syncing { log, txg: synced });
                self.mark(Mark::Synced { log, txg: synced });
                self.synced[log] = synced;
                self.create(log)?;
            }
        }
        if let Some(misuse) = self.blocks.engine.media.misuse() {
            return Err(misuse);
        }
        if self.writers.is_empty() && self.blocks.engine.is_open() {
            self.blocks.engine.check(true)?;
        }
        Ok(())
    }
}

/// Runs the script once.
pub fn record(script: &Script) -> Result<Recording, String> {
    let beside = script.blocks();
    let (blocks, _) = blocks::Recorder::new(&beside)?;
    let n = script.consumer.len();
    let mut r = Recorder {
        script,
        blocks,
        index: Vec::new(),
        period: vec![0; n],
        synced: vec![0; n],
        header: vec![Header::default(); n],
        marks: Vec::new(),
        writers: BTreeMap::new(),
        next_id: 0,
    };
    for (log, &consumer) in script.consumer.iter().enumerate() {
        let flags = if consumer { sys::FBY_LOG_CONSUMER } else { 0 };
        r.index.push(r.blocks.engine.log_add(&name(log), flags).map_err(|e| format!("add: {e}"))?);
    }
    for log in 0..n {
        r.create(log)?;
    }
    let start = r.blocks.begin_trace();
    for mark in &mut r.marks {
        mark.0 = 0;
    }
    let mut from = 0;
    for (i, &op) in script.ops.iter().enumerate() {
        if i == script.from {
            from = r.blocks.at();
        }
        let before = &script.ops[..=i];
        r.step(op).map_err(|e| format!("script '{}', {before:?}: {e}", script.name))?;
    }
    let trace = r.blocks.engine.media.state_mut().trace.take().unwrap_or_default();
    Ok(Recording { start, trace, marks: r.marks, block_marks: r.blocks.marks, from })
}

/// Actors of the media: those of the other operations are below and above.
const WRITERS: u16 = 50;

const TINY: Geometry =
    Geometry { chunk_pages: 16, nchunks: 6, nvolumes: 3, nslots: 1, shares: [0; 2] };

/// Each about one thing.
pub fn small() -> Vec<Script> {
    use Op::*;
    let two = Geometry { nslots: 2, nchunks: 8, ..TINY };
    let s = |name: &str, geometry, ops: &[Op]| {
        let one = |consumer: bool| Script {
            name: format!("{name}{}", if consumer { ", consumer's header" } else { "" }),
            geometry,
            consumer: vec![consumer],
            volumes: Vec::new(),
            ops: ops.to_vec(),
            from: 0,
        };
        [one(false), one(true)]
    };
    // Two entries fill a chunk, and each chunk of the pool is used before one comes again.
    let mut rounds = Vec::new();
    for txg in 1..=7 {
        rounds.extend([
            Append(0, txg, true, 30_000),
            Append(0, txg, true, 30_000),
            Sync(0, txg - 1),
        ]);
    }
    let from = rounds.len() - 3;
    let again = s("a chunk with entries of before", TINY, &rounds);
    let again = again.map(|script| Script { from, ..script });
    let three = s(
        "chunks of three txgs",
        TINY,
        &[
            Append(0, 1, true, 40_000),
            Append(0, 2, true, 40_000),
            Append(0, 2, true, 40_000),
            Append(0, 3, true, 40_000),
            Sync(0, 1),
            Append(0, 4, true, 40_000),
            Append(0, 4, true, 40_000),
            Append(0, 4, true, 40_000),
            Append(0, 4, true, 40_000),
            Append(0, 4, true, 8),
        ],
    );
    let three = three.map(|script| Script { from: 8, ..script });
    [
        s("first append", TINY, &[Append(0, 1, true, 100)]),
        s(
            "generations",
            TINY,
            &[
                Append(0, 1, true, 10),
                Append(0, 1, false, 64),
                Append(0, 2, true, 200),
                Append(0, 1, false, 8),
                Append(0, 3, true, 65),
            ],
        ),
        s(
            "sync",
            TINY,
            &[
                Append(0, 1, true, 30),
                Append(0, 2, true, 30),
                Sync(0, 1),
                Append(0, 4, true, 30),
                Sync(0, 2),
                Append(0, 5, false, 30),
            ],
        ),
        s(
            "chunks are given back, and used again",
            TINY,
            &[
                Append(0, 1, true, 40_000),
                Append(0, 1, true, 40_000),
                Append(0, 2, true, 40_000),
                Sync(0, 1),
                Append(0, 3, true, 40_000),
                Append(0, 3, true, 40_000),
                Append(0, 3, true, 700),
            ],
        ),
        again,
        three,
        s(
            "sealed",
            TINY,
            &[
                Append(0, 1, true, 20),
                Append(0, 1, true, 20),
                Tick,
                Tick,
                Append(0, 1, true, 20),
                Tick,
                Tick,
                Append(0, 2, true, 90),
            ],
        ),
        s(
            "two writers of one generation",
            two,
            &[
                Append(0, 1, true, 20),
                Begin(0, 0, 1, true, 80),
                Begin(1, 0, 2, false, 90),
                Commit(1),
                Begin(1, 0, 1, false, 20),
                Commit(1),
                Commit(0),
                Begin(1, 0, 1, false, 100),
                Begin(0, 0, 1, true, 60),
                Commit(1),
                Begin(0, 0, 1, true, 60),
                Commit(0),
            ],
        ),
        s(
            "a generation waits",
            two,
            &[
                Begin(0, 0, 1, true, 80),
                Begin(1, 0, 1, true, 90),
                Commit(1),
                Commit(0),
                Append(0, 1, true, 30),
            ],
        ),
        s(
            "closed and replayed in parts",
            TINY,
            &[
                Append(0, 1, true, 20),
                Append(0, 1, true, 20),
                Append(0, 2, false, 20),
                Reopen(1),
                Reopen(1),
                Reopen(9),
            ],
        ),
        s(
            "a period after the other",
            TINY,
            &[
                Append(0, 1, true, 20),
                Append(0, 2, true, 20),
                Renew(0),
                Append(0, 1, true, 20),
                Append(0, 1, true, 20),
                Destroy(0),
                Create(0, 0),
                Append(0, 1, true, 20),
            ],
        ),
        s(
            "a period of lower txgs than the one before",
            TINY,
            &[
                Sync(0, 50),
                Append(0, 51, true, 40_000),
                Append(0, 53, true, 40_000),
                Destroy(0),
                Create(0, 3),
                Append(0, 4, true, 40_000),
                Append(0, 5, true, 20),
            ],
        ),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Logs of both homes, several writers, everything.
pub fn random(seed: u64) -> Script {
    let mut rng = Rng::new(mix(seed ^ 0x10_65));
    let nslots = rng.range(1, 3) as u32;
    let logs = rng.range(1, 3) as usize;
    let geometry = Geometry { chunk_pages: 16, nchunks: 16, nvolumes: 4, nslots, shares: [0; 2] };
    let consumer: Vec<bool> = (0..logs).map(|_| rng.percent(50)).collect();
    let (mut synced, mut ops, mut busy) = (vec![0u64; logs], Vec::new(), vec![false; 3]);
    for _ in 0..rng.range(4, 24) {
        let log = rng.index(logs);
        let txg = synced[log] + rng.range(1, 3);
        let bytes = if rng.one_in(6) { rng.range(8, 30_000) } else { rng.range(8, 400) } as u32;
        let actor = rng.index((nslots as usize).min(3));
        let idle = busy.iter().all(|b| !b);
        match rng.below(100) {
            0..35 if idle => ops.push(Op::Append(log, txg, rng.percent(50), bytes)),
            0..55 if !busy[actor] => {
                busy[actor] = true;
                ops.push(Op::Begin(actor as u16, log, txg, rng.percent(40), bytes));
            }
            0..70 => {
                busy[actor] = false;
                ops.push(Op::Commit(actor as u16));
            }
            70..82 => {
                synced[log] += rng.range(1, 2);
                ops.push(Op::Sync(log, synced[log]));
            }
            82..88 => ops.push(Op::Tick),
            _ => {
                ops.extend((0..3).map(Op::Commit));
                busy.fill(false);
                ops.push(Op::Renew(log));
                for other in (0..logs).filter(|&o| o != log) {
                    synced[other] = rng.below(synced[other] + 1);
                    ops.push(Op::Destroy(other));
                    ops.push(Op::Create(other, synced[other]));
                }
            }
        }
    }
    ops.extend((0..3).map(Op::Commit));
    if rng.one_in(3) {
        ops.push(Op::Reopen(rng.range(0, 3)));
    }
    Script { name: format!("random {seed}"), geometry, consumer, volumes: Vec::new(), ops, from: 0 }
}
