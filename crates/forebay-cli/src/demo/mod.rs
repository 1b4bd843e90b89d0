// SPDX-License-Identifier: MIT OR Apache-2.0
//! `forebay demo`: speed, safety, the drained disk, a mount, and what to do next, on
//! pools, origin files and directories of its own.

mod disk;
mod histogram;
mod mounted;
mod pattern;
mod plot;
mod random;
mod safety;
mod speed;
pub mod writer;

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{anyhow, Context};
use forebay::{AttachOptions, CreateOptions, MediaInfo, NewVolume, Pool};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use crate::create::media_text;
use crate::interrupt::Interrupt;
use crate::out::Table;
use crate::{args, out, units};
use disk::{Disk, OriginWrites};
use mounted::Mounted;
use safety::Safety;
use speed::{Direct, Measured, Row, Run, Versions};

const MIB: u64 = 1 << 20;

/// Sizes in bytes.
#[derive(Clone, Copy)]
struct Sizes {
    pool: u64,
    speed: u64,
    safety: u64,
    /// Size of the area that most writes go to.
    hot: u64,
    /// Size of the mount's pool.
    mount: u64,
}

const WHOLE: Sizes =
    Sizes { pool: 512 * MIB, speed: 1024 * MIB, safety: 256 * MIB, hot: 64 * MIB, mount: 64 * MIB };
const QUICK: Sizes =
    Sizes { pool: 64 * MIB, speed: 128 * MIB, safety: 32 * MIB, hot: 8 * MIB, mount: 32 * MIB };
/// For the 64 MiB of /dev/shm that containers have.
const SMALL: Sizes =
    Sizes { pool: 32 * MIB, speed: 64 * MIB, safety: 16 * MIB, hot: 4 * MIB, mount: 16 * MIB };

/// Chooses the directory of the pools and their sizes: in memory, as large as fits there.
fn place(a: &args::Demo, directory: &Path) -> anyhow::Result<(PathBuf, Sizes, Option<String>)> {
    let name = format!("forebay-demo-{}.pool", std::process::id());
    let wanted = if a.quick { QUICK } else { WHOLE };
    if let Some(path) = &a.pool {
        return Ok((std::path::absolute(path)?, wanted, None));
    }
    let memory = Path::new("/dev/shm");
    let free = rustix::fs::statvfs(memory).map_or(0, |fs| fs.f_bavail * fs.f_frsize);
    let fits = |s: &Sizes| s.pool + s.mount + 4 * MIB <= free;
    let less = [wanted, QUICK, SMALL].into_iter().filter(|s| s.pool <= wanted.pool);
    Ok(match less.into_iter().find(fits) {
        Some(sizes) if sizes.pool == wanted.pool => (memory.join(name), sizes, None),
        Some(sizes) => {
            let (free, pool) = (units::bytes(free), units::bytes(sizes.pool));
            let note = format!(
                "/dev/shm has only {free}: the pool is smaller, {pool}, and so is all else; a container gets more by --shm-size=1g"
            );
            (memory.join(name), sizes, Some(note))
        }
        None => {
            let note = format!(
                "/dev/shm has only {}: the pool is a file in {}, and as fast as its disk; a container gets more by --shm-size=1g",
                units::bytes(free),
                directory.display()
            );
            (directory.join(name), wanted, Some(note))
        }
    })
}

/// The directories of the demo.
pub struct Stage {
    pool: PathBuf,
    directory: PathBuf,
    seed: u64,
    kills: u32,
    time: Duration,
    sizes: Sizes,
    quiet: bool,
    keep: bool,
    interrupt: Interrupt,
}

#[derive(Serialize)]
struct Results<'a> {
    seed: u64,
    media: &'a MediaInfo,
    pool_bytes: u64,
    speed: Vec<Row<'a>>,
    /// Forebay's writes per second over the disk's, by writers.
    ratios: Vec<f64>,
    safety: &'a Safety,
    disk: &'a Disk,
    /// None without root, FUSE or sqlite3.
    mount: Option<&'a Mounted>,
    seconds: f64,
}

