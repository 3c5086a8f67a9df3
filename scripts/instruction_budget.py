#!/usr/bin/env python3
"""Counts the instructions of a worker per packet; fails if a step exceeds its baseline.

    scripts/instruction_budget.py                count, and compare with bench/instructions.json
    scripts/instruction_budget.py --renew        count, and write bench/instructions.json (intended change)
    scripts/instruction_budget.py STEP...        count these steps only
    scripts/instruction_budget.py --bin FILE     count this build, not a new target/release/bench

Each step runs twice under valgrind's callgrind, with different numbers of iterations. The difference of the
instructions, divided by the difference of the packets, excludes startup and shutdown. Two counts of one
program
differ by less than 0.1 % on any processor, as the script fixes the processor features that libraries see.
The counts include the port, the driver and the sink of the benchmark.

No client traces packets (`ipoib-fwd ctl trace`) during the steps. The script also fails if code of the trace
runs: an unused trace costs one check per burst, which the counts include.
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
BASELINE = ROOT / "bench/instructions.json"
# Iterations of the two runs, each a burst of 64 packets. The first number warms up caches and tables; by the
# second one, flows and rings have wrapped several times.
TURNS = (200, 1400)
# Permitted increase over the baseline. Other versions of DPDK or the C library change their own share.
TOLERANCE = 0.04
# Functions that run only while a client traces packets.
TRACING = re.compile(r"ipoib_fwd::gateway::(?:worker::trace|sighting)::")


def fail(text):
    sys.exit(f"instructions: {text}")


def version(command, pattern):
    try:
        text = subprocess.run(command, capture_output=True, text=True, cwd=ROOT).stdout
    except FileNotFoundError:
        text = ""
    found = re.search(pattern, text)
    return found.group(1) if found else "unknown"


def toolchain():
    """Returns the versions that the counts depend on, apart from the sources."""
    return {
        "rustc": version(["rustc", "--version"], r"rustc (\S+)"),
        "dpdk": version(["pkg-config", "--modversion", "libdpdk"], r"(\S+)"),
        "libc": version(["ldd", "--version"], r"(\S+)\n"),
        "processor": os.uname().machine,
    }


def build():
    print("instructions: building (release)", flush=True)
    subprocess.run(["cargo", "build", "--release", "--locked", "--quiet", "-p", "bench", "--bin", "bench"], cwd=ROOT, check=True)
    return ROOT / "target/release/bench"


def by_object(text, program):
    """Returns the instructions in a callgrind file: those of the program, and all."""
    own = total = 0
    names, inside, is_call = {}, None, False
    for line in text.splitlines():
        if line.startswith(("ob=", "cob=")):
            # A number, with its name at the first occurrence.
            kind, _, rest = line.partition("=")
            number, _, name = rest.partition(" ")
            name = names.setdefault(number, name)
            inside = name if kind == "ob" else inside
        elif line.startswith("calls="):
            is_call = True
        elif re.match(r"[0-9+*-]", line):
            # The line after a call is the inclusive cost of the callee.
            if not is_call:
                count = int(line.split()[-1])
                total += count
                own += count if inside == program else 0
            is_call = False
    return own, total


def check_trace_names(program):
    """Fails if no function of the program matches `TRACING`, as the check could then not fail."""
    names = subprocess.run(["nm", "-C", str(program)], capture_output=True, text=True, check=False).stdout.splitlines()
    if not any(TRACING.search(name) for name in names):
        fail(f"{program} has no function like {TRACING.pattern}: update the pattern to the present names")


def traced(text):
    """Returns the functions of the trace in a callgrind file."""
    names = re.findall(r"^c?fn=\(\d+\) (.*)$", text, re.MULTILINE)
    return sorted({name for name in names if TRACING.search(name)})


def count(program, step, turns):
    # The same code paths of the C library and DPDK on all processors.
    plain = ",".join(f"-{feature}" for feature in ("AVX512F", "AVX512VL", "AVX2", "AVX", "ERMS", "FSRM"))
    environment = dict(os.environ, GLIBC_TUNABLES=f"glibc.cpu.hwcaps={plain}")
    with tempfile.TemporaryDirectory() as there:
        out = pathlib.Path(there) / "callgrind"
        command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", "--quiet", str(program), step, "--once"]
        try:
            run = subprocess.run(command + ["--turns", str(turns)], env=environment, capture_output=True, text=True, timeout=300)
        except subprocess.TimeoutExpired:
            fail(f"{step}: {turns} iterations took more than 300 s")
        line = next((line for line in run.stdout.splitlines() if line.startswith("{")), None)
        if run.returncode != 0 or line is None:
            fail(f"{step}: exit code {run.returncode}:\n{run.stdout}{run.stderr}")
        text = out.read_text()
        if traced(text):
            fail(f"{step}: no client traces packets, but functions of the trace ran:\n  " + "\n  ".join(traced(text)))
        own, total = by_object(text, str(program))
        return json.loads(line)["figures"][0]["value"], own, total


def measure(program, steps):
    runs = [(step, turns) for step in steps for turns in TURNS]
    # Sequential runs use the same processor.
    counts = {run: count(program, *run) for run in runs}
    counted = {}
    for step in steps:
        (few, own_few, total_few), (many, own_many, total_many) = (counts[step, turns] for turns in TURNS)
        if many <= few:
            fail(f"{step}: {many:.0f} packets in {TURNS[1]} iterations, {few:.0f} in {TURNS[0]}")
        if own_many <= own_few:
            fail(f"{step}: callgrind reports no instructions of {program}")
        counted[step] = {
            "all": round((total_many - total_few) / (many - few), 1),
            "program": round((own_many - own_few) / (many - few), 1),
        }
    return counted


def compare(counted, known, here):
    """Prints a table; returns the number of slower steps."""
    same = known["with"] == here
    comparable = all(known["with"].get(what) == here[what] for what in ("rustc", "processor"))
    if not same:
        print(f"instructions: the baseline was counted with {known['with']}, this run uses {here}:")
        print(f"              {'only the program, not the libraries,' if comparable else 'nothing'} is compared")
    kind = "all" if same else "program"
    slower = 0
    print(f"{'instructions per packet':24}{'all':>10}{'program':>10}{'baseline':>10}{'change':>9}")
    for step, now in counted.items():
        before = known["steps"].get(step)
        if before is None:
            print(f"{step:24}{now['all']:10}{now['program']:10}{'none':>10}")
            slower += 1
            continue
        change = now[kind] / before[kind] - 1
        word = ""
        if not comparable:
            word = "  not compared"
        elif change > TOLERANCE:
            slower += 1
            word = "  SLOWER"
        elif change < -TOLERANCE:
            word = "  faster"
        print(f"{step:24}{now['all']:10}{now['program']:10}{before[kind]:10}{change:+9.1%}{word}")
    return slower


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("steps", nargs="*")
    parser.add_argument("--renew", action="store_true", help="write the baseline")
    parser.add_argument("--bin", type=pathlib.Path)
    options = parser.parse_args()
    if shutil.which("valgrind") is None:
        fail("valgrind is not installed. Run: scripts/setup")
    program = (options.bin or build()).resolve()
    if not BASELINE.exists() and not options.renew:
        fail(f"{BASELINE.relative_to(ROOT)} is missing: scripts/instruction_budget.py --renew writes it")
    known = json.loads(BASELINE.read_text()) if BASELINE.exists() else {"with": {}, "steps": {}}
    steps = options.steps or list(known["steps"])
    if not steps:
        fail("there is no baseline with names of steps. Run: scripts/instruction_budget.py --renew STEP...")
    here = toolchain()
    check_trace_names(program)
    counted = measure(program, steps)
    slower = compare(counted, known, here) if known["steps"] else 0
    if options.renew:
        if known["with"] != here and set(steps) < set(known["steps"]):
            fail("the libraries differ from those of the baseline: renew all steps together")
        known = {"with": here, "steps": dict(known["steps"], **counted)}
        BASELINE.write_text(json.dumps(known, indent=2) + "\n")
        print(f"instructions: {BASELINE.relative_to(ROOT)} is written: commit it with the reason for the change")
    elif slower:
        fail(
            f"{slower} of {len(counted)} steps exceed the baseline by more than {TOLERANCE:.0%}. Find the cause with callgrind_annotate.\n"
            "  If the change is worth it, run scripts/instruction_budget.py --renew and commit bench/instructions.json with the reason"
        )


if __name__ == "__main__":
    main()
