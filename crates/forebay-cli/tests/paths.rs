// SPDX-License-Identifier: MIT OR Apache-2.0
//! Goal: a path is text of others.  Whatever its bytes are, a message has it on its line, what is
//! offered as the next command can be pasted into a shell, and JSON has all of it.  Method: each
//! command that prints a path of a pool gets some with a newline, a quote, an escape sequence, and
//! bytes that are no text.  An order with a path that is no text is carried out, or refused with a
//! way out, by the server of the pool as without one.  Mounts have tests/mount/paths.sh.

mod common;

use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::process::Command;

use common::maps::{crashed, make_map};
use common::nbd::Served;
use common::Bench;
use serde_json::Value;

const DIRECTORIES: [&[u8]; 5] =
    [b"plain", b"a b'c", b"a\nforged: b", b"\xff'\\\xfe1", b"\x1b[2J\xc2\x9b\xc3\xa9"];

/// Bytes of what a command prints.
fn said(bench: &Bench, words: &[&OsStr], code: i32) -> Vec<u8> {
    let mut command = bench.command(&[]);
    let out = command.args(words).output().unwrap();
    assert_eq!(out.status.code(), Some(code), "{words:?}: {out:?}");
    assert!(!out.stderr.starts_with(b"forebay: note"), "{words:?}: {out:?}");
    out.stdout
}

/// The words after this one, by a shell.
fn pasted(text: &str, after: &str) -> Vec<Vec<u8>> {
    let command = text.split_once(after).unwrap_or_else(|| panic!("no {after}: {text}")).1;
    let command = command.lines().next().unwrap().split(',').next().unwrap();
    let script = format!("printf '%s\\0' {command}");
    let out = Command::new("bash").args(["-c", &script]).output().unwrap();
    assert!(out.status.success(), "{script}: {out:?}");
    out.stdout.split(|b| *b == 0).map(<[u8]>::to_vec).collect()
}

#[test]
fn each_command_prints_a_path_on_its_line_and_as_a_shell_takes_it() {
    let bench = Bench::new();
    for name in DIRECTORIES {
        let directory = bench.directory().join(OsStr::from_bytes(name));
        std::fs::create_dir(&directory).unwrap();
        let pool = directory.join("pool");
        let p = pool.as_os_str();
        let w = OsStr::new;
        bench.write("origin", &[0; 1 << 20]);
        let table: [(&str, Vec<&OsStr>, i32); 10] = [
            (
                "next: forebay volume add ",
                vec![
                    w("create"),
                    p,
                    w("--size"),
                    w("24M"),
                    w("--chunk-size"),
                    w("64K"),
                    w("--maps"),
                    w("12M"),
                ],
                0,
            ),
            ("next: forebay serve ", vec![w("volume"), w("add"), p, w("v"), w("origin")], 0),
            ("", vec![w("log"), w("create"), p, w("l")], 0),
            ("", vec![w("map"), w("add"), p, w("m")], 0),
            ("pool      ", vec![w("status"), p], 0),
            ("", vec![w("check"), p], 0),
            ("", vec![w("drain"), p], 0),
            ("", vec![w("media-info"), p, w("--no-measure")], 0),
            ("", vec![w("volume"), w("list"), p], 0),
            ("", vec![w("origin"), w("status"), p], 0),
        ];
        for (next, words, code) in table {
            let printed = said(&bench, &words, code);
            let text = std::str::from_utf8(&printed).unwrap_or_else(|e| panic!("{words:?}: {e}"));
            let control = |c: char| c.is_control() && c != '\n';
            assert!(!text.contains(control), "{words:?}: {text:?}");
            assert!(!text.lines().any(|line| line.starts_with("forged")), "{words:?}: {text}");
            if next.starts_with("next") {
                assert_eq!(pasted(text, next)[0], p.as_bytes(), "{words:?}: {text}");
            }
        }
        for (key, words) in [
            ("path", vec![w("status"), p, w("--json")]),
            ("place", vec![w("origin"), w("status"), p, w("--json")]),
            ("path", vec![w("create"), p, w("--force"), w("--json")]),
        ] {
            let json: Value = serde_json::from_slice(&said(&bench, &words, 0)).unwrap();
            let named = if json.get(key).is_some() { &json } else { &json["media"] };
            assert_eq!(named[key], pool.display().to_string(), "{words:?}");
            match named.get(format!("{key}_bytes")) {
                None => assert!(pool.to_str().is_some(), "{words:?}: {json}"),
                Some(digits) => {
                    let digits = digits.as_str().unwrap().as_bytes().chunks(2);
                    let byte = |pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16);
                    let bytes: Vec<_> = digits.map(|pair| byte(pair).unwrap()).collect();
                    assert_eq!(bytes, p.as_bytes(), "{words:?}");
                }
            }
        }
        std::fs::remove_dir_all(directory).unwrap();
    }
}

