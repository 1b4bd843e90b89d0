// SPDX-License-Identifier: MIT OR Apache-2.0
//! Talking to the kernel module: lines of text written to its control device,
//! whose answer is then read (kernel/native.c).

use std::collections::BTreeMap;
use std::fmt;
use std::fs::OpenOptions;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use forebay::procfs::{self, Mount};
use forebay::Error as Lib;
use rustix::fs::makedev;
use rustix::io::Errno;

const CONTROL: &str = "/dev/forebay-control";
/// More bytes than the module ever answers: it sends a line of less than 4 KiB for each device.
const ANSWER_MAX: u64 = 256 << 20;

/// The channel for orders and answers; tests have their own.
pub trait Control {
    /// The whole answer to a line.
    fn ask(&self, line: &str) -> io::Result<String>;
}

/// The module's device.  Tests name another file.
pub struct Device(PathBuf);

impl Device {
    pub fn new() -> Device {
        let set = std::env::var_os("FOREBAY_CONTROL").filter(|v| !v.is_empty());
        Device(set.map_or_else(|| CONTROL.into(), Into::into))
    }
}

impl Control for Device {
    /// Opens the device for each line, so that answers are not mixed up.
    fn ask(&self, line: &str) -> io::Result<String> {
        let mut file = OpenOptions::new().read(true).write(true).open(&self.0)?;
        // The module takes a line only in one write.
        let line = format!("{line}\n");
        let n = file.write(line.as_bytes())?;
        if n != line.len() {
            return Err(io::Error::new(io::ErrorKind::WriteZero, "the line was taken in part"));
        }
        let mut answer = String::new();
        file.take(ANSWER_MAX).read_to_string(&mut answer)?;
        if answer.len() as u64 == ANSWER_MAX {
            return Err(io::Error::other("its answer does not end"));
        }
        Ok(answer)
    }
}

// --- errors ------------------------------------------------------------------

/// An error of the module, or of the way to it.
#[derive(Debug)]
pub struct Error {
    /// The order and its object.
    what: String,
    cause: String,
    way_out: String,
    errno: Option<Errno>,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.cause)?;
        match self.way_out.is_empty() {
            true => Ok(()),
            false => write!(f, "; {}", self.way_out),
        }
    }
}

impl std::error::Error for Error {}

impl Error {
    pub fn new(
        what: &str,
        cause: impl Into<String>,
        way_out: impl Into<String>,
        errno: Errno,
    ) -> Error {
        Error {
            what: what.into(),
            cause: cause.into(),
            way_out: way_out.into(),
            errno: Some(errno),
        }
    }

    pub fn errno(&self) -> Option<Errno> {
        self.errno
    }

    /// Returns the error with another subject.
    pub fn named(mut self, what: &str) -> Error {
        self.what = what.into();
        self
    }

    pub fn or_do(mut self, way_out: impl Into<String>) -> Error {
        self.way_out = way_out.into();
        self
    }

    pub fn exit_code(&self) -> u8 {
        match self.errno {
            Some(Errno::INVAL | Errno::TOOBIG | Errno::OVERFLOW) => 2,
            Some(Errno::NOENT | Errno::NODEV | Errno::NXIO | Errno::NOTBLK) => 3,
            Some(Errno::BUSY) => 4,
            Some(Errno::BADMSG | Errno::UCLEAN) => 5,
            Some(Errno::STALE) => 6,
            Some(Errno::IO | Errno::TIMEDOUT | Errno::NOLINK) => 7,
            Some(Errno::NOSPC) => 8,
            Some(Errno::PERM | Errno::ACCESS | Errno::ROFS) => 9,
            Some(Errno::OPNOTSUPP | Errno::NOSYS) => 10,
            Some(Errno::NODATA) => 11,
            Some(Errno::EXIST) => 12,
            Some(Errno::INTR) => 13,
            _ => 1,
        }
    }

