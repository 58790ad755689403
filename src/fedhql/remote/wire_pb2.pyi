from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Cause(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CAUSE_UNSPECIFIED: _ClassVar[Cause]
    CERTIFICATE: _ClassVar[Cause]
    NAME: _ClassVar[Cause]
    NOT_LISTED: _ClassVar[Cause]
    PROTOCOL_VERSION: _ClassVar[Cause]
    OTHER_FEDERATION: _ClassVar[Cause]
    HISTORY: _ClassVar[Cause]
    QUARANTINED: _ClassVar[Cause]
    MASKING_KEY: _ClassVar[Cause]
    RECEIVE_LIMIT: _ClassVar[Cause]
    CONNECTION_RATE: _ClassVar[Cause]
    NO_HELLO: _ClassVar[Cause]
    INVALID_MESSAGE: _ClassVar[Cause]
    MESSAGE_SIZE: _ClassVar[Cause]
    ANSWER_FORM: _ClassVar[Cause]
    ANSWER_VALUE: _ClassVar[Cause]
    LATE_ANSWER: _ClassVar[Cause]
    MISSED_DEADLINES: _ClassVar[Cause]
    SAME_NAME: _ClassVar[Cause]
    SERVER_STOPPING: _ClassVar[Cause]
    SERVER_FAILED: _ClassVar[Cause]
    BUDGET_SPENT: _ClassVar[Cause]
    FEDERATION_OVER: _ClassVar[Cause]
    OWNER: _ClassVar[Cause]
CAUSE_UNSPECIFIED: Cause
CERTIFICATE: Cause
NAME: Cause
NOT_LISTED: Cause
PROTOCOL_VERSION: Cause
OTHER_FEDERATION: Cause
HISTORY: Cause
QUARANTINED: Cause
MASKING_KEY: Cause
RECEIVE_LIMIT: Cause
CONNECTION_RATE: Cause
NO_HELLO: Cause
INVALID_MESSAGE: Cause
MESSAGE_SIZE: Cause
ANSWER_FORM: Cause
ANSWER_VALUE: Cause
LATE_ANSWER: Cause
MISSED_DEADLINES: Cause
SAME_NAME: Cause
SERVER_STOPPING: Cause
SERVER_FAILED: Cause
BUDGET_SPENT: Cause
FEDERATION_OVER: Cause
OWNER: Cause

class FromMember(_message.Message):
    __slots__ = ("hello", "report", "goodbye")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    GOODBYE_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    report: Report
    goodbye: Goodbye
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., report: _Optional[_Union[Report, _Mapping]] = ..., goodbye: _Optional[_Union[Goodbye, _Mapping]] = ...) -> None: ...

