"""Say in one line that a device cannot be used or has too little memory."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fedhql.errors import RESUME, DeviceError

# What XLA, CUDA and cuBLAS write when memory is short. cuBLAS reports it as a failed start.
SHORT_OF_MEMORY = (
    "RESOURCE_EXHAUSTED",
    "out of memory",
    "OUT_OF_MEMORY",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUBLAS_STATUS_NOT_INITIALIZED",
)
NO_BACKEND = "Unable to initialize backend"
LONGEST_REASON = 200
ADVICE = (
    "free the device, or choose another with CUDA_VISIBLE_DEVICES=N; or give it less in a new "
    "directory: fewer seeds and arms at a time, a smaller agents.buffer_size, and on a CPU fewer "
    f"jobs; the same with {RESUME} continues from the last checkpoint"
)


@contextmanager
def device_failures(wanted: Callable[[], str] = lambda: "") -> Iterator[None]:
    """Raise a DeviceError where JAX finds no device or no memory; let other errors pass.

    `wanted` describes what the memory was for. It is called only when memory was short.
    """
    try:
        yield
    except (RuntimeError, ValueError, MemoryError) as error:
        # JAX raises JaxRuntimeError, a RuntimeError; where a CPU lacks memory, also ValueError.
        reason = " ".join(str(error).split())[:LONGEST_REASON]
        if isinstance(error, MemoryError) or any(sign in str(error) for sign in SHORT_OF_MEMORY):
            raise DeviceError(f"out of memory: {wanted()}{ADVICE} ({reason})") from error
        if NO_BACKEND in str(error):
            raise DeviceError(
                f"JAX cannot use its device; mend that, or set JAX_PLATFORMS=cpu ({reason})"
            ) from error
        raise


def gigabytes(memory_bytes: float) -> str:
    return f"{memory_bytes / 1e9:.3g} GB"
