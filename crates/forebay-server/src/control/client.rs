// SPDX-License-Identifier: MIT OR Apache-2.0
//! The side that asks.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::ops::ControlFlow;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay::{
    inspect, Completeness, DrainProgress, Error as PoolError, FileFate, FileTrouble, OptionsChange,
    OptionsInfo, Uuid, VolumeChange,
};
use serde_json::Value;

use super::{Answer, Request, ANSWER_MAX};
use crate::service::{Progress, ServerStatus, ServiceStatus};
use crate::{socket, Error, Result};

/// A server that says nothing for so long is taken for dead, unless the caller has less
/// time.  It answers at once, or when a connection that is idle has made room.
const PATIENCE: Duration = Duration::from_secs(10);

/// A connection to the process that has a pool open.
#[derive(Debug)]
pub struct Client {
    socket: PathBuf,
    stream: BufReader<UnixStream>,
    patience: Duration,
}

impl Client {
    /// `None`: nobody answers for a pool of this UUID.
    pub fn connect(dir: &Path, uuid: Uuid) -> Result<Option<Client>> {
        Client::connect_within(dir, uuid, PATIENCE, None)
    }

    /// Believes a server of this user or of root, or of the pool's owner.
    fn connect_within(
        dir: &Path,
        uuid: Uuid,
        patience: Duration,
        owner: Option<u32>,
    ) -> Result<Option<Client>> {
        Client::connect_at(forebay::control_socket(dir, uuid), patience, owner)
    }

    fn connect_at(path: PathBuf, patience: Duration, owner: Option<u32>) -> Result<Option<Client>> {
        let stream = match socket::connect(&path, patience) {
            Ok(stream) => stream,
            Err(e)
                if matches!(
                    e.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
                ) =>
            {
                return Ok(None)
            }
            Err(e) if silent(&e) => return Err(no_answer(&path, patience)),
            Err(e) => return Err(PoolError::system(&path, "connecting to it", e).into()),
        };
        forebay::check_peer(&stream, owner).map_err(|e| match e.kind() {
            io::ErrorKind::PermissionDenied => PoolError::Permission {
                path: path.clone(),
                doing: "asking there",
                way_out: e.to_string(),
            },
            _ => PoolError::system(&path, "asking who is there", e),
        })?;
        let set = stream
            .set_read_timeout(Some(patience))
            .and_then(|()| stream.set_write_timeout(Some(patience)));
        set.map_err(|e| PoolError::system(&path, "setting it up", e))?;
        Ok(Some(Client { socket: path, stream: BufReader::new(stream), patience }))
    }

    /// Finds the server by the number of the pool's file or device, so that nobody waits for its
    /// disk, which may hang.  Where that finds none, the pool is read for its UUID.  A copy of a
    /// pool has the same UUID: the server must have this very file or device, otherwise
    /// [`Error::OtherPool`].
    pub fn for_pool(dir: &Path, pool: &Path) -> Result<Option<Client>> {
        Client::for_pool_within(dir, pool, PATIENCE)
    }

    /// Connects with a time limit for each answer.
    pub fn for_pool_within(dir: &Path, pool: &Path, patience: Duration) -> Result<Option<Client>> {
        let owner = std::fs::metadata(pool).ok().map(|found| found.uid());
        if let Some(client) = Client::of_media(dir, pool, patience, owner)? {
            return Ok(Some(client));
        }
        let asked = match inspect(pool) {
            Ok(asked) => asked,
            Err(e @ PoolError::NotFound { .. }) => {
                let lost = Client::of_lost(dir, pool, patience);
                return lost.map(|(client, _)| Some(client)).ok_or_else(|| e.into());
            }
            Err(e) => return Err(e.into()),
        };
        let Some(sb) = asked.superblock else { return Ok(None) };
        let Some(mut client) = Client::connect_within(dir, sb.uuid, patience, owner)? else {
            return Ok(None);
        };
        let answered = client.status()?;
        match answered.pool.media.id == asked.id {
            true => Ok(Some(client)),
            false => Err(Error::OtherPool {
                asked: pool.into(),
                served: answered.pool.media.path,
                pid: answered.pool.pid,
            }),
        }
    }

