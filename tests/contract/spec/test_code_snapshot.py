"""Code snapshots: git's list of files, ignore rules at every level, the hash, secrets, links, limits, pins."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from airyard.app.code_archive import tree_hash_of
from airyard.core.code_tree import TreeEntry, tree_hash
from airyard.core.errors import Conflict, UserError
from airyard.spec import listing
from airyard.spec.code_source import CodeSource
from airyard.spec.snapshot import Snapshot, pack

PRIVATE_KEY = "-----BEGIN " + "OPENSSH PRIVATE KEY-----\nabc\n"  # in two parts, so that this file is not one


@pytest.fixture(autouse=True)
def _own_git_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No settings of this machine take part."""
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_SYSTEM", os.devnull)
    monkeypatch.setenv("HOME", str(tmp_path))


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b.invalid", "-c", "init.defaultBranch=main"]
    done = subprocess.run(
        ["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def write(folder: Path, **files: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def repository(folder: Path, **files: str) -> Path:
    write(folder, **files)
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "first", "--allow-empty")
    return folder


def packed(snapshot: Snapshot) -> bytes:
    out = io.BytesIO()
    snapshot.write_tar(out)
    return out.getvalue()


def members(snapshot: Snapshot) -> dict[str, tarfile.TarInfo]:
    """Return what the archive holds; the server must find the same hash in it."""
    assert tree_hash_of(io.BytesIO(packed(snapshot))) == snapshot.tree_hash
    with tarfile.open(fileobj=io.BytesIO(packed(snapshot)), mode="r:gz") as archive:
        return {info.name: info for info in archive}


def names(root: Path, **options: object) -> list[str]:
    snapshot = pack(CodeSource(root=root, **options))  # type: ignore[arg-type]  # the tests pass what it takes
    return sorted(name.removeprefix(root.name + "/") for name in members(snapshot))


def refusal(source: CodeSource, **options: object) -> UserError:
    with pytest.raises(UserError) as caught:
        pack(source, **options)  # type: ignore[arg-type]  # as above
    return caught.value


def test_tracked_and_untracked_files_less_the_ignored_at_every_level(tmp_path: Path) -> None:
    root = repository(
        tmp_path / "code", _dot_gitignore="*.log\n/data\n", a_dot_py="a", deep___dot_gitignore="*.tmp\n"
    )
    write(
        root, b_dot_py="untracked", x_dot_log="no", deep__c_dot_tmp="no", deep__c_dot_py="yes", data__big="no"
    )
    write(root, _dot_DS_Store="no")
    (root / "deep" / "._c").write_text("no")
    (root / "deep" / "__pycache__").mkdir()
    (root / "deep" / "__pycache__" / "c.pyc").write_text("no")
    (root / ".git" / "info" / "exclude").write_text("local.txt\n")
    write(root, local_dot_txt="no")
    assert names(root) == [".gitignore", "a.py", "b.py", "deep/.gitignore", "deep/c.py"]


def test_a_folder_inside_a_repository_and_a_deleted_file(tmp_path: Path) -> None:
    top = repository(tmp_path / "top", _dot_gitignore="*.log\n", sub__a="1", sub__b="2", other="3")
    (top / "sub" / "b").unlink()
    write(top / "sub", x_dot_log="no")
    assert names(top / "sub") == ["a"]


def test_nested_repositories_go_along(tmp_path: Path) -> None:
    root = repository(tmp_path / "code", a="1")
    repository(root / "inner", _dot_gitignore="*.log\n", b="2")
    write(root / "inner", x_dot_log="no")
    assert names(root) == ["a", "inner/.gitignore", "inner/b"]
    git(
        root, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(root / "inner"), "module"
    )
    assert {"module/b", ".gitmodules"} <= set(names(root))


def test_a_plain_folder_honours_gitignore_files(tmp_path: Path) -> None:
    root = write(
        tmp_path / "code", _dot_gitignore="*.log\n!keep.log\n", a="1", x_dot_log="no", keep_dot_log="yes"
    )
    write(root, deep___dot_gitignore="/b\n", deep__b="no", deep__c="yes")
    expected = [".gitignore", "a", "deep/.gitignore", "deep/c", "keep.log"]
    assert names(root) == expected
    assert pack(CodeSource(root=root)).git is None


def test_without_git_a_folder_is_sent_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write(
        tmp_path / "code",
        _dot_gitignore="*.log\n",
        a="1",
        x_dot_log="log",
        deep__b="2",
        _dot_git__config="no",
    )
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not listing.has_git()
    assert names(root) == [".gitignore", "a", "deep/b", "x.log"]


def test_a_folder_that_an_outer_repository_ignores_is_code_all_the_same(tmp_path: Path) -> None:
    top = repository(tmp_path / "top", _dot_gitignore="/scratch\n", a="1")
    write(top / "scratch", b="2")
    assert names(top / "scratch") == ["b"]


def test_include_paths(tmp_path: Path) -> None:
    root = repository(tmp_path / "code", a__x="1", a__y="2", ab__z="3", c="4")
    assert names(root, include_paths=("a", "./c")) == ["a/x", "a/y", "c"]
    assert names(root, include_paths=(".",)) == ["a/x", "a/y", "ab/z", "c"]
    assert names(root, include_paths=("a",), commit="HEAD") == ["a/x", "a/y"]


def test_names_that_are_hard(tmp_path: Path) -> None:
    root = write(tmp_path / "code", a="1")
    for name in ("with space", "newline\nname", "ünïcode", "-dash", ":(glob)x", "quote'\""):
        (root / name).write_text(name)
    with open(os.fsencode(root) + b"/bad-\xff", "wb") as out:
        out.write(b"x")
    plain = pack(CodeSource(root=root))
    assert plain.file_count == 8
    assert os.fsdecode(b"code/bad-\xff") in members(plain)
    git(root, "init", "-q")
    assert pack(CodeSource(root=root)).tree_hash == plain.tree_hash


def test_the_hash_depends_on_paths_contents_and_the_executable_bit_only(tmp_path: Path) -> None:
    one = write(tmp_path / "one" / "code", a="1", deep__b="2")
    two = write(tmp_path / "two" / "code", deep__b="2", a="1")
    os.utime(two / "a", (1, 1))
    (two / "a").chmod(0o600)
    first, second = pack(CodeSource(root=one)), pack(CodeSource(root=two))
    assert first.tree_hash == second.tree_hash
    assert packed(first) == packed(second)
    digest = hashlib.sha256
    assert first.tree_hash == tree_hash(
        [
            TreeEntry(path="code/deep/b", mode=0o644, digest=digest(b"2").hexdigest()),
            TreeEntry(path="code/a", mode=0o644, digest=digest(b"1").hexdigest()),
        ]
    )
    (two / "a").chmod(0o755)
    assert pack(CodeSource(root=two)).tree_hash != first.tree_hash
    (two / "a").chmod(0o644)
    (two / "a").write_text("2")
    assert pack(CodeSource(root=two)).tree_hash != first.tree_hash
    assert pack(CodeSource(root=one.rename(tmp_path / "renamed"))).tree_hash != first.tree_hash


def test_the_archive_holds_one_folder_and_nobody_s_name_or_time(tmp_path: Path) -> None:
    root = write(tmp_path / "code", a="1", run_dot_sh="#!/bin/sh\n")
    (root / "run.sh").chmod(0o770)
    found = members(pack(CodeSource(root=root)))
    assert sorted(found) == ["code/a", "code/run.sh"]
    assert [found[name].mode for name in sorted(found)] == [0o644, 0o755]
    assert {(info.uid, info.gid, info.uname, info.mtime) for info in found.values()} == {
        (0, 0, "", 315532800)
    }


def test_a_file_that_changes_while_it_is_packed_is_noticed(tmp_path: Path) -> None:
    root = write(tmp_path / "code", a="1", b="2")
    snapshot = pack(CodeSource(root=root))
    (root / "a").write_text("other")
    with pytest.raises(Conflict, match="changed while it was packed"):
        packed(snapshot)
    (root / "a").unlink()
    with pytest.raises(Conflict, match="a is gone"):
        packed(snapshot)


def test_links_inside_are_kept_and_links_out_refused(tmp_path: Path) -> None:
    root = write(tmp_path / "code", a="1", deep__b="2")
    (root / "deep" / "up").symlink_to("../a")
    (root / "folder").symlink_to("deep")
    found = members(pack(CodeSource(root=root)))
    assert found["code/deep/up"].linkname == "../a"
    assert found["code/folder"].issym()
    (root / "out").symlink_to("../outside")
    (root / "absolute").symlink_to(root / "a")
    error = refusal(CodeSource(root=root))
    assert error.code == "LINK_LEAVES_CODE"
    assert [item["path"] for item in error.details["links"]] == ["absolute", "out"]


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        (".env", "A=1\n", "an environment file"),
        ("deep/.env.local", "A=1\n", "an environment file"),
        ("id_ed25519", "x", "a private key"),
        ("server.pem", PRIVATE_KEY, "a private key"),
        ("anything.txt", "\n" + PRIVATE_KEY, "a private key"),
        (".aws/credentials", "[default]\n", "cloud credentials"),
        ("sa.json", '{"type": "service_account", "private_key": "x"}', "cloud credentials"),
        (".netrc", "machine x\n", "passwords"),
        (".npmrc", "//registry.invalid/:_authToken=abc\n", "a token"),
        (".databrickscfg", "[DEFAULT]\n", "tokens"),
        ("huggingface/token", "x", "a token"),
        ("settings.py", "KEY = 'hf_" + "A" * 34 + "'\n", "text of the form of an access token"),
        ("notes.md", "ghp_" + "a" * 36, "text of the form of an access token"),
    ],
)
def test_files_that_look_like_secrets_stop_with_their_names(
    name: str, text: str, reason: str, tmp_path: Path
) -> None:
    root = write(tmp_path / "code", a="1")
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)
    error = refusal(CodeSource(root=root))
    assert (error.code, error.details["files"]) == ("SECRET_IN_CODE", [{"path": name, "reason": reason}])
    assert name in error.message
    assert pack(CodeSource(root=root), allow_secrets=True).file_count == 2
    (root / ".gitignore").write_text(f"/{name}\n")
    assert pack(CodeSource(root=root)).file_count == 2


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (".env.example", "A=\n"),
        ("public.pem", "-----BEGIN CERTIFICATE-----\n"),
        ("environment.py", "x"),
        ("config.json", '{"type": "service_account_name"}'),
        (".npmrc", "registry=https://registry.invalid\n//r/:_authToken=${TOKEN}\n"),
        ("doc.md", "like AKIA" + "IOSFODNN7EXAMPLE"),
        ("keys.py", "import x\nPEM = '''\n" + PRIVATE_KEY + "'''"),
    ],
)
def test_files_that_do_not(name: str, text: str, tmp_path: Path) -> None:
    root = write(tmp_path / "code", a="1")
    (root / name).write_text(text)
    assert pack(CodeSource(root=root)).file_count == 2


