// SPDX-License-Identifier: MIT OR Apache-2.0
//! Mistakes of safe code end in a panic, before the C code uses a wrong number or text.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Arc;

use forebay_engine::policy::{judge_origin, Found};
use forebay_engine::{
    format, sys, Attach, Decision, Engine, Media, Memory, Past, Persist, Ticket, Write,
};

const SIZE: usize = 1 << 20;
const SECTORS: u64 = 1 << 10;

fn media() -> Arc<Media> {
    let memory = Arc::new(Memory::zeroed(SIZE).unwrap());
    let media = Media::new(memory, SIZE as u64, Persist::Nt, None).unwrap();
    let f =
        sys::fby_format { uuid: [1; 16], chunk_size: 64 << 10, nvolumes: 4, ..Default::default() };
    format(&media, &f).unwrap();
    Arc::new(media)
}

/// A pool with an attached volume 0.
fn opened() -> Engine {
    let options = sys::fby_options { nslots: 1, ..Default::default() };
    let (engine, _) = Engine::open(media(), &options).unwrap();
    let spec = sys::fby_volume_spec {
        name: sys::c_text("v").unwrap(),
        identity: sys::c_text("i").unwrap(),
        uuid: [2; 16],
        origin_sectors: SECTORS,
        block_size: 512,
        flush_us: 0,
        static_bytes: 0,
    };
    assert_eq!(engine.volume_add(&spec), Ok(0));
    let attach = Attach {
        origin_sectors: SECTORS,
        identity: "i",
        holes: sys::FBY_HOLES_FAIL,
        round_pages: 16,
        nrequests: 1,
        buffer_bytes: 4096,
    };
    engine.volume_attach(0, &attach).unwrap();
    engine
}

fn panics<T>(f: impl FnOnce() -> T) -> bool {
    catch_unwind(AssertUnwindSafe(f)).is_err()
}

#[test]
fn a_copy_from_beyond_its_data() {
    let (engine, mut w) = (opened(), Write::default());
    assert_eq!(engine.write_begin(&mut w, 0, 0, 1), Ok(Decision::Done));
    for skip in [1, 512, u64::MAX - 511, u64::MAX] {
        assert!(panics(|| engine.write_copy(&mut w, &[7; 512], skip)), "skip {skip}");
        let pieces = [&[7; 256][..], &[7; 256]];
        assert!(panics(|| engine.write_copy_pieces(&mut w, &pieces, skip)), "skip {skip}");
    }
    engine.write_copy(&mut w, &[7; 1024], 512);
    engine.write_commit(&mut w);
    engine.write_publish(&mut w);
    let mut sector = [0; 512];
    assert_eq!(engine.read_block(0, 0, 0, &mut sector).result, Ok(Decision::Done));
    assert_eq!(sector, [7; 512]);
}

#[test]
fn a_ticket_on_another_pool() {
    let (engine, other) = (opened(), opened());
    let mut ticket = Ticket::default();
    let Past::Origin(past) = engine.bypass_begin(0, 0, 8, 1).unwrap() else {
        panic!("nothing is cached");
    };
    let _ = engine.bypass_end(past, 0, Some(&mut ticket));
    assert!(panics(|| other.flush_later(&mut ticket)));
    assert!(panics(|| other.flush_begin(0, &mut ticket)));
    engine.flush_later(&mut ticket).unwrap();
}

#[test]
fn an_identity_without_an_end() {
    let mut spec = sys::fby_volume_spec { block_size: 512, ..Default::default() };
    spec.identity.fill(b'i');
    let found = Found {
        id: &"i".repeat(spec.identity.len()),
        sectors: 8,
        logical_block: 512,
        accept_changed: false,
        by_name: false,
    };
    assert!(panics(|| judge_origin(&spec, &found)));
}

#[test]
fn volumes_that_there_are_not() {
    let engine = opened();
    for volume in [1, 4, u16::MAX] {
        assert!(engine.volume_clean(volume) && !engine.write_throttled(volume));
        assert_eq!(engine.write_delay(volume, 8, 1), 0);
        engine.origin_foreground(volume, true);
        assert!(engine.read_block(volume, 0, 0, &mut [0; 512]).result.is_err());
        assert!(engine.volume_drain(volume, true).is_err());
        assert!(engine.flush_begin(volume, &mut Ticket::default()).is_err());
        assert!(engine.lost_blocks(volume, 64).is_empty());
    }
}
