#!/usr/bin/env python3
"""mount-stress.py data|names DIRECTORY SEED SECONDS: changes files, or names, at random, and compares with a model."""
import ctypes
import mmap
import os
import random
import stat
import sys
import time

MOST = 6 << 20
BLOCK = 4096
libc = ctypes.CDLL(None, use_errno=True)
KEEP, PUNCH, ZERO = 1, 3, 16


def allocate(fd, mode, pos, length):
    if libc.fallocate(fd, mode, ctypes.c_long(pos), ctypes.c_long(length)) != 0:
        raise OSError(ctypes.get_errno(), f"fallocate {mode}")


def expect(what, found, wanted):
    if found != wanted:
        sys.exit(f"{what}: another answer than the model's: {str(found)[:200]}, not {str(wanted)[:200]}")


class Data:
    """A file, opened for cached and for direct I/O, and its bytes."""

    def __init__(self, root, rng):
        self.path, self.rng, self.bytes = os.path.join(root, "file"), rng, bytearray()
        self.cached = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        self.direct = os.open(self.path, os.O_RDWR | os.O_DIRECT)
        self.memory = mmap.mmap(-1, 256 << 10)

    def put(self, pos, data):
        if len(self.bytes) < pos + len(data):
            self.bytes.extend(bytes(pos + len(data) - len(self.bytes)))
        self.bytes[pos:pos + len(data)] = data

    def step(self):
        rng = self.rng
        pos, length = rng.randrange(MOST - 300_000), rng.randrange(1, 200_000)
        kind = rng.randrange(12)
        if kind < 3:
            data = rng.randbytes(length)
            os.pwrite(self.cached, data, pos)
            self.put(pos, data)
        elif kind == 3:
            pos, length = pos // BLOCK * BLOCK, (length % (128 << 10)) // BLOCK * BLOCK + BLOCK
            self.memory[:length] = rng.randbytes(length)
            os.pwrite(self.direct, memoryview(self.memory)[:length], pos)
            self.put(pos, self.memory[:length])
        elif kind == 4 and len(self.bytes) > pos + 1:
            with mmap.mmap(self.cached, len(self.bytes)) as mapped:
                data = rng.randbytes(min(length, len(self.bytes) - pos))
                mapped[pos:pos + len(data)] = data
                self.put(pos, data)
                if rng.random() < 0.5:
                    mapped.flush()
        elif kind == 5:
            os.truncate(self.path, pos)
            del self.bytes[pos:]
            self.bytes.extend(bytes(pos - len(self.bytes)))
        elif kind == 6:
            mode = rng.choice([0, KEEP, PUNCH, ZERO, ZERO | KEEP])
            allocate(self.cached, mode, pos, length)
            end = pos + length
            if not mode & KEEP and len(self.bytes) < end:
                self.bytes.extend(bytes(end - len(self.bytes)))
            if mode in (PUNCH, ZERO, ZERO | KEEP) and pos < len(self.bytes):
                end = min(end, len(self.bytes))
                self.bytes[pos:end] = bytes(end - pos)
        elif kind == 7:
            rng.choice([os.fsync, os.fdatasync])(self.cached)
            expect("size", os.fstat(self.cached).st_size, len(self.bytes))
        elif kind == 8:
            os.close(self.cached)
            self.cached = os.open(self.path, os.O_RDWR)
        elif kind == 9:
            whole = bytearray()
            for at in range(0, len(self.bytes) + 1, 256 << 10):
                whole += self.memory[:os.preadv(self.direct, [self.memory], at)]
            expect("direct read", whole == self.bytes, True)
        else:
            expect("read", os.pread(self.cached, length, pos), bytes(self.bytes[pos:pos + length]))

    def check(self):
        expect("whole file", open(self.path, "rb").read() == self.bytes, True)


class Names:
    """Directories of names, and what they lead to: bytes of a file, the target of a link, None for a directory."""

    def __init__(self, root, rng):
        self.root, self.rng, self.tree, self.number = root, rng, {"": None}, 0

    def real(self, path):
        return os.path.join(self.root, path)

    def some(self, wanted):
        return self.rng.choice([path for path, what in self.tree.items() if wanted(path, what)] or [None])

    def fresh(self):
        self.number += 1
        name = f"{self.number}" + "n" * self.rng.choice([0, 0, 20, 200])
        directory = self.some(lambda path, what: what is None and path.count("/") < 6)
        return os.path.join(directory, name)

    def step(self):
        rng, kind = self.rng, self.rng.randrange(10)
        if len(self.tree) > 400:
            kind = 7
        if kind < 2:
            path = self.fresh()
            os.mkdir(self.real(path))
            self.tree[path] = None
        elif kind < 4:
            path, data = self.fresh(), rng.randbytes(rng.choice([0, 10, 5000]))
            with open(self.real(path), "xb") as file:
                file.write(data)
                if rng.random() < 0.1:
                    os.fsync(file.fileno())
            self.tree[path] = ("file", data)
        elif kind == 4:
            path, target = self.fresh(), "t" * rng.choice([1, 59, 60, 900])
            os.symlink(target, self.real(path))
            self.tree[path] = ("link", target)
        elif kind == 5:
            old, path = self.some(lambda _, what: what and what[0] == "file"), self.fresh()
            if old:
                os.link(self.real(old), self.real(path))
                self.tree[path] = self.tree[old]
        elif kind == 6:
            self.rename()
        elif kind < 9:
            path = self.some(lambda path, _: path)
            if path is None:
                return
            if self.tree[path] is not None:
                os.unlink(self.real(path))
            elif any(other.startswith(path + "/") for other in self.tree):
                return
            else:
                os.rmdir(self.real(path))
            del self.tree[path]
        else:
            path = self.some(lambda path, what: what and what[0] == "file")
            if path:
                os.chmod(self.real(path), rng.randrange(0o1000))
                os.setxattr(self.real(path), "user.a", b"v" * rng.choice([1, 200]))

    def rename(self):
        old = self.some(lambda path, _: path)
        if old is None:
            return
        new = self.fresh()
        if self.tree[old] is not None and self.rng.random() < 0.5:
            new = self.some(lambda _, what: what is not None)
        if new == old or new.startswith(old + "/"):
            return
        same = os.stat(self.real(old), follow_symlinks=False)
        one = os.path.lexists(self.real(new)) and os.lstat(self.real(new)).st_ino == same.st_ino
        os.rename(self.real(old), self.real(new))
        if one:
            return  # Two names of one file: both stay.
        for path in [path for path in self.tree if path == old or path.startswith(old + "/")]:
            self.tree[new + path[len(old):]] = self.tree.pop(path)

    def check(self):
        found = {"": None}
        for directory, below, files in os.walk(self.root):
            for name in below + files:
                real = os.path.join(directory, name)
                path, mode = os.path.relpath(real, self.root), os.lstat(real).st_mode
                if stat.S_ISLNK(mode):
                    found[path] = ("link", os.readlink(real))
                elif stat.S_ISREG(mode):
                    found[path] = ("file", open(real, "rb").read())
                else:
                    found[path] = None
        expect("names", sorted(found), sorted(self.tree))
        expect("tree", found == self.tree, True)


def main():
    kind, root, seed, seconds = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
    os.mkdir(root)
    play = {"data": Data, "names": Names}[kind](root, random.Random(seed))
    end, steps = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        play.step()
        steps += 1
        if steps % 500 == 0:
            play.check()
    play.check()
    print(steps)


main()
