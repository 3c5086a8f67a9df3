//! Charts as SVG: lines over marks from left to right, or bars side by side.

use std::fmt::Write as _;

/// Scale of values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Axis {
    /// From 0.
    Linear,
    /// By powers of ten.
    Logarithmic,
}

/// A point: its position from left (0) to right (1), its value, and the minimum and maximum of several runs.
pub(crate) type Point = (f64, f64, Option<(f64, f64)>);

/// How points are drawn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Shape {
    /// A line through them.
    Lines,
    /// A bar each, those of one position side by side.
    Bars,
}

/// A line, or bars of one kind.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Line {
    pub(crate) name: String,
    pub(crate) points: Vec<Point>,
    /// A reference, drawn as a dashed line.
    pub(crate) dashed: bool,
}

impl Line {
    /// A compared line.
    pub(crate) fn new(name: &str, points: Vec<Point>) -> Self {
        Self { name: name.to_owned(), points, dashed: false }
    }
}

/// A chart.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Chart {
    pub(crate) title: String,
    pub(crate) x_title: String,
    /// Labels below, with positions from 0 to 1.
    pub(crate) x_marks: Vec<(f64, String)>,
    pub(crate) y_title: String,
    pub(crate) y: Axis,
    pub(crate) shape: Shape,
    pub(crate) lines: Vec<Line>,
}

// Sizes in pixels.
const WIDTH: f64 = 820.0;
const HEIGHT: f64 = 440.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 250.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 60.0;

/// Distinguishable for red-green colour-blind readers, too.
const COLOURS: [&str; 9] =
    ["#0072b2", "#56b4e9", "#009e73", "#d55e00", "#e69f00", "#b8860b", "#cc79a7", "#882255", "#444444"];

/// Colours of dashed lines.
const GREYS: [&str; 2] = ["#000000", "#888888"];
const DASHES: &str = " stroke-dasharray=\"6 4\"";

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Heights of values, and positions of their labels.
struct Scale {
    axis: Axis,
    least: f64,
    most: f64,
    marks: Vec<f64>,
}

impl Scale {
    fn of(axis: Axis, figures: impl Iterator<Item = f64> + Clone) -> Self {
        let most = figures.clone().fold(0.0, f64::max);
        let least = figures.filter(|f| *f > 0.0).fold(f64::INFINITY, f64::min);
        match axis {
            Axis::Linear => {
                // Four to eight steps of 1, 2 or 5 times a power of ten.
                let power = 10_f64.powf(most.max(1e-9).log10().floor());
                let steps = [0.2, 0.5, 1.0, 2.0].map(|part| part * power);
                let step = steps.into_iter().find(|step| most / step <= 8.0).unwrap_or(power);
                let count = (most / step).ceil().max(1.0);
                let marks = (0..=count as u32).map(|n| f64::from(n) * step).collect();
                Self { axis, least: 0.0, most: count * step, marks }
            }
            Axis::Logarithmic => {
                let low = if least.is_finite() { least.log10().floor() } else { 0.0 };
                let high = most.max(1e-9).log10().ceil().max(low + 1.0);
                let marks = (low as i32..=high as i32).map(|n| 10_f64.powi(n)).collect();
                Self { axis, least: low, most: high, marks }
            }
        }
    }

    fn y(&self, figure: f64) -> f64 {
        let value = match self.axis {
            Axis::Linear => figure,
            Axis::Logarithmic => figure.max(1e-9).log10().max(self.least),
        };
        HEIGHT - BOTTOM - (value - self.least) / (self.most - self.least) * (HEIGHT - BOTTOM - TOP)
    }
}

fn x(place: f64) -> f64 {
    LEFT + place * (WIDTH - LEFT - RIGHT)
}

