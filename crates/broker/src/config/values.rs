//! The values of single keys. Each is checked where it is read, so that a mistake is told with its
//! line.

use std::fmt::{self, Formatter};
use std::marker::PhantomData;
use std::path::{Path, PathBuf};

use causeway_fabric::amount::amount;
use serde::de::{Error, SeqAccess, Unexpected, Visitor};
use serde::{Deserialize, Deserializer};

use crate::sys;

/// Bits that the mode of a socket may have.
const MODE_BITS: u32 = 0o777;
/// The user and group number that stands for those unknown to this user namespace
/// (`/proc/sys/kernel/overflowuid`): nobody in particular, hence no one to be admitted.
const NOBODY: u32 = 65534;
/// The number that nobody has: chown(2) and setuid(2) take it for "as it is".
const NO_ID: u32 = u32::MAX;
/// Longest path of a socket, in bytes (unix(7), less the null byte).
const SOCKET_PATH_MAX: usize = 107;

/// A number from 0 to `MOST`.
#[derive(Clone, Copy)]
pub(super) struct Count<const MOST: usize>(pub usize);

impl<'de, const MOST: usize> Deserialize<'de> for Count<MOST> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct AtMost<const MOST: usize>;

        impl<const MOST: usize> Visitor<'_> for AtMost<MOST> {
            type Value = Count<MOST>;

            fn expecting(&self, f: &mut Formatter<'_>) -> fmt::Result {
                write!(f, "a number from 0 to {MOST}")
            }

            fn visit_i64<E: Error>(self, number: i64) -> Result<Self::Value, E> {
                let count = usize::try_from(number).ok().filter(|count| *count <= MOST);
                let odd = || E::invalid_value(Unexpected::Signed(number), &self);
                count.map(Count).ok_or_else(odd)
            }

            // The reader of TOML tells numbers above those of i64 in this way.
            fn visit_u64<E: Error>(self, number: u64) -> Result<Self::Value, E> {
                let count = usize::try_from(number).ok().filter(|count| *count <= MOST);
                let odd = || E::invalid_value(Unexpected::Unsigned(number), &self);
                count.map(Count).ok_or_else(odd)
            }
        }

        from.deserialize_any(AtMost::<MOST>)
    }
}

/// A number of bytes, or text such as "64 GiB".
#[derive(Clone, Copy)]
pub(super) struct Amount(pub u64);

impl<'de> Deserialize<'de> for Amount {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Bytes;

        impl Visitor<'_> for Bytes {
            type Value = Amount;

            fn expecting(&self, f: &mut Formatter<'_>) -> fmt::Result {
                f.write_str("a number of bytes or an amount such as \"64 GiB\"")
            }

            fn visit_i64<E: Error>(self, number: i64) -> Result<Amount, E> {
                let odd = |_| E::invalid_value(Unexpected::Signed(number), &self);
                u64::try_from(number).map(Amount).map_err(odd)
            }

            // As above.
            fn visit_u64<E: Error>(self, number: u64) -> Result<Amount, E> {
                Ok(Amount(number))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Amount, E> {
                let odd = || E::invalid_value(Unexpected::Str(text), &self);
                amount(text).map(Amount).ok_or_else(odd)
            }
        }

        from.deserialize_any(Bytes)
    }
}

/// The mode of a socket.
#[derive(Clone, Copy)]
pub(super) struct Mode(pub u32);

impl<'de> Deserialize<'de> for Mode {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Octal;

        impl Visitor<'_> for Octal {
            type Value = Mode;

            fn expecting(&self, f: &mut Formatter<'_>) -> fmt::Result {
                f.write_str("a file mode, written in octal without quotes, such as 0o660")
            }

            fn visit_i64<E: Error>(self, number: i64) -> Result<Mode, E> {
                let mode = u32::try_from(number).ok();
                let mode = mode.filter(|mode| mode & !MODE_BITS == 0);
                let odd = || E::invalid_value(Unexpected::Signed(number), &self);
                mode.map(Mode).ok_or_else(odd)
            }
        }

        from.deserialize_any(Octal)
    }
}

/// What has a name and a number in the system's files.
pub(super) trait Kind {
    const NAME: &'static str;

    fn number(name: &str) -> Option<u32>;
}

/// Users.
pub(super) enum Users {}
/// Groups.
pub(super) enum Groups {}

