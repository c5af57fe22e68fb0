"""What it takes to run the broker on this machine: a Java, the jars, and the JVM's flags."""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from broker_engine.runtime.local_broker.cache import cache_dir
from broker_engine.runtime.local_broker.class_archive import ClassArchive, archive_for
from broker_engine.runtime.local_broker.configuration import JARS_LOCK, LOG_CONFIGURATION
from broker_engine.runtime.local_broker.jars import Progress, ensure_jars, parse_lock
from broker_engine.runtime.local_broker.java import find_java

# With G1 and the full compiler a broker on two cores needed several runs of the benchmark to warm
# up; the serial collector and the first compiler tier are right for a broker that lives minutes.
JVM_FLAGS = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.awt.headless=true")


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """The parts of a command line that do not change between starts."""

    java: Path
    jars: tuple[Path, ...]
    heap: str
    classes: ClassArchive

    def broker_command(self, configuration: Path, classes_part: Path | None) -> list[str]:
        """Run the broker; at its end it writes its classes to `classes_part`, when given."""
        return [
            *self._jvm(f"-Xmx{self.heap}"),
            *([f"-XX:ArchiveClassesAtExit={classes_part}"] if classes_part else []),
            f"-Dlog4j2.configurationFile={LOG_CONFIGURATION.as_uri()}",
            "kafka.Kafka",
            str(configuration),
        ]

    def format_command(self, configuration: Path, cluster_id: str) -> list[str]:
        """Prepare an empty data folder."""
        tool = ("kafka.tools.StorageTool", "format", "--standalone", "-t", cluster_id)
        return [*self._jvm("-Xmx128m"), *tool, "-c", str(configuration)]

    def _jvm(self, heap: str) -> list[str]:
        class_path = os.pathsep.join(map(str, self.jars))
        return [str(self.java), "-cp", class_path, heap, *JVM_FLAGS, *self.classes.reading_flags()]


def install(*, heap: str, progress: Progress) -> Installation:
    """Find Java and fetch what is missing of the jars.

    Raises:
        NoJava, JarsUnavailable
    """
    java = find_java()
    lock = JARS_LOCK.read_text()
    # A folder per lock, so that two versions of the package can share the cache.
    directory = cache_dir() / f"kafka-{hashlib.sha256(lock.encode()).hexdigest()[:12]}"
    jars = tuple(ensure_jars(parse_lock(lock), directory, progress=progress))
    classes = archive_for(java, jars, JVM_FLAGS)
    return Installation(java=java, jars=jars, heap=heap, classes=classes)
