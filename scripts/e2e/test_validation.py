"""One validation: what `--check` refuses the start refuses in the same words, before EAL starts; what is
within the bounds starts."""

import os
import pwd
import subprocess

import pytest
from testbed.programs import DEADLINE, run

pytestmark = [pytest.mark.netns, pytest.mark.core]

CABLE = 'ports = [{ link = "udp:127.0.0.1:0-127.0.0.1:9" }]'
BASE = f"""\
[gateway]
control-socket = ""
[infiniband]
srq-depth = 32
receive-mtu = 2040
[infiniband.soft]
{CABLE}
"""
NULL = "net_null0"


def config(gateway="", infiniband="", more="", base=BASE):
    text = base.replace("[gateway]\n", f"[gateway]\n{gateway}", 1)
    return text.replace("[infiniband]\n", f"[infiniband]\n{infiniband}", 1) + more


def line(program, path, vdev=NULL, eal=(), own=()):
    name = f"val{os.getpid()}"
    return [program, "-l", "0-1", "--no-pci", "--no-huge", "--no-shconf", "-m", "512", "--file-prefix", name, *eal, "--vdev", vdev,
            "--", *own, "--config", path]


# name -> (the wrong configuration, the port, more arguments of EAL, the location, the message, the
# configuration at the bound)
BOUNDS = {
    "max-connections": (config(infiniband="max-connections = 65535\n"), NULL, (), "4:1",
                        "room for 8064 connections with 1 worker, and max-connections = 65535",
                        config(infiniband="max-connections = 8064\n")),
    "ud-send-depth": (config(infiniband="ud-send-depth = 32768\n"), NULL, (), "4:1", "the limit of 16384 of a software ConnectX",
                      config(infiniband="ud-send-depth = 16384\n")),
    "ud-receive-depth": (config(infiniband="ud-receive-depth = 32768\n"), NULL, (), "4:1", "the limit of 32767 of a software ConnectX",
                         config(infiniband="ud-receive-depth = 32767\n")),
    "srq-depth": (BASE.replace("srq-depth = 32", "srq-depth = 32768"), NULL, (), "4:1", "the limit of 32767 of a software ConnectX",
                  BASE.replace("srq-depth = 32", "srq-depth = 32767")),
    "mtu_null": (config(more="[ethernet]\nmtu = 9000\n"), NULL, (), "9:1", "up to 4074 bytes", config(more="[ethernet]\nmtu = 4074\n")),
    "mtu_tap": (config(more="[ethernet]\nmtu = 9000\n"), "net_tap0", (), "9:1", "up to 1504 bytes",
                config(more="[ethernet]\nmtu = 1504\n")),
    "mtu_pcap": (config(more="[ethernet]\nmtu = 9000\n"), "net_pcap0,iface=lo", (), "9:1", "up to 4074 bytes", None),
    "device": (BASE, NULL, ("-a", "zz"), "command line", "zz is not a device", None),
    "framesz": (BASE, "net_af_packet0,iface=lo,framesz=8192,blocksz=65536", (), "command line", "framesz=8192 do not fit", None),
    "blocksz": (BASE, "net_af_packet0,iface=lo,framesz=4096,blocksz=2048", (), "command line", "blocksz=2048", None),
    "gids_directory": (config(gateway='gids = "DIR/none/gids"\n'), NULL, (), "2:1", "there is no directory", None),
    "gids_is_directory": (config(gateway='gids = "DIR"\n'), NULL, (), "2:1", "is a directory", None),
    "control_socket": (BASE.replace('""', '"DIR/none/sock"'), NULL, (), "2:1", "there is no directory", None),
}


@pytest.fixture
def program(programs):
    return programs / "ipoib-fwd"


def refused(argv, place, said):
    """`--check` and the start exit with 1, and both say the same about the same place."""
    split = argv.index("--") + 1
    checked = run(*argv[:split], "--check", *argv[split:], check=False)
    assert checked.returncode == 1, checked.stdout
    assert "error[" in checked.stdout
    assert said in checked.stdout
    started = run(*argv, check=False)
    errors = [text for text in started.stderr.splitlines() if text.startswith("ipoib-fwd: ")]
    assert started.returncode == 1, started.stderr
    assert len(errors) == 1, started.stderr
    assert said in errors[0]
    assert place in errors[0]
    others = checked.stdout.count("error[") - 1
    assert ("--check lists" in errors[0]) == (others > 0), (errors, checked.stdout)
    assert "EAL:" not in started.stderr


def starts(argv, **environment):
    """Returns the messages of the gateway until it forwards, and stops it."""
    argv, env = [str(a) for a in argv], {**os.environ, **environment}
    gateway = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env)
    lines = []
    try:
        for text in gateway.stdout:
            lines.append(text)
            if "forwarding between" in text:
                break
        else:
            raise AssertionError("".join(lines))
    finally:
        gateway.terminate()
        gateway.stdout.read()
        gateway.wait(DEADLINE)
    return "".join(lines)


@pytest.mark.parametrize("name", BOUNDS)
def test_bound(program, tmp_path, name):
    wrong, vdev, eal, place, said, right = BOUNDS[name]
    path = tmp_path / "gateway.toml"
    path.write_text(wrong.replace("DIR", str(tmp_path)))
    place = place if place == "command line" else f"gateway.toml:{place}"
    refused(line(program, path, vdev, eal), place, said)
    if right is not None:
        path.write_text(right)
        starts(line(program, path, vdev, eal))


@pytest.mark.parametrize("kind", ["socket", "captures"])
def test_closed_to_later_user(program, tmp_path, kind):
    """A file that root can use, but not the later user of the gateway."""
    os.chmod(tmp_path, 0o700)
    nobody = pwd.getpwnam("nobody").pw_name
    (tmp_path / "fabric.sock").touch()
    soft = BASE.replace("udp:127.0.0.1:0-127.0.0.1:9", f"shm:{tmp_path}/fabric.sock") if kind == "socket" else BASE
    gateway = f'user = "{nobody}"\n' + (f'captures = "{tmp_path}"\n' if kind == "captures" else "")
    path = tmp_path / "gateway.toml"
    path.write_text(config(gateway=gateway, base=soft))
    place = "gateway.toml:8:1" if kind == "socket" else "gateway.toml:3:1"
    refused(line(program, path), place, f"user {nobody} cannot ")


def test_keys_without_effect(program, tmp_path):
    """The check warns, the log of the start does, and the gateway starts."""
    path = tmp_path / "gateway.toml"
    path.write_text(config(infiniband='mode = "datagram"\nretry-count = 3\n'))
    argv = line(program, path)
    split = argv.index("--") + 1
    checked = run(*argv[:split], "--check", *argv[split:], check=False)
    assert "warning[key-unused]: infiniband.retry-count has no effect" in checked.stdout
    assert "gateway.toml:5:1: infiniband.retry-count has no effect" in starts(argv)


def test_empty_values(program, tmp_path):
    """An empty control socket is none; a filter of the log that says nothing is named, and the log goes
    on."""
    path = tmp_path / "gateway.toml"
    path.write_text(BASE.replace('""', '"/proc/version"'))
    checked = run(*line(program, path, own=("--check", "--control-socket", "")), check=False)
    assert "control-socket" not in checked.stdout + checked.stderr
    path.write_text(BASE)
    for given in ("", "infoo"):
        assert f'IPOIB_FWD_LOG="{given}"' in starts(line(program, path), IPOIB_FWD_LOG=given)
