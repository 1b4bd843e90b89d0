// SPDX-License-Identifier: MIT OR Apache-2.0
//! `forebay-sim`: makes losing data something that the tests find.
#![forbid(unsafe_code)]

mod sweep;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use clap::{Args, Parser, Subcommand};
use forebay_sim::dst;
use forebay_sim::explore::{explore, explore_format, Bounds, Explored};
use forebay_sim::script::{random, small, Script};
use forebay_sim::{damage, flips, golden, groups, hooks, isolation, logs, pace, static_workloads};
use serde::Serialize;

use sweep::{in_threads, Report, Row, NO_PANIC};

#[derive(Parser)]
#[command(
    name = "forebay-sim",
    version,
    about = "Simulated crashes and faults for Forebay's engine"
)]
struct Cli {
    /// Print one JSON object instead of text
    #[arg(long, global = true)]
    json: bool,
    /// Replay one seed of the simulation
    #[arg(long)]
    seed: Option<u64>,
    /// Run seeds of the simulation for so long
    #[arg(long)]
    seconds: Option<u64>,
    /// First seed of --seconds and --runs
    #[arg(long, default_value_t = 1)]
    first: u64,
    /// Run so many seeds of the simulation
    #[arg(long)]
    runs: Option<u64>,
    #[arg(long, global = true, default_value_t = 2)]
    threads: usize,
    /// With --seed: print every event
    #[arg(long)]
    trace: bool,
    /// Plant one of the deliberate mistakes, by name, to replay what caught it
    #[cfg(feature = "planted-bugs")]
    #[arg(long, global = true)]
    plant: Option<String>,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Recover every image that a power cut may leave
    Explore(ExploreArgs),
    /// Explore crashes of logs: appends, syncs, claims and replays; and each bit of their
    /// headers
    Logs(LogsArgs),
    /// Explore logs of a pool on a block device: every order of its requests, cut at each; and
    /// damage to its blocks
    Groups(GroupsArgs),
    /// Flip every bit of what recovery trusts, and random ones of the data
    Flips(FlipsArgs),
    /// Damage two structures at once, or a range, or one and cut the recovery
    Damage(DamageArgs),
    /// Compare what each operation stores to the media with the golden table
    Golden(GoldenArgs),
    /// A full cache in front of a disk of a steady rate, in virtual time
    #[command(after_help = PACE_EXAMPLES)]
    Pace(PaceArgs),
    /// Measure the effect of a volume with a faulty origin on its neighbour, in virtual time
    #[command(after_help = ISOLATION_EXAMPLES)]
    Isolation(IsolationArgs),
    /// Plant each deliberate mistake in the engine: each must be found
    #[cfg(feature = "planted-bugs")]
    Planted(PlantedArgs),
}

const PACE_EXAMPLES: &str = "Examples:
  forebay-sim pace                                       2,000 requests/s, 500 us
  forebay-sim pace --service 2500 --latency 2000 --flush 8000 --pool 16   a disk
  forebay-sim pace --service 50 --latency 80 --flush 500 --reads 10 --json
  forebay-sim pace --pool 512 --chunk 2048 --times 2 --seconds 60 --zipf 0.9 --sequential 20";

const ISOLATION_EXAMPLES: &str = "Examples:
  forebay-sim isolation                    every way to be ill, light and heavy neighbours
  forebay-sim isolation --idle 30 --chunk 256      in a pool of 63 chunks and 32 volumes";

#[derive(Args)]
struct IsolationArgs {
    #[command(flatten)]
    bench: isolation::Bench,
}

#[derive(Args)]
struct PaceArgs {
    #[command(flatten)]
    load: pace::Load,
    #[command(flatten)]
    disk: pace::Disk,
}

#[derive(Args)]
struct GoldenArgs {
    /// The table
    #[arg(long, default_value = "tests/golden/persist.txt")]
    file: PathBuf,
    /// Write the table as it is now
    #[arg(long)]
    bless: bool,
}

