// SPDX-License-Identifier: MIT OR Apache-2.0
//! Small workloads for the explorer, run once on media that record.  Beside the
//! trace of the media there is a list of marks: when each write began and was
//! acknowledged, and what reached the origins, by position in the trace.

use std::collections::BTreeMap;
use std::ops::Range;

use forebay_engine::sys;

use crate::engine::{identity, volume_spec, Attach, Decision, Engine, Past, Ticket, Wait, Write};
use crate::hooks;
use crate::media::{Media, MediaEvent, Region};
use crate::model::Kind;
use crate::origin::Origin;
use crate::pattern;
use crate::rng::mix;

pub use crate::workloads::{random, small};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    pub chunk_pages: u32,
    pub nchunks: u32,
    pub nvolumes: u32,
    pub nslots: u32,
    /// Bytes of the shares of the first two volumes, after the chunks, if they are static; 0:
    /// they are not.
    pub shares: [u32; 2],
}

impl Geometry {
    pub fn chunk_size(&self) -> u32 {
        self.chunk_pages * 4096
    }

    /// The first data page of each chunk.
    pub fn first_page(&self) -> u32 {
        sys::fby_first_page(self.chunk_pages)
    }

    /// The line of its chunk that describes the page.
    pub fn line_of(&self, page: u32) -> u32 {
        sys::fby_line_of_page(self.chunk_pages, page)
    }

    /// Lines of a chunk that say something: its own and those of its pages.
    pub fn lines(&self) -> u32 {
        self.line_of(self.chunk_pages)
    }

    pub fn data_offset(&self) -> u64 {
        let chunk = u64::from(self.chunk_size());
        (8192 + u64::from(self.nvolumes) * 512).div_ceil(chunk) * chunk
    }

    /// The end of the chunks, where the shares begin.
    pub fn chunks_end(&self) -> u64 {
        self.data_offset() + u64::from(self.nchunks) * u64::from(self.chunk_size())
    }

    pub fn static_bytes(&self) -> u64 {
        self.shares.iter().map(|&s| u64::from(s)).sum()
    }

    /// The areas of the shares' pages.
    pub fn share_pages(&self) -> [(u64, u64); 2] {
        let mut at = self.chunks_end();
        self.shares.map(|bytes| {
            let (bytes, slots) = (u64::from(bytes), u64::from(bytes.saturating_sub(4352) / 8256));
            let pages = at + 4096 + (slots * 64 + 256).div_ceil(4096) * 4096;
            at += bytes;
            if bytes == 0 {
                (0, 0)
            } else {
                (pages, pages + slots * 8192)
            }
        })
    }

    pub fn media_bytes(&self) -> usize {
        (self.chunks_end() + self.static_bytes()) as usize
    }
}

#[derive(Clone, Copy, Debug)]
pub enum Op {
    /// A whole write, and its acknowledgement.
    Write(usize, u64, u32),
    /// The steps of a write by one of several writers.
    Begin(u16, usize, u64, u32),
    Copy(u16),
    Commit(u16),
    Publish(u16),
    /// A write past the cache, as far as that is allowed.
    Past(usize, u64, u32),
    Flush(usize),
    Discard(usize, u64, u64),
    Zero(usize, u64, u64),
    /// Destage to the end.
    Drain(usize),
    /// Some steps of a drain.
    Destage(usize, u32),
    /// Some steps of destage, which is not told to drain; its origin is slow.
    Round(u32),
    /// From now on the volume's origin refuses what meets these sectors, and no others.
    Refuse(usize, u64, u64),
    /// Destage begins at so many of a hundred pages.
    High(u32),
    /// Destage up to the flush of the origin, which does not end before Unhold.
    Hold(usize),
    Unhold,
    /// Time passes and the housekeeping is done.
    Tick,
    /// A clean close, and open again.
    Close,
    /// A clean close; nothing may follow.
    Shut,
    /// The process dies without the machine; recovery.
    Kill,
    Add(usize),
    Remove(usize),
    /// Detach and attach.
    Reattach(usize),
    Checksums(bool),
}

