// SPDX-License-Identifier: MIT OR Apache-2.0
//! What this machine is known by in marks: its machine-id.  Where it has none, as in many
//! containers, a number that is made once and kept with the marks, since its name may change.
//! Where that cannot be kept, its name.
//!
//! A machine-id and a kept number are evidence, and no proof: an image is cloned with both, and
//! a directory of state may be on a file system that several machines share.  So each number,
//! machine-ids included, has a record of the machine that uses it.  Machines that differ from the
//! record by [`Traits::is`] make a number of their own, and a mark of the other number is another
//! machine's.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::content::short;
use super::keep::{state_dir, SYSTEM};

/// In a directory of state; any user may read it.  A record has the same name with a point and
/// its number behind it; the name alone has a number of which there was no record.
const FILE: &str = "host-id";

/// What tells machines apart.
#[derive(Clone, Debug, Default, PartialEq)]
struct Traits {
    /// Of the firmware or the virtual machine; only root may read it.
    product: Option<String>,
    machine: Option<String>,
    boot: Option<String>,
    name: Option<String>,
}

impl Traits {
    fn fields(&mut self) -> [(&'static str, &mut Option<String>); 4] {
        [
            ("product", &mut self.product),
            ("machine", &mut self.machine),
            ("boot", &mut self.boot),
            ("name", &mut self.name),
        ]
    }

    /// What cannot be read now, as by another user, stays.
    fn with(self, now: &Traits) -> Traits {
        Traits {
            product: now.product.clone().or(self.product),
            machine: now.machine.clone().or(self.machine),
            boot: now.boot.clone().or(self.boot),
            name: now.name.clone().or(self.name),
        }
    }

    /// Whether the machine that had these has those now.
    fn is(&self, now: &Traits) -> bool {
        let equal = |then: &Option<String>, now: &Option<String>| {
            then.as_ref().zip(now.as_ref()).map(|(then, now)| then == now)
        };
        let sure = [equal(&self.product, &now.product), equal(&self.machine, &now.machine)];
        if sure.contains(&Some(false)) {
            return false;
        }
        // A machine that has started anew with another name has nothing else to be known by.
        sure.contains(&Some(true))
            || equal(&self.boot, &now.boot) == Some(true)
            || equal(&self.name, &now.name) == Some(true)
    }
}

/// A number, and the machine that uses it.
#[derive(Clone, Debug)]
struct Record {
    number: String,
    of: Traits,
}

impl Record {
    fn path(&self, dir: &Path) -> PathBuf {
        dir.join(format!("{FILE}.{}", self.number))
    }

    fn read(path: &Path) -> Option<Record> {
        let text = std::fs::read_to_string(path).ok()?;
        let mut lines = text.lines();
        let number = number_of(lines.next()?)?;
        let mut of = Traits::default();
        for (key, value) in lines.filter_map(|line| line.split_once(' ')) {
            for (name, field) in of.fields() {
                if name == key {
                    *field = Some(value.into());
                }
            }
        }
        Some(Record { number, of })
    }

    /// Whole or not at all; `new`: only if there is none.
    fn write(&self, dir: &Path, new: bool) -> Option<()> {
        let mut text = format!("{}\n", self.number);
        for (name, value) in self.of.clone().fields() {
            if let Some(value) = value {
                text += &format!("{name} {value}\n");
            }
        }
        std::fs::create_dir_all(dir).ok()?;
        let temporary = dir.join(format!(".{FILE}.{}", random_number()?));
        let mut options = std::fs::OpenOptions::new();
        let file = options.write(true).create_new(true).mode(0o644).open(&temporary);
        let written = file.and_then(|mut file| {
            file.write_all(text.as_bytes())?;
            file.sync_all()
        });
        // A link takes the place of no other one.
        let done = written.and_then(|()| match new {
            true => std::fs::hard_link(&temporary, self.path(dir)),
            false => std::fs::rename(&temporary, self.path(dir)),
        });
        let _ = std::fs::remove_file(&temporary);
        // Marks that say a number outlive a crash.
        let kept = std::fs::File::open(dir).and_then(|dir| dir.sync_all());
        done.and(kept).ok()
    }
}

struct Places {
    machine_id: PathBuf,
    product: PathBuf,
    boot: PathBuf,
    hostname: PathBuf,
    /// The first one that has a number counts, and else the first one in which it can be kept.
    /// Numbers of the others were used before, or by a command with another environment.
    states: Vec<PathBuf>,
}

impl Places {
    fn of_system() -> Places {
        Places {
            machine_id: "/etc/machine-id".into(),
            product: "/sys/class/dmi/id/product_uuid".into(),
            boot: "/proc/sys/kernel/random/boot_id".into(),
            hostname: "/proc/sys/kernel/hostname".into(),
            states: vec![state_dir(), SYSTEM.into()],
        }
    }

