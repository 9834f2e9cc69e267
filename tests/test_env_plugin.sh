#!/bin/sh
# test_env_plugin.sh: environment plugins (NCCL_ENV_PLUGIN) of both versions of the interface come before the
# environment; those that fail are named and left. Prints one `ok - ` or `not ok - ` line per check and fails
# if a check failed. Finds the build at ${BUILD:-build}.
# runner: 3 s
. "$(dirname "$0")/script.inc"
use_build
plugins=$build/tests/plugins
unset NCCL_ENV_PLUGIN NCCL_ALGO TUTTI_TEST_ALGO TUTTI_TEST_INIT
export NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=ENV

has() {
  grep -q -e "$1" "$work/log"
  noted $? "a line like $1"
}
bench() {
  timeout 60 "$build/bin/tutti" bench all_reduce -b 4K -e 4K -g 2 -w 0 -n 1 "$@" >"$work/log" 2>&1 </dev/null
}

for version in 1 2; do
  export NCCL_ENV_PLUGIN="$plugins/libnccl-env-test$version.so"
  TUTTI_TEST_ALGO=Ring bench && has 'Settings are asked of environment plugin Test' &&
    has 'NCCL_ALGO set by environment plugin Test to Ring'
  check $? "version $version: a setting comes from the plugin"
  NCCL_ALGO=Tree TUTTI_TEST_ALGO=Ring bench && has 'NCCL_ALGO set by environment plugin Test to Ring'
  check $? "version $version: the plugin comes before the environment"
  NCCL_ALGO=Tree bench && has 'NCCL_ALGO set by environment to Tree'
  check $? "version $version: what the plugin does not know comes from the environment"
  ! TUTTI_TEST_ALGO=rnig bench && has "NCCL_ALGO: 'rnig' is none of Tree, Ring"
  check $? "version $version: a wrong value of the plugin's is refused as any other"
done
has 'test environment: init for 2.30'
check $? 'what the plugin said when it began is logged'
NCCL_ENV_PLUGIN=test2 LD_LIBRARY_PATH=$plugins TUTTI_TEST_ALGO=Ring bench && has 'plugin Test to Ring'
check $? 'a plugin is found by its name'
NCCL_ENV_PLUGIN=none TUTTI_TEST_ALGO=Ring bench && ! grep -q 'environment plugin' "$work/log"
check $? 'none: no plugin is loaded'

while IFS='|' read -r plugin init text; do
  [ -z "$init" ] || export TUTTI_TEST_INIT=$init
  NCCL_ENV_PLUGIN=$plugin NCCL_ALGO=Tree NCCL_DEBUG= bench && has "$text"
  check $? "left out: $text"
done <<T
nonsense||NCCL_ENV_PLUGIN: 'nonsense' cannot be loaded: nonsense: cannot open.*libnccl-env-nonsense.so
$plugins/libnccl-env-test0.so||libnccl-env-test0.so is left out: it has no table of version 1 to 2
$plugins/libnccl-env-test1.so|1|environment plugin 'Test' .* is left out: its init fails with 2
$plugins/libnccl-env-test2.so|1|environment plugin 'Test' .* is left out: its init fails with 2
T
[ $failures -eq 0 ]
