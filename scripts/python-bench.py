"""The measurements of python-bench.sh: IMAGE DEVICE MOUNT ROUNDS FLOOR_OF_READS FLOOR_OF_WALKS.

DEVICE has a copy of IMAGE, and is mounted at MOUNT: both sides read it.
"""

import mmap
import os
import random
import statistics
import sys
import time

import uext4
from dissect.extfs import ExtFS

READS = 100_000
# Sides take turns after so many reads, so that other work on the machine slows both down.
TURN = 1000
BLOCK = 4096


def timed(work):
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def reads(device, mount):
    """Seconds of the reads, as (name, ours, theirs)."""
    rng = random.Random(7)
    size = os.path.getsize(f"{mount}/data")
    places = [rng.randrange(size // BLOCK) * BLOCK for _ in range(READS)]
    aligned = mmap.mmap(-1, BLOCK)
    with uext4.open(device, read_only=True, force=True, page_budget=256 << 20) as volume:
        for name, direct, memory, flags in (
            ("from memory", False, bytearray(BLOCK), 0),
            ("direct", True, aligned, os.O_DIRECT),
        ):
            with volume.open("/data", "rb", 0, direct=direct) as file:
                descriptor = os.open(f"{mount}/data", os.O_RDONLY | flags)

                def ours(places, preadinto=file.preadinto):
                    for pos in places:
                        preadinto(memory, pos)

                def theirs(places, preadv=os.preadv, buffers=[memory]):
                    for pos in places:
                        preadv(descriptor, buffers, pos)

                turns = [places[start : start + TURN] for start in range(0, READS, TURN)]
                # The first time for the caches.
                for _ in range(2):
                    times = [(timed(lambda: ours(turn)), timed(lambda: theirs(turn))) for turn in turns]
                yield name, *(sum(side) for side in zip(*times))
                os.close(descriptor)


def our_walk(image):
    with uext4.open(image, read_only=True) as volume:
        return sum(entry.stat().st_size + len(entry.path) for entry in volume.walk("/"))


def dissect_walk(image):
    with open(image, "rb") as file:
        waiting, total = [("", ExtFS(file).root)], 1
        while waiting:
            path, directory = waiting.pop()
            total += directory.size
            for name, node in directory.listdir().items():
                if name in (".", ".."):
                    continue
                below = f"{path}/{name}"
                total += len(below)
                if node.filetype == 0o040000:
                    waiting.append((below, node))
                else:
                    total += node.size
        return total


def main():
    image, device, mount, rounds, floor_reads, floor_walks = sys.argv[1:]
    assert our_walk(image) == dissect_walk(image), "the walks find different things"
    ratios = {}
    for _ in range(int(rounds)):
        for name, ours, theirs in reads(device, mount):
            ratios.setdefault(name, []).append((theirs / ours, ours, theirs))
        ours, theirs = timed(lambda: our_walk(image)), timed(lambda: dissect_walk(image))
        ratios.setdefault("walk", []).append((theirs / ours, ours, theirs))
    failed = False
    for name, found in ratios.items():
        ratio, ours, theirs = (statistics.median(column) for column in zip(*found))
        least, most = min(found)[0], max(found)[0]
        if name == "walk":
            text = f"walk: uext4 {ours * 1000:.1f} ms, dissect.extfs {theirs * 1000:.0f} ms"
        else:
            text = f"4 KiB reads {name}: preadinto {ours / READS * 1e6:.2f} us, os.preadv {theirs / READS * 1e6:.2f} us"
        print(f"python-bench: {text}; {ratio:.2f} times as fast ({least:.2f} to {most:.2f})")
        failed |= ratio < {"from memory": float(floor_reads), "walk": float(floor_walks)}.get(name, 0)
    if failed:
        sys.exit("python-bench: below the floor")


main()