pub fn run(a: &args::Demo) -> anyhow::Result<u8> {
    let start = Instant::now();
    let (stage, note) = Stage::new(a)?;
    if let Some(note) = note {
        stage.say(format_args!("Note: {note}."))?;
    }
    let media = stage.build()?;
    stage.say(format_args!(
        "Pool: {}\n{}\n\
         This stand-in survives the death of a process, which part 2 shows, and NOT a power\n\
         cut: for that, put the pool on persistent memory. Seed {}.",
        stage.pool.display(),
        media_text(&media),
        stage.seed
    ))?;

    let versions = Versions::new(stage.sizes.speed / speed::BLOCK as u64);
    let (rows, origin_writes) = measure_speed(&stage, &versions)?;
    let picture = stage.path("latency.svg");
    draw(&picture, &rows)?;
    stage.say(format_args!("{}\n  plot: {}", speed_text(&rows), picture.display()))?;

    stage.say("\n2. Safety: a process that writes is killed with SIGKILL at random moments")?;
    let (safety, mut expected) = safety::run(&stage)?;
    stage.say(safety_text(&safety))?;

    stage.say("\n3. The disk stays yours: drain, then read the origin files without Forebay")?;
    let disk = disk::run(&stage, &versions, &mut expected, origin_writes)?;
    stage.say(disk.text())?;

    stage.say("\n4. A directory mounted: fsync of any program as an append to a log")?;
    let mounted = mounted::run(&stage, media.durable)?;
    match &mounted {
        Ok(shown) => stage.say(shown.text())?,
        Err(why) => stage.say(format_args!("  not shown: {why}"))?,
    }

    let results = Results {
        seed: stage.seed,
        media: &media,
        pool_bytes: stage.sizes.pool,
        ratios: ratios(&rows),
        speed: rows.iter().map(Measured::row).collect(),
        safety: &safety,
        disk: &disk,
        mount: mounted.as_ref().ok(),
        seconds: start.elapsed().as_secs_f64(),
    };
    let file = stage.path("results.json");
    write_file(&file, &(serde_json::to_string_pretty(&results)? + "\n"))?;
    if a.json.json {
        out::json(&results)?;
    }
    stage.say(next_steps())?;
    stage.say(format_args!(
        "\nAll of it took {:.0} s; the figures are in {}.",
        results.seconds,
        file.display()
    ))?;
    match safety.lost + disk.wrong + mounted.map_or(0, |m| m.lost) {
        0 => Ok(0),
        _ => Ok(11),
    }
}

// --- stage -----------------------------------------------------------------

impl Stage {
    fn new(a: &args::Demo) -> anyhow::Result<(Stage, Option<String>)> {
        let interrupt = Interrupt::watch()?;
        let directory = std::path::absolute(&a.dir)?;
        std::fs::create_dir_all(&directory)
            .with_context(|| format!("{}: cannot make it", directory.display()))?;
        let (pool, sizes, note) = place(a, &directory)?;
        let clock = SystemTime::now().duration_since(UNIX_EPOCH)?;
        let stage = Stage {
            pool,
            directory,
            seed: a.seed.unwrap_or(clock.as_nanos() as u64 % 1_000_000_000),
            kills: a.kills.unwrap_or(if a.quick { 4 } else { 12 }),
            time: Duration::from_secs(a.seconds.unwrap_or(if a.quick { 1 } else { 6 })),
            sizes,
            quiet: a.json.json,
            keep: a.keep,
            interrupt,
        };
        Ok((stage, note))
    }

    /// Makes the origins, the pool and its volumes.
    fn build(&self) -> anyhow::Result<MediaInfo> {
        for (volume, bytes) in
            [(speed::VOLUME, self.sizes.speed), (safety::VOLUME, self.sizes.safety)]
        {
            self.make_origin(&self.origin(volume), bytes)?;
        }
        let made = forebay::create(
            &self.pool,
            &CreateOptions { size_bytes: Some(self.sizes.pool), ..Default::default() },
        )?;
        let pool = Pool::open(&self.pool, &args::MediaArgs::default().read_write())?;
        for volume in [speed::VOLUME, safety::VOLUME] {
            pool.volume_add(&NewVolume {
                name: volume.into(),
                origin: self.origin(volume),
                block_size: 512,
                ..Default::default()
            })?;
        }
        pool.close()?;
        Ok(made.media)
    }

