//! Directory hashes against values computed by libext2fs 1.47 (`ext2fs_dirhash`, all six versions).

use uext4_ondisk::ext4::{DirHash, HashVersion, UnsupportedHash, dir_hash, keyed_dir_hash};

const VERSIONS: [HashVersion; 6] = [
    HashVersion::Legacy,
    HashVersion::HalfMd4,
    HashVersion::Tea,
    HashVersion::LegacyUnsigned,
    HashVersion::HalfMd4Unsigned,
    HashVersion::TeaUnsigned,
];

const SEEDS: [[u32; 4]; 2] = [[0; 4], [0x8C1B_5F03, 0x4D2E_9A71, 0xA390_6BFE, 0x17C8_DE42]];

type Vector = (&'static [u8], [[(u32, u32); 6]; 2]);

/// Name; then for each seed, for each version: major and minor hash.
#[rustfmt::skip]
const VECTORS: &[Vector] = &[
    (b"", [
        [
            (0x2547_FC5A, 0x0000_0000), (0xEFCD_AB88, 0x98BA_DCFE), (0x6745_2300, 0xEFCD_AB89),
            (0x2547_FC5A, 0x0000_0000), (0xEFCD_AB88, 0x98BA_DCFE), (0x6745_2300, 0xEFCD_AB89),
        ],
        [
            (0x2547_FC5A, 0x0000_0000), (0x4D2E_9A70, 0xA390_6BFE), (0x8C1B_5F02, 0x4D2E_9A71),
            (0x2547_FC5A, 0x0000_0000), (0x4D2E_9A70, 0xA390_6BFE), (0x8C1B_5F02, 0x4D2E_9A71),
        ],
    ]),
    (b"a", [
        [
            (0xE74B_53E2, 0x0000_0000), (0xD5FA_7D7A, 0xACB4_8187), (0x6D0E_A4C0, 0xC189_22DF),
            (0xE74B_53E2, 0x0000_0000), (0xD5FA_7D7A, 0xACB4_8187), (0x6D0E_A4C0, 0xC189_22DF),
        ],
        [
            (0xE74B_53E2, 0x0000_0000), (0x1A6D_60D6, 0x637B_D48A), (0xA7B3_219E, 0x1520_B2A4),
            (0xE74B_53E2, 0x0000_0000), (0x1A6D_60D6, 0x637B_D48A), (0xA7B3_219E, 0x1520_B2A4),
        ],
    ]),
    (b"abc", [
        [
            (0x75AF_D992, 0x0000_0000), (0xD196_A868, 0xC420_EB28), (0xB143_5EC4, 0x3F7E_AA0E),
            (0x75AF_D992, 0x0000_0000), (0xD196_A868, 0xC420_EB28), (0xB143_5EC4, 0x3F7E_AA0E),
        ],
        [
            (0x75AF_D992, 0x0000_0000), (0x32F1_6C56, 0x93C3_04E6), (0x1EE7_173E, 0x20DC_455F),
            (0x75AF_D992, 0x0000_0000), (0x32F1_6C56, 0x93C3_04E6), (0x1EE7_173E, 0x20DC_455F),
        ],
    ]),
    (b"hello", [
        [
            (0x3225_2546, 0x0000_0000), (0x1746_DA32, 0x4200_13B5), (0x6F5B_B1A8, 0x2319_17C2),
            (0x3225_2546, 0x0000_0000), (0x1746_DA32, 0x4200_13B5), (0x6F5B_B1A8, 0x2319_17C2),
        ],
        [
            (0x3225_2546, 0x0000_0000), (0x768C_A712, 0x74FC_8BA3), (0x0A2E_4790, 0xFF1E_3DF2),
            (0x3225_2546, 0x0000_0000), (0x768C_A712, 0x74FC_8BA3), (0x0A2E_4790, 0xFF1E_3DF2),
        ],
    ]),
    (b"exactly-16-bytes", [
        [
            (0xA11B_110A, 0x0000_0000), (0x76E1_C7D2, 0xB461_B064), (0x783B_90B6, 0x184F_C771),
            (0xA11B_110A, 0x0000_0000), (0x76E1_C7D2, 0xB461_B064), (0x783B_90B6, 0x184F_C771),
        ],
        [
            (0xA11B_110A, 0x0000_0000), (0x7C16_BB8E, 0xD1D3_94A0), (0x2BA2_A466, 0x88AC_C4A5),
            (0xA11B_110A, 0x0000_0000), (0x7C16_BB8E, 0xD1D3_94A0), (0x2BA2_A466, 0x88AC_C4A5),
        ],
    ]),
    (b"seventeen-bytes-x", [
        [
            (0x942A_C8A0, 0x0000_0000), (0x98D5_C56A, 0x320B_6A57), (0x19A3_229E, 0xC992_D29D),
            (0x942A_C8A0, 0x0000_0000), (0x98D5_C56A, 0x320B_6A57), (0x19A3_229E, 0xC992_D29D),
        ],
        [
            (0x942A_C8A0, 0x0000_0000), (0xA0B7_6E3A, 0xDF7A_1F8A), (0xCDA9_3F38, 0x6BCB_30B2),
            (0x942A_C8A0, 0x0000_0000), (0xA0B7_6E3A, 0xDF7A_1F8A), (0xCDA9_3F38, 0x6BCB_30B2),
        ],
    ]),
    (b"the quick brown fox jumps over a", [
        [
            (0x636A_7E76, 0x0000_0000), (0xDEF7_77A4, 0x3B21_65B6), (0x7430_93E2, 0xC312_5462),
            (0x636A_7E76, 0x0000_0000), (0xDEF7_77A4, 0x3B21_65B6), (0x7430_93E2, 0xC312_5462),
        ],
        [
            (0x636A_7E76, 0x0000_0000), (0x2CF0_F57C, 0xDF23_9B64), (0xD161_BEB2, 0x9996_4270),
            (0x636A_7E76, 0x0000_0000), (0x2CF0_F57C, 0xDF23_9B64), (0xD161_BEB2, 0x9996_4270),
        ],
    ]),
    (b"the quick brown fox jumps over a lazy dog 0123456789 0123456789 end", [
        [
            (0x1E83_E30A, 0x0000_0000), (0x3BCE_9B80, 0x5A6F_D5FB), (0xBF5A_06D6, 0x8BCE_2443),
            (0x1E83_E30A, 0x0000_0000), (0x3BCE_9B80, 0x5A6F_D5FB), (0xBF5A_06D6, 0x8BCE_2443),
        ],
        [
            (0x1E83_E30A, 0x0000_0000), (0x7DDC_B8B6, 0xA9EA_9522), (0x7EA3_69EA, 0xE894_795A),
            (0x1E83_E30A, 0x0000_0000), (0x7DDC_B8B6, 0xA9EA_9522), (0x7EA3_69EA, 0xE894_795A),
        ],
    ]),
    (b"gr\xc3\xbcn-stra\xc3\x9fe-\xe6\x97\xa5\xe6\x9c\xac.txt", [
        [
            (0x8EB5_B844, 0x0000_0000), (0xA48D_F0DC, 0x3D0C_FB06), (0xF13D_DCB0, 0x3488_4AC8),
            (0x1149_8504, 0x0000_0000), (0xB50B_7DBE, 0x93AC_5A20), (0x7593_C400, 0x4A4C_41F6),
        ],
        [
            (0x8EB5_B844, 0x0000_0000), (0x262E_8854, 0x4364_5175), (0xCC88_4AC8, 0x327D_11BB),
            (0x1149_8504, 0x0000_0000), (0x3A74_5960, 0xC521_6FA1), (0xDA6F_05BC, 0x1AC0_BAEC),
        ],
    ]),
    (&HIGH_BYTES, [
        [
            (0x2FF3_F4B0, 0x0000_0000), (0xEB1C_4D4E, 0xA76C_815B), (0xA7C8_320A, 0x6403_1A41),
            (0xAC38_88D0, 0x0000_0000), (0x434F_6F3C, 0x69F6_07E3), (0x1B3D_F220, 0x30F4_CA85),
        ],
        [
            (0x2FF3_F4B0, 0x0000_0000), (0x2AEA_4012, 0x6AB1_49FC), (0xE54C_EB6A, 0x44C8_D0CB),
            (0xAC38_88D0, 0x0000_0000), (0x95E3_7144, 0x6F1C_6CE5), (0x1DE5_5A0A, 0x5344_7E1E),
        ],
    ]),
    (&[b'x'; 255], [
        [
            (0x3055_7DA6, 0x0000_0000), (0x2AA7_169E, 0x655F_9D9C), (0x6C4C_00EE, 0x0EAF_DB6B),
            (0x3055_7DA6, 0x0000_0000), (0x2AA7_169E, 0x655F_9D9C), (0x6C4C_00EE, 0x0EAF_DB6B),
        ],
        [
            (0x3055_7DA6, 0x0000_0000), (0xF0A2_8940, 0x9810_C9ED), (0xA076_3268, 0x1BCB_D740),
            (0x3055_7DA6, 0x0000_0000), (0xF0A2_8940, 0x9810_C9ED), (0xA076_3268, 0x1BCB_D740),
        ],
    ]),
];

const HIGH_BYTES: [u8; 128] = {
    let mut bytes = [0; 128];
    let mut at = 0;
    while at < 128 {
        bytes[at] = 128 + at as u8;
        at += 1;
    }
    bytes
};

#[test]
fn hashes_equal_libext2fs() {
    for (name, by_seed) in VECTORS {
        for (seed, by_version) in SEEDS.iter().zip(by_seed) {
            for (version, (major, minor)) in VERSIONS.into_iter().zip(by_version) {
                let hash = dir_hash(name, version, seed);
                let expected = DirHash { major: *major, minor: *minor };
                assert_eq!(hash, Ok(expected), "{} {version}", name.escape_ascii());
            }
        }
    }
}

#[test]
fn signedness_shows_only_in_high_bytes() {
    let seed = &SEEDS[1];
    for pair in [0, 1, 2] {
        let (signed, unsigned) = (VERSIONS[pair], VERSIONS[pair + 3]);
        assert_eq!(dir_hash(b"plain", signed, seed), dir_hash(b"plain", unsigned, seed));
        assert_ne!(dir_hash(b"\xff", signed, seed), dir_hash(b"\xff", unsigned, seed));
    }
}

#[test]
fn siphash_is_refused_by_name() {
    let refused = dir_hash(b"name", HashVersion::SipHash, &[0; 4]);
    assert_eq!(refused, Err(UnsupportedHash(HashVersion::SipHash)));
    assert_eq!(refused.unwrap_err().to_string(), "directory hash `siphash` is not supported");
}

/// The vectors that come with the reference implementation of SipHash-2-4: key 00 01 .. 0f, input 00 01 ...
#[test]
fn the_keyed_hash_equals_the_published_vectors() {
    let key: [u8; 16] = std::array::from_fn(|at| u8::try_from(at).unwrap());
    let input: Vec<u8> = (0..63).collect();
    for (length, sum) in [
        (0, 0x726F_DB47_DD0E_0E31_u64),
        (1, 0x74F8_39C5_93DC_67FD),
        (7, 0xAB02_00F5_8B01_D137),
        (8, 0x93F5_F579_9A93_2462),
        (15, 0xA129_CA61_49BE_45E5),
        (63, 0x958A_324C_EB06_4572),
    ] {
        let hash = keyed_dir_hash(&input[..length], &key);
        // Bit 0 of the major hash is not part of it.
        let found = (u64::from(hash.major) << 32) | u64::from(hash.minor);
        assert_eq!(found, sum & !(1 << 32), "{length} bytes");
    }
}

#[test]
fn versions_on_disk() {
    for (value, version) in VERSIONS.into_iter().enumerate() {
        let value = u8::try_from(value).unwrap();
        assert_eq!(HashVersion::from_disk(value, false), Some(version));
        assert_eq!(HashVersion::from_disk(value % 3, value >= 3), Some(version));
        assert_eq!(version.to_disk(), value % 3);
    }
    assert_eq!(HashVersion::from_disk(6, true), Some(HashVersion::SipHash));
    assert_eq!(HashVersion::from_disk(7, false), None);
}
