// SPDX-License-Identifier: MIT OR Apache-2.0
//! /etc/forebay.d/*.toml: which volumes are attached, and how; forebay.d(5).  Each file
//! describes a pool.  The parser is strict: anything unknown is an error, with file and line,
//! and never replaced by a default.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

use forebay::defaults;
use serde::Deserialize;
use toml::Spanned;

use crate::units;

pub const DIRECTORY: &str = "/etc/forebay.d";

type Text = Spanned<String>;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    pool: Text,
    high_watermark: Option<Spanned<u32>>,
    low_watermark: Option<Spanned<u32>>,
    max_age: Option<Text>,
    idle: Option<Text>,
    verify: Option<Text>,
    checksums: Option<bool>,
    slots: Option<Spanned<u32>>,
    start_sector: Option<Spanned<u64>>,
    #[serde(default)]
    no_fua: bool,
    volume: Option<BTreeMap<Text, Table>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    origin: Text,
    origin_id: Option<Text>,
    writeback_jobs: Option<Spanned<u32>>,
    holes: Option<Text>,
    durable: Option<Text>,
    #[serde(default)]
    cleaner: bool,
    #[serde(default)]
    flush_on_detach: bool,
    #[serde(default = "yes")]
    auto: bool,
}

fn yes() -> bool {
    true
}

/// A volume to attach.
#[derive(Clone, Debug, PartialEq)]
pub struct Volume {
    pub file: PathBuf,
    pub line: usize,
    pub pool: PathBuf,
    pub name: String,
    pub origin: PathBuf,
    pub origin_id: Option<String>,
    /// The options in the module's words.
    pub options: Vec<String>,
    pub flush_on_detach: bool,
    /// Whether it is attached at boot.
    pub auto: bool,
}

/// An error as FILE:LINE: the mistake; the way out.
#[derive(Clone, Debug)]
pub struct Mistake {
    pub file: PathBuf,
    /// 0: the file as a whole.
    pub line: usize,
    pub text: String,
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.file.display(), self.text),
            line => write!(f, "{}:{line}: {}", self.file.display(), self.text),
        }
    }
}

impl std::error::Error for Mistake {}

/// The volumes and the mistakes of all files: one file's mistakes do not keep the volumes of
/// another from being attached.
#[derive(Debug, Default)]
pub struct Config {
    pub volumes: Vec<Volume>,
    pub mistakes: Vec<Mistake>,
}

/// A file, or the *.toml of a directory in the order of their names; one that
/// does not exist configures nothing.
pub fn read(path: &Path) -> Config {
    let mut config = Config::default();
    let files = match path.is_dir() {
        true => files_of(path),
        false if path == Path::new(DIRECTORY) && !path.exists() => Ok(Vec::new()),
        false => Ok(vec![path.to_path_buf()]),
    };
    let files = files.unwrap_or_else(|error| {
        config.mistakes.push(whole(path, &error));
        Vec::new()
    });
    for file in files {
        // The start of the system waits for the generator, which reads all files, so their size is
        // limited.
        let parsed = match forebay::small_file(&file) {
            Ok(text) => parse(&file, &text),
            Err(error) => Err(whole(&file, &error)),
        };
        match parsed.and_then(|new| apart(&config.volumes, new)) {
            Ok(volumes) => config.volumes.extend(volumes),
            Err(mistake) => config.mistakes.push(mistake),
        }
    }
    config
}

fn files_of(directory: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "toml") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn whole(path: &Path, error: &std::io::Error) -> Mistake {
    let text = format!("cannot be read: {error}; see that it exists and is readable");
    Mistake { file: path.into(), line: 0, text }
}

/// Refuses names and origins that occur twice, also in different files: names become device nodes,
/// and an origin has one user.
fn apart(known: &[Volume], new: Vec<Volume>) -> Result<Vec<Volume>, Mistake> {
    for (i, v) in new.iter().enumerate() {
        let others = known.iter().chain(&new[..i]);
        for other in others {
            let at = format!("{}:{}", other.file.display(), other.line);
            let wrong = if other.name == v.name {
                format!("volume {} is at {at} already; names have to be unique, because of /dev/forebay/by-name: make the volume under another", v.name)
            } else if other.origin == v.origin {
                format!(
                    "{} is the origin of volume {} at {at} already; an origin has one volume",
                    v.origin.display(),
                    other.name
                )
            } else if other.pool == v.pool && other.file != v.file {
                format!("pool {} is that of {at} already; put its volumes into one file, because they share its options", v.pool.display())
            } else {
                continue;
            };
            return Err(Mistake { file: v.file.clone(), line: v.line, text: wrong });
        }
    }
    Ok(new)
}

