// SPDX-License-Identifier: MIT OR Apache-2.0
//! The rights with which the tree is changed.
//!
//! The kernel checks modes, ACLs, sticky directories and resource limits at the mount.  The
//! tree's file system checks quotas and the blocks that it reserves for root, for the thread
//! that makes the request.  So a thread that answers requests has no `CAP_SYS_RESOURCE`, and
//! takes the caller's file-system user and group while it changes the tree.  It keeps the
//! capabilities that override modes, since the kernel has made those checks for the caller.
//!
//! If the file system refuses for lack of space, the caller's other rights are looked up: the
//! groups (ext4 reserves blocks for a group too) and the caller's own `CAP_SYS_RESOURCE`.  The
//! server's own groups must not count, so a thread that answers requests has none.
//!
//! The files of /proc that a process may read depend on the reader's file-system user and group,
//! groups and effective capabilities.  So the server reads it as itself, whichever caller it acted
//! for before ([`as_server`]).
//!
//! A thread keeps its identity until the next change, so that one user's requests need no extra
//! system call.  Other threads of the server (replay, marks, syncs) act for themselves.

use std::cell::Cell;
use std::fs;
use std::sync::OnceLock;

use forebay::procfs;
use nix::sched::CloneFlags;
use nix::unistd::{setfsgid, setfsuid};
use rustix::fs::{Gid, Mode};
use rustix::io::Errno;
use rustix::process::{getegid, geteuid, getgroups, umask};
use rustix::thread::{
    capabilities, capabilities_secure_bits, set_capabilities, set_capabilities_secure_bits,
    set_thread_groups, CapabilitiesSecureBits, CapabilitySet,
};

use crate::tree::Result;

/// Who asks for something, as a request says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    pub uid: u32,
    pub gid: u32,
    /// His thread; 0: the kernel itself, which writes back what somebody wrote earlier, or one
    /// whose processes are not seen from here.
    pub pid: u32,
}

thread_local! {
    static CALLER: Cell<Option<Caller>> = const { Cell::new(None) };
    /// The user for whom this thread works, whether it acts as him or not.
    static FOR: Cell<u32> = const { Cell::new(0) };
    /// The thread's file-system user and group, once they are known: a thread begins with those
    /// of the thread that started it.
    static WORN: Cell<Option<(u32, u32)>> = const { Cell::new(None) };
    /// The thread, or one that started it, was prepared; `None`: nobody has asked yet.
    static PREPARED: Cell<Option<bool>> = const { Cell::new(None) };
}

/// The server's own, before its threads gave them up.
static GROUPS: OnceLock<Vec<Gid>> = OnceLock::new();

/// Until it is dropped, this thread changes the tree for that caller.
#[derive(Debug)]
pub struct Acting(());

impl Acting {
    /// `as_caller`: with the caller's rights, not the thread's own.
    pub fn of(caller: Caller, as_caller: bool) -> Acting {
        match as_caller {
            true => Acting::new(caller),
            false => Acting::as_itself(&caller),
        }
    }

    pub fn new(caller: Caller) -> Acting {
        CALLER.set(Some(caller));
        Acting::as_itself(&caller)
    }

    /// The thread changes the tree as what it is, for this caller.
    fn as_itself(caller: &Caller) -> Acting {
        FOR.set(caller.uid);
        Acting(())
    }
}

impl Drop for Acting {
    fn drop(&mut self) {
        CALLER.set(None);
        FOR.set(0);
    }
}

/// For whom this thread changes the tree.
pub fn acting() -> Option<Caller> {
    CALLER.get()
}

/// The user for whom this thread changes the tree; root's is also what nobody asked for.
pub fn user() -> u32 {
    FOR.get()
}

/// Prepares this thread, and those that it starts from now on, to answer requests.  `false`:
/// they act as what they are, since the server is not root or may not act as others, or the tree is
/// remote.
pub fn prepare(remote: bool) -> bool {
    // New files get the mode that was asked for.  The rest of the process keeps its umask.
    if nix::sched::unshare(CloneFlags::CLONE_FS).is_ok() {
        umask(Mode::empty());
    }
    geteuid().is_root() && !remote && prepare_capabilities().is_ok()
}

