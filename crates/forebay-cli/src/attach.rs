// SPDX-License-Identifier: MIT OR Apache-2.0
//! `forebay attach` and `detach`: volumes as block devices of the
//! kernel module.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{bail, Context};
use forebay::{
    Attaching, Completed, Completeness, CreateOptions, FileOrigin, InspectionState, Origin,
    OriginMarks, Uuid, VolumeInfo,
};
use forebay_server::{control::Client, runtime_dir};
use rustix::io::Errno;
use serde::Serialize;
use serde_json::json;

use crate::args::module::{AttachDevice, DetachDevice, DeviceOptions};
use crate::args::Tuning;
use crate::config::{self, Config};
use crate::module::{self, Control, Device, Error, Listed};
use crate::{open, out};

/// A volume and how it is attached.
struct Wanted {
    pool: PathBuf,
    volume: String,
    origin: PathBuf,
    origin_id: Option<String>,
    /// A name may be recorded as the origin's id.
    by_name: bool,
    options: Vec<String>,
    accept_mark: bool,
    state: Option<PathBuf>,
}

#[derive(Serialize)]
struct Attached {
    volume: String,
    device: String,
    pool: PathBuf,
    origin: PathBuf,
    /// Somebody attached it before.
    already: bool,
}

pub fn run(a: &AttachDevice) -> anyhow::Result<u8> {
    let control = Device::new();
    match (&a.pool, &a.volume, &a.origin) {
        (Some(pool), Some(volume), Some(origin)) => {
            let wanted = Wanted {
                pool: pool.clone(),
                volume: volume.clone(),
                origin: origin.clone(),
                origin_id: a.device.origin_id.clone(),
                by_name: a.device.origin_by_name,
                options: options(&a.device, &a.tuning)?,
                accept_mark: a.accept_mark,
                state: a.state.state.clone(),
            };
            if a.dry_run {
                return out::line(line(&wanted)?).map(|()| 0);
            }
            let attached = attach(&control, &wanted)?;
            report(a, &[attached])?;
            Ok(0)
        }
        _ => configured(a, &control),
    }
}

// --- what the configuration says ---------------------------------------------

fn configured(a: &AttachDevice, control: &dyn Control) -> anyhow::Result<u8> {
    let path = a.config.as_deref().unwrap_or(Path::new(config::DIRECTORY));
    let Config { volumes, mistakes } = config::read(path);
    // Mistakes elsewhere do not concern a volume that was asked for by name.
    for mistake in &mistakes {
        out::warn(format_args!("forebay: {mistake}"));
    }
    for name in &a.only {
        if !volumes.iter().any(|v| v.name == *name) {
            bail!(forebay::Error::Usage {
                what: format!("{}: no volume {name}", path.display()),
                way_out: "add a table for it, forebay.d(5)".into(),
            });
        }
    }
    let (mut attached, mut first_error) = (Vec::new(), None);
    for v in volumes.iter().filter(|v| a.only.is_empty() || a.only.contains(&v.name)) {
        let wanted = Wanted {
            pool: v.pool.clone(),
            volume: v.name.clone(),
            origin: v.origin.clone(),
            origin_id: v.origin_id.clone(),
            by_name: false,
            options: v.options.clone(),
            accept_mark: a.accept_mark,
            state: a.state.state.clone(),
        };
        let done = match a.dry_run {
            true => line(&wanted).and_then(out::line),
            false => attach_unless(control, &wanted).map(|done| attached.push(done)),
        };
        // The other volumes are attached all the same.
        if let Err(error) = done {
            let error = error.context(format!("{}:{}", v.file.display(), v.line));
            match first_error {
                None => first_error = Some(error),
                Some(_) => out::warn(format_args!("forebay: {error:#}")),
            }
        }
    }
    if !a.dry_run {
        report(a, &attached)?;
    }
    match (first_error, a.only.is_empty() && !mistakes.is_empty()) {
        (Some(error), _) => Err(error),
        (None, true) => Ok(2),
        (None, false) => Ok(0),
    }
}

