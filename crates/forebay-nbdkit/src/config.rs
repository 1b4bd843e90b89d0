// SPDX-License-Identifier: MIT OR Apache-2.0
//! The plugin's parameters: `forebay serve` passes its own options as these.

use std::collections::BTreeMap;
use std::ffi::{CStr, OsStr};
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use forebay::{AttachOptions, PoolOptions};

pub const HELP: &CStr = c"\
[pool=]PATH               (required) the pool: media file or device.
origin.NAME=PATH          where volume NAME's origin is now, if it moved.
read-only=BOOL            open the pool read-only.
persist=METHOD            auto, nt, clwb, eadr or msync.
kernel=NAME               copy kernel, instead of the fastest.
allow-weaker=BOOL         allow a persist method weaker than the media needs.
slots=N|auto              commit slots, 1 to 64.
checksums=BOOL            checksum new data (default true).
verify=WHEN               checksum reads: always, first or never.
high-watermark=PERCENT    start destage when so much is in use.
low-watermark=PERCENT     stop destage there.
max-age=SECONDS           destage what is older.
idle=SECONDS              destage volumes not written for so long.
holes=POLICY              lost entries: fail, isolate or accept.
bypass-limit=BYTES        writes of so many bytes and more go past the cache.
when-full=POLICY          wait, or bypass: past the cache.
accept-changed-origin=BOOL  attach though the origin's identity changed.
origin-by-name=BOOL       take an origin that is known by its name alone.
ready=json                print one line of JSON to standard output when ready.";

#[derive(Default)]
pub struct Config {
    pub pool: PathBuf,
    pub pool_options: PoolOptions,
    pub attach_options: AttachOptions,
    pub origins: BTreeMap<String, PathBuf>,
    /// Where the readiness message goes.
    pub ready: Option<File>,
}

impl Config {
    /// Takes one parameter; the error says what is wrong with it.
    pub fn set(&mut self, key: &str, value: &[u8]) -> Result<(), String> {
        let path = || PathBuf::from(OsStr::from_bytes(value));
        if key == "pool" {
            self.pool = path();
            return Ok(());
        }
        if let Some(volume) = key.strip_prefix("origin.") {
            self.origins.insert(volume.to_owned(), path());
            return Ok(());
        }
        let text = std::str::from_utf8(value).map_err(|_| format!("{key}: not UTF-8"))?;
        self.set_option(key, text).map_err(|cause| format!("{key}={text}: {cause}"))
    }

    fn set_option(&mut self, key: &str, text: &str) -> Result<(), String> {
        let options = &mut self.pool_options;
        match key {
            "read-only" => options.read_only = boolean(text)?,
            "persist" => options.media.persist = parse(text)?,
            "kernel" => options.media.kernel = Some(text.to_owned()),
            "allow-weaker" => options.media.allow_weaker = boolean(text)?,
            "slots" if text == "auto" => options.slots = 0,
            "slots" => options.slots = parse(text)?,
            "checksums" => options.checksums = boolean(text)?,
            "verify" => options.verify = parse(text)?,
            "high-watermark" => options.high_watermark_percent = parse(text)?,
            "low-watermark" => options.low_watermark_percent = parse(text)?,
            "max-age" => options.max_age = Some(seconds(text)?),
            "idle" => options.idle = Some(seconds(text)?),
            "holes" => self.attach_options.holes = parse(text)?,
            "bypass-limit" => self.attach_options.bypass_limit_bytes = parse(text)?,
            "when-full" => self.attach_options.when_full = parse(text)?,
            "accept-changed-origin" => {
                self.attach_options.accept_changed_origin = boolean(text)?;
            }
            "origin-by-name" => self.attach_options.origin_by_name = boolean(text)?,
            // Taken now: nbdkit points standard output at /dev/null later.
            "ready" if text == "json" => {
                let stdout = std::io::stdout().as_fd().try_clone_to_owned();
                self.ready = Some(stdout.map_err(|e| e.to_string())?.into());
            }
            "ready" => return Err("only json is known".into()),
            _ => return Err("unknown parameter; nbdkit --help with this plugin lists them".into()),
        }
        Ok(())
    }
}

fn parse<T: FromStr>(text: &str) -> Result<T, String>
where
    T::Err: std::fmt::Display,
{
    text.parse().map_err(|e: T::Err| e.to_string())
}

fn boolean(text: &str) -> Result<bool, String> {
    match text {
        "true" | "yes" | "on" | "1" => Ok(true),
        "false" | "no" | "off" | "0" => Ok(false),
        _ => Err("not a boolean; say true or false".into()),
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = parse(text)?;
    Duration::try_from_secs_f64(seconds).map_err(|e| e.to_string())
}