fn prepare_capabilities() -> Result<()> {
    let has = capabilities(None)?;
    // Who may not become another user stays root, for whom the file system checks nothing.
    if !has.effective.contains(CapabilitySet::SETUID | CapabilitySet::SETGID) {
        return Err(Errno::PERM);
    }
    let bits = capabilities_secure_bits()?;
    set_capabilities_secure_bits(bits | CapabilitiesSecureBits::NO_SETUID_FIXUP)?;
    more_space(false)?;
    let own = getgroups()?;
    GROUPS.get_or_init(|| own);
    set_thread_groups(&[])?;
    PREPARED.set(Some(true));
    Ok(())
}

/// This thread has given up what a thread that answers requests gives up.  A thread is asked first
/// while it is as it began, so one that was started by a prepared one is known by what it lacks.
fn is_prepared() -> bool {
    if let Some(known) = PREPARED.get() {
        return known;
    }
    let lacks_space =
        |has: rustix::thread::CapabilitySets| !has.effective.contains(CapabilitySet::SYS_RESOURCE);
    let prepared = getgroups().is_ok_and(|groups| groups.is_empty())
        && capabilities(None).is_ok_and(lacks_space);
    PREPARED.set(Some(prepared));
    prepared
}

/// Looks at something as the server, on a thread that may act for a caller.
pub fn as_server<R>(look: impl FnOnce() -> R) -> R {
    let Some(groups) = GROUPS.get().filter(|_| is_prepared()) else { return look() };
    // It looks as what it is where one of these changes fails.
    let worn = WORN.get();
    let with_groups = set_thread_groups(groups).is_ok();
    let _ = wear(geteuid().as_raw(), getegid().as_raw());
    let _ = more_space(true);
    let seen = look();
    let as_before = more_space(false).is_ok() && (!with_groups || set_thread_groups(&[]).is_ok());
    let as_before = as_before && worn.is_none_or(|(uid, gid)| wear(uid, gid).is_ok());
    // The server's rights are no caller's.
    assert!(as_before, "a thread cannot give up what it took a moment before");
    seen
}

/// `CAP_SYS_RESOURCE` of this thread.
fn more_space(has: bool) -> Result<()> {
    let mut sets = capabilities(None)?;
    let may = sets.permitted.contains(CapabilitySet::SYS_RESOURCE);
    sets.effective.set(CapabilitySet::SYS_RESOURCE, has && may);
    set_capabilities(None, sets)
}

/// Changes the tree for the thread's caller, if it has one.
pub fn as_caller<R>(mut change: impl FnMut() -> Result<R>) -> Result<R> {
    let Some(caller) = CALLER.get() else { return change() };
    wear(caller.uid, caller.gid)?;
    match change() {
        Err(e @ (Errno::NOSPC | Errno::DQUOT)) => match More::of(&caller) {
            Some(more) => more.with(change),
            None => Err(e),
        },
        done => done,
    }
}

fn wear(uid: u32, gid: u32) -> Result<()> {
    const ASK: u32 = u32::MAX;
    if WORN.get() == Some((uid, gid)) {
        return Ok(());
    }
    setfsgid(gid.into());
    setfsuid(uid.into());
    let worn = (setfsuid(ASK.into()).as_raw(), setfsgid(ASK.into()).as_raw());
    WORN.set(Some(worn));
    // The calls say nothing of an error, as of a number that this user namespace lacks.
    match worn == (uid, gid) {
        true => Ok(()),
        false => Err(Errno::OVERFLOW),
    }
}

/// The rights of a caller besides the user and group.
#[derive(Debug)]
enum More {
    Space,
    Groups(Vec<Gid>),
}

impl More {
    fn of(caller: &Caller) -> Option<More> {
        let Some(known) = Status::of(caller.pid) else {
            return (caller.uid == 0).then_some(More::Space);
        };
        match known.may(CapabilitySet::SYS_RESOURCE) {
            true => Some(More::Space),
            false => Some(More::Groups(known.groups)).filter(|_| caller.uid != 0),
        }
    }

    fn with<R>(self, mut change: impl FnMut() -> Result<R>) -> Result<R> {
        match self {
            More::Space => {
                more_space(true)?;
                let done = change();
                more_space(false)?;
                done
            }
            More::Groups(groups) => {
                let own = getgroups()?;
                set_thread_groups(&groups)?;
                let done = change();
                set_thread_groups(&own)?;
                done
            }
        }
    }
}

/// The data of /proc about a caller, who waits for the answer.
#[derive(Debug)]
pub struct Status {
    groups: Vec<Gid>,
    effective: u64,
    /// Capabilities in another user namespace count for nothing in this one.
    of_this_namespace: bool,
}

