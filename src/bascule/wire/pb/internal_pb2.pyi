from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Op(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CREATE_STREAM: _ClassVar[Op]
    SHRINK_ISR: _ClassVar[Op]
    REPORT_LEADER: _ClassVar[Op]
    CHANGE_LEADER: _ClassVar[Op]
    EXPAND_ISR: _ClassVar[Op]
    DELETE_STREAM: _ClassVar[Op]
    PAUSE_STREAM: _ClassVar[Op]
    RESUME_STREAM: _ClassVar[Op]
    PUBLISH_ACTIVITY: _ClassVar[Op]
    SET_STREAM_READONLY: _ClassVar[Op]
    CREATE_CONSUMER_GROUP: _ClassVar[Op]
    JOIN_CONSUMER_GROUP: _ClassVar[Op]
    LEAVE_CONSUMER_GROUP: _ClassVar[Op]
    REPORT_CONSUMER_GROUP_COORDINATOR: _ClassVar[Op]
    CHANGE_CONSUMER_GROUP_COORDINATOR: _ClassVar[Op]
    BROKER_DIED: _ClassVar[Op]
    HAND_OVER: _ClassVar[Op]
    BARRIER: _ClassVar[Op]
    DRAIN_BROKER: _ClassVar[Op]
    UNDRAIN_BROKER: _ClassVar[Op]
    BEGIN_REMOVAL: _ClassVar[Op]
    REMOVE_BROKER: _ClassVar[Op]
    ELECT_LEADER: _ClassVar[Op]
    STOP_BROKER: _ClassVar[Op]
    WAS_REMOVED: _ClassVar[Op]
    BROKER_STARTED: _ClassVar[Op]
    GIVE_WAY: _ClassVar[Op]
    DISK_LOST: _ClassVar[Op]
    RAISE_STARTS: _ClassVar[Op]
    SET_HOLD: _ClassVar[Op]
    REMOVE_HOLD: _ClassVar[Op]
    TELL_CLEARED: _ClassVar[Op]
    ALTER_STREAM: _ClassVar[Op]
    INIT_PRODUCER: _ClassVar[Op]
CREATE_STREAM: Op
SHRINK_ISR: Op
REPORT_LEADER: Op
CHANGE_LEADER: Op
EXPAND_ISR: Op
DELETE_STREAM: Op
PAUSE_STREAM: Op
RESUME_STREAM: Op
PUBLISH_ACTIVITY: Op
SET_STREAM_READONLY: Op
CREATE_CONSUMER_GROUP: Op
JOIN_CONSUMER_GROUP: Op
LEAVE_CONSUMER_GROUP: Op
REPORT_CONSUMER_GROUP_COORDINATOR: Op
CHANGE_CONSUMER_GROUP_COORDINATOR: Op
BROKER_DIED: Op
HAND_OVER: Op
BARRIER: Op
DRAIN_BROKER: Op
UNDRAIN_BROKER: Op
BEGIN_REMOVAL: Op
REMOVE_BROKER: Op
ELECT_LEADER: Op
STOP_BROKER: Op
WAS_REMOVED: Op
BROKER_STARTED: Op
GIVE_WAY: Op
DISK_LOST: Op
RAISE_STARTS: Op
SET_HOLD: Op
REMOVE_HOLD: Op
TELL_CLEARED: Op
ALTER_STREAM: Op
INIT_PRODUCER: Op

class NullableInt64(_message.Message):
    __slots__ = ("value",)
    VALUE_FIELD_NUMBER: _ClassVar[int]
    value: int
    def __init__(self, value: _Optional[int] = ...) -> None: ...

class NullableInt32(_message.Message):
    __slots__ = ("value",)
    VALUE_FIELD_NUMBER: _ClassVar[int]
    value: int
    def __init__(self, value: _Optional[int] = ...) -> None: ...

class NullableBool(_message.Message):
    __slots__ = ("value",)
    VALUE_FIELD_NUMBER: _ClassVar[int]
    value: bool
    def __init__(self, value: bool = ...) -> None: ...

class StreamConfig(_message.Message):
    __slots__ = ("retentionMaxBytes", "retentionMaxMessages", "retentionMaxAge", "cleanerInterval", "segmentMaxBytes", "segmentMaxAge", "compactMaxGoroutines", "compactEnabled", "autoPauseTime", "autoPauseDisableIfSubscribers", "minIsr", "optimisticConcurrencyControl", "encryption", "flatbuffersDraft", "compactMinLag", "compactTombstoneDelay")
    RETENTIONMAXBYTES_FIELD_NUMBER: _ClassVar[int]
    RETENTIONMAXMESSAGES_FIELD_NUMBER: _ClassVar[int]
    RETENTIONMAXAGE_FIELD_NUMBER: _ClassVar[int]
    CLEANERINTERVAL_FIELD_NUMBER: _ClassVar[int]
    SEGMENTMAXBYTES_FIELD_NUMBER: _ClassVar[int]
    SEGMENTMAXAGE_FIELD_NUMBER: _ClassVar[int]
    COMPACTMAXGOROUTINES_FIELD_NUMBER: _ClassVar[int]
    COMPACTENABLED_FIELD_NUMBER: _ClassVar[int]
    AUTOPAUSETIME_FIELD_NUMBER: _ClassVar[int]
    AUTOPAUSEDISABLEIFSUBSCRIBERS_FIELD_NUMBER: _ClassVar[int]
    MINISR_FIELD_NUMBER: _ClassVar[int]
    OPTIMISTICCONCURRENCYCONTROL_FIELD_NUMBER: _ClassVar[int]
    ENCRYPTION_FIELD_NUMBER: _ClassVar[int]
    FLATBUFFERSDRAFT_FIELD_NUMBER: _ClassVar[int]
    COMPACTMINLAG_FIELD_NUMBER: _ClassVar[int]
    COMPACTTOMBSTONEDELAY_FIELD_NUMBER: _ClassVar[int]
    retentionMaxBytes: NullableInt64
    retentionMaxMessages: NullableInt64
    retentionMaxAge: NullableInt64
    cleanerInterval: NullableInt64
    segmentMaxBytes: NullableInt64
    segmentMaxAge: NullableInt64
    compactMaxGoroutines: NullableInt32
    compactEnabled: NullableBool
    autoPauseTime: NullableInt64
    autoPauseDisableIfSubscribers: NullableBool
    minIsr: NullableInt32
    optimisticConcurrencyControl: NullableBool
    encryption: NullableBool
    flatbuffersDraft: NullableBool
    compactMinLag: NullableInt64
    compactTombstoneDelay: NullableInt64
    def __init__(self, retentionMaxBytes: _Optional[_Union[NullableInt64, _Mapping]] = ..., retentionMaxMessages: _Optional[_Union[NullableInt64, _Mapping]] = ..., retentionMaxAge: _Optional[_Union[NullableInt64, _Mapping]] = ..., cleanerInterval: _Optional[_Union[NullableInt64, _Mapping]] = ..., segmentMaxBytes: _Optional[_Union[NullableInt64, _Mapping]] = ..., segmentMaxAge: _Optional[_Union[NullableInt64, _Mapping]] = ..., compactMaxGoroutines: _Optional[_Union[NullableInt32, _Mapping]] = ..., compactEnabled: _Optional[_Union[NullableBool, _Mapping]] = ..., autoPauseTime: _Optional[_Union[NullableInt64, _Mapping]] = ..., autoPauseDisableIfSubscribers: _Optional[_Union[NullableBool, _Mapping]] = ..., minIsr: _Optional[_Union[NullableInt32, _Mapping]] = ..., optimisticConcurrencyControl: _Optional[_Union[NullableBool, _Mapping]] = ..., encryption: _Optional[_Union[NullableBool, _Mapping]] = ..., flatbuffersDraft: _Optional[_Union[NullableBool, _Mapping]] = ..., compactMinLag: _Optional[_Union[NullableInt64, _Mapping]] = ..., compactTombstoneDelay: _Optional[_Union[NullableInt64, _Mapping]] = ...) -> None: ...

class Partition(_message.Message):
    __slots__ = ("subject", "stream", "id", "group", "replicationFactor", "replicas", "leader", "isr", "leaderEpoch", "epoch", "paused", "readonly", "uncleanEpoch", "eligible", "resumeAll", "pauses", "readonlyChanges", "start", "holds", "cleared", "tombstonesEnd", "tombstonesEpoch")
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    REPLICATIONFACTOR_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    ISR_FIELD_NUMBER: _ClassVar[int]
    LEADEREPOCH_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    READONLY_FIELD_NUMBER: _ClassVar[int]
    UNCLEANEPOCH_FIELD_NUMBER: _ClassVar[int]
    ELIGIBLE_FIELD_NUMBER: _ClassVar[int]
    RESUMEALL_FIELD_NUMBER: _ClassVar[int]
    PAUSES_FIELD_NUMBER: _ClassVar[int]
    READONLYCHANGES_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    HOLDS_FIELD_NUMBER: _ClassVar[int]
    CLEARED_FIELD_NUMBER: _ClassVar[int]
    TOMBSTONESEND_FIELD_NUMBER: _ClassVar[int]
    TOMBSTONESEPOCH_FIELD_NUMBER: _ClassVar[int]
    subject: str
    stream: str
    id: int
    group: str
    replicationFactor: int
    replicas: _containers.RepeatedScalarFieldContainer[str]
    leader: str
    isr: _containers.RepeatedScalarFieldContainer[str]
    leaderEpoch: int
    epoch: int
    paused: bool
    readonly: bool
    uncleanEpoch: int
    eligible: _containers.RepeatedScalarFieldContainer[str]
    resumeAll: bool
    pauses: EventTimes
    readonlyChanges: EventTimes
    start: int
    holds: _containers.RepeatedCompositeFieldContainer[Hold]
    cleared: _containers.RepeatedCompositeFieldContainer[Cleared]
    tombstonesEnd: int
    tombstonesEpoch: int
    def __init__(self, subject: _Optional[str] = ..., stream: _Optional[str] = ..., id: _Optional[int] = ..., group: _Optional[str] = ..., replicationFactor: _Optional[int] = ..., replicas: _Optional[_Iterable[str]] = ..., leader: _Optional[str] = ..., isr: _Optional[_Iterable[str]] = ..., leaderEpoch: _Optional[int] = ..., epoch: _Optional[int] = ..., paused: bool = ..., readonly: bool = ..., uncleanEpoch: _Optional[int] = ..., eligible: _Optional[_Iterable[str]] = ..., resumeAll: bool = ..., pauses: _Optional[_Union[EventTimes, _Mapping]] = ..., readonlyChanges: _Optional[_Union[EventTimes, _Mapping]] = ..., start: _Optional[int] = ..., holds: _Optional[_Iterable[_Union[Hold, _Mapping]]] = ..., cleared: _Optional[_Iterable[_Union[Cleared, _Mapping]]] = ..., tombstonesEnd: _Optional[int] = ..., tombstonesEpoch: _Optional[int] = ...) -> None: ...

class Hold(_message.Message):
    __slots__ = ("name", "offset", "at")
    NAME_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    name: str
    offset: int
    at: int
    def __init__(self, name: _Optional[str] = ..., offset: _Optional[int] = ..., at: _Optional[int] = ...) -> None: ...

class NewStart(_message.Message):
    __slots__ = ("stream", "creationIndex", "partition", "leaderEpoch", "start")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    CREATIONINDEX_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    LEADEREPOCH_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    stream: str
    creationIndex: int
    partition: int
    leaderEpoch: int
    start: int
    def __init__(self, stream: _Optional[str] = ..., creationIndex: _Optional[int] = ..., partition: _Optional[int] = ..., leaderEpoch: _Optional[int] = ..., start: _Optional[int] = ...) -> None: ...

class RaiseStartsOp(_message.Message):
    __slots__ = ("leader", "starts")
    LEADER_FIELD_NUMBER: _ClassVar[int]
    STARTS_FIELD_NUMBER: _ClassVar[int]
    leader: str
    starts: _containers.RepeatedCompositeFieldContainer[NewStart]
    def __init__(self, leader: _Optional[str] = ..., starts: _Optional[_Iterable[_Union[NewStart, _Mapping]]] = ...) -> None: ...

class Cleared(_message.Message):
    __slots__ = ("replica", "end", "at")
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    replica: str
    end: int
    at: int
    def __init__(self, replica: _Optional[str] = ..., end: _Optional[int] = ..., at: _Optional[int] = ...) -> None: ...

class ClearedEnd(_message.Message):
    __slots__ = ("stream", "creationIndex", "partition", "epoch", "since", "end")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    CREATIONINDEX_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    stream: str
    creationIndex: int
    partition: int
    epoch: int
    since: int
    end: int
    def __init__(self, stream: _Optional[str] = ..., creationIndex: _Optional[int] = ..., partition: _Optional[int] = ..., epoch: _Optional[int] = ..., since: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class TellClearedOp(_message.Message):
    __slots__ = ("replica", "ends")
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    ENDS_FIELD_NUMBER: _ClassVar[int]
    replica: str
    ends: _containers.RepeatedCompositeFieldContainer[ClearedEnd]
    def __init__(self, replica: _Optional[str] = ..., ends: _Optional[_Iterable[_Union[ClearedEnd, _Mapping]]] = ...) -> None: ...

class HoldOp(_message.Message):
    __slots__ = ("stream", "partition", "name", "offset", "at")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    stream: str
    partition: int
    name: str
    offset: int
    at: int
    def __init__(self, stream: _Optional[str] = ..., partition: _Optional[int] = ..., name: _Optional[str] = ..., offset: _Optional[int] = ..., at: _Optional[int] = ...) -> None: ...

class AlterStreamOp(_message.Message):
    __slots__ = ("stream", "config", "reset")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    RESET_FIELD_NUMBER: _ClassVar[int]
    stream: str
    config: StreamConfig
    reset: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, stream: _Optional[str] = ..., config: _Optional[_Union[StreamConfig, _Mapping]] = ..., reset: _Optional[_Iterable[str]] = ...) -> None: ...

class InitProducerOp(_message.Message):
    __slots__ = ("name", "at")
    NAME_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    name: str
    at: int
    def __init__(self, name: _Optional[str] = ..., at: _Optional[int] = ...) -> None: ...

class NamedProducer(_message.Message):
    __slots__ = ("name", "id", "epoch", "used")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    USED_FIELD_NUMBER: _ClassVar[int]
    name: str
    id: int
    epoch: int
    used: int
    def __init__(self, name: _Optional[str] = ..., id: _Optional[int] = ..., epoch: _Optional[int] = ..., used: _Optional[int] = ...) -> None: ...

class EventTimes(_message.Message):
    __slots__ = ("first", "latest")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LATEST_FIELD_NUMBER: _ClassVar[int]
    first: int
    latest: int
    def __init__(self, first: _Optional[int] = ..., latest: _Optional[int] = ...) -> None: ...

class Stream(_message.Message):
    __slots__ = ("name", "subject", "partitions", "config", "creationTimestamp", "creationIndex")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    CREATIONTIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    CREATIONINDEX_FIELD_NUMBER: _ClassVar[int]
    name: str
    subject: str
    partitions: _containers.RepeatedCompositeFieldContainer[Partition]
    config: StreamConfig
    creationTimestamp: int
    creationIndex: int
    def __init__(self, name: _Optional[str] = ..., subject: _Optional[str] = ..., partitions: _Optional[_Iterable[_Union[Partition, _Mapping]]] = ..., config: _Optional[_Union[StreamConfig, _Mapping]] = ..., creationTimestamp: _Optional[int] = ..., creationIndex: _Optional[int] = ...) -> None: ...

class CreateStreamOp(_message.Message):
    __slots__ = ("stream",)
    STREAM_FIELD_NUMBER: _ClassVar[int]
    stream: Stream
    def __init__(self, stream: _Optional[_Union[Stream, _Mapping]] = ...) -> None: ...

class DeleteStreamOp(_message.Message):
    __slots__ = ("stream",)
    STREAM_FIELD_NUMBER: _ClassVar[int]
    stream: str
    def __init__(self, stream: _Optional[str] = ...) -> None: ...

class PauseStreamOp(_message.Message):
    __slots__ = ("stream", "partitions", "resumeAll", "at", "leader", "leaderEpoch")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    RESUMEALL_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    LEADEREPOCH_FIELD_NUMBER: _ClassVar[int]
    stream: str
    partitions: _containers.RepeatedScalarFieldContainer[int]
    resumeAll: bool
    at: int
    leader: str
    leaderEpoch: int
    def __init__(self, stream: _Optional[str] = ..., partitions: _Optional[_Iterable[int]] = ..., resumeAll: bool = ..., at: _Optional[int] = ..., leader: _Optional[str] = ..., leaderEpoch: _Optional[int] = ...) -> None: ...

class ResumeStreamOp(_message.Message):
    __slots__ = ("stream", "partitions", "at")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    stream: str
    partitions: _containers.RepeatedScalarFieldContainer[int]
    at: int
    def __init__(self, stream: _Optional[str] = ..., partitions: _Optional[_Iterable[int]] = ..., at: _Optional[int] = ...) -> None: ...

class SetStreamReadonlyOp(_message.Message):
    __slots__ = ("stream", "partitions", "readonly", "at")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    READONLY_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    stream: str
    partitions: _containers.RepeatedScalarFieldContainer[int]
    readonly: bool
    at: int
    def __init__(self, stream: _Optional[str] = ..., partitions: _Optional[_Iterable[int]] = ..., readonly: bool = ..., at: _Optional[int] = ...) -> None: ...

class PartitionAssignment(_message.Message):
    __slots__ = ("stream", "partitions")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    stream: str
    partitions: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, stream: _Optional[str] = ..., partitions: _Optional[_Iterable[int]] = ...) -> None: ...

