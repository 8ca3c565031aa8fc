"""The catalogue: a file with one item a line. The line is the item's number, for server and nodes alike."""

from pathlib import Path

from fedgrec.errors import DataError

CATALOGUE = "items.txt"


def read_catalogue(path: Path) -> dict[str, int]:
    """Item → number."""
    try:
        names = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise DataError(f"{path} is missing: it lists the items, one a line") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text: {error}") from None
    numbers: dict[str, int] = {}
    for line, name in enumerate(names, 1):
        if not name.strip() or name.strip() in numbers:
            raise DataError(
                f"{path}:{line}: {'an empty line' if not name.strip() else f'{name!r} again'}; each item once"
            )
        numbers[name.strip()] = len(numbers)
    if not numbers:
        raise DataError(f"{path} lists no item")
    return numbers
