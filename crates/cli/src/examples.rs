//! Examples of every command, for help and manual pages.

use crate::args::{with_determinism, with_journal};
use clap::CommandFactory;
use clap::builder::StyledStr;

/// A command line, without the program's name, and what it does.
type Example = (&'static str, &'static str);

/// The examples of each command, in the order of the help.
const EXAMPLES: [Example; 91] = [
    ("info disk.img", "the volume, its device, and whether it needs recovery"),
    ("info 'disk.img?partition=2'", "the same for the second partition of a disk"),
    ("ls -lh disk.img:/etc", "human-readable sizes"),
    ("ls disk.img:/ /dev/nvme0n1p3:/home", "directories of two volumes, each under a heading"),
    ("ls -ltr disk.img:/var/log", "most recently modified last"),
    ("stat disk.img:/etc/fstab disk.img:/etc/hosts", "the attributes of two files"),
    ("stat -c '%s %y %n' disk.img:/etc/fstab", "size, time and name on one line"),
    ("find disk.img:/ --name '*.gz' --size +100k", "large archives"),
    ("find disk.img:/home --type d --empty", "empty directories"),
    ("du -h -d 1 disk.img:/", "space used by the top directories"),
    ("df -h disk.img other.img", "how full two volumes are"),
    ("cat disk.img:/etc/fstab", "a file on standard output"),
    ("xattr disk.img:/file --set user.note=kept", "set an attribute"),
    ("xattr disk.img:/srv/share", "all attributes, access control lists as text"),
    ("xattr --only-values disk.img:/etc/hosts user.comment", "the raw value of one attribute"),
    ("map disk.img:/db/data", "the extents, as filefrag -v prints them"),
    ("map --svg data.svg disk.img:/db/data", "the extents as a drawing"),
    ("verity disk.img:/usr/bin/login", "the digest of a sealed file, as fsverity measure prints it"),
    ("verity --verify disk.img:/usr/bin/login", "the same, after all contents were compared with it"),
    ("explain disk.img:/db/data --read 0 4k", "how a read would be carried out"),
    ("explain disk.img:/db/data --write 0 4k --dsync --async", "a durable overwrite through a queue"),
    ("explain -- rm -r disk.img:/var/cache", "what removing a tree would change, block by block"),
    ("io disk.img:/db/data -c 'pread 0 4k' -c fiemap", "a read, then the map"),
    ("io disk.img:/db/data -c 'pwrite -S 0x5a -D 0 64k'", "a durable overwrite"),
    ("io disk.img:/db/log -c 'falloc -k 0 1g' -c fsync", "blocks for a file that will grow"),
    ("io -f -d disk.img:/db/new -c 'pwrite 0 1m'", "a new file, with direct I/O only"),
    ("truncate -s 0 disk.img:/db/log", "an empty file, its blocks freed"),
    ("truncate -s +1.5G disk.img:/db/data", "extends the file with a hole"),
    ("fallocate -l 64m disk.img:/db/data", "allocates the first 64 MiB, which read as zeros"),
    ("fallocate -p -o 1m -l 4m disk.img:/db/data", "frees 4 MiB"),
    ("prepare disk.img:/db/data 64g", "a file that later writes only overwrite"),
    ("trace -- cat disk.img:/etc/fstab", "each device request of the command"),
    (
        "trace -- mv disk.img:/a disk.img:/b",
        "also the journal handle of the rename, and the blocks it changes",
    ),
    ("cp disk.img:/etc/fstab disk.img:/etc/hosts /tmp", "two files"),
    ("cp -a disk.img:/home /tmp/home", "a tree with owners, times and attributes"),
    ("cp notes.txt disk.img:/home", "a host file into a directory of the volume"),
    ("cp -a --owner 0:0 rootfs/. disk.img:/", "a host tree, which then belongs to root"),
    ("cp -a disk.img:/etc disk.img:/etc.old", "a tree within the volume"),
    ("cp - disk.img:/home/dump.sql", "standard input as a file"),
    ("export disk.img:/ root.tar", "the whole tree as an archive"),
    ("export disk.img:/etc", "a directory on standard output, for a pipe"),
    ("export disk.img --diff base.img layer.tar", "what changed since base.img, as a layer for containers"),
    ("shell disk.img", "a prompt: ls, cd, rm, put, get, edit, …"),
    ("shell disk.img -c 'rm -r /var/cache' -c 'put motd /etc'", "two changes, durable together"),
    ("shell -f edit.txt disk.img", "the lines of a file, until one fails"),
    ("mkdir -p disk.img:/srv/www/static", "a directory, and its missing parents"),
    ("mkdir -m 2775 disk.img:/srv/share", "files made in it belong to its group"),
    ("mv disk.img:/home/notes.txt disk.img:/home/old.txt", "a new name"),
    ("mv disk.img:/a disk.img:/b disk.img:/dir", "two files into a directory"),
    ("ln disk.img:/db/data disk.img:/db/same", "a hard link"),
    ("ln -sf ../lib/libc.so disk.img:/usr/lib/libc.so", "a symbolic link, in place of what has the name"),
    ("rm disk.img:/home/notes.txt", "removes the file"),
    ("rm -r disk.img:/var/cache", "a directory with everything in it"),
    ("rmdir -p disk.img:/srv/www/static", "a directory and its parents, as long as they are empty"),
    ("chmod 640 disk.img:/etc/shadow", "the owner reads and writes, the group reads"),
    ("chmod -R u+rwX,go-w disk.img:/home", "a whole tree"),
    ("chown 1000:1000 disk.img:/home/notes.txt", "by number"),
    ("chown -R root: disk.img:/srv", "by the host's names, with the login group"),
    ("touch disk.img:/home/new.txt", "an empty file, or the current time"),
    ("touch -m -d 2026-11-21T05:16:27Z disk.img:/etc/fstab", "the time of the last change only"),
    ("chattr +i disk.img:/etc/fstab", "a file that cannot be changed"),
    ("chattr -R -p 1000 +P disk.img:/srv/share", "a tree of project 1000, which new files inherit"),
    ("quota disk.img", "what all users, groups and projects use, and their limits"),
    ("quota -u disk.img 1000 --space 1g:2g", "user 1000 may use 2 GiB, more than 1 GiB only for a time"),
    ("trim disk.img", "punches holes in the image where the volume is free"),
    ("mkfs disk.img 64G", "creates a sparse image with the defaults of e2fsprogs"),
    ("mkfs --compat debian12 -L data /dev/nvme0n1p3", "the defaults of Debian 12, on a partition"),
    ("mkfs -n /dev/nvme0n1p3", "what would be created, and where the superblock's backups are"),
    ("mkfs -F -O ^has_journal -m 0 -N 1000 disk.img", "no journal, nothing reserved, few inodes"),
    (
        "mkfs -d rootfs --size auto --verity /usr/bin root.img",
        "files whose contents Linux checks when it reads them",
    ),
    ("mkfs -d rootfs --read-only --dm-verity root.img", "a volume that a root hash protects as a whole"),
    ("check disk.img", "exit status 1 if there is damage"),
    ("check disk.img --journal log.img", "a volume whose journal is on another device"),
    ("mount disk.img /mnt", "`uext4 umount /mnt` ends it"),
    ("mount -o ro,allow_other 'disk.img?partition=2' /mnt", "the second partition, read-only, for all users"),
    ("mount --overlay try.ovl disk.img /mnt", "changes go to try.ovl, and disk.img stays as it is"),
    ("rm -r --overlay try.ovl disk.img:/var/cache", "the same for one command"),
    (
        "serve disk.img:/vm.raw --socket /tmp/vm.sock",
        "a disk for QEMU: -drive file=nbd+unix:///?socket=/tmp/vm.sock",
    ),
    (
        "serve --read-only 'disk.qcow2?partition=2' --listen 127.0.0.1",
        "a partition of an image, for TCP port 10809",
    ),
    (
        "serve disk.img --overlay try.ovl --once",
        "what one client writes goes to try.ovl, and disk.img stays as it is",
    ),
    ("overlay diff try.ovl", "the ranges of disk.img with other contents"),
    ("overlay merge try.ovl", "the changes become part of disk.img, and try.ovl is removed"),
    ("overlay drop try.ovl", "the changes are thrown away"),
    ("umount /mnt", "afterwards the volume is clean and its device free"),
    ("umount --lazy --timeout 60 /mnt", "also if files are open; wait for a minute"),
    ("stats /mnt", "a screen of requests and latencies that refreshes"),
    ("stats --json /mnt", "everything since the mount began"),
    ("bench", "everything, on temporary volumes"),
    ("bench dsync-overwrite --device disk.img --size 64m", "one scenario, on temporary files"),
    ("completions bash", "a script for the shell to source"),
    ("man --dir /usr/local/share/man/man1", "a page for every command"),
];

