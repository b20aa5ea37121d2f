"""Commands of the metadata."""

from hypothesis import strategies as st

from bascule.core.metadata.commands import (
    AlterStream,
    At,
    BeginRemoval,
    BrokerDied,
    BrokerStarted,
    ChangeCoordinator,
    ChangeLeader,
    ClearedEnd,
    Command,
    CreateStream,
    DeleteStream,
    DiskLost,
    DrainBroker,
    ElectLeader,
    ExpandIsr,
    GiveWay,
    HandOver,
    InitProducer,
    JoinGroup,
    LeaveGroup,
    NewStart,
    PauseStream,
    PublishActivity,
    RaiseStarts,
    RemoveBroker,
    RemoveHold,
    ResumeStream,
    SetHold,
    SetStreamReadonly,
    ShrinkIsr,
    TellCleared,
    UndrainBroker,
)
from bascule.core.metadata.operations import Operation
from bascule.core.metadata.placement import place
from bascule.core.metadata.streams import Stream, StreamConfig


def a_stream(name: str = "orders", partitions: int = 2, servers: tuple[str, ...] = ("a",)) -> Stream:
    return Stream(
        name=name,
        subject=f"{name}.in",
        group="",
        partitions=place(partitions, len(servers), servers, []),
        config=StreamConfig(segment_max_bytes=1024, optimistic_concurrency_control=False, retention_max_age=0),
        creation_timestamp=7,
    )


names = st.sampled_from(["a", "b", "c", "__activity"])
brokers = st.sampled_from(["x", "y", "z"])
operations = st.builds(Operation, st.sampled_from(["", "o1", "o2", "o3", "o4"]), st.integers(0, 20))
places = st.builds(At, names, st.integers(0, 3), st.sampled_from(["w", "x", "y", "z"]))
isr_change = (names, st.integers(0, 3), brokers, brokers, st.integers(0, 5), st.integers(0, 5))
numbers = st.lists(st.integers(0, 2), max_size=2).map(tuple)
new_starts = st.builds(NewStart, names, st.integers(1, 5), st.integers(0, 3), st.integers(1, 5), st.integers(0, 9))
cleared_ends = st.builds(
    ClearedEnd,
    names,
    st.integers(1, 5),
    st.integers(0, 3),
    st.integers(1, 5),
    st.integers(0, 9),
    st.integers(0, 9),
)
groups, consumers = st.sampled_from(["g", "h"]), st.sampled_from(["c1", "c2", "c3"])
configs = st.builds(
    StreamConfig,
    retention_max_age=st.none() | st.integers(0, 9),
    min_isr=st.none() | st.integers(0, 3),
    optimistic_concurrency_control=st.none() | st.booleans(),
)
commands: st.SearchStrategy[Command] = st.one_of(
    st.builds(ShrinkIsr, *isr_change),
    st.builds(ExpandIsr, *isr_change),
    st.builds(BrokerDied, brokers, st.lists(brokers, max_size=3).map(tuple)),
    st.builds(HandOver, brokers, st.lists(brokers, max_size=3).map(tuple)),
    st.builds(DiskLost, brokers, st.lists(brokers, max_size=3).map(tuple)),
    st.builds(ChangeLeader, names, st.integers(0, 3), brokers, st.integers(0, 5), st.just(("x", "y"))),
    st.builds(
        BrokerStarted, brokers, st.booleans(), st.lists(st.tuples(names, st.integers(0, 3)), max_size=3).map(tuple)
    ),
    st.builds(GiveWay, *isr_change),
    st.builds(CreateStream, st.builds(a_stream, names, st.integers(1, 3), st.just(("x", "y", "z"))), operations),
    st.builds(DeleteStream, names, operations),
    st.builds(DrainBroker, brokers, st.lists(brokers, max_size=1).map(tuple)),
    st.builds(UndrainBroker, brokers),
    st.builds(BeginRemoval, brokers, st.lists(places, max_size=2).map(tuple)),
    st.builds(RemoveBroker, brokers, st.sampled_from(["", "incarnation"]), st.lists(places, max_size=2).map(tuple)),
    st.builds(ElectLeader, places, st.lists(brokers, max_size=2).map(tuple)),
    st.builds(SetStreamReadonly, names, numbers, st.booleans(), st.integers(0, 9)),
    st.builds(PauseStream, names, numbers, st.booleans(), st.integers(0, 9)),
    st.builds(PauseStream, names, numbers, leader=brokers, leader_epoch=st.integers(0, 5)),
    st.builds(ResumeStream, names, numbers, st.integers(0, 9)),
    st.builds(RaiseStarts, brokers, st.lists(new_starts, max_size=3).map(tuple)),
    st.builds(TellCleared, brokers, st.lists(cleared_ends, max_size=3).map(tuple)),
    st.builds(InitProducer, st.sampled_from(["", "p", "q"]), st.integers(0, 1 << 60)),
    st.builds(SetHold, names, st.integers(0, 3), st.sampled_from(["h", "i"]), st.integers(0, 9), st.integers(0, 9)),
    st.builds(PublishActivity, st.integers(0, 20)),
    st.builds(RemoveHold, names, st.integers(0, 3), st.sampled_from(["h", "i"]), operations),
    st.builds(
        JoinGroup,
        groups,
        consumers,
        st.lists(names, min_size=1, max_size=3).map(tuple),
        operations,
        st.lists(brokers, max_size=3).map(tuple),
    ),
    st.builds(LeaveGroup, groups, consumers, st.booleans(), st.integers(0, 20), operations),
    st.builds(ChangeCoordinator, groups, st.integers(0, 20), st.lists(brokers, max_size=3).map(tuple)),
    st.builds(
        AlterStream,
        names,
        configs,
        st.sampled_from([(), ("segment_max_bytes",), ("min_isr", "compact_enabled")]),
        operations,
    ),
)
