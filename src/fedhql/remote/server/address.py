"""Addresses to listen on: whether one is local, and why one cannot be used."""

import socket
from ipaddress import ip_address


def is_loopback(address: str) -> bool:
    """Return whether HOST:PORT is a loopback address. A host like 127.0.0.1.nip.io is remote."""
    host, _, _ = address.rpartition(":")
    if host == "localhost":
        return True
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        return False  # IPv6 without brackets: the port is ambiguous
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def why_not_bound(address: str) -> str | None:
    """Bind to the address once more to get the reason, which gRPC does not give."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_server((host.strip("[]"), int(port))).close()
    except (OSError, ValueError, OverflowError) as error:
        return getattr(error, "strerror", None) or str(error)
    return None
