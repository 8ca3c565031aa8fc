"""What an operator looks after in any folder: free disk, the age of the backup, the days that certificates have."""

import shutil
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from fedgrec.federation.common.network import certificates_of

if TYPE_CHECKING:
    from fedgrec.federation.common.exposition import Exposition

BACKED_UP = "backed-up"  # a file in the folder, as old as the newest backup


def backup_age(folder: Path) -> float | None:
    """Seconds since the newest backup; None if there was none."""
    try:
        return max(time.time() - (folder / BACKED_UP).stat().st_mtime, 0.0)
    except FileNotFoundError:
        return None


def days_left(folder: Path) -> dict[str, float]:
    """Days until each certificate in the folder ends, by the name of its file."""
    now = datetime.now(UTC)
    ends = {name: certificate.not_valid_after_utc for name, certificate in certificates_of(folder).items()}
    return {name: (end - now).total_seconds() / 86_400 for name, end in ends.items()}


def show(folder: Path, shown: "Exposition") -> None:
    """The same for Prometheus."""
    shown.labelled("certificate_days", "days until the certificate ends", "file", days_left(folder))
    shown.gauges(
        ("disk_free_bytes", "bytes that are free where the folder is", shutil.disk_usage(folder).free),
        ("backup_age_seconds", "seconds since the newest backup of the folder", backup_age(folder)),
    )
