// SPDX-License-Identifier: MIT OR Apache-2.0
//! `forebay bench`.

use forebay_bench::{
    EngineOptions, Figures, LogOptions, MediaChoice, RecoveryOptions, SlotsOptions, SlotsTarget,
    ThreadsOptions,
};

use crate::args::{self, Bench, BenchMedia};
use crate::out::Table;
use crate::{out, units};

pub fn run(a: &Bench) -> anyhow::Result<u8> {
    match a {
        Bench::Engine(a) => engine(a)?,
        Bench::Recovery(a) => recovery(a)?,
        Bench::Read(a) => read(a)?,
        Bench::Static(a) => statics(a)?,
        Bench::Slots(a) => slots(a)?,
        Bench::Log(a) => log(a)?,
        Bench::Ssd(a) => crate::bench_ssd::run(a, json)?,
        Bench::Mount(a) => crate::bench_mount::run(a)?,
        Bench::Map(a) => crate::bench_map::run(a)?,
    }
    Ok(0)
}

/// The report, and the command that made it.
pub fn json(report: &impl serde::Serialize) -> anyhow::Result<()> {
    let mut value = serde_json::to_value(report)?;
    let words: Vec<String> = std::env::args().skip(1).collect();
    value["command"] = format!("forebay {}", words.join(" ")).into();
    out::json(&value)
}

/// Sets what was given, and leaves the rest as it is.
fn apply(a: &BenchMedia, media: &mut MediaChoice, pool_bytes: &mut u64, rounds: &mut u32) {
    if let Some(directory) = &a.dir {
        *media = MediaChoice::File(directory.clone());
    }
    *pool_bytes = a.pool_size.unwrap_or(*pool_bytes);
    *rounds = a.rounds.unwrap_or(*rounds);
}

fn engine(a: &args::BenchArgs) -> anyhow::Result<()> {
    let mut o = EngineOptions::default();
    apply(&a.media, &mut o.media, &mut o.pool_bytes, &mut o.rounds);
    if !a.threads.is_empty() {
        o.threads = a.threads.clone();
    }
    let report = forebay_bench::engine(&o)?;
    if a.media.json.json {
        return json(&report);
    }
    let mut table =
        Table::new(&["threads", "<what", "writes/s", "p50", "p99", "p99.9", "of floor"]);
    for t in &report.threads {
        for (what, figures) in [("raw", &t.raw), ("floor", &t.floor), ("engine", &t.engine)] {
            let share = figures.ops_per_s / t.floor.ops_per_s;
            table.row(row(t.n, what, figures, format!("{share:.2}")));
        }
    }
    out::line(table)?;
    out::line(format_args!(
        "{:.1} bytes of DRAM for each cached page; media: {}",
        report.dram_bytes_per_page, report.media
    ))?;
    Ok(())
}

fn row(threads: u32, what: &str, f: &Figures, last: String) -> Vec<String> {
    vec![
        threads.to_string(),
        what.into(),
        units::count(f.ops_per_s as u64),
        units::nanoseconds(f.p50_ns),
        units::nanoseconds(f.p99_ns),
        units::nanoseconds(f.p999_ns),
        last,
    ]
}

fn threads_options(a: &args::BenchArgs) -> ThreadsOptions {
    let mut o = ThreadsOptions::default();
    apply(&a.media, &mut o.media, &mut o.pool_bytes, &mut o.rounds);
    if !a.threads.is_empty() {
        o.threads = a.threads.clone();
    }
    o
}

fn read(a: &args::BenchArgs) -> anyhow::Result<()> {
    let report = forebay_bench::reads(&threads_options(a))?;
    if a.media.json.json {
        return json(&report);
    }
    let mut table =
        Table::new(&["threads", "<what", "reads/s", "p50", "p99", "p99.9", "/s a thread"]);
    for t in &report.threads {
        let each = units::count(t.ops_per_s_per_thread as u64);
        table.row(row(t.n, "verified hit", &t.hit, each));
    }
    out::line(table)?;
    out::line(format_args!("media: {}", report.media))?;
    Ok(())
}

fn statics(a: &args::BenchArgs) -> anyhow::Result<()> {
    let report = forebay_bench::statics(&threads_options(a))?;
    if a.media.json.json {
        return json(&report);
    }
    let mut table =
        Table::new(&["threads", "<what", "writes/s", "p50", "p99", "p99.9", "of floor"]);
    for t in &report.threads {
        table.row(row(t.n, "floor", &t.floor, "1.00".into()));
        table.row(row(t.n, "static", &t.write, format!("{:.2}", t.over_floor)));
    }
    out::line(table)?;
    out::line(format_args!(
        "a lookup: {:.0} ns by its place, {:.0} ns by the index\n\
         {:.3} bytes of DRAM for each page; open, dirty: {:.2} ms; media: {}",
        report.lookup_ns.by_place,
        report.lookup_ns.index,
        report.dram_bytes_per_page,
        report.open_ms,
        report.media
    ))?;
    Ok(())
}

