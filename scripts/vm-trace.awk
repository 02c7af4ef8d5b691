# Instructions by function (scripts/vm-count.sh --trace): from the guest's lines, and the file `traced` of symbols and
# counts that are sorted by address. For each shape a table of what the ring, ext4 and uext4 spend where.
BEGIN { FS = "," }
{
    shape[NR] = $2
    arm[NR] = $3
    requests[$2] = $4
    if (!($2 in known)) { known[$2] = 1; shapes[++shape_count] = $2 }
}
END {
    while ((getline line < traced) > 0) {
        split(line, word, " ")
        if (word[2] == 0) { name = word[3]; continue }
        at = word[3] + 1
        count[shape[at], arm[at], name] += word[4]
        total[shape[at], arm[at]] += word[4]
        names[name] = 1
    }
    for (s = 1; s <= shape_count; s++) {
        kind = shapes[s]
        each = requests[kind]
        printf "\n| %s | ring | ext4 | uext4 | uext4 - ring |\n|---|--:|--:|--:|--:|\n", kind
        printf "| all | %.0f | %.0f | %.0f | %+.0f |\n", total[kind, "ring"] / each,
            total[kind, "ext4"] / each, total[kind, "uext4"] / each,
            (total[kind, "uext4"] - total[kind, "ring"]) / each
        sorter = "LC_ALL=C sort -t '|' -k 6,6nr"
        for (name in names) {
            ring = count[kind, "ring", name] / each
            theirs = count[kind, "ext4", name] / each
            ours = count[kind, "uext4", name] / each
            if (ring < 2 && theirs < 2 && ours < 2) continue
            printf "| `%s` | %.0f | %.0f | %.0f | %.0f |\n", name, ring, theirs, ours, ours - ring | sorter
        }
        close(sorter)
    }
}
