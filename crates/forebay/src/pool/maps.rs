// SPDX-License-Identifier: MIT OR Apache-2.0
//! Maps of an open pool: added, removed, listed, checked; and a handle of one, for who maps
//! files onto it (the crate forebay-map).

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

use forebay_engine::lasting::Lasting;
use forebay_engine::{maps, sys, OpenError};

use super::{table_full, Pool};
use crate::engine::{Code, Engine};
use crate::error::{Error, Result};
use crate::media::Look;
use crate::opened::OpenPool;
use crate::report::{FileFate, MapCheck, MapInfo, Uuid};
use crate::shared_pool::SharedPool;

/// A map that this process may use.  It keeps the pool open.
#[derive(Debug)]
pub struct PoolMap {
    name: String,
    engine: Arc<Engine>,
    pool: Arc<OpenPool>,
}

impl PoolMap {
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The engine that the map is attached to.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Path of the pool.
    pub fn path(&self) -> &Path {
        self.pool.core().path()
    }

    /// The loss of the pool's file, as the last look has found it.
    pub fn lost(&self) -> Option<FileFate> {
        self.pool.core().lost().map(|lost| lost.what)
    }

    /// Looks at what has happened to that file: [`crate::Pool::look_for_loss`].
    pub fn look_for_loss(&self) {
        self.pool.core().look_at_file(Look::File);
    }

    /// The file that is the pool's memory.
    pub fn memory(&self) -> io::Result<Lasting<File>> {
        self.pool.core().media.file()
    }
}

impl SharedPool {
    pub(crate) fn maps(&self) -> Vec<MapInfo> {
        self.engine.maps().into_iter().map(map_info).collect()
    }

    fn find_map(&self, name: &str) -> Result<u16> {
        self.engine.map_find(name).map_err(|e| {
            let known: Vec<_> = self.maps().into_iter().map(|m| m.name).collect();
            let pool = self.path().display();
            if let Err(refused) = self.check_holds("maps") {
                return refused;
            }
            let way_out = match (known.is_empty(), self.engine.info().sb.map_bytes) {
                (_, 0) => "it has no room for maps, which a pool gets when it is made (forebay create --maps)".into(),
                (true, _) => "it has none yet: make one with `forebay map add`".into(),
                _ => format!("it has {}", known.join(", ")),
            };
            Error::Map { name: name.into(), cause: format!("not in pool {pool}"), way_out, code: e.0 }
        })
    }
}

fn map_info(info: maps::MapInfo) -> MapInfo {
    MapInfo {
        name: sys::text(&info.spec.name).into_owned(),
        uuid: Uuid(info.spec.uuid),
        share_bytes: info.spec.bytes,
        frames: info.nframes,
        frame_bytes: info.spec.frame_bytes,
        files_most: info.spec.nfiles,
        attached: info.attached,
        damaged: info.damaged,
    }
}

/// Why something about a map was refused, with the way out.
fn map_error(name: &str, e: Code) -> Error {
    let mut cause = e.message().to_string();
    let way_out = match e.0 {
        sys::FBY_E_READ_ONLY => return Error::ReadOnly { what: format!("map {name}") },
        sys::FBY_E_VOLUME_EXISTS => {
            cause = "a volume, log or map of this name exists".into();
            "use another name"
        }
        sys::FBY_E_NAME => "use another, of 1 to 63 characters",
        sys::FBY_E_GEOMETRY => "use a multiple of 2 MiB, of at least 4 MiB",
        sys::FBY_E_MAP_FULL => {
            cause = "the pool has no such room for maps left".into();
            "use a smaller one, or remove one that is not needed; a pool gets its room for maps when it is made (forebay create --maps)"
        }
        sys::FBY_E_MAP_DIRTY => {
            cause = "it has pages that their files lack, or may".into();
            "write them back first (forebay map recover), or discard them (--discard)"
        }
        sys::FBY_E_MAP_DAMAGED | sys::FBY_E_VOLUME_DAMAGED => {
            "see `forebay check`; what it says is not touched"
        }
        sys::FBY_E_VOLUME_BUSY => {
            cause = "files are mapped onto it".into();
            "close them first"
        }
        sys::FBY_E_MAP_MEDIA => "use another pool",
        sys::FBY_E_NO_MAP => "see the list of maps",
        _ => {
            let what = format!("map {name}");
            return Error::Internal { what, code: e.0, message: e.message() };
        }
    };
    Error::Map { name: name.into(), cause, way_out: way_out.into(), code: e.0 }
}

impl Pool {
    /// A new map, of the room that the pool has for them: a multiple of 2 MiB.
    pub fn map_add(&self, name: &str, share_bytes: u64) -> Result<MapInfo> {
        let core = self.0.core();
        core.check_holds("maps")?;
        core.check_writable()?;
        let _volumes = self.0.volumes();
        let added = core.engine.map_add(name, Uuid::random()?.0, share_bytes);
        let index = added.map_err(|e| match e.0 {
            sys::FBY_E_VOLUME_TABLE_FULL => {
                let (cause, way_out) = table_full(core.engine.info().sb.nvolumes);
                Error::Map { name: name.into(), cause, way_out, code: e.0 }
            }
            _ => map_error(name, e),
        })?;
        core.engine.map_info(index).map(map_info).map_err(|e| map_error(name, e))
    }

    /// Removes a map that is not in use.  One that has pages which files lack is removed with
    /// `discard` only: they are lost, and the files stay marked.
    pub fn map_remove(&self, name: &str, discard: bool) -> Result<()> {
        let core = self.0.core();
        core.check_writable()?;
        let _volumes = self.0.volumes();
        let index = core.find_map(name)?;
        core.engine.map_remove(index, discard).map_err(|e| map_error(name, e))
    }

    /// In the order of the table.
    pub fn maps(&self) -> Vec<MapInfo> {
        self.0.core().maps()
    }

    /// A handle of a map, for who attaches it.
    pub fn map(&self, name: &str) -> Result<PoolMap> {
        let core = self.0.core();
        core.find_map(name)?;
        Ok(PoolMap {
            name: name.to_owned(),
            engine: Arc::clone(&core.engine),
            pool: Arc::clone(&self.0),
        })
    }

    /// All maps that are not in use, attached until the result is dropped.
    pub(super) fn check_maps(&self) -> Result<(Vec<MapCheck>, Vec<maps::Map>)> {
        let core = self.0.core();
        let (mut checks, mut attached) = (Vec::new(), Vec::new());
        for info in core.maps() {
            let mut check = MapCheck { map: info.name.clone(), ..MapCheck::default() };
            check.attached = info.attached;
            check.damaged = info.damaged;
            if !info.attached && !info.damaged {
                let index = core.find_map(&info.name)?;
                match maps::Map::attach(&core.engine, index) {
                    Ok((map, r)) => {
                        check.dirty_pages = r.dirty;
                        check.unknown_pages = r.unknown;
                        check.truncations = r.cut;
                        check.damaged_frames = r.damaged_frames;
                        check.damaged_files = r.damaged_files;
                        check.stray_frames = r.stray;
                        attached.push(map);
                    }
                    Err(OpenError::Engine(e) | OpenError::Unknown { code: e, .. }) => {
                        return Err(map_error(&info.name, e));
                    }
                    Err(OpenError::Memory { source, .. }) => {
                        return Err(core.system("allocating memory for its maps", source));
                    }
                }
            }
            checks.push(check);
        }
        Ok((checks, attached))
    }
}
