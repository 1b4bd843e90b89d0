// SPDX-License-Identifier: MIT OR Apache-2.0
//! Asking the process that serves a pool: a Unix socket named for the pool's
//! UUID, mode 0600 in a directory of mode 0700.
//!
//! One request a line, as JSON; the answer is one line, before it one for each progress
//! of what takes long:
//!
//! ```text
//! {"op":"status"}                      {"status":{...}}
//! {"op":"drain","volume":"v"}          {"progress":{"volume":"v",...}} ... {"drained":[{"volume":"v","complete":true,...}]}
//! {"op":"set","options":{"idle_seconds":5}}   {"options":{...}}
//! {"op":"set-volume","volume":"v","options":{"bypass_limit_bytes":1048576}}   {"done":true}
//! {"op":"start","kind":"mount","options":{...}}   {"working":{...}} ... {"started":{"kind":"mount","name":"/m",...}}
//! {"op":"stop","kind":"mount","name":"/m","keep":false}   {"working":{...}} ... {"done":true}
//! {"op":"call","kind":"map","request":{...}}   {"working":{...}} ... {"called":{...}}
//! anything else                        {"error":{"message":"...","exit_code":2}}
//! ```
//!
//! Without `volume` it is all volumes; a drain's answer judges those that are not
//! attached too, and only what it calls complete is.  Closing the connection ends
//! a drain.  What the options of a service are, its kind says; `keep` stops it without
//! bringing home what the pool holds for it.  What is called is the first service of a kind,
//! which says what it understands.  A connection on which nothing is asked for 5 s is closed.

mod client;
mod responder;

use forebay::{Completeness, DrainProgress, OptionsChange, OptionsInfo, VolumeChange};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::service::{ServerStatus, ServiceStatus, Work};

pub use client::Client;
pub(crate) use responder::Responder;

/// Longest line that a server accepts.
const LINE_MAX: usize = 1 << 20;
/// The limit for a client: an answer may list all files of a pool.
const ANSWER_MAX: usize = 64 << 20;

#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "kebab-case", deny_unknown_fields)]
enum Request {
    Status,
    Drain {
        volume: Option<String>,
    },
    Set {
        options: OptionsChange,
    },
    SetVolume {
        volume: Option<String>,
        options: VolumeChange,
    },
    Start {
        kind: String,
        #[serde(default)]
        options: Value,
    },
    Stop {
        kind: String,
        name: String,
        #[serde(default)]
        keep: bool,
    },
    Call {
        kind: String,
        #[serde(default)]
        request: Value,
    },
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Answer {
    Status(Box<ServerStatus>),
    Progress {
        volume: String,
        #[serde(flatten)]
        progress: DrainProgress,
    },
    Done(bool),
    Drained(Vec<Completeness>),
    Options(OptionsInfo),
    Working(Work),
    Started(Box<ServiceStatus>),
    Called(Value),
    Error {
        message: String,
        exit_code: u8,
    },
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
        let full = Some(forebay::WhenFull::Bypass);
        assert!(
            matches!(set, Request::SetVolume { volume: None, options } if options.when_full == full)
        );
        assert!(parse(r#"{"op":"set-volume","options":{"limit":5}}"#).is_err());
        assert!(parse(r#"{"op":"format"}"#).is_err());
        let start = parse(r#"{"op":"start","kind":"mount","options":{"tree":"/t"}}"#).unwrap();
        assert!(matches!(start, Request::Start { options, .. } if options["tree"] == "/t"));
        let stop = parse(r#"{"op":"stop","kind":"mount","name":"/m"}"#).unwrap();
        assert!(matches!(stop, Request::Stop { keep: false, .. }));
        let call = parse(r#"{"op":"call","kind":"map","request":{"do":"list"}}"#).unwrap();
        assert!(matches!(call, Request::Call { request, .. } if request["do"] == "list"));
        let progress = Answer::Progress { volume: "v".into(), progress: DrainProgress::default() };
        let text = serde_json::to_string(&progress).unwrap();
        assert!(text.starts_with(r#"{"progress":{"volume":"v","pages_start":0"#), "{text}");
        assert!(matches!(serde_json::from_str(&text).unwrap(), Answer::Progress { .. }));
        assert_eq!(serde_json::to_string(&Answer::Done(true)).unwrap(), r#"{"done":true}"#);
    }
}
