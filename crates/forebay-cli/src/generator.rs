// SPDX-License-Identifier: MIT OR Apache-2.0
//! systemd's units from /etc/forebay.d: which instances of forebay@.service are
//! wanted at boot, and which devices each waits for.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use anyhow::Context;

use crate::args::module::SystemdGenerator;
use crate::config::{self, Config, Volume};
use crate::out;

/// Writes the units.  A mistake in a file is reported in the log, and does not keep another volume
/// from its unit.
pub fn run(a: &SystemdGenerator) -> anyhow::Result<u8> {
    let Config { volumes, mistakes } = config::read(&a.config);
    for mistake in &mistakes {
        out::warn(format_args!("forebay: {mistake}"));
    }
    for v in &volumes {
        generate(a, v).with_context(|| format!("{}: units", a.normal.display()))?;
    }
    Ok(if mistakes.is_empty() { 0 } else { 2 })
}

fn generate(a: &SystemdGenerator, v: &Volume) -> std::io::Result<()> {
    let unit = format!("forebay@{}.service", v.name);
    let directory = a.normal.join(format!("{unit}.d"));
    fs::create_dir_all(&directory)?;
    let text = drop_in(v, &a.command);
    crate::out::replace_file(&directory.join("50-forebay.conf"), text.as_bytes(), 0o644)?;
    if v.auto {
        let wants = a.normal.join("local-fs.target.wants");
        fs::create_dir_all(&wants)?;
        let link = wants.join(&unit);
        fs::remove_file(&link).ok();
        symlink(&a.template, &link)?;
    }
    Ok(())
}

/// The pool and the origin start before the device and stop after it; file systems on the
/// volume are mounted after it and unmounted before.
fn drop_in(v: &Volume, command: &Path) -> String {
    let devices = [&v.pool, &v.origin].map(|path| escape(&path.to_string_lossy()));
    let mut text = String::new();
    let source = v.file.display();
    _ = writeln!(text, "# Made by forebay-generator from {source}, line {}.", v.line);
    _ = writeln!(text, "[Unit]\nSourcePath={}", specifiers(&source.to_string()));
    for device in &devices {
        // The names have systemd's escapes, in which % would begin a specifier.
        _ = writeln!(
            text,
            "Requires={device}.device\nAfter={device}.device blockdev@{device}.target"
        );
    }
    let by_name = escape(&format!("/dev/forebay/by-name/{}", v.name));
    _ = writeln!(text, "Before=blockdev@{by_name}.target");
    if v.flush_on_detach {
        let command = specifiers(&command.to_string_lossy());
        _ = writeln!(
            text,
            "\n[Service]\nTimeoutStopSec=infinity\nExecStop=\nExecStop={command} detach --flush %i"
        );
    }
    text
}

fn specifiers(text: &str) -> String {
    text.replace('%', "%%")
}

/// Escapes a path as systemd's unit names do; systemd.unit(5), "String Escaping".
fn escape(path: &str) -> String {
    let parts: Vec<_> = path.split('/').filter(|p| !p.is_empty() && *p != ".").collect();
    let joined = parts.join("/");
    if joined.is_empty() {
        return "-".into();
    }
    let mut name = String::new();
    for (i, byte) in joined.bytes().enumerate() {
        match byte {
            b'/' => name.push('-'),
            b'.' if i == 0 => name.push_str("\\x2e"),
            b if b.is_ascii_alphanumeric() || b":_.".contains(&b) => name.push(b.into()),
            b => _ = write!(name, "\\x{b:02x}"),
        }
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The names are those that `systemd-escape --path` prints.
    #[test]
    fn names_of_paths() {
        for (path, name) in [
            ("/dev/pmem0", "dev-pmem0"),
            ("/dev//disk/by-id/wwn-0x5/", r"dev-disk-by\x2did-wwn\x2d0x5"),
            ("/dev/mapper/vg0-lv%1", r"dev-mapper-vg0\x2dlv\x251"),
            ("/.x/./y:z_", r"\x2ex-y:z_"),
            ("/dev/\u{e9}", r"dev-\xc3\xa9"),
            ("/", "-"),
        ] {
            assert_eq!(escape(path), name, "{path}");
            let systemd =
                std::process::Command::new("systemd-escape").args(["--path", path]).output();
            if let Ok(out) = systemd {
                assert_eq!(String::from_utf8_lossy(&out.stdout).trim(), name, "{path}");
            }
        }
    }

    #[test]
    fn units() {
        let dir = std::env::temp_dir().join(format!("fby-generator-{}", std::process::id()));
        let (config, normal) = (dir.join("forebay.d"), dir.join("normal"));
        fs::create_dir_all(&config).unwrap();
        let text = "pool = \"/dev/pmem0\"\n[volume.data]\norigin = \"/dev/disk/by-id/x\"\nflush_on_detach = true\n\
            [volume.rare]\norigin = \"/dev/sdc\"\nauto = false\n";
        fs::write(config.join("fast.toml"), text).unwrap();
        let a = SystemdGenerator {
            normal: normal.clone(),
            early: None,
            late: None,
            config: config.clone(),
            template: "/lib/systemd/system/forebay@.service".into(),
            command: "/usr/bin/forebay".into(),
        };
        assert_eq!(run(&a).unwrap(), 0);
        assert_eq!(run(&a).unwrap(), 0, "again");
        let wants = normal.join("local-fs.target.wants");
        let link = fs::read_link(wants.join("forebay@data.service")).unwrap();
        assert_eq!(link, a.template);
        assert!(!wants.join("forebay@rare.service").exists());
        let conf =
            fs::read_to_string(normal.join("forebay@data.service.d/50-forebay.conf")).unwrap();
        for line in [
            r"Requires=dev-disk-by\x2did-x.device",
            r"After=dev-disk-by\x2did-x.device blockdev@dev-disk-by\x2did-x.target",
            "Requires=dev-pmem0.device",
            r"Before=blockdev@dev-forebay-by\x2dname-data.target",
            "ExecStop=/usr/bin/forebay detach --flush %i",
        ] {
            assert!(conf.lines().any(|l| l == line), "{line}: {conf}");
        }
        let rare =
            fs::read_to_string(normal.join("forebay@rare.service.d/50-forebay.conf")).unwrap();
        assert!(!rare.contains("ExecStop"), "{rare}");
        fs::write(config.join("wrong.toml"), "pool").unwrap();
        assert_eq!(run(&a).unwrap(), 2);
        fs::remove_dir_all(&dir).unwrap();
    }
}
