"""The parts of a message, in the call that announces the message.

Flower announces a message, and then each of its parts takes a call of its own. Here parts travel in fields that
Flower's types lack: protobuf hands on what it does not know. A side that overlooks these fields, or finds no room in
them, sends and asks for parts one by one, as Flower does.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from flwr.app import Message
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from fedgrec.federation.flower.internals import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    message_to_proto,
    no_object_id_recompute,
    pull_object,
    pull_objects,
    push_object,
    push_objects,
    remove_content_from_message,
)
from fedgrec.federation.flower.records import PARTS, POLL, PacketError

ROOM = 5 * 2**20  # the most bytes of parts in one call: a piece and more


def _fields() -> Any:
    """A type with nothing but our fields: their numbers are beyond those of all of Flower's types."""
    kind = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="fedgrec/parts.proto", package="fedgrec", syntax="proto3")
    ours = file.message_type.add(name="Fields")
    ours.field.add(name="names", number=1001, type=kind.TYPE_STRING, label=kind.LABEL_REPEATED)
    ours.field.add(name="contents", number=1002, type=kind.TYPE_BYTES, label=kind.LABEL_REPEATED)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("fedgrec.Fields"))


Fields = _fields()


def load(call: Any, parts: Mapping[str, bytes]) -> Any:
    """The same call with these parts in it."""
    call.MergeFromString(Fields(names=parts.keys(), contents=parts.values()).SerializeToString())
    return call


def riding(call: Any) -> dict[str, bytes]:
    found = Fields.FromString(call.SerializeToString())
    return dict(zip(found.names, found.contents, strict=False))


def send(client: Any, request: Any, messages: Iterable[Message], node: Any, again: Any = lambda call: call) -> Any:
    """Announce messages with as many of their parts as there is room for, then send the others."""
    objects, parts, room = dict[str, Any](), dict[str, bytes](), ROOM
    with no_object_id_recompute():  # otherwise Flower writes and hashes every part a few times over
        for message in messages:
            message.metadata.__dict__["_message_id"] = message.object_id
            objects |= get_all_nested_objects(message)
            request.messages_list.append(message_to_proto(remove_content_from_message(message)))
            request.message_object_trees.append(get_object_tree(message))
        for name, content in ((name, part.deflate()) for name, part in objects.items()):
            if len(content) <= room:
                parts[name], room = content, room - len(content)
        answer = again(client.PushMessages)(load(request, parts))
        push = push_object(again(client.PushObject), node, message.metadata.run_id, answer.session_id)
        push_objects(objects, push, object_ids_to_push=set(answer.objects_to_push))
    return answer


def received(
    client: Any, run: int, tree: Any, here: dict[str, bytes], node: Any, again: Any = lambda call: call, **most: Any
) -> dict[str, bytes]:
    """The parts of the message that was announced with this tree: those that came with it, or we ask for them."""
    names = [part.object_id for part in iterate_object_tree(tree)]
    if len(names) > PARTS:
        raise PacketError(f"a message of {len(names)} parts came in")
    if here.keys() >= set(names):
        return {name: here[name] for name in names}
    pull = pull_object(again(client.PullObject), node, run)
    return dict(pull_objects(names, pull, initial_backoff=POLL / 4, backoff_cap=POLL, **most))


def keep(request: Any, answer: Any, state: Any) -> None:
    """In the SuperLink: store the parts that came with announced messages, and ask for the others alone."""
    run, missing = request.messages_list[0].metadata.run_id, dict.fromkeys(answer.objects_to_push)
    for name, content in riding(request).items():
        if name in missing and state.store_object(run, answer.session_id, name, content):
            del missing[name]
    answer.objects_to_push[:] = missing


def hand_out(answer: Any, state: Any) -> list[str]:
    """In the SuperLink: load messages' parts into this answer while there is room; returns messages that are whole."""
    parts, whole, room = dict[str, bytes](), list[str](), ROOM
    for message, tree in zip(answer.messages_list, answer.message_object_trees, strict=True):
        names = [part.object_id for part in iterate_object_tree(tree)]
        its = {name: state.get_object(message.metadata.run_id, name) for name in names}
        if all(its.values()) and (size := sum(map(len, its.values()))) <= room:
            parts, room = parts | its, room - size
            whole.append(message.metadata.message_id)
    load(answer, parts)
    return whole
