// SPDX-License-Identifier: MIT OR Apache-2.0
//! Goal: whatever is wrong with what the command is given, it exits with the documented code, says
//! what is wrong with what and how to go on, and changes nothing.  Method: a table.  Each row
//! prepares a directory, runs the command there, and names the exit code and words of the message.
//! All files of the directory are compared before and after.

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{symlink, PermissionsExt};

use common::{crc32c, Bench};

struct Case {
    name: &'static str,
    prepare: fn(&Bench),
    /// The command line, which is split at spaces.
    command: &'static str,
    code: i32,
    /// Texts that must all be in the message.
    says: &'static [&'static str],
}

const NOTHING: fn(&Bench) = |_| {};
const POOL: fn(&Bench) = |b| b.make_pool();
const VOLUME: fn(&Bench) = |b| b.make_volume();

const SUPERBLOCK_BYTES: usize = 512;
const COPY_AT: usize = 4096;

/// Changes both superblocks, checksum included.
fn edit_superblocks(b: &Bench, edit: fn(&mut [u8])) {
    b.edit("pool", |bytes| {
        for at in [0, COPY_AT] {
            let sb = &mut bytes[at..at + SUPERBLOCK_BYTES];
            edit(sb);
            let crc = crc32c(&sb[..SUPERBLOCK_BYTES - 4]);
            sb[SUPERBLOCK_BYTES - 4..].copy_from_slice(&crc.to_le_bytes());
        }
    });
}

