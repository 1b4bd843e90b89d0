// SPDX-License-Identifier: MIT OR Apache-2.0
//! The options of an open pool.

use serde::{Deserialize, Serialize};

use super::words::words;

/// When the checksum of cached data is verified as it is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verify {
    /// At each read.
    #[default]
    Always,
    /// At the first read of a page since the pool was opened.
    First,
    Never,
}

words! {
    Verify { "always" => Always, "first" => First, "never" => Never }
    unknown: "verify \"{}\" is not known", way_out: "use always, first or never"
}

/// The options in effect.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OptionsInfo {
    pub slots: u32,
    pub checksums: bool,
    pub verify: Verify,
    pub high_watermark_percent: u32,
    pub low_watermark_percent: u32,
    /// `None`: no limit.
    pub max_age_seconds: Option<f64>,
    /// `None`: never.
    pub idle_seconds: Option<f64>,
}
