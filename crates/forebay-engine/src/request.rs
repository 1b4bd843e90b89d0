// SPDX-License-Identifier: MIT OR Apache-2.0
//! Clients' requests as state machines: host/client_request.h.

use std::ffi::c_int;
use std::mem::MaybeUninit;

use forebay_sys as sys;

use crate::engine::Engine;
use crate::media::Medium;

/// Parts of a read that go to the origin in one piece.
const RUNS: usize = 128;
/// Longest piece of memory shown at once: it is counted in 32 bits.
const PIECE_MAX: usize = 1 << 30;

pub use sys::fby_policy as Policy;

/// The client's, all of the request's length.
#[derive(Debug)]
pub enum Payload<'a> {
    None,
    Read(&'a mut [u8]),
    Write(&'a [u8]),
}

impl Payload<'_> {
    fn len(&self) -> Option<usize> {
        match self {
            Payload::None => None,
            Payload::Read(m) => Some(m.len()),
            Payload::Write(m) => Some(m.len()),
        }
    }

    /// Again, for one call.
    #[inline(always)]
    pub fn lend(&mut self) -> Payload<'_> {
        match self {
            Payload::None => Payload::None,
            Payload::Read(m) => Payload::Read(m),
            Payload::Write(m) => Payload::Write(m),
        }
    }
}

/// Memory of a read's parts: the caller's, or its own.
#[derive(Debug)]
pub enum Runs<'a> {
    None,
    Lent(&'a mut RunSpace),
    Own(Box<[MaybeUninit<sys::fby_run>]>),
}

pub type RunSpace = [MaybeUninit<sys::fby_run>; RUNS];

pub const NO_RUNS: RunSpace = [const { MaybeUninit::uninit() }; RUNS];

impl Runs<'_> {
    /// Memory for so many parts, or for as many as are useful.
    pub fn own(n: Option<usize>) -> Runs<'static> {
        Runs::Own(Box::new_uninit_slice(n.unwrap_or(RUNS)))
    }

    fn all(&mut self) -> &mut [MaybeUninit<sys::fby_run>] {
        match self {
            Runs::None => &mut [],
            Runs::Lent(runs) => &mut **runs,
            Runs::Own(runs) => runs,
        }
    }
}

/// The operation, its volume and range.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    pub volume: u16,
    /// `FBY_OP_x`
    pub op: u8,
    /// `FBY_REQ_x`
    pub flags: u8,
    pub sector: u64,
    pub nsectors: u64,
}

/// A request, begun and resumed by [`Engine::request_go`].
#[derive(Debug)]
#[must_use = "what it holds is held until Engine::request_end"]
pub struct Request<'r> {
    /// Only the fields that the calls have set are initialized.
    raw: MaybeUninit<sys::fby_request>,
    bytes: Option<u64>,
    runs: Runs<'r>,
    steps: Option<Box<sys::fby_write>>,
    /// The opening on which it has begun and not ended; else 0.
    opening: u64,
    called: bool,
}

// SAFETY: its pointers are to its own memory, or set at each call.
unsafe impl Send for Request<'_> {}

/// A result of the last call.
macro_rules! result {
    ($request:ident, $field:ident) => {{
        assert!($request.called, "it has not begun");
        // SAFETY: begin has set all results.
        unsafe { (&raw const (*$request.raw.as_ptr()).$field).read() }
    }};
}

impl<'r> Request<'r> {
    /// `stepped`: a write stops after each step of the engine's.
    #[inline(always)]
    pub fn new(w: Wanted, mut runs: Runs<'r>, stepped: bool) -> Request<'r> {
        let has_data = matches!(w.op, sys::FBY_OP_READ | sys::FBY_OP_WRITE);
        assert!(w.op <= sys::FBY_OP_FLUSH);
        assert!(w.op != sys::FBY_OP_READ || !runs.all().is_empty());
        let mut raw = MaybeUninit::<sys::fby_request>::uninit();
        let r = raw.as_mut_ptr();
        // SAFETY: r is to memory of the request's size; nothing is read.  What is not set here
        // is set by go, or by begin.
        unsafe {
            (&raw mut (*r).sector).write(w.sector);
            (&raw mut (*r).nsectors).write(w.nsectors);
            (&raw mut (*r).max_runs).write(runs.all().len() as u32);
            (&raw mut (*r).volume).write(w.volume);
            (&raw mut (*r).op).write(w.op);
            (&raw mut (*r).flags).write(w.flags);
            (&raw mut (*r).steps).write(std::ptr::null_mut());
            (&raw mut (*r).told).write(0);
        }
        let steps = stepped.then(Box::default);
        let bytes = has_data.then_some(w.nsectors * 512);
        Request { raw, bytes, runs, steps, opening: 0, called: false }
    }

    /// For a client's flush: the failures that it need not be told any more.
    pub fn set_told(&mut self, told: u32) {
        assert!(!self.called);
        // SAFETY: r is to memory of the request's size.
        unsafe { (&raw mut (*self.raw.as_mut_ptr()).told).write(told) };
    }

    pub fn told(&self) -> u32 {
        // SAFETY: set from the first.
        unsafe { (&raw const (*self.raw.as_ptr()).told).read() }
    }

    /// The wake mask of the last call.
    #[inline(always)]
    pub fn wake(&self) -> u32 {
        result!(self, wake)
    }

    /// `FBY_WAIT_x`
    pub fn why(&self) -> c_int {
        result!(self, why).into()
    }

    /// A wait for a ticket: that ticket, or 0.
    pub fn awaits(&self) -> u64 {
        result!(self, awaits)
    }

    /// The step of the engine's that was just made.
    pub fn step(&self) -> u8 {
        result!(self, step)
    }

    /// Sectors.
    #[inline(always)]
    pub fn done(&self) -> u64 {
        result!(self, done)
    }

    /// Sectors of these that bypassed the cache.
    pub fn past_sectors(&self) -> u64 {
        result!(self, past_sectors)
    }

    /// The sector of the block that is lost.
    pub fn lost(&self) -> u64 {
        result!(self, lost)
    }

    /// The request to the origin.
    pub fn asked(&self) -> sys::fby_asked {
        result!(self, io)
    }

    /// The parts of a read, sectors of the request.
    pub fn parts(&mut self) -> impl Iterator<Item = sys::fby_run> + '_ {
        let n = self.asked().nruns as usize;
        // SAFETY: so many were written, by the call that asked for them.
        self.runs.all()[..n].iter().map(|r| unsafe { r.assume_init() })
    }
}

