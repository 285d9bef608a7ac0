"""Holds a measurement against what its link can carry: links times rate times payload. Pure."""

from __future__ import annotations

from egmctl.model.measurement import Measurement, Pattern, Quantity
from egmctl.model.profile import Profile
from egmctl.model.verdict import Grade, Judgement, Yardstick

WARN_BELOW, FAIL_BELOW = 0.5, 0.25
"""Parts of the link's payload rate. Chosen: of the healthy paths in docs/profiles.md the least is 55 % (kernels reading
host memory over PCIe on H100); a quarter is what a link of two PCIe generations less, or of a quarter of the lanes,
carries."""
MORE_THAN_IT_CARRIES = 1.01
"""Above this the bytes cannot all have crossed the link: they came from a cache, or took another way."""

_ONE_WAY = (Pattern.PAIR, Pattern.ONE_TO_ALL, Pattern.ALL_TO_ONE)
"""All bytes of these cross one GPU's link in one direction."""


def against_link(measurement: Measurement, value: float, profile: Profile | None) -> Judgement:
    """Judge by the link's nominal rate, as the driver reports it or, where it does not, the profile."""
    if measurement.quantity is not Quantity.BANDWIDTH:
        return _none(value, "a link's rate does not bound a latency")
    if measurement.pattern not in _ONE_WAY:
        return _none(value, "its flows do not share one link in one direction")
    route = measurement.flows[0].route
    if measurement.flows[0].through_gpu and route.across_nodes:
        return _none(value, "its bytes go through a GPU from link to link: what that reaches is not known")
    if measurement.flows[0].through_gpu:
        return _none(value, "its bytes cross the GPU's link in both directions")
    if any(flow.route.staged for flow in measurement.flows):
        return _none(value, "staged through host memory: what that reaches of its links is not known")
    link = route.first_link
    if link is None:
        return _none(value, "it crosses no known link")
    limit, source = route.at_most_gb_s, "nominal: the links and their rate as the driver reports them"
    facts = next((facts for facts in (profile.links if profile else ()) if facts.link == link), None)
    if limit is None and facts is not None and profile is not None and len(route.hops) == 1:
        limit, source = facts.gb_s, f"{profile.sources[facts.source].kind}: {profile.sources[facts.source].text}"
    if limit is None:
        return _none(value, "the link's rate is not known")
    part = value / limit
    grade = Grade.FAIL if part < FAIL_BELOW else Grade.WARN if part < WARN_BELOW else Grade.PASS
    reason = f"{measurement.path}: {value:.4g} GB/s is {100 * part:.0f} % of its link's {limit:.4g} GB/s"
    if part > MORE_THAN_IT_CARRIES:
        grade, reason = Grade.WARN, f"{reason}: not all bytes can have crossed the link"
    return Judgement(
        yardstick=Yardstick.LINK,
        grade=grade,
        reason=reason,
        value=value,
        expected=limit,
        warn=WARN_BELOW * limit,
        fail=FAIL_BELOW * limit,
        source=source,
    )


def _none(value: float, why: str) -> Judgement:
    return Judgement(yardstick=Yardstick.LINK, grade=Grade.NO_REFERENCE, reason=why, value=value)
