// SPDX-License-Identifier: MIT OR Apache-2.0
//! Results of the guest, kernel against kernel: tests/vm/run load, destage and apps.

use serde_json::Value;

use anyhow::Result;

use super::{figure, list, number, range, spread, text, three, Page};
use crate::plots::{self, Bar, Line, Text};

const EMULATED: &str =
    "The guest is emulated and its persistent memory is DRAM: only what one boot \
     measured can be compared.";

fn name(device: &str) -> &str {
    match device {
        "origin" => "the disk alone",
        "writecache" => "dm-writecache",
        "pcache" => "dm-pcache",
        "target" => "Forebay, mapper's target",
        "native" => "Forebay, native device",
        "native+crc" => "the same, with checksums",
        other => other,
    }
}

fn bar(name: String, c: &Value, what: &str) -> Bar {
    let [value, low, high] = three(c, what);
    Bar { name, low, value, high }
}

impl Page {
    pub(super) fn guest_load(&mut self) -> Result<()> {
        let Some(v) = self.read("vm-load")? else { return Ok(()) };
        let larger = match number(&v, "pcache_mib") {
            mib if mib > 0.0 => format!(
                " (dm-pcache, which takes no less, {} MiB and as many times the data)",
                figure(mib)
            ),
            _ => String::new(),
        };
        let how = format!(
            "16 fio jobs write 4 KiB at random over {} MiB through a cache of {} MiB{larger} for {} s each, one \
             after the other, each in front of a disk of its own: {} requests/s, {} MB/s, {} us a request, \
             {} us a flush. The disk alone before and after: {} and {} writes/s. Steady is from 3 s after as \
             much was written as the cache holds. Linux {}. {EMULATED}",
            figure(number(&v, "data_mib")),
            figure(number(&v, "cache_mib")),
            figure(number(&v, "seconds")),
            figure(number(&v, "disk/requests_per_s")),
            figure(number(&v, "disk/megabytes_per_s")),
            figure(number(&v, "disk/latency_us")),
            figure(number(&v, "disk/flush_us")),
            figure(number(&v, "origin_per_s_rounds/0")),
            figure(number(&v, "origin_per_s_rounds/1")),
            text(&v, "guest_kernel"),
        );
        self.heading("In the guest: sustained random writes", &how);
        let devices = list(&v, "devices");
        let alone = number(&v, "origin_per_s");
        // Writes that fit into the empty cache would make the rest a flat line.
        let steady = devices.iter().map(|d| number(d, "steady_per_s"));
        let top = 2.0 * steady.fold(alone, f64::max);
        let mut lines: Vec<Line> = devices
            .iter()
            .map(|d| Line {
                name: name(&text(d, "name")).to_string(),
                points: list(d, "windows")
                    .iter()
                    .map(|w| (number(w, "0"), number(w, "1").min(top)))
                    .collect(),
            })
            .collect();
        let end = lines.iter().flat_map(|l| &l.points).map(|p| p.0).fold(1.0, f64::max);
        lines.push(Line { name: name("origin").into(), points: vec![(0.0, alone), (end, alone)] });
        let path = self.picture("vm-load", "writes a second over time, in the guest");
        let t = Text {
            caption: "in the guest: 4 KiB random writes, sustained (cut off above)",
            x: "seconds",
            y: "writes/s",
        };
        plots::lines(&path, &t, &lines, false)?;
        let rows: Vec<_> = devices
            .iter()
            .map(|d| {
                let fields = [
                    ("steady_per_s", 1.0),
                    ("steady_over_origin", 1.0),
                    ("coefficient_of_variation", 1.0),
                    ("slowest_window_per_s", 1.0),
                    ("windows_with_nothing", 1.0),
                    ("latency/p999_us", 1e-3),
                    ("latency/max_us", 1e-3),
                ];
                let mut row = vec![name(&text(d, "name")).to_string()];
                row.extend(fields.map(|(f, scale)| figure(number(d, f) * scale)));
                row.push(text(d, "command"));
                row
            })
            .collect();
        let head = [
            "",
            "writes/s, steady",
            "over the disk's own",
            "variation of the windows",
            "slowest window",
            "windows with nothing",
            "p99.9 ms",
            "slowest ms",
            "command",
        ];
        self.table(&head, &rows);
        self.guest_mixes(&v)?;
        self.command(&text(&v, "command"));
        Ok(())
    }

