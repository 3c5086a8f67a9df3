use std::fmt::Write;

use super::*;

const STEPS: [Step; 5] = [Step::Create, Step::Initialise, Step::Insert, Step::Receive, Step::Send];

pub(in crate::link::connections) fn states() -> impl Iterator<Item = State> {
    let up = [
        State::Creating,
        State::Initialising,
        State::Inserting,
        State::Dialling,
        State::ToReceive,
        State::ToSend,
        State::Replied,
        State::Live,
        State::Retiring,
        State::Lingering,
    ];
    let down = [
        State::ToError,
        State::AwaitLastWqe,
        State::AwaitDrained,
        State::DrainRetry,
        State::Removing,
        State::AwaitRelease,
        State::Gone,
    ];
    up.into_iter().chain(STEPS.map(State::Halting)).chain(down)
}

pub(in crate::link::connections) const INPUTS: [Input; 14] = [
    Input::Created,
    Input::Refused,
    Input::Done,
    Input::Failed,
    Input::Replied,
    Input::UnknownService,
    Input::Established,
    Input::Retire,
    Input::Close,
    Input::OutOfUse,
    Input::LastWqe,
    Input::Drained,
    Input::Released,
    Input::Expired,
];

fn next(state: State) -> impl Iterator<Item = State> {
    INPUTS.into_iter().flat_map(move |input| state.rows(input)).filter_map(|row| row.to)
}

/// The states that can come after a state, itself included.
fn reachable(from: State) -> Vec<State> {
    let (mut seen, mut at) = (vec![from], 0);
    while let Some(&state) = seen.get(at) {
        for to in next(state) {
            if !seen.contains(&to) {
                seen.push(to);
            }
        }
        at += 1;
    }
    seen
}

#[test]
fn every_state_is_reached_and_can_be_left_for_the_end() {
    let all = reachable(State::Creating);
    for state in states() {
        assert!(all.contains(&state), "{state:?} is never entered");
        assert!(reachable(state).contains(&State::Gone), "{state:?} never ends");
        assert!(state == State::Gone || next(state).any(|to| to != state), "{state:?} is never left");
    }
    assert_eq!(all.len(), states().count());
}

#[test]
fn closing_states_lead_to_closing_states_only() {
    for state in states().filter(|state| state.is_closing()) {
        assert!(next(state).all(State::is_closing), "{state:?}");
    }
}

#[test]
fn close_is_reported_once() {
    let reports = |row: &Row| row.acts.iter().any(|act| matches!(act, Act::Down | Act::Withdraw));
    for state in states() {
        for row in INPUTS.into_iter().flat_map(|input| state.rows(input)) {
            let begins_to_close = !state.is_closing() && row.to.is_some_and(State::is_closing);
            assert_eq!(reports(row), begins_to_close, "{state:?}: {row:?}");
        }
    }
}

/// Each state waits for an answer that is certain to come, or has a deadline or an end that closes it.
#[test]
fn no_state_waits_forever() {
    for state in states().filter(|state| *state != State::Gone) {
        let moves = |input| state.rows(input).iter().any(|row| row.to.is_some());
        let answered =
            moves(Input::Created) && moves(Input::Refused) || moves(Input::Done) && moves(Input::Failed);
        assert!(answered || moves(Input::Expired), "{state:?}");
        // A state that is not closing can be closed.
        assert!(state.is_closing() || (moves(Input::Close) && moves(Input::Retire)), "{state:?}");
    }
}

#[test]
fn last_row_is_unconditional_and_the_others_have_conditions() {
    for state in states() {
        for input in INPUTS {
            if let Some((last, others)) = state.rows(input).split_last() {
                assert_eq!(last.when, When::Always, "{state:?} {input:?}");
                assert!(others.iter().all(|row| row.when != When::Always), "{state:?} {input:?}");
                assert!(others.iter().chain([last]).all(|row| row.to != Some(state)), "{state:?} {input:?}");
            }
        }
    }
}

/// A name as in the output: `AwaitLastWqe` is `await_last_wqe`.
fn words(name: &str) -> String {
    let mut out = String::new();
    for c in name.chars() {
        match c {
            '(' => out.push(' '),
            ')' => {}
            c if c.is_uppercase() && !out.is_empty() && !out.ends_with(' ') => {
                out.push('_');
                out.extend(c.to_lowercase());
            }
            c => out.extend(c.to_lowercase()),
        }
    }
    out
}

fn effect(row: &Row) -> String {
    let mut out = String::new();
    if row.when != When::Always {
        let _ = write!(out, "if {}: ", words(&format!("{:?}", row.when)));
    }
    out += row.to.map_or("stays", State::name);
    for (n, act) in row.acts.iter().enumerate() {
        out += if n == 0 { ": " } else { ", " };
        out += &words(&format!("{act:?}"));
    }
    out
}

/// The table as the documentation shows it.
fn drawing() -> String {
    let mut out = String::from("```text\n");
    for state in states().filter(|state| *state != State::Gone) {
        let _ = writeln!(out, "{}", state.name());
        // Inputs of the same effect share a line.
        let mut lines: Vec<(Vec<String>, &[Row])> = Vec::new();
        for input in INPUTS.into_iter().filter(|input| !state.rows(*input).is_empty()) {
            let (rows, name) = (state.rows(input), words(&format!("{input:?}")));
            match lines.iter_mut().find(|(_, of)| *of == rows) {
                Some((names, _)) => names.push(name),
                None => lines.push((vec![name], rows)),
            }
        }
        for (names, rows) in lines {
            let mut left = names.join(", ");
            for row in rows {
                let _ = writeln!(out, "  {left:<44} -> {}", effect(row));
                left.clear();
            }
        }
    }
    out + "```\n"
}

#[test]
fn the_documentation_shows_the_table() {
    let drawing = drawing();
    assert!(include_str!("../states.md") == drawing, "states.md should be:\n{drawing}");
}