const CASES: &[Case] = &[
    // --- create ---
    Case {
        name: "create: no size for a new file",
        prepare: NOTHING,
        command: "create pool",
        code: 2,
        says: &["pool", "--size"],
    },
    Case {
        name: "create: a size that is none",
        prepare: NOTHING,
        command: "create pool --size 12Q",
        code: 2,
        says: &["12Q", "not a size"],
    },
    Case {
        name: "create: too small",
        prepare: NOTHING,
        command: "create pool --size 1M",
        code: 8,
        says: &["pool", "too small", "at least"],
    },
    Case {
        name: "create: chunk size not a power of two",
        prepare: NOTHING,
        command: "create pool --size 64M --chunk-size 96K",
        code: 2,
        says: &["power of two"],
    },
    Case {
        name: "create: more volumes than possible",
        prepare: NOTHING,
        command: "create pool --size 64M --volumes 65",
        code: 2,
        says: &["65"],
    },
    Case {
        name: "create: disk full",
        prepare: NOTHING,
        command: "create pool --size 4096T",
        code: 8,
        says: &["pool", "no space"],
    },
    Case {
        name: "create: in a directory that does not exist",
        prepare: NOTHING,
        command: "create no/pool --size 16M",
        code: 3,
        says: &["no", "directory"],
    },
    Case {
        name: "create: on a directory",
        prepare: |b| fs::create_dir(b.path("pool")).unwrap(),
        command: "create pool --size 16M",
        code: 2,
        says: &["pool", "directory"],
    },
    Case {
        name: "create: on a symbolic link to something else",
        prepare: |b| {
            b.write("target", &[7; 16 << 20]);
            symlink("target", b.path("pool")).unwrap();
        },
        command: "create pool",
        code: 12,
        says: &["pool", "nothing was written", "--force"],
    },
    Case {
        name: "create: on a symbolic link to nothing",
        prepare: |b| symlink("target", b.path("pool")).unwrap(),
        command: "create pool --size 16M",
        code: 3,
        says: &["pool", "no such file"],
    },
    Case {
        name: "status: a symbolic link to itself",
        prepare: |b| symlink("pool", b.path("pool")).unwrap(),
        command: "status pool",
        code: 2,
        says: &["pool", "symbolic link that leads nowhere"],
    },
    Case {
        name: "create: on a character device that is no memory",
        prepare: NOTHING,
        command: "create /dev/null --size 16M",
        code: 2,
        says: &["/dev/null"],
    },
    Case {
        name: "create: over a pool without --force",
        prepare: VOLUME,
        command: "create pool",
        code: 12,
        says: &["pool", "a Forebay pool", "nothing was written", "--force"],
    },
    Case {
        name: "create: over a pool with both superblocks damaged, without --force",
        prepare: |b| {
            b.make_volume();
            b.edit("pool", |bytes| {
                bytes[100] ^= 1;
                bytes[COPY_AT + 100] ^= 1;
            });
        },
        command: "create pool",
        code: 12,
        says: &["damaged Forebay pool", "--force"],
    },
    Case {
        name: "create: over a pool whose superblocks were zeroed, without --force",
        prepare: |b| {
            b.make_volume();
            b.edit("pool", |bytes| bytes[..2 * COPY_AT].fill(0));
        },
        command: "create pool",
        code: 12,
        says: &["pool", "--force"],
    },
    Case {
        name: "create: over other data without --force",
        prepare: |b| {
            let mut bytes = vec![0; 16 << 20];
            bytes[1080] = 0x53;
            bytes[1081] = 0xef;
            b.write("pool", &bytes);
        },
        command: "create pool",
        code: 12,
        says: &["pool", "ext", "--force"],
    },
    Case {
        name: "create: persist method that does not exist",
        prepare: NOTHING,
        command: "create pool --size 16M --persist fsync",
        code: 2,
        says: &["fsync", "auto, nt, clwb, eadr or msync"],
    },
    Case {
        name: "create: copy kernel that does not exist",
        prepare: NOTHING,
        command: "create pool --size 16M --kernel mmx",
        code: 2,
        says: &["mmx", "sse2"],
    },
    // --- volumes ---
    Case {
        name: "volume add: no such pool",
        prepare: |b| b.write("origin", &[0; 1 << 20]),
        command: "volume add pool v origin",
        code: 3,
        says: &["pool", "no such file"],
    },
    Case {
        name: "volume add: no such origin",
        prepare: POOL,
        command: "volume add pool v origin",
        code: 3,
        says: &["origin", "no such file"],
    },
    Case {
        name: "volume add: the origin is a directory",
        prepare: |b| {
            b.make_pool();
            fs::create_dir(b.path("origin")).unwrap();
        },
        command: "volume add pool v origin",
        code: 2,
        says: &["origin", "directory"],
    },
    Case {
        name: "volume add: empty origin",
        prepare: |b| {
            b.make_pool();
            b.write("origin", &[]);
        },
        command: "volume add pool v origin",
        code: 6,
        says: &["origin", "empty", "truncate"],
    },
    Case {
        name: "volume add: a name that exists",
        prepare: |b| {
            b.make_volume();
            b.write("other", &[0; 1 << 20]);
        },
        command: "volume add pool v other",
        code: 2,
        says: &["volume v"],
    },
    Case {
        name: "volume add: an origin that is another volume's",
        prepare: VOLUME,
        command: "volume add pool w origin",
        code: 2,
        says: &["volume w", "already that of volume v"],
    },
    Case {
        name: "volume add: the pool as its own origin",
        prepare: POOL,
        command: "volume add pool w pool",
        code: 2,
        says: &["pool", "pool itself"],
    },
    Case {
        name: "volume add: a name that is too long",
        prepare: VOLUME,
        command: "volume add pool vvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvv origin",
        code: 2,
        says: &["name"],
    },
    Case {
        name: "volume add: the name of a directory",
        prepare: |b| {
            b.make_volume();
            b.write("other", &[0; 1 << 20]);
        },
        command: "volume add pool . other",
        code: 2,
        says: &["volume .: ", "is . or .."],
    },
    Case {
        name: "volume add: the name of the directory above",
        prepare: |b| {
            b.make_volume();
            b.write("other", &[0; 1 << 20]);
        },
        command: "volume add pool .. other",
        code: 2,
        says: &["volume ..: ", "is . or .."],
    },
    Case {
        name: "volume add: a name that looks like an option",
        prepare: |b| {
            b.make_volume();
            b.write("other", &[0; 1 << 20]);
        },
        command: "volume add pool -- -x other",
        code: 2,
        says: &["volume -x: ", "begins with -"],
    },
    Case {
        name: "volume add: a name that ends options",
        prepare: |b| {
            b.make_volume();
            b.write("other", &[0; 1 << 20]);
        },
        command: "volume add pool -- -- other",
        code: 2,
        says: &["volume --: ", "begins with -"],
    },
    Case {
        name: "volume add: block size that is none",
        prepare: VOLUME,
        command: "volume add pool w origin --block-size 1024",
        code: 2,
        says: &["512 or 4096"],
    },
    Case {
        name: "volume remove: no such volume",
        prepare: VOLUME,
        command: "volume remove pool w",
        code: 3,
        says: &["volume w", "it has v"],
    },
    // --- pools that cannot be used ---
    Case {
        name: "status: no such file",
        prepare: NOTHING,
        command: "status pool",
        code: 3,
        says: &["pool", "no such file"],
    },
    Case {
        name: "status: a file that is no pool",
        prepare: |b| b.write("pool", &[0x41; 8 << 20]),
        command: "status pool",
        code: 3,
        says: &["pool", "not a Forebay pool"],
    },
    Case {
        name: "status: an empty file",
        prepare: |b| b.write("pool", &[]),
        command: "status pool",
        code: 3,
        says: &["pool"],
    },
    Case {
        name: "serve: superblocks zeroed, never taken for a new media",
        prepare: |b| {
            b.make_volume();
            b.edit("pool", |bytes| bytes[..2 * COPY_AT].fill(0));
        },
        command: "serve pool",
        code: 5,
        says: &["pool", "damaged"],
    },
    Case {
        name: "check: both superblocks damaged",
        prepare: |b| {
            b.make_volume();
            b.edit("pool", |bytes| {
                bytes[100] ^= 1;
                bytes[COPY_AT + 100] ^= 1;
            });
        },
        command: "check pool",
        code: 5,
        says: &["pool", "superblock"],
    },
    Case {
        name: "drain: a version from the future",
        prepare: |b| {
            b.make_volume();
            edit_superblocks(b, |sb| sb[8] = 99);
        },
        command: "drain pool",
        code: 10,
        says: &["pool", "version"],
    },
    Case {
        name: "volume add: a feature from the future",
        prepare: |b| {
            b.make_volume();
            edit_superblocks(b, |sb| sb[32] |= 0x80);
        },
        command: "volume add pool w origin",
        code: 10,
        says: &["pool", "feature"],
    },
    Case {
        name: "status: a pool that was cut short",
        prepare: |b| {
            b.make_volume();
            let length = fs::metadata(b.path("pool")).unwrap().len();
            let file = fs::File::options().write(true).open(b.path("pool")).unwrap();
            file.set_len(length / 2).unwrap();
        },
        command: "status pool",
        code: 5,
        says: &["pool"],
    },
    // --- origins that are not what they were ---
    Case {
        name: "drain: the origin is gone",
        prepare: |b| {
            b.make_volume();
            fs::remove_file(b.path("origin")).unwrap();
        },
        command: "drain pool",
        code: 6,
        says: &["origin", "not there"],
    },
    Case {
        name: "drain: another origin",
        prepare: |b| {
            b.make_volume();
            b.write("other", &[0; 1 << 20]);
        },
        command: "drain pool --origin v=other",
        code: 6,
        says: &["volume v", "other"],
    },
    Case {
        name: "drain: the origin was resized",
        prepare: |b| {
            b.make_volume();
            let file = fs::File::options().write(true).open(b.path("origin")).unwrap();
            file.set_len(512 << 10).unwrap();
        },
        command: "drain pool",
        code: 6,
        says: &["volume v", "origin"],
    },
    Case {
        name: "drain: no such volume",
        prepare: VOLUME,
        command: "drain pool w",
        code: 3,
        says: &["volume w", "it has v"],
    },
    // --- serve ---
    Case {
        name: "serve: a pool without volumes",
        prepare: POOL,
        command: "serve pool --socket run/s",
        code: 3,
        says: &["pool", "no volume", "forebay volume add"],
    },
    Case {
        name: "serve: the socket's directory is open to others",
        prepare: |b| {
            b.make_volume();
            fs::create_dir(b.path("open")).unwrap();
            let mode = fs::Permissions::from_mode(0o755);
            fs::set_permissions(b.path("open"), mode).unwrap();
        },
        command: "serve pool --socket open/s",
        code: 9,
        says: &["open", "chmod 700"],
    },
    Case {
        name: "serve: a file where the socket would be",
        prepare: |b| {
            b.make_volume();
            fs::create_dir(b.path("run")).unwrap();
            let mode = fs::Permissions::from_mode(0o700);
            fs::set_permissions(b.path("run"), mode).unwrap();
            b.write("run/s", b"precious");
        },
        command: "serve pool --socket run/s",
        code: 2,
        says: &["run/s", "other than a socket"],
    },
    Case {
        name: "serve: the pool as an origin",
        prepare: VOLUME,
        command: "serve pool --origin v=pool",
        code: 2,
        says: &["pool: is the pool itself", "name the disk or file"],
    },
    Case {
        name: "drain: the pool as an origin",
        prepare: VOLUME,
        command: "drain pool --origin v=pool",
        code: 2,
        says: &["pool: is the pool itself", "name the disk or file"],
    },
    // --- exporter ---
    Case {
        name: "exporter: not HOST:PORT",
        prepare: VOLUME,
        command: "exporter pool --listen x",
        code: 2,
        says: &["\"x\"", "HOST:PORT", "127.0.0.1:9757"],
    },
    Case {
        name: "exporter: no port",
        prepare: VOLUME,
        command: "exporter pool --listen 127.0.0.1",
        code: 2,
        says: &["\"127.0.0.1\"", "HOST:PORT"],
    },
    Case {
        name: "exporter: a port that is none",
        prepare: VOLUME,
        command: "exporter pool --listen 127.0.0.1:99999",
        code: 2,
        says: &["127.0.0.1:99999", "HOST:PORT"],
    },
    Case {
        name: "exporter: another machine's address",
        prepare: VOLUME,
        command: "exporter pool --listen 192.0.2.1:9757",
        code: 2,
        says: &["192.0.2.1:9757", "an address of this machine"],
    },
    Case {
        name: "serve: no such pool",
        prepare: NOTHING,
        command: "serve pool",
        code: 3,
        says: &["pool", "no such file"],
    },
    Case {
        name: "serve: not NAME=PATH",
        prepare: VOLUME,
        command: "serve pool --origin elsewhere",
        code: 2,
        says: &["elsewhere", "NAME=PATH"],
    },
    // --- dump ---
    Case {
        name: "dump: no such chunk",
        prepare: VOLUME,
        command: "dump entries pool 1000000",
        code: 2,
        says: &["1000000"],
    },
    Case {
        name: "dump: no such volume",
        prepare: VOLUME,
        command: "dump block pool w 0",
        code: 3,
        says: &["volume w"],
    },
    Case {
        name: "dump: a block beyond the volume",
        prepare: VOLUME,
        command: "dump block pool v 256",
        code: 2,
        says: &["volume v: block 256 of 4 KiB is beyond its end", "use 0 to 255"],
    },
    Case {
        name: "dump superblock: no pool",
        prepare: |b| b.write("pool", &[0x41; 8 << 20]),
        command: "dump superblock pool",
        code: 3,
        says: &["pool", "not a Forebay pool"],
    },
    // --- the command line itself ---
    Case {
        name: "no command",
        prepare: NOTHING,
        command: "",
        code: 2,
        says: &["Usage"],
    },
    Case {
        name: "unknown command",
        prepare: NOTHING,
        command: "frobnicate",
        code: 2,
        says: &["frobnicate"],
    },
    Case {
        name: "create: a size that no file can have",
        prepare: NOTHING,
        command: "create pool --size 16777215T",
        code: 8,
        says: &["pool", "no space"],
    },
    Case {
        name: "set: a low watermark that would mean the default",
        prepare: POOL,
        command: "set pool --low-watermark 0",
        code: 2,
        says: &["--low-watermark", "1..=99"],
    },
    Case {
        name: "volume add: the name of a log",
        prepare: |b| {
            b.make_volume();
            b.run_ok(&["log", "create", "pool", "intent"]);
            b.write("free", &[0; 1 << 20]);
        },
        command: "volume add pool intent free",
        code: 2,
        says: &["volume intent", "volume or log of this name"],
    },
    Case {
        name: "log create: a pool that has all it can",
        prepare: |b| {
            b.run_ok(&["create", "pool", "--size", "16M", "--volumes", "1"]);
            b.run_ok(&["log", "create", "pool", "one"]);
        },
        command: "log create pool two",
        code: 8,
        says: &["log two", "--volumes"],
    },
    Case {
        name: "status: a time that is none",
        prepare: POOL,
        command: "status pool --watch=soon",
        code: 2,
        says: &["soon", "500ms"],
    },
    Case {
        name: "completions: unknown shell",
        prepare: NOTHING,
        command: "completions tcsh",
        code: 2,
        says: &["tcsh", "bash"],
    },
    Case {
        name: "man: a file is in the way",
        prepare: |b| b.write("man", b"x"),
        command: "man man",
        code: 1,
        says: &["man", "cannot write"],
    },
];

