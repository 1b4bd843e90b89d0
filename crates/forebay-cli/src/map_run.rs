// SPDX-License-Identifier: MIT OR Apache-2.0
//! `forebay map-run`: checks that a program can be followed, writes back pages that a crash has
//! left, and executes the program.  The preload library is then between the program and the C
//! library.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use forebay::Error;
use forebay_map::{Options, Session, Wanted};

use crate::{args, inherited, open, out, units};

/// The preload library, as it is built and as it is installed.
const BUILT: &str = "libforebay_map_preload.so";
const INSTALLED: &str = "../lib/forebay/libforebay-map-preload.so";

pub fn run(a: &args::MapRun) -> anyhow::Result<u8> {
    let library = library()?;
    let files = a.files.iter().map(|text| pattern(text)).collect::<anyhow::Result<Vec<_>>>()?;
    let program = find(&a.program[0])?;
    may_run(&program, 0)?;
    // The error about the superblock is the clearest one if the path is no pool.
    open::superblock(&a.pool)?;
    open::must_hold(&a.pool, "maps")?;
    bring_home(a)?;

    let mut command = Command::new(&program);
    command.arg0(&a.program[0]).args(&a.program[1..]);
    let mut preload = library.into_os_string();
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        preload.push(":");
        preload.push(others);
    }
    let pool = std::path::absolute(&a.pool)?;
    command
        .env("LD_PRELOAD", preload)
        .env("FOREBAY_MAP_RUN_POOL", pool)
        .env("FOREBAY_MAP_RUN_FILES", files.join("\n"))
        .env("FOREBAY_MAP_RUN_ROOM", a.room.to_string())
        .env("FOREBAY_MAP_RUN_PERSIST", a.media.persist.to_string());
    for (name, value) in [("MAP", &a.map), ("KERNEL", &a.media.kernel)] {
        let name = format!("FOREBAY_MAP_RUN_{name}");
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    for (name, set) in [("WEAKER", a.media.allow_weaker), ("SHARED", a.shared)] {
        let name = format!("FOREBAY_MAP_RUN_{name}");
        match set {
            true => command.env(name, "1"),
            false => command.env_remove(name),
        };
    }
    inherited::give_back(&mut command);
    Err(anyhow::Error::from(command.exec()).context(format!("cannot run {}", program.display())))
}

/// A pattern in the library's form: of a name, or of whole paths without links, as the kernel
/// reports a file's path.  A pattern that fits no file is refused: nobody would notice that
/// nothing is mapped.
fn pattern(text: &str) -> anyhow::Result<String> {
    let wrong = |what: &str, way_out: &str| {
        let what = format!("--files {text:?}: {what}");
        anyhow::Error::from(Error::Usage { what, way_out: way_out.into() })
    };
    let is_special = |c: char| "*?[\\".contains(c);
    if text.is_empty() || text.contains('\n') {
        return Err(wrong("no file is named so", "write a pattern, such as '*.log'"));
    }
    let literal = text.find(is_special).unwrap_or(text.len());
    let Some(slash) = text[..literal].rfind('/') else {
        return match text.contains('/') {
            // `*/x.mdb` begins at the current directory.
            true => pattern(&format!("./{text}")),
            false => Ok(text.into()),
        };
    };
    if text.ends_with('/') || literal == text.len() && Path::new(text).is_dir() {
        return Err(wrong("is a directory", "write which files of it: DIR/*"));
    }
    if literal == text.len() && Path::new(text).is_symlink() {
        let way_out =
            "write its last part alone, or the file that it leads to if the program opens \
                       that";
        return Err(wrong("is a symbolic link, and files are known by where they are", way_out));
    }
    let (dir, rest) = text.split_at(slash + 1);
    let dir = std::fs::canonicalize(dir).or_else(|_| std::path::absolute(dir))?;
    let Some(dir) = dir.to_str() else {
        return Err(wrong("its directory's real name is not UTF-8", "write '*' for that part"));
    };
    let mut whole = String::new();
    for c in dir.trim_end_matches('/').chars() {
        whole.extend(is_special(c).then_some('\\'));
        whole.push(c);
    }
    Ok(format!("{whole}/{rest}"))
}

