"""What an operator sees: errors with their remedies, the control socket, statistics, the end."""

import collections
import json
import random
import re
import shutil
import signal
import socket
import tempfile
import time
from pathlib import Path

from checks.laboratory import back_within, check_stop
from stage.apart import HUGEPAGES
from stage.lab import ETH, ETH_IP, IB_IP
from stage.programs import run
from stage.traffic import ping


# A segment on a software device whose cable begins at an address that is not ours.
SECOND_DEVICE = """[[infiniband.soft-device]]
ports = [{ link = "udp:203.0.113.1:9-203.0.113.2:9" }]
name = "far"
[[segment]]
device = "far"
name = "one\""""


def refused(argv, *words, netns=None, program=None):
    """A start that must fail: code 1, one line of ours that has all the words, no panic, and no waiting for anything."""
    begin = time.monotonic()
    out = run(*argv, netns=netns, check=False, timeout=20)
    seconds, text = time.monotonic() - begin, out.stdout + out.stderr
    program = program or Path(argv[0]).name
    lines = [l for l in text.splitlines() if l.startswith(f"{program}: ")]
    ok = (out.returncode == 1 and len(lines) == 1 and "panicked" not in text and seconds < 15
          and all(re.search(w, lines[0]) for w in words))
    return {"ok": ok, "exit_code": out.returncode, "seconds": round(seconds, 2),
            "said": lines if lines else text[-300:], **({} if ok else {"all": text[-1500:]})}


def check_place(lab):
    """Control and worker stay on the processors that they were given, and packets are in hugepages if there are any."""
    pid = lab.gateway.popen.pid
    threads = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        fields = dict(line.split(":\t", 1) for line in (task / "status").read_text().splitlines() if ":\t" in line)
        threads[fields["Name"] if task.name != str(pid) else "control"] = fields["Cpus_allowed_list"].strip()
    worker = [cpus for name, cpus in threads.items() if "worker" in name]
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line)
    huge = int(status["HugetlbPages"].split()[0]) << 10
    wanted = "--in-memory" in lab.memory
    # The buffers alone: as many as are counted, of 4 KiB each and more.
    stats = lab.ctl("stats")["buffers"]
    buffers = (stats["in_use"] + stats["available"]) * 4096
    ok = threads["control"] == "0" and worker == ["1"] and (huge >= buffers if wanted else huge == 0)
    return {"ok": ok, "processors": threads, "bytes_in_hugepages": huge, "bytes_of_buffers": buffers, "hugepages_wanted": wanted}


