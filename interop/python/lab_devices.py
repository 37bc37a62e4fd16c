"""Devices of other stacks in the lab: one short row of each role with each, and words that are no protocol.

The devices are `quic-go device` and `aioquic_device.py`. docs/lab.md, "Devices of other stacks", has what the lab asks
of them. Standard library only.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

from harness import INTEROP, Failure, Report

LAB = Path(os.environ["STERNA_BIN"]).with_name("sterna-lab")
CAMPAIGN = INTEROP / "devices.toml"
# A run of the whole campaign takes some seconds; a busy machine repeats runs.
PATIENCE_S = 240
# Both ways, and one way.
ROUND_TRIP_MS, DELAY_MS = 25.0, 12.5


def emulator() -> str:
    """Namespaces where they can be had; without rights a relay, which devices do not know from a link."""
    found = subprocess.run([LAB, "link", "-q", "--", "true"], capture_output=True)
    return "tun" if found.returncode == 0 else "relay"


def run(device: Path, kind: str, folder: Path, *more: str) -> subprocess.CompletedProcess:
    shutil.rmtree(folder, ignore_errors=True)
    return subprocess.run(
        [LAB, "run", CAMPAIGN, "--device", device, "--emulator", kind, "--no-calibration", "--out", folder, *more],
        capture_output=True, text=True, timeout=PATIENCE_S)


def samples(folder: Path) -> dict[tuple[str, str], dict]:
    lines = (folder / "samples.jsonl").read_text().splitlines()
    return {(sample["grid"], sample["transport"]): sample for sample in map(json.loads, lines)}


def expect(holds: bool, what: str) -> None:
    if not holds:
        raise Failure(what)


def series(sample: dict, name: str, count: int, least: float) -> None:
    values = sample["series"].get(name, [])
    expect(len(values) == count, f"{name} has {len(values)} values instead of {count}")
    expect(all(value >= least for value in values), f"{name}: {min(values)} ms is less than the link's {least}")


def publisher(sample: dict) -> None:
    series(sample, "delay_ms", 20, DELAY_MS)
    expect("late_p99_ms" in sample["metrics"], "lateness is not said")


def stop_and_wait(sample: dict) -> None:
    series(sample, "round_trip_ms", 5, ROUND_TRIP_MS)


def connect_publish(sample: dict) -> None:
    for name, least in (("startup_ms", ROUND_TRIP_MS), ("sent_after_ms", 0.0), ("first_data_ms", DELAY_MS)):
        series(sample, name, 3, least)
    metrics = sample["metrics"]
    # The first connection has no ticket.
    for name in ("early_data_tried", "early_data_accepted"):
        expect(metrics[name] == 2, f"{name} is {metrics[name]} instead of 2")


ROLES = {
    ("publisher", "quic"): publisher,
    ("publisher", "quic-ipv6"): publisher,
    ("stop-and-wait", "quic"): stop_and_wait,
    ("connect-publish", "quic"): connect_publish,
}


def device(report: Report, program: Path, kind: str, folder: Path) -> None:
    name = program.stem
    done = run(program, kind, folder)
    found = samples(folder) if (folder / "samples.jsonl").exists() else {}
    for (grid, transport), check in ROLES.items():
        title = f"{name}: {grid}, {transport}"
        sample = found.get((grid, f"{transport}@{name}"))
        try:
            expect(sample is not None, f"no sample: {done.stderr[-600:]}")
            expect(sample["verdict"] in ("sound", "unsound"), f"{sample['verdict']}: {sample.get('reason')}")
            metrics = sample["metrics"]
            expect(metrics["arrived_ratio"] == 1, f"{metrics['arrived_ratio']} of the messages arrived")
            expect(metrics["total_s"] > 0 and metrics["device_cpu_s"] > 0, "limits of the work, or CPU time, are not said")
            expect(bool(sample["in_force"].get("congestion")), "its congestion control is not said")
            check(sample)
        except (Failure, KeyError) as error:
            report.not_ok(title, str(error))
        else:
            report.ok(title)


def refusals(report: Report, folder: Path) -> None:
    """What a device says or does not say reaches the person who asked for it."""
    for name, script, word in (
        ("says that it failed", 'read task; echo \'{"event":"failed","reason":"no such road"}\'', "no such road"),
        ("says something else", "read task; echo hello", "not a word"),
        ("says nothing and ends", "read task; echo why >&2; exit 3", "why"),
        ("is finished before it is ready", 'read task; echo \'{"event":"finished"}\'; read go', "Finished"),
    ):
        title = f"a device that {name}"
        program = folder / "wrong-device"
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        run(program, "relay", folder / "wrong", "--grid", "stop-and-wait")
        sample = samples(folder / "wrong").get(("stop-and-wait", "quic@wrong-device"), {})
        if sample.get("verdict") == "failed" and word in sample.get("reason", ""):
            report.ok(title)
        else:
            report.not_ok(title, f"the sample is {sample.get('verdict')}: {sample.get('reason')}")


def main() -> None:
    report = Report()
    folder = Path(os.environ["STERNA_BUILD"]) / "lab-devices"
    kind = emulator()
    print(f"# emulator {kind}", flush=True)
    quic_go = shutil.which("quic-go")
    for program in (Path(quic_go) if quic_go else None, INTEROP / "python" / "aioquic_device.py"):
        if program is None:
            report.skip("quic-go", "it is not built")
        else:
            device(report, program, kind, folder / program.stem)
    refusals(report, folder)
    report.exit()


if __name__ == "__main__":
    main()
