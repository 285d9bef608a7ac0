"""What a failed call of a handle is explained by."""

from __future__ import annotations

import io

from egmctl.api.doctor import judged
from egmctl.facts.error_log import read_failures
from egmctl.model.explanation import Explanations


def explained(text: str) -> Explanations:
    return judged(read_failures(io.BytesIO(text.encode())), None)


def messages_of(result: Explanations) -> list[str]:
    return [each.failure.message for each in result.explanations]