/// The content of a file; None: a directory.
type Content = Option<Vec<u8>>;

/// Every file of the directory and what it holds.
fn content(b: &Bench) -> BTreeMap<String, Content> {
    let mut all = BTreeMap::new();
    let mut directories = vec![b.directory().to_path_buf()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(b.directory()).unwrap();
            let name = name.to_string_lossy().into_owned();
            if name == "run" {
                // The server's own directory may appear.
                continue;
            }
            if path.is_dir() && !path.is_symlink() {
                directories.push(path);
                all.insert(name, None);
            } else {
                // None: a dangling link.
                all.insert(name, fs::read(&path).ok());
            }
        }
    }
    all
}

/// Whether a file is unchanged.  A good pool that was opened for writing and closed cleanly may
/// have a different superblock, and nothing else may change.
fn same(b: &Bench, name: &str, before: &Content, after: Option<&Content>) -> bool {
    const AFTER_SUPERBLOCKS: usize = 2 * COPY_AT;
    match (before, after) {
        (before, Some(after)) if before == after => true,
        (Some(before), Some(Some(after))) if name == "pool" => {
            before.len() == after.len()
                && before.len() > AFTER_SUPERBLOCKS
                && before[AFTER_SUPERBLOCKS..] == after[AFTER_SUPERBLOCKS..]
                && (b.run(&["dump", "superblock", "pool", "--json"]).stdout)
                    .contains("\"clean\": true")
        }
        _ => false,
    }
}

