// SPDX-License-Identifier: MIT OR Apache-2.0
//! `forebay check`: opens the pool read-only, so it changes nothing.

use crate::{args, open, out};

pub fn run(a: &args::Check) -> anyhow::Result<u8> {
    let pool = open::read_only(&a.pool)?;
    let report = pool.check(!a.no_data)?;
    pool.close()?;
    if a.json.json {
        out::json(&report)?;
    } else {
        out::line(format_args!("{}: {}", out::quoted(&a.pool), report.recovery))?;
        out::line(format_args!("{}: {report}", out::quoted(&a.pool)))?;
    }
    Ok(report.exit_code())
}
