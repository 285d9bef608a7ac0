"""``egmctl fleet`` as one JSON document, which is ``fleet.json`` of its folder too: ``egmctl.fleet/1``."""

from __future__ import annotations

from egmctl.model.codec import to_json
from egmctl.model.fleet import FLEET_SCHEMA, FleetReport
from egmctl.report.exports.json import dump, envelope


def fleet_json(report: FleetReport) -> str:
    """Return the document's text. Its ``machine`` is null: each node's own file says where its facts are from."""
    return dump(envelope(FLEET_SCHEMA, report.exit_code, to_json(report), machine=None))
