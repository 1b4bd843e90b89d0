// SPDX-License-Identifier: MIT OR Apache-2.0
//! Maps as a service of their pool's server.  What a crash left is recovered before the service
//! begins.  Users' orders arrive through the control socket.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::{Arc, Mutex, Weak};

use forebay::{FileFate, Pool};
use forebay_map::recover::{Options, Refused};
use forebay_map::store::Store;
use forebay_map::PAGE;
use forebay_server::{Error as ServerError, Figure, Progress, Service, ServiceStatus, Stop, Work};
use serde_json::{json, Value};

use crate::clients::Clients;
use crate::frame_registry::{Asked, FrameRegistry};
use crate::locked::lock;
use crate::orders::{
    files_lacking, Error, MapStatus, Maps, OfFile, Order, Recovered, Result, Stays,
};
use crate::warned::warn;

/// The kind of service that maps are, for clients of the control socket.
pub const KIND: &str = "map";

/// All maps of a pool.
#[derive(Debug)]
pub struct MapService {
    name: String,
    read_only: bool,
    /// None: stopped.  The lock allows one order at a time.
    maps: Mutex<Option<Maps>>,
    /// The maps again: a stop does not wait for the order that has the others locked.
    shares: Vec<Weak<FrameRegistry>>,
    clients: Mutex<Option<Clients>>,
    /// The reason why no other process can map files.
    alone: Option<String>,
    notes: Arc<Notes>,
}

/// The results of recoveries that could not finish, by map.
#[derive(Debug)]
pub(crate) struct Notes {
    pool: String,
    stays: Mutex<Vec<(String, Stays)>>,
}

impl Notes {
    fn note(&self, map: &str, s: Stays) {
        let mut stays = lock(&self.stays);
        stays.retain(|(of, old)| (&**of, &old.file) != (map, &s.file));
        stays.push((map.to_owned(), s));
    }

    /// Records what the recovery of a dead process left.
    pub fn left(&self, map: &str, refused: Vec<Refused>) {
        for stays in refused.into_iter().map(Stays::from) {
            warn(&told(&self.pool, map, &stays));
            self.note(map, stays);
        }
    }
}

/// The message about a file that was not written back.
pub fn told(pool: &str, map: &str, stays: &Stays) -> String {
    let Stays { file, pages, why, .. } = stays;
    format!(
        "map {map}: {file}: {pages} pages stay in the pool: {why}; put the file back and bring them \
         home (forebay map recover {pool}); or copy them elsewhere (forebay map salvage {pool} --to \
         DIR), and give them up (forebay map drop {pool} FILE --discard)"
    )
}

fn for_server(e: Error) -> ServerError {
    match e {
        Error::Pool(e) => ServerError::Pool(e),
        e => {
            let code = e.exit_code();
            ServerError::service(code, e.to_string(), "see forebay map list")
        }
    }
}

impl MapService {
    /// Attaches the maps of the pool and recovers what a crash left.  The answer and the status
    /// show what stays.  Then other processes can map files through a socket in the directory.
    /// None: the pool has no maps.
    pub fn start(
        pool: &Pool,
        dir: &Path,
        read_only: bool,
        progress: &mut dyn FnMut(&Work),
    ) -> Result<Option<(Arc<MapService>, Option<Recovered>)>> {
        if pool.maps().is_empty() {
            return Ok(None);
        }
        let maps = Maps::attach(pool)?;
        let recovered = match read_only {
            true => None,
            false => Some(maps.recover(&Options::default(), progress)?),
        };
        let name = pool.path().display().to_string();
        let notes = Arc::new(Notes { pool: name.clone(), stays: Mutex::default() });
        for m in recovered.iter().flat_map(|r| &r.maps) {
            m.stays.iter().for_each(|s| notes.note(&m.map, s.clone()));
        }
        let (clients, alone) = match read_only {
            true => (None, None),
            false => {
                let shares = maps.sound().cloned().collect();
                let media = pool.media().clone();
                match Clients::start(dir, pool.uuid(), media, shares, notes.clone()) {
                    Ok(clients) => (Some(clients), None),
                    Err(e) => (None, Some(format!("no other process can map files: {e}"))),
                }
            }
        };
        let shares = maps.sound().map(Arc::downgrade).collect();
        let (maps, clients) = (Mutex::new(Some(maps)), Mutex::new(clients));
        let service = MapService { name, read_only, maps, shares, clients, alone, notes };
        Ok(Some((Arc::new(service), recovered)))
    }

