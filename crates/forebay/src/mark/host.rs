// SPDX-License-Identifier: MIT OR Apache-2.0
//! The id of this machine in marks: its machine-id.  If it has none, as in many containers, a
//! number that is made once and kept with the marks, since the host's name may change.  If that
//! cannot be kept, the host's name.
//!
//! An image is cloned with its machine-id, and several machines may share a directory of state.
//! So each number, machine-ids included, has a record of the machine that uses it.  A machine
//! that surely is another one ([`Traits::differ`]) makes a number of its own, and marks of the
//! first number are not its own.  Without such evidence a number counts.  A machine whose product
//! alone is another one may be the same, or a clone: that is an operator's word ([`accept`]).

use std::collections::HashSet;
use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use super::content::short;
use super::keep::{make_dir, state_dir, SYSTEM};
use crate::error::Error;
use crate::procfs;
use crate::small_file;

/// In a directory of state; any user may read it.  A record has this name with a point and its
/// number.  The name alone is a number that was kept without a record.
const FILE: &str = "host-id";

/// Evidence of which machine it is.
#[derive(Clone, Debug, Default, PartialEq)]
struct Traits {
    /// UUID of the firmware or of the virtual machine; only root may read it.
    product: Option<String>,
    machine: Option<String>,
}

impl Traits {
    /// Whether these are of two machines: both have one of the two, and not the same.
    fn differ(&self, other: &Traits) -> bool {
        let differ = |a: &Option<String>, b: &Option<String>| a.is_some() && b.is_some() && a != b;
        differ(&self.product, &other.product) || differ(&self.machine, &other.machine)
    }

    /// Known traits stay; unknown ones are filled.
    fn filled(&self, with: &Traits) -> Traits {
        Traits {
            product: self.product.clone().or_else(|| with.product.clone()),
            machine: self.machine.clone().or_else(|| with.machine.clone()),
        }
    }
}

/// A number, and the machine that uses it.
#[derive(Clone, Debug, Default, PartialEq)]
struct Record {
    number: String,
    /// The newest record has the highest one.
    turn: u64,
    of: Traits,
    /// The boot in which root wrote it.
    boot: Option<String>,
}

impl Record {
    fn path(&self, dir: &Path) -> PathBuf {
        dir.join(format!("{FILE}.{}", self.number))
    }

    fn read(path: &Path) -> Option<Record> {
        let text = small_file(path).ok()?;
        let mut lines = text.lines();
        let mut record = Record { number: number_of(lines.next()?)?, ..Record::default() };
        for (key, value) in lines.filter_map(|line| line.split_once(' ')) {
            match key {
                "turn" => record.turn = value.parse().ok()?,
                "product" => record.of.product = Some(value.into()),
                "machine" => record.of.machine = Some(value.into()),
                "boot" => record.boot = Some(value.into()),
                _ => {}
            }
        }
        Some(record)
    }

