from late.v1 import task_pb2 as _task_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ExecuteRequest(_message.Message):
    __slots__ = ("task", "idempotency_key")
    TASK_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    task: _task_pb2.Task
    idempotency_key: str
    def __init__(self, task: _Optional[_Union[_task_pb2.Task, _Mapping]] = ..., idempotency_key: _Optional[str] = ...) -> None: ...

class ExecuteResponse(_message.Message):
    __slots__ = ("done", "retry", "snooze", "discard", "fail", "not_capable")
    DONE_FIELD_NUMBER: _ClassVar[int]
    RETRY_FIELD_NUMBER: _ClassVar[int]
    SNOOZE_FIELD_NUMBER: _ClassVar[int]
    DISCARD_FIELD_NUMBER: _ClassVar[int]
    FAIL_FIELD_NUMBER: _ClassVar[int]
    NOT_CAPABLE_FIELD_NUMBER: _ClassVar[int]
    done: _task_pb2.Done
    retry: _task_pb2.Retry
    snooze: _task_pb2.Snooze
    discard: _task_pb2.Discard
    fail: _task_pb2.Fail
    not_capable: _task_pb2.NotCapable
    def __init__(self, done: _Optional[_Union[_task_pb2.Done, _Mapping]] = ..., retry: _Optional[_Union[_task_pb2.Retry, _Mapping]] = ..., snooze: _Optional[_Union[_task_pb2.Snooze, _Mapping]] = ..., discard: _Optional[_Union[_task_pb2.Discard, _Mapping]] = ..., fail: _Optional[_Union[_task_pb2.Fail, _Mapping]] = ..., not_capable: _Optional[_Union[_task_pb2.NotCapable, _Mapping]] = ...) -> None: ...
