// SPDX-License-Identifier: MIT OR Apache-2.0
//! Durable writes of one client in this process: 4 KiB at random places of a volume, which
//! destroys what is there.
//!
//! ```text
//! durable POOL VOLUME SECONDS   prints {"writes_per_s":..,"p50_us":..,"p99_us":..,"p999_us":..}
//! ```

use std::path::Path;
use std::time::{Duration, Instant};

use forebay::{AttachOptions, Pool, PoolOptions};

const BLOCK: usize = 4096;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [pool, volume, seconds] = args.as_slice() else {
        return Err("durable POOL VOLUME SECONDS".into());
    };
    let pool = Pool::open(Path::new(pool), &PoolOptions::default())?;
    let volume = pool.attach(volume, &AttachOptions::default())?;
    let blocks = volume.size_bytes() / BLOCK as u64;
    let length = Duration::from_secs(seconds.parse()?);
    let mut ns = Vec::new();
    let (began, mut seed) = (Instant::now(), 1u64);
    let mut now = began;
    while now - began < length {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let at = (seed >> 33) % blocks * BLOCK as u64;
        volume.write_at(&[seed as u8 | 1; BLOCK], at)?; // durable when it returns
        let end = Instant::now();
        ns.push((end - now).as_nanos() as u64);
        now = end;
    }
    let rate = ns.len() as f64 / (now - began).as_secs_f64();
    ns.sort_unstable();
    let us = |share: f64| ns[((ns.len() - 1) as f64 * share) as usize] as f64 / 1000.0;
    println!(
        "{{\"writes_per_s\":{rate:.0},\"p50_us\":{},\"p99_us\":{},\"p999_us\":{}}}",
        us(0.5),
        us(0.99),
        us(0.999)
    );
    volume.detach()?;
    pool.close()?;
    Ok(())
}
