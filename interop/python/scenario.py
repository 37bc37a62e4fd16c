"""Runs the common scenario with one foreign client: `scenario.py CLIENT [--only TEXT] [--transports tcp,tls]`.

CLIENT names a driver: a process that wraps the client library and speaks JSON lines (README.md has the form).
Prints `ok NAME`, `not ok NAME: why`, `skip NAME: why` (missing) or `n/a NAME: why` (nothing to check) for every step
over every transport and protocol version that both the client and the broker have, and exits with 1 when one failed.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import os
import secrets
import subprocess
import sys
import time
from pathlib import Path

from harness import INTEROP, LEVELS, Cannot, Driver, Failure, Refused, Report, build_folder, listeners
from steps import STEPS, Step

# A step that hangs ends after this long.
STEP_LIMIT_S = 120
# Steps that run side by side; most of them wait for a clock, not for the processor.
AT_ONCE = 12


def python_with(module: str) -> str:
    """This interpreter if it has the module, otherwise that of the build folder."""
    if importlib.util.find_spec(module):
        return sys.executable
    return str(build_folder() / "venv" / "bin" / "python")


def built(name: str) -> str:
    """Builds a driver that is written in Rust, if it has to be, and returns its path."""
    target = Path(os.environ.get("CARGO_TARGET_DIR") or build_folder() / "rust")
    manifest = INTEROP / "rust" / "Cargo.toml"
    subprocess.run(
        ["cargo", "build", "--quiet", "--locked", "--manifest-path", str(manifest), "--bin", name],
        check=True, env={**os.environ, "CARGO_TARGET_DIR": str(target)},
    )
    return str(target / "debug" / name)


def command(name: str) -> list[str]:
    if name == "paho":
        return [python_with("paho"), str(INTEROP / "python" / "paho_driver.py")]
    if name == "aioquic":
        return [python_with("aioquic"), str(INTEROP / "python" / "aioquic_driver.py")]
    if name == "mqttjs":
        return ["node", str(INTEROP / "node" / "driver.cjs")]
    return [built(f"{name}-driver")]


async def run_step(driver, listener, level, run, name, function, report: Report, gate, timings) -> None:
    label = f"{listener.transport}/{LEVELS[level]}/{name}"
    unable = driver.hello.get("cannot", {})
    for key in (name, f"{name}@{LEVELS[level]}", f"{listener.transport}/{name}"):
        if key in unable:
            report.nothing(label, f"{driver.hello['client']}: {unable[key]}")
            return
    async with gate:
        if driver.dead:
            report.not_ok(label, "not tried, the driver has ended")
            return
        start = time.monotonic()
        one = Step(driver, listener, level, run, name)
        try:
            await asyncio.wait_for(function(one), STEP_LIMIT_S)
            report.ok(label)
        except Cannot as why:
            report.nothing(label, str(why))
        except Failure as why:
            report.not_ok(label, str(why))
        except Refused as why:
            code = "" if why.reason is None else f" with 0x{why.reason:02X}"
            report.not_ok(label, f"refused{code}: {why}")
        except TimeoutError:
            report.not_ok(label, f"not done within {STEP_LIMIT_S} s")
        except Exception as error:  # a fault of the suite must name itself and not end the others
            report.not_ok(label, f"{type(error).__name__}: {error}")
        timings.append((time.monotonic() - start, label))
        try:
            await asyncio.wait_for(one.clean_up(), 5)
        except Exception:  # what is left over is dropped with the driver
            pass


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("client", choices=["paho", "aioquic", "mqttjs", "rumqttc"])
    parser.add_argument("--only", default="", help="only steps whose transport/version/name contains this")
    parser.add_argument("--transports", default="", help="only these, separated by commas")
    parser.add_argument("--timings", action="store_true", help="print the slowest steps")
    arguments = parser.parse_args()
    report, places = Report(), listeners()
    try:
        driver = Driver(command(arguments.client))
        await driver.start()
    except (Failure, OSError, subprocess.CalledProcessError) as why:
        report.not_ok(f"{arguments.client}/start", str(why))
        report.exit()
    wanted = [one for one in arguments.transports.split(",") if one]
    gate, timings, tasks = asyncio.Semaphore(AT_ONCE), [], []
    run = secrets.token_hex(3)
    for transport in driver.hello["transports"]:
        if wanted and transport not in wanted:
            continue
        if transport not in places:
            report.skip(transport, "the broker has no such listener")
            continue
        for level in driver.hello["levels"]:
            if level == 3 and transport != "tcp":
                continue  # the old version is shown once, over the plainest transport
            for name, levels, function in STEPS:
                if level in levels and arguments.only in f"{transport}/{LEVELS[level]}/{name}":
                    tasks.append(run_step(driver, places[transport], level, run, name, function, report, gate,
                                          timings))
    await asyncio.gather(*tasks)
    if arguments.timings:
        for seconds, label in sorted(timings, reverse=True)[:15]:
            print(f"# {seconds:.2f} s {label}", file=sys.stderr)
    if driver.dead:
        report.not_ok(f"{arguments.client}/driver", driver.dead)
    await driver.stop()
    report.exit()


if __name__ == "__main__":
    asyncio.run(main())
