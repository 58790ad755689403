"""Open a server's home directory, and build the task that the server sends to members."""

import json
import math
import uuid
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedhql.environments.make import action_count, make_environment
from fedhql.errors import SettingsError
from fedhql.remote.identity.masking_keys import MOST_KEY_BYTES
from fedhql.remote.server.journal import Journal
from fedhql.remote.wire import MOST_BYTES_TO_A_MEMBER
from fedhql.remote.wire_pb2 import Task
from fedhql.settings.experiment import differing_keys, parse
from fedhql.settings.served import ServedSettings
from fedhql.storage.files import write_atomically
from fedhql.storage.run_directory import SERVER_JOURNAL

SETTINGS = "settings.toml"
BYTES_OF_AN_ACTION, BYTES_OF_A_TARGET = 8, 4
MASKED_BYTES = 16  # per value: the value and its square
ROOM_BYTES = 1024  # for names, numbers and shapes


def open_home(home: Path, settings: ServedSettings) -> tuple[Journal, str]:
    """Return the journal and the federation's id.

    Raise SettingsError if settings outside [service] differ from those in `home`.
    """
    home.mkdir(parents=True, exist_ok=True)
    kept = home / SETTINGS
    if kept.exists():
        # The present [service] replaces the stored one; it has been checked.
        before = parse(kept.read_text(), (), ServedSettings)
        same_service = before.model_copy(update={"service": settings.service})
        if differing := differing_keys(settings, same_service):
            raise SettingsError(
                f"{home} holds another federation: {differing[0]}; use another --home"
            )
    write_atomically(kept, settings.as_toml())
    journal = Journal(home / SERVER_JOURNAL)
    federation = journal.fact("federation")
    if federation is None:
        federation = uuid.uuid4().hex
        journal.write(facts={"federation": federation})
    return journal, federation


def task_of(settings: ServedSettings) -> Task:
    """Return the task. Raise SettingsError if its states do not fit into messages."""
    env = make_environment(settings.environment.id, settings.environment.options)
    space = env.observation_space
    task = Task(
        environment=settings.environment.id,
        options={k: json.dumps(v) for k, v in settings.environment.options.items()},
        discount=settings.environment.discount,
        env_steps_per_member=settings.budget.env_steps_per_agent,
        state_dtype=np.dtype(space.dtype).name,
        state_shape=space.shape or (),
        actions=action_count(env),
    )
    env.close()
    message_sizes(settings, task)
    return task


@dataclass(frozen=True)
class MessageSizes:
    """The largest messages to a member, in bytes."""

    question_bytes: int
    least_receive_bytes: int  # of a question with one improvement


def message_sizes(settings: ServedSettings, task: Task) -> MessageSizes:
    """Return the sizes of messages. Raise SettingsError if one would be too large.

    One message holds an improvement and the next query; another holds an answer.
    """
    state_bytes = math.prod(task.state_shape) * np.dtype(task.state_dtype).itemsize
    federation, service = settings.federation, settings.service
    # In an evaluation, a member is asked for its own episodes and those of the consensus policy.
    evaluated = 2 * settings.evaluation.episodes
    rows = federation.query_batch + federation.replay_batch
    asked = max(rows, evaluated)
    improved = rows * (task.actions if federation.all_actions else 1)
    question = asked * state_bytes + ROOM_BYTES
    of_a_value, with_keys = np.dtype(np.float32).itemsize, ""
    if federation.secure_aggregation:
        of_a_value, with_keys = MASKED_BYTES, " with all members' keys"
        question += len(service.members) * MOST_KEY_BYTES
    to_member = question + improved * (state_bytes + BYTES_OF_AN_ACTION + BYTES_OF_A_TARGET)
    of_a_state = task.actions * of_a_value
    from_member = max(asked * of_a_state, evaluated * (of_a_state + BYTES_OF_AN_ACTION))
    whose = f"federation.query_batch is {federation.query_batch}, with {task.actions} actions"
    if federation.replay_batch:
        whose = f"federation.replay_batch is {federation.replay_batch}, {whose}"
    if max(asked, improved) > service.most_states:
        raise SettingsError(
            f"service.most_states is {service.most_states}; allowed: at least "
            f"{max(asked, improved)} ({whose}; evaluation.episodes is "
            f"{settings.evaluation.episodes})"
        )
    for what, bytes_, allowed in (
        (f"an improvement and a query{with_keys}", to_member, MOST_BYTES_TO_A_MEMBER),
        ("an answer", from_member + ROOM_BYTES, service.most_message_bytes),
    ):
        if bytes_ > allowed:
            raise SettingsError(
                f"{whose}: {what} would be {bytes_ - ROOM_BYTES:,} bytes, allowed: "
                f"{allowed - ROOM_BYTES:,}"
            )
    return MessageSizes(question, to_member)
