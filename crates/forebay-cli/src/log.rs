// SPDX-License-Identifier: MIT OR Apache-2.0
//! `forebay log list|create|show|dump|replay|destroy`.

use forebay::{printable, Error, LogHome, LogInfo, LogState, MediumStatus, Pool, ReplayEnd};
use serde_json::json;

use crate::args::{self, log as a};
use crate::out::Table;
use crate::{open, out, removal, status, units};

pub fn run(a: &args::Log) -> anyhow::Result<u8> {
    match a {
        args::Log::List(a) => list(a),
        args::Log::Create(a) => create(a),
        args::Log::Show(a) => show(a),
        args::Log::Dump(a) => dump(a),
        args::Log::Replay(a) => replay(a),
        args::Log::Destroy(a) => destroy(a),
    }
}

fn list(a: &a::LogPool) -> anyhow::Result<u8> {
    let status = status::of_pool(&a.pool)?.pool;
    let logs = status.logs;
    if a.json.json {
        out::json(&logs)?;
    } else if logs.is_empty() {
        let pool = out::quoted(&a.pool);
        out::line(format_args!("no logs; make one: forebay log create {pool} NAME"))?;
    } else {
        out::line(table(&logs))?;
    }
    warn_of_disk(&status.medium);
    // The kind of a damaged record is unknown.
    for v in status.volumes.iter().filter(|v| v.damaged) {
        let pool = out::quoted(&a.pool);
        out::warn(format_args!(
            "{}: both copies of record {} are damaged, which may be a log's; nothing of it is \
             touched: see forebay check {pool}",
            a.pool.display(),
            v.label(),
        ));
    }
    Ok(0)
}

/// Prints why nothing makes progress.
fn warn_of_disk(medium: &Option<MediumStatus>) {
    if let Some(hangs) = medium.as_ref().and_then(|m| m.hangs.as_ref()) {
        out::warn(format_args!("forebay: {}", printable(hangs)));
    }
}

pub fn table(logs: &[LogInfo]) -> Table {
    let header = &["log", "entries", "txgs", "synced", "chunks", "held", "appended", "<state"];
    let mut t = Table::new(header);
    for l in logs {
        t.row(vec![
            l.name.clone(),
            l.entries.to_string(),
            l.unsynced_txgs.to_string(),
            l.synced_txg.to_string(),
            l.chunks.to_string(),
            l.held_chunks.to_string(),
            units::bytes(l.appended_bytes),
            state(l),
        ]);
    }
    t
}

/// The state in a few words; faults come first.
pub fn state(l: &LogInfo) -> String {
    if l.incomplete {
        return "chunks of it may be LOST".into();
    }
    match (l.missing, l.state, l.claimed, l.home) {
        (1.., ..) => format!("{} entries MISSING", l.missing),
        (_, _, false, LogHome::Consumer) => "to be claimed, its header is with the consumer".into(),
        (_, LogState::Logging, false, _) => "to be claimed".into(),
        (_, LogState::Replaying, false, _) => "replaying, to be claimed".into(),
        (_, state, ..) => state.to_string(),
    }
}

fn create(a: &a::LogCreate) -> anyhow::Result<u8> {
    let pool = open::pool(&a.pool, &a.media.read_write())?;
    let made = pool.log_add(&a.name, a.home);
    // The pool is closed in order either way, so that it is clean afterwards.
    pool.close()?;
    let made = made?;
    match a.json.json {
        true => out::json(&made)?,
        false => out::line(format_args!(
            "log {}: header {}, entries of up to {}",
            made.name,
            match made.home {
                LogHome::Embedded => "in the pool",
                LogHome::Consumer => "with its consumer",
            },
            units::bytes(made.largest_entry_bytes.into()),
        ))?,
    }
    Ok(0)
}

fn show(a: &a::LogName) -> anyhow::Result<u8> {
    let status = status::of_pool(&a.pool)?.pool;
    let none = || Error::no_log(&a.pool, &a.name, &status.logs, &status.volumes);
    let log = status.logs.iter().find(|l| l.name == a.name).ok_or_else(none)?;
    warn_of_disk(&status.medium);
    if a.json.json {
        out::json(log)?;
        return Ok(0);
    }
    let line = |what: &str, value: String| out::line(format_args!("{what:15} {value}"));
    line("log", log.name.clone())?;
    line("state", state(log))?;
    line("header", log.home.to_string())?;
    line("guid", log.guid.map_or("-".into(), |g| g.to_string()))?;
    line("synced txg", log.synced_txg.to_string())?;
    line("unsynced txgs", log.unsynced_txgs.to_string())?;
    line("entries", log.entries.to_string())?;
    line("missing", log.missing.to_string())?;
    line("chunks", format!("{}, {} of them held for replay", log.chunks, log.held_chunks))?;
    line("largest entry", units::bytes(log.largest_entry_bytes.into()))?;
    line("appends", format!("{} of {}", log.appends, units::bytes(log.appended_bytes)))?;
    Ok(0)
}

fn dump(a: &a::LogDump) -> anyhow::Result<u8> {
    let pool = open::read_only(&a.pool)?;
    let entries = pool.log_entries(&a.name, a.data);
    pool.close()?;
    let entries = entries?;
    match a.json.json {
        true => out::json(&entries)?,
        false => entries.iter().try_for_each(out::line)?,
    }
    Ok(0)
}

fn replay(a: &a::LogReplay) -> anyhow::Result<u8> {
    let pool = open::read_only(&a.pool)?;
    let report = pool.log_replay_dry(&a.name);
    let info = pool.log_info(&a.name);
    pool.close()?;
    let (report, info) = (report?, info?);
    let ok = report.end == ReplayEnd::Complete && report.damaged + report.twins == 0;
    if a.json.json {
        out::json(
            &json!({ "log": info.name, "missing": info.missing, "ok": ok, "replay": report }),
        )?;
    } else {
        out::line(format_args!("log {}: a replay would be {report}", info.name))?;
    }
    Ok(if ok { 0 } else { 11 })
}

fn destroy(a: &a::LogDestroy) -> anyhow::Result<u8> {
    let pool = open::pool(&a.pool, &a.media.read_write())?;
    removal::run(pool, "log", Pool::log_remove, &a.name, a.discard, &a.json)
}
