// SPDX-License-Identifier: MIT OR Apache-2.0
//! Goal: the hand-written layout of `struct nbdkit_plugin` is that of the
//! installed nbdkit.  Method: a C program prints sizeof and offsetof from
//! nbdkit-plugin.h; the same numbers are computed here.  Without a compiler or
//! the header there is nothing to compare with, and the test says so.

#[path = "../src/abi.rs"]
#[allow(dead_code)]
mod abi;

use abi::Plugin;
use std::io::Write;
use std::mem::{offset_of, size_of};
use std::process::{Command, Stdio};

#[test]
fn layout_is_that_of_the_installed_header() {
    let fields: &[(&str, usize)] = &[
        ("_struct_size", offset_of!(Plugin, struct_size)),
        ("_api_version", offset_of!(Plugin, api_version)),
        ("_thread_model", offset_of!(Plugin, thread_model_max)),
        ("name", offset_of!(Plugin, name)),
        ("longname", offset_of!(Plugin, longname)),
        ("version", offset_of!(Plugin, version)),
        ("description", offset_of!(Plugin, description)),
        ("load", offset_of!(Plugin, load)),
        ("unload", offset_of!(Plugin, unload)),
        ("config", offset_of!(Plugin, config)),
        ("config_complete", offset_of!(Plugin, config_complete)),
        ("config_help", offset_of!(Plugin, config_help)),
        ("open", offset_of!(Plugin, open)),
        ("close", offset_of!(Plugin, close)),
        ("get_size", offset_of!(Plugin, get_size)),
        ("can_write", offset_of!(Plugin, can_write)),
        ("can_flush", offset_of!(Plugin, can_flush)),
        ("is_rotational", offset_of!(Plugin, is_rotational)),
        ("can_trim", offset_of!(Plugin, can_trim)),
        ("_pread_v1", offset_of!(Plugin, v1)),
        ("errno_is_preserved", offset_of!(Plugin, errno_is_preserved)),
        ("dump_plugin", offset_of!(Plugin, dump_plugin)),
        ("can_zero", offset_of!(Plugin, can_zero)),
        ("can_fua", offset_of!(Plugin, can_fua)),
        ("pread", offset_of!(Plugin, pread)),
        ("pwrite", offset_of!(Plugin, pwrite)),
        ("flush", offset_of!(Plugin, flush)),
        ("trim", offset_of!(Plugin, trim)),
        ("zero", offset_of!(Plugin, zero)),
        ("magic_config_key", offset_of!(Plugin, magic_config_key)),
        ("can_multi_conn", offset_of!(Plugin, can_multi_conn)),
        ("can_extents", offset_of!(Plugin, can_extents)),
        ("extents", offset_of!(Plugin, extents)),
        ("can_cache", offset_of!(Plugin, can_cache)),
        ("cache", offset_of!(Plugin, cache)),
        ("thread_model", offset_of!(Plugin, thread_model)),
        ("can_fast_zero", offset_of!(Plugin, can_fast_zero)),
        ("preconnect", offset_of!(Plugin, preconnect)),
        ("get_ready", offset_of!(Plugin, get_ready)),
        ("after_fork", offset_of!(Plugin, after_fork)),
        ("list_exports", offset_of!(Plugin, list_exports)),
        ("default_export", offset_of!(Plugin, default_export)),
        ("export_description", offset_of!(Plugin, export_description)),
        ("cleanup", offset_of!(Plugin, cleanup)),
        ("block_size", offset_of!(Plugin, block_size)),
    ];
    let Some(header) = offsets_in_header(fields.iter().map(|f| f.0)) else {
        eprintln!("skipped: needs cc and nbdkit-plugin.h (Debian: nbdkit-plugin-dev)");
        return;
    };
    for (&(name, ours), theirs) in fields.iter().zip(&header.offsets) {
        assert_eq!(ours, *theirs, "offset of {name}");
    }
    // A newer nbdkit may know more fields; it must not know fewer.
    assert!(size_of::<Plugin>() <= header.size);
}

struct Header {
    size: usize,
    offsets: Vec<usize>,
}

fn offsets_in_header<'a>(names: impl Iterator<Item = &'a str>) -> Option<Header> {
    let mut source = String::from(
        "#define NBDKIT_API_VERSION 2\n#include <stdio.h>\n#include <stddef.h>\n\
         #include <nbdkit-plugin.h>\nint main(void) {\n\
         printf(\"%zu\\n\", sizeof(struct nbdkit_plugin));\n",
    );
    for name in names {
        source += &format!("printf(\"%zu\\n\", offsetof(struct nbdkit_plugin, {name}));\n");
    }
    source += "return 0; }\n";

    let binary = std::env::temp_dir().join(format!("forebay-abi-{}", std::process::id()));
    let mut cc = Command::new("cc")
        .args(["-x", "c", "-", "-o"])
        .arg(&binary)
        .stdin(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    cc.stdin.take()?.write_all(source.as_bytes()).ok()?;
    if !cc.wait().ok()?.success() {
        return None;
    }
    let output = Command::new(&binary).output();
    std::fs::remove_file(&binary).ok();
    let text = String::from_utf8(output.ok()?.stdout).ok()?;
    let mut numbers = text.lines().map(|l| l.parse().expect("a number"));
    Some(Header { size: numbers.next()?, offsets: numbers.collect() })
}
