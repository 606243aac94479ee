"""Transactional e-mail on the queue: messages handed over in a transaction or by HTTP, sent by SMTP or an HTTP API."""

from headwater.comms.message import Attachment, Email
from headwater.comms.session import prepare_comms, require_comms
from headwater.comms.settings import ApiSettings, SendSettings
from headwater.comms.submit import enqueue, enqueue_sync

__all__ = [
    "ApiSettings",
    "Attachment",
    "Email",
    "SendSettings",
    "enqueue",
    "enqueue_sync",
    "prepare_comms",
    "require_comms",
]
