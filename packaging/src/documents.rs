//! Checks of the documents of the repository: links, anchors, commands, options and keys must exist.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use clap::{Arg, Command};

/// Options of EAL, and of the conformance suite, that the documents name.
const FOREIGN: [&str; 10] = [
    "--verbs",
    "--no-pci",
    "--no-huge",
    "--vdev",
    "--in-memory",
    "--file-prefix",
    "--lcores",
    "--no-shconf",
    "--socket-mem",
    "--huge-dir",
];

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap()
}

/// All Markdown files of the repository with their contents.
pub(crate) fn documents() -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    let mut folders = vec![root()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_symlink() || name.starts_with('.') || name == "target" {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
            } else if name.ends_with(".md") {
                let text = std::fs::read_to_string(&path).unwrap();
                found.insert(path, text);
            }
        }
    }
    found
}

/// The paragraphs, headings and rows of a text, each as one line, and the code; inline code is in both.
fn prose_and_code(text: &str) -> (Vec<String>, Vec<String>) {
    let (mut prose, mut code, mut fenced, mut goes_on) = (Vec::<String>::new(), Vec::new(), false, false);
    for line in text.lines().map(str::trim) {
        if line.starts_with("```") {
            (fenced, goes_on) = (!fenced, false);
        } else if fenced {
            code.push(line.to_owned());
        } else if line.is_empty() {
            goes_on = false;
        } else if let Some(paragraph) = prose.last_mut().filter(|_| goes_on && !line.starts_with(['#', '|']))
        {
            paragraph.push(' ');
            paragraph.push_str(line);
        } else {
            prose.push(line.to_owned());
            goes_on = !line.starts_with(['#', '|']);
        }
    }
    let inline = prose.iter().flat_map(|line| line.split('`').skip(1).step_by(2).map(str::to_owned));
    code.extend(inline);
    (prose, code)
}

/// The anchor of a heading: letters, digits, - and _ stay, spaces become -.
fn slug(heading: &str) -> String {
    let kept = heading.trim().chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).flat_map(char::to_lowercase).collect()
}

/// The anchors of a document; repeated headings have numbers.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut times = BTreeMap::<String, usize>::new();
    let (prose, _) = prose_and_code(text);
    let headings =
        prose.iter().filter(|line| line.starts_with('#')).map(|line| slug(line.trim_start_matches('#')));
    let numbered = headings.map(|slug| {
        let n = times.entry(slug.clone()).or_default();
        *n += 1;
        if *n == 1 { slug } else { format!("{slug}-{}", *n - 1) }
    });
    numbered.collect()
}

/// Targets of links in prose.
fn links(text: &str) -> Vec<String> {
    let (prose, _) = prose_and_code(text);
    let mut found = Vec::new();
    for line in prose {
        // Code contains no links.
        let line: String = line.split('`').step_by(2).collect();
        let targets = line.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
        found.extend(targets.map(|(target, _)| target.split(' ').next().unwrap_or_default().to_owned()));
    }
    found
}

fn is_elsewhere(target: &str) -> bool {
    ["https://", "http://", "mailto:"].iter().any(|scheme| target.starts_with(scheme))
}

/// The dead links of a document.
fn dead_links(documents: &BTreeMap<PathBuf, String>, file: &Path) -> Vec<String> {
    let mut dead = Vec::new();
    for target in links(&documents[file]).into_iter().filter(|target| !is_elsewhere(target)) {
        let (path, anchor) = target.split_once('#').unwrap_or((&target, ""));
        let there =
            if path.is_empty() { Ok(file.to_owned()) } else { file.with_file_name(path).canonicalize() };
        let is_there = match there {
            Err(_) => false,
            Ok(_) if anchor.is_empty() => true,
            Ok(there) => documents.get(&there).is_some_and(|text| anchors(text).contains(anchor)),
        };
        if !is_there {
            dead.push(format!("{}: {target}", file.display()));
        }
    }
    dead
}

