"""What monitoring systems see of a gateway: its figures over HTTP, judged by promtool; a real Prometheus that asks for them, and whose
alert fires; rules and dashboard, which name nothing that there is not; figures of a subnet whose administration is silent."""

import json
import re
import shutil
import signal
import socket
import time
import urllib.error
import urllib.request
from pathlib import Path

from checks.laboratory import Failed, left_out
from stage.lab import ETH, IB_IP
from stage.programs import Process, run
from stage.traffic import ping

MONITORING = Path(__file__).parents[2] / "packaging/monitoring"
TOOLS = Path(__file__).parents[2] / "target/tools/usr/bin"
OPEN_METRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
PACKETS = "ipoib_fwd_segment_packets_total"
SAMPLE = re.compile(r'^(\w+)(?:\{(.*)\})? (\S+)$')


def tool(name):
    unpacked = TOOLS / name
    return str(unpacked) if unpacked.exists() else shutil.which(name)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def get(port, path="/metrics", accept="*/*"):
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers={"Accept": accept})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers["Content-Type"], error.read().decode()


def samples(text):
    """Figures by name and labels."""
    found = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, labels, value = SAMPLE.match(line).groups()
            found[name, labels or ""] = float(value)
    return found


def total(figures, name, word):
    return sum(value for (n, labels), value in figures.items() if n == name and word in labels)


class Exporter:
    """ipoib-fwd metrics, for a gateway's control socket."""

    def __init__(self, lab, path="control.sock", port=None):
        self.port = port or free_port()
        line = [lab.bin / "ipoib-fwd", "metrics", "--listen", f"127.0.0.1:{self.port}", "--socket", lab.dir / path]
        self.process = Process("metrics", line, None, lab.dir / f"metrics-{self.port}.log")
        end = time.monotonic() + 10
        while "at http://" not in self.process.text():
            if time.monotonic() > end or not self.process.alive():
                raise Failed(f"metrics: {self.process.text()}")
            time.sleep(0.02)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stop()


def check_figures(lab):
    """Served, whole, and true: what a ping adds is what ctl stats adds; without a gateway it says so."""
    wrong = []
    with Exporter(lab) as exporter, Exporter(lab, "nobody.sock") as lonely:
        status, kind, text = get(exporter.port, accept="application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5")
        before = samples(text)
        if (status, kind) != (200, OPEN_METRICS) or not text.endswith("# EOF\n"):
            wrong.append(f"{status} {kind} {text[-40:]!r}")
        status, kind, text = get(exporter.port)
        if (status, kind) != (200, PROMETHEUS) or "EOF" in text or samples(text).keys() != before.keys():
            wrong.append(f"{status} {kind} {text[-40:]!r}")
        if not ping(ETH, IB_IP, 56, count=20)["ok"]:
            wrong.append("no ping")
        after, stats = samples(get(exporter.port)[2]), lab.ctl("stats")
        grown_by = lambda name, word: total(after, name, word) - total(before, name, word)
        if grown_by(PACKETS, "to_infiniband") < 20:
            wrong.append(f"20 pings are {grown_by(PACKETS, 'to_infiniband')} packets")
        for path, counted in stats["traffic"].items():
            if total(after, "ipoib_fwd_worker_packets_total", f'path="{path}"') > counted["packets"]:
                wrong.append(f"{path}: more than {counted}")
        # Each ping is a frame of 98 bytes each way.
        for direction in ("receive", "transmit"):
            moved = {what: grown_by(f"ipoib_fwd_ethernet_port_{what}_total", f'direction="{direction}"') for what in ("packets", "bytes")}
            if moved["packets"] < 20 or moved["bytes"] < 20 * 98:
                wrong.append(f"{direction}: 20 pings are {moved} of the port")
        links, last = lab.ctl("links"), samples(get(exporter.port)[2])
        for counter, n in links["link_counters"].items():
            figure = f"ipoib_fwd_segment_link_{counter}_total", 'segment="default"'
            if not after.get(figure, n + 1) <= n <= last.get(figure, -1):
                wrong.append(f"{figure}: {after.get(figure)}, {n} of ctl links, {last.get(figure)}")
        forwarding = total(after, "ipoib_fwd_segment_role", 'role="forwarding"')
        if forwarding != 1 or total(after, "ipoib_fwd_segment_connections", "outgoing") < 1:
            wrong.append("role or connections")
        started = total(after, "ipoib_fwd_start_time_seconds", "")
        if not time.time() - 3600 < started <= time.time() or started != total(before, "ipoib_fwd_start_time_seconds", ""):
            wrong.append(f"started at {started}")
        # It is alone.
        if {labels: n for (name, labels), n in after.items() if name == "ipoib_fwd_segment_peers"} != {
                'segment="default",heard="both"': 0, 'segment="default",heard="one"': 0}:
            wrong.append("other gateways")
        # The same by the control socket, as text.
        if "# TYPE ipoib_fwd_drops counter" not in lab.ask("metrics").stdout:
            wrong.append("ctl metrics")
        status, _, text = get(lonely.port)
        if status != 503 or "nobody.sock" not in text:
            wrong.append(f"without a gateway: {status} {text}")
    return {"ok": not wrong, "series": len(after), "wrong": wrong}


