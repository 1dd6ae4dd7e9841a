#!/usr/bin/env bash
# Installs what is missing, builds everything (CUDA code where nvcc is) into build/release and runs every test.
#
#   scripts/test.sh [--no-setup] [CTEST_OPTION...]      example: scripts/test.sh --no-setup -L unit
#
# DELTRON_CUDA=OFF|ON|AUTO overrides whether CUDA code is built; DELTRON_REQUIRE_GPU=1 makes a skipped GPU test a failure.
# Exit code 0 only if at least one test ran and none failed.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

setup=1 ctest_options=()
while (($#)); do
  case $1 in
    --no-setup) setup=0 ;;
    -h | --help) usage_from_header "$0"; exit 0 ;;
    *) ctest_options+=("$1") ;;
  esac
  shift
done
cd "$deltron_root"

if ((setup)); then
  heading 'set-up'
  scripts/setup.sh --tests
fi

heading 'build'
scripts/build.sh release -- -DDELTRON_TESTS=ON "-DDELTRON_CUDA=${DELTRON_CUDA:-AUTO}"

heading 'tests'
run_tests build/release "${ctest_options[@]}"
