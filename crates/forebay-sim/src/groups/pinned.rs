// SPDX-License-Identifier: MIT OR Apache-2.0
//! A full pool in which a chunk is given back while its last group is on its way, and its array
//! waits for that: its log has synced an entry before that was durable.  Another log goes on, and
//! may not have this chunk before the array is durable.  Else the late group would overwrite its
//! entries, and the array would say where they end.

use forebay_engine::groups::{Durable, TicketState};
use forebay_engine::sys;

use super::explore::settle;
use super::hostile::append;
use super::run::Scene;
use super::scenes::{BIG, POOL};
use super::ssd::{Engine, Ssd};
use crate::device::{End, Path};
use crate::engine::Decision;
use crate::logs::script::{body, guid, id_of};

/// Carries out all requests but one, which does not end.
fn settle_but(ssd: &Ssd, engine: &Engine, late: Option<u32>) -> Result<(), String> {
    for _ in 0..1000 {
        let (decision, io) = engine.medium_next(&mut 0).map_err(|e| format!("next: {e}"))?;
        if decision == Decision::Done {
            ssd.send(io, Path::Straight);
            continue;
        }
        let mut others = ssd.in_flight().into_iter().filter(|(id, _)| Some(*id) != late);
        let Some((id, _)) = others.next() else { return Ok(()) };
        if let Some((io, ok)) = ssd.end(id, End::Done) {
            engine.medium_end(&io, if ok { 0 } else { 5 }, &mut 0);
        }
    }
    Err("requests without end".into())
}

/// An entry of log 0 whose group is on its way.
fn append_held(ssd: &Ssd, engine: &Engine) -> Result<u32, String> {
    match engine.log_append(0, 1, true, &[&body(1002, 5000)], &mut 0) {
        Ok((Decision::Done, _)) => {}
        other => return Err(format!("append: {other:?}")),
    }
    let (_, io) = engine.medium_next(&mut 0).map_err(|e| format!("next: {e}"))?;
    ssd.send(io, Path::Straight);
    ssd.newest().map(|(id, _)| id).ok_or_else(|| "nothing was sent".into())
}

fn run(durable: Durable) -> Result<(), String> {
    let (name, ops) = ("pinned".into(), Vec::new());
    let scene = Scene { name, geometry: POOL, durable, logs: 2, ops, from: 0, faults: 0 };
    let ssd = Ssd::new(scene.start()?, durable);
    let opened = Engine::open(ssd.media(), &scene.options());
    let (engine, _) = opened.map_err(|e| format!("open: {e}"))?;
    for log in 0..2 {
        let created = engine.log_create(log, &guid(log.into(), 1), 0, &mut 0);
        created.map_err(|e| format!("create: {e}"))?;
    }
    append(&ssd, &engine, 0, 1, &body(1001, 100))?.ok_or("no room for one entry")?;
    settle(&ssd, &engine)?;
    while append(&ssd, &engine, 1, 1, &body(1000, BIG))?.is_some() {
        settle(&ssd, &engine)?;
    }
    let late = append_held(&ssd, &engine)?;
    for log in 0..2 {
        engine.log_sync(log, 1, &mut 0).map_err(|e| format!("sync: {e}"))?;
    }
    let sizes = [BIG, BIG, 100, 200, 300];
    for (i, bytes) in sizes.iter().enumerate() {
        let body = body(i as u64 + 1, *bytes);
        let appended = engine.log_append(1, 2, true, &[&body], &mut 0);
        let appended = match appended {
            Ok((Decision::Wait(_), _)) => {
                settle_but(&ssd, &engine, Some(late))?;
                engine.log_append(1, 2, true, &[&body], &mut 0)
            }
            other => other,
        };
        let Ok((Decision::Done, name)) = appended else {
            return Err(format!("append: {appended:?}"));
        };
        // The late group ends before the last two.
        settle_but(&ssd, &engine, (i < 3).then_some(late))?;
        if engine.ticket(name.ticket) != TicketState::Durable {
            return Err(format!("entry {} does not become durable", i + 1));
        }
    }
    let ids = sizes.len() as u64;
    if let Some(misuse) = ssd.misuse() {
        return Err(misuse);
    }
    drop(engine);
    let disk = ssd.state().device.cut().durable().clone();
    ssd.start(&disk);
    let opened = Engine::open(ssd.media(), &scene.options());
    let (engine, _) = opened.map_err(|e| format!("open after the cut: {e}"))?;
    let mut header = engine.log_info(1).map_err(|e| format!("info: {e}"))?.header;
    let claimed = engine.log_claim(1, 0, &mut header);
    let (mut nodes, _) = claimed.map_err(|e| format!("claim: {e}"))?;
    let (mut found, mut room) = (Vec::new(), Vec::new());
    let replayed = engine.log_replay(1, &mut nodes, &mut |node, _| {
        found.extend(engine.log_read(1, node, &mut room).ok().and_then(id_of));
        sys::FBY_LOG_REPLAYED
    });
    replayed.map_err(|e| format!("replay: {e}"))?;
    match found.iter().copied().eq(1..=ids) {
        true => Ok(()),
        false => Err(format!("{found:?} are there of {ids} entries")),
    }
}

pub fn pinned() -> Result<(), String> {
    let mut kinds = [Durable::Flush, Durable::Fua, Durable::Through].into_iter();
    kinds.try_for_each(|durable| run(durable).map_err(|e| format!("{durable:?}: {e}")))
}
