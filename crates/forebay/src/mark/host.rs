// SPDX-License-Identifier: MIT OR Apache-2.0
//! What this machine is known by in marks: its machine-id.  Where it has none, as in many
//! containers, a number that is made once and kept, since its name may change.  Where that cannot
//! be kept, its name.

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
    /// The first one that has the number counts, and else the first one in which it can be kept.
    states: Vec<PathBuf>,
}

impl Places {
    fn of_system() -> Places {
        Places {
            machine_id: "/etc/machine-id".into(),
            hostname: "/proc/sys/kernel/hostname".into(),
            states: vec![SYSTEM.into(), state_dir()],
        }
    }

    fn machine_id(&self) -> Option<String> {
        number_in(&self.machine_id)
    }

    fn name(&self) -> String {
        short(std::fs::read_to_string(&self.hostname).unwrap_or_default().trim())
    }

    fn host(&self) -> String {
        let kept = || self.states.iter().find_map(|dir| number_in(&dir.join(FILE)));
        let made = || self.states.iter().find_map(|dir| keep_number(dir));
        self.machine_id().or_else(kept).or_else(made).unwrap_or_else(|| self.name())
    }

    fn is_this(&self, host: &str, ours: &str) -> bool {
        // Marks were set by name where there was no machine-id.
        host == ours || (self.machine_id().is_none() && host == self.name())
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
    let new = dir.join(format!(".{FILE}.{}", std::process::id()));
    let mut file = std::fs::OpenOptions::new();
    let file = file.write(true).create(true).truncate(true).mode(0o644).open(&new);
    let written = file.and_then(|mut file| {
        file.write_all(format!("{id}\n").as_bytes())?;
        file.sync_all()
    });
    // A link takes the place of no other one.
    let _ = written.and_then(|()| std::fs::hard_link(&new, dir.join(FILE)));
    let _ = std::fs::remove_file(&new);
    number_in(&dir.join(FILE))
}

/// Of this machine.
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