/// Writes back pages that a crash has left, because files with such pages cannot be opened.  A
/// server has already done that.
fn bring_home(a: &args::MapRun) -> anyhow::Result<()> {
    let (map, pool) = (a.map.clone(), a.media.read_write());
    let wanted = Wanted { map, pool, bring_home: true, ..Wanted::of(&a.pool) };
    let session = Session::open(&wanted, Options::default())?;
    if a.shared && session.server().is_none() {
        let pool = a.pool.display();
        return Err(unsuitable(
            &a.pool,
            "a pool that nobody serves: only one process can use its files",
            &format!("to share them: forebay serve {pool}"),
        ));
    }
    if let Some(report) = session.report() {
        if report.pages > 0 {
            let bytes = (report.pages * forebay_map::PAGE) as u64;
            let (bytes, files) = (units::bytes(bytes), report.files);
            out::warn(format_args!("forebay: {bytes} written back to {files} files first"));
        }
        for r in &report.refused {
            let (name, pool) = (r.name.display(), a.pool.display());
            out::warn(format_args!(
                "forebay: {name}: {} pages stay in the pool, and it is refused when it is opened: \
                 {}; forebay map recover {pool} says more",
                r.pages, r.why
            ));
        }
    }
    Ok(session.close()?)
}

fn unsuitable(path: &Path, what: impl Into<String>, way_out: &str) -> anyhow::Error {
    Error::Unsuitable { path: path.into(), what: what.into(), way_out: way_out.into() }.into()
}

/// The path of the preload library.
fn library() -> anyhow::Result<PathBuf> {
    if let Some(path) = std::env::var_os("FOREBAY_MAP_PRELOAD") {
        let path = std::path::absolute(PathBuf::from(path))?;
        // Without the library the program would run, and nothing would be mapped.
        return match path.is_file() {
            true => Ok(path),
            false => Err(Error::NotFound {
                path,
                way_out: "FOREBAY_MAP_PRELOAD names the preload library: unset it".into(),
            }
            .into()),
        };
    }
    let me = std::env::current_exe()?;
    let dir = me.parent().unwrap_or(Path::new("/"));
    let places = [dir.join(BUILT), dir.join(INSTALLED)];
    let found = places.iter().find(|place| place.is_file());
    // LD_PRELOAD cannot name paths with these characters.
    let found = found.filter(|p| !p.as_os_str().as_bytes().iter().any(|b| b" :".contains(b)));
    found.cloned().ok_or_else(|| {
        Error::NotFound {
            path: places[1].clone(),
            way_out: "it comes with `make install`, or cargo build --release -p \
                      forebay-map-preload; its path may have no space and no colon"
                .into(),
        }
        .into()
    })
}

/// Finds the file of a program as a shell does.
fn find(name: &OsStr) -> anyhow::Result<PathBuf> {
    if name.is_empty() {
        let what = "no program is named".into();
        return Err(Error::Usage { what, way_out: "write it after --".into() }.into());
    }
    let runs = |path: &Path| {
        path.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
    };
    if name.as_bytes().contains(&b'/') {
        return Ok(name.into());
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| OsString::from("/usr/bin:/bin"));
    let found = std::env::split_paths(&path).map(|dir| dir.join(name)).find(|p| runs(p));
    found.ok_or_else(|| {
        Error::NotFound { path: name.into(), way_out: "no such program on PATH".into() }.into()
    })
}

/// A program whose files cannot be followed.
fn unseen_program(path: &Path, what: &str) -> anyhow::Error {
    let way_out =
        "its files cannot be followed: run it without map-run, or on a mount (forebay mount)";
    forebay_map::Error::Refused { path: path.into(), why: format!("{what}; {way_out}") }.into()
}

/// Refuses a program whose calls the library would not see.
fn may_run(program: &Path, scripts: u32) -> anyhow::Result<()> {
    let mut file = File::open(program)
        .map_err(|e| Error::system(program, "reading which program it is", e))?;
    let kind = file.metadata()?;
    if !kind.is_file() {
        return Err(unsuitable(program, "not a file", "name the program's file"));
    }
    let own = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let mode = kind.permissions().mode();
    if mode & 0o4000 != 0 && kind.uid() != own.0 || mode & 0o2000 != 0 && kind.gid() != own.1 {
        return Err(unseen_program(program, "a program that runs as another user (setuid)"));
    }
    if rustix::fs::fgetxattr(&file, "security.capability", &mut [0u8; 64][..]).is_ok() {
        return Err(unseen_program(program, "a program with file capabilities"));
    }
    let mut head = Vec::new();
    file.by_ref().take(4 << 10).read_to_end(&mut head)?;
    if let Some(line) = head.strip_prefix(b"#!") {
        let line = line.split(|&b| b == b'\n').next().unwrap_or_default();
        let mut words = line.split(|b| b" \t".contains(b)).filter(|word| !word.is_empty());
        let interpreter = Path::new(OsStr::from_bytes(words.next().unwrap_or_default()));
        return match scripts < 4 {
            true => may_run(interpreter, scripts + 1),
            false => Err(unseen_program(program, "a script of a script of a script")),
        };
    }
    let why = unseen(&head, &part_of(&file));
    match why {
        None => Ok(()),
        Some(why) => Err(unseen_program(program, why)),
    }
}

