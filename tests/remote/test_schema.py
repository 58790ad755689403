"""Messages carry only states, actions, values, targets, counts, names and public keys."""

import asyncio
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from fedhql.agents.kind_settings import TabularSettings
from fedhql.agents.tabular import TabularAgent
from fedhql.contract import Actions, States, Values
from fedhql.environments.make import make_environment
from fedhql.remote import wire_pb2
from fedhql.remote.member import member as member_side
from fedhql.remote.wire import JOIN, SERVICE, key_of, unpack
from fedhql.remote.wire_pb2 import FromMember, FromServer, Order, Tensor
from tests.remote.federating import members_of, serving

ROOT = Path(__file__).parents[2]
PROTO = "src/fedhql/remote/wire.proto"

# Every field, by its path from one of the two top-level messages. Whoever adds a field lists it
# here and says what it is for.
ARRAY = {"dtype": "string", "shape": "repeated uint32", "data": "bytes"}
# Secure aggregation: public keys with certificates.
KEY = {"name": "string", "public_key": "bytes", "certificate": "bytes", "signature": "bytes"}
FROM_MEMBER = {
    # Who the member is, and which improvements it has.
    "hello": "Hello",
    "hello.protocol": "uint32",
    "hello.name": "string",
    "hello.federation": "string",
    "hello.applied_improvements": "uint64",
    "hello.last_improvement": "fixed64",
    "hello.masking_key": "MaskingKey",
    **{f"hello.masking_key.{name}": kind for name, kind in KEY.items()},
    # What its software is, and which messages it can read.
    "hello.minor": "uint32",
    "hello.most_message_bytes": "uint64",
    "hello.software": "string",
    "hello.capabilities": "repeated string",
    # The answer to an order: counts, and for a query the values.
    "report": "Report",
    "report.id": "OrderId",
    "report.id.epoch": "uint64",
    "report.id.number": "uint64",
    "report.applied_improvements": "uint64",
    "report.skipped_improvements": "uint64",
    "report.values": "Tensor",
    **{f"report.values.{name}": kind for name, kind in ARRAY.items()},
    # How the agent acts, if the server evaluates it.
    "report.actions": "Tensor",
    **{f"report.actions.{name}": kind for name, kind in ARRAY.items()},
    "report.phase": "uint64",
    "report.phase_env_steps": "uint64",
    # Why it leaves, for a program and for a person.
    "goodbye": "Goodbye",
    "goodbye.reason": "enum Reason",
    "goodbye.detail": "string",
    "goodbye.cause": "enum Cause",
    "goodbye.retry_after_seconds": "double",
}
FROM_SERVER = {
    # The federation, and the decision problem that all members share.
    "welcome": "Welcome",
    "welcome.federation": "string",
    "welcome.task": "Task",
    "welcome.task.environment": "string",
    "welcome.task.options": "map<string, string>",
    "welcome.task.discount": "double",
    "welcome.task.env_steps_per_member": "uint64",
    "welcome.task.state_dtype": "string",
    "welcome.task.state_shape": "repeated uint32",
    "welcome.task.actions": "uint32",
    "welcome.improvements": "uint64",
    "welcome.most_states": "uint32",
    "welcome.secure_value_bound": "double",
    # What the server's software is, and what it allows.
    "welcome.minor": "uint32",
    "welcome.software": "string",
    "welcome.limits": "Limits",
    "welcome.limits.message_bytes": "uint64",
    "welcome.limits.messages_per_second": "double",
    "welcome.limits.answer_seconds": "double",
    "welcome.limits.learning_seconds": "double",
    "welcome.limits.missed_deadlines": "uint32",
    "welcome.limits.refused_answers": "uint32",
    # States to evaluate; states, actions and targets to improve on; steps to learn.
    "order": "Order",
    "order.id": "OrderId",
    "order.id.epoch": "uint64",
    "order.id.number": "uint64",
    "order.improvements": "repeated Improvement",
    "order.improvements.number": "uint64",
    "order.improvements.states": "Tensor",
    **{f"order.improvements.states.{name}": kind for name, kind in ARRAY.items()},
    "order.improvements.actions": "Tensor",
    **{f"order.improvements.actions.{name}": kind for name, kind in ARRAY.items()},
    "order.improvements.targets": "Tensor",
    **{f"order.improvements.targets.{name}": kind for name, kind in ARRAY.items()},
    "order.skip_through": "uint64",
    "order.query": "Query",
    "order.query.states": "Tensor",
    **{f"order.query.states.{name}": kind for name, kind in ARRAY.items()},
    "order.query.act": "bool",
    # Secure aggregation: the members whose answers are summed.
    "order.query.cohort": "repeated string",
    "order.query.keys": "repeated MaskingKey",
    **{f"order.query.keys.{name}": kind for name, kind in KEY.items()},
    "order.learn": "Learn",
    "order.learn.phase": "uint64",
    "order.learn.env_steps": "uint64",
    "order.learn.chunk_env_steps": "uint64",
    # Why the server disconnects a member.
    "goodbye": "Goodbye",
    "goodbye.reason": "enum Reason",
    "goodbye.detail": "string",
    "goodbye.cause": "enum Cause",
    "goodbye.retry_after_seconds": "double",
    # Why the server refused an answer.
    "notice": "Notice",
    "notice.id": "OrderId",
    "notice.id.epoch": "uint64",
    "notice.id.number": "uint64",
    "notice.cause": "enum Cause",
    "notice.detail": "string",
    "notice.left": "uint32",
}


