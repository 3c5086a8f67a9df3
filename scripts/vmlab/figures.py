"""Prints the measurements of parts of `scripts/lab` as a table, and writes them as JSON.

    figures.py FILE [JSON [DEVICE...]]

FILE has lines `figure NAME DEVICE VALUE UNIT`, one per round. A ratio is the median of the first device
divided by that of another device. LAB_GUEST_CPUS: number of processors of the measured virtual machine.
"""

import json
import os
import statistics
import sys

DEVICES = ("softhca", "soft-roce")


def read(path):
    """Returns {name: (unit, {device: [value]})} in the order of the file."""
    measurements = {}
    with open(path, encoding="utf-8") as file:
        for line in file:
            fields = line.split()
            if len(fields) == 5 and fields[0] == "figure":
                _, name, device, value, unit = fields
                measurements.setdefault(name, (unit, {}))[1].setdefault(device, []).append(float(value))
    return measurements


def spread(values):
    return {"min": min(values), "median": statistics.median(values), "max": max(values), "rounds": len(values)}


def result(name, unit, values, devices):
    entry = {"name": name, "unit": unit}
    entry.update({device: spread(values[device]) if device in values else None for device in devices})
    ours, *others = devices
    ratios = {device: ratio(entry[ours], entry[device]) for device in others}
    entry.update({"ratio": ratios[others[0]]} if len(others) == 1 else {"ratios": ratios})
    return entry


def ratio(ours, theirs):
    return round(ours["median"] / theirs["median"], 3) if ours and theirs and theirs["median"] else None


def cell(values):
    return "{min:.4g} / {median:.4g} / {max:.4g}".format(**values) if values else "-"


def ratio_cell(entry):
    ratios = entry["ratios"].values() if "ratios" in entry else [entry["ratio"]]
    return " / ".join(str(r or "-") for r in ratios)


def main():
    devices = tuple(sys.argv[3:]) or DEVICES
    results = [result(name, unit, values, devices) for name, (unit, values) in read(sys.argv[1]).items()]
    if not results:
        sys.exit("lab: no measurements")
    guest = os.environ.get("LAB_GUEST_CPUS")
    machine = f"{len(os.sched_getaffinity(0))} processors, Linux {os.uname().release}, QEMU without KVM"
    machine += f", {guest} processor(s) in the virtual machine" if guest else ""
    rows = [("name", "unit", *(f"{device}: min / median / max" for device in devices), "ratio")]
    rows += [(r["name"], r["unit"], *(cell(r[device]) for device in devices), ratio_cell(r)) for r in results]
    widths = [max(map(len, column)) for column in zip(*rows)]
    print(machine)
    for row in rows:
        print("  ".join(word.ljust(width) for word, width in zip(row, widths)).rstrip())
    if len(sys.argv) > 2 and sys.argv[2]:
        with open(sys.argv[2], "w", encoding="utf-8") as file:
            json.dump({"machine": machine, "results": results}, file, indent=2)
            file.write("\n")


main()
