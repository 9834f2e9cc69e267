#!/bin/sh
# test_docs.sh: every command that a document shows is run, and outputs are what the documents show; what
# cannot run here says why (test_docs.py has the rules). Finds the build at ${BUILD:-build}.
# runner: 60 s
. "$(dirname "$0")/script.inc"
use_build
python3 "$here/test_docs.py" --build "$build"