fn has_option(command: &Command, word: &str) -> bool {
    let long = word.split('=').next().unwrap_or_default().trim_start_matches("--");
    let own = command.get_arguments().filter_map(Arg::get_long).any(|known| known == long);
    own || matches!(long, "help" | "version")
}

/// The errors of a command line in a document, if it is one of ours.
fn misquoted(programs: &[Command], code: &str) -> Vec<String> {
    let ends = ["|", ">", "2>", ";", "&", "&&", "||", "#", "<", "..."];
    let words: Vec<&str> =
        code.split_whitespace().map(|word| word.trim_matches(|c| "()[],;…".contains(c))).collect();
    let mut wrong = Vec::new();
    for (at, word) in words.iter().enumerate() {
        let Some(mut command) = programs.iter().find(|program| program.get_name() == *word) else { continue };
        let mut rest: Vec<&str> =
            words[at + 1..].iter().take_while(|word| !ends.contains(word)).copied().collect();
        // EAL's arguments come first.
        if let Some(own) = rest.iter().position(|word| *word == "--") {
            rest.drain(..=own);
        }
        let mut path = vec![command];
        for word in rest {
            if word.starts_with("--") {
                if !path.iter().any(|command| has_option(command, word)) {
                    wrong.push(format!("{word} in `{code}`"));
                }
            } else if let Some(next) = command.find_subcommand(word) {
                command = next;
                path.push(next);
            } else if command.get_name() == "ctl" && word.bytes().all(|b| b.is_ascii_lowercase()) {
                if word != "help" {
                    wrong.push(format!("{word} in `{code}`"));
                }
                break;
            }
        }
    }
    // A single option.
    let alone = words.first().filter(|word| word.starts_with("--") && word.len() > 2);
    if let Some(word) = alone.filter(|word| !FOREIGN.contains(&word.split('=').next().unwrap_or_default())) {
        let all =
            programs.iter().flat_map(|program| std::iter::once(program).chain(program.get_subcommands()));
        if !all.into_iter().any(|command| has_option(command, word)) {
            wrong.push(format!("{word} of no program"));
        }
    }
    wrong
}

/// The error of a configuration key, if the code is one.
fn unknown_key(keys: &BTreeSet<String>, code: &str) -> Option<String> {
    let key = code.split([' ', '=']).next().unwrap_or_default();
    let (section, key) = key.split_once('.')?;
    let is_ours = ["gateway", "ethernet", "infiniband", "buffers", "segment"].contains(&section);
    let is_word = key.bytes().all(|b| b.is_ascii_lowercase() || b == b'-');
    (is_ours && is_word && !["toml", "env"].contains(&key) && !keys.contains(key))
        .then(|| format!("no key {section}.{key}"))
}

fn keys() -> BTreeSet<String> {
    let text = config::Config::annotated_default();
    let lines = text.lines().filter_map(|line| line.trim_start_matches(['#', ' ']).split_once(" = "));
    lines.map(|(key, _)| key.to_owned()).chain(["soft".to_owned(), "route".to_owned()]).collect()
}

#[test]
fn all_links_lead_somewhere() {
    let documents = documents();
    assert!(documents.len() >= 10, "{:?}", documents.keys());
    let dead: Vec<String> = documents.keys().flat_map(|file| dead_links(&documents, file)).collect();
    assert!(dead.is_empty(), "{}", dead.join("\n"));
    // The first page links to the manual.
    assert!(links(&documents[&root().join("README.md")]).iter().any(|link| link.starts_with("docs/manual/")));
}

