// SPDX-License-Identifier: MIT OR Apache-2.0
//! `forebay bench ssd`.

use forebay_bench::{SsdOptions, SsdReport};

use crate::args::medium::BenchSsd;
use crate::out::Table;
use crate::{out, units};

/// `json` prints the report as all benchmarks do.
pub fn run(a: &BenchSsd, json: impl Fn(&SsdReport) -> anyhow::Result<()>) -> anyhow::Result<()> {
    let bytes = u32::try_from(a.bytes).ok().filter(|n| (1..=1 << 20).contains(n));
    let options = SsdOptions {
        dir: a.dir.clone().unwrap_or_else(std::env::temp_dir),
        pool_bytes: a.pool_size,
        bytes: bytes.ok_or_else(|| anyhow::anyhow!("--bytes: 1 to 1M for an entry"))?,
        threads: a.threads.clone(),
        rounds: a.rounds,
        turn: a.turn,
    };
    let report = forebay_bench::ssd(&options)?;
    if a.json.json {
        return json(&report);
    }
    let mut table = Table::new(&[
        "threads", "groups/s", "p50", "p99", "mapped/s", "p50", "p99", "ratio", "writes",
        "flushes", "bytes",
    ]);
    for r in &report.rows {
        table.row(vec![
            r.threads.to_string(),
            units::count(r.groups_per_s as u64),
            units::nanoseconds(r.p50_ns),
            units::nanoseconds(r.p99_ns),
            units::count(r.mapped_per_s as u64),
            units::nanoseconds(r.mapped_p50_ns),
            units::nanoseconds(r.mapped_p99_ns),
            format!("{:.2}", r.ratio),
            format!("{:.2}", r.writes),
            format!("{:.2}", r.flushes),
            format!("{:.0}", r.written_bytes),
        ]);
    }
    out::line(table)?;
    out::line(format_args!(
        "durable appends of {} bytes; writes, flushes and bytes to the disk for each, of the pool \
         written in groups (durable by {}); medians of {} interleaved rounds of {} ms; {}",
        report.bytes, report.durable_by, report.rounds, report.turn_ms, report.media
    ))?;
    Ok(())
}