/// A second start of a unit, or --all again, is no mistake.
fn attach_unless(control: &dyn Control, w: &Wanted) -> anyhow::Result<Attached> {
    let cache = module::device_number(&w.pool, POOL_KINDS)?;
    let what = format!("volume {}", w.volume);
    let there = module::list(control).map_err(|e| e.named(&what))?;
    match there.into_iter().find(|l| l.volume == w.volume && l.cache == cache) {
        Some(l) => Ok(Attached {
            volume: w.volume.clone(),
            device: format!("/dev/{}", l.device),
            pool: w.pool.clone(),
            origin: format!("/dev/{}", l.origin).into(),
            already: true,
        }),
        None => attach(control, w),
    }
}

// --- attach --------------------------------------------------------------------

const POOL_KINDS: &str =
    "the module takes a persistent-memory device like /dev/pmem0, or a disk with a pool that forebay create --medium ssd made; forebay serve takes files too";
const ORIGIN_KINDS: &str = "the module takes block devices: attach a file with losetup, or use forebay serve, which takes files too";

/// The options as the module reads them.
fn options(d: &DeviceOptions, t: &Tuning) -> anyhow::Result<Vec<String>> {
    let ms = |time: std::time::Duration| match u32::try_from(time.as_millis()) {
        Ok(ms) if ms > 0 || time.is_zero() => Ok(ms.to_string()),
        _ => Err(forebay::Error::Usage {
            what: format!("a time of {} s is out of range", time.as_secs_f64()),
            way_out: "write 1ms to 1193h, or none".into(),
        }),
    };
    let with_value = [
        ("high_watermark", t.high_watermark.map(|n| n.to_string())),
        ("low_watermark", t.low_watermark.map(|n| n.to_string())),
        ("max_age", t.max_age.map(ms).transpose()?),
        ("idle", t.idle.map(ms).transpose()?),
        ("verify", t.verify.map(|v| v.to_string())),
        ("checksums", (!t.checksums).then(|| "off".into())),
        ("slots", t.slots.filter(|n| *n != 0).map(|n| n.to_string())),
        ("writeback_jobs", d.jobs.map(|n| n.to_string())),
        ("holes", d.holes.map(|holes| holes.to_string())),
        ("start_sector", d.start_sector.map(|n| n.to_string())),
        ("durable", d.durable.map(|when| when.to_string())),
    ];
    let switches = [
        ("cleaner", d.cleaner),
        ("create", d.create),
        ("accept_changed_origin", d.accept_changed_origin),
        ("nofua", d.no_fua),
    ];
    let mut words = Vec::new();
    for (name, value) in with_value {
        words.extend(value.into_iter().flat_map(|v| [name.to_string(), v]));
    }
    words.extend(switches.iter().filter(|(_, on)| *on).map(|(name, _)| name.to_string()));
    Ok(words)
}

/// Writes the line for the module.  It names devices by number, so that no character of a path
/// matters, and the origin by its recorded id.
fn line(w: &Wanted) -> anyhow::Result<String> {
    let usage =
        |what: String| forebay::Error::Usage { what, way_out: "see forebay attach --help".into() };
    config::check_name(&w.volume).map_err(usage)?;
    let cache = module::device_number(&w.pool, POOL_KINDS)?;
    let origin = module::device_number(&w.origin, ORIGIN_KINDS)?;
    let id = match &w.origin_id {
        Some(id) => {
            config::check_id(id).map_err(usage)?;
            id.clone()
        }
        None => identity(w)?,
    };
    let mut words = vec!["attach".to_string(), cache, origin, w.volume.clone()];
    words.extend(w.options.iter().cloned());
    words.extend(["origin_id".into(), id]);
    Ok(words.join(" "))
}

/// Returns the id that `forebay volume add` has recorded, if the device is the same.  The module
/// records the id that it gets.  So a device's name is passed only if it cannot be recorded, or if
/// it may be: then it is recorded already, with consent.
fn identity(w: &Wanted) -> anyhow::Result<String> {
    let origin = FileOrigin::open(&w.origin, true)
        .with_context(|| format!("volume {}: its origin", w.volume))?;
    let identity = origin.identity();
    let records = |o: &String| ["create", "accept_changed_origin"].contains(&o.as_str());
    if origin.is_known_by_name() && !w.by_name && w.options.iter().any(records) {
        return Err(forebay::origin_known_by_name(&w.volume, &origin).into());
    }
    Ok(identity.split('|').next().unwrap_or_default().to_string())
}

