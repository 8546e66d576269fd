//! Virtual machines: a vhost-user device for each that may attach.
//!
//! A VM has a name and belongs to one tenant. QEMU connects to its socket; what its processes say
//! then comes in as sessions of that tenant ([`guest`]). Each VM has threads of its own, which
//! alone wait for its QEMU; the broker's loop hears of them only by the sockets that they send it.
//!
//! - [`messages`]: what travels over the virtqueues;
//! - [`window`]: the guest's view of shared memory;
//! - [`device`], [`ring`]: virtqueues and vhost-user.

pub mod device;
pub mod guest;
pub mod messages;
pub mod ring;
pub mod sleepers;
pub mod window;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use causeway_fabric::remoting::Answer;
use causeway_fabric::services::vm::{AttachVmRequest, VmInfo, VmRequest, VmService, is_vm_name};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use vhost::vhost_user::Listener;
use vhost_user_backend::VhostUserDaemon;
use vm_memory::{GuestMemoryAtomic, GuestMemoryMmap};

use crate::config::Tenant;
use crate::ids::{SessionId, TenantId, VmId};
use crate::session::Peer;
use crate::sys::random;
use device::Device;
use guest::Admit;

/// Directory of the sockets, in the runtime directory.
pub const DIR_NAME: &str = "vm";
/// Most VMs.
pub const VMS_MAX: usize = 256;
/// Tells a VM's label from the cookie of a network namespace, which counts up from 1.
const LABEL_BIT: u64 = 1 << 63;

/// A process of a VM that comes.
#[derive(Debug)]
pub struct Arrival {
    /// Its connection.
    pub socket: OwnedFd,
    /// The caller.
    pub peer: Peer,
    /// The name of its VM.
    pub name: Arc<str>,
}

/// What the threads of VMs tell the broker's loop.
enum Notice {
    /// A process of a VM comes.
    Comes(Arrival),
    /// A VM reaches nothing any more of what it was shown.
    Fenced(VmId),
}

/// Sends the broker's loop the clients that come from one VM.
struct Gate {
    vm: VmId,
    name: Arc<str>,
    tenant: TenantId,
    notices: Sender<Notice>,
    bell: Arc<OwnedFd>,
}

impl Gate {
    fn tell(&self, notice: Notice) -> Result<(), Errno> {
        self.notices.send(notice).map_err(|_| Errno::SHUTDOWN)?;
        rustix::io::write(&*self.bell, &1u64.to_ne_bytes())?;
        Ok(())
    }
}

impl Admit for Gate {
    fn admit(&self, socket: OwnedFd, uid: u32) -> Result<(), Errno> {
        let peer = Peer {
            tenant: self.tenant,
            userfaultfd: false,
            pid: 0,
            uid,
            vm: Some(self.vm),
        };
        let name = Arc::clone(&self.name);
        self.tell(Notice::Comes(Arrival { socket, peer, name }))
    }

    fn vm(&self) -> VmId {
        self.vm
    }

    fn fenced(&self) {
        // A broker that is ending has nobody to tell.
        let _ = self.tell(Notice::Fenced(self.vm));
    }
}

/// What the thread of a VM shares with the broker's.
#[derive(Default)]
struct Control {
    ended: AtomicBool,
    connected: AtomicBool,
    /// The VM as it is now; 0: none has come.
    vm: AtomicU64,
    device: Mutex<Option<Arc<Device<Gate>>>>,
}

impl Control {
    fn device(&self) -> MutexGuard<'_, Option<Arc<Device<Gate>>>> {
        self.device.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes from a guest what it was shown. The broker's loop need not wait for it: by its own tables
/// the VM is gone, but for what its processes had that others might take over, such as locks: they
/// get it when this is done, also if it waits for the guest's driver. The connection stays until
/// QEMU leaves: QEMU (11.1) ends itself when it loses it while the VM is paused.
fn retire(device: Arc<Device<Gate>>) {
    let retired = thread::Builder::new()
        .name("vm-end".into())
        .spawn(move || device.retire());
    if let Err(error) = retired {
        tracing::error!(%error, "what a detached guest was shown stays so");
    }
}

struct Vm {
    tenant: TenantId,
    socket: PathBuf,
    control: Arc<Control>,
}

impl Drop for Vm {
    fn drop(&mut self) {
        self.control.ended.store(true, Ordering::SeqCst);
        // Wakes the thread where it waits for QEMU to come.
        drop(std::os::unix::net::UnixStream::connect(&self.socket));
        let _ = fs::remove_file(&self.socket);
    }
}

/// The VMs that may attach.
pub struct Vms {
    dir: PathBuf,
    vms: BTreeMap<String, Vm>,
    sender: Sender<Notice>,
    receiver: Receiver<Notice>,
    bell: Arc<OwnedFd>,
    /// Detached: their processes' sessions are to end.
    gone: Vec<VmId>,
    /// Detached, but still shown what they were: sessions of theirs that have ended.
    unfenced: BTreeMap<VmId, Vec<SessionId>>,
}

impl std::fmt::Debug for Vms {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.vms.keys()).finish()
    }
}