impl Kind for Users {
    const NAME: &'static str = "user";

    fn number(name: &str) -> Option<u32> {
        sys::user_number(name)
    }
}

impl Kind for Groups {
    const NAME: &'static str = "group";

    fn number(name: &str) -> Option<u32> {
        sys::group_number(name)
    }
}

/// A user or group, by name or number.
pub(super) struct Id<K> {
    pub number: u32,
    kind: PhantomData<K>,
}

impl<K: Kind> Id<K> {
    fn checked<E: Error>(number: u32) -> Result<Self, E> {
        let kind = K::NAME;
        match number {
            NOBODY => Err(E::custom(format!(
                "{kind} {NOBODY} is nobody in particular (the overflow id): name another"
            ))),
            NO_ID => Err(E::custom(format!("no {kind} can have the number {NO_ID}"))),
            number => Ok(Id {
                number,
                kind: PhantomData,
            }),
        }
    }

    fn named<E: Error>(name: &str) -> Result<Self, E> {
        let absent = || E::custom(format!("there is no {} {name:?}", K::NAME));
        K::number(name).ok_or_else(absent).and_then(Id::checked)
    }
}

impl<'de, K: Kind> Deserialize<'de> for Id<K> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Any<K>(PhantomData<K>);

        impl<K: Kind> Visitor<'_> for Any<K> {
            type Value = Id<K>;

            fn expecting(&self, f: &mut Formatter<'_>) -> fmt::Result {
                write!(f, "the name or the number of a {}", K::NAME)
            }

            fn visit_i64<E: Error>(self, number: i64) -> Result<Id<K>, E> {
                let odd = |_| E::invalid_value(Unexpected::Signed(number), &self);
                u32::try_from(number).map_err(odd).and_then(Id::checked)
            }

            fn visit_str<E: Error>(self, name: &str) -> Result<Id<K>, E> {
                Id::named(name)
            }
        }

        from.deserialize_any(Any(PhantomData))
    }
}

/// A user, or a group as `@group`.
pub(super) enum Trusted {
    User(u32),
    Group(u32),
}

impl<'de> Deserialize<'de> for Trusted {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Either;

        impl Visitor<'_> for Either {
            type Value = Trusted;

            fn expecting(&self, f: &mut Formatter<'_>) -> fmt::Result {
                f.write_str("the name or the number of a user, or a group as \"@group\"")
            }

            fn visit_i64<E: Error>(self, number: i64) -> Result<Trusted, E> {
                let odd = |_| E::invalid_value(Unexpected::Signed(number), &self);
                let number = u32::try_from(number).map_err(odd)?;
                Id::<Users>::checked(number).map(|id| Trusted::User(id.number))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Trusted, E> {
                match text.strip_prefix('@') {
                    Some(name) => Id::<Groups>::named(name).map(|id| Trusted::Group(id.number)),
                    None => Id::<Users>::named(text).map(|id| Trusted::User(id.number)),
                }
            }
        }

        from.deserialize_any(Either)
    }
}

/// Where a socket can be made.
pub(super) fn socket_path<'de, D: Deserializer<'de>>(from: D) -> Result<PathBuf, D::Error> {
    let path = String::deserialize(from)?;
    let why = if path.len() > SOCKET_PATH_MAX {
        format!("the path of a socket has {SOCKET_PATH_MAX} bytes at most")
    } else if !names_file(&path) {
        format!("the socket's path {path:?} is not absolute, or names no file")
    } else {
        return Ok(path.into());
    };
    Err(D::Error::custom(why))
}

/// Whether a path is absolute and ends with a file's name.
fn names_file(path: &str) -> bool {
    let named = !path.ends_with('/') && Path::new(path).file_name().is_some();
    path.starts_with('/') && named && !path.contains('\0')
}

/// Tables of one name, `[[NAME]]`.
pub(super) fn tables<'de, D, T>(from: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    struct Tables<T>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>> Visitor<'de> for Tables<T> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut Formatter<'_>) -> fmt::Result {
            f.write_str("a list of tables, whose headings have two brackets, such as [[tenant]]")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<T>, A::Error> {
            let mut tables = Vec::new();
            while let Some(table) = seq.next_element()? {
                tables.push(table);
            }
            Ok(tables)
        }
    }

    from.deserialize_any(Tables(PhantomData))
}
