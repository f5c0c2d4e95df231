//! Decoding values of a sender that is not trusted: their lists take a bounded number of bytes in memory.
//!
//! An element of a list may take one byte in a message and a hundred in memory. Otherwise this decodes as postcard
//! does.

use postcard::de_flavors::Slice;
use postcard::{Error, Result};
use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, IntoDeserializer, SeqAccess, VariantAccess, Visitor,
};
use serde::{Deserialize, de};

/// Decodes a value whose lists have elements of at most so many bytes, all together. Returns the bytes behind it,
/// too.
pub(crate) fn decode<'de, T: Deserialize<'de>>(
    bytes: &'de [u8],
    lists_bytes_max: usize,
) -> Result<(T, &'de [u8])> {
    let bytes = postcard::Deserializer::from_bytes(bytes);
    let mut decoder = Decoder { bytes, left: lists_bytes_max };
    let value = T::deserialize(&mut decoder)?;
    Ok((value, decoder.bytes.finalize()?))
}

struct Decoder<'de> {
    bytes: postcard::Deserializer<'de, Slice<'de>>,
    /// How many bytes further elements of lists may take.
    left: usize,
}

impl<'de> Decoder<'de> {
    /// Passes on the elements of a list, or the fields of a struct or a variant.
    fn elements<V: Visitor<'de>>(
        &mut self,
        count: usize,
        is_list: bool,
        visitor: V,
    ) -> Result<V::Value> {
        visitor.visit_seq(Elements { decoder: self, count, is_list })
    }
}

struct Elements<'a, 'de> {
    decoder: &'a mut Decoder<'de>,
    count: usize,
    is_list: bool,
}

impl<'de> SeqAccess<'de> for Elements<'_, 'de> {
    type Error = Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>> {
        let Some(count) = self.count.checked_sub(1) else { return Ok(None) };
        self.count = count;
        if self.is_list {
            let left = self.decoder.left.checked_sub(size_of::<S::Value>());
            self.decoder.left = left.ok_or_else(|| de::Error::custom("its lists are too long"))?;
        }
        seed.deserialize(&mut *self.decoder).map(Some)
    }
}

/// Values that have no others in them are decoded by postcard.
macro_rules! plain {
    ($($method:ident)*) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
            (&mut self.bytes).$method(visitor)
        })*
    };
}

impl<'de> Deserializer<'de> for &mut Decoder<'de> {
    type Error = Error;

    plain! {
        deserialize_bool
        deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64
        deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64
        deserialize_f32 deserialize_f64 deserialize_char
        deserialize_str deserialize_string deserialize_bytes deserialize_byte_buf
        deserialize_unit
        // postcard has none of these.
        deserialize_any deserialize_identifier deserialize_ignored_any
    }

    fn is_human_readable(&self) -> bool {
        false
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        match bool::deserialize(&mut self.bytes)? {
            true => visitor.visit_some(self),
            false => visitor.visit_none(),
        }
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        let count = usize::deserialize(&mut self.bytes)?;
        self.elements(count, true, visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(self, _: V) -> Result<V::Value> {
        Err(Error::WontImplement)
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, count: usize, visitor: V) -> Result<V::Value> {
        self.elements(count, false, visitor)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        count: usize,
        visitor: V,
    ) -> Result<V::Value> {
        self.elements(count, false, visitor)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value> {
        self.elements(fields.len(), false, visitor)
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value> {
        visitor.visit_unit()
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value> {
        visitor.visit_enum(self)
    }
}

impl<'de> EnumAccess<'de> for &mut Decoder<'de> {
    type Error = Error;
    type Variant = Self;

    fn variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<(S::Value, Self)> {
        let number = u32::deserialize(&mut self.bytes)?;
        Ok((seed.deserialize(number.into_deserializer())?, self))
    }
}

impl<'de> VariantAccess<'de> for &mut Decoder<'de> {
    type Error = Error;

    fn unit_variant(self) -> Result<()> {
        Ok(())
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value> {
        seed.deserialize(self)
    }

    fn tuple_variant<V: Visitor<'de>>(self, count: usize, visitor: V) -> Result<V::Value> {
        self.elements(count, false, visitor)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value> {
        self.elements(fields.len(), false, visitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_elements_of_all_lists_count() {
        let value = (vec![vec![1_u64, 300], vec![2]], Some("text".to_owned()), [7_u8; 16]);
        type Value = (Vec<Vec<u64>>, Option<String>, [u8; 16]);
        let bytes = [postcard::to_stdvec(&value).unwrap(), b"behind".to_vec()].concat();
        let size = 2 * size_of::<Vec<u64>>() + 3 * size_of::<u64>();
        assert_eq!(decode::<Value>(&bytes, size), Ok((value, &b"behind"[..])));
        assert!(decode::<Value>(&bytes, size - 1).is_err());
        for cut in 0..bytes.len() - b"behind".len() {
            assert!(decode::<Value>(&bytes[..cut], size).is_err());
        }
    }

    #[test]
    fn elements_that_are_not_there_take_no_memory() {
        let bytes = postcard::to_stdvec(&usize::MAX).unwrap();
        assert!(decode::<Vec<u64>>(&bytes, usize::MAX).is_err());
    }
}
