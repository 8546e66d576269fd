//! `causeway vm replug`: QEMU never comes to a vhost-user socket again once the broker behind it
//! has ended. So the device is taken out of the running machine, and plugged in anew.

use std::io;

use causeway_fabric::Address;
use causeway_fabric::vm::attach;
use serde_json::{Value, json};

use super::qmp::Qmp;
use super::{Asked, CONFIG_SIZE, DRIVER, QUEUE_SIZE, QUEUES, VIRTIO_ID, chardev_name};
use crate::args::VmReplugOptions;

/// Where QEMU has the devices that were given a name.
const NAMED: &str = "/machine/peripheral";

/// A device in the machine.
#[derive(Debug, PartialEq, Eq)]
struct Place {
    id: String,
    /// The port that it is plugged into.
    bus: String,
}

/// Replaces the device of a VM.
pub fn replug(address: &Address, options: &VmReplugOptions) -> Result<(), String> {
    let tenant = options.tenant.as_deref().unwrap_or_default();
    let text = |error: io::Error| format!("QEMU's QMP socket {}: {error}", options.qmp.display());
    let mut qmp = Qmp::connect(&options.qmp).map_err(text)?;
    // First: the server of the socket must be there when QEMU connects, or all of QEMU waits.
    let info = attach(address, &options.name, tenant)
        .map_err(|error| super::reason(address, &error, Asked::Attach(&options.name, tenant)))?;
    let place = plug(&mut qmp, options, &info.socket).map_err(text)?;
    let Place { id, bus } = place;
    crate::print(&format!("{id} is plugged in again, at {bus}\n"))
}

fn plug(qmp: &mut Qmp, options: &VmReplugOptions, socket: &str) -> io::Result<Place> {
    let chardev = chardev_name(&options.name);
    let place = match find(qmp, &chardev)? {
        Some(place) => {
            qmp.execute("device_del", json!({"id": place.id}))?;
            qmp.wait_deleted(&place.id)?;
            place
        }
        // Taken out before, and not plugged in.
        None => Place {
            id: options.device.clone().ok_or_else(nameless)?,
            bus: options.bus.clone().ok_or_else(nameless)?,
        },
    };
    // It may be gone already, as may the device.
    let _ = qmp.execute("chardev-remove", json!({"id": chardev}));
    let to = json!({"type": "unix", "data": {"path": socket}});
    let backend = json!({"type": "socket", "data": {"addr": to, "server": false}});
    qmp.execute("chardev-add", json!({"id": chardev, "backend": backend}))?;
    qmp.execute("device_add", device(&place, &chardev))?;
    Ok(place)
}

fn nameless() -> io::Error {
    io::Error::other(
        "the machine has no such device with an id; if it was taken out, say --device and --bus",
    )
}

fn device(place: &Place, chardev: &str) -> Value {
    json!({
        "driver": DRIVER, "virtio-id": VIRTIO_ID, "num_vqs": QUEUES, "vq_size": QUEUE_SIZE,
        "config_size": CONFIG_SIZE, "chardev": chardev, "id": place.id, "bus": place.bus,
    })
}

/// The device that stands on a connection.
fn find(qmp: &mut Qmp, chardev: &str) -> io::Result<Option<Place>> {
    let kind = format!("child<{DRIVER}>");
    let named = qmp.execute("qom-list", json!({"path": NAMED}))?;
    for item in named.as_array().into_iter().flatten() {
        let Some(id) = item["name"].as_str().filter(|_| item["type"] == kind) else {
            continue;
        };
        let path = format!("{NAMED}/{id}");
        let mut get = |property: &str| {
            let request = json!({"path": path, "property": property});
            let value = qmp.execute("qom-get", request)?;
            Ok::<_, io::Error>(value.as_str().unwrap_or_default().to_owned())
        };
        if get("chardev")? == chardev {
            return Ok(Some(Place {
                id: id.to_owned(),
                bus: bus_name(&get("parent_bus")?),
            }));
        }
    }
    Ok(None)
}

/// A bus is the last part of its path; that of a named port has the port's name.
fn bus_name(path: &str) -> String {
    path.rsplit('/').next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_goes_back_to_its_port() {
        let place = Place {
            id: "cw".into(),
            bus: bus_name("/machine/peripheral/cwport/cwport"),
        };
        assert_eq!(place.bus, "cwport");
        let device = device(&place, "causeway-a");
        assert_eq!(device["bus"], "cwport");
        assert_eq!(device["driver"], "vhost-user-test-device-pci");
        assert_eq!(
            (&device["virtio-id"], &device["num_vqs"]),
            (&json!(36), &json!(2))
        );
    }
}
