//! `causeway vm`: virtual machines that may attach to this host's broker.

mod lab;
mod qmp;
mod replug;

use causeway_fabric::services::vm::VM_NAME_MAX;
use causeway_fabric::vm::{VmInfo, attach, detach, list};
use causeway_fabric::{Address, Error};
use rustix::io::Errno;

use crate::args::{VmAttachOptions, VmVerb};

/// Width of the list's columns.
const COLUMN: usize = 16;

/// Does what the command line says; the result is the exit status.
pub fn vm(verb: &VmVerb) -> u8 {
    let address = Address::from_env();
    let outcome = match verb {
        VmVerb::Attach(options) => attach_one(&address, options),
        VmVerb::List => print_list(&address),
        VmVerb::Detach { name } => detach(&address, name).map_err(|error| reason(&error, name, "")),
        VmVerb::Lab { arguments } => Err(lab::lab(arguments)),
        VmVerb::Replug(options) => replug::replug(&address, options),
    };
    match outcome {
        Ok(()) => 0,
        Err(error) => {
            crate::complain(&error);
            crate::EXIT_OWN_FAILURE
        }
    }
}

/// What a broker's refusal means for the VM `name`.
fn reason(error: &Error, name: &str, tenant: &str) -> String {
    let Error::Refused { errno, .. } = error else {
        return error.to_string();
    };
    match *errno {
        Errno::INVAL => format!(
            "a VM cannot be named {name:?}: a name has 1 to {VM_NAME_MAX} letters, digits, -, _ \
             and . (not first)"
        ),
        Errno::NOENT if tenant.is_empty() => {
            format!("no VM {name:?} is attached: causeway vm list shows those that are")
        }
        Errno::NOENT => format!("the broker's configuration has no tenant {tenant:?}"),
        Errno::EXIST => format!("the VM {name:?} is attached to another tenant: detach it first"),
        Errno::PERM => "only the broker's own user and root attach and detach VMs".to_owned(),
        _ => error.to_string(),
    }
}

fn attach_one(address: &Address, options: &VmAttachOptions) -> Result<(), String> {
    let tenant = options.tenant.as_deref().unwrap_or_default();
    let info = attach(address, &options.name, tenant)
        .map_err(|error| reason(&error, &options.name, tenant))?;
    crate::print(&match options.libvirt {
        true => libvirt_xml(&info),
        false => qemu_arguments(&info).join(" ") + "\n",
    })
}

fn print_list(address: &Address) -> Result<(), String> {
    let vms = list(address).map_err(|error| reason(&error, "", ""))?;
    let line = |vm: VmInfo| {
        let state = if vm.connected { "connected" } else { "waits" };
        let (name, tenant, socket) = (vm.name, vm.tenant, vm.socket);
        format!("{name:<COLUMN$} {tenant:<COLUMN$} {state:<COLUMN$} {socket}\n")
    };
    crate::print(&vms.into_iter().map(line).collect::<String>())
}

/// The kind of device: one that leaves all to its back end.
const DRIVER: &str = "vhost-user-test-device-pci";
/// Device number that no driver of the kernel claims.
const VIRTIO_ID: u32 = 36;
/// Virtqueues, and the buffers of each.
const QUEUES: u32 = 2;
const QUEUE_SIZE: u32 = 128;
/// Bytes of the configuration space.
const CONFIG_SIZE: u32 = 64;

/// QEMU's name of the connection.
fn chardev_name(vm: &str) -> String {
    format!("causeway-{vm}")
}

/// The device as QEMU's command line has it. The machine's memory must be shared, which is an
/// argument of its own.
fn qemu_arguments(info: &VmInfo) -> [String; 4] {
    let (chardev, socket) = (chardev_name(&info.name), info.socket.replace(',', ",,"));
    [
        "-chardev".into(),
        format!("socket,id={chardev},path={socket}"),
        "-device".into(),
        format!(
            "{DRIVER},virtio-id={VIRTIO_ID},num_vqs={QUEUES},vq_size={QUEUE_SIZE},\
             config_size={CONFIG_SIZE},chardev={chardev}"
        ),
    ]
}

/// libvirt has no element for the device: QEMU's arguments are passed through.
fn libvirt_xml(info: &VmInfo) -> String {
    let escape = |text: &str| {
        text.replace('&', "&amp;")
            .replace('\'', "&apos;")
            .replace('<', "&lt;")
    };
    let lines = qemu_arguments(info);
    let arguments = lines
        .iter()
        .map(|argument| format!("  <qemu:arg value='{}'/>\n", escape(argument)));
    let body: String = arguments.collect();
    format!(
        "<!-- The domain also needs <memoryBacking><source type='memfd'/>\n\
         <access mode='shared'/></memoryBacking> -->\n\
         <qemu:commandline xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'>\n\
         {body}</qemu:commandline>\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_quoted_as_qemu_and_xml_want_it() {
        let info = VmInfo {
            name: "a".into(),
            tenant: String::new(),
            socket: "/run/x,y/'a&b'.sock".into(),
            connected: false,
        };
        let arguments = qemu_arguments(&info);
        assert_eq!(
            arguments[1],
            "socket,id=causeway-a,path=/run/x,,y/'a&b'.sock"
        );
        assert_eq!(
            arguments[3],
            "vhost-user-test-device-pci,virtio-id=36,num_vqs=2,vq_size=128,config_size=64,\
             chardev=causeway-a"
        );
        assert!(libvirt_xml(&info).contains("path=/run/x,,y/&apos;a&amp;b&apos;.sock"));
    }
}
