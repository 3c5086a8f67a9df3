"""README's own words: what it tells a newcomer to type is typed, on a machine of its own."""

import re
from pathlib import Path

from checks.laboratory import Failed
from stage.programs import run

README = Path(__file__).parents[2] / "README.md"

# A newcomer waits until the log says so.
READY = """
for _ in $(seq 150); do
    ipoib-fwd ctl links --json 2>/dev/null | grep -q '"role": *"forwarding"' && break
    sleep 0.2
done
"""


def commands(section):
    """The lines of a section's first block of shell."""
    text = README.read_text().split(f"\n## {section}\n", 1)[1]
    block = re.search(r"```sh\n(.*?)```", text, re.S)[1]
    return [line for line in (re.sub(r"\s+#.*", "", line) for line in block.splitlines()) if line]


def typed(line, programs):
    """A command as this check types it: what is installed and built already, and what would run for ever, is cut short."""
    if line.startswith("scripts/setup && cargo build --release && "):
        return f"export PATH={programs}:$PATH"
    if " ping " in line:
        return READY + line.replace(" ping ", " ping -c 1 -W 5 ")
    if line.endswith(("--watch", " metrics")):
        return f"timeout 1 {line} || [ $? = 124 ]"
    if line.endswith(" top"):
        return f"{line} --once"
    return line


def check_running_it(args):
    lines = commands("Running it")
    programs = Path(args.bin).resolve()
    script = "\n".join(["set -e", "mount -t tmpfs none /run", "ip link set lo up", *(typed(line, programs) for line in lines)])
    # Its own networks, /run and processes: all are gone with it.
    done = run("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "bash", "-c", script,
               check=False, timeout=120, cwd=README.parent)
    received = re.search(r"1 packets transmitted, (\d) received", done.stdout)
    ok = done.returncode == 0 and received is not None and received[1] == "1"
    return {"ok": ok, "commands": len(lines), "received": received and int(received[1]),
            **({} if ok else {"code": done.returncode, "said": (done.stdout + done.stderr)[-2000:]})}


def readme(args, checks):
    if not README.exists():
        raise Failed("README.md is not there")
    checks.run("readme_running_it", lambda: check_running_it(args))
