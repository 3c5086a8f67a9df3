"""Findings of files, and their comparison with the budget."""

import json
import re
import subprocess
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from prosecheck import rules
from prosecheck.parts import URL, paragraphs, words

ROOT = Path(__file__).resolve().parents[2]
BUDGET = ROOT / "scripts/prose-budget.json"
# Strings with shell code have no sentences.
SHELL = re.compile(r"\$[\w{(*@\"]|\bset -e")
# Generated pages: their prose is checked at its source.
GENERATED = {"docs/manual/reference.md"}
# The strings of these files are patterns and examples of bad prose.
EXAMPLES = {"scripts/prosecheck/rules.py", "scripts/e2e/test_prose.py"}


@dataclass(frozen=True)
class Finding:
    """A line of a file that breaks a rule."""

    file: str
    line: int
    rule: str
    found: str
    better: str

    def __str__(self):
        return f"{self.file}:{self.line}: {self.found} -> {self.better} [{self.rule}]"


def in_text(file, text):
    """Returns the findings in a text, sorted by line."""
    every = paragraphs(file, text)
    if every is None or file in GENERATED:
        return []
    if file in EXAMPLES:
        every = [paragraph for paragraph in every if paragraph.kind != "message"]
    found = [finding for paragraph in every for finding in in_paragraph(file, paragraph)]
    found += long_comments(file, text.split("\n"), every)
    lengths = [words(sentence) for paragraph in every if paragraph.kind not in ("message", "heading")
               for _, sentence in paragraph.sentences()]
    mean = sum(lengths) / max(len(lengths), 1)
    if len(lengths) >= rules.ENOUGH_SENTENCES and mean >= rules.MEAN_SENTENCE:
        found.append(Finding(file, 1, "mean", f"{mean:.1f} words a sentence on average", rules.LENGTHS["mean"][0]))
    return sorted(found, key=lambda finding: (finding.line, finding.rule))


def in_paragraph(file, paragraph):
    if rules.ANY.search(paragraph.text):
        for rule in rules.OF_PARAGRAPHS:
            if rule.name in rules.BY_COMMENT and paragraph.kind not in ("comment", "trailing"):
                continue
            for at, what in rule.matches(paragraph.text):
                yield Finding(file, paragraph.line(at), rule.name, what, rule.better)
    if paragraph.kind == "heading":
        return
    for at, sentence in paragraph.sentences():
        for rule in rules.OF_SENTENCES:
            if rule.matches(sentence):
                yield Finding(file, paragraph.line(at), rule.name, f"{' '.join(sentence.split()[:5])} ...", rule.better)
        length = words(sentence)
        if length > rules.LONGEST_SENTENCE and not (paragraph.kind == "message" and SHELL.search(paragraph.text)):
            yield Finding(file, paragraph.line(at), "sentence", f"{length} words: {' '.join(sentence.split()[:5])} ...",
                          rules.LENGTHS["sentence"][0])


def long_comments(file, lines, every):
    for number in sorted({number for paragraph in every if paragraph.kind == "comment" for number in paragraph.lines}):
        line = lines[number - 1]
        if len(line) > rules.COMMENT_COLUMNS and not URL.search(line):
            yield Finding(file, number, "columns", f"{len(line)} columns", rules.LENGTHS["columns"][0])


def files(below=()):
    """Returns the sorted files of the tree, or those below the paths."""
    command = ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *below]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return sorted({name for name in listed.split("\0") if name and (ROOT / name).is_file() and not (ROOT / name).is_symlink()})


def in_file(file):
    try:
        return in_text(file, (ROOT / file).read_text())
    except UnicodeDecodeError:
        # A binary file.
        return []


def counts(findings):
    """Returns the number of findings by file and rule."""
    by_file = {}
    for finding in findings:
        by_file.setdefault(finding.file, Counter())[finding.rule] += 1
    return {file: dict(sorted(by_file[file].items())) for file in sorted(by_file)}


def read_budget():
    return json.loads(BUDGET.read_text()) if BUDGET.exists() else {}


def budget_text(counted):
    """Formats the budget with one file a line, so that changes of different files merge."""
    rows = [f"  {json.dumps(file)}: {json.dumps(of_file)}" for file, of_file in counted.items()]
    return "{\n" + ",\n".join(rows) + "\n}\n"


def excess(findings, budget):
    """Returns the findings of files over budget, for the rules whose counts exceed it."""
    shown = []
    for file, now in counts(findings).items():
        allowed = budget.get(file, {})
        if sum(now.values()) > sum(allowed.values()):
            more = {rule for rule, number in now.items() if number > allowed.get(rule, 0)}
            shown += [finding for finding in findings if finding.file == file and finding.rule in more]
    return shown


def spare(findings, budget):
    """Returns the number of files with fewer findings than their budget."""
    now = counts(findings)
    return sum(sum(now.get(file, {}).values()) < sum(allowed.values()) for file, allowed in budget.items())


def by_directory(findings, depth=2):
    """Returns the number of findings by directory and rule, largest total first."""
    table = {}
    for finding in findings:
        parts = finding.file.split("/")
        table.setdefault("/".join(parts[:min(depth, len(parts) - 1)]) or ".", Counter())[finding.rule] += 1
    return sorted(table.items(), key=lambda row: (-row[1].total(), row[0]))
