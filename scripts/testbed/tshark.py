"""Captures as tshark reads them."""

from testbed.programs import TestbedError, run
from testbed.transfer import FILE_PORT


def tshark(path, *options):
    """The lines that tshark prints for a capture."""
    # The contents of a transferred file are no protocol.
    out = run("tshark", "-n", "-r", path, "-d", f"tcp.port=={FILE_PORT},data", *options, check=False)
    if out.returncode:
        raise TestbedError(f"tshark: {out.stderr.strip()[-500:]}")
    return out.stdout.splitlines()


def table(path, condition, *fields):
    """Fields of the packets that a display filter selects: a dictionary a packet, with the first occurrence
    of each field."""
    options = [option for field in fields for option in ("-e", field)]
    return [dict(zip(fields, line.split("\t"))) for line in
            tshark(path, "-Y", condition, "-T", "fields", "-E", "occurrence=f", *options)]


def frame_numbers(path, condition=""):
    """The numbers of the packets that a display filter selects; of all without one."""
    return [int(line) for line in tshark(path, *(("-Y", condition) if condition else ()), "-T", "fields", "-e", "frame.number")]


def malformed(path):
    """Packets that tshark cannot dissect: number and protocols of each."""
    return tshark(path, "-Y", "_ws.malformed", "-T", "fields", "-e", "frame.number", "-e", "frame.protocols")
