// SPDX-License-Identifier: MIT OR Apache-2.0
//! One page with everything that was measured: it reads the JSON files that are
//! there, says first what they come to, then draws them, and has the figures and
//! how they were made folded below each picture.

mod dynamic;
mod guest;
mod maps;

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::cases::Say;
use crate::plots::{self, Bar, Line, Text};

/// Writes the page and its plots.
pub fn write(out: &Path, html: &Path, say: Say<'_>) -> Result<()> {
    let mut page = Page::new(out, html)?;
    page.engine()?;
    page.slots()?;
    page.maps()?;
    page.map_run()?;
    page.peers()?;
    page.sustained()?;
    page.fairness()?;
    page.mixed()?;
    page.apps()?;
    page.dynamic()?;
    page.guest_load()?;
    page.guest_destage()?;
    page.guest_apps()?;
    page.guest_dynamic()?;
    page.others()?;
    page.save(html)?;
    say(&format!("see {}", html.display()));
    Ok(())
}

struct Page {
    out: PathBuf,
    /// From the page to the directory.
    link: String,
    /// The first information for a reader: a question and its answer.
    summary: Vec<(String, String)>,
    body: String,
    /// Tables and commands of the section, which end it.
    folded: String,
    machine: Option<Value>,
    used: Vec<String>,
}

/// A number by its path, such as `report/ratio`; NaN where there is none.
fn number(v: &Value, path: &str) -> f64 {
    v.pointer(&format!("/{path}")).and_then(Value::as_f64).unwrap_or(f64::NAN)
}

fn text(v: &Value, path: &str) -> String {
    let value = v.pointer(&format!("/{path}"));
    value.and_then(Value::as_str).unwrap_or_default().to_string()
}

fn list<'a>(v: &'a Value, path: &str) -> &'a [Value] {
    let value = v.pointer(&format!("/{path}"));
    value.and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Three digits that count, with thin spaces between thousands.
fn figure(n: f64) -> String {
    if !n.is_finite() {
        return "-".into();
    }
    let digits = match n.abs() {
        n if n >= 100.0 || n.fract() == 0.0 => 0,
        n if n >= 10.0 => 1,
        _ => 2,
    };
    let plain = format!("{n:.digits$}");
    let (whole, rest) = plain.split_once('.').map_or((&plain[..], None), |(w, r)| (w, Some(r)));
    let mut grouped = String::new();
    for (i, c) in whole.chars().enumerate() {
        let left = whole.len() - i;
        if i > 0 && left % 3 == 0 && c.is_ascii_digit() {
            grouped.push('\u{2009}');
        }
        grouped.push(c);
    }
    match rest {
        Some(rest) => format!("{grouped}.{rest}"),
        None => grouped,
    }
}

/// "1.31 (1.20 to 1.44)"
fn with_spread(value: f64, low: f64, high: f64) -> String {
    format!("{} ({} to {})", figure(value), figure(low), figure(high))
}

/// Median, lowest, highest.
fn three(c: &Value, what: &str) -> [f64; 3] {
    ["median", "low", "high"].map(|f| number(c, &format!("{what}/{f}")))
}

fn spread(c: &Value, what: &str) -> String {
    let [value, low, high] = three(c, what);
    with_spread(value, low, high)
}

/// "1.2 to 16 times": from the least to the most of several.
fn range<'b>(bars: impl IntoIterator<Item = &'b Bar>) -> Option<String> {
    let all = bars.into_iter().map(|b| b.value).filter(|v| v.is_finite());
    let values: Vec<f64> = all.collect();
    let (low, high) =
        (values.iter().copied().reduce(f64::min)?, values.iter().copied().reduce(f64::max)?);
    Some(match values.len() {
        1 => format!("{} times", figure(low)),
        n => format!("{} to {} times, in {n} cases", figure(low), figure(high)),
    })
}

impl Page {
    fn new(out: &Path, html: &Path) -> Result<Page> {
        let at = |p: &Path| std::path::absolute(p).with_context(|| format!("{}", p.display()));
        let (from, to) = (at(html)?, at(out)?);
        let from = from.parent().unwrap_or(Path::new("/"));
        let link = match to.strip_prefix(from) {
            Ok(below) => below.display().to_string(),
            Err(_) => to.display().to_string(),
        };
        let (summary, body, folded) = Default::default();
        Ok(Page { out: to, link, summary, body, folded, machine: None, used: Vec::new() })
    }

