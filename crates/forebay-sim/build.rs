// SPDX-License-Identifier: MIT OR Apache-2.0
//! Puts the simulator in the place of two of the port's functions, in this
//! crate's programs only: the CPU number, so that a run depends on nothing but
//! its seed, and failed assertions, so that they name the seed.  See wrapped.rs.

fn main() {
    println!("cargo:rustc-link-arg=-Wl,--wrap=fby_cpu");
    println!("cargo:rustc-link-arg=-Wl,--wrap=fby_assert_failed");
    println!("cargo:rerun-if-changed=build.rs");
}
