"""The program ibcrowd beside a topology: many InfiniBand hosts on a port of its fabric, and what it tells."""

import contextlib
import json
import subprocess

from testbed.programs import TestbedError


def link(lab):
    """The port, for the fabric's configuration."""
    return f'\n[[link]]\nname = "crowd"\nurl = "shm:{lab.dir}/crowd.sock"\n'


class Crowd:
    """One of them. `first` is the address of the first host, `target` the one that all ask the gateway for; `programs` is where it is, if
    not with the topology's."""

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
        """All hosts are gone, without a word."""
        self.popen.kill()
        self.popen.wait()

    def order(self, word):
        # Why it has ended, if it has, is told where its answer is waited for.
        with contextlib.suppress(BrokenPipeError):
            print(word, file=self.popen.stdin, flush=True)

    def told(self, *stages):
        """What it tells next, which is to be of one of these stages."""
        line = self.popen.stdout.readline()
        if not line:
            counted = {k: v for k, v in self.lab.ctl("links")["link_counters"].items() if v}
            drops = self.lab.ctl("stats")["drops"]
            raise TestbedError(f"{self.log.read_text(errors='replace')[-2000:].strip()}; the gateway dropped {drops}, counted {counted}")
        told = json.loads(line)
        if told["stage"] not in stages:
            raise TestbedError(f"ibcrowd is at {told}, not {' or '.join(stages)}")
        return told
