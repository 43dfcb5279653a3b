import pytest

pytest.importorskip("torch", reason="candidates run on torch")
pytest.importorskip("pymoo", reason="the search needs pymoo's NSGA-II")