impl Status {
    /// `None`: the kernel itself asks, or one whose processes are not seen from here.
    pub fn of(pid: u32) -> Option<Status> {
        if pid == 0 {
            return None;
        }
        as_server(|| Status::look(pid))
    }

    fn look(pid: u32) -> Option<Status> {
        let (groups, effective) = parse(&procfs::text(format!("/proc/{pid}/status")).ok()?)?;
        let namespace = |of: &str| fs::read_link(format!("/proc/{of}/ns/user")).ok();
        let own = namespace("self");
        let of_this_namespace = own.is_some() && namespace(&pid.to_string()) == own;
        Some(Status { groups, effective, of_this_namespace })
    }

    pub fn may(&self, capability: CapabilitySet) -> bool {
        self.of_this_namespace && self.effective & capability.bits() != 0
    }

    pub fn is_in(&self, gid: u32) -> bool {
        self.groups.iter().any(|group| group.as_raw() == gid)
    }
}

/// Groups and effective capabilities.
fn parse(status: &str) -> Option<(Vec<Gid>, u64)> {
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
    let groups = field("Groups:")?.split_whitespace();
    let groups = groups.filter_map(|g| g.parse().ok()).map(Gid::from_raw).collect();
    Some((groups, u64::from_str_radix(field("CapEff:")?.trim(), 16).ok()?))
}

