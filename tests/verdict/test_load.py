"""Profiles as files: where they are looked for, what is refused and how, and that every number has a source."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egmctl.api.bench import judge_run, load_profiles
from egmctl.errors import UsageError
from egmctl.files import profiles_dir, read_toml
from egmctl.model.profile import LinkFacts, Reference, Source, SourceKind, Unit
from egmctl.model.verdict import Grade
from egmctl.verdict.judge import judge
from egmctl.verdict.learning import profile_toml
from egmctl.verdict.profiles import FILE_LIMIT, all_profiles, folders, load_profile, parse_profile
from tests.schemas import validate
from tests.verdict.runs import H200, WRITE, run

SHIPPED = sorted(profiles_dir().glob("*.toml"))

GOOD = """\
schema = "egmctl.profile/2"
name = "site"
title = "A node"

[match]
gpu_names = ["NVIDIA H200"]
device_ids = ["10de:2335"]
most_gpus = 8
c2c = false
source = "us"

[sources.us]
kind = "measured"
text = "here"

[[references]]
case = "device_local_copy"
link = "local"
unit = "GB/s"
typical = 2000.0
source = "us"

[[references]]
case = "device_to_device_memcpy_write_ce"
link = "NV18"
unit = "GB/s"
typical = 396.0
warn = 390.0
fail = 380.0
source = "us"
"""


LOCAL = 'case = "device_local_copy"\nlink = "local"'
WRITE_OVER_NV18 = 'case = "device_to_device_memcpy_write_ce"\nlink = "NV18"'
FAIL = "fail = 380.0\n"
ONE_NANOSECOND = 'unit = "GB/s"\ntypical = 2000.0'
FASTER = 'unit = "ns"\ntypical = 1.0'
SITE = Path("site.toml")


@pytest.fixture(autouse=True)
def _no_profiles_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr("egmctl.verdict.profiles.SYSTEM_FOLDER", tmp_path / "etc")


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_every_shipped_profile_fits_the_schema_and_names_the_source_of_each_number(path: Path) -> None:
    document = read_toml(path.read_text())
    validate(document, "profile")
    profile = load_profile(path.stem)
    assert profile.sources, "without a source there is no number"
    for reference in profile.references:
        kind = profile.sources[reference.source].kind
        assert kind in (SourceKind.MEASURED, SourceKind.PUBLISHED), "what a path reaches, somebody has measured"
        bounds = profile.sources.get(reference.bounds_source or reference.source)
        if kind is SourceKind.PUBLISHED:
            assert reference.fail is None or (bounds is not None and "Azure" in bounds.text)
        elif reference.warn is not None or reference.fail is not None:
            assert reference.bounds_source in profile.sources
    for source in profile.sources.values():
        assert len(source.text) > 10
        assert source.kind is not SourceKind.PUBLISHED or (source.url or "").startswith("https://")
        assert source.kind is not SourceKind.MEASURED or (source.machines and source.runs)
    cited = {profile.match.source, *(w.source for w in profile.links)}
    cited |= {profile.healthy.source} if profile.healthy else set()
    cited |= {name for r in profile.references for name in (r.source, r.bounds_source) if name}
    assert cited == set(profile.sources), "a source that nothing cites says nothing"


def test_all_platforms_have_a_profile() -> None:
    assert {path.stem for path in SHIPPED} == {
        *("hgx-a100", "hgx-h100", "hgx-h200", "hgx-b200"),
        *("gh200-480gb", "gh200-120gb", "gh200-144g", "gh200x2-480gb", "gh200x4"),
        *("gb200-tray", "gb200-nvl72", "gb300-nvl72"),
    }


@pytest.mark.parametrize(
    ("old", "new", "line", "what"),
    [
        ("egmctl.profile/2", "egmctl.profile/3", 1, "schema: expected 'egmctl.profile/2'"),
        ('name = "site"', 'name = "other"', 2, "name: expected 'site', the file's name, found 'other'"),
        ("10de:2335", "2335", 7, "match.device_ids[0]: expected a spelling such as 10de:2335, found '2335'"),
        ("most_gpus = 8\n", "", 5, "match: the key 'most_gpus' is missing"),
        ('kind = "measured"', 'kind = "guessed"', 13, "sources.us.kind: expected one of measured, published"),
        ("warn = 390.0", "wran = 390.0", 28, "references[1].wran: there is no such key"),
        ("warn = 390.0", 'warn = "390"', 28, "references[1].warn: expected a number, found '390'"),
        ("warn = 390.0", "warn = -1.0", 28, "references[1].warn: expected a number above 0 and at most 1e+09"),
        ("typical = 2000.0", "typical = 1e308", 20, "references[0].typical: expected a number above 0 and at most"),
        ("typical = 2000.0", "typical = inf", 20, "references[0].typical: expected a number, found inf"),
        ("typical = 2000.0", "typical = nan", 20, "references[0].typical: expected a number, found nan"),
        (ONE_NANOSECOND, FASTER, 20, "references[0].typical: expected at least 50 ns: no GPU reads memory faster"),
        ("warn = 390.0", "run_to_run = -1.0", 28, "references[1].run_to_run: expected a number from 0 to 1"),
        (
            "[sources.us]",
            "[[links]]\nlinks = 18\nrate_gb_s = 1e300\npayload = 0.94\nlink = 'nvlink'\nsource = 'us'\n\n[sources.us]",
            14,
            "links[0].rate_gb_s: expected a number above 0",
        ),
        ("A node", "x" * 5000, 3, "longer than 4096 characters, which no line of a profile is"),
        ("most_gpus = 8", f"most_gpus = 8\n{'.'.join('a' * 20_000)} = 1", 9, "longer than 4096 characters"),
        ("warn = 390.0", "warn = 397.0", 24, "references[1].case: the bounds have to be fail <= warn <= typical"),
        ("warn = 390.0", "warn = [", 29, "not TOML"),
        ("typical = 2000.0\n", "", 17, "references[0].case: it has neither a typical value nor a bound"),
        (WRITE_OVER_NV18, LOCAL, 24, "references[1].case: device_local_copy over local is there already"),
        (f'{FAIL}source = "us"', f'{FAIL}source = "me"', 30, "references[1].source: 'me' is none of the sources: us"),
    ],
)
def test_what_is_broken_is_named_by_file_line_and_key(old: str, new: str, line: int, what: str, tmp_path: Path) -> None:
    path = tmp_path / "site.toml"
    with pytest.raises(UsageError) as refused:
        parse_profile(GOOD.replace(old, new), path)
    assert str(refused.value).startswith(f"profile {path}, line {line}: {what}")


def test_one_case_over_two_links_is_two_references() -> None:
    assert (
        len(parse_profile(GOOD.replace("device_to_device_memcpy_write_ce", "device_local_copy"), SITE).references) == 2
    )


@given(st.text() | st.binary().map(lambda data: data.decode("latin-1")))
def test_any_text_is_a_profile_or_one_sentence(text: str) -> None:
    with pytest.raises(UsageError, match=r"line [0-9]+: "):
        parse_profile(text, SITE)


@pytest.mark.parametrize("lost", range(len(GOOD.splitlines())))
def test_a_profile_that_lost_a_line_is_a_profile_or_one_sentence(lost: int) -> None:
    lines = GOOD.splitlines()
    del lines[lost]
    said = ""
    try:
        parse_profile("\n".join(lines), SITE)
    except UsageError as refused:
        said = str(refused)
    assert re.match(r"(profile site\.toml, line [0-9]+: .+)?$", said)


def test_a_sites_own_profiles_come_before_those_that_ship(tmp_path: Path) -> None:
    users, systems = tmp_path / "config/egmctl/profiles", tmp_path / "etc"
    for folder, title in ((users, "the user's"), (systems, "the system's")):
        folder.mkdir(parents=True)
        (folder / "hgx-h200.toml").write_text(GOOD.replace('"site"', '"hgx-h200"').replace("A node", title))
    (systems / "site.toml").write_text(GOOD)
    names = [(profile.name, profile.title) for profile, _ in all_profiles()]
    assert names[:2] == [("hgx-h200", "the user's"), ("site", "A node")]
    assert [name for name, _ in names].count("hgx-h200") == 1
    assert load_profile("hgx-h200").title == "the user's"


def test_without_a_variable_the_users_are_in_the_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    for value in ("", "relative/config"):
        monkeypatch.setenv("XDG_CONFIG_HOME", value)
        assert folders()[0] == Path("/home/someone/.config/egmctl/profiles")


def test_a_broken_profile_is_not_passed_over(tmp_path: Path) -> None:
    folder = tmp_path / "config/egmctl/profiles"
    folder.mkdir(parents=True)
    (folder / "site.toml").write_text("nonsense")
    with pytest.raises(UsageError, match=r"site\.toml, line 1: not TOML"):
        all_profiles()


def test_a_profile_is_no_larger_than_its_bound(tmp_path: Path) -> None:
    path = tmp_path / "site.toml"
    path.write_text((profiles_dir() / "hgx-h200.toml").read_text().replace('"hgx-h200"', '"site"') + "#" * FILE_LIMIT)
    with pytest.raises(UsageError, match=rf"site\.toml, line 1: larger than {FILE_LIMIT} bytes, which no profile is"):
        load_profile(str(path))


def test_a_profile_that_there_is_none_of_names_those_that_are() -> None:
    with pytest.raises(UsageError, match=r"there is no profile 'dgx'; there are gb200-nvl72, gb200-tray, .*hgx-h200"):
        load_profile("dgx")
    with pytest.raises(UsageError, match="cannot be read: No such file or directory"):
        load_profile("./nowhere.toml")


texts = st.text(st.characters(codec="utf-8"), min_size=1)
numbers = st.floats(50, 1e9)


@pytest.mark.long
@given(texts, texts, st.builds(Source, text=texts, url=st.none() | texts), numbers, st.none() | st.floats(0, 1))
def test_what_is_written_is_read_as_it_was(
    title: str, cited: str, source: Source, number: float, spread: float | None
) -> None:
    kept = parse_profile(GOOD, SITE)
    link = LinkFacts(link="nvlink", links=18, rate_gb_s=number, payload=0.94, source=cited)
    reference = Reference(case=title, link=cited, unit=Unit.NS, typical=number, run_to_run=spread, source=cited)
    sources, references = {**kept.sources, cited: source}, (*kept.references, reference)
    profile = replace(kept, title=title, sources=sources, links=(link,), references=references)
    assert parse_profile(profile_toml(profile), SITE) == profile


def test_a_broken_one_is_passed_over_only_where_somebody_is_told() -> None:
    folder = folders()[0]
    folder.mkdir(parents=True)
    (folder / "broken.toml").write_text("schema = 1")
    (folder / "site.toml").write_text(GOOD)
    with pytest.raises(UsageError, match=r"broken\.toml, line 1"):
        all_profiles()
    told: list[UsageError] = []
    names = [profile.name for profile, _ in all_profiles(told.append)]
    assert "site" in names
    assert len(names) == len(SHIPPED) + 1
    assert [str(error).partition(", line")[0] for error in told] == [f"profile {folder / 'broken.toml'}"]


@pytest.mark.parametrize(
    "text", ["9" * 5000 + " = 1\n", 'name = "' + "x" * 5000 + '"\n', "a = " + "[" * 5000, "a = " + "9" * 5000]
)
def test_what_is_long_is_cut_in_the_sentence(tmp_path: Path, text: str) -> None:
    path = tmp_path / "long.toml"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        load_profile(str(path))
    assert len(str(caught.value)) < 400 + len(str(path))


def test_a_broken_profile_stops_no_run_and_is_named() -> None:
    folder = folders()[0]
    folder.mkdir(parents=True)
    (folder / "broken.toml").write_text("schema = 1")
    profiles = load_profiles()
    assert len(profiles.candidates) == len(SHIPPED)
    assert [sentence.partition(", line")[0] for sentence in profiles.broken] == [f"profile {folder / 'broken.toml'}"]
    judged = judge_run(run(WRITE), H200, profiles)
    assert judged.verdict is not None
    assert judged.verdict.profile == "hgx-h200"
    assert judged.verdict.profile_reason.endswith("; 1 invalid profile not used")


def test_a_profile_that_expects_more_than_the_link_carries_is_blamed_itself_and_not_the_node() -> None:
    references = [
        replace(each, typical=None, warn=None, fail=900.0) if each.case == WRITE else each
        for each in load_profile("hgx-h200").references
    ]
    verdict = judge(run(WRITE), replace(load_profile("hgx-h200"), references=tuple(references)))
    assert verdict.warnings == (
        f"the profile hgx-h200 is wrong: it expects 900 GB/s of {WRITE}, and NV18 carries 450 GB/s",
    )
    assert {each.by_profile for each in verdict.classes} == {Grade.NO_REFERENCE}
