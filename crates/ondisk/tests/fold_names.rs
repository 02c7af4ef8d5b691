//! Names that fold to one form, and names that stay apart.

use uext4_ondisk::ext4::CaseFolder;

fn fold(name: &str) -> String {
    String::from_utf8(CaseFolder::new().fold(name.as_bytes()).unwrap().to_vec()).unwrap()
}

#[test]
fn spellings_of_one_name() {
    for (one, other) in [
        ("README.txt", "readme.TXT"),
        ("Straße", "STRASSE"),
        ("ΣΊΣΥΦΟΣ", "σίσυφος"),
        ("\u{C9}t\u{E9}", "e\u{301}TE\u{301}"),
        ("\u{212B}ngström", "Ångström"),
        ("한글", "\u{1112}\u{1161}\u{11AB}\u{1100}\u{1173}\u{11AF}"),
        ("\u{1E9E}", "ss"),
        ("a\u{200D}b\u{AD}", "AB"),
        ("\u{130}", "i\u{307}"),
        ("q\u{307}\u{323}", "Q\u{323}\u{307}"),
        ("\u{1FB4}", "\u{3B1}\u{301}\u{3B9}"),
        ("\u{FEFF}", ""),
    ] {
        assert_eq!(fold(one), fold(other), "{one} {other}");
    }
}

#[test]
fn names_that_stay_apart() {
    for (one, other) in [
        // Dotless i folds to itself; compatibility characters are kept.
        ("ı", "i"),
        ("ﬁ", "fj"),
        ("²", "2"),
        // An ignored character still separates marks.
        ("a\u{301}\u{200D}\u{323}", "a\u{301}\u{323}"),
        // Pairs of letters that came after 12.1.
        ("\u{A7C7}", "\u{A7C8}"),
        ("\u{2C2F}", "\u{2C5F}"),
        ("\u{10570}", "\u{10597}"),
        ("\u{A7DC}", "\u{19B}"),
    ] {
        assert_ne!(fold(one), fold(other), "{one} {other}");
    }
}

#[test]
fn what_is_not_utf8_has_no_form() {
    let mut folder = CaseFolder::new();
    for name in [&b"\xFF"[..], b"a\xC0\x80", b"\xED\xA0\x80", b"\xF4\x90\x80\x80", b"\xE2\x82"] {
        assert_eq!(folder.fold(name), None);
    }
    assert_eq!(folder.fold(b"Fine"), Some(&b"fine"[..]), "the next name is not affected");
}

#[test]
fn the_form_is_at_most_four_times_as_long() {
    let mut folder = CaseFolder::new();
    for point in '\u{1}'..=char::MAX {
        let mut bytes = [0; 4];
        let name = point.encode_utf8(&mut bytes);
        let folded = folder.fold(name.as_bytes()).unwrap();
        assert!(folded.len() <= name.len() * 4, "{point:?}");
        let folded = folded.to_vec();
        assert_eq!(folder.fold(&folded).unwrap(), folded, "{point:?}: folding twice changes nothing");
    }
}
