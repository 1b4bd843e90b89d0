// SPDX-License-Identifier: MIT OR Apache-2.0
//! `forebay media-info`: what a disk or file is worth as the medium of a pool.

use forebay::{
    judge_medium, measure_medium, DeviceFacts, Error, Judgement, MeasureLimits, Measured,
    MediumFacts, MediumPlace, MediumRefusal, Way,
};
use serde::Serialize;

use crate::args::medium::MediaInfo;
use crate::interrupt::{Interrupt, INTERRUPTED};
use crate::{out, units};

/// The exit code for a medium that is refused: not supported.
const REFUSED: u8 = 10;

#[derive(Serialize)]
pub struct Info {
    #[serde(flatten)]
    pub facts: MediumFacts,
    pub measured: Option<Measured>,
    judgement: Judgement,
    refusals: Vec<MediumRefusal>,
}

impl Info {
    pub fn new(facts: MediumFacts, measured: Option<Measured>) -> Info {
        let (judgement, refusals) = (judge_medium(&facts, measured.as_ref()), facts.refusals());
        Info { facts, measured, judgement, refusals }
    }
}

pub fn run(a: &MediaInfo) -> anyhow::Result<u8> {
    let interrupt = Interrupt::watch()?;
    let facts = MediumFacts::of(&a.path)?;
    if a.write && facts.place != MediumPlace::BlockDevice {
        let what = format!("{} is no block device", a.path.display());
        let way_out = "leave --write out: a temporary file next to it is measured";
        return Err(Error::usage(what, way_out).into());
    }
    let refusals = facts.refusals();
    let wanted = match facts.place {
        MediumPlace::BlockDevice => a.write,
        _ => !a.no_measure,
    };
    let measured = match wanted && refusals.is_empty() {
        true => {
            let limits =
                MeasureLimits { most: a.time, write_device: a.write, ..Default::default() };
            Some(measure_medium(&facts, &limits, &|| interrupt.came())?)
        }
        false => None,
    };
    let code = match (interrupt.came(), refusals.is_empty()) {
        (true, _) => INTERRUPTED,
        (_, false) => REFUSED,
        _ => 0,
    };
    let info = Info::new(facts, measured);
    match a.json.json {
        true => out::json(&info)?,
        false => tell(&info)?,
    }
    Ok(code)
}

fn tell(info: &Info) -> anyhow::Result<()> {
    let facts = &info.facts;
    let path = out::quoted(&facts.path);
    let size = units::bytes(facts.size_bytes);
    match facts.place {
        MediumPlace::BlockDevice => out::line(format_args!("{path}: block device, {size}"))?,
        MediumPlace::File => out::line(format_args!("{path}: file, {size}"))?,
        MediumPlace::NewFile => out::line(format_args!("{path}: place for a file"))?,
    }
    if let Some(system) = &facts.file_system {
        out::line(format_args!(
            "file system: {} of {} on {} ({})",
            system.kind,
            system.source,
            out::quoted(&system.mounted_on),
            system.options
        ))?;
    }
    if facts.device.is_none() {
        out::line("disk: the system does not say which one it is")?;
    }
    tell_disk(info)?;
    info.judgement.pool.iter().try_for_each(|text| out::line(format_args!("  a pool: {text}")))?;
    info.judgement.doubts.iter().try_for_each(tell_doubt)?;
    for refusal in &info.refusals {
        out::line(format_args!(
            "refused ({}): {}; {}",
            refusal.name, refusal.cause, refusal.way_out
        ))?;
    }
    if info.measured.is_none()
        && info.refusals.is_empty()
        && facts.place == MediumPlace::BlockDevice
    {
        out::line("not measured: --write allows it, on a device on which nothing is found")?;
    }
    Ok(())
}

/// Prints the properties of the disk that a new pool lies on.
pub fn tell_found(info: &Info) -> anyhow::Result<()> {
    tell_disk(info)?;
    info.judgement.doubts.iter().try_for_each(tell_doubt)
}

fn tell_doubt(text: impl std::fmt::Display) -> anyhow::Result<()> {
    out::line(format_args!("  doubt: {text}"))
}

/// The disk, its times, and its kind.
fn tell_disk(info: &Info) -> anyhow::Result<()> {
    if let Some(device) = &info.facts.device {
        tell_device(device, info.facts.unit_bytes)?;
    }
    if let Some(measured) = &info.measured {
        tell_times(measured)?;
    }
    let judged = &info.judgement;
    out::line(format_args!("kind: {}", judged.class))?;
    judged.because.iter().try_for_each(|text| out::line(format_args!("  because: {text}")))?;
    Ok(())
}

fn tell_device(device: &DeviceFacts, unit_bytes: u32) -> anyhow::Result<()> {
    let of = |title: &str, value: &Option<String>| {
        value.as_ref().map(|value| format!(", {title} {value}")).unwrap_or_default()
    };
    out::line(format_args!(
        "disk: {}{} ({}){}{}{}",
        device.name,
        of("partition", &device.partition),
        device.transport,
        of("model", &device.model),
        of("serial", &device.serial),
        of("firmware", &device.firmware),
    ))?;
    let unknown = || "unknown".to_string();
    let number = |n: Option<u32>| n.map_or_else(unknown, |n| n.to_string());
    let answer = |yes: Option<bool>| match yes {
        Some(true) => "yes".to_string(),
        Some(false) => "no".to_string(),
        None => unknown(),
    };
    let atomic =
        device.atomic_write_bytes.map_or_else(|| "not announced".into(), |n| n.to_string());
    out::line(format_args!(
        "blocks: logical {}, physical {}, unit of a durable write {unit_bytes}, atomic write {atomic}",
        number(device.logical_block_bytes),
        number(device.physical_block_bytes),
    ))?;
    out::line(format_args!(
        "write cache: {}; FUA: {}; zoned: {}; rotational: {}",
        device.write_cache.clone().unwrap_or_else(unknown),
        answer(device.fua),
        device.zoned.clone().unwrap_or_else(unknown),
        answer(device.rotational),
    ))
}

fn tell_times(measured: &Measured) -> anyhow::Result<()> {
    let mut table = out::Table::new(&["one at a time", "size", "p50", "p99", "samples"]);
    for timing in &measured.timings {
        let name = match timing.way {
            Way::Write => "write",
            Way::Fua => "write with FUA",
            Way::Flush => "write, then flush",
        };
        table.row(vec![
            name.into(),
            units::bytes(timing.bytes.into()),
            units::nanoseconds(timing.p50_ns),
            units::nanoseconds(timing.p99_ns),
            timing.samples.to_string(),
        ]);
    }
    out::line(table)?;
    out::line(format_args!("a write with FUA was {}", measured.fua_is))?;
    if !measured.direct {
        out::line("through the page cache: the file system has no O_DIRECT")?;
    }
    if measured.cut_short {
        let wanted = MeasureLimits::default().samples;
        out::line(format_args!(
            "the time was over before there were {wanted} samples of each (--time)"
        ))?;
    }
    Ok(())
}