fn attach(control: &dyn Control, w: &Wanted) -> anyhow::Result<Attached> {
    let what = format!(
        "volume {}: attaching {} through the pool {}",
        w.volume,
        w.origin.display(),
        w.pool.display()
    );
    let is_busy = |e: &anyhow::Error| {
        e.downcast_ref::<forebay::Error>().is_some_and(|e| e.exit_code() == BUSY)
    };
    let line = line(w).map_err(|error| match taken(control, w) {
        Some(by) if is_busy(&error) => Error::new(&what, "it is in use", by, Errno::BUSY).into(),
        _ => error,
    })?;
    // The module claims this device alone, and keeps no lock of what is below it.
    forebay::check_other_names(&w.pool)?;
    let mark = mark(w)?;
    let expected = mark.as_ref().map_or(String::new(), |m| format!(" {}", m.expected()));
    let asked = module::ask(control, &what, &format!("{line}{expected}"));
    let device = match asked {
        Ok(device) => device,
        Err(error) => {
            // The module has written nothing to the origin.
            mark.map_or(Ok(()), Attaching::failed)?;
            return Err(match error.errno() {
                Some(Errno::BUSY) => match taken(control, w) {
                    Some(by) => error.or_do(by),
                    None => error,
                },
                Some(Errno::STALE) if !error.to_string().contains("mark") => error.or_do("or on the command line --accept-changed-origin, and --origin-by-name for a disk without an id"),
                _ => error,
            }
            .into());
        }
    };
    if let Some(mark) = mark {
        let record = module::status(control, &device).ok().and_then(|s| record(&s));
        // The origin is marked.  If this fails, only a copy of the pool from before is not
        // recognized as older yet.
        if let Err(error) = record.map_or(Ok(()), |(uuid, marks)| mark.attached(uuid, marks)) {
            out::warn(format_args!("forebay: volume {}: {error}", w.volume));
        }
    }
    Ok(Attached {
        volume: w.volume.clone(),
        device: format!("/dev/{device}"),
        pool: w.pool.clone(),
        origin: w.origin.clone(),
        already: false,
    })
}

/// The volume's UUID, and the number of its marks.
fn record(status: &module::Status) -> Option<(Uuid, u32)> {
    let uuid = status.fields.get("volume_uuid")?.parse().ok()?;
    Some((uuid, u32::try_from(status.number("marks")?).ok()?))
}

/// Marks the origin durably before the module has it, and checks that it is not the origin of
/// another pool.  None: no tool sees the place of the pool, and no other pool has marked the
/// origin.
fn mark(w: &Wanted) -> anyhow::Result<Option<Attaching>> {
    let says = |option: &str| w.options.iter().any(|o| o == option);
    let marks = OriginMarks::at(&w.origin, w.state.as_deref())?;
    if says("start_sector") {
        let status = marks.status()?;
        if !status.complete {
            bail!(forebay::Error::WrongOrigin {
                name: w.volume.clone(),
                origin: w.origin.display().to_string(),
                cause: format!("it is marked, and a pool that begins at a start sector marks nothing: {}", status.mark.map_or_else(String::new, |m| m.to_string())),
                way_out: "drain the pool that marked it, or give up that pool's data (forebay origin accept-loss)".into(),
            });
        }
        out::warn(format_args!(
            "forebay: volume {}: with --start-sector an origin is not marked",
            w.volume
        ));
        return Ok(None);
    }
    let mut found = match forebay::inspect(&w.pool) {
        Err(forebay::Error::Unsuitable { .. }) => return Ok(None), // the module says best why
        found => found?,
    };
    if says("create") && !has_volume(w) {
        forebay::refuse_pool_as_origin(&w.origin)?;
    }
    if says("create") && found.state == InspectionState::Blank {
        // The mark names the pool, so that is made first.
        forebay::create(&w.pool, &CreateOptions::default())?;
        found = forebay::inspect(&w.pool)?;
    }
    // The module does not take such a device either.
    let Some(superblock) = found.superblock else { return Ok(None) };
    Ok(Some(marks.attaching(&superblock, &w.pool, &w.volume, w.accept_mark)?))
}

/// The exit code if something is in use.
const BUSY: u8 = 4;

/// The pool has the volume already, as far as it can be read now.
fn has_volume(w: &Wanted) -> bool {
    open::read_only(&w.pool).is_ok_and(|pool| pool.volumes().iter().any(|v| v.name == w.volume))
}

