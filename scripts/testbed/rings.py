"""Drops of the kernel in the rings of a process's packet sockets, which DPDK does not count."""

import ctypes
import os
from pathlib import Path

from testbed.isolation import LIBC

# linux/if_packet.h, linux/if_xdp.h, asm/unistd_64.h
SOL_PACKET, PACKET_STATISTICS, SOL_XDP, XDP_STATISTICS, PIDFD_OPEN, PIDFD_GETFD = 263, 6, 283, 7, 434, 438


def socket_statistics(fd):
    """Packets that the kernel dropped in a socket's ring: since the last call, of af_packet; since it was
    opened, of AF_XDP."""
    counters, length = (ctypes.c_uint32 * 4)(), ctypes.c_uint32(16)
    if LIBC.getsockopt(fd, SOL_PACKET, PACKET_STATISTICS, counters, ctypes.byref(length)) == 0:
        return counters[1], 0
    # rx_dropped (no buffer to receive in), rx_invalid_descs, tx_invalid_descs, rx_ring_full.
    counters, length = (ctypes.c_uint64 * 6)(), ctypes.c_uint32(48)
    if LIBC.getsockopt(fd, SOL_XDP, XDP_STATISTICS, counters, ctypes.byref(length)) == 0:
        return 0, counters[0] + counters[3]
    return 0, 0


class Rings:
    """Drops in the rings of a process's sockets."""

    def __init__(self, pid):
        self.pid, self.before = pid, 0
        self.losses()

    def losses(self):
        """Packets since the last call."""
        drops = total = 0
        pidfd = LIBC.syscall(PIDFD_OPEN, self.pid, 0)
        if pidfd < 0:
            return 0
        for entry in Path(f"/proc/{self.pid}/fd").iterdir():
            try:
                if not os.readlink(entry).startswith("socket:"):
                    continue
            except OSError:
                continue
            fd = LIBC.syscall(PIDFD_GETFD, pidfd, int(entry.name), 0)
            if fd < 0:
                continue
            new, all_of_socket = socket_statistics(fd)
            drops, total = drops + new, total + all_of_socket
            os.close(fd)
        os.close(pidfd)
        drops += total - self.before
        self.before = total
        return drops
