"""Why TLS fails: gRPC says only that the socket was closed, which is all its servers let us see."""

import socket
import ssl
import tempfile

import grpc
from cryptography import x509

from fedhql.remote.identity.credentials import Credentials

SECONDS = 5.0


def explained(error: Exception, address: str, credentials: Credentials | None) -> str:
    """Why a connection ended, as far as it can be known. May take a while."""
    if not isinstance(error, grpc.aio.AioRpcError):
        return str(error)
    why = error.details() or error.code().name
    if not any(word in why.lower() for word in ("socket closed", "handshake", "verification")):
        return why
    if credentials is None:
        return f"{why}; a server with certificates is joined without --insecure"
    return refusal(address, credentials) or why


def refusal(address: str, credentials: Credentials) -> str | None:
    """What a plain handshake shows; None if it succeeds, or if nobody is there. Takes a while."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    context = ssl.create_default_context(cadata=credentials.authority.decode())
    context.set_alpn_protocols(["h2"])
    with tempfile.NamedTemporaryFile() as file:  # there is no other way in; nobody else can read it
        file.write(credentials.certificate + credentials.key)
        file.flush()
        context.load_cert_chain(file.name)
    try:
        with (
            socket.create_connection((host, int(port)), SECONDS) as plain,
            context.wrap_socket(plain, server_hostname=host) as stream,
        ):
            # TLS 1.3: the server looks at our certificate after we think that all is well.
            if stream.recv(1):
                return None
    except ssl.SSLEOFError:
        pass
    except ssl.SSLCertVerificationError as error:
        return (
            f"the certificate of {host} is not accepted here: {error.verify_message}; it must be "
            "of the authority in ca.crt, and for that host (fedhql certs issue NAME --host HOST)"
        )
    except ssl.SSLError as error:
        return f"TLS: {(error.reason or str(error)).replace('_', ' ').lower()}"
    except (OSError, ValueError):
        return None
    own = x509.load_pem_x509_certificate(credentials.certificate)
    return (
        f"the server closes it on seeing our certificate (serial {own.serial_number:040x}, valid "
        f"until {own.not_valid_after_utc:%Y-%m-%d %H:%M} UTC): for the server it is expired, or of "
        "another authority; its log says which"
    )
