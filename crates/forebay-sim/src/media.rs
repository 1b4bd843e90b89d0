// SPDX-License-Identifier: MIT OR Apache-2.0
//! Simulated persistent memory with the semantics of x86, at the grain of an
//! aligned 8-byte word.
//!
//! ```text
//!  engine --write--> visible (what loads see) and the list of pending lines
//!         --fence--> the calling actor's pending lines become durable
//!  cut:   durable + a choice from the pending lines = what the hardware left
//! ```
//!
//! Which choices there are depends on how a line got there:
//!
//! * non-temporal: each word of each pending line lands or not, on its own;
//! * cached, with clwb: the stores to one line land as a prefix of their
//!   order, since the line may be evicted at any moment.
//!
//! Lines land in any combination.  A word stored twice before a fence may be
//! left with the older of the two values.  A fence vouches only for what the
//! actor that issues it has stored; an actor is a simulated thread.

use std::cell::{Ref, RefCell, RefMut};
use std::collections::BTreeSet;

use forebay_engine::Store;

use crate::rng::Rng;

pub const LINE: usize = 64;
pub const LINE_WORDS: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavour {
    NonTemporal,
    Cached,
}

/// One line stored whole, its words in ascending order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LineStore {
    pub line: u32,
    pub actor: u16,
    pub words: [u64; LINE_WORDS],
}

/// The bytes of a media.
#[derive(Clone)]
pub struct Region(Vec<u8>);

impl Region {
    /// Zeroed.
    pub fn new(bytes: usize) -> Self {
        Self(vec![0; bytes])
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }

    pub fn line(&self, line: u32) -> [u64; LINE_WORDS] {
        let at = line as usize * LINE;
        let mut words = [0; LINE_WORDS];
        for (w, b) in words.iter_mut().zip(self.bytes()[at..at + LINE].chunks_exact(8)) {
            *w = u64::from_le_bytes(b.try_into().expect("8 bytes"));
        }
        words
    }

    pub fn set_line(&mut self, line: u32, words: &[u64; LINE_WORDS]) {
        let at = line as usize * LINE;
        for (w, b) in words.iter().zip(self.bytes_mut()[at..at + LINE].chunks_exact_mut(8)) {
            b.copy_from_slice(&w.to_le_bytes());
        }
    }
}

/// Requests to the media, for the golden table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub stores: u64,
    pub lines: u64,
    pub bytes: u64,
    pub fences: u64,
}

/// Events on the media, in order.
#[derive(Clone, Copy, Debug)]
pub enum MediaEvent {
    Store(LineStore),
    Fence(u16),
}

/// The media as it was just before a fence.
pub struct Capture {
    pub durable: Region,
    pub pending: Vec<LineStore>,
}

/// All of the media but what the engine sees of it.
pub struct State {
    pub visible: Region,
    pub durable: Option<Region>,
    pub pending: Vec<LineStore>,
    pub flavour: Flavour,
    pub actor: u16,
    pub counts: Counts,
    pub trace: Option<Vec<MediaEvent>>,
    poison: BTreeSet<u32>,
    armed: Option<u32>,
    captured: Option<Capture>,
    unfenced: Vec<(u16, usize, usize)>, // actor, and the bytes around all that it stored
    misuse: Option<String>,
}

impl State {
    fn store(&mut self, line: u32, words: &[u64; LINE_WORDS]) {
        self.visible.set_line(line, words);
        let store = LineStore { line, actor: self.actor, words: *words };
        if let Some(trace) = &mut self.trace {
            trace.push(MediaEvent::Store(store));
        }
        if self.durable.is_some() {
            self.pending.push(store);
        }
        if !self.poison.is_empty() {
            self.poison.remove(&line);
        }
    }

