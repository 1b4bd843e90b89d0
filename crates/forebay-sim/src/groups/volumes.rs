// SPDX-License-Identifier: MIT OR Apache-2.0
//! One run of a scene with volumes: writers, readers, destage, requests of both devices and their
//! ends in an order that is chosen.  A version of a sector is the id of its write (pattern.rs).

use forebay_engine::groups::{Durable, TicketState};
use forebay_engine::{sys, Attach, Code, Past, Step as Destage};

use super::explore::settle;
use super::run::{faults_of, UNIT};
use super::ssd::{Engine, Ssd};
use super::volume_cuts::Cuts;
use crate::device::{Choices, Disk, End, Path};
use crate::engine::{identity, volume_spec, Decision};
use crate::origin::{Origin, BAD};
use crate::pattern;
use crate::script::Geometry;

#[derive(Clone, Copy, Debug)]
pub enum Op {
    /// Volume, first sector, sectors.
    Write(usize, u64, u64),
    /// Volume, first block, blocks.
    Zero(usize, u64, u64),
    Discard(usize, u64, u64),
    /// Volume, block.
    Read(usize, u64),
    /// Waits for what was written before it.
    Flush(usize),
    Drain(usize, bool),
    /// Housekeeping, 200 ms later.
    Tick,
    /// Detaches the volume and attaches it again.
    Reattach(usize),
    /// The device fails for good.
    Fail,
}

#[derive(Clone, Debug)]
pub struct VolumeScene {
    pub name: String,
    pub geometry: Geometry,
    pub durable: Durable,
    pub volumes: usize,
    pub ops: Vec<Op>,
    /// Before this one all requests end before the next operation begins.
    pub from: usize,
    /// Requests of the device that may fail in a run, and of the origins.
    pub faults: u32,
    pub refusals: u32,
}

/// Sectors of each volume.
pub(super) const SECTORS: u64 = 80;
/// Requests of destage in flight.
const DESTAGED: usize = 2;
/// The clock goes on so often while nothing else does.
const PAUSES: u32 = 300;

pub(super) fn name(volume: usize) -> String {
    format!("v{volume}")
}

pub(super) fn attach(engine: &Engine, volume: usize) -> Result<u16, String> {
    attach_as(engine, volume, sys::FBY_HOLES_FAIL)
}

/// `holes`: FBY_HOLES_x.
pub(super) fn attach_as(engine: &Engine, volume: usize, holes: u32) -> Result<u16, String> {
    let number = volume as u64 + 1;
    let index = engine.volume_find(&name(volume)).map_err(|e| format!("find: {e}"))?;
    let identity = identity(number);
    let attach = Attach {
        origin_sectors: SECTORS,
        identity: &identity,
        holes,
        round_pages: 64,
        nrequests: DESTAGED as u32,
        buffer_bytes: 8192,
    };
    engine.volume_attach(index, &attach).map_err(|e| format!("attach: {e}"))?;
    Ok(index)
}

impl VolumeScene {
    pub(super) fn options(&self) -> sys::fby_options {
        sys::fby_options {
            nslots: self.geometry.nslots,
            high_watermark: 60,
            low_watermark: 40,
            ..Default::default()
        }
    }

    /// A pool with the volumes, which are empty.
    pub(super) fn start(&self) -> Result<Disk, String> {
        let g = self.geometry;
        let bytes = (1 + g.nchunks as usize) * g.chunk_size() as usize;
        let ssd = Ssd::new(Disk::new(UNIT, bytes / UNIT), self.durable);
        let media = ssd.media();
        let format = sys::fby_format {
            uuid: [8; 16],
            chunk_size: g.chunk_size(),
            nvolumes: g.nvolumes,
            unit: UNIT as u32,
            ..Default::default()
        };
        forebay_engine::format(&media, &format).map_err(|e| format!("format: {e}"))?;
        let opened = Engine::open(media, &self.options());
        let (mut engine, _) = opened.map_err(|e| format!("open: {e}"))?;
        for volume in 0..self.volumes {
            let spec = volume_spec(&name(volume), volume as u64 + 1, SECTORS, 512);
            engine.volume_add(&spec).map_err(|e| format!("add: {e}"))?;
        }
        settle(&ssd, &engine)?;
        engine.close_attached().map_err(|e| format!("close: {e}"))?;
        drop(engine);
        let cut = ssd.state().device.cut();
        match cut.is_settled() {
            true => Ok(cut.durable().clone()),
            false => Err("a closed pool is not durable".into()),
        }
    }
}

