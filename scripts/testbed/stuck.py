#!/usr/bin/env python3
"""stuck.py PID: stops one worker thread of that gateway until the service manager has killed the gateway for
it."""

import contextlib
import ctypes
import os
import sys
import time
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from testbed.isolation import LIBC
from testbed.programs import DEADLINE, TestbedError
from testbed.threads import worker_thread

PTRACE_DETACH, PTRACE_SYSCALL, PTRACE_SEIZE, PTRACE_INTERRUPT = 17, 24, 0x4206, 0x4207
# poll, epoll_wait, ppoll, epoll_pwait, epoll_pwait2 of x86-64, in which an idle worker sleeps.
POLLS = ("7", "232", "271", "281", "441")
WALL = 0x40000000


def ptrace(request, thread):
    LIBC.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    if LIBC.ptrace(request, thread, None, None):
        raise TestbedError(f"ptrace {request:#x} of thread {thread}: {os.strerror(ctypes.get_errno())}")


def wait_traced(thread):
    """Waits until a traced thread has stopped, or exited."""
    end = time.monotonic() + DEADLINE
    while os.waitpid(thread, WALL | os.WNOHANG)[0] == 0:
        if time.monotonic() > end:
            raise TestbedError(f"traced thread {thread} has neither stopped nor exited within {DEADLINE} s")
        time.sleep(0.001)


@contextlib.contextmanager
def stalled(pid, thread):
    """Stops one thread of a process, as a deadlock or an endless loop would.

    It stops where it goes to sleep. In the middle of an iteration it would hold the software device's lock,
    and the control lcore would stall, too. It always continues at the end: a process that is killed while one
    of its threads is traced does not exit.
    """
    ptrace(PTRACE_SEIZE, thread)
    ptrace(PTRACE_INTERRUPT, thread)
    wait_traced(thread)
    try:
        while Path(f"/proc/{pid}/task/{thread}/syscall").read_text().split()[0] not in POLLS:
            ptrace(PTRACE_SYSCALL, thread)
            wait_traced(thread)
        yield
    finally:
        # A thread that was killed in the meantime, and waited for, is gone.
        if Path(f"/proc/{pid}/task/{thread}").exists():
            ptrace(PTRACE_DETACH, thread)


def main(pid):
    thread = worker_thread(pid)
    with stalled(pid, thread):
        begin = time.monotonic()
        # A traced thread is gone only when its tracer has waited for it.
        wait_traced(thread)
        print(f"killed after {time.monotonic() - begin:.0f} s")


if __name__ == "__main__":
    try:
        main(int(sys.argv[1]))
    except TestbedError as error:
        sys.exit(f"stuck: {error}")
