"""The record of a run on the disk."""

from tests.show.conftest import record as record
