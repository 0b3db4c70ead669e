"""NetworkPolicies become packet filter rules of the local provider's node."""

import pytest

from hack.localcluster.artifacts import tools


@pytest.mark.slow
def test_the_go_tests_of_the_policy_agent_pass() -> None:
    tools.run_tests(tools.CLUSTER, "./policies")
