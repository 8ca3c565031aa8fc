"""The parts of a message, in the call that announces the message.

Flower announces a message, and then each of its parts takes a call of its own. Here parts travel in fields that
Flower's types lack: protobuf keeps and hands on what it does not know. A side that overlooks these fields, or finds no
room in them, sends and asks for parts one by one, as Flower does.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from flwr.app import Message
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from fedgrec.federation.flower.internals import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    message_to_proto,
    no_object_id_recompute,
    push_object,
    push_objects,
    remove_content_from_message,
)

ROOM = 2**23  # the most bytes of parts in one call


def _fields() -> Any:
    """A type with nothing but our fields: their numbers are beyond those of all of Flower's types."""
    kind = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="fedgrec/parts.proto", package="fedgrec", syntax="proto3")
    ours = file.message_type.add(name="Fields")
    ours.field.add(name="names", number=1001, type=kind.TYPE_STRING, label=kind.LABEL_REPEATED)
    ours.field.add(name="contents", number=1002, type=kind.TYPE_BYTES, label=kind.LABEL_REPEATED)
    ours.field.add(name="wanted", number=1003, type=kind.TYPE_BOOL, label=kind.LABEL_OPTIONAL)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("fedgrec.Fields"))


Fields = _fields()


def asking(request: Any) -> Any:
    """The same request, for messages with their parts."""
    request.MergeFromString(Fields(wanted=True).SerializeToString())
    return request


def riding(call: Any) -> dict[str, bytes]:
    """The parts in a call."""
    found = Fields.FromString(call.SerializeToString())
    return dict(zip(found.names, found.contents, strict=False))


def _load(call: Any, parts: Mapping[str, bytes]) -> None:
    call.MergeFromString(Fields(names=parts.keys(), contents=parts.values()).SerializeToString())


def send(
    client: Any, request: Any, messages: Iterable[Message], node: Any, call: Callable[[Any], Any] = lambda way: way
) -> Any:
    """Announce messages with as many of their parts as there is room for, then send the others; `call` wraps calls."""
    objects: dict[str, Any] = {}
    parts: dict[str, bytes] = {}
    with no_object_id_recompute():  # otherwise Flower writes and hashes every part a few times over
        for message in messages:
            message.metadata.__dict__["_message_id"] = message.object_id
            objects |= get_all_nested_objects(message)
            request.messages_list.append(message_to_proto(remove_content_from_message(message)))
            request.message_object_trees.append(get_object_tree(message))
            run = message.metadata.run_id
        room = ROOM
        for name, content in ((name, part.deflate()) for name, part in objects.items()):
            if len(content) <= room:
                parts[name], room = content, room - len(content)
        _load(request, parts)
        answer = call(client.PushMessages)(request)
        push = push_object(call(client.PushObject), node, run, answer.session_id)
        push_objects(objects, push, object_ids_to_push=set(answer.objects_to_push))
    return answer


# ------------------------------------------------------------------------------------------- in the SuperLink


def keep(request: Any, answer: Any, state: Any) -> None:
    """Store the parts that came with announced messages, and ask for the others alone."""
    run, missing = request.messages_list[0].metadata.run_id, dict.fromkeys(answer.objects_to_push)
    for name, content in riding(request).items():
        if name in missing and state.store_object(run, answer.session_id, name, content):
            del missing[name]
    answer.objects_to_push[:] = missing


def hand_out(request: Any, answer: Any, state: Any) -> list[str]:
    """Load the parts of the messages in this answer, if the caller asks for them; returns messages that are whole."""
    parts: dict[str, bytes] = {}
    whole, room = [], ROOM * Fields.FromString(request.SerializeToString()).wanted
    for message, tree in zip(answer.messages_list, answer.message_object_trees, strict=True):
        names = [part.object_id for part in iterate_object_tree(tree)]
        its = {name: state.get_object(message.metadata.run_id, name) for name in names}
        size = sum(len(content or b"") for content in its.values())
        if all(its.values()) and size <= room:
            parts, room = parts | its, room - size
            whole.append(message.metadata.message_id)
    _load(answer, parts)
    return whole
