// SPDX-License-Identifier: MIT OR Apache-2.0
//! `forebay top`: a pool that is being served, live in the terminal.

use std::collections::VecDeque;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use anyhow::bail;
use forebay::{printable, PoolStatus, VolumeInfo};
use forebay_server::{Figure, ServerStatus, ServiceStatus};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Block, Gauge, Paragraph, Row, Sparkline, Table};
use ratatui::Frame;

use crate::{args, log, status, units, volume};

/// The number of looks that the curves show.
const HISTORY: usize = 240;

/// Changes between two looks, per second.
#[derive(Clone, Copy, Default)]
struct Rates {
    writes: f64,
    written: f64,
    hits: f64,
    misses: f64,
    origin_written: f64,
}

struct View {
    at: Instant,
    status: PoolStatus,
    rates: Rates,
    services: Vec<ServiceStatus>,
    /// The figures of each service; counters as rates per second.
    figures: Vec<String>,
    writes: VecDeque<u64>,
    destage: VecDeque<u64>,
}

fn origin_written(s: &PoolStatus) -> u64 {
    s.volumes.iter().map(|v| v.origin_written_bytes).sum()
}

impl View {
    fn new(served: ServerStatus) -> View {
        let empty = VecDeque::new;
        View {
            at: Instant::now(),
            status: served.pool,
            rates: Rates::default(),
            figures: vec![String::new(); served.services.len()],
            services: served.services,
            writes: empty(),
            destage: empty(),
        }
    }

    fn look(&mut self, served: ServerStatus) {
        let ServerStatus { pool: status, services, .. } = served;
        let (now, old) = (Instant::now(), &self.status);
        let seconds = (now - self.at).as_secs_f64().max(1e-3);
        let rate = |new: u64, old: u64| new.saturating_sub(old) as f64 / seconds;
        self.rates = Rates {
            writes: rate(status.counters.writes, old.counters.writes),
            written: rate(status.counters.written_bytes, old.counters.written_bytes),
            hits: rate(status.counters.read_hit_bytes, old.counters.read_hit_bytes),
            misses: rate(status.counters.read_miss_bytes, old.counters.read_miss_bytes),
            origin_written: rate(origin_written(&status), origin_written(old)),
        };
        keep(&mut self.writes, self.rates.written as u64);
        keep(&mut self.destage, self.rates.origin_written as u64);
        let figures = services.iter().map(|new| {
            let same = |s: &&ServiceStatus| s.kind == new.kind && s.name == new.name;
            figures(self.services.iter().find(same), new, seconds)
        });
        self.figures = figures.collect();
        (self.at, self.status, self.services) = (now, status, services);
    }
}

/// Lists figures in a few words.  For a counter, the figure is its increase per second.
fn figures(old: Option<&ServiceStatus>, new: &ServiceStatus, seconds: f64) -> String {
    let text = |f: &Figure| match f.name.strip_suffix("_total") {
        None => format!("{} {}", f.name, f.value),
        Some(name) => {
            let before = old.and_then(|old| old.figures.iter().find(|o| o.name == f.name));
            let before = before.map_or(f.value, |b| b.value);
            format!("{name} {:.1}/s", (f.value - before).max(0.0) / seconds)
        }
    };
    new.figures.iter().map(text).collect::<Vec<_>>().join("  ")
}

fn keep(history: &mut VecDeque<u64>, value: u64) {
    history.push_front(value);
    history.truncate(HISTORY);
}

pub fn run(a: &args::Top) -> anyhow::Result<u8> {
    if !std::io::stdout().is_terminal() {
        bail!("forebay top draws in a terminal, and standard output is none; use forebay status --watch or --json");
    }
    let mut view = View::new(status::of_pool(&a.pool)?);
    let mut terminal = ratatui::init();
    let result = (|| -> anyhow::Result<u8> {
        let mut next = Instant::now();
        loop {
            if Instant::now() >= next {
                view.look(status::of_pool(&a.pool)?);
                next = Instant::now() + a.every;
            }
            terminal.draw(|frame| draw(frame, &view))?;
            let left = next.saturating_duration_since(Instant::now());
            if event::poll(left.min(Duration::from_millis(250)))? && quits(&event::read()?) {
                return Ok(0);
            }
        }
    })();
    ratatui::restore();
    result
}

fn quits(event: &Event) -> bool {
    let Event::Key(key) = event else { return false };
    key.kind == KeyEventKind::Press
        && (matches!(key.code, KeyCode::Char('q') | KeyCode::Esc)
            || (key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL)))
}