    /// Makes the error if the control device does not answer.
    fn unreachable(what: &str, error: &io::Error) -> Error {
        let errno = error.raw_os_error().map(Errno::from_raw_os_error);
        let (cause, way_out, errno) = match errno {
            Some(Errno::NOENT | Errno::NODEV | Errno::NXIO) => (
                format!("{CONTROL} is not there: the kernel module is not loaded"),
                "modprobe forebay, or install it: the package forebay-dkms, or docs/manual/kernel.md",
                Some(Errno::NOSYS),
            ),
            Some(Errno::PERM | Errno::ACCESS) => (
                format!("{CONTROL}: permission denied"),
                "run as root: it takes the capability CAP_SYS_ADMIN",
                errno,
            ),
            Some(Errno::TOOBIG) => {
                ("names and options are longer than the module takes".into(), "shorten them", errno)
            }
            _ => (format!("{CONTROL}: {error}"), "see the kernel's log (dmesg)", errno),
        };
        Error { what: what.into(), cause, way_out: way_out.into(), errno }
    }

    /// From "error NUMBER TEXT".
    fn answered(what: &str, number: i32, text: &str) -> Error {
        let errno = Errno::from_raw_os_error(number);
        let cause = match text {
            "" => errno.to_string(),
            text => lower_first(text),
        };
        // Most of the module's texts state the way out themselves.
        let way_out = match errno {
            _ if text.contains(':') || text.contains("; ") => "",
            Errno::NOENT => "forebay volume list and lsblk show what there is",
            Errno::NOMEM => "free memory, or attach with fewer --jobs or --slots",
            Errno::BADMSG | Errno::NODATA => "forebay check names what is damaged",
            Errno::INVAL => "forebay attach --help has each option",
            Errno::INTR => "what is cached stays safe in the pool; try again",
            Errno::IO => "see the kernel's log (dmesg) for the device that fails",
            Errno::OPNOTSUPP => "use a newer version of Forebay",
            Errno::BUSY => "forebay list, dmsetup ls and lsblk show what uses it",
            _ => "see the kernel's log (dmesg)",
        };
        Error { what: what.into(), cause, way_out: way_out.into(), errno: Some(errno) }
    }

    fn nonsense(what: &str, answer: &str) -> Error {
        let answer: String = answer.chars().take(200).collect();
        Error {
            what: what.into(),
            cause: format!("the module's answer is not understood: {answer:?}"),
            way_out: "use command and module of the same version".into(),
            errno: None,
        }
    }
}

fn lower_first(text: &str) -> String {
    let mut chars = text.chars();
    match chars.next() {
        Some(c) => c.to_lowercase().chain(chars).collect(),
        None => String::new(),
    }
}

// --- commands ----------------------------------------------------------------

/// Sends a line; returns the answer's text after "ok".  `what` is the subject in errors.
pub fn ask(control: &dyn Control, what: &str, line: &str) -> Result<String, Error> {
    let answer = control.ask(line).map_err(|e| Error::unreachable(what, &e))?;
    let answer = answer.trim_end_matches('\n');
    let (word, rest) = answer.split_once([' ', '\n']).unwrap_or((answer, ""));
    match word {
        "ok" => Ok(rest.into()),
        "error" => match rest.split_once(' ').unwrap_or((rest, "")) {
            (number, text) if number.parse::<i32>().is_ok_and(|n| n > 0) => {
                Err(Error::answered(what, number.parse().unwrap_or_default(), text))
            }
            _ => Err(Error::nonsense(what, answer)),
        },
        _ => Err(Error::nonsense(what, answer)),
    }
}

/// A device as the module lists it.
#[derive(Clone, Debug, PartialEq)]
pub struct Listed {
    /// forebayN
    pub device: String,
    /// MAJOR:MINOR of the cache device
    pub cache: String,
    /// The origin's name in /dev
    pub origin: String,
    pub volume: String,
    /// A switch has no value.
    pub options: BTreeMap<String, Option<String>>,
}

