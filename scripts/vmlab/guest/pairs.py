"""Connected queue pairs of the two ports, from `rdma resource show qp`: each has its other end, and the two agree on whose
packet comes next. What one end sends next (sq-psn) is what the other expects (rq-psn): both began where REQ and REP said.
Exits non-zero if not, or if there are not as many as the argument says; with --show prints what rdma tells."""

import re
import subprocess
import sys

# python3-minimal has no json.
told = subprocess.run(["rdma", "resource", "show", "qp"], check=True, capture_output=True, text=True).stdout
rc = {}
for line in told.splitlines():
    device, _, rest = line.removeprefix("link ").partition("/")
    qp = dict(re.findall(r"(\S+) (\S+)", rest.partition(" ")[2]))
    if qp.get("type") == "RC":
        rc[device, qp["lqpn"]] = qp
if "--show" in sys.argv:
    print(told)
faults = []
for (device, number), qp in rc.items():
    other = rc.get(("ibx1" if device == "ibx0" else "ibx0", qp["rqpn"]))
    if other is None or other["rqpn"] != number:
        faults.append(f"{device} {number}: its other end, {qp['rqpn']}, is not there")
    elif qp["state"] != "RTS" or qp["sq-psn"] != other["rq-psn"]:
        faults.append(f"{device} {number}: {qp}, other end: {other}")
wanted = int(sys.argv[1])
if len(rc) != wanted:
    faults.append(f"{len(rc)} connected queue pairs instead of {wanted}")
print("\n".join(faults) or f"{wanted} connected queue pairs, PSNs agree: "
      + ", ".join(f"{q['sq-psn']}/{q['rq-psn']}" for q in rc.values()))
sys.exit(bool(faults))
