// SPDX-License-Identifier: MIT OR Apache-2.0
//! libFuzzer's door to `src/image.rs`.
#![no_main]
#![allow(dead_code)] // each target uses a part of what they share

#[path = "../src/image.rs"]
mod image;
#[path = "../src/sparse.rs"]
mod sparse;

libfuzzer_sys::fuzz_target!(|data: &[u8]| image::run(data, image::Plant::Nothing));
