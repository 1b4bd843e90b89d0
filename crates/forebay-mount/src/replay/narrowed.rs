// SPDX-License-Identifier: MIT OR Apache-2.0
//! Goal: a replay that stops shows nobody what was written when he had lost the right to read it, and
//! lets nobody run it with rights that it had lost; one that ends leaves the rights that the log has.
//! Method: a row for each thing that an entry may change about rights, on a directory of this
//! machine; the replay is stopped after the content, and then goes on.

use std::os::unix::fs::PermissionsExt;

use super::*;
use crate::record::{header, Kind, Record, Records, SetAttr, Time};
use crate::tree::{ACCESS_ACL, CAPABILITY, DEFAULT_ACL};
use crate::unix::UnixTree;

const ANY: u32 = u32::MAX;

/// An ACL of the owner, user 4242 if there is one, the group, the mask and others.
fn acl(owner: u16, user: u16, group: u16, mask: u16, other: u16) -> Vec<u8> {
    let mut bytes = 2u32.to_le_bytes().to_vec();
    let entries =
        [(1, owner, ANY), (2, user, 4242), (4, group, ANY), (16, mask, ANY), (32, other, ANY)];
    for (tag, permissions, id) in entries {
        bytes.extend([tag, permissions].iter().flat_map(|word: &u16| word.to_le_bytes()));
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

/// cap_net_raw, or another one.
fn capability(bits: u32) -> Vec<u8> {
    [0x0200_0001, bits, 0, 0, 0].iter().flat_map(|word: &u32| word.to_le_bytes()).collect()
}

enum Log {
    Mode(u32),
    Owner(u32),
    Group(u32),
    Xattr(&'static [u8], Option<Vec<u8>>),
    /// The second log follows in an entry of its own.
    Both(Box<Log>, Box<Log>),
}

impl Log {
    fn then(self, later: Log) -> Log {
        Log::Both(self.into(), later.into())
    }

    fn records(&self, fid: u64) -> Vec<Record<'_>> {
        let set = |set| vec![Record::Attr { fid, set }];
        let none = SetAttr::default();
        match self {
            Log::Mode(mode) => set(SetAttr { mode: Some(*mode), ..none }),
            Log::Owner(uid) => set(SetAttr { uid: Some(*uid), ..none }),
            Log::Group(gid) => set(SetAttr { gid: Some(*gid), ..none }),
            Log::Xattr(name, value) => vec![Record::Xattr { fid, name, value: value.as_deref() }],
            Log::Both(a, b) => [a.records(fid), b.records(fid)].concat(),
        }
    }
}

type Values = [Option<Vec<u8>>; 2];

struct Row {
    name: &'static str,
    kind: Kind,
    /// In the tree at the crash: the mode, and an extended attribute.
    mode: u32,
    xattr: Option<(&'static [u8], Vec<u8>)>,
    log: Log,
    /// The modes when the replay stops, and when it has ended.
    stopped: u32,
    ended: u32,
    /// Extended attributes when the replay stops, and when it has ended.
    then: Vec<(&'static [u8], Values)>,
    content: bool,
}

fn row(name: &'static str, mode: u32, log: Log, stopped: u32, ended: u32) -> Row {
    let (kind, xattr, then, content) = (Kind::File, None, Vec::new(), true);
    Row { name, kind, mode, xattr, log, stopped, ended, then, content }
}

impl Row {
    fn with(self, name: &'static [u8], value: Vec<u8>) -> Row {
        Row { xattr: Some((name, value)), ..self }
    }

    fn then(mut self, name: &'static [u8], values: Values) -> Row {
        self.then.push((name, values));
        self
    }

    fn directory(self) -> Row {
        Row { kind: Kind::Directory, content: false, ..self }
    }

    fn without_content(self) -> Row {
        Row { content: false, ..self }
    }
}

fn rows() -> Vec<Row> {
    use Log::*;
    let private = || acl(7, 4, 4, 4, 0);
    let public = || acl(7, 7, 7, 7, 5);
    const LABEL: &[u8] = b"security.forebay";
    let set = |name, value: Vec<u8>| Xattr(name, Some(value));
    let raw = || capability(1 << 13);
    vec![
        row("mode", 0o755, Mode(0o640), 0o740, 0o640),
        row("mode gains", 0o755, Mode(0o777), 0o755, 0o777),
        row("mode of a directory", 0o755, Mode(0o700), 0o700, 0o700).directory(),
        row("set-ID bits", 0o6755, Mode(0o755), 0o755, 0o755),
        row("set-ID bits gained", 0o755, Mode(0o6755), 0o755, 0o6755),
        row("sticky", 0o1755, Mode(0o755), 0o1755, 0o755).directory(),
        row("owner", 0o755, Owner(4242), 0o700, 0o755),
        row("group", 0o755, Group(4242), 0o700, 0o755),
        row("owner of a directory", 0o755, Owner(4242), 0o700, 0o755).directory(),
        row("group and mode", 0o2755, Group(4242).then(Mode(0o2711)), 0o2700, 0o2711).directory(),
        row("ACL", 0o755, set(ACCESS_ACL, private()), 0o700, 0o740)
            .then(ACCESS_ACL, [None, Some(private())]),
        row("ACL of a directory", 0o755, set(ACCESS_ACL, private()), 0o700, 0o740).directory(),
        row("ACL after a mode", 0o755, Mode(0o777).then(set(ACCESS_ACL, private())), 0o700, 0o740),
        row("ACL before a mode", 0o755, set(ACCESS_ACL, public()).then(Mode(0o750)), 0o700, 0o750)
            .then(ACCESS_ACL, [None, Some(acl(7, 7, 7, 5, 0))]),
        row("another ACL", 0, set(ACCESS_ACL, private()), 0o700, 0o740)
            .with(ACCESS_ACL, public())
            .then(ACCESS_ACL, [Some(acl(7, 7, 7, 0, 0)), Some(private())]),
        row("the same ACL", 0, set(ACCESS_ACL, public()), 0o775, 0o775).with(ACCESS_ACL, public()),
        row("no ACL", 0, Xattr(ACCESS_ACL, None), 0o700, 0o775)
            .with(ACCESS_ACL, public())
            .then(ACCESS_ACL, [Some(acl(7, 7, 7, 0, 0)), None]),
        row(
            "an ACL that came and went",
            0o755,
            set(ACCESS_ACL, private()).then(Xattr(ACCESS_ACL, None)),
            0o740,
            0o740,
        )
        .then(ACCESS_ACL, [None, None]),
        row("an ACL that the tree refuses", 0o755, set(ACCESS_ACL, b"none".into()), 0o700, 0o755),
        row("default ACL", 0o755, set(DEFAULT_ACL, private()), 0o755, 0o755)
            .directory()
            .then(DEFAULT_ACL, [None, Some(private())]),
        row("capability", 0o755, Xattr(CAPABILITY, None), 0o755, 0o755)
            .with(CAPABILITY, raw())
            .without_content()
            .then(CAPABILITY, [None, None]),
        row("capability gained", 0o755, set(CAPABILITY, raw()), 0o755, 0o755)
            .then(CAPABILITY, [None, Some(raw())]),
        row("another capability", 0o755, set(CAPABILITY, raw()), 0o755, 0o755)
            .with(CAPABILITY, capability(1 << 21))
            .without_content()
            .then(CAPABILITY, [None, Some(raw())]),
        row("label", 0o755, set(LABEL, b"secret".into()), 0o700, 0o755)
            .with(LABEL, b"public".into())
            .then(LABEL, [Some(b"public".into()), Some(b"secret".into())]),
        row("label and mode", 0o755, set(LABEL, b"secret".into()).then(Mode(0o711)), 0o700, 0o711),
        row("the same label", 0o755, set(LABEL, b"secret".into()), 0o755, 0o755)
            .with(LABEL, b"secret".into()),
        row("label gone", 0o755, Xattr(LABEL, None), 0o700, 0o755)
            .with(LABEL, b"public".into())
            .then(LABEL, [Some(b"public".into()), None]),
        row("no right", 0o755, set(b"user.forebay", b"x".into()), 0o755, 0o755)
            .then(b"user.forebay", [None, Some(b"x".into())]),
    ]
}

#[test]
fn rights_are_taken_before_anything_is_written() {
    if !rustix::process::geteuid().is_root() {
        return forebay_test::skipped!("needs root");
    }
    let dir = std::env::temp_dir().join(format!("forebay-narrowed-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir(&dir).unwrap();
    let tree = UnixTree::open(&dir).unwrap();
    let node = |name: &str| tree.lookup(&tree.root(), name.as_bytes()).unwrap().unwrap();
    let rows = rows();
    std::fs::write(dir.join("fails"), b"").unwrap();
    for row in &rows {
        match row.kind {
            Kind::Directory => std::fs::create_dir(dir.join(row.name)).unwrap(),
            _ => std::fs::write(dir.join(row.name), b"before").unwrap(),
        }
        let mode = std::fs::Permissions::from_mode(row.mode);
        std::fs::set_permissions(dir.join(row.name), mode).unwrap();
        if let Some((name, value)) = &row.xattr {
            tree.set_xattr(&node(row.name), name, Some(value)).unwrap();
        }
    }
    let is = tree.identity().unwrap();
    let mut records = vec![Records::of(&Record::Tree {
        file_system: is.file_system,
        root: &is.root.0,
        path: &is.path,
    })];
    let mut bind = |fid, kind, name: &str| {
        let handle = tree.handle(&node(name)).unwrap().0;
        records.push(Records::of(&Record::Bind { fid, kind, handle: &handle, path: b"" }));
    };
    bind(2, Kind::File, "fails");
    rows.iter().zip(3..).for_each(|(row, fid)| bind(fid, row.kind, row.name));
    // No file system knows it.
    let stops = Record::Xattr { fid: 2, name: b"nonsense", value: Some(b"") };
    records.push(Records::of(&stops));
    let bytes = b"secret";
    for (row, fid) in rows.iter().zip(3..) {
        if row.content {
            let mtime = Time { seconds: 1000, nanoseconds: 0 };
            let data = Record::Data { fid, offset: 0, size: 6, mtime, bytes };
            records.push(Records::of(&data));
        }
        records.extend(row.log.records(fid).iter().map(Records::of));
    }
    let entry = |(body, number): (&Records, u64)| {
        [&header(number, u64::MAX >> 2, 1)[..], body.bytes()].concat()
    };
    let log: Vec<_> = records.iter().zip(1..).map(entry).collect();
    let compared = |ended: usize| {
        let mut wrong = Vec::new();
        for row in &rows {
            let node = node(row.name);
            let attr = tree.attr(&node).unwrap();
            let mode = [row.stopped, row.ended][ended];
            if attr.mode != mode {
                wrong.push(format!("{}: mode {:o}, and not {mode:o}", row.name, attr.mode));
            }
            let owner = match (&row.log, ended) {
                (Log::Owner(uid), 1) => (*uid, 0),
                (Log::Group(gid), 1) => (0, *gid),
                (Log::Both(first, _), 1) if matches!(**first, Log::Group(_)) => (0, 4242),
                _ => (0, 0),
            };
            if (attr.uid, attr.gid) != owner {
                wrong.push(format!("{}: owner {}:{}", row.name, attr.uid, attr.gid));
            }
            for (name, values) in &row.then {
                let value = tree.xattr(&node, name).unwrap();
                if value != values[ended] {
                    wrong.push(format!("{}: {} is {value:?}", row.name, printable(name)));
                }
            }
            let written = !row.content || std::fs::read(dir.join(row.name)).unwrap() == bytes;
            assert!(written, "{}", row.name);
        }
        wrong
    };
    let stopped = replay(&tree, &log, &ReplayOptions::default(), &mut |_, _| {});
    assert!(matches!(stopped, Err(ReplayError::UnderWay { .. })), "{stopped:?}");
    assert_eq!(compared(0), Vec::<String>::new(), "when it stops");
    let accept = ReplayOptions { accept: Accept::all(), ..ReplayOptions::default() };
    let done = replay(&tree, &log, &accept, &mut |_, _| {}).unwrap();
    assert_eq!(done.left_out.len(), 2, "{:?}", done.left_out);
    assert_eq!(compared(1), Vec::<String>::new(), "when it has ended");
    std::fs::remove_dir_all(&dir).unwrap();
}

/// A directory of this machine with files; a log of one entry for each row of records.
struct Bed {
    dir: std::path::PathBuf,
    tree: UnixTree,
    bound: Vec<Vec<u8>>,
}

impl Bed {
    /// `None`: not root.
    fn new(name: &str, files: &[&str]) -> Option<Bed> {
        if !rustix::process::geteuid().is_root() {
            forebay_test::skipped!("needs root");
            return None;
        }
        let dir = std::env::temp_dir().join(format!("forebay-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir(&dir).unwrap();
        files.iter().for_each(|file| std::fs::write(dir.join(file), b"before").unwrap());
        let tree = UnixTree::open(&dir).unwrap();
        let is = tree.identity().unwrap();
        let which = Record::Tree { file_system: is.file_system, root: &is.root.0, path: &is.path };
        let mut bed = Bed { dir, tree, bound: vec![Records::of(&which).bytes().to_vec()] };
        for (file, fid) in files.iter().zip(2..) {
            let handle = bed.tree.handle(&bed.node(file)).unwrap().0;
            let bind = Record::Bind { fid, kind: Kind::File, handle: &handle, path: b"" };
            bed.bound.push(Records::of(&bind).bytes().to_vec());
        }
        Some(bed)
    }

    fn node(&self, name: &str) -> crate::unix::Node {
        self.tree.lookup(&self.tree.root(), name.as_bytes()).unwrap().unwrap()
    }

    fn set(&self, name: &str, (uid, gid, mode): (u32, u32, u32)) {
        for set in [
            SetAttr { uid: Some(uid), gid: Some(gid), ..SetAttr::default() },
            SetAttr { mode: Some(mode), ..SetAttr::default() },
        ] {
            self.tree.set_attr(&self.node(name), &set).unwrap();
        }
    }

    /// User, group, mode and capability.
    fn is(&self, name: &str) -> (u32, u32, u32, Option<Vec<u8>>) {
        let (node, tree) = (self.node(name), &self.tree);
        let is = tree.attr(&node).unwrap();
        (is.uid, is.gid, is.mode, tree.xattr(&node, CAPABILITY).unwrap())
    }

    fn log(&self, time_ns: u64, rows: &[Vec<Record<'_>>]) -> Vec<Vec<u8>> {
        let rows = rows.iter().map(|row| {
            let mut records = Records::of(&row[0]);
            row[1..].iter().for_each(|record| records.push(record));
            (row.len(), records.bytes().to_vec())
        });
        let bound = self.bound.iter().map(|body| (1, body.clone()));
        let entry = |((many, body), number): ((usize, Vec<u8>), u64)| {
            [&header(number, time_ns, many as u16)[..], &body].concat()
        };
        bound.chain(rows).zip(1..).map(entry).collect()
    }
}

/// The tree refused the whole of each operation, so all that it would have taken is there.
#[test]
fn what_is_left_out_takes_nothing() {
    let names = ["owner", "group", "mode", "capability", "label", "all"];
    let Some(bed) = Bed::new("left-out", &names) else { return };
    let before = |name: &str| match name {
        "capability" | "all" => (4242, 4242, 0o6711, Some(capability(1 << 13))),
        _ => (4242, 4242, 0o6755, None),
    };
    for name in names {
        let (uid, gid, mode, capability) = before(name);
        bed.set(name, (uid, gid, mode));
        if capability.is_some() {
            bed.tree.set_xattr(&bed.node(name), CAPABILITY, capability.as_deref()).unwrap();
        }
    }
    let records = |fid, name: &str| {
        let attr = |set| Record::Attr { fid, set };
        let xattr = |name, value| Record::Xattr { fid, name, value };
        let owner = attr(SetAttr { uid: Some(4243), ..SetAttr::default() });
        let group = attr(SetAttr { gid: Some(4243), ..SetAttr::default() });
        let mode = attr(SetAttr { mode: Some(0o600), ..SetAttr::default() });
        let mut all = match name {
            "owner" => vec![owner],
            "group" => vec![group],
            "mode" => vec![mode],
            "capability" => vec![xattr(CAPABILITY, None)],
            "label" => vec![xattr(b"security.forebay", Some(b"secret"))],
            _ => vec![owner, group, mode, xattr(CAPABILITY, None)],
        };
        // No file system knows it.
        all.push(xattr(b"nonsense", Some(b"")));
        all
    };
    let rows: Vec<_> = names.iter().zip(2..).map(|(name, fid)| records(fid, name)).collect();
    let log = bed.log(u64::MAX >> 2, &rows);
    let stopped = replay(&bed.tree, &log, &ReplayOptions::default(), &mut |_, _| {});
    assert!(matches!(stopped, Err(ReplayError::UnderWay { .. })), "{stopped:?}");
    assert_eq!(bed.is("all"), (0, 4242, 0o700, None), "they were taken");
    let accept = ReplayOptions { accept: Accept::all(), ..ReplayOptions::default() };
    let done = replay(&bed.tree, &log, &accept, &mut |_, _| {}).unwrap();
    assert_eq!(done.left_out.len(), names.len(), "{:?}", done.left_out);
    for name in names {
        assert_eq!(bed.is(name), before(name), "{name}");
    }
    std::fs::remove_dir_all(&bed.dir).unwrap();
}

/// Whether it ran with rights of its owner is what it did before the replay took any.
#[test]
fn a_touched_file_runs_with_no_right_that_it_had_not() {
    let names = ["group", "user", "same", "both"];
    let Some(bed) = Bed::new("touched", &names) else { return };
    for name in names {
        // The kernel leaves a set-group-ID bit without a group's right to run it.
        bed.set(name, (4242, 4242, 0o6705));
        let file = std::fs::File::options().write(true).open(bed.dir.join(name)).unwrap();
        file.set_modified(std::time::UNIX_EPOCH).unwrap();
    }
    let rows = ["group", "user", "same", "both"].iter().zip(2..).map(|(name, fid)| {
        let (uid, gid) = match *name {
            "group" => (None, Some(4243)),
            "user" => (Some(4243), None),
            "same" => (Some(4242), Some(4242)),
            _ => (Some(4243), Some(4243)),
        };
        let set = SetAttr { mode: Some(0o6755), uid, gid, ..SetAttr::default() };
        vec![Record::Attr { fid, set }]
    });
    // The log is older than all changes of the files.
    let log = bed.log(1_000_000_000, &rows.collect::<Vec<_>>());
    let report = replay(&bed.tree, &log, &ReplayOptions::default(), &mut |_, _| {}).unwrap();
    let modes = names.map(|name| (name, format!("{:o}", bed.is(name).2)));
    let wanted = [("group", "755"), ("user", "755"), ("same", "6755"), ("both", "755")];
    assert_eq!(modes, wanted.map(|(name, mode)| (name, mode.into())), "{report:?}");
    std::fs::remove_dir_all(&bed.dir).unwrap();
}

/// Its content stays the tree's, and so does what it may do.
#[test]
fn a_program_that_runs_keeps_its_capability() {
    let Some(bed) = Bed::new("runs", &["x"]) else { return };
    std::fs::copy("/bin/sleep", bed.dir.join("x")).unwrap();
    bed.set("x", (4242, 4242, 0o755));
    let raw = capability(1 << 13);
    bed.tree.set_xattr(&bed.node("x"), CAPABILITY, Some(&raw)).unwrap();
    let mut runs = loop {
        // Another test's child may hold the descriptor that the copy was written by.
        match std::process::Command::new(bed.dir.join("x")).arg("60").spawn() {
            Err(e) if e.kind() == std::io::ErrorKind::ExecutableFileBusy => {}
            runs => break runs.unwrap(),
        }
    };
    let (mtime, other) = (Time { seconds: 1000, nanoseconds: 0 }, capability(1 << 21));
    let log = bed.log(
        u64::MAX >> 2,
        &[
            vec![Record::Data { fid: 2, offset: 0, size: 6, mtime, bytes: b"secret" }],
            vec![Record::Xattr { fid: 2, name: CAPABILITY, value: Some(&other) }],
            vec![Record::Alive],
        ],
    );
    let report = replay(&bed.tree, &log, &ReplayOptions::default(), &mut |_, _| {}).unwrap();
    runs.kill().unwrap();
    runs.wait().unwrap();
    assert_eq!(bed.is("x"), (4242, 4242, 0o755, Some(raw)), "{report:?}");
    let told = report.in_dispute();
    assert!(told.iter().any(|line| line.contains("security.capability of the log")), "{told:?}");
    std::fs::remove_dir_all(&bed.dir).unwrap();
}