#[test]
fn each_is_named_refused_and_changes_nothing() {
    let mut failures = Vec::new();
    for case in CASES {
        let b = Bench::new();
        (case.prepare)(&b);
        let before = content(&b);
        let words: Vec<_> = case.command.split_whitespace().collect();
        let out = b.run(&words);
        let mut wrong = Vec::new();
        let after = content(&b);
        if out.code != Some(case.code) {
            wrong.push(format!("exit code {:?}, not {}", out.code, case.code));
        }
        for word in case.says {
            if !out.stderr.contains(word) {
                wrong.push(format!("does not say {word:?}"));
            }
        }
        for (name, bytes) in &before {
            if !same(&b, name, bytes, after.get(name)) {
                wrong.push(format!("{name} changed"));
            }
        }
        for name in after.keys() {
            if !before.contains_key(name) {
                wrong.push(format!("{name} appeared"));
            }
        }
        if !wrong.is_empty() {
            failures.push(format!(
                "{}: forebay {}\n  {}\n  it said: {}",
                case.name,
                case.command,
                wrong.join("\n  "),
                out.stderr.trim()
            ));
        }
    }
    assert!(failures.is_empty(), "{} of {}:\n{}", failures.len(), CASES.len(), failures.join("\n"));
}

#[test]
fn a_weaker_persist_method_is_refused_unless_allowed() {
    let b = Bench::on_disk();
    let create = ["create", "pool", "--size", "16M", "--persist", "nt"];
    let out = b.run(&create);
    assert_eq!(out.code, Some(2), "{}{}", out.stdout, out.stderr);
    for word in ["pool", "persist method nt is weaker", "--allow-weaker"] {
        assert!(out.stderr.contains(word), "{}", out.stderr);
    }
    assert!(!b.path("pool").exists());
    let out = b.run_ok(&[&create[..], &["--allow-weaker"]].concat());
    assert!(out.stdout.contains("can be lost at a power cut"), "{}", out.stdout);
}