#[cfg(feature = "planted-bugs")]
#[derive(Args)]
struct PlantedArgs {
    /// Seconds for each before it counts as not found
    #[arg(long, default_value_t = 60)]
    limit: u64,
    /// Only this one
    #[arg(long)]
    only: Option<String>,
    /// In this process: the number of one, see core/medium/planted.h
    #[arg(long, hide = true)]
    hunt: Option<u32>,
}

#[derive(Args)]
struct FlipsArgs {
    /// Random flips in data
    #[arg(long, default_value_t = 100_000)]
    data: u64,
    /// Flip one in so many of the other bits
    #[arg(long, default_value_t = 1)]
    every: u64,
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

#[derive(Args)]
struct DamageArgs {
    /// Try one in so many of all damages
    #[arg(long, default_value_t = 1)]
    every: usize,
    /// Chooses the bits that flip, and with --every the damages
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Most images of a cut in a recovery
    #[arg(long, default_value_t = 16)]
    bound: u64,
    /// Cut the recovery of pairs in one chunk too: minutes
    #[arg(long)]
    pair_cuts: bool,
}

#[derive(Args)]
struct ExploreArgs {
    /// Go on with random workloads until so many distinct images were seen
    #[arg(long, default_value_t = 1_000_000)]
    images: u64,
    /// First seed of the random workloads
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Only the named workload, "seed N" or "static N"
    #[arg(long)]
    only: Option<String>,
    /// Only workloads of static volumes
    #[arg(long)]
    statics: bool,
    /// Most images of one cut; more are sampled
    #[arg(long, default_value_t = 1 << 14)]
    bound: u64,
    /// Stop after so many seconds
    #[arg(long)]
    seconds: Option<u64>,
}

#[derive(Args)]
struct LogsArgs {
    /// Go on with random workloads until so many distinct images were seen
    #[arg(long, default_value_t = 500_000)]
    images: u64,
    /// First seed of the random workloads
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Only the named workload, or "seed N"
    #[arg(long)]
    only: Option<String>,
    /// Flip one in so many bits of each header
    #[arg(long, default_value_t = 1)]
    every: u32,
    /// Most images of one cut; more are sampled
    #[arg(long, default_value_t = 512)]
    bound: u64,
}

#[derive(Args)]
struct GroupsArgs {
    /// Go on with random scenes until so many distinct images were seen
    #[arg(long, default_value_t = 1_000_000)]
    images: u64,
    /// First seed of the random scenes
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Only the named scene, "seed N" or "volumes N"
    #[arg(long)]
    only: Option<String>,
    /// Most runs of one scene; others are drawn
    #[arg(long, default_value_t = 2000)]
    runs: u64,
    /// Most images of one cut that are not sampled
    #[arg(long, default_value_t = 256)]
    bound: u64,
    /// Mutations of blocks while nobody has the pool open
    #[arg(long, default_value_t = 1000)]
    hostile: u64,
    /// Flip one in so many bits of a pool with a volume
    #[arg(long, default_value_t = 61)]
    every: usize,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    #[cfg(feature = "planted-bugs")]
    if let Some(name) = &cli.plant {
        let bug = forebay_engine::sys::planted_bugs().into_iter().find(|(_, n, _)| n == name);
        let Some((id, ..)) = bug else {
            eprintln!("forebay-sim: no planted bug is named {name}, see core/medium/planted.h");
            return ExitCode::FAILURE;
        };
        forebay_engine::planted::plant(id);
    }
    // Planted bugs are hunted in processes of their own, with watchdogs of their own.
    #[cfg(feature = "planted-bugs")]
    let watched = !matches!(cli.command, Some(Command::Planted(_)));
    #[cfg(not(feature = "planted-bugs"))]
    let watched = true;
    if watched {
        hooks::watchdog(Duration::from_secs(60));
    }
    let ok = match &cli.command {
        None => run_seeds(&cli),
        Some(Command::Flips(args)) => run_flips(args, cli.threads, cli.json),
        Some(Command::Damage(args)) => run_damage(args, cli.threads, cli.json),
        Some(Command::Golden(args)) => run_golden(args, cli.json),
        Some(Command::Pace(args)) => run_pace(args, cli.json),
        Some(Command::Isolation(args)) => run_isolation(&args.bench, cli.json),
        #[cfg(feature = "planted-bugs")]
        Some(Command::Planted(args)) => run_planted(args, cli.threads, cli.json),
        Some(Command::Explore(args)) => run_explore(args, cli.threads, cli.json),
        Some(Command::Groups(args)) => run_groups(args, cli.threads, cli.json),
        Some(Command::Logs(args)) => run_logs(args, cli.threads, cli.json),
    };
    if ok {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

#[derive(Serialize)]
struct SeedsReport {
    #[serde(flatten)]
    totals: dst::Tally,
    seconds: f64,
    violations: Vec<String>,
}

/// Seeds of the simulation: one, or many until time or number is reached.
fn run_seeds(cli: &Cli) -> bool {
    let start = Instant::now();
    let next = AtomicU64::new(cli.seed.unwrap_or(cli.first));
    let last = match (cli.seed, cli.runs) {
        (Some(seed), _) => seed,
        (None, Some(runs)) => cli.first + runs - 1,
        (None, None) if cli.seconds.is_some() => u64::MAX,
        (None, None) => cli.first + 999,
    };
    let limit = cli.seconds.map(Duration::from_secs);
    let totals = Mutex::new(dst::Tally::default());
    let violations = Mutex::new(Vec::new());
    let worker = || loop {
        let seed = next.fetch_add(1, Ordering::Relaxed);
        let over = limit.is_some_and(|l| start.elapsed() > l);
        if seed > last || over || violations.lock().expect(NO_PANIC).len() >= 3 {
            return;
        }
        match dst::run(seed, cli.trace) {
            Ok(t) => totals.lock().expect(NO_PANIC).add(&t),
            Err(e) => violations.lock().expect(NO_PANIC).push(e),
        }
    };
    in_threads(if cli.seed.is_some() { 1 } else { cli.threads }, worker);
    let report = SeedsReport {
        totals: totals.into_inner().expect(NO_PANIC),
        seconds: start.elapsed().as_secs_f64(),
        violations: violations.into_inner().expect(NO_PANIC),
    };
    if cli.json {
        println!("{}", serde_json::to_string(&report).expect("plain data"));
    } else {
        println!("{:#?}", report.totals);
        println!("{} faults injected, {:.1} s", report.totals.faults(), report.seconds);
        report.violations.iter().for_each(|v| println!("VIOLATION: {v}"));
    }
    report.violations.is_empty()
}

#[derive(Serialize)]
struct ExploreReport {
    #[serde(flatten)]
    totals: Explored,
    seconds: f64,
    violations: Vec<String>,
}

#[derive(Serialize)]
struct LogsReport {
    #[serde(flatten)]
    totals: logs::Explored,
    damaged: u64,
    seconds: f64,
    violations: Vec<String>,
}

fn run_logs(args: &LogsArgs, threads: usize, json: bool) -> bool {
    let start = Instant::now();
    let bounds = logs::Bounds { images: args.bound, nested: 8, nested_every: 16, go_on_every: 8 };
    let mut fixed = logs::small();
    fixed.extend(logs::beside::small());
    if let Some(only) = &args.only {
        fixed.retain(|s| s.name == *only);
        if let Some(seed) = only.strip_prefix("seed ").and_then(|n| n.parse().ok()) {
            fixed.push(logs::random(seed));
        }
        if let Some(seed) = only.strip_prefix("mixed ").and_then(|n| n.parse().ok()) {
            fixed.push(logs::beside::random(seed));
        }
        if fixed.is_empty() {
            eprintln!("forebay-sim: no workload of logs is named '{only}'");
            return false;
        }
    }
    let (next, distinct) = (AtomicUsize::new(0), AtomicU64::new(0));
    let totals = Mutex::new(logs::Explored::default());
    let violations = Mutex::new(Vec::new());
    let worker = || loop {
        let n = next.fetch_add(1, Ordering::Relaxed);
        let script = match fixed.get(n) {
            Some(s) => s.clone(),
            None if args.only.is_some() || distinct.load(Ordering::Relaxed) >= args.images => {
                return;
            }
            None => match (args.seed, (n - fixed.len()) as u64) {
                (seed, n) if n.is_multiple_of(2) => logs::random(seed + n / 2),
                (seed, n) => logs::beside::random(seed + n / 2),
            },
        };
        if !violations.lock().expect(NO_PANIC).is_empty() {
            return;
        }
        match logs::explore(&script, bounds, None) {
            Ok(seen) => {
                distinct.fetch_add(seen.distinct, Ordering::Relaxed);
                totals.lock().expect(NO_PANIC).add(&seen);
            }
            Err(e) => violations.lock().expect(NO_PANIC).push(e),
        }
    };
    std::thread::scope(|scope| {
        (0..threads).for_each(|_| drop(scope.spawn(worker)));
    });
    let mut violations: Vec<String> = violations.into_inner().expect(NO_PANIC);
    let damaged = match args.only {
        None => logs::damage::all(args.every.max(1)),
        Some(_) => Ok(0),
    };
    let report = LogsReport {
        totals: totals.into_inner().expect(NO_PANIC),
        damaged: damaged.unwrap_or_else(|e| {
            violations.push(format!("damage: {e}"));
            0
        }),
        seconds: start.elapsed().as_secs_f64(),
        violations,
    };
    if json {
        println!("{}", serde_json::to_string(&report).expect("plain data"));
    } else {
        println!(
            "{:?}, {} damaged images in {:.1} s",
            report.totals, report.damaged, report.seconds
        );
        report.violations.iter().for_each(|v| println!("VIOLATION: {v}"));
    }
    report.violations.is_empty()
}

#[derive(Serialize)]
struct GroupsReport {
    #[serde(flatten)]
    totals: groups::Explored,
    others: groups::Others,
    seconds: f64,
    violations: Vec<String>,
}

fn run_groups(args: &GroupsArgs, threads: usize, json: bool) -> bool {
    let start = Instant::now();
    let bounds = groups::Bounds::new(args.bound, args.runs);
    let fixed: Vec<_> = match &args.only {
        None => groups::Any::small(),
        Some(only) => groups::Any::named(only).into_iter().collect(),
    };
    if let (Some(only), true) = (&args.only, fixed.is_empty()) {
        eprintln!("forebay-sim: no scene of groups is named '{only}'");
        return false;
    }
    let (next, distinct) = (AtomicUsize::new(0), AtomicU64::new(0));
    let totals = Mutex::new(groups::Explored::default());
    let violations = Mutex::new(Vec::new());
    let worker = || loop {
        let n = next.fetch_add(1, Ordering::Relaxed);
        let scene = match fixed.get(n) {
            Some(s) => s.clone(),
            None if args.only.is_some() || distinct.load(Ordering::Relaxed) >= args.images => {
                return;
            }
            None => groups::Any::random(args.seed + (n - fixed.len()) as u64),
        };
        if !violations.lock().expect(NO_PANIC).is_empty() {
            return;
        }
        let t = Instant::now();
        match scene.explore(bounds, None) {
            Ok(seen) => {
                if !json {
                    println!(
                        "{:44} {:6} runs{} {:8} cuts {:9} images {:8} distinct {:6.2} s",
                        scene.name(),
                        seen.runs,
                        if seen.complete == 1 { ", all" } else { "     " },
                        seen.cuts,
                        seen.images,
                        seen.distinct,
                        t.elapsed().as_secs_f64()
                    );
                }
                distinct.fetch_add(seen.distinct, Ordering::Relaxed);
                totals.lock().expect(NO_PANIC).add(&seen);
            }
            Err(e) => violations.lock().expect(NO_PANIC).push(e),
        }
    };
    in_threads(threads, worker);
    let mut violations: Vec<String> = violations.into_inner().expect(NO_PANIC);
    let others = match args.only {
        None => groups::others(args.hostile, args.every),
        Some(_) => Ok(groups::Others::default()),
    };
    let others = others.unwrap_or_else(|e| {
        violations.push(e);
        groups::Others::default()
    });
    let report = GroupsReport {
        totals: totals.into_inner().expect(NO_PANIC),
        others,
        seconds: start.elapsed().as_secs_f64(),
        violations,
    };
    if json {
        println!("{}", serde_json::to_string(&report).expect("plain data"));
    } else {
        println!("{:?}, {:?}, in {:.1} s", report.totals, report.others, report.seconds);
        report.violations.iter().for_each(|v| println!("VIOLATION: {v}"));
    }
    report.violations.is_empty()
}

fn run_explore(args: &ExploreArgs, threads: usize, json: bool) -> bool {
    let start = Instant::now();
    let bounds = Bounds { images: args.bound, nested: 64, nested_every: 16, go_on_every: 16 };
    let mut fixed = if args.statics { Vec::new() } else { small() };
    fixed.extend(static_workloads::small());
    if let Some(only) = &args.only {
        fixed.retain(|s| s.name == *only);
        if let Some(seed) = only.strip_prefix("seed ").and_then(|n| n.parse().ok()) {
            fixed.push(random(seed, 12));
        }
        if let Some(seed) = only.strip_prefix("static ").and_then(|n| n.parse().ok()) {
            fixed.push(static_workloads::random(seed, 12));
        }
        if fixed.is_empty() {
            eprintln!("forebay-sim: no workload is named '{only}'");
            return false;
        }
    }
    let next = AtomicUsize::new(0);
    let distinct = AtomicU64::new(0);
    let totals = Mutex::new(Explored::default());
    let violations = Mutex::new(Vec::new());
    let late = || args.seconds.is_some_and(|s| start.elapsed() > Duration::from_secs(s));
    let worker = || loop {
        let n = next.fetch_add(1, Ordering::Relaxed);
        let script: Script = match fixed.get(n) {
            Some(s) => s.clone(),
            None if args.only.is_some() || distinct.load(Ordering::Relaxed) >= args.images => {
                return
            }
            // Every third is of static volumes, or all are.
            None => match args.seed + (n - fixed.len()) as u64 {
                seed if args.statics || seed.is_multiple_of(3) => {
                    static_workloads::random(seed, 12)
                }
                seed => random(seed, 12),
            },
        };
        if late()
            || !violations
                .lock()
                .is_ok_and(|v: std::sync::MutexGuard<'_, Vec<String>>| v.is_empty())
        {
            return;
        }
        let t = Instant::now();
        // The first workload is formatting over a pool.
        let explored = if n == 0 && args.only.is_none() && !args.statics {
            explore_format(&script, bounds).and_then(|format| {
                let mut both = explore(&script, bounds, None)?;
                both.add(&format);
                Ok(both)
            })
        } else {
            explore(&script, bounds, None)
        };
        match explored {
            Ok(e) => {
                if !json {
                    println!(
                        "{:36} {:5} cuts {:8} images {:8} distinct {:8} recoveries {:6.2} s",
                        script.name,
                        e.cuts,
                        e.images,
                        e.distinct,
                        e.recoveries,
                        t.elapsed().as_secs_f64()
                    );
                }
                distinct.fetch_add(e.distinct, Ordering::Relaxed);
                totals.lock().expect(NO_PANIC).add(&e);
            }
            Err(e) => violations.lock().expect(NO_PANIC).push(e),
        }
    };
    in_threads(threads, worker);
    let report = ExploreReport {
        totals: totals.into_inner().expect(NO_PANIC),
        seconds: start.elapsed().as_secs_f64(),
        violations: violations.into_inner().expect(NO_PANIC),
    };
    if json {
        println!("{}", serde_json::to_string(&report).expect("plain data"));
    } else {
        println!("{:?} in {:.1} s", report.totals, report.seconds);
        report.violations.iter().for_each(|v| println!("VIOLATION: {v}"));
    }
    report.violations.is_empty()
}

impl Row for flips::Row {
    const COLUMNS: &'static [&'static str] =
        &["pool", "flipped in", "flips", "harmless", "isolated", "torn", "asked", "accepted"];

    fn cells(&self) -> Vec<String> {
        let words = [format!("{:?}", self.state), format!("{:?}", self.region)];
        let numbers =
            [self.flips, self.harmless, self.isolated, self.torn, self.asked, self.accepted];
        cells(words, &numbers)
    }
}

impl Row for damage::Row {
    const COLUMNS: &'static [&'static str] =
        &["pool", "damage", "images", "harmless", "isolated", "accepted", "refused", "passed"];

    fn cells(&self) -> Vec<String> {
        let words = [format!("{:?}", self.state), format!("{:?}", self.kind)];
        let numbers =
            [self.images, self.harmless, self.isolated, self.accepted, self.refused, self.passed];
        cells(words, &numbers)
    }

    fn merge(&mut self, other: &Self) -> bool {
        let same = (self.state, self.kind) == (other.state, other.kind);
        if same {
            self.add(other);
        }
        same
    }
}

fn cells(words: [String; 2], numbers: &[u64]) -> Vec<String> {
    let words = words.iter().map(|w| w.to_lowercase());
    words.chain(numbers.iter().map(u64::to_string)).collect()
}

fn run_flips(args: &FlipsArgs, threads: usize, json: bool) -> bool {
    let jobs = flips::jobs(args.data);
    Report::run(threads, &jobs, |&(state, region, random)| {
        flips::flip_region(state, region, args.every, random, args.seed)
    })
    .print(json)
}

fn run_damage(args: &DamageArgs, threads: usize, json: bool) -> bool {
    let jobs = damage::jobs(args.every, args.seed, args.bound, args.pair_cuts);
    Report::run(threads, &jobs, damage::run).print(json)
}

fn run_golden(args: &GoldenArgs, json: bool) -> bool {
    let costs = match golden::measure() {
        Ok(costs) => costs,
        Err(e) => {
            eprintln!("forebay-sim: {e}");
            return false;
        }
    };
    let table = golden::table(&costs);
    if json {
        println!("{}", serde_json::to_string(&costs).expect("plain data"));
    } else {
        print!("{table}");
    }
    let file = args.file.display();
    if args.bless {
        if let Err(e) = std::fs::write(&args.file, &table) {
            eprintln!("forebay-sim: cannot write {file}: {e}");
            return false;
        }
        return true;
    }
    let kept = match std::fs::read_to_string(&args.file) {
        Ok(kept) => kept,
        Err(e) => {
            eprintln!("forebay-sim: cannot read {file}: {e}; --bless writes it");
            return false;
        }
    };
    let differ = golden::differences(&kept, &table);
    for (was, is) in &differ {
        eprintln!("{file} has:  {was}\nmeasured is: {is}");
    }
    if !differ.is_empty() {
        eprintln!("forebay-sim: if this is meant, run with --bless and say why in the commit");
    }
    differ.is_empty()
}

fn run_pace(args: &PaceArgs, json: bool) -> bool {
    let report = match pace::run(&args.load, &args.disk) {
        Ok(report) => report,
        Err(e) => {
            eprintln!("forebay-sim: {e}");
            return false;
        }
    };
    if json {
        println!("{}", serde_json::to_string(&report).expect("plain data"));
        return true;
    }
    let r = report;
    println!("writes                {:10.0} /s, reads {:.0} /s", r.writes_per_s, r.reads_per_s);
    println!(
        "origin writes         {:10.0} /s, rounds {:.1} /s",
        r.origin_writes_per_s, r.rounds_per_s
    );
    println!(
        "writes for each       {:10.3}, pages in each {:.3}",
        r.writes_per_origin_write, r.pages_per_origin_write
    );
    println!(
        "disk busy             {:10.3}, and flushing {:.3}; live share of the pool {:.3}",
        r.disk_busy, r.disk_flushing, r.live
    );
    println!(
        "variation             {:10.3}, of writes in half seconds",
        r.coefficient_of_variation
    );
    println!(
        "slowest window        {:10.0} /s, {} with nothing",
        r.slowest_window_per_s, r.windows_with_nothing
    );
    println!("oldest                {:10.1} s that the origin lacked", r.oldest_s);
    println!("writes that met full  {:10}", r.waits_space);
    println!("copies for a write    {:10.3}", r.copies_per_write);
    println!(
        "longest run first     {:10.3} writes for each with 0.8 of the pool dirty, {:.3} with 0.9",
        r.ideal_at_80, r.ideal_at_90
    );
    true
}

fn run_isolation(bench: &isolation::Bench, json: bool) -> bool {
    let each = isolation::NEIGHBOURS.iter().map(|n| isolation::run(bench, *n));
    let cells = match each.collect::<Result<Vec<_>, _>>() {
        Ok(cells) => cells.concat(),
        Err(e) => {
            eprintln!("forebay-sim: {e}");
            return false;
        }
    };
    if json {
        println!("{}", serde_json::to_string(&cells).expect("plain data"));
    } else {
        println!(
            "{:14} {:10} {:>10} {:>10} {:>6} {:>12} {:>12} {:>6} {:>8}",
            "ill", "neighbour", "writes/s", "was", "ratio", "p99.9 us", "was", "ratio", "chunks"
        );
        for c in &cells {
            println!(
                "{:14} {:10} {:10.0} {:10.0} {:6.3} {:12.1} {:12.1} {:6.2} {:>8}",
                format!("{:?}", c.ill).to_lowercase(),
                format!("{:?}", c.neighbour).to_lowercase(),
                c.beside_ill.writes_per_s,
                c.beside_well.writes_per_s,
                c.throughput_ratio,
                c.beside_ill.p999_us,
                c.beside_well.p999_us,
                c.p999_ratio,
                format!("{}/{}", c.ill_chunks, c.chunks)
            );
        }
    }
    let broken: Vec<_> = cells.iter().filter_map(|c| isolation::kept(c).err()).collect();
    broken.iter().for_each(|b| println!("NOT KEPT: {b}"));
    broken.is_empty()
}

#[cfg(feature = "planted-bugs")]
fn run_planted(args: &PlantedArgs, threads: usize, json: bool) -> bool {
    use forebay_sim::planted::{hunt, hunt_apart, Hunt, FOUND_ELSEWHERE};
    let limit = Duration::from_secs(args.limit);
    if let Some(id) = args.hunt {
        return match hunt(id, limit) {
            None => true,
            Some((by, evidence)) => {
                println!("{by}\n{evidence}");
                false
            }
        };
    }
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(e) => {
            eprintln!("forebay-sim: where is this program? {e}");
            return false;
        }
    };
    let bugs: Vec<_> = forebay_engine::sys::planted_bugs()
        .into_iter()
        .filter(|(_, name, _)| !FOUND_ELSEWHERE.iter().any(|at| name.starts_with(at)))
        .filter(|(_, name, _)| args.only.as_ref().is_none_or(|only| only == name))
        .collect();
    let hunts = Mutex::new(Vec::new());
    sweep::each(threads, &bugs, |_, &(id, name, what)| {
        let start = Instant::now();
        let (caught_by, evidence) = hunt_apart(&program, id, limit);
        hooks::progress();
        let seconds = start.elapsed().as_secs_f64();
        let hunt = Hunt { bug: name.into(), what: what.into(), caught_by, evidence, seconds };
        if !json {
            let by = hunt.caught_by.as_deref().unwrap_or("NOT CAUGHT");
            println!("{name:28} {seconds:6.2} s  {by}");
        }
        hunts.lock().expect(NO_PANIC).push(hunt);
    });
    let hunts = hunts.into_inner().expect(NO_PANIC);
    let caught = hunts.iter().filter(|h| h.caught_by.is_some()).count();
    if json {
        println!("{}", serde_json::to_string(&hunts).expect("plain data"));
    } else {
        for h in hunts.iter().filter(|h| h.caught_by.is_none()) {
            println!("{}: {}: {}", h.bug, h.what, h.evidence);
        }
        println!("{caught} of {} planted bugs caught", hunts.len());
    }
    caught == hunts.len()
}
