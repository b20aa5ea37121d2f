"""A user of python-liftbridge, which needs a protobuf of its own time: run with the Python of
`.venv-python-liftbridge`, never imported. Prints what it saw as lines of JSON."""

import argparse
import itertools
import json

from python_liftbridge import ErrNoSuchStream, ErrStreamExists, Lift, Message, Stream


def emit(event: str, **fields: object) -> None:
    print(json.dumps({"event": event, **fields}), flush=True)


def create(client: Lift, arguments: argparse.Namespace) -> None:
    client.create_stream(Stream(subject=arguments.subject or arguments.stream, name=arguments.stream))
    emit("created")


def publish(client: Lift, arguments: argparse.Namespace) -> None:
    for number in range(arguments.count):
        message = Message(value=arguments.value.replace("#", str(number)), stream=arguments.stream, key=arguments.key)
        answer = client.publish(message.ack_policy_all())
        emit("published", acked=answer.HasField("ack"))


def publish_to_subject(client: Lift, arguments: argparse.Namespace) -> None:
    client.publish_to_subject(Message(value=arguments.value, subject=arguments.subject))
    emit("published")


def subscribe(client: Lift, arguments: argparse.Namespace) -> None:
    stream = Stream(subject=arguments.subject or arguments.stream, name=arguments.stream)
    if arguments.start == "earliest":
        stream.start_at_earliest_received()
    elif arguments.start == "latest":
        stream.start_at_latest_received()
    elif arguments.start:
        stream.start_at_offset(int(arguments.start))
    for message in itertools.islice(client.subscribe(stream), arguments.count):
        emit("message", offset=message.offset, key=message.key.decode(), value=message.value.decode())


def metadata(client: Lift, arguments: argparse.Namespace) -> None:
    found = client.fetch_metadata()
    for broker in found.brokers:
        emit("broker", host=broker.host, port=broker.port)
    for stream in found.metadata:
        emit("stream", name=stream.name, subject=stream.subject, partitions=sorted(stream.partitions))


ACTIONS = {
    "create": create,
    "publish": publish,
    "publish-to-subject": publish_to_subject,
    "subscribe": subscribe,
    "metadata": metadata,
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("action", choices=ACTIONS)
    parser.add_argument("-address")
    parser.add_argument("-stream")
    parser.add_argument("-subject")
    parser.add_argument("-value", default="value #")
    parser.add_argument("-key")
    parser.add_argument("-start", default="")
    parser.add_argument("-count", type=int, default=1)
    arguments = parser.parse_args()
    client = Lift(ip_address=arguments.address, timeout=5)
    try:
        ACTIONS[arguments.action](client, arguments)
    except (ErrNoSuchStream, ErrStreamExists) as error:
        emit("error", **{"is": type(error).__name__})
    finally:
        client.close()


if __name__ == "__main__":
    main()
