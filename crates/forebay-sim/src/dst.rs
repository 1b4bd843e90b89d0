// SPDX-License-Identifier: MIT OR Apache-2.0
//! Deterministic simulation: one seed drives geometry, volumes, workload, the
//! interleaving of the steps of many clients and of destage, the clock, faults
//! of media and origins, crashes and what they leave.
//!
//! Checked all the while: each sector of each read is linearizable (model.rs);
//! fby_check() after each step; recovery reports no loss that was not caused;
//! nobody sleeps for ever; and in the end, with the faults over, all requests
//! and a drain of everything take a bounded number of steps, after which the
//! origins alone hold what the model says, and destage comes to rest.
//!
//! The host that is simulated sleeps as strictly as the contract lets it: a
//! waiting client runs again only when a wake mask has its bit, and in half of
//! the worlds destage runs only when it was asked for or its time has come.

mod client;
mod disaster;
mod host;
mod statics;

use forebay_engine::sys;
use serde::Serialize;

use crate::engine::{Decision, Engine, Wait};
use crate::hooks;
use crate::media::{Flavour, Media};
use crate::model::Sector;
use crate::origin::{Loss, Origin};
use crate::rng::Rng;
use crate::script::Geometry;

use client::Client;
use host::{OriginHealth, Request};

/// Counts of a run's events; sums over runs.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Tally {
    pub runs: u64,
    pub steps: u64,
    pub writes: u64,
    pub reads: u64,
    pub sectors_judged: u64,
    pub discards: u64,
    pub zeroes: u64,
    pub flushes: u64,
    pub waits_block: u64,
    pub waits_slot: u64,
    pub waits_space: u64,
    pub waits_flush: u64,
    pub relocated: u64,
    pub origin_requests: u64,
    pub origin_errors: u64,
    /// Requests that met a bad sector, and pages that stayed for one in a drain.
    pub bad_sectors: u64,
    pub not_home: u64,
    pub origin_power_cuts: u64,
    pub media_faults: u64,
    pub lost_reads: u64,
    pub power_cuts: u64,
    pub process_kills: u64,
    pub cuts_in_recovery: u64,
    pub clean_closes: u64,
    pub read_only_opens: u64,
    pub entries_dropped: u64,
    pub checks: u64,
    pub volumes_added: u64,
    /// How many of these volumes were static.
    pub static_volumes: u64,
    pub volumes_removed: u64,
    pub drains: u64,
    /// Runs that ended with more blocks lost than a full pool can carry forward.
    pub wedged: u64,
    /// Writes that went past the cache, those of them that failed, and flushes
    /// that came to an origin.
    pub bypasses: u64,
    pub bypass_errors: u64,
    pub origin_flushes: u64,
    /// Attaches to a copy of the origin that has nothing of what is cached.
    pub origins_changed: u64,
    /// Runs at whose end only lost blocks were left, and destage came to rest.
    pub rests: u64,
}

impl Tally {
    pub fn add(&mut self, o: &Self) {
        let sum = |a: &mut u64, b: u64| *a += b;
        sum(&mut self.runs, o.runs);
        sum(&mut self.steps, o.steps);
        sum(&mut self.writes, o.writes);
        sum(&mut self.reads, o.reads);
        sum(&mut self.sectors_judged, o.sectors_judged);
        sum(&mut self.discards, o.discards);
        sum(&mut self.zeroes, o.zeroes);
        sum(&mut self.flushes, o.flushes);
        sum(&mut self.waits_block, o.waits_block);
        sum(&mut self.waits_slot, o.waits_slot);
        sum(&mut self.waits_space, o.waits_space);
        sum(&mut self.waits_flush, o.waits_flush);
        sum(&mut self.relocated, o.relocated);
        sum(&mut self.origin_requests, o.origin_requests);
        sum(&mut self.origin_errors, o.origin_errors);
        sum(&mut self.bad_sectors, o.bad_sectors);
        sum(&mut self.not_home, o.not_home);
        sum(&mut self.origin_power_cuts, o.origin_power_cuts);
        sum(&mut self.media_faults, o.media_faults);
        sum(&mut self.lost_reads, o.lost_reads);
        sum(&mut self.power_cuts, o.power_cuts);
        sum(&mut self.process_kills, o.process_kills);
        sum(&mut self.cuts_in_recovery, o.cuts_in_recovery);
        sum(&mut self.clean_closes, o.clean_closes);
        sum(&mut self.read_only_opens, o.read_only_opens);
        sum(&mut self.entries_dropped, o.entries_dropped);
        sum(&mut self.checks, o.checks);
        sum(&mut self.volumes_added, o.volumes_added);
        sum(&mut self.static_volumes, o.static_volumes);
        sum(&mut self.volumes_removed, o.volumes_removed);
        sum(&mut self.drains, o.drains);
        sum(&mut self.wedged, o.wedged);
        sum(&mut self.bypasses, o.bypasses);
        sum(&mut self.bypass_errors, o.bypass_errors);
        sum(&mut self.origin_flushes, o.origin_flushes);
        sum(&mut self.origins_changed, o.origins_changed);
        sum(&mut self.rests, o.rests);
    }

