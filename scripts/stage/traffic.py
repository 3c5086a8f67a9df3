"""What hosts send each other, and what must have come of it."""

import hashlib
import json
import math
import os
import re
import sys
import time

from stage import transfer
from stage.lab import ETH, ETH_IP, IB, IB_IP, gateway_pid, say
from stage.programs import Failed, Process, cpu_seconds, run

FILE_BYTES = 64 << 20
# How long the last answers of a ping are waited for, in seconds.
LATE = 10


def answered(text, first=None):
    """The numbers of packets that ping's lines tell an answer of, each once; of the first so many."""
    numbers = {int(n) for n in re.findall(r"bytes from .* icmp_seq=(\d+) ", text)}
    return {n for n in numbers if first is None or n <= first}


def ping(netns, target, size, count=20, interval=0.02, wait=None, more=()):
    """Of `count` packets how many were answered. With `wait` there are no more packets than those, and once there was an answer ping waits
    for the last one no longer than an interval, or twice the longest time so far, whatever it is told. Without, it asks on until as many
    answers have come, and what is late is not taken for lost: `sent` is more than `count` then."""
    patience = ("-W", wait or 2) if wait or count == 1 else ("-w", math.ceil(count * interval) + LATE)
    out = run("ping", "-n", "-c", count, "-i", interval, *patience, "-s", size, *more, target, netns=netns, check=False,
              timeout=60).stdout
    m = re.search(r"(\d+) packets transmitted", out)
    rtt = re.search(r"= ([\d.]+)/([\d.]+)/([\d.]+)", out)
    sent, received = int(m[1]) if m else count, len(answered(out, first=count))
    result = {"size": size, "sent": sent, "received": received, "ok": received == count}
    if rtt:
        result.update(rtt_min_ms=float(rtt[1]), rtt_avg_ms=float(rtt[2]), rtt_max_ms=float(rtt[3]))
    return result


def check_ping(netns, target):
    small, large = ping(netns, target, 56), ping(netns, target, 1472)
    return {"ok": small["ok"] and large["ok"], "small": small, "large": large}


def check_fragments(lab):
    """One packet each way that takes several frames; fragments are put together by the Ethernet port's kernel or the host."""
    got = {}
    for way, netns, target in (("to_infiniband", ETH, IB_IP), ("to_ethernet", IB, ETH_IP)):
        out = run("ping", "-n", "-q", "-c", 1, "-W", 3, "-M", "dont", "-s", 8000, target, netns=netns, check=False).stdout
        got[way] = " 1 received" in out
    return {"ok": all(got.values()), **got, "truncated": lab.ctl("stats")["drops"].get("truncated", 0)}


def check_arp(lab):
    """Both sides learn each other's address through the gateway's translation."""
    run("ip", "neigh", "flush", "all", netns=ETH)
    ping(ETH, IB_IP, 56, count=2)
    neigh = json.loads(run("ip", "-j", "neigh", "show", IB_IP, netns=ETH).stdout or "[]")
    seen_on_ethernet = next((n.get("lladdr") for n in neigh if n.get("lladdr")), None)
    ping(IB, ETH_IP, 56, count=2)
    table = lab.ctl("neighbours")
    ib = [n for n in table.get("infiniband", []) if n["address"] == IB_IP]
    eth = [n for n in table.get("ethernet", []) if n["address"] == ETH_IP]
    mac = json.loads(run("ip", "-j", "link", "show", "eth0", netns=ETH).stdout)[0]["address"]
    ok = bool(seen_on_ethernet and ib and len(bytes.fromhex(re.sub(r"[:-]", "", ib[0]["hardware_address"]))) == 20
              and eth and eth[0]["hardware_address"] == mac)
    return {"ok": ok, "ib_host_seen_on_ethernet_as": seen_on_ethernet,
            "ib_host_hardware_address": ib[0]["hardware_address"] if ib else None,
            "ethernet_host_hardware_address": eth[0]["hardware_address"] if eth else None}


def check_file(lab, from_ns, to_ns, target, size=FILE_BYTES):
    path = lab.dir / "random"
    digest = hashlib.sha256()
    with open(path, "wb") as f:
        for _ in range(size >> 20):
            block = os.urandom(1 << 20)
            digest.update(block)
            f.write(block)
    me = [sys.executable, transfer.__file__]
    receiver = Process("receiver", [*me, "receive"], to_ns, lab.dir / "receiver.log")
    try:
        lab.wait_for("the file's receiver", lambda: "listening" in receiver.text(), 30)
        begin = time.monotonic()
        run(*me, "send", target, path, netns=from_ns, timeout=120)
        receiver.popen.wait(60)
        seconds = time.monotonic() - begin
        lines = receiver.text().splitlines()
        got = json.loads(lines[1]) if len(lines) > 1 else {"sha256": None, "bytes": 0}
    finally:
        receiver.stop(1)
    return {"ok": got["sha256"] == digest.hexdigest() and got["bytes"] == size, "bytes": got["bytes"],
            "sha256_sent": digest.hexdigest(), "sha256_received": got["sha256"], "seconds": round(seconds, 3)}


