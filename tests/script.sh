# script.sh: what the test scripts share: `. "$(dirname "$0")/script.sh"` first. Sets $here (tests/), $root,
# $work (a folder that goes when the script ends) and $failures; unsets what would change the library.
# shellcheck shell=sh disable=SC2034
set -u
unset NCCL_PROTO NCCL_ALGO NCCL_DEBUG TUTTI_EMU TUTTI_SEED TUTTI_TRACE TUTTI_BACKEND
export LC_ALL=C
here=$(cd "$(dirname "$0")" && pwd)
root=$(dirname "$here")
work=$(mktemp -d) || exit 3
trap 'rm -rf "$work"' EXIT
failures=0

# Finds the finished build, ${BUILD:-build}, for pkg-config.
use_build() {
  build=$(cd "${BUILD:-$root/build}" && pwd) || exit 3
  export PKG_CONFIG_PATH="$build/lib/pkgconfig"
}

# check STATUS DESCRIPTION: one line; on failure also what the last command said, in $work/log.
check() {
  if [ "$1" -eq 0 ]; then
    echo "ok - $2"
    return
  fi
  echo "not ok - $2"
  [ -s "$work/log" ] && tail -n 20 "$work/log" | sed 's/^/    /'
  failures=$((failures + 1))
}