/// This caller has a capability, as far as can be seen.
pub fn may(caller: &Caller, capability: CapabilitySet) -> bool {
    Status::of(caller.pid).map_or(caller.uid == 0, |status| status.may(capability))
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    #[test]
    fn a_status_is_understood() {
        let text = "Name:\tx\nUid:\t1\t1\t1\t1\nGroups:\t4 27 1000 \nCapEff:\t0000000001000000\n";
        let (groups, effective) = parse(text).expect("both lines");
        assert_eq!(groups.iter().map(|g| g.as_raw()).collect::<Vec<_>>(), [4, 27, 1000]);
        assert_eq!(effective, CapabilitySet::SYS_RESOURCE.bits());
        assert!(parse("Groups:\t\n").is_none());
    }

    /// A caller whose command is not UTF-8 has the rights that it has, and not those of root.
    #[test]
    fn a_command_hides_no_rights() {
        use std::os::unix::ffi::OsStrExt as _;
        let dir = std::env::temp_dir().join(format!("fby-rights-{}", std::process::id()));
        fs::create_dir(&dir).expect("a directory");
        let program = dir.join(std::ffi::OsStr::from_bytes(b"\xff"));
        fs::copy("/bin/sleep", &program).expect("a copy");
        let mut child = std::process::Command::new(&program).arg("60").spawn().expect("sleep");
        let status = Status::of(child.id());
        child.kill().expect("a signal");
        child.wait().expect("its end");
        fs::remove_dir_all(&dir).expect("it is there");
        assert!(status.is_some());
    }

    /// Root of a user namespace of its own has each capability there, and none here.
    #[test]
    fn capabilities_of_another_user_namespace_do_not_count() {
        let own = Status::of(std::process::id()).expect("this process");
        assert_eq!(
            own.may(CapabilitySet::SYS_RESOURCE),
            own.effective & CapabilitySet::SYS_RESOURCE.bits() != 0
        );
        let mut unshare = std::process::Command::new("unshare");
        unshare.args(["--user", "--map-root-user", "sh", "-c", "echo; read line"]);
        let piped = || std::process::Stdio::piped();
        let Ok(mut child) = unshare.stdin(piped()).stdout(piped()).spawn() else {
            forebay_test::skipped!("there is no unshare(1)");
            return;
        };
        let mut began = [0];
        let began = child.stdout.as_mut().expect("piped").read_exact(&mut began).is_ok();
        let stranger = began.then(|| Status::of(child.id()));
        drop(child.stdin.take());
        child.wait().expect("its end");
        let Some(stranger) = stranger else {
            forebay_test::skipped!("this process may make no user namespace");
            return;
        };
        let stranger = stranger.expect("a process that is there");
        for capability in [CapabilitySet::SYS_RESOURCE, CapabilitySet::DAC_OVERRIDE] {
            assert_ne!(stranger.effective & capability.bits(), 0, "nothing is tested");
            assert!(!stranger.may(capability), "{capability:?}");
        }
    }

    /// A thread of its own: it stays what it becomes.
    #[test]
    fn a_change_is_made_by_its_caller() {
        if !geteuid().is_root() {
            let change = as_caller(|| Ok(geteuid().as_raw()));
            assert_eq!(change, Ok(geteuid().as_raw()), "without a caller nothing is changed");
            return;
        }
        let ids = || {
            let status = fs::read_to_string("/proc/thread-self/status").expect("of this thread");
            let last = |name: &str| {
                let line = status.lines().find_map(|l| l.strip_prefix(name)).expect("a line");
                line.split_whitespace().last().and_then(|id| id.parse::<u32>().ok()).expect("an id")
            };
            Ok((last("Uid:"), last("Gid:"), parse(&status).expect("a status").1))
        };
        let before = ids().expect("this thread's");
        std::thread::spawn(move || {
            set_thread_groups(&[Gid::from_raw(7), Gid::from_raw(4545)]).expect("groups");
            assert!(prepare(false), "root may act as others");
            let (uid, gid, own) = ids().expect("its own");
            assert_eq!((uid, gid), (0, 0));
            assert_eq!(own & CapabilitySet::SYS_RESOURCE.bits(), 0);
            assert_eq!(getgroups(), Ok(Vec::new()), "the server's groups are no caller's");
            let started = std::thread::spawn(move || (as_server(ids), ids(), getgroups())).join();
            let (server, itself, left) = started.expect("a thread that it starts");
            assert_eq!((server, itself), (Ok((0, 0, before.2)), Ok((0, 0, own))));
            assert_eq!(left, Ok(Vec::new()), "what it gave up is given up");
            let caller = Caller { uid: 4242, gid: 4343, pid: 0 };
            let acting = Acting::new(caller);
            assert_eq!(as_caller(ids), Ok((4242, 4343, own)), "modes are overridden as before");
            // Between two tries it looks into /proc, and the second one is the caller's, too.
            let mut tries = Vec::new();
            let refused = as_caller(|| {
                assert_eq!(as_server(ids), Ok((0, 0, before.2)));
                tries.push(ids()?);
                Err::<(), _>(Errno::NOSPC)
            });
            assert_eq!(refused, Err(Errno::NOSPC));
            drop(acting);
            let stranger = Caller { pid: std::process::id(), ..caller };
            let acting = Acting::new(stranger);
            let _ = as_caller(|| {
                tries.push(ids()?);
                Err::<(), _>(Errno::NOSPC)
            });
            drop(acting);
            assert!(
                tries.len() >= 2 && tries.iter().all(|(uid, gid, _)| (*uid, *gid) == (4242, 4343))
            );
            // It looks as the server, and then the thread is the caller's again.
            let groups = |ids: Vec<u32>| ids.into_iter().map(Gid::from_raw).collect::<Vec<_>>();
            assert_eq!(as_server(ids), Ok((0, 0, before.2)));
            assert_eq!(as_server(getgroups), Ok(groups(vec![7, 4545])));
            assert_eq!(getgroups(), Ok(Vec::new()));
            assert_eq!(ids().map(|(.., capabilities)| capabilities), Ok(own));
            // One who has the capability gets its use, for the second try alone.
            let root = Acting::new(Caller { uid: 0, gid: 0, pid: std::process::id() });
            let mut tries = Vec::new();
            let refused = as_caller(|| {
                tries.push(ids()?);
                Err::<(), _>(Errno::DQUOT)
            });
            assert_eq!(refused, Err(Errno::DQUOT));
            let second = (before.2 != own).then_some((0, 0, before.2));
            assert!(tries.into_iter().eq([(0, 0, own)].into_iter().chain(second)));
            assert_eq!(as_caller(ids), Ok((0, 0, own)));
            drop(root);
        })
        .join()
        .expect("the thread");
        assert_eq!(ids(), Ok(before), "another thread stays what it was");
        std::thread::spawn(move || {
            set_thread_groups(&[Gid::from_raw(9)]).expect("groups");
            let own = Ok(vec![Gid::from_raw(9)]);
            assert_eq!((as_server(ids), as_server(getgroups)), (Ok(before), own.clone()));
            assert_eq!((ids(), getgroups()), (Ok(before), own), "also when it looks as the server");
        })
        .join()
        .expect("a thread that was not prepared");
    }
}
