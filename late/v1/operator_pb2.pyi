import datetime

from google.protobuf import struct_pb2 as _struct_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ShowTaskRequest(_message.Message):
    __slots__ = ("task_id", "group", "wait_s", "payload", "everywhere", "as_of")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    EVERYWHERE_FIELD_NUMBER: _ClassVar[int]
    AS_OF_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    group: str
    wait_s: float
    payload: bool
    everywhere: bool
    as_of: str
    def __init__(self, task_id: _Optional[str] = ..., group: _Optional[str] = ..., wait_s: _Optional[float] = ..., payload: bool = ..., everywhere: bool = ..., as_of: _Optional[str] = ...) -> None: ...

class TaskResultRequest(_message.Message):
    __slots__ = ("task_id", "group", "wait_s")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    group: str
    wait_s: float
    def __init__(self, task_id: _Optional[str] = ..., group: _Optional[str] = ..., wait_s: _Optional[float] = ...) -> None: ...

class CancelTaskRequest(_message.Message):
    __slots__ = ("task_id", "group")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    group: str
    def __init__(self, task_id: _Optional[str] = ..., group: _Optional[str] = ...) -> None: ...

class RescheduleTaskRequest(_message.Message):
    __slots__ = ("task_id", "at", "delay_s", "group")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    DELAY_S_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    at: _timestamp_pb2.Timestamp
    delay_s: float
    group: str
    def __init__(self, task_id: _Optional[str] = ..., at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., delay_s: _Optional[float] = ..., group: _Optional[str] = ...) -> None: ...

class EditTaskRequest(_message.Message):
    __slots__ = ("task_id", "payload", "group")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    payload: str
    group: str
    def __init__(self, task_id: _Optional[str] = ..., payload: _Optional[str] = ..., group: _Optional[str] = ...) -> None: ...

class ListTasksRequest(_message.Message):
    __slots__ = ("group", "queue", "name", "reason", "key", "tenant", "header", "older_s", "since", "until", "state", "limit", "after")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    HEADER_FIELD_NUMBER: _ClassVar[int]
    OLDER_S_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    group: str
    queue: str
    name: str
    reason: str
    key: str
    tenant: str
    header: str
    older_s: float
    since: _timestamp_pb2.Timestamp
    until: _timestamp_pb2.Timestamp
    state: str
    limit: int
    after: str
    def __init__(self, group: _Optional[str] = ..., queue: _Optional[str] = ..., name: _Optional[str] = ..., reason: _Optional[str] = ..., key: _Optional[str] = ..., tenant: _Optional[str] = ..., header: _Optional[str] = ..., older_s: _Optional[float] = ..., since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., until: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., state: _Optional[str] = ..., limit: _Optional[int] = ..., after: _Optional[str] = ...) -> None: ...

class CancelTasksRequest(_message.Message):
    __slots__ = ("group", "queue", "name", "reason", "key", "tenant", "header", "older_s", "since", "until", "state", "all", "limit", "dry_run")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    HEADER_FIELD_NUMBER: _ClassVar[int]
    OLDER_S_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ALL_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    group: str
    queue: str
    name: str
    reason: str
    key: str
    tenant: str
    header: str
    older_s: float
    since: _timestamp_pb2.Timestamp
    until: _timestamp_pb2.Timestamp
    state: str
    all: bool
    limit: int
    dry_run: bool
    def __init__(self, group: _Optional[str] = ..., queue: _Optional[str] = ..., name: _Optional[str] = ..., reason: _Optional[str] = ..., key: _Optional[str] = ..., tenant: _Optional[str] = ..., header: _Optional[str] = ..., older_s: _Optional[float] = ..., since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., until: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., state: _Optional[str] = ..., all: bool = ..., limit: _Optional[int] = ..., dry_run: bool = ...) -> None: ...

class RescheduleTasksRequest(_message.Message):
    __slots__ = ("group", "queue", "name", "reason", "key", "tenant", "header", "older_s", "since", "until", "state", "all", "limit", "dry_run", "at", "delay_s", "rate")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    HEADER_FIELD_NUMBER: _ClassVar[int]
    OLDER_S_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ALL_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    DELAY_S_FIELD_NUMBER: _ClassVar[int]
    RATE_FIELD_NUMBER: _ClassVar[int]
    group: str
    queue: str
    name: str
    reason: str
    key: str
    tenant: str
    header: str
    older_s: float
    since: _timestamp_pb2.Timestamp
    until: _timestamp_pb2.Timestamp
    state: str
    all: bool
    limit: int
    dry_run: bool
    at: _timestamp_pb2.Timestamp
    delay_s: float
    rate: float
    def __init__(self, group: _Optional[str] = ..., queue: _Optional[str] = ..., name: _Optional[str] = ..., reason: _Optional[str] = ..., key: _Optional[str] = ..., tenant: _Optional[str] = ..., header: _Optional[str] = ..., older_s: _Optional[float] = ..., since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., until: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., state: _Optional[str] = ..., all: bool = ..., limit: _Optional[int] = ..., dry_run: bool = ..., at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., delay_s: _Optional[float] = ..., rate: _Optional[float] = ...) -> None: ...

class ListWorkflowsRequest(_message.Message):
    __slots__ = ("state", "name", "limit", "after")
    STATE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    state: str
    name: str
    limit: int
    after: str
    def __init__(self, state: _Optional[str] = ..., name: _Optional[str] = ..., limit: _Optional[int] = ..., after: _Optional[str] = ...) -> None: ...

class ShowWorkflowRequest(_message.Message):
    __slots__ = ("task_id", "wait_s")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    wait_s: float
    def __init__(self, task_id: _Optional[str] = ..., wait_s: _Optional[float] = ...) -> None: ...

class CancelWorkflowRequest(_message.Message):
    __slots__ = ("task_id",)
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    def __init__(self, task_id: _Optional[str] = ...) -> None: ...

class RedriveWorkflowRequest(_message.Message):
    __slots__ = ("task_id", "dry_run")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    dry_run: bool
    def __init__(self, task_id: _Optional[str] = ..., dry_run: bool = ...) -> None: ...

class ListDeadRequest(_message.Message):
    __slots__ = ("queue", "name", "reason", "group", "task_id", "since", "until", "error", "workflow", "limit")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    WORKFLOW_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    queue: str
    name: str
    reason: str
    group: str
    task_id: str
    since: _timestamp_pb2.Timestamp
    until: _timestamp_pb2.Timestamp
    error: str
    workflow: str
    limit: int
    def __init__(self, queue: _Optional[str] = ..., name: _Optional[str] = ..., reason: _Optional[str] = ..., group: _Optional[str] = ..., task_id: _Optional[str] = ..., since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., until: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., error: _Optional[str] = ..., workflow: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class RedriveDeadRequest(_message.Message):
    __slots__ = ("queue", "name", "reason", "group", "task_id", "since", "until", "error", "workflow", "all", "limit", "dry_run", "rate")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    WORKFLOW_FIELD_NUMBER: _ClassVar[int]
    ALL_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    RATE_FIELD_NUMBER: _ClassVar[int]
    queue: str
    name: str
    reason: str
    group: str
    task_id: str
    since: _timestamp_pb2.Timestamp
    until: _timestamp_pb2.Timestamp
    error: str
    workflow: str
    all: bool
    limit: int
    dry_run: bool
    rate: float
    def __init__(self, queue: _Optional[str] = ..., name: _Optional[str] = ..., reason: _Optional[str] = ..., group: _Optional[str] = ..., task_id: _Optional[str] = ..., since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., until: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., error: _Optional[str] = ..., workflow: _Optional[str] = ..., all: bool = ..., limit: _Optional[int] = ..., dry_run: bool = ..., rate: _Optional[float] = ...) -> None: ...

class PurgeDeadRequest(_message.Message):
    __slots__ = ("queue", "name", "reason", "group", "task_id", "since", "until", "error", "workflow", "all", "limit", "dry_run")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    WORKFLOW_FIELD_NUMBER: _ClassVar[int]
    ALL_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    queue: str
    name: str
    reason: str
    group: str
    task_id: str
    since: _timestamp_pb2.Timestamp
    until: _timestamp_pb2.Timestamp
    error: str
    workflow: str
    all: bool
    limit: int
    dry_run: bool
    def __init__(self, queue: _Optional[str] = ..., name: _Optional[str] = ..., reason: _Optional[str] = ..., group: _Optional[str] = ..., task_id: _Optional[str] = ..., since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., until: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., error: _Optional[str] = ..., workflow: _Optional[str] = ..., all: bool = ..., limit: _Optional[int] = ..., dry_run: bool = ...) -> None: ...

class ListKnobsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListChangesRequest(_message.Message):
    __slots__ = ("limit",)
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    limit: int
    def __init__(self, limit: _Optional[int] = ...) -> None: ...

class ShowQueueKnobsRequest(_message.Message):
    __slots__ = ("queue",)
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    queue: str
    def __init__(self, queue: _Optional[str] = ...) -> None: ...

class SetQueueKnobsRequest(_message.Message):
    __slots__ = ("queue", "knobs", "dry_run")
    class KnobsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _struct_pb2.Value
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_struct_pb2.Value, _Mapping]] = ...) -> None: ...
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    KNOBS_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    queue: str
    knobs: _containers.MessageMap[str, _struct_pb2.Value]
    dry_run: bool
    def __init__(self, queue: _Optional[str] = ..., knobs: _Optional[_Mapping[str, _struct_pb2.Value]] = ..., dry_run: bool = ...) -> None: ...

class PauseQueueRequest(_message.Message):
    __slots__ = ("queue",)
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    queue: str
    def __init__(self, queue: _Optional[str] = ...) -> None: ...

class ResumeQueueRequest(_message.Message):
    __slots__ = ("queue",)
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    queue: str
    def __init__(self, queue: _Optional[str] = ...) -> None: ...

