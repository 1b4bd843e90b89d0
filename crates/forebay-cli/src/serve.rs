// SPDX-License-Identifier: MIT OR Apache-2.0
//! `forebay serve`: runs nbdkit with Forebay's plugin on a Unix socket and
//! looks after it.
//!
//! nbdkit opens the pool (in the plugin) and says on its standard output when
//! it is ready, or why not.  SIGINT and SIGTERM are passed on; nbdkit then ends
//! the requests in flight and closes the pool, which is clean afterwards but
//! not drained.  Should this process die, nbdkit gets SIGTERM from the kernel.

use std::fs::DirBuilder;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{anyhow, bail, Context};
use forebay::{control, Error, MediaInfo};
use rustix::process::{kill_process, Pid, Signal};
use serde::{Deserialize, Serialize};

use crate::create::media_text;
use crate::interrupt::Interrupt;
use crate::{args, open, out, units};

const PLUGIN_VARIABLE: &str = "FOREBAY_NBDKIT_PLUGIN";
/// As cargo builds it, and as a package would install it.
const PLUGIN_NAMES: [&str; 3] = [
    "libnbdkit_forebay_plugin.so",
    "../lib/nbdkit/plugins/nbdkit-forebay-plugin.so",
    "../lib/forebay/nbdkit-forebay-plugin.so",
];
/// sockaddr_un takes no longer ones.
const SOCKET_PATH_MAX: usize = 107;

pub fn run(a: &args::Serve) -> anyhow::Result<u8> {
    let interrupt = Interrupt::watch()?;
    let plugin = find_plugin()?;
    let socket = Socket::prepare(a)?;
    let mut crashes = Crashes::default();
    loop {
        let mut server = Server::start(a, &plugin, &socket)?;
        let Some(ready) = server.wait_ready(&interrupt)? else {
            return Ok(0);
        };
        socket.restrict()?;
        if let Some(path) = &a.ready_file {
            let cannot = || format!("{}: cannot make the ready file there", path.display());
            std::fs::write(path, "").with_context(cannot)?;
        }
        announce(a, &server, &socket, &ready)?;
        let status = server.wait_end(&interrupt)?;
        if status.success() {
            return Ok(0);
        }
        if status.signal().is_none() || (crashes.too_many() && !server.terminated) {
            bail!("nbdkit: ended ({status}); what was acknowledged is in the pool, serve it again");
        }
        if server.terminated {
            eprintln!("forebay: nbdkit: ended ({status}) instead of stopping; closing the pool");
            // Recovers it and marks it clean.
            if !a.read_only {
                open::pool(&a.pool, &a.media.read_write())?.close()?;
            }
            return Ok(0);
        }
        eprintln!(
            "forebay: nbdkit: ended ({status}); what was acknowledged is in the pool; starting it again"
        );
        remove_stale(&socket.0)?;
    }
}

/// nbdkit up to 1.32 may abort when a client goes away in the middle of its
/// requests.  The other clients should not suffer: it is started again, unless
/// it crashes all the time.
#[derive(Default)]
struct Crashes(Vec<Instant>);

impl Crashes {
    const MOST: usize = 5;
    const WITHIN: Duration = Duration::from_secs(60);

    fn too_many(&mut self) -> bool {
        self.0.retain(|at| at.elapsed() < Self::WITHIN);
        self.0.push(Instant::now());
        self.0.len() > Self::MOST
    }
}

fn find_plugin() -> anyhow::Result<PathBuf> {
    if let Some(path) = std::env::var_os(PLUGIN_VARIABLE) {
        let path = PathBuf::from(path);
        if !path.is_file() {
            return Err(anyhow!(Error::NotFound {
                path,
                way_out: format!(
                    "set {PLUGIN_VARIABLE} to nbdkit's plugin of Forebay, or unset it"
                ),
            }));
        }
        return Ok(std::path::absolute(path)?);
    }
    let binary = std::env::current_exe().context("cannot tell where this program is")?;
    let directory = binary.parent().unwrap_or(Path::new("/"));
    let mut candidates = PLUGIN_NAMES.iter().map(|name| directory.join(name));
    candidates.find(|path| path.is_file()).ok_or_else(|| {
        anyhow!(Error::NotFound {
            path: directory.join(PLUGIN_NAMES[0]),
            way_out: format!(
                "build nbdkit's plugin (cargo build -p forebay-nbdkit), or say where it is with {PLUGIN_VARIABLE}"
            ),
        })
    })
}

