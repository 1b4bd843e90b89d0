// SPDX-License-Identifier: MIT OR Apache-2.0
//! The media of a grouped pool: its image in memory, and the simulated device below.

use std::cell::{Ref, RefCell, RefMut};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;

use forebay_engine::groups::{Durable, Persisted, Request};
use forebay_engine::{sys, BlockStore, Soft, Store};

use crate::device::{Block, Cut, Device, Disk, End, Kind, Path};

const LINE: usize = 64;

pub struct State {
    pub device: Device,
    durable: Durable,
    image: Vec<u8>,
    /// For each block of the image: the block of a disk that it is a copy of, unless the engine
    /// has changed it.
    copies: Vec<Option<Rc<Block>>>,
    /// Lines that could not be read from the device, and were not stored since.
    unread: BTreeSet<usize>,
    /// Requests in flight, by the device's number.
    sent: BTreeMap<u32, Request>,
    /// How the next calls of persist end.
    pub persist_ends: Vec<Persisted>,
    misuse: Option<String>,
}

impl State {
    /// The image as a host reads it when it opens the pool.
    fn read(&mut self) {
        let unit = self.device.unit();
        self.unread.clear();
        self.sent.clear();
        for (block, copy) in self.copies.iter_mut().enumerate() {
            let to = block * unit..(block + 1) * unit;
            match self.device.read(block) {
                Some(now) => {
                    if !copy.as_ref().is_some_and(|copy| Rc::ptr_eq(copy, &now)) {
                        self.image[to].copy_from_slice(now.bytes());
                        *copy = Some(now);
                    }
                }
                None => {
                    self.image[to.clone()].fill(0);
                    *copy = None;
                    self.unread.extend(to.start / LINE..to.end / LINE);
                }
            }
        }
    }

    fn in_image(&mut self, at: u64, bytes: usize, what: &str) -> Option<Range<usize>> {
        let range = at as usize..(at as usize).saturating_add(bytes);
        let lines = range.start.is_multiple_of(LINE) && bytes.is_multiple_of(LINE);
        if !lines || range.end > self.image.len() {
            self.misuse.get_or_insert(format!("{what} of {bytes} bytes at {at}"));
            return None;
        }
        Some(range)
    }

    fn write(&mut self, at: u64, src: &[u8]) {
        let Some(range) = self.in_image(at, src.len(), "store") else { return };
        let unit = self.device.unit();
        self.image[range.clone()].copy_from_slice(src);
        self.copies[range.start / unit..range.end.div_ceil(unit)].fill(None);
        if !self.unread.is_empty() {
            self.unread.retain(|line| !(range.start / LINE..range.end / LINE).contains(line));
        }
    }

    fn persist(&mut self, at: u64, bytes: usize, more: bool) -> Persisted {
        let Some(range) = self.in_image(at, bytes, "persist") else {
            return Persisted::WriteFailed;
        };
        let end = match self.persist_ends.is_empty() {
            true => Persisted::Done,
            false => self.persist_ends.remove(0),
        };
        let fua = self.durable == Durable::Through;
        let write = self.device.send_write(at, &self.image[range], fua, Path::Straight);
        let landed = match end {
            Persisted::WriteFailed => End::WriteFailed(crate::device::Landed::First(0)),
            _ => End::Done,
        };
        if !self.device.end(write, landed, None) {
            return Persisted::WriteFailed;
        }
        if more || fua {
            return Persisted::Done;
        }
        let flush = self.device.send_flush();
        let dropped = match end {
            Persisted::FlushFailed => End::CacheDropped { shown: true },
            _ => End::Done,
        };
        match self.device.end(flush, dropped, None) {
            true => Persisted::Done,
            false => Persisted::FlushFailed,
        }
    }
}

/// The engine has one in its media; the simulator looks at it between calls.
#[derive(Clone)]
pub struct Ssd(Rc<RefCell<State>>);

impl Store for Ssd {
    fn size(&self) -> u64 {
        self.state().image.len() as u64
    }