class ListQueueChangesRequest(_message.Message):
    __slots__ = ("queue", "limit")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    queue: str
    limit: int
    def __init__(self, queue: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class SimulateQueueRequest(_message.Message):
    __slots__ = ("queue", "since", "variants", "slots", "group")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    VARIANTS_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    queue: str
    since: str
    variants: str
    slots: int
    group: str
    def __init__(self, queue: _Optional[str] = ..., since: _Optional[str] = ..., variants: _Optional[str] = ..., slots: _Optional[int] = ..., group: _Optional[str] = ...) -> None: ...

class UndoQueueChangeRequest(_message.Message):
    __slots__ = ("queue", "change")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    queue: str
    change: str
    def __init__(self, queue: _Optional[str] = ..., change: _Optional[str] = ...) -> None: ...

class DeleteQueueRequest(_message.Message):
    __slots__ = ("queue", "dry_run", "force")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    queue: str
    dry_run: bool
    force: bool
    def __init__(self, queue: _Optional[str] = ..., dry_run: bool = ..., force: bool = ...) -> None: ...

class ListTargetsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ShowTargetKnobsRequest(_message.Message):
    __slots__ = ("target",)
    TARGET_FIELD_NUMBER: _ClassVar[int]
    target: str
    def __init__(self, target: _Optional[str] = ...) -> None: ...

class SetTargetKnobsRequest(_message.Message):
    __slots__ = ("target", "knobs", "dry_run")
    class KnobsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _struct_pb2.Value
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_struct_pb2.Value, _Mapping]] = ...) -> None: ...
    TARGET_FIELD_NUMBER: _ClassVar[int]
    KNOBS_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    target: str
    knobs: _containers.MessageMap[str, _struct_pb2.Value]
    dry_run: bool
    def __init__(self, target: _Optional[str] = ..., knobs: _Optional[_Mapping[str, _struct_pb2.Value]] = ..., dry_run: bool = ...) -> None: ...

class PauseTargetRequest(_message.Message):
    __slots__ = ("target",)
    TARGET_FIELD_NUMBER: _ClassVar[int]
    target: str
    def __init__(self, target: _Optional[str] = ...) -> None: ...

class ResumeTargetRequest(_message.Message):
    __slots__ = ("target",)
    TARGET_FIELD_NUMBER: _ClassVar[int]
    target: str
    def __init__(self, target: _Optional[str] = ...) -> None: ...

class UndoTargetChangeRequest(_message.Message):
    __slots__ = ("target", "change")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    target: str
    change: str
    def __init__(self, target: _Optional[str] = ..., change: _Optional[str] = ...) -> None: ...

class ListGroupsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CreateGroupRequest(_message.Message):
    __slots__ = ("name", "queues", "place", "at", "max_age_s")
    NAME_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    MAX_AGE_S_FIELD_NUMBER: _ClassVar[int]
    name: str
    queues: _containers.RepeatedScalarFieldContainer[str]
    place: str
    at: _timestamp_pb2.Timestamp
    max_age_s: float
    def __init__(self, name: _Optional[str] = ..., queues: _Optional[_Iterable[str]] = ..., place: _Optional[str] = ..., at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., max_age_s: _Optional[float] = ...) -> None: ...

class CreateShadowRequest(_message.Message):
    __slots__ = ("name", "of", "queues", "place", "at", "rate", "speed", "keep_s")
    NAME_FIELD_NUMBER: _ClassVar[int]
    OF_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    RATE_FIELD_NUMBER: _ClassVar[int]
    SPEED_FIELD_NUMBER: _ClassVar[int]
    KEEP_S_FIELD_NUMBER: _ClassVar[int]
    name: str
    of: str
    queues: _containers.RepeatedScalarFieldContainer[str]
    place: str
    at: _timestamp_pb2.Timestamp
    rate: float
    speed: float
    keep_s: float
    def __init__(self, name: _Optional[str] = ..., of: _Optional[str] = ..., queues: _Optional[_Iterable[str]] = ..., place: _Optional[str] = ..., at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., rate: _Optional[float] = ..., speed: _Optional[float] = ..., keep_s: _Optional[float] = ...) -> None: ...

class CompareGroupRequest(_message.Message):
    __slots__ = ("group",)
    GROUP_FIELD_NUMBER: _ClassVar[int]
    group: str
    def __init__(self, group: _Optional[str] = ...) -> None: ...

class ShowGroupRequest(_message.Message):
    __slots__ = ("group",)
    GROUP_FIELD_NUMBER: _ClassVar[int]
    group: str
    def __init__(self, group: _Optional[str] = ...) -> None: ...

class SetGroupRequest(_message.Message):
    __slots__ = ("group", "settings")
    class SettingsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _struct_pb2.Value
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_struct_pb2.Value, _Mapping]] = ...) -> None: ...
    GROUP_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    group: str
    settings: _containers.MessageMap[str, _struct_pb2.Value]
    def __init__(self, group: _Optional[str] = ..., settings: _Optional[_Mapping[str, _struct_pb2.Value]] = ...) -> None: ...

class PauseGroupRequest(_message.Message):
    __slots__ = ("group",)
    GROUP_FIELD_NUMBER: _ClassVar[int]
    group: str
    def __init__(self, group: _Optional[str] = ...) -> None: ...

class ResumeGroupRequest(_message.Message):
    __slots__ = ("group",)
    GROUP_FIELD_NUMBER: _ClassVar[int]
    group: str
    def __init__(self, group: _Optional[str] = ...) -> None: ...

class ResetGroupRequest(_message.Message):
    __slots__ = ("group", "place", "at", "dry_run", "rate")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    RATE_FIELD_NUMBER: _ClassVar[int]
    group: str
    place: str
    at: _timestamp_pb2.Timestamp
    dry_run: bool
    rate: float
    def __init__(self, group: _Optional[str] = ..., place: _Optional[str] = ..., at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., dry_run: bool = ..., rate: _Optional[float] = ...) -> None: ...

class ReplayGroupRequest(_message.Message):
    __slots__ = ("group", "since", "until", "rate", "again", "dry_run")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    RATE_FIELD_NUMBER: _ClassVar[int]
    AGAIN_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    group: str
    since: _timestamp_pb2.Timestamp
    until: _timestamp_pb2.Timestamp
    rate: float
    again: bool
    dry_run: bool
    def __init__(self, group: _Optional[str] = ..., since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., until: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., rate: _Optional[float] = ..., again: bool = ..., dry_run: bool = ...) -> None: ...

class CancelReplayRequest(_message.Message):
    __slots__ = ("group",)
    GROUP_FIELD_NUMBER: _ClassVar[int]
    group: str
    def __init__(self, group: _Optional[str] = ...) -> None: ...

class DeleteGroupRequest(_message.Message):
    __slots__ = ("group",)
    GROUP_FIELD_NUMBER: _ClassVar[int]
    group: str
    def __init__(self, group: _Optional[str] = ...) -> None: ...

class WaitForGroupRequest(_message.Message):
    __slots__ = ("group", "until", "wait_s")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    group: str
    until: str
    wait_s: float
    def __init__(self, group: _Optional[str] = ..., until: _Optional[str] = ..., wait_s: _Optional[float] = ...) -> None: ...

class ShowRetentionRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SetRetentionRequest(_message.Message):
    __slots__ = ("retention_s",)
    RETENTION_S_FIELD_NUMBER: _ClassVar[int]
    retention_s: float
    def __init__(self, retention_s: _Optional[float] = ...) -> None: ...

class ListSchedulesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PauseScheduleRequest(_message.Message):
    __slots__ = ("schedule",)
    SCHEDULE_FIELD_NUMBER: _ClassVar[int]
    schedule: str
    def __init__(self, schedule: _Optional[str] = ...) -> None: ...

class ResumeScheduleRequest(_message.Message):
    __slots__ = ("schedule",)
    SCHEDULE_FIELD_NUMBER: _ClassVar[int]
    schedule: str
    def __init__(self, schedule: _Optional[str] = ...) -> None: ...

class RunScheduleRequest(_message.Message):
    __slots__ = ("schedule",)
    SCHEDULE_FIELD_NUMBER: _ClassVar[int]
    schedule: str
    def __init__(self, schedule: _Optional[str] = ...) -> None: ...

class BackfillScheduleRequest(_message.Message):
    __slots__ = ("schedule", "since", "until", "dry_run")
    SCHEDULE_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    schedule: str
    since: _timestamp_pb2.Timestamp
    until: _timestamp_pb2.Timestamp
    dry_run: bool
    def __init__(self, schedule: _Optional[str] = ..., since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., until: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., dry_run: bool = ...) -> None: ...

class RemoveScheduleRequest(_message.Message):
    __slots__ = ("schedule",)
    SCHEDULE_FIELD_NUMBER: _ClassVar[int]
    schedule: str
    def __init__(self, schedule: _Optional[str] = ...) -> None: ...

class ShowStatusRequest(_message.Message):
    __slots__ = ("queue", "limit", "as_of")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    AS_OF_FIELD_NUMBER: _ClassVar[int]
    queue: str
    limit: int
    as_of: str
    def __init__(self, queue: _Optional[str] = ..., limit: _Optional[int] = ..., as_of: _Optional[str] = ...) -> None: ...

class ShowOwnersRequest(_message.Message):
    __slots__ = ("limit",)
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    limit: int
    def __init__(self, limit: _Optional[int] = ...) -> None: ...

class ShowConflictsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListLanesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ResizeLaneRequest(_message.Message):
    __slots__ = ("lane", "shards")
    LANE_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    lane: str
    shards: int
    def __init__(self, lane: _Optional[str] = ..., shards: _Optional[int] = ...) -> None: ...

class ListAutoscalersRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListDecisionsRequest(_message.Message):
    __slots__ = ("name", "changes", "limit")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    name: str
    changes: bool
    limit: int
    def __init__(self, name: _Optional[str] = ..., changes: bool = ..., limit: _Optional[int] = ...) -> None: ...

class TaskView(_message.Message):
    __slots__ = ("task_id", "shard_id", "made_at_us", "groups", "queue", "name", "position", "created_at_us", "payload_bytes", "payload", "headers", "options", "workflow", "as_of", "enqueued_at_us")
    class HeadersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    SHARD_ID_FIELD_NUMBER: _ClassVar[int]
    MADE_AT_US_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_US_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    WORKFLOW_FIELD_NUMBER: _ClassVar[int]
    AS_OF_FIELD_NUMBER: _ClassVar[int]
    ENQUEUED_AT_US_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    shard_id: int
    made_at_us: int
    groups: _containers.RepeatedCompositeFieldContainer[TaskInGroup]
    queue: str
    name: str
    position: int
    created_at_us: int
    payload_bytes: int
    payload: str
    headers: _containers.ScalarMap[str, str]
    options: str
    workflow: _containers.RepeatedCompositeFieldContainer[StageView]
    as_of: AsOf
    enqueued_at_us: int
    def __init__(self, task_id: _Optional[str] = ..., shard_id: _Optional[int] = ..., made_at_us: _Optional[int] = ..., groups: _Optional[_Iterable[_Union[TaskInGroup, _Mapping]]] = ..., queue: _Optional[str] = ..., name: _Optional[str] = ..., position: _Optional[int] = ..., created_at_us: _Optional[int] = ..., payload_bytes: _Optional[int] = ..., payload: _Optional[str] = ..., headers: _Optional[_Mapping[str, str]] = ..., options: _Optional[str] = ..., workflow: _Optional[_Iterable[_Union[StageView, _Mapping]]] = ..., as_of: _Optional[_Union[AsOf, _Mapping]] = ..., enqueued_at_us: _Optional[int] = ...) -> None: ...

