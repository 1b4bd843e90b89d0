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
use forebay_mount::{clear_dead_mounts, is_mounted, Flags, Unanswered, ENDING_WAIT};
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
use crate::interrupt::{Hangup, Interrupt, INTERRUPTED};
use crate::{args, open, out};

/// Removes dead mounts of the tree, before anything is looked for below them.
pub fn clear_dead(pool: &Path, tree: &Path, at: &Path) -> anyhow::Result<()> {
    clear_dead_mounts(pool, tree, at)
        .with_context(|| format!("{}: cannot be looked at", at.display()))
}

pub fn run(a: &args::Mount) -> anyhow::Result<u8> {
    let at = a.mountpoint.as_deref().unwrap_or(&a.tree);
    clear_dead(&a.pool, &a.tree, at)?;
    let request = request(&a.tree, a.mountpoint.as_deref(), &a.how)?;
    let pool = whole(&a.pool).unwrap_or_else(|_| a.pool.clone());
    // From here on a signal ends the command in order, with the exit code for that.
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

/// Whether a server of the tree is about to end: there is no mount of the tree any more, but the
/// pool, the log or the tree is in use, or a server has just gone.
fn is_ending(e: &anyhow::Error, tree: &Path) -> bool {
    const BUSY: u8 = 4;
    [BUSY, INTERRUPTED].contains(&crate::exit_code(e)) && !is_mounted(tree)
}

/// Makes the request.  Its paths are absolute, because the server may have another current
/// directory.
pub fn request(
    tree: &Path,
    mountpoint: Option<&Path>,
    how: &MountHow,
) -> anyhow::Result<MountRequest> {
    let found =
        |path: &Path| whole(path).map_err(|e| forebay::Error::system(path, "looking at it", e));
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
        // The directory may not exist yet.
        salvage: how.salvage.as_deref().map(std::path::absolute).transpose()?,
    })
}

/// A line of output in the foreground, as JSON.  The process that started the mount reads it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Line {
    /// Nobody can ask this server, for this reason.
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
    announce(a, &request.mountpoint, &started?)?;
    Ok(0)
}

/// Finds a mount that uses the mount point or the log of the request.  Returns its tree, and the
/// error that it causes.
fn in_the_way(
    services: &[ServiceStatus],
    request: &MountRequest,
) -> Option<(PathBuf, ServerError)> {
    let mounts = || services.iter().filter(|s| s.kind == KIND);
    let name = forebay::path_in_text(&request.mountpoint);
    if let Some(other) = mounts().find(|s| s.name == name) {
        let what = format!("{name}: this server has a mount there already");
        return Some((tree_of(other), ServerError::service(4, what, "see forebay status")));
    }
    let other = mounts().find(|s| s.details["log"] == request.log.as_str())?;
    let what = format!("log {}: the mount {} uses it", request.log, other.name);
    Some((tree_of(other), ServerError::service(4, what, "give this one another: --log NAME")))
}

/// The tree of a mount.
fn tree_of(mount: &ServiceStatus) -> PathBuf {
    let bytes = mount.details["tree_bytes"].as_str().and_then(forebay::path_of_bytes);
    bytes.unwrap_or_else(|| mount.details["tree"].as_str().unwrap_or_default().into())
}

/// This process serves the pool until a signal comes or the last mount is gone.
fn here(
    a: &args::Mount,
    request: &MountRequest,
    pool: Pool,
    interrupt: &Interrupt,
) -> anyhow::Result<u8> {
    let hangup = Hangup::watch()?;
    forebay::raise_open_files();
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
            false => announce(a, &request.mountpoint, &status)?,
        }
        ready.run(&|| {
            hangup.tell();
            interrupt.came()
        })?;
        Ok(())
    });
    // Logged changes are safe whatever the result, and the pool is closed in order.
    out::served(served, server.close())
}

/// Runs this command again as a server, and returns when it has mounted.
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
    // The server keeps neither this terminal nor this directory.
    child.current_dir("/").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    child.process_group(0);
    let mut child = Started::by(child, interrupt)?;
    match mounted_by(&mut child.process) {
        Some(status) if child.leaves(interrupt) => {
            announce(a, &request.mountpoint, &status).map(|()| 0)
        }
        Some(_) => {
            // Programs may already use the mount, and its end may lose what they wrote.
            child.repeat_errors();
            child.wait()?;
            Err(interrupted(&request.mountpoint, "nothing is mounted there any more").into())
        }
        None => {
            let code = failed(a, child, request, interrupt);
            // A server that was killed or had no memory left could not remove its mount itself.
            let _ = forebay_mount::clear_dead_mount(&request.mountpoint);
            code
        }
    }
}

/// A server that this command has started.  A signal that ends this command is forwarded to the
/// server until it has mounted.
struct Started {
    process: Child,
    /// The process that gets the signal, as long as the number belongs to it.
    pid: Arc<Mutex<Option<Pid>>>,
}

impl Started {
    /// Starts the thread that forwards signals first, so that no server is without it.
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

