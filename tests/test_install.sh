#!/bin/sh
# test_install.sh: `scons install` as packagers and users meet it: into a prefix and into a DESTDIR, a
# program built only with pkg-config from there and still right after the prefix has moved, SONAME and
# symbols of the installed files, the size of the stripped library, and loading it without linking:
# LD_PRELOAD and dlopen. Prints one `ok - ` or `not ok - ` line per check and fails if a check failed.
. "$(dirname "$0")/script.inc"
unset LD_LIBRARY_PATH LD_PRELOAD
prefix="$work/prefix"
# Only for the GPUs of the existing build: any others would make nvcc compile for minutes.
GPUS=
[ -e "$root/build/lib/libtutti-cuda.so" ] &&
  GPUS=$(sed -n "s/.*for 'sm_\([0-9]*\)'.*/\1/p" "$root"/build/obj/lib/kernels/*.said | sort -nu |
    paste -sd ,)
SIZE_MAX_BYTES=1415577

# compile PROGRAM COMPILER: examples/init_all.c against the installed files only.
compile() {
  # Word splitting is wanted: pkg-config's answer is a list of flags.
  # shellcheck disable=SC2046,SC2086
  $2 -o "$1" "$root/examples/init_all.c" $(PKG_CONFIG_PATH="$prefix/lib/pkgconfig" \
    pkg-config --cflags --libs tutti-emu) >"$work/log" 2>&1
}

runs() {
  timeout 60 "$@" >"$work/log" 2>&1 </dev/null && tail -n 1 "$work/log" | grep -qx ok
}

# exports LIBRARY PATTERN: the library defines symbols, and all match.
exports() {
  nm -D --defined-only "$1" | awk '{print $NF}' | sed 's/@.*//' >"$work/symbols"
  grep -vE "$2" "$work/symbols" >"$work/log"
  [ -s "$work/symbols" ] && [ ! -s "$work/log" ]
}

# ---- installing
(cd "$root" && scons -Q -s install GPUS="$GPUS" PREFIX="$prefix") >"$work/log" 2>&1
check $? "scons install PREFIX=... succeeds"
for file in include/nccl.h include/tutti.h include/tutti-emu/cuda_runtime.h lib/libnccl.so lib/libnccl.so.2 \
  lib/libtutti-cudart.so lib/libtutti-audit.so share/tutti/wheel.py \
  lib/pkgconfig/nccl.pc lib/pkgconfig/tutti.pc lib/pkgconfig/tutti-emu.pc \
  lib/cmake/tutti/tuttiConfig.cmake lib/cmake/tutti/tuttiConfigVersion.cmake bin/tutti \
  share/man/man1/tutti.1 share/man/man1/tutti-bench.1 share/bash-completion/completions/tutti \
  share/zsh/site-functions/_tutti; do
  [ -e "$prefix/$file" ] || echo "$file is missing"
done >"$work/log"
[ ! -s "$work/log" ]
check $? "every installed file exists"
(cd "$root" && scons -Q -s install GPUS="$GPUS" DESTDIR="$work/stage" PREFIX=/opt/tutti) >"$work/log" 2>&1 &&
  [ -e "$work/stage/opt/tutti/lib/libnccl.so.2" ]
check $? "DESTDIR is put before PREFIX"
! grep -rlF -e "$root" -e "$work" "$prefix/lib/pkgconfig" "$prefix/lib/cmake" "$prefix/include" \
  "$prefix/share" >"$work/log"
check $? "no installed text names the build directory"

# ---- building against it
compile "$work/program" cc && runs "$work/program"
check $? "a C program builds with pkg-config and runs"
if command -v g++ >/dev/null; then
  compile "$work/program_cxx" "g++ -x c++ -std=c++17" && runs "$work/program_cxx"
  check $? "the same source compiles as C++17"
else
  echo "skip: C++ against the installed headers: g++ is not installed"
fi
compile "$work/program_sanitized" "cc -fsanitize=undefined,address" && runs "$work/program_sanitized"
check $? "a program with its own sanitizers works"
ldd "$work/program" >"$work/log" && grep -q "libnccl.so.2 => $prefix/lib" "$work/log"
check $? "the program finds the installed library without LD_LIBRARY_PATH"
mv "$prefix" "$work/moved"
runs env LD_LIBRARY_PATH="$work/moved/lib" "$work/program"
check $? "after the prefix has moved the program runs with LD_LIBRARY_PATH"
prefix="$work/moved"
compile "$work/program" cc && runs "$work/program"
check $? "after the prefix has moved pkg-config gives the new paths"
if command -v cmake >/dev/null; then
  mkdir "$work/project"
  cat >"$work/project/CMakeLists.txt" <<'CMAKE'
cmake_minimum_required(VERSION 3.13)
project(uses_tutti C)
find_package(tutti 0.1 REQUIRED)
add_executable(init_all ${SOURCE})
target_link_libraries(init_all PRIVATE tutti::emu)
CMAKE
  cmake -S "$work/project" -B "$work/project/build" -DSOURCE="$root/examples/init_all.c" \
    -DCMAKE_PREFIX_PATH="$prefix" >"$work/log" 2>&1 &&
    cmake --build "$work/project/build" >>"$work/log" 2>&1 &&
    runs "$work/project/build/init_all"
  check $? "a program builds with the CMake package and runs"
  sed -i 's/tutti 0.1 /tutti 9.0 /' "$work/project/CMakeLists.txt" &&
    ! cmake -S "$work/project" -B "$work/project/other" -DSOURCE=x.c -DCMAKE_PREFIX_PATH="$prefix" \
      >"$work/log" 2>&1 && grep -q 'version: 0.1' "$work/log"
  check $? "the CMake package refuses version 9"
