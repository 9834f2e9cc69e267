#!/usr/bin/env python3
"""wheel.py: makes a wheel of this library that takes the place of NVIDIA's, so that PyTorch and others find
it as the file that they look for, nvidia/nccl/lib/libnccl.so.2, with no variable set.

    python3 wheel.py [--lib FOLDER] [--name nvidia-nccl-cu13] [--out FOLDER]
    pip install --no-index --no-deps --force-reinstall FILE     the wheel that it names
    pip install --force-reinstall --no-deps nvidia-nccl-cu13==2.30.7    NVIDIA's again

The wheel is for this machine alone: it says in its own words that it is not NVIDIA's, its version ends with
+tutti and this library's own, and it belongs on no index. It needs no network and nothing but Python."""
import argparse
import base64
import hashlib
import os
import re
import sys
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
LIBRARIES = ('libnccl.so.2', 'libtutti-cuda.so', 'libtutti-audit.so')
METADATA = """Metadata-Version: 2.1
Name: {name}
Version: {version}
Summary: tutti's libnccl.so.2 in the place of NVIDIA's; not made by NVIDIA
"""
WHEEL = """Wheel-Version: 1.0
Generator: tutti wheel.py
Root-Is-Purelib: false
Tag: py3-none-linux_{machine}
"""


def fail(text):
    print('wheel.py: ' + text, file=sys.stderr)
    raise SystemExit(3)


def versions(library):
    """The NCCL version that the file says it has, and its own, from the text that tutti_version gives."""
    found = re.search(rb'tutti (\d+\.\d+\.\d+) \(NCCL API (\d+\.\d+\.\d+)', library)
    if not found or b'tutti_backend' not in library:
        fail('that libnccl.so.2 is not tutti\'s; name the folder of its libraries with --lib')
    return found.group(2).decode(), found.group(1).decode()


def files_of(folder, include):
    """What goes into the wheel: path inside, contents."""
    for name in LIBRARIES:
        path = os.path.join(folder, name)
        if os.path.exists(path):
            with open(path, 'rb') as file:
                yield 'nvidia/nccl/lib/' + name, file.read()
        elif name == LIBRARIES[0]:
            fail('%s is missing; build it, or name its folder with --lib' % path)
    if os.path.exists(include):
        with open(include, 'rb') as file:
            yield 'nvidia/nccl/include/nccl.h', file.read()


def digest(contents):
    return base64.urlsafe_b64encode(hashlib.sha256(contents).digest()).rstrip(b'=').decode()


def wheel_write(path, contents, record):
    with zipfile.ZipFile(path, 'w', zipfile.ZIP_DEFLATED) as archive:
        lines = []
        for name, data in contents:
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))  # same files, same bytes
            entry.external_attr = (0o755 if '.so' in name else 0o644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)
            lines.append('%s,sha256=%s,%d\n' % (name, digest(data), len(data)))
        archive.writestr(zipfile.ZipInfo(record, (1980, 1, 1, 0, 0, 0)), ''.join(lines) + record + ',,\n')


def main():
    beside = os.path.join(os.path.dirname(os.path.dirname(HERE)), 'lib')
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--lib', default=beside, help='folder of libnccl.so.2 (default: %s)' % beside)
    parser.add_argument('--name', default='nvidia-nccl-cu13', help='package whose place it takes')
    parser.add_argument('--out', default='.', help='folder to write to')
    options = parser.parse_args()
    if not re.fullmatch(r'[A-Za-z0-9][A-Za-z0-9._-]*', options.name):
        fail('%r is no name of a package' % options.name)
    contents = list(files_of(options.lib, os.path.join(options.lib, '../include/nccl.h')))
    api, own = versions(contents[0][1])
    version, machine = '%s+tutti.%s' % (api, own), os.uname().machine
    stem = '%s-%s' % (re.sub(r'[-_.]+', '_', options.name).lower(), version)
    info = stem + '.dist-info/'
    contents.append((info + 'METADATA', METADATA.format(name=options.name, version=version).encode()))
    contents.append((info + 'WHEEL', WHEEL.format(machine=machine).encode()))
    path = os.path.join(options.out, '%s-py3-none-linux_%s.whl' % (stem, machine))
    try:
        wheel_write(path, contents, info + 'RECORD')
    except OSError as error:
        fail('%s cannot be written: %s' % (path, error.strerror))
    print(path)
    if len([name for name, _ in contents if 'cuda' in name]) == 0:
        print('wheel.py: without libtutti-cuda.so: the emulator alone', file=sys.stderr)


main()