def kind_of(field_: FieldDescriptor) -> str:
    scalars = {
        getattr(FieldDescriptor, name): name.removeprefix("TYPE_").lower()
        for name in dir(FieldDescriptor)
        if name.startswith("TYPE_")
    }
    kind = scalars[field_.type]
    if field_.message_type is not None:
        kind = field_.message_type.name
        if is_map(field_):
            return f"map<{', '.join(kind_of(each) for each in field_.message_type.fields)}>"
    elif field_.enum_type is not None:
        kind = f"enum {field_.enum_type.name}"
    return f"repeated {kind}" if field_.is_repeated else kind


def is_map(field_: FieldDescriptor) -> bool:
    return field_.message_type is not None and field_.message_type.GetOptions().map_entry


def fields_of(message: Any, path: str = "") -> Iterator[tuple[str, FieldDescriptor]]:
    """Yield every field below a descriptor, with its path."""
    assert path.count(".") < 10, f"{path} is recursive"
    for field_ in message.fields:
        yield path + field_.name, field_
        if field_.message_type is not None and not is_map(field_):
            yield from fields_of(field_.message_type, f"{path}{field_.name}.")


def all_fields() -> list[FieldDescriptor]:
    both = chain(fields_of(FromMember.DESCRIPTOR), fields_of(FromServer.DESCRIPTOR))
    return [field_ for _, field_ in both]


@pytest.mark.parametrize(
    ("message", "allowed"),
    [(FromMember.DESCRIPTOR, FROM_MEMBER), (FromServer.DESCRIPTOR, FROM_SERVER)],
    ids=["from a member", "from the server"],
)
def test_messages_have_only_the_listed_fields(message: Any, allowed: dict[str, str]) -> None:
    assert {path: kind_of(field_) for path, field_ in fields_of(message)} == allowed


def test_only_arrays_and_public_keys_are_raw_bytes() -> None:
    raw = [each for each in all_fields() if each.type == FieldDescriptor.TYPE_BYTES]
    keys = {f"fedhql.v1.MaskingKey.{name}" for name, kind in KEY.items() if kind == "bytes"}
    assert {each.full_name for each in raw} == {"fedhql.v1.Tensor.data"} | keys


def test_every_message_type_is_ours_and_in_use() -> None:
    """So nobody can add an Any or a Struct, which could hold anything."""
    reached = {each.message_type.name for each in all_fields() if each.message_type is not None}
    top_level = {"FromMember", "FromServer"}
    assert set(wire_pb2.DESCRIPTOR.message_types_by_name) == (reached | top_level) - {
        "OptionsEntry"
    }
    assert [each.name for each in wire_pb2.DESCRIPTOR.dependencies] == []
    assert not wire_pb2.DESCRIPTOR.extensions_by_name


def test_the_service_has_one_method_with_these_messages() -> None:
    (service,) = wire_pb2.DESCRIPTOR.services_by_name.values()
    (method,) = service.methods
    assert (service.full_name, method.name) == (SERVICE, JOIN)
    assert (method.input_type.name, method.output_type.name) == ("FromMember", "FromServer")


