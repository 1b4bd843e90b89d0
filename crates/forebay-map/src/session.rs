// SPDX-License-Identifier: MIT OR Apache-2.0
//! A pool that this process maps files onto, and closes in order.  The server of the pool gives
//! it a share of a map, beside other processes; where there is no server, this process opens the
//! pool for itself alone.  Nothing else decides which of both it is.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use forebay::{Persist, Pool, PoolOptions};

use crate::backing::{not_leased, Backing, RegularFile};
use crate::cache::{Cache, Options};
use crate::content::lock;
use crate::error::{Error, Result};
use crate::file::MapFile;
use crate::pool::PoolStore;
use crate::recover::{recover, Report};
use crate::served::ServedStore;
use crate::sharing::{Host, Lent};
use crate::store::Store;

/// So long a server is waited for that has the pool, and does not serve its maps yet.
const BEGINS: Duration = Duration::from_secs(5);
/// A server that has just opened the pool, and does not answer yet, is waited for so long. So is
/// a child that has just been forked, and has its parent's lock on the pool until it runs.
const OPENS: Duration = Duration::from_secs(2);

/// Which map of which pool.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// Where the pool is.
    pub path: PathBuf,
    /// The map's name; none: the only one that the pool has.
    pub map: Option<String>,
    /// How the pool is opened where there is no server.  Of a persist method that is named here
    /// a server is refused that has another one.
    pub pool: PoolOptions,
    /// Where there is no server, what a crash has left is brought home; otherwise, and where
    /// that cannot be, a file of which the pool has pages is refused when it is opened.  A
    /// server has brought it home before.
    pub bring_home: bool,
    /// Where the sockets of servers are.
    pub sockets: PathBuf,
}

impl Wanted {
    /// By the defaults.
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

/// A map that this process has open, or a share of.  Files are closed before it is.
#[derive(Debug)]
pub struct Session {
    /// None once it is being closed.
    open: Option<Open>,
    report: Option<Report>,
    server: Option<u32>,
}

/// Dropped in this order.
#[derive(Debug)]
struct Open {
    cache: Cache,
    /// Where files are shared: none until one is, or where there is no server.
    host: Mutex<Option<Arc<Host>>>,
    served: Option<Arc<ServedStore>>,
    store: Arc<dyn Store>,
    /// None: a server has it.
    pool: Option<Pool>,
}

impl Session {
    /// A share of the map of the pool's server, if there is one; else the pool itself.
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
                // The error that came first is the one to tell.
                let _ = pool.close();
                Err(e)
            }
        }
    }

    fn opened(&self) -> &Open {
        self.open.as_ref().expect("only close takes it")
    }

    /// What was brought home when it was opened, if that was asked for and there is no server.
    pub fn report(&self) -> Option<&Report> {
        self.report.as_ref()
    }

    /// The process that serves the pool.  None: this one has it alone.
    pub fn server(&self) -> Option<u32> {
        self.server
    }

    /// Segments of 2 MiB that files can have in the pool at a time.
    pub fn capacity(&self) -> usize {
        self.opened().store.capacity()
    }

    /// As [`Cache::open`].
    pub fn map(&self, path: &Path, room: u64) -> Result<MapFile> {
        self.opened().cache.open(path, room)
    }

    /// The same of a file that was mapped, and was closed just now: `file` is the open file
    /// description that it had ([`MapFile::file`]).
    pub fn map_again(&self, path: &Path, room: u64, file: OwnedFd) -> Result<MapFile> {
        self.opened().cache.open_again(path, room, file)
    }

    /// The same of a file that other processes map at the same time, each by this call: all see
    /// what each of them stores and writes, and a sync by one of them is one of all.  It takes a
    /// pool that is served.
    pub fn map_shared(&self, path: &Path, room: u64) -> Result<MapFile> {
        let open = self.opened();
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

    /// Why the last round of write-back failed, if it did.
    pub fn failure(&self) -> Option<String> {
        self.opened().cache.failure()
    }

    /// Closes map and pool.  Files that are still open keep both, and it is an error.
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

/// The map that is meant where none is named.
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

/// A server has the pool open: its control socket is there before it serves anything.
fn is_answered(wanted: &Wanted) -> bool {
    let found = forebay::inspect(&wanted.path).ok().and_then(|found| found.superblock);
    found.is_some_and(|sb| {
        UnixStream::connect(forebay::control_socket(&wanted.sockets, sb.uuid)).is_ok()
    })
}

/// What is in the way, and the two ways in which a pool can be had.
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
