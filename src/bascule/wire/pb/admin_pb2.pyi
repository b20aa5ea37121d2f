from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ClusterStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Member(_message.Message):
    __slots__ = ("id", "host", "port", "voter", "alive", "controller", "draining", "removing", "leaving", "incarnation", "boot", "partitions", "leaderships")
    ID_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    VOTER_FIELD_NUMBER: _ClassVar[int]
    ALIVE_FIELD_NUMBER: _ClassVar[int]
    CONTROLLER_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    REMOVING_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    BOOT_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    LEADERSHIPS_FIELD_NUMBER: _ClassVar[int]
    id: str
    host: str
    port: int
    voter: bool
    alive: bool
    controller: bool
    draining: bool
    removing: bool
    leaving: bool
    incarnation: str
    boot: str
    partitions: int
    leaderships: int
    def __init__(self, id: _Optional[str] = ..., host: _Optional[str] = ..., port: _Optional[int] = ..., voter: bool = ..., alive: bool = ..., controller: bool = ..., draining: bool = ..., removing: bool = ..., leaving: bool = ..., incarnation: _Optional[str] = ..., boot: _Optional[str] = ..., partitions: _Optional[int] = ..., leaderships: _Optional[int] = ...) -> None: ...

class PartitionRef(_message.Message):
    __slots__ = ("stream", "partition", "reason")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    stream: str
    partition: int
    reason: str
    def __init__(self, stream: _Optional[str] = ..., partition: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class ClusterStatusResponse(_message.Message):
    __slots__ = ("controller", "current", "members", "partitions", "underReplicated", "offline", "belowMinIsr", "underReplicatedCount", "offlineCount", "belowMinIsrCount", "broker")
    CONTROLLER_FIELD_NUMBER: _ClassVar[int]
    CURRENT_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    UNDERREPLICATED_FIELD_NUMBER: _ClassVar[int]
    OFFLINE_FIELD_NUMBER: _ClassVar[int]
    BELOWMINISR_FIELD_NUMBER: _ClassVar[int]
    UNDERREPLICATEDCOUNT_FIELD_NUMBER: _ClassVar[int]
    OFFLINECOUNT_FIELD_NUMBER: _ClassVar[int]
    BELOWMINISRCOUNT_FIELD_NUMBER: _ClassVar[int]
    BROKER_FIELD_NUMBER: _ClassVar[int]
    controller: str
    current: bool
    members: _containers.RepeatedCompositeFieldContainer[Member]
    partitions: int
    underReplicated: _containers.RepeatedCompositeFieldContainer[PartitionRef]
    offline: _containers.RepeatedCompositeFieldContainer[PartitionRef]
    belowMinIsr: _containers.RepeatedCompositeFieldContainer[PartitionRef]
    underReplicatedCount: int
    offlineCount: int
    belowMinIsrCount: int
    broker: str
    def __init__(self, controller: _Optional[str] = ..., current: bool = ..., members: _Optional[_Iterable[_Union[Member, _Mapping]]] = ..., partitions: _Optional[int] = ..., underReplicated: _Optional[_Iterable[_Union[PartitionRef, _Mapping]]] = ..., offline: _Optional[_Iterable[_Union[PartitionRef, _Mapping]]] = ..., belowMinIsr: _Optional[_Iterable[_Union[PartitionRef, _Mapping]]] = ..., underReplicatedCount: _Optional[int] = ..., offlineCount: _Optional[int] = ..., belowMinIsrCount: _Optional[int] = ..., broker: _Optional[str] = ...) -> None: ...

class DescribeStreamRequest(_message.Message):
    __slots__ = ("stream",)
    STREAM_FIELD_NUMBER: _ClassVar[int]
    stream: str
    def __init__(self, stream: _Optional[str] = ...) -> None: ...

class Replica(_message.Message):
    __slots__ = ("broker", "alive", "inSync", "answered", "end", "highWatermarkEnd", "lastEpoch", "sync", "eligible", "start", "bytes", "segments", "firstTimestamp", "lastTimestamp")
    BROKER_FIELD_NUMBER: _ClassVar[int]
    ALIVE_FIELD_NUMBER: _ClassVar[int]
    INSYNC_FIELD_NUMBER: _ClassVar[int]
    ANSWERED_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    HIGHWATERMARKEND_FIELD_NUMBER: _ClassVar[int]
    LASTEPOCH_FIELD_NUMBER: _ClassVar[int]
    SYNC_FIELD_NUMBER: _ClassVar[int]
    ELIGIBLE_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    FIRSTTIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    LASTTIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    broker: str
    alive: bool
    inSync: bool
    answered: bool
    end: int
    highWatermarkEnd: int
    lastEpoch: int
    sync: str
    eligible: bool
    start: int
    bytes: int
    segments: int
    firstTimestamp: int
    lastTimestamp: int
    def __init__(self, broker: _Optional[str] = ..., alive: bool = ..., inSync: bool = ..., answered: bool = ..., end: _Optional[int] = ..., highWatermarkEnd: _Optional[int] = ..., lastEpoch: _Optional[int] = ..., sync: _Optional[str] = ..., eligible: bool = ..., start: _Optional[int] = ..., bytes: _Optional[int] = ..., segments: _Optional[int] = ..., firstTimestamp: _Optional[int] = ..., lastTimestamp: _Optional[int] = ...) -> None: ...

class Hold(_message.Message):
    __slots__ = ("name", "offset", "setTimestamp", "heldMessages", "heldBytes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    SETTIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    HELDMESSAGES_FIELD_NUMBER: _ClassVar[int]
    HELDBYTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    offset: int
    setTimestamp: int
    heldMessages: int
    heldBytes: int
    def __init__(self, name: _Optional[str] = ..., offset: _Optional[int] = ..., setTimestamp: _Optional[int] = ..., heldMessages: _Optional[int] = ..., heldBytes: _Optional[int] = ...) -> None: ...

class PartitionDescription(_message.Message):
    __slots__ = ("partition", "leader", "online", "leaderEpoch", "replicas", "underReplicated", "belowMinIsr", "readonly", "paused", "uncleanEpoch", "epoch", "waitsFor", "start", "holds")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    ONLINE_FIELD_NUMBER: _ClassVar[int]
    LEADEREPOCH_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    UNDERREPLICATED_FIELD_NUMBER: _ClassVar[int]
    BELOWMINISR_FIELD_NUMBER: _ClassVar[int]
    READONLY_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    UNCLEANEPOCH_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    WAITSFOR_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    HOLDS_FIELD_NUMBER: _ClassVar[int]
    partition: int
    leader: str
    online: bool
    leaderEpoch: int
    replicas: _containers.RepeatedCompositeFieldContainer[Replica]
    underReplicated: bool
    belowMinIsr: bool
    readonly: bool
    paused: bool
    uncleanEpoch: int
    epoch: int
    waitsFor: _containers.RepeatedScalarFieldContainer[str]
    start: int
    holds: _containers.RepeatedCompositeFieldContainer[Hold]
    def __init__(self, partition: _Optional[int] = ..., leader: _Optional[str] = ..., online: bool = ..., leaderEpoch: _Optional[int] = ..., replicas: _Optional[_Iterable[_Union[Replica, _Mapping]]] = ..., underReplicated: bool = ..., belowMinIsr: bool = ..., readonly: bool = ..., paused: bool = ..., uncleanEpoch: _Optional[int] = ..., epoch: _Optional[int] = ..., waitsFor: _Optional[_Iterable[str]] = ..., start: _Optional[int] = ..., holds: _Optional[_Iterable[_Union[Hold, _Mapping]]] = ...) -> None: ...

class DescribeStreamResponse(_message.Message):
    __slots__ = ("name", "subject", "group", "creationTimestamp", "minIsr", "partitions", "current", "timestamp", "settings")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    CREATIONTIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    MINISR_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    CURRENT_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    name: str
    subject: str
    group: str
    creationTimestamp: int
    minIsr: int
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionDescription]
    current: bool
    timestamp: int
    settings: StreamSettings
    def __init__(self, name: _Optional[str] = ..., subject: _Optional[str] = ..., group: _Optional[str] = ..., creationTimestamp: _Optional[int] = ..., minIsr: _Optional[int] = ..., partitions: _Optional[_Iterable[_Union[PartitionDescription, _Mapping]]] = ..., current: bool = ..., timestamp: _Optional[int] = ..., settings: _Optional[_Union[StreamSettings, _Mapping]] = ...) -> None: ...

class StreamSettings(_message.Message):
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
    retentionMaxBytes: int
    retentionMaxMessages: int
    retentionMaxAge: int
    cleanerInterval: int
    segmentMaxBytes: int
    segmentMaxAge: int
    compactMaxGoroutines: int
    compactEnabled: bool
    autoPauseTime: int
    autoPauseDisableIfSubscribers: bool
    minIsr: int
    optimisticConcurrencyControl: bool
    encryption: bool
    flatbuffersDraft: bool
    compactMinLag: int
    compactTombstoneDelay: int
    def __init__(self, retentionMaxBytes: _Optional[int] = ..., retentionMaxMessages: _Optional[int] = ..., retentionMaxAge: _Optional[int] = ..., cleanerInterval: _Optional[int] = ..., segmentMaxBytes: _Optional[int] = ..., segmentMaxAge: _Optional[int] = ..., compactMaxGoroutines: _Optional[int] = ..., compactEnabled: bool = ..., autoPauseTime: _Optional[int] = ..., autoPauseDisableIfSubscribers: bool = ..., minIsr: _Optional[int] = ..., optimisticConcurrencyControl: bool = ..., encryption: bool = ..., flatbuffersDraft: bool = ..., compactMinLag: _Optional[int] = ..., compactTombstoneDelay: _Optional[int] = ...) -> None: ...

class AlterStreamRequest(_message.Message):
    __slots__ = ("stream", "settings", "reset")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    RESET_FIELD_NUMBER: _ClassVar[int]
    stream: str
    settings: StreamSettings
    reset: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, stream: _Optional[str] = ..., settings: _Optional[_Union[StreamSettings, _Mapping]] = ..., reset: _Optional[_Iterable[str]] = ...) -> None: ...

