//! Jute, ZooKeeper's serialization: numbers are big-endian, and whatever has a length has it before
//! it as an int, -1 for null.
//!
//! A type that is an `Option` may be null; one that is not is unreadable if it is.

use std::fmt;

use bytes::{Buf, BufMut, Bytes, BytesMut};

/// Bytes that end too early, or a length that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("bytes that are not the record that they should be")]
pub(crate) struct Unreadable;

/// A value with a form in Jute.
pub(crate) trait Jute: Sized {
    /// How many bytes a value takes at least.
    const LEAST: usize;

    /// Takes a value off the front.
    fn read(from: &mut Bytes) -> Result<Self, Unreadable>;

    /// Appends the value.
    fn write(&self, to: &mut BytesMut);
}

/// Declares records: their fields follow each other in the order written here.
macro_rules! records {
    ($($(#[$meta:meta])* $name:ident { $($(#[$field_meta:meta])* $field:ident: $kind:ty,)* })*) => {$(
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub(crate) struct $name {
            $($(#[$field_meta])* pub(crate) $field: $kind,)*
        }

        impl Jute for $name {
            const LEAST: usize = 0 $(+ <$kind as Jute>::LEAST)*;

            fn read(from: &mut Bytes) -> Result<Self, Unreadable> {
                Ok(Self { $($field: Jute::read(from)?,)* })
            }

            fn write(&self, to: &mut BytesMut) {
                $(self.$field.write(to);)*
            }
        }
    )*};
}
pub(super) use records;

/// No body.
impl Jute for () {
    const LEAST: usize = 0;

    fn read(_: &mut Bytes) -> Result<Self, Unreadable> {
        Ok(())
    }

    fn write(&self, _: &mut BytesMut) {}
}

impl Jute for i32 {
    const LEAST: usize = 4;

    fn read(from: &mut Bytes) -> Result<Self, Unreadable> {
        from.try_get_i32().map_err(|_| Unreadable)
    }

    fn write(&self, to: &mut BytesMut) {
        to.put_i32(*self);
    }
}

impl Jute for i64 {
    const LEAST: usize = 8;

    fn read(from: &mut Bytes) -> Result<Self, Unreadable> {
        from.try_get_i64().map_err(|_| Unreadable)
    }

    fn write(&self, to: &mut BytesMut) {
        to.put_i64(*self);
    }
}

/// Any byte but zero is true.
impl Jute for bool {
    const LEAST: usize = 1;

    fn read(from: &mut Bytes) -> Result<Self, Unreadable> {
        from.try_get_u8().map(|byte| byte != 0).map_err(|_| Unreadable)
    }

    fn write(&self, to: &mut BytesMut) {
        to.put_u8(u8::from(*self));
    }
}

/// A value of some length, which stands before it.
pub(crate) trait Counted: Sized {
    /// How many bytes or items it has.
    fn length(&self) -> usize;

    /// Takes a value of this length off the front. The length is not -1, which is null.
    fn read_items(length: i32, from: &mut Bytes) -> Result<Self, Unreadable>;

    /// Appends what follows the length.
    fn write_items(&self, to: &mut BytesMut);
}

impl<T: Counted> Jute for Option<T> {
    const LEAST: usize = 4;

    fn read(from: &mut Bytes) -> Result<Self, Unreadable> {
        match i32::read(from)? {
            -1 => Ok(None),
            length => T::read_items(length, from).map(Some),
        }
    }

    fn write(&self, to: &mut BytesMut) {
        match self {
            None => to.put_i32(-1),
            Some(value) => value.write(to),
        }
    }
}

impl<T: Counted> Jute for T {
    const LEAST: usize = 4;

    fn read(from: &mut Bytes) -> Result<Self, Unreadable> {
        Option::read(from)?.ok_or(Unreadable)
    }

    fn write(&self, to: &mut BytesMut) {
        // A length that does not fit belongs to a body above every limit: `append_frame` takes it back.
        to.put_i32(i32::try_from(self.length()).unwrap_or(i32::MAX));
        self.write_items(to);
    }
}

/// A part of the frame, not a copy: it keeps the whole frame in memory.
impl Counted for Bytes {
    fn length(&self) -> usize {
        self.len()
    }

    fn read_items(length: i32, from: &mut Bytes) -> Result<Self, Unreadable> {
        let length = usize::try_from(length).map_err(|_| Unreadable)?;
        if length > from.len() {
            return Err(Unreadable);
        }
        Ok(from.split_to(length))
    }

    fn write_items(&self, to: &mut BytesMut) {
        to.put_slice(self);
    }
}

/// What is not UTF-8 becomes U+FFFD, as in Java. (A surrogate becomes three of them, where Java makes
/// one: no path may have any.)
impl Counted for String {
    fn length(&self) -> usize {
        self.len()
    }

    fn read_items(length: i32, from: &mut Bytes) -> Result<Self, Unreadable> {
        let bytes = Bytes::read_items(length, from)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn write_items(&self, to: &mut BytesMut) {
        to.put_slice(self.as_bytes());
    }
}

/// A negative count other than -1 is a list of nothing, as in Java.
impl<T: Jute> Counted for Vec<T> {
    fn length(&self) -> usize {
        self.len()
    }

    fn read_items(length: i32, from: &mut Bytes) -> Result<Self, Unreadable> {
        let length = usize::try_from(length).unwrap_or(0);
        if length.saturating_mul(T::LEAST) > from.len() {
            return Err(Unreadable);
        }
        (0..length).map(|_| T::read(from)).collect()
    }

    fn write_items(&self, to: &mut BytesMut) {
        self.iter().for_each(|item| item.write(to));
    }
}

/// A password: a buffer that `Debug` does not show.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Credential(pub(crate) Option<Bytes>);

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credential(..)")
    }
}

impl Jute for Credential {
    const LEAST: usize = 4;

    fn read(from: &mut Bytes) -> Result<Self, Unreadable> {
        Jute::read(from).map(Credential)
    }

    fn write(&self, to: &mut BytesMut) {
        self.0.write(to);
    }
}
