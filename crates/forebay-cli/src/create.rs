// SPDX-License-Identifier: MIT OR Apache-2.0
//! `forebay create`.

use std::time::Duration;

use forebay::{
    measure_medium, CreateOptions, InspectionState, MeasureLimits, Measured, MediaKind,
    MediumFacts, MediumPlace, PoolSummary,
};
use serde::Serialize;

use crate::interrupt::{Interrupt, INTERRUPTED};
use crate::media_info::{self, Info};
use crate::{args, awaited, out, units};

/// The longest measurement of a disk.
const MEASURED: Duration = Duration::from_secs(3);

/// A pool that is written in groups, and what was found of its disk before.
#[derive(Serialize)]
struct Made {
    #[serde(flatten)]
    pool: PoolSummary,
    medium: Option<Info>,
}

pub fn run(a: &args::Create) -> anyhow::Result<u8> {
    let options = CreateOptions {
        size_bytes: a.size,
        chunk_size_bytes: a.chunk_size,
        max_volumes: a.volumes,
        static_bytes: a.static_bytes.unwrap_or(0),
        map_bytes: a.map_bytes.unwrap_or(0),
        medium: a.medium,
        force: a.force,
        media: a.media.options(),
    };
    let overwrite = a.force.then(|| awaited::look(&a.pool)).transpose()?;
    let in_groups = options.in_groups(&a.pool);
    let (mut medium, mut not_measured) = (None, None);
    if in_groups {
        // The measurement writes to a device, so the options are checked before it.
        options.check_room(&a.pool)?;
        let interrupt = Interrupt::watch()?;
        let facts = MediumFacts::of(&a.pool)?;
        let (measured, why) = match measure(&facts, &interrupt) {
            Ok(measured) => (Some(measured), None),
            Err(why) => (None, Some(why)),
        };
        if interrupt.came() {
            out::warn(format_args!("forebay: {}: interrupted; nothing was made", a.pool.display()));
            return Ok(INTERRUPTED);
        }
        not_measured = why;
        medium = Some(Info::new(facts, measured));
    }
    let pool = match overwrite {
        Some(looked) => looked.create(&options)?,
        None => forebay::create(&a.pool, &options)?,
    };
    let made = Made { pool, medium };
    if a.json.json {
        match in_groups {
            true => out::json(&made)?,
            false => out::json(&made.pool)?,
        }
        return Ok(0);
    }
    tell(&made, not_measured.as_deref())?;
    Ok(0)
}

/// Measures the disk, or returns why it is not measured.  A device is written only if nothing is
/// found on it.
fn measure(facts: &MediumFacts, interrupt: &Interrupt) -> Result<Measured, String> {
    if !facts.refusals().is_empty() {
        return Err("it is refused".into());
    }
    let device = facts.place == MediumPlace::BlockDevice;
    let blank = || forebay::inspect(&facts.path).is_ok_and(|i| i.state == InspectionState::Blank);
    if device && !blank() {
        return Err("something was found on it".into());
    }
    let limits = MeasureLimits { most: MEASURED, write_device: device, ..Default::default() };
    measure_medium(facts, &limits, &|| interrupt.came()).map_err(|e| e.to_string())
}

fn tell(made: &Made, not_measured: Option<&str>) -> anyhow::Result<()> {
    let pool = &made.pool;
    let quoted = out::quoted(&pool.path);
    out::line(format_args!(
        "{quoted}: pool {}, {} for data in {} chunks of {}",
        pool.uuid,
        units::bytes(pool.capacity_bytes),
        pool.chunks,
        units::bytes(pool.chunk_size_bytes.into()),
    ))?;
    if pool.static_bytes > 0 {
        out::line(format_args!(
            "next to it {} for static volumes",
            units::bytes(pool.static_bytes)
        ))?;
    }
    if pool.map_bytes > 0 {
        out::line(format_args!(
            "next to it {} for maps: forebay map add {quoted} NAME",
            units::bytes(pool.map_bytes),
        ))?;
    }
    out::line(format_args!("media: {}", media_text(&pool.media)))?;
    if let Some(info) = &made.medium {
        media_info::tell_found(info)?;
        if let Some(why) = not_measured {
            out::line(format_args!("not measured: {why}"))?;
        }
        out::line(format_args!(
            "next: forebay volume add {quoted} NAME ORIGIN, forebay mount {quoted} DIRECTORY, or forebay log create {quoted} NAME"
        ))?;
        return Ok(());
    }
    if pool.media.kind == MediaKind::File {
        out::line("for logs, --medium ssd makes a pool in which many threads that append at a time share one write; here each has an msync of its own (forebay bench ssd measures both on this disk)")?;
    }
    out::line(format_args!("next: forebay volume add {quoted} NAME ORIGIN"))?;
    Ok(())
}

/// Describes the media and the events that it survives.
pub fn media_text(media: &forebay::MediaInfo) -> String {
    let survives = match media.durable {
        true => "survives a power cut",
        false => "does NOT survive a power cut",
    };
    format!(
        "{} ({}, persist method {}, {survives})",
        media.note,
        units::bytes(media.size_bytes),
        media.persist,
    )
}
