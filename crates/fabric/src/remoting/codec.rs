//! Fields of message bodies and their bounded encoding.

use thiserror::Error;

use super::{BODY_MAX, VERSION};
use crate::limits::STRING_MAX;

/// Why foreign bytes are not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Malformed {
    /// The bytes end inside a field, or a length contradicts what was received.
    #[error("wrong length")]
    Length,
    /// Not a Causeway message.
    #[error("wrong magic")]
    Magic,
    /// The version of a build that this one does not understand.
    #[error("version {0} of the remoting protocol, where this build speaks version {VERSION}")]
    Version(u16),
    /// A field holds a value outside its range.
    #[error("bad value of {0}")]
    Value(&'static str),
    /// The number of file descriptors is not what was announced or demanded.
    #[error("wrong number of file descriptors")]
    Descriptors,
}

/// Reads fields from the front of a byte slice, never past its end.
#[derive(Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Reads from `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Reader { rest: bytes }
    }

    /// The bytes not read yet.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Takes `count` bytes.
    ///
    /// # Errors
    /// [`Malformed::Length`] if fewer are left.
    pub fn bytes(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or(Malformed::Length)?;
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (taken, rest) = self.rest.split_first_chunk().ok_or(Malformed::Length)?;
        self.rest = rest;
        Ok(*taken)
    }
}

/// A value with one encoding in message bodies.
pub trait Field: Sized {
    /// Appends the encoding to `out`.
    fn put(&self, out: &mut Vec<u8>);
    /// Takes one value from `input`.
    ///
    /// # Errors
    /// [`Malformed`] if the bytes are not an encoding of a value of this type.
    fn take(input: &mut Reader<'_>) -> Result<Self, Malformed>;
}

/// Encodes a body.
pub fn encode_body<T: Field>(value: &T) -> Vec<u8> {
    let mut out = Vec::new();
    value.put(&mut out);
    out
}

/// Decodes a body; every byte must belong to it.
///
/// # Errors
/// [`Malformed`] as [`Field::take`], or [`Malformed::Length`] if bytes are left over.
pub fn decode_body<T: Field>(body: &[u8]) -> Result<T, Malformed> {
    if body.len() > BODY_MAX {
        return Err(Malformed::Length);
    }
    let mut reader = Reader::new(body);
    let value = T::take(&mut reader)?;
    if !reader.rest().is_empty() {
        return Err(Malformed::Length);
    }
    Ok(value)
}

macro_rules! integer_fields {
    ($($int:ty),*) => {$(
        impl Field for $int {
            fn put(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }
            fn take(input: &mut Reader<'_>) -> Result<Self, Malformed> {
                input.array().map(<$int>::from_le_bytes)
            }
        }
    )*};
}
integer_fields!(u8, u16, u32, u64, i32);

impl Field for bool {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }
    fn take(input: &mut Reader<'_>) -> Result<Self, Malformed> {
        match u8::take(input)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed::Value("bool")),
        }
    }
}

impl Field for () {
    fn put(&self, _out: &mut Vec<u8>) {}
    fn take(_input: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(())
    }
}

impl<const N: usize> Field for [u8; N] {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self);
    }
    fn take(input: &mut Reader<'_>) -> Result<Self, Malformed> {
        input.array()
    }
}

impl<T: Field> Field for Option<T> {
    fn put(&self, out: &mut Vec<u8>) {
        self.is_some().put(out);
        if let Some(value) = self {
            value.put(out);
        }
    }
    fn take(input: &mut Reader<'_>) -> Result<Self, Malformed> {
        bool::take(input)?.then(|| T::take(input)).transpose()
    }
}

impl Field for String {
    fn put(&self, out: &mut Vec<u8>) {
        assert!(self.len() <= STRING_MAX, "string of {} bytes", self.len());
        (self.len() as u16).put(out);
        out.extend_from_slice(self.as_bytes());
    }
    fn take(input: &mut Reader<'_>) -> Result<Self, Malformed> {
        let length = usize::from(u16::take(input)?);
        if length > STRING_MAX {
            return Err(Malformed::Value("string length"));
        }
        let bytes = input.bytes(length)?;
        let text = std::str::from_utf8(bytes).map_err(|_| Malformed::Value("UTF-8"))?;
        Ok(text.to_owned())
    }
}

/// A list is bounded by the message it stands in: every element takes at least one byte, so a
/// forged count can't make the reader allocate more than the message holds.
impl<T: Field> Field for Vec<T> {
    fn put(&self, out: &mut Vec<u8>) {
        assert!(
            self.len() <= usize::from(u16::MAX),
            "list of {}",
            self.len()
        );
        (self.len() as u16).put(out);
        for value in self {
            value.put(out);
        }
    }
    fn take(input: &mut Reader<'_>) -> Result<Self, Malformed> {
        let count = usize::from(u16::take(input)?);
        if count > input.rest().len() {
            return Err(Malformed::Length);
        }
        (0..count).map(|_| T::take(input)).collect()
    }
}

/// Encodes enumerations of one byte.
macro_rules! byte_enum {
    ($type:ident, $name:literal, $($variant:ident),+) => {
        impl $crate::remoting::Field for $type {
            fn put(&self, out: &mut Vec<u8>) {
                out.push(*self as u8);
            }
            fn take(
                input: &mut $crate::remoting::Reader<'_>,
            ) -> std::result::Result<Self, $crate::remoting::Malformed> {
                match <u8 as $crate::remoting::Field>::take(input)? {
                    $(byte if byte == $type::$variant as u8 => Ok($type::$variant),)+
                    _ => Err($crate::remoting::Malformed::Value($name)),
                }
            }
        }
    };
}
pub(crate) use byte_enum;
