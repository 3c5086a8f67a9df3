//! Styles. The colors are the terminal's 16 colors, and no information is given by color alone.

use ratatui::style::{Color, Modifier, Style};

pub(super) const BAR: Style = Style::new().add_modifier(Modifier::REVERSED);
pub(super) const HEADING: Style = Style::new().add_modifier(Modifier::BOLD).fg(Color::Cyan);
pub(super) const MARKED: Style = Style::new().add_modifier(Modifier::REVERSED);
pub(super) const CHOSEN: Style = Style::new().add_modifier(Modifier::BOLD.union(Modifier::UNDERLINED));
pub(super) const GOOD: Style = Style::new().fg(Color::Green);
pub(super) const DOUBTFUL: Style = Style::new().fg(Color::Yellow);
pub(super) const BAD: Style = Style::new().fg(Color::Red).add_modifier(Modifier::BOLD);
pub(super) const QUIET: Style = Style::new().add_modifier(Modifier::DIM);
pub(super) const GRAPH: Style = Style::new().fg(Color::Blue);

/// Style of a segment's role.
pub(super) fn role(role: &str) -> Style {
    match role {
        "forwarding" => GOOD,
        "blocked" => BAD,
        _ => DOUBTFUL,
    }
}

/// Style of a link.
pub(super) fn link(is_up: bool) -> Style {
    if is_up { GOOD } else { BAD }
}

/// Style of a value that should be zero.
pub(super) fn fault(rate: Option<f64>) -> Style {
    if rate.is_some_and(|rate| rate > 0.0) { DOUBTFUL } else { Style::new() }
}

/// Style of a worker's busy share.
pub(super) fn load(share: Option<f64>) -> Style {
    match share {
        Some(share) if share > 0.9 => BAD,
        Some(share) if share > 0.7 => DOUBTFUL,
        _ => GOOD,
    }
}