    /// The server of a pool whose file had this path, and was removed or moved, and what it says.  Of
    /// several that had it one after another, the last.
    pub fn of_lost(dir: &Path, pool: &Path, patience: Duration) -> Option<(Client, FileTrouble)> {
        let asked = place_of(pool)?;
        let sockets = std::fs::read_dir(dir).ok()?.flatten().map(|entry| entry.path());
        let sockets = sockets.filter(|path| path.extension().is_some_and(|e| e == "sock"));
        let lost = sockets.filter_map(|socket| {
            let mut client = Client::connect_at(socket, patience, None).ok()??;
            let served = client.status().ok()?.pool;
            let trouble = served.file_trouble?;
            let gone = matches!(trouble.what, FileFate::Removed | FileFate::Moved);
            let is_it = gone && place_of(&trouble.path).is_some_and(|place| place == asked);
            is_it.then_some((served.uptime_seconds, client, trouble))
        });
        let last = lost.min_by(|(a, ..), (b, ..)| a.total_cmp(b));
        last.map(|(_, client, trouble)| (client, trouble))
    }

    /// By the link that the server has made.  `None`: there is none, or an old one.
    fn of_media(
        dir: &Path,
        pool: &Path,
        patience: Duration,
        owner: Option<u32>,
    ) -> Result<Option<Client>> {
        let Some(id) = forebay::media_id(pool) else { return Ok(None) };
        let Ok(socket) = std::fs::read_link(forebay::control_link(dir, &id)) else {
            return Ok(None);
        };
        let Some(name) = socket.file_name() else { return Ok(None) };
        let Some(mut client) = Client::connect_at(dir.join(name), patience, owner)? else {
            return Ok(None);
        };
        Ok((client.status()?.pool.media.id == id).then_some(client))
    }

    pub fn status(&mut self) -> Result<ServerStatus> {
        self.send(&Request::Status)?;
        match self.receive()? {
            Answer::Status(status) => Ok(*status),
            other => Err(self.unexpected(&other)),
        }
    }

    /// Changes options of the open pool.
    pub fn set(&mut self, options: &OptionsChange) -> Result<OptionsInfo> {
        self.send(&Request::Set { options: options.clone() })?;
        match self.receive()? {
            Answer::Options(options) => Ok(options),
            other => Err(self.unexpected(&other)),
        }
    }

    /// Changes a volume, or all that are attached.
    pub fn set_volume(&mut self, volume: Option<&str>, change: &VolumeChange) -> Result<()> {
        let volume = volume.map(Into::into);
        self.send(&Request::SetVolume { volume, options: change.clone() })?;
        match self.receive()? {
            Answer::Done(_) => Ok(()),
            other => Err(self.unexpected(&other)),
        }
    }

    /// Drains a volume, or all that are attached and what is held for services, and returns for each volume,
    /// attached or not, whether its origin is complete now.  When the progress
    /// function breaks, the connection and with it the drain ends.
    pub fn drain(
        mut self,
        volume: Option<&str>,
        progress: &mut dyn FnMut(&str, &DrainProgress) -> ControlFlow<()>,
    ) -> Result<Vec<Completeness>> {
        self.send(&Request::Drain { volume: volume.map(Into::into) })?;
        let mut last = volume.unwrap_or("of the pool").to_string();
        loop {
            match self.receive_some()? {
                Some(Answer::Progress { volume, progress: p }) => {
                    if progress(&volume, &p).is_break() {
                        return Err(PoolError::Interrupted { name: volume }.into());
                    }
                    last = volume;
                }
                Some(Answer::Working(_)) => {}
                Some(Answer::Drained(judged)) => return Ok(judged),
                Some(other) => return Err(self.unexpected(&other)),
                None => return Err(PoolError::Stopped { name: last, why: "ended" }.into()),
            }
        }
    }

    /// Has a service of the kind started.  When the progress function breaks, the
    /// connection ends, and with it what is not finished.
    pub fn start(
        mut self,
        kind: &str,
        options: Value,
        progress: &mut Progress<'_>,
    ) -> Result<ServiceStatus> {
        self.send(&Request::Start { kind: kind.into(), options })?;
        match self.worked(progress)? {
            Answer::Started(status) => Ok(*status),
            other => Err(self.unexpected(&other)),
        }
    }

