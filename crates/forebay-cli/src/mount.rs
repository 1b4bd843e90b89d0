// SPDX-License-Identifier: MIT OR Apache-2.0
//! `forebay mount` and `forebay umount`: a tree mounted by the server of its pool, or by
//! one that is started for it.

use std::io::{BufRead, BufReader, Read};
use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use forebay::{Pool, Uuid};
use forebay_mount::replay::Accept;
use forebay_mount::service::{whole, MountRequest, Mounts, KIND};
use forebay_mount::{is_mounted, Flags, Unanswered, ENDING_WAIT};
use forebay_server::{
    control::Client, runtime_dir, Error as ServerError, Server, ServiceStatus, Work,
};
use indicatif::{ProgressBar, ProgressStyle};
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::process::{
    kill_process, pidfd_open, waitid, Pid, PidfdFlags, Signal, WaitId, WaitIdOptions,
};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::args::MountHow;
use crate::interrupt::{raise_open_files, Hangup, Interrupt, INTERRUPTED};
use crate::{args, open, out};

pub fn run(a: &args::Mount) -> anyhow::Result<u8> {
    let request = request(&a.tree, a.mountpoint.as_deref(), &a.how)?;
    let pool = whole(&a.pool).unwrap_or_else(|_| a.pool.clone());
    // From here on a signal is an order to end, with its exit code, whatever this process does.
    let (begun, interrupt) = (Instant::now(), Interrupt::watch()?);
    loop {
        if interrupt.came() {
            return Err(interrupted(&request.mountpoint, "nothing was mounted").into());
        }
        // The tree whose mount is in the way.
        let mut tree = request.tree.clone();
        let mounted = match Client::for_pool(&runtime_dir(), &pool) {
            Ok(Some(client)) => by_server(a, client, &request, &interrupt, &mut tree),
            Ok(None) if a.foreground => match open::pool(&a.pool, &a.media.read_write()) {
                Ok(pool) => return here(a, &request, pool, &interrupt),
                Err(e) => Err(e.into()),
            },
            Ok(None) => return by_child(a, &pool, &request, &interrupt),
            Err(e) => Err(e.into()),
        };
        let waits = begun.elapsed() < ENDING_WAIT;
        let cut_off = |e| interrupt.came() && crate::exit_code(e) == INTERRUPTED;
        match mounted {
            Err(e) if waits && is_ending(&e, &tree) && !cut_off(&e) => {
                std::thread::sleep(Duration::from_millis(50));
            }
            mounted => return mounted,
        }
    }
}

fn interrupted(mountpoint: &Path, state: &str) -> ServerError {
    ServerError::service(
        INTERRUPTED,
        format!("interrupted: mounting {}", mountpoint.display()),
        state,
    )
}

/// The pool, the log or the tree is in use, or a server has just gone, and no mount of the tree
/// is to be seen: somebody has unmounted it, and its server ends.
fn is_ending(e: &anyhow::Error, tree: &Path) -> bool {
    const BUSY: u8 = 4;
    [BUSY, INTERRUPTED].contains(&crate::exit_code(e)) && !is_mounted(tree)
}

/// With whole paths, for whoever mounts need not be in the same directory.
pub fn request(
    tree: &Path,
    mountpoint: Option<&Path>,
    how: &MountHow,
) -> anyhow::Result<MountRequest> {
    let found = |path: &Path| {
        whole(path).with_context(|| format!("{}: cannot be looked at", path.display()))
    };
    let tree = found(tree)?;
    let mountpoint = mountpoint.map(found).transpose()?.unwrap_or_else(|| tree.clone());
    Ok(MountRequest {
        tree,
        mountpoint,
        log: how.log.clone(),
        read_only: how.read_only,
        allow_other: how.allow_other || rustix::process::geteuid().is_root(),
        write_back: how.write_back,
        log_writes: how.log_writes,
        slow_log: how.slow_log,
        names_at_sync: how.names_at_sync,
        flags: how.flags,
        sync_interval_s: how.sync_interval.as_secs_f64(),
        sync_bytes: how.sync_bytes,
        accept: how.accept,
        // It need not be there.
        salvage: how.salvage.as_deref().map(std::path::absolute).transpose()?,
    })
}