    fn machine_id(&self) -> Option<String> {
        number_of(&std::fs::read_to_string(&self.machine_id).ok()?)
    }

    fn name(&self) -> String {
        short(std::fs::read_to_string(&self.hostname).unwrap_or_default().trim())
    }

    fn traits(&self) -> Traits {
        let read = |path: &Path| {
            let text = std::fs::read_to_string(path).ok()?.trim().to_lowercase();
            // Where the maker set none, it is all zeroes or all ones.
            let set = text.bytes().any(|b| !b"0-".contains(&b))
                && text.bytes().any(|b| !b"f-".contains(&b));
            set.then_some(text)
        };
        Traits {
            product: read(&self.product),
            machine: self.machine_id(),
            boot: read(&self.boot),
            name: Some(self.name()).filter(|name| !name.is_empty()),
        }
    }

    fn host(&self) -> String {
        let (now, records) = (self.traits(), self.records());
        if let Some(id) = now.machine.clone() {
            if !records.iter().any(|(_, record)| record.number == id) {
                // Where it cannot be kept, nobody has said anything else of it.
                self.claim(&id, &now);
            }
            if !self.is_others(&id, &now) {
                return id;
            }
        }
        let made = || random_number().filter(|number| self.claim(number, &now));
        self.own(&now).into_iter().next().or_else(made).unwrap_or_else(|| self.name())
    }

    /// In the first directory where it can be kept.
    fn claim(&self, number: &str, now: &Traits) -> bool {
        let record = Record { number: number.into(), of: now.clone() };
        self.states.iter().any(|dir| record.write(dir, true).is_some())
    }

    /// By directory. A number that has no record gets that of whoever reads it first.
    fn records(&self) -> Vec<(&Path, Record)> {
        let prefix = format!("{FILE}.");
        let mut records = Vec::new();
        for dir in &self.states {
            if let Some(number) = number_in(&dir.join(FILE)) {
                let record = Record { number, of: self.traits() };
                if !record.path(dir).exists() {
                    record.write(dir, true);
                }
                if !record.path(dir).exists() {
                    // It cannot be kept.
                    records.push((dir.as_path(), record));
                }
            }
            let mut names: Vec<_> = std::fs::read_dir(dir)
                .into_iter()
                .flatten()
                .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
                .filter(|name| name.strip_prefix(&prefix).and_then(number_of).is_some())
                .collect();
            names.sort();
            let read = names.iter().filter_map(|name| Record::read(&dir.join(name)));
            records.extend(read.map(|record| (dir.as_path(), record)));
        }
        records
    }

    /// Numbers that are this machine's. What is new about it is noted in their records.
    fn own(&self, now: &Traits) -> Vec<String> {
        let mut own = Vec::new();
        for (dir, r) in self.records() {
            if self.is_others(&r.number, now) {
                continue;
            }
            let newer = Record { number: r.number.clone(), of: r.of.clone().with(now) };
            if newer.of != r.of {
                newer.write(dir, false);
            }
            own.push(r.number);
        }
        own
    }

    /// Whether a record says that another machine has this number.
    fn is_others(&self, number: &str, now: &Traits) -> bool {
        self.records().iter().any(|(_, r)| r.number == number && !r.of.is(now))
    }

