// SPDX-License-Identifier: MIT OR Apache-2.0
//! `forebay media-test`: the test that pulls the plug.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use forebay::{
    ask_receiver, pulled_run_on, verify_pulled, write_until_cut, FuaWay, ModeReport, PullEnd,
    PullJournal, PullMode, PullModes, PullOptions, PullProgress, PullReport, PullRunEnd,
    PullVerdict, ReceiveEvent, Receiver, ReceiverLimits,
};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

use crate::args::medium::MediaTest;
use crate::interrupt::{Interrupt, INTERRUPTED};
use crate::{awaited, out, units};

/// The exit code for a disk that failed, which is what the test wants.
const DISK_FAILED: u8 = 7;
/// The number of lines about refused connections after which such lines become rare.
const REFUSED_LINES: u64 = 50;

pub fn run(a: &MediaTest) -> anyhow::Result<u8> {
    match (&a.receive, &a.device, &a.server) {
        (Some(address), _, _) => receive(a, address),
        (None, Some(device), server) if a.verify => verify(a, device, server.as_deref()),
        (None, Some(device), Some(server)) => write(a, device, server),
        _ => Err(forebay::Error::usage("a disk and a receiver are needed", "see --help").into()),
    }
}

// --- the receiver ------------------------------------------------------------

fn receive(a: &MediaTest, address: &str) -> anyhow::Result<u8> {
    let interrupt = Interrupt::watch_with_hangup()?;
    let receiver = Receiver::listen(address, &a.directory, ReceiverLimits::default())?;
    let address = receiver.address()?;
    let reached_at = reached_at(address);
    let directory = std::path::absolute(receiver.directory())?;
    match a.json.json {
        true => out::json_line(&json!({
            "event": "listening",
            "address": address.to_string(),
            "reached_at": reached_at.to_string(),
            "directory": directory.display().to_string(),
        }))?,
        false => out::line(format_args!(
            "listens on {address}: --server {reached_at} on the other machine; runs are kept in {}; until Ctrl-C",
            directory.display()
        ))?,
    }
    let refused = AtomicU64::new(0);
    let told = |event: ReceiveEvent| {
        if matches!(event, ReceiveEvent::Refused { .. }) {
            let n = refused.fetch_add(1, Ordering::Relaxed) + 1;
            if n > REFUSED_LINES && !n.is_power_of_two() {
                return;
            }
            if n > REFUSED_LINES {
                out::warn(format_args!(
                    "forebay: {n} connections were refused; only some are listed"
                ));
            }
        }
        let said = match a.json.json {
            true => {
                serde_json::to_value(&event).map_err(Into::into).and_then(|e| out::json_line(&e))
            }
            false => out::line(event_text(&event)),
        };
        if let Err(e) = said {
            out::warn(format_args!("forebay: {e:#}"));
        }
    };
    receiver.run(&|| interrupt.came(), &told)?;
    Ok(0)
}

/// The address by which others reach a receiver.  If it listens on all addresses, this is the one
/// of the route to other machines.
fn reached_at(address: SocketAddr) -> SocketAddr {
    // The socket is connected to find its address, and sends nothing.  The other end is an address
    // for documentation (RFC 5737, RFC 3849).
    let (any, out) = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => ("0.0.0.0:0", "192.0.2.1:9"),
        IpAddr::V6(ip) if ip.is_unspecified() => ("[::]:0", "[2001:db8::1]:9"),
        _ => return address,
    };
    let own = UdpSocket::bind(any).and_then(|s| s.connect(out).and_then(|()| s.local_addr()));
    own.map_or(address, |own| SocketAddr::new(own.ip(), address.port()))
}

fn event_text(event: &ReceiveEvent) -> String {
    match event {
        ReceiveEvent::Began { peer, run } => {
            format!("{peer}: run {} of {} begins", run.uuid, run.device)
        }
        ReceiveEvent::Ended { peer, run, steps, why } => {
            format!("{peer}: run {run} ends after {} steps: {why}", units::count(*steps))
        }
        ReceiveEvent::Asked { peer, run, known: true } => format!("{peer}: asks for run {run}"),
        ReceiveEvent::Asked { peer, run, known: false } => {
            format!("{peer}: asks for run {run}, which is not known here")
        }
        ReceiveEvent::Refused { peer, why } => format!("{peer}: refused: {why}"),
    }
}

// --- the writer --------------------------------------------------------------

fn bar(blocks: u64, doing: &'static str) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg} {wide_bar} {percent}%").expect("fixed");
    ProgressBar::new(blocks).with_style(style).with_message(doing)
}

fn write(a: &MediaTest, device: &Path, server: &str) -> anyhow::Result<u8> {
    let interrupt = Interrupt::watch_with_hangup()?;
    let overwrite = a.overwrite.then(|| awaited::look(device)).transpose()?;
    let bar = bar(1, "looking for content");
    let options = PullOptions { modes: a.mode, size_bytes: a.size, most: a.time, overwrite };
    let (mut filling, mut writing) = (false, false);
    let mut go_on = |p: PullProgress| {
        if p.filled < p.blocks {
            if !filling && p.filled > 0 {
                filling = true;
                bar.set_message("filling the disk");
            }
            bar.set_length(p.blocks);
            bar.set_position(if p.filled > 0 { p.filled } else { p.looked });
        } else {
            if !writing {
                writing = true;
                let style = ProgressStyle::with_template("{spinner} {msg}").expect("fixed");
                bar.set_style(style);
                bar.enable_steady_tick(Duration::from_millis(200));
            }
            if p.steps.is_multiple_of(64) {
                bar.set_message(format!(
                    "pull the plug now: {} mode, {} steps acknowledged",
                    p.mode,
                    units::count(p.steps)
                ));
            }
        }
        !interrupt.came()
    };
    let ended = write_until_cut(device, server, &options, &mut go_on);
    bar.finish_and_clear();
    let ended = ended?;
    match a.json.json {
        true => out::json(&ended)?,
        false => tell_end(&ended, device, server)?,
    }
    Ok(match (ended.end, interrupt.came()) {
        (PullRunEnd::DiskFailed, _) => DISK_FAILED,
        (_, true) => INTERRUPTED,
        (PullRunEnd::Uncut | PullRunEnd::Stalled, false) => PullVerdict::Inconclusive.exit_code(),
    })
}

