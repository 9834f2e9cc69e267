#!/usr/bin/env python3
"""Checks exported files by the rules of their formats:

    python3 tests/formats.py perfetto FILE...     Chrome's trace events
    python3 tests/formats.py flight FILE...       a job's dumps as PyTorch's Flight Recorder writes them
    python3 tests/formats.py prometheus FILE...   the text format of node_exporter's textfile collector

Prints each violation; the exit status is 0 if there is none."""
import json
import pickle
import re
import sys

PHASES = {'X': ('name', 'dur'), 'i': ('name', 's'), 's': ('id', 'cat'), 'f': ('id', 'cat', 'bp'),
          'B': ('name',), 'C': ('name', 'args'), 'M': ('name', 'args')}


def perfetto(paths):
    """Events have the members of their phase; arrows have two ends, and go forward; slices of one thread
    nest or follow each other."""
    for path in paths:
        with open(path, encoding='utf-8') as file:
            events = json.load(file)['traceEvents']
        begins = {}
        for number, event in enumerate(events):
            missing = [name for name in PHASES[event['ph']] + ('pid', 'tid') if name not in event]
            if missing or (event['ph'] != 'M' and event['ts'] < 0) or event.get('dur', 0) < 0:
                yield '%s: event %d: %s' % (path, number, missing or 'a time below zero')
            if event['ph'] == 's':
                begins[event['id']] = event
            if event['ph'] == 'f':
                begin = begins.pop(event['id'], None)
                if begin is None or begin['ts'] > event['ts'] or begin['pid'] == event['pid']:
                    yield '%s: event %d: an arrow from nowhere, or back in time' % (path, number)
        if begins:
            yield '%s: %d arrows without an end' % (path, len(begins))
        named = {(e['pid'], e['tid']) for e in events if e['ph'] == 'M' and e['name'] == 'thread_name'}
        used = {(e['pid'], e['tid']) for e in events if e['ph'] in 'BXi'}
        if not used or used - named:
            yield '%s: threads without a name: %s' % (path, sorted(used - named))
        processes = {e['pid'] for e in events if e['ph'] == 'M' and e['name'] == 'process_name'}
        if {pid for pid, _ in used} - processes:
            yield '%s: processes without a name' % path


ENTRY = {'record_id': int, 'pg_id': int, 'process_group': (list, tuple), 'collective_seq_id': int,
         'p2p_seq_id': int, 'op_id': int, 'profiling_name': str, 'time_created_ns': int, 'input_sizes': list,
         'input_dtypes': list, 'output_sizes': list, 'output_dtypes': list, 'state': str, 'retired': bool,
         'timeout_ms': int, 'is_p2p': bool, 'frames': list, 'steps': list}


def entry_faults(dump, entry):
    for name, kind in ENTRY.items():
        if not isinstance(entry.get(name), kind):
            yield '%s: %r' % (name, entry.get(name))
    if entry['process_group'][0] not in dump['pg_config']:
        yield 'no process group %r' % (entry['process_group'],)
    if entry['state'] not in ('scheduled', 'started', 'completed'):
        yield 'state %s' % entry['state']
    if not re.match(r'nccl:(send \d+->\d+|recv \d+<-\d+|[a-z_]+)$', entry['profiling_name']):
        yield entry['profiling_name']


def flight(paths):
    """Dumps have the documented structure; every rank of a group lists the same ranks."""
    groups = {}
    for path in paths:
        with open(path, 'rb') as file:
            text = file.read()
        dump = json.loads(text) if text.startswith(b'{') else pickle.loads(text)
        rank = int(re.search(r'(\d+)$', path).group(1))
        for name, config in dump['pg_config'].items():
            ranks = json.loads(config['ranks'])
            if groups.setdefault(name, ranks) != ranks or rank not in ranks:
                yield '%s: group %s: %s' % (path, name, ranks)
            status = dump['pg_status'][name]
            if not status['last_completed_collective'] <= status['last_started_collective'] <= \
                    status['last_enqueued_collective']:
                yield '%s: group %s: %s' % (path, name, status)
        for number, entry in enumerate(dump['entries']):
            if entry['record_id'] != number:
                yield '%s: entry %d has number %d' % (path, number, entry['record_id'])
            for fault in entry_faults(dump, entry):
                yield '%s: entry %d: %s' % (path, number, fault)
        if not dump['version'].startswith('2.') or not dump['entries']:
            yield '%s: version %s, %d entries' % (path, dump['version'], len(dump['entries']))


SAMPLE = re.compile(r'([a-zA-Z_:][a-zA-Z0-9_:]*)\{((?:[a-zA-Z_]\w*="(?:[^"\\\n]|\\[\\"n])*",?)*)\} (\S+)$')


def prometheus(paths):
    """HELP and TYPE come once, before the samples of a family, which are contiguous; no series twice;
    names of counters end in _total."""
    for path in paths:
        with open(path, encoding='utf-8') as file:
            lines = file.read().split('\n')
        if lines.pop() != '':
            yield '%s: the last line has no end' % path
        family, types, series = None, {}, set()
        for number, line in enumerate(lines, 1):
            where = '%s:%d: ' % (path, number)
            if line.startswith('# HELP '):
                continue
            if line.startswith('# TYPE '):
                family, kind = line.split()[2:]
                if family in types or (kind == 'counter') != family.endswith('_total'):
                    yield where + line
                types[family] = kind
                continue
            sample = SAMPLE.match(line)
            if not sample or sample.group(1) != family or sample.group(1, 2) in series:
                yield where + line
                continue
            float(sample.group(3))
            series.add(sample.group(1, 2))
        if not series:
            yield '%s: no sample' % path


def main(arguments):
    checks = {'perfetto': perfetto, 'flight': flight, 'prometheus': prometheus}
    faults = list(checks[arguments[0]](arguments[1:]))
    print('\n'.join(faults[:20]))
    return 1 if faults else 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