/// The writes to a volume, and its origin.
#[derive(Clone)]
pub(super) struct Known {
    /// For each sector, oldest first: the write's id, and its ticket.
    versions: Vec<Vec<(u64, u64)>>,
    pub origin: Origin,
    /// Sectors on their way to the origin: the request, where, what.
    pub on_the_way: Vec<(u32, u64, u64)>,
}

/// By volume and sector: the oldest version that may be seen.
pub(super) type Floors = Vec<Vec<usize>>;

impl Known {
    fn new(number: u64) -> Self {
        Self {
            versions: vec![vec![(number, 0)]; SECTORS as usize],
            origin: Origin::new(number, SECTORS, number),
            on_the_way: Vec::new(),
        }
    }

    pub(super) fn last(&self, sector: u64) -> usize {
        self.versions[sector as usize].len() - 1
    }

    /// Is it this version or a newer one?
    pub(super) fn is_new(&self, sector: u64, floor: usize, id: u64) -> bool {
        self.versions[sector as usize][floor..].iter().any(|(version, _)| *version == id)
    }

    /// The versions of a sector that the origin may have after a cut.
    pub(super) fn after_cut(&self, sector: u64) -> impl Iterator<Item = u64> + '_ {
        let sent = self.on_the_way.iter().filter(move |(_, at, _)| *at == sector);
        let sent = sent.flat_map(|(.., id)| [*id, if *id == pattern::ZERO { *id } else { BAD }]);
        self.origin.after_cut(sector).chain(sent)
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Op,
    Send,
    End(u32, End),
    Destage,
    /// A request of the origin's ends: well, or not, with its data there or not.
    Origin(usize, bool, bool),
}

struct Flight {
    io: forebay_engine::Io,
    volume: usize,
    /// The writes that a flush covers.
    mark: u64,
}

pub(super) struct Run<'a> {
    scene: &'a VolumeScene,
    ssd: &'a Ssd,
    engine: Engine,
    index: Vec<u16>,
    known: Vec<Known>,
    floors: Floors,
    op: usize,
    /// Sectors of the operation that are done.
    part: u64,
    /// The ticket that a flush waits for, and the version of each sector at that time.
    flushing: Option<(u64, Vec<usize>)>,
    next_id: u64,
    blocked: bool,
    /// There is nothing to send, or nothing to destage.
    quiet: bool,
    rests: bool,
    flights: Vec<Flight>,
    numbers: u32,
    faults: u32,
    refusals: u32,
    pauses: u32,
    now_ns: u64,
    gone: bool,
    steps: Vec<String>,
}

impl<'a> Run<'a> {
    pub(super) fn new(scene: &'a VolumeScene, ssd: &'a Ssd, start: &Disk) -> Result<Self, String> {
        ssd.start(start);
        let opened = Engine::open(ssd.media(), &scene.options());
        let (engine, _) = opened.map_err(|e| format!("open: {e}"))?;
        let index = (0..scene.volumes).map(|v| attach(&engine, v)).collect::<Result<_, _>>()?;
        let mut run = Self {
            scene,
            ssd,
            engine,
            index,
            known: (0..scene.volumes).map(|v| Known::new(v as u64 + 1)).collect(),
            floors: vec![vec![0; SECTORS as usize]; scene.volumes],
            op: 0,
            part: 0,
            flushing: None,
            next_id: 1000,
            blocked: false,
            quiet: true,
            rests: true,
            flights: Vec::new(),
            numbers: 0,
            faults: 0,
            refusals: 0,
            pauses: 0,
            now_ns: 1,
            gone: false,
            steps: Vec::new(),
        };
        for _ in 0..5000 {
            if run.op >= scene.from {
                break;
            }
            run.operation()?;
            settle(ssd, &run.engine)?;
            run.destage()?;
            while !run.flights.is_empty() {
                run.origin_end(0, true, true);
            }
            run.now_ns += 5_000_000;
            run.told();
        }
        if run.op < scene.from {
            return Err(format!("{:?} waits for ever", scene.ops[run.op]));
        }
        ssd.state_mut().device.record();
        Ok(run)
    }

