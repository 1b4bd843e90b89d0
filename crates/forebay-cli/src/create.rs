// SPDX-License-Identifier: MIT OR Apache-2.0
//! `forebay create`.

use forebay::CreateOptions;

use crate::{args, out, units};

pub fn run(a: &args::Create) -> anyhow::Result<u8> {
    let made = forebay::create(
        &a.pool,
        &CreateOptions {
            size_bytes: a.size,
            chunk_size_bytes: a.chunk_size,
            max_volumes: a.volumes,
            static_bytes: a.static_bytes.unwrap_or(0),
            map_bytes: a.map_bytes.unwrap_or(0),
            force: a.force,
            media: a.media.options(),
        },
    )?;
    if a.json.json {
        out::json(&made)?;
        return Ok(0);
    }
    let pool = made.path.display();
    out::line(format_args!(
        "{pool}: pool {}, {} for data in {} chunks of {}",
        made.uuid,
        units::bytes(made.capacity_bytes),
        made.chunks,
        units::bytes(made.chunk_size_bytes.into()),
    ))?;
    if made.static_bytes > 0 {
        out::line(format_args!(
            "next to it {} for static volumes",
            units::bytes(made.static_bytes)
        ))?;
    }
    if made.map_bytes > 0 {
        out::line(format_args!(
            "next to it {} for maps: forebay map add {} NAME",
            units::bytes(made.map_bytes),
            out::quoted(&made.path)
        ))?;
    }
    out::line(format_args!("media: {}", media_text(&made.media)))?;
    out::line(format_args!("next: forebay volume add {} NAME ORIGIN", out::quoted(&made.path)))?;
    Ok(0)
}

/// Describes the media and the events that it survives.
pub fn media_text(media: &forebay::MediaInfo) -> String {
    let survives = match media.durable {
        true => "survives a power cut",
        false => "does NOT survive a power cut",
    };
    format!(
        "{} ({}, persist method {}, {survives})",
        media.note,
        units::bytes(media.size_bytes),
        media.persist,
    )
}
