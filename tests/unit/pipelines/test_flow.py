"""How far a flow is behind its streams."""

import json

from bascule.pipelines.flow import lag
from bascule.spark.position import to_json


def test_the_lag_is_what_is_between_two_positions() -> None:
    end = json.dumps(to_json({"a": (1, {0: 5, 1: 7}), "gone": (2, {0: 9}), "again": (3, {0: 9})}))
    latest = json.dumps(to_json({"a": (1, {0: 8, 1: 7, 2: 4}), "again": (4, {0: 2}), "new": (5, {0: 1})}))
    assert lag(end, latest) == 3 + 4 + 2 + 1
    assert lag(end, end) == 0
    assert lag(None, latest) == lag(end, None) == 0
