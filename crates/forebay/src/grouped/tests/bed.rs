// SPDX-License-Identifier: MIT OR Apache-2.0
//! A grouped pool with logs, and what a recovery finds in them.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};

use forebay_engine::{sys, Decision};

use super::super::{Durable, GroupedMedium, Sender};
use super::model::{Model, CHUNK, TAG, UNIT};
use crate::engine::{Code, Engine, Wait};
use crate::error::Result;
use crate::report::Uuid;

const CHUNKS: usize = 32;
const SYNCED: u64 = 1;

pub fn options() -> sys::fby_options {
    sys::fby_options { nslots: 4, ..Default::default() }
}

pub fn blank() -> Vec<u8> {
    room(CHUNKS)
}

/// For so many chunks.
pub fn room(chunks: usize) -> Vec<u8> {
    vec![0; (1 + chunks) * CHUNK]
}

/// Milliseconds in which a thread that sleeps for 20 ms at a time did not run, the most so far: a
/// machine that stood still.
static STOOD_STILL_MS: AtomicU64 = AtomicU64::new(0);

pub fn watch_the_machine() {
    static WATCHED: Once = Once::new();
    WATCHED.call_once(|| {
        std::thread::spawn(|| loop {
            let start = Instant::now();
            std::thread::sleep(Duration::from_millis(20));
            STOOD_STILL_MS.fetch_max(start.elapsed().as_millis() as u64, Ordering::Relaxed);
        });
    });
}

/// Wake-ups that were lost.  They are counted by the time a sleep took, so a virtual machine that
/// was stopped for seconds shows some that were not.
pub fn lost_by(sender: &Sender) -> u64 {
    match STOOD_STILL_MS.load(Ordering::Relaxed) {
        0..2000 => sender.counts().lost,
        _ => 0,
    }
}

/// An open pool.
pub struct Bed {
    pub engine: Arc<Engine>,
    pub sender: Sender,
    pub logs: Vec<u16>,
}

fn name(log: usize) -> String {
    format!("log-{log}")
}

impl Bed {
    /// A new pool with that many logs, in use.
    pub fn new(medium: GroupedMedium, logs: usize) -> Result<Bed> {
        watch_the_machine();
        medium.format(Uuid([7; 16]), CHUNK as u32, 8)?;
        let (engine, _) = medium.open_pool(&options(), 1)?;
        let sender = Sender::new(engine.clone(), medium.disk().clone());
        let mut all = Vec::new();
        for log in 0..logs {
            let index = engine.log_add(&name(log), 0).unwrap();
            let create =
                |wake: &mut u32| engine.log_create(index, &[log as u8 + 1; 16], SYNCED, wake);
            sender.settled(&mut 0, create).unwrap();
            all.push(index);
        }
        Ok(Bed { engine, sender, logs: all })
    }

    pub fn on(model: &Arc<Model>, durable: Durable, logs: usize) -> Bed {
        let place = Path::new("(model)");
        Bed::new(GroupedMedium::on(place, model.clone(), UNIT as u32, durable).unwrap(), logs)
            .unwrap()
    }

    pub fn lost(&self) -> u64 {
        lost_by(&self.sender)
    }

    /// An append, and the ticket that it returns.
    pub fn append(&self, log: usize, id: u64, bytes: usize) -> Result<u64> {
        let mut body = vec![id as u8; bytes.max(16)];
        body[..8].copy_from_slice(TAG);
        body[8..16].copy_from_slice(&id.to_le_bytes());
        let (mut next, mut wake) = (true, 0);
        loop {
            let seen = self.sender.ends();
            match self.engine.log_append(self.logs[log], SYNCED + 1, next, &[&body], &mut wake) {
                Ok((Decision::Done, name)) => {
                    self.sender.submitted(self.logs[log], name.ticket);
                    return Ok(name.ticket);
                }
                Ok((Decision::Wait(Wait::Ticket), _)) => self.sender.help(seen, &mut wake),
                Ok((Decision::Wait(Wait::Slot), _)) => std::thread::yield_now(),
                Err(Code(sys::FBY_E_MEDIUM)) => return Err(self.sender.failed()),
                other => panic!("{other:?}"),
            }
            next = false;
        }
    }

    pub fn append_durable(&self, log: usize, id: u64, bytes: usize) -> Result<()> {
        let ticket = self.append(log, id, bytes)?;
        self.sender.wait(self.logs[log], ticket, &mut 0)
    }
}

/// The entries in the logs of a pool with this content: their numbers, in the order of a replay.
pub fn found(content: Vec<u8>, durable: Durable, logs: usize) -> Vec<Vec<u64>> {
    let model = Arc::new(Model::new(content, durable, 0, 0));
    let medium = GroupedMedium::on(Path::new("(model)"), model, UNIT as u32, durable).unwrap();
    found_on(&medium, logs)
}

pub fn found_on(medium: &GroupedMedium, logs: usize) -> Vec<Vec<u64>> {
    let (engine, report) = medium.open_pool(&options(), 1).unwrap();
    assert_eq!((report.holes, report.damaged), (0, 0), "{report:?}");
    let all = (0..logs).map(|log| replayed(&engine, &name(log))).collect();
    assert_eq!(engine.check(true).unwrap(), None);
    all
}

fn replayed(engine: &Engine, name: &str) -> Vec<u64> {
    let log = engine.log_find(name).unwrap();
    let info = engine.log_info(log).unwrap();
    assert!(info.missing == 0 && !info.incomplete, "{info:?}");
    let mut header = info.header;
    let (mut nodes, claim) = engine.log_claim(log, 0, &mut header).unwrap();
    assert_eq!((claim.end, claim.twins), (sys::FBY_LOG_COMPLETE, 0), "{claim:?}");
    let (mut ids, mut room) = (Vec::new(), Vec::new());
    let result = engine.log_replay(log, &mut nodes, &mut |node, _| {
        let body = engine.log_read(log, node, &mut room).unwrap();
        let id = u64::from_le_bytes(body[8..16].try_into().unwrap());
        assert!(body.starts_with(TAG) && body[16..].iter().all(|b| *b == id as u8));
        ids.push(id);
        sys::FBY_LOG_REPLAYED
    });
    assert_eq!(result.unwrap().end, sys::FBY_LOG_COMPLETE);
    ids
}
