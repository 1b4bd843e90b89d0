// SPDX-License-Identifier: MIT OR Apache-2.0
//! `forebay bench mount`: a directory of the disk and a mount of one beside it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{bail, Context};
use forebay_bench::{mounts, MountBenchOptions, MountCase};

use crate::out::Table;
use crate::{args, bench, out, units};

/// Everything that the benchmark makes; gone when it is dropped.
struct Bed {
    dir: PathBuf,
    pool: PathBuf,
    server: Option<Child>,
}

impl Bed {
    fn new(a: &args::BenchMount) -> anyhow::Result<Bed> {
        let name = format!("forebay-bench-mount-{}", std::process::id());
        let above = a.dir.clone().unwrap_or_else(std::env::temp_dir);
        let pool = a.media_dir.join(format!("{name}.pool"));
        let mut bed = Bed { dir: above.join(name), pool, server: None };
        for part in ["plain", "tree", "at"] {
            let part = bed.dir.join(part);
            fs::create_dir_all(&part).with_context(|| format!("{}", part.display()))?;
        }
        let size = forebay::CreateOptions { size_bytes: Some(a.pool_size), ..Default::default() };
        forebay::create(&bed.pool, &size)?;
        bed.serve(a.write_back)?;
        Ok(bed)
    }

    /// A process of its own, as it is used.
    fn serve(&mut self, write_back: bool) -> anyhow::Result<()> {
        let mut server = Command::new(std::env::current_exe()?);
        server.args(["mount", "--foreground"]);
        if write_back {
            server.arg("--write-back");
        }
        server.args([&self.pool, &self.dir.join("tree"), &self.at()]);
        let server = server.stdin(Stdio::null()).stdout(Stdio::null()).spawn()?;
        let server = self.server.insert(server);
        let below = fs::metadata(&self.dir)?;
        let end = Instant::now() + Duration::from_secs(60);
        while same_device(&fs::metadata(self.dir.join("at"))?, &below) {
            if let Some(status) = server.try_wait()? {
                bail!("the server of the mount has ended with {status}; it needs FUSE and root");
            }
            if Instant::now() > end {
                bail!("the mount did not come within a minute");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    fn at(&self) -> PathBuf {
        self.dir.join("at")
    }
}

fn same_device(a: &fs::Metadata, b: &fs::Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    a.dev() == b.dev()
}

impl Drop for Bed {
    fn drop(&mut self) {
        if let (Some(mut server), Ok(this)) = (self.server.take(), std::env::current_exe()) {
            let at = self.at();
            let mut umount = Command::new(this);
            umount.args([Path::new("umount"), &at]).stdout(Stdio::null());
            if !umount.status().is_ok_and(|s| s.success()) {
                let _ = server.kill();
            }
            let _ = server.wait();
        }
        let _ = fs::remove_dir_all(&self.dir);
        let _ = fs::remove_file(&self.pool);
    }
}

pub fn run(a: &args::BenchMount) -> anyhow::Result<()> {
    let mut bytes = Vec::new();
    for &n in &a.bytes {
        bytes.push(u32::try_from(n).ok().filter(|n| (1..=1 << 20).contains(n)));
    }
    let Some(bytes) = bytes.into_iter().collect() else { bail!("--bytes: 1 to 1M") };
    let bed = Bed::new(a)?;
    let options = MountBenchOptions {
        plain: bed.dir.join("plain"),
        mount: bed.at(),
        cases: vec![MountCase::Append, MountCase::InPlace, MountCase::Replace],
        bytes,
        clients: a.clients.clone(),
        rounds: a.rounds,
        turn: a.turn,
    };
    let bar = indicatif::ProgressBar::new(0).with_message("measuring");
    let report = mounts(&options, |done, all| {
        bar.set_length(all as u64);
        bar.set_position(done as u64);
    });
    bar.finish_and_clear();
    let report = report?;
    if a.json.json {
        return bench::json(&report);
    }
    let mut table = Table::new(&[
        "<what",
        "bytes",
        "clients",
        "plain/s",
        "mount/s",
        "ratio",
        "plain p50",
        "mount p50",
        "plain p99",
        "mount p99",
    ]);
    let us = |us: f64| units::nanoseconds((us * 1000.0) as u64);
    for row in &report.rows {
        table.row(vec![
            row.what.name().into(),
            row.bytes.to_string(),
            row.clients.to_string(),
            units::count(row.plain_per_s as u64),
            units::count(row.mount_per_s as u64),
            format!("{:.1}", row.ratio),
            us(row.plain_p50_us),
            us(row.mount_p50_us),
            us(row.plain_p99_us),
            us(row.mount_p99_us),
        ]);
    }
    out::line(table)?;
    out::line(format_args!(
        "medians of {} interleaved rounds of {} ms; a write and an fdatasync, or (replace) create, \
         write, fsync, rename, fsync of the directory",
        report.rounds, report.turn_ms
    ))?;
    Ok(())
}
