// SPDX-License-Identifier: MIT OR Apache-2.0
//! One run of a scene: clients, requests and their ends in an order that is chosen.

use std::collections::BTreeMap;

use forebay_engine::groups::{Durable, Persisted, TicketState};
use forebay_engine::logs::Append;
use forebay_engine::sys;

use super::explore::{settle, Explorer};
use super::ssd::{Engine, Ssd};
use crate::device::{Choices, Disk, End, Kind, Landed, Path};
use crate::engine::{Decision, Wait};
use crate::logs::script::{body, guid, name, Mark};
use crate::logs::Known;
use crate::script::Geometry;

#[derive(Clone, Copy, Debug)]
pub enum Op {
    /// Log, txg, whether it begins a generation, bytes.
    Append(usize, u64, bool, u32),
    /// The steps of an append by one of several writers.
    Begin(u16, usize, u64, bool, u32),
    Commit(u16),
    Sync(usize, u64),
    /// Housekeeping.
    Tick,
    Destroy(usize),
    /// With what the consumer says that it has synced.
    Create(usize, u64),
}

#[derive(Clone, Debug)]
pub struct Scene {
    pub name: String,
    pub geometry: Geometry,
    pub durable: Durable,
    pub logs: usize,
    pub ops: Vec<Op>,
    /// Before this one each operation is durable before the next begins.
    pub from: usize,
    /// Requests that may fail in a run.
    pub faults: u32,
}

pub(super) const UNIT: usize = 4096;

impl Scene {
    pub(super) fn options(&self) -> sys::fby_options {
        sys::fby_options { nslots: self.geometry.nslots, ..Default::default() }
    }

    /// A pool with the logs, none of them in a period.
    pub(super) fn start(&self) -> Result<Disk, String> {
        let g = self.geometry;
        let bytes = (1 + g.nchunks as usize) * g.chunk_size() as usize;
        let ssd = Ssd::new(Disk::new(UNIT, bytes / UNIT), self.durable);
        let media = ssd.media();
        let format = sys::fby_format {
            uuid: [7; 16],
            chunk_size: g.chunk_size(),
            nvolumes: g.nvolumes,
            unit: UNIT as u32,
            ..Default::default()
        };
        forebay_engine::format(&media, &format).map_err(|e| format!("format: {e}"))?;
        let opened = Engine::open(media, &self.options());
        let (mut engine, _) = opened.map_err(|e| format!("open: {e}"))?;
        for log in 0..self.logs {
            engine.log_add(&name(log), 0).map_err(|e| format!("add: {e}"))?;
        }
        settle(&ssd, &engine)?;
        engine.close_attached().map_err(|e| format!("close: {e}"))?;
        drop(engine);
        let state = ssd.state();
        let cut = state.device.cut();
        match cut.is_settled() {
            true => Ok(cut.durable().clone()),
            false => Err("a closed pool is not durable".into()),
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Op,
    /// The first write that the operation itself carries out fails.
    Failing(Persisted),
    Send,
    End(u32, End),
}

pub(super) struct Run<'a> {
    scene: &'a Scene,
    ssd: &'a Ssd,
    engine: Engine,
    index: Vec<u16>,
    known: Vec<Known>,
    /// Entries that are not durable yet: ticket, log, id.
    tickets: Vec<(u64, usize, u64)>,
    op: usize,
    next_id: u64,
    /// The operation waits for a request to end.
    blocked: bool,
    /// Its entry begins a generation, if it did not when it was refused.
    begun: bool,
    /// There is nothing to send.
    quiet: bool,
    faults: u32,
    now_ns: u64,
    period: Vec<u64>,
    /// Appends between their steps.
    writers: BTreeMap<u16, (Append, usize, u64)>,
    /// The state during the present operation: with what it has begun, without what it ends.
    during: Option<Vec<Known>>,
    /// The operations so far, for the message of a violation.
    steps: Vec<String>,
}

/// How else than well a request may end.
pub(super) fn faults_of(kind: Kind) -> &'static [End] {
    match kind {
        Kind::Flush => &[End::FlushFailed, End::CacheDropped { shown: false }],
        Kind::Write | Kind::Fua => &[
            End::WriteFailed(Landed::Nothing),
            End::WriteFailed(Landed::First(1)),
            End::WriteFailed(Landed::All),
        ],
    }
}

