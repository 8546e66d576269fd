//! Address handles: where datagrams go.

use std::sync::Arc;

use crate::av::Av;
use crate::destination::{Destination, group_of};
use crate::errno::Errno;
use crate::gid;
use crate::pd::Pd;

/// An address handle (`ibv_create_ah(3)`).
pub struct Ah {
    pd: Arc<Pd>,
    number: u32,
}

impl Pd {
    /// Creates an address handle (`ibv_create_ah(3)`).
    ///
    /// # Errors
    /// EINVAL without a global route or for a GID index that does not exist, ENOMEM where there are
    /// too many, EOPNOTSUPP for a multicast group where the wire is to be secured and the broker
    /// has no secrets for groups.
    pub fn create_ah(self: &Arc<Self>, av: &Av) -> Result<Arc<Ah>, Errno> {
        let table = gid::gid_table();
        let source = table.get(usize::from(av.sgid_index));
        let source = source.filter(|_| av.is_global).ok_or(Errno(libc::EINVAL))?;
        let shared = &self.context.endpoint.shared;
        if let Some(group) = group_of(av.dgid) {
            shared.is_group_secured(group)?;
        }
        let class = av.class(|level| shared.control.class_of(level));
        let way = Destination::find(av, source, class);
        let number = shared.common.ways.insert(way).ok_or(Errno(libc::ENOMEM))?;
        shared.pds.add_user(self.handle);
        Ok(Arc::new(Ah {
            pd: Arc::clone(self),
            number,
        }))
    }
}

impl Ah {
    /// The number by which work requests name it.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Ends it (`ibv_destroy_ah(3)`). Sends that name it are complete, or lost.
    pub fn destroy(&self) {
        let shared = &self.pd.context.endpoint.shared;
        if shared.common.ways.remove(self.number) {
            shared.pds.drop_user(self.pd.handle);
        }
        shared.reclaim_many();
    }
}