    pub fn faults(&self) -> u64 {
        self.origin_errors
            + self.origin_power_cuts
            + self.media_faults
            + self.power_cuts
            + self.process_kills
    }
}

/// The seed's choices for the whole run.
#[derive(Clone, Debug)]
struct Plan {
    geometry: Geometry,
    flavour: Flavour,
    clients: usize,
    steps: u64,
    /// Per cent of the operations.
    reads: u64,
    ranges: u64,
    /// Overwrites of the same blocks in the same order, a chunk's worth at a time,
    /// so that a block comes to lie where it was before.
    periodic: bool,
    /// Most sectors of a request, as a power of two.
    size_bits: u64,
    /// One step in so many; 0: never.
    crash: u64,
    media_fault: u64,
    origin_fault: u64,
    admin: u64,
    slow_origin: bool,
    /// A host that calls destage only when told to.
    strict: bool,
    check_every: u64,
    options: sys::fby_options,
    bypass: Bypass,
    /// Seed of every volume's share, if it has one.
    seed: u64,
    /// One volume that fits in the pool, overwritten again and again.
    hot: bool,
    /// Volumes are attached to other origins, too.
    other_origins: bool,
    /// Some sectors of origins take no request.
    bad_sectors: bool,
}

/// Writes past the cache.
#[derive(Clone, Copy, Debug, Default)]
struct Bypass {
    /// From so many sectors on; 0: none for their size.
    limit: u64,
    /// Requests that do not fit in a full pool bypass it.
    when_full: bool,
    /// Fewer sectors before a cached block go through the cache.
    least: u32,
    /// One of so many requests is a flush.
    flush: u64,
    origin_fault: u64,
}

impl Bypass {
    /// Chosen apart from the rest of the plan, and by every other seed.
    fn new(seed: u64) -> Option<Self> {
        let mut rng = Rng::new(!seed);
        if seed % 2 == 1 {
            return None;
        }
        Some(Self {
            limit: rng.pick(&[0, 1, 4, 16, 64]),
            when_full: rng.one_in(2),
            least: rng.pick(&[1, 1, 8, 64]),
            flush: rng.pick(&[5, 15, 40, 100]),
            origin_fault: rng.pick(&[0, 20, 50, 100, 400]),
        })
    }
}

