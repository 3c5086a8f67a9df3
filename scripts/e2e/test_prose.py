"""The prose checker: what it takes for prose in each language, its rules, and its budget."""

import json
import subprocess

import pytest
from prosecheck import check, parts, rules

pytestmark = pytest.mark.core

RUST = r'''//! A module
//! that is told.

/// Reads `told` from [`Told`](told.rs).
///
/// ```
/// let told = "He is told so in code.";
/// ```
/// | who | told |
/// ├── told ──┤
fn told<'a>(c: char) -> bool { c == '"' || c == '\'' } // trailing, told
/* a block /* told */ inside */
const A: &str = "the peer was \
    told nothing"; // done
const B: &str = r#"a "raw" string is
told things"#;
const C: &str = "told";
'''
PYTHON = '''#!/usr/bin/env python3
"""A module, told."""

told = "told"  # trailing, told
# one
# two told
raise Error(f"the peer {told!r} was told \\"nothing\\"")
"""
A docstring that is told.
"""
'''
SHELL = r'''#!/usr/bin/env bash
# a comment, told
told=${x#told} # trailing, told
printf 'lab: it was told nothing\n' >&2
echo "a \"quoted\" one # told nothing"
cat <<EOF
# a setting, told
it's told
EOF
# the last one, told
'''
UNIT = """# A comment, told.
[Unit]
Description=Gateway that is told
ExecStart=/usr/bin/told it's told things
"""
MARKDOWN = """# A heading, told

The first line
is told `told` in [a link](https://told.example/told). Next `told`.

- An item, told.
  It continues, told.

| who | told |
|---|---|
| told | told |

```sh
told
```
<!-- told -->
"""


def found(path, text, rule=None):
    """(line, rule, text) of each finding."""
    return [(finding.line, finding.rule, finding.found) for finding in check.in_text(path, text) if rule in (None, finding.rule)]


@pytest.mark.parametrize(("path", "text", "lines"), [
    ("a.rs", RUST, [2, 11, 12, 14, 16]),
    ("a.c", "/*\n * told\n */\nint told; // told\nputs(\"it was told that\");\n", [2, 4, 5]),
    ("a.py", PYTHON, [2, 4, 6, 7, 9]),
    ("scripts/program", PYTHON, [2, 4, 6, 7, 9]),
    ("a.sh", SHELL, [2, 3, 4, 5, 7, 10]),
    ("scripts/script", SHELL, [2, 3, 4, 5, 7, 10]),
    ("a.service", UNIT, [1, 3]),
    ("a.md", MARKDOWN, [1, 4, 6, 7]),
    ("docs/manual/reference.md", MARKDOWN, []),
    ("Cargo.lock", "# told", []),
    ("told", "told", []),
], ids=lambda value: value if isinstance(value, str) and "\n" not in value else "")
def test_prose_of_languages(path, text, lines):
    assert [line for line, _, _ in found(path, text, "tell")] == lines


def test_matches_over_lines():
    assert found("a.rs", "// At most so\n// many of them.\n") == [(1, "so-many", "so many")]
    assert found("a.rs", "// At most so\n\n// many of them.\n") == []
    assert found("a.rs", "/// So\n// many of them.\n") == []


def test_offsets_behind_code():
    """The line of a match is right behind replaced code and links."""
    text = "A `long piece\nof code` and\n[a link](https://address.example/) and\nit is told.\n"
    assert found("a.md", text) == [(4, "tell", "told")]


@pytest.mark.parametrize(("rule", "bad", "good"), [
    ("tell", "The peer is told.", "An intelligent, untold_name of foretelling."),
    ("anew", "It starts anew.", "A new one starts."),
    ("befall", "It befell them.", "It fell."),
    ("who", "Hosts who answer.", "Operators who read this, and `who-has`, and whose."),
    ("what-clause", "What passes is counted.", "What passes?"),
    ("what-clause", "Counts. Which is what it does.", "Which of both?"),
    ("so-many", "So many as fit.", "So much."),
    ("beside", "Beside the other.", "Besides, there is one."),
    ("asked-of", "This is asked of it.", "This is required."),
    ("ask", "It asks the subnet manager.", "It asks the operator; a task, a mask."),
    ("has-do", "It has the kernel send a packet.", "It has the kernel's send queue."),
    ("has-do", "It has it do that.", "It has it."),
    ("is-to", "The frame is to go.", "The aim is to send; the route is to the host."),
    ("fronted", "Of a frame the header is read.", "Of course. The header of a frame."),
    ("stands", "It stands on this.", "It stands for this."),
    ("by-itself", "It stops by itself.", "It stops by then."),
    ("turn", "At most one turn.", "In turn, it turns on."),
    ("rest", "The worker rests.", "The rest of it."),
    ("figure", "The figures of a run.", "Figure 12; figure out."),
    ("place", "It has its place in the table.", "In place of this, it takes place."),
    ("way", "Connections both ways.", "In this way, the other way round."),
    ("words", "The words after the command.", "A doorbell word."),
    ("ends", "The gateway ends.", "The gateway ends in a second."),
    ("percent", "30 of 100 packets.", "30 of 1000 packets."),
    ("laboratory", "In the laboratory.", "In the lab."),
    ("measured", "It takes 12 instructions less.", "It takes 12 instructions."),
])
def test_rules(rule, bad, good):
    assert [name for _, name, _ in found("a.rs", f"// {bad}\n")] == [rule]
    assert found("a.rs", f"// {good}\n") == []