    /// Whole or not at all, and durable; `new`: only where there is none.
    fn write(&self, dir: &Path, new: bool) -> Option<()> {
        let mut text = format!("{}\nturn {}\n", self.number, self.turn);
        let rest =
            [("product", &self.of.product), ("machine", &self.of.machine), ("boot", &self.boot)];
        for (key, value) in rest.into_iter().filter_map(|(key, v)| Some((key, v.as_ref()?))) {
            text += &format!("{key} {value}\n");
        }
        if !dir.is_dir() {
            make_dir(dir).ok()?;
        }
        let temporary = dir.join(format!(".{FILE}.{}", random_number()?));
        let file =
            std::fs::OpenOptions::new().write(true).create_new(true).mode(0o644).open(&temporary);
        let written = file.and_then(|mut file| {
            file.write_all(text.as_bytes())?;
            file.set_permissions(PermissionsExt::from_mode(0o644))?;
            file.sync_all()
        });
        // A link takes the place of no other one.
        let done = written.and_then(|()| match new {
            true => std::fs::hard_link(&temporary, self.path(dir)),
            false => std::fs::rename(&temporary, self.path(dir)),
        });
        let _ = std::fs::remove_file(&temporary);
        // Marks that say a number outlive a crash.
        done.and_then(|()| std::fs::File::open(dir)?.sync_all()).ok()
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

/// The numbers of this machine, as far as its places say.
#[derive(Clone, Debug)]
struct Known {
    host: String,
    /// Marks of these are this machine's, too.
    own: HashSet<String>,
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

    fn name(&self) -> String {
        short(procfs::text(&self.hostname).unwrap_or_default().trim())
    }

    fn traits(&self) -> Traits {
        let product = || {
            let text = procfs::text(&self.product).ok()?.trim().to_lowercase();
            // It is all zeroes or all ones if the maker set none.
            let set = |unset: &[u8]| text.bytes().any(|b| !unset.contains(&b));
            (set(b"0-") && set(b"f-") && !text.contains('\n')).then_some(text)
        };
        Traits { product: product(), machine: number_in(&self.machine_id) }
    }

    /// Each with its directory. A number that has no record has nothing that is known of it.
    fn records(&self) -> Vec<(&Path, Record)> {
        let mut records: Vec<(&Path, Record)> = Vec::new();
        for (at, dir) in self.states.iter().enumerate() {
            if self.states[..at].contains(dir) {
                continue;
            }
            let entries = std::fs::read_dir(dir).into_iter().flatten();
            let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
            let prefix = format!("{FILE}.");
            let mut numbers: Vec<_> =
                names.filter_map(|name| number_of(name.strip_prefix(&prefix)?)).collect();
            numbers.sort();
            let read = |number: &String| {
                let record = Record::read(&dir.join(format!("{prefix}{number}")))?;
                (record.number == *number).then_some((dir.as_path(), record))
            };
            let alone = number_in(&dir.join(FILE)).filter(|number| !numbers.contains(number));
            let alone = alone.map(|number| Record { number, ..Record::default() });
            records.extend(alone.map(|record| (dir.as_path(), record)));
            records.extend(numbers.iter().filter_map(read));
        }
        records
    }

    fn boot_id(&self) -> Option<String> {
        Some(procfs::text(&self.boot).ok()?.trim().into())
    }

    fn known(&self) -> Known {
        let (seen, records) = (self.traits(), self.records());
        let boot = self.boot_id();
        // Who cannot read the product goes by what root wrote, best in this boot.
        let mut now = seen.clone();
        if now.product.is_none() {
            let of_this = |r: &&Record| r.of.product.is_some() && r.of.machine == now.machine;
            let by_root = records.iter().map(|(_, r)| r).filter(of_this);
            let newest = by_root.max_by_key(|r| (boot.is_some() && r.boot == boot, r.turn));
            now.product = newest.and_then(|r| r.of.product.clone());
        }
        let others: HashSet<&String> =
            records.iter().filter(|(_, r)| r.of.differ(&now)).map(|(_, r)| &r.number).collect();
        let of_own = || records.iter().filter(|(_, r)| !others.contains(&r.number));
        let turn = next_turn(&records);
        let record = |number: &str, of: Traits| Record {
            number: number.into(),
            turn,
            of,
            boot: boot.clone().filter(|_| seen.product.is_some()),
        };
        for (dir, r) in of_own() {
            let newer = record(&r.number, r.of.filled(&seen));
            if newer.of != r.of || newer.boot.is_some() && newer.boot != r.boot {
                newer.write(dir, !r.path(dir).exists());
            }
        }
        // In the first directory where it can be kept.
        let claim = |number: &str| {
            let new = record(number, seen.clone());
            self.states.iter().any(|dir| new.write(dir, true).is_some())
        };
        let made = || random_number().filter(|number| claim(number));
        let mut own: HashSet<String> = of_own().map(|(_, r)| r.number.clone()).collect();
        let host = match &now.machine {
            Some(id) if !others.contains(id) => {
                if seen.product.is_some() && !own.contains(id) {
                    // If it cannot be kept, nobody has said anything else of it.
                    claim(id);
                }
                Some(id.clone())
            }
            // Root and other users find the same one.
            Some(_) => {
                let sure = of_own().filter(|(_, r)| r.of == now);
                sure.max_by_key(|(_, r)| r.turn).map(|(_, r)| r.number.clone()).or_else(made)
            }
            None => of_own().next().map(|(_, r)| r.number.clone()).or_else(made),
        };
        let host = host.unwrap_or_else(|| self.name());
        own.insert(host.clone());
        if now.machine.is_none() {
            // Marks were set by name where there was no machine-id.
            own.insert(self.name());
        }
        Known { host, own }
    }
}

/// Why a number is not accepted as one of this machine's, and the way out.
type Refused = (String, &'static str);

impl Places {
    /// The directories and the records of a number whose machine may be this one, if its product
    /// alone is another.  `None`: there is none, or one of its records is of another machine.
    fn moved<'r>(
        &self,
        number: &str,
        records: &'r [(&'r Path, Record)],
    ) -> Option<Vec<&'r (&'r Path, Record)>> {
        let seen = self.traits();
        let other_product = |of: &Traits| of.product.is_some() && of.product != seen.product;
        let alone = |of: &Traits| !Traits { product: None, ..of.clone() }.differ(&seen);
        let of_it: Vec<_> = records.iter().filter(|(_, r)| r.number == number).collect();
        let sure = seen.product.is_some() && of_it.iter().all(|(_, r)| alone(&r.of));
        let moved: Vec<_> = of_it.into_iter().filter(|(_, r)| other_product(&r.of)).collect();
        (sure && !moved.is_empty()).then_some(moved)
    }

    fn may_be_accepted(&self, number: &str) -> bool {
        self.moved(number, &self.records()).is_some()
    }

    fn accept(&self, number: &str) -> Result<(), Refused> {
        if self.known().own.contains(number) {
            return Err(("it is this host's already".into(), "nothing is to be done"));
        }
        let seen = self.traits();
        if seen.product.is_none() {
            let cause = "the product UUID of this machine cannot be read".into();
            return Err((
                cause,
                "do this as root; a machine without one is known by its machine-id",
            ));
        }
        let records = self.records();
        let moved = self.moved(number, &records).ok_or_else(|| {
            let cause = match records.iter().find(|(_, r)| r.number == number) {
                Some(_) => "it has another machine-id, and so is another machine's".into(),
                None => format!("no file {FILE}.{number} is in the directories of marks here"),
            };
            (cause, "accept the mark of each origin (--accept-mark), if that host does not use it")
        })?;
        let (turn, boot) = (next_turn(&records), self.boot_id());
        // The number is another machine's as long as one of its records says so.
        for (dir, record) in moved {
            let of = Traits { product: seen.product.clone(), ..record.of.filled(&seen) };
            let new = Record { number: number.into(), turn, of, boot: boot.clone() };
            new.write(dir, !new.path(dir).exists()).ok_or_else(|| {
                let cause = format!("{} cannot be written", new.path(dir).display());
                (cause, "make its file system writable, or make room there, and say it again")
            })?;
        }
        match self.known().own.contains(number) {
            true => Ok(()),
            false => {
                let cause = "another process has changed its records meanwhile".into();
                Err((cause, "see forebay origin status, and say it again"))
            }
        }
    }
}

