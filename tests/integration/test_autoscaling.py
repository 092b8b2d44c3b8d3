"""A cluster that grows: what it may have counts, not what it has."""

from __future__ import annotations

import pytest
import ray
from ray.core.generated import autoscaler_pb2
from ray.experimental.internal_kv import _internal_kv_del, _internal_kv_put

from rllib_arpo.validation import check_cluster_resources


@pytest.fixture
def growing_cluster(ray_cluster):
    """Two CPUs, and an autoscaler that may add two nodes with four CPUs each, as it tells the head node."""
    group = autoscaler_pb2.NodeGroupConfig(resources={"CPU": 4}, min_count=0, max_count=2, name="four CPUs")
    config = autoscaler_pb2.ClusterConfig(node_group_configs=[group])
    key = ray._raylet.GCS_AUTOSCALER_CLUSTER_CONFIG_KEY
    namespace = ray._raylet.GCS_AUTOSCALER_STATE_NAMESPACE
    _internal_kv_put(key, config.SerializeToString(), namespace=namespace)
    yield
    _internal_kv_del(key, namespace=namespace)


def test_what_the_cluster_may_have_is_enough(growing_cluster):
    check_cluster_resources([{"CPU": 4}, {"CPU": 4}])
    with pytest.raises(ValueError, match=r"^The run asks for 100 CPUs in total and the cluster has 8: "):
        check_cluster_resources([{"CPU": 100}])