class Consumer(_message.Message):
    __slots__ = ("id", "streams", "joined", "assignments")
    ID_FIELD_NUMBER: _ClassVar[int]
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    JOINED_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENTS_FIELD_NUMBER: _ClassVar[int]
    id: str
    streams: _containers.RepeatedScalarFieldContainer[str]
    joined: int
    assignments: _containers.RepeatedCompositeFieldContainer[PartitionAssignment]
    def __init__(self, id: _Optional[str] = ..., streams: _Optional[_Iterable[str]] = ..., joined: _Optional[int] = ..., assignments: _Optional[_Iterable[_Union[PartitionAssignment, _Mapping]]] = ...) -> None: ...

class ConsumerGroup(_message.Message):
    __slots__ = ("id", "members", "coordinator", "epoch", "created", "coordinatorEpoch")
    ID_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    COORDINATOREPOCH_FIELD_NUMBER: _ClassVar[int]
    id: str
    members: _containers.RepeatedCompositeFieldContainer[Consumer]
    coordinator: str
    epoch: int
    created: int
    coordinatorEpoch: int
    def __init__(self, id: _Optional[str] = ..., members: _Optional[_Iterable[_Union[Consumer, _Mapping]]] = ..., coordinator: _Optional[str] = ..., epoch: _Optional[int] = ..., created: _Optional[int] = ..., coordinatorEpoch: _Optional[int] = ...) -> None: ...