#[test]
fn one_damaged_superblock_is_repaired_from_the_other() {
    for at in [0, COPY_AT] {
        let b = Bench::new();
        b.make_volume();
        b.write_to_volume(0, &[9; 4096]);
        b.edit("pool", |bytes| bytes[at + 100] ^= 1);
        b.run_ok(&["drain", "pool"]);
        let origin = fs::read(b.path("origin")).unwrap();
        assert!(origin[..4096].iter().all(|byte| *byte == 9));
        let out = b.run_ok(&["dump", "superblock", "pool"]);
        assert!(out.stdout.contains("at 0 valid, at 4096 valid"), "{}", out.stdout);
    }
}

#[test]
fn a_damaged_block_is_lost_by_name_and_nothing_else_is() {
    let b = Bench::new();
    b.make_volume();
    b.write_to_volume(0, &[1; 4096]);
    b.write_to_volume(4096, &[0xa5; 4096]);
    b.write_to_volume(8192, &[3; 4096]);
    b.edit("pool", |bytes| {
        let at = bytes.windows(4096).position(|w| w == [0xa5; 4096]).unwrap();
        bytes[at + 1000] ^= 1;
    });
    let out = b.run(&["check", "pool"]);
    assert_eq!(out.code, Some(11), "{}{}", out.stdout, out.stderr);
    assert!(out.stdout.contains("block 1 of volume v"), "{}", out.stdout);
    // Without the data's checksums the damage is not visible.
    assert_eq!(b.run(&["check", "pool", "--no-data"]).code, Some(0));
}

