// SPDX-License-Identifier: MIT OR Apache-2.0
//! Users' orders for the maps of a pool: the order and its answer.  They are the same on the
//! control socket and in a process that has the pool itself.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay::{MapInfo, Pool};
use forebay_map::backing::{Backing, RegularFile};
use forebay_map::recover::{discard, left, recover_some, salvage, Left, Options, Refused};
use forebay_map::session::only_map;
use forebay_map::store::{FileRecord, Store};
use forebay_map::{Error as MapError, PoolStore, PAGE};
use forebay_server::Work;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::frame_registry::{Asked, FrameRegistry};

/// An order.  Files are named as [`Left::is_named`] describes.  Empty: all files.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Order {
    /// Lists the maps with their files.  The answer is a list of [`MapFiles`].
    List,
    /// The answer is a [`MapStatus`] of each map.
    Status,
    /// The answer is [`Recovered`].
    Recover {
        #[serde(with = "forebay::paths_in_request")]
        files: Vec<PathBuf>,
        dry_run: bool,
        accept: bool,
    },
    /// The answer is [`Saved`] of each file.  The directory is an absolute path.
    Salvage {
        #[serde(with = "forebay::paths_in_request")]
        files: Vec<PathBuf>,
        #[serde(with = "forebay::path_in_request")]
        to: PathBuf,
    },
    /// The answer is [`OfFile`] of each file.
    Drop {
        #[serde(with = "forebay::paths_in_request")]
        files: Vec<PathBuf>,
    },
    /// Pins that range of each file in memory, or, with None, unpins the files.  The answer is
    /// [`Kept`] of each file.  Paths are absolute.  `map` names the map; None: the only one.
    Pin {
        #[serde(with = "forebay::paths_in_request")]
        files: Vec<PathBuf>,
        map: Option<String>,
        range: Option<(u64, u64)>,
    },
}

/// The pinned part of a file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Kept {
    #[serde(flatten, with = "forebay::file_in_report")]
    pub file: PathBuf,
    pub segments: usize,
}

/// A map's state of a file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct OfFile {
    /// The name, as in [`Left::name`].
    pub file: String,
    pub number: Option<u32>,
    /// The process that has it mapped exclusively.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mapped_by: Option<u32>,
    /// The processes that share it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shared_by: Vec<u32>,
    /// The process that has it mapped, or one that shares it, has ended, and the server writes
    /// the file back.
    #[serde(default)]
    pub ending: bool,
    /// Segments that the server keeps in memory by order of a user.
    #[serde(default)]
    pub pinned: usize,
    pub size_bytes: Option<u64>,
    pub record_damaged: bool,
    pub truncation_under_way: bool,
    pub frames: usize,
    pub dirty_pages: usize,
    pub unknown_pages: usize,
}

impl OfFile {
    fn new(share: &FrameRegistry, l: &Left, asked: &Asked<'_>) -> OfFile {
        OfFile {
            file: l.name(),
            number: l.id,
            mapped_by: l.id.and_then(|id| share.owner(id)),
            shared_by: l.id.map_or_else(Vec::new, |id| share.shared_by(id)),
            ending: l.id.is_some_and(|id| share.is_ending(id, asked)),
            pinned: l.id.map_or(0, |id| share.pinned_of(id)),
            size_bytes: l.record.as_ref().map(|r| r.size),
            record_damaged: l.record.is_none(),
            truncation_under_way: l.record.as_ref().is_some_and(|r| r.cut),
            frames: l.frames.len(),
            dirty_pages: l.dirty,
            unknown_pages: l.unknown,
        }
    }
}

/// A map, and the files of which it has data.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MapFiles {
    pub map: MapInfo,
    pub files: Vec<OfFile>,
}

/// The use of a map.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MapStatus {
    pub map: String,
    pub damaged: bool,
    pub frames: u32,
    pub frames_used: usize,
    pub dirty_pages: usize,
    /// Pages that files may lack.
    pub unknown_pages: usize,
    pub files: usize,
    /// Processes that have files mapped.
    #[serde(default)]
    pub processes: Vec<u32>,
    /// Frames that are pinned by processes, or by the server for users.
    #[serde(default)]
    pub frames_locked: usize,
}