impl<'a> Run<'a> {
    pub(super) fn new(scene: &'a Scene, ssd: &'a Ssd, start: &Disk) -> Result<Self, String> {
        ssd.start(start);
        let opened = Engine::open(ssd.media(), &scene.options());
        let (engine, _) = opened.map_err(|e| format!("open: {e}"))?;
        let mut run = Self {
            scene,
            ssd,
            engine,
            index: Vec::new(),
            known: vec![Known::default(); scene.logs],
            tickets: Vec::new(),
            op: 0,
            next_id: 0,
            blocked: false,
            begun: false,
            quiet: true,
            faults: 0,
            now_ns: 0,
            period: vec![0; scene.logs],
            writers: BTreeMap::new(),
            during: None,
            steps: Vec::new(),
        };
        for log in 0..scene.logs {
            run.index.push(run.engine.log_find(&name(log)).map_err(|e| format!("find: {e}"))?);
            run.create(log, 0)?;
        }
        settle(ssd, &run.engine)?;
        while run.op < scene.from {
            run.operation()?;
            settle(ssd, &run.engine)?;
            run.told();
            if run.blocked {
                return Err(format!("{:?} waits for ever", scene.ops[run.op]));
            }
        }
        ssd.state_mut().device.record();
        Ok(run)
    }

    /// Whether it was appended: else the call is to be made again.
    fn appended(
        &mut self,
        log: usize,
        id: u64,
        done: forebay_engine::Result<(Decision, u64)>,
    ) -> Result<bool, String> {
        match done {
            Ok((Decision::Done, ticket)) => {
                self.tickets.push((ticket, log, id));
                (self.next_id, self.begun) = (id, false);
                Ok(true)
            }
            Ok((Decision::Wait(wait), _)) => {
                self.known[log].entries.pop();
                self.begun = true;
                match wait {
                    Wait::Space if self.tickets.is_empty() && self.writers.is_empty() => {
                        Err("the pool is full".into())
                    }
                    _ => Ok(false),
                }
            }
            other => Err(format!("append: {other:?}")),
        }
    }

    fn append(&mut self, log: usize, txg: u64, next: bool, bytes: u32) -> Result<bool, String> {
        let id = self.next_id + 1;
        self.known[log].apply(&Mark::Begin { log, id, txg });
        self.begins();
        let (next, body) = (next && !self.begun, body(id, bytes));
        let appended = self.engine.log_append(self.index[log], txg, next, &[&body], &mut 0);
        self.appended(log, id, appended.map(|(decision, name)| (decision, name.ticket)))
    }

    fn begin(
        &mut self,
        writer: u16,
        log: usize,
        txg: u64,
        next: bool,
        bytes: u32,
    ) -> Result<bool, String> {
        let id = self.next_id + 1;
        self.known[log].apply(&Mark::Begin { log, id, txg });
        self.begins();
        let (next, body, mut append) = (next && !self.begun, body(id, bytes), Append::default());
        let index = self.index[log];
        match self.engine.log_append_begin(&mut append, index, txg, next, &[&body], &mut 0) {
            Ok(Decision::Done) => {
                self.writers.insert(writer, (append, log, id));
                (self.next_id, self.begun) = (id, false);
                Ok(true)
            }
            other => self.appended(log, id, other.map(|decision| (decision, 0))),
        }
    }

    fn commit(&mut self, writer: u16) {
        if let Some((mut append, log, id)) = self.writers.remove(&writer) {
            let name = self.engine.log_append_commit(&mut append, &mut 0);
            self.tickets.push((name.ticket, log, id));
        }
    }

    fn create(&mut self, log: usize, synced: u64) -> Result<(), String> {
        self.known[log].apply(&Mark::Syncing { log, txg: synced });
        self.known[log].apply(&Mark::Synced { log, txg: synced });
        self.begins();
        self.period[log] += 1;
        let guid = guid(log, self.period[log]);
        match self.engine.log_create(self.index[log], &guid, synced, &mut 0) {
            Ok((Decision::Done, _)) => Ok(()),
            other => Err(format!("create: {other:?}")),
        }
    }

    fn destroy(&mut self, log: usize) -> Result<bool, String> {
        self.known[log].apply(&Mark::Ending { log });
        self.begins();
        match self.engine.log_destroy(self.index[log], &mut 0) {
            Ok((Decision::Done, _)) => {
                self.known[log].apply(&Mark::Ended { log });
                self.tickets.retain(|(_, of, _)| *of != log);
                Ok(true)
            }
            Ok((Decision::Wait(_), _)) => Ok(false),
            other => Err(format!("destroy: {other:?}")),
        }
    }

    fn begins(&mut self) {
        self.during = Some(self.known.clone());
    }

