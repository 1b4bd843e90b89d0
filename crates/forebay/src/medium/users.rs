// SPDX-License-Identifier: MIT OR Apache-2.0
//! Who uses a device or file: mounts, swap and claims, and what claims nothing, such as a loop
//! device, a program that writes, or a lock of a virtual machine.

use std::collections::HashSet;
use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use forebay_engine::lasting;
use rustix::fs::{FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use rustix::process::{fcntl_getlk, Flock, FlockType};

use super::file_system::mounts_of;
use crate::bounded::ask_each;
use crate::media::{backing_of, file_holder, loop_device_of};
use crate::procfs::{self, device_number, device_number_in, DeviceNumber};

/// Writers that are named one by one.
const WRITERS: usize = 4;

/// A claim is tried, and what has it is looked for.
pub(super) fn of_device(path: &Path, number: DeviceNumber) -> Vec<String> {
    let mut users = of_claimed_device(path, number);
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::EXCL;
    let claimed = lasting::open(|| rustix::fs::open(path, flags, Mode::empty()));
    if users.is_empty() && matches!(claimed, Err(Errno::BUSY)) {
        users.push("another program has claimed it".into());
    }
    users
}

/// Who uses it next to this process, which has claimed it.
pub(super) fn of_claimed_device(path: &Path, number: DeviceNumber) -> Vec<String> {
    let sys = PathBuf::from(format!("/sys/dev/block/{}:{}", number.0, number.1));
    let mut users: Vec<String> = Vec::new();
    users.extend(names(&sys.join("holders")).iter().map(|n| format!("it is a part of /dev/{n}")));
    let mounted = |of: &str, number| {
        let all = mounts_of(number).into_iter();
        all.map(move |on| format!("{of} is mounted on {}", on.display())).collect::<Vec<_>>()
    };
    users.extend(mounted("it", number));
    // Whoever writes to the whole disk writes to its partitions, and the other way round.
    let mut same: Vec<(DeviceNumber, String)> = vec![(number, "it".into())];
    let partitions: Vec<_> = names(&sys)
        .into_iter()
        .filter(|name| sys.join(name).join("partition").exists())
        .filter_map(|name| {
            Some((device_number_in(&sys.join(&name))?, format!("its partition {name}")))
        })
        .collect();
    for (number, of) in &partitions {
        users.extend(mounted(of, *number));
    }
    same.extend(partitions);
    if sys.join("partition").exists() {
        // `..` of the real place: the number's entry is a link.
        let disk = fs::canonicalize(&sys).ok().and_then(|sys| device_number_in(sys.parent()?));
        same.extend(disk.map(|number| (number, "the whole disk".into())));
    }
    users.extend(is_swap(path).then(|| "it is swap".to_string()));
    users.extend(loops_over(Path::new("/sys/block"), &same));
    let of = |st: &Stat| {
        let block = FileType::from_raw_mode(st.st_mode) == FileType::BlockDevice;
        let found = same.iter().find(|(number, _)| *number == device_number(st.st_rdev));
        found.filter(|_| block).map(|(_, of)| of.clone())
    };
    users.extend(writers(Path::new("/proc"), std::process::id(), of));
    users
}

pub(super) fn of_file(fd: &OwnedFd, st: &Stat) -> Vec<String> {
    let locked = file_holder(fd).map(|pid| format!("process {pid} has locked it"));
    locked.into_iter().chain(of_claimed_file(fd, st)).collect()
}

/// Who uses it next to this process, which has locked it.
pub(super) fn of_claimed_file(fd: &OwnedFd, st: &Stat) -> Vec<String> {
    let disk = loop_device_of(fd, st).map(|device| format!("it is the disk of /dev/{device}"));
    let of = |other: &Stat| {
        let same = (other.st_dev, other.st_ino) == (st.st_dev, st.st_ino);
        same.then(|| "it".to_string())
    };
    let mut users: Vec<String> = disk.into_iter().chain(record_lock(fd)).collect();
    users.extend(writers(Path::new("/proc"), std::process::id(), of));
    users
}

/// A lock of a range (fcntl), as a virtual machine has of its disks.
fn record_lock(fd: &OwnedFd) -> Option<String> {
    let wanted = Flock::from(FlockType::WriteLock);
    let found = fcntl_getlk(fd, &wanted).ok()??;
    Some(match found.pid {
        Some(pid) => format!("process {} has locked a part of it", pid.as_raw_nonzero()),
        None => "another program has locked a part of it".into(),
    })
}

/// The names in a directory, in order.
pub(super) fn names(dir: &Path) -> Vec<String> {
    let all = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut names: Vec<_> = all.map(|e| e.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Loop devices whose disk is one of the devices.
fn loops_over(sys: &Path, devices: &[(DeviceNumber, String)]) -> Vec<String> {
    let all = names(sys).into_iter().filter_map(|name| Some((backing_of(&sys.join(&name))?, name)));
    // One whose file does not answer is none over a device of this host.
    let found = ask_each(all.collect(), |(file, _)| rustix::fs::stat(file).ok());
    let over = |((_, name), st): ((PathBuf, String), Option<Option<Stat>>)| {
        let st = st.flatten()?;
        if FileType::from_raw_mode(st.st_mode) != FileType::BlockDevice {
            return None;
        }
        let found = devices.iter().find(|(number, _)| *number == device_number(st.st_rdev))?;
        Some(format!("{} is the disk of /dev/{name}", found.1))
    };
    found.into_iter().filter_map(over).collect()
}

/// Other processes that have something open for writing; those of other users show to root alone.
fn writers(proc: &Path, own: u32, of: impl Fn(&Stat) -> Option<String>) -> Vec<String> {
    let mut seen = HashSet::new();
    let mut found = Vec::new();
    for process in names(proc) {
        let Ok(pid) = process.parse::<u32>() else { continue };
        if pid == own {
            continue;
        }
        let dir = proc.join(&process);
        for descriptor in names(&dir.join("fd")) {
            let Ok(st) = rustix::fs::stat(dir.join("fd").join(&descriptor)) else { continue };
            let Some(of) = of(&st) else { continue };
            if is_writable(&dir.join("fdinfo").join(&descriptor)) && seen.insert(pid) {
                let name = procfs::text(dir.join("comm")).unwrap_or_default();
                let name = crate::printable(name.trim()).into_owned();
                found.push(format!("{of} is open for writing in process {pid} ({name})"));
            }
        }
        if found.len() >= WRITERS {
            break;
        }
    }
    found
}

/// The access mode, in the octal flags of a descriptor.
fn is_writable(info: &Path) -> bool {
    let text = procfs::text(info).unwrap_or_default();
    let flags = text.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok());
    flags.is_some_and(|flags| flags & 3 != 0 && flags & OFlags::PATH.bits() == 0)
}

/// /proc/swaps names it.
pub(super) fn is_swap(path: &Path) -> bool {
    let Ok(st) = rustix::fs::stat(path) else { return false };
    procfs::swaps().unwrap_or_default().into_iter().any(|swap| {
        let same = |other: Stat| match FileType::from_raw_mode(st.st_mode) {
            FileType::BlockDevice => other.st_rdev == st.st_rdev && other.st_mode == st.st_mode,
            _ => (other.st_dev, other.st_ino) == (st.st_dev, st.st_ino),
        };
        rustix::fs::stat(swap).is_ok_and(same)
    })
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use super::*;

    /// A program that has a file open, until it is dropped.
    struct Holder(Child);

    impl Holder {
        fn start(redirect: &str, path: &Path) -> Holder {
            let script = format!("exec 9{redirect}\"$1\"; echo; read -r line");
            let mut command = Command::new("sh");
            command.args(["-c", &script, "sh"]).arg(path);
            let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
            let mut ready = [0];
            std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut ready).unwrap();
            Holder(child)
        }
    }

    impl Drop for Holder {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn whoever_writes_to_a_file_is_a_user_and_a_reader_is_none() {
        let path = forebay_test::memory().join(format!("fby-users-{}", std::process::id()));
        fs::write(&path, [0; 4096]).unwrap();
        let users = || {
            let fd = OwnedFd::from(fs::File::open(&path).unwrap());
            let st = rustix::fs::fstat(&fd).unwrap();
            of_file(&fd, &st)
        };
        assert_eq!(users(), Vec::<String>::new());
        for (redirect, is_user) in [("<", false), (">>", true), ("<>", true)] {
            let holder = Holder::start(redirect, &path);
            let found = users();
            assert_eq!(found.len(), usize::from(is_user), "{redirect}: {found:?}");
            if is_user {
                let pid = format!("in process {} (", holder.0.id());
                assert!(found[0].contains(&pid), "{found:?}");
            }
        }
        assert_eq!(users(), Vec::<String>::new());
        fs::remove_file(&path).unwrap();
    }

    /// A made-up /sys/block: loop devices over a device, which claim nothing.
    #[test]
    fn a_loop_device_over_a_device_is_a_user() {
        let dir = std::env::temp_dir().join(format!("fby-over-{}", std::process::id()));
        let null = rustix::fs::stat("/dev/null").unwrap();
        for (name, backing) in [("loop0", "/dev/null"), ("loop1", "/none"), ("sda", "")] {
            fs::create_dir_all(dir.join(name).join("loop")).unwrap();
            if !backing.is_empty() {
                let file = dir.join(name).join("loop/backing_file");
                fs::write(file, format!("{backing}\n")).unwrap();
            }
        }
        // A character device is none, whatever its number.
        let devices = [(device_number(null.st_rdev), "it".to_string())];
        assert_eq!(loops_over(&dir, &devices), Vec::<String>::new());
        let block = names(Path::new("/sys/block")).into_iter().find_map(|name| {
            let path = Path::new("/dev").join(&name);
            let st = rustix::fs::stat(&path).ok()?;
            let block = FileType::from_raw_mode(st.st_mode) == FileType::BlockDevice;
            block.then_some((path, device_number(st.st_rdev)))
        });
        if let Some((path, number)) = &block {
            fs::write(dir.join("loop1/loop/backing_file"), format!("{}\n", path.display()))
                .unwrap();
            let devices = [((0, 0), "other".to_string()), (*number, "its partition sdx1".into())];
            let said = ["its partition sdx1 is the disk of /dev/loop1".to_string()];
            assert_eq!(loops_over(&dir, &devices), said);
        }
        fs::remove_dir_all(&dir).unwrap();
        if block.is_none() {
            forebay_test::skipped!("there is no block device to be named");
        }
    }

    #[test]
    fn a_lock_of_a_range_is_a_user() {
        use std::os::unix::fs::FileExt;
        let path = forebay_test::memory().join(format!("fby-range-{}", std::process::id()));
        let file = fs::File::create_new(&path).unwrap();
        file.write_all_at(&[0; 4096], 0).unwrap();
        let fd = OwnedFd::from(fs::File::open(&path).unwrap());
        assert_eq!(record_lock(&fd), None);
        // This process is not named: another one has the lock.
        let script = "import fcntl,sys; f=open(sys.argv[1],'r+b'); fcntl.lockf(f, fcntl.LOCK_SH if len(sys.argv) > 2 else fcntl.LOCK_EX, 1, 100); print(flush=True); sys.stdin.read()";
        for words in [&[][..], &["shared"]] {
            let mut command = Command::new("python3");
            command.args(["-c", script]).arg(&path).args(words);
            let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
            let Ok(child) = spawned else {
                fs::remove_file(&path).unwrap();
                return forebay_test::skipped!("there is no python3");
            };
            let mut holder = Holder(child);
            let mut ready = [0];
            std::io::Read::read_exact(holder.0.stdout.as_mut().unwrap(), &mut ready).unwrap();
            let said = record_lock(&fd).unwrap();
            assert!(said.contains(&format!("process {}", holder.0.id())), "{said}");
        }
        fs::remove_file(&path).unwrap();
    }
}
