//! Bytes as hexadecimal digits: digests and salts.

use data_encoding::HEXLOWER;

/// Bytes given as hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hex(pub Vec<u8>);

/// As digits.
pub fn digits(bytes: &[u8]) -> String {
    HEXLOWER.encode(bytes)
}

/// From digits of either case; `-` is no byte, as for veritysetup.
pub fn parse(text: &str) -> Result<Hex, String> {
    if text == "-" {
        return Ok(Hex(Vec::new()));
    }
    let bytes = HEXLOWER.decode(text.to_ascii_lowercase().as_bytes());
    bytes.map(Hex).map_err(|_| format!("`{text}` is not a number of bytes in hexadecimal digits"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_come_back() {
        assert_eq!(parse("00fF10"), Ok(Hex(vec![0, 255, 16])));
        assert_eq!(parse("-"), Ok(Hex(Vec::new())));
        assert_eq!(digits(&[0, 255, 16]), "00ff10");
        assert!(parse("0").is_err() && parse("0x10").is_err() && parse("gg").is_err());
    }
}
