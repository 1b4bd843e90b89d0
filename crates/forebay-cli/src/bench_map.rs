// SPDX-License-Identifier: MIT OR Apache-2.0
//! `forebay bench map`: syncs of files mapped onto a pool, compared with the kernel's.

use forebay_bench::{maps, MapBenchOptions};

use crate::out::Table;
use crate::{args, bench, out, units};

pub fn run(a: &args::BenchMap) -> anyhow::Result<()> {
    let options = MapBenchOptions {
        dir: a.dir.clone().unwrap_or_else(std::env::temp_dir),
        media_dir: a.media_dir.clone(),
        mapping_mib: a.mapping.iter().map(|bytes| bytes >> 20).collect(),
        dirty_pages: a.pages.clone(),
        rounds: a.rounds,
    };
    let report = maps(&options)?;
    if a.json.json {
        return bench::json(&report);
    }
    let us = |us: f64| units::nanoseconds((us * 1000.0) as u64);
    let head =
        ["<sync of", "mapping", "dirty pages", "p50", "p90", "a page more", "msync p50", "ratio"];
    let mut table = Table::new(&head);
    for row in &report.sync {
        table.row(vec![
            row.what.into(),
            format!("{} MiB", row.mapping_mib),
            row.dirty_pages.to_string(),
            us(row.p50_us),
            us(row.p90_us),
            row.added_us_a_page.map_or("-".into(), us),
            us(row.kernel_p50_us),
            format!("{:.1}", row.ratio),
        ]);
    }
    out::line(table)?;
    let mut table = Table::new(&["threads", "block", "MiB/s", "msync MiB/s", "ratio"]);
    for row in &report.writes {
        table.row(vec![
            row.threads.to_string(),
            units::bytes(row.block as u64),
            format!("{:.1}", row.mib_per_s),
            format!("{:.1}", row.kernel_mib_per_s),
            format!("{:.1}", row.ratio),
        ]);
    }
    out::line(table)?;
    out::line(format_args!(
        "first store to a page: {}, of the kernel {}; to a segment that was clean for some time: {}, if \
         many are stored to {}",
        us(report.store_us),
        us(report.kernel_store_us),
        us(report.store_to_clean_segment_us),
        us(report.store_to_watched_segment_us)
    ))?;
    out::line(format_args!(
        "all pages of 2 MiB touched: {}, of the kernel {}; the file cached: {} (the first page {}), of the \
         kernel {}",
        us(report.segment_us),
        us(report.kernel_segment_us),
        us(report.segment_warm_us),
        us(report.segment_first_page_us),
        us(report.kernel_segment_warm_us)
    ))?;
    out::line(format_args!(
        "loads {:.0} ns a KiB, of plain memory {:.0}",
        report.load_ns_per_kib, report.memory_load_ns_per_kib
    ))?;
    for missing in &report.missing {
        out::line(format_args!("missing: {missing}"))?;
    }
    Ok(())
}