#[derive(Clone, Debug)]
pub struct Script {
    pub name: String,
    pub geometry: Geometry,
    /// Sizes in sectors; all but the last are there from the beginning.
    pub volumes: Vec<u64>,
    pub block_size: u32,
    pub ops: Vec<Op>,
    /// Cuts are taken from this operation on; those before have scripts of their own.
    pub from: usize,
}

/// Volumes are numbered by their place in the script, from 1.
pub fn number(vol: usize) -> u64 {
    vol as u64 + 1
}

pub fn name(vol: usize) -> String {
    format!("v{vol}")
}

pub const FIRST_ID: u64 = 1;

#[derive(Clone, Debug)]
pub enum Mark {
    Begin {
        vol: usize,
        sectors: Range<u64>,
        id: u64,
        kind: Kind,
    },
    End {
        vol: usize,
        sectors: Range<u64>,
        id: u64,
    },
    OriginWrite {
        vol: usize,
        sector: u64,
        data: Vec<u8>,
    },
    /// As above, for a write past the cache.
    OriginPast {
        vol: usize,
        sector: u64,
        id: u64,
        data: Vec<u8>,
    },
    Flushed {
        vol: usize,
    },
    OriginZero {
        vol: usize,
        sectors: Range<u64>,
    },
    OriginFlush {
        vol: usize,
    },
    Adding(usize),
    Added(usize),
    Removing(usize),
    Removed(usize),
}

pub struct Recording {
    /// The media before the first event.
    pub start: Region,
    pub trace: Vec<MediaEvent>,
    pub marks: Vec<(usize, Mark)>,
    /// Place in the trace from which cuts begin.
    pub from: usize,
    /// Volumes that exist at the start.
    pub present: Vec<bool>,
    /// The media and the origins as they are after the last event.
    pub end: Region,
    pub origins: Vec<Origin>,
}

struct InFlight {
    write: Write,
    vol: usize,
    sectors: Range<u64>,
    id: u64,
    data: Vec<u8>,
}

/// The pool while it is recorded; logs' scripts record in it, too.
pub(crate) struct Recorder<'a> {
    script: &'a Script,
    pub engine: Engine,
    origins: Vec<Origin>,
    index: Vec<Option<u16>>,
    pub marks: Vec<(usize, Mark)>,
    writers: BTreeMap<u16, InFlight>,
    next_id: u64,
    now_ns: u64,
    options: sys::fby_options,
    hold: bool,
    refuses: Option<(usize, Range<u64>)>,
    /// The flush that does not end: volume and request.
    held: Option<(usize, u32)>,
}

pub const DESTAGE_ACTOR: u16 = 100;

pub fn attach_of(number: u64, sectors: u64) -> (String, Attach<'static>) {
    let a = Attach {
        origin_sectors: sectors,
        identity: "",
        holes: sys::FBY_HOLES_FAIL,
        round_pages: 64,
        nrequests: 2,
        buffer_bytes: 16384,
    };
    (identity(number), a)
}

pub fn data(number: u64, sectors: Range<u64>, id: u64) -> Vec<u8> {
    let mut data = vec![0; (sectors.end - sectors.start) as usize * pattern::SECTOR];
    for (at, out) in sectors.zip(data.chunks_exact_mut(pattern::SECTOR)) {
        pattern::fill(pattern::place(number, at), id, out);
    }
    data
}

impl<'a> Recorder<'a> {
    /// On a freshly formatted pool, with the volumes that are there from the beginning:
    /// all but one that is added later.
    pub fn new(script: &'a Script) -> Result<(Self, Vec<bool>), String> {
        let g = script.geometry;
        let mut r = Self {
            script,
            engine: Engine::new(Media::bare(g.media_bytes())),
            origins: (0..script.volumes.len())
                .map(|v| Origin::new(number(v), script.volumes[v], FIRST_ID))
                .collect(),
            index: vec![None; script.volumes.len()],
            marks: Vec::new(),
            writers: BTreeMap::new(),
            next_id: FIRST_ID,
            now_ns: 1_000_000,
            options: sys::fby_options {
                nslots: g.nslots,
                statics: g.static_bytes() != 0,
                ..Default::default()
            },
            hold: false,
            refuses: None,
            held: None,
        };
        let mut uuid = [0; 16];
        let seed = script.name.bytes().fold(7, |h, b| mix(h ^ u64::from(b)));
        uuid[..8].copy_from_slice(&seed.to_le_bytes());
        r.engine.format_geometry(uuid, &g).map_err(|e| format!("format: {e}"))?;
        r.engine.open_all(&r.options).map_err(|e| format!("open: {e}"))?;
        let n = script.volumes.len();
        let later = script.ops.iter().any(|op| matches!(op, Op::Add(v) if *v + 1 == n));
        let present: Vec<bool> = (1..=n).map(|v| !(later && v == n)).collect();
        for vol in (0..n).filter(|&v| present[v]) {
            r.add(vol)?;
        }
        Ok((r, present))
    }

