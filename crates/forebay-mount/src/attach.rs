// SPDX-License-Identifier: MIT OR Apache-2.0
//! Mounts a tree as a file system of type `fuse.forebay`, with no fewer restrictions than the
//! mount through which the tree is reached.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

use fuser::{Config, MountOption, Session, SessionACL};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{mount, unmount, MountFlags, UnmountFlags};
use rustix::process::{getegid, geteuid};

use crate::front::{self, Front};
use crate::options::{Flags, MountOptions};
use crate::unix::UnixTree;

/// fusermount3 ends its text with a newline, and has no error of the system for a refusal.
fn of_fusermount(e: io::Error) -> io::Error {
    if e.raw_os_error().is_some() {
        return e;
    }
    let text = e.to_string();
    let kind = match text.contains("user_allow_other") {
        true => io::ErrorKind::PermissionDenied,
        false => e.kind(),
    };
    io::Error::new(kind, text.trim_end().to_owned())
}

/// Mounts the tree.  Requests wait until the session is run.
pub fn attach(
    front: Front,
    tree: &UnixTree,
    mountpoint: &Path,
    options: &MountOptions,
) -> io::Result<Session<Front>> {
    let flags = options.flags.and_of_mount(tree.mount_flags()?);
    tree.leave_times_of_access(flags.noatime, flags.noatime || flags.nodiratime);
    let config = config(tree.path(), options, flags);
    let device = rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .map_err(|e| {
            let way_out = match e {
                Errno::ACCESS | Errno::PERM => "allow this user to read and write it (chmod)",
                _ => "load the module fuse",
            };
            let e = io::Error::from(e);
            io::Error::new(e.kind(), format!("/dev/fuse: {e}; {way_out}"))
        })?;
    if !geteuid().is_root() {
        return Session::new(front, mountpoint, &config).map_err(of_fusermount);
    }
    let data = data(&device, mountpoint, options)?;
    let mut system = flags.of_system();
    system.set(MountFlags::RDONLY, options.read_only);
    match mount(tree.path(), mountpoint, "fuse.forebay", system, data.as_c_str()) {
        // fusermount3 may mount in a container where this process may not.
        Err(Errno::PERM) => return Session::new(front, mountpoint, &config),
        mounted => mounted?,
    }
    Session::from_fd(front, device, config.acl, config).inspect_err(|_| {
        let _ = unmount(mountpoint, UnmountFlags::DETACH);
    })
}

/// Makes umount(8) read the mount table.  For a mount that `/run/mount/utab` does not name,
/// umount(8) asks statfs(2) for the type, gets `fuse`, and does not find `umount.fuse.forebay`,
/// which waits until the tree has everything.  Works for root only; otherwise umount(8) returns
/// earlier.  `true`: there is a line of this mount, and [`unregister`] must remove it.
pub fn register(tree: &Path, mountpoint: &Path) -> bool {
    if !geteuid().is_root() {
        return false;
    }
    let known = fs::read("/run/mount/utab").unwrap_or_default();
    let target = [&b" TARGET="[..], &mangled(mountpoint), b" "].concat();
    let has = |line: &[u8], part: &[u8]| line.windows(part.len()).any(|at| at == part);
    // umount(8) removes the last line of a mountpoint.  A server that was killed left it, or it
    // belongs to the tree's own mount at the same place.
    if let Some(line) = known.split(|b| *b == b'\n').rfind(|line| has(line, &target)) {
        let source = [&b"SRC="[..], &mangled(tree), b" "].concat();
        return line.starts_with(&source) && has(line, b"uhelper=forebay");
    }
    let mut command = Command::new("mount");
    command.args(["-i", "-f", "--no-canonicalize", "-t", "fuse.forebay", "-o", "uhelper=forebay"]);
    run(command.arg("--").args([tree, mountpoint]))
}

/// Removes the line of [`register`].  The mount may have ended.
pub fn unregister(mountpoint: &Path) {
    let mut command = Command::new("umount");
    run(command.args(["-i", "--fake", "--no-canonicalize", "--"]).arg(mountpoint));
}

/// Runs a command and ignores its output.
fn run(command: &mut Command) -> bool {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// A path as mount tables encode it.
fn mangled(path: &Path) -> Vec<u8> {
    let escaped = |byte: &u8| match byte {
        b' ' | b'\t' | b'\n' | b'\\' => format!("\\{byte:03o}").into_bytes(),
        byte => vec![*byte],
    };
    path.as_os_str().as_bytes().iter().flat_map(escaped).collect()
}

/// The mount data of FUSE itself.
fn data(device: &OwnedFd, mountpoint: &Path, options: &MountOptions) -> io::Result<CString> {
    let (fd, mode) = (device.as_raw_fd(), fs::metadata(mountpoint)?.permissions().mode());
    let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
    let others = if options.allow_other { ",allow_other" } else { "" };
    let data = format!(
        "fd={fd},rootmode={mode:o},user_id={uid},group_id={gid},default_permissions{others}"
    );
    Ok(CString::new(data)?)
}

/// The number of threads of a session that wait for requests.  The kernel wakes the readers in
/// turn: the fewer there are, the more likely is one that ran on its client's CPU.  One for each
/// CPU: the one more that a session has reads while they wait for the tree.
pub fn waiting() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

fn config(tree: &Path, options: &MountOptions, flags: Flags) -> Config {
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName(tree.display().to_string()),
        MountOption::Subtype("forebay".into()),
        MountOption::DefaultPermissions,
    ];
    // Only root may set Suid and Dev, and fusermount3 accepts no other names than these.
    if geteuid().is_root() {
        let suid = if flags.nosuid { MountOption::NoSuid } else { MountOption::Suid };
        let dev = if flags.nodev { MountOption::NoDev } else { MountOption::Dev };
        config.mount_options.extend([suid, dev]);
    }
    for (given, option) in
        [(flags.noexec, MountOption::NoExec), (flags.noatime, MountOption::NoAtime)]
    {
        config.mount_options.extend(given.then_some(option));
    }
    if options.read_only {
        config.mount_options.push(MountOption::RO);
    }
    config.acl = if options.allow_other { SessionACL::All } else { SessionACL::Owner };
    config.n_threads = Some(front::threads(waiting()));
    config.clone_fd = true;
    config
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fusermount_refuses_is_one_line_and_not_permitted() {
        let text =
            "option allow_other only allowed if 'user_allow_other' is set in /etc/fuse.conf\n";
        let e = of_fusermount(io::Error::other(text));
        assert_eq!(
            (e.kind(), e.to_string()),
            (io::ErrorKind::PermissionDenied, text.trim().into())
        );
        let e = of_fusermount(Errno::NODEV.into());
        assert_eq!(e.raw_os_error(), Some(Errno::NODEV.raw_os_error()));
    }
}
