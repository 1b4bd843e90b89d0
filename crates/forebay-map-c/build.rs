// SPDX-License-Identifier: MIT OR Apache-2.0
//! The name by which programs find the shared library.  Its number rises with each change
//! that breaks programs linked before.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libforebay-map.so.0");
}
