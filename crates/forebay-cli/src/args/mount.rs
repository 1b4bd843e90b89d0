// SPDX-License-Identifier: MIT OR Apache-2.0
//! The arguments of what mounts a tree.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use forebay_mount::replay::Accept;
use forebay_mount::{Flags, MountOptions};

use super::{Json, MediaArgs};
use crate::units;

/// If a server has the pool open, that server mounts the tree.  Otherwise the command starts a
/// server, which ends when its last tree is unmounted.  Changes that a crash left in the log are
/// first replayed onto the tree.
#[derive(Args, Debug)]
#[command(after_help = after!(
    "forebay mount /dev/pmem0 /srv/data                    over the tree itself",
    "forebay mount /dev/pmem0 /srv/data /mnt/fast          at a path of its own",
    "forebay mount /dev/pmem0 /var/lib/etcd --log etcd     a second tree needs its own log",
    "forebay mount /dev/pmem0 /srv/data --foreground       for a service manager",
    "in /etc/fstab, by mount.forebay:",
    "  /dev/pmem0  /srv/data  forebay  nofail  0 0         options: tree=DIR,log=NAME,ro,...",
))]
pub struct Mount {
    /// The pool
    pub pool: PathBuf,
    /// The directory to mount; its file system keeps all files
    pub tree: PathBuf,
    /// Directory at which programs see the tree; default: the tree itself, so that no program can
    /// bypass the mount
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
    /// Name of the log, in the pool, for changes that the tree does not have yet; a missing log is
    /// made
    #[arg(long, value_name = "NAME", default_value_t = MountOptions::default().log)]
    pub log: String,
    /// Mount read-only
    #[arg(long, conflicts_with_all = ["write_back", "log_writes", "slow_log", "names_at_sync", "sync_interval", "sync_bytes"])]
    pub read_only: bool,
    /// Allow other users to use the mount; file permissions apply.  Mounts by root always allow
    /// this
    #[arg(long)]
    pub allow_other: bool,
    /// Let the kernel collect unsynced writes.  Many small writes are faster, and a sync is slower.
    /// Unsynced data is lost if the server is killed
    #[arg(long)]
    pub write_back: bool,
    /// Make each write durable before it returns; a sync then costs nothing.  Use this where
    /// programs sync nearly everything at once, as for a database's log.  All bytes go through the
    /// pool's log, so large copies are slower
    #[arg(long)]
    pub log_writes: bool,
    /// Accept a pool on a disk (forebay create --medium ssd) whose durable writes take more than
    /// 200 us.  Each create, rename and remove waits for one such write
    #[arg(long)]
    pub slow_log: bool,
    /// Make changes of names and attributes durable with the next sync of any file or directory, or
    /// after 1 s, and not before they return.  File systems of the kernel do the same.  Use this
    /// for a pool on a disk, where each such change would wait for a durable write
    #[arg(long)]
    pub names_at_sync: bool,
    /// Mount flags to add to those of the tree's file system, separated by commas: nosuid, nodev,
    /// noexec, nosymfollow, noatime, nodiratime
    #[arg(long, value_name = "FLAGS", default_value_t, hide_default_value = true)]
    pub flags: Flags,
    /// Longest time that a change is only in the log, before the tree is synced
    #[arg(long, value_name = "TIME", default_value = format!("{:?}", MountOptions::default().sync_interval), value_parser = units::parse_time)]
    pub sync_interval: Duration,
    /// Largest amount of changes that is only in the log, before the tree is synced
    #[arg(long, value_name = "SIZE", default_value = units::size(MountOptions::default().sync_bytes), value_parser = units::parse_size)]
    pub sync_bytes: u64,
    /// Replay the log despite a danger of these kinds, separated by commas.  The refusal names the
    /// kind, and forebay replay --help explains it.  First see forebay replay --dry-run
    #[arg(long, value_name = "KINDS", num_args = 0..=1, require_equals = true, default_missing_value = "moved", default_value_t, hide_default_value = true)]
    pub accept: Accept,
    /// Directory for data in the log whose file is missing from the tree; default: .forebay-found
    /// in the tree
    #[arg(long, value_name = "DIR")]
    pub salvage: Option<PathBuf>,
}

/// When the command returns, the tree has all logged changes, unless --keep was given.
#[derive(Args, Debug)]
#[command(after_help = after!(
    "forebay umount /srv/data",
    "forebay umount /srv/data --keep     at once; the next mount replays the log",
))]
pub struct Umount {
    /// The mount point of the tree
    pub mountpoint: PathBuf,
    /// Do not sync the tree: changes that the tree lacks stay in the log
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

/// forebay mount does this automatically.  Use this command to see the changes first (--dry-run),
/// or to replay a log that forebay mount refuses (--accept).  No server may have the pool open.
#[derive(Args, Debug)]
#[command(after_help = after!(
    "forebay replay /dev/pmem0 /srv/data --dry-run            exit code 11: a replay needs --accept",
    "forebay replay /dev/pmem0 /srv/data",
    "forebay replay /dev/pmem0 /srv/data --accept=moved --salvage /var/tmp/saved",
))]
pub struct Replay {
    /// The pool
    pub pool: PathBuf,
    /// The tree that was mounted
    pub tree: PathBuf,
    /// The log that holds changes which the tree lacks
    #[arg(long, value_name = "NAME", default_value_t = MountOptions::default().log)]
    pub log: String,
    /// Only report, and change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Replay despite these dangers, separated by commas; the report names what was accepted:
    ///   - moved: the tree is at another path; nothing is lost (the default without KINDS)
    ///   - older-tree: the tree is an older copy; changes made after the copy are lost
    ///   - no-group: .forebay-group is missing or proves nothing; this may be an older copy
    ///   - unmarked: the tree lacks the log's mark; the replay may undo later changes
    ///   - under-way: leave out the last change, which the tree refuses
    ///   - lost-entries: leave out changes that depend on lost entries of the log
    ///   - sealed: leave out changes that the tree forbids (chattr +i on an NFS server)
    #[arg(verbatim_doc_comment)]
    #[arg(long, value_name = "KINDS", num_args = 0..=1, require_equals = true, default_missing_value = "moved", default_value_t, hide_default_value = true)]
    pub accept: Accept,
    /// Directory for data in the log whose file is missing from the tree; default: .forebay-found
    /// in the tree
    #[arg(long, value_name = "DIR")]
    pub salvage: Option<PathBuf>,
    #[command(flatten)]
    pub media: MediaArgs,
    #[command(flatten)]
    pub json: Json,
}

/// A tree has a mark while it is mounted, and after a crash until its log is replayed.  The mark
/// names the pool and the log that may hold changes which the tree lacks.  Until it is removed, no
/// other pool or log can be used with the tree.  Forebay removes the mark when the tree has
/// everything.  If the pool is lost, this command removes the mark; changes that only the log holds
/// are then lost.
#[derive(Args, Debug)]
#[command(after_help = after!(
    "forebay unmark /srv/data                    shows the mark; exit code 12: there is one",
    "forebay unmark /srv/data --accept-loss      acknowledged changes that the tree lacks are lost",
))]
pub struct Unmark {
    /// A tree that is not mounted
    pub tree: PathBuf,
    /// Remove the mark, and give up acknowledged changes that only the log holds
    #[arg(long)]
    pub accept_loss: bool,
    #[command(flatten)]
    pub json: Json,
}
