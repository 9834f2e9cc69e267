#!/usr/bin/env python3
"""torch_suites.py: PyTorch's own distributed tests, with gloo and with the backend "tutti" in its place.

  bench/torch_suites.py run FOLDER TESTS [SUITE...] [--backend gloo|tutti] [--seconds S] [--again]
  bench/torch_suites.py table FOLDER [REASONS]

`run` keeps a line for each test in FOLDER/BACKEND/SUITE.txt; a run that was stopped goes on where it was,
and --again runs the failures once more.
`table` counts them (`groups`: process groups that tutti has made for a suite, by ranks), and lists each test
that ends differently, with its reason from the file REASONS (torch_reasons.txt: lines "SUITE PATTERN: reason",
the pattern of a test's name). TESTS is the folder test/distributed of
PyTorch's sources, of the version that is installed or a near one; only the suite `distributed` is in
PyTorch's package itself. Needs PyTorch, pytest, expecttest and hypothesis, and the build for
TUTTI_LIBRARY_PATH. Without names, all suites run, one test at a time.

How "gloo" becomes tutti: PyTorch calls the entry points of the group "torch.backends" when it is imported.
Each process of a run finds one that replaces what makes a process group of the name "gloo" (map_gloo below).
The tests themselves stay as they are. This file is a plugin of pytest too: it notes when tests begin and
end, and leaves out those that have been run. A test that takes longer than --seconds counts as a hang."""
import argparse
import collections
import fnmatch
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
FSDP, TENSOR, PIPELINING = '_composable/fsdp/test_fully_shard_', 'tensor/test_', 'pipelining/test_'
# name -> (file under TESTS, or the class that is made from PyTorch's package; pytest's -k, or '')
SUITES = {
    'distributed': ('', ''),
    'distributed_8': ('', 'group or barrier'),  # with 8 ranks: tests that need them
    'functional_api': ('test_functional_api.py', ''),
    'functional_native': ('test_c10d_functional_native.py', ''),
    'objects': ('test_c10d_object_collectives.py', ''),
    'spawn_gloo': ('test_c10d_spawn_gloo.py', ''),
    'device_mesh': ('test_device_mesh.py', ''),
    'store': ('test_store.py', ''),
    'common': ('test_c10d_common.py', ''),
    'c10d_gloo': ('test_c10d_gloo.py', 'not ProcessGroupGloo'),
    'pypg': ('test_c10d_pypg.py', ''),
    'backends': ('test_backends.py', ''),
    'collective_utils': ('test_collective_utils.py', ''),
    'pg_wrapper': ('test_pg_wrapper.py', 'Gloo'),
    'logger': ('test_c10d_logger.py', ''),
    'replicate': ('_composable/test_replicate.py', ''),
}
SUITES.update(('fsdp_' + name, (FSDP + name + '.py', '')) for name in (
    'init', 'training', 'comm', 'state', 'state_dict', 'frozen', 'autograd', 'mixed_precision',
    'clip_grad_norm_', 'extensions', 'ignore_params', 'overlap', 'logging', 'memory', 'grad_scaler'))
SUITES.update(('tensor_' + name, (TENSOR + name + '.py', '')) for name in (
    'api', 'dtensor', 'redistribute', 'init', 'matrix_ops', 'math_ops', 'tensor_ops', 'embedding_ops',
    'random_ops', 'pointwise_ops', 'view_ops', 'experimental_ops',
    'convolution_ops', 'optimizers', 'dtensor_testbase', 'op_strategy', 'dtensor_compile'))
SUITES.update(('parallel_' + name, ('tensor/parallel/test_%s.py' % name, '')) for name in (
    'parallelize_api', 'tp_style', 'tp_examples', 'tp_random_state'))
SUITES.update(('pipelining_' + name, (PIPELINING + name + '.py', '')) for name in (
    'backward', 'microbatch', 'pipe', 'schedule', 'schedule_multiproc', 'transformer', 'unflatten'))
# These fail with both backends, and the rest of their classes would be skipped then.
SUITES['pipelining_schedule_multiproc'] = (PIPELINING + 'schedule_multiproc.py',
                                           'not shape_inference_False and not runtime_custom_sched')
