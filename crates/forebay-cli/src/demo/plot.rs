// SPDX-License-Identifier: MIT OR Apache-2.0
//! The latency plot: for each series, the latency that a share of its writes
//! does not exceed.  Both axes are logarithmic, the horizontal one in nines.

use std::path::Path;

use anyhow::Context;
use plotters::prelude::*;

use super::histogram::Histogram;
use crate::units;

pub struct Series<'a> {
    pub name: String,
    pub histogram: &'a Histogram,
}

const SIZE: (u32, u32) = (860, 560);
const NINES_MAX: f64 = 5.0;
const STEPS: u32 = 400;
const COLORS: [RGBColor; 5] = [
    RGBColor(0xc0, 0x39, 0x2b),
    RGBColor(0xe6, 0x7e, 0x22),
    RGBColor(0x1f, 0x6f, 0xb4),
    RGBColor(0x17, 0xa2, 0xa2),
    RGBColor(0x7d, 0x5b, 0xa6),
];

/// The name of a share of writes: "0", "90 %", "99 %", and so on.
fn share_name(nines: &f64) -> String {
    match *nines {
        n if n < 0.5 => "0".into(),
        n => format!("{:.*} %", (n - 2.0).max(0.0) as usize, 100.0 - 100.0 * 10f64.powf(-n)),
    }
}

/// The curve ends where there are too few writes to show more.
fn curve(h: &Histogram) -> Vec<(f64, u64)> {
    let last = (h.len().max(2) as f64).log10().min(NINES_MAX);
    let nines = (0..=STEPS).map(|step| last * f64::from(step) / f64::from(STEPS));
    nines.map(|n| (n, h.value_at_quantile(1.0 - 10f64.powf(-n)))).collect()
}

pub fn latencies(path: &Path, title: &str, series: &[Series]) -> anyhow::Result<()> {
    draw(path, title, series).with_context(|| format!("{}: cannot be drawn", path.display()))
}

fn draw(path: &Path, title: &str, series: &[Series]) -> anyhow::Result<()> {
    let low = series.iter().map(|s| s.histogram.min()).min().unwrap_or(1).max(1);
    let high = series.iter().map(|s| s.histogram.max()).max().unwrap_or(1).max(10 * low);
    let root = SVGBackend::new(path, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .caption(title, ("sans-serif", 20))
        .margin(14)
        .x_label_area_size(46)
        .y_label_area_size(76)
        .build_cartesian_2d(0.0..NINES_MAX, (low..high).log_scale())?;
    chart
        .configure_mesh()
        .x_labels(NINES_MAX as usize + 1)
        .x_label_formatter(&share_name)
        .y_label_formatter(&|ns| units::nanoseconds(*ns))
        .x_desc("share of the writes that took no longer")
        .draw()?;
    for (s, color) in series.iter().zip(COLORS.iter().cycle()) {
        let at = |q| units::nanoseconds(s.histogram.value_at_quantile(q));
        let name = format!("{}: p50 {}, p99 {}, p99.9 {}", s.name, at(0.5), at(0.99), at(0.999));
        chart
            .draw_series(LineSeries::new(curve(s.histogram), color.stroke_width(2)))?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], color.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .draw()?;
    root.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::histogram;
    use super::*;

    #[test]
    fn rarer_is_further_right_and_never_lower() {
        let mut h = histogram::new();
        for i in 1..=10_000u64 {
            h.record(i * 100).unwrap();
        }
        let points = curve(&h);
        assert!(points.windows(2).all(|w| w[0].0 < w[1].0 && w[0].1 <= w[1].1));
        assert!(points[0].1 < 200 && points[STEPS as usize].1 >= 999_000, "{points:?}");
    }

    #[test]
    fn shares_are_named_by_their_nines() {
        let names = [0.0, 1.0, 2.0, 3.0, 4.0].map(|n| share_name(&n));
        assert_eq!(names, ["0", "90 %", "99 %", "99.9 %", "99.99 %"]);
    }

    #[test]
    fn draws_what_there_is() {
        let path = std::env::temp_dir().join(format!("forebay-plot-{}.svg", std::process::id()));
        let mut h = histogram::new();
        let empty = histogram::new();
        h.record(500).unwrap();
        let series = [("one", &h), ("none", &empty)]
            .map(|(name, histogram)| Series { name: name.into(), histogram });
        latencies(&path, "a < b", &series).unwrap();
        let svg = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(svg.contains("a &lt; b") && svg.contains("one: p50"), "{svg}");
    }
}