impl Plan {
    fn new(seed: u64, rng: &mut Rng) -> Self {
        let media_faults = rng.one_in(3);
        let one = |rng: &mut Rng, often: &[u64]| rng.pick(often);
        let high = rng.range(20, 90) as u32;
        let options = sys::fby_options {
            nslots: rng.range(1, 4) as u32,
            read_only: false,
            statics: true,
            maps: false,
            no_checksums: !media_faults && rng.one_in(6),
            verify: if media_faults || rng.one_in(2) {
                sys::FBY_VERIFY_ALWAYS
            } else {
                rng.range(1, 2) as u32
            },
            high_watermark: high,
            low_watermark: rng.range(1, u64::from(high)) as u32,
            max_age_ns: if rng.one_in(4) { 1_000_000 * rng.range(1, 500) } else { 0 },
            idle_ns: if rng.one_in(4) { 1_000_000 * rng.range(1, 500) } else { 0 },
        };
        let periodic = rng.one_in(10);
        let chunk_pages = if periodic { 16 } else { rng.pick(&[16, 16, 16, 32, 64]) };
        let nchunks = if periodic {
            rng.range(4, 7)
        } else if rng.one_in(2) {
            rng.range(4, 8)
        } else {
            rng.range(8, 24)
        } as u32;
        let mut plan = Self {
            geometry: Geometry {
                chunk_pages,
                nchunks,
                nvolumes: rng.range(1, 4) as u32,
                nslots: options.nslots,
                shares: [0; 2],
            },
            flavour: if rng.one_in(3) { Flavour::Cached } else { Flavour::NonTemporal },
            clients: rng.range(1, 6) as usize,
            steps: rng.range(300, 3000),
            reads: rng.range(10, 60),
            ranges: rng.pick(&[0, 5, 15, 30]),
            periodic,
            size_bits: rng.range(3, 8),
            crash: one(rng, &[0, 100, 300, 1000]),
            media_fault: if media_faults { one(rng, &[40, 100, 300]) } else { 0 },
            origin_fault: one(rng, &[0, 0, 30, 100, 400]),
            admin: one(rng, &[0, 30, 100, 300]),
            slow_origin: periodic || rng.one_in(4),
            strict: rng.one_in(2),
            check_every: if chunk_pages * nchunks <= 256 { 1 } else { 16 },
            options,
            bypass: Bypass { flush: 100, ..Bypass::default() },
            seed,
            hot: seed % 5 == 3 && !periodic,
            other_origins: seed % 6 == 1 || seed % 12 == 2,
            bad_sectors: seed.is_multiple_of(4),
        };
        if plan.other_origins {
            plan.clients = plan.clients.min(2);
            plan.size_bits = 6;
        }
        if let Some(bypass) = Bypass::new(seed) {
            plan.origin_fault = bypass.origin_fault;
            plan.bypass = bypass;
        }
        if plan.hot {
            plan.geometry.nvolumes = 1;
            plan.geometry.chunk_pages = 16;
            plan.geometry.nchunks = 8 + (seed / 5 % 10) as u32;
            plan.steps += 4000;
            plan.size_bits = 6;
            plan.bypass.limit = 0;
            plan.options.high_watermark = 90;
            plan.options.idle_ns = 0;
            plan.reads = plan.reads.min(25);
            plan.crash = plan.crash.max(500);
            plan.admin = plan.admin.max(500);
            if media_faults {
                plan.media_fault = 20;
            }
            plan.check_every = 1;
        }
        if seed % 11 == 5 && media_faults {
            // A small pool, and so much damage that lost blocks fill much of it.
            plan.geometry.chunk_pages = 16;
            plan.geometry.nchunks = 4 + (seed / 11 % 4) as u32;
            plan.media_fault = 6;
            plan.check_every = 1;
        }
        if periodic {
            plan.clients = plan.clients.min(3);
            plan.geometry.nvolumes = 1;
            plan.reads = 10;
            plan.ranges = 0;
            plan.options.high_watermark = 20;
            plan.options.low_watermark = 5;
        }
        plan.make_room();
        plan
    }
}

/// A volume as the world knows it.
struct Volume {
    number: u64,
    name: String,
    block_size: u32,
    index: Option<u16>,
    attached: bool,
    /// It has a share.
    is_static: bool,
    origin: Origin,
    model: Vec<Sector>,
    queue: Vec<Request>,
    health: OriginHealth,
    /// Rounds of destage at the last look.
    rounds: u64,
}

struct World {
    verbose: bool,
    plan: Plan,
    rng: Rng,
    engine: Engine,
    volumes: Vec<Volume>,
    clients: Vec<Client>,
    tick: u64,
    now_ns: u64,
    next_id: u64,
    next_number: u64,
    /// Destage is to be called: at this time, or now.
    destage_at: u64,
    faulty: bool,
    /// A crash left no free chunk: between the copies of refused pages and the watermark.
    opened_full: bool,
    /// The volume that was being added or removed at a cut.
    uncertain: u64,
    /// Media faults have been injected.
    damaged: bool,
    /// Blocks that were damaged where a crash makes the damage look torn.
    soft: Vec<(u64, u64)>,
    calm: bool,
    tally: Tally,
}

type Verdict = Result<(), String>;

const DESTAGE: u16 = 1000;
const ADMIN: u16 = 1001;

impl World {
    fn new(seed: u64, verbose: bool) -> Self {
        let mut rng = Rng::new(seed);
        let plan = Plan::new(seed, &mut rng);
        let media = Media::new(plan.geometry.media_bytes(), plan.flavour);
        let clients = (0..plan.clients).map(|_| Client::default()).collect();
        Self {
            verbose,
            plan,
            rng,
            engine: Engine::new(media),
            volumes: Vec::new(),
            clients,
            tick: 1,
            now_ns: 1_000_000_000,
            next_id: 1,
            next_number: 1,
            destage_at: 0,
            faulty: true,
            opened_full: false,
            uncertain: 0,
            damaged: false,
            soft: Vec::new(),
            calm: false,
            tally: Tally { runs: 1, ..Tally::default() },
        }
    }

