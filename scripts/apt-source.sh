# Sourced by scripts that need the source of an installed Debian package. They have `say`.
# shellcheck shell=bash

# apt_source NAME VERSION DIRECTORY TREE: fetches the source package through apt, with lists of packages of its own in
# DIRECTORY, so that those of the machine stay as they are, and unpacks its upstream archive as TREE.
apt_source() {
    local name=$1 version=$2 home=$3 tree=$4
    mkdir -p "$home/lists/partial"
    local format='deb-src $(REPO_URI) $(RELEASE) $(COMPONENT)'
    apt-get indextargets --format "$format" 'Created-By: Packages' 'Origin: Debian' |
        sort -u > "$home/sources.list"
    [ -s "$home/sources.list" ] || { say "apt knows no packages: apt-get update"; exit 1; }
    local options=(-q -o "Dir::Etc::SourceList=$home/sources.list" -o Dir::Etc::SourceParts=/dev/null
        -o "Dir::State::Lists=$home/lists" -o "Dir::Cache=$home" -o APT::Sandbox::User=root)
    apt-get "${options[@]}" update >&2
    (cd "$home" && apt-get "${options[@]}" source --download-only "$name=$version" >&2)
    rm -rf "$tree"
    mkdir "$tree"
    tar -x --strip-components=1 -C "$tree" -f "$home/${name}"_*.orig.tar.*[!c]
}
