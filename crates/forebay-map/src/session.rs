// SPDX-License-Identifier: MIT OR Apache-2.0
//! A pool onto which this process maps files, with an orderly close.  If the pool has a server,
//! the server gives this process a share of a map, as it does to others.  Without a server,
//! this process opens the pool exclusively.  This module alone decides which of the two
//! applies.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use forebay::{Persist, Pool, PoolOptions};

use crate::backing::{not_leased, Backing, RegularFile};
use crate::cache::Cache;
use crate::common::Options;
use crate::error::{Error, Result};
use crate::file::MapFile;
use crate::locked::lock;
use crate::pool::PoolStore;
use crate::recover::{recover, Report};
use crate::served::ServedStore;
use crate::sharing::{Host, Lent};
use crate::store::Store;

/// How long to wait for a server that has the pool and does not serve its maps yet.
const BEGINS: Duration = Duration::from_secs(5);
/// How long to wait for a server that has just opened the pool and does not answer yet.  The
/// same limit holds for a child that was just forked and holds its parent's lock on the pool
/// until it executes a program.
const OPENS: Duration = Duration::from_secs(2);

/// The pool and the map to open.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// The path of the pool.
    pub path: PathBuf,
    /// The map's name.  None: the only map of the pool.
    pub map: Option<String>,
    /// Options for opening the pool without a server.  If they name a persist method, a server
    /// with another method is refused.
    pub pool: PoolOptions,
    /// Without a server, recover what a crash left.  If this is false or the recovery fails,
    /// the open of a file of which the pool has pages is refused.  A server has recovered
    /// before.
    pub bring_home: bool,
    /// The directory of the servers' sockets.
    pub sockets: PathBuf,
}

impl Wanted {
    /// The defaults.
    pub fn of(path: &Path) -> Wanted {
        Wanted {
            path: path.to_owned(),
            map: None,
            pool: PoolOptions::default(),
            bring_home: false,
            sockets: forebay::runtime_dir(),
        }
    }
}

/// A map that this process has open, or a share of one.  Close the files before the session.
#[derive(Debug)]
pub struct Session {
    /// None while the session is being closed.
    open: Option<Open>,
    report: Option<Report>,
    server: Option<u32>,
}

/// Fields are dropped in this order.
#[derive(Debug)]
struct Open {
    cache: Cache,
    /// The connection for shared files.  None until the first shared file, or without a server.
    host: Mutex<Option<Arc<Host>>>,
    served: Option<Arc<ServedStore>>,
    store: Arc<dyn Store>,
    /// None: a server has the pool.
    pool: Option<Pool>,
}

impl Session {
    /// Opens a share of the map of the pool's server, if there is one; otherwise the pool
    /// itself.
    pub fn open(wanted: &Wanted, options: Options) -> Result<Session> {
        let begun = Instant::now();
        loop {
            let map = wanted.map.as_deref();
            if let Some(store) = ServedStore::connect(&wanted.path, map, &wanted.sockets)? {
                return Session::served(wanted, options, store);
            }
            match Pool::open(&wanted.path, &wanted.pool) {
                Ok(pool) => return Session::alone(wanted, options, pool),
                Err(e @ forebay::Error::Busy { .. }) => {
                    let begins = is_answered(wanted);
                    if begun.elapsed() > if begins { BEGINS } else { OPENS } {
                        return Err(Error::Busy(both_ways(wanted, &e, begins)));
                    }
                    std::thread::sleep(Duration::from_millis(50));
                }
                Err(e) => return Err(e.into()),
            }
        }
    }

    fn served(wanted: &Wanted, options: Options, store: ServedStore) -> Result<Session> {
        let (asked, is) = (wanted.pool.media.persist, store.persist());
        if asked != Persist::Auto && asked != is {
            return Err(Error::Pool(format!(
                "process {} serves it, and makes stores durable by {is}, not by {asked}: leave the \
                 method at auto, or start that server with it",
                store.server()
            )));
        }
        let server = Some(store.server());
        let served = Arc::new(store);
        let store: Arc<dyn Store> = Arc::<ServedStore>::clone(&served);
        let cache = Cache::new(Arc::clone(&store), options)?;
        let (host, served) = (Mutex::new(None), Some(served));
        let open = Some(Open { cache, host, served, store, pool: None });
        Ok(Session { open, report: None, server })
    }

    fn alone(wanted: &Wanted, options: Options, pool: Pool) -> Result<Session> {
        let attach = || {
            let names = pool.maps().into_iter().map(|m| m.name).collect();
            let name = wanted.map.clone().map_or_else(|| only_map(names, &wanted.path), Ok)?;
            let store = Arc::new(PoolStore::of(pool.map(&name)?)?);
            let report = match wanted.bring_home {
                false => None,
                true => Some(recover(&*store, |path| Ok(Box::new(RegularFile::open(path)?)))?),
            };
            let store: Arc<dyn Store> = store;
            Ok((Cache::new(Arc::clone(&store), options)?, store, report))
        };
        match attach() {
            Ok((cache, store, report)) => {
                let host = Mutex::new(None);
                let open = Some(Open { cache, host, served: None, store, pool: Some(pool) });
                Ok(Session { open, report, server: None })
            }
            Err(e) => {
                // Report the first error.
                let _ = pool.close();
                Err(e)
            }
        }
    }

