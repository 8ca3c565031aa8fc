"""What can be asked, and the answers. A function's parameters are the fields of its requests."""

from collections.abc import Callable
from inspect import Parameter, signature
from typing import Any

import numpy as np

from fedgrec import __version__
from fedgrec.cable.core import Ints
from fedgrec.data import IdMap
from fedgrec.data.ids import shown
from fedgrec.errors import FedgrecError
from fedgrec.models.recommender import Lists, distinct
from fedgrec.serve.shelf import SIMILAR, STRANGER, USER, Asked, Opened

Json = dict[str, Any]
MOST = 1000  # items in a list
ID: Json = {"type": ["string", "number"]}
IDS: Json = {"type": "array", "items": ID}
FIELDS: dict[str, Json] = {
    **{"user": ID, "item": ID, "items": IDS, "only": IDS, "without": IDS},
    "k": {"type": "integer", "minimum": 1, "maximum": MOST},
}


class RefusedError(FedgrecError):
    """A request that gets no answer, with the code of HTTP that says why."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(why)
        self.code = code


def recommend(
    opened: Opened,
    user: int | None = None,
    items: Ints | None = None,
    k: int = 10,
    only: Ints | None = None,
    without: Ints | None = None,
) -> Json:
    """The best items for a user, or for a person whom the model has never met and who has these items."""
    hidden = [] if without is None else [without]
    if only is not None:
        hidden.append(np.setdiff1d(np.arange(len(opened.model.item_ids)), only))
    if user is not None and items is None:
        asked = Asked(USER, user, k, np.concatenate([opened.model.seen(user), *hidden]))
    elif user is None and items is not None and len(items):
        asked = Asked(STRANGER, distinct(items), k, np.concatenate([items, *hidden]))
    else:
        raise RefusedError(400, "name a user, or at least one item of a person whom the model has never met")
    return _listed(opened, opened.lists(asked))


def similar(opened: Opened, item: int, k: int = 10) -> Json:
    """The items that are most like this one."""
    return _listed(opened, opened.lists(Asked(SIMILAR, item, k, np.zeros(0, np.int64))))


def explain(opened: Opened, user: int, item: int) -> Json:
    """Why a user is shown an item: the score is `own`, and what each of the user's items adds."""
    why = opened.model.explain(user, item)
    return {"score": float(why.score), "own": float(why.own)} | _listed(opened, (why.ids, why.terms))


QUESTIONS: dict[str, Callable[..., Json]] = {"/recommend": recommend, "/similar": similar, "/explain": explain}
HEALTH, DESCRIPTION = "/health", "/openapi.json"


def answer(opened: Opened, path: str, given: Any, only_user: str | None) -> Json:
    """The answer to a request; `only_user`: the one user about whom it may ask."""
    fields, needed = _fields(path)
    if not isinstance(given, dict) or not set(needed) <= given.keys() <= set(fields):
        needs = f"; {' and '.join(needed)} must be there" if needed else ""
        raise RefusedError(400, f"{path} takes a JSON object of {', '.join(fields)}{needs}")
    if only_user is not None and str(given.get("user", only_user)) != only_user:
        raise RefusedError(403, "this token is bound to another user")
    return QUESTIONS[path](opened, **{name: _read(opened, name, value) for name, value in given.items()})


def _fields(path: str) -> tuple[list[str], list[str]]:
    """The fields that a request may have, and those that it must."""
    parameters = list(signature(QUESTIONS[path]).parameters.values())[1:]
    return [one.name for one in parameters], [one.name for one in parameters if one.default is Parameter.empty]


def _read(opened: Opened, name: str, value: Any) -> Any:
    """A field: ids become indices."""
    ids = opened.model.user_ids if name == "user" else opened.model.item_ids
    if FIELDS[name] is ID:
        return _place(ids, value)
    if FIELDS[name] is IDS and isinstance(value, list):
        return np.array([_place(ids, one) for one in value], np.int64)
    if FIELDS[name] is IDS or type(value) is not int or not 1 <= value <= MOST:
        wanted = "a list of ids" if FIELDS[name] is IDS else f"a whole number from 1 to {MOST:,}"
        raise RefusedError(400, f"{name} is {wanted}, and cannot be {shown(value)}")
    return value


def _place(ids: IdMap, one: Any) -> int:
    """The index of an id, as number or text. No similar id is looked for: among many ids that takes seconds."""
    is_id = type(one) in (str, int, float)
    if is_id and one in ids:
        return ids.index(one)
    if not (is_id and ids.knows(str(one))):
        raise RefusedError(404, f"there is no {ids.kind} {shown(one)} in the model")
    return ids.parse(str(one))


def _listed(opened: Opened, lists: Lists) -> Json:
    ids, titles = opened.model.item_ids, opened.names.titles
    pairs = zip(lists[0].tolist(), lists[1].tolist(), strict=True)
    return {"items": [{"item": ids[i]} | ({"title": titles[i]} if titles[i] else {}) | {"score": s} for i, s in pairs]}


def openapi() -> Json:
    """The description of all that can be asked."""
    answers = {"200": {"description": "JSON"}, "4XX": {"description": "a sentence that says why not, as `error`"}}
    paths: Json = {
        HEALTH: {"get": {"summary": "Whether the server answers.", "responses": answers, "security": []}},
        DESCRIPTION: {"get": {"summary": "This description.", "responses": answers}},
    }
    for path, function in QUESTIONS.items():
        fields, needed = _fields(path)
        schema = {"type": "object", "properties": {name: FIELDS[name] for name in fields}, "required": needed}
        body = {"required": True, "content": {"application/json": {"schema": schema | {"additionalProperties": False}}}}
        paths[path] = {"post": {"summary": function.__doc__, "responses": answers, "requestBody": body}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "fedgrec serve", "version": __version__},
        "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        "security": [{"token": []}],
        "paths": paths,
    }
