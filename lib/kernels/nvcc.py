"""A SCons tool for nvcc: env.CudaObject('x.cu') compiles one device source to an object.

NVCC is the compiler's path, unset without one (the caller reports it); NVCCFLAGS may be changed. GPUS
selects the compute capabilities, multiplied by ten: `all` are those of CAPABILITIES that this nvcc supports,
`native` are those of this machine's GPUs; else it is a list, or empty, and then NVCC is unset. GPU_CODE and
GPU_PTX are the resulting targets. Headers are scanned as for C, so that a change in the shared schedule
recompiles the kernels. The compiler's output is kept beside the object, as x.cu.said: it has the registers
and spills that tests/test_device_code.sh reads."""
import os
import re
import subprocess

import SCons.Defaults
import SCons.Tool
from SCons.Script import Action, Builder, Exit

PLACES = ['/usr/local/cuda/bin', '/opt/cuda/bin']
CAPABILITIES = [80, 90, 100, 120]
# Machine code is compiled from the PTX of the same target, except for these: nvcc generates the same PTX for
# both, except for the target's name, and takes half of its time for it. A source that distinguishes them sets
# NVCC_PTX_OF={}.
PTX_OF = {120: 100}


def fail(text):
    print('scons: ' + text)
    Exit(2)


def compressed(compiler):
    """Flags that compress machine code and PTX to a quarter of their size. Loading decompresses the code of
    the device's own target, in 4 ms for all kernels. Drivers older than toolkit 13 may not support the
    better compression."""
    said = subprocess.run([compiler, '--version'], stdout=subprocess.PIPE, universal_newlines=True).stdout
    version = re.search(r'release (\d+)', said)
    better = version and int(version.group(1)) >= 13
    return ['--compress-mode=size'] if better else ['-Xfatbin', '-compress-all']


def listed(names):
    return ','.join(str(name) for name in names)


def known(compiler):
    """The capabilities that both this nvcc and the kernels support."""
    command = [compiler, '--list-gpu-code']
    said = subprocess.run(command, stdout=subprocess.PIPE, universal_newlines=True).stdout
    numbers = [int(name[3:]) for name in said.split() if name.startswith('sm_') and name[3:].isdigit()]
    return sorted(number for number in numbers if number >= CAPABILITIES[0])


def native(env, supported):
    """The capabilities of this machine's GPUs; for a GPU that is newer than this nvcc, the latest capability
    that nvcc supports, whose PTX it runs."""
    tool = env.WhereIs('nvidia-smi')
    command = [tool, '--query-gpu=compute_cap', '--format=csv,noheader']
    said = subprocess.run(command, stdout=subprocess.PIPE, universal_newlines=True).stdout if tool else ''
    names = {line.strip().replace('.', '') for line in said.splitlines()}
    before = [[name for name in supported if name <= int(found)] for found in names if found.isdigit()]
    if not any(before):
        fail('GPUS=native: nvidia-smi names no GPU here of compute capability %d.%d or newer; say which, as '
             'GPUS=80,90, or GPUS=all' % divmod(CAPABILITIES[0], 10))
    return sorted({max(each) for each in before if each})


def chosen(env, compiler):
    supported = known(compiler)
    if env['GPUS'] == 'native':
        return native(env, supported)
    if env['GPUS'] == 'all':
        absent = [name for name in CAPABILITIES if name not in supported]
        if absent:
            print('### this nvcc knows no GPUS=%s: they are left out; a newer toolkit has them ###'
                  % listed(absent))
        return [name for name in CAPABILITIES if name in supported]
    names = env['GPUS'].split(',')
    wrong = [name for name in names if not name.isdigit() or int(name) not in supported]
    if wrong:
        fail('GPUS=%s: the kernels cannot be compiled for %s; choose all, native, or some of %s'
             % (env['GPUS'], ', '.join(wrong), listed(supported)))
    return sorted({int(name) for name in names})


def find(env):
    if not env['GPUS']:
        return None
    path = env['ENV'].get('PATH', '').split(os.pathsep)
    return env.WhereIs('nvcc', path + PLACES)


def ptx_of(code):
    return sorted({PTX_OF.get(name, name) for name in code})


def gencode(target, source, env, for_signature):
    """The flags for machine code and PTX."""
    pairs = [(env['NVCC_PTX_OF'].get(name, name), 'sm_%d' % name) for name in env['GPU_CODE']]
    pairs += [(name, 'compute_%d' % name) for name in env['GPU_PTX']]
    return ['-gencode=arch=compute_%d,code=%s' % pair for pair in pairs]


def generate(env):
    compiler = find(env)
    if compiler:
        env['NVCC'] = compiler
        env['GPU_CODE'] = chosen(env, compiler)
        env['GPU_PTX'] = ptx_of(env['GPU_CODE'])
        env['NVCC_COMPRESS'] = compressed(compiler)
    env['NVCC_PTX_OF'] = PTX_OF
    env['NVCC_GENCODE'] = gencode
    threads = str(min(4, os.cpu_count()))
    env['NVCCFLAGS'] = ['-std=c++17', '-O3', '-Werror', 'all-warnings', '--threads', threads, '-Xcompiler',
                        '-fPIC,-Wall,-fno-threadsafe-statics']
    env['NVCCCOM'] = ('$NVCC ${NVCC_GENCODE} $NVCC_COMPRESS $NVCCFLAGS $_CPPDEFFLAGS $_CPPINCFLAGS '
                      '-c $SOURCE -o $TARGET >${TARGETS[1]} 2>&1 || { cat ${TARGETS[1]}; false; }')
    SCons.Tool.SourceFileScanner.add_scanner('.cu', SCons.Defaults.CScan)
    env['BUILDERS']['CudaObject'] = Builder(
        action=Action('$NVCCCOM', '$NVCCCOMSTR'), suffix='.cu.o', src_suffix='.cu',
        source_scanner=SCons.Tool.SourceFileScanner, emitter=said_too)


def said_too(target, source, env):
    return target + [str(target[0])[:-len('.o')] + '.said'], source


def exists(env):
    return find(env)
