#!/usr/bin/env python3
"""Long runs that try to hurt the gateway. Each tells how it goes on, and ends with one line of JSON: its figures, and whether
they are as promised.

kills        A process drawn by chance is killed (SIGKILL) under traffic, and started anew: both ways go again within 20 s, and
             what the processes had on disk is whole.
churn        A gateway's day in minutes: modes, reloads, addresses, links, control clients, under traffic. Memory, descriptors,
             hugepages and buffers stay as they were. With --beside other laboratories may run on the machine meanwhile.
connections  Connections made and ended on the simulated fabric: tables, timers and memory as before (a test of the crate ipoib).
day          A day of the simulated fabric, in a minute: hosts, addresses, ports, the subnet manager, modes; each hour all reach each other,
             and nothing is left (a test of the crate ipoib).
fuzz         libFuzzer on each target, from its corpus. Wants cargo-fuzz; `fuzz/target` or --target-dir has what it builds."""

import argparse
import ctypes
import hashlib
import json
import os
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import demo
from checks.laboratory import LIBC, Laboratory
from demo import ETH, ETH_IP, GW, IB, IB_IP, Failed, Process, run

ROOT = Path(__file__).resolve().parents[1]
# What is promised of a death.
RECOVERED = 20.0
# What memory may grow by from the second quarter of a run to the last one, KiB, and descriptors. In the first one tables and rings are
# touched for the first time.
MEMORY_NOISE, DESCRIPTOR_NOISE = 2048, 2


def say(text):
    print(f"harden: {text}", file=sys.stderr, flush=True)


def report(name, ok, **figures):
    print(json.dumps({"run": name, "ok": ok, "date": time.strftime("%Y-%m-%d", time.gmtime()), **figures}), flush=True)
    return 0 if ok else 1


class Hardening(Laboratory):
    """The demo's laboratory, in which the gateway writes what it can write: a capture, a report, a GID table."""

    def __init__(self, args):
        super().__init__(args, intruder=False)
        self.number = 0

    def capture(self, name):
        self.number += 1
        return ["--capture", self.dir / f"{self.number}-{name}"] if name.startswith("gateway") else []


class Beside(Laboratory):
    """One that other laboratories may run beside: it takes no hugepages, and its names are in namespaces of its own (`set_apart`)."""

    def hugepages_up(self):
        return ["--no-huge", "--no-shconf", "-m", "512"]


NEW_MOUNTS, NEW_NETWORK = 0x0002_0000, 0x4000_0000


def set_apart():
    """From now on the names of network namespaces, what is in this one, and EAL's directories are nobody else's."""
    if LIBC.unshare(NEW_MOUNTS | NEW_NETWORK):
        raise Failed(f"unshare: {os.strerror(ctypes.get_errno())}")
    run("mount", "--make-rprivate", "/")
    for folder in ("/run/netns", "/run/dpdk"):
        os.makedirs(folder, exist_ok=True)
        run("mount", "-t", "tmpfs", "-o", "mode=755", "harden", folder)
    run("ip", "link", "set", "lo", "up")


# -- kills

def whole_records(path):
    """Bytes of a capture that are whole records, and those of a last one that is not."""
    data = path.read_bytes()
    if len(data) < 24:
        return len(data) == 0, 0
    at = 24
    while at + 16 <= len(data):
        length, original = struct.unpack("<II", data[at + 8:at + 16])
        if length > original or length > 1 << 18:
            return False, 0
        if at + 16 + length > len(data):
            break
        at += 16 + length
    return True, len(data) - at


def on_disk(lab, wholes):
    """What is wrong with what the processes have on disk."""
    wrong = []
    for name, digest in wholes.items():
        if hashlib.sha256((lab.dir / name).read_bytes()).hexdigest() != digest:
            wrong.append(f"{name} is not what it was")
    for path in lab.dir.glob("*-gateway.pcap"):
        whole, _ = whole_records(path)
        if not whole:
            wrong.append(f"{path.name} is no capture")
    out = run(lab.bin / "ipoib-fwd", "gids", "--shared", lab.dir / "gids", "--json", check=False)
    if out.returncode:
        wrong.append(f"GID table: {out.stderr.strip()[-200:]}")
    return wrong


