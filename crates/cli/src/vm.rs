//! `causeway vm`: virtual machines that may attach to this host's broker.

mod lab;
mod qmp;
mod replug;

use causeway_fabric::services::vm::{VM_NAME_MAX, is_vm_name};
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
        VmVerb::Detach { name } => {
            detach(&address, name).map_err(|error| reason(&address, &error, Asked::Detach(name)))
        }
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

/// What a broker was asked for.
#[derive(Clone, Copy)]
enum Asked<'a> {
    /// To let a VM of a name attach, for a tenant; that without a name is the broker's own.
    Attach(&'a str, &'a str),
    /// To end the attachment of a VM of a name.
    Detach(&'a str),
    List,
}

/// What a broker's refusal means, where it can mean one thing, with the system's words.
fn reason(address: &Address, error: &Error, asked: Asked) -> String {
    let Error::Refused { errno, .. } = error else {
        return error.to_string();
    };
    let meaning = match (*errno, asked) {
        (Errno::PERM, _) => "VMs are attached, listed and detached by the broker's own user and \
                             root, through its runtime directory: not through a tenant's socket, \
                             and not from a guest"
            .to_owned(),
        (Errno::INVAL, Asked::Attach(name, _)) if !is_vm_name(name) => format!(
            "a VM cannot be named {name:?}: a name has 1 to {VM_NAME_MAX} letters, digits, -, _ \
             and . (not first)"
        ),
        (Errno::NOENT, Asked::Detach(name)) => {
            format!("no VM {name:?} is attached: causeway vm list shows those that are")
        }
        (Errno::NOENT, Asked::Attach(_, "")) => {
            "the broker's runtime directory is gone: start the broker again".to_owned()
        }
        (Errno::NOENT, Asked::Attach(_, tenant)) => format!(
            "the broker's configuration has no tenant {tenant:?}, or its runtime directory is gone"
        ),
        // Also said where the directory of sockets can't be made.
        (Errno::EXIST, Asked::Attach(name, _)) if is_attached(address, name) => {
            format!("the VM {name:?} is attached to another tenant: detach it first")
        }
        _ => return error.to_string(),
    };
    format!("{meaning} ({errno})")
}

/// Whether a VM is among those that may attach.
fn is_attached(address: &Address, name: &str) -> bool {
    list(address).is_ok_and(|vms| vms.iter().any(|vm| vm.name == name))
}

fn attach_one(address: &Address, options: &VmAttachOptions) -> Result<(), String> {
    let tenant = options.tenant.as_deref().unwrap_or_default();
    let info = attach(address, &options.name, tenant)
        .map_err(|error| reason(address, &error, Asked::Attach(&options.name, tenant)))?;
    crate::print(&match options.libvirt {
        true => libvirt_xml(&info),
        false => qemu_arguments(&info).join(" ") + "\n",
    })
}

fn print_list(address: &Address) -> Result<(), String> {
    let vms = list(address).map_err(|error| reason(address, &error, Asked::List))?;
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
    fn a_refusal_is_explained_where_it_has_one_meaning() {
        // Nobody is attached where there is no broker.
        let place = Address::Socket("/nonexistent/broker.sock".into());
        let said = |errno, asked| {
            let method = "attach_vm";
            reason(&place, &Error::Refused { method, errno }, asked)
        };
        let bare = |errno: Errno| format!("the broker refused attach_vm: {errno}");
        for asked in [Asked::Attach("a", ""), Asked::Detach("a"), Asked::List] {
            let refused = said(Errno::PERM, asked);
            assert!(
                refused.contains("not through a tenant's socket"),
                "{refused}"
            );
            assert!(
                refused.ends_with(&format!(" ({})", Errno::PERM)),
                "{refused}"
            );
        }
        assert!(said(Errno::INVAL, Asked::Attach("a b", "")).contains("cannot be named"));
        assert_eq!(
            said(Errno::INVAL, Asked::Attach("a", "")),
            bare(Errno::INVAL)
        );
        assert_eq!(
            said(Errno::EXIST, Asked::Attach("a", "")),
            bare(Errno::EXIST)
        );
        assert_eq!(said(Errno::NOENT, Asked::List), bare(Errno::NOENT));
        let gone = said(Errno::NOENT, Asked::Attach("a", ""));
        assert!(gone.contains("directory is gone"), "{gone}");
        let absent = said(Errno::NOENT, Asked::Attach("a", "b"));
        assert!(absent.contains("no tenant \"b\", or"), "{absent}");
    }

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