def operator_errors(args, checks):
    if not checks.wanted_of("error"):
        return
    gateway, fabric = Path(args.bin).resolve() / "ipoib-fwd", Path(args.bin).resolve() / "ibfab"
    directory = Path(tempfile.mkdtemp(prefix="ipoib-fwd-e2e-"))
    try:
        good = directory / "good.toml"
        base = ('[gateway]\naddress = "10.77.0.254/24"\ncontrol-socket = ""\n[ethernet]\nport = "net_null0"\n'
                '[infiniband]\ndriver = "soft"\n[infiniband.soft]\nports = [{ link = "udp:127.0.0.1:0-127.0.0.1:9" }]\n')
        good.write_text(base)

        def with_(name, old, new):
            path = directory / f"{name}.toml"
            path.write_text(base.replace(old, new))
            return path

        def segments(name, old="", new=""):
            """Two segments that are good, lines 9 and 14, with one thing changed."""
            text = base.replace('address = "10.77.0.254/24"\n', "") + (
                '[[segment]]\nname = "one"\nvlan = 100\npkey = 0x8001\naddress = "10.77.0.254/24"\n'
                '[[segment]]\nname = "two"\nvlan = 200\npkey = 0x8002\naddress = "10.77.0.254/24"\n'
                '[[segment.route]]\nto = "0.0.0.0/0"\nvia = "10.77.0.1"\n')
            path = directory / f"{name}.toml"
            path.write_text(text.replace(old, new))
            return start("-l", "0-1", *small, config=path)

        small = ["--no-pci", "--no-huge", "--no-shconf", "-m", "256", "--file-prefix", "gwerr", "--vdev", "net_null0"]

        def start(*eal, config=good):
            return [gateway, *eal, "--", "--config", config]

        def no_hugepages():
            # It does not see those that there are: others may need them.
            hidden = ["unshare", "--mount", "sh", "-c", f'mount -t tmpfs none {HUGEPAGES.parents[1]} && exec "$0" "$@"']
            return refused([*hidden, *start("-l", "0-1", "--no-pci", "--in-memory", "--file-prefix", "gwerr", "--vdev", "net_null0")],
                           "hugepages", "nr_hugepages|--no-huge", program="ipoib-fwd")

        checks.run("error_no_hugepages", no_hugepages)
        for name, argv, words in (
            ("core_mask", start("-c", "0xf1", *small), ("CPU|cpu|lcore", "online")),
            ("core_list", start("-l", "0-999", *small), ("CPU|cpu|lcore", "online")),
            ("core_garbage", start("-l", "zero", *small), ("-l", "zero")),
            ("no_worker", start("-l", "0", *small), ("lcore", "-l 0[-,]1")),
            ("unknown_port", start("-l", "0-1", *small, config=with_("port", "net_null0", "net_nul7")),
             (r"port\.toml:5:1", "net_nul7", "net_null0")),
            ("unknown_driver", start("-l", "0-1", *small[:-1], "net_nulll0"), ("net_nulll0", "net_null")),
            ("unknown_interface", start("-l", "0-1", *small[:-1], "net_af_packet0,iface=nosuch0"), ("nosuch0|net_af_packet0",)),
            ("unknown_user", start("-l", "0-1", *small, config=with_("user", "[gateway]\n", '[gateway]\nuser = "no-such-user"\n')),
             (r"user\.toml:2:1", "no-such-user", "adduser --system")),
            ("kept_user", start("-l", "0-1", *small, config=with_(
                "kept", "[gateway]\n", '[gateway]\nuser = "nobody"\nprivileges = "keep"\n')),
             (r"kept\.toml:2:8", "keeps its privileges", 'privileges = "drop"')),
            ("unknown_key", start("-l", "0-1", *small, config=with_("key", "address", "adress")),
             (r"key\.toml:2:1", "adress", "did you mean `address`")),
            ("unknown_section", start("-l", "0-1", *small, config=with_("section", "[ethernet]", "[ehternet]")),
             (r"section\.toml:4", "ehternet", "ethernet")),
            ("wrong_type", start("-l", "0-1", *small, config=with_("type", '"soft"', "7")), (r"type\.toml:7", )),
            ("bad_address", start("-l", "0-1", *small, config=with_("address", "10.77.0.254/24", "10.77.0.254/44")),
             (r"address\.toml:2",)),
            ("segment_twice", segments("twice", '"two"', '"one"'), (r"twice\.toml:15:8", r"`one` \(line 9\)", "another name")),
            ("segment_vlan_twice", segments("vlan", "200", "100"), (r"vlan\.toml:16:8", "VLAN 100", "`one`", "another vlan")),
            ("segment_limited_pkey", segments("pkey", "0x8002", "0x0002"), (r"pkey\.toml:17:8", "limited", "write 0x8002")),
            ("segment_port", segments("ibport", "0x8002", "0x8002\nport = 2"),
             (r"ibport\.toml:18:8", "`soft0`", "no port 2", "count from 1")),
            ("segment_ethernet", segments("seth", "vlan = 200", 'vlan = 200\nethernet = "net_null7"'),
             (r"seth\.toml:17:1", "net_null7", "there are: net_null0")),
            ("segment_device", segments("sdev", "vlan = 200", 'vlan = 200\ndevice = "soft7"'),
             (r"sdev\.toml:17:10", "`soft7`", "known are soft0")),
            ("soft_device_cable", segments("cable", "[[segment]]\nname = \"one\"", SECOND_DEVICE),
             (r"cable\.toml:10:1", "203.0.113.1")),
            ("segment_route", segments("route", "10.77.0.1\"", "10.78.0.1\""),
             (r"route\.toml:21:7", "leads nowhere", r"10\.77\.0\.0/24")),
            ("no_config", start("-l", "0-1", *small, config=directory / "none.toml"), (r"none\.toml", "--config")),
            ("bad_link_url", start("-l", "0-1", *small, config=with_("url", "udp:", "tcp:")), ("tcp:", "shm:", "udp:")),
            ("hca_driver_without_soft",
             [*start("-l", "0-1", *small, config=with_("nosoft", base[base.index("[infiniband]"):], "")),
              "--hca-driver", "soft"], (r"\[infiniband\.soft\]", "ports")),
            *((f"hca_driver_{driver}_without_device", [*start("-l", "0-1", *small), "--hca-driver", driver],
               (r"good\.toml:\d+:\d+", "RDMA device", "modprobe mlx5_ib")) for driver in ("mlx5", "verbs")
              if not any(Path("/sys/class/infiniband").glob("*"))),
            ("no_separator", [gateway, "--config", good], ("--",)),
            ("fabric_unknown_key", [fabric, "--config", with_("fabric", base, '[[link]]\nname = "x"\nulr = "y"\n')],
             (r"fabric\.toml:3", "ulr", "url")),
            ("fabric_bad_url", [fabric, "--config", with_("fabric2", base, '[[link]]\nname = "x"\nurl = "udp:1"\n')],
             ("udp:1",)),
            ("fabric_no_config", [fabric, "--config", directory / "none.toml"], (r"none\.toml",)),
            *((("gids_nothing", [gateway, "gids"], ("RDMA device", "--socket")),) if not (
                any(Path("/sys/class/infiniband").glob("*")) or Path("/run/ipoib-fwd.sock").exists()) else ()),
            ("gids_not_shared_memory", start("-l", "0-1", *small, config=with_(
                "gids", "[gateway]\n", '[gateway]\ngids = "/proc/version"\n')), ("gateway.gids", "/proc/version")),
            ("ctl_nobody", [gateway, "ctl", "--socket", directory / "none.sock", "stats"], (r"none\.sock",)),
        ):
            checks.run(f"error_{name}", lambda argv=argv, words=words: refused(argv, *words))
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def check_second_gateway(lab):
    """On the control socket of one that runs."""
    config = lab.dir / "second.toml"
    config.write_text(lab.gateway_config().replace("net_af_packet0", "net_null0").replace(
        f"shm:{lab.link}", "udp:127.0.0.1:0-127.0.0.1:9").replace(f'gids = "{lab.dir}/gids"\n', ""))
    result = refused([lab.bin / "ipoib-fwd", "-l", "0-1", "--no-pci", "--no-huge", "--no-shconf", "-m", "256",
                      "--file-prefix", "gwsecond", "--vdev", "net_null0", "--", "--config", config], r"control\.sock")
    first = lab.ctl("stats")
    return {**result, "ok": result["ok"] and "traffic" in first}