/// A line of output in the foreground, as JSON; the process that started the mount reads it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Line {
    /// Nobody can ask this server, and why.
    Unreachable(String),
    Working(Work),
    Mounted(Box<ServiceStatus>),
}

fn by_server(
    a: &args::Mount,
    mut client: Client,
    request: &MountRequest,
    interrupt: &Interrupt,
    tree: &mut PathBuf,
) -> anyhow::Result<u8> {
    if let Some((other, refusal)) = in_the_way(&client.status()?.services, request) {
        *tree = other;
        return Err(refusal.into());
    }
    let mut bar = Bar::default();
    let started = client.start(KIND, json!(request), &mut |work| {
        bar.show(work);
        match interrupt.came() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    });
    bar.end();
    announce(a, &started?)?;
    Ok(0)
}

/// Each mount has its place and its log for itself: the tree of another one, and what it keeps
/// this one from.
fn in_the_way(
    services: &[ServiceStatus],
    request: &MountRequest,
) -> Option<(PathBuf, ServerError)> {
    let mounts = || services.iter().filter(|s| s.kind == KIND);
    let tree = |s: &ServiceStatus| s.details["tree"].as_str().unwrap_or_default().into();
    let name = request.mountpoint.display().to_string();
    if let Some(other) = mounts().find(|s| s.name == name) {
        let what = format!("{name}: this server has a mount there already");
        return Some((tree(other), ServerError::service(4, what, "see forebay status")));
    }
    let other = mounts().find(|s| s.details["log"] == request.log.as_str())?;
    let what = format!("log {}: the mount {} uses it", request.log, other.name);
    Some((tree(other), ServerError::service(4, what, "give this one another: --log NAME")))
}

/// This process serves the pool until a signal comes or the last mount is gone.
fn here(
    a: &args::Mount,
    request: &MountRequest,
    pool: Pool,
    interrupt: &Interrupt,
) -> anyhow::Result<u8> {
    let hangup = Hangup::watch()?;
    raise_open_files();
    let server = Server::new(pool, &runtime_dir(), vec![Box::new(Mounts::default())]);
    let mut bar = Bar::default();
    let mut told = Ok(());
    let started = Mounts::default().mount(server.pool(), request, &mut |work| {
        match a.json.json {
            true => told = out::json_line(&Line::Working(work.clone())),
            false => bar.show(work),
        }
        match interrupt.came() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    });
    bar.end();
    let served = started.map_err(anyhow::Error::from).and_then(|mount| {
        told?;
        let status = forebay_server::Service::status(&*mount);
        server.add(mount)?;
        let ready = server.ready(None)?;
        if let Some(why) = server.status().control_note {
            match a.json.json {
                true => out::json_line(&Line::Unreachable(why))?,
                false => unreachable(&why),
            }
        }
        match a.json.json {
            true => out::json_line(&Line::Mounted(Box::new(status)))?,
            false => announce(a, &status)?,
        }
        ready.run(&|| {
            hangup.tell();
            interrupt.came()
        })?;
        Ok(())
    });
    // Whatever the result, logged changes are safe, and the pool is closed in order.
    out::served(served, server.close())
}