/// The whole path at a key of JSON.
fn whole(json: &Value, key: &str) -> Vec<u8> {
    match json.get(format!("{key}_bytes")) {
        None => json[key].as_str().unwrap_or_else(|| panic!("no {key}: {json}")).into(),
        Some(digits) => {
            let digits = digits.as_str().unwrap().as_bytes().chunks(2);
            let byte = |pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
            digits.map(byte).collect()
        }
    }
}

/// An order with a path, its exit code without a server and by one, and what it says: a way out,
/// or for 0 a key of its JSON and the path there.
struct Row<'a> {
    words: Vec<&'a OsStr>,
    codes: [i32; 2],
    says: &'a str,
    is: Vec<u8>,
}

fn row<'a>(words: &[&'a OsStr], codes: [i32; 2], says: &'a str) -> Row<'a> {
    Row { words: words.to_vec(), codes, says, is: Vec::new() }
}

#[test]
fn each_order_takes_a_path_that_is_no_text_or_names_a_way_out() {
    let bench = Bench::new();
    make_map(&bench);
    // A file that is gone stays in the pool.
    std::fs::remove_file(crashed(&bench, "gone")).unwrap();
    let place = bench.directory().join(OsStr::from_bytes(b"\xff\xfe1"));
    std::fs::create_dir(&place).unwrap();
    std::fs::rename(bench.path("pool"), place.join("pool")).unwrap();
    std::fs::write(place.join("file"), [0; 3 * 4096]).unwrap();
    let (pool, file, none) = (place.join("pool"), place.join("file"), place.join("none"));
    let (pool, file, none) = (pool.as_os_str(), file.as_os_str(), none.as_os_str());
    let (gone, to) = (bench.path("gone"), place.join("to"));
    let [map, recover, salvage, drop_it, discard, pin, json, off, dry, to_it] = [
        "map",
        "recover",
        "salvage",
        "drop",
        "--discard",
        "pin",
        "--json",
        "--off",
        "--dry-run",
        "--to",
    ]
    .map(OsStr::new);
    let saved = |by: &str| to.join(by).join("db/0-gone").into_os_string().into_vec();
    for (n, by) in ["without", "by a server"].into_iter().enumerate() {
        let served =
            (n == 1).then(|| Served::ready(&bench, Served::command(&bench, pool)).unwrap());
        let to = to.join(by);
        let table = [
            row(&[map, recover, pool, none], [3, 3], "`forebay map list` names what it has"),
            row(&[map, recover, pool, gone.as_os_str()], [11, 11], "forebay map salvage $'"),
            row(&[map, recover, pool, none, dry], [3, 3], "`forebay map list` names what it has"),
            row(&[map, salvage, pool, none, to_it, none], [3, 3], "`forebay map list` names"),
            row(&[map, drop_it, pool, none, discard], [3, 3], "`forebay map list` names"),
            row(&[map, pin, pool, none], [6, 3], ""),
            row(&[map, pin, pool, file], [6, 6], ["forebay serve", "rename the file"][n]),
            row(&[map, pin, pool, file, off], [6, 0], ["forebay serve", ""][n]),
            Row {
                words: vec![map, pin, pool, file, off, json],
                codes: [6, 0],
                says: ["error", "file"][n],
                is: if n == 1 { file.as_bytes().into() } else { Vec::new() },
            },
            Row {
                words: vec![map, salvage, pool, to_it, to.as_os_str(), json],
                codes: [0, 0],
                says: "data",
                is: saved(by),
            },
        ];
        for Row { words, codes, says, is } in table {
            let out = bench.command(&[]).args(&words).output().unwrap();
            let said =
                String::from_utf8_lossy(&[&out.stdout[..], &out.stderr].concat()).into_owned();
            assert_eq!(out.status.code(), Some(codes[n]), "{by}: {words:?}: {said}");
            match is.is_empty() {
                true => assert!(said.contains(says), "{by}: {words:?}: {says}: {said}"),
                false => {
                    let json: Value = serde_json::from_slice(&out.stdout).unwrap();
                    assert_eq!(whole(&json[0], says), is, "{by}: {words:?}: {json}");
                    assert!(says == "file" || Path::new(OsStr::from_bytes(&is)).exists());
                }
            }
        }
        assert_eq!(served.map_or(Some(0), |mut served| served.stop()), Some(0), "{by}");
    }
}