// --- socket ----------------------------------------------------------------

/// Where nbdkit listens; removed at the end.
struct Socket(PathBuf);

impl Socket {
    fn prepare(a: &args::Serve) -> anyhow::Result<Socket> {
        let path = match &a.socket {
            Some(path) => std::path::absolute(path)?,
            None => default_socket(&a.pool)?,
        };
        if path.as_os_str().len() > SOCKET_PATH_MAX {
            return Err(anyhow!(Error::Usage {
                what: format!(
                    "{}: longer than the {SOCKET_PATH_MAX} bytes that a Unix socket's path can have",
                    path.display()
                ),
                way_out: "give a shorter one with --socket".into(),
            }));
        }
        let directory = path.parent().unwrap_or(Path::new("/"));
        private_directory(directory)?;
        remove_stale(&path)?;
        Ok(Socket(path))
    }

    fn restrict(&self) -> anyhow::Result<()> {
        std::fs::set_permissions(&self.0, PermissionsExt::from_mode(0o600))
            .with_context(|| format!("{}: cannot restrict it to its owner", self.0.display()))
    }

    /// As in NBD's specification of URIs.
    fn uri(&self, volume: &str) -> String {
        let path = self.0.to_string_lossy();
        format!("nbd+unix:///{}?socket={}", escape(volume), escape(&path))
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        std::fs::remove_file(&self.0).ok();
    }
}

fn escape(text: &str) -> String {
    let mut escaped = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
                escaped.push(byte.into());
            }
            _ => escaped += &format!("%{byte:02X}"),
        }
    }
    escaped
}

fn default_socket(pool: &Path) -> anyhow::Result<PathBuf> {
    let uuid = open::superblock(pool)?.uuid;
    Ok(control::runtime_dir().join(format!("{uuid}.nbd")))
}

/// Makes the directory, or finds it to be its owner's alone.
fn private_directory(path: &Path) -> anyhow::Result<()> {
    let name = path.display();
    DirBuilder::new().recursive(true).mode(0o700).create(path).with_context(|| {
        format!("{name}: cannot make the directory for the socket; choose another with --socket")
    })?;
    let found = std::fs::metadata(path).with_context(|| format!("{name}: cannot look at it"))?;
    let me = rustix::process::geteuid().as_raw();
    if found.uid() != me || found.mode() & 0o077 != 0 {
        return Err(anyhow!(Error::Permission {
            path: path.into(),
            doing: "making a socket in it",
            way_out: format!(
                "whoever enters it could write to the volumes: chmod 700 it, as user {me}, or choose another with --socket"
            ),
        }));
    }
    Ok(())
}

/// A server that was killed leaves its socket behind.
fn remove_stale(path: &Path) -> anyhow::Result<()> {
    let Ok(found) = std::fs::symlink_metadata(path) else {
        return Ok(());
    };
    if !found.file_type().is_socket() {
        return Err(anyhow!(Error::NotBlank {
            path: path.into(),
            found: "something that is not a socket".into(),
        }));
    }
    if UnixStream::connect(path).is_ok() {
        return Err(anyhow!(Error::Busy {
            path: path.into(),
            holder: None,
            way_out: "a server answers there: stop it, or choose another socket with --socket"
                .into(),
        }));
    }
    std::fs::remove_file(path)
        .with_context(|| format!("{}: cannot remove the old socket", path.display()))
}

// --- nbdkit ----------------------------------------------------------------

/// What the plugin says when it is ready, or is not.
#[derive(Deserialize)]
#[serde(untagged)]
enum Readiness {
    Ready(Ready),
    Failed { error: String, exit_code: u8 },
}

