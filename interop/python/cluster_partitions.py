"""Two partitions under load: two servers of NATS are cut apart, and a node is cut off. One round of the nemesis for each.

  cluster_partitions.py [WORD]...   both, or those with one of the words in their name

The clients, faults and promises are those of `cluster_nemesis.py`, which prints the seed that plays a round again.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

from harness import Failure, Report

FAULTS = ("cut two servers apart", "cut a node off")
# The last lines of a round that went wrong.
TOLD_LINES = 12


def play(fault: str) -> None:
    """Plays a round with this fault, and prints what the nemesis prints."""
    folder = Path(os.environ["STERNA_BUILD"]) / fault.replace(" ", "-")
    nemesis = Path(__file__).with_name("cluster_nemesis.py")
    done = subprocess.run(
        [sys.executable, str(nemesis), str(folder), "--rounds", "1", "--only", fault],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )
    print(done.stdout, flush=True)
    if done.returncode != 0:
        raise Failure(f"exit code {done.returncode}: {' | '.join(done.stdout.splitlines()[-TOLD_LINES:])}")


def main() -> None:
    report, wanted = Report(), sys.argv[1:]

    def run(fault: str) -> None:
        try:
            play(fault)
        except (Failure, OSError) as error:
            report.not_ok(fault, str(error))
        else:
            report.ok(fault)

    # Side by side: most of a round is waiting.
    chosen = [fault for fault in FAULTS if not wanted or any(word in fault for word in wanted)]
    threads = [threading.Thread(target=run, args=(fault,)) for fault in chosen]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    report.exit()


if __name__ == "__main__":
    main()
