// SPDX-License-Identifier: MIT OR Apache-2.0
//! nbdkit unloads a plugin before it exits, while our signal handlers and their
//! thread may still run: the library stays mapped.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
