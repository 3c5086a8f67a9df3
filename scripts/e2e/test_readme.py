"""README's own commands: what a newcomer should type works, on a host of its own."""

import re
from pathlib import Path

import pytest
from testbed.programs import run

pytestmark = pytest.mark.netns

README = Path(__file__).parents[2] / "README.md"
# A newcomer waits until the log says so.
READY = """
for _ in $(seq 600); do
    ipoib-fwd ctl links --json 2>/dev/null | grep -q '"role": *"forwarding"' && break
    sleep 0.2
done
"""


def commands():
    """The lines of the first block of shell that starts the fabric."""
    blocks = re.findall(r"```sh\n(.*?)```", README.read_text(), re.S)
    block = next(block for block in blocks if "ibfab --config" in block)
    return [line for line in (re.sub(r"\s+#.*", "", line) for line in block.splitlines()) if line]


def typed(line, programs):
    """A command as this test types it: without the installation and the build, and with an end for what would
    run for ever."""
    if line.startswith("scripts/setup && cargo build --release"):
        return f"export PATH={programs}:$PATH"
    if " ping " in line:
        return READY + line.replace(" ping ", " ping -c 1 -W 60 ")
    if line.endswith(("--watch", " metrics")):
        return f"timeout 1 {line} || [ $? = 124 ]"
    if line.endswith(" top"):
        return f"{line} --once"
    return line


def test_commands_of_the_readme(programs):
    lines = commands()
    assert any(" ping " in line for line in lines)
    script = "\n".join(["set -e", "mount -t tmpfs none /run", "ip link set lo up", *(typed(line, programs) for line in lines)])
    # Networks, /run and processes of its own: all are gone with it.
    done = run("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "bash", "-c", script,
               check=False, timeout=300, cwd=README.parent)
    assert done.returncode == 0, (done.stdout + done.stderr)[-2000:]
    assert "1 packets transmitted, 1 received" in done.stdout