/// Describes who has the volume, the origin or the pool.
fn taken(control: &dyn Control, w: &Wanted) -> Option<String> {
    let cache = module::device_number(&w.pool, "").ok()?;
    let origin = module::device_number(&w.origin, "").map(|n| module::device_path(&n));
    let there = module::list(control).unwrap_or_default();
    if let Some(l) = there.iter().find(|l| l.volume == w.volume && l.cache == cache) {
        return Some(format!("it is attached already, as /dev/{}", l.device));
    }
    let same = |l: &&Listed| origin.as_ref().is_ok_and(|o| *o == format!("/dev/{}", l.origin));
    if let Some(l) = there.iter().find(same) {
        return Some(format!("the origin is that of volume {}, /dev/{}", l.volume, l.device));
    }
    let served = Client::for_pool(&runtime_dir(), &w.pool).ok()?;
    let pid = served?.status().map(|s| format!(" (process {})", s.pool.pid)).unwrap_or_default();
    Some(format!("the pool is served by forebay serve{pid}: stop that first"))
}

fn report(a: &AttachDevice, attached: &[Attached]) -> anyhow::Result<()> {
    if a.json.json {
        return out::json(&attached);
    }
    for one in attached {
        let already = if one.already { ", as before" } else { "" };
        let origin = out::quoted(&one.origin);
        out::line(format_args!(
            "volume {}: {} in front of {origin}{already}",
            one.volume, one.device
        ))?;
    }
    if attached.is_empty() {
        let path = a.config.as_deref().unwrap_or(Path::new(config::DIRECTORY));
        out::line(format_args!("nothing to attach: {} names no volume", out::quoted(path)))?;
    }
    Ok(())
}

// --- detach --------------------------------------------------------------------

pub fn detach(a: &DetachDevice) -> anyhow::Result<u8> {
    let gone = detach_devices(&Device::new(), a)?;
    if a.json.json {
        let gone: Vec<_> = gone
            .iter()
            .map(|(l, judged, _)| json!({ "device": format!("/dev/{}", l.device), "volume": l.volume, "flushed": judged.is_some(), "origin": judged }))
            .collect();
        out::json(&gone)?;
    }
    let mut code = 0;
    for (l, judged, said) in &gone {
        let line = |state: &dyn std::fmt::Display| {
            format!("volume {}: /dev/{} is gone; {state}", l.volume, l.device)
        };
        match judged.as_ref().map(|c| (c.exit_code(), c)) {
            Some((worse, c)) if worse != 0 => {
                out::warn(format_args!("forebay: {}", line(c)));
                code = if code == 0 { worse } else { code };
            }
            _ if a.json.json => {}
            Some((_, c)) => out::line(line(c))?,
            None => out::line(line(&left(said)))?,
        }
    }
    if gone.is_empty() && !a.json.json {
        out::line("nothing is attached")?;
    }
    Ok(code)
}

/// Says where the data of a device is that was not flushed, by the module's answer.
fn left(said: &str) -> String {
    match said.split_once(' ').unwrap_or((said, "")) {
        ("medium_failed", "") => "the origin has everything; the pool's disk has failed".into(),
        ("medium_failed", "kept") => {
            "until the pool's last device goes, memory alone has it".into()
        }
        ("medium_failed", volumes) => format!("the pool's disk has failed; given up: {volumes}"),
        _ => "what is cached stays in the pool".into(),
    }
}

/// A detached device, the state of its origin if it was flushed, and what the module answered.
type Gone = (Listed, Option<Completeness>, String);

/// Detaches the newest device first, because it may lie on an older one.
fn detach_devices(control: &dyn Control, a: &DetachDevice) -> anyhow::Result<Vec<Gone>> {
    let there = module::list(control)?;
    let mut wanted = match a.all {
        true => there.clone(),
        false => {
            let found = a.devices.iter().map(|name| find(&there, name).cloned());
            found.collect::<Result<Vec<_>, Error>>()?
        }
    };
    if a.all {
        wanted.reverse();
    }
    let (mut gone, mut first_error) = (Vec::new(), None);
    for l in wanted {
        match detach_one(control, &l, a) {
            Ok((flushed, said)) => {
                if let Some((Completeness { complete: true, .. }, status)) = &flushed {
                    complete(a, &l, status);
                }
                gone.push((l, flushed.map(|(judged, _)| judged), said));
            }
            Err(error) => match first_error {
                None => first_error = Some(error),
                Some(_) => out::warn(format_args!("forebay: {error}")),
            },
        }
    }
    match first_error {
        None => Ok(gone),
        Some(error) => Err(error.into()),
    }
}

