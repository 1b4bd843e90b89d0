// SPDX-License-Identifier: MIT OR Apache-2.0
//! The suite: every case once, as JSON, as pictures, and on one page with the
//! machine's facts and the commands.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use plotters::prelude::*;
use serde::Serialize;

use crate::cases::{self, MixedCell, Say, Sustained};
use crate::measure::WINDOW;
use crate::origin::Speed;

const SIZE: (u32, u32) = (860, 420);

fn save(out: &Path, name: &str, report: &impl Serialize) -> Result<()> {
    let path = out.join(name);
    let text = serde_json::to_string_pretty(report)? + "\n";
    fs::write(&path, text).with_context(|| format!("{}: cannot be written", path.display()))
}

/// Bandwidth over time, and the origin's own.
fn plot_sustained(path: &Path, s: &Sustained) -> Result<()> {
    let root = SVGBackend::new(path, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let top = 2.0 * s.steady_per_s.max(s.origin_per_s);
    let mut chart = ChartBuilder::on(&root)
        .caption("4 KiB random writes, sustained", ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(70)
        .build_cartesian_2d(0.0..s.seconds, 0.0..top)?;
    chart.configure_mesh().x_desc("seconds").y_desc("writes a second").draw()?;
    let step = WINDOW.as_secs_f64();
    let points = s.windows_per_s.iter().enumerate();
    chart
        .draw_series(LineSeries::new(
            points.map(|(i, w)| (step * (i + 1) as f64, w.min(top))),
            &BLUE,
        ))?
        .label("through Forebay")
        .legend(|(x, y)| PathElement::new([(x, y), (x + 20, y)], BLUE));
    let alone = [(0.0, s.origin_per_s), (s.seconds, s.origin_per_s)];
    chart
        .draw_series(LineSeries::new(alone, &RED))?
        .label("the origin alone")
        .legend(|(x, y)| PathElement::new([(x, y), (x + 20, y)], RED));
    chart.configure_series_labels().background_style(WHITE).border_style(BLACK).draw()?;
    root.present()?;
    Ok(())
}

/// Each cell's ratio, with its lowest and highest round.
fn plot_mixed(path: &Path, cells: &[MixedCell]) -> Result<()> {
    let root = SVGBackend::new(path, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let top = cells.iter().map(|c| c.ratio_high).fold(1.0, f64::max) * 1.2;
    let low = cells.iter().map(|c| c.ratio_low).fold(1.0, f64::min) / 1.2;
    let mut chart = ChartBuilder::on(&root)
        .caption("reads and writes mixed: Forebay over the origin alone", ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(70)
        .build_cartesian_2d(0..cells.len() + 1, (low..top).log_scale())?;
    let name = |i: &usize| match i.checked_sub(1).and_then(|i| cells.get(i)) {
        Some(c) => format!("{}% x{}", c.write_percent, c.clients),
        None => String::new(),
    };
    chart
        .configure_mesh()
        .x_labels(cells.len() + 1)
        .x_label_formatter(&name)
        .x_desc("writes, clients")
        .y_desc("ratio")
        .draw()?;
    chart.draw_series(LineSeries::new([(0, 1.0), (cells.len() + 1, 1.0)], &RED))?;
    let bars = cells.iter().enumerate().map(|(i, c)| {
        ErrorBar::new_vertical(i + 1, c.ratio_low, c.ratio, c.ratio_high, BLUE.filled(), 10)
    });
    chart.draw_series(bars)?;
    root.present()?;
    Ok(())
}

fn machine() -> String {
    let field = |path: &str, name: &str| -> Option<String> {
        let text = fs::read_to_string(path).ok()?;
        let line = text.lines().find(|l| l.starts_with(name))?;
        Some(line.split_once(':')?.1.trim().to_string())
    };
    let cpus = std::thread::available_parallelism().map_or(0, usize::from);
    format!(
        "{cpus} CPUs, {}; {} of memory; Linux {}. The pool is DRAM standing in for \
         persistent memory; the origins are memory that serves requests at a steady rate.",
        field("/proc/cpuinfo", "model name").unwrap_or_else(|| "unknown".into()),
        field("/proc/meminfo", "MemTotal").unwrap_or_else(|| "unknown".into()),
        fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim()
    )
}

fn row(table: &mut String, what: &str, value: String, command: &str) {
    let _ = writeln!(
        table,
        "<tr><td>{what}</td><td>{value}</td><td><code>forebay-load {command}</code></td></tr>"
    );
}

/// Runs every case and writes the directory.
pub fn suite(out: &Path, seconds: u64, disk: &str, speed: Speed, say: Say<'_>) -> Result<()> {
    fs::create_dir_all(out).with_context(|| format!("{}: cannot be made", out.display()))?;
    let mut table = String::new();
    let options = format!("--seconds {seconds} --disk {disk} --json");

    say("sustained");
    let s = cases::sustained(seconds, 16, speed, say)?;
    save(out, "sustained.json", &s)?;
    plot_sustained(&out.join("sustained.svg"), &s)?;
    row(
        &mut table,
        "sustained random writes over the origin's own rate",
        format!("{:.2}", s.steady_over_origin),
        &format!("sustained {options}"),
    );
    row(
        &mut table,
        "coefficient of variation of 0.5 s windows",
        format!("{:.3}", s.coefficient_of_variation),
        "",
    );
    row(
        &mut table,
        "p99.9 of a write, throttling included",
        format!("{:.1} ms", s.latency.p999_us / 1e3),
        "",
    );

    say("hot set");
    let h = cases::hot_set(seconds, speed, say)?;
    save(out, "hot-set.json", &h)?;
    row(
        &mut table,
        "hot set: blocks written to the origin over blocks taken in",
        format!("{:.2}", h.blocks_over_writes),
        &format!("hot-set {options}"),
    );

    say("fsync tail");
    let f = cases::fsync_tail(seconds, speed, say)?;
    save(out, "fsync-tail.json", &f)?;
    row(
        &mut table,
        "p99.9 of write + flush during a drain over the quiet one",
        format!("{:.2}", f.p999_ratio),
        &format!("fsync-tail {options}"),
    );

    say("stall");
    let t = cases::stall(seconds, speed, say)?;
    save(out, "stall.json", &t)?;
    row(
        &mut table,
        "throughput of a volume while another's origin stalls, over before",
        format!("{:.2}", t.ratio),
        &format!("stall {options}"),
    );

    say("mixed");
    let m = cases::mixed(seconds, speed, say)?;
    save(out, "mixed.json", &m)?;
    plot_mixed(&out.join("mixed.svg"), &m)?;
    let least = m.iter().map(|c| c.ratio).fold(f64::INFINITY, f64::min);
    row(
        &mut table,
        "mixed loads: lowest ratio over the origin alone",
        format!("{least:.2}"),
        &format!("mixed {options}"),
    );

    let page = format!(
        "<!doctype html>\n<meta charset=\"utf-8\">\n<title>Forebay under load</title>\n\
         <style>body{{font:16px/1.5 sans-serif;max-width:900px;margin:2em auto}}\
         td{{padding:.2em 1em .2em 0}}img{{max-width:100%}}</style>\n\
         <h1>Forebay under load</h1>\n<p>{}</p>\n\
         <p>Origin: {} requests/s, {} MB/s, {} us a request, {} us a flush.</p>\n\
         <table>\n{table}</table>\n\
         <p><img src=\"sustained.svg\" alt=\"writes a second over time\"></p>\n\
         <p><img src=\"mixed.svg\" alt=\"ratios of mixed loads\"></p>\n",
        machine(),
        speed.requests_per_s,
        speed.bytes_per_s / 1_000_000,
        speed.latency_us,
        speed.flush_us,
    );
    let path = out.join("index.html");
    fs::write(&path, page).with_context(|| format!("{}: cannot be written", path.display()))?;
    say(&format!("see {}", path.display()));
    Ok(())
}
