// SPDX-License-Identifier: MIT OR Apache-2.0
//! The id of this machine in marks: its machine-id.  If it has none, as in many containers, a
//! number that is made once and kept with the marks, since the host's name may change.  If that
//! cannot be kept, the host's name.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::content::short;
use super::keep::{state_dir, SYSTEM};

/// In a directory of state; any user may read it.
const FILE: &str = "host-id";

struct Places {
    machine_id: PathBuf,
    hostname: PathBuf,
    /// The first one that has a number counts, and else the first one in which it can be kept.
    /// Numbers of the others were used before, or by a command with another environment.
    states: Vec<PathBuf>,
}

impl Places {
    fn of_system() -> Places {
        Places {
            machine_id: "/etc/machine-id".into(),
            hostname: "/proc/sys/kernel/hostname".into(),
            states: vec![state_dir(), SYSTEM.into()],
        }
    }

    fn machine_id(&self) -> Option<String> {
        number_in(&self.machine_id)
    }

    fn name(&self) -> String {
        short(std::fs::read_to_string(&self.hostname).unwrap_or_default().trim())
    }

    fn host(&self) -> String {
        let kept = || self.kept().next();
        let made = || self.states.iter().find_map(|dir| keep_number(dir));
        self.machine_id().or_else(kept).or_else(made).unwrap_or_else(|| self.name())
    }

    fn kept(&self) -> impl Iterator<Item = String> + '_ {
        self.states.iter().filter_map(|dir| number_in(&dir.join(FILE)))
    }

    fn is_this(&self, host: &str, ours: &str) -> bool {
        // Marks were set by name where there was no machine-id.
        let by_name = || self.machine_id().is_none() && host == self.name();
        host == ours || self.kept().any(|number| host == number) || by_name()
    }
}

fn number_in(path: &Path) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    let id = text.trim();
    (id.len() == 32 && id.bytes().all(|b| b.is_ascii_hexdigit())).then(|| id.into())
}

/// Makes it, unless another process was first.
fn keep_number(dir: &Path) -> Option<String> {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/uuid").ok()?;
    let id = id.trim().replace('-', "");
    std::fs::create_dir_all(dir).ok()?;
    let new = dir.join(format!(".{FILE}.{id}"));
    let file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o644).open(&new);
    let written = file.and_then(|mut file| {
        file.write_all(format!("{id}\n").as_bytes())?;
        file.sync_all()
    });
    // A link takes the place of no other one.
    let _ = written.and_then(|()| std::fs::hard_link(&new, dir.join(FILE)));
    let _ = std::fs::remove_file(&new);
    // Marks that say a number outlive a crash.
    std::fs::File::open(dir).and_then(|dir| dir.sync_all()).ok()?;
    number_in(&dir.join(FILE))
}

/// The id of this machine.
pub(crate) fn host() -> String {
    Places::of_system().host()
}

/// Whether a mark of `host` is one of this machine, which is known as `ours` now.
pub(crate) fn is_this_host(host: &str, ours: &str) -> bool {
    host == ours || Places::of_system().is_this(host, ours)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number is kept where the marks are, and each one that is kept is this machine's.
    #[test]
    fn a_number_is_kept_with_the_marks_and_older_ones_are_known() {
        let dir = std::env::temp_dir().join(format!("forebay-host-kept-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        let places = |state: &str, others: &str| Places {
            machine_id: dir.join("machine-id"),
            hostname: dir.join("hostname"),
            states: vec![dir.join(state), dir.join(others)],
        };
        let older = places("system", "none").host();
        // A command with FOREBAY_STATE_DIR set does this: an existing id stays in use.
        assert_eq!(places("set", "system").host(), older);
        assert!(!dir.join("set").join(FILE).exists());
        std::fs::remove_dir_all(dir.join("system")).unwrap();
        let newer = places("set", "system").host();
        assert!(newer != older && newer.len() == 32);
        assert_eq!(number_in(&dir.join("set").join(FILE)), Some(newer.clone()));
        assert!(!dir.join("system").exists(), "made elsewhere than where the marks are");
        std::fs::create_dir_all(dir.join("system")).unwrap();
        std::fs::write(dir.join("system").join(FILE), &older).unwrap();
        let both = places("set", "system");
        assert_eq!(both.host(), newer);
        assert!(both.is_this(&older, &newer) && both.is_this(&newer, &newer));
        std::fs::write(&both.machine_id, "0123456789abcdef0123456789abcdef").unwrap();
        assert!(both.is_this(&older, &both.host()), "a number from before the machine had an id");
        assert!(!both.is_this(&older.replace(&older[..8], "00000000"), &both.host()));
        let left: Vec<_> = std::fs::read_dir(dir.join("set")).unwrap().collect();
        assert_eq!(left.len(), 1, "{left:?}");
        std::fs::remove_dir_all(dir).unwrap();
    }

    /// As by default for root, where both are one.
    #[test]
    fn places_of_the_system_begin_where_the_marks_are() {
        let places = Places::of_system();
        assert_eq!(places.states, [state_dir(), SYSTEM.into()]);
    }

    #[test]
    fn a_machine_without_an_id_stays_the_same_when_it_gets_another_name() {
        let dir = std::env::temp_dir().join(format!("forebay-host-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        let places = Places {
            machine_id: dir.join("machine-id"),
            hostname: dir.join("hostname"),
            states: vec!["/proc/no/such".into(), dir.join("state")],
        };
        let call_it = |name: &str| std::fs::write(&places.hostname, format!("{name}\n")).unwrap();
        call_it("one");
        let id = places.host();
        assert!(id != "one" && id.len() == 32, "{id}");
        assert!(places.is_this("one", &id), "a mark that was set before there was a number");
        call_it("other");
        assert_eq!(places.host(), id);
        assert!(places.is_this(&id, &places.host()));
        assert!(!places.is_this("one", &id) && !places.is_this(&id.replace(&id[..4], "0000"), &id));
        let nowhere = Places { states: vec!["/proc/no/such".into()], ..places };
        assert_eq!(nowhere.host(), "other");
        let theirs = "0123456789abcdef0123456789abcdef";
        std::fs::write(&nowhere.machine_id, theirs).unwrap();
        assert_eq!(nowhere.host(), theirs);
        assert!(!nowhere.is_this("other", theirs), "a machine that has an id is known by it");
        std::fs::remove_dir_all(dir).unwrap();
    }
}
