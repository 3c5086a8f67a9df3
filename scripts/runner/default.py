"""`scripts/test`: the steps that continuous integration runs, in two lanes.

One lane builds, checks and runs cargo's tests. The other one, which mostly waits for packets, runs the
programs once they are built. The remaining steps run after a failure, and the table at the end has all of
them.
"""

import os
import threading
import time

from runner.step import LOGS, ROOT, Step, say, stop_running, table

PROSE = ["scripts/prose"]
PYTEST = ["/usr/bin/python3", "-m", "pytest", "-q", "scripts/e2e"]
SHELL_SCRIPTS = ("scripts/setup", "scripts/demo", "scripts/test", "scripts/bench", "scripts/package", "scripts/platforms", "scripts/lab",
                 ".ci/run")
BUILD = ["cargo", "build", "--release", "--locked", "-p", "ipoib-fwd", "-p", "ibfab", "-p", "softhca", "-p", "bench"]


def shellcheck():
    lab = ROOT / "scripts/vmlab"
    files = [*SHELL_SCRIPTS, *(ROOT / "packaging").glob("*.sh"), *(lab / name for name in ("apt.sh", "image", "kernel", "qemu", "vm")),
             *(lab / "guest").glob("*.sh"), lab / "guest/init"]
    # Some scripts of the host are Python.
    files += [path for path in (lab / "host").iterdir() if "python" not in path.read_text().splitlines()[0]]
    return ["shellcheck", "-x", *sorted(str(path) for path in files)]


def steps():
    """Returns the two lanes: builds and cargo's tests, and steps that run the programs."""
    builds = [
        Step("format", [["cargo", "fmt", "--all", "--check", "--", "--color", "never"]]),
        Step("shell and Python scripts", [shellcheck(), ["flake8", "scripts"]]),
        Step("prose", [PROSE]),
        Step("build", [BUILD]),
        Step("unit, property and integration tests", [["cargo", "nextest", "run", "--workspace", "--locked", "--no-fail-fast"]],
             low_priority=True),
        Step("lints", [["cargo", "clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"]], low_priority=True),
        Step("licences", [["scripts/setup", "--licences"],
                          ["cargo", "deny", "--log-level", "error", "check", "licenses", "bans", "sources"]], low_priority=True),
        Step("fuzz targets", [["cargo", "check", "--locked", "-p", "fuzz", "--bins", "--features", "libfuzzer"]], low_priority=True),
        Step("examples in the documentation", [["cargo", "test", "--workspace", "--doc", "--locked", "--quiet"]], low_priority=True),
        Step("documentation", [["cargo", "doc", "--workspace", "--no-deps", "--locked"]], {"RUSTDOCFLAGS": "-D warnings"},
             low_priority=True),
        # Publication of GID tables, in all interleavings that loom finds.
        Step("loom", [["cargo", "test", "--locked", "-p", "gidcache", "--lib", "--release", "--target-dir", "target/loom", "loom"]],
             {"RUSTFLAGS": "--cfg loom"}, low_priority=True),
    ]
    runs = [
        Step("demo", [["scripts/demo", "--bin", "target/release", "--seconds", "2", "--json", "target/test/demo.json"]], needs=("build",)),
        Step("end to end, core", [[*PYTEST, "-m", "core", "-n", "2", "--junitxml", "target/test/core.xml"]], needs=("build",)),
        Step("instructions per packet", [["scripts/instruction_budget.py", "--bin", "target/release/bench"]], needs=("build",)),
        Step("kernel ib_ipoib, short form", [["scripts/lab", "core"]], {"IPOIB_FWD_BIN": str(ROOT / "target/release/ipoib-fwd")},
             needs=("build",)),
    ]
    return builds, runs


def run(setup_seconds):
    """Runs both lanes; returns the exit code."""
    os.environ.setdefault("CARGO_TERM_COLOR", "never")
    for log in LOGS.glob("*.log"):
        log.unlink()
    if os.environ.get("CI"):
        # Incremental compilation has no use in a tree that is built once.
        os.environ["CARGO_INCREMENTAL"] = "0"
    builds, runs = steps()
    begin, built = time.monotonic(), threading.Event()

    def lane(these):
        for step in these:
            missing = [s.name for s in builds if s.name in step.needs and s.result != "ok"]
            if missing:
                step.result = f"not run: {missing[0]} failed"
                continue
            step.run()
            if step.name == "build":
                built.set()
        built.set()

    def second_lane():
        built.wait()
        lane(runs)

    other = threading.Thread(target=second_lane, daemon=True)
    other.start()
    try:
        lane(builds)
        other.join()
    except KeyboardInterrupt:
        stop_running()
        raise SystemExit("test: interrupted") from None
    every = [*builds, *runs]
    rows = [("setup", f"{setup_seconds} s", "ok")] + [(s.name, f"{s.seconds:.0f} s", s.result) for s in every]
    say("\n" + table(rows, ("step", "time", "result")))
    failed = [step for step in every if step.result != "ok"]
    for step in failed:
        say(f"\n{step.name}: {step.result}; its output is in {step.log.relative_to(ROOT)}")
        say("\n".join(f"   | {line}" for line in step.failure()))
    say(f"\ntook {time.monotonic() - begin + setup_seconds:.0f} s\n{len(every) + 1 - len(failed)} passed, {len(failed)} failed")
    return 1 if failed else 0
