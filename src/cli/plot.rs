//! Small charts as SVG: lines over linear or logarithmic axes, and bars side by side.

use std::fmt::Write;

const WIDTH: f64 = 460.0;
const HEIGHT: f64 = 260.0;
const LEFT: f64 = 58.0;
const BOTTOM: f64 = 36.0;
const TOP: f64 = 24.0;
const RIGHT: f64 = 12.0;

/// Colours that colour-blind people can distinguish, too.
pub(super) const COLOURS: [&str; 6] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"];

/// A named series; its position among all series selects the colour.
pub(super) struct Series {
    pub(super) colour: usize,
    pub(super) points: Vec<(f64, f64)>,
}

/// Maps values to positions, and places marks.
struct Axis {
    from: f64,
    to: f64,
    logarithmic: bool,
}

impl Axis {
    fn over(values: impl Iterator<Item = f64> + Clone, logarithmic: bool) -> Self {
        let low = values.clone().fold(f64::INFINITY, f64::min);
        let high = values.fold(f64::NEG_INFINITY, f64::max);
        let (low, high) = if low.is_finite() && high.is_finite() { (low, high) } else { (0.0, 1.0) };
        if logarithmic && low > 0.0 {
            // A small margin at both ends.
            let margin = (high / low).max(1.1).powf(0.05);
            Axis { from: low / margin, to: high * margin, logarithmic: true }
        } else {
            let from = if low > 0.0 && low < 0.5 * high { 0.0 } else { low };
            Axis { from, to: if high > from { high } else { from + 1.0 }, logarithmic: false }
        }
    }

    fn place(&self, value: f64) -> f64 {
        match self.logarithmic {
            true => (value.max(self.from) / self.from).ln() / (self.to / self.from).ln(),
            false => (value - self.from) / (self.to - self.from),
        }
    }

    fn marks(&self) -> Vec<f64> {
        if self.logarithmic {
            let decades = |steps: &[f64]| -> Vec<f64> {
                let (first, last) = (self.from.log10().floor() as i32, self.to.log10().ceil() as i32);
                (first..=last)
                    .flat_map(|power| steps.iter().map(move |step| step * 10f64.powi(power)))
                    .filter(|mark| (self.from..=self.to).contains(mark))
                    .collect()
            };
            let coarse = decades(&[1.0]);
            return if coarse.len() > 2 { coarse } else { decades(&[1.0, 2.0, 5.0]) };
        }
        let rough = (self.to - self.from) / 5.0;
        let power = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|m| m * power).find(|step| *step >= rough).unwrap_or(rough);
        let first = (self.from / step).ceil() as i64;
        (first..).map(|n| n as f64 * step).take_while(|mark| *mark <= self.to + step * 1e-9).take(12).collect()
    }
}

/// Formats a number with as few digits as are clear.
fn short(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        size if size >= 1e12 => format!("{value:.0e}"),
        size if size >= 1e6 => format!("{}M", trimmed(value / 1e6)),
        size if size >= 1e4 => format!("{}k", trimmed(value / 1e3)),
        size if size < 1e-3 => format!("{value:.0e}"),
        _ => trimmed(value),
    }
}

