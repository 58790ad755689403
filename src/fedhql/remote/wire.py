"""Arrays and messages as they travel between server and members, checked on arrival."""

import hashlib
import math
from functools import partial
from typing import Any

import grpc
import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from fedhql import __version__
from fedhql.remote.wire_pb2 import Cause, FromMember, FromServer, Improvement, OrderId, Tensor

PROTOCOL, MINOR = 1, 2  # the version
SOFTWARE = f"fedhql {__version__}"
NOTICES = "notices"  # the capability of a member that reads Notice
DEFAULT_RECEIVE_BYTES = 4 * 1024 * 1024  # gRPC's default for the largest message
MOST_BYTES_TO_A_MEMBER = 256 * 1024 * 1024  # the largest message that our member accepts
MOST_AXES = 16
SERVICE, JOIN = "fedhql.v1.Federation", "Join"
# The dtypes that a tensor may have.
INTEGERS = (f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
DTYPES = {np.dtype(name): name for name in ("float16", "float32", "float64", "bool", *INTEGERS)}
ON_THE_WIRE = {name: dtype.newbyteorder("<") for dtype, name in DTYPES.items()}


class WireError(Exception):
    """A message breaks the protocol; raised by the side that receives or would send it."""

    def __init__(self, why: str, cause: Cause = Cause.INVALID_MESSAGE) -> None:
        super().__init__(why)
        self.cause = cause


def pack(array: NDArray[Any]) -> Tensor:
    """Return the array as a tensor; raise WireError if its dtype is not allowed."""
    name = DTYPES.get(array.dtype)
    if name is None:
        allowed = ", ".join(ON_THE_WIRE)
        raise WireError(f"an array of dtype {array.dtype} cannot be sent; allowed: {allowed}")
    data = array.astype(ON_THE_WIRE[name], copy=False).tobytes()
    return Tensor(dtype=name, shape=array.shape, data=data)


def unpack(
    tensor: Tensor, *, dtype: str | None = None, shape: tuple[int | None, ...] | None = None
) -> NDArray[Any]:
    """Return the array in a tensor; raise WireError if its dtype, shape or size is wrong.

    None in `shape` allows any length.
    """
    kind = ON_THE_WIRE.get(tensor.dtype)
    if kind is None or dtype not in (None, tensor.dtype):
        raise WireError(f"dtype {tensor.dtype[:20]!r}, expected {dtype or 'a number type'}")
    if len(tensor.shape) > MOST_AXES:  # checked before the shape is used
        raise WireError(f"{len(tensor.shape)} axes, allowed: {MOST_AXES}")
    found = tuple(tensor.shape)
    if shape is not None and found != shape and not _fits(found, shape):
        expected = ", ".join("any" if n is None else str(n) for n in shape)
        raise WireError(f"shape {found[:8]}, expected ({expected})")
    if math.prod(found) * kind.itemsize != len(tensor.data):
        raise WireError(f"{len(tensor.data)} bytes for a {tensor.dtype} array of shape {found[:8]}")
    # Copy into native byte order; the bytes that protobuf holds are read-only.
    return np.frombuffer(tensor.data, kind).astype(kind.newbyteorder("=")).reshape(found)


def _fits(found: tuple[int, ...], shape: tuple[int | None, ...]) -> bool:
    return len(found) == len(shape) and all(
        b is None or a == b for a, b in zip(found, shape, strict=True)
    )


def pack_improvement(
    number: int, states: NDArray[Any], actions: NDArray[Any], targets: NDArray[Any]
) -> Improvement:
    return Improvement(
        number=number,
        states=pack(states),
        actions=pack(actions.astype(np.int64)),
        targets=pack(targets.astype(np.float32)),
    )


def fingerprint(improvement: Improvement) -> int:
    """Return a number, never 0, by which both sides check that an improvement is the same.

    It is the first 8 bytes of SHA-256 over number, states, actions and targets. The number has 8
    bytes, the arrays are hashed as they are sent, and everything is little endian.
    """
    tensors = (improvement.states, improvement.actions, improvement.targets)
    parts = (improvement.number.to_bytes(8, "little"), *(tensor.data for tensor in tensors))
    return int.from_bytes(hashlib.sha256(b"".join(parts)).digest()[:8], "little") or 1


def key_of(order: OrderId) -> tuple[int, int]:
    return (order.epoch, order.number)


def _from_member(most_bytes: int, content: bytes) -> FromMember:
    if len(content) > most_bytes:
        why = f"a message of {len(content):,} bytes; allowed: {most_bytes:,}"
        raise WireError(why, Cause.MESSAGE_SIZE)
    try:
        return FromMember.FromString(content)
    except DecodeError as error:
        raise WireError("the bytes are not a FromMember message") from error


def join_handler(behaviour: Any, most_bytes: int) -> grpc.GenericRpcHandler:
    """Return the server's handler for the only method of the service.

    Reading raises WireError for a message of more than `most_bytes`, and for other bytes.
    """
    # Replies need no serializer: they are bytes, as most go to many members.
    handler: Any = grpc.stream_stream_rpc_method_handler(
        behaviour, request_deserializer=partial(_from_member, most_bytes)
    )
    return grpc.method_handlers_generic_handler(SERVICE, {JOIN: handler})


def join_method(channel: grpc.aio.Channel) -> Any:
    """Return the member's call for the only method of the service."""
    return channel.stream_stream(
        f"/{SERVICE}/{JOIN}",
        request_serializer=FromMember.SerializeToString,
        response_deserializer=FromServer.FromString,
    )


def channel_options(*, most_bytes: int, keepalive_seconds: float) -> list[tuple[str, int]]:
    """Return gRPC options of both sides: a size limit, and pings that detect dead connections."""
    milliseconds = int(keepalive_seconds * 1_000)
    return [
        ("grpc.max_receive_message_length", most_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.keepalive_time_ms", milliseconds),
        ("grpc.keepalive_timeout_ms", milliseconds),
        ("grpc.http2.ping_timeout_ms", milliseconds),  # otherwise a minute, despite the above
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", milliseconds),
        ("grpc.http2.max_ping_strikes", 0),  # the other side may ping more often than we do
    ]