def check_ctl(lab):
    wrong = []
    ping(ETH, IB_IP, 56, count=3)
    for what, key in (("stats", "traffic"), ("links", "infiniband"), ("neighbours", "infiniband"),
                      ("connections", "connections"), ("groups", "groups")):
        answer, text = lab.ctl(what), lab.ask(what).stdout
        if not answer.get(key):
            wrong.append(f"{what} --json: {answer}")
        if len(text.splitlines()) < 2 or "{" in text or "[" in text:
            wrong.append(f"{what}: {text[:800]}")
    links = lab.ctl("links")["infiniband"]
    if (links.get("port_state"), links.get("link"), links.get("mtu"), links.get("mode")) != (
            "active", "up", 4096, "connected"):
        wrong.append(f"links: {links}")
    neighbours = lab.ctl("neighbours")
    seen = {side: {n["address"] for n in neighbours[side]} for side in ("infiniband", "ethernet")}
    if seen != {"infiniband": {IB_IP}, "ethernet": {ETH_IP}}:
        wrong.append(f"neighbours: {seen}")
    live = collections.Counter(c["passive"] for c in lab.ctl("connections")["connections"] if c["state"] == "live")
    if live != {True: 1, False: 1}:
        wrong.append(f"connections: {lab.ctl('connections')}")
    bad = lab.bin / "ipoib-fwd"
    out = run(bad, "ctl", "--socket", lab.dir / "control.sock", "nonsense", check=False)
    if out.returncode == 0 or "panicked" in out.stderr:
        wrong.append(f"nonsense: {out.returncode} {out.stderr}")
    groups = [g for g in lab.ctl("groups")["groups"]]
    return {"ok": not wrong, "groups": len(groups), "wrong": wrong}


def check_socket(lab):
    """Hostile words on the control socket."""
    path, chance = str(lab.dir / "control.sock"), random.Random(3)
    for _ in range(50):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
            s.settimeout(2)
            try:
                s.connect(path)
                s.send(chance.choice([b"/" + chance.randbytes(chance.randrange(1000)), b"", b"/mode,", b"/stats," + b"x" * 900,
                                      chance.randbytes(4000)]))
            except OSError:
                pass
    idle = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(40)]
    try:
        for s in idle:
            s.settimeout(0.2)
            try:
                s.connect(path)
            except OSError:
                pass
    finally:
        for s in idle:
            s.close()
    time.sleep(0.3)
    return {"ok": "traffic" in lab.ctl("stats")}


def check_stats_lines(lab):
    """--stats 1: a line a second; the gateway is started anew for it.

    Its port is now one that takes fragments as they come: net_af_packet lets the kernel reassemble them, and what is
    longer than its frames is lost then."""
    first = check_stop(lab, "gateway", lab.gateway, signal.SIGTERM)
    lab.vdev, lab.more = "net_pcap0,rx_iface_in=gw0,tx_iface=gw0", ("--stats", "1")
    (lab.dir / "gateway.toml").write_text(lab.gateway_config())
    # Its address is another one, too.
    run("ip", "neigh", "flush", "all", netns=ETH)
    lab.start_gateway()
    back = back_within(10, ETH, IB_IP)
    told = lambda: [l for l in lab.gateway.text().splitlines() if l.startswith("to IB: RC ")]
    before, begin = len(told()), time.monotonic()
    lab.wait_for("three lines more", lambda: len(told()) >= before + 3, 15)
    lines, seconds = told(), round(time.monotonic() - begin, 2)
    return {"ok": first["ok"] and back is not None, "lines": len(lines), "seconds": seconds, "last": lines[-1:],
            "stopped": first, "traffic_after": back}


def check_no_leak(lab):
    result = check_stop(lab, "gateway", lab.gateway, signal.SIGINT)
    report = json.loads((lab.dir / "report.json").read_text())
    panicked = [l for l in (lab.dir / "gateway.log").read_text(errors="replace").splitlines() if "panicked" in l]
    outstanding = report["buffers_outstanding"]
    return {**result, "ok": result["ok"] and outstanding == 0 and not panicked, "buffers_outstanding": outstanding,
            "panics": panicked}