fn number(bytes: &[u8], at: usize, len: usize) -> Option<usize> {
    let bytes = bytes.get(at..at.checked_add(len)?)?;
    bytes.iter().rev().try_fold(0usize, |n, &b| n.checked_mul(256)?.checked_add(b.into()))
}

/// Reads that many bytes of a file from an offset.  None: the file has fewer.
fn part_of(file: &File) -> impl Fn(usize, usize) -> Option<Vec<u8>> + '_ {
    |from, len| {
        // The parts that matter are small.
        let mut part = vec![0; (len <= 16 << 20).then_some(len)?];
        file.read_exact_at(&mut part, from as u64).ok()?;
        Some(part)
    }
}

/// Whether one of the notes of a segment is Go's.  Notes follow each other; each has the lengths of
/// its owner and content, and a kind.
fn has_note_of_go(notes: &[u8]) -> bool {
    let up = |n: usize| n.checked_next_multiple_of(4);
    let mut at = 0;
    while let (Some(owner), Some(content)) = (number(notes, at, 4), number(notes, at + 4, 4)) {
        let from = at + 12;
        if owner > 0 && notes.get(from..from + 4) == Some(b"Go\0\0") {
            return true;
        }
        let next =
            up(owner).zip(up(content)).and_then(|(a, b)| from.checked_add(a)?.checked_add(b));
        match next {
            Some(next) => at = next,
            None => return false,
        }
    }
    false
}

/// Whether the file has a section of Go.  The linker leaves such sections in programs without
/// notes.
fn has_section_of_go(head: &[u8], part: &dyn Fn(usize, usize) -> Option<Vec<u8>>) -> bool {
    let names = || {
        let (at, size) = (number(head, 40, 8)?, number(head, 58, 2)?);
        let names = number(head, 62, 2)?.checked_mul(size)?.checked_add(at)?;
        let header = part(names, 64)?;
        part(number(&header, 24, 8)?, number(&header, 32, 8)?)
    };
    let names = names().unwrap_or_default();
    let mut all = names.split(|&b| b == 0);
    all.any(|name| [&b".go.buildinfo"[..], b".gopclntab", b".note.go.buildid"].contains(&name))
}