def test_every_rule_has_an_example():
    tested = {row[0] for mark in test_rules.pytestmark if mark.name == "parametrize" for row in mark.args[1]}
    assert tested == {rule.name for rule in rules.RULES}


def test_measurements_belong_in_documents():
    assert found("a.md", "It takes 12 instructions less.\n") == []


def sentence(length):
    return " ".join(["Word", *["word"] * (length - 1)]) + "."


def test_long_sentences():
    text = "// " + "\n// ".join([sentence(20), sentence(40) + " " + sentence(41)[:60], sentence(41)[60:]]) + "\n"
    assert found("a.rs", text, "sentence") == [(2, "sentence", "41 words: Word word word word word ...")]
    # A string may be a script.
    assert found("a.rs", f'let a = "{sentence(41)}";\n') != []
    assert found("a.rs", f'let a = "set -e; {sentence(41)}";\nlet b = "{sentence(41)} $x";\n') == []
    assert found("a.md", f"| {sentence(41)} |\n\n```\n{sentence(41)}\n```\n") == []


def test_mean_length():
    many = rules.ENOUGH_SENTENCES
    assert [rule for _, rule, _ in found("a.md", "\n".join([sentence(20)] * many))] == ["mean"]
    assert found("a.md", "\n".join([sentence(19)] * many)) == []
    assert found("a.md", "\n".join([sentence(20)] * (many - 1))) == []


def test_sentences():
    paragraph = parts.Paragraph("comment")
    paragraph.add(1, "One, e.g. Two (IBA 1.2). Three! \"Four?\" `Five` is. six.")
    assert [text for _, text in paragraph.sentences()] == ["One, e.g. Two (IBA 1.2).", "Three!", '"Four?"', "`Five` is. six."]


def test_columns_are_paragraphs():
    text = f"// name-one  {sentence(30)[:-1]}\n// name-two  {sentence(20)}\n//           {sentence(20)}\n"
    assert found("a.rs", text, "sentence") == []


def test_long_comments():
    width = rules.COMMENT_COLUMNS
    for path, marker in (("a.rs", "/// "), ("a.py", "# "), ("a.sh", "# ")):
        fits = (marker + "word " * width)[:width - 1] + "."
        assert found(path, f"x\n{fits}\n", "columns") == []
        assert found(path, f"x\n{fits}.\n", "columns") == [(2, "columns", f"{width + 1} columns")]
    # Addresses and tables cannot be wrapped.
    assert found("a.rs", f"// https://example.org/{'x' * width}\n/// | a |{'b' * width} |\n", "columns") == []


def finding(file, rule, line=1):
    return check.Finding(file, line, rule, "found", "better")


def test_budget():
    findings = [finding("a", "tell"), finding("a", "who"), finding("a", "who", 2), finding("b", "ask")]
    budget = check.counts(findings)
    assert json.loads(check.budget_text(budget)) == budget == {"a": {"tell": 1, "who": 2}, "b": {"ask": 1}}
    assert check.excess(findings, budget) == []
    # Only the rule that is broken more often is shown; a new file has no budget.
    assert check.excess([*findings, finding("a", "tell", 9)], budget) == [finding("a", "tell"), finding("a", "tell", 9)]
    assert check.excess([*findings, finding("c", "ask")], budget) == [finding("c", "ask")]
    # The total counts: a file may break one rule less and another one more.
    assert check.excess([finding("a", "tell"), finding("a", "tell", 2), finding("a", "who")], budget) == []
    assert (check.spare(findings, budget), check.spare(findings[1:], budget), check.spare([], budget)) == (0, 1, 2)


def test_program(tmp_path):
    """The program reports findings of a path with line and rule, and fails for a file over its budget."""
    script = check.ROOT / "scripts/prose"
    out = subprocess.run([script, "--rules"], capture_output=True, text=True, check=True).stdout
    assert [line.split()[0] for line in out.splitlines()] == rules.NAMES
    out = subprocess.run([script, "--counts", check.ROOT / "scripts"], capture_output=True, text=True, check=True).stdout.splitlines()
    assert out[0].startswith("directory") and out[-1].startswith("total")
    refused = subprocess.run([script, tmp_path], capture_output=True, text=True, check=False)
    assert refused.returncode == 2 and "no files of the tree" in refused.stderr
