from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class InitProducerRequest(_message.Message):
    __slots__ = ("name", "stream")
    NAME_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    name: str
    stream: str
    def __init__(self, name: _Optional[str] = ..., stream: _Optional[str] = ...) -> None: ...

class InitProducerResponse(_message.Message):
    __slots__ = ("id", "epoch", "creation")
    ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    CREATION_FIELD_NUMBER: _ClassVar[int]
    id: int
    epoch: int
    creation: int
    def __init__(self, id: _Optional[int] = ..., epoch: _Optional[int] = ..., creation: _Optional[int] = ...) -> None: ...

class PublishBatchRequest(_message.Message):
    __slots__ = ("stream", "partition", "ackPolicy", "expectedOffset", "producer", "messages")
    class AckPolicy(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        ALL: _ClassVar[PublishBatchRequest.AckPolicy]
        LEADER: _ClassVar[PublishBatchRequest.AckPolicy]
    ALL: PublishBatchRequest.AckPolicy
    LEADER: PublishBatchRequest.AckPolicy
    STREAM_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    ACKPOLICY_FIELD_NUMBER: _ClassVar[int]
    EXPECTEDOFFSET_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    stream: str
    partition: int
    ackPolicy: PublishBatchRequest.AckPolicy
    expectedOffset: int
    producer: bytes
    messages: bytes
    def __init__(self, stream: _Optional[str] = ..., partition: _Optional[int] = ..., ackPolicy: _Optional[_Union[PublishBatchRequest.AckPolicy, str]] = ..., expectedOffset: _Optional[int] = ..., producer: _Optional[bytes] = ..., messages: _Optional[bytes] = ...) -> None: ...

class PublishBatchResponse(_message.Message):
    __slots__ = ("firstOffset",)
    FIRSTOFFSET_FIELD_NUMBER: _ClassVar[int]
    firstOffset: int
    def __init__(self, firstOffset: _Optional[int] = ...) -> None: ...