class TaskInGroup(_message.Message):
    __slots__ = ("group", "state", "reason", "due_at_us", "dead_at_us", "held_key", "attempts", "deaths", "suspect", "errors", "owner", "history", "payload", "outcome")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    DUE_AT_US_FIELD_NUMBER: _ClassVar[int]
    DEAD_AT_US_FIELD_NUMBER: _ClassVar[int]
    HELD_KEY_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    DEATHS_FIELD_NUMBER: _ClassVar[int]
    SUSPECT_FIELD_NUMBER: _ClassVar[int]
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    group: str
    state: str
    reason: str
    due_at_us: int
    dead_at_us: int
    held_key: str
    attempts: int
    deaths: int
    suspect: bool
    errors: _containers.RepeatedCompositeFieldContainer[AttemptError]
    owner: str
    history: _containers.RepeatedCompositeFieldContainer[StepView]
    payload: str
    outcome: str
    def __init__(self, group: _Optional[str] = ..., state: _Optional[str] = ..., reason: _Optional[str] = ..., due_at_us: _Optional[int] = ..., dead_at_us: _Optional[int] = ..., held_key: _Optional[str] = ..., attempts: _Optional[int] = ..., deaths: _Optional[int] = ..., suspect: bool = ..., errors: _Optional[_Iterable[_Union[AttemptError, _Mapping]]] = ..., owner: _Optional[str] = ..., history: _Optional[_Iterable[_Union[StepView, _Mapping]]] = ..., payload: _Optional[str] = ..., outcome: _Optional[str] = ...) -> None: ...

class AttemptError(_message.Message):
    __slots__ = ("attempt", "at_us", "worker", "error")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    AT_US_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    attempt: int
    at_us: int
    worker: str
    error: str
    def __init__(self, attempt: _Optional[int] = ..., at_us: _Optional[int] = ..., worker: _Optional[str] = ..., error: _Optional[str] = ...) -> None: ...

class StepView(_message.Message):
    __slots__ = ("number", "at_us", "event", "worker", "detail")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    AT_US_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    number: int
    at_us: int
    event: str
    worker: str
    detail: StepDetail
    def __init__(self, number: _Optional[int] = ..., at_us: _Optional[int] = ..., event: _Optional[str] = ..., worker: _Optional[str] = ..., detail: _Optional[_Union[StepDetail, _Mapping]] = ...) -> None: ...

class StepDetail(_message.Message):
    __slots__ = ("attempt", "target", "started_at_us", "busy_us", "until_us", "reason", "error")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_US_FIELD_NUMBER: _ClassVar[int]
    BUSY_US_FIELD_NUMBER: _ClassVar[int]
    UNTIL_US_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    attempt: int
    target: str
    started_at_us: int
    busy_us: int
    until_us: int
    reason: str
    error: str
    def __init__(self, attempt: _Optional[int] = ..., target: _Optional[str] = ..., started_at_us: _Optional[int] = ..., busy_us: _Optional[int] = ..., until_us: _Optional[int] = ..., reason: _Optional[str] = ..., error: _Optional[str] = ...) -> None: ...

class StageView(_message.Message):
    __slots__ = ("stage", "task_id", "name", "queue", "state", "after", "ended_at_us", "on_failure")
    STAGE_FIELD_NUMBER: _ClassVar[int]
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    ENDED_AT_US_FIELD_NUMBER: _ClassVar[int]
    ON_FAILURE_FIELD_NUMBER: _ClassVar[int]
    stage: int
    task_id: str
    name: str
    queue: str
    state: str
    after: _containers.RepeatedScalarFieldContainer[int]
    ended_at_us: int
    on_failure: bool
    def __init__(self, stage: _Optional[int] = ..., task_id: _Optional[str] = ..., name: _Optional[str] = ..., queue: _Optional[str] = ..., state: _Optional[str] = ..., after: _Optional[_Iterable[int]] = ..., ended_at_us: _Optional[int] = ..., on_failure: bool = ...) -> None: ...

class AsOf(_message.Message):
    __slots__ = ("at_us", "source", "not_known")
    AT_US_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    NOT_KNOWN_FIELD_NUMBER: _ClassVar[int]
    at_us: int
    source: str
    not_known: _containers.RepeatedCompositeFieldContainer[NotKnown]
    def __init__(self, at_us: _Optional[int] = ..., source: _Optional[str] = ..., not_known: _Optional[_Iterable[_Union[NotKnown, _Mapping]]] = ...) -> None: ...

class NotKnown(_message.Message):
    __slots__ = ("field", "why")
    FIELD_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    field: str
    why: str
    def __init__(self, field: _Optional[str] = ..., why: _Optional[str] = ...) -> None: ...

class TaskResult(_message.Message):
    __slots__ = ("task_id", "group", "outcome", "value")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    group: str
    outcome: str
    value: str
    def __init__(self, task_id: _Optional[str] = ..., group: _Optional[str] = ..., outcome: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...

class Commanded(_message.Message):
    __slots__ = ("command", "note", "due_at_us")
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    DUE_AT_US_FIELD_NUMBER: _ClassVar[int]
    command: str
    note: str
    due_at_us: int
    def __init__(self, command: _Optional[str] = ..., note: _Optional[str] = ..., due_at_us: _Optional[int] = ...) -> None: ...

class Edited(_message.Message):
    __slots__ = ("commands",)
    COMMANDS_FIELD_NUMBER: _ClassVar[int]
    commands: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, commands: _Optional[_Iterable[str]] = ...) -> None: ...

class ListedTasks(_message.Message):
    __slots__ = ("state", "now_us", "looked", "stopped", "after", "tasks")
    STATE_FIELD_NUMBER: _ClassVar[int]
    NOW_US_FIELD_NUMBER: _ClassVar[int]
    LOOKED_FIELD_NUMBER: _ClassVar[int]
    STOPPED_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    state: str
    now_us: int
    looked: int
    stopped: bool
    after: str
    tasks: _containers.RepeatedCompositeFieldContainer[ListedTask]
    def __init__(self, state: _Optional[str] = ..., now_us: _Optional[int] = ..., looked: _Optional[int] = ..., stopped: bool = ..., after: _Optional[str] = ..., tasks: _Optional[_Iterable[_Union[ListedTask, _Mapping]]] = ...) -> None: ...

class ListedTask(_message.Message):
    __slots__ = ("at", "task_id", "group", "shard_id", "queue", "name", "created_at_us", "attempts", "due_at_us", "reason", "ordering_key", "started", "worker", "began_at_us", "ended_at_us", "trace", "error", "headers", "enqueued_at_us")
    class HeadersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    AT_FIELD_NUMBER: _ClassVar[int]
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    SHARD_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_US_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    DUE_AT_US_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ORDERING_KEY_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    BEGAN_AT_US_FIELD_NUMBER: _ClassVar[int]
    ENDED_AT_US_FIELD_NUMBER: _ClassVar[int]
    TRACE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    ENQUEUED_AT_US_FIELD_NUMBER: _ClassVar[int]
    at: int
    task_id: str
    group: str
    shard_id: int
    queue: str
    name: str
    created_at_us: int
    attempts: int
    due_at_us: int
    reason: str
    ordering_key: str
    started: bool
    worker: str
    began_at_us: int
    ended_at_us: int
    trace: str
    error: str
    headers: _containers.ScalarMap[str, str]
    enqueued_at_us: int
    def __init__(self, at: _Optional[int] = ..., task_id: _Optional[str] = ..., group: _Optional[str] = ..., shard_id: _Optional[int] = ..., queue: _Optional[str] = ..., name: _Optional[str] = ..., created_at_us: _Optional[int] = ..., attempts: _Optional[int] = ..., due_at_us: _Optional[int] = ..., reason: _Optional[str] = ..., ordering_key: _Optional[str] = ..., started: bool = ..., worker: _Optional[str] = ..., began_at_us: _Optional[int] = ..., ended_at_us: _Optional[int] = ..., trace: _Optional[str] = ..., error: _Optional[str] = ..., headers: _Optional[_Mapping[str, str]] = ..., enqueued_at_us: _Optional[int] = ...) -> None: ...

class Moved(_message.Message):
    __slots__ = ("count", "dry_run", "task_ids", "capped", "names")
    class NamesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    COUNT_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    TASK_IDS_FIELD_NUMBER: _ClassVar[int]
    CAPPED_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    count: int
    dry_run: bool
    task_ids: _containers.RepeatedScalarFieldContainer[str]
    capped: bool
    names: _containers.ScalarMap[str, int]
    def __init__(self, count: _Optional[int] = ..., dry_run: bool = ..., task_ids: _Optional[_Iterable[str]] = ..., capped: bool = ..., names: _Optional[_Mapping[str, int]] = ...) -> None: ...

class WorkflowPage(_message.Message):
    __slots__ = ("workflows", "now_us", "looked", "after")
    WORKFLOWS_FIELD_NUMBER: _ClassVar[int]
    NOW_US_FIELD_NUMBER: _ClassVar[int]
    LOOKED_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    workflows: _containers.RepeatedCompositeFieldContainer[WorkflowView]
    now_us: int
    looked: int
    after: str
    def __init__(self, workflows: _Optional[_Iterable[_Union[WorkflowView, _Mapping]]] = ..., now_us: _Optional[int] = ..., looked: _Optional[int] = ..., after: _Optional[str] = ...) -> None: ...