    fn carry_out(&self, order: &Order, progress: &mut Progress<'_>) -> Result<Value> {
        let changes = match order {
            Order::Recover { dry_run, .. } => !dry_run,
            Order::Drop { .. } => true,
            Order::List | Order::Status | Order::Salvage { .. } => false,
            Order::Pin { .. } => true,
        };
        let maps = lock(&self.maps);
        let Some(maps) = &*maps else {
            return Err(forebay::Error::Stopped { name: self.name.clone(), why: "stops" }.into());
        };
        if changes && self.read_only {
            let what = format!("pool {}", self.name);
            return Err(forebay::Error::ReadOnly { what }.into());
        }
        let answer = maps.carry_out(order, &mut |work| {
            // An interrupted order would only have to be repeated.
            let _: ControlFlow<()> = progress(work);
        })?;
        if let (Order::Recover { files, .. }, true) = (order, changes) {
            let done: Recovered = serde_json::from_value(answer.clone()).map_err(Error::Json)?;
            if files.is_empty() {
                lock(&self.notes.stays).clear();
            }
            for m in done.maps {
                let refused = m.stays.into_iter().filter(|s| s.mapped_by.is_none());
                refused.for_each(|s| self.notes.note(&m.map, s));
            }
        }
        Ok(answer)
    }
}

/// The server ends, and a file of a process that has ended lacks pages.  `lost`: the fate of the
/// pool's file.
fn stays(pool: &str, map: &str, f: &OfFile, lost: Option<FileFate>) -> String {
    let OfFile { file, dirty_pages, .. } = f;
    let ended = "its process has ended, and so does the server that writes them back";
    match lost.filter(|fate| fate.is_loss()) {
        None => format!(
            "map {map}: {file}: {dirty_pages} pages stay in the pool: {ended}; the next server \
             does it, or forebay map recover {pool}"
        ),
        Some(_) => format!(
            "map {map}: {file}: {dirty_pages} pages are LOST: {ended}, and no other can open the \
             pool, whose file is lost; restore {file} from a backup, or take it as it is \
             (forebay origin accept-loss)"
        ),
    }
}

fn live_on(pool: &str, living: &[u32], lost: Option<FileFate>) -> String {
    let mapped = format!("pool {pool}: processes {living:?} have files mapped onto it");
    match lost.filter(|fate| fate.is_loss()) {
        None => format!(
            "{mapped}: what they sync is kept in the pool, which nobody can open before they have \
             ended"
        ),
        Some(_) => format!(
            "{mapped}, and its file is lost: nobody can open it again; a sync of theirs has its \
             bytes in the file itself, or fails"
        ),
    }
}

fn figures(maps: &[MapStatus]) -> Vec<Figure> {
    let figure = |name: &str, help: &str, of: fn(&MapStatus) -> f64| Figure {
        name: name.into(),
        help: help.into(),
        value: maps.iter().map(of).sum(),
    };
    vec![
        figure("frames", "Frames of 2 MiB, of all maps.", |m| f64::from(m.frames)),
        figure("frames_used", "Of these, those that hold something.", |m| m.frames_used as f64),
        figure(
            "frames_locked",
            "Of these, those that are kept by order (mlock, forebay map pin).",
            |m| m.frames_locked as f64,
        ),
        figure("dirty_bytes", "Synced, and not in its file yet.", |m| {
            (m.dirty_pages * PAGE) as f64
        }),
        figure("files", "Files of which they hold something.", |m| m.files as f64),
        figure("processes", "That have files mapped.", |m| m.processes.len() as f64),
    ]
}

