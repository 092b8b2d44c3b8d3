"""Nothing that the model, a page, a redirect or a name server says leads to a protected server."""

import pytest

from rllib_arpo.core.tree import ToolStatus
from rllib_arpo.envs.tools.browse import BrowseTool
from tests.envs.web import ssrf


def test_no_url_and_no_redirect_reaches_the_protected_server():
    control = ssrf.run_attempts(ssrf.ATTEMPTS, allow_private=True)
    assert ssrf.missed(ssrf.ATTEMPTS, control) == []
    outcome = ssrf.run_attempts(ssrf.ATTEMPTS, allow_private=False)
    assert outcome.reached == set()
    assert outcome.num_connections == 0
    assert outcome.leaks == []
    assert {result.status for result in outcome.results.values()} == {ToolStatus.ERROR}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"allow_private": "127.0.0.1"}, "allow_private must be True, False or a list of hosts, not '127.0.0.1'."),
        ({"allow_private": ["10.0.0.0/99"]}, "allow_private: '10.0.0.0/99' is neither a host name nor a network."),
        ({"max_redirects": -1}, "The browse tool needs max_page_bytes >= 1 and max_redirects >= 0."),
        ({"summary_model": {"base_url": "http://a/v1"}}, "summary_model has no 'model'."),
        ({"summary_model": {"basurl": "http://a"}}, "Unknown key of summary_model 'basurl': did you mean 'base_url'?"),
    ],
)
def test_wrong_options_are_named(options, message):
    with pytest.raises(ValueError) as error:
        BrowseTool(**options)
    assert str(error.value) == message
