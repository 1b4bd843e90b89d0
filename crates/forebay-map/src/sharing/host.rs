// SPDX-License-Identifier: MIT OR Apache-2.0
//! The server of files that are shared, in another process: two connections to it beside the
//! store's, one for what may take long, and one at which it gives orders.

use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use forebay_engine::lasting::{self, Lasting};

use super::{Lent, Order, Server, Visits};
use crate::error::{Error, Result};
use crate::frames::Frames;
use crate::link::{self, Link};
use crate::pages::PageSet;
use crate::served::ServedStore;
use crate::store::{Store, Synced};
use crate::wire::{self, Answer, Ordered, Place, Request};

/// What waits for other processes may take so long.
const LONG: Duration = Duration::from_secs(90);
/// How soon the thread sees that its connection is not what it was.
const TURN: Duration = Duration::from_secs(1);

/// That server, as a guest asks it.
#[derive(Debug)]
pub(crate) struct Host {
    store: Arc<ServedStore>,
    slow: Link,
    visits: Arc<Visits>,
    orders: Arc<Lasting<UnixStream>>,
    thread: Option<JoinHandle<()>>,
    ends: Arc<AtomicBool>,
    /// Where frames are that it has lent.
    known: Frames,
}

/// Another connection of the process that the store is.
fn another(store: &ServedStore, first: &Request, patience: Duration) -> Result<UnixStream> {
    let failed = |e: io::Error| Error::Pool(format!("its server does not answer: {e}"));
    let path = store.link.path().map_err(failed)?;
    let Some(stream) = link::connect(&path).map_err(failed)? else {
        return Err(Error::Pool("its server has ended".into()));
    };
    link::check_server(&stream)?;
    let said = link::set_up(&stream, patience).and_then(|()| {
        link::send(&stream, first)?;
        link::receive(&stream)
    });
    match said.map_err(failed)?.0 {
        Answer::Done => Ok(stream),
        Answer::Failed { why, .. } => Err(Error::Pool(why)),
        answer => Err(Error::Pool(format!("its server says {answer:?}"))),
    }
}

impl Host {
    pub fn of(store: &Arc<ServedStore>) -> Result<Arc<Host>> {
        let of = store.number;
        let orders = another(store, &Request::Orders { of }, link::PATIENCE)?;
        let slow = another(store, &Request::Also { of }, LONG)?;
        let set_up = orders.set_read_timeout(Some(TURN));
        set_up.map_err(|e| Error::Pool(format!("its server is not heard: {e}")))?;
        let orders = Arc::new(Lasting::from(orders));
        let (visits, ends) = (Arc::<Visits>::default(), Arc::<AtomicBool>::default());
        let thread = {
            let (orders, visits, ends) =
                (Arc::clone(&orders), Arc::clone(&visits), Arc::clone(&ends));
            let thread = std::thread::Builder::new().name("map-orders".into());
            thread.spawn(move || {
                let _ = obey(&orders, &visits, &ends);
                visits.are_abandoned();
            })
        };
        let thread = thread.map_err(|e| Error::Pool(format!("no thread: {e}")))?;
        Ok(Arc::new(Host {
            store: Arc::clone(store),
            slow: Link::new(slow, store.server()),
            visits,
            orders,
            thread: Some(thread),
            ends,
            known: Frames::new(store.capacity() as u32),
        }))
    }

    fn known<R>(&self, frame: u32, f: impl FnOnce(&crate::frames::Known) -> R) -> Result<R> {
        let unknown = || Err(Error::Pool(format!("frame {frame} was not lent to this process")));
        self.known.with(frame, unknown, f)
    }
}

/// Carries out what the server orders, as long as it does.
fn obey(orders: &Lasting<UnixStream>, visits: &Visits, ends: &AtomicBool) -> io::Result<()> {
    let mut come = Vec::new();
    loop {
        while let Some((order, len)) = wire::message_in::<Ordered<Order>>(&come)? {
            come.drain(..len);
            let said = Ordered { number: order.number, what: visits.obey(&order.what) };
            lasting::check(orders.as_fd())?;
            link::send(orders, &said)?;
        }
        lasting::check(orders.as_fd())?;
        let mut some = [0; 4096];
        match (&**orders).read(&mut some) {
            Ok(0) => return Ok(()),
            Ok(n) => come.extend_from_slice(&some[..n]),
            Err(e) => match e.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {}
                io::ErrorKind::Interrupted => {}
                _ => return Err(e),
            },
        }
        if ends.load(Ordering::SeqCst) {
            return Ok(());
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::SeqCst);
        let _ = lasting::check(self.orders.as_fd())
            .and_then(|()| self.orders.shutdown(std::net::Shutdown::Both));
        // Its thread may be the last one that has it, by an order.
        let own = |t: &JoinHandle<()>| t.thread().id() == std::thread::current().id();
        if let Some(thread) = self.thread.take().filter(|thread| !own(thread)) {
            let _ = thread.join();
        }
    }
}

impl Server for Host {
    fn ask(&self, request: &Request, slow: bool) -> Result<Answer> {
        match slow {
            true => self.slow.ask(request),
            false => self.store.link.ask(request),
        }
    }

    fn ask_for(&self, request: &Request) -> Result<(Answer, Option<OwnedFd>)> {
        self.slow.ask_for(request)
    }

    fn visits(&self) -> &Arc<Visits> {
        &self.visits
    }
}

impl Lent for Host {
    fn memory(&self) -> BorrowedFd<'_> {
        self.store.memory()
    }

    fn learn(&self, frame: u32, place: Option<&Place>) -> Result<()> {
        match place {
            Some(place) => self.known.learn(frame, self.store.at(*place)?),
            None => Err(Error::Pool("its server does not say where a frame is".into())),
        }
    }

    fn offset(&self, frame: u32) -> Result<u64> {
        self.known(frame, |k| k.at)
    }

    fn fill(&self, frame: u32, at: usize, from: &[u8]) -> Result<()> {
        self.known(frame, |k| k.frame.copy_in(at, from))
    }

    fn copy(&self, frame: u32, at: usize, to: &mut [u8]) -> Result<()> {
        self.known(frame, |k| k.frame.copy_out(at, to))
    }

    fn write_back_caches(&self, frame: u32) -> Result<()> {
        self.known(frame, |k| k.frame.write_back_caches())
    }

    fn sync(&self, frame: u32, pages: &PageSet) -> Result<Synced> {
        let synced = self.known(frame, |k| k.frame.sync(&pages.bits()))?;
        match synced.map_err(|e| Error::Pool(e.to_string()))? {
            true => Ok(Synced::Durable),
            false => Ok(Synced::BehindEnd),
        }
    }
}
