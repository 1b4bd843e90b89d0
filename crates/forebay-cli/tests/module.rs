// SPDX-License-Identifier: MIT OR Apache-2.0
//! Goal: the commands for the kernel module, on a machine without it.  Method: a plain file in
//! place of its control device.  Writes to it move the position, so that reads return the
//! answer that was put after it.

mod common;

use std::fs;

use common::{Bench, Output};

/// Runs the command with an answer to the one line that it sends.
fn answered(b: &Bench, words: &[&str], line: &str, answer: &str) -> Output {
    let control = b.path("control");
    fs::write(&control, format!("{}{answer}", "?".repeat(line.len()))).unwrap();
    let out = b.command(words).env("FOREBAY_CONTROL", &control).output().unwrap();
    assert_eq!(fs::read_to_string(&control).unwrap(), format!("{line}{answer}"), "{words:?}");
    Output {
        code: out.status.code(),
        stdout: String::from_utf8_lossy(&out.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&out.stderr).into_owned(),
    }
}

#[test]
fn the_control_device_is_written_and_read() {
    let b = Bench::new();
    let out = answered(&b, &["list"], "list\n", "ok\n");
    assert_eq!(out.code, Some(0), "{}", out.stderr);
    assert!(out.stdout.contains("forebay attach POOL VOLUME ORIGIN"), "{}", out.stdout);
    assert_eq!(answered(&b, &["list", "--json"], "list\n", "ok\n").stdout, "[]\n");
    let out = answered(&b, &["detach", "--all"], "list\n", "ok\n");
    assert_eq!((out.code, &out.stdout[..]), (Some(0), "nothing is attached\n"));
    let out = answered(&b, &["list"], "list\n", "error 12 No memory\n");
    assert_eq!(out.code, Some(1), "{}", out.stderr);
    assert!(out.stderr.starts_with("forebay: list of devices: no memory; "), "{}", out.stderr);
    let out = answered(&b, &["list"], "list\n", "");
    assert!(out.stderr.contains("not understood"), "{}", out.stderr);
}

#[test]
fn without_the_module_it_is_said_what_to_do() {
    let b = Bench::new();
    for words in [&["list"][..], &["detach", "data"], &["detach", "--all"]] {
        let out = b.command(words).env("FOREBAY_CONTROL", b.path("none")).output().unwrap();
        let said = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(10), "{said}");
        assert!(said.contains("not loaded; modprobe forebay"), "{said}");
    }
}

#[test]
fn files_are_no_devices() {
    let b = Bench::new();
    b.make_volume();
    let out = b.run(&["attach", "pool", "v", "origin"]);
    assert_eq!(out.code, Some(2), "{}", out.stderr);
    assert!(out.stderr.contains("pool: is a regular file"), "{}", out.stderr);
    assert!(out.stderr.contains("forebay serve"), "{}", out.stderr);
    let out = b.run(&["attach", "nothing", "v", "origin"]);
    assert_eq!(out.code, Some(3), "{}", out.stderr);
    let out = b.run(&["attach", "pool", "../v", "origin", "--dry-run"]);
    assert_eq!(out.code, Some(2), "{}", out.stderr);
    assert!(out.stderr.contains("cannot be a volume's name"), "{}", out.stderr);
}

#[test]
fn mistakes_in_the_configuration() {
    let b = Bench::new();
    let run = |text: &str, more: &[&str]| {
        b.write("x.toml", text.as_bytes());
        b.run(&[&["attach", "--config", "x.toml", "--dry-run"], more].concat())
    };
    let out = run("pool = \"/dev/null\"\n\n[volume.v]\norigen = 1\n", &[]);
    assert_eq!(out.code, Some(2), "{}", out.stderr);
    assert!(out.stderr.starts_with("forebay: x.toml:4: unknown field `origen`"), "{}", out.stderr);
    assert!(out.stderr.contains("forebay.d(5)"), "{}", out.stderr);

    let text = "pool = \"/dev/null\"\n\n[volume.v]\norigin = \"/dev/zero\"\n";
    let out = run(text, &[]);
    assert_eq!(out.code, Some(2), "{}", out.stderr);
    assert!(out.stderr.contains("x.toml:3: /dev/null: is a character device"), "{}", out.stderr);
    let out = run(text, &["--only", "w"]);
    assert_eq!(out.code, Some(2), "{}", out.stderr);
    assert!(out.stderr.contains("x.toml: no volume w; add a table"), "{}", out.stderr);

    // Nobody writes to the FIFO, and /dev/zero does not end.
    let made = std::process::Command::new("mkfifo").arg(b.path("fifo.toml")).status().unwrap();
    assert!(made.success());
    for (config, told) in [("fifo.toml", "it is no file"), ("/dev/zero", "it is no file")] {
        let out = b.run(&["attach", "--config", config]);
        assert_eq!(out.code, Some(2), "{config}: {}", out.stderr);
        assert!(out.stderr.contains(told), "{}", out.stderr);
    }
    b.write("long.toml", &[b'#'; (1 << 20) + 1]);
    let out = b.run(&["attach", "--config", "long.toml"]);
    assert_eq!(out.code, Some(2), "{}", out.stderr);
    assert!(out.stderr.contains("more than 1 MiB"), "{}", out.stderr);

    let out = b.run(&["attach", "--config", "none.toml"]);
    assert_eq!(out.code, Some(2), "{}", out.stderr);
    assert!(out.stderr.contains("none.toml: cannot be read"), "{}", out.stderr);
}
