// SPDX-License-Identifier: MIT OR Apache-2.0
//! Goal: a mount whose pool is full of what an origin does not take goes on, or says for what
//! it waits, and goes on when there is space.
//! Method: a volume before an origin that fails all writes fills the pool, before or after
//! the mount has begun; programs create, write, sync and rename by several threads.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use forebay::{
    create, AttachOptions, CreateOptions, Faults, FaultyOrigin, MemOrigin, Pool, PoolOptions,
    Volume,
};
use forebay_mount::{Mount, MountOptions};

struct Bed {
    dir: PathBuf,
    pool: Pool,
}

impl Bed {
    /// `None`, and said so: FUSE cannot be used here.
    fn new(name: &str, chunk_size_bytes: u32) -> Option<Bed> {
        if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
            forebay_test::skipped!("{name} needs root and /dev/fuse");
            return None;
        }
        let dir = std::env::temp_dir().join(format!("forebay-full-{name}-{}", std::process::id()));
        fs::create_dir_all(dir.join("tree")).unwrap();
        let size =
            CreateOptions { size_bytes: Some(16 << 20), chunk_size_bytes, ..Default::default() };
        create(&dir.join("pool"), &size).unwrap();
        let pool = Pool::open(&dir.join("pool"), &PoolOptions::default()).unwrap();
        Some(Bed { dir, pool })
    }

    fn tree(&self) -> PathBuf {
        self.dir.join("tree")
    }

    fn start(&self) -> Mount {
        let options =
            MountOptions { sync_interval: Duration::from_millis(300), ..Default::default() };
        Mount::start(&self.pool, &self.tree(), &self.tree(), &options, &mut || false).unwrap()
    }

    /// A volume that has written until there was no space for it.
    fn filled(&self, name: &str) -> (Volume, Faults) {
        let memory = MemOrigin::new(64 << 20).unwrap();
        self.pool.volume_add_origin(name, &memory, 0).unwrap();
        let (origin, faults) = FaultyOrigin::new(Box::new(memory));
        faults.break_writes();
        let soon = AttachOptions {
            full_timeout: Some(Duration::from_millis(200)),
            ..AttachOptions::default()
        };
        let volume = self.pool.attach_origin(name, Box::new(origin), &soon).unwrap();
        let full = (0..).map(|i| i << 16).find(|at| volume.write_at(&[7; 1 << 16], *at).is_err());
        assert!(full.is_some_and(|at| at < 16 << 20));
        (volume, faults)
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// Files of each size that takes another way, and names, by three threads.
fn use_it(at: &Path, what: &'static str) -> mpsc::Receiver<()> {
    let (done, result) = mpsc::channel();
    for thread in 0..3 {
        let (at, done) = (at.to_path_buf(), done.clone());
        thread::spawn(move || {
            for i in 0..20usize {
                let name = at.join(format!("{what}-{thread}-{i}"));
                let mut file = File::create_new(&name).unwrap();
                file.write_all(&vec![i as u8; [100, 5000, 200_000, 900_000][i % 4]]).unwrap();
                file.sync_all().unwrap();
                fs::rename(&name, at.join(format!("{what}-{thread}"))).unwrap();
            }
            let _ = done.send(());
        });
    }
    result
}

/// On a machine that is busy it may take this long.
const LONG: Duration = Duration::from_secs(60);

fn goes_on(at: &Path, what: &'static str) {
    let result = use_it(at, what);
    (0..3).for_each(|_| result.recv_timeout(LONG).unwrap_or_else(|_| panic!("{what}: it hangs")));
}

#[test]
fn a_mount_goes_on_in_a_pool_that_is_full() {
    let Some(bed) = Bed::new("before", 256 << 10) else { return };
    let mount = bed.start();
    goes_on(&bed.tree(), "empty");
    let (volume, faults) = bed.filled("v");
    goes_on(&bed.tree(), "full");
    mount.unmount(false).unwrap();
    // In the pool that is full it gets a chunk as well.
    let mount = bed.start();
    goes_on(&bed.tree(), "begun-late");
    mount.unmount(false).unwrap();
    faults.repair();
    drop(volume);
}

/// So few chunks that none are kept for anybody.
#[test]
fn who_waits_for_space_says_so_and_goes_on() {
    let Some(bed) = Bed::new("few", 2 << 20) else { return };
    let (volume, faults) = bed.filled("v");
    let mount = bed.start();
    let result = use_it(&bed.tree(), "few");
    let said = (0..600).any(|_| {
        thread::sleep(Duration::from_millis(50));
        mount.status().waits_for_space_s > 0.5
    });
    assert!(said, "it waits, and does not say so: {:?}", mount.status());
    assert!(result.try_recv().is_err());
    faults.repair();
    (0..3).for_each(|_| result.recv_timeout(LONG).expect("there is space"));
    assert_eq!(mount.status().waits_for_space_s, 0.0);
    mount.unmount(false).unwrap();
    drop(volume);
}
