// SPDX-License-Identifier: MIT OR Apache-2.0
//! A tree, a mount of it and a plain directory, for the demo and the benchmark: served by a
//! separate process, as mounts are used.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use anyhow::{bail, Context};
use forebay::{CreateOptions, MediumChoice};

/// The bed.  Its drop removes everything that was made for it.
pub struct MountBed {
    dir: PathBuf,
    pool: PathBuf,
    server: Option<Child>,
    /// Open while the server may print something.
    said: Option<BufReader<ChildStdout>>,
}

impl MountBed {
    /// Makes the directories in `dir`, and a pool.  Mounts nothing yet.
    pub fn new(
        dir: PathBuf,
        pool: PathBuf,
        pool_bytes: u64,
        medium: MediumChoice,
    ) -> anyhow::Result<MountBed> {
        let bed = MountBed { dir, pool, server: None, said: None };
        for part in [bed.plain(), bed.tree(), bed.at()] {
            fs::create_dir_all(&part).with_context(|| format!("{}", part.display()))?;
        }
        let options =
            CreateOptions { size_bytes: Some(pool_bytes), medium, ..CreateOptions::default() };
        forebay::create(&bed.pool, &options)?;
        Ok(bed)
    }

    pub fn plain(&self) -> PathBuf {
        self.dir.join("plain")
    }

    fn tree(&self) -> PathBuf {
        self.dir.join("tree")
    }

    /// The mount point of the tree.
    pub fn at(&self) -> PathBuf {
        self.dir.join("at")
    }

    /// Starts the server, and waits until it reports that it has mounted.  Before that, the dead
    /// mount of a killed server may still exist, and answer from the kernel's caches.
    pub fn mount(&mut self, options: &[&str]) -> anyhow::Result<()> {
        let mut server = Command::new(std::env::current_exe()?);
        server.args(["mount", "--foreground"]).args(options);
        server.args([&self.pool, &self.tree(), &self.at()]);
        let server = server.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let server = self.server.insert(server);
        let mut said = BufReader::new(server.stdout.take().context("the server's output")?);
        let mut line = String::new();
        while !line.starts_with("mounted ") {
            line.clear();
            if said.read_line(&mut line)? == 0 {
                let status = server.wait()?;
                bail!("the server of the mount has ended with {status}; it needs FUSE and root");
            }
        }
        self.said = Some(said);
        Ok(())
    }

    /// Kills the server by SIGKILL.
    pub fn kill(&mut self) {
        if let Some(mut server) = self.server.take() {
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}

impl Drop for MountBed {
    fn drop(&mut self) {
        if let (Some(mut server), Ok(this)) = (self.server.take(), std::env::current_exe()) {
            let mut umount = Command::new(this);
            umount.args([Path::new("umount"), &self.at()]).stdout(Stdio::null());
            if !umount.status().is_ok_and(|s| s.success()) {
                let _ = server.kill();
            }
            let _ = server.wait();
        }
        let _ = fs::remove_dir_all(&self.dir);
        let _ = fs::remove_file(&self.pool);
    }
}