/// Removes the mark of an origin that has everything, as the pool says.  If that fails, the mark
/// claims too much, and does no harm.
fn complete(a: &DetachDevice, l: &Listed, status: &module::Status) {
    let pool = status.fields.get("pool").and_then(|pool| pool.parse().ok());
    let (Some(pool), Some((uuid, marks))) = (pool, record(status)) else { return };
    let volume = Completed { pool, name: &l.volume, uuid, marks };
    let origin = PathBuf::from(format!("/dev/{}", l.origin));
    let marks = OriginMarks::at(&origin, a.state.state.as_deref());
    if let Err(error) = marks.and_then(|marks| marks.complete(&volume)) {
        out::warn(format_args!("forebay: volume {}: {error}", l.volume));
    }
}

/// Detaches a device.  Nobody writes to it between the last status and the detach, because a device
/// in use is not detached.  Earlier writes are in that status.
fn detach_one(
    control: &dyn Control,
    l: &Listed,
    a: &DetachDevice,
) -> Result<(Option<(Completeness, module::Status)>, String), Error> {
    let what = format!("volume {}: /dev/{}", l.volume, l.device);
    let flushed = || {
        match module::ask(control, &what, &format!("command {} flush", l.device)) {
            Ok(_) => {}
            // The origin has everything except lost blocks, and the status reports those.
            Err(e) if e.errno() == Some(Errno::NODATA) => {}
            Err(e) if matches!(e.errno(), Some(Errno::INTR | Errno::NODEV)) => return Err(e),
            Err(e) if module::status(control, &l.device).is_ok_and(|s| medium_failed(&s)) => {
                return Err(e.or_do("its origin may fail, see forebay list; the pool's disk has failed, and memory alone has what the origin lacks"))
            }
            Err(e) => return Err(e.or_do("its origin may fail, see forebay list; what is cached stays safe in the pool, and without --flush it can be detached")),
        }
        let status = module::status(control, &l.device)?;
        Ok(Some((judge(&status, l), status)))
    };
    let mut flush = a.flush;
    let mut judged = if flush { flushed()? } else { None };
    // A process that examines a device after its close, such as udev, has it open.
    let patience = Instant::now() + PATIENCE;
    let mut flushes = 1;
    loop {
        // A flush ends while others write.  Then the origin lacks what they wrote.
        let how = match (flush, a.give_up) {
            (true, _) => " clean",
            (_, true) => " give-up",
            _ => "",
        };
        match module::ask(control, &what, &format!("detach {}{how}", l.device)) {
            Ok(said) => return Ok((judged, said)),
            // The pool's disk has failed, and memory alone has something.
            Err(e) if e.errno() == Some(Errno::IO) && a.rescue && !flush => {
                flush = true;
                judged = flushed()?;
            }
            Err(e) if e.errno() == Some(Errno::AGAIN) && flushes < FLUSHES_MOST => {
                flushes += 1;
                judged = flushed()?;
            }
            Err(e) if e.errno() == Some(Errno::AGAIN) => {
                return Err(e.or_do(format!("{flushes} flushes have not emptied it: stop the program that still writes to it, or detach it without --flush; cached data stays safe in the pool")))
            }
            Err(e) if e.errno() != Some(Errno::BUSY) => return Err(e),
            Err(_) if Instant::now() < patience => std::thread::sleep(PAUSE),
            Err(e) => {
                return Err(match module::users(&l.device) {
                    Some(users) => e.or_do(users),
                    None => e,
                })
            }
        }
    }
}

fn medium_failed(status: &module::Status) -> bool {
    status.fields.get("medium").is_some_and(|medium| medium == "failed")
}

/// Another state may be named before that.
fn origin_failed(status: &module::Status) -> bool {
    let error = status.fields.get("last_error").is_some_and(|error| error != "0");
    status.state == "origin_failed" || error
}