    fn log(&self, text: impl FnOnce() -> String) {
        if self.verbose {
            println!("{:6} {}", self.tick, text());
        }
    }

    fn actor(&mut self, actor: u16) {
        hooks::set_cpu(u32::from(actor));
        self.engine.media.set_actor(actor);
    }

    fn fresh_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    /// Acts on a wake mask as a host would.
    fn wake(&mut self, mask: u32) {
        if mask & sys::FBY_WAKE_SPACE != 0 {
            self.log(|| "there is space".into());
        }
        if mask & sys::FBY_WAKE_DESTAGE != 0 {
            self.destage_at = 0;
        }
        for c in &mut self.clients {
            let bit = match c.asleep {
                Some(Decision::Wait(Wait::Block)) => sys::FBY_WAKE_BLOCK,
                Some(Decision::Wait(Wait::Slot)) => sys::FBY_WAKE_SLOT,
                Some(Decision::Wait(Wait::Space)) => sys::FBY_WAKE_SPACE,
                Some(Decision::Wait(Wait::Flush)) => sys::FBY_WAKE_FLUSH,
                _ => continue,
            };
            if mask & bit != 0 {
                c.asleep = None;
            }
        }
    }

    /// No write is between begin and publish.
    fn quiet(&self) -> bool {
        self.clients.iter().all(|c| !c.holds())
    }

    fn check(&mut self) -> Verdict {
        if let Some(misuse) = self.engine.media.misuse() {
            return Err(misuse);
        }
        if self.engine.is_open() && self.tick.is_multiple_of(self.plan.check_every) {
            self.tally.checks += 1;
            return self.engine.check(self.quiet());
        }
        Ok(())
    }

    fn start(&mut self) -> Verdict {
        let g = self.plan.geometry;
        let mut uuid = [0; 16];
        uuid[..8].copy_from_slice(&self.rng.next_u64().to_le_bytes());
        self.engine.format_geometry(uuid, &g).map_err(|e| format!("format: {e}"))?;
        self.engine.open_all(&self.plan.options).map_err(|e| format!("open: {e}"))?;
        for _ in 0..self.rng.range(1, u64::from(g.nvolumes)) {
            self.add_volume()?;
        }
        Ok(())
    }

    /// The origin of a volume lost its power, and what was not flushed with it.
    fn origin_power_cut(&mut self, v: usize, loss: Loss) {
        let volume = &mut self.volumes[v];
        volume.origin.power_cut(loss, &mut self.rng);
        volume.model.iter_mut().for_each(Sector::lose_volatile);
    }

    fn one_in(&mut self, n: u64) -> bool {
        n != 0 && self.rng.one_in(n)
    }

    /// One event, whatever it is.
    fn step(&mut self) -> Verdict {
        self.tick += 1;
        self.tally.steps += 1;
        self.now_ns += self.rng.range(100, 20_000);
        if self.rng.one_in(200) {
            self.now_ns += 1_000_000 * self.rng.range(1, 400);
        }
        if self.faulty {
            if self.one_in(self.plan.crash) {
                self.plan_crash()?;
            } else if self.one_in(self.plan.media_fault) {
                self.media_fault()?;
            } else if self.one_in(self.plan.origin_fault) {
                self.origin_fault();
            } else if self.one_in(self.plan.admin) {
                self.admin()?;
            }
        }
        match self.rng.below(10) {
            _ if self.engine.media.captured() => {}
            0..=5 => self.client_step()?,
            6 | 7 => self.destage_step()?,
            _ => self.origin_step()?,
        }
        if self.engine.media.captured() {
            self.power_cut()?;
        }
        self.check()
    }

