"""A disk whose every call is announced, for tests that let the nth one go wrong."""

from __future__ import annotations

from callslip.runtime import durable


class CountedDisk(durable.System):
    """Calls `on_call` before each call that changes the disk."""

    def on_call(self) -> None:
        raise NotImplementedError

    def create(self, path):
        self.on_call()
        return super().create(path)

    def write(self, descriptor, data):
        self.on_call()
        return super().write(descriptor, data)

    def sync(self, descriptor):
        self.on_call()
        super().sync(descriptor)

    def rename(self, old, new):
        self.on_call()
        super().rename(old, new)

    def remove(self, path):
        self.on_call()
        super().remove(path)

    def make_folder(self, path):
        self.on_call()
        super().make_folder(path)
