"""Sockets in other network namespaces."""

import ctypes
import os
import socket

from testbed.isolation import LIBC, NEW_NETWORK
from testbed.programs import TestbedError


def socket_in(netns, *kind):
    """A socket that lives in another network namespace."""
    own, other = os.open("/proc/self/ns/net", os.O_RDONLY), os.open(f"/run/netns/{netns}", os.O_RDONLY)
    try:
        if LIBC.setns(other, NEW_NETWORK):
            raise TestbedError(f"setns {netns}: {os.strerror(ctypes.get_errno())}")
        try:
            return socket.socket(*kind)
        finally:
            LIBC.setns(own, NEW_NETWORK)
    finally:
        os.close(own)
        os.close(other)