    /// `None`: it was not run.
    fn read(&mut self, name: &str) -> Result<Option<Value>> {
        let path = self.out.join(name).with_extension("json");
        let text = match fs::read_to_string(&path) {
            Ok(text) if !text.trim().is_empty() => text,
            _ => return Ok(None),
        };
        let value: Value = serde_json::from_str(&text)
            .with_context(|| format!("{}: not JSON; run its benchmark again", path.display()))?;
        if self.machine.is_none() {
            self.machine = value.get("machine").cloned();
        }
        self.used.push(format!("{name}.json"));
        Ok(Some(value))
    }

    fn answer(&mut self, question: &str, answer: String) {
        self.summary.push((question.into(), answer));
    }

    fn end_section(&mut self) {
        let folded = std::mem::take(&mut self.folded);
        if !folded.is_empty() {
            let _ = writeln!(
                self.body,
                "<details><summary>Figures, and how they were made</summary>\n{folded}</details>"
            );
        }
    }

    fn heading(&mut self, title: &str, how: &str) {
        self.end_section();
        let _ = writeln!(self.body, "<h2>{}</h2>\n<p>{}</p>", escape(title), escape(how));
    }

    fn command(&mut self, command: &str) {
        let _ = writeln!(self.folded, "<pre>{}</pre>", escape(command));
    }

    fn table(&mut self, head: &[&str], rows: &[Vec<String>]) {
        let cells = |tag: &str, all: &mut dyn Iterator<Item = &str>| -> String {
            all.map(|c| format!("<{tag}>{}</{tag}>", escape(c))).collect()
        };
        let _ = writeln!(self.folded, "<table><tr>{}</tr>", cells("th", &mut head.iter().copied()));
        for row in rows {
            let row = cells("td", &mut row.iter().map(String::as_str));
            let _ = writeln!(self.folded, "<tr>{row}</tr>");
        }
        self.folded.push_str("</table>\n");
    }

    fn picture(&mut self, name: &str, about: &str) -> PathBuf {
        let (link, about) = (escape(&self.link), escape(about));
        let _ = writeln!(self.body, "<p><img src=\"{link}/{name}.svg\" alt=\"{about}\"></p>");
        self.out.join(name).with_extension("svg")
    }

