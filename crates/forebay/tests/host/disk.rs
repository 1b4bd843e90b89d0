// SPDX-License-Identifier: MIT OR Apache-2.0
//! An origin with a volatile cache, and with whatever a test does to its requests.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use forebay::*;

pub const SIZE: usize = 4 << 20;

/// Called before a request takes effect; an error is returned for the request.
type Hook = Arc<dyn Fn(&str, u64) -> io::Result<()> + Send + Sync>;

pub struct State {
    pub now: Vec<u8>,
    pub durable: Vec<u8>,
    /// Writes, discards and zeroes in flight.
    busy: Vec<(u64, u64)>,
    flushing: bool,
    /// Two flushes, or two writes of one block, were in flight at once.
    pub met: Option<String>,
}

#[derive(Clone)]
pub struct Disk {
    state: Arc<Mutex<State>>,
    hook: Arc<Mutex<Option<Hook>>>,
    id: MemOrigin,
}

impl std::fmt::Debug for Disk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Disk")
    }
}

impl Disk {
    pub fn new() -> Disk {
        let state = State {
            now: vec![0; SIZE],
            durable: vec![0; SIZE],
            busy: Vec::new(),
            flushing: false,
            met: None,
        };
        Disk {
            state: Arc::new(Mutex::new(state)),
            hook: Arc::default(),
            id: MemOrigin::new(SIZE).unwrap(),
        }
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    pub fn hook(&self, f: impl Fn(&str, u64) -> io::Result<()> + Send + Sync + 'static) {
        *self.hook.lock().unwrap() = Some(Arc::new(f));
    }

    /// A call of the hook that panicked left its marks.
    pub fn forget_calls(&self) {
        let mut s = self.state();
        s.flushing = false;
        s.busy.clear();
    }

    /// Drops all data that was not flushed.
    pub fn lose(&self) {
        let mut s = self.state();
        let State { now, durable, .. } = &mut *s;
        now.copy_from_slice(durable);
    }

    fn call(&self, op: &str, offset: u64) -> io::Result<()> {
        let hook = self.hook.lock().unwrap().clone();
        hook.map_or(Ok(()), |f| f(op, offset))
    }

    fn change(&self, op: &str, offset: u64, len: u64, f: impl FnOnce(&mut [u8])) -> io::Result<()> {
        let blocks = (offset / 4096, (offset + len).div_ceil(4096));
        {
            let mut s = self.state();
            if s.busy.iter().any(|b| b.0 < blocks.1 && blocks.0 < b.1) {
                s.met = Some(format!("{op} of blocks {blocks:?} beside another"));
            }
            s.busy.push(blocks);
        }
        let result = self.call(op, offset);
        let mut s = self.state();
        let at = s.busy.iter().position(|b| *b == blocks).unwrap();
        s.busy.swap_remove(at);
        if result.is_ok() {
            f(&mut s.now[offset as usize..(offset + len) as usize]);
        }
        result
    }

    pub fn assert_unmet(&self) {
        assert_eq!(self.state().met, None);
    }
}

impl Origin for Disk {
    fn size_bytes(&self) -> u64 {
        SIZE as u64
    }

    fn logical_block(&self) -> u32 {
        512
    }

    fn identity(&self) -> String {
        self.id.identity()
    }

    fn info(&self) -> OriginInfo {
        self.id.info()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        buf.copy_from_slice(&self.state().now[offset as usize..offset as usize + buf.len()]);
        Ok(())
    }

    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.change("write", offset, data.len() as u64, |b| b.copy_from_slice(data))
    }

    fn flush(&self) -> io::Result<()> {
        let mark = {
            let mut s = self.state();
            if std::mem::replace(&mut s.flushing, true) {
                s.met = Some("two flushes".into());
            }
            s.now.clone()
        };
        let result = self.call("flush", 0);
        let mut s = self.state();
        s.flushing = false;
        if result.is_ok() {
            s.durable = mark;
        }
        result
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.change("discard", offset, len, |_| {})
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> io::Result<()> {
        self.change("zero", offset, len, |b| b.fill(0))
    }
}
