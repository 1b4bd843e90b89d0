// SPDX-License-Identifier: MIT OR Apache-2.0
//! The pictures, as SVG.

use std::path::Path;

use anyhow::Result;
use plotters::prelude::*;

const SIZE: (u32, u32) = (860, 420);
const COLOURS: [RGBColor; 6] = [
    RGBColor(31, 90, 180),
    RGBColor(200, 60, 40),
    RGBColor(40, 140, 70),
    RGBColor(150, 80, 170),
    RGBColor(210, 140, 20),
    RGBColor(90, 90, 90),
];

/// A named line.
pub struct Line {
    pub name: String,
    pub points: Vec<(f64, f64)>,
}

/// The caption of a chart, and its axes.
pub struct Text<'a> {
    pub caption: &'a str,
    pub x: &'a str,
    pub y: &'a str,
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

/// Caption, margins and room for the axes' labels.
fn chart<'a, 'b>(
    root: &'a Area<'b>,
    text: &Text<'_>,
    y_labels: u32,
) -> ChartBuilder<'a, 'a, SVGBackend<'b>> {
    let mut builder = ChartBuilder::on(root);
    builder
        .caption(text.caption, ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(y_labels);
    builder
}

/// Lines over a common x, from 0 on.
pub fn lines(path: &Path, text: &Text<'_>, lines: &[Line], log_x: bool) -> Result<()> {
    let root = SVGBackend::new(path, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let points = || lines.iter().flat_map(|l| &l.points);
    let right = points().map(|p| p.0).fold(1.0, f64::max);
    let left = if log_x { points().map(|p| p.0).fold(right, f64::min) } else { 0.0 };
    let top = 1.1 * points().map(|p| p.1).fold(1e-9, f64::max);
    let digits = usize::from(top < 20.0);
    // A place without lines, towards the right.
    let end = || points().filter(|p| p.0 > right * 0.6);
    let high = end().filter(|p| p.1 > top / 2.0).count();
    let names = match 2 * high > end().count() {
        true => SeriesLabelPosition::LowerRight,
        false => SeriesLabelPosition::UpperRight,
    };
    let mut builder = chart(&root, text, 80);
    macro_rules! draw {
        ($x:expr) => {{
            let mut chart = builder.build_cartesian_2d($x, 0.0..top)?;
            chart
                .configure_mesh()
                .y_label_formatter(&|y| format!("{y:.digits$}"))
                .x_desc(text.x)
                .y_desc(text.y)
                .draw()?;
            for (line, colour) in lines.iter().zip(COLOURS.iter().cycle()) {
                let colour = *colour;
                chart
                    .draw_series(LineSeries::new(line.points.iter().copied(), colour))?
                    .label(&line.name)
                    .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], colour));
            }
            chart
                .configure_series_labels()
                .position(names.clone())
                .background_style(WHITE)
                .border_style(BLACK)
                .draw()?;
        }};
    }
    match log_x {
        true => draw!((left..right * 1.05).log_scale().base(2.0)),
        false => draw!(left..right),
    }
    root.present()?;
    Ok(())
}

/// A value with what it was at least and at most.
pub struct Bar {
    pub name: String,
    pub low: f64,
    pub value: f64,
    pub high: f64,
}

/// Ratios, one below the other, with a line at 1.
pub fn ratios(path: &Path, text: &Text<'_>, bars: &[Bar]) -> Result<()> {
    let size = (SIZE.0, 120 + 22 * bars.len() as u32);
    let root = SVGBackend::new(path, size).into_drawing_area();
    root.fill(&WHITE)?;
    let right = bars.iter().map(|b| b.high).fold(1.0, f64::max) * 1.2;
    let left = bars.iter().map(|b| b.low).fold(1.0, f64::min).max(1e-3) / 1.2;
    // From top to bottom.
    let place = |i: usize| bars.len() - i;
    let mut chart =
        chart(&root, text, 150).build_cartesian_2d((left..right).log_scale(), 0..bars.len() + 1)?;
    let name = |y: &usize| match bars.len().checked_sub(*y).and_then(|i| bars.get(i)) {
        Some(b) => b.name.clone(),
        None => String::new(),
    };
    chart
        .configure_mesh()
        .disable_y_mesh()
        .y_labels(bars.len() + 2)
        .y_label_formatter(&name)
        .x_desc(text.x)
        .y_desc(text.y)
        .draw()?;
    chart.draw_series(LineSeries::new([(1.0, 0), (1.0, bars.len() + 1)], &RED))?;
    let marks = bars.iter().enumerate().map(|(i, b)| {
        ErrorBar::new_horizontal(place(i), b.low, b.value, b.high, BLUE.filled(), 10)
    });
    chart.draw_series(marks)?;
    root.present()?;
    Ok(())
}
