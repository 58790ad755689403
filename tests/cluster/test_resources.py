"""The resources that agents ask of a cluster, and the addresses of clusters. No Ray runs here."""

import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray import cloudpickle

from fedhql.cluster import session
from fedhql.cluster.file_transfer import scratch
from fedhql.cluster.resources import Resources
from fedhql.cluster.session import Cluster, connected
from fedhql.cluster.versions import require_versions, versions_here
from fedhql.errors import ClusterError, MissingExtra, SettingsError
from fedhql.settings.experiment import differing_keys, read_settings
from fedhql.storage.files import locked

EXPERIMENT = """
[environment]
id = "CartPole-v1"
[budget]
env_steps_per_agent = 1000
[[agents]]
resources = {text}
"""


class Nodes(Cluster):
    def __init__(self, *nodes: dict[str, float]) -> None:
        super().__init__("nowhere", {})
        object.__setattr__(self, "_nodes", list(nodes))

    def nodes(self) -> list[dict[str, float]]:
        found: list[dict[str, float]] = vars(self)["_nodes"]
        return found


def test_resources_are_no_option_of_the_agent_and_may_differ_on_resume() -> None:
    asking = read_settings(EXPERIMENT.format(text="{cpus = 2, gpus = 0.5, custom = {tpu = 1}}"))
    assert asking.agents[0].resources == Resources(cpus=2, gpus=0.5, custom={"tpu": 1})
    assert "resources" not in asking.agents[0].options
    assert read_settings(asking.as_toml()) == asking
    modest = read_settings(EXPERIMENT.format(text="{}"))
    assert differing_keys(asking, modest) == []  # a run may be resumed on another cluster


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{cpu = 1}", "agents.1.resources.cpu: unknown key; did you mean 'cpus'"),
        ("{cpus = -1}", "agents.1.resources.cpus: -1 is wrong; allowed: a number >= 0"),
        ("{gpus = 'all'}", "agents.1.resources.gpus: 'all' is wrong; allowed: a number >= 0"),
        ("{custom = {tpu = 0}}", "agents.1.resources.custom.tpu: 0 is wrong; allowed: a table"),
        ("{gpus = 1.5}", "1.5 GPU: allowed: up to 1, or a whole number"),
        ("{cpus = 0.00001}", "1e-05 CPU: allowed: 0, or at least 0.0001"),
        ("{custom = {CPU = 1}}", "CPU is reserved by Ray; allowed: cpus, gpus, your own names"),
        ("3", "agents.1.resources: 3 is wrong; allowed: a table"),
    ],
)
def test_wrong_resources_are_refused_with_their_key(text: str, says: str) -> None:
    with pytest.raises(SettingsError) as refused:
        read_settings(EXPERIMENT.format(text=text))
    assert says in str(refused.value)


def test_cohorts_at_once_counts_the_cohorts_that_fit() -> None:
    two = Nodes({"CPU": 4.0, "GPU": 1.0}, {"CPU": 4.0})
    assert two.cohorts_at_once([Resources(cpus=1)] * 4, at_most=9) == 2
    assert two.cohorts_at_once([Resources(cpus=1), Resources(gpus=1)], at_most=9) == 1
    assert two.cohorts_at_once([Resources()] * 100, at_most=9) == 9


def test_agents_that_cannot_fit_are_refused_with_a_reason() -> None:
    one = Nodes({"CPU": 4.0}, {"CPU": 2.0})
    with pytest.raises(ClusterError, match=r"agents\.2\.resources: no node has 5 CPU.*4 CPU"):
        one.cohorts_at_once([Resources(), Resources(cpus=5)], at_most=9)
    with pytest.raises(ClusterError, match="ask for 8 CPU together and the cluster has 6 CPU"):
        one.cohorts_at_once([Resources(cpus=2)] * 4, at_most=9)
    with pytest.raises(ClusterError, match=r"no node has 1 slow; .*: 2 CPU, 0 GPU, 3 fast$"):
        Nodes({"CPU": 2.0, "memory": 9.0, "fast": 3.0}).cohorts_at_once(
            [Resources(custom={"slow": 1})], at_most=9
        )
    with pytest.raises(ClusterError, match=r"no node has 0\.001 CPU.*0 CPU"):
        Nodes({"away": 1.0}).cohorts_at_once([Resources()], at_most=9)
    two = Nodes({"CPU": 3.0}, {"CPU": 3.0})
    with pytest.raises(
        ClusterError, match=r"6 CPU together .* has 6 CPU, but its nodes have no room"
    ):
        two.cohorts_at_once([Resources(cpus=2)] * 3, at_most=9)


