// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compiles the engine (core/), its port for user space (port/), the layer of its hosts
//! (host/) and the table of C layouts that the tests compare with.
//!
//! `FOREBAY_SANITIZE=address,undefined` or `=thread` instruments the C code and
//! links the compiler's runtime for it (gcc's; rustc drops the compiler's default
//! libraries, so they are named).  `thread` knows nothing of what Rust's own locks
//! order: use it from programs in C.
//!
//! `FOREBAY_SOURCES=DIR` takes core/ and port/ from there: copies that were changed
//! to be wrong, see tests/mutants.  Their warnings are of no interest.

use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let changed = env::var_os("FOREBAY_SOURCES").map(PathBuf::from);
    let root = changed.clone().map_or_else(root, Ok)?;
    let mut sources = Vec::new();
    for layer in fs::read_dir(root.join("core"))? {
        sources.extend(c_files(&layer?.path())?);
    }
    sources.sort();
    sources.extend(c_files(&root.join("port"))?);
    // Copies of core/ and port/ alone: the hosts' layer is the repository's.
    let above = if root.join("host").is_dir() { root.clone() } else { self::root()? };
    sources.extend(c_files(&above.join("host"))?);
    sources.push(PathBuf::from("src/layout.c"));

    let mut build = cc::Build::new();
    build
        .files(&sources)
        .include(root.join("core"))
        .include(root.join("core/api"))
        .include(root.join("port"))
        .include(&above)
        .std("gnu11")
        .opt_level(2)
        .debug(true)
        .extra_warnings(changed.is_none())
        .warnings(changed.is_none())
        .warnings_into_errors(changed.is_none());
    if env::var_os("CARGO_FEATURE_PLANTED_BUGS").is_some() {
        build.define("FBY_PLANTED_BUGS", "1");
    }
    let sanitizers = env::var("FOREBAY_SANITIZE").unwrap_or_default();
    // Each frame is stores behind the last write's fence: 1 % of a write with one
    // thread, 3 % with two.  The sanitizers' reports need them.
    build.force_frame_pointer(!sanitizers.is_empty());
    for name in sanitizers.split(',').filter(|name| !name.is_empty()) {
        build.flag(format!("-fsanitize={name}")).flag("-fno-sanitize-recover=all");
        // gcc warns that it does not model thread fences; none of the engine's
        // orderings rests on one alone.
        build.flag_if_supported("-Wno-tsan");
    }
    build.compile("forebay_engine");
    for name in sanitizers.split(',').filter(|name| !name.is_empty()) {
        let runtime = match name {
            "address" => "asan",
            "undefined" => "ubsan",
            "thread" => "tsan",
            _ => {
                return Err(io::Error::other(format!(
                "FOREBAY_SANITIZE={sanitizers}: {name} is not one of address, undefined, thread"
            )))
            }
        };
        println!("cargo:rustc-link-lib=dylib={runtime}");
    }

    println!("cargo:root={}", root.display());
    println!("cargo:rerun-if-env-changed=FOREBAY_SANITIZE");
    println!("cargo:rerun-if-env-changed=FOREBAY_SOURCES");
    for watched in
        [root.join("core"), root.join("port"), above.join("host"), PathBuf::from("src/layout.c")]
    {
        println!("cargo:rerun-if-changed={}", watched.display());
    }
    Ok(())
}

/// The repository: two levels above this crate.
fn root() -> io::Result<PathBuf> {
    Path::new(&env::var("CARGO_MANIFEST_DIR").map_err(io::Error::other)?)
        .join("../..")
        .canonicalize()
}

/// All but the kernel's port, `linux*.c`.
fn c_files(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if name.ends_with(".c") && !name.starts_with("linux") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}
