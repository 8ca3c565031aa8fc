"""For tests that audit a whole run to see something else than the lies."""

import pytest

from fedgrec.studies.audit import lies


@pytest.fixture
def one_is_lied_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each lie is a secure round of ten clients; `test_lying.py` tells the lies to as many people as users do."""
    monkeypatch.setattr(lies, "LIED_TO", 1)