/// This command again, which stays; returns when it has mounted.
fn by_child(
    a: &args::Mount,
    pool: &Path,
    request: &MountRequest,
    interrupt: &Interrupt,
) -> anyhow::Result<u8> {
    let mut child = Command::new(std::env::current_exe()?);
    child.arg("mount").args(["--foreground", "--json"]);
    child.args(["--log", &request.log]);
    if !request.read_only {
        child.args(["--sync-interval", &request.sync_interval_s.to_string()]);
        child.args(["--sync-bytes", &request.sync_bytes.to_string()]);
    }
    child.args(["--persist", &a.media.persist.to_string()]);
    let given = [
        ("--read-only", request.read_only),
        ("--allow-other", request.allow_other),
        ("--write-back", request.write_back),
        ("--log-writes", request.log_writes),
        ("--slow-log", request.slow_log),
        ("--names-at-sync", request.names_at_sync),
        ("--allow-weaker", a.media.allow_weaker),
    ];
    child.args(given.iter().filter(|(_, given)| *given).map(|(option, _)| option));
    if request.flags != Flags::default() {
        child.args(["--flags", &request.flags.to_string()]);
    }
    if request.accept != Accept::default() {
        child.arg(format!("--accept={}", request.accept));
    }
    if let Some(kernel) = &a.media.kernel {
        child.args(["--kernel", kernel]);
    }
    if let Some(dir) = &request.salvage {
        child.arg("--salvage").arg(dir);
    }
    child.arg("--").args([pool, &request.tree, &request.mountpoint]);
    // Nothing of this terminal and directory is held.
    child.current_dir("/").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    child.process_group(0);
    let mut child = Started::by(child, interrupt)?;
    match mounted_by(&mut child.process) {
        Some(status) if child.leaves(interrupt) => announce(a, &status).map(|()| 0),
        Some(_) => {
            // The end of a mount that programs use already may cost what they wrote.
            child.repeat_errors();
            child.wait()?;
            Err(interrupted(&request.mountpoint, "nothing is mounted there any more").into())
        }
        None => {
            let code = failed(a, child, request, interrupt);
            // One that was killed, or that had no memory left, could not do that itself.
            let _ = forebay_mount::clear_dead_mount(&request.mountpoint);
            code
        }
    }
}

/// A server that this command has started.  A signal that ends this command is one for the server,
/// until it has mounted.
struct Started {
    process: Child,
    /// The number that gets the signal, as long as it is that of this process.
    pid: Arc<Mutex<Option<Pid>>>,
}

impl Started {
    /// The thread that forwards comes first: no server is left without it.
    fn by(mut command: Command, interrupt: &Interrupt) -> anyhow::Result<Started> {
        let pid = Arc::new(Mutex::new(None));
        let (interrupt, to) = (interrupt.clone(), pid.clone());
        let forward = move || loop {
            std::thread::sleep(Duration::from_millis(50));
            if let (true, Some(pid)) = (interrupt.came(), *locked(&to)) {
                let _ = kill_process(pid, Signal::TERM);
                return;
            }
        };
        std::thread::Builder::new().name("fby-forward".into()).spawn(forward)?;
        let process = command.spawn().context("cannot start the server")?;
        *locked(&pid) = Some(Pid::from_child(&process));
        Ok(Started { process, pid })
    }

    /// Leaves the server alone: it gets no later signal of this command.  `false`: a signal has come
    /// before, and the server gets that one.
    fn leaves(&self, interrupt: &Interrupt) -> bool {
        let mut pid = locked(&self.pid);
        let left = !interrupt.came();
        if left {
            *pid = None;
        }
        left
    }

    /// Repeats what the server prints to standard error until its end.
    fn repeat_errors(&mut self) {
        let Some(errors) = self.process.stderr.take() else { return };
        for line in BufReader::new(errors).split(b'\n').map_while(Result::ok) {
            out::warn(String::from_utf8_lossy(&line));
        }
    }

    fn wait(&mut self) -> std::io::Result<ExitStatus> {
        // Once it is reaped, its number may be that of another process.
        let of = WaitId::Pid(Pid::from_child(&self.process));
        let _ = rustix::io::retry_on_intr(|| {
            waitid(of.clone(), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT)
        });
        *locked(&self.pid) = None;
        self.process.wait()
    }
}

fn locked(pid: &Mutex<Option<Pid>>) -> MutexGuard<'_, Option<Pid>> {
    pid.lock().unwrap_or_else(PoisonError::into_inner)
}

