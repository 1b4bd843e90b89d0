// SPDX-License-Identifier: MIT OR Apache-2.0
//! Part four of the demo: SQLite's commits in a directory and in a mount of one, and what
//! is left of them when everything is killed.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{bail, Context};
use serde::Serialize;

use super::Stage;
use crate::mount_bed::MountBed;

const POOL_BYTES: u64 = 64 << 20;

#[derive(Debug, Serialize)]
pub struct Mounted {
    /// SQLite, synchronous=FULL, a rollback journal, one row a commit.
    pub plain_commits_per_s: f64,
    pub mount_commits_per_s: f64,
    /// Acknowledged in the mount before SQLite and the server were killed.
    pub commits: u64,
    /// Of these, not there after the next mount.
    pub lost: u64,
}

impl Mounted {
    pub fn text(&self) -> String {
        format!(
            "  SQLite commits a second: directory {:.0}, mounted {:.0} ({:.1} times)\n  \
             SQLite and the server killed with SIGKILL after {} commits, mounted again: {} lost",
            self.plain_commits_per_s,
            self.mount_commits_per_s,
            self.mount_commits_per_s / self.plain_commits_per_s,
            self.commits,
            self.lost
        )
    }
}

/// A database that is written to by SQLite's own program: each row is told when its
/// commit has returned.
struct Sqlite {
    program: Child,
    told: BufReader<std::process::ChildStdout>,
    rows: u64,
}

impl Sqlite {
    fn open(directory: &Path) -> anyhow::Result<Sqlite> {
        let mut program = Command::new("sqlite3");
        program.arg("-batch").arg(directory.join("demo.db"));
        let mut program = program.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let told = BufReader::new(program.stdout.take().context("sqlite3's output")?);
        let mut sqlite = Sqlite { program, told, rows: 0 };
        sqlite.say(
            "PRAGMA synchronous=FULL; CREATE TABLE IF NOT EXISTS t (n INTEGER PRIMARY KEY);\n\
             SELECT 'ready';\n",
            "ready",
        )?;
        Ok(sqlite)
    }

    fn say(&mut self, statements: &str, answer: &str) -> anyhow::Result<()> {
        let input = self.program.stdin.as_mut().context("sqlite3's input")?;
        input.write_all(statements.as_bytes())?;
        let mut line = String::new();
        self.told.read_line(&mut line)?;
        match line.trim_end() == answer {
            true => Ok(()),
            false => bail!("sqlite3 said {line:?} where {answer:?} was expected"),
        }
    }

    fn commit(&mut self) -> anyhow::Result<()> {
        let n = self.rows + 1;
        self.say(&format!("INSERT INTO t VALUES ({n}); SELECT {n};\n"), &n.to_string())?;
        self.rows = n;
        Ok(())
    }

    /// Commits a second.
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

/// Why this part cannot be shown here, if it cannot.
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

/// `Err` in words where it cannot be shown here.
pub fn run(stage: &Stage) -> anyhow::Result<Result<Mounted, &'static str>> {
    if let Some(why) = lacking() {
        return Ok(Err(why));
    }
    let pool = stage.pool.with_extension("mount");
    let mut bed = MountBed::new(stage.path("mount"), pool, POOL_BYTES)?;
    let time = stage.time.min(Duration::from_secs(2));
    let plain = Sqlite::open(&bed.plain())?.measure(stage, time)?;
    bed.mount(&[])?;
    let mut sqlite = Sqlite::open(&bed.at())?;
    let mounted = sqlite.measure(stage, time)?;
    let commits = sqlite.rows;
    bed.kill();
    drop(sqlite);
    bed.mount(&[])?;
    let mut sqlite = Sqlite::open(&bed.at())?;
    sqlite.say("PRAGMA integrity_check;\n", "ok")?;
    let mut lost = 0;
    for n in 1..=commits {
        let asked = format!("SELECT count(*) FROM t WHERE n = {n};\n");
        lost += u64::from(sqlite.say(&asked, "1").is_err());
    }
    Ok(Ok(Mounted { plain_commits_per_s: plain, mount_commits_per_s: mounted, commits, lost }))
}