class JoinConsumerGroupOp(_message.Message):
    __slots__ = ("groupId", "consumerId", "streams", "alive")
    GROUPID_FIELD_NUMBER: _ClassVar[int]
    CONSUMERID_FIELD_NUMBER: _ClassVar[int]
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    ALIVE_FIELD_NUMBER: _ClassVar[int]
    groupId: str
    consumerId: str
    streams: _containers.RepeatedScalarFieldContainer[str]
    alive: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, groupId: _Optional[str] = ..., consumerId: _Optional[str] = ..., streams: _Optional[_Iterable[str]] = ..., alive: _Optional[_Iterable[str]] = ...) -> None: ...

class LeaveConsumerGroupOp(_message.Message):
    __slots__ = ("groupId", "consumerId", "expired", "epoch")
    GROUPID_FIELD_NUMBER: _ClassVar[int]
    CONSUMERID_FIELD_NUMBER: _ClassVar[int]
    EXPIRED_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    groupId: str
    consumerId: str
    expired: bool
    epoch: int
    def __init__(self, groupId: _Optional[str] = ..., consumerId: _Optional[str] = ..., expired: bool = ..., epoch: _Optional[int] = ...) -> None: ...

class ReportConsumerGroupCoordinatorOp(_message.Message):
    __slots__ = ("groupId", "consumerId", "coordinator", "epoch")
    GROUPID_FIELD_NUMBER: _ClassVar[int]
    CONSUMERID_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    groupId: str
    consumerId: str
    coordinator: str
    epoch: int
    def __init__(self, groupId: _Optional[str] = ..., consumerId: _Optional[str] = ..., coordinator: _Optional[str] = ..., epoch: _Optional[int] = ...) -> None: ...

