"""The errors a person can act on: each is one sentence saying what is wrong, where, and what to do."""

import errno
import os


class FedgrecError(Exception):
    """Something the user can put right. The command line prints it as it is and exits with its code."""

    code = 2


class DataError(FedgrecError):
    """A data file, folder or name that cannot be used."""


class ConfigError(FedgrecError):
    """An option that does not exist, or a value that it cannot take."""


class RunError(FedgrecError):
    """A run folder that is missing, unfinished or damaged."""


class DamagedError(RunError):
    """A file of a run that is not what was written."""


class BusyError(RunError):
    """A folder that another process is writing into."""


class SumLostError(FedgrecError):
    """Too few users or nodes are left: the sum cannot be opened, and no upload has any effect."""


class DiskError(FedgrecError):
    """A file that could not be written: the disk is full, or the system does not let us."""


AGAIN = "give the command again"
WHAT_TO_DO = {
    errno.ENOSPC: f"the disk is full: free some space, then {AGAIN}",
    errno.EDQUOT: f"your share of the disk is used up: free some space, then {AGAIN}",
    errno.EROFS: "the file system is read-only: choose another folder",
    errno.EACCES: "Permission denied: choose a folder that you may write",
    errno.EPERM: "Operation not permitted: choose a folder that you may write",
    errno.EIO: "the disk failed (Input/output error): check it, or choose a folder on another one",
    errno.EMFILE: "this process has too many open files: raise the limit (ulimit -n)",
    errno.ENFILE: "the system has too many open files: close other programs",
    errno.ENOMEM: "the system is out of memory: close other programs, or make the run smaller",
}


def system_trouble(number: int | None) -> str:
    """What the operating system's error means for a person; empty where it has no number."""
    return WHAT_TO_DO.get(number, os.strerror(number)) if number else ""


def nearest(word: object, known: list[str]) -> str:
    """' Did you mean …?' for the known word most like `word`, or nothing."""
    import difflib

    close = difflib.get_close_matches(str(word), known, n=1, cutoff=0.5)
    return f" Did you mean {close[0]!r}?" if close else ""


def missing_extra(feature: str, extra: str) -> FedgrecError:
    """The one line that names the `pip install` to run."""
    return FedgrecError(f"{feature} needs an optional package: in the folder of fedgrec's source run  {install(extra)}")


def install(extra: str) -> str:
    """How an extra is installed: from the source, as long as no index has the package."""
    return f"pip install -c constraints.txt '.[{extra}]'"


def many(count: int, word: str) -> str:
    """1 user, 2 users."""
    return f"{count:,} {word}{'' if count == 1 else 's'}"
