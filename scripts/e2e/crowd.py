"""Promises about size, on a whole gateway: storms of senders, peers that take nothing, thousands of connections both ways."""

import socket
import struct
import time
from pathlib import Path

import ibwire
from checks.frames import arp, ethernet_socket, ipv4, send_paced
from checks.laboratory import Laboratory, grown, in_laboratory, packets, socket_in, stopped
from checks.meanwhile import meanwhile
from ibhosts import Hosts
from stage.lab import ETH, ETH_IP, GW_IP, IB_IP, gateway_pid
from stage.programs import Failed, cpu_seconds

# Ports of the fabric on which there are many hosts; no port may have more than a quarter of the connections.
PORTS = 8
# Of each direction.
CONNECTIONS = 4000
STALLED = 17
SENDERS = 100_000
# Most hosts in a table.
MOST_HOSTS = 4096
# The joined subnet has room for all: 10.64.0.0 to 10.79.255.255.
PREFIX = 12
PORT = 7009


def address(number, net):
    return socket.inet_ntoa(struct.pack(">I", (10 << 24 | net << 16) + number))


class Crowd(Laboratory):
    """The laboratory with more ports, on each of which there may be any number of hosts. Connections never give up by themselves."""

    def __init__(self, args):
        super().__init__(args, intruder=False)
        self.ends = ibwire.intruder_pairs(PORTS)

    def fabric_config(self):
        links = "".join('\n[[link]]\nname = "crowd%d"\nurl = "udp:%s:%d-%s:%d"\n' % (n, *near, *far)
                        for n, (far, near) in enumerate(self.ends))
        return super().fabric_config() + links

    def gateway_config(self):
        text = super().gateway_config().replace(f"{GW_IP}/24", f"{GW_IP}/{PREFIX}")
        more = f"max-connections = {2 * CONNECTIONS + 60}\nretry-count = 7\nrnr-retry = 7\n"
        return text.replace("[infiniband]\n", "[infiniband]\n" + more, 1)

    def hosts(self, port, addresses, **more):
        """Hosts on a port, which is active when this returns."""
        links = self.ctl("links")["infiniband"]
        gateway = links["lid"], bytes.fromhex(links["addresses"].split(" ")[0].replace(":", ""))
        hosts = Hosts(*self.ends[port], 0x0200_0000_00C0_0000 + 16 * port, addresses, gateway, **more)
        hosts.start()
        if not hosts.wait_active():
            hosts.close()
            raise Failed(f"port {port} of the crowd is in state {hosts.state}")
        time.sleep(0.2)
        return hosts

    def resident(self):
        """Resident memory of the gateway, bytes, without that of packet buffers in hugepages."""
        lines = Path(f"/proc/{gateway_pid(self)}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) << 10

    def control_seconds(self):
        """Processor time of the control lcore, which is the program's first thread."""
        return cpu_seconds(f"{gateway_pid(self)}/task/{gateway_pid(self)}")


def rows(lab):
    table = lab.ctl("neighbours")
    return {side: len(table[side]) for side in ("ethernet", "infiniband")}


def all_within(seconds, ready, again=lambda: None):
    """Waits until `ready`, and does `again` what may have got lost, once a second."""
    end, due = time.monotonic() + seconds, time.monotonic() + 1
    while not ready():
        now = time.monotonic()
        if now > end:
            return False
        if now > due:
            again()
            due = time.monotonic() + 1
        time.sleep(0.05)
    return True


# -- storms

def storm(lab, send, received):
    """What hosts with traffic notice while `send` sends a storm, and what the gateway needs for it."""
    before, figures, full = lab.ctl("stats"), {}, missed(lab)

    def blow():
        begin, control, whole = time.monotonic(), lab.control_seconds(), cpu_seconds(gateway_pid(lab))
        send()
        took = time.monotonic() - begin
        figures.update(seconds=round(took, 1), control_of_a_core=round((lab.control_seconds() - control) / took, 3),
                       gateway_of_a_core=round((cpu_seconds(gateway_pid(lab)) - whole) / took, 3))

    through = meanwhile(lab, blow, seconds=13)
    after, hosts, full = lab.ctl("stats"), rows(lab), missed(lab) - full
    came = packets(after["traffic"], received) - packets(before["traffic"], received)
    known = {side: any(n["address"] == ip and n["hardware_address"] for n in lab.ctl("neighbours")[side])
             for side, ip in (("ethernet", ETH_IP), ("infiniband", IB_IP))}
    # A machine that is busy with other things stops the gateway for longer than the kernel's ring of its port lasts: three of 260 pings,
    # and of what the port says that it has missed of the storm twice that share.
    most = 3 + 2 * 260 * full // SENDERS
    ok = (through["ok"] and through["lost"] <= most and came > SENDERS * 0.5 and came + full > SENDERS * 0.9
          and figures["control_of_a_core"] < 0.5 and all(n <= MOST_HOSTS for n in hosts.values()) and all(known.values()))
    return {"ok": ok, "senders": SENDERS, "came": came, "missed_by_the_port": full, **figures, "hosts_in_tables": hosts, "known": known, **{
        k: v for k, v in through.items() if k != "ok"}, "drops": grown(after["drops"], before["drops"])}


def check_storm_from_ethernet(lab):
    """As many hosts as one likes ask for one InfiniBand host."""
    raw, _, _ = ethernet_socket(lab)
    with raw:
        def frame(n):
            mac = b"\x06" + struct.pack(">I", n) + b"\0"
            return b"\xff" * 6 + mac + b"\x08\x06" + arp(mac, address(n + 1, net=70), IB_IP)

        frames = [frame(n) for n in range(SENDERS)]
        return storm(lab, lambda: send_paced(raw.send, frames, 40, 0.004), "eth_receive")


def check_storm_from_infiniband(lab):
    """The same from InfiniBand, each with a queue pair of its own."""
    hosts = lab.hosts(0, [address(n + 1, net=72) for n in range(SENDERS)])
    try:
        qpn = int.from_bytes(hosts.gateway[1:4], "big")
        frames = [ibwire.ud(hosts.gateway_lid, hosts.lid, qpn, 0x100000 + n, 0x0B1B, hosts.arp(n, 1, bytes(20), ETH_IP))
                  for n in range(SENDERS)]
        result = storm(lab, lambda: send_paced(hosts.send, frames, 40, 0.004), "ib_ud_unicast_receive")
        return {**result, "answered": len(hosts.known)}
    finally:
        hosts.close()


# -- connections

def missed(lab):
    """Frames that the port's ring had no room for while the gateway stood still: it has never had them."""
    return lab.ctl("links")["ethernet"]["losses"]["missed"]


def to_hosts(raw, gateway, own, addresses, numbers, repeat=1, pause=0.004):
    """An UDP packet for each host, with its number in it."""
    def frame(n):
        body = struct.pack(">HHHHI", PORT, PORT, 12, 0, n)
        return gateway + own + b"\x08\x00" + ipv4(body, dst=addresses[n])

    send_paced(raw.send, [frame(n) for n in numbers for _ in range(repeat)], 32, pause)


def connections(lab):
    """Those that are up, by direction, of hosts of the crowd."""
    table = lab.ctl("connections")["connections"]
    live = [c for c in table if c["state"] == "live"]
    return {"passive": sum(c["passive"] for c in live), "active": sum(not c["passive"] for c in live)}


def check_stalled(lab):
    """Hosts that accept a connection and take nothing by it, of both kinds, while more is sent to them than they could be kept."""
    result = {"ok": True}
    raw, gateway, own = ethernet_socket(lab)
    live = lambda: {c["qpn"] for c in lab.ctl("connections")["connections"] if c["state"] == "live"}
    good = live()
    for port, manners in enumerate(("silent", "not_ready")):
        addresses = [address(n + 1 + 100 * port, net=77) for n in range(256, 256 + STALLED)]
        hosts = lab.hosts(port, addresses, manners=manners)
        try:
            drops = lab.ctl("stats")["drops"]
            for n in range(STALLED):
                hosts.ask(n, ETH_IP)
            all_within(20, lambda: len(hosts.known) == STALLED,
                       lambda: [hosts.ask(n, ETH_IP) for n in range(STALLED) if n not in hosts.known])

            def flood():
                for _ in range(6):
                    to_hosts(raw, gateway, own, addresses, range(STALLED), repeat=200)

            full = missed(lab)
            through = meanwhile(lab, flood, seconds=5)
            stats, full = lab.ctl("stats"), missed(lab) - full
            same = len(good) == 2 and good <= live()
            result[manners] = {"accepted": len(hosts.accepted), "messages_not_taken": hosts.refused_messages,
                               "connections_of_others_the_same": same, "buffers": stats["buffers"], "missed_by_the_port": full,
                               "drops": grown(stats["drops"], drops), **through}
            # As with storms: but only where the port has missed frames at all.
            result["ok"] &= (through["ok"] and through["lost"] <= (3 if full else 0) and len(hosts.accepted) == STALLED and same
                             and hosts.refused_messages >= STALLED)
        finally:
            hosts.close()
    raw.close()
    return result


def check_thousands(lab):
    """As many connections as the configuration promises in both directions at once: packets from Ethernet by the one, back by the other."""
    raw, gateway, own = ethernet_socket(lab)
    ears = socket_in(ETH, socket.AF_PACKET, socket.SOCK_RAW)
    ears.setsockopt(socket.SOL_SOCKET, 33, 16 << 20)
    ears.bind(("eth0", 0x0800))
    share = CONNECTIONS // PORTS
    all_addresses = [address(n + 1, net=76) for n in range(CONNECTIONS)]
    crowd = []
    try:
        for port in range(PORTS):
            crowd.append(lab.hosts(port, all_addresses[port * share:(port + 1) * share]))
        each = [(hosts, n, port * share + n) for port, hosts in enumerate(crowd) for n in range(share)]
        # Host by host over all ports.
        each.sort(key=lambda e: e[1])
        figures, before = {"memory_mb": [round(lab.resident() / 1e6, 1)]}, lab.resident()
        in_use = lab.in_use()

        def each_missing(done, act):
            for at, (hosts, n, _) in enumerate(e for e in each if not done(*e)):
                act(hosts, n)
                if at % 16 == 15:
                    time.sleep(0.004)

        def stage(name, done, again, seconds=40):
            nonlocal before
            begin = time.monotonic()
            again()
            ok = all_within(seconds, lambda: all(done(*e) for e in each), again)
            now = lab.resident()
            figures[name] = {"ok": ok, "seconds": round(time.monotonic() - begin, 1),
                             "bytes_each": (now - before) // CONNECTIONS}
            before = now
            return ok

        ok = stage("known", lambda h, n, _: n in h.known,
                   lambda: each_missing(lambda h, n, _: n in h.known, lambda h, n: h.ask(n, ETH_IP)))
        ok = ok and stage("active", lambda h, n, _: n in h.accepted, lambda: to_hosts(
            raw, gateway, own, all_addresses, [number for h, n, number in each if n not in h.accepted]))
        ok = ok and stage("passive", lambda h, n, _: n in h.opened,
                          lambda: each_missing(lambda h, n, _: n in h.opened, lambda h, n: h.open(n)))
        ok = ok and all_within(30, lambda: min(connections(lab).values()) >= CONNECTIONS)
        figures["up"] = connections(lab)
        if not ok:
            return {"ok": False, **figures, "rejected": [dict(h.rejected) for h in crowd],
                    "closed": sum(h.closed for h in crowd), "drops": lab.ctl("stats")["drops"],
                    "link": lab.ctl("links")["link_counters"]}

        # Out by the gateway's connections, and back by those of the hosts.
        def answer(hosts):
            def took(n, packet):
                number = packet[28:32]
                hosts.send_ip(n, ipv4(struct.pack(">HHHH", PORT, PORT, 12, 0) + number, src=hosts.addresses[n], dst=ETH_IP))
            return took

        for hosts in crowd:
            hosts.took = answer(hosts)
        traffic, came = lab.ctl("stats")["traffic"], set()
        begin = time.monotonic()
        right = {socket.inet_aton(all_addresses[n]) + struct.pack(">I", n): n for n in range(CONNECTIONS)}
        left, full = [number for _, _, number in each], [0]
        ears.settimeout(10)
        while left and len(full) < 5:
            at_port = missed(lab)
            to_hosts(raw, gateway, own, all_addresses, left, pause=0.016)
            try:
                while len(came) < CONNECTIONS:
                    frame = ears.recv(2048)
                    if frame[6:12] == gateway and frame[34:36] == struct.pack(">H", PORT):
                        came.add(frame[26:30] + frame[42:46])
            except TimeoutError:
                pass
            left = [n for bytes_, n in right.items() if bytes_ not in came]
            full.append(missed(lab) - at_port)
            # What the gateway has had is not sent again.
            if len(left) > full[-1]:
                break
        after = lab.ctl("stats")["traffic"]
        moved = {k: packets(after, k) - packets(traffic, k) for k in ("ib_rc_transmit", "ib_rc_receive")}
        figures.update(there_and_back=len(came & right.keys()), missed_by_the_port=sum(full))
        figures.update(seconds=round(time.monotonic() - begin, 1), by_connection=moved,
                       buffers=[in_use, lab.in_use()])
        figures["memory_mb"].append(round(lab.resident() / 1e6, 1))
        small = all(figures[k]["bytes_each"] < 64 << 10 for k in ("active", "passive"))
        return {"ok": came == right.keys() and all(n >= CONNECTIONS for n in moved.values()) and small, **figures}
    finally:
        for hosts in crowd:
            hosts.close()
        raw.close()
        ears.close()


def crowd(args, checks):
    in_laboratory(Crowd, args, checks, (
        ("crowd_stalled", check_stalled),
        ("crowd_storm_from_ethernet", check_storm_from_ethernet),
        ("crowd_storm_from_infiniband", check_storm_from_infiniband),
        ("crowd_thousands", check_thousands),
        ("crowd_stop_no_leak", stopped),
    ))
