// SPDX-License-Identifier: MIT OR Apache-2.0
//! A tree, a mount of it and a plain directory beside it, for the demo and the benchmark:
//! served by a process of its own, as mounts are used.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{bail, Context};

/// Gone when it is dropped, with all that was made for it.
pub struct MountBed {
    dir: PathBuf,
    pool: PathBuf,
    server: Option<Child>,
}

impl MountBed {
    /// Directories in `dir`, and a pool; nothing is mounted yet.
    pub fn new(dir: PathBuf, pool: PathBuf, pool_bytes: u64) -> anyhow::Result<MountBed> {
        let bed = MountBed { dir, pool, server: None };
        for part in [bed.plain(), bed.tree(), bed.at()] {
            fs::create_dir_all(&part).with_context(|| format!("{}", part.display()))?;
        }
        let size = forebay::CreateOptions { size_bytes: Some(pool_bytes), ..Default::default() };
        forebay::create(&bed.pool, &size)?;
        Ok(bed)
    }

    pub fn plain(&self) -> PathBuf {
        self.dir.join("plain")
    }

    fn tree(&self) -> PathBuf {
        self.dir.join("tree")
    }

    /// Where the tree is mounted.
    pub fn at(&self) -> PathBuf {
        self.dir.join("at")
    }

    /// Starts the server, and waits for the mount.
    pub fn mount(&mut self, options: &[&str]) -> anyhow::Result<()> {
        const LIMIT: Duration = Duration::from_secs(60);
        let (tree, at) = (self.tree(), self.at());
        let mut server = Command::new(std::env::current_exe()?);
        server.args(["mount", "--foreground"]).args(options).args([&self.pool, &tree, &at]);
        let server = server.stdin(Stdio::null()).stdout(Stdio::null()).spawn()?;
        let server = self.server.insert(server);
        let end = Instant::now() + LIMIT;
        let below = fs::metadata(&self.dir)?.dev();
        // An error until the mount of a server that was killed is taken away.
        while fs::metadata(&at).map_or(true, |at| at.dev() == below) {
            if let Some(status) = server.try_wait()? {
                bail!("the server of the mount has ended with {status}; it needs FUSE and root");
            }
            if Instant::now() > end {
                bail!("the mount did not come within {LIMIT:?}");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// By SIGKILL.
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
