// SPDX-License-Identifier: MIT OR Apache-2.0
//! The base of the explorers of crashes: media with its durable content at a cut, the engine on
//! it, and images that are applied and undone one after the other.

use std::cell::Ref;
use std::collections::HashSet;
use std::hash::{BuildHasherDefault, Hasher};

use crate::engine::Engine;
use crate::images::{hash_line, hash_region, Image, Images, Layout, Overlay, Words};
use crate::media::{settle, Flavour, LineStore, Media, MediaEvent, Region};

/// Hashes are used as they are.
#[derive(Default)]
pub struct Same(u64);

impl Hasher for Same {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, _: &[u8]) {
        unreachable!("only u64")
    }
    fn write_u64(&mut self, n: u64) {
        self.0 = n;
    }
}

pub type Hashes = HashSet<u64, BuildHasherDefault<Same>>;

#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Most images of one cut; more are sampled.
    pub images: u64,
    /// Most images of one cut inside a recovery.
    pub nested: u64,
    /// One of so many images has its recovery cut too.
    pub nested_every: u64,
    /// One of so many images is used further after recovery.
    pub go_on_every: u64,
}

/// Lays lines over the media, and begins to record.
pub fn lay<'a>(engine: &Engine, lines: impl Iterator<Item = (u32, &'a Words)>) {
    let state = &mut *engine.media.state_mut();
    state.actor = 0;
    state.trace.get_or_insert_default().clear();
    for (line, words) in lines {
        state.visible.set_line(line, words);
    }
}

/// Restores the base: undoes recorded stores and applied lines.
pub fn take_away(engine: &mut Engine, base: &Region, lines: impl Iterator<Item = u32>) {
    if engine.is_open() {
        engine.abandon();
    }
    let state = &mut *engine.media.state_mut();
    let trace = state.trace.take().unwrap_or_default();
    for event in &trace {
        if let MediaEvent::Store(s) = event {
            state.visible.set_line(s.line, &base.line(s.line));
        }
    }
    for line in lines {
        state.visible.set_line(line, &base.line(line));
    }
    state.trace = Some(trace);
}

pub struct Bed {
    pub engine: Engine,
    /// The durable content at the cut; the engine's media is equal to it between images.
    base: Region,
    base_hash: u64,
    layout: Layout,
}

impl Bed {
    pub fn new(start: Region, layout: Layout) -> Self {
        let media = Media::bare(start.len());
        media.load(start.bytes());
        let base_hash = hash_region(&start);
        Self { engine: Engine::new(media), base: start, base_hash, layout }
    }

    /// Events recorded since the last image was applied.
    pub fn trace(&self) -> Ref<'_, [MediaEvent]> {
        Ref::map(self.engine.media.state(), |s| s.trace.as_deref().unwrap_or(&[]))
    }

    /// The image as the media, nothing recorded yet.
    pub fn load(&mut self, image: &Image) {
        lay(&self.engine, image.lines.iter().map(|(line, words)| (*line, words)));
    }

    /// Back to the base.
    pub fn unload(&mut self, image: &Image) {
        take_away(&mut self.engine, &self.base, image.lines.iter().map(|(line, _)| *line));
    }

    /// The images that a cut may leave of `pending`, with `durable` over the base.
    pub fn images(
        &self,
        durable: &Overlay,
        pending: &[LineStore],
        flavour: Flavour,
        bound: u64,
        seed: u64,
    ) -> Images {
        let base = (&self.base, self.base_hash);
        Images::new(base, durable, pending, flavour, self.layout, bound, seed)
    }

    /// A fence of `actor`: the base moves on.
    pub fn settle(&mut self, pending: &mut Vec<LineStore>, actor: u16) {
        let (base, hash) = (&mut self.base, &mut self.base_hash);
        let visible = &mut self.engine.media.state_mut().visible;
        settle(pending, actor, |s: &LineStore| {
            *hash ^= hash_line(s.line, &base.line(s.line)) ^ hash_line(s.line, &s.words);
            base.set_line(s.line, &s.words);
            visible.set_line(s.line, &s.words);
        });
    }
}
