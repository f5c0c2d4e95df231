//! Encoding values as a znode's data.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Encodes values as a znode's data and decodes them. Implement it to use a
/// [`Config`](crate::recipes::Config) with a format of your own.
///
/// ```
/// use quorate::{recipes::{Codec, Config}, testing::Cluster};
///
/// /// A number as an operator would write it.
/// struct Decimal;
///
/// impl Codec<u32> for Decimal {
///     fn encode(value: &u32) -> Result<Vec<u8>, String> {
///         Ok(value.to_string().into_bytes())
///     }
///
///     fn decode(data: &[u8]) -> Result<u32, String> {
///         let text = std::str::from_utf8(data).map_err(|error| error.to_string())?;
///         text.parse().map_err(|error| format!("{error}"))
///     }
/// }
///
/// let session = Cluster::new(1).node(0).session();
/// let limit = Config::<u32, Decimal>::with_codec(&session, "/limit")?;
/// limit.set(&20).wait()?;
/// assert_eq!(&session.get("/limit").wait()?.0[..], b"20");
/// # Ok::<(), quorate::Error>(())
/// ```
pub trait Codec<T> {
    /// Encodes a value, or returns the reason why it cannot be encoded.
    fn encode(value: &T) -> Result<Vec<u8>, String>;

    /// Decodes a value, or returns the reason why the data is invalid. Anybody may have written the
    /// data: it must not be trusted.
    fn decode(data: &[u8]) -> Result<T, String>;
}

/// Postcard, a compact format for all types that [`serde`] can serialise. It is not
/// self-describing: fields are identified by their order. So a type in use may get new variants at
/// the end of an enum, but no new fields.
///
/// ```
/// use quorate::recipes::{Codec, Postcard};
///
/// let data = Postcard::encode(&(7u8, true))?;
/// assert_eq!(data, [7, 1]);
/// assert_eq!(Postcard::decode(&data), Ok((7u8, true)));
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Postcard;

impl<T: Serialize + DeserializeOwned> Codec<T> for Postcard {
    fn encode(value: &T) -> Result<Vec<u8>, String> {
        postcard::to_stdvec(value).map_err(|error| error.to_string())
    }

    fn decode(data: &[u8]) -> Result<T, String> {
        match postcard::take_from_bytes(data) {
            Ok((value, [])) => Ok(value),
            Ok((_, rest)) => Err(format!("{} bytes are left over", rest.len())),
            Err(error) => Err(error.to_string()),
        }
    }
}

/// JSON (RFC 8259), for all types that [`serde`] can serialise. With the feature `json`.
///
/// People can read and edit it, `quorate get` and `quorate set` included. A type in use may get new fields
/// (with `#[serde(default)]`). Instances with the former type ignore the new fields, and drop them when
/// they write. Keys of maps must be strings or integers. NaN and infinite numbers become `null`.
///
/// ```
/// use quorate::{CreateMode, recipes::{Config, Json}, testing::Cluster};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Debug, PartialEq, Serialize, Deserialize)]
/// struct Limits {
///     connections: u32,
///     #[serde(default)]
///     banner: String,
/// }
///
/// let session = Cluster::new(1).node(0).session();
/// session.create("/limits", br#"{ "connections": 20 }"#, CreateMode::Persistent).wait()?;
/// let limits = Config::<Limits, Json>::with_codec(&session, "/limits")?;
/// let read = limits.get().wait()?.expect("it is there");
/// assert_eq!(read.value, Limits { connections: 20, banner: String::new() });
/// # Ok::<(), quorate::Error>(())
/// ```
#[cfg(feature = "json")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Json;

#[cfg(feature = "json")]
impl<T: Serialize + DeserializeOwned> Codec<T> for Json {
    fn encode(value: &T) -> Result<Vec<u8>, String> {
        serde_json::to_vec(value).map_err(|error| error.to_string())
    }

    fn decode(data: &[u8]) -> Result<T, String> {
        serde_json::from_slice(data).map_err(|error| shortened(&error.to_string()))
    }
}

