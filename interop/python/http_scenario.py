"""Runs the HTTP scenario with one foreign client: `http_scenario.py CLIENT [--only TEXT] [--transports h1,h2]`.

CLIENT names a driver, as for scenario.py (README.md has the form of the lines). Transports are what a library has of
`h1` and `h1s` (HTTP/1.1 on TCP and TLS), `h2` (on TLS), `h2c` (prior knowledge), `h3`, and ways of its own to do that.
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

import http_steps_access  # noqa: F401
import http_steps_errors  # noqa: F401
import http_steps_mapping  # noqa: F401
import http_steps_messages  # noqa: F401
import http_steps_sessions  # noqa: F401
from amqp_client import AmqpDriver, AmqpError
from amqp_scenario import go_program
from harness import INTEROP, Cannot, Failure, Report, all_listeners
from http_client import HttpDriver, HttpError
from http_step import CORE, ONCE, SCHEMES, STEPS, Places, Step
from scenario import python_with

STEP_LIMIT_S = 120
# Most steps wait for a clock, not for the processor.
AT_ONCE = 16


def command(name: str) -> list[str]:
    if name == "aioquic":
        return [python_with("aioquic"), str(INTEROP / "python" / "http_aioquic_driver.py")]
    if name == "quic-go":
        return [go_program("http-quic-go-driver", "gohttp")]
    if name == "node":
        return ["node", str(INTEROP / "node" / "http_driver.cjs")]
    return [sys.executable, str(INTEROP / "python" / f"http_{name}_driver.py")]


async def run_step(driver, transport, label, name, function, places, run, amqp, report: Report, gate, timings) -> None:
    unable = driver.hello.get("cannot", {})
    for key in (name, f"{transport}/{name}"):
        if key in unable:
            report.nothing(label, f"{driver.hello['client']}: {unable[key]}")
            return
    async with gate:
        if driver.dead:
            report.not_ok(label, f"not tried, {driver.dead}")
            return
        start = time.monotonic()
        one = Step(driver, places, transport, run, amqp)
        try:
            await asyncio.wait_for(function(one), STEP_LIMIT_S)
            report.ok(label)
        except Cannot as why:
            report.nothing(label, f"{driver.hello['client']}: {why}")
        except (Failure, HttpError, AmqpError) as why:
            report.not_ok(label, f"{'' if isinstance(why, Failure) else type(why).__name__ + ': '}{why}")
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
    parser.add_argument("client", choices=["aioquic", "quic-go", "curl", "python", "node"])
    parser.add_argument("--only", default="", help="only steps whose transport/name contains this")
    parser.add_argument("--transports", default="", help="only these, separated by commas")
    parser.add_argument("--timings", action="store_true", help="print the slowest steps")
    arguments = parser.parse_args()
    report, places, amqp = Report(), Places(all_listeners()), None
    try:
        driver = HttpDriver(command(arguments.client))
        await driver.start()
        if importlib.util.find_spec("proton"):
            amqp = AmqpDriver([sys.executable, str(INTEROP / "python" / "proton_driver.py")])
            await amqp.start()
    except (Failure, OSError, subprocess.CalledProcessError) as why:
        report.not_ok(f"{arguments.client}/start", str(why))
        report.exit()
    transports = driver.hello["transports"]
    if arguments.transports:
        transports = [one for one in transports if one in arguments.transports.split(",")]
    gate, timings, tasks, run = asyncio.Semaphore(AT_ONCE), [], [], secrets.token_hex(3)
    for number, transport in enumerate(transports):
        if SCHEMES[transport] not in places.open_to_all:
            report.skip(transport, "the broker has no such listener")
            continue
        for name, on, function in STEPS:
            label = f"{transport}/{name}"
            if transport in driver.hello.get("brief", []) and name not in CORE:
                continue
            if (transport in on or on == ONCE and not number) and arguments.only in label:
                tasks.append(run_step(driver, transport, label, name, function, places, run, amqp, report, gate,
                                      timings))
    await asyncio.gather(*tasks)
    if arguments.timings:
        for seconds, label in sorted(timings, reverse=True)[:15]:
            print(f"# {seconds:.2f} s {label}", file=sys.stderr)
    if driver.dead:
        report.not_ok(f"{arguments.client}/driver", driver.dead)
    await driver.stop()
    if amqp is not None:
        await amqp.stop()
    report.exit()


if __name__ == "__main__":
    os.environ.setdefault("PYTHONDONTWRITEBYTECODE", "1")
    asyncio.run(main())