fn draw(frame: &mut Frame, view: &View) {
    let s = &view.status;
    let volumes = s.volumes.len() as u16 + 3;
    let logs = match s.logs.len() as u16 {
        0 => 0,
        n => n + 3,
    };
    let services = match view.services.len() as u16 {
        0 => 0,
        n => 2 * n + 2,
    };
    let [top, gauge, curves, table, logs, served, phases, bottom] = Layout::vertical([
        Constraint::Length(2),
        Constraint::Length(3),
        Constraint::Length(7),
        Constraint::Length(volumes),
        Constraint::Length(logs),
        Constraint::Length(services),
        Constraint::Min(4),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    let title = format!("{}  {}", s.media.path.display(), s.media.note);
    let state = format!(
        "up {}  slots {}  next seq {}  waits: block {} slot {} space {}",
        format_args!("{:.0} s", s.uptime_seconds),
        s.slots,
        s.next_seq,
        s.counters.waits_block,
        s.counters.waits_slot,
        s.counters.waits_space
    );
    let bold = Style::new().add_modifier(Modifier::BOLD);
    frame.render_widget(Paragraph::new(vec![Line::styled(title, bold), state.into()]), top);
    draw_space(frame, gauge, s);
    draw_curves(frame, curves, view);
    draw_volumes(frame, table, s);
    draw_logs(frame, logs, s);
    draw_services(frame, served, view);
    draw_phases(frame, phases, s);
    frame.render_widget(Line::raw("q: quit"), bottom);
}

fn draw_space(frame: &mut Frame, area: Rect, s: &PoolStatus) {
    let high = f64::from(s.options.high_watermark_percent);
    let color = match s.used_percent {
        p if p < high => Color::Green,
        p if p < (high + 100.0) / 2.0 => Color::Yellow,
        _ => Color::Red,
    };
    let mut label = format!(
        "{} of {}, {:.0} % of chunks used, destage from {high} %",
        units::bytes(s.cached_bytes),
        units::bytes(s.capacity_bytes),
        s.used_percent
    );
    if s.static_bytes > 0 {
        label += &format!(
            "; static: {} of {}",
            units::bytes(s.static_cached_bytes),
            units::bytes(s.static_given_bytes)
        );
    }
    let gauge = Gauge::default()
        .block(Block::bordered().title("pool"))
        .gauge_style(Style::new().fg(color))
        .ratio((s.used_percent / 100.0).clamp(0.0, 1.0))
        .label(label);
    frame.render_widget(gauge, area);
}

fn draw_curves(frame: &mut Frame, area: Rect, view: &View) {
    let r = &view.rates;
    let bytes = |b: f64| units::bytes(b as u64);
    let [left, right] = Layout::horizontal([Constraint::Fill(1); 2]).areas(area);
    let hit = if r.hits + r.misses > 0.0 { 100.0 * r.hits / (r.hits + r.misses) } else { 0.0 };
    let taken = format!(
        "in {:.0} writes/s {}/s   reads {}/s, {hit:.0} % hits",
        r.writes,
        bytes(r.written),
        bytes(r.hits + r.misses)
    );
    let gone = format!("to origins {}/s", bytes(r.origin_written));
    for (area, title, history) in [(left, taken, &view.writes), (right, gone, &view.destage)] {
        let curve = Sparkline::default()
            .block(Block::bordered().title(title))
            .style(Style::new().fg(Color::Cyan))
            .data(history.iter().copied());
        frame.render_widget(curve, area);
    }
}

fn volume_row(v: &VolumeInfo) -> Row<'static> {
    let trouble = v.damaged
        || v.origin_changed.is_some()
        || v.origin_away.is_some()
        || v.last_error.is_some()
        || v.lost_blocks > 0
        || v.holes > 0;
    Row::new([
        v.label(),
        units::bytes(v.size_bytes),
        units::bytes(v.cached_bytes),
        format!("{}/s", units::bytes(v.drain_bytes_per_s)),
        v.intake_limit_bytes_per_s.map_or("none".into(), |b| format!("{}/s", units::bytes(b))),
        v.origin_depth.to_string(),
        v.lost_blocks.to_string(),
        volume::state(v),
    ])
    .style(Style::new().fg(if trouble { Color::Red } else { Color::Reset }))
}

fn draw_volumes(frame: &mut Frame, area: Rect, s: &PoolStatus) {
    let header = ["volume", "size", "cached", "drain", "limit", "depth", "lost", "state"];
    let widths = [
        Constraint::Length(16),
        Constraint::Length(10),
        Constraint::Length(10),
        Constraint::Length(12),
        Constraint::Length(12),
        Constraint::Length(6),
        Constraint::Length(6),
        Constraint::Fill(1),
    ];
    let table = Table::new(s.volumes.iter().map(volume_row), widths)
        .header(Row::new(header).style(Style::new().add_modifier(Modifier::BOLD)))
        .block(Block::bordered());
    frame.render_widget(table, area);
}

fn draw_logs(frame: &mut Frame, area: Rect, s: &PoolStatus) {
    let text = log::table(&s.logs).to_string();
    let lines: Vec<Line> = text.lines().map(|line| Line::raw(line.to_owned())).collect();
    frame.render_widget(Paragraph::new(lines).block(Block::bordered()), area);
}

/// Draws two lines for each service: one line would be too long for 80 columns.
fn draw_services(frame: &mut Frame, area: Rect, view: &View) {
    let lines = view.services.iter().zip(&view.figures).flat_map(|(s, figures)| {
        let color = if s.trouble.is_empty() { Color::Reset } else { Color::Red };
        let first = format!("{:10} {}  {}", s.kind, s.name, s.summary);
        let second = format!("{:10} {figures}", "");
        [first, second].map(|text| Line::raw(printable(&text).into_owned()).style(color))
    });
    let lines: Vec<Line> = lines.collect();
    frame.render_widget(Paragraph::new(lines).block(Block::bordered().title("served")), area);
}

fn draw_phases(frame: &mut Frame, area: Rect, s: &PoolStatus) {
    let us = |t: f64| match t {
        t if t < 1000.0 => format!("{t:.1} us"),
        t => format!("{:.1} ms", t / 1e3),
    };
    let rows = s.volumes.iter().flat_map(|v| {
        v.latency.iter().map(move |l| {
            Row::new([
                v.name.clone(),
                l.phase.clone(),
                l.count.to_string(),
                us(l.p50_us),
                us(l.p99_us),
                us(l.p999_us),
                us(l.max_us),
            ])
        })
    });
    let header = ["volume", "phase", "timed", "p50", "p99", "p99.9", "max"];
    let table = Table::new(rows, [Constraint::Fill(1); 7])
        .header(Row::new(header).style(Style::new().add_modifier(Modifier::BOLD)))
        .block(Block::bordered().title("latency since attach"));
    frame.render_widget(table, area);
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::backend::TestBackend;
    use ratatui::Terminal;

    /// The screen is drawn in any size without a panic, and shows the pool's name.
    #[test]
    fn draws_in_any_size() {
        let dir = std::env::temp_dir().join(format!("forebay-top-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let pool = dir.join("pool");
        let o = forebay::CreateOptions {
            size_bytes: Some(8 << 20),
            chunk_size_bytes: 64 << 10,
            ..Default::default()
        };
        forebay::create(&pool, &o).unwrap();
        let mut view = View::new(status::of_pool(&pool).unwrap());
        let mut status = status::of_pool(&pool).unwrap();
        status.pool.volumes.push(VolumeInfo {
            attached: true,
            origin_changed: Some("was deleted".into()),
            ..Default::default()
        });
        let figure = |name: &str, value| Figure { name: name.into(), help: "".into(), value };
        let service = |syncs| ServiceStatus {
            kind: "mount".into(),
            name: "/m".into(),
            figures: vec![figure("files", 3.0), figure("syncs_total", syncs)],
            ..Default::default()
        };
        view.services.push(service(5.0));
        view.at = Instant::now() - Duration::from_secs(10);
        status.services.push(service(105.0));
        view.look(status);
        let syncs = view.figures[0].strip_prefix("files 3  syncs ").unwrap();
        let syncs: f64 = syncs.strip_suffix("/s").unwrap().parse().unwrap();
        assert!(syncs > 0.0 && syncs <= 10.0, "{syncs}");
        std::fs::remove_dir_all(&dir).unwrap();
        for (w, h) in [(1, 1), (20, 5), (80, 24), (200, 60)] {
            let mut terminal = Terminal::new(TestBackend::new(w, h)).unwrap();
            terminal.draw(|frame| draw(frame, &view)).unwrap();
            let text = terminal.backend().to_string();
            assert_eq!(text.contains("forebay-top-"), w >= 80, "{w}x{h}: {text}");
            let told = text.contains("#0") && text.contains("origin CHANGED: was deleted");
            assert_eq!(told, w >= 200, "{w}x{h}: {text}");
            assert_eq!(text.contains("mount      /m "), w >= 80, "{w}x{h}: {text}");
            assert_eq!(text.contains("files 3  syncs "), w >= 80, "{w}x{h}: {text}");
        }
    }
}
