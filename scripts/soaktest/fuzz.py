"""Runs libFuzzer on each target."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from soaktest.common import ROOT, report, say

# One program with all targets; the environment variable `FUZZ_TARGET` selects one.
DRIVER = "every"


def targets():
    return sorted(path.stem for path in (ROOT / "fuzz/fuzz_targets").glob("*.rs") if path.stem != DRIVER)


def fuzz(args):
    """Runs each target for an equal share of the time; reports the executions that libFuzzer counts."""
    cargo = shutil.which("cargo-fuzz")
    if not cargo and not args.program:
        sys.exit("soak: cargo-fuzz is not installed. Run: cargo install cargo-fuzz --locked")
    chosen = args.targets or targets()
    unknown = set(chosen) - set(targets())
    if unknown:
        sys.exit(f"soak: unknown target {', '.join(sorted(unknown))}; the targets are {', '.join(targets())}")
    if args.program:
        program = Path(args.program).resolve()
    else:
        build = [cargo, "build", DRIVER, "-O", "-s", "none", "--features", "libfuzzer", "--fuzz-dir", ".", "--target-dir", args.target_dir]
        # libFuzzer's coverage needs an unstable compiler option.
        subprocess.run(build, cwd=ROOT / "fuzz", env={**os.environ, "RUSTC_BOOTSTRAP": "1"}, check=True)
        program = next(Path(args.target_dir).resolve().glob("*-unknown-linux-gnu/release/" + DRIVER))
    executed, crashed = {}, []
    share = args.seconds / len(chosen)
    for target in chosen:
        work = Path(args.target_dir) / "soak" / target
        (work / "corpus").mkdir(parents=True, exist_ok=True)
        corpus = [work / "corpus", *filter(Path.is_dir, [ROOT / "fuzz/corpus" / target])]
        line = [program, *corpus, f"-max_total_time={int(share)}", "-print_final_stats=1", "-rss_limit_mb=2048", "-timeout=20",
                f"-artifact_prefix={work}/"]
        done = subprocess.run(["nice", "-n", "19", *map(str, line)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                              errors="replace", check=False, env={**os.environ, "FUZZ_TARGET": target})
        m = re.search(r"stat::number_of_executed_units:\s+(\d+)", done.stderr)
        executed[target] = int(m[1]) if m else 0
        if done.returncode or not m:
            crashed.append(target)
            say(f"fuzz: {target} FAILED: {done.stderr[-2000:]}")
        say(f"fuzz: {target}: {executed[target]} executions in {share:.0f} s")
    return report("fuzz", not crashed, seconds=args.seconds, executions=sum(executed.values()), by_target=executed, failed=crashed)