    /// Starts recording; returns the media's content.
    pub fn begin_trace(&mut self) -> Region {
        self.marks.clear();
        self.engine.media.state_mut().trace = Some(Vec::new());
        self.engine.media.state().visible.clone()
    }

    /// The present place in the trace.
    pub fn at(&self) -> usize {
        self.engine.media.state().trace.as_ref().map_or(0, Vec::len)
    }

    fn mark(&mut self, mark: Mark) {
        let at = self.at();
        self.marks.push((at, mark));
    }

    pub fn actor(&mut self, actor: u16) {
        hooks::set_cpu(u32::from(actor));
        self.engine.media.set_actor(actor);
    }

    fn fresh_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    fn volume(&self, vol: usize) -> Result<u16, String> {
        self.index[vol].ok_or(format!("volume {vol} is not there"))
    }

    fn attach(&mut self, vol: usize) -> Result<(), String> {
        let index = self.engine.volume_find(&name(vol)).map_err(|e| format!("find: {e}"))?;
        let (identity, a) = attach_of(number(vol), self.script.volumes[vol]);
        self.engine
            .volume_attach(index, &Attach { identity: &identity, ..a })
            .map_err(|e| format!("attach: {e}"))?;
        self.index[vol] = Some(index);
        Ok(())
    }

    fn add(&mut self, vol: usize) -> Result<(), String> {
        self.mark(Mark::Adding(vol));
        let sectors = self.script.volumes[vol];
        let mut spec = volume_spec(&name(vol), number(vol), sectors, self.script.block_size);
        spec.static_bytes = self.script.geometry.shares.get(vol).map_or(0, |&s| u64::from(s));
        self.engine.volume_add(&spec).map_err(|e| format!("add: {e}"))?;
        self.mark(Mark::Added(vol));
        self.attach(vol)
    }

    fn begin(&mut self, actor: u16, vol: usize, sectors: Range<u64>) -> Result<(), String> {
        self.actor(actor);
        let index = self.volume(vol)?;
        let n = (sectors.end - sectors.start) as u32;
        let mut write = Write::default();
        match self.engine.write_begin(&mut write, index, sectors.start, n) {
            Ok(Decision::Done) => {}
            other => return Err(format!("begin by {actor}: {other:?}")),
        }
        let sectors = sectors.start..sectors.start + u64::from(write.nsectors());
        let id = self.fresh_id();
        let data = data(number(vol), sectors.clone(), id);
        self.mark(Mark::Begin { vol, sectors: sectors.clone(), id, kind: Kind::Data });
        self.writers.insert(actor, InFlight { write, vol, sectors, id, data });
        Ok(())
    }

    fn write(&mut self, vol: usize, sectors: Range<u64>) -> Result<(), String> {
        let (index, id) = (self.volume(vol)?, self.fresh_id());
        let data = data(number(vol), sectors.clone(), id);
        self.mark(Mark::Begin { vol, sectors: sectors.clone(), id, kind: Kind::Data });
        self.write_data(index, sectors.start, &data)?;
        self.mark(Mark::End { vol, sectors, id });
        Ok(())
    }