#[test]
fn commands_options_and_keys_of_the_manual_are_those_of_the_programs() {
    let (programs, keys) = (crate::programs(), keys());
    let mut wrong = Vec::new();
    for (file, text) in documents() {
        let name = file.strip_prefix(root()).unwrap().to_owned();
        let is_for_users = name.starts_with("docs") && !name.starts_with("docs/dev");
        if !is_for_users && name != Path::new("README.md") {
            continue;
        }
        for code in prose_and_code(&text).1 {
            let all = misquoted(&programs, &code).into_iter().chain(unknown_key(&keys, &code));
            wrong.extend(all.map(|what| format!("{}: {what}", name.display())));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// All files of a kind, outside of `target`.
pub(crate) fn sources(folder: &Path, ending: &str, found: &mut Vec<String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_symlink() || name.starts_with('.') || name == "target" {
            continue;
        }
        if path.is_dir() {
            sources(&path, ending, found);
        } else if name.ends_with(ending) {
            found.push(std::fs::read_to_string(&path).unwrap());
        }
    }
}

/// Names of test functions that run: those after the attribute, with any attributes and comments in between.
pub(crate) fn tests_of(source: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut lines = source.lines().map(str::trim);
    while let Some(line) = lines.next() {
        if line == "#[test]" {
            let mut is_ignored = false;
            let name = lines
                .by_ref()
                .inspect(|line| is_ignored |= line.starts_with("#[ignore"))
                .find_map(|line| line.split_once("fn ")?.1.split('(').next().map(str::to_owned));
            found.extend(name.filter(|_| !is_ignored));
        }
    }
    found
}

/// The test functions of a Python file, as `FILE::FUNCTION`.
fn tests_of_python<'a>(file: &'a str, source: &'a str) -> impl Iterator<Item = String> + 'a {
    let functions = source.lines().filter_map(|line| line.strip_prefix("def ")?.split('(').next());
    functions.filter(|name| name.starts_with("test_")).map(move |name| format!("{file}::{name}"))
}

/// The end-to-end tests, as pytest names them, without parameters.
pub(crate) fn end_to_end_tests() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for entry in std::fs::read_dir(root().join("scripts/e2e")).unwrap() {
        let path = entry.unwrap().path();
        let file = path.file_name().unwrap().to_string_lossy().into_owned();
        if file.starts_with("test_") && file.ends_with(".py") {
            found.extend(tests_of_python(&file, &std::fs::read_to_string(&path).unwrap()));
        }
    }
    found
}

/// The end-to-end test that code names, without its parameters.
pub(crate) fn end_to_end_test(code: &str) -> Option<&str> {
    let is_one = code.starts_with("test_") && code.contains(".py::");
    is_one.then(|| code.split('[').next().unwrap_or_default())
}

#[test]
fn end_to_end_tests_that_documents_name_exist() {
    let (tests, mut named, mut wrong) = (end_to_end_tests(), 0, Vec::new());
    for (file, text) in documents() {
        for code in prose_and_code(&text).1 {
            let Some(test) = end_to_end_test(&code) else { continue };
            named += 1;
            if !tests.contains(test) {
                wrong.push(format!("{}: no test {test}", file.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(named > 0);
}

#[test]
fn the_journals_words_for_events_are_those_of_the_table() {
    let mut rust = Vec::new();
    sources(&root().join("ipoib-fwd/src"), ".rs", &mut rust);
    assert!(rust.iter().any(|source| source.contains("event = What::")));
    let own = rust.iter().flat_map(|source| source.lines()).filter(|line| line.contains("event = \""));
    assert_eq!(own.collect::<Vec<_>>(), [""; 0]);
}

/// Log calls without an event name for the journal, in functions that handle events.
fn without_word(source: &str) -> Vec<&str> {
    let source = source.split("#[cfg(test)]").next().unwrap_or_default();
    let functions = source.split("fn ").filter(|function| function.contains("What::"));
    let calls = functions.flat_map(|function| function.split("tracing::").skip(1));
    calls.filter_map(|call| call.split(");").next()).filter(|call| !call.contains("event")).collect()
}

#[test]
fn what_is_logged_of_an_event_has_the_journals_word() {
    let mut rust = Vec::new();
    sources(&root().join("ipoib-fwd/src"), ".rs", &mut rust);
    let found: Vec<&str> = rust.iter().flat_map(|source| without_word(source)).collect();
    // The totals of a finished capture, usually without an event.
    assert_eq!(found, ["info!(\"capture: {state}, {packets} packets, {missing} missing\""]);
}

#[test]
fn the_manual_promises_as_many_series_as_the_gateway_is_held_to() {
    use ipoib_fwd::metrics::{MOST_BESIDE, MOST_OF_PORT, MOST_OF_SEGMENT, MOST_OF_WORKER};
    let text = std::fs::read_to_string(root().join("docs/monitoring.md")).unwrap().replace('\n', " ");
    let promise = format!(
        "at most {MOST_OF_WORKER} for a worker, {MOST_OF_SEGMENT} for a segment, {MOST_OF_PORT} for a port, and {MOST_BESIDE} besides"
    );
    assert!(text.contains(&promise), "{promise}");
    let bounds = std::fs::read_to_string(root().join("docs/manual/limits.md")).unwrap();
    let row = format!(
        "| series of figures | {MOST_OF_WORKER} for a worker, {MOST_OF_SEGMENT} for a segment, {MOST_OF_PORT} for a port, {MOST_BESIDE} besides |"
    );
    assert!(bounds.contains(&row), "{row}");
}

#[test]
fn what_is_wrong_is_found() {
    let programs = crate::programs();
    for (code, is_wrong) in [
        ("ipoib-fwd ctl stats", false),
        ("ipoib-fwd ctl stast", true),
        ("ipoib-fwd ctl --json --socket /run/x links storage", false),
        ("ipoib-fwd ctl mode --fast", true),
        ("ipoib-fwd top --once | less", false),
        ("ipoib-fwd top --twice", true),
        ("timeout 1 ipoib-fwd metrics --listen 127.0.0.1:1 # --listne", false),
        ("ipoib-fwd -l 0-1 --no-pci --vdev net_tap0 -- --config FILE", false),
        ("ipoib-fwd -l 0-1 -- --no-pci", true),
        ("--capture FILE", false),
        ("--captrue FILE", true),
        ("--vdev net_bonding0,mode=1", false),
    ] {
        assert_eq!(!misquoted(&programs, code).is_empty(), is_wrong, "{code}");
    }
    let keys = keys();
    assert_eq!(unknown_key(&keys, "infiniband.srq-depth"), None);
    assert_eq!(unknown_key(&keys, "buffers.count = 0"), None);
    assert!(unknown_key(&keys, "infiniband.srq-dept").is_some());
    assert_eq!(unknown_key(&keys, "gateway.toml"), None);

    let source = "#[test]\n#[should_panic]\nfn zero() {}\n#[test]\n#[ignore]\n/// Words.\nfn one() {}\nfn two() {}\n    #[test]\n    fn three(\n        n in 0..1,\n";
    assert_eq!(tests_of(source), ["zero", "three"]);
    let source = "def test_one(gateway):\n    def test_inner():\ndef helper():\n";
    assert_eq!(Vec::from_iter(tests_of_python("test_a.py", source)), ["test_a.py::test_one"]);
    assert_eq!(end_to_end_test("test_a.py::test_one[x-y]"), Some("test_a.py::test_one"));
    assert_eq!(end_to_end_test("test_a.py"), None);

    let source = "fn a() { tracing::info!(\"0\"); }\nfn b() { tell(What::Up); tracing::info!(\"1\"); tracing::info!(event, \"2\"); }\n#[cfg(test)]\nfn c() { tracing::info!(\"3\"); What::Up }\n";
    assert_eq!(without_word(source), ["info!(\"1\""]);

    let page = "# One: `two` (three)\n## Again\n## Again\n[a](#again-1) [b](other.md) [c](#agian) `[d](#no)`\n```\n[e](#no)\n```\n";
    assert_eq!(Vec::from_iter(anchors(page)), ["again", "again-1", "one-two-three"]);
    assert_eq!(links(page), ["#again-1", "other.md", "#agian"]);
    let file = root().join("page.md");
    let dead = dead_links(&BTreeMap::from([(file.clone(), page.to_owned())]), &file);
    assert_eq!(dead.len(), 2, "{dead:?}");
}
