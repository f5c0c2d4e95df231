//! The numbers of sequential znodes.

/// The length and digits of a number, which give its order: a number may outgrow ten digits, and
/// then the longer one is the larger. `None` if it is no number.
pub(super) fn number(digits: &str) -> Option<(usize, &str)> {
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then_some((digits.len(), digits))
}
