"""The status of a process's threads as the kernel reports it: capabilities, user, filters, processors."""

from pathlib import Path

# A thread's five sets of capabilities.
CAPABILITY_SETS = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")


def threads(pid):
    """The fields of each thread's status, by thread ID."""
    found = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        lines = (task / "status").read_text().splitlines()
        found[int(task.name)] = {name: " ".join(value.split()) for name, _, value in (line.partition(":") for line in lines)}
    return found


def with_capabilities(found):
    """Threads that have a capability or could get one by exec: their sets, by thread."""
    return {f"{tid} ({t['Name']})": {name: t[name] for name in CAPABILITY_SETS}
            for tid, t in found.items() if any(int(t[name], 16) for name in CAPABILITY_SETS)}


def own_filters():
    """How many seccomp filters this process has: those of programs that it starts come on top."""
    return int(next(iter(threads("self").values()))["Seccomp_filters"])


def worker_thread(pid):
    """The thread ID of a gateway's first worker."""
    return min(tid for tid, t in threads(pid).items() if "worker" in t["Name"])
