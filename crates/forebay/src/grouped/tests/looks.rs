// SPDX-License-Identifier: MIT OR Apache-2.0
//! A look at a pool that nobody has open reads what it shows, and shows what an open pool does.

use std::path::Path;
use std::sync::Arc;

use super::super::{Durable, GroupedMedium};
use super::bed::room;
use super::model::{Model, CHUNK, UNIT};
use super::pools::{append, made};
use crate::error::Result;
use crate::pool::{Pool, PoolOptions};
use crate::report::PoolStatus;

const CHUNKS: usize = 128;

/// The status of a pool with this content, and the bytes that were read for it.
fn shown(content: &[u8], on_demand: bool, unreadable: &[usize]) -> Result<(PoolStatus, u64)> {
    let model = Arc::new(Model::new(content.to_vec(), Durable::Flush, 0, 0));
    model.plan(|plan| plan.unreadable = unreadable.to_vec());
    let (path, unit) = (Path::new("(model)"), UNIT as u32);
    let medium = match on_demand {
        true => GroupedMedium::looked_at(path, model.clone(), unit, Durable::Flush.into()),
        false => GroupedMedium::on(path, model.clone(), unit, Durable::Flush),
    };
    let options = PoolOptions { read_only: true, ..Default::default() };
    let pool = Pool::open_on(medium?, &options)?;
    let mut status = pool.status();
    let read = model.bytes_read();
    // Whatever it does after that finds everything.
    assert!(pool.check(true).unwrap().ok || !unreadable.is_empty());
    pool.close()?;
    // Values that differ in each run.
    status.media.note.clear();
    status.uptime_seconds = 0.0;
    status.recovery.seconds = 0.0;
    Ok((status, read))
}

#[test]
fn a_look_reads_what_it_shows() {
    let size = (1 + CHUNKS) as u64 * CHUNK as u64;
    for closed in [true, false] {
        let model = Arc::new(Model::new(room(CHUNKS), Durable::Flush, 0, 0));
        let (pool, logs) = made(&model, Durable::Flush, 2);
        (0..20).for_each(|n| append(&logs[n % 2], 1, n as u64, CHUNK / 4).unwrap());
        (0..50).for_each(|n| append(&logs[n % 2], 2, n as u64, 100).unwrap());
        drop(logs);
        if closed {
            pool.close().unwrap();
        }
        let content = model.cut(&mut 1);
        let (all, read_all) = shown(&content, false, &[]).unwrap();
        let (looked, read) = shown(&content, true, &[]).unwrap();
        assert_eq!(looked, all, "closed: {closed}");
        assert!(looked.logs.iter().map(|log| log.entries).sum::<u64>() >= 70);
        assert!(read_all >= size && read < size / 8, "{read} of {read_all} bytes were read");
    }
}

/// Blocks that cannot be read are damage where somebody asks for them.
#[test]
fn a_look_finds_what_cannot_be_read() {
    let model = Arc::new(Model::new(room(CHUNKS), Durable::Flush, 0, 0));
    let (pool, logs) = made(&model, Durable::Flush, 1);
    (0..20).for_each(|n| append(&logs[0], 1, n, CHUNK / 4).unwrap());
    drop(logs);
    drop(pool);
    let content = model.cut(&mut 1);
    let header = CHUNK / UNIT;
    let (all, _) = shown(&content, false, &[header]).unwrap();
    let (looked, _) = shown(&content, true, &[header]).unwrap();
    assert_eq!(looked, all);
    assert_ne!(looked, shown(&content, true, &[]).unwrap().0, "nothing was damaged");
}