    fn guest_mixes(&mut self, v: &Value) -> Result<()> {
        let cells = list(v, "mixes");
        if cells.is_empty() {
            return Ok(());
        }
        let how = format!(
            "The same disks and caches, random 4 KiB reads and writes, caches full. Medians of {} interleaved \
             rounds of {} s, lowest and highest.",
            figure(number(v, "rounds")),
            figure(number(v, "round_seconds")),
        );
        self.heading("In the guest: reads and writes mixed, over dm-writecache", &how);
        let mut bars = Vec::new();
        for c in cells {
            let (writes, jobs) = (number(c, "write_percent"), number(c, "jobs"));
            for d in ["target", "native"] {
                let what = format!("{d}_over_writecache");
                bars.push(bar(format!("{writes}% x{jobs} {d}"), c, &what));
            }
        }
        let native = bars.iter().filter(|b| b.name.ends_with("native"));
        if let Some(answer) = range(native) {
            self.answer("The kernel's device over dm-writecache, reads and writes mixed", answer);
        }
        let path = self.picture("vm-mixes", "ratios of mixed loads, in the guest");
        let t = Text { caption: "Forebay over dm-writecache", x: "ratio", y: "writes, jobs" };
        plots::ratios(&path, &t, &bars)?;
        let mut fields = vec![
            ("dm-writecache /s", "per_s/writecache"),
            ("target /s", "per_s/target"),
            ("native /s", "per_s/native"),
            ("target", "target_over_writecache"),
            ("native", "native_over_writecache"),
        ];
        if number(v, "pcache_mib") > 0.0 {
            fields.push(("dm-pcache /s", "per_s/pcache"));
            fields.push(("native over dm-pcache", "native_over_pcache"));
        }
        let rows: Vec<_> = cells
            .iter()
            .map(|c| {
                let mut row =
                    vec![format!("{} %", number(c, "write_percent")), figure(number(c, "jobs"))];
                row.extend(fields.iter().map(|(_, field)| spread(c, field)));
                row
            })
            .collect();
        let head: Vec<_> =
            ["writes", "jobs"].into_iter().chain(fields.iter().map(|(head, _)| *head)).collect();
        self.table(&head, &rows);
        Ok(())
    }

    pub(super) fn guest_destage(&mut self) -> Result<()> {
        let Some(v) = self.read("vm-destage")? else { return Ok(()) };
        let how = format!(
            "{} fio jobs write 4 KiB at random for {} s each over two to six times as much data as a cache \
             of {} MiB holds, one cache after the other on the same memory in front of the same disk. Linux \
             {}. {EMULATED}",
            figure(number(&v, "threads")),
            figure(number(&v, "seconds")),
            figure(number(&v, "cache_mib")),
            text(&v, "guest_kernel"),
        );
        self.heading("In the guest: what a full cache saves its disk", &how);
        let (mut bars, mut rows) = (Vec::new(), Vec::new());
        for c in list(&v, "cells") {
            let (rate, times) = (number(c, "requests_per_s"), number(c, "data_times"));
            for other in ["writecache", "bcache", "pcache"] {
                if let Some(value) =
                    c.pointer(&format!("/native_over/{other}")).and_then(Value::as_f64)
                {
                    let name = format!("{rate}/s {times}x / {}", name(other));
                    bars.push(Bar { name, low: value, value, high: value });
                }
            }
            for device in ["writecache", "bcache", "pcache", "native", "native+crc"] {
                let Some(d) = c.pointer(&format!("/devices/{device}")) else { continue };
                let fields = [
                    ("steady_per_s", 1.0),
                    ("steady_over_origin", 1.0),
                    ("coefficient_of_variation", 1.0),
                    ("windows_with_nothing", 1.0),
                    ("latency/p999_us", 1e-3),
                    ("latency/max_us", 1e-3),
                ];
                let mut row = vec![figure(rate), format!("{times}x"), name(device).to_string()];
                row.extend(fields.map(|(f, scale)| figure(number(d, f) * scale)));
                row.push(text(d, "command"));
                rows.push(row);
            }
        }
        let path = self.picture("vm-destage", "ratios of full caches, in the guest");
        let t = Text { caption: "the native device over others", x: "ratio", y: "" };
        plots::ratios(&path, &t, &bars)?;
        let head = [
            "the disk's requests/s",
            "data",
            "",
            "writes/s, steady",
            "over the disk's own",
            "variation of the windows",
            "windows with nothing",
            "p99.9 ms",
            "slowest ms",
            "command",
        ];
        self.table(&head, &rows);
        self.command(&text(&v, "command"));
        Ok(())
    }

