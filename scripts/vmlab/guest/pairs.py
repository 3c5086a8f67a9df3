"""Checks the connected queue pairs of the two ports in `rdma resource show qp`.

Each queue pair has its other end. The packet that one end sends next (sq-psn) is the one that the other end
expects (rq-psn): both started with the numbers of REQ and REP. Exits with an error otherwise, or if the
number of queue pairs differs from the argument. With --show, prints the output of rdma.
"""

import re
import subprocess
import sys

# python3-minimal has no json.
output = subprocess.run(["rdma", "resource", "show", "qp"], check=True, capture_output=True, text=True).stdout
rc = {}
for line in output.splitlines():
    device, _, rest = line.removeprefix("link ").partition("/")
    qp = dict(re.findall(r"(\S+) (\S+)", rest.partition(" ")[2]))
    if qp.get("type") == "RC":
        rc[device, qp["lqpn"]] = qp
if "--show" in sys.argv:
    print(output)
faults = []
for (device, number), qp in rc.items():
    other = rc.get(("ibx1" if device == "ibx0" else "ibx0", qp["rqpn"]))
    if other is None or other["rqpn"] != number:
        faults.append(f"{device} {number}: its other end, {qp['rqpn']}, is missing")
    elif qp["state"] != "RTS" or qp["sq-psn"] != other["rq-psn"]:
        faults.append(f"{device} {number}: {qp}, other end: {other}")
wanted = int(sys.argv[1])
if len(rc) != wanted:
    faults.append(f"{len(rc)} connected queue pairs instead of {wanted}")
print("\n".join(faults) or f"{wanted} connected queue pairs, PSNs agree: "
      + ", ".join(f"{q['sq-psn']}/{q['rq-psn']}" for q in rc.values()))
sys.exit(bool(faults))
