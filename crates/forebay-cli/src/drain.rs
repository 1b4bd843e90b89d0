// SPDX-License-Identifier: MIT OR Apache-2.0
//! `forebay drain`: the server's work if the pool is served, else done here.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Duration, Instant};

use forebay::{
    kept_where, Away, Completeness, DrainProgress, Drained, Error, Holes, LogInfo, LogLeft, Pool,
    Verdict, Volume, VolumeInfo, WhenAway, RESCUED,
};
use forebay_server::{control::Client, runtime_dir, Error as ServerError};
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use serde_json::json;

use crate::interrupt::Interrupt;
use crate::map_drain::MapsDrained;
use crate::{args, open, out, units};

pub fn run(a: &args::Drain) -> anyhow::Result<u8> {
    let interrupt = Interrupt::watch()?;
    let mut bars = Bars::new(interrupt, a.timeout);
    let drained = match connect(&a.pool)? {
        Some(first) => served(a, first, &mut bars),
        None => here(a, &mut bars).map_err(Into::into),
    };
    bars.end();
    let done = match drained {
        Err(ServerError::Pool(Error::Interrupted { .. })) if bars.timed_out => bars.unfinished(),
        drained => drained?,
    };
    report(a, &bars.last, &done)?;
    // Each error was reported with its volume's name.
    Ok(done.failed.as_ref().map_or_else(|| done.exit_code(), Error::exit_code))
}

/// The result of the drain, and the first error that kept a volume from being attached: the
/// others are drained all the same.
#[derive(Default)]
struct Outcome {
    drained: Drained,
    /// Set if the whole pool was drained.
    maps: MapsDrained,
    failed: Option<Error>,
}

impl Outcome {
    fn is_complete(&self) -> bool {
        self.drained.is_complete() && self.maps.left.is_empty()
    }

    fn exit_code(&self) -> u8 {
        match (self.drained.exit_code(), self.maps.left.is_empty()) {
            (0, false) => Verdict::Cached.exit_code(),
            (code, _) => code,
        }
    }
}

/// `served` are the logs of mounts, which the server has synced.
fn logs_left(logs: &[LogInfo], served: &[&str]) -> Vec<LogLeft> {
    let others = logs.iter().filter(|l| !served.contains(&l.name.as_str()));
    others.filter_map(LogLeft::judge).collect()
}

/// Lets the server drain.  Each drain takes a connection.
fn served(a: &args::Drain, first: Client, bars: &mut Bars) -> forebay_server::Result<Outcome> {
    if a.accept_lost {
        return Err(Error::Usage {
            what: format!(
                "{}: it is served, and its clients may overwrite lost blocks",
                a.pool.display()
            ),
            way_out: "stop the server before lost blocks are given up".into(),
        }
        .into());
    }
    let mut outcome = Outcome::default();
    let drained = &mut outcome.drained;
    if a.volumes.is_empty() {
        drained.volumes = first.drain(None, &mut |volume, p| bars.show(volume, p))?;
        if let Some(mut client) = connect(&a.pool)? {
            let status = client.status()?;
            let served = status.services.iter().filter_map(|s| s.details["log"].as_str());
            drained.logs = logs_left(&status.pool.logs, &served.collect::<Vec<_>>());
            outcome.maps = MapsDrained::served(&a.pool, &status, &|| connect(&a.pool))?;
        }
        return Ok(outcome);
    }
    let mut next = Some(first);
    for name in &a.volumes {
        let Some(client) = next.take().map_or_else(|| connect(&a.pool), |c| Ok(Some(c)))? else {
            return Err(Error::Stopped { name: name.clone(), why: "ended" }.into());
        };
        drained.volumes.extend(client.drain(Some(name), &mut |volume, p| bars.show(volume, p))?);
    }
    Ok(outcome)
}

fn connect(pool: &Path) -> forebay_server::Result<Option<Client>> {
    Client::for_pool(&runtime_dir(), pool)
}

