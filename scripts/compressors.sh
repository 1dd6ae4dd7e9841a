#!/bin/sh
# What general compressors need for a text, in bits per character (UTF-8 characters). Usage: compressors.sh FILE
set -eu

file=${1:?usage: compressors.sh FILE}
if [ ! -s "$file" ]; then
  echo "compressors.sh: $file: no such file, or empty" >&2
  exit 3
fi
# Continuation bytes (0x80-0xBF) are not counted: what is left is one byte a character.
characters=$(LC_ALL=C tr -d '\200-\277' < "$file" | wc -c)
for program in gzip bzip2; do
  if ! command -v "$program" >/dev/null 2>&1; then
    echo "compressors.sh: the program '$program' was not found in PATH; the Debian/Ubuntu package has the same name" >&2
    exit 3
  fi
done
report() {  # NAME BYTES
  LC_ALL=C awk -v name="$1" -v bytes="$2" -v characters="$characters" 'BEGIN { printf "%s %.3f bits per character\n", name, 8 * bytes / characters }'
}
report "gzip -9" "$(gzip -9 -n -c < "$file" | wc -c)"
report "bzip2" "$(bzip2 -9 -c < "$file" | wc -c)"