impl Vms {
    /// None yet; their sockets will be in a directory of `dir`.
    ///
    /// # Errors
    /// Out of descriptors.
    pub fn new(dir: &Path) -> Result<Vms, Errno> {
        let (sender, receiver) = channel();
        Ok(Vms {
            dir: dir.join(DIR_NAME),
            vms: BTreeMap::new(),
            sender,
            receiver,
            bell: Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?),
            gone: Vec::new(),
            unfenced: BTreeMap::new(),
        })
    }

    /// Readable when there is something for [`Vms::take_news`].
    pub fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// Takes what the threads of VMs have reported: new clients, and the sessions that end now that
    /// their VM is fenced.
    pub fn take_news(&mut self) -> (Vec<Arrival>, Vec<SessionId>) {
        // Emptied first: a thread that comes later rings again.
        let _ = rustix::io::read(&*self.bell, &mut [0u8; 8]);
        let (mut arrivals, mut ended) = (Vec::new(), Vec::new());
        for notice in self.receiver.try_iter() {
            match notice {
                Notice::Comes(arrival) => arrivals.push(arrival),
                Notice::Fenced(vm) => ended.extend(self.unfenced.remove(&vm).unwrap_or_default()),
            }
        }
        let current = |arrival: &Arrival| {
            let mut vms = self.vms.values();
            vms.any(|vm| arrival.peer.vm == Some(vm.control.vm.load(Ordering::SeqCst)))
        };
        arrivals.retain(current);
        (arrivals, ended)
    }

    /// Whether the end of a session must wait until its VM is fenced: until then its processes may
    /// store to what they were shown, so nobody may take it over. [`Vms::take_news`] gives it then.
    pub fn defers_end(&mut self, vm: Option<VmId>, session: SessionId) -> bool {
        let Some(sessions) = vm.and_then(|vm| self.unfenced.get_mut(&vm)) else {
            return false;
        };
        sessions.push(session);
        true
    }

    /// The tenant of the VM that has a name and may attach, if there is one.
    pub fn tenant_of(&self, name: &str) -> Option<TenantId> {
        self.vms.get(name).map(|vm| vm.tenant)
    }

    fn detach(&mut self, name: &str) -> Result<(), Errno> {
        let vm = self.vms.remove(name).ok_or(Errno::NOENT)?;
        // Seen by the VM's thread before it looks for a device that came meanwhile.
        vm.control.ended.store(true, Ordering::SeqCst);
        let id = vm.control.vm.load(Ordering::SeqCst);
        if let Some(device) = vm.control.device().take() {
            self.unfenced.insert(id, Vec::new());
            retire(device);
        }
        self.gone.push(id);
        Ok(())
    }

    /// Takes those that were detached. Their threads may still wait for QEMU.
    pub fn take_gone(&mut self) -> Vec<VmId> {
        std::mem::take(&mut self.gone)
    }

    /// Whether there are none, so that nobody needs this broker.
    pub fn is_empty(&self) -> bool {
        self.vms.is_empty() && self.unfenced.values().all(Vec::is_empty)
    }

    fn attach(&mut self, name: &str, tenant: TenantId) -> Result<(), Errno> {
        if !is_vm_name(name) {
            return Err(Errno::INVAL);
        }
        if let Some(vm) = self.vms.get(name) {
            return if vm.tenant == tenant {
                Ok(())
            } else {
                Err(Errno::EXIST)
            };
        }
        if self.vms.len() >= VMS_MAX {
            return Err(Errno::MFILE);
        }
        let socket = self.dir.join(format!("{name}.sock"));
        let listener = self.listen(&socket).map_err(|error| {
            tracing::error!(name, %error, "no socket for a VM");
            Errno::from_io_error(&error).unwrap_or(Errno::IO)
        })?;
        let control = Arc::new(Control::default());
        let service = Service {
            name: name.to_owned(),
            gate: (tenant, self.sender.clone(), Arc::clone(&self.bell)),
            control: Arc::clone(&control),
        };
        thread::Builder::new()
            .name("vm".into())
            .spawn(move || service.run(&mut Listener::from(listener)))
            .map_err(|_| Errno::AGAIN)?;
        let vm = Vm {
            tenant,
            socket,
            control,
        };
        self.vms.insert(name.to_owned(), vm);
        Ok(())
    }

    /// The runtime directory is private to the broker's user, and so is what is in it.
    fn listen(&self, socket: &Path) -> io::Result<UnixListener> {
        if !self.dir.is_dir() {
            fs::create_dir(&self.dir)?;
        }
        match fs::remove_file(socket) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        UnixListener::bind(socket)
    }

    fn info(&self, name: &str, tenants: &[Tenant]) -> Result<VmInfo, Errno> {
        let vm = self.vms.get(name).ok_or(Errno::NOENT)?;
        Ok(VmInfo {
            name: name.to_owned(),
            tenant: tenants[vm.tenant].name.clone(),
            socket: vm.socket.to_string_lossy().into_owned(),
            connected: vm.control.connected.load(Ordering::SeqCst),
        })
    }
}