    fn number(volume: usize) -> u64 {
        volume as u64 + 1
    }

    /// So many sectors from this one on have another version.
    fn wrote(&mut self, volume: usize, sector: u64, ids: &[u64]) -> Result<(), String> {
        let ticket = self.engine.volume_ticket(self.index[volume]);
        if ticket == 0 && !ids.is_empty() {
            return Err("a write on a device is durable at once".into());
        }
        for (at, id) in (sector as usize..).zip(ids) {
            self.known[volume].versions[at].push((*id, ticket));
        }
        self.part += ids.len() as u64;
        Ok(())
    }

    /// The pool may have failed.
    fn refused(&self, what: &str, e: Code) -> Result<bool, String> {
        match self.gone && e.is(sys::FBY_E_MEDIUM) {
            true => Ok(true),
            false => Err(format!("{what}: {e}")),
        }
    }

    fn write(&mut self, volume: usize, sector: u64, n: u64) -> Result<bool, String> {
        let (first, end) = (sector + self.part, sector + n);
        let ids: Vec<u64> = (self.next_id..).take((end - first) as usize).collect();
        self.next_id += ids.len() as u64;
        let mut data = vec![0; ids.len() * pattern::SECTOR];
        for ((at, id), bytes) in (first..).zip(&ids).zip(data.chunks_exact_mut(pattern::SECTOR)) {
            pattern::fill(pattern::place(Self::number(volume), at), *id, bytes);
        }
        let mut done = 0;
        let wrote = self.engine.write(self.index[volume], first, &data, &mut done, &mut 0);
        self.wrote(volume, first, &ids[..done as usize])?;
        match wrote {
            Ok(Decision::Done) => Ok(true),
            Ok(Decision::Wait(_)) => Ok(false),
            Ok(other) => Err(format!("write: {other:?}")),
            Err(e) => self.refused("write", e),
        }
    }

    fn range(&mut self, volume: usize, kind: u32, block: u64, blocks: u64) -> Result<bool, String> {
        let (first, end) = (block * 8 + self.part, (block + blocks) * 8);
        let mut done = 0;
        let index = self.index[volume];
        let past = self.engine.range(index, kind, first, end - first, &mut done, &mut 0);
        self.wrote(volume, first, &vec![pattern::ZERO; done as usize])?;
        match past {
            Ok(Past::Done) => Ok(true),
            Ok(Past::Wait(_)) => Ok(false),
            // Not cached: the origin refuses it.
            Ok(Past::Origin(past)) => {
                self.engine.bypass_end(past, 5, None);
                Ok(true)
            }
            Ok(other) => Err(format!("range: {other:?}")),
            Err(e) => self.refused("range", e),
        }
    }

    /// Checks that a read shows the last write, and that no cut takes it back.
    fn read(&mut self, volume: usize, block: u64) -> Result<bool, String> {
        let mut buf = [0; 4096];
        let read = self.engine.read_block(self.index[volume], block, 0, &mut buf);
        match read.result {
            Ok(Decision::Done | Decision::Origin) => {}
            Ok(Decision::Wait(_)) => return Ok(false),
            Ok(other) => return Err(format!("read: {other:?}")),
            Err(e) => return self.refused("read", e),
        }
        for (k, bytes) in buf.chunks_exact(pattern::SECTOR).enumerate() {
            let sector = block * 8 + k as u64;
            let known = &self.known[volume];
            let id = match read.origin >> k & 1 {
                1 => Some(known.origin.read(sector)),
                _ => pattern::read(pattern::place(Self::number(volume), sector), bytes),
            };
            let floor = match self.gone {
                true => self.floors[volume][sector as usize],
                false => known.last(sector),
            };
            if !id.is_some_and(|id| known.is_new(sector, floor, id)) {
                return Err(format!("{} sector {sector} shows {id:?}", name(volume)));
            }
            self.floors[volume][sector as usize] = floor;
        }
        Ok(true)
    }

