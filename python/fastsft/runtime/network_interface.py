"""The network interface over which this machine reaches another one."""

from __future__ import annotations

import fcntl
import socket
import struct

_GET_ADDRESS = 0x8915  # SIOCGIFADDR


def interface_towards(host: str) -> str | None:
    """The name of the interface whose IPv4 address is the source of packets to `host`; None when unknown.

    On `host` itself that is the interface with its address. Nothing is sent.
    """
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((socket.gethostbyname(host), 9))
            source = probe.getsockname()[0]
            return next((name for _, name in socket.if_nameindex() if _address(probe, name) == source), None)
    except OSError:
        return None


def _address(probe: socket.socket, name: str) -> str | None:
    try:
        reply = fcntl.ioctl(probe.fileno(), _GET_ADDRESS, struct.pack("256s", name.encode()[:15]))
    except OSError:  # an interface without an IPv4 address
        return None
    return socket.inet_ntoa(reply[20:24])