    fn opened(&self) -> &Open {
        self.open.as_ref().expect("only close takes it")
    }

    /// The report of the recovery at the open, if there was one.
    pub fn report(&self) -> Option<&Report> {
        self.report.as_ref()
    }

    /// The process that serves the pool.  None: this process has the pool exclusively.
    pub fn server(&self) -> Option<u32> {
        self.server
    }

    /// The number of 2 MiB segments that files can have in the pool at the same time.
    pub fn capacity(&self) -> usize {
        self.opened().store.capacity()
    }

    /// Like [`Cache::open`].
    pub fn map(&self, path: &Path, room: u64) -> Result<MapFile> {
        self.opened().cache.open(path, room)
    }

    /// Maps a file again that was just closed.  `file` is the open file description that it had
    /// ([`MapFile::file`]).
    pub fn map_again(&self, path: &Path, room: u64, file: OwnedFd) -> Result<MapFile> {
        self.opened().cache.open_again(path, room, file)
    }

    /// Maps a file that other processes map at the same time by this call.  All processes see
    /// each other's stores and writes, and a sync by one covers all of them.  Requires a pool
    /// with a server.
    pub fn map_shared(&self, path: &Path, room: u64) -> Result<MapFile> {
        let open = self.opened();
        open.cache.wait_until_home(path)?;
        not_leased(path)?;
        let looked = RegularFile::look(path)?;
        let Some(served) = &open.served else {
            let why = "it is to be shared, and this process has the pool for itself: to share \
                       files the pool has to be served (forebay serve)";
            return Err(Error::Refused { path: looked.path().to_owned(), why: why.into() });
        };
        let host = {
            let mut host = lock(&open.host);
            match &*host {
                Some(host) => Arc::clone(host),
                None => Arc::clone(host.insert(Host::of(served)?)),
            }
        };
        let lent: Arc<dyn Lent> = Arc::<Host>::clone(&host);
        open.cache.visit(host, lent, looked.path(), looked.identity(), room)
    }

    /// The error of the last round of write-back, if it failed.
    pub fn failure(&self) -> Option<String> {
        self.opened().cache.failure()
    }

    /// Closes the map and the pool.  Fails if files are still open: they keep both open.
    pub fn close(mut self) -> Result<()> {
        let Some(open) = self.open.take() else { return Ok(()) };
        let Open { cache, host, served, store, pool } = open;
        drop(cache);
        drop((host, served));
        let in_use = Arc::strong_count(&store) > 1;
        drop(store);
        match pool {
            Some(pool) => Ok(pool.close()?),
            None if in_use => Err(Error::Pool("files are open: close them first".into())),
            None => Ok(()),
        }
    }
}

/// The map to use if none is named.
pub fn only_map(mut names: Vec<String>, pool: &Path) -> Result<String> {
    match (names.pop(), names.is_empty()) {
        (Some(name), true) => Ok(name),
        (None, _) => {
            let pool = pool.display();
            Err(Error::Pool(format!("it has no map: make one: forebay map add {pool} NAME")))
        }
        (Some(last), false) => {
            names.push(last);
            Err(Error::Pool(format!("it has several maps, name one: {}", names.join(", "))))
        }
    }
}

/// Whether a server has the pool open: it makes its control socket before it serves anything.
fn is_answered(wanted: &Wanted) -> bool {
    let found = forebay::inspect(&wanted.path).ok().and_then(|found| found.superblock);
    found.is_some_and(|sb| {
        UnixStream::connect(forebay::control_socket(&wanted.sockets, sb.uuid)).is_ok()
    })
}

/// Names the obstacle and the two ways to get the pool.
fn both_ways(wanted: &Wanted, busy: &forebay::Error, begins: bool) -> String {
    let shown = wanted.path.display();
    let sockets = wanted.sockets.display();
    match busy {
        _ if begins => format!(
            "{shown}: the process that serves it does not serve its maps, or not yet: forebay \
             status {shown} says why"
        ),
        forebay::Error::Busy { holder: Some(pid), .. } => format!(
            "{shown}: process {pid} has it open, and there is no socket of its maps in {sockets}: \
             it serves none, or its sockets are elsewhere (FOREBAY_RUNTIME_DIR, another user): either one process alone has a pool, until it ends, or forebay serve has \
             it, and several map files: stop process {pid}, and run: forebay serve {shown}"
        ),
        other => other.to_string(),
    }
}
