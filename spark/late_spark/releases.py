"""The times of releases: a file of names and times, so that a report can take a name.

```yaml
"2.3.0": 2026-03-16T14:05:00+01:00
"2.4.0": 2026-04-02
```
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

from late.errors import ConfigError
from late_spark import calendar, pricebook

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def load(path: Path) -> dict[str, str]:
    """Name -> time, as it is written.

    Raises:
        ConfigError: unreadable, not YAML, a name twice, or something else than names and times.
    """
    import yaml

    try:
        text = path.read_text(encoding="utf-8")
        found = yaml.load(text, pricebook.unique_loader())  # A SafeLoader. # nosec B506
    except OSError as error:
        raise ConfigError(f"--releases {path}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeError) as error:
        said = " ".join(str(error).split())
        raise ConfigError(f"--releases {path} is not YAML: {said}") from None
    if not isinstance(found, dict) or not all(isinstance(each, str) for each in found.values()):
        raise ConfigError(f"--releases {path}: expected a line NAME: TIME for each release")
    return {str(name): value for name, value in found.items()}


def by_day(path: Path, tz: ZoneInfo) -> dict[date, str]:
    """Return the names of the releases of each local day.

    Raises:
        ConfigError: see `load`; or a time is none.
    """
    found: dict[date, str] = {}
    for name, text in load(path).items():
        at = calendar.moment(text, f"--releases {path}: {name}", tz)
        day = (_EPOCH + timedelta(microseconds=at)).astimezone(tz).date()
        found[day] = f"{found[day]}, {name}" if day in found else name
    return found


def moment(path: Path, name: str, tz: ZoneInfo) -> int:
    """Return the time of the release `name`, in microseconds.

    Raises:
        ConfigError: it is not in the file, or its time is none.
    """
    known = load(path)
    if name not in known:
        listed = ", ".join(list(known)[-5:]) or "none"
        raise ConfigError(f"--release {name[:64]!r} is not in {path}; the last there: {listed}")
    return calendar.moment(known[name], f"--releases {path}: {name}", tz)