    /// Until nobody has anything to do; faults are over.
    fn settle(&mut self) -> Verdict {
        self.calm = true;
        self.engine.media.disarm();
        self.heal_origins();
        for v in 0..self.volumes.len() {
            if !self.volumes[v].attached {
                self.attach(v)?;
            }
        }
        let mut rounds = 0;
        while self.clients.iter().any(|c| !c.idle()) {
            rounds += 1;
            if rounds > 60_000 && self.wedged() {
                return Ok(());
            }
            if rounds > 60_000 {
                let stuck: Vec<String> = self
                    .clients
                    .iter()
                    .enumerate()
                    .filter(|(_, c)| !c.idle())
                    .map(|(i, c)| format!("client {i}: {}", c.describe()))
                    .collect();
                return Err(format!("no end after {rounds} steps: {}", stuck.join("; ")));
            }
            self.tick += 1;
            // Past the longest pause of a destage that failed.
            self.now_ns += if rounds % 64 == 0 { 200_000_000 } else { 50_000 };
            self.client_step()?;
            self.origin_step()?;
            self.destage_step()?;
            self.check()?;
        }
        Ok(())
    }

    /// The pool is full of lost blocks, which stay until they are overwritten, or
    /// some volume says that it has lost more than can be carried forward in what
    /// room there is: nothing can go on until a volume is removed.
    fn wedged(&mut self) -> bool {
        let free = self.engine.info().chunks_free;
        if !self.damaged || free > 1 {
            return false;
        }
        let index: Vec<u16> = self.volumes.iter().filter_map(|v| v.index).collect();
        let infos: Vec<_> = index.iter().filter_map(|&i| self.engine.volume_info(i).ok()).collect();
        // A static volume has no chunks that another's lost blocks could fill.
        let is_static = |number| self.volume_at(number).is_some_and(|v| self.volumes[v].is_static);
        if self.clients.iter().any(|c| !c.idle() && c.volume().is_some_and(is_static)) {
            return false;
        }
        let gave_up = infos
            .iter()
            .any(|i| i.lost_blocks > 0 && i.destage == sys::FBY_DESTAGE_BACKOFF && i.lost_stuck);
        // Lost blocks are excluded here as well.
        let all_lost =
            infos.iter().filter(|i| i.spec.static_bytes == 0).all(|i| i.pages == i.lost_blocks);
        let wedged = (free == 0 && gave_up) || all_lost;
        self.tally.wedged = u64::from(wedged);
        wedged
    }

    fn finish(&mut self) -> Verdict {
        self.settle()?;
        for v in 0..self.volumes.len() {
            if self.tally.wedged == 0 {
                if self.plan.bad_sectors {
                    self.break_sectors(v);
                }
                self.drain(v)?;
            }
        }
        self.rest()?;
        if self.tally.wedged > 0 {
            return Ok(());
        }
        for v in 0..self.volumes.len() {
            self.judge_origin(v)?;
        }
        self.tick += 1;
        self.engine.check(true)
    }

    fn dump(&mut self) {
        if !self.engine.is_open() {
            return;
        }
        for c in 0..self.plan.geometry.nchunks {
            if let Ok(info) = self.engine.chunk_info(c) {
                println!("{info:?}");
            }
        }
        for v in &self.volumes {
            let info = v.index.map(|i| self.engine.volume_info(i));
            if let Some(Ok(i)) = info {
                println!(
                    "volume {} index {:?} attached {} watermark {} pages {} lost {} chunks {} \
                     destage {} draining {} requests {}",
                    v.number,
                    v.index,
                    v.attached,
                    i.watermark,
                    i.pages,
                    i.lost_blocks,
                    i.chunks,
                    i.destage,
                    i.draining,
                    v.queue.len()
                );
            }
        }
    }

    fn run(&mut self) -> Verdict {
        self.start()?;
        for _ in 0..self.plan.steps {
            self.step()?;
        }
        self.faulty = false;
        self.finish()
    }
}

/// Runs one seed; the error is the violation.
pub fn run(seed: u64, verbose: bool) -> Result<Tally, String> {
    hooks::set_context(|| format!("replay with: forebay-sim --seed {seed}"));
    run_world(World::new(seed, verbose), seed, verbose)
}

/// The seed's world without static volumes, as it was before they existed: faults found then
/// are found again.
pub fn run_without_statics(seed: u64) -> Result<Tally, String> {
    let mut world = World::new(seed, false);
    world.plan.geometry.shares = [0; 2];
    world.engine = Engine::new(Media::new(world.plan.geometry.media_bytes(), world.plan.flavour));
    run_world(world, seed, false)
}

fn run_world(mut world: World, seed: u64, verbose: bool) -> Result<Tally, String> {
    if verbose {
        println!("{:?}", world.plan);
    }
    match world.run() {
        Ok(()) => Ok(world.tally),
        Err(e) => {
            if verbose {
                world.dump();
            }
            Err(format!("seed {seed} step {}: {e}", world.tick))
        }
    }
}