class AlterStreamResponse(_message.Message):
    __slots__ = ("settings",)
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    settings: StreamSettings
    def __init__(self, settings: _Optional[_Union[StreamSettings, _Mapping]] = ...) -> None: ...

class ResumeStreamRequest(_message.Message):
    __slots__ = ("stream", "partitions")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    stream: str
    partitions: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, stream: _Optional[str] = ..., partitions: _Optional[_Iterable[int]] = ...) -> None: ...

class ResumeStreamResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SetHoldRequest(_message.Message):
    __slots__ = ("stream", "partition", "name", "offset", "atStart")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    ATSTART_FIELD_NUMBER: _ClassVar[int]
    stream: str
    partition: int
    name: str
    offset: int
    atStart: bool
    def __init__(self, stream: _Optional[str] = ..., partition: _Optional[int] = ..., name: _Optional[str] = ..., offset: _Optional[int] = ..., atStart: bool = ...) -> None: ...

class SetHoldResponse(_message.Message):
    __slots__ = ("offset",)
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    offset: int
    def __init__(self, offset: _Optional[int] = ...) -> None: ...

class RemoveHoldRequest(_message.Message):
    __slots__ = ("stream", "partition", "name")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    stream: str
    partition: int
    name: str
    def __init__(self, stream: _Optional[str] = ..., partition: _Optional[int] = ..., name: _Optional[str] = ...) -> None: ...

class RemoveHoldResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DrainBrokerRequest(_message.Message):
    __slots__ = ("broker", "stop")
    BROKER_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    broker: str
    stop: bool
    def __init__(self, broker: _Optional[str] = ..., stop: bool = ...) -> None: ...

class DrainBrokerResponse(_message.Message):
    __slots__ = ("done", "kept", "controller", "stopping")
    DONE_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    CONTROLLER_FIELD_NUMBER: _ClassVar[int]
    STOPPING_FIELD_NUMBER: _ClassVar[int]
    done: bool
    kept: _containers.RepeatedCompositeFieldContainer[PartitionRef]
    controller: str
    stopping: bool
    def __init__(self, done: bool = ..., kept: _Optional[_Iterable[_Union[PartitionRef, _Mapping]]] = ..., controller: _Optional[str] = ..., stopping: bool = ...) -> None: ...

class UndrainBrokerRequest(_message.Message):
    __slots__ = ("broker",)
    BROKER_FIELD_NUMBER: _ClassVar[int]
    broker: str
    def __init__(self, broker: _Optional[str] = ...) -> None: ...

class UndrainBrokerResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RemoveBrokerRequest(_message.Message):
    __slots__ = ("broker", "force")
    BROKER_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    broker: str
    force: bool
    def __init__(self, broker: _Optional[str] = ..., force: bool = ...) -> None: ...

class RemoveBrokerResponse(_message.Message):
    __slots__ = ("done", "waiting", "lost")
    DONE_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    done: bool
    waiting: _containers.RepeatedCompositeFieldContainer[PartitionRef]
    lost: _containers.RepeatedCompositeFieldContainer[PartitionRef]
    def __init__(self, done: bool = ..., waiting: _Optional[_Iterable[_Union[PartitionRef, _Mapping]]] = ..., lost: _Optional[_Iterable[_Union[PartitionRef, _Mapping]]] = ...) -> None: ...

class ElectLeaderRequest(_message.Message):
    __slots__ = ("stream", "partition", "replica", "acceptLoss", "inSync", "eligible")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    ACCEPTLOSS_FIELD_NUMBER: _ClassVar[int]
    INSYNC_FIELD_NUMBER: _ClassVar[int]
    ELIGIBLE_FIELD_NUMBER: _ClassVar[int]
    stream: str
    partition: int
    replica: str
    acceptLoss: bool
    inSync: _containers.RepeatedScalarFieldContainer[str]
    eligible: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, stream: _Optional[str] = ..., partition: _Optional[int] = ..., replica: _Optional[str] = ..., acceptLoss: bool = ..., inSync: _Optional[_Iterable[str]] = ..., eligible: _Optional[_Iterable[str]] = ...) -> None: ...