class WorkflowView(_message.Message):
    __slots__ = ("workflow_id", "name", "made_at_us", "state", "tasks", "done", "running", "waiting", "failed", "dead", "cancelled")
    WORKFLOW_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    MADE_AT_US_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    DEAD_FIELD_NUMBER: _ClassVar[int]
    CANCELLED_FIELD_NUMBER: _ClassVar[int]
    workflow_id: str
    name: str
    made_at_us: int
    state: str
    tasks: int
    done: int
    running: int
    waiting: int
    failed: int
    dead: int
    cancelled: int
    def __init__(self, workflow_id: _Optional[str] = ..., name: _Optional[str] = ..., made_at_us: _Optional[int] = ..., state: _Optional[str] = ..., tasks: _Optional[int] = ..., done: _Optional[int] = ..., running: _Optional[int] = ..., waiting: _Optional[int] = ..., failed: _Optional[int] = ..., dead: _Optional[int] = ..., cancelled: _Optional[int] = ...) -> None: ...

class WorkflowStages(_message.Message):
    __slots__ = ("workflow_id", "name", "made_at_us", "state", "tasks", "done", "running", "waiting", "failed", "dead", "cancelled", "stages")
    WORKFLOW_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    MADE_AT_US_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    DEAD_FIELD_NUMBER: _ClassVar[int]
    CANCELLED_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    workflow_id: str
    name: str
    made_at_us: int
    state: str
    tasks: int
    done: int
    running: int
    waiting: int
    failed: int
    dead: int
    cancelled: int
    stages: _containers.RepeatedCompositeFieldContainer[StageView]
    def __init__(self, workflow_id: _Optional[str] = ..., name: _Optional[str] = ..., made_at_us: _Optional[int] = ..., state: _Optional[str] = ..., tasks: _Optional[int] = ..., done: _Optional[int] = ..., running: _Optional[int] = ..., waiting: _Optional[int] = ..., failed: _Optional[int] = ..., dead: _Optional[int] = ..., cancelled: _Optional[int] = ..., stages: _Optional[_Iterable[_Union[StageView, _Mapping]]] = ...) -> None: ...

class DeadLetters(_message.Message):
    __slots__ = ("dead",)
    DEAD_FIELD_NUMBER: _ClassVar[int]
    dead: _containers.RepeatedCompositeFieldContainer[DeadView]
    def __init__(self, dead: _Optional[_Iterable[_Union[DeadView, _Mapping]]] = ...) -> None: ...

class DeadView(_message.Message):
    __slots__ = ("task_id", "group", "shard_id", "dead_at_us", "reason", "queue", "name", "created_at_us", "attempts", "deaths", "errors", "payload_bytes", "headers", "options", "payload", "enqueued_at_us")
    class HeadersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    SHARD_ID_FIELD_NUMBER: _ClassVar[int]
    DEAD_AT_US_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_US_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    DEATHS_FIELD_NUMBER: _ClassVar[int]
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    ENQUEUED_AT_US_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    group: str
    shard_id: int
    dead_at_us: int
    reason: str
    queue: str
    name: str
    created_at_us: int
    attempts: int
    deaths: int
    errors: _containers.RepeatedCompositeFieldContainer[AttemptError]
    payload_bytes: int
    headers: _containers.ScalarMap[str, str]
    options: str
    payload: str
    enqueued_at_us: int
    def __init__(self, task_id: _Optional[str] = ..., group: _Optional[str] = ..., shard_id: _Optional[int] = ..., dead_at_us: _Optional[int] = ..., reason: _Optional[str] = ..., queue: _Optional[str] = ..., name: _Optional[str] = ..., created_at_us: _Optional[int] = ..., attempts: _Optional[int] = ..., deaths: _Optional[int] = ..., errors: _Optional[_Iterable[_Union[AttemptError, _Mapping]]] = ..., payload_bytes: _Optional[int] = ..., headers: _Optional[_Mapping[str, str]] = ..., options: _Optional[str] = ..., payload: _Optional[str] = ..., enqueued_at_us: _Optional[int] = ...) -> None: ...

class AllKnobs(_message.Message):
    __slots__ = ("knobs",)
    KNOBS_FIELD_NUMBER: _ClassVar[int]
    knobs: _containers.RepeatedCompositeFieldContainer[Settings]
    def __init__(self, knobs: _Optional[_Iterable[_Union[Settings, _Mapping]]] = ...) -> None: ...

class Settings(_message.Message):
    __slots__ = ("kind", "name", "knobs", "version", "updated_at_us")
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    KNOBS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    UPDATED_AT_US_FIELD_NUMBER: _ClassVar[int]
    kind: str
    name: str
    knobs: QueueSettings
    version: int
    updated_at_us: int
    def __init__(self, kind: _Optional[str] = ..., name: _Optional[str] = ..., knobs: _Optional[_Union[QueueSettings, _Mapping]] = ..., version: _Optional[int] = ..., updated_at_us: _Optional[int] = ...) -> None: ...

class QueueSettings(_message.Message):
    __slots__ = ("paused", "closed", "max_backlog", "concurrency", "rate", "burst", "retry_budget", "retry_min", "breaker", "breaker_calls", "breaker_open_s", "smart_retry", "slow_start_s", "fair_key", "fair_share", "key_concurrency", "key_rate", "key_backlog", "foreground", "timeout_s", "expires_s", "fresh_first_s", "spread_s", "owner", "severity", "late_share", "objective_s")
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    MAX_BACKLOG_FIELD_NUMBER: _ClassVar[int]
    CONCURRENCY_FIELD_NUMBER: _ClassVar[int]
    RATE_FIELD_NUMBER: _ClassVar[int]
    BURST_FIELD_NUMBER: _ClassVar[int]
    RETRY_BUDGET_FIELD_NUMBER: _ClassVar[int]
    RETRY_MIN_FIELD_NUMBER: _ClassVar[int]
    BREAKER_FIELD_NUMBER: _ClassVar[int]
    BREAKER_CALLS_FIELD_NUMBER: _ClassVar[int]
    BREAKER_OPEN_S_FIELD_NUMBER: _ClassVar[int]
    SMART_RETRY_FIELD_NUMBER: _ClassVar[int]
    SLOW_START_S_FIELD_NUMBER: _ClassVar[int]
    FAIR_KEY_FIELD_NUMBER: _ClassVar[int]
    FAIR_SHARE_FIELD_NUMBER: _ClassVar[int]
    KEY_CONCURRENCY_FIELD_NUMBER: _ClassVar[int]
    KEY_RATE_FIELD_NUMBER: _ClassVar[int]
    KEY_BACKLOG_FIELD_NUMBER: _ClassVar[int]
    FOREGROUND_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_S_FIELD_NUMBER: _ClassVar[int]
    FRESH_FIRST_S_FIELD_NUMBER: _ClassVar[int]
    SPREAD_S_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    SEVERITY_FIELD_NUMBER: _ClassVar[int]
    LATE_SHARE_FIELD_NUMBER: _ClassVar[int]
    OBJECTIVE_S_FIELD_NUMBER: _ClassVar[int]
    paused: bool
    closed: bool
    max_backlog: int
    concurrency: _struct_pb2.Value
    rate: float
    burst: int
    retry_budget: float
    retry_min: float
    breaker: float
    breaker_calls: int
    breaker_open_s: float
    smart_retry: bool
    slow_start_s: float
    fair_key: str
    fair_share: float
    key_concurrency: int
    key_rate: float
    key_backlog: int
    foreground: int
    timeout_s: float
    expires_s: float
    fresh_first_s: float
    spread_s: float
    owner: str
    severity: str
    late_share: float
    objective_s: float
    def __init__(self, paused: bool = ..., closed: bool = ..., max_backlog: _Optional[int] = ..., concurrency: _Optional[_Union[_struct_pb2.Value, _Mapping]] = ..., rate: _Optional[float] = ..., burst: _Optional[int] = ..., retry_budget: _Optional[float] = ..., retry_min: _Optional[float] = ..., breaker: _Optional[float] = ..., breaker_calls: _Optional[int] = ..., breaker_open_s: _Optional[float] = ..., smart_retry: bool = ..., slow_start_s: _Optional[float] = ..., fair_key: _Optional[str] = ..., fair_share: _Optional[float] = ..., key_concurrency: _Optional[int] = ..., key_rate: _Optional[float] = ..., key_backlog: _Optional[int] = ..., foreground: _Optional[int] = ..., timeout_s: _Optional[float] = ..., expires_s: _Optional[float] = ..., fresh_first_s: _Optional[float] = ..., spread_s: _Optional[float] = ..., owner: _Optional[str] = ..., severity: _Optional[str] = ..., late_share: _Optional[float] = ..., objective_s: _Optional[float] = ...) -> None: ...

class Changes(_message.Message):
    __slots__ = ("changes",)
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    changes: _containers.RepeatedCompositeFieldContainer[Entry]
    def __init__(self, changes: _Optional[_Iterable[_Union[Entry, _Mapping]]] = ...) -> None: ...

class Entry(_message.Message):
    __slots__ = ("audit_id", "at_us", "actor", "action", "subject", "before", "after")
    AUDIT_ID_FIELD_NUMBER: _ClassVar[int]
    AT_US_FIELD_NUMBER: _ClassVar[int]
    ACTOR_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    audit_id: str
    at_us: int
    actor: str
    action: str
    subject: str
    before: str
    after: str
    def __init__(self, audit_id: _Optional[str] = ..., at_us: _Optional[int] = ..., actor: _Optional[str] = ..., action: _Optional[str] = ..., subject: _Optional[str] = ..., before: _Optional[str] = ..., after: _Optional[str] = ...) -> None: ...

class Knobs(_message.Message):
    __slots__ = ("kind", "name", "set", "effective")
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SET_FIELD_NUMBER: _ClassVar[int]
    EFFECTIVE_FIELD_NUMBER: _ClassVar[int]
    kind: str
    name: str
    set: QueueSettings
    effective: QueueSettings
    def __init__(self, kind: _Optional[str] = ..., name: _Optional[str] = ..., set: _Optional[_Union[QueueSettings, _Mapping]] = ..., effective: _Optional[_Union[QueueSettings, _Mapping]] = ...) -> None: ...

class SettingsChange(_message.Message):
    __slots__ = ("kind", "name", "before", "after", "audit_id")
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    AUDIT_ID_FIELD_NUMBER: _ClassVar[int]
    kind: str
    name: str
    before: QueueSettings
    after: QueueSettings
    audit_id: str
    def __init__(self, kind: _Optional[str] = ..., name: _Optional[str] = ..., before: _Optional[_Union[QueueSettings, _Mapping]] = ..., after: _Optional[_Union[QueueSettings, _Mapping]] = ..., audit_id: _Optional[str] = ...) -> None: ...