impl Chart {
    /// The picture, with `about` below it in small letters.
    pub(crate) fn svg(&self, about: &str) -> String {
        let points = self.lines.iter().flat_map(|line| &line.points);
        let figures = points.flat_map(|(_, y, spread)| {
            let (least, most) = spread.unwrap_or((*y, *y));
            [*y, least, most]
        });
        let scale = Scale::of(self.y, figures);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"12\">\n\
             <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n"
        );
        let mut add = |piece: std::fmt::Arguments<'_>| {
            // Writing to a String cannot fail.
            let _ = svg.write_fmt(piece);
            svg.push('\n');
        };
        add(format_args!("<text x=\"{LEFT}\" y=\"22\" font-size=\"15\">{}</text>", escaped(&self.title)));
        let (right, low) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        for mark in &scale.marks {
            let y = scale.y(*mark);
            add(format_args!("<path d=\"M{LEFT} {y:.1}H{right}\" stroke=\"#ddd\"/>"));
            let at = LEFT - 6.0;
            add(format_args!("<text x=\"{at}\" y=\"{:.1}\" text-anchor=\"end\">{mark}</text>", y + 4.0));
        }
        for (place, words) in &self.x_marks {
            let x = x(*place);
            add(format_args!("<path d=\"M{x:.1} {TOP}V{low}\" stroke=\"#eee\"/>"));
            let y = low + 18.0;
            add(format_args!(
                "<text x=\"{x:.1}\" y=\"{y}\" text-anchor=\"middle\">{}</text>",
                escaped(words)
            ));
        }
        add(format_args!("<path d=\"M{LEFT} {TOP}V{low}H{right}\" fill=\"none\" stroke=\"black\"/>"));
        add(format_args!(
            "<text x=\"{LEFT}\" y=\"{}\" text-anchor=\"end\">{}</text>",
            TOP - 8.0,
            escaped(&self.y_title)
        ));
        let y = low + 36.0;
        add(format_args!(
            "<text x=\"{right}\" y=\"{y}\" text-anchor=\"end\">{}</text>",
            escaped(&self.x_title)
        ));
        let drawn = self.lines.iter().filter(|line| !line.dashed).count();
        for (n, line) in self.lines.iter().enumerate() {
            let (colours, n_of) = if line.dashed {
                (GREYS.as_slice(), n.saturating_sub(drawn))
            } else {
                (COLOURS.as_slice(), n)
            };
            let colour = colours.get(n_of % colours.len()).unwrap_or(&"black");
            let dashes = if line.dashed { DASHES } else { "" };
            match self.shape {
                Shape::Lines => draw_line(&mut add, &scale, line, colour),
                Shape::Bars => {
                    let width = (right - LEFT) * 0.8 / (self.lines.len() * self.x_marks.len()).max(1) as f64;
                    let aside = (n as f64 + 0.5 - self.lines.len() as f64 / 2.0) * width;
                    draw_bars(&mut add, &scale, line, colour, aside, width);
                }
            }
            let (x, y) = (right + 12.0, TOP + 8.0 + 18.0 * n as f64);
            add(format_args!("<path d=\"M{x} {y}h18\" stroke=\"{colour}\" stroke-width=\"3\"{dashes}/>"));
            add(format_args!("<text x=\"{}\" y=\"{}\">{}</text>", x + 24.0, y + 4.0, escaped(&line.name)));
        }
        let y = HEIGHT - 8.0;
        add(format_args!(
            "<text x=\"{LEFT}\" y=\"{y}\" font-size=\"10\" fill=\"#555\">{}</text>",
            escaped(about)
        ));
        svg + "</svg>\n"
    }
}

