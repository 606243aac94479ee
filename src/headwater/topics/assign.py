"""Who reads which partition of a topic in a group. Pure.

The same for all who look at the same state, so that nobody has to be asked.
"""

from collections.abc import Mapping, Sequence
from uuid import UUID


def assign(members: Sequence[UUID], owners: Mapping[int, UUID | None]) -> dict[int, UUID]:
    """An owner for each partition, of those who are there: none has two more than another, and as few as possible change.

    Those who have the most already are the ones who may have one more.
    """
    if not members:
        return {}
    held: dict[UUID, list[int]] = {member: [] for member in members}
    for partition, owner in sorted(owners.items()):
        if owner in held:
            held[owner].append(partition)
    least, more = divmod(len(owners), len(held))
    assigned: dict[int, UUID] = {}
    rooms: list[tuple[UUID, int]] = []
    for place, member in enumerate(sorted(held, key=lambda one: (-len(held[one]), one))):
        most = least + (place < more)
        kept = held[member][:most]
        assigned.update(dict.fromkeys(kept, member))
        rooms.append((member, most - len(kept)))
    heirs = (member for member, room in rooms for _ in range(room))
    free = (partition for partition in sorted(owners) if partition not in assigned)
    return assigned | dict(zip(free, heirs, strict=True))


def moves(members: Sequence[UUID], owners: Mapping[int, UUID | None]) -> dict[int, UUID]:
    """What has to change hands, and to whom."""
    return {partition: member for partition, member in assign(members, owners).items() if owners[partition] != member}