    fn write(&mut self, at: usize, src: &[u8]) {
        if !at.is_multiple_of(LINE)
            || !src.len().is_multiple_of(LINE)
            || at + src.len() > self.visible.len()
        {
            self.misuse = Some(format!("media write of {} bytes at {at}", src.len()));
            return;
        }
        self.counts.stores += 1;
        self.counts.bytes += src.len() as u64;
        self.counts.lines += (src.len() / LINE) as u64;
        let end = at + src.len();
        match self.unfenced.iter_mut().find(|u| u.0 == self.actor) {
            Some(u) => (u.1, u.2) = (u.1.min(at), u.2.max(end)),
            None => self.unfenced.push((self.actor, at, end)),
        }
        for (i, bytes) in src.chunks_exact(LINE).enumerate() {
            let mut words = [0; LINE_WORDS];
            for (w, b) in words.iter_mut().zip(bytes.chunks_exact(8)) {
                *w = u64::from_le_bytes(b.try_into().expect("8 bytes"));
            }
            self.store((at / LINE + i) as u32, &words);
        }
    }

    fn load(&mut self, image: &[u8]) {
        self.visible.bytes_mut().copy_from_slice(image);
        if let Some(durable) = &mut self.durable {
            durable.bytes_mut().copy_from_slice(image);
        }
        self.pending.clear();
        self.unfenced.clear();
        self.armed = None;
        self.captured = None;
    }

    /// `[start, start + n)` has to hold all that the actor stored: media that need a
    /// system call for it make nothing else durable.
    fn fence(&mut self, start: usize, n: usize) {
        self.counts.fences += 1;
        if let Some(i) = self.unfenced.iter().position(|u| u.0 == self.actor) {
            let (_, first, end) = self.unfenced.swap_remove(i);
            if first < start || end > start.saturating_add(n) {
                self.misuse =
                    Some(format!("fence of {n} bytes at {start} after stores to {first}..{end}"));
            }
        }
        match self.armed {
            Some(0) => {
                self.armed = None;
                if let Some(durable) = &self.durable {
                    self.captured =
                        Some(Capture { durable: durable.clone(), pending: self.pending.clone() });
                }
            }
            Some(n) => self.armed = Some(n - 1),
            None => {}
        }
        if let Some(trace) = &mut self.trace {
            trace.push(MediaEvent::Fence(self.actor));
        }
        if let Some(durable) = &mut self.durable {
            settle(&mut self.pending, self.actor, |s| durable.set_line(s.line, &s.words));
        }
    }
}

/// A fence of `actor`: its stores are durable, and with them what was stored
/// to the same lines before; the rest stays pending.
pub fn settle(pending: &mut Vec<LineStore>, actor: u16, mut durable: impl FnMut(&LineStore)) {
    if pending.iter().all(|s| s.actor == actor) {
        pending.iter().for_each(&mut durable);
        pending.clear();
        return;
    }
    let last: std::collections::HashMap<u32, usize> = pending
        .iter()
        .enumerate()
        .filter(|(_, s)| s.actor == actor)
        .map(|(i, s)| (s.line, i))
        .collect();
    let mut at = 0;
    pending.retain(|s| {
        let done = last.get(&s.line).is_some_and(|&l| at <= l);
        at += 1;
        if done {
            durable(s);
        }
        !done
    });
}

/// One way for the pending lines to have landed, chosen at random: by line, by
/// page, nearly all or nearly none, some torn.
pub fn crash_image(durable: &mut Region, pending: &[LineStore], flavour: Flavour, rng: &mut Rng) {
    let style = rng.below(4);
    let page_lands: u64 = rng.next_u64();
    for s in pending {
        let page = s.line / 64;
        let whole = match style {
            0 => rng.percent(50),
            1 => rng.percent(97),
            2 => rng.percent(3),
            _ => page_lands >> (page % 64) & 1 == 1,
        };
        let torn = rng.one_in(if style == 0 { 3 } else { 40 });
        let mask = match (torn, flavour) {
            (false, _) if whole => 0xff,
            (false, _) => 0,
            (true, Flavour::NonTemporal) => rng.next_u64() as u8,
            (true, Flavour::Cached) => ((1u16 << rng.below(9)) - 1) as u8,
        };
        let mut words = durable.line(s.line);
        for (i, w) in words.iter_mut().enumerate().filter(|(i, _)| mask >> i & 1 == 1) {
            *w = s.words[i];
        }
        durable.set_line(s.line, &words);
    }
}

