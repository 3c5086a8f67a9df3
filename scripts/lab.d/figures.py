"""Figures of `scripts/lab figures` as a table, and as JSON: `figures.py FILE [JSON]`. FILE has lines `figure NAME DEVICE VALUE
UNIT`, one a round."""

import json
import os
import statistics
import sys

DEVICES = ("softhca", "soft-roce")


def read(path):
    """{name: (unit, {device: [value]})}, in the order of the file."""
    figures = {}
    with open(path, encoding="utf-8") as file:
        for line in file:
            words = line.split()
            if len(words) == 5 and words[0] == "figure":
                _, name, device, value, unit = words
                figures.setdefault(name, (unit, {}))[1].setdefault(device, []).append(float(value))
    return figures


def spread(values):
    return {"min": min(values), "median": statistics.median(values), "max": max(values), "rounds": len(values)}


def result(name, unit, values):
    entry = {"name": name, "unit": unit}
    entry.update({device: spread(values[device]) if device in values else None for device in DEVICES})
    ours, theirs = (entry[device] for device in DEVICES)
    entry["ratio"] = round(ours["median"] / theirs["median"], 3) if ours and theirs and theirs["median"] else None
    return entry


def cell(figure):
    return "{min:.4g} / {median:.4g} / {max:.4g}".format(**figure) if figure else "-"


def main():
    results = [result(name, unit, values) for name, (unit, values) in read(sys.argv[1]).items()]
    if not results:
        sys.exit("lab: there are no figures")
    machine = f"{len(os.sched_getaffinity(0))} processors, Linux {os.uname().release}, QEMU without KVM"
    rows = [("figure", "unit", "softhca: min / median / max", "soft-RoCE: min / median / max", "ratio")]
    rows += [(r["name"], r["unit"], cell(r["softhca"]), cell(r["soft-roce"]), str(r["ratio"] or "-")) for r in results]
    widths = [max(map(len, column)) for column in zip(*rows)]
    print(machine)
    for row in rows:
        print("  ".join(word.ljust(width) for word, width in zip(row, widths)).rstrip())
    if len(sys.argv) > 2 and sys.argv[2]:
        with open(sys.argv[2], "w", encoding="utf-8") as file:
            json.dump({"machine": machine, "results": results}, file, indent=2)
            file.write("\n")


main()
