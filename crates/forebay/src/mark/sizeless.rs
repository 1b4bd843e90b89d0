// SPDX-License-Identifier: MIT OR Apache-2.0
//! Goal: an origin that does not tell whether it has lost its end keeps its mark, and no drain calls
//! it complete.  Method: an origin whose size is hidden for a while.

use std::sync::Arc;

use super::tests::*;
use super::*;
use crate::report::OriginInfo;
use crate::AttachOptions;

#[derive(Clone, Debug)]
struct Sizeless(World, Arc<AtomicBool>);

impl Origin for Sizeless {
    fn is_shorter(&self) -> Option<bool> {
        match self.1.load(Ordering::Relaxed) {
            true => None,
            false => self.0.is_shorter(),
        }
    }

    fn size_bytes(&self) -> u64 {
        self.0.size_bytes()
    }

    fn logical_block(&self) -> u32 {
        self.0.logical_block()
    }

    fn identity(&self) -> String {
        self.0.identity()
    }

    fn info(&self) -> OriginInfo {
        self.0.info()
    }

    fn keep(&self) -> Option<Box<dyn Keep>> {
        self.0.keep()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.0.read_at(buf, offset)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.0.write_at(data, offset)
    }

    fn flush(&self) -> io::Result<()> {
        self.0.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.0.discard(offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> io::Result<()> {
        self.0.write_zeroes(offset, len)
    }
}

#[test]
fn an_origin_that_does_not_tell_its_size_stays_marked() {
    let _turn = turn();
    let dir = Dir::new();
    let origin = Sizeless(new_world(&dir), Arc::default());
    let hides = |hides| origin.1.store(hides, Ordering::Relaxed);
    let pool = made(&dir.0.join("pool"), &origin.0);
    let options = AttachOptions::default();
    let volume = pool.attach_origin("v", Box::new(origin.clone()), &options).unwrap();
    volume.write_at(&[7; BLOCK], 0).unwrap();
    let drained = || pool.drain(None, &mut |_, p| go_on(p)).unwrap().remove(0);
    hides(true);
    let judged = drained();
    assert!(judged.pages_left == 0 && !judged.complete, "{judged:?}");
    assert!(matches!(origin.0.find().unwrap(), Found::Marked(_)));
    hides(false);
    let judged = drained();
    assert!(judged.complete, "{judged:?}");
    assert_eq!(origin.0.find().unwrap(), Found::Nothing);
}