    /// Makes an origin file and writes all of it, so that no later write has to allocate blocks.
    fn make_origin(&self, path: &Path, bytes: u64) -> anyhow::Result<()> {
        let zeroes = vec![0; 4 * MIB as usize];
        let bar = self.bar(bytes, "  making the origin files {bar:30} {bytes}/{total_bytes}");
        let cannot = || format!("{}: cannot make the origin file", path.display());
        let mut options = OpenOptions::new();
        let options = options.write(true).create(true).truncate(true);
        let options = options.custom_flags(rustix::fs::OFlags::NOFOLLOW.bits() as i32);
        let mut file = options.open(path).with_context(cannot)?;
        for _ in 0..bytes / zeroes.len() as u64 {
            self.check_interrupt()?;
            file.write_all(&zeroes).with_context(cannot)?;
            bar.inc(zeroes.len() as u64);
        }
        file.sync_all().with_context(cannot)?;
        bar.finish_and_clear();
        Ok(())
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Says where the origin is: the path may be too long for the pool to record.
    pub fn attach(&self, volume: &str) -> AttachOptions {
        AttachOptions { origin: Some(self.origin(volume)), ..Default::default() }
    }

    pub fn origin(&self, volume: &str) -> PathBuf {
        self.path(&format!("origin-{volume}.img"))
    }

    fn safety_sectors(&self) -> anyhow::Result<u64> {
        Ok(File::open(self.origin(safety::VOLUME))?.metadata()?.len() / 512)
    }

    pub fn bar(&self, length: u64, template: &str) -> ProgressBar {
        let style = ProgressStyle::with_template(template).expect("the template is right");
        match self.quiet {
            true => ProgressBar::hidden(),
            false => ProgressBar::new(length).with_style(style),
        }
    }

    pub fn say(&self, text: impl std::fmt::Display) -> anyhow::Result<()> {
        match self.quiet {
            true => Ok(()),
            false => Ok(out::line(text)?),
        }
    }

    pub fn check_interrupt(&self) -> anyhow::Result<()> {
        match self.interrupt.came() {
            true => Err(anyhow!(forebay::Error::Interrupted { name: "of the demo".into() })),
            false => Ok(()),
        }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if !self.keep {
            for volume in [speed::VOLUME, safety::VOLUME] {
                std::fs::remove_file(self.origin(volume)).ok();
            }
            std::fs::remove_file(&self.pool).ok();
        }
    }
}

fn write_file(path: &Path, text: &str) -> anyhow::Result<()> {
    let written = out::replace_file(path, text.as_bytes(), 0o644);
    written.with_context(|| format!("{}: cannot write it", path.display()))
}

// --- part one --------------------------------------------------------------

fn measure_speed(
    stage: &Stage,
    versions: &Versions,
) -> anyhow::Result<(Vec<Measured>, OriginWrites)> {
    let (hot, all) = (stage.sizes.hot, stage.sizes.speed);
    stage.say(format_args!(
        "\n1. Speed: synchronous random writes of 4 KiB, {} s each, to {} of a disk of {}",
        stage.time.as_secs(),
        units::bytes(hot),
        units::bytes(all),
    ))?;
    let run = |name, threads, through_forebay, bytes| Run {
        name,
        threads,
        through_forebay,
        blocks: bytes / speed::BLOCK as u64,
        time: stage.time,
    };
    let mut rows = Vec::new();
    let direct = Direct::open(&stage.origin(speed::VOLUME))?;
    for (name, threads) in [("disk, 1 writer", 1), ("disk, 2 writers", 2)] {
        let run = run(name, threads, false, hot);
        rows.push(speed::measure(stage, &run, &direct, versions)?);
    }
    drop(direct);
    let pool = Pool::open(&stage.pool, &args::MediaArgs::default().read_write())?;
    let volume = pool.attach(speed::VOLUME, &stage.attach(speed::VOLUME))?;
    for (name, threads, bytes) in [
        ("Forebay, 1 writer", 1, hot),
        ("Forebay, 2 writers", 2, hot),
        ("Forebay, 2x the pool", 1, all),
    ] {
        let run = run(name, threads, true, bytes);
        rows.push(speed::measure(stage, &run, &volume, versions)?);
    }
    let origin_writes = OriginWrites::of(&volume)?;
    volume.detach()?;
    pool.close()?;
    Ok((rows, origin_writes))
}

fn ratios(rows: &[Measured]) -> Vec<f64> {
    let disk = rows.iter().filter(|r| !r.through_forebay);
    let forebay = rows.iter().filter(|r| r.through_forebay);
    disk.zip(forebay).map(|(d, f)| f.rate() / d.rate()).collect()
}

fn speed_text(rows: &[Measured]) -> String {
    let mut table = Table::new(&["", "writes/s", "p50", "p99", "p99.9", "slowest", "ratio"]);
    for row in rows {
        let disk = (rows.iter()).find(|r| !r.through_forebay && r.threads == row.threads);
        let ratio = disk.map(|d| format!("{:.1}", row.rate() / d.rate()));
        let r = row.row();
        table.row(vec![
            format!("  {}", row.name),
            units::count(r.writes_per_s as u64),
            units::nanoseconds(r.p50_ns),
            units::nanoseconds(r.p99_ns),
            units::nanoseconds(r.p999_ns),
            units::nanoseconds(r.max_ns),
            ratio.unwrap_or_default(),
        ]);
    }
    format!(
        "{table}\n  The last row writes to more than the pool holds: there the disk's own speed counts,\n  \
         helped by merging. The disk is opened with O_DIRECT|O_DSYNC."
    )
}

fn draw(path: &Path, rows: &[Measured]) -> anyhow::Result<()> {
    let all: Vec<_> = rows
        .iter()
        .map(|row| plot::Series { name: row.name.clone(), histogram: &row.histogram })
        .collect();
    plot::latencies(path, "Latency of synchronous random 4 KiB writes", &all)
}

// --- parts two and four ----------------------------------------------------

fn safety_text(s: &Safety) -> String {
    format!(
        "  {} kills ({} of them during recovery), {} sectors compared with the log,\n  \
         slowest recovery {:.0} ms, {} torn pages of unacknowledged writes dropped\n  \
         acknowledged writes lost: {} of {}",
        s.kills,
        s.kills_in_recovery,
        units::count(s.sectors_compared),
        s.slowest_recovery_seconds * 1e3,
        s.torn_pages_dropped,
        s.lost,
        s.acknowledged,
    )
}

fn next_steps() -> &'static str {
    "\n5. What to type next\n  \
     A pool, the disk that it writes back to, and a server (stop it with Ctrl-C; nothing is lost):\n    \
     forebay create /dev/shm/pool --size 1G        (or /dev/pmem0: survives a power cut)\n    \
     truncate -s 10G disk.img\n    \
     forebay volume add /dev/shm/pool data disk.img\n    \
     forebay serve /dev/shm/pool                   (prints the URI to use below)\n  \
     A file system on it:\n    \
     mkdir -p mnt nbd && nbdfuse nbd 'URI' &\n    \
     mkfs.ext4 nbd/nbd && mount -o loop nbd/nbd mnt\n  \
     A virtual machine on it:\n    \
     qemu-system-x86_64 -m 2G -enable-kvm -drive 'file=URI,format=raw,if=virtio'\n  \
     A directory whose fsyncs are appends to the pool's memory:\n    \
     forebay mount /dev/shm/pool DIRECTORY         (its end: forebay umount DIRECTORY)\n  \
     Watch it, then hand the disk back, complete and ordinary:\n    \
     forebay status /dev/shm/pool --watch\n    \
     forebay drain /dev/shm/pool"
}
