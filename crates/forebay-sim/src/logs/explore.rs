// SPDX-License-Identifier: MIT OR Apache-2.0
//! The crash explorer for logs.  At each cut of a script's trace, for each image that the
//! hardware may leave:
//!
//! * open, recovery, fby_check() and claim find nothing wrong or missing;
//! * replay hands out each entry that was acknowledged and is unsynced, none that is
//!   obsolete, replayed before, of another period or was never appended, in order, with
//!   the bytes that were appended;
//! * cut again inside that recovery, claim and replay, the rest is replayed by the next:
//!   each entry once in all, but that of an embedded header the last effect before the cut
//!   may come again;
//! * ended and begun anew, the log holds what is appended then and nothing else;
//! * each sector of the volumes beside the logs reads as explore.rs wants it, each time.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use forebay_engine::logs::{Header, Node};
use forebay_engine::sys;

use super::known::{log_of, Entry, Explored, Known};
use super::script::{body, guid, id_of, name, record, Mark, Script};
pub use crate::bed::Bounds;
use crate::bed::{Bed, Hashes};
use crate::engine::{Decision, Wait};
use crate::explore::{self as blocks, Ids, Oracle};
use crate::hooks;
use crate::images::{Image, Layout, Overlay};
use crate::media::{settle, Flavour, LineStore, MediaEvent};
use crate::rng::mix;
use crate::script::{self, data, number};

/// The write of a volume that is gone on with.
const GONE_ON: u64 = 1_000_000;

/// The conditions after a cut at one place.
struct State<'a> {
    logs: Vec<Known>,
    volumes: &'a Oracle,
    /// The state in which the volumes' origins were left.
    way: usize,
}

/// A recovery with its replay: the trace, and the places of the marks in it.
struct Recovered {
    trace: Vec<MediaEvent>,
    marks: Vec<(usize, Mark)>,
    /// The content of the volumes.
    ids: Ids,
}

struct Explorer<'a> {
    script: &'a Script,
    bounds: Bounds,
    bed: Bed,
    options: sys::fby_options,
    seen: Hashes,
    out: Explored,
}

