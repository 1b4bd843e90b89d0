// SPDX-License-Identifier: MIT OR Apache-2.0
//! Embedding Forebay: makes a pool and an origin, writes synchronously, reads
//! back, and drains.
//!
//! ```text
//! cargo run --release -p forebay --example embed [DIRECTORY]
//! ```

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::Instant;

use forebay::{create, AttachOptions, CreateOptions, Error, NewVolume, Pool, PoolOptions};

const POOL_BYTES: u64 = 64 << 20;
const ORIGIN_BYTES: u64 = 256 << 20;
const WRITES: u64 = 10_000;

fn main() {
    let dir = std::env::args_os().nth(1).map_or_else(std::env::temp_dir, PathBuf::from);
    let dir = dir.join(format!("forebay-embed-{}", std::process::id()));
    let result = std::fs::create_dir(&dir).map_err(|source| Error::Io {
        path: dir.clone(),
        doing: "making a directory",
        source,
        way_out: "name a directory that you may write to".into(),
    });
    let result = result.and_then(|()| run(&dir));
    let _ = std::fs::remove_dir_all(&dir);
    if let Err(e) = result {
        eprintln!("embed: {e}");
        std::process::exit(e.exit_code().into());
    }
}

fn run(dir: &std::path::Path) -> forebay::Result<()> {
    // The origin: any file or block device; it stays an ordinary one.
    let origin = dir.join("disk");
    let made = std::fs::File::create(&origin).and_then(|file| file.set_len(ORIGIN_BYTES));
    made.map_err(|source| Error::Io {
        path: origin.clone(),
        doing: "making the origin",
        source,
        way_out: "use another directory".into(),
    })?;

    // The pool: persistent memory, or a file that stands in for it.
    let path = dir.join("pool");
    create(&path, &CreateOptions { size_bytes: Some(POOL_BYTES), ..Default::default() })?;
    let pool = Pool::open(&path, &PoolOptions::default())?;
    println!("pool on {}: {}", pool.media().kind, pool.media().note);

    pool.volume_add(&NewVolume {
        name: "disk".into(),
        origin,
        block_size: 4096,
        ..Default::default()
    })?;
    let volume = pool.attach("disk", &AttachOptions::default())?;

    let start = Instant::now();
    let mut block = [0u8; 4096];
    for i in 0..WRITES {
        block[..8].copy_from_slice(&i.to_le_bytes());
        let at = i * 7919 % (ORIGIN_BYTES / 4096) * 4096;
        volume.write_at(&block, at)?; // durable when it returns
    }
    let seconds = start.elapsed().as_secs_f64();
    println!("{WRITES} synchronous writes of 4 KiB in {seconds:.3} s");

    let last = WRITES - 1;
    volume.read_at(&mut block, last * 7919 % (ORIGIN_BYTES / 4096) * 4096)?;
    assert_eq!(block[..8], last.to_le_bytes());

    let drained = volume.drain(&mut |p| {
        println!("draining: {} pages left", p.pages_left);
        ControlFlow::Continue(())
    })?;
    println!(
        "drained {} pages in {:.3} s; the origin alone is complete now",
        drained.pages_destaged, drained.seconds
    );

    volume.detach()?;
    pool.close()
}
