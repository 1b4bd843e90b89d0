// SPDX-License-Identifier: MIT OR Apache-2.0
//! The device fails: once at each place, for good, or when it is read.

use std::io;
use std::path::Path;
use std::sync::Arc;

use forebay_engine::Image;

use super::super::device::Device;
use super::super::{Durable, GroupedMedium, Sender};
use super::bed::{blank, found, found_on, options, Bed};
use super::cuts::{check, run};
use super::model::{Landed, Model, CHUNK, UNIT};
use crate::error::Error;
use crate::report::Uuid;

/// The n-th write from now on, or flush, fails: everything is acknowledged all the same, and is
/// there after a cut.
#[test]
fn one_error_anywhere_loses_nothing() {
    let landed = [Landed::Nothing, Landed::First, Landed::All];
    for kind in [Durable::Through, Durable::Fua, Durable::Flush] {
        for n in 0..12 {
            let model = Arc::new(Model::new(blank(), kind, 20, 20));
            let bed = Bed::on(&model, kind, 2);
            let (writes, _, flushes, _) = model.counts();
            model.plan(|plan| {
                plan.writes.insert(writes + n, landed[n as usize % 3]);
                if kind == Durable::Flush {
                    plan.flushes.insert(flushes + n / 2, n % 4 < 2);
                }
            });
            let told = run(&bed, &model, 8, 12);
            assert_eq!(told.len(), 96, "{kind:?}, error {n}");
            let info = bed.engine.medium_info();
            assert!(info.write_errors + info.flush_errors > 0, "no error happened: {info:?}");
            assert!(!info.failed && bed.lost() == 0, "{info:?}");
            let mut seed = n;
            check(&found(model.cut(&mut seed), kind, 2), &told);
        }
    }
}

