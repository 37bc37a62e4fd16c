"""Namespaces of a suite's own: networks and mounts that end with it."""

from __future__ import annotations

import os
import subprocess
import sys

INSIDE = "STERNA_INTEROP_INSIDE"


def enter() -> None:
    """Goes on in namespaces of its own, which end with this process."""
    if os.environ.get(INSIDE):
        return
    os.environ[INSIDE] = "1"
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    os.execvp("unshare", ["unshare", *user, "--net", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child",
                          sys.executable, *sys.argv])


def sh(commands: str) -> None:
    """Runs commands of the shell, and fails where one does."""
    subprocess.run(["sh", "-ec", commands], check=True)
