"""Makes each row of a report again from the samples: a second implementation of the lab's statistics.

    recompute.py ROWS SAMPLES CAMPAIGN

ROWS is a report's rows.json and SAMPLES a campaign's samples.jsonl, or samples.jsonl.gz. Each value must be the same to nine
digits, each end of an interval to MAX_SHIFT of its width or MAX_TAIL of the draws beyond it (other draws of the
repetitions), and each verdict that of the interval. The last line counts what was checked; the exit status is 1 where
something differs. docs/lab.md says what the rows mean. Needs Python 3.9 and numpy.
"""

import functools
import gzip
import itertools
import json
import math
import sys

import numpy

RESAMPLES = 10_000
MIN_REPETITIONS = 5
# Of up to so many repetitions all draws are made, so that the ends are exact.
MAX_EXACT_REPETITIONS = 7
# Of the interval's width: other draws move its ends by so much.
MAX_SHIFT = 0.12
# Of the draws beyond an end: by so much their number differs with other draws. Counts have few different
# draws, so that an end may move by a whole step.
MAX_TAIL = 1.5
AXES = ("link", "loss", "transport", "qos", "payload_bytes", "interval", "delay", "rate", "messages")


def chosen(samples, grid, cells):
    """The samples of some cells."""
    wanted = {axis: cells[axis] for axis in AXES if cells.get(axis) is not None}
    return [
        sample
        for sample in samples
        if sample["grid"] == grid and all(sample[axis] == value for axis, value in wanted.items())
    ]


def by_repetition(samples, name):
    """For each repetition the values of its runs, an array each."""
    found = {}
    for sample in samples:
        values = sample["series"].get(name) or [sample["metrics"].get(name)]
        if values != [None]:
            found.setdefault(sample["repetition"], []).append(numpy.array(values, dtype=float))
    return found


class Side:
    """A statistic of all values of some repetitions."""

    def __init__(self, name, runs):
        self.name = name
        self.numbers = sorted(runs)
        self.values = [numpy.concatenate(runs[number]) for number in self.numbers]
        self.counts = numpy.array([len(values) for values in self.values], dtype=float)
        if name in (None, "mean", "sd", "rsd"):
            # Sums around the middle lose no digits.
            self.middle = numpy.concatenate(self.values).mean() if self.values else 0.0
            self.sums = numpy.array([(values - self.middle).sum() for values in self.values])
            self.squares = numpy.array([((values - self.middle) ** 2).sum() for values in self.values])
        elif name == "run_max":
            self.counts = numpy.array([len(runs[number]) for number in self.numbers], dtype=float)
            self.sums = numpy.array([sum(run.max() for run in runs[number]) for number in self.numbers])

    def of(self, draws):
        """The statistic for each draw, which is a line of repetitions."""
        places = numpy.searchsorted(self.numbers, draws)
        counts = self.counts[places].sum(axis=1)
        if self.name == "count":
            return counts
        if self.name == "run_max":
            return self.sums[places].sum(axis=1) / counts
        if self.name in (None, "mean", "sd", "rsd"):
            shift = self.sums[places].sum(axis=1) / counts
            if self.name in (None, "mean"):
                return self.middle + shift
            squares = self.squares[places].sum(axis=1) - counts * shift**2
            deviation = numpy.sqrt(numpy.maximum(squares, 0.0) / numpy.maximum(counts - 1, 1.0))
            return deviation if self.name == "sd" else deviation / (self.middle + shift)
        drawn = (numpy.concatenate([self.values[place] for place in line]) for line in places)
        if self.name == "max":
            return numpy.array([values.max() for values in drawn])
        part = float(self.name[1:])
        return numpy.array([numpy.percentile(values, part) for values in drawn])


class Term:
    """What a row's recipe makes of each draw of repetitions."""

    def __init__(self, recipe, samples):
        self.recipe = recipe
        name, _, self.statistic = recipe["metric"].partition(".")
        self.statistic = self.statistic or None
        filters = [recipe["at"]] + ([recipe["against"]] if recipe["against"] else [])
        found = [chosen(samples, recipe["grid"], cells) for cells in filters]
        self.sides = [
            Side(self.statistic, by_repetition([one for one in side if one["verdict"] == "sound"], name))
            for side in found
        ]
        self.unsuccessful = sum(
            one["verdict"] in ("incomplete", "failed") for side in found for one in side
        )

    def shared(self):
        return set.intersection(*(set(side.numbers) for side in self.sides))

    def of(self, draws):
        values = [side.of(draws) for side in self.sides]
        value = values[0]
        if len(values) == 2:
            value = values[1] - value if self.recipe["difference"] else value / values[1]
        if self.recipe["reduction"]:
            value = 100.0 * (1.0 - value)
        return value - self.recipe["minus"]


def made(row, values):
    """What the row makes of its terms."""
    if row["made"] == "value":
        return values[0]
    if row["made"] == "difference":
        return values[0] - values[1]
    if row["made"] == "rise":
        return (values[1] - values[0]) - (values[3] - values[2])
    return values[-1] / values[0] - 1.0


