"""schemathesis (PyPI) holds the running broker to the description of its HTTP interface that it serves.

Requests are made from the description, such as it allows and such as it does not; each answer has to be one that it
names, in the form that it names. One line for each operation.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree
from pathlib import Path

from harness import INTEROP, Report, all_listeners

TIME_LIMIT_S = 120
# Requests for each operation beside those that the description's own values and borders make.
REQUESTS = 12


def faults_by_operation(printed: str) -> dict[str, str]:
    """What schemathesis printed below the line with each operation's name."""
    pieces = re.split(r"^_{3,} (.+?) _{3,}$", printed, flags=re.MULTILINE)
    return dict(zip(pieces[1::2], pieces[2::2]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--verbose", action="store_true", help="print what schemathesis prints")
    parser.add_argument("--seed", default="1", help="another seed makes other requests")
    arguments = parser.parse_args()
    report = Report()
    program = shutil.which("schemathesis", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    at = next((one for one in all_listeners() if one.scheme == "http"), None)
    if program is None or at is None:
        report.skip("openapi", "schemathesis is not installed" if program is None else "the broker speaks no HTTP")
        report.exit()
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "report.xml"
        said = subprocess.run(
            [program, "--config-file", str(INTEROP / "python" / "schemathesis.toml"), "run", f"http://{at.host}:{at.port}/v1/openapi.json", "--phases", "examples,coverage,fuzzing",
             "--max-examples", str(REQUESTS), "--seed", arguments.seed, "--generation-database", "none",
             "--request-timeout", "10", "--suppress-health-check", "all", "--continue-on-failure", "--no-color",
             "--no-shrink", "--report-junit-path", str(found), "--report", "junit"],
            cwd=folder, env={**os.environ, "SCHEMATHESIS_HOOKS": "http_openapi_hooks",
                             "PYTHONPATH": str(INTEROP / "python")},
            capture_output=True, text=True, timeout=TIME_LIMIT_S, check=False)
        if arguments.verbose:
            print(said.stdout, said.stderr)
        if not found.exists():
            report.not_ok("openapi", f"schemathesis ended with {said.returncode}: {said.stdout[-800:]} {said.stderr[-400:]}")
            report.exit()
        # The report has codes alone; what is behind them is in what was printed.
        details = faults_by_operation(said.stdout)
        seen = 0
        for case in xml.etree.ElementTree.parse(found).getroot().iter("testcase"):
            faults = [*case.iter("failure"), *case.iter("error")]
            seen += 1
            if faults:
                told = " | ".join((fault.get("message") or fault.text or "")[:300] for fault in faults)
                report.not_ok(case.get("name", "?"), f"{told}: {details.get(case.get('name'), '')[:2000]}")
            else:
                report.ok(case.get("name", "?"))
        # An operation that was left out would go unnoticed.
        if said.returncode and not report.failed:
            report.not_ok("openapi", f"schemathesis ended with {said.returncode}: {said.stdout[-800:]}")
        if seen < 12:
            report.not_ok("openapi", f"{seen} operations were looked at")
    report.exit()


if __name__ == "__main__":
    main()
