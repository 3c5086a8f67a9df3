"""`scripts/test --quick`: format, prose, lints and tests of the changed or the named crates."""

import json
import subprocess
import sys
from pathlib import Path

from runner.default import PROSE, shellcheck
from runner.step import ROOT, Step, say


def output(*command):
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def crates():
    """Returns the directory of each crate of the workspace by name."""
    packages = json.loads(output("cargo", "metadata", "--format-version", "1", "--no-deps", "--locked"))["packages"]
    return {package["name"]: Path(package["manifest_path"]).parent for package in packages}


def base():
    """Returns the commit where this branch left its upstream branch or main, else the last but one."""
    head = output("git", "rev-parse", "HEAD").strip()
    for branch in ("@{upstream}", "origin/main", "main", "HEAD~1"):
        found = subprocess.run(["git", "merge-base", "HEAD", branch], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
        # The branch itself is no base, except as its own upstream.
        if found and (found != head or branch == "@{upstream}"):
            return found
    return head


def changed_files():
    """Returns the files that differ from the base."""
    files = output("git", "diff", "--name-only", base()).splitlines()
    files += output("git", "ls-files", "--others", "--exclude-standard").splitlines()
    return [ROOT / file for file in files]


def owner(path, directories):
    """Returns the innermost crate that contains a file."""
    inside = [(len(str(directory)), name) for name, directory in directories.items() if path.is_relative_to(directory)]
    return max(inside)[1] if inside else None


def run(named):
    directories = crates()
    unknown = [name for name in named if name not in directories]
    if unknown:
        sys.exit(f"test: unknown crate {unknown[0]}; the crates are {', '.join(sorted(directories))}")
    changed = [] if named else changed_files()
    chosen = sorted(named or {name for name in (owner(file, directories) for file in changed) if name})
    if not chosen:
        say("test: no crate has changed. To test one, run: scripts/test --quick CRATE")
    packages = [argument for name in chosen for argument in ("-p", name)]
    steps = [Step("format", [["cargo", "fmt", "--all", "--check", "--", "--color", "never"]]), Step("prose", [PROSE])]
    if any(file.is_relative_to(ROOT / "scripts") for file in changed):
        steps.append(Step("shell and Python scripts", [shellcheck(), ["flake8", "scripts"]]))
    if chosen:
        lints = ["cargo", "clippy", "--all-targets", "--locked", *packages, "--", "-D", "warnings"]
        tests = ["cargo", "nextest", "run", "--locked", "--no-fail-fast", "--no-tests", "pass", *packages]
        steps += [Step(f"lints of {', '.join(chosen)}", [lints]), Step(f"tests of {', '.join(chosen)}", [tests])]
    for step in steps:
        step.run()
    failed = sum(step.result != "ok" for step in steps)
    say(f"{len(steps) - failed} passed, {failed} failed")
    return 1 if failed else 0
