// SPDX-License-Identifier: MIT OR Apache-2.0
//! Maps in `forebay drain`: pages that a crash has left go to their files, and pages that files
//! lack afterwards are listed.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use forebay::Pool;
use forebay_map::recover::Options;
use forebay_map_server::orders::Recovered;
use forebay_map_server::{Error as MapsError, Maps, Order, KIND};
use forebay_server::{control::Client, Error as ServerError, ServerStatus};
use serde::de::DeserializeOwned;
use serde::Serialize;

use crate::{map_wait, out, units};

/// The result of draining a pool's maps.
#[derive(Debug, Default)]
pub struct MapsDrained {
    home: Vec<(String, u64)>,
    pub left: Vec<MapLeft>,
}

/// Pages that a file still lacks.
#[derive(Debug, Serialize)]
pub struct MapLeft {
    map: String,
    /// None: the whole map.
    file: Option<String>,
    pages: usize,
    why: String,
}

impl MapsDrained {
    /// Drains by this process, which has the pool.
    pub fn here(pool: &Pool) -> forebay::Result<MapsDrained> {
        if pool.maps().is_empty() {
            return Ok(MapsDrained::default());
        }
        let recovered =
            Maps::attach(pool).and_then(|maps| maps.recover(&Options::default(), &mut |_| {}));
        match recovered {
            Ok(recovered) => Ok(MapsDrained::of(recovered)),
            Err(MapsError::Pool(e)) => Err(e),
            Err(e) => Ok(MapsDrained::unknown("", e.to_string())),
        }
    }

    /// Drains by the server of the pool and by the processes that have files mapped.
    pub fn served(
        path: &Path,
        status: &ServerStatus,
        connect: &dyn Fn() -> forebay_server::Result<Option<Client>>,
    ) -> forebay_server::Result<MapsDrained> {
        let Some(map) = status.pool.maps.first() else { return Ok(MapsDrained::default()) };
        if !status.services.iter().any(|s| s.kind == KIND) {
            let (pool, pid) = (path.display(), status.pool.pid);
            let why = format!(
                "its mapped files are unknown: process {pid} has the pool, and does not serve its \
                 maps. End it and drain again, or run: forebay map recover {pool}"
            );
            return Ok(MapsDrained::unknown(&map.name, why));
        }
        let all = Order::Recover { files: Vec::new(), dry_run: false, accept: false };
        let mut recover = |_: &[PathBuf]| ask(path, connect, &all);
        let mut list = || ask(path, connect, &Order::List);
        Ok(match map_wait::recovered(&[], &mut recover, &mut list) {
            Ok(recovered) => MapsDrained::of(recovered),
            // The server may be read-only, for example.
            Err(e) => MapsDrained::unknown(&map.name, e.to_string()),
        })
    }

    fn of(recovered: Recovered) -> MapsDrained {
        let mut drained = MapsDrained::default();
        for m in recovered.maps {
            let (map, damaged) = (m.map, m.damaged);
            let stays = m.stays.into_iter().map(|s| MapLeft {
                map: map.clone(),
                file: Some(s.file),
                pages: s.pages,
                why: s.why,
            });
            drained.left.extend(stays);
            if damaged {
                drained.left.extend(
                    MapsDrained::unknown(&map, "it is damaged: see forebay check".into()).left,
                );
            }
            if m.pages > 0 {
                drained.home.push((map, (m.pages * forebay_map::PAGE) as u64));
            }
        }
        drained
    }

    fn unknown(map: &str, why: String) -> MapsDrained {
        let left = MapLeft { map: map.into(), file: None, pages: 0, why };
        MapsDrained { left: vec![left], ..MapsDrained::default() }
    }

    /// Whether the maps had nothing to drain.
    pub fn is_empty(&self) -> bool {
        self.home.is_empty() && self.left.is_empty()
    }

    pub fn report(&self, pool: &Path, json: bool) -> anyhow::Result<()> {
        for (map, bytes) in self.home.iter().filter(|_| !json) {
            out::line(format_args!("map {map}: {} written back to files", units::bytes(*bytes)))?;
        }
        for MapLeft { map, file, pages, why } in &self.left {
            let pool = out::quoted(pool);
            match file {
                Some(file) => out::warn(format_args!(
                    "forebay: map {map}: {file}: NOT drained: {pages} pages stay in the pool: {why}; \
                     see forebay map list {pool}, and forebay map recover --help"
                )),
                None => out::warn(format_args!("forebay: map {map}: NOT drained: {why}")),
            }
        }
        Ok(())
    }
}

fn ask<T: DeserializeOwned>(
    path: &Path,
    connect: &dyn Fn() -> forebay_server::Result<Option<Client>>,
    order: &Order,
) -> forebay_server::Result<T> {
    let ended = || forebay::Error::Stopped { name: path.display().to_string(), why: "ended" };
    let client = connect()?.ok_or_else(ended)?;
    let not = |e: serde_json::Error| {
        let way_out = "use the same version of Forebay on both sides";
        ServerError::service(1, format!("what maps answer is not understood: {e}"), way_out)
    };
    let order = serde_json::to_value(order).map_err(not)?;
    let answer = client.call(KIND, order, &mut |_| ControlFlow::Continue(()))?;
    serde_json::from_value(answer).map_err(not)
}