/// Judges an origin by the module's counters.  The pool has the numbers of lost blocks, for
/// `forebay check`.  A missing counter does not count as zero.
fn judge(status: &module::Status, l: &Listed) -> Completeness {
    let number = |name| status.number(name);
    let (Some(pages), Some(lost), Some(holes)) =
        (number("pages"), number("lost_blocks"), number("holes"))
    else {
        return Completeness { volume: l.volume.clone(), ..Default::default() };
    };
    let v = VolumeInfo {
        name: l.volume.clone(),
        attached: true,
        lost_blocks: lost,
        holes,
        holes_unknown: number("holes_unknown").unwrap_or(0),
        uncounted: number("counted") == Some(0),
        last_error: origin_failed(status).then(|| "see dmesg".into()),
        ..Default::default()
    };
    // A pool whose disk has failed releases no page.  The flush before has written all of them.
    let cached = if medium_failed(status) { 0 } else { pages.saturating_sub(lost) };
    Completeness::judge(&v, cached, Vec::new(), None)
}

/// The most flushes of a device that others write to meanwhile.
const FLUSHES_MOST: u32 = 16;
#[cfg(not(test))]
const PATIENCE: Duration = Duration::from_secs(2);
#[cfg(test)]
const PATIENCE: Duration = Duration::ZERO;
const PAUSE: Duration = Duration::from_millis(50);

