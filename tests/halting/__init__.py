import pytest

pytest.importorskip("torch", reason="the torch side needs torch")