@functools.cache
def student(degrees):
    """The 97.5 % quantile of Student's t: its density is summed up until it is reached."""
    grid = numpy.linspace(0.0, 60.0, 600_001)
    density = (1.0 + grid**2 / degrees) ** (-(degrees + 1) / 2)
    log_scale = math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2)
    density *= math.exp(log_scale) / math.sqrt(degrees * math.pi)
    step = grid[1] - grid[0]
    below = 0.5 + numpy.concatenate([[0.0], numpy.cumsum((density[1:] + density[:-1]) / 2 * step)])
    return float(numpy.interp(0.975, below, grid))


def tail(count):
    """The part of the draws beyond either end (the expanded percentile interval, Hesterberg 2015)."""
    deviations = math.sqrt(count / (count - 1)) * student(count - 1)
    return 0.5 * math.erfc(deviations / math.sqrt(2.0))


def interval(row, terms, shared, random):
    """The interval that draws of whole repetitions give; None where there is none.

    Two further pairs have the places that each end could have with other draws.
    """
    if len(shared) < MIN_REPETITIONS or any(term.statistic == "max" for term in terms):
        return None
    count = len(shared)
    if count <= MAX_EXACT_REPETITIONS:
        kinds = list(itertools.combinations_with_replacement(shared, count))
        parts = [math.factorial(count) / float(count) ** count for _ in kinds]
        for place, kind in enumerate(kinds):
            for number in set(kind):
                parts[place] /= math.factorial(kind.count(number))
    else:
        # The order of a draw changes nothing, so equal draws are made once.
        drawn = numpy.sort(random.choice(shared, size=(RESAMPLES, count)), axis=1)
        kinds, times = numpy.unique(drawn, axis=0, return_counts=True)
        parts = times / RESAMPLES
    results = made(row, [term.of(numpy.array(kinds)) for term in terms])
    if not numpy.isfinite(results).all():
        return None
    order = numpy.argsort(results)
    below = numpy.cumsum(numpy.array(parts)[order])
    above = numpy.cumsum(numpy.array(parts)[order][::-1])
    parts_beyond = [tail(count) * factor for factor in (1.0, 1.0 / MAX_TAIL, MAX_TAIL)]
    lows = [results[order][numpy.searchsorted(below, part)] for part in parts_beyond]
    highs = [results[order][::-1][numpy.searchsorted(above, part)] for part in parts_beyond]
    return (lows[0], highs[0]), lows[1:], highs[:0:-1]


def verdict(row, low, high):
    """The verdict of an interval; None of rows whose verdict needs more than it."""
    if row["made"] == "change" or row["agreement"] == "not-tested":
        return None
    if low is None:
        return "undecided"
    if row["made"] == "value":
        least = -math.inf if row["least"] is None else row["least"]
        most = math.inf if row["most"] is None else row["most"]
        if least <= low and high <= most:
            return "agree"
        return "disagree" if high < least or most < low else "undecided"
    if high < 0.0:
        return "agree"
    return "disagree" if low >= 0.0 else "undecided"


def complaint(row, samples, random):
    """What is wrong with a row, if anything."""
    terms = [Term(recipe, samples) for recipe in row["terms"]]
    shared = sorted(set.intersection(*(term.shared() for term in terms)))
    if len(shared) != row["repetitions"]:
        return f"{len(shared)} repetitions instead of {row['repetitions']}"
    value = made(row, [term.of(numpy.array([shared])) for term in terms])[0]
    if not math.isclose(value, row["value"], rel_tol=1e-9, abs_tol=1e-9):
        return f"{value} instead of {row['value']}"
    if sum(term.unsuccessful for term in terms) != row["unsuccessful"]:
        return f"not {row['unsuccessful']} runs failed or lost messages"
    made_interval = interval(row, terms, shared, random)
    ends, lows, highs = made_interval or (None, None, None)
    if (ends is None) != (row["low"] is None):
        return f"the interval is {ends} instead of {row['low']} to {row['high']}"
    if ends is not None:
        width = max(row["high"] - row["low"], ends[1] - ends[0])
        shift = max(abs(ends[0] - row["low"]), abs(ends[1] - row["high"]))
        is_exact = len(shared) <= MAX_EXACT_REPETITIONS
        rounding = 1e-9 * max(1.0, abs(value))
        is_step = not is_exact and all(
            least - rounding <= end <= most + rounding
            for (least, most), end in ((lows, row["low"]), (highs, row["high"]))
        )
        if shift > (0.0 if is_exact else MAX_SHIFT) * width + rounding and not is_step:
            return f"the interval is {ends} instead of {row['low']} to {row['high']}"
    wanted = verdict(row, row["low"], row["high"])
    if wanted == "agree" and row["unsuccessful"] > 0:
        wanted = "undecided"
    if wanted is not None and wanted != row["agreement"]:
        return f"{wanted} instead of {row['agreement']}"
    return None


def main(rows_path, samples_path, campaign):
    with open(rows_path, encoding="utf-8") as file:
        rows = json.load(file)[campaign]
    unpack = gzip.open if samples_path.endswith(".gz") else open
    with unpack(samples_path, "rt", encoding="utf-8") as file:
        samples = [json.loads(line) for line in file]
    random = numpy.random.default_rng(1)
    wrong = 0
    for row in rows:
        text = complaint(row, samples, random)
        if text:
            wrong += 1
            print(f"{row['claim']} row {row['number']} ({row['cell']}): {text}", file=sys.stderr)
    intervals = sum(row["low"] is not None for row in rows)
    print(f"{len(rows)} rows, {intervals} with intervals, {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
