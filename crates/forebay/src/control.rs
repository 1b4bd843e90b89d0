// SPDX-License-Identifier: MIT OR Apache-2.0
//! Asking the process that has a pool open: a Unix socket named for the pool's
//! UUID, mode 0600 in a directory of mode 0700.
//!
//! One request a line, as JSON; the answer is one line, a drain's one for each
//! progress before it:
//!
//! ```text
//! {"op":"status"}                      {"status":{...}}
//! {"op":"drain","volume":"v"}          {"progress":{"volume":"v",...}} ... {"drained":[{"volume":"v","complete":true,...}]}
//! {"op":"set","options":{"idle_seconds":5}}   {"options":{...}}
//! {"op":"set-volume","volume":"v","options":{"bypass_limit_bytes":1048576}}   {"done":true}
//! anything else                        {"error":{"message":"...","exit_code":2}}
//! ```
//!
//! Without `volume` it is all volumes; a drain's answer judges those that are not
//! attached too, and only what it calls complete is.  Closing the connection ends
//! a drain.  A connection on which nothing is asked for 5 s is closed.

mod client;
mod server;

use std::fs;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::bypass::VolumeChange;
use crate::completeness::Completeness;
use crate::error::{Error, Result};
use crate::pool::{OptionsChange, OptionsInfo};
use crate::status::{DrainProgress, PoolStatus, Uuid};

pub use client::Client;
pub(crate) use server::Server;

/// Longest line that is accepted.
const LINE_MAX: usize = 1 << 20;

/// Where sockets are: `$FOREBAY_RUNTIME_DIR`, else `$XDG_RUNTIME_DIR/forebay`,
/// else `/run/forebay` for root, and for others a directory of their own.
pub fn runtime_dir() -> PathBuf {
    let set = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    set("FOREBAY_RUNTIME_DIR")
        .or_else(|| set("XDG_RUNTIME_DIR").map(|dir| dir.join("forebay")))
        .unwrap_or_else(|| runtime_dir_of(rustix::process::geteuid().as_raw(), Path::new("/run")))
}

/// Root's is closed to everybody else, so they cannot share it.
fn runtime_dir_of(user: u32, run: &Path) -> PathBuf {
    let own = run.join(format!("user/{user}"));
    match user {
        0 => run.join("forebay"),
        _ if own.is_dir() => own.join("forebay"),
        _ => std::env::temp_dir().join(format!("forebay-{user}")),
    }
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "kebab-case", deny_unknown_fields)]
enum Request {
    Status,
    Drain { volume: Option<String> },
    Set { options: OptionsChange },
    SetVolume { volume: Option<String>, options: VolumeChange },
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Answer {
    Status(Box<PoolStatus>),
    Progress {
        volume: String,
        #[serde(flatten)]
        progress: DrainProgress,
    },
    Done(bool),
    Drained(Vec<Completeness>),
    Options(OptionsInfo),
    Error {
        message: String,
        exit_code: u8,
    },
}

fn socket_path(dir: &Path, uuid: Uuid) -> PathBuf {
    dir.join(format!("{uuid}.sock"))
}

/// Makes the directory if need be, and makes sure that it is ours alone.
fn private_dir(dir: &Path) -> Result<()> {
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(dir);
    made.map_err(|e| Error::system(dir, "making the directory", e))?;
    let st = fs::symlink_metadata(dir).map_err(|e| Error::system(dir, "looking at it", e))?;
    let refuse = |what: &str, way_out: &str| Error::Unsuitable {
        path: dir.into(),
        what: what.into(),
        way_out: way_out.into(),
    };
    if !st.is_dir() {
        return Err(refuse("not a directory", "remove it, or set FOREBAY_RUNTIME_DIR"));
    }
    if st.uid() != rustix::process::geteuid().as_raw() {
        return Err(refuse("another user's", "set FOREBAY_RUNTIME_DIR to a directory of your own"));
    }
    if st.permissions().mode() & 0o077 != 0 {
        return Err(refuse("open to other users", "make it private (chmod 700)"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_answers_are_as_documented() {
        let parse = |s| serde_json::from_str::<Request>(s);
        assert!(matches!(parse(r#"{"op":"status"}"#), Ok(Request::Status)));
        assert!(matches!(parse(r#"{"op":"drain"}"#), Ok(Request::Drain { volume: None })));
        let set = parse(r#"{"op":"set","options":{"idle_seconds":5}}"#).unwrap();
        assert!(matches!(set, Request::Set { options } if options.idle_seconds == Some(5.0)));
        assert!(parse(r#"{"op":"set","options":{"idle":5}}"#).is_err());
        let set = parse(r#"{"op":"set-volume","options":{"when_full":"bypass"}}"#).unwrap();
        let full = Some(crate::WhenFull::Bypass);
        assert!(
            matches!(set, Request::SetVolume { volume: None, options } if options.when_full == full)
        );
        assert!(parse(r#"{"op":"set-volume","options":{"limit":5}}"#).is_err());
        assert!(parse(r#"{"op":"format"}"#).is_err());
        let progress = Answer::Progress { volume: "v".into(), progress: DrainProgress::default() };
        let text = serde_json::to_string(&progress).unwrap();
        assert!(text.starts_with(r#"{"progress":{"volume":"v","pages_start":0"#), "{text}");
        assert!(matches!(serde_json::from_str(&text).unwrap(), Answer::Progress { .. }));
        assert_eq!(serde_json::to_string(&Answer::Done(true)).unwrap(), r#"{"done":true}"#);
    }

    #[test]
    fn each_user_has_a_directory() {
        let run = std::env::temp_dir().join(format!("fby-run-{}", std::process::id()));
        assert_eq!(runtime_dir_of(0, &run), run.join("forebay"));
        assert_eq!(runtime_dir_of(7, &run), std::env::temp_dir().join("forebay-7"));
        fs::create_dir_all(run.join("user/7")).unwrap();
        assert_eq!(runtime_dir_of(7, &run), run.join("user/7/forebay"));
        fs::remove_dir_all(&run).unwrap();
    }

    #[test]
    fn the_directory_has_to_be_private() {
        let dir = std::env::temp_dir().join(format!("fby-control-{}", std::process::id()));
        private_dir(&dir).unwrap();
        assert_eq!(fs::metadata(&dir).unwrap().permissions().mode() & 0o777, 0o700);
        private_dir(&dir).unwrap();
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o750)).unwrap();
        let e = private_dir(&dir).unwrap_err();
        assert!(e.to_string().contains("chmod 700"), "{e}");
        fs::remove_dir(&dir).unwrap();
    }
}
