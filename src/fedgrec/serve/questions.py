"""What can be asked, and the answers. One table checks the requests and is the OpenAPI description."""

from typing import Any

import numpy as np

from fedgrec import __version__
from fedgrec.cable.core import Ints
from fedgrec.data import IdMap
from fedgrec.data.ids import shown
from fedgrec.errors import FedgrecError
from fedgrec.models.recommender import Lists
from fedgrec.serve.shelf import SIMILAR, STRANGER, USER, Asked, Opened

Json = dict[str, Any]
ID: Json = {"type": ["string", "number"]}
IDS: Json = {"type": "array", "items": ID}
K: Json = {"type": "integer", "minimum": 1, "maximum": 1000, "default": 10}


class RefusedError(FedgrecError):
    """A request that gets no answer, with the code of HTTP that says why."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(why)
        self.code = code


def recommend(opened: Opened, given: Json) -> Json:
    """The best items for a user, or for a person whom the model has never met and who has these items."""
    model, ids = opened.model, opened.model.item_ids
    if ("user" in given) == ("items" in given) or not given.get("items", ID):
        raise RefusedError(400, "name a user, or at least one item of a person whom the model has never met")
    hidden = [_places(ids, given.get("without", []))]
    if "only" in given:
        hidden.append(np.setdiff1d(np.arange(len(ids)), _places(ids, given["only"])))
    if "user" in given:
        user = _place(model.user_ids, given["user"])
        asked = Asked(USER, user, given.get("k", 10), np.concatenate([model.seen(user), *hidden]))
    else:
        items = np.unique(_places(ids, given["items"]))
        asked = Asked(STRANGER, items, given.get("k", 10), np.concatenate([items, *hidden]))
    return _listed(opened, opened.lists(asked))


def similar(opened: Opened, given: Json) -> Json:
    """The items that are most like this one."""
    item = np.array(_place(opened.model.item_ids, given["item"]))
    return _listed(opened, opened.lists(Asked(SIMILAR, int(item), given.get("k", 10), item[None])))


def explain(opened: Opened, given: Json) -> Json:
    """Why a user is shown an item: the score is `own`, and what each of the user's items adds."""
    user, item = _place(opened.model.user_ids, given["user"]), _place(opened.model.item_ids, given["item"])
    why = opened.model.explain(user, item)
    return {"score": float(why.score), "own": float(why.own)} | _listed(opened, (why.ids, why.terms))


def _listed(opened: Opened, lists: Lists) -> Json:
    ids, titles = opened.model.item_ids, opened.names.titles
    pairs = zip(lists[0].tolist(), lists[1].tolist(), strict=True)
    return {"items": [{"item": ids[i]} | ({"title": titles[i]} if titles[i] else {}) | {"score": s} for i, s in pairs]}


def _place(ids: IdMap, one: Any) -> int:
    """The index of an id, as number or text. No similar id is looked for: among many ids that takes seconds."""
    if one in ids:
        return ids.index(one)
    if not ids.knows(str(one)):
        raise RefusedError(404, f"there is no {ids.kind} {shown(one)} in the model")
    return ids.parse(str(one))


def _places(ids: IdMap, some: list[Any]) -> Ints:
    return np.array([_place(ids, one) for one in some], np.int64)


# Path → its answer, the fields that it needs, and those that it may have.
QUESTIONS: dict[str, tuple[Any, Json, Json]] = {
    "/recommend": (recommend, {}, {"user": ID, "items": IDS, "only": IDS, "without": IDS, "k": K}),
    "/similar": (similar, {"item": ID}, {"k": K}),
    "/explain": (explain, {"user": ID, "item": ID}, {}),
}
HEALTH, DESCRIPTION = "/health", "/openapi.json"


def answer(opened: Opened, path: str, given: Any, only_user: str | None) -> Json:
    """The answer to a request; `only_user`: the one user about whom it may ask."""
    function, needs, takes = QUESTIONS[path]
    fields = needs | takes
    if not isinstance(given, dict) or not needs.keys() <= given.keys() <= fields.keys():
        needed = f", with {' and '.join(needs)}" if needs else ""
        raise RefusedError(400, f"{path} takes a JSON object of {', '.join(fields)}{needed}")
    for name, value in given.items():
        if not _fits(value, kind := fields[name]):
            wanted = (
                "a list of ids" if kind is IDS else "an id" if kind is ID else f"a whole number up to {K['maximum']:,}"
            )
            raise RefusedError(400, f"{name} is {wanted}, and cannot be {shown(value)}")
    if only_user is not None and str(given.get("user", only_user)) != only_user:
        raise RefusedError(403, "this token is bound to another user")
    found: Json = function(opened, given)
    return found


def _fits(value: Any, schema: Json) -> bool:
    if schema is IDS:
        return isinstance(value, list) and all(_fits(one, ID) for one in value)
    return type(value) in (str, int, float) if schema is ID else type(value) is int and 1 <= value <= K["maximum"]


def openapi() -> Json:
    """The description of all that can be asked."""
    why = {"description": "a sentence that says why not, as `error`"}

    def operation(about: str) -> Json:
        return {"summary": about, "responses": {"200": {"description": "JSON"}, "4XX": why}}

    paths = {
        HEALTH: {"get": operation("Whether the server answers.") | {"security": []}},
        DESCRIPTION: {"get": operation("This description.")},
    }
    for path, (function, needs, takes) in QUESTIONS.items():
        schema = {"type": "object", "properties": needs | takes, "required": list(needs), "additionalProperties": False}
        body = {"required": True, "content": {"application/json": {"schema": schema}}}
        paths[path] = {"post": operation(function.__doc__) | {"requestBody": body}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "fedgrec serve", "version": __version__},
        "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        "security": [{"token": []}],
        "paths": paths,
    }
