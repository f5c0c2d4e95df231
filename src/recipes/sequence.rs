//! The numbers of sequential znodes.

/// Returns the length and the digits of a number, by which numbers are ordered: one of more than
/// ten digits is larger than a shorter one. `None` if it is not a number.
pub(super) fn number(digits: &str) -> Option<(usize, &str)> {
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then_some((digits.len(), digits))
}
