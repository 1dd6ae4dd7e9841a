# shellcheck shell=bash
# Sourced by every script here: repository root, headings with elapsed seconds, ticks and crosses, error exits.
# Owns nothing but the look of the output; knows neither packages nor build folders.

deltron_root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
deltron_started=${DELTRON_STARTED:-$(date +%s)}
export DELTRON_STARTED=$deltron_started  # scripts called by this one count from the same start

# Signs, two columns wide: UTF-8 only where the locale says so; colour only on a terminal that wants it.
case "${LC_ALL:-${LC_CTYPE:-${LANG:-}}}" in
  *UTF-8* | *utf-8* | *UTF8* | *utf8*) sign_yes='✓ ' sign_no='✗ ' sign_none='– ' ;;
  *) sign_yes='ok' sign_no='NO' sign_none='- ' ;;
esac
if [[ -t 1 && -z "${NO_COLOR:-}" && "${TERM:-dumb}" != dumb ]]; then
  colour_good=$'\e[32m' colour_bad=$'\e[31m' colour_title=$'\e[1m' colour_off=$'\e[0m'
else
  colour_good='' colour_bad='' colour_title='' colour_off=''
fi
export deltron_root sign_yes sign_no sign_none colour_good colour_bad colour_title colour_off

elapsed_seconds() { echo $(($(date +%s) - deltron_started)); }

# heading TEXT: opens a phase, with the seconds since the first script started.
heading() { printf '\n%s== %s (at %s s)%s\n' "$colour_title" "$1" "$(elapsed_seconds)" "$colour_off"; }

# die EXIT_CODE MESSAGE...: one message to stderr, then the end.
die() {
  local code=$1
  shift
  printf '%serror:%s %s\n' "$colour_bad" "$colour_off" "$*" >&2
  exit "$code"
}

# need_value OPTION REMAINING_ARGUMENT_COUNT: an option that lacks its value is a usage error.
need_value() { (($2 >= 2)) || die 2 "option $1 needs a value; --help lists the options"; }

# usage_from_header FILE: prints the comment block below the shebang as the help text.
usage_from_header() { awk 'NR > 1 { if ($0 !~ /^#/) exit; sub(/^# ?/, ""); print }' "$1"; }

deltron_ctest_prefix=()
# run_tests BUILD_FOLDER [CTEST_OPTION...]: ctest on two cores at most, then the slowest tests and one closing line.
# Returns ctest's exit code; no test at all is a failure. The array deltron_ctest_prefix goes before the command.
run_tests() {
  local folder=$1 output code=0 jobs
  shift
  jobs=$(nproc)
  ((jobs > 2)) && jobs=2
  output=$(mktemp)
  "${deltron_ctest_prefix[@]}" ctest --test-dir "$folder" -j "$jobs" --output-on-failure --no-tests=error --timeout 900 "$@" 2>&1 | tee "$output" || code=$?
  printf '\nslowest tests\n'
  awk '/^ *[0-9]+\/[0-9]+ Test +#[0-9]+: / && $NF == "sec" { name = $0; sub(/^[^:]*: /, "", name); sub(/ .*/, "", name); printf "%9.2f s  %s\n", $(NF - 1), name }' \
    "$output" | sort -rn | awk 'NR <= 10'  # not head: it closes the pipe early, and sort would die of SIGPIPE
  awk -v code="$code" -v colour_good="$colour_good" -v colour_bad="$colour_bad" -v off="$colour_off" '
    /^ *[0-9]+\/[0-9]+ Test +#[0-9]+: / && $NF == "sec" { ran++; if (/\*\*\*Skipped/) skipped++; else if (!/ Passed +[0-9.]+ sec$/) failed++ }
    /^Total Test time/ { seconds = $(NF - 1) }
    END {
      if (code == 0) printf "%sall %d tests passed%s, %d more skipped, %.0f s\n", colour_good, ran - skipped, off, skipped, seconds
      else printf "%sFAILED%s: %d of %d tests failed, %d skipped, %.0f s (ctest exit code %d)\n", colour_bad, off, failed, ran, skipped, seconds, code
    }' "$output"
  rm -f "$output"
  return "$code"
}
