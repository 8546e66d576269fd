//! What kubelet asks of a device plugin (`DevicePlugin` of v1beta1).

use std::collections::HashMap;

use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use super::node::Seen;
use crate::cdi::{Injection, NAME};
use crate::options::Inject;
use crate::v1beta1::device_plugin_server::DevicePlugin;
use crate::v1beta1::{
    AllocateRequest, AllocateResponse, CdiDevice, ContainerAllocateResponse, Device,
    DevicePluginOptions, Empty, ListAndWatchResponse, Mount, PreStartContainerRequest,
    PreStartContainerResponse, PreferredAllocationRequest, PreferredAllocationResponse,
};

/// States of a device.
const HEALTHY: &str = "Healthy";
const UNHEALTHY: &str = "Unhealthy";
/// What the ids of the device's shares begin with.
const SHARE: &str = "cway0-";
/// Containers in one request, at most: those of one pod.
const CONTAINERS_MAX: usize = 1024;

/// What is offered.
#[derive(Clone, Debug)]
pub struct Terms {
    /// What a container gets.
    pub injection: Injection,
    /// How it is given it.
    pub inject: Inject,
    /// How many containers may have it.
    pub shares: u32,
}

/// The service of one name, to one kubelet.
#[derive(Clone, Debug)]
pub struct Service {
    /// What is offered.
    pub terms: Terms,
    /// What is seen of the node.
    pub seen: watch::Receiver<Seen>,
    /// True when the service ends.
    pub ending: watch::Receiver<bool>,
}

impl Service {
    /// The devices: as many as there may be containers, all of them the same.
    fn devices(&self, seen: Seen) -> ListAndWatchResponse {
        let health = if seen.broker { HEALTHY } else { UNHEALTHY };
        let device = |share| Device {
            id: format!("{SHARE}{share}"),
            health: health.to_owned(),
            topology: None,
        };
        ListAndWatchResponse {
            devices: (0..self.terms.shares).map(device).collect(),
        }
    }

    /// Whether this is the id of a share.
    fn is_share(&self, id: &str) -> bool {
        let share = id
            .strip_prefix(SHARE)
            .and_then(|number| number.parse().ok());
        share.is_some_and(|share: u32| share < self.terms.shares && id == format!("{SHARE}{share}"))
    }

    /// What one container gets, however many shares it asked for.
    fn allocate_one(&self) -> ContainerAllocateResponse {
        let mut answer = ContainerAllocateResponse::default();
        match self.terms.inject {
            Inject::Cdi => answer.cdi_devices.push(CdiDevice {
                name: NAME.to_owned(),
            }),
            Inject::Mounts => {
                answer.envs = self
                    .terms
                    .injection
                    .preloading()
                    .into_iter()
                    .collect::<HashMap<_, _>>();
                let mounts = self.terms.injection.mounts().into_iter();
                answer.mounts = mounts
                    .map(|mount| Mount {
                        container_path: mount.container,
                        host_path: mount.host,
                        read_only: true,
                    })
                    .collect();
            }
        }
        answer
    }
}

#[tonic::async_trait]
impl DevicePlugin for Service {
    type ListAndWatchStream = ReceiverStream<Result<ListAndWatchResponse, Status>>;

    async fn get_device_plugin_options(
        &self,
        _: Request<Empty>,
    ) -> Result<Response<DevicePluginOptions>, Status> {
        // Neither of the two optional calls is needed.
        Ok(Response::new(DevicePluginOptions::default()))
    }

    async fn list_and_watch(
        &self,
        _: Request<Empty>,
    ) -> Result<Response<Self::ListAndWatchStream>, Status> {
        let (sender, receiver) = mpsc::channel(1);
        let mut service = self.clone();
        tokio::spawn(async move {
            let mut told = None;
            loop {
                let seen = *service.seen.borrow_and_update();
                if told.replace(seen.broker) != Some(seen.broker)
                    && sender.send(Ok(service.devices(seen))).await.is_err()
                {
                    return;
                }
                tokio::select! {
                    changed = service.seen.changed() => if changed.is_err() { return },
                    _ = service.ending.wait_for(|ending| *ending) => return,
                    () = sender.closed() => return,
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn get_preferred_allocation(
        &self,
        _: Request<PreferredAllocationRequest>,
    ) -> Result<Response<PreferredAllocationResponse>, Status> {
        Err(Status::unimplemented("one share is as good as another"))
    }

    async fn allocate(
        &self,
        request: Request<AllocateRequest>,
    ) -> Result<Response<AllocateResponse>, Status> {
        let containers = request.into_inner().container_requests;
        if containers.len() > CONTAINERS_MAX {
            return Err(Status::invalid_argument("too many containers"));
        }
        for id in containers
            .iter()
            .flat_map(|container| &container.devices_ids)
        {
            if !self.is_share(id) {
                return Err(Status::invalid_argument(format!("there is no device {id}")));
            }
        }
        let answers = containers.iter().map(|_| self.allocate_one());
        Ok(Response::new(AllocateResponse {
            container_responses: answers.collect(),
        }))
    }

    async fn pre_start_container(
        &self,
        _: Request<PreStartContainerRequest>,
    ) -> Result<Response<PreStartContainerResponse>, Status> {
        Err(Status::unimplemented("not asked for in the options"))
    }
}
