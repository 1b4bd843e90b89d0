// SPDX-License-Identifier: MIT OR Apache-2.0
//! An open pool: requests, destage, and a look inside.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use forebay_sys as sys;

use crate::code::{decision, done, Code, Decision, Result, Wait};
use crate::media::{Media, Medium};
use crate::memory::Memory;
use crate::shown::Shown;

/// An open pool, recovered and usable, with all that it lies in.  Dropped without
/// [`Engine::close`] it is what a process that dies leaves.
///
/// Calls may come from any number of threads.  Those that the contract wants one at
/// a time (volumes, logs, options, destage steps) take a lock here, and may wait for the pool's
/// disk with it.  So no call that only reads takes it: what such a call needs is in `Shown`.
pub struct Engine<M: Medium = Arc<Media>> {
    pub(crate) pool: *mut sys::fby_pool,
    /// This opening's number: a request ends on the pool on which it began.
    pub(crate) opening: u64,
    admin: Mutex<Admin>,
    pub(crate) shown: Shown,
    memory: Memory,
    media: M,
}

/// Destage memory of the volumes that are attached.
pub(crate) type Admin = HashMap<u16, Arc<Memory>>;

// SAFETY: the engine may be called from any thread; the methods here take a lock for calls that
// exclude each other.
unsafe impl<M: Medium + Send> Send for Engine<M> {}
// SAFETY: as above; media that threads may not share keep the engine to one.
unsafe impl<M: Medium + Sync> Sync for Engine<M> {}

impl<M: Medium> std::fmt::Debug for Engine<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("opening", &self.opening).finish_non_exhaustive()
    }
}

/// A write of up to 64 KiB, step by step: begin, copy, commit, publish.  New, or
/// published, it can begin.
#[derive(Debug, Default)]
pub struct Write {
    raw: Box<sys::fby_write>,
    /// The opening that it began on; 0: it has not begun.
    began: u64,
}

impl Write {
    /// Sectors that it takes of the request, from the first on.
    pub fn nsectors(&self) -> u32 {
        self.raw.nsectors
    }
}

/// The result of reading a block.
#[derive(Clone, Copy, Debug)]
pub struct BlockRead {
    /// DONE, ORIGIN if some sectors are to be read there, or `FBY_E_LOST`.
    pub result: Result<Decision>,
    /// Masks of sectors.
    pub origin: u8,
    pub lost: u8,
}

impl BlockRead {
    /// The masks, lost sectors being no error.
    pub fn masks(self) -> Result<(u8, u8)> {
        match self.result {
            Ok(_) | Err(Code(sys::FBY_E_LOST)) => Ok((self.origin, self.lost)),
            Err(e) => Err(e),
        }
    }
}

/// A request of destage for the origin of a volume.
#[derive(Debug)]
pub struct Io {
    pub id: u32,
    pub volume: u16,
    /// `FBY_IO_x`
    pub op: u8,
    /// Bytes.
    pub offset: u64,
    pub len: u64,
    /// Data of a write; null otherwise.
    buf: *const u8,
    /// The memory that contains buf.
    _memory: Arc<Memory>,
    opening: u64,
}

// SAFETY: the request is the only one to use its buffer until it is completed,
// and keeps the memory that it lies in.
unsafe impl Send for Io {}

impl Io {
    /// The data of a write.
    pub fn data(&self) -> &[u8] {
        if self.op != sys::FBY_IO_WRITE {
            return &[];
        }
        // SAFETY: the engine hands out len bytes of the memory kept here and
        // leaves them alone until the request is completed, which consumes it.
        unsafe { std::slice::from_raw_parts(self.buf, self.len as usize) }
    }
}

/// The next action after a destage step.
#[derive(Debug)]
pub enum Step {
    Submit(Io),
    Again,
    /// Nothing until a completion, a wake for destage, or this time.
    Sleep {
        next_ns: u64,
    },
}

/// One that has to wait for requests of its device is not closed.
fn closed(decision: Result<Decision>) -> Result<()> {
    match decision? {
        Decision::Done => Ok(()),
        _ => Err(Code(sys::FBY_E_BUSY)),
    }
}

