// SPDX-License-Identifier: MIT OR Apache-2.0
//! The settings of `forebay map-run`, from the environment.

use std::ffi::{CStr, CString};

use forebay_map::Wanted;

/// The files to map, and the pool to map them onto.
#[derive(Debug)]
pub struct Config {
    pub wanted: Wanted,
    /// The least address space for a file to grow.
    pub room: u64,
    /// Whether other processes share the files.
    pub shared: bool,
    globs: Vec<Glob>,
}

#[derive(Debug)]
struct Glob {
    whole: CString,
    /// The last component of the pattern.
    name: CString,
    /// Whether the pattern also names a directory.
    has_place: bool,
}

fn fits(glob: &CStr, what: &CStr, flags: i32) -> bool {
    // SAFETY: both end with a zero byte.
    unsafe { libc::fnmatch(glob.as_ptr(), what.as_ptr(), flags) == 0 }
}

impl Config {
    /// Reads the settings.  None: the command did not start this program.
    pub fn of_environment() -> Result<Option<Config>, String> {
        let given = |name: &str| std::env::var_os(format!("FOREBAY_MAP_RUN_{name}"));
        let Some(pool) = given("POOL") else { return Ok(None) };
        // No setting of the command is ever ignored silently.
        for name in ["WEAKER", "PERSIST", "KERNEL", "ROOM", "FILES", "MAP", "SHARED"] {
            if given(name).is_some_and(|value| value.to_str().is_none()) {
                return Err(format!("FOREBAY_MAP_RUN_{name} is not UTF-8"));
            }
        }
        let var = |name: &str| given(name).and_then(|value| value.into_string().ok());
        let mut media =
            forebay::MediaOptions { allow_weaker: var("WEAKER").is_some(), ..Default::default() };
        if let Some(persist) = var("PERSIST") {
            media.persist = persist.parse().map_err(|e: forebay::ParseError| e.to_string())?;
        }
        media.kernel = var("KERNEL");
        let room = match var("ROOM") {
            Some(room) => room.parse().map_err(|_| format!("FOREBAY_MAP_RUN_ROOM={room}"))?,
            None => 1 << 30,
        };
        let globs = var("FILES").unwrap_or_default();
        let globs = globs.lines().filter(|line| !line.is_empty()).map(|line| {
            let name = line.rsplit('/').next().unwrap_or(line);
            let c = |s: &str| CString::new(s).map_err(|e| e.to_string());
            Ok(Glob { whole: c(line)?, name: c(name)?, has_place: line.contains('/') })
        });
        let globs = globs.collect::<Result<Vec<_>, String>>()?;
        let pool_options = forebay::PoolOptions { media, ..Default::default() };
        let of = Wanted::of(pool.as_ref());
        // The program may change its environment, so this keeps the state at the start.
        let wanted = Wanted { map: var("MAP"), pool: pool_options, ..of };
        Ok(Some(Config { wanted, room, shared: var("SHARED").is_some(), globs }))
    }

    /// Whether a file with that name may be one to map.
    pub fn may_be(&self, path: &CStr) -> bool {
        let bytes = path.to_bytes_with_nul();
        let from = bytes.iter().rposition(|&b| b == b'/').map_or(0, |at| at + 1);
        match CStr::from_bytes_with_nul(&bytes[from..]) {
            Ok(name) => self.globs.iter().any(|g| fits(&g.name, name, 0)),
            Err(_) => false,
        }
    }

    /// Whether the file at `real`, opened by `path`, is one to map.
    pub fn is(&self, path: &CStr, real: &CStr) -> bool {
        let bytes = path.to_bytes_with_nul();
        let from = bytes.iter().rposition(|&b| b == b'/').map_or(0, |at| at + 1);
        let Ok(name) = CStr::from_bytes_with_nul(&bytes[from..]) else { return false };
        self.globs.iter().any(|g| match g.has_place {
            true => fits(&g.whole, real, libc::FNM_PATHNAME),
            false => fits(&g.name, name, 0),
        })
    }
}