    fn engine(&mut self) -> Result<()> {
        if let Some(v) = self.read("bench-engine")? {
            let how = format!(
                "4 KiB writes: non-temporal copy and fence (raw), the same with checksum and one line, \
                 the least a safe write needs (floor), and the engine. Medians of {} interleaved rounds, \
                 with their 10th and 90th percentile. {}.",
                figure(number(&v, "rounds")),
                text(&v, "media")
            );
            self.heading("The write path", &how);
            let mut bars = Vec::new();
            for t in list(&v, "threads") {
                let floor = number(t, "floor/ops_per_s");
                let of_floor = |f: &str| number(t, &format!("engine/{f}")) / floor;
                bars.push(Bar {
                    name: format!("{} threads", figure(number(t, "n"))),
                    low: of_floor("ops_per_s_p10"),
                    value: of_floor("ops_per_s"),
                    high: of_floor("ops_per_s_p90"),
                });
            }
            let path = self.picture("engine", "the engine's rate over the floor's");
            let t = Text { caption: "writes/s of the engine over the floor", x: "ratio", y: "" };
            plots::ratios(&path, &t, &bars)?;
            if let (Some(one), Some(bar)) = (list(&v, "threads").first(), bars.first()) {
                let answer = format!(
                    "{} ns, at {} of the rate of the least that a safe write needs (the floor)",
                    figure(number(one, "engine/p50_ns")),
                    with_spread(bar.value, bar.low, bar.high)
                );
                self.answer("How long does a 4 KiB write take in the engine?", answer);
            }
            let mut rows = Vec::new();
            for t in list(&v, "threads") {
                for what in ["raw", "floor", "engine"] {
                    let at = |field: &str| number(t, &format!("{what}/{field}"));
                    rows.push(vec![
                        figure(number(t, "n")),
                        what.into(),
                        with_spread(at("ops_per_s"), at("ops_per_s_p10"), at("ops_per_s_p90")),
                        figure(at("p50_ns")),
                        figure(at("p99_ns")),
                        figure(at("p999_ns")),
                        figure(at("ops_per_s") / number(t, "floor/ops_per_s")),
                    ]);
                }
            }
            let head = ["threads", "", "writes/s", "p50 ns", "p99 ns", "p99.9 ns", "of the floor"];
            self.table(&head, &rows);
            self.command(&text(&v, "command"));
        }
        if let Some(v) = self.read("bench-read")? {
            let how = format!(
                "Verified reads of cached blocks. Medians of {} rounds, with their 10th and 90th percentile.",
                figure(number(&v, "rounds"))
            );
            self.heading("Read hits", &how);
            let at = |t: &Value, f: &str| number(t, &format!("hit/{f}"));
            let rows: Vec<_> = list(&v, "threads")
                .iter()
                .map(|t| {
                    let rate = at(t, "ops_per_s");
                    let rate = with_spread(rate, at(t, "ops_per_s_p10"), at(t, "ops_per_s_p90"));
                    let ns = ["p50_ns", "p99_ns", "p999_ns"].map(|f| figure(at(t, f)));
                    [vec![figure(number(t, "n")), rate], ns.to_vec()].concat()
                })
                .collect();
            self.table(&["threads", "reads/s", "p50 ns", "p99 ns", "p99.9 ns"], &rows);
            self.command(&text(&v, "command"));
        }
        if let Some(v) = self.read("bench-recovery")? {
            let how = format!(
                "{} s until a pool of {} MiB with {} dirty blocks is usable, on {} threads: median of {} rounds, the slowest {} s. {}.",
                figure(number(&v, "seconds")),
                figure(number(&v, "pool_bytes") / 1048576.0),
                figure(number(&v, "blocks")),
                figure(number(&v, "threads")),
                figure(number(&v, "rounds")),
                figure(number(&v, "seconds_max")),
                text(&v, "media")
            );
            self.heading("Recovery", &how);
            let answer = format!(
                "{} s with {} dirty blocks",
                figure(number(&v, "seconds")),
                figure(number(&v, "blocks"))
            );
            self.answer("How long is a pool unavailable after a crash?", answer);
            self.command(&text(&v, "command"));
        }
        Ok(())
    }

    fn slots(&mut self) -> Result<()> {
        let Some(v) = self.read("bench-slots")? else { return Ok(()) };
        let how = format!(
            "Throughput and CPU time of a write against the number of commit slots, on {}. Medians of {} \
             interleaved rounds of {} ms, on {} CPUs; auto is {} slots.",
            text(&v, "media"),
            figure(number(&v, "rounds")),
            figure(number(&v, "turn_ms")),
            figure(number(&v, "cpus")),
            figure(number(&v, "auto_slots")),
        );
        self.heading("Commit slots", &how);
        let cells = list(&v, "cells");
        let mut threads: Vec<u64> = cells.iter().map(|c| number(c, "threads") as u64).collect();
        threads.dedup();
        let by = |field: &str, scale: f64| -> Vec<Line> {
            let line = |n: &u64| Line {
                name: format!("{n} writers"),
                points: cells
                    .iter()
                    .filter(|c| number(c, "threads") as u64 == *n)
                    .map(|c| (number(c, "slots"), number(c, field) * scale))
                    .collect(),
            };
            threads.iter().map(line).collect()
        };
        let path = self.picture("slots-rate", "writes a second against slots");
        let t = Text { caption: "writes a second", x: "commit slots", y: "writes/s" };
        plots::lines(&path, &t, &by("writes_per_s", 1.0), true)?;
        let path = self.picture("slots-cpu", "CPU time of a write against slots");
        let t = Text { caption: "CPU time of a write", x: "commit slots", y: "microseconds" };
        plots::lines(&path, &t, &by("cpu_ns_per_write", 1e-3), true)?;
        let rows: Vec<_> = cells
            .iter()
            .map(|c| {
                let spread = |f: &str, scale: f64| {
                    let at = |end: &str| number(c, &format!("{f}{end}")) * scale;
                    with_spread(at(""), at("_low"), at("_high"))
                };
                vec![
                    figure(number(c, "threads")),
                    figure(number(c, "slots")),
                    spread("writes_per_s", 1.0),
                    spread("cpu_ns_per_write", 1e-3),
                ]
            })
            .collect();
        self.table(&["writers", "slots", "writes/s", "CPU us a write"], &rows);
        self.command(&text(&v, "command"));
        Ok(())
    }