    fn write_data(&mut self, index: u16, sector: u64, data: &[u8]) -> Result<(), String> {
        let mut done = 0;
        for _ in 0..1000 {
            self.actor(0);
            match self.engine.write(index, sector, data, &mut done, &mut 0) {
                Ok(Decision::Done) => return Ok(()),
                Ok(Decision::Wait(Wait::Space)) => {
                    for v in 0..self.origins.len() {
                        self.destage(v, 8)?;
                    }
                }
                other => return Err(format!("write: {other:?}")),
            }
        }
        Err("a write found no space".into())
    }

    fn past(&mut self, vol: usize, sectors: Range<u64>) -> Result<(), String> {
        let (index, id) = (self.volume(vol)?, self.fresh_id());
        let data = data(number(vol), sectors.clone(), id);
        let total = (sectors.end - sectors.start) as u32;
        self.mark(Mark::Begin { vol, sectors: sectors.clone(), id, kind: Kind::Data });
        let mut done = 0;
        while done < total {
            self.actor(0);
            let at = sectors.start + u64::from(done);
            let rest = &data[done as usize * pattern::SECTOR..];
            match self.engine.bypass_begin(index, at, total - done, 1) {
                Ok(Past::Origin(b)) => {
                    let bytes = &rest[..b.nsectors() as usize * pattern::SECTOR];
                    self.origins[vol].write_whole(at, bytes);
                    self.mark(Mark::OriginPast { vol, sector: at, id, data: bytes.to_vec() });
                    done += b.nsectors();
                    self.engine.bypass_end(b, 0, None);
                }
                Ok(Past::Cached(n)) => {
                    self.write_data(index, at, &rest[..n as usize * pattern::SECTOR])?;
                    done += n;
                }
                other => return Err(format!("a write past the cache: {other:?}")),
            }
        }
        self.mark(Mark::End { vol, sectors, id });
        Ok(())
    }

    fn flush(&mut self, vol: usize) -> Result<(), String> {
        if self.pass_gate(vol, &mut Ticket::default())? {
            self.mark(Mark::Flushed { vol });
        }
        Ok(())
    }

    /// False: the flush of destage's that does not end is in the way.
    fn pass_gate(&mut self, vol: usize, t: &mut Ticket) -> Result<bool, String> {
        match self.engine.flush_begin(self.volume(vol)?, t) {
            Ok(Decision::Done) => {}
            Ok(Decision::Origin) => {
                self.origins[vol].flush_all();
                self.mark(Mark::OriginFlush { vol });
                self.engine.flush_end(t, 0, &mut 0).map_err(|e| format!("flush: {e}"))?;
            }
            Ok(Decision::Wait(Wait::Flush)) if self.held.is_some_and(|(v, _)| v == vol) => {
                return Ok(false)
            }
            other => return Err(format!("flush: {other:?}")),
        }
        Ok(true)
    }

    fn range(&mut self, vol: usize, kind: Kind, sectors: Range<u64>) -> Result<(), String> {
        let (index, id) = (self.volume(vol)?, self.fresh_id());
        let n = sectors.end - sectors.start;
        let engine_kind =
            if kind == Kind::Zero { sys::FBY_KIND_ZERO } else { sys::FBY_KIND_DISCARD };
        self.mark(Mark::Begin { vol, sectors: sectors.clone(), id, kind });
        let (mut done, mut ticket) = (0, None::<Ticket>);
        for _ in 0..1000 {
            self.actor(0);
            let past = self.engine.range(index, engine_kind, sectors.start, n, &mut done, &mut 0);
            match past {
                Ok(Past::Done) => {
                    let durable = match &mut ticket {
                        Some(t) => self.pass_gate(vol, t)?,
                        None => true,
                    };
                    if durable {
                        self.mark(Mark::End { vol, sectors, id });
                    }
                    return Ok(());
                }
                Ok(Past::Origin(past)) => {
                    let (first, n) = (sectors.start + done, u64::from(past.nsectors()));
                    self.origins[vol].zero(first, n);
                    self.mark(Mark::OriginZero { vol, sectors: first..first + n });
                    let t = (kind == Kind::Zero).then(|| ticket.get_or_insert_default());
                    self.engine.bypass_end(past, 0, t);
                    done += n;
                }
                Ok(Past::Wait(Wait::Space)) => self.destage(vol, 8)?,
                other => return Err(format!("range: {other:?}")),
            }
        }
        Err("a discard found no space".into())
    }

