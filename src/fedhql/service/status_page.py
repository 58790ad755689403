"""The status of a running federation over HTTP: a live page, JSON and Prometheus metrics."""

import base64
import dataclasses
import hashlib
import json
import math
import re
import socket
import sys
import threading
from collections.abc import Callable
from http import HTTPStatus
from importlib import import_module
from importlib.resources import files
from ipaddress import ip_address
from socketserver import TCPServer, ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer
from wsgiref.types import StartResponse, WSGIEnvironment

from fedhql.errors import MissingExtra, SettingsError
from fedhql.remote.server.status import FederationStatus
from fedhql.service.metrics import Collector

HOST_HEADER = re.compile(r"(?:\[([0-9a-f:.]+)\]|([^\[\]:]+))(?::[0-9]*)?", re.ASCII)
TEXT = "text/plain; charset=utf-8"

Response = tuple[HTTPStatus, str, bytes]  # status, content type, body


class Observation:
    """An HTTP server that runs until closed. Its threads call `snapshot` once for each request."""

    def __init__(self, snapshot: Callable[[], FederationStatus], host: str, port: int) -> None:
        try:
            import_module("prometheus_client")
        except ModuleNotFoundError as error:
            raise MissingExtra.named("remote", "fedhql serve --http") from error
        from prometheus_client import CollectorRegistry

        self._snapshot = snapshot
        self._registry = CollectorRegistry()
        self._registry.register(Collector(snapshot))
        page = files("fedhql.service").joinpath("templates/status.html").read_text("utf-8")
        self._page = page.encode()
        self._headers = [
            ("Content-Security-Policy", _content_policy(page)),
            ("X-Content-Type-Options", "nosniff"),
            ("Cross-Origin-Resource-Policy", "same-origin"),
            ("Referrer-Policy", "no-referrer"),
            ("Cache-Control", "no-store"),
            ("Server", "fedhql"),
        ]
        try:
            self._server = _Server(host, port)
        except (OSError, OverflowError) as error:  # in use, not this machine's, not a port
            reason = getattr(error, "strerror", None) or error
            raise SettingsError(f"cannot listen on {host}:{port}: {reason}") from error
        self._server.set_app(self._application)
        address = str(self._server.server_address[0])
        self._names = {"localhost", host.lower(), address}
        self._on_all_addresses = ip_address(address).is_unspecified
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="observation", daemon=True
        )
        self._thread.start()

    @property
    def port(self) -> int:
        return self._server.server_port

    def close(self) -> None:
        """Stop the server, and return when it no longer listens."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _application(
        self, environ: WSGIEnvironment, start_response: StartResponse, /
    ) -> list[bytes]:
        status, kind, body = self._response(environ)
        headers = [*self._headers, ("Content-Type", kind), ("Content-Length", str(len(body)))]
        if status == HTTPStatus.METHOD_NOT_ALLOWED:
            headers.append(("Allow", "GET, HEAD"))
        start_response(f"{status.value} {status.phrase}", headers)
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [body]

    def _response(self, environ: WSGIEnvironment) -> Response:
        if not self._is_for_us(environ.get("HTTP_HOST", "")):
            return HTTPStatus.FORBIDDEN, TEXT, b"Use the address that this server listens on.\n"
        if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            return HTTPStatus.METHOD_NOT_ALLOWED, TEXT, b"Only GET and HEAD are allowed.\n"
        match environ["PATH_INFO"]:
            case "/":
                return HTTPStatus.OK, "text/html; charset=utf-8", self._page
            case "/status.json":
                return HTTPStatus.OK, "application/json", status_json(self._snapshot()).encode()
            case "/metrics":
                from prometheus_client.exposition import choose_encoder

                encode, kind = choose_encoder(environ.get("HTTP_ACCEPT", ""))
                return HTTPStatus.OK, kind, encode(self._registry)
        return HTTPStatus.NOT_FOUND, TEXT, b"Not found; available: /, /status.json and /metrics.\n"

    def _is_for_us(self, host_header: str) -> bool:
        """Return whether the Host header names this server.

        This prevents DNS rebinding, where a foreign site points its own name to this machine.
        """
        match = HOST_HEADER.fullmatch(host_header.lower())
        if match is None:
            return False
        name = match[1] or match[2]
        try:
            address = ip_address(name)
        except ValueError:
            return name in self._names
        return address.is_loopback or self._on_all_addresses or str(address) in self._names


def status_json(status: FederationStatus) -> str:
    return json.dumps(_json_value(dataclasses.asdict(status)), allow_nan=False)


def _json_value(value: Any) -> Any:
    """Return the value with infinities and NaN, which JSON lacks, as Prometheus writes them."""
    match value:
        case dict():
            return {key: _json_value(each) for key, each in value.items()}
        case list() | tuple():
            return [_json_value(each) for each in value]
        case float() if not math.isfinite(value):
            return {math.inf: "+Inf", -math.inf: "-Inf"}.get(value, "NaN")
    return value


def _content_policy(page: str) -> str:
    """Return a policy: only the page's own style and script, and requests to its own origin."""

    def hash_of(element: str) -> str:
        inside = page.partition(f"<{element}>")[2].partition(f"</{element}>")[0]
        return f"'sha256-{base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()}'"

    return (
        f"default-src 'none'; connect-src 'self'; img-src data:; style-src {hash_of('style')}; "
        f"script-src {hash_of('script')}; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )


class _Handler(WSGIRequestHandler):
    timeout = 10  # seconds; browsers open connections that they may never use

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002, the base's name
        """Log nothing: each open page sends a request every second."""


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def __init__(self, host: str, port: int) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        TCPServer.server_bind(self)  # the base class looks up a host name, which can be slow
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]
        self.setup_environ()

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), OSError):  # OSError: the client has gone
            super().handle_error(request, client_address)
