"""Ports for servers to come."""

import os
import socket

# Below the ports that the system gives out by itself: what listens meanwhile, at a port that it does not choose, would
# now and then be given one of these. Processes begin far apart.
_next = 12000 + 16 * os.getpid() % 16000


def free_port():
    """One that nobody listens on, and another one each time."""
    global _next
    while True:
        port, _next = _next, _next + 1
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
        return port
