"""Settings of a running gateway, its counters since they were cleared, its port's losses, and DPDK's
telemetry script."""

import json
import os
import re
import shutil
import signal
import subprocess

import pytest
from testbed.programs import DEADLINE, run
from testbed.topology import ETH_IP, IB_IP
from testbed.traffic import ping, traffic

pytestmark = pytest.mark.netns

# Frames that the ring of a port has by default.
RING = 2048
# Requests that are more than the ring takes.
FLOOD = 4500


def settings(topology):
    return {row["key"]: row["value"] for row in topology.ctl("set")["settings"]}


@pytest.mark.core
def test_settings(gateway):
    """Each key takes a value that is allowed, and is listed with it."""
    assert sorted(settings(gateway)) == ["idle", "log", "log-filter", "mode", "priority", "receive-mtu"]
    for key, value in (("mode", "datagram"), ("mode", "connected"), ("idle", "pause"), ("log", "debug"),
                       ("log-filter", "ipoib_fwd::segment=warn,endpoint=debug"), ("receive-mtu", 2044)):
        assert gateway.ctl("set", key, value)["value"] == value
        assert settings(gateway)[key] == value
    # New connections are made with the receive MTU.
    gateway.ctl("set", "mode", "datagram")
    gateway.ctl("set", "mode", "connected")
    gateway.wait_for("pings and connections in both directions", lambda: ping(gateway.eth, IB_IP, 56, count=1)["ok"]
                     and ping(gateway.ib, ETH_IP, 56, count=1)["ok"] and gateway.ctl("connections").get("established_both_ways"))


@pytest.mark.core
def test_settings_refused(gateway):
    """A wrong value or key is refused with what it may be, and nothing changes."""
    before = settings(gateway)
    for arguments, code, text in ((("receive-mtu", "65521"), 1, "it may be"), (("receive-mtu", "575"), 1, "it may be"),
                                  (("log", "loud"), 1, "it may be"), (("log-filter", "[x{y=(a*)*}]=debug"), 1, "it may be"),
                                  (("lgo", "debug"), 2, "log"), (("idle", ""), 1, "it may be")):
        out = gateway.ctl_text("set", *arguments, check=False)
        assert out.returncode == code, arguments
        assert text in out.stderr, arguments
    assert settings(gateway) == before


def test_log_filter(gateway):
    """One module logs more than the rest."""
    gateway.ctl("set", "log-filter", "")
    gateway.ctl("set", "log", "error")
    before = len(gateway.gateway.text().splitlines())
    gateway.ctl("set", "idle", "poll")
    gateway.ctl("mode", "datagram")
    gateway.ctl("set", "log-filter", "ipoib_fwd::gateway::control::set=info")
    gateway.ctl("mode", "connected")
    gateway.ctl("set", "idle", "pause")
    lines = gateway.gateway.text().splitlines()[before:]
    assert [line.split("set: ")[-1] for line in lines] == [
        "log-filter is ipoib_fwd::gateway::control::set=info", "mode is connected", "idle is pause"]


def test_settings_and_reload(gateway):
    """Settings survive a reload of the same file, and a reload of another one replaces those that the file
    changes."""
    for key, value in (("idle", "pause"), ("log", "debug"), ("log-filter", "endpoint=debug"), ("receive-mtu", 2044)):
        gateway.ctl("set", key, value)
    gateway.ctl("reload")
    now = settings(gateway)
    assert (now["idle"], now["log"], now["receive-mtu"]) == ("pause", "debug", 2044)
    config = gateway.dir / "gateway.toml"
    text = config.read_text()
    config.write_text(text.replace("[gateway]\n", '[gateway]\nlog = "warn"\n', 1).replace('idle = "sleep"', 'idle = "poll"'))
    gateway.ctl("reload")
    now = settings(gateway)
    assert (now["idle"], now["log"], now["log-filter"], now["receive-mtu"]) == ("poll", "warn", "", 2044)