/// The longest reason, in characters. That of `serde` may have a whole text of the data in it.
#[cfg(feature = "json")]
const REASON_MAX: usize = 200;

/// A reason without its middle, if it is long. The place in the data is at its end.
#[cfg(feature = "json")]
fn shortened(reason: &str) -> String {
    let length = reason.chars().count();
    if length <= REASON_MAX {
        return reason.to_owned();
    }
    let half = REASON_MAX / 2;
    let end: String = reason.chars().skip(length - half).collect();
    format!("{} … {end}", reason.chars().take(half).collect::<String>())
}

/// Bytes, without any encoding.
///
/// ```
/// use quorate::{recipes::{Config, Raw}, testing::Cluster};
///
/// let session = Cluster::new(1).node(0).session();
/// let banner = Config::<Vec<u8>, Raw>::with_codec(&session, "/banner")?;
/// banner.set(&b"hello".to_vec()).wait()?;
/// assert_eq!(&session.get("/banner").wait()?.0[..], b"hello");
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Raw;

impl Codec<Vec<u8>> for Raw {
    fn encode(value: &Vec<u8>) -> Result<Vec<u8>, String> {
        Ok(value.clone())
    }

    fn decode(data: &[u8]) -> Result<Vec<u8>, String> {
        Ok(data.to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn postcard<T: Serialize + DeserializeOwned>(data: &[u8]) -> Result<T, String> {
        Postcard::decode(data)
    }

    #[test]
    fn encoded_values_are_decoded() {
        let value = (Some("text".to_owned()), vec![1u64, u64::MAX], -1i8);
        let data = Postcard::encode(&value).unwrap();
        assert_eq!(postcard::<(Option<String>, Vec<u64>, i8)>(&data), Ok(value));
        assert_eq!(Postcard::encode(&()).unwrap(), b"", "of nothing there are no bytes");
        for data in [&b""[..], b"\0", b"\xff\xfe"] {
            assert_eq!(Raw::decode(data).and_then(|value| Raw::encode(&value)), Ok(data.to_vec()));
        }
    }

    #[cfg(feature = "json")]
    #[test]
    fn json_is_all_of_a_value_and_nests_within_bounds() {
        let value = (Some("text".to_owned()), vec![1u64, u64::MAX], -1i8);
        let data = Json::encode(&value).unwrap();
        assert_eq!(data, br#"["text",[1,18446744073709551615],-1]"#);
        let decode =
            |data: &[u8]| -> Result<(Option<String>, Vec<u64>, i8), String> { Json::decode(data) };
        assert_eq!(decode(&data), Ok(value));
        assert!(decode(&[&data[..], b" x"].concat()).is_err());
        let text = format!("[{:?}]", "x".repeat(900_000));
        let error = Json::decode(text.as_bytes()).map(|_: Vec<u32>| ()).unwrap_err();
        assert!(error.len() < 300 && error.ends_with("at line 1 column 900003"), "{error}");
        let deep: Result<serde_json::Value, String> = Json::decode(&vec![b'['; 1 << 20]);
        assert!(deep.unwrap_err().contains("recursion limit"));
    }

    #[test]
    fn data_is_all_of_a_value_and_no_more() {
        assert_eq!(postcard::<u32>(b"\x07"), Ok(7));
        let longer = postcard::<u32>(b"\x07\x07").unwrap_err();
        assert!(longer.contains("1 bytes are left over"), "{longer}");
        for data in [&b""[..], b"\x80", b"\xff\xff\xff\xff\xff\xff"] {
            assert!(postcard::<u32>(data).is_err(), "{data:?}");
        }
        // A length beyond the end of the data is rejected.
        assert!(postcard::<Vec<u8>>(b"\xff\xff\xff\xff\x0f1").is_err());
        assert!(postcard::<String>(b"\x01\xff").is_err(), "it is no UTF-8");
        assert!(postcard::<()>(b"\0").is_err());
    }
}
