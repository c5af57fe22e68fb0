"""Become the given command, but die with the process that started us (Linux).

Run as `python -I -S launch.py PARENT_PID COMMAND…`. A function run between fork and exec could do
the same, but is unsafe in a process with threads (librdkafka's, say), and Python >= 3.12 warns.
This way costs about 20 ms and leaves no process of its own: it turns into the command.
"""

import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main(arguments: list[str]) -> None:
    parent, command = int(arguments[0]), arguments[1:]
    if sys.platform == "linux":
        import ctypes

        # SIGKILL, because a suspended broker would sleep through SIGTERM; Kafka survives it.
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before we asked
            sys.exit(1)
    os.execv(command[0], command)  # noqa: S606 - a fixed command, no shell wanted


if __name__ == "__main__":
    main(sys.argv[1:])