class ChangeConsumerGroupCoordinatorOp(_message.Message):
    __slots__ = ("groupId", "epoch", "alive")
    GROUPID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ALIVE_FIELD_NUMBER: _ClassVar[int]
    groupId: str
    epoch: int
    alive: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, groupId: _Optional[str] = ..., epoch: _Optional[int] = ..., alive: _Optional[_Iterable[str]] = ...) -> None: ...

class IsrOp(_message.Message):
    __slots__ = ("stream", "partition", "replica", "leader", "leaderEpoch", "epoch", "lacks", "whole")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    LEADEREPOCH_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    LACKS_FIELD_NUMBER: _ClassVar[int]
    WHOLE_FIELD_NUMBER: _ClassVar[int]
    stream: str
    partition: int
    replica: str
    leader: str
    leaderEpoch: int
    epoch: int
    lacks: bool
    whole: bool
    def __init__(self, stream: _Optional[str] = ..., partition: _Optional[int] = ..., replica: _Optional[str] = ..., leader: _Optional[str] = ..., leaderEpoch: _Optional[int] = ..., epoch: _Optional[int] = ..., lacks: bool = ..., whole: bool = ...) -> None: ...

class BrokerOp(_message.Message):
    __slots__ = ("broker", "alive")
    BROKER_FIELD_NUMBER: _ClassVar[int]
    ALIVE_FIELD_NUMBER: _ClassVar[int]
    broker: str
    alive: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, broker: _Optional[str] = ..., alive: _Optional[_Iterable[str]] = ...) -> None: ...

class ChangeLeaderOp(_message.Message):
    __slots__ = ("stream", "partition", "leader", "leaderEpoch", "alive")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    LEADEREPOCH_FIELD_NUMBER: _ClassVar[int]
    ALIVE_FIELD_NUMBER: _ClassVar[int]
    stream: str
    partition: int
    leader: str
    leaderEpoch: int
    alive: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, stream: _Optional[str] = ..., partition: _Optional[int] = ..., leader: _Optional[str] = ..., leaderEpoch: _Optional[int] = ..., alive: _Optional[_Iterable[str]] = ...) -> None: ...

class Operation(_message.Message):
    __slots__ = ("id", "since")
    ID_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    id: str
    since: int
    def __init__(self, id: _Optional[str] = ..., since: _Optional[int] = ...) -> None: ...

class IndexOf(_message.Message):
    __slots__ = ("name", "index")
    NAME_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    name: str
    index: int
    def __init__(self, name: _Optional[str] = ..., index: _Optional[int] = ...) -> None: ...

class Operations(_message.Message):
    __slots__ = ("made", "deleted", "forgotten")
    MADE_FIELD_NUMBER: _ClassVar[int]
    DELETED_FIELD_NUMBER: _ClassVar[int]
    FORGOTTEN_FIELD_NUMBER: _ClassVar[int]
    made: _containers.RepeatedCompositeFieldContainer[IndexOf]
    deleted: _containers.RepeatedCompositeFieldContainer[IndexOf]
    forgotten: int
    def __init__(self, made: _Optional[_Iterable[_Union[IndexOf, _Mapping]]] = ..., deleted: _Optional[_Iterable[_Union[IndexOf, _Mapping]]] = ..., forgotten: _Optional[int] = ...) -> None: ...

class PartitionName(_message.Message):
    __slots__ = ("stream", "partition")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    stream: str
    partition: int
    def __init__(self, stream: _Optional[str] = ..., partition: _Optional[int] = ...) -> None: ...

