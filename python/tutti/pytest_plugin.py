"""A pytest plugin: tests whose ranks are threads, each test once for every seed.

    @pytest.mark.distributed(ranks=4, seeds=20)
    def test_sums():
        ...                      # what every rank does; torch.distributed is initialized

`seeds` is a number (seeds 1 to N) or a list; `pytest --tutti-seeds 1-100` or `--tutti-seeds 3,17` replaces
it for all tests. A failure says which seed it was and how to repeat it, and keeps the trace of its events in
the folder of `--tutti-traces` (default: tutti-traces). A wheel registers the plugin; elsewhere, pytest needs
`-p tutti.pytest_plugin`.
"""
import pathlib
import re

import pytest

_SEED = '_tutti_seed'


def pytest_addoption(parser):
    """The options of the command line."""
    group = parser.getgroup('tutti', 'ranks of torch.distributed on CPUs')
    group.addoption('--tutti-seeds', metavar='SEEDS',
                    help='seeds for tests marked distributed: 1-100, or 3,17')
    group.addoption('--tutti-traces', metavar='FOLDER', default='tutti-traces',
                    help='where the events of failed tests are kept (default: %(default)s)')


def pytest_configure(config):
    """The marker's help, and a check of the option."""
    config.addinivalue_line('markers', 'distributed(ranks=2, seeds=1): the test is run by ranks of '
                            'torch.distributed on threads, once for each seed')
    wanted = config.getoption('--tutti-seeds')
    if wanted is not None:
        _seeds_of(wanted)


def _seeds_of(text):
    seeds = []
    for part in text.split(','):
        match = re.fullmatch(r'(\d+)(?:-(\d+))?', part.strip())
        if match is None:
            raise pytest.UsageError('--tutti-seeds %s: write it as 1-100, or 3,17' % text)
        first, last = int(match.group(1)), int(match.group(2) or match.group(1))
        if first == 0 or last < first or last - first >= 1000000:
            raise pytest.UsageError('--tutti-seeds %s: seeds are numbers from 1 on, at most a million' % text)
        seeds += range(first, last + 1)
    return seeds


def _marked(item, ranks=2, seeds=1):
    if not isinstance(ranks, int) or ranks < 1:
        raise pytest.UsageError('%s: ranks=%r: a number of ranks from 1 on' % (item, ranks))
    return ranks, list(range(1, seeds + 1)) if isinstance(seeds, int) else list(seeds)


def pytest_generate_tests(metafunc):
    """One test for each seed."""
    marker = metafunc.definition.get_closest_marker('distributed')
    if marker is None:
        return
    _, seeds = _marked(metafunc.definition.nodeid, *marker.args, **marker.kwargs)
    wanted = metafunc.config.getoption('--tutti-seeds')
    seeds = _seeds_of(wanted) if wanted is not None else seeds
    metafunc.fixturenames.append(_SEED)
    metafunc.parametrize(_SEED, seeds, indirect=True, ids=['seed%d' % seed for seed in seeds])


@pytest.fixture(name=_SEED)
def _seed(request):
    return request.param


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """Runs a marked test on its ranks."""
    marker = pyfuncitem.get_closest_marker('distributed')
    if marker is None:
        return None
    pytest.importorskip('torch', reason='tests marked distributed need PyTorch: pip install torch')
    from tutti import torch as tutti_torch
    ranks, _ = _marked(pyfuncitem.nodeid, *marker.args, **marker.kwargs)
    seed = pyfuncitem.callspec.params[_SEED]
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    folder = pathlib.Path(pyfuncitem.config.getoption('--tutti-traces'))
    folder.mkdir(parents=True, exist_ok=True)
    events = folder / (re.sub(r'[^\w.=-]+', '-', pyfuncitem.nodeid).strip('-') + '.events')
    try:
        tutti_torch.run(lambda: pyfuncitem.obj(**arguments), ranks, seed=seed, events=events)
    except BaseException:
        pyfuncitem.add_report_section(
            'call', 'tutti',
            "seed %d, %d ranks; to repeat it:\n  pytest '%s' --tutti-seeds %d\nits events: %s"
            % (seed, ranks, pyfuncitem.nodeid, seed, events))
        raise
    events.unlink()
    try:
        folder.rmdir()
    except OSError:  # it keeps the events of another test
        pass
    return True
