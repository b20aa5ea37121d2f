from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class ReadRequest(_message.Message):
    __slots__ = ("stream", "partition", "start", "end", "creation", "maxBytes", "fromReplica")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    CREATION_FIELD_NUMBER: _ClassVar[int]
    MAXBYTES_FIELD_NUMBER: _ClassVar[int]
    FROMREPLICA_FIELD_NUMBER: _ClassVar[int]
    stream: str
    partition: int
    start: int
    end: int
    creation: int
    maxBytes: int
    fromReplica: bool
    def __init__(self, stream: _Optional[str] = ..., partition: _Optional[int] = ..., start: _Optional[int] = ..., end: _Optional[int] = ..., creation: _Optional[int] = ..., maxBytes: _Optional[int] = ..., fromReplica: bool = ...) -> None: ...

class ReadResponse(_message.Message):
    __slots__ = ("start", "end", "logStart", "compactedEnd", "creation", "highWatermarkEnd", "count", "records")
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    LOGSTART_FIELD_NUMBER: _ClassVar[int]
    COMPACTEDEND_FIELD_NUMBER: _ClassVar[int]
    CREATION_FIELD_NUMBER: _ClassVar[int]
    HIGHWATERMARKEND_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    start: int
    end: int
    logStart: int
    compactedEnd: int
    creation: int
    highWatermarkEnd: int
    count: int
    records: bytes
    def __init__(self, start: _Optional[int] = ..., end: _Optional[int] = ..., logStart: _Optional[int] = ..., compactedEnd: _Optional[int] = ..., creation: _Optional[int] = ..., highWatermarkEnd: _Optional[int] = ..., count: _Optional[int] = ..., records: _Optional[bytes] = ...) -> None: ...
