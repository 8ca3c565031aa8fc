"""Flower's handlers of messages between server and nodes, as a federation needs them. The SuperLink runs them."""

import threading
from collections import defaultdict
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from fedgrec.federation.flower import internals, parts

STARTING = 300.0  # seconds more that the server's app has to start
HOLD, MOST_HELD = 45.0, 500  # seconds that a look for work waits; looks that may wait together
REST = 1.0  # seconds that a look for answers waits; what Flower itself says, such as that a node is gone, ends no wait
AGAIN = 3  # times that a question without an answer is handed out again


class Questions:
    """Flower's handlers of questions and answers: announced, looked for, received. Parts ride along (parts.py).

    A look for work waits until there is some: a node that rests looks every `HOLD` seconds, and has a new question at
    once. A look is also a sign of life, so that a node that looks sends no other.

    Flower hands a question out once, and it may be lost on the way. A node does one thing at a time: when it looks for
    work and has not answered, it has not got the question, and gets it again.
    """

    def __init__(self, pull: Callable[..., Any], push: Callable[..., Any]) -> None:
        self._pull, self._push = pull, push
        self._news = defaultdict[int, threading.Event](threading.Event)  # by node: whether there may be a question
        self._out: dict[int, tuple[Any, int]] = {}  # by node: its question, and how often it may still be handed out
        self._room = threading.Semaphore(MOST_HELD)
        self._answered, self._came = set[str](), threading.Condition()  # questions whose answers wait for the app

    def announced(self, push: Callable[..., Any], request: Any, state: Any, task: Any) -> Any:
        """The server's app has questions."""
        answer = push(request, state, task)
        parts.keep(request, answer, state)
        for message in request.messages_list:
            self._news[message.metadata.dst_node_id].set()
        return answer

    def pull(self, request: Any, state: Any, store: Any = None) -> Any:
        news = self._news[request.node.node_id]
        found = self._found(news, request, state)
        if not found.messages_list and self._room.acquire(blocking=False):
            came = news.wait(HOLD)
            self._room.release()
            if came:
                found = self._found(news, request, state)
        answer = type(found)()  # without parts, a question may wait here for long
        answer.CopyFrom(found)
        parts.hand_out(answer, state)
        return answer

    def _found(self, news: threading.Event, request: Any, state: Any) -> Any:
        node = request.node.node_id
        state.acknowledge_node_heartbeat(node, internals.HEARTBEAT)
        news.clear()  # before the look: what comes in between is seen, or makes news again
        found = self._pull(request=request, state=state, store=state.object_store)
        if found.messages_list:
            self._forget(node, state)  # it never answered the last one
            self._out[node] = found, AGAIN
        elif node in self._out:
            found, left = self._out.pop(node)
            if left > 1:
                self._out[node] = found, left - 1
        return found

    def push(self, request: Any, state: Any) -> Any:
        """A node answers, only for itself: Flower trusts the sender that an answer names."""
        from fastapi import HTTPException

        if any(message.metadata.src_node_id != request.node.node_id for message in request.messages_list):
            raise HTTPException(403, "a node answers for itself alone")
        answer = self._push(request=request, state=state)
        parts.keep(request, answer, state)
        with self._came:
            self._answered |= self._forget(request.node.node_id, state)
            self._came.notify_all()
        return answer

    def _forget(self, node: int, state: Any) -> set[str]:
        """Drop the question that a node has; returns its name."""
        found, _ = self._out.pop(node, (None, 0))
        names = {message.metadata.message_id for message in found.messages_list} if found else set()
        for name in names:
            state.object_store.delete(name)
        return names

    def answers(self, pull: Callable[..., Any], request: Any, state: Any, task: Any) -> Any:
        """The app looks for answers, and waits for one. An answer that goes out whole needs no receipt."""
        asked = set(request.message_ids)
        with self._came:
            self._came.wait_for(lambda: asked & self._answered, REST)
            self._answered -= asked
        found = pull(request, state, task)
        for name in parts.hand_out(found, state):
            state.object_store.delete(name)
        return found


def patient_claim(claim: Callable[[Any, int], str | None]) -> Callable[[Any, int], str | None]:
    """Flower's claim of a run for an app that starts now. It holds for longer than Flower's half a minute."""

    def claimed(state: Any, task: int) -> str | None:
        token = claim(state, task)
        if token:
            state.task_token_store[task].active_until += timedelta(seconds=STARTING)
        return token

    return claimed
