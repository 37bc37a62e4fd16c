"""Runs the AMQP scenario with one foreign client: `amqp_scenario.py CLIENT [--only TEXT] [--transports tcp,tls]`.

CLIENT names a driver, as for scenario.py (README.md has the form of the lines). Besides the transports that the client
has there are `quic` and `quic-streams`: the client speaks TCP to an adapter (amqp_quic.py) that carries it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import shutil
import subprocess
import sys
import time

import amqp_steps_links  # noqa: F401
import amqp_steps_mapping  # noqa: F401
import amqp_steps_messages  # noqa: F401
import amqp_steps_security  # noqa: F401
import amqp_steps_transactions  # noqa: F401
from amqp_client import AmqpDriver, AmqpError
from amqp_step import ALONE, STEPS, Places, Step
from harness import AMQP_SCHEMES, INTEROP, Cannot, Failure, Listener, Report, all_listeners, build_folder
from scenario import built, python_with

STEP_LIMIT_S = 120
# Most steps wait for a clock, not for the processor.
AT_ONCE = 20


def go_program(name: str, folder: str) -> str:
    """A driver in Go: the one that was built beforehand, or one built now."""
    found = shutil.which(name)
    if not found:
        found = str(build_folder() / name)
        subprocess.run(["go", "build", "-o", found, "."], cwd=INTEROP / folder, check=True)
    return found


def command(name: str) -> list[str]:
    if name == "proton":
        return [python_with("proton"), str(INTEROP / "python" / "proton_driver.py")]
    if name == "rhea":
        return ["node", str(INTEROP / "node" / "rhea_driver.cjs")]
    if name == "go-amqp":
        return [go_program("go-amqp-driver", "goamqp")]
    return [built(f"{name}-driver")]


def places() -> Places:
    """The listeners of amqp.toml: the first of each kind admits everybody, the second asks who it is."""
    found: tuple[dict[str, Listener], dict[str, Listener]] = ({}, {})
    mqtt = None
    for one in all_listeners():
        if one.scheme == "mqtt":
            mqtt = mqtt or one
            continue
        one.transport = AMQP_SCHEMES.get(one.scheme, one.scheme)
        one.secure = one.scheme in ("amqps", "wss", "amqp+quic")
        (found[1] if one.transport in found[0] else found[0])[one.transport] = one
    return Places(*found, mqtt)


async def run_step(driver, at, label, name, function, where, run, report: Report, gate, timings) -> None:
    unable = driver.hello.get("cannot", {})
    if name in unable:
        report.nothing(label, f"{driver.hello['client']}: {unable[name]}")
        return
    if name.startswith("transaction-") and not driver.hello.get("transactions"):
        report.nothing(label, f"{driver.hello['client']}: the library has no transactions")
        return
    async with gate:
        if driver.dead:
            report.not_ok(label, f"not tried, {driver.dead}")
            return
        start = time.monotonic()
        one = Step(driver, where, at, run)
        try:
            await asyncio.wait_for(function(one), STEP_LIMIT_S)
            report.ok(label)
        except Cannot as why:
            report.nothing(label, f"{driver.hello['client']}: {why}")
        except (Failure, AmqpError) as why:
            report.not_ok(label, str(why))
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
    parser.add_argument("client", choices=["proton", "rhea", "go-amqp", "fe2o3"])
    parser.add_argument("--only", default="", help="only steps whose transport/name contains this")
    parser.add_argument("--transports", default="", help="only these, separated by commas")
    parser.add_argument("--timings", action="store_true", help="print the slowest steps")
    arguments = parser.parse_args()
    report, where = Report(), places()
    try:
        driver = AmqpDriver(command(arguments.client))
        await driver.start()
    except (Failure, OSError, subprocess.CalledProcessError) as why:
        report.not_ok(f"{arguments.client}/start", str(why))
        report.exit()
    transports = [*driver.hello["transports"], "quic", "quic-streams"]
    if arguments.transports:
        transports = [one for one in transports if one in arguments.transports.split(",")]
    gate, timings, together, alone, adapters = asyncio.Semaphore(AT_ONCE), [], [], [], []
    run = secrets.token_hex(3)
    for transport in transports:
        at = where.open_to_all.get(transport.removesuffix("-streams"))
        if at is None:
            report.skip(transport, "the broker has no such listener")
            continue
        if transport.startswith("quic"):
            from amqp_quic import Adapter

            adapters.append((transport, Adapter(at, transport == "quic-streams")))
            at = await adapters[-1][1].start()
        for name, on, function in STEPS:
            label = f"{transport}/{name}"
            if transport in on and arguments.only in label:
                work = run_step(driver, at, label, name, function, where, run, report, gate, timings)
                (alone if name in ALONE else together).append(work)
    await asyncio.gather(*together)
    await asyncio.gather(*alone)
    for transport, adapter in adapters:
        if adapter.faults:
            report.not_ok(f"{transport}/adapter", "; ".join(sorted(set(adapter.faults))[:5]))
        else:
            report.ok(f"{transport}/adapter")
        await adapter.stop()
    if arguments.timings:
        for seconds, label in sorted(timings, reverse=True)[:15]:
            print(f"# {seconds:.2f} s {label}", file=sys.stderr)
    if driver.dead:
        report.not_ok(f"{arguments.client}/driver", driver.dead)
    await driver.stop()
    report.exit()


if __name__ == "__main__":
    os.environ.setdefault("PYTHONDONTWRITEBYTECODE", "1")
    asyncio.run(main())