#[derive(Deserialize)]
struct Ready {
    media: MediaInfo,
    recovery: String,
    volumes: Vec<Served>,
    unserved: Vec<Unserved>,
}

#[derive(Deserialize)]
struct Served {
    name: String,
    size_bytes: u64,
    block_size: u32,
}

#[derive(Deserialize, Serialize)]
struct Unserved {
    name: String,
    error: String,
}

struct Server {
    nbdkit: Child,
    stdout: Option<ChildStdout>,
    terminated: bool,
}

impl Server {
    fn start(a: &args::Serve, plugin: &Path, socket: &Socket) -> anyhow::Result<Server> {
        let mut nbdkit = Command::new("nbdkit")
            .args(["--foreground", "--exit-with-parent", "--threads"])
            .arg(a.threads.to_string())
            .arg("--unix")
            .arg(&socket.0)
            .arg(plugin)
            .args(parameters(a)?)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| match error.kind() {
                std::io::ErrorKind::NotFound => {
                    anyhow!("nbdkit: not found; install it (Debian: apt install nbdkit)")
                }
                _ => anyhow!(error).context("nbdkit: cannot start it"),
            })?;
        let stdout = nbdkit.stdout.take();
        Ok(Server { nbdkit, stdout, terminated: false })
    }

    /// None: stopped before.  A thread reads, so that a signal is noticed at any time of a long
    /// recovery.
    fn wait_ready(&mut self, interrupt: &Interrupt) -> anyhow::Result<Option<Ready>> {
        let stdout = self.stdout.take().expect("waited for once");
        let reader = std::thread::spawn(move || {
            let mut line = String::new();
            BufReader::new(stdout).read_line(&mut line).map(|_| line)
        });
        while !reader.is_finished() {
            self.pass_on(interrupt)?;
            std::thread::sleep(Duration::from_millis(2));
        }
        let line = reader.join().expect("reading a line does not panic")?;
        if line.is_empty() {
            let status = self.nbdkit.wait()?;
            if self.terminated && status.success() {
                return Ok(None);
            }
            bail!("nbdkit: ended ({status}) before it was ready; its own message is above");
        }
        match serde_json::from_str(&line).context("nbdkit: its plugin is of another version")? {
            Readiness::Ready(ready) => Ok(Some(ready)),
            Readiness::Failed { error, exit_code } => {
                self.nbdkit.wait()?;
                Err(anyhow!(ServeFailed { error, exit_code }))
            }
        }
    }

    fn pass_on(&mut self, interrupt: &Interrupt) -> anyhow::Result<()> {
        if interrupt.came() && !self.terminated {
            self.terminated = true;
            kill_process(self.pid(), Signal::TERM).context("nbdkit: cannot stop it")?;
        }
        Ok(())
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.nbdkit)
    }

    fn wait_end(&mut self, interrupt: &Interrupt) -> anyhow::Result<ExitStatus> {
        loop {
            if let Some(status) = self.nbdkit.try_wait()? {
                return Ok(status);
            }
            self.pass_on(interrupt)?;
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// What the plugin found wrong, with the exit code that it named.
#[derive(Debug)]
pub struct ServeFailed {
    error: String,
    pub exit_code: u8,
}

impl std::fmt::Display for ServeFailed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.error)
    }
}

impl std::error::Error for ServeFailed {}

