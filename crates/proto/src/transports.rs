//! The transports that a queue pair may have: a row for each.

use crate::transport::Transport;
use crate::work::{QpConfig, WorkQueues};

/// Work queues, and the transport that carries their work out.
#[derive(Debug)]
pub struct Joined<T: Transport> {
    pub work: WorkQueues<T>,
    pub transport: T,
}

impl<T: Transport> Joined<T> {
    fn new(config: QpConfig) -> Self {
        Joined {
            work: WorkQueues::new(config),
            transport: T::default(),
        }
    }
}

/// Makes [`TransportType`], [`Transports`] and `with_transport!` of the rows. `$d` is a dollar.
macro_rules! transports {
    ($d:tt $($(#[doc = $doc:literal])+ $(#[cfg($cfg:meta)])? $name:ident: $transport:ty,)+) => {
        /// The transport of a queue pair (`enum ibv_transport_type`).
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum TransportType {
            $($(#[doc = $doc])+ $(#[cfg($cfg)])? $name,)+
        }

        /// Work queues, and one of the transports.
        #[derive(Debug)]
        pub enum Transports {
            $($(#[cfg($cfg)])? $name(Joined<$transport>),)+
        }

        impl Transports {
            /// Those of a queue pair in the RESET state.
            pub fn new(transport: TransportType, config: QpConfig) -> Self {
                match transport {
                    $($(#[cfg($cfg)])?
                    TransportType::$name => Transports::$name(Joined::new(config)),)+
                }
            }
        }

        /// Evaluates an expression with the work queues and their transport, whichever that is.
        /// With one row there is nothing to be found out.
        macro_rules! with_transport {
            ($d transports:expr, |$d work:pat_param, $d transport:pat_param| $d body:expr) => {
                match $d transports {
                    $($(#[cfg($cfg)])? $crate::transports::Transports::$name(
                        $crate::transports::Joined { work: $d work, transport: $d transport },
                    ) => $d body,)+
                }
            };
        }
    };
}

transports! { $
    /// DDP and RDMAP.
    Iwarp: crate::iwarp::Iwarp,
    /// One that is made up.
    #[cfg(test)]
    StopAndWait: crate::stop_and_wait::StopAndWait,
}

#[expect(
    clippy::single_component_path_imports,
    reason = "what one macro makes of another has a path by this alone"
)]
pub(crate) use with_transport;
