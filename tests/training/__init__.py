import pytest

pytest.importorskip("torch", reason="training needs torch")
