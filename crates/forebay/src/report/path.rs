// SPDX-License-Identifier: MIT OR Apache-2.0
//! Paths in JSON.  A path is bytes, and a JSON string is text.
//!
//! A report has a path as text, and where that is not the path, its bytes next to it as hexadecimal
//! digits: `path` and `path_bytes`.  A request has the text, or else a list of the bytes.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// The bytes of a path that is no text, as hexadecimal digits.
pub fn path_bytes(path: &Path) -> Option<String> {
    let hex = || path.as_os_str().as_bytes().iter().map(|b| format!("{b:02x}")).collect();
    path.to_str().is_none().then(hex)
}

/// The path that [`path_bytes`] has made these digits of.
pub fn path_of_bytes(digits: &str) -> Option<PathBuf> {
    let pairs = digits.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).ok());
    let bytes = pairs.map(|pair| u8::from_str_radix(pair?, 16).ok()).collect::<Option<_>>()?;
    Some(OsString::from_vec(bytes).into())
}

/// For a flattened field: `$name` and `$bytes`.
macro_rules! path_in_report {
    ($module:ident, $name:literal, $bytes:literal) => {
        pub mod $module {
            use std::path::{Path, PathBuf};

            use serde::de::Error;
            use serde::{Deserialize, Deserializer, Serialize, Serializer};

            #[derive(Serialize, Deserialize)]
            struct InReport {
                #[serde(rename = $name)]
                text: String,
                #[serde(rename = $bytes, default, skip_serializing_if = "Option::is_none")]
                bytes: Option<String>,
            }

            pub fn serialize<S: Serializer>(path: &Path, to: S) -> Result<S::Ok, S::Error> {
                let bytes = super::path_bytes(path);
                InReport { text: path.display().to_string(), bytes }.serialize(to)
            }

            #[allow(dead_code)] // some reports are never read
            pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<PathBuf, D::Error> {
                let InReport { text, bytes } = InReport::deserialize(from)?;
                match bytes {
                    None => Ok(text.into()),
                    Some(bytes) => super::path_of_bytes(&bytes)
                        .ok_or_else(|| D::Error::custom("bytes of a path that are none")),
                }
            }
        }
    };
}

path_in_report!(path, "path", "path_bytes");
path_in_report!(place, "place", "place_bytes");
path_in_report!(mounted_on, "mounted_on", "mounted_on_bytes");
path_in_report!(file_in_report, "file", "file_bytes");
path_in_report!(data_in_report, "data", "data_bytes");
path_in_report!(list_in_report, "list", "list_bytes");

/// For a field of a request.
pub mod in_request {
    use super::*;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    #[serde(untagged)]
    enum InRequest {
        Text(String),
        Bytes(Vec<u8>),
    }

    pub fn serialize<S: Serializer>(path: &Path, to: S) -> Result<S::Ok, S::Error> {
        let bytes = || InRequest::Bytes(path.as_os_str().as_bytes().into());
        path.to_str().map_or_else(bytes, |text| InRequest::Text(text.into())).serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<PathBuf, D::Error> {
        Ok(match InRequest::deserialize(from)? {
            InRequest::Text(text) => text.into(),
            InRequest::Bytes(bytes) => OsString::from_vec(bytes).into(),
        })
    }
}

/// For an optional field of a request.
pub mod in_request_if_any {
    use super::*;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    struct Any(#[serde(with = "super::in_request")] PathBuf);

    pub fn serialize<S: Serializer>(path: &Option<PathBuf>, to: S) -> Result<S::Ok, S::Error> {
        path.clone().map(Any).serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<PathBuf>, D::Error> {
        Ok(Option::<Any>::deserialize(from)?.map(|any| any.0))
    }
}

/// For a list in a request.
pub mod in_request_list {
    use super::*;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    struct One(#[serde(with = "super::in_request")] PathBuf);

    pub fn serialize<S: Serializer>(paths: &[PathBuf], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(paths.iter().cloned().map(One))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<PathBuf>, D::Error> {
        Ok(Vec::<One>::deserialize(from)?.into_iter().map(|one| one.0).collect())
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use serde::{Deserialize, Serialize};

    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Report {
        #[serde(flatten, with = "path")]
        path: PathBuf,
        #[serde(flatten, with = "mounted_on")]
        on: PathBuf,
        #[serde(with = "in_request")]
        asked: PathBuf,
        size: u64,
    }

    #[test]
    fn a_path_is_the_same_after_json() {
        for bytes in [&b"/a b"[..], b"", b"\n\xc3\xa9", b"/\xff\xfe0\n", b"\xed\xa0\x80"] {
            let path = PathBuf::from(OsStr::from_bytes(bytes));
            let report = Report { on: path.join("x"), asked: path.clone(), path, size: u64::MAX };
            let json = serde_json::to_value(&report).unwrap();
            let is_text = std::str::from_utf8(bytes).is_ok();
            assert_eq!(json.get("path_bytes").is_none(), is_text, "{json}");
            assert_eq!(json["path"], report.path.display().to_string());
            assert_eq!(serde_json::from_value::<Report>(json).unwrap(), report);
        }
        let json = serde_json::json!({ "path": "x", "path_bytes": "f", "mounted_on": "", "asked": "", "size": 0 });
        assert_eq!(serde_json::from_value::<Report>(json).unwrap().path, Path::new("\x0f"));
        for wrong in ["xy", "\u{e9}\u{e9}"] {
            let json = serde_json::json!({ "path": "x", "path_bytes": wrong, "mounted_on": "", "asked": "", "size": 0 });
            assert!(serde_json::from_value::<Report>(json).is_err(), "{wrong}");
        }
    }
}