fn draw_line(add: &mut impl FnMut(std::fmt::Arguments<'_>), scale: &Scale, line: &Line, colour: &str) {
    let mut path = String::new();
    for (n, (place, figure, spread)) in line.points.iter().enumerate() {
        let (x, y) = (x(*place), scale.y(*figure));
        let _ = write!(path, "{}{x:.1} {y:.1}", if n == 0 { 'M' } else { 'L' });
        if let Some((least, most)) = spread {
            let (from, to) = (scale.y(*least), scale.y(*most));
            add(format_args!(
                "<path d=\"M{x:.1} {from:.1}V{to:.1}\" stroke=\"{colour}\" stroke-width=\"4\" opacity=\"0.35\"/>"
            ));
            add(format_args!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>"));
        }
    }
    let dashes = if line.dashed { DASHES } else { "" };
    add(format_args!("<path d=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.6\"{dashes}/>"));
}

/// Bars, shifted by `aside`, with a stroke from the minimum to the maximum.
fn draw_bars(
    add: &mut impl FnMut(std::fmt::Arguments<'_>),
    scale: &Scale,
    line: &Line,
    colour: &str,
    aside: f64,
    width: f64,
) {
    for (place, figure, spread) in &line.points {
        let (middle, top) = (x(*place) + aside, scale.y(*figure));
        let (left, height) = (middle - width / 2.0, HEIGHT - BOTTOM - top);
        add(format_args!(
            "<rect x=\"{left:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" fill=\"{colour}\"/>"
        ));
        if let Some((least, most)) = spread {
            let (from, to) = (scale.y(*least), scale.y(*most));
            add(format_args!("<path d=\"M{middle:.1} {from:.1}V{to:.1}\" stroke=\"black\"/>"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(y: Axis, figures: &[f64]) -> Chart {
        let points = figures.iter().enumerate().map(|(n, f)| (n as f64, *f, Some((f / 2.0, *f)))).collect();
        Chart {
            title: "a < b".to_owned(),
            x_title: "x".to_owned(),
            x_marks: vec![(0.0, "one".to_owned()), (1.0, "two".to_owned())],
            y_title: "y".to_owned(),
            y,
            shape: Shape::Lines,
            lines: vec![Line::new("R&D", points)],
        }
    }

    #[test]
    fn higher_figures_stand_higher_and_all_within_the_axes() {
        for axis in [Axis::Linear, Axis::Logarithmic] {
            let scale = Scale::of(axis, [3.0, 17.0, 950.0].into_iter());
            assert!(scale.y(950.0) < scale.y(17.0) && scale.y(17.0) < scale.y(3.0));
            for figure in [3.0, 950.0] {
                assert!((TOP..=HEIGHT - BOTTOM).contains(&scale.y(figure)), "{axis:?} {figure}");
            }
            assert!((2..=9).contains(&scale.marks.len()), "{:?}", scale.marks);
        }
        assert_eq!(Scale::of(Axis::Logarithmic, [3.0, 950.0].into_iter()).marks, [1.0, 10.0, 100.0, 1000.0]);
        assert_eq!(Scale::of(Axis::Linear, [12.3].into_iter()).marks.last(), Some(&14.0));
    }

    #[test]
    fn a_picture_has_all_words_escaped_and_every_line() {
        let svg = chart(Axis::Linear, &[1.0, 2.0]).svg("a machine");
        assert!(svg.contains("a &lt; b") && svg.contains("R&amp;D") && svg.contains(">a machine</text>"));
        assert_eq!(svg.matches("<circle").count(), 2);
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }

    #[test]
    fn what_others_stand_before_is_dashed_and_grey() {
        let mut chart = chart(Axis::Linear, &[1.0, 2.0]);
        chart.lines.push(Line { dashed: true, ..chart.lines[0].clone() });
        let svg = chart.svg("");
        assert_eq!(svg.matches(DASHES).count(), 2, "in the picture and next to its name");
        assert_eq!(
            svg.lines().filter(|line| line.contains(DASHES)).filter(|l| l.contains(GREYS[0])).count(),
            2
        );
    }

    #[test]
    fn bars_of_one_place_stand_side_by_side_on_the_axis() {
        let mut chart = Chart { shape: Shape::Bars, ..chart(Axis::Linear, &[4.0, 8.0]) };
        let other = Line { name: "other".to_owned(), ..chart.lines[0].clone() };
        chart.lines.push(other);
        let svg = chart.svg("");
        let of = |bar: &str, key: &str| -> f64 {
            bar.split_once(&format!(" {key}=\"")).unwrap().1.split('"').next().unwrap().parse().unwrap()
        };
        let bars: Vec<_> = svg.lines().filter(|l| l.starts_with("<rect x=")).collect();
        assert_eq!(bars.len(), 4);
        for bar in &bars {
            assert!((of(bar, "y") + of(bar, "height") - (HEIGHT - BOTTOM)).abs() < 0.2, "{bar}");
        }
        let right = |bar: &str| of(bar, "x") + of(bar, "width");
        assert!(right(bars[0]) <= of(bars[2], "x") + 0.2 && right(bars[2]) < of(bars[1], "x"));
        assert!((of(bars[1], "height") - 2.0 * of(bars[0], "height")).abs() < 0.3);
    }

    #[test]
    fn no_figures_are_a_picture_too() {
        for axis in [Axis::Linear, Axis::Logarithmic] {
            let svg = Chart { lines: Vec::new(), ..chart(axis, &[]) }.svg("");
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
    }
}
