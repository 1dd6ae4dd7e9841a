#!/usr/bin/env bash
# What general compressors need for a text, in bits per (UTF-8) character.
#
#   scripts/compressors.sh FILE
#
# Prints "gzip -9 N.NNN bits per character" and "bzip2 N.NNN bits per character".
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

[[ "${1:-}" == -h || "${1:-}" == --help ]] && { usage_from_header "$0"; exit 0; }
file=${1:-}
[[ -n $file && -s $file ]] || die 3 "'$file': no such file, or empty"
for program in gzip bzip2; do
  command -v "$program" >/dev/null || die 3 "the program '$program' is not in PATH; the Debian package has the same name"
done
# Continuation bytes (0x80 to 0xBF) are left out: what remains is one byte a character.
characters=$(LC_ALL=C tr -d '\200-\277' <"$file" | wc -c)

report() {  # NAME BYTES
  LC_ALL=C awk -v name="$1" -v bytes="$2" -v characters="$characters" \
    'BEGIN { printf "%s %.3f bits per character\n", name, 8 * bytes / characters }'
}
report 'gzip -9' "$(gzip -9 -n -c <"$file" | wc -c)"
report 'bzip2' "$(bzip2 -9 -c <"$file" | wc -c)"
