#!/bin/sh
# test_header.sh: nccl.h and tutti.h compile on their own, as C11 and as C++17, without a warning; libnccl
# exports only nccl*, pnccl* and tutti_*, and each ncclX is weak; a program may unload it. Prints one `ok - `
# or `not ok - ` line per check.
set -u
export LC_ALL=C
here=$(cd "$(dirname "$0")" && pwd)
library=${BUILD:-$here/../build}/lib/libnccl.so
work=$(mktemp -d) || exit 3
trap 'rm -rf "$work"' EXIT
failures=0

# check STATUS DESCRIPTION
check() {
  if [ "$1" -eq 0 ]; then echo "ok - $2"; return; fi
  echo "not ok - $2"
  sed -n '1,12s/^/    /p' "$work/out"
  failures=$((failures + 1))
}

flags="-Wall -Wextra -Wpedantic -Werror -fsyntax-only -I$here/../lib"
for header in nccl.h tutti.h; do
  echo "#include \"$header\"" >"$work/alone.c"
  cp "$work/alone.c" "$work/alone.cpp"
  # shellcheck disable=SC2086
  ${CC:-gcc} -std=c11 $flags "$work/alone.c" >"$work/out" 2>&1
  check $? "$header compiles on its own as C11"
  if command -v "${CXX:-g++}" >/dev/null; then
    # shellcheck disable=SC2086
    ${CXX:-g++} -std=c++17 $flags "$work/alone.cpp" >"$work/out" 2>&1
    check $? "$header compiles on its own as C++17"
  fi
done

if [ -e "$library" ] && command -v nm >/dev/null; then
  nm -D --defined-only "$library" | awk '{print $2, $3}' | sed 's/@.*//' >"$work/symbols"
  grep -vE ' (nccl[A-Z]|pnccl[A-Z]|tutti_)' "$work/symbols" | grep -v '^A ' >"$work/out"
  check $((! $?)) "libnccl exports only nccl*, pnccl* and tutti_*"
  sed -n 's/^T pnccl/W nccl/p' "$work/symbols" | sort >"$work/wanted"
  grep '^W nccl' "$work/symbols" | sort | diff "$work/wanted" - >"$work/out"
  check $? "each pnccl symbol has its weak nccl symbol"
fi

# The library's thread runs on; its code must stay.
if [ -e "$library" ]; then
  cat >"$work/unload.c" <<'END'
#include <dlfcn.h>
#include <stdio.h>
int main(int argc, char **argv) {
  char id[128];
  void *library = dlopen(argv[argc - 1], RTLD_NOW);
  int (*get)(void *) = (int (*)(void *))dlsym(library, "ncclGetUniqueId");
  if (get == NULL || get(id) != 0 || dlclose(library) != 0) return 1;
  puts("unloaded");
  return 0;
}
END
  ${CC:-gcc} -o "$work/unload" "$work/unload.c" -ldl 2>"$work/out" &&
    NCCL_SOCKET_IFNAME=lo timeout 60 "$work/unload" "$library" >"$work/out" 2>&1
  check $? "a program may unload the library"
fi
exit $((failures > 0))