def test_the_generated_code_matches_the_schema(tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools")
    command = [sys.executable, "-m", "grpc_tools.protoc", "-Isrc", f"--python_out={tmp_path}"]
    subprocess.run([*command, f"--pyi_out={tmp_path}", PROTO], cwd=ROOT, check=True)
    for name in ("wire_pb2.py", "wire_pb2.pyi"):
        made = tmp_path / "fedhql" / "remote" / name
        assert made.read_text() == (ROOT / PROTO).with_name(name).read_text(), "make proto"


# A whole run, with every message recorded as it is sent.

LAKE = """
[environment]
id = "FrozenLake-v1"
discount = 0.95
options = { map_name = "8x8" }  # holes and goal are too far for an episode to end in a round
[federation]
query_batch = 8
horizon_steps = 4
self_learning_env_steps = 40
[budget]
env_steps_per_agent = 150
[service]
mode = "rounds"
members = ["north", "south"]
evaluate_members = false
"""
ACTIONS = 4
Row = tuple[float, ...]


@dataclass
class Conversation:
    """The messages of one connection, in the order in which the member saw them."""

    raw: list[tuple[str, bytes]] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.sent()[0].hello.name

    def sent(self) -> list[FromMember]:
        return [FromMember.FromString(raw) for side, raw in self.raw if side == "member"]

    def heard(self) -> list[FromServer]:
        return [FromServer.FromString(raw) for side, raw in self.raw if side == "server"]

    def orders(self) -> list[Order]:
        return [message.order for message in self.heard() if message.HasField("order")]

    def sent_bytes(self) -> bytes:
        return b"".join(raw for side, raw in self.raw if side == "member")


class RecordedAgent:
    """A tabular agent with distinct values that records every row its table ever had."""

    def __init__(self, seed: int) -> None:
        env = make_environment("FrozenLake-v1", {"map_name": "8x8"})
        self._agent = TabularAgent(TabularSettings(), env, discount=0.95, seed=seed)
        self._agent._q_SA[:] = np.random.default_rng(seed).normal(size=self._agent._q_SA.shape)
        self.rows: dict[int, set[Row]] = defaultdict(set)  # rows of each state
        self._record_rows()

    def self_learn(self, env_steps: int) -> None:
        for _ in range(env_steps):
            self._agent.self_learn(1)
            self._record_rows()

    def q_values(self, states: States) -> Values:
        return self._agent.q_values(states)

    def improve(self, states: States, actions: Actions, targets: Values) -> None:
        self._agent.improve(states, actions, targets)
        self._record_rows()

    def _record_rows(self) -> None:
        for state, row in enumerate(self._agent._q_SA.tolist()):
            self.rows[state].add(tuple(row))


@dataclass
class Recording:
    """All messages and agents of one federation."""

    conversations: dict[str, Conversation]
    agents: dict[str, RecordedAgent]
    steps: int
    exchanges: int


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    conversations: list[Conversation] = []

    def join_method(channel: Any) -> Any:
        """Do what the member's own function does, and record the bytes of every message."""
        conversation = Conversation()
        conversations.append(conversation)

        def packed(message: FromMember) -> bytes:
            conversation.raw.append(("member", message.SerializeToString()))
            return conversation.raw[-1][1]

        def unpacked(raw: bytes) -> FromServer:
            conversation.raw.append(("server", raw))
            return FromServer.FromString(raw)

        return channel.stream_stream(
            f"/{SERVICE}/{JOIN}", request_serializer=packed, response_deserializer=unpacked
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(member_side, "join_method", join_method)
        agents = {"north": RecordedAgent(seed=1), "south": RecordedAgent(seed=2)}
        directory = tmp_path_factory.mktemp("recorded")
        steps, exchanges = asyncio.run(federate(directory, agents))
    assert len(conversations) == 2, "a connection broke, so its messages would count twice"
    return Recording({each.name: each for each in conversations}, agents, steps, exchanges)


async def federate(directory: Path, agents: dict[str, RecordedAgent]) -> tuple[int, int]:
    """Run a federation; return the server's counts of steps and of exchanges."""
    async with serving(directory / "server", LAKE) as server:
        async with members_of(directory, server.address) as members:
            for name, agent in agents.items():
                members.join(name, agent)
            await members.finish()
            await server.finish()
        return server.roster.improvements, server.roster.latencies.status().count


@pytest.fixture(params=["north", "south"])
def conversation(recording: Recording, request: pytest.FixtureRequest) -> Conversation:
    return recording.conversations[request.param]


def tensors_in(message: Message) -> Iterator[tuple[str, Tensor]]:
    for field_, value in message.ListFields():
        if field_.message_type is None or is_map(field_):
            continue
        for each in value if field_.is_repeated else [value]:
            if isinstance(each, Tensor):
                yield field_.name, each
            else:
                yield from tensors_in(each)


def test_a_member_sends_no_arrays_but_the_values_of_its_queries(
    conversation: Conversation,
) -> None:
    asked: dict[tuple[int, int], int] = {}  # number of states of each open query
    answers = 0
    for side, raw in conversation.raw:
        if side == "server":
            order = FromServer.FromString(raw).order
            if order.HasField("query"):
                asked[key_of(order.id)] = order.query.states.shape[0]
            continue
        message = FromMember.FromString(raw)
        for name, tensor in tensors_in(message):
            assert (message.WhichOneof("message"), name) == ("report", "values")
            B = asked.pop(key_of(message.report.id))
            unpack(tensor, dtype="float32", shape=(B, ACTIONS))
            answers += 1
    assert answers > 0
    assert not asked, "some queries were not answered"


def test_a_server_step_costs_two_exchanges(
    recording: Recording, conversation: Conversation
) -> None:
    assert recording.steps > 4
    assert recording.exchanges == 2 * recording.steps
    reports = [each.report for each in conversation.sent() if each.HasField("report")]
    assert sum(report.HasField("values") for report in reports) == recording.exchanges
    # Only the last improvement has its own message, as no other order follows it.
    orders = conversation.orders()
    work = [order.WhichOneof("work") for order in orders]
    phases = max(report.phase for report in reports)
    assert [work.count(kind) for kind in ("query", "learn", None)] == [
        recording.exchanges, phases, 1,
    ]  # fmt: skip
    assert len(reports) == len(orders) + 1  # it reports its last phase again at the end
    brought = [[each.number for each in order.improvements] for order in orders]
    assert list(chain.from_iterable(brought)) == list(range(1, recording.steps + 1))
    assert all(len(numbers) <= 1 for numbers in brought)


def test_a_member_receives_nothing_about_another_member(conversation: Conversation) -> None:
    other = {"north": "south", "south": "north"}[conversation.name]
    for message in conversation.heard():
        assert other.encode() not in message.SerializeToString()
        for name, _ in tensors_in(message):
            assert name in ("states", "actions", "targets")


def test_no_message_contains_a_row_that_was_not_queried(
    recording: Recording, conversation: Conversation
) -> None:
    sent = conversation.sent_bytes()
    rows, answered = recording.agents[conversation.name].rows, answered_rows(conversation)
    as_sent = {state: {as_bytes(row, "<f4") for row in rows[state]} for state in rows}
    for state, row in answered:
        assert row in as_sent[state], "an answer differs from the rows of its state"
        assert row in sent, "the search misses a row that was sent"
    shown = {row for _, row in answered}
    private = {row for state in rows for row in rows[state] if as_bytes(row, "<f4") not in shown}
    assert len(private) > 60
    for kept, dtype in product(private, ("<f4", "<f8", ">f4", ">f8")):
        assert as_bytes(kept, dtype) not in sent


def as_bytes(row: Row, dtype: str) -> bytes:
    return np.array(row, dtype=dtype).tobytes()


def answered_rows(conversation: Conversation) -> set[tuple[int, bytes]]:
    """Return the queried states, each with the values that the member sent."""
    asked = {key_of(each.id): each.query.states for each in conversation.orders()}
    rows = set()
    for message in conversation.sent():
        if message.report.HasField("values"):
            states = unpack(asked[key_of(message.report.id)]).tolist()
            values = unpack(message.report.values)
            rows |= {(s, as_bytes(q, "<f4")) for s, q in zip(states, values.tolist(), strict=True)}
    return rows
