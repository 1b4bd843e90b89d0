// SPDX-License-Identifier: MIT OR Apache-2.0
//! `forebay check`: opens the pool read-only, so it changes nothing.

use crate::{args, open, out};

const DAMAGED: u8 = 5;
const LOST: u8 = 11;

pub fn run(a: &args::Check) -> anyhow::Result<u8> {
    let pool = open::read_only(&a.pool)?;
    let report = pool.check(!a.no_data)?;
    pool.close()?;
    if a.json.json {
        out::json(&report)?;
    } else {
        out::line(format_args!("{}: {}", a.pool.display(), report.recovery))?;
        out::line(format_args!("{}: {report}", a.pool.display()))?;
    }
    let lost = !report.damaged.is_empty() || report.holes > 0;
    Ok(match (report.ok, lost) {
        (true, _) => 0,
        (false, true) if report.invariant.is_none() && report.damaged_volumes.is_empty() => LOST,
        (false, _) => DAMAGED,
    })
}
