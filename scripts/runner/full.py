"""`scripts/test --full`: slow tests and measurements, by parts.

A failed check runs alone two more times, the second time with packet captures. It is `flaky` if it passes one
of them, and `failed` otherwise. The outputs of all runs are kept in target/test/full.
"""

import json
import os
import re
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass, field

from runner.default import BUILD
from runner.step import LOGS, ROOT, RUNNING, first_failures, say, start, table

PYTEST = ["/usr/bin/python3", "-m", "pytest", "-q", "scripts/e2e"]
# Followed by one filter: with two, nextest runs the tests that either of them matches.
NEXTEST = ["cargo", "nextest", "run", "--workspace", "--locked", "--no-fail-fast", "--run-ignored", "only"]
RERUNS = 2
FULL = LOGS / "full"


@dataclass
class Check:
    """A check that failed at least once, or a part as a whole."""

    name: str
    result: str
    outputs: list = field(default_factory=list)


@dataclass
class Part:
    """A part: how it runs, and how a failed check of it runs alone."""

    name: str
    # The usual or maximum duration, for --list.
    minutes: str
    shows: str
    command: list
    # The format of the output: None, "pytest" or "nextest".
    runner: str | None = None
    # An environment variable without which the part is skipped.
    needs: str | None = None

    def run(self):
        """Returns the result, the number of checks, and the checks that failed at least once."""
        if self.needs and self.needs not in os.environ:
            say(f"   {self.name}: skipped, {self.needs} is not set")
            return "skipped", 0, []
        folder = FULL / self.name
        folder.mkdir(parents=True, exist_ok=True)
        junit = folder / "junit.xml"
        junit.unlink(missing_ok=True)
        command = [*self.command, "--junitxml", str(junit)] if self.runner == "pytest" else self.command
        # The tests run new builds, not those of an earlier tree.
        if self.runner == "pytest" and execute(BUILD, folder / "build.log"):
            return "failed", 0, [Check("build", "failed", [str((folder / "build.log").relative_to(ROOT))])]
        code = execute(command, folder / "run-1.log")
        failed, total = self.failed_checks(folder / "run-1.log", junit)
        if code == 0:
            return "passed", total, []
        if not failed:
            # The part failed before its checks, or is a check itself.
            failed, total = {self.name: self.command}, max(total, 1)
        checks = [self.rerun(name, command, folder) for name, command in failed.items()]
        worst = "failed" if any(check.result == "failed" for check in checks) else "flaky"
        return worst, total, checks

    def rerun(self, name, command, folder):
        """Runs a failed check alone."""
        base = re.sub(r"[^\w.-]+", "-", name)
        outputs, passed = [folder / "run-1.log"], 0
        for number in range(RERUNS):
            say(f"   {self.name}: {name} failed; run {number + 2} of it, alone")
            outputs.append(folder / f"{base}-run-{number + 2}.log")
            captured = ["--captured"] if self.runner == "pytest" and number == RERUNS - 1 else []
            passed += execute([*command, *captured], outputs[-1]) == 0
        return Check(name, "flaky" if passed else "failed", [str(path.relative_to(ROOT)) for path in outputs])

    def failed_checks(self, log, junit):
        """Returns the failed checks with their commands, and the number of all checks."""
        if self.runner == "pytest" and junit.exists():
            cases = list(ElementTree.parse(junit).iter("testcase"))
            names = [f"{case.get('classname')}.py::{case.get('name')}" for case in cases
                     if case.find("failure") is not None or case.find("error") is not None]
            return {name: [*PYTEST[:-1], f"scripts/e2e/{name}"] for name in dict.fromkeys(names)}, len(cases)
        if self.runner == "nextest":
            text = log.read_text(errors="replace")
            names = dict.fromkeys(re.findall(r"^\s*(?:FAIL|TIMEOUT|SIG\w+|ABORT) \[.*?\] (?:\(.*?\) )?\S+ (\S+)", text, re.M))
            ran = re.search(r"(\d+) tests? run", text)
            return {name: [*NEXTEST, "-E", f"test(={name})"] for name in names}, int(ran[1]) if ran else 0
        return {}, 1