class BrokerStartedOp(_message.Message):
    __slots__ = ("broker", "allSuspect", "suspect", "alive")
    BROKER_FIELD_NUMBER: _ClassVar[int]
    ALLSUSPECT_FIELD_NUMBER: _ClassVar[int]
    SUSPECT_FIELD_NUMBER: _ClassVar[int]
    ALIVE_FIELD_NUMBER: _ClassVar[int]
    broker: str
    allSuspect: bool
    suspect: _containers.RepeatedCompositeFieldContainer[PartitionName]
    alive: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, broker: _Optional[str] = ..., allSuspect: bool = ..., suspect: _Optional[_Iterable[_Union[PartitionName, _Mapping]]] = ..., alive: _Optional[_Iterable[str]] = ...) -> None: ...

class ReplicaOp(_message.Message):
    __slots__ = ("stream", "partition", "replica")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    stream: str
    partition: int
    replica: str
    def __init__(self, stream: _Optional[str] = ..., partition: _Optional[int] = ..., replica: _Optional[str] = ...) -> None: ...

class AdminOp(_message.Message):
    __slots__ = ("broker", "incarnation", "avoid", "replicas", "inSync", "force", "eligible")
    BROKER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    AVOID_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    INSYNC_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    ELIGIBLE_FIELD_NUMBER: _ClassVar[int]
    broker: str
    incarnation: str
    avoid: _containers.RepeatedScalarFieldContainer[str]
    replicas: _containers.RepeatedCompositeFieldContainer[ReplicaOp]
    inSync: _containers.RepeatedScalarFieldContainer[str]
    force: bool
    eligible: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, broker: _Optional[str] = ..., incarnation: _Optional[str] = ..., avoid: _Optional[_Iterable[str]] = ..., replicas: _Optional[_Iterable[_Union[ReplicaOp, _Mapping]]] = ..., inSync: _Optional[_Iterable[str]] = ..., force: bool = ..., eligible: _Optional[_Iterable[str]] = ...) -> None: ...

class RemovedBroker(_message.Message):
    __slots__ = ("id", "incarnation")
    ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    id: str
    incarnation: str
    def __init__(self, id: _Optional[str] = ..., incarnation: _Optional[str] = ...) -> None: ...

class PublishActivityOp(_message.Message):
    __slots__ = ("raftIndex",)
    RAFTINDEX_FIELD_NUMBER: _ClassVar[int]
    raftIndex: int
    def __init__(self, raftIndex: _Optional[int] = ...) -> None: ...

class ActivityEvent(_message.Message):
    __slots__ = ("index", "event")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    index: int
    event: bytes
    def __init__(self, index: _Optional[int] = ..., event: _Optional[bytes] = ...) -> None: ...

class Activity(_message.Message):
    __slots__ = ("published", "unpublished", "dropped")
    PUBLISHED_FIELD_NUMBER: _ClassVar[int]
    UNPUBLISHED_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    published: int
    unpublished: _containers.RepeatedCompositeFieldContainer[ActivityEvent]
    dropped: int
    def __init__(self, published: _Optional[int] = ..., unpublished: _Optional[_Iterable[_Union[ActivityEvent, _Mapping]]] = ..., dropped: _Optional[int] = ...) -> None: ...

class Cursor(_message.Message):
    __slots__ = ("stream", "partition", "cursorId", "offset", "creationIndex")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    CURSORID_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    CREATIONINDEX_FIELD_NUMBER: _ClassVar[int]
    stream: str
    partition: int
    cursorId: str
    offset: int
    creationIndex: int
    def __init__(self, stream: _Optional[str] = ..., partition: _Optional[int] = ..., cursorId: _Optional[str] = ..., offset: _Optional[int] = ..., creationIndex: _Optional[int] = ...) -> None: ...

