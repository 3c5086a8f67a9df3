"""Metrics of a gateway over HTTP, judged by promtool and scraped by Prometheus; rules and dashboard."""

import json
import os
import pathlib
import re
import shutil
import signal
import time

import pytest
from testbed.exporter import Exporter, free_port, get, samples, total
from testbed.programs import Process, TestbedError, run
from testbed.topology import IB_IP
from testbed.traffic import ping

pytestmark = pytest.mark.netns

ROOT = pathlib.Path(__file__).parents[2]
MONITORING = ROOT / "packaging/monitoring"
# Where the tools of a package lie that was unpacked and not installed.
TOOLS = ROOT / "target/tools/usr/bin"
ACCEPT_OPEN_METRICS = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
OPEN_METRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
SA_TIMEOUTS = "ipoib_fwd_segment_link_sa_timeouts_total"


def tool(name):
    """The path of one of Prometheus's tools. Without it the test is skipped, and fails in CI."""
    unpacked = TOOLS / name
    path = str(unpacked) if unpacked.exists() else shutil.which(name)
    if path is None:
        if os.environ.get("CI"):
            pytest.fail(f"there is no {name}")
        pytest.skip(f"there is no {name}")
    return path


@pytest.mark.core
def test_values(gateway, figures):
    """The exporter serves both formats, and its values are those of the control socket: a ping counts in
    both."""
    with Exporter(gateway) as exporter:
        status, kind, text = get(exporter.port, accept=ACCEPT_OPEN_METRICS)
        before = samples(text)
        assert (status, kind, text[-6:]) == (200, OPEN_METRICS, "# EOF\n")
        status, kind, text = get(exporter.port)
        assert (status, kind) == (200, PROMETHEUS)
        assert "EOF" not in text
        assert samples(text).keys() == before.keys()
        assert ping(gateway.eth, IB_IP, 56, count=20)["ok"]
        after, stats = exporter.values(), gateway.ctl("stats")
        figures(series=len(after))

        def growth(name, label):
            return total(after, name, label) - total(before, name, label)

        assert growth("ipoib_fwd_segment_packets_total", "to_infiniband") >= 20
        # Each ping is a frame of 98 bytes in each direction.
        for direction in ("receive", "transmit"):
            assert growth("ipoib_fwd_ethernet_port_packets_total", f'direction="{direction}"') >= 20, direction
            assert growth("ipoib_fwd_ethernet_port_bytes_total", f'direction="{direction}"') >= 20 * 98, direction
        # Values scraped first are at most those that the control socket reports later.
        for path, counted in stats["traffic"].items():
            assert total(after, "ipoib_fwd_worker_packets_total", f'path="{path}"') <= counted["packets"], path
        links, last = gateway.ctl("links"), exporter.values()
        for counter, value in links["link_counters"].items():
            metric = f"ipoib_fwd_segment_link_{counter}_total", 'segment="default"'
            assert after[metric] <= value <= last[metric], counter
        assert total(after, "ipoib_fwd_segment_role", 'role="forwarding"') == 1
        assert total(after, "ipoib_fwd_segment_connections", "outgoing") >= 1
        started = total(after, "ipoib_fwd_start_time_seconds", "")
        assert time.time() - 3600 < started <= time.time()
        assert started == total(before, "ipoib_fwd_start_time_seconds", "")
        # There is no other gateway.
        peers = {labels: value for (name, labels), value in after.items() if name == "ipoib_fwd_segment_peers"}
        assert peers == {'segment="default",heard="both"': 0, 'segment="default",heard="one"': 0}
    # The same as text over the control socket.
    assert "# TYPE ipoib_fwd_drops counter" in gateway.ctl_text("metrics").stdout


def test_exporter_without_gateway(start):
    """An exporter without a gateway says which socket does not answer."""
    topology = start(up=False)
    with Exporter(topology) as exporter:
        status, _, text = get(exporter.port)
    assert status == 503
    assert str(topology.socket) in text


