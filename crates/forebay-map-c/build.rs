// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sets the soname of the shared library.  Its number increases with each change that breaks
//! programs linked before.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libforebay-map.so.0");
}
