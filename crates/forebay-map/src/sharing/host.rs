// SPDX-License-Identifier: MIT OR Apache-2.0
//! A guest's connections to the server of shared files.  There are two besides the store's: one
//! for requests that may take long, and one for the server's orders.

use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use forebay_engine::lasting::{self, Lasting};

use super::{Lent, Order, Reply, Server, Visits};
use crate::error::{Error, Result};
use crate::frames::Frames;
use crate::link::{self, Link};
use crate::locked::lock;
use crate::pages::PageSet;
use crate::served::{unexpected, ServedStore};
use crate::store::{Place, Store, Synced};
use crate::threads;
use crate::wire::{self, Answer, Ordered, Request};

/// The timeout of requests that wait for other processes.
const LONG: Duration = Duration::from_secs(90);
/// How often a thread checks that its connection is still its own.
const TURN: Duration = Duration::from_secs(1);

/// The server, as a guest sees it.
#[derive(Debug)]
pub(crate) struct Host {
    store: Arc<ServedStore>,
    slow: Link,
    visits: Arc<Visits>,
    orders: Arc<Orders>,
    threads: Vec<JoinHandle<()>>,
    /// The places of frames that the server has lent.
    known: Frames,
}

/// The connection for orders.
#[derive(Debug)]
struct Orders {
    stream: Lasting<UnixStream>,
    /// The order that is being carried out, and the time when the server last heard about it.
    /// The lock is held while a message is sent.
    at_work: Mutex<Option<(u64, Instant)>>,
    begins: Condvar,
    ends: AtomicBool,
}

impl Orders {
    /// Carries out orders until the connection ends.
    fn obey(&self, visits: &Visits) -> io::Result<()> {
        let mut come = Vec::new();
        loop {
            while let Some((order, len)) = wire::message_in::<Ordered<Order>>(&come)? {
                come.drain(..len);
                *lock(&self.at_work) = Some((order.number, Instant::now()));
                self.begins.notify_one();
                let what = visits.obey(&order.what);
                let mut at_work = lock(&self.at_work);
                *at_work = None;
                self.say(&Ordered { number: order.number, what })?;
            }
            lasting::check(self.stream.as_fd())?;
            let mut some = [0; 4096];
            match (&*self.stream).read(&mut some) {
                Ok(0) => return Ok(()),
                Ok(n) => come.extend_from_slice(&some[..n]),
                Err(e) => match e.kind() {
                    io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {}
                    io::ErrorKind::Interrupted => {}
                    _ => return Err(e),
                },
            }
            if self.ends.load(Ordering::SeqCst) {
                return Ok(());
            }
        }
    }

    fn say(&self, what: &Ordered<Reply>) -> io::Result<()> {
        lasting::check(self.stream.as_fd())?;
        link::send(&self.stream, what)
    }

    /// Reports to the server that the process is alive while it works on an order.
    fn tell_of_work(&self) {
        let mut at_work = lock(&self.at_work);
        while !self.ends.load(Ordering::SeqCst) {
            let Some((number, since)) = *at_work else {
                at_work = self.begins.wait(at_work).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let left = wire::LIVES.saturating_sub(since.elapsed());
            if left.is_zero() {
                *at_work = Some((number, Instant::now()));
                if self.say(&Ordered { number, what: Reply::Working }).is_err() {
                    return;
                }
                continue;
            }
            let waited = self.begins.wait_timeout(at_work, left);
            at_work = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn end(&self) {
        {
            // With this lock held, the thread either sees the flag before it waits or is woken.
            let _at_work = lock(&self.at_work);
            self.ends.store(true, Ordering::SeqCst);
        }
        self.begins.notify_all();
    }
}

/// Opens another connection for the process of the store.
fn another(
    store: &ServedStore,
    first: &Request,
    patience: Duration,
) -> Result<Lasting<UnixStream>> {
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
        answer => Err(unexpected(&answer)),
    }
}

impl Host {
    pub fn of(store: &Arc<ServedStore>) -> Result<Arc<Host>> {
        let of = store.number;
        let orders = another(store, &Request::Orders { of }, link::PATIENCE)?;
        let slow = another(store, &Request::Also { of }, LONG)?;
        let set_up = orders.set_read_timeout(Some(TURN));
        set_up.map_err(|e| {
            Error::Pool(format!("the connection for its server's orders cannot be set up: {e}"))
        })?;
        let (at_work, begins, ends) = (Mutex::new(None), Condvar::new(), AtomicBool::new(false));
        let orders = Arc::new(Orders { stream: orders, at_work, begins, ends });
        let visits = Arc::<Visits>::default();
        let mut host = Host {
            store: Arc::clone(store),
            slow: Link::new(slow, store.server()),
            visits: Arc::clone(&visits),
            orders: Arc::clone(&orders),
            threads: Vec::new(),
            known: Frames::new(store.capacity() as u32),
        };
        let teller = Arc::clone(&orders);
        let obey = move || {
            let _ = orders.obey(&visits);
            orders.end();
            visits.are_abandoned();
        };
        let failed = |e| Error::Pool(format!("no thread: {e}"));
        host.threads.push(threads::spawn("map-orders", obey).map_err(failed)?);
        let tell = threads::spawn("map-alive", move || teller.tell_of_work());
        host.threads.push(tell.map_err(failed)?);
        Ok(Arc::new(host))
    }

    fn known<R>(&self, frame: u32, f: impl FnOnce(&crate::frames::Known) -> R) -> Result<R> {
        let unknown = || Err(Error::Pool(format!("frame {frame} was not lent to this process")));
        self.known.with(frame, unknown, f)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.orders.end();
        let stream = &self.orders.stream;
        let _ =
            lasting::check(stream.as_fd()).and_then(|()| stream.shutdown(std::net::Shutdown::Both));
        // The drop may run on one of these threads, if an order held the last reference.
        let own = |t: &JoinHandle<()>| t.thread().id() == std::thread::current().id();
        for thread in self.threads.drain(..).filter(|thread| !own(thread)) {
            let _ = thread.join();
        }
    }
}

impl Server for Host {
    fn ask(&self, request: &Request, slow: bool) -> Result<Answer> {
        let _asks = self.visits.asks();
        match slow {
            true => self.slow.ask(request),
            false => self.store.link.ask(request),
        }
    }

    fn ask_for(&self, request: &Request) -> Result<(Answer, Option<Lasting<OwnedFd>>)> {
        let _asks = self.visits.asks();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_works_long_on_an_order_reports_that() {
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        let orders = Orders {
            stream: ours.into(),
            at_work: Mutex::new(None),
            begins: Condvar::new(),
            ends: AtomicBool::new(false),
        };
        theirs.set_read_timeout(Some(Duration::from_secs(30))).expect("a limit");
        std::thread::scope(|s| {
            s.spawn(|| orders.tell_of_work());
            *lock(&orders.at_work) = Some((7, Instant::now()));
            orders.begins.notify_one();
            for _ in 0..2 {
                let said: Ordered<Reply> = wire::receive(&mut &theirs).expect("it lives");
                assert_eq!(said, Ordered { number: 7, what: Reply::Working });
            }
            *lock(&orders.at_work) = None;
            orders.end();
        });
    }
}
