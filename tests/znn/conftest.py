"""Every kernel test runs on each target that this processor offers."""
import pytest

from znn.codegen import target


@pytest.fixture(params=list(target.TARGETS))
def on_target(request):
    if request.param not in target.available():
        pytest.skip(f"this processor has no {request.param}: it offers {', '.join(target.available())}")
    with target.use_target(request.param) as chosen:
        yield chosen
