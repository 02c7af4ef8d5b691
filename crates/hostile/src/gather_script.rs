//! Archives of a script that a fuzzer writes: headers with right checksums and odd contents.

const TYPES: [u8; 17] = *b"\x00012345678xgLKSVD";
const NAMES: [&str; 16] = [
    "a",
    "d/",
    "d/a",
    "./",
    "l",
    "l/x",
    "/d/b",
    "../x",
    ".wh.a",
    "d/.wh..wh..opq",
    "d/.wh.b",
    ".wh.d",
    "e/f/g/h",
    "d",
    ".wh..wh.plnk/1",
    "b",
];
const KEYS: [&str; 16] = [
    "path",
    "linkpath",
    "size",
    "uid",
    "mtime",
    "SCHILY.xattr.user.a",
    "LIBARCHIVE.xattr.user.b",
    "SCHILY.acl.access",
    "GNU.sparse.major",
    "GNU.sparse.minor",
    "GNU.sparse.realsize",
    "GNU.sparse.map",
    "GNU.sparse.offset",
    "GNU.sparse.numbytes",
    "GNU.sparse.name",
    "SCHILY.acl.default",
];
/// Where fields of a header begin, that an entry may change.
const FIELDS: [usize; 12] = [0, 100, 108, 116, 124, 136, 257, 329, 345, 386, 398, 482];

struct Script<'i>(std::slice::Iter<'i, u8>);

impl Script<'_> {
    fn byte(&mut self) -> u8 {
        self.0.next().copied().unwrap_or(0)
    }

    fn bytes(&mut self) -> Vec<u8> {
        let length = self.byte() % 24;
        (0..length).map(|_| self.byte()).collect()
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[usize::from(self.byte()) % from.len()]
    }

    /// Adds an entry.
    fn entry(&mut self, archive: &mut Vec<u8>) {
        let typeflag = self.pick(&TYPES);
        let mut data = self.bytes();
        if matches!(typeflag, b'x' | b'g') {
            let key = self.pick(&KEYS);
            let rest = [b" ", key.as_bytes(), b"=", &data, b"\n"].concat();
            let length = rest.len() + 2;
            data = [length.to_string().as_bytes(), &rest].concat();
        } else if matches!(typeflag, b'L' | b'K') {
            data = self.pick(&NAMES).as_bytes().to_vec();
        }
        let mut head = [0; 512];
        let mut put = |at: usize, bytes: &[u8]| head[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, self.pick(&NAMES).as_bytes());
        put(157, self.pick(&NAMES).as_bytes());
        put(124, format!("{:011o}", data.len()).as_bytes());
        put(156, &[typeflag]);
        put(257, if typeflag == b'S' { b"ustar  \0" } else { b"ustar\x0000" });
        if self.byte().is_multiple_of(4) {
            let (at, bytes) = (self.pick(&FIELDS), self.bytes());
            put(at, &bytes[..bytes.len().min(100)]);
        }
        head[148..156].fill(b' ');
        let sum: u32 = head.iter().map(|&byte| u32::from(byte)).sum();
        head[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        archive.extend(head);
        archive.extend(data);
        archive.resize(archive.len().next_multiple_of(512), 0);
    }
}

/// One or two archives of a script.
pub fn archives(input: &[u8]) -> Vec<Vec<u8>> {
    let mut script = Script(input.iter());
    let (mut layers, second) = (vec![Vec::new()], script.byte());
    while !script.0.as_slice().is_empty() {
        if script.0.len() < usize::from(second) && layers.len() == 1 {
            layers.push(Vec::new());
        }
        if let Some(layer) = layers.last_mut() {
            script.entry(layer);
        }
    }
    layers.iter_mut().for_each(|layer| layer.extend([0; 1024]));
    layers
}