class RaftLog(_message.Message):
    __slots__ = ("op", "createStreamOp", "shrinkISROp", "changeLeaderOp", "expandISROp", "deleteStreamOp", "pauseStreamOp", "resumeStreamOp", "publishActivityOp", "setStreamReadonlyOp", "joinConsumerGroupOp", "leaveConsumerGroupOp", "changeConsumerGroupCoordinatorOp", "brokerOp", "adminOp", "operation", "brokerStartedOp", "giveWayOp", "raiseStartsOp", "holdOp", "tellClearedOp", "alterStreamOp", "initProducerOp")
    OP_FIELD_NUMBER: _ClassVar[int]
    CREATESTREAMOP_FIELD_NUMBER: _ClassVar[int]
    SHRINKISROP_FIELD_NUMBER: _ClassVar[int]
    CHANGELEADEROP_FIELD_NUMBER: _ClassVar[int]
    EXPANDISROP_FIELD_NUMBER: _ClassVar[int]
    DELETESTREAMOP_FIELD_NUMBER: _ClassVar[int]
    PAUSESTREAMOP_FIELD_NUMBER: _ClassVar[int]
    RESUMESTREAMOP_FIELD_NUMBER: _ClassVar[int]
    PUBLISHACTIVITYOP_FIELD_NUMBER: _ClassVar[int]
    SETSTREAMREADONLYOP_FIELD_NUMBER: _ClassVar[int]
    JOINCONSUMERGROUPOP_FIELD_NUMBER: _ClassVar[int]
    LEAVECONSUMERGROUPOP_FIELD_NUMBER: _ClassVar[int]
    CHANGECONSUMERGROUPCOORDINATOROP_FIELD_NUMBER: _ClassVar[int]
    BROKEROP_FIELD_NUMBER: _ClassVar[int]
    ADMINOP_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    BROKERSTARTEDOP_FIELD_NUMBER: _ClassVar[int]
    GIVEWAYOP_FIELD_NUMBER: _ClassVar[int]
    RAISESTARTSOP_FIELD_NUMBER: _ClassVar[int]
    HOLDOP_FIELD_NUMBER: _ClassVar[int]
    TELLCLEAREDOP_FIELD_NUMBER: _ClassVar[int]
    ALTERSTREAMOP_FIELD_NUMBER: _ClassVar[int]
    INITPRODUCEROP_FIELD_NUMBER: _ClassVar[int]
    op: Op
    createStreamOp: CreateStreamOp
    shrinkISROp: IsrOp
    changeLeaderOp: ChangeLeaderOp
    expandISROp: IsrOp
    deleteStreamOp: DeleteStreamOp
    pauseStreamOp: PauseStreamOp
    resumeStreamOp: ResumeStreamOp
    publishActivityOp: PublishActivityOp
    setStreamReadonlyOp: SetStreamReadonlyOp
    joinConsumerGroupOp: JoinConsumerGroupOp
    leaveConsumerGroupOp: LeaveConsumerGroupOp
    changeConsumerGroupCoordinatorOp: ChangeConsumerGroupCoordinatorOp
    brokerOp: BrokerOp
    adminOp: AdminOp
    operation: Operation
    brokerStartedOp: BrokerStartedOp
    giveWayOp: IsrOp
    raiseStartsOp: RaiseStartsOp
    holdOp: HoldOp
    tellClearedOp: TellClearedOp
    alterStreamOp: AlterStreamOp
    initProducerOp: InitProducerOp
    def __init__(self, op: _Optional[_Union[Op, str]] = ..., createStreamOp: _Optional[_Union[CreateStreamOp, _Mapping]] = ..., shrinkISROp: _Optional[_Union[IsrOp, _Mapping]] = ..., changeLeaderOp: _Optional[_Union[ChangeLeaderOp, _Mapping]] = ..., expandISROp: _Optional[_Union[IsrOp, _Mapping]] = ..., deleteStreamOp: _Optional[_Union[DeleteStreamOp, _Mapping]] = ..., pauseStreamOp: _Optional[_Union[PauseStreamOp, _Mapping]] = ..., resumeStreamOp: _Optional[_Union[ResumeStreamOp, _Mapping]] = ..., publishActivityOp: _Optional[_Union[PublishActivityOp, _Mapping]] = ..., setStreamReadonlyOp: _Optional[_Union[SetStreamReadonlyOp, _Mapping]] = ..., joinConsumerGroupOp: _Optional[_Union[JoinConsumerGroupOp, _Mapping]] = ..., leaveConsumerGroupOp: _Optional[_Union[LeaveConsumerGroupOp, _Mapping]] = ..., changeConsumerGroupCoordinatorOp: _Optional[_Union[ChangeConsumerGroupCoordinatorOp, _Mapping]] = ..., brokerOp: _Optional[_Union[BrokerOp, _Mapping]] = ..., adminOp: _Optional[_Union[AdminOp, _Mapping]] = ..., operation: _Optional[_Union[Operation, _Mapping]] = ..., brokerStartedOp: _Optional[_Union[BrokerStartedOp, _Mapping]] = ..., giveWayOp: _Optional[_Union[IsrOp, _Mapping]] = ..., raiseStartsOp: _Optional[_Union[RaiseStartsOp, _Mapping]] = ..., holdOp: _Optional[_Union[HoldOp, _Mapping]] = ..., tellClearedOp: _Optional[_Union[TellClearedOp, _Mapping]] = ..., alterStreamOp: _Optional[_Union[AlterStreamOp, _Mapping]] = ..., initProducerOp: _Optional[_Union[InitProducerOp, _Mapping]] = ...) -> None: ...

class MetadataSnapshot(_message.Message):
    __slots__ = ("streams", "groups", "index", "draining", "removing", "removed", "operations", "activity", "producers")
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    REMOVING_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    OPERATIONS_FIELD_NUMBER: _ClassVar[int]
    ACTIVITY_FIELD_NUMBER: _ClassVar[int]
    PRODUCERS_FIELD_NUMBER: _ClassVar[int]
    streams: _containers.RepeatedCompositeFieldContainer[Stream]
    groups: _containers.RepeatedCompositeFieldContainer[ConsumerGroup]
    index: int
    draining: _containers.RepeatedScalarFieldContainer[str]
    removing: _containers.RepeatedScalarFieldContainer[str]
    removed: _containers.RepeatedCompositeFieldContainer[RemovedBroker]
    operations: Operations
    activity: Activity
    producers: _containers.RepeatedCompositeFieldContainer[NamedProducer]
    def __init__(self, streams: _Optional[_Iterable[_Union[Stream, _Mapping]]] = ..., groups: _Optional[_Iterable[_Union[ConsumerGroup, _Mapping]]] = ..., index: _Optional[int] = ..., draining: _Optional[_Iterable[str]] = ..., removing: _Optional[_Iterable[str]] = ..., removed: _Optional[_Iterable[_Union[RemovedBroker, _Mapping]]] = ..., operations: _Optional[_Union[Operations, _Mapping]] = ..., activity: _Optional[_Union[Activity, _Mapping]] = ..., producers: _Optional[_Iterable[_Union[NamedProducer, _Mapping]]] = ...) -> None: ...

class ServerState(_message.Message):
    __slots__ = ("serverID",)
    SERVERID_FIELD_NUMBER: _ClassVar[int]
    serverID: str
    def __init__(self, serverID: _Optional[str] = ...) -> None: ...

class RaftJoinRequest(_message.Message):
    __slots__ = ("nodeID", "incarnation", "cluster")
    NODEID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    nodeID: str
    incarnation: str
    cluster: str
    def __init__(self, nodeID: _Optional[str] = ..., incarnation: _Optional[str] = ..., cluster: _Optional[str] = ...) -> None: ...

class RaftJoinResponse(_message.Message):
    __slots__ = ("error", "final", "cluster")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    FINAL_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    error: str
    final: bool
    cluster: str
    def __init__(self, error: _Optional[str] = ..., final: bool = ..., cluster: _Optional[str] = ...) -> None: ...

class Bootstrap(_message.Message):
    __slots__ = ("id", "incarnation", "seed", "cluster", "promise")
    ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    PROMISE_FIELD_NUMBER: _ClassVar[int]
    id: str
    incarnation: str
    seed: bool
    cluster: str
    promise: Promise
    def __init__(self, id: _Optional[str] = ..., incarnation: _Optional[str] = ..., seed: bool = ..., cluster: _Optional[str] = ..., promise: _Optional[_Union[Promise, _Mapping]] = ...) -> None: ...