    fn peers(&mut self) -> Result<()> {
        let Some(v) = self.read("peers")? else { return Ok(()) };
        let how = format!(
            "4 KiB random writes. Medians of {} interleaved rounds of {} s, lowest and highest. {}",
            figure(number(&v, "rounds")),
            figure(number(&v, "seconds")),
            text(&v, "note")
        );
        self.heading("Beside libpmemblk and the origin alone", &how);
        let cells = list(&v, "cells");
        let rate = |jobs: f64, name: &str| {
            let cell = cells
                .iter()
                .find(|c| number(c, "jobs") == jobs && text(c, "name").starts_with(name));
            cell.map_or(f64::NAN, |c| number(c, "writes_per_s/median"))
        };
        let mut bars = Vec::new();
        for (name, base) in
            [("Forebay, in the process", "libpmemblk"), ("Forebay over NBD", "the origin alone")]
        {
            let mut of_name = Vec::new();
            for c in cells.iter().filter(|c| text(c, "name").starts_with(name)) {
                let base_rate = rate(number(c, "jobs"), base);
                let over = |f: &str| number(c, &format!("writes_per_s/{f}")) / base_rate;
                of_name.push(Bar {
                    name: format!("{name} x{} over {base}", number(c, "jobs")),
                    low: over("low"),
                    value: over("median"),
                    high: over("high"),
                });
            }
            if let Some(answer) = range(&of_name) {
                self.answer(&format!("{name}, over {base}: writes a second"), answer);
            }
            bars.extend(of_name);
        }
        let path = self.picture("peers", "ratios to peers");
        let t = Text { caption: "over the peer (its median)", x: "ratio", y: "" };
        plots::ratios(&path, &t, &bars)?;
        let rows: Vec<_> = cells
            .iter()
            .map(|c| {
                let rate = with_spread(
                    number(c, "writes_per_s/median"),
                    number(c, "writes_per_s/low"),
                    number(c, "writes_per_s/high"),
                );
                vec![text(c, "name"), figure(number(c, "jobs")), rate, text(c, "command")]
            })
            .collect();
        self.table(&["", "jobs", "writes/s", "command"], &rows);
        self.command(&text(&v, "command"));
        Ok(())
    }

    fn sustained(&mut self) -> Result<()> {
        let Some(v) = self.read("sustained")? else { return Ok(()) };
        let at = |f: &str| number(&v, &format!("report/{f}"));
        let how = format!(
            "{} clients write 4 KiB at random over {} times the cache for {} s: one run, judged by its \
             windows of 0.5 s from second {} on, when the cache had filled. The origin alone before and \
             after: {} and {} writes/s. Origin: {} requests/s, {} MB/s, {} us a request, {} us a flush.",
            figure(at("clients")),
            figure(at("data_bytes") / at("pool_bytes")),
            figure(at("seconds")),
            figure(at("steady_from_s")),
            figure(at("origin_per_s_rounds/0")),
            figure(at("origin_per_s_rounds/1")),
            figure(at("speed/requests_per_s")),
            figure(at("speed/bytes_per_s") / 1e6),
            figure(at("speed/latency_us")),
            figure(at("speed/flush_us")),
        );
        self.heading("Sustained random writes", &how);
        let answer = format!("{} times the origin alone", figure(at("steady_over_origin")));
        self.answer("Random writes without an end, several times the cache's size", answer);
        let path = self.picture("sustained", "writes a second over time");
        let windows = list(&v, "report/windows_per_s");
        let points: Vec<(f64, f64)> = windows
            .iter()
            .enumerate()
            .map(|(i, w)| (0.5 * (i + 1) as f64, w.as_f64().unwrap_or(0.0)))
            .collect();
        // Writes that fit into the empty cache would make the rest a flat line.
        let top = 2.0 * at("steady_per_s").max(at("origin_per_s"));
        let end = points.last().map_or(1.0, |p| p.0);
        let through = points.into_iter().map(|(x, y)| (x, y.min(top))).collect();
        let alone = at("origin_per_s");
        let lines = [
            Line { name: "through Forebay".into(), points: through },
            Line { name: "the origin alone".into(), points: vec![(0.0, alone), (end, alone)] },
        ];
        let t = Text {
            caption: "4 KiB random writes, sustained (cut off above)",
            x: "seconds",
            y: "writes/s",
        };
        plots::lines(&path, &t, &lines, false)?;
        let row = |what: &str, value: f64| vec![what.to_string(), figure(value)];
        self.table(
            &["", ""],
            &[
                row("writes/s, steady", at("steady_per_s")),
                row("over the origin's own rate", at("steady_over_origin")),
                row("coefficient of variation of the windows", at("coefficient_of_variation")),
                row("slowest window, writes/s", at("slowest_window_per_s")),
                row("p99.9 of a write, throttling included, ms", at("latency/p999_us") / 1e3),
                row("slowest write, ms", at("latency/max_us") / 1e3),
            ],
        );
        self.command(&text(&v, "command"));
        Ok(())
    }