/// The media that the engine is given.  The engine stores to it in its calls, and
/// the simulator looks at it between them.
pub struct Media(RefCell<State>);

impl Store for Media {
    fn size(&self) -> u64 {
        self.state().visible.len() as u64
    }

    fn write(&self, at: u64, src: &[u8]) {
        self.state_mut().write(at as usize, src);
    }

    fn fence(&self, at: u64, bytes: usize) {
        self.state_mut().fence(at as usize, bytes);
    }

    fn read(&self, at: u64, bytes: usize, take: impl FnOnce(&[u8])) -> bool {
        let state = self.state();
        let at = at as usize;
        if !at.is_multiple_of(LINE)
            || !bytes.is_multiple_of(LINE)
            || at.checked_add(bytes).is_none_or(|e| e > state.visible.len())
        {
            drop(state);
            self.state_mut().misuse = Some(format!("media read of {bytes} bytes at {at}"));
            return false;
        }
        let (first, last) = ((at / LINE) as u32, ((at + bytes) / LINE) as u32);
        if !state.poison.is_empty() && state.poison.range(first..last).next().is_some() {
            return false;
        }
        take(&state.visible.bytes()[at..at + bytes]);
        true
    }
}

impl Media {
    /// Media that remembers what is durable and what is pending.
    pub fn new(bytes: usize, flavour: Flavour) -> Self {
        Self::with(Region::new(bytes), true, flavour)
    }

    /// Media that only shows and records: for the explorer, which keeps its own books.
    pub fn bare(bytes: usize) -> Self {
        Self::with(Region::new(bytes), false, Flavour::NonTemporal)
    }

    fn with(visible: Region, books: bool, flavour: Flavour) -> Self {
        let durable = books.then(|| visible.clone());
        Self(RefCell::new(State {
            visible,
            durable,
            pending: Vec::new(),
            flavour,
            actor: 0,
            counts: Counts::default(),
            trace: None,
            poison: BTreeSet::new(),
            armed: None,
            captured: None,
            unfenced: Vec::new(),
            misuse: None,
        }))
    }

