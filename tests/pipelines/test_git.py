from pipelines.git import git, text_of


def test_the_folders_repository_is_asked_whatever_a_hook_has_set(tmp_path, monkeypatch):
    for name in ("here", "hook"):
        (tmp_path / name).mkdir()
        git(tmp_path / name, "init", "--quiet")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "hook" / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(tmp_path / "hook"))
    monkeypatch.setenv("GIT_SSH_COMMAND", "ssh -i key")
    found = git(tmp_path / "here", "rev-parse", "--absolute-git-dir")
    assert text_of(found.stdout).strip() == str(tmp_path / "here" / ".git")
    asked = ("-c", "alias.asked=!printenv GIT_SSH_COMMAND GIT_TERMINAL_PROMPT", "asked")
    said = text_of(git(tmp_path / "here", *asked, GIT_TERMINAL_PROMPT="0").stdout)
    assert said.split("\n") == ["ssh -i key", "0", ""]
