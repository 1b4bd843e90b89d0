// SPDX-License-Identifier: MIT OR Apache-2.0
//! `forebay-sim`: makes losing data something that the tests find.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Args, Parser, Subcommand};
use forebay_sim::explore::{explore, Bounds, Explored};
use forebay_sim::hooks;
use forebay_sim::script::{random, small, Script};
use serde::Serialize;

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
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Recover every image that a power cut may leave
    Explore(ExploreArgs),
}

#[derive(Args)]
struct ExploreArgs {
    /// Go on with random workloads until so many distinct images were seen
    #[arg(long, default_value_t = 1_000_000)]
    images: u64,
    /// First seed of the random workloads
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Only the named workload, or "seed N"
    #[arg(long)]
    only: Option<String>,
    /// Most images of one cut; more are sampled
    #[arg(long, default_value_t = 1 << 14)]
    bound: u64,
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Stop after so many seconds
    #[arg(long)]
    seconds: Option<u64>,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    hooks::watchdog(Duration::from_secs(60));
    let ok = match &cli.command {
        Command::Explore(args) => run_explore(args, cli.json),
    };
    if ok {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

#[derive(Serialize)]
struct ExploreReport {
    #[serde(flatten)]
    totals: Explored,
    seconds: f64,
    violations: Vec<String>,
}

fn run_explore(args: &ExploreArgs, json: bool) -> bool {
    use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
    use std::sync::Mutex;
    let start = Instant::now();
    let bounds = Bounds { images: args.bound, nested: 64, nested_every: 16, go_on_every: 16 };
    let mut fixed = small();
    if let Some(only) = &args.only {
        fixed.retain(|s| s.name == *only);
        if let Some(seed) = only.strip_prefix("seed ").and_then(|n| n.parse().ok()) {
            fixed.push(random(seed, 12));
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
            None => random(args.seed + (n - fixed.len()) as u64, 12),
        };
        if late()
            || !violations
                .lock()
                .is_ok_and(|v: std::sync::MutexGuard<'_, Vec<String>>| v.is_empty())
        {
            return;
        }
        let t = Instant::now();
        match explore(&script, bounds, None) {
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
                totals.lock().expect("no thread panics").add(&e);
            }
            Err(e) => violations.lock().expect("no thread panics").push(e),
        }
    };
    std::thread::scope(|s| {
        for _ in 0..args.threads.max(1) {
            s.spawn(worker);
        }
    });
    let report = ExploreReport {
        totals: totals.into_inner().expect("no thread panics"),
        seconds: start.elapsed().as_secs_f64(),
        violations: violations.into_inner().expect("no thread panics"),
    };
    if json {
        println!("{}", serde_json::to_string(&report).expect("plain data"));
    } else {
        println!("{:?} in {:.1} s", report.totals, report.seconds);
        report.violations.iter().for_each(|v| println!("VIOLATION: {v}"));
    }
    report.violations.is_empty()
}
