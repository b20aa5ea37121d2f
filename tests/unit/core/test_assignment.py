"""Who reads what in a consumer group: every partition once, as even as subscriptions allow, nothing moved in vain."""

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from bascule.core.groups.assignment import Assignment, assign

STREAMS = ("bar", "baz", "foo")
members = st.dictionaries(
    st.sampled_from(["c1", "c2", "c3", "c4"]), st.lists(st.sampled_from([*STREAMS, "gone"]), min_size=1, unique=True)
)
sizes = st.fixed_dictionaries({name: st.integers(0, 4) for name in STREAMS})


def loads(assignment: Assignment) -> list[int]:
    return sorted(sum(map(len, held.values())) for held in assignment.values())


def best(subscriptions: dict[str, list[str]], partitions: dict[str, int]) -> list[int]:
    """The most even numbers of partitions there are, by trying all."""
    places = [
        [member for member in subscriptions if stream in subscriptions[member]]
        for stream in STREAMS
        for _ in range(partitions[stream])
    ]
    choices = product(*(place for place in places if place))
    return min(
        (sorted((choice.count(member) for member in subscriptions), reverse=True) for choice in choices),
        default=[0] * len(subscriptions),
    )[::-1]


def test_the_example_of_the_protocol() -> None:
    partitions = {"foo": 2, "bar": 2}
    alone = assign({"c1": ["foo", "bar"]}, partitions, {})
    assert alone == {"c1": {"foo": (0, 1), "bar": (0, 1)}}
    assert assign({"c1": ["foo", "bar"], "c2": ["foo"]}, partitions, alone) == {
        "c1": {"bar": (0, 1)},
        "c2": {"foo": (0, 1)},
    }


@given(members, sizes, members)
def test_total_within_subscriptions_and_deterministic(
    now: dict[str, list[str]], partitions: dict[str, int], then: dict[str, list[str]]
) -> None:
    before = assign(then, partitions, {})
    after = assign(now, partitions, before)
    assert set(after) == set(now)
    read = [(stream, number) for held in after.values() for stream, numbers in held.items() for number in numbers]
    subscribed = {stream for streams in now.values() for stream in streams}
    assert sorted(read) == [
        (stream, number) for stream in STREAMS if stream in subscribed for number in range(partitions[stream])
    ]
    assert all(set(held) <= set(now[member]) for member, held in after.items())
    shuffled = {member: now[member][::-1] for member in reversed(now)}
    assert assign(shuffled, partitions, before) == after


@given(
    st.dictionaries(
        st.sampled_from(["c1", "c2", "c3"]), st.lists(st.sampled_from(STREAMS), min_size=1, unique=True), min_size=1
    ),
    st.fixed_dictionaries({name: st.integers(0, 3) for name in STREAMS}),
    members,
)
def test_as_even_as_subscriptions_allow(
    now: dict[str, list[str]], partitions: dict[str, int], then: dict[str, list[str]]
) -> None:
    assert loads(assign(now, partitions, assign(then, partitions, {}))) == sorted(best(now, partitions))


@given(members, sizes)
def test_what_is_even_already_stays(now: dict[str, list[str]], partitions: dict[str, int]) -> None:
    balanced = assign(now, partitions, {})
    assert assign(now, partitions, balanced) == balanced


@given(st.integers(1, 5), sizes)
def test_a_member_that_joins_or_leaves_moves_its_own_partitions_alone(count: int, partitions: dict[str, int]) -> None:
    everybody = {f"c{number}": list(STREAMS) for number in range(count)}
    before = assign(everybody, partitions, {})
    after = assign({**everybody, "new": list(STREAMS)}, partitions, before)
    for member in everybody:
        for stream in STREAMS:
            assert set(after[member].get(stream, ())) <= set(before[member].get(stream, ()))
    again = assign(everybody, partitions, after)
    for member in everybody:
        for stream in STREAMS:
            assert set(after[member].get(stream, ())) <= set(again[member].get(stream, ()))
