"""Find out why TLS fails: gRPC reports only that the socket was closed."""

import socket
import ssl
import tempfile

import grpc
from cryptography import x509

from fedhql.remote.identity.credentials import Credentials

SECONDS = 5.0  # timeout for each step of the trial handshake


def explained(
    error: BaseException, address: str, credentials: Credentials | None
) -> tuple[str, bool]:
    """Return why a connection ended, as far as can be found out, and whether it always will.

    Blocks for some seconds.
    """
    if not isinstance(error, grpc.aio.AioRpcError):
        return str(error), False
    why = error.details() or error.code().name
    if why == "Internal error from Core":  # gRPC's words for a write on a stream that has ended
        return "the server ended the connection while the agent was busy; its log says why", False
    if not any(word in why.lower() for word in ("socket closed", "handshake", "verification")):
        return why, False
    if credentials is None:
        return f"{why}; if the server uses certificates, join without --insecure", False
    return refusal(address, credentials) or (why, False)


def refusal(address: str, credentials: Credentials) -> tuple[str, bool] | None:
    """Try a TLS handshake; return why it fails, and whether a certificate is the reason.

    Return None if it succeeds or if nothing listens at the address. Blocks for some seconds.
    """
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    context = ssl.create_default_context(cadata=credentials.authority.decode())
    context.set_alpn_protocols(["h2"])
    with tempfile.NamedTemporaryFile() as file:  # load_cert_chain takes only files; mode 0600
        file.write(credentials.certificate + credentials.key)
        file.flush()
        context.load_cert_chain(file.name)
    shaken = False
    try:
        with (
            socket.create_connection((host, int(port)), SECONDS) as plain,
            context.wrap_socket(plain, server_hostname=host) as stream,
        ):
            shaken = True
            # In TLS 1.3 the server checks our certificate after our side of the handshake is done.
            if stream.recv(1):
                return None
    except ssl.SSLEOFError:
        if not shaken:  # a proxy whose server is down does this, too
            return None
    except ssl.SSLCertVerificationError as error:
        why = (
            f"the certificate of {host} is not accepted: {error.verify_message}; it must be signed "
            "by the authority in ca.crt and name that host (fedhql certs issue NAME --host HOST)"
        )
        return why, True
    except ssl.SSLError as error:
        return f"TLS: {(error.reason or str(error)).replace('_', ' ').lower()}", False
    except (OSError, ValueError):
        return None
    own = x509.load_pem_x509_certificate(credentials.certificate)
    why = (
        f"the server rejected our certificate (serial {own.serial_number:040x}, valid until "
        f"{own.not_valid_after_utc:%Y-%m-%d %H:%M} UTC) as expired or as signed by another "
        "authority; the server's log has the reason"
    )
    return why, True