def goes_again(lab, begin, seconds):
    """Seconds until a ping goes both ways; none if that takes too long."""
    for netns, target in ((ETH, IB_IP), (IB, ETH_IP)):
        while run("ping", "-n", "-q", "-c", 1, "-W", 1, target, netns=netns, check=False).returncode:
            if time.monotonic() - begin > seconds:
                return None
    return time.monotonic() - begin


def kills(args):
    chance, took, wrong = random.Random(args.seed), [], []
    lab = Hardening(args)
    shm = set(os.listdir("/dev/shm"))
    try:
        lab.up()
        wholes = {name: hashlib.sha256((lab.dir / name).read_bytes()).hexdigest() for name in ("gateway.toml", "fabric.toml")}
        traffic = [Process("ping", ["ping", "-n", "-q", "-i", "0.005", "-s", 1400, target], netns, lab.dir / f"traffic-{netns}.log")
                   for netns, target in ((ETH, IB_IP), (IB, ETH_IP))]
        killed = {"gateway": 0, "fabric": 0}
        for n in range(1, args.number + 1):
            time.sleep(chance.uniform(0.0, 1.5))
            who = chance.choice(("gateway", "fabric"))
            killed[who] += 1
            lab.lose(getattr(lab, who))
            time.sleep(0.1)
            begin = time.monotonic()
            getattr(lab, f"start_{who}")()
            seconds = goes_again(lab, begin, RECOVERED)
            if seconds is None:
                wrong.append(f"kill {n} ({who}): not within {RECOVERED} s")
                lab.say_last_words()
                break
            took.append(seconds)
            wrong += [f"kill {n} ({who}): {what}" for what in on_disk(lab, wholes)]
            # Captures of lives that are over have been looked at.
            for path in sorted(lab.dir.glob("*-gateway.pcap"))[:-1]:
                path.unlink()
            lab.alive()
            if n % 10 == 0:
                say(f"kills: {n} of {args.number}, the longest took {max(took):.1f} s, {len(wrong)} wrong")
        for process in traffic:
            process.stop(1)
    finally:
        lab.close()
        demo.forget_eal()
    left = sorted(set(os.listdir("/dev/shm")) - shm)
    took.sort()
    return report("kills", not wrong and not left and len(took) == args.number, seed=args.seed, killed=killed,
                  recovered_seconds={"median": round(took[len(took) // 2], 2), "longest": round(took[-1], 2)} if took else None,
                  within=RECOVERED, wrong=wrong[:10], left_in_dev_shm=left)


# -- churn

def sample(lab):
    pid = lab.gateway.popen.pid
    status = Path(f"/proc/{pid}/status").read_text()

    def figure(name):
        return int(re.search(rf"^{name}:\s+(\d+)", status, re.M)[1])

    return {"anonymous_kib": figure("RssAnon"), "huge_kib": figure("HugetlbPages"), "shared_kib": figure("RssShmem"),
            "threads": figure("Threads"), "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
            "maps": len(Path(f"/proc/{pid}/maps").read_text().splitlines())}


def upset(lab, chance):
    """One thing of many that happen in a gateway's day."""
    match chance.randrange(7):
        case 0 | 1:
            lab.ctl("set", "mode", chance.choice(("datagram", "connected")))
        case 2:
            path, text = lab.dir / "gateway.toml", lab.gateway_config()
            path.write_text(chance.choice((text, text.replace('idle = "sleep"', 'idle = "pause"'), text + "\n[nonsense]\n")))
            run(lab.bin / "ipoib-fwd", "ctl", "--socket", lab.dir / "control.sock", "reload", check=False, timeout=30)
            path.write_text(text)
        case 3:
            ip = f"10.77.0.{chance.randrange(100, 200)}"
            run("ip", "addr", "add", f"{ip}/32", "dev", "eth0", netns=ETH, check=False)
            run("ping", "-n", "-q", "-c", 1, "-W", 1, "-I", ip, IB_IP, netns=ETH, check=False)
            run("ip", "addr", "del", f"{ip}/32", "dev", "eth0", netns=ETH, check=False)
        case 4:
            for command in ("stats", "links", "neighbours", "connections", "groups", "gids", "metrics", "health", "events"):
                words = [lab.bin / "ipoib-fwd", "ctl", "--socket", lab.dir / "control.sock", command]
                try:
                    run(*words, check=False, timeout=0.3 if command == "events" else 10)
                except Failed:
                    pass
        case 5:
            for host, netns in (("eth0", ETH), ("ib0", IB)):
                run("ip", "neigh", "flush", "dev", host, netns=netns, check=False)
        case 6:
            run("ip", "link", "set", "gw0", "down", netns=GW)
            time.sleep(chance.uniform(0, 0.3))
            run("ip", "link", "set", "gw0", "up", netns=GW)


def churn(args):
    chance, samples, made = random.Random(args.seed), [], 0
    lab = (Beside if args.beside else Laboratory)(args, intruder=False)
    try:
        lab.up()
        traffic = [Process("ping", ["ping", "-n", "-q", "-i", "0.01", "-s", 1400, target], netns, lab.dir / f"traffic-{netns}.log")
                   for netns, target in ((ETH, IB_IP), (IB, ETH_IP))]
        begin = told = time.monotonic()
        while (now := time.monotonic()) < begin + args.seconds:
            upset(lab, chance)
            lab.alive()
            made += 1
            samples.append((now - begin, sample(lab)))
            if now - told >= 20:
                told = now
                say(f"churn: {now - begin:.0f} of {args.seconds} s, {made} upsets, {samples[-1][1]}")
        for process in traffic:
            process.stop(1)
        lab.ctl("set", "mode", "connected")
        begin = time.monotonic()
        again = goes_again(lab, begin, RECOVERED)
        time.sleep(2)
        state = lab.ctl("stats")
        counters = lab.ctl("links")["link_counters"]
        opened = {k: v for k, v in counters.items() if k.startswith("connections_")}
        code = lab.gateway.stop()
        lab.processes.remove(lab.gateway)
        outstanding = json.loads((lab.dir / "report.json").read_text())["buffers_outstanding"]
    finally:
        lab.close()
        demo.forget_eal()
    quarter = [s for at, s in samples if args.seconds / 4 <= at <= args.seconds / 2] or [samples[0][1]]
    last = [s for at, s in samples if at >= args.seconds * 3 / 4]
    most = {name: (max(s[name] for s in quarter), max(s[name] for s in last)) for name in quarter[0]}
    flat = (most["anonymous_kib"][1] <= most["anonymous_kib"][0] + MEMORY_NOISE
            and most["descriptors"][1] <= most["descriptors"][0] + DESCRIPTOR_NOISE
            and most["huge_kib"][1] <= most["huge_kib"][0]
            and most["threads"][1] <= most["threads"][0] + 1)
    return report("churn", flat and again is not None and code == 0 and outstanding == 0, seed=args.seed, seconds=args.seconds, upsets=made,
                  connections=opened, most_in_second_and_last_quarter=most, buffers_outstanding=outstanding, exit_code=code,
                  uptime=state["process"])


# -- tests of the crate ipoib that take as long as they are told to

def simulated(args, test, environment, figures):
    """Runs one; the line `figure:` that it prints, by the regular expression."""
    done = subprocess.run(["cargo", "test", "--locked", "-p", "ipoib", *(["--release"] if args.release else []), "--lib", "--",
                           "--exact", f"link::tests::{test}", "--nocapture"],
                          cwd=ROOT, env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True, check=False)
    m = re.search(f"figure: {figures}", done.stdout)
    return done.returncode == 0 and bool(m), {k: int(v) for k, v in m.groupdict().items()} if m else {}


MEMORY = r"memory (?P<memory_kib_before>\d+) KiB then (?P<memory_kib_after>\d+) KiB"


def connections(args):
    ok, figures = simulated(args, "cycles::connections_made_and_ended_again_and_again_leave_nothing",
                            {"CONNECTION_CYCLES": str(args.number)},
                            rf"(?P<connections>\d+) connections made and ended in (?P<seconds>\d+) s, {MEMORY}")
    return report("connections", ok, **figures)


def day(args):
    ok, figures = simulated(args, "day::a_day_on_which_nothing_stays_as_it_is_leaves_nothing",
                            {"SIMULATED_HOURS": str(args.hours), "SIMULATED_SEED": str(args.seed)},
                            rf"(?P<hours>\d+) hours, (?P<upsets>\d+) upsets, (?P<boots>\d+) boots, "
                            rf"(?P<connections>\d+) connections, {MEMORY}")
    return report("day", ok, **figures)


# -- fuzz

def targets():
    return sorted(path.stem for path in (ROOT / "fuzz/fuzz_targets").glob("*.rs"))


def fuzz(args):
    """Each target for an equal share of the time; libFuzzer's own count of executions."""
    cargo = shutil.which("cargo-fuzz")
    if not cargo and not args.program:
        sys.exit("harden: there is no cargo-fuzz: cargo install cargo-fuzz --locked")
    chosen = args.targets or targets()
    unknown = set(chosen) - set(targets())
    if unknown:
        sys.exit(f"harden: no target {', '.join(sorted(unknown))}; there are {', '.join(targets())}")
    if args.program:
        program = Path(args.program).resolve()
    else:
        build = [cargo, "build", "every", "-O", "-s", "none", "--features", "libfuzzer", "--fuzz-dir", ".", "--target-dir", args.target_dir]
        # libFuzzer's coverage is an unstable option of the compiler.
        subprocess.run(build, cwd=ROOT / "fuzz", env={**os.environ, "RUSTC_BOOTSTRAP": "1"}, check=True)
        program = next(Path(args.target_dir).resolve().glob("*-unknown-linux-gnu/release/every"))
    executed, crashed = {}, []
    share = args.seconds / len(chosen)
    for target in chosen:
        work = Path(args.target_dir) / "harden" / target
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


def main():
    parser = argparse.ArgumentParser(prog="scripts/harden", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    runs = parser.add_subparsers(dest="run", required=True)
    for name, what, body in (("kills", "kill -9 under traffic", kills), ("churn", "a day in minutes", churn)):
        one = runs.add_parser(name, help=what)
        one.add_argument("--bin", metavar="DIR", default="target/release", help="where the programs are")
        one.add_argument("--seed", type=int, default=1)
        one.add_argument("--keep", action="store_true", help="keep logs and configuration")
        # An hour of packets would fill a disk.
        one.set_defaults(body=body, capture=name == "kills", laboratory=True)
        if name == "kills":
            one.add_argument("number", nargs="?", type=int, default=200, help="how many (200)")
        else:
            one.add_argument("seconds", nargs="?", type=int, default=3600, help="how long (3600)")
            one.add_argument("--beside", action="store_true", help="beside other laboratories: in namespaces of its own, without hugepages")
    one = runs.add_parser("connections", help="made and ended")
    one.add_argument("number", nargs="?", type=int, default=1_000_000, help="how many (1,000,000)")
    one.add_argument("--release", action="store_true", help="build the test with optimisation")
    one.set_defaults(body=connections, laboratory=False)
    one = runs.add_parser("day", help="hours of the simulated fabric")
    one.add_argument("hours", nargs="?", type=int, default=24, help="how many (24)")
    one.add_argument("--seed", type=int, default=1)
    one.add_argument("--release", action="store_true", help="build the test with optimisation")
    one.set_defaults(body=day, laboratory=False)
    one = runs.add_parser("fuzz", help="libFuzzer on each target")
    one.add_argument("seconds", type=int, help="for all targets together")
    one.add_argument("targets", nargs="*", metavar="TARGET", help="only these")
    one.add_argument("--program", metavar="FILE", help="the target `every`, built before")
    one.add_argument("--target-dir", default=str(ROOT / "fuzz/target"))
    one.set_defaults(body=fuzz, laboratory=False)
    args = parser.parse_args()
    os.nice(5)
    if args.laboratory:
        if os.geteuid():
            sys.exit("harden: it makes network namespaces and so needs root: sudo scripts/harden")
        beside = getattr(args, "beside", False)
        lock = None if beside else demo.take_lock(180)
        if lock is None and not beside:
            sys.exit("harden: another laboratory has been running on this machine for minutes; wait for it to end")
        demo.interruptible()
    try:
        if args.laboratory and beside:
            set_apart()
        sys.exit(args.body(args))
    except Failed as e:
        sys.exit(f"harden: {args.run}: {e}")
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)


if __name__ == "__main__":
    main()