impl Explorer<'_> {
    fn open(&mut self) -> Result<(), String> {
        let report = self
            .bed
            .engine
            .open_all(&self.options)
            .map_err(|e| format!("open after the cut: {e}"))?;
        if report.holes != 0 || report.damaged != 0 {
            return Err(format!("recovery reports {} holes", report.holes));
        }
        if let Some(misuse) = self.bed.engine.media.misuse() {
            return Err(misuse);
        }
        self.bed.engine.check(true).map_err(|e| format!("after recovery: {e}"))
    }

    /// A consumer's header of before a period that was released is refused; and in a period
    /// that has an entry to be replayed, or whose header was stored for certain, the end of
    /// one before.  Nothing of the log has changed then.
    fn refused(&mut self, index: u16, known: &Known) -> Result<(), String> {
        let logging = known.header.state != sys::FBY_LOG_NONE && !known.ending;
        let newest = logging && (known.stored || known.owed().next().is_some());
        let ends = known.ends.iter().filter(|_| newest);
        for stale in known.stale.iter().chain(ends).filter(|_| known.consumer) {
            let before = self.bed.trace().len();
            match self.bed.engine.log_claim(index, 0, &mut stale.clone()) {
                Err(e) if e.0 == sys::FBY_E_LOG_PERIOD && self.bed.trace().len() == before => {}
                other => return Err(format!("a claim with a stale header: {other:?}")),
            }
            self.out.stale += 1;
        }
        Ok(())
    }

    /// Claims and replays one log.
    fn replay(
        &mut self,
        log: usize,
        known: &Known,
        marks: &mut Vec<(usize, Mark)>,
    ) -> Result<(), String> {
        let index = self.bed.engine.log_find(&name(log)).map_err(|e| format!("find: {e}"))?;
        let info = self.bed.engine.log_info(index).map_err(|e| format!("info: {e}"))?;
        if info.missing != 0 || info.incomplete {
            return Err(format!("recovery misses {} entries, or chunks", info.missing));
        }
        self.refused(index, known)?;
        let mut header = if known.consumer { known.header } else { info.header };
        if header.state == sys::FBY_LOG_NONE {
            self.bed.engine.log_claim(index, 0, &mut header).map_err(|e| format!("claim: {e}"))?;
            return known.judge(&[], true, &mut self.out);
        }
        let (mut nodes, claim) = self
            .bed
            .engine
            .log_claim(index, known.syncing, &mut header)
            .map_err(|e| format!("claim: {e}"))?;
        if claim.end != sys::FBY_LOG_COMPLETE || claim.twins != 0 {
            return Err(format!("claim: {claim:?}"));
        }
        self.chunks(index, &nodes)?;
        if known.consumer {
            marks.push((self.bed.trace().len(), Mark::Stored { log, header, effect: None }));
        }
        let (mut ids, mut wrong) = (Vec::new(), None);
        let (bed, mut room) = (&self.bed, Vec::new());
        let result = bed
            .engine
            .log_replay(index, &mut nodes, &mut |node, next| {
                let id = bed.engine.log_read(index, node, &mut room).ok().and_then(id_of);
                let Some(id) = id else {
                    wrong = Some((node.gen, node.id));
                    return sys::FBY_LOG_DAMAGED;
                };
                ids.push(id);
                let at = bed.trace().len();
                header.at = *next;
                marks.push(match known.consumer {
                    true => (at, Mark::Stored { log, header, effect: Some(id) }),
                    false => (at, Mark::Effect { log, id }),
                });
                sys::FBY_LOG_REPLAYED
            })
            .map_err(|e| format!("replay: {e}"))?;
        if let Some(name) = wrong {
            return Err(format!("the body of entry {name:?} is not what was appended"));
        }
        if result.end != sys::FBY_LOG_COMPLETE {
            return Err(format!("replay: {result:?}"));
        }
        known.judge(&ids, false, &mut self.out)
    }

    /// Each chunk that a claimed log holds has entries of the period.
    fn chunks(&self, index: u16, nodes: &[Node]) -> Result<(), String> {
        let lines = u64::from(self.script.geometry.chunk_size() / 64);
        let used: BTreeSet<u64> = nodes.iter().map(|node| node.place / lines).collect();
        let info = self.bed.engine.log_info(index).map_err(|e| format!("info: {e}"))?;
        match info.chunks as usize == used.len() {
            true => Ok(()),
            false => Err(format!("{} chunks are held, with entries in {used:?}", info.chunks)),
        }
    }

    fn recover(&mut self, state: &State) -> Result<Recovered, String> {
        self.open()?;
        let (volumes, origins) = (&self.script.volumes, &state.volumes.origins[state.way]);
        let ids = blocks::read_all(&mut self.bed.engine, volumes, origins)?;
        state.volumes.judge(&ids)?;
        let mut marks = Vec::new();
        for (log, known) in state.logs.iter().enumerate() {
            self.replay(log, known, &mut marks).map_err(|e| format!("{}: {e}", name(log)))?;
        }
        if let Some(misuse) = self.bed.engine.media.misuse() {
            return Err(misuse);
        }
        self.bed.engine.check(true).map_err(|e| format!("after replay: {e}"))?;
        let trace = self.bed.trace().to_vec();
        Ok(Recovered { trace, marks, ids })
    }

    /// Begins a new period of each log: it must hold only entries appended then.
    fn begin_anew(&mut self, known: &[Known]) -> Result<Vec<Known>, String> {
        let mut now = Vec::new();
        for (log, known) in known.iter().enumerate() {
            let index = self.bed.engine.log_find(&name(log)).map_err(|e| e.to_string())?;
            self.bed.engine.log_destroy(index, &mut 0).map_err(|e| format!("destroy: {e}"))?;
            let guid = guid(log, 1000);
            let created = self.bed.engine.log_create(index, &guid, 9, &mut 0);
            let (_, header) = created.map_err(|e| format!("create: {e}"))?;
            let ends = vec![Header::default()];
            let mut fresh = Known { consumer: known.consumer, header, ends, ..Known::default() };
            for (id, txg) in [(5000, 10), (5001, 12)] {
                let appended =
                    self.bed.engine.log_append(index, txg, true, &[&body(id, 50)], &mut 0);
                match appended {
                    Ok((Decision::Done, _)) => {
                        fresh.entries.push(Entry { id, txg, acknowledged: true });
                    }
                    Ok((Decision::Wait(Wait::Space), _)) if !self.script.volumes.is_empty() => {}
                    other => return Err(format!("append after the replay: {other:?}")),
                }
            }
            now.push(fresh);
        }
        Ok(now)
    }

    /// Writes the first block of each volume.
    fn write_on(&mut self, ids: &mut Ids) -> Result<(), String> {
        for (vol, ids) in ids.iter_mut().enumerate() {
            let index = self.bed.engine.volume_find(&script::name(vol));
            let Ok(index) = index else { continue };
            let (bytes, mut done) = (data(number(vol), 0..8, GONE_ON), 0);
            match self.bed.engine.write(index, 0, &bytes, &mut done, &mut 0) {
                Ok(Decision::Done) => ids[..8].fill(GONE_ON),
                Ok(Decision::Wait(Wait::Space)) => {} // occupied by undestaged blocks
                other => return Err(format!("write after recovery: {other:?}")),
            }
        }
        Ok(())
    }

    fn go_on(&mut self, state: &State, mut ids: Ids) -> Result<(), String> {
        let logs = self.begin_anew(&state.logs)?;
        self.write_on(&mut ids)?;
        self.bed.engine.check(true).map_err(|e| format!("begun anew: {e}"))?;
        self.bed.engine.abandon();
        let volumes = &Oracle::exactly(&ids, state.volumes.origins[state.way].clone());
        self.recover(&State { logs, volumes, way: 0 })
            .map_err(|e| format!("begun anew: {e}"))
            .map(|_| ())
    }

    fn image(&mut self, image: &Image, known: &[Known], volumes: &Oracle) -> Result<(), String> {
        let pick = mix(image.hash);
        let way = (pick % volumes.origins.len() as u64) as usize;
        let state = State { logs: known.to_vec(), volumes, way };
        self.bed.load(image);
        let mut result = self.recover(&state);
        if let Ok(recovered) = &result {
            if (pick >> 8).is_multiple_of(self.bounds.go_on_every) {
                result = self.go_on(&state, recovered.ids.clone()).and(result);
            }
        }
        self.bed.unload(image);
        let recovered = result?;
        if (pick >> 24).is_multiple_of(self.bounds.nested_every) {
            self.nested(image, &recovered, state, pick)?;
        }
        Ok(())
    }

    /// Cuts inside the recovery and the replay of `image`.
    fn nested(
        &mut self,
        image: &Image,
        recovered: &Recovered,
        mut state: State,
        pick: u64,
    ) -> Result<(), String> {
        let mut durable: Overlay = image.lines.iter().copied().collect();
        let mut pending: Vec<LineStore> = Vec::new();
        let mut marks = recovered.marks.iter().peekable();
        for at in 0..=recovered.trace.len() {
            let mut marked = false;
            while let Some((_, mark)) = marks.next_if(|(pos, _)| *pos == at) {
                state.logs[log_of(mark)].apply(mark);
                marked = true;
            }
            let event = recovered.trace.get(at);
            if marked || matches!(event, Some(MediaEvent::Fence(_)) | None) {
                self.out.nested_cuts += 1;
                let images = self.bed.images(
                    &durable,
                    &pending,
                    Flavour::NonTemporal,
                    self.bounds.nested,
                    pick ^ self.out.nested_cuts,
                );
                for nested in images {
                    self.out.images += 1;
                    self.seen.insert(nested.hash);
                    self.bed.load(&nested);
                    let result = self.recover(&state).map(|_| ());
                    self.bed.unload(&nested);
                    result
                        .map_err(|e| format!("second cut, at event {at} of the recovery: {e}"))?;
                }
            }
            match event {
                Some(MediaEvent::Store(s)) => pending.push(*s),
                Some(MediaEvent::Fence(actor)) => settle(&mut pending, *actor, |s| {
                    durable.insert(s.line, s.words);
                }),
                None => {}
            }
        }
        Ok(())
    }

    fn cut(
        &mut self,
        pending: &[LineStore],
        known: &[Known],
        volumes: &Oracle,
        at: usize,
    ) -> Result<(), String> {
        self.out.cuts += 1;
        for flavour in [Flavour::NonTemporal, Flavour::Cached] {
            let images = self.bed.images(
                &Overlay::new(),
                pending,
                flavour,
                self.bounds.images,
                mix(at as u64 ^ (flavour as u64) << 32),
            );
            for (n, image) in images.enumerate() {
                self.out.images += 1;
                self.seen.insert(image.hash);
                let hash = image.hash;
                let script = &self.script.name;
                hooks::set_context(|| format!("script '{script}' cut at event {at}, image {n}"));
                self.image(&image, known, volumes).map_err(|e| {
                    format!("cut at event {at}, {flavour:?} image {n} (hash {hash:016x}): {e}")
                })?;
            }
            if pending.is_empty() {
                break;
            }
        }
        Ok(())
    }
}