def test_names_in_rules_and_dashboard(gateway, figures):
    """Rules and dashboard use only metrics that exist."""
    with Exporter(gateway) as exporter:
        text = get(exporter.port)[2]
    families = set(re.findall(r"^# TYPE (\w+) ", text, re.M))
    figures(families=len(families))
    for file in ("alerts.yml", "dashboard.json"):
        used = set(re.findall(r"\bipoib_fwd_\w+", (MONITORING / file).read_text()))
        assert used, file
        assert used - families == set(), file
    json.loads((MONITORING / "dashboard.json").read_text())


def test_promtool_accepts_metrics(start):
    promtool = tool("promtool")
    with Exporter(start()) as exporter:
        text = get(exporter.port)[2]
    judged = run(promtool, "check", "metrics", input=text, check=False)
    assert judged.returncode == 0, judged.stdout + judged.stderr


@pytest.mark.parametrize("arguments", [("check", "rules", "alerts.yml"), ("test", "rules", "alerts.test.yml")], ids=lambda a: a[0])
def test_promtool_accepts_rules(arguments):
    *command, file = arguments
    judged = run(tool("promtool"), *command, MONITORING / file, check=False)
    assert judged.returncode == 0, judged.stdout + judged.stderr


@pytest.mark.slow
def test_prometheus_scrapes_and_alerts(start, figures):
    """Prometheus scrapes the exporter; when that is gone the alert fires."""
    prometheus = tool("prometheus")
    gateway = start()
    with Exporter(gateway) as exporter:
        port, folder = free_port(), gateway.dir / "prometheus"
        folder.mkdir()
        (folder / "alerts.yml").write_text((MONITORING / "alerts.yml").read_text().replace("for: 1m", "for: 5s"))
        config = "global: {scrape_interval: 1s, evaluation_interval: 1s}\n" + (MONITORING / "prometheus.yml").read_text()
        (folder / "prometheus.yml").write_text(config.replace("localhost:9847", f"127.0.0.1:{exporter.port}"))
        server = Process("prometheus", [prometheus, f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
                                        f"--web.listen-address=127.0.0.1:{port}"], None, folder / "log")

        def query(path):
            try:
                return json.loads(get(port, path)[2])["data"]
            except (OSError, ValueError, KeyError):
                return {}

        def forwarding():
            found = query("/api/v1/query?query=ipoib_fwd_segment_role%7Brole%3D%22forwarding%22%7D").get("result") or []
            return found and found[0]["value"][1] == "1"

        def firing():
            return [a["annotations"]["summary"] for a in query("/api/v1/alerts").get("alerts", ())
                    if a["labels"]["alertname"] == "GatewayGone" and a["state"] == "firing"]

        try:
            gateway.wait_for("Prometheus to know which gateway forwards", forwarding)
            assert firing() == []
            exporter.process.stop()
            figures(fired=gateway.wait_for("the alert", firing))
        except TestbedError as error:
            raise TestbedError(f"{error}\n{server.text()[-1500:]}") from None
        finally:
            server.stop()


def test_silent_subnet_administration(gateway):
    """Where subnet administration does not answer while the link is up, the metrics say so; an alert is made
    from them."""
    with Exporter(gateway) as exporter:
        def value(name):
            return total(exporter.values(), name, 'segment="default"')

        def silent():
            ping(gateway.eth, IB_IP, 56, count=1)
            return value(SA_TIMEOUTS) > before

        before = value(SA_TIMEOUTS)
        gateway.fabric.popen.send_signal(signal.SIGSTOP)
        try:
            gateway.wait_for("a request without an answer", silent)
            up = value("ipoib_fwd_segment_up")
        finally:
            gateway.fabric.popen.send_signal(signal.SIGCONT)
        assert up == 1
        gateway.wait_for("a ping", lambda: ping(gateway.eth, IB_IP, 56, count=1)["ok"])
