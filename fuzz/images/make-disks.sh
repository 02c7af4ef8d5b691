#!/usr/bin/env bash
# Makes the base images of the fuzz target disk_image again: small qcow2 and VMDK images that together hold every
# structure. They are kept in the repository (NAME.zst), because another version of QEMU would make other bytes.
set -euo pipefail
cd "$(dirname "$0")"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

keep() { zstd -q -19 -f "$work/$1" -o "$1.zst"; }
fill=(-c "write -P 1 3k 20k" -c "write -P 2 100k 9k" -c "write -z 200k 40k" -c "write -P 3 1020k 4k")
# qcow2 NAME OPTIONS
qcow2() {
    qemu-img create -q -f qcow2 -o "$2" "$work/$1" 1M
    qemu-io "${fill[@]}" "$work/$1" > "$work/said"
}
qcow2 qcow2-plain cluster_size=1024
qcow2 qcow2-subclusters cluster_size=16384,extended_l2=on
qcow2 qcow2-snapshot cluster_size=1024
qemu-img snapshot -c one "$work/qcow2-snapshot"
qemu-io -c "write -P 4 8k 8k" "$work/qcow2-snapshot" > "$work/said"
qemu-img create -q -f qcow2 -o compat=0.10,cluster_size=4096 "$work/qcow2-old" 1M
qemu-io -c "write -P 1 3k 20k" -c "write -P 2 100k 9k" "$work/qcow2-old" > "$work/said"
qcow2 qcow2-bits cluster_size=512,refcount_bits=1,lazy_refcounts=on
qemu-img convert -O raw "$work/qcow2-plain" "$work/raw"
for kind in zlib zstd; do
    qemu-img convert -c -O qcow2 -o "cluster_size=4096,compression_type=$kind" "$work/raw" "$work/qcow2-$kind"
done
qemu-img convert -O vmdk -o subformat=monolithicSparse "$work/raw" "$work/vmdk-sparse"
qemu-img convert -O vmdk -o subformat=streamOptimized "$work/raw" "$work/vmdk-stream"
(cd "$work" && qemu-img convert -O vmdk -o subformat=twoGbMaxExtentSparse raw text.vmdk && mv text.vmdk vmdk-text)
for image in qcow2-plain qcow2-subclusters qcow2-zlib qcow2-zstd qcow2-snapshot qcow2-old qcow2-bits vmdk-sparse \
    vmdk-stream vmdk-text; do
    keep "$image"
done