class Simulation(_message.Message):
    __slots__ = ("queue", "group", "target", "since_us", "until_us", "attempts", "summed", "bursts", "drag", "together", "happened", "replayed", "error", "variants", "notes")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    SINCE_US_FIELD_NUMBER: _ClassVar[int]
    UNTIL_US_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    SUMMED_FIELD_NUMBER: _ClassVar[int]
    BURSTS_FIELD_NUMBER: _ClassVar[int]
    DRAG_FIELD_NUMBER: _ClassVar[int]
    TOGETHER_FIELD_NUMBER: _ClassVar[int]
    HAPPENED_FIELD_NUMBER: _ClassVar[int]
    REPLAYED_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    VARIANTS_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    queue: str
    group: str
    target: str
    since_us: int
    until_us: int
    attempts: int
    summed: float
    bursts: int
    drag: float
    together: int
    happened: Course
    replayed: Course
    error: Waits
    variants: _containers.RepeatedCompositeFieldContainer[Course]
    notes: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, queue: _Optional[str] = ..., group: _Optional[str] = ..., target: _Optional[str] = ..., since_us: _Optional[int] = ..., until_us: _Optional[int] = ..., attempts: _Optional[int] = ..., summed: _Optional[float] = ..., bursts: _Optional[int] = ..., drag: _Optional[float] = ..., together: _Optional[int] = ..., happened: _Optional[_Union[Course, _Mapping]] = ..., replayed: _Optional[_Union[Course, _Mapping]] = ..., error: _Optional[_Union[Waits, _Mapping]] = ..., variants: _Optional[_Iterable[_Union[Course, _Mapping]]] = ..., notes: _Optional[_Iterable[str]] = ...) -> None: ...

class Course(_message.Message):
    __slots__ = ("knobs", "wait_s", "backlog_most", "drain_s", "slots_busy", "limited")
    KNOBS_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    BACKLOG_MOST_FIELD_NUMBER: _ClassVar[int]
    DRAIN_S_FIELD_NUMBER: _ClassVar[int]
    SLOTS_BUSY_FIELD_NUMBER: _ClassVar[int]
    LIMITED_FIELD_NUMBER: _ClassVar[int]
    knobs: str
    wait_s: Waits
    backlog_most: int
    drain_s: float
    slots_busy: float
    limited: Limited
    def __init__(self, knobs: _Optional[str] = ..., wait_s: _Optional[_Union[Waits, _Mapping]] = ..., backlog_most: _Optional[int] = ..., drain_s: _Optional[float] = ..., slots_busy: _Optional[float] = ..., limited: _Optional[_Union[Limited, _Mapping]] = ...) -> None: ...

class Waits(_message.Message):
    __slots__ = ("p50", "p95", "p99")
    P50_FIELD_NUMBER: _ClassVar[int]
    P95_FIELD_NUMBER: _ClassVar[int]
    P99_FIELD_NUMBER: _ClassVar[int]
    p50: float
    p95: float
    p99: float
    def __init__(self, p50: _Optional[float] = ..., p95: _Optional[float] = ..., p99: _Optional[float] = ...) -> None: ...

class Limited(_message.Message):
    __slots__ = ("rate", "concurrency", "slots")
    RATE_FIELD_NUMBER: _ClassVar[int]
    CONCURRENCY_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    rate: float
    concurrency: float
    slots: float
    def __init__(self, rate: _Optional[float] = ..., concurrency: _Optional[float] = ..., slots: _Optional[float] = ...) -> None: ...

class QueueDeletion(_message.Message):
    __slots__ = ("queue", "dry_run", "waiting", "running", "parked", "dead", "schedules", "workers", "knobs", "refused", "audit_id")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    PARKED_FIELD_NUMBER: _ClassVar[int]
    DEAD_FIELD_NUMBER: _ClassVar[int]
    SCHEDULES_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    KNOBS_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    AUDIT_ID_FIELD_NUMBER: _ClassVar[int]
    queue: str
    dry_run: bool
    waiting: Count
    running: Count
    parked: Count
    dead: Count
    schedules: _containers.RepeatedScalarFieldContainer[str]
    workers: int
    knobs: QueueSettings
    refused: str
    audit_id: str
    def __init__(self, queue: _Optional[str] = ..., dry_run: bool = ..., waiting: _Optional[_Union[Count, _Mapping]] = ..., running: _Optional[_Union[Count, _Mapping]] = ..., parked: _Optional[_Union[Count, _Mapping]] = ..., dead: _Optional[_Union[Count, _Mapping]] = ..., schedules: _Optional[_Iterable[str]] = ..., workers: _Optional[int] = ..., knobs: _Optional[_Union[QueueSettings, _Mapping]] = ..., refused: _Optional[str] = ..., audit_id: _Optional[str] = ...) -> None: ...

class Count(_message.Message):
    __slots__ = ("n", "capped")
    N_FIELD_NUMBER: _ClassVar[int]
    CAPPED_FIELD_NUMBER: _ClassVar[int]
    n: int
    capped: bool
    def __init__(self, n: _Optional[int] = ..., capped: bool = ...) -> None: ...

class Targets(_message.Message):
    __slots__ = ("targets",)
    TARGETS_FIELD_NUMBER: _ClassVar[int]
    targets: _containers.RepeatedCompositeFieldContainer[TargetRow]
    def __init__(self, targets: _Optional[_Iterable[_Union[TargetRow, _Mapping]]] = ...) -> None: ...

class TargetRow(_message.Message):
    __slots__ = ("name", "kind", "where", "protection", "concurrency")
    NAME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    WHERE_FIELD_NUMBER: _ClassVar[int]
    PROTECTION_FIELD_NUMBER: _ClassVar[int]
    CONCURRENCY_FIELD_NUMBER: _ClassVar[int]
    name: str
    kind: str
    where: str
    protection: str
    concurrency: int
    def __init__(self, name: _Optional[str] = ..., kind: _Optional[str] = ..., where: _Optional[str] = ..., protection: _Optional[str] = ..., concurrency: _Optional[int] = ...) -> None: ...

class Groups(_message.Message):
    __slots__ = ("groups",)
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[GroupView]
    def __init__(self, groups: _Optional[_Iterable[_Union[GroupView, _Mapping]]] = ...) -> None: ...

class GroupView(_message.Message):
    __slots__ = ("name", "created_at_us", "state", "queues", "from_us", "replay_us", "workers", "owned", "lag", "lag_s", "lagging", "stale_s", "shadow_of", "until_us", "objective_s", "max_age_s", "replay")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_US_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    FROM_US_FIELD_NUMBER: _ClassVar[int]
    REPLAY_US_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    OWNED_FIELD_NUMBER: _ClassVar[int]
    LAG_FIELD_NUMBER: _ClassVar[int]
    LAG_S_FIELD_NUMBER: _ClassVar[int]
    LAGGING_FIELD_NUMBER: _ClassVar[int]
    STALE_S_FIELD_NUMBER: _ClassVar[int]
    SHADOW_OF_FIELD_NUMBER: _ClassVar[int]
    UNTIL_US_FIELD_NUMBER: _ClassVar[int]
    OBJECTIVE_S_FIELD_NUMBER: _ClassVar[int]
    MAX_AGE_S_FIELD_NUMBER: _ClassVar[int]
    REPLAY_FIELD_NUMBER: _ClassVar[int]
    name: str
    created_at_us: int
    state: str
    queues: _containers.RepeatedScalarFieldContainer[str]
    from_us: int
    replay_us: int
    workers: int
    owned: int
    lag: Count
    lag_s: float
    lagging: bool
    stale_s: float
    shadow_of: str
    until_us: int
    objective_s: float
    max_age_s: float
    replay: WindowState
    def __init__(self, name: _Optional[str] = ..., created_at_us: _Optional[int] = ..., state: _Optional[str] = ..., queues: _Optional[_Iterable[str]] = ..., from_us: _Optional[int] = ..., replay_us: _Optional[int] = ..., workers: _Optional[int] = ..., owned: _Optional[int] = ..., lag: _Optional[_Union[Count, _Mapping]] = ..., lag_s: _Optional[float] = ..., lagging: bool = ..., stale_s: _Optional[float] = ..., shadow_of: _Optional[str] = ..., until_us: _Optional[int] = ..., objective_s: _Optional[float] = ..., max_age_s: _Optional[float] = ..., replay: _Optional[_Union[WindowState, _Mapping]] = ...) -> None: ...

class WindowState(_message.Message):
    __slots__ = ("group", "since_us", "until_us", "rate", "copied", "due_us", "finished_us", "cancelled")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    SINCE_US_FIELD_NUMBER: _ClassVar[int]
    UNTIL_US_FIELD_NUMBER: _ClassVar[int]
    RATE_FIELD_NUMBER: _ClassVar[int]
    COPIED_FIELD_NUMBER: _ClassVar[int]
    DUE_US_FIELD_NUMBER: _ClassVar[int]
    FINISHED_US_FIELD_NUMBER: _ClassVar[int]
    CANCELLED_FIELD_NUMBER: _ClassVar[int]
    group: str
    since_us: int
    until_us: int
    rate: float
    copied: int
    due_us: int
    finished_us: int
    cancelled: bool
    def __init__(self, group: _Optional[str] = ..., since_us: _Optional[int] = ..., until_us: _Optional[int] = ..., rate: _Optional[float] = ..., copied: _Optional[int] = ..., due_us: _Optional[int] = ..., finished_us: _Optional[int] = ..., cancelled: bool = ...) -> None: ...

class Comparison(_message.Message):
    __slots__ = ("shadow", "real", "since_us", "until_us", "tasks", "differences", "capped", "unread", "unended")
    SHADOW_FIELD_NUMBER: _ClassVar[int]
    REAL_FIELD_NUMBER: _ClassVar[int]
    SINCE_US_FIELD_NUMBER: _ClassVar[int]
    UNTIL_US_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    DIFFERENCES_FIELD_NUMBER: _ClassVar[int]
    CAPPED_FIELD_NUMBER: _ClassVar[int]
    UNREAD_FIELD_NUMBER: _ClassVar[int]
    UNENDED_FIELD_NUMBER: _ClassVar[int]
    shadow: str
    real: str
    since_us: int
    until_us: int
    tasks: _containers.RepeatedCompositeFieldContainer[TaskComparison]
    differences: _containers.RepeatedCompositeFieldContainer[TaskDifference]
    capped: bool
    unread: Count
    unended: Count
    def __init__(self, shadow: _Optional[str] = ..., real: _Optional[str] = ..., since_us: _Optional[int] = ..., until_us: _Optional[int] = ..., tasks: _Optional[_Iterable[_Union[TaskComparison, _Mapping]]] = ..., differences: _Optional[_Iterable[_Union[TaskDifference, _Mapping]]] = ..., capped: bool = ..., unread: _Optional[_Union[Count, _Mapping]] = ..., unended: _Optional[_Union[Count, _Mapping]] = ...) -> None: ...