/// By order: the machine that used this number is this one, whose product alone has changed, and does
/// not go on elsewhere.  Marks of that number are this host's then, on all origins.
pub fn accept_host(number: &str) -> Result<(), Error> {
    Places::of_system().accept(number).map_err(|(cause, way_out)| Error::Usage {
        what: format!("host {number}: {cause}"),
        way_out: way_out.into(),
    })
}

/// The way out of a refusal, where one consent for all origins is enough.
pub(super) fn accept_once(host: &str) -> String {
    match Places::of_system().may_be_accepted(host) {
        true => format!(
            ". If this is the same machine with a new product UUID (a moved or restored virtual \
             machine, a new mainboard), accept its marks on all origins: forebay origin accept-host \
             {host}. Never do that on a clone"
        ),
        false => String::new(),
    }
}

/// The turn of a new record: above those of all others.
fn next_turn(records: &[(&Path, Record)]) -> u64 {
    records.iter().map(|(_, r)| r.turn).max().unwrap_or(0) + 1
}

fn number_of(text: &str) -> Option<String> {
    let id = text.trim();
    (id.len() == 32 && id.bytes().all(|b| b.is_ascii_hexdigit())).then(|| id.into())
}

fn number_in(path: &Path) -> Option<String> {
    number_of(&small_file(path).ok()?)
}

fn random_number() -> Option<String> {
    let id = procfs::text("/proc/sys/kernel/random/uuid").ok()?;
    Some(id.trim().replace('-', ""))
}

/// By directory of state, for as long as the process lives.
static KNOWN: Mutex<Option<(PathBuf, Known)>> = Mutex::new(None);