fn recovery(a: &args::BenchRecovery) -> anyhow::Result<()> {
    let mut o = RecoveryOptions::default();
    apply(&a.media, &mut o.media, &mut o.pool_bytes, &mut o.rounds);
    o.threads = a.threads.unwrap_or(o.threads);
    let report = forebay_bench::recovery(&o)?;
    if a.media.json.json {
        return json(&report);
    }
    out::line(format_args!(
        "{:.3} s until usable (slowest {:.3} s): a pool of {}, {} dirty blocks, {} threads\n\
         {}/s of pool; media: {}",
        report.seconds,
        report.seconds_max,
        units::bytes(report.pool_bytes),
        units::count(report.blocks),
        report.threads,
        units::bytes(report.pool_bytes_per_s as u64),
        report.media,
    ))?;
    Ok(())
}

fn slots(a: &args::BenchSlots) -> anyhow::Result<()> {
    let mut o = SlotsOptions {
        target: if a.log { SlotsTarget::Log } else { SlotsTarget::Volume },
        media_bytes_per_s: a.media_rate,
        turn: a.turn,
        blocks: a.blocks,
        dir: a.bench.media.dir.clone(),
        persist: a.persist,
        ..Default::default()
    };
    o.pool_bytes = a.bench.media.pool_size.unwrap_or(o.pool_bytes);
    o.rounds = a.bench.media.rounds.unwrap_or(o.rounds);
    if !a.slots.is_empty() {
        o.slots = a.slots.clone();
    }
    if !a.bench.threads.is_empty() {
        o.threads = a.bench.threads.clone();
    }
    let report = forebay_bench::slots(&o)?;
    if a.bench.media.json.json {
        return json(&report);
    }
    let (rate, cpu) = match report.target {
        SlotsTarget::Volume => ("writes/s", "CPU a write"),
        SlotsTarget::Log => ("appends/s", "CPU an append"),
    };
    let mut table = Table::new(&["threads", "slots", rate, "low", "high", cpu, "low", "high"]);
    for c in &report.cells {
        let count = |n: f64| units::count(n as u64);
        let ns = |n: f64| units::nanoseconds(n as u64);
        table.row(vec![
            c.threads.to_string(),
            c.slots.to_string(),
            count(c.writes_per_s),
            count(c.writes_per_s_low),
            count(c.writes_per_s_high),
            ns(c.cpu_ns_per_write),
            ns(c.cpu_ns_per_write_low),
            ns(c.cpu_ns_per_write_high),
        ]);
    }
    out::line(table)?;
    out::line(format_args!(
        "medians of {} interleaved rounds of {} ms, lowest and highest; {} CPUs; auto is {} slots\n\
         media: {}",
        report.rounds, report.turn_ms, report.cpus, report.auto_slots, report.media
    ))?;
    Ok(())
}

fn log(a: &args::BenchLog) -> anyhow::Result<()> {
    let mut o =
        LogOptions { replay_bytes: a.replay, pmemlog: a.pmemlog.clone(), ..Default::default() };
    apply(&a.bench.media, &mut o.media, &mut o.pool_bytes, &mut o.rounds);
    if !a.bench.threads.is_empty() {
        o.threads = a.bench.threads.clone();
    }
    if !a.bytes.is_empty() {
        let fits = |&bytes: &u64| u32::try_from(bytes).ok().filter(|n| (1..=1 << 20).contains(n));
        let sizes: Option<Vec<u32>> = a.bytes.iter().map(fits).collect();
        o.bytes = sizes.ok_or_else(|| anyhow::anyhow!("--bytes: 1 to 1M for an entry"))?;
    }
    let report = forebay_bench::logs(&o)?;
    if a.bench.media.json.json {
        return json(&report);
    }
    let mut table = Table::new(&[
        "bytes",
        "threads",
        "logs",
        "appends/s",
        "p50",
        "p99",
        "p99.9",
        "of floor",
        "of libpmemlog",
    ]);
    for c in &report.appends {
        table.row(vec![
            c.bytes.to_string(),
            c.threads.to_string(),
            c.logs.to_string(),
            units::count(c.ops_per_s as u64),
            units::nanoseconds(c.append.p50_ns),
            units::nanoseconds(c.append.p99_ns),
            units::nanoseconds(c.append.p999_ns),
            format!("{:.2}", c.over_floor),
            c.over_libpmemlog.map_or("-".into(), |r| format!("{r:.2}")),
        ]);
    }
    out::line(table)?;
    let rate = |r: Option<f64>| r.map_or("-".into(), |r| units::bytes(r as u64));
    out::line(format_args!(
        "open and claim {}/s, replay {}/s, both {}/s; {} bytes of DRAM for each entry held\n\
         medians of {} interleaved rounds; media: {}",
        rate(report.claim_bytes_per_s),
        rate(report.replay_bytes_per_s),
        rate(report.claim_and_replay_bytes_per_s),
        report.dram_bytes_per_entry,
        report.rounds,
        report.media,
    ))?;
    Ok(())
}
