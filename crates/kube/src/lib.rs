//! The device in containers.
//!
//! [`cdi`] writes the specification by which container engines give a container the device
//! (Container Device Interface), [`again`] writes it again, [`hook`] is the hook that it names, and
//! [`plugin`] offers the device to Kubernetes, whose kubelet then passes the specification's name
//! to the engine.

pub mod again;
pub mod cdi;
pub mod completions;
pub mod folder;
pub mod hook;
pub mod names;
pub mod options;
pub mod plugin;

/// kubelet's messages and services, made of `proto/api.proto`.
#[allow(
    missing_docs,
    clippy::all,
    rustdoc::all,
    reason = "generated, with the description's comments"
)]
pub mod v1beta1 {
    tonic::include_proto!("v1beta1");
}