#[test]
fn an_origin_of_no_volume_is_refused() {
    let b = Bench::new();
    b.make_volume();
    for command in ["serve", "drain"] {
        let out = b.run(&[command, "pool", "--origin", "w=origin"]);
        assert_eq!(out.code, Some(3), "{command}: {}{}", out.stdout, out.stderr);
        assert!(out.stderr.contains("volume w: not in pool pool; it has v"), "{}", out.stderr);
    }
}

/// A limit causes an ordinary error, and not a sudden end.
#[test]
fn a_limit_on_files_is_told() {
    let b = Bench::new();
    let create = b.command(&["create", "pool", "--size", "16M"]);
    let mut limited = std::process::Command::new("bash");
    limited.args(["-c", "ulimit -f 1024; exec \"$0\" \"$@\""]).arg(create.get_program());
    let out = limited.args(create.get_args()).current_dir(b.directory()).output().unwrap();
    let told = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(8), "{told}");
    assert!(told.contains("pool") && told.contains("too large"), "{told}");
}

/// The limit is like TasksMax= of a unit.  Work that fits on fewer threads succeeds, and other work
/// fails with an ordinary error.
#[test]
fn a_limit_on_threads_is_no_sudden_end() {
    let b = Bench::new();
    if !common::limits_hold(&b) {
        forebay_test::skipped!("no limit on threads holds root, who may not become another user");
        return;
    }
    // Enough chunks for several threads.
    b.run_ok(&["create", "pool", "--size", "16M", "--chunk-size", "64K"]);
    b.write("origin", &[0; 1 << 20]);
    b.run_ok(&["volume", "add", "pool", "v", "origin"]);
    let limited = |words: &[&str]| common::as_a_user(&b, "ulimit -u 1;", words);
    for words in [&["status", "pool"][..], &["check", "pool"], &["log", "create", "pool", "l"]] {
        let out = limited(words).output().unwrap();
        assert_eq!(out.status.code(), Some(0), "{words:?}: {out:?}");
    }
    let out = limited(&["drain", "pool"]).output().unwrap();
    let told = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(7), "{told}");
    assert!(told.contains("NOT complete") && told.contains("TasksMax"), "{told}");
}