/// Explores one script; `limit` ends it early, with what was seen so far.
pub fn explore(
    script: &Script,
    bounds: Bounds,
    limit: Option<Duration>,
) -> Result<Explored, String> {
    let recording = record(script)?;
    let deadline = limit.map(|l| Instant::now() + l);
    let g = script.geometry;
    let layout = Layout {
        data_offset: g.data_offset(),
        chunk_size: u64::from(g.chunk_size()),
        // Small entries lie there: each word of theirs lands or not.
        first_page: 2,
        chunks_end: g.chunks_end(),
        share_pages: g.share_pages(),
    };
    let mut x = Explorer {
        script,
        bounds,
        bed: Bed::new(recording.start, layout),
        options: sys::fby_options { nslots: g.nslots, ..Default::default() },
        seen: Hashes::default(),
        out: Explored { scripts: 1, ..Explored::default() },
    };
    let mut known: Vec<Known> =
        script.consumer.iter().map(|&consumer| Known { consumer, ..Known::default() }).collect();
    let mut volumes: Vec<blocks::Known> = (script.volumes.iter().enumerate())
        .map(|(vol, &sectors)| blocks::Known::new(vol, sectors, true))
        .collect();
    let mut marks = recording.marks.iter().peekable();
    let mut block_marks = recording.block_marks.iter().peekable();
    let mut now = 0;
    let mut pending: Vec<LineStore> = Vec::new();
    let named = |e: String| format!("script '{}': {e}", script.name);
    for at in 0..=recording.trace.len() {
        if deadline.is_some_and(|d| Instant::now() > d) {
            break;
        }
        let mut marked = false;
        while let Some((_, mark)) = marks.next_if(|(pos, _)| *pos == at) {
            known[log_of(mark)].apply(mark);
            marked = true;
        }
        while let Some((_, mark)) = block_marks.next_if(|(pos, _)| *pos == at) {
            now += 1;
            volumes[blocks::volume_of(mark)].apply(mark, now * 10);
            marked = true;
        }
        let event = recording.trace.get(at);
        if at >= recording.from && (marked || matches!(event, Some(MediaEvent::Fence(_)) | None)) {
            let oracle = blocks::oracle(&volumes, now * 10 + 5);
            x.cut(&pending, &known, &oracle, at).map_err(named)?;
        }
        match event {
            Some(MediaEvent::Store(s)) => pending.push(*s),
            Some(MediaEvent::Fence(actor)) => x.bed.settle(&mut pending, *actor),
            None => {}
        }
    }
    x.out.distinct = x.seen.len() as u64;
    Ok(x.out)
}

