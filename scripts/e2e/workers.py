"""Two workers: each with its own queues, its own IPoIB address and its own connections, on processors that they may have to share."""

import socket
import time

from checks.laboratory import Laboratory, in_laboratory, socket_in, stopped
from stage.lab import ETH, ETH_IP, IB, IB_IP
from stage.programs import run
from stage.traffic import check_file, check_ping, ping, traffic

# Further Ethernet hosts, so that both workers answer for some.
MORE = [f"10.77.0.{n}" for n in range(10, 26)]


class TwoWorkers(Laboratory):
    workers = 2

    def __init__(self, args):
        super().__init__(args, intruder=False)

    def up(self):
        self.start()
        self.wait_for("the InfiniBand link", self.link_up, 20)
        self.hosts_up()
        for address in MORE:
            run("ip", "addr", "add", f"{address}/24", "dev", "eth0", netns=ETH)


def check_cold(lab):
    """One packet each way, from cold."""
    to_ib = ping(ETH, IB_IP, 56, count=1, wait=3)
    back = ping(IB, ETH_IP, 56, count=1, wait=3)
    return {"ok": to_ib["ok"] and back["ok"], "to_infiniband": to_ib["received"], "to_ethernet": back["received"]}


def check_addresses(lab):
    """Each worker has an address of its own, and InfiniBand hosts see some Ethernet hosts at each."""
    lost = [a for a in MORE if not ping(IB, a, 56, count=2)["ok"]]
    addresses = lab.ctl("links")["infiniband"]["addresses"].split()
    lab.wait_for("connections of both workers", lambda: {c["worker"] for c in lab.ctl("connections")["connections"]
                                                         if c["passive"] and c["state"] == "live"} == {0, 1}, 10)
    return {"ok": not lost and len(set(addresses)) == 2, "addresses": addresses, "lost": lost}


def check_both_work(lab):
    """Files both ways; each worker's share of what the connections brought."""
    before = traffic(lab)
    files = [check_file(lab, ETH, IB, IB_IP), check_file(lab, IB, ETH, MORE[0]), check_file(lab, IB, ETH, MORE[1])]
    after = traffic(lab)
    moved = {k: after[k]["packets"] - before[k]["packets"] for k in ("ib_rc_receive", "ib_rc_transmit")}
    return {"ok": all(f["ok"] for f in files) and all(moved.values()), "packets": moved,
            "seconds": [f["seconds"] for f in files]}


def check_spread(lab):
    """Many flows at once; how many packets each worker had of them, each way."""
    before = lab.ctl("stats")["workers"]
    flows, each = 64, 20
    for netns, target in ((ETH, [IB_IP]), (IB, MORE)):
        senders = [socket_in(netns, socket.AF_INET, socket.SOCK_DGRAM) for _ in range(flows)]
        for _ in range(each):
            for n, sender in enumerate(senders):
                # Not connected: such a socket would be told that nobody listens, in place of sending.
                sender.sendto(b"one of many", (target[n % len(target)], 7020))
            # What waits before a gateway that stands still for a moment finds room.
            time.sleep(0.04)
        for sender in senders:
            sender.close()
    end = time.monotonic() + 5
    while time.monotonic() < end:
        after = lab.ctl("stats")["workers"]
        if all(sum(a[way] - b[way] for a, b in zip(after, before)) >= flows * each
               for way in ("eth_receive_packets", "ib_rc_receive_packets")):
            break
        time.sleep(0.1)
    shares = {name: [a[f"{name}_packets"] - b[f"{name}_packets"] for a, b in zip(after, before)]
              for name in ("eth_receive", "eth_transmit", "ib_rc_receive", "ib_rc_transmit")}
    came = shares["eth_receive"], shares["ib_rc_receive"]
    return {"ok": all(sum(way) >= flows * each and min(way) > 0 for way in came), "flows_each_way": flows, "by_worker": shares}


def workers(args, checks):
    in_laboratory(TwoWorkers, args, checks, (
        ("workers_cold", check_cold),
        ("workers_ping_eth_to_ib", lambda _: check_ping(ETH, IB_IP)),
        ("workers_ping_ib_to_eth", lambda _: check_ping(IB, ETH_IP)),
        ("workers_addresses", check_addresses),
        ("workers_files", check_both_work),
        ("workers_spread", check_spread),
        ("workers_stop_no_leak", stopped),
    ))
