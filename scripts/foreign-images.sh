#!/usr/bin/env bash
# Reads and checks the broken images of e2fsprogs' own tests, which are not kept here (their licence is another).
# TESTS: the folder `tests` of its sources, with */image.gz and */image.bz2. UEXT4 (default: the release build): the
# program.
# Says where `uext4 check` and `e2fsck -fn` disagree whether there is damage, where e2fsck did not end (within
# FSCK_LIMIT seconds, default 60: no judgement), and what took us longer than LIMIT seconds (default 10) or changed an
# image; fails on the latter two and on any exit status of ours above 1 (1 is damage found, 2 a wrong request). The rest
# is for people: e2fsck -n neither replays the log nor counts an answer "no" to a minor question as damage.
set -euo pipefail
PATH=$PATH:/usr/sbin:/sbin
shopt -s nullglob
tests=${1:?usage: foreign-images.sh TESTS}
target=$(cd "$(dirname "$0")/.." && . scripts/target.sh && echo "$target")
uext4=${UEXT4:-$target/release/uext4} limit=${LIMIT:-10}
fsck_limit=${FSCK_LIMIT:-60}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
images=0 failed=0 agree=0 endless=0

# status NAME COMMAND…: its exit status, a failure if that is none of ours or comes too late.
status() {
    local name=$1 result=0
    shift
    timeout "$limit" "$@" > "$work/out" 2> "$work/err" || result=$?
    if [ "$result" -gt 1 ]; then
        echo "FAILED: $name: $*: exit status $result: $(head -n 1 "$work/err")" >&2
        failed=$((failed + 1))
    fi
    code=$result
}

for packed in "$tests"/*/image.gz "$tests"/*/image.bz2; do
    name=$(basename "$(dirname "$packed")") image=$work/image
    case $packed in
        *.gz) gunzip -c "$packed" > "$image" ;;
        *) bunzip2 -c "$packed" > "$image" ;;
    esac
    images=$((images + 1))
    cp --sparse=always "$image" "$work/copy"
    for line in "info $image" "ls -R $image:/" "find $image:/" "du $image:/" "df $image"; do
        # shellcheck disable=SC2086
        status "$name" "$uext4" $line
    done
    status "$name" "$uext4" check "$image"
    ours=$code
    cmp -s "$image" "$work/copy" || { echo "FAILED: $name: the image was changed" >&2; failed=$((failed + 1)); }
    theirs=0
    timeout "$fsck_limit" e2fsck -fn "$work/copy" > "$work/fsck" 2>&1 || theirs=$?
    # By the time limit (124) or by a signal.
    if [ "$theirs" -ge 124 ]; then
        endless=$((endless + 1))
        echo "$name: uext4 check $ours, e2fsck -fn did not end"
    elif [ $((ours == 0)) = $((theirs == 0)) ]; then
        agree=$((agree + 1))
    else
        echo "$name: uext4 check $ours, e2fsck -fn $theirs: $(grep -m 1 -E '^(error|note)|finding' "$work/out" || true)"
    fi
done
echo "$images images, $agree judged alike, $((images - agree - endless)) otherwise;" \
    "e2fsck did not end on $endless; $failed failures"
[ "$images" -gt 0 ] && [ "$failed" -eq 0 ]