    pub(super) fn guest_apps(&mut self) -> Result<()> {
        self.guest_programs("vm-apps", "In the guest: applications", &["native"])
    }

    pub(super) fn guest_dynamic(&mut self) -> Result<()> {
        let heading = "In the guest: a working set that grows and shrinks (FIO-12), and mail";
        self.guest_programs("vm-dynamic", heading, &["native", "static"])
    }

    /// A file of `tests/vm/apps_table.py`: programs on `ours`, compared with the disk and
    /// dm-writecache.
    fn guest_programs(&mut self, file: &str, heading: &str, ours: &[&str]) -> Result<()> {
        let Some(v) = self.read(file)? else { return Ok(()) };
        let how = format!(
            "On ext4 on the native device{}, on dm-writecache and on the disk alone, each on a disk of its own \
             of a given speed; caches of {} MiB. Medians of {} interleaved rounds of {} s, \
             lowest and highest. Linux {}. {EMULATED}",
            if ours.len() > 1 { ", its volume static and not" } else { "" },
            figure(number(&v, "cache_mib")),
            figure(number(&v, "rounds")),
            figure(number(&v, "seconds")),
            text(&v, "guest_kernel"),
        );
        self.heading(heading, &how);
        let cells = list(&v, "cells");
        let over = |side: &str, other: &str| format!("{side}_over_{other}");
        let mut bars = Vec::new();
        for c in cells {
            let cell = format!("{} {}", text(c, "disk"), text(c, "app"));
            for side in ours {
                let of = if ours.len() > 1 { format!("{cell} {side}") } else { cell.clone() };
                bars.push(bar(format!("{of} / disk"), c, &over(side, "origin")));
                bars.push(bar(format!("{of} / wc"), c, &over(side, "writecache")));
            }
        }
        let path = self.picture(file, "ratios of programs, in the guest");
        let t = Text {
            caption: "the native device over the disk alone, and over dm-writecache",
            x: "ratio",
            y: "",
        };
        plots::ratios(&path, &t, &bars)?;
        let mut head: Vec<String> =
            ["disk", "program", "unit", "the disk alone", "dm-writecache"].map(String::from).into();
        for side in ours {
            head.extend([side, "over the disk", "over dm-writecache"].map(String::from));
        }
        head.push("command".into());
        let rows: Vec<_> = cells
            .iter()
            .map(|c| {
                let mut row = vec![text(c, "disk"), text(c, "app"), text(c, "unit")];
                row.extend(["origin", "writecache"].map(|w| spread(c, w)));
                for side in ours {
                    let ratios =
                        ["origin", "writecache"].map(|other| spread(c, &over(side, other)));
                    row.push(spread(c, side));
                    row.extend(ratios);
                }
                row.push(text(c, "commands/native"));
                row
            })
            .collect();
        let head: Vec<&str> = head.iter().map(String::as_str).collect();
        self.table(&head, &rows);
        self.command(&text(&v, "command"));
        Ok(())
    }
}