    fn flush(&mut self, volume: usize) -> Result<bool, String> {
        let (known, index) = (&self.known[volume], self.index[volume]);
        let (ticket, upto) = self.flushing.get_or_insert_with(|| {
            let upto = (0..SECTORS).map(|s| known.last(s)).collect();
            (self.engine.volume_ticket(index), upto)
        });
        match self.engine.ticket(*ticket) {
            TicketState::Pending => return Ok(false),
            TicketState::Failed if self.gone => {}
            TicketState::Failed => return Err("a flush fails".into()),
            TicketState::Durable => {
                let floors = self.floors[volume].iter_mut().zip(upto);
                floors.for_each(|(floor, upto)| *floor = (*floor).max(*upto));
            }
        }
        self.flushing = None;
        Ok(true)
    }

    fn reattach(&mut self, volume: usize) -> Result<bool, String> {
        match self.engine.volume_detach_step(self.index[volume]) {
            Ok(Decision::Done) => {}
            Ok(_) => return Ok(false),
            Err(e) if e.is(sys::FBY_E_BUSY) => return Ok(false),
            Err(e) => return Err(format!("detach: {e}")),
        }
        if !self.gone {
            let known = &self.known[volume];
            self.floors[volume] = (0..SECTORS).map(|s| known.last(s)).collect();
        }
        attach(&self.engine, volume)?;
        Ok(true)
    }

    /// The next operation.  It may have to wait.
    fn operation(&mut self) -> Result<(), String> {
        let done = match self.scene.ops[self.op] {
            Op::Write(volume, sector, n) => self.write(volume, sector, n)?,
            Op::Zero(volume, block, n) => self.range(volume, sys::FBY_KIND_ZERO, block, n)?,
            Op::Discard(volume, block, n) => self.range(volume, sys::FBY_KIND_DISCARD, block, n)?,
            Op::Read(volume, block) => self.read(volume, block)?,
            Op::Flush(volume) => self.flush(volume)?,
            Op::Drain(volume, on) => {
                let drain = self.engine.volume_drain(self.index[volume], on);
                drain.map_err(|e| format!("drain: {e}"))?;
                true
            }
            Op::Tick => {
                self.now_ns += 200_000_000;
                true
            }
            Op::Reattach(volume) => self.reattach(volume)?,
            Op::Fail => {
                self.ssd.state_mut().device.go();
                self.gone = true;
                true
            }
        };
        self.blocked = !done;
        if done {
            (self.op, self.part) = (self.op + 1, 0);
        }
        self.goes_on();
        Ok(())
    }

    fn goes_on(&mut self) {
        (self.quiet, self.rests) = (false, false);
    }

    fn send(&mut self) -> Result<(), String> {
        match self.engine.medium_next(&mut 0) {
            Ok((Decision::Done, io)) => {
                self.ssd.send(io, Path::Straight);
                self.blocked = false;
            }
            Ok((Decision::Wait(_), _)) => self.quiet = true,
            Err(e) if self.gone && e.is(sys::FBY_E_MEDIUM) => self.quiet = true,
            other => return Err(format!("next: {other:?}")),
        }
        Ok(())
    }

