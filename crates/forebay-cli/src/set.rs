// SPDX-License-Identifier: MIT OR Apache-2.0
//! `forebay set`: changes volumes of a pool that is served.

use anyhow::anyhow;
use forebay::{control, Error, VolumeChange};
use serde_json::json;

use crate::{args, out};

pub fn run(a: &args::Set) -> anyhow::Result<u8> {
    let change =
        VolumeChange { bypass_limit_bytes: a.past.bypass_limit, when_full: a.past.when_full };
    if change == VolumeChange::default() {
        return Err(anyhow!(Error::Usage {
            what: "nothing to set".into(),
            way_out: "give --bypass-limit, --when-full or both".into(),
        }));
    }
    let server = control::Client::for_pool(&control::runtime_dir(), &a.pool)?;
    let mut server = server.ok_or_else(|| {
        anyhow!(Error::Usage {
            what: format!("{}: nobody serves it", a.pool.display()),
            way_out: "give the options to forebay serve".into(),
        })
    })?;
    server.set_volume(a.volume.as_deref(), &change)?;
    if a.json.json {
        out::json_line(&json!({ "volume": a.volume, "set": change }))?;
    } else {
        out::line(format_args!("set, until it is served again"))?;
    }
    Ok(0)
}