/// The line on which a span begins, counted from 1.
fn line_of(text: &str, span: &Range<usize>) -> usize {
    text.as_bytes()[..span.start.min(text.len())].iter().filter(|b| **b == b'\n').count() + 1
}

struct Reader<'a> {
    file: &'a Path,
    text: &'a str,
}

impl Reader<'_> {
    fn wrong<T>(&self, at: &Spanned<T>, text: impl Into<String>) -> Mistake {
        let line = line_of(self.text, &at.span());
        Mistake { file: self.file.into(), line, text: text.into() }
    }

    fn number<T>(
        &self,
        n: &Option<Spanned<T>>,
        name: &str,
        range: Range<T>,
    ) -> Result<Option<T>, Mistake>
    where
        T: Copy + PartialOrd + fmt::Display,
    {
        let Some(n) = n else { return Ok(None) };
        let value = *n.get_ref();
        match range.contains(&value) {
            true => Ok(Some(value)),
            false => {
                let (from, end) = (range.start, range.end);
                Err(self.wrong(n, format!("{name} = {value} is out of range; write {from} or more, and less than {end}")))
            }
        }
    }

    fn word(&self, t: &Option<Text>, name: &str, of: &[&str]) -> Result<Option<String>, Mistake> {
        let Some(t) = t else { return Ok(None) };
        match of.contains(&t.get_ref().as_str()) {
            true => Ok(Some(t.get_ref().clone())),
            false => Err(self.wrong(
                t,
                format!(
                    "{name} = {:?} is none of its values; write one of {}",
                    t.get_ref(),
                    of.join(", ")
                ),
            )),
        }
    }

    fn milliseconds(&self, t: &Option<Text>, name: &str) -> Result<Option<u32>, Mistake> {
        let Some(t) = t else { return Ok(None) };
        let wrong = |text: String| self.wrong(t, format!("{name}: {text}"));
        // The word "off" means zero, which a duration on the command line cannot say.
        if t.get_ref() == "off" {
            return Ok(Some(0));
        }
        let time = units::parse_time(t.get_ref()).map_err(|e| wrong(format!("{e}, or off")))?;
        match u32::try_from(time.as_millis()) {
            Ok(ms) if ms > 0 => Ok(Some(ms)),
            _ => {
                Err(wrong(format!("{:?} is out of range; write 1ms to 49d in hours", t.get_ref())))
            }
        }
    }

    fn device(&self, t: &Text, name: &str) -> Result<PathBuf, Mistake> {
        let path = Path::new(t.get_ref());
        let odd = |c: char| c.is_whitespace() || c.is_control();
        match path.is_absolute()
            && !path.components().any(|c| c.as_os_str() == "..")
            && !t.get_ref().contains(odd)
        {
            true => Ok(path.into()),
            false => Err(self.wrong(
                t,
                format!(
                    "{name} = {:?} is not a device's path; write one like /dev/disk/by-id/...",
                    t.get_ref()
                ),
            )),
        }
    }

    /// Returns the options of the pool, with which each of its volumes is attached.
    fn pool_options(&self, f: &File) -> Result<Vec<String>, Mistake> {
        let mut options = Vec::new();
        let mut add = |name: &str, value: Option<String>| {
            options.extend(value.into_iter().flat_map(|v| [name.to_string(), v]));
        };
        let text = |n: u32| n.to_string();
        let high = self.number(&f.high_watermark, "high_watermark", 1..101)?;
        let low = self.number(&f.low_watermark, "low_watermark", 0..100)?;
        if let (Some(at), Some(l)) = (&f.low_watermark, low) {
            let default = defaults::HIGH_WATERMARK_PERCENT;
            if l >= high.unwrap_or(default) {
                let high = high.map_or_else(|| format!("its default {default}"), text);
                return Err(self.wrong(at, format!("low_watermark = {l} is not below high_watermark, {high}; lower it, or raise the other")));
            }
        }
        add("high_watermark", high.map(text));
        add("low_watermark", low.map(text));
        add("max_age", self.milliseconds(&f.max_age, "max_age")?.map(text));
        add("idle", self.milliseconds(&f.idle, "idle")?.map(text));
        add("verify", self.word(&f.verify, "verify", &["always", "first", "never"])?);
        add("checksums", f.checksums.map(|on| if on { "on" } else { "off" }.into()));
        add("slots", self.number(&f.slots, "slots", 1..defaults::SLOTS_MAX + 1)?.map(text));
        let start = self.number(&f.start_sector, "start_sector", 0..u64::MAX >> 10)?;
        if let (Some(at), Some(n)) = (&f.start_sector, start) {
            if !n.is_multiple_of(8) {
                return Err(self.wrong(
                    at,
                    format!(
                        "start_sector = {n} is not a multiple of 8; pages of 4 KiB begin there"
                    ),
                ));
            }
        }
        add("start_sector", start.map(|n| n.to_string()));
        if f.no_fua {
            options.push("nofua".into());
        }
        Ok(options)
    }

    fn volume(
        &self,
        pool: &Path,
        shared: &[String],
        name: &Text,
        t: &Table,
    ) -> Result<Volume, Mistake> {
        check_name(name.get_ref()).map_err(|e| self.wrong(name, e))?;
        let mut options = shared.to_vec();
        if let Some(n) =
            self.number(&t.writeback_jobs, "writeback_jobs", 1..defaults::QUEUE_DEPTH_MAX + 1)?
        {
            options.extend(["writeback_jobs".into(), n.to_string()]);
        }
        if let Some(word) = self.word(&t.holes, "holes", &["fail", "isolate", "accept"])? {
            options.extend(["holes".into(), word]);
        }
        if let Some(word) = self.word(&t.durable, "durable", &["auto", "always", "flush"])? {
            options.extend(["durable".into(), word]);
        }
        if t.cleaner {
            options.push("cleaner".into());
        }
        let origin = self.device(&t.origin, "origin")?;
        if origin == pool {
            return Err(self.wrong(
                &t.origin,
                "origin and pool are the same device; the origin is the disk that the pool writes back to",
            ));
        }
        if let Some(id) = &t.origin_id {
            check_id(id.get_ref()).map_err(|e| self.wrong(id, e))?;
        }
        Ok(Volume {
            file: self.file.into(),
            line: line_of(self.text, &name.span()),
            pool: pool.into(),
            name: name.get_ref().clone(),
            origin,
            origin_id: t.origin_id.as_ref().map(|id| id.get_ref().clone()),
            options,
            flush_on_detach: t.flush_on_detach,
            auto: t.auto,
        })
    }
}