def check_silence(lab):
    """Where nobody answers for the subnet while the link is up, the figures say so, with which the alert fires."""
    timeouts = "ipoib_fwd_segment_link_sa_timeouts_total"
    with Exporter(lab) as exporter:
        ask = lambda name: total(samples(get(exporter.port)[2]), name, 'segment="default"')
        before, begin = ask(timeouts), time.monotonic()
        lab.fabric.popen.send_signal(signal.SIGSTOP)
        try:
            def silent():
                ping(ETH, IB_IP, 56, count=1)
                return ask(timeouts) > before

            lab.wait_for("a request that nobody answers", silent, 60)
            up, took = ask("ipoib_fwd_segment_up"), time.monotonic() - begin
        finally:
            lab.fabric.popen.send_signal(signal.SIGCONT)
        lab.wait_for("pings again", lambda: ping(ETH, IB_IP, 56, count=1)["ok"], 30)
        return {"ok": up == 1, "up": up, "timeouts": ask(timeouts) - before, "after": round(took, 1)}


def check_named(lab):
    """Rules and dashboard name figures that there are; promtool finds nothing wrong with figures and rules."""
    wrong = []
    with Exporter(lab) as exporter:
        text = get(exporter.port)[2]
    families = set(re.findall(r"^# TYPE (\w+) ", text, re.M))
    for file in ("alerts.yml", "dashboard.json"):
        for name in set(re.findall(r"\bipoib_fwd_\w+", (MONITORING / file).read_text())):
            if name not in families:
                wrong.append(f"{file}: {name}")
    json.loads((MONITORING / "dashboard.json").read_text())
    promtool = tool("promtool")
    if promtool is None:
        without = left_out("there is no promtool here")
        return {**without, "ok": without["ok"] and not wrong, "wrong": wrong}
    judged = run(promtool, "check", "metrics", input=text, check=False)
    if judged.returncode:
        wrong.append(f"promtool check metrics: {(judged.stdout + judged.stderr)[-600:]}")
    for words in (("check", "rules", MONITORING / "alerts.yml"), ("test", "rules", MONITORING / "alerts.test.yml")):
        judged = run(promtool, *words, check=False)
        if judged.returncode:
            wrong.append(f"promtool {words[0]} rules: {(judged.stdout + judged.stderr)[-600:]}")
    return {"ok": not wrong, "families": len(families), "wrong": wrong}


def check_scraped(lab):
    """A real Prometheus scrapes it, and fires when the figures are gone."""
    prometheus = tool("prometheus")
    if prometheus is None:
        return left_out("there is no prometheus here")
    with Exporter(lab) as exporter:
        port, folder = free_port(), lab.dir / "prometheus"
        folder.mkdir()
        rules = (MONITORING / "alerts.yml").read_text().replace("for: 1m", "for: 5s")
        (folder / "alerts.yml").write_text(rules)
        # Nobody waits for a minute here.
        config = "global: {scrape_interval: 1s, evaluation_interval: 1s}\n" + (MONITORING / "prometheus.yml").read_text()
        (folder / "prometheus.yml").write_text(config.replace("localhost:9847", f"127.0.0.1:{exporter.port}"))
        server = Process("prometheus", [prometheus, f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
                                        f"--web.listen-address=127.0.0.1:{port}"], None, folder / "log")
        try:
            def asked(path):
                try:
                    return json.loads(get(port, path)[2])["data"]
                except (OSError, ValueError, KeyError):
                    return {}

            def forwarding():
                found = asked("/api/v1/query?query=ipoib_fwd_segment_role%7Brole%3D%22forwarding%22%7D").get("result") or []
                return found and found[0]["value"][1] == "1"

            def fires(name):
                return [a for a in asked("/api/v1/alerts").get("alerts", ()) if a["labels"]["alertname"] == name and a["state"] == "firing"]

            lab.wait_for("Prometheus to know who forwards", forwarding, 60)
            early = fires("GatewayGone")
            exporter.process.stop()
            lab.wait_for("the alert", lambda: fires("GatewayGone"), 60)
            return {"ok": not early, "fired": fires("GatewayGone")[0]["annotations"]["summary"]}
        except Failed as error:
            raise Failed(f"{error}\n{server.text()[-1500:]}") from None
        finally:
            server.stop()
