"""What a client's packet may do: every packet of a client passes here before a role of the broker sees it.

The permissions of an identity are `Rights`. `permit` returns the packet that the roles carry out: its filter is the part that the
identity may see, and its names are those of the identity, so that nobody reaches the durable names, writers or advertisements of
another. A packet that is not listed here is refused: a new packet is closed until somebody decides who may send it.

Three things cannot be decided from the packet alone. The rows of a publisher are compared with the permission where they are
taken (`publishing`), lists of names show only one's own (`range_reads`), and a message that another broker sends as an answer is
compared before it goes to the client (`tracking.tap`).

Where nobody has to prove who he is, all have `OPEN`, the owner has no name, and packets pass unchanged.
"""

from __future__ import annotations

import msgspec

from postroad.core.broker.context import Context
from postroad.core.protocol import admission as a
from postroad.core.protocol import packets as p
from postroad.core.protocol.rights import OPEN, Rights
from postroad.errors import WrongRoleError


def permit(message: p.Packet, rights: Rights, context: Context) -> p.Packet:
    """Return what a client may have carried out of its packet; raise `PermissionDeniedError` if nothing of it."""
    if rights is OPEN:
        return message
    match message:
        case p.Publish() | p.PublishColumns() | p.OpenPublisher():
            rights.publishable()
            return message
        case p.Subscribe():
            name = None if message.name is None else rights.own_name(message.name)
            return msgspec.structs.replace(message, filter=str(context.permitted_filter(rights, message.filter)), name=name)
        case p.Acknowledge() | p.AcknowledgeRows() | p.Flow() | p.Unsubscribe():
            return message  # they name a handle of this connection
        case p.ReadRange() | a.ExplainAdmission():
            return msgspec.structs.replace(message, filter=str(context.permitted_filter(rights, message.filter)))
        case p.ListPubends():
            if not rights.admin and rights.subscribe is None:
                raise rights.denied("list what can be read")
            from_the_start = rights.admin and not message.after
            return message if from_the_start else msgspec.structs.replace(message, after=rights.own_name(message.after, least=0))
        case p.OpenEpoch() | p.SealEpoch():
            rights.publishable()
            return msgspec.structs.replace(message, name=rights.own_name(message.name))
        case a.Advertise() | a.Unadvertise():
            rights.publishable()
            name = None if message.name is None else rights.own_name(message.name)
            return msgspec.structs.replace(message, name=name)
        case p.LimitLink() | a.AskAdmission():
            rights.administer()
            return message
        case _:
            raise WrongRoleError(f"a client must not send {type(message).__name__}")
