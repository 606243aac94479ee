"""The async client: changes of a table as they come, snapshots on request, schemas."""

from headwater.creek.client.client import Client, connect
from headwater.creek.client.snapshots import SnapshotInfo, SnapshotReader
from headwater.creek.client.wal import WalStream

__all__ = ["Client", "SnapshotInfo", "SnapshotReader", "WalStream", "connect"]