/// The commands of `P` with their examples.
pub fn cli<P: CommandFactory>() -> clap::Command {
    P::command().mut_subcommands(|command| {
        let lines =
            examples(command.get_name()).map(|(line, what)| format!("\n  uext4 {line}\n      {what}"));
        let text = format!("Examples:{}", lines.collect::<String>());
        let behind = |before: Option<StyledStr>| match before {
            Some(before) => format!("{before}\n\n{text}"),
            None => text.clone(),
        };
        let command = with_determinism(with_journal(command));
        let (short, long) = (command.get_after_help().cloned(), command.get_after_long_help().cloned());
        let command = command.after_help(behind(short));
        if long.is_some() { command.after_long_help(behind(long)) } else { command }
    })
}

/// Those of the command `name`.
fn examples(name: &str) -> impl Iterator<Item = &'static Example> {
    EXAMPLES.iter().filter(move |(line, _)| line.split(' ').next() == Some(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::Cli;

    /// Splits a line as a shell does, as far as the examples need it.
    fn words(line: &str) -> Vec<String> {
        let quoted = line.split('\'').enumerate();
        quoted
            .flat_map(|(number, part)| match number % 2 {
                1 => vec![part.to_owned()],
                _ => part.split_whitespace().map(str::to_owned).collect(),
            })
            .collect()
    }

    #[test]
    fn every_command_has_examples_that_parse() {
        for command in cli::<Cli>().get_subcommands() {
            assert!(examples(command.get_name()).next().is_some(), "{}", command.get_name());
        }
        for (line, _) in EXAMPLES {
            let words = std::iter::once("uext4".to_owned()).chain(words(line));
            let parsed = cli::<Cli>().try_get_matches_from(words);
            assert!(parsed.is_ok(), "{line}: {}", parsed.unwrap_err());
        }
    }
}