fn here(a: &args::Drain, bars: &mut Bars) -> forebay::Result<Outcome> {
    let pool = open::pool(&a.pool, &a.media.read_write())?;
    let drained = drain_pool(a, &pool, bars);
    // Cached data is safe even if the drain was interrupted, and the pool is closed in order.
    match (pool.close(), drained) {
        // The disk of the pool has failed, and the origins have everything.
        (Err(e), Ok(drained)) if drained.exit_code() == RESCUED => {
            out::warn(format_args!("forebay: {e}"));
            Ok(drained)
        }
        (closed, drained) => closed.and(drained),
    }
}

fn drain_pool(a: &args::Drain, pool: &Pool, bars: &mut Bars) -> forebay::Result<Outcome> {
    let all = pool.volumes();
    let named = a.volumes.iter().map(|name| Ok(pool.volume_info(name)?.index));
    let named = named.collect::<forebay::Result<Vec<_>>>()?;
    a.attach.check(pool)?;
    let asked = |v: &VolumeInfo| named.is_empty() || named.contains(&v.index);
    let Outcome { mut drained, mut maps, mut failed } = Outcome::default();
    let mut volumes = Vec::new();
    // A volume with a damaged record has no name, so it cannot be attached.
    let damaged = |c: &Completeness| c.verdict == Verdict::RecordDamaged;
    for v in all.iter().filter(|v| asked(v) && !v.damaged) {
        match attach(a, pool, v) {
            Ok(volume) => volumes.push((v, volume)),
            Err(error) => {
                let mut judged = pool.completeness(&v.name)?;
                judged.not_attached(&error);
                drained.volumes.push(judged);
                failed.get_or_insert(error);
            }
        }
    }
    let mut done = pool.drain(None, &mut |volume, p| bars.show(volume, p));
    let lost = |c: &Completeness| c.verdict == Verdict::LostBlocks;
    if a.accept_lost && done.as_ref().is_ok_and(|judged| judged.iter().any(lost)) {
        done = give_up(pool, &volumes, bars);
    }
    let mut judged = done?;
    let asked: Vec<_> = all.iter().filter(|v| asked(v)).map(VolumeInfo::label).collect();
    judged.retain(|c| match damaged(c) {
        true => asked.contains(&c.volume),
        false => volumes.iter().any(|(v, _)| v.name == c.volume),
    });
    if a.attach.options("").holes == Holes::Accept || a.accept_lost {
        for (v, _) in &volumes {
            if let Some(c) = judged.iter_mut().find(|c| c.volume == v.name) {
                c.accept_loss(Vec::new(), v.holes, v.holes_unknown);
            }
        }
    }
    drained.volumes.extend(judged);
    for (_, volume) in volumes {
        volume.detach()?;
    }
    if a.volumes.is_empty() {
        drained.logs = logs_left(&pool.logs(), &[]);
        maps = MapsDrained::here(pool)?;
    }
    Ok(Outcome { drained, maps, failed })
}

fn attach(a: &args::Drain, pool: &Pool, v: &VolumeInfo) -> forebay::Result<Volume> {
    let mut options = a.attach.options(&v.name);
    if a.accept_lost {
        options.holes = Holes::Accept;
    }
    if let Some(timeout) = a.timeout {
        // An origin that does not answer is waited for no longer than that.
        let limit = match options.away.when {
            WhenAway::Error => options.away.limit.min(timeout),
            WhenAway::Wait => timeout,
        };
        options.away = Away { when: WhenAway::Error, limit };
    }
    pool.attach(&v.name, &options)
}

/// Gives up the lost blocks of all volumes, by order, and drains again what that wrote.
fn give_up(
    pool: &Pool,
    volumes: &[(&VolumeInfo, Volume)],
    bars: &mut Bars,
) -> forebay::Result<Vec<Completeness>> {
    let mut given_up = BTreeMap::new();
    for (v, volume) in volumes {
        given_up.insert(&v.name, volume.accept_lost()?);
    }
    let mut judged = pool.drain(None, &mut |volume, p| bars.show(volume, p))?;
    for c in &mut judged {
        c.accept_loss(given_up.remove(&c.volume).unwrap_or_default(), 0, 0);
    }
    Ok(judged)
}

