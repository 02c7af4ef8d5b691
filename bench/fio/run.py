#!/usr/bin/env python3
"""Runs the jobs of this folder against uext4, the kernel's file systems and the raw device, in turn, and reports.

Called by scripts/fio.sh, which makes the devices. Standard library only."""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import report

HERE = Path(__file__).resolve().parent
URING = ["--ioengine=io_uring", "--registerfiles=1", "--fixedbufs=1"]
# Of each shape: its job, the device it runs on, how requests are sent, and the switch that it shows.
SHAPES = {
    "000-overwrite": dict(job="000-overwrite", device="zram", files=32, how="sync",
                          switch="overwrite-no-transaction"),
    "000-overwrite-dax": dict(job="000-overwrite", device="dax", files=32, how="sync",
                              switch="overwrite-no-transaction"),
    "001-shared-read": dict(job="001-shared-read", device="dax", files=2, how="sync", switch="dax-no-dio-count"),
    "001-shared-readwrite": dict(job="001-shared-readwrite", device="dax", files=2, how="sync",
                                 switch="dax-no-dio-count"),
    "002-dsync": dict(job="002-dsync", device="loop", files=1, how="sync", switch="fua-dsync-overwrite"),
    "002-dsync-model": dict(job="002-dsync", device="model", files=1, how="sync", switch="fua-dsync-overwrite"),
    "003-read-synchronous": dict(job="003-read-synchronous", device="zram", files=1, how="sync",
                                 switch="simple-read"),
}
for send, how in (("", "queued"), ("libaio-", "libaio")):
    for depth in (1, 128, 256, 512):
        SHAPES[f"003-read-{send}qd{depth}"] = dict(job="003-read", device="loop", files=1, how=how, depth=depth,
                                                   switch="simple-read")
SHAPES |= {
    "003-read-polled-qd128": dict(job="003-read", device="loop", files=1, how="polled", depth=128,
                                  switch="simple-read"),
    "004-subblock": dict(job="004-subblock", device="loop", files=1, how="libaio",
                         switch="shared-subblock-overwrite"),
    # The patch was measured by libaio. By a ring the kernel's side is at its best.
    "004-subblock-ring": dict(job="004-subblock", device="loop", files=1, how="queued", depth=256,
                              switch="shared-subblock-overwrite"),
}
# Why a kind of device is not there for a flavour.
WHY = {
    "dax": "the kernel maps no file here without persistent memory (make vm-count has it)",
    "model": "the disk with FUA is modelled inside uext4 (make vm-count has one for the kernel)",
}
# The disk that the FUA patch was measured on: 460 µs a plain write, 2240 µs a flush, 2380 µs a FUA write. `null:` keeps
# a copy of the image in memory, which synchronous calls read and write. Nothing reaches the image.
MODEL = "latency=460us&flush_latency=2240us&fua_latency=2380us"
FLAVOURS = ["uext4", "off", "ext4", "xfs", "raw"]


class Bed:
    """What scripts/fio.sh made: a device of each kind for each flavour, the kernel's mounted."""

    def __init__(self, text):
        self.places = dict(part.split("=", 1) for part in text.split(","))

    def place(self, device, flavour):
        """Device, folder or file for a flavour; none if it cannot run there."""
        return self.places.get(f"{device}.{'uext4' if flavour == 'off' else flavour}")


def polls(place):
    """Whether a block device completes by polling."""
    try:
        return (Path("/sys/block") / Path(place).name / "queue/io_poll").read_text().strip() == "1"
    except OSError:
        return False


def has_fua(place):
    """Whether a block device has FUA."""
    try:
        return (Path("/sys/block") / Path(place).name / "queue/fua").read_text().strip() == "1"
    except OSError:
        return False


def lacks(shape, flavour, bed):
    """Why a flavour cannot run, or would measure nothing. None if it can."""
    device, place = shape["device"], bed.place(shape["device"], flavour)
    if place is None:
        return WHY.get(device, "no such device here")
    if shape["how"] == "polled" and not polls(bed.place(device, "raw") or ""):
        return "no device here completes by polling (make vm-count has one)"
    # The switch chooses between a FUA write and a flush behind the write. Without FUA there is only the latter.
    if flavour == "off" and shape["switch"] == "fua-dsync-overwrite" and device != "model" and not has_fua(place):
        return "the device has no FUA, so that on and off are one route (002-dsync-model has it)"
    return None