    /// Stops forwarding signals to the server.  `false`: a signal came before, and the server gets
    /// it.
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
        // Once the process is reaped, its number may belong to another process.
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

/// Waits until the server has mounted.  `None`: it ended before.
fn mounted_by(child: &mut Child) -> Option<ServiceStatus> {
    let mut bar = Bar::default();
    let said = BufReader::new(child.stdout.take().expect("it is a pipe"));
    let mut mounted = None;
    for line in said.lines() {
        // The last output is an error over several lines, which is on standard error too.
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

fn announce(a: &args::Mount, at: &Path, status: &ServiceStatus) -> anyhow::Result<()> {
    if a.json.json {
        return out::json(&status.details);
    }
    let mountpoint = out::quoted(at);
    out::line(format_args!("mounted {mountpoint}: {}", forebay::printable(&status.summary)))?;
    out::line(format_args!("its end: forebay umount {mountpoint}"))
}

// --- umount ------------------------------------------------------------------

pub fn umount(a: &args::Umount) -> anyhow::Result<u8> {
    let mountpoint = whole(&a.mountpoint).map_err(|e| no_place(&a.mountpoint, e))?;
    let name = forebay::path_in_text(&mountpoint);
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
    let shown = out::quoted(&mountpoint);
    match (a.json.json, a.keep) {
        (true, _) => {
            let mut unmounted =
                json!({ "unmounted": mountpoint.display().to_string(), "kept": a.keep });
            if let Some(bytes) = forebay::path_bytes(&mountpoint) {
                unmounted["unmounted_bytes"] = json!(bytes);
            }
            out::json(&unmounted)?;
        }
        (false, false) => out::line(format_args!("unmounted {shown}: its tree has everything"))?,
        (false, true) => out::line(format_args!(
            "unmounted {shown}: what its tree lacks is in the log; the next mount replays it"
        ))?,
    }
    Ok(0)
}

/// A mountpoint that cannot be looked at.
fn no_place(mountpoint: &Path, cause: std::io::Error) -> anyhow::Error {
    let what = match cause.kind() {
        std::io::ErrorKind::NotFound => "there is no such directory",
        std::io::ErrorKind::NotADirectory => "a part of the path is not a directory",
        _ => {
            let shown = mountpoint.display();
            return anyhow::Error::new(cause).context(format!("{shown}: cannot be looked at"));
        }
    };
    ServerError::service(3, format!("{}: {what}", mountpoint.display()), SEE_MOUNTS).into()
}

/// The way out for what is no mount.
const SEE_MOUNTS: &str =
    "findmnt lists what is mounted, and forebay status POOL the mounts of a pool";

/// Waits for the end of a server, so that the next mount finds the pool closed.
fn wait_for_end(process: &OwnedFd) {
    let limit = Timespec { tv_sec: 10, tv_nsec: 0 };
    // If the end takes longer, the tree has everything nevertheless.  A process that opens the pool
    // then is told who has it.
    let _ = poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&limit));
}

/// The server of a mount.
enum Served {
    /// A server that can be asked, and its process if that ends with this mount.
    By(Client, Option<OwnedFd>),
    /// No server can be asked.  The reason why the mount does not answer either, if it does not.
    ByNobody(Option<Unanswered>),
}

/// A mount is seen a moment before its server can be asked.
fn server_that_starts(mountpoint: &Path, name: &str) -> anyhow::Result<Served> {
    let limit = Instant::now() + Duration::from_secs(2);
    loop {
        if let Some((client, process)) = server_of(name)? {
            return Ok(Served::By(client, process));
        }
        // A stopped server takes long to answer, so it is asked once.
        let unanswered = forebay_mount::unanswered(mountpoint);
        let starts = unanswered.is_none() && forebay_mount::is_mounted_at(mountpoint);
        if !starts || Instant::now() >= limit {
            return Ok(Served::ByNobody(unanswered));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Finds the server of a mount among those that can be asked, and its process if that ends with
/// this mount.
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
        let mut client = match Client::connect(&directory, uuid) {
            Ok(Some(client)) => client,
            Ok(None) => continue,
            Err(e) => {
                silent.get_or_insert(e);
                continue;
            }
        };
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
    // The mount may belong to the server that did not answer.
    silent.map_or(Ok(None), |e| Err(e.into()))
}

fn nobody(mountpoint: &Path, why: Option<Unanswered>) -> ServerError {
    let name = mountpoint.display();
    match why {
        Some(Unanswered::Dead) => ServerError::service(
            7,
            format!("{name}: the server of this mount has died"),
            "run forebay mount POOL TREE: it restores all that was acknowledged, and removes this mount",
        ),
        Some(Unanswered::Silent) => ServerError::service(
            7,
            format!("{name}: its server does not answer: it is stopped or hangs"),
            "see it with ps; continue it (kill -CONT), or end it and mount again",
        ),
        None if std::fs::metadata(mountpoint).is_ok_and(|found| !found.is_dir()) => {
            ServerError::service(2, format!("{name}: is not a directory"), SEE_MOUNTS)
        }
        None => ServerError::service(
            3,
            format!("{name}: no server of a pool has a mount there"),
            SEE_MOUNTS,
        ),
    }
}

// --- progress ----------------------------------------------------------------

/// A progress bar on standard error, if that is a terminal.
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
