//! The letters of byte-level BPE, which stand for bytes.

/// Bytes in letters: printable bytes of Latin-1 as themselves, the others from U+0100 on.
pub(crate) fn spell(bytes: &[u8]) -> String {
    let is_printable = |byte: u8| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    let letter = |byte: &u8| {
        if is_printable(*byte) {
            return char::from(*byte);
        }
        let earlier = (0..*byte).filter(|other| !is_printable(*other)).count();
        char::from_u32(256 + earlier as u32).unwrap_or(char::REPLACEMENT_CHARACTER)
    };
    bytes.iter().map(letter).collect()
}

/// The byte of each letter.
pub(crate) struct LetterBytes([Option<u8>; 0x144]);

impl LetterBytes {
    pub(crate) fn new() -> Self {
        let mut bytes = [None; 0x144];
        for byte in 0..=u8::MAX {
            for letter in spell(&[byte]).chars() {
                bytes[letter as usize] = Some(byte);
            }
        }
        Self(bytes)
    }

    /// Appends the bytes of a token, or its own UTF-8 if it has a letter that stands for no byte.
    pub(crate) fn append(&self, token: &str, bytes: &mut Vec<u8>) {
        let before = bytes.len();
        for letter in token.chars() {
            match self.0.get(letter as usize) {
                Some(Some(byte)) => bytes.push(*byte),
                _ => {
                    bytes.truncate(before);
                    bytes.extend_from_slice(token.as_bytes());
                    return;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The alphabet of GPT-2's byte-level BPE has these letters for these bytes.
    #[test]
    fn bytes_are_spelled_as_in_byte_level_bpe() {
        assert_eq!(spell(b" a\n\x00\x7f\xad\xff"), "ĠaĊĀġŃÿ");
    }

    #[test]
    fn letters_become_the_bytes_that_they_spell_and_other_tokens_stay() {
        let all: Vec<u8> = (0..=u8::MAX).collect();
        let mut read = Vec::new();
        LetterBytes::new().append(&spell(&all), &mut read);
        assert_eq!(read, all);
        LetterBytes::new().append("Ġa b", &mut read);
        assert_eq!(read[all.len()..], *"Ġa b".as_bytes(), "a space is no letter");
    }
}
