"""A run that leaves nothing behind, however it ends: a supervisor outside, the run itself in a PID namespace
of its own.

If either process dies, the kernel ends all programs of the run, and with them their network namespaces,
mounts and files. Hugepages are released by a process that outlives both (`testbed.hugepages`).
"""

import contextlib
import ctypes
import os
import signal
import sys
from pathlib import Path

from testbed.isolation import LIBC, isolate
from testbed.programs import TestbedError, run

NEW_PIDS = 0x2000_0000
PR_SET_PDEATHSIG = 1


def supervised(body):
    """Runs `body` in a child process with PID, mount and network namespaces of its own, and returns its exit
    code.

    SIGINT, SIGTERM and SIGHUP reach the child once, wherever they were sent.
    """
    if LIBC.unshare(NEW_PIDS):
        error = os.strerror(ctypes.get_errno())
        raise TestbedError(f"unshare: {error}; in a container, run it with --privileged or --cap-add SYS_ADMIN,NET_ADMIN")
    sys.stdout.flush()
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    child = os.fork()
    if child == 0:
        # The terminal's signals are the supervisor's to forward, a shell's own job control excepted.
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
        code = 1
        try:
            isolate()
            run("mount", "-t", "proc", "proc", "/proc")
            code = body()
        except TestbedError as error:
            print(f"{Path(sys.argv[0]).stem}: {error}", file=sys.stderr)
        except KeyboardInterrupt:
            code = 130
        except SystemExit as stop:
            if isinstance(stop.code, str):
                print(stop.code, file=sys.stderr)
            code = stop.code if isinstance(stop.code, int) else 1
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code or 0)

    def forward(number, _frame):
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)

    for number in signals:
        signal.signal(number, forward)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
    while True:
        try:
            _, status = os.waitpid(child, 0)
            return os.waitstatus_to_exitcode(status)
        except InterruptedError:
            pass