class FromServer(_message.Message):
    __slots__ = ("welcome", "order", "goodbye", "notice")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    GOODBYE_FIELD_NUMBER: _ClassVar[int]
    NOTICE_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    order: Order
    goodbye: Goodbye
    notice: Notice
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., order: _Optional[_Union[Order, _Mapping]] = ..., goodbye: _Optional[_Union[Goodbye, _Mapping]] = ..., notice: _Optional[_Union[Notice, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("protocol", "name", "federation", "applied_improvements", "last_improvement", "masking_key", "minor", "most_message_bytes", "software", "capabilities")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    FEDERATION_FIELD_NUMBER: _ClassVar[int]
    APPLIED_IMPROVEMENTS_FIELD_NUMBER: _ClassVar[int]
    LAST_IMPROVEMENT_FIELD_NUMBER: _ClassVar[int]
    MASKING_KEY_FIELD_NUMBER: _ClassVar[int]
    MINOR_FIELD_NUMBER: _ClassVar[int]
    MOST_MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_FIELD_NUMBER: _ClassVar[int]
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    name: str
    federation: str
    applied_improvements: int
    last_improvement: int
    masking_key: MaskingKey
    minor: int
    most_message_bytes: int
    software: str
    capabilities: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, protocol: _Optional[int] = ..., name: _Optional[str] = ..., federation: _Optional[str] = ..., applied_improvements: _Optional[int] = ..., last_improvement: _Optional[int] = ..., masking_key: _Optional[_Union[MaskingKey, _Mapping]] = ..., minor: _Optional[int] = ..., most_message_bytes: _Optional[int] = ..., software: _Optional[str] = ..., capabilities: _Optional[_Iterable[str]] = ...) -> None: ...

class MaskingKey(_message.Message):
    __slots__ = ("name", "public_key", "certificate", "signature")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PUBLIC_KEY_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    name: str
    public_key: bytes
    certificate: bytes
    signature: bytes
    def __init__(self, name: _Optional[str] = ..., public_key: _Optional[bytes] = ..., certificate: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("federation", "task", "improvements", "most_states", "secure_value_bound", "minor", "software", "limits")
    FEDERATION_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    IMPROVEMENTS_FIELD_NUMBER: _ClassVar[int]
    MOST_STATES_FIELD_NUMBER: _ClassVar[int]
    SECURE_VALUE_BOUND_FIELD_NUMBER: _ClassVar[int]
    MINOR_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    federation: str
    task: Task
    improvements: int
    most_states: int
    secure_value_bound: float
    minor: int
    software: str
    limits: Limits
    def __init__(self, federation: _Optional[str] = ..., task: _Optional[_Union[Task, _Mapping]] = ..., improvements: _Optional[int] = ..., most_states: _Optional[int] = ..., secure_value_bound: _Optional[float] = ..., minor: _Optional[int] = ..., software: _Optional[str] = ..., limits: _Optional[_Union[Limits, _Mapping]] = ...) -> None: ...

class Limits(_message.Message):
    __slots__ = ("message_bytes", "messages_per_second", "answer_seconds", "learning_seconds", "missed_deadlines", "refused_answers")
    MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    ANSWER_SECONDS_FIELD_NUMBER: _ClassVar[int]
    LEARNING_SECONDS_FIELD_NUMBER: _ClassVar[int]
    MISSED_DEADLINES_FIELD_NUMBER: _ClassVar[int]
    REFUSED_ANSWERS_FIELD_NUMBER: _ClassVar[int]
    message_bytes: int
    messages_per_second: float
    answer_seconds: float
    learning_seconds: float
    missed_deadlines: int
    refused_answers: int
    def __init__(self, message_bytes: _Optional[int] = ..., messages_per_second: _Optional[float] = ..., answer_seconds: _Optional[float] = ..., learning_seconds: _Optional[float] = ..., missed_deadlines: _Optional[int] = ..., refused_answers: _Optional[int] = ...) -> None: ...

class Task(_message.Message):
    __slots__ = ("environment", "options", "discount", "env_steps_per_member", "state_dtype", "state_shape", "actions")
    class OptionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    DISCOUNT_FIELD_NUMBER: _ClassVar[int]
    ENV_STEPS_PER_MEMBER_FIELD_NUMBER: _ClassVar[int]
    STATE_DTYPE_FIELD_NUMBER: _ClassVar[int]
    STATE_SHAPE_FIELD_NUMBER: _ClassVar[int]
    ACTIONS_FIELD_NUMBER: _ClassVar[int]
    environment: str
    options: _containers.ScalarMap[str, str]
    discount: float
    env_steps_per_member: int
    state_dtype: str
    state_shape: _containers.RepeatedScalarFieldContainer[int]
    actions: int
    def __init__(self, environment: _Optional[str] = ..., options: _Optional[_Mapping[str, str]] = ..., discount: _Optional[float] = ..., env_steps_per_member: _Optional[int] = ..., state_dtype: _Optional[str] = ..., state_shape: _Optional[_Iterable[int]] = ..., actions: _Optional[int] = ...) -> None: ...

class Order(_message.Message):
    __slots__ = ("id", "improvements", "skip_through", "query", "learn")
    ID_FIELD_NUMBER: _ClassVar[int]
    IMPROVEMENTS_FIELD_NUMBER: _ClassVar[int]
    SKIP_THROUGH_FIELD_NUMBER: _ClassVar[int]
    QUERY_FIELD_NUMBER: _ClassVar[int]
    LEARN_FIELD_NUMBER: _ClassVar[int]
    id: OrderId
    improvements: _containers.RepeatedCompositeFieldContainer[Improvement]
    skip_through: int
    query: Query
    learn: Learn
    def __init__(self, id: _Optional[_Union[OrderId, _Mapping]] = ..., improvements: _Optional[_Iterable[_Union[Improvement, _Mapping]]] = ..., skip_through: _Optional[int] = ..., query: _Optional[_Union[Query, _Mapping]] = ..., learn: _Optional[_Union[Learn, _Mapping]] = ...) -> None: ...

class OrderId(_message.Message):
    __slots__ = ("epoch", "number")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    number: int
    def __init__(self, epoch: _Optional[int] = ..., number: _Optional[int] = ...) -> None: ...

class Improvement(_message.Message):
    __slots__ = ("number", "states", "actions", "targets")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    ACTIONS_FIELD_NUMBER: _ClassVar[int]
    TARGETS_FIELD_NUMBER: _ClassVar[int]
    number: int
    states: Tensor
    actions: Tensor
    targets: Tensor
    def __init__(self, number: _Optional[int] = ..., states: _Optional[_Union[Tensor, _Mapping]] = ..., actions: _Optional[_Union[Tensor, _Mapping]] = ..., targets: _Optional[_Union[Tensor, _Mapping]] = ...) -> None: ...

class Query(_message.Message):
    __slots__ = ("states", "cohort", "keys", "act")
    STATES_FIELD_NUMBER: _ClassVar[int]
    COHORT_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    ACT_FIELD_NUMBER: _ClassVar[int]
    states: Tensor
    cohort: _containers.RepeatedScalarFieldContainer[str]
    keys: _containers.RepeatedCompositeFieldContainer[MaskingKey]
    act: bool
    def __init__(self, states: _Optional[_Union[Tensor, _Mapping]] = ..., cohort: _Optional[_Iterable[str]] = ..., keys: _Optional[_Iterable[_Union[MaskingKey, _Mapping]]] = ..., act: _Optional[bool] = ...) -> None: ...

class Learn(_message.Message):
    __slots__ = ("phase", "env_steps", "chunk_env_steps")
    PHASE_FIELD_NUMBER: _ClassVar[int]
    ENV_STEPS_FIELD_NUMBER: _ClassVar[int]
    CHUNK_ENV_STEPS_FIELD_NUMBER: _ClassVar[int]
    phase: int
    env_steps: int
    chunk_env_steps: int
    def __init__(self, phase: _Optional[int] = ..., env_steps: _Optional[int] = ..., chunk_env_steps: _Optional[int] = ...) -> None: ...

class Report(_message.Message):
    __slots__ = ("id", "applied_improvements", "skipped_improvements", "values", "phase", "phase_env_steps", "actions")
    ID_FIELD_NUMBER: _ClassVar[int]
    APPLIED_IMPROVEMENTS_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_IMPROVEMENTS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    PHASE_ENV_STEPS_FIELD_NUMBER: _ClassVar[int]
    ACTIONS_FIELD_NUMBER: _ClassVar[int]
    id: OrderId
    applied_improvements: int
    skipped_improvements: int
    values: Tensor
    phase: int
    phase_env_steps: int
    actions: Tensor
    def __init__(self, id: _Optional[_Union[OrderId, _Mapping]] = ..., applied_improvements: _Optional[int] = ..., skipped_improvements: _Optional[int] = ..., values: _Optional[_Union[Tensor, _Mapping]] = ..., phase: _Optional[int] = ..., phase_env_steps: _Optional[int] = ..., actions: _Optional[_Union[Tensor, _Mapping]] = ...) -> None: ...

class Notice(_message.Message):
    __slots__ = ("id", "cause", "detail", "left")
    ID_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    id: OrderId
    cause: Cause
    detail: str
    left: int
    def __init__(self, id: _Optional[_Union[OrderId, _Mapping]] = ..., cause: _Optional[_Union[Cause, str]] = ..., detail: _Optional[str] = ..., left: _Optional[int] = ...) -> None: ...

class Goodbye(_message.Message):
    __slots__ = ("reason", "detail", "cause", "retry_after_seconds")
    class Reason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        UNSPECIFIED: _ClassVar[Goodbye.Reason]
        FINISHED: _ClassVar[Goodbye.Reason]
        STOPPED: _ClassVar[Goodbye.Reason]
        REFUSED: _ClassVar[Goodbye.Reason]
        REPLACED: _ClassVar[Goodbye.Reason]
    UNSPECIFIED: Goodbye.Reason
    FINISHED: Goodbye.Reason
    STOPPED: Goodbye.Reason
    REFUSED: Goodbye.Reason
    REPLACED: Goodbye.Reason
    REASON_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_SECONDS_FIELD_NUMBER: _ClassVar[int]
    reason: Goodbye.Reason
    detail: str
    cause: Cause
    retry_after_seconds: float
    def __init__(self, reason: _Optional[_Union[Goodbye.Reason, str]] = ..., detail: _Optional[str] = ..., cause: _Optional[_Union[Cause, str]] = ..., retry_after_seconds: _Optional[float] = ...) -> None: ...

class Tensor(_message.Message):
    __slots__ = ("dtype", "shape", "data")
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    dtype: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    data: bytes
    def __init__(self, dtype: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., data: _Optional[bytes] = ...) -> None: ...
