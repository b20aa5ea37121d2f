from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

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
    __slots__ = ("start", "end", "logStart", "compactedEnd", "creation", "highWatermarkEnd", "count", "damaged", "records")
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    LOGSTART_FIELD_NUMBER: _ClassVar[int]
    COMPACTEDEND_FIELD_NUMBER: _ClassVar[int]
    CREATION_FIELD_NUMBER: _ClassVar[int]
    HIGHWATERMARKEND_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    DAMAGED_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    start: int
    end: int
    logStart: int
    compactedEnd: int
    creation: int
    highWatermarkEnd: int
    count: int
    damaged: _containers.RepeatedCompositeFieldContainer[OffsetRange]
    records: bytes
    def __init__(self, start: _Optional[int] = ..., end: _Optional[int] = ..., logStart: _Optional[int] = ..., compactedEnd: _Optional[int] = ..., creation: _Optional[int] = ..., highWatermarkEnd: _Optional[int] = ..., count: _Optional[int] = ..., damaged: _Optional[_Iterable[_Union[OffsetRange, _Mapping]]] = ..., records: _Optional[bytes] = ...) -> None: ...

class OffsetRange(_message.Message):
    __slots__ = ("start", "end")
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    start: int
    end: int
    def __init__(self, start: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class WriteRequest(_message.Message):
    __slots__ = ("open", "batch")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    open: WriteOpen
    batch: WriteBatch
    def __init__(self, open: _Optional[_Union[WriteOpen, _Mapping]] = ..., batch: _Optional[_Union[WriteBatch, _Mapping]] = ...) -> None: ...

class WriteOpen(_message.Message):
    __slots__ = ("stream", "partition", "creation", "ackPolicy", "bypassOthers", "producer")
    class AckPolicy(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        ALL: _ClassVar[WriteOpen.AckPolicy]
        LEADER: _ClassVar[WriteOpen.AckPolicy]
    ALL: WriteOpen.AckPolicy
    LEADER: WriteOpen.AckPolicy
    STREAM_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    CREATION_FIELD_NUMBER: _ClassVar[int]
    ACKPOLICY_FIELD_NUMBER: _ClassVar[int]
    BYPASSOTHERS_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    stream: str
    partition: int
    creation: int
    ackPolicy: WriteOpen.AckPolicy
    bypassOthers: bool
    producer: WriteProducer
    def __init__(self, stream: _Optional[str] = ..., partition: _Optional[int] = ..., creation: _Optional[int] = ..., ackPolicy: _Optional[_Union[WriteOpen.AckPolicy, str]] = ..., bypassOthers: bool = ..., producer: _Optional[_Union[WriteProducer, _Mapping]] = ...) -> None: ...

class WriteProducer(_message.Message):
    __slots__ = ("id", "epoch")
    ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    id: int
    epoch: int
    def __init__(self, id: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class WriteBatch(_message.Message):
    __slots__ = ("count", "atomic", "producer", "sequence", "messages")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    ATOMIC_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    count: int
    atomic: bool
    producer: bytes
    sequence: int
    messages: bytes
    def __init__(self, count: _Optional[int] = ..., atomic: bool = ..., producer: _Optional[bytes] = ..., sequence: _Optional[int] = ..., messages: _Optional[bytes] = ...) -> None: ...

class WriteResponse(_message.Message):
    __slots__ = ("batch", "firstOffset", "lastOffset", "creation", "error", "numbered", "nextSequence", "duplicates")
    BATCH_FIELD_NUMBER: _ClassVar[int]
    FIRSTOFFSET_FIELD_NUMBER: _ClassVar[int]
    LASTOFFSET_FIELD_NUMBER: _ClassVar[int]
    CREATION_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    NUMBERED_FIELD_NUMBER: _ClassVar[int]
    NEXTSEQUENCE_FIELD_NUMBER: _ClassVar[int]
    DUPLICATES_FIELD_NUMBER: _ClassVar[int]
    batch: int
    firstOffset: int
    lastOffset: int
    creation: int
    error: WriteError
    numbered: bool
    nextSequence: int
    duplicates: int
    def __init__(self, batch: _Optional[int] = ..., firstOffset: _Optional[int] = ..., lastOffset: _Optional[int] = ..., creation: _Optional[int] = ..., error: _Optional[_Union[WriteError, _Mapping]] = ..., numbered: bool = ..., nextSequence: _Optional[int] = ..., duplicates: _Optional[int] = ...) -> None: ...

class WriteError(_message.Message):
    __slots__ = ("code", "message", "mayBeStored")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    MAYBESTORED_FIELD_NUMBER: _ClassVar[int]
    code: int
    message: str
    mayBeStored: bool
    def __init__(self, code: _Optional[int] = ..., message: _Optional[str] = ..., mayBeStored: bool = ...) -> None: ...
