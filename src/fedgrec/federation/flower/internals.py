"""Every name of Flower that is not public, with the reason why we need it. No other module imports such a name.

Flower's public modules are flwr.app, flwr.clientapp and flwr.serverapp. They run apps that come over the network, start
a process for every message, and leave the server's port open: node_end.py, superlink.py and children.py do without
that, and so reach below them. A part of the federation imports the names that it needs when it starts. A version of
Flower that lacks one ends the part with a sentence.
"""

import importlib
import sys
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any, cast

from fedgrec.federation.common.errors import FederationError

TESTED = "1.41.0"
INFLATABLE, PROTOBUF = "flwr.supercore.inflatable", "flwr.supercore.inflatable.inflatable_protobuf_utils"
HANDLERS, COMMAND = "flwr.superlink.servicer.fleet.fleet_handlers", "flwr.superlink.cli.flower_superlink"
OF_APPS = "flwr.superlink.servicer.runtime.runtime_handlers"
RETRIES = "make_simple_http_retry_invoker"
# Name → where it is, and why. "module:name" where the name here is another one.
NAMES = {
    # messages, on both ends
    "ErrorCode": ("flwr.common.constant", "tells a node that cannot be reached from one that fails"),
    "SUPERLINK_NODE_ID": ("flwr.common.constant", "tells the SuperLink's own answers from a node's"),
    "HEARTBEAT": ("flwr.common.constant:HEARTBEAT_DEFAULT_INTERVAL", "for how long a sign of life counts"),
    "message_from_proto": ("flwr.common.serde", "reads a message off the network"),
    "message_to_proto": ("flwr.common.serde", "writes an answer for the network"),
    "remove_content_from_message": ("flwr.app.message", "an answer is announced before its parts travel"),
    "get_object_head_values_from_object_content": (f"{INFLATABLE}.inflatable_object", "refuses foreign kinds of parts"),
    "get_all_nested_objects": (f"{INFLATABLE}.inflatable_object", "lists the parts of an answer"),
    "get_object_tree": (f"{INFLATABLE}.inflatable_object", "announces the parts of an answer"),
    "iterate_object_tree": (f"{INFLATABLE}.inflatable_object", "counts a message's parts before it asks for them"),
    "no_object_id_recompute": (f"{INFLATABLE}.inflatable_object", "otherwise each part is hashed a few times"),
    "pull_object": (f"{PROTOBUF}:make_pull_object_fn_protobuf", "asks for a part"),
    "push_object": (f"{PROTOBUF}:make_push_object_fn_protobuf", "sends a part"),
    "ObjectPullError": (f"{INFLATABLE}.inflatable_utils", "an upload that its sender did not finish"),
    "inflate_object_from_contents": (f"{INFLATABLE}.inflatable_utils", "makes a message of its parts"),
    "pull_objects": (f"{INFLATABLE}.inflatable_utils", "asks for parts, sooner than Flower would"),
    "push_objects": (f"{INFLATABLE}.inflatable_utils", "sends parts"),
    # a node's end
    "flower_log": ("flwr.supercore.logger:FLOWER_LOGGER", "our handler writes its lines"),
    "ActivateNodeRequest": ("flwr.proto.fleet_pb2", "a node joins"),
    "DeactivateNodeRequest": ("flwr.proto.fleet_pb2", "a node leaves"),
    "PullMessagesRequest": ("flwr.proto.fleet_pb2", "a node looks for work"),
    "PushMessagesRequest": ("flwr.proto.fleet_pb2", "a node answers"),
    "SendNodeHeartbeatRequest": ("flwr.proto.heartbeat_pb2", "a node's sign of life"),
    "Node": ("flwr.proto.node_pb2", "a node's number"),
    "HeartbeatSender": ("flwr.supercore.heartbeat", "the thread that sends signs of life"),
    "FleetHttpClient": ("flwr.supernode.fleet_http_client", "a node's calls"),
    "NodeAuthHttpInterceptor": ("flwr.supernode.node_auth_http_interceptor", "signs a node's calls"),
    "RuntimeVersionHttpInterceptor": ("flwr.supercore.interceptors", "the SuperLink asks every caller's version"),
    "RetryInvoker": ("flwr.supercore.retry.retry_invoker", "how Flower's clients are told when to try again"),
    # the server's end
    "PullAppMessagesRequest": ("flwr.proto.runtime_pb2", "asks for answers: one that is unreadable spoils no other"),
    "ConfirmMessageReceivedRequest": ("flwr.proto.message_pb2", "lets the SuperLink drop an answer that has come"),
    "ControlHttpClient": ("flwr.supercore.control", "calls for keys and runs"),
    "RegisterNodeRequest": ("flwr.proto.control_pb2", "tells the SuperLink a node's key"),
    "StartRunRequest": ("flwr.proto.control_pb2", "starts our app"),
    "ListRunsRequest": ("flwr.proto.control_pb2", "asks whether our app has ended"),
    "Fab": ("flwr.proto.fab_pb2", "our app as a package"),
    "build_fab_from_files": ("flwr.cli.build", "packs our app without a folder for it"),
    "user_config_to_proto": ("flwr.common.serde", "tells our app its folder"),
    # the SuperLink with a door
    "FLEET_HTTP_PUBLIC_KEY_HEADER": ("flwr.supercore.constant", "where a caller says who it is"),
    "FLEET_HTTP_SIGNATURE_HEADER": ("flwr.supercore.constant", "who was refused for a wrong clock, and no stranger"),
    "TIMESTAMP_HEADER": ("flwr.common.constant", "how wrong the clock of a node is"),
    "bytes_to_public_key": ("flwr.supercore.primitives.asymmetric", "who was refused for a wrong clock"),
    "verify_signature": ("flwr.supercore.primitives.asymmetric", "who was refused for a wrong clock"),
    "get_linkstate": ("flwr.superlink.dependencies.linkstate", "whether the SuperLink knows a key"),
    "authenticate_node": ("flwr.superlink.routers.fleet.node_auth", "checks a signature before the body is read"),
    "authenticate_task": ("flwr.supercore.dependencies.task", "checks the token of the server's app"),
    "TASK_TOKEN_HEADER": ("flwr.supercore.constant", "where the server's app shows its token"),
    "http_error_translator": ("flwr.supercore.error", "an error of a handler becomes an answer"),
    "get_nodes": (f"{OF_APPS}:get_nodes", "who is there"),
    "GetNodesRequest": ("flwr.proto.runtime_pb2", "asks who is there"),
    "middlewares": ("flwr.superlink.extensions:get_middleware", "puts the door in front"),
    "push_messages": (f"{HANDLERS}:push_messages", "a node answers for itself alone"),
    "pull_messages": (f"{HANDLERS}:pull_messages", "a look for work is a sign of life, and waits until there is some"),
    "push_questions": (f"{OF_APPS}:push_messages", "questions come with their parts, and end looks for work"),
    "pull_answers": (f"{OF_APPS}:pull_messages", "answers go out with their parts"),
    "superlink": (f"{COMMAND}:flower_superlink", "Flower's own command"),
    "superlink_options": (f"{COMMAND}:_parse_args_run_superlink", "the address to listen on"),
    "superexec_command": (f"{COMMAND}:_get_superexec_command", "starts children through us"),
    "superexec_apart": (f"{COMMAND}:get_popen_detach_kwargs", "children stay in the group of processes that we end"),
    "claim_task": (
        "flwr.supercore.corestate.in_memory_corestate:InMemoryCoreState.claim_task",
        "an app that is slow to start on a busy machine is not started again beside itself",
    ),
    "superlink_uvicorn": (f"{COMMAND}:uvicorn", "our socket, our limits, TLS 1.3"),
    # the SuperLink's children
    "flower-superexec": ("flwr.supercore.cli.flower_superexec:flower_superexec", "Flower's own command"),
    "flwr-serverapp": ("flwr.superlink.cli.flwr_serverapp:flwr_serverapp", "Flower's own command"),
    "send_questions": ("flwr.superlink.grid.http_grid:HttpGrid._try_push_messages", "parts ride along"),
    "PushAppMessagesRequest": ("flwr.proto.runtime_pb2", "announces questions"),
    "superexec_retries": (f"flwr.supercore.superexec.run_superexec:{RETRIES}", "no error is final"),
    "serverapp_retries": (f"flwr.superlink.grid.http_grid:{RETRIES}", "no error is final"),
    "usual_retries": (f"flwr.supercore.retry.http_retry:{RETRIES}", "Flower's rules, to change one"),
    "executor_subprocess": (
        "flwr.supercore.superexec.executor.subprocess_executor:subprocess",
        "keeps a run's token out of arguments, which other accounts can read",
    ),
    "child_client": (
        "flwr.supercore.protobuf.client:ProtobufClient.from_server_address",
        "children show the secret of this start",
    ),
}

