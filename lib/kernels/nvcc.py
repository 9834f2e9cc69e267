"""A SCons tool for nvcc: env.CudaObject('x.cu') compiles one device source to an object.

NVCC is the compiler's path, unset where there is none (the caller says so); NVCCFLAGS and NVCC_ARCH may be
changed. Headers are followed as for C, so that a change in the shared schedule recompiles the kernels."""
import os
import SCons.Defaults
import SCons.Tool
from SCons.Script import Action, Builder

PLACES = ['/usr/local/cuda/bin', '/opt/cuda/bin']


def find(env):
    path = env['ENV'].get('PATH', '').split(os.pathsep)
    return env.WhereIs('nvcc', path + PLACES)


def generate(env):
    compiler = find(env)
    if compiler:
        env['NVCC'] = compiler
    env.SetDefault(NVCC_ARCH='sm_90')
    env['NVCCFLAGS'] = ['-std=c++17', '-O3', '-lineinfo', '-Werror', 'all-warnings', '-Xcompiler',
                        '-fPIC,-Wall']
    env['NVCCCOM'] = '$NVCC -arch=$NVCC_ARCH $NVCCFLAGS $_CPPDEFFLAGS $_CPPINCFLAGS -c $SOURCE -o $TARGET'
    SCons.Tool.SourceFileScanner.add_scanner('.cu', SCons.Defaults.CScan)
    env['BUILDERS']['CudaObject'] = Builder(
        action=Action('$NVCCCOM', '$NVCCCOMSTR'), suffix='.cu.o', src_suffix='.cu',
        source_scanner=SCons.Tool.SourceFileScanner)


def exists(env):
    return find(env)
