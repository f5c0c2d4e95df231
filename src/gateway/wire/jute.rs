//! Jute, ZooKeeper's serialization: numbers are big-endian; the length of a variable-length value
//! comes before it as an int, and -1 means null.
//!
//! Values of type `Option` may be null; a null for another type is unreadable.

use std::fmt;

use bytes::{Buf, Bytes, BytesMut};

/// The bytes end too early, or a length is impossible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("bytes that are not the record that they should be")]
pub(crate) struct Unreadable;

/// Where values are written.
pub(crate) trait Sink {
    fn put_slice(&mut self, bytes: &[u8]);

    /// Bytes that may be shared in place of being copied.
    fn put_bytes(&mut self, bytes: &Bytes) {
        self.put_slice(bytes);
    }

    /// A frame ends here.
    fn end_frame(&mut self) {}
}

impl Sink for BytesMut {
    fn put_slice(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// A value with a form in Jute.
pub(crate) trait Jute: Sized {
    /// The least bytes that a value takes.
    const LEAST: usize;

    /// Reads a value from the front.
    fn read(from: &mut Bytes) -> Result<Self, Unreadable>;

    /// Appends the value.
    fn write(&self, to: &mut dyn Sink);
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

            fn write(&self, to: &mut dyn Sink) {
                $(self.$field.write(to);)*
            }
        }
    )*};
}
pub(super) use records;

/// An empty body.
impl Jute for () {
    const LEAST: usize = 0;

    fn read(_: &mut Bytes) -> Result<Self, Unreadable> {
        Ok(())
    }

    fn write(&self, _: &mut dyn Sink) {}
}

impl Jute for i32 {
    const LEAST: usize = 4;

    fn read(from: &mut Bytes) -> Result<Self, Unreadable> {
        from.try_get_i32().map_err(|_| Unreadable)
    }

    fn write(&self, to: &mut dyn Sink) {
        to.put_slice(&self.to_be_bytes());
    }
}

impl Jute for i64 {
    const LEAST: usize = 8;

    fn read(from: &mut Bytes) -> Result<Self, Unreadable> {
        from.try_get_i64().map_err(|_| Unreadable)
    }

    fn write(&self, to: &mut dyn Sink) {
        to.put_slice(&self.to_be_bytes());
    }
}

/// Any byte but zero is true.
impl Jute for bool {
    const LEAST: usize = 1;

    fn read(from: &mut Bytes) -> Result<Self, Unreadable> {
        from.try_get_u8().map(|byte| byte != 0).map_err(|_| Unreadable)
    }

    fn write(&self, to: &mut dyn Sink) {
        to.put_slice(&[u8::from(*self)]);
    }
}

/// A value with a length prefix.
pub(crate) trait LengthPrefixed: Sized {
    /// How many bytes or items it has.
    fn length(&self) -> usize;

    /// Reads a value of this length from the front. The length is never -1, which is null.
    fn read_items(length: i32, from: &mut Bytes) -> Result<Self, Unreadable>;

    /// Appends what follows the length.
    fn write_items(&self, to: &mut dyn Sink);
}

impl<T: LengthPrefixed> Jute for Option<T> {
    const LEAST: usize = 4;

    fn read(from: &mut Bytes) -> Result<Self, Unreadable> {
        match i32::read(from)? {
            -1 => Ok(None),
            length => T::read_items(length, from).map(Some),
        }
    }

    fn write(&self, to: &mut dyn Sink) {
        match self {
            None => (-1_i32).write(to),
            Some(value) => value.write(to),
        }
    }
}

impl<T: LengthPrefixed> Jute for T {
    const LEAST: usize = 4;

    fn read(from: &mut Bytes) -> Result<Self, Unreadable> {
        Option::read(from)?.ok_or(Unreadable)
    }

    fn write(&self, to: &mut dyn Sink) {
        // A length that does not fit belongs to a body above every limit, which `append_frame` does not
        // write.
        i32::try_from(self.length()).unwrap_or(i32::MAX).write(to);
        self.write_items(to);
    }
}

/// A part of the frame, not a copy: it keeps the whole frame in memory.
impl LengthPrefixed for Bytes {
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

    fn write_items(&self, to: &mut dyn Sink) {
        to.put_bytes(self);
    }
}

/// Invalid UTF-8 becomes U+FFFD, as in Java. (A surrogate becomes three of them, in Java one; no path
/// may contain one anyway.)
impl LengthPrefixed for String {
    fn length(&self) -> usize {
        self.len()
    }

    fn read_items(length: i32, from: &mut Bytes) -> Result<Self, Unreadable> {
        let bytes = Bytes::read_items(length, from)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn write_items(&self, to: &mut dyn Sink) {
        to.put_slice(self.as_bytes());
    }
}

/// A negative count other than -1 is an empty list, as in Java.
impl<T: Jute> LengthPrefixed for Vec<T> {
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

    fn write_items(&self, to: &mut dyn Sink) {
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

    fn write(&self, to: &mut dyn Sink) {
        self.0.write(to);
    }
}