/// `None`: it ended before.
fn mounted_by(child: &mut Child) -> Option<ServiceStatus> {
    let mut bar = Bar::default();
    let said = BufReader::new(child.stdout.take().expect("it is a pipe"));
    let mut mounted = None;
    for line in said.lines() {
        // The last is of an error, over several lines, and is on standard error too.
        let Ok(line) = line else { break };
        match serde_json::from_str(&line) {
            Ok(Line::Working(work)) => bar.show(&work),
            Ok(Line::Unreachable(why)) => unreachable(&why),
            Ok(Line::Mounted(status)) => {
                mounted = Some(*status);
                break;
            }
            Err(_) => break,
        }
    }
    bar.end();
    mounted
}

/// Repeats the child's message, and exits as it did.
fn failed(
    a: &args::Mount,
    mut child: Started,
    request: &MountRequest,
    interrupt: &Interrupt,
) -> anyhow::Result<u8> {
    let mut said = Vec::new();
    if let Some(mut errors) = child.process.stderr.take() {
        errors.read_to_end(&mut said)?;
    }
    let said = String::from_utf8_lossy(&said);
    let ended = child.wait()?;
    if !said.trim_end().is_empty() {
        out::warn(said.trim_end());
    }
    if let Some(signal) = ended.signal() {
        // The server may get the signal before it can handle one.
        return Err(match interrupt.came() {
            true => interrupted(&request.mountpoint, "nothing is mounted there"),
            false => {
                let what = format!(
                    "the server of {} was ended by signal {signal} before it had mounted",
                    request.mountpoint.display()
                );
                let way_out = "mount again: what the log holds is replayed; the kernel's log says \
                               if memory was short (dmesg)";
                ServerError::service(1, what, way_out)
            }
        }
        .into());
    }
    let code = ended.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1);
    if a.json.json {
        out::json_error(said.trim_end().trim_start_matches("forebay: "), code);
    }
    Ok(code)
}

fn unreachable(why: &str) {
    out::warn(format_args!(
        "forebay: status, drain and umount cannot reach this server: {why}; SIGTERM ends it"
    ));
}

fn announce(a: &args::Mount, status: &ServiceStatus) -> anyhow::Result<()> {
    if a.json.json {
        return out::json(&status.details);
    }
    let mountpoint = out::quoted(Path::new(&status.name));
    out::line(format_args!("mounted {mountpoint}: {}", status.summary))?;
    out::line(format_args!("its end: forebay umount {mountpoint}"))
}

// --- umount ------------------------------------------------------------------

pub fn umount(a: &args::Umount) -> anyhow::Result<u8> {
    let mountpoint = whole(&a.mountpoint)
        .with_context(|| format!("{}: cannot be looked at", a.mountpoint.display()))?;
    let name = mountpoint.display().to_string();
    let (client, process) = match server_that_starts(&mountpoint, &name)? {
        Served::By(client, process) => (client, process),
        Served::ByNobody(why) => return Err(nobody(&mountpoint, why).into()),
    };
    let mut bar = Bar::default();
    let stopped = client.stop(KIND, &name, a.keep, &mut |work| {
        bar.show(work);
        ControlFlow::Continue(())
    });
    bar.end();
    stopped?;
    if let Some(process) = process {
        wait_for_end(&process);
    }
    match (a.json.json, a.keep) {
        (true, _) => out::json(&json!({ "unmounted": name, "kept": a.keep }))?,
        (false, false) => out::line(format_args!("unmounted {name}: its tree has everything"))?,
        (false, true) => out::line(format_args!(
            "unmounted {name}: what its tree lacks is in the log; the next mount replays it"
        ))?,
    }
    Ok(0)
}

/// The next mount must find the pool closed, and not a server that is about to end.
fn wait_for_end(process: &OwnedFd) {
    let limit = Timespec { tv_sec: 10, tv_nsec: 0 };
    // If it takes longer, the tree has all that it gets: a process that opens the pool is told
    // who has it.
    let _ = poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&limit));
}

