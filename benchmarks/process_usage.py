"""What processes use: the memory of a tree of them, and the processor time of one and its children."""

from typing import Final

import psutil

MB: Final = 1_000_000


def memory_of(pid: int) -> tuple[int, int, int]:
    """The bytes of Java and of all else in a tree of processes, shared pages once; and of all, as often as they are seen."""
    java = others = resident = 0
    for process in _tree(pid):
        try:
            is_java, rss = process.name() == "java", process.memory_info().rss
            share = rss if is_java else process.memory_full_info().pss
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            # It has ended in the meantime.
            continue
        resident += rss
        java, others = (java + share, others) if is_java else (java, others + share)
    return java, others, resident


def _tree(pid: int) -> list[psutil.Process]:
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def cpu_of(server: psutil.Process) -> float:
    """Of a process, of its children, and of those of them that have ended, which are counted for it when they are gone."""
    while True:
        children = server.children()
        try:
            own, theirs = server.cpu_times(), [child.cpu_times() for child in children]
        except psutil.NoSuchProcess:
            continue
        # Otherwise one that ended meanwhile may be missing, or be there twice.
        if server.children() == children:
            ended = own.children_user + own.children_system
            return float(ended + sum(times.user + times.system for times in (own, *theirs)))
