// SPDX-License-Identifier: MIT OR Apache-2.0
//! `forebay drain`: the server's work if the pool is served, else done here.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use forebay::{control, DrainProgress, Pool};
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use serde_json::json;

use crate::interrupt::Interrupt;
use crate::{args, open, out, units};

pub fn run(a: &args::Drain) -> anyhow::Result<u8> {
    let interrupt = Interrupt::watch()?;
    let mut bars = Bars::new(interrupt);
    let drained = match connect(&a.pool)? {
        Some(first) => served(a, first, &mut bars),
        None => here(a, &mut bars),
    };
    bars.end();
    drained?;
    report(a, &bars.last)?;
    Ok(0)
}

/// Each drain takes a connection.
fn served(a: &args::Drain, first: control::Client, bars: &mut Bars) -> anyhow::Result<()> {
    if a.volumes.is_empty() {
        return Ok(first.drain(None, &mut |volume, p| bars.show(volume, p))?);
    }
    let mut next = Some(first);
    for volume in &a.volumes {
        let client = match next.take() {
            Some(client) => client,
            None => connect(&a.pool)?.context("the server is gone")?,
        };
        client.drain(Some(volume), &mut |volume, p| bars.show(volume, p))?;
    }
    Ok(())
}

fn connect(pool: &Path) -> forebay::Result<Option<control::Client>> {
    control::Client::for_pool(&control::runtime_dir(), pool)
}

fn here(a: &args::Drain, bars: &mut Bars) -> anyhow::Result<()> {
    let pool = open::pool(&a.pool, &a.media.read_write())?;
    let drained = drain_pool(a, &pool, bars);
    // Interrupted or not, what is cached is safe and the pool closed in order.
    pool.close()?;
    Ok(drained?)
}

fn drain_pool(a: &args::Drain, pool: &Pool, bars: &mut Bars) -> forebay::Result<()> {
    let names = match a.volumes.is_empty() {
        true => pool.volumes().into_iter().map(|v| v.name).collect(),
        false => a.volumes.clone(),
    };
    let mut first_error = None;
    let mut volumes = Vec::new();
    for name in &names {
        match pool.attach(name, &a.attach.options(name)) {
            Ok(volume) => volumes.push(volume),
            // The others can be drained all the same.
            Err(error) => _ = first_error.get_or_insert(error),
        }
    }
    let drained = pool.drain_all(&mut |volume, p| bars.show(volume, p));
    for volume in volumes {
        volume.detach()?;
    }
    drained?;
    first_error.map_or(Ok(()), Err)
}

/// A bar for each volume, on standard error if that is a terminal.
struct Bars {
    screen: MultiProgress,
    bars: BTreeMap<String, ProgressBar>,
    last: BTreeMap<String, DrainProgress>,
    interrupt: Interrupt,
}

impl Bars {
    fn new(interrupt: Interrupt) -> Self {
        Bars {
            screen: MultiProgress::new(),
            bars: BTreeMap::new(),
            last: BTreeMap::new(),
            interrupt,
        }
    }

    fn show(&mut self, volume: &str, p: &DrainProgress) -> ControlFlow<()> {
        let bar = self.bars.entry(volume.to_string()).or_insert_with(|| {
            let bar = self.screen.add(ProgressBar::new(0));
            bar.set_style(style());
            bar.set_prefix(volume.to_string());
            bar.enable_steady_tick(Duration::from_millis(200));
            bar
        });
        let done = p.pages_start.saturating_sub(p.pages_left);
        bar.set_length(p.pages_start * 4096);
        bar.set_position(done * 4096);
        bar.set_message(match p.origin_error {
            Some(_) => "origin fails, trying again",
            None => "",
        });
        let before = self.last.get(volume);
        if let (Some(error), true) =
            (&p.origin_error, before.is_none_or(|b| b.origin_error.is_none()))
        {
            self.warn(&format!(
                "forebay: volume {volume}: {error}; trying again; what is cached stays in the pool"
            ));
        }
        self.last.insert(volume.to_string(), p.clone());
        match self.interrupt.came() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    }

    /// Above the bars, or alone where there is no terminal for them.
    fn warn(&self, text: &str) {
        let shown = !self.screen.is_hidden() && self.screen.println(text).is_ok();
        if !shown {
            eprintln!("{text}");
        }
    }

    fn end(&self) {
        for bar in self.bars.values() {
            bar.finish_and_clear();
        }
    }
}

fn style() -> ProgressStyle {
    ProgressStyle::with_template(
        "{prefix:12} {bar:30} {bytes:>11}/{total_bytes:11} {binary_bytes_per_sec:>12}  left {eta:>4}  {msg}",
    )
    .expect("the template is right")
}

fn report(a: &args::Drain, last: &BTreeMap<String, DrainProgress>) -> anyhow::Result<()> {
    if a.json.json {
        return out::json(&json!({ "drained": last }));
    }
    for (volume, p) in last {
        let rate = p.origin_written_bytes as f64 / p.seconds.max(1e-3);
        out::line(format_args!(
            "volume {volume}: {} to its origin in {:.1} s ({}/s); the origin alone is complete",
            units::bytes(p.origin_written_bytes),
            p.seconds,
            units::bytes(rate as u64),
        ))?;
    }
    if last.is_empty() {
        out::line("nothing was cached; the origins alone are complete")?;
    }
    Ok(())
}