/// The thread that serves one VM: one QEMU after another.
struct Service {
    name: String,
    gate: (TenantId, Sender<Notice>, Arc<OwnedFd>),
    control: Arc<Control>,
}

impl Service {
    fn run(&self, listener: &mut Listener) {
        while !self.control.ended.load(Ordering::SeqCst) {
            if let Err(error) = self.serve(listener) {
                tracing::warn!(name = self.name, error, "a VM's connection failed");
            }
            self.control.connected.store(false, Ordering::SeqCst);
        }
    }

    /// Serves one QEMU until it leaves. All that its guest had goes with the device.
    fn serve(&self, listener: &mut Listener) -> Result<(), String> {
        let (tenant, notices, bell) = &self.gate;
        let gate = Gate {
            vm: random() | LABEL_BIT,
            name: self.name.as_str().into(),
            tenant: *tenant,
            notices: notices.clone(),
            bell: Arc::clone(bell),
        };
        self.control.vm.store(gate.vm, Ordering::SeqCst);
        let memory = GuestMemoryAtomic::new(GuestMemoryMmap::new());
        let text = |error: &dyn std::fmt::Display| error.to_string();
        let device = Device::new(memory.clone(), gate).map_err(|e| text(&e))?;
        let mut daemon = VhostUserDaemon::new(format!("vm {}", self.name), device.clone(), memory)
            .map_err(|e| text(&e))?;
        let handlers = daemon.get_epoll_handlers();
        for handler in &handlers {
            device.watch(handler).map_err(|e| text(&e))?;
        }
        let outcome = daemon.start(listener).and_then(|()| {
            let control = &self.control;
            control.connected.store(true, Ordering::SeqCst);
            tracing::info!(name = self.name, "QEMU has come");
            *control.device() = Some(Arc::clone(&device));
            if control.ended.load(Ordering::SeqCst)
                && let Some(device) = control.device().take()
            {
                retire(device);
            }
            daemon.wait()
        });
        self.control.device().take();
        for handler in handlers {
            handler.send_exit_event();
        }
        device.end();
        tracing::info!(name = self.name, "QEMU has left");
        match outcome {
            // QEMU ends its connection without ceremony.
            Ok(()) | Err(vhost_user_backend::Error::HandleRequest(_)) => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    }
}

/// The service's methods, for one client.
#[derive(Debug)]
pub struct Client<'a> {
    /// The VMs.
    pub vms: &'a mut Vms,
    /// All tenants.
    pub tenants: &'a [Tenant],
    /// The caller.
    pub peer: Peer,
}

impl Client<'_> {
    /// The broker's own user and root, and none of them from within a VM.
    fn check(&self) -> Result<(), Errno> {
        if self.peer.is_own() {
            Ok(())
        } else {
            Err(Errno::PERM)
        }
    }
}

impl VmService for Client<'_> {
    fn attach_vm(
        &mut self,
        request: AttachVmRequest,
        _: Vec<OwnedFd>,
    ) -> Result<Answer<VmInfo>, Errno> {
        self.check()?;
        let tenant = match request.tenant.as_str() {
            "" => Some(0),
            name => self.tenants.iter().position(|tenant| tenant.name == name),
        };
        self.vms
            .attach(&request.name, tenant.ok_or(Errno::NOENT)?)?;
        Ok(self.vms.info(&request.name, self.tenants)?.into())
    }

    fn detach_vm(&mut self, request: VmRequest, _: Vec<OwnedFd>) -> Result<Answer<()>, Errno> {
        self.check()?;
        self.vms.detach(&request.name)?;
        Ok(().into())
    }

    fn list_vms(&mut self, (): (), _: Vec<OwnedFd>) -> Result<Answer<Vec<VmInfo>>, Errno> {
        self.check()?;
        let names = self.vms.vms.keys();
        let infos: Result<Vec<_>, Errno> = names
            .map(|name| self.vms.info(name, self.tenants))
            .collect();
        Ok(infos?.into())
    }
}

#[cfg(test)]
mod tests;