    fn destage(&mut self) -> Result<(), String> {
        self.now_ns += 1_000_000;
        let step = self.engine.destage_step(self.now_ns, &mut 0);
        let io = match step.map_err(|e| format!("destage: {e}"))? {
            Destage::Submit(io) => io,
            Destage::Again => {
                self.quiet = false;
                return Ok(());
            }
            Destage::Sleep { .. } => {
                (self.quiet, self.rests) = (false, true);
                return Ok(());
            }
        };
        let volume = self.index.iter().position(|i| *i == io.volume).ok_or("whose request?")?;
        let known = &mut self.known[volume];
        let sector = io.offset / 512;
        if io.op != sys::FBY_IO_FLUSH && sector + io.len / 512 > SECTORS {
            return Err("the origin is written past its end".into());
        }
        self.numbers += 1;
        if io.op == sys::FBY_IO_WRITE {
            for (at, bytes) in (sector..).zip(io.data().chunks_exact(pattern::SECTOR)) {
                let id = pattern::read(pattern::place(Self::number(volume), at), bytes);
                let id = id.filter(|id| known.is_new(at, 0, *id));
                let id = id.ok_or("the origin gets bytes that nobody wrote")?;
                known.on_the_way.push((io.id, at, id));
            }
        } else {
            let zeroes = (sector..sector + io.len / 512).map(|at| (io.id, at, pattern::ZERO));
            known.on_the_way.extend(zeroes);
        }
        self.flights.push(Flight { mark: known.origin.flush_mark(), io, volume });
        Ok(())
    }

    fn origin_end(&mut self, flight: usize, good: bool, there: bool) {
        let Flight { io, volume, mark } = self.flights.remove(flight);
        let known = &mut self.known[volume];
        let (sector, n) = (io.offset / 512, io.len / 512);
        known.on_the_way.retain(|(id, ..)| *id != io.id);
        match io.op {
            _ if !there => {}
            sys::FBY_IO_WRITE => known.origin.write(sector, io.data()),
            sys::FBY_IO_ZERO => known.origin.zero(sector, n),
            sys::FBY_IO_DISCARD => known.origin.discard(sector, n),
            _ => known.origin.flush(mark),
        }
        self.refusals += u32::from(!good);
        self.engine.destage_complete(io, if good { 0 } else { 5 });
        self.blocked = false;
        self.goes_on();
    }

    /// Tells each writer whose ticket is durable.
    fn told(&mut self) {
        let mut told = false;
        for (known, floors) in self.known.iter().zip(&mut self.floors) {
            for (versions, floor) in known.versions.iter().zip(floors) {
                while let Some((_, ticket)) = versions.get(*floor + 1) {
                    if self.engine.ticket(*ticket) != TicketState::Durable {
                        break;
                    }
                    *floor += 1;
                    told = true;
                }
            }
        }
        if told {
            self.blocked = false;
        }
    }

    fn choices(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        if self.op < self.scene.ops.len() && !self.blocked {
            steps.push(Step::Op);
        }
        if !self.quiet {
            steps.push(Step::Send);
        }
        if !self.rests && self.flights.len() < DESTAGED {
            steps.push(Step::Destage);
        }
        for (id, kind) in self.ssd.in_flight() {
            steps.push(Step::End(id, End::Done));
            if self.faults < self.scene.faults && !self.gone {
                steps.extend(faults_of(kind).iter().map(|end| Step::End(id, *end)));
            }
        }
        for flight in 0..self.flights.len() {
            steps.push(Step::Origin(flight, true, true));
            if self.refusals < self.scene.refusals {
                let flush = self.flights[flight].io.op == sys::FBY_IO_FLUSH;
                steps.extend(
                    [false, true]
                        .iter()
                        .filter(|there| !(flush && **there))
                        .map(|there| Step::Origin(flight, false, *there)),
                );
            }
        }
        steps
    }

    /// Runs to the end, and shows each cut.
    pub(super) fn all(mut self, choices: &mut Choices, x: &mut Cuts) -> Result<(), String> {
        let ran = self.each(choices, x).and_then(|()| self.end(choices, x));
        x.count(&self.engine, &self.index);
        ran.map_err(|e| format!("{e}; after {}", self.steps.join(", ")))
    }

    fn step(&mut self, step: Step) -> Result<(), String> {
        match step {
            Step::Op => self.operation()?,
            Step::Send => self.send()?,
            Step::End(id, end) => {
                if let Some((io, ok)) = self.ssd.end(id, end) {
                    self.faults += u32::from(!ok);
                    self.engine.medium_end(&io, if ok { 0 } else { 5 }, &mut 0);
                }
                self.blocked = false;
                self.goes_on();
            }
            Step::Destage => self.destage()?,
            Step::Origin(flight, good, there) => self.origin_end(flight, good, there),
        }
        self.steps.push(match step {
            Step::Op if self.blocked => "refused".into(),
            Step::Op => format!("{:?}", self.scene.ops[self.op - 1]),
            Step::Send if self.quiet => "nothing to send".into(),
            Step::Send => format!("{:?}", self.ssd.newest()),
            step => format!("{step:?}"),
        });
        self.ssd.misuse().map_or(Ok(()), Err)
    }

