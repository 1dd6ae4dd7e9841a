#!/bin/sh
# Takes the King James Bible out of Debian's bible-kjv package as plain text: references stripped, one verse a line, one document a
# chapter (1,189), documents separated by a form feed. Usage: prepare_kjv.sh OUTPUT.txt
# Then: deltron data prepare OUTPUT.txt --document-separator '\f' --output PREFIX
set -eu

output=${1:?usage: prepare_kjv.sh OUTPUT.txt}
# The form feed leaves each chapter its last newline: text without separators is the whole Bible, byte for byte.
expected_chapters=1189
expected_verses=31102
expected_characters=4137850

if ! command -v bible >/dev/null 2>&1; then
  echo "prepare_kjv.sh: the program 'bible' was not found in PATH; Debian/Ubuntu packages: bible-kjv bible-kjv-text (scripts/setup.sh installs them)" >&2
  exit 3
fi
mkdir -p "$(dirname "$output")"
temporary="$output.tmp.$$"
trap 'rm -f "$temporary" "$temporary.raw"' EXIT
trap 'exit 75' INT TERM

LC_ALL=C bible -f 'Genesis1:1-Revelation22:21' > "$temporary.raw" </dev/null
LC_ALL=C awk -v chapters="$expected_chapters" -v verses="$expected_verses" -v characters="$expected_characters" '
  {
    space = index($0, " ")
    colon = index($0, ":")
    if (space == 0 || colon == 0 || colon > space) {
      print "prepare_kjv.sh: line " NR " has no reference: " $0 > "/dev/stderr"
      bad = 1
      exit
    }
    chapter = substr($0, 1, colon - 1)
    text = substr($0, space + 1)
    if (NR > 1 && chapter != last) printf "\f"
    if (chapter != last) count++
    last = chapter
    print text
    total += length(text) + 1
  }
  END {
    if (bad) exit 3
    if (count != chapters || NR != verses || total != characters) {
      printf "prepare_kjv.sh: found %d chapters, %d verses, %d characters; expected %d, %d, %d\n", count, NR, total, chapters, verses, characters > "/dev/stderr"
      exit 3
    }
    printf "King James Bible: %d chapters, %d verses, %d characters\n", count, NR, total > "/dev/stderr"
  }' "$temporary.raw" > "$temporary"
mv "$temporary" "$output"