#[cfg(test)]
mod tests {
    use super::super::{beside, random, small};
    use super::*;

    const BOUNDS: Bounds = Bounds { images: 40, nested: 3, nested_every: 16, go_on_every: 8 };

    #[test]
    fn no_cut_of_the_small_scripts_loses_repeats_or_invents() {
        for script in small() {
            let seen = explore(&script, BOUNDS, None).unwrap_or_else(|e| panic!("{e}"));
            assert!(seen.replayed > 0, "{}: {seen:?}", script.name);
        }
    }

    #[test]
    fn nor_beside_volumes() {
        let bounds = Bounds { images: 12, nested: 2, nested_every: 32, go_on_every: 8 };
        let seeds = (0..12).map(beside::random);
        for script in beside::small().into_iter().chain(seeds) {
            let limit = Some(Duration::from_secs(20));
            explore(&script, bounds, limit).unwrap_or_else(|e| panic!("{e}"));
        }
    }

    #[test]
    fn nor_of_random_ones() {
        let mut all = Explored::default();
        for seed in 0..30 {
            let seen = explore(&random(seed), BOUNDS, Some(Duration::from_secs(20)));
            all.add(&seen.unwrap_or_else(|e| panic!("{e}")));
        }
        assert!(all.again > 0 && all.stale > 0 && all.unacknowledged > 0, "{all:?}");
    }
}
