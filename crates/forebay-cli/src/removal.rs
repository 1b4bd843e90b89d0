// SPDX-License-Identifier: MIT OR Apache-2.0
//! Removing something of a pool that has a name: a volume, a log, a map.

use forebay::Pool;
use serde_json::json;

use crate::{args, out};

/// Removes an object, which `what` describes in messages.  The pool is closed even if that fails.
pub fn run(
    pool: Pool,
    what: &str,
    remove: impl FnOnce(&Pool, &str, bool) -> forebay::Result<()>,
    name: &str,
    discard: bool,
    json: &args::Json,
) -> anyhow::Result<u8> {
    let removed = remove(&pool, name, discard);
    pool.close()?;
    removed?;
    match json.json {
        true => out::json(&json!({ "removed": name, "discarded": discard }))?,
        false => out::line(format_args!("{what} {name} removed"))?,
    }
    Ok(0)
}