/// The reason why the library does not see the calls of an ELF program.  None: it sees them.
fn unseen(head: &[u8], part: &dyn Fn(usize, usize) -> Option<Vec<u8>>) -> Option<&'static str> {
    const GO: &str = "a program of Go, which makes system calls without the C library";
    const UNKNOWN: &str = "not a program of this system (64 bit ELF)";
    let native = if cfg!(target_arch = "x86_64") { 62 } else { 183 };
    if !head.starts_with(b"\x7fELF\x02\x01") || number(head, 18, 2) != Some(native) {
        return Some(UNKNOWN);
    }
    let (Some(at), Some(size), Some(n)) =
        (number(head, 32, 8), number(head, 54, 2), number(head, 56, 2))
    else {
        return Some(UNKNOWN);
    };
    let mut loader = None;
    for header in (0..n).filter_map(|i| at.checked_add(i * size)) {
        let header = part(header, 56).unwrap_or_default();
        let (Some(kind), Some(from), Some(len)) =
            (number(&header, 0, 4), number(&header, 8, 8), number(&header, 32, 8))
        else {
            return Some(UNKNOWN);
        };
        let content = || part(from, len);
        match kind {
            3 => loader = content(),
            4 => match content() {
                None => return Some(UNKNOWN),
                Some(notes) if has_note_of_go(&notes) => return Some(GO),
                Some(_) => {}
            },
            _ => {}
        }
    }
    match loader {
        None => Some("a static program"),
        Some(_) if has_section_of_go(head, part) => Some(GO),
        Some(name) if name.windows(8).any(|w| w == b"ld-linux") => None,
        Some(_) => Some("not a program of the GNU C library"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program with these notes in two segments, or in one as the C linker makes them, and with
    /// sections of these names.
    fn program(notes: &[&[&[u8]]], sections: &[u8]) -> Vec<u8> {
        let native: u16 = if cfg!(target_arch = "x86_64") { 62 } else { 183 };
        let loader: &[u8] = b"/lib64/ld-linux-x86-64.so.2\0";
        let mut segments = vec![(3u32, loader.to_vec())];
        for owners in notes {
            let mut segment = Vec::new();
            for owner in *owners {
                let lengths = [owner.len() as u32, 20, 3];
                segment.extend(lengths.iter().flat_map(|n| n.to_le_bytes()));
                segment.extend_from_slice(owner);
                segment.resize(segment.len().next_multiple_of(4) + 20, 7);
            }
            segments.push((4, segment));
        }
        // The segments are far after the header, as in a large program.
        let first = 128 << 10;
        let mut headers = Vec::new();
        let mut contents = Vec::new();
        for (kind, content) in &segments {
            let mut header = vec![0; 56];
            header[..4].copy_from_slice(&kind.to_le_bytes());
            header[8..16].copy_from_slice(&((first + contents.len()) as u64).to_le_bytes());
            header[32..40].copy_from_slice(&(content.len() as u64).to_le_bytes());
            headers.extend(header);
            contents.extend_from_slice(content);
        }
        let names = first + contents.len();
        contents.extend_from_slice(sections);
        let mut section = vec![0; 64];
        section[24..32].copy_from_slice(&(names as u64).to_le_bytes());
        section[32..40].copy_from_slice(&(sections.len() as u64).to_le_bytes());
        let mut elf = b"\x7fELF\x02\x01\x01".to_vec();
        elf.resize(64, 0);
        elf[18..20].copy_from_slice(&native.to_le_bytes());
        elf[32..40].copy_from_slice(&64u64.to_le_bytes());
        elf[40..48].copy_from_slice(&((first + contents.len()) as u64).to_le_bytes());
        elf[54..56].copy_from_slice(&56u16.to_le_bytes());
        elf[56..58].copy_from_slice(&(segments.len() as u16).to_le_bytes());
        elf[58..60].copy_from_slice(&64u16.to_le_bytes());
        elf.extend(headers);
        elf.resize(first, 0);
        elf.extend(contents);
        elf.extend(section);
        elf
    }

    #[test]
    fn programs_of_go_are_known_wherever_that_is_said() {
        let (gnu, go): (&[u8], &[u8]) = (b"GNU\0", b"Go\0\0");
        let none = b"\0.text\0.note.gnu.build-id\0";
        for (notes, sections, is_go) in [
            (&[&[gnu][..]][..], &none[..], false),
            (&[&[go]], none, true),
            (&[&[gnu, go]], none, true),
            (&[&[gnu, gnu, go]], none, true),
            (&[&[gnu], &[gnu], &[go, gnu]], none, true),
            (&[&[b"Gopher\0"]], none, false),
            (&[&[gnu]], b"\0.text\0.gopclntab\0", true),
            (&[], b"\0.go.buildinfo\0", true),
            (&[&[gnu]], b"\0.gopclntab.not\0", false),
        ] {
            let elf = program(notes, sections);
            let part = |from: usize, len: usize| elf.get(from..from + len).map(<[u8]>::to_vec);
            let why = unseen(&elf[..4096], &part);
            assert_eq!(why.is_some_and(|why| why.contains("of Go")), is_go, "{notes:?}: {why:?}");
            assert_eq!(why.is_some(), is_go, "{notes:?}: {why:?}");
        }
    }

    /// The library compares patterns with the path that the kernel reports.
    #[test]
    fn patterns_of_places_are_whole_and_without_links() {
        let dir = std::env::temp_dir().join(format!("forebay-pattern-{}", std::process::id()));
        let real = dir.join("re[al");
        std::fs::create_dir_all(&real).unwrap();
        std::os::unix::fs::symlink(&real, dir.join("link")).unwrap();
        std::os::unix::fs::symlink("x.map", real.join("s.map")).unwrap();
        let dir = std::fs::canonicalize(&dir).unwrap();
        let at = |rest: &str| format!("{}/{rest}", dir.display());
        let here = std::env::current_dir().unwrap().canonicalize().unwrap();
        let here = |rest: &str| format!("{}/{rest}", here.display());
        for (text, is) in [
            ("*.mdb".into(), "*.mdb".into()),
            ("data.mdb".into(), "data.mdb".into()),
            (at("link/*.map"), at("re\\[al/*.map")),
            (at("link/../link/x.map"), at("re\\[al/x.map")),
            (at("*/x.map"), at("*/x.map")),
            (at("not/there/*.map"), at("not/there/*.map")),
            ("./*.map".into(), here("*.map")),
            ("*/x.map".into(), here("*/x.map")),
            ("/*.map".into(), "/*.map".into()),
        ] {
            assert_eq!(pattern(&text).unwrap(), is, "{text}");
        }
        let link = at("link/s.map");
        for text in ["", "a\nb", "/etc", "/etc/", "./", &at("link"), &link] {
            let e = pattern(text).unwrap_err().to_string();
            assert!(e.starts_with(&format!("--files {text:?}: ")), "{e}");
        }
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