/// All threads are told that the pool has failed, by what, and nobody hangs; what was
/// acknowledged before is there.
#[test]
fn a_device_that_fails_for_good_is_told_to_everybody() {
    for kind in [Durable::Through, Durable::Fua, Durable::Flush] {
        let model = Arc::new(Model::new(blank(), kind, 20, 20));
        let bed = Bed::on(&model, kind, 1);
        let (writes, ..) = model.counts();
        model.plan(|plan| plan.dead_from = Some(writes + 9));
        let told = run(&bed, &model, 16, 1000);
        assert!(bed.engine.medium_info().failed);
        let e = bed.append_durable(0, 1 << 40, 100).unwrap_err();
        let text = e.to_string();
        for part in [
            "(model): ",
            "writing to its disk failed",
            "acknowledged as durable is on the disk",
            "open the pool again",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert_eq!((e.exit_code(), e.errno()), (7, 5), "{e}");
        assert!(matches!(bed.sender.close(), Err(Error::Io { .. })));
        assert_eq!(bed.lost(), 0);
        check(&found(model.cut(&mut 5), kind, 1), &told);
    }
}

/// A flush that fails in the middle of a format makes a pool nowhere.
#[test]
fn a_format_whose_flush_fails_is_an_error() {
    let mut refused = 0;
    for n in 0..8 {
        let model = Arc::new(Model::new(blank(), Durable::Flush, 0, 0));
        let medium =
            GroupedMedium::on(Path::new("(model)"), model.clone(), UNIT as u32, Durable::Flush);
        let (_, _, flushes, _) = model.counts();
        model.plan(|plan| {
            plan.flushes.insert(flushes + n, true);
        });
        match Bed::new(medium.unwrap(), 1) {
            Err(e) => {
                refused += 1;
                assert!(e.to_string().contains("flushing its disk failed"), "{e}");
            }
            // Nothing was written by calls before it, or it was the last: it was tried again.
            Ok(bed) => {
                bed.append_durable(0, 1, 100).unwrap();
                assert_eq!(found(model.cut(&mut n.clone()), Durable::Flush, 1), [[1]]);
            }
        }
    }
    assert!(refused > 0);
}

/// A device that has become as large as no memory is.
#[derive(Debug)]
struct Grown(Arc<Model>);

impl Device for Grown {
    fn size_bytes(&self) -> u64 {
        1 << 50
    }
    fn read(&self, to: &mut [u8], at: u64) -> io::Result<()> {
        match at + to.len() as u64 <= self.0.size_bytes() {
            true => self.0.read(to, at),
            false => Err(rustix::io::Errno::IO.into()),
        }
    }
    fn write(&self, image: &Image, at: u64, bytes: usize, fua: bool) -> io::Result<()> {
        self.0.write(image, at, bytes, fua)
    }
    fn flush(&self) -> io::Result<()> {
        self.0.flush()
    }
}

/// By each superblock alone, too.
#[test]
fn a_pool_keeps_its_size_on_a_larger_device() {
    let kind = Durable::Flush;
    let model = Arc::new(Model::new(blank(), kind, 0, 0));
    let bed = Bed::on(&model, kind, 1);
    (0..4).for_each(|n| bed.append_durable(0, n, 100).unwrap());
    bed.sender.close().unwrap();
    let left = model.cut(&mut 1);
    for damaged in [None, Some(0), Some(CHUNK / 4)] {
        let mut content = left.clone();
        damaged.into_iter().for_each(|at| content[at..at + 512].fill(0xff));
        let grown = Arc::new(Grown(Arc::new(Model::new(content, kind, 0, 0))));
        let medium = GroupedMedium::on(Path::new("(model)"), grown, UNIT as u32, kind).unwrap();
        assert_eq!(medium.size_bytes(), left.len() as u64, "{damaged:?}");
        let notes = medium.notes().join("; ");
        assert!(notes.contains("are not the pool's"), "{notes}");
        assert_eq!(found_on(&medium, 1), [[0, 1, 2, 3]], "{damaged:?}");
    }
}

/// A pool is made by force in place of another, and the power fails after each of its writes: the
/// old pool is as it was, or there is none, or the new one is whole.
#[test]
fn a_format_that_is_cut_does_not_bring_back_half_a_pool() {
    let kind = Durable::Through;
    let mut content = blank();
    let tail = content.len() - UNIT;
    content[tail..].fill(0xaa);
    let model = Arc::new(Model::new(content, kind, 0, 0));
    let bed = Bed::on(&model, kind, 1);
    (0..4).for_each(|n| bed.append_durable(0, n, 100).unwrap());
    bed.sender.close().unwrap();
    let old = model.cut(&mut 1);
    assert!(old[tail..].iter().all(|b| *b == 0xaa));
    let (mut whole, mut none) = (0, 0);
    for n in 0.. {
        let model = Arc::new(Model::new(old.clone(), kind, 0, 0));
        let on = |model: &Arc<Model>| {
            GroupedMedium::on(Path::new("(model)"), model.clone(), UNIT as u32, kind).unwrap()
        };
        model.plan(|plan| plan.dead_from = Some(n));
        let medium = on(&model);
        let made = medium.wipe_pool().and_then(|()| medium.format(Uuid([8; 16]), CHUNK as u32, 8));
        let left = model.cut(&mut n.clone());
        if made.is_ok() {
            break;
        }
        let model = Arc::new(Model::new(left.clone(), kind, 0, 0));
        match on(&model).open_pool(&options(), 1) {
            Err(_) => none += 1,
            Ok((engine, _)) if engine.info().sb.uuid == [8; 16] => {}
            Ok(_) => {
                whole += 1;
                assert!(left[tail..] == old[tail..], "cut after write {n}: the end is gone");
                assert_eq!(found(left, kind, 1), [[0, 1, 2, 3]], "cut after write {n}");
            }
        }
    }
    assert!(whole >= 1 && none >= 2, "{whole} {none}");
}

/// An open for writing flushes first what it relies on, however writes become durable.  If the flush
/// fails, nothing is opened, and nothing was written.
#[test]
fn what_was_read_is_flushed_before_anybody_relies_on_it() {
    for kind in [Durable::Through, Durable::Fua, Durable::Flush] {
        let model = Arc::new(Model::new(blank(), kind, 0, 0));
        model.plan(|plan| {
            plan.flushes.insert(1, false);
        });
        let open = || GroupedMedium::on(Path::new("(model)"), model.clone(), UNIT as u32, kind);
        open().unwrap();
        assert_eq!(model.counts(), (0, 0, 1, 0), "{kind:?}");
        let e = open().unwrap_err();
        let text = e.to_string();
        assert!(text.contains("(model): flushing what was read"), "{kind:?}: {text}");
        assert!(text.contains("ddrescue"), "{text}");
        assert_eq!((model.counts(), e.exit_code()), ((0, 0, 2, 0), 7), "{kind:?}: {text}");
    }
}

/// A block that cannot be read is damage there, and not elsewhere.
#[test]
fn an_unreadable_block_is_damage_and_no_failed_open() {
    let kind = Durable::Flush;
    let model = Arc::new(Model::new(blank(), kind, 0, 0));
    let bed = Bed::on(&model, kind, 1);
    for n in 0..4 {
        bed.append_durable(0, n, 100).unwrap();
    }
    bed.sender.close().unwrap();
    let left = model.cut(&mut 1);
    let reopened = |blocks: &[usize]| {
        let model = Arc::new(Model::new(left.clone(), kind, 0, 0));
        model.plan(|plan| plan.unreadable = blocks.to_vec());
        let medium = GroupedMedium::on(Path::new("(model)"), model.clone(), UNIT as u32, kind);
        (model, medium)
    };
    // A copy of the superblock, and of the records: the others count, and it is written again.
    for block in [0, CHUNK / 4 / UNIT] {
        let (model, medium) = reopened(&[block]);
        let medium = medium.unwrap();
        let bytes = (block * UNIT) as u64..((block + 1) * UNIT) as u64;
        assert!(medium.unreadable().into_iter().eq([bytes]));
        assert!(
            medium.notes().iter().any(|n| n.contains("cannot be read")),
            "{:?}",
            medium.notes()
        );
        assert_eq!(found_on(&medium, 1), [[0, 1, 2, 3]]);
        assert!(model.counts().0 > 0);
    }
    // The entries of the chunk that the log has.
    let groups = (0..left.len() / UNIT).find(|block| left[block * UNIT..][..4] == *b"FOGR");
    let (_, medium) = reopened(&[groups.unwrap()]);
    let (engine, _) = medium.unwrap().open_pool(&options(), 1).unwrap();
    let info = engine.log_info(engine.log_find("log-0").unwrap()).unwrap();
    assert!(info.missing > 0 || info.found < 4, "{info:?}");
    // More than a copy of the device would have.
    let all: Vec<_> = (0..left.len() / UNIT).collect();
    let sender = |medium: GroupedMedium| {
        let opened = medium.open_pool(&options(), 1);
        opened.map(|(engine, _)| Sender::new(engine, medium.disk().clone()))
    };
    let e = sender(reopened(&all).1.unwrap()).unwrap_err();
    assert!(matches!(e, Error::NotAPool { .. } | Error::Damaged { .. }), "{e}");
}