def check_iperf(lab, from_ns, to_ns, target, seconds, least, flows=1):
    server = Process("iperf3", ["iperf3", "-s", "-1"], to_ns, lab.dir / "iperf3.log")
    try:
        lab.wait_for("iperf3's server", lambda: "listening" in run(
            "ss", "-Hltn", "sport", "=", ":5201", netns=to_ns).stdout.replace("LISTEN", "listening"), 30)
        out = json.loads(run("iperf3", "-J", "-c", target, "-t", seconds, "-P", flows, netns=from_ns, timeout=seconds + 30).stdout)
    finally:
        server.stop(2)
    bits = out["end"]["sum_received"]["bits_per_second"]
    segments = out["end"]["sum_sent"]["bytes"] / 1448
    retransmits = out["end"]["sum_sent"].get("retransmits", 0)
    # More than one in a hundred would be a storm.
    return {"ok": bits >= least and retransmits < segments / 100, "bits_per_second": round(bits),
            "at_least": least, "retransmits": retransmits, "segments": round(segments)}


def check_idle(lab):
    time.sleep(1)
    before, begin = cpu_seconds(gateway_pid(lab)), time.monotonic()
    time.sleep(3)
    used = (cpu_seconds(gateway_pid(lab)) - before) / (time.monotonic() - begin)
    return {"ok": used < 0.05, "of_a_core": round(used, 4), "less_than": 0.05}


def traffic(lab):
    """Packets and bytes by transport, summed over workers."""
    return lab.ctl("stats")["traffic"]


def check_connected(lab, before, after):
    grown = {k: {f: after[k][f] - before[k][f] for f in ("packets", "bytes")} for k in after}
    rc_out, rc_in = grown["ib_rc_transmit"], grown["ib_rc_receive"]
    ud = grown["ib_ud_unicast_transmit"]["packets"] + grown["ib_ud_unicast_receive"]["packets"]
    ok = rc_out["packets"] > 0 and rc_in["packets"] > 0 and ud == 0
    return {"ok": ok, "rc_transmit": rc_out, "rc_receive": rc_in, "ud_unicast_data_packets": ud}


def check_workers(lab):
    """How packets have spread over the workers."""
    workers = lab.ctl("stats")["workers"]
    shares = {name: [w[f"{name}_packets"] for w in workers] for name in
              ("eth_receive", "eth_transmit", "ib_rc_receive", "ib_rc_transmit")}
    return {"ok": len(workers) == lab.workers and sum(shares["eth_receive"]) > 0, **shares}


def checker(lab, results, figures_only):
    """What runs a check, prints it and keeps it."""
    def check(name, body, figure=False):
        say(f"{name} …")
        try:
            result = body()
        except Failed as e:
            result = {"ok": False, "error": str(e)}
        if figure and figures_only and "error" not in result:
            # A busy machine says nothing about the gateway's speed.
            result = {**result, "ok": True, "goal_met": result["ok"]}
        results.append({"name": name, **result})
        figures = {k: v for k, v in result.items() if k != "ok"}
        say(f"{name}: {'ok' if result['ok'] else 'FAILED'} {json.dumps(figures)}")
        lab.alive()
        return result

    return check


def carried(lab, check, seconds):
    """What hosts send each other by a gateway that runs."""
    check("arp", lambda: check_arp(lab))
    check("ping_eth_to_ib", lambda: check_ping(ETH, IB_IP))
    check("ping_ib_to_eth", lambda: check_ping(IB, ETH_IP))
    if lab.data_room:
        check("ping_fragments", lambda: check_fragments(lab))
    lab.wait_for("connections both ways", lambda: lab.ctl("connections").get("established_both_ways"), 15)
    before = traffic(lab)
    check("file_eth_to_ib", lambda: check_file(lab, ETH, IB, IB_IP))
    check("file_ib_to_eth", lambda: check_file(lab, IB, ETH, ETH_IP))
    gigabit = 1_000_000_000
    check("iperf_eth_to_ib", lambda: check_iperf(lab, ETH, IB, IB_IP, seconds, gigabit), figure=True)
    check("iperf_ib_to_eth", lambda: check_iperf(lab, IB, ETH, ETH_IP, seconds, gigabit), figure=True)
    # Workers that share a processor keep each other from their queues; hosts that do not send again then lose a connection for a while.
    check("connected_mode", lambda: check_connected(lab, before, traffic(lab)), figure=lab.workers > 1)
