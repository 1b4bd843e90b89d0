// SPDX-License-Identifier: MIT OR Apache-2.0
//! The latency plot: for each series, the latency that a share of its writes
//! does not exceed.  Both axes are logarithmic, the horizontal one in nines.

use std::fmt::Write;

use super::histogram::Histogram;
use crate::units;

pub struct Series<'a> {
    pub name: String,
    pub histogram: &'a Histogram,
    /// Any of SVG.
    pub color: &'static str,
    pub dashed: bool,
}

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 590.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 20.0;
/// Room for the title and a legend of five lines.
const TOP: f64 = 150.0;
const BOTTOM: f64 = 60.0;

/// Shares marked on the horizontal axis.
const SHARES: [(f64, &str); 7] = [
    (0.0, "0"),
    (0.5, "50 %"),
    (0.9, "90 %"),
    (0.99, "99 %"),
    (0.999, "99.9 %"),
    (0.9999, "99.99 %"),
    (0.99999, "99.999 %"),
];
const NINES_MAX: f64 = 5.3;

struct Frame {
    low: i32,
    high: i32,
}

impl Frame {
    /// Whole decades of nanoseconds around all of the series.
    fn around(series: &[Series]) -> Frame {
        let low = series.iter().map(|s| s.histogram.quantile(0.0)).min();
        let high = series.iter().map(|s| s.histogram.max()).max();
        let decade = |ns: Option<u64>| (ns.unwrap_or(1).max(1) as f64).log10();
        let low = decade(low).floor() as i32;
        Frame { low, high: (decade(high).ceil() as i32).max(low + 1) }
    }

    fn x(&self, share: f64) -> f64 {
        let nines = -(1.0 - share).max(1e-12).log10();
        LEFT + (WIDTH - LEFT - RIGHT) * (nines / NINES_MAX).min(1.0)
    }

    fn y(&self, ns: u64) -> f64 {
        let decades = f64::from(self.high - self.low);
        let up = ((ns.max(1) as f64).log10() - f64::from(self.low)) / decades;
        HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * up
    }
}

pub fn latencies(title: &str, series: &[Series]) -> String {
    let frame = Frame::around(series);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         width=\"{WIDTH}\" height=\"{HEIGHT}\" font-family=\"sans-serif\" font-size=\"13\">\n\
         <title>{0}</title>\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"24\" font-size=\"16\">{0}</text>\n",
        escape(title)
    );
    axes(&mut svg, &frame);
    for s in series {
        curve(&mut svg, &frame, s);
    }
    legend(&mut svg, series);
    svg + "</svg>\n"
}

fn axes(svg: &mut String, frame: &Frame) {
    let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
    for decade in frame.low..=frame.high {
        let ns = 10u64.saturating_pow(decade.max(0) as u32);
        let y = frame.y(ns);
        element(
            svg,
            format_args!(
                "<path d=\"M{LEFT} {y:.1}H{right}\" stroke=\"#ddd\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                LEFT - 8.0,
                y + 4.0,
                decade_name(ns),
            ),
        );
    }
    for (share, name) in SHARES {
        let x = frame.x(share);
        element(
            svg,
            format_args!(
                "<path d=\"M{x:.1} {TOP}V{bottom}\" stroke=\"#ddd\"/>\
             <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{name}</text>",
                bottom + 18.0,
            ),
        );
    }
    element(svg, format_args!(
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">share of the writes that took no longer</text>",
        (LEFT + right) / 2.0,
        HEIGHT - 16.0,
    ));
}

fn decade_name(ns: u64) -> String {
    match ns {
        0..=999 => format!("{ns} ns"),
        1_000..=999_999 => format!("{} us", ns / 1_000),
        1_000_000..=999_999_999 => format!("{} ms", ns / 1_000_000),
        _ => format!("{} s", ns / 1_000_000_000),
    }
}

/// Only as far as there are writes to show it.
fn curve(svg: &mut String, frame: &Frame, s: &Series) {
    const STEPS: u32 = 400;
    let last = (s.histogram.count().max(2) as f64).log10().min(NINES_MAX);
    let mut path = String::new();
    for step in 0..=STEPS {
        let nines = last * f64::from(step) / f64::from(STEPS);
        let share = 1.0 - 10f64.powf(-nines);
        let command = if step == 0 { 'M' } else { 'L' };
        let (x, y) = (frame.x(share), frame.y(s.histogram.quantile(share)));
        write!(path, "{command}{x:.1} {y:.1}").expect("a string takes all");
    }
    element(
        svg,
        format_args!(
            "<path d=\"{path}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"{}/>",
            s.color,
            dashes(s),
        ),
    );
}

fn legend(svg: &mut String, series: &[Series]) {
    for (i, s) in series.iter().enumerate() {
        let x = LEFT + 14.0;
        let y = 52.0 + 20.0 * i as f64;
        element(
            svg,
            format_args!(
                "<path d=\"M{x} {:.1}h26\" stroke=\"{}\" stroke-width=\"2\"{}/>\
             <text x=\"{}\" y=\"{y}\">{}: p50 {}, p99 {}, p99.9 {}</text>",
                y - 4.0,
                s.color,
                dashes(s),
                x + 34.0,
                escape(&s.name),
                units::nanoseconds(s.histogram.quantile(0.5)),
                units::nanoseconds(s.histogram.quantile(0.99)),
                units::nanoseconds(s.histogram.quantile(0.999)),
            ),
        );
    }
}

fn dashes(s: &Series) -> &'static str {
    match s.dashed {
        true => " stroke-dasharray=\"6 4\"",
        false => "",
    }
}

fn element(svg: &mut String, text: std::fmt::Arguments) {
    writeln!(svg, "{text}").expect("a string takes all");
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slower_is_higher_and_rarer_is_further_right() {
        let mut h = Histogram::new();
        for i in 1..=10_000u64 {
            h.record(i * 100);
        }
        let series = [Series { name: "a < b".into(), histogram: &h, color: "red", dashed: false }];
        let frame = Frame::around(&series);
        assert_eq!((frame.low, frame.high), (2, 6));
        assert!(frame.y(1_000_000) < frame.y(1_000));
        assert!((frame.y(1_000_000) - TOP).abs() < 1e-9);
        assert!(frame.x(0.999) > frame.x(0.9));
        let svg = latencies("t & u", &series);
        assert!(svg.contains("a &lt; b: p50"), "{svg}");
        assert!(svg.contains("t &amp; u"));
        assert_eq!(svg.matches("<path").count(), svg.matches("stroke=").count());
        assert!(svg.trim_end().ends_with("</svg>"));
    }
}