SPAWN = """import os, sys
os.environ.setdefault('TEMP_DIR', %r)
from torch.testing._internal.distributed.distributed_test import DistributedTest, TestDistBackend


class TestSpawn(TestDistBackend, DistributedTest._DistTestBase):
    def setUp(self):
        super().setUp()
        self._spawn_processes()
"""


# ---- in the processes of a run

def map_gloo():
    """The entry point: process groups of the name "gloo" are made by tutti."""
    if os.environ.get('TORCH_SUITES_BACKEND') != 'tutti':
        return
    import torch.distributed as dist
    import tutti.torch  # noqa: F401, registers the backend
    plugin = dist.Backend._plugins['TUTTI']

    def create(*arguments):
        with open(os.environ['TORCH_SUITES_LOG'] + '.groups', 'a') as groups:
            groups.write('.')  # the table has a column of how many there were
        return plugin.creator_fn(*arguments)
    dist.Backend._plugins['GLOO'] = plugin._replace(creator_fn=create)
    dist.Backend.backend_type_map['gloo'] = dist.Backend.backend_type_map['tutti']


def _without_gpus():
    """Tests for two or more GPUs run with CPUs: those that need GPUs indeed fail with both backends."""
    import torch
    from torch.testing._internal import common_distributed, common_fsdp
    common_distributed.skip_if_lt_x_gpu = lambda count, allow_cpu=False: lambda function: function
    torch.cpu._sleep = lambda cycles: None
    made = torch.nn.parallel.DistributedDataParallel.__init__
    torch.nn.parallel.DistributedDataParallel.__init__ = lambda self, module, device_ids=None, *rest, **named: (
        made(self, module, None, *rest, **named))
    torch.cpu.device_count = torch.accelerator.device_count = lambda: 4
    common_fsdp.DEVICE_COUNT = 4


def adapt():
    """What differs from a run of PyTorch's, in pytest's process and in those of ranks."""
    import torch
    torch.accelerator.current_accelerator = lambda check_available=False: None  # not that of PyTorch's build
    suite = pathlib.Path(os.environ['TORCH_SUITES_LOG']).name
    if suite.startswith(('fsdp', 'pipelining')):
        _without_gpus()
    if os.environ['TORCH_SUITES_BACKEND'] == 'tutti' and suite.startswith('distributed'):
        # Events of the profiler like "gloo:all_reduce" are made by works written in C++ only.
        from torch.testing._internal.distributed import distributed_test
        for names in (distributed_test.PROFILING_SUPPORTED_BACKENDS,
                      distributed_test.SEND_RECV_PROFILING_SUPPORTED_BACKENDS):
            names.clear()


def _begin(environment, target, arguments, named):
    os.environ.clear()
    os.environ.update(environment)
    target(*arguments, **named)


def _process(target, name, args, kwargs):
    import multiprocessing
    return multiprocessing.get_context('forkserver').Process(
        target=_begin, name=name, args=(dict(os.environ), target, args, kwargs))


def pytest_configure():
    """Ranks come from a process that has PyTorch: its import takes 5 s of a core, in each of four ranks."""
    import multiprocessing
    from torch.testing._internal import common_distributed
    multiprocessing.set_start_method('forkserver')
    multiprocessing.set_forkserver_preload(['torch.testing._internal.common_distributed', 'torch_suites_cpu',
                                            'torch.testing._internal.distributed._tensor.common_dtensor'])
    common_distributed.MultiProcessTestCase._spawn_processes = lambda self: self._start_processes(_process)
    adapt()


def _note(*words):
    with open(os.environ['TORCH_SUITES_LOG'], 'a') as log:
        log.write(json.dumps(words) + '\n')


def _words():
    path = os.environ['TORCH_SUITES_LOG']
    return [json.loads(line) for line in open(path)] if os.path.exists(path) else []


def _name(nodeid):
    return nodeid.partition('::')[2]


def pytest_collection_modifyitems(items):
    """Leaves out the tests that have been run."""
    done = {words[1] for words in _words() if words[0] != 'begin'}
    items[:] = [item for item in items if _name(item.nodeid) not in done]


def pytest_runtest_logstart(nodeid, location):
    """Notes that a test begins."""
    del location
    _note('begin', _name(nodeid))