fn trimmed(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Draws the frame of a chart with its axes; `inside` is the content.
fn chart(title: &str, x: (&str, &Axis), y: (&str, &Axis), x_marks: &[(f64, String)], inside: &str) -> String {
    let mut svg = format!(
        "<figure><figcaption>{title}</figcaption><svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{title}\">"
    );
    for mark in y.1.marks() {
        let at = down(y.1.place(mark));
        let _ = write!(
            svg,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/><text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            WIDTH - RIGHT,
            LEFT - 5.0,
            at + 4.0,
            short(mark)
        );
    }
    for (place, label) in x_marks {
        let at = across(*place);
        let _ = write!(
            svg,
            "<text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{label}</text>",
            HEIGHT - BOTTOM + 15.0
        );
    }
    let (right, floor) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
    let names = HEIGHT - 4.0;
    let _ = write!(
        svg,
        "<path class=\"axis\" fill=\"none\" d=\"M{LEFT} {TOP}V{floor}H{right}\"/>\
         <text x=\"{right}\" y=\"{names}\" text-anchor=\"end\" class=\"name\">{}</text>\
         <text x=\"4\" y=\"4\" class=\"name\" dominant-baseline=\"hanging\">{}</text>{inside}</svg></figure>",
        x.0, y.0
    );
    svg
}

fn across(place: f64) -> f64 {
    LEFT + place * (WIDTH - LEFT - RIGHT)
}

fn down(place: f64) -> f64 {
    HEIGHT - BOTTOM - place * (HEIGHT - BOTTOM - TOP)
}

/// Draws lines through points. Each axis has a name, and whether it is logarithmic.
pub(super) fn lines(title: &str, (x, x_log): (&str, bool), (y, y_log): (&str, bool), series: &[Series]) -> String {
    // An infinite loss cannot be drawn, so its line ends before it.
    let finite = |point: &(f64, f64)| point.0.is_finite() && point.1.is_finite();
    let points = || series.iter().flat_map(|series| series.points.iter().copied().filter(finite));
    let over = Axis::over(points().map(|point| point.0), x_log);
    let up = Axis::over(points().map(|point| point.1), y_log);
    let mut inside = String::new();
    for Series { colour, points } in series {
        let path: Vec<String> = points
            .iter()
            .copied()
            .take_while(finite)
            .map(|(x, y)| format!("{:.1},{:.1}", across(over.place(x)), down(up.place(y))))
            .collect();
        let colour = COLOURS[colour % COLOURS.len()];
        let _ = write!(inside, "<polyline stroke=\"{colour}\" points=\"{}\"/>", path.join(" "));
    }
    let marks: Vec<(f64, String)> = over.marks().into_iter().map(|mark| (over.place(mark), short(mark))).collect();
    chart(title, (x, &over), (y, &up), &marks, &inside)
}

/// The looks of the elements of a chart.
pub(super) const STYLE: &str = "svg text{font:11px system-ui,sans-serif;fill:#444}polyline{fill:none;stroke-width:1.8}\
.grid{stroke:#e4e4e4}.axis{stroke:#888}";

/// Makes a chart a file of its own: an SVG image, in which each line has its name.
pub(super) fn standalone(figure: &str, names: &[String]) -> String {
    let (from, to) = (figure.find("<svg").unwrap_or(0), figure.rfind("</svg>").unwrap_or(figure.len()));
    let head =
        format!("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{}\" height=\"{}\"", 2.0 * WIDTH, 2.0 * HEIGHT);
    let mut svg = figure[from..to].replacen("<svg", &head, 1);
    let _ = write!(svg, "<style>{STYLE}</style>");
    for (index, name) in names.iter().enumerate() {
        let (at, colour) = (TOP + 12.0 * (index as f64 + 1.0), COLOURS[index % COLOURS.len()]);
        let name = escaped(name);
        let _ = write!(svg, "<text x=\"{:.1}\" y=\"{at:.1}\" style=\"fill:{colour}\">{name}</text>", LEFT + 10.0);
    }
    svg + "</svg>\n"
}

/// Returns a text as HTML and SVG have it.
pub(super) fn escaped(text: &str) -> String {
    let text = text.replace(|c: char| c.is_control(), " ");
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Draws, for each whole number from 0, a bar for each series: its fraction of the total.
pub(super) fn bars(title: &str, x: &str, y: &str, series: &[(usize, &[u64])]) -> String {
    let count = series.iter().map(|(_, counts)| counts.len()).max().unwrap_or(0).max(1);
    let part = |counts: &[u64], value: usize| {
        let total: u64 = counts.iter().sum();
        counts.get(value).copied().unwrap_or(0) as f64 / total.max(1) as f64
    };
    let most = series.iter().flat_map(|(_, counts)| (0..count).map(|value| part(counts, value))).fold(0.0, f64::max);
    let (over, up) = (
        Axis { from: 0.0, to: count as f64, logarithmic: false },
        Axis { from: 0.0, to: most.max(0.01), logarithmic: false },
    );
    let width = 0.8 / series.len().max(1) as f64;
    let mut inside = String::new();
    for (place, (colour, counts)) in series.iter().enumerate() {
        for value in 0..count {
            let height = part(counts, value);
            let left = across(over.place(value as f64 + 0.1 + width * place as f64));
            let right = across(over.place(value as f64 + 0.1 + width * (place + 1) as f64));
            let top = down(up.place(height));
            let _ = write!(
                inside,
                "<rect fill=\"{}\" x=\"{left:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{:.1}\"><title>{value}: {:.1} %</title></rect>",
                COLOURS[colour % COLOURS.len()],
                right - left,
                down(0.0) - top,
                100.0 * height
            );
        }
    }
    let every = count.div_ceil(16);
    let marks: Vec<(f64, String)> =
        (0..count).step_by(every).map(|value| (over.place(value as f64 + 0.5), value.to_string())).collect();
    chart(title, (x, &over), (y, &up), &marks, &inside)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_round_numbers() {
        let axis = Axis::over([0.0, 33.0].into_iter(), false);
        assert_eq!(axis.marks(), [0.0, 10.0, 20.0, 30.0]);
        let axis = Axis::over([1.2, 900.0].into_iter(), true);
        assert_eq!(axis.marks(), [1.0, 10.0, 100.0, 1000.0]);
        assert_eq!(short(12_000.0), "12k");
        assert_eq!([short(2.5e6), short(1e38), short(-1e308)], ["2.5M", "1e38", "-1e308"]);
        assert_eq!(short(0.25), "0.25");
    }

    #[test]
    fn nothing_at_all_can_be_drawn() {
        assert!(lines("a", ("b", false), ("c", true), &[]).contains("<svg"));
        assert!(bars("a", "b", "c", &[]).contains("<svg"));
    }

    #[test]
    fn a_line_ends_where_its_values_do() {
        for beyond in [f64::INFINITY, f64::NAN] {
            let points = vec![(0.0, 2.0), (1.0, 20.0), (2.0, beyond), (3.0, 5.0)];
            let chart = lines("a", ("b", false), ("c", true), &[Series { colour: 0, points }]);
            assert!(!chart.contains("NaN") && !chart.contains("inf"), "{chart}");
            let drawn = chart.split("points=\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap();
            assert_eq!(drawn.split(' ').count(), 2, "{drawn}");
        }
    }
}
