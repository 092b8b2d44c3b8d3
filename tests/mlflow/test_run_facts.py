"""The facts of a run, literally."""

from rllib_arpo.mlflow.run_facts import command_line


def test_the_command_line_can_be_repeated_and_shows_no_secret(monkeypatch):
    arguments = ["--wandb-key", "1a2b", "--api-token=3c", "--max-tokens", "32", "--password", "4d", "a b"]
    monkeypatch.setattr("sys.orig_argv", ["/venv/bin/python3", "-m", "train", *arguments])
    shown = "--wandb-key '***' '--api-token=***' --max-tokens 32 --password '***' 'a b'"
    assert command_line() == f"python3 -m train {shown}"
