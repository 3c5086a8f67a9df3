//! The documents' tables of threats: each has tests, and words for how far they go.

use std::collections::BTreeSet;

use crate::documents::{documents, end_to_end_test, end_to_end_tests, root, sources, tests_of};

/// What a table's rows name as tests: the code in their last cells.
fn named_tests(table: &str) -> Vec<String> {
    let rows = table.lines().filter(|line| line.starts_with('|'));
    let cells = rows.filter_map(|row| row.trim_end_matches(['|', ' ']).rsplit('|').next());
    cells.flat_map(|cell| cell.split('`').skip(1).step_by(2).map(str::to_owned)).collect()
}

/// What is wrong with the tests that a document's tables of threats name: rows without any, and names of nothing.
fn without_tests(text: &str, is_test: impl Fn(&str) -> bool) -> Vec<String> {
    let rows = text.lines().filter(|line| line.starts_with("| "));
    let (heads, rows): (Vec<_>, Vec<_>) =
        rows.partition(|row| row.ends_with("| tests |") || row.ends_with("| tested by |"));
    assert!(!heads.is_empty() && !rows.is_empty(), "no tables");
    let nothing = rows.iter().filter(|row| named_tests(row).is_empty()).map(|row| format!("no test: {row}"));
    let names = rows.iter().flat_map(|row| named_tests(row)).filter(|name| !is_test(name));
    nothing.chain(names.map(|name| format!("nothing of that name: {name}"))).collect()
}

/// The words of a threat's breadth, in their order. The documents' own table of them says what they mean.
const BREADTH: [&[&str]; 6] = [
    &["Ethernet", "InfiniBand", "both sides"],
    &["forwarding", "standby", "both roles", "unit", "no gateway"],
    &["keyed", "unkeyed", "keyed and unkeyed"],
    &["one segment", "many segments"],
    &["one LID", "many LIDs"],
    &[
        "default",
        "e2e",
        "timing",
        "default + e2e",
        "default + timing",
        "e2e + timing",
        "default + e2e + timing",
    ],
];

/// What is wrong with a breadth: words that are none or out of order, and what has to be said and is not.
fn wrong_breadth(cell: &str, is_host: bool) -> Option<&'static str> {
    let mut found = [""; BREADTH.len()];
    let mut next = 0;
    for word in cell.split("; ") {
        let Some(at) = (next..BREADTH.len()).find(|at| BREADTH[*at].contains(&word)) else {
            return Some("a word that is none, or at the wrong place");
        };
        (found[at], next) = (word, at + 1);
    }
    let [side, role, key, segments, _, tier] = found;
    if role.is_empty() || tier.is_empty() {
        return Some("no role, or no part of the test command");
    }
    let is_whole = ["forwarding", "standby", "both roles"].contains(&role);
    if is_whole && segments.is_empty() {
        return Some("no segments");
    }
    if role == "both roles" && key.is_empty() {
        return Some("gateways of a pair, and no key");
    }
    (is_host && side.is_empty()).then_some("no side")
}

/// Rows of a document's tables of threats whose breadth is wrong. Hosts of a network come from a side: those of a row's first cell, or
/// of the heading.
fn wrong_breadths(text: &str) -> Vec<String> {
    let (mut who, mut wrong) = ("", Vec::new());
    for line in text.lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            who = heading;
        }
        let cells: Vec<&str> = line.trim_matches(['|', ' ']).split(" | ").collect();
        let is_head = matches!(cells.last(), Some(&("tests" | "tested by")));
        if !line.starts_with("| ") || is_head || cells.len() < 3 {
            continue;
        }
        // The model names who; the manual has a heading for each of them.
        if cells.len() == 5 {
            who = cells[0];
        }
        let is_host =
            ["Ethernet", "InfiniBand", "either side", "subnet manager"].iter().any(|word| who.contains(word));
        if let Some(what) = wrong_breadth(cells[cells.len() - 2], is_host) {
            wrong.push(format!("{what}: {line}"));
        }
    }
    wrong
}

#[test]
fn each_threat_has_tests_that_there_are() {
    let mut rust = Vec::new();
    sources(&root(), ".rs", &mut rust);
    let tests: BTreeSet<String> = rust.iter().flat_map(|source| tests_of(source)).collect();
    let end_to_end = end_to_end_tests();
    let is_end_to_end = |name: &str| end_to_end_test(name).is_some_and(|test| end_to_end.contains(test));
    let documents = documents();
    let (_, threats) = documents[&root().join("docs/security-model.md")].split_once("## Threats").unwrap();
    let threats = threats.split("\n## ").next().unwrap();
    for who in ["Ethernet host", "InfiniBand host", "subnet manager", "local user", "configuration"] {
        assert!(threats.lines().any(|line| line.starts_with(&format!("| {who}"))), "{who}");
    }
    for text in [threats, &documents[&root().join("docs/manual/security.md")]] {
        // The table of the words is none of threats.
        let text = text.split("\n### How far the tests go").next().unwrap();
        let mut wrong = without_tests(text, |name| tests.contains(name) || is_end_to_end(name));
        wrong.extend(wrong_breadths(text));
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}

#[test]
fn what_is_wrong_with_a_table_is_found() {
    assert_eq!(named_tests("no `row`\n| a | `b` | `c`, `d` |\n| e | f |\n"), ["c", "d"]);
    for (cell, is_host, is_wrong) in [
        ("both sides; forwarding; keyed; one segment; many LIDs; default + e2e", true, false),
        ("InfiniBand; no gateway; default", true, false),
        ("unit; default", false, false),
        ("unit; default", true, true),
        ("forwarding; one segment", false, true),
        ("Ethernet; forwarding; default", true, true),
        ("both sides; both roles; one segment; default", true, true),
        ("Ethernet; one segment; forwarding; default", true, true),
        ("everywhere; default", false, true),
        ("", false, true),
    ] {
        assert_eq!(wrong_breadth(cell, is_host).is_some(), is_wrong, "{cell}");
    }
    let table = "| who | does | becomes | breadth | tests |\n|---|---|---|---|---|\n| Ethernet host | a | b | unit; default | `c` |\n| | a | b | Ethernet; unit; default | `c` |\n| local user | a | b | unit; default | `c` |\n";
    assert_eq!(wrong_breadths(table), ["no side: | Ethernet host | a | b | unit; default | `c` |"]);
    let table = "| who | does | tests |\n|---|---|---|\n| a | b | `c`, `d` |\n| | e | |\n";
    assert_eq!(without_tests(table, |name| name == "c"), ["no test: | | e | |", "nothing of that name: d"]);
}