/// The plugin's parameters: this command's options, one for one.
fn parameters(a: &args::Serve) -> anyhow::Result<Vec<String>> {
    let text = |path: &Path| -> anyhow::Result<String> {
        let path = std::path::absolute(path)?;
        path.to_str().map(str::to_owned).ok_or_else(|| {
            anyhow!(Error::Usage {
                what: format!("{}: nbdkit takes paths in UTF-8 only", path.display()),
                way_out: "rename it".into(),
            })
        })
    };
    let mut all = vec![
        format!("pool={}", text(&a.pool)?),
        "ready=json".into(),
        format!("read-only={}", a.read_only),
        format!("holes={}", a.attach.options("").holes),
        format!("accept-changed-origin={}", a.attach.accept_changed_origin),
        format!("origin-by-name={}", a.attach.origin_by_name),
        format!("persist={}", a.media.persist),
        format!("allow-weaker={}", a.media.allow_weaker),
        format!("checksums={}", a.tuning.checksums),
    ];
    let t = &a.tuning;
    let optional = [
        ("kernel", a.media.kernel.clone()),
        ("slots", t.slots.filter(|n| *n != 0).map(|n| n.to_string())),
        ("verify", t.verify.clone()),
        ("high-watermark", t.high_watermark.map(|n| n.to_string())),
        ("low-watermark", t.low_watermark.map(|n| n.to_string())),
        ("max-age", t.max_age.map(|t| t.as_secs_f64().to_string())),
        ("idle", t.idle.map(|t| t.as_secs_f64().to_string())),
        ("bypass-limit", a.past.bypass_limit.map(|n| n.to_string())),
        ("when-full", a.past.when_full.map(|w| w.to_string())),
    ];
    for (key, value) in optional {
        all.extend(value.map(|value| format!("{key}={value}")));
    }
    for (name, path) in &a.attach.origin {
        all.push(format!("origin.{name}={}", text(path)?));
    }
    Ok(all)
}

// --- readiness message -----------------------------------------------------

#[derive(Serialize)]
struct ReadyMessage<'a> {
    ready: bool,
    pid: u32,
    nbdkit_pid: u32,
    socket: &'a Path,
    volumes: Vec<ReadyVolume<'a>>,
    unserved: &'a [Unserved],
}

#[derive(Serialize)]
struct ReadyVolume<'a> {
    name: &'a str,
    uri: String,
    size_bytes: u64,
    block_size: u32,
}

fn announce(a: &args::Serve, server: &Server, socket: &Socket, r: &Ready) -> anyhow::Result<()> {
    if a.json.json {
        let volumes = r.volumes.iter().map(|v| ReadyVolume {
            name: &v.name,
            uri: socket.uri(&v.name),
            size_bytes: v.size_bytes,
            block_size: v.block_size,
        });
        return out::json_line(&ReadyMessage {
            ready: true,
            pid: std::process::id(),
            nbdkit_pid: server.nbdkit.id(),
            socket: &socket.0,
            volumes: volumes.collect(),
            unserved: &r.unserved,
        });
    }
    let path = socket.0.display();
    out::line(format_args!("pool {}: {}", a.pool.display(), r.recovery))?;
    out::line(format_args!("media: {}", media_text(&r.media)))?;
    for v in &r.volumes {
        let size = units::bytes(v.size_bytes);
        let uri = socket.uri(&v.name);
        out::line(format_args!("ready: {} ({size})  '{uri}'", v.name))?;
    }
    for v in &r.unserved {
        out::line(format_args!("NOT served: {}: {}", v.name, v.error))?;
    }
    let Some(first) = r.volumes.first() else {
        return Ok(());
    };
    let uri = socket.uri(&first.name);
    out::line(format_args!(
        "connect, for example:\n  \
         nbdinfo '{uri}'\n  \
         fio --name=try --ioengine=nbd --uri='{uri}' --rw=randwrite --bs=4k --iodepth=16 --size=64m\n  \
         qemu-system-x86_64 ... -drive 'file={uri},format=raw,if=virtio'\n  \
         nbd-client -unix {path} -name {} /dev/nbd0 -C 4        (root; then /dev/nbd0 is the disk)\n\
         stop: Ctrl-C or kill {}; what is cached stays in the pool",
        first.name,
        std::process::id(),
    ))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crashes_are_forgiven_a_few_times() {
        let mut crashes = Crashes::default();
        for _ in 0..Crashes::MOST {
            assert!(!crashes.too_many());
        }
        assert!(crashes.too_many());
    }

    #[test]
    fn uris_escape_what_a_uri_cannot_hold() {
        let socket = Socket("/no such dir/a&b".into());
        assert_eq!(
            socket.uri("my disk?"),
            "nbd+unix:///my%20disk%3F?socket=/no%20such%20dir/a%26b"
        );
    }
}
