// SPDX-License-Identifier: MIT OR Apache-2.0
//! `forebay dump`: the content of the media.  The superblock can be read while a server runs;
//! the rest needs exclusive access to the pool.

use std::fmt::Display;
use std::path::Path;

use forebay::{ChunkState, Pool};
use serde::Serialize;

use crate::args::{self, Dump};
use crate::{open, out};

pub fn run(a: &Dump) -> anyhow::Result<u8> {
    match a {
        Dump::Superblock(a) => superblock(a)?,
        Dump::Volumes(a) => with_pool(&a.pool, |pool| volumes(a, pool))?,
        Dump::Chunks(a) => with_pool(&a.pool, |pool| chunks(a, pool))?,
        Dump::Entries(a) => {
            with_pool(&a.pool, |pool| match pool.log_entries_of_chunk(a.chunk, a.data)? {
                Some(entries) => lines(&a.json, &entries),
                None => lines(&a.json, &pool.entries(a.chunk, a.data)?),
            })?
        }
        Dump::Block(a) => {
            with_pool(&a.pool, |pool| match pool.slot_of_block(&a.volume, a.block)? {
                Some(slot) => value(&a.json, &slot),
                None => value(&a.json, &pool.block_history(&a.volume, a.block)?),
            })?
        }
    }
    Ok(0)
}

fn with_pool(path: &Path, f: impl FnOnce(&Pool) -> anyhow::Result<()>) -> anyhow::Result<()> {
    let pool = open::read_only(path)?;
    f(&pool)?;
    Ok(pool.close()?)
}

fn value<T: Serialize + Display>(json: &args::Json, value: &T) -> anyhow::Result<()> {
    match json.json {
        true => out::json(value),
        false => Ok(out::line(value)?),
    }
}

fn lines<T: Serialize + Display>(json: &args::Json, values: &[T]) -> anyhow::Result<()> {
    if json.json {
        return out::json(&values);
    }
    for value in values {
        out::line(value)?;
    }
    Ok(())
}

fn superblock(a: &args::DumpPool) -> anyhow::Result<()> {
    value(&a.json, &open::superblock(&a.pool)?)
}

fn volumes(a: &args::DumpPool, pool: &Pool) -> anyhow::Result<()> {
    let volumes = pool.volumes();
    if a.json.json {
        return out::json(&volumes);
    }
    for v in &volumes {
        out::line(format_args!(
            "record {:2}  {}  uuid {}  watermark {}  identity {}",
            v.index,
            v,
            v.uuid,
            v.watermark,
            forebay::printable(&v.identity)
        ))?;
    }
    Ok(())
}

fn chunks(a: &args::DumpChunks, pool: &Pool) -> anyhow::Result<()> {
    let mut chunks = pool.chunks()?;
    if a.used {
        chunks.retain(|c| c.state != ChunkState::Free);
    }
    lines(&a.json, &chunks)
}
