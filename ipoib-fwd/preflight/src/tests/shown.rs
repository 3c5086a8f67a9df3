//! Output formats of findings.

use super::*;

fn report() -> Report {
    let mut machine = Tree::good().machine();
    machine.socket = crate::machine::Occupant::Gateway;
    check(
        &machine,
        EAL,
        "[gateway]\nidle = \"never\"\ncontrol-socket = \"/run/x\"\n[ethernet]\nport = \"0000:81:00.0\"\n",
    )
}

#[test]
fn text_has_the_problem_its_location_and_the_fix() {
    let text = report().text(false);
    let expected = "error[config-invalid]: `never` is none of: poll, pause, sleep\n \
                    --> FILE:2:8\n  |\n2 | idle = \"never\"\n  |        ^^^^^^^\n  = help: write one of these words\n\n";
    let file = text.split("--> ").nth(1).unwrap().split(":2:8").next().unwrap();
    assert!(file.ends_with("gateway.toml"), "{text}");
    assert!(text.replace(file, "FILE").starts_with(expected), "{text}");
    assert!(text.contains("error[control-socket-occupied]: a running gateway serves /run/x\n"), "{text}");
    assert!(text.contains("3 | control-socket = \"/run/x\"\n  | ^^^^^^^^^^^^^^\n"), "{text}");
    assert!(text.ends_with("ipoib-fwd: 2 errors, 1 note\n"), "{text}");
    assert!(!text.contains('\x1b'));
}

#[test]
fn terminals_get_the_same_text_with_colours() {
    let (plain, coloured) = (report().text(false), report().text(true));
    // Each sequence starts with ESC [ and ends with m.
    let mut parts = coloured.split("\x1b[");
    let mut bare = parts.next().unwrap().to_owned();
    bare.extend(parts.map(|part| part.split_once('m').unwrap().1));
    assert!(coloured.len() > plain.len());
    // The directory of the file differs each time.
    let without = |text: &str| {
        text.lines().filter(|line| !line.contains("-->")).map(|l| format!("{l}\n")).collect::<String>()
    };
    assert_eq!(without(&bare), without(&plain));
}

#[test]
fn json_has_all_findings() {
    let json = report().json();
    assert_eq!((&json["errors"], &json["warnings"], &json["notes"]), (&2.into(), &0.into(), &1.into()));
    let first = &json["findings"][0];
    assert_eq!((first["code"].as_str(), first["severity"].as_str()), (Some("config-invalid"), Some("error")));
    assert_eq!(
        (&first["place"]["line"], &first["place"]["column"], &first["place"]["length"]),
        (&2.into(), &8.into(), &7.into())
    );
    assert_eq!(first["place"]["text"], "idle = \"never\"");
    assert!(json["findings"][2]["place"].is_null());
}

#[test]
fn a_hostile_file_writes_no_control_characters() {
    let mut text = "[gateway]\n\"\u{1b}[31mred\u{7}\" = 1 # ".to_owned();
    text.push_str(&"x".repeat(100_000));
    let report = check(&Machine::default(), "", &text);
    let shown = report.text(false);
    assert!(!shown.contains(['\x1b', '\x07']) && shown.len() < 4000, "{shown}");
}

#[test]
fn exit_codes_distinguish_errors_and_warnings() {
    let machine = Tree::good().machine();
    let code = |eal: &str, text: &str| check(&machine, eal, text).exit_code();
    assert_eq!(code(EAL, CONFIGURATION), 0);
    assert_eq!(code("p -l 8-10 --in-memory -a 0000:81:00.0 --no-huge -m 4000", CONFIGURATION), 3);
    assert_eq!(code(EAL, "x"), 1);
}