impl Service for MapService {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn status(&self) -> ServiceStatus {
        let status = |summary, trouble, maps: &[MapStatus]| ServiceStatus {
            kind: KIND.into(),
            name: self.name.clone(),
            summary,
            trouble,
            figures: figures(maps),
            details: json!({ "maps": maps }),
        };
        // A status does not wait for an order that is being carried out.  Then figures are
        // absent, not zero.
        let maps = match self.maps.try_lock() {
            Ok(maps) => maps,
            Err(_) => {
                let at_work = status("at work".into(), Vec::new(), &[]);
                return ServiceStatus { figures: Vec::new(), details: json!({}), ..at_work };
            }
        };
        let Some(maps) = &*maps else { return status("stopped".into(), Vec::new(), &[]) };
        let all = match maps.status() {
            Ok(all) => all,
            Err(e) => return status("cannot be read".into(), vec![e.to_string()], &[]),
        };
        let stays = lock(&self.notes.stays);
        let stay = stays.iter().filter(|(map, s)| maps.has(map, &s.file));
        let stay = stay.map(|(map, s)| told(&self.name, map, s));
        let damaged = all.iter().filter(|m| m.damaged);
        let damaged = damaged.map(|m| format!("map {} is damaged: see forebay check", m.map));
        let used: usize = all.iter().map(|m| m.frames_used).sum();
        let frames: u32 = all.iter().map(|m| m.frames).sum();
        let dirty: usize = all.iter().map(|m| m.dirty_pages).sum();
        let files: usize = all.iter().map(|m| m.files).sum();
        let processes: usize = all.iter().map(|m| m.processes.len()).sum();
        let summary = format!(
            "{} with {used} of {frames} frames used, {dirty} pages dirty, {files} files of \
             {processes} processes",
            all.len()
        );
        let trouble = damaged.chain(stay).chain(self.alone.clone());
        status(summary, trouble.collect(), &all)
    }

    fn call(&self, order: Value, progress: &mut Progress<'_>) -> forebay_server::Result<Value> {
        let order: Order = serde_json::from_value(order).map_err(|e| {
            let way_out = "use the same version of Forebay on both sides";
            ServerError::service(2, format!("the order to maps is not understood: {e}"), way_out)
        })?;
        self.carry_out(&order, progress).map_err(for_server)
    }

    /// Data that files lack stays in the pool, including later syncs of processes.
    fn stop(&self, _: &Stop) -> forebay_server::Result<()> {
        let shares: Vec<_> = self.shares.iter().filter_map(Weak::upgrade).collect();
        // While these exist, it is known which processes share a file.
        let homes: Vec<_> = shares.iter().filter_map(|share| share.homes()).collect();
        // The processes hear of it at once, also while an order is being carried out.
        drop(lock(&self.clients).take());
        // Each process is asked about once: it lives, and is named, or its files are.
        let asked = Asked::new(&forebay::is_dying);
        let lacking = shares.iter().flat_map(|share| files_lacking(share, &asked));
        let ending: Vec<_> = lacking.filter(|(_, f)| f.ending).collect();
        let living: Vec<u32> = shares
            .iter()
            .flat_map(|share| share.clients())
            .filter(|pid| !asked.is_dying(*pid))
            .collect();
        drop((homes, shares));
        let Some(maps) = lock(&self.maps).take() else { return Ok(()) };
        let still = maps.sound().flat_map(|share| files_lacking(share, &asked));
        let is_ending = |(map, f): &(String, OfFile)| {
            ending.iter().any(|(of, before)| (of, before.number) == (map, f.number))
        };
        let lost = maps.sound().find_map(|share| {
            share.store.look_for_loss();
            share.store.lost()
        });
        still.filter(is_ending).for_each(|(map, f)| warn(&stays(&self.name, &map, &f, lost)));
        if !living.is_empty() {
            warn(&live_on(&self.name, &living, lost));
        }
        Ok(())
    }

    /// Does not wait for an order that is being carried out, because the service still runs then.
    fn ended(&self) -> bool {
        self.maps.try_lock().is_ok_and(|maps| maps.is_none())
    }
}