def execute(command, log):
    """Runs a command with its output in a file; returns its exit code."""
    with open(log, "wb") as out:
        process = start(command, out)
        code = process.wait()
        RUNNING.discard(process)
        return code


def virtual_machine_parts():
    """Returns the parts of scripts/lab, from its own table."""
    lines = subprocess.run(["scripts/lab", "parts"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    for line in lines:
        name, minutes, shows = line.split(maxsplit=2)
        yield Part(f"vm-{name}", f"at most {minutes} min", shows, ["scripts/lab", name])


def parts():
    """Returns all parts in their order."""
    return [
        Part("e2e", "25 min", "all end-to-end tests but those marked timing or vm",
             [*PYTEST, "-m", "not timing and not vm", "-n", "2"], "pytest"),
        Part("timing", "10 min", "limits of times, rates and CPU share, end to end; needs an idle machine",
             [*PYTEST, "-m", "timing"], "pytest"),
        Part("cargo-timing", "3 min", "cargo's tests that measure time; needs an idle machine",
             [*NEXTEST, "--no-tests", "pass", "-E", "test(/(^|::)timing::/)"], "nextest"),
        Part("cargo-slow", "12 min", "models of gateways in all configurations, with more steps than in the default command",
             [*NEXTEST, "--no-tests", "pass", "-E", "test(/(^|::)slow::/)"], "nextest"),
        Part("captures", "1 min", "decodes a public recording of InfiniBand packets in IB_CAPTURES=DIRECTORY",
             ["cargo", "nextest", "run", "-p", "ib-wire", "--locked", "--run-ignored", "only"], needs="IB_CAPTURES"),
        Part("packages", "12 min", "builds, installs, runs, upgrades and removes packages in a bare root",
             ["scripts/package", "check"]),
        Part("platforms", "12 min", "builds the programs in a bare root of Debian 13", ["scripts/platforms", "--build", "debian13"]),
        Part("demo-bare", "6 min", "scripts/demo from a clean clone in a bare root of Debian 12",
             ["scripts/platforms", "--demo", "debian12"]),
        *virtual_machine_parts(),
    ]


def list_parts():
    rows = [(part.name, part.minutes, part.shows) for part in parts()]
    print(table(rows, ("part", "time", "description")))
    return 0


def run(named, json_file):
    every = {part.name: part for part in parts()}
    unknown = [name for name in named if name not in every]
    if unknown:
        sys.exit(f"test: unknown part {unknown[0]}; scripts/test --list shows all")
    if json_file and not json_file.parent.is_dir():
        sys.exit(f"test: --json: no such directory: {json_file.parent}")
    rows, document = [], []
    for part in [every[name] for name in named] if named else every.values():
        say(f"== {part.name}: {part.shows} ({part.minutes})")
        begin = time.monotonic()
        result, total, checks = part.run()
        seconds = round(time.monotonic() - begin)
        say(f"   {part.name}: {result}, {seconds} s")
        rows.append((part.name, f"{seconds} s", total, result))
        document.append({"part": part.name, "seconds": seconds, "checks": total, "result": result,
                         "not_passed": [vars(check) for check in checks]})
        for check in checks:
            say(f"   {check.result}: {check.name}; outputs: {', '.join(check.outputs)}")
            if check.result == "failed":
                text = (ROOT / check.outputs[-1]).read_text(errors="replace")
                say("\n".join(f"   | {line}" for line in first_failures(text)))
    say("\n" + table(rows, ("part", "time", "checks", "result")))
    if json_file:
        with open(json_file, "w") as out:
            json.dump({"parts": document}, out, indent=1)
    failed, skipped = (sum(row[-1] == result for row in rows) for result in ("failed", "skipped"))
    say(f"{len(rows) - failed - skipped} passed, {failed} failed" + (f", {skipped} skipped" if skipped else ""))
    return 1 if failed else 0