def test_all_secret_files_are_named_at_once(tmp_path: Path) -> None:
    root = write(tmp_path / "code", _dot_env="1", id_rsa="2", a="3")
    assert [item["path"] for item in refusal(CodeSource(root=root)).details["files"]] == [".env", "id_rsa"]


def test_the_limit_lists_the_largest_files(tmp_path: Path) -> None:
    root = write(tmp_path / "code", **{f"f{index}": "x" * index * 100 for index in range(1, 15)})
    error = refusal(CodeSource(root=root), limit_bytes=5_000)
    assert error.code == "CODE_TOO_LARGE"
    assert "10,500 bytes; the limit is 5,000 bytes" in error.message
    assert [item["path"] for item in error.details["largest"]] == [f"f{index}" for index in range(14, 4, -1)]
    assert pack(CodeSource(root=root), limit_bytes=10_500).size_bytes == 10_500


def test_nothing_to_send(tmp_path: Path) -> None:
    root = write(tmp_path / "code", a_dot_log="1")
    (root / ".gitignore").write_text("*\n")
    assert refusal(CodeSource(root=root)).code == "EMPTY_CODE"


def test_git_state_of_a_working_tree(tmp_path: Path) -> None:
    root = repository(tmp_path / "code", a="1\n", b="2\n")
    git(root, "remote", "add", "origin", "https://me:hunter2@host.invalid/team/code.git?x=1")
    clean = pack(CodeSource(root=root))
    assert clean.git is not None
    assert clean.git.base_commit == git(root, "rev-parse", "HEAD")
    assert (clean.git.branch, clean.git.repo_url) == ("main", "https://host.invalid/team/code.git")
    assert (clean.git.dirty, clean.git.diff_status, clean.diff) == (False, "clean", None)
    write(root, a="changed\n")
    dirty = pack(CodeSource(root=root))
    assert dirty.git is not None
    assert (dirty.git.dirty, dirty.git.diff_status) == (True, "captured")
    assert dirty.diff is not None
    assert b"+changed" in dirty.diff
    assert dirty.git.diff_bytes == len(dirty.diff)
    assert dirty.tree_hash != clean.tree_hash
    assert dirty.reference().git == dirty.git