/// Options without a value.
const SWITCHES: &[&str] =
    &["origin_by_name", "cleaner", "metadata_only", "flush_on_suspend", "nofua"];

pub fn list(control: &dyn Control) -> Result<Vec<Listed>, Error> {
    let what = "list of devices";
    let answer = ask(control, what, "list")?;
    let lines = answer.lines().filter(|line| !line.is_empty());
    lines.map(|line| listed(line).ok_or_else(|| Error::nonsense(what, line))).collect()
}

fn listed(line: &str) -> Option<Listed> {
    let mut words = line.split_whitespace().map(str::to_string);
    let mut one = Listed {
        device: words.next()?,
        cache: words.next()?,
        origin: words.next()?,
        volume: words.next()?,
        options: BTreeMap::new(),
    };
    let mut left: usize = words.next()?.parse().ok()?;
    while left > 0 {
        let name = words.next()?;
        let value = match SWITCHES.contains(&name.as_str()) {
            true => None,
            false => Some(words.next()?),
        };
        left = left.checked_sub(1 + usize::from(value.is_some()))?;
        one.options.insert(name, value);
    }
    words.next().is_none().then_some(one)
}

/// State and counters of a device.
#[derive(Debug, PartialEq)]
pub struct Status {
    pub state: String,
    pub fields: BTreeMap<String, String>,
}

impl Status {
    pub fn number(&self, name: &str) -> Option<u64> {
        self.fields.get(name)?.parse().ok()
    }
}

pub fn status(control: &dyn Control, device: &str) -> Result<Status, Error> {
    let answer = ask(control, device, &format!("status {device}"))?;
    let mut words = answer.split_whitespace();
    let state = words.next().ok_or_else(|| Error::nonsense(device, &answer))?.to_string();
    let fields = words.filter_map(|w| w.split_once('=')).map(|(k, v)| (k.into(), v.into()));
    Ok(Status { state, fields: fields.collect() })
}

// --- devices of the system ---------------------------------------------------

/// "MAJOR:MINOR" of a block device, which the module understands whatever the
/// path is called.
pub fn device_number(path: &Path, way_out: &str) -> Result<String, Lib> {
    use rustix::fs::FileType;
    let st = rustix::fs::stat(path).map_err(|e| match e {
        Errno::NOENT => Lib::NotFound { path: path.into(), way_out: "check the path".into() },
        e => Lib::Io {
            path: path.into(),
            doing: "looking at it",
            source: e.into(),
            way_out: "check the path".into(),
        },
    })?;
    let kind = match FileType::from_raw_mode(st.st_mode) {
        FileType::BlockDevice => {
            let (major, minor) = (rustix::fs::major(st.st_rdev), rustix::fs::minor(st.st_rdev));
            return Ok(format!("{major}:{minor}"));
        }
        FileType::RegularFile => "a regular file",
        FileType::Directory => "a directory",
        FileType::CharacterDevice => "a character device",
        _ => "no block device",
    };
    Err(Lib::Unsuitable { path: path.into(), what: kind.into(), way_out: way_out.into() })
}

/// The path in /dev of a device number, if sysfs has it.
pub fn device_path(number: &str) -> String {
    std::fs::read_link(format!("/sys/dev/block/{number}"))
        .ok()
        .and_then(|link| Some(link.file_name()?.to_str()?.replace('!', "/")))
        .map_or_else(|| number.to_string(), |name| format!("/dev/{name}"))
}

/// Size of a device by its name in /sys/block.
pub fn size_bytes(device: &str) -> Option<u64> {
    let sectors = procfs::text(format!("/sys/block/{device}/size")).ok()?;
    Some(sectors.trim().parse::<u64>().ok()? * 512)
}