def engine(shape, flavour, place, options, layout):
    """The options of fio that make a job one of a flavour."""
    if flavour in ("uext4", "off"):
        if shape["device"] == "model" and not layout:
            place = f"null:{place}?{MODEL}"
        chosen = [f"--ioengine=external:{options.engine}", f"--device={place}", "--prepare=1"]
        if shape["how"] != "sync":
            chosen += ["--registered=1", "--queued=1"]
        if shape["how"] == "polled":
            chosen += ["--polled=1"]
        if flavour == "off":
            chosen += [f"--switches={shape['switch']}=off"]
        return chosen
    if shape["device"] == "dax":
        return ["--ioengine=mmap"]
    chosen = {"sync": ["--ioengine=psync"], "queued": URING, "polled": URING + ["--hipri=1"],
              "libaio": ["--ioengine=libaio"]}[shape["how"]]
    return chosen + ([f"--directory={place}"] if flavour != "raw" else [])


def command(name, flavour, place, options, layout=False):
    """A run of fio, and the variables of its job."""
    shape = SHAPES[name]
    count, prefix = shape["files"], shape["job"]
    files, used = [f"{prefix}.{number}" for number in range(count)], count
    if flavour == "raw" and shape["device"] != "dax":
        files, used = [place], 1
    elif flavour == "raw":
        files = [f"{place}/{file}" for file in files]
    depth = shape.get("depth", 1)
    values = dict(FILES=":".join(files), NRFILES=used, SIZE=options.size, RUNTIME=options.runtime, RAMP=options.ramp,
                  QD=depth, BATCH=min(depth, 32), CREATE=int(layout),
                  DIRECT=0 if flavour == "raw" and shape["device"] == "dax" else 1)
    run = ["fio", "--output-format=json", "--unified_rw_reporting=mixed"]
    run += engine(shape, flavour, place, options, layout)
    if shape["device"] == "zram":
        # Only what is all zeros costs zram no compression.
        run += ["--zero_buffers=1"]
    if layout:
        run += ["--create_only=1"]
    return run + [str(HERE / f"{shape['job']}.fio")], {key: str(value) for key, value in values.items()}


def run(name, flavour, place, options, layout=False):
    """Runs a job. Returns what fio says of it."""
    words, values = command(name, flavour, place, options, layout)
    done = subprocess.run(words, env=os.environ | values, capture_output=True, text=True, check=False,
                          cwd=options.out)
    if done.returncode != 0:
        settings = " ".join(f"{key}={value}" for key, value in values.items())
        sys.exit(f"fio failed: {settings} {' '.join(words)}\n{(done.stdout + done.stderr)[-1000:]}")
    if flavour in ("uext4", "off") and (layout or SHAPES[name]["device"] != "model"):
        volume = place.removeprefix("dax:")
        checked = subprocess.run(["e2fsck", "-fn", volume], capture_output=True, text=True, check=False)
        if checked.returncode != 0:
            sys.exit(f"e2fsck finds {volume} damaged after {name} {flavour}:\n{checked.stdout}{checked.stderr}")
    # Engines may say something in front of it.
    return json.loads(done.stdout[done.stdout.index("{\n"):])


def planned(options, bed):
    """Shapes and the flavours that can run of each; says which cannot."""
    plan = {}
    for name in options.only or SHAPES:
        shape, flavours = SHAPES[name], []
        for flavour in options.flavours or FLAVOURS:
            why = lacks(shape, flavour, bed)
            if why:
                print(f"SKIP {name} {flavour}: {why}")
            else:
                flavours.append(flavour)
        if flavours:
            plan[name] = flavours
    return plan


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bed", required=True, help="kind.flavour=place,…")
    parser.add_argument("--engine", required=True, help="target/fio/uext4.so")
    parser.add_argument("--out", required=True, type=Path, help="folder for results")
    parser.add_argument("--size", default="1g")
    parser.add_argument("--runtime", default="3")
    parser.add_argument("--ramp", default="1")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", type=lambda text: text.split(","), help="shapes")
    parser.add_argument("--flavours", type=lambda text: text.split(","))
    options = parser.parse_args()
    unknown = [name for name in options.only or [] if name not in SHAPES]
    if unknown:
        sys.exit(f"no such shape: {', '.join(unknown)}; there are {', '.join(SHAPES)}")
    options.out.mkdir(parents=True, exist_ok=True)
    bed = Bed(options.bed)
    plan = planned(options, bed)
    for name, flavours in plan.items():
        for flavour in flavours:
            if flavour != "raw" or SHAPES[name]["device"] == "dax":
                run(name, flavour, bed.place(SHAPES[name]["device"], flavour), options, layout=True)
    samples = {}
    for turn in range(options.rounds):
        for name, flavours in plan.items():
            # Each round begins with another flavour: none is always the first.
            for flavour in flavours[turn % len(flavours):] + flavours[:turn % len(flavours)]:
                place = bed.place(SHAPES[name]["device"], flavour)
                found = report.sample(run(name, flavour, place, options))
                samples.setdefault(name, {}).setdefault(flavour, []).append(found)
                print(f"round {turn + 1} {name} {flavour}: {found['iops']:.0f} IOPS", flush=True)
    report.write(samples, SHAPES, options)
    print("e2fsck -fn: clean after every job")


if __name__ == "__main__":
    main()
