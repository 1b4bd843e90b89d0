// SPDX-License-Identifier: MIT OR Apache-2.0
//! `forebay origin`: shows the mark on an origin, and gives up the data that it stands for.

use forebay::{OriginMarks, OriginState, OriginStatus};
use serde_json::json;

use crate::args::origin::{AcceptHost, AcceptLoss, Origin, OriginStatus as Asked};
use crate::{out, units};

pub fn run(a: &Origin) -> anyhow::Result<u8> {
    match a {
        Origin::Status(a) => status(a),
        Origin::AcceptLoss(a) => accept_loss(a),
        Origin::AcceptHost(a) => accept_host(a),
    }
}

fn accept_host(a: &AcceptHost) -> anyhow::Result<u8> {
    forebay::accept_host(&a.host)?;
    match a.json.json {
        true => out::json(&json!({ "accepted": a.host }))?,
        false => out::line(format_args!(
            "the marks of host {} are this host's now; servers that run already look at that when \
             they meet one",
            a.host
        ))?,
    }
    Ok(0)
}

fn status(a: &Asked) -> anyhow::Result<u8> {
    let status = OriginMarks::at(&a.place, a.state.state.as_deref())?.asked_status()?;
    match a.json.json {
        true => out::json(&status)?,
        false => tell(&status)?,
    }
    Ok(status.exit_code())
}

/// Describes the data that may be missing.
fn missing(status: &OriginStatus) -> String {
    let Some(mark) = &status.mark else {
        let why = status.damage.as_deref().unwrap_or_default();
        return format!("it may lack writes: its mark cannot be read ({why})");
    };
    format!(
        "it may lack writes since {}, at most {}, of {} {} of pool {} (generation {}, then at {}, host {})",
        status.since.as_deref().unwrap_or_default(),
        units::bytes(mark.at_most_bytes),
        if mark.map { "map" } else { "volume" },
        mark.volume,
        mark.pool,
        mark.generation,
        mark.at,
        mark.host,
    )
}

fn tell(status: &OriginStatus) -> anyhow::Result<()> {
    let place = out::quoted(&status.place);
    if status.state == OriginState::Complete {
        // A change by others, such as a truncation, leaves no mark.
        let size = status.size_bytes.map(|n| format!(", and has {n} bytes")).unwrap_or_default();
        return match status.on_the_origin {
            true => out::line(format_args!("{place}: complete: it has no mark{size}")),
            false => out::line(format_args!(
                "{place}: complete as far as this host knows: there is not {}",
                status.kept_in
            )),
        };
    }
    out::line(format_args!("{place}: {}", missing(status)))?;
    if let Some(pid) = status.leased_by {
        // The lease of a process that was killed lasts until everything is in the file.
        let what = match !forebay::is_dying(pid) {
            true => "has it mapped onto that pool, and writes it back, and all when it ends",
            false => "had it mapped onto that pool and has ended: the pool's server writes it back",
        };
        out::line(format_args!("process {pid} {what}"))?;
        return out::line(format_args!("the mark is {}", status.kept_in));
    }
    out::line(format_args!("the mark is {}", status.kept_in))?;
    if let Some(mark) = &status.mark {
        let at = out::quoted(std::path::Path::new(&mark.at));
        out::line(format_args!("with that pool: {} {at}", mark.way_home()))?;
    }
    out::line(format_args!("if the pool is gone: forebay origin accept-loss {place}"))?;
    Ok(())
}

fn accept_loss(a: &AcceptLoss) -> anyhow::Result<u8> {
    let before = OriginMarks::at(&a.place, a.state.state.as_deref())?.accept_loss()?;
    if a.json.json {
        out::json(&json!({ "before": before, "given_up": !before.complete }))?;
        return Ok(0);
    }
    let place = out::quoted(&before.place);
    match before.complete {
        true => out::line(format_args!("{place}: it has no mark; nothing is given up"))?,
        false => {
            out::line(format_args!("{place}: {}", missing(&before)))?;
            out::line(
                "that is given up: the mark is gone, and the origin counts as complete as it is",
            )?;
        }
    }
    Ok(0)
}