    /// Has one stopped; with `keep` what the pool holds for it stays there.
    pub fn stop(
        mut self,
        kind: &str,
        name: &str,
        keep: bool,
        progress: &mut Progress<'_>,
    ) -> Result<()> {
        self.send(&Request::Stop { kind: kind.into(), name: name.into(), keep })?;
        match self.worked(progress)? {
            Answer::Done(_) => Ok(()),
            other => Err(self.unexpected(&other)),
        }
    }

    /// Asks the first service of a kind, which says what it understands.
    pub fn call(
        mut self,
        kind: &str,
        request: Value,
        progress: &mut Progress<'_>,
    ) -> Result<Value> {
        self.send(&Request::Call { kind: kind.into(), request })?;
        match self.worked(progress)? {
            Answer::Called(answer) => Ok(answer),
            other => Err(self.unexpected(&other)),
        }
    }

    /// The answer after all that is told of the way to it.
    fn worked(&mut self, progress: &mut Progress<'_>) -> Result<Answer> {
        loop {
            match self.receive()? {
                Answer::Working(work) if progress(&work).is_continue() => {}
                Answer::Working(work) => {
                    let what = format!("interrupted: {}", work.what);
                    return Err(Error::service(13, what, "see forebay status"));
                }
                answer => return Ok(answer),
            }
        }
    }

    fn send(&mut self, request: &Request) -> Result<()> {
        let line = serde_json::to_string(request).map_err(|e| self.failed(e.to_string()))?;
        let sent = self.stream.get_mut().write_all(format!("{line}\n").as_bytes());
        sent.map_err(|e| self.broken(e))
    }

    fn receive(&mut self) -> Result<Answer> {
        let answer = self.receive_some()?;
        answer.ok_or_else(|| self.closed())
    }

    /// `None`: the connection was closed.
    fn receive_some(&mut self) -> Result<Option<Answer>> {
        let mut line = Vec::new();
        let read = self.stream.by_ref().take(ANSWER_MAX as u64).read_until(b'\n', &mut line);
        match read {
            Ok(_) if line.ends_with(b"\n") => {}
            Ok(n) if n < ANSWER_MAX => return Ok(None),
            Ok(_) => return Err(self.failed("the answer is too long".into())),
            Err(e) if e.kind() == io::ErrorKind::ConnectionReset => return Ok(None),
            Err(e) => return Err(self.broken(e)),
        }
        match serde_json::from_slice(&line) {
            Ok(Answer::Error { message, exit_code }) => Err(Error::Control {
                socket: self.socket.clone(),
                cause: message,
                way_out: "this is the answer of the process that has the pool open".into(),
                code: exit_code,
            }),
            Ok(answer) => Ok(Some(answer)),
            Err(e) => Err(self.failed(format!("the answer is not understood: {e}"))),
        }
    }

    fn broken(&self, e: io::Error) -> Error {
        match e.kind() {
            _ if silent(&e) => no_answer(&self.socket, self.patience),
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => self.closed(),
            _ => self.failed(e.to_string()),
        }
    }

    /// The server closed the connection before it answered: it ends.
    fn closed(&self) -> Error {
        Error::Control {
            socket: self.socket.clone(),
            cause: "the connection was closed before the answer".into(),
            way_out: "the process that has the pool open has stopped, or was ended: try again"
                .into(),
            code: 13,
        }
    }

    fn failed(&self, cause: String) -> Error {
        Error::Control {
            socket: self.socket.clone(),
            cause,
            way_out:
                "see whether the process that has the pool open still runs, and is of this version"
                    .into(),
            code: 0,
        }
    }

    fn unexpected(&self, answer: &Answer) -> Error {
        self.failed(format!("the answer is not one to this request: {answer:?}"))
    }
}

/// The place of a file that may be gone, by whatever path of its directory.
fn place_of(path: &Path) -> Option<PathBuf> {
    let path = std::path::absolute(path).ok()?;
    let directory = path.parent()?;
    let directory = std::fs::canonicalize(directory).unwrap_or_else(|_| directory.into());
    Some(directory.join(path.file_name()?))
}

/// A timeout, as the system says it for a socket, or as we do.
fn silent(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

fn no_answer(socket: &Path, patience: Duration) -> Error {
    Error::Control {
        socket: socket.into(),
        cause: format!("no answer for {} s", patience.as_secs()),
        way_out: "the process that has the pool open is stopped or hangs: see it with ps, continue it (kill -CONT) or end it".into(),
        code: 0,
    }
}
