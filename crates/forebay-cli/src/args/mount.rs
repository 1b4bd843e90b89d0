// SPDX-License-Identifier: MIT OR Apache-2.0
//! The arguments of what mounts a tree.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use forebay_mount::replay::Accept;
use forebay_mount::{Flags, MountOptions};

use super::{Json, MediaArgs};
use crate::units;

/// A server that has the pool open already mounts it, next to what else it serves;
/// otherwise one is started, which ends with the last of its mounts.  What a log holds
/// from before is replayed onto the tree first.
#[derive(Args, Debug)]
#[command(after_help = after!(
    "forebay mount /dev/pmem0 /srv/data                    over the tree itself",
    "forebay mount /dev/pmem0 /srv/data /mnt/fast          next to it",
    "forebay mount /dev/pmem0 /var/lib/etcd --log etcd     a second tree has a log of its own",
    "forebay mount /dev/pmem0 /srv/data --foreground       for a service manager",
    "in /etc/fstab, by mount.forebay:",
    "  /dev/pmem0  /srv/data  forebay  nofail  0 0         options: tree=DIR,log=NAME,ro,...",
))]
pub struct Mount {
    /// The pool
    pub pool: PathBuf,
    /// A directory of an ordinary file system, which keeps all files
    pub tree: PathBuf,
    /// Mount point for programs; default: over the tree itself, so that nothing reaches the
    /// tree without the mount
    pub mountpoint: Option<PathBuf>,
    #[command(flatten)]
    pub how: MountHow,
    /// Stay in the foreground until a signal or an unmount
    #[arg(long)]
    pub foreground: bool,
    #[command(flatten)]
    pub media: MediaArgs,
    #[command(flatten)]
    pub json: Json,
}

#[derive(Args, Clone, Debug)]
pub struct MountHow {
    /// The log of the pool that holds what the tree does not have yet; it is made if it is
    /// not there
    #[arg(long, value_name = "NAME", default_value_t = MountOptions::default().log)]
    pub log: String,
    /// Nothing can be written through the mount
    #[arg(long, conflicts_with_all = ["write_back", "log_writes", "slow_log", "names_at_sync", "sync_interval", "sync_bytes"])]
    pub read_only: bool,
    /// Users other than the one who mounts may use it, by the permissions of its files;
    /// root's mounts are so anyway
    #[arg(long)]
    pub allow_other: bool,
    /// The kernel keeps what is written and not synced for a while: many small writes are
    /// faster, a sync is slower, and what is not synced is lost if the server is killed
    #[arg(long)]
    pub write_back: bool,
    /// Make writes durable when they return, so that a sync takes no time: for directories in
    /// which nearly everything written is synced at once, as a database's log.  All bytes go
    /// through the pool's log, so copying much data is slower
    #[arg(long)]
    pub log_writes: bool,
    /// Take a pool on a disk (forebay create --medium ssd) whose durable writes take more than
    /// 200 us: each file that is created, renamed or removed waits for one
    #[arg(long)]
    pub slow_log: bool,
    /// Changes of names and attributes are durable with the next sync of any file or directory,
    /// or after a second, as on a file system of the kernel, and not when they return: for a pool
    /// on a disk, where each of them would be a durable write
    #[arg(long)]
    pub names_at_sync: bool,
    /// Restrictions in addition to those of the mount of the tree's own file system: nosuid,
    /// nodev, noexec, nosymfollow, noatime, nodiratime; separated by commas
    #[arg(long, value_name = "FLAGS", default_value_t, hide_default_value = true)]
    pub flags: Flags,
    /// How long a change may be in the log alone before the tree is synced
    #[arg(long, value_name = "TIME", default_value = format!("{:?}", MountOptions::default().sync_interval), value_parser = units::parse_time)]
    pub sync_interval: Duration,
    /// How many bytes may be
    #[arg(long, value_name = "SIZE", default_value = units::size(MountOptions::default().sync_bytes), value_parser = units::parse_size)]
    pub sync_bytes: u64,
    /// Replay what the log holds although something speaks against it, named by its kind as the
    /// refusal names it (see forebay replay --help); forebay replay can tell before
    #[arg(long, value_name = "KINDS", num_args = 0..=1, require_equals = true, default_missing_value = "moved", default_value_t, hide_default_value = true)]
    pub accept: Accept,
    /// Directory for the data that the log has of missing files; default: .forebay-found in the
    /// tree
    #[arg(long, value_name = "DIR")]
    pub salvage: Option<PathBuf>,
}