    fn write(&self, at: u64, src: &[u8]) {
        self.state_mut().write(at, src);
    }

    /// Content that must be durable goes by requests and persist.
    fn fence(&self, _: u64, _: usize) {}

    fn read(&self, at: u64, bytes: usize, take: impl FnOnce(&[u8])) -> bool {
        let state = self.state();
        let range = at as usize..(at as usize).saturating_add(bytes);
        let lines = range.start.is_multiple_of(LINE) && bytes.is_multiple_of(LINE);
        if !lines || range.end > state.image.len() {
            drop(state);
            return self.state_mut().in_image(at, bytes, "read").is_some();
        }
        if !state.unread.is_empty() {
            let mut unread = state.unread.range(range.start / LINE..range.end / LINE);
            if unread.next().is_some() {
                return false;
            }
        }
        take(&state.image[range]);
        true
    }
}

impl BlockStore for Ssd {
    fn persist(&self, at: u64, bytes: usize, more: bool) -> Persisted {
        self.state_mut().persist(at, bytes, more)
    }
}

pub type Engine = forebay_engine::Engine<Soft<Ssd>>;

impl Ssd {
    pub fn new(disk: Disk, durable: Durable) -> Self {
        let copies = vec![None; disk.len()];
        let image = vec![0; disk.bytes()];
        let mut state = State {
            device: Device::new(disk),
            durable,
            image,
            copies,
            unread: BTreeSet::new(),
            sent: BTreeMap::new(),
            persist_ends: Vec::new(),
            misuse: None,
        };
        state.read();
        Self(Rc::new(RefCell::new(state)))
    }

    /// Not for longer than until the next call of the engine.
    pub fn state(&self) -> Ref<'_, State> {
        self.0.borrow()
    }

    pub fn state_mut(&self) -> RefMut<'_, State> {
        self.0.borrow_mut()
    }

    /// The machine starts with this disk.
    pub fn start(&self, disk: &Disk) {
        let state = &mut *self.state_mut();
        state.device = Device::new(disk.clone());
        state.persist_ends.clear();
        state.misuse = None;
        state.read();
    }

    /// For the engine, for one opening.
    pub fn media(&self) -> Soft<Ssd> {
        let (unit, durable) = (self.state().device.unit() as u32, self.state().durable);
        Soft::grouped(self.clone(), unit, durable)
    }

    /// Sends what the engine wants to be sent.
    pub fn send(&self, io: Request, path: Path) {
        let state = &mut *self.state_mut();
        let id = match io.kind {
            sys::FBY_MEDIUM_FLUSH => state.device.send_flush(),
            _ => {
                let Some(range) = state.in_image(io.at, io.n as usize, "write") else { return };
                let fua = io.flags & sys::FBY_MEDIUM_FUA != 0 || state.durable == Durable::Through;
                state.device.send_write(io.at, &state.image[range], fua, path)
            }
        };
        state.sent.insert(id, io);
    }

    /// The newest request in flight.
    pub fn newest(&self) -> Option<(u32, Request)> {
        self.state().sent.last_key_value().map(|(id, io)| (*id, *io))
    }

    pub fn in_flight(&self) -> Vec<(u32, Kind)> {
        self.state().device.in_flight()
    }

    /// Ends a request; the engine is to be told of it, and whether it went well.
    pub fn end(&self, id: u32, end: End) -> Option<(Request, bool)> {
        let state = &mut *self.state_mut();
        let io = state.sent.remove(&id)?;
        let range = io.at as usize..(io.at + io.n) as usize;
        let now = (io.kind == sys::FBY_MEDIUM_WRITE).then(|| &state.image[range]);
        let ok = state.device.end(id, end, now);
        Some((io, ok))
    }

    /// The cuts since the last call.
    pub fn events(&self) -> Vec<Cut> {
        self.state_mut().device.events()
    }

    /// The engine broke the contract of the port, or of the device.
    pub fn misuse(&self) -> Option<String> {
        let state = &mut *self.state_mut();
        state.misuse.take().or_else(|| state.device.misuse())
    }
}