    /// Not for longer than until the next call of the engine.
    pub fn state(&self) -> Ref<'_, State> {
        self.0.borrow()
    }

    /// Likewise, to change it.
    pub fn state_mut(&self) -> RefMut<'_, State> {
        self.0.borrow_mut()
    }

    /// The visible content.
    pub fn image(&self) -> Vec<u8> {
        self.state().visible.bytes().to_vec()
    }

    pub fn set_actor(&self, actor: u16) {
        self.state_mut().actor = actor;
    }

    /// The engine broke the port's contract.
    pub fn misuse(&self) -> Option<String> {
        self.state_mut().misuse.take()
    }

    /// Keep a copy of the media just before the `n`th fence from now.
    pub fn arm(&self, n: u32) {
        self.state_mut().armed = Some(n);
        self.state_mut().captured = None;
    }

    pub fn disarm(&self) {
        self.state_mut().armed = None;
        self.state_mut().captured = None;
    }

    pub fn captured(&self) -> bool {
        self.state().captured.is_some()
    }

    /// Power cut: at the captured fence if there is one, else now.
    pub fn power_cut(&self, rng: &mut Rng) {
        let s = &mut *self.state_mut();
        let (mut image, pending) = match s.captured.take() {
            Some(c) => (c.durable, c.pending),
            None => (s.durable.clone().expect("media with books"), std::mem::take(&mut s.pending)),
        };
        crash_image(&mut image, &pending, s.flavour, rng);
        s.load(image.bytes());
    }

    /// The process dies and the machine does not: every store is there.
    pub fn process_kill(&self) {
        let bytes = self.image();
        self.load(&bytes);
    }

    /// The image is what is visible and durable.
    pub fn load(&self, image: &[u8]) {
        self.state_mut().load(image);
    }

    /// Flips one bit, as the media would: in what is seen and in what stays.
    pub fn flip(&self, bit: u64) {
        let (at, mask) = ((bit / 8) as usize, 1u8 << (bit % 8));
        let s = &mut *self.state_mut();
        s.visible.bytes_mut()[at] ^= mask;
        if let Some(durable) = &mut s.durable {
            durable.bytes_mut()[at] ^= mask;
        }
    }

    /// The lines report an error when read, until they are written; an unchecked load would see
    /// garbage.
    pub fn poison(&self, first_line: u32, lines: u32) {
        let s = &mut *self.state_mut();
        for line in first_line..first_line + lines {
            s.poison.insert(line);
            let garbage = [0xdead_dead_dead_dead_u64; LINE_WORDS];
            s.visible.set_line(line, &garbage);
            if let Some(durable) = &mut s.durable {
                durable.set_line(line, &garbage);
            }
        }
    }

    pub fn poisoned(&self) -> usize {
        self.state().poison.len()
    }

    pub fn clear_poison(&self) {
        self.state_mut().poison.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(m: &mut Media, actor: u16, line: u32, value: u64) {
        m.set_actor(actor);
        let bytes: Vec<u8> = (0..8).flat_map(|_| value.to_le_bytes()).collect();
        m.state_mut().write(line as usize * LINE, &bytes);
    }

    fn values(m: &Media, line: u32) -> [u64; 8] {
        m.state().durable.as_ref().unwrap().line(line)
    }

    #[test]
    fn a_fence_vouches_for_its_own_actor_only() {
        let mut m = Media::new(4096, Flavour::NonTemporal);
        store(&mut m, 1, 3, 7);
        store(&mut m, 2, 4, 8);
        m.set_actor(1);
        m.state_mut().fence(0, 4096);
        assert_eq!(values(&m, 3), [7; 8]);
        assert_eq!(values(&m, 4), [0; 8]);
        assert_eq!(m.state().pending.len(), 1);
    }

    #[test]
    fn a_fence_that_leaves_out_a_store_is_misuse() {
        let mut m = Media::new(4096, Flavour::NonTemporal);
        for (start, n, misused) in
            [(128, 64, false), (0, 192, false), (128, 63, true), (192, 999, true)]
        {
            store(&mut m, 0, 2, 7);
            m.state_mut().fence(start, n);
            assert_eq!(m.misuse().is_some(), misused, "{n} bytes at {start}");
        }
    }

    #[test]
    fn a_cut_leaves_words_of_any_unfenced_value() {
        let mut seen = BTreeSet::new();
        for seed in 0..200 {
            let mut m = Media::new(4096, Flavour::NonTemporal);
            store(&mut m, 0, 1, 5);
            store(&mut m, 0, 1, 6);
            m.power_cut(&mut Rng::new(seed));
            seen.extend(values(&m, 1));
        }
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), [0, 5, 6]);
    }

    #[test]
    fn cached_lines_land_as_prefixes() {
        for seed in 0..200 {
            let mut m = Media::new(4096, Flavour::Cached);
            store(&mut m, 0, 1, 5);
            m.power_cut(&mut Rng::new(seed));
            let v = values(&m, 1);
            let n = v.iter().take_while(|&&w| w == 5).count();
            assert!(v[n..].iter().all(|&w| w == 0), "{v:?}");
        }
    }

    #[test]
    fn capture_is_the_state_before_the_fence() {
        let mut m = Media::new(4096, Flavour::NonTemporal);
        m.arm(1);
        store(&mut m, 0, 1, 5);
        m.state_mut().fence(0, 4096);
        store(&mut m, 0, 1, 6);
        m.state_mut().fence(0, 4096);
        store(&mut m, 0, 2, 9);
        m.state_mut().fence(0, 4096);
        let c = m.state_mut().captured.take().unwrap();
        assert_eq!(c.durable.line(1), [5; 8]);
        assert_eq!(c.pending.len(), 1);
    }
}
