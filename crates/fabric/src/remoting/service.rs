//! Services: tables of methods from which stub and dispatcher come.

use std::os::fd::{BorrowedFd, OwnedFd};

use crate::error::Result;

/// One row of a service table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Method {
    /// Number in the header.
    pub number: u16,
    /// Name, for errors and logs.
    pub name: &'static str,
    /// Fewest file descriptors a request carries.
    pub fds_min: u8,
    /// Most file descriptors a request carries.
    pub fds_max: u8,
}

/// What a handler returns: a body and the file descriptors beside it.
#[derive(Debug)]
pub struct Answer<T> {
    /// The reply's body.
    pub body: T,
    /// Descriptors sent with it; the handler's copies are closed once sent.
    pub fds: Vec<OwnedFd>,
}

impl<T> From<T> for Answer<T> {
    fn from(body: T) -> Self {
        Answer {
            body,
            fds: Vec::new(),
        }
    }
}

/// A transport that performs one call: the stubs' lower edge.
pub trait Call {
    /// Sends a request, waits for its reply, returns the reply's body and descriptors.
    ///
    /// # Errors
    /// [`crate::Error::Refused`] with the reply's status, or a transport failure.
    fn call(
        &mut self,
        service: u16,
        method: &Method,
        body: Vec<u8>,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(Vec<u8>, Vec<OwnedFd>)>;
}

/// Declares structures that are message bodies: the fields in order are the encoding.
macro_rules! message {
    ($($(#[$attr:meta])* pub struct $name:ident {
        $($(#[$fattr:meta])* $field:ident: $type:ty,)*
    })*) => {$(
        $(#[$attr])*
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct $name {
            $($(#[$fattr])* pub $field: $type,)*
        }

        impl $crate::remoting::Field for $name {
            fn put(&self, out: &mut Vec<u8>) {
                $($crate::remoting::Field::put(&self.$field, out);)*
            }
            fn take(
                input: &mut $crate::remoting::Reader<'_>,
            ) -> std::result::Result<Self, $crate::remoting::Malformed> {
                Ok($name { $($field: $crate::remoting::Field::take(input)?,)* })
            }
        }
    )*};
}

/// Declares a service: its number, and one row per method. From the rows come the table
/// `METHODS`, the trait that a server implements with its `dispatch`, and the client's stub.
macro_rules! service {
    (
        $(#[$attr:meta])*
        service $number:literal, handler $handler:ident, stub $stub:ident {
            $(
                $(#[$mattr:meta])*
                $method_number:literal => $method:ident(
                    $request:ty; fds $min:literal..=$max:literal
                ) -> $reply:ty;
            )*
        }
    ) => {
        $(#[$attr])*
        pub const SERVICE: u16 = $number;

        /// The service's methods.
        pub const METHODS: &[$crate::remoting::Method] = &[$(
            $crate::remoting::Method {
                number: $method_number,
                name: stringify!($method),
                fds_min: $min,
                fds_max: $max,
            },
        )*];

        /// What a server implements: one function per method of the table.
        pub trait $handler {
            $(
                $(#[$mattr])*
                ///
                /// # Errors
                /// The errno value that the caller gets as the reply's status.
                fn $method(
                    &mut self,
                    request: $request,
                    fds: Vec<std::os::fd::OwnedFd>,
                ) -> std::result::Result<$crate::remoting::Answer<$reply>, rustix::io::Errno>;
            )*
        }

        /// Decodes a request, runs its handler and encodes the reply's body.
        ///
        /// # Errors
        /// `ENOSYS` for a method outside the table, `EBADMSG` for a body that does not decode or
        /// a wrong number of descriptors, else what the handler returned.
        pub fn dispatch<H: $handler>(
            handler: &mut H,
            method: u16,
            body: &[u8],
            fds: Vec<std::os::fd::OwnedFd>,
        ) -> std::result::Result<(Vec<u8>, Vec<std::os::fd::OwnedFd>), rustix::io::Errno> {
            match method {
                $($method_number => {
                    if !($min..=$max).contains(&fds.len()) {
                        return Err(rustix::io::Errno::BADMSG);
                    }
                    let request: $request = $crate::remoting::decode_body(body)
                        .map_err(|_| rustix::io::Errno::BADMSG)?;
                    let answer = handler.$method(request, fds)?;
                    Ok(($crate::remoting::encode_body(&answer.body), answer.fds))
                })*
                _ => Err(rustix::io::Errno::NOSYS),
            }
        }

        /// Client side: one function per method of the table.
        #[derive(Debug)]
        pub struct $stub<'a, C>(pub &'a mut C);

        impl<C: $crate::remoting::Call> $stub<'_, C> {
            $(
                $(#[$mattr])*
                ///
                /// # Errors
                /// [`crate::Error`]: refused by the server, or the transport failed.
                pub fn $method(
                    &mut self,
                    request: &$request,
                    fds: &[std::os::fd::BorrowedFd<'_>],
                ) -> $crate::Result<($reply, Vec<std::os::fd::OwnedFd>)> {
                    const METHOD: $crate::remoting::Method = $crate::remoting::Method {
                        number: $method_number,
                        name: stringify!($method),
                        fds_min: $min,
                        fds_max: $max,
                    };
                    let body = $crate::remoting::encode_body(request);
                    let (reply, fds) = self.0.call(SERVICE, &METHOD, body, fds)?;
                    Ok(($crate::remoting::decode_body(&reply)?, fds))
                }
            )*
        }
    };
}
pub(crate) use {message, service};
