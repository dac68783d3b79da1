"""Tasks: digests that follow the content and nothing else, and file trees."""

import dataclasses
import io
import tarfile

import pytest

from pytest_hermes.errors import TaskError
from pytest_hermes.limits import DEFAULTS, Limits
from pytest_hermes.task import DirectoryFiles, ImageBuild, InlineFiles, SandboxSpec, Script, Task, slug

TASK = Task(id="t", prompt="p", tests=Script(InlineFiles({"test.sh": "exit 0"}), "test.sh"), data={"a": 1})


@pytest.mark.parametrize(
    "change",
    [
        {"prompt": "q"},
        {"tests": Script(InlineFiles({"test.sh": "exit 1"}), "test.sh")},
        {"sandbox": SandboxSpec(image="x")},
        {"limits": Limits(agent_s=5)},
        {"data": {"a": 2}},
        {"files": InlineFiles({"x": "1"})},
    ],
    ids=lambda change: next(iter(change)),
)
def test_the_digest_follows_what_is_asked_and_judged(change):
    assert dataclasses.replace(TASK, **change).digest != TASK.digest


def test_the_digest_does_not_follow_where_the_task_was_read():
    assert dataclasses.replace(TASK, source="elsewhere").digest == TASK.digest


def test_the_digest_of_a_build_is_its_content_wherever_it_lies(tmp_path):
    digests = set()
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "Dockerfile").write_text("FROM x")
        digests.add(dataclasses.replace(TASK, sandbox=SandboxSpec(build=ImageBuild(tmp_path / name))).digest)
    assert len(digests) == 1
    (tmp_path / "b" / "Dockerfile").write_text("FROM y")
    assert dataclasses.replace(TASK, sandbox=SandboxSpec(build=ImageBuild(tmp_path / "b"))).digest not in digests


def test_a_directory_becomes_a_tar_with_modes(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "run.sh").write_text("echo hi")
    (tmp_path / "run.sh").chmod(0o755)
    (tmp_path / "sub" / "data.bin").write_bytes(b"\x00\xff")
    with tarfile.open(fileobj=io.BytesIO(DirectoryFiles(tmp_path).tar())) as archive:
        assert archive.getnames() == ["run.sh", "sub/data.bin"]
        assert archive.getmember("run.sh").mode == 0o755
        assert archive.extractfile("sub/data.bin").read() == b"\x00\xff"


def test_a_link_out_of_the_directory_is_refused(tmp_path):
    (tmp_path / "task").mkdir()
    (tmp_path / "secret").write_text("key")
    (tmp_path / "task" / "link").symlink_to(tmp_path / "secret")
    with pytest.raises(TaskError, match="a link out of the task's directory"):
        DirectoryFiles(tmp_path / "task").tar()


@pytest.mark.parametrize(
    ("text", "expected"), [("Data Science", "data_science"), ("c++", "c"), ("über-hard", "ber_hard"), ("!", "none")]
)
def test_slugs_fit_into_mark_expressions(text, expected):
    assert slug(text) == expected


def test_limits_fill_up_and_scale():
    limits = Limits(agent_s=10, max_turns=3).over(DEFAULTS).scaled(2)
    assert (limits.agent_s, limits.verify_s, limits.max_turns) == (20, 1200, 3)
