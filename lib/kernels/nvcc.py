"""A SCons tool for nvcc: env.CudaObject('x.cu') compiles one device source to an object.

NVCC is the compiler's path, unset where there is none (the caller says so); NVCCFLAGS may be changed. GPUS
lists compute capabilities, times ten; newer GPUs than the last one run its PTX. Headers are followed as for
C, so that a change in the shared schedule recompiles the kernels. What the compiler says stays beside the
object, as x.cu.said: registers and spills, which tests/test_device_code.sh reads."""
import os
import SCons.Defaults
import SCons.Tool
from SCons.Script import Action, Builder

PLACES = ['/usr/local/cuda/bin', '/opt/cuda/bin']


def find(env):
    if not env['GPUS']:
        return None
    path = env['ENV'].get('PATH', '').split(os.pathsep)
    return env.WhereIs('nvcc', path + PLACES)


def generate(env):
    compiler = find(env)
    if compiler:
        env['NVCC'] = compiler
    capabilities = env['GPUS'].split(',')
    env['NVCC_GENCODE'] = ['-gencode=arch=compute_%s,code=sm_%s' % (name, name) for name in capabilities]
    env['NVCC_GENCODE'].append('-gencode=arch=compute_{0},code=compute_{0}'.format(capabilities[-1]))
    env['NVCCFLAGS'] = ['-std=c++17', '-O3', '-Werror', 'all-warnings', '--threads', '2',
                        '-Xcompiler', '-fPIC,-Wall,-fno-threadsafe-statics']
    env['NVCCCOM'] = ('$NVCC $NVCC_GENCODE $NVCCFLAGS $_CPPDEFFLAGS $_CPPINCFLAGS -c $SOURCE -o $TARGET '
                      '>${TARGETS[1]} 2>&1 || { cat ${TARGETS[1]}; false; }')
    SCons.Tool.SourceFileScanner.add_scanner('.cu', SCons.Defaults.CScan)
    env['BUILDERS']['CudaObject'] = Builder(
        action=Action('$NVCCCOM', '$NVCCCOMSTR'), suffix='.cu.o', src_suffix='.cu',
        source_scanner=SCons.Tool.SourceFileScanner, emitter=said_too)


def said_too(target, source, env):
    return target + [str(target[0])[:-len('.o')] + '.said'], source


def exists(env):
    return find(env)
