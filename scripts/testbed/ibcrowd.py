"""Runs the program ibcrowd, which simulates many InfiniBand hosts on a port of a topology's fabric, and reads
its reports."""

import contextlib
import json
import subprocess

from testbed.programs import TestbedError


def link(lab):
    """The entry of the port in the fabric's configuration."""
    return f'\n[[link]]\nname = "crowd"\nurl = "shm:{lab.dir}/crowd.sock"\n'


class Crowd:
    """A running ibcrowd.

    `first` is the address of the first host. All hosts query the gateway for `target`. `programs` is the
    directory of ibcrowd, if it is
    not that of the topology's programs."""

    def __init__(self, lab, hosts, first, target, *more, programs=None):
        links = lab.ctl("links")["infiniband"]
        self.lab, self.log = lab, lab.dir / "crowd.log"
        line = [(programs or lab.bin) / "ibcrowd", "--link", f"shm:{lab.dir}/crowd.sock", "--hosts", hosts, "--first", first,
                "--target", target, "--gateway", links["addresses"].split(" ")[0], "--gateway-lid", links["lid"], *more]
        with open(self.log, "wb") as errors:
            self.popen = subprocess.Popen([str(word) for word in line], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
                                          text=True, start_new_session=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with contextlib.suppress(BrokenPipeError):
            self.popen.stdin.close()
        try:
            self.popen.wait(5)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self):
        """All hosts disappear without closing their connections."""
        self.popen.kill()
        self.popen.wait()

    def order(self, word):
        # If ibcrowd has exited, `report` raises the reason.
        with contextlib.suppress(BrokenPipeError):
            print(word, file=self.popen.stdin, flush=True)

    def report(self, *stages):
        """Reads the next report, which must be of one of these stages."""
        line = self.popen.stdout.readline()
        if not line:
            counted = {k: v for k, v in self.lab.ctl("links")["link_counters"].items() if v}
            drops = self.lab.ctl("stats")["drops"]
            raise TestbedError(f"{self.log.read_text(errors='replace')[-2000:].strip()}; the gateway dropped {drops}, counted {counted}")
        report = json.loads(line)
        if report["stage"] not in stages:
            raise TestbedError(f"ibcrowd is at {report}, not {' or '.join(stages)}")
        return report
