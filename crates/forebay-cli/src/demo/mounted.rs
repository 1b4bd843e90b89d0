// SPDX-License-Identifier: MIT OR Apache-2.0
//! Part four of the demo: SQLite's commits in a directory and in a mount of one, and what
//! is left of them when everything is killed.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{bail, Context};
use forebay::MediumChoice;
use serde::Serialize;

use super::Stage;
use crate::mount_bed::MountBed;

/// SQLite's modes of a journal, each with its demands on a file system for a commit.
const JOURNALS: [(&str, &str); 2] =
    [("wal", "a write and a sync"), ("delete", "a file created and removed, several syncs")];

/// Rates of SQLite with synchronous=FULL and one row a commit.
#[derive(Debug, Serialize)]
pub struct Commits {
    pub journal: &'static str,
    pub plain_per_s: f64,
    pub mount_per_s: f64,
}

/// The number of databases that are written to concurrently, in the last measurement on a disk.
const AT_ONCE: usize = 8;

/// Rates with the pool in a file of the disk that the directory is on.
#[derive(Debug, Serialize)]
pub struct OnDisk {
    pub rates: Vec<Commits>,
    pub databases: usize,
    pub together_plain_per_s: f64,
    pub together_mount_per_s: f64,
}

#[derive(Debug, Serialize)]
pub struct Mounted {
    pub rates: Vec<Commits>,
    /// Rates of the same programs with a pool on the disk, measured if the media is not durable.
    pub on_disk: Option<OnDisk>,
    /// The reason why that cannot be shown.
    pub on_disk_lacks: Option<String>,
    /// Commits that were acknowledged in the mount before SQLite and the server were killed.
    pub commits: u64,
    /// Acknowledged commits that are missing after the next mount.
    pub lost: u64,
}

impl Mounted {
    pub fn text(&self) -> String {
        let mut text = String::from("  SQLite commits a second:\n");
        for (rate, (_, asks)) in self.rates.iter().zip(JOURNALS) {
            text += &format!("{}; {asks}\n", rate.text());
        }
        if let Some(on_disk) = &self.on_disk {
            text += &on_disk.text();
        }
        if let Some(why) = &self.on_disk_lacks {
            text += &format!("  with the pool in a file of this disk: not shown: {why}\n");
        }
        text + &format!(
            "  SQLite and the server killed with SIGKILL after {} commits, mounted again: {} lost",
            self.commits, self.lost
        )
    }
}

impl Commits {
    fn text(&self) -> String {
        let (plain, mount) = (self.plain_per_s, self.mount_per_s);
        line(&format!("journal {:6}", self.journal), plain, mount)
    }
}

fn line(what: &str, plain: f64, mount: f64) -> String {
    format!("    {what} directory {plain:6.0}, mounted {mount:6.0} ({:.1} times)", mount / plain)
}

impl OnDisk {
    fn text(&self) -> String {
        let mut text = String::from(
            "  the same with the pool in a file of this very disk; it gains where the directory is on a\n  \
             slower one:\n",
        );
        for rate in &self.rates {
            text += &format!("{}\n", rate.text());
        }
        let many = format!("{} databases at once:", self.databases);
        text += &line(&many, self.together_plain_per_s, self.together_mount_per_s);
        text + "; entries share writes\n"
    }
}

/// The number of rows that are requested before the first of them is reported.  SQLite must not
/// sleep between two rows, or the measurement would be of the wake-ups through a pipe.
const AHEAD: u64 = 32;

/// A database that SQLite's own program writes to.  The program reports each row when its commit
/// has returned.
struct Sqlite {
    program: Child,
    told: BufReader<std::process::ChildStdout>,
    asked: u64,
    rows: u64,
}

impl Sqlite {
    fn open(directory: &Path, journal: &str) -> anyhow::Result<Sqlite> {
        let mut program = Command::new("sqlite3");
        program.args(["-batch", "-bail"]).arg(directory.join(format!("{journal}.db")));
        // SQLite prints errors when the server is killed.
        let program = program.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut program = program.spawn()?;
        let told = BufReader::new(program.stdout.take().context("sqlite3's output")?);
        let mut sqlite = Sqlite { program, told, asked: 0, rows: 0 };
        sqlite.say(&format!("PRAGMA journal_mode={journal};\n"), journal)?;
        sqlite.say(
            "PRAGMA synchronous=FULL; CREATE TABLE IF NOT EXISTS t (n INTEGER PRIMARY KEY);\n\
             SELECT 'ready';\n",
            "ready",
        )?;
        Ok(sqlite)
    }

    fn ask(&mut self, statements: &str) -> anyhow::Result<()> {
        let input = self.program.stdin.as_mut().context("sqlite3's input")?;
        Ok(input.write_all(statements.as_bytes())?)
    }

    fn hear(&mut self, answer: &str) -> anyhow::Result<()> {
        let mut line = String::new();
        self.told.read_line(&mut line)?;
        match line.trim_end() == answer {
            true => Ok(()),
            false => bail!("sqlite3 said {line:?} where {answer:?} was expected"),
        }
    }

    fn say(&mut self, statements: &str, answer: &str) -> anyhow::Result<()> {
        self.ask(statements)?;
        self.hear(answer)
    }

