#!/usr/bin/env python3
"""Counts the instructions that a worker spends on a packet, and fails if a step takes more than it did.

    scripts/instruction_budget.py                count, and compare with bench/instructions.json
    scripts/instruction_budget.py --renew        count, and write bench/instructions.json: after a change that is meant
    scripts/instruction_budget.py STEP...        only these steps
    scripts/instruction_budget.py --bin FILE     another build of the benchmarks; else target/release/bench, built here

Each step runs twice under valgrind's callgrind, with different numbers of turns; the difference, divided by the difference of
packets, has nothing of start and end in it. Two counts of one program differ by less than a thousandth, on whatever processor:
what libraries choose by its features is chosen here. Port, driver and the benchmark's sink are included.

Nobody follows packets (`ipoib-fwd ctl trace`) in these steps: it fails, too, if anything of that was carried out, so that what it
costs when it is off is a look for each burst, which is counted.
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
# Bursts of 64 packets. All is warm by the first number, and flows and rings have come round several times by the second.
TURNS = (200, 1400)
# More than this part above the baseline is slower. Another version of DPDK or the C library may move its own part.
TOLERANCE = 0.04


# What is carried out for whoever follows packets, and for nobody else.
FOLLOWING = re.compile(r"ipoib_fwd::gateway::(?:worker::trace|sighting)::")


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
    """What the counts depend on beside the sources."""
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
    """A callgrind file's instructions: the program's own, and all."""
    own = total = 0
    names, inside, is_call = {}, None, False
    for line in text.splitlines():
        if line.startswith(("ob=", "cob=")):
            # A number, and what it stands for when it comes first.
            kind, _, rest = line.partition("=")
            number, _, name = rest.partition(" ")
            name = names.setdefault(number, name)
            inside = name if kind == "ob" else inside
        elif line.startswith("calls="):
            is_call = True
        elif re.match(r"[0-9+*-]", line):
            # What follows a call is of the one that is called, too.
            if not is_call:
                count = int(line.split()[-1])
                total += count
                own += count if inside == program else 0
            is_call = False
    return own, total


def check_following(program):
    """The functions of those who follow packets are in the program by that name: a check for their absence finds them."""
    names = subprocess.run(["nm", "-C", str(program)], capture_output=True, text=True, check=False).stdout.splitlines()
    if not any(FOLLOWING.search(name) for name in names):
        fail(f"{program} has no function like {FOLLOWING.pattern}: they have other names now, by which they are to be looked for")


def followed(text):
    """Functions of a callgrind file that are carried out for whoever follows packets."""
    names = re.findall(r"^c?fn=\(\d+\) (.*)$", text, re.MULTILINE)
    return sorted({name for name in names if FOLLOWING.search(name)})


def count(program, step, turns):
    # One way through the C library and DPDK, whatever the processor has.
    plain = ",".join(f"-{feature}" for feature in ("AVX512F", "AVX512VL", "AVX2", "AVX", "ERMS", "FSRM"))
    environment = dict(os.environ, GLIBC_TUNABLES=f"glibc.cpu.hwcaps={plain}")
    with tempfile.TemporaryDirectory() as there:
        out = pathlib.Path(there) / "callgrind"
        command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", "--quiet", str(program), step, "--once"]
        try:
            run = subprocess.run(command + ["--turns", str(turns)], env=environment, capture_output=True, text=True, timeout=300)
        except subprocess.TimeoutExpired:
            fail(f"{step}: {turns} turns took more than 300 s")
        line = next((line for line in run.stdout.splitlines() if line.startswith("{")), None)
        if run.returncode != 0 or line is None:
            fail(f"{step}: it ended with {run.returncode}:\n{run.stdout}{run.stderr}")
        text = out.read_text()
        if followed(text):
            fail(f"{step}: nobody follows packets, and all the same this was carried out:\n  " + "\n  ".join(followed(text)))
        own, total = by_object(text, str(program))
        return json.loads(line)["figures"][0]["value"], own, total


def measure(program, steps):
    runs = [(step, turns) for step in steps for turns in TURNS]
    # One after the other: each keeps to the same processor.
    counts = {run: count(program, *run) for run in runs}
    figures = {}
    for step in steps:
        (few, own_few, total_few), (many, own_many, total_many) = (counts[step, turns] for turns in TURNS)
        if many <= few:
            fail(f"{step}: {many:.0f} packets in {TURNS[1]} turns, {few:.0f} in {TURNS[0]}")
        if own_many <= own_few:
            fail(f"{step}: callgrind tells of no instructions in {program}")
        figures[step] = {
            "all": round((total_many - total_few) / (many - few), 1),
            "program": round((own_many - own_few) / (many - few), 1),
        }
    return figures


def compare(figures, known, here):
    """Prints a table; how many steps are slower."""
    same = known["with"] == here
    comparable = all(known["with"].get(what) == here[what] for what in ("rustc", "processor"))
    if not same:
        print(f"instructions: the baseline was counted with {known['with']}, this is {here}:")
        print(f"              {'only the program itself, not the libraries,' if comparable else 'nothing'} is compared")
    kind = "all" if same else "program"
    slower = 0
    print(f"{'instructions a packet':24}{'all':>10}{'program':>10}{'baseline':>10}{'change':>9}")
    for step, now in figures.items():
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
        fail("valgrind is not installed, so nothing was counted: scripts/setup installs it")
    program = (options.bin or build()).resolve()
    if not BASELINE.exists() and not options.renew:
        fail(f"{BASELINE.relative_to(ROOT)} is missing: scripts/instruction_budget.py --renew writes it")
    known = json.loads(BASELINE.read_text()) if BASELINE.exists() else {"with": {}, "steps": {}}
    steps = options.steps or list(known["steps"])
    if not steps:
        fail("there is no baseline to take the names of steps from: scripts/instruction_budget.py --renew STEP...")
    here = toolchain()
    check_following(program)
    figures = measure(program, steps)
    slower = compare(figures, known, here) if known["steps"] else 0
    if options.renew:
        if known["with"] != here and set(steps) < set(known["steps"]):
            fail("other libraries than the baseline's: renew all steps together")
        known = {"with": here, "steps": dict(known["steps"], **figures)}
        BASELINE.write_text(json.dumps(known, indent=2) + "\n")
        print(f"instructions: {BASELINE.relative_to(ROOT)} is written: commit it with the reason")
    elif slower:
        fail(
            f"{slower} of {len(figures)} steps take more than {TOLERANCE:.0%} above the baseline. Look where with\n"
            "  callgrind_annotate; if it is worth it: scripts/instruction_budget.py --renew, and commit bench/instructions.json with the reason"
        )


if __name__ == "__main__":
    main()