def test_the_diff_is_named_by_its_hash_and_applies(tmp_path: Path) -> None:
    root = repository(tmp_path / "code", a="1\r\nä\n", b="2\n")
    for setting in ("diff.noprefix", "diff.mnemonicPrefix"):
        git(root, "config", setting, "true")
    clean = pack(CodeSource(root=root))
    assert clean.git is not None
    assert clean.git.diff_hash is None
    write(root, a="1\r\nö\n")
    (root / "b").unlink()
    dirty = pack(CodeSource(root=root))
    assert dirty.git is not None
    assert dirty.diff is not None
    assert dirty.git.diff_hash == hashlib.sha256(dirty.diff).hexdigest()
    assert dirty.reference().to_json()["git"]["diff_hash"] == dirty.git.diff_hash
    git(root, "checkout", "-q", ".")
    (tmp_path / "diff.patch").write_bytes(dirty.diff)
    git(root, "apply", str(tmp_path / "diff.patch"))
    assert pack(CodeSource(root=root)).tree_hash == dirty.tree_hash


def test_a_diff_that_is_no_utf8_stays_here(tmp_path: Path) -> None:
    root = repository(tmp_path / "code", a="1\n")
    (root / "a").write_bytes("Süd\n".encode("latin-1"))
    found = pack(CodeSource(root=root))
    assert found.git is not None
    assert (found.git.diff_status, found.git.diff_hash, found.diff) == ("not_text", None, None)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("_dot_env", "PASSWORD=hunter2\n"),
        ("sub dir___dot_env", "PASSWORD=hunter2\n"),
        ("key_dot_pem", "-----BEGIN PRIVATE KEY-----\nabc\n"),
        ("settings_dot_py", "TOKEN = 'dapi" + "0" * 32 + "'\n"),
    ],
)
def test_a_secret_that_was_taken_out_does_not_leave_by_the_diff(tmp_path: Path, name: str, text: str) -> None:
    root = repository(tmp_path / "code", a="1\n", **{name: text})
    (root / name.replace("__", "/").replace("_dot_", ".")).unlink()
    found = pack(CodeSource(root=root))
    assert found.git is not None
    assert (found.git.diff_status, found.git.diff_hash, found.diff) == ("looks_secret", None, None)