/// A bar for each volume, on standard error if that is a terminal.
struct Bars {
    screen: MultiProgress,
    bars: BTreeMap<String, ProgressBar>,
    last: BTreeMap<String, DrainProgress>,
    interrupt: Interrupt,
    end: Option<Instant>,
    timed_out: bool,
}

impl Bars {
    fn new(interrupt: Interrupt, timeout: Option<Duration>) -> Self {
        Bars {
            end: timeout.map(|t| Instant::now() + t),
            timed_out: false,
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
        bar.set_message(match (&p.origin_error, &p.origin_away) {
            (Some(_), _) => "origin fails, trying again",
            (None, Some(_)) => "waits for its origin, which is away",
            (None, None) if p.stuck.is_some() => "waits for room for lost blocks",
            (None, None) => "",
        });
        let before = self.last.get(volume);
        let kept = kept_where(p.pool_failed);
        if let (Some(error), true) =
            (&p.origin_error, before.is_none_or(|b| b.origin_error.is_none()))
        {
            let way_out = p.origin_way_out.as_deref().unwrap_or("see the system log");
            self.warn(&format!(
                "forebay: volume {volume}: {error}; {way_out}; trying again; {kept}"
            ));
        }
        if let (Some(away), true) = (&p.origin_away, before.is_none_or(|b| b.origin_away.is_none()))
        {
            self.warn(&format!(
                "forebay: volume {volume}: the drain waits for its origin, which is away {away}; {kept}"
            ));
        }
        if let (Some(stuck), true) = (&p.stuck, before.is_none_or(|b| b.stuck.is_none())) {
            self.warn(&format!("forebay: volume {volume}: the drain waits: {stuck}"));
        }
        self.last.insert(volume.to_string(), p.clone());
        self.timed_out = self.end.is_some_and(|end| Instant::now() >= end);
        match self.interrupt.came() || self.timed_out {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    }

    /// Returns the last progress when the time limit is over.
    fn unfinished(&self) -> Outcome {
        let judged = self.last.iter().map(|(name, p)| Completeness::unfinished(name, p));
        let drained = Drained { volumes: judged.collect(), ..Drained::default() };
        Outcome { drained, ..Outcome::default() }
    }

    /// Prints a warning above the bars, or alone if there is no terminal for them.
    fn warn(&self, text: &str) {
        let shown = !self.screen.is_hidden() && self.screen.println(text).is_ok();
        if !shown {
            out::warn(text);
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

fn report(
    a: &args::Drain,
    last: &BTreeMap<String, DrainProgress>,
    done: &Outcome,
) -> anyhow::Result<()> {
    let Outcome { drained, maps, .. } = done;
    if a.json.json {
        out::json(&json!({
            "drained": last,
            "complete": done.is_complete(),
            "volumes": drained.volumes,
            "logs": drained.logs,
            "maps": maps.left,
        }))?;
    }
    maps.report(&a.pool, a.json.json)?;
    for left in &drained.logs {
        out::warn(format_args!("forebay: log {}: {left}", left.log));
    }
    for c in &drained.volumes {
        let moved = last.get(&c.volume).map(|p| {
            let rate = p.origin_written_bytes as f64 / p.seconds.max(1e-3);
            format!(
                "{} to its origin in {:.1} s ({}/s); ",
                units::bytes(p.origin_written_bytes),
                p.seconds,
                units::bytes(rate as u64),
            )
        });
        let moved = moved.unwrap_or_else(|| match c.complete {
            true => "nothing was cached; ".into(),
            false => String::new(),
        });
        match (c.exit_code(), a.json.json) {
            (0, true) => {}
            (0, false) => out::line(format_args!("volume {}: {moved}{c}", c.volume))?,
            (_, _) => out::warn(format_args!("forebay: volume {}: {moved}{c}", c.volume)),
        }
    }
    let none = drained.volumes.is_empty() && drained.logs.is_empty() && maps.is_empty();
    if none && !a.json.json {
        out::line("the pool has no volumes; there is nothing left to drain")?;
    }
    Ok(())
}
