//! The file with key encryption keys: a line `id: key` for each, with the key's 32 bytes in base64. The first one wraps
//! new data keys. Blank lines and lines that begin with `#` are ignored.

use std::io::Read;
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use zeroize::Zeroizing;

use super::ring::{KeyBytes, check_id};

/// The maximum size of the file.
const FILE_BYTES_MAX: u64 = 64 << 10;

/// Reads the file. The error does not name it.
pub(super) fn read(path: &Path) -> Result<Vec<(String, KeyBytes)>, String> {
    let unreadable = |error: std::io::Error| format!("it cannot be read: {error}");
    let file = std::fs::File::open(path).map_err(unreadable)?;
    // With the whole capacity, so that no copy of the keys is left where it grew.
    let mut bytes = Zeroizing::new(Vec::with_capacity(FILE_BYTES_MAX as usize + 1));
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(format!("it has more than {FILE_BYTES_MAX} bytes"));
    }
    let text = std::str::from_utf8(&bytes).map_err(|_| "it is not a text".to_owned())?;
    parse(text)
}

/// The keys of a text. Errors name the line and never its content.
fn parse(text: &str) -> Result<Vec<(String, KeyBytes)>, String> {
    let mut keys: Vec<(String, KeyBytes)> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let wrong = |reason: &str| format!("line {}: {reason}", number + 1);
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let Some((id, key)) = line.split_once(':') else {
            return Err(wrong("it has the form `id: key`"));
        };
        let id = id.trim();
        check_id(id).map_err(|reason| wrong(&reason))?;
        if keys.iter().any(|(other, _)| other == id) {
            return Err(wrong(&format!("there are two keys {id:?}")));
        }
        keys.push((id.to_owned(), decode(key.trim()).map_err(wrong)?));
    }
    match keys.is_empty() {
        true => Err("it has no key".to_owned()),
        false => Ok(keys),
    }
}

fn decode(text: &str) -> Result<KeyBytes, &'static str> {
    let wrong =
        "the key is 32 random bytes in base64, as `head -c 32 /dev/urandom | base64` prints them";
    let bytes = Zeroizing::new(STANDARD.decode(text).map_err(|_| wrong)?);
    let mut key = Zeroizing::new([0; 32]);
    if bytes.len() != key.len() {
        return Err(wrong);
    }
    key.copy_from_slice(&bytes);
    Ok(key)
}

/// Reads arbitrary text.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz(text: &str) {
    if let Ok(keys) = parse(text) {
        assert!(keys.iter().all(|(id, _)| check_id(id).is_ok()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "Uq4jM1HdEFfJzH1QYh4pZ2f0d4bI0mZVv5x3n0a7c8k=";
    const TWO: &str = "3jR0n5Yp0m1yC1sT6w0v9Z8b7x6a5s4d3f2g1h0jK9k=";

    #[test]
    fn keys_are_read_in_their_order() {
        let text = format!("# the present one\nk2: {TWO}\n\n  k1 : {ONE}  \r\n");
        let keys = parse(&text).unwrap();
        assert_eq!(keys.iter().map(|(id, _)| &id[..]).collect::<Vec<_>>(), ["k2", "k1"]);
        assert_eq!(keys[1].1[..4], [0x52, 0xae, 0x23, 0x33]);
    }

    #[test]
    fn errors_name_the_line_and_not_the_key() {
        for (text, expected) in [
            ("", "it has no key"),
            ("# nothing\n", "it has no key"),
            (ONE, "line 1: it has the form"),
            (&format!("a: {ONE}\n{TWO}"), "line 2: it has the form"),
            (&format!("a b: {ONE}"), "line 1: the id of a key"),
            (&format!(": {ONE}"), "line 1: the id of a key"),
            (&format!("a: {ONE}\n\na: {TWO}"), "line 3: there are two keys \"a\""),
            (&format!("a: {}", &ONE[4..]), "line 1: the key is 32 random bytes"),
            (&format!("a: {ONE} {TWO}"), "line 1: the key is 32 random bytes"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.starts_with(expected), "{error}");
            assert!(!error.contains(&ONE[4..20]) && !error.contains(&TWO[4..20]), "{error}");
        }
    }
}