    fn is_this(&self, host: &str, ours: &str) -> bool {
        // Marks were set by name where there was no machine-id.
        let by_name = || self.machine_id().is_none() && host == self.name();
        host == ours || self.own(&self.traits()).iter().any(|number| host == number) || by_name()
    }
}

fn number_of(text: &str) -> Option<String> {
    let id = text.trim();
    (id.len() == 32 && id.bytes().all(|b| b.is_ascii_hexdigit())).then(|| id.into())
}

fn number_in(path: &Path) -> Option<String> {
    number_of(&std::fs::read_to_string(path).ok()?)
}

fn random_number() -> Option<String> {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/uuid").ok()?;
    Some(id.trim().replace('-', ""))
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

    /// The number is kept where the marks are, and each one that is kept is this machine's.
    #[test]
    fn a_number_is_kept_with_the_marks_and_older_ones_are_known() {
        let dir = std::env::temp_dir().join(format!("forebay-host-kept-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        let places = |state: &str, others: &str| Places {
            machine_id: dir.join("machine-id"),
            product: dir.join("product"),
            boot: dir.join("boot"),
            hostname: dir.join("hostname"),
            states: vec![dir.join(state), dir.join(others)],
        };
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("boot"), "11111111").unwrap();
        let older = places("system", "none").host();
        // As a command does that runs with FOREBAY_STATE_DIR: what is there stays in use.
        assert_eq!(places("set", "system").host(), older);
        assert!(!dir.join("set").exists());
        std::fs::remove_dir_all(dir.join("system")).unwrap();
        let newer = places("set", "system").host();
        assert!(newer != older && newer.len() == 32);
        assert!(dir.join("set").join(format!("{FILE}.{newer}")).exists());
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
        assert_eq!(left.len(), 2, "{left:?}");
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
            product: dir.join("product"),
            boot: "/proc/sys/kernel/random/boot_id".into(),
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

    /// A directory of state that another machine made, by what is other about this one; whether
    /// its number is believed.
    #[test]
    fn another_machine_has_another_number() {
        const ID: &str = "0123456789abcdef0123456789abcdef";
        const OTHER: &str = "fedcba9876543210fedcba9876543210";
        type Machine<'a> = [&'a str; 4];
        // Product, machine-id, boot, name; empty: it has none, or may not be read.
        #[rustfmt::skip]
        let table: [(&str, Machine<'_>, Machine<'_>, bool); 18] = [
            ("the same", ["p", ID, "1", "a"], ["p", ID, "1", "a"], true),
            ("the same, of another name", ["p", ID, "1", "a"], ["p", ID, "2", "b"], true),
            ("the same, without an id, rebooted", ["p", "", "1", "a"], ["p", "", "2", "a"], true),
            ("the same, without an id, of another name", ["p", "", "1", "a"], ["p", "", "1", "b"], true),
            ("the same, with nothing sure, rebooted", ["", "", "1", "a"], ["", "", "2", "a"], true),
            ("the same, with nothing sure, of another name", ["", "", "1", "a"], ["", "", "1", "b"], true),
            ("the same, as another user", ["p", ID, "1", "a"], ["", ID, "2", "a"], true),
            ("the same, that has an id now", ["p", "", "1", "a"], ["p", ID, "1", "a"], true),
            ("cloned, with its id", ["p", ID, "1", "a"], ["q", ID, "2", "a"], false),
            ("cloned, without an id", ["p", "", "1", "a"], ["q", "", "2", "a"], false),
            ("cloned, the id made anew", ["", ID, "1", "a"], ["", OTHER, "2", "a"], false),
            ("shared, each with an id", ["p", ID, "1", "a"], ["q", OTHER, "2", "b"], false),
            ("shared, without ids", ["p", "", "1", "a"], ["q", "", "2", "b"], false),
            ("shared, with nothing sure", ["", "", "1", "a"], ["", "", "2", "b"], false),
            ("shared, of one name", ["p", "", "1", "a"], ["q", "", "2", "a"], false),
            ("shared by containers of one kernel", ["p", "", "1", "a"], ["p", "", "1", "b"], true),
            ("moved into another machine", ["p", ID, "1", "a"], ["q", ID, "2", "a"], false),
            ("moved, a product that says nothing", ["00000000-0000", ID, "1", "a"], ["FFFF-FFFF", ID, "2", "b"], true),
        ];
        for (at, (what, then, now, same)) in table.into_iter().enumerate() {
            let dir = format!("forebay-host-table-{}-{at}", std::process::id());
            let dir = std::env::temp_dir().join(dir);
            let _ = std::fs::remove_dir_all(&dir);
            let machine = |name: &str, [product, id, boot, called]: Machine<'_>| {
                let of = dir.join(name);
                std::fs::create_dir_all(&of).unwrap();
                let file = |name: &str, text: &str| {
                    std::fs::write(of.join(name), text).unwrap();
                    of.join(name)
                };
                Places {
                    product: file("product", product),
                    machine_id: file("machine-id", id),
                    boot: file("boot", boot),
                    hostname: file("hostname", called),
                    states: vec![dir.join("state")],
                }
            };
            let (first, second) = (machine("first", then), machine("second", now));
            let theirs = first.host();
            assert_eq!(theirs, first.host(), "{what}");
            let ours = second.host();
            assert_eq!(second.is_this(&theirs, &ours), same, "{what}");
            // Each stays what it is, and the other is none of it.
            if !same {
                assert_eq!((first.host(), second.host()), (theirs.clone(), ours.clone()), "{what}");
            }
            assert_eq!(first.is_this(&ours, &theirs), same, "{what}");
            std::fs::remove_dir_all(dir).unwrap();
        }
    }

    /// As earlier versions kept it: the machine that reads it first has it.
    #[test]
    fn a_number_without_a_record_is_of_whoever_is_first() {
        let dir = std::env::temp_dir().join(format!("forebay-host-first-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(dir.join("state")).unwrap();
        let number = "0123456789abcdef0123456789abcdef";
        std::fs::write(dir.join("state").join(FILE), number).unwrap();
        let machine = |name: &str| {
            std::fs::write(dir.join(name), name).unwrap();
            Places {
                product: dir.join(name),
                machine_id: dir.join("none"),
                boot: dir.join(name),
                hostname: dir.join(name),
                states: vec![dir.join("state")],
            }
        };
        let (first, second) = (machine("first"), machine("second"));
        assert_eq!(first.host(), number);
        let ours = second.host();
        assert!(ours != number && !second.is_this(number, &ours) && first.host() == number);
        std::fs::remove_dir_all(dir).unwrap();
    }
}