    /// Waits for the acknowledgement of one more row, while more rows are requested.
    fn commit(&mut self) -> anyhow::Result<()> {
        while self.asked < self.rows + AHEAD {
            let n = self.asked + 1;
            self.ask(&format!("INSERT INTO t VALUES ({n}); SELECT {n};\n"))?;
            self.asked = n;
        }
        let n = self.rows + 1;
        self.hear(&n.to_string())?;
        self.rows = n;
        Ok(())
    }

    /// Measures commits a second.
    fn measure(&mut self, stage: &Stage, time: Duration) -> anyhow::Result<f64> {
        let (start, before) = (Instant::now(), self.rows);
        while start.elapsed() < time {
            stage.check_interrupt()?;
            self.commit()?;
        }
        Ok((self.rows - before) as f64 / start.elapsed().as_secs_f64())
    }
}

impl Drop for Sqlite {
    fn drop(&mut self) {
        let _ = self.program.kill();
        let _ = self.program.wait();
    }
}

/// Returns the reason why this part cannot be shown here, if there is one.
fn lacking() -> Option<&'static str> {
    if !rustix::process::geteuid().is_root() {
        return Some("it is shown as root");
    }
    if !Path::new("/dev/fuse").exists() {
        return Some("this machine has no /dev/fuse");
    }
    let found = Command::new("sqlite3").arg("-version").stdout(Stdio::null()).status();
    (!found.is_ok_and(|s| s.success())).then_some("sqlite3 is not installed")
}

/// Measures commits a second of several databases that are written to concurrently.
fn together(stage: &Stage, directory: &Path, time: Duration) -> anyhow::Result<f64> {
    let one = |n: usize| {
        let own = directory.join(format!("together-{n}"));
        std::fs::create_dir_all(&own)?;
        Sqlite::open(&own, "wal")?.measure(stage, time)
    };
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..AT_ONCE).map(|n| scope.spawn(move || one(n))).collect();
        let rates = all.into_iter().map(|one| match one.join() {
            Ok(rate) => rate,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        rates.sum()
    })
}

/// Measures with a pool on the disk of the directory.
fn on_disk(stage: &Stage, time: Duration) -> anyhow::Result<Result<OnDisk, String>> {
    let (dir, pool) = (stage.path("mount-disk"), stage.path("mount.pool"));
    let mut bed = match MountBed::new(dir, pool, stage.sizes.mount, MediumChoice::Ssd) {
        Ok(bed) => bed,
        // The directory's file system cannot keep the promise.
        Err(why) => return Ok(Err(format!("{why:#}"))),
    };
    let mut rates = Vec::new();
    for (journal, _) in JOURNALS {
        let plain_per_s = Sqlite::open(&bed.plain(), journal)?.measure(stage, time)?;
        rates.push(Commits { journal, plain_per_s, mount_per_s: 0.0 });
    }
    let together_plain_per_s = together(stage, &bed.plain(), time)?;
    bed.mount(&["--slow-log"])?;
    for rate in &mut rates {
        rate.mount_per_s = Sqlite::open(&bed.at(), rate.journal)?.measure(stage, time)?;
    }
    let together_mount_per_s = together(stage, &bed.at(), time)?;
    Ok(Ok(OnDisk { rates, databases: AT_ONCE, together_plain_per_s, together_mount_per_s }))
}

/// Runs this part.  `Err`: it cannot be shown here, for the stated reason.
pub fn run(stage: &Stage, media_is_durable: bool) -> anyhow::Result<Result<Mounted, String>> {
    if let Some(why) = lacking() {
        return Ok(Err(why.into()));
    }
    let pool = stage.pool.with_extension("mount");
    let mut bed = MountBed::new(stage.path("mount"), pool, stage.sizes.mount, MediumChoice::Auto)?;
    let time = stage.time.min(Duration::from_secs(1));
    let (mut rates, mut programs) = (Vec::new(), Vec::new());
    for (journal, _) in JOURNALS {
        let plain_per_s = Sqlite::open(&bed.plain(), journal)?.measure(stage, time)?;
        rates.push(Commits { journal, plain_per_s, mount_per_s: 0.0 });
    }
    // /dev/fuse may exist and not be usable, as in a container.
    if let Err(why) = bed.mount(&[]) {
        return Ok(Err(format!("{why:#}")));
    }
    for rate in &mut rates {
        let mut sqlite = Sqlite::open(&bed.at(), rate.journal)?;
        rate.mount_per_s = sqlite.measure(stage, time)?;
        programs.push(sqlite);
    }
    let told: Vec<u64> = programs.iter().map(|sqlite| sqlite.rows).collect();
    bed.kill();
    drop(programs);
    bed.mount(&[])?;
    let mut lost = 0;
    for (rate, rows) in rates.iter().zip(&told) {
        let mut sqlite = Sqlite::open(&bed.at(), rate.journal)?;
        sqlite.say("PRAGMA integrity_check;\n", "ok")?;
        for n in 1..=*rows {
            let asked = format!("SELECT count(*) FROM t WHERE n = {n};\n");
            lost += u64::from(sqlite.say(&asked, "1").is_err());
        }
    }
    drop(bed);
    let (on_disk, on_disk_lacks) = match media_is_durable {
        true => (None, None),
        false => on_disk(stage, time)?.map_or_else(|why| (None, Some(why)), |on| (Some(on), None)),
    };
    Ok(Ok(Mounted { rates, on_disk, on_disk_lacks, commits: told.iter().sum(), lost }))
}