class Promise(_message.Message):
    __slots__ = ("founder", "incarnation", "withdrawn")
    FOUNDER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    WITHDRAWN_FIELD_NUMBER: _ClassVar[int]
    founder: str
    incarnation: str
    withdrawn: bool
    def __init__(self, founder: _Optional[str] = ..., incarnation: _Optional[str] = ..., withdrawn: bool = ...) -> None: ...

class ServerInfoRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class ServerInfoResponse(_message.Message):
    __slots__ = ("id", "host", "port", "boot", "partitionCount", "leaderCount", "leaving", "beat", "hears", "cluster", "commit", "members", "knowsCleared")
    ID_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    BOOT_FIELD_NUMBER: _ClassVar[int]
    PARTITIONCOUNT_FIELD_NUMBER: _ClassVar[int]
    LEADERCOUNT_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    BEAT_FIELD_NUMBER: _ClassVar[int]
    HEARS_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    KNOWSCLEARED_FIELD_NUMBER: _ClassVar[int]
    id: str
    host: str
    port: int
    boot: str
    partitionCount: int
    leaderCount: int
    leaving: bool
    beat: int
    hears: str
    cluster: str
    commit: int
    members: int
    knowsCleared: bool
    def __init__(self, id: _Optional[str] = ..., host: _Optional[str] = ..., port: _Optional[int] = ..., boot: _Optional[str] = ..., partitionCount: _Optional[int] = ..., leaderCount: _Optional[int] = ..., leaving: bool = ..., beat: _Optional[int] = ..., hears: _Optional[str] = ..., cluster: _Optional[str] = ..., commit: _Optional[int] = ..., members: _Optional[int] = ..., knowsCleared: bool = ...) -> None: ...

class PartitionStatusRequest(_message.Message):
    __slots__ = ("stream", "partition", "creationIndex", "partitions")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    CREATIONINDEX_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    stream: str
    partition: int
    creationIndex: int
    partitions: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, stream: _Optional[str] = ..., partition: _Optional[int] = ..., creationIndex: _Optional[int] = ..., partitions: _Optional[_Iterable[int]] = ...) -> None: ...

class PartitionStatusResponse(_message.Message):
    __slots__ = ("exists", "isLeader", "carriedOut")
    EXISTS_FIELD_NUMBER: _ClassVar[int]
    ISLEADER_FIELD_NUMBER: _ClassVar[int]
    CARRIEDOUT_FIELD_NUMBER: _ClassVar[int]
    exists: bool
    isLeader: bool
    carriedOut: int
    def __init__(self, exists: bool = ..., isLeader: bool = ..., carriedOut: _Optional[int] = ...) -> None: ...

class PositionsRequest(_message.Message):
    __slots__ = ("stream", "partitions", "expired")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    EXPIRED_FIELD_NUMBER: _ClassVar[int]
    stream: str
    partitions: _containers.RepeatedScalarFieldContainer[int]
    expired: bool
    def __init__(self, stream: _Optional[str] = ..., partitions: _Optional[_Iterable[int]] = ..., expired: bool = ...) -> None: ...

class PartitionPosition(_message.Message):
    __slots__ = ("partition", "end", "hwEnd", "lastEpoch", "leads", "waitsFor", "stream", "start", "bytes", "segments", "firstTimestamp", "lastTimestamp", "heldBytes", "expiredEnd", "leaderEpoch", "established", "readonly")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    HWEND_FIELD_NUMBER: _ClassVar[int]
    LASTEPOCH_FIELD_NUMBER: _ClassVar[int]
    LEADS_FIELD_NUMBER: _ClassVar[int]
    WAITSFOR_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    FIRSTTIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    LASTTIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    HELDBYTES_FIELD_NUMBER: _ClassVar[int]
    EXPIREDEND_FIELD_NUMBER: _ClassVar[int]
    LEADEREPOCH_FIELD_NUMBER: _ClassVar[int]
    ESTABLISHED_FIELD_NUMBER: _ClassVar[int]
    READONLY_FIELD_NUMBER: _ClassVar[int]
    partition: int
    end: int
    hwEnd: int
    lastEpoch: int
    leads: bool
    waitsFor: _containers.RepeatedScalarFieldContainer[str]
    stream: str
    start: int
    bytes: int
    segments: int
    firstTimestamp: int
    lastTimestamp: int
    heldBytes: _containers.RepeatedScalarFieldContainer[int]
    expiredEnd: int
    leaderEpoch: int
    established: bool
    readonly: bool
    def __init__(self, partition: _Optional[int] = ..., end: _Optional[int] = ..., hwEnd: _Optional[int] = ..., lastEpoch: _Optional[int] = ..., leads: bool = ..., waitsFor: _Optional[_Iterable[str]] = ..., stream: _Optional[str] = ..., start: _Optional[int] = ..., bytes: _Optional[int] = ..., segments: _Optional[int] = ..., firstTimestamp: _Optional[int] = ..., lastTimestamp: _Optional[int] = ..., heldBytes: _Optional[_Iterable[int]] = ..., expiredEnd: _Optional[int] = ..., leaderEpoch: _Optional[int] = ..., established: bool = ..., readonly: bool = ...) -> None: ...

class PositionsResponse(_message.Message):
    __slots__ = ("positions", "sync")
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    SYNC_FIELD_NUMBER: _ClassVar[int]
    positions: _containers.RepeatedCompositeFieldContainer[PartitionPosition]
    sync: str
    def __init__(self, positions: _Optional[_Iterable[_Union[PartitionPosition, _Mapping]]] = ..., sync: _Optional[str] = ...) -> None: ...

class NewStream(_message.Message):
    __slots__ = ("name", "subject", "group", "partitions", "replicationFactor", "config")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    REPLICATIONFACTOR_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    name: str
    subject: str
    group: str
    partitions: int
    replicationFactor: int
    config: StreamConfig
    def __init__(self, name: _Optional[str] = ..., subject: _Optional[str] = ..., group: _Optional[str] = ..., partitions: _Optional[int] = ..., replicationFactor: _Optional[int] = ..., config: _Optional[_Union[StreamConfig, _Mapping]] = ...) -> None: ...