/// The result of a recovery.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Recovered {
    pub dry_run: bool,
    /// Nothing is left, also not of files that processes have mapped.
    pub complete: bool,
    pub maps: Vec<RecoveredMap>,
}

/// The result of a recovery of one map.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RecoveredMap {
    pub map: String,
    pub damaged: bool,
    /// Files that have all synced data.
    pub files: usize,
    /// Pages that were written to files.
    pub pages: usize,
    pub stays: Vec<Stays>,
}

/// A file whose pages stay in the pool.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Stays {
    pub file: String,
    pub number: Option<u32>,
    pub why: String,
    pub pages: usize,
    /// The process that has the file mapped, or had it.  The recovery leaves the file to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mapped_by: Option<u32>,
    /// That process has ended, and the server writes the file back.
    #[serde(default)]
    pub ending: bool,
}

impl From<Refused> for Stays {
    fn from(r: Refused) -> Stays {
        let Refused { name, id, why, pages } = r;
        let file = name.display().to_string();
        Stays { file, number: id, why, pages, mapped_by: None, ending: false }
    }
}

impl OfFile {
    /// The pages that stay of a file that is left to the process that has it.  None: the file
    /// has everything that is durable.
    fn left_to_its_process(&self) -> Option<Stays> {
        let pid = self.mapped_by?;
        let why = match self.ending {
            true => "its process has ended, and the server writes it back".into(),
            false if self.dirty_pages == 0 && !self.truncation_under_way => return None,
            false => {
                format!("process {pid} has it mapped, and writes them back, and all when it ends")
            }
        };
        let (file, number, pages) = (self.file.clone(), self.number, self.dirty_pages);
        Some(Stays { file, number, why, pages, mapped_by: Some(pid), ending: self.ending })
    }
}

/// A file of which data was copied.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Saved {
    pub file: String,
    #[serde(flatten, with = "forebay::data_in_report")]
    pub data: PathBuf,
    #[serde(flatten, with = "forebay::list_in_report")]
    pub list: PathBuf,
    pub pages: usize,
    pub unknown_pages: usize,
    pub lost_pages: usize,
}

/// Why an order failed.
#[derive(Debug)]
pub enum Error {
    Pool(forebay::Error),
    /// An error of a map, with the map's name.
    Map(String, forebay_map::Error),
    /// The answer cannot be encoded.
    Json(serde_json::Error),
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Error::Pool(e) => e.fmt(f),
            Error::Map(map, e) => write!(f, "map {map}: {e}"),
            Error::Json(e) => write!(f, "the answer cannot be encoded: {e}"),
        }
    }
}

impl std::error::Error for Error {}

impl From<forebay::Error> for Error {
    fn from(e: forebay::Error) -> Error {
        Error::Pool(e)
    }
}

impl Error {
    /// The exit code of a command that ends with this error: one of [`forebay::EXIT_CODES`].
    pub fn exit_code(&self) -> u8 {
        match self {
            Error::Pool(e) => e.exit_code(),
            Error::Map(_, e) => e.exit_code(),
            Error::Json(_) => 1,
        }
    }
}

/// The result of an order.
pub type Result<T> = std::result::Result<T, Error>;

/// A map of the pool.  Without a share: the map is damaged and was not attached.
#[derive(Clone, Debug)]
pub(crate) struct Attached {
    pub info: MapInfo,
    pub(crate) share: Option<Arc<FrameRegistry>>,
}

/// All maps of a pool.
#[derive(Debug)]
pub struct Maps {
    pool: PathBuf,
    maps: Vec<Attached>,
}

fn open_file(path: &Path) -> forebay_map::Result<Box<dyn Backing>> {
    Ok(Box::new(RegularFile::open(path)?))
}

/// The files of a map that lack something, each with the map's name.
pub(crate) fn files_lacking(share: &FrameRegistry, asked: &Asked<'_>) -> Vec<(String, OfFile)> {
    let all = left(&*share.store).unwrap_or_default();
    let lacks = |f: &OfFile| f.dirty_pages > 0 || f.truncation_under_way;
    let files = all.iter().map(|l| OfFile::new(share, l, asked)).filter(lacks);
    files.map(|f| (share.map.clone(), f)).collect()
}

