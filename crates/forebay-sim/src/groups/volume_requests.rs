// SPDX-License-Identifier: MIT OR Apache-2.0
//! Clients' requests (host/client_request.h) of a volume in a grouped pool: one is answered when the
//! ticket of what it appended is durable, and a flush when that of everything before it is.  Only a
//! write that a later flush makes durable may be answered earlier.  After each answer the power is
//! cut, and the pool has what was promised.  A write that has to wait passes on whom it wakes, and once
//! the device has failed none waits for what does not come.

use std::sync::atomic::AtomicU8;

use forebay_engine::groups::{Durable, Persisted, TicketState};
use forebay_engine::request::{Payload, Policy, Request, Runs, Wanted};
use forebay_engine::{sys, Wait};

use super::explore::settle;
use super::scenes::POOL;
use super::ssd::{Engine, Ssd};
use super::volumes::{attach, VolumeScene};
use crate::pattern;

const NUMBER: u64 = 1;
const TICKETS: u8 = sys::FBY_REQ_TICKETS;
const LATER: u8 = TICKETS | sys::FBY_REQ_LATER;
const DURABLE: u8 = LATER | sys::FBY_REQ_DURABLE;

/// Operation, flags, whether it is durable when it is answered.
const ASKED: [(u8, u8, bool); 8] = [
    (sys::FBY_OP_WRITE, TICKETS, true),
    (sys::FBY_OP_WRITE, LATER, false),
    (sys::FBY_OP_WRITE, DURABLE, true),
    (sys::FBY_OP_WRITE, LATER, false),
    (sys::FBY_OP_FLUSH, LATER, true),
    (sys::FBY_OP_ZERO, TICKETS, true),
    (sys::FBY_OP_DISCARD, TICKETS, true),
    (sys::FBY_OP_FLUSH, TICKETS, true),
];

struct Client<'a> {
    ssd: &'a Ssd,
    engine: Engine,
    policy: Policy,
}

impl Client<'_> {
    /// Carries out a request; how often it waited for a ticket.
    fn request(&self, op: u8, flags: u8, id: u64) -> Result<u32, String> {
        let mut data = vec![0; 2 * 8 * pattern::SECTOR];
        for (at, bytes) in (0u64..).zip(data.chunks_exact_mut(pattern::SECTOR)) {
            pattern::fill(pattern::place(NUMBER, at), id, bytes);
        }
        let nsectors = if op == sys::FBY_OP_FLUSH { 0 } else { 16 };
        let wanted = Wanted { volume: 0, op, flags, sector: 0, nsectors };
        let mut request = Request::new(wanted, Runs::None, false);
        let (mut result, mut waits) = (None, 0);
        for _ in 0..100 {
            let payload = match op == sys::FBY_OP_WRITE {
                true => Payload::Write(&data),
                false => Payload::None,
            };
            let next = self.engine.request_go(&mut request, &self.policy, payload, result);
            if next <= 0 {
                self.engine.request_end(&mut request);
                return match next {
                    0 => Ok(waits),
                    error => Err(format!("error {}", -error)),
                };
            }
            if next == sys::FBY_NEXT_WAIT && request.why() == sys::FBY_WAIT_TICKET {
                waits += 1;
                settle(self.ssd, &self.engine)?;
            } else if next != sys::FBY_NEXT_ORIGIN && next != sys::FBY_NEXT_THROTTLE {
                return Err(format!("it asks for {next}"));
            }
            result = Some(0);
        }
        Err("it does not end".into())
    }
}

/// The power is cut: the first sectors have this.
fn after_cut(scene: &VolumeScene, ssd: &Ssd, id: u64) -> Result<(), String> {
    let bed = Ssd::new(ssd.state().device.cut().durable().clone(), scene.durable);
    let opened = Engine::open(bed.media(), &scene.options());
    let (engine, _) = opened.map_err(|e| format!("open after the cut: {e}"))?;
    attach(&engine, 0)?;
    let mut buf = [0; 4096];
    let read = engine.read_block(0, 0, 0, &mut buf);
    let (origin, _) = read.masks().map_err(|e| format!("read: {e}"))?;
    let found = pattern::read(pattern::place(NUMBER, 0), &buf[..pattern::SECTOR]);
    match origin == 0 && found == Some(id) {
        true => Ok(()),
        false => Err(format!("after a cut there is {found:?} instead of {id}")),
    }
}

fn scene(durable: Durable) -> VolumeScene {
    VolumeScene {
        name: "requests".into(),
        geometry: POOL,
        durable,
        volumes: 1,
        ops: Vec::new(),
        from: 0,
        faults: 0,
        refusals: 0,
    }
}