class PropagatedRequest(_message.Message):
    __slots__ = ("op", "createStreamOp", "shrinkISROp", "changeLeaderOp", "expandISROp", "deleteStreamOp", "pauseStreamOp", "resumeStreamOp", "setStreamReadonlyOp", "joinConsumerGroupOp", "leaveConsumerGroupOp", "reportConsumerGroupCoordinatorOp", "brokerOp", "adminOp", "operation", "brokerStartedOp", "giveWayOp", "raiseStartsOp", "holdOp", "tellClearedOp", "publishActivityOp", "alterStreamOp", "initProducerOp")
    OP_FIELD_NUMBER: _ClassVar[int]
    CREATESTREAMOP_FIELD_NUMBER: _ClassVar[int]
    SHRINKISROP_FIELD_NUMBER: _ClassVar[int]
    CHANGELEADEROP_FIELD_NUMBER: _ClassVar[int]
    EXPANDISROP_FIELD_NUMBER: _ClassVar[int]
    DELETESTREAMOP_FIELD_NUMBER: _ClassVar[int]
    PAUSESTREAMOP_FIELD_NUMBER: _ClassVar[int]
    RESUMESTREAMOP_FIELD_NUMBER: _ClassVar[int]
    SETSTREAMREADONLYOP_FIELD_NUMBER: _ClassVar[int]
    JOINCONSUMERGROUPOP_FIELD_NUMBER: _ClassVar[int]
    LEAVECONSUMERGROUPOP_FIELD_NUMBER: _ClassVar[int]
    REPORTCONSUMERGROUPCOORDINATOROP_FIELD_NUMBER: _ClassVar[int]
    BROKEROP_FIELD_NUMBER: _ClassVar[int]
    ADMINOP_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    BROKERSTARTEDOP_FIELD_NUMBER: _ClassVar[int]
    GIVEWAYOP_FIELD_NUMBER: _ClassVar[int]
    RAISESTARTSOP_FIELD_NUMBER: _ClassVar[int]
    HOLDOP_FIELD_NUMBER: _ClassVar[int]
    TELLCLEAREDOP_FIELD_NUMBER: _ClassVar[int]
    PUBLISHACTIVITYOP_FIELD_NUMBER: _ClassVar[int]
    ALTERSTREAMOP_FIELD_NUMBER: _ClassVar[int]
    INITPRODUCEROP_FIELD_NUMBER: _ClassVar[int]
    op: Op
    createStreamOp: NewStream
    shrinkISROp: IsrOp
    changeLeaderOp: ChangeLeaderOp
    expandISROp: IsrOp
    deleteStreamOp: DeleteStreamOp
    pauseStreamOp: PauseStreamOp
    resumeStreamOp: ResumeStreamOp
    setStreamReadonlyOp: SetStreamReadonlyOp
    joinConsumerGroupOp: JoinConsumerGroupOp
    leaveConsumerGroupOp: LeaveConsumerGroupOp
    reportConsumerGroupCoordinatorOp: ReportConsumerGroupCoordinatorOp
    brokerOp: BrokerOp
    adminOp: AdminOp
    operation: Operation
    brokerStartedOp: BrokerStartedOp
    giveWayOp: IsrOp
    raiseStartsOp: RaiseStartsOp
    holdOp: HoldOp
    tellClearedOp: TellClearedOp
    publishActivityOp: PublishActivityOp
    alterStreamOp: AlterStreamOp
    initProducerOp: InitProducerOp
    def __init__(self, op: _Optional[_Union[Op, str]] = ..., createStreamOp: _Optional[_Union[NewStream, _Mapping]] = ..., shrinkISROp: _Optional[_Union[IsrOp, _Mapping]] = ..., changeLeaderOp: _Optional[_Union[ChangeLeaderOp, _Mapping]] = ..., expandISROp: _Optional[_Union[IsrOp, _Mapping]] = ..., deleteStreamOp: _Optional[_Union[DeleteStreamOp, _Mapping]] = ..., pauseStreamOp: _Optional[_Union[PauseStreamOp, _Mapping]] = ..., resumeStreamOp: _Optional[_Union[ResumeStreamOp, _Mapping]] = ..., setStreamReadonlyOp: _Optional[_Union[SetStreamReadonlyOp, _Mapping]] = ..., joinConsumerGroupOp: _Optional[_Union[JoinConsumerGroupOp, _Mapping]] = ..., leaveConsumerGroupOp: _Optional[_Union[LeaveConsumerGroupOp, _Mapping]] = ..., reportConsumerGroupCoordinatorOp: _Optional[_Union[ReportConsumerGroupCoordinatorOp, _Mapping]] = ..., brokerOp: _Optional[_Union[BrokerOp, _Mapping]] = ..., adminOp: _Optional[_Union[AdminOp, _Mapping]] = ..., operation: _Optional[_Union[Operation, _Mapping]] = ..., brokerStartedOp: _Optional[_Union[BrokerStartedOp, _Mapping]] = ..., giveWayOp: _Optional[_Union[IsrOp, _Mapping]] = ..., raiseStartsOp: _Optional[_Union[RaiseStartsOp, _Mapping]] = ..., holdOp: _Optional[_Union[HoldOp, _Mapping]] = ..., tellClearedOp: _Optional[_Union[TellClearedOp, _Mapping]] = ..., publishActivityOp: _Optional[_Union[PublishActivityOp, _Mapping]] = ..., alterStreamOp: _Optional[_Union[AlterStreamOp, _Mapping]] = ..., initProducerOp: _Optional[_Union[InitProducerOp, _Mapping]] = ...) -> None: ...

class PropagatedError(_message.Message):
    __slots__ = ("code", "msg")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MSG_FIELD_NUMBER: _ClassVar[int]
    code: int
    msg: str
    def __init__(self, code: _Optional[int] = ..., msg: _Optional[str] = ...) -> None: ...

class PropagatedResponse(_message.Message):
    __slots__ = ("op", "error", "index")
    OP_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    op: Op
    error: PropagatedError
    index: int
    def __init__(self, op: _Optional[_Union[Op, str]] = ..., error: _Optional[_Union[PropagatedError, _Mapping]] = ..., index: _Optional[int] = ...) -> None: ...