else
  echo "skip: the CMake package: cmake is not installed"
fi
"$prefix/bin/tutti" bench all_reduce --ranks 2 -e 64 -q >"$work/log" 2>&1
check $? "the installed command runs"

# ---- the files
library="$prefix/lib/libnccl.so.2"
readelf -dW "$library" >"$work/log" && grep -q 'SONAME.*\[libnccl.so.2\]' "$work/log" &&
  ! grep -q RUNPATH "$work/log"
check $? "SONAME is libnccl.so.2, and no path is built in"
[ "$(readlink "$prefix/lib/libnccl.so")" != "" ] && [ "$(readlink "$library")" != "" ]
check $? "libnccl.so and libnccl.so.2 are links"
exports "$library" '^p?nccl[A-Z]|^tutti_'
check $? "libnccl.so.2 exports only nccl*, pnccl* and tutti_*"
exports "$prefix/lib/libtutti-audit.so" '^la_(version|objsearch)$'
check $? "libtutti-audit.so exports only the audit interface"
exports "$prefix/lib/libtutti-cudart.so" '^(__)?cuda'
check $? "libtutti-cudart.so exports only cuda*"
strip -o "$work/stripped.so" "$library" >"$work/log" 2>&1
size=$(wc -c <"$work/stripped.so")
echo "$size bytes" >"$work/log"
[ "$size" -gt 0 ] && [ "$size" -lt $SIZE_MAX_BYTES ]
check $? "the stripped library is smaller than 1.35 MiB"
# Programs reserve a page or less for thread-local variables of libraries that they load late.
readelf -lW "$library" >"$work/log" && [ "$(($(awk '$1 == "TLS" { print $6 }' "$work/log")))" -le 256 ]
check $? "its thread-local variables take at most 256 bytes"
cuda=$prefix/lib/libtutti-cuda.so
if [ -e "$cuda" ]; then
  readelf -dW "$cuda" >"$work/log" && ! grep -q STATIC_TLS "$work/log"
  check $? "libtutti-cuda.so needs no space for thread-local variables"
fi

# ---- loading it without linking
runs env LD_PRELOAD="$library" "$work/program"
check $? "the library works by LD_PRELOAD"
cat >"$work/load.py" <<'PYTHON'
"""The library through dlopen alone, as frameworks load it: two ranks in one group, host memory from Python's
view of the emulated runtime."""
import ctypes, sys
nccl = ctypes.CDLL(sys.argv[1])
cuda = ctypes.CDLL(sys.argv[2])
nccl.ncclGetErrorString.restype = nccl.ncclGetLastError.restype = ctypes.c_char_p
COUNT, FLOAT, SUM, TO_DEVICE, TO_HOST = 1000, 7, 0, 1, 2


def nccl_check(code):
    assert code == 0, (nccl.ncclGetErrorString(code), nccl.ncclGetLastError(None))


version = ctypes.c_int()
nccl_check(nccl.ncclGetVersion(ctypes.byref(version)))
assert version.value >= 22800, version
comms = (ctypes.c_void_p * 2)()
nccl_check(nccl.ncclCommInitAll(comms, 2, None))
buffers = []
size = ctypes.c_size_t(4 * COUNT)
for rank in range(2):
    assert cuda.cudaSetDevice(rank) == 0
    pointer = ctypes.c_void_p()
    assert cuda.cudaMalloc(ctypes.byref(pointer), size) == 0
    values = (ctypes.c_float * COUNT)(*[i + rank for i in range(COUNT)])
    assert cuda.cudaMemcpy(pointer, values, size, TO_DEVICE) == 0
    buffers.append(pointer)
nccl_check(nccl.ncclGroupStart())
for rank in range(2):
    nccl_check(nccl.ncclAllReduce(buffers[rank], buffers[rank], ctypes.c_size_t(COUNT), FLOAT, SUM,
                                  ctypes.c_void_p(comms[rank]), None))
nccl_check(nccl.ncclGroupEnd())
for rank in range(2):
    assert cuda.cudaSetDevice(rank) == 0 and cuda.cudaDeviceSynchronize() == 0
    values = (ctypes.c_float * COUNT)()
    assert cuda.cudaMemcpy(values, buffers[rank], size, TO_HOST) == 0
    assert list(values) == [2.0 * i + 1 for i in range(COUNT)]
    nccl_check(nccl.ncclCommDestroy(ctypes.c_void_p(comms[rank])))
print('ok')
PYTHON
if command -v python3 >/dev/null; then
  runs python3 "$work/load.py" "$library" "$prefix/lib/libtutti-cudart.so"
  check $? "python3 loads the library with ctypes and sums over two ranks"
else
  echo "skip: loading with ctypes: python3 is not installed"
fi

# ---- uninstalling
touch "$work/stage/opt/tutti/lib/not_ours"
(cd "$root" && scons -Q -s uninstall DESTDIR="$work/stage" PREFIX=/opt/tutti) >"$work/log" 2>&1 &&
  find "$work/stage" ! -type d >>"$work/log" &&
  [ "$(find "$work/stage" ! -type d)" = "$work/stage/opt/tutti/lib/not_ours" ] &&
  [ ! -e "$work/stage/opt/tutti/share" ] && [ -e "$root/build/lib/libnccl.so.2" ] &&
  [ -x "$root/build/bin/tutti" ]
check $? "scons uninstall removes what install copied, and nothing else"

[ "$failures" -eq 0 ]