def test_git_state_bounds_and_corners(tmp_path: Path) -> None:
    root = repository(tmp_path / "code", a="1\n")
    write(root, new="untracked")
    untracked = pack(CodeSource(root=root)).git
    assert untracked is not None
    assert (untracked.dirty, untracked.diff_status) == (True, "clean")
    write(root, a="x\n" * (1 << 20))
    large = pack(CodeSource(root=root))
    assert large.git is not None
    assert (large.git.diff_status, large.diff) == ("size_exceeded", None)
    fresh = write(tmp_path / "fresh", a="1")
    git(fresh, "init", "-q")
    unborn = pack(CodeSource(root=fresh)).git
    assert unborn is not None
    assert (unborn.base_commit, unborn.branch, unborn.dirty) == (None, "main", True)
    git(root, "checkout", "-q", "-f", "--detach")
    detached = pack(CodeSource(root=root)).git
    assert detached is not None
    assert detached.branch is None


def test_a_pinned_commit_leaves_changes_out(tmp_path: Path) -> None:
    root = repository(tmp_path / "code", a="1\n", run_dot_sh="x", sub__c="3")
    (root / "run.sh").chmod(0o755)
    (root / "link").symlink_to("a")
    git(root, "add", "-A")
    git(root, "commit", "-q", "-m", "second")
    working = pack(CodeSource(root=root))
    commit = git(root, "rev-parse", "HEAD")
    write(root, a="changed\n", new="untracked")
    pinned = pack(CodeSource(root=root, commit=commit[:10]))
    assert pinned.tree_hash == working.tree_hash
    assert pinned.git is not None
    assert (pinned.git.packaging_mode, pinned.git.base_commit, pinned.git.dirty) == (
        "git_archive",
        commit,
        False,
    )
    assert sorted(members(pinned)) == ["code/a", "code/link", "code/run.sh", "code/sub/c"]
    assert names(root / "sub", commit="HEAD") == ["c"]
    assert packed(pinned) == packed(pack(CodeSource(root=root, commit=commit)))


