"""A datagram socket with a path, whose messages a thread receives: in place of a service manager's or a
journal's."""

import contextlib
import socket
import threading
import time

from testbed.programs import DEADLINE, TestbedError

LARGEST = 1 << 17


class Mailbox:
    """Messages in the order in which they arrived, without empty ones.

    A socket that nobody reads would soon be full and take no more.
    """

    def __init__(self, path):
        # All messages, and how many of them the test has taken.
        self.messages, self.taken = [], 0
        self.changed = threading.Condition()
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(path))
        self.closing = False
        self.thread = threading.Thread(target=self.receive, daemon=True)
        self.thread.start()

    def receive(self):
        while not self.closing:
            message = self.socket.recv(LARGEST).decode()
            # Also what `close` wakes it with.
            if message:
                with self.changed:
                    self.messages.append(message)
                    self.changed.notify_all()

    def take(self, suits):
        """Takes messages up to the first one that suits; None if there is no such message yet."""
        for at in range(self.taken, len(self.messages)):
            if suits(self.messages[at]):
                self.taken = at + 1
                return self.messages[at]
        return None

    def wait_suitable(self, what, suits, seconds=DEADLINE):
        """Takes messages until one suits; returns it."""
        with self.changed:
            if message := self.changed.wait_for(lambda: self.take(suits), seconds):
                return message
            raise TestbedError(f"no message {what} within {seconds} s; received: {self.messages[-20:]}")

    def drain(self):
        """Takes all messages that have been received by now."""
        with self.changed:
            self.taken = len(self.messages)

    def count(self, message, seconds):
        """How many such messages arrive in that time."""
        time.sleep(seconds)
        with self.changed:
            taken, self.taken = self.taken, len(self.messages)
            return self.messages[taken:].count(message)

    def close(self):
        """Receives what is left in the socket, and closes it; returns all messages."""
        self.closing = True
        self.socket.shutdown(socket.SHUT_RD)
        self.thread.join()
        with contextlib.suppress(BlockingIOError):
            while True:
                self.messages.append(self.socket.recv(LARGEST, socket.MSG_DONTWAIT).decode())
        self.socket.close()
        return [message for message in self.messages if message]
