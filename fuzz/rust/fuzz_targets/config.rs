// SPDX-License-Identifier: MIT OR Apache-2.0
//! libFuzzer's door to `src/config.rs`.
#![no_main]
#![allow(dead_code)] // each target uses a part of what they share

#[path = "../src/config.rs"]
mod config;
#[path = "../src/image.rs"]
mod image;
#[path = "../src/sparse.rs"]
mod sparse;
#[path = "../../../crates/forebay-cli/src/units.rs"]
mod units;

libfuzzer_sys::fuzz_target!(|data: &[u8]| config::run(data));