fn tell_end(ended: &PullEnd, device: &Path, server: &str) -> anyhow::Result<()> {
    let steps = units::count(ended.steps);
    let name = out::quoted(device);
    let run = &ended.run.uuid;
    if !ended.direct {
        out::line(format_args!("{name}: it has no O_DIRECT: its writes passed the page cache"))?;
    }
    if ended.run.modes != PullModes::Flush {
        out::line(format_args!("FUA mode was {}", ended.run.fua_is))?;
    }
    if ended.steps > 0 {
        out::line(format_args!("{}", round_trip(ended.round_trip_us)))?;
    }
    if !ended.told {
        out::line("the receiver does not know how the run ended")?;
    }
    match ended.end {
        PullRunEnd::Uncut => out::line(format_args!(
            "{name}: run {run}: {steps} steps, and the disk had power all the time: nothing was tested"
        )),
        PullRunEnd::Stalled => out::line(format_args!(
            "{name}: run {run}: after {steps} steps, the report of one took too long. If the power was cut, keep it off until this command ends, and start again"
        )),
        PullRunEnd::DiskFailed => {
            let error = ended.disk_error.as_deref().unwrap_or_default();
            out::line(format_args!("{name}: run {run}: the disk failed after {steps} steps: {error}"))?;
            out::line(format_args!(
                "if its power was cut, switch it on again, and run before anything writes to it: forebay media-test {name} --server {server} --verify"
            ))
        }
    }
}

/// Describes the time of a round trip to the receiver.  The disk is idle meanwhile, and can empty
/// its cache.
fn round_trip(us: u64) -> String {
    format!(
        "a round trip to the receiver took {}; the disk was idle meanwhile",
        units::nanoseconds(us * 1000)
    )
}

// --- the comparison ----------------------------------------------------------

fn verify(a: &MediaTest, device: &Path, server: Option<&str>) -> anyhow::Result<u8> {
    let interrupt = Interrupt::watch_with_hangup()?;
    let journal = match (&a.journal, server) {
        (Some(file), _) => PullJournal::read(file)?,
        (None, Some(server)) => {
            let run = match a.run {
                Some(run) => run,
                None => pulled_run_on(device)?.uuid,
            };
            ask_receiver(server, run)?
        }
        (None, None) => {
            let what = "the acknowledged writes are unknown without a receiver";
            return Err(forebay::Error::usage(what, "give --server or --journal").into());
        }
    };
    let bar = bar(journal.run.blocks, "comparing");
    let report = verify_pulled(device, &journal, &mut |at, _| {
        bar.set_position(at);
        !interrupt.came()
    });
    bar.finish_and_clear();
    let Some(report) = report? else {
        out::warn(format_args!("forebay: {}: interrupted; nothing was changed", device.display()));
        return Ok(INTERRUPTED);
    };
    match a.json.json {
        true => out::json(&report)?,
        false => tell(&report)?,
    }
    Ok(report.verdict.exit_code())
}

fn tell(report: &PullReport) -> anyhow::Result<()> {
    out::line(format_args!(
        "run {} of {}: {} steps acknowledged, cut in {} mode",
        report.run,
        report.device,
        units::count(report.steps),
        report.cut_in
    ))?;
    let mut table = out::Table::new(&["mode", "blocks", "lost", "torn", "collateral"]);
    for (name, mode) in [("FUA", &report.fua), ("flush", &report.flush)] {
        let ModeReport { blocks, lost, torn, collateral } = *mode;
        let counts = [blocks, lost, torn, collateral].map(|n| n.to_string());
        table.row([name.to_string()].into_iter().chain(counts).collect());
    }
    out::line(table)?;
    let cut = &report.in_flight;
    out::line(format_args!(
        "of the step that was cut: {} old, {} new, {} mixed or unreadable, which it may be",
        cut.old, cut.new, cut.other
    ))?;
    for e in &report.examples {
        out::line(format_args!(
            "block {} at byte {}: {} instead of step {} ({})",
            e.block, e.byte, e.found, e.step, e.mode
        ))?;
    }
    if let Some(step) = report.oldest_lost_step {
        let back = report.steps - step;
        out::line(format_args!("what is gone reaches back {} steps", units::count(back)))?;
    }
    if report.unknown > 0 {
        out::line(format_args!(
            "{} blocks are of steps that the record does not have",
            report.unknown
        ))?;
    }
    if report.fua.blocks > 0 || report.cut_in == PullMode::Fua {
        out::line(format_args!("FUA mode was {}", report.fua_is))?;
    }
    if report.fua_is == FuaWay::Write {
        out::line("the kernel sent no flush in flush mode either: the device says that it has no volatile cache")?;
    }
    if report.round_trip_us > 0 {
        out::line(round_trip(report.round_trip_us.into()))?;
    }
    if report.same_boot && report.verdict == PullVerdict::Kept {
        out::line("this system has not restarted since: only a disk with its own plug can have lost power")?;
    }
    if let Some(because) = &report.because {
        out::line(format_args!("because: {because}"))?;
    }
    out::line(format_args!("verdict: {}", report.verdict))
}