fn client<'a>(scene: &VolumeScene, ssd: &'a Ssd) -> Result<Client<'a>, String> {
    let opened = Engine::open(ssd.media(), &scene.options());
    let (engine, _) = opened.map_err(|e| format!("open: {e}"))?;
    attach(&engine, 0)?;
    Ok(Client { ssd, engine, policy: Policy::default() })
}

/// A write whose group is full waits, and gives its slot back, for which others wait: they are woken.
fn wakes(durable: Durable, stepped: bool) -> Result<(), String> {
    let scene = scene(durable);
    let ssd = Ssd::new(scene.start()?, durable);
    let client = client(&scene, &ssd)?;
    client.engine.wait_prepare(Wait::Slot);
    let data = vec![1; 16 * pattern::SECTOR];
    for n in 0..1000 {
        let (op, flags) = (sys::FBY_OP_WRITE, LATER);
        let wanted = Wanted { volume: 0, op, flags, sector: 0, nsectors: 16 };
        let mut request = Request::new(wanted, Runs::None, stepped);
        let mut result = None;
        loop {
            let payload = Payload::Write(&data);
            let next = client.engine.request_go(&mut request, &client.policy, payload, result);
            result = Some(0);
            if next == sys::FBY_NEXT_STEP || next == sys::FBY_NEXT_THROTTLE {
                continue;
            }
            let (why, woken) = (request.why(), request.wake() & sys::FBY_WAKE_SLOT != 0);
            client.engine.request_end(&mut request);
            match (next, why) {
                (sys::FBY_NEXT_DONE, _) => break,
                (sys::FBY_NEXT_WAIT, sys::FBY_WAIT_TICKET) if woken => return Ok(()),
                (sys::FBY_NEXT_WAIT, sys::FBY_WAIT_TICKET) => {
                    return Err(format!("write {n} waits, and wakes nobody for its slot"));
                }
                _ => return Err(format!("write {n} asks for {next}, since {why}")),
            }
        }
    }
    Err("no write waits for a ticket".into())
}

/// Nothing is released any more, so no write that is to go past the cache waits for that.
fn fails(durable: Durable, mode: u8) -> Result<(), String> {
    let scene = scene(durable);
    let ssd = Ssd::new(scene.start()?, durable);
    let mut client = client(&scene, &ssd)?;
    client.request(sys::FBY_OP_WRITE, TICKETS, 7)?;
    ssd.state_mut().persist_ends = vec![Persisted::WriteFailed; 3];
    match client.engine.volume_mark(0, sys::FBY_MARK_BEGIN) {
        Err(e) if e.is(sys::FBY_E_MEDIUM) => {}
        other => return Err(format!("a record on a device that fails: {other:?}")),
    }
    client.policy = Policy { mode: AtomicU8::new(mode), ..Policy::default() };
    match client.request(sys::FBY_OP_WRITE, TICKETS, 8) {
        Err(e) if e == format!("error {}", sys::FBY_E_MEDIUM) => Ok(()),
        other => Err(format!("a write in mode {mode} on a device that has failed: {other:?}")),
    }
}

fn run(durable: Durable) -> Result<(), String> {
    let scene = scene(durable);
    let ssd = Ssd::new(scene.start()?, durable);
    let client = client(&scene, &ssd)?;
    let mut newest = 0;
    for (n, (op, flags, promised)) in ASKED.into_iter().enumerate() {
        let at = |e: String| format!("request {n} of operation {op} with flags {flags}: {e}");
        let id = 100 + n as u64;
        let waits = client.request(op, flags, id).map_err(at)?;
        match op {
            sys::FBY_OP_WRITE => newest = id,
            sys::FBY_OP_FLUSH => {}
            _ => newest = pattern::ZERO,
        }
        if !promised {
            match waits {
                0 => continue,
                _ => return Err(at("it waits for what a later flush makes durable".into())),
            }
        }
        let ticket = client.engine.volume_ticket(0);
        if client.engine.ticket(ticket) != TicketState::Durable {
            return Err(at("it is answered before its ticket is durable".into()));
        }
        after_cut(&scene, &ssd, newest).map_err(at)?;
    }
    Ok(())
}

pub fn requests_wait() -> Result<(), String> {
    let mut kinds = [Durable::Flush, Durable::Fua, Durable::Through].into_iter();
    kinds.try_for_each(|durable| {
        let modes = [sys::FBY_MODE_WRITE_BACK, sys::FBY_MODE_WRITE_THROUGH, sys::FBY_MODE_CLEANER];
        let all = run(durable)
            .and_then(|()| [false, true].into_iter().try_for_each(|steps| wakes(durable, steps)))
            .and_then(|()| modes.into_iter().try_for_each(|mode| fails(durable, mode)));
        all.map_err(|e| format!("{durable:?}: {e}"))
    })
}
