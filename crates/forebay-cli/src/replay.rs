// SPDX-License-Identifier: MIT OR Apache-2.0
//! `forebay replay`: writes what a log holds for a tree to the tree, without mounting it.

use forebay::PoolOptions;
use forebay_mount::mark::Found;
use forebay_mount::recover::{self, Claims, RecoverError, Recovery};
use forebay_mount::replay::{ReplayError, ReplayOptions, Report};
use forebay_mount::service::{not_replayed, whole};
use forebay_server::Work;
use serde_json::json;

use crate::mount::{clear_dead, Bar};
use crate::out::Table;
use crate::{args, open, out, units};

pub fn run(a: &args::Replay) -> anyhow::Result<u8> {
    if !a.dry_run {
        clear_dead(&a.pool, &a.tree, &a.tree)?;
    }
    let tree = whole(&a.tree).unwrap_or_else(|_| a.tree.clone());
    let pool_options = PoolOptions { read_only: a.dry_run, ..a.media.read_write() };
    let pool = open::pool(&a.pool, &pool_options)?;
    let mut bar = Bar::default();
    let what = format!("replaying onto {}", tree.display());
    let recovery = Recovery {
        pool: &pool,
        claims: &Claims::default(),
        tree: &tree,
        log: &a.log,
        options: ReplayOptions {
            accept: a.accept,
            salvage: a.salvage.clone(),
            ..ReplayOptions::default()
        },
        dry_run: a.dry_run,
    };
    let mut progress = |done_bytes, total_bytes| {
        bar.show(&Work { what: what.clone(), done_bytes, total_bytes, trouble: None });
    };
    let done = match recovery.run(&mut progress) {
        // A missing log is a wrong name, and not an empty log.  If the tree's mark names another
        // log, that is reported first.
        Ok(None) => pool.log_info(&a.log).map(|_| None).map_err(RecoverError::from),
        done => done,
    };
    bar.end();
    // Logged data is safe even if the replay failed, and the pool is closed in order.
    pool.close()?;
    match done {
        Err(RecoverError::Replay { cause: ReplayError::Refused(report), path }) => {
            report_of(a, &report)?;
            let refused = ReplayError::Refused(report);
            out::warn(format_args!("forebay: {path}: {refused}"));
            Ok(11)
        }
        Err(e) => Err(error(e)),
        Ok(None) if a.json.json => out::json(&json!({ "log": a.log, "empty": true })).map(|()| 0),
        Ok(None) => {
            out::line(format_args!("log {}: it holds nothing that the tree lacks", a.log))?;
            Ok(0)
        }
        Ok(Some(report)) => {
            report_of(a, &report)?;
            Ok(if a.dry_run && !report.is_certain() { 11 } else { 0 })
        }
    }
}

/// An error of the library has its own exit code.
fn error(e: RecoverError) -> anyhow::Error {
    match e {
        RecoverError::Pool(e) => e.into(),
        e => not_replayed(e).into(),
    }
}

fn report_of(a: &args::Replay, report: &Report) -> anyhow::Result<()> {
    if a.json.json {
        return out::json(&json!({
            "log": a.log,
            "empty": false,
            "dry_run": a.dry_run,
            "certain": report.is_certain(),
            "replay": report,
        }));
    }
    if !report.actions.is_empty() {
        let mut table = Table::new(&["action", "<path", "<detail"]);
        for action in &report.actions {
            table.row(vec![action.action.into(), action.path.clone(), action.detail.clone()]);
        }
        out::line(table)?;
    }
    let would = if a.dry_run { "would change" } else { "changed" };
    out::line(format_args!(
        "log {}: {} entries; {would} {} things in the tree, {} of data in {} files{}",
        a.log,
        report.entries,
        report.actions.len(),
        units::bytes(report.bytes),
        report.files,
        if report.resumed { "; it went on where an earlier replay was cut off" } else { "" },
    ))?;
    if let Some(ahead) = &report.ahead {
        out::line(ahead)?;
    }
    for what in report.in_dispute() {
        out::line(what)?;
    }
    Ok(())
}

// --- unmark ------------------------------------------------------------------

pub fn unmark(a: &args::Unmark) -> anyhow::Result<u8> {
    clear_dead(&a.tree, &a.tree, &a.tree)?;
    let tree = whole(&a.tree).unwrap_or_else(|_| a.tree.clone());
    let found = recover::unmark(&tree, a.accept_loss).map_err(error)?;
    let mark = match &found {
        Found::Marked(mark) | Found::Unproved(mark) => Some(mark),
        Found::Nothing | Found::Done(_) | Found::Unknown => None,
    };
    let marked = mark.is_some() || found == Found::Unknown;
    let removed = marked && a.accept_loss;
    if a.json.json {
        let mut found = json!({
            "tree": tree.display().to_string(),
            "marked": marked,
            "mark": mark,
            "removed": removed,
        });
        if let Some(bytes) = forebay::path_bytes(&tree) {
            found["tree_bytes"] = json!(bytes);
        }
        out::json(&found)?;
        return Ok(if marked && !removed { 12 } else { 0 });
    }
    let shown = out::quoted(&tree);
    let by = match mark {
        Some(mark) => mark.to_string(),
        None => "what this version of Forebay does not understand".into(),
    };
    match (marked, removed) {
        (false, _) => out::line(format_args!("{shown} is not marked: no log holds what it lacks"))?,
        (true, true) => out::line(format_args!(
            "{shown} was marked by {by}; what that log held and the tree lacks is given up"
        ))?,
        (true, false) => {
            out::line(format_args!("{shown} is marked by {by}, which may hold what it lacks"))?;
            out::line("with that pool: forebay mount or forebay replay; without: --accept-loss")?;
        }
    }
    Ok(if marked && !removed { 12 } else { 0 })
}