/// Checks that the engine accepts a name, and that it fits a device's name.
pub fn check_name(name: &str) -> Result<(), String> {
    let good = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    match name.len() <= 63 && name.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_') && name.chars().all(good) {
        true => Ok(()),
        false => Err(format!("{name:?} cannot be a volume's name here; it begins with a letter or digit and has letters, digits, \".\", \"_\" and \"-\", 63 at most")),
    }
}

/// Checks that an id fits the module's line.
pub fn check_id(id: &str) -> Result<(), String> {
    match !id.is_empty() && id.len() <= 127 && id.chars().all(|c| c.is_ascii_graphic() && c != '|')
    {
        true => Ok(()),
        false => Err(format!(
            "{id:?} cannot be an origin's id; forebay volume list --json shows the recorded one"
        )),
    }
}

fn parse(file: &Path, text: &str) -> Result<Vec<Volume>, Mistake> {
    let parsed: File = toml::from_str(text).map_err(|error| Mistake {
        file: file.into(),
        line: error.span().map_or(0, |span| line_of(text, &span)),
        text: format!("{}; forebay.d(5) has the format", error.message().replace('\n', ", ")),
    })?;
    let reader = Reader { file, text };
    let pool = reader.device(&parsed.pool, "pool")?;
    let shared = reader.pool_options(&parsed)?;
    let Some(tables) = &parsed.volume else {
        return Err(reader.wrong(
            &parsed.pool,
            "the pool has no volume; add a table [volume.NAME] with its origin",
        ));
    };
    let mut volumes = Vec::new();
    for (name, table) in tables {
        volumes.push(reader.volume(&pool, &shared, name, table)?);
    }
    // The order is that of the file, not that of the names.
    volumes.sort_by_key(|v| v.line);
    Ok(volumes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"
# fast
pool = "/dev/pmem0"
high_watermark = 70
low_watermark = 40
max_age = "30s"
idle = "off"
verify = "first"
checksums = false
slots = 4
start_sector = 2048
no_fua = true

[volume.vm-1]
origin = "/dev/vg0/vm1"
auto = false

[volume.data]
origin = "/dev/disk/by-id/wwn-1"
origin_id = "wwid:naa.1"
writeback_jobs = 32
holes = "isolate"
durable = "flush"
cleaner = true
flush_on_detach = true
"#;

    fn wrong(text: &str) -> Mistake {
        parse(Path::new("/etc/forebay.d/x.toml"), text).unwrap_err()
    }

    #[test]
    fn everything_that_can_be_said() {
        let all = parse(Path::new("f"), GOOD).unwrap();
        assert_eq!(all.len(), 2);
        let shared = "high_watermark 70 low_watermark 40 max_age 30000 idle 0 verify first \
            checksums off slots 4 start_sector 2048 nofua";
        assert_eq!((&all[0].name[..], all[0].line, all[0].auto), ("vm-1", 14, false));
        assert_eq!(all[0].options.join(" "), shared);
        assert_eq!((&all[1].name[..], all[1].line, all[1].auto), ("data", 18, true));
        assert_eq!(
            all[1].options.join(" "),
            format!("{shared} writeback_jobs 32 holes isolate durable flush cleaner")
        );
        assert_eq!(all[1].origin_id.as_deref(), Some("wwid:naa.1"));
        assert!(all[1].flush_on_detach && !all[0].flush_on_detach);
        assert_eq!(all[1].pool, Path::new("/dev/pmem0"));
    }

    #[test]
    fn the_least() {
        let text = "pool = \"/dev/pmem0\"\n[volume.d]\norigin = \"/dev/sdb\"\n";
        let all = parse(Path::new("f"), text).unwrap();
        assert!(all[0].options.is_empty() && all[0].auto);
    }

    #[test]
    fn mistakes_have_their_line_and_the_way_out() {
        // Each replaces a line of the good one, and is found on that line.
        for (line, text, words) in [
            (3, "pool = \"pmem0\"", "is not a device's path; write one like"),
            (3, "pool = 5", "invalid type"),
            (3, "", "missing field `pool`"),
            (3, "pool = \"/dev/../pmem0\"", "not a device's path"),
            (3, "pool = \"/dev/pmem 0\"", "not a device's path"),
            (3, "pool = \"/dev/pmem0\" x", "forebay.d(5)"),
            (4, "high_watermark = 101", "out of range; write 1 or more, and less than 101"),
            (4, "high_watermark = \"70\"", "invalid type"),
            (4, "high_watermark = -1", "invalid value"),
            (4, "high_watermrk = 70", "unknown field `high_watermrk`, expected one of"),
            (4, "checksums = true", "duplicate key"),
            (5, "low_watermark = 70", "not below high_watermark, 70"),
            (6, "max_age = 30", "invalid type"),
            (6, "max_age = \"30x\"", "is not a time; write 500ms, 30s, 5m or 1h, or off"),
            (6, "max_age = \"9999h\"", "out of range"),
            (8, "verify = \"sometimes\"", "write one of always, first, never"),
            (9, "checksums = \"no\"", "invalid type"),
            (10, "slots = 0", "out of range"),
            (11, "start_sector = 7", "not a multiple of 8"),
            (14, "[volume.\"a b\"]", "cannot be a volume's name"),
            (14, "[volume.\"..\"]", "cannot be a volume's name"),
            (14, "[volume.data]", "duplicate key"),
            (14, "[volum.vm1]", "unknown field `volum`"),
            (15, "origin = \"/dev/pmem0\"", "origin and pool are the same device"),
            (16, "auto = \"no\"", "invalid type"),
            (16, "create = true", "unknown field `create`"),
            (20, "origin_id = \"a|b\"", "cannot be an origin's id"),
            (21, "writeback_jobs = 65", "out of range"),
            (22, "holes = \"ignore\"", "write one of fail, isolate, accept"),
            (23, "durable = \"soon\"", "write one of auto, always, flush"),
        ] {
            let mut lines: Vec<_> = GOOD.lines().collect();
            lines[line - 1] = text;
            let mistake = wrong(&lines.join("\n"));
            let said = mistake.to_string();
            assert!(said.contains(words), "{text}: {said}");
            let found_at = match words {
                "missing field `pool`" => 1,
                "duplicate key" if text.starts_with("[volume") => 18,
                "duplicate key" => 9,
                _ => line,
            };
            assert_eq!(mistake.line, found_at, "{text}: {said}");
            assert!(!said.contains('\n'), "{said}");
        }
        let none = wrong("\npool = \"/dev/pmem0\"\n");
        assert_eq!(none.to_string(), "/etc/forebay.d/x.toml:2: the pool has no volume; add a table [volume.NAME] with its origin");
    }

    /// The low watermark follows the high one where it is not named.
    #[test]
    fn a_watermark_may_stand_alone() {
        let with =
            |line: &str| format!("pool = \"/dev/p\"\n{line}\n[volume.d]\norigin = \"/dev/sdb\"\n");
        let options = |line| parse(Path::new("f"), &with(line)).unwrap()[0].options.join(" ");
        assert_eq!(options("high_watermark = 40"), "high_watermark 40");
        assert_eq!(options("low_watermark = 59"), "low_watermark 59");
        assert!(wrong(&with("low_watermark = 60")).to_string().contains("its default 60"));
    }

    #[test]
    fn files_do_not_tread_on_each_other() {
        let dir = std::env::temp_dir().join(format!("fby-config-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let one = |pool: &str, name: &str, origin: &str| {
            format!("pool = \"{pool}\"\n[volume.{name}]\norigin = \"{origin}\"\n")
        };
        for (file, text) in [
            ("a.toml", one("/dev/pmem0", "data", "/dev/sdb")),
            ("b.toml", one("/dev/pmem1", "data", "/dev/sdc")),
            ("c.toml", one("/dev/pmem1", "more", "/dev/sdb")),
            ("d.toml", one("/dev/pmem0", "other", "/dev/sdd")),
            ("e.toml", one("/dev/pmem2", "good", "/dev/sde")),
            ("f.toml", "pool = ".into()),
            ("g.conf", "nonsense".into()),
        ] {
            std::fs::write(dir.join(file), text).unwrap();
        }
        let config = read(&dir);
        let names: Vec<_> = config.volumes.iter().map(|v| v.name.as_str()).collect();
        assert_eq!(names, ["data", "good"]);
        let said: Vec<_> = config.mistakes.iter().map(Mistake::to_string).collect();
        assert_eq!(said.len(), 4, "{said:?}");
        assert!(
            said[0].contains("b.toml:2: volume data is at") && said[0].contains("a.toml:2 already"),
            "{said:?}"
        );
        assert!(said[1].contains("c.toml:2: /dev/sdb is the origin of volume data"), "{said:?}");
        assert!(said[2].contains("d.toml:2: pool /dev/pmem0 is that of"), "{said:?}");
        assert!(said[3].contains("f.toml:1: "), "{said:?}");
        std::fs::remove_dir_all(&dir).unwrap();
        let gone = read(&dir);
        assert!(gone.mistakes[0].to_string().contains("cannot be read"), "{:?}", gone.mistakes);
    }

    /// The man page describes each key, and no other.
    #[test]
    fn the_man_page_has_every_key() {
        let page = include_str!("../../../packaging/forebay.d.5");
        let keys: std::collections::BTreeSet<_> = page
            .lines()
            .filter_map(|l| l.strip_prefix(".B ")?.split_once(" = "))
            .map(|(k, _)| k)
            .collect();
        let error = wrong(&GOOD.replace("[volume.data]", "[volume.data]\nfrob = 1")).text
            + &wrong(&format!("frob = 1\n{GOOD}")).text;
        let known: std::collections::BTreeSet<_> = error
            .split('`')
            .skip(1)
            .step_by(2)
            .filter(|k| !["frob", "volume"].contains(k))
            .collect();
        assert_eq!(keys, known);
        assert!(known.len() > 10);
    }
}
