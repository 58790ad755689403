"""The [service] section of a federation file: how the server runs over the network."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveFloat, PositiveInt


class ServiceSettings(BaseModel):
    """Members, deadlines and limits of a federation server."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    mode: Literal["rounds", "continuous"] = "rounds"
    """rounds: Algorithm 1, all members in step. continuous: members learn all the time, and the
    server starts a round every `round_interval_seconds`."""
    members: tuple[str, ...] = ()
    """The names of the members. If empty, everyone with a certificate of the authority may join."""
    start_with: PositiveInt = 2
    """The number of members that must be connected before the first round."""
    quorum: PositiveInt = 2
    """The usable answers that an exchange needs, at most `start_with`. With fewer, the server waits
    and asks again."""
    exchange_deadline_seconds: PositiveFloat = 30.0
    """A member that has not answered by then is late: nobody waits for it until it reports."""
    learning_deadline_seconds: PositiveFloat = 3_600.0
    """A member that has not reported progress in a self-learning phase by then is late: nobody
    waits for it until it reports. The server also waits this long for a quorum once some members
    have finished."""
    disconnect_after: PositiveInt = 3
    """A member is disconnected after this many missed deadlines in a row. It may come back."""
    return_seconds: PositiveFloat = 60.0
    """A restarted server waits this long for its earlier members. At the end, the server waits this
    long for absent members. A member retries at least every half minute."""
    catch_up_improvements: PositiveInt = 256
    """The number of improvements kept for absent members. Members skip older ones and report it."""
    value_bound: float = Field(1e6, gt=0, le=1e30)
    """The server refuses an answer with a larger absolute value. Secure aggregation uses
    federation.secure_value_bound instead."""
    quarantine_after: PositiveInt = 3
    """A member is quarantined after this many refused answers in a row."""
    evaluate_members: bool = True
    """The server evaluates each member's greedy policy, as [evaluation] says, and their consensus.
    To a member these are ordinary queries."""
    round_interval_seconds: PositiveFloat = 10.0
    """The time between two rounds in mode continuous."""
    chunk_env_steps: PositiveInt = 500
    """In mode continuous, a member checks for questions after this many env steps."""
    most_states: PositiveInt = 65_536
    """The most states in one batch, at least federation.query_batch + federation.replay_batch, and
    evaluation.episodes. With broadcast = "all-actions", at least that sum times the number of
    actions."""
    most_message_bytes: PositiveInt = 16 * 1024 * 1024
    """The largest message that the server accepts. A member that sends a larger one is refused."""
    most_messages_per_second: PositiveFloat = 1_000.0
    """The server reads the messages of one member no faster than this, on average. A burst may be
    twice as many. A faster member is slowed down; nobody is refused for it."""
    log_every_rounds: NonNegativeInt = 1
    """The server logs one line every so many rounds; 0: never."""
    keepalive_seconds: PositiveFloat = 20.0
    """The server pings a connection that is silent this long, and waits as long for the reply."""
