// SPDX-License-Identifier: MIT OR Apache-2.0
//! The protocol between writer and receiver, over TCP.  Every message has a fixed size, so that
//! nothing on the wire is a length.
//!
//! | message | bytes | content |
//! |---|---|---|
//! | hello | 280 | magic, kind (1: a new run, 2: what is known of a run), parameters, CRC |
//! | answer | 288 | magic, status, end, round trip, the run's last step, parameters, CRC |
//! | step | 16 | number, CRC from the run's UUID, the last round trip; the receiver sends it back when it has it |
//! | end | 16 | the same, with a number above all steps: how the writer ends |
//! | alive | 16 | the same; nothing is sent back |
//!
//! A hello that asks has only the UUID of its parameters, in their place.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::Path;
use std::sync::{mpsc, Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use forebay_engine::sys::crc32c;

use super::journal::{slot_of, Journal, RunEnd, ALIVE, SLOT_BYTES, STEPS_MOST};
use super::run::{Run, RUN_BYTES};
use crate::error::{Error, Result};
use crate::report::Uuid;

const MAGIC: &[u8; 8] = b"FBYMEDT2";
pub(super) const HELLO_BYTES: usize = 16 + RUN_BYTES + 8;
pub(super) const ANSWER_BYTES: usize = 24 + RUN_BYTES + 8;
/// Offset of the UUID in the parameters.
const UUID_AT: usize = 16;
/// How long a receiver may take to answer.
const PATIENCE: Duration = Duration::from_secs(20);
/// Between two signs of life of a writer.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// The request of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Hello {
    New(Run),
    Ask(Uuid),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    Ok = 0,
    /// The receiver does not know the run.
    Unknown = 1,
    /// It knows the run already, or has too many, or cannot keep it.
    Refused = 2,
}

fn sealed<const N: usize>(mut message: [u8; N]) -> [u8; N] {
    let crc = crc32c(0, &message[..N - 8]);
    message[N - 8..N - 4].copy_from_slice(&crc.to_le_bytes());
    message
}

fn is_sealed(message: &[u8]) -> bool {
    let (content, crc) = message.split_at(message.len() - 8);
    content.starts_with(MAGIC) && crc[..4] == crc32c(0, content).to_le_bytes() && crc[4..] == [0; 4]
}

impl Hello {
    pub(super) fn encode(&self) -> [u8; HELLO_BYTES] {
        let mut out = [0; HELLO_BYTES];
        out[..8].copy_from_slice(MAGIC);
        match self {
            Hello::New(run) => {
                out[8] = 1;
                out[16..16 + RUN_BYTES].copy_from_slice(&run.encode());
            }
            Hello::Ask(uuid) => {
                out[8] = 2;
                out[16 + UUID_AT..][..16].copy_from_slice(&uuid.0);
            }
        }
        sealed(out)
    }

    pub(super) fn decode(bytes: &[u8; HELLO_BYTES]) -> Option<Hello> {
        if !is_sealed(bytes) || bytes[9..16] != [0; 7] {
            return None;
        }
        let run = &bytes[16..16 + RUN_BYTES];
        match bytes[8] {
            1 => Some(Hello::New(Run::decode(run)?)),
            2 => Some(Hello::Ask(Uuid(run[UUID_AT..UUID_AT + 16].try_into().ok()?))),
            _ => None,
        }
    }
}

pub(super) fn answer(status: Status, known: Option<&Journal>) -> [u8; ANSWER_BYTES] {
    let mut out = [0; ANSWER_BYTES];
    out[..8].copy_from_slice(MAGIC);
    out[8] = status as u8;
    if let Some(journal) = known {
        out[9] = journal.end.map_or(0, |end| (u64::MAX - end.number()) as u8 + 1);
        out[12..16].copy_from_slice(&journal.round_trip_us.to_le_bytes());
        out[16..24].copy_from_slice(&journal.steps.to_le_bytes());
        out[24..24 + RUN_BYTES].copy_from_slice(&journal.run.encode());
    }
    sealed(out)
}