class TaskComparison(_message.Message):
    __slots__ = ("queue", "name", "shadow", "real", "ratio", "differ")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SHADOW_FIELD_NUMBER: _ClassVar[int]
    REAL_FIELD_NUMBER: _ClassVar[int]
    RATIO_FIELD_NUMBER: _ClassVar[int]
    DIFFER_FIELD_NUMBER: _ClassVar[int]
    queue: str
    name: str
    shadow: RunCounts
    real: RunCounts
    ratio: float
    differ: int
    def __init__(self, queue: _Optional[str] = ..., name: _Optional[str] = ..., shadow: _Optional[_Union[RunCounts, _Mapping]] = ..., real: _Optional[_Union[RunCounts, _Mapping]] = ..., ratio: _Optional[float] = ..., differ: _Optional[int] = ...) -> None: ...

class RunCounts(_message.Message):
    __slots__ = ("done", "dead", "other", "failed", "attempts", "mean_s", "p95_s")
    DONE_FIELD_NUMBER: _ClassVar[int]
    DEAD_FIELD_NUMBER: _ClassVar[int]
    OTHER_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    MEAN_S_FIELD_NUMBER: _ClassVar[int]
    P95_S_FIELD_NUMBER: _ClassVar[int]
    done: int
    dead: int
    other: int
    failed: int
    attempts: int
    mean_s: float
    p95_s: float
    def __init__(self, done: _Optional[int] = ..., dead: _Optional[int] = ..., other: _Optional[int] = ..., failed: _Optional[int] = ..., attempts: _Optional[int] = ..., mean_s: _Optional[float] = ..., p95_s: _Optional[float] = ...) -> None: ...

class TaskDifference(_message.Message):
    __slots__ = ("task_id", "queue", "name", "shadow", "real", "error")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SHADOW_FIELD_NUMBER: _ClassVar[int]
    REAL_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    queue: str
    name: str
    shadow: str
    real: str
    error: str
    def __init__(self, task_id: _Optional[str] = ..., queue: _Optional[str] = ..., name: _Optional[str] = ..., shadow: _Optional[str] = ..., real: _Optional[str] = ..., error: _Optional[str] = ...) -> None: ...

class Reset(_message.Message):
    __slots__ = ("group", "to", "dry_run", "shards", "queues", "oldest_us", "newest_us", "kept_us", "rate")
    class QueuesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Count
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Count, _Mapping]] = ...) -> None: ...
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    OLDEST_US_FIELD_NUMBER: _ClassVar[int]
    NEWEST_US_FIELD_NUMBER: _ClassVar[int]
    KEPT_US_FIELD_NUMBER: _ClassVar[int]
    RATE_FIELD_NUMBER: _ClassVar[int]
    group: str
    to: str
    dry_run: bool
    shards: _containers.RepeatedCompositeFieldContainer[ShardReset]
    queues: _containers.MessageMap[str, Count]
    oldest_us: int
    newest_us: int
    kept_us: int
    rate: float
    def __init__(self, group: _Optional[str] = ..., to: _Optional[str] = ..., dry_run: bool = ..., shards: _Optional[_Iterable[_Union[ShardReset, _Mapping]]] = ..., queues: _Optional[_Mapping[str, Count]] = ..., oldest_us: _Optional[int] = ..., newest_us: _Optional[int] = ..., kept_us: _Optional[int] = ..., rate: _Optional[float] = ...) -> None: ...

class ShardReset(_message.Message):
    __slots__ = ("shard_id", "again", "skipped", "unparked", "dead", "kept")
    SHARD_ID_FIELD_NUMBER: _ClassVar[int]
    AGAIN_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    UNPARKED_FIELD_NUMBER: _ClassVar[int]
    DEAD_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    shard_id: int
    again: Count
    skipped: Count
    unparked: Count
    dead: Count
    kept: Count
    def __init__(self, shard_id: _Optional[int] = ..., again: _Optional[_Union[Count, _Mapping]] = ..., skipped: _Optional[_Union[Count, _Mapping]] = ..., unparked: _Optional[_Union[Count, _Mapping]] = ..., dead: _Optional[_Union[Count, _Mapping]] = ..., kept: _Optional[_Union[Count, _Mapping]] = ...) -> None: ...

class WindowReplay(_message.Message):
    __slots__ = ("group", "since_us", "until_us", "rate", "dry_run", "copied", "queues", "cancelled", "finished", "wait_s", "kept_us")
    class QueuesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Count
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Count, _Mapping]] = ...) -> None: ...
    GROUP_FIELD_NUMBER: _ClassVar[int]
    SINCE_US_FIELD_NUMBER: _ClassVar[int]
    UNTIL_US_FIELD_NUMBER: _ClassVar[int]
    RATE_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    COPIED_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    CANCELLED_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    KEPT_US_FIELD_NUMBER: _ClassVar[int]
    group: str
    since_us: int
    until_us: int
    rate: float
    dry_run: bool
    copied: Count
    queues: _containers.MessageMap[str, Count]
    cancelled: int
    finished: bool
    wait_s: float
    kept_us: int
    def __init__(self, group: _Optional[str] = ..., since_us: _Optional[int] = ..., until_us: _Optional[int] = ..., rate: _Optional[float] = ..., dry_run: bool = ..., copied: _Optional[_Union[Count, _Mapping]] = ..., queues: _Optional[_Mapping[str, Count]] = ..., cancelled: _Optional[int] = ..., finished: bool = ..., wait_s: _Optional[float] = ..., kept_us: _Optional[int] = ...) -> None: ...

class Deleted(_message.Message):
    __slots__ = ("deleted",)
    DELETED_FIELD_NUMBER: _ClassVar[int]
    deleted: str
    def __init__(self, deleted: _Optional[str] = ...) -> None: ...

class Waited(_message.Message):
    __slots__ = ("group", "token", "state", "left")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    group: str
    token: str
    state: str
    left: Count
    def __init__(self, group: _Optional[str] = ..., token: _Optional[str] = ..., state: _Optional[str] = ..., left: _Optional[_Union[Count, _Mapping]] = ...) -> None: ...

class Retention(_message.Message):
    __slots__ = ("retention_s",)
    RETENTION_S_FIELD_NUMBER: _ClassVar[int]
    retention_s: float
    def __init__(self, retention_s: _Optional[float] = ...) -> None: ...

class Schedules(_message.Message):
    __slots__ = ("schedules",)
    SCHEDULES_FIELD_NUMBER: _ClassVar[int]
    schedules: _containers.RepeatedCompositeFieldContainer[ScheduleView]
    def __init__(self, schedules: _Optional[_Iterable[_Union[ScheduleView, _Mapping]]] = ...) -> None: ...

class ScheduleView(_message.Message):
    __slots__ = ("name", "shard_id", "rule", "zone", "catch_up", "catch_up_max", "overlap", "queue", "task_name", "options", "anchor_us", "next_due_at_us", "paused", "open_task_id", "payload_bytes", "jitter_us", "fires_at_us")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SHARD_ID_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    ZONE_FIELD_NUMBER: _ClassVar[int]
    CATCH_UP_FIELD_NUMBER: _ClassVar[int]
    CATCH_UP_MAX_FIELD_NUMBER: _ClassVar[int]
    OVERLAP_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    TASK_NAME_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    ANCHOR_US_FIELD_NUMBER: _ClassVar[int]
    NEXT_DUE_AT_US_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    OPEN_TASK_ID_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    JITTER_US_FIELD_NUMBER: _ClassVar[int]
    FIRES_AT_US_FIELD_NUMBER: _ClassVar[int]
    name: str
    shard_id: int
    rule: str
    zone: str
    catch_up: str
    catch_up_max: int
    overlap: str
    queue: str
    task_name: str
    options: str
    anchor_us: int
    next_due_at_us: int
    paused: bool
    open_task_id: str
    payload_bytes: int
    jitter_us: int
    fires_at_us: int
    def __init__(self, name: _Optional[str] = ..., shard_id: _Optional[int] = ..., rule: _Optional[str] = ..., zone: _Optional[str] = ..., catch_up: _Optional[str] = ..., catch_up_max: _Optional[int] = ..., overlap: _Optional[str] = ..., queue: _Optional[str] = ..., task_name: _Optional[str] = ..., options: _Optional[str] = ..., anchor_us: _Optional[int] = ..., next_due_at_us: _Optional[int] = ..., paused: bool = ..., open_task_id: _Optional[str] = ..., payload_bytes: _Optional[int] = ..., jitter_us: _Optional[int] = ..., fires_at_us: _Optional[int] = ...) -> None: ...

class Ran(_message.Message):
    __slots__ = ("schedule", "task_id")
    SCHEDULE_FIELD_NUMBER: _ClassVar[int]
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    schedule: str
    task_id: str
    def __init__(self, schedule: _Optional[str] = ..., task_id: _Optional[str] = ...) -> None: ...

class Backfill(_message.Message):
    __slots__ = ("schedule", "dry_run", "ticks", "known", "enqueued", "first_us", "last_us", "kept_us")
    SCHEDULE_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    TICKS_FIELD_NUMBER: _ClassVar[int]
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    ENQUEUED_FIELD_NUMBER: _ClassVar[int]
    FIRST_US_FIELD_NUMBER: _ClassVar[int]
    LAST_US_FIELD_NUMBER: _ClassVar[int]
    KEPT_US_FIELD_NUMBER: _ClassVar[int]
    schedule: str
    dry_run: bool
    ticks: int
    known: int
    enqueued: int
    first_us: int
    last_us: int
    kept_us: int
    def __init__(self, schedule: _Optional[str] = ..., dry_run: bool = ..., ticks: _Optional[int] = ..., known: _Optional[int] = ..., enqueued: _Optional[int] = ..., first_us: _Optional[int] = ..., last_us: _Optional[int] = ..., kept_us: _Optional[int] = ...) -> None: ...

class Removed(_message.Message):
    __slots__ = ("removed",)
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    removed: str
    def __init__(self, removed: _Optional[str] = ...) -> None: ...

