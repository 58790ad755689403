"""Arrays as they cross the boundary, checked on arrival; nothing else does."""

import hashlib
import math
from typing import Any

import grpc
import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from fedhql.remote.wire_pb2 import FromMember, FromServer, Improvement, OrderId, Tensor

PROTOCOL = 1
MOST_BYTES_TO_A_MEMBER = 256 * 1024 * 1024  # in one message
MOST_AXES = 16
SERVICE, JOIN = "fedhql.v1.Federation", "Join"
# What may be said of states; float16 to float64, any whole number, truth values.
INTEGERS = (f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
DTYPES = {np.dtype(name): name for name in ("float16", "float32", "float64", "bool", *INTEGERS)}
ON_THE_WIRE = {name: dtype.newbyteorder("<") for dtype, name in DTYPES.items()}


class WireError(Exception):
    """A message that does not say what it should. The other side's mistake, not ours."""


def pack(array: NDArray[Any]) -> Tensor:
    name = DTYPES.get(array.dtype)
    if name is None:
        allowed = ", ".join(ON_THE_WIRE)
        raise WireError(f"arrays of {array.dtype} do not cross; allowed: {allowed}")
    data = array.astype(ON_THE_WIRE[name], copy=False).tobytes()
    return Tensor(dtype=name, shape=array.shape, data=data)


def unpack(
    tensor: Tensor, *, dtype: str | None = None, shape: tuple[int | None, ...] | None = None
) -> NDArray[Any]:
    """The array, or a WireError that says what differs; None in `shape` is any length."""
    kind = ON_THE_WIRE.get(tensor.dtype)
    if kind is None or dtype not in (None, tensor.dtype):
        raise WireError(f"dtype {tensor.dtype[:20]!r}, expected {dtype or 'an array of numbers'}")
    if len(tensor.shape) > MOST_AXES:  # before anything is made of them
        raise WireError(f"{len(tensor.shape)} axes, allowed: {MOST_AXES}")
    found = tuple(tensor.shape)
    if shape is not None and found != shape and not _fits(found, shape):
        expected = ", ".join("any" if n is None else str(n) for n in shape)
        raise WireError(f"shape {found[:8]}, expected ({expected})")
    if math.prod(found) * kind.itemsize != len(tensor.data):
        raise WireError(f"{len(tensor.data)} bytes for {tensor.dtype} of shape {found[:8]}")
    # A copy, in the machine's own order: what protobuf holds cannot be written to.
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
    """By which both sides see that they speak of the same one; never 0.

    The first 8 bytes of SHA-256 over number, states, actions, targets; the number as 8 bytes, the
    others as they are sent, all little endian.
    """
    tensors = (improvement.states, improvement.actions, improvement.targets)
    parts = (improvement.number.to_bytes(8, "little"), *(tensor.data for tensor in tensors))
    return int.from_bytes(hashlib.sha256(b"".join(parts)).digest()[:8], "little") or 1


def key_of(order: OrderId) -> tuple[int, int]:
    return (order.epoch, order.number)


def _from_member(content: bytes) -> FromMember:
    try:
        return FromMember.FromString(content)
    except DecodeError as error:
        raise WireError("bytes that are no message of ours") from error


def join_handler(behaviour: Any) -> grpc.GenericRpcHandler:
    """The one method of the service, for a server."""
    handler: Any = grpc.stream_stream_rpc_method_handler(
        behaviour,
        request_deserializer=_from_member,  # answers are bytes: most go to many
    )
    return grpc.method_handlers_generic_handler(SERVICE, {JOIN: handler})


def join_method(channel: grpc.aio.Channel) -> Any:
    """The one method of the service, for a member."""
    return channel.stream_stream(
        f"/{SERVICE}/{JOIN}",
        request_serializer=FromMember.SerializeToString,
        response_deserializer=FromServer.FromString,
    )


def channel_options(*, most_bytes: int, keepalive_seconds: float) -> list[tuple[str, int]]:
    """Both sides': a limit on what is read, and pings that notice a half-open connection."""
    milliseconds = int(keepalive_seconds * 1_000)
    return [
        ("grpc.max_receive_message_length", most_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.keepalive_time_ms", milliseconds),
        ("grpc.keepalive_timeout_ms", milliseconds),
        ("grpc.http2.ping_timeout_ms", milliseconds),  # else a minute, whatever stands above
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", milliseconds),
        ("grpc.http2.max_ping_strikes", 0),  # the other side may ask more often than we do
    ]