/// Selects the files that a list of names refers to, and records which names were found.
struct Wanted<'a> {
    names: &'a [PathBuf],
    found: Vec<bool>,
}

impl<'a> Wanted<'a> {
    fn new(names: &'a [PathBuf]) -> Wanted<'a> {
        Wanted { names, found: vec![false; names.len()] }
    }

    fn of(&mut self, share: &FrameRegistry) -> Result<Vec<Left>> {
        let mut all = left(&*share.store).map_err(of_map(&share.map))?;
        all.retain(|l| {
            let mut wanted = self.names.is_empty();
            for (name, found) in self.names.iter().zip(&mut self.found) {
                if l.is_named(name) {
                    (wanted, *found) = (true, true);
                }
            }
            wanted
        });
        Ok(all)
    }

    fn check(&self, pool: &Path) -> Result<()> {
        let missing = self.names.iter().zip(&self.found).find(|(_, found)| !**found);
        match missing {
            None => Ok(()),
            Some((name, _)) => Err(Error::Pool(forebay::Error::NotFound {
                path: name.clone(),
                way_out: format!(
                    "pool {} has nothing of it; `forebay map list` names what it has",
                    pool.display()
                ),
            })),
        }
    }
}

fn of_map(map: &str) -> impl FnOnce(forebay_map::Error) -> Error + '_ {
    move |e| Error::Map(map.to_owned(), e)
}

impl Maps {
    /// Attaches all maps of the pool that can be read.
    pub fn attach(pool: &Pool) -> Result<Maps> {
        let attach = |info: MapInfo| {
            let share = match info.damaged {
                true => None,
                false => {
                    let store = PoolStore::of(pool.map(&info.name)?);
                    let store = Arc::new(store.map_err(of_map(&info.name))?);
                    Some(Arc::new(FrameRegistry::new(info.name.clone(), store)))
                }
            };
            Ok(Attached { info, share })
        };
        let maps = pool.maps().into_iter().map(attach).collect::<Result<_>>()?;
        Ok(Maps { pool: pool.path().to_owned(), maps })
    }

    /// The maps of a pool without any.
    pub fn none(pool: &Path) -> Maps {
        Maps { pool: pool.to_owned(), maps: Vec::new() }
    }

    /// The maps that can be read.
    pub(crate) fn sound(&self) -> impl Iterator<Item = &Arc<FrameRegistry>> {
        self.maps.iter().filter_map(|m| m.share.as_ref())
    }

    /// Carries out an order and returns its answer.
    pub fn carry_out(&self, order: &Order, progress: &mut dyn FnMut(&Work)) -> Result<Value> {
        match order {
            Order::List => serde_json::to_value(self.list()?),
            Order::Status => serde_json::to_value(self.status()?),
            Order::Recover { files, dry_run, accept } => {
                let how = Options { dry_run: *dry_run, accept: *accept, only: files };
                serde_json::to_value(self.recover(&how, progress)?)
            }
            Order::Salvage { files, to } => serde_json::to_value(self.salvage(files, to)?),
            Order::Drop { files } => serde_json::to_value(self.give_up(files)?),
            Order::Pin { files, map, range } => {
                serde_json::to_value(self.pin(files, map.as_deref(), *range)?)
            }
        }
        .map_err(Error::Json)
    }

    pub fn list(&self) -> Result<Vec<MapFiles>> {
        self.list_by(&Asked::new(&forebay::is_dying))
    }

    fn list_by(&self, asked: &Asked<'_>) -> Result<Vec<MapFiles>> {
        let of = |m: &Attached| {
            let mut files = Vec::new();
            if let Some(share) = &m.share {
                let all = left(&*share.store).map_err(of_map(&share.map))?;
                files.extend(all.iter().map(|l| OfFile::new(share, l, asked)));
            }
            Ok(MapFiles { map: m.info.clone(), files })
        };
        self.maps.iter().map(of).collect()
    }