fn kept_known() -> std::sync::MutexGuard<'static, Option<(PathBuf, Known)>> {
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Looked up anew.  The host stays what it was.
fn looked_up() -> Known {
    let (dir, mut known) = (state_dir(), Places::of_system().known());
    let mut kept = kept_known();
    if let Some((_, before)) = kept.as_ref().filter(|(of, _)| *of == dir) {
        known.host.clone_from(&before.host);
    }
    kept.insert((dir, known)).1.clone()
}

/// The id of this machine.
pub(crate) fn host() -> String {
    let dir = state_dir();
    let kept = kept_known().as_ref().filter(|(of, _)| *of == dir).map(|(_, known)| known.clone());
    kept.unwrap_or_else(looked_up).host
}

/// Whether a mark of `host` is one of this machine, which is known as `ours` now.  One that would
/// be refused is looked up: another process may have made that number since.
pub(crate) fn is_this_host(host: &str, ours: &str) -> bool {
    host == ours || looked_up().own.contains(host)
}

#[cfg(test)]
impl Places {
    fn host(&self) -> String {
        self.known().host
    }

    fn is_this(&self, host: &str, ours: &str) -> bool {
        host == ours || self.known().own.contains(host)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory that several hosts share is written to by others.
    #[test]
    fn what_is_no_record_holds_nobody_up() {
        let dir = std::env::temp_dir().join(format!("forebay-host-fifo-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(dir.join("state")).unwrap();
        for name in [FILE.into(), format!("{FILE}.{}", "0".repeat(32))] {
            let fifo = dir.join("state").join(name);
            assert!(std::process::Command::new("mkfifo").arg(fifo).status().unwrap().success());
        }
        std::os::unix::fs::symlink(
            "/dev/zero",
            dir.join("state").join(format!("{FILE}.{}", "1".repeat(32))),
        )
        .unwrap();
        let none = || dir.join("none");
        let places = Places {
            machine_id: none(),
            product: none(),
            boot: none(),
            hostname: none(),
            states: vec![dir.join("state")],
        };
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || tell.send(places.host()));
        let host = told.recv_timeout(std::time::Duration::from_secs(20)).expect("it waits");
        assert_eq!(host.len(), 32);
        std::fs::remove_dir_all(&dir).unwrap();
    }

    /// The number is kept where the marks are, and each one that is kept is this machine's.
    #[test]
    fn a_number_is_kept_with_the_marks_and_older_ones_are_known() {
        let dir = std::env::temp_dir().join(format!("forebay-host-kept-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        let places = |state: &str, others: &str| Places {
            machine_id: dir.join("machine-id"),
            product: dir.join("none"),
            boot: dir.join("none"),
            hostname: dir.join("hostname"),
            states: vec![dir.join(state), dir.join(others)],
        };
        let older = places("system", "none").host();
        // A command with FOREBAY_STATE_DIR set does this: an existing id stays in use.
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
            product: dir.join("none"),
            boot: dir.join("none"),
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

    const ID: &str = "0123456789abcdef0123456789abcdef";
    const OTHER: &str = "fedcba9876543210fedcba9876543210";

    fn new_dir(name: &str) -> PathBuf {
        let dir = format!("forebay-host-{name}-{}", std::process::id());
        let dir = std::env::temp_dir().join(dir);
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        dir
    }

    /// Product, machine-id, boot, name; empty: it has none, or may not be read.
    type Machine<'a> = [&'a str; 4];

    fn machine(dir: &Path, name: &str, is: Machine<'_>, states: &[&str]) -> Places {
        let of = dir.join(name);
        std::fs::create_dir_all(&of).unwrap();
        let [product, machine_id, boot, hostname] =
            std::array::from_fn(|at| of.join(["product", "machine-id", "boot", "hostname"][at]));
        for (path, text) in [&product, &machine_id, &boot, &hostname].into_iter().zip(is) {
            std::fs::write(path, text).unwrap();
        }
        let states = states.iter().map(|state| dir.join(state)).collect();
        Places { machine_id, product, boot, hostname, states }
    }

    /// A directory of state that another machine made, by what is other about this one; whether
    /// its number is believed.
    #[test]
    fn only_a_machine_that_surely_is_another_has_another_number() {
        #[rustfmt::skip]
        let table: [(&str, Machine<'_>, Machine<'_>, bool); 20] = [
            ("the same", ["p", ID, "1", "a"], ["p", ID, "1", "a"], true),
            ("the same, of another name", ["p", ID, "1", "a"], ["p", ID, "2", "b"], true),
            ("the same, without an id, rebooted", ["p", "", "1", "a"], ["p", "", "2", "a"], true),
            ("the same, without an id, of another name", ["p", "", "1", "a"], ["p", "", "2", "b"], true),
            ("nothing sure, rebooted", ["", "", "1", "a"], ["", "", "2", "a"], true),
            ("nothing sure, of another name", ["", "", "1", "a"], ["", "", "1", "b"], true),
            ("nothing sure, all else differs", ["", "", "1", "a"], ["", "", "2", "b"], true),
            ("nothing sure on one side", ["p", "", "1", "a"], ["", "", "2", "b"], true),
            ("nothing sure on the other side", ["", "", "1", "a"], ["p", "", "2", "b"], true),
            ("nothing that both have", ["p", "", "1", "a"], ["", ID, "2", "b"], true),
            ("the same, as another user", ["p", ID, "1", "a"], ["", ID, "2", "a"], true),
            ("the same, that has an id now", ["p", "", "1", "a"], ["p", ID, "1", "a"], true),
            ("cloned, with its id", ["p", ID, "1", "a"], ["q", ID, "2", "a"], false),
            ("cloned, without an id", ["p", "", "1", "a"], ["q", "", "2", "a"], false),
            ("cloned, the id made anew", ["", ID, "1", "a"], ["", OTHER, "2", "a"], false),
            ("shared, each with an id", ["p", ID, "1", "a"], ["q", OTHER, "2", "b"], false),
            ("shared, without ids", ["p", "", "1", "a"], ["q", "", "2", "b"], false),
            ("shared by containers of one kernel", ["p", "", "1", "a"], ["p", "", "1", "b"], true),
            ("moved into another machine", ["p", ID, "1", "a"], ["q", ID, "2", "a"], false),
            ("moved, a product that says nothing", ["00000000-0000", ID, "1", "a"], ["FFFF-FFFF", ID, "2", "b"], true),
        ];
        let dir = new_dir("table");
        for (at, (what, then, now, same)) in table.into_iter().enumerate() {
            let dir = dir.join(at.to_string());
            let [first, second] = [("first", then), ("second", now)]
                .map(|(name, is)| machine(&dir, name, is, &["state"]));
            let theirs = first.host();
            assert_eq!(theirs, first.host(), "{what}");
            let ours = second.host();
            assert_eq!(second.is_this(&theirs, &ours), same, "{what}");
            // Each stays what it is, and the other is none of it.
            if !same {
                assert_eq!((first.host(), second.host()), (theirs.clone(), ours.clone()), "{what}");
                assert!(!first.is_this(&ours, &theirs), "{what}");
            }
        }
        std::fs::remove_dir_all(dir).unwrap();
    }

    /// Root reads the product and other users do not.  Who looks on which machine in which boot,
    /// and the number: the same letter for the same one.
    #[test]
    fn root_and_users_agree_about_the_number() {
        const ROOT: bool = true;
        const USER: bool = false;
        type Step = (bool, &'static str, &'static str, char);
        #[rustfmt::skip]
        let table: [(&str, &str, &[Step]); 10] = [
            ("root, user", ID, &[(ROOT, "p", "1", 'a'), (USER, "p", "1", 'a')]),
            ("user, root", ID, &[(USER, "p", "1", 'a'), (ROOT, "p", "1", 'a'), (USER, "p", "1", 'a')]),
            ("moved: root, user", ID,
                &[(ROOT, "p", "1", 'a'), (ROOT, "q", "2", 'b'), (USER, "q", "2", 'b'), (ROOT, "q", "2", 'b')]),
            ("moved: user, root", ID,
                &[(ROOT, "p", "1", 'a'), (USER, "q", "2", 'a'), (ROOT, "q", "2", 'b'), (USER, "q", "2", 'b')]),
            ("the user was first, moved: root, user", ID,
                &[(USER, "p", "1", 'a'), (ROOT, "p", "1", 'a'), (ROOT, "q", "2", 'b'), (USER, "q", "2", 'b')]),
            ("moved, rebooted: user, root", ID,
                &[(ROOT, "p", "1", 'a'), (ROOT, "q", "2", 'b'), (USER, "q", "3", 'b'), (ROOT, "q", "3", 'b')]),
            ("moved there and back", ID,
                &[(ROOT, "p", "1", 'a'), (ROOT, "q", "2", 'b'), (ROOT, "p", "3", 'a'), (USER, "p", "3", 'a'),
                    (USER, "p", "4", 'a'), (ROOT, "p", "4", 'a')]),
            ("clones that share it", ID,
                &[(ROOT, "p", "1", 'a'), (ROOT, "q", "2", 'b'), (USER, "p", "1", 'a'), (USER, "q", "2", 'b'),
                    (ROOT, "p", "1", 'a'), (USER, "q", "2", 'b')]),
            ("without an id: root, user", "", &[(ROOT, "p", "1", 'a'), (USER, "p", "1", 'a')]),
            ("without an id, moved", "",
                &[(ROOT, "p", "1", 'a'), (ROOT, "q", "2", 'b'), (USER, "q", "2", 'b'), (ROOT, "q", "2", 'b')]),
        ];
        let dir = new_dir("users");
        for (at, (what, id, steps)) in table.into_iter().enumerate() {
            let dir = dir.join(at.to_string());
            let mut numbers = std::collections::HashMap::new();
            for (step, &(root, product, boot, letter)) in steps.iter().enumerate() {
                let (product, states): (_, &[_]) =
                    if root { (product, &["system"]) } else { ("", &["home", "system"]) };
                let places = machine(&dir, "machine", [product, id, boot, "a"], states);
                let host = places.host();
                let known = numbers.entry(letter).or_insert_with(|| host.clone());
                assert_eq!(host, *known, "{what}, step {step}");
                let others = numbers.iter().filter(|(l, _)| **l != letter);
                others.for_each(|(_, n)| assert!(!places.is_this(n, &host), "{what}, step {step}"));
            }
        }
        std::fs::remove_dir_all(dir).unwrap();
    }

    /// A virtual machine that was moved has another product UUID and is the same host, if an operator
    /// says so: once, for all marks.  What surely is another machine is not accepted by that.
    #[test]
    fn a_moved_machine_is_the_same_by_one_word() {
        let dir = new_dir("moved");
        let at = |product, id| machine(&dir, "machine", [product, id, "1", "a"], &["state"]);
        let before = at("p", ID).host();
        let between = at("q", ID).host();
        assert!(before == ID && between != ID && !at("q", ID).is_this(ID, &between));
        let refused = |places: &Places, number: &str, why: &str| {
            let (cause, _) = places.accept(number).expect_err(why);
            assert!(cause.contains(why), "{cause}");
        };
        refused(&at("", ID), ID, "cannot be read");
        refused(&at("q", OTHER), ID, "another machine-id");
        refused(&at("q", ID), OTHER, "another machine-id");
        refused(&at("q", ID), &ID.replace('f', "0"), "no file host-id");
        refused(&at("q", ID), &between, "already");
        assert!(at("q", ID).may_be_accepted(ID) && !at("q", OTHER).may_be_accepted(ID));
        at("q", ID).accept(ID).unwrap();
        let moved = at("q", ID);
        assert_eq!(moved.host(), ID);
        // The marks of both numbers are its own, for other users, too; the first machine is another.
        assert!(moved.is_this(&between, ID) && moved.is_this(ID, ID) && !moved.may_be_accepted(ID));
        assert!(at("", ID).host() == ID && at("", ID).is_this(&between, ID));
        let back = at("p", ID);
        assert!(back.host() != ID && !back.is_this(ID, &back.host()));
        std::fs::remove_dir_all(dir).unwrap();
    }

    /// Several directories of state may have a record of the number, each of its own making.  An order
    /// that is said to be done is done: it is good for all of them, or refused.
    #[test]
    fn a_moved_machine_is_accepted_in_every_directory() {
        let dirs = ["user", "system"];
        // A name, the machine that each directory has a record of, and why the order is refused.
        type Row<'a> = (&'a str, [Option<Machine<'a>>; 2], Result<(), &'a str>);
        #[rustfmt::skip]
        let table: [Row<'_>; 6] = [
            ("one has it", [Some(["p", ID, "1", "a"]), None], Ok(())),
            ("the other has it", [None, Some(["p", ID, "1", "a"])], Ok(())),
            ("both have it", [Some(["p", ID, "1", "a"]), Some(["p", ID, "1", "a"])], Ok(())),
            ("of two products", [Some(["p", ID, "1", "a"]), Some(["r", ID, "1", "a"])], Ok(())),
            ("one is another machine's", [Some(["p", ID, "1", "a"]), Some(["r", OTHER, "1", "a"])], Err("another machine-id")),
            ("the first is another machine's", [Some(["r", OTHER, "1", "a"]), Some(["p", ID, "1", "a"])], Err("another machine-id")),
        ];
        let dir = new_dir("everywhere");
        for (at, (what, records, accepted)) in table.into_iter().enumerate() {
            let dir = dir.join(at.to_string());
            for (state, of) in dirs.into_iter().zip(records) {
                let Some([product, machine, ..]) = of else { continue };
                let of = Traits { product: Some(product.into()), machine: Some(machine.into()) };
                let record = Record { number: ID.into(), turn: 1, of, boot: Some("1".into()) };
                record.write(&dir.join(state), true).unwrap();
            }
            let now = machine(&dir, "machine", ["q", ID, "2", "a"], &dirs);
            let ours = now.host();
            assert!(ours != ID && !now.is_this(ID, &ours), "{what}");
            // The way out is only named where it is one.
            assert_eq!(now.may_be_accepted(ID), accepted.is_ok(), "{what}");
            match (now.accept(ID), accepted) {
                (Ok(()), Ok(())) => {
                    assert_eq!(now.host(), ID, "{what}");
                    assert!(now.is_this(ID, &ours), "{what}");
                }
                (Err((cause, _)), Err(why)) => {
                    assert!(cause.contains(why), "{what}: {cause}");
                    assert_eq!(now.host(), ours, "{what}");
                }
                (done, _) => panic!("{what}: {done:?}"),
            }
        }
        std::fs::remove_dir_all(dir).unwrap();
    }

    /// As earlier versions kept it: the machine that reads it first has it.
    #[test]
    fn a_number_without_a_record_is_of_whoever_is_first() {
        let dir = new_dir("first");
        std::fs::create_dir_all(dir.join("state")).unwrap();
        std::fs::write(dir.join("state").join(FILE), OTHER).unwrap();
        let [first, second] = ["p", "q"].map(|of| machine(&dir, of, [of, "", of, of], &["state"]));
        assert_eq!(first.host(), OTHER);
        let ours = second.host();
        assert!(ours != OTHER && !second.is_this(OTHER, &ours) && first.host() == OTHER);
        std::fs::remove_dir_all(dir).unwrap();
    }

    /// A unit's umask is 0077, say, and other users read the record that root wrote.
    #[test]
    fn all_may_read_a_record_whatever_the_umask() {
        const DIR: &str = "FOREBAY_TEST_HOST_DIR";
        if let Some(dir) = std::env::var_os(DIR) {
            machine(Path::new(&dir), "machine", ["p", ID, "1", "a"], &["state"]).host();
            return;
        }
        let dir = new_dir("umask");
        let test = "mark::host::tests::all_may_read_a_record_whatever_the_umask";
        forebay_test::run_with_umask_0077(test, DIR, &dir);
        let record = dir.join("state").join(format!("{FILE}.{ID}"));
        assert_eq!(record.metadata().unwrap().permissions().mode() & 0o777, 0o644);
        std::fs::remove_dir_all(dir).unwrap();
    }

    /// Traits that are known already cost no write.
    #[test]
    fn a_record_is_written_when_something_is_new() {
        let dir = new_dir("written");
        let inode = || {
            use std::os::unix::fs::MetadataExt;
            dir.join("state").join(format!("{FILE}.{ID}")).metadata().unwrap().ino()
        };
        let look = |product, boot| {
            assert_eq!(machine(&dir, "machine", [product, ID, boot, "a"], &["state"]).host(), ID);
            inode()
        };
        let first = look("p", "1");
        assert_eq!([look("p", "1"), look("", "2")], [first; 2]);
        // Kept open, so that the number of the inode is not used again.
        let _open = std::fs::File::open(dir.join("state").join(format!("{FILE}.{ID}"))).unwrap();
        assert!(look("p", "2") != first);
        std::fs::remove_dir_all(dir).unwrap();
    }
}
