//! Paths that somebody has chosen to have one hash.

/// Any number of valid paths below this one, up to 400,000, whose XXH3 (64 bits, without a seed) is the same. Each has
/// 960 bytes.
///
/// XXH3 multiplies the two halves of each eight bytes, combined with its secret, which is public. Where four bytes of
/// a path are those of the secret, one factor is zero, and the other four bytes are only added up. Here are two such
/// places that are added to the same sum: what one of them has more, the other has less.
pub(crate) fn colliding(parent: &str) -> impl Iterator<Item = String> + use<'_> {
    const DIGITS: u8 = b'{' - b'0';
    (0..u32::from(DIGITS).pow(3)).map(move |number| {
        let digit = |nth: u32| (number / u32::from(DIGITS).pow(nth) % u32::from(DIGITS)) as u8;
        let text =
            |of: fn(u8) -> u8| (0..3).map(|nth| char::from(of(digit(nth)))).collect::<String>();
        let (more, less) = (text(|digit| b'0' + digit), text(|digit| b'z' - digit));
        let mut path = format!("{parent}/");
        for (at, secret) in [
            (448, &*format!("{more}\u{201}:&L")),
            (704, &*format!("{less}\u{229}\u{7ac}\u{625}")),
            (960, ""),
        ] {
            path.push_str(&"x".repeat(at - path.len()));
            path.push_str(secret);
        }
        path
    })
}
