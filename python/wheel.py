"""wheel.py: makes the wheel of the Python package from a finished build, without other tools:

    python3 python/wheel.py BUILD FOLDER

BUILD has lib/libnccl.so.2, lib/libtutti-cudart.so and bin/tutti, for this machine's processor or, if they are
cross-compiled (scons CC=aarch64-linux-gnu-gcc), for another. Writes
FOLDER/tutti-VERSION-py3-none-PLATFORM.whl and prints its path. The platform's tag says which processor and
which glibc the libraries need."""
import base64
import hashlib
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
LIBRARIES = ('libnccl.so.2', 'libtutti-cudart.so')
METADATA = """Metadata-Version: 2.1
Name: tutti
Version: %s
Summary: NCCL's collectives without GPUs: run, check and repeat distributed programs on CPUs
Requires-Python: >=3.8
"""
WHEEL = """Wheel-Version: 1.0
Generator: tutti
Root-Is-Purelib: false
Tag: py3-none-%s
"""


def version(build):
    """The project's version, as its pkg-config file has it."""
    text = (build / 'lib' / 'pkgconfig' / 'tutti.pc').read_text()
    return re.search(r'^Version: (\S+)', text, re.M).group(1)


MACHINES = {62: 'x86_64', 183: 'aarch64'}  # by e_machine of an ELF file's header


def machine_of(file):
    """The processor that an ELF file is for, as Python's platform tags have it."""
    with open(file, 'rb') as elf:
        number = int.from_bytes(elf.read(20)[18:20], 'little')
    if number not in MACHINES:
        sys.exit('%s: for processor %d of ELF; wheels are made for %s' %
                 (file, number, ' and '.join(MACHINES.values())))
    return MACHINES[number]


def tool(name, machine):
    """A program of binutils that knows the processor's files."""
    cross = '%s-linux-gnu-%s' % (machine, name)
    return cross if shutil.which(cross) else name


def glibc_of(files):
    """The newest version of glibc that one of the files needs, as (2, 36)."""
    needed = [(2, 17)]
    for file in files:
        symbols = subprocess.run([tool('objdump', machine_of(file)), '-T', str(file)],
                                 stdout=subprocess.PIPE, check=True, text=True)
        needed += [(int(a), int(b)) for a, b in re.findall(r'GLIBC_(\d+)\.(\d+)', symbols.stdout)]
    return max(needed)


def stripped(file):
    """The file's bytes without debug information."""
    with tempfile.NamedTemporaryFile() as copy:
        strip = tool('strip', machine_of(file))
        subprocess.run([strip, '--strip-unneeded', '-o', copy.name, str(file)], check=True)
        return pathlib.Path(copy.name).read_bytes()


def main(build, folder):
    number = version(build)
    binaries = [build / 'lib' / name for name in LIBRARIES] + [build / 'bin' / 'tutti']
    tag = 'manylinux_%d_%d_%s' % (*glibc_of(binaries), machine_of(binaries[0]))
    info = 'tutti-%s.dist-info' % number
    sources = sorted((HERE / 'tutti').rglob('*.py'))
    contents = {str(path.relative_to(HERE)): path.read_bytes() for path in sources}
    contents.update({'tutti/lib/' + name: stripped(build / 'lib' / name) for name in LIBRARIES})
    contents['tutti-%s.data/scripts/tutti' % number] = stripped(build / 'bin' / 'tutti')
    contents[info + '/METADATA'] = (METADATA % number).encode()
    contents[info + '/entry_points.txt'] = b'[pytest11]\ntutti = tutti.pytest_plugin\n'
    contents[info + '/WHEEL'] = (WHEEL % tag).encode()
    record = ''
    for name, data in contents.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()
        record += '%s,sha256=%s,%d\n' % (name, digest, len(data))
    contents[info + '/RECORD'] = (record + info + '/RECORD,,\n').encode()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / ('tutti-%s-py3-none-%s.whl' % (number, tag))
    with zipfile.ZipFile(path, 'w', zipfile.ZIP_DEFLATED) as wheel:
        for name, data in contents.items():
            entry = zipfile.ZipInfo(name)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o755 if data[:4] == b'\x7fELF' else 0o644) << 16
            wheel.writestr(entry, data)
    print(path)


if __name__ == '__main__':
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
