// SPDX-License-Identifier: MIT OR Apache-2.0
//! The options and the flags of a mount.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use rustix::mount::MountFlags;
use serde::{Deserialize, Serialize};

use crate::live::LiveOptions;

/// The options of a mount.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// The log of the pool for data that the tree does not have yet; made if it does not exist.
    pub log: String,
    pub read_only: bool,
    /// Users other than the one who mounts may use the mount.
    pub allow_other: bool,
    /// The kernel keeps unsynced writes for a while.  Writes are faster, a sync takes one more
    /// request, and unsynced data is lost if the server dies.
    pub write_back: bool,
    /// A write is durable when it returns, and a sync needs no request.
    pub log_writes: bool,
    /// Flags in addition to those of the tree's own mount.
    pub flags: Flags,
    /// How long a change may be only in the log.
    pub sync_interval: Duration,
    /// How many bytes may be only in the log.
    pub sync_bytes: u64,
    /// The log may be on a disk on which each change of a name takes longer than
    /// [`SLOW_LOG`].
    pub slow_log: bool,
    /// See [`LiveOptions::names_at_sync`].
    pub names_at_sync: bool,
}

/// The longest durable write of a pool whose log takes names without [`MountOptions::slow_log`].
pub const SLOW_LOG: Duration = Duration::from_micros(200);

impl Default for MountOptions {
    fn default() -> Self {
        let live = LiveOptions::default();
        MountOptions {
            log: "mount".into(),
            read_only: false,
            allow_other: rustix::process::geteuid().is_root(),
            write_back: false,
            log_writes: false,
            flags: Flags::default(),
            sync_interval: live.interval,
            sync_bytes: live.bytes,
            slow_log: false,
            names_at_sync: false,
        }
    }
}

/// The flags of a mount, as for mount(8).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Flags {
    /// Set-user-ID and set-group-ID bits and capabilities of programs have no effect.
    pub nosuid: bool,
    /// Devices cannot be opened.
    pub nodev: bool,
    /// Programs cannot be run.
    pub noexec: bool,
    /// Symlinks are not followed.
    pub nosymfollow: bool,
    /// Reads do not change access times.
    pub noatime: bool,
    /// No access times of directories.
    pub nodiratime: bool,
}

/// A flag's name, its place, and its number for statvfs.
type Flag = (&'static str, fn(&mut Flags) -> &mut bool, u64, MountFlags);

const FLAGS: [Flag; 6] = [
    ("nosuid", |f| &mut f.nosuid, 0x2, MountFlags::NOSUID),
    ("nodev", |f| &mut f.nodev, 0x4, MountFlags::NODEV),
    ("noexec", |f| &mut f.noexec, 0x8, MountFlags::NOEXEC),
    ("nosymfollow", |f| &mut f.nosymfollow, 0x2000, MountFlags::NOSYMFOLLOW),
    ("noatime", |f| &mut f.noatime, 0x400, MountFlags::NOATIME),
    ("nodiratime", |f| &mut f.nodiratime, 0x800, MountFlags::NODIRATIME),
];

impl Flags {
    /// Adds the flags of a mount, as statvfs reports them.
    pub fn and_of_mount(mut self, flags: u64) -> Flags {
        for (_, flag, bit, _) in FLAGS {
            *flag(&mut self) |= flags & bit != 0;
        }
        self
    }

    fn names(mut self) -> Vec<&'static str> {
        let given = FLAGS.iter().filter(|(_, flag, ..)| *flag(&mut self));
        given.map(|(name, ..)| *name).collect()
    }

    /// The flags as mount(2) takes them.
    pub fn of_system(mut self) -> MountFlags {
        let given = FLAGS.iter().filter(|(_, flag, ..)| *flag(&mut self));
        given.fold(MountFlags::empty(), |all, (.., flag)| all | *flag)
    }
}

impl fmt::Display for Flags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.names().join(","))
    }
}

impl FromStr for Flags {
    type Err = String;

    fn from_str(names: &str) -> Result<Flags, String> {
        let mut flags = Flags::default();
        for given in names.split(',').filter(|name| !name.is_empty()) {
            let Some((_, flag, ..)) = FLAGS.iter().find(|(name, ..)| *name == given) else {
                let known: Vec<_> = FLAGS.iter().map(|(name, ..)| *name).collect();
                return Err(format!("{given} is no flag: use {}", known.join(", ")));
            };
            *flag(&mut flags) = true;
        }
        Ok(flags)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_have_names_and_numbers() {
        for (name, _, bit, of_system) in FLAGS {
            let flags: Flags = name.parse().expect("a flag");
            assert_eq!(flags.to_string(), name);
            assert_eq!(flags.of_system(), of_system);
            assert_eq!(Flags::default().and_of_mount(bit), flags);
            assert_eq!(flags.and_of_mount(0), flags, "what is given stays");
        }
        let two: Flags = "noexec,nosuid".parse().expect("two flags");
        assert_eq!(two, Flags { nosuid: true, noexec: true, ..Flags::default() });
        assert_eq!(two.to_string(), "nosuid,noexec");
        assert!("suid".parse::<Flags>().is_err_and(|e| e.contains("nosuid")));
        let json = serde_json::to_string(&two).expect("JSON");
        assert_eq!(serde_json::from_str::<Flags>(&json).expect("flags"), two);
        assert_eq!(
            serde_json::from_str::<Flags>("{}").expect("of an older client"),
            Flags::default()
        );
    }
}
