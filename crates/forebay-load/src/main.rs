// SPDX-License-Identifier: MIT OR Apache-2.0
//! Forebay under load: sustained, hot set, mixed, the tail of fsync, a stalled
//! origin.  The origin is memory that serves requests at a steady rate, so what
//! is compared is how the cache uses a disk and not which disk it is.
#![forbid(unsafe_code)]

mod bed;
mod cases;
mod isolation;
mod measure;
mod origin;
mod page;
mod plots;
mod suite;

use std::path::PathBuf;

use anyhow::Result;
use clap::{Parser, Subcommand};
use serde::Serialize;

use origin::Speed;

/// Forebay under sustained and mixed load, compared with its origin alone.
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = "Examples:
  forebay-load sustained --seconds 120
  forebay-load stall --seconds 10 --stalled 30
  forebay-load isolation --json
  forebay-load mixed --disk sata --json > mixed.json
  forebay-load suite --seconds 20 --sustained 120 && xdg-open bench/index.html
  forebay-load page                      the page anew, after bench/apps.sh"
)]
struct Cli {
    #[command(subcommand)]
    case: Case,
    /// How long, in seconds.
    #[arg(long, global = true, default_value_t = 30)]
    seconds: u64,
    /// The kind of disk that the origin imitates.
    #[arg(long, global = true, value_enum, default_value_t = Disk::Sata)]
    disk: Disk,
    /// One JSON object on standard output; progress stays on standard error.
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Clone, Debug, Subcommand)]
enum Case {
    /// Random writes over six times the cache, for long.
    Sustained {
        /// Threads that write.
        #[arg(long, default_value_t = 16)]
        clients: usize,
    },
    /// Zipf-distributed writes over ten times the cache.
    HotSet,
    /// Reads and writes in several shares, from several clients.
    Mixed,
    /// Latency of write + flush, quiet and during a drain.
    FsyncTail,
    /// Two volumes, and the origin of one stalls, after --seconds.
    Stall {
        /// Seconds of the stall.
        #[arg(long, default_value_t = 30)]
        stalled: u64,
    },
    /// A volume next to another with a faulty origin, for each fault, and with a sound one:
    /// --seconds a round.
    Isolation {
        /// Rounds, whose medians count.
        #[arg(long, default_value_t = 5)]
        rounds: usize,
    },
    /// All of them but isolation, --seconds each: JSON, plots and the page.
    Suite {
        /// Seconds of the sustained load.
        #[arg(long, default_value_t = 120)]
        sustained: u64,
        /// Seconds of the stall.
        #[arg(long, default_value_t = 30)]
        stalled: u64,
        #[command(flatten)]
        page: Page,
    },
    /// The page anew, from the JSON files that are there.
    Page {
        #[command(flatten)]
        page: Page,
    },
}

#[derive(Clone, Debug, clap::Args)]
#[group(skip)] // the subcommand has the name
struct Page {
    /// Directory of JSON files and plots.
    #[arg(long, default_value = "bench/out")]
    out: PathBuf,
    /// The page; it finds the plots by a path from where it is.
    #[arg(long, default_value = "bench/index.html")]
    html: PathBuf,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Disk {
    /// A SATA SSD: 20,000 requests/s, 400 MB/s, 80 us.
    Sata,
    /// A disk: 400 requests/s, 150 MB/s, 2 ms.
    Disk,
}

impl Disk {
    fn speed(self) -> Speed {
        match self {
            Disk::Sata => Speed {
                requests_per_s: 20_000,
                bytes_per_s: 400_000_000,
                latency_us: 80,
                flush_us: 500,
            },
            Disk::Disk => Speed {
                requests_per_s: 400,
                bytes_per_s: 150_000_000,
                latency_us: 2_000,
                flush_us: 8_000,
            },
        }
    }
}

fn print<T: Serialize + std::fmt::Debug>(json: bool, report: &T) -> Result<()> {
    let value = serde_json::to_value(report)?;
    if json {
        println!("{value}");
        return Ok(());
    }
    print_rows("", &value);
    Ok(())
}

fn print_rows(name: &str, value: &serde_json::Value) {
    match value {
        serde_json::Value::Object(map) => {
            for (key, value) in map {
                let path = if name.is_empty() { key.clone() } else { format!("{name}.{key}") };
                print_rows(&path, value);
            }
        }
        serde_json::Value::Array(all) if all.first().is_some_and(|v| v.is_object()) => {
            for (i, v) in all.iter().enumerate() {
                print_rows(&format!("{name}[{i}]"), v);
            }
        }
        serde_json::Value::Array(all) => println!("{name:32} {} values", all.len()),
        serde_json::Value::Number(n) if n.is_f64() => {
            println!("{name:32} {:.3}", n.as_f64().unwrap_or_default());
        }
        other => println!("{name:32} {other}"),
    }
}

fn main() -> Result<()> {
    let cli = Cli::parse();
    let speed = cli.disk.speed();
    let say: cases::Say<'_> = &mut |line| eprintln!("{line}");
    match cli.case {
        Case::Sustained { clients } => {
            print(cli.json, &cases::sustained(cli.seconds, clients, speed, say)?)
        }
        Case::HotSet => print(cli.json, &cases::hot_set(cli.seconds, speed, say)?),
        Case::Mixed => print(cli.json, &cases::mixed(cli.seconds, speed, say)?),
        Case::FsyncTail => print(cli.json, &cases::fsync_tail(cli.seconds, speed, say)?),
        Case::Stall { stalled } => {
            print(cli.json, &cases::stall(cli.seconds, stalled, speed, say)?)
        }
        Case::Isolation { rounds } => {
            let report = isolation::isolation(cli.seconds, rounds, speed, say)?;
            if !cli.json {
                print!("{}", report.table());
                return Ok(());
            }
            print(true, &report)
        }
        Case::Suite { sustained, stalled, page: p } => {
            let disk = if matches!(cli.disk, Disk::Sata) { "sata" } else { "disk" };
            let times = suite::Times { each: cli.seconds, sustained, stalled };
            suite::run(&p.out, times, disk, speed, say)?;
            page::write(&p.out, &p.html, say)
        }
        Case::Page { page: p } => page::write(&p.out, &p.html, say),
    }
}