    fn each(&mut self, choices: &mut Choices, x: &mut Cuts) -> Result<(), String> {
        loop {
            let steps = self.choices();
            if steps.is_empty() {
                if self.op == self.scene.ops.len() {
                    return Ok(());
                }
                self.pauses += 1;
                if self.pauses > PAUSES {
                    return Err(format!("{:?} waits for ever", self.scene.ops[self.op]));
                }
                self.now_ns += 50_000_000;
                self.blocked = false;
                self.goes_on();
                continue;
            }
            let before = self.floors.clone();
            self.step(steps[choices.choose(steps.len())])?;
            let events = self.ssd.events();
            self.told();
            if !choices.fresh() {
                continue;
            }
            if !self.engine.medium_info().failed {
                match self.engine.check(true) {
                    Ok(None) => {}
                    other => return Err(format!("check: {other:?}")),
                }
            }
            for cut in &events {
                x.cut(cut, &self.known, &before)?;
            }
            let now = self.ssd.state().device.cut();
            x.cut(&now, &self.known, &self.floors)?;
        }
    }

    /// All is durable now; or the device has failed, and the origins get everything.
    fn end(&mut self, choices: &mut Choices, x: &mut Cuts) -> Result<(), String> {
        if self.gone {
            self.rescue(choices)?;
            x.rescued();
            let now = self.ssd.state().device.cut();
            return x.cut(&now, &self.known, &self.floors);
        }
        for (volume, (known, floors)) in self.known.iter().zip(&self.floors).enumerate() {
            if (0..SECTORS).any(|s| floors[s as usize] != known.last(s)) {
                return Err(format!(
                    "all requests have ended, and {} is not durable",
                    name(volume)
                ));
            }
        }
        Ok(())
    }

    fn clean(&self) -> bool {
        self.index.iter().all(|index| self.engine.volume_clean(*index))
    }

    fn rescue(&mut self, choices: &mut Choices) -> Result<(), String> {
        for _ in 0..500 {
            if self.engine.medium_info().failed {
                break;
            }
            self.part = 0;
            self.write(0, 0, 8)?;
            self.send()?;
            for (id, _) in self.ssd.in_flight() {
                self.step(Step::End(id, End::Done))?;
            }
        }
        if !self.engine.medium_info().failed {
            return Err("the device fails for good, and the pool does not".into());
        }
        self.told();
        let mut upto = Vec::new();
        for &index in &self.index {
            upto.push(self.engine.volume_drain(index, true).map_err(|e| format!("drain: {e}"))?);
        }
        for _ in 0..5000 {
            if self.clean() && self.flights.is_empty() {
                break;
            }
            self.destage()?;
            while !self.flights.is_empty() {
                let refused = self.refusals < self.scene.refusals && choices.choose(4) == 0;
                self.origin_end(0, !refused, !refused);
            }
            if self.rests {
                self.now_ns += 50_000_000;
            }
        }
        if !self.clean() {
            return Err("the device has failed, and a drain does not end".into());
        }
        for (volume, known) in self.known.iter().enumerate() {
            let floors = &self.floors[volume];
            for s in 0..SECTORS {
                let id = known.origin.durable(s);
                if !known.is_new(s, floors[s as usize], id) {
                    let name = name(volume);
                    return Err(format!("the origin of {name} has {id} in sector {s}"));
                }
            }
            let index = self.index[volume];
            let info = self.engine.volume_info(index).map_err(|e| format!("info: {e}"))?;
            if info.home < upto[volume] {
                return Err("a drain does not say that it has ended".into());
            }
            match self.engine.volume_detach_step(index) {
                Ok(Decision::Done) => {}
                other => return Err(format!("detach from a pool that has failed: {other:?}")),
            }
        }
        Ok(())
    }
}
