// SPDX-License-Identifier: MIT OR Apache-2.0
//! The engine as the simulator drives it: [`forebay_engine::Engine`] on simulated
//! media, which outlives it.  After a crash the pool is abandoned, as a dead process
//! would leave it, and what the origins have of its requests is theirs.

use std::collections::HashMap;
use std::ops::Deref;
use std::rc::Rc;

use forebay_engine::{sys, OpenError, Soft};

pub use forebay_engine::{Attach, Bypass, Code, Decision, Past, Result, Ticket, Wait, Write};

use crate::media::Media;
use crate::script::Geometry;

type Pool = forebay_engine::Engine<Rc<Soft<Media>>>;

/// A request for an origin, its data copied.
#[derive(Clone, Debug)]
pub struct Io {
    pub id: u32,
    pub volume: u16,
    pub op: u8,
    pub sector: u64,
    pub nsectors: u64,
    pub data: Vec<u8>,
}

#[derive(Debug)]
pub struct Step {
    pub decision: Decision,
    pub io: Option<Io>,
    pub next_ns: u64,
    pub wake: u32,
}

/// With little memory: two buffers of two blocks each.
pub fn small_attach(origin_sectors: u64, identity: &str, round_pages: u32) -> Attach<'_> {
    let holes = sys::FBY_HOLES_FAIL;
    Attach { origin_sectors, identity, holes, round_pages, nrequests: 2, buffer_bytes: 8192 }
}

/// The media, and the pool that is open on it if one is: all calls of that, too.
pub struct Engine {
    pub media: Rc<Soft<Media>>,
    pool: Option<Pool>,
    /// Requests of destage that are not complete, and the sum of their data.
    in_flight: HashMap<u32, (forebay_engine::Io, u64)>,
    /// Data that was changed before its request had ended.
    changed: Option<String>,
}

impl Deref for Engine {
    type Target = Pool;

    fn deref(&self) -> &Pool {
        self.pool.as_ref().expect("a pool is open")
    }
}

/// Memory there is, or the simulation cannot go on.
fn code(e: OpenError) -> Code {
    match e {
        OpenError::Engine(code) | OpenError::Unknown { code, .. } => code,
        OpenError::Memory { .. } => panic!("{e}"),
    }
}

impl Engine {
    pub fn new(media: Media) -> Self {
        Self {
            media: Rc::new(Soft::new(media)),
            pool: None,
            in_flight: HashMap::new(),
            changed: None,
        }
    }

    pub fn format(&mut self, uuid: [u8; 16], chunk_size: u32, nvolumes: u32) -> Result<()> {
        self.format_with_room(uuid, chunk_size, nvolumes, 0)
    }

    pub fn format_geometry(&mut self, uuid: [u8; 16], g: &Geometry) -> Result<()> {
        self.format_with_room(uuid, g.chunk_size(), g.nvolumes, g.static_bytes())
    }

    /// With room for static volumes.
    pub fn format_with_room(
        &mut self,
        uuid: [u8; 16],
        chunk_size: u32,
        nvolumes: u32,
        static_bytes: u64,
    ) -> Result<()> {
        assert!(!self.is_open());
        let f = sys::fby_format { uuid, chunk_size, nvolumes, static_bytes, ..Default::default() };
        forebay_engine::format(&self.media, &f)
    }

    pub fn probe(&self) -> sys::fby_probe {
        forebay_engine::probe(&self.media)
    }

    pub fn is_open(&self) -> bool {
        self.pool.is_some()
    }

    /// Opens and recovers.
    pub fn open_all(&mut self, options: &sys::fby_options) -> Result<sys::fby_recovery_report> {
        assert!(!self.is_open());
        let (pool, report) = Pool::open(self.media.clone(), options).map_err(code)?;
        self.pool = Some(pool);
        Ok(report)
    }

    /// The process is gone.
    pub fn abandon(&mut self) {
        self.pool = None;
        self.in_flight.clear();
    }

    pub fn close(&mut self) -> Result<()> {
        self.pool.as_mut().expect("a pool is open").close_attached()?;
        self.abandon();
        Ok(())
    }

    pub fn check(&self, quiet: bool) -> std::result::Result<(), String> {
        if let Some(text) = &self.changed {
            return Err(text.clone());
        }
        match Pool::check(self, quiet) {
            Ok(None) => Ok(()),
            Ok(Some(text)) => Err(format!("check: {text}")),
            Err(e) => Err(format!("check: {e}")),
        }
    }

    pub fn volume_attach(&self, index: u16, a: &Attach) -> Result<()> {
        Pool::volume_attach(self, index, a).map_err(code)
    }

    pub fn destage_step(&mut self, now_ns: u64) -> Result<Step> {
        let mut wake = 0;
        let (mut io, mut next_ns) = (None, u64::MAX);
        let decision = match Pool::destage_step(self, now_ns, &mut wake)? {
            forebay_engine::Step::Again => Decision::Again,
            forebay_engine::Step::Sleep { next_ns: next } => {
                next_ns = next;
                Decision::Done
            }
            forebay_engine::Step::Submit(request) => {
                io = Some(Io {
                    id: request.id,
                    volume: request.volume,
                    op: request.op,
                    sector: request.offset / 512,
                    nsectors: request.len / 512,
                    data: request.data().to_vec(),
                });
                self.in_flight
                    .insert(request.id, (request, io.as_ref().map_or(0, |io| sum(&io.data))));
                Decision::Origin
            }
        };
        Ok(Step { decision, io, next_ns, wake })
    }

    pub fn destage_complete(&mut self, id: u32, errno: i32) {
        let (io, before) = self.in_flight.remove(&id).expect("a request in flight");
        if sum(io.data()) != before {
            self.changed =
                Some(format!("the buffer of a request in flight was changed: {}", io.id));
        }
        Pool::destage_complete(self, io, errno);
    }
}

fn sum(data: &[u8]) -> u64 {
    data.chunks(8).fold(data.len() as u64, |sum, word| {
        let mut bytes = [0; 8];
        bytes[..word.len()].copy_from_slice(word);
        crate::rng::mix(sum ^ u64::from_le_bytes(bytes))
    })
}

/// The spec of a volume, its uuid made from its number.
pub fn volume_spec(name: &str, number: u64, sectors: u64, block_size: u32) -> sys::fby_volume_spec {
    let mut uuid = [0; 16];
    uuid[..8].copy_from_slice(&crate::rng::mix(number).to_le_bytes());
    uuid[8..].copy_from_slice(&crate::rng::mix(!number).to_le_bytes());
    sys::fby_volume_spec {
        name: sys::c_text(name).expect("a short name"),
        identity: sys::c_text(&identity(number)).expect("a short identity"),
        uuid,
        origin_sectors: sectors,
        block_size,
        flush_us: 0,
        static_bytes: 0,
    }
}

pub fn identity(number: u64) -> String {
    format!("sim-{number}")
}
