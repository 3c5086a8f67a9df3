"""The command line of `scripts/prose`."""

import argparse
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from prosecheck import check, rules


def find(names):
    """Returns the findings of files; uses all processors."""
    with ProcessPoolExecutor() as pool:
        return [finding for found in pool.map(check.in_file, names, chunksize=16) for finding in found]


def columns(rows):
    widths = [max(len(str(row[column])) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(str(cell).rjust(width) if number else str(cell).ljust(width)
                               for number, (cell, width) in enumerate(zip(row, widths))).rstrip() for row in rows)


def count_table(findings):
    """Formats the number of findings by directory and rule."""
    rows = check.by_directory(findings)
    used = [name for name in rules.NAMES if any(counter[name] for _, counter in rows)]
    body = [[name, counter.total(), *(counter[rule] or "" for rule in used)] for name, counter in rows]
    total = ["total", len(findings), *(sum(counter[rule] for _, counter in rows) for rule in used)]
    return columns([["directory", "all", *used], *body, total])


def rule_table():
    rows = [(rule.name, rule.better, rule.why) for rule in rules.RULES]
    rows += [(name, better, why) for name, (better, why) in rules.LENGTHS.items()]
    width = max(len(name) for name, _, _ in rows)
    return "\n".join(f"{name.ljust(width)}  {better}: {why}" for name, better, why in rows)


def main():
    parser = argparse.ArgumentParser(
        prog="scripts/prose", description="Checks the words and sentences of documents, comments and messages. Without paths: fails if a "
        "file breaks the rules more often than scripts/prose-budget.json allows. With paths: lists all findings below them.")
    parser.add_argument("paths", nargs="*", metavar="PATH", help="files and directories of which all findings are listed")
    parser.add_argument("--counts", action="store_true", help="print the number of findings by directory and rule")
    parser.add_argument("--rules", action="store_true", help="print the rules")
    parser.add_argument("--write-budget", action="store_true", help="make the present numbers of findings the budget of each file")
    args = parser.parse_args()
    if args.rules:
        print(rule_table())
        return 0
    paths = [os.path.relpath(Path(path).resolve(), check.ROOT) for path in args.paths]
    names = [] if any(path.startswith("..") for path in paths) else check.files(paths)
    if paths and not names:
        parser.error(f"no files of the tree are below {', '.join(args.paths)}")
    findings = find(names)
    if args.write_budget:
        if paths:
            parser.error("--write-budget is for the whole tree")
        check.BUDGET.write_text(check.budget_text(check.counts(findings)))
        print(f"prose: the budget is {len(findings)} findings in {len(check.counts(findings))} files")
        return 0
    if args.counts:
        print(count_table(findings))
        return 0
    budget = check.read_budget()
    excess = check.excess(findings, budget)
    print("\n".join(map(str, findings if paths else excess)), end="\n" if (findings if paths else excess) else "")
    if excess:
        over = sorted({finding.file for finding in excess})
        print(f"prose: {len(over)} file{'s exceed their' if len(over) > 1 else ' exceeds its'} budget: {', '.join(over)}", file=sys.stderr)
        return 1
    spare = 0 if paths else check.spare(findings, budget)
    print(f"prose: {len(findings)} findings in {len(names)} files, within the budget"
          + (f"; {spare} files are below theirs: run scripts/prose --write-budget" if spare else ""))
    return 0