impl<M: Medium> Engine<M> {
    pub(crate) fn of(pool: *mut sys::fby_pool, memory: Memory, media: M) -> Engine<M> {
        static OPENINGS: AtomicU64 = AtomicU64::new(0);
        let opening = 1 + OPENINGS.fetch_add(1, Ordering::Relaxed);
        Engine { pool, opening, admin: Mutex::default(), shown: Shown::default(), memory, media }
    }

    /// For a call that excludes others and changes nothing that is shown; see [`Engine::change`].
    pub(crate) fn admin(&self) -> MutexGuard<'_, Admin> {
        self.admin.lock().unwrap_or_else(|e| e.into_inner())
    }

    pub fn media(&self) -> &M {
        &self.media
    }

    /// Memory of the pool's index.
    pub fn memory_bytes(&self) -> u64 {
        self.memory.len() as u64
    }

    pub fn destage_memory_bytes(&self) -> u64 {
        self.shown.get().destage_bytes
    }

    /// Seals everything and marks the pool clean; then it is not usable any more.
    /// Refused while a volume is attached: without one there is no request, and
    /// destage does nothing.  A grouped pool is busy while something is to be written first: send
    /// what `medium_next` gives, and call again.
    pub fn close(&self) -> Result<()> {
        let admin = self.admin();
        if !admin.is_empty() {
            return Err(Code(sys::FBY_E_BUSY));
        }
        // SAFETY: no request is in flight, since no volume is attached, and
        // admin keeps one from being attached meanwhile.
        closed(decision(unsafe { sys::fby_pool_close(self.pool) }))
    }

    /// Closes the pool with volumes attached: nobody else has the pool, so nothing runs.
    pub fn close_attached(&mut self) -> Result<()> {
        // SAFETY: no call is under way.
        closed(decision(unsafe { sys::fby_pool_close(self.pool) }))
    }

    pub fn options(&self) -> sys::fby_options {
        self.shown.get().options
    }

    pub fn set_options(&self, o: &sys::fby_options) -> Result<()> {
        let _change = self.change();
        // SAFETY: the pool is open; the lock keeps setters apart.
        done(unsafe { sys::fby_pool_set_options(self.pool, o) })
    }

    pub fn info(&self) -> sys::fby_pool_info {
        let mut info = sys::fby_pool_info::default();
        // SAFETY: the pool is open; info is ours.
        unsafe { sys::fby_pool_info(self.pool, &mut info) };
        info
    }

    // --- requests ----------------------------------------------------------

    /// Writes; `done` counts sectors, `wake` collects whom to wake.
    #[inline]
    pub fn write(
        &self,
        volume: u16,
        sector: u64,
        data: &[u8],
        done: &mut u32,
        wake: &mut u32,
    ) -> Result<Decision> {
        let nsectors = (data.len() / 512) as u32;
        // SAFETY: the pool is open; data has nsectors * 512 bytes.
        decision(unsafe {
            let buf = data.as_ptr().cast();
            sys::fby_write(self.pool, volume, sector, nsectors, buf, done, wake)
        })
    }

    /// DONE: it has begun, and is to be copied, committed and published, without a
    /// wait for another write.
    pub fn write_begin(
        &self,
        w: &mut Write,
        volume: u16,
        sector: u64,
        nsectors: u32,
    ) -> Result<Decision> {
        assert_eq!(w.began, 0, "it has begun before");
        // SAFETY: the pool is open; w is not in use.
        let decision = decision(unsafe {
            sys::fby_write_begin(self.pool, &mut *w.raw, volume, sector, nsectors)
        })?;
        if decision == Decision::Done {
            w.began = self.opening;
        }
        Ok(decision)
    }

    /// `data` begins `skip` bytes before what this write takes.
    pub fn write_copy(&self, w: &mut Write, data: &[u8], skip: u64) {
        let vec = sys::fby_vec { base: data.as_ptr().cast(), len: data.len() as u32 };
        self.copy(w, &[vec], data.len() as u64, skip);
    }

    /// Copies the data of a write from pieces of any length.
    pub fn write_copy_pieces(&self, w: &mut Write, pieces: &[&[u8]], skip: u64) {
        let vec = |p: &&[u8]| sys::fby_vec { base: p.as_ptr().cast(), len: p.len() as u32 };
        let have = pieces.iter().map(|p| p.len() as u64).sum();
        self.copy(w, &pieces.iter().map(vec).collect::<Vec<_>>(), have, skip);
    }

    /// The vectors are of slices that are borrowed, `have` bytes in all.
    fn copy(&self, w: &mut Write, vec: &[sys::fby_vec], have: u64, skip: u64) {
        assert_eq!(w.began, self.opening);
        let end = skip.checked_add(u64::from(w.nsectors()) * 512);
        assert!(end.is_some_and(|end| have >= end));
        assert!(vec.iter().map(|v| u64::from(v.len)).sum::<u64>() == have);
        // SAFETY: w was begun on this pool; the pieces hold all its sectors.
        unsafe {
            sys::fby_write_copy(self.pool, &mut *w.raw, vec.as_ptr(), vec.len() as u32, skip);
        }
    }

    pub fn write_commit(&self, w: &mut Write) {
        assert_eq!(w.began, self.opening);
        // SAFETY: w was begun on this pool.
        unsafe { sys::fby_write_commit(self.pool, &mut *w.raw) };
    }

    /// Returns the wake mask.
    pub fn write_publish(&self, w: &mut Write) -> u32 {
        assert_eq!(w.began, self.opening);
        // SAFETY: w was begun on this pool, and ends here.
        unsafe { sys::fby_write_publish(self.pool, &mut *w.raw) };
        assert_eq!(w.raw.ticket, 0, "the media is memory: published is durable");
        w.began = 0;
        w.raw.wake
    }

    /// Reads what is cached of the sectors [first, first + dst sectors) of a block.
    #[inline]
    pub fn read_block(&self, volume: u16, block: u64, first: u32, dst: &mut [u8]) -> BlockRead {
        let n = (dst.len() / 512) as u32;
        assert!((1..=8).contains(&n) && first <= 8 - n);
        let (mut origin, mut lost) = (0, 0);
        // SAFETY: the pool is open; dst has n sectors.
        let r = unsafe {
            let dst = dst.as_mut_ptr().cast();
            sys::fby_read_block(self.pool, volume, block, first, n, dst, &mut origin, &mut lost)
        };
        BlockRead { result: decision(r), origin, lost }
    }

    /// Might a write have to wait before it is acknowledged?
    pub fn write_throttled(&self, volume: u16) -> bool {
        // SAFETY: the pool is open.
        unsafe { sys::fby_write_throttled(self.pool, volume) }
    }

    /// Nanoseconds that a write should wait before it is acknowledged.
    pub fn write_delay(&self, volume: u16, nsectors: u32, now_ns: u64) -> u64 {
        // SAFETY: the pool is open.
        unsafe { sys::fby_write_delay(self.pool, volume, nsectors, now_ns) }
    }

    /// Brackets a read of the origin that somebody waits for.
    pub fn origin_foreground(&self, volume: u16, begin: bool) {
        // SAFETY: the pool is open.
        unsafe { sys::fby_origin_foreground(self.pool, volume, begin) }
    }

    /// Announces that somebody is about to sleep for this.
    pub fn wait_prepare(&self, wait: Wait) {
        let d = match wait {
            Wait::Block => sys::FBY_WAIT_BLOCK,
            Wait::Slot => sys::FBY_WAIT_SLOT,
            Wait::Space => sys::FBY_WAIT_SPACE,
            Wait::Flush | Wait::Ticket => return,
        };
        // SAFETY: the pool is open.
        unsafe { sys::fby_wait_prepare(self.pool, d as u32) }
    }

    // --- destage -------------------------------------------------------------

    /// One step, at a time of the caller's clock.
    pub fn destage_step(&self, now_ns: u64, wake: &mut u32) -> Result<Step> {
        let admin = self.admin();
        let mut io = sys::fby_io::default();
        let mut next_ns = u64::MAX;
        // SAFETY: the pool is open; admin keeps steps and volume calls apart.
        let r = unsafe { sys::fby_destage_step(self.pool, now_ns, &mut io, &mut next_ns, wake) };
        match decision(r)? {
            Decision::Origin => Ok(Step::Submit(Io {
                id: io.id,
                volume: io.volume,
                op: io.op,
                offset: io.sector * 512,
                len: io.nsectors * 512,
                buf: io.buf.cast(),
                _memory: admin.get(&io.volume).cloned().ok_or(Code(sys::FBY_E_INVARIANT))?,
                opening: self.opening,
            })),
            Decision::Again => Ok(Step::Again),
            Decision::Done => Ok(Step::Sleep { next_ns }),
            Decision::Wait(_) | Decision::Cached => Err(Code(sys::FBY_E_INVARIANT)),
        }
    }

    /// `errno`: 0, or why the origin did not do it.
    pub fn destage_complete(&self, io: Io, errno: i32) {
        assert_eq!(io.opening, self.opening);
        // SAFETY: the pool is open; the request is one that a step handed out
        // and is consumed, so it is completed once.
        unsafe { sys::fby_destage_complete(self.pool, io.id, errno) }
    }

    // --- inside --------------------------------------------------------------

    /// Verifies the invariants; the text of the first that does not hold.
    pub fn check(&self, quiet: bool) -> Result<Option<String>> {
        // All is quiet only while destage is, which seals chunks by itself.
        let _admin = quiet.then(|| self.admin());
        let mut text = [0u8; 1024];
        // SAFETY: the pool is open; text has the length given.
        let r = unsafe {
            sys::fby_check(self.pool, quiet, text.as_mut_ptr().cast(), text.len() as u32)
        };
        match done(r) {
            Ok(()) => Ok(None),
            Err(Code(sys::FBY_E_INVARIANT)) => Ok(Some(sys::text(&text).into_owned())),
            Err(e) => Err(e),
        }
    }

    /// The last damaged blocks that were found; at most `max`.
    pub fn damaged(&self, max: u32) -> Vec<sys::fby_report_block> {
        let mut out = vec![sys::fby_report_block::default(); max as usize];
        // SAFETY: the pool is open; out has room for max.
        let n = unsafe { sys::fby_damaged_list(self.pool, out.as_mut_ptr(), max) };
        out.truncate(n as usize);
        out
    }

    /// Numbers of a volume's lost blocks, ascending; at most `max`.  Of a static volume all
    /// that it holds is verified for that.
    pub fn lost_blocks(&self, volume: u16, max: usize) -> Vec<u64> {
        self.lost_and_passed_over(volume, max).0
    }

    /// How many pages its origin has refused, and the lowest block of these.  All pages of the
    /// pool are looked at for that.
    pub fn refused_pages(&self, volume: u16) -> (u32, u64) {
        let mut first = 0;
        // SAFETY: the pool is open.
        let n = unsafe { sys::fby_refused_pages(self.pool, volume, &mut first) };
        (n, first)
    }

    /// And how many pages of a static volume destage has passed over as lost that read well
    /// by now: a drain from here on takes them.
    pub fn lost_and_passed_over(&self, volume: u16, max: usize) -> (Vec<u64>, u32) {
        let (mut lost, mut at) = (Vec::new(), sys::fby_lost_at::default());
        let mut some = [sys::fby_report_block::default(); 64];
        while lost.len() < max {
            let out = some.as_mut_ptr();
            // SAFETY: the pool is open; out has room for 64.
            let n = unsafe { sys::fby_lost_list(self.pool, volume, &mut at, out, 64) };
            lost.extend(some[..n as usize].iter().map(|b| b.block));
            if n == 0 {
                break;
            }
        }
        lost.truncate(max);
        lost.sort_unstable();
        (lost, at.passed_over)
    }

    pub fn chunk_info(&self, chunk: u32) -> Result<sys::fby_chunk_info> {
        let mut info = sys::fby_chunk_info::default();
        // SAFETY: the pool is open; info is ours.
        done(unsafe { sys::fby_chunk_info(self.pool, chunk, &mut info) })?;
        Ok(info)
    }

    /// The slot of a block of a static volume.
    pub fn static_slot_info(
        &self,
        volume: u16,
        block: u64,
        check_data: bool,
    ) -> Result<sys::fby_static_slot_info> {
        let mut info = sys::fby_static_slot_info::default();
        // SAFETY: the pool is open; info is ours.
        done(unsafe {
            sys::fby_static_slot_info(self.pool, volume, block, check_data, &mut info)
        })?;
        Ok(info)
    }

    pub fn entry_info(
        &self,
        chunk: u32,
        page: u32,
        check_data: bool,
    ) -> Result<sys::fby_entry_info> {
        let mut info = sys::fby_entry_info::default();
        // SAFETY: the pool is open; info is ours.
        done(unsafe { sys::fby_entry_info(self.pool, chunk, page, check_data, &mut info) })?;
        Ok(info)
    }
}
