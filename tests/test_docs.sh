#!/bin/sh
# test_docs.sh: runs every command that a document shows and compares outputs with the document; a command
# that cannot run here has a stated reason (rules in test_docs.py). Finds the build at ${BUILD:-build}.
# runner: 60 s
. "$(dirname "$0")/script.inc"
use_build
python3 "$here/test_docs.py" --build "$build"