def test_a_version_that_differs_is_named_with_the_expected_one() -> None:
    here = versions_here()
    require_versions(here, here | {"more": "1"}, "elsewhere")
    with pytest.raises(ClusterError, match=r"node elsewhere .*numpy is 0\.1 and not") as refused:
        require_versions(here, here | {"numpy": "0.1"}, "elsewhere")
    assert "fedhql is" not in str(refused.value)
    without = {name: version for name, version in here.items() if name != "jax"}
    with pytest.raises(ClusterError, match="jax is missing and not"):
        require_versions(here, without, "elsewhere")


def test_a_node_without_fedhql_can_read_its_versions() -> None:
    """Ray must send the function by value, because the node cannot import it."""
    script = (
        "import pickle, sys\n"
        "sys.modules['fedhql'] = None\n"  # an import of it fails
        "print(pickle.load(sys.stdin.buffer)()['numpy'])"
    )
    dumps: Any = cloudpickle.dumps  # it is untyped
    done = subprocess.run(
        [sys.executable, "-c", script], input=dumps(versions_here), capture_output=True, check=False
    )
    assert done.stdout.decode().strip() == versions_here()["numpy"], done.stderr.decode()


def test_an_address_of_rays_client_protocol_is_refused() -> None:
    with pytest.raises(SettingsError, match="ray start --address"), connected("ray://host:10001"):
        pass


def test_the_error_of_a_missing_ray_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtra, match=r"pip install 'fedhql\[ray\]'"), connected(None):
        pass


def test_the_sigterm_handler_is_restored_if_ray_does_not_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def init(**options: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise RuntimeError("no room for it")

    ray = SimpleNamespace(init=init, shutdown=lambda: None)
    monkeypatch.setattr(session, "import_ray", lambda: ray)
    monkeypatch.setenv(
        "RAY_AUTH_TOKEN", "one"
    )  # otherwise `connected` would set one in this process
    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(ClusterError, match="no room for it"), connected(None):
            pass
        assert signal.getsignal(signal.SIGTERM) == before
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.0.0.1:99999", "nobody.invalid:6379"])
def test_an_address_that_does_not_answer_is_refused(address: str) -> None:
    with (
        pytest.raises(ClusterError, match=f"--address {address}: no answer"),
        connected(address),
    ):
        pass


@pytest.mark.parametrize("address", ["nonsense", "local", ":6379", "10.0.0.1:port"])
def test_a_malformed_address_is_refused(address: str) -> None:
    with pytest.raises(SettingsError, match="allowed: HOST:PORT, or auto"), connected(address):
        pass


def test_scratch_removes_only_directories_of_killed_runs(tmp_path: Path) -> None:
    killed, running, strange = (tmp_path / f"ours-{name}" for name in ("a", "b", "c"))
    for home in (killed, running, strange):
        (home / "session_1").mkdir(parents=True)
    (killed / ".lock").touch()
    (tmp_path / "else").mkdir()
    (tmp_path / "else/.lock").touch()
    with locked(running, wait=False), scratch("ours-", tmp_path) as made:
        assert {path.name for path in tmp_path.iterdir()} == {
            "else",
            running.name,
            strange.name,  # another process may be about to lock it
            made.name,
        }
        with scratch("ours-", tmp_path):
            assert made.is_dir()
    assert not made.exists()