    pub fn status(&self) -> Result<Vec<MapStatus>> {
        let of = |m: MapFiles| MapStatus {
            processes: {
                let share = self.sound().find(|share| share.map == m.map.name);
                share.map(|share| share.clients()).unwrap_or_default()
            },
            frames_locked: {
                let share = self.sound().find(|share| share.map == m.map.name);
                share.map_or(0, |share| share.pinned())
            },
            damaged: m.map.damaged,
            frames: m.map.frames,
            frames_used: m.files.iter().map(|f| f.frames).sum(),
            dirty_pages: m.files.iter().map(|f| f.dirty_pages).sum(),
            unknown_pages: m.files.iter().map(|f| f.unknown_pages).sum(),
            files: m.files.iter().filter(|f| f.number.is_some()).count(),
            map: m.map.name,
        };
        Ok(self.list()?.into_iter().map(of).collect())
    }

    pub fn recover(&self, how: &Options<'_>, progress: &mut dyn FnMut(&Work)) -> Result<Recovered> {
        let mut wanted = Wanted::new(how.only);
        for share in self.sound() {
            wanted.of(share)?;
        }
        wanted.check(&self.pool)?;
        let each = |m: &Attached| self.recover_map(m, how, progress);
        let maps: Vec<_> = self.maps.iter().map(each).collect::<Result<_>>()?;
        let complete = maps.iter().all(|m| !m.damaged && m.stays.is_empty());
        Ok(Recovered { dry_run: how.dry_run, complete, maps })
    }

    fn recover_map(
        &self,
        m: &Attached,
        how: &Options<'_>,
        progress: &mut dyn FnMut(&Work),
    ) -> Result<RecoveredMap> {
        let map = m.info.name.clone();
        let done = |damaged| RecoveredMap { map, damaged, files: 0, pages: 0, stays: Vec::new() };
        let Some(share) = &m.share else { return Ok(done(true)) };
        // Files that a process has mapped are left to it.  Those of a dead process are being
        // recovered already.
        let mut names = Wanted::new(how.only).of(share)?;
        let (mut mapped, asked) = (Vec::new(), Asked::new(&forebay::is_dying));
        names.retain(|l| {
            let is_mapped = l.id.is_some_and(|id| share.is_mapped(id));
            if is_mapped {
                mapped.extend(OfFile::new(share, l, &asked).left_to_its_process());
            }
            !is_mapped
        });
        let name = |l: &Left| l.id.map_or(l.name(), |id| format!("#{id}")).into();
        let names: Vec<PathBuf> = names.iter().map(name).collect();
        if names.is_empty() {
            return Ok(RecoveredMap { stays: mapped, ..done(false) });
        }
        let how = &Options { only: &names, ..*how };
        let map = share.map.clone();
        let report = recover_some(&*share.store, &open_file, how, &mut |p| {
            progress(&Work {
                what: p.name.to_owned(),
                done_bytes: (p.done * PAGE) as u64,
                total_bytes: (p.of * PAGE) as u64,
                trouble: None,
            });
        });
        let report = report.map_err(of_map(&map))?;
        let stays = report.refused.into_iter().map(Stays::from).chain(mapped).collect();
        Ok(RecoveredMap { map, damaged: false, files: report.files, pages: report.pages, stays })
    }

    fn salvage(&self, files: &[PathBuf], to: &Path) -> Result<Vec<Saved>> {
        let mut wanted = Wanted::new(files);
        let mut saved = Vec::new();
        for share in self.sound() {
            // Each map has its own numbers of files, so each gets a directory.
            let dir = to.join(&share.map);
            for l in wanted.of(share)? {
                let s = salvage(&*share.store, &l, &dir).map_err(of_map(&share.map))?;
                saved.push(Saved {
                    file: s.name,
                    data: s.data,
                    list: s.list,
                    pages: s.pages,
                    unknown_pages: s.unknown,
                    lost_pages: s.lost,
                });
            }
        }
        wanted.check(&self.pool)?;
        Ok(saved)
    }

