"""Public data sets by name: their sizes, addresses and checksums; found on disk or downloaded."""

import hashlib
import os
import sys
import urllib.error
import urllib.request
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any

from fedgrec.errors import DataError, nearest

LIGHTGCN = "https://raw.githubusercontent.com/kuandeng/LightGCN/master/Data"
CHUNK = 1 << 16


@dataclass(frozen=True)
class Source:
    """A data set that others publish, in the split that everyone reports on."""

    url: str  # of the folder
    checksums: dict[str, str]  # file name → 'sha256:…' or 'md5:…'
    users: int
    items: int
    train_pairs: int
    test_pairs: int


SOURCES: dict[str, Source] = {
    "gowalla": Source(
        f"{LIGHTGCN}/gowalla",
        {
            "train.txt": "sha256:7244696fdeb23911319cf7b689f2e15a3c4c92549c873a5677b44e3f13cc3e62",
            "test.txt": "sha256:099a2a73924e4b754dc6efd730d764f492321b53c38eb93298850c83acf57be3",
        },
        29_858, 40_981, 810_128, 217_242,
    ),
    "yelp2018": Source(
        f"{LIGHTGCN}/yelp2018",
        {
            "train.txt": "sha256:1e9568725a9e833d0ac3bae01c94cd95367f73b3bb6104fd26b5f65ea5054093",
            "test.txt": "sha256:9cd9b37926cd1447a06625ffa7914527573fb097c10cb0bbdb1d1b8ded3742fe",
        },
        31_668, 38_048, 1_237_259, 324_147,
    ),
    "amazon-book": Source(
        f"{LIGHTGCN}/amazon-book",
        {
            "train.txt": "md5:c916ecac04ca72300a016228258b41ed",
            "test.txt": "md5:30f8ccfea18d25007ba9fb9aba4e174d",
        },
        52_643, 91_599, 2_380_730, 603_378,
    ),
}  # fmt: skip


def found(name: str) -> Path | None:
    """Where a known data set is on this machine: in $FEDGREC_DATA or in the cache."""
    own = os.environ.get("FEDGREC_DATA")
    for folder in ([Path(own) / name] if own else []) + [_cache(name)]:
        if all((folder / file).is_file() for file in SOURCES[name].checksums):
            return folder
    return None


def _cache(name: str) -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedgrec" / name


def locate(name: str) -> Path:
    """The folder of a known data set: in $FEDGREC_DATA, in the cache, or downloaded into the cache."""
    if name not in SOURCES:
        raise DataError(f"there is no data set {name!r}; known are {', '.join(SOURCES)}.{nearest(name, list(SOURCES))}")
    source, folder, cache = SOURCES[name], found(name), _cache(name)
    if folder is not None:
        for file, checksum in source.checksums.items():
            if not _matches(folder / file, checksum):
                raise DataError(f"{folder / file} is not the published {name} (its checksum differs): remove it")
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    for file, checksum in source.checksums.items():
        if not ((cache / file).is_file() and _matches(cache / file, checksum)):
            _download(f"{source.url}/{file}", cache / file, checksum)
    return cache


def _download(url: str, path: Path, checksum: str) -> None:
    """Download to `<path>.part` from where an earlier try stopped; rename it only when its checksum is right."""
    part = path.with_name(path.name + ".part")
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        with urllib.request.urlopen(request, timeout=30) as reply:
            resumed = reply.status == 206  # anything else is the whole file again
            _pour(reply, part, have if resumed else 0)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code != 416:  # 416: the server has no more bytes; the checksum below decides
            raise DataError(
                f"{url} answered {error.code} {error.reason}: try again later, or {_by_hand(path)}"
            ) from error
    except (OSError, HTTPException) as error:
        raise DataError(f"could not download {url} ({error}): run again to go on, or {_by_hand(path)}") from error
    if not _matches(part, checksum):
        part.unlink()
        raise DataError(f"what {url} sent is not the published file (wrong checksum): run again, or {_by_hand(path)}")
    os.replace(part, path)


def _pour(reply: Any, part: Path, start: int) -> None:
    """Write a reply's body to `part` from byte `start` on."""
    from tqdm import tqdm

    length = reply.headers.get("Content-Length")
    total = start + int(length) if length else None
    with (
        part.open("ab" if start else "wb") as file,
        tqdm(
            desc=part.name.removesuffix(".part"), initial=start, total=total, unit="B", unit_scale=True,
            disable=not sys.stderr.isatty(),
        ) as bar,
    ):  # fmt: skip
        while block := reply.read(CHUNK):
            file.write(block)
            bar.update(len(block))
        got = file.tell()
    if total is not None and got < total:
        raise OSError(f"the connection ended after {got:,} of {total:,} bytes")


def _by_hand(path: Path) -> str:
    return f"put the file at {path} yourself"


def digest(path: Path, kind: str = "sha256") -> str:
    """A file's checksum, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, kind).hexdigest()


def _matches(path: Path, checksum: str) -> bool:
    kind, _, expected = checksum.partition(":")
    return digest(path, kind) == expected
