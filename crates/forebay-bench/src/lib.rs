// SPDX-License-Identifier: MIT OR Apache-2.0
//! Measures the engine against what the memory itself can do.