# Flower's stores in SQL, which a SuperLink in memory does not use: SQLAlchemy takes half of all seconds of imports.
UNUSED = {
    "flwr.server.superlink.linkstate.sql_linkstate": "SqlLinkState",
    "flwr.supercore.object_store.sql_object_store": "SqlObjectStore",
}


def __getattr__(name: str) -> Any:
    """One of these names: `from fedgrec.federation.flower.internals import Node`."""
    if name not in NAMES:
        raise AttributeError(name)
    return getattr(*_place(name))


def check() -> None:
    """Look for all names at once, also for those that another process will need."""
    for name in NAMES:
        _place(name)


def leave_out_sql() -> None:
    """Start lighter: put empty classes in the place of Flower's stores in SQL, before anybody imports these."""
    for module, name in UNUSED.items():
        sys.modules.setdefault(module, cast(Any, SimpleNamespace(**{name: type(name, (), {})})))


def replace(name: str, new: Any) -> None:
    """Put our own in the place of one of these names. Without the check, a place that is gone would do nothing."""
    setattr(*_place(name), new)


def private(thing: Any, name: str) -> Any:
    """A private attribute of one of Flower's objects, which a version may lack too."""
    if not hasattr(thing, name):
        raise _lack(name, type(thing).__qualname__, "it is the way to Flower's own calls")
    return getattr(thing, name)


def _place(name: str) -> tuple[Any, str]:
    """The module or class that holds a name, and what the name is there."""
    where, why = NAMES[name]
    module, _, there = where.partition(":")
    *holders, last = (there or name).split(".")
    try:
        holder: Any = importlib.import_module(module)
        for part in holders:
            holder = getattr(holder, part)
        getattr(holder, last)
    except (ImportError, AttributeError):
        raise _lack(there or name, module, why) from None
    return holder, last


def _lack(name: str, where: str, why: str) -> FederationError:
    return FederationError(
        f"this version of Flower ({version('flwr')}) lacks {name} of {where} ({why}): fedgrec was tested with Flower "
        f"{TESTED}; install that with  pip install flwr=={TESTED}"
    )
