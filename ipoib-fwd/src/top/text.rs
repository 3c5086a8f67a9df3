//! Formats numbers, and sanitizes strings of other processes.

/// Maximum length of a string of another process.
const MAX_WORD: usize = 200;

/// Sanitizes a string of another process for the terminal: no control, invisible or wide characters remain.
pub(super) fn harmless(text: &str) -> String {
    let plain = |c: char| if c == ' ' || c.is_ascii_graphic() { c } else { '?' };
    text.chars().take(MAX_WORD).map(plain).collect()
}

/// Formats a number in four or five characters, with a unit prefix.
pub(super) fn short(value: f64) -> String {
    if !value.is_finite() {
        return "-".to_owned();
    }
    let (mut value, mut letter) = (value, "");
    for next in ["k", "M", "G", "T", "P", "E"] {
        // A value that would be rounded to four digits takes the next prefix.
        if value.abs() < 999.5 {
            break;
        }
        (value, letter) = (value / 1e3, next);
    }
    let digits = match value.abs() {
        _ if value == value.round() && letter.is_empty() => 0,
        v if v < 9.995 => 2,
        v if v < 99.95 => 1,
        _ => 0,
    };
    format!("{value:.digits$}{letter}")
}

/// Formats a rate; a dash if there is none.
pub(super) fn rate(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), short)
}

/// Formats a fraction as a percentage.
pub(super) fn percent(share: Option<f64>) -> String {
    share.map_or_else(|| "-".to_owned(), |share| format!("{:.0} %", share * 100.0))
}

/// Formats a duration in nanoseconds.
pub(super) fn time(ns: u64) -> String {
    let ns = ns as f64;
    for (unit, letter) in [(1e9, "s"), (1e6, "ms"), (1e3, "us")] {
        if ns >= unit * 0.9995 {
            return format!("{} {letter}", short(ns / unit));
        }
    }
    format!("{} ns", short(ns))
}

/// Formats an age in milliseconds.
pub(super) fn age(ms: u64) -> String {
    let seconds = ms / 1000;
    match (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60, seconds % 60) {
        (0, 0, 0, s) => format!("{s} s"),
        (0, 0, m, s) => format!("{m} min {s} s"),
        (0, h, m, _) => format!("{h} h {m} min"),
        (d, h, ..) => format!("{d} d {h} h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_replaced() {
        let raw = "a\u{1b}[2J\u{9b}31m\r\nb\u{202e}c\u{200b}\u{7f}\t\u{0}ü漢";
        assert_eq!(harmless(raw), "a?[2J?31m??b?c??????");
        assert_eq!(harmless(&"x".repeat(100_000)).len(), MAX_WORD);
    }

    #[test]
    fn numbers_are_short_for_any_value() {
        let all = [
            (0.0, "0"),
            (7.0, "7"),
            (0.25, "0.25"),
            (12.34, "12.3"),
            (999.0, "999"),
            (999.4, "999"),
            (999.6, "1.00k"),
            (1000.0, "1.00k"),
            (123_456.0, "123k"),
            (999_999.0, "1.00M"),
            (5.5e9, "5.50G"),
            (f64::NAN, "-"),
            (f64::INFINITY, "-"),
        ];
        for (value, text) in all {
            assert_eq!(short(value), text);
        }
        assert_eq!(short(u64::MAX as f64), "18.4E");
        assert_eq!(
            (rate(None), percent(Some(0.4567)), percent(None)),
            ("-".into(), "46 %".into(), "-".into())
        );
        assert_eq!(
            [0, 999, 1500, 2_000_000, u64::MAX].map(time),
            ["0 ns", "999 ns", "1.50 us", "2 ms", "18.4G s"]
        );
        let ages = [999, 61_000, 3_700_000, 100_000_000, u64::MAX].map(age);
        assert_eq!(ages, ["0 s", "1 min 1 s", "1 h 1 min", "1 d 3 h", "213503982334 d 14 h"]);
    }
}