/// The users of a device, if known: its mount points, and devices on top of it.
pub fn users(device: &str) -> Option<String> {
    let sys = Path::new("/sys/block").join(device);
    let number = procfs::text(sys.join("dev")).unwrap_or_default();
    let mounts = procfs::mounts().unwrap_or_default();
    let holders = std::fs::read_dir(sys.join("holders")).into_iter().flatten().flatten();
    let on = holders.map(|h| format!("part of {}", h.file_name().to_string_lossy()));
    let mounted = mounted(&mounts, number.trim()).map(|at| format!("mounted on {}", at.display()));
    let all: Vec<_> = mounted.chain(on).collect();
    (!all.is_empty()).then(|| format!("it is {}", all.join(", ")))
}

/// The mountpoints of the device with this number (`major:minor`).
fn mounted<'a>(mounts: &'a [Mount], number: &str) -> impl Iterator<Item = &'a Path> {
    let number = number.split_once(':');
    let device = number.and_then(|(a, b)| Some(makedev(a.parse().ok()?, b.parse().ok()?)));
    mounts.iter().filter(move |mount| device == Some(mount.device)).map(|mount| mount.at.as_path())
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use std::cell::RefCell;

    /// Answers by a script of (line, answer), in this order.  An answer that is a number is an
    /// errno of the call.
    pub struct Script(RefCell<Vec<(String, String)>>);

    impl Script {
        pub fn new(lines: &[(&str, &str)]) -> Script {
            let lines = lines.iter().rev().map(|(l, a)| (l.to_string(), a.to_string()));
            Script(RefCell::new(lines.collect()))
        }

        pub fn is_done(&self) -> bool {
            self.0.borrow().is_empty()
        }
    }

    impl Control for Script {
        fn ask(&self, line: &str) -> io::Result<String> {
            let next = self.0.borrow_mut().pop();
            let (wanted, answer) = next.unwrap_or_else(|| panic!("asked too much: {line}"));
            assert_eq!(line, wanted);
            match answer.parse() {
                Ok(errno) => Err(io::Error::from_raw_os_error(errno)),
                Err(_) => Ok(answer),
            }
        }
    }

    fn failed(answer: &str) -> Error {
        ask(&Script::new(&[("x", answer)]), "volume v", "x").unwrap_err()
    }

    #[test]
    fn answers() {
        let ok = |answer| ask(&Script::new(&[("x", answer)]), "w", "x").unwrap();
        assert_eq!(ok("ok\n"), "");
        assert_eq!(ok("ok forebay0\n"), "forebay0");
        assert_eq!(ok("ok\na b\nc d\n"), "a b\nc d");
    }

    #[test]
    fn errors_name_cause_and_way_out() {
        for (answer, code, words) in [
            ("2", 10, "volume v: /dev/forebay-control is not there: the kernel module is not loaded; modprobe forebay"),
            ("6", 10, "not loaded"),
            ("1", 9, "permission denied; run as root"),
            ("13", 9, "permission denied; run as root"),
            ("5", 7, "see the kernel's log"),
            ("error 16 The cache device is in use: unmount it\n", 4, "volume v: the cache device is in use: unmount it"),
            ("error 16 \n", 4, "forebay list"),
            ("error 2 no such volume\n", 3, "no such volume; forebay volume list"),
            ("error 116 The origin is not the one\n", 6, "the origin is not the one; see"),
            ("error 74 damaged\n", 5, "damaged; forebay check"),
            ("error 4 The command failed\n", 13, "try again"),
            ("error 61 The newest data of some blocks is lost\n", 11, "is lost; "),
            ("error 22 Unknown option, or its value is missing\n", 2, "unknown option"),
            ("error\n", 1, "not understood"),
            ("error zero x\n", 1, "not understood"),
            ("error -5 x\n", 1, "not understood"),
            ("frob\n", 1, "not understood: \"frob\"; use command and module of the same"),
            ("\n", 1, "not understood"),
        ] {
            let error = failed(answer);
            assert_eq!(error.exit_code(), code, "{answer}: {error}");
            assert!(error.to_string().contains(words), "{answer}: {error}");
        }
    }

    const LINE: &str =
        "forebay0 259:0 sdb data 17 high_watermark 60 low_watermark 50 max_age 1000 idle 0 \
        verify always checksums on writeback_jobs 16 slots 2 cleaner";

    #[test]
    fn lists() {
        let answer = format!("ok\n{LINE}\nforebay1 259:0 ram0 v.2 0\n");
        let all = list(&Script::new(&[("list", &answer)])).unwrap();
        assert_eq!(all.len(), 2);
        assert_eq!((&all[0].device[..], &all[0].volume[..]), ("forebay0", "data"));
        assert_eq!((&all[0].cache[..], &all[0].origin[..]), ("259:0", "sdb"));
        assert_eq!(all[0].options.len(), 9);
        assert_eq!(all[0].options["cleaner"], None);
        assert_eq!(all[0].options["max_age"].as_deref(), Some("1000"));
        assert!(all[1].options.is_empty());
        assert!(list(&Script::new(&[("list", "ok\n")])).unwrap().is_empty());
    }

    /// The program knows each option that the module lists without a value.  Otherwise it would
    /// take the next word for the value.
    #[test]
    fn switches_are_those_of_the_module() {
        let emitted = include_str!("../../../kernel/setup.c").split("EMIT(\" ").skip(1);
        let emitted = emitted.map(|text| text.split('"').next().unwrap_or_default());
        let switches: Vec<_> =
            emitted.filter(|text| !text.contains(' ') && !text.contains('=')).collect();
        assert_eq!(switches, SWITCHES);
        let options = format!("{} {}", SWITCHES.len() + 2, SWITCHES.join(" "));
        let line = format!("ok\nforebay0 259:0 sdb data {options} max_age 5\n");
        let all = list(&Script::new(&[("list", &line)])).unwrap();
        assert_eq!(all[0].options.len(), SWITCHES.len() + 1);
        assert_eq!(all[0].options["max_age"].as_deref(), Some("5"));
    }

    #[test]
    fn what_is_no_list_is_refused() {
        let long = format!("{LINE} more");
        for line in
            ["forebay0", "forebay0 1:2 a b", "f 1:2 a b 2 max_age", "f 1:2 a b 1 max_age 3", &long]
        {
            let answer = format!("ok\n{line}\n");
            let error = list(&Script::new(&[("list", &answer)])).unwrap_err();
            assert!(error.to_string().contains("not understood"), "{line}: {error}");
        }
    }

    #[test]
    fn statuses() {
        let script =
            [("status forebay0", "ok origin_failed pool=u volume=v pages=12 last_error=5\n")];
        let status = status(&Script::new(&script), "forebay0").unwrap();
        assert_eq!(status.state, "origin_failed");
        assert_eq!(status.number("pages"), Some(12));
        assert_eq!(status.number("pool"), None);
        assert_eq!(status.fields["pool"], "u");
    }

    #[test]
    fn mounts() {
        let info = b"25 1 254:0 / / rw - ext4 /dev/vda rw\n26 25 254:1 / /srv rw - xfs /dev/x rw\n";
        let info = procfs::mounts_in(info);
        assert_eq!(mounted(&info, "254:1").collect::<Vec<_>>(), [Path::new("/srv")]);
        assert_eq!(mounted(&info, "254:2").count() + mounted(&info, "").count(), 0);
    }

    #[test]
    fn only_block_devices_have_numbers() {
        let error = device_number(Path::new("/dev/null"), "take another").unwrap_err();
        assert!(error.to_string().contains("a character device; take another"), "{error}");
        let error = device_number(Path::new("/nowhere/at/all"), "").unwrap_err();
        assert_eq!(error.exit_code(), 3, "{error}");
    }
}
