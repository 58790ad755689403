"""Whether another machine computes what this one does: versions of Python and of packages."""

import platform
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version

from fedhql.errors import ClusterError

# What can change a result, or what is sent between machines.
PACKAGES = (
    "fedhql",
    "ray",
    "numpy",
    "gymnasium",
    "jax",
    "jaxlib",
    "optax",
    "torch",
    "stable-baselines3",
    "envpool",
    "box2d",
    "box2d-py",
)


def _reader(packages: tuple[str, ...]) -> Callable[[], dict[str, str]]:
    def read() -> dict[str, str]:
        """Only of what is installed."""
        found = {"python": ".".join(platform.python_version_tuple()[:2])}
        for package in packages:
            try:
                found[package] = version(package)
            except PackageNotFoundError:
                continue
        return found

    return read


# A nested function, because Ray sends those by value: a node may have no fedhql, or another.
versions_here = _reader(PACKAGES)


def require_versions(
    wanted: Mapping[str, str],
    found: Mapping[str, str] | None = None,
    where: str = platform.node(),
) -> None:
    """All that are wanted, here or as another machine told; what it has besides is its own."""
    found = versions_here() if found is None else found
    wrong = [
        f"{package} is {found.get(package, 'missing')} and not {expected}"
        for package, expected in wanted.items()
        if found.get(package) != expected
    ]
    if wrong:
        raise ClusterError(
            f"node {where} does not match the machine fedhql was started on: {', '.join(wrong)}; "
            "install the same versions on every node"
        )
