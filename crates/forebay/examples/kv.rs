// SPDX-License-Identifier: MIT OR Apache-2.0
//! A key-value store on a log: the map is in memory, a commit is an append, and now and
//! then the whole map goes into a snapshot file.
//!
//! ```text
//! kv run DIR SEED   sets keys at random until it is killed; prints "KEY VALUE" for each
//!                   commit that is acknowledged
//! kv get DIR        recovers, and prints the map
//! ```
//!
//! Each commit is a generation of its own, since it depends on all before it.  The
//! snapshot is the "elsewhere" of the log: when that of a transaction group is on the
//! disk, the group is synced, and its entries are obsolete.  The snapshot says which it is
//! of, so that a crash between the two is harmless; and setting a key twice is too.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use forebay::{
    create, CreateOptions, Effect, Generation, Log, LogHome, LogOptions, LogState, Pool,
    PoolOptions,
};

pub type Map = BTreeMap<u64, u64>;
pub type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Commits of a transaction group.
const GROUP: u64 = 50;

struct Store {
    dir: PathBuf,
    log: Log,
    map: Map,
    /// The open transaction group.
    txg: u64,
    commits: u64,
}

impl Store {
    fn open(dir: &Path) -> Result<Store> {
        let pool = open_pool(&dir.join("kv.pool"))?;
        let log = pool.log("kv", &LogOptions::default())?;
        let (mut map, synced) = snapshot_read(dir)?;
        if log.info()?.state != LogState::None {
            let mut claimed = log.claim()?;
            let mut bad = None;
            claimed.replay(|entry, _| match entry.data.try_into() {
                // Durable by the snapshot below: until then it is to come again.
                Ok(pair) => {
                    set(&mut map, pair);
                    Effect::Applied
                }
                Err(_) => {
                    bad = Some(entry.name);
                    Effect::Stop
                }
            })?;
            if let Some(name) = bad {
                return Err(format!("entry {name} is no pair").into());
            }
            // Replayed entries are stored elsewhere before the log forgets them.
            snapshot_write(dir, &map, synced + 3)?;
            claimed.destroy()?;
            log.create(synced + 3)?;
            return Ok(Store { dir: dir.into(), log, map, txg: synced + 4, commits: 0 });
        }
        // New; or killed between destroy and create, and the snapshot is all of it.
        log.create(synced)?;
        Ok(Store { dir: dir.into(), log, map, txg: synced + 1, commits: 0 })
    }

    /// Durable when it returns.
    fn set(&mut self, key: u64, value: u64) -> Result<()> {
        let (k, v) = (key.to_le_bytes(), value.to_le_bytes());
        self.log.append(self.txg, Generation::New, &[&k, &v])?;
        self.map.insert(key, value);
        self.commits += 1;
        if self.commits.is_multiple_of(GROUP) {
            snapshot_write(&self.dir, &self.map, self.txg)?;
            self.log.sync(self.txg)?;
            self.txg += 1;
        }
        Ok(())
    }
}

fn set(map: &mut Map, pair: &[u8; 16]) {
    let number = |i: usize| u64::from_le_bytes(pair[i..i + 8].try_into().expect("eight bytes"));
    map.insert(number(0), number(8));
}

fn open_pool(path: &Path) -> Result<Pool> {
    if !path.exists() {
        // Whole, or not there, whenever it is killed.
        let new = path.with_extension("new");
        let size = CreateOptions {
            size_bytes: Some(2 << 20),
            chunk_size_bytes: 64 << 10,
            force: true,
            ..Default::default()
        };
        create(&new, &size)?;
        let pool = Pool::open(&new, &PoolOptions::default())?;
        pool.log_add("kv", LogHome::Embedded)?;
        pool.close()?;
        fs::rename(&new, path)?;
    }
    Ok(Pool::open(path, &PoolOptions::default())?)
}

/// The map, and the transaction group up to which it has all.
fn snapshot_read(dir: &Path) -> Result<(Map, u64)> {
    let bytes = match fs::read(dir.join("snapshot")) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Default::default()),
        bytes => bytes?,
    };
    let (synced, pairs) = bytes.split_first_chunk().ok_or("the snapshot is cut short")?;
    let mut map = Map::new();
    for pair in pairs.chunks(16) {
        set(&mut map, pair.try_into().map_err(|_| "the snapshot is cut short")?);
    }
    Ok((map, u64::from_le_bytes(*synced)))
}

/// The old one or the new one, whenever it is cut off.
fn snapshot_write(dir: &Path, map: &Map, synced: u64) -> io::Result<()> {
    let new = dir.join("snapshot.new");
    let mut file = io::BufWriter::new(File::create(&new)?);
    file.write_all(&synced.to_le_bytes())?;
    for (key, value) in map {
        file.write_all(&key.to_le_bytes())?;
        file.write_all(&value.to_le_bytes())?;
    }
    file.into_inner()?.sync_all()?;
    fs::rename(&new, dir.join("snapshot"))?;
    File::open(dir)?.sync_all()
}

/// Until it is killed.
pub fn run(dir: &Path, mut seed: u64) -> Result<()> {
    let mut store = Store::open(dir)?;
    let mut out = io::stdout().lock();
    writeln!(out, "open")?;
    let mut count = store.map.values().max().copied().unwrap_or(0);
    loop {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let key = (seed >> 33) % 100;
        count += 1;
        store.set(key, count)?;
        writeln!(out, "{key} {count}")?;
    }
}

/// The content after a crash.
pub fn recovered(dir: &Path) -> Result<Map> {
    Ok(Store::open(dir)?.map)
}

fn get(dir: &Path) -> Result<()> {
    let mut out = io::stdout().lock();
    for (key, value) in recovered(dir)? {
        writeln!(out, "{key} {value}")?;
    }
    Ok(())
}

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["run", dir, seed] => run(dir.as_ref(), seed.parse()?),
        ["get", dir] => get(dir.as_ref()),
        _ => Err("use: kv run DIR SEED, or kv get DIR".into()),
    }
}
