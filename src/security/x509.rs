//! The subject of a certificate, as text, and when it expires.
//!
//! Certificates are verified (by `rustls`, against the cluster's authority) before this module reads
//! them, except a node's own. Nevertheless, no bytes make it panic or take more memory than a few
//! times their length.

/// An upper bound for nesting and repetition inside a certificate.
const PARTS_MAX: usize = 64;

/// The DER tags that a name consists of.
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const OBJECT_IDENTIFIER: u8 = 0x06;
const VERSION: u8 = 0xa0;
/// The tags of a time: with two digits for the year, and with four.
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// The subject of a DER certificate in the form of RFC 2253, most specific part first, such as
/// `CN=app-0,O=Example`. `None` if the bytes are not a certificate; empty if the subject is empty.
///
/// Source: ZooKeeper, `X509AuthenticationProvider.getClientId`, for Java's
/// `X500Principal.getName()`: attributes that RFC 2253 has no name for are written by number, with
/// their value as `#` and hexadecimal DER.
pub(crate) fn subject(certificate: &[u8]) -> Option<String> {
    let (_, after_validity) = validity(certificate)?;
    let (name, _) = expect(after_validity, SEQUENCE)?;
    let parts: Option<Vec<String>> = all(name, SET)?.into_iter().rev().map(relative_name).collect();
    Some(parts?.join(","))
}

/// The last second in which a DER certificate is valid, since the Unix epoch. `None` if the bytes are not a
/// certificate.
///
/// Source: RFC 5280, section 4.1.2.5.
pub(crate) fn not_after(certificate: &[u8]) -> Option<i64> {
    let (validity, _) = validity(certificate)?;
    let end = element(element(validity)?.rest)?;
    let text = str::from_utf8(end.content).ok()?.strip_suffix('Z')?;
    let (year, rest) = match end.tag {
        UTC_TIME => (text.get(..2)?, text.get(2..)?),
        GENERALIZED_TIME => (text.get(..4)?, text.get(4..)?),
        _ => return None,
    };
    if rest.len() != 10 || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let year = match (end.tag, year.parse::<i64>().ok()?) {
        (UTC_TIME, year) => year + if year < 50 { 2000 } else { 1900 },
        (_, year) => year,
    };
    let part = |at: usize| rest.get(at..at + 2)?.parse::<i64>().ok();
    let (month, day) = (part(0)?, part(2)?);
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let of_day = part(4)? * 3600 + part(6)? * 60 + part(8)?;
    Some(days(year, month, day) * 86_400 + of_day)
}