def test_clear(gateway):
    """`since` counts from `clear` on; `stats` and `metrics` never decrease."""
    def received(answer):
        return answer["traffic"]["eth_receive"]["packets"]

    def metric():
        return sum(float(line.split()[-1]) for line in gateway.ctl_text("metrics").stdout.splitlines()
                   if line.startswith("ipoib_fwd_segment_packets_total"))

    assert ping(gateway.eth, IB_IP, 56, count=5)["ok"]
    stats, metric_before = received(gateway.ctl("stats")), metric()
    assert stats >= 5
    assert gateway.ctl("clear") == {"counters": True, "latency": True}
    # Packets that a host happens to send at that moment.
    assert received(gateway.ctl("since")) <= 2
    assert ping(gateway.eth, IB_IP, 56, count=5)["ok"]
    since, after = gateway.ctl("since"), received(gateway.ctl("stats"))
    assert 5 <= received(since) <= after - stats
    assert metric() > metric_before
    assert since["segments"][0]["to_infiniband_packets"] >= 5
    of_segment = gateway.ctl("since", "default")
    total = gateway.ctl("stats", "default")["traffic"]["to_infiniband"]["packets"]
    assert of_segment["segment"] == "default"
    packets = of_segment["traffic"]["to_infiniband"]["packets"]
    assert 5 <= packets <= total - 5
    assert packets == sum(row["to_infiniband_packets"] for row in of_segment["workers"])
    gateway.ctl("clear", "latency")
    last = gateway.ctl("since")
    assert received(last) >= received(since)
    assert last["for_ms"]["latency"] < last["for_ms"]["counters"]


def test_losses_of_port(gateway, figures):
    """While the gateway is stopped the ring of its port fills up: what the kernel drops is counted, once, and
    the gateway continues."""
    def missed():
        return gateway.ctl("links")["ethernet"]["losses"]["missed"]

    assert ping(gateway.eth, IB_IP, 56, count=1)["ok"]
    before, received = missed(), traffic(gateway)["eth_receive"]["packets"]
    gateway.gateway.popen.send_signal(signal.SIGSTOP)
    try:
        out = run("ping", "-n", "-q", "-l", FLOOD, "-c", FLOOD, "-W", 1, IB_IP, netns=gateway.eth, check=False).stdout
    finally:
        gateway.gateway.popen.send_signal(signal.SIGCONT)
    sent = int(re.search(r"(\d+) packets transmitted", out)[1])
    assert sent > RING + 500, out
    # The packets that fit into the ring have arrived.
    gateway.wait_for("the ring's frames", lambda: traffic(gateway)["eth_receive"]["packets"] >= received + RING - 100)
    lost = missed() - before
    figures(sent=sent, lost=lost)
    assert sent - RING - 100 <= lost <= sent
    assert missed() - before == lost
    metric = [float(line.split()[-1]) for line in gateway.ctl_text("metrics").stdout.splitlines()
              if line.startswith("ipoib_fwd_ethernet_port_losses_total") and 'reason="missed"' in line]
    assert metric == [before + lost]
    assert ping(gateway.eth, IB_IP, 56, count=5)["ok"]


SCRIPT = "dpdk-telemetry.py"


def telemetry(prefix, *requests, **environment):
    """The answers that DPDK's own script prints for a file prefix."""
    out = subprocess.run([SCRIPT, "-f", prefix], input="".join(f"{r}\n" for r in requests) + "quit\n", text=True,
                         capture_output=True, timeout=DEADLINE, env={**os.environ, **environment}, check=False)
    assert out.returncode == 0, out.stderr[-800:]
    return [json.loads(line) for line in out.stdout.splitlines()]


def test_dpdk_telemetry_script(start):
    """DPDK's own script talks to the gateway's control socket, and to EAL's for DPDK's commands."""
    if not shutil.which(SCRIPT):
        if os.environ.get("CI"):
            pytest.fail(f"there is no {SCRIPT}")
        pytest.skip(f"there is no {SCRIPT}")
    gateway = start()
    folder = gateway.dir / "dpdk/ours"
    folder.mkdir(parents=True)
    (folder / "dpdk_telemetry.v2").symlink_to(gateway.socket)
    requests = {"/": "/", "/help,stats": "/help", "/stats": "/stats", "/links": "/links", "/neighbours": "/neighbours",
                "/mode,connected": "/mode", "/nonsense": "/nonsense"}
    answers = telemetry("ours", *requests, RUNTIME_DIRECTORY=str(gateway.dir))
    assert [name for name, answer in zip(requests.values(), answers, strict=True) if name not in answer] == []
    assert "/events" in answers[0]["/"]
    assert "traffic" in answers[2]["/stats"]
    assert answers[-1]["/nonsense"] is None
    _, ports, stats, _ = telemetry(gateway.tag, "/", "/ethdev/list", "/ethdev/stats,0", "/eal/params")
    assert ports["/ethdev/list"] == [0]
    assert stats["/ethdev/stats"]["ipackets"] > 0
