"""Diagnostics of a failed test: logs, counters that are not zero, links, and where the captures are."""

import json
import shutil

from testbed.programs import TestbedError, run

LOG_BYTES = 6000
CAPTURED_PACKETS = 20


def counters(topology):
    """Drops and the state of all links, as JSON; why not, if the gateway does not answer."""
    try:
        stats, links = topology.ctl("stats"), topology.ctl("links")
    except (TestbedError, ValueError, OSError) as error:
        return str(error)
    drops = {reason: count for reason, count in stats["drops"].items() if count}
    return json.dumps({"drops": drops, "traffic": stats.get("traffic"), "links": links}, indent=1)


def last_packets(path):
    """The last packets of a capture, a line each."""
    try:
        out = run("tshark", "-n", "-r", path, check=False)
    except TestbedError as error:
        return str(error)
    return "\n".join(out.stdout.splitlines()[-CAPTURED_PACKETS:]) or out.stderr.strip()


def sections(topology, keep_in=None):
    """(title, text) of everything that says why.

    Captures and logs are copied to the directory `keep_in`, if one is given.
    """
    found = [(f"{p.name}: end of its log", p.text()[-LOG_BYTES:]) for p in topology.processes]
    if topology.gateway and topology.gateway not in topology.processes:
        found.append(("gateway (exited): end of its log", topology.gateway.text()[-LOG_BYTES:]))
    if topology.gateway in topology.processes:
        found.append(("gateway: counters", counters(topology)))
    captures = sorted(path for path in topology.dir.glob("*.pcap*") if path.is_file())
    if keep_in:
        keep_in.mkdir(parents=True, exist_ok=True)
        for path in (*captures, *topology.dir.glob("*.log"), *topology.dir.glob("*.toml")):
            shutil.copy(path, keep_in)
        found.append(("files", f"captures, logs and configuration are kept in {keep_in}"))
    found += [(f"{path.name}: its last packets", last_packets(path)) for path in captures if path.stat().st_size]
    return found
