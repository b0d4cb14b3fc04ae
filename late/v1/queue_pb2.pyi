import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from late.v1 import task_pb2 as _task_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class EnqueueRequest(_message.Message):
    __slots__ = ("tasks",)
    TASKS_FIELD_NUMBER: _ClassVar[int]
    tasks: _containers.RepeatedCompositeFieldContainer[NewTask]
    def __init__(self, tasks: _Optional[_Iterable[_Union[NewTask, _Mapping]]] = ...) -> None: ...

class NewTask(_message.Message):
    __slots__ = ("queue", "name", "payload", "headers", "at", "delay", "expires_at", "expires_in", "priority", "ordering_key", "unique_key", "unique_for", "on_conflict", "max_wait", "lane")
    class OnConflict(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        EXISTING: _ClassVar[NewTask.OnConflict]
        REJECT: _ClassVar[NewTask.OnConflict]
        REPLACE: _ClassVar[NewTask.OnConflict]
    EXISTING: NewTask.OnConflict
    REJECT: NewTask.OnConflict
    REPLACE: NewTask.OnConflict
    class HeadersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    DELAY_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_IN_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    ORDERING_KEY_FIELD_NUMBER: _ClassVar[int]
    UNIQUE_KEY_FIELD_NUMBER: _ClassVar[int]
    UNIQUE_FOR_FIELD_NUMBER: _ClassVar[int]
    ON_CONFLICT_FIELD_NUMBER: _ClassVar[int]
    MAX_WAIT_FIELD_NUMBER: _ClassVar[int]
    LANE_FIELD_NUMBER: _ClassVar[int]
    queue: str
    name: str
    payload: bytes
    headers: _containers.ScalarMap[str, str]
    at: _timestamp_pb2.Timestamp
    delay: _duration_pb2.Duration
    expires_at: _timestamp_pb2.Timestamp
    expires_in: _duration_pb2.Duration
    priority: int
    ordering_key: str
    unique_key: str
    unique_for: _duration_pb2.Duration
    on_conflict: NewTask.OnConflict
    max_wait: _duration_pb2.Duration
    lane: str
    def __init__(self, queue: _Optional[str] = ..., name: _Optional[str] = ..., payload: _Optional[bytes] = ..., headers: _Optional[_Mapping[str, str]] = ..., at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., delay: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., expires_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., expires_in: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., priority: _Optional[int] = ..., ordering_key: _Optional[str] = ..., unique_key: _Optional[str] = ..., unique_for: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., on_conflict: _Optional[_Union[NewTask.OnConflict, str]] = ..., max_wait: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., lane: _Optional[str] = ...) -> None: ...

class EnqueueResponse(_message.Message):
    __slots__ = ("task_ids", "token")
    TASK_IDS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    task_ids: _containers.RepeatedScalarFieldContainer[str]
    token: str
    def __init__(self, task_ids: _Optional[_Iterable[str]] = ..., token: _Optional[str] = ...) -> None: ...

class ConsumeRequest(_message.Message):
    __slots__ = ("subscribe", "credit", "ack", "nack", "extend")
    SUBSCRIBE_FIELD_NUMBER: _ClassVar[int]
    CREDIT_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    NACK_FIELD_NUMBER: _ClassVar[int]
    EXTEND_FIELD_NUMBER: _ClassVar[int]
    subscribe: Subscribe
    credit: Credit
    ack: Ack
    nack: Nack
    extend: Extend
    def __init__(self, subscribe: _Optional[_Union[Subscribe, _Mapping]] = ..., credit: _Optional[_Union[Credit, _Mapping]] = ..., ack: _Optional[_Union[Ack, _Mapping]] = ..., nack: _Optional[_Union[Nack, _Mapping]] = ..., extend: _Optional[_Union[Extend, _Mapping]] = ...) -> None: ...

class Subscribe(_message.Message):
    __slots__ = ("group", "queues", "names", "visibility", "consumer")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    VISIBILITY_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_FIELD_NUMBER: _ClassVar[int]
    group: str
    queues: _containers.RepeatedScalarFieldContainer[str]
    names: _containers.RepeatedScalarFieldContainer[str]
    visibility: _duration_pb2.Duration
    consumer: str
    def __init__(self, group: _Optional[str] = ..., queues: _Optional[_Iterable[str]] = ..., names: _Optional[_Iterable[str]] = ..., visibility: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., consumer: _Optional[str] = ...) -> None: ...

class Credit(_message.Message):
    __slots__ = ("tasks",)
    TASKS_FIELD_NUMBER: _ClassVar[int]
    tasks: int
    def __init__(self, tasks: _Optional[int] = ...) -> None: ...

class Answer(_message.Message):
    __slots__ = ("receipt", "done", "retry", "snooze", "discard", "fail", "not_capable")
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    RETRY_FIELD_NUMBER: _ClassVar[int]
    SNOOZE_FIELD_NUMBER: _ClassVar[int]
    DISCARD_FIELD_NUMBER: _ClassVar[int]
    FAIL_FIELD_NUMBER: _ClassVar[int]
    NOT_CAPABLE_FIELD_NUMBER: _ClassVar[int]
    receipt: str
    done: _task_pb2.Done
    retry: _task_pb2.Retry
    snooze: _task_pb2.Snooze
    discard: _task_pb2.Discard
    fail: _task_pb2.Fail
    not_capable: _task_pb2.NotCapable
    def __init__(self, receipt: _Optional[str] = ..., done: _Optional[_Union[_task_pb2.Done, _Mapping]] = ..., retry: _Optional[_Union[_task_pb2.Retry, _Mapping]] = ..., snooze: _Optional[_Union[_task_pb2.Snooze, _Mapping]] = ..., discard: _Optional[_Union[_task_pb2.Discard, _Mapping]] = ..., fail: _Optional[_Union[_task_pb2.Fail, _Mapping]] = ..., not_capable: _Optional[_Union[_task_pb2.NotCapable, _Mapping]] = ...) -> None: ...

class Ack(_message.Message):
    __slots__ = ("receipts",)
    RECEIPTS_FIELD_NUMBER: _ClassVar[int]
    receipts: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, receipts: _Optional[_Iterable[str]] = ...) -> None: ...