def pytest_runtest_logreport(report):
    """Notes how a test has ended."""
    if report.when == 'call' or report.outcome != 'passed':
        text = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr or '')
        text = re.sub(r'(?s)^.*?raise RuntimeError\(error\)\n', '', text)[:20000]
        _note(report.outcome, _name(report.nodeid), round(report.duration, 2), text)


def pytest_collectreport(report):
    """Notes a file that cannot be imported."""
    if report.failed:
        _note('import', report.nodeid, 0, str(report.longrepr)[-2000:])


# ---- the driver

def _environment(work, tests, backend, log, ranks):
    info = work / 'torch_suites-0.dist-info'
    info.mkdir(exist_ok=True)
    (info / 'METADATA').write_text('Metadata-Version: 2.1\nName: torch_suites\nVersion: 0\n')
    (info / 'entry_points.txt').write_text('[torch.backends]\ntorch_suites = torch_suites:map_gloo\n')
    (work / 'torch_suites_cpu.py').write_text('import torch_suites\ntorch_suites.adapt()\n')
    paths = [str(work), str(HERE), str(HERE.parent / 'python'), str(tests), os.environ.get('PYTHONPATH', '')]
    return dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, paths)), TORCH_SUITES_BACKEND=backend,
                TORCH_SUITES_LOG=str(log), BACKEND='gloo', WORLD_SIZE=str(ranks), OMP_NUM_THREADS='1',
                TEMP_DIR=str(work), TMPDIR=str(work), CUDA_VISIBLE_DEVICES='', TUTTI_TRACE='off',
                DISTRIBUTED_TESTS_DEFAULT_TIMEOUT='100', PYTHONDONTWRITEBYTECODE='1')


def _last(log):
    """(words of the last line, when it was written)"""
    if not log.exists():
        return None, 0
    lines = log.read_text().splitlines()
    return (json.loads(lines[-1]) if lines else None), log.stat().st_mtime


def _run_once(command, environment, folder, log, seconds):
    """One run of pytest; (its exit status, or None if a test hung; the last words)."""
    begin = time.time()
    with open(log.with_suffix('.out'), 'ab') as out:
        process = subprocess.Popen(command, env=environment, cwd=folder, stdout=out, stderr=out,
                                   stdin=subprocess.DEVNULL, start_new_session=True)
    status = None
    try:
        while status is None:
            try:
                status = process.wait(1)
            except subprocess.TimeoutExpired:
                if time.time() - max(begin, _last(log)[1]) > seconds:
                    break
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)  # its group also has the ranks that are left
        except ProcessLookupError:
            pass
        process.wait()
    return status, _last(log)[0]


def _forget_failures(log):
    """Leaves the tests in the file that have passed or were skipped."""
    if log.exists():
        good = [name for name, (outcome, _) in results(log).items() if outcome in ('passed', 'skipped')]
        kept = [line for line in log.read_text().splitlines(True) if json.loads(line)[1] in good]
        log.write_text(''.join(kept))


def run_suite(name, tests, backend, folder, seconds, again=False):
    """All tests of a suite that have not been run; again: and those that have failed."""
    log = folder.resolve() / backend / (name + '.txt')
    log.parent.mkdir(parents=True, exist_ok=True)
    if again:
        _forget_failures(log)
    file, chosen = SUITES[name]
    with tempfile.TemporaryDirectory(prefix='torch_suites') as made:
        work = pathlib.Path(made)
        if not file:
            (work / 'test_spawn.py').write_text(SPAWN % made)
        path = tests.resolve() / file if file else work / 'test_spawn.py'
        command = [sys.executable, '-m', 'pytest', '-q', '-rN', '-p', 'torch_suites', '-p',
                   'no:cacheprovider', '-o', 'addopts=', '--rootdir', str(path.parent), str(path)]
        command += ['-k', chosen] if chosen else []
        ranks = 8 if name.endswith('_8') else 4
        environment = _environment(work, tests.resolve(), backend, log, ranks)
        status, before = None, -1
        while status not in (0, 1, 2, 5) and len(results(log)) > before:
            before = len(results(log))
            status, last = _run_once(command, environment, path.parent, log, seconds)
            if last is not None and last[0] == 'begin':
                outcome = 'hang' if status is None else 'crash'
                with open(log, 'a') as notes:
                    notes.write(json.dumps([outcome, last[1], seconds, 'exit status %s' % status]) + '\n')
                status = None