    /// One step, and what it asks of an origin.
    fn destage_once(&mut self) -> Result<Decision, String> {
        self.actor(DESTAGE_ACTOR);
        let step = self.engine.destage_step(self.now_ns).map_err(|e| format!("step: {e}"))?;
        let Some(io) = step.io else { return Ok(step.decision) };
        let of = self.index.iter().position(|i| *i == Some(io.volume));
        let vol = of.ok_or("a request for no volume")?;
        let refused = self.refuses.as_ref().is_some_and(|(refuses, sectors)| {
            *refuses == vol && sectors.start < io.sector + io.nsectors && io.sector < sectors.end
        });
        if refused {
            // Some of it is written.
            let data = io.data[..io.data.len() / 1024 * 512].to_vec();
            self.origins[vol].write(io.sector, &data);
            self.mark(Mark::OriginWrite { vol, sector: io.sector, data });
            self.engine.destage_complete(io.id, 5);
            return Ok(step.decision);
        }
        match io.op {
            sys::FBY_IO_WRITE => {
                self.origins[vol].write(io.sector, &io.data);
                self.mark(Mark::OriginWrite { vol, sector: io.sector, data: io.data });
            }
            sys::FBY_IO_FLUSH if self.hold => {
                self.held = Some((vol, io.id));
                return Ok(step.decision);
            }
            sys::FBY_IO_FLUSH => {
                self.origins[vol].flush_all();
                self.mark(Mark::OriginFlush { vol });
            }
            _ => {
                self.origins[vol].zero(io.sector, io.nsectors);
                let sectors = io.sector..io.sector + io.nsectors;
                self.mark(Mark::OriginZero { vol, sectors });
            }
        }
        self.engine.destage_complete(io.id, 0);
        Ok(step.decision)
    }

    fn destage(&mut self, vol: usize, steps: u32) -> Result<(), String> {
        let Some(index) = self.index[vol] else { return Ok(()) };
        self.engine.volume_drain(index, true).map_err(|e| format!("drain: {e}"))?;
        for _ in 0..steps {
            self.now_ns += 1000;
            if self.destage_once()? == Decision::Done {
                break;
            }
        }
        Ok(())
    }

    /// Makes a call that excludes requests to an origin in flight.
    pub fn when_idle<T>(
        &mut self,
        mut call: impl FnMut(&mut Engine) -> crate::engine::Result<T>,
    ) -> Result<T, String> {
        for _ in 0..1000 {
            self.actor(0);
            match call(&mut self.engine) {
                Err(e) if e.is(sys::FBY_E_BUSY) => drop(self.destage_once()?),
                other => return other.map_err(|e| format!("{e}")),
            }
        }
        Err("requests stay in flight".into())
    }

    fn drain(&mut self, vol: usize) -> Result<(), String> {
        let index = self.volume(vol)?;
        for _ in 0..1000 {
            self.destage(vol, 100)?;
            if self.engine.volume_clean(index) {
                return Ok(());
            }
        }
        Err(format!("drain of volume {vol} does not end"))
    }

    pub fn reopen(&mut self) -> Result<(), String> {
        self.actor(0);
        self.engine.open_all(&self.options).map_err(|e| format!("open: {e}"))?;
        for vol in 0..self.index.len() {
            if self.index[vol].is_some() {
                self.attach(vol)?;
            }
        }
        Ok(())
    }

    /// A second's part passes, and the housekeeping is done.
    pub fn tick(&mut self) -> Result<(), String> {
        self.now_ns += 200_000_000;
        self.destage_once().map(|_| ())
    }

    fn step(&mut self, op: Op) -> Result<(), String> {
        self.act(op)?;
        match self.engine.is_open() {
            true => self.engine.check(self.writers.is_empty()),
            false => Ok(()),
        }
    }

