"""The facts of a run, literally."""

from rllib_arpo.arpo_config import ARPOConfig
from rllib_arpo.mlflow.run_facts import command_line, description


def test_the_description_of_a_run_shows_no_secret():
    config = ARPOConfig().environment("ToolEnv-v0").language_model(model_name_or_path="models/small").to_dict()
    folder = "s3://me:abc@bucket/ray results"
    text = description("ARPO", config, "train.py --url http://me:abc@h", "2187257-dirty", folder)
    assert text.splitlines() == [
        "**ARPO** trains `small` on `ToolEnv-v0`.",
        "",
        "- command: `train.py --url http://***@h`",
        "- commit: `2187257-dirty`",
        "- results: `s3://***@bucket/ray results`",
        "- look: `rllib-arpo show 's3://***@bucket/ray results'` draws its trees",
    ]
    # Nothing is known of a checkout and of a folder.
    assert len(description("ARPO", config, "train.py").splitlines()) == 3
    assert description("ARPO", {"factor": 1}, "train.py") is None


def test_the_command_line_can_be_repeated_and_shows_no_secret(monkeypatch):
    arguments = ["--wandb-key", "1a2b", "--api-token=3c", "--max-tokens", "32", "--password", "4d", "a b"]
    monkeypatch.setattr("sys.orig_argv", ["/venv/bin/python3", "-m", "train", *arguments])
    shown = "--wandb-key '***' '--api-token=***' --max-tokens 32 --password '***' 'a b'"
    assert command_line() == f"python3 -m train {shown}"