    /// The next operation.  It may have to wait.
    fn operation(&mut self) -> Result<(), String> {
        let done = match self.scene.ops[self.op] {
            Op::Append(log, txg, next, bytes) => self.append(log, txg, next, bytes)?,
            Op::Begin(writer, log, txg, next, n) => self.begin(writer, log, txg, next, n)?,
            Op::Commit(writer) => {
                self.commit(writer);
                true
            }
            Op::Sync(log, txg) => {
                self.known[log].apply(&Mark::Syncing { log, txg });
                self.begins();
                let synced = self.engine.log_sync(self.index[log], txg, &mut 0);
                synced.map_err(|e| format!("sync: {e}"))?;
                self.known[log].apply(&Mark::Synced { log, txg });
                true
            }
            Op::Tick => {
                self.now_ns += 200_000_000;
                let step = self.engine.destage_step(self.now_ns, &mut 0);
                step.map_err(|e| format!("tick: {e}"))?;
                true
            }
            Op::Destroy(log) => self.destroy(log)?,
            Op::Create(log, synced) => {
                self.create(log, synced)?;
                true
            }
        };
        self.blocked = !done;
        self.op += usize::from(done);
        self.quiet = false;
        Ok(())
    }

    fn send(&mut self) -> Result<(), String> {
        let next = self.engine.medium_next(&mut 0).map_err(|e| format!("next: {e}"))?;
        match next {
            (Decision::Done, io) => {
                self.ssd.send(io, Path::Straight);
                self.blocked = false;
            }
            (Decision::Wait(_), _) => self.quiet = true,
            other => return Err(format!("next: {other:?}")),
        }
        Ok(())
    }

    /// Tells each writer whose ticket is durable.
    fn told(&mut self) -> bool {
        let before = self.tickets.len();
        let (engine, known) = (&self.engine, &mut self.known);
        self.tickets.retain(|&(ticket, log, id)| {
            let durable = engine.ticket(ticket) == TicketState::Durable;
            if durable {
                known[log].apply(&Mark::End { log, id });
            }
            !durable
        });
        self.tickets.len() < before
    }

    fn choices(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        if self.op < self.scene.ops.len() && !self.blocked {
            steps.push(Step::Op);
            if matches!(self.scene.ops[self.op], Op::Sync(..)) && self.faults < self.scene.faults {
                steps.push(Step::Failing(Persisted::WriteFailed));
                if self.scene.durable != Durable::Through {
                    steps.push(Step::Failing(Persisted::FlushFailed));
                }
            }
        }
        if !self.quiet {
            steps.push(Step::Send);
        }
        for (id, kind) in self.ssd.in_flight() {
            steps.push(Step::End(id, End::Done));
            if self.faults == self.scene.faults {
                continue;
            }
            steps.extend(faults_of(kind).iter().map(|end| Step::End(id, *end)));
        }
        steps
    }

    /// Runs to the end, and shows each cut to the explorer.
    pub(super) fn all(mut self, choices: &mut Choices, x: &mut Explorer) -> Result<(), String> {
        self.each(choices, x).map_err(|e| format!("{e}; after {}", self.steps.join(", ")))
    }

    fn each(&mut self, choices: &mut Choices, x: &mut Explorer) -> Result<(), String> {
        loop {
            let steps = self.choices();
            if steps.is_empty() {
                let rest = &self.scene.ops[self.op..];
                return match self.tickets.is_empty() && rest.is_empty() {
                    true => Ok(()),
                    false => Err(format!("nothing goes on before {rest:?}: {:?}", self.tickets)),
                };
            }
            let before = self.known.clone();
            self.during = None;
            let step = steps[choices.choose(steps.len())];
            match step {
                Step::Op => self.operation()?,
                Step::Failing(end) => {
                    self.ssd.state_mut().persist_ends.push(end);
                    self.operation()?;
                    let left = std::mem::take(&mut self.ssd.state_mut().persist_ends);
                    self.faults += u32::from(left.is_empty());
                }
                Step::Send => self.send()?,
                Step::End(id, end) => {
                    if let Some((io, ok)) = self.ssd.end(id, end) {
                        self.faults += u32::from(!ok);
                        self.engine.medium_end(&io, if ok { 0 } else { 5 }, &mut 0);
                    }
                    (self.blocked, self.quiet) = (false, false);
                }
            }
            self.steps.push(match step {
                Step::Op | Step::Failing(_) if self.blocked => "refused".into(),
                Step::Op => format!("{:?}", self.scene.ops[self.op - 1]),
                Step::Send => match self.quiet {
                    true => "nothing to send".into(),
                    false => format!("{:?}", self.ssd.newest()),
                },
                step => format!("{step:?}"),
            });
            if let Some(misuse) = self.ssd.misuse() {
                return Err(misuse);
            }
            let events = self.ssd.events();
            if self.told() {
                self.blocked = false;
            }
            if !choices.fresh() {
                continue;
            }
            if self.writers.is_empty() {
                match self.engine.check(true) {
                    Ok(None) => {}
                    other => return Err(format!("check: {other:?}")),
                }
            }
            let during = self.during.take().unwrap_or(before);
            for cut in &events {
                x.cut(cut, &during)?;
            }
            let now = self.ssd.state().device.cut();
            x.cut(&now, &self.known)?;
        }
    }
}