    fn pin(
        &self,
        files: &[PathBuf],
        map: Option<&str>,
        range: Option<(u64, u64)>,
    ) -> Result<Vec<Kept>> {
        let names = self.sound().map(|share| share.map.clone()).collect();
        let map = match map {
            Some(map) => map.to_owned(),
            None => only_map(names, &self.pool).map_err(of_map("-"))?,
        };
        let Some(share) = self.sound().find(|share| share.map == map) else {
            let (path, pool) = (PathBuf::from(&map), self.pool.display());
            let way_out = format!("it is no map of pool {pool}: see forebay map list");
            return Err(Error::Pool(forebay::Error::NotFound { path, way_out }));
        };
        let mut kept = Vec::new();
        for file in files {
            let segments = share.pin(file, range).unwrap_or_else(|| {
                let why = "only a server keeps files in memory: forebay serve".to_owned();
                Err(MapError::Refused { path: file.clone(), why })
            });
            let segments = segments.map_err(of_map(&map))?;
            kept.push(Kept { file: file.clone(), segments });
        }
        Ok(kept)
    }

    fn give_up(&self, files: &[PathBuf]) -> Result<Vec<OfFile>> {
        let mut wanted = Wanted::new(files);
        let (mut dropped, asked) = (Vec::new(), Asked::new(&forebay::is_dying));
        for share in self.sound() {
            for l in wanted.of(share)? {
                if let Some(pid) = l.id.and_then(|id| share.owner(id)) {
                    let (path, by) = (l.name().into(), Some(pid));
                    return Err(Error::Map(share.map.clone(), MapError::Locked { path, by }));
                }
                discard(&*share.store, &open_file, &l).map_err(of_map(&share.map))?;
                dropped.push(OfFile::new(share, &l, &asked));
            }
        }
        wanted.check(&self.pool)?;
        Ok(dropped)
    }

    /// Whether the pool has data of a file of this name that no process has mapped.
    pub(crate) fn has(&self, map: &str, file: &str) -> bool {
        self.sound().filter(|share| share.map == map).any(|share| {
            let Ok(files) = share.store.files() else { return true };
            let named = |id: &u32, f: &FileRecord| f.path == file || *file == format!("#{id}");
            files.iter().any(|(id, f)| named(id, f) && !share.is_mapped(*id))
                || file.starts_with("frame#")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::cell::Cell;

    use forebay::{CreateOptions, PoolOptions};
    use forebay_map::wire::{Answer, Request};
    use rustix::process::{getpid, pidfd_open, PidfdFlags};

    use crate::frame_registry::Client;

    /// The look at a living process takes 2 ms.
    #[test]
    fn a_list_of_many_files_asks_once_about_their_process() {
        let dir = Path::new("/dev/shm").join(format!("fby-map-orders-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a directory");
        let path = dir.join("pool");
        let (size_bytes, map_bytes) = (Some(36 << 20), 20 << 20);
        let options = CreateOptions { size_bytes, map_bytes, ..CreateOptions::default() };
        forebay::create(&path, &options).expect("a pool");
        let pool = Pool::open(&path, &PoolOptions::default()).expect("the pool");
        pool.map_add("m", 20 << 20).expect("a map");
        let maps = Maps::attach(&pool).expect("attached");
        let share = maps.sound().next().expect("one");
        let process = pidfd_open(getpid(), PidfdFlags::empty()).expect("a pidfd");
        let client = Client { number: 1, pid: std::process::id(), process: Arc::new(process) };
        for n in 0..8 {
            let (path, identity) = (format!("/{n}"), vec![n]);
            let file = FileRecord { path, identity, ..FileRecord::default() };
            let answer = share.answer(&client, &Request::AddFile { file });
            assert!(matches!(answer, Answer::Number(_)), "{answer:?}");
        }
        let asked = Cell::new(0);
        let ask = |pid| {
            assert_eq!(pid, client.pid);
            asked.set(asked.get() + 1);
            false
        };
        let list = maps.list_by(&Asked::new(&ask)).expect("a list");
        assert!(list[0].files.len() == 8 && list[0].files.iter().all(|f| !f.ending));
        assert_eq!(asked.get(), 1);
        drop((maps, pool));
        let _ = std::fs::remove_dir_all(dir);
    }
}
