//! Answers of a hostile server to `ipoib-fwd top`, which draws a page, and does nothing else to the terminal.

use ipoib_fwd::top::{Told, View, page_of};
use serde_json::Value;

const VIEWS: [View; 4] = [View::Overview, View::Segments, View::Workers, View::Connections];

/// Requests: `stats`, `links`, `connections`, `stats` of a segment.
fn told(answers: &Value) -> Told {
    let answer = |at: usize| answers.get(at).cloned();
    Told {
        stats: answer(0).unwrap_or_default(),
        links: answer(1).unwrap_or_default(),
        connections: answer(2),
        segment: answer(3),
    }
}

/// One input: the view, the row and the size, then JSON: two samples, each a list of answers.
pub fn run(bytes: &[u8]) {
    let Some((&[view, row, width, height], json)) = bytes.split_first_chunk::<4>() else { return };
    let Ok(moments) = serde_json::from_slice::<Value>(json) else { return };
    let moments = [0, 1].map(|at| moments.get(at).map(told).unwrap_or_default());
    let view = VIEWS[usize::from(view) % VIEWS.len()];
    let page = page_of([&moments[0], &moments[1]], view, row.into(), (width.into(), height.into()));
    // Without columns there are no lines.
    assert_eq!(page.lines().count(), if width == 0 { 0 } else { height.into() });
    for line in page.lines() {
        assert!(line.chars().count() <= width.into(), "{line:?}");
        // Graphs have their own characters, all of one width.
        let is_plain = |c: char| c == ' ' || c.is_ascii_graphic() || ('\u{2500}'..='\u{28ff}').contains(&c);
        assert!(line.chars().all(is_plain), "{line:?}");
    }
}