class Nack(_message.Message):
    __slots__ = ("answers",)
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    answers: _containers.RepeatedCompositeFieldContainer[Answer]
    def __init__(self, answers: _Optional[_Iterable[_Union[Answer, _Mapping]]] = ...) -> None: ...

class Extend(_message.Message):
    __slots__ = ("receipts", "visibility")
    RECEIPTS_FIELD_NUMBER: _ClassVar[int]
    VISIBILITY_FIELD_NUMBER: _ClassVar[int]
    receipts: _containers.RepeatedScalarFieldContainer[str]
    visibility: _duration_pb2.Duration
    def __init__(self, receipts: _Optional[_Iterable[str]] = ..., visibility: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class ConsumeResponse(_message.Message):
    __slots__ = ("subscribed", "deliveries", "receipts", "drain")
    SUBSCRIBED_FIELD_NUMBER: _ClassVar[int]
    DELIVERIES_FIELD_NUMBER: _ClassVar[int]
    RECEIPTS_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    subscribed: Subscribed
    deliveries: Deliveries
    receipts: Receipts
    drain: Drain
    def __init__(self, subscribed: _Optional[_Union[Subscribed, _Mapping]] = ..., deliveries: _Optional[_Union[Deliveries, _Mapping]] = ..., receipts: _Optional[_Union[Receipts, _Mapping]] = ..., drain: _Optional[_Union[Drain, _Mapping]] = ...) -> None: ...

class Subscribed(_message.Message):
    __slots__ = ("consumer", "visibility", "credit_max")
    CONSUMER_FIELD_NUMBER: _ClassVar[int]
    VISIBILITY_FIELD_NUMBER: _ClassVar[int]
    CREDIT_MAX_FIELD_NUMBER: _ClassVar[int]
    consumer: str
    visibility: _duration_pb2.Duration
    credit_max: int
    def __init__(self, consumer: _Optional[str] = ..., visibility: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., credit_max: _Optional[int] = ...) -> None: ...

class Deliveries(_message.Message):
    __slots__ = ("deliveries",)
    DELIVERIES_FIELD_NUMBER: _ClassVar[int]
    deliveries: _containers.RepeatedCompositeFieldContainer[Delivery]
    def __init__(self, deliveries: _Optional[_Iterable[_Union[Delivery, _Mapping]]] = ...) -> None: ...

class Delivery(_message.Message):
    __slots__ = ("task", "receipt", "visible_until")
    TASK_FIELD_NUMBER: _ClassVar[int]
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    VISIBLE_UNTIL_FIELD_NUMBER: _ClassVar[int]
    task: _task_pb2.Task
    receipt: str
    visible_until: _timestamp_pb2.Timestamp
    def __init__(self, task: _Optional[_Union[_task_pb2.Task, _Mapping]] = ..., receipt: _Optional[str] = ..., visible_until: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class Receipts(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[ReceiptResult]
    def __init__(self, results: _Optional[_Iterable[_Union[ReceiptResult, _Mapping]]] = ...) -> None: ...

class ReceiptResult(_message.Message):
    __slots__ = ("receipt", "status", "visible_until")
    class Status(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STATUS_UNSPECIFIED: _ClassVar[ReceiptResult.Status]
        ACCEPTED: _ClassVar[ReceiptResult.Status]
        STALE: _ClassVar[ReceiptResult.Status]
        UNKNOWN: _ClassVar[ReceiptResult.Status]
    STATUS_UNSPECIFIED: ReceiptResult.Status
    ACCEPTED: ReceiptResult.Status
    STALE: ReceiptResult.Status
    UNKNOWN: ReceiptResult.Status
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    VISIBLE_UNTIL_FIELD_NUMBER: _ClassVar[int]
    receipt: str
    status: ReceiptResult.Status
    visible_until: _timestamp_pb2.Timestamp
    def __init__(self, receipt: _Optional[str] = ..., status: _Optional[_Union[ReceiptResult.Status, str]] = ..., visible_until: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class Drain(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class StatsRequest(_message.Message):
    __slots__ = ("group", "queues")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    group: str
    queues: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, group: _Optional[str] = ..., queues: _Optional[_Iterable[str]] = ...) -> None: ...

class StatsResponse(_message.Message):
    __slots__ = ("queues",)
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    queues: _containers.RepeatedCompositeFieldContainer[QueueStats]
    def __init__(self, queues: _Optional[_Iterable[_Union[QueueStats, _Mapping]]] = ...) -> None: ...

class QueueStats(_message.Message):
    __slots__ = ("queue", "ready", "parked", "running", "dead", "oldest")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    PARKED_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    DEAD_FIELD_NUMBER: _ClassVar[int]
    OLDEST_FIELD_NUMBER: _ClassVar[int]
    queue: str
    ready: int
    parked: int
    running: int
    dead: int
    oldest: _duration_pb2.Duration
    def __init__(self, queue: _Optional[str] = ..., ready: _Optional[int] = ..., parked: _Optional[int] = ..., running: _Optional[int] = ..., dead: _Optional[int] = ..., oldest: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...
