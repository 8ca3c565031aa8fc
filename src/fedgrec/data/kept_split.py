"""The split in a run's folder: a run that goes on with grown data learns from nothing that it once held out."""

from pathlib import Path

from fedgrec.data import IdMap, Interactions, Split
from fedgrec.data.files import read_tensors, understood, write_tensors

SPLIT, USER_IDS, ITEM_IDS = "split.safetensors", "users.json", "items.json"
PARTS = ("train", "validation", "test")
MEND = "restore it, or train again in another folder"


def write_split(folder: Path, split: Split) -> None:
    """Which pairs are in which part, by the rows of the id files."""
    parts = {name: part for name in PARTS if (part := getattr(split, name)) is not None}
    tensors = {f"{name}_indptr": part.indptr for name, part in parts.items()}
    tensors |= {f"{name}_items": part.items for name, part in parts.items()}
    write_tensors(folder / SPLIT, tensors, {})


def read_split(folder: Path) -> Split | None:
    """The split of a run, without ratings and times; None if the run has written none."""
    if not (folder / SPLIT).exists():
        return None
    with understood(folder / SPLIT, MEND):
        tensors, _ = read_tensors(folder / SPLIT)
        users, items = IdMap.load(folder / USER_IDS, len(tensors["train_indptr"]) - 1), IdMap.load(folder / ITEM_IDS)
        parts = {
            name: Interactions(users, items, tensors[f"{name}_indptr"], tensors[f"{name}_items"])
            for name in PARTS
            if f"{name}_indptr" in tensors
        }
        return Split(**parts)