/// All logged changes are in the tree when it returns.
#[derive(Args, Debug)]
#[command(after_help = after!(
    "forebay umount /srv/data",
    "forebay umount /srv/data --keep     at once; the next mount replays what the tree lacks",
))]
pub struct Umount {
    /// The mount point of the tree
    pub mountpoint: PathBuf,
    /// Do not wait for the tree: changes that it lacks stay in the log
    #[arg(long)]
    pub keep: bool,
    #[command(flatten)]
    pub json: Json,
}

impl Default for MountHow {
    fn default() -> Self {
        let usual = MountOptions::default();
        MountHow {
            log: usual.log,
            read_only: usual.read_only,
            // root's are so by themselves.
            allow_other: false,
            write_back: usual.write_back,
            log_writes: usual.log_writes,
            slow_log: usual.slow_log,
            names_at_sync: usual.names_at_sync,
            flags: usual.flags,
            sync_interval: usual.sync_interval,
            sync_bytes: usual.sync_bytes,
            accept: Accept::default(),
            salvage: None,
        }
    }
}

/// forebay mount does this by itself; here it can be seen before, and what a mount refuses
/// can be ordered.  While a server has the pool open it is refused.
#[derive(Args, Debug)]
#[command(after_help = after!(
    "forebay replay /dev/pmem0 /srv/data --dry-run            11: it is refused, as it may be a copy",
    "forebay replay /dev/pmem0 /srv/data",
    "forebay replay /dev/pmem0 /srv/data --accept=moved --salvage /var/tmp/saved",
))]
pub struct Replay {
    /// The pool
    pub pool: PathBuf,
    /// The tree that was mounted
    pub tree: PathBuf,
    /// The log that holds what the tree does not have
    #[arg(long, value_name = "NAME", default_value_t = MountOptions::default().log)]
    pub log: String,
    /// Only report what would be done: nothing is changed
    #[arg(long)]
    pub dry_run: bool,
    /// Go on although something speaks against it, by its kind: moved (the tree is at another
    /// path), older-tree (it is an older copy, and what came in between is lost), no-group
    /// (.forebay-group is gone or no proof), unmarked (the tree lacks the log's mark), under-way
    /// (leave out the last change, which the tree refuses), lost-entries (leave out what depends
    /// on entries that are lost), sealed (leave as it is what the tree refuses to change, as for
    /// chattr +i, where no seal shows); by commas. Without a kind: moved, by which nothing is lost.
    /// What is accepted is told in the report
    #[arg(long, value_name = "KINDS", num_args = 0..=1, require_equals = true, default_missing_value = "moved", default_value_t, hide_default_value = true)]
    pub accept: Accept,
    /// Directory for the data that the log has of missing files; default: .forebay-found in the
    /// tree
    #[arg(long, value_name = "DIR")]
    pub salvage: Option<PathBuf>,
    #[command(flatten)]
    pub media: MediaArgs,
    #[command(flatten)]
    pub json: Json,
}

/// While a tree is mounted, and after a crash until it is replayed, it bears a mark.  The mark
/// names the log and the pool that may hold changes that the tree lacks; no other pool or log
/// may be used with the tree.  The mark is removed when the tree has everything.  This command
/// removes it by order, for a pool that is gone: changes that only its log holds are lost then.
#[derive(Args, Debug)]
#[command(after_help = after!(
    "forebay unmark /srv/data                    only tells what the mark says; 12: there is one",
    "forebay unmark /srv/data --accept-loss      acknowledged changes that the tree lacks are lost",
))]
pub struct Unmark {
    /// A tree that is not mounted
    pub tree: PathBuf,
    /// Give up what was acknowledged and is in the log alone
    #[arg(long)]
    pub accept_loss: bool,
    #[command(flatten)]
    pub json: Json,
}