class ElectLeaderResponse(_message.Message):
    __slots__ = ("done", "leader", "leaderEnd", "knownCommittedEnd", "certainLoss", "statement", "replicas", "inSync", "epoch", "eligible")
    DONE_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    LEADEREND_FIELD_NUMBER: _ClassVar[int]
    KNOWNCOMMITTEDEND_FIELD_NUMBER: _ClassVar[int]
    CERTAINLOSS_FIELD_NUMBER: _ClassVar[int]
    STATEMENT_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    INSYNC_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ELIGIBLE_FIELD_NUMBER: _ClassVar[int]
    done: bool
    leader: str
    leaderEnd: int
    knownCommittedEnd: int
    certainLoss: int
    statement: str
    replicas: _containers.RepeatedCompositeFieldContainer[Replica]
    inSync: _containers.RepeatedScalarFieldContainer[str]
    epoch: int
    eligible: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, done: bool = ..., leader: _Optional[str] = ..., leaderEnd: _Optional[int] = ..., knownCommittedEnd: _Optional[int] = ..., certainLoss: _Optional[int] = ..., statement: _Optional[str] = ..., replicas: _Optional[_Iterable[_Union[Replica, _Mapping]]] = ..., inSync: _Optional[_Iterable[str]] = ..., epoch: _Optional[int] = ..., eligible: _Optional[_Iterable[str]] = ...) -> None: ...

class DeleteRecordsRequest(_message.Message):
    __slots__ = ("stream", "partition", "before", "expired", "dryRun")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    EXPIRED_FIELD_NUMBER: _ClassVar[int]
    DRYRUN_FIELD_NUMBER: _ClassVar[int]
    stream: str
    partition: int
    before: int
    expired: bool
    dryRun: bool
    def __init__(self, stream: _Optional[str] = ..., partition: _Optional[int] = ..., before: _Optional[int] = ..., expired: bool = ..., dryRun: bool = ...) -> None: ...

class DeleteRecordsResponse(_message.Message):
    __slots__ = ("start", "previousStart")
    START_FIELD_NUMBER: _ClassVar[int]
    PREVIOUSSTART_FIELD_NUMBER: _ClassVar[int]
    start: int
    previousStart: int
    def __init__(self, start: _Optional[int] = ..., previousStart: _Optional[int] = ...) -> None: ...

class ListGroupsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GroupListing(_message.Message):
    __slots__ = ("group", "coordinator", "epoch", "members", "partitions")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    group: str
    coordinator: str
    epoch: int
    members: int
    partitions: int
    def __init__(self, group: _Optional[str] = ..., coordinator: _Optional[str] = ..., epoch: _Optional[int] = ..., members: _Optional[int] = ..., partitions: _Optional[int] = ...) -> None: ...

class ListGroupsResponse(_message.Message):
    __slots__ = ("groups",)
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[GroupListing]
    def __init__(self, groups: _Optional[_Iterable[_Union[GroupListing, _Mapping]]] = ...) -> None: ...

class DescribeGroupRequest(_message.Message):
    __slots__ = ("group",)
    GROUP_FIELD_NUMBER: _ClassVar[int]
    group: str
    def __init__(self, group: _Optional[str] = ...) -> None: ...

class GroupAssignment(_message.Message):
    __slots__ = ("stream", "partitions")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    stream: str
    partitions: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, stream: _Optional[str] = ..., partitions: _Optional[_Iterable[int]] = ...) -> None: ...

class GroupMember(_message.Message):
    __slots__ = ("consumer", "streams", "assignments")
    CONSUMER_FIELD_NUMBER: _ClassVar[int]
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENTS_FIELD_NUMBER: _ClassVar[int]
    consumer: str
    streams: _containers.RepeatedScalarFieldContainer[str]
    assignments: _containers.RepeatedCompositeFieldContainer[GroupAssignment]
    def __init__(self, consumer: _Optional[str] = ..., streams: _Optional[_Iterable[str]] = ..., assignments: _Optional[_Iterable[_Union[GroupAssignment, _Mapping]]] = ...) -> None: ...

class DescribeGroupResponse(_message.Message):
    __slots__ = ("group", "coordinator", "epoch", "members")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    group: str
    coordinator: str
    epoch: int
    members: _containers.RepeatedCompositeFieldContainer[GroupMember]
    def __init__(self, group: _Optional[str] = ..., coordinator: _Optional[str] = ..., epoch: _Optional[int] = ..., members: _Optional[_Iterable[_Union[GroupMember, _Mapping]]] = ...) -> None: ...