class Status(_message.Message):
    __slots__ = ("now_us", "schema_version", "deployment", "queues", "shards", "workers", "groups", "unhandled", "limited", "limited_keys", "suspects", "pauses", "objectives", "as_of")
    NOW_US_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_VERSION_FIELD_NUMBER: _ClassVar[int]
    DEPLOYMENT_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    UNHANDLED_FIELD_NUMBER: _ClassVar[int]
    LIMITED_FIELD_NUMBER: _ClassVar[int]
    LIMITED_KEYS_FIELD_NUMBER: _ClassVar[int]
    SUSPECTS_FIELD_NUMBER: _ClassVar[int]
    PAUSES_FIELD_NUMBER: _ClassVar[int]
    OBJECTIVES_FIELD_NUMBER: _ClassVar[int]
    AS_OF_FIELD_NUMBER: _ClassVar[int]
    now_us: int
    schema_version: str
    deployment: str
    queues: _containers.RepeatedCompositeFieldContainer[QueueStatus]
    shards: _containers.RepeatedCompositeFieldContainer[ShardStatus]
    workers: _containers.RepeatedCompositeFieldContainer[WorkerStatus]
    groups: _containers.RepeatedCompositeFieldContainer[GroupView]
    unhandled: _containers.RepeatedCompositeFieldContainer[UnhandledTasks]
    limited: _containers.RepeatedCompositeFieldContainer[LimitedTasks]
    limited_keys: _containers.RepeatedCompositeFieldContainer[LimitedKey]
    suspects: _containers.RepeatedCompositeFieldContainer[SuspectTask]
    pauses: _containers.RepeatedCompositeFieldContainer[Pause]
    objectives: _containers.RepeatedCompositeFieldContainer[ObjectiveView]
    as_of: AsOf
    def __init__(self, now_us: _Optional[int] = ..., schema_version: _Optional[str] = ..., deployment: _Optional[str] = ..., queues: _Optional[_Iterable[_Union[QueueStatus, _Mapping]]] = ..., shards: _Optional[_Iterable[_Union[ShardStatus, _Mapping]]] = ..., workers: _Optional[_Iterable[_Union[WorkerStatus, _Mapping]]] = ..., groups: _Optional[_Iterable[_Union[GroupView, _Mapping]]] = ..., unhandled: _Optional[_Iterable[_Union[UnhandledTasks, _Mapping]]] = ..., limited: _Optional[_Iterable[_Union[LimitedTasks, _Mapping]]] = ..., limited_keys: _Optional[_Iterable[_Union[LimitedKey, _Mapping]]] = ..., suspects: _Optional[_Iterable[_Union[SuspectTask, _Mapping]]] = ..., pauses: _Optional[_Iterable[_Union[Pause, _Mapping]]] = ..., objectives: _Optional[_Iterable[_Union[ObjectiveView, _Mapping]]] = ..., as_of: _Optional[_Union[AsOf, _Mapping]] = ...) -> None: ...

class QueueStatus(_message.Message):
    __slots__ = ("group", "queue", "depth", "in_flight", "parked", "dead", "oldest_age_s", "held", "killed")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    DEPTH_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    PARKED_FIELD_NUMBER: _ClassVar[int]
    DEAD_FIELD_NUMBER: _ClassVar[int]
    OLDEST_AGE_S_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    KILLED_FIELD_NUMBER: _ClassVar[int]
    group: str
    queue: str
    depth: Count
    in_flight: Count
    parked: Count
    dead: Count
    oldest_age_s: float
    held: Count
    killed: Count
    def __init__(self, group: _Optional[str] = ..., queue: _Optional[str] = ..., depth: _Optional[_Union[Count, _Mapping]] = ..., in_flight: _Optional[_Union[Count, _Mapping]] = ..., parked: _Optional[_Union[Count, _Mapping]] = ..., dead: _Optional[_Union[Count, _Mapping]] = ..., oldest_age_s: _Optional[float] = ..., held: _Optional[_Union[Count, _Mapping]] = ..., killed: _Optional[_Union[Count, _Mapping]] = ...) -> None: ...

class ShardStatus(_message.Message):
    __slots__ = ("group", "shard_id", "owner", "owner_live", "epoch", "seq", "lag", "lag_s", "in_flight", "settled_at_us", "stale_s", "old", "lane")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    SHARD_ID_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    OWNER_LIVE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    LAG_FIELD_NUMBER: _ClassVar[int]
    LAG_S_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    SETTLED_AT_US_FIELD_NUMBER: _ClassVar[int]
    STALE_S_FIELD_NUMBER: _ClassVar[int]
    OLD_FIELD_NUMBER: _ClassVar[int]
    LANE_FIELD_NUMBER: _ClassVar[int]
    group: str
    shard_id: int
    owner: str
    owner_live: bool
    epoch: int
    seq: int
    lag: Count
    lag_s: float
    in_flight: int
    settled_at_us: int
    stale_s: float
    old: bool
    lane: str
    def __init__(self, group: _Optional[str] = ..., shard_id: _Optional[int] = ..., owner: _Optional[str] = ..., owner_live: bool = ..., epoch: _Optional[int] = ..., seq: _Optional[int] = ..., lag: _Optional[_Union[Count, _Mapping]] = ..., lag_s: _Optional[float] = ..., in_flight: _Optional[int] = ..., settled_at_us: _Optional[int] = ..., stale_s: _Optional[float] = ..., old: bool = ..., lane: _Optional[str] = ...) -> None: ...

class WorkerStatus(_message.Message):
    __slots__ = ("worker_id", "address", "groups", "capacity", "version", "started_at_us", "expires_in_s", "shards")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_US_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_IN_S_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    address: str
    groups: _containers.RepeatedScalarFieldContainer[str]
    capacity: float
    version: str
    started_at_us: int
    expires_in_s: float
    shards: int
    def __init__(self, worker_id: _Optional[str] = ..., address: _Optional[str] = ..., groups: _Optional[_Iterable[str]] = ..., capacity: _Optional[float] = ..., version: _Optional[str] = ..., started_at_us: _Optional[int] = ..., expires_in_s: _Optional[float] = ..., shards: _Optional[int] = ...) -> None: ...

class UnhandledTasks(_message.Message):
    __slots__ = ("group", "queue", "task", "waiting", "since_s", "handlers")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    SINCE_S_FIELD_NUMBER: _ClassVar[int]
    HANDLERS_FIELD_NUMBER: _ClassVar[int]
    group: str
    queue: str
    task: str
    waiting: Count
    since_s: float
    handlers: int
    def __init__(self, group: _Optional[str] = ..., queue: _Optional[str] = ..., task: _Optional[str] = ..., waiting: _Optional[_Union[Count, _Mapping]] = ..., since_s: _Optional[float] = ..., handlers: _Optional[int] = ...) -> None: ...

class LimitedTasks(_message.Message):
    __slots__ = ("group", "queue", "task", "waiting")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    group: str
    queue: str
    task: str
    waiting: Count
    def __init__(self, group: _Optional[str] = ..., queue: _Optional[str] = ..., task: _Optional[str] = ..., waiting: _Optional[_Union[Count, _Mapping]] = ...) -> None: ...

class LimitedKey(_message.Message):
    __slots__ = ("group", "queue", "key", "running", "waiting", "concurrency", "rate")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    CONCURRENCY_FIELD_NUMBER: _ClassVar[int]
    RATE_FIELD_NUMBER: _ClassVar[int]
    group: str
    queue: str
    key: str
    running: int
    waiting: int
    concurrency: int
    rate: float
    def __init__(self, group: _Optional[str] = ..., queue: _Optional[str] = ..., key: _Optional[str] = ..., running: _Optional[int] = ..., waiting: _Optional[int] = ..., concurrency: _Optional[int] = ..., rate: _Optional[float] = ...) -> None: ...

class SuspectTask(_message.Message):
    __slots__ = ("group", "shard_id", "task_id", "deaths")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    SHARD_ID_FIELD_NUMBER: _ClassVar[int]
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    DEATHS_FIELD_NUMBER: _ClassVar[int]
    group: str
    shard_id: int
    task_id: str
    deaths: int
    def __init__(self, group: _Optional[str] = ..., shard_id: _Optional[int] = ..., task_id: _Optional[str] = ..., deaths: _Optional[int] = ...) -> None: ...

class Pause(_message.Message):
    __slots__ = ("kind", "name", "by", "since_us")
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    SINCE_US_FIELD_NUMBER: _ClassVar[int]
    kind: str
    name: str
    by: str
    since_us: int
    def __init__(self, kind: _Optional[str] = ..., name: _Optional[str] = ..., by: _Optional[str] = ..., since_us: _Optional[int] = ...) -> None: ...

class ObjectiveView(_message.Message):
    __slots__ = ("group", "queue", "objective_s", "share", "started", "late", "overdue_s", "budget_left", "burns", "shards", "shards_all")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    OBJECTIVE_S_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    LATE_FIELD_NUMBER: _ClassVar[int]
    OVERDUE_S_FIELD_NUMBER: _ClassVar[int]
    BUDGET_LEFT_FIELD_NUMBER: _ClassVar[int]
    BURNS_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    SHARDS_ALL_FIELD_NUMBER: _ClassVar[int]
    group: str
    queue: str
    objective_s: float
    share: float
    started: int
    late: int
    overdue_s: float
    budget_left: float
    burns: _containers.RepeatedCompositeFieldContainer[Burn]
    shards: int
    shards_all: int
    def __init__(self, group: _Optional[str] = ..., queue: _Optional[str] = ..., objective_s: _Optional[float] = ..., share: _Optional[float] = ..., started: _Optional[int] = ..., late: _Optional[int] = ..., overdue_s: _Optional[float] = ..., budget_left: _Optional[float] = ..., burns: _Optional[_Iterable[_Union[Burn, _Mapping]]] = ..., shards: _Optional[int] = ..., shards_all: _Optional[int] = ...) -> None: ...

class Burn(_message.Message):
    __slots__ = ("window", "rate", "started")
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    RATE_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    window: str
    rate: float
    started: int
    def __init__(self, window: _Optional[str] = ..., rate: _Optional[float] = ..., started: _Optional[int] = ...) -> None: ...

