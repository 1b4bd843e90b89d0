// SPDX-License-Identifier: MIT OR Apache-2.0
//! Pools in shared memory, and volumes on origins of a given speed.

use std::path::PathBuf;

use anyhow::Result;
use forebay::{create, AttachOptions, CreateOptions, Pool, PoolOptions, Volume};
use rand::rngs::SmallRng;
use rand::Rng;

use crate::origin::{RateOrigin, Speed};

pub const BLOCK: u64 = 4096;

/// A volume and its origin.
pub struct Bed {
    pub volume: Volume,
    pub origin: RateOrigin,
    pub blocks: u64,
}

/// A pool in shared memory, whose name is gone as soon as it is open.
pub fn pool(bytes: u64) -> Result<Pool> {
    let path = PathBuf::from(format!("/dev/shm/forebay-load-{}", std::process::id()));
    create(&path, &CreateOptions { size_bytes: Some(bytes), ..Default::default() })?;
    let pool = Pool::open(&path, &PoolOptions { checksums: true, ..Default::default() });
    std::fs::remove_file(&path)?;
    Ok(pool?)
}

/// Adds a volume of so many bytes and attaches it.
pub fn volume(pool: &Pool, name: &str, bytes: u64, speed: Speed) -> Result<Bed> {
    let origin = RateOrigin::new(bytes as usize, speed)?;
    pool.volume_add_origin(name, &origin, 512)?;
    let volume = pool.attach_origin(
        name,
        Box::new(origin.clone()),
        &AttachOptions { queue_depth: 32, ..Default::default() },
    )?;
    Ok(Bed { volume, origin, blocks: bytes / BLOCK })
}

/// 4 KiB that no storage can compress away.
pub fn fill(rng: &mut SmallRng, buf: &mut [u8; BLOCK as usize]) {
    rng.fill(&mut buf[..]);
}