/// Who serves a mount.
enum Served {
    /// A server that can be asked, and its process if that ends with this mount.
    By(Client, Option<OwnedFd>),
    /// No server that can be asked; why the mount does not answer either.
    ByNobody(Option<Unanswered>),
}

/// A mount is seen a moment before its server can be asked.
fn server_that_starts(mountpoint: &Path, name: &str) -> anyhow::Result<Served> {
    let limit = Instant::now() + Duration::from_secs(2);
    loop {
        if let Some((client, process)) = server_of(name)? {
            return Ok(Served::By(client, process));
        }
        // A server that is stopped is waited for, so it is asked once.
        let unanswered = forebay_mount::unanswered(mountpoint);
        let starts = unanswered.is_none() && forebay_mount::is_mounted_at(mountpoint);
        if !starts || Instant::now() >= limit {
            return Ok(Served::ByNobody(unanswered));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Who has a mount there, among the servers that can be asked, and its process if that ends
/// with this mount.
fn server_of(mountpoint: &str) -> anyhow::Result<Option<(Client, Option<OwnedFd>)>> {
    let directory = runtime_dir();
    let sockets = match std::fs::read_dir(&directory) {
        Ok(sockets) => sockets,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => {
            return Err(e).with_context(|| format!("{}: cannot list it", directory.display()))
        }
    };
    let mut silent = None;
    for socket in sockets {
        let file = socket?.file_name();
        let uuid = file.to_str().and_then(|file| file.strip_suffix(".sock"));
        let Some(uuid) = uuid.and_then(|uuid| uuid.parse::<Uuid>().ok()) else { continue };
        // A server that does not answer is no reason to skip the others.
        let Ok(Some(mut client)) = Client::connect(&directory, uuid) else { continue };
        let status = match client.status() {
            Ok(status) => status,
            // This server has just ended, and its mounts with it.
            Err(e) if e.exit_code() == INTERRUPTED => continue,
            Err(e) => {
                silent.get_or_insert(e);
                continue;
            }
        };
        if status.services.iter().any(|s| s.kind == KIND && s.name == mountpoint) {
            let pid = Pid::from_raw(status.pool.pid as i32).filter(|_| status.services.len() == 1);
            let process = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
            return Ok(Some((client, process)));
        }
    }
    // It may be its mount.
    silent.map_or(Ok(None), |e| Err(e.into()))
}

fn nobody(mountpoint: &Path, why: Option<Unanswered>) -> ServerError {
    let name = mountpoint.display();
    match why {
        Some(Unanswered::Dead) => ServerError::service(
            7,
            format!("{name}: the server of this mount has died"),
            "forebay mount POOL TREE brings back all that was acknowledged, and takes this mount away",
        ),
        Some(Unanswered::Silent) => ServerError::service(
            7,
            format!("{name}: its server does not answer: it is stopped or hangs"),
            "see it with ps; continue it (kill -CONT), or end it and mount again",
        ),
        None => ServerError::service(
            3,
            format!("{name}: no server of a pool has a mount there"),
            "see the mounts of a pool with forebay status POOL",
        ),
    }
}

// --- progress ----------------------------------------------------------------

/// On standard error, if that is a terminal.
#[derive(Default)]
pub struct Bar(Option<ProgressBar>);

impl Bar {
    pub fn show(&mut self, work: &Work) {
        let bar = self.0.get_or_insert_with(|| {
            let style = "{msg:32} {bar:30} {bytes:>11}/{total_bytes:11} left {eta:>4}";
            let style = ProgressStyle::with_template(style).expect("the template is right");
            ProgressBar::new(0).with_style(style)
        });
        bar.set_length(work.total_bytes);
        bar.set_position(work.done_bytes);
        bar.set_message(work.trouble.clone().unwrap_or_else(|| work.what.clone()));
    }

    pub fn end(&self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}