class Owners(_message.Message):
    __slots__ = ("now_us", "fenced_total", "late_total", "shards")
    NOW_US_FIELD_NUMBER: _ClassVar[int]
    FENCED_TOTAL_FIELD_NUMBER: _ClassVar[int]
    LATE_TOTAL_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    now_us: int
    fenced_total: int
    late_total: int
    shards: _containers.RepeatedCompositeFieldContainer[OwnerView]
    def __init__(self, now_us: _Optional[int] = ..., fenced_total: _Optional[int] = ..., late_total: _Optional[int] = ..., shards: _Optional[_Iterable[_Union[OwnerView, _Mapping]]] = ...) -> None: ...

class OwnerView(_message.Message):
    __slots__ = ("group", "shard_id", "owner", "owner_live", "epoch", "since_us", "fenced", "late", "history", "lane")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    SHARD_ID_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    OWNER_LIVE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SINCE_US_FIELD_NUMBER: _ClassVar[int]
    FENCED_FIELD_NUMBER: _ClassVar[int]
    LATE_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    LANE_FIELD_NUMBER: _ClassVar[int]
    group: str
    shard_id: int
    owner: str
    owner_live: bool
    epoch: int
    since_us: int
    fenced: int
    late: int
    history: _containers.RepeatedCompositeFieldContainer[Tenure]
    lane: str
    def __init__(self, group: _Optional[str] = ..., shard_id: _Optional[int] = ..., owner: _Optional[str] = ..., owner_live: bool = ..., epoch: _Optional[int] = ..., since_us: _Optional[int] = ..., fenced: _Optional[int] = ..., late: _Optional[int] = ..., history: _Optional[_Iterable[_Union[Tenure, _Mapping]]] = ..., lane: _Optional[str] = ...) -> None: ...

class Tenure(_message.Message):
    __slots__ = ("epoch", "owner", "settlements", "first_us", "last_us", "cut")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    SETTLEMENTS_FIELD_NUMBER: _ClassVar[int]
    FIRST_US_FIELD_NUMBER: _ClassVar[int]
    LAST_US_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    owner: str
    settlements: int
    first_us: int
    last_us: int
    cut: bool
    def __init__(self, epoch: _Optional[int] = ..., owner: _Optional[str] = ..., settlements: _Optional[int] = ..., first_us: _Optional[int] = ..., last_us: _Optional[int] = ..., cut: bool = ...) -> None: ...

class Conflicts(_message.Message):
    __slots__ = ("for_s", "lost_s", "pairs", "transactions", "notes", "changes")
    FOR_S_FIELD_NUMBER: _ClassVar[int]
    LOST_S_FIELD_NUMBER: _ClassVar[int]
    PAIRS_FIELD_NUMBER: _ClassVar[int]
    TRANSACTIONS_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    for_s: float
    lost_s: float
    pairs: _containers.RepeatedCompositeFieldContainer[Pair]
    transactions: _containers.RepeatedCompositeFieldContainer[Transaction]
    notes: _containers.RepeatedScalarFieldContainer[str]
    changes: _containers.RepeatedCompositeFieldContainer[Change]
    def __init__(self, for_s: _Optional[float] = ..., lost_s: _Optional[float] = ..., pairs: _Optional[_Iterable[_Union[Pair, _Mapping]]] = ..., transactions: _Optional[_Iterable[_Union[Transaction, _Mapping]]] = ..., notes: _Optional[_Iterable[str]] = ..., changes: _Optional[_Iterable[_Union[Change, _Mapping]]] = ...) -> None: ...

class Pair(_message.Message):
    __slots__ = ("tags", "lost_s", "count", "kinds", "waited_s", "attempts_max", "places", "statements", "advice")
    class KindsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class WaitedSEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    TAGS_FIELD_NUMBER: _ClassVar[int]
    LOST_S_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    KINDS_FIELD_NUMBER: _ClassVar[int]
    WAITED_S_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_MAX_FIELD_NUMBER: _ClassVar[int]
    PLACES_FIELD_NUMBER: _ClassVar[int]
    STATEMENTS_FIELD_NUMBER: _ClassVar[int]
    ADVICE_FIELD_NUMBER: _ClassVar[int]
    tags: _containers.RepeatedScalarFieldContainer[str]
    lost_s: float
    count: int
    kinds: _containers.ScalarMap[str, int]
    waited_s: _containers.ScalarMap[str, float]
    attempts_max: int
    places: _containers.RepeatedCompositeFieldContainer[Place]
    statements: _containers.RepeatedCompositeFieldContainer[Statement]
    advice: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, tags: _Optional[_Iterable[str]] = ..., lost_s: _Optional[float] = ..., count: _Optional[int] = ..., kinds: _Optional[_Mapping[str, int]] = ..., waited_s: _Optional[_Mapping[str, float]] = ..., attempts_max: _Optional[int] = ..., places: _Optional[_Iterable[_Union[Place, _Mapping]]] = ..., statements: _Optional[_Iterable[_Union[Statement, _Mapping]]] = ..., advice: _Optional[_Iterable[str]] = ...) -> None: ...

class Place(_message.Message):
    __slots__ = ("place", "lost_s", "count")
    PLACE_FIELD_NUMBER: _ClassVar[int]
    LOST_S_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    place: str
    lost_s: float
    count: int
    def __init__(self, place: _Optional[str] = ..., lost_s: _Optional[float] = ..., count: _Optional[int] = ...) -> None: ...

class Statement(_message.Message):
    __slots__ = ("tag", "statement")
    TAG_FIELD_NUMBER: _ClassVar[int]
    STATEMENT_FIELD_NUMBER: _ClassVar[int]
    tag: str
    statement: str
    def __init__(self, tag: _Optional[str] = ..., statement: _Optional[str] = ...) -> None: ...

class Transaction(_message.Message):
    __slots__ = ("tag", "attempts", "aborts", "average_s", "tables")
    TAG_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    ABORTS_FIELD_NUMBER: _ClassVar[int]
    AVERAGE_S_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    tag: str
    attempts: int
    aborts: int
    average_s: float
    tables: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, tag: _Optional[str] = ..., attempts: _Optional[int] = ..., aborts: _Optional[int] = ..., average_s: _Optional[float] = ..., tables: _Optional[_Iterable[str]] = ...) -> None: ...

class Change(_message.Message):
    __slots__ = ("tags", "before", "after")
    TAGS_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    tags: _containers.RepeatedScalarFieldContainer[str]
    before: float
    after: float
    def __init__(self, tags: _Optional[_Iterable[str]] = ..., before: _Optional[float] = ..., after: _Optional[float] = ...) -> None: ...

class Lanes(_message.Message):
    __slots__ = ("lanes",)
    LANES_FIELD_NUMBER: _ClassVar[int]
    lanes: _containers.RepeatedCompositeFieldContainer[LaneView]
    def __init__(self, lanes: _Optional[_Iterable[_Union[LaneView, _Mapping]]] = ...) -> None: ...

class LaneView(_message.Message):
    __slots__ = ("name", "first_shard", "shards", "version", "draining")
    NAME_FIELD_NUMBER: _ClassVar[int]
    FIRST_SHARD_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    name: str
    first_shard: int
    shards: int
    version: int
    draining: _containers.RepeatedCompositeFieldContainer[DrainView]
    def __init__(self, name: _Optional[str] = ..., first_shard: _Optional[int] = ..., shards: _Optional[int] = ..., version: _Optional[int] = ..., draining: _Optional[_Iterable[_Union[DrainView, _Mapping]]] = ...) -> None: ...

class DrainView(_message.Message):
    __slots__ = ("version", "shards", "state", "transactions", "left", "keys")
    class LeftEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    TRANSACTIONS_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    version: int
    shards: int
    state: str
    transactions: int
    left: _containers.ScalarMap[str, int]
    keys: int
    def __init__(self, version: _Optional[int] = ..., shards: _Optional[int] = ..., state: _Optional[str] = ..., transactions: _Optional[int] = ..., left: _Optional[_Mapping[str, int]] = ..., keys: _Optional[int] = ...) -> None: ...

class Autoscalers(_message.Message):
    __slots__ = ("controllers",)
    CONTROLLERS_FIELD_NUMBER: _ClassVar[int]
    controllers: _containers.RepeatedCompositeFieldContainer[ControllerView]
    def __init__(self, controllers: _Optional[_Iterable[_Union[ControllerView, _Mapping]]] = ...) -> None: ...

class ControllerView(_message.Message):
    __slots__ = ("name", "owner", "epoch", "looked_at_us", "last", "up_us", "down_us", "decisions")
    NAME_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    LOOKED_AT_US_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    UP_US_FIELD_NUMBER: _ClassVar[int]
    DOWN_US_FIELD_NUMBER: _ClassVar[int]
    DECISIONS_FIELD_NUMBER: _ClassVar[int]
    name: str
    owner: str
    epoch: int
    looked_at_us: int
    last: str
    up_us: int
    down_us: int
    decisions: int
    def __init__(self, name: _Optional[str] = ..., owner: _Optional[str] = ..., epoch: _Optional[int] = ..., looked_at_us: _Optional[int] = ..., last: _Optional[str] = ..., up_us: _Optional[int] = ..., down_us: _Optional[int] = ..., decisions: _Optional[int] = ...) -> None: ...

class Decisions(_message.Message):
    __slots__ = ("decisions",)
    DECISIONS_FIELD_NUMBER: _ClassVar[int]
    decisions: _containers.RepeatedCompositeFieldContainer[DecisionView]
    def __init__(self, decisions: _Optional[_Iterable[_Union[DecisionView, _Mapping]]] = ...) -> None: ...

class DecisionView(_message.Message):
    __slots__ = ("controller", "seq", "epoch", "owner", "at_us", "rule", "from_size", "to_size", "wanted", "inputs", "why", "result")
    CONTROLLER_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    AT_US_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    FROM_SIZE_FIELD_NUMBER: _ClassVar[int]
    TO_SIZE_FIELD_NUMBER: _ClassVar[int]
    WANTED_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    controller: str
    seq: int
    epoch: int
    owner: str
    at_us: int
    rule: str
    from_size: int
    to_size: int
    wanted: int
    inputs: str
    why: str
    result: str
    def __init__(self, controller: _Optional[str] = ..., seq: _Optional[int] = ..., epoch: _Optional[int] = ..., owner: _Optional[str] = ..., at_us: _Optional[int] = ..., rule: _Optional[str] = ..., from_size: _Optional[int] = ..., to_size: _Optional[int] = ..., wanted: _Optional[int] = ..., inputs: _Optional[str] = ..., why: _Optional[str] = ..., result: _Optional[str] = ...) -> None: ...