def results(log):
    """test -> (outcome, text)"""
    found = {}
    for line in log.read_text().splitlines() if log.exists() else []:
        outcome, name, *rest = json.loads(line)
        if outcome != 'begin' and found.get(name, ('passed',))[0] == 'passed':
            found[name] = (outcome, rest[1] if len(rest) > 1 else '')
    return found


def why(text):
    """The exception that began it, in one line: that of the first rank whose error is not another's end."""
    lines = [re.sub(r'^E\s+', '', line.strip()) for line in text.splitlines()]
    errors = [line for line in lines if re.match(r'[\w.]*(Error|Exception|Failure)\b.*:', line) and
              not re.match(r'RuntimeError: Process \d+ exited with', line)]
    first = [line for line in errors if 'closed its connection' not in line and 'Connection closed' not in line]
    return (first or errors or lines or [''])[0][:300]


def table(folder, reasons):
    """Prints the counts, and the tests that end differently."""
    rows, different = [], []
    kinds = ('passed', 'failed', 'skipped')
    for name in SUITES:
        both = [results(folder / backend / (name + '.txt')) for backend in ('tutti', 'gloo')]
        if not any(both):
            continue
        counts = [collections.Counter(outcome if outcome in kinds else 'failed' for outcome, _ in each.values())
                  for each in both]
        made = folder / 'tutti' / (name + '.txt.groups')
        made = made.stat().st_size if made.exists() else 0  # 0: its ranks are threads, or there is no such file
        rows.append((name, len(set().union(*both)), made, *(each[kind] for each in counts for kind in kinds)))
        for test in sorted(set().union(*both)):
            one, other = (each.get(test, ('not run', '')) for each in both)
            if one[0] != other[0]:
                different.append((name, test, one, other))
    print('%-26s %6s %6s   %7s %7s %7s   %7s %7s %7s' % ('suite', 'tests', 'groups', *kinds, *kinds))
    print('%-26s %6s %6s   %-25s   %s' % ('', '', '', 'tutti', 'gloo'))
    rows.append(('all', *(sum(row[i] for row in rows) for i in range(1, 9))))
    for row in rows:
        print('%-26s %6d %6d   %7d %7d %7d   %7d %7d %7d' % row)
    print('\nTests that end differently: tutti, gloo, and why')
    for name, test, one, other in different:
        reason = next((text for suite, pattern, text in reasons
                       if fnmatch.fnmatch(name, suite) and fnmatch.fnmatch(test, pattern)), '')
        print('%s %s: %s, %s' % (name, test, one[0], other[0]))
        print('    ' + (reason or '? ' + why(one[1] if one[0] != 'passed' else other[1])))


def read_reasons(path):
    """(suite, pattern, reason) of each line "SUITE PATTERN: reason"."""
    found = []
    for line in open(path) if path else []:
        if line.strip() and not line.startswith('#'):
            names, _, reason = line.strip().partition(': ')
            found.append((*names.split(), reason))
    return found


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # a run that is stopped ends its tests
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest='command', required=True)
    run = commands.add_parser('run')
    run.add_argument('folder', type=pathlib.Path)
    run.add_argument('tests', type=pathlib.Path)
    run.add_argument('--backend', choices=('gloo', 'tutti'), action='append')
    run.add_argument('--seconds', type=float, default=150)
    run.add_argument('--again', action='store_true')
    run.add_argument('suites', nargs='*', metavar='SUITE')
    shown = commands.add_parser('table')
    shown.add_argument('folder', type=pathlib.Path)
    shown.add_argument('reasons', nargs='?')
    given = parser.parse_args()
    if given.command == 'table':
        return table(given.folder, read_reasons(given.reasons))
    unknown = set(given.suites) - set(SUITES)
    if unknown:
        parser.error('no suite %s; there are: %s' % (', '.join(sorted(unknown)), ' '.join(SUITES)))
    if not (given.tests / 'test_store.py').exists():
        parser.error("%s is not the folder test/distributed of PyTorch's sources" % given.tests)
    for name in given.suites or SUITES:
        for backend in given.backend or ('tutti', 'gloo'):
            print(name, backend, time.strftime('%H:%M:%S'), flush=True)
            run_suite(name, given.tests, backend, given.folder, given.seconds, given.again)


if __name__ == '__main__':
    main()