/// Finds a device by volume, device name or path.  The name of a volume is not enough if two pools
/// have such a volume.
fn find<'a>(there: &'a [Listed], name: &str) -> Result<&'a Listed, Error> {
    let path = Path::new(name);
    let leads_to = match name.contains('/') {
        true => std::fs::canonicalize(path).unwrap_or_else(|_| path.into()),
        false => path.into(),
    };
    let device = leads_to.strip_prefix("/dev").unwrap_or(&leads_to);
    if let Some(l) = there.iter().find(|l| device == Path::new(&l.device)) {
        return Ok(l);
    }
    let mut named = there.iter().filter(|l| l.volume == name);
    match (named.next(), named.next()) {
        (Some(l), None) => Ok(l),
        (Some(a), Some(b)) => Err(Error::new(
            name,
            format!("two devices have a volume of this name: {} and {}", a.device, b.device),
            "say which",
            Errno::INVAL,
        )),
        _ => {
            let known: Vec<_> =
                there.iter().map(|l| format!("{} ({})", l.device, l.volume)).collect();
            let known = match known.is_empty() {
                true => "none is".into(),
                false => format!("there are {}", known.join(", ")),
            };
            Err(Error::new(name, "no such device or volume is attached", known, Errno::NODEV))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command};
    use crate::module::tests::Script;
    use clap::Parser;

    const LIST: &str = "ok\nforebay0 259:0 sdb data 1 cleaner\nforebay1 259:0 sdc vm 0\n";

    fn parsed(words: &str) -> Result<Command, String> {
        let words = words.split_whitespace();
        Cli::try_parse_from(words).map(|cli| cli.command).map_err(|e| e.to_string())
    }

    fn attach_args(words: &str) -> AttachDevice {
        match parsed(words) {
            Ok(Command::Attach(a)) => a,
            other => panic!("{words}: {other:?}"),
        }
    }

    fn detach_words(words: &str, script: &Script) -> Result<Vec<String>, String> {
        let Ok(Command::Detach(a)) = parsed(&format!("forebay detach {words}")) else {
            panic!("{words}")
        };
        let gone = detach_devices(script, &a).map_err(|e| format!("{e:#}"))?;
        assert!(script.is_done());
        Ok(gone.into_iter().map(|(l, ..)| l.device).collect())
    }

    #[test]
    fn every_option_has_its_name_in_the_module() {
        let a = attach_args(
            "forebay attach /dev/pmem0 data /dev/sdb --high-watermark 70 --low-watermark 40 \
             --max-age 5s --idle 250ms --verify first --checksums false --slots 3 --jobs 32 \
             --holes isolate --cleaner --create --accept-changed-origin --origin-by-name --start-sector 2048 \
             --durable flush --no-fua",
        );
        assert_eq!(
            options(&a.device, &a.tuning).unwrap().join(" "),
            "high_watermark 70 low_watermark 40 max_age 5000 idle 250 verify first checksums off \
             slots 3 writeback_jobs 32 holes isolate start_sector 2048 durable flush cleaner create accept_changed_origin \
             nofua"
        );
        let a = attach_args("forebay attach /dev/pmem0 data /dev/sdb");
        assert!(options(&a.device, &a.tuning).unwrap().is_empty());
    }

    #[test]
    fn the_configuration_and_options_exclude_each_other() {
        for words in ["--all", "--config x --only data", "--all --dry-run --json"] {
            attach_args(&format!("forebay attach {words}"));
        }
        for words in [
            "",
            "/dev/pmem0",
            "/dev/pmem0 data",
            "--all --config x",
            "--all /dev/pmem0 data /dev/sdb",
            "--all --cleaner",
            "--config x --max-age 5s",
            "/dev/pmem0 data /dev/sdb --only data",
        ] {
            let error = parsed(&format!("forebay attach {words}")).unwrap_err();
            assert!(error.contains("Usage:"), "{words}: {error}");
        }
        assert!(parsed("forebay detach").is_err());
        assert!(parsed("forebay detach data --all").is_err());
    }

    #[test]
    fn detach_by_any_name() {
        for name in ["data", "forebay0", "/dev/forebay0"] {
            let script = Script::new(&[("list", LIST), ("detach forebay0", "ok\n")]);
            assert_eq!(detach_words(name, &script).unwrap(), ["forebay0"]);
        }
        let script = Script::new(&[
            ("list", LIST),
            ("command forebay1 flush", "ok\n"),
            ("status forebay1", "ok ok pages=0 lost_blocks=0 holes=0 holes_unknown=0\n"),
            ("detach forebay1 clean", "error 11 Something was written since it was flushed\n"),
            ("command forebay1 flush", "ok\n"),
            ("status forebay1", "ok ok pages=0 lost_blocks=0 holes=0 holes_unknown=0\n"),
            ("detach forebay1 clean", "ok\n"),
        ]);
        assert_eq!(detach_words("vm --flush", &script).unwrap(), ["forebay1"]);
        let script = Script::new(&[
            ("list", LIST),
            ("detach forebay1", "ok\n"),
            ("detach forebay0", "ok\n"),
        ]);
        assert_eq!(detach_words("--all", &script).unwrap(), ["forebay1", "forebay0"]);
    }

    /// A pool's disk has failed, and memory alone has something.
    #[test]
    fn detach_of_a_failed_pool() {
        let refused = "error 5 The pool's device has failed: write it, or give it up\n";
        let script = &Script::new(&[("list", LIST), ("detach forebay1", refused)]);
        assert!(detach_words("vm", script).is_err_and(|e| e.contains("give it up")));
        let emptied = [
            ("list", LIST),
            ("detach forebay1", refused),
            ("command forebay1 flush", "ok\n"),
            ("status forebay1", "ok medium_failed pages=7 medium=failed lost_blocks=0 holes=0\n"),
            ("detach forebay1 clean", "ok medium_failed\n"),
        ];
        assert_eq!(detach_words("vm --rescue", &Script::new(&emptied)).unwrap(), ["forebay1"]);
        let lost = [("list", LIST), ("detach forebay1 give-up", "ok medium_failed\n")];
        assert_eq!(detach_words("vm --give-up", &Script::new(&lost)).unwrap(), ["forebay1"]);
        for (said, kept) in [
            ("", "stays in the pool"),
            ("medium_failed", "has everything"),
            ("medium_failed kept", "until the pool"),
            ("medium_failed a (4096 bytes), vm (8192 bytes)", "up: a (4096 bytes), vm (8192"),
        ] {
            assert!(left(said).contains(kept), "{said}");
        }
        // The last device of a pool takes with it what memory alone has of other volumes.
        let (mut script, others) = (emptied, "error 5 Origins lack: a (4096 bytes)\n");
        (script[1].1, script[4].1) = (others, others);
        let script = Script::new(&script);
        assert!(detach_words("vm --rescue", &script).is_err_and(|e| e.contains("a (4096 bytes)")));
        assert!(parsed("forebay detach vm --flush --give-up").is_err());
    }

    /// A loss does not keep a device from being detached, but its origin is not called complete.
    #[test]
    fn detach_of_what_has_lost_something() {
        let script = Script::new(&[
            ("list", LIST),
            ("command forebay1 flush", "error 61 The newest data of some blocks is lost\n"),
            ("status forebay1", "ok lost_data pages=2 lost_blocks=2 holes=0 holes_unknown=0\n"),
            ("detach forebay1 clean", "ok\n"),
        ]);
        let Ok(Command::Detach(a)) = parsed("forebay detach vm --flush") else { panic!() };
        let gone = detach_devices(&script, &a).unwrap();
        let judged = gone[0].1.as_ref().unwrap();
        assert!(script.is_done() && !judged.complete && judged.exit_code() == 11, "{judged}");
    }

    /// If the flushed device is never clean, the command gives up after some flushes.
    #[test]
    fn detach_ends() {
        let mut lines = vec![("list", LIST)];
        for _ in 0..FLUSHES_MOST {
            lines.push(("command forebay1 flush", "ok\n"));
            lines
                .push(("status forebay1", "ok ok pages=7 lost_blocks=0 holes=0 holes_unknown=0\n"));
            lines.push(("detach forebay1 clean", "error 11 Something was written\n"));
        }
        let error = detach_words("vm --flush", &Script::new(&lines)).unwrap_err();
        assert!(error.contains("16 flushes") && error.contains("without --flush"), "{error}");
    }

    #[test]
    fn detach_that_fails() {
        let busy = "error 16 The device is open: unmount it or stop what uses it\n";
        let script = Script::new(&[("list", LIST), ("detach forebay0", busy)]);
        let error = detach_words("data", &script).unwrap_err();
        assert_eq!(
            error,
            "volume data: /dev/forebay0: the device is open: unmount it or stop what uses it"
        );

        // A device that could not be flushed is not detached.
        let script = Script::new(&[
            ("list", LIST),
            ("command forebay0 flush", "error 5 The command failed\n"),
            ("status forebay0", "ok origin_failed medium=ok\n"),
        ]);
        let error = detach_words("data --flush", &script).unwrap_err();
        assert!(error.contains("stays safe in the pool"), "{error}");

        let error = detach_words("other", &Script::new(&[("list", LIST)])).unwrap_err();
        assert!(error.contains("there are forebay0 (data), forebay1 (vm)"), "{error}");
        let twice = LIST.replace(" vm ", " data ");
        let error = detach_words("data", &Script::new(&[("list", &twice)])).unwrap_err();
        assert!(error.contains("forebay0 and forebay1; say which"), "{error}");
        let error = detach_words("data", &Script::new(&[("list", "2")])).unwrap_err();
        assert!(error.contains("modprobe forebay"), "{error}");

        // A busy device does not keep the others from being detached.
        let script =
            Script::new(&[("list", LIST), ("detach forebay1", busy), ("detach forebay0", "ok\n")]);
        let error = detach_words("--all", &script).unwrap_err();
        assert!(error.contains("volume vm"), "{error}");
        assert!(script.is_done());
    }

    /// The module's counters decide the verdict about the origin.
    #[test]
    fn a_flush_that_leaves_something_is_not_complete() {
        use forebay::Verdict::*;
        let l = &module::list(&Script::new(&[("list", LIST)])).unwrap()[0];
        for (counters, verdict) in [
            ("ok pages=0 lost_blocks=0 holes=0 holes_unknown=0", Complete),
            ("lost_data pages=2 lost_blocks=2 holes=0 holes_unknown=0", LostBlocks),
            ("lost_data pages=0 lost_blocks=0 holes=1 holes_unknown=1", LostEntries),
            ("ok pages=1 lost_blocks=0 holes=0 holes_unknown=0", Cached),
            ("origin_failed pages=1 lost_blocks=0 holes=0 holes_unknown=0", OriginFails),
            ("ok pages=0 lost_blocks=0 holes=0 holes_unknown=0 slots=7 counted=0", Unknown),
            ("ok", Unknown),
        ] {
            let answer = format!("ok {counters}\n");
            let script = Script::new(&[("status forebay0", &answer)]);
            let judged = judge(&module::status(&script, "forebay0").unwrap(), l);
            assert_eq!(judged.verdict, verdict, "{counters}");
            assert_eq!(judged.complete, verdict == Complete, "{counters}");
            assert_eq!(judged.exit_code() == 0, verdict == Complete, "{counters}");
        }
    }
}