/// `None`: it is no answer, or says what no receiver can know.
fn answered(bytes: &[u8; ANSWER_BYTES]) -> Option<(u8, Option<Journal>)> {
    if !is_sealed(bytes) {
        return None;
    }
    let round_trip_us = u32::from_le_bytes(bytes[12..16].try_into().ok()?);
    let steps = u64::from_le_bytes(bytes[16..24].try_into().ok()?);
    let end = match bytes[9] {
        0 => None,
        n => Some(RunEnd::of_number(u64::MAX - u64::from(n - 1))?),
    };
    if steps > STEPS_MOST {
        return None;
    }
    let journal = |run| Journal { run, steps, round_trip_us, end };
    Some((bytes[8], Run::decode(&bytes[24..]).map(journal)))
}

/// Fills the buffer before the deadline, or not at all; `stop` is looked at several times a
/// second.
pub(super) fn receive(
    from: &mut TcpStream,
    to: &mut [u8],
    deadline: Instant,
    stop: &dyn Fn() -> bool,
) -> io::Result<()> {
    let mut have = 0;
    while have < to.len() {
        if stop() {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        from.set_read_timeout(Some(left.min(Duration::from_millis(200))))?;
        match from.read(&mut to[have..]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => have += n,
            Err(e)
                if matches!(
                    e.kind(),
                    io::ErrorKind::WouldBlock
                        | io::ErrorKind::TimedOut
                        | io::ErrorKind::Interrupted
                ) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// A connection to a receiver.
#[derive(Debug)]
pub(super) struct Link {
    server: String,
    stream: TcpStream,
    /// The sending side of the connection: a message is sent whole.
    outgoing: Arc<Mutex<TcpStream>>,
    /// The thread that gives signs of life ends with it.
    alive: Option<mpsc::Sender<()>>,
    round_trip: Duration,
}

impl Link {
    pub(super) fn open(server: &str) -> Result<Link> {
        let failed = |cause: String| unreachable(server, cause);
        let addresses = server.to_socket_addrs().map_err(|e| failed(e.to_string()))?;
        let mut cause = "its name has no address".to_string();
        for address in addresses {
            match TcpStream::connect_timeout(&address, Duration::from_secs(5)) {
                Ok(stream) => {
                    let set = stream
                        .set_nodelay(true)
                        .and_then(|()| stream.set_write_timeout(Some(PATIENCE)))
                        .and_then(|()| stream.try_clone());
                    return Ok(Link {
                        server: server.into(),
                        outgoing: Arc::new(Mutex::new(set.map_err(|e| failed(e.to_string()))?)),
                        stream,
                        alive: None,
                        round_trip: Duration::ZERO,
                    });
                }
                Err(e) => cause = e.to_string(),
            }
        }
        Err(failed(cause))
    }

    fn failed(&self, e: io::Error) -> Error {
        let cause = match e.kind() {
            io::ErrorKind::UnexpectedEof => "the receiver ended the connection".into(),
            io::ErrorKind::TimedOut => format!("no answer in {} s", PATIENCE.as_secs()),
            _ => e.to_string(),
        };
        unreachable(&self.server, cause)
    }

    fn exchange<const N: usize>(&mut self, message: &[u8]) -> Result<[u8; N]> {
        let mut out = [0; N];
        let sent = self.outgoing.lock().unwrap_or_else(PoisonError::into_inner).write_all(message);
        sent.map_err(|e| self.failed(e))?;
        let deadline = Instant::now() + PATIENCE;
        // Not interrupted: an answer comes, or the time is over.
        receive(&mut self.stream, &mut out, deadline, &|| false).map_err(|e| self.failed(e))?;
        Ok(out)
    }

    fn greet(&mut self, hello: &Hello) -> Result<(u8, Option<Journal>)> {
        let bytes = self.exchange::<ANSWER_BYTES>(&hello.encode())?;
        let strange = "it answers, and not as forebay media-test --receive does";
        answered(&bytes).ok_or_else(|| unreachable(&self.server, strange.into()))
    }

    /// The receiver keeps the run from here on, and hears that the writer lives.
    pub(super) fn begin(&mut self, run: &Run) -> Result<()> {
        self.begin_with(run, KEEP_ALIVE)
    }

    pub(super) fn begin_with(&mut self, run: &Run, each: Duration) -> Result<()> {
        match self.greet(&Hello::New(run.clone()))? {
            (status, _) if status == Status::Ok as u8 => {}
            _ => {
                return Err(unreachable(
                    &self.server,
                    "the receiver refuses the run; what it says there is why".into(),
                ))
            }
        }
        let (alive, ended) = mpsc::channel();
        let (outgoing, message) = (self.outgoing.clone(), slot_of(run, ALIVE, 0));
        let keep_alive = move || {
            while ended.recv_timeout(each) == Err(mpsc::RecvTimeoutError::Timeout) {
                let sent =
                    outgoing.lock().unwrap_or_else(PoisonError::into_inner).write_all(&message);
                if sent.is_err() {
                    return; // the next step shows it
                }
            }
        };
        let thread = std::thread::Builder::new().name("fby-alive".into()).spawn(keep_alive);
        thread.map_err(|e| self.failed(e))?;
        self.alive = Some(alive);
        Ok(())
    }

    /// Returns when the receiver has the step.
    pub(super) fn tell(&mut self, run: &Run, step: u64) -> Result<()> {
        let message = slot_of(run, step, self.round_trip_us());
        let began = Instant::now();
        let answer = self.exchange::<SLOT_BYTES>(&message)?;
        let took = began.elapsed();
        self.round_trip = match self.round_trip {
            Duration::ZERO => took,
            before => (before * 7 + took) / 8,
        };
        match answer == message {
            true => Ok(()),
            false => Err(unreachable(&self.server, "the receiver answers another step".into())),
        }
    }

    /// How long the receiver takes to answer a step.
    pub(super) fn round_trip_us(&self) -> u32 {
        u32::try_from(self.round_trip.as_micros()).unwrap_or(u32::MAX)
    }

    pub(super) fn tell_end(&mut self, run: &Run, end: RunEnd) -> Result<()> {
        self.tell(run, end.number())
    }
}

fn unreachable(server: &str, cause: String) -> Error {
    Error::NoReceiver {
        server: server.into(),
        cause,
        way_out:
            "see that forebay media-test --receive runs there, and that no firewall is between"
                .into(),
    }
}

/// The receiver's knowledge of a run.
pub fn ask(server: &str, run: Uuid) -> Result<Journal> {
    match Link::open(server)?.greet(&Hello::Ask(run))? {
        (status, Some(journal)) if status == Status::Ok as u8 && journal.run.uuid == run => {
            Ok(journal)
        }
        _ => Err(Error::NotFound {
            path: Path::new(server).join(run.to_string()),
            way_out: "the receiver does not know that run: see that it uses the directory of then (--directory)".into(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::super::run::tests::run;
    use super::super::run::Modes;
    use super::*;

    #[test]
    fn messages_are_read_as_they_were_sent_and_not_with_a_bit_flipped() {
        for hello in [Hello::New(run(64, Modes::Flush)), Hello::Ask(Uuid([3; 16]))] {
            let bytes = hello.encode();
            assert_eq!(Hello::decode(&bytes), Some(hello));
            for bit in 0..HELLO_BYTES * 8 {
                let mut bad = bytes;
                bad[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(Hello::decode(&bad), None, "bit {bit}");
            }
        }
        let journal = |end| Journal { run: run(64, Modes::Both), steps: 77, round_trip_us: 9, end };
        for end in [None, Some(RunEnd::Uncut), Some(RunEnd::DiskFailed), Some(RunEnd::Stalled)] {
            let bytes = answer(Status::Ok, Some(&journal(end)));
            assert_eq!(answered(&bytes), Some((0, Some(journal(end)))));
        }
        // More steps than a run can have would be compared for ever.
        for steps in [STEPS_MOST + 1, u64::MAX - 1, u64::MAX] {
            let bytes = answer(Status::Ok, Some(&Journal { steps, ..journal(None) }));
            assert_eq!(answered(&bytes), None);
        }
        let bytes = answer(Status::Ok, Some(&journal(Some(RunEnd::Uncut))));
        for bit in 0..ANSWER_BYTES * 8 {
            let mut bad = bytes;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(answered(&bad), None, "bit {bit}");
        }
        assert_eq!(answered(&answer(Status::Unknown, None)), Some((1, None)));
    }

    #[test]
    fn a_receiver_that_is_not_there_is_named() {
        let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        for server in [&*closed.to_string(), "127.0.0.1", "", "127.0.0.1:99999"] {
            let e = ask(server, Uuid([1; 16])).unwrap_err();
            assert_eq!(e.exit_code(), 18, "{e}");
            assert!(
                e.to_string().starts_with(server) && e.to_string().contains("--receive"),
                "{e}"
            );
        }
    }
}