    pub fn act(&mut self, op: Op) -> Result<(), String> {
        self.actor(0);
        match op {
            Op::Write(vol, at, n) => self.write(vol, at..at + u64::from(n))?,
            Op::Begin(actor, vol, at, n) => self.begin(actor, vol, at..at + u64::from(n))?,
            Op::Copy(actor) => {
                self.actor(actor);
                let w = self.writers.get_mut(&actor).ok_or("no write begun")?;
                self.engine.write_copy(&mut w.write, &w.data, 0);
            }
            Op::Commit(actor) => {
                self.actor(actor);
                let w = self.writers.get_mut(&actor).ok_or("no write begun")?;
                self.engine.write_commit(&mut w.write);
            }
            Op::Publish(actor) => {
                self.actor(actor);
                let mut w = self.writers.remove(&actor).ok_or("no write begun")?;
                self.engine.write_publish(&mut w.write);
                self.mark(Mark::End { vol: w.vol, sectors: w.sectors, id: w.id });
            }
            Op::Past(vol, at, n) => self.past(vol, at..at + u64::from(n))?,
            Op::Flush(vol) => self.flush(vol)?,
            Op::Discard(vol, at, n) => self.range(vol, Kind::Discard, at..at + n)?,
            Op::Zero(vol, at, n) => self.range(vol, Kind::Zero, at..at + n)?,
            Op::Drain(vol) => self.drain(vol)?,
            Op::Destage(vol, steps) => self.destage(vol, steps)?,
            Op::Round(steps) => {
                for _ in 0..steps {
                    self.now_ns += 1_000_000;
                    self.destage_once()?;
                }
            }
            Op::Refuse(vol, at, n) => self.refuses = Some((vol, at..at + n)),
            Op::High(percent) => {
                self.options.high_watermark = percent;
                self.options.low_watermark = 1;
                self.engine.set_options(&self.options).map_err(|e| format!("options: {e}"))?;
            }
            Op::Hold(vol) => {
                self.hold = true;
                self.destage(vol, 40)?;
                if self.held.is_none() {
                    return Err("destage came to no flush".into());
                }
            }
            Op::Unhold => {
                self.hold = false;
                let (vol, id) = self.held.take().ok_or("no flush is held")?;
                self.origins[vol].flush_all();
                self.mark(Mark::OriginFlush { vol });
                self.engine.destage_complete(id, 0);
            }
            Op::Tick => {
                self.tick()?;
                self.tick()?;
            }
            Op::Close => {
                self.when_idle(Engine::close)?;
                self.reopen()?;
            }
            Op::Shut => {
                self.when_idle(Engine::close)?;
                return Ok(());
            }
            Op::Kill => {
                self.engine.abandon();
                self.reopen()?;
            }
            Op::Add(vol) => self.add(vol)?,
            Op::Remove(vol) => {
                let index = self.volume(vol)?;
                self.when_idle(|e| e.volume_detach(index))?;
                self.mark(Mark::Removing(vol));
                self.engine.volume_remove(index, true).map_err(|e| format!("remove: {e}"))?;
                self.mark(Mark::Removed(vol));
                self.index[vol] = None;
            }
            Op::Reattach(vol) => {
                let index = self.volume(vol)?;
                self.when_idle(|e| e.volume_detach(index))?;
                self.attach(vol)?;
            }
            Op::Checksums(on) => {
                self.options.no_checksums = !on;
                self.engine.set_options(&self.options).map_err(|e| format!("options: {e}"))?;
            }
        }
        if let Some(misuse) = self.engine.media.misuse() {
            return Err(misuse);
        }
        Ok(())
    }
}

/// Runs the script on a freshly formatted pool.  An error is a violation: the
/// scripts ask for nothing that may fail.
pub fn record(script: &Script) -> Result<Recording, String> {
    let (mut r, present) = Recorder::new(script)?;
    let start = r.begin_trace();
    let mut from = 0;
    for (i, &op) in script.ops.iter().enumerate() {
        if i == script.from {
            from = r.at();
        }
        hooks::set_context(|| format!("script {} step {i} {op:?}", script.name));
        r.step(op).map_err(|e| format!("script {} step {i} {op:?}: {e}", script.name))?;
    }
    let trace = r.engine.media.state_mut().trace.take().unwrap_or_default();
    let end = r.engine.media.state().visible.clone();
    Ok(Recording { start, trace, marks: r.marks, from, present, end, origins: r.origins })
}
