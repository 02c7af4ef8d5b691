# Turns the lines of the guest that counts into tables, and compares with what was promised (scripts/vm-count.sh).
# Variable `csv`: a file for the figures; `totals`: what the plugin counted. Where the processor waits for a device the
# guest's clock is no measure, and the plugin's figures are taken: `nvme-` shapes, and `processors` above 1, of which one
# may wait for another.
BEGIN {
    FS = ","
    print "shape,arm,requests,slices,median,least,most,clock,plugin" > csv
    while ((getline line < totals) > 0) {
        if (line == "PROGRAM") group++
        else groups[group] = groups[group] substr(line, 6)
    }
    programs = group
    group = 0
}
# Puts the slices of a program into `slice`, sorted; how many.
function by_plugin(group,   count, i, j, held) {
    count = split(substr(groups[group], 2), slice, ",")
    for (i = 2; i <= count; i++) {
        held = slice[i] + 0
        for (j = i - 1; j >= 1 && slice[j] + 0 > held; j--) slice[j + 1] = slice[j]
        slice[j + 1] = held
    }
    return count
}
/^KERNEL / {
    print
    print ""
    if (!index($0, "processors " processors ",")) { print "not " processors " processors"; failed = 1; exit }
    split($0, word, /[ .]/)
    # Promised for kernels that take any registered memory for NVMe commands.
    newer = word[2] > 6 || word[2] == 6 && word[3] >= 12
}
/^SKIP / { skipped = skipped $0 "\n" }
/^PROGRAM,/ { group++ }
/^COUNT,/ {
    shape = $2
    if (!(shape in arms)) shapes[++shape_count] = shape
    arms[shape] = arms[shape] (arms[shape] == "" ? "" : ",") $3
    requests = $4
    count = by_plugin(group)
    if (count != $5) { printf "%s %s: the plugin saw %d slices\n", shape, $3, count; failed = 1; exit }
    plugin = slice[int(count / 2) + 1] / requests
    if (shape ~ /^nvme-/ || processors > 1) {
        $6 = sprintf("%.1f", plugin)
        $7 = sprintf("%.1f", slice[1] / requests)
        $8 = sprintf("%.1f", slice[count] / requests)
    } else {
        apart = plugin - $6
        if (apart < 0) apart = -apart
        if (apart > furthest) { furthest = apart; furthest_at = shape " " $3 }
    }
    median[shape, $3] = $6
    spread[shape, $3] = ($8 - $7) / $6 * 100
    if (spread[shape, $3] > widest) { widest = spread[shape, $3]; where = shape " " $3 }
    printf "%s,%s,%s,%s,%s,%s,%s,%s,%.1f\n", shape, $3, $4, $5, $6, $7, $8, $9, plugin > csv
}
function ratio(shape, over, under) {
    if (!((shape, over) in median) || !((shape, under) in median)) return 0
    return median[shape, over] / median[shape, under]
}
# Promises: text, what was found, the least, the goal.
function promise(text, found, floor, goal) {
    if (found == 0) return
    verdict = found >= goal ? "goal" : found >= floor ? "floor" : "MISSED"
    printf "| %s | %.2f | %.2f | %.2f | %s |\n", text, found, floor, goal, verdict
}
END {
    if (failed) exit 1
    if (!shape_count) { print "nothing was counted"; exit 1 }
    # The n-th program of the guest is the n-th that the plugin saw: one line lost, and all others are another's.
    if (group != programs) { printf "%d programs, the plugin saw %d\n", group, programs; exit 1 }
    print "| shape | arm | instructions | spread, % | over the base | ext4 / arm |"
    print "|---|---|--:|--:|--:|--:|"
    for (s = 1; s <= shape_count; s++) {
        shape = shapes[s]
        count = split(arms[shape], names, ",")
        # The base of a shape: a ring, or a copy.
        base = (shape, "map") in median ? "map" : "ring"
        for (a = 1; a <= count; a++) {
            name = names[a]
            over = (shape, base) in median ? sprintf("%+.0f", median[shape, name] - median[shape, base]) : ""
            against = (shape, "ext4") in median ? sprintf("%.2f", ratio(shape, "ext4", name)) : ""
            printf "| %s | %s | %.0f | %.2f | %s | %s |\n",
                shape, name, median[shape, name], spread[shape, name], over, against
        }
    }
    printf "\nWidest spread of the slices: %.2f %% (%s).\n", widest, where
    if (furthest_at != "") printf "Clock and plugin are apart by at most %.1f instructions a request (%s).\n", furthest, furthest_at
    if (skipped != "") printf "\n%s", skipped
    # What one processor is promised. Of several, one may spin while another has a lock.
    if (processors > 1) exit
    print "\n| promise | found | floor | goal | |"
    print "|---|--:|--:|--:|---|"
    promise("queued-read: ext4 / uext4", ratio("queued-read", "ext4", "uext4"), 1.1, 1.18)
    promise("polled-read: ext4 / uext4", ratio("polled-read", "ext4", "uext4"), 1.2, 1.30)
    promise("queued-overwrite: ext4 / uext4", ratio("queued-overwrite", "ext4", "uext4"), 1.7, 2.0)
    promise("polled-overwrite: ext4 / uext4", ratio("polled-overwrite", "ext4", "uext4"), 1.3, 1.45)
    promise("sync-overwrite: ext4 / uext4", ratio("sync-overwrite", "ext4", "uext4"), 1.05, 1.2)
    promise("names-stat: ext4 / uext4", ratio("names-stat", "ext4", "uext4"), 2, 5)
    promise("names-open: ext4 / uext4", ratio("names-open", "ext4", "uext4"), 2, 5)
    promise("names-create: ext4 / uext4", ratio("names-create", "ext4", "uext4"), 1, 1.5)
    promise("names-unlink: ext4 / uext4", ratio("names-unlink", "ext4", "uext4"), 1, 1.5)
    promise("names-rename: ext4 / uext4", ratio("names-rename", "ext4", "uext4"), 1, 1.5)
    promise("names-mkdir: ext4 / uext4", ratio("names-mkdir", "ext4", "uext4"), 1, 1.5)
    promise("hole-write: ext4 / uext4", ratio("hole-write", "ext4", "uext4"), 1, 1.2)
    promise("hole-queued: ext4 / uext4", ratio("hole-queued", "ext4", "uext4"), 1, 1.2)
    promise("fallocate: ext4 / uext4", ratio("fallocate", "ext4", "uext4"), 1, 1.2)
    promise("punch: ext4 / uext4", ratio("punch", "ext4", "uext4"), 1, 1.2)
    promise("fast-append-fsync: ext4 / uext4", ratio("fast-append-fsync", "ext4", "uext4"), 1, 1.2)
    promise("fast-create-fsync: ext4 / uext4", ratio("fast-create-fsync", "ext4", "uext4"), 1, 1.2)
    if (newer) {
        promise("nvme-read: block device, ring / uext4", ratio("nvme-read", "ring", "uext4"), 1.15, 1.3)
        promise("nvme-read: ext4 / uext4", ratio("nvme-read", "ext4", "uext4"), 1.5, 1.8)
    }
    for (s = 1; s <= 2; s++) {
        shape = s == 1 ? "queued-read" : "polled-read"
        if (!((shape, "uext4") in median)) continue
        over = median[shape, "uext4"] - median[shape, "ring"]
        printf "| %s: uext4 over the ring, instructions | %.0f | 300 | 200 | %s |\n",
            shape, over, over <= 200 ? "goal" : over <= 300 ? "floor" : "MISSED"
    }
}
