// SPDX-License-Identifier: MIT OR Apache-2.0
//! `forebay set`: shows the options of a pool and of its volumes, and changes them
//! while the pool is served.

use std::fmt::Display;

use anyhow::anyhow;
use forebay::{Error, OptionsChange, OptionsInfo, VolumeChange, VolumeInfo};
use forebay_server::{control::Client, runtime_dir, ServerStatus};
use serde_json::json;

use crate::out::Table;
use crate::{args, out, status, units};

pub fn run(a: &args::Set) -> anyhow::Result<u8> {
    let (options, volumes) = (a.options.change(), a.past.change());
    let of_pool = options != OptionsChange::default();
    let of_volumes = volumes != VolumeChange::default();
    if of_pool && a.volume.is_some() {
        return Err(anyhow!(Error::Usage {
            what: "watermarks, ages, verify and checksums are the pool's, not a volume's".into(),
            way_out: "leave --volume out".into(),
        }));
    }
    let changes = of_pool || of_volumes;
    if changes {
        let server = Client::for_pool(&runtime_dir(), &a.pool)?;
        let mut server = server.ok_or_else(|| not_served(a))?;
        // The requests that may be refused come first, so that nothing is done by half.
        if of_volumes && a.volume.is_some() {
            server.set_volume(a.volume.as_deref(), &VolumeChange::default())?;
        }
        if of_pool {
            server.set(&options)?;
        }
        if of_volumes {
            server.set_volume(a.volume.as_deref(), &volumes)?;
        }
    }
    show(a, &status::of_pool(&a.pool)?, changes)?;
    Ok(0)
}

fn not_served(a: &args::Set) -> anyhow::Error {
    anyhow!(Error::Usage {
        what: format!(
            "{}: nobody serves it, and a pool keeps no options that could be changed",
            a.pool.display()
        ),
        way_out: "give them to forebay serve".into(),
    })
}

fn show(a: &args::Set, status: &ServerStatus, changed: bool) -> anyhow::Result<()> {
    let s = &status.pool;
    let asked = |v: &&VolumeInfo| a.volume.as_ref().is_none_or(|name| v.name == *name);
    let volumes: Vec<_> = s.volumes.iter().filter(asked).collect();
    if let (Some(name), true) = (&a.volume, volumes.is_empty()) {
        return Err(anyhow!(Error::NoVolume {
            pool: a.pool.clone(),
            name: name.clone(),
            known: s.volumes.iter().map(VolumeInfo::label).collect(),
        }));
    }
    let served = status.control_socket.is_some();
    if a.json.json {
        let volume = |v: &&VolumeInfo| {
            json!({
                "name": v.name,
                "mode": v.mode,
                "bypass_limit_bytes": v.bypass_limit_bytes,
                "when_full": v.when_full,
                "durable": v.durable,
                "durable_because": v.durable_because,
            })
        };
        return out::json(&json!({
            "served": served,
            "changed": changed,
            "options": s.options,
            "volumes": volumes.iter().map(volume).collect::<Vec<_>>(),
        }));
    }
    out::line(pool_table(&s.options))?;
    if !volumes.is_empty() {
        out::line("")?;
        out::line(volume_table(&volumes))?;
    }
    out::line(match (changed, served) {
        (true, _) => "\nset, until the pool is served again",
        (false, true) => "\nin effect until the pool is served again",
        (false, false) => "\nnot served: these are the defaults of forebay serve",
    })?;
    Ok(())
}

fn pool_table(o: &OptionsInfo) -> Table {
    let time = |seconds: Option<f64>| seconds.map_or("none".into(), |s| format!("{s} s"));
    let mut t = Table::new(&["option", "<value"]);
    let mut row = |name: &str, value: &dyn Display| t.row(vec![name.into(), value.to_string()]);
    row("high-watermark", &format!("{} %", o.high_watermark_percent));
    row("low-watermark", &format!("{} %", o.low_watermark_percent));
    row("max-age", &time(o.max_age_seconds));
    row("idle", &time(o.idle_seconds));
    row("verify", &o.verify);
    row("checksums", &o.checksums);
    t
}

fn volume_table(volumes: &[&VolumeInfo]) -> Table {
    // A pool in memory has no such option.
    let on_disk = volumes.iter().any(|v| v.durable.is_some());
    let titles = ["volume", "<mode", "bypass-limit", "<when-full", "<durable"];
    let columns = titles.len() - usize::from(!on_disk);
    let mut t = Table::new(&titles[..columns]);
    for v in volumes {
        let mut row = vec![
            v.name.clone(),
            v.mode.to_string(),
            v.bypass_limit_bytes.map_or("none".into(), units::bytes),
            v.when_full.to_string(),
            v.durable.map_or("none".into(), |durable| durable.to_string()),
        ];
        row.truncate(columns);
        t.row(row);
    }
    t
}