impl<M: Medium> Engine<M> {
    /// Begins (`None`) or resumes it, and returns `FBY_NEXT_x` or a negative error.  The
    /// payload is that of the whole request.
    #[inline(always)]
    pub fn request_go(
        &self,
        r: &mut Request<'_>,
        policy: &Policy,
        payload: Payload<'_>,
        result: Option<c_int>,
    ) -> c_int {
        assert!(payload.len().map(|len| len as u64) == r.bytes);
        let at = if r.called { r.done() as usize * 512 } else { 0 };
        let (base, len) = match payload {
            Payload::None => (std::ptr::null(), 0),
            Payload::Read(m) => (m[at..].as_mut_ptr().cast_const(), m.len() - at),
            Payload::Write(m) => (m[at..].as_ptr(), m.len() - at),
        };
        let piece = sys::fby_vec { base: base.cast(), len: len.min(PIECE_MAX) as u32 };
        // SAFETY: the piece is the client's memory from where the request is.
        unsafe { self.go(r, policy, &raw const piece, u32::from(len > 0), result) }
    }

    /// Continues a request whose memory comes in pieces of these lengths; the rest of the memory is
    /// not given yet.
    pub fn request_go_cut(
        &self,
        r: &mut Request<'_>,
        policy: &Policy,
        payload: Payload<'_>,
        cuts: &[usize],
        result: Option<c_int>,
    ) -> c_int {
        assert!(payload.len().map(|len| len as u64) == r.bytes);
        let at = if r.called { r.done() as usize * 512 } else { 0 };
        let (base, mut left) = match payload {
            Payload::None => (std::ptr::null(), 0),
            Payload::Read(m) => (m[at..].as_mut_ptr().cast_const(), m.len() - at),
            Payload::Write(m) => (m[at..].as_ptr(), m.len() - at),
        };
        let (mut pieces, mut from) = (Vec::new(), 0);
        for cut in cuts.iter().map(|&cut| cut.min(PIECE_MAX)) {
            let len = cut.min(left);
            if len > 0 {
                let base = base.wrapping_add(from).cast();
                pieces.push(sys::fby_vec { base, len: len as u32 });
            }
            (from, left) = (from + len, left - len);
        }
        // SAFETY: the pieces are the client's memory from where the request is, in order.
        unsafe { self.go(r, policy, pieces.as_ptr(), pieces.len() as u32, result) }
    }

    /// # Safety
    /// The pieces are memory from where the request is, as long as the request or shorter,
    /// which may be written where it reads.
    #[inline(always)]
    unsafe fn go(
        &self,
        request: &mut Request<'_>,
        policy: &Policy,
        pieces: *const sys::fby_vec,
        n: u32,
        result: Option<c_int>,
    ) -> c_int {
        let begun = request.opening == self.opening;
        assert!(result.is_some() == begun && request.called == begun, "once, and in order");
        request.opening = self.opening;
        request.called = true;
        let r = request.raw.as_mut_ptr();
        let runs = request.runs.all().as_mut_ptr().cast();
        // SAFETY: the pool is open; the policy, the pieces and the steps outlive the call, and
        // are set at each; the runs are the request's own.
        let next = unsafe {
            (&raw mut (*r).pool).write(self.pool);
            (&raw mut (*r).policy).write(policy);
            (&raw mut (*r).data).write(pieces);
            (&raw mut (*r).ndata).write(n);
            (&raw mut (*r).skip).write(0);
            (&raw mut (*r).runs).write(runs);
            if let Some(steps) = &mut request.steps {
                (&raw mut (*r).steps).write(&raw mut **steps);
            }
            match result {
                None => sys::fby_request_begin(r),
                Some(result) => sys::fby_request_resume(r, result),
            }
        };
        // There is nothing to end where nobody waited for the origin.
        if next <= 0 && !result!(request, foreground) {
            request.opening = 0;
        }
        next
    }

    pub fn request_delay(&self, r: &Request<'_>, now_ns: u64) -> u64 {
        assert!(r.called);
        if r.opening != self.opening {
            return 0;
        }
        // SAFETY: the pool is open, and the request is of it and has not ended.
        unsafe { sys::fby_request_delay(r.raw.as_ptr(), now_ns) }
    }

    /// It has ended, with all that was sent; or is given up, and what the origin has of it
    /// counts as failed.  Returns the wake mask.
    #[inline(always)]
    pub fn request_end(&self, r: &mut Request<'_>) -> u32 {
        match r.opening {
            0 => 0,
            _ => self.end(r),
        }
    }

    #[cold]
    fn end(&self, r: &mut Request<'_>) -> u32 {
        assert_eq!(r.opening, self.opening);
        r.opening = 0;
        let mut wake = 0;
        // SAFETY: the pool is open; the request began on it, and ends once.
        unsafe { sys::fby_request_end(r.raw.as_mut_ptr(), &mut wake) };
        wake
    }
}
