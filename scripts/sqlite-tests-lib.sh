# Sourced by scripts/sqlite-tests.sh: runs files of tests and adds up.
# shellcheck shell=bash

declare -A file_out test_out met files_for tests_for
files=0 tests=0 known=0 unknown=0 files_out=0
bad=()

# The list: `= REASON`, then lines `file [SETTING:]PATTERN` and `test NAME`.
read_list() {
    local kind name reason=
    while read -r kind name; do
        case $kind in
            =) reason=$name ;;
            file) file_out[$name]=$reason ;;
            test) test_out[$name]=$reason ;;
            ''|'#'*) ;;
            *) say "the list has a line that begins with $kind"; exit 1 ;;
        esac
    done < "$suite/left-out.txt"
}

# reason_for SETTING FILE: prints why it is left out, if it is.
reason_for() {
    local pattern
    for pattern in "${!file_out[@]}"; do
        # shellcheck disable=SC2053  # a pattern, of files in all settings or in one
        if [[ $pattern = *:* ]]; then [[ $1:$2 = $pattern ]] || continue; else [[ $2 = $pattern ]] || continue; fi
        echo "${file_out[$pattern]}"
        return
    done
}

volume() {
    rm -f "$home/suite.img"
    truncate -s 1G "$home/suite.img"
    mke2fs -q -F -t ext4 -d "$home/tree" "$home/suite.img"
}

clean() {
    e2fsck -fn "$home/suite.img" > "$home/e2fsck" 2>&1 && "$target/release/uext4" check "$home/suite.img" \
        >> "$home/e2fsck" 2>&1 && return
    cat "$home/e2fsck" >&2
    bad+=("$1: the volume is not clean")
}

# fixture SETTING [FILE]
fixture() {
    # What a file leaves on the host, by SQLite's own VFS, is no business of the next one.
    rm -rf "$home/host"
    mkdir "$home/host"
    (
        [ "$1" != wal_alone ] || export UEXT4_SUITE_WAL=1
        cd "$home/host"
        export UEXT4_SUITE_IMAGE=$home/suite.img
        timeout -k 5 "$limit" "$out/build/testfixture" "$suite/suite.tcl" "$source/test" "$@" --testdir=/uext4 \
            --verbose=0
    )
}

# judge SETTING FILE LOG STATUS: adds up what a run said.
judge() {
    local setting=$1 file=$2 log=$3 status=$4 said name reason known_before=$known unknown_before=$unknown
    said=$(grep -a '^[0-9]* errors out of [0-9]* tests' "$log" | tail -n 1) || true
    [ -n "$said" ] || { bad+=("$setting $file: ended with $status before its end"); return; }
    tests=$((tests + $(cut -d' ' -f5 <<< "$said")))
    for name in $(sed -n 's/^!Failures on these tests: *//p' "$log"); do
        name=${name#"$setting".}
        reason=${test_out[$name]:-}
        if [ -n "$reason" ]; then
            known=$((known + 1)) met[$name]=1
            tests_for[$reason]=$((${tests_for[$reason]:-0} + 1))
        else
            unknown=$((unknown + 1))
            bad+=("$setting $file: $name")
        fi
    done
    [ "$status" -eq 0 ] || [ "$unknown" -gt "$unknown_before" ] || [ "$known" -gt "$known_before" ] ||
        bad+=("$setting $file: $(grep -a -e 'left open' -e '^Unfreed' "$log" || echo "status $status")")
}

# run_setting SETTING[:FILE]
run_setting() {
    local setting=${1%%:*} list file log status reason start=$SECONDS tests_before=$tests files_before=$files
    list=${1#"$setting"}
    list=${list#:}
    volume
    [ -n "$list" ] || list=$(fixture "$setting" | grep '\.test$')
    for file in $list; do
        reason=$([ "$1" != "$setting" ] || reason_for "$setting" "$file")
        if [ -n "$reason" ]; then
            files_out=$((files_out + 1)) files_for[$reason]=$((${files_for[$reason]:-0} + 1))
            continue
        fi
        log=$out/logs/$setting.$file.log status=0
        fixture "$setting" "$file" < /dev/null > "$log" 2>&1 || status=$?
        files=$((files + 1))
        judge "$setting" "$file" "$log" "$status"
    done
    clean "$setting"
    echo "sqlite-tests: $setting: $((tests - tests_before)) tests in $((files - files_before)) files," \
        "$((SECONDS - start)) s"
}

tell() {
    local line
    for line in "${bad[@]}"; do echo "FAILED $line"; done
    echo "sqlite-tests: left out, and why:"
    sed -n 's/^= //p' "$suite/left-out.txt" | while read -r line; do
        echo "    ${files_for[$line]:-0} files, ${tests_for[$line]:-0} tests of others: $line"
    done
    echo "sqlite-tests: SQLite $version: $files files run and $files_out left out;" \
        "$((tests - known - unknown)) tests passed, $unknown failed, $known do not apply"
    [ "${#bad[@]}" -eq 0 ]
}
