// SPDX-License-Identifier: MIT OR Apache-2.0
//! `forebay bench mount`: compares a directory of the disk with a mount of such a directory.

use anyhow::bail;
use forebay_bench::{mounts, MountBenchOptions};

use crate::mount_bed::MountBed;
use crate::out::Table;
use crate::{args, bench, out, units};

pub fn run(a: &args::BenchMount) -> anyhow::Result<()> {
    let mut bytes = Vec::new();
    for &n in &a.bytes {
        bytes.push(u32::try_from(n).ok().filter(|n| (1..=1 << 20).contains(n)));
    }
    let Some(bytes) = bytes.into_iter().collect() else { bail!("--bytes: 1 to 1M") };
    let name = format!("forebay-bench-mount-{}", std::process::id());
    let above = a.dir.clone().unwrap_or_else(std::env::temp_dir);
    let pool = a.media_dir.join(format!("{name}.pool"));
    let mut bed = MountBed::new(above.join(name), pool, a.pool_size, a.medium)?;
    // Otherwise a disk on which names are slow would be refused, and not measured.
    let slow_log = a.medium == forebay::MediumChoice::Ssd;
    let given =
        [("--write-back", a.write_back), ("--log-writes", a.log_writes), ("--slow-log", slow_log)];
    let given: Vec<&str> = given.iter().filter(|(_, given)| *given).map(|(how, _)| *how).collect();
    bed.mount(&given)?;
    let options = MountBenchOptions {
        plain: bed.plain(),
        mount: bed.at(),
        cases: a.what.clone(),
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
