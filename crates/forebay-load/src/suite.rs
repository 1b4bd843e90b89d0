// SPDX-License-Identifier: MIT OR Apache-2.0
//! Every case once, each as a JSON file with its command and the machine's facts.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::cases::{self, Say};
use crate::origin::Speed;

/// Seconds.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    pub each: u64,
    pub sustained: u64,
    pub stalled: u64,
}

#[derive(Debug, Serialize)]
struct Record<'a, T> {
    command: String,
    machine: &'a Machine,
    report: T,
}

#[derive(Debug, Serialize)]
struct Machine {
    cpu: String,
    cpus: usize,
    memory: String,
    kernel: String,
    load_at_start: String,
}

fn machine() -> Machine {
    let field = |path: &str, name: &str| -> Option<String> {
        let text = fs::read_to_string(path).ok()?;
        let line = text.lines().find(|l| l.starts_with(name))?;
        Some(line.split_once(':')?.1.trim().to_string())
    };
    let unknown = || "unknown".to_string();
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    Machine {
        cpu: field("/proc/cpuinfo", "model name").unwrap_or_else(unknown),
        cpus: std::thread::available_parallelism().map_or(0, usize::from),
        memory: field("/proc/meminfo", "MemTotal").unwrap_or_else(unknown),
        kernel: fs::read_to_string("/proc/sys/kernel/osrelease")
            .map_or_else(|_| unknown(), |k| k.trim().to_string()),
        load_at_start: load.split(' ').take(3).collect::<Vec<_>>().join(" "),
    }
}

/// Runs every case and writes the directory.
pub fn run(out: &Path, t: Times, disk: &str, speed: Speed, say: Say<'_>) -> Result<()> {
    fs::create_dir_all(out).with_context(|| format!("{}: cannot be made", out.display()))?;
    let machine = machine();
    let command = |case: &str, seconds: u64, more: &str| {
        format!("forebay-load {case} --seconds {seconds}{more} --disk {disk} --json")
    };

    say("sustained");
    let r = cases::sustained(t.sustained, 16, speed, say)?;
    save(out, "sustained", command("sustained", t.sustained, ""), &machine, r)?;

    say("hot set");
    let r = cases::hot_set(t.each, speed, say)?;
    save(out, "hot-set", command("hot-set", t.each, ""), &machine, r)?;

    say("fsync tail");
    let r = cases::fsync_tail(t.each, speed, say)?;
    save(out, "fsync-tail", command("fsync-tail", t.each, ""), &machine, r)?;

    say("stall");
    let r = cases::stall(t.each, t.stalled, speed, say)?;
    let more = format!(" --stalled {}", t.stalled);
    save(out, "stall", command("stall", t.each, &more), &machine, r)?;

    say("mixed");
    let r = cases::mixed(t.each, speed, say)?;
    save(out, "mixed", command("mixed", t.each, ""), &machine, r)
}

fn save<T: Serialize>(
    out: &Path,
    name: &str,
    command: String,
    machine: &Machine,
    report: T,
) -> Result<()> {
    let path = out.join(name).with_extension("json");
    let text = serde_json::to_string_pretty(&Record { command, machine, report })? + "\n";
    fs::write(&path, text).with_context(|| format!("{}: cannot be written", path.display()))
}