/// The number of days since the Unix epoch.
///
/// Source: Howard Hinnant, "chrono-compatible low-level date algorithms", `days_from_civil`.
fn days(year: i64, month: i64, day: i64) -> i64 {
    // The year begins in March, so that the leap day is its last.
    let year = if month <= 2 { year - 1 } else { year };
    let (era, year_of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

/// The validity of a certificate, and the fields behind it.
fn validity(certificate: &[u8]) -> Option<(&[u8], &[u8])> {
    let (certificate, _) = expect(certificate, SEQUENCE)?;
    let (mut fields, _) = expect(certificate, SEQUENCE)?;
    if let Some((_, rest)) = expect(fields, VERSION) {
        fields = rest;
    }
    // Serial number, algorithm, issuer.
    for _ in 0..3 {
        fields = element(fields)?.rest;
    }
    expect(fields, SEQUENCE)
}

struct Element<'a> {
    tag: u8,
    content: &'a [u8],
    /// The content with its tag and length.
    whole: &'a [u8],
    rest: &'a [u8],
}

fn element(bytes: &[u8]) -> Option<Element<'_>> {
    let (&tag, rest) = bytes.split_first()?;
    let (&first, mut rest) = rest.split_first()?;
    let length = match first {
        0..=0x7f => usize::from(first),
        0x81..=0x83 => {
            let (length, after) = rest.split_at_checked(usize::from(first & 0x7f))?;
            rest = after;
            length.iter().fold(0, |length, byte| length << 8 | usize::from(*byte))
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some(Element { tag, content, whole: &bytes[..bytes.len() - rest.len()], rest })
}

/// The content of the first element, which must have this tag, and the rest.
fn expect(bytes: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    element(bytes)
        .filter(|element| element.tag == tag)
        .map(|element| (element.content, element.rest))
}

/// The contents of all elements, each of which must have this tag.
fn all(mut bytes: &[u8], tag: u8) -> Option<Vec<&[u8]>> {
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let (content, rest) = expect(bytes, tag)?;
        all.push(content);
        if all.len() > PARTS_MAX {
            return None;
        }
        bytes = rest;
    }
    Some(all)
}

fn relative_name(set: &[u8]) -> Option<String> {
    let attributes: Option<Vec<String>> =
        all(set, SEQUENCE)?.into_iter().map(format_attribute).collect();
    Some(attributes?.join("+"))
}

fn format_attribute(attribute: &[u8]) -> Option<String> {
    let (kind, value) = expect(attribute, OBJECT_IDENTIFIER)?;
    let value = element(value)?;
    let keyword = match kind {
        [0x55, 4, 3] => Some("CN"),
        [0x55, 4, 6] => Some("C"),
        [0x55, 4, 7] => Some("L"),
        [0x55, 4, 8] => Some("ST"),
        [0x55, 4, 9] => Some("STREET"),
        [0x55, 4, 10] => Some("O"),
        [0x55, 4, 11] => Some("OU"),
        [0x09, 0x92, 0x26, 0x89, 0x93, 0xf2, 0x2c, 0x64, 0x01, 0x19] => Some("DC"),
        [0x09, 0x92, 0x26, 0x89, 0x93, 0xf2, 0x2c, 0x64, 0x01, 0x01] => Some("UID"),
        _ => None,
    };
    match (keyword, text(&value)) {
        (Some(keyword), Some(text)) => Some(format!("{keyword}={}", escaped(&text))),
        (keyword, _) => {
            let kind = keyword.map_or_else(|| numbers(kind), |keyword| Some(keyword.to_owned()))?;
            let hex: String = value.whole.iter().map(|byte| format!("{byte:02x}")).collect();
            Some(format!("{kind}=#{hex}"))
        }
    }
}

/// A text value: UTF-8, printable, IA5, or Latin-1 as T61 is used.
fn text(value: &Element<'_>) -> Option<String> {
    match value.tag {
        0x0c | 0x12 | 0x13 | 0x16 => String::from_utf8(value.content.to_vec()).ok(),
        0x14 => Some(value.content.iter().map(|byte| char::from(*byte)).collect()),
        0x1e => {
            let (units, []) = value.content.as_chunks::<2>() else {
                return None;
            };
            let units: Vec<u16> = units.iter().map(|unit| u16::from_be_bytes(*unit)).collect();
            String::from_utf16(&units).ok()
        }
        _ => None,
    }
}

/// An object identifier in dotted form.
fn numbers(kind: &[u8]) -> Option<String> {
    let mut numbers: Vec<u64> = Vec::new();
    let mut number: u64 = 0;
    for byte in kind {
        number = number.checked_mul(128)? + u64::from(byte & 0x7f);
        if byte & 0x80 == 0 {
            if numbers.is_empty() {
                let first = (number / 40).min(2);
                numbers.push(first);
                number -= first * 40;
            }
            numbers.push(number);
            number = 0;
        }
    }
    let numbers: Vec<String> = numbers.iter().map(u64::to_string).collect();
    Some(numbers.join("."))
}

/// A value escaped as Java does: each `#` and `=`, and all spaces at both ends, which is more than RFC 2253 asks
/// for. Control characters too, so that a name cannot forge log lines.
fn escaped(value: &str) -> String {
    let mut escaped = String::new();
    let inner = value.trim_matches(' ');
    let first = value.len() - value.trim_start_matches(' ').len();
    let inside = first..first + inner.len();
    for (at, char) in value.char_indices() {
        match char {
            ',' | '+' | '"' | '\\' | '<' | '>' | ';' | '=' | '#' => escaped.extend(['\\', char]),
            ' ' if !inside.contains(&at) => escaped.push_str("\\ "),
            char if char.is_control() => {
                let mut bytes = [0; 4];
                for byte in char.encode_utf8(&mut bytes).bytes() {
                    escaped.push_str(&format!("\\{byte:02X}"));
                }
            }
            char => escaped.push(char),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rcgen::{CertificateParams, DnType, DnValue, KeyPair};

    use super::*;

    fn made(parts: Vec<(DnType, DnValue)>) -> Vec<u8> {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        for (kind, value) in parts {
            params.distinguished_name.push(kind, value);
        }
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().to_vec()
    }

    fn utf8(text: &str) -> DnValue {
        DnValue::Utf8String(text.to_owned())
    }

    /// F37: in the form of ZooKeeper's `X509AuthenticationProvider`.
    #[test]
    fn subjects_are_written_as_java_writes_them() {
        let subject = |parts| subject(&made(parts)).unwrap();
        let node = vec![
            (DnType::CountryName, DnValue::PrintableString("DE".try_into().unwrap())),
            (DnType::OrganizationName, utf8("Example, Inc.")),
            (DnType::CommonName, utf8("app-0")),
        ];
        assert_eq!(subject(node), "CN=app-0,O=Example\\, Inc.,C=DE");
        assert_eq!(subject(Vec::new()), "");
        assert_eq!(subject(vec![(DnType::CommonName, utf8(" #a\n "))]), "CN=\\ \\#a\\0A\\ ");
        assert_eq!(subject(vec![(DnType::CommonName, utf8("#\u{fc}"))]), "CN=\\#\u{fc}");
        let odd = vec![(DnType::CommonName, utf8("  a=b  c#\u{1f511}  "))];
        assert_eq!(subject(odd), "CN=\\ \\ a\\=b  c\\#\u{1f511}\\ \\ ");
        assert_eq!(subject(vec![(DnType::CommonName, utf8("  "))]), "CN=\\ \\ ");
        let mail = vec![(DnType::CustomDnType(vec![1, 2, 840, 113549, 1, 9, 1]), utf8("a"))];
        assert_eq!(subject(mail), "1.2.840.113549.1.9.1=#0c0161");
    }

    #[test]
    fn a_certificate_expires_at_its_last_second() {
        let expires = |year, month, day| {
            let mut params = CertificateParams::new(Vec::new()).unwrap();
            params.not_after = rcgen::date_time_ymd(year, month, day);
            let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
            not_after(certificate.der())
        };
        // With two digits for the year, and from 2050 on with four.
        assert_eq!(expires(2026, 2, 28), Some(1_772_236_800));
        assert_eq!(expires(2028, 2, 29), Some(1_835_395_200));
        assert_eq!(expires(2050, 1, 1), Some(2_524_608_000));
        assert_eq!(expires(1969, 12, 31), Some(-86_400));
        assert_eq!(days(1970, 1, 1), 0);
        assert_eq!(days(2000, 3, 1), 11_017);
    }

    #[test]
    fn a_cut_certificate_has_no_subject_and_no_end() {
        let whole = made(vec![(DnType::CommonName, utf8("app-0"))]);
        for end in 0..whole.len() {
            assert_eq!((subject(&whole[..end]), not_after(&whole[..end])), (None, None), "{end}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_panic(harm in prop::collection::vec((0..200_usize, any::<u8>()), 0..8)) {
            let mut bytes = made(vec![(DnType::CommonName, utf8("app-0"))]);
            for (at, byte) in harm {
                bytes[at] = byte;
            }
            let _ = (subject(&bytes), not_after(&bytes));
        }
    }
}