    fn fairness(&mut self) -> Result<()> {
        if let Some(v) = self.read("hot-set")? {
            let at = |f: &str| number(&v, &format!("report/{f}"));
            let how = format!(
                "Writes by a zipf distribution of {} over ten times the cache, one run: {} blocks taken in, \
                 {} written to the origin: {} of them.",
                figure(at("exponent")),
                figure(at("writes")),
                figure(at("origin_blocks")),
                figure(at("blocks_over_writes")),
            );
            self.heading("Hot set", &how);
            self.command(&text(&v, "command"));
        }
        if let Some(v) = self.read("fsync-tail")? {
            let at = |f: &str| number(&v, &format!("report/{f}"));
            let how = format!(
                "p99.9 of write and flush by one client while 200 MiB drain over that of the quiet system: {}. \
                 Medians of {} interleaved rounds: quiet {} us, draining {} us.",
                with_spread(at("p999_ratio"), at("p999_ratio_low"), at("p999_ratio_high")),
                list(&v, "report/rounds").len(),
                figure(at("quiet_p999_us")),
                figure(at("draining_p999_us")),
            );
            self.heading("fsync during a drain", &how);
            let answer = format!(
                "p99.9 of write and flush is {} times that of a quiet system",
                figure(at("p999_ratio"))
            );
            self.answer("What does a drain beside it cost?", answer);
            self.command(&text(&v, "command"));
        }
        if let Some(v) = self.read("stall")? {
            let at = |f: &str| number(&v, &format!("report/{f}"));
            let how = format!(
                "Two volumes of a pool; the origin of one stalls for {} s. The other goes on at {} of what it \
                 did before: one run, {} and {} writes/s; the windows vary by {} and {} of their mean.",
                figure(at("stalled_seconds")),
                figure(at("ratio")),
                figure(at("before_per_s")),
                figure(at("during_per_s")),
                figure(at("before_variation")),
                figure(at("during_variation")),
            );
            self.heading("A stalled origin", &how);
            let answer = format!("the other volume goes on at {} of its rate", figure(at("ratio")));
            self.answer("What if one volume's disk stands still?", answer);
            let path = self.picture("stall", "writes a second of the other volume");
            let points = list(&v, "report/windows_per_s").iter().enumerate();
            let points =
                points.map(|(i, w)| (0.5 * (i + 1) as f64, w.as_f64().unwrap_or(0.0))).collect();
            let t = Text {
                caption: "the other volume, while one stalls at the end",
                x: "seconds",
                y: "writes/s",
            };
            plots::lines(&path, &t, &[Line { name: "the other volume".into(), points }], false)?;
            self.command(&text(&v, "command"));
        }
        Ok(())
    }

