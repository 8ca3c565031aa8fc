"""The errors a person can act on: each is one sentence saying what is wrong, where, and what to do."""


class FedgrecError(Exception):
    """Something the user can put right. The command line prints it as it is and exits with code 2."""


class DataError(FedgrecError):
    """A data file, folder or name that cannot be used."""


class ConfigError(FedgrecError):
    """An option that does not exist, or a value that it cannot take."""


class RunError(FedgrecError):
    """A run folder that is missing, unfinished or damaged."""


class BusyError(RunError):
    """A folder that another process is writing into."""


class SumLostError(FedgrecError):
    """Too few users or nodes are left: the sum cannot be opened, and nobody's upload is in anything."""


def nearest(word: str, known: list[str]) -> str:
    """' Did you mean …?' for the known word most like `word`, or nothing."""
    import difflib

    close = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f" Did you mean {close[0]!r}?" if close else ""


def missing_extra(feature: str, extra: str) -> FedgrecError:
    """The one line that names the `pip install` to run."""
    return FedgrecError(f"{feature} needs an optional package: run  pip install 'fedgrec[{extra}]'")