def test_a_pinned_branch_wants_a_clean_tree_below_the_root(tmp_path: Path) -> None:
    root = repository(tmp_path / "code", sub__a="1\n", other__b="2\n")
    assert names(root / "sub", branch="main") == ["a"]
    write(root, other__b="changed\n")
    assert names(root / "sub", branch="main") == ["a"]
    error = refusal(CodeSource(root=root, branch="main"))
    assert error.code == "DIRTY_TREE"
    assert names(root, branch="main", include_paths=("sub",)) == ["sub/a"]
    write(root, sub__new="untracked")
    assert refusal(CodeSource(root=root / "sub", branch="main")).code == "DIRTY_TREE"


def test_pins_that_do_not_exist(tmp_path: Path) -> None:
    root = repository(tmp_path / "code", a="1")
    assert refusal(CodeSource(root=root, branch="nope")).code == "NO_SUCH_COMMIT"
    assert "never fetched" in str(refusal(CodeSource(root=root, commit="abcdef0")).fix)
    plain = write(tmp_path / "plain", a="1")
    assert refusal(CodeSource(root=plain, commit="abcdef0")).code == "NOT_A_REPOSITORY"
    missing = refusal(CodeSource(root=root, commit="HEAD", include_paths=("none",)))
    assert "pathspec 'none' did not match any files" in missing.message


def test_secrets_and_links_of_a_pinned_commit(tmp_path: Path) -> None:
    root = repository(tmp_path / "code", a="1", _dot_env="A=1\n")
    assert refusal(CodeSource(root=root, commit="HEAD")).code == "SECRET_IN_CODE"
    (root / "out").symlink_to("../outside")
    git(root, "add", "-A")
    git(root, "commit", "-q", "-m", "second")
    assert refusal(CodeSource(root=root, commit="HEAD"), allow_secrets=True).code == "LINK_LEAVES_CODE"


def test_settings_of_another_repository_do_not_leak_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = repository(tmp_path / "other", x="1")
    root = repository(tmp_path / "code", a="1")
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(other))
    assert names(root) == ["a"]