    fn mixed(&mut self) -> Result<()> {
        let Some(v) = self.read("mixed")? else { return Ok(()) };
        let how = format!(
            "Random 4 KiB reads and writes through Forebay over the same on the origin alone. Medians of {} \
             interleaved rounds of {} s, lowest and highest.",
            figure(number(&v, "report/rounds")),
            figure(number(&v, "report/round_seconds")),
        );
        self.heading("Reads and writes mixed", &how);
        let cells = list(&v, "report/cells");
        let bars: Vec<_> = cells
            .iter()
            .map(|c| Bar {
                name: format!("{}% x{}", number(c, "write_percent"), number(c, "clients")),
                low: number(c, "ratio_low"),
                value: number(c, "ratio"),
                high: number(c, "ratio_high"),
            })
            .collect();
        if let Some(answer) = range(&bars) {
            self.answer("Random reads and writes mixed, over the origin alone", answer);
        }
        let path = self.picture("mixed", "ratios of mixed loads");
        let t = Text { caption: "Forebay over the origin alone", x: "ratio", y: "writes, clients" };
        plots::ratios(&path, &t, &bars)?;
        let rows: Vec<_> = cells
            .iter()
            .map(|c| {
                vec![
                    format!("{} %", number(c, "write_percent")),
                    figure(number(c, "clients")),
                    figure(number(c, "origin_per_s")),
                    figure(number(c, "forebay_per_s")),
                    with_spread(
                        number(c, "ratio"),
                        number(c, "ratio_low"),
                        number(c, "ratio_high"),
                    ),
                ]
            })
            .collect();
        self.table(&["writes", "clients", "origin /s", "Forebay /s", "ratio"], &rows);
        self.command(&text(&v, "command"));
        Ok(())
    }

    fn apps(&mut self) -> Result<()> {
        /// The sides of a cell, as a reader knows them.
        const SIDES: [(&str, &str); 3] =
            [("mount", "mount"), ("forebay", "volume"), ("eatmydata", "no syncs")];
        let Some(v) = self.read("apps")? else { return Ok(()) };
        let how = format!(
            "On ext4 under forebay mount, on a served volume, and with libeatmydata, which makes every sync \
             nothing and loses what it promises; beside ext4 on the same kind of disk alone. Medians of {} \
             interleaved rounds of {} s, lowest and highest.",
            figure(number(&v, "rounds")),
            figure(number(&v, "seconds")),
        );
        self.heading("Applications", &how);
        let cells = list(&v, "cells");
        let bar = |c: &Value, (side, name): (&str, &str)| {
            let [value, low, high] = three(c, &format!("over_origin/{side}"));
            Bar {
                name: format!("{} {}, {name}", text(c, "disk"), text(c, "app")),
                low,
                value,
                high,
            }
        };
        for (side, title) in [
            (SIDES[0], "Programs on a mount, over the same on the disk alone"),
            (SIDES[1], "Programs on ext4 on a volume, over the same on the disk alone"),
        ] {
            let bars: Vec<_> = cells.iter().map(|c| bar(c, side)).collect();
            if let Some(answer) = range(&bars) {
                self.answer(title, answer);
            }
        }
        let path = self.picture("apps", "ratios of applications");
        let bars: Vec<_> = cells.iter().flat_map(|c| SIDES.map(|side| bar(c, side))).collect();
        let t = Text { caption: "Over the disk alone", x: "ratio", y: "" };
        plots::ratios(&path, &t, &bars)?;
        let rows: Vec<_> = cells
            .iter()
            .map(|c| {
                let mut row = ["disk", "app", "unit"].map(|what| text(c, what)).to_vec();
                row.push(spread(c, "sides/origin"));
                for (side, _) in SIDES {
                    row.push(spread(c, &format!("sides/{side}")));
                    row.push(spread(c, &format!("over_origin/{side}")));
                }
                row.push(spread(c, "mount_over_eatmydata"));
                row.push(text(c, "commands/forebay"));
                row
            })
            .collect();
        let mut head = vec!["disk", "program", "unit", "disk alone"];
        head.extend(SIDES.iter().flat_map(|(_, name)| [*name, "ratio"]));
        head.extend(["mount over no syncs", "command"]);
        self.table(&head, &rows);
        self.command(&text(&v, "command"));
        Ok(())
    }

    /// Other existing results, such as a guest's measurements.
    fn others(&mut self) -> Result<()> {
        let Ok(files) = fs::read_dir(&self.out) else { return Ok(()) };
        let mut names: Vec<String> = files
            .flatten()
            .map(|f| f.file_name().to_string_lossy().into_owned())
            .filter(|n| n.ends_with(".json") && !self.used.contains(n))
            .collect();
        names.sort();
        if names.is_empty() {
            return Ok(());
        }
        self.heading("More results", "Not drawn here:");
        for name in names {
            let (link, name) = (escape(&self.link), escape(&name));
            let _ = writeln!(self.body, "<p><a href=\"{link}/{name}\">{name}</a></p>");
        }
        Ok(())
    }

    fn save(&mut self, html: &Path) -> Result<()> {
        self.end_section();
        let mut summary = String::new();
        for (question, answer) in &self.summary {
            let _ = writeln!(
                summary,
                "<tr><td>{}</td><td><b>{}</b></td></tr>",
                escape(question),
                escape(answer)
            );
        }
        let machine = match &self.machine {
            Some(m) => format!(
                "{} CPUs, {}; {} of memory; Linux {}; load at the start {}.",
                figure(number(m, "cpus")),
                text(m, "cpu"),
                text(m, "memory"),
                text(m, "kernel"),
                text(m, "load_at_start"),
            ),
            None => "The machine is not recorded in these files.".into(),
        };
        let page = format!(
            "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
             <title>Forebay: benchmarks</title>\n\
             <style>body{{font:16px/1.5 sans-serif;max-width:1000px;margin:2em auto;padding:0 1em}}\
             table{{border-collapse:collapse}}th,td{{text-align:left;vertical-align:top;padding:.2em 1em .2em 0}}\
             summary{{cursor:pointer;color:#555}}img{{max-width:100%}}pre{{background:#f4f4f4;padding:.5em;white-space:pre-wrap}}</style>\n\
             <h1>Forebay: benchmarks</h1>\n<table>{summary}</table>\n<p>{}</p>\n\
             <p>The pools are in DRAM, which stands in for persistent memory; the disks are memory that \
             serves requests at a steady rate with a latency.</p>\n{}",
            escape(&machine),
            self.body
        );
        if let Some(dir) = html.parent() {
            fs::create_dir_all(dir)
                .with_context(|| format!("{}: cannot be made", dir.display()))?;
        }
        fs::write(html, page).with_context(|| format!("{}: cannot be written", html.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_for_people() {
        assert_eq!(figure(1234567.8), "1\u{2009}234\u{2009}568");
        assert_eq!(figure(12.34), "12.3");
        assert_eq!(figure(0.5), "0.50");
        assert_eq!(figure(16.0), "16");
        assert_eq!(figure(f64::NAN), "-");
        assert_eq!(figure(-1234.0), "-1\u{2009}234");
    }

    /// Any set of files works; a missing one leaves no trace.
    #[test]
    fn the_page_shows_what_is_there() {
        let dir = std::env::temp_dir().join(format!("forebay-page-{}", std::process::id()));
        let out = dir.join("out");
        fs::create_dir_all(&out).unwrap();
        let apps = r#"{"rounds": 3, "seconds": 2, "command": "bench/apps.sh", "machine": {"cpus": 2},
            "cells": [{"disk": "sata", "app": "a<b", "unit": "x/s", "commands": {"forebay": "run & go"},
            "sides": {"origin": {"median": 10, "low": 9, "high": 11}, "forebay": {"median": 30, "low": 20, "high": 40},
            "mount": {"median": 50, "low": 40, "high": 60}, "eatmydata": {"median": 70, "low": 60, "high": 80}},
            "over_origin": {"forebay": {"median": 3, "low": 2, "high": 4}, "mount": {"median": 5, "low": 4, "high": 6},
            "eatmydata": {"median": 7, "low": 6, "high": 8}},
            "mount_over_eatmydata": {"median": 0.7, "low": 0.6, "high": 0.8}}]}"#;
        fs::write(out.join("apps.json"), apps).unwrap();
        fs::write(out.join("vm-bench.json"), "{}").unwrap();
        let html = dir.join("index.html");
        write(&out, &html, &mut |_| ()).unwrap();
        let page = fs::read_to_string(&html).unwrap();
        for part in ["a&lt;b", "run &amp; go", "3 (2 to 4)", "out/apps.svg", "out/vm-bench.json"] {
            assert!(page.contains(part), "no {part} in {page}");
        }
        // First what it comes to, then the picture, then the figures, folded.
        let order = ["<b>3 times</b>", "out/apps.svg", "<details>", "3 (2 to 4)", "</details>"];
        let at: Vec<_> = order.iter().map(|part| page.find(part).expect(part)).collect();
        assert!(at.is_sorted(), "{at:?} in {page}");
        assert!(
            !page.contains("Commit slots")
                && !page.contains("In the guest")
                && !page.contains("out/apps.json")
        );
        assert!(fs::read_to_string(out.join("apps.svg")).unwrap().contains("<svg"));
        let load = r#"{"origin_per_s": 100, "pcache_mib": 520, "devices": [{"name": "writecache", "steady_per_s": 120,
            "windows": [[0.5, 900], [1.0, 110]], "command": "fio a&b"}], "mixes": [{"write_percent": 99, "jobs": 4,
            "target_over_writecache": {"median": 1.5, "low": 1, "high": 2},
            "native_over_writecache": {"median": 7, "low": 6, "high": 8},
            "native_over_pcache": {"median": 17, "low": 16, "high": 18}}]}"#;
        fs::write(out.join("vm-load.json"), load).unwrap();
        write(&out, &html, &mut |_| ()).unwrap();
        let page = fs::read_to_string(&html).unwrap();
        for part in [
            "takes no less, 520",
            "fio a&amp;b",
            "7 (6 to 8)",
            "17 (16 to 18)",
            "out/vm-load.svg",
            "out/vm-mixes.svg",
        ] {
            assert!(page.contains(part), "no {part} in {page}");
        }
        assert!(fs::read_to_string(out.join("vm-mixes.svg")).unwrap().contains("99% x4 native"));
        let destage = r#"{"cells": [{"requests_per_s": 400, "data_times": 3, "native_over": {"pcache": 2.5},
            "devices": {"pcache": {"steady_per_s": 77, "command": "fio c"}, "native": {"steady_per_s": 190}}}]}"#;
        fs::write(out.join("vm-destage.json"), destage).unwrap();
        write(&out, &html, &mut |_| ()).unwrap();
        let page = fs::read_to_string(&html).unwrap();
        assert!(
            page.contains("dm-pcache") && page.contains("fio c") && page.contains("190"),
            "{page}"
        );
        let picture = fs::read_to_string(out.join("vm-destage.svg")).unwrap();
        assert!(picture.contains("400/s 3x / dm-pcache"), "{picture}");
        let map = r#"{"dir": "/d", "media": "memfd", "sync": [{"what": "page", "mapping_mib": 64, "dirty_pages": 1,
            "p50_us": 2, "p90_us": 3, "kernel_p50_us": 88, "ratio": 44}], "writes": [{"threads": 1, "block": 4096,
            "mib_per_s": 300, "kernel_mib_per_s": 4, "ratio": 75}], "store_us": 2, "kernel_store_us": 8, "command": "forebay bench map"}"#;
        fs::write(out.join("bench-map.json"), map).unwrap();
        write(&out, &html, &mut |_| ()).unwrap();
        let page = fs::read_to_string(&html).unwrap();
        assert!(
            page.contains("44 times as fast") && page.contains("out/map-threads.svg"),
            "{page}"
        );
        let rest = fs::read_to_string(out.join("map-rest.svg")).unwrap();
        assert!(rest.contains("first store") && !rest.contains("cached"), "{rest}");
        let run = r#"{"dir": "/d", "file_system": "ext4", "rounds": 3, "seconds": 2, "programs": [{"program": "redis",
            "unit": "SETs", "per_s": {"plain": {"median": 300, "low": 200, "high": 400}, "mapped": {"median": 9000,
            "low": 8000, "high": 9500}}, "cpu_us": {"plain": {"median": 130, "low": 120, "high": 140},
            "mapped": {"median": 12, "low": 11, "high": 13}}, "over_plain": {"mapped": {"median": 30, "low": 25,
            "high": 35}}}], "command": "bench/map-run.sh"}"#;
        fs::write(out.join("map-run.json"), run).unwrap();
        write(&out, &html, &mut |_| ()).unwrap();
        let page = fs::read_to_string(&html).unwrap();
        for part in ["<b>30 times</b>", "130 (120 to 140)", "out/map-run.svg", "on /d (ext4)"] {
            assert!(page.contains(part), "no {part} in {page}");
        }
        fs::write(out.join("stall.json"), "{").unwrap();
        let e = write(&out, &html, &mut |_| ()).unwrap_err();
        assert!(e.to_string().contains("stall.json"), "{e}");
        fs::remove_dir_all(&dir).unwrap();
    }
}
